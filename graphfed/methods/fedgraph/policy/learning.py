"""Learn FedGraph's sampling policy on data of this machine, and write it into a file for runs
(`policy_file`).

    manifest.json        as of a run, with what was asked, the reward, and whether the policy has seen the
                         test part
    partition.safetensors  a copy of the file of --partition, if it named one
    episodes.jsonl       one line for each episode: return, accuracy, modelled and wall seconds, how much was
                         sampled
    checkpoint/round-00000007/local.safetensors   after episode 7, what learning needs to go on: components,
                                                  networks, optimisers and the actor that is kept
                              local.json          the lines of all episodes, and the other file's sha256
    checkpoint/episode-00007.safetensors          the transitions of episode 7
    policy.safetensors   the policy (`learned_policy.write_policy`)
    returns.svg          the return of every episode, drawn
    result.json          the result, and an episode without noise; written last

A checkpoint is like that of a run (`graphfed.runs.checkpoint`), with an episode in the place of a round.

All clients are in this process. A policy is learned on data that one party has, as on a copy that it may use
for this, and a federation uses the policy afterwards. Learning needs the extra `rl`.
"""

import dataclasses
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from graphfed.drawing.canvas import picture_file
from graphfed.drawing.charts import XY, Axis, Series
from graphfed.errors import GraphfedError, InputError, how_to_install, shown
from graphfed.files import JsonObject, write_bytes
from graphfed.methods.fedgraph.learned_policy import PolicyFile, write_policy
from graphfed.methods.fedgraph.method import METHOD
from graphfed.methods.fedgraph.policy.settings import (
    EPISODES,
    WINDOW,
    DDPGConfig,
    RewardConfig,
    take_settings,
)
from graphfed.methods.references import REFERENCES
from graphfed.methods.registry import get_method
from graphfed.methods.settings import only_those
from graphfed.runs import folder as files
from graphfed.runs import run as runs
from graphfed.runs.checkpoint import read_part, write_part
from graphfed.runs.config import make_config
from graphfed.runs.folder_schema import Count, FileModel, Integer, Positive, Real
from graphfed.runs.progress import OnEvent, human_seconds, show_progress, stages_of
from graphfed.runs.reopen import check_hashes, config_from_json, find_start, read_manifest
from graphfed.runs.train import Event
from graphfed.runtime.interrupts import Interrupted, StopRequest, listening
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.loading import load_inputs
from graphfed.tasks.run_config import RunConfig

if TYPE_CHECKING:
    from graphfed.methods.fedgraph.policy.ddpg import (
        Episode,
        FederationEnvironment,
        PreparedFederation,
        Reward,
    )

#: The file of the policy, and the file with a line for each episode, in the folder of what learned it.
POLICY = "policy.safetensors"
LINES = "episodes.jsonl"
#: The warning of a reward with on=test.
SAW_TEST = "the reward is on the test part: what the policy reaches there is no test of it"
#: Settings of a run that learning does not use.
_UNUSED = ("patience", "eval_every", "fraction")
#: What may differ when learning goes on: where files are and how fast they are read.
_ASIDE = ("data_dir", "threads", "checkpoint_every", "partition_file")
#: The only process that saves.
PROCESS = "local"


# ---- the result, and the schemas of its files --------------------------------------------------------------


class _Accuracies(FileModel):
    best: Real
    final: Real


class _FinalEpisode(FileModel):
    value: Real = Field(alias="return")
    accuracy: _Accuracies
    modelled_seconds: Real


class _Details(FileModel):
    kept_episode: Count


class _Seconds(FileModel):
    rounds: Real
    evaluation: Real
    learning: Real


class PolicyResult(FileModel):
    """The content of result.json of a learned policy."""

    dataset: str
    clients: Positive
    partition: str
    seed: Integer
    rounds: Positive
    reward: JsonObject
    policy_saw_test: bool
    returns: Annotated[list[Real], Field(min_length=1)]
    final: _FinalEpisode
    details: _Details
    seconds: _Seconds
    peak_rss_mb: Real
    hashes: dict[str, str]
    versions: dict[str, str]


class EpisodeLine(FileModel):
    """A line of episodes.jsonl of a policy."""

    episode: Positive
    value: float = Field(alias="return")


class LearningCheckpoint(FileModel):
    """The content of checkpoint/round-*/local.json of a policy, which is written after every episode."""

    version: Integer
    sha256: str
    episodes: Annotated[list[EpisodeLine], Field(min_length=1)]


@dataclass(frozen=True)
class LearnedPolicy:
    """The result of learning, under the names of result.json.

    Attributes:
        reward: target, omega, alpha, beta, on, clock, and the origin of target and alpha.
        policy_saw_test: Whether the reward is the accuracy on the test part.
        final: The episode without noise, with the seed's own weights: a line, and its `rounds`.
        details: The number of components, and the episode after which the actor is the policy.
    """

    dataset: str
    clients: int
    partition: str
    seed: int
    rounds: int
    reward: JsonObject
    policy_saw_test: bool
    episodes: tuple[JsonObject, ...]
    final: JsonObject
    details: JsonObject
    seconds: dict[str, float]
    peak_rss_mb: float
    hashes: dict[str, str]
    versions: dict[str, str]
    folder: Path

    @property
    def file(self) -> Path:
        """The file of the policy."""
        return self.folder / POLICY

    def summary(self) -> str:
        """Describe the policy for a screen.

        Returns:
            Lines of text.
        """
        part = "test" if self.policy_saw_test else "validation"
        final, accuracy = self.final, self.final["accuracy"]
        size = max(1, min(WINDOW, len(self.episodes) // 2))
        ends = (self.episodes[:size], self.episodes[-size:])
        first, last = (np.mean([line["return"] for line in end]) for end in ends)
        lines = [
            f"policy on {self.dataset}: {self.clients} clients, {self.partition}, seed {self.seed}; "
            f"{len(self.episodes)} episodes of {self.rounds} rounds",
            f"return: {first:.2f} in the first {size} episodes, {last:.2f} in the last {size}",
            f"kept: the actor after episode {self.details['kept_episode']}",
            f"without noise: return {final['return']:.2f}; {part} accuracy {accuracy['best']:.4g}, in the "
            f"last round {accuracy['final']:.4g}; {final['modelled_seconds']:.3g} modelled seconds",
        ]
        if self.policy_saw_test:
            lines.append(SAW_TEST)
        use = shlex.join(["--set", "policy=ddpg", "--set", f"policy_file={self.file}"])
        return "\n".join([*lines, f"use it in runs of fedgraph as here: {use}", f"files: {self.folder}"])

    def to_json(self) -> JsonObject:
        """Return the policy as plain data.

        Returns:
            The content of result.json, with the number of the episodes and their returns.
        """
        returns = [line["return"] for line in self.episodes]
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "folder"}
        return {**files.plain_object(fields), "episodes": len(returns), "returns": returns}


def learned_in(folder: Path) -> LearnedPolicy:
    """Read the policy that was learned in a folder. Raise InputError if a file is missing or damaged."""
    content, lines = files.read_json(folder / "result.json", PolicyResult), lines_in(folder)
    names = {f.name for f in dataclasses.fields(LearnedPolicy)} - {"folder", "episodes"}
    return LearnedPolicy(**{name: content[name] for name in names}, episodes=tuple(lines), folder=folder)


def lines_in(folder: Path) -> list[JsonObject]:
    """Read episodes.jsonl; no lines if the file is missing. Raise InputError if it is damaged."""
    path = folder / LINES
    lines = files.read_lines(path, EpisodeLine) if path.exists() else []
    for number, line in enumerate(lines, 1):
        if line["episode"] != number:
            raise InputError(
                f"{path} is damaged (line {number} is of no episode {number}); learn anew, in another folder"
            )
    return lines


def draw_returns(title: str, lines: Sequence[Mapping[str, Any]], kept: int) -> bytes:
    """Draw the return of every episode, its mean over the last ten, and where the actor is kept."""
    returns = np.array([line["return"] for line in lines])
    numbers = np.arange(1, len(returns) + 1)
    sums = np.concatenate([[0.0], returns.cumsum()])
    since = np.maximum(numbers - WINDOW, 0)
    means = (sums[numbers] - sums[since]) / (numbers - since)
    series = [
        Series("an episode", numbers, returns, place=5, dash="", marker="o"),
        Series(f"mean of the last {WINDOW}", numbers, means, marker=""),
        Series("the actor is kept", [kept], [means[kept - 1]], place=1, dash="", marker="o", size=7.0),
    ]
    chart = XY(series, Axis("episode", whole=True), Axis("discounted return"), height=3.4)
    return picture_file(f"{title}: return of each episode", [[chart]])


# ---- the command -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What is to be learned, and on which data; config: a run that uses the policy."""

    config: RunConfig
    reward: RewardConfig
    learning: DDPGConfig
    episodes: int

    @property
    def label(self) -> str:
        """The name of the question on a screen."""
        return f"policy on {self.config.data_name}"

    @property
    def rounds(self) -> int:
        """The rounds of an episode."""
        return self.config.rounds

    def to_json(self) -> JsonObject:
        """Return what the manifest has under "policy"."""
        asked = {key: dataclasses.asdict(getattr(self, key)) for key in ("reward", "learning")}
        return files.plain_object({**asked, "episodes": self.episodes, "config": self.config.to_json()})

    def is_same(self, there: object) -> bool:
        """Return whether a manifest asks the same, apart from where its files are and how fast they are
        read.
        """
        if not isinstance(there, dict) or not isinstance(there.get("config"), dict):
            return False
        here = self.to_json()
        both = [{**asked, "config": {**asked["config"], **dict.fromkeys(_ASIDE)}} for asked in (there, here)]
        return both[0] == both[1]


def learn_policy(
    *,
    data: object = None,
    clients: int | None = None,
    partition: object = None,
    split: str = "default",
    episodes: int = EPISODES,
    rounds: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    settings: Mapping[str, object] | None = None,
    command: str = "graphfed.methods.fedgraph.policy.learning.learn_policy",
) -> LearnedPolicy:
    """Learn a sampling policy of FedGraph by DDPG.

    Args:
        data, clients, partition, split, seed, device, threads, data_dir: As in `run`.
        episodes: The number of episodes, the first of them with random decisions.
        rounds: The rounds of an episode; default: 300.
        out: The folder; None for ``runs/policy-<data>-<time>``. If it holds the same question, learning goes
            on there, after the last episode that ended.
        progress: Whether to show progress on stderr.
        settings: Settings of fedgraph, of data and partition, and of learning
            (`graphfed.methods.fedgraph.policy.settings`): ``{"reward.target": 0.8, "ddpg.lr": 1e-3}``.
        command: The command that manifest.json records.

    Returns:
        The policy and how it was learned.

    Raises:
        InputError: A value cannot be used, the folder holds something else, there is too little memory, or
            the extra is missing; nothing is written.
        GraphfedError: Training or learning diverges.
        Interrupted: SIGINT or SIGTERM came; what had ended is saved.
    """
    _require_extra()
    reward, learning, rest = take_settings(settings or {})
    for key in ("policy", "policy_file", *_UNUSED):
        if key in rest:
            raise InputError(f"{key} has no use where a policy is learned; leave it out")
    config = make_config(
        METHOD.name,
        data=data,
        clients=clients,
        partition=partition,
        rounds=rounds,
        seed=seed,
        split=split,
        device=device,
        threads=threads,
        data_dir=data_dir,
        # The file does not exist yet: learning writes it.
        settings={**rest, "policy": "ddpg", "policy_file": POLICY},
    )
    for name, number in (("episodes", episodes), ("rounds", config.rounds)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 2:
            raise InputError(f"{name}={shown(number)} cannot be used: expected a whole number of at least 2")
    question = Question(config, reward, learning, episodes)
    folder = files.chosen_folder(out, f"policy-{config.data_name}")
    assert folder is not None
    if (folder / "manifest.json").exists():
        manifest = read_manifest(folder)
        if not question.is_same(manifest.get("policy")):
            raise InputError(
                f"the output folder {folder} holds something else; name a new one with --out, or ask the same"
            )
        return _resume(question, folder, manifest, progress)
    with (
        files.open_folder(folder, keep=runs.has_checkpoint),
        show_progress(question.label, progress) as on_event,
    ):
        inputs = load_inputs(config, on_stage=stages_of(on_event))
        manifest = {**runs.manifest_of(config, inputs, command), "policy": question.to_json()}
        del manifest["config"]  # the question has it; a manifest with a config belongs to a run
        return _learn(question, inputs, folder, manifest, None, on_event)


def resume_policy(
    folder: Path, manifest: JsonObject, *, data: object, data_dir: str | Path | None, progress: bool
) -> LearnedPolicy:
    """Go on with what `learn_policy` began in a folder; read it if learning has ended.

    Args:
        data: The data, if it was an object in Python.
        data_dir: The folder where the data files are now.

    Raises:
        InputError, GraphfedError, Interrupted: As `runs.reopen.resume`.
    """
    _require_extra()
    try:
        asked = manifest["policy"]
        config = config_from_json(asked["config"], folder, data=data, data_dir=data_dir)
        reward, learning = RewardConfig(**asked["reward"]), DDPGConfig(**asked["learning"])
        question = Question(config, reward, learning, asked["episodes"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: {error}") from None
    return _resume(question, folder, manifest, progress)


def _resume(question: Question, folder: Path, manifest: JsonObject, progress: bool) -> LearnedPolicy:
    if (folder / "result.json").exists():
        return learned_in(folder)
    with files.open_folder(folder, resume=True), show_progress(question.label, progress) as on_event:
        inputs = load_inputs(question.config, on_stage=stages_of(on_event))
        check_hashes(folder, inputs, manifest["hashes"])
        start = find_start(folder, manifest, [PROCESS], LearningCheckpoint)
        return _learn(question, inputs, folder, manifest, start or 0, on_event)


def _require_extra() -> None:
    try:
        import gymnasium  # noqa: F401
        import stable_baselines3  # noqa: F401
    except ImportError:
        raise InputError(
            "learning a policy needs the packages gymnasium and stable-baselines3, which are not installed; "
            f"install them: {how_to_install('rl')}"
        ) from None


# ---- learning ----------------------------------------------------------------------------------------------


def _learn(
    question: Question,
    inputs: Inputs,
    folder: Path,
    manifest: JsonObject,
    start: int | None,
    on_event: OnEvent | None,
) -> LearnedPolicy:
    """Learn, and write the results; start: the episode to go on from, 0 to begin again, None in a new
    folder, whose manifest is completed and written here.
    """
    from graphfed.methods.fedgraph.policy import ddpg
    from graphfed.methods.fedgraph.policy.ddpg import Reward, prepare_federation, run_policy

    config, began = question.config, time.perf_counter()
    saw_test = question.reward.on == "test"
    with runs.computing_with(manifest["threads"]):
        federation = prepare_federation(config, inputs)
        if start is None:
            found = _reward(question, inputs, federation, on_event)
            manifest = {**manifest, "reward": found, "policy_saw_test": saw_test, "versions": _versions()}
        reward = manifest["reward"]
        given = Reward(**{f.name: reward[f.name] for f in dataclasses.fields(Reward)})
        work = Learning(question, federation, given, folder, on_event)
        if start:
            work.restore(start)
        sizes = (federation, question.learning, question.episodes, question.rounds)
        ddpg.check_fits(*sizes)
        files.check_space(folder, ddpg.bytes_of_files(*sizes))
        if start is None:
            runs.write_manifest(folder, manifest)
            runs.keep_partition(folder, config, inputs)
        with files.writing_into(folder):
            with listening() as work.stop_request:
                work.begin()
                policy, details = ddpg.learn(
                    work, question.learning, question.episodes, config.seed, config.device
                )
                # Without noise, and from the weights of the seed itself, as a run with this policy and seed.
                projection = {name: tensor for name, tensor in policy.items() if name.startswith("pca.")}
                final = run_policy(work.environment(projection), policy, work.stop_if_asked)
            work.write_lines()
            rounds = {key: final.of_rounds(key) for key in ("accuracy", "modelled_seconds", "reward")}
            spent = ("rounds", "evaluation", "learning")
            of_episodes = {key: sum(line["spent"][key] for line in work.lines) for key in spent}
            learned = LearnedPolicy(
                dataset=inputs.name,
                clients=inputs.num_clients,
                partition=config.partition,
                seed=config.seed,
                rounds=question.rounds,
                reward=dict(reward),
                policy_saw_test=saw_test,
                episodes=tuple(work.lines),
                final={**work.line_of(final), "rounds": rounds},
                details=details,
                seconds={"total": time.perf_counter() - began, **of_episodes},
                peak_rss_mb=runs.peak_rss_mb(),
                hashes=inputs.hashes,
                versions=_versions(),
                folder=folder,
            )
            write_policy(folder / POLICY, policy, _described(question, learned, federation))
            picture = draw_returns(question.label, work.lines, details["kept_episode"])
            write_bytes(folder / "returns.svg", picture)
        runs.write_file(folder, "result.json", learned.to_json())
    return learned


def _versions() -> dict[str, str]:
    import gymnasium
    import stable_baselines3

    learning = {"gymnasium": gymnasium.__version__, "stable_baselines3": stable_baselines3.__version__}
    return {**runs.versions(), **learning}


def _reward(
    question: Question, inputs: Inputs, federation: "PreparedFederation", on_event: OnEvent | None
) -> JsonObject:
    """Return the settings of the reward with their defaults computed, and the origin of target and alpha."""
    from graphfed.methods.fedgraph.policy.ddpg import seconds_of_full_round

    def say(text: str) -> None:
        if on_event is not None:
            on_event(Event("note", note=text))

    asked = question.reward
    content = dataclasses.asdict(asked) | {"target_from": "given", "alpha_from": "given"}
    if asked.target is None:
        part = "validation" if asked.on == "val" else "test"
        pooled = REFERENCES[question.config.task][0]
        content["target"] = _target(question, inputs, pooled)
        content["target_from"] = f"the {part} accuracy of {pooled}, with these settings and as many steps"
        say(f"target {content['target']:.4f}: {content['target_from']}")
    if asked.alpha is None:
        seconds = seconds_of_full_round(federation, asked.clock)
        content["alpha"] = 1 / seconds
        content["alpha_from"] = f"1 over the {asked.clock} seconds of a round with full batches"
        say(f"alpha {content['alpha']:.4g}: {content['alpha_from']}, {seconds:.4g} s")
    if asked.on == "test":
        say(SAW_TEST)
    return content


def _target(question: Question, inputs: Inputs, method: str) -> float:
    """Return what a method reaches with these settings on the part of the reward, at its best validation
    round.
    """
    asked = question.config.to_json()
    shared = {*get_method(method).tree.names} - {"seed", *_UNUSED}
    training = only_those(shared, asked["training"])
    changed = {**asked, "method": method, "training": training}
    config = config_from_json(changed, Path(), data=question.config.data_source)
    result = runs.execute(config, inputs, folder=None, command="", own_partition=False)
    accuracy = (result.val if question.reward.on == "val" else result.test)["accuracy"]
    if not accuracy:
        raise GraphfedError(f"{method} classifies nothing right, so there is no target; give reward.target")
    return accuracy


def _described(question: Question, learned: LearnedPolicy, federation: "PreparedFederation") -> PolicyFile:
    """Return the description that goes into the policy's file."""
    return PolicyFile(
        kind="ddpg",
        clients=learned.clients,
        layers=question.config.settings.network.layers,
        weights=federation.clients.size,
        learned={
            "saw_test": learned.policy_saw_test,
            "data": learned.dataset,
            "partition": learned.partition,
            "split": question.config.split,
            "seed": learned.seed,
            "rounds": learned.rounds,
            "episodes": len(learned.episodes),
            "reward": learned.reward,
            "hashes": learned.hashes,
        },
    )


# ---- episode by episode ------------------------------------------------------------------------------------


@dataclass
class Learning:
    """The state of learning in a folder (`ddpg.Progress`)."""

    question: Question
    federation: "PreparedFederation"
    reward: "Reward"
    folder: Path
    on_event: OnEvent | None = None
    stop_request: StopRequest = field(default_factory=StopRequest)
    lines: list[JsonObject] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    _done: int = 0
    _since: tuple[int, float] = (0, 0.0)

    def environment(self, projection: Mapping[str, Tensor] | None = None) -> "FederationEnvironment":
        """Return the federation as an environment, whose next episode is the one after those done."""
        from graphfed.methods.fedgraph.policy.ddpg import FederationEnvironment

        return FederationEnvironment(
            self.federation,
            self.reward,
            rounds=self.question.rounds,
            projection=projection,
            episodes_done=len(self.lines),
        )

    def line_of(self, episode: "Episode") -> JsonObject:
        """Return an episode as a line of episodes.jsonl has it."""
        return files.plain_object(episode.to_json(self.question.learning.gamma, self.federation.counts))

    def restore(self, episode: int) -> None:
        """Read the checkpoint that was written after an episode. Raise InputError if it cannot be used."""
        from graphfed.methods.fedgraph.policy.ddpg import readable

        checkpoints = self.folder / files.CHECKPOINTS
        with readable(checkpoints):
            content, arrays = read_part(checkpoints, episode, PROCESS, LearningCheckpoint)
        self.lines = content["episodes"]
        self.tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def begin(self) -> None:
        """Start the clock by which the remaining time is estimated."""
        self._done = len(self.lines) * self.question.rounds
        self._since = self._done, time.perf_counter()

    def stop_if_asked(self) -> None:
        """Raise Interrupted if a stop was requested."""
        if self.stop_request.asked:
            raise Interrupted(f"stopped after episode {len(self.lines)}")

    def after_round(self) -> None:
        """Report how far the learning is, and stop if a stop was requested."""
        self._done += 1
        self._report("train")
        self.stop_if_asked()

    def note(self, text: str) -> None:
        """Show a line."""
        self._report("note", text)

    def add(self, episode: "Episode", tensors: dict[str, Tensor], *, actions: str) -> None:
        """Save an episode that is over, and show a line. Raise OSError if the disk refuses the files.

        Args:
            actions: What the actions were, for the line.
        """
        line = {"episode": len(self.lines) + 1, "actions": actions, **self.line_of(episode)}
        self.lines.append(line)
        self.tensors = tensors
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
        write_part(
            self.folder / files.CHECKPOINTS, line["episode"], PROCESS, arrays, {"episodes": self.lines}
        )
        self.write_lines()
        before, began = self._since
        pace = max(self._done - before, 1) / max(time.perf_counter() - began, 1e-9)
        episodes = self.question.episodes
        left = (episodes - line["episode"]) * self.question.rounds / pace
        text = f"episode {line['episode']}/{episodes}: return {line['return']:.2f}, {pace:.1f} rounds/s"
        self.note(text + (f", {human_seconds(left)} left" if left else ""))

    def write_lines(self) -> None:
        """Write episodes.jsonl. Raise OSError if the disk refuses the file."""
        files.write_lines(self.folder / LINES, self.lines)

    def transitions_of(self, episode: int) -> Path:
        """Return the file with the transitions of an episode."""
        return self.folder / files.CHECKPOINTS / f"episode-{episode:05d}.safetensors"

    def _report(self, phase: str, note: str = "") -> None:
        if self.on_event is not None:
            total, (before, began) = self.question.episodes * self.question.rounds, self._since
            # As if what was done earlier had taken as long.
            spent = (time.perf_counter() - began) * self._done / max(self._done - before, 1)
            sent = self.federation.fed.ledger.counted_bytes
            self.on_event(Event(phase, self._done, total, None, sent, spent, note))

"""Learn FedGraph's sampling policy on data of this machine, and write it into a file for runs
(`policy_file`).

    manifest.json        as of a run, with what was asked, the reward, and whether the policy has seen the
                         test part
    partition.safetensors  a copy of the file of --partition, if it named one
    episodes.jsonl       one line for each episode: return, accuracy, modelled and wall seconds, how much was
                         sampled
    checkpoint/          what learning needs to go on (`policy_episodes`)
    policy.safetensors   the policy (`sampling_policies.write_policy`)
    returns.svg          the return of every episode, drawn
    result.json          the result, and an episode without noise; written last

All clients are in this process. A policy is learned on data that one party has, as on a copy that it may use
for this, and a federation uses the policy afterwards. Learning needs the extra `rl`.
"""

import dataclasses
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfed.drawing.canvas import picture_file
from graphfed.drawing.charts import XY, Axis, Series
from graphfed.errors import GraphfedError, InputError, did_you_mean, how_to_install, shown
from graphfed.files import JsonObject, write_bytes
from graphfed.methods.config import GraphSettings
from graphfed.methods.fedgraph.learning_config import KINDS, WINDOW, DDPGConfig, RewardConfig
from graphfed.methods.fedgraph.method import METHOD
from graphfed.methods.fedgraph.sampling_policies import PolicyFile, write_policy
from graphfed.methods.references import REFERENCES
from graphfed.methods.registry import get_method
from graphfed.runs import folder as files
from graphfed.runs.config import make_config
from graphfed.runs.progress import OnEvent, show_progress, stages_of
from graphfed.runs.reopen import check_hashes, config_from_json, find_start, read_manifest
from graphfed.runs.run import (
    computing_with,
    execute,
    has_checkpoint,
    keep_partition,
    manifest_of,
    peak_rss_mb,
    versions,
    write_file,
    write_manifest,
)
from graphfed.runtime.interrupts import listening
from graphfed.studies.folder_schema import LearningCheckpoint, PolicyResult
from graphfed.studies.policy_settings import Question, count_episodes, take_settings
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.loading import load_inputs

if TYPE_CHECKING:
    from graphfed.methods.fedgraph.environment import PreparedFederation

__all__ = ["POLICY", "LearnedPolicy", "learn_policy", "learned_in", "resume_policy"]

#: The file of the policy, in the folder of what learned it.
POLICY = "policy.safetensors"
#: The warning of a reward with on=test.
SAW_TEST = "the reward is on the test part: what the policy reaches there is no test of it"
#: Settings of a run that learning does not use.
_UNUSED = ("patience", "eval_every", "fraction")


@dataclass(frozen=True)
class LearnedPolicy:
    """The result of learning, under the names of result.json.

    Attributes:
        reward: target, omega, alpha, beta, on, clock, and the origin of target and alpha.
        policy_saw_test: Whether the reward is the accuracy on the test part.
        episodes: The lines of episodes.jsonl.
        final: The episode without noise, with the seed's own weights: a line, and its `rounds`.
        details: Of a bandit the arms, of DDPG the kept episode.
        folder: The folder with the files.
    """

    kind: str
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
            The lines of a text.
        """
        part = "test" if self.policy_saw_test else "validation"
        final, accuracy = self.final, self.final["accuracy"]
        lines = [
            f"policy {self.kind} on {self.dataset}: {self.clients} clients, {self.partition}, seed "
            f"{self.seed}; {len(self.episodes)} episodes of {self.rounds} rounds"
        ]
        if self.kind == "bandit":
            best = self.details["best"]
            lines.append(f"best: {best['share']:g} of the training nodes, chance {best['chance']:g}")
        else:
            size = max(1, min(WINDOW, len(self.episodes) // 2))
            ends = (self.episodes[:size], self.episodes[-size:])
            first, last = (np.mean([line["return"] for line in end]) for end in ends)
            lines.append(f"return: {first:.2f} in the first {size} episodes, {last:.2f} in the last {size}")
            lines.append(f"kept: the actor after episode {self.details['kept_episode']}")
        lines.append(
            f"without noise: return {final['return']:.2f}; {part} accuracy {accuracy['best']:.4g}, in the "
            f"last round {accuracy['final']:.4g}; {final['modelled_seconds']:.3g} modelled seconds"
        )
        if self.policy_saw_test:
            lines.append(SAW_TEST)
        use = shlex.join(["--set", f"policy={self.kind}", "--set", f"policy_file={self.file}"])
        use = f"use it in runs of {METHOD.name} as here: {use}"
        return "\n".join([*lines, use, f"files: {self.folder}"])

    def to_json(self) -> JsonObject:
        """Return the policy as plain data.

        Returns:
            The content of result.json, with the number of the episodes and their returns.
        """
        returns = [line["return"] for line in self.episodes]
        return {**files.fields_of(self), "episodes": len(returns), "returns": returns}


def learn_policy(
    kind: str,
    *,
    data: object = None,
    clients: int | None = None,
    partition: str | Path | None = None,
    split: str = "default",
    episodes: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    settings: Mapping[str, object] | None = None,
    command: str = "graphfed.studies.policy_learning.learn_policy",
) -> LearnedPolicy:
    """Learn a sampling policy of FedGraph.

    Args:
        kind: "ddpg", or "bandit" for the best constant policy.
        data, clients, partition, split, seed, device, threads, data_dir: As in `run`.
        episodes: The number of episodes. Default: 300 for DDPG, the first of them with random decisions; for
            the bandit as many as its search takes, which ends earlier with fewer.
        rounds: The rounds of an episode; default: 300.
        out: The folder; None for ``runs/policy-<kind>-<data>-<time>``. If it holds the same question,
            learning goes on there.
        progress: Whether to show progress on stderr.
        settings: Settings of fedgraph, of data and partition, and of learning (`policy_settings`):
            ``{"reward.target": 0.8, "ddpg.lr": 1e-3}``.
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
    if kind not in KINDS:
        raise InputError(f"unknown kind of policy {shown(kind)}; {did_you_mean(str(kind)[:60], KINDS)}")
    reward, learning, rest = take_settings(kind, settings or {})
    for key in ("policy", "policy_file", *_UNUSED):
        if key in rest:
            raise InputError(f"{key} has no use where a policy is learned; leave it out")
    # The file does not exist yet: learning writes it.
    rest |= {"policy": kind, "policy_file": POLICY}
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
        settings=rest,
    )
    question = Question(kind, config, reward, learning, count_episodes(episodes, learning, config))
    folder = files.chosen_folder(out, f"policy-{kind}-{config.data_name}")
    assert folder is not None
    if (folder / "manifest.json").exists():
        manifest = read_manifest(folder)
        if not question.is_same(manifest.get("policy")):
            raise InputError(
                f"the output folder {folder} holds something else; name a new one with --out, or ask the same"
            )
        return _resume(question, folder, manifest, progress)
    with (
        files.open_folder(folder, keep=has_checkpoint),
        show_progress(question.label, progress) as on_event,
    ):
        inputs = load_inputs(config, on_stage=stages_of(on_event))
        manifest = {**manifest_of(config, inputs, command), "policy": question.to_json()}
        del manifest["config"]  # the question has it; a manifest with a config belongs to a run
        return _learn(question, inputs, folder, manifest, None, on_event)


def resume_policy(
    folder: Path, manifest: JsonObject, *, data: object, data_dir: str | Path | None, progress: bool
) -> LearnedPolicy:
    """Go on with what `learn_policy` began in a folder.

    Args:
        folder: The folder of the policy.
        manifest: Its manifest.
        data: The data, if it was an object in Python.
        data_dir: The folder where the data files are now.
        progress: Whether to show progress on stderr.

    Returns:
        The policy and how it was learned; read from the folder if learning has ended.

    Raises:
        InputError, GraphfedError, Interrupted: As `runs.reopen.resume`.
    """
    _require_extra()
    try:
        asked = manifest["policy"]
        config = config_from_json(asked["config"], folder, data=data, data_dir=data_dir)
        reward = RewardConfig(**asked["reward"])
        learning = KINDS[asked["kind"]](**asked["learning"])
        question = Question(asked["kind"], config, reward, learning, asked["episodes"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: {error}") from None
    return _resume(question, folder, manifest, progress)


def _resume(question: Question, folder: Path, manifest: JsonObject, progress: bool) -> LearnedPolicy:
    if (folder / "result.json").exists():
        return learned_in(folder)
    with files.open_folder(folder, resume=True), show_progress(question.label, progress) as on_event:
        inputs = load_inputs(question.config, on_stage=stages_of(on_event))
        check_hashes(folder, inputs, manifest["hashes"])
        start = find_start(folder, manifest, ["local"], LearningCheckpoint)
        return _learn(question, inputs, folder, manifest, start or 0, on_event)


def learned_in(folder: Path) -> LearnedPolicy:
    """Read a learned policy.

    Args:
        folder: The folder of the policy.

    Returns:
        The policy and how it was learned.

    Raises:
        InputError: A file is missing or damaged.
    """
    from graphfed.studies.policy_episodes import lines_in

    content, lines = files.read_json(folder / "result.json", PolicyResult), lines_in(folder)
    names = {f.name for f in dataclasses.fields(LearnedPolicy)} - {"folder", "episodes"}
    return LearnedPolicy(**{name: content[name] for name in names}, episodes=tuple(lines), folder=folder)


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
    """Learn, and write the results.

    Args:
        question: What is to be learned.
        inputs: The data, split and partition.
        folder: The folder of the policy.
        manifest: Its manifest, which is completed and written here if the folder is new.
        start: The episode to go on from, 0 to begin again; None in a new folder.
        on_event: Called with the progress events.
    """
    from graphfed.methods.fedgraph import ddpg
    from graphfed.methods.fedgraph.environment import Reward
    from graphfed.studies.policy_episodes import Learning, final_episode, learn, prepare_federation

    config, settings, began = question.config, question.learning, time.perf_counter()
    with computing_with(manifest["threads"]):
        federation = prepare_federation(config, inputs)
        if start is None:
            found = _reward(question, inputs, federation, on_event)
            saw_test = question.reward.on == "test"
            manifest = {**manifest, "reward": found, "policy_saw_test": saw_test, "versions": _versions()}
        reward = manifest["reward"]
        work = Learning(
            question=question,
            federation=federation,
            reward=Reward(**{f.name: reward[f.name] for f in dataclasses.fields(Reward)}),
            folder=folder,
            on_event=on_event,
        )
        if start:
            work.restore(start)
        if isinstance(settings, DDPGConfig):
            sizes = (federation, settings, question.episodes, question.rounds)
            ddpg.check_fits(*sizes)
            files.check_space(folder, ddpg.bytes_of_files(*sizes))
        if start is None:
            write_manifest(folder, manifest)
            keep_partition(folder, config, inputs)
        with files.writing_into(folder):
            with listening() as work.stop_request:
                policy, details = learn(work)
                final = final_episode(work, policy)
            work.write_lines()
            learned = LearnedPolicy(
                kind=question.kind,
                dataset=inputs.name,
                clients=inputs.num_clients,
                partition=config.partition,
                seed=config.seed,
                rounds=question.rounds,
                reward=dict(reward),
                policy_saw_test=question.reward.on == "test",
                episodes=tuple(work.lines),
                final=final,
                details=details,
                seconds={"total": time.perf_counter() - began, **_spent(work.lines)},
                peak_rss_mb=peak_rss_mb(),
                hashes=inputs.hashes,
                versions=_versions(),
                folder=folder,
            )
            write_policy(folder / POLICY, policy, _described(question, learned, federation))
            write_bytes(
                folder / "returns.svg", draw_returns(question.label, work.lines, details.get("kept_episode"))
            )
        write_file(folder, "result.json", learned.to_json())
    return learned


def _versions() -> dict[str, str]:
    import gymnasium
    import stable_baselines3

    learning = {"gymnasium": gymnasium.__version__, "stable_baselines3": stable_baselines3.__version__}
    return {**versions(), **learning}


def _reward(
    question: Question,
    inputs: Inputs,
    federation: "PreparedFederation",
    on_event: OnEvent | None,
) -> JsonObject:
    """Return the settings of the reward with their defaults computed, and the origin of target and alpha."""
    from graphfed.methods.fedgraph.environment import seconds_of_full_round
    from graphfed.runs.train import Event

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
    shared = {f.name for f in dataclasses.fields(get_method(method).config)} - {"seed", *_UNUSED}
    training = {key: value for key, value in asked["training"].items() if key in shared}
    changed = {**asked, "method": method, "training": training}
    config = config_from_json(changed, Path(), data=question.config.data_source)
    result = execute(config, inputs, folder=None, command="", own_partition=False)
    accuracy = (result.val if question.reward.on == "val" else result.test)["accuracy"]
    if not accuracy:
        raise GraphfedError(f"{method} classifies nothing right, so there is no target; give reward.target")
    return accuracy


def _described(question: Question, learned: LearnedPolicy, federation: "PreparedFederation") -> PolicyFile:
    """Return the description that goes into the policy's file."""
    config = question.config.training
    assert isinstance(config, GraphSettings)
    return PolicyFile(
        kind=learned.kind,
        clients=learned.clients,
        layers=config.layers,
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


def _spent(lines: Sequence[JsonObject]) -> dict[str, float]:
    """Return the seconds of all episodes by the kind of work."""
    return {key: sum(line["spent"][key] for line in lines) for key in ("rounds", "evaluation", "learning")}


# ---- the drawing -------------------------------------------------------------------------------------------


def draw_returns(title: str, lines: Sequence[Mapping[str, Any]], kept: int | None) -> bytes:
    """Draw the return of every episode, and its mean over the last ten.

    Args:
        title: The title of the drawing.
        lines: The lines of episodes.jsonl.
        kept: The episode after which the actor is the policy; None for a bandit.

    Returns:
        An SVG file.
    """
    returns = np.array([line["return"] for line in lines])
    numbers = np.arange(1, len(returns) + 1)
    sums = np.concatenate([[0.0], returns.cumsum()])
    since = np.maximum(numbers - WINDOW, 0)
    means = (sums[numbers] - sums[since]) / (numbers - since)
    series = [
        Series("an episode", numbers, returns, place=5, dash="", marker="o"),
        Series(f"mean of the last {WINDOW}", numbers, means, marker=""),
    ]
    if kept is not None:
        mark = [kept], [means[kept - 1]]
        series.append(Series("the actor is kept", *mark, place=1, dash="", marker="o", size=7.0))
    chart = XY(series, Axis("episode", whole=True), Axis("discounted return"), height=3.4)
    return picture_file(f"{title}: return of each episode", [[chart]])

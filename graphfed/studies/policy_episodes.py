"""Learn a sampling policy episode by episode: the federation, what is saved after every episode, and
progress.

    checkpoint/round-00000007/local.safetensors   after episode 7, what learning needs to go on: of DDPG
                                                  components, networks, optimisers and the actor that is kept
                              local.json          the lines of all episodes, and the other file's sha256
    checkpoint/episode-00007.safetensors          of DDPG the transitions of episode 7

A checkpoint is like that of a run (`graphfed.runs.checkpoint`), with an episode in the place of a round. The
checkpoint of a bandit has no tensors, because its search follows from the returns.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Located
from graphfed.federation.secure.aggregation import check_sums
from graphfed.files import JsonObject, read_tensors, write_tensors
from graphfed.methods.fedgraph import bandit, ddpg
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.methods.fedgraph.environment import (
    Episode,
    FederationEnvironment,
    PreparedFederation,
    Reward,
    prepare_clients,
    run_episode,
    run_policy,
)
from graphfed.methods.fedgraph.learning_config import BanditConfig, DDPGConfig, Part
from graphfed.runs import folder as files
from graphfed.runs.checkpoint import read_part, write_part
from graphfed.runs.progress import OnEvent, human_seconds
from graphfed.runs.train import Event, agree_before_setup
from graphfed.runtime.interrupts import Interrupted, StopRequest
from graphfed.studies.folder_schema import EpisodeLine, LearningCheckpoint
from graphfed.studies.policy_settings import Question
from graphfed.tasks.inputs import Inputs, local_federation
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig

__all__ = ["LINES", "Learning", "final_episode", "learn", "lines_in", "prepare_federation"]

#: The file with a line for each episode.
LINES = "episodes.jsonl"
#: The only process that saves.
PROCESS = "local"


def prepare_federation(config: RunConfig, inputs: Inputs) -> PreparedFederation:
    """Set up the federation that a policy is learned on, with all clients stacked in this process.

    Args:
        config: A run of fedgraph.
        inputs: Its inputs.

    Returns:
        The federation, ready for episodes.

    Raises:
        InputError: As a run with this config.
    """
    training = config.training
    assert isinstance(training, FedGraphConfig)
    fed = local_federation(config, inputs)
    check_sums(fed, training.aggregation, fed.num_clients)
    task = inputs.task(config.task)
    parts = inputs.parts(config, fed.workers)
    data = get_task(task.name).data.located(fed, parts, [inputs.part_of_server(config)])
    data, _ = agree_before_setup(fed, data, config.method, task, training)
    assert isinstance(data, Located)
    evaluation = get_task(task.name).evaluation
    with fed.phase("eval"):
        prepared = evaluation.prepare(fed, data, task, training)

    def score(outputs: Located, settings: FedGraphConfig, part: Part) -> float | None:
        _, scored = evaluation.score(fed, data, outputs, part, part, prepared, settings)
        (found,) = fed.local_parts(scored)
        accuracy: float | None = None if found.lost else found.metrics["accuracy"]
        return accuracy

    return prepare_clients(fed, data, task, training, score)


@dataclass
class Learning:
    """The state of learning that every kind of policy works with.

    Attributes:
        question: What is to be learned.
        federation: The federation that it is learned on.
        reward: The reward of a round.
        folder: The folder of the policy.
        on_event: Called with the progress events.
        stop_request: A request to stop.
        lines: Of the episodes that are done, as in episodes.jsonl.
        tensors: Of the newest checkpoint.
    """

    question: Question
    federation: PreparedFederation
    reward: Reward
    folder: Path
    on_event: OnEvent | None = None
    stop_request: StopRequest = field(default_factory=StopRequest)
    lines: list[JsonObject] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    _done: int = 0
    _since: tuple[int, float] = (0, 0.0)

    def environment(self, projection: Mapping[str, Tensor] | None = None) -> FederationEnvironment:
        """Return the federation as an environment.

        Args:
            projection: The projection of the clients' weights; None for none.

        Returns:
            The environment.
        """
        rounds = self.question.rounds
        return FederationEnvironment(self.federation, self.reward, rounds=rounds, projection=projection)

    def line_of(self, episode: Episode) -> JsonObject:
        """Return an episode as a line of episodes.jsonl has it.

        Args:
            episode: The episode.

        Returns:
            The line.
        """
        return files.plain_object(episode.to_json(self.question.learning.gamma, self.federation.counts))

    def restore(self, episode: int) -> None:
        """Read the checkpoint to go on from.

        Args:
            episode: The episode that it was written after.

        Raises:
            InputError: The checkpoint cannot be used.
        """
        checkpoints = self.folder / files.CHECKPOINTS
        with _readable(checkpoints):
            content, arrays = read_part(checkpoints, episode, PROCESS, LearningCheckpoint)
        self.lines = content["episodes"]
        self.tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def begin(self) -> None:
        """Start the clock by which the remaining time is estimated."""
        self._done = len(self.lines) * self.question.rounds
        self._since = self._done, time.perf_counter()

    def stop_if_asked(self) -> None:
        """Raise Interrupted if a stop was requested.

        Raises:
            Interrupted: A stop was requested.
        """
        if self.stop_request.asked:
            raise Interrupted(f"stopped after episode {len(self.lines)}")

    def after_round(self) -> None:
        """Report how far the learning is, and stop if a stop was requested."""
        self._done += 1
        self._report("train")
        self.stop_if_asked()

    def note(self, text: str) -> None:
        """Show a line.

        Args:
            text: The line.
        """
        self._report("note", text)

    def add(self, episode: Episode, tensors: dict[str, Tensor], **about: object) -> None:
        """Save an episode that is over, and show a line.

        Args:
            episode: The episode.
            tensors: What the next episode needs.
            about: More keys of the line.

        Raises:
            OSError: The disk refuses the files.
        """
        line = {"episode": len(self.lines) + 1, **about, **self.line_of(episode)}
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
        """Return the file with the transitions of an episode.

        Args:
            episode: The number of the episode.

        Returns:
            The path.
        """
        return self.folder / files.CHECKPOINTS / f"episode-{episode:05d}.safetensors"

    def _report(self, phase: str, note: str = "") -> None:
        if self.on_event is not None:
            total, (before, began) = self.question.episodes * self.question.rounds, self._since
            # As if what was done earlier had taken as long.
            spent = (time.perf_counter() - began) * self._done / max(self._done - before, 1)
            sent = self.federation.fed.ledger.counted_bytes
            self.on_event(Event(phase, self._done, total, None, sent, spent, note))


def lines_in(folder: Path) -> list[JsonObject]:
    """Read episodes.jsonl.

    Args:
        folder: The folder of a policy.

    Returns:
        The lines; none if the file is missing.

    Raises:
        InputError: The file is damaged.
    """
    path = folder / LINES
    lines = files.read_lines(path, EpisodeLine) if path.exists() else []
    for number, line in enumerate(lines, 1):
        if line["episode"] != number:
            raise InputError(
                f"{path} is damaged (line {number} is of no episode {number}); learn anew, in another folder"
            )
    return lines


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise InputError(
            f"the checkpoint {path} cannot be used ({type(error).__name__}: {str(error)[:200]}); learn anew, "
            "in another folder"
        ) from None


# ---- what learns -------------------------------------------------------------------------------------------


def learn(work: Learning) -> tuple[dict[str, Tensor], JsonObject]:
    """Learn from the first episode on, or after the last of `work.lines`.

    Args:
        work: The state of learning.

    Returns:
        The tensors of the policy's file, and details for the result.

    Raises:
        OSError: The disk refuses a file.
        InputError: A checkpoint is damaged.
        Interrupted: A stop was requested.
    """
    learning = work.question.learning
    if isinstance(learning, BanditConfig):
        return _search_arms(work, learning)
    assert isinstance(learning, DDPGConfig)
    return _learn_actor(work, learning)


def _learn_actor(work: Learning, config: DDPGConfig) -> tuple[dict[str, Tensor], JsonObject]:
    """Learn an actor by DDPG (FedGraph, Alg. 4)."""
    asked, seed = work.question, work.question.config.seed
    if not work.lines:
        work.begin()
        first = ddpg.run_first_episode(work.environment(), config, seed, work.after_round, work.note)
        episode, transitions, projection = first
        write_tensors(work.transitions_of(1), transitions.arrays())
        work.add(episode, projection, actions="uniform")
    projection = {name: tensor for name, tensor in work.tensors.items() if name.startswith("pca.")}
    environment = work.environment(projection)
    learner = ddpg.make_learner(environment, config, asked.episodes * asked.rounds, seed, asked.config.device)
    if len(work.lines) > 1:  # it is as it was made until the second episode
        with _readable(work.folder / files.CHECKPOINTS):
            ddpg.restore(learner, work.tensors)
    for number in range(1, len(work.lines) + 1):
        with _readable(work.transitions_of(number)):
            ddpg.replay(learner, read_tensors(work.transitions_of(number))[0])
    kept = ddpg.tensors_under(work.tensors, "kept.")
    returns = [line["return"] for line in work.lines]
    work.begin()
    for number in range(len(work.lines) + 1, asked.episodes + 1):
        episode, transitions = ddpg.run_later_episode(
            environment, learner, config, seed, number, work.after_round
        )
        returns.append(episode.discounted_return(config.gamma))
        if ddpg.select_episode(returns) == number:
            kept = ddpg.actor_tensors(learner)
        write_tensors(work.transitions_of(number), transitions.arrays())
        of_actor = {f"kept.{name}": tensor for name, tensor in kept.items()}
        work.add(episode, {**projection, **of_actor, **ddpg.learner_tensors(learner)}, actions="noisy")
    details = {"components": len(projection["pca.components"]), "kept_episode": ddpg.select_episode(returns)}
    return {**kept, **projection}, details


def _search_arms(work: Learning, config: BanditConfig) -> tuple[dict[str, Tensor], JsonObject]:
    """Search the best arm. The first returns of a search that was stopped are those of its lines."""
    layers, clients = work.federation.config.layers, work.federation.fed.num_clients
    environment, arms, numbers = work.environment(), bandit.make_arms(config), itertools.count()

    def pull(stage: int, arm: bandit.Arm) -> float:
        number = next(numbers)
        if number == len(work.lines):
            action = bandit.make_action(arm, layers).repeat(clients).numpy()
            episode = run_episode(environment, stage, lambda _: action, after_round=work.after_round)
            work.add(episode, {}, stage=stage, arm=arm.to_json())
        value: float = work.lines[number]["return"]
        return value

    work.begin()
    best, returns = bandit.search(arms, pull, work.question.episodes)
    details = [{**arm.to_json(), "returns": returns[arm]} for arm in arms]
    return {"action": bandit.make_action(best, layers)}, {"best": best.to_json(), "arms": details}


def final_episode(work: Learning, policy: dict[str, Tensor]) -> JsonObject:
    """Run an episode without noise, from the weights of the seed itself, as a run with this policy and seed
    does.

    Args:
        work: The state of learning.
        policy: The tensors of the policy.

    Returns:
        A line as in episodes.jsonl, with its rounds.
    """
    environment = work.environment({name: t for name, t in policy.items() if name.startswith("pca.")})
    episode = run_policy(environment, policy, work.stop_if_asked)
    rounds = {
        "accuracy": episode.accuracies,
        "modelled_seconds": episode.modelled,
        "reward": episode.rewards,
    }
    return {**work.line_of(episode), "rounds": rounds}

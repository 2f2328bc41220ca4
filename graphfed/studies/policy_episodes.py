"""Episodes of learning a sampling policy: how one is run, what is written down of it, and what is said
meanwhile."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from graphfed.errors import InputError
from graphfed.files import write_bytes
from graphfed.runs import folder as files
from graphfed.runs.progress import OnEvent, human_seconds
from graphfed.runs.train import Event
from graphfed.runtime.interrupts import Interrupted, Wish
from graphfed.studies.folder_schema import EpisodeLine
from graphfed.studies.policy_environment import FederationEnvironment, PreparedFederation, Reward
from graphfed.studies.policy_settings import LearningConfig

__all__ = ["LINES", "Episode", "Learning", "lines_in", "run_episode"]

#: The file with a line for each episode.
LINES = "episodes.jsonl"
#: What a round was: (observation before, action, reward, observation after, whether the episode is over).
OnRound = Callable[[np.ndarray, np.ndarray, float, np.ndarray, bool], None]


@dataclass
class Episode:
    """The rounds of an episode, in order: rewards, accuracies (of the part that the reward is of), modelled
    seconds, decisions [K, 1 + L]; spent: seconds of this process in rounds, evaluation and learning."""

    rewards: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    modelled: list[float] = field(default_factory=list)
    decisions: list[np.ndarray] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)

    def discounted(self, gamma: float) -> float:
        """sum_t gamma^(t - 1) r[t].  Eq. (10)"""
        total = 0.0
        for reward in reversed(self.rewards):
            total = reward + gamma * total
        return total

    def to_json(self, gamma: float, counts: Tensor) -> dict[str, Any]:
        """What a line of episodes.jsonl has of it; counts [K]: training vertices of each client."""
        rounds = len(self.rewards)
        decisions = np.stack(self.decisions)
        share = decisions[:, :, 0] / counts.clamp(min=1).cpu().numpy()
        return {
            "return": self.discounted(gamma),
            "sum": sum(self.rewards),
            "mean_reward": sum(self.rewards) / rounds,
            "accuracy": {"final": self.accuracies[-1], "best": max(self.accuracies)},
            "modelled_seconds": sum(self.modelled),
            "wall_seconds": sum(self.spent.values()),
            "kappa_share": float(share.mean()),
            "chance": decisions[:, :, 1:].mean((0, 1)).tolist(),
            "spent": self.spent,
        }


def run_episode(
    environment: FederationEnvironment,
    number: int,
    choose: Callable[[np.ndarray], np.ndarray],
    on_round: OnRound = lambda *_: None,
    after_round: Callable[[], None] = lambda: None,
) -> Episode:
    """Run episode `number` with the actions of choose(observation). on_round learns from each round;
    after_round is called after that, and may raise to end the episode."""
    episode = Episode()
    seen, _ = environment.reset(options={"episode": number})
    over, learning = False, 0.0
    while not over:
        action = choose(seen)
        after, reward, _, over, info = environment.step(action)
        began = time.perf_counter()
        on_round(seen, action, reward, after, over)
        learning += time.perf_counter() - began
        episode.rewards.append(reward)
        episode.accuracies.append(info["accuracy"])
        episode.modelled.append(info["modelled_seconds"])
        episode.decisions.append(info["decision"])
        seen = after
        after_round()
    episode.spent = {**environment.spent, "learning": learning}
    return episode


@dataclass
class Learning:
    """What every kind of learning works with. episodes: how many there will be; lines: of those that are
    done, as in episodes.jsonl; wish: somebody's wish to stop."""

    federation: PreparedFederation
    reward: Reward
    settings: LearningConfig
    seed: int
    rounds: int
    episodes: int
    device: str
    folder: Path
    on_event: OnEvent | None = None
    wish: Wish = field(default_factory=Wish)
    lines: list[dict[str, Any]] = field(default_factory=list)
    _done: int = 0
    _since: tuple[int, float] = (0, 0.0)

    def environment(self, projection: Mapping[str, Tensor] | None = None) -> FederationEnvironment:
        return FederationEnvironment(self.federation, self.reward, rounds=self.rounds, projection=projection)

    @property
    def returns(self) -> list[float]:
        """Of the episodes that are done."""
        return [line["return"] for line in self.lines]

    def begin(self) -> None:
        """What is done from now on tells how long the rest will take."""
        self._done = len(self.lines) * self.rounds
        self._since = self._done, time.perf_counter()

    def hear(self) -> None:
        """Interrupted where somebody asked to stop."""
        if self.wish.asked:
            raise Interrupted(f"stopped after episode {len(self.lines)}")

    def after_round(self) -> None:
        """Say how far it is, and `hear`."""
        self._done += 1
        self._tell("train")
        self.hear()

    def say(self, news: str) -> None:
        self._tell("note", news)

    def add(self, episode: Episode, **about: Any) -> None:
        """Write down an episode that is over, and say so. OSError when the disk refuses."""
        told = episode.to_json(self.settings.gamma, self.federation.counts)
        line = files.plain({"episode": len(self.lines) + 1, **about, **told})
        self.lines.append(line)
        text = "".join(json.dumps(each, allow_nan=False) + "\n" for each in self.lines)
        write_bytes(self.folder / LINES, text.encode())
        before, began = self._since
        pace = max(self._done - before, 1) / max(time.perf_counter() - began, 1e-9)
        left = (self.episodes - line["episode"]) * self.rounds / pace
        said = f"episode {line['episode']}/{self.episodes}: return {line['return']:.2f}, {pace:.1f} rounds/s"
        self._tell("note", said + (f", {human_seconds(left)} left" if left else ""))

    def _tell(self, phase: str, note: str = "") -> None:
        if self.on_event is not None:
            total, (before, began) = self.episodes * self.rounds, self._since
            # As if what was done earlier had taken as long.
            spent = (time.perf_counter() - began) * self._done / max(self._done - before, 1)
            sent = self.federation.fed.ledger.counted_bytes
            self.on_event(Event(phase, self._done, total, None, sent, spent, note))


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """The lines of episodes.jsonl, none where it is not there; InputError when it is damaged."""
    path = folder / LINES
    lines = files.read_lines(path, EpisodeLine) if path.exists() else []
    for number, line in enumerate(lines, 1):
        if line["episode"] != number:
            raise InputError(
                f"{path} is damaged (line {number} is of no episode {number}); learn anew, in another folder"
            )
    return lines

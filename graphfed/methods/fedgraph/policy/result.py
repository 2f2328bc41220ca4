"""What `graphfed policy` has learned, and the schemas of its files."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from graphfed.drawing.canvas import picture_file
from graphfed.drawing.charts import XY, Axis, Series
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.methods.fedgraph.policy.settings import WINDOW
from graphfed.runs import folder as files
from graphfed.runs.folder_schema import Count, FileModel, Integer, Positive, Real

#: The file of the policy, and the file with a line for each episode, in the folder of what learned it.
POLICY = "policy.safetensors"
LINES = "episodes.jsonl"
#: The warning of a reward with on=test.
SAW_TEST = "the reward is on the test part: what the policy reaches there is no test of it"


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
    """Read the policy that was learned in a folder.

    Raises:
        InputError: A file is missing or damaged.
    """
    content, lines = files.read_json(folder / "result.json", PolicyResult), lines_in(folder)
    names = {f.name for f in dataclasses.fields(LearnedPolicy)} - {"folder", "episodes"}
    return LearnedPolicy(**{name: content[name] for name in names}, episodes=tuple(lines), folder=folder)


def lines_in(folder: Path) -> list[JsonObject]:
    """Read episodes.jsonl; no lines if the file is missing.

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

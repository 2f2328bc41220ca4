"""The schemas of the files of reproductions and policies."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from graphfed.files import JsonObject
from graphfed.runs.folder_schema import Count, FileModel, Integer, Positive, Real

__all__ = [
    "EpisodeLine",
    "LearningCheckpoint",
    "PolicyResult",
    "ReproductionFile",
    "WorkloadsFile",
]


class _Item(FileModel):
    item: str


class ReproductionFile(FileModel):
    """The content of reproduce.json: the items that were reproduced."""

    items: list[_Item] = Field(default_factory=list)


class WorkloadsFile(FileModel):
    """The content of workloads.json of a row of a reproduction."""

    asked: JsonObject


class _Accuracies(FileModel):
    best: Real
    final: Real


class _FinalEpisode(FileModel):
    value: Real = Field(alias="return")
    accuracy: _Accuracies
    modelled_seconds: Real


class _Arm(FileModel):
    share: Real
    chance: Real


class _PolicyDetails(FileModel):
    best: _Arm | None = None
    kept_episode: Count | None = None


class _PolicySeconds(FileModel):
    rounds: Real
    evaluation: Real
    learning: Real


class PolicyResult(FileModel):
    """The content of result.json of a learned policy."""

    kind: Literal["bandit", "ddpg"]
    dataset: str
    clients: Positive
    partition: str
    seed: Integer
    rounds: Positive
    reward: JsonObject
    policy_saw_test: bool
    returns: Annotated[list[Real], Field(min_length=1)]
    final: _FinalEpisode
    details: _PolicyDetails
    seconds: _PolicySeconds
    peak_rss_mb: Real
    hashes: dict[str, str]
    versions: dict[str, str]

    @model_validator(mode="after")
    def check_details(self) -> "PolicyResult":
        """Check that the details have what a policy of this kind needs.

        Returns:
            The content.

        Raises:
            ValueError: A detail is missing; pydantic reports it with its place.
        """
        needed = "best" if self.kind == "bandit" else "kept_episode"
        if getattr(self.details, needed) is None:
            raise ValueError(f"details has no {needed!r}")
        return self


class EpisodeLine(FileModel):
    """A line of episodes.jsonl of a policy."""

    episode: Positive
    value: float = Field(alias="return")


class LearningCheckpoint(FileModel):
    """The content of checkpoint/round-*/local.json of a policy, which is written after every episode."""

    version: Integer
    sha256: str
    episodes: Annotated[list[EpisodeLine], Field(min_length=1)]

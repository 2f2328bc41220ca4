"""The schemas of the files of comparisons, sweeps and reproductions."""

from typing import Annotated

from pydantic import Field, model_validator

from graphfed.files import JsonObject
from graphfed.runs.folder_schema import (
    Amount,
    Count,
    FileModel,
    Integer,
    Positive,
    Real,
    check_metrics,
)
from graphfed.tasks.registry import TASKS

__all__ = [
    "ComparisonFile",
    "ReproductionFile",
    "SweepFile",
    "TrialFile",
    "WorkloadsFile",
]


class _Statistic(FileModel):
    mean: Real | None
    std: Amount | None
    values: list[Real | None]


class _ComparedRow(FileModel):
    label: str
    method: str
    seeds: Annotated[list[Integer], Field(min_length=1)]
    test: dict[str, _Statistic]
    val: dict[str, _Statistic]
    test_pooled: dict[str, _Statistic] = Field(default_factory=dict)
    bytes: _Statistic
    seconds: _Statistic
    rounds: Annotated[list[Count], Field(min_length=1)]
    changed_settings: JsonObject
    folders: Annotated[list[str | None], Field(min_length=1)]


class ComparisonFile(FileModel):
    """The content of comparison.json."""

    dataset: str
    task: str
    clients: Positive
    partition: str
    seeds: Annotated[list[Integer], Field(min_length=1)]
    references_added: list[str]
    references_missing: list[str]
    rows: Annotated[list[_ComparedRow], Field(min_length=1)]

    @model_validator(mode="after")
    def check_rows(self) -> "ComparisonFile":
        """Check that rows have different labels, the same metrics, and the metric that decides.

        Returns:
            The content.

        Raises:
            ValueError: The rows do not agree; pydantic reports it with its place.
        """
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}")
        first = self.rows[0]
        for number, row in enumerate(self.rows):
            check_metrics(self.task, **{f"rows.{number}.test": row.test, f"rows.{number}.val": row.val})
            if row.test.keys() != first.test.keys():
                raise ValueError(f"rows.{number}.test and rows.0.test have different metrics")
            if row.bytes.mean is None or row.seconds.mean is None:
                raise ValueError(f"rows.{number}: bytes and seconds must have a mean")
        if len({row.label for row in self.rows}) < len(self.rows):
            raise ValueError("rows: two rows have one label")
        return self


class TrialFile(FileModel):
    """The content of trials/*.json of a sweep, and a trial in sweep.json."""

    trial: Positive
    settings: JsonObject
    val: dict[str, _Statistic]
    rounds: list[Count]
    best_round: list[Count | None]
    seconds: _Statistic
    failed: Annotated[str, Field(max_length=20_000)] | None


class _ChosenTrial(FileModel):
    trial: Positive
    settings: JsonObject
    val: dict[str, _Statistic]
    test: dict[str, _Statistic]
    folders: list[str | None]


class SweepFile(FileModel):
    """The content of sweep.json."""

    method: str
    dataset: str
    clients: Positive
    partition: str
    seeds: Annotated[list[Integer], Field(min_length=1)]
    metric: str
    trials: Annotated[list[TrialFile], Field(min_length=1)]
    chosen: _ChosenTrial
    edges: list[str]
    task: str

    @model_validator(mode="after")
    def check_trials(self) -> "SweepFile":
        """Check that trials have the same settings, and that trials and the chosen settings have the metric.

        Returns:
            The content.

        Raises:
            ValueError: The trials do not agree; pydantic reports it with its place.
        """
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}")
        keys = self.trials[0].settings.keys()
        for number, trial in enumerate(self.trials):
            if trial.settings.keys() != keys:
                raise ValueError(f"trials.{number}.settings and trials.0.settings have different keys")
            if trial.failed is None and self.metric not in trial.val:
                raise ValueError(f"trials.{number}.val has no {self.metric!r}")
        if self.metric not in self.chosen.test:
            raise ValueError(f"chosen.test has no {self.metric!r}")
        return self


class _Item(FileModel):
    item: str


class ReproductionFile(FileModel):
    """The content of reproduce.json: the items that were reproduced."""

    items: list[_Item] = Field(default_factory=list)


class WorkloadsFile(FileModel):
    """The content of workloads.json of a row of a reproduction."""

    asked: JsonObject

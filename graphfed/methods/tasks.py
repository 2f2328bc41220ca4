"""The tasks that there are: what decides in each, and the settings that all methods share by default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CLASSIFICATION", "FORECASTING", "LINK_PREDICTION", "TASKS", "TaskSpec"]

CLASSIFICATION, LINK_PREDICTION = "classification", "link_prediction"
FORECASTING = "forecasting"


@dataclass(frozen=True)
class TaskSpec:
    """One task.

    metric: the validation metric that decides, and called: its name in a text; words: what is predicted;
    scored: what the metrics are over; recipe: settings in which its defaults differ from the shared config's;
    paper_settings: those of preset=paper; error: whether the metric is an error, the smaller the better, in
    the unit of the data, and not a share; data: the kind it is done on, "graph" or "sensors"."""

    metric: str
    called: str
    words: str
    scored: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    paper_settings: Mapping[str, Any] = field(default_factory=dict)
    error: bool = False
    data: str = "graph"

    def better(self, value: float, best: float) -> bool:
        """Whether a value of the metric is better than another one."""
        return value < best if self.error else value > best


TASKS: dict[str, TaskSpec] = {
    CLASSIFICATION: TaskSpec("accuracy", "accuracy", "the class of every vertex", "vertices"),
    LINK_PREDICTION: TaskSpec(
        "auc",
        "AUC",
        "which pairs of vertices are edges",
        "pairs",
        # As Lumos's authors train every row of their table; the shared dropout of 0.5 is for classes.
        {"dropout": 0.01},
        # The authors say nothing of weight decay, and the shared one helps (docs/runs.md).
        paper_settings={
            "rounds": 300,
            "optimizer": "adam",
            "lr": 0.01,
            "dropout": 0.01,
            "local_steps": 1,
            "select": "auto",  # the shared one selects by the accuracy of classes
        },
    ),
    FORECASTING: TaskSpec(
        "rmse", "RMSE", "the next readings of every sensor", "forecasts", error=True, data="sensors"
    ),
}

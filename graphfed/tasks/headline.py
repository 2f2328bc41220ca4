"""Which metrics of a run stand first, and what they are called.

Accuracy says nothing where one class has nearly all nodes, so a run of node classification says itself which
metrics come first (`vertex_scores.headline_of`, in result.json's details)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphfed.methods.tasks import CLASSIFICATION, TASKS

__all__ = ["COLUMNS", "NAMES", "RANK_NOTE", "headline", "name_of"]

#: Names of metrics of node classification in a text, where they differ from the key.
NAMES = {"auc": "ROC AUC", "recall_at_1_percent": "recall at 1 % alarms"}
#: Their names as columns of a narrow table.
COLUMNS = {
    "average_precision": "AP",
    "auc": "AUC",
    "recall_at_1_percent": "recall@1%",
    "balanced_accuracy": "balanced",
}
#: What these columns are.
RANK_NOTE = {
    "average_precision": "AP: average precision of the rarer class",
    "auc": "AUC: area under the ROC curve",
    "recall_at_1_percent": "recall@1%: share of the rarer class among the 1 % of vertices that score highest",
    "balanced_accuracy": "balanced: balanced accuracy, the mean recall of the classes",
}


def headline(task: str, details: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """The metrics that come first for a run.

    Args:
        task: the run's task.
        details: of its result, or a row of a comparison; runs of older versions do not say.
        known: the metrics that it has.

    Returns:
        At least one name, the most telling first.
    """
    named = details.get("headline")
    names = named if isinstance(named, Sequence) and not isinstance(named, str) else ()
    if task != CLASSIFICATION or task not in TASKS:
        return [TASKS[task].metric if task in TASKS else TASKS[CLASSIFICATION].metric]
    have = {*known}
    return [name for name in names if name in have] or [TASKS[task].metric, "macro_f1"]


def name_of(metric: str) -> str:
    """A metric of node classification in a text."""
    return NAMES.get(metric, metric.replace("_", " "))

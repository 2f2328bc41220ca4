"""Which metrics of a run stand first, and what they are called.

A task decides which come first (`TaskDefinition.headline`)."""

from collections.abc import Iterable, Mapping

from graphfed.tasks.registry import TASKS, task_or_default

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
    "recall_at_1_percent": "recall@1%: share of the rarer class among the 1 % of nodes that score highest",
    "balanced_accuracy": "balanced: balanced accuracy, the mean recall of the classes",
}


def headline(task: str, details: Mapping[str, object], known: Iterable[str]) -> list[str]:
    """Return the metrics that come first for a run, at least one name, the most telling first.

    Args:
        task: The run's task.
        details: Of its result, or a row of a comparison.
        known: The metrics that it has.
    """
    definition = task_or_default(task)
    if task not in TASKS or definition.headline is None:
        return [definition.metric]
    return definition.headline(details, known)


def name_of(metric: str) -> str:
    """A metric of node classification in a text."""
    return NAMES.get(metric, metric.replace("_", " "))

"""The most important metrics of a run, and the names of metrics in texts and tables.

A task decides which metrics are the most important (`TaskDefinition.headline`).
"""

from collections.abc import Iterable, Mapping

from graphfed.tasks.registry import TASKS, task_or_default

#: The mean over clients of the accuracy on a client's own nodes, which stands next to that over all nodes.
CLIENT_ACCURACY = "client_accuracy"

#: Names of metrics of node classification in a text, if they differ from the key.
NAMES = {
    "auc": "ROC AUC",
    "recall_at_1_percent": "recall at 1 % alarms",
    CLIENT_ACCURACY: "accuracy, mean over clients",
    "client_accuracy_std": "its standard deviation over clients",
    "client_accuracy_min": "accuracy of the worst client",
}
#: Short names of metrics for the columns of a table.
COLUMNS = {
    "average_precision": "AP",
    "auc": "AUC",
    "recall_at_1_percent": "recall@1%",
    "balanced_accuracy": "balanced",
    CLIENT_ACCURACY: "by client",
}
#: Explanations of these columns.
RANK_NOTE = {
    "average_precision": "AP: average precision of the rarer class",
    "auc": "AUC: area under the ROC curve",
    "recall_at_1_percent": "recall@1%: fraction of the rarer class that is among the 1 % of nodes with the "
    "highest scores",
    "balanced_accuracy": "balanced: balanced accuracy, the mean recall of the classes",
    CLIENT_ACCURACY: "by client: mean over clients of the accuracy on a client's own nodes",
}


def headline(task: str, details: Mapping[str, object], known: Iterable[str]) -> list[str]:
    """List the most important metrics of a run, at least one, the most important first.

    `details` are those of its result, or a row of a comparison; `known` are the names of its metrics.
    """
    # A folder of another version may name an unknown task, whose details cannot be interpreted.
    definition = task_or_default(task)
    return definition.headline(details, known) if task in TASKS else [definition.metric]


def name_of(metric: str) -> str:
    """Return the name of a metric of node classification for a text."""
    return NAMES.get(metric, metric.replace("_", " "))

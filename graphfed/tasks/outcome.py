"""The outcome of training, for all methods and tasks."""

from dataclasses import dataclass, field

from graphfed.federation import Located
from graphfed.files import JsonObject
from graphfed.methods.base import State
from graphfed.methods.common.feature_transform import UNCHANGED, Transform
from graphfed.tasks.evaluation import Predicted

#: Metrics by name, such as accuracy, auc or rmse; None if there was nothing to score.
Metrics = dict[str, float | None]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    The metrics and `test_confusion` are known only in the server's process; in other processes they are None.

    Attributes:
        best_round: The selected round; None if every client selects its own.
        test_confusion: The number of test nodes per class and prediction, [C, C + 1], where the last column
            counts nodes without a finite prediction; None if no classes are predicted.
        history: An entry for each evaluated round.
        state: The state of the selected round.
        details: Further results of the test, such as the points of the ROC curve in link prediction.
        client_statistics: At the clients: the per-client statistics (`Method.client_statistics`).
        transform: What set-up did to the features of all clients.
    """

    best_round: int | None
    rounds_run: int
    val: Metrics | None
    test: Metrics | None
    test_confusion: list[list[float]] | None
    seconds: dict[str, float]
    history: list[JsonObject]
    state: State
    predictions: Located[Predicted]
    details: JsonObject = field(default_factory=dict)
    client_statistics: Located | None = None
    transform: Transform = UNCHANGED

"""What training gives, whatever the method and the task."""

from dataclasses import dataclass, field

from graphfed.federation import Located
from graphfed.files import JsonObject
from graphfed.methods.base import State
from graphfed.methods.common import feature_scaling
from graphfed.tasks.evaluation import Predicted

__all__ = ["Metrics", "Outcome"]


#: By name, as accuracy, auc or rmse; None where there was nothing to score
Metrics = dict[str, float | None]


@dataclass(frozen=True)
class Outcome:
    """What a run gave. best_round: None where every client has its own; val, test and test_confusion [C, C +
    1] (class, prediction, none; None where no classes are predicted) are known where the server is, None
    elsewhere; state: of the best round; predictions: at the clients, (rows [n], logits [n, C]) of every owned
    node, or (pairs [n], scores [n]) of every scored pair; accounts: at the clients, what each says of its
    own part (`Method.client_statistics`); details: more of the test, in link prediction
    test_roc, points [false positive rate, true positive rate]; scaling: what the features are scaled by, None
    where they are not, or every client has a scaling of its own."""

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
    accounts: Located | None = None
    scaling: feature_scaling.Scaling | None = None

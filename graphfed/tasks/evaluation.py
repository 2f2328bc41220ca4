"""The predictions and scores of an evaluation, and the transfers of hidden scores, in all tasks."""

from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from graphfed.federation.secure.aggregation import messages
from graphfed.files import JsonObject

#: The predictions of a worker: nodes [n] and logits [n, C], pairs [n] and scores [n], or the first steps of
#: windows [W] and forecasts [P, W, n].
Predicted: TypeAlias = tuple[Tensor, Tensor]

#: The name of the transfers of hidden sums of scores, in all tasks.
HIDDEN_SCORES = "scores"
#: The name of the transfers that count the clients with data for each sum.
CONTRIBUTORS = "contributors"
#: The descriptions of the transfers of every evaluation with aggregation=secure.
SECURE_MESSAGES = {
    **messages(
        HIDDEN_SCORES,
        "With aggregation=secure, in every evaluation",
        "the scores of a client's predictions, as counts, and once, before training, the number of its "
        "validation nodes of each class",
    ),
    **messages(
        CONTRIBUTORS,
        "With aggregation=secure, once before training",
        "for each part of the split, 1 if a client has data in it and 0 if not",
    ),
}


@dataclass(frozen=True)
class Scored:
    """The metrics that the server computes from the clients' scores.

    Attributes:
        metrics: The metrics by name; nan if there was nothing to score.
        lost: Whether a prediction was not finite.
        report: Details of the test for the report.
        count: The number of scored nodes or pairs; 0 if they are not counted.
    """

    metrics: dict[str, float]
    lost: bool
    report: JsonObject = field(default_factory=dict)
    count: float = 0

"""The parts of evaluation that differ between tasks. `runs.train` is the same for all tasks.

Scores are summed with the same protection as the weights of the method (`methods.parts.sum_protection`).
With aggregation=plaintext the server reads each client's scores; if a client has only one node or pair, they
reveal its label. With aggregation=secure the server learns only the sum over all clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import messages
from graphfed.files import JsonObject
from graphfed.methods.base import Task

#: The predictions of a worker: nodes [n] and logits [n, C], pairs [n] and scores [n], or the first steps of
#: windows [W] and forecasts [P, W, n].
Predicted: TypeAlias = tuple[Tensor, Tensor]

Data = TypeVar("Data")
Config = TypeVar("Config")
Prepared = TypeVar("Prepared")

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


def only_clients(data: Any) -> Located:
    """Return the data, for tasks in which only the clients have data."""
    cohort: Located = data
    return cohort


def all_clients(fed: Federation, data: object) -> None:
    """Return None, for tasks in which every client takes part in training."""


@dataclass(frozen=True)
class Evaluation(Generic[Data, Config, Prepared]):
    """The evaluation of a task.

    Attributes:
        decides: (config, prepared) -> the name of the validation metric that selects rounds.
        messages: The descriptions of the transfers with aggregation=plaintext (see `Sent.messages`).
        prepare: (fed, data, task, config) -> the values that every scoring needs; called once.
        parts: The nouns for what the sums of training, validation and test add up.
        has_parts: (cohort, present) -> for each of `parts`, whether each client has any, bool
            [K_h, len(parts)]. `present` are the clients that take part in training and validation, [K_h].
        score: (fed, data, outputs, target, name, prepared, config) -> every client's own scores at the
            clients (None if clients cannot select rounds by them), and a `Scored` at the server. `name`
            starts the names of the plaintext transfers.
        keep: (cohort, outputs) -> the predictions at the clients: the outputs for the target "all" with the
            nodes, pairs or windows that they belong to.
        of_target: (cohort, kept, target) -> the outputs of one target, from the result of `keep`.
        better_clients: (scores, best) -> which clients have a better score than their best one so far, and
            the better of both; None if clients cannot select rounds by themselves.
        at_clients: (data) -> the clients' part of the data, which is the `cohort` of the functions above.
        enrolled: (fed, data) -> the clients that take part in training and validation, bool [K], equal at all
            places; None for all clients.
    """

    decides: Callable[[Config, Prepared], str]
    messages: Mapping[str, str]
    prepare: Callable[[Federation, Data, Task, Config], Prepared]
    parts: tuple[str, ...]
    has_parts: Callable[[Any, Tensor], Tensor]
    score: Callable[
        [Federation, Data, Located, str, str, Prepared, Config], tuple[Located | None, Located[Scored]]
    ]
    keep: Callable[..., Predicted]
    of_target: Callable[..., Tensor]
    better_clients: Callable[..., tuple[Tensor, Tensor]] | None = None
    at_clients: Callable[[Data], Located] = only_clients
    enrolled: Callable[[Federation, Data], np.ndarray | None] = all_clients


#: An evaluation whose data and prepared values the caller only passes on.
AnyEvaluation: TypeAlias = Evaluation[Any, Any, Any]

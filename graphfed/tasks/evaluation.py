"""What differs between tasks when a run is evaluated; `runs.train` is the same for all of them.

Scores are summed as the weights of the method are (`methods.config.sum_protection`). With
aggregation=plaintext the server reads each client's scores: where a client has one node, or one pair, its
label. With aggregation=secure it learns the sum over all clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import messages
from graphfed.files import JsonObject
from graphfed.methods.base import Task

__all__ = ["HIDDEN_SCORES", "SECURE_MESSAGES", "AnyEvaluation", "Evaluation", "Predicted", "Scored"]

#: What a host predicts: nodes [n] and logits [n, C], pairs [n] and scores [n], or the first steps of windows
#: [W] and forecasts [P, W, n].
Predicted: TypeAlias = tuple[Tensor, Tensor]

Data = TypeVar("Data")
Config = TypeVar("Config")
Prepared = TypeVar("Prepared")

#: What hidden sums of scores are called, whatever they are of.
HIDDEN_SCORES = "scores"
#: The transfers of every evaluation with aggregation=secure, in words.
SECURE_MESSAGES = messages(
    HIDDEN_SCORES,
    "With aggregation=secure, in every evaluation",
    "what a client's predictions are worth, as counts, and once, before training, how many of its validation "
    "nodes are of each class",
)


@dataclass(frozen=True)
class Scored:
    """What the server makes of the clients' scores. metrics: by name, nan where there was nothing to score;
    lost: whether a prediction was not finite; told: what a report shows of the test; count: how many
    nodes or pairs were scored (0: not counted)."""

    metrics: dict[str, float]
    lost: bool
    told: JsonObject = field(default_factory=dict)
    count: float = 0


def same(data: Any) -> Located:
    """Of tasks in which clients have all there is."""
    cohort: Located = data
    return cohort


def everyone(fed: Federation, data: object) -> None:
    """Of tasks in which every client trains."""


@dataclass(frozen=True)
class Evaluation(Generic[Data, Config, Prepared]):
    """The evaluation of a task.

    decides(config, prepared) -> the validation metric that decides.
    messages: the transfers with aggregation=plaintext, in words (see `Sent.messages`).
    prepare(fed, data, task, config) -> what every scoring needs, made once.
    score(fed, data, outputs, target, name, prepared, config) -> every client's own scores, at the
    clients (None where no client could choose by them), and a `Scored` at the server; name: of the transfers
    in clear, before their own.
    at_clients(data) -> of what a run is given, what the clients have: the cohort of the functions below.
    keep(cohort, outputs) -> at the clients, the outputs for "all" with what they are of: the predictions.
    of_target(cohort, kept, target) -> the outputs of a target out of those.
    better_clients(scores, best) -> which clients beat their own best score, and what it is; None where
    clients cannot select by themselves.
    enrolled(fed, data) -> the clients that take part in training and validation, [K] bool, alike at every
    place; None: all of them."""

    decides: Callable[[Config, Prepared], str]
    messages: Mapping[str, str]
    prepare: Callable[[Federation, Data, Task, Config], Prepared]
    score: Callable[
        [Federation, Data, Located, str, str, Prepared, Config], tuple[Located | None, Located[Scored]]
    ]
    keep: Callable[..., Predicted]
    of_target: Callable[..., Tensor]
    better_clients: Callable[..., tuple[Tensor, Tensor]] | None = None
    at_clients: Callable[[Data], Located] = same
    enrolled: Callable[[Federation, Data], np.ndarray | None] = everyone


#: Whichever task it is of: the program hands it back the data and what it has prepared.
AnyEvaluation: TypeAlias = Evaluation[Any, Any, Any]

"""What differs between tasks when a run is evaluated; `experiment.train` is the same for all of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from graphfed.federation import Federation, Located

__all__ = ["Evaluation", "Scored"]


@dataclass(frozen=True)
class Scored:
    """What the server makes of the clients' scores. metrics: by name, nan where there was nothing to score;
    lost: whether a prediction was not finite; told: what a report shows of the test."""

    metrics: dict[str, float]
    lost: bool
    told: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a task.

    metric: the validation metric that decides, the larger the better.
    prepare(fed, data) -> what every scoring needs: routes, made once.
    score(fed, data, outputs, target, name, prepared) -> every client's own scores, at the clients (None where
    no client could choose by them), and a `Scored` at the server; name: of the transfers, before their own.
    keep(cohort, outputs) -> at the clients, the outputs for "all" with what they are of: the predictions.
    of_target(cohort, kept, target) -> the outputs of a target out of those.
    better_clients(scores, best) -> which clients beat their own best score, and what it is; None where
    clients cannot select by themselves."""

    metric: str
    prepare: Callable[[Federation, Located], Any]
    score: Callable[[Federation, Located, Located, str, str, Any], tuple[Located | None, Located]]
    keep: Callable[..., Any]
    of_target: Callable[..., Any]
    better_clients: Callable[..., Any] | None = None

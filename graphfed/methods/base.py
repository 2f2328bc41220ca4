"""What a method is: a frozen config, and three functions that are one program over places.

    setup(fed, data, task, config) -> State
        one-off exchanges and the first weights
    round(fed, state, config, number) -> State
        one communication round, counted from 1
    predict(fed, state, config, target) -> Located
        at the clients, logits [n, C] of cohort.rows(target), with only what the method's protocol lets it see
        at prediction time

`data` is a `Cohort` located at the clients, `task` what everyone knows beforehand.

`State.values` are what training changes (flat, savable); `State.prepared` is what setup worked out and rounds
only read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from graphfed.data.graph import Graph
from graphfed.federation import Federation, Located

__all__ = ["Method", "State", "Task", "TrainingConfig", "clients_in_round"]


@dataclass(frozen=True, config={"extra": "forbid"})
class TrainingConfig:
    """The settings every method shares; the defaults are the default recipe of node classification."""

    rounds: int = Field(default=100, ge=1, description="communication rounds")
    lr: float = Field(default=0.5, gt=0, allow_inf_nan=False, description="learning rate of the clients")
    weight_decay: float = Field(
        default=5e-4, ge=0, allow_inf_nan=False, description="L2 penalty added to the gradient"
    )
    hidden: int = Field(default=16, ge=1, description="hidden width (GAT: of every head)")
    layers: int = Field(default=2, ge=1, description="graph layers")
    dropout: float = Field(default=0.5, ge=0, lt=1, description="dropout on every layer's input")
    backbone: Literal["gcn", "gat", "sage", "maxpool"] = Field(default="gcn", description="graph network")
    heads: int = Field(default=8, ge=1, description="attention heads of GAT's hidden layers")
    local_steps: int = Field(default=3, ge=1, description="full-batch steps of every client in a round")
    fraction: float = Field(
        default=1.0, gt=0, le=1, description="share of the clients that take part in a round"
    )
    optimizer: Literal["sgd", "adam"] = Field(default="sgd", description="optimiser of the clients")
    client_state: Literal["reset", "keep"] = Field(
        default="reset", description="optimiser state of a client: fresh every round, or kept"
    )
    patience: int | None = Field(
        default=None, ge=1, description="stop after this many evaluations without improvement"
    )
    eval_every: int = Field(
        default=1, ge=1, description="rounds between evaluations on the validation vertices"
    )
    aggregation: Literal["clear"] = Field(
        default="clear", description="how weights are averaged at the server"
    )
    seed: int = Field(default=0, ge=0, description="seed of weights, dropout and client sampling")


def clients_in_round(fraction: float, num_clients: int) -> int:
    """How many clients take part in a round."""
    return max(1, round(fraction * num_clients))


@plain_dataclass(frozen=True)
class Task:
    """What all parties agreed on before they met: the width of the features and the classes."""

    num_features: int
    num_classes: int


@plain_dataclass(frozen=True)
class State:
    """What passes from round to round. `values`: located trees of tensors, under names that stay; which of
    them are the model is `Method.model`."""

    values: Mapping[str, Located]
    prepared: Any = None

    @property
    def weights(self) -> Located:
        return self.values["weights"]


@plain_dataclass(frozen=True)
class Method:
    """One row of the registry, as the method's own file declares it."""

    name: str
    summary: str
    config: type[TrainingConfig]
    setup: Callable[[Federation, Located, Task, Any], State]
    round: Callable[[Federation, State, Any, int], State]
    predict: Callable[[Federation, State, Any, str], Located]
    task: str = "classification"
    #: Trains on the pooled graph as one client: the reference that no federation sees.
    pooled: bool = False
    #: Every client keeps a model of its own and selects it on its own validation vertices.
    personal: bool = False
    #: Goes on with a smaller roster when clients are absent.
    dropouts: bool = False
    #: Every vertex must be held by one client only.
    disjoint: bool = False
    #: Goes on with clients that hold no vertex.
    empty_clients: bool = True
    #: Ends with one backbone's weights at the server, which can be scored on the pooled graph too.
    shared_model: bool = False
    #: Every named transfer of the method, in words for those who must answer for it: what it is, and what the
    #: receiver can read from it. Those of evaluation are in `experiment.train.MESSAGES`.
    messages: Mapping[str, str] = field(default_factory=dict)
    #: The paper: authors, title, venue, and where it can be read.
    paper: str = ""
    #: The values of a state that are the model, in the order of its file.
    model: tuple[str, ...] = ("weights",)
    #: Of these, the ones at the clients that are the same at all of them.
    replicated: tuple[str, ...] = ()
    #: What it asks of data and settings beyond features and classes, and beyond what the flags above say.
    needs: tuple[str, ...] = ()
    #: check(graph, config): raises InputError for a graph that the method cannot use, beyond what the flags
    #: say. Called where one party has the whole graph; elsewhere the method's own functions refuse.
    check: Callable[[Graph, Any], None] | None = None
    #: What leaves a client, in a few words, for a table.
    crosses: str = ""
    #: What keeps the receiver from reading it, in a few words.
    protection: str = "none: in clear"
    #: Recipe settings in which the method differs from `TrainingConfig`.
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def requirements(self) -> list[str]:
        """Everything a run of this method asks for, in a few words each."""
        asked = ["features", "classes"] if self.task == "classification" else []
        asked += ["all data at one party"] if self.pooled else []
        asked += ["each vertex at one client"] if self.disjoint else []
        asked += [] if self.empty_clients else ["a vertex at every client"]
        asked += [] if self.dropouts or self.pooled else ["every client in every round"]
        return [*asked, *self.needs]

"""What a method is: a frozen config, and three functions that are one program over places.

    setup(fed, data, task, config) -> State
        one-off exchanges and the first weights
    round(fed, state, config, number) -> State
        one communication round, counted from 1
    predict(fed, state, config, target) -> Located
        at the clients, with only what the method's protocol lets it see at prediction time: to classify
        vertices logits [n, C] of cohort.rows(target); to predict links scores [n] of cohort.pairs(target),
        any real numbers, the larger the likelier (h_u . h_v); to forecast [P, W, n], of the P sensors that
        take part, of series.starts(target), in the unit of the readings; target is "val", "test" or "all"
        (both)

`data` is a `Cohort` located at the clients, in forecasting a `SensorData`; `task` what everyone knows
beforehand.

`State.values` are what training changes (flat, savable); `State.prepared` is what setup worked out and rounds
only read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field, fields
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.nn.backbones import BACKBONES, Backbone
from graphfed.nn.optim import Optimizer

__all__ = [
    "WINDOW_SETTINGS",
    "CommonConfig",
    "ForecastConfig",
    "Method",
    "PlaintextOnly",
    "State",
    "Task",
    "TrainingConfig",
    "clients_in_round",
]


#: What node classification can select rounds by.
Select = Literal[
    "auto",
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "auc",
    "average_precision",
    "recall_at_1_percent",
]


@plain_dataclass(frozen=True)
class PlaintextOnly:
    """A setting whose value leaves a protection no choice but plaintext.

    protection: the setting that names the protection; setting, value: the other one; reason: why the two
    cannot be used together, a clause."""

    protection: str
    setting: str
    value: Any
    reason: str


@dataclass(frozen=True, config={"extra": "forbid"})
class CommonConfig:
    """The settings of every method of every task.

    The protections that a method can have are the values of its settings of protection: those with
    "plaintext" among their values (`Method.protections`)."""

    #: The protections that cannot be used with another setting of the method.
    plaintext_only: ClassVar[tuple[PlaintextOnly, ...]] = ()

    rounds: int = Field(default=300, ge=1, description="communication rounds")
    lr: float = Field(default=0.01, gt=0, allow_inf_nan=False, description="learning rate of the clients")
    weight_decay: float = Field(
        default=5e-4, ge=0, allow_inf_nan=False, description="L2 penalty added to the gradient"
    )
    hidden: int = Field(default=64, ge=1, description="hidden width (GAT: of every head)")
    layers: int = Field(default=2, ge=1, description="graph layers")
    fraction: float = Field(
        default=1.0, gt=0, le=1, description="share of the clients that take part in a round"
    )
    optimizer: Optimizer = Field(default="adam", description="optimiser of the clients")
    client_state: Literal["reset", "keep"] = Field(
        default="reset", description="optimiser state of a client: fresh every round, or kept"
    )
    patience: int | None = Field(
        default=50, ge=1, description="stop after this many evaluations without improvement"
    )
    eval_every: int = Field(default=1, ge=1, description="rounds between evaluations on the validation part")
    aggregation: Literal["plaintext"] = Field(
        default="plaintext", description="how weights are averaged at the server"
    )
    protocols: Literal["real", "simulated"] = Field(
        default="real",
        description="secure protocols: really run, or simulated: the same numbers and bytes, and nothing "
        "hidden",
    )
    seed: int = Field(default=0, ge=0, description="seed of weights, dropout and client sampling")

    @property
    def simulated(self) -> bool:
        """Whether the run's federation simulates secure protocols (`Federation.simulated`)."""
        return self.protocols == "simulated"

    @property
    def sum_protection(self) -> str:
        """The protection of the sums at the server that every method of a task has: scores, class counts."""
        return self.aggregation

    @model_validator(mode="after")
    def _protections_that_can_be(self) -> Self:
        for only in self.plaintext_only:
            protection = getattr(self, only.protection)
            if protection != PLAINTEXT and getattr(self, only.setting) == only.value:
                choices = get_args(self.__dataclass_fields__[only.setting].type)
                others = " or ".join(str(choice) for choice in choices if choice != only.value)
                raise InputError(
                    f"{only.protection}={protection} cannot be used with {only.setting}={only.value}: "
                    f"{only.reason}; use {only.setting}={others}, or {only.protection}={PLAINTEXT}"
                )
        return self


@dataclass(frozen=True, config={"extra": "forbid"})
class TrainingConfig(CommonConfig):
    """The settings that methods on graphs share; the defaults are the default recipe of node classification.
    Of link prediction it differs (`tasks.link_prediction`)."""

    client_state: Literal["reset", "keep"] = Field(
        default="keep", description="optimiser state of a client: fresh every round, or kept"
    )
    features: Literal["scaled", "raw", "unit"] = Field(
        default="scaled",
        description="scaled: every feature brought to one scale that the clients agree on; raw: as they are; "
        "unit: those of every node scaled to length 1",
    )
    dropout: float = Field(default=0.5, ge=0, lt=1, description="dropout on every layer's input")
    backbone: Literal["gcn", "gat", "sage", "maxpool"] = Field(default="gcn", description="graph network")
    heads: int = Field(default=8, ge=1, description="attention heads of GAT's hidden layers")
    local_steps: int = Field(default=1, ge=1, description="full-batch steps of every client in a round")
    select: Select = Field(
        default="auto",
        description="the validation metric that rounds are selected by; auto: accuracy, or where one class "
        "has more than 80 percent of the validation vertices average_precision (two classes) or "
        "balanced_accuracy",
    )
    class_weights: Literal["none", "balanced"] = Field(
        default="none",
        description="weight of each class in the training loss: all equal, or balanced: inversely "
        "proportional to how many training vertices of all clients it has",
    )

    @property
    def network(self) -> Backbone:
        """The graph network that is trained."""
        return BACKBONES[self.backbone]


@dataclass(frozen=True, config={"extra": "forbid"})
class ForecastConfig(CommonConfig):
    """The settings that methods of forecasting share."""

    rounds: int = Field(default=100, ge=1, description="communication rounds")
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False, description="learning rate of the clients")
    weight_decay: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="L2 penalty added to the gradient"
    )
    hidden: int = Field(default=64, ge=1, description="width of the recurrent network's state")
    layers: int = Field(default=1, ge=1, description="recurrent layers")
    optimizer: Optimizer = Field(default="adam", description="optimiser of the clients")
    patience: int | None = Field(
        default=20, ge=1, description="stop after this many evaluations without improvement"
    )
    lags: int = Field(default=12, ge=1, description="steps that a forecast is made from")
    horizon: int = Field(default=12, ge=1, description="steps that are forecast")
    every: int = Field(default=1, ge=1, description="train on every so manieth training window")
    missing: Literal["masked", "as_read"] = Field(
        default="masked",
        description="a missing reading: left out of losses and taken for the mean where it is an input, or "
        "what stands in its place, taken for a reading",
    )


#: Settings that are of the data that is trained on: which windows there are.
WINDOW_SETTINGS = ("lags", "horizon", "every")


def clients_in_round(fraction: float, num_clients: int) -> int:
    """How many clients take part in a round."""
    return max(1, round(fraction * num_clients))


@plain_dataclass(frozen=True)
class Task:
    """What all parties agreed on before they met: the width of the features, the classes, and which task it
    is (a name in `tasks.registry.TASKS`)."""

    num_features: int
    num_classes: int
    name: str = CLASSIFICATION


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
    config: type[CommonConfig]
    setup: Callable[[Federation, Any, Task, Any], State]
    round: Callable[[Federation, State, Any, int], State]
    predict: Callable[[Federation, State, Any, str], Located]
    #: The state of a run whose set-up released what must not be drawn again (noise, say), from its values:
    #: restore(fed, data, task, config, values) runs in the place of setup. None: setup runs again.
    restore: Callable[[Federation, Any, Task, Any, Mapping[str, Located]], State] | None = None
    #: At the clients, after training: what each client can say of its own part, a dictionary of [K] tensors,
    #: for a table (clients.parquet). account(fed, state, config); nothing crosses.
    account: Callable[[Federation, State, Any], Located] | None = None
    #: Of transfers between clients: the column of `account` that counts those to whom one client sends.
    recipients: Mapping[str, str] = field(default_factory=dict)
    #: The value at the server, a dictionary of single numbers, that goes into the details of the result.
    facts: str = ""
    #: The partition where the user names none, and the data names no sites.
    partition: str = "label_dirichlet"
    #: The tasks it can do (names in `tasks.registry.TASKS`); the first is the one it does unless it is asked.
    tasks: tuple[str, ...] = (CLASSIFICATION,)
    #: Trains on the pooled graph as one client: the reference that no federation sees.
    pooled: bool = False
    #: Every client keeps a model of its own and selects it on its own validation vertices.
    personal: bool = False
    #: Goes on with a smaller roster when clients are absent.
    dropouts: bool = False
    #: Every vertex must be held by one client only.
    disjoint: bool = False
    #: Every client must hold one vertex, and no more.
    one_vertex: bool = False
    #: Vertices must be numbered 0, 1, ... over all clients, which only one party that has all data can do.
    numbered: bool = False
    #: Goes on with clients that hold no vertex.
    empty_clients: bool = True
    #: Ends with one backbone's weights at the server, which can be scored on the pooled graph too.
    shared_model: bool = False
    #: Every named transfer of the method, in words for those who must answer for it: what it is, and what the
    #: receiver can read from it. Those of every run are in `runs.train.MESSAGES`.
    messages: Mapping[str, str] = field(default_factory=dict)
    #: The paper: authors, title, venue, and where it can be read.
    paper: str = ""
    #: The values of a state that are the model, in the order of its file.
    model: tuple[str, ...] = ("weights",)
    #: Of these, the ones at the clients that are the same at all of them.
    replicated: tuple[str, ...] = ()
    #: The values of a state that only the next round needs: no model of an earlier round is chosen with them.
    scratch: tuple[str, ...] = ()
    #: What it asks of data and settings beyond features and classes, and beyond what the flags above say.
    needs: tuple[str, ...] = ()
    #: check(data, config): raises InputError for a graph, or sensors, that the method cannot use, beyond what
    #: the flags say. Called where one party has all data; elsewhere the method's own functions refuse.
    check: Callable[[Any, Any], None] | None = None
    #: What leaves a client, in a few words, for a table.
    crosses: str = ""
    #: What keeps the receiver from reading it, in a few words.
    protection: str = "none: in clear"
    #: memory(extent, config): about how many bytes the method takes beyond training its backbone, from the
    #: counts of a partitioned graph or of readings (`methods.memory_need`). None: nothing large.
    memory: Callable[[Any, Any], float] | None = None
    #: Settings in which the method differs from the defaults of its task.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: What preset=paper changes, beyond the task's paper settings and `defaults`.
    paper_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def protections(self) -> dict[str, tuple[str, ...]]:
        """The protections that it can have, by the setting that names them."""
        found = {f.name: get_args(f.type) for f in fields(self.config)}
        return {name: values for name, values in found.items() if PLAINTEXT in values}

    def requirements(self) -> list[str]:
        """What a run of this method asks for beyond what its task needs, in a few words each."""
        asked = ["all data at one party"] if self.pooled else []
        asked += ["each vertex at one client"] if self.disjoint else []
        asked += ["one vertex at every client"] if self.one_vertex else []
        asked += ["vertices numbered from 0"] if self.numbered else []
        asked += [] if self.empty_clients or self.one_vertex else ["a vertex at every client"]
        asked += [] if self.dropouts or self.pooled else ["every client in every round"]
        return [*asked, *self.needs]

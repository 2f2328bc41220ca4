"""The settings of methods, in groups: frozen dataclasses without a parent, each about one thing.

The config of a method is one dataclass. It lists the groups that act on the method, the special ones first
and `CommonSettings` last, and adds the settings that only this method has:

    @dataclass(frozen=True, config={"extra": "forbid"})
    class MyConfig(LocalStepsSettings, GraphSettings, TrainingSettings, CommonSettings):
        mu: float = Field(default=0.01, ge=0, description="strength of the proximal term")

The fields stay flat: `config.lr`, `--set lr=0.1`. In help and in files they stand in the opposite order, the
common ones first. A default is written once, in its group; where a task or a method differs,
`TaskDefinition.defaults` or `Method.defaults` says so. A method lacks the settings that would change nothing,
and generic code asks for the group: `isinstance(config, SamplingSettings)`.

A group that several methods of one family share is next to their functions (`common.entity_alignment`,
`common.released`, `common.forecasting`, ...); one of a single paper is in the paper's package."""

from dataclasses import dataclass as plain_dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, get_args

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from graphfed.errors import InputError
from graphfed.federation.secure.aggregation import SumProtection
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.nn.backbones import BACKBONES, Backbone
from graphfed.nn.optim import Optimizer

__all__ = [
    "FORECASTING_GROUPS",
    "GRAPH_GROUPS",
    "WINDOW_SETTINGS",
    "AggregationSettings",
    "AttentionSettings",
    "BackboneSettings",
    "ClassWeightSettings",
    "ClientStateSettings",
    "CommonSettings",
    "GradientSteps",
    "GraphNetwork",
    "GraphSettings",
    "GraphTraining",
    "LocalStepsSettings",
    "PlaintextOnly",
    "ProtocolSettings",
    "RecurrentLayerSettings",
    "RecurrentSettings",
    "SamplingSettings",
    "SequenceTrainingSettings",
    "ServerOptimizerSettings",
    "TrainingSettings",
    "WindowSettings",
    "clients_in_round",
    "keeps_client_state",
    "samples_clients",
    "steps_at_server",
    "sum_protection",
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


# ---- every method ------------------------------------------------------------------------------------------


@dataclass(frozen=True, config={"extra": "forbid"})
class CommonSettings:
    """What every run has."""

    rounds: int = Field(default=300, ge=1, description="communication rounds")
    seed: int = Field(default=0, ge=0, description="seed of every draw of a run, except privacy noise")

    @property
    def simulated(self) -> bool:
        """Whether the run's federation simulates secure protocols (`Federation.simulated`)."""
        return isinstance(self, ProtocolSettings) and self.protocols == "simulated"


@dataclass(frozen=True, config={"extra": "forbid"})
class TrainingSettings:
    """The optimiser, and when training stops. Methods that train nothing lack it."""

    lr: float = Field(default=0.01, gt=0, allow_inf_nan=False, description="learning rate of the clients")
    weight_decay: float = Field(
        default=5e-4, ge=0, allow_inf_nan=False, description="L2 penalty added to the gradient"
    )
    optimizer: Optimizer = Field(default="adam", description="optimiser of the clients")
    patience: int | None = Field(
        default=50, ge=1, description="stop after this many evaluations without improvement"
    )
    eval_every: int = Field(default=1, ge=1, description="rounds between evaluations on the validation part")


# ---- methods on graphs -------------------------------------------------------------------------------------


@dataclass(frozen=True, config={"extra": "forbid"})
class GraphSettings:
    """A graph network, the features that go in, and the metric that selects rounds."""

    hidden: int = Field(default=64, ge=1, description="hidden width (GAT: of every head)")
    layers: int = Field(default=2, ge=1, description="graph layers")
    dropout: float = Field(default=0.5, ge=0, lt=1, description="dropout on every layer's input")
    features: Literal["scaled", "raw", "unit"] = Field(
        default="scaled",
        description="scaled: every feature brought to one scale that the clients agree on; raw: as they are; "
        "unit: those of every node scaled to length 1",
    )
    select: Select = Field(
        default="auto",
        description="the validation metric that rounds are selected by; auto: accuracy, or where one class "
        "has more than 80 percent of the validation nodes average_precision (two classes) or "
        "balanced_accuracy",
    )

    @property
    def architecture(self) -> str:
        """The name of the graph network: the user's choice, or GCN in a method that leaves none."""
        return self.backbone if isinstance(self, BackboneSettings) else "gcn"

    @property
    def network(self) -> Backbone:
        """The graph network that is trained."""
        return BACKBONES[self.architecture]

    @property
    def attention_heads(self) -> int:
        """The attention heads of the hidden layers; 1 in a method that never attends."""
        return self.heads if isinstance(self, AttentionSettings) else 1


@dataclass(frozen=True, config={"extra": "forbid"})
class BackboneSettings:
    """The choice of the graph network."""

    backbone: Literal["gcn", "gat", "sage", "maxpool"] = Field(default="gcn", description="graph network")


@dataclass(frozen=True, config={"extra": "forbid"})
class AttentionSettings:
    """The attention of methods whose network is a GAT, or can be one."""

    heads: int = Field(default=8, ge=1, description="attention heads of GAT's hidden layers")


@dataclass(frozen=True, config={"extra": "forbid"})
class ClassWeightSettings:
    """The weights of classes in a loss on labels that are not hidden by noise."""

    class_weights: Literal["none", "balanced"] = Field(
        default="none",
        description="weight of each class in the training loss: all equal, or balanced: inversely "
        "proportional to how many training nodes of all clients it has",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class LocalStepsSettings:
    """How far a model is trained in a round."""

    local_steps: int = Field(default=1, ge=1, description="full-batch steps of every client in a round")


# ---- methods that average ----------------------------------------------------------------------------------


@dataclass(frozen=True, config={"extra": "forbid"})
class ClientStateSettings:
    """The optimisers of clients that start every round from weights they receive."""

    client_state: Literal["reset", "keep"] = Field(
        default="keep", description="optimiser state of a client: fresh every round, or kept"
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class SamplingSettings:
    """The clients of a round. A method that has it goes on when clients are absent (`Method.dropouts`)."""

    fraction: float = Field(
        default=1.0, gt=0, le=1, description="share of the clients that take part in a round"
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class AggregationSettings:
    """The protection of sums over clients: of weights, gradients, statistics and scores."""

    aggregation: SumProtection = Field(
        default="plaintext",
        description="how what clients send is added up at the server: it reads each client's, or by secure "
        "aggregation their sum only",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class ProtocolSettings:
    """The form of the secure protocols. It goes with the settings that choose a protection: those with
    "plaintext" among their values (`Method.protections`)."""

    #: The protections that cannot be used with another setting of the method.
    plaintext_only: ClassVar[tuple[PlaintextOnly, ...]] = ()

    protocols: Literal["real", "simulated"] = Field(
        default="real",
        description="secure protocols: really run, or simulated: the same numbers and bytes, and nothing "
        "hidden",
    )

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
class ServerOptimizerSettings:
    """The place of the optimiser. It goes with `LocalStepsSettings`."""

    optimizer_at: Literal["auto", "server", "clients"] = Field(
        default="auto",
        description="server: clients send the gradient of one step, and the optimiser steps on the mean, as "
        "in central training; clients: every client runs the optimiser, and weights are averaged; auto: "
        "server with local_steps=1, else clients",
    )

    @property
    def asks_for_server(self) -> bool:
        """Whether the settings ask for the optimiser to run at the server."""
        assert isinstance(self, LocalStepsSettings)
        return self.optimizer_at == "server" or (self.optimizer_at == "auto" and self.local_steps == 1)

    @property
    def at_server(self) -> bool:
        """Whether the optimiser runs at the server."""
        return self.asks_for_server

    @model_validator(mode="after")
    def _one_gradient_a_round(self) -> Self:
        config: object = self
        assert isinstance(config, LocalStepsSettings)
        if self.optimizer_at == "server" and config.local_steps != 1:
            raise InputError(
                f"local_steps={config.local_steps} cannot be used with optimizer_at=server: expected 1, "
                "since a client sends one gradient in a round; leave optimizer_at out, or set it to clients"
            )
        return self


# ---- forecasting -------------------------------------------------------------------------------------------


@dataclass(frozen=True, config={"extra": "forbid"})
class WindowSettings:
    """The windows of time series, and readings that are missing."""

    lags: int = Field(default=12, ge=1, description="steps that a forecast is made from")
    horizon: int = Field(default=12, ge=1, description="steps that are forecast")
    every: int = Field(default=1, ge=1, description="train on every so manieth training window")
    missing: Literal["masked", "as_read"] = Field(
        default="masked",
        description="a missing reading: left out of losses and taken for the mean where it is an input, or "
        "what stands in its place, taken for a reading",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class RecurrentSettings:
    """The size of a recurrent network."""

    hidden: int = Field(default=64, ge=1, description="width of the recurrent network's state")

    @property
    def recurrent_layers(self) -> int:
        """The recurrent layers; 1 in a method that leaves no choice."""
        return self.layers if isinstance(self, RecurrentLayerSettings) else 1


@dataclass(frozen=True, config={"extra": "forbid"})
class SequenceTrainingSettings:
    """The steps of training on windows."""

    batch: int = Field(default=128, ge=1, description="windows of a step of training")
    teacher: float = Field(
        default=1000.0,
        ge=0,
        allow_inf_nan=False,
        description="scheduled sampling: after s steps a true reading goes into the decoder, in the place of "
        "its own forecast, with probability k / (k + exp(s / k)) of this k; 0: never",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="format of matrix products; weights, states and sums stay float32. bfloat16 is faster "
        "where the processor has it",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class RecurrentLayerSettings:
    """The depth of a recurrent network."""

    layers: int = Field(default=1, ge=1, description="recurrent layers")


#: Settings that are of the data that is trained on: which windows there are.
WINDOW_SETTINGS = ("lags", "horizon", "every")


# ---- what generic code asks --------------------------------------------------------------------------------

#: The groups that methods on graphs share, and those that methods of forecasting share: their settings mean
#: the same in every row of a table.
GRAPH_GROUPS = (
    CommonSettings,
    TrainingSettings,
    BackboneSettings,
    AttentionSettings,
    GraphSettings,
    ClassWeightSettings,
    LocalStepsSettings,
    ClientStateSettings,
    SamplingSettings,
    AggregationSettings,
    ProtocolSettings,
)
FORECASTING_GROUPS = (
    CommonSettings,
    TrainingSettings,
    WindowSettings,
    RecurrentSettings,
    ClientStateSettings,
    AggregationSettings,
    ProtocolSettings,
)


class GradientSteps(Protocol):
    """What an optimiser's step reads of a config, whichever groups it has."""

    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def optimizer(self) -> Optimizer: ...


class GraphNetwork(Protocol):
    """What running a graph network reads."""

    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def network(self) -> Backbone: ...
    @property
    def attention_heads(self) -> int: ...


class GraphTraining(GraphNetwork, GradientSteps, Protocol):
    """What training a graph network reads."""

    @property
    def seed(self) -> int: ...
    @property
    def dropout(self) -> float: ...
    @property
    def local_steps(self) -> int: ...


def sum_protection(config: object) -> str:
    """Return the protection of sums over clients at the server; plaintext in a method without the setting."""
    return config.aggregation if isinstance(config, AggregationSettings) else PLAINTEXT


def steps_at_server(config: object) -> bool:
    """Return whether the optimiser runs at the server, on the mean of the clients' gradients."""
    return isinstance(config, ServerOptimizerSettings) and config.at_server


def keeps_client_state(config: object) -> bool:
    """Return whether clients keep the state of their optimiser from round to round."""
    return isinstance(config, ClientStateSettings) and config.client_state == "keep"


def samples_clients(config: object) -> bool:
    """Return whether a part of the clients takes part in each round, and not all of them."""
    return isinstance(config, SamplingSettings) and config.fraction < 1


def clients_in_round(config: object, num_clients: int) -> int:
    """Return how many of the clients take part in a round: all, where the method does not sample them."""
    fraction = config.fraction if isinstance(config, SamplingSettings) else 1.0
    return max(1, round(fraction * num_clients))

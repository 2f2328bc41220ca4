"""The settings of methods, in groups: frozen dataclasses without a parent, each for one purpose.

The config of a method is one dataclass. It lists the groups that affect the method, the special ones first
and `CommonSettings` last, and adds the settings that only this method has:

    @dataclass(frozen=True, config={"extra": "forbid"})
    class MyConfig(LocalStepsSettings, GraphSettings, TrainingSettings, CommonSettings):
        mu: float = Field(default=0.01, ge=0, description="strength of the proximal term")

The fields stay flat: `config.lr`, `--set lr=0.1`. Help and files list them in the opposite order, the common
ones first. A default is written once, in its group; a task or a method that differs says so in
`TaskDefinition.defaults` or `Method.defaults`. A method does not have settings that would change nothing.
Generic code asks for the group: `isinstance(config, SamplingSettings)`.

A group that several methods of one family share is next to their functions (`common.entity_alignment`,
`common.released`, `common.forecasting`, ...); a group of one paper is in the paper's package.
"""

from dataclasses import dataclass as plain_dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, get_args

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from graphfed.errors import InputError
from graphfed.federation.secure.aggregation import SumProtection
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.nn.backbones import BACKBONES, Backbone
from graphfed.nn.optim import Optimizer

#: The metrics by which node classification can select rounds.
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
    """A setting whose value allows no other protection than plaintext.

    Attributes:
        protection: The setting that names the protection.
        reason: A clause that says why the two cannot be used together.
    """

    protection: str
    setting: str
    value: Any
    reason: str


# ---- every method ------------------------------------------------------------------------------------------


@dataclass(frozen=True, config={"extra": "forbid"})
class CommonSettings:
    """The settings of every run."""

    rounds: int = Field(default=300, ge=1, description="communication rounds")
    seed: int = Field(default=0, ge=0, description="seed of every draw of a run, except privacy noise")

    @property
    def simulated(self) -> bool:
        """Whether the run simulates secure protocols (`Federation.simulated`)."""
        return isinstance(self, ProtocolSettings) and self.protocols == "simulated"


@dataclass(frozen=True, config={"extra": "forbid"})
class TrainingSettings:
    """The optimiser, and when training stops. Methods that train nothing do not have it."""

    lr: float = Field(default=0.01, gt=0, allow_inf_nan=False, description="learning rate of the clients")
    weight_decay: float = Field(
        default=5e-4, ge=0, allow_inf_nan=False, description="L2 penalty added to the gradient"
    )
    optimizer: Optimizer = Field(default="adam", description="optimiser of the clients")
    patience: int | None = Field(
        default=50, ge=1, description="stop after this many evaluations without improvement"
    )
    eval_every: int = Field(
        default=1, ge=1, description="number of rounds between evaluations on the validation split"
    )


# ---- methods on graphs -------------------------------------------------------------------------------------


@dataclass(frozen=True, config={"extra": "forbid"})
class GraphSettings:
    """A graph neural network, its input features, and the metric that selects rounds."""

    hidden: int = Field(default=64, ge=1, description="number of hidden units (GAT: of every head)")
    layers: int = Field(default=2, ge=1, description="number of graph layers")
    dropout: float = Field(default=0.5, ge=0, lt=1, description="dropout on every layer's input")
    features: Literal["scaled", "raw", "unit"] = Field(
        default="scaled",
        description="scaled: bring every feature to one scale, on which the clients agree; raw: leave them "
        "as they are; unit: scale the features of every node to length 1",
    )
    select: Select = Field(
        default="auto",
        description="the validation metric by which rounds are selected; auto: accuracy; if one class has "
        "more than 80 percent of the validation nodes, average_precision (two classes) or balanced_accuracy",
    )

    @property
    def architecture(self) -> str:
        """Name of the graph neural network: the user's choice, or GCN if the method offers none."""
        return self.backbone if isinstance(self, BackboneSettings) else "gcn"

    @property
    def network(self) -> Backbone:
        """The graph neural network that is trained."""
        return BACKBONES[self.architecture]

    @property
    def attention_heads(self) -> tuple[int, ...]:
        """Attention heads of each layer; 1 in a network without attention."""
        if not isinstance(self, AttentionSettings) or self.architecture != "gat":
            return (1,) * self.layers
        return (self.heads,) * (self.layers - 1) + (self.output_heads,)


@dataclass(frozen=True, config={"extra": "forbid"})
class BackboneSettings:
    """The choice of the graph neural network."""

    backbone: Literal["gcn", "gat", "sage", "maxpool"] = Field(
        default="gcn", description="graph neural network"
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class AttentionSettings:
    """The attention of methods whose network is or can be a GAT."""

    heads: int = Field(default=8, ge=1, description="attention heads of GAT's hidden layers")
    output_heads: int = Field(
        default=1, ge=1, description="attention heads of GAT's last layer, whose results are averaged"
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class ClassWeightSettings:
    """The weights of classes in a loss on labels without noise."""

    class_weights: Literal["none", "balanced"] = Field(
        default="none",
        description="weight of each class in the training loss; none: all equal; balanced: inversely "
        "proportional to its number of training nodes at all clients, so that each class that occurs in "
        "training has the same total weight",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class LocalStepsSettings:
    """How many steps a model is trained for in a round."""

    local_steps: int = Field(
        default=1, ge=1, description="number of full-batch steps of every client in a round"
    )


# ---- methods that average ----------------------------------------------------------------------------------


@dataclass(frozen=True, config={"extra": "forbid"})
class ClientStateSettings:
    """The optimisers of clients that start every round from weights that they receive."""

    client_state: Literal["reset", "keep"] = Field(
        default="keep", description="optimiser state of a client: reset in every round, or kept"
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class ControlVariates:
    """Methods whose clients can keep control variates from round to round (SCAFFOLD)."""

    @property
    def keeps_controls(self) -> bool:
        """Whether clients keep control variates."""
        return True


@dataclass(frozen=True, config={"extra": "forbid"})
class SamplingSettings:
    """The clients of a round. A method with this group can do without absent clients (`Method.dropouts`)."""

    fraction: float = Field(
        default=1.0, gt=0, le=1, description="fraction of the clients that take part in a round"
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class AggregationSettings:
    """The protection of sums over clients: of weights, gradients, statistics and scores."""

    aggregation: SumProtection = Field(
        default="plaintext",
        description="how the server adds up what clients send; plaintext: it reads what each client sends; "
        "secure: by secure aggregation it reads only the sum",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class ProtocolSettings:
    """Whether secure protocols are run or simulated.

    It is used together with settings that choose a protection: those with "plaintext" among their values
    (`Method.protections`).
    """

    #: Protections that cannot be used together with some value of another setting.
    plaintext_only: ClassVar[tuple[PlaintextOnly, ...]] = ()

    protocols: Literal["real", "simulated"] = Field(
        default="real",
        description="real: run the secure protocols; simulated: compute the same results and bytes, with "
        "nothing hidden",
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
    """The place of the optimiser. It is used together with `LocalStepsSettings`."""

    optimizer_at: Literal["auto", "server", "clients"] = Field(
        default="auto",
        description="server: clients send the gradient of one step, and the server's optimiser takes a step "
        "on the mean, as in central training; clients: every client runs an optimiser, and weights are "
        "averaged; auto: server with local_steps=1, otherwise clients",
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
    """The windows of time series, and how missing readings are treated."""

    lags: int = Field(default=12, ge=1, description="number of time steps in the input of a forecast")
    horizon: int = Field(default=12, ge=1, description="number of time steps that are forecast")
    every: int = Field(default=1, ge=1, description="train on every k-th training window, for this k")
    missing: Literal["masked", "as_read"] = Field(
        default="masked",
        description="masked: leave missing readings out of losses, and use the mean if they are inputs; "
        "as_read: use the value in the place of a missing reading as a reading",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class RecurrentSettings:
    """The size of a recurrent network."""

    hidden: int = Field(default=64, ge=1, description="width of the recurrent network's state")
    missing_mask: bool = Field(
        default=False,
        description="whether the encoder reads which readings are missing, as one more input of each step; "
        "the graph network of cnfgnn then leaves a sensor out of the windows in which it has no reading. Not "
        "with missing=as_read",
    )

    @model_validator(mode="after")
    def _something_is_missing(self) -> Self:
        # Methods that read windows have the other field.
        if self.missing_mask and getattr(self, "missing", "") == "as_read":
            raise InputError(
                "missing_mask=true cannot be used with missing=as_read, for which no reading is missing; use "
                "missing=masked, or missing_mask=false"
            )
        return self

    @property
    def recurrent_layers(self) -> int:
        """Number of recurrent layers; 1 in a method that offers no choice."""
        return self.layers if isinstance(self, RecurrentLayerSettings) else 1


@dataclass(frozen=True, config={"extra": "forbid"})
class SequenceTrainingSettings:
    """How a recurrent network is trained on windows."""

    batch: int = Field(default=128, ge=1, description="number of windows in a training step")
    teacher: float = Field(
        default=1000.0,
        ge=0,
        allow_inf_nan=False,
        description="scheduled sampling: after s steps the decoder reads the true reading, instead of its "
        "own forecast, with probability k / (k + exp(s / k)), for this k; 0: never",
    )
    teacher_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="scheduled sampling with linear decay, in place of `teacher`: after s of the T training "
        "steps that `rounds` plans, the decoder reads the true reading with probability "
        "max(0, 1 - s / (f T)), for this fraction f; none: as `teacher` says",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="number format of matrix products; weights, states and sums stay float32. bfloat16 is "
        "faster on processors that support it",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class RecurrentLayerSettings:
    """The depth of a recurrent network."""

    layers: int = Field(default=1, ge=1, description="number of recurrent layers")


#: The settings that determine which windows there are.
WINDOW_SETTINGS = ("lags", "horizon", "every")


# ---- questions of generic code -----------------------------------------------------------------------------

#: The groups that methods on graphs share, and those that methods of forecasting share: their settings have
#: the same meaning in every row of a table.
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
    """The settings that an optimiser's step reads, in whichever groups they are."""

    @property
    def lr(self) -> float:
        """Learning rate."""

    @property
    def weight_decay(self) -> float:
        """L2 penalty added to the gradient."""

    @property
    def optimizer(self) -> Optimizer:
        """Name of the optimiser."""


class GraphNetwork(Protocol):
    """The settings that running a graph neural network reads."""

    @property
    def hidden(self) -> int:
        """Number of hidden units."""

    @property
    def layers(self) -> int:
        """Number of graph layers."""

    @property
    def network(self) -> Backbone:
        """The graph neural network."""

    @property
    def attention_heads(self) -> tuple[int, ...]:
        """Attention heads of each layer."""


class GraphTraining(GraphNetwork, GradientSteps, Protocol):
    """The settings that training a graph neural network reads."""

    @property
    def seed(self) -> int:
        """Seed of the run."""

    @property
    def dropout(self) -> float:
        """Probability of dropout."""

    @property
    def local_steps(self) -> int:
        """Number of training steps in a round."""


def sum_protection(config: object) -> str:
    """Return the protection of sums over clients at the server.

    Returns:
        The value of `aggregation`; plaintext in a method without the setting.
    """
    return config.aggregation if isinstance(config, AggregationSettings) else PLAINTEXT


def steps_at_server(config: object) -> bool:
    """Return whether the optimiser runs at the server, on the mean of the clients' gradients."""
    return isinstance(config, ServerOptimizerSettings) and config.at_server


def keeps_client_state(config: object) -> bool:
    """Return whether clients keep the state of their optimiser from round to round."""
    return isinstance(config, ClientStateSettings) and config.client_state == "keep"


def keeps_client_values(config: object) -> bool:
    """Return whether clients keep values of the form of weights from round to round: the state of their
    optimiser, or control variates.
    """
    controls = isinstance(config, ControlVariates) and config.keeps_controls
    return controls or keeps_client_state(config)


def samples_clients(config: object) -> bool:
    """Return whether only a part of the clients takes part in each round."""
    return isinstance(config, SamplingSettings) and config.fraction < 1


def clients_in_round(config: object, num_clients: int) -> int:
    """Compute how many clients take part in a round.

    Returns:
        At least 1; all clients if the method does not sample them.
    """
    fraction = config.fraction if isinstance(config, SamplingSettings) else 1.0
    return max(1, round(fraction * num_clients))

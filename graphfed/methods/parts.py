"""The parts of settings that several methods have. A default is written once, in its part; a task or a method
that differs says so in `TaskDefinition.defaults` or `Method.defaults`.

A part that methods of one family share is next to their functions (`common.entity_alignment`,
`common.released`, `common.forecasting`, ...); a part of one paper is in the paper's package.
"""

from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from graphfed.errors import InputError
from graphfed.federation.secure.aggregation import SumProtection
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.methods.settings import Only, Unless, settings, value
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


# ---- every method ------------------------------------------------------------------------------------------


@settings
class Run:
    """The settings of every run."""

    rounds: int = Field(default=300, ge=1, description="communication rounds")
    seed: int = Field(default=0, ge=0, description="seed of every draw of a run, except privacy noise")


@settings
class Training:
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


@settings
class Network:
    """A graph neural network."""

    backbone: Literal["gcn", "gat", "sage", "maxpool", "mlp", "gine", "pna"] = Field(
        default="gcn",
        description="graph neural network; gine and pna read the directions and attributes of edges",
    )
    heads: Annotated[int, Only("backbone", "gat")] = Field(
        default=8, ge=1, description="attention heads of GAT's hidden layers"
    )
    output_heads: Annotated[int, Only("backbone", "gat")] = Field(
        default=1, ge=1, description="attention heads of GAT's last layer, whose results are averaged"
    )
    #: How the scores of attention are computed, if not as in GAT: a part with the property `kernel`.
    scores: Any = None
    hidden: int = Field(default=64, ge=1, description="number of hidden units (GAT: of every head)")
    layers: int = Field(default=2, ge=1, description="number of graph layers")
    dropout: float = Field(default=0.5, ge=0, lt=1, description="dropout on every layer's input")

    @property
    def kernel(self) -> Backbone:
        """The functions of the network."""
        found: Backbone = BACKBONES[self.backbone] if self.scores is None else self.scores.kernel
        return found

    @property
    def attention_heads(self) -> tuple[int, ...]:
        """Attention heads of each layer; 1 in a network without attention."""
        if self.backbone != "gat":
            return (1,) * self.layers
        return (self.heads,) * (self.layers - 1) + (self.output_heads,)


@settings
class Inputs:
    """The input features."""

    features: Literal["scaled", "robust", "raw", "unit"] = Field(
        default="scaled",
        description="scaled: bring every feature to one scale, on which the clients agree; robust: subtract "
        "the median of all clients and divide by the range between the quartiles; raw: leave them as they "
        "are; unit: scale the features of every node to length 1",
    )


@settings
class Selection:
    """The metric that selects rounds."""

    select: Select = Field(
        default="auto",
        description="the validation metric by which rounds are selected; auto: accuracy; if one class has "
        "more than 80 percent of the validation nodes, average_precision (two classes) or balanced_accuracy",
    )


@settings
class Loss:
    """The weights of classes in a loss on labels without noise."""

    class_weights: Literal["none", "balanced"] = Field(
        default="none",
        description="weight of each class in the training loss; none: all equal; balanced: inversely "
        "proportional to its number of training nodes at all clients, so that each class that occurs in "
        "training has the same total weight",
    )


@settings
class Steps:
    """How many steps a model is trained for in a round."""

    local_steps: Annotated[int, Unless("rule", "fedsgd")] = Field(
        default=1, ge=1, description="number of full-batch steps of every client in a round"
    )


# ---- methods that average ----------------------------------------------------------------------------------


@settings
class ClientOptimizer:
    """The optimisers of clients that start every round from weights that they receive."""

    client_state: Annotated[
        Literal["reset", "keep"],
        Unless("rule", "fedsgd", "scaffold"),
        Unless("strategy", "centralised"),
    ] = Field(default="keep", description="optimiser state of a client: reset in every round, or kept")


@settings
class Clients:
    """The clients of a round. A method with this part can do without absent clients (`Method.dropouts`)."""

    fraction: Annotated[float, Unless("rule", "admm")] = Field(
        default=1.0, gt=0, le=1, description="fraction of the clients that take part in a round"
    )


@settings
class Sums:
    """The protection of sums over clients: of weights, gradients, statistics and scores."""

    aggregation: SumProtection = Field(
        default="plaintext",
        description="how the server adds up what clients send; plaintext: it reads what each client sends; "
        "secure: by secure aggregation it reads only the sum",
    )


@settings
class Protocols:
    """Whether secure protocols are run or simulated."""

    protocols: Literal["real", "simulated"] = Field(
        default="real",
        description="real: run the secure protocols; simulated: compute the same results and bytes, with "
        "nothing hidden",
    )


@settings
class ServerOptimizer:
    """The place of the optimiser."""

    optimizer_at: Annotated[Literal["auto", "server", "clients"], Only("rule", "fedavg")] = Field(
        default="auto",
        description="server: clients send the gradient of one step, and the server's optimiser takes a step "
        "on the mean, as in central training; clients: every client runs an optimiser, and weights are "
        "averaged; auto: server with local_steps=1, otherwise clients",
    )

    def asks_for_server(self, steps: Steps) -> bool:
        """Return whether the optimiser runs at the server for a number of local steps."""
        return self.optimizer_at == "server" or (self.optimizer_at == "auto" and steps.local_steps == 1)

    def check(self, steps: Steps) -> None:
        """Raise InputError if a client would send one gradient for several steps."""
        if self.optimizer_at == "server" and steps.local_steps != 1:
            raise InputError(
                f"local_steps={steps.local_steps} cannot be used with optimizer_at=server: expected 1, since "
                "a client sends one gradient in a round; leave optimizer_at out, or set it to clients"
            )


# ---- forecasting -------------------------------------------------------------------------------------------


@settings
class Windows:
    """The windows of time series, and how missing readings are treated."""

    lags: int = Field(default=12, ge=1, description="number of time steps in the input of a forecast")
    horizon: int = Field(default=12, ge=1, description="number of time steps that are forecast")
    every: int = Field(default=1, ge=1, description="train on every k-th training window, for this k")
    missing: Literal["masked", "as_read"] = Field(
        default="masked",
        description="masked: leave missing readings out of losses, and use the mean if they are inputs; "
        "as_read: use the value in the place of a missing reading as a reading",
    )


@settings
class Recurrent:
    """A recurrent network."""

    hidden: int = Field(default=64, ge=1, description="width of the recurrent network's state")
    missing_mask: Annotated[bool, Only("missing", "masked")] = Field(
        default=False,
        description="whether the encoder reads which readings are missing, as one more input of each step; "
        "the graph network of cnfgnn then leaves a sensor out of the windows in which it has no reading",
    )
    layers: int = Field(default=1, ge=1, description="number of recurrent layers")


@settings
class Sequences:
    """How a recurrent network is trained on windows."""

    batch: int = Field(default=128, ge=1, description="number of windows in a training step")
    teacher: Annotated[float, Only("teacher_fraction", None)] = Field(
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


#: The settings that determine which windows there are.
WINDOW_SETTINGS = ("lags", "horizon", "every")


# ---- parts together ----------------------------------------------------------------------------------------

#: The parts that methods on graphs share, and those that methods of forecasting share: their settings have
#: the same meaning in every row of a table.
GRAPH_PARTS = (
    Run,
    Training,
    Network,
    Inputs,
    Selection,
    Loss,
    Steps,
    ClientOptimizer,
    Clients,
    Sums,
    Protocols,
)
FORECASTING_PARTS = (Run, Training, Windows, Recurrent, ClientOptimizer, Sums, Protocols)


class GraphTraining(Protocol):
    """Settings with the parts that local training of a graph neural network reads."""

    @property
    def run(self) -> Run: ...
    @property
    def training(self) -> Training: ...
    @property
    def network(self) -> Network: ...
    @property
    def steps(self) -> Steps: ...


# ---- questions of generic code -----------------------------------------------------------------------------


def is_simulated(config: object) -> bool:
    """Return whether the run simulates secure protocols (`Federation.simulated`)."""
    return bool(value(config, "protocols") == "simulated")


def sum_protection(config: object) -> str:
    """Return the protection of sums over clients at the server; plaintext in a method without `Sums`."""
    # Not by the flat name: SAPGNN's and PPGNN's `aggregation` is a sum among clients.
    sums: Sums | None = getattr(config, "sums", None)
    return PLAINTEXT if sums is None else sums.aggregation


def keeps_client_state(config: object) -> bool:
    """Return whether clients keep the state of their optimiser from round to round."""
    return bool(value(config, "client_state") == "keep")


def samples_clients(config: object) -> bool:
    """Return whether only a part of the clients takes part in each round."""
    return bool(value(config, "fraction", 1.0) < 1)


def clients_in_round(config: object, num_clients: int) -> int:
    """Compute how many clients take part in a round.

    Returns:
        At least 1; all clients if the method does not sample them.
    """
    # A round of no client would have nothing to average.
    return max(1, round(float(value(config, "fraction", 1.0)) * num_clients))

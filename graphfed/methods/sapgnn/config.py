"""The settings of SAPGNN."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from graphfed.errors import InputError, shown
from graphfed.methods.base import Task
from graphfed.methods.common.entity_alignment import NodeIds
from graphfed.methods.common.split_learning import GradientSums, Predictor
from graphfed.methods.parts import Inputs, Loss, Network, Protocols, Run, Selection, Training
from graphfed.methods.settings import Unless, settings
from graphfed.nn.maxpool import UPDATES


@settings
class LayerForm:
    """What clients and server compute in every layer."""

    maps: Literal["linear", "identity"] = Field(
        default="linear",
        description="maps at the clients before upload: linear, or identity (the paper's, which shows the "
        "server the features)",
    )
    update: Literal["concat", "sum", "product", "tropical"] = Field(
        default="concat", description="how a node's own part and the maximum over its neighbours are combined"
    )
    aggr: Literal["max", "min"] = Field(default="max", description="pooling over neighbours and over clients")
    norm: Annotated[Literal["off", "batch"], Unless("layers", 1)] = Field(
        default="off", description="normalisation at the server"
    )

    @field_validator("update", mode="before")
    @classmethod
    def _separable(cls, update: Any) -> Any:
        # Exact pooling needs updates whose maximum over clients can be taken after them.
        if not isinstance(update, str) or update not in UPDATES:
            raise InputError(
                f"update={shown(update)} cannot be used: pooling over clients is exact only if every output "
                "of the update is a maximum of nondecreasing functions of one coordinate each; choose one "
                f"of: {', '.join(UPDATES)}"
            )
        return update

    @property
    def sends_features(self) -> bool:
        """Whether the first layer's uploads are the features and their maxima over neighbours.

        They are the same in every round, so they are sent once.
        """
        # No weight of the clients enters, so no step changes the uploads.
        return self.maps == "identity" and not UPDATES[self.update].weighted


@settings
class SapgnnConfig:
    """The settings of SAPGNN."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    protocols: Protocols = Protocols()
    ids: NodeIds = NodeIds()
    predictor: Predictor = Predictor()
    gradient_sums: GradientSums = GradientSums()
    form: LayerForm = LayerForm()
    pooling: Literal["plaintext", "secure"] = Field(
        default="plaintext",
        description="maximum over clients: by the server in plaintext, or by a secure protocol that shows "
        "the server only the maximum",
    )
    batch_size: int | None = Field(
        default=None, ge=1, description="number of training nodes in a step; none: all of them"
    )


def output_widths(task: Task, config: SapgnnConfig) -> list[int]:
    """Return the width d_l of the embedding that enters each layer, and the width of the last output."""
    hidden = config.network.hidden
    # With predictor=server the last layer is the predictor.
    last = task.num_classes if config.predictor.predictor == "server" else hidden
    return [task.num_features, *[hidden] * (config.network.layers - 1), last]


def uploaded_width(width: int, config: SapgnnConfig) -> int:
    """Return u_l, how many numbers a client uploads for a node in a layer with inputs of width d_l."""
    form = config.form
    return UPDATES[form.update].width * (config.network.hidden if form.maps == "linear" else width)


def has_local_weights(config: SapgnnConfig) -> bool:
    """Return whether clients have weights, whose gradients are summed in every step."""
    weighted = config.form.maps == "linear" or UPDATES[config.form.update].weighted
    return weighted or config.predictor.predictor == "clients"

"""The settings of SAPGNN."""

from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.errors import InputError, shown
from graphfed.methods import config as groups
from graphfed.methods.base import Task
from graphfed.methods.common.entity_alignment import AlignmentSettings
from graphfed.methods.common.split_learning import SplitSettings
from graphfed.nn.maxpool import UPDATES


@config_dataclass(frozen=True, config={"extra": "forbid"})
class SapgnnConfig(
    SplitSettings,
    AlignmentSettings,
    groups.ProtocolSettings,
    groups.ClassWeightSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of SAPGNN."""

    maps: Literal["linear", "identity"] = Field(
        default="linear",
        description="maps at the clients before upload: linear, or identity (the paper's, which shows the "
        "server the features)",
    )
    update: Literal["concat", "sum", "product", "tropical"] = Field(
        default="concat", description="how a node's own part and the maximum over its neighbours are combined"
    )
    aggr: Literal["max", "min"] = Field(default="max", description="pooling over neighbours and over clients")
    norm: Literal["off", "batch"] = Field(default="off", description="normalisation at the server")
    pooling: Literal["plaintext", "secure"] = Field(
        default="plaintext",
        description="maximum over clients: by the server in plaintext, or by a secure protocol that shows "
        "the server only the maximum",
    )
    batch_size: int | None = Field(
        default=None, ge=1, description="number of training nodes in a step; none: all of them"
    )

    @property
    def architecture(self) -> str:
        """The name of the architecture in reports."""
        return "maxpool"

    @field_validator("update", mode="before")
    @classmethod
    def _separable(cls, update: Any) -> Any:
        if not isinstance(update, str) or update not in UPDATES:
            raise InputError(
                f"update={shown(update)} cannot be used: pooling over clients is exact only if every output "
                "of the update is a maximum of nondecreasing functions of one coordinate each; choose one "
                f"of: {', '.join(UPDATES)}"
            )
        return update


def output_widths(task: Task, config: SapgnnConfig) -> list[int]:
    """Return the widths of the embeddings.

    Returns:
        The width d_l of the embedding that enters each layer, and the width of the last layer's output.
    """
    last = task.num_classes if config.predictor == "server" else config.hidden
    return [task.num_features, *[config.hidden] * (config.layers - 1), last]


def uploaded_width(width: int, config: SapgnnConfig) -> int:
    """Return u_l, how many numbers a client uploads for a node in a layer.

    Args:
        width: The width d_l of the embedding that enters the layer.
    """
    return UPDATES[config.update].width * (config.hidden if config.maps == "linear" else width)


def has_local_weights(config: SapgnnConfig) -> bool:
    """Return whether clients have weights, whose gradients are summed in every step.

    Returns:
        False if messages and updates have no weights and the predictor is at the server.
    """
    return config.maps == "linear" or UPDATES[config.update].weighted or config.predictor == "clients"


def sends_features(config: SapgnnConfig) -> bool:
    """Return whether the first layer's uploads are the features and their maxima over neighbours.

    They are the same in every round, so they are sent once.

    Returns:
        True with maps=identity and an update without weights.
    """
    return config.maps == "identity" and not UPDATES[config.update].weighted

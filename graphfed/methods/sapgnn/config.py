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

__all__ = ["SapgnnConfig", "has_local_weights", "output_widths", "sends_features", "uploaded_width"]


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
        default="linear", description="maps before upload: linear ones, or none (the paper's, shows features)"
    )
    update: Literal["concat", "sum", "product", "tropical"] = Field(
        default="concat", description="how a node's own part and its neighbours' maximum are joined"
    )
    aggr: Literal["max", "min"] = Field(default="max", description="pooling over neighbours and clients")
    norm: Literal["off", "batch"] = Field(default="off", description="normalisation at the server")
    pooling: Literal["plaintext", "secure"] = Field(
        default="plaintext",
        description="maximum over clients: in plaintext at the server, or by a protocol that shows it the "
        "maximum only",
    )
    batch_size: int | None = Field(
        default=None, ge=1, description="training nodes in a step; none: all of them"
    )

    @property
    def architecture(self) -> str:
        return "maxpool"

    @field_validator("update", mode="before")
    @classmethod
    def _separable(cls, update: Any) -> Any:
        if not isinstance(update, str) or update not in UPDATES:
            raise InputError(
                f"update={shown(update)} cannot be used: pooling over clients is exact only for an update "
                "whose every output is a maximum of nondecreasing functions of one coordinate each; choose "
                f"one of: {', '.join(UPDATES)}"
            )
        return update


def output_widths(task: Task, config: SapgnnConfig) -> list[int]:
    """The width of h entering every layer, and of the last one's output."""
    last = task.num_classes if config.predictor == "server" else config.hidden
    return [task.num_features, *[config.hidden] * (config.layers - 1), last]


def uploaded_width(width: int, config: SapgnnConfig) -> int:
    """u_l: what a node uploads to a layer whose input has `width`."""
    return UPDATES[config.update].width * (config.hidden if config.maps == "linear" else width)


def has_local_weights(config: SapgnnConfig) -> bool:
    return config.maps == "linear" or UPDATES[config.update].weighted or config.predictor == "clients"


def sends_features(config: SapgnnConfig) -> bool:
    """Whether the first layer's uploads are the features and their maxima, the same in every round."""
    return config.maps == "identity" and not UPDATES[config.update].weighted

"""The settings of attention_sums."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from graphfed.methods import config as groups


@dataclass(frozen=True, config={"extra": "forbid"})
class AttentionSumsConfig(
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of attention_sums."""

    exchange: Literal["plaintext", "secure"] = Field(
        default="plaintext",
        description="the sums over a node's neighbours; plaintext: the node's client reads the sum of each "
        "other client; secure: by masks that cancel it reads only the total over the other clients. Neither "
        "protects features: clients compute those of their nodes' neighbours from scores, which they read",
    )
    min_group: int = Field(
        default=1,
        ge=1,
        description="least number of neighbours in a sum that a node's client reads; the neighbours of a "
        "smaller sum are left out, and the network is no longer exact. It protects no features: clients "
        "compute them from the scores and from the sums of many rounds",
    )

    @property
    def architecture(self) -> str:
        """Name of the network."""
        return "gat"

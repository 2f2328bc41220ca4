"""The settings of Lumos: those of its encoder and of its balancer, and its own."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.federation.secure.aggregation import SumProtection
from graphfed.methods.lumos.feature_encoding import EncoderConfig
from graphfed.methods.lumos.workload import BalanceConfig

__all__ = ["LumosConfig"]


@config_dataclass(frozen=True, config={"extra": "forbid"})
class LumosConfig(EncoderConfig, BalanceConfig):
    backbone: Literal["gcn", "gat"] = Field(default="gcn", description="graph network on the trees")
    local_steps: Literal[1] = Field(default=1, description="passes over the training vertices in a round")
    virtual_nodes: bool = Field(
        default=True, description="trees with virtual vertices; without: each device's own neighbourhood"
    )
    trainer: Literal["fused", "general"] = Field(
        default="fused",
        description="pair by pair where that is exact (trees, up to 3 layers), or always as one graph",
    )
    aggregation: SumProtection = Field(  # type: ignore[assignment]
        default="plaintext",
        description="how the gradients of the weights add up at the server: it reads each device's, or by "
        "secure aggregation their sum only",
    )
    protocols: Literal["real", "simulated"] = Field(
        default="simulated",
        description="secure protocols, of which comparisons between devices are always one: really run, or "
        "simulated: the same numbers and bytes, and nothing hidden",
    )
    negatives: int = Field(
        default=1, ge=1, description="link prediction: pairs that are no edge for every kept neighbour"
    )
    seed: int = Field(default=0, ge=0, description="seed of weights, dropout, coins and negatives")

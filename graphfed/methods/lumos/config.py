"""The settings of Lumos; docs/papers/lumos.md, "Differences from the paper", says which values are the
paper's.
"""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.errors import InputError, shown
from graphfed.methods import config as groups
from graphfed.methods.common.released import FeatureBoundSettings, NoiseSettings
from graphfed.privacy.bins import Accounting


@config_dataclass(frozen=True, config={"extra": "forbid"})
class EncodingSettings:
    """How clients send their features."""

    epsilon: float = Field(
        default=2.0, gt=0, allow_inf_nan=False, description="privacy budget of a client's features"
    )
    accounting: Accounting = Field(
        default="per_receiver",
        description="who epsilon protects against: each receiver alone (as in the paper), or all receivers "
        "together",
    )
    decode: Literal["shrunk", "unbiased", "unread"] = Field(
        default="shrunk",
        description="how a receiver reads a bit: as the linear estimate with the least mean squared error, "
        "as an estimate without bias but with a large variance (as in the paper), or not at all, which shows "
        "what the bits contribute",
    )
    rescale: bool = Field(
        default=False,
        description="with decode=unbiased: multiply by d / |bin|, so that the estimate is unbiased over the "
        "choice of the coordinates too",
    )
    pad_bins: int | None = Field(
        default=None,
        ge=1,
        description="number of bins of every client, which hides the number of its receivers; more bins have "
        "fewer coordinates each and less noise in each bit; none: one bin for each receiver",
    )
    unsent_value: float = Field(
        default=0.0,
        allow_inf_nan=False,
        description="value of a feature of which a receiver has no bit, and to which decode=shrunk shrinks: "
        "a public guess of the feature's mean (the paper: the middle of the bounds)",
    )


@config_dataclass(frozen=True, config={"extra": "forbid"})
class BalanceSettings:
    """How neighbours agree which of them trains on an edge."""

    balancer: Literal["local", "mcmc", "oracle", "greedy", "none"] = Field(
        default="local",
        description="how edges are assigned to clients: by exchanges between neighbours (local), by the "
        "paper's search (mcmc), exactly by a server that sees the graph (oracle), by the start of the "
        "paper's search (greedy), or each edge to both of its clients (none)",
    )
    balance_rounds: int = Field(
        default=1000,
        ge=0,
        description="with balancer=local: maximal number of rounds in which an edge moves to a neighbour "
        "whose workload is smaller by 2",
    )
    shuffle_rounds: int = Field(
        default=20,
        ge=0,
        description="with balancer=local: number of rounds after these, in which a smaller workload is "
        "enough",
    )
    mcmc_steps: int = Field(default=1000, ge=0, description="with balancer=mcmc: steps of the search")
    temperature: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="with balancer=mcmc: temperature (the paper: 1)"
    )
    acceptance: Literal["hidden", "opened"] = Field(
        default="hidden",
        description="with balancer=mcmc: what two clients learn about their workloads in a step: only "
        "whether the step is accepted, or both numbers (as in the paper)",
    )
    compare_again: Literal["changed", "all"] = Field(
        default="changed",
        description="which pairs compare again: those with a changed workload, or all (as in the paper)",
    )
    fill_trees: bool = Field(
        default=False,
        description="after balancing, let every client take edges of its neighbours into its tree too, at "
        "random, until it has as many as the client with the most; the largest workload stays, and such an "
        "edge is in both trees",
    )
    degree_bits: int = Field(
        default=12, ge=1, le=31, description="number of bits that hold every degree; public"
    )

    @property
    def level_bits(self) -> int:
        """Number of bits that hold the rounded logarithm of every degree."""
        most = torch.tensor(float(2**self.degree_bits - 1), dtype=torch.float64)
        return max(1, int(most.log().round()).bit_length())


@config_dataclass(frozen=True, config={"extra": "forbid"})
class LumosConfig(
    BalanceSettings,
    EncodingSettings,
    FeatureBoundSettings,
    NoiseSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.BackboneSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of Lumos."""

    backbone: Literal["gcn", "gat"] = Field(default="gcn", description="graph neural network on the trees")
    virtual_nodes: bool = Field(
        default=True, description="use trees with virtual nodes; if false, each client's neighbourhood"
    )
    trainer: Literal["fused", "general"] = Field(
        default="fused",
        description="compute leaves pair by pair if that is exact (trees, up to 3 layers), or always on one "
        "graph",
    )
    protocols: Literal["real", "simulated"] = Field(
        default="simulated",
        description="run the secure protocols (comparisons between clients are always among them), or "
        "simulate them: the results and the bytes are the same, and nothing is hidden",
    )
    negatives: int = Field(
        default=1, ge=1, description="link prediction: number of drawn pairs for each neighbour in a tree"
    )

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.rescale and self.decode != "unbiased":
            raise InputError(
                f"rescale=True cannot be used with decode={self.decode}: expected decode=unbiased, because "
                "rescale corrects unbiased estimates; set decode=unbiased, or leave rescale out"
            )
        low, high = self.feature_low, self.feature_high
        if not low <= self.unsent_value <= high:
            raise InputError(
                f"unsent_value={shown(self.unsent_value)} cannot be used: expected a number between "
                f"feature_low={shown(low)} and feature_high={shown(high)}"
            )
        return self

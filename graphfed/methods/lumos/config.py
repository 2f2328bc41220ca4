"""The settings of Lumos."""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.errors import InputError, shown
from graphfed.methods import config as groups
from graphfed.methods.common.released import FeatureBoundSettings, NoiseSettings
from graphfed.privacy.bins import Accounting

__all__ = ["BalanceSettings", "EncodingSettings", "LumosConfig"]


@config_dataclass(frozen=True, config={"extra": "forbid"})
class EncodingSettings:
    """How features are sent."""

    epsilon: float = Field(
        default=2.0, gt=0, allow_inf_nan=False, description="privacy budget of a device's features"
    )
    accounting: Accounting = Field(
        default="per_receiver",
        description="whom epsilon holds against: each receiver alone (the paper), or all of them together",
    )
    decode: Literal["shrunk", "unbiased"] = Field(
        default="shrunk",
        description="what a receiver makes of a bit: the linear estimate of least error, or one without bias "
        "and of large variance (the paper)",
    )
    rescale: bool = Field(
        default=False,
        description="with decode=unbiased: unbiased over the choice of coordinates too, times d / |bin|",
    )
    pad_bins: int | None = Field(
        default=None,
        ge=1,
        description="so many bins at every device, which hides how many receivers it has; none: one for each",
    )
    unsent_value: float = Field(
        default=0.0,
        allow_inf_nan=False,
        description="what stands for a feature that a receiver gets no bit of, and what decode=shrunk "
        "shrinks to: a public guess of its mean (the paper: the middle of the bounds)",
    )


@config_dataclass(frozen=True, config={"extra": "forbid"})
class BalanceSettings:
    """How neighbours agree who keeps an edge."""

    balancer: Literal["local", "mcmc", "oracle", "greedy", "none"] = Field(
        default="local",
        description="who keeps an edge: passed on to neighbours that keep less, the paper's search, the "
        "exact optimum (the server sees the graph), the paper's start alone, or both ends",
    )
    balance_rounds: int = Field(
        default=1000,
        ge=0,
        description="most rounds of balancer=local in which an edge passes to who keeps 2 less",
    )
    shuffle_rounds: int = Field(
        default=20, ge=0, description="its rounds after these, in which one passes to whoever keeps less"
    )
    mcmc_steps: int = Field(default=1000, ge=0, description="steps of balancer=mcmc")
    temperature: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="temperature of balancer=mcmc (the paper: 1)"
    )
    acceptance: Literal["hidden", "opened"] = Field(
        default="hidden",
        description="what a step of balancer=mcmc shows of the two largest workloads: whether it is "
        "accepted, or (the paper) both",
    )
    compare_again: Literal["changed", "all"] = Field(
        default="changed", description="which pairs compare again: those that changed, or (the paper) all"
    )
    degree_bits: int = Field(
        default=12, ge=1, le=31, description="bits that hold every degree; known to everyone"
    )

    @property
    def level_bits(self) -> int:
        """Bits that hold round(ln d) of every degree d."""
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

    backbone: Literal["gcn", "gat"] = Field(default="gcn", description="graph network on the trees")
    virtual_nodes: bool = Field(
        default=True, description="trees with virtual nodes; without: each device's own neighbourhood"
    )
    trainer: Literal["fused", "general"] = Field(
        default="fused",
        description="pair by pair where that is exact (trees, up to 3 layers), or always as one graph",
    )
    protocols: Literal["real", "simulated"] = Field(
        default="simulated",
        description="secure protocols, of which comparisons between devices are always one: really run, or "
        "simulated: the same numbers and bytes, and nothing hidden",
    )
    negatives: int = Field(
        default=1, ge=1, description="link prediction: pairs that are no edge for every kept neighbour"
    )

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.rescale and self.decode != "unbiased":
            raise InputError(
                "rescale=True cannot be used: expected decode=unbiased beside it (shrunk is biased by intent)"
            )
        low, high = self.feature_low, self.feature_high
        if not low <= self.unsent_value <= high:
            raise InputError(
                f"unsent_value={shown(self.unsent_value)} cannot be used: expected a number between "
                f"feature_low={shown(low)} and feature_high={shown(high)}"
            )
        return self

"""The settings of Lumos; docs/papers/lumos.md, "Differences from the paper", says which values are the
paper's.
"""

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator

from graphfed.errors import InputError, shown
from graphfed.methods.common.released import FeatureBounds, NoiseSeed
from graphfed.methods.lumos.tree import FUSED_LAYERS
from graphfed.methods.parts import Inputs, Loss, Network, Protocols, Run, Selection, Sums, Training
from graphfed.methods.settings import Only, Unless, settings
from graphfed.privacy.bins import Accounting


@settings
class Encoding:
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
    rescale: Annotated[bool, Only("decode", "unbiased")] = Field(
        default=False,
        description="multiply by d / |bin|, so that the estimate is unbiased over the "
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


@settings
class Balancing:
    """How neighbours agree which of them trains on an edge."""

    balancer: Literal["local", "mcmc", "oracle", "greedy", "none"] = Field(
        default="local",
        description="how edges are assigned to clients: by exchanges between neighbours (local), by the "
        "paper's search (mcmc), exactly by a server that sees the graph (oracle), by the start of the "
        "paper's search (greedy), or each edge to both of its clients (none)",
    )
    balance_rounds: Annotated[int, Only("balancer", "local")] = Field(
        default=1000,
        ge=0,
        description="maximal number of rounds in which an edge moves to a neighbour whose workload is "
        "smaller by 2",
    )
    shuffle_rounds: Annotated[int, Only("balancer", "local")] = Field(
        default=20, ge=0, description="number of rounds after these, in which a smaller workload is enough"
    )
    mcmc_steps: Annotated[int, Only("balancer", "mcmc")] = Field(
        default=1000, ge=0, description="steps of the search"
    )
    temperature: Annotated[float, Only("balancer", "mcmc")] = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="temperature of the search (the paper: 1)"
    )
    acceptance: Annotated[Literal["hidden", "opened"], Only("balancer", "mcmc")] = Field(
        default="hidden",
        description="what two clients learn about their workloads in a step: only whether the step is "
        "accepted, or both numbers (as in the paper)",
    )
    compare_again: Annotated[Literal["changed", "all"], Only("balancer", "local", "mcmc")] = Field(
        default="changed",
        description="which pairs compare again: those with a changed workload, or all (as in the paper)",
    )
    fill_trees: Annotated[bool, Unless("balancer", "none")] = Field(
        default=False,
        description="after balancing, let every client take edges of its neighbours into its tree too, at "
        "random, until it has as many as the client with the most; the largest workload stays, and such an "
        "edge is in both trees",
    )
    degree_bits: Annotated[int, Unless("balancer", "none")] = Field(
        default=12, ge=1, le=31, description="number of bits that hold every degree; public"
    )

    @property
    def level_bits(self) -> int:
        """Number of bits that hold the rounded logarithm of every degree."""
        most = torch.tensor(float(2**self.degree_bits - 1), dtype=torch.float64)
        return max(1, int(most.log().round()).bit_length())


@settings
class Trees:
    """The trees on which clients train."""

    virtual_nodes: bool = Field(
        default=True, description="use trees with virtual nodes; if false, each client's neighbourhood"
    )
    trainer: Annotated[
        Literal["fused", "general"], Only("virtual_nodes", True), Only("layers", *range(1, FUSED_LAYERS + 1))
    ] = Field(default="fused", description="compute leaves pair by pair, or on one graph; both are exact")


@settings
class Links:
    """Link prediction."""

    negatives: int = Field(
        default=1, ge=1, description="link prediction: number of drawn pairs for each neighbour in a tree"
    )


@settings
class LumosConfig:
    """The settings of Lumos."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    sums: Sums = Sums()
    protocols: Protocols = Protocols()
    noise: NoiseSeed = NoiseSeed()
    bounds: FeatureBounds = FeatureBounds()
    encoding: Encoding = Encoding()
    balancing: Balancing = Balancing()
    trees: Trees = Trees()
    links: Links = Links()

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        low, high, value = self.bounds.feature_low, self.bounds.feature_high, self.encoding.unsent_value
        if not low <= value <= high:
            raise InputError(
                f"unsent_value={shown(value)} cannot be used: expected a number between "
                f"feature_low={shown(low)} and feature_high={shown(high)}"
            )
        return self

"""The settings of FedGraph."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.errors import InputError, shown
from graphfed.methods import config as groups
from graphfed.methods.config import PlaintextOnly


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FedGraphConfig(
    groups.ServerOptimizerSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClientStateSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of FedGraph."""

    plaintext_only: ClassVar = (
        PlaintextOnly(
            "aggregation",
            "policy",
            "ddpg",
            "the policy observes every client's weights, which the server must read",
        ),
    )
    policy: Literal["full", "constant", "graphsage", "fastgcn", "balanced", "ddpg"] = Field(
        default="full",
        description="how much is sampled: everything (full), one probability for every neighbour (constant), "
        "a number of neighbours (graphsage), a number of nodes of a layer (fastgcn), as many training nodes "
        "of each client as fit in the same time (balanced), or by a policy that `graphfed policy` has "
        "learned (ddpg)",
    )
    policy_file: str | None = Field(
        default=None, description="the file of the learned policy, at the server, for policy=ddpg"
    )
    probability: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="sampling probability of a neighbour, in every layer, for policy=constant",
    )
    batch: int = Field(
        default=256,
        ge=1,
        description="largest number of a client's training nodes in a step, for policy=constant, graphsage "
        "and fastgcn",
    )
    batch_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="number of a client's training nodes in a step, as a fraction of its training nodes, for "
        "policy=constant; none: as many as batch says",
    )
    fan_out: int = Field(
        default=25, ge=1, description="largest number of neighbours in the last layer, for policy=graphsage"
    )
    inner_fan_out: int = Field(
        default=10, ge=1, description="largest number of neighbours in the other layers, for policy=graphsage"
    )
    layer_size: int = Field(
        default=256, ge=1, description="number of draws of each client and layer, for policy=fastgcn"
    )
    round_time: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="duration of a round for policy=balanced, from 0, one training node at each client, "
        "to 1, all training nodes, with all requests answered; none: the duration and the share of requests "
        "to slow clients that promise the shortest training, by the measured seconds",
    )
    clock: Literal["modelled", "wall"] = Field(
        default="modelled",
        description="the seconds that policy=balanced decides by: those of the time model (modelled), or "
        "those that every client measures while it computes and sends (wall), which needs a process for "
        "each client",
    )
    estimator: Literal["ratio", "horvitz_thompson"] = Field(
        default="ratio",
        description="weight of a sampled neighbour: the number of neighbours over that of sampled ones, as "
        "in the paper (ratio), or 1 over the sampling probability (horvitz_thompson)",
    )
    sent_embeddings: Literal["hidden", "all", "none"] = Field(
        default="hidden",
        description="which embeddings a client sends to clients that have neighbours of its nodes: hidden, "
        "those of the second and later layers; all, those of the first layer too, which the paper calls "
        "allShare; none, which the paper calls nonShare",
    )
    refresh: Literal["step", "round"] = Field(
        default="step",
        description="when samples are drawn and embeddings are sent: in every local step, or once in a round",
    )
    first_degrees: Literal["all", "internal"] = Field(
        default="internal",
        description="degrees of the first layer's adjacency: of internal edges only, which the first layer "
        "sums over (internal), or of all edges, as in the paper (all), which scales nodes with many remote "
        "neighbours down",
    )
    speed: float = Field(
        default=1e9,
        gt=0,
        allow_inf_nan=False,
        description="time model: median of the clients' floating-point operations per second",
    )
    bandwidth: float = Field(
        default=1.25e8,
        gt=0,
        allow_inf_nan=False,
        description="time model: median of the clients' bytes per second",
    )
    spread: float = Field(
        default=2.0,
        ge=1,
        allow_inf_nan=False,
        description="time model: the factor by which the fastest client exceeds the median speed and "
        "bandwidth, and by which the slowest falls below them",
    )

    @model_validator(mode="after")
    def _check_policy_file(self) -> "FedGraphConfig":
        if self.policy == "ddpg" and self.policy_file is None:
            raise InputError(
                "policy=ddpg cannot be used without policy_file, the file of a learned policy; learn one "
                "with `graphfed policy`, or use policy=full"
            )
        if self.policy != "ddpg" and self.policy_file is not None:
            raise InputError(
                f"policy_file={shown(self.policy_file)} cannot be used with policy={self.policy}, which is "
                "not learned: expected none; set policy=ddpg, or leave it out"
            )
        return self

    @property
    def at_server(self) -> bool:
        """Whether the optimiser runs at the server; a learned policy observes every client's own weights."""
        return self.policy != "ddpg" and self.asks_for_server

    @property
    def measures_seconds(self) -> bool:
        """Whether clients send the server the seconds that they measure."""
        return self.policy == "balanced" and self.clock == "wall"

    @property
    def limits_requests(self) -> bool:
        """Whether the server also decides how many requests each client answers."""
        return self.policy == "balanced" and self.round_time is None

    @property
    def sampler(self) -> str:
        """The sampler that uses a decision's amounts (`client_graphs.sample_neighbours`)."""
        kinds = {"graphsage": "fan_out", "fastgcn": "importance"}
        return kinds.get(self.policy, "independent" if self.estimator == "ratio" else "independent_ht")

    def sends_embeddings(self, layer: int) -> bool:
        """Return whether the embeddings that enter a layer are sent, so that it sums over remote neighbours.

        Args:
            layer: The number of the layer, from 0.
        """
        return self.sent_embeddings == "all" or (self.sent_embeddings == "hidden" and layer > 0)

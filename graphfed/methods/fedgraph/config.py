"""The settings of FedGraph."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.errors import InputError, shown
from graphfed.methods import config as groups
from graphfed.methods.config import PlaintextOnly
from graphfed.methods.fedgraph.sampling_policies import LEARNED

__all__ = ["FedGraphConfig"]


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
            "what it decides by is every client's weights, which the server must read",
        ),
    )
    policy: Literal["full", "constant", "graphsage", "fastgcn", "ddpg", "bandit"] = Field(
        default="full",
        description="how much is sampled: nothing is left out, neighbours with one chance, so many "
        "neighbours, so many nodes of a layer; or as a policy says that `graphfed policy` has learned",
    )
    policy_file: str | None = Field(
        default=None, description="of policy=ddpg or bandit: the file, at the server, of what was learned"
    )
    probability: float = Field(
        default=0.5, gt=0, le=1, description="of policy=constant: chance of a neighbour, in every layer"
    )
    batch: int = Field(
        default=256,
        ge=1,
        description="of policy=constant, graphsage and fastgcn: training nodes of a client in a step, at "
        "most",
    )
    fan_out: int = Field(
        default=25, ge=1, description="of policy=graphsage: neighbours in the last layer, at most"
    )
    inner_fan_out: int = Field(
        default=10, ge=1, description="of policy=graphsage: neighbours in the other layers, at most"
    )
    layer_size: int = Field(
        default=256, ge=1, description="of policy=fastgcn: draws of each client and layer"
    )
    estimator: Literal["ratio", "horvitz_thompson"] = Field(
        default="ratio",
        description="weight of a sampled neighbour: all neighbours over those sampled, as in the paper, or "
        "one over its chance",
    )
    sent_embeddings: Literal["hidden", "all", "none"] = Field(
        default="hidden",
        description="which embeddings a client sends to clients that have neighbours of its nodes: hidden, "
        "those of the second and later layers; all, those of the first layer too, which the paper calls "
        "allShare; none, which the paper calls nonShare",
    )
    refresh: Literal["step", "round"] = Field(
        default="step",
        description="when samples are drawn and embeddings cross: in every local step, or once in a round",
    )
    first_degrees: Literal["all", "internal"] = Field(
        default="internal",
        description="degrees of the first layer's adjacency: of the edges that it sums over, or with those "
        "to other clients (the paper), which scales nodes down where most neighbours are elsewhere",
    )
    speed: float = Field(
        default=1e9,
        gt=0,
        allow_inf_nan=False,
        description="of the time model: floating-point operations a second of a client, at the median",
    )
    bandwidth: float = Field(
        default=1.25e8,
        gt=0,
        allow_inf_nan=False,
        description="of the time model: bytes a second of a client, at the median",
    )
    spread: float = Field(
        default=2.0,
        ge=1,
        allow_inf_nan=False,
        description="of the time model: the fastest client has so many times the median speed and bandwidth, "
        "the slowest so many times less",
    )

    @model_validator(mode="after")
    def _file_of_a_policy(self) -> "FedGraphConfig":
        if self.policy in LEARNED and self.policy_file is None:
            raise InputError(
                f"policy={self.policy} cannot be used without policy_file, the file of what was learned; "
                f"learn one with `graphfed policy {self.policy}`, or use policy=full"
            )
        if self.policy not in LEARNED and self.policy_file is not None:
            raise InputError(
                f"policy_file={shown(self.policy_file)} cannot be used with policy={self.policy}, which is "
                "not learned: expected none; set policy=ddpg or bandit, or leave it out"
            )
        return self

    @property
    def at_server(self) -> bool:
        """Whether the optimiser runs at the server; a learned policy observes every client's own weights."""
        return self.policy != "ddpg" and self.asks_for_server

    @property
    def sampler(self) -> str:
        """The sampler of a decision's amounts (`silos.choose`)."""
        kinds = {"graphsage": "fan_out", "fastgcn": "importance"}
        return kinds.get(self.policy, "chance" if self.estimator == "ratio" else "chance_ht")

    def sends_embeddings(self, layer: int) -> bool:
        """Return whether the embeddings of a layer are sent, so that it sees neighbours at other clients."""
        return self.sent_embeddings == "all" or (self.sent_embeddings == "hidden" and layer > 0)

"""The settings of FedGAT."""

from functools import cache
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.errors import InputError
from graphfed.methods import config as groups
from graphfed.methods.baselines.fedadam import ServerAdamSettings
from graphfed.methods.baselines.fedprox import ProximalSettings
from graphfed.methods.common.aggregation_rules import RuleSettings
from graphfed.methods.common.released import NoiseSettings
from graphfed.methods.config import PlaintextOnly, SamplingSettings
from graphfed.methods.fedgat.polynomial_gat import Score, polynomial_gat
from graphfed.nn.backbones import Backbone

__all__ = ["AnyFedGATConfig", "FedGATConfig", "FedGATLdpConfig", "FedGATSettings", "heads_of"]


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FedGATSettings:
    """The message before training, and the network that it is for."""

    degree: int = Field(default=16, ge=2, le=64, description="degree p of the polynomial of a score")
    domain: float = Field(
        default=4.0,
        gt=0,
        allow_inf_nan=False,
        description="scores between plus and minus this are approximated",
    )
    psi: Literal["smooth", "leaky_relu"] = Field(
        default="smooth", description="LeakyReLU of the score, with its kink smoothed or as it is"
    )
    score: Literal["exp", "plain"] = Field(
        default="exp", description="what is approximated: exp(psi(x)), or psi(x) as in the authors' program"
    )
    zeroth: Literal["half", "doubled"] = Field(
        default="half", description="the moments of order 0: halved, as is right, or as printed"
    )
    attention: Literal["tied", "free"] = Field(
        default="tied", description="vectors of the scores: W a, as in GAT, or weights of their own"
    )
    form: Literal["vector", "matrix"] = Field(
        default="vector", description="the message before training: vectors (Appendix F) or matrices"
    )
    evaluation: Literal["message", "direct"] = Field(
        default="message",
        description="the first layer from the message; direct: from the features that it is made of, faster, "
        "a simulation in one process with the bytes of the message",
    )
    drop_single: bool = Field(
        default=False,
        description="a node with one neighbour elsewhere does without it, as in the paper; that protects "
        "nothing, since the features of any number of neighbours can be worked out from the message",
    )
    max_neighbours: int | None = Field(
        default=None,
        ge=1,
        description="a node with more neighbours keeps that many, drawn by its id; none: it keeps all",
    )
    later: Literal["hops", "exchange"] = Field(
        default="hops",
        description="the layers after the first: from the messages of all nodes within L - 1 hops, or "
        "from embeddings of neighbours elsewhere, which cross in every round, as in the paper",
    )

    @property
    def architecture(self) -> str:
        return "gat"

    @property
    def polynomial(self) -> Score:
        return Score(self.psi, self.score == "exp", self.degree, self.domain, self.zeroth == "doubled")

    @property
    def network(self) -> Backbone:
        return _network(self.polynomial, self.attention == "tied")

    @model_validator(mode="after")
    def _every_client_exchanges(self) -> Self:
        config: object = self
        assert isinstance(config, SamplingSettings)
        if self.later == "exchange" and config.fraction < 1:
            raise InputError(
                "later=exchange needs every client in every round, because the others use its embeddings; "
                f"fraction must be 1, got {config.fraction}: leave one of them out"
            )
        return self


@cache
def _network(score: Score, tied: bool) -> Backbone:
    return polynomial_gat(score, tied)


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FedGATConfig(
    FedGATSettings,
    RuleSettings,
    ProximalSettings,
    ServerAdamSettings,
    groups.ServerOptimizerSettings,
    groups.SamplingSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClientStateSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of FedGAT."""

    plaintext_only: ClassVar = (
        PlaintextOnly(
            "exchange",
            "later",
            "exchange",
            "the server would read embeddings of the features that are hidden from it",
        ),
        PlaintextOnly("exchange", "form", "matrix", "what is encrypted is the message of vectors"),
        PlaintextOnly("exchange", "evaluation", "direct", "what is encrypted is the message of vectors"),
    )

    exchange: Literal["plaintext", "encrypted"] = Field(
        default="plaintext",
        description="the features before training: read by the server, or multiplied by it under encryption",
    )


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FedGATLdpConfig(
    NoiseSettings,
    FedGATSettings,
    RuleSettings,
    ProximalSettings,
    ServerAdamSettings,
    groups.ServerOptimizerSettings,
    groups.SamplingSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClientStateSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of FedGAT on features that were noised at their clients."""

    epsilon: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="privacy budget of a node's features"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="delta of that budget")
    k_x: int = Field(default=8, ge=0, description="steps of propagation on noised features")


#: What the functions of both methods take.
AnyFedGATConfig = FedGATConfig | FedGATLdpConfig


def heads_of(config: AnyFedGATConfig) -> int:
    """Of the first layer."""
    return config.heads if config.layers > 1 else 1

"""The settings of FedGAT."""

from functools import cache
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.errors import InputError
from graphfed.methods.base import PlaintextOnly
from graphfed.methods.common.aggregation_rules import RuleConfig
from graphfed.methods.fedgat.polynomial_gat import Score, polynomial_gat
from graphfed.nn.backbones import Backbone

__all__ = ["FedGATConfig", "heads_of"]


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FedGATConfig(RuleConfig):
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

    backbone: Literal["gcn", "gat", "sage", "maxpool"] = Field(default="gat", description="graph network")
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
        description="a vertex with one neighbour elsewhere does without it, as in the paper; that protects "
        "nothing, since the features of any number of neighbours can be worked out from the message",
    )
    most_neighbours: int | None = Field(
        default=None,
        ge=1,
        description="a vertex with more neighbours keeps that many, drawn by its id; none: it keeps all",
    )
    exchange: Literal["plaintext", "encrypted"] = Field(
        default="plaintext",
        description="the features before training: read by the server, or multiplied by it under encryption",
    )
    later: Literal["hops", "exchange"] = Field(
        default="hops",
        description="the layers after the first: from the messages of all vertices within L - 1 hops, or "
        "from embeddings of neighbours elsewhere, which cross in every round, as in the paper",
    )

    @property
    def polynomial(self) -> Score:
        return Score(self.psi, self.score == "exp", self.degree, self.domain, self.zeroth == "doubled")

    @property
    def network(self) -> Backbone:
        return _network(self.polynomial, self.attention == "tied")

    @model_validator(mode="after")
    def _only_gat(self) -> "FedGATConfig":
        if self.backbone != "gat":
            raise InputError(f"fedgat cannot use backbone={self.backbone!r}: it is GAT; leave it at 'gat'")
        return self

    @model_validator(mode="after")
    def _all_exchange(self) -> "FedGATConfig":
        if self.later == "exchange" and self.fraction < 1:
            raise InputError(
                "later=exchange needs every client in every round, because the others use its embeddings; "
                f"fraction must be 1, got {self.fraction}: leave one of them out"
            )
        return self


@cache
def _network(score: Score, tied: bool) -> Backbone:
    return polynomial_gat(score, tied)


def heads_of(config: FedGATConfig) -> int:
    """Of the first layer."""
    return config.heads if config.layers > 1 else 1

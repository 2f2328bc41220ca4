"""The settings of FedGAT and of FedGAT on noised features, next to those of all methods that average."""

from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from graphfed.methods.base import PlaintextOnly
from graphfed.methods.common.released import NoiseSeed
from graphfed.methods.fedgat.polynomial_gat import Score, polynomial_gat
from graphfed.methods.settings import Unless, settings
from graphfed.nn.backbones import Backbone


@settings
class PolynomialScores:
    """The scores of the first layer."""

    degree: int = Field(default=16, ge=2, le=64, description="degree p of the polynomial of a score")
    domain: float = Field(
        default=4.0,
        gt=0,
        allow_inf_nan=False,
        description="bound s of the scores: the polynomial is fitted on [-s, s]",
    )
    psi: Literal["smooth", "leaky_relu"] = Field(
        default="smooth",
        description="the function psi in the score: LeakyReLU with its kink smoothed (smooth), or LeakyReLU",
    )
    score: Literal["exp", "plain"] = Field(
        default="exp",
        description="function that is approximated: exp(psi(x)), or psi(x) as in the authors' program "
        "(plain)",
    )
    zeroth: Literal["half", "doubled"] = Field(
        default="half",
        description="moments of order 0: halved, as the identities require, or as the paper prints them "
        "(doubled)",
    )
    attention: Literal["tied", "free"] = Field(
        default="tied", description="vectors of the scores: W a as in GAT (tied), or separate weights (free)"
    )

    @property
    def polynomial(self) -> Score:
        """The score function and its polynomial."""
        return Score(self.psi, self.score == "exp", self.degree, self.domain, self.zeroth == "doubled")

    @property
    def kernel(self) -> Backbone:
        """The network: GAT with polynomial scores in the first layer."""
        return _kernel(self.polynomial, self.attention == "tied")


@cache
def _kernel(score: Score, tied: bool) -> Backbone:
    return polynomial_gat(score, tied)


@settings
class MomentMessage:
    """The message before training."""

    form: Literal["vector", "matrix"] = Field(
        default="vector",
        description="form of the message before training: vectors (Appendix F of the paper) or matrices",
    )
    evaluation: Literal["message", "direct"] = Field(
        default="message",
        description="how clients compute the first layer: from the message, or from the neighbours' "
        "features (direct); direct is a faster simulation in one process, which counts the bytes of the "
        "message",
    )
    later: Annotated[Literal["hops", "exchange"], Unless("layers", 1)] = Field(
        default="hops",
        description="how clients compute the layers after the first: from the messages of all nodes "
        "within L - 1 hops (hops), or from embeddings of remote neighbours, which are sent in every "
        "round, as in the paper",
    )


@settings
class KeptEdges:
    """The edges that the model uses."""

    drop_single: bool = Field(
        default=False,
        description="drop the remote neighbour of each node that has exactly one, as in the paper; this "
        "does not protect it, because a client can compute the features of all neighbours from the "
        "message",
    )
    max_neighbours: int | None = Field(
        default=None,
        ge=1,
        description="most neighbours of a node, drawn by the nodes' ids; none: a node keeps all neighbours",
    )


@settings
class Moments:
    """The exchange of FedGAT."""

    message: MomentMessage = MomentMessage()
    edges: KeptEdges = KeptEdges()
    exchange: Literal["plaintext", "encrypted"] = Field(
        default="plaintext",
        description="features before training: plaintext at the server, or encrypted, so that the server "
        "computes with ciphertexts",
    )


@settings
class NoisedFeatures:
    """The features that the clients have noised."""

    epsilon: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="privacy budget epsilon of one node's features"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="delta of the privacy budget")
    k_x: int = Field(default=8, ge=0, description="number of propagation steps on the noised features")


@settings
class NoisedMoments:
    """The exchange of FedGAT on noised features."""

    message: MomentMessage = MomentMessage()
    edges: KeptEdges = KeptEdges()
    features: NoisedFeatures = NoisedFeatures()
    noise: NoiseSeed = NoiseSeed()


#: The protections that settings of FedGAT's message exclude.
PLAINTEXT_ONLY = (
    PlaintextOnly(
        "exchange",
        "later",
        "exchange",
        "the server could read embeddings that are computed from the encrypted features",
    ),
    PlaintextOnly("exchange", "form", "matrix", "only the vector form of the message can be encrypted"),
    PlaintextOnly("exchange", "evaluation", "direct", "only the vector form of the message can be encrypted"),
)

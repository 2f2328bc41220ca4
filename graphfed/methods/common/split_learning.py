"""Functions that SAPGNN and PPGNN have in common.

Clients have local weights that are the same at all of them, and a predictor. Each client computes its loss
and its gradient; the gradients are summed over clients, and every client takes the same step.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, field_validator
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves
from graphfed.federation.secure.protection import needs_parts
from graphfed.federation.secure.shared_sum import ClientSum, protected_sum_at_clients
from graphfed.methods.base import Task
from graphfed.methods.common.entity_alignment import NamedCohort
from graphfed.methods.settings import settings
from graphfed.nn.layers import tiled
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.nn.tiles import Tiles, make_tiles
from graphfed.random import fold, glorot

Weights = dict[str, Tensor]


@settings
class Predictor:
    """The place of the last linear layer."""

    predictor: Literal["server", "clients"] = Field(
        default="clients",
        description="where the last linear layer is: at the clients, or at the server, which then learns the "
        "training labels from its gradients",
    )

    @field_validator("predictor", mode="before")
    @classmethod
    def _renamed(cls, predictor: Any) -> Any:
        # A setting of earlier versions, which old configuration files still have.
        if predictor == "holders":
            raise InputError("predictor=holders is now predictor=clients; use the new value")
        return predictor


def _summable(aggregation: Any) -> Any:
    if aggregation == "boolean":
        raise InputError(
            "aggregation=boolean cannot be used: boolean shares of several clients' gradients open to "
            "the exclusive or of the gradients, not to their sum; use aggregation=additive"
        )
    return aggregation


#: How gradients of clients' weights are summed.
LocalSum = Annotated[ClientSum, BeforeValidator(_summable)]


@settings
class GradientSums:
    """The sums of the gradients of weights that are at clients."""

    aggregation: LocalSum = Field(
        default="additive",
        description="how gradients of local weights are summed: by additive secret sharing among clients, or "
        "in plaintext at the server",
    )


# ---- weights that all clients have in common ---------------------------------------------------------------


def copy_weights(weights: Weights, clients: NamedCohort, aggregation: ClientSum) -> Weights:
    """Copy common weights [...] as leaves of the automatic differentiation.

    The result is a copy for each client, each [K_h, ...], if `aggregation` needs each client's own gradient;
    else one for the cohort, each [...], whose gradient is the sum over clients.
    """
    # [K_h, ...]; contiguous, because each copy collects a gradient of its own.
    if needs_parts(aggregation):
        count = clients.cohort.num_clients
        weights = {name: w.expand(count, *w.shape).contiguous() for name, w in weights.items()}
    leaves: Weights = as_leaves(weights)
    return leaves


def multiply_rows(
    h: Tensor | SparseMatrix, apart: SparseMatrix | None, weight: Tensor, tiles: Tiles | None
) -> Tensor:
    """Multiply rows h [n, d] by a weight [d, H] that all clients share, or by each client's copy, [K, d, H].

    If clients have copies, a sparse h needs `apart`, the same rows with a block of columns for each client,
    [n, K * d], and a dense h needs `tiles`, the rows of each client.
    """
    if weight.dim() == 2:
        return spmm(h, weight) if isinstance(h, SparseMatrix) else h @ weight
    # One client needs no grouping of its rows.
    if len(weight) == 1:
        return multiply_rows(h, None, weight[0], None)
    if isinstance(h, SparseMatrix):
        assert apart is not None
        # [K, d, H] as [K * d, H]: one product multiplies each row by its client's block.
        return spmm(apart, weight.flatten(0, 1))
    assert tiles is not None
    return tiled(h, weight, tiles)


def sum_gradients(fed: Federation, gradient: Located, aggregation: ClientSum, *, name: str) -> Located:
    """Sum the clients' gradients of the weights of `copy_weights`, so that every client has the sum.

    `name` starts the ledger's names of the transfers.

    Reference:
        SAPGNN, Eqs. (21) and (22).
    """
    # SAPGNN, Eq. (21) and Eq. (22)
    return protected_sum_at_clients(fed, gradient, aggregation, name=f"{name}_gradient")


# ---- the predictor and the loss ----------------------------------------------------------------------------


def initial_predictor(key: int, task: Task, hidden: int, predictor: Predictor) -> Weights:
    """Draw the predictor that is at the clients: predictor.weight [H, C] and predictor.bias [C].

    It is empty if predictor=server, where the server's last layer gives the logits.
    """
    # The server's last layer has the width C then, and there is nothing to draw here.
    if predictor.predictor == "server":
        return {}
    return {
        # From the clients' key and not from the run's seed, which the server knows.
        "predictor.weight": glorot(fold(key, "predictor"), hidden, task.num_classes),
        "predictor.bias": torch.zeros(task.num_classes),
    }


def predict_rows(h: Tensor, weights: Weights) -> Tensor:
    """Return the logits [n, C] of rows [n, H]; without a predictor, the rows are the logits.

    Reference:
        SAPGNN, Eq. (14), before the softmax.
    """
    if "predictor.weight" not in weights:
        return h
    return h @ weights["predictor.weight"] + weights["predictor.bias"]


@dataclass(frozen=True)
class LossRows:
    """The training rows of a pass through the network.

    Attributes:
        rows: Their places among the rows that the pass computes, [n].
        y: Their labels, [n].
        weight: The weights of their losses, [n].
        client: The client of each row, [n], whose copy of the predictor is used.
        tiles: The rows of each client; None for one client.
    """

    rows: Tensor
    y: Tensor
    weight: Tensor
    client: Tensor
    tiles: Tiles | None


def loss_rows(clients: NamedCohort, weight: Tensor, computed: Tensor, chosen: Tensor | None) -> LossRows:
    """Select the training rows of a pass, which computes the cohort's rows `computed` [n], ascending.

    `weight` [n_train] is that of each training row's loss; `chosen` [n_train] bool are the training rows that
    count in the pass, None for all.
    """
    cohort = clients.cohort
    train = cohort.rows("train")
    by_class = cohort.loss_weights(train)
    if by_class is not None:
        weight = weight * by_class
    if chosen is not None:
        train, weight = train[chosen], weight[chosen]
    client = cohort.client[train]
    # `computed` is ascending, so a binary search finds the place of each training row.
    tiles = make_tiles(client, cohort.num_clients) if cohort.num_clients > 1 else None
    return LossRows(torch.searchsorted(computed, train), cohort.y[train], weight, client, tiles)


def loss_share(h: Tensor, weights: Weights, loss: LossRows) -> Tensor:
    """Compute the cohort's part of the mean loss over all training nodes of the pass, (n_p / n) L_p.

    `h` are the rows that the pass computes, [n, H]; the weights are local, or each client's copy of them.

    Reference:
        SAPGNN, Eqs. (14) and (15); the weights are docs/papers/sapgnn.md, difference 3.
    """
    # Eq. (14) for the training rows only; other rows have no loss.
    logits = h.index_select(0, loss.rows)
    if "predictor.weight" in weights:
        bias = weights["predictor.bias"]
        logits = multiply_rows(logits, None, weights["predictor.weight"], loss.tiles)
        logits = logits + (bias if bias.dim() == 1 else bias.index_select(0, loss.client))
    # SAPGNN, Eq. (15), weighted so that the sum over clients is the mean over nodes
    return (cross_entropy(logits, loss.y, reduction="none") * loss.weight).sum()

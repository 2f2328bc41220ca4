"""What split-learning methods share: copies of common weights for every holder, the predictor and the loss at
the holders, and gradients that are summed over holders so that all take the same step."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves
from graphfed.federation.secure.protection import needs_parts
from graphfed.federation.secure.shared_sum import ClientSum, protected_sum_at_clients
from graphfed.methods.base import Task
from graphfed.methods.common.entity_alignment import Holders
from graphfed.methods.config import GradientSteps
from graphfed.nn.layers import tiled
from graphfed.nn.optim import AdamState, init_state, optimizer_step
from graphfed.nn.sparse import SparseMatrix, SparseWeights, spmm
from graphfed.nn.tiles import Tiles, make_tiles
from graphfed.random import fold, glorot

__all__ = [
    "LossRows",
    "SplitSettings",
    "Weights",
    "copies",
    "fresh",
    "initial_predictor",
    "loss_rows",
    "loss_share",
    "predict_rows",
    "step",
    "summed",
    "times",
]

Weights = dict[str, Tensor]


@config_dataclass(frozen=True, config={"extra": "forbid"})
class SplitSettings:
    """The parts of a network that are at clients, and the sums of their gradients."""

    predictor: Literal["server", "holders"] = Field(
        default="holders",
        description="who has the last linear layer: with server, its gradients tell it the training labels",
    )
    aggregation: ClientSum = Field(
        default="additive",
        description="how local gradients are summed: by additive secret sharing, or in plaintext at the "
        "server",
    )

    @field_validator("aggregation", mode="before")
    @classmethod
    def _summable(cls, aggregation: Any) -> Any:
        if aggregation == "boolean":
            raise InputError(
                "aggregation=boolean cannot be used: boolean shares of several holders' gradients open to "
                "their exclusive or, not to their sum; use additive"
            )
        return aggregation


# ---- weights that all holders have in common ---------------------------------------------------------------


def copies(weights: Weights, holders: Holders, config: SplitSettings) -> Weights:
    """Common weights [...] as leaves: a copy for each holder [K_h, ...] where every holder's own gradient is
    needed, else one for the cohort, whose gradient is the sum."""
    if needs_parts(config.aggregation):
        count = holders.cohort.num_clients
        weights = {name: w.expand(count, *w.shape).contiguous() for name, w in weights.items()}
    leaves: Weights = as_leaves(weights)
    return leaves


def times(
    h: Tensor | SparseMatrix, apart: SparseMatrix | None, weight: Tensor, tiles: Tiles | None
) -> Tensor:
    """h W [n, H], where the weight [d, H] is all holders', or [K, d, H] each holder's own copy.

    apart: sparse h [n, d] with a block of columns for each client, [n, K * d]; tiles: the rows of each."""
    if weight.dim() == 2:
        return spmm(h, weight) if isinstance(h, SparseMatrix) else h @ weight
    if len(weight) == 1:
        return times(h, None, weight[0], None)
    if isinstance(h, SparseMatrix):
        assert apart is not None
        return spmm(apart, weight.flatten(0, 1))
    assert tiles is not None
    return tiled(h, weight, tiles)


def summed(fed: Federation, gradient: Located, config: SplitSettings, *, name: str) -> Located:
    """The sum of the holders' gradients, at every holder (SAPGNN, eqs. 21 and 22); gradient: of `copies`."""
    return protected_sum_at_clients(fed, gradient, config.aggregation, name=f"{name}_gradient")


def fresh(weights: dict[str, Any], config: GradientSteps) -> AdamState:
    return init_state(config.optimizer, _values(weights))


def step(
    weights: dict[str, Any], gradients: dict[str, Any], optimizer: AdamState, config: GradientSteps
) -> tuple[dict[str, Any], AdamState]:
    """The optimiser's step, the same wherever weights and gradients are."""
    values, optimizer = optimizer_step(
        config.optimizer, _values(weights), _values(gradients), optimizer, config.lr, config.weight_decay
    )
    stepped = {
        name: w.with_values(values[name]) if isinstance(w, SparseWeights) else values[name]
        for name, w in weights.items()
    }
    return stepped, optimizer


def _values(weights: dict[str, Any]) -> Weights:
    return {name: w.values if isinstance(w, SparseWeights) else w for name, w in weights.items()}


# ---- the predictor and the loss ----------------------------------------------------------------------------


def initial_predictor(key: int, task: Task, hidden: int, config: SplitSettings) -> Weights:
    """predictor.weight [H, C] and .bias [C]; nothing where the server's last layer gives the logits."""
    if config.predictor == "server":
        return {}
    return {
        "predictor.weight": glorot(fold(key, "predictor"), hidden, task.num_classes),
        "predictor.bias": torch.zeros(task.num_classes),
    }


def predict_rows(h: Tensor, weights: Weights) -> Tensor:
    """Logits [n, C] of rows [n, H]."""
    if "predictor.weight" not in weights:
        return h
    return h @ weights["predictor.weight"] + weights["predictor.bias"]


@dataclass(frozen=True)
class LossRows:
    """The training rows of a pass: rows [n] among those it computes, y [n], weight [n] of their losses;
    client [n] and tiles: whose predictor they meet, where holders' copies differ."""

    rows: Tensor
    y: Tensor
    weight: Tensor
    client: Tensor
    tiles: Tiles | None


def loss_rows(holders: Holders, weight: Tensor, computed: Tensor, chosen: Tensor | None) -> LossRows:
    """weight [n_train]: of the cohort's training rows; computed [n]: the cohort's rows of the pass,
    ascending; chosen [n_train] bool: the training rows that count in it (None: all)."""
    cohort = holders.cohort
    train = cohort.rows("train")
    by_class = cohort.loss_weights(train)
    if by_class is not None:
        weight = weight * by_class
    if chosen is not None:
        train, weight = train[chosen], weight[chosen]
    client = cohort.client[train]
    tiles = make_tiles(client, cohort.num_clients) if cohort.num_clients > 1 else None
    return LossRows(torch.searchsorted(computed, train), cohort.y[train], weight, client, tiles)


def loss_share(h: Tensor, weights: Weights, loss: LossRows) -> Tensor:
    """(n_p / n) L_p: the cohort's part of the mean loss over all training nodes of the pass; h [n, H]: the
    rows that it computes."""
    logits = h.index_select(0, loss.rows)
    if "predictor.weight" in weights:
        bias = weights["predictor.bias"]
        logits = times(logits, None, weights["predictor.weight"], loss.tiles)
        logits = logits + (bias if bias.dim() == 1 else bias.index_select(0, loss.client))
    return (cross_entropy(logits, loss.y, reduction="none") * loss.weight).sum()

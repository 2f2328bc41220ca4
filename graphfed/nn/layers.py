"""Linear maps and dropout on a cohort's rows, with shared weights or one set per client.

A weight is *shared* ([F, H], bias [H]) or *per client* ([K, F, H] or `SparseWeights`, bias [K, H]).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.nn.batch import Batch
from graphfed.nn.sparse import SparseMatrix, SparseWeights, spmm
from graphfed.nn.tiles import Tiles
from graphfed.random import bernoulli_entries, bernoulli_rows, fold, lane_probability

__all__ = ["Dropout", "add_bias", "linear", "per_row", "tiled"]

Weight = Tensor | SparseWeights


@dataclass(frozen=True)
class Dropout:
    """Inverted dropout with keyed draws: the mask of a row depends on `key`, the layer and the row's stable
    id only.

    p in [0, 1): the share of entries that become zero; the others are divided by the share that is kept."""

    p: float
    key: int

    def entries(self, x: SparseMatrix, words: Tensor, layer: int) -> SparseMatrix:
        """Dropout of a sparse matrix with entry words [E] touches stored entries only: zeros stay zero."""
        if self.p == 0:
            return x
        drop = bernoulli_entries(fold(self.key, layer), words, self.p)
        return x.with_values(x.values * _inverted(drop, self.p, x.dtype))

    def rows(self, x: Tensor, ids: Tensor, layer: int) -> Tensor:
        """Dropout of dense rows [N, H] with ids [N]."""
        if self.p == 0:
            return x
        drop = bernoulli_rows(fold(self.key, layer), ids, x.shape[1], self.p)
        return x * _inverted(drop, lane_probability(self.p), x.dtype)

    def edges(self, alpha: Tensor, words: Tensor, layer: int) -> Tensor:
        """Dropout of attention coefficients [heads, E] with edge words [E]."""
        if self.p == 0:
            return alpha
        drop = bernoulli_rows(fold(self.key, "attention", layer), words, alpha.shape[0], self.p).t()
        return alpha * _inverted(drop, lane_probability(self.p), alpha.dtype)


def _inverted(drop: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    return (~drop).to(dtype).div_(1 - p)


def linear(x: Tensor | SparseMatrix, weight: Weight, batch: Batch, layer: int) -> Tensor:
    """x W for the rows entering `layer`, each with its client's weights: [N_l, F] -> [N_l, H]."""
    if isinstance(x, SparseMatrix):
        return spmm(x, weight.values if isinstance(weight, SparseWeights) else weight)
    assert isinstance(weight, Tensor)
    if weight.dim() == 2:
        return x @ weight
    tiles = batch.tiles[layer]
    return x @ weight[0] if tiles is None else tiled(x, weight, tiles)


def tiled(x: Tensor, weight: Tensor, tiles: Tiles) -> Tensor:
    """x W_k for the rows [N, F] of every client k, sorted by client; weight [K, F, H] -> [N, H]."""
    padded = x.new_zeros(tiles.count * tiles.size, x.shape[1]).index_copy(0, tiles.slot, x)
    mine = weight if tiles.client is None else weight.index_select(0, tiles.client)
    product = torch.bmm(padded.view(tiles.count, tiles.size, -1), mine)
    return product.flatten(0, 1).index_select(0, tiles.slot)


def add_bias(x: Tensor, bias: Tensor, batch: Batch, layer: int) -> Tensor:
    """x + b for the rows leaving `layer`; bias [H] or [K, H]."""
    return x + per_row(bias, batch, layer + 1, 1)


def per_row(weight: Tensor, batch: Batch, layer: int, shared_dim: int) -> Tensor:
    """A weight for the rows entering `layer`: a shared one ([...] of `shared_dim` dimensions) broadcasts,
    per-client ones ([K, ...]) are looked up, [N_l, ...]."""
    if weight.dim() == shared_dim:
        return weight
    return weight[0] if batch.num_clients == 1 else weight.index_select(0, batch.client[layer])

"""Linear maps and dropout on a cohort's rows, with shared weights or one set per client.

A weight is *shared* ([F, H], bias [H]) or *per client* ([K, F, H] or `SparseWeights`, bias [K, H]). N_l is
the number of rows that enter layer l of a batch; the rows are sorted by client.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.nn.batch import Batch
from graphfed.nn.sparse import SparseMatrix, SparseWeights, spmm
from graphfed.nn.tiles import Tiles
from graphfed.random import bernoulli_entries, bernoulli_rows, fold, lane_probability

Weight = Tensor | SparseWeights


@dataclass(frozen=True)
class Dropout:
    """Inverted dropout with keyed draws.

    The mask of a row depends on the key, the layer and the row's stable id only, so it is the same in every
    placement of the clients.

    Attributes:
        p: Probability in [0, 1) that an entry becomes zero. Other entries are divided by the probability that
            an entry is kept.
        key: Key of the draws (`graphfed.random.fold`).
    """

    p: float
    key: int

    def entries(self, x: SparseMatrix, words: Tensor, layer: int) -> SparseMatrix:
        """Apply dropout to the stored entries of a sparse matrix.

        Args:
            x: The matrix [N, F] with E stored entries.
            words: [E] int64, one word for each stored entry (`graphfed.random.entry_words`).
            layer: Number of the layer that the matrix enters.

        Returns:
            The matrix [N, F] with the same pattern.
        """
        if self.p == 0:
            return x
        drop = bernoulli_entries(fold(self.key, layer), words, self.p)
        return x.with_values(x.values * _inverted(drop, self.p, x.dtype))

    def rows(self, x: Tensor, ids: Tensor, layer: int) -> Tensor:
        """Apply dropout to dense rows.

        Args:
            x: [N, H], dense rows that enter the layer.
            ids: [N] int64, the stable ids of the rows.
            layer: Number of the layer that the rows enter.

        Returns:
            [N, H].
        """
        if self.p == 0:
            return x
        # A draw of 16 bits has a probability near p; the rows are scaled by the one that it has, so the mean
        # stays.
        drop = bernoulli_rows(fold(self.key, layer), ids, x.shape[1], self.p)
        return x * _inverted(drop, lane_probability(self.p), x.dtype)

    def edges(self, alpha: Tensor, words: Tensor, layer: int) -> Tensor:
        """Apply dropout to attention coefficients.

        Args:
            alpha: [heads, E], the coefficient of each edge for every head.
            words: [E] int64, one word for each edge (`graphfed.random.entry_words`).
            layer: Number of the layer, so that each layer has its own draws.

        Returns:
            [heads, E].
        """
        if self.p == 0:
            return alpha
        drop = bernoulli_rows(fold(self.key, "attention", layer), words, alpha.shape[0], self.p).t()
        return alpha * _inverted(drop, lane_probability(self.p), alpha.dtype)


def _inverted(drop: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    return (~drop).to(dtype).div_(1 - p)


def drop_input(
    x: Tensor | SparseMatrix, batch: Batch, layer: int, dropout: Dropout | None
) -> Tensor | SparseMatrix:
    """Apply dropout to the rows that enter a layer; None: no dropout."""
    if dropout is None:
        return x
    if isinstance(x, SparseMatrix):
        assert batch.words is not None
        return dropout.entries(x, batch.words, layer)
    return dropout.rows(x, batch.ids[layer], layer)


def linear(x: Tensor | SparseMatrix, weight: Weight, batch: Batch, layer: int) -> Tensor:
    """Multiply each row that enters a layer by the weights of its client.

    Args:
        x: [N_l, F]. A sparse matrix with per-client weights has renumbered columns (`sparse.shift_columns`).
        weight: [F, H], [K, F, H], or `SparseWeights` if `x` is sparse and the weights are per client.
        batch: The batch of the rows; its tiles say which rows have which client's weights.
        layer: l, the number of the layer.

    Returns:
        x W, [N_l, H].
    """
    if isinstance(x, SparseMatrix):
        # The columns of x were renumbered to the rows of `values`, so one product serves all clients.
        return spmm(x, weight.values if isinstance(weight, SparseWeights) else weight)
    assert isinstance(weight, Tensor)
    if weight.dim() == 2:
        return x @ weight
    tiles = batch.tiles[layer]
    # Per-client weights without tiles: the cohort has one client.
    return x @ weight[0] if tiles is None else tiled(x, weight, tiles)


def tiled(x: Tensor, weight: Tensor, tiles: Tiles) -> Tensor:
    """Multiply the rows of each client by its weights, in one batched product.

    Args:
        x: [N, F], sorted by client as the tiles are.
        weight: [K, F, H], the weights of each client.
        tiles: The tiles of the N rows.

    Returns:
        x W_k for the rows of every client k, [N, H].
    """
    # [T * size, F], with zero rows as padding
    padded = x.new_zeros(tiles.count * tiles.size, x.shape[1]).index_copy(0, tiles.slot, x)
    tile_weight = weight if tiles.client is None else weight.index_select(0, tiles.client)
    # [T, size, F] x [T, F, H]
    product = torch.bmm(padded.view(tiles.count, tiles.size, -1), tile_weight)
    return product.flatten(0, 1).index_select(0, tiles.slot)


def add_bias(x: Tensor, bias: Tensor, batch: Batch, layer: int) -> Tensor:
    """Add the bias to the rows that a layer returns.

    Args:
        x: [N_{l+1}, H], the rows that layer l returns.
        bias: [H], or [K, H] with one bias per client.
        layer: l, the number of the layer.

    Returns:
        [N_{l+1}, H].
    """
    # The rows that layer l returns enter layer l + 1.
    return x + per_row(bias, batch, layer + 1, 1)


def per_row(weight: Tensor, batch: Batch, layer: int, shared_dim: int) -> Tensor:
    """Look up the weight of each row that enters a layer.

    Args:
        weight: [...] if shared, [K, ...] if per client.
        layer: l, the number of the layer.
        shared_dim: The number of dimensions of a shared weight.

    Returns:
        [N_l, ...] for per-client weights. A shared weight, or the weight of an only client, is returned
        without a dimension for rows: it broadcasts.
    """
    if weight.dim() == shared_dim:
        return weight
    return weight[0] if batch.num_clients == 1 else weight.index_select(0, batch.client[layer])

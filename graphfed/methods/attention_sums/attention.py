"""What a client computes in a layer of attention over the edges of all clients.

For one head, node i with the score a_i = att_dst . W h_i as a target, and node j with the score
c_j = att_src . W h_j as a source:

    e_ij = exp(LeakyReLU(a_i + c_j) - LeakyReLU(a_i))
    part_k(i) = sum over the neighbours j of i at client k of e_ij [W h_j, 1]

The last entry of a part is its part of the softmax's denominator. The client of i adds up the parts, its own
included, with i as a neighbour of itself, and divides: the result is that of `nn.backbones.attend`.

Stability: the softmax does not change if all scores of a node are shifted by the same number. Every client
shifts by LeakyReLU(a_i), the score of a neighbour with c_j = 0, which it can compute from a_i. LeakyReLU has
slopes between 0.2 and 1, so the exponent lies between c_j and 0.2 c_j whatever a_i is. Clients refuse
`|c_j| > LARGEST_SCORE`, so no exponential overflows and no denominator is 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from graphfed.errors import InputError
from graphfed.nn.backbones import Weights, dense, gat_output, per_head
from graphfed.nn.batch import Batch
from graphfed.nn.layers import Dropout, linear
from graphfed.nn.sparse import SparseMatrix, entry_sums, spmm, sums_by

#: LeakyReLU's slope below 0.
SLOPE = 0.2
#: The largest size of a source score c_j: exp(60) is 1e26, which is in the range of float32.
LARGEST_SCORE = 60.0


@dataclass(frozen=True, eq=False)
class Pattern:
    """Edges from the N rows of a cohort to M targets.

    Attributes:
        adjacency: [heads * M, heads * N]: one copy of the edges for each head, along the diagonal.
        words: [E] int64, the words of the attention's dropout, one for each entry of one copy.
    """

    adjacency: SparseMatrix
    words: Tensor


def transform(
    batch: Batch, weights: Weights, h: Tensor | SparseMatrix | None, dropout: Dropout | None, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute W h_j [N, heads * H], and every row's scores as a source and as a target, [N, heads] each.

    Args:
        batch: All rows of a cohort, N in every layer.
        weights: The weights of a GAT (`nn.backbones.gat_init`), shared or one set for each client.
        h: [N, F], the input of the layer; None for the features.

    Raises:
        InputError: A source score is larger than LARGEST_SCORE, or not a number.
    """
    # The draws are keyed by node ids, as in `nn.backbones`: the same in every placement.
    x = batch.x if h is None else h
    if dropout is not None:
        if isinstance(x, SparseMatrix):
            assert batch.words is not None
            x = dropout.entries(x, batch.words, layer)
        else:
            x = dropout.rows(x, batch.ids[layer], layer)
    # z_j = W h_j, then c_j = att_src . z_j and a_j = att_dst . z_j for each head
    z = linear(x, weights[f"layers.{layer}.weight"], batch, layer)
    source, target = (
        linear(z, per_head(dense(weights[f"layers.{layer}.{name}"])), batch, layer)
        for name in ("att_src", "att_dst")
    )
    largest = source.detach().abs()
    # Written so that NaN fails too.
    if not bool((largest <= LARGEST_SCORE).all()):
        raise InputError(
            f"a score of size {float(largest.max()):.3g} in layer {layer + 1} cannot be exponentiated: "
            f"expected at most {LARGEST_SCORE:g}; training has diverged, use a smaller learning rate, or "
            "features=unit"
        )
    return z, source, target


def neighbour_parts(
    pattern: Pattern, z: Tensor, source: Tensor, target: Tensor, dropout: Dropout | None, layer: int
) -> Tensor:
    """Sum e_ij [W h_j, 1] over the rows j that have an edge to each target i.

    Args:
        pattern: The edges from the N rows of z to the M targets.
        z: [N, heads * H], W h_j of the rows.
        source: [N, heads], the scores c_j of the rows.
        target: [M, heads], the scores a_i of the targets.
        dropout: Dropout of the attention; None for none.

    Returns:
        [M, heads * (H + 1)]; for each head the H numbers of the numerator, then the denominator.
    """
    (rows, heads), adjacency = target.shape, pattern.adjacency
    width = z.shape[1] // heads
    # Vectors over rows, columns and entries of the pattern's copies are ordered head by head.
    a = target.t().flatten()
    score = leaky_relu(entry_sums(adjacency, a, source.t().flatten()), SLOPE)
    # Eq. (3), shifted by LeakyReLU(a_i), which every contributor of i can compute without the others.
    e = (score - leaky_relu(a, SLOPE).index_select(0, adjacency.row)).exp()
    # Before dropout, which acts on normalised attention: it changes the numerator only.
    denominator = sums_by(adjacency.row, e, heads * rows)
    if dropout is not None:
        e = dropout.edges(e.view(heads, len(pattern.words)), pattern.words, layer).flatten()
    # [N, heads * H] to [heads * N, H], the order of the block diagonal's columns
    by_head = z.view(len(z), heads, width).transpose(0, 1).reshape(heads * len(z), width)
    numerator = spmm(adjacency, by_head, e)
    both = torch.cat([numerator, denominator[:, None]], 1)
    # [heads * M, H + 1] back to [M, heads * (H + 1)]
    return both.view(heads, rows, width + 1).transpose(0, 1).flatten(1)


def add_up(
    batch: Batch,
    weights: Weights,
    z: Tensor,
    source: Tensor,
    target: Tensor,
    remote: Tensor,
    dropout: Dropout | None,
    layer: int,
) -> Tensor:
    """Add the sums over local neighbours and of other clients, divide, and finish the layer.

    `remote` [N, heads * (H + 1)] are the sums over the neighbours at other clients, 0 where there are none.
    The result is the output after the activation, [N, heads * H]; of the last layer [N, H].
    """
    block, heads = batch.blocks[layer], source.shape[1]
    assert block is not None
    assert block.words is not None
    local = neighbour_parts(Pattern(block.adjacency, block.words), z, source, target, dropout, layer)
    # Eqs. (1) and (2): numerator and denominator are added up before the division.
    total = (local + remote).view(len(z), heads, z.shape[1] // heads + 1)
    # A node is its own neighbour, so the denominator is at least exp(-LARGEST_SCORE).
    means = total[..., :-1] / total[..., -1:]
    return gat_output(means.flatten(1), weights, batch, layer)

"""GCN and GAT on one undirected graph with tens of millions of edges, as flipping the bits of an adjacency
matrix makes them.

The graph is one CSR pattern with int32 indices. It is its own transpose, so gradients use the same rows and
nothing else of its size is stored. Attention has a number for every edge and head; it is computed for a part
of the rows at a time, and again in the backward pass. Weights and outputs are those of `nn.backbones`, except
that attention has no dropout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import elu, leaky_relu

from graphfed.nn.backbones import average_heads
from graphfed.nn.layers import Dropout

#: Entries of the adjacency matrix that attention processes at a time.
PIECE = 1 << 22


@dataclass(frozen=True, eq=False)
class SymmetricGraph:
    """A symmetric adjacency matrix with ones on its diagonal.

    Attributes:
        indptr: [N + 1] int64.
        indices: [E] int32, ascending in each row.
        ones: [E] in the dtype of the features.
        ids: [N] ids of the nodes, for dropout.
    """

    indptr: Tensor
    indices: Tensor
    ones: Tensor
    ids: Tensor

    @property
    def degree(self) -> Tensor:
        """Number of neighbours of every node, itself included, [N] int64."""
        return self.indptr.diff()

    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Divide the rows into parts with at most PIECE entries, or of one row.

        Yields:
            The rows, their indptr [n + 1] from 0 and their indices [e].
        """
        start, rows = 0, len(self.ids)
        while start < rows:
            limit = self.indptr[start] + PIECE
            stop = max(start + 1, int(torch.searchsorted(self.indptr, limit, right=True)) - 1)
            first, last = int(self.indptr[start]), int(self.indptr[stop])
            yield (
                slice(start, stop),
                self.indptr[start : stop + 1] - first,
                self.indices[first:last],
            )
            start = stop


def make_symmetric_graph(u: Tensor, v: Tensor, ids: Tensor, dtype: torch.dtype) -> SymmetricGraph:
    """Build the graph of pairs of nodes.

    Args:
        u: [E] int32 first node of each pair.
        v: [E] int32 second node; each pair once, without self-loops.
        ids: [N] ids of the nodes.
    """
    import scipy.sparse as sp

    n, device = len(ids), ids.device
    nodes = np.arange(n, dtype=np.int32)
    a, b = u.cpu().numpy(), v.cpu().numpy()
    row, column = np.concatenate([a, b, nodes]), np.concatenate([b, a, nodes])
    matrix = sp.coo_matrix((np.ones(len(row), dtype=np.int8), (row, column)), shape=(n, n)).tocsr()
    del row, column
    # The transpose is the same matrix, with sorted rows.
    matrix = matrix.T.tocsr()
    indices = torch.from_numpy(matrix.indices).int().to(device)
    indptr = torch.from_numpy(matrix.indptr).long().to(device)
    return SymmetricGraph(indptr, indices, torch.ones(len(indices), dtype=dtype, device=device), ids)


def _times(indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """Multiply a CSR matrix [n, N] by dense [N, H]; not differentiable."""
    shape = (len(indptr) - 1, len(dense))
    csr = torch.sparse_csr_tensor(indptr.int(), indices, values, shape, check_invariants=False)
    result: Tensor = csr @ dense
    return result


class _Sum(torch.autograd.Function):
    """Sum of h [N, H] over each node's neighbours and itself."""

    @staticmethod
    def forward(ctx: Any, graph: SymmetricGraph, h: Tensor) -> Tensor:
        ctx.graph = graph
        return _times(graph.indptr, graph.indices, graph.ones, h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        graph = ctx.graph
        return None, _times(graph.indptr, graph.indices, graph.ones, grad.contiguous())


def gcn(weights: dict[str, Tensor], graph: SymmetricGraph, x: Tensor, dropout: Dropout | None) -> Tensor:
    """Run `backbones.gcn_forward` on all nodes.

    Args:
        x: [N, F] features.
        dropout: Dropout of this round; None in evaluation.

    Returns:
        [N, C].
    """
    scale = graph.degree.to(x.dtype).rsqrt()[:, None]
    layers = _layers(weights)
    h = x
    for layer in range(layers):
        if dropout is not None:
            h = dropout.rows(h, graph.ids, layer)
        h = scale * _Sum.apply(graph, scale * (h @ weights[f"layers.{layer}.weight"]))  # type: ignore[no-untyped-call]
        h = h + weights[f"layers.{layer}.bias"]
        if layer < layers - 1:
            h = h.relu()
    return h


def _layers(weights: dict[str, Tensor]) -> int:
    return sum(name.endswith(".bias") for name in weights)


SLOPE = 0.2  # of GAT's leaky ReLU


class _Attention(torch.autograd.Function):
    """One head of attention.

    From z [N, H] and the scores target [N] and source [N] it computes out_i = sum_j alpha_ij z_j over the
    neighbours j of i and i itself, with alpha_ij = softmax_j(leaky_relu(target_i + source_j)).
    """

    @staticmethod
    def forward(ctx: Any, graph: SymmetricGraph, z: Tensor, target: Tensor, source: Tensor) -> Tensor:
        out, top, total = torch.empty_like(z), torch.empty_like(target), torch.empty_like(target)
        for rows, indptr, indices in graph.pieces():
            counts = indptr.diff()
            source_scores = source.index_select(0, indices)
            # The leaky ReLU is increasing, so the largest source gives the largest score of a row.
            largest_source = torch.segment_reduce(source_scores, "max", offsets=indptr, unsafe=True)
            top[rows] = leaky_relu(target[rows] + largest_source, SLOPE)
            score = leaky_relu(source_scores.add_(_spread(target[rows], counts)), SLOPE)
            weight = score.sub_(_spread(top[rows], counts)).exp_()
            total[rows] = torch.segment_reduce(weight, "sum", offsets=indptr, unsafe=True)
            out[rows] = _times(indptr, indices, weight, z) / total[rows, None]
        ctx.graph = graph
        ctx.save_for_backward(z, target, source, out, top, total)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, target, source, out, top, total = ctx.saved_tensors
        grad = grad.contiguous()
        mean_inner = (grad * out).sum(1)  # sum_j alpha_ij <grad_i, z_j>
        to_z, to_target, to_source = torch.empty_like(z), torch.zeros_like(target), torch.empty_like(source)
        # Row j of a part is now the source; its neighbours i are the targets to which it contributed.
        for rows, indptr, indices in ctx.graph.pieces():
            score = target.index_select(0, indices).add_(_spread(source[rows], indptr.diff()))
            slope = torch.where(score > 0, 1.0, SLOPE).to(score.dtype)
            alpha = leaky_relu(score, SLOPE).sub_(top.index_select(0, indices)).exp_()
            alpha = alpha.div_(total.index_select(0, indices))
            to_z[rows] = _times(indptr, indices, alpha, grad)
            # <z_j, grad_i> at every entry, then the gradients of the softmax and the leaky ReLU.
            csr = torch.sparse_csr_tensor(
                indptr.int(), indices, alpha, (len(indptr) - 1, len(z)), check_invariants=False
            )
            inner = torch.sparse.sampled_addmm(csr, z[rows], grad.t(), beta=0.0).values()
            to_score = inner.sub(mean_inner.index_select(0, indices)).mul_(alpha).mul_(slope)
            to_source[rows] = torch.segment_reduce(to_score, "sum", offsets=indptr, unsafe=True)
            to_target.index_add_(0, indices, to_score)
        return None, to_z, to_target, to_source


def _spread(values: Tensor, counts: Tensor) -> Tensor:
    """Repeat a row's value for each of its entries."""
    return torch.repeat_interleave(values, counts)


def gat(weights: dict[str, Tensor], graph: SymmetricGraph, x: Tensor, dropout: Dropout | None) -> Tensor:
    """Run `backbones.gat_forward` on all nodes, without dropout on the attention.

    Args:
        x: [N, F] features.
        dropout: Dropout of this round; None in evaluation.

    Returns:
        [N, C].
    """
    layers = _layers(weights)
    h = x
    for layer in range(layers):
        if dropout is not None:
            h = dropout.rows(h, graph.ids, layer)
        att_src, att_dst = weights[f"layers.{layer}.att_src"], weights[f"layers.{layer}.att_dst"]
        heads, width = att_src.shape
        z = (h @ weights[f"layers.{layer}.weight"]).view(-1, heads, width)
        source, target = (z * att_src).sum(2), (z * att_dst).sum(2)
        parts = [
            _Attention.apply(graph, z[:, k].contiguous(), target[:, k], source[:, k])  # type: ignore[no-untyped-call]
            for k in range(heads)
        ]
        bias = weights[f"layers.{layer}.bias"]
        h = average_heads(torch.cat(parts, 1), len(bias)) + bias
        if layer < layers - 1:
            h = elu(h)
    return h

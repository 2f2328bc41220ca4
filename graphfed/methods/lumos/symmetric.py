"""GCN and GAT on one large undirected graph: of tens of millions of edges, as flipping bits of an adjacency
matrix makes them.

The graph is one CSR pattern with int32 indices, and as it is its own transpose, nothing else of its size is
kept: a gradient goes back along the same rows. Attention, which has a number for every edge and head, is
worked out in pieces of rows and again on the way back. Weights are those of `nn.backbones`, and the outputs
too; only attention has no dropout of its own here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import elu, leaky_relu

from graphfed.nn.layers import Dropout

__all__ = ["SymmetricGraph", "gat", "gcn", "make_symmetric_graph"]

#: Entries of the adjacency that attention works on at once.
PIECE = 1 << 22


@dataclass(frozen=True, eq=False)
class SymmetricGraph:
    """A symmetric adjacency matrix with ones on its diagonal: indptr [N+1] int64, indices [E] int32 ascending
    in each row, ones [E] in the dtype of the features; ids [N] for dropout."""

    indptr: Tensor
    indices: Tensor
    ones: Tensor
    ids: Tensor

    @property
    def degree(self) -> Tensor:
        """Neighbours of every node, itself included, [N] int64."""
        return self.indptr.diff()

    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The rows in pieces of at most PIECE entries (at least one row each): the rows, their indptr [n+1]
        from 0 and their indices [e]."""
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
    """The graph of the pairs u, v [E] int32, each once and none a loop, on the nodes with ids [N]."""
    import scipy.sparse as sp

    n, device = len(ids), ids.device
    here = np.arange(n, dtype=np.int32)
    a, b = u.cpu().numpy(), v.cpu().numpy()
    row, column = np.concatenate([a, b, here]), np.concatenate([b, a, here])
    matrix = sp.coo_matrix((np.ones(len(row), dtype=np.int8), (row, column)), shape=(n, n)).tocsr()
    del row, column
    # Turning it over sorts every row, and gives the same matrix again.
    matrix = matrix.T.tocsr()
    indices = torch.from_numpy(matrix.indices).int().to(device)
    indptr = torch.from_numpy(matrix.indptr).long().to(device)
    return SymmetricGraph(indptr, indices, torch.ones(len(indices), dtype=dtype, device=device), ids)


def _times(indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """A CSR matrix [n, N] times dense [N, H]; not differentiable."""
    shape = (len(indptr) - 1, len(dense))
    csr = torch.sparse_csr_tensor(indptr.int(), indices, values, shape, check_invariants=False)
    result: Tensor = csr @ dense
    return result


class _Sum(torch.autograd.Function):
    """h [N, H] -> the sum over each node's neighbours and itself."""

    @staticmethod
    def forward(ctx: Any, graph: SymmetricGraph, h: Tensor) -> Tensor:
        ctx.graph = graph
        return _times(graph.indptr, graph.indices, graph.ones, h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        graph = ctx.graph
        return None, _times(graph.indptr, graph.indices, graph.ones, grad.contiguous())


def gcn(weights: dict[str, Tensor], graph: SymmetricGraph, x: Tensor, dropout: Dropout | None) -> Tensor:
    """`backbones.gcn_forward` for all nodes: x [N, F] -> [N, C]."""
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
    """One head: z [N, H], target [N] and source [N] scores -> out_i = sum_j alpha_ij z_j over the neighbours
    j of i and i itself, alpha_ij = softmax_j(leaky_relu(target_i + source_j))."""

    @staticmethod
    def forward(ctx: Any, graph: SymmetricGraph, z: Tensor, target: Tensor, source: Tensor) -> Tensor:
        out, top, total = torch.empty_like(z), torch.empty_like(target), torch.empty_like(target)
        for rows, indptr, indices in graph.pieces():
            counts = indptr.diff()
            near = source.index_select(0, indices)
            # The leaky ReLU keeps the order, so a row's largest score is that of its largest source.
            most = torch.segment_reduce(near, "max", offsets=indptr, unsafe=True)
            top[rows] = leaky_relu(target[rows] + most, SLOPE)
            score = leaky_relu(near.add_(_spread(target[rows], counts)), SLOPE)
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
        mean = (grad * out).sum(1)  # sum_j alpha_ij <grad_i, z_j>
        to_z, to_target, to_source = torch.empty_like(z), torch.zeros_like(target), torch.empty_like(source)
        # Row j of a piece is now the source, and its neighbours i are the targets it was summed at.
        for rows, indptr, indices in ctx.graph.pieces():
            score = target.index_select(0, indices).add_(_spread(source[rows], indptr.diff()))
            slope = torch.where(score > 0, 1.0, SLOPE).to(score.dtype)
            alpha = leaky_relu(score, SLOPE).sub_(top.index_select(0, indices)).exp_()
            alpha = alpha.div_(total.index_select(0, indices))
            to_z[rows] = _times(indptr, indices, alpha, grad)
            # <z_j, grad_i> at every entry, then the softmax and the leaky ReLU backwards.
            csr = torch.sparse_csr_tensor(
                indptr.int(), indices, alpha, (len(indptr) - 1, len(z)), check_invariants=False
            )
            inner = torch.sparse.sampled_addmm(csr, z[rows], grad.t(), beta=0.0).values()
            to_score = inner.sub(mean.index_select(0, indices)).mul_(alpha).mul_(slope)
            to_source[rows] = torch.segment_reduce(to_score, "sum", offsets=indptr, unsafe=True)
            to_target.index_add_(0, indices, to_score)
        return None, to_z, to_target, to_source


def _spread(values: Tensor, counts: Tensor) -> Tensor:
    """A row's value at each of its entries."""
    return torch.repeat_interleave(values, counts)


def gat(weights: dict[str, Tensor], graph: SymmetricGraph, x: Tensor, dropout: Dropout | None) -> Tensor:
    """`backbones.gat_forward` for all nodes, without dropout on the attention: x [N, F] -> [N, C]."""
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
        h = torch.cat(parts, 1) + weights[f"layers.{layer}.bias"]
        if layer < layers - 1:
            h = elu(h)
    return h

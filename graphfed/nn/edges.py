"""The directed edges of one graph, sorted by receiver, as the server's networks take them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphfed.nn.sparse import SparseMatrix, spmm

__all__ = ["Edges", "induced", "make_edges"]


@dataclass(frozen=True, eq=False)
class Edges:
    """receiver, sender [E] int64: the nodes of every edge, ascending by receiver and then by sender;
    weight [E] float32; num_nodes: V, those without edges included. Self loops are edges like others."""

    receiver: Tensor
    sender: Tensor
    weight: Tensor
    num_nodes: int

    @property
    def count(self) -> int:
        """E."""
        return len(self.receiver)

    def to(self, device: torch.device | str) -> "Edges":
        """The same edges on another device."""
        receiver, sender = self.receiver.to(device), self.sender.to(device)
        return Edges(receiver, sender, self.weight.to(device), self.num_nodes)

    def copies(self, count: int) -> "Edges":
        """The edges of `count` copies of the graph, one after another: node i of copy c is c V + i."""
        if count not in self._copies:
            shift = self.num_nodes * torch.arange(count, device=self.receiver.device)[:, None]
            receiver, sender = (self.receiver + shift).flatten(), (self.sender + shift).flatten()
            weight = self.weight.repeat(count)
            self._copies[count] = Edges(receiver, sender, weight, count * self.num_nodes)
        return self._copies[count]

    @cached_property
    def _copies(self) -> dict[int, "Edges"]:
        return {}

    def sum_by_receiver(self, values: Tensor) -> Tensor:
        """The sums of values [E, ...] over the edges into every node, [V, ...], in one order on every
        device. Differentiable."""
        return self._sums(self._by_receiver, values)

    def sum_by_sender(self, values: Tensor) -> Tensor:
        """The sums of values [E, ...] over the edges out of every node, [V, ...]."""
        return self._sums(self._by_sender, values)

    def max_by_receiver(self, values: Tensor) -> Tensor:
        """The largest of values [E, ...] over the edges into every node, [V, ...]; -inf without any. Not
        differentiable."""
        top = torch.segment_reduce(values.flatten(1), "max", offsets=self._by_receiver[0], unsafe=True)
        return top.view(-1, *values.shape[1:])

    def _sums(self, pattern: tuple[Tensor, Tensor], values: Tensor) -> Tensor:
        # A product with a sparse matrix of ones adds each node's edges in a row: no atomic additions.
        shape = (self.num_nodes, self.count)
        ones = values.new_ones(self.count, requires_grad=False)
        return spmm(SparseMatrix.from_csr(*pattern, ones, shape), values.flatten(1)).view(
            -1, *values.shape[1:]
        )

    @cached_property
    def _by_receiver(self) -> tuple[Tensor, Tensor]:
        return self._pattern(self.receiver)

    @cached_property
    def _by_sender(self) -> tuple[Tensor, Tensor]:
        return self._pattern(self.sender)

    def _pattern(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """CSR pointers [V+1] and the edges [E] of every node."""
        counts = torch.bincount(node, minlength=self.num_nodes)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), torch.argsort(node, stable=True)


def make_edges(adjacency: sp.csr_matrix) -> Edges:
    """The non-zero entries of an adjacency matrix [V, V]: from the row (sender) to the column (receiver)."""
    into = adjacency.T.tocsr()
    into.eliminate_zeros()
    into.sort_indices()
    receiver = np.repeat(np.arange(into.shape[0]), np.diff(into.indptr))
    receivers, senders = (torch.from_numpy(x.astype(np.int64)) for x in (receiver, into.indices))
    return Edges(receivers, senders, torch.from_numpy(into.data.astype(np.float32)), into.shape[0])


def induced(edges: Edges, keep: Tensor) -> Edges:
    """The edges between the nodes of `keep` [V] bool, renumbered in their order."""
    place = keep.long().cumsum(0) - 1
    inside = keep[edges.receiver] & keep[edges.sender]
    receiver, sender = place[edges.receiver[inside]], place[edges.sender[inside]]
    return Edges(receiver, sender, edges.weight[inside], int(keep.sum()))

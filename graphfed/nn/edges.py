"""The directed edges of one graph, sorted by receiver: the input of the networks that a server runs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphfed.nn.pattern import row_pointers
from graphfed.nn.sparse import SparseMatrix, spmm


@dataclass(frozen=True, eq=False)
class Edges:
    """The E directed edges of a graph with N nodes. A self loop is an edge like any other.

    Attributes:
        receiver: [E] int64, the node that each edge points to. Edges are sorted by receiver, then by sender.
        sender: [E] int64, the node that each edge starts from.
        weight: [E] float32.
        num_nodes: N, nodes without edges included.
    """

    receiver: Tensor
    sender: Tensor
    weight: Tensor
    num_nodes: int

    @property
    def count(self) -> int:
        """The number of edges, E."""
        return len(self.receiver)

    def to(self, device: torch.device | str) -> "Edges":
        """Move the edges to a device.

        Returns:
            The same edges on the device.
        """
        receiver, sender = self.receiver.to(device), self.sender.to(device)
        return Edges(receiver, sender, self.weight.to(device), self.num_nodes)

    def repeat(self, count: int) -> "Edges":
        """Return the edges of a graph that consists of copies of this one.

        The result is cached for each `count`.

        Returns:
            The edges, copy after copy. Node i of copy c has the number c N + i.
        """
        # A copy caches the orders of its edges, so steps with the same number of windows sort them once.
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
        """Sum values over the edges into each node. Differentiable.

        The order of the additions is the same on every device.

        Args:
            values: [E, ...], a value for each edge.

        Returns:
            [N, ...], zero for a node without incoming edges.
        """
        return self._sums(self._by_receiver, values)

    def sum_by_sender(self, values: Tensor) -> Tensor:
        """Sum values over the edges out of each node. Differentiable.

        Args:
            values: [E, ...], a value for each edge, in the order of the edges.

        Returns:
            [N, ...], zero for a node without outgoing edges.
        """
        return self._sums(self._by_sender, values)

    def max_by_receiver(self, values: Tensor) -> Tensor:
        """Take the elementwise maximum of values over the edges into each node. Not differentiable.

        Args:
            values: [E, ...], a value for each edge.

        Returns:
            [N, ...], -inf for a node without incoming edges.
        """
        top = torch.segment_reduce(values.flatten(1), "max", offsets=self._by_receiver[0], unsafe=True)
        return top.view(-1, *values.shape[1:])

    def _sums(self, pattern: tuple[Tensor, Tensor], values: Tensor) -> Tensor:
        # A product with a sparse matrix of ones adds each node's edges in order. Atomic additions would not.
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
        """CSR pointers [N+1], and the numbers of the edges [E], sorted by node."""
        # The matrix [N, E] of ones has the edges of a node as the columns of its row.
        return row_pointers(node, self.num_nodes), torch.argsort(node, stable=True)


def make_edges(adjacency: sp.csr_matrix) -> Edges:
    """Convert an adjacency matrix to edges.

    Args:
        adjacency: [N, N]. A non-zero entry (i, j) is an edge from sender i to receiver j.

    Returns:
        The edges.
    """
    # Row j of the transpose has the senders of the edges into j. `tocsr` copies, so that what follows does
    # not change the caller's matrix.
    into = adjacency.T.tocsr()
    into.eliminate_zeros()
    into.sort_indices()
    receiver = np.repeat(np.arange(into.shape[0]), np.diff(into.indptr))
    receivers, senders = (torch.from_numpy(x.astype(np.int64)) for x in (receiver, into.indices))
    return Edges(receivers, senders, torch.from_numpy(into.data.astype(np.float32)), into.shape[0])


def induce_subgraph(edges: Edges, keep: Tensor) -> Edges:
    """Return the edges of the subgraph that a set of nodes induces.

    Args:
        edges: The edges of the whole graph.
        keep: [N] bool, the nodes of the subgraph.

    Returns:
        The edges between these nodes, which are renumbered in their order.
    """
    # The new number of each kept node; that of another node is not used.
    number = keep.long().cumsum(0) - 1
    inside = keep[edges.receiver] & keep[edges.sender]
    receiver, sender = number[edges.receiver[inside]], number[edges.sender[inside]]
    return Edges(receiver, sender, edges.weight[inside], int(keep.sum()))

"""The tape: transfers in program order, so that gradients can cross them in reverse (design decision 4).

`Federation.backward` walks the records backwards. Before a record's received tensors are read, the pending roots at their
place are sent through autograd in one multi-root call; so a received tensor's gradient is complete when it is sent back, and
a chain of transfers costs one autograd pass per phase, not one per transfer. No double backward.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphfed.federation.ledger import Charge

__all__ = ["SERVER_END", "Pending", "Record", "Tape"]

#: An end of a message: the index of a host of clients, or the server.
SERVER_END = -1
Pair = tuple[int, int]


@dataclass(frozen=True)
class Record:
    """One transfer: for every message (source, destination) the floating tensors sent from here and received here.

    `pairs` are the messages whose sender wanted a gradient; each is answered with exactly one."""

    name: str
    pairs: tuple[Pair, ...]
    sent: dict[Pair, list[Tensor]]
    received: dict[Pair, list[Tensor]]
    charge: Charge


@dataclass
class Tape:
    records: list[Record] = field(default_factory=list)


class Pending:
    """Gradients waiting at each end to be sent through autograd together."""

    def __init__(self) -> None:
        self._roots: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    def add(self, end: int, root: Tensor, gradient: Tensor) -> None:
        if root.requires_grad:
            self._roots[end].append((root, gradient))

    def flush(self, end: int) -> None:
        """One backward pass over everything pending at `end`. The graph is kept: an earlier transfer may share it."""
        waiting = self._roots.pop(end, [])
        if waiting:
            roots, gradients = zip(*waiting, strict=True)
            torch.autograd.backward(roots, gradients, retain_graph=True)

    def flush_all(self) -> None:
        for end in list(self._roots):
            self.flush(end)

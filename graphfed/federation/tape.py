"""The tape: transfers in program order, so that gradients can be sent back over them in reverse.

`operations.backward` walks the records backwards. Before a record's received tensors are read, the pending
roots at their place are sent through autograd in one multi-root call; so a received tensor's gradient is
complete when it is sent back, and a chain of transfers costs one autograd pass per phase, not one per
transfer. No double backward.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphfed.federation.ledger import LedgerRecord
from graphfed.federation.link import Pair
from graphfed.federation.values import Located
from graphfed.federation.wrap import Wrapper

__all__ = ["CustomBackward", "Pending", "Record", "Tape"]


@dataclass(frozen=True)
class Record:
    """One transfer: of every message (source, destination), the tensors sent from here and received here
    whose sender wanted a gradient.

    `pairs` are the messages with such a tensor, each answered exactly once; `answers` are the ledger's
    records of the gradients; `wrap` goes around them; `key` names the messages that carry them."""

    key: str
    pairs: tuple[Pair, ...]
    sent: dict[Pair, list[Tensor]]
    received: dict[Pair, list[Tensor]]
    answers: tuple[LedgerRecord, ...]
    wrap: Wrapper | None


@dataclass(frozen=True)
class CustomBackward:
    """A value z that was made from x at another place, with a backward of its own: `back` is the program that
    brings the gradient of z to the place of x."""

    x: Located[Tensor]
    z: Located[Tensor]
    back: Callable[[Located[Tensor]], Located[Tensor]]


@dataclass
class Tape:
    """The records of one block. `spent`: the one backward pass has run."""

    records: list[Record | CustomBackward] = field(default_factory=list)
    spent: bool = False

    def close(self) -> None:
        """What was received becomes constant: a gradient that reached it later could not be sent back any
        more."""
        for record in self.records:
            received: Collection[Sequence[Tensor]]
            received = [record.z.parts] if isinstance(record, CustomBackward) else record.received.values()
            for tensors in received:
                for t in tensors:
                    t.requires_grad_(False)
        self.records.clear()


class Pending:
    """Gradients waiting at each end to be sent through autograd together."""

    def __init__(self) -> None:
        self._roots: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    def add(self, end: int, root: Tensor, gradient: Tensor) -> None:
        """Have `gradient` wait at `end` for the pass of its root (of the same shape)."""
        if root.requires_grad:
            self._roots[end].append((root, gradient))

    def flush(self, end: int) -> None:
        """One backward pass over everything pending at `end`. The graph is kept: an earlier transfer may
        share it."""
        waiting = self._roots.pop(end, [])
        if waiting:
            roots, gradients = zip(*waiting, strict=True)
            torch.autograd.backward(roots, gradients, retain_graph=True)

    def flush_all(self) -> None:
        """The last passes, at every end."""
        for end in list(self._roots):
            self.flush(end)

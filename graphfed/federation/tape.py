"""The tape: records transfers in program order, so that gradients can be sent back over them in reverse.

`operations.backward` walks the records backwards. Before it reads the gradients of a record's received
tensors, it runs autograd once for everything that waits at their participant. So the gradient of a received
tensor is complete when it is sent back, and a chain of transfers costs one autograd pass for each step, not
one for each transfer. There is no double backward.
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


@dataclass(frozen=True)
class Record:
    """One transfer: the tensors sent from here and received here whose sender wants a gradient.

    Attributes:
        key: What the messages with the gradients are called.
        pairs: The messages (sender, receiver) with such a tensor. Each is answered exactly once.
        sent: The tensors sent from here, by message.
        received: The tensors received here, by message.
        answers: The ledger's records of the gradients.
    """

    key: str
    pairs: tuple[Pair, ...]
    sent: dict[Pair, list[Tensor]]
    received: dict[Pair, list[Tensor]]
    answers: tuple[LedgerRecord, ...]
    wrap: Wrapper | None


@dataclass(frozen=True)
class CustomBackward:
    """A value computed from a value at another place, with its own backward pass.

    Attributes:
        x: The value it was computed from.
        z: The computed value.
        back: The program that computes the gradient of x, at its place, from the gradient of z.
    """

    x: Located[Tensor]
    z: Located[Tensor]
    back: Callable[[Located[Tensor]], Located[Tensor]]


@dataclass
class Tape:
    """The records of one block.

    Attributes:
        spent: Whether the one backward pass has run.
    """

    records: list[Record | CustomBackward] = field(default_factory=list)
    spent: bool = False

    def close(self) -> None:
        """Make received values constant: a gradient that reached them later could not be sent back."""
        for record in self.records:
            received: Collection[Sequence[Tensor]]
            received = [record.z.parts] if isinstance(record, CustomBackward) else record.received.values()
            for tensors in received:
                for t in tensors:
                    t.requires_grad_(False)
        self.records.clear()


class Pending:
    """Gradients that wait at each participant for the next autograd pass."""

    def __init__(self) -> None:
        self._roots: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    def add(self, participant: int, root: Tensor, gradient: Tensor) -> None:
        """Let the gradient of a root, of the root's shape, wait for the next pass at a participant."""
        if root.requires_grad:
            self._roots[participant].append((root, gradient))

    def flush(self, participant: int) -> None:
        """Run one autograd pass over everything that waits at a participant.

        The graph is kept, because an earlier transfer may share it.
        """
        waiting = self._roots.pop(participant, [])
        if waiting:
            roots, gradients = zip(*waiting, strict=True)
            # One pass over all roots: a graph that several of them share is walked once.
            torch.autograd.backward(roots, gradients, retain_graph=True)

    def flush_all(self) -> None:
        """Run the last passes, at every participant."""
        for participant in list(self._roots):
            self.flush(participant)

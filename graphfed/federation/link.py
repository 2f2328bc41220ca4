"""Messages between the participants of a transfer: passed on inside a process, sent as bytes over a link."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.errors import shown
from graphfed.federation.wire import WireError, decode, encode
from graphfed.nn.sparse import SparseMatrix

#: A participant of a transfer is a worker of clients, by its index, or the server, by this number.
SERVER_INDEX = -1
#: (sender, receiver) of a message: two participants.
Pair = tuple[int, int]


class Link(Protocol):
    """Sends messages between processes.

    A message is found by its key, so the order of arrival does not matter.

    Every process sends all its messages of a transfer before it receives any. So `send` must not wait for the
    receiver to call `recv`: two workers that exchange rows would wait for each other.
    """

    def send(self, to: int, key: str, message: bytes) -> None:
        """Send a message, without waiting for the receiver. The key is unique in the run."""
        ...

    def recv(self, sender: int, key: str) -> bytes:
        """Wait for a message."""
        ...


class TimedLink:
    """A link that counts in `waited` the seconds in which this process waits for messages."""

    def __init__(self, link: Link) -> None:
        self._link, self.waited = link, 0.0

    def send(self, to: int, key: str, message: bytes) -> None:
        self._link.send(to, key, message)

    def recv(self, sender: int, key: str) -> bytes:
        began = time.perf_counter()
        message = self._link.recv(sender, key)
        self.waited += time.perf_counter() - began
        return message


@dataclass(frozen=True)
class Message:
    """What one participant sends to another in a transfer: tensors, in dictionaries and tuples.

    Attributes:
        grad: For every floating tensor of the payload, in order, whether its sender wants a gradient. Empty
            if none does.
        dtypes: Under a wrapper, the dtype of every leaf before it was wrapped ("" for a leaf that was not
            wrapped).
    """

    payload: Any
    grad: tuple[bool, ...] = ()
    dtypes: tuple[str, ...] = ()


def deliver(
    messages: Mapping[Pair, Message],
    pairs: Sequence[Pair],
    key: str,
    *,
    link: Link | None,
    local: Sequence[int],
    device: torch.device,
    refusal: Callable[[int, str], Exception],
) -> dict[Pair, Message]:
    """Deliver messages: send those that go to other processes, and receive those that come from there.

    Args:
        messages: The messages sent from this process, by (sender, receiver).
        pairs: (sender, receiver) of all messages with a participant in this process.
        link: How to reach other processes (None: everything is in this one).
        refusal: Makes the error, for a sender and a reason, that is raised for bytes that are no message.

    Returns:
        The messages to participants in this process, by (sender, receiver).
    """
    if link is None:
        return {p: messages[p] for p in pairs}
    # Send everything first: two workers that exchange rows would otherwise wait for each other.
    for source, to in pairs:
        if source in local and to not in local:
            message = messages[source, to]
            text = encode(message.payload, grad=message.grad, dtypes=message.dtypes)
            link.send(to, f"{key}/{source}>{to}", text)
    arrived: dict[Pair, Message] = {}
    for source, to in pairs:
        if to not in local:
            continue
        if source in local:
            arrived[source, to] = messages[source, to]
        else:
            text = link.recv(source, f"{key}/{source}>{to}")
            try:
                arrived[source, to] = _open(text, device)
            except WireError as error:
                raise refusal(source, f"a message that cannot be read ({error})") from error
    return arrived


def _open(text: bytes, device: torch.device) -> Message:
    """Decode a message. What its header says of the payload must fit the payload."""
    payload, header = decode(text)
    # The header comes from another participant, so everything in it is checked before it is used.
    grad, dtypes = header.get("grad"), header.get("dtypes")
    if not isinstance(grad, list) or not all(isinstance(g, bool) for g in grad):
        raise WireError(f"the header says grad={shown(grad)} where a list of booleans is expected")
    if not isinstance(dtypes, list) or not all(d in ("", *pay.FLOATING) for d in dtypes):
        raise WireError(f"the header says dtypes={shown(dtypes)} where a list of floating dtypes is expected")
    if dtypes and len(dtypes) != len(pay.leaves(payload)):
        raise WireError(f"the header gives {len(dtypes)} dtypes for {len(pay.leaves(payload))} tensors")

    def move(x: Any) -> Any:
        return x.to(device) if isinstance(x, Tensor | SparseMatrix) else x

    return Message(pay.tree_map(move, payload), tuple(grad), tuple(dtypes))

"""Messages between the ends of a transfer: handed over inside a process, sent as checked bytes across a
link."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.federation.wire import WireError, decode, encode
from graphfed.nn.sparse import SparseMatrix

__all__ = ["SERVER_INDEX", "Link", "Message", "Pair", "deliver"]

#: An end of a message is the index of a worker of clients, or this: the server.
SERVER_INDEX = -1
#: (source end, destination end)
Pair = tuple[int, int]


class Link(Protocol):
    """Messages between processes. A message is found by its key, so the order of arrival does not matter.

    Every process sends all its messages of a transfer before it receives any: `send` must not wait for the
    receiver to call `recv`, or two workers that exchange rows wait for each other."""

    def send(self, to: int, key: str, message: bytes) -> None: ...

    def recv(self, sender: int, key: str) -> bytes: ...


@dataclass(frozen=True)
class Message:
    """What crosses from one end to another.

    grad: for every floating tensor of the payload (in order) whether its sender wants a gradient; empty for
    none. dtypes: under a wrapper, for every leaf its dtype before the wrapper ("": the leaf was not
    wrapped)."""

    payload: Any
    grad: tuple[bool, ...] = ()
    dtypes: tuple[str, ...] = ()


def deliver(
    messages: Mapping[Pair, Message],
    pairs: Sequence[Pair],
    key: str,
    *,
    link: Link | None,
    ends: Sequence[int],
    device: torch.device,
    refusal: Callable[[int, str], Exception],
) -> dict[Pair, Message]:
    """The messages of `pairs` whose destination is one of the `ends` here; `messages` are those sent from
    here.

    Raises what `refusal` gives for a sender and the reason, for bytes that are not a message."""
    if link is None:
        return {p: messages[p] for p in pairs}
    for source, to in pairs:
        if source in ends and to not in ends:
            message = messages[source, to]
            text = encode(message.payload, grad=message.grad, dtypes=message.dtypes)
            link.send(to, f"{key}/{source}>{to}", text)
    arrived: dict[Pair, Message] = {}
    for source, to in pairs:
        if to not in ends:
            continue
        if source in ends:
            arrived[source, to] = messages[source, to]
        else:
            text = link.recv(source, f"{key}/{source}>{to}")
            try:
                arrived[source, to] = _open(text, device)
            except WireError as error:
                raise refusal(source, f"what cannot be read ({error})") from error
    return arrived


def _open(text: bytes, device: torch.device) -> Message:
    """A message from its bytes; what its header says of the payload must fit the payload."""
    payload, header = decode(text)
    grad, dtypes = header.get("grad"), header.get("dtypes")
    if not isinstance(grad, list) or not all(isinstance(g, bool) for g in grad):
        raise WireError(f"the header says grad={grad!r} where a list of booleans is expected")
    if not isinstance(dtypes, list) or not all(d in ("", *pay.FLOATING) for d in dtypes):
        raise WireError(f"the header says dtypes={dtypes!r} where a list of floating dtypes is expected")
    if dtypes and len(dtypes) != len(pay.leaves(payload)):
        raise WireError(f"the header gives {len(dtypes)} dtypes for {len(pay.leaves(payload))} tensors")

    def move(x: Any) -> Any:
        return x.to(device) if isinstance(x, Tensor | SparseMatrix) else x

    return Message(pay.tree_map(move, payload), tuple(grad), tuple(dtypes))

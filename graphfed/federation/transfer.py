"""One payload transfer: its options, the messages of its payload, and the gradients that are sent back."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Required, TypedDict

import numpy as np
import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.errors import PlaceError, shown
from graphfed.federation.ledger import SIMULATED, Flow, LedgerRecord
from graphfed.federation.link import Message, Pair
from graphfed.federation.payload import Leaf, Payload, Rows
from graphfed.federation.values import ABSENT, Located
from graphfed.federation.wire import WireError
from graphfed.federation.wrap import Wrapper
from graphfed.nn.sparse import SparseMatrix, SparseWeights

#: A transfer's own rule for what another process sends. It gets a worker's payload, and the counts that the
#: worker's clients have declared, [K_h] by part of the split ({} if the run did not ask). It returns what is
#: wrong, as a continuation of "it sent", or an empty string.
Accept = Callable[[Any, Mapping[str, np.ndarray]], str]


@dataclass(frozen=True)
class TensorForm:
    """What a tensor of a payload looks like, where no example of it is at hand (see `Options.like`).

    Attributes:
        shape: Its shape, of rows that of one row; None for a size that only the sender knows.
    """

    dtype: torch.dtype
    shape: tuple[int | None, ...] = ()


def form_of(x: Leaf) -> Any:
    """Return the `TensorForm` of a tensor; of sparse weights that of one client's."""
    return TensorForm(x.dtype, tuple(x.part_shape if isinstance(x, SparseWeights) else x.shape))


class Options(TypedDict, total=False):
    """The options of every payload transfer. Only the name is required; `Transfer` has the defaults.

    Attributes:
        name: What the transfer is called on the ledger.
        protection: How the payload is hidden, as the ledger records it.
        grad: Whether gradients are sent back the same way. If not, what is received is constant.
        wrap: What is put around the payload: noise, compression or encryption (see `wrap.Wrapper`).
        finite: Whether numbers that are not finite are refused if another process sends them.
        accept: This transfer's own rule for what other processes send.
        like: What the payload looks like where it arrives: a value at the receivers, or a payload in which
            each tensor may be a `TensorForm`. Of rows and of values of clients any number may arrive. Without
            it, what the server sends must look as in the first message of the transfer (or as
            `Federation.expect` says), and what clients send as most of them do.
    """

    name: Required[str]
    protection: str
    grad: bool
    wrap: Wrapper | None
    finite: bool
    accept: Accept | None
    like: "Located[Any] | TensorForm | Payload | None"


@dataclass(frozen=True)
class Ideal:
    """What a simulated transfer stands for.

    Attributes:
        flow: The units that the real transfer would send, in its direction.
        shape: The shape of a unit.
        dtype: The dtype of a unit.
    """

    flow: Flow
    shape: list[int]
    dtype: torch.dtype


class Transfer(NamedTuple):
    """One payload transfer: its kind and flow on the ledger, and the caller's `Options`.

    It is a named tuple because one is made for every transfer, and a frozen dataclass takes three times as
    long.

    Attributes:
        leading: Whether the first dimension of the payload counts the units of the flow.
        ideal: What the ledger counts instead of the payload.
    """

    name: str
    kind: str
    flow: Flow
    protection: str = "plaintext"
    grad: bool = True
    wrap: Wrapper | None = None
    leading: bool = True
    ideal: Ideal | None = None
    finite: bool = True
    accept: Accept | None = None
    like: "Located[Any] | TensorForm | Payload | None" = None

    def example(self) -> Any:
        """Return a payload that looks like what arrives: the part of `like` in this process; None if there is
        none.
        """
        if not isinstance(self.like, Located):
            return self.like
        return next((part for part in self.like.parts if part is not ABSENT), None)

    def record_of(self, payload: Payload) -> LedgerRecord:
        """Make the ledger's record of the transfer, from the payload of one message. The others differ only
        in the number of units.
        """
        if self.ideal is not None:
            shape, dtype = self.ideal.shape, str(self.ideal.dtype).removeprefix("torch.")
            size = math.prod(shape) * self.ideal.dtype.itemsize
            return LedgerRecord(self.name, self.kind, dtype, shape, SIMULATED, self.ideal.flow, size)
        protection = self.protection
        if self.wrap is not None and self.wrap.protection is not None:
            protection = self.wrap.protection
        unit = pay.unit_of(payload, leading=self.leading)
        return LedgerRecord(self.name, self.kind, unit.dtype, unit.shape, protection, self.flow, unit.bytes)


def pack(payload: Payload, recording: bool, wrap: Wrapper | None, name: str) -> Message:
    """Make the message of a payload: detached, and encoded by the wrapper.

    Args:
        recording: Whether a tape records the transfer.
        name: The name of the transfer, for errors.

    Raises:
        PlaceError: If sparse rows require a gradient.
    """
    flags: tuple[bool, ...] = ()
    if recording:
        if any(isinstance(x, SparseMatrix) and x.values.requires_grad for x in pay.leaves(payload)):
            raise PlaceError(
                f"transfer {name!r}: sparse rows cannot have a gradient; send to_dense(), or use grad=False"
            )
        flags = tuple(t.requires_grad for t in pay.tensors_in(payload))
    # Autograd ends at the sender; the tape continues it with the answer of the receiver.
    payload = pay.detach(payload)
    if wrap is None:
        return Message(payload, flags)
    # The receiver needs the dtypes that the encoding hides.
    floats = [isinstance(x, Tensor) and x.is_floating_point() for x in pay.leaves(payload)]
    dtypes = tuple(
        pay.unit_of(x, leading=False).dtype if f else ""
        for x, f in zip(pay.leaves(payload), floats, strict=True)
    )
    encoded = pay.tree_map(lambda x: wrap.encode(x) if x.is_floating_point() else x, payload)
    return Message(encoded, flags, dtypes)


def unpack_arrived(message: Message, wrap: Wrapper | None) -> Any:
    """Unpack a message from another process, and check it.

    Raises:
        WireError: If it is not a payload of tensors in this wrapper. The text continues "it sent".
    """
    leaves = pay.leaves(message.payload)
    kinds = (Tensor,) if wrap is not None else (Tensor, SparseMatrix)
    if not all(isinstance(x, kinds) for x in leaves):
        raise WireError(f"something that is not a payload of tensors: {describe_value(message.payload)}")
    # Both sides agreed on the wrapper in the program, so another number of dtypes is another wrapper.
    if len(message.dtypes) != (0 if wrap is None else len(leaves)):
        raise WireError("a payload in another wrapper than the receiver's")
    try:
        payload = unpack(message, wrap)
    except Exception as error:  # a wrapper may raise anything for bytes that it did not encode
        raise WireError(f"a payload that its wrapper cannot decode ({type(error).__name__})") from error
    count = len(pay.floating_leaves(payload))
    if message.grad and len(message.grad) != count:
        raise WireError(f"{len(message.grad)} gradient flags for {count} tensors")
    return payload


def unpack(message: Message, wrap: Wrapper | None) -> Any:
    """Unpack a message from this process."""
    if wrap is None:
        return message.payload
    dtypes = iter(message.dtypes)

    def leaf(x: Tensor) -> Tensor:
        dtype = next(dtypes)
        return wrap.decode(x, pay.FLOATING[dtype]) if dtype else x

    return pay.tree_map(leaf, message.payload)


def check_rows(rows: object, expected: int, what: str, why: str) -> Rows:
    """Check the number of rows of a value.

    Args:
        why: What the expected number counts, as in "the clients are".

    Raises:
        PlaceError: If the value has another number of rows.
    """
    if not isinstance(rows, Tensor | SparseMatrix) or not len(rows.shape) or rows.shape[0] != expected:
        raise PlaceError(f"{what} is {describe_value(rows)} where {why} {expected}")
    return rows


def tensors_asked(
    payloads: Mapping[Pair, Payload], asked: Mapping[Pair, tuple[bool, ...]], name: str
) -> dict[Pair, list[Tensor]]:
    """Select the tensors whose sender wants a gradient, by the flags of each message that has such a tensor.

    WireError if a message has another number of floating tensors than flags.
    """
    chosen = {}
    for p, flags in asked.items():
        if p in payloads:
            tensors = pay.tensors_in(payloads[p])
            if len(tensors) != len(flags):
                raise WireError(f"transfer {name!r}: {len(flags)} gradient flags for {len(tensors)} tensors")
            chosen[p] = [t for t, flag in zip(tensors, flags, strict=True) if flag]
    return chosen


def wrapped_leaves(message: Message) -> list[Leaf]:
    """List the leaves that a wrapper encoded."""
    return [x for x, dtype in zip(pay.leaves(message.payload), message.dtypes, strict=True) if dtype]


def answer(tensors: Sequence[Tensor], wrap: Wrapper | None) -> Message:
    """Make the message with the gradients of received tensors, and remove the gradients from the tensors."""
    # A tensor that was not used gets zeros, because its sender waits for exactly one answer.
    gradients = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in tensors)
    for t in tensors:
        # The same tensor may get a gradient again, which would be added to this one.
        t.grad = None
    if wrap is None or not wrap.gradients:
        return Message(gradients)
    return Message(tuple(wrap.encode(g) for g in gradients))


def gradients_for(tensors: Sequence[Tensor], arrived: object, wrap: Wrapper | None) -> tuple[Tensor, ...]:
    """Check and decode the gradients that came back for sent tensors.

    Raises:
        WireError: If they do not fit the tensors. The text continues "it sent".
    """
    unfit = WireError("gradients that do not fit what it received")
    if not isinstance(arrived, tuple) or not all(isinstance(g, Tensor) for g in arrived):
        raise unfit
    if len(arrived) != len(tensors):
        raise unfit
    if wrap is not None and wrap.gradients:
        try:
            arrived = tuple(wrap.decode(g, t.dtype) for t, g in zip(tensors, arrived, strict=True))
        except Exception as error:  # a wrapper may raise anything for bytes that it did not encode
            raise unfit from error
    # A gradient of another shape could broadcast, and change the weights unnoticed.
    if any(g.shape != t.shape or g.dtype != t.dtype for t, g in zip(tensors, arrived, strict=True)):
        raise unfit
    return tuple(arrived)


def describe_value(x: object) -> str:
    """Describe a value for an error message: its shapes, never its contents."""
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
    if isinstance(x, SparseMatrix):
        return f"sparse {str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
    if isinstance(x, dict):
        items = [f"{_name(key)}: {describe_value(item)}" for key, item in list(x.items())[:8]]
        return ("{" + ", ".join(items) + "}")[:400]
    return shown(x)


def _name(key: object) -> str:
    """Show a key of a payload, which may come from another participant."""
    return key if isinstance(key, str) and key.isprintable() and len(key) <= 60 else shown(key)

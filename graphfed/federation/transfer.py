"""One payload transfer: its options, the messages it is packed in, and the gradients that come back."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Required, TypedDict

import numpy as np
import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.errors import PlaceError
from graphfed.federation.ledger import SIMULATED, Flow, LedgerRecord
from graphfed.federation.link import Message, Pair
from graphfed.federation.payload import Leaf, Payload, Rows
from graphfed.federation.wire import WireError
from graphfed.federation.wrap import Wrapper
from graphfed.nn.sparse import SparseMatrix

__all__ = [
    "Accept",
    "Ideal",
    "Options",
    "Transfer",
    "answer",
    "check_rows",
    "describe_value",
    "gradients_for",
    "pack",
    "tensors_asked",
    "unpack",
    "unpack_arrived",
    "wrapped_leaves",
]


#: A transfer's own rule for what comes from another process: gets a worker's payload, and what the worker's
#: clients have declared, [K_h] by part of the split ({} where nothing was asked for). Returns what was sent
#: that cannot be used, in words that go on "it sent"; empty where nothing is wrong.
Accept = Callable[[Any, Mapping[str, np.ndarray]], str]


class Options(TypedDict, total=False):
    """The options of every payload transfer. Only the name is required; `Transfer` has the defaults.

    Attributes:
        name: What the transfer is called on the ledger.
        protection: What hides the payload, in the ledger's words.
        grad: Whether gradients are sent back the same way. If not, what is received is constant.
        wrap: What is put around the payload: noise, compression or encryption (see `wrap.Wrapper`).
        finite: Whether numbers that are not finite are refused where another process sends them.
        accept: A rule of this transfer's own for what other processes send.
    """

    name: Required[str]
    protection: str
    grad: bool
    wrap: Wrapper | None
    finite: bool
    accept: Accept | None


@dataclass(frozen=True)
class Ideal:
    """What a simulated transfer stands for: rows of `shape` and `dtype` on a flow in its direction."""

    flow: Flow
    shape: list[int]
    dtype: torch.dtype


class Transfer(NamedTuple):
    """One payload transfer: its kind and flow on the ledger, and the caller's `Options`.

    A named tuple, as it is made for every transfer: a frozen dataclass takes three times as long.

    leading: whether the first dimension of the payload counts the units of the flow; ideal: what the ledger
    counts in place of the payload."""

    name: str
    kind: str
    flow: Flow
    protection: str = "clear"
    grad: bool = True
    wrap: Wrapper | None = None
    leading: bool = True
    ideal: Ideal | None = None
    finite: bool = True
    accept: Accept | None = None

    def record_of(self, payload: Payload) -> LedgerRecord:
        """The ledger's record of the transfer, from the payload of one message: all differ in the number of
        units only."""
        if self.ideal is not None:
            shape, dtype = self.ideal.shape, str(self.ideal.dtype).removeprefix("torch.")
            size = math.prod(shape) * self.ideal.dtype.itemsize
            return LedgerRecord(self.name, self.kind, dtype, shape, SIMULATED, self.ideal.flow, size)
        protection = self.protection
        if self.wrap is not None and self.wrap.protection is not None:
            protection = self.wrap.protection
        units = pay.describe(payload, leading=self.leading)
        size = pay.unit_bytes(payload, leading=self.leading)
        return LedgerRecord(self.name, self.kind, pay.dtype_of(payload), units, protection, self.flow, size)


def pack(payload: Payload, recording: bool, wrap: Wrapper | None, name: str) -> Message:
    """The message of a payload: its values without their history, in the wrapper."""
    flags: tuple[bool, ...] = ()
    if recording:
        if any(isinstance(x, SparseMatrix) and x.values.requires_grad for x in pay.leaves(payload)):
            raise PlaceError(
                f"transfer {name!r}: sparse rows carry no gradient; send to_dense(), or use grad=False"
            )
        flags = tuple(t.requires_grad for t in pay.tensors_in(payload))
    payload = pay.detach(payload)
    if wrap is None:
        return Message(payload, flags)
    floats = [isinstance(x, Tensor) and x.is_floating_point() for x in pay.leaves(payload)]
    dtypes = tuple(pay.dtype_of(x) if f else "" for x, f in zip(pay.leaves(payload), floats, strict=True))
    encoded = pay.tree_map(lambda x: wrap.encode(x) if x.is_floating_point() else x, payload)
    return Message(encoded, flags, dtypes)


def unpack_arrived(message: Message, wrap: Wrapper | None) -> Any:
    """The payload of a message from another process, out of the wrapper.

    Raises:
        WireError: for what is no payload of tensors in this wrapper; the message goes on "it sent".
    """
    leaves = pay.leaves(message.payload)
    kinds = (Tensor,) if wrap is not None else (Tensor, SparseMatrix)
    if not all(isinstance(x, kinds) for x in leaves):
        raise WireError(f"what is no payload of tensors: {describe_value(message.payload)}")
    if len(message.dtypes) != (0 if wrap is None else len(leaves)):
        raise WireError("a payload in another wrapper than the receiver's")
    try:
        payload = unpack(message, wrap)
    except Exception as error:  # whatever a wrapper makes of bytes that are none of its own
        raise WireError(f"what its wrapper cannot open ({type(error).__name__})") from error
    count = len(pay.floating_leaves(payload))
    if message.grad and len(message.grad) != count:
        raise WireError(f"{len(message.grad)} gradient flags for {count} tensors")
    return payload


def unpack(message: Message, wrap: Wrapper | None) -> Any:
    """The payload of a message, out of the wrapper."""
    if wrap is None:
        return message.payload
    dtypes = iter(message.dtypes)

    def leaf(x: Tensor) -> Tensor:
        dtype = next(dtypes)
        return wrap.decode(x, pay.FLOATING[dtype]) if dtype else x

    return pay.tree_map(leaf, message.payload)


def check_rows(rows: object, expected: int, what: str, why: str) -> Rows:
    """The rows; PlaceError unless there are as many as expected."""
    if not isinstance(rows, Tensor | SparseMatrix) or not len(rows.shape) or rows.shape[0] != expected:
        raise PlaceError(f"{what} is {describe_value(rows)} where {why} {expected}")
    return rows


def tensors_asked(
    payloads: Mapping[Pair, Payload], asked: Mapping[Pair, tuple[bool, ...]], name: str
) -> dict[Pair, list[Tensor]]:
    """The tensors whose sender asked for a gradient, of every payload with such a tensor."""
    chosen = {}
    for p, flags in asked.items():
        if p in payloads:
            tensors = pay.tensors_in(payloads[p])
            if len(tensors) != len(flags):
                raise WireError(f"transfer {name!r}: {len(flags)} gradient flags for {len(tensors)} tensors")
            chosen[p] = [t for t, flag in zip(tensors, flags, strict=True) if flag]
    return chosen


def wrapped_leaves(message: Message) -> list[Leaf]:
    """The leaves that a wrapper encoded."""
    return [x for x, dtype in zip(pay.leaves(message.payload), message.dtypes, strict=True) if dtype]


def answer(tensors: Sequence[Tensor], wrap: Wrapper | None) -> Message:
    """The gradients of received tensors, on their way back."""
    gradients = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in tensors)
    for t in tensors:
        t.grad = None
    if wrap is None or not wrap.gradients:
        return Message(gradients)
    return Message(tuple(wrap.encode(g) for g in gradients))


def gradients_for(tensors: Sequence[Tensor], arrived: object, wrap: Wrapper | None) -> tuple[Tensor, ...]:
    """The gradients of sent tensors, out of the wrapper.

    Raises:
        WireError: when they do not fit the tensors; the message goes on "it sent".
    """
    unfit = WireError("gradients that do not fit what it got")
    if not isinstance(arrived, tuple) or not all(isinstance(g, Tensor) for g in arrived):
        raise unfit
    if len(arrived) != len(tensors):
        raise unfit
    if wrap is not None and wrap.gradients:
        try:
            arrived = tuple(wrap.decode(g, t.dtype) for t, g in zip(tensors, arrived, strict=True))
        except Exception as error:  # whatever a wrapper makes of bytes that are none of its own
            raise unfit from error
    if any(g.shape != t.shape or g.dtype != t.dtype for t, g in zip(tensors, arrived, strict=True)):
        raise unfit
    return tuple(arrived)


def describe_value(x: object) -> str:
    """A value as an error message shows it: shapes, never contents."""
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
    if isinstance(x, SparseMatrix):
        return f"sparse {str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{key}: {describe_value(item)}" for key, item in list(x.items())[:8]) + "}"
    return repr(x) if isinstance(x, int | float | str | bool | None) else type(x).__name__

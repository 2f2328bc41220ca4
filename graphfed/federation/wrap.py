"""Wrappers: what happens to a payload between its sender and its receiver, composed around a transfer.

A transfer given ``wrap=w`` sends ``w.encode(x)`` for every floating tensor x of its payload; the receiver
decodes. The ledger counts the bytes and the dtype of the encoding, under the wrapper's protection where it
has one.

The backward of a wrapper is straight-through: the gradient of what the receiver decoded is used as the
gradient of what the sender gave. The gradient itself crosses as it is, unless the wrapper says `gradients`.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation.payload import FLOATING

__all__ = ["Cast", "Chained", "Quantised", "Wrapper"]


class Wrapper(Protocol):
    """Noise, compression or encryption around a payload.

    So that no placement changes a result, an encoding keeps the first dimension, and row i of it depends on
    row i alone: the first dimension of a payload counts rows or clients, and a worker holds any number of
    them."""

    @property
    def protection(self) -> str | None:
        """The protection class of what crosses (None: that of the transfer)."""

    @property
    def gradients(self) -> bool:
        """Whether the gradients that come back are wrapped as well."""

    def encode(self, x: Tensor) -> Tensor:
        """What crosses for a floating tensor [n, ...]: a tensor [n, ...]. Runs at the sender."""

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        """The floating tensor in `dtype`, of the shape it had. Runs at the receiver."""


@dataclass(frozen=True)
class Cast:
    """Compression: floating numbers cross as float16 or bfloat16 and are used in the receiver's own dtype.

    gradients: cast the gradients too; by default they cross in full precision, because small gradients vanish
    in float16. A finite number that the dtype cannot hold is an InputError. No protection: whoever sees the
    payload sees its numbers."""

    dtype: torch.dtype = torch.float16
    gradients: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in FLOATING.values():
            raise InputError(f"Cast to {self.dtype} is not possible; choose one of: {', '.join(FLOATING)}")

    @property
    def protection(self) -> str | None:
        return None

    def encode(self, x: Tensor) -> Tensor:
        encoded = x.to(self.dtype)
        lost = encoded.isinf() & x.isfinite()
        if bool(lost.any()):
            name = str(self.dtype).removeprefix("torch.")
            raise InputError(
                f"a value of size {float(x[lost].abs().max()):g} cannot cross as {name} "
                f"(largest: {torch.finfo(self.dtype).max:g}); use bfloat16 or no compression"
            )
        return encoded

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        return encoded.to(dtype)


@dataclass(frozen=True)
class Quantised:
    """Compression: numbers from -limit to limit cross as one byte each, 255 steps apart; what lies beyond
    crosses as the limit. Off by at most limit / 254 within. Gradients cross as they are. No protection."""

    limit: float = 1.0

    @property
    def protection(self) -> str | None:
        return None

    @property
    def gradients(self) -> bool:
        return False

    def encode(self, x: Tensor) -> Tensor:
        return (x / self.limit).clamp(-1, 1).mul(127).round().to(torch.int8)

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        return encoded.to(dtype) * (self.limit / 127)


@dataclass(frozen=True)
class Chained:
    """One wrapper in another: `inner` next to the payload, `outer` around what it gives, which must be
    floating."""

    inner: Wrapper
    outer: Wrapper

    @property
    def protection(self) -> str | None:
        return self.inner.protection or self.outer.protection

    @property
    def gradients(self) -> bool:
        return self.inner.gradients or self.outer.gradients

    def encode(self, x: Tensor) -> Tensor:
        return self.outer.encode(self.inner.encode(x))

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        return self.inner.decode(self.outer.decode(encoded, dtype), dtype)

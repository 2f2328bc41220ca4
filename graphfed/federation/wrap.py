"""Wrappers: change a payload between its sender and its receiver, by noise, compression or encryption.

A transfer with ``wrap=w`` sends ``w.encode(x)`` for every floating tensor x of its payload; the receiver
decodes it. The ledger counts the bytes and the dtype of the encoding, under the wrapper's protection if it
has one.

The backward pass of a wrapper is straight-through: the gradient of what the receiver decoded is used as the
gradient of what the sender gave. The gradient is sent as it is, unless the wrapper sets `gradients`.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from graphfed.errors import PlaceError


class Wrapper(Protocol):
    """Noise, compression or encryption around a payload.

    An encoding keeps the first dimension, and its row i depends on row i alone. The first dimension counts
    rows or clients, and a worker holds any number of them; so no placement changes a result.
    """

    @property
    def protection(self) -> str | None:
        """How the ledger records what is sent (None: the protection of the transfer)."""

    @property
    def gradients(self) -> bool:
        """Whether the gradients that are sent back are wrapped as well."""

    @property
    def draws_noise(self) -> bool:
        """Whether an encoding is drawn at random, so that each is a release of its own. Only transfers from
        clients to the server, which encode each row once in every placement, accept such a wrapper.
        """

    def encode(self, x: Tensor) -> Tensor:
        """Encode a floating tensor [n, ...], at the sender. Returns what is sent, [n, ...]."""

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        """Decode a floating tensor, at the receiver, to the shape that it had."""


@dataclass(frozen=True)
class Quantised:
    """Compression: send each number from -limit to limit as one byte, which has 255 values.

    Numbers outside are sent as the limit. Inside, the error is at most limit / 254. Gradients are sent as
    they are. It protects nothing.
    """

    limit: float = 1.0

    @property
    def protection(self) -> str | None:
        """None: nothing is hidden."""
        return None

    @property
    def gradients(self) -> bool:
        """False: gradients are sent as they are."""
        return False

    @property
    def draws_noise(self) -> bool:
        """False: an encoding follows from its numbers."""
        return False

    def encode(self, x: Tensor) -> Tensor:
        """Quantise numbers [n, ...] to int8 [n, ...]."""
        # 127 and not 128: the numbers on both sides of 0 get the same steps, and 0 stays 0.
        return (x / self.limit).clamp(-1, 1).mul(127).round().to(torch.int8)

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        """Restore floating numbers [n, ...] from int8 [n, ...]."""
        return encoded.to(dtype) * (self.limit / 127)


@dataclass(frozen=True)
class Chained:
    """Two wrappers: `inner` encodes the payload, and `outer` encodes the result, which must be floating.

    Attributes:
        inner: The wrapper that the payload goes through first.
    """

    inner: Wrapper
    outer: Wrapper

    def __post_init__(self) -> None:
        # Half a chain cannot encode gradients: the outer wrapper takes what the inner one gives.
        if self.inner.gradients != self.outer.gradients:
            raise PlaceError(
                f"{self.inner} and {self.outer} cannot be chained: one wraps gradients and the other does "
                "not; give two wrappers that agree"
            )

    @property
    def protection(self) -> str | None:
        """The protection of the inner wrapper, which is there after the outer one is decoded, or else of the
        outer.
        """
        return self.inner.protection or self.outer.protection

    @property
    def gradients(self) -> bool:
        """Whether both wrap gradients."""
        return self.inner.gradients

    @property
    def draws_noise(self) -> bool:
        """Whether one of the two draws noise."""
        return self.inner.draws_noise or self.outer.draws_noise

    def encode(self, x: Tensor) -> Tensor:
        """Encode with the inner wrapper, then with the outer."""
        return self.outer.encode(self.inner.encode(x))

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        """Decode with the outer wrapper, then with the inner."""
        return self.inner.decode(self.outer.decode(encoded, dtype), dtype)

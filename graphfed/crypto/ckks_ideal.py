"""The ideal form of the encrypted sums: equal results and bytes, nothing encrypted, labelled simulated."""

import numpy as np
import scipy.sparse as sp

from graphfed.crypto.ckks import (
    PUBLIC_BYTES,
    Layout,
    Parameters,
    cell_body,
    check_size,
    checked_weights,
    members_of,
    padded_cells,
    parameters,
)
from graphfed.crypto.errors import ProtocolError

__all__ = ["IdealEvaluator", "IdealKeyOwner", "read_plaintext"]


class IdealKeyOwner:
    """`KeyOwner` without encryption: as many bytes, and the numbers are readable in them."""

    protection = "simulated"

    def __init__(self, name: str) -> None:
        self.parameters = parameters(name)

    @classmethod
    def make(cls, name: str) -> "IdealKeyOwner":
        return cls(name)

    @classmethod
    def from_secret(cls, name: str, secret: np.ndarray) -> "IdealKeyOwner":
        cell_body(secret, (parameters(name).secret_bytes,), "a secret key")
        return cls(name)

    def secret(self) -> np.ndarray:
        return padded_cells(b"", self.parameters.secret_bytes)

    def public(self) -> np.ndarray:
        return padded_cells(b"", PUBLIC_BYTES)

    def encrypt(self, slots: np.ndarray) -> np.ndarray:
        check_size(slots, self.parameters.largest, "encrypted")
        return _plaintext(slots, self.parameters.ciphertext_bytes)

    def decrypt(self, sealed: np.ndarray) -> np.ndarray:
        return read_plaintext(self.parameters, sealed)


class IdealEvaluator:
    """`Evaluator` on what `IdealKeyOwner` gives."""

    protection = "simulated"

    def __init__(self, name: str) -> None:
        self.parameters = parameters(name)

    @classmethod
    def load(cls, name: str, public: np.ndarray) -> "IdealEvaluator":
        cell_body(public, (PUBLIC_BYTES,), "a server's context")
        return cls(name)

    def add(self, sealed: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
        slots = read_plaintext(self.parameters, sealed)
        sums = [slots[members].sum(0) for members in members_of(group, count)]
        return _plaintext(np.array(sums).reshape(count, slots.shape[1]), self.parameters.ciphertext_bytes)

    def weighted(self, sealed: np.ndarray, weights: sp.csr_matrix) -> np.ndarray:
        matrix = checked_weights(self.parameters, weights, len(sealed))
        assert self.parameters.product_bytes is not None
        return _plaintext(matrix @ read_plaintext(self.parameters, sealed), self.parameters.product_bytes)

    def weighted_rows(
        self, sealed: np.ndarray, weights: sp.csr_matrix, unit: np.ndarray, place: np.ndarray, layout: Layout
    ) -> np.ndarray:
        matrix = checked_weights(self.parameters, weights, len(sealed) // layout.pieces)
        assert self.parameters.product_bytes is not None
        slots = read_plaintext(self.parameters, sealed).reshape(-1, layout.pieces * layout.slots)
        count = int(unit.max()) + 1 if len(unit) else 0
        packed = layout.pack(matrix @ slots[:, : layout.width], unit, place, count)
        return _plaintext(packed, self.parameters.product_bytes)


def _plaintext(slots: np.ndarray, size: int) -> np.ndarray:
    rows = [padded_cells(np.ascontiguousarray(row, dtype="<f8").tobytes(), size) for row in slots]
    return np.array(rows, dtype=np.uint8).reshape(len(slots), size)


def read_plaintext(chosen: Parameters, sealed: np.ndarray) -> np.ndarray:
    """The numbers [m, slots] in what `IdealKeyOwner` or `IdealEvaluator` gave; ProtocolError for other
    bytes."""
    sizes = (chosen.ciphertext_bytes, *([] if chosen.product_bytes is None else [chosen.product_bytes]))
    rows = np.empty((len(sealed), chosen.slots), dtype=np.float64)
    for row, cell in zip(rows, sealed, strict=True):
        body = cell_body(cell, sizes, "a simulated ciphertext")
        if len(body) != 8 * chosen.slots:
            raise ProtocolError(f"a simulated ciphertext has {len(body)} bytes of numbers, not the set's")
        row[:] = np.frombuffer(body, dtype="<f8")
    return rows

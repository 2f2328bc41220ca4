"""The simulated form of the encrypted sums: same results, same bytes, plaintext numbers, labelled
`simulated`.
"""

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


class IdealKeyOwner:
    """`KeyOwner` without encryption: the messages have the same number of bytes and contain the numbers."""

    protection = "simulated"

    def __init__(self, name: str) -> None:
        self.parameters = parameters(name)

    @classmethod
    def make(cls, name: str) -> "IdealKeyOwner":
        """Create an owner of a simulated key.

        Returns:
            The owner.
        """
        return cls(name)

    @classmethod
    def from_secret(cls, name: str, secret: np.ndarray) -> "IdealKeyOwner":
        """Load a simulated key.

        Args:
            secret: The output of `IdealKeyOwner.secret`, uint8 [secret_bytes].

        Returns:
            The owner.

        Raises:
            ProtocolError: The bytes have another size.
        """
        cell_body(secret, (parameters(name).secret_bytes,), "a secret key")
        return cls(name)

    def secret(self) -> np.ndarray:
        """Build bytes of the size of a secret key.

        Returns:
            uint8 [secret_bytes].
        """
        return padded_cells(b"", self.parameters.secret_bytes)

    def public(self) -> np.ndarray:
        """Build bytes of the size of the server's context.

        Returns:
            uint8 [PUBLIC_BYTES].
        """
        return padded_cells(b"", PUBLIC_BYTES)

    def encrypt(self, slots: np.ndarray) -> np.ndarray:
        """Put numbers into bytes of the size of ciphertexts.

        Args:
            slots: Numbers [m, slots], below `Parameters.largest` in absolute value.

        Returns:
            uint8 [m, ciphertext_bytes].

        Raises:
            InputError: A number is not finite or too large.
        """
        check_size(slots, self.parameters.largest, "encrypted")
        return _plaintext(slots, self.parameters.ciphertext_bytes)

    def decrypt(self, sealed: np.ndarray) -> np.ndarray:
        """Read the numbers from simulated ciphertexts.

        Args:
            sealed: Messages of this set, fresh or products, uint8 [m, bytes].

        Returns:
            float64 [m, slots].

        Raises:
            ProtocolError: The bytes are not simulated ciphertexts.
        """
        return read_plaintext(self.parameters, sealed)


class IdealEvaluator:
    """`Evaluator` for the messages of `IdealKeyOwner`."""

    protection = "simulated"

    def __init__(self, name: str) -> None:
        self.parameters = parameters(name)

    @classmethod
    def load(cls, name: str, public: np.ndarray) -> "IdealEvaluator":
        """Load the parameters.

        Args:
            public: The output of `IdealKeyOwner.public`, uint8 [PUBLIC_BYTES].

        Returns:
            The evaluator.

        Raises:
            ProtocolError: The bytes have another size.
        """
        cell_body(public, (PUBLIC_BYTES,), "a server's context")
        return cls(name)

    def add(self, sealed: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
        """Add the numbers of each group.

        Args:
            sealed: The output of `IdealKeyOwner.encrypt`, uint8 [m, ciphertext_bytes].
            group: The group of each ciphertext, int [m].

        Returns:
            uint8 [count, ciphertext_bytes].
        """
        slots = read_plaintext(self.parameters, sealed)
        sums = [slots[members].sum(0) for members in members_of(group, count)]
        return _plaintext(np.array(sums).reshape(count, slots.shape[1]), self.parameters.ciphertext_bytes)

    def weighted(self, sealed: np.ndarray, weights: sp.csr_matrix) -> np.ndarray:
        """Compute weighted sums, as `Evaluator.weighted`.

        Args:
            sealed: The output of `IdealKeyOwner.encrypt`, uint8 [m, ciphertext_bytes].
            weights: Weights [n, m], with the limits of `checked_weights`.

        Returns:
            uint8 [n, product_bytes].
        """
        matrix = checked_weights(self.parameters, weights, len(sealed))
        assert self.parameters.product_bytes is not None
        return _plaintext(matrix @ read_plaintext(self.parameters, sealed), self.parameters.product_bytes)

    def weighted_rows(
        self, sealed: np.ndarray, weights: sp.csr_matrix, unit: np.ndarray, place: np.ndarray, layout: Layout
    ) -> np.ndarray:
        """Compute weighted sums of rows and pack them, as `Evaluator.weighted_rows`.

        Args:
            sealed: m rows, each in a unit of its own, uint8 [m * pieces, ciphertext_bytes].
            weights: Weights [n, m], with the limits of `checked_weights`.
            unit: The unit of each result, int [n].
            place: The place of each result in its unit, int [n].

        Returns:
            uint8 [units * pieces, product_bytes].
        """
        matrix = checked_weights(self.parameters, weights, len(sealed) // layout.pieces)
        assert self.parameters.product_bytes is not None
        slots = read_plaintext(self.parameters, sealed).reshape(-1, layout.pieces * layout.slots)
        count = int(unit.max()) + 1 if len(unit) else 0
        # The first copy of each row is enough: `repeat` has filled the other places with the same numbers.
        packed = layout.pack(matrix @ slots[:, : layout.width], unit, place, count)
        return _plaintext(packed, self.parameters.product_bytes)


def _plaintext(slots: np.ndarray, size: int) -> np.ndarray:
    """Put numbers into padded bytes, uint8 [m, size]."""
    rows = [padded_cells(np.ascontiguousarray(row, dtype="<f8").tobytes(), size) for row in slots]
    return np.array(rows, dtype=np.uint8).reshape(len(slots), size)


def read_plaintext(chosen: Parameters, sealed: np.ndarray) -> np.ndarray:
    """Read the numbers from simulated ciphertexts.

    Args:
        sealed: Messages of `IdealKeyOwner` or `IdealEvaluator`, uint8 [m, bytes].

    Returns:
        float64 [m, slots].

    Raises:
        ProtocolError: The bytes are not simulated ciphertexts of this set.
    """
    sizes = (chosen.ciphertext_bytes, *([] if chosen.product_bytes is None else [chosen.product_bytes]))
    rows = np.empty((len(sealed), chosen.slots), dtype=np.float64)
    for row, cell in zip(rows, sealed, strict=True):
        body = cell_body(cell, sizes, "a simulated ciphertext")
        if len(body) != 8 * chosen.slots:
            raise ProtocolError(
                f"a simulated ciphertext has {len(body)} bytes of numbers; {8 * chosen.slots} are expected"
            )
        row[:] = np.frombuffer(body, dtype="<f8")
    return rows

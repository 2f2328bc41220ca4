"""CKKS parameter sets, the layout of numbers in ciphertexts, and the grid that makes sums exact.

Nothing here needs TenSEAL. `ckks` and its simulated form `ckks_ideal` share this module.
"""

from dataclasses import dataclass

import numpy as np

from graphfed.crypto.errors import ProtocolError
from graphfed.errors import InputError, did_you_mean

#: Bytes of the length in front of a padded body.
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class Parameters:
    """A tested parameter set.

    Attributes:
        primes: Bits of the primes of the modulus. The last prime is for key switching, which is not used
            here.
        scale_bits: Bits of the scale.
        ciphertext_bytes: Bytes of a fresh ciphertext.
        product_bytes: Bytes of a ciphertext after a multiplication, or None if the set does not support
            products.
        secret_bytes: Bytes of a secret key.
        largest: Bound of the absolute value of every number and, in the set `sum`, of every result.
        weight: Largest sum of the absolute values of the weights of one result.
        seconds: Approximate time for one core to encrypt, add and decrypt one ciphertext.
    """

    name: str
    degree: int
    primes: tuple[int, ...]
    scale_bits: int
    ciphertext_bytes: int
    product_bytes: int | None
    secret_bytes: int
    largest: float
    weight: float
    seconds: float

    @property
    def slots(self) -> int:
        """The number of values in a ciphertext, N / 2."""
        return self.degree // 2


# SEAL compresses, so the sizes of ciphertexts vary: about 61 741 bytes (sum), 235 079 (product, fresh) and
# 131 217 (product, multiplied), with a standard deviation of about 14 bytes (sum) and 110 (product). The
# fixed sizes are at least eight standard deviations above these means. Secret keys vary more, and get the
# size that they have uncompressed.
PARAMETERS = {
    "sum": Parameters("sum", 4096, (54, 54), 30, 62_000, None, 66_000, 2.0**22, 0.0, 0.002),
    "product": Parameters(
        "product", 8192, (60, 40, 60), 40, 237_000, 132_500, 197_500, 2.0**10, 2.0**8, 0.008
    ),
}


def parameters(name: str) -> Parameters:
    """Look up a parameter set.

    Args:
        name: "sum" for exact sums, "product" for weighted sums.

    Returns:
        The parameter set.

    Raises:
        InputError: There is no set of this name.
    """
    if name not in PARAMETERS:
        raise InputError(f"CKKS has no parameter set named {name!r}; {did_you_mean(name, PARAMETERS)}")
    return PARAMETERS[name]


# ---- numbers and slots -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """The multiples of 2^-bits to which sums of at most `terms` fresh ciphertexts of the set `sum` are
    rounded.

    The noise of a fresh ciphertext in a slot is nearly normal. It is a sum of 4096 errors of standard
    deviation 3.24 (SEAL's centred binomial distribution), each rotated, with a standard deviation of 3.24 *
    sqrt(4096 / 2) / 2^30 = 1.37e-7, plus rounding. The noise of a sum grows with the square root of its
    number of terms. The grid is the finest whose quarter step is at least 8.5 standard deviations. The
    noise exceeds a quarter step with probability 2e-17. Half a step, where a result would be wrong, is
    never reached in practice. tests/crypto/test_ckks.py measures the noise.

    Attributes:
        terms: Largest number of ciphertexts in a sum.
    """

    terms: int

    #: Standard deviation of a fresh ciphertext's noise, rounded up.
    NOISE = 1.4e-7
    MARGIN = 8.5

    def __post_init__(self) -> None:
        if self.terms < 1 or self.bits < 8:
            raise InputError(
                f"a sum of {self.terms} ciphertexts cannot be separated from its noise; the number of terms "
                "must be from 1 to 670 000"
            )

    @property
    def bits(self) -> int:
        """Bits after the point of a number on the grid."""
        # step / 4 >= MARGIN standard deviations of a sum's noise, NOISE sqrt(terms)
        return int(np.floor(-np.log2(4 * self.MARGIN * self.NOISE * np.sqrt(self.terms))))

    @property
    def step(self) -> float:
        """The distance of two neighbouring numbers of the grid."""
        return float(2.0**-self.bits)

    @property
    def error(self) -> float:
        """The largest rounding error of a sum of all terms: half a step for each term."""
        return self.terms * self.step / 2

    def round(self, x: np.ndarray) -> np.ndarray:
        """Round numbers to the grid.

        Args:
            x: Numbers of any shape [...], each one term of a sum.

        Returns:
            float64 [...].

        Raises:
            InputError: A number is not finite, or is so large that a sum of `terms` numbers would exceed
                what a ciphertext can hold.
        """
        limit = PARAMETERS["sum"].largest / self.terms
        check_size(x, limit, f"encrypted in a sum of {self.terms}")
        return np.round(np.asarray(x, dtype=np.float64) * 2.0**self.bits) * self.step

    def settle(self, decrypted: np.ndarray) -> np.ndarray:
        """Remove the noise of decrypted sums.

        Args:
            decrypted: Decrypted sums of numbers of the grid, any shape [...].

        Returns:
            The exact sums, float64 [...].

        Raises:
            ProtocolError: A value is more than a quarter step away from the grid. This happens for damaged
                ciphertexts, for ciphertexts of another key, and for sums of too many terms.
        """
        nearest = np.round(decrypted * 2.0**self.bits) * self.step
        # A quarter step and not half a step: noise and damage are found before they round to another number.
        if not bool((np.abs(decrypted - nearest) <= self.step / 4).all()):
            raise ProtocolError(
                "a decrypted value is not a sum of encrypted numbers: a ciphertext is damaged, or was "
                "made with another key; the session is over"
            )
        return nearest


def check_size(x: np.ndarray, limit: float, purpose: str) -> None:
    """Check that all numbers are finite and below a limit.

    Args:
        x: Numbers of any shape; an array without numbers passes.
        limit: Bound of the absolute values, which must be below it.
        purpose: What is done with the numbers, for the message.

    Raises:
        InputError: A number is not finite or not below the limit.
    """
    # Written so that NaN, which compares as false, is refused too.
    if x.size and not bool((np.abs(x) < limit).all()):
        worst = float(np.abs(x).max())
        raise InputError(
            f"a value of size {worst:g} cannot be {purpose}: it must be finite and below {limit:g}; scale "
            "the features"
        )


@dataclass(frozen=True)
class Layout:
    """How rows of numbers are placed in ciphertexts: several rows in one ciphertext, or one row in several.

    A unit is a group of `pieces` ciphertexts that holds up to `rows` rows.

    Attributes:
        width: Numbers in a row.
        slots: Numbers in a ciphertext.
    """

    width: int
    slots: int

    @property
    def rows(self) -> int:
        """The number of rows in a unit, at least 1."""
        return max(1, self.slots // self.width)

    @property
    def pieces(self) -> int:
        """The number of ciphertexts in a unit, at least 1."""
        return max(1, -(-self.width // self.slots))

    def ciphertexts(self, rows: int) -> int:
        """Count the ciphertexts of densely packed rows.

        Returns:
            Number of ciphertexts.
        """
        return -(-rows // self.rows) * self.pieces

    def pack(self, rows: np.ndarray, unit: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
        """Place rows in the slots of units.

        Args:
            rows: Rows [n, width], in any order.
            unit: The unit of each row, int [n].
            place: The place of each row in its unit, 0 .. rows - 1, int [n].
            count: Number of units, units without rows included.

        Returns:
            Slots, float64 [count * pieces, slots]; free slots are 0.

        Raises:
            IndexError: A unit has no such place, here and in `unpack`.
        """
        cells = np.zeros((count * self.pieces, self.slots), dtype=np.float64)
        self._places(cells)[unit, place] = rows
        return cells

    def _places(self, slots: np.ndarray) -> np.ndarray:
        """View the slots of units as rows at their places, [count, rows, width]."""
        cells = slots.reshape(-1, self.pieces * self.slots)
        return cells[:, : self.rows * self.width].reshape(len(cells), self.rows, self.width)

    def repeat(self, rows: np.ndarray) -> np.ndarray:
        """Place each row in a unit of its own, as often as it fits, for `Evaluator.weighted_rows`.

        Args:
            rows: Rows [n, width], one for each unit.

        Returns:
            Slots, float64 [n * pieces, slots].
        """
        # Row i fills all places of unit i, so that a product can move it to any place of a result.
        unit, place = np.divmod(np.arange(len(rows) * self.rows), self.rows)
        return self.pack(np.repeat(rows, self.rows, axis=0), unit, place, len(rows))

    def unpack(self, slots: np.ndarray, unit: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Read rows from the slots of units.

        Args:
            slots: The output of `pack`, [count * pieces, slots].
            unit: The unit of each row, int [n].
            place: The place of each row in its unit, int [n].

        Returns:
            Rows, float64 [n, width].
        """
        rows: np.ndarray = self._places(slots)[unit, place]
        return rows


# ---- bytes of a fixed length -------------------------------------------------------------------------------


def padded_cells(body: bytes, size: int) -> np.ndarray:
    """Pad bytes to a fixed size: the length, the bytes, and zeros.

    Args:
        body: The bytes of a ciphertext, key or context.
        size: The fixed size, at least 4 bytes more than `body` has.

    Returns:
        uint8 [size].

    Raises:
        ProtocolError: The bytes are longer than expected.
    """
    if len(body) > size - _LENGTH_BYTES:
        raise ProtocolError(
            f"TenSEAL gave {len(body)} bytes where at most {size - _LENGTH_BYTES} are expected; use the "
            "version that constraints.txt names"
        )
    cell = np.zeros(size, dtype=np.uint8)
    cell[: _LENGTH_BYTES + len(body)] = np.frombuffer(
        len(body).to_bytes(_LENGTH_BYTES, "little") + body, dtype=np.uint8
    )
    return cell


def cell_body(cell: np.ndarray, sizes: tuple[int, ...], what: str) -> bytes:
    """Undo `padded_cells`.

    Args:
        cell: The padded bytes, uint8 [size], as they arrived.
        what: What the bytes are, for the message.

    Returns:
        The bytes without length and padding.

    Raises:
        ProtocolError: The size, the length or the padding is wrong.
    """
    raw = cell.tobytes()
    length = int.from_bytes(raw[:_LENGTH_BYTES], "little")
    # Padding must be zeros, so a message has one valid form only and no room for other data.
    if (
        len(raw) not in sizes
        or length > len(raw) - _LENGTH_BYTES
        or raw[_LENGTH_BYTES + length :].strip(b"\0")
    ):
        expected = " or ".join(str(size) for size in sizes)
        raise ProtocolError(
            f"{what} of {len(raw)} bytes is damaged or is something else (expected {expected} bytes)"
        )
    return raw[_LENGTH_BYTES : _LENGTH_BYTES + length]

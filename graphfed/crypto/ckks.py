"""Sums, and sums weighted in clear, of numbers under CKKS encryption (Cheon, Kim, Kim and Song 2017), with
TenSEAL.

Those who hold one secret key encrypt and decrypt; a server without it adds ciphertexts and multiplies them by
its own numbers:

    holder = KeyOwner.make("sum")                    # one client; holder.secret() goes to the other clients
    sealed = holder.encrypt(slots)                    # every client
    sums = Evaluator.load("sum", holder.public()).add(sealed, group, count)     # the server
    values = holder.decrypt(sums)                     # the clients the sums are for

What it protects: the numbers, from the server, which follows the protocol and is curious. It sees how many
ciphertexts there are, who sends and gets which, and what it does with them. A ciphertext has a fixed number
of bytes, whatever is in it, and is pseudorandom as long as learning with errors over rings is hard: both
parameter sets are within the table of the homomorphic encryption standard for 128 bits of security (at most
109 bits of modulus for degree 4096, 218 for 8192). Keys and noise are drawn by Microsoft SEAL from the
operating system's entropy.

What it does not do.

- **All who hold the key can read all ciphertexts.** A client that colludes with the server, or gets hold of
  what another sends it, reads everybody. There is no threshold decryption here.
- A result shows what it shows: a sum over one number is that number.
- Nothing is authenticated. The server can add other things than it should; who decrypts cannot tell.

Encryption is with the secret key, not a public one: it takes half the time, its noise is five times smaller,
and the server needs no key at all: its context is the parameters, 100 bytes. One that carries a secret key is
refused. Parameter sets are fixed, because others fail silently: where the middle primes do not match the
scale, products decrypt to wrong numbers.

Exact sums. CKKS decrypts to the sum and a noise of a few 1e-7, and who sees the noise beside the numbers can
work out the secret key (Li and Micciancio 2021, CPA-D), which SEAL leaves to its users. So sums go through
`Grid`: every term is a multiple of the grid, and what was decrypted is moved to the nearest one. The noise is
then gone: results depend on the terms only, are the same bits every time, and passing them on tells nothing
of the key, except with the probability, below 2e-17 for a number, that noise reaches a quarter of the grid,
and then the session ends. This argument is about a server that follows the protocol; from one that makes
ciphertexts of its own, it holds nothing back. Products have no grid: **what was decrypted of them must stay
with those who have the key.**

`ckks_ideal` has the ideal form: same interface, same number of bytes, the numbers in
clear. They need no library, show what crosses and protect nothing; their protection is `simulated`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.crypto.errors import ProtocolError
from graphfed.errors import InputError, did_you_mean

__all__ = [
    "PARAMETERS",
    "PUBLIC_BYTES",
    "SMALLEST_WEIGHT",
    "Evaluator",
    "Grid",
    "KeyOwner",
    "Layout",
    "Parameters",
    "cell_body",
    "check_size",
    "checked_weights",
    "library",
    "members_of",
    "padded_cells",
    "parameters",
]

_LENGTH = 4


@dataclass(frozen=True)
class Parameters:
    """A tested parameter set.

    degree N of the ring, bits of its primes (the last one is for key switching, which nothing here does) and
    of the scale; bytes of a ciphertext, of one after a multiplication (None: none can be made), of a secret;
    largest: every number, and with `sum` every result, is smaller; weight: the sizes of the weights of a
    result add up to at most this; seconds that one core takes to encrypt, add and decrypt a ciphertext,
    roughly."""

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
        """Numbers in a ciphertext."""
        return self.degree // 2


# Bytes: SEAL compresses, so the sizes of ciphertexts spread by some 14 bytes (sum) and 110 (product) around
# 61 741, 235 079 and 131 217: the fixed ones are eight such spreads above, or more. Secrets spread more: they
# get what they take uncompressed.
PARAMETERS = {
    "sum": Parameters("sum", 4096, (54, 54), 30, 62_000, None, 66_000, 2.0**22, 0.0, 0.002),
    "product": Parameters(
        "product", 8192, (60, 40, 60), 40, 237_000, 132_500, 197_500, 2.0**10, 2.0**8, 0.008
    ),
}
#: Bytes of a server's context.
PUBLIC_BYTES = 256
#: Weights nearer to zero than this vanish at the scale of the product.
SMALLEST_WEIGHT = 2.0**-30
#: Ciphertexts that are kept as the library's objects, of 0.3 MB each, while others are worked on.
LOADED = 1024


def parameters(name: str) -> Parameters:
    """The parameter set of that name; InputError for any other."""
    if name not in PARAMETERS:
        raise InputError(f"CKKS has no parameter set {name!r}; {did_you_mean(name, PARAMETERS)}")
    return PARAMETERS[name]


def library() -> Any:
    """TenSEAL; InputError where it is not installed."""
    try:
        import tenseal
    except ImportError:
        raise InputError(
            "homomorphic encryption needs the package tenseal, which is not installed; "
            "install it: pip install 'graphfed[secure]'"
        ) from None
    return tenseal


# ---- numbers and slots -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """The multiples of 2^-bits that sums of at most `terms` fresh ciphertexts of the set `sum` stand for.

    Noise of a fresh ciphertext in a slot is near normal: 4096 errors of standard deviation 3.24 (SEAL's
    centred binomial), turned and added up, 3.24 * sqrt(4096 / 2) / 2^30 = 1.37e-7, and rounding; that of a
    sum grows with the root of its terms. The grid is the finest of which a quarter is 8.5 standard
    deviations: noise passes that with probability 2e-17, and half of the grid, where a result would be wrong,
    never in practice. tests/crypto/test_ckks.py measures the noise."""

    terms: int

    #: Standard deviation of a fresh ciphertext's noise, rounded up.
    NOISE = 1.4e-7
    MARGIN = 8.5

    def __post_init__(self) -> None:
        if self.terms < 1 or self.bits < 8:
            raise InputError(
                f"sums of {self.terms} ciphertexts cannot be told from their noise; there must be at least 1 "
                "term, and at most 670 000"
            )

    @property
    def bits(self) -> int:
        return int(np.floor(-np.log2(4 * self.MARGIN * self.NOISE * np.sqrt(self.terms))))

    @property
    def step(self) -> float:
        return float(2.0**-self.bits)

    @property
    def error(self) -> float:
        """How far a sum of all terms can be off: half a step for each."""
        return self.terms * self.step / 2

    def round(self, x: np.ndarray) -> np.ndarray:
        """The nearest numbers of the grid, float64; InputError for one that is not finite, or of which
        `terms` could add up to more than a ciphertext carries."""
        limit = PARAMETERS["sum"].largest / self.terms
        check_size(x, limit, f"encrypted in a sum of {self.terms}")
        return np.round(np.asarray(x, dtype=np.float64) * 2.0**self.bits) * self.step

    def settle(self, decrypted: np.ndarray) -> np.ndarray:
        """What decrypted sums stand for; ProtocolError where they lie between two numbers of the grid, as
        those of damaged ciphertexts, of other keys and of too many terms do."""
        near = np.round(decrypted * 2.0**self.bits) * self.step
        if not bool((np.abs(decrypted - near) <= self.step / 4).all()):
            raise ProtocolError(
                "what was decrypted is no sum of what the clients encrypt: a ciphertext is damaged or of "
                "another key; the session is over"
            )
        return near


def check_size(x: np.ndarray, limit: float, why: str) -> None:
    if x.size and not bool((np.abs(x) < limit).all()):
        worst = float(np.abs(x).max())
        raise InputError(
            f"a value of size {worst:g} cannot be {why}: it must be finite and below {limit:g}; scale "
            "the features"
        )


@dataclass(frozen=True)
class Layout:
    """How rows of `width` numbers lie in ciphertexts of `slots`: several rows in one, or a row in several."""

    width: int
    slots: int

    @property
    def rows(self) -> int:
        """Rows in a ciphertext, at least 1."""
        return max(1, self.slots // self.width)

    @property
    def pieces(self) -> int:
        """Ciphertexts of a row, at least 1."""
        return max(1, -(-self.width // self.slots))

    def ciphertexts(self, rows: int) -> int:
        """Ciphertexts of so many rows, packed one after the other."""
        return -(-rows // self.rows) * self.pieces

    def pack(self, rows: np.ndarray, unit: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
        """Rows [n, width] -> the slots of `count` units of `pieces` ciphertexts, [count * pieces, slots].

        unit, place [n]: which unit a row lies in, and at which place (0 .. rows - 1) there."""
        cells = np.zeros((count, self.pieces * self.slots), dtype=np.float64)
        for at in range(self.rows):
            here = place == at
            cells[unit[here], at * self.width : (at + 1) * self.width] = rows[here]
        return cells.reshape(count * self.pieces, self.slots)

    def repeat(self, rows: np.ndarray) -> np.ndarray:
        """Rows [n, width], each as often as it fits into `pieces` ciphertexts of its own: [n * pieces,
        slots], for `weighted_rows`."""
        unit, place = np.divmod(np.arange(len(rows) * self.rows), self.rows)
        return self.pack(np.repeat(rows, self.rows, axis=0), unit, place, len(rows))

    def unpack(self, slots: np.ndarray, unit: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The rows [n, width] that `pack` put there."""
        cells = slots.reshape(-1, self.pieces * self.slots)
        rows = np.empty((len(unit), self.width), dtype=np.float64)
        for at in range(self.rows):
            here = place == at
            rows[here] = cells[unit[here], at * self.width : (at + 1) * self.width]
        return rows


# ---- bytes of a fixed length -------------------------------------------------------------------------------


def padded_cells(body: bytes, size: int) -> np.ndarray:
    """The bytes behind their number, and zeros up to `size`: [size] uint8."""
    if len(body) > size - _LENGTH:
        raise ProtocolError(
            f"TenSEAL gave {len(body)} bytes where at most {size - _LENGTH} are expected; use the version "
            "that constraints.txt names"
        )
    cell = np.zeros(size, dtype=np.uint8)
    cell[: _LENGTH + len(body)] = np.frombuffer(len(body).to_bytes(_LENGTH, "little") + body, dtype=np.uint8)
    return cell


def cell_body(cell: np.ndarray, sizes: tuple[int, ...], what: str) -> bytes:
    """What `padded_cells` was given; ProtocolError for anything else."""
    raw = cell.tobytes()
    length = int.from_bytes(raw[:_LENGTH], "little")
    if len(raw) not in sizes or length > len(raw) - _LENGTH or raw[_LENGTH + length :].strip(b"\0"):
        expected = " or ".join(str(size) for size in sizes)
        raise ProtocolError(f"{what} of {len(raw)} bytes is damaged, or no such thing (expected {expected})")
    return raw[_LENGTH : _LENGTH + length]


def _parsed(read: Callable[[], Any], what: str) -> Any:
    """What `read` gives; ProtocolError where the library refuses the bytes, in whatever way."""
    try:
        return read()
    except Exception as error:
        raise ProtocolError(f"{what} cannot be read ({type(error).__name__}): it is damaged") from None


# ---- contexts ----------------------------------------------------------------------------------------------


def _new_context(chosen: Parameters) -> Any:
    ts = library()
    # One thread: a second one has no ciphertext of its own to work on here.
    context = ts.context(
        ts.SCHEME_TYPE.CKKS,
        poly_modulus_degree=chosen.degree,
        coeff_mod_bit_sizes=list(chosen.primes),
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,
        n_threads=1,
    )
    context.global_scale = 2.0**chosen.scale_bits
    return context


def _serialized(context: Any, *, secret: bool) -> bytes:
    text: bytes = context.serialize(
        save_public_key=False, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )
    return text


@lru_cache(maxsize=len(PARAMETERS))
def _expected(name: str) -> bytes:
    """The context of a parameter set without any key."""
    return _serialized(_new_context(PARAMETERS[name]), secret=False)


def _load_context(chosen: Parameters, body: bytes, what: str) -> Any:
    """The context in some bytes; ProtocolError unless it has these parameters and no others."""
    ts = library()
    context = _parsed(lambda: ts.context_from(body, n_threads=1), what)
    same = _parsed(lambda: _serialized(context, secret=False), what) == _expected(chosen.name)
    if not same:
        raise ProtocolError(
            f"{what} has other parameters than the set {chosen.name!r}; all parties use the same version of "
            "graphfed and TenSEAL"
        )
    return context


def _load_vector(chosen: Parameters, context: Any, cell: np.ndarray) -> tuple[Any, int]:
    """A ciphertext, and how many primes it is at; ProtocolError for bytes that are none of this set."""
    sizes = (chosen.ciphertext_bytes, *([] if chosen.product_bytes is None else [chosen.product_bytes]))
    body = cell_body(cell, sizes, "a ciphertext")
    ts = library()
    vector = _parsed(lambda: ts.ckks_vector_from(context, body), "a ciphertext")
    parts = _parsed(vector.ciphertext, "a ciphertext")
    fresh = len(chosen.primes) - 1
    level = fresh if len(cell) == chosen.ciphertext_bytes else fresh - 1
    whole = (
        vector.size() == chosen.slots
        and len(parts) == 1
        and (parts[0].size(), parts[0].coeff_modulus_size()) == (2, level)
        and parts[0].scale == 2.0**chosen.scale_bits
        and not parts[0].is_transparent()
    )
    if not whole:
        raise ProtocolError(f"a ciphertext is none of the parameter set {chosen.name!r}")
    return vector, level


# ---- who holds the key -------------------------------------------------------------------------------------


class KeyOwner:
    """One who has the secret key: the one who made it, and all it gave it to."""

    protection = "encrypted"

    def __init__(self, chosen: Parameters, context: Any) -> None:
        self.parameters, self._context = chosen, context

    @classmethod
    def make(cls, name: str) -> "KeyOwner":
        """A new key of the parameter set `name`."""
        chosen = parameters(name)
        return cls(chosen, _new_context(chosen))

    @classmethod
    def from_secret(cls, name: str, secret: np.ndarray) -> "KeyOwner":
        """The holder of the key that `secret` gave, [secret_bytes] uint8. ProtocolError for other bytes."""
        chosen = parameters(name)
        what = "a secret key"
        context = _load_context(chosen, cell_body(secret, (chosen.secret_bytes,), what), what)
        if not context.has_secret_key():
            raise ProtocolError("a secret key was expected, and a context without one came")
        return cls(chosen, context)

    def secret(self) -> np.ndarray:
        """What other clients need, and the server must not have: [secret_bytes] uint8."""
        return padded_cells(_serialized(self._context, secret=True), self.parameters.secret_bytes)

    def public(self) -> np.ndarray:
        """What the server needs: the parameters, and no key, [PUBLIC_BYTES] uint8."""
        return padded_cells(_serialized(self._context, secret=False), PUBLIC_BYTES)

    def encrypt(self, slots: np.ndarray) -> np.ndarray:
        """Ciphertexts [m, ciphertext_bytes] uint8 of numbers [m, slots]; InputError for one that is too large
        or not finite."""
        check_size(slots, self.parameters.largest, "encrypted")
        ts, size = library(), self.parameters.ciphertext_bytes
        sealed = np.empty((len(slots), size), dtype=np.uint8)
        for cell, row in zip(sealed, slots, strict=True):
            cell[:] = padded_cells(ts.ckks_vector(self._context, row).serialize(), size)
        return sealed

    def decrypt(self, sealed: np.ndarray) -> np.ndarray:
        """The numbers [m, slots] float64 in ciphertexts [m, bytes] of this key, with the scheme's noise.

        ProtocolError for bytes that are no ciphertext of this parameter set; those of another key, and damage
        that leaves the form whole, give noise (see `Grid.settle`)."""
        slots = np.empty((len(sealed), self.parameters.slots), dtype=np.float64)
        for row, cell in zip(slots, sealed, strict=True):
            vector, _ = _load_vector(self.parameters, self._context, cell)
            row[:] = vector.decrypt()
        return slots


class Evaluator:
    """The server's side: it has parameters and no key."""

    protection = "encrypted"

    def __init__(self, chosen: Parameters, context: Any) -> None:
        self.parameters, self._context = chosen, context

    @classmethod
    def load(cls, name: str, public: np.ndarray) -> "Evaluator":
        """From `KeyOwner.public`. ProtocolError for other bytes, and for a context with a secret key: the
        server must be unable to decrypt."""
        chosen = parameters(name)
        what = "a server's context"
        body = cell_body(public, (PUBLIC_BYTES, chosen.secret_bytes), what)
        context = _load_context(chosen, body, what)
        if context.has_secret_key():
            raise ProtocolError(
                "the context for the server carries a secret key, with which it could read everything; send "
                "it KeyOwner.public(), and make a new key"
            )
        return cls(chosen, context)

    def add(self, sealed: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
        """Ciphertext g of the result [count, ciphertext_bytes] is the sum of those of `sealed` [m, ...] with
        group[m] = g, of which there must be one."""
        size = self.parameters.ciphertext_bytes
        sums = np.empty((count, size), dtype=np.uint8)
        for g, members in enumerate(members_of(group, count)):
            total, _ = self._load(sealed[members[0]])
            for m in members[1:]:
                total.add_(self._load(sealed[m])[0])
            sums[g] = padded_cells(total.serialize(), size)
        return sums

    def weighted(self, sealed: np.ndarray, weights: sp.csr_matrix) -> np.ndarray:
        """Row i of the result [n, product_bytes] is sum_j weights[i, j] sealed[j] for fresh ciphertexts [m,
        ciphertext_bytes]; only the set `product` can.

        Off by at most 2e-7 of the sum of the products' sizes, and 1e-8 for each of them. InputError for a row
        without weights, and for weights that are too small or together too large."""
        size = self.parameters.product_bytes
        matrix = checked_weights(self.parameters, weights, len(sealed))
        assert size is not None
        fresh = {int(j): self._load(sealed[j])[0] for j in np.unique(matrix.indices)}
        sums = np.empty((matrix.shape[0], size), dtype=np.uint8)
        for i in range(matrix.shape[0]):
            cells = slice(matrix.indptr[i], matrix.indptr[i + 1])
            terms = [
                fresh[int(j)] * float(w)
                for j, w in zip(matrix.indices[cells], matrix.data[cells], strict=True)
            ]
            for term in terms[1:]:
                terms[0].add_(term)
            sums[i] = padded_cells(terms[0].serialize(), size)
        return sums

    def weighted_rows(
        self, sealed: np.ndarray, weights: sp.csr_matrix, unit: np.ndarray, place: np.ndarray, layout: Layout
    ) -> np.ndarray:
        """Rows sum_j weights[i, j] row_j of `layout.width` numbers, i < n, packed: row i lies at place[i] of
        unit unit[i] (see `Layout.pack`) of the result [units * pieces, product_bytes].

        sealed [m * pieces, ciphertext_bytes]: m rows as of `Layout.repeat`. A product with a vector of
        weights serves all rows of a ciphertext. Errors and bounds are those of `weighted`."""
        size = self.parameters.product_bytes
        pieces = layout.pieces
        matrix = checked_weights(self.parameters, weights, len(sealed) // pieces)
        assert size is not None
        fresh = lru_cache(maxsize=LOADED)(lambda at: self._load(sealed[at])[0])
        members = members_of(unit, int(unit.max()) + 1 if len(unit) else 0)
        sums = np.empty((len(members) * pieces, size), dtype=np.uint8)
        for u, rows in enumerate(members):
            entries = np.concatenate([np.arange(matrix.indptr[i], matrix.indptr[i + 1]) for i in rows])
            columns, at = np.unique(matrix.indices[entries], return_inverse=True)
            here = np.zeros((len(columns), layout.rows))
            here[at, np.repeat(place[rows], np.diff(matrix.indptr)[rows])] = matrix.data[entries]
            # A row alone needs one number: that is a faster product.
            factors = [_spread(w, layout) if layout.rows > 1 else float(w[0]) for w in here]
            for piece in range(pieces):
                terms = zip(columns, factors, strict=True)
                (total, *others) = (fresh(int(j) * pieces + piece) * factor for j, factor in terms)
                for other in others:
                    total.add_(other)
                sums[u * pieces + piece] = padded_cells(total.serialize(), size)
        return sums

    def _load(self, cell: np.ndarray) -> tuple[Any, int]:
        if len(cell) != self.parameters.ciphertext_bytes:
            raise ProtocolError(
                f"a ciphertext of {len(cell)} bytes is no fresh one (they have "
                f"{self.parameters.ciphertext_bytes})"
            )
        return _load_vector(self.parameters, self._context, cell)


def _spread(weights: np.ndarray, layout: Layout) -> list[float]:
    """The weight of each row of a ciphertext, [rows], at all slots of the row: [slots]."""
    factor = np.zeros(layout.slots)
    factor[: layout.rows * layout.width] = np.repeat(weights, layout.width)
    numbers: list[float] = factor.tolist()
    return numbers


def members_of(group: np.ndarray, count: int) -> list[np.ndarray]:
    """The positions of each group, ascending."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group, minlength=count)
    if len(sizes) > count or not bool((sizes > 0).all()):
        raise ProtocolError(f"ciphertexts of {len(sizes)} groups came where each of {count} needs one")
    return np.split(order, np.cumsum(sizes)[:-1]) if count else []


def checked_weights(chosen: Parameters, weights: sp.csr_matrix, columns: int) -> sp.csr_matrix:
    if chosen.product_bytes is None:
        raise InputError(
            f"the parameter set {chosen.name!r} only adds: a product would decrypt to wrong numbers; use "
            "the set 'product'"
        )
    matrix = sp.csr_matrix(weights, copy=True)
    matrix.eliminate_zeros()
    if matrix.shape[1] != columns:
        raise InputError(f"weights for {matrix.shape[1]} ciphertexts were given, and there are {columns}")
    empty = np.flatnonzero(np.diff(matrix.indptr) == 0)
    if len(empty):
        raise InputError(f"row {empty[0]} of the weights is all zero: its sum needs no ciphertext")
    size = np.abs(matrix.data)
    if not bool((size >= SMALLEST_WEIGHT).all()):
        raise InputError(
            f"a weight of size {size.min():g} vanishes beside the noise; at least {SMALLEST_WEIGHT:g}"
        )
    total = np.asarray(abs(matrix).sum(axis=1)).ravel()
    if not bool((total <= chosen.weight).all()):
        raise InputError(
            f"the sizes of the weights of a row add up to {total.max():g}, and at most {chosen.weight:g} "
            "keep the result within what a ciphertext carries; scale them"
        )
    return matrix

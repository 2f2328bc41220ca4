"""Sums and weighted sums of encrypted numbers (CKKS: Cheon, Kim, Kim and Song, 2017), with TenSEAL.

Clients that share one secret key encrypt and decrypt. A server without the key adds ciphertexts and
multiplies them by plaintext weights of its own:

    owner = KeyOwner.make("sum")                     # one client; owner.secret() goes to the other clients
    sealed = owner.encrypt(slots)                     # every client
    sums = Evaluator.load("sum", owner.public()).add(sealed, group, count)      # the server
    values = owner.decrypt(sums)                      # the clients that receive the sums

What it protects: the numbers, from the server.

Corruption model: the server follows the protocol and is curious (semi-honest), and does not collude with
any client. **Every owner of the key can read all ciphertexts**: a client that colludes with the server, or
that obtains another client's messages, can read the numbers of all clients. There is no threshold
decryption. Nothing is authenticated: the server could add other ciphertexts than it should, and the clients
that decrypt would not notice.

What leaks to the server: how many ciphertexts there are, who sends and receives each of them, and what it
does with them. A ciphertext has a fixed number of bytes, whatever its contents. What leaks to the clients
that decrypt: the results. A sum over one number is that number.

Security parameter: 128 bits. Ciphertexts are pseudorandom if learning with errors over rings is hard. Both
parameter sets are within the table of the homomorphic encryption standard for 128 bits (at most 109 bits of
modulus for degree 4096, and 218 for degree 8192). Microsoft SEAL draws keys and noise from the operating
system's entropy.

Encryption uses the secret key and not a public key: it takes half the time, its noise is five times
smaller, and the server needs no key. The server's context contains the parameters alone, about 100 bytes; a
context with a secret key is refused. The parameter sets are fixed because unsuitable sets fail silently: if
the middle primes do not match the scale, products decrypt to wrong numbers.

Exact sums. CKKS decrypts to the sum plus a noise of a few 1e-7. Someone who sees this noise together with
the numbers can compute the secret key (Li and Micciancio, 2021, CPA-D), and SEAL leaves the defence to its
users. Sums therefore use `Grid`: every term is a multiple of the grid's step, and decrypted values are
rounded to the nearest multiple. This removes the noise: results depend on the terms only, have the same
bits every time, and reveal nothing about the key when they are passed on. The exception has probability
below 2e-17 for each number: noise above a quarter step, which ends the session. This argument holds for a
server that follows the protocol; it does not hold for a server that makes ciphertexts of its own. Products
have no grid: **decrypted products must stay with the owners of the key.**

`ckks_ideal` is the simulated form, with the same interface, the same number of bytes and plaintext numbers.
It needs no library, shows what is sent, and protects nothing; its protection is `simulated`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.crypto.ckks_slots import (
    PARAMETERS,
    Grid,
    Layout,
    Parameters,
    cell_body,
    check_size,
    padded_cells,
    parameters,
)
from graphfed.crypto.errors import ProtocolError
from graphfed.errors import InputError, how_to_install

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

#: Bytes of the server's context, padded.
PUBLIC_BYTES = 256
#: Smallest absolute value of a weight. Smaller weights vanish at the scale of the product.
SMALLEST_WEIGHT = 2.0**-30
#: Number of ciphertexts that `weighted_rows` keeps in memory as objects of the library, 0.3 MB each.
LOADED = 1024


def library() -> Any:
    """Import TenSEAL.

    Returns:
        The module.

    Raises:
        InputError: TenSEAL is not installed.
    """
    try:
        import tenseal
    except ImportError:
        raise InputError(
            "homomorphic encryption needs the package tenseal, which is not installed; "
            f"install it: {how_to_install('secure')}"
        ) from None
    return tenseal


def _parsed(read: Callable[[], Any], what: str) -> Any:
    """Call `read`; raise ProtocolError if the library refuses the bytes, with any exception."""
    try:
        return read()
    except Exception as error:
        raise ProtocolError(f"{what} cannot be read ({type(error).__name__}): it is damaged") from None


# ---- contexts ----------------------------------------------------------------------------------------------


def _new_context(chosen: Parameters) -> Any:
    """Generate a context with a new secret key."""
    ts = library()
    # One thread: ciphertexts are processed one at a time, so a second thread would be idle.
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
    """Serialize a context, with or without its secret key."""
    text: bytes = context.serialize(
        save_public_key=False, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )
    return text


@lru_cache(maxsize=len(PARAMETERS))
def _expected(name: str) -> bytes:
    """Serialize the context of a parameter set without keys."""
    return _serialized(_new_context(PARAMETERS[name]), secret=False)


def _load_context(chosen: Parameters, body: bytes, what: str) -> Any:
    """Read a context; raise ProtocolError if its parameters are not those of the set."""
    ts = library()
    context = _parsed(lambda: ts.context_from(body, n_threads=1), what)
    # Serialized without keys, two contexts of the same parameters have the same bytes.
    same = _parsed(lambda: _serialized(context, secret=False), what) == _expected(chosen.name)
    if not same:
        raise ProtocolError(
            f"{what} has other parameters than the set {chosen.name!r}; all parties use the same version of "
            "graphfed and TenSEAL"
        )
    return context


def _load_vector(chosen: Parameters, context: Any, cell: np.ndarray) -> tuple[Any, int]:
    """Read a ciphertext and its number of primes; raise ProtocolError if it does not belong to the set."""
    # The size says whether the ciphertext is fresh or a product; what the library read must agree with it.
    sizes = (chosen.ciphertext_bytes, *([] if chosen.product_bytes is None else [chosen.product_bytes]))
    body = cell_body(cell, sizes, "a ciphertext")
    ts = library()
    vector = _parsed(lambda: ts.ckks_vector_from(context, body), "a ciphertext")
    parts = _parsed(vector.ciphertext, "a ciphertext")
    # The prime for key switching is no part of a ciphertext, and a product has been rescaled by one prime.
    fresh = len(chosen.primes) - 1
    level = fresh if len(cell) == chosen.ciphertext_bytes else fresh - 1
    whole = (
        vector.size() == chosen.slots
        and len(parts) == 1
        and (parts[0].size(), parts[0].coeff_modulus_size()) == (2, level)
        and parts[0].scale == 2.0**chosen.scale_bits
        # A transparent ciphertext shows its numbers without the key.
        and not parts[0].is_transparent()
    )
    if not whole:
        raise ProtocolError(f"a ciphertext does not belong to the parameter set {chosen.name!r}")
    return vector, level


# ---- the owners of the key ---------------------------------------------------------------------------------


class KeyOwner:
    """An owner of the secret key: the client that generated it, or a client that received it."""

    protection = "encrypted"

    def __init__(self, chosen: Parameters, context: Any) -> None:
        self.parameters, self._context = chosen, context

    @classmethod
    def make(cls, name: str) -> "KeyOwner":
        """Generate a key.

        Returns:
            The owner of the new key.
        """
        chosen = parameters(name)
        return cls(chosen, _new_context(chosen))

    @classmethod
    def from_secret(cls, name: str, secret: np.ndarray) -> "KeyOwner":
        """Load a key that another client generated.

        Args:
            secret: The output of `KeyOwner.secret`, uint8 [secret_bytes].

        Returns:
            The owner of the key.

        Raises:
            ProtocolError: The bytes are not a secret key of this parameter set.
        """
        chosen = parameters(name)
        what = "a secret key"
        context = _load_context(chosen, cell_body(secret, (chosen.secret_bytes,), what), what)
        if not context.has_secret_key():
            raise ProtocolError("a secret key is expected, and a context without a secret key arrived")
        return cls(chosen, context)

    def secret(self) -> np.ndarray:
        """Serialize the secret key for the other clients. The server must not receive it.

        Returns:
            uint8 [secret_bytes].
        """
        return padded_cells(_serialized(self._context, secret=True), self.parameters.secret_bytes)

    def public(self) -> np.ndarray:
        """Serialize the parameters, without any key, for the server.

        Returns:
            uint8 [PUBLIC_BYTES].
        """
        return padded_cells(_serialized(self._context, secret=False), PUBLIC_BYTES)

    def encrypt(self, slots: np.ndarray) -> np.ndarray:
        """Encrypt numbers.

        Args:
            slots: Numbers [m, slots], below `Parameters.largest` in absolute value.

        Returns:
            Ciphertexts, uint8 [m, ciphertext_bytes].

        Raises:
            InputError: A number is not finite or too large.
        """
        check_size(slots, self.parameters.largest, "encrypted")
        ts, size = library(), self.parameters.ciphertext_bytes
        sealed = np.empty((len(slots), size), dtype=np.uint8)
        for cell, row in zip(sealed, slots, strict=True):
            cell[:] = padded_cells(ts.ckks_vector(self._context, row).serialize(), size)
        return sealed

    def decrypt(self, sealed: np.ndarray) -> np.ndarray:
        """Decrypt numbers. They contain the noise of the scheme (see `Grid.settle`).

        Args:
            sealed: Ciphertexts of this key, uint8 [m, bytes].

        Returns:
            float64 [m, slots].

        Raises:
            ProtocolError: Bytes are not a ciphertext of this parameter set. A ciphertext of another key, or
                with damage that keeps its form, decrypts to noise instead.
        """
        slots = np.empty((len(sealed), self.parameters.slots), dtype=np.float64)
        for row, cell in zip(slots, sealed, strict=True):
            vector, _ = _load_vector(self.parameters, self._context, cell)
            row[:] = vector.decrypt()
        return slots


class Evaluator:
    """The server, which has the parameters and no key."""

    protection = "encrypted"

    def __init__(self, chosen: Parameters, context: Any) -> None:
        self.parameters, self._context = chosen, context

    @classmethod
    def load(cls, name: str, public: np.ndarray) -> "Evaluator":
        """Load the parameters that the owner of a key sent.

        Args:
            public: The output of `KeyOwner.public`, uint8 [PUBLIC_BYTES].

        Returns:
            The evaluator.

        Raises:
            ProtocolError: The bytes are not a context of this set, or the context carries a secret key. The
                server must be unable to decrypt.
        """
        chosen = parameters(name)
        what = "a server's context"
        # A message of the size of a secret key is read too, so that the error can say what arrived.
        body = cell_body(public, (PUBLIC_BYTES, chosen.secret_bytes), what)
        context = _load_context(chosen, body, what)
        if context.has_secret_key():
            raise ProtocolError(
                "the context for the server carries a secret key, with which it could read everything; send "
                "it KeyOwner.public(), and make a new key"
            )
        return cls(chosen, context)

    def add(self, sealed: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
        """Add the ciphertexts of each group.

        Args:
            sealed: Fresh ciphertexts of one key, uint8 [m, ciphertext_bytes].
            group: The group of each ciphertext, int [m].
            count: Number of groups, each with at least one ciphertext.

        Returns:
            The sum of each group, uint8 [count, ciphertext_bytes].
        """
        size = self.parameters.ciphertext_bytes
        sums = np.empty((count, size), dtype=np.uint8)
        for g, members in enumerate(members_of(group, count)):
            total, _ = self._load(sealed[members[0]])
            for m in members[1:]:
                total.add_(self._load(sealed[m])[0])
            sums[g] = padded_cells(total.serialize(), size)
        return sums

    def weighted(self, sealed: np.ndarray, weights: sp.csr_matrix) -> np.ndarray:
        """Compute weighted sums: row i is sum_j weights[i, j] sealed[j]. Only the set `product` supports it.

        The error is at most 2e-7 of the sum of the products' absolute values, plus 1e-8 for each product.

        Args:
            sealed: Fresh ciphertexts of one key, uint8 [m, ciphertext_bytes].
            weights: Plaintext weights [n, m], as `checked_weights` allows.

        Returns:
            uint8 [n, product_bytes].

        Raises:
            InputError: A row has no weights, or weights are too small or together too large.
        """
        size = self.parameters.product_bytes
        matrix = checked_weights(self.parameters, weights, len(sealed))
        assert size is not None
        # Each ciphertext that has a weight is read once.
        fresh = {int(j): self._load(sealed[j])[0] for j in np.unique(matrix.indices)}
        sums = np.empty((matrix.shape[0], size), dtype=np.uint8)
        for i in range(matrix.shape[0]):
            cells = slice(matrix.indptr[i], matrix.indptr[i + 1])
            terms = [
                fresh[int(j)] * float(w)
                for j, w in zip(matrix.indices[cells], matrix.data[cells], strict=True)
            ]
            # The first product is a new object, so adding to it leaves the ciphertexts as they are.
            for term in terms[1:]:
                terms[0].add_(term)
            sums[i] = padded_cells(terms[0].serialize(), size)
        return sums

    def weighted_rows(
        self, sealed: np.ndarray, weights: sp.csr_matrix, unit: np.ndarray, place: np.ndarray, layout: Layout
    ) -> np.ndarray:
        """Compute weighted sums of rows and pack them: row i is sum_j weights[i, j] row_j.

        One product with a vector of weights serves all rows of a ciphertext. The error is that of
        `weighted`.

        Args:
            sealed: m rows, each in a unit of its own (`Layout.repeat`), uint8 [m * pieces,
                ciphertext_bytes].
            weights: Plaintext weights [n, m], as `checked_weights` allows.
            unit: The unit of each result, int [n].
            place: The place of each result in its unit, int [n].
            layout: The layout of the rows, the same as in `sealed`.

        Returns:
            uint8 [units * pieces, product_bytes].

        Raises:
            InputError: A row has no weights, or weights are too small or together too large.
        """
        size = self.parameters.product_bytes
        pieces = layout.pieces
        matrix = checked_weights(self.parameters, weights, len(sealed) // pieces)
        assert size is not None
        fresh = lru_cache(maxsize=LOADED)(lambda at: self._load(sealed[at])[0])
        members = members_of(unit, int(unit.max()) + 1 if len(unit) else 0)
        sums = np.empty((len(members) * pieces, size), dtype=np.uint8)
        for u, rows in enumerate(members):
            # here [columns of the unit, places]: the weight of each ciphertext for the result at each place.
            entries = np.concatenate([np.arange(matrix.indptr[i], matrix.indptr[i + 1]) for i in rows])
            columns, at = np.unique(matrix.indices[entries], return_inverse=True)
            here = np.zeros((len(columns), layout.rows))
            here[at, np.repeat(place[rows], np.diff(matrix.indptr)[rows])] = matrix.data[entries]
            # If a unit holds a single row, a product with one number is enough, and faster.
            factors = [_spread(w, layout) if layout.rows > 1 else float(w[0]) for w in here]
            for piece in range(pieces):
                terms = zip(columns, factors, strict=True)
                (total, *others) = (fresh(int(j) * pieces + piece) * factor for j, factor in terms)
                for other in others:
                    total.add_(other)
                sums[u * pieces + piece] = padded_cells(total.serialize(), size)
        return sums

    def _load(self, cell: np.ndarray) -> tuple[Any, int]:
        """Read a fresh ciphertext."""
        if len(cell) != self.parameters.ciphertext_bytes:
            raise ProtocolError(
                f"a ciphertext has {len(cell)} bytes, and a fresh ciphertext has "
                f"{self.parameters.ciphertext_bytes}"
            )
        return _load_vector(self.parameters, self._context, cell)


def _spread(weights: np.ndarray, layout: Layout) -> list[float]:
    """Repeat the weight of each row of a ciphertext, [rows], at all slots of the row: [slots]."""
    # Slots that no row uses get the factor 0.
    factor = np.zeros(layout.slots)
    factor[: layout.rows * layout.width] = np.repeat(weights, layout.width)
    numbers: list[float] = factor.tolist()
    return numbers


def members_of(group: np.ndarray, count: int) -> list[np.ndarray]:
    """Find the members of each group.

    Args:
        group: The group of each element, int [m].
        count: Number of groups, each with at least one element.

    Returns:
        The positions of each group's elements, ascending.

    Raises:
        ProtocolError: A group has no elements, or there are more groups.
    """
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group, minlength=count)
    if len(sizes) > count or not bool((sizes > 0).all()):
        raise ProtocolError(
            f"ciphertexts of {len(sizes)} groups arrived, and each of {count} groups needs at least one"
        )
    return np.split(order, np.cumsum(sizes)[:-1]) if count else []


def checked_weights(chosen: Parameters, weights: sp.csr_matrix, columns: int) -> sp.csr_matrix:
    """Check the weights of weighted sums, add duplicate entries up, and remove stored zeros.

    Args:
        weights: Plaintext weights [n, m]; the matrix stays as it is.
        columns: m, the number of ciphertexts or rows of them.

    Returns:
        The weights, each stored once, and none that is zero.

    Raises:
        InputError: The set does not support products, the number of columns is wrong, a row is all zero, or
            weights are too small or together too large.
    """
    if chosen.product_bytes is None:
        raise InputError(
            f"the parameter set {chosen.name!r} supports sums only: a product would decrypt to wrong "
            "numbers; use the set 'product'"
        )
    matrix = sp.csr_matrix(weights, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if matrix.shape[1] != columns:
        raise InputError(f"weights for {matrix.shape[1]} ciphertexts were given, and there are {columns}")
    empty = np.flatnonzero(np.diff(matrix.indptr) == 0)
    if len(empty):
        raise InputError(f"row {empty[0]} of the weights is all zero: its sum needs no ciphertext")
    size = np.abs(matrix.data)
    # Written so that NaN, which compares as false, is refused too.
    if not bool((size >= SMALLEST_WEIGHT).all()):
        raise InputError(
            f"a weight of size {size.min():g} is below the noise; weights must be 0 or at least "
            f"{SMALLEST_WEIGHT:g}"
        )
    total = np.asarray(abs(matrix).sum(axis=1)).ravel()
    if not bool((total <= chosen.weight).all()):
        raise InputError(
            f"the sizes of the weights of a row add up to {total.max():g}, and at most {chosen.weight:g} "
            "keep the result within what a ciphertext carries; scale them"
        )
    return matrix

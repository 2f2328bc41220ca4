"""Pseudonyms of nodes that all clients with one key can compute, and that the server cannot reverse.

Clients with overlapping graphs send the server names by which it aligns their nodes. A plain hash would not
protect the ids: customer numbers and card numbers are few enough to try all of them. The name here is a
pseudorandom function of the id under a key that the server does not have: keyed BLAKE2b (RFC 7693), cut to
64 bits.

Corruption model: the server follows the protocol and tries to learn what it can. It must not have the key.
A client that gives the key to the server reveals every id that the server can guess.

What leaks to the server: which clients have a node with the same name, and which names of two runs under
the same key are equal. Security parameter: the key has 256 bits. Names have 64 bits, so two of n nodes get
the same name with probability about n^2 / 2^65, which is 3e-8 for a million nodes.

The clients agree on the key outside of graphfed. Each client's process reads it as 64 hexadecimal digits
from the environment variable GRAPHFED_CLIENTS_KEY. A `simulated` key is derived from the run's seed, which
the server knows: it shows what is sent, and protects nothing.
"""

import hashlib
import os
from collections.abc import Iterable

import numpy as np

from graphfed.errors import InputError

#: The environment variable with the key of the clients, and the name that it had before.
KEY = "GRAPHFED_CLIENTS_KEY"
OLD_KEY = "GRAPHFED_HOLDERS_KEY"
_KEY_BYTES = 32


def clients_key() -> bytes:
    """Read the clients' key from the environment of this process.

    Returns:
        The key, 32 bytes.

    Raises:
        InputError: The variable is not set, its value is not 64 hexadecimal digits, or its old name is
            set.
    """
    if OLD_KEY in os.environ:
        raise InputError(f"the environment variable {OLD_KEY} is now {KEY}; rename it")
    text = os.environ.get(KEY, "").strip()
    fix = (
        f"set {KEY} to the same {2 * _KEY_BYTES} hexadecimal digits at all clients; the server must not know "
        'them. One client creates the key: python -c "import secrets; '
        f'print(secrets.token_hex({_KEY_BYTES}))"'
    )
    if not text:
        raise InputError(f"node_ids=keyed needs the clients' key, and {KEY} is not set; {fix}")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise InputError(
            f"{KEY} has {len(text)} characters and is not a key of {2 * _KEY_BYTES} hexadecimal digits; {fix}"
        )
    return key


def simulated_key(seed: int) -> bytes:
    """Derive the key of a simulated run from its seed. This key is not a secret.

    Returns:
        The key, 32 bytes.
    """
    return hashlib.blake2b(
        f"graphfed simulated holders' key {seed}".encode(), digest_size=_KEY_BYTES
    ).digest()


def keyed_names(key: bytes, purpose: str, items: Iterable[bytes]) -> np.ndarray:
    """Compute a 64-bit name for every item.

    Equal items have equal names under the same key and purpose. Names are pseudorandom otherwise, and names
    of different purposes are unrelated.

    Args:
        key: The key, 32 bytes (`clients_key` or `simulated_key`).
        purpose: What the names are for, at most 16 bytes.
        items: n items, each as bytes in a form that all clients share.

    Returns:
        The names, int64 [n].
    """
    # The key is absorbed once; a copy of this state begins every name. `person` separates the purposes.
    start = hashlib.blake2b(key=key, digest_size=8, person=purpose.encode())
    names = bytearray()
    for item in items:
        name = start.copy()
        name.update(item)
        names += name.digest()
    return np.frombuffer(names, dtype=np.int64)

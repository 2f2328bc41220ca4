"""Names of nodes: keyed hashes of ids, the same at all clients with the same key.

Clients with overlapping graphs send the server names of their nodes, so that it can align them. A plain hash
would not hide the ids: customer numbers and card numbers are few enough to try all of them. With a key that
the server does not have, a name is a pseudorandom function of the id: keyed BLAKE2b (RFC 7693), cut to 64
bits. The server learns which clients have a node with the same name, and can link names between runs under
one key. It learns nothing else from the names.

Two of n nodes have the same name with a probability of about n^2 / 2^65, which is 3e-8 for a million nodes.

The clients agree on the key outside of graphfed: 64 hexadecimal digits in the environment variable
GRAPHFED_CLIENTS_KEY of every client's process. A simulated key is derived from the run's seed, which the
server knows. It gives messages of the same size and protects nothing.
"""

import hashlib
import os
from collections.abc import Iterable

import numpy as np

from graphfed.errors import InputError

__all__ = ["KEY", "clients_key", "keyed_names", "simulated_key"]

#: The environment variable with the clients' key, and the name that it had before.
KEY = "GRAPHFED_CLIENTS_KEY"
OLD_KEY = "GRAPHFED_HOLDERS_KEY"
_KEY_BYTES = 32


def clients_key() -> bytes:
    """Read the clients' key from this process's environment.

    Returns:
        32 bytes.

    Raises:
        InputError: If the variable is missing or is not a key, or if the variable's old name is set.
    """
    if OLD_KEY in os.environ:
        raise InputError(f"the environment variable {OLD_KEY} is now {KEY}; rename it")
    text = os.environ.get(KEY, "").strip()
    fix = (
        f"set {KEY} to the same {2 * _KEY_BYTES} hexadecimal digits at all clients; the server must not know "
        f'them. One client makes the key: python -c "import secrets; print(secrets.token_hex({_KEY_BYTES}))"'
    )
    if not text:
        raise InputError(f"node_ids=keyed needs the clients' key, and {KEY} is not set; {fix}")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise InputError(f"{KEY} is not a key (it has {len(text)} characters); {fix}")
    return key


def simulated_key(seed: int) -> bytes:
    """Derive the key of a simulation from its seed. It is not secret.

    Args:
        seed: The run's seed.

    Returns:
        32 bytes.
    """
    return hashlib.blake2b(
        f"graphfed simulated holders' key {seed}".encode(), digest_size=_KEY_BYTES
    ).digest()


def keyed_names(key: bytes, purpose: str, items: Iterable[bytes]) -> np.ndarray:
    """Hash every item to a name of 64 bits, under a key.

    Equal items have equal names under the same key and purpose; otherwise names are pseudorandom.

    Args:
        key: The key, at most 64 bytes.
        purpose: At most 16 bytes. Names for two purposes are independent.
        items: The items, n of them.

    Returns:
        The names, [n] int64.
    """
    start = hashlib.blake2b(key=key, digest_size=8, person=purpose.encode())
    names = bytearray()
    for item in items:
        name = start.copy()
        name.update(item)
        names += name.digest()
    return np.frombuffer(names, dtype=np.int64)

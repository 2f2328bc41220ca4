"""Names for nodes that holders of the same key agree on and nobody else can turn back.

Holders of overlapping graphs send a server names to align their nodes by. A plain hash would not do: ids
(customer numbers, card numbers) are few enough to try them all. With a key that the server does not have, a
name is a pseudorandom function of the id: keyed BLAKE2b (RFC 7693), here cut to 64 bits. The server sees who
holds a node of the same name, and can link names between runs under one key, and nothing else.

Two of n nodes get one name with probability about n^2 / 2^65: 3e-8 for a million.

The holders agree on the key outside of graphfed, as 64 hexadecimal digits in the environment variable
GRAPHFED_HOLDERS_KEY of every holder's process. A `simulated` key is worked out of the run's seed, which the
server knows: it shows what crosses, and protects nothing.
"""

import hashlib
import os
from collections.abc import Iterable

import numpy as np

from graphfed.errors import InputError

__all__ = ["KEY", "clients_key", "keyed_names", "simulated_key"]

#: The environment variable that holds the holders' key.
KEY = "GRAPHFED_HOLDERS_KEY"
_KEY_BYTES = 32


def clients_key() -> bytes:
    """The key in this process's environment, 32 bytes; InputError where it is missing or no key."""
    text = os.environ.get(KEY, "").strip()
    fix = (
        f"all holders set {KEY} to the same {2 * _KEY_BYTES} hexadecimal digits, which the server must not "
        f'know; one of them makes it: python -c "import secrets; print(secrets.token_hex({_KEY_BYTES}))"'
    )
    if not text:
        raise InputError(f"node_ids=keyed needs the holders' key, and {KEY} is not set; {fix}")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise InputError(f"{KEY} is no key ({len(text)} characters); {fix}")
    return key


def simulated_key(seed: int) -> bytes:
    """The key of a trial run: worked out of its seed, so no secret."""
    return hashlib.blake2b(
        f"graphfed simulated holders' key {seed}".encode(), digest_size=_KEY_BYTES
    ).digest()


def keyed_names(key: bytes, purpose: str, items: Iterable[bytes]) -> np.ndarray:
    """A 64-bit name for every item, [n] int64: equal for equal items under the same key and purpose, else
    pseudorandom. Names of two purposes (at most 16 bytes) have nothing to do with each other."""
    start = hashlib.blake2b(key=key, digest_size=8, person=purpose.encode())
    names = bytearray()
    for item in items:
        name = start.copy()
        name.update(item)
        names += name.digest()
    return np.frombuffer(names, dtype=np.int64)

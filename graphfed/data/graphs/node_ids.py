"""Ids of nodes that clients work out alone: who has a node has the same id for it.

The first 63 bits of the SHA-256 of the id's text. It is no secret: who can guess the text can check the
guess. Methods that name nodes to a server by more than this say so (`graphfed.crypto.keyed_ids`).
Two of n nodes get one id with probability about n^2 / 2^64: 5e-8 for a million.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from graphfed.errors import InputError, shown

__all__ = ["node_ids"]


def node_ids(texts: Sequence[str]) -> np.ndarray:
    """The id of each text, [n] int64, at least 0; equal texts have equal ids.

    InputError where two different texts have one id."""
    ids = np.fromiter((_id(text) for text in texts), dtype=np.int64, count=len(texts))
    order = np.argsort(ids, kind="stable")
    for first in np.flatnonzero(ids[order][1:] == ids[order][:-1]).tolist():
        one, two = (texts[order[first + i]] for i in (0, 1))
        if one != two:
            raise InputError(
                f"the nodes {shown(one)} and {shown(two)} have the same hash, by a chance of one in "
                "billions; give one of them another id, at every client that has it"
            )
    return ids


def _id(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

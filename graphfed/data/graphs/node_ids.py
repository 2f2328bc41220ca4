"""Numeric ids of nodes that each client computes alone, and that are equal at all clients that list a node.

An id is the first 63 bits of the SHA-256 hash of the user's text for the node. It hides nothing: anyone who
can guess the text can check the guess. Methods that send keyed ids to a server use
`graphfed.crypto.keyed_ids`. Among n nodes, two have the same id with probability about n^2 / 2^64, which is
5e-8 for a million nodes.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from graphfed.errors import InputError, shown


def id_of(text: str) -> int:
    """Return the first 63 bits of a text's SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def node_ids(texts: Sequence[str]) -> np.ndarray:
    """Compute the ids of texts, int64 [n], at least 0; two different texts with the same id are refused."""
    ids = np.array([id_of(text) for text in texts], dtype=np.int64)
    # Equal ids are neighbours in this order. Equal texts are one node, so only different ones collide.
    order = np.argsort(ids, kind="stable")
    for first in np.flatnonzero(ids[order][1:] == ids[order][:-1]).tolist():
        one, two = (texts[order[first + i]] for i in (0, 1))
        if one != two:
            raise InputError(
                f"the nodes {shown(one)} and {shown(two)} have the same hash, which is very unlikely but "
                "possible; give one of them another id, at every client that lists it"
            )
    return ids

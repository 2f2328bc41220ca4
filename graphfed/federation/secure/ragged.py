"""Rows of bytes of different lengths, from one end of pairs of clients to the other: only the bytes that are
there cross and are counted."""

from dataclasses import replace

import torch
from torch import Tensor

from graphfed.federation.core import Federation
from graphfed.federation.secure.compare import (
    Known,
    Pairs,
    Ways,
    find_ways,
    links_coming,
    links_leaving,
    route_along,
)
from graphfed.federation.values import Located
from graphfed.nn.sparse import ranges

__all__ = ["send_bytes"]


def send_bytes(
    fed: Federation,
    pairs: Pairs,
    flat: Located,
    lengths: Located,
    from_rows: Located,
    to_rows: Located,
    sizes: Located,
    *,
    name: str,
    protection: str,
) -> Located:
    """One end of some pairs sends the other some bytes: flat [B_h] uint8, row after row, of the pairs at
    `from_rows` -> [B'_h], of those at `to_rows` (as `secure_compare.send`). No gradient comes back.

    lengths, sizes [n_h] int64: the bytes of each row, as the sender has them and as the receiver expects
    them."""
    known = pairs.at_clients
    ways = fed.clients.run(find_ways, known, from_rows, to_rows, str(fed.device))
    ways = fed.clients.run(ways_of_bytes, ways, known, from_rows, lengths, to_rows, sizes)
    return fed.exchange(flat, route_along(fed, pairs, ways), name=name, protection=protection, grad=False)


def ways_of_bytes(
    ways: Ways, known: Known, from_rows: Tensor, lengths: Tensor, to_rows: Tensor, sizes: Tensor
) -> Ways:
    """The ways of the bytes of rows that go these ways."""
    starts = lengths.cumsum(0) - lengths
    order = None
    if ways.order is not None:
        arriving = sizes[torch.argsort(ways.order)]
        order = ranges((arriving.cumsum(0) - arriving)[ways.order], sizes)
    return replace(
        ways,
        send={b: ranges(starts[rows], lengths[rows]) for b, rows in ways.send.items()},
        order=order,
        leaving=links_leaving(known, from_rows.cpu().numpy(), lengths.cpu().numpy()),
        coming=links_coming(known, to_rows.cpu().numpy(), sizes.cpu().numpy()),
    )

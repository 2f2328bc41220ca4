"""Rows of many clients in one batched product with every client's own weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Tiles", "make_tiles"]


@dataclass(frozen=True, eq=False)
class Tiles:
    """Rows grouped into T tiles of at most `size` rows of one client, for one batched product.

    slot [N]: each row's place in the padded [T * size] rows; client [T]: whose weights a tile meets (None:
    tile k is client k)."""

    slot: Tensor
    size: int
    count: int
    client: Tensor | None


def make_tiles(client: Tensor, num_clients: int, fetch: int = 8) -> Tiles:
    """Group rows sorted by client, client [N], into tiles of the power of two (or the largest client) that
    wastes least. fetch: how many rows' worth of time it takes to fetch a tile's weights."""
    counts = torch.bincount(client, minlength=num_clients)
    largest = max(int(counts.max()) if len(counts) else 1, 1)
    sizes = sorted({min(1 << b, largest) for b in range(largest.bit_length() + 1)})
    # A tile costs its padded rows and fetching its weights.
    size = min(sizes, key=lambda s: (int(((counts + s - 1) // s).sum()) * (s + fetch), -s))
    per_client = (counts + size - 1) // size
    if size == largest:
        per_client = torch.ones_like(counts)
    first_tile = per_client.cumsum(0) - per_client
    first_row = counts.cumsum(0) - counts
    within = torch.arange(len(client), device=client.device) - first_row[client]
    slot = first_tile[client] * size + within
    owner = None
    if size < largest:
        owner = torch.repeat_interleave(torch.arange(num_clients, device=client.device), per_client)
    return Tiles(slot, size, int(per_client.sum()), owner)

"""Tiles: the layout in which one batched product multiplies the rows of each client by its weights."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tiles:
    """N rows, grouped into T tiles of at most `size` rows of one client.

    Attributes:
        slot: [N] int64, the position of each row among the T * size padded rows.
        size: Rows of a tile.
        count: T.
        client: [T] int64, the client of each tile. None: tile k has the rows of client k, and T = K.
    """

    slot: Tensor
    size: int
    count: int
    client: Tensor | None


def make_tiles(client: Tensor, num_clients: int, fetch: int = 8) -> Tiles:
    """Group rows into tiles of the size that takes the least time.

    The size is a power of two, or the number of rows of the largest client.

    Args:
        client: [N] int64, ascending: the client of each row.
        num_clients: K, clients without rows included.
        fetch: The time to load the weights of a tile, as the number of rows multiplied in that time.

    Returns:
        The tiles.
    """
    counts = torch.bincount(client, minlength=num_clients)
    largest = max(int(counts.max()) if len(counts) else 1, 1)
    sizes = sorted({min(1 << b, largest) for b in range(largest.bit_length() + 1)})
    # Of sizes that take equally long the largest is taken: it has the fewest tiles.
    # The time of a tile: its rows, padding included, and loading its weights.
    size = min(sizes, key=lambda s: (int(((counts + s - 1) // s).sum()) * (s + fetch), -s))
    per_client = (counts + size - 1) // size
    if size == largest:
        # A tile for a client without rows too, so that tile k is that of client k.
        per_client = torch.ones_like(counts)
    first_tile = per_client.cumsum(0) - per_client
    first_row = counts.cumsum(0) - counts
    within = torch.arange(len(client), device=client.device) - first_row[client]
    slot = first_tile[client] * size + within
    owner = None
    if size < largest:
        owner = torch.repeat_interleave(torch.arange(num_clients, device=client.device), per_client)
    return Tiles(slot, size, int(per_client.sum()), owner)

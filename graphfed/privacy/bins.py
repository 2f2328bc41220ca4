"""Partition a client's coordinates into bins, one for each of the clients that receive its features (Lumos;
docs/papers/lumos.md, "Encoding of features").

A receiver gets the noised bits of one bin and no bits of other coordinates. The partition is public: it
follows from a key and the client's id and does not depend on the features, so a receiver can compute it. The
size of a bin shows about how many receivers there are.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from graphfed.nn.bits import pack_bits
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy.local import check_bounds, coins, dense_rows, rare
from graphfed.privacy.noise import Noise, chunks
from graphfed.random import words32

Accounting = Literal["per_receiver", "coalition"]


@dataclass(frozen=True, eq=False)
class Bins:
    """The coordinates of N clients in random order, divided into bins.

    Bin k of a client has the places start .. start + size - 1 of its order. The first bins have ceil(d / r)
    coordinates, the others floor(d / r). With r > d the last bins are empty; with r = 0 nothing is sent.

    Attributes:
        order: [N, d] int16 or int32: the coordinate at each place.
        receivers: [N] int64: r, the number of bins of each client.
        first: [N] int64: index of each client's first bin among all R = sum r bins.
        client: [R] int64: client of each bin.
        start: [R] int64: first place of each bin.
        size: [R] int64: coordinates of each bin.
    """

    order: Tensor
    receivers: Tensor
    first: Tensor
    client: Tensor
    start: Tensor
    size: Tensor

    @property
    def width(self) -> int:
        """Number of coordinates, d."""
        return self.order.shape[1]


def assign_bins(key: int, ids: Tensor, width: int, receivers: Tensor) -> Bins:
    """Assign coordinates to bins, by random orders drawn from a public key.

    Args:
        key: The public key of the orders (`graphfed.random.fold`).
        ids: [N] int64, the stable ids of the clients.
        width: d, the number of coordinates.
        receivers: [N] int64, r of each client, the number of its bins.

    Returns:
        The bins.
    """
    client = torch.repeat_interleave(torch.arange(len(ids), device=ids.device), receivers)
    first = receivers.cumsum(0) - receivers
    k = torch.arange(len(client), device=ids.device) - first[client]
    start, size = places_of_bin(receivers[client], k, width)
    return Bins(order_coordinates(key, ids, width), receivers, first, client, start, size)


def order_coordinates(key: int, ids: Tensor, width: int) -> Tensor:
    """Draw the random order of each client's coordinates from a public key.

    Args:
        ids: [N] stable ids of the clients.
        width: Number of coordinates, d.

    Returns:
        [N, d] int16 or int32: the coordinate at each place.
    """
    # The orders of all clients are kept, so in the smallest type that has the numbers 0 .. d - 1.
    small = torch.int16 if width <= 1 << 15 else torch.int32
    order = torch.empty(len(ids), width, dtype=small, device=ids.device)
    column = torch.arange(width, device=ids.device, dtype=torch.int32)
    bits = max(1, (width - 1).bit_length())
    for rows in chunks(len(ids), width):
        # One sort gives the orders: the upper bits of a word are random, the lower ones are the coordinate.
        # Equal upper bits change a probability by less than d / 2^32; privacy does not depend on it.
        keys = (words32(key, ids[rows], width) & -(1 << bits)) | column
        order[rows] = (_sorted(keys) & ((1 << bits) - 1)).to(small)
    return order


def places_of_bin(num_bins: Tensor, number: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Compute which places of a client's order a bin has.

    Args:
        num_bins: [P] int64, at least 1: how many bins the client has.
        number: [P] int64: which of them, from 0.
        width: Number of coordinates, d.

    Returns:
        The first place [P] and the number of coordinates [P] of each bin, int64.
    """
    # The first `over` bins have one coordinate more.
    whole, over = width // num_bins, width % num_bins
    return number * whole + torch.minimum(number, over), whole + (number < over).long()


def _sorted(keys: Tensor) -> Tensor:
    """Sort each row, [n, d] int32. On the CPU numpy is faster: it sorts integers with vector instructions."""
    if keys.device.type != "cpu":
        return keys.sort(1).values
    keys.numpy().sort(1)
    return keys


def budget_of(accounting: Accounting, epsilon: float, width: int, size: Tensor | int) -> Tensor:
    """Compute the privacy budget of one bit in a bin.

    Args:
        accounting: "per_receiver": epsilon / size; "coalition": epsilon / d.
        epsilon: Privacy budget of a client, above 0.
        width: d, the number of coordinates of a client.
        size: Coordinates of the bin, a number or a tensor.

    Returns:
        float64, of the shape of `size`; infinite or meaningless for an empty bin.

    Reference:
        Lumos, Eq. (26), epsilon', with the changes of docs/papers/lumos.md, items 5 and 6.
    """
    size = torch.as_tensor(size, dtype=torch.float64)
    # Budgets of independent bits add up: over a bin for one receiver, over all d coordinates for all
    # together.
    return epsilon / (size if accounting == "per_receiver" else torch.full_like(size, width))


def encode_bins(
    x: Tensor | SparseMatrix,
    ids: Tensor,
    bins: Bins,
    noise: Noise,
    purpose: str,
    epsilon: float,
    accounting: Accounting,
    low: float,
    high: float,
) -> Tensor:
    """Draw the noised bits of every client, in the order of its bins. Call it once in a run.

    The bits of a bin are `one_bit` with `budget_of` and are independent. With per_receiver the receiver of a
    bin of b coordinates sees b * epsilon / b = epsilon, and all receivers together see r * epsilon; with
    coalition they see d * epsilon / d = epsilon together. A client without receivers sends nothing, and its
    bits are 0.

    Args:
        x: [N, d] features in [low, high].
        ids: [N] int64, the stable ids of the clients.
        bins: The bins of the same clients.
        noise: The source of the bits' words.
        purpose: The name of the draws, used for this release only.
        epsilon: Privacy budget of a client, above 0.
        accounting: Whether epsilon holds against one receiver or all together.
        low: Public lower bound of every feature.
        high: Public upper bound of every feature.

    Returns:
        [N, ceil(d / 8)] uint8, packed.

    Raises:
        InputError: A feature is outside the bounds.

    Reference:
        Lumos, Eq. (26).
    """
    width = bins.width
    place = torch.arange(width, device=ids.device)
    packed = torch.empty(len(ids), (width + 7) // 8, dtype=torch.uint8, device=ids.device)
    for rows in chunks(len(ids), width):
        values = dense_rows(x, rows)
        check_bounds(values, ids[rows], low, high)
        # In the order of the bins, so that a bin's bits are contiguous.
        values = values.gather(1, bins.order[rows].long())
        words = noise.words(purpose, ids[rows], width)
        # A client's bins have two sizes, and the larger bins come first.
        parts = bins.receivers[rows].clamp(min=1)[:, None]
        whole, over = width // parts, width % parts
        sizes = torch.cat([whole + 1, whole.clamp(min=1)], 1)
        # Two budgets a client [n, 2], computed once and chosen by place below.
        count = rare(budget_of(accounting, epsilon, width, sizes))
        count = torch.where(place < over * (whole + 1), count[:, :1], count[:, 1:])
        bits = coins(values, count, words, low, high)
        # Nobody receives these bits; zeros say nothing.
        packed[rows] = pack_bits(bits & (bins.receivers[rows] > 0)[:, None])
    return packed

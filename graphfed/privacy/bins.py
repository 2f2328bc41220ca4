"""A device's coordinates, dealt into bins: one for each of the devices that receive its features (Lumos,
docs/papers/lumos.md, Encoding of features).

A receiver gets the bits of its own bin and reads the middle for the other coordinates. The dealing is public:
it follows from a key and the device's id, does not depend on the features, and a receiver can draw it itself.
What a receiver does learn from it is the size of its bin, and with that about how many receivers there
are."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from graphfed.nn.bits import pack_bits
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy.local import check_bounds, coins, dense_rows, rare
from graphfed.privacy.noise import Mechanism, Noise, chunks
from graphfed.random import words32

__all__ = ["Accounting", "Bins", "assign_bins", "bin_mechanism", "budget_of", "encode_bins"]

Accounting = Literal["per_receiver", "coalition"]


@dataclass(frozen=True, eq=False)
class Bins:
    """The coordinates of N devices in dealt order, cut into bins.

    order [N, d] int16 or int32: the coordinate at each place; receivers [N] int64, r: the number of bins. Bin
    k of a device has the places start .. start + size - 1, of sizes ceil(d / r) first and then floor(d / r);
    with r > d the last bins are empty, with r = 0 nothing is sent.

    Flat, R = sum r of them, device after device: device [R], start [R] and size [R] int64; bin k of device i
    is number first[i] + k."""

    order: Tensor
    receivers: Tensor
    first: Tensor
    device: Tensor
    start: Tensor
    size: Tensor

    @property
    def width(self) -> int:
        """The number of coordinates, d."""
        return self.order.shape[1]


def assign_bins(key: int, ids: Tensor, width: int, receivers: Tensor) -> Bins:
    """Deal d = `width` coordinates of the devices with ids [N] over receivers [N] bins each, by random orders
    drawn from a public key.

    Each coordinate gets a random number with the coordinate below it in the same word, and one sort of plain
    words puts them in order. Equal numbers (of 19 bits at d = 4 714) leave two coordinates in their own
    order, so that they swap places with a chance off 1/2 by less than d / 2^32, which privacy does not rest
    on."""
    small = torch.int16 if width <= 1 << 15 else torch.int32
    order = torch.empty(len(ids), width, dtype=small, device=ids.device)
    column = torch.arange(width, device=ids.device, dtype=torch.int32)
    bits = max(1, (width - 1).bit_length())
    for rows in chunks(len(ids), width):
        keys = (words32(key, ids[rows], width) & -(1 << bits)) | column
        order[rows] = (_sorted(keys) & ((1 << bits) - 1)).to(small)
    device = torch.repeat_interleave(torch.arange(len(ids), device=ids.device), receivers)
    first = receivers.cumsum(0) - receivers
    k = torch.arange(len(device), device=ids.device) - first[device]
    whole, over = width // receivers[device], width % receivers[device]
    return Bins(
        order, receivers, first, device, k * whole + torch.minimum(k, over), whole + (k < over).long()
    )


def _sorted(keys: Tensor) -> Tensor:
    """Each row ascending, [n, d] int32. On the CPU by numpy, whose sort of numbers uses vector registers."""
    if keys.device.type != "cpu":
        return keys.sort(1).values
    keys.numpy().sort(1)
    return keys


def budget_of(accounting: Accounting, epsilon: float, width: int, size: Tensor | int) -> Tensor:
    """The budget of one bit in a bin of `size` coordinates: epsilon / size (per_receiver), or epsilon / d
    (coalition). float64; of an empty bin infinite or unused."""
    size = torch.as_tensor(size, dtype=torch.float64)
    return epsilon / (size if accounting == "per_receiver" else torch.full_like(size, width))


def bin_mechanism(accounting: Accounting, epsilon: float, receivers: int) -> Mechanism:
    """All bits of a device, as its `receivers` receivers see them together: with per_receiver every receiver
    alone sees epsilon, and all of them, colluding, receivers * epsilon."""
    joint = epsilon * receivers if accounting == "per_receiver" else epsilon
    return Mechanism(
        "one-bit in bins",
        joint,
        f"every coordinate of a node once, dealt over {receivers} receivers that put theirs together "
        f"({accounting}, epsilon {epsilon:g}): private between any two feature vectors within the bounds",
    )


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
    """The bits of every device, in dealt order and packed: [N, ceil(d / 8)] uint8. To be drawn once.

    x [N, d] in [low, high] (InputError where not), ids [N]. The bits of a bin are `one_bit` with `budget_of`;
    they are independent, so a receiver of a whole bin of size b sees b epsilon / b = epsilon (per_receiver),
    and all receivers together r epsilon; with coalition d epsilon / d = epsilon together. A device without
    receivers sends nothing, and its bits are 0."""
    width = bins.width
    place = torch.arange(width, device=ids.device)
    packed = torch.empty(len(ids), (width + 7) // 8, dtype=torch.uint8, device=ids.device)
    for rows in chunks(len(ids), width):
        values = dense_rows(x, rows)
        check_bounds(values, ids[rows], low, high)
        values = values.gather(1, bins.order[rows].long())
        words = noise.words(purpose, ids[rows], width)
        # A device's bins have two sizes, and the places of the larger ones come first.
        parts = bins.receivers[rows].clamp(min=1)[:, None]
        whole, over = width // parts, width % parts
        sizes = torch.cat([whole + 1, whole.clamp(min=1)], 1)
        count = rare(budget_of(accounting, epsilon, width, sizes))
        count = torch.where(place < over * (whole + 1), count[:, :1], count[:, 1:])
        bits = coins(values, count, words, low, high)
        packed[rows] = pack_bits(bits & (bins.receivers[rows] > 0)[:, None])
    return packed

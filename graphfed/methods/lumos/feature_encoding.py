"""How a Lumos device sends its features: once, by the one-bit mechanism, a bin of coordinates to each
receiver (Lumos, section VI-A; docs/papers/lumos.md, Encoding of features).

    paper            here
    wl(u) bins       r(u) bins, one for each of the r(u) devices that keep u
    eps wl(u) / d    eps / |bin| (accounting=per_receiver), or eps / d (coalition): `bins.budget_of`
    x'_u             `Sent.flat`: the bits of each bin, packed
    x''_u, Eq. (27)  `received_features`: `unsent_value` and, at the coordinates of the bin, a deviation

Which bin a receiver gets is drawn from the noise; which coordinates are in it follows from a public key, the
sender's id and the number of bins. So beside the bits a receiver needs that number and the bin's: 8 bytes,
from which it learns r(u). With pad_bins there are as many bins at every device, sent or not, and it does not;
a device with more receivers than bins sends the same bin to several.

What a received bit says. (27) reads it as (low + high) / 2 plus or minus (high - low) / 2 times
c = (e^e' + 1) / (e^e' - 1), which makes it unbiased; e' is small, so c is large (590 for a bin of 589
coordinates at eps = 2), and so is its variance. decode=shrunk takes the linear estimate of least mean squared
error instead, for a feature of which nothing is known but its mean m and that it varies within the bounds:
m + (U - m) / (1 + c^2), with U the unbiased value.

What stands for a coordinate that was not sent is `unsent_value`, a public number: m, of both estimates. The
paper takes the middle of the bounds, where a sparse feature never is: 0.5 for each of thousands of features
that are nearly all 0 adds more to a leaf than the device's own features do. The default is 0: what a sparse
feature is, what a standardised one is on average, and what adds nothing to a network's input. What is done
with a bit once it is sent, or without one, does not touch its privacy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.methods.lumos.bit_matrix import BitMatrix
from graphfed.methods.lumos.config import LumosConfig
from graphfed.nn.bits import pack_bits, unpack_bits
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.privacy.bins import assign_bins, budget_of, encode_bins
from graphfed.privacy.local import gain
from graphfed.privacy.noise import Mechanism, Noise, chunks
from graphfed.random import entry_words, fold

__all__ = [
    "Sent",
    "announced_sizes",
    "bytes_of_bins",
    "encode",
    "received_features",
    "receiver_mechanism",
]


def receiver_mechanism(config: LumosConfig) -> Mechanism:
    """What one receiver gets, for the ledger."""
    return Mechanism(
        "one-bit in bins",
        config.epsilon,
        f"the bits of one bin, to one receiver ({config.accounting}): private between any two feature "
        "vectors within the bounds",
    )


@dataclass(frozen=True, eq=False)
class Sent:
    """What a cohort's devices send to their receivers, R in all by (device, receiver): header [R, 2] int32,
    the number of bins and the bin's; flat uint8, the packed bits row after row; lengths [R] int64, bytes of
    each. Of each device: epsilon [n] against the receiver that learns most and colluding [n] against all
    together; coordinates [n] int64 sent in all."""

    header: Tensor
    flat: Tensor
    lengths: Tensor
    epsilon: Tensor
    colluding: Tensor
    coordinates: Tensor


def encode(
    x: Tensor | SparseMatrix, ids: Tensor, rows: Tensor, receiver: Tensor, config: LumosConfig
) -> Sent:
    """x [n, d] and ids [n] of the devices; rows [R] ascending: the device of each receiver [R], stable ids.
    To be run once: what is drawn again spends the budget again. InputError for a feature outside the
    bounds."""
    noise, devices, width = Noise(config.noise_seed), len(ids), x.shape[1]
    count = torch.bincount(rows, minlength=devices)
    dealt_over = count if config.pad_bins is None else torch.where(count > 0, config.pad_bins, 0)
    bins = assign_bins(bin_key(config), ids, width, dealt_over)
    packed = encode_bins(
        x,
        ids,
        bins,
        noise,
        "lumos/bits",
        config.epsilon,
        config.accounting,
        config.feature_low,
        config.feature_high,
    )
    chosen = _chosen_bins(rows, count, ids, receiver, noise, config)
    number = bins.first[rows] + chosen
    size, told = bins.size[number], torch.unique(number)  # a bin that several receivers get is told once
    spent = _spent(bins.size, config, width)
    return Sent(
        header=torch.stack([dealt_over[rows], chosen], 1).int(),
        flat=_cut(packed, rows, bins.start[number], size),
        lengths=bytes_of_bins(size),
        epsilon=spent.new_zeros(devices).scatter_reduce(0, rows, spent[number], "amax"),
        colluding=spent.new_zeros(devices).index_add(0, bins.device[told], spent[told]),
        coordinates=count.new_zeros(devices).index_add(0, bins.device[told], bins.size[told]),
    )


def bin_key(config: LumosConfig) -> int:
    """Public: of which coordinates are in which bin of a device."""
    return fold(config.seed, "lumos", "dealing")


def bytes_of_bins(size: Tensor) -> Tensor:
    """Bytes that the bits of bins of these sizes take."""
    return (size + 7) // 8


def _spent(size: Tensor, config: LumosConfig, width: int) -> Tensor:
    """The budget that all bits of each bin take together, float64."""
    whole = budget_of(config.accounting, config.epsilon, width, size) * size
    return torch.where(size > 0, whole, 0.0)


def _chosen_bins(
    rows: Tensor, count: Tensor, ids: Tensor, receiver: Tensor, noise: Noise, config: LumosConfig
) -> Tensor:
    """Which bin of its device each receiver gets, [R] int64: a random order of the receivers takes them one
    after the other, or with pad_bins a random order of the bins."""
    draw = noise.words("lumos/receivers", entry_words(ids[rows], receiver), 1)[:, 0].long()
    order = torch.argsort(rows * (1 << 33) + draw)
    first = count.cumsum(0) - count
    rank = torch.empty_like(rows)
    rank[order] = torch.arange(len(rows), device=rows.device) - first[rows]
    if config.pad_bins is None:
        return rank
    bins = torch.argsort(noise.words("lumos/order of bins", ids, config.pad_bins), 1)
    return bins[rows, rank % config.pad_bins]


def _cut(packed: Tensor, rows: Tensor, start: Tensor, size: Tensor) -> Tensor:
    """The bits start .. start + size - 1 of a row of packed bits [n, D], for each of `rows` [R] ascending,
    packed anew: [B] uint8."""
    lengths, width = bytes_of_bins(size), 8 * packed.shape[1]
    flat = torch.empty(int(lengths.sum()), dtype=torch.uint8, device=packed.device)
    done = 0
    for devices in chunks(len(packed), width):
        some = slice(*torch.searchsorted(rows, rows.new_tensor([devices.start, devices.stop])).tolist())
        bits = unpack_bits(packed[devices], width).flatten()
        taken = bits[ranges((rows[some] - devices.start) * width + start[some], size[some])]
        padded = bits.new_zeros(8 * int(lengths[some].sum()))
        padded[ranges(8 * (lengths[some].cumsum(0) - lengths[some]), size[some])] = taken
        piece = pack_bits(padded.view(-1, 8)).flatten()
        flat[done : done + len(piece)] = piece
        done += len(piece)
    return flat


# ---- at the receivers --------------------------------------------------------------------------------------


def announced_sizes(header: Tensor, width: int) -> Tensor:
    """How many coordinates each bin has, [P] int64, by headers [P, 2]. InputError for what is no header."""
    parts, number = header[:, 0].long(), header[:, 1].long()
    wrong = ((number < 0) | (number >= parts)).nonzero()[:, 0]
    if len(wrong):
        raise InputError(f"a device sent bin {int(number[wrong[0]])} of {int(parts[wrong[0]])} bins")
    return width // parts + (number < width % parts)


def received_features(
    header: Tensor, flat: Tensor, sender: Tensor, width: int, config: LumosConfig
) -> BitMatrix:
    """The deviations of x''_v from `unsent_value`, [P, d]: an entry for each coordinate of a bin.

    header [P, 2], flat [B] and sender [P] (stable ids) of the pairs. What `encode` sent, decoded."""
    size = announced_sizes(header, width)
    known, first, place = _distinct(sender)
    parts = header[:, 0].long()
    bins = assign_bins(bin_key(config), known, width, parts[first])
    number = bins.first[place] + header[:, 1].long()
    if not torch.equal(parts[first][place], parts) or not torch.equal(bins.size[number], size):
        raise InputError("a device told two of its receivers different numbers of bins")
    budget = budget_of(config.accounting, config.epsilon, width, size.clamp(min=1))
    values = torch.stack(_deviations(budget, size, width, config), 1).to(torch.get_default_dtype())
    columns = torch.empty(int(size.sum()), dtype=torch.int32, device=flat.device)
    bits = torch.empty(len(columns), dtype=torch.bool, device=flat.device)
    ends, starts = size.cumsum(0), 8 * (bytes_of_bins(size).cumsum(0) - bytes_of_bins(size))
    widest = int(size.max()) if len(size) else 1
    for pairs in chunks(len(size), widest):
        some = slice(int((ends - size)[pairs.start]), int(ends[pairs.stop - 1]))
        dealt = ranges(place[pairs] * width + bins.start[number[pairs]], size[pairs])
        columns[some] = bins.order.flatten()[dealt].int()
        spots = ranges(starts[pairs], size[pairs])
        bits[some] = ((flat[spots >> 3] >> (spots & 7).to(torch.uint8)) & 1).bool()
    return BitMatrix.of(columns, bits, size, values, width)


def _distinct(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different ids, the first place of each, and which of them each is."""
    known, place = torch.unique(ids, return_inverse=True)
    first = torch.full_like(known, len(ids)).scatter_reduce(
        0, place, torch.arange(len(ids), device=ids.device), "amin"
    )
    return known, first, place


def _deviations(budget: Tensor, size: Tensor, width: int, config: LumosConfig) -> tuple[Tensor, Tensor]:
    """What a bit of 1, and of 0, of each bin puts on top of `unsent_value`, float64 [P] each."""
    low, high = config.feature_low, config.feature_high
    c = gain(budget)
    # Eq. (27): U = (low + high) / 2 +- (high - low) / 2 c.
    up, down = ((low + high) / 2 + sign * (high - low) / 2 * c for sign in (1, -1))
    if config.decode == "shrunk":
        share = 1 / (1 + c * c)
    else:
        share = width / size.clamp(min=1) if config.rescale else torch.ones_like(c)
    return share * (up - config.unsent_value), share * (down - config.unsent_value)

"""How a Lumos client sends its features: once, by the one-bit mechanism, one bin of coordinates to each
receiver (section VI-A of the paper; docs/papers/lumos.md, "Encoding of features").

    paper            here
    wl(u) bins       r(u) bins, one for each receiver of u (a client that has u in its tree)
    eps wl(u) / d    eps / |bin| (accounting=per_receiver) or eps / d (coalition): `bins.budget_of`
    x'_u, Eq. (26)   `EncodedFeatures.flat`: the bits of each bin, packed
    x''_u, Eq. (27)  `received_features`: `unsent_value`, plus a deviation at the coordinates of the bin

Which bin a receiver gets is drawn from the noise. Which coordinates are in it follows from a public key, the
sender's id and the number of bins; so the bits come with a header of 8 bytes: the number of bins and the
number of this bin. The header shows r(u). With pad_bins every client has the same number of bins and the
header shows nothing; a client with more receivers than bins sends some bins to several receivers.

Decoding. Eq. (27) reads a bit without bias, as (a + b) / 2 +- c (b - a) / 2 with c = (e^e' + 1) / (e^e' - 1).
Since e' is small, c and the variance are large (c = 590 for a bin of 589 coordinates at eps = 2).
decode=shrunk reads the linear estimate with the least mean squared error, m + (U - m) / (1 + c^2), where U is
the unbiased value and m = `unsent_value` a public guess of the feature's mean. decode=unread reads m whatever
the bit is. With pad_bins larger than the number of receivers a receiver gets fewer coordinates, each with
more budget: at eps = 2 a bin of 2 coordinates has c = 2.2.

`unsent_value` also stands for coordinates of other bins. The paper takes the middle of the bounds; for
thousands of sparse features that adds more to a leaf than the client's own features do. The default is 0.
What a receiver does with a bit does not change its privacy.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.methods.common.released import FeatureBounds, noise_of
from graphfed.methods.lumos.client_trees import BitMatrix
from graphfed.methods.lumos.config import Encoding, LumosConfig
from graphfed.nn.bits import pack_bits, unpack_bits
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.privacy.bins import assign_bins, budget_of, encode_bins, order_coordinates, places_of_bin
from graphfed.privacy.local import gain
from graphfed.privacy.noise import Mechanism, Noise, chunks
from graphfed.random import entry_words, fold


def receiver_mechanism(encoding: Encoding) -> Mechanism:
    """Describe for the ledger what one receiver gets."""
    return Mechanism(
        "one-bit in bins",
        encoding.epsilon,
        f"the bits of one bin, to one receiver ({encoding.accounting}): private between any two feature "
        "vectors within the bounds",
    )


@dataclass(frozen=True, eq=False)
class EncodedFeatures:
    """The noised features that a cohort's n clients send to their receivers, R in all, sorted by (client,
    receiver).

    Attributes:
        header: [R, 2] int32: number of bins of the client, number of this bin.
        flat: [B] uint8: the packed bits of all rows.
        lengths: [R] int64: bytes of each row.
        epsilon: [n] privacy budget against the receiver that learns most.
        colluding: [n] privacy budget against all receivers together.
        coordinates: [n] int64: coordinates sent to anyone.
    """

    header: Tensor
    flat: Tensor
    lengths: Tensor
    epsilon: Tensor
    colluding: Tensor
    coordinates: Tensor


def encode(
    x: Tensor | SparseMatrix, ids: Tensor, rows: Tensor, receiver: Tensor, config: LumosConfig
) -> EncodedFeatures:
    """Encode the features x [n, d] of a cohort. Call it once in a run: bits that are drawn again spend the
    budget again.

    Args:
        ids: [n] stable ids of the clients.
        rows: [R] client of each receiver, as an index in the cohort, ascending.
        receiver: [R] stable ids of the receivers.

    Raises:
        InputError: A feature is outside its bounds.
    """
    encoding, noise = config.encoding, noise_of(config.noise)
    num_clients, width = len(ids), x.shape[1]
    # r(u); a client without a receiver has no bin, with pad_bins too.
    count = torch.bincount(rows, minlength=num_clients)
    num_bins = count if encoding.pad_bins is None else torch.where(count > 0, encoding.pad_bins, 0)
    # From a public key, so that a receiver knows the coordinates of its bin without a message.
    bins = assign_bins(bin_key(config.run.seed), ids, width, num_bins)
    # Eq. (26), for every coordinate once
    packed = encode_bins(
        x,
        ids,
        bins,
        noise,
        "lumos/bits",
        encoding.epsilon,
        encoding.accounting,
        config.bounds.feature_low,
        config.bounds.feature_high,
    )
    chosen = _chosen_bins(rows, count, ids, receiver, noise, encoding.pad_bins)
    # A number among the bins of all clients
    number = bins.first[rows] + chosen
    # A bin that several receivers get spends its budget once.
    size, sent_bins = bins.size[number], torch.unique(number)
    budget_spent = _budget_spent(bins.size, encoding, width)
    return EncodedFeatures(
        header=torch.stack([num_bins[rows], chosen], 1).int(),
        flat=_cut_bins(packed, rows, bins.start[number], size),
        lengths=bytes_of_bins(size),
        # One receiver alone: of the largest bin. All together: of every bin that was sent, each counted once.
        epsilon=budget_spent.new_zeros(num_clients).scatter_reduce(0, rows, budget_spent[number], "amax"),
        colluding=budget_spent.new_zeros(num_clients).index_add(
            0, bins.client[sent_bins], budget_spent[sent_bins]
        ),
        coordinates=count.new_zeros(num_clients).index_add(0, bins.client[sent_bins], bins.size[sent_bins]),
    )


def bin_key(seed: int) -> int:
    """Return the public key that assigns coordinates to bins."""
    return fold(seed, "lumos", "dealing")


def bytes_of_bins(size: Tensor) -> Tensor:
    """Return the bytes [R] of the packed bits of bins with `size` [R] coordinates."""
    return (size + 7) // 8


def _budget_spent(size: Tensor, encoding: Encoding, width: int) -> Tensor:
    """Return the budget that all bits of each bin spend together, float64."""
    whole = budget_of(encoding.accounting, encoding.epsilon, width, size) * size
    # With more bins than coordinates some are empty; their budget would be eps / 0.
    return torch.where(size > 0, whole, 0.0)


def _chosen_bins(
    rows: Tensor, count: Tensor, ids: Tensor, receiver: Tensor, noise: Noise, pad_bins: int | None
) -> Tensor:
    """Draw the bin that each receiver gets, [R] int64.

    The receivers of a client take its bins in a random order; with pad_bins the bins are in a random order
    too.
    """
    # The draws are 32-bit words: the factor keeps the receivers of a client together.
    # From the noise and not from the public key: nobody else may know which receiver has which bin.
    draw = noise.words("lumos/receivers", entry_words(ids[rows], receiver), 1)[:, 0].long()
    order = torch.argsort(rows * (1 << 33) + draw)
    first = count.cumsum(0) - count
    rank = torch.empty_like(rows)
    # `rows` is ascending, so the sorted rows have the same clients in the same places.
    rank[order] = torch.arange(len(rows), device=rows.device) - first[rows]
    if pad_bins is None:
        return rank
    bins = torch.argsort(noise.words("lumos/order of bins", ids, pad_bins), 1)
    # With more receivers than bins, some receivers share one.
    return bins[rows, rank % pad_bins]


def _cut_bins(packed: Tensor, rows: Tensor, start: Tensor, size: Tensor) -> Tensor:
    """Cut the bits start .. start + size - 1 out of each client's packed bits [n, D] for each of `rows` [R],
    ascending, and pack them: [B] uint8.
    """
    lengths, width = bytes_of_bins(size), 8 * packed.shape[1]
    flat = torch.empty(int(lengths.sum()), dtype=torch.uint8, device=packed.device)
    done = 0
    # A bit takes a byte while it is moved, so a few clients are processed at a time.
    for clients in chunks(len(packed), width):
        some = slice(*torch.searchsorted(rows, rows.new_tensor([clients.start, clients.stop])).tolist())
        bits = unpack_bits(packed[clients], width).flatten()
        taken = bits[ranges((rows[some] - clients.start) * width + start[some], size[some])]
        padded = bits.new_zeros(8 * int(lengths[some].sum()))
        padded[ranges(8 * (lengths[some].cumsum(0) - lengths[some]), size[some])] = taken
        piece = pack_bits(padded.view(-1, 8)).flatten()
        flat[done : done + len(piece)] = piece
        done += len(piece)
    return flat


# ---- at the receivers --------------------------------------------------------------------------------------


def announced_bins(header: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Compute the first place and the number of coordinates of each received bin, [P] int64 each; width:
    features, d.

    Raises:
        InputError: A header names a bin that does not exist.
    """
    num_bins, number = header[:, 0].long(), header[:, 1].long()
    wrong = ((number < 0) | (number >= num_bins)).nonzero()[:, 0]
    if len(wrong):
        raise InputError(f"a client sent bin {int(number[wrong[0]])} of {int(num_bins[wrong[0]])} bins")
    return places_of_bin(num_bins, number, width)


def received_features(
    header: Tensor, flat: Tensor, sender: Tensor, width: int, config: LumosConfig
) -> BitMatrix:
    """Decode received bits into deviations of x''_v from `unsent_value`, [P, d] with an entry for each
    coordinate of a bin.

    Args:
        header: [P, 2], as `EncodedFeatures.header` has them.
        flat: [B] uint8, the packed bits row after row.
        sender: [P] stable ids of the clients that sent them.
        width: The number of features d, which everyone knows.

    Raises:
        InputError: A header names a bin that does not exist, or a client has sent different headers.
    """
    # Headers come from other clients. Only the announced bins are computed: a list of all bins of a client
    # would have as many entries as the client says.
    start, size = announced_bins(header, width)
    sender_ids, first, sender_index = _distinct(sender)
    num_bins = header[:, 0]
    if not torch.equal(num_bins[first][sender_index], num_bins):
        raise InputError("a client has sent two of its receivers different numbers of bins")
    order = order_coordinates(bin_key(config.run.seed), sender_ids, width)
    encoding = config.encoding
    # An empty bin has no bits, so its budget is not used.
    budget = budget_of(encoding.accounting, encoding.epsilon, width, size.clamp(min=1))
    # [P, 2]: a bin has one value for its ones and one for its zeros.
    values = torch.stack(_deviations(budget, size, width, encoding, config.bounds), 1).to(
        torch.get_default_dtype()
    )
    columns = torch.empty(int(size.sum()), dtype=torch.int32, device=flat.device)
    bits = torch.empty(len(columns), dtype=torch.bool, device=flat.device)
    ends, starts = size.cumsum(0), 8 * (bytes_of_bins(size).cumsum(0) - bytes_of_bins(size))
    widest = int(size.max()) if len(size) else 1
    # Some pairs at a time: the places of all bits together would take 8 bytes for each bit.
    for pairs in chunks(len(size), widest):
        some = slice(int((ends - size)[pairs.start]), int(ends[pairs.stop - 1]))
        places = ranges(sender_index[pairs] * width + start[pairs], size[pairs])
        columns[some] = order.flatten()[places].int()
        positions = ranges(starts[pairs], size[pairs])
        bits[some] = ((flat[positions >> 3] >> (positions & 7).to(torch.uint8)) & 1).bool()
    return BitMatrix.of(columns, bits, size, values, width)


def _distinct(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct ids, the first index of each, and for each id its index among the distinct ones."""
    sender_ids, sender_index = torch.unique(ids, return_inverse=True)
    first = torch.full_like(sender_ids, len(ids)).scatter_reduce(
        0, sender_index, torch.arange(len(ids), device=ids.device), "amin"
    )
    return sender_ids, first, sender_index


def _deviations(
    budget: Tensor, size: Tensor, width: int, encoding: Encoding, bounds: FeatureBounds
) -> tuple[Tensor, Tensor]:
    """Return how far a bit of 1, and a bit of 0, of each bin moves the value from `unsent_value`, float64 [P]
    each.
    """
    low, high = bounds.feature_low, bounds.feature_high
    # c = (e^e' + 1) / (e^e' - 1)
    c = gain(budget)
    # Eq. (27): U = (a + b) / 2 +- (b - a) / 2 c
    up, down = ((low + high) / 2 + sign * (high - low) / 2 * c for sign in (1, -1))
    # The value read is m + shrinkage (U - m), m = unsent_value.
    if encoding.decode == "unread":
        shrinkage = torch.zeros_like(c)
    elif encoding.decode == "shrunk":
        # Least mean squared error if the feature varies by (b - a) / 2 about m, and the bit by c times that
        shrinkage = 1 / (1 + c * c)
    else:
        # d / |bin|: unbiased over the choice of the bin's coordinates too
        shrinkage = width / size.clamp(min=1) if encoding.rescale else torch.ones_like(c)
    return shrinkage * (up - encoding.unsent_value), shrinkage * (down - encoding.unsent_value)

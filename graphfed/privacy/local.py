"""Local differential privacy: what a device does to a value before it leaves.

A randomised map M is epsilon-locally differentially private when for any two inputs x, y and any output o
Pr[M(x) = o] <= e^epsilon Pr[M(y) = o]. Everything here is vectorised over devices, in pieces of bounded size,
and takes its noise from `graphfed.privacy.noise`.

Finite precision. A coin is decided by one of the 2^32 words, so its probabilities are whole numbers of 2^-32.
The rarer side's number is rounded up (`rare`): every ratio of two probabilities is then at most e^epsilon as
it stands, not up to rounding, and what is decoded takes the rounded numbers. tests/privacy/test_local.py goes
through all outputs.

Mechanisms: `one_bit` (Lumos, Eqs. (26) and (27)), `multi_bit` and `randomised_response` (LPGNN;
docs/papers/lumos.md, Baselines).
Assigning coordinates to receivers is in `bins`, edges in `edges`, the Gaussian mechanism in `gaussian`."""

import math

import torch
from torch import Tensor

from graphfed.errors import InputError, shown
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy.noise import Mechanism, Noise, chunks

__all__ = [
    "check_bounds",
    "coins",
    "decode_one_bit",
    "dense_rows",
    "gain",
    "label_mechanism",
    "multi_bit",
    "multi_bit_count",
    "multi_bit_mechanism",
    "one_bit",
    "randomised_response",
    "rare",
    "response_matrix",
]

#: How many values a word has, and how a signed word becomes one of 0 .. WORDS - 1.
WORDS, SHIFT = 1 << 32, 1 << 31


def rare(epsilon: Tensor | float) -> Tensor:
    """2^32 / (e^epsilon + 1), rounded up: of how many words a coin with budget epsilon falls on its rarer
    side. float64 whole numbers, shaped as `epsilon`. InputError where nothing would be left of the
    signal."""
    epsilon = torch.as_tensor(epsilon, dtype=torch.float64)
    if not bool((epsilon > 0).all()):
        worst = float(epsilon[~(epsilon > 0)].flatten()[0])
        raise InputError(f"a privacy budget must be above 0; got {shown(worst)}; raise epsilon")
    # sigmoid(-epsilon) = 1 / (e^epsilon + 1) without overflow. Its last bits are unsure, so the next whole
    # number is taken of one that is surely not too small.
    count = (torch.sigmoid(-epsilon) * (WORDS * (1 + 2.0**-40))).floor() + 1
    if bool((count >= SHIFT).any()):
        raise InputError(
            f"a privacy budget of {float(epsilon.min()):g} for one bit leaves nothing of it; raise epsilon "
            "or send fewer coordinates"
        )
    return count


def gain(epsilon: Tensor | float) -> Tensor:
    """c = (e^epsilon + 1) / (e^epsilon - 1) of (27), by the rounded coin: float64, shaped as `epsilon`."""
    return WORDS / (WORDS - 2 * rare(epsilon))


def one_bit(x: Tensor, epsilon: Tensor | float, words: Tensor, low: float, high: float) -> Tensor:
    """The one-bit mechanism: a bit for each value, bool shaped as x.

    x: values in [low, high] (see `check_bounds`); epsilon: the budget of each bit, a number or a tensor that
    broadcasts against x; words: one int32 word for each value (`Noise.words`).

    Each bit is epsilon-private: Pr[1] lies between rare and 1 - rare (in words) whatever x is, and the ratio
    of any two such probabilities, of 1 as of 0, is at most (1 - rare) / rare <= e^epsilon."""
    return coins(x, rare(epsilon).to(x.device), words, low, high)


def coins(x: Tensor, count: Tensor, words: Tensor, low: float, high: float) -> Tensor:
    """`one_bit` with count = ``rare(epsilon)``, for who has worked that out."""
    share = (x.double() - low) / (high - low)
    # Eq. (26): Pr[1] = 1 / (e^eps + 1) + share (e^eps - 1) / (e^eps + 1), in words. The sum never leaves
    # [count, WORDS - count]: its largest value is a whole number, and rounding keeps the order.
    return words.double() < count + share.clamp(0, 1) * (WORDS - 2 * count) - SHIFT


def decode_one_bit(
    bits: Tensor, epsilon: Tensor | float, low: float, high: float, scale: Tensor | float = 1.0
) -> Tensor:
    """(27): (low + high) / 2 + (2 bit - 1) (high - low) / 2 * c * scale, in the default dtype.

    Without `scale` its expectation is x, for a coordinate that was sent, exactly at low and high and within
    (high - low) c / 2^31 between them. Where a coordinate is sent with probability s (and read as the
    middle else), scale = 1 / s makes it so over the sending too: d / |bin| for bins (`rescale`), d / m for
    `multi_bit`."""
    deviation = (high - low) / 2 * gain(epsilon).to(bits.device) * scale
    return ((low + high) / 2 + torch.where(bits, deviation, -deviation)).to(torch.get_default_dtype())


def multi_bit_count(epsilon: float, width: int) -> int:
    """m = max(1, min(d, floor(epsilon / 2.18))): how many coordinates a device sends a bit of (6.5)."""
    return max(1, min(width, int(min(epsilon / 2.18, width))))


def multi_bit_mechanism(epsilon: float, width: int) -> Mechanism:
    """One release of `multi_bit`."""
    count = multi_bit_count(epsilon, width)
    return Mechanism(
        "multi-bit",
        epsilon,
        f"{count} of the {width} coordinates of a node, drawn at random, with a bit each at epsilon "
        f"{epsilon / count:g}: private between any two feature vectors within the bounds",
    )


def multi_bit(
    x: Tensor | SparseMatrix, ids: Tensor, noise: Noise, purpose: str, epsilon: float, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """The multi-bit mechanism of LPGNN: the coordinates [N, m] int64 that each row sends, and its bits
    [N, m].

    x [N, d] in [low, high] (InputError where not), ids [N] stable. m coordinates are drawn without
    replacement and whatever x is; each gets a bit with budget epsilon / m, so the release of a row is
    epsilon-private. `decode_one_bit` with epsilon / m and scale d / m is unbiased over the drawing and the
    noise (a coordinate not sent counts as the middle)."""
    count, width = multi_bit_count(epsilon, x.shape[1]), x.shape[1]
    columns = torch.empty(len(ids), count, dtype=torch.int64, device=ids.device)
    bits = torch.empty(len(ids), count, dtype=torch.bool, device=ids.device)
    for rows in chunks(len(ids), width):
        values = dense_rows(x, rows)
        check_bounds(values, ids[rows], low, high)
        draws = noise.words(f"{purpose}/coordinates", ids[rows], count).long() + SHIFT
        coins = noise.words(f"{purpose}/bits", ids[rows], count)
        columns[rows] = _draw_without_replacement(draws, width)
        bits[rows] = one_bit(values.gather(1, columns[rows]), epsilon / count, coins, low, high)
    return columns, bits


def _draw_without_replacement(draws: Tensor, width: int) -> Tensor:
    """The first m steps of Fisher and Yates' shuffle of 0..width-1 in every row: draws [n, m] uniform in
    0..2^32-1 -> [n, m]. A column's chance is off 1 / (d - j) by at most 2^-32, which privacy does not rest
    on."""
    n, count = draws.shape
    order = torch.arange(width, device=draws.device).repeat(n, 1)
    row = torch.arange(n, device=draws.device)
    for j in range(count):
        other = j + (draws[:, j] * (width - j) >> 32)
        chosen, first = order[row, other], order[:, j].clone()  # of one row torch takes no overlap
        order[row, other] = first
        order[:, j] = chosen
    return order[:, :count]


def label_mechanism(epsilon: float, num_classes: int) -> Mechanism:
    """One release of `randomised_response`."""
    return Mechanism(
        "randomised response",
        epsilon,
        f"the class of a node, one of {num_classes}: private between any two classes; that the node has "
        "a label is not hidden",
    )


def _other_class(epsilon: float, num_classes: int) -> int:
    """2^32 / (e^epsilon + C - 1), rounded up: of how many words each other class is told."""
    if not epsilon > 0:
        raise InputError(f"a privacy budget must be above 0; got {shown(epsilon)}; raise epsilon")
    share = math.exp(-epsilon) / (1 + (num_classes - 1) * math.exp(-epsilon))
    return math.floor(share * WORDS * (1 + 2.0**-40)) + 1


def response_matrix(epsilon: float, num_classes: int) -> Tensor:
    """T [C, C] float64: T[y, z] = Pr[z is told | y is true] of `randomised_response`, as its words give
    it."""
    other = _other_class(epsilon, num_classes) / WORDS
    keep = 1 - (num_classes - 1) * other
    return torch.full((num_classes, num_classes), other, dtype=torch.float64).fill_diagonal_(keep)


def randomised_response(
    labels: Tensor, ids: Tensor, noise: Noise, purpose: str, epsilon: float, num_classes: int
) -> Tensor:
    """Randomised response: a class for each label, [n] int64; the true one with probability
    e^epsilon / (e^epsilon + C - 1), each other one with 1 / (e^epsilon + C - 1).

    labels [n] in 0..C-1 of rows with ids [n]. The ratio of any two rows of `response_matrix` is at most
    e^epsilon in every column."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise InputError(
            f"a label is {int(labels.min())} or {int(labels.max())} where the classes are "
            f"0..{num_classes - 1}; check the labels"
        )
    word = noise.words(purpose, ids, 1)[:, 0].long() + SHIFT
    # The first words stand for the others, class after class; the rest keep the true one.
    place = word // _other_class(epsilon, num_classes)
    return torch.where(place < num_classes - 1, (labels + 1 + place) % num_classes, labels)


def check_bounds(x: Tensor, ids: Tensor, low: float, high: float) -> None:
    """InputError where one of the values x [n, d] of nodes with ids [n] is outside [low, high]."""
    outside = ~((x >= low) & (x <= high))
    if bool(outside.any()):
        row, column = outside.nonzero()[0].tolist()
        raise InputError(
            f"node {int(ids[row])} has {float(x[row, column]):g} in feature {column}, outside "
            f"feature_low={low:g} .. feature_high={high:g}, which the noise is made for; scale the features, "
            "or set bounds that hold for every node (public, not taken from private data)"
        )


def dense_rows(x: Tensor | SparseMatrix, rows: slice) -> Tensor:
    """Some consecutive rows of x [N, d] as a dense matrix [n, d]."""
    return x.slice_rows(rows.start, rows.stop).to_dense() if isinstance(x, SparseMatrix) else x[rows]

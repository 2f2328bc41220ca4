"""Local differential privacy: what a client does to a value before it sends it.

A randomised map M is epsilon-locally differentially private if for any two inputs x, y and any output o
Pr[M(x) = o] <= e^epsilon Pr[M(y) = o] (Lumos, Eq. (8)). All functions work on many clients at once, some rows
at a time, and take their noise from `graphfed.privacy.noise`.

Finite precision. One of 2^32 words decides a bit or a class, so probabilities are multiples of 2^-32. The
number of words of the rarer outcome is rounded up (`rare`, `_other_class`), and a budget is refused if that
makes it as likely as the true one: every ratio of two probabilities is at most e^epsilon in the machine's
numbers too, and decoding uses the rounded numbers. tests/privacy/test_local.py goes through all outputs.

Mechanisms: `one_bit` (Lumos, Eqs. (26) and (27)), and `multi_bit` and `randomised_response` of LPGNN
(docs/papers/lumos_results.md, "Baselines"). `bins` partitions coordinates among receivers, `edges` flips
edges, `gaussian` has the Gaussian mechanism.
"""

import math

import torch
from torch import Tensor

from graphfed.errors import InputError, shown
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy.noise import Mechanism, Noise, chunks

#: Number of values of a word, and what makes a signed word one of 0 .. WORDS - 1.
WORDS, SHIFT = 1 << 32, 1 << 31


def rare(epsilon: Tensor | float) -> Tensor:
    """Compute how many of the 2^32 words give a bit with budget epsilon its rarer outcome: 2^32 / (e^epsilon
    + 1), rounded up.

    Args:
        epsilon: Budget of the bit, a number or a tensor.

    Returns:
        float64 whole numbers, of the shape of `epsilon`.

    Raises:
        InputError: A budget is not above 0, or so small that both outcomes are equally likely.
    """
    epsilon = torch.as_tensor(epsilon, dtype=torch.float64)
    if not bool((epsilon > 0).all()):
        worst = float(epsilon[~(epsilon > 0)].flatten()[0])
        raise InputError(f"a privacy budget must be above 0; got {shown(worst)}; raise epsilon")
    # sigmoid(-epsilon) = 1 / (e^epsilon + 1) without overflow. Its last bits may be wrong, so it is made a
    # little larger before it is rounded up.
    # Rounded up also where the product is a whole number: the rarer outcome never has too few words.
    count = (torch.sigmoid(-epsilon) * (WORDS * (1 + 2.0**-40))).floor() + 1
    if bool((count >= SHIFT).any()):
        raise InputError(
            f"with a privacy budget of {float(epsilon.min()):g} a bit carries no information; raise epsilon, "
            "or send fewer coordinates"
        )
    return count


def gain(epsilon: Tensor | float) -> Tensor:
    """Compute c = (e^epsilon + 1) / (e^epsilon - 1) from the rounded probabilities.

    Args:
        epsilon: Budget of the bit, a number or a tensor.

    Returns:
        float64, of the shape of `epsilon`.

    Reference:
        Lumos, Eq. (27).
    """
    # (1 - p) - p in words: decoding without bias needs the probabilities that were drawn with.
    return WORDS / (WORDS - 2 * rare(epsilon))


def one_bit(x: Tensor, epsilon: Tensor | float, words: Tensor, low: float, high: float) -> Tensor:
    """Encode each value as a noised bit.

    Pr[1] lies between rare / 2^32 and 1 - rare / 2^32 for every x. So the ratio of any two such
    probabilities, and of those of 0, is at most (1 - rare / 2^32) / (rare / 2^32) <= e^epsilon.

    Args:
        x: Values in [low, high]; see `check_bounds`.
        epsilon: Budget of each bit, a number or a tensor that broadcasts against x.
        words: A uniform int32 word for each value; see `Noise.words`.
        low: Public lower bound of the values.
        high: Public upper bound of the values, above `low`.

    Returns:
        bool, of the shape of x.

    Reference:
        Lumos, Eq. (26).
    """
    return coins(x, rare(epsilon).to(x.device), words, low, high)


def coins(x: Tensor, count: Tensor, words: Tensor, low: float, high: float) -> Tensor:
    """Encode each value as a noised bit, for callers that have computed ``rare(epsilon)``.

    Args:
        x: Values in [low, high]; see `check_bounds`.
        count: ``rare(epsilon)``, float64; it broadcasts against x.
        words: A uniform int32 word for each value.
        low: Public lower bound of the values.
        high: Public upper bound of the values, above `low`.

    Returns:
        bool, of the shape of x.

    Reference:
        Lumos, Eq. (26).
    """
    position = (x.double() - low) / (high - low)
    # Eq. (26): Pr[1] = 1 / (e^eps + 1) + position (e^eps - 1) / (e^eps + 1), in words. The sum never leaves
    # [count, WORDS - count]: its largest value is a whole number, and rounding keeps the order.
    return words.double() < count + position.clamp(0, 1) * (WORDS - 2 * count) - SHIFT


def decode_one_bit(
    bits: Tensor, epsilon: Tensor | float, low: float, high: float, scale: Tensor | float = 1.0
) -> Tensor:
    """Decode bits without bias: (low + high) / 2 + (2 bit - 1) (high - low) / 2 * c * scale.

    With scale = 1 the expectation of a coordinate that was sent is x, exactly at low and high and within
    (high - low) c / 2^31 between them. If a coordinate is sent with probability s and read as the middle
    otherwise, scale = 1 / s makes the expectation x over the choice of coordinates too: d / |bin| for bins
    (`rescale`), d / m for `multi_bit`.

    Args:
        bits: The noised bits, bool of any shape.
        epsilon: Budget of each bit, as when it was encoded.
        low: Public lower bound of the values.
        high: Public upper bound of the values.
        scale: Factor of the deviation from the middle.

    Returns:
        The values, of the shape of `bits`, in the default dtype.

    Reference:
        Lumos, Eq. (27).
    """
    deviation = (high - low) / 2 * gain(epsilon).to(bits.device) * scale
    return ((low + high) / 2 + torch.where(bits, deviation, -deviation)).to(torch.get_default_dtype())


def multi_bit_count(epsilon: float, width: int) -> int:
    """Compute how many coordinates a client sends a bit of: m = max(1, min(d, floor(epsilon / 2.18))).

    Args:
        epsilon: Privacy budget of a node's features.
        width: d, the number of features.

    Returns:
        m.
    """
    # The inner minimum keeps `int` from an infinite epsilon.
    return max(1, min(width, int(min(epsilon / 2.18, width))))


def multi_bit_mechanism(epsilon: float, width: int) -> Mechanism:
    """Describe one release of `multi_bit`.

    Args:
        epsilon: Privacy budget of a node's features.
        width: d, the number of features.

    Returns:
        The mechanism.
    """
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
    """Encode features by the multi-bit mechanism of LPGNN.

    m coordinates are drawn without replacement, independently of x; each gets a bit with budget epsilon / m,
    so the release of a row is epsilon-private. `decode_one_bit` with epsilon / m and scale d / m is unbiased
    over the choice and the noise, if a coordinate that was not sent is read as the middle.

    Args:
        x: [N, d] features in [low, high].
        ids: [N] stable ids of the nodes.
        noise: The source of the words of coordinates and bits.
        purpose: The name of the draws, used for this release only.
        epsilon: Privacy budget of a node's features.
        low: Public lower bound of every feature.
        high: Public upper bound of every feature.

    Returns:
        The coordinates that each row sends, [N, m] int64, and their bits, [N, m] bool.

    Raises:
        InputError: A feature is outside the bounds.

    Reference:
        Sajadmanesh and Gatica-Perez 2021 (LPGNN).
    """
    count, width = multi_bit_count(epsilon, x.shape[1]), x.shape[1]
    columns = torch.empty(len(ids), count, dtype=torch.int64, device=ids.device)
    bits = torch.empty(len(ids), count, dtype=torch.bool, device=ids.device)
    for rows in chunks(len(ids), width):
        values = dense_rows(x, rows)
        check_bounds(values, ids[rows], low, high)
        # The coordinates are drawn without looking at x, so only the bits cost budget.
        draws = noise.words(f"{purpose}/coordinates", ids[rows], count).long() + SHIFT
        coins = noise.words(f"{purpose}/bits", ids[rows], count)
        columns[rows] = _draw_without_replacement(draws, width)
        bits[rows] = one_bit(values.gather(1, columns[rows]), epsilon / count, coins, low, high)
    return columns, bits


def _draw_without_replacement(draws: Tensor, width: int) -> Tensor:
    """Take the first m steps of a Fisher-Yates shuffle of 0..width-1 in every row.

    draws [n, m] are uniform in 0..2^32-1. The probability of a column differs from 1 / (d - j) by at most
    2^-32; privacy does not depend on it.
    """
    n, count = draws.shape
    order = torch.arange(width, device=draws.device).repeat(n, 1)
    row = torch.arange(n, device=draws.device)
    for j in range(count):
        # A number in j .. width - 1: the upper part of the product of a 32-bit word and the count of choices.
        other = j + (draws[:, j] * (width - j) >> 32)
        # A copy, because with one row torch refuses to write to what it reads.
        chosen, first = order[row, other], order[:, j].clone()
        order[row, other] = first
        order[:, j] = chosen
    return order[:, :count]


def label_mechanism(epsilon: float, num_classes: int) -> Mechanism:
    """Describe one release of `randomised_response`.

    Args:
        epsilon: Privacy budget of a label, above 0.
        num_classes: C, the number of classes.

    Returns:
        The mechanism.
    """
    return Mechanism(
        "randomised response",
        epsilon,
        f"the class of a node, one of {num_classes}: private between any two classes; that the node has "
        "a label is not hidden",
    )


def _other_class(epsilon: float, num_classes: int) -> int:
    """Compute how many words give each class but the true one: 2^32 / (e^epsilon + C - 1), rounded up.

    Raises:
        InputError: The budget is not above 0, or so small that the true class is no likelier than another.
    """
    if not epsilon > 0:
        raise InputError(f"a privacy budget must be above 0; got {shown(epsilon)}; raise epsilon")
    # e^-eps in numerator and denominator: e^eps overflows for large budgets.
    probability = math.exp(-epsilon) / (1 + (num_classes - 1) * math.exp(-epsilon))
    count = math.floor(probability * WORDS * (1 + 2.0**-40)) + 1
    # The true class has the words that are left, so it pays for rounding up C - 1 times. Below, another class
    # would be likelier than the true one, by more than e^epsilon if there are many.
    if count * num_classes >= WORDS:
        raise InputError(
            f"with a privacy budget of {epsilon:g} a label of {num_classes} classes carries no information; "
            "raise epsilon"
        )
    return count


def response_matrix(epsilon: float, num_classes: int) -> Tensor:
    """Compute the probabilities of `randomised_response`, as its words give them.

    Args:
        epsilon: Privacy budget of a label, above 0.
        num_classes: C, the number of classes.

    Returns:
        [C, C] float64: T[y, z] is the probability that z is released if y is true.
    """
    other = _other_class(epsilon, num_classes) / WORDS
    keep = 1 - (num_classes - 1) * other
    return torch.full((num_classes, num_classes), other, dtype=torch.float64).fill_diagonal_(keep)


def randomised_response(
    labels: Tensor, ids: Tensor, noise: Noise, purpose: str, epsilon: float, num_classes: int
) -> Tensor:
    """Draw the words of `respond`, and release a class for each label.

    Args:
        labels: [n] int64, classes 0..C-1.
        ids: [n] stable ids of the nodes.
        noise: The source of the labels' words.
        purpose: The name of the draws, used for this release only.
        epsilon: Privacy budget of a label, above 0.
        num_classes: C, the number of classes.

    Returns:
        [n] int64.

    Raises:
        InputError: A label is no class, or the budget is too small for the number of classes.
    """
    return respond(labels, noise.words(purpose, ids, 1)[:, 0], epsilon, num_classes)


def respond(labels: Tensor, words: Tensor, epsilon: float, num_classes: int) -> Tensor:
    """Release a class for each label: randomised response.

    The true class is released with probability e^epsilon / (e^epsilon + C - 1), each other class with 1 /
    (e^epsilon + C - 1). The ratio of any two rows of `response_matrix` is at most e^epsilon in every column.

    Args:
        labels: [n] int64, classes 0..C-1.
        words: [n] uniform int32 words, one for each label; see `Noise.words`.
        epsilon: Privacy budget of a label, above 0.
        num_classes: C, the number of classes.

    Returns:
        [n] int64.

    Raises:
        InputError: A label is no class, or the budget is too small for the number of classes.
    """
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise InputError(
            f"a label is {int(labels.min())} or {int(labels.max())} where the classes are "
            f"0..{num_classes - 1}; check the labels"
        )
    # The first words stand for the other classes, one class after the other; the rest for the true class.
    place = (words.long() + SHIFT) // _other_class(epsilon, num_classes)
    return torch.where(place < num_classes - 1, (labels + 1 + place) % num_classes, labels)


def check_bounds(x: Tensor, ids: Tensor, low: float, high: float) -> None:
    """Check that values are within their bounds.

    Args:
        x: [n, d] features; NaN is outside any bounds.
        ids: [n] ids of the nodes, for the message.
        low: Public lower bound of every feature.
        high: Public upper bound of every feature.

    Raises:
        InputError: A value is outside [low, high].
    """
    # Written so that NaN, which compares as false, is outside.
    outside = ~((x >= low) & (x <= high))
    if bool(outside.any()):
        row, column = outside.nonzero()[0].tolist()
        raise InputError(
            f"node {int(ids[row])} has {float(x[row, column]):g} in feature {column}, outside "
            f"feature_low={low:g} .. feature_high={high:g}, for which the noise is computed; scale the "
            "features, or set public bounds that hold for every node (do not take them from private data)"
        )


def dense_rows(x: Tensor | SparseMatrix, rows: slice) -> Tensor:
    """Return consecutive rows of a matrix as a dense one.

    Args:
        x: [N, d] matrix, dense or sparse.
        rows: A slice of n consecutive rows.

    Returns:
        [n, d].
    """
    return x.slice_rows(rows.start, rows.stop).to_dense() if isinstance(x, SparseMatrix) else x[rows]

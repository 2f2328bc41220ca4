"""Counter-based random draws for training: a draw is a function of its key, never of storage order.

A key comes from (seed, purpose, round, step, ...); a draw from the key, a stable row id and a column. So a
node gets the same draw wherever its row is stored: with clients stacked, one at a time, or in separate
processes. A copy of a row at another client gets the same draw too; methods that need different ones put the
client's stable id into the key.

The generator is a 64-bit mixing hash (the finaliser of SplitMix64, Steele, Lea and Flood 2014). It is fast
and well mixed and NOT cryptographic. Privacy noise and secrets come from the operating system's entropy
instead, except noise that a stated seed makes repeatable and that protects nothing
(`graphfed.privacy.noise`).

Shapes: N rows, E entries of a sparse matrix. Ids and words are int64 tensors; results lie on the torch device
of the ids.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

#: How many words are hashed at a time on the CPU.
PART = 1 << 15

# The constants of SplitMix64. The golden ratio's fraction keeps the words of successive counters far apart.
_MASK = (1 << 64) - 1
_C1, _C2, _GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15


def _signed(word: int) -> int:
    """The same 64 bits as a signed integer, as torch stores them."""
    return word - (1 << 64) if word >> 63 else word


# As torch multiplies by them, once and not in every draw.
_SIGNED_C1, _SIGNED_C2, _SIGNED_GOLDEN = _signed(_C1), _signed(_C2), _signed(_GOLDEN)


def _mix_int(z: int) -> int:
    """Mix 64 bits, as an unsigned integer: the finaliser of SplitMix64."""
    z = ((z ^ (z >> 30)) * _C1) & _MASK
    z = ((z ^ (z >> 27)) * _C2) & _MASK
    return z ^ (z >> 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros. On int64 tensors `>>` repeats the sign bit, which the mask removes."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    """The same function as `_mix_int`, on int64 tensors."""
    z = _shifted(z, 30).bitwise_xor_(z).mul_(_SIGNED_C1)
    z = _shifted(z, 27).bitwise_xor_(z).mul_(_SIGNED_C2)
    return _shifted(z, 31).bitwise_xor_(z)


def fold(seed: int, *parts: int | str) -> int:
    """Make a 64-bit key from a seed and the parts that name a use.

    ``fold(seed, "dropout", round, step, layer)``: other parts, or another order, give another key.

    Args:
        parts: Text, and integers in [0, 2^63), in order.
    """
    # The constant keeps seed 0 from giving key 0, which `_mix_int` maps to 0.
    key = _mix_int((seed + _GOLDEN) & _MASK)
    for part in parts:
        if isinstance(part, str):
            # The length comes first, with the top bit set: no sequence of parts reads like another.
            data = part.encode()
            words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
            words.insert(0, len(data) | 1 << 63)
        else:
            words = [int(part) & _MASK]
        for word in words:
            # A step for every word, so that the order of the parts counts.
            key = _mix_int(((key + _GOLDEN) & _MASK) ^ word)
    return key


def entry_words(ids: Tensor, columns: Tensor) -> Tensor:
    """Make one 64-bit word for each entry of a sparse matrix. Made once for each matrix, before any key.

    Args:
        ids: [E] int64, the stable id of each entry's row.
        columns: [E] int64, the column of each entry.

    Returns:
        [E] int64.
    """
    return _mix(ids * _SIGNED_GOLDEN + columns)


def bernoulli_entries(key: int, words: Tensor, p: float) -> Tensor:
    """Draw True with probability `p` for each entry of a sparse matrix.

    Args:
        key: The key of these draws (`fold`).
        words: [E] int64, one for each entry (`entry_words`).
        p: The probability, at least 0 and less than 1.

    Returns:
        [E] bool.
    """
    # A signed 64-bit word below p * 2^64 - 2^63; a float has 53 bits, so one part in 9e15 from p.
    limit = min(int(p * 2.0**64), _MASK) - (1 << 63)
    drawn = torch.empty(words.shape, dtype=torch.bool, device=words.device)
    for part in _parts(words):
        torch.lt(_mix(words[part] ^ _signed(key)), limit, out=drawn[part])
    return drawn


def uniform_entries(key: int, words: Tensor) -> Tensor:
    """Draw a uniform number in [0, 1) of 53 bits for each entry of a sparse matrix.

    Args:
        key: The key of these draws (`fold`).
        words: [E] int64, one for each entry (`entry_words`).

    Returns:
        [E] float64.
    """
    draws = torch.empty(words.shape, dtype=torch.float64, device=words.device)
    for part in _parts(words):
        # The upper 53 bits, as many as a float64 can hold exactly.
        draws[part] = _shifted(_mix(words[part] ^ _signed(key)), 11)
    return draws.mul_(2.0**-53)


def _parts(words: Tensor) -> Iterator[slice]:
    """Split words into parts that fit the CPU's cache, because a hash passes over them a dozen times."""
    size = PART if words.device.type == "cpu" else max(len(words), 1)
    for first in range(0, len(words), size):
        yield slice(first, first + size)


def _lane_threshold(p: float) -> int:
    """The number of the 65 536 values of a 16-bit lane that are drawn as True. It is never all of them."""
    return min(round(p * 65536), 65535)


def lane_probability(p: float) -> float:
    """Return the probability with which `bernoulli_rows` draws True.

    Args:
        p: The probability that it is asked for.

    Returns:
        The nearest multiple of 2^-16 below 1.
    """
    # 16 bits give a multiple of 2^-16; callers that divide by the probability need the real one.
    return _lane_threshold(p) / 65536


def bernoulli_rows(key: int, ids: Tensor, width: int, p: float) -> Tensor:
    """Draw True with probability ``lane_probability(p)`` for each row id and column.

    Args:
        key: The key of these draws (`fold`).
        ids: [N] int64, the stable ids of the rows.
        width: The number of columns.
        p: The probability that is asked for, in [0, 1).

    Returns:
        [N, width] bool.
    """
    # One word of 64 bits gives four columns of 16 bits, so a draw costs a quarter of a hash.
    words = _row_words(key, ids, (width + 3) // 4)
    # Little-endian lanes as signed 16-bit numbers: uniform on [-32768, 32767].
    return (words.view(torch.int16) < _lane_threshold(p) - 32768)[:, :width]


def _row_words(key: int, ids: Tensor, width: int) -> Tensor:
    """Make one 64-bit word for each row id and column: [N, width] int64."""
    columns = torch.arange(width, device=ids.device) * _SIGNED_C1
    # Mixed twice: first the row under the key, then the column, so that rows and columns cannot cancel.
    return _mix(_mix(ids * _SIGNED_GOLDEN ^ _signed(key))[:, None] + columns)


def uniform(key: int, ids: Tensor, width: int = 1) -> Tensor:
    """Draw a uniform number in [0, 1) of 53 bits for each row id and column.

    Args:
        key: The key of these draws (`fold`).
        ids: [N] int64, the stable ids of the rows.
        width: The number of columns.

    Returns:
        [N, width] float64.
    """
    return _shifted(_row_words(key, ids, width), 11).double() * 2.0**-53


def normal(key: int, ids: Tensor, width: int = 1) -> Tensor:
    """Draw a number of the standard normal distribution for each row id and column.

    Args:
        key: The key of these draws (`fold`).
        ids: [N] int64, the stable ids of the rows.
        width: The number of columns.

    Returns:
        [N, width] float64.

    Reference:
        Box and Muller, Annals of Mathematical Statistics 29, 1958.
    """
    radius, angle = uniform(key, ids, 2 * width).chunk(2, 1)
    # log(1 - u) and not log(u): u can be 0, and 1 - u cannot.
    return (-2 * torch.log1p(-radius)).sqrt() * torch.cos(2 * math.pi * angle)


def words32(key: int, ids: Tensor, width: int) -> Tensor:
    """Draw 32 random bits for each row id and column.

    Args:
        key: The key of these draws (`fold`).
        ids: [N] int64, the stable ids of the rows.
        width: The number of columns.

    Returns:
        [N, width] int32.
    """
    return _row_words(key, ids, (width + 1) // 2).view(torch.int32)[:, :width]


def permutation(key: int, n: int) -> Tensor:
    """Draw a uniformly random order.

    Returns:
        [n] int64 on the CPU, the numbers 0..n-1.
    """
    # Two draws of 53 bits are equal with probability n^2 / 2^54; then the lower number comes first.
    return torch.argsort(uniform(key, torch.arange(n))[:, 0], stable=True)


def glorot(key: int, *shape: int, fan: tuple[int, int] | None = None) -> Tensor:
    """Draw weights U(-a, a) with a = sqrt(6 / (fan_in + fan_out)), in the default dtype.

    Args:
        fan: (fan_in, fan_out); the last two dimensions without it.

    Returns:
        The weights, drawn as by `uniform_weights`.

    Reference:
        Glorot and Bengio, AISTATS 2010.
    """
    fan_in, fan_out = fan or (shape[-2], shape[-1])
    return uniform_weights(key, math.sqrt(6 / (fan_in + fan_out)), *shape)


def uniform_weights(key: int, bound: float, *shape: int) -> Tensor:
    """Draw weights U(-bound, bound) in the default dtype.

    They are drawn on the CPU, so every torch device starts alike.
    """
    draws = uniform(key, torch.arange(shape[0]), math.prod(shape[1:])).reshape(shape)
    return ((2 * draws - 1) * bound).to(torch.get_default_dtype())

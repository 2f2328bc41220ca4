"""Counter-based random draws for training: a draw is a function of its key, never of storage order.

A key comes from (seed, purpose, round, step, ...); a draw from the key, a stable row id and a column. So a
node gets the same draw wherever its row is stored: clients stacked, one at a time, or in separate
processes; and a copy of a row at another client draws the same (methods that need different copies put the
client's stable id into the key).

The generator is a 64-bit mixing hash (the finaliser of SplitMix64, Steele, Lea and Flood 2014). It is fast
and well mixed and NOT cryptographic: privacy noise and secrets come from the operating system's entropy and
not from here, but for noise that a stated seed makes repeatable and that protects nothing
(`graphfed.privacy.noise`). Ids and words are int64 tensors; results lie on the device of the ids.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = [
    "bernoulli_entries",
    "bernoulli_rows",
    "entry_words",
    "fold",
    "glorot",
    "lane_probability",
    "permutation",
    "uniform",
    "uniform_entries",
    "uniform_weights",
    "words32",
]

#: Words that are hashed at a time.
PART = 1 << 15

_MASK = (1 << 64) - 1
_C1, _C2, _GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15


def _signed(word: int) -> int:
    """The same 64 bits as a signed integer, as torch stores them."""
    return word - (1 << 64) if word >> 63 else word


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * _C1) & _MASK
    z = ((z ^ (z >> 27)) * _C2) & _MASK
    return z ^ (z >> 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits with zeros moved in: on int64 tensors `>>` repeats the sign bit, which is masked away."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    """The same function on int64 tensors."""
    z = _shifted(z, 30).bitwise_xor_(z).mul_(_signed(_C1))
    z = _shifted(z, 27).bitwise_xor_(z).mul_(_signed(_C2))
    return _shifted(z, 31).bitwise_xor_(z)


def fold(seed: int, *parts: int | str) -> int:
    """A 64-bit key from a seed and the parts that name a use, in order: text, and integers in [0, 2^63).

    ``fold(seed, "dropout", round, step, layer)``: any other parts, or another order, give another key."""
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
            key = _mix_int(((key + _GOLDEN) & _MASK) ^ word)
    return key


def entry_words(ids: Tensor, columns: Tensor) -> Tensor:
    """One 64-bit word per (row id, column), [E] each -> [E] int64: made once per matrix, before any key."""
    return _mix(ids * _signed(_GOLDEN) + columns)


def bernoulli_entries(key: int, words: Tensor, p: float) -> Tensor:
    """True with probability `p` for each entry of a sparse matrix, [E] bool. `words`: from `entry_words`."""
    # A signed 64-bit word below p * 2^64 - 2^63; a float has 53 bits, so one part in 9e15 from p.
    limit = min(int(p * 2.0**64), _MASK) - (1 << 63)
    drawn = torch.empty(words.shape, dtype=torch.bool, device=words.device)
    for part in _parts(words):
        torch.lt(_mix(words[part] ^ _signed(key)), limit, out=drawn[part])
    return drawn


def uniform_entries(key: int, words: Tensor) -> Tensor:
    """A uniform draw in [0, 1) of 53 bits for each entry of a sparse matrix, [E] float64. `words`: from
    `entry_words`."""
    draws = torch.empty(words.shape, dtype=torch.float64, device=words.device)
    for part in _parts(words):
        draws[part] = _shifted(_mix(words[part] ^ _signed(key)), 11)
    return draws.mul_(2.0**-53)


def _parts(words: Tensor) -> Iterator[slice]:
    """On the CPU as many words at a time as the cache holds: a hash has a dozen steps, each over all of
    them."""
    size = PART if words.device.type == "cpu" else max(len(words), 1)
    for first in range(0, len(words), size):
        yield slice(first, first + size)


def _lane_threshold(p: float) -> int:
    """How many of the 65 536 values of a 16-bit lane are draws of True; never all of them."""
    return min(round(p * 65536), 65535)


def lane_probability(p: float) -> float:
    """How often `bernoulli_rows` gives True when asked for `p`: the nearest multiple of 2^-16 below 1."""
    return _lane_threshold(p) / 65536


def bernoulli_rows(key: int, ids: Tensor, width: int, p: float) -> Tensor:
    """True with probability ``lane_probability(p)`` for each row id and column: ids [N] -> [N, width] bool.

    One 64-bit word gives four columns of 16 bits, which makes a draw four times cheaper than its own hash."""
    words = _row_words(key, ids, (width + 3) // 4)
    # Little-endian lanes as signed 16-bit numbers: uniform on [-32768, 32767].
    return (words.view(torch.int16) < _lane_threshold(p) - 32768)[:, :width]


def _row_words(key: int, ids: Tensor, width: int) -> Tensor:
    """One 64-bit word for each row id and column: [N, width] int64."""
    columns = torch.arange(width, device=ids.device) * _signed(_C1)
    return _mix(_mix(ids * _signed(_GOLDEN) ^ _signed(key))[:, None] + columns)


def uniform(key: int, ids: Tensor, width: int = 1) -> Tensor:
    """Uniform draws in [0, 1) of 53 bits for each row id and column: [N, width] float64."""
    return _shifted(_row_words(key, ids, width), 11).double() * 2.0**-53


def words32(key: int, ids: Tensor, width: int) -> Tensor:
    """32 random bits for each row id and column: [N, width] int32."""
    return _row_words(key, ids, (width + 1) // 2).view(torch.int32)[:, :width]


def permutation(key: int, n: int) -> Tensor:
    """A uniformly random order of 0..n-1, [n] int64, on the CPU."""
    return torch.argsort(uniform(key, torch.arange(n))[:, 0], stable=True)


def glorot(key: int, *shape: int, fan: tuple[int, int] | None = None) -> Tensor:
    """Weights U(-a, a), a = sqrt(6 / (fan_in + fan_out)), in the default dtype (Glorot and Bengio 2010).

    `fan` is (fan_in, fan_out); without it the last two dimensions. Drawn as `uniform_weights`."""
    fan_in, fan_out = fan or (shape[-2], shape[-1])
    return uniform_weights(key, math.sqrt(6 / (fan_in + fan_out)), *shape)


def uniform_weights(key: int, bound: float, *shape: int) -> Tensor:
    """Weights U(-bound, bound) in the default dtype, drawn on the CPU, so every device starts alike."""
    draws = uniform(key, torch.arange(shape[0]), math.prod(shape[1:])).reshape(shape)
    return ((2 * draws - 1) * bound).to(torch.get_default_dtype())

"""Counter-based random draws for training: a draw is a function of its key, never of storage order.

A key comes from (seed, purpose, round, step, ...); a draw from the key, a stable row id and a column. So a vertex gets the
same draw wherever its row is stored: clients stacked, one at a time, or in separate processes; and a copy of a row at another
client draws the same (methods that need different copies put the client's stable id into the key).

The generator is a 64-bit mixing hash (the finaliser of SplitMix64, Steele, Lea and Flood 2014). It is fast and well mixed and
NOT cryptographic: privacy noise and secrets never come from here, they come from the operating system's entropy.
"""

import torch
from torch import Tensor

__all__ = ["bernoulli_entries", "bernoulli_rows", "entry_words", "fold", "glorot", "permutation", "uniform"]

_MASK = (1 << 64) - 1
_C1, _C2, _GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15


def _signed(word: int) -> int:
    """The same 64 bits as a signed integer, as torch stores them."""
    return word - (1 << 64) if word >> 63 else word


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * _C1) & _MASK
    z = ((z ^ (z >> 27)) * _C2) & _MASK
    return z ^ (z >> 31)


def _mix(z: Tensor) -> Tensor:
    """The same function on int64 tensors; `>>` is arithmetic there, so the sign bits are masked away."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(_C1)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(_C2)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def fold(seed: int, *parts: int | str) -> int:
    """A 64-bit key from a seed and the parts that name a use, in order: ``fold(seed, "dropout", round, step, layer)``."""
    key = _mix_int((seed + _GOLDEN) & _MASK)
    for part in parts:
        if isinstance(part, str):
            for chunk in (part.encode()[i : i + 8] for i in range(0, len(part.encode()), 8)):
                key = _mix_int((key + _GOLDEN) ^ int.from_bytes(chunk, "little"))
            key = _mix_int((key + _GOLDEN) ^ len(part))
        else:
            key = _mix_int((key + _GOLDEN) ^ (part & _MASK))
    return key


def entry_words(ids: Tensor, columns: Tensor) -> Tensor:
    """One 64-bit word per (row id, column) pair, key still to be mixed in; [E] int64, computed once per matrix."""
    return _mix(ids * _signed(_GOLDEN) + columns)


def bernoulli_entries(key: int, words: Tensor, p: float) -> Tensor:
    """True with probability `p` for each entry of a sparse matrix, [E] bool. `words`: from `entry_words`."""
    # 53 of the mixed bits are compared: one part in 9e15 from p.
    return (_mix(words ^ _signed(key)) >> 11 & ((1 << 53) - 1)) < int(p * (1 << 53))


def bernoulli_rows(key: int, ids: Tensor, width: int, p: float) -> Tensor:
    """True with probability `p` (to one part in 65 536) for each row id and column: [N, width] bool.

    One 64-bit word gives four columns of 16 bits, which makes a draw four times cheaper than its own hash."""
    lanes = torch.arange((width + 3) // 4, device=ids.device)
    words = _mix(_mix(ids * _signed(_GOLDEN) ^ _signed(key))[:, None] + lanes * _signed(_C1))
    # Little-endian lanes as signed 16-bit numbers: uniform on [-32768, 32767].
    return (words.view(torch.int16) < round(p * 65536) - 32768)[:, :width]


def uniform(key: int, ids: Tensor, width: int = 1) -> Tensor:
    """Uniform draws in [0, 1) of 53 bits for each row id and column: [N, width] float64."""
    columns = torch.arange(width, device=ids.device)
    words = _mix(_mix(ids * _signed(_GOLDEN) ^ _signed(key))[:, None] + columns * _signed(_C1))
    return (words >> 11 & ((1 << 53) - 1)).double() * 2.0**-53


def permutation(key: int, n: int) -> Tensor:
    """A uniformly random order of 0..n-1, [n] int64."""
    return torch.argsort(uniform(key, torch.arange(n))[:, 0], stable=True)


def glorot(key: int, *shape: int, fan: tuple[int, int] | None = None) -> Tensor:
    """Glorot-uniform weights of `shape` in the default dtype (Glorot and Bengio 2010): U(-a, a), a = sqrt(6 / (fan_in + fan_out)).

    `fan` is (fan_in, fan_out); without it the last two dimensions. Drawn on the CPU, so every device starts alike."""
    fan_in, fan_out = fan or (shape[-2], shape[-1])
    rows = shape[0] if len(shape) > 1 else 1
    draws = uniform(key, torch.arange(rows), int(torch.Size(shape).numel()) // rows).reshape(shape)
    bound = (6.0 / (fan_in + fan_out)) ** 0.5
    return ((2 * draws - 1) * bound).to(torch.get_default_dtype())

"""Seeded generators for data: splits, partitions and generated sets (training draws are elsewhere)."""

import zlib

import numpy as np

from graphfed.errors import InputError

__all__ = ["generator"]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A numpy generator for one purpose. The purpose joins the seed, so a split and a partition that share
    the seed draw independently. Raises InputError when `seed` is not a non-negative integer."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed {seed!r} cannot be used; give an integer of at least 0")
    return np.random.default_rng([int(seed), zlib.crc32(purpose.encode())])

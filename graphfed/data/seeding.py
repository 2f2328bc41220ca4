"""Seeded generators for splits, partitions and generated data sets. Training uses `graphfed.random`."""

import zlib

import numpy as np

from graphfed.errors import InputError


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Create a numpy generator for one purpose, such as "split/random".

    The purpose is part of the generator's seed, so a split and a partition with the same seed draw
    independent numbers.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed {seed!r} cannot be used; give an integer of at least 0")
    return np.random.default_rng([int(seed), zlib.crc32(purpose.encode())])

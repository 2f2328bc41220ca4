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


def shuffle_by_group(
    rng: np.random.Generator, items: int | np.ndarray, group: np.ndarray, num_groups: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Order items by their group and at random within each group; `group` is indexed by items.

    The result has the items, the size of each group, and the position of each item within its group.
    """
    order = rng.permutation(items)
    order = order[np.argsort(group[order], kind="stable")]  # a stable sort keeps the random order in a group
    size = np.bincount(group[order], minlength=num_groups)
    return order, size, np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)

"""Patterns: the positions of the stored entries of sparse matrices."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


def row_pointers(rows: Tensor, n: int) -> Tensor:
    """Compute the CSR pointers of entries.

    Args:
        rows: [E] int64, the row of each entry, in any order.
        n: Number of rows, rows without entries included.

    Returns:
        [n+1] int64.
    """
    return count_pointers(torch.bincount(rows, minlength=n))


def count_pointers(counts: Tensor) -> Tensor:
    """Compute the CSR pointers of rows.

    Args:
        counts: [n], the number of entries of each row.

    Returns:
        [n+1] int64.
    """
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def size_groups(sizes: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Group rows by size, rounded up to a width of 1, 2, 3, 4, 6, 8, 12, ...

    Args:
        sizes: [N] int64; rows of size 0 are in no group.

    Yields:
        Each width that occurs, ascending, with its rows, [n] int64, ascending.
    """
    # From 2 on a width is at most 1.5 times the one before, so padding adds less than half of a row.
    longest = int(sizes.max()) if len(sizes) else 0
    below, width, wider = 0, 1, 2
    while below < longest:
        rows = ((sizes > below) & (sizes <= width)).nonzero()[:, 0]
        if len(rows):
            yield width, rows
        below, width, wider = width, wider, max(3, 2 * width)


#: Below this many keys a comparison sort is as fast as a counting sort.
_FEW = 50_000


def stable_order(keys: Tensor, num_keys: int) -> Tensor:
    """Compute the stable ascending order of integers.

    Args:
        keys: [E], integers in 0 .. num_keys - 1.
        num_keys: Number of different keys that are possible.

    Returns:
        [E] int64, so that ``keys[order]`` is ascending, and equal keys keep their order.
    """
    if len(keys) < _FEW or keys.device.type != "cpu":
        return torch.argsort(keys, stable=True)
    import scipy.sparse

    # Sort by counting: the matrix has one entry in each row e, in column keys[e]. scipy's conversion from CSR
    # to CSC lists the rows of each column in ascending order, in linear time.
    size = len(keys)
    one_per_row = (np.ones(size, dtype=np.int8), keys.numpy(), np.arange(size + 1))
    order = scipy.sparse.csr_matrix(one_per_row, shape=(size, num_keys)).tocsc().indices
    return torch.from_numpy(order).long()


@dataclass(frozen=True, eq=False)
class Pattern:
    """The positions of the stored entries of a CSR matrix [N, M].

    The transpose is computed when it is first needed, and shared by all matrices with this pattern.

    Attributes:
        indptr: [N+1] int32, where the entries of each row begin.
        indices: [E] int32, the column of each entry, ascending in each row.
        shape: (N, M).
        once: Whether the matrix is used in one product only. On the CPU the gradient of that product is then
            computed without the transpose.
    """

    indptr: Tensor
    indices: Tensor
    shape: tuple[int, int]
    once: bool = False

    @cached_property
    def row(self) -> Tensor:
        """The row of each stored entry, [E] int64, ascending."""
        rows = torch.arange(self.shape[0], device=self.indptr.device)
        # `output_size` spares the device a synchronisation to find it.
        return torch.repeat_interleave(rows, self.indptr.diff().long(), output_size=len(self.indices))

    @cached_property
    def t_order(self) -> Tensor:
        """The order of the entries in the transpose, [E] int64: its values are ``values[t_order]``."""
        return stable_order(self.indices, self.shape[1])

    @cached_property
    def transpose(self) -> tuple[Tensor, Tensor]:
        """indptr [M+1] and indices [E] of the transpose, int32."""
        return row_pointers(self.indices, self.shape[1]).int(), self.row.int()[self.t_order]

    @cached_property
    def buckets(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """The rows with entries, grouped by their number of entries (`size_groups`).

        For each width: the rows [n] int64, and their columns [width, n] int64, ascending. A row with fewer
        entries repeats its last column.
        """
        lengths = self.indptr.diff().long()
        buckets = []
        for width, rows in size_groups(lengths):
            # Beyond its end a row repeats its last entry, which changes no maximum.
            step = torch.arange(width, device=rows.device)[:, None].minimum(lengths[rows] - 1)
            buckets.append((rows, self.indices[self.indptr[rows] + step].long()))
        return tuple(buckets)

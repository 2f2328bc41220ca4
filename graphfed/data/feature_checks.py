"""Checks of columns of features that a reader took from a user's data. Shapes: N nodes, F features."""

import re
from collections.abc import Container, Mapping, Sequence

import numpy as np

from graphfed.data.dropped import features_in_one_line
from graphfed.errors import shown

#: Names of columns that number the rows, or that are masks of a split, in lower case.
_BOOKKEEPING = re.compile(
    r"unnamed: \d+(\.\d+)?|index|level_0|__index_level_\d+__|row_?(id|num|number|names)?|(train|val|valid|"
    r"validation|test)_?mask"
)
#: Names of positions and colours in a drawing, in lower case; single letters are such names only together.
_DRAWN = re.compile(
    r"viz[_.:](x|y|z|r|g|b|size)|(viz[_.:])?colou?r|(pos|coord)[_.]?[xyz0-2]|lat(itude)?|lon(gitude)?|lng"
)
_LETTERS = (frozenset("xy"), frozenset("rgb"))
#: Fewer rows may be numbered by chance.
_FEW_ROWS = 10
#: The number of rows from which different values are counted.
_SAMPLED = 100_000


def feature_remarks(names: Sequence[str], x: np.ndarray) -> tuple[str, ...]:
    """Describe features x [N, F] that may be no properties of the nodes.

    These are columns that number the rows or are named so, and columns named like positions or colours.
    """
    numbered = [
        name for name, column in zip(names, x.T, strict=True)
        if _BOOKKEEPING.fullmatch(name.lower()) or _numbers_rows(column)
    ]  # fmt: skip
    lower = {name.lower() for name in names}
    letters = frozenset[str]().union(*(letters for letters in _LETTERS if letters <= lower))
    drawn = [
        name for name in names
        if name not in numbered and (_DRAWN.fullmatch(name.lower()) or name.lower() in letters)
    ]  # fmt: skip
    meanings = (
        (numbered, "number the rows, or are called like columns that do"),
        (drawn, "are called like positions or colours in a drawing"),
    )
    return tuple(
        f"{features_in_one_line(found)}, of columns that {meaning}; if they say nothing about the nodes, "
        "leave them out by naming the other features ('features: [...]' in a description)"
        for found, meaning in meanings
        if found
    )


def _numbers_rows(column: np.ndarray) -> bool:
    """Decide whether the values [N] are consecutive whole numbers, in any order."""
    n = len(column)
    # As Python's floats, because the difference of two numbers in 32 bits may overflow.
    if n < _FEW_ROWS or float(column.max()) - float(column.min()) != n - 1:
        return False
    return bool((np.diff(np.sort(column)) == 1).all())


def count_rounded(values: np.ndarray, rounded: np.ndarray) -> tuple[int, int]:
    """Count a column's different values before and after rounding to 32 bits, in a sample of its rows [N].

    NaN is no value. The counts are (0, 0) if nothing was rounded.
    """
    given = ~np.isnan(values)
    values, rounded = values[given], rounded[given]
    if (values == rounded).all():
        return 0, 0
    # Evenly spaced rows: counting all values of a long column would take longer than reading it.
    rows = slice(None, None, -(-len(values) // _SAMPLED))
    return len(np.unique(values[rows])), len(np.unique(rounded[rows]))


def rounding_remarks(rounded: Mapping[str, tuple[int, int]], kept: Container[str]) -> tuple[str, ...]:
    """Describe features of which most different values are equal in 32 bits, by their `count_rounded`.

    Those in `kept` have large numbers that are not rounded before they are scaled.
    """
    return tuple(
        f"feature {shown(name)}: its {before:,} different values are only {after:,} in 32 bits; "
        + (
            "use features=scaled, which subtracts a centre before numbers are rounded"
            if name in kept
            else "subtract a constant that all clients know, such as a typical value, before you write it"
        )
        for name, (before, after) in rounded.items()
        if before and 2 * after <= before
    )

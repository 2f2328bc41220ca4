"""From columns of a table to features: categories become columns of 0 and 1, gaps get indicators.

Every client must have the same features, so what depends on the data of all is an `Encoding`: the names of
the categories, and which columns have gaps. `observe` finds it in one table, and `merge` in those of all
clients. The means that fill gaps are agreed during set-up (`graphfed.methods.common.feature_gaps`).

Shapes: N nodes, C columns of numbers, F features.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.texts import natural_order
from graphfed.data.user_files.table_files import MAX_CATEGORIES
from graphfed.errors import InputError, shown

if TYPE_CHECKING:
    import pyarrow as pa


#: What a gap becomes: the mean of the column, the mean and an indicator, or a category of its own.
RULES = ("mean", "indicator", "category")


@dataclass(frozen=True)
class Encoding:
    """What the columns of all clients' tables have in common.

    Attributes:
        categories: The names of the categories of each column; "" stands for a gap and is the last.
        gaps: The columns of numbers in which a client has a gap.
    """

    categories: Mapping[str, tuple[str, ...]]
    gaps: tuple[str, ...] = ()


NOTHING = Encoding({})


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are features, as they were read.

    Attributes:
        names: All of them, in the order of the features.
        numbers: [N, C], NaN for a gap, in the order of `names` without the categorical ones.
        texts: N texts of each categorical column, "" for a gap.
        rules: What a gap becomes, for each column in which gaps are allowed.
    """

    names: tuple[str, ...]
    numbers: np.ndarray
    texts: "Mapping[str, pa.Array]"
    rules: Mapping[str, str]

    @property
    def numeric(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in self.texts)

    def take(self, rows: np.ndarray) -> "Columns":
        texts = {name: column.take(rows) for name, column in self.texts.items()}
        return replace(self, numbers=self.numbers[rows], texts=texts)

    def with_gaps(self, count: int) -> "Columns":
        """Append rows that have no value at all."""
        import pyarrow as pa

        empty = pa.array([""] * count, pa.string())
        numbers = np.full((count, self.numbers.shape[1]), np.nan, self.numbers.dtype)
        texts = {name: pa.concat_arrays([column, empty]) for name, column in self.texts.items()}
        return replace(self, numbers=np.concatenate([self.numbers, numbers]), texts=texts)


def stack(tables: Sequence[Columns]) -> Columns:
    """Put the columns of several tables under each other."""
    import pyarrow as pa

    return replace(
        tables[0],
        numbers=np.concatenate([table.numbers for table in tables]),
        texts={name: pa.concat_arrays([table.texts[name] for table in tables]) for name in tables[0].texts},
    )


def observe(columns: Columns) -> Encoding:
    """Find the encoding of one table alone."""
    gaps = np.isnan(columns.numbers).any(axis=0)
    return Encoding(
        {name: _sorted(texts.unique().to_pylist()) for name, texts in columns.texts.items()},
        tuple(name for name, has_gap in zip(columns.numeric, gaps, strict=True) if has_gap),
    )


def merge(encodings: Iterable[Encoding]) -> Encoding:
    """Find the encoding of all clients' tables from that of each; InputError for too many categories."""
    categories: dict[str, set[str]] = {}
    gaps: set[str] = set()
    for each in encodings:
        gaps |= {*each.gaps}
        for name, found in each.categories.items():
            categories.setdefault(name, set()).update(found)
    for name, every in categories.items():
        if len(every) > MAX_CATEGORIES:
            raise InputError(
                f"column {shown(name)} has {len(every):,} different values, and at most {MAX_CATEGORIES:,} "
                "are categories; group them, or leave the column out of 'categorical' and 'features'"
            )
    return Encoding({name: _sorted(every) for name, every in categories.items()}, tuple(sorted(gaps)))


def feature_names(columns: Sequence[str], encoding: Encoding, rules: Mapping[str, str]) -> tuple[str, ...]:
    """Name the features: "column=category", "column missing" for an indicator, or the column."""
    names: list[str] = []
    for name in columns:
        if name in encoding.categories:
            names += [category_name(name, category) for category in encoding.categories[name]]
        else:
            names += [name, *([missing_name(name)] if _has_indicator(rules, encoding, name) else [])]
    return tuple(names)


def encode(columns: Columns, encoding: Encoding) -> np.ndarray:
    """Return the features [N, F] with NaN for gaps that get a mean, in the order of `feature_names`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not columns.texts and not encoding.gaps:
        return columns.numbers
    parts: list[np.ndarray] = []
    number = {name: j for j, name in enumerate(columns.numeric)}
    for name in columns.names:
        if name in columns.texts:
            categories = encoding.categories[name]
            code = np.asarray(
                pc.fill_null(pc.index_in(columns.texts[name], pa.array(categories, pa.string())), -1)
            )
            parts.append(code[:, None] == np.arange(len(categories)))
        else:
            values = columns.numbers[:, number[name], None]
            parts.append(values)
            if _has_indicator(columns.rules, encoding, name):
                parts.append(np.isnan(values))
    return np.concatenate(parts, axis=1, dtype=columns.numbers.dtype)


def filled_features(columns: Sequence[str], encoding: Encoding, rules: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of the features whose gaps get a mean."""
    filled = {name for name in columns if name in rules and name not in encoding.categories}
    return tuple(j for j, name in enumerate(feature_names(columns, encoding, rules)) if name in filled)


def category_name(column: str, category: str) -> str:
    return f"{column}={category}" if category else missing_name(column)


def missing_name(column: str) -> str:
    return f"{column} missing"


def _has_indicator(rules: Mapping[str, str], encoding: Encoding, name: str) -> bool:
    return rules.get(name) == "indicator" and name in encoding.gaps


def _sorted(categories: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(categories, key=lambda name: (not name, natural_order(name))))

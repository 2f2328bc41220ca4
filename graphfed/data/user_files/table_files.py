"""CSV and Parquet files: whole columns of texts and numbers, with refusals that name file, row and column.

Files are read block by block, so that of numbers no more text is in memory than that of one block.

CSV is UTF-8, with or without a byte-order mark, and separated by comma, semicolon or tab, whichever the first
line has most of; every value is text until it is asked for as a number. Rows are named by the line that an
editor shows (CSV) or by their number (Parquet), from 1.
"""

import bisect
import codecs
import gzip
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from graphfed.data.messages import brief
from graphfed.errors import InputError
from graphfed.files import read_start

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    Values: TypeAlias = pa.Array | pa.ChunkedArray | np.ndarray

__all__ = ["Numbers", "TableFile", "first_that_fails"]

_CSV = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
_PARQUET = (".parquet", ".pq")
#: Bytes of a block of CSV and values of one of Parquet: what is in memory at a time.
_BLOCK_BYTES = 1 << 26
_BLOCK_VALUES = 1 << 22
#: Bytes of the longest first line.
_MAX_HEADER = 1 << 20


@dataclass(frozen=True)
class Numbers:
    """Columns of finite numbers, and how to read them.

    gaps: whether a number may be missing (nothing, or NaN); it is NaN then. without: how to do without a
    column that holds something else, for messages."""

    columns: Sequence[str] = ()
    without: str = "leave the column out with 'features'"
    dtype: type[np.floating] = np.float32
    gaps: bool = False


NO_NUMBERS = Numbers()


class TableFile:
    """One file. Raises InputError when it is not there, is empty, or is no table.

    names: the columns of a CSV file whose first line is a row like the others. index: what to call a first
    column without a name, as that of a pandas index."""

    def __init__(self, path: Path, names: Sequence[str] | None = None, index: str | None = None) -> None:
        self.path = path
        self._names = None if names is None else list(names)
        self._index = index
        name = path.name.lower()
        self.is_parquet = name.endswith(_PARQUET)
        if not self.is_parquet and not name.endswith(_CSV):
            raise InputError(
                f"{path} is neither CSV nor Parquet by its ending; expected one of "
                f"{', '.join(_CSV + _PARQUET)}"
            )
        if os.path.isdir(path):  # pathlib raises where a folder above may not be looked into
            raise InputError(f"{path} is a folder; name the file in it")
        begin = read_start(path, 4)
        if not begin:
            raise InputError(f"{path} is empty; it needs a first line with the names of the columns")
        if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not self.is_parquet:
            raise InputError(f"{path} is UTF-16 text; save it as UTF-8")

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns."""
        if self._names is not None:
            return self._names
        if self.is_parquet:
            names = list(self._open_parquet().schema_arrow.names)
        else:
            names = self.first_line
            if self._index and names and not names[0] and self._index not in names:
                names[0] = self._index
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"{self.path} has two columns called {twice[0]!r}; rename one of them")
        if not all(names):
            raise InputError(f"{self.path}: column {names.index('') + 1} has no name; every column needs one")
        return names

    def read(
        self, texts: Sequence[str], numbers: Numbers = NO_NUMBERS, times: Sequence[str] = ()
    ) -> "tuple[dict[str, pa.ChunkedArray], np.ndarray]":
        """Read whole columns.

        Args:
            texts: columns to read as texts without blanks around them, "" where a value is missing.
            numbers: columns to read as numbers.
            times: columns to read as they are, texts or Arrow's own times.

        Returns:
            The columns of texts and times by name, and the numbers, [rows, columns].

        Raises:
            InputError: for a row of another length, text that is not UTF-8, a damaged file, and the first row
                where a number is none.
        """
        import pyarrow as pa

        kept: dict[str, list[pa.Array]] = {name: [] for name in (*texts, *times)}
        matrices = [np.empty((0, len(numbers.columns)), numbers.dtype)]
        for _, columns, matrix in self.blocks(texts, numbers, times):
            for name, values in columns.items():
                kept[name].append(values)
            matrices.append(matrix)
        whole = {
            name: pa.chunked_array(chunks, None if chunks else pa.string()) for name, chunks in kept.items()
        }
        return whole, np.concatenate(matrices)

    def blocks(
        self, texts: Sequence[str], numbers: Numbers = NO_NUMBERS, times: Sequence[str] = ()
    ) -> "Iterator[tuple[int, dict[str, pa.Array], np.ndarray]]":
        """Yield what `read` returns block by block, each with the number of rows before it."""
        names, start = list(dict.fromkeys((*times, *texts, *numbers.columns))), 0
        for batch in self._parquet_batches(names) if self.is_parquet else self._csv_batches(names):
            values = {name: _decode(batch.column(name)) for name in names}
            matrix = np.empty((batch.num_rows, len(numbers.columns)), numbers.dtype)
            for number, name in enumerate(numbers.columns):
                matrix[:, number] = self._numbers(values[name], name, start, numbers)
            columns = {name: self._text(values[name], name) for name in texts}
            yield start, columns | {name: values[name] for name in times}, matrix
            start += batch.num_rows

    def _text(self, values: "pa.Array", column: str) -> "pa.Array":
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_floating(values.type) and pc.all(pc.equal(pc.floor(values), values)).as_py():
            values = values.cast(pa.int64())  # whole numbers that a missing value made floating
        try:
            return pc.utf8_trim_whitespace(pc.fill_null(values.cast(pa.string()), ""))
        except pa.ArrowException as error:
            raise InputError(
                f"{self.path}, column {column!r}: {values.type} cannot be read as text ({brief(error)})"
            ) from None

    def _numbers(self, values: "pa.Array", column: str, start: int, kind: Numbers) -> np.ndarray:
        """A block of a column as numbers; start: the rows before it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        written = pa.types.is_string(values.type)
        if written:
            values = pc.utf8_trim_whitespace(values)
            values = pc.if_else(pc.equal(values, ""), None, values)
        if not kind.gaps:
            self.refuse_where(
                pc.is_null(values), column, "is empty", "fill it in, or drop the row", start=start
            )
        fix = f"encode it as numbers, or {kind.without}"
        try:
            numbers = values.cast(pa.float64(), safe=False)
        except pa.ArrowException:
            if not written:
                raise InputError(
                    f"{self.path}, column {column!r} holds {values.type}, not numbers; {fix}"
                ) from None
            bad = first_that_fails(values, lambda part: part.cast(pa.float64()))
            self.refuse(start + bad, column, values[bad].as_py(), "is no number", fix)
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
            result: np.ndarray = np.asarray(numbers).astype(kind.dtype)
        self.refuse_where(
            np.isinf(result) if kind.gaps else ~np.isfinite(result), column,
            "is no finite number" + (" (in 32 bits)" if kind.dtype is np.float32 else ""),
            "fill it in, or drop the row", values, start,
        )  # fmt: skip
        return result

    def refuse_where(
        self,
        wrong: "Values",
        column: str,
        what: str,
        fix: str,
        values: "Values | None" = None,
        start: int = 0,
    ) -> None:
        """InputError for the first row where `wrong` (booleans) is true.

        Args:
            wrong: of each row.
            column: the column's name.
            what: what is wrong with the value, as in "is empty".
            fix: what to do about it.
            values: what to show, None where there is nothing to show.
            start: the rows before the first of `wrong`.
        """
        import pyarrow.compute as pc

        row = pc.index(_arrow(wrong), True).as_py()
        if row >= 0:
            value = None if values is None else _arrow(values)[row].as_py()
            self.refuse(start + row, column, value, what, fix)

    def refuse_others(
        self, values: "Values", allowed: Iterable[str], column: str, what: str, fix: str, start: int = 0
    ) -> None:
        """InputError for the first row whose value is not among those that are allowed."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.is_in(values, value_set=pa.array(list(allowed), pa.string()))
        self.refuse_where(pc.invert(known), column, what, fix, values, start)

    def refuse_repeated(self, keys: "pa.Array", column: str, name: Callable[[int], str], fix: str) -> None:
        """InputError for the first row whose key an earlier row has; name(row): what to call it."""
        import pyarrow.compute as pc

        first = np.asarray(pc.index_in(keys, value_set=keys))
        again = np.flatnonzero(first != np.arange(len(first)))
        if again.size:
            row = int(again[0])
            raise InputError(
                f"{self.where(row)}, column {column!r}: {name(row)} is also in "
                f"{self.place(int(first[row]))}; {fix} ({again.size} repeated)"
            )

    def refuse(self, row: int, column: str, value: object, what: str, fix: str) -> NoReturn:
        """InputError for `value`, in row `row` (from 0) of a column; None where there is nothing to show."""
        shown = "the value" if value is None else brief(repr(value))
        raise InputError(f"{self.where(row)}, column {column!r}: {shown} {what}; {fix}")

    def where(self, row: int) -> str:
        """File and place of row `row` (from 0)."""
        return f"{self.path}, {self.place(row)}"

    def place(self, row: int) -> str:
        """``line 3`` of a CSV file, ``row 2`` of Parquet."""
        if self.is_parquet:
            return f"row {row + 1}"
        with self._open() as file:
            seen = -1 if self._names is None else 0  # the first line is the header, if there is one
            for number, line in enumerate(file, 1):
                seen += bool(line.strip())
                if seen == row + 1:
                    return f"line {number}"
        return f"row {row + 1}"

    # ---- Parquet ----

    def _open_parquet(self) -> "pq.ParquetFile":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.path} is damaged or no Parquet file ({brief(error)}); write it again"
            ) from None

    def _parquet_batches(self, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        try:
            rows = max(1, _BLOCK_VALUES // len(columns))
            for batch in self._open_parquet().iter_batches(rows, columns=list(columns)):
                batch.validate(full=True)  # of texts that they are UTF-8
                yield batch
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path} is damaged ({brief(error)}); write it again") from None

    # ---- CSV ----

    @property
    def _packed(self) -> bool:
        return self.path.name.lower().endswith(".gz")

    def _open(self) -> IO[bytes]:
        file: IO[bytes] = gzip.GzipFile(self.path) if self._packed else self.path.open("rb")  # type: ignore[assignment]
        return file

    def _arrow_stream(self) -> "pa.NativeFile":
        """The file as Arrow opens it. No Python object may be in its reader, no file and no handler of rows:
        Arrow's threads let go of them at a time of their own, and where that is while the process ends,
        they bring it down (`terminate called without an active exception`)."""
        import pyarrow as pa

        file = pa.OSFile(str(self.path), "rb")
        return pa.CompressedInputStream(file, "gzip") if self._packed else file

    @cached_property
    def _header(self) -> tuple[str, str, int]:
        """The first line that is not blank, what separates its columns, and the number of this line."""
        line, number = b"", 0
        try:
            with self._open() as file:
                while not line.strip():
                    line = file.readline(_MAX_HEADER)
                    number += 1
                    if not line:
                        raise InputError(
                            f"{self.path} is empty; it needs a first line with the names of the columns"
                        )
        except (OSError, EOFError) as error:
            raise InputError(f"{self.path} cannot be read: {brief(error)}") from None
        try:
            header = line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise self._not_utf8() from None
        if "\0" in header:
            raise InputError(
                f"{self.path} is no text (its first line has a zero byte); save it as CSV in UTF-8"
            )
        return header, max(",;\t", key=header.count), number

    def _csv_batches(self, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        from pyarrow import csv

        # Columns are read by their place: names with blanks around them are known without.
        names = self.columns
        try:
            with self._arrow_stream() as file:
                reader = csv.open_csv(
                    file,
                    read_options=csv.ReadOptions(
                        use_threads=False,
                        block_size=_BLOCK_BYTES,
                        column_names=names,
                        skip_rows=self._skipped,
                    ),
                    parse_options=csv.ParseOptions(delimiter=self._header[1]),
                    convert_options=csv.ConvertOptions(
                        column_types={name: pa.string() for name in names},
                        include_columns=list(columns),
                        strings_can_be_null=False,
                    ),
                )
                yield from reader
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            self._refuse_ragged(str(error), len(names))
            if "UTF8" in str(error) or isinstance(error, UnicodeDecodeError):
                raise self._not_utf8() from None
            if "Empty CSV" in str(error):
                return
            raise InputError(f"{self.path} cannot be read as CSV ({brief(error)})") from None

    @property
    def first_line(self) -> list[str]:
        """The values in the first line of a CSV file that is not blank, whether or not it names columns."""
        import csv

        header, delimiter, _ = self._header
        return [value.strip() for value in next(csv.reader([header], delimiter=delimiter), [])]

    @property
    def _skipped(self) -> int:
        """Lines to skip: the header and blank lines before it."""
        return 0 if self._names is not None else self._header[2]

    def _refuse_ragged(self, told: str, expected: int) -> None:
        """InputError where Arrow's message `told` is of a row that has not the expected values."""
        found = re.search(r"(?:Row #(\d+): )?Expected \d+ columns, got (\d+)", told)
        if found:
            # Rows are counted from 1, after the lines that were skipped, blank lines not.
            number = "" if found[1] is None else f", {self.place(int(found[1]) - self._skipped - 1)}"
            raise InputError(
                f"{self.path}{number}: {found[2]} values where the first line names {expected} columns; "
                'repair the line (text with a separator in it needs quotes: "a, b")'
            )

    def _not_utf8(self) -> InputError:
        """Where the first byte is that is not UTF-8."""
        with self._open() as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    return InputError(
                        f"{self.path}, line {number}: byte {error.start + 1} is not UTF-8 "
                        f"(0x{line[error.start]:02x}); save the file as UTF-8"
                    )
        return InputError(f"{self.path} is not UTF-8; save the file as UTF-8")


def first_that_fails(values: "pa.Array | pa.ChunkedArray", convert: Callable[["pa.Array"], object]) -> int:
    """The first position whose value cannot be converted, of values that cannot all be."""
    import pyarrow as pa

    def fails(last: int) -> bool:
        try:
            convert(values.slice(0, last + 1))
        except pa.ArrowException:
            return True
        return False

    return bisect.bisect_left(range(len(values)), True, key=fails)


def _arrow(values: "Values") -> "pa.Array | pa.ChunkedArray":
    import pyarrow as pa

    return pa.array(values) if isinstance(values, np.ndarray) else values


def _decode(values: "pa.Array") -> "pa.Array":
    """Values of one type: texts are of Arrow's type string, and no dictionary stands for them."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.string()) if pa.types.is_large_string(values.type) else values

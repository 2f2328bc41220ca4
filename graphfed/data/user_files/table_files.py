"""Reading of columns of texts and numbers from CSV and Parquet files. Errors name file, row and column.

Files are read block by block, so the text of numbers is in memory for one block at a time.

CSV is UTF-8, with or without a byte-order mark. The separator is comma, semicolon or tab, whichever is most
frequent in the first line. A value is text unless it is read as a number. Messages name a row by the line
that an editor shows (CSV) or by its number from 1 (Parquet).
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
from graphfed.data.user_files.other_formats import require_ending
from graphfed.errors import InputError
from graphfed.files import read_start

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    Values: TypeAlias = pa.Array | pa.ChunkedArray | np.ndarray

__all__ = ["TABLES", "Numbers", "TableFile", "first_that_fails"]

_CSV = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
_PARQUET = (".parquet", ".pq")
#: The endings of tables.
TABLES = _CSV + _PARQUET
#: The size of a block, of which one is in memory at a time: bytes of CSV, values of Parquet.
_BLOCK_BYTES = 1 << 26
_BLOCK_VALUES = 1 << 22
#: The largest size of the first line in bytes.
_MAX_HEADER = 1 << 20


@dataclass(frozen=True)
class Numbers:
    """Columns to read as finite numbers.

    Attributes:
        columns: The names of the columns.
        without: How the user can avoid a column that is not numeric, for messages.
        dtype: The type of the numbers.
        gaps: Whether a number may be missing (an empty cell or NaN); it is NaN then.
    """

    columns: Sequence[str] = ()
    without: str = "leave the column out with 'features'"
    dtype: type[np.floating] = np.float32
    gaps: bool = False


NO_NUMBERS = Numbers()


class TableFile:
    """A CSV or Parquet file."""

    def __init__(self, path: Path, names: Sequence[str] | None = None, index: str | None = None) -> None:
        """Open a file without reading its rows.

        Args:
            path: The file.
            names: The names of the columns, for a CSV file whose first line is a row of values.
            index: The name of the first column if the file gives it none, as pandas does for an index.

        Raises:
            InputError: The file is missing or empty, or is no table.
        """
        self.path = path
        self._names = None if names is None else list(names)
        self._index = index
        name = path.name.lower()
        self.is_parquet = name.endswith(_PARQUET)
        require_ending(path, TABLES, "table")
        if os.path.isdir(path):  # pathlib's is_dir raises if a parent folder cannot be read
            raise InputError(f"{path} is a folder; name a file in it")
        begin = read_start(path, 4)
        if not begin:
            raise InputError(f"{path} is empty; add a first line with the names of the columns")
        if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not self.is_parquet:
            raise InputError(f"{path} is UTF-16 text; save it as UTF-8")

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns.

        Raises:
            InputError: Two columns have the same name, or a column has no name.
        """
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
            raise InputError(f"{self.path}: column {names.index('') + 1} has no name; name every column")
        return names

    def read(
        self, texts: Sequence[str], numbers: Numbers = NO_NUMBERS, times: Sequence[str] = ()
    ) -> "tuple[dict[str, pa.ChunkedArray], np.ndarray]":
        """Read whole columns.

        Args:
            texts: Columns to read as texts, without leading and trailing blanks; "" if a value is missing.
            numbers: Columns to read as numbers.
            times: Columns to read without conversion, as texts or Arrow's times.

        Returns:
            The columns of texts and times by name, and the numbers, [rows, columns].

        Raises:
            InputError: A row has another length, a text is not UTF-8, the file is damaged, or a value is no
                number.
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
        """Read columns block by block.

        Args:
            texts: As in `read`.
            numbers: As in `read`.
            times: As in `read`.

        Yields:
            For each block, the number of rows before it, the columns of texts and times by name, and the
            numbers, [rows, columns].

        Raises:
            InputError: As in `read`.
        """
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
            values = values.cast(pa.int64())  # pandas writes whole numbers with a missing value as floats
        try:
            return pc.utf8_trim_whitespace(pc.fill_null(values.cast(pa.string()), ""))
        except pa.ArrowException as error:
            raise InputError(
                f"{self.path}, column {column!r}: {values.type} cannot be read as text ({brief(error)})"
            ) from None

    def _numbers(self, values: "pa.Array", column: str, start: int, kind: Numbers) -> np.ndarray:
        """Convert a block of a column to numbers. `start` is the number of rows before the block."""
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
                    f"{self.path}, column {column!r} has type {values.type}, and numbers are expected; {fix}"
                ) from None
            bad = first_that_fails(values, lambda part: part.cast(pa.float64()))
            self.refuse(start + bad, column, values[bad].as_py(), "is no number", fix)
        with np.errstate(over="ignore"):  # a value outside float32 becomes infinite, which is refused below
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
        """Raise an InputError for the first row for which `wrong` is True.

        Args:
            wrong: A boolean for each row.
            column: The name of the column.
            what: What is wrong with the value, as in "is empty".
            fix: What the user can do.
            values: The values to show in the message; None to show none.
            start: The number of rows before the first row of `wrong`.

        Raises:
            InputError: A row is wrong.
        """
        import pyarrow.compute as pc

        row = pc.index(_arrow(wrong), True).as_py()
        if row >= 0:
            value = None if values is None else _arrow(values)[row].as_py()
            self.refuse(start + row, column, value, what, fix)

    def refuse_others(
        self, values: "Values", allowed: Iterable[str], column: str, what: str, fix: str, start: int = 0
    ) -> None:
        """Raise an InputError for the first row whose value is not allowed.

        Args:
            values: The values of the column.
            allowed: The allowed values.
            column: The name of the column.
            what: What is wrong with such a value.
            fix: What the user can do.
            start: The number of rows before the first value.

        Raises:
            InputError: A value is not allowed.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.is_in(values, value_set=pa.array(list(allowed), pa.string()))
        self.refuse_where(pc.invert(known), column, what, fix, values, start)

    def refuse_repeated(self, keys: "pa.Array", column: str, name: Callable[[int], str], fix: str) -> None:
        """Raise an InputError for the first row whose key an earlier row has.

        Args:
            keys: The key of each row.
            column: The name of the column.
            name: A function that returns the name of a row's key for the message.
            fix: What the user can do.

        Raises:
            InputError: A key is repeated.
        """
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
        """Raise an InputError for a value.

        Args:
            row: The row of the value, from 0.
            column: The name of the column.
            value: The value to show in the message; None to show none.
            what: What is wrong with the value.
            fix: What the user can do.

        Raises:
            InputError: Always.
        """
        shown = "the value" if value is None else brief(repr(value))
        raise InputError(f"{self.where(row)}, column {column!r}: {shown} {what}; {fix}")

    def where(self, row: int) -> str:
        """Describe the position of a row with its file, for a message.

        Args:
            row: The row, from 0.

        Returns:
            The path and the position, as in "nodes.csv, line 3".
        """
        return f"{self.path}, {self.place(row)}"

    def place(self, row: int) -> str:
        """Describe the position of a row in its file, for a message.

        Args:
            row: The row, from 0.

        Returns:
            The line, as in "line 3", of a CSV file; the row, as in "row 2", of a Parquet file.
        """
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
                batch.validate(full=True)  # this also checks that texts are UTF-8
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
        """Open the file with Arrow, without any Python object in the reader.

        Arrow's threads release a Python file or a Python handler of rows at an unknown time. If this happens
        while the process ends, the process aborts (`terminate called without an active exception`).
        """
        import pyarrow as pa

        file = pa.OSFile(str(self.path), "rb")
        return pa.CompressedInputStream(file, "gzip") if self._packed else file

    @cached_property
    def _header(self) -> tuple[str, str, int]:
        """The first line that is not blank, the separator of its columns, and the number of this line."""
        line, number = b"", 0
        try:
            with self._open() as file:
                while not line.strip():
                    line = file.readline(_MAX_HEADER)
                    number += 1
                    if not line:
                        raise InputError(
                            f"{self.path} is empty; add a first line with the names of the columns"
                        )
        except (OSError, EOFError) as error:
            raise InputError(f"{self.path} cannot be read: {brief(error)}") from None
        try:
            header = line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise self._not_utf8() from None
        if "\0" in header:
            raise InputError(
                f"{self.path} is no text file (its first line has a zero byte); save it as CSV in UTF-8"
            )
        return header, max(",;\t", key=header.count), number

    def _csv_batches(self, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        from pyarrow import csv

        # The names are given to Arrow without their leading and trailing blanks, so columns are matched by
        # position.
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
        """The values of the first line of a CSV file that is not blank; they may be names of columns."""
        import csv

        header, delimiter, _ = self._header
        return [value.strip() for value in next(csv.reader([header], delimiter=delimiter), [])]

    @property
    def _skipped(self) -> int:
        """The number of lines to skip: the header and the blank lines before it."""
        return 0 if self._names is not None else self._header[2]

    def _refuse_ragged(self, message: str, expected: int) -> None:
        """Raise an InputError if Arrow's message says that a row has another number of values."""
        found = re.search(r"(?:Row #(\d+): )?Expected \d+ columns, got (\d+)", message)
        if found:
            # Arrow counts rows from 1, from the start of the file, without blank lines.
            number = "" if found[1] is None else f", {self.place(int(found[1]) - self._skipped - 1)}"
            raise InputError(
                f"{self.path}{number}: {found[2]} values, and the first line names {expected} columns; "
                'repair the line (text with a separator in it needs quotes: "a, b")'
            )

    def _not_utf8(self) -> InputError:
        """Build the error that names the first byte that is not UTF-8."""
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
    """Find the first value that cannot be converted, by bisection.

    Args:
        values: Values that cannot all be converted.
        convert: A function that converts values or raises ArrowException.

    Returns:
        The position of the value.
    """
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
    """Convert dictionary-encoded and large texts to Arrow's type string."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.string()) if pa.types.is_large_string(values.type) else values

"""CSV and Parquet files, read block by block, with refusals that name file, row and column.

CSV is UTF-8, with or without a byte-order mark, and separated by comma, semicolon or tab, whichever the first
line has most of; every value is text until it is asked for as a number. Rows are named by the line that an
editor shows (CSV) or by their number (Parquet), from 1.
"""

import codecs
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from graphfed.data.messages import brief
from graphfed.errors import InputError
from graphfed.files import check_regular

__all__ = ["TableFile", "first_that_fails"]

_CSV = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
_PARQUET = (".parquet", ".pq")
#: Bytes of a block of CSV and values of one of Parquet: what is in memory at a time.
_BLOCK_BYTES = 1 << 26
_BLOCK_VALUES = 1 << 22
#: Bytes of the longest first line.
_MAX_HEADER = 1 << 20


class TableFile:
    """One file. Raises InputError when it is not there, is empty, or is no table.

    names: the columns of a CSV file whose first line is a row like the others. index: what to call a first
    column without a name, as that of a pandas index."""

    def __init__(self, path: Path, names: Sequence[str] | None = None, index: str | None = None) -> None:
        self.path = path
        self._names = None if names is None else list(names)
        self._index = index
        name = path.name.lower()
        self._parquet = name.endswith(_PARQUET)
        if not self._parquet and not name.endswith(_CSV):
            raise InputError(
                f"{path} is neither CSV nor Parquet by its ending; expected one of "
                f"{', '.join(_CSV + _PARQUET)}"
            )
        try:
            if path.is_dir():
                raise InputError(f"{path} is a folder; name the file in it")
            check_regular(path)
            with path.open("rb") as file:
                begin = file.read(4)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        if not begin:
            raise InputError(f"{path} is empty; it needs a first line with the names of the columns")
        if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not self._parquet:
            raise InputError(f"{path} is UTF-16 text; save it as UTF-8")

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns."""
        if self._names is not None:
            return self._names
        if self._parquet:
            names = list(self._parquet_file().schema_arrow.names)
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

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """Record batches of `columns`, each with the number of rows before it.

        Raises InputError for a row of another length, text that is not UTF-8, and a damaged file."""
        start = 0
        for batch in self._parquet_batches(columns) if self._parquet else self._csv_batches(columns):
            if batch.num_rows:
                yield start, batch
            start += batch.num_rows

    def text(self, batch: Any, column: str) -> Any:
        """A column as text without blanks around it; "" where a value is missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = batch.column(column)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if pa.types.is_floating(values.type) and pc.all(pc.equal(pc.floor(values), values)).as_py():
            values = values.cast(pa.int64())  # whole numbers that a missing value made floating
        try:
            return pc.utf8_trim_whitespace(pc.fill_null(values.cast(pa.string()), ""))
        except pa.ArrowException as error:
            raise InputError(
                f"{self.path}, column {column!r}: {values.type} cannot be read as text ({brief(error)})"
            ) from None

    def numbers(
        self,
        batch: Any,
        column: str,
        start: int,
        without: str = "leave the column out with 'features'",
        gaps: bool = False,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> np.ndarray:
        """A column as finite numbers of `dtype`; InputError with the first row where it is none. without: how
        to do without the column. gaps: whether a value may be missing (nothing, or NaN); it is NaN then."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = batch.column(column)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            values = pc.utf8_trim_whitespace(values)
            empty = pc.fill_null(pc.equal(values, ""), True)
            if gaps:
                values = pc.if_else(empty, None, values)
            else:
                self.refuse_first(empty, start, column, "is empty", "fill it in, or drop the row")
            bad = first_that_fails(values, lambda part: part.cast(pa.float64()))
            if bad is not None:
                self.refuse(
                    start + bad, column, values[bad].as_py(), "is no number",
                    f"encode it as numbers, or {without}",
                )  # fmt: skip
        try:
            numbers = values.cast(pa.float64(), safe=False)
        except pa.ArrowException:
            raise InputError(
                f"{self.path}, column {column!r} holds {values.type}, not numbers; encode it as numbers, or "
                f"{without}"
            ) from None
        if not gaps:
            self.refuse_first(pc.is_null(numbers), start, column, "is empty", "fill it in, or drop the row")
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
            result: np.ndarray = numbers.to_numpy(zero_copy_only=False).astype(dtype)
        bad_rows = np.flatnonzero(np.isinf(result) if gaps else ~np.isfinite(result))
        if bad_rows.size:
            row = int(bad_rows[0])
            self.refuse(
                start + row, column, values[row].as_py(),
                "is no finite number" + (" (in 32 bits)" if dtype is np.float32 else ""),
                "fill it in, or drop the row",
            )  # fmt: skip
        return result

    def refuse_first(
        self, wrong: Any, start: int, column: str, what: str, fix: str, values: Any = None
    ) -> None:
        """InputError for the first row where `wrong` (a boolean array) is true; `values`: what to show."""
        import pyarrow.compute as pc

        if not pc.any(wrong).as_py():
            return
        row = pc.index(wrong, True).as_py()
        shown = None if values is None else values[row].as_py()
        self.refuse(start + row, column, shown, what, fix)

    def refuse(self, row: int, column: str, value: Any, what: str, fix: str) -> NoReturn:
        """InputError for `value`, in row `row` (from 0) of a column; None where there is nothing to show."""
        shown = "the value" if value is None else brief(repr(value))
        raise InputError(f"{self.where(row)}, column {column!r}: {shown} {what}; {fix}")

    def where(self, row: int) -> str:
        """File and place of row `row` (from 0)."""
        return f"{self.path}, {self.place(row)}"

    def place(self, row: int) -> str:
        """``line 3`` of a CSV file, ``row 2`` of Parquet."""
        if self._parquet:
            return f"row {row + 1}"
        with self._open() as file:
            seen = -1 if self._names is None else 0  # the first line is the header, if there is one
            for number, line in enumerate(file, 1):
                seen += bool(line.strip())
                if seen == row + 1:
                    return f"line {number}"
        return f"row {row + 1}"

    # ---- Parquet ----

    def _parquet_file(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.path} is damaged or no Parquet file ({brief(error)}); write it again"
            ) from None

    def _parquet_batches(self, columns: Sequence[str]) -> Iterator[Any]:
        import pyarrow as pa

        try:
            rows = max(1, _BLOCK_VALUES // len(columns))
            for batch in self._parquet_file().iter_batches(rows, columns=list(columns)):
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

    def _arrow_stream(self) -> Any:
        """The file as Arrow opens it. No Python object may be in its reader, no file and no handler of rows:
        Arrow's threads let go of them at a time of their own, and where that is while the process ends,
        they bring it down (`terminate called without an active exception`)."""
        import pyarrow as pa

        file = pa.OSFile(str(self.path), "rb")
        return pa.CompressedInputStream(file, "gzip") if self._packed else file

    @cached_property
    def _header(self) -> tuple[str, str]:
        """The first line that is not blank, and what separates its columns."""
        try:
            with self._open() as file:
                line = b""
                while not line.strip():
                    line = file.readline(_MAX_HEADER)
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
        return header, max(",;\t", key=header.count)

    def _csv_batches(self, columns: Sequence[str]) -> Iterator[Any]:
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

        header, delimiter = self._header
        return [value.strip() for value in next(csv.reader([header], delimiter=delimiter), [])]

    @cached_property
    def _skipped(self) -> int:
        """Lines to skip: the header and blank lines before it."""
        if self._names is not None:
            return 0
        with self._open() as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    return number
        return 0

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


def first_that_fails(values: Any, convert: Callable[[Any], Any]) -> int | None:
    """The first position whose value alone cannot be converted; None when all can."""
    import pyarrow as pa

    def fails(part: Any) -> bool:
        try:
            convert(part)
        except pa.ArrowException:
            return True
        return False

    if not fails(values):
        return None
    low, high = 0, len(values)  # the first failure is in values[low:high]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(values[low:middle]) else (middle, high)
    return low

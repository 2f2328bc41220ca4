"""Reading of columns of texts and numbers from CSV and Parquet files. Errors name file, row and column.

Files are read block by block, so the text of numbers is in memory for one block at a time.

CSV is that of RFC 4180 in UTF-8, with or without a byte-order mark: quoted texts may have separators and
line breaks in them. Lines end with LF, CRLF or CR. The separator is the comma, semicolon or tab that splits
the first lines into equally many columns; a space, too, between numbers. Lines at the start that begin with #
are comments; the last of them has the names of the columns if it has as many as the next line has values.
Texts get their canonical form (`graphfed.data.texts`). Messages name a row by the line at which it starts
(CSV) or by its number from 1 (Parquet).
"""

import bisect
import codecs
import contextlib
import csv
import gzip
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from graphfed.data.feature_checks import count_rounded
from graphfed.data.feature_numbers import feature_numbers
from graphfed.data.messages import brief
from graphfed.data.texts import MISSING, canonical_texts
from graphfed.data.user_files.other_formats import require_ending
from graphfed.errors import InputError, shown
from graphfed.files import read_start
from graphfed.memory import memory_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    Values: TypeAlias = pa.Array | pa.ChunkedArray | np.ndarray

_CSV = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
_PARQUET = (".parquet", ".pq")
#: The endings of tables.
TABLES = _CSV + _PARQUET
#: The size of a block, of which one is in memory at a time: bytes of CSV, values of Parquet.
_BLOCK_BYTES = 1 << 26
_BLOCK_VALUES = 1 << 22
#: The largest size of the first row in bytes, and the largest number of columns.
_MAX_HEADER = 1 << 20
MAX_COLUMNS = 50_000
#: More rows than FREE_ROWS must take at least one byte of the file for each CROWDED rows. Rows of different
#: nodes or edges take far more; a small file of very many equal rows is a mistake or an attack.
FREE_ROWS, CROWDED = 10**7, 16
#: The largest size in bytes of a block of repeated texts. A small file can repeat one long text very often.
_MAX_EXPANDED = 1 << 30
#: The rows from which the separator is found.
_SAMPLED = 20
_NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?|[-+]?(nan|inf)", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?", re.ASCII)
#: A number with a decimal comma, or with separators of thousands.
_LOCAL_NUMBER = re.compile(r"[-+]?\d+,\d+|[-+]?\d{1,3}([., '\u00a0\u202f]\d{3})+([.,]\d+)?", re.ASCII)


@dataclass(frozen=True)
class Numbers:
    """Columns to read as finite numbers; `without` says how a user can avoid one that is not numeric.

    `gaps` allows missing numbers (an empty cell or NaN), which are NaN then. Of `features`, large numbers
    keep 64 bits (`feature_numbers`).
    """

    columns: Sequence[str] = ()
    without: str = "leave the column out with 'features'"
    dtype: type[np.floating] = np.float32
    gaps: bool = False
    features: bool = False


NO_NUMBERS = Numbers()


@dataclass(frozen=True)
class _Layout:
    """The form of a CSV file: its first row, and the lines and bytes before the rows of values."""

    delimiter: str
    first: list[str]
    lines: int
    size: int


class TableFile:
    """A CSV or Parquet file."""

    def __init__(
        self,
        path: Path,
        names: Sequence[str] | None = None,
        index: str | None = None,
        *,
        header: bool = True,
        header_fix: str = "",
        missing: Sequence[str] = MISSING,
    ) -> None:
        """Open a file without reading its rows.

        Args:
            names: The names of the columns, for a CSV file whose first line is a row of values.
            index: The name of the first column if the file gives it none, as pandas does for an index.
            header: Whether a CSV file names its columns in its first line. If not, they are called 1, 2, ...
            header_fix: What else a user can do about a file without such a line, for messages.
            missing: The texts that mean a missing value.
        """
        self.path = path
        self.header_fix = header_fix
        self._names = None if names is None else list(names)
        self._has_header = header and names is None
        self._missing = missing
        self._index = index
        #: For each column read in 32 bits, the numbers of different values before and after rounding.
        self.rounded: dict[str, tuple[int, int]] = {}
        #: The columns of features with large numbers that 32 bits would have changed.
        self.kept: set[str] = set()
        name = path.name.lower()
        self.is_parquet = name.endswith(_PARQUET)
        require_ending(path, TABLES, "table")
        if os.path.isdir(path):  # pathlib's is_dir raises if a parent folder cannot be read
            raise InputError(f"{path} is a folder; name a file in it")
        # This refuses pipes and devices, at which the readers of rows would wait for ever.
        begin = read_start(path, 4)
        if not begin:
            raise InputError(f"{path} is empty; add a first line with the names of the columns")
        if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not self.is_parquet:
            raise InputError(f"{path} is UTF-16 text; save it as UTF-8")

    @cached_property
    def columns(self) -> list[str]:
        if self._names is not None:
            return self._names
        if self.is_parquet:
            names = list(self._open_parquet().schema_arrow.names)
        else:
            names = list(self.first_line)
            if not self._has_header:
                return [str(number) for number in range(1, len(names) + 1)]
            if _are_values(names):
                raise InputError(
                    f"{self.path}: the first line has values (numbers or times) and no names; add a first "
                    f"line with the names of the columns{self.header_fix}"
                )
            if self._index and names and not names[0] and self._index not in names:
                names[0] = self._index
        if len(names) > MAX_COLUMNS:
            raise InputError(
                f"{self.path} has {len(names):,} columns, and at most {MAX_COLUMNS:,} are read; leave "
                "columns out, or give the graph as a PyG Data object with sparse features"
            )
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise InputError(f"{self.path} has two columns called {shown(twice[0])}; rename one of them")
        if not all(names):
            raise InputError(f"{self.path}: column {names.index('') + 1} has no name; name every column")
        return names

    def read(
        self, texts: Sequence[str], numbers: Numbers = NO_NUMBERS, times: Sequence[str] = ()
    ) -> "tuple[dict[str, pa.ChunkedArray], np.ndarray]":
        """Read whole columns: the texts and times by name, and the numbers, [rows, columns].

        Texts are canonical, "" if missing; times keep the file's type. A row of another length, a text that
        is not UTF-8, damage, and a value that is no number are refused.
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
        """Read columns as `read` does, block by block, with the number of rows before each block."""
        names, start = list(dict.fromkeys((*times, *texts, *numbers.columns))), 0
        for batch in self._parquet_batches(names) if self.is_parquet else self._csv_batches(names):
            self._check_size(start + batch.num_rows, len(names))
            values = {name: _decode(batch.column(name)) for name in names}
            found = [self._numbers(values[name], name, start, numbers) for name in numbers.columns]
            # One column of large numbers makes the whole block float64 (`feature_numbers`).
            matrix = np.empty((batch.num_rows, len(found)), np.result_type(numbers.dtype, *found))
            for number, column in enumerate(found):
                matrix[:, number] = column
            columns = {name: self._text(values[name], name, start) for name in texts}
            yield start, columns | {name: values[name] for name in times}, matrix
            start += batch.num_rows

    def _check_size(self, rows: int, columns: int) -> None:
        size, (available, _) = os.path.getsize(self.path), memory_bytes()
        if rows > FREE_ROWS and rows > CROWDED * size:
            raise InputError(
                f"{self.path} has at least {rows:,} rows in {size:,} bytes, so nearly all of them are equal; "
                f"at most {max(FREE_ROWS, CROWDED * size):,} rows are read from a file of this size; remove "
                "repeated rows"
            )
        # A value takes at least the four bytes of a number in 32 bits.
        if available is not None and 4 * rows * columns > available:
            raise InputError(
                f"{self.path} has at least {rows:,} rows of {columns:,} columns, which need more than the "
                f"{available / 2**30:.1f} GiB of memory that are available; use fewer rows or columns, or a "
                "larger machine"
            )

    def _text(self, values: "pa.Array", column: str, start: int) -> "pa.Array":
        """Convert a block of a column to canonical texts. `start` is the number of rows before the block."""
        import pyarrow as pa

        def refuse(row: int, value: object, what: str, fix: str) -> NoReturn:
            self.refuse(start + row, column, value, what, fix)

        try:
            return canonical_texts(values, refuse, self._missing)
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
            gaps = pc.is_in(values, pa.array(MISSING))
            if not kind.gaps:
                words = pc.and_(gaps, pc.not_equal(values, ""))
                self.refuse_where(
                    words, column, "means a missing value", "fill it in, or drop the row", values, start
                )
            values = pc.if_else(gaps, None, values)
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
            value = values[bad].as_py()
            if _LOCAL_NUMBER.fullmatch(value):
                fix = "write numbers with a decimal point and without separators of thousands, as in 1234.5"
            self.refuse(start + bad, column, value, "is no number", fix)
        with np.errstate(over="ignore"):  # a value outside float32 becomes infinite, which is refused below
            result: np.ndarray = np.asarray(numbers).astype(kind.dtype)
        self.refuse_where(
            np.isinf(result) if kind.gaps else ~np.isfinite(result), column,
            "is no finite number" + (" (in 32 bits)" if kind.dtype is np.float32 else ""),
            "fill it in, or drop the row", values, start,
        )  # fmt: skip
        if kind.dtype is np.float32:
            before = self.rounded.get(column, (0, 0))
            self.rounded[column] = max(before, count_rounded(np.asarray(numbers), result))
            if kind.features and (stored := feature_numbers(numbers)).dtype != np.float32:
                self.kept.add(column)
                return stored
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

        `start` is the number of rows before it, and `values` are shown in the message, after which `what` is
        wrong.
        """
        import pyarrow.compute as pc

        row = pc.index(_arrow(wrong), True).as_py()
        if row >= 0:
            value = None if values is None else _arrow(values)[row].as_py()
            self.refuse(start + row, column, value, what, fix)

    def refuse_others(
        self, values: "Values", allowed: Iterable[str], column: str, what: str, fix: str, start: int = 0
    ) -> None:
        """Raise an InputError for the first row whose value is not allowed."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.is_in(values, value_set=pa.array(list(allowed), pa.string()))
        self.refuse_where(pc.invert(known), column, what, fix, values, start)

    def refuse_repeated(self, keys: "pa.Array", column: str, name: Callable[[int], str], fix: str) -> None:
        """Raise an InputError for the first row whose key an earlier row has; `name` describes a key."""
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
        """Raise an InputError for a value in a row (from 0); None shows no value."""
        shown_value = "the value" if value is None else brief(repr(value))
        raise InputError(f"{self.where(row)}, column {column!r}: {shown_value} {what}; {fix}")

    def where(self, row: int) -> str:
        """Describe the position of a row (from 0) with its file, as in "nodes.csv, line 3"."""
        return f"{self.path}, {self.place(row)}"

    def place(self, row: int) -> str:
        """Return the line of a row (from 0) of a CSV file, as in "line 3"; of Parquet, as in "row 2"."""
        if self.is_parquet:
            return f"row {row + 1}"
        with self._open() as binary, io.TextIOWrapper(binary, "utf-8", "replace", newline="") as file:
            for _ in range(self._layout.lines):
                file.readline()
            reader, seen, start = csv.reader(file, delimiter=self._layout.delimiter), -1, 0
            with contextlib.suppress(csv.Error):  # a value of more than 128 KiB
                for record in reader:
                    seen += bool(record)
                    if seen == row:
                        return f"line {self._layout.lines + start + 1}"
                    start = reader.line_num
        return f"row {row + 1}"

    # ---- Parquet ----

    def _open_parquet(self, read_dictionary: Iterable[str] = ()) -> "pq.ParquetFile":
        """Open the file. The columns `read_dictionary` keep every different text once."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self.path, read_dictionary=list(read_dictionary))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.path} is damaged or no Parquet file ({brief(error)}); write it again"
            ) from None

    def _parquet_batches(self, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        try:
            metadata, rows = self._open_parquet().metadata, max(1, _BLOCK_VALUES // max(1, len(columns)))
            self._check_size(metadata.num_rows, len(columns))
            # Repeated texts stay a dictionary until their expanded size is known.
            repetitive = _repetitive_texts(metadata, columns)
            for batch in self._open_parquet(repetitive).iter_batches(rows, columns=list(columns)):
                for name in repetitive:
                    self._check_expanded(batch.column(name), name)
                batch.validate(full=True)  # this also checks that texts are UTF-8
                yield batch
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path} is damaged ({brief(error)}); write it again") from None

    def _check_expanded(self, values: "pa.Array", column: str) -> None:
        """Raise an InputError if repeated texts have very many bytes when each is written out."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_dictionary(values.type):
            lengths = pc.binary_length(values.dictionary).cast(pa.int64())
            size = pc.sum(lengths.take(values.indices)).as_py() or 0
            if size > _MAX_EXPANDED:
                raise InputError(
                    f"{self.path}, column {column!r}: the texts of {len(values):,} rows have {size:,} bytes, "
                    f"and at most {_MAX_EXPANDED:,} are read at once; shorten the texts"
                )

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
    def _layout(self) -> _Layout:
        try:
            with self._open() as file:
                sample = file.read(_MAX_HEADER)
        except (OSError, EOFError) as error:
            raise InputError(f"{self.path} cannot be read: {brief(error)}") from None
        marked = len(codecs.BOM_UTF8) if sample.startswith(codecs.BOM_UTF8) else 0
        # Bytes that are not UTF-8 become surrogates, so that the number of bytes of a line can be computed.
        lines = list(io.StringIO(sample[marked:].decode("utf-8", "surrogateescape"), newline=""))
        is_cut = len(sample) == _MAX_HEADER
        lines = lines[:-1] if is_cut else lines
        before = 0
        while before < len(lines) and (not lines[before].strip() or lines[before].startswith("#")):
            before += 1
        delimiter, width = _find_delimiter(lines[before:])
        if self._has_header and before and width > 1 and lines[before - 1].startswith("#"):
            names = lines[before - 1].lstrip("#").strip()  # the last comment may be the names of the columns
            if len(_first_records([names], delimiter)[0]) == width:
                before -= 1
                lines[before] = lines[before].replace("#", " ")
        records = csv.reader(lines[before:], delimiter=delimiter)
        try:
            first = next(records, [])
        except csv.Error:
            raise InputError(
                f"{self.path}, line {before + 1}: a value has more than {csv.field_size_limit():,} "
                "characters, which is too long for the first line; shorten it, or leave its column out"
            ) from None
        end = before + records.line_num
        if end == before and not is_cut:
            raise InputError(f"{self.path} is empty; add a first line with the names of the columns")
        if end == before or (is_cut and end == len(lines)):
            raise InputError(
                f"{self.path}: the first line has more than {_MAX_HEADER:,} bytes, and at most "
                f"{MAX_COLUMNS:,} columns are read; leave columns out"
            )
        try:
            "".join(first).encode()
        except UnicodeEncodeError:
            raise self._not_utf8() from None
        if any("\0" in value for value in first):
            raise InputError(
                f"{self.path} is no text file (its first line has a zero byte); save it as CSV in UTF-8"
            )
        sizes = [len(line.encode("utf-8", "surrogateescape")) for line in lines[:end]]
        skipped = end if self._has_header else before
        return _Layout(delimiter, [value.strip() for value in first], skipped, marked + sum(sizes[:skipped]))

    @property
    def first_line(self) -> list[str]:
        return self._layout.first

    def _csv_batches(self, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        # The names are given to Arrow without their leading and trailing blanks, so columns are matched by
        # position.
        names, layout = self.columns, self._layout
        try:
            with self._arrow_stream() as file:
                file.read(layout.size)
                reader = arrow_csv.open_csv(
                    file,
                    read_options=arrow_csv.ReadOptions(
                        use_threads=False, block_size=_BLOCK_BYTES, column_names=names
                    ),
                    parse_options=arrow_csv.ParseOptions(delimiter=layout.delimiter, newlines_in_values=True),
                    convert_options=arrow_csv.ConvertOptions(
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
            if "straddling" in str(error):
                raise InputError(
                    f"{self.path} has a row of more than {_BLOCK_BYTES:,} bytes; add the closing quotation "
                    "mark if one is missing, or shorten the row"
                ) from None
            raise InputError(f"{self.path} cannot be read as CSV ({brief(error)})") from None

    def _refuse_ragged(self, message: str, expected: int) -> None:
        """Raise an InputError if Arrow's message says that a row has another number of values."""
        found = re.search(r"(?:Row #(\d+): )?Expected \d+ columns, got (\d+)", message)
        if found:
            # Arrow counts rows from 1, without blank lines.
            number = "" if found[1] is None else f", {self.place(int(found[1]) - 1)}"
            raise InputError(
                f"{self.path}{number}: {found[2]} values, and the first line has {expected}; "
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
    """Find, by bisection, the first value for which `convert` raises ArrowException."""
    import pyarrow as pa

    def fails(last: int) -> bool:
        try:
            convert(values.slice(0, last + 1))
        except pa.ArrowException:
            return True
        return False

    # A prefix fails from its first bad value on, so a search by halves finds it in a few conversions.
    return bisect.bisect_left(range(len(values)), True, key=fails)


def _repetitive_texts(metadata: "pq.FileMetaData", columns: Sequence[str]) -> set[str]:
    """Select the columns of texts that take less than a byte per value in some part of the file."""
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    names = {*columns}
    wanted = [i for i, path in enumerate(paths) if path in names]
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    chunks = (group.column(i) for group in groups for i in wanted)
    return {
        chunk.path_in_schema
        for chunk in chunks
        if chunk.physical_type == "BYTE_ARRAY" and chunk.total_compressed_size < chunk.num_values
    }


def _first_records(lines: Iterable[str], delimiter: str) -> list[list[str]]:
    """Parse the first rows that are not blank."""
    records: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # a value of more than 128 KiB, which Arrow can read
        for record in csv.reader(lines, delimiter=delimiter):
            records += [record] if record else []
            if len(records) == _SAMPLED:
                break
    return records


def _find_delimiter(lines: Sequence[str]) -> tuple[str, int]:
    """Find the separator that splits the first rows alike and into most values, and their number."""
    best, found = (False, 0), (",", 1)
    for delimiter in ",;\t ":
        records = _first_records(lines, delimiter)
        width = len(records[0]) if records else 0
        is_even = width > 1 and all(len(record) == width for record in records)
        if delimiter == " " and not (is_even and best[1] < 2 and _are_values(records[-1])):
            continue  # a text may have blanks
        if (is_even, width) > best:
            best, found = (is_even, width), (delimiter, width)
    return found


def is_number(text: str) -> bool:
    """Decide whether a text is a number, perhaps with a decimal comma."""
    return _NUMBER.fullmatch(text) is not None


def _are_values(first: Sequence[str]) -> bool:
    """Decide whether a first line has numbers and times only, and so no names of columns.

    The numbers of four or more columns in order, from 0 or 1, are names that programs give.
    """
    if len(first) > 3 and list(first) in ([str(i + start) for i in range(len(first))] for start in (0, 1)):
        return False
    return (
        bool(first)
        and bool(first[0])
        and all(not value or is_number(value) or _TIME.fullmatch(value) for value in first)
    )


def _arrow(values: "Values") -> "pa.Array | pa.ChunkedArray":
    import pyarrow as pa

    return pa.array(values) if isinstance(values, np.ndarray) else values


def _decode(values: "pa.Array") -> "pa.Array":
    """Convert dictionary-encoded and large texts to Arrow's type string."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.string()) if pa.types.is_large_string(values.type) else values

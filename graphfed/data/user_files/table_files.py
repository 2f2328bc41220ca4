"""Reading of columns of texts and numbers from CSV and Parquet files. Errors name file, row and column.

Files are read block by block, so the text of numbers is in memory for one block at a time.

CSV is that of RFC 4180 in UTF-8, with or without a byte-order mark, in UTF-16 with such a mark, or in the
encoding that the description states: quoted texts may have separators and line breaks in them. Lines end with
LF, CRLF or CR. The separator is the comma, semicolon or tab that splits the first lines into equally many
columns; a space, too, between numbers. Lines at the start that begin with # are comments; the last of them
has the names of the columns if it has as many as the next line has values.
Texts get their canonical form (`graphfed.data.texts`). Messages name a row by the line at which it starts
(CSV) or by its number from 1 (Parquet).
"""

import bisect
import codecs
import contextlib
import csv
import gzip
import io
import json
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from graphfed.data.feature_checks import count_rounded
from graphfed.data.feature_numbers import feature_numbers
from graphfed.data.messages import brief
from graphfed.data.texts import MISSING, canonical_texts
from graphfed.data.user_files import cell_forms
from graphfed.data.user_files.cell_forms import FOUND, CellForm
from graphfed.data.user_files.other_formats import require_ending
from graphfed.errors import InputError, shown
from graphfed.files import read_start
from graphfed.memory import memory_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    Values: TypeAlias = pa.Array | pa.ChunkedArray | np.ndarray

CSV = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
_PARQUET = (".parquet", ".pq")
#: The endings of tables.
TABLES = CSV + _PARQUET
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
#: A number as Arrow reads it.
_ARROW_NUMBER = r"(?i)^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$|^[-+]?(nan|inf|infinity)$"
_ENCODING_FIX = "save the file as UTF-8, or state its encoding in the description, as in 'encoding: latin-1'"
#: Names that YAML reads as something else than a text.
_YAML_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan")
#: How many faulty columns one message names.
_FAULTS = 10
#: A column of texts with at most this many different values may be meant as categories.
MAX_CATEGORIES = 1000


@dataclass(frozen=True)
class Numbers:
    """Columns to read as finite numbers; `without` says how a user can avoid one that is not numeric.

    `gaps` allows missing numbers (an empty cell or NaN) in these columns, True in all; they are NaN then.
    `dates` are columns of dates, which become days since 1970-01-01. Of `features`, large numbers keep 64
    bits (`feature_numbers`), and messages name the keys of a description that accept other columns.
    """

    columns: Sequence[str] = ()
    without: str = "leave the column out with 'features'"
    dtype: type[np.floating] = np.float32
    gaps: bool | Collection[str] = False
    features: bool = False
    dates: Collection[str] = ()

    def allows_gaps(self, column: str) -> bool:
        return self.gaps if isinstance(self.gaps, bool) else column in self.gaps


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
        form: CellForm = FOUND,
    ) -> None:
        """Open a file without reading its rows.

        Args:
            names: The names of the columns, for a CSV file whose first line is a row of values.
            index: The name of the first column if the file gives it none, as pandas does for an index.
            header: Whether a CSV file names its columns in its first line. If not, they are called 1, 2, ...
            header_fix: What else a user can do about a file without such a line, for messages.
            missing: The texts that mean a missing value.
            form: How the cells of a CSV file are written.
        """
        self.path = path
        self.header_fix = header_fix
        self._names = None if names is None else list(names)
        self._has_header = header and names is None
        self._missing = missing
        self._form = form
        # Of the file and of columns of dates, as `_find_forms` finds them in the first block.
        self._decimal: str | None = form.decimal or "."
        self._date_forms: dict[str, str] = {}
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
        is_wide = begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding = form.encoding or ("utf-16" if is_wide else "utf-8")
        self._encoding = None if self.is_parquet or _is_utf8(encoding) else encoding

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
            if are_values(names):
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
        for batch in self._batches(names):
            self._check_size(start + batch.num_rows, len(names))
            values = {name: _decode(batch.column(name)) for name in names}
            if not start:
                self._find_forms(values, numbers)
            try:
                found = [self._numbers(values[name], name, start, numbers) for name in numbers.columns]
            except InputError as error:
                raise self._all_faults(numbers, error) from None
            # One column of large numbers makes the whole block float64 (`feature_numbers`).
            matrix = np.empty((batch.num_rows, len(found)), np.result_type(numbers.dtype, *found))
            for number, column in enumerate(found):
                matrix[:, number] = column
            columns = {name: self._text(values[name], name, start) for name in texts}
            yield start, columns | {name: values[name] for name in times}, matrix
            start += batch.num_rows

    def _batches(self, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        return self._parquet_batches(columns) if self.is_parquet else self._csv_batches(columns)

    def _find_forms(self, values: "dict[str, pa.Array]", numbers: Numbers) -> None:
        """Find the decimal sign of the file and the form of each column of dates in its first block."""
        import pyarrow as pa

        written = {name: _given(x) for name, x in values.items() if pa.types.is_string(x.type)}
        amounts = [written[name] for name in numbers.columns if name in written and name not in numbers.dates]
        self._decimal = self._form.decimal or cell_forms.find_decimal(amounts)
        for name in numbers.dates:
            if name in written:
                found = self._form.dates or cell_forms.find_date_format(written[name])
                self._date_forms[name] = found or cell_forms.ISO

    def _all_faults(self, numbers: Numbers, first: InputError) -> InputError:
        """Build the error that counts the values of all columns that are no numbers; `first` is one of them.

        It ends with the keys of a description that accept the columns.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        faults = {name: _Fault() for name in numbers.columns}
        start = 0
        for batch in self._batches(numbers.columns):
            for name in numbers.columns:
                values = _decode(batch.column(name))
                given = _given(values) if pa.types.is_string(values.type) else values
                if pa.types.is_string(values.type) or name in numbers.dates:
                    wrong = pc.and_(pc.is_valid(given), pc.is_null(self._converted(given, name, numbers)))
                    faults[name].add_texts(given, wrong, start)
                if not numbers.allows_gaps(name):
                    faults[name].gaps += given.null_count
            start += batch.num_rows
        found = {name: fault for name, fault in faults.items() if fault.count or fault.gaps}
        if len(found) < 2 or not numbers.features:
            counts = [fault.count + fault.gaps for fault in found.values()]
            return InputError(f"{first} ({counts[0]:,} such values)") if counts > [1] else first
        named = [
            f"{name!r} ("
            + ", ".join(
                [f"{fault.count:,} such values, {self.place(fault.row)}: {brief(repr(fault.value))}"]
                * (fault.count > 0)
                + [f"{fault.gaps:,} empty"] * (fault.gaps > 0)
            )
            + ")"
            for name, fault in list(found.items())[:_FAULTS]
        ]
        more = f", and {len(found) - _FAULTS:,} more" if len(found) > _FAULTS else ""
        return InputError(
            f"{self.path}: {len(found):,} columns have values that are no numbers: {', '.join(named)}{more}; "
            f"{_keys_for(found)}"
        )

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

        written, gaps = pa.types.is_string(values.type), kind.allows_gaps(column)
        if written:
            given = _given(values)
            if not gaps:
                words = pc.and_(pc.is_null(given), pc.not_equal(pc.utf8_trim_whitespace(values), ""))
                self.refuse_where(words, column, "means a missing value", _fill(kind), values, start)
            values = given
        if not gaps:
            self.refuse_where(pc.is_null(values), column, "is empty", _fill(kind), start=start)
        fix = f"encode it as numbers, or {kind.without}"
        if kind.features:
            fix = f"list the column under 'categorical' or 'dates' if it has such values, or {kind.without}"
        if column in kind.dates:
            fix = "state the form of its dates ('date_format'), as in '%d/%m/%Y'"
        try:
            numbers = self._converted(values, column, kind)
        except pa.ArrowException:
            raise InputError(
                f"{self.path}, column {column!r} has type {values.type}, and numbers are expected; {fix}"
            ) from None
        wrong = pc.and_(pc.is_valid(values), pc.is_null(numbers))
        if pc.any(wrong).as_py():
            row = pc.index(wrong, True).as_py()
            value = values[row].as_py()
            if column in kind.dates:
                self.refuse(
                    start + row, column, value, "is no date of the form " + self._date_forms[column], fix
                )
            if (
                self._decimal is None
                and pc.any(cell_forms.matches(values.slice(row, 1), r"^[-+]?[\d,]+$")).as_py()
            ):
                fix = (
                    "write 'decimal: \",\"' in the description if the comma is the decimal sign, or "
                    "'decimal: \".\"' if it separates thousands"
                )
            self.refuse(start + row, column, value, "is no number", fix)
        with np.errstate(over="ignore"):  # a value outside float32 becomes infinite, which is refused below
            result: np.ndarray = np.asarray(numbers).astype(kind.dtype)
        self.refuse_where(
            np.isinf(result) if gaps else ~np.isfinite(result), column,
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

    def _converted(self, values: "pa.Array", column: str, kind: Numbers) -> "pa.Array":
        """Convert a block of a column to float64, null for a text that is no number or date.

        Raises ArrowException for a type that has no numbers.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if column in kind.dates:
            return cell_forms.days_of(values, self._date_forms.get(column, cell_forms.ISO))
        if not pa.types.is_string(values.type):
            return values.cast(pa.float64(), safe=False)
        if self._decimal == ",":
            values = cell_forms.decimal_texts(values, ",")
        with contextlib.suppress(pa.ArrowException):
            return values.cast(pa.float64())
        if self._decimal == ".":
            values = cell_forms.decimal_texts(values, ".")
        return pc.if_else(cell_forms.matches(values, _ARROW_NUMBER), values, None).cast(pa.float64())

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
        wrong. The message counts the rows; of a file that is read block by block, those of one block.
        """
        import pyarrow.compute as pc

        wrong = _arrow(wrong)
        row = pc.index(wrong, True).as_py()
        if row >= 0:
            value = None if values is None else _arrow(values)[row].as_py()
            count = pc.sum(wrong).as_py()
            is_whole = not self.is_parquet and os.path.getsize(self.path) <= _BLOCK_BYTES
            rows = f" ({'' if is_whole else 'at least '}{count:,} such rows)" if count > 1 else ""
            self.refuse(start + row, column, value, what, fix + rows)

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
        return self._encoding is None and self.path.name.lower().endswith(".gz")

    @cached_property
    def _text_path(self) -> Path:
        """The file, or a temporary copy in UTF-8 of a file in another encoding."""
        if self._encoding is None:
            return self.path
        packed = self.path.name.lower().endswith(".gz")
        try:
            with self.path.open("rb") as file:
                source: IO[bytes] = gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[assignment]
                copy = cell_forms.to_utf8(source, self._encoding, self.path)
        except (OSError, EOFError) as error:
            raise InputError(f"{self.path} cannot be read: {brief(error)}") from None
        weakref.finalize(self, copy.unlink, missing_ok=True)
        return copy

    def _open(self) -> IO[bytes]:
        path = self._text_path
        file: IO[bytes] = gzip.GzipFile(path) if self._packed else path.open("rb")  # type: ignore[assignment]
        return file

    def _arrow_stream(self) -> "pa.NativeFile":
        """Open the file with Arrow, without any Python object in the reader.

        Arrow's threads release a Python file or a Python handler of rows at an unknown time. If this happens
        while the process ends, the process aborts (`terminate called without an active exception`).
        """
        import pyarrow as pa

        file = pa.OSFile(str(self._text_path), "rb")
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
        delimiter, width = _find_delimiter(lines[before:], self._form.separator, self.path)
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
    def separator(self) -> str:
        return self._layout.delimiter

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
                        f"(0x{line[error.start]:02x}); {_ENCODING_FIX}"
                    )
        return InputError(f"{self.path} is not UTF-8; {_ENCODING_FIX}")


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


@dataclass
class _Fault:
    """The faults of a column: values that are no numbers (the first is in `row`), and gaps.

    `is_date` and `texts` say what the values may be; `texts` has at most `MAX_CATEGORIES` + 1 of them.
    """

    count: int = 0
    gaps: int = 0
    row: int = 0
    value: object = None
    is_date: bool = True
    texts: set[object] = field(default_factory=set)

    def add_texts(self, given: "pa.Array", wrong: "pa.Array", start: int) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.sum(wrong).as_py() or 0
        if found and not self.count:
            self.row = start + pc.index(wrong, True).as_py()
            self.value = given[self.row - start].as_py()
        self.count += found
        if found and pa.types.is_string(given.type):
            self.is_date = self.is_date and cell_forms.find_date_format(given) is not None
            if len(self.texts) <= MAX_CATEGORIES:
                self.texts |= {*given.unique().to_pylist()[: MAX_CATEGORIES + 1]}


def _keys_for(faults: "dict[str, _Fault]") -> str:
    """Write the lines of a description that accept columns with faults."""
    dates = [name for name, fault in faults.items() if fault.count and fault.is_date]
    texts = [name for name, fault in faults.items() if fault.count and not fault.is_date]
    few = [name for name in texts if len(faults[name].texts) <= MAX_CATEGORIES]
    many = [name for name in texts if name not in few]
    lines = [
        f"'{key}: [{', '.join(map(shown_in_yaml, names))}]'"
        for key, names in (("dates", dates), ("categorical", few))
        if names
    ]
    lines += ["'missing: mean'"] if any(fault.gaps for fault in faults.values()) else []
    fix = f"add to the description {', '.join(lines)}" if lines else ""
    if many:
        fix += f"{', and ' if fix else ''}leave out {', '.join(map(repr, many[:_FAULTS]))} with 'features'"
    return fix


def shown_in_yaml(name: str) -> str:
    """Write a name as YAML reads it back, with quotes where it needs them."""
    return (
        name
        if re.fullmatch(r"[A-Za-z_][\w ]*\w|[A-Za-z_]", name) and name.lower() not in _YAML_WORDS
        else json.dumps(name, ensure_ascii=False)
    )


def _fill(kind: Numbers) -> str:
    return "fill it in, or drop the row" + (
        ", or write 'missing: mean' in the description" if kind.features else ""
    )


def _given(texts: "pa.Array") -> "pa.Array":
    """Trim texts, and replace the words for a missing value by null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.is_in(texts, pa.array(MISSING)), None, texts)


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")


def _find_delimiter(lines: Sequence[str], stated: str | None, path: Path) -> tuple[str, int]:
    """Find the separator that splits the first rows alike and into most values, and their number."""
    if stated is not None:
        records = _first_records(lines, stated)
        return stated, len(records[0]) if records else 0
    best, found, even = (False, 0), (",", 1), set[str]()
    for delimiter in ",;\t ":
        records = _first_records(lines, delimiter)
        width = len(records[0]) if records else 0
        is_even = width > 1 and all(len(record) == width for record in records)
        if delimiter == " " and not (is_even and best[1] < 2 and are_values(records[-1])):
            continue  # a text may have blanks
        even |= {delimiter} if is_even and _keeps_quotes(lines, delimiter) else set()
        if (is_even, width) > best:
            best, found = (is_even, width), (delimiter, width)
    if len(even) > 1:
        raise InputError(
            f"{path}: {' and '.join(map(repr, sorted(even)))} both split the first lines into equally many "
            f"values; state the separator in the description, as in 'separator: \"{found[0]}\"'"
        )
    return found


def _keeps_quotes(lines: Iterable[str], delimiter: str) -> bool:
    """Decide whether every closing quotation mark of the first rows is at the end of a value."""
    try:
        for _ in zip(range(_SAMPLED), csv.reader(lines, delimiter=delimiter, strict=True), strict=False):
            pass
    except csv.Error as error:
        return "expected after" not in str(error)
    return True


def is_number(text: str) -> bool:
    """Decide whether a text is a number, perhaps with a decimal comma."""
    return _NUMBER.fullmatch(text) is not None


def are_values(first: Sequence[str]) -> bool:
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

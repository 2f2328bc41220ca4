"""How the cells of a table are written: encoding, separator, decimal sign and dates.

What a user does not state is found in the file where only one reading is possible. Otherwise the reader asks
for the key of the description that states it.
"""

import codecs
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from graphfed.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

#: A sign, whole numbers without and with groups of three digits, and an exponent, in RE2's syntax.
_SIGN, _EXPONENT = r"^[-+]?", r"([eE][-+]?\d+)?$"
_GROUPED = r"[1-9]\d{{0,2}}(?:[{signs}]\d{{3}})+"
#: Signs between groups of three digits when the decimal sign is the key.
_GROUP_SIGNS = {",": ". '\u00a0\u202f", ".": ", '\u00a0\u202f"}
#: Forms of dates that are tried in this order, next to ISO 8601.
_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y%m%d")
DATE_FORMATS = tuple(date + time for time in ("", " %H:%M", " %H:%M:%S") for date in _DATES)
#: The form of ISO 8601, which Arrow reads itself.
ISO = "ISO 8601"
_DAY = 86_400
_CHUNK = 1 << 22


@dataclass(frozen=True)
class CellForm:
    """The form of a table's cells as its description states it; None is found in the file.

    `dates` is a format of `strptime`.
    """

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    dates: str | None = None


FOUND = CellForm()


# ---- encodings ---------------------------------------------------------------------------------------------


def to_utf8(source: IO[bytes], encoding: str, path: Path) -> Path:
    """Write a file's text as UTF-8 to a temporary file, which the caller removes."""
    try:
        with (
            io.TextIOWrapper(source, encoding, newline="") as reader,
            tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", delete=False) as written,
        ):
            result = Path(written.name)
            try:
                while text := reader.read(_CHUNK):
                    written.write(text)
            except BaseException:
                result.unlink()
                raise
    except UnicodeError as error:
        raise InputError(
            f"{path} is not {encoding} ({str(error)[:100]}); correct 'encoding' in the description"
        ) from None
    return result


def is_encoding(name: str) -> bool:
    """Decide whether Python knows a text encoding by this name."""
    try:
        return bool(codecs.lookup(name)._is_text_encoding)  # "hex" and "zip" are codecs of bytes
    except (LookupError, ValueError):
        return False


# ---- decimal signs -----------------------------------------------------------------------------------------


def find_decimal(columns: "Sequence[pa.Array]") -> str | None:
    """Find the decimal sign in columns of texts; None if a number could have either meaning, as in 1,234."""
    import pyarrow.compute as pc

    is_open = False
    for texts in columns:
        with_comma = texts.filter(pc.fill_null(pc.match_substring(texts, ","), False))
        if not len(with_comma):
            continue
        points = matches(with_comma, _SIGN + _GROUPED.format(signs=",") + r"(\.\d*)?" + _EXPONENT)
        commas = matches(
            with_comma, _SIGN + r"(\d*|" + _GROUPED.format(signs=_GROUP_SIGNS[","]) + r"),\d*" + _EXPONENT
        )
        if pc.any(pc.and_not(points, commas)).as_py():
            return "."
        if pc.any(pc.and_not(commas, points)).as_py():
            return ","
        is_open = is_open or bool(pc.any(points).as_py())
    plain = _SIGN + r"(\d*\.(\d{1,2}|\d{4,})|(0|\d{4,})\.\d+)" + _EXPONENT
    return None if is_open and not any(pc.any(matches(texts, plain)).as_py() for texts in columns) else "."


def decimal_texts(texts: "pa.Array", decimal: str) -> "pa.Array":
    """Write numbers with this decimal sign as Arrow reads them: with a point, and without groups."""
    import pyarrow.compute as pc

    signs = _GROUP_SIGNS[decimal]
    grouped = matches(texts, _SIGN + _GROUPED.format(signs=signs) + rf"([{decimal}]\d*)?" + _EXPONENT)
    if pc.any(grouped).as_py():
        texts = pc.if_else(grouped, pc.replace_substring_regex(texts, f"[{signs}]", ""), texts)
    if decimal == ".":
        return texts
    # With a decimal comma, a point that separates no groups is an error, which must stay one.
    with_point = pc.fill_null(pc.match_substring(texts, "."), False)
    return pc.if_else(
        with_point, pc.binary_join_element_wise("\u2026", texts, ""), pc.replace_substring(texts, ",", ".")
    )


# ---- dates -------------------------------------------------------------------------------------------------


def find_date_format(texts: "pa.Array") -> str | None:
    """Find the form of a column's dates; None if none or several with different dates fit."""
    if _parsed(texts, ISO) is not None:
        return ISO
    fitting = [(form, days) for form in DATE_FORMATS if (days := _parsed(texts, form)) is not None]
    same = fitting and all(np.array_equal(days, fitting[0][1]) for _, days in fitting)
    return fitting[0][0] if same else None


def are_dates(texts: "pa.Array", form: str) -> bool:
    """Decide whether all texts that are not null are dates of a form."""
    return texts.null_count < len(texts) and _parsed(texts, form) is not None


def days_of(values: "pa.Array", form: str) -> "pa.Array":
    """Convert dates to days since 1970-01-01, float64; null for a text that does not fit the form."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        times = values.cast(pa.timestamp("us"), safe=False)
    elif form == ISO:
        is_date = matches(values, r"^\d{4}-\d{2}-\d{2}([ T]\d{2}(:\d{2}(:\d{2}(\.\d{1,6})?)?)?Z?)?$")
        plain = pc.replace_substring_regex(pc.if_else(is_date, values, None), "Z$", "")
        times = _cast_times(plain)
    else:
        times = _strict_times(values, form)
    microseconds = times.cast(pa.timestamp("us")).cast(pa.int64())
    return pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6 * _DAY)


def _cast_times(texts: "pa.Array") -> "pa.Array":
    """Convert ISO 8601 to times; null for a day or hour that does not exist."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return texts.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        exists = pc.is_valid(_strict_times(pc.utf8_slice_codeunits(texts, 0, 10), "%Y-%m-%d"))
        hours = pc.or_(pc.less(pc.utf8_length(texts), 11), matches(texts, r".{10}.([01]\d|2[0-3]):[0-5]"))
        return pc.if_else(pc.and_(exists, hours), texts, None).cast(pa.timestamp("us"))


def _strict_times(texts: "pa.Array", form: str) -> "pa.Array":
    """Parse texts by a format of strptime; null for a day that does not exist, such as 31 February."""
    import pyarrow.compute as pc

    times = pc.strptime(texts, format=form, unit="s", error_is_null=True)
    # strptime takes 31 February for 2 March, whose text is another one.
    again, given = (
        pc.replace_substring_regex(each, r"\b0(\d)", r"\1")
        for each in (pc.strftime(times, format=form), texts)
    )
    return pc.if_else(pc.fill_null(pc.equal(again, given), False), times, None)


def _parsed(texts: "pa.Array", form: str) -> np.ndarray | None:
    """Return the days of all texts that are not null, or None if one of them does not fit."""
    days = days_of(texts, form)
    return None if days.null_count > texts.null_count or not len(days) else np.asarray(days.drop_null())


def matches(texts: "pa.Array", pattern: str) -> "pa.Array":
    """Decide for each text whether it matches an RE2 pattern; false for null."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.match_substring_regex(texts, pattern), False)

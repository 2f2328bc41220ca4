"""Reading of users' files of sensor readings, and their alignment to equal steps of time.

There are four kinds of files: a wide table (CSV, Parquet) with a column of times and a column for each
sensor; a long table with a row (time, sensor, value) for each reading; an HDF5 file in the layout of
METR-LA's and PEMS-BAY's; and an npz file with the arrays

    readings   [T, S] numbers
    ids        [S] texts or whole numbers
    times      [T] texts or datetime64; or `start`, one text, and `step_minutes`, one whole number

A reading is missing if its cell is empty or NaN, if it equals the number that means a missing reading, or if
the file has no row for its step. Shapes: R rows, T steps, S sensors.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from graphfed.data.feature_checks import count_rounded
from graphfed.data.hdf5 import read_table
from graphfed.data.npz_files import NpzFile
from graphfed.data.texts import canonical_names
from graphfed.data.user_files.table_files import Numbers, TableFile, first_that_fails
from graphfed.errors import InputError, shown

if TYPE_CHECKING:
    import pyarrow as pa

HDF5 = (".h5", ".hdf5", ".hdf")
#: The name of a table's first column if the file does not name it.
INDEX = "time"
#: The largest number of readings of a grid: 2 GB of float32.
MAX_READINGS = 5 * 10**8
#: A grid with more than SPARE_STEPS + SPARE_TIMES x (number of times in the file) steps is refused.
SPARE_STEPS, SPARE_TIMES = 10_000, 20
#: Readings of at least this magnitude are compared with what 32 bits keep of them.
LARGE = 2.0**18
MINUTE = 60_000_000  # in microseconds
#: datetime's own years 1 to 9999, in microseconds.
FIRST, LAST = (int(np.datetime64(day, "us").astype(np.int64)) for day in ("0001-01-01", "9999-12-31"))
_MISSING = "leave the cell empty where there is no reading"
_NO_SENSOR = f"{_MISSING} (or drop the column if it is no sensor)"


@dataclass(frozen=True)
class Rows:
    """The rows of a file.

    `times` are in microseconds since 1970, int64 [R], and in UTC if `zoned`. `values` are float32, NaN if
    missing: [R, S] for a wide table, and [R] for a long one, in which `sensor`, int64 [R], is the sensor of
    each row. `where` describes the position of a row for messages, and `note` is a remark on values that are
    equal in 32 bits, or "".
    """

    path: Path
    ids: tuple[str, ...]
    times: np.ndarray
    sensor: np.ndarray | None
    values: np.ndarray
    where: Callable[[int], str]
    zoned: bool
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """Readings at equal steps of time from the ISO time `start`, float32 [T, S], 0 if missing."""

    readings: np.ndarray
    missing: np.ndarray
    start: str
    step_minutes: int


# ---- files -------------------------------------------------------------------------------------------------


def read_wide(path: Path, time: str, missing: float | None) -> Rows:
    """Read a table with a column of times, in which every other column is a sensor.

    `missing` is a number that means a missing reading, here and below; None if there is none.
    """
    file = TableFile(path, index=INDEX)
    sensors = [name for name in file.columns if name != time]
    if not sensors:
        raise InputError(f"{path} has only the column {time!r}; add one column for each sensor")
    read, values = file.read([], Numbers(sensors, _NO_SENSOR, gaps=True), [time])
    if not len(values):
        raise InputError(f"{path} has no row; add one row for each time")
    times, zoned = read_column_times(file, time, read[time])
    ids, note = _distinct(path, sensors), _rounding_note(file.rounded)
    return Rows(path, ids, times, None, _without(values, missing), file.where, zoned, note)


def read_long(path: Path, time: str, sensor: str, value: str, missing: float | None) -> Rows:
    """Read a table with a row for each reading. The order of sensors is that of their first rows."""
    import pyarrow.compute as pc

    file = TableFile(path, index=INDEX)
    read, values = file.read([sensor], Numbers([value], _MISSING, gaps=True), [time])
    if not len(values):
        raise InputError(f"{path} has no row; add one row for each reading")
    names = read[sensor].combine_chunks()
    file.refuse_where(pc.equal(names, ""), sensor, "is empty", "name the sensor, or drop the row")
    times, zoned = read_column_times(file, time, read[time])
    numbered = names.dictionary_encode()
    return Rows(
        path,
        tuple(numbered.dictionary.to_pylist()),
        times,
        np.asarray(numbered.indices).astype(np.int64),
        _without(values[:, 0], missing),
        file.where,
        zoned,
        _rounding_note(file.rounded),
    )


def read_hdf5(path: Path, missing: float | None) -> Rows:
    """Read an HDF5 file in the layout of METR-LA's and PEMS-BAY's, with a column for each sensor."""
    columns, index, values = read_table(path)
    return _array_rows(path, _distinct(path, columns), index, values, missing)


def read_arrays(path: Path, missing: float | None) -> Rows:
    """Read an npz file with the arrays that this module's docstring describes."""
    with NpzFile(path, "write it again, with the arrays 'readings', 'ids' and 'times'") as file:
        if "readings" not in file:
            _refuse_other_arrays(file)
        readings = file.take("readings", "fiu", (None, None), "numbers [times, sensors]")
        steps, sensors = readings.shape
        if not readings.size:
            file.refuse(f"array 'readings' has shape {readings.shape}; expected at least one time and sensor")
        names = file.take_names("ids", sensors, f"a text or a whole number for each of {sensors} sensors")
        names = _distinct(path, names)
        if "times" in file:
            index = file.take("times", "UM", (steps,), f"a text or datetime64 for each of {steps} rows")
        else:
            start = file.take("start", "UM", (), "the time of the first row, because 'times' is absent")
            minutes = int(file.take("step_minutes", "iu", (), "one whole number").item())
            # The product with the number of steps must fit into 64 bits.
            if not 1 <= minutes <= 10**6:
                file.refuse(f"step_minutes is {minutes}; expected whole minutes, at least 1")
            first, _ = _read_array_times(start.reshape(1), lambda _: f"{path}, array 'start'")
            index = (first + np.arange(steps) * minutes * MINUTE).view("datetime64[us]")
    return _array_rows(path, names, index, readings, missing)


def _array_rows(
    path: Path, names: tuple[str, ...], index: np.ndarray, readings: np.ndarray, missing: float | None
) -> Rows:
    def where(row: int) -> str:
        return f"{path}, row {row + 1}"

    times, zoned = _read_array_times(index, where)
    values, note = _float32(readings, names, where)
    return Rows(path, names, times, None, _without(values, missing), where, zoned, note)


def _refuse_other_arrays(file: NpzFile) -> None:
    """Raise an InputError that names a matrix of another name, and how to write it as readings, if any."""
    for name in file.names:
        array = file.take(name)
        if array.dtype.kind not in "fiu" or array.ndim not in (2, 3):
            continue
        has, first = f"shape {list(array.shape)}", ""
        if array.ndim == 3:
            has, first = f"{array.shape[2]} quantities of {array.shape[1]} sensors", "[:, :, 0]"
        numbers = f"numpy.load({str(file.path)!r})[{name!r}]{first}"
        raise InputError(
            f"{file.path} has no array 'readings' (array {name!r} has {has}); write one quantity as "
            f"numpy.savez('readings.npz', readings={numbers}, ids=names, start='2024-01-31 08:00', "
            "step_minutes=5)"
        )


def _distinct(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    ids = canonical_names(names)
    (twice, count), *_ = Counter(ids).most_common(1)
    if count > 1:
        raise InputError(f"{path} names the sensor {shown(twice)} twice; give every sensor an id of its own")
    return ids


def _without(values: np.ndarray, missing: float | None) -> np.ndarray:
    """Replace the number that means a missing reading by NaN, in place."""
    if missing is not None:
        with np.errstate(over="ignore"):  # a number outside float32 becomes infinite and equals no reading
            values[values == np.float32(missing)] = np.nan
    return values


def _float32(
    values: np.ndarray, names: tuple[str, ...], where: Callable[[int], str]
) -> tuple[np.ndarray, str]:
    """Round readings to 32 bits, and return the note on what they lose."""
    with np.errstate(over="ignore"):
        result = values.astype(np.float32)
    if np.isinf(result).any():
        row, sensor = np.argwhere(np.isinf(result))[0]
        raise InputError(
            f"{where(int(row))}, sensor {shown(names[sensor])}: {values[row, sensor]} is no finite number "
            "(in 32 bits); correct it, or write NaN if there is no reading"
        )
    large = np.flatnonzero((np.abs(result) >= LARGE).any(0))
    rounded = {names[i]: count_rounded(values[:, i], result[:, i]) for i in large}
    return result, _rounding_note(rounded)


def _rounding_note(rounded: Mapping[str, tuple[int, int]]) -> str:
    """Describe the first sensor of which most different readings are equal in 32 bits."""
    lost = {name: counts for name, counts in rounded.items() if counts[0] and 2 * counts[1] <= counts[0]}
    if not lost:
        return ""
    name, (before, after) = next(iter(lost.items()))
    return (
        f"{shown(name)}: its {before:,} different readings are only {after:,} in 32 bits ({len(lost)} of the "
        "columns with readings are like it); subtract one constant from all readings before you write them"
    )


# ---- times -------------------------------------------------------------------------------------------------


def read_column_times(
    file: TableFile, column: str, values: "pa.Array | pa.ChunkedArray", start: int = 0
) -> tuple[np.ndarray, bool]:
    """Read a table's column of ISO texts, or of Parquet's dates or times, as `_read_microseconds` does.

    `start` is the number of rows before the values.
    """
    import pyarrow as pa

    written = pa.types.is_string(values.type)
    if not written and not pa.types.is_timestamp(values.type) and not pa.types.is_date(values.type):
        raise InputError(
            f"{file.path}, column {column!r} has type {values.type}, and times are expected; write times as "
            "text, as in 2024-01-31 08:05, or name another column as 'time'"
        )

    def refuse(row: int, what: str, fix: str) -> NoReturn:
        text = values[row].as_py() if written else None
        file.refuse(start + row, column, text if text and text.strip() else None, what, fix)

    return _read_microseconds(values, refuse)


def _read_array_times(index: np.ndarray, where: Callable[[int], str]) -> tuple[np.ndarray, bool]:
    """Read an array of texts or datetime64, as `_read_microseconds` does."""
    import pyarrow as pa

    def refuse(row: int, what: str, fix: str) -> NoReturn:
        raise InputError(f"{where(row)}: {shown(str(index[row]))} {what}; {fix}")

    if index.dtype.kind != "M":
        return _read_microseconds(pa.array([str(text) for text in index.tolist()], pa.string()), refuse)
    unit = np.datetime_data(index.dtype)[0]
    years = index.astype(f"datetime64[{'D' if unit == 'generic' else unit}]").astype("datetime64[Y]")
    # Years are checked before the conversion to microseconds, which overflows for some years.
    bad = np.flatnonzero(~((years >= np.datetime64("0001")) & (years < np.datetime64("9999"))))
    if bad.size:
        refuse(int(bad[0]), "is no time", "write all of them as 2024-01-31 08:05")
    return index.astype("datetime64[us]").view(np.int64), False


def _read_microseconds(
    values: "pa.Array | pa.ChunkedArray", refuse: Callable[[int, str, str], NoReturn]
) -> tuple[np.ndarray, bool]:
    """Convert texts, dates or Arrow's times to microseconds since 1970, [R]; decide whether they name a zone.

    `refuse` (row, what, fix) raises for the first value that is no time, or that names no time zone although
    the first value names one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    written, zoned = pa.types.is_string(values.type), getattr(values.type, "tz", None) is not None
    if written:
        values = pc.utf8_trim_whitespace(values)
        values = pc.if_else(pc.equal(values, ""), None, values)
    if values.null_count:
        refuse(pc.index(pc.is_null(values), True).as_py(), "is empty", "write the time, or drop the row")
    if written:
        # The first row decides whether the file names time zones, and all others must agree.
        first = values.slice(0, 1)
        zoned = not _is_time(first, None) and _is_time(first, "UTC")
    elif pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("ms"))
    # Nanoseconds are cut off; text with finer parts than microseconds is refused.
    finer = not written and values.type.unit == "ns"
    needs_zone = zoned and written

    def convert(part: "pa.Array | pa.ChunkedArray") -> "pa.Array | pa.ChunkedArray":
        return part.cast(pa.timestamp("us", "UTC" if zoned else None), safe=not finer)

    try:
        times = np.asarray(convert(values).cast(pa.int64()))
    except pa.ArrowException:
        refuse(
            first_that_fails(values, convert),
            "is no time" + (" with a time zone" if needs_zone else ""),
            "write it as 2024-01-31 08:05" + ("+00:00, like the first row" if needs_zone else ""),
        )
    out = np.flatnonzero((times < FIRST) | (times > LAST))
    if out.size:
        refuse(int(out[0]), "is outside the years 1 to 9999", "correct it")
    return times, zoned


def _is_time(texts: "pa.Array | pa.ChunkedArray", zone: str | None) -> bool:
    import pyarrow as pa

    try:
        texts.cast(pa.timestamp("us", zone))
    except pa.ArrowException:
        return False
    return True


# ---- the grid ----------------------------------------------------------------------------------------------


def on_grid(rows: Rows, step_minutes: int | None) -> Grid:
    """Align rows to equal steps of time, in the order of time. Steps without a row are missing.

    `step_minutes` is by default the most frequent difference between consecutive times.
    """
    times, first, number = np.unique(rows.times, return_index=True, return_inverse=True)
    size = len(rows.ids)
    _refuse_repeated(rows, number if rows.sensor is None else number * size + rows.sensor)
    step = _step(rows, times, step_minutes)
    # The most frequent phase defines the steps, so a wrong first time does not shift all others.
    phase, count = np.unique(times % step, return_counts=True)
    off = np.flatnonzero(times % step != phase[count.argmax()])
    if off.size:
        row = int(first[off].min())
        raise InputError(
            f"{rows.where(row)}: the time {_iso(rows.times[row])} is between two of the steps of "
            f"{step // MINUTE} minutes that the other times have; correct it, or give another 'step_minutes'"
        )
    position = (times - times[0]) // step
    steps = int(position[-1]) + 1
    # One wrong year would make a grid of millions of empty steps.
    if steps > SPARE_STEPS + SPARE_TIMES * len(times):
        late = int(np.diff(position).argmax()) + 1
        raise InputError(
            f"{rows.where(int(first[late]))}: the time {_iso(times[late])} is "
            f"{position[late] - position[late - 1]:,} steps of {step // MINUTE} minutes after the previous "
            "time; correct it, or keep only the rows of one period"
        )
    if steps * size > MAX_READINGS:
        raise InputError(
            f"{rows.path} has {steps:,} steps of {size:,} sensors, more than {MAX_READINGS:,} readings; use "
            "a shorter period or fewer sensors"
        )
    readings = np.full((steps, size), np.nan, dtype=np.float32)
    if rows.sensor is None:
        readings[position[number]] = rows.values
    else:
        readings[position[number], rows.sensor] = rows.values
    missing = np.isnan(readings)
    # Nothing could be learned or scored at such a sensor.
    silent = np.flatnonzero(missing.all(0))
    if silent.size:
        raise InputError(
            f"{rows.path} has no reading of sensor {shown(rows.ids[silent[0]])} ({silent.size} such "
            "sensors); remove the sensor from the file"
        )
    readings[missing] = 0
    return Grid(readings, missing, _iso(times[0]), int(step // MINUTE))


def _refuse_repeated(rows: Rows, key: np.ndarray) -> None:
    """Raise an InputError for the first row whose time (and sensor) an earlier row has."""
    order = np.argsort(key, kind="stable")
    again = np.flatnonzero(key[order][1:] == key[order][:-1])
    if not again.size:
        return
    row = int(order[again + 1].min())
    earlier = int(np.flatnonzero(key == key[row])[0])
    of_sensor = "" if rows.sensor is None else f" of sensor {shown(rows.ids[rows.sensor[row]])}"
    place = rows.where(earlier).removeprefix(f"{rows.path}, ")
    raise InputError(
        f"{rows.where(row)}: the time {_iso(rows.times[row])}{of_sensor} is also in {place}; keep one of the "
        f"two rows ({again.size} repeated; if a clock was put back, write times in UTC)"
    )


def _step(rows: Rows, times: np.ndarray, step_minutes: int | None) -> int:
    if step_minutes is not None:
        return step_minutes * MINUTE
    if len(times) < 2:
        raise InputError(f"{rows.path} has readings of only one time, {_iso(times[0])}; add further times")
    gap, count = np.unique(np.diff(times), return_counts=True)
    step = int(gap[count.argmax()])
    if step % MINUTE:
        raise InputError(
            f"{rows.path}: most times are {step / 1e6:g} seconds apart, and steps must be whole minutes; "
            "average the readings over minutes"
        )
    return step


def _iso(microseconds: int | np.integer) -> str:
    text: str = np.datetime64(int(microseconds), "us").item().isoformat()
    return text

"""Windows of a time series of readings, and their split in time into train, val and test.

A window has the `lags` steps that a forecast reads and the `horizon` steps after them, which it predicts.
Window w has the steps w .. w + lags + horizon - 1, so T steps have W = T - lags - horizon + 1 windows. S
sensors.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from graphfed.data.content import content_hash
from graphfed.data.graphs.splits import fractions_in
from graphfed.data.messages import listed
from graphfed.data.sensors.series import Sensors
from graphfed.errors import InputError, did_you_mean, shown

#: The usual split of traffic data: 70 % of the windows for training, then 10 % for validation, 20 % for test.
USUAL = (0.7, 0.1, 0.2)
KINDS = ("default", "time", "inductive")


@dataclass(frozen=True, eq=False)
class TimeSplit:
    """The windows and sensors for training, validation and test.

    Training windows are 0 .. train - 1; validation windows follow, and then test windows. A forecast reads
    `lags` steps and predicts `horizon` steps; training uses every `every`-th window. The sensors `observed`,
    bool [S], take part in training and validation, and all sensors in the test.
    """

    name: str
    lags: int
    horizon: int
    every: int
    train: int
    val: int
    test: int
    observed: np.ndarray

    @cached_property
    def hash(self) -> str:
        """The SHA-256 hash (hexadecimal) of all attributes except the name."""
        numbers = (self.lags, self.horizon, self.every, self.train, self.val, self.test)
        return content_hash({"numbers": np.array(numbers, dtype=np.int64), "observed": self.observed})


def with_training_remark(sensors: Sensors, split: TimeSplit) -> Sensors:
    """Note, in `note`, the sensors that have no reading to forecast in any training window."""
    # Targets of the training windows: the first lags steps are only read, and window train - 1 ends here.
    steps = slice(split.lags, split.train + split.lags + split.horizon - 1)
    without = np.flatnonzero(sensors.missing[steps].all(0) & split.observed)
    if not without.size:
        return sensors
    names = [sensors.ids[sensor] for sensor in without]
    remark = (
        f"{without.size:,} of {sensors.num_sensors:,} sensors {'has' if without.size == 1 else 'have'} no "
        f"reading to train on ({listed(names)}) and still count as clients; "
        "leave them out of the file of readings, or use an earlier or longer period"
    )
    return replace(sensors, note="; ".join(filter(None, (sensors.note, remark))))


def make_time_split(sensors: Sensors, name: str, lags: int, horizon: int, every: int = 1) -> TimeSplit:
    """Split the windows of readings in time.

    The kinds of split:

        "time:A,B,C"        fractions of the windows for training, validation and test, in the order of time,
                            with the sum 1. Training has round(A W) windows, test round(C W), and validation
                            the rest
        "inductive:F"       "time:0.7,0.1,0.2" in which only the westernmost round(F S) sensors (at least one)
                            take part in training and validation
        "default", "time"   "time:0.7,0.1,0.2"
    """
    for what, value in (("lags", lags), ("horizon", horizon), ("every", every)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{what}={shown(value)} must be a whole number of at least 1")
    kind, colon, numbers = name.partition(":")
    kind = kind.lower()
    if kind not in KINDS:
        raise InputError(
            f"unknown split {shown(name)} of readings; {did_you_mean(kind[:60], KINDS)} (as in "
            "'time:0.7,0.1,0.2', 'inductive:0.5')"
        )
    if colon and kind == "default":
        raise InputError(f"split {shown(name)}: 'default' takes no numbers; use 'time:0.7,0.1,0.2'")
    fractions, observed = USUAL, np.ones(sensors.num_sensors, dtype=bool)
    if kind == "inductive":
        fraction = _fraction_of_sensors(name, numbers)
        observed = _western(sensors, name, fraction)
        name = f"inductive:{fraction:g}"
    else:
        fractions = _fractions(name, numbers) if colon else USUAL
        name = "time:" + ",".join(f"{fraction:g}" for fraction in fractions)
    total = sensors.num_steps - lags - horizon + 1
    if total < 1:
        raise InputError(
            f"{sensors.name!r} has {sensors.num_steps} steps, and one window of {lags} lags and a horizon of "
            f"{horizon} needs {lags + horizon}; use fewer lags, a shorter horizon or more data"
        )
    train, test = round(fractions[0] * total), round(fractions[2] * total)
    parts = {"train": train, "val": total - train - test, "test": test}
    for part, size in parts.items():
        if size < 1:
            raise InputError(
                f"split {name!r} of the {total} windows of {sensors.name!r} (lags {lags}, horizon {horizon}) "
                f"leaves no window for {part}; use other fractions, a shorter horizon or more data"
            )
    return TimeSplit(name, lags, horizon, every, observed=observed, **parts)


def windows(readings: np.ndarray, lags: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return views of all windows of readings [T, S]: inputs [W, lags, S] and targets [W, horizon, S]."""
    both = np.lib.stride_tricks.sliding_window_view(readings, lags + horizon, axis=0).swapaxes(1, 2)
    return both[:, :lags], both[:, lags:]


def _western(sensors: Sensors, name: str, fraction: float) -> np.ndarray:
    """Select the round(fraction S) westernmost sensors, bool [S]; by id if longitudes (or x) are equal."""
    if sensors.position is None:
        raise InputError(
            f"split {shown(name)} sorts the sensors by longitude, and {sensors.name!r} has no locations; "
            "name a file of locations in the description ('locations:'), or use 'time:0.7,0.1,0.2'"
        )
    east = sensors.position[:, 1 if sensors.geographic else 0]
    # Ties are broken by id and not by position, which depends on the order of the file.
    order = sorted(range(sensors.num_sensors), key=lambda s: (east[s], sensors.ids[s]))
    observed = np.zeros(sensors.num_sensors, dtype=bool)
    observed[order[: max(1, round(fraction * sensors.num_sensors))]] = True
    return observed


def _fraction_of_sensors(name: str, numbers: str) -> float:
    try:
        fraction = float(numbers)
    except ValueError:
        raise InputError(
            f"split {shown(name)} cannot be read; write the fraction of the sensors to train on, as in "
            "'inductive:0.5'"
        ) from None
    if not 0 < fraction <= 1:  # NaN fails, too
        raise InputError(
            f"split {shown(name)}: the fraction of the sensors must be above 0 and at most 1, as in "
            "'inductive:0.5'"
        )
    return fraction


def _fractions(name: str, numbers: str) -> tuple[float, float, float]:
    fractions = fractions_in(name, numbers, "time:0.7,0.1,0.2")
    if abs(sum(fractions) - 1) > 1e-9:
        raise InputError(
            f"split {shown(name)}: the fractions add up to {sum(fractions):g}; they must add up to 1, as in "
            "'time:0.7,0.1,0.2'"
        )
    return fractions

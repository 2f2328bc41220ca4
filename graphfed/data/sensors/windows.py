"""Windows of a series of readings, and the split of a series in time into train, val and test.

A window is what one forecast needs: `lags` steps to read and the `horizon` steps after them to forecast.
Window w covers the steps w .. w + lags + horizon - 1, so T steps have T - lags - horizon + 1 windows.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphfed.data.content import content_hash
from graphfed.data.graphs.splits import fractions_in
from graphfed.data.sensors.series import Sensors
from graphfed.errors import InputError, did_you_mean, shown

__all__ = ["TimeSplit", "make_time_split", "windows"]

#: The usual split of traffic: 70 % of the windows to train on, then 10 % and 20 %.
USUAL = (0.7, 0.1, 0.2)
KINDS = ("default", "time", "inductive")


@dataclass(frozen=True, eq=False)
class TimeSplit:
    """Which windows, and whose, are trained on, selected on and tested on.

    lags, horizon: steps. train, val, test: numbers of windows, in this order in time: training windows are
    0 .. train - 1, and so on. every: every so manieth of the training windows is trained on (1: all).
    observed: [S] bool, the sensors that take part in training and validation; all are tested.
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
        """sha256 (hex) of everything but the name."""
        numbers = (self.lags, self.horizon, self.every, self.train, self.val, self.test)
        return content_hash({"numbers": np.array(numbers, dtype=np.int64), "observed": self.observed})


def make_time_split(sensors: Sensors, name: str, lags: int, horizon: int, every: int = 1) -> TimeSplit:
    """The split of the readings' windows that `name` names.

    "time:A,B,C"        the first of the windows to train on, then those to select on, the last to test on:
                        fractions whose sum is 1. round(A W) and round(C W) of W windows; val is the rest
    "inductive:F"       time:0.7,0.1,0.2, and only the first round(F S) sensors (at least one) from the west
                        are trained and selected on
    "default", "time"   "time:0.7,0.1,0.2"

    Raises InputError for an unknown name, too few steps, a part without windows, and an inductive split of
    sensors without positions.
    """
    for what, value in (("lags", lags), ("horizon", horizon), ("every", every)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{what}={shown(value)} must be a whole number of at least 1")
    kind, colon, numbers = name.partition(":")
    kind = kind.lower()
    if kind not in KINDS:
        raise InputError(
            f"unknown split {shown(name)} of readings in time; {did_you_mean(kind[:60], KINDS)} (as in "
            "'time:0.7,0.1,0.2', 'inductive:0.5')"
        )
    if colon and kind == "default":
        raise InputError(f"split {shown(name)}: 'default' takes no numbers; use 'time:0.7,0.1,0.2'")
    if kind == "inductive":
        share = _share(name, numbers)
        return _in_time(
            sensors, f"inductive:{share:g}", USUAL, _western(sensors, name, share), lags, horizon, every
        )
    fractions = _fractions(name, numbers) if colon else USUAL
    everywhere = np.ones(sensors.num_sensors, dtype=bool)
    name = "time:" + ",".join(f"{fraction:g}" for fraction in fractions)
    return _in_time(sensors, name, fractions, everywhere, lags, horizon, every)


def windows(readings: np.ndarray, lags: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """All windows of readings [T, S], as views without a copy: inputs [W, lags, S] and
    targets [W, horizon, S]."""
    both = np.lib.stride_tricks.sliding_window_view(readings, lags + horizon, axis=0).swapaxes(1, 2)
    return both[:, :lags], both[:, lags:]


def _in_time(
    sensors: Sensors,
    name: str,
    fractions: tuple[float, float, float],
    observed: np.ndarray,
    lags: int,
    horizon: int,
    every: int,
) -> TimeSplit:
    total = sensors.num_steps - lags - horizon + 1
    if total < 1:
        raise InputError(
            f"{sensors.name!r} has {sensors.num_steps} steps, and one window of {lags} to read and {horizon} "
            f"to forecast needs {lags + horizon}; use fewer lags, a shorter horizon or more data"
        )
    train, test = round(fractions[0] * total), round(fractions[2] * total)
    parts = {"train": train, "val": total - train - test, "test": test}
    for part, size in parts.items():
        if size < 1:
            raise InputError(
                f"split {name!r} of the {total} windows that {sensors.name!r} has (lags {lags}, horizon "
                f"{horizon}) leaves none for {part}; use other fractions, a shorter horizon or more data"
            )
    return TimeSplit(name, lags, horizon, every, observed=observed, **parts)


def _western(sensors: Sensors, name: str, share: float) -> np.ndarray:
    """The first round(share S) sensors by longitude, or by x, and where these are equal by id: bool [S]."""
    if sensors.position is None:
        raise InputError(
            f"split {shown(name)} sorts the sensors by longitude, and {sensors.name!r} has no locations of "
            "them; name a file of them ('locations:'), or use 'time:0.7,0.1,0.2'"
        )
    east = sensors.position[:, 1 if sensors.geographic else 0]
    order = sorted(range(sensors.num_sensors), key=lambda s: (east[s], sensors.ids[s]))
    observed = np.zeros(sensors.num_sensors, dtype=bool)
    observed[order[: max(1, round(share * sensors.num_sensors))]] = True
    return observed


def _share(name: str, numbers: str) -> float:
    try:
        share = float(numbers)
    except ValueError:
        raise InputError(
            f"split {shown(name)} cannot be read; write the share of the sensors to train on, as in "
            "'inductive:0.5'"
        ) from None
    if not 0 < share <= 1:  # NaN fails, too
        raise InputError(
            f"split {shown(name)} leaves no sensor to train on or more than there are; use a share above 0 "
            "and at most 1"
        )
    return share


def _fractions(name: str, numbers: str) -> tuple[float, float, float]:
    fractions = fractions_in(name, numbers, "time:0.7,0.1,0.2")
    if abs(sum(fractions) - 1) > 1e-9:
        raise InputError(
            f"split {shown(name)}: the fractions add up to {sum(fractions):g}; they must add up to 1, as in "
            "'time:0.7,0.1,0.2'"
        )
    return fractions

"""What a sweep tries: grids and ranges of settings, which are checked before the first trial."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from graphfed.errors import InputError, shown
from graphfed.files import JsonObject
from graphfed.methods.config import WINDOW_SETTINGS
from graphfed.runs.reopen import config_from_json
from graphfed.runs.settings import unknown_setting
from graphfed.studies.plan import planned_runs
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.run_options import SettingValue

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

__all__ = [
    "MAX_TRIALS",
    "Plan",
    "Settings",
    "check_settings",
    "checked_grid",
    "checked_range",
    "trial_count",
    "with_settings",
]

#: The settings of a trial by name.
Settings: TypeAlias = Mapping[str, SettingValue]
#: Trials of one sweep: more than anybody waits for.
MAX_TRIALS = 10_000


@dataclass(frozen=True)
class Plan:
    """What a sweep tries.

    Attributes:
        configs: What is common to all trials, for each seed.
        grid: Values by setting.
        ranges: Where Optuna draws other settings.
        trials: The number of trials of a search; None for every combination of the grid.
    """

    configs: Mapping[int, RunConfig]
    grid: Mapping[str, Sequence[SettingValue]]
    ranges: "Mapping[str, FloatDistribution | IntDistribution]"
    trials: int | None

    @property
    def first(self) -> RunConfig:
        """The config of the first seed."""
        return next(iter(self.configs.values()))

    @property
    def total(self) -> int:
        """The number of trials."""
        return self.trials or math.prod(len(values) for values in self.grid.values())

    def to_json(self) -> JsonObject:
        """Return the plan as plain data.

        Returns:
            What the manifest has under "sweep".
        """
        return {
            "grid": self.grid,
            "ranges": {key: [drawn.low, drawn.high, drawn.log] for key, drawn in self.ranges.items()},
            "trials": self.trials,
            "runs": planned_runs(self.configs),
        }

    def combinations(self) -> Iterator[dict[str, SettingValue]]:
        """Yield every combination of the grid's values; the last setting changes fastest.

        Yields:
            Values by setting.
        """
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def space(self) -> "dict[str, BaseDistribution]":
        """Return what varies, as Optuna draws it: the grid's values as choices, then the ranges.

        Returns:
            A distribution for each setting.
        """
        from optuna.distributions import CategoricalDistribution

        choices = {key: CategoricalDistribution(values) for key, values in self.grid.items()}
        return {**choices, **self.ranges}


def checked_grid(grid: object) -> dict[str, list[SettingValue]]:
    """Check the values of a grid.

    Args:
        grid: Values by setting; None for none.

    Returns:
        A list of values for each setting.

    Raises:
        InputError: It is no mapping to lists of different values.
    """
    if grid is not None and not isinstance(grid, Mapping):
        raise InputError(
            f"grid={shown(grid)} cannot be used; give lists by setting, as in {{'lr': [0.1, 0.5]}}"
        )
    chosen: dict[str, list[SettingValue]] = {}
    for key, values in (grid or {}).items():
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise InputError(f"grid {key}={shown(values)} cannot be used; give a list of values")
        chosen[key] = list(values)
        if not chosen[key]:
            raise InputError(f"grid {key} has no value; give at least one, as in {key}=0.1,0.5")
        for value in chosen[key]:
            if not isinstance(value, str | int | float | None):
                raise InputError(f"grid {key}: {shown(value)} is no number, text or None")
            if chosen[key].count(value) > 1:
                raise InputError(f"grid {key} has {shown(value)} twice; give each value once")
    return chosen


def checked_range(key: str, value: object) -> "FloatDistribution | IntDistribution":
    """Check the range of a setting in a search.

    Args:
        key: The setting.
        value: ``(low, high)`` or ``(low, high, "log")``. Both ends belong to the range. It has whole numbers
            if both ends are whole; with "log" the logarithm is drawn evenly.

    Returns:
        The distribution.

    Raises:
        InputError: The value is no range.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    if not isinstance(value, list | tuple) or list(value[2:]) not in ([], ["log"], [True], [False]):
        raise InputError(f"range {key}={shown(value)} cannot be read; give low:high or low:high:log")
    if len(value) < 2:
        only = ":".join(str(part)[:60] for part in value)
        raise InputError(f"range {key}={only} needs two ends; give low:high or low:high:log")
    low, high, log = value[0], value[1], bool(value[2:] and value[2])
    if (
        any(isinstance(end, bool) or not isinstance(end, int | float) for end in (low, high))
        or not low < high
    ):
        raise InputError(
            f"range {key}={shown(low)}:{shown(high)} cannot be used; the lower end must be a number "
            "below the upper one"
        )
    if log and low <= 0:
        raise InputError(f"range {key}={low}:{high}:log cannot be used; its ends must be above 0")
    whole = isinstance(low, int) and isinstance(high, int)
    return (IntDistribution if whole else FloatDistribution)(low, high, log=log)


def trial_count(
    grid: Mapping[str, Sequence[SettingValue]], ranges: Iterable[str], trials: object
) -> int | None:
    """Return the number of trials of a search.

    Args:
        grid: Values by setting.
        ranges: The settings that are drawn.
        trials: The number that was asked for; None for a grid.

    Returns:
        The number; None if every combination is tried.

    Raises:
        InputError: The number cannot be used, or grid, ranges and number do not fit together.
    """
    doubled = sorted({*grid} & {*ranges})
    if doubled:
        raise InputError(f"{doubled[0]} is in the grid and has a range; give it once")
    if trials is None:
        if ranges:
            raise InputError("a range needs a search: say how many trials, as in --optuna 20")
        if not grid:
            raise InputError("nothing varies; give values, as in --grid lr=0.1,0.5")
        size = math.prod(len(values) for values in grid.values())
        if size > MAX_TRIALS:
            raise InputError(
                f"the grid has {size} combinations, at most {MAX_TRIALS} are tried; use fewer values"
            )
        return None
    if isinstance(trials, bool) or not isinstance(trials, int) or not 1 <= trials <= MAX_TRIALS:
        raise InputError(f"trials={shown(trials)} cannot be used; give a whole number from 1 to {MAX_TRIALS}")
    if not grid and not ranges:
        raise InputError("nothing varies; give ranges, as in --range lr=0.01:1:log")
    return trials


#: Settings, and an option, that say what is trained on or which readings are scored.
_OF_INPUTS = ("clients", "missing", *WINDOW_SETTINGS)


def check_settings(plan: Plan, given: set[str]) -> None:
    """Check that every value can be a setting of the method.

    Args:
        plan: What is tried.
        given: The settings and options that are fixed.

    Raises:
        InputError: A setting is unknown, fixed, concerns the inputs, or cannot have a value.
    """
    config = plan.first
    names = [f.name for f in dataclasses.fields(config.method.config) if f.name != "seed"]
    for key in (*plan.grid, *plan.ranges):
        if key.startswith(("partition", "data.", "split")) or key in _OF_INPUTS:
            raise InputError(
                f"{key} changes what is trained on, or scored, and a sweep compares settings on the same "
                "inputs; start one sweep for each value"
            )
        if key not in names:
            hint = unknown_setting(key, names)
            raise InputError(f"{config.method.name} has no setting {shown(key)}; {hint}")
        if key in given:
            raise InputError(f"{key} is fixed and varied at once; give it once")
    for key, drawn in plan.ranges.items():
        for end in (drawn.low, drawn.high):
            with_settings(config, {key: end})
    if plan.trials is None:
        for values in plan.combinations():
            with_settings(config, values)
    for key, choices in plan.grid.items():
        for value in choices:
            with_settings(config, {key: value})


def with_settings(config: RunConfig, settings: Settings) -> RunConfig:
    """Return the same run with other settings of its method.

    Args:
        config: The run.
        settings: Values by setting.

    Returns:
        The run.

    Raises:
        InputError: A value cannot be used.
    """
    asked = config.to_json()
    changed = {**asked, "training": {**asked["training"], **settings}}
    return config_from_json(changed, Path(), data=config.data_source, origin="")

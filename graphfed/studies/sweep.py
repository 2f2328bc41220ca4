"""Try many settings of one method on the same inputs, and choose by the validation nodes alone.

    manifest.json                what is tried, on which data
    trials/0001.json             one trial: settings, validation metrics, rounds and seconds of each seed
    trial0002-seed0/             the folder of a run that has not ended, for its checkpoint
    chosen-seed0/                the folder of a run, of the chosen settings only
    sweep.json                   the validation of every trial, the chosen settings and their test metrics

Test metrics are shown for the chosen settings only, on the screen and in files. A person who sees the test
scores of all trials chooses by them, knowingly or not, and the best of many test scores is too optimistic:
with 50 settings that are equally good, the largest of 50 scores lies more than two standard errors above the
true value. So trials keep validation metrics only, and the chosen settings are trained again, which costs one
more trial and gives the same weights.
"""

import itertools
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard, cast

from pydantic import ConfigDict, Field, RootModel, model_validator
from typing_extensions import TypedDict

from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import JsonObject
from graphfed.methods.parts import WINDOW_SETTINGS
from graphfed.runs import folder as files
from graphfed.runs.config import make_config
from graphfed.runs.folder_schema import Count, FileModel, Integer, Positive
from graphfed.runs.progress import human_seconds
from graphfed.runs.reopen import config_from_json, read_manifest
from graphfed.runs.run import Result, write_file
from graphfed.runs.settings import unknown_setting
from graphfed.studies.plan import (
    Row,
    Statistic,
    Study,
    chosen_seeds,
    existing_settings,
    read_configs,
    run_name,
    settings_text,
    spread,
    statistic,
    statistics,
)
from graphfed.tasks.given_partition import with_partition_file
from graphfed.tasks.registry import TASKS, get_task
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.run_options import SettingValue
from graphfed.tasks.source import data_source
from graphfed.terminal import markup

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
    from rich.table import Table

#: The settings of a trial by name.
Settings = Mapping[str, SettingValue]
#: Trials of one sweep: more than anybody waits for.
MAX_TRIALS = 10_000
#: The number of trials that the screen shows.
SHOWN = 30
#: The outer part of a range that counts as its edge.
EDGE = 0.05
#: Settings, and an option, that say what is trained on or which readings are scored.
_OF_INPUTS = ("clients", "missing", *WINDOW_SETTINGS)


class Trial(TypedDict):
    """Settings that were tried, as files have them.

    Attributes:
        trial: The number of the trial, from 1.
        failed: Why training diverged with a seed, after which no other seed was tried; None if it did not.
    """

    trial: Positive
    settings: JsonObject
    val: dict[str, Statistic]
    rounds: list[Count]
    best_round: list[Count | None]
    seconds: Statistic
    failed: Annotated[str, Field(max_length=20_000)] | None


class Chosen(TypedDict):
    """The settings that were chosen, with the folder of each of their runs; None if nothing is written."""

    trial: Positive
    settings: JsonObject
    val: dict[str, Statistic]
    test: dict[str, Statistic]
    folders: list[str | None]


class TrialFile(RootModel[Trial]):
    """The content of trials/*.json."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Sweep(FileModel):
    """A finished sweep: the content of sweep.json.

    Attributes:
        trials: In the order in which they ran.
        edges: Sentences about chosen values at the edge of what was tried.
        folder: The folder of the sweep; None if nothing was written.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    method: str
    dataset: str
    clients: Positive
    partition: str
    seeds: Annotated[tuple[Integer, ...], Field(min_length=1, strict=False)]
    metric: str
    trials: Annotated[tuple[Trial, ...], Field(min_length=1, strict=False)]
    chosen: Chosen
    edges: Annotated[tuple[str, ...], Field(strict=False)]
    task: str
    folder: Path | None = None

    @model_validator(mode="after")
    def _check_trials(self) -> "Sweep":
        """Check that trials have the same settings, and that they and the chosen ones have the metric."""
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}")
        keys = self.trials[0]["settings"].keys()
        for number, trial in enumerate(self.trials):
            if trial["settings"].keys() != keys:
                raise ValueError(f"trials.{number}.settings and trials.0.settings have different keys")
            if trial["failed"] is None and self.metric not in trial["val"]:
                raise ValueError(f"trials.{number}.val has no {self.metric!r}")
        if self.metric not in self.chosen["test"]:
            raise ValueError(f"chosen.test has no {self.metric!r}")
        return self

    def to_json(self) -> JsonObject:
        """Return the content of sweep.json."""
        return files.plain_object(self.model_dump(exclude={"folder"}))

    def ranked(self) -> list[Trial]:
        """Return the trials by validation: the best first, equal ones in their order, failed ones last."""
        return sorted(self.trials, key=lambda trial: -_score(trial, self.metric, self._error))

    @property
    def _error(self) -> bool:
        return get_task(self.task).error

    def table(self) -> "Table":
        """Return the best trials as a table for a screen."""
        from rich.table import Table

        seeds = ", ".join(str(seed) for seed in self.seeds)
        title = f"{self.method} on {self.dataset}: {self.clients} clients, {self.partition}, seeds {seeds}"
        table = Table(title=markup(title), caption=markup(self._caption()), caption_justify="left")
        keys = list(self.trials[0]["settings"])
        for key in ("trial", *keys):
            table.add_column(markup(key), justify="right")
        table.add_column(f"validation {self.metric}", justify="right")
        table.add_column("seconds", justify="right")
        for trial in self.ranked()[:SHOWN]:
            cells = [str(trial["trial"]), *(_text(trial["settings"][key]) for key in keys)]
            scored = spread(trial["val"].get(self.metric), error=self._error)
            cells.append("failed" if trial["failed"] else scored)
            cells.append(human_seconds(trial["seconds"]["mean"] or 0.0))
            bold = "bold" if trial["trial"] == self.chosen["trial"] else None
            table.add_row(*(markup(cell) for cell in cells), style=bold)
        return table

    def _caption(self) -> str:
        unit = "" if self._error else ", in percent"
        lines = [f"validation: mean ± sample standard deviation over seeds{unit}"]
        if len(self.trials) > SHOWN:
            lines.append(f"the best {SHOWN} of {len(self.trials)} trials; all of them are in sweep.json")
        test = self.chosen["test"][self.metric]
        chosen = settings_text(self.chosen["settings"])
        scored = spread(test, error=self._error)
        lines.append(f"chosen on validation: {chosen}; its test {self.metric}: {scored}")
        return "\n".join([*lines, *self.edges])


def sweep(
    method: str,
    *,
    grid: Mapping[str, Sequence[SettingValue]] | None = None,
    ranges: Mapping[str, Sequence[SettingValue]] | None = None,
    trials: int | None = None,
    seeds: Iterable[int] = (0, 1, 2),
    out: str | Path | Literal[False] | None = None,
    progress: bool = False,
    settings: Mapping[str, object] | None = None,
    command: str = "graphfed.sweep",
    **options: Any,
) -> Sweep:
    """Try settings of a method, choose the best mean validation metric over seeds, and score the choice on
    the test nodes.

    Args:
        method: The name of the method whose settings are tried.
        grid: Values by setting, as in {"lr": [0.1, 0.5], "hidden": [16, 32]}; every combination is tried.
        ranges: Ranges of a search, as in {"lr": (0.01, 1.0, "log")}: whole ends give whole numbers, and
            with "log" the logarithm is drawn evenly. A grid next to them gives choices.
        trials: The number of trials of a search, with Optuna's TPE sampler, seeded with the first seed; None
            to try every combination.
        seeds: The seeds of every trial, over which its validation metric is averaged.
        out: The folder; None for ``runs/sweep-<method>-<data>-<time>``, False to write nothing. If it holds
            this very sweep, the missing trials are run.
        progress: Whether to show progress on stderr.
        settings: Settings common to all trials, by key, as `--set` takes them.
        command: The command line that manifest.json records, for its readers.
        options: What `run` takes, common to all trials. Only settings of the method can vary, so that every
            trial of a seed has the same graph, split and partition.

    Returns:
        The sweep.

    Raises:
        InputError: A value cannot be used, or the folder holds something else; nothing is written.
        GraphfedError: No trial gave finite predictions.
    """
    if options.get("data") is not None:
        options = {**options, "data": data_source(options["data"])}  # files are read once
    if "partition" in options:
        given = with_partition_file({**options, "settings": settings})
        options = {**options, "partition": given["partition"]}
    seeds = chosen_seeds(seeds)
    row = Row("", {seed: make_config(method, **options, seed=seed, settings=settings) for seed in seeds})
    # A setting that is given cannot vary, too: one of the two would be ignored.
    fixed = {*(settings or {}), *(key for key, value in options.items() if value is not None)}
    plan = _plan(row, grid, ranges or {}, trials, fixed)
    folder = files.chosen_folder(out, f"sweep-{row.first.method.name}-{row.first.data_name}")
    if folder is not None and (folder / "manifest.json").exists():
        manifest = read_manifest(folder)
        # Compared in the form of JSON, in which the manifest was written.
        if manifest.get("sweep") != files.plain(plan.to_json()):
            raise InputError(
                f"the output folder {folder} holds another run or sweep; name a new one with --out"
            )
        return _go_on(plan, folder, manifest, progress)
    study = Study("sweep", [row], folder, command, progress)
    with study.opened(sweep=plan.to_json()):
        return _finish(study, plan)


def resume_sweep(
    folder: Path, manifest: JsonObject, *, data: object, data_dir: str | Path | None, progress: bool
) -> Sweep:
    """Run the trials that are missing in a folder; the arguments are those of `runs.reopen.resume`."""
    if (folder / "sweep.json").exists():
        return sweep_in(folder)
    asked = manifest["sweep"]
    row = Row("", read_configs(asked["runs"], folder, data, data_dir))
    try:
        plan = _plan(row, asked["grid"], asked["ranges"], asked["trials"], set())
    except InputError as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: {error}") from None
    return _go_on(plan, folder, manifest, progress)


def _go_on(plan: "Plan", folder: Path, manifest: JsonObject, progress: bool) -> Sweep:
    """Run the trials that are missing in a folder, or read a sweep that has ended."""
    if (folder / "sweep.json").exists():
        return sweep_in(folder)
    study = Study("sweep", [plan.row], folder, manifest["command"], progress)
    with study.opened(manifest):
        return _finish(study, plan)


def sweep_in(folder: Path) -> Sweep:
    """Read a finished sweep."""
    content = files.read_json(folder / "sweep.json", Sweep)
    return Sweep.model_validate({**content, "folder": folder})


# ---- what is tried -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a sweep tries.

    Attributes:
        row: What is common to all trials, for each seed.
        trials: The number of trials of a search; None for every combination of the grid.
    """

    row: Row
    grid: Mapping[str, Sequence[SettingValue]]
    ranges: "Mapping[str, FloatDistribution | IntDistribution]"
    trials: int | None

    @property
    def total(self) -> int:
        """The number of trials."""
        return self.trials or math.prod(len(values) for values in self.grid.values())

    def to_json(self) -> JsonObject:
        """Return what the manifest has under "sweep"."""
        return {
            "grid": self.grid,
            "ranges": {key: [drawn.low, drawn.high, drawn.log] for key, drawn in self.ranges.items()},
            "trials": self.trials,
            "runs": self.row.to_json(),
        }

    def combinations(self) -> Iterator[dict[str, SettingValue]]:
        """Yield every combination of the grid's values; the last setting changes fastest."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def space(self) -> "dict[str, BaseDistribution]":
        """Return what varies, as Optuna draws it: the grid's values as choices, then the ranges."""
        from optuna.distributions import CategoricalDistribution

        choices = {key: CategoricalDistribution(values) for key, values in self.grid.items()}
        return {**choices, **self.ranges}


def _plan(row: Row, grid: object, ranges: Mapping[str, object], trials: object, fixed: set[str]) -> Plan:
    """Check what is to be tried, every value included; InputError if it cannot be.

    The settings and options in `fixed` cannot vary because they are given.
    """
    values = _checked_grid(grid)
    drawn = {key: _checked_range(key, value) for key, value in ranges.items()}
    plan = Plan(row, values, drawn, _trial_count(values, drawn, trials))
    _check_settings(plan, fixed)
    return plan


def _checked_grid(grid: object) -> dict[str, list[SettingValue]]:
    """Return the values of a grid; InputError unless it is None, or maps settings to lists of different
    values.
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


def _checked_range(key: str, value: object) -> "FloatDistribution | IntDistribution":
    """Return the range ``(low, high)`` or ``(low, high, "log")`` of a setting; InputError if it is none."""
    from optuna.distributions import FloatDistribution, IntDistribution

    if not isinstance(value, list | tuple) or list(value[2:]) not in ([], ["log"], [True], [False]):
        raise InputError(f"range {key}={shown(value)} cannot be read; give low:high or low:high:log")
    if len(value) < 2:
        only = ":".join(str(part)[:60] for part in value)
        raise InputError(f"range {key}={only} needs two ends; give low:high or low:high:log")
    low, high, log = value[0], value[1], bool(value[2:] and value[2])
    if not (_is_number(low) and _is_number(high) and low < high):
        raise InputError(
            f"range {key}={shown(low)}:{shown(high)} cannot be used; the lower end must be a number "
            "below the upper one"
        )
    if log and low <= 0:
        raise InputError(f"range {key}={low}:{high}:log cannot be used; its ends must be above 0")
    whole = isinstance(low, int) and isinstance(high, int)
    return (IntDistribution if whole else FloatDistribution)(low, high, log=log)


def _trial_count(
    grid: Mapping[str, Sequence[SettingValue]], ranges: Iterable[str], trials: object
) -> int | None:
    """Return the number of trials of a search, None for every combination of the grid; InputError if grid,
    ranges and number do not fit together.
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


def _check_settings(plan: Plan, fixed: set[str]) -> None:
    """Raise InputError if a setting is unknown, fixed, concerns the inputs, or cannot have a value."""
    config = plan.row.first
    names = [name for name in config.method.tree.names if name != "seed"]
    for key in (*plan.grid, *plan.ranges):
        if key.startswith(("partition", "data.", "split")) or key in _OF_INPUTS:
            raise InputError(
                f"{key} changes what is trained on, or scored, and a sweep compares settings on the same "
                "inputs; start one sweep for each value"
            )
        if key not in names:
            hint = unknown_setting(key, names)
            raise InputError(f"{config.method.name} has no setting {shown(key)}; {hint}")
        if key in fixed:
            raise InputError(f"{key} is fixed and varied at once; give it once")
    if plan.trials is None:
        for settings in plan.combinations():
            _with_settings(config, settings)
        return
    # A search draws values between the ends, so the ends and all choices are checked, each alone.
    ends = {key: (drawn.low, drawn.high) for key, drawn in plan.ranges.items()}
    for key, values in {**ends, **plan.grid}.items():
        for value in values:
            _with_settings(config, {key: value})


def _with_settings(config: RunConfig, settings: Settings) -> RunConfig:
    """Return the same run with other settings of its method; InputError if a value cannot be used."""
    # Through JSON, so that a trial is checked in the same way as any run.
    asked = config.to_json()
    kept = existing_settings(config.method, config.task, asked["training"], settings)
    changed = {**asked, "training": {**kept, **settings}}
    return config_from_json(changed, Path(), data=config.data_source, origin="")


# ---- the trials --------------------------------------------------------------------------------------------


def _finish(study: Study, plan: Plan) -> Sweep:
    """Run the missing trials, choose, compute the test metrics of the chosen settings, and write
    sweep.json.
    """
    first = plan.row.first
    metric, error = study.inputs.get(first).metric_of_rounds(first), get_task(first.task).error
    trials = _try_settings(study, plan, metric, error)
    best = max(trials, key=lambda trial: _score(trial, metric, error))
    if best["failed"]:
        raise GraphfedError(f"no trial gave finite predictions; the first one: {str(best['failed'])[:500]}")
    results = [
        study.run("chosen", _with_settings(config, best["settings"]), f"chosen settings, seed {seed}")
        for seed, config in plan.row.configs.items()
    ]
    finished = Sweep(
        method=first.method.name,
        dataset=results[0].dataset,
        clients=results[0].clients,
        partition=first.partition,
        seeds=tuple(plan.row.configs),
        metric=metric,
        trials=tuple(trials),
        chosen={
            "trial": best["trial"],
            "settings": best["settings"],
            "val": best["val"],
            "test": statistics([result.test for result in results]),
            "folders": [None if result.folder is None else str(result.folder) for result in results],
        },
        edges=_edges(plan, best["settings"]),
        task=first.task,
        folder=study.folder,
    )
    if study.folder is not None:
        write_file(study.folder, "sweep.json", finished.to_json())
    return finished


def _try_settings(study: Study, plan: Plan, metric: str, error: bool) -> list[Trial]:
    """Run every trial: the combinations of the grid, or what Optuna's TPE sampler proposes."""
    if plan.trials is None:
        return [_run_trial(study, plan, n, settings) for n, settings in enumerate(plan.combinations(), 1)]
    import optuna

    sampler = optuna.samplers.TPESampler(seed=plan.row.first.seed % 2**32)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # A search that was stopped gets the same values again in the same order, and its first trials are read.
    trials: list[Trial] = []
    try:
        search, space = optuna.create_study(direction="maximize", sampler=sampler), plan.space()
        for number in range(1, plan.trials + 1):
            asked = search.ask(space)
            trials.append(_run_trial(study, plan, number, {key: asked.params[key] for key in space}))
            score = _score(trials[-1], metric, error)
            if math.isfinite(score):
                search.tell(asked, score)
            else:
                # The sampler needs finite numbers; a failed trial tells it to look elsewhere.
                search.tell(asked, state=optuna.trial.TrialState.FAIL)
    finally:
        optuna.logging.set_verbosity(before)
    return trials


def _run_trial(study: Study, plan: Plan, number: int, settings: Settings) -> Trial:
    """Run one trial with the seeds that its file lacks.

    The file is written after every seed and gets no test metric. The folder of a run, which has them, is
    removed when the run has ended: it is there for the checkpoint of an interrupted run.
    """
    label, name, text = f"trial{number:04d}", f"trials/{number:04d}.json", settings_text(settings)
    trial: Trial = {
        "trial": number, "settings": dict(settings), "val": {}, "rounds": [], "best_round": [],
        "seconds": statistic([]), "failed": None,
    }  # fmt: skip
    if study.folder is not None and (study.folder / name).exists():
        trial = cast("Trial", files.read_json(study.folder / name, TrialFile))
        if trial["settings"] != settings:
            raise InputError(
                f"{study.folder / name} is not this trial ({text}): it is damaged, or of another version of "
                "Optuna; remove it to run the trial again"
            )
    # The file has the figures of the first seeds already, if the sweep was interrupted.
    for seed, config in list(plan.row.configs.items())[len(trial["rounds"]) :]:
        if trial["failed"] is not None:
            break
        try:
            chosen = _with_settings(config, settings)
            result = study.run(label, chosen, f"[{number}/{plan.total}] {text}, seed {seed}")
            trial = _with_result(trial, result)
        except InputError:
            raise
        except GraphfedError as error:
            if isinstance(error.__cause__, OSError):  # the disk failed, and not the training
                raise
            trial = {**trial, "val": {}, "failed": str(error)}
        if study.folder is not None:
            # In this order: a run whose figures are not in the file yet must stay.
            write_file(study.folder, name, trial)
            shutil.rmtree(study.folder / run_name(label, seed), ignore_errors=True)
    return trial


def _with_result(trial: Trial, result: Result) -> Trial:
    """Return a trial with the figures of one more seed."""
    names = trial["val"] or result.val
    return {
        **trial,
        "val": {
            key: statistic([*(trial["val"][key]["values"] if trial["val"] else ()), result.val.get(key)])
            for key in names
        },
        "rounds": [*trial["rounds"], result.rounds],
        "best_round": [*trial["best_round"], result.best_round],
        "seconds": statistic([*trial["seconds"]["values"], result.seconds["total"]]),
    }


def _score(trial: Trial, metric: str, error: bool) -> float:
    """Return the mean validation metric, with the sign by which greater is better; a trial without one is
    the lowest.
    """
    mean = trial["val"][metric]["mean"] if metric in trial["val"] else None
    if mean is None:
        return float("-inf")
    return -mean if error else mean


def _edges(plan: Plan, settings: Settings) -> tuple[str, ...]:
    """Return a sentence for each chosen number at an end of what was tried; of a range the outer
    twentieths count.
    """
    found = []
    for key, value in settings.items():
        numbers = [each for each in plan.grid.get(key, ()) if _is_number(each)]
        if not _is_number(value):
            continue
        if key in plan.ranges:
            drawn = plan.ranges[key]
            # On the scale on which values are drawn.
            scale = math.log if drawn.log else float
            low, high = scale(drawn.low), scale(drawn.high)
            place = (scale(value) - low) / (high - low)
            at_low, at_high = place < EDGE, place > 1 - EDGE
            tried = f"{drawn.low} to {drawn.high}"
        elif len(numbers) == len(plan.grid[key]) > 1:
            at_low, at_high = value == min(numbers), value == max(numbers)
            tried = ", ".join(str(each) for each in numbers)
        else:
            continue
        if at_low or at_high:
            found.append(
                f"{key}={_text(value)} is at the edge of what was tried ({tried}): "
                f"a {'smaller' if at_low else 'larger'} one may be better"
            )
    return tuple(found)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: SettingValue) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

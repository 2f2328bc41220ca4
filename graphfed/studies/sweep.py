"""Try many settings of one method on the same inputs, and choose by the validation nodes alone.

    manifest.json                what is tried, on which data
    trials/0001.json             one trial: settings, validation metrics, rounds and seconds of each seed
    chosen-seed0/                the folder of a run, of the chosen settings only
    sweep.json                   the validation of every trial, the chosen settings and their test metrics

Test metrics are shown for the chosen settings only, on the screen and in files. A person who sees the test
scores of all trials chooses by them, knowingly or not, and the best of many test scores is too optimistic:
with 50 settings that are equally good, the largest of 50 scores lies more than two standard errors above the
true value. So trials keep validation metrics only, and the chosen settings are trained again, which costs one
more trial and gives the same weights.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from graphfed.errors import GraphfedError, InputError
from graphfed.files import JsonObject
from graphfed.runs import folder as files
from graphfed.runs.config import make_config
from graphfed.runs.progress import human_seconds, show_data, show_progress
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import Result, execute, write_file
from graphfed.studies.folder_schema import SweepFile, TrialFile
from graphfed.studies.plan import (
    Row,
    Statistic,
    begin_runs,
    check_inputs,
    chosen_seeds,
    load_rows,
    read_configs,
    run_name,
    run_or_read,
    settings_text,
    spread,
    statistic,
    statistics,
)
from graphfed.studies.sweep_plan import (
    Plan,
    Settings,
    check_settings,
    checked_grid,
    checked_range,
    trial_count,
    with_settings,
)
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_options import SettingValue
from graphfed.tasks.source import data_source
from graphfed.terminal import markup

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Chosen", "Sweep", "Trial", "resume_sweep", "sweep", "sweep_in"]

#: The number of trials that the screen shows.
SHOWN = 30


class Trial(TypedDict):
    """Settings that were tried.

    Attributes:
        trial: The number of the trial, from 1.
        settings: The settings that vary.
        val: Validation metrics over seeds.
        rounds: For each seed.
        best_round: For each seed.
        seconds: Of a run.
        failed: Why training diverged with a seed, after which no other seed was tried; None if it did not.
    """

    trial: int
    settings: Settings
    val: dict[str, Statistic]
    rounds: list[int]
    best_round: list[int | None]
    seconds: Statistic
    failed: str | None


class Chosen(TypedDict):
    """The settings that were chosen.

    Attributes:
        trial: The number of the trial.
        settings: The settings that vary.
        val: Validation metrics over seeds.
        test: Test metrics over seeds.
        folders: Of their runs; None if nothing is written.
    """

    trial: int
    settings: Settings
    val: dict[str, Statistic]
    test: dict[str, Statistic]
    folders: list[str | None]


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        metric: The validation metric that decided.
        trials: In the order in which they ran.
        chosen: The chosen settings.
        edges: Sentences about chosen values at the edge of what was tried.
        folder: The folder of the sweep; None if nothing was written.
    """

    method: str
    dataset: str
    clients: int
    partition: str
    seeds: tuple[int, ...]
    metric: str
    trials: tuple[Trial, ...]
    chosen: Chosen
    edges: tuple[str, ...]
    task: str
    folder: Path | None = None

    def to_json(self) -> JsonObject:
        """Return the sweep as plain data.

        Returns:
            The content of sweep.json.
        """
        return files.fields_of(self)

    def ranked(self) -> list[Trial]:
        """Sort the trials by validation.

        Returns:
            The best first, of equal ones the earliest first, and failed ones last.
        """
        return sorted(self.trials, key=lambda trial: -_score(trial, self.metric, self._error))

    @property
    def _error(self) -> bool:
        return get_task(self.task).error

    def table(self) -> "Table":
        """Return the best trials as a table for a screen.

        Returns:
            A rich table.
        """
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
        method: The name of the method.
        grid: Values by setting, as in {"lr": [0.1, 0.5], "hidden": [16, 32]}; every combination is tried.
        ranges: Ranges of a search, as in {"lr": (0.01, 1.0, "log")} (see `checked_range`). A grid next to
            them gives choices.
        trials: The number of trials of a search, with Optuna's TPE sampler, seeded with the first seed; None
            to try every combination.
        seeds: The seeds of every trial.
        out: The folder; None for ``runs/sweep-<method>-<data>-<time>``, False to write nothing. If it holds
            this very sweep, the missing trials are run.
        progress: Whether to show progress on stderr.
        settings: Settings common to all trials.
        command: The command that manifest.json records.
        options: What `run` takes, common to all trials. Only settings of the method can vary, so that every
            trial of a seed has the same graph, split and partition.

    Returns:
        The sweep.

    Raises:
        InputError: A value cannot be used, or the folder holds something else; nothing is written.
        GraphfedError: No trial gave finite predictions.
    """
    values = checked_grid(grid)
    drawn = {key: checked_range(key, value) for key, value in (ranges or {}).items()}
    count = trial_count(values, drawn, trials)
    if options.get("data") is not None:
        options = {**options, "data": data_source(options["data"])}  # files are read once
    configs = {
        seed: make_config(method, **options, seed=seed, settings=settings) for seed in chosen_seeds(seeds)
    }
    plan = Plan(configs, values, drawn, count)
    check_settings(plan, {*(settings or {}), *(k for k, v in options.items() if v is not None)})
    folder = files.chosen_folder(out, f"sweep-{plan.first.method.name}-{plan.first.data_name}")
    if folder is None:
        return _finish(plan, _load(plan), None, command, progress)
    if (folder / "manifest.json").exists():
        manifest = read_manifest(folder)
        if manifest.get("sweep") != files.plain(plan.to_json()):
            raise InputError(
                f"the output folder {folder} holds another run or sweep; name a new one with --out"
            )
        return _go_on(plan, folder, manifest, progress)
    with files.open_folder(folder, keep=_has_trials):
        inputs = _load(plan)
        begin_runs(folder, Row("", configs), inputs, command, sweep=plan.to_json())
        return _finish(plan, inputs, folder, command, progress)


def resume_sweep(
    folder: Path, manifest: JsonObject, *, data: object, data_dir: str | Path | None, progress: bool
) -> Sweep:
    """Run the trials that are missing in a folder.

    Args:
        folder: The folder of the sweep.
        manifest: Its manifest.
        data: The data, if it was an object in Python.
        data_dir: The folder where the data files are now.
        progress: Whether to show progress on stderr.

    Returns:
        The sweep; read from the folder if it has ended.

    Raises:
        InputError, GraphfedError, Interrupted: As `runs.reopen.resume`.
    """
    if (folder / "sweep.json").exists():
        return sweep_in(folder)
    asked = manifest["sweep"]
    configs = read_configs(asked["runs"], folder, data, data_dir)
    try:
        drawn = {key: checked_range(key, value) for key, value in asked["ranges"].items()}
        count = trial_count(asked["grid"], drawn, asked["trials"])
        plan = Plan(configs, checked_grid(asked["grid"]), drawn, count)
        check_settings(plan, set())
    except InputError as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: {error}") from None
    return _go_on(plan, folder, manifest, progress)


def _go_on(plan: Plan, folder: Path, manifest: JsonObject, progress: bool) -> Sweep:
    """Run the trials that are missing in a folder, or read a sweep that has ended."""
    if (folder / "sweep.json").exists():
        return sweep_in(folder)
    with files.open_folder(folder, resume=True):
        inputs = _load(plan)
        check_inputs(folder, inputs, manifest["hashes"])
        return _finish(plan, inputs, folder, manifest["command"], progress)


def sweep_in(folder: Path) -> Sweep:
    """Read a finished sweep.

    Args:
        folder: Its folder.

    Returns:
        The sweep.

    Raises:
        InputError: sweep.json is missing or damaged.
    """
    content = files.read_json(folder / "sweep.json", SweepFile)
    known = {f.name: content[f.name] for f in dataclasses.fields(Sweep) if f.name != "folder"}
    lists = {key: tuple(known[key]) for key in ("seeds", "trials", "edges")}
    return Sweep(**{**known, **lists}, folder=folder)


# ---- the trials --------------------------------------------------------------------------------------------


def _load(plan: Plan) -> dict[int, Inputs]:
    """Load the inputs of every seed."""
    return load_rows([Row("", plan.configs)])[""]


def _has_trials(folder: Path) -> bool:
    return any((folder / "trials").glob("*.json"))


def _finish(
    plan: Plan, inputs: Mapping[int, Inputs], folder: Path | None, command: str, progress: bool
) -> Sweep:
    """Run the missing trials, choose, compute the test metrics of the chosen settings, and write
    sweep.json.
    """
    first = plan.first
    known = inputs[first.seed]
    show_data(known, progress)
    metric, error = known.metric_of_rounds(first), get_task(first.task).error
    trials = _try_settings(plan, inputs, folder, metric, error, progress)
    best = max(trials, key=lambda trial: _score(trial, metric, error))
    if best["failed"]:
        raise GraphfedError(f"no trial gave finite predictions; the first one: {str(best['failed'])[:500]}")
    results = []
    for seed, config in plan.configs.items():
        here = None if folder is None else folder / run_name("chosen", seed)
        chosen = with_settings(config, best["settings"])
        with show_progress(f"chosen settings, seed {seed}", progress) as on_event:
            results.append(run_or_read(chosen, inputs[seed], here, command, on_event))
    finished = Sweep(
        method=first.method.name,
        dataset=results[0].dataset,
        clients=results[0].clients,
        partition=first.partition,
        seeds=tuple(plan.configs),
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
        folder=folder,
    )
    if folder is not None:
        write_file(folder, "sweep.json", finished.to_json())
    return finished


def _try_settings(
    plan: Plan, inputs: Mapping[int, Inputs], folder: Path | None, metric: str, error: bool, progress: bool
) -> list[Trial]:
    """Run every trial: the combinations of the grid, or what Optuna's TPE sampler proposes.

    The sampler is seeded and gets the same values in the same order, so a search that was stopped proposes
    its first trials again, and they are read.
    """
    import optuna

    sampler = optuna.samplers.TPESampler(seed=plan.first.seed % 2**32)
    combinations, space = plan.combinations(), plan.space()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials: list[Trial] = []
    try:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        while len(trials) < plan.total:
            if plan.trials is None:
                study.enqueue_trial(next(combinations))
            asked = study.ask(space)
            settings = {key: asked.params[key] for key in space}
            number = len(trials) + 1
            trials.append(_run_trial(plan, number, settings, inputs, folder, progress))
            score = _score(trials[-1], metric, error)
            if math.isfinite(score):
                study.tell(asked, score)
            else:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
    finally:
        optuna.logging.set_verbosity(before)
    return trials


def _run_trial(
    plan: Plan,
    number: int,
    settings: Settings,
    inputs: Mapping[int, Inputs],
    folder: Path | None,
    progress: bool,
) -> Trial:
    """Run one trial with every seed, or read it if its file exists. No test metric is kept."""
    name, text = f"trials/{number:04d}.json", settings_text(settings)
    if folder is not None and (folder / name).exists():
        known = cast("Trial", files.read_json(folder / name, TrialFile))
        if known.keys() != Trial.__annotations__.keys() or known["settings"] != settings:
            raise InputError(
                f"{folder / name} is not this trial ({text}): it is damaged, or of another version of "
                "Optuna; remove it to run the trial again"
            )
        return known
    results: list[Result] = []
    failed = None
    for seed, config in plan.configs.items():
        label = f"[{number}/{plan.total}] {text}, seed {seed}"
        with show_progress(label, progress) as on_event:
            chosen = with_settings(config, settings)
            try:
                results.append(execute(chosen, inputs[seed], folder=None, command="", on_event=on_event))
            except InputError:
                raise
            except GraphfedError as error:  # it diverged: a result of its own, and no reason to stop
                failed = str(error)
                break
    trial: Trial = {
        "trial": number,
        "settings": settings,
        "val": {} if failed else statistics([result.val for result in results]),
        "rounds": [result.rounds for result in results],
        "best_round": [result.best_round for result in results],
        "seconds": statistic([result.seconds["total"] for result in results] if results else [None]),
        "failed": failed,
    }
    if folder is not None:
        write_file(folder, name, trial)
    return trial


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
        numbers = [each for each in plan.grid.get(key, ()) if isinstance(each, int | float)]
        if not isinstance(value, int | float):
            continue
        if key in plan.ranges:
            drawn = plan.ranges[key]
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


#: The outer part of a range that counts as its edge.
EDGE = 0.05


def _text(value: SettingValue) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""One method over many settings: the same inputs for each seed, chosen on the validation vertices alone.

    manifest.json                what is tried, on what
    trials/0001-seed0.json       one trial with one seed: settings, validation metrics, rounds, seconds
    chosen-seed0/                the whole folder of a run, of the chosen settings only
    sweep.json                   every trial's validation, the chosen settings and their test metrics

Test metrics are shown for the chosen settings and nowhere else, neither on the screen nor in a file. Who sees
the test scores of all trials picks, knowingly or not, by them, and the best of many test scores is too high
an estimate: with 50 settings that are all equally good, the largest of 50 scores lies more than two standard
errors above what any of them is worth. So trials keep validation metrics only, and the chosen settings are
trained again, which costs one trial more and gives the same weights."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphfed.data.graphs.graph import Split
from graphfed.errors import GraphfedError, InputError
from graphfed.files import write_json
from graphfed.methods.base import TrainingConfig
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.runs import folder as files
from graphfed.runs.config import make_config
from graphfed.runs.progress import human_seconds, show_dropped, show_progress
from graphfed.runs.reopen import check_hashes, config_from_json, read_manifest
from graphfed.runs.run import Result, execute, keep_partition, now, write_manifest
from graphfed.studies.folder_schema import SweepFile, TrialFile
from graphfed.studies.plan import (
    Row,
    chosen_seeds,
    load_rows,
    run_name,
    run_or_read,
    settings_text,
    spread,
    statistic,
    statistics,
)
from graphfed.studies.sweep_plan import (
    Plan,
    Range,
    check_settings,
    checked_grid,
    checked_range,
    load_optuna,
    trial_count,
    with_settings,
)
from graphfed.tasks.graphs.inputs import GraphInputs
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import data_source
from graphfed.terminal import markup

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Sweep", "resume_sweep", "sweep", "sweep_in"]

#: Of the trials, how many the screen shows.
SHOWN = 30


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    trials: as they ran: trial (from 1), settings, val {metric: {mean, std, values}}, rounds, best_round and
    seconds for each seed; failed: the reason where a trial has no finite validation metric.
    chosen: trial, settings, val, test {metric: {mean, std, values}}, folders. edges: sentences on values of
    the chosen settings at the edge of what was tried."""

    method: str
    dataset: str
    clients: int
    partition: str
    seeds: tuple[int, ...]
    metric: str
    trials: tuple[dict[str, Any], ...]
    chosen: dict[str, Any]
    edges: tuple[str, ...]
    task: str = CLASSIFICATION
    folder: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The object in sweep.json."""
        content: dict[str, Any] = files.plain(
            {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "folder"}
        )
        return content

    def ranked(self) -> list[dict[str, Any]]:
        """The trials, best validation first; of equal ones the earliest; failed ones last."""
        return sorted(self.trials, key=lambda trial: -_score(trial, self.metric, self._error))

    @property
    def _error(self) -> bool:
        return get_task(self.task).error

    def table(self) -> "Table":
        """The best trials for a screen (a rich table)."""
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
            told = "failed" if trial["failed"] else spread(trial["val"][self.metric], error=self._error)
            cells += [told, human_seconds(trial["seconds"]["mean"] or 0.0)]
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
        told = spread(test, error=self._error)
        lines.append(f"chosen on validation: {chosen}; its test {self.metric}: {told}")
        return "\n".join([*lines, *self.edges])


def sweep(
    method: str,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    ranges: Mapping[str, Any] | None = None,
    trials: int | None = None,
    seeds: Iterable[int] = (0, 1, 2),
    out: str | Path | Literal[False] | None = None,
    progress: bool = False,
    settings: Mapping[str, Any] | None = None,
    command: str = "graphfed.sweep",
    **options: Any,
) -> Sweep:
    """Try settings of a method, choose those of the highest mean validation metric over seeds, and score
    these on the test vertices.

    grid: values by setting, as in {"lr": [0.1, 0.5], "hidden": [16, 32]}; every combination is tried.
    trials: search instead, so many trials, with Optuna's TPE sampler, seeded with the first seed. ranges:
    where it draws, {"lr": (0.01, 1.0, "log")} (see `Range`); a grid beside it gives choices.
    settings and options: what `run` takes, common to all trials; only settings of the method can vary, so
    that every trial of a seed has the same graph, split and partition.
    out: the folder; None for ``runs/sweep-<method>-<data>-<time>``, False to write nothing. Where it holds
    this very sweep, the trials that are missing are run.

    Raises InputError, with nothing written, for a value that cannot be used or a folder of something else;
    GraphfedError when no trial gave finite predictions."""
    grid, drawn = (
        checked_grid(grid),
        {key: checked_range(key, value) for key, value in (ranges or {}).items()},
    )
    count = trial_count(grid, drawn, trials)
    if options.get("data") is not None:
        options = {**options, "data": data_source(options["data"])}  # files are read once
    configs = {
        seed: make_config(method, **options, seed=seed, settings=settings) for seed in chosen_seeds(seeds)
    }
    plan = Plan(configs, grid, drawn, count)
    check_settings(plan, {*(settings or {}), *(k for k, v in options.items() if v is not None)})
    first = next(iter(configs.values()))
    folder = files.chosen_folder(out, f"sweep-{first.method.name}-{first.data_name}")
    if folder is None:
        return _finish(plan, load_rows([Row("", configs)]), None, command, progress)
    there = (folder / "manifest.json").exists()
    if there:
        manifest = read_manifest(folder)
        if manifest.get("sweep") != files.plain(plan.to_json()):
            raise InputError(
                f"the output folder {folder} holds another run or sweep; name a new one with --out"
            )
        if (folder / "sweep.json").exists():
            return sweep_in(folder)
    with files.open_folder(folder, resume=there, keep=_has_trials):
        inputs = load_rows([Row("", configs)])
        if there:
            _check_inputs(folder, inputs, manifest)
        else:
            hashes = {str(seed): inputs["", seed].hashes for seed in configs}
            about = {"command": command, "started": now(), "hashes": hashes, "sweep": plan.to_json()}
            write_manifest(folder, about)
            keep_partition(folder, first, inputs["", first.seed])
        return _finish(plan, inputs, folder, command, progress)


def resume_sweep(
    folder: Path, manifest: Mapping[str, Any], *, data: Any, data_dir: str | Path | None, progress: bool
) -> Sweep:
    """Run the trials that are missing in `folder`. Raises what `resume` raises."""
    if (folder / "sweep.json").exists():
        return sweep_in(folder)
    try:
        asked, command = manifest["sweep"], manifest["command"]
        configs = {
            run["seed"]: config_from_json(run["config"], folder, data=data, data_dir=data_dir)
            for run in asked["runs"]
        }
        drawn = {key: Range(*value) for key, value in asked["ranges"].items()}
        plan = Plan(configs, asked["grid"], drawn, asked["trials"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: it lacks {error}") from None
    with files.open_folder(folder, resume=True):
        inputs = load_rows([Row("", configs)])
        _check_inputs(folder, inputs, manifest)
        return _finish(plan, inputs, folder, command, progress)


def sweep_in(folder: Path) -> Sweep:
    """The finished sweep in `folder`, from sweep.json; InputError when it is damaged."""
    content = files.read_json(folder / "sweep.json", SweepFile)
    content = {"task": CLASSIFICATION, **content}  # sweeps of earlier versions do not say so
    known = {f.name: content[f.name] for f in dataclasses.fields(Sweep) if f.name != "folder"}
    lists = {key: tuple(known[key]) for key in ("seeds", "trials", "edges")}
    return Sweep(**{**known, **lists}, folder=folder)


# ---- the plan ----------------------------------------------------------------------------------------------


def _check_inputs(
    folder: Path, inputs: Mapping[tuple[str, int], Inputs], manifest: Mapping[str, Any]
) -> None:
    for (_, seed), those in inputs.items():
        check_hashes(folder, those, manifest["hashes"][str(seed)])


def _has_trials(folder: Path) -> bool:
    return any((folder / "trials").glob("*.json"))


# ---- the trials --------------------------------------------------------------------------------------------


def _finish(
    plan: Plan,
    inputs: Mapping[tuple[str, int], Inputs],
    folder: Path | None,
    command: str,
    progress: bool,
) -> Sweep:
    """Run what is missing, choose, reveal the test metrics of what is chosen, and write sweep.json."""
    first = next(iter(plan.configs.values()))
    known = next(iter(inputs.values()))
    show_dropped(known.name, known.dropped, progress)
    metric, error = _decides(first, known), get_task(first.task).error
    total = plan.trials or len(list(plan.combinations()))

    def measure(number: int, settings: dict[str, Any]) -> dict[str, Any]:
        label = f"[{number}/{total}] {settings_text(settings)}"
        runs = [
            _trial_run(number, settings, config, inputs["", seed], folder, f"{label}, seed {seed}", progress)
            for seed, config in plan.configs.items()
        ]
        return _trial(number, settings, runs)

    if plan.trials is None:
        trials = [measure(n, settings) for n, settings in enumerate(plan.combinations(), 1)]
    else:
        trials = _search(plan, plan.trials, metric, error, measure)
    best = max(trials, key=lambda trial: _score(trial, metric, error))
    if best["failed"]:
        raise GraphfedError(f"no trial gave finite predictions; the first one: {best['failed']}")
    results = []
    for seed, config in plan.configs.items():
        here = None if folder is None else folder / run_name("chosen", seed)
        chosen = with_settings(config, best["settings"])
        with show_progress(f"chosen settings, seed {seed}", progress) as on_event:
            results.append(run_or_read(chosen, inputs["", seed], here, command, on_event))
    finished = Sweep(
        method=first.method.name,
        dataset=results[0].dataset,
        clients=results[0].clients,
        partition=first.partition,
        seeds=tuple(plan.configs),
        metric=metric,
        trials=tuple(trials),
        chosen=_chosen(best, results),
        edges=_edges(plan, best["settings"]),
        task=first.task,
        folder=folder,
    )
    if folder is not None:
        _write(folder / "sweep.json", finished.to_json(), folder)
    return finished


def _trial_run(
    number: int,
    settings: dict[str, Any],
    config: RunConfig,
    inputs: Inputs,
    folder: Path | None,
    label: str,
    progress: bool,
) -> dict[str, Any]:
    """One trial with one seed: read where its file is there, else run and written. No test metric leaves."""
    path = None if folder is None else folder / "trials" / f"{number:04d}-seed{config.seed}.json"
    if path is not None and path.exists():
        told: dict[str, Any] = files.read_json(path, TrialFile)
        if {*told} != {"settings", *_RUN_KEYS} or told["settings"] != settings:
            raise InputError(
                f"{path} is not this trial ({settings_text(settings)}): it is damaged, or of another version "
                "of Optuna; remove it to run the trial again"
            )
        return told
    told = {"settings": settings, **dict.fromkeys(_RUN_KEYS)}
    chosen = with_settings(config, settings)
    with show_progress(label, progress) as on_event:
        try:
            result = execute(chosen, inputs, folder=None, command="", on_event=on_event)
        except InputError:
            raise
        except GraphfedError as error:  # it diverged: a result of its own, and no reason to stop
            told["failed"] = str(error)
        else:
            told |= {
                "val": result.val,
                "rounds": result.rounds,
                "best_round": result.best_round,
                "bytes": result.bytes["total"],
                "seconds": result.seconds["total"],
            }
    if path is not None:
        assert folder is not None
        _write(path, told, folder)
    return told


_RUN_KEYS = ("val", "rounds", "best_round", "bytes", "seconds", "failed")


def _trial(number: int, settings: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """A trial over its seeds; failed when one of them is."""
    failed = next((run["failed"] for run in runs if run["failed"]), None)
    return {
        "trial": number,
        "settings": settings,
        "val": {} if failed else statistics([run["val"] for run in runs]),
        "rounds": [run["rounds"] for run in runs],
        "best_round": [run["best_round"] for run in runs],
        "seconds": statistic([run["seconds"] for run in runs]),
        "failed": failed,
    }


def _score(trial: Mapping[str, Any], metric: str, error: bool) -> float:
    """The mean validation metric, which decides, the greater the better (of an error its negative); below all
    others where there is none."""
    mean = trial["val"].get(metric, {}).get("mean")
    if mean is None:
        return float("-inf")
    return -float(mean) if error else float(mean)


def _decides(config: RunConfig, inputs: Inputs) -> str:
    """The validation metric that trials are compared by: the one that the runs select their rounds by, before
    any setting is varied."""
    import torch

    from graphfed.tasks.graphs.node_scores import choose_selection

    if not isinstance(config.training, TrainingConfig) or config.task != CLASSIFICATION:
        return get_task(config.task).evaluation.decides(config.training, None)
    assert isinstance(inputs, GraphInputs)
    assert isinstance(inputs.split, Split)
    classes = torch.from_numpy(inputs.graph.y[inputs.split.val])
    counts = torch.bincount(classes, minlength=inputs.graph.num_classes)
    return choose_selection(counts, config.training.select).metric


def _chosen(best: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    return {
        **{key: best[key] for key in ("trial", "settings", "val")},
        "test": statistics([result.test for result in results]),
        "folders": [None if result.folder is None else str(result.folder) for result in results],
    }


def _search(
    plan: Plan,
    count: int,
    metric: str,
    error: bool,
    measure: Callable[[int, dict[str, Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Trials that Optuna's TPE sampler proposes. The sampler is seeded and told the same values in the same
    order, so a search that was stopped proposes its first trials again, and reads them."""
    optuna = load_optuna()
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kinds: dict[str, Any] = {key: CategoricalDistribution(values) for key, values in plan.grid.items()}
    for key, drawn in plan.ranges.items():
        whole = isinstance(drawn.low, int) and isinstance(drawn.high, int)
        kinds[key] = (IntDistribution if whole else FloatDistribution)(drawn.low, drawn.high, log=drawn.log)
    sampler = optuna.samplers.TPESampler(seed=next(iter(plan.configs)) % 2**32)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(direction="minimize" if error else "maximize", sampler=sampler)
        trials = []
        for number in range(1, count + 1):
            asked = study.ask(kinds)
            trials.append(measure(number, {key: asked.params[key] for key in kinds}))
            score = _score(trials[-1], metric, error)
            if score == float("-inf"):
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(asked, -score if error else score)
    finally:
        optuna.logging.set_verbosity(before)
    return trials


def _edges(plan: Plan, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each chosen number at an end of what was tried (of a range: in its outer twentieths)."""
    told = []
    for key, value in settings.items():
        if key in plan.ranges:
            drawn = plan.ranges[key]
            place = _place(value, drawn)
            end = "smallest" if place < EDGE else "largest" if place > 1 - EDGE else ""
            tried = f"{drawn.low} to {drawn.high}"
        else:
            values = plan.grid[key]
            if len(values) < 2 or not all(isinstance(v, int | float) for v in values):
                continue
            end = "smallest" if value == min(values) else "largest" if value == max(values) else ""
            tried = ", ".join(str(v) for v in values)
        if end:
            beyond = "a smaller" if end == "smallest" else "a larger"
            told.append(
                f"{key}={_text(value)} is at the edge of what was tried ({tried}): {beyond} one may be better"
            )
    return tuple(told)


#: The outer part of a range that counts as its edge.
EDGE = 0.05


def _place(value: float, drawn: Range) -> float:
    """Where a value lies between the ends of a range, 0 to 1, on the scale it was drawn on."""
    scale = math.log if drawn.log else float
    return (scale(value) - scale(drawn.low)) / (scale(drawn.high) - scale(drawn.low))


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write(path: Path, content: Any, folder: Path) -> None:
    try:
        write_json(path, files.plain(content))
    except OSError as error:
        raise files.cannot_be_written(folder, error) from error

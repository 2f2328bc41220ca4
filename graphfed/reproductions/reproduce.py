"""Reproduce tables and figures of a paper from its recipe: our figures beside the printed ones.

    manifest.json                     which recipe, whole or quick, with which seeds
    <item>/<row>-seed0/               the folder of every run, as `graphfed run` writes it
    <item>/<row>-seed0/workloads.json of the kind workloads: what balancing gave
    policies/<policy>/                what is learned before the runs, as `graphfed policy` writes it
    <item>.svg                        both figures of every row, drawn
    <item>-curves.svg                 where its runs were by time or bytes, where the recipe says so
    <item>-relative.svg               how rows compare with each other, where the recipe says so
    reproduce.json                    both figures, their difference, how the protocols differ

Policies are learned before the runs, which use them. What has ended is read and not done again, so a
reproduction goes on where it stopped, and takes more seeds. Every run computes with one thread, unless the
recipe says otherwise: figures depend neither on the machine's cores nor on how many runs there are at a
time."""

import dataclasses
import glob
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfed.data.datasets import DATASETS, available, search_folders
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.overview import site_names
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import write_bytes, write_json
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.reproductions import sensors
from graphfed.reproductions.curves import curve_of
from graphfed.reproductions.figures import compared, metric_of, reached_by, target_value
from graphfed.reproductions.history import ROUND, has_place
from graphfed.reproductions.learning import Learning, digest, returns_of
from graphfed.reproductions.plots import draw, draw_curves, draw_relative, relative_table_of, table_of
from graphfed.reproductions.policies import RecipePolicy
from graphfed.reproductions.recipe import PERCENT, POLICIES, Item, Recipe, RecipeRow, read_recipe
from graphfed.reproductions.workloads import FILE as WORKLOADS
from graphfed.reproductions.workloads import balanced_or_read, require_same, structure
from graphfed.runs import folder as files
from graphfed.runs.config import make_config
from graphfed.runs.progress import human_seconds
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import Result, execute, has_checkpoint, now, write_manifest
from graphfed.studies.folder_schema import ReproductionFile
from graphfed.studies.jobs import Run, check_jobs, run_all
from graphfed.studies.plan import InputCache, chosen_seeds, run_name, statistic
from graphfed.tasks.graphs.inputs import GraphInputs
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig
from graphfed.terminal import say

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Reproduction", "class_counts", "reproduce", "resume_reproduction"]

#: Rounds of the run that is timed for a row, before it is run; one where it takes more than WARM_SECONDS,
#: against which what a first round does once is little.
TRIAL_ROUNDS = 2
WARM_SECONDS = 2.0
#: Runs of so few rounds are not timed each: a round or two and a set-up are a good part of them.
SHORT_ROUNDS = 20
#: Settings by which short runs of a method differ too much to be told alike.
SIZES = ("backbone", "hidden", "layers", "every", "local_epochs", "server_rounds")


@dataclass(frozen=True)
class Reproduction:
    """What was found. items: item, kind, title, source, notes, plot, data (the data set, where there
    is a choice), and by kind

    "runs": metrics, called (words for some of these), x (what the axis shows, None where the rows are no
    points of lines), panels, relative_plot (None where no row is compared with another), targets (by name
    share, of and less: the row that it follows, and by how much less; None for no target), against and
    curves_plot (None where no curves are drawn), and rows: label, panel, series, x, method, policy (the
    learned one, or None), recipe (what differs from the default), seeds, rounds, seconds (of all runs),
    folders, and by metric ours {mean, std, values}, printed {mean, std} and difference of the means, in the
    paper's unit; the last two are None where nothing was printed; ours of a metric that asks for a target has
    `reached`, how many runs did; curve: where curves are drawn, metric and what `recipe_curves.curve_of`
    gives; relative: for each row that it is compared with to (its label) and by metric ours {mean, std,
    values} and printed, in percent of that row's figure.

    "curves": metrics (one), called, against, and rows: label, method, seeds, folders and what
    `recipe_curves.curve_of` gives.

    "returns": rows: label, policy, folder and what `recipe_learning.returns_of` gives.

    "visible_sensors", "histograms", "operations": rows, which `recipe_sensors` makes.

    "class_counts": rows: label, seed, holders, classes, counts {all, split}, in a list [class] for each
    holder, totals {all, split}, one for each holder, and printed, which is None or such totals; split: of the
    vertices in train, val or test.

    "workloads": panels, and rows: label, panel, series, seed, folder, printed (the largest workload, or
    None), difference, and what `workloads.balanced_or_read` gives."""

    paper: str
    title: str
    authors: str
    venue: str
    quick: bool
    items: tuple[dict[str, Any], ...]
    folder: Path

    def to_json(self) -> dict[str, Any]:
        """The object in reproduce.json."""
        content: dict[str, Any] = files.plain(
            {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "folder"}
        )
        return content

    def tables(self) -> "list[Table]":
        """One table for each item, for a screen (rich tables)."""
        hint = "quick version: shows that everything runs; its figures are of fewer seeds and rounds"
        hints = [hint] if self.quick else []
        tables = []
        for item in self.items:
            tables.append(table_of(self.paper, item, hints))
            if item.get("relative_plot"):
                tables.append(relative_table_of(self.paper, item))
        return tables


def reproduce(
    paper: str,
    item: str | None = None,
    *,
    data: str | None = None,
    quick: bool = False,
    seeds: Iterable[int] | None = None,
    jobs: int = 1,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    progress: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    command: str = "graphfed.reproduce",
) -> Reproduction:
    """Run the recipe of a paper (a name of `recipe_names()`, or the path of a YAML file).

    item: one table or figure, None for all. data: with which of the data sets that the recipe names for it;
    None: the first. quick: the recipe's short version. seeds: of every row, in place
    of the recipe's. jobs: how many runs at a time, each in a process of its own; the figures are the same.
    out: the folder; None for ``runs/reproduce-<paper>`` (with -quick). Where it is there, what has ended in
    it is read and the rest goes on. tell: is told the predicted cost before the first run.

    Raises InputError, before anything is run or written, for a name or recipe that cannot be used, data that
    is missing (which files, and where to get them) and a folder of something else; what `run` raises
    otherwise."""
    recipe = read_recipe(paper)
    items = [entry.quick() if quick else entry for entry in _chosen(recipe, item, data)]
    if seeds is not None:
        chosen = chosen_seeds(seeds)
        items, seeds = [entry.with_seeds(chosen) for entry in items], chosen
    jobs = check_jobs(jobs)
    _require_data(recipe, items, data_dir)
    default = f"runs/reproduce-{Path(paper).stem}{'-quick' if quick else ''}"
    folder = Path(default if out is None else out)
    learnings = _learnings(items, folder, data_dir)
    rows = _rows(items, folder, data_dir)
    asked = {"paper": paper, "quick": quick, "item": item, "data": data, "seeds": seeds, "jobs": jobs}
    there = (folder / "manifest.json").exists()
    begun = {"command": command, "started": now()}
    manifest: dict[str, Any] = read_manifest(folder) if there else begun
    if there:
        _require_same(folder, manifest.get("reproduce"), asked)
    for row in rows:
        _require_fitting(row, learnings)
        _require_same_runs(row)
    balances = [balance for entry in items for balance in _balances(entry, folder, data_dir)]
    for balance in balances:
        require_same(balance.config, balance.folder)
    for learning in learnings.values():
        learning.require_same(command)
    with files.open_folder(folder, resume=there, keep=_has_runs):
        cache = InputCache()
        counted = {
            entry.name: _without_runs(entry, cache, data_dir)
            for entry in items
            if entry.kind in ("class_counts", *sensors.KINDS)
        }
        to_learn = _to_learn(learnings.values())
        runs = _missing_runs(rows, cache)
        tell(_cost(runs, sum(not balance.ended for balance in balances), to_learn, jobs))
        manifest = {**manifest, "reproduce": asked}
        write_manifest(folder, manifest)
        run_all(to_learn, jobs=jobs, cache=cache, command=command, progress=progress)
        if learnings:
            manifest = {**manifest, POLICIES: _same_policies(rows, learnings, manifest.get(POLICIES, {}))}
            write_manifest(folder, manifest)
        graphs: dict[Any, Graph] = {}
        for balance in balances:
            found_of = counted.setdefault(balance.item, [])
            found_of.append(balance.row(folder, graphs, progress))
        run_all(runs, jobs=jobs, cache=cache, command=command, progress=progress)
        found = tuple(_found(entry, counted.get(entry.name), folder) for entry in items)
        finished = Reproduction(
            recipe.paper, recipe.title, recipe.authors, recipe.venue, quick, found, folder
        )
        _write(finished, recipe)
    return finished


def _write(finished: Reproduction, recipe: Recipe) -> None:
    """Its drawings and reproduce.json; GraphfedError when the disk refuses."""
    folder = finished.folder
    drawings = {"plot": draw, "relative_plot": draw_relative, "curves_plot": draw_curves}
    try:
        for entry in finished.items:
            for key, drawing in drawings.items():
                if entry.get(key):
                    write_bytes(folder / entry[key], drawing(entry))
        content = finished.to_json()
        # Items that the folder has from before stay, in the recipe's order.
        every = {entry["item"]: entry for entry in [*_items_before(folder), *content["items"]]}
        content["items"] = [every[name] for name in recipe.items if name in every]
        write_json(folder / "reproduce.json", content)
    except OSError as error:
        raise files.cannot_be_written(folder, error) from error


def _items_before(folder: Path) -> list[dict[str, Any]]:
    """The items in reproduce.json, none where it is not there."""
    path = folder / "reproduce.json"
    content = files.read_json(path, ReproductionFile) if path.exists() else {}
    items: list[dict[str, Any]] = content.get("items", [])
    return items


def resume_reproduction(
    folder: Path, manifest: Mapping[str, Any], *, data_dir: str | Path | None, progress: bool, **_unused: Any
) -> Reproduction:
    """Run what is missing in `folder` of what was asked last. Its recipe names the data, so no data in Python
    has a use here. Raises what `resume` raises."""
    asked = manifest["reproduce"]
    try:
        paper, item, quick = asked["paper"], asked["item"], asked["quick"]
    except KeyError as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: it lacks {error}") from None
    return reproduce(
        paper,
        item,
        data=asked.get("data"),
        quick=quick,
        seeds=asked.get("seeds"),
        jobs=asked.get("jobs", 1),
        out=folder,
        data_dir=data_dir,
        progress=progress,
    )


# ---- before the first run ----------------------------------------------------------------------------------


def _chosen(recipe: Recipe, item: str | None, data: str | None) -> list[Item]:
    """One item or all, each with one data set, where it has a choice."""
    entries = list(recipe.items.values())
    if item is not None:
        if item not in recipe.items:
            raise InputError(
                f"the recipe {recipe.paper} has no item {shown(item)}; {did_you_mean(item, recipe.items)}"
            )
        if data is None:
            return [recipe.items[item]]
        entries = [entry for entry in entries if entry.base == recipe.items[item].base]
    if data is None:
        return [entry for entry in entries if entry.name == entry.base]
    chosen = [entry for entry in entries if entry.of_data == data]
    if not chosen:
        of = recipe.paper if item is None else f"{recipe.paper}/{recipe.items[item].base}"
        known = dict.fromkeys(entry.of_data for entry in entries if entry.of_data is not None)
        hint = did_you_mean(data, known) if known else "it has no choice of data; leave --data out"
        raise InputError(f"the recipe has no data set {shown(data)} for {of}; {hint}")
    return chosen


def _require_data(recipe: Recipe, items: Sequence[Item], data_dir: str | Path | None) -> None:
    """InputError when the files of a data set are missing."""
    known = {row.name: row for row in available(data_dir)}
    for item in items:
        for name in item.data:
            if name in known and not item.usable(known[name]):
                looked = ", ".join(str(folder) for folder in search_folders(data_dir))
                lacking = ", ".join(known[name].missing) or "its files"
                raise InputError(
                    f"{recipe.paper}/{item.name} needs data set {name!r}, and {lacking} are not in {looked}; "
                    f"get them from {DATASETS[name].source}, and name their folder with --data-dir"
                )


@dataclass(frozen=True)
class _Row:
    """The runs of a row. folder: theirs, all of them; shown: the items that show them; policy: what they run
    with, None for none that is learned."""

    label: str
    configs: dict[int, RunConfig]
    folder: Path
    shown: list[Item]
    policy: str | None

    def path(self, seed: int) -> Path:
        """The folder of a run."""
        return self.folder / run_name(self.label, seed)


def _rows(items: Sequence[Item], folder: Path, data_dir: str | Path | None) -> list[_Row]:
    """The rows to run; those that several items show are there once."""
    rows: dict[tuple[str, str], _Row] = {}
    for item in items:
        for row in item.rows if item.has_runs else ():
            settings: dict[str, Any] = {}
            if row.learned is not None:
                settings = _learning(row.learned, folder, data_dir).settings_of_run()
            configs = {seed: _config(row, seed, data_dir, settings) for seed in row.seeds}
            key = item.runs_in, row.label
            policy = None if row.learned is None else row.learned.name
            rows.setdefault(key, _Row(row.label, configs, folder / item.runs_in, [], policy))
            rows[key].shown.append(item)
    return list(rows.values())


def _config(
    row: RecipeRow, seed: int, data_dir: str | Path | None, learned: Mapping[str, Any] | None = None
) -> RunConfig:
    """learned: the settings of a run with a policy."""
    options = {"threads": 1, **row.options}
    settings = {**row.settings, **(learned or {})}
    return make_config(row.method, **options, seed=seed, settings=settings, data_dir=data_dir)


def _learning(policy: RecipePolicy, folder: Path, data_dir: str | Path | None) -> Learning:
    return Learning(policy, folder / POLICIES / policy.name, data_dir)


def _learnings(items: Sequence[Item], folder: Path, data_dir: str | Path | None) -> dict[str, Learning]:
    """The policies that the items need, by name."""
    every = (policy for item in items for policy in item.policies)
    return {policy.name: _learning(policy, folder, data_dir) for policy in every}


def _to_learn(learnings: Iterable[Learning]) -> list[Learning]:
    """Those that have not ended, timed; those that have begun first, as what was begun may be refused."""
    missing = [each for each in learnings if not each.ended]
    timed = [dataclasses.replace(each, seconds=each.timed()) for each in missing]
    return sorted(timed, key=lambda each: not (each.folder / "manifest.json").exists())


def _require_fitting(row: _Row, learnings: Mapping[str, Learning]) -> None:
    """InputError where a row would run with a policy that was learned for something else: it would be noticed
    only once that is learned."""
    if row.policy is None:
        return
    learning, run = learnings[row.policy], next(iter(row.configs.values()))
    seen = learning.policy.kind == "ddpg"  # a constant policy sees nothing
    there, here = (_of_policy(config, seen) for config in (learning.config(), run))
    for what, value in there.items():
        if here[what] != value:
            raise InputError(
                f"{row.folder.name}, {row.label}: the policy {shown(row.policy)} cannot be used: it is "
                f"learned with {what} {value}, and the row has {here[what]}; learn another one for it"
            )


def _of_policy(config: RunConfig, seen: bool) -> dict[str, Any]:
    """What a policy is learned for; seen: one that sees the weights of every client."""
    told: dict[str, Any] = {"layers": config.training.layers}
    if seen:
        told |= {"clients": config.clients, "data": config.data_name, "hidden": config.training.hidden}
    return told


def _same_policies(
    rows: Sequence[_Row], learnings: Mapping[str, Learning], before: Mapping[str, str]
) -> dict[str, str]:
    """The digests of all policies of the folder. InputError where runs in it have used another one."""
    now_there = digest(learnings.values())
    for row in rows:
        name = row.policy
        began = any((row.path(seed) / "manifest.json").exists() for seed in row.configs)
        if name is not None and began and before.get(name) != now_there[name]:
            raise InputError(
                f"the runs of {row.label!r} in {row.folder} used another policy {name!r} than the one that "
                "is there now; remove them, or name another folder with --out"
            )
    return {**before, **now_there}


def _require_same(folder: Path, there: Any, asked: Mapping[str, Any]) -> None:
    """InputError unless the folder has a reproduction of this recipe, both whole or both quick."""
    same = isinstance(there, dict) and all(there.get(key) == asked[key] for key in ("paper", "quick"))
    if not same:
        raise InputError(f"the output folder {folder} holds something else; name a new one with --out")


def _require_same_runs(row: _Row) -> None:
    """InputError when a run in the folder was asked something else than the recipe asks now."""
    for seed, config in row.configs.items():
        path = row.path(seed)
        if not (path / "manifest.json").exists():
            continue
        there, asked = read_manifest(path).get("config", {}), files.plain(config.to_json())
        if row.policy is not None:  # `_same_policies` looks at what is in its file
            there, asked = _without_file(there), _without_file(asked)
        for key, here in asked.items():
            # Where files are and how fast they are read does not matter.
            if key not in ("data_dir", "threads", "checkpoint_every") and there.get(key) != here:
                raise InputError(
                    f"the run in {path} had another {key} than the recipe; name another folder with --out"
                )


def _without_file(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config that does not say where the file of its policy is."""
    training = {key: value for key, value in config.get("training", {}).items() if key != "policy_file"}
    return {**config, "training": training}


def _missing_runs(rows: Sequence[_Row], cache: InputCache) -> list[Run]:
    """The runs that have not ended: the first seed of every row, then the second, so that runs on the same
    inputs follow each other. Of a row that has no run yet, the first rounds are timed, unless a row that does
    much the same work has been (`_work`).

    Raises what these raise, and InputError for a metric that a row does not have."""
    turns: list[tuple[int, Run]] = []
    timed: dict[str, tuple[float, Result]] = {}
    for row in rows:
        missing = [seed for seed in row.configs if not (row.path(seed) / "result.json").exists()]
        if not missing:
            continue
        ended = next(row.folder.glob(f"{glob.escape(row.label)}-seed*/result.json"), None)
        if ended is not None:
            known = Result.read(ended.parent)
            seconds = known.seconds["total"]
        else:
            config = _without_policy(row.configs[missing[0]])
            work = _work(config)
            if work not in timed:
                timed[work] = _timed(config, cache.get(config))
            seconds, known = timed[work]
        for item in row.shown:
            _check_metrics(item, known)
        for turn, seed in enumerate(missing):
            name = f"{row.folder.name}: {row.label}, seed {seed}"
            turns.append((turn, Run(name, row.configs[seed], row.path(seed), seconds)))
    return [run for _, run in sorted(turns, key=lambda entry: entry[0])]


def _without_policy(config: RunConfig) -> RunConfig:
    """A run that takes about as long: of a policy that is yet to be learned, with full batches."""
    training = config.training
    if not isinstance(training, FedGraphConfig) or training.policy_file is None:
        return config
    full = dataclasses.replace(training, policy="full", policy_file=None)
    return dataclasses.replace(config, training=full)


def _work(config: RunConfig) -> str:
    """Runs for which this is the same are told to take as long as each other: they differ by numbers that are
    no counts, as epsilon; or they are so short that to time them apart would take as long as they do."""
    told = files.plain(config.to_json())
    if config.training.rounds <= SHORT_ROUNDS:
        sizes = [told["training"].get(key) for key in SIZES]
        return json.dumps([told["method"], told["data"], told["task"], *sizes])
    return json.dumps(_without_fractions(told), sort_keys=True)


def _without_fractions(settings: Any) -> Any:
    if isinstance(settings, dict):
        return {k: _without_fractions(v) for k, v in settings.items() if not isinstance(v, float)}
    return settings


def _timed(config: RunConfig, inputs: Inputs) -> tuple[float, Result]:
    """What one run will take, from a few of its rounds, and what these gave."""
    for rounds in (1, min(TRIAL_ROUNDS, config.training.rounds)):
        short = dataclasses.replace(config, training=dataclasses.replace(config.training, rounds=rounds))
        began = time.perf_counter()
        result = execute(short, inputs, folder=None, command="")
        spent = time.perf_counter() - began
        if result.seconds["per_round"] > WARM_SECONDS:
            break
    return spent + (config.training.rounds - rounds) * result.seconds["per_round"], result


def _check_metrics(item: Item, result: Result) -> None:
    """InputError for a metric, or a place to draw curves against, that the runs of an item do not have."""
    targets = dict.fromkeys(item.targets)
    try:
        for metric in item.metrics:
            metric_of(result, metric, targets)
        has_place(result, item.against or ROUND)
    except InputError as error:
        raise InputError(f"{item.name}: {error}") from None


def _cost(runs: Sequence[Run], balances: int, learnings: Sequence[Learning], jobs: int) -> str:
    """What all runs will take, in words. balances: how many rows of workloads have not ended."""
    told = f"{balances} rows to balance, not timed; " if balances else ""
    if learnings:
        at_once = min(jobs, len(learnings))
        seconds = human_seconds(sum(each.seconds for each in learnings) / at_once)
        more = f", {at_once} at a time" if at_once > 1 else ""
        told += f"{len(learnings)} policies to learn, about {seconds}{more} (from two short episodes); "
    if learnings and not runs:
        return told.removesuffix("; ")
    return told + (_cost_of_runs(runs, jobs) if runs else "every run has ended; reading the results")


def _cost_of_runs(runs: Sequence[Run], jobs: int) -> str:
    at_once = min(jobs, len(runs))
    seconds = human_seconds(sum(run.seconds for run in runs) / at_once)
    more = f", {at_once} at a time" if at_once > 1 else ""
    timed = "from the first rounds of each new row, or of one that does as much"
    return f"{len(runs)} runs to do, about {seconds}{more} ({timed})"


def _has_runs(folder: Path) -> bool:
    names = ("result.json", WORKLOADS, "episodes.jsonl")
    ended = (path for name in names for path in folder.glob(f"*/*/{name}"))
    return any(ended) or any(map(has_checkpoint, folder.glob("*/*")))


@dataclass(frozen=True)
class _Balance:
    """A row of the kind workloads."""

    item: str
    asked: RecipeRow
    config: RunConfig
    folder: Path

    @property
    def ended(self) -> bool:
        return (self.folder / WORKLOADS).exists()

    def row(self, whole: Path, graphs: dict[Any, Graph], progress: bool) -> dict[str, Any]:
        """What was found; whole: the folder of the reproduction, graphs: those that are loaded."""
        if progress and not self.ended:
            say(f"{self.item}: {self.asked.label}")
        found = balanced_or_read(self.config, lambda: structure(self.config, graphs), self.folder)
        printed = self.asked.printed.get("largest")
        return {
            "label": self.asked.label,
            "panel": self.asked.panel,
            "series": self.asked.series,
            "seed": self.config.seed,
            **found,
            "printed": None if printed is None else printed.mean,
            "difference": None if printed is None else found["largest"] - printed.mean,
            "folder": str(self.folder.relative_to(whole)),
        }


def _balances(item: Item, folder: Path, data_dir: str | Path | None) -> list[_Balance]:
    """Of its first seed."""
    return [
        _Balance(
            item.name,
            row,
            _config(row, row.seeds[0], data_dir),
            folder / item.name / run_name(row.label, row.seeds[0]),
        )
        for row in (item.rows if item.kind == "workloads" else ())
    ]


# ---- what was found ----------------------------------------------------------------------------------------


def _found(item: Item, counted: list[dict[str, Any]] | None, folder: Path) -> dict[str, Any]:
    """An item with the results of its runs, read from their folders."""
    about = {
        "item": item.name,
        "kind": item.kind,
        "title": item.title,
        "source": item.source,
        "notes": item.notes,
        "plot": f"{item.name}.svg",
        "data": item.of_data,
    }
    if counted is not None:
        return {**about, **({"panels": item.panels} if item.panels else {}), "rows": counted}
    if item.kind == "returns":
        return {**about, "rows": [_found_returns(row, folder) for row in item.rows]}
    if item.kind == "curves":
        shown_of = {"metrics": item.metrics, "called": item.called, "against": item.against}
        return {**about, **shown_of, "rows": [_found_curve(row, item, folder) for row in item.rows]}
    targets = _targets(item, folder)
    rows = {row.label: _found_row(row, item, folder, targets) for row in item.rows}
    for row in item.rows:
        rows[row.label]["relative"] = compared(row, rows, item.metrics)
    return {
        **about,
        "metrics": item.metrics,
        "called": item.called,
        "x": item.x,
        "panels": item.panels,
        "relative_plot": f"{item.name}-relative.svg" if any(row.relative for row in item.rows) else None,
        "targets": {
            name: None
            if target is None
            else {"share": targets[name], "of": target.row or None, "less": target.less}
            for name, target in item.targets.items()
        },
        "against": item.against,
        "curves_plot": f"{item.name}-curves.svg" if item.against is not None else None,
        "rows": [*rows.values()],
    }


def _runs_of(asked: RecipeRow, item: Item, folder: Path) -> tuple[list[Path], list[Result]]:
    places = [Path(item.runs_in) / run_name(asked.label, seed) for seed in asked.seeds]
    return places, [Result.read(folder / place) for place in places]


def _targets(item: Item, folder: Path) -> dict[str, float | None]:
    """The share of every target of an item."""
    rows = {row.label: row for row in item.rows}
    found = {}
    for name, target in item.targets.items():
        followed = target is not None and target.row
        results = _runs_of(rows[target.row], item, folder)[1] if target is not None and followed else []
        found[name] = target_value(target, results)
    return found


def _found_returns(asked: RecipeRow, folder: Path) -> dict[str, Any]:
    assert asked.learned is not None
    place = Path(POLICIES) / asked.learned.name
    about = {"label": asked.label, "policy": asked.learned.name, "folder": str(place)}
    return {**about, **returns_of(folder / place)}


def _found_curve(asked: RecipeRow, item: Item, folder: Path) -> dict[str, Any]:
    places, results = _runs_of(asked, item, folder)
    (metric,) = item.metrics
    return {
        "label": asked.label,
        "method": results[0].method,
        "seeds": [result.seed for result in results],
        **curve_of(metric, results, item.against or ROUND),
        "folders": [str(place) for place in places],
    }


def _found_row(
    asked: RecipeRow, item: Item, folder: Path, targets: Mapping[str, float | None]
) -> dict[str, Any]:
    places, results = _runs_of(asked, item, folder)
    _check_metrics(item, results[0])
    ours, printed, difference = {}, {}, {}
    for metric in item.metrics:
        scale = 100 if metric in PERCENT else 1 / item.divided_by.get(metric, 1)
        values = [metric_of(result, metric, targets) for result in results]
        ours[metric] = statistic([None if value is None else scale * value for value in values])
        reached = reached_by(metric, results, targets)
        ours[metric] |= {} if reached is None else {"reached": reached}
        there, mean = asked.printed.get(metric), ours[metric]["mean"]
        printed[metric] = None if there is None else dataclasses.asdict(there)
        difference[metric] = None if there is None or mean is None else mean - there.mean
    return {
        "label": asked.label,
        "panel": asked.panel,
        "series": asked.series,
        "x": asked.x,
        "method": results[0].method,
        "policy": None if asked.learned is None else asked.learned.name,
        "recipe": _recipe_of(results[0]),
        "seeds": [result.seed for result in results],
        "rounds": [result.rounds for result in results],
        "ours": ours,
        "printed": printed,
        "difference": difference,
        "seconds": sum(result.seconds["total"] for result in results),
        "folders": [str(place) for place in places],
        **_curve_beside(item, results),
    }


def _recipe_of(result: Result) -> dict[str, Any]:
    """In what its settings differ from the default ones; where a policy's file is does not matter."""
    return {key: value for key, value in result.details.get("recipe", {}).items() if key != "policy_file"}


def _curve_beside(item: Item, results: Sequence[Result]) -> dict[str, Any]:
    """The curve of a row of runs, of the metric that decides; nothing where none is drawn."""
    if item.against is None:
        return {}
    metric = get_task(results[0].task).metric
    return {"curve": {"metric": metric, **curve_of(metric, results, item.against)}}


def _without_runs(item: Item, cache: InputCache, data_dir: str | Path | None) -> list[dict[str, Any]]:
    """The rows of an item that needs data and configs only."""
    configs = {row.label: _config(row, row.seeds[0], data_dir) for row in item.rows}
    return {"class_counts": _counted, **sensors.KINDS}[item.kind](item, configs, cache)


def _counted(item: Item, configs: Mapping[str, RunConfig], cache: InputCache) -> list[dict[str, Any]]:
    """The rows of an item of the kind class_counts."""
    rows = []
    for row in item.rows:
        config = configs[row.label]
        inputs = cache.get(config)
        assert isinstance(inputs, GraphInputs)  # of `isolated`
        sites, split = inputs.partition.num_sites, inputs.split
        if row.totals is not None and len(row.totals) != sites:
            raise InputError(
                f"{item.name}, {row.label}: {len(row.totals)} totals are printed, and there are {sites} "
                "holders; give one for each"
            )
        some = split.train | split.val | split.test
        counts = {"all": class_counts(inputs, np.ones_like(some)), "split": class_counts(inputs, some)}
        names = inputs.graph.class_names or [str(c) for c in range(inputs.graph.num_classes)]
        rows.append(
            {
                "label": row.label,
                "seed": config.seed,
                "holders": site_names(inputs.graph, inputs.partition) or [str(k) for k in range(sites)],
                "classes": list(names),
                "counts": {key: table.tolist() for key, table in counts.items()},
                "totals": {key: table.sum(1).tolist() for key, table in counts.items()},
                "printed": row.totals,
            }
        )
    return rows


def class_counts(inputs: GraphInputs, among: np.ndarray) -> np.ndarray:
    """How many labelled vertices of each class each holder owns, int64 [K, C]; among: bool [N], those that
    count."""
    graph, partition = inputs.graph, inputs.partition
    owned = partition.held_owner & (among & (graph.y >= 0))[partition.held_vertex]
    cells = partition.held_site[owned] * graph.num_classes + graph.y[partition.held_vertex[owned]]
    shape = partition.num_sites, graph.num_classes
    return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)

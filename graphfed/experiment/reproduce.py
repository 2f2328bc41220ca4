"""Reproduce tables and figures of a paper from its recipe: our figures beside the printed ones.

    manifest.json                     which recipe, whole or quick
    <item>/<row>-seed0/               the folder of every run, as `graphfed run` writes it
    <item>.svg                        both figures of every row, drawn
    reproduce.json                    both figures, their difference, how the protocols differ

A run that has ended is read and not run again, so a reproduction goes on where it stopped."""

import dataclasses
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfed.data.datasets import DATASETS, available, search_folders
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.experiment import folder as files
from graphfed.experiment.config import RunConfig, make_config
from graphfed.experiment.plan import Row, load_rows, run_name, run_or_read, statistic
from graphfed.experiment.progress import human_seconds, show_progress
from graphfed.experiment.recipe import PERCENT, Item, Recipe, RecipeRow, read_recipe
from graphfed.experiment.reopen import read_manifest
from graphfed.experiment.run import Inputs, Result, execute, now, write_manifest
from graphfed.files import write_bytes, write_json

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Reproduction", "reproduce", "resume_reproduction"]

#: Rounds of the run that is timed for a row, before it is run.
TRIAL_ROUNDS = 2


@dataclass(frozen=True)
class Reproduction:
    """What was found. items: item, title, metric, source, notes, plot and rows: label, method, recipe (what
    differs from the default), seeds, rounds, ours {mean, std, values} and printed {mean, std} in the paper's
    unit, difference of the means (None where nothing was printed), seconds of all runs, folders."""

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
        from rich.markup import escape
        from rich.table import Table

        tables = []
        for item in self.items:
            lines = [f"printed: {item['source']}", *item["notes"]]
            if self.quick:
                lines.insert(
                    0, "quick version: shows that everything runs; its figures are of fewer seeds and rounds"
                )
            table = Table(
                title=escape(f"{self.paper}/{item['item']}: {item['title']}"),
                caption=escape("\n".join(lines)),
                caption_justify="left",
            )
            unit = " (%)" if item["metric"] in PERCENT else ""
            table.add_column("row")
            for name in (f"ours{unit}", f"printed{unit}", "difference", "runs", "seconds"):
                table.add_column(name, justify="right")
            for row in item["rows"]:
                gap = "-" if row["difference"] is None else f"{row['difference']:+.2f}"
                cells = (
                    row["label"], _figure(row["ours"]), _figure(row["printed"]), gap,
                    str(len(row["seeds"])), human_seconds(row["seconds"]),
                )  # fmt: skip
                table.add_row(*(escape(cell) for cell in cells))
            tables.append(table)
        return tables


def reproduce(
    paper: str,
    item: str | None = None,
    *,
    quick: bool = False,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    progress: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    command: str = "graphfed.reproduce",
) -> Reproduction:
    """Run the recipe of a paper (a name of `recipe_names()`, or the path of a YAML file).

    item: one table or figure, None for all. quick: the recipe's short version.
    out: the folder; None for ``runs/reproduce-<paper>`` (with -quick). Where it is there, what has ended in
    it is read and the rest goes on. tell: is told the predicted cost before the first run.

    Raises InputError, before anything is run or written, for a name or recipe that cannot be used, data that
    is missing (which files, and where to get them) and a folder of something else."""
    recipe = read_recipe(paper)
    items = [entry.quick() if quick else entry for entry in _chosen(recipe, item)]
    _require_data(recipe, items, data_dir)
    plans = {entry.name: [_plan(row, entry, data_dir) for row in entry.rows] for entry in items}
    default = f"runs/reproduce-{Path(paper).stem}{'-quick' if quick else ''}"
    folder = Path(default if out is None else out)
    about = {"paper": paper, "quick": quick}
    there = (folder / "manifest.json").exists()
    if there:
        manifest = read_manifest(folder)
        asked = manifest.get("reproduce")
        if not isinstance(asked, dict) or {key: asked.get(key) for key in about} != about:
            raise InputError(f"the output folder {folder} holds something else; name a new one with --out")
    for name, rows in plans.items():
        for row in rows:
            _require_same_runs(folder / name, row)
    with files.open_folder(folder, resume=there, keep=_has_runs):
        inputs = {name: load_rows(rows) for name, rows in plans.items()}
        if not there:
            write_manifest(
                folder, {"command": command, "started": now(), "reproduce": {**about, "item": item}}
            )
        _tell_cost(plans, inputs, folder, tell)
        found = [
            _reproduced(entry, plans[entry.name], inputs[entry.name], folder, command, progress)
            for entry in items
        ]
        finished = Reproduction(
            recipe.paper, recipe.title, recipe.authors, recipe.venue, quick, tuple(found), folder
        )
        try:
            for entry in found:
                write_bytes(folder / entry["plot"], _drawn(entry))
            write_json(folder / "reproduce.json", finished.to_json())
        except OSError as error:
            raise files.cannot_be_written(folder, error) from error
    return finished


def resume_reproduction(
    folder: Path, manifest: Mapping[str, Any], *, data_dir: str | Path | None, progress: bool
) -> Reproduction:
    """Run what is missing in `folder`. Raises what `resume` raises."""
    asked = manifest["reproduce"]
    try:
        paper, item, quick = asked["paper"], asked["item"], asked["quick"]
    except KeyError as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: it lacks {error}") from None
    return reproduce(paper, item, quick=quick, out=folder, data_dir=data_dir, progress=progress)


# ---- before the first run ----------------------------------------------------------------------------------


def _chosen(recipe: Recipe, item: str | None) -> list[Item]:
    if item is None:
        return list(recipe.items.values())
    if item not in recipe.items:
        raise InputError(
            f"the recipe {recipe.paper} has no item {shown(item)}; {did_you_mean(item, recipe.items)}"
        )
    return [recipe.items[item]]


def _require_data(recipe: Recipe, items: Sequence[Item], data_dir: str | Path | None) -> None:
    """InputError when the files of a data set are missing."""
    known = {row.name: row for row in available(data_dir)}
    for item in items:
        for name in item.data:
            if name in known and not known[name].ready:
                looked = ", ".join(str(folder) for folder in search_folders(data_dir))
                lacking = ", ".join(known[name].missing) or "its files"
                raise InputError(
                    f"{recipe.paper}/{item.name} needs data set {name!r}, and {lacking} are not in {looked}; "
                    f"get them from {DATASETS[name].source}, and name their folder with --data-dir"
                )


def _plan(row: RecipeRow, item: Item, data_dir: str | Path | None) -> Row:
    """Checked configs for the seeds of a row."""
    configs = {
        seed: make_config(row.method, **row.options, seed=seed, settings=row.settings, data_dir=data_dir)
        for seed in item.seeds
    }
    return Row(row.label, configs)


def _require_same_runs(folder: Path, row: Row) -> None:
    """InputError when a run in the folder was asked something else than the recipe asks now."""
    for seed, config in row.configs.items():
        path = folder / run_name(row.label, seed)
        if not (path / "manifest.json").exists():
            continue
        there = read_manifest(path).get("config", {})
        for key, here in files.plain(config.to_json()).items():
            # Where files are and how fast they are read does not matter.
            if key not in ("data_dir", "threads", "checkpoint_every") and there.get(key) != here:
                raise InputError(
                    f"the run in {path} had another {key} than the recipe; name another folder with --out"
                )


def _tell_cost(
    plans: Mapping[str, Sequence[Row]],
    inputs: Mapping[str, Mapping[tuple[str, int], Inputs]],
    folder: Path,
    tell: Callable[[str], None],
) -> None:
    """Time two rounds of the first missing run of every row, and tell what all missing runs will take."""
    runs, seconds = 0, 0.0
    for name, rows in plans.items():
        for row in rows:
            missing = [
                seed
                for seed in row.configs
                if not (folder / name / run_name(row.label, seed) / "result.json").exists()
            ]
            if missing:
                runs += len(missing)
                one = _seconds_of(row.configs[missing[0]], inputs[name][row.label, missing[0]])
                seconds += one * len(missing)
    if runs:
        tell(f"{runs} runs to do, about {human_seconds(seconds)} (two rounds of each row were timed)")
    else:
        tell("every run has ended; reading the results")


def _seconds_of(config: RunConfig, inputs: Inputs) -> float:
    """What one run will take, from a few of its rounds."""
    rounds = min(TRIAL_ROUNDS, config.training.rounds)
    short = dataclasses.replace(config, training=dataclasses.replace(config.training, rounds=rounds))
    began = time.perf_counter()
    result = execute(short, inputs, folder=None, command="")
    spent = time.perf_counter() - began
    return spent + (config.training.rounds - rounds) * result.seconds["per_round"]


def _has_runs(folder: Path) -> bool:
    return any(folder.glob("*/*/result.json"))


# ---- the runs ----------------------------------------------------------------------------------------------


def _reproduced(
    item: Item,
    rows: Sequence[Row],
    inputs: Mapping[tuple[str, int], Inputs],
    folder: Path,
    command: str,
    progress: bool,
) -> dict[str, Any]:
    """Run or read every run of an item."""
    told, number, total = [], 0, len(rows) * len(item.seeds)
    for row, asked in zip(rows, item.rows, strict=True):
        results = []
        for seed, config in row.configs.items():
            number += 1
            label = f"[{number}/{total}] {item.name}: {row.label}, seed {seed}"
            here = folder / item.name / run_name(row.label, seed)
            with show_progress(label, progress) as on_event:
                results.append(run_or_read(config, inputs[row.label, seed], here, command, on_event))
        told.append(_row_of(asked, item, results, folder))
    return {
        "item": item.name,
        "title": item.title,
        "metric": item.metric,
        "source": item.source,
        "notes": item.notes,
        "plot": f"{item.name}.svg",
        "rows": told,
    }


def _row_of(asked: RecipeRow, item: Item, results: Sequence[Result], folder: Path) -> dict[str, Any]:
    scale = 100 if item.metric in PERCENT else 1
    if item.metric not in results[0].test:
        hint = did_you_mean(item.metric, results[0].test)
        raise InputError(f"{item.name}: {asked.method} has no metric {shown(item.metric)}; {hint}")
    values = [result.test[item.metric] for result in results]
    ours = statistic([None if value is None else scale * value for value in values])
    both = ours["mean"] is not None and asked.printed is not None
    return {
        "label": asked.label,
        "method": results[0].method,
        "recipe": results[0].details.get("recipe", {}),
        "seeds": [result.seed for result in results],
        "rounds": [result.rounds for result in results],
        "ours": ours,
        "printed": None if asked.printed is None else {"mean": asked.printed, "std": asked.printed_std},
        "difference": ours["mean"] - asked.printed if both else None,
        "seconds": sum(result.seconds["total"] for result in results),
        "folders": [str(Path(item.name) / run_name(asked.label, result.seed)) for result in results],
    }


def _figure(told: Mapping[str, Any] | None) -> str:
    """``80.69 ± 0.65``."""
    if told is None or told["mean"] is None:
        return "-"
    return f"{told['mean']:.2f}" + ("" if told["std"] is None else f" ± {told['std']:.2f}")


def _drawn(item: Mapping[str, Any]) -> bytes:
    """Our figures and the printed ones of every row, with their deviations, as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = item["rows"]
    with mpl.rc_context({"svg.hashsalt": "graphfed", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 1.2 + 0.45 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for name, marker, colour, shift in (
            ("ours", "o", "#0b5cad", -0.14),
            ("printed", "s", "#c2571a", 0.14),
        ):
            shown_rows = [
                (n, row[name]) for n, row in enumerate(rows) if row[name] and row[name]["mean"] is not None
            ]
            axes.errorbar(
                [told["mean"] for _, told in shown_rows],
                [n + shift for n, _ in shown_rows],
                xerr=[told["std"] or 0.0 for _, told in shown_rows],
                fmt=marker, color=colour, capsize=3, label=name,
            )  # fmt: skip
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axes.invert_yaxis()
        unit = " (%)" if item["metric"] in PERCENT else ""
        axes.set_xlabel(f"test {item['metric'].replace('_', ' ')}{unit}: mean and deviation over runs")
        axes.set_title(item["title"], fontsize="medium")
        axes.grid(axis="x", alpha=0.3)
        axes.legend(loc="best")
        image = io.BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()

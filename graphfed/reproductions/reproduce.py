"""Reproduce tables and figures of a paper: our figures with the printed ones.

    manifest.json                     which paper, whole or quick, with which seeds
    <item>/<row>-seed0/               the folder of every run, as `graphfed run` writes it
    <item>/<row>-seed0/workloads.json of the kind workloads: the result of balancing
    policies/<policy>/                what is learned before the runs, as `graphfed policy` writes it
    <item>.svg                        both figures of every row, drawn
    <item>-curves.svg                 the course of its runs by time or bytes, if the item has curves
    <item>-relative.svg               how rows compare with each other, if the item compares them
    reproduce.json                    both figures, their difference, how the protocols differ

Policies are learned before the runs that use them. What has ended is read and not repeated, so a reproduction
goes on after an interruption, and can be given more seeds. Every run computes with one thread, unless its
options say otherwise: figures depend neither on the machine's cores nor on how many runs there are at a time.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfed.data.datasets import DATASETS, available, search_folders
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import write_bytes, write_json
from graphfed.reproductions import PAPERS
from graphfed.reproductions.base import Item, Measured, Paper, Place, Runs
from graphfed.reproductions.figures import found_runs
from graphfed.reproductions.plots import draw, draw_curves, draw_relative
from graphfed.reproductions.policies import POLICIES
from graphfed.reproductions.runner import cost_text, plan, policies_used, to_run
from graphfed.reproductions.tables import relative_table_of, table_of
from graphfed.runs import folder as files
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import has_checkpoint, now, write_manifest
from graphfed.studies.folder_schema import ReproductionFile
from graphfed.studies.jobs import check_jobs, run_all
from graphfed.studies.plan import InputCache, chosen_seeds

if TYPE_CHECKING:
    from rich.table import Table

#: Files that show that something in a folder has ended.
ENDED = ("result.json", "workloads.json", "episodes.jsonl")
#: The arguments of `reproduce` that its manifest keeps, with which it is resumed.
ASKED = ("paper", "quick", "item", "data", "seeds", "rows", "jobs")


@dataclass(frozen=True)
class Reproduction:
    """The results of a paper's items next to the printed figures.

    Attributes:
        items: A mapping for each item: item, kind, title, source, notes, plot, data (the data set, if the
            item has a choice of several), panels, and more by kind:

            "runs" has metrics, called (words for some of these), x (what the axis shows; None if the rows are
            not points of lines), relative_plot (None if no row is compared with another), targets (by name
            share, of and less: the row that the target follows, and by how much less; None for no target),
            against and curves_plot (None if no curves are drawn), and rows. A row has label, panel, series,
            x, method, policy (the learned one, or None), changed_settings, seeds, rounds, seconds (of all
            runs), folders; by metric ours {mean, std, values}, printed {mean, std} and the difference of the
            means, in the paper's unit (None if nothing is printed; ours of a metric with a target has
            `reached`, the number of runs that reached it); curve, if curves are drawn: metric and what
            `figures.curve_of` returns; relative, for each row that it is compared with: to (its label) and by
            metric ours and printed, in percent of that row's figure.

            "curves" has metrics (one), called, against, and rows: label, method, seeds, folders and what
            `figures.curve_of` returns.

            Any other kind has rows: label, and what its measuring function returns.
    """

    paper: str
    title: str
    authors: str
    venue: str
    quick: bool
    items: tuple[dict[str, Any], ...]
    folder: Path
    asked: tuple[Item, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the reproduction as plain data."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("folder", "asked")]
        content: dict[str, Any] = files.plain({name: getattr(self, name) for name in names})
        return content

    def tables(self) -> "list[Table]":
        """Return a table for each item, and one for its comparisons between rows, for a screen."""
        hint = "quick version: shows that everything runs; its figures are of fewer seeds and rounds"
        hints = [hint] if self.quick else []
        tables = []
        for item, found in zip(self.asked, self.items, strict=True):
            tables.append(table_of(self.paper, item, found, hints))
            if found.get("relative_plot"):
                tables.append(relative_table_of(self.paper, found))
        return tables


def reproduce(
    paper: str | Paper,
    item: str | Sequence[str] | None = None,
    *,
    data: str | None = None,
    quick: bool = False,
    seeds: Iterable[int] | None = None,
    rows: str | None = None,
    jobs: int = 1,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    progress: bool = False,
    log: Callable[[str], None] = lambda _: None,
    command: str = "graphfed.reproduce",
) -> Reproduction:
    """Run tables and figures of a paper, and show our figures next to the printed ones.

    Args:
        paper: One of `graphfed.reproductions.PAPERS`, or a `Paper` of the user.
        item: A table or figure, or several, which are run in this order; None for all.
        data: One of the data sets of an item with a choice; None for the first.
        quick: Whether to run the short version.
        seeds: The seeds of every row; None for the paper's.
        rows: A pattern of rows with * and ?, such as "FedGAT*"; None for all. A row that a target follows is
            run too, and comparisons with rows that are left out are left out.
        jobs: How many runs are made at a time, each in a process of its own; the figures are the same.
        out: The folder; None for ``runs/reproduce-<paper>`` (with -quick). If it exists, what has ended in it
            is read and the rest goes on.
        data_dir: The folder of the data sets.
        progress: Whether to show progress on stderr.
        log: Called when a row is timed, and with what there is to do.
        command: The command line that manifest.json records, for its readers.

    Returns:
        The figures, which the folder has as reproduce.json.

    Raises:
        InputError: A name is unknown, data is missing (the message says which files, and where to get them),
            or the folder holds something else. All of this is checked before anything is run or written.
        GraphfedError, Interrupted: As `run`.
    """
    paper = find_paper(paper) if isinstance(paper, str) else paper
    items = [entry.short() if quick else entry for entry in _chosen(paper, _names(item), data)]
    if seeds is not None:
        seeds = chosen_seeds(seeds)
        items = [entry.with_seeds(seeds) for entry in items]
    if rows is not None:
        items = _with_rows(items, rows)
    jobs = check_jobs(jobs)
    _require_data(paper, items, data_dir)
    default = f"runs/reproduce-{paper.name}{'-quick' if quick else ''}"
    folder = Path(default if out is None else out)
    named = item if isinstance(item, str) else _names(item) or None
    asked = dict(zip(ASKED, (paper.name, quick, named, data, seeds, rows, jobs), strict=True))
    begun = (folder / "manifest.json").exists()
    manifest: dict[str, Any] = read_manifest(folder) if begun else {"command": command, "started": now()}
    if begun:
        _require_same(folder, manifest.get("reproduce"), asked)
    cache = InputCache()
    place = Place(folder, data_dir, cache, progress)
    learnings, planned = plan(items, place, command)
    # Those that have begun come first, because they may be refused.
    to_learn = sorted((each for each in learnings if not each.has_ended), key=lambda each: not each.has_begun)
    measured = [entry for entry in items if isinstance(entry, Measured)]
    with files.open_folder(folder, resume=begun, keep=_has_results):
        runs = to_run(planned, cache, log)
        log(cost_text(runs, len(to_learn), len(measured), jobs))
        # What was asked last is what `resume` goes on with; earlier items stay in reproduce.json.
        manifest = {**manifest, "reproduce": asked}
        write_manifest(folder, manifest)
        run_all(to_learn, jobs=jobs, cache=cache, command=command, progress=progress)
        if learnings:
            manifest = {**manifest, POLICIES: policies_used(learnings, planned, manifest.get(POLICIES, {}))}
            write_manifest(folder, manifest)
        # Before the runs, which take longer: what cannot be measured is found at once.
        figures = {entry.name: {"rows": _measured(entry, place)} for entry in measured}
        run_all(runs, jobs=jobs, cache=cache, command=command, progress=progress)
        figures |= {entry.name: found_runs(entry, folder) for entry in items if isinstance(entry, Runs)}
        finished = Reproduction(
            paper=paper.name,
            title=paper.title,
            authors=paper.authors,
            venue=paper.venue,
            quick=quick,
            items=tuple(_about(entry) | figures[entry.name] for entry in items),
            folder=folder,
            asked=tuple(items),
        )
        _write(finished, [entry.name for entry in paper.items])
    return finished


def resume_reproduction(
    folder: Path, manifest: Mapping[str, Any], *, data_dir: str | Path | None, progress: bool, **_unused: Any
) -> Reproduction:
    """Run what is missing of what was last asked for in a folder; raises as `runs.reopen.resume`."""
    asked = manifest["reproduce"]
    lacking = [key for key in ("paper", "item", "quick") if key not in asked]
    if lacking:
        raise InputError(f"{folder / 'manifest.json'} is damaged: it has no {lacking[0]!r}")
    if asked["paper"] not in PAPERS:
        raise InputError(
            f"{folder} is a reproduction of {shown(asked['paper'])}, which is not one of graphfed's papers; "
            f"go on by calling graphfed.reproduce with the same paper and out={shown(str(folder))}"
        )
    known = {key: asked[key] for key in ASKED if key in asked}
    return reproduce(**known, out=folder, data_dir=data_dir, progress=progress)


def find_paper(name: str) -> Paper:
    """Return one of graphfed's papers; InputError if there is none of that name."""
    if name not in PAPERS:
        raise InputError(f"no reproduction of {shown(name)}; {did_you_mean(name, PAPERS)}")
    paper: Paper = import_module(f"graphfed.reproductions.{name}").PAPER
    return paper


# ---- before the first run ----------------------------------------------------------------------------------


def _names(item: str | Sequence[str] | None) -> list[str]:
    """Return the names of the items that are asked for, each once; none for all items."""
    return [item] if isinstance(item, str) else [*dict.fromkeys(item or ())]


def _chosen(paper: Paper, names: Sequence[str], data: str | None) -> list[Item]:
    """Return the named items or all, each with one data set if it has a choice."""
    items = paper.by_name
    for name in names:
        if name not in items:
            raise InputError(f"{paper.name} has no item {shown(name)}; {did_you_mean(name, items)}")
    chosen = [entry for name in names or (None,) for entry in _on_data(paper, name, data)]
    return [*{entry.name: entry for entry in chosen}.values()]


def _on_data(paper: Paper, item: str | None, data: str | None) -> list[Item]:
    """Return one item or all on a data set; None for the first of each item."""
    items = paper.by_name
    if data is None:
        return [entry for entry in paper.items if entry.name == (item or entry.base or entry.name)]
    variants = paper.items
    if item is not None:
        base = items[item].base
        # An item without a base has no choice of data.
        variants = tuple(entry for entry in paper.items if base and entry.base == base)
    chosen = [entry for entry in variants if entry.data == data]
    if not chosen:
        where = paper.name if item is None else f"{paper.name}/{items[item].base or item}"
        known = dict.fromkeys(entry.data for entry in variants if entry.data is not None)
        hint = did_you_mean(data, known) if known else "it has no choice of data; leave --data out"
        raise InputError(f"no data set {shown(data)} for {where}; {hint}")
    return chosen


def _with_rows(items: Sequence[Item], pattern: str) -> list[Item]:
    """Return the items that have rows of a pattern, with these rows."""
    chosen = [entry for entry in (entry.with_rows(pattern) for entry in items) if entry.rows]
    if not chosen:
        labels = dict.fromkeys(row.label for entry in items for row in entry.rows)
        raise InputError(f"no row is called {shown(pattern)}; {did_you_mean(pattern, labels)}")
    return chosen


def _require_data(paper: Paper, items: Sequence[Item], data_dir: str | Path | None) -> None:
    """Raise InputError if the files of a data set are missing."""
    known = {row.name: row for row in available(data_dir)}
    for item in items:
        for name in item.data_sets:
            if name in known and not item.usable(known[name]):
                looked = ", ".join(str(folder) for folder in search_folders(data_dir))
                lacking = ", ".join(known[name].missing) or "its files"
                raise InputError(
                    f"{paper.name}/{item.name} needs data set {name!r}, and {lacking} are not in {looked}; "
                    f"get them from {DATASETS[name].source}, and name their folder with --data-dir"
                )


def _require_same(folder: Path, before: object, asked: Mapping[str, object]) -> None:
    """Raise InputError unless the folder has a reproduction of this paper, both whole or both quick."""
    same = isinstance(before, dict) and all(before.get(key) == asked[key] for key in ("paper", "quick"))
    if not same:
        raise InputError(f"the output folder {folder} holds something else; name a new one with --out")


def _has_results(folder: Path) -> bool:
    ended = (path for name in ENDED for path in folder.glob(f"*/*/{name}"))
    return any(ended) or any(map(has_checkpoint, folder.glob("*/*")))


# ---- what was found ----------------------------------------------------------------------------------------


def _about(item: Item) -> dict[str, Any]:
    """Return what reproduce.json says of an item of any kind."""
    found = {
        "item": item.name,
        "kind": item.kind,
        "title": item.title,
        "source": item.source,
        "notes": item.notes,
        "plot": f"{item.name}.svg",
        "data": item.data,
    }
    return found | ({"panels": item.panels} if item.panels else {})


def _measured(item: Measured, place: Place) -> list[dict[str, Any]]:
    return [{"label": row.label, **item.measure(item, row, place)} for row in item.rows]


def _write(finished: Reproduction, order: Sequence[str]) -> None:
    """Write the drawings and reproduce.json, with the items in the paper's order."""
    folder = finished.folder
    with files.writing_into(folder):
        for item, found in zip(finished.asked, finished.items, strict=True):
            write_bytes(folder / found["plot"], draw(item, found))
            if found.get("relative_plot"):
                write_bytes(folder / found["relative_plot"], draw_relative(found))
            if found.get("curves_plot"):
                write_bytes(folder / found["curves_plot"], draw_curves(found))
        content = finished.to_json()
        # Items that the folder has from before stay.
        every = {found["item"]: found for found in [*_items_before(folder), *content["items"]]}
        content["items"] = [every[name] for name in order if name in every]
        write_json(folder / "reproduce.json", content)


def _items_before(folder: Path) -> list[dict[str, Any]]:
    path = folder / "reproduce.json"
    content = files.read_json(path, ReproductionFile) if path.exists() else {}
    items: list[dict[str, Any]] = content.get("items", [])
    return items

"""Compare methods over seeds: for each seed all rows have the same data, split and partition, or there is
no table.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject
from graphfed.methods.base import Method
from graphfed.methods.references import REFERENCES
from graphfed.methods.registry import ALIASES, METHODS, get_method
from graphfed.runs import folder as files
from graphfed.runs.config import default_partition, make_config, setting_names
from graphfed.runs.progress import show_data, show_progress, stages_of
from graphfed.runs.run import Result, write_file
from graphfed.runs.settings import given_settings, unknown_setting
from graphfed.studies.comparison import Comparison, comparison_in
from graphfed.studies.plan import (
    ComparedRow,
    Row,
    begin_runs,
    check_inputs,
    chosen_seeds,
    has_runs,
    load_rows,
    planned_runs,
    read_configs,
    require_equal_hashes,
    run_name,
    run_or_read,
    settings_text,
    statistic,
    statistics,
)
from graphfed.tasks.headline import headline
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task, task_or_default
from graphfed.tasks.run_options import OPTIONS
from graphfed.tasks.source import DataSource, data_source

__all__ = ["compare", "comparison_of", "resume_comparison"]

#: The options of a run that all rows have in common, unless a row chooses for itself.
_COMMON = tuple(key for key in OPTIONS if key not in ("method", "seed"))
#: What a row may choose for itself; the rest is common to the table.
_ROW_KEYS = ("method", *_COMMON, "settings", "label")


def compare(
    methods: Sequence[str | JsonObject],
    *,
    seeds: Iterable[int] = (0, 1, 2),
    out: str | Path | Literal[False] | None = None,
    progress: bool = False,
    settings: Mapping[str, object] | None = None,
    command: str = "graphfed.compare",
    **options: Any,
) -> Comparison:
    """Run every method with every seed on the same splits, and write the comparison's folder.

    A run that has ended stays in the folder, whatever happens to later ones, and `resume` goes on with the
    others.

    Args:
        methods: Names, or mappings for rows with choices of their own, as in {"method": "fedgcn", "label":
            "one hop", "settings": {"hops": 1}}. The reference methods of the task (see
            `methods.baselines.references`) are added if they are missing.
        seeds: The seeds of every row.
        out: The folder; None for ``runs/compare-<data>-<time>``, False to write nothing. It gets a run folder
            for each run, and comparison.json when all runs have ended.
        progress: Whether to show progress on stderr.
        settings: Settings common to all rows. A key goes to every row whose method has it, and
            ``"<method>.<key>"`` to that method alone.
        command: The command that manifest.json records.
        options: What `run` takes (data, clients, partition, rounds, split, ...), common to all rows, and
            settings by name, as in lr=0.1.

    Returns:
        The table.

    Raises:
        InputError: A value cannot be used, or rows have different data, splits or partitions. All of this is
            checked before the first run, and nothing is left written.
        GraphfedError, Interrupted: As `run`.
    """
    seeds = chosen_seeds(seeds)
    if "seed" in options:
        raise InputError("a comparison has several seeds; give seeds=[0, 1, 2] instead of seed")
    named = {key: value for key, value in options.items() if key not in _COMMON}
    common = {key: value for key, value in options.items() if key in _COMMON}
    rows, added = _plan(methods, seeds, given_settings(settings, named), common)
    first = rows[0]
    folder = files.chosen_folder(out, f"compare-{next(iter(first.configs.values())).data_name}")
    with nullcontext() if folder is None else files.open_folder(folder, keep=has_runs):
        inputs = _load(rows, progress)
        if folder is not None:
            planned = [{"label": row.label, "runs": planned_runs(row.configs)} for row in rows]
            begin_runs(folder, first, inputs[first.label], command, added=added, rows=planned)
        return _finish(rows, inputs, added, folder, command, progress)


def resume_comparison(
    folder: Path, manifest: JsonObject, *, data: object, data_dir: str | Path | None, progress: bool
) -> Comparison:
    """Go on with the comparison in a folder: finished runs are read and the others go on.

    Args:
        folder: The folder of the comparison.
        manifest: Its manifest.
        data: The data, if it was an object in Python.
        data_dir: The folder where the data files are now.
        progress: Whether to show progress on stderr.

    Returns:
        The table; read from the folder if the comparison has ended.

    Raises:
        InputError, GraphfedError, Interrupted: As `runs.reopen.resume`.
    """
    if (folder / "comparison.json").exists():
        return comparison_in(folder)
    rows = [Row(row["label"], read_configs(row["runs"], folder, data, data_dir)) for row in manifest["rows"]]
    for row in rows:
        check_label(row.label)
    with files.open_folder(folder, resume=True):
        inputs = _load(rows, progress)
        check_inputs(folder, inputs[rows[0].label], manifest["hashes"])
        return _finish(rows, inputs, tuple(manifest["added"]), folder, manifest["command"], progress)


def _load(rows: Sequence[Row], progress: bool) -> dict[str, dict[int, Inputs]]:
    """Load the inputs of every run, by label and seed; InputError if rows of one seed differ."""
    with show_progress("comparison", progress) as on_event:
        inputs = load_rows(rows, stages_of(on_event))
    require_equal_hashes(
        {label: {seed: known.hashes for seed, known in row.items()} for label, row in inputs.items()}
    )
    return inputs


def _finish(
    rows: Sequence[Row],
    inputs: Mapping[str, Mapping[int, Inputs]],
    added: tuple[str, ...],
    folder: Path | None,
    command: str,
    progress: bool,
) -> Comparison:
    """Make every run of every row, and write comparison.json. Runs that have ended in the folder are read."""
    results: dict[str, dict[int, Result]] = {row.label: {} for row in rows}
    total, number = sum(len(row.configs) for row in rows), 0
    known = next(iter(inputs[rows[0].label].values()))
    show_data(known, progress)
    for row in rows:
        for seed, config in row.configs.items():
            number += 1
            here = None if folder is None else folder / run_name(row.label, seed)
            with show_progress(f"[{number}/{total}] {row.label}, seed {seed}", progress) as on_event:
                results[row.label][seed] = run_or_read(
                    config, inputs[row.label][seed], here, command, on_event
                )
    comparison = _comparison(results, added=added, folder=folder)
    if folder is not None:
        write_file(folder, "comparison.json", comparison.to_json())
    return comparison


def comparison_of(results: Iterable[Result | str | Path]) -> Comparison:
    """Make the table of finished runs. Runs that differ in the seed alone share a row.

    Args:
        results: Results of runs, or their folders.

    Returns:
        The table.

    Raises:
        InputError: Runs did different tasks, had different data, splits or partitions for one seed (the
            message has the two hashes), rows have different seeds, or a run is given twice.
    """
    finished = [r if isinstance(r, Result) else Result.read(r) for r in results]
    if not finished:
        raise InputError("nothing was given to compare; give at least one result or folder of a run")
    for result in finished:
        if result.task != finished[0].task:
            raise InputError(
                f"{finished[0].method} did {finished[0].task} and {result.method} {result.task}; one table "
                "has one task: give runs of one"
            )
    settings_of_method: dict[str, set[str]] = {}
    for result in finished:
        settings_of_method.setdefault(result.method, set()).add(_settings_key(result))
    rows: dict[str, dict[int, Result]] = {}
    for result in finished:
        label = result.method
        if len(settings_of_method[label]) > 1:
            changed = settings_text(result.details.get("changed_settings", {}))
            label = f"{label} ({changed or 'default settings'})"
        row = rows.setdefault(label, {})
        if result.seed in row:
            raise InputError(f"seed {result.seed} of {label} is given twice; give each run once")
        row[result.seed] = result
    seeds = {label: sorted(row) for label, row in rows.items()}
    first = next(iter(seeds))
    for label, those in seeds.items():
        if those != seeds[first]:
            raise InputError(
                f"{label} has seeds {those} and {first} has seeds {seeds[first]}; "
                "one table needs the same seeds in every row"
            )
    require_equal_hashes({label: {seed: r.hashes for seed, r in row.items()} for label, row in rows.items()})
    references = REFERENCES.get(finished[0].task, ())
    methods = {result.method for result in finished}
    return _comparison(rows, missing=tuple(name for name in references if name not in methods))


# ---- planning ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AskedRow:
    """A row whose configs are not made yet. options: its own choices of the options in _COMMON."""

    label: str
    method: Method
    settings: Mapping[str, object]
    options: JsonObject


def _plan(
    methods: Sequence[str | JsonObject],
    seeds: tuple[int, ...],
    settings: Mapping[str, object],
    options: JsonObject,
) -> tuple[list[Row], tuple[str, ...]]:
    """Return every row with its checked configs, and the names of the reference rows that were added."""
    if isinstance(methods, str) or not isinstance(methods, Sequence):
        raise InputError(f"methods={shown(methods)} cannot be used; give a list, as in ['fedavg', 'fedgcn']")
    if not methods:
        raise InputError("no method was given; give at least one to compare (see 'graphfed methods')")
    asked = [_asked_row(item) for item in methods]
    task = _common_task(asked, options)
    data = options.get("data")
    # Resolved once: else the user's files are read for every config.
    source = data_source(task_or_default(task).data.default if data is None else data)
    partition = options.get("partition")
    if partition is None:
        # One partition for all rows: that of the first method with a partition of its own.
        defaults = [default_partition(row.method, source) for row in asked]
        partition = next((name for name in defaults if name != Method.partition), defaults[0])
    options = {**options, "task": task, "data": source, "partition": partition}
    names = [row.method.name for row in asked]
    missing = [get_method(name) for name in REFERENCES.get(task, ()) if name not in names]
    if str(options.get("split")).startswith("inductive"):
        # Sensors that training does not see have no personal model.
        missing = [method for method in missing if not method.personal]
    asked += [_AskedRow(method.name, method, {}, {}) for method in missing]
    shared = _shared_settings(settings, [row.method for row in asked], source, str(partition))
    rows: list[Row] = []
    for row in asked:
        if row.label in (other.label for other in rows):
            raise InputError(
                f"two rows are called {row.label!r}; name each method once, or give one another label "
                "(label: in its config file)"
            )
        chosen = {"method": row.method.name, **options, **row.options}
        if not row.method.trains and "rounds" not in row.options:
            chosen["rounds"] = None  # a method that trains nothing is as good after one round
        merged = {**shared[row.method.name], **row.settings}
        rows.append(
            Row(row.label, {seed: make_config(**chosen, seed=seed, settings=merged) for seed in seeds})
        )
    return rows, tuple(method.name for method in missing)


def _common_task(rows: Sequence[_AskedRow], options: Mapping[str, object]) -> str:
    """Return the task of all rows; InputError if they have several."""
    tasks = {}
    for row in rows:
        asked = row.options.get("task", options.get("task"))
        tasks[row.label] = row.method.tasks[0] if asked is None else str(asked)
    first, *others = tasks.items()
    for label, task in others:
        if task != first[1]:
            raise InputError(
                f"{first[0]} does {first[1]} and {label} does {task}; one table has one task: give it "
                f"(--task)"
            )
    return first[1]


def _asked_row(item: str | JsonObject) -> _AskedRow:
    """Make a row from a method's name or a mapping; InputError for anything else."""
    if not isinstance(item, str | Mapping):
        raise InputError(
            f"a row of type {type(item).__name__} cannot be used; give a method's name, or a mapping as in "
            "{'method': 'fedgcn', 'label': 'one hop'}"
        )
    row: JsonObject = {"method": item} if isinstance(item, str) else item
    for key in row:
        if key not in _ROW_KEYS:
            raise InputError(f"a row of a comparison has no {key!r}; {did_you_mean(str(key), _ROW_KEYS)}")
    if not isinstance(row.get("method"), str):
        raise InputError("a row of a comparison needs a method, as in {'method': 'fedgcn'}")
    method, settings = get_method(row["method"]), given_settings(row.get("settings"))
    label = str(row.get("label", method.name))
    check_label(label)
    return _AskedRow(label, method, settings, {key: row[key] for key in row if key in _COMMON})


#: Bytes of a label: with the seed it is the name of a folder.
MAX_LABEL = 200


def check_label(label: str) -> None:
    """Check that a label can name a folder.

    Args:
        label: The label of a row.

    Raises:
        InputError: It cannot.
    """
    if not label.isprintable() or "/" in label or label[:1] in ("", ".") or len(label.encode()) > MAX_LABEL:
        raise InputError(
            f"the label {shown(label)} cannot name a folder; use at most {MAX_LABEL} letters, digits, dashes"
        )


def _shared_settings(
    settings: Mapping[str, object], methods: Sequence[Method], source: DataSource, partition: str
) -> dict[str, dict[str, object]]:
    """Return the common settings by method: a key goes to the methods that have it, ``method.key`` to that
    method.
    """
    data = source.value if isinstance(source.value, str) else None
    known = {method.name: setting_names(method.name, data, partition) for method in methods}
    shared: dict[str, dict[str, object]] = {name: {} for name in known}
    specific: dict[str, dict[str, object]] = {name: {} for name in known}
    for key, value in settings.items():
        prefix, _, rest = str(key).partition(".")
        if rest and (prefix in METHODS or prefix in ALIASES):
            name = ALIASES.get(prefix, prefix)
            if name not in known:
                raise InputError(
                    f"setting {key!r}: {name} is not in this comparison; add it or drop the setting"
                )
            specific[name][rest] = value
            continue
        # A method that trains nothing takes no number of rounds.
        takers = [m.name for m in methods if key in known[m.name] and (key != "rounds" or m.trains)]
        if not takers:
            every = sorted({each for names in known.values() for each in names})
            hint = unknown_setting(key, every)
            raise InputError(f"no method of this comparison has a setting {shown(key)}; {hint}")
        for name in takers:
            shared[name][key] = value
    return {name: shared[name] | specific[name] for name in known}


# ---- the table ---------------------------------------------------------------------------------------------


def _comparison(
    results: Mapping[str, Mapping[int, Result]],
    *,
    added: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
    folder: Path | None = None,
) -> Comparison:
    first = next(iter(next(iter(results.values())).values()))
    rows = tuple(_row(label, [row[seed] for seed in sorted(row)]) for label, row in results.items())
    seeds = tuple(rows[0]["seeds"])
    return Comparison(
        first.dataset, first.task, first.clients, first.partition, seeds, rows, added, missing, folder
    )


def _row(label: str, results: list[Result]) -> ComparedRow:
    pooled = [r.details.get("test_pooled") or {} for r in results]
    return {
        "label": label,
        "method": results[0].method,
        "seeds": [r.seed for r in results],
        "test": statistics([r.test for r in results]),
        "val": statistics([r.val for r in results]),
        "test_pooled": statistics(pooled),
        "hashes": {what: [r.hashes[what] for r in results] for what in results[0].hashes},
        "rounds": [r.rounds for r in results],
        "best_round": [r.best_round for r in results],
        "bytes": statistic([r.bytes["total"] for r in results]),
        "seconds": statistic([r.seconds["total"] for r in results]),
        "changed_settings": results[0].details.get("changed_settings", {}),
        "headline": headline(results[0].task, results[0].details, results[0].test),
        "training": results[0].details.get("training", {}),
        "selected_by": results[0].details.get("selected_by", get_task(results[0].task).metric),
        "warnings": [{"seed": r.seed, **found} for r in results for found in r.details.get("warnings", ())],
        "folders": [None if r.folder is None else str(r.folder) for r in results],
    }


def _settings_key(result: Result) -> str:
    return json.dumps(
        [result.details.get(key, {}) for key in ("changed_settings", "training")], sort_keys=True
    )

"""Compare methods over seeds: for each seed all rows have the same data, split and partition, or there is
no table.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from graphfed.runs.run import Result, write_file
from graphfed.runs.settings import given_settings, unknown_setting
from graphfed.studies.comparison import Comparison, comparison_in, make_comparison
from graphfed.studies.jobs import Run, check_jobs, run_all
from graphfed.studies.plan import (
    Failures,
    Row,
    Study,
    chosen_seeds,
    existing_settings,
    read_configs,
    run_name,
)
from graphfed.tasks.given_partition import with_partition_file
from graphfed.tasks.registry import task_or_default
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.run_options import OPTIONS
from graphfed.tasks.source import DataSource, data_source

#: The options of a run that all rows have in common, unless a row chooses for itself.
_COMMON = tuple(key for key in OPTIONS if key not in ("method", "seed"))
#: What a row may choose for itself; the rest is common to the table.
_ROW_KEYS = ("method", *_COMMON, "settings", "label")


def compare(
    methods: Sequence[str | JsonObject],
    *,
    seeds: Iterable[int] = (0, 1, 2),
    out: str | Path | Literal[False] | None = None,
    jobs: int = 1,
    progress: bool = False,
    settings: Mapping[str, object] | None = None,
    command: str = "graphfed.compare",
    **options: Any,
) -> Comparison:
    """Run every method with every seed on the same splits, and write the comparison's folder.

    A run that has ended stays in the folder, whatever happens to later ones, and `resume` goes on with the
    others. If training fails in a run, the others go on, and the error names the run at the end.

    Args:
        methods: Names, or mappings for rows with choices of their own, as in {"method": "fedgcn", "label":
            "one hop", "settings": {"hops": 1}}. The reference methods of the task (see
            `methods.baselines.references`) are added if they are missing.
        seeds: The seeds of every row, each of which gives a run.
        out: The folder; None for ``runs/compare-<data>-<time>``, False to write nothing. It gets a run folder
            for each run, and comparison.json when all runs have ended.
        jobs: How many runs are made at a time, each in a process of its own. The figures are those of one at
            a time.
        progress: Whether to show progress on stderr.
        settings: Settings common to all rows. A key goes to every row in whose runs the setting exists, and
            ``"<method>.<key>"`` to rows of that method alone. One that exists in no run is refused.
        command: The command line that manifest.json records, for its readers.
        options: What `run` takes (data, clients, partition, rounds, split, ...), common to all rows, and
            settings by name, as in lr=0.1.

    Returns:
        The table.

    Raises:
        InputError: A value cannot be used, or rows have different data, splits or partitions. All of this is
            checked before the first run, and nothing is left written.
        GraphfedError, Interrupted: As `run`.
    """
    seeds, jobs = chosen_seeds(seeds), check_jobs(jobs)
    if "seed" in options:
        raise InputError("a comparison has several seeds; give seeds=[0, 1, 2] instead of seed")
    named = {key: value for key, value in options.items() if key not in _COMMON}
    common = {key: value for key, value in options.items() if key in _COMMON}
    rows, added = _plan(methods, seeds, given_settings(settings, named), common)
    if jobs > 1:
        _check_processes(rows[0].first, out)
    folder = files.chosen_folder(out, f"compare-{rows[0].first.data_name}")
    study = Study("comparison", rows, folder, command, progress)
    planned = [{"label": row.label, "runs": row.to_json()} for row in rows]
    with study.opened(added=added, rows=planned):
        return _finish(study, added, jobs)


def _check_processes(config: RunConfig, out: object) -> None:
    """Raise InputError if other processes cannot make the runs of a comparison."""
    if out is False:
        raise InputError("jobs needs a folder, in which processes write their runs; leave out=False out")
    if config.data_source.source is None:
        raise InputError(
            f"jobs cannot be used with data {config.data_name!r}, an object in this process; give the name "
            "of a data set or the path of a file"
        )


def resume_comparison(
    folder: Path, manifest: JsonObject, *, data: object, data_dir: str | Path | None, progress: bool
) -> Comparison:
    """Go on with the comparison in a folder: finished runs are read and the others go on.

    The arguments are those of `runs.reopen.resume`.
    """
    if (folder / "comparison.json").exists():
        return comparison_in(folder)
    rows = [Row(row["label"], read_configs(row["runs"], folder, data, data_dir)) for row in manifest["rows"]]
    for row in rows:
        _check_label(row.label)
    study = Study("comparison", rows, folder, manifest["command"], progress)
    with study.opened(manifest):
        return _finish(study, tuple(manifest["added"]))


def _finish(study: Study, added: tuple[str, ...], jobs: int = 1) -> Comparison:
    """Make or read every run of every row, and write comparison.json."""
    results: dict[str, dict[int, Result]] = {row.label: {} for row in study.rows}
    failures = Failures()
    runs = [(row.label, config) for row in study.rows for config in row.configs.values()]
    if jobs > 1 and study.folder is not None:
        made = [
            Run(f"{label}, seed {config.seed}", config, study.folder / run_name(label, config.seed), 1.0)
            for label, config in runs
        ]
        # All of them have ended then, and are read below.
        run_all(made, jobs=jobs, cache=study.inputs, command=study.command, progress=study.progress)
    for number, (label, config) in enumerate(runs, 1):
        name = f"{label}, seed {config.seed}"
        # A run that diverges does not stop the others, which may take hours.
        with failures.noted(name):
            results[label][config.seed] = study.run(label, config, f"[{number}/{len(runs)}] {name}")
    failures.raise_first()
    comparison = make_comparison(results, added=added, folder=study.folder)
    if study.folder is not None:
        write_file(study.folder, "comparison.json", comparison.to_json())
    return comparison


# ---- planning ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AskedRow:
    """A row whose configs are not made yet; `options` are its own choices of the options in _COMMON."""

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
    partition = with_partition_file({**options, "data": source, "settings": settings}).get("partition")
    if partition is None:
        # One partition for all rows: that of the first method with a partition of its own.
        defaults = [default_partition(row.method, source) for row in asked]
        partition = next((name for name in defaults if name != Method.partition), defaults[0])
    options = {**options, "task": task, "data": source, "partition": partition}
    # Reference methods are added by name, so a row with other settings of one counts as present.
    names = [row.method.name for row in asked]
    missing = [get_method(name) for name in REFERENCES.get(task, ()) if name not in names]
    if str(options.get("split")).startswith("inductive"):
        # Sensors that training does not see have no personal model.
        missing = [method for method in missing if not method.personal]
    asked += [_AskedRow(method.name, method, {}, {}) for method in missing]
    by_method = _shared_settings(settings, [row.method for row in asked], source, str(partition))
    shared = _shared_by_label(asked, by_method, task)
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
        merged = {**shared[row.label], **row.settings}
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
    _check_label(label)
    return _AskedRow(label, method, settings, {key: row[key] for key in row if key in _COMMON})


#: Bytes of a label: with the seed it is the name of a folder.
MAX_LABEL = 200


def _check_label(label: str) -> None:
    """Raise InputError unless a label can name a folder."""
    if not label.isprintable() or "/" in label or label[:1] in ("", ".") or len(label.encode()) > MAX_LABEL:
        raise InputError(
            f"the label {shown(label)} cannot name a folder; use at most {MAX_LABEL} letters, digits, dashes"
        )


def _shared_by_label(
    rows: Sequence[_AskedRow], shared: Mapping[str, Mapping[str, object]], task: str
) -> dict[str, dict[str, object]]:
    """Return the common settings that exist in the runs of each row, by label.

    One that exists in no run stays in the rows of its methods, where `make_config` refuses it.
    """
    found = {
        row.label: existing_settings(row.method, task, shared[row.method.name], row.settings) for row in rows
    }
    # Known once all rows are planned: a setting may exist for one row of a method and not for another.
    taken = {key for settings in found.values() for key in settings}
    for row in rows:
        left = {key: value for key, value in shared[row.method.name].items() if key not in taken}
        found[row.label] |= left
    return found


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
    # A setting for one method wins over the same setting for all.
    return {name: shared[name] | specific[name] for name in known}

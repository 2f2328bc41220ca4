"""Methods side by side over seeds: same data, same split, same partition per seed, or no table at all."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import write_json
from graphfed.methods.base import Method
from graphfed.methods.registry import ALIASES, METHODS, get_method
from graphfed.methods.tasks import CLASSIFICATION, FORECASTING, LINK_PREDICTION
from graphfed.runs import folder as files
from graphfed.runs.config import OPTIONS, default_partition, make_config, setting_names
from graphfed.runs.progress import (
    show_dropped,
    show_progress,
    stages_of,
)
from graphfed.runs.reopen import check_hashes, config_from_json
from graphfed.runs.run import Result, keep_partition, now, write_manifest
from graphfed.runs.settings import unknown_setting
from graphfed.studies.comparison import Comparison, comparison_in
from graphfed.studies.plan import (
    Row,
    chosen_seeds,
    has_runs,
    load_rows,
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
from graphfed.tasks.source import data_source

if TYPE_CHECKING:
    pass

__all__ = ["REFERENCES", "compare", "comparison_of", "resume_comparison"]

#: The rows every table has: all data pooled, every client alone, averaging with the cross edges dropped. In
#: link prediction the last two have no score for a pair whose vertices are at two clients. In
#: forecasting: all readings at one party, every sensor alone, and what learns nothing.
REFERENCES: dict[str, tuple[str, ...]] = {
    CLASSIFICATION: ("central", "isolated", "fedavg"),
    LINK_PREDICTION: ("central",),
    FORECASTING: tuple(name for name in ("gru_central", "gru_local", "last_value") if name in METHODS),
}


#: What a row may choose for itself; the rest is common to the table.
_ROW_KEYS = (*(key for key in OPTIONS if key not in ("seed", "out", "set")), "settings", "label")


def compare(
    methods: Sequence[str | Mapping[str, Any]],
    *,
    seeds: Iterable[int] = (0, 1, 2),
    out: str | Path | Literal[False] | None = None,
    progress: bool = False,
    settings: Mapping[str, Any] | None = None,
    command: str = "graphfed.compare",
    **options: Any,
) -> Comparison:
    """Run every method with every seed on the same splits, and write the comparison's folder.

    methods: names, or mappings for rows with choices of their own, as in
    {"method": "fedgcn", "label": "one hop", "settings": {"hops": 1}}. The rows central, isolated and fedavg
    (in other tasks those of REFERENCES) are added where they are missing: no figure stands without them.
    options: what `run` takes (data, clients, partition, rounds, split, ...), common to all rows; so are the
    settings (those given by name too, as in lr=0.1), where a key goes to every row whose method has it, and
    ``"fedgcn.hops"`` to that method alone.
    out: the folder; None for ``runs/compare-<data>-<time>``, False to write nothing. It gets a run folder for
    each run, and comparison.json at last. A run that has ended stays, whatever happens to those after it, and
    `resume` goes on with the others.

    Raises InputError, with nothing left written, for a bad value, and for rows on different data,
    splits or partitions; all of that is checked before the first run."""
    seeds = chosen_seeds(seeds)
    options, settings = _divided(options, settings)
    rows, added = _plan(methods, seeds, settings, options)
    folder = files.chosen_folder(out, f"compare-{next(iter(rows[0].configs.values())).data_name}")
    with nullcontext() if folder is None else files.open_folder(folder, keep=has_runs):
        inputs = _load(rows, progress)
        if folder is not None:
            write_manifest(folder, _manifest(rows, inputs, added, command))
            first = next(iter(rows[0].configs))
            keep_partition(folder, rows[0].configs[first], inputs[rows[0].label, first])
        results = _run_all(rows, inputs, folder, command, progress)
        return _finished(results, added, folder)


def resume_comparison(
    folder: Path, manifest: Mapping[str, Any], *, data: Any, data_dir: str | Path | None, progress: bool
) -> Comparison:
    """Go on with the comparison in `folder`: finished runs are read, the others go on; one that has ended is
    read.

    Raises what `resume` raises."""
    if (folder / "comparison.json").exists():
        return comparison_in(folder)
    try:
        rows = [
            Row(
                row["label"],
                {
                    run["seed"]: config_from_json(run["config"], folder, data=data, data_dir=data_dir)
                    for run in row["runs"]
                },
            )
            for row in manifest["rows"]
        ]
        added, command, hashes = tuple(manifest["added"]), manifest["command"], manifest["hashes"]
        for row in rows:
            _row_options({"method": next(iter(row.configs.values())).method.name, "label": row.label})
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise InputError(f"{folder / 'manifest.json'} is damaged: it lacks {error}") from None
    with files.open_folder(folder, resume=True):
        inputs = _load(rows, progress)
        for seed in rows[0].configs:
            check_hashes(folder, inputs[rows[0].label, seed], hashes[str(seed)])
        results = _run_all(rows, inputs, folder, command, progress)
        return _finished(results, added, folder)


def _run_all(
    rows: Sequence[Row],
    inputs: Mapping[tuple[str, int], Inputs],
    folder: Path | None,
    command: str,
    progress: bool,
) -> dict[str, dict[int, Result]]:
    """Every run of every row; those that have ended in `folder` are read, those that have begun go on."""
    results: dict[str, dict[int, Result]] = {row.label: {} for row in rows}
    total, number = sum(len(row.configs) for row in rows), 0
    first = next(iter(inputs.values()))
    show_dropped(first.name, first.dropped, progress)
    for row in rows:
        for seed, config in row.configs.items():
            number += 1
            here = None if folder is None else folder / run_name(row.label, seed)
            with show_progress(f"[{number}/{total}] {row.label}, seed {seed}", progress) as on_event:
                results[row.label][seed] = run_or_read(
                    config, inputs[row.label, seed], here, command, on_event
                )
    return results


def _finished(
    results: Mapping[str, Mapping[int, Result]], added: tuple[str, ...], folder: Path | None
) -> Comparison:
    """The table, and comparison.json."""
    comparison = _comparison(results, added=added, folder=folder)
    if folder is not None:
        try:
            write_json(folder / "comparison.json", comparison.to_json())
        except OSError as error:
            raise files.cannot_be_written(folder, error) from error
    return comparison


def _manifest(
    rows: Sequence[Row], inputs: Mapping[tuple[str, int], Inputs], added: tuple[str, ...], command: str
) -> dict[str, Any]:
    """What is compared, so that it can be resumed."""
    return {
        "command": command,
        "started": now(),
        "added": added,
        "hashes": {str(seed): inputs[rows[0].label, seed].hashes for seed in rows[0].configs},
        "rows": [
            {
                "label": row.label,
                "runs": [{"seed": seed, "config": config.to_json()} for seed, config in row.configs.items()],
            }
            for row in rows
        ],
    }


def comparison_of(results: Iterable[Result | str | Path]) -> Comparison:
    """The table of finished runs: results, or their folders. Runs that differ in the seed alone share a row.

    Raises InputError when runs did different tasks, or, of one seed, had different data, splits or partitions
    (naming the two hashes), when rows have different seeds, or when a run is there twice."""
    finished = [r if isinstance(r, Result) else Result.read(r) for r in results]
    if not finished:
        raise InputError("there is nothing to compare; give at least one result or folder of a run")
    for result in finished:
        if result.task != finished[0].task:
            raise InputError(
                f"{finished[0].method} did {finished[0].task} and {result.method} {result.task}; one table "
                "has one task: give runs of one"
            )
    recipes: dict[str, set[str]] = {}
    for result in finished:
        recipes.setdefault(result.method, set()).add(_recipe_key(result))
    rows: dict[str, dict[int, Result]] = {}
    for result in finished:
        label = result.method
        if len(recipes[label]) > 1:
            label = f"{label} ({settings_text(result.details.get('recipe', {})) or 'default recipe'})"
        row = rows.setdefault(label, {})
        if result.seed in row:
            raise InputError(f"seed {result.seed} of {label} is there twice; give each run once")
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


def _divided(
    options: dict[str, Any], settings: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords as options, and the others, as settings, beside those in `settings`."""
    if "seed" in options:
        raise InputError("a comparison has several seeds; give seeds=[0, 1, 2] instead of seed")
    common = [key for key in OPTIONS if key not in ("method", "seed", "out", "set")]
    named = {key: value for key, value in options.items() if key not in common}
    chosen = _settings(settings)
    doubled = sorted(set(chosen) & set(named))
    if doubled:
        raise InputError(f"{doubled[0]} is given twice, in settings and by name; give it once")
    return {key: value for key, value in options.items() if key in common}, chosen | named


def _plan(
    methods: Sequence[str | Mapping[str, Any]],
    seeds: tuple[int, ...],
    settings: Mapping[str, Any] | None,
    options: dict[str, Any],
) -> tuple[list[Row], tuple[str, ...]]:
    """Every row with its checked configs, and the reference rows that were added."""
    if isinstance(methods, str) or not isinstance(methods, Sequence):
        raise InputError(f"methods={shown(methods)} cannot be used; give a list, as in ['fedavg', 'fedgcn']")
    if not methods:
        raise InputError("no method was named; name at least one to compare (see 'graphfed methods')")
    asked = [_row_options(item) for item in methods]
    names = [row["method"] for row in asked]
    task = _common_task(asked, options)
    data = options.get("data")
    # Looked at once: files of one's own are read for every config else.
    options = {
        **options,
        "task": task,
        "data": data_source(task_or_default(task).data.default if data is None else data),
    }
    if options.get("partition") is None:
        # One for all rows: that of the first method which asks for one of its own.
        dealt = [default_partition(get_method(name), options["data"]) for name in names]
        options["partition"] = next((name for name in dealt if name != Method.partition), dealt[0])
    added = tuple(
        name for name in REFERENCES.get(task, ()) if name not in names and _is_for(name, options.get("split"))
    )
    asked += [{"method": name, "label": name, "settings": {}} for name in added]
    shared = _shared_settings(_settings(settings), [row["method"] for row in asked], options)
    rows: list[Row] = []
    for row in asked:
        own = {key: value for key, value in row.items() if key not in ("label", "settings")}
        merged = {**shared[row["method"]], **row["settings"]}
        # What learns nothing is as good after one round.
        common = options if get_method(row["method"]).model else {**options, "rounds": None}
        configs = {seed: make_config(**{**common, **own}, seed=seed, settings=merged) for seed in seeds}
        if row["label"] in (r.label for r in rows):
            raise InputError(
                f"two rows are called {row['label']!r}; name each method once, or give one another label "
                "(label: in its config file)"
            )
        rows.append(Row(row["label"], configs))
    return rows, added


def _is_for(reference: str, split: Any) -> bool:
    """Sensors that training does not see have no model of their own."""
    return not (str(split).startswith("inductive") and get_method(reference).personal)


def _common_task(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """The task of all rows; InputError where they have several."""
    tasks = {}
    for row in rows:
        told = row.get("task", options.get("task"))
        tasks[row["label"]] = get_method(row["method"]).tasks[0] if told is None else str(told)
    first, *others = tasks.items()
    for label, task in others:
        if task != first[1]:
            raise InputError(
                f"{first[0]} does {first[1]} and {label} does {task}; one table has one task: give it "
                f"(--task)"
            )
    return first[1]


def _row_options(item: str | Mapping[str, Any]) -> dict[str, Any]:
    """A row as a mapping, with its method's proper name, a label and settings."""
    if not isinstance(item, str | Mapping):
        raise InputError(
            f"a row of type {type(item).__name__} cannot be used; give a method's name, or a mapping as in "
            "{'method': 'fedgcn', 'label': 'one hop'}"
        )
    row: dict[str, Any] = {"method": item} if isinstance(item, str) else dict(item)
    for key in row:
        if key not in _ROW_KEYS:
            raise InputError(f"a row of a comparison has no {key!r}; {did_you_mean(str(key), _ROW_KEYS)}")
    if not isinstance(row.get("method"), str):
        raise InputError("a row of a comparison needs a method, as in {'method': 'fedgcn'}")
    row["method"] = get_method(row["method"]).name
    row["settings"] = _settings(row.get("settings"))
    row["label"] = label = str(row.get("label", row["method"]))
    if not label.isprintable() or "/" in label or label[:1] in ("", ".") or len(label.encode()) > MAX_LABEL:
        raise InputError(
            f"the label {shown(label)} cannot name a folder; use at most {MAX_LABEL} letters, digits, dashes"
        )
    return row


#: Bytes of a label: with the seed it is the name of a folder.
MAX_LABEL = 200


def _settings(settings: Any) -> dict[str, Any]:
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(f"settings of type {type(settings).__name__} cannot be used; give a mapping")
    return dict(settings or {})


def _shared_settings(
    settings: dict[str, Any], methods: list[str], options: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The common settings by method: a key goes to the methods that have it, ``method.key`` to that one."""
    data = options["data"]
    partition = options["partition"]
    name = data.value if isinstance(data.value, str) else None
    known = {m: setting_names(m, name, str(partition)) for m in methods}
    shared: dict[str, dict[str, Any]] = {m: {} for m in known}
    specific: dict[str, dict[str, Any]] = {m: {} for m in known}
    for key, value in settings.items():
        prefix, _, rest = str(key).partition(".")
        if rest and (prefix in METHODS or prefix in ALIASES):
            method = ALIASES.get(prefix, prefix)
            if method not in known:
                raise InputError(
                    f"setting {key!r}: {method} is not in this comparison; add it or drop the setting"
                )
            specific[method][rest] = value
            continue
        # Methods that need every client, the references among them, take no fraction, and what learns
        # nothing no number of rounds.
        spared = {"fraction": lambda m: not m.dropouts, "rounds": lambda m: not m.model}.get(key)
        takers = [m for m in known if key in known[m] and not (spared and spared(get_method(m)))]
        if not takers:
            every = sorted({name for names in known.values() for name in names})
            hint = unknown_setting(key, every)
            raise InputError(f"no method of this comparison has a setting {shown(key)}; {hint}")
        for m in takers:
            shared[m][key] = value
    return {m: shared[m] | specific[m] for m in known}


def _load(rows: Sequence[Row], progress: bool) -> dict[tuple[str, int], Inputs]:
    """The inputs of every run; refused when rows of one seed differ."""
    with show_progress("comparison", progress) as on_event:
        inputs = load_rows(rows, stages_of(on_event))
    require_equal_hashes(
        {row.label: {seed: inputs[row.label, seed].hashes for seed in row.configs} for row in rows}
    )
    return inputs


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


def _row(label: str, results: list[Result]) -> dict[str, Any]:
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
        "recipe": results[0].details.get("recipe", {}),
        "headline": headline(results[0].task, results[0].details, results[0].test),
        "training": results[0].details.get("training", {}),
        "selected_by": results[0].details.get("selected_by", get_task(results[0].task).metric),
        "warnings": [{"seed": r.seed, **told} for r in results for told in r.details.get("warnings", ())],
        "folders": [None if r.folder is None else str(r.folder) for r in results],
    }


def _recipe_key(result: Result) -> str:
    return json.dumps([result.details.get(key, {}) for key in ("recipe", "training")], sort_keys=True)

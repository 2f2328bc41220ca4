"""The table of a comparison: what `compare` returns and its folder holds, and what looks wrong with it."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from graphfed.drawing.tables import html_table, latex_table
from graphfed.errors import InputError, shown
from graphfed.files import JsonObject
from graphfed.loading import load_object
from graphfed.methods.references import POOLED_AND_ALONE, REFERENCES, REPEATS_LAST, UNTRAINED
from graphfed.methods.registry import METHODS
from graphfed.runs import folder as files
from graphfed.runs.diagnostics import TITLES, ResultWarning
from graphfed.runs.folder_schema import Count, FileModel, Integer, Positive, check_metrics
from graphfed.runs.predict import csv_of, write_table
from graphfed.runs.progress import human_bytes, human_seconds
from graphfed.runs.result import to_pandas
from graphfed.runs.run import Result
from graphfed.studies.plan import (
    Statistic,
    require_equal_hashes,
    settings_text,
    spread,
    statistic,
    statistics,
)
from graphfed.tasks.headline import CLIENT_ACCURACY, COLUMNS, RANK_NOTE, headline
from graphfed.tasks.registry import TASKS, get_task
from graphfed.terminal import markup

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table

    from graphfed.drawing.canvas import Figure

#: An error over all readings, the missing ones among them.
AS_READ = "rmse_as_read"
#: The columns of a table that are no metrics.
_NO_METRICS = ("pooled", "rounds", "bytes", "time")
#: No value of a setting.
_ABSENT = object()


class RowWarning(TypedDict):
    """A warning of one run of a row."""

    seed: Integer
    code: str
    text: str


class ComparedRow(TypedDict):
    """A row of a comparison, as its file has it: a method with settings, over seeds.

    Attributes:
        test_pooled: Test metrics of the same weights on the whole graph.
        changed_settings: The settings that differ from their defaults.
    """

    label: str
    method: str
    seeds: Annotated[list[Integer], Field(min_length=1)]
    test: dict[str, Statistic]
    val: dict[str, Statistic]
    test_pooled: NotRequired[dict[str, Statistic]]
    hashes: NotRequired[dict[str, list[str]]]
    rounds: Annotated[list[Count], Field(min_length=1)]
    best_round: NotRequired[list[Count | None]]
    bytes: Statistic
    seconds: Statistic
    changed_settings: JsonObject
    headline: NotRequired[list[str]]
    training: NotRequired[JsonObject]
    selected_by: NotRequired[str]
    warnings: NotRequired[list[RowWarning]]
    folders: Annotated[list[str | None], Field(min_length=1)]


class Comparison(FileModel):
    """A finished table: the content of comparison.json.

    Attributes:
        seeds: The seeds of every row.
        rows: A row for each method with its settings.
        added: The reference rows that were added.
        missing: The reference rows that are missing (only from `comparison_of`).
        folder: The folder of the comparison; None if nothing was written.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    dataset: str
    task: str
    clients: Positive
    partition: str
    seeds: Annotated[tuple[Integer, ...], Field(min_length=1, strict=False)]
    added: tuple[str, ...] = Field(alias="references_added", strict=False)
    missing: tuple[str, ...] = Field(alias="references_missing", strict=False)
    rows: Annotated[tuple[ComparedRow, ...], Field(min_length=1, strict=False)]
    folder: Path | None = None

    @model_validator(mode="after")
    def _check_rows(self) -> "Comparison":
        """Check that rows have different labels, the same metrics, and the metric that decides."""
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}")
        first = self.rows[0]
        for number, row in enumerate(self.rows):
            check_metrics(self.task, **{f"rows.{number}.test": row["test"], f"rows.{number}.val": row["val"]})
            if row["test"].keys() != first["test"].keys():
                raise ValueError(f"rows.{number}.test and rows.0.test have different metrics")
            if row["bytes"]["mean"] is None or row["seconds"]["mean"] is None:
                raise ValueError(f"rows.{number}: bytes and seconds must have a mean")
        if len({row["label"] for row in self.rows}) < len(self.rows):
            raise ValueError("rows: two rows have one label")
        return self

    def to_json(self) -> JsonObject:
        """Build the content of comparison.json.

        Returns:
            The content, without NaN.
        """
        content = self.model_dump(by_alias=True, exclude={"folder"})
        return files.plain_object({**content, "warnings": [each.to_json() for each in self.warnings]})

    @property
    def warnings(self) -> list[ResultWarning]:
        """What looks wrong with the table and with the runs of its rows."""
        chosen_by = {row.get("selected_by") for row in self.rows}
        # Rows that were selected by different metrics are compared by the task's own one.
        metric = chosen_by.pop() if len(chosen_by) == 1 else None
        return check_comparison(self.task, metric or get_task(self.task).metric, self.rows)

    def table(self) -> "Table":
        """Lay the rows out for a screen.

        Returns:
            A table that fits 80 columns; long labels are broken.
        """
        from rich.table import Table

        table = Table(title=markup(self._title()), caption=markup(self._caption()), caption_justify="left")
        error = get_task(self.task).error
        label, *columns = self._columns()
        # Only labels are broken where the screen is narrow: numbers stay whole. Errors, which are longer, may
        # have their deviation below them.
        table.add_column(label, overflow="fold", min_width=6 if error else None)
        for column in columns:
            is_metric = column not in _NO_METRICS
            table.add_column(column, justify="right", no_wrap=not (error and is_metric))
        for row in self._cells():
            table.add_row(*map(markup, row))
        return table

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame.

        Returns:
            A row for each row of the table: label, method, ``<metric>.mean`` and ``<metric>.std`` (the sample
            standard deviation over seeds) of every test metric, and the mean bytes and seconds of a run.

        Raises:
            InputError: pandas is not installed.
        """
        return to_pandas(self._numbers())

    def to_csv(self, path: str | Path | None = None) -> str | None:
        """Write the numbers of `to_frame` as CSV.

        Args:
            path: The new file; None to return the text.

        Returns:
            The text, if `path` is None.

        Raises:
            InputError: The file is there already, or cannot be written.
        """
        if path is None:
            return csv_of(self._numbers()).decode()
        write_table(Path(path), self._numbers())
        return None

    def to_latex(self) -> str:
        """Write the table as LaTeX, with the rules of the package booktabs.

        Returns:
            A tabular with the cells of `table`; every text is escaped.
        """
        return latex_table(self._columns(), self._cells())

    def plot(self, metric: str | None = None) -> "Figure":
        """Draw a test metric of every row, with one sample standard deviation over seeds.

        Args:
            metric: A metric of the rows, as in "loss"; None for the one that ranks them.

        Returns:
            A figure of matplotlib.

        Raises:
            InputError: The rows do not have the metric.
        """
        figure: Figure = load_object("graphfed.report.plots:draw_comparison")(self, metric)
        return figure

    def _repr_html_(self) -> str:
        return html_table(self._columns(), self._cells(), f"{self._title()}\n{self._caption()}")

    def _numbers(self) -> "pa.Table":
        """Return the content of `to_frame`."""
        import pyarrow as pa

        def numbers(row: ComparedRow) -> JsonObject:
            tested = {
                name: number
                for metric, found in row["test"].items()
                for name, number in ((f"{metric}.mean", found["mean"]), (f"{metric}.std", found["std"]))
            }
            costs = {"bytes": row["bytes"]["mean"], "seconds": row["seconds"]["mean"]}
            return {"label": row["label"], "method": row["method"], **tested, **costs}

        return pa.Table.from_pylist([numbers(row) for row in self.rows])

    def _title(self) -> str:
        seeds = ", ".join(str(seed) for seed in self.seeds)
        title = f"{self.dataset}: {self.clients} clients, {self.partition}, seeds {seeds}"
        lengths = self._lengths()
        return title if len(lengths) > 1 else f"{title}; {lengths[0]} rounds"

    def _lengths(self) -> list[int]:
        """Return the numbers of rounds of all runs, each once."""
        return sorted({rounds for row in self.rows for rounds in row["rounds"]})

    def _has_pooled(self) -> bool:
        return any(row.get("test_pooled") for row in self.rows)

    def _columns(self) -> list[str]:
        """Return the names of the table's columns."""
        metrics = _table_metrics(self.task, self.rows)
        names = [COLUMNS.get(metric, metric.replace("_", " ")) for metric in metrics]
        pooled = ["pooled"] if self._has_pooled() else []
        rounds = ["rounds"] if len(self._lengths()) > 1 else []
        return ["method", *names, *pooled, *rounds, "bytes", "time"]

    def _cells(self) -> list[list[str]]:
        """Return the texts of the table's cells, row by row."""
        metrics, error = _table_metrics(self.task, self.rows), get_task(self.task).error
        doubted, lines = self._doubted(), []
        for row in self.rows:
            cells = [spread(row["test"].get(metric), error=error) for metric in metrics]
            if self._has_pooled():
                cells.append(spread(row.get("test_pooled", {}).get(metrics[0])))
            if len(self._lengths()) > 1:
                rounds = sorted(set(row["rounds"]))
                cells.append(str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}-{rounds[-1]}")
            cells.append(human_bytes(row["bytes"]["mean"] or 0.0))
            cells.append(human_seconds(row["seconds"]["mean"] or 0.0))
            marks = ("*" if self._own_settings(row) else "") + ("!" if row["label"] in doubted else "")
            lines.append([row["label"] + marks, *cells])
        return lines

    def __str__(self) -> str:
        """Return the table as text, 80 columns wide."""
        import io

        from rich.console import Console

        page = io.StringIO()
        Console(file=page, width=80, emoji=False).print(self.table())
        return page.getvalue().rstrip()

    def _shared_settings(self) -> JsonObject:
        """Return the settings that differ from the defaults in every row alike."""
        first, *others = (row["changed_settings"] for row in self.rows)
        return {k: v for k, v in first.items() if all(row.get(k, _ABSENT) == v for row in others)}

    def _own_settings(self, row: ComparedRow) -> JsonObject:
        """Return the settings of a row that differ from the defaults and are not shared by all rows, and
        those that differ from the values of most rows, because defaults differ between methods.
        """
        shared = self._shared_settings()
        own = {key: value for key, value in row["changed_settings"].items() if key not in shared}
        return own | unequal_settings(self.rows).get(row["label"], {})

    def _doubted(self) -> dict[str, list[str]]:
        """Return by row what looks wrong with it, in a few words each. Unequal settings have a mark of
        their own.
        """
        found: dict[str, list[str]] = {}
        for warning in self.warnings:
            for label in warning.rows if warning.code != "unequal_settings" else ():
                found.setdefault(label, []).append(TITLES[warning.code])
        return found

    def _caption(self) -> str:
        """Return the lines below the table."""
        unit = "mape in percent" if get_task(self.task).error else "percent"
        lines = [
            f"test {get_task(self.task).scored}, {unit}: mean ± sample standard deviation over seeds",
            "bytes, time: mean of a run",
        ]
        shown = _table_metrics(self.task, self.rows)
        if get_task(self.task).chooses_headline:
            lines[1:1] = [RANK_NOTE[metric] for metric in shown if metric in RANK_NOTE]
        if AS_READ in shown:
            lines[1:1] = ["rmse as read: what stands in the place of a missing reading counts as a reading"]
        if self._has_pooled():
            lines.insert(len(lines) - 1, "pooled: the same weights on the whole graph, which no client has")
        if self.added:
            lines.append(f"added for reference: {', '.join(self.added)}")
        if self.missing:
            lines.append(f"reference rows missing here: {', '.join(self.missing)}")
        shared = self._shared_settings()
        if shared:
            lines.append(f"every row differs from the default settings in {settings_text(shared)}")
        own = {row["label"]: found for row in self.rows if (found := self._own_settings(row))}
        if own:
            lines.append("* training settings that not all rows have, so compare with care:")
            lines += [f"* {label}: {settings_text(found)}" for label, found in own.items()]
        lines += [f"! {label}: {', '.join(titles)}" for label, titles in self._doubted().items()]
        return "\n".join(lines)


def _table_metrics(task: str, rows: Sequence[ComparedRow]) -> list[str]:
    """Return the names of the metrics that a table shows.

    Of the errors with missing readings it shows one, if any are missing. If a method next to the references
    has models of the clients' own, the mean over clients takes the second place.
    """
    if get_task(task).chooses_headline:
        metrics = headline(task, rows[0], rows[0]["test"])
        others = [METHODS.find(row["method"]) for row in rows if row["method"] not in REFERENCES[task]]
        personal = any(method is not None and method.personal for method in others)
        return [metrics[0], CLIENT_ACCURACY] if personal and CLIENT_ACCURACY in rows[0]["test"] else metrics
    metrics = [name for name in rows[0]["test"] if name != "loss"]
    if not get_task(task).error:
        return metrics
    missing = any(row["test"][AS_READ]["mean"] != row["test"][get_task(task).metric]["mean"] for row in rows)
    return [name for name in metrics if not name.endswith("_as_read") or (missing and name == AS_READ)]


def comparison_in(folder: Path) -> Comparison:
    """Read a finished comparison."""
    content = files.read_json(folder / "comparison.json", Comparison)
    return Comparison.model_validate({**content, "folder": folder})


def comparison_of(results: Iterable[Result | str | Path]) -> Comparison:
    """Make the table of finished runs. Runs that differ in the seed alone share a row.

    It raises InputError if runs did different tasks, had different data, splits or partitions for one seed
    (the message has the two hashes), rows have different seeds, or a run is given twice.
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
        if odd := result.test.keys() ^ finished[0].test.keys():
            one, other = (each.folder or each.method for each in (finished[0], result))
            raise InputError(
                f"{one} and {other} have different test metrics ({', '.join(map(shown, sorted(odd)))}); one "
                "table has the same metrics in every row"
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
    return make_comparison(rows, missing=tuple(name for name in references if name not in methods))


def _settings_key(result: Result) -> str:
    # `training` also has the settings at their defaults, which another version may have changed.
    return json.dumps(
        [result.details.get(key, {}) for key in ("changed_settings", "training")], sort_keys=True
    )


def make_comparison(
    results: Mapping[str, Mapping[int, Result]],
    *,
    added: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
    folder: Path | None = None,
) -> Comparison:
    """Make the table of results by label and seed."""
    first = next(iter(next(iter(results.values())).values()))
    rows = tuple(_row(label, [row[seed] for seed in sorted(row)]) for label, row in results.items())
    seeds = tuple(rows[0]["seeds"])
    return Comparison(
        dataset=first.dataset,
        task=first.task,
        clients=first.clients,
        partition=first.partition,
        seeds=seeds,
        references_added=added,
        references_missing=missing,
        rows=rows,
        folder=folder,
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
        "warnings": [
            {"seed": r.seed, "code": found["code"], "text": found["text"]}
            for r in results
            for found in r.details.get("warnings", ())
        ],
        "folders": [None if r.folder is None else str(r.folder) for r in results],
    }


# ---- tables that look wrong --------------------------------------------------------------------------------


def check_comparison(task: str, metric: str, rows: Sequence[ComparedRow]) -> list[ResultWarning]:
    """Return what looks wrong with a table: with rows compared to each other, then with each row's runs."""
    found = [*_pooled_below_alone(task, metric, rows), *_above_last_value(task, metric, rows)]
    unequal = unequal_settings(rows)
    if unequal:
        listed = "; ".join(
            f"{label}: {', '.join(f'{key}={value}' for key, value in settings.items())}"
            for label, settings in unequal.items()
        )
        found.append(
            ResultWarning(
                "unequal_settings",
                f"Rows differ in training settings that others have too ({listed}), so the table compares "
                "settings as well as methods. Give every row the same ones, as in --set lr=0.01.",
                tuple(unequal),
            )
        )
    return [*found, *_runs_of_rows(rows)]


#: Settings of how sums are protected: they change no result, up to rounding.
_NOT_TRAINING = ("aggregation", "protocols")


def unequal_settings(rows: Iterable[ComparedRow]) -> dict[str, JsonObject]:
    """Return, by label, the settings that make the rows' training unequal.

    A setting that two rows have with different values is listed for every row whose value is not the usual
    one: that of most rows, of equally many the value that occurs first. Rows with usual values only are left
    out.
    """
    rows = list(rows)
    values: dict[str, list[object]] = {}
    for row in rows:
        for key, value in row.get("training", {}).items():
            if key not in _NOT_TRAINING:
                values.setdefault(key, []).append(value)
    # Of equally frequent values, max returns the first one.
    usual = {key: max(those, key=those.count) for key, those in values.items()}
    found = {}
    for row in rows:
        own = {
            key: value
            for key, value in row.get("training", {}).items()
            if key in usual and value != usual[key]
        }
        if own:
            found[row["label"]] = own
    return found


def _pooled_below_alone(task: str, metric: str, rows: Sequence[ComparedRow]) -> Iterator[ResultWarning]:
    """Warn if training on all data is worse than every client alone.

    Any difference counts, because the reader must then decide whether the reference can be trusted. The text
    has the spread.
    """
    known = {row["method"]: (row, mean) for row in rows if (mean := _mean(row, metric)) is not None}
    for pooled, alone in POOLED_AND_ALONE:
        if pooled not in known or alone not in known:
            continue
        (upper, pooled_mean), (lower, alone_mean) = known[pooled], known[alone]
        if get_task(task).better(alone_mean, pooled_mean):
            spread = _spread(upper, lower, metric, abs(pooled_mean - alone_mean))
            yield ResultWarning(
                "central_below_isolated",
                f"{upper['label']}, which trains on all data together, has a worse mean test "
                f"{metric.replace('_', ' ')} ({pooled_mean:.4g}) than {lower['label']} "
                f"({alone_mean:.4g}), where every client trains alone{spread}. More data should "
                "not hurt: the settings probably do not suit this graph. Try another learning rate, "
                "optimiser or feature scaling, or more rounds, before comparing methods.",
                (upper["label"],),
            )


def _above_last_value(task: str, metric: str, rows: Sequence[ComparedRow]) -> Iterator[ResultWarning]:
    """Warn if a trained forecast has a larger error than repeating the last reading."""
    reference = next((row for row in rows if row["method"] == REPEATS_LAST), None)
    level = None if reference is None else _mean(reference, metric)
    if reference is None or level is None or not get_task(task).error:
        return
    for row in rows:
        mean = _mean(row, metric)
        if row["method"] not in UNTRAINED and mean is not None and mean >= level:
            yield ResultWarning(
                "worse_than_last_value",
                f"{row['label']} has a test {metric.replace('_', ' ')} of {mean:.4g}, and repeating the last "
                f"reading has {level:.4g}: nothing useful was learned. Train for more rounds or with another "
                "learning rate.",
                (row["label"],),
            )


def _runs_of_rows(rows: Sequence[ComparedRow]) -> Iterator[ResultWarning]:
    """Return the warnings of a row's runs, one for each code, with the text of the first run."""
    for row in rows:
        by_code: dict[str, list[RowWarning]] = {}
        for warning in row.get("warnings", ()):
            by_code.setdefault(warning["code"], []).append(warning)
        for code, those in by_code.items():
            seeds = ", ".join(str(warning["seed"]) for warning in those)
            plural = "s" if len(those) > 1 else ""
            text = f"{row['label']}, seed{plural} {seeds} of {len(row['seeds'])}: {those[0]['text']}"
            yield ResultWarning(code, text, (row["label"],))


def _mean(row: ComparedRow, metric: str) -> float | None:
    """Return the mean of a test metric over seeds; None if a seed has none."""
    found = row["test"].get(metric)
    return None if found is None else found["mean"]


def _spread(upper: ComparedRow, lower: ComparedRow, metric: str, difference: float) -> str:
    """Return how the difference of two rows compares with their spread over seeds."""
    deviations = [std for row in (upper, lower) if (std := row["test"][metric]["std"]) is not None]
    if len(deviations) < 2:
        return "; with one seed the spread is not known"
    # The standard error of the difference of two independent means; both rows have the same seeds.
    error = math.hypot(*deviations) / math.sqrt(len(upper["seeds"]))
    within = "within" if difference <= 2 * error else "beyond"
    return f" ({within} two standard errors over {len(upper['seeds'])} seeds)"

"""The table of a comparison: what `compare` returns and what its folder holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphfed.files import JsonObject
from graphfed.methods.references import REFERENCES
from graphfed.methods.registry import METHODS
from graphfed.runs import folder as files
from graphfed.runs.diagnostics import TITLES, ResultWarning
from graphfed.runs.progress import human_bytes, human_seconds
from graphfed.studies.folder_schema import ComparisonFile
from graphfed.studies.plan import ComparedRow, settings_text, spread
from graphfed.studies.table_checks import check_comparison, unequal_settings
from graphfed.tasks.headline import CLIENT_ACCURACY, COLUMNS, RANK_NOTE, headline
from graphfed.tasks.registry import get_task
from graphfed.terminal import markup

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["AS_READ", "Comparison", "comparison_in", "table_metrics"]


#: An error over all readings, the missing ones among them.
AS_READ = "rmse_as_read"


def table_metrics(task: str, rows: Sequence[ComparedRow]) -> list[str]:
    """Return the metrics that a table shows. Of the errors with missing readings it shows one, if any are
    missing. If a method next to the references has models of the clients' own, the mean over clients takes
    the second place.

    Args:
        task: The name of the task.
        rows: The rows of the table.

    Returns:
        The names of the metrics.
    """
    if get_task(task).headline is not None:
        metrics = headline(task, rows[0], rows[0]["test"])
        others = [METHODS.find(row["method"]) for row in rows if row["method"] not in REFERENCES[task]]
        personal = any(method is not None and method.personal for method in others)
        return [metrics[0], CLIENT_ACCURACY] if personal and CLIENT_ACCURACY in rows[0]["test"] else metrics
    metrics = [name for name in rows[0]["test"] if name != "loss"]
    if not get_task(task).error:
        return metrics
    missing = any(row["test"][AS_READ]["mean"] != row["test"][get_task(task).metric]["mean"] for row in rows)
    return [name for name in metrics if not name.endswith("_as_read") or (missing and name == AS_READ)]


@dataclass(frozen=True)
class Comparison:
    """A finished table.

    Attributes:
        dataset: The name of the data.
        task: The name of the task.
        clients: The number of clients.
        partition: The name of the partition.
        seeds: The seeds of every row.
        rows: A row for each method with its settings.
        added: The reference rows that were added.
        missing: The reference rows that are missing (only from `comparison_of`).
        folder: The folder of the comparison; None if nothing was written.
    """

    dataset: str
    task: str
    clients: int
    partition: str
    seeds: tuple[int, ...]
    rows: tuple[ComparedRow, ...]
    added: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    folder: Path | None = None

    def to_json(self) -> JsonObject:
        """Return the comparison as plain data.

        Returns:
            The content of comparison.json.
        """
        return files.plain_object(
            {
                "dataset": self.dataset,
                "task": self.task,
                "clients": self.clients,
                "partition": self.partition,
                "seeds": self.seeds,
                "references_added": self.added,
                "references_missing": self.missing,
                "rows": self.rows,
                "warnings": [warning.to_json() for warning in self.warnings],
            }
        )

    @property
    def warnings(self) -> list[ResultWarning]:
        """What looks wrong with the table and with the runs of its rows."""
        chosen_by = {row.get("selected_by") for row in self.rows}
        metric = chosen_by.pop() if len(chosen_by) == 1 else None
        return check_comparison(self.task, metric or get_task(self.task).metric, self.rows)

    def table(self) -> "Table":
        """Return the rows as a table for a screen; it fits 80 columns, and long labels are broken.

        Returns:
            A rich table.
        """
        from rich.table import Table

        seeds = ", ".join(str(seed) for seed in self.seeds)
        lengths = sorted({rounds for row in self.rows for rounds in row["rounds"]})
        differ = len(lengths) > 1
        table = Table(
            title=markup(
                f"{self.dataset}: {self.clients} clients, {self.partition}, seeds {seeds}"
                + ("" if differ else f"; {lengths[0]} rounds")
            ),
            caption=markup(self._caption()),
            caption_justify="left",
        )
        metrics, error = table_metrics(self.task, self.rows), get_task(self.task).error
        # Only labels are broken where the screen is narrow: numbers stay whole. Errors, which are longer, may
        # have their deviation below them.
        table.add_column("method", overflow="fold", min_width=6 if error else None)
        for metric in metrics:
            name = COLUMNS.get(metric, metric.replace("_", " "))
            table.add_column(name, justify="right", no_wrap=not error)
        pooled = any(row["test_pooled"] for row in self.rows)
        doubted = self._doubted()
        if pooled:
            table.add_column("pooled", justify="right", no_wrap=True)
        for name in (*(("rounds",) if differ else ()), "bytes", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            cells = [spread(row["test"].get(metric), error=error) for metric in metrics]
            if pooled:
                cells.append(spread(row["test_pooled"].get(metrics[0])))
            if differ:
                rounds = sorted(set(row["rounds"]))
                cells.append(str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}-{rounds[-1]}")
            cells.append(human_bytes(row["bytes"]["mean"] or 0.0))
            cells.append(human_seconds(row["seconds"]["mean"] or 0.0))
            marks = ("*" if self._own_settings(row) else "") + ("!" if row["label"] in doubted else "")
            table.add_row(markup(row["label"]) + marks, *cells)
        return table

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
        shown = table_metrics(self.task, self.rows)
        if get_task(self.task).headline is not None:
            lines[1:1] = [RANK_NOTE[metric] for metric in shown if metric in RANK_NOTE]
        if AS_READ in shown:
            lines[1:1] = ["rmse as read: what stands in the place of a missing reading counts as a reading"]
        if any(row["test_pooled"] for row in self.rows):
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


def comparison_in(folder: Path) -> Comparison:
    """Read a finished comparison.

    Args:
        folder: Its folder.

    Returns:
        The table.

    Raises:
        InputError: comparison.json is missing or damaged.
    """
    content = files.read_json(folder / "comparison.json", ComparisonFile)
    return Comparison(
        dataset=content["dataset"],
        task=content["task"],
        clients=content["clients"],
        partition=content["partition"],
        seeds=tuple(content["seeds"]),
        rows=tuple(content["rows"]),
        added=tuple(content["references_added"]),
        missing=tuple(content["references_missing"]),
        folder=folder,
    )


#: No value of a setting.
_ABSENT = object()

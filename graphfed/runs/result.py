"""What a run found, as a program or a notebook uses it."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import ConfigDict, PrivateAttr, model_validator

from graphfed.drawing.tables import html_table
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.loading import load_object
from graphfed.runs import folder as files
from graphfed.runs import folder_schema as schema
from graphfed.runs.folder_schema import FileModel
from graphfed.runs.progress import human_bytes, human_seconds
from graphfed.terminal import printable

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.drawing.canvas import Figure
    from graphfed.methods.base import Method, Task
    from graphfed.runs.trained_model import GraphModel


@dataclass(frozen=True)
class Unwritten:
    """What the files of a run would have, for a run that writes none.

    Attributes:
        history: The lines of metrics.jsonl.
        predictions: Makes the tables of predictions.parquet.
        weights: The arrays of model.safetensors.
        config: The settings of the method.
    """

    # Results are equal if what they say is equal.
    history: list[JsonObject] = field(compare=False)
    predictions: "Callable[[], Iterable[pa.Table]]" = field(compare=False)
    weights: Mapping[str, np.ndarray] = field(compare=False)
    method: "Method" = field(compare=False)
    task: "Task" = field(compare=False)
    config: Any = field(compare=False)


class Result(FileModel):
    """What a run found: the content of result.json, and what the other files of the run have.

    Attributes:
        best_round: The round with the best validation metric; None if every client selects its own round.
        val: Validation metrics at the best round, over all nodes of all clients.
        test: Test metrics at the best round, over all nodes of all clients.
        seconds: The time of set-up, training and all, and the mean time of a round.
        bytes: Payload bytes of set-up and training.
        privacy: The privacy statement that follows from the ledger.
        peak_rss_mb: The largest memory of a process of the run, in MB of 10^6 bytes.
        hashes: Of the data, the split and the partition.
        details: What else the run found (docs/runs.md).
        folder: The folder with the files of the run; None if nothing was written.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    method: str
    dataset: str
    task: str
    clients: schema.Positive
    partition: str
    rounds: schema.Count
    best_round: schema.Count | None
    seed: schema.Integer
    runtime: str
    val: schema.Metrics
    test: schema.Metrics
    seconds: Annotated[dict[str, float], schema.Form(schema.Seconds)]
    bytes: Annotated[JsonObject, schema.Form(schema.SentBytes)]
    privacy: Annotated[JsonObject, schema.Form(schema.Privacy)]
    peak_rss_mb: schema.Real
    hashes: Annotated[dict[str, str], schema.Form(schema.Hashes)]
    versions: dict[str, str]
    details: Annotated[JsonObject, schema.Form(schema.Details)]
    folder: Path | None = None
    _unwritten: Unwritten | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check_metrics(self) -> "Result":
        schema.check_metrics(self.task, val=self.val, test=self.test)
        return self

    def to_json(self) -> JsonObject:
        """Return the content of result.json.

        Returns:
            Plain numbers; None for a number that is not finite.
        """
        return files.plain_object(self.model_dump(exclude={"folder"}))

    @staticmethod
    def read(folder: str | Path) -> "Result":
        """Read the result in the folder of a run.

        Args:
            folder: The folder of a run that has ended.

        Returns:
            The result.

        Raises:
            InputError: There is no usable result.json.
        """
        content = files.read_json(Path(folder) / "result.json", Result)
        return Result.model_validate({**content, "folder": Path(folder)})

    def keep(self, unwritten: Unwritten) -> "Result":
        """Keep in memory what a run found that writes no files.

        Args:
            unwritten: What its files would have.

        Returns:
            This result.
        """
        self._unwritten = unwritten
        return self

    # ---- what the run found ------------------------------------------------------------------------------

    @cached_property
    def model(self) -> "GraphModel":
        """The trained network, a PyTorch module: ``model(x, edge_index)`` returns logits [N, C]."""
        from graphfed.runs.trained_model import model_in, trained_model

        found = self._found_in_memory
        if found is None:
            assert self.folder is not None
            return model_in(self.folder)
        return trained_model(found.method, found.task, found.config, found.weights)

    @cached_property
    def history(self) -> list[JsonObject]:
        """The lines of metrics.jsonl: ``round``, ``val`` (None if not scored), ``bytes`` and ``seconds``."""
        found = self._found_in_memory
        if found is not None:
            return found.history
        assert self.folder is not None
        return files.read_lines(self.folder / "metrics.jsonl", schema.MetricsLine)

    @cached_property
    def predictions(self) -> "pa.Table":
        """The table of predictions.parquet: a row for each node, scored pair, or sensor and window."""
        import pyarrow as pa

        found = self._found_in_memory
        if found is not None:
            return pa.concat_tables(found.predictions())
        assert self.folder is not None
        return files.read_predictions(self.folder)

    @property
    def _found_in_memory(self) -> Unwritten | None:
        """What the run has found, if it wrote no files."""
        if self.folder is None and self._unwritten is None:
            raise InputError(
                "this result has neither a folder nor what the run found; read it from the folder of the run "
                "(Result.read), or make the run with graphfed.run"
            )
        return self._unwritten

    # ---- for notebooks -----------------------------------------------------------------------------------

    def to_frame(self) -> Any:
        """Return the history as a pandas DataFrame.

        Returns:
            A row for each evaluated round: round, val_<metric> for each metric, bytes and seconds.

        Raises:
            InputError: pandas is not installed.
        """
        import pyarrow as pa

        rows = [
            {
                "round": line["round"],
                **{f"val_{name}": value for name, value in line["val"].items()},
                "bytes": line["bytes"],
                "seconds": line["seconds"],
                **line.get("facts", {}),
            }
            for line in self.history
            if line["val"] is not None
        ]
        return to_pandas(pa.Table.from_pylist(rows))

    def plot(self, metric: str | None = None) -> "Figure":
        """Draw a validation metric by round.

        Args:
            metric: A metric of `history`, as in "loss"; None for the one that the report draws.

        Returns:
            A figure of matplotlib, as in ``result.plot().savefig("curve.png")``.

        Raises:
            InputError: No round has the metric.
        """
        figure: Figure = load_object("graphfed.report.plots:draw_history")(self, metric)
        return figure

    def __repr__(self) -> str:
        """Say in at most eight lines what ran and what it found."""
        return "\n".join(f"{name}: {text}" if name else text for name, text in self._summary())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        (_, title), *rows = self._summary()
        return html_table(("", ""), rows, title)

    def _summary(self) -> list[tuple[str, str]]:
        """Return what the run found in at most eight named texts."""

        def metrics(found: Mapping[str, float | None]) -> str:
            return ", ".join(
                f"{k} {'-' if v is None else format(v, '.4g')}" for k, v in list(found.items())[:6]
            )

        titles = [str(warning.get("text", "")) for warning in self.details.get("warnings", [])]
        best = "each client its own" if self.best_round is None else self.best_round
        summary = [
            ("", f"Result of {self.method} on {self.dataset}: {self.task}, seed {self.seed}"),
            ("clients", f"{self.clients} ({self.partition}), runtime {self.runtime}"),
            ("test", metrics(self.test)),
            ("validation", metrics(self.val)),
            ("rounds", f"{self.rounds}, best round: {best}, {human_seconds(self.seconds['total'])}"),
            ("sent", human_bytes(self.bytes["total"])),
            ("folder", "nothing was written" if self.folder is None else str(self.folder)),
            *([("warnings", f"{len(titles)}, the first: {titles[0]}")] if titles else []),
        ]
        # A folder may be anybody's: each text is one line, which a terminal only shows.
        return [(name, printable(" ".join(text.split()))) for name, text in summary]


def to_pandas(table: "pa.Table") -> Any:
    """Convert a table to a pandas DataFrame; InputError if pandas is not installed."""
    try:
        importlib.import_module("pandas")
    except ModuleNotFoundError:
        raise InputError(
            "a DataFrame needs pandas, which is not installed; type: pip install pandas (without it, "
            ".history and .rows have the same numbers)"
        ) from None
    return table.to_pandas()

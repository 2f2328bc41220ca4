"""Reads the folders of runs and comparisons that a report shows.

The files are checked as input: anybody may have written them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphfed.errors import InputError
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.plugins import check_plugins
from graphfed.runs.folder import CLIENT_STATISTICS, check_there, read_json, read_lines, read_table
from graphfed.runs.folder_schema import (
    AuditFile,
    DeployedManifest,
    LedgerFile,
    MetricsLine,
    RunManifest,
    Transfer,
)
from graphfed.runs.overview_schema import GraphOverview, SensorOverview
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import Result
from graphfed.studies.comparison import Comparison, comparison_in, comparison_of
from graphfed.tasks.registry import task_or_default
from graphfed.terminal import say

__all__ = ["Run", "Subject", "Transfer", "read_subject"]


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        manifest: What was asked, and with which versions.
        client_accuracy: Test accuracy and number of test nodes by client; empty if the task does not classify
            nodes, or the predictions stayed at the sites of a deployment.
        overview: The graph or the sensors; None if the folder has no overview.json.
        audit: What attacks found; None if the folder has no audit.json.
        statistics: Per-client statistics, columns [K] by name, `client` among them; None if the folder has no
            clients.parquet.
    """

    folder: Path
    result: Result
    manifest: RunManifest | DeployedManifest
    history: Sequence[MetricsLine]
    entries: Sequence[Transfer]
    client_accuracy: Mapping[str, tuple[float, int]]
    overview: GraphOverview | SensorOverview | None
    audit: AuditFile | None
    statistics: Mapping[str, np.ndarray] | None = None

    @property
    def deployed(self) -> bool:
        """Whether the run was a deployment, whose sites kept their data on machines of their own."""
        return isinstance(self.manifest, DeployedManifest)


@dataclass(frozen=True)
class Subject:
    """What a report is about: the runs of each row, one for every seed, and their comparison, if any."""

    rows: Mapping[str, Sequence[Run]]
    comparison: Comparison | None

    @property
    def first(self) -> Run:
        """The run whose data and partition are shown."""
        return next(iter(self.rows.values()))[0]


def read_subject(folders: Sequence[str | Path]) -> Subject:
    """Read a run, a comparison, or several runs as one comparison.

    Raises:
        InputError: A folder holds neither a run nor a comparison, its run has not ended, a file is damaged,
            or several runs differ in data, split or partition.
    """
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise InputError("no folder is given; name the folder of a run or a comparison")
    if len(paths) > 1:
        return _of_runs(paths)
    (folder,) = paths
    check_there(folder)
    if (folder / "result.json").exists():
        run = _read_run(folder)
        return Subject({run.result.method: [run]}, None)
    if not (folder / "comparison.json").exists():
        if (folder / "manifest.json").exists():
            raise InputError(f"{folder} has not ended; continue it with: graphfed resume {folder}")
        raise InputError(f"{folder} is not the folder of a run or a comparison")
    comparison = comparison_in(folder)
    if any(None in row["folders"] for row in comparison.rows):
        raise InputError(
            f"{folder / 'comparison.json'} does not name the folders of its runs; run the comparison again"
        )
    # By name, because the folder may have been moved since.
    rows = {row["label"]: [folder / Path(f).name for f in row["folders"] if f] for row in comparison.rows}
    return Subject({label: [_read_run(path) for path in those] for label, those in rows.items()}, comparison)


def _of_runs(paths: Sequence[Path]) -> Subject:
    comparison = comparison_of(paths)
    # `comparison_of` has checked that the runs belong together; it names their folders as given.
    runs = {str(path): _read_run(path) for path in paths}
    rows = {row["label"]: [runs[folder] for folder in row["folders"] if folder] for row in comparison.rows}
    return Subject(rows, comparison)


def _read_run(folder: Path) -> Run:
    result = Result.read(folder)
    manifest = read_manifest(folder)
    if "config" not in manifest:
        raise InputError(f"{folder / 'manifest.json'} is not the manifest of a run: it has no 'config'")
    try:
        check_plugins(manifest["config"].get("plugins", ()), folder)
    except InputError as error:
        say(f"warning: {error}; until then the report cannot describe the messages of its method")
    kind = DeployedManifest if "deployment" in manifest else RunManifest
    # The predictions of a deployed run are at its sites.
    classified = result.task == CLASSIFICATION and kind is RunManifest
    lines = read_lines(folder / "metrics.jsonl", MetricsLine)
    entries = read_entries(folder / "ledger.json")
    # The report allocates and indexes by rounds, so the three files must agree on them.
    last = max((int(number) for entry in entries for number in entry.rounds), default=0)
    if len(lines) != result.rounds or last > result.rounds:
        raise InputError(
            f"{folder} is damaged: result.json has {result.rounds} rounds, metrics.jsonl has {len(lines)}, "
            f"and the last round in ledger.json is {last}; run again"
        )
    return Run(
        folder,
        result,
        kind.model_validate(manifest),
        [MetricsLine.model_validate(line) for line in lines],
        entries,
        _client_accuracy(folder) if classified else {},
        _overview(folder, result.task),
        _audit(folder),
        _client_statistics(folder, result.clients),
    )


def read_entries(path: Path) -> list[Transfer]:
    """Read the entries of a ledger."""
    return LedgerFile.model_validate(read_json(path, LedgerFile)).entries


def _overview(folder: Path, task: str) -> GraphOverview | SensorOverview | None:
    path = folder / "overview.json"
    if not path.exists():
        return None
    kind = SensorOverview if task_or_default(task).data.name == "sensors" else GraphOverview
    return kind.model_validate(read_json(path, kind))


def _client_statistics(folder: Path, clients: int) -> Mapping[str, np.ndarray] | None:
    path = folder / CLIENT_STATISTICS
    if not path.exists():
        return None
    table = read_table(path)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    # The file is input: another table of this name would give wrong figures.
    numbers = all(column.dtype.kind in "iuf" for column in columns.values())
    if not numbers or not np.array_equal(columns.get("client", ()), np.arange(clients)):
        raise InputError(
            f"{path} is damaged: expected a row of numbers for each of {clients} clients; run again"
        )
    return columns


def _audit(folder: Path) -> AuditFile | None:
    path = folder / "audit.json"
    if not path.exists():
        return None
    try:
        return AuditFile.model_validate(read_json(path, AuditFile))
    except InputError as error:
        raise InputError(f"{error}; write it again with: graphfed audit {folder}") from None


def _client_accuracy(folder: Path) -> dict[str, tuple[float, int]]:
    import pyarrow.compute as pc

    path = folder / "predictions.parquet"
    kinds = {"split": "text", "label": "integer", "prediction": "integer", "client": "integer"}
    table = read_table(path, kinds, optional={"client_name": "text"})
    client = "client_name" if "client_name" in table.column_names else "client"
    # A method that trains on the pooled graph also predicts the nodes that no client has.
    table = table.filter(pc.and_(pc.equal(table["split"], "test"), pc.is_valid(table[client])))
    # A label or prediction that is not known is nan, and equal to nothing.
    hit = table["label"].to_numpy() == table["prediction"].to_numpy()
    clients = table[client].to_numpy().astype(str)
    # Clients without test nodes have no accuracy and are left out.
    names, index = np.unique(clients, return_inverse=True)
    count, hits = np.bincount(index, minlength=len(names)), np.bincount(index, hit, len(names))
    return {str(name): (float(h / c), int(c)) for name, h, c in zip(names, hits, count, strict=True)}

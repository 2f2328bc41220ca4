"""Folders of runs and comparisons -> what a report shows. The files are data, whoever wrote them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.errors import InputError
from graphfed.experiment.compare import Comparison, comparison_in, comparison_of
from graphfed.experiment.folder import ACCOUNTS, check_there, read_json
from graphfed.experiment.run import Result
from graphfed.methods.tasks import CLASSIFICATION

__all__ = ["Run", "Subject", "read_subject"]


@dataclass(frozen=True)
class Run:
    """One finished run. site_accuracy: site -> (test accuracy, test vertices), empty where no vertices are
    classified or predictions are elsewhere; accounts: what the clients say of themselves, columns [K] by
    name, `client` among them; overview, accounts, audit: None in a folder that has none."""

    folder: Path
    result: Result
    manifest: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    entries: Sequence[Mapping[str, Any]]
    site_accuracy: Mapping[str, tuple[float, int]]
    overview: Mapping[str, Any] | None
    audit: Mapping[str, Any] | None
    accounts: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True)
class Subject:
    """What a report is about: rows by label, each with a run for every seed; comparison: None for one run."""

    rows: Mapping[str, Sequence[Run]]
    comparison: Comparison | None

    @property
    def first(self) -> Run:
        """The run whose data and partition are shown."""
        return next(iter(self.rows.values()))[0]


def read_subject(folders: Sequence[str | Path]) -> Subject:
    """The run or the comparison in a folder, or the comparison of the runs in several.

    Raises InputError for a folder of neither, a run that has not ended, damaged files, and runs that do not
    share their data, split and partition."""
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise InputError("there is nothing to report on; name the folder of a run or a comparison")
    if len(paths) > 1:
        return _of_runs(paths)
    (folder,) = paths
    check_there(folder)
    if (folder / "result.json").exists():
        run = _read_run(folder)
        return Subject({run.result.method: [run]}, None)
    if not (folder / "comparison.json").exists():
        ended = "has not ended; go on with it: graphfed resume" if (folder / "manifest.json").exists() else ""
        fault = f"{ended} {folder}" if ended else "is not the folder of a run or a comparison"
        raise InputError(f"{folder} {fault}")
    comparison = comparison_in(folder)
    try:
        # By name, because the folder may have been moved since.
        rows = {str(row["label"]): [folder / Path(f).name for f in row["folders"]] for row in comparison.rows}
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / 'comparison.json'} is not a comparison: it lacks {error}") from None
    return Subject({label: [_read_run(path) for path in those] for label, those in rows.items()}, comparison)


def _of_runs(paths: Sequence[Path]) -> Subject:
    comparison = comparison_of(paths)
    runs = {str(path): _read_run(path) for path in paths}
    rows = {row["label"]: [runs[folder] for folder in row["folders"]] for row in comparison.rows}
    return Subject(rows, comparison)


def _read_run(folder: Path) -> Run:
    result = Result.read(folder)
    overview = read_json(folder / "overview.json") if (folder / "overview.json").exists() else None
    ledger = read_json(folder / "ledger.json")
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        history = [json.loads(line) for line in lines]
        entries = ledger["entries"]
    except OSError as error:
        raise InputError(f"{folder / 'metrics.jsonl'} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the files in {folder} are damaged ({type(error).__name__}: {error})") from None
    return Run(
        folder,
        result,
        read_json(folder / "manifest.json"),
        history,
        entries,
        _site_accuracy(folder) if result.task == CLASSIFICATION else {},
        overview,
        _audit(folder),
        _accounts(folder, result.clients),
    )


def _accounts(folder: Path, clients: int) -> Mapping[str, np.ndarray] | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / ACCOUNTS
    if not path.exists():
        return None
    try:
        table = pq.read_table(path)
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({str(error)[:200]})") from None
    numbers = all(column.dtype.kind in "iuf" for column in columns.values())
    if not numbers or not np.array_equal(columns.get("client", ()), np.arange(clients)):
        raise InputError(f"{path} is not what a run writes: a row of numbers for each of {clients} clients")
    return columns


#: What audit.json says of every check.
AUDITED = ("check", "tests", "attacker_sees", "result", "baseline", "verdict", "leaks")


def _audit(folder: Path) -> Mapping[str, Any] | None:
    path = folder / "audit.json"
    if not path.exists():
        return None
    content: Any = read_json(path)
    checks = content.get("checks") if isinstance(content, dict) else None
    whole = isinstance(checks, list) and all(
        isinstance(check, dict) and all(key in check for key in AUDITED) for check in checks
    )
    if not whole:
        raise InputError(
            f"{path} is not what 'graphfed audit' writes; make it again: graphfed audit {folder}"
        )
    return dict(content)


def _site_accuracy(folder: Path) -> dict[str, tuple[float, int]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "predictions.parquet"
    if "deployment" in read_json(folder / "manifest.json"):
        return {}  # they are at the sites
    try:
        file = pq.ParquetFile(path)
        named = "site_name" in file.schema_arrow.names
        columns = ["split", "label", "prediction", "site", *(["site_name"] if named else [])]
        table = file.read(columns=columns)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({str(error)[:200]})") from None
    test = np.array(table["split"].to_pylist()) == "test"
    hit = table["label"].to_numpy()[test] == table["prediction"].to_numpy()[test]
    sites = (table["site_name"] if named else table["site"]).to_numpy()[test].astype(str)
    names, index = np.unique(sites, return_inverse=True)
    count, hits = np.bincount(index, minlength=len(names)), np.bincount(index, hit, len(names))
    return {str(name): (float(h / c), int(c)) for name, h, c in zip(names, hits, count, strict=True)}

"""Send finished runs from their folders to a tracker, TensorBoard or MLflow (the extra `track`).

A run that the tracker already has is not written again, so this may be repeated.

    params    the run's config, flat: training.lr, partition_options.beta, ...
    metrics   val/<metric>, bytes, seconds for each round; test/<metric> at the best round
    tags      method, hashes of data, split and partition, graphfed.id
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from graphfed.errors import InputError, did_you_mean, how_to_install
from graphfed.files import writing
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.runs import folder as files
from graphfed.runs.folder_schema import MetricsLine
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import Result
from graphfed.tasks.registry import get_task

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["TRACKERS", "Point", "TrackedRun", "read_runs", "track"]

TRACKERS = ("tensorboard", "mlflow")
#: The experiment of MLflow that runs are put under.
EXPERIMENT = "graphfed"
#: The most metrics that MLflow takes in one call.
BATCH = 500
#: The most characters of a parameter.
MAX_TEXT = 500


@dataclass(frozen=True)
class Point:
    """One number of a run: at a round, at a time (seconds since 1970)."""

    tag: str
    value: float
    step: int
    time: float


@dataclass(frozen=True)
class TrackedRun:
    """A finished run as a tracker needs it.

    Attributes:
        folder: Where it is.
        id: Of what was asked and when, so that a copy of the folder is the same run.
        params: Its config.
        tags: Its method, hashes and id.
        points: Its metrics.
    """

    folder: Path
    id: str
    params: dict[str, object]
    tags: dict[str, str]
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """The name of the run for people and for a folder; two runs have different names."""
        return f"{self.folder.resolve().name}-{self.id[:8]}"


def track(
    folders: Sequence[str | Path], to: str, *, out: str | Path | None = None, uri: str | None = None
) -> list[tuple[TrackedRun, bool]]:
    """Send the finished runs in folders to a tracker.

    Args:
        folders: Folders of runs, and of comparisons, sweeps and reproductions, which stand for all runs in
            them.
        to: "tensorboard" or "mlflow".
        out: For TensorBoard: the folder for the events of all runs; None for runs/tensorboard.
        uri: For MLflow: its store, as in sqlite:///mlflow.db or http://127.0.0.1:5000; None for
            MLFLOW_TRACKING_URI.

    Returns:
        Each run, and whether it was new to the tracker.

    Raises:
        InputError: A folder holds no finished run, or the tracker is unknown, not installed or not usable.
    """
    if to not in TRACKERS:
        raise InputError(f"unknown tracker {to!r}; {did_you_mean(str(to), TRACKERS)}")
    runs = read_runs(folders)
    if to == "tensorboard":
        return [(run, _to_tensorboard(run, Path(out or "runs/tensorboard") / run.name)) for run in runs]
    where = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not where:
        raise InputError(
            "MLflow needs the address of its store; give --uri, as in sqlite:///mlflow.db, or set "
            "MLFLOW_TRACKING_URI"
        )
    return _to_mlflow(runs, where)


def read_runs(folders: Sequence[str | Path]) -> list[TrackedRun]:
    """Read every finished run in some folders.

    Args:
        folders: Folders of runs, comparisons, sweeps and reproductions.

    Returns:
        The runs, in the order of the folders.

    Raises:
        InputError: A folder has no finished run.
    """
    if not folders:
        raise InputError("no folder was given; name at least one run")
    found: list[TrackedRun] = []
    for folder in map(Path, folders):
        read_manifest(folder)
        ended = sorted(file for depth in ("", "*/", "*/*/") for file in folder.glob(f"{depth}result.json"))
        runs = [file.parent for file in ended if "config" in read_manifest(file.parent)]
        if not runs:
            raise InputError(f"no run in {folder} has ended; go on with it: graphfed resume {folder}")
        found += map(_read, runs)
    return found


def _read(folder: Path) -> TrackedRun:
    manifest, result = read_manifest(folder), Result.read(folder)
    started = datetime.fromisoformat(manifest["started"]).timestamp()
    asked = {key: manifest.get(key) for key in ("started", "config", "hashes")}
    identity = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    history = [
        MetricsLine.model_validate(line) for line in files.read_lines(folder / "metrics.jsonl", MetricsLine)
    ]
    points = [
        Point(tag, float(value), line.round, started + line.seconds)
        for line in history
        for tag, value in _values(line).items()
    ]
    step = result.best_round or result.rounds
    end = started + (history[-1].seconds if history else 0.0)
    points += [Point(tag, value, step, end) for tag, value in _named("test", result.test).items()]
    tags = {"method": result.method, "graphfed.id": identity}
    tags |= {f"hash.{what}": str(value) for what, value in manifest["hashes"].items()}
    return TrackedRun(folder, identity, dict(_flat(manifest["config"])), tags, tuple(points))


def _values(line: MetricsLine) -> dict[str, float]:
    return {**_named("val", line.val), "bytes": line.bytes, "seconds": line.seconds}


def _named(part: str, metrics: Mapping[str, float | None] | None) -> dict[str, float]:
    """Return the metrics of a part of the split that have a value, by their tags."""
    return {f"{part}/{name}": value for name, value in (metrics or {}).items() if value is not None}


def _flat(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Flatten a mapping: ``{"a": {"b": 1}}`` gives ``("a.b", 1)``."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _to_tensorboard(run: TrackedRun, place: Path) -> bool:
    """Write a folder of events, unless it exists; return whether it was written."""
    try:
        import tensorboard  # noqa: F401 (which torch's own module needs)
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams
    except ImportError:
        raise InputError(f"TensorBoard is not installed; install it: {how_to_install('track')}") from None
    if place.is_dir():
        return False
    partial = place.with_name(f"{place.name}.partial")
    with writing(partial):
        shutil.rmtree(partial, ignore_errors=True)
        with SummaryWriter(str(partial)) as writer:
            content = {**run.params, **run.tags}
            lines = "\n".join(f"    {key}: {value}" for key, value in content.items())
            writer.add_text("config", lines, 0)
            params = {key: _plain(value) for key, value in run.params.items()}
            metric = get_task(str(run.params.get("task", CLASSIFICATION))).metric
            shown = dict.fromkeys((f"val/{metric}", f"test/{metric}"))
            for summary in hparams(params, shown):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(summary)
            for point in run.points:
                writer.add_scalar(point.tag, point.value, point.step, walltime=point.time)
        partial.rename(place)
    return True


def _plain(value: object) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float) else str(value)[:MAX_TEXT]


def _to_mlflow(runs: Sequence[TrackedRun], uri: str) -> list[tuple[TrackedRun, bool]]:
    """Log one run of MLflow for each run, found again by the tag graphfed.id."""
    # MLflow reports its use to its makers unless this is set.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise InputError(f"MLflow is not installed; install it: {how_to_install('track')}") from None
    try:
        client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(EXPERIMENT)
        experiment = client.create_experiment(EXPERIMENT) if known is None else known.experiment_id
        return [(run, _log(client, experiment, run)) for run in runs]
    except MlflowException as error:
        raise InputError(f"MLflow at {uri}: {' '.join(str(error).split())[:500]}") from None


def _log(client: "MlflowClient", experiment: str, run: TrackedRun) -> bool:
    """Log a run, unless MLflow has it; return whether it was logged."""
    from mlflow.entities import Metric, Param, RunTag

    # A run whose logging was interrupted has not the status FINISHED.
    wanted = f"tags.`graphfed.id` = '{run.id}' and attributes.status = 'FINISHED'"
    if client.search_runs([experiment], filter_string=wanted):
        return False
    times = [int(1000 * point.time) for point in run.points]
    number = client.create_run(experiment, start_time=min(times), run_name=run.name).info.run_id
    tags = [RunTag(key, value) for key, value in run.tags.items()]
    params = [Param(key, str(value)[:MAX_TEXT]) for key, value in run.params.items()]
    client.log_batch(number, params=params, tags=tags)
    metrics = [
        Metric(point.tag, point.value, at, point.step) for point, at in zip(run.points, times, strict=True)
    ]
    for first in range(0, len(metrics), BATCH):
        client.log_batch(number, metrics=metrics[first : first + BATCH])
    client.set_terminated(number, end_time=max(times))
    return True

"""Hand runs on to a tracker, TensorBoard or MLflow (the extra `track`), from the files in their folders.

A run that has ended has metrics.jsonl and result.json; one that is going on has the rounds up to its newest
checkpoint. What the tracker has already is not written again, so one may call this as often as one likes, for
a run on its way too.

    params    the run's config, flat: training.lr, partition_options.beta, ...
    metrics   val/<metric>, bytes, seconds for each round; test/<metric> at the best round, once it has ended
    tags      method, hashes of data, split and partition, graphfed.id
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfed.errors import InputError, did_you_mean
from graphfed.files import JsonObject
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.runs import folder as files
from graphfed.runs.folder_schema import CheckpointFile, MetricsLine, ResultFile
from graphfed.runs.reopen import read_manifest
from graphfed.tasks.registry import get_task

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["TRACKERS", "Point", "TrackedRun", "Written", "read_runs", "track"]

TRACKERS = ("tensorboard", "mlflow")
#: The experiment of MLflow that runs are put under.
EXPERIMENT = "graphfed"
#: What MLflow takes in one call.
BATCH = 500
#: Of a parameter as text.
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
    """A run's folder as a tracker needs it. id: of what was asked and when, so that a copy of the folder is
    the same run; ended: whether it has a result."""

    folder: Path
    id: str
    params: JsonObject
    tags: dict[str, str]
    points: tuple[Point, ...]
    ended: bool

    @property
    def name(self) -> str:
        """For people, and as a folder's name; two runs never share one."""
        return f"{self.folder.resolve().name}-{self.id[:8]}"


@dataclass(frozen=True)
class Written:
    """What was handed on of a run: points it has, and those that were new to the tracker."""

    run: TrackedRun
    new: int


def track(
    folders: Sequence[str | Path],
    to: str,
    *,
    out: str | Path | None = None,
    uri: str | None = None,
) -> list[Written]:
    """Bring a tracker up to date with the runs in `folders`: of a comparison, sweep or reproduction, all runs
    in it.

    to: "tensorboard", which gets a folder of events for each run in `out` (default: runs/tensorboard), or
    "mlflow", which has its store at `uri` (default: MLFLOW_TRACKING_URI), as in sqlite:///mlflow.db or
    http://127.0.0.1:5000.

    Raises InputError for a folder without a run, an unknown tracker, or one that is not installed."""
    if to not in TRACKERS:
        raise InputError(f"unknown tracker {to!r}; {did_you_mean(str(to), TRACKERS)}")
    runs = read_runs(folders)
    if to == "tensorboard":
        return _to_tensorboard(runs, Path("runs/tensorboard" if out is None else out))
    where = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not where:
        raise InputError(
            "where is MLflow's store? give --uri, as in sqlite:///mlflow.db, or MLFLOW_TRACKING_URI"
        )
    return _to_mlflow(runs, where)


def read_runs(folders: Sequence[str | Path]) -> list[TrackedRun]:
    """Every run in the folders, in the order given; InputError for one that holds no run."""
    if not folders:
        raise InputError("no folder was given; name at least one run")
    found: list[TrackedRun] = []
    for folder in folders:
        manifest = read_manifest(folder)
        here = [Path(folder)] if "config" in manifest else _runs_below(Path(folder))
        if not here:
            raise InputError(f"no run in {folder} has begun")
        found += [_read(path) for path in here]
    return found


def _runs_below(folder: Path) -> list[Path]:
    """The folders of runs in a comparison's, sweep's or reproduction's folder."""
    below = sorted([*folder.glob("*/manifest.json"), *folder.glob("*/*/manifest.json")])
    return [path.parent for path in below if "config" in read_manifest(path.parent)]


def _read(folder: Path) -> TrackedRun:
    manifest = read_manifest(folder)
    started = datetime.fromisoformat(manifest["started"]).timestamp()
    asked = {key: manifest.get(key) for key in ("started", "config", "hashes")}
    identity = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    ended = (folder / "result.json").exists()
    history = _history(folder)
    last: JsonObject = history[-1] if history else {"round": 0, "seconds": 0.0}
    points = [point for line in history for point in _points(line, started)]
    tags = {"method": str(manifest["config"].get("method")), "graphfed.id": identity}
    tags |= {f"hash.{what}": str(value) for what, value in manifest["hashes"].items()}
    if ended:
        result = files.read_json(folder / "result.json", ResultFile)
        step = result["best_round"] or last["round"]
        points += [
            Point(f"test/{metric}", float(value), step, started + last["seconds"])
            for metric, value in result["test"].items()
            if value is not None
        ]
    return TrackedRun(folder, identity, dict(_flat(manifest["config"])), tags, tuple(points), ended)


def _history(folder: Path) -> list[JsonObject]:
    """The rounds: of metrics.jsonl, else of the newest checkpoint that can be read."""
    path = folder / "metrics.jsonl"
    if path.exists():
        return files.read_lines(path, MetricsLine)
    for checkpoint in sorted((folder / files.CHECKPOINTS).glob("round-*"), reverse=True):
        for name in ("local.json", "server.json"):
            try:
                history: list[JsonObject] = files.read_json(checkpoint / name, CheckpointFile)["history"]
                return history
            except InputError:
                continue  # being written, removed meanwhile, or damaged
    return []


def _points(line: JsonObject, started: float) -> Iterator[Point]:
    values = {f"val/{metric}": value for metric, value in (line["val"] or {}).items()}
    values |= {"bytes": line["bytes"], "seconds": line["seconds"]}
    for tag, value in values.items():
        if value is not None:
            yield Point(tag, float(value), line["round"], started + line["seconds"])


def _flat(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """``{"a": {"b": 1}}`` -> ``("a.b", 1)``."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# ---- TensorBoard -------------------------------------------------------------------------------------------


def _to_tensorboard(runs: Sequence[TrackedRun], out: Path) -> list[Written]:
    """One folder of events for each run."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams
    except ImportError:
        raise InputError("TensorBoard is not installed; install it: pip install 'graphfed[track]'") from None
    summarise: Any = hparams
    written = []
    for run in runs:
        place = out / run.name
        known: set[tuple[str, int]] = set()
        if place.is_dir():
            events = EventAccumulator(str(place), size_guidance={SCALARS: 0}).Reload()
            known = {(tag, event.step) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
        new = [point for point in run.points if (point.tag, point.step) not in known]
        if new:
            try:
                writer: Any = SummaryWriter(str(place))
            except OSError as error:
                raise InputError(f"{place} cannot be written: {error.strerror or error}") from None
            with writer:
                if not known:
                    told = {**run.params, **run.tags}
                    writer.add_text(
                        "config", "\n".join(f"    {key}: {value}" for key, value in told.items()), 0
                    )
                    plain = {key: _plain(value) for key, value in run.params.items()}
                    metric = get_task(str(run.params.get("task", CLASSIFICATION))).metric
                    for summary in summarise(plain, dict.fromkeys((f"val/{metric}", f"test/{metric}"))):
                        writer.file_writer.add_summary(summary)
                for point in new:
                    writer.add_scalar(point.tag, point.value, point.step, walltime=point.time)
        written.append(Written(run, len(new)))
    return written


def _plain(value: object) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)[:MAX_TEXT]


# ---- MLflow ------------------------------------------------------------------------------------------------


def _to_mlflow(runs: Sequence[TrackedRun], uri: str) -> list[Written]:
    """One run of MLflow for each run, found again by the tag graphfed.id."""
    # Nobody is told that somebody trains here.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise InputError("MLflow is not installed; install it: pip install 'graphfed[track]'") from None
    try:
        client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(EXPERIMENT)
        experiment = client.create_experiment(EXPERIMENT) if known is None else known.experiment_id
        return [Written(run, _log(client, experiment, run)) for run in runs]
    except MlflowException as error:
        raise InputError(f"MLflow at {uri}: {' '.join(str(error).split())[:500]}") from None


def _log(client: "MlflowClient", experiment: str, run: TrackedRun) -> int:
    """Write what is new of a run; how many points that was."""
    from mlflow.entities import Metric, Param, RunTag

    there = client.search_runs([experiment], filter_string=f"tags.`graphfed.id` = '{run.id}'")
    if there:
        number = there[0].info.run_id
        # MLflow keeps every value it is given, and a run is given each one once.
        history = {tag: client.get_metric_history(number, tag) for tag in there[0].data.metrics}
        known = {(tag, metric.step) for tag, metrics in history.items() for metric in metrics}
    else:
        start = int(1000 * min((point.time for point in run.points), default=0.0)) or None
        number = client.create_run(experiment, start_time=start, run_name=run.name).info.run_id
        known = set()
        tags = [RunTag(key, value) for key, value in run.tags.items()]
        params = [Param(key, str(value)[:MAX_TEXT]) for key, value in run.params.items()]
        client.log_batch(number, params=params, tags=tags)
    new = [point for point in run.points if (point.tag, point.step) not in known]
    metrics = [Metric(point.tag, point.value, int(1000 * point.time), point.step) for point in new]
    for first in range(0, len(metrics), BATCH):
        client.log_batch(number, metrics=metrics[first : first + BATCH])
    if run.ended and new:
        client.set_terminated(number, end_time=int(1000 * max(point.time for point in run.points)))
    return len(new)

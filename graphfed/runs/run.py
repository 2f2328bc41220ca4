"""One run: load, split, deal, train, score, write. `run` is the Python API; the command line calls it."""

import dataclasses
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from graphfed.errors import InputError
from graphfed.files import JsonObject, write_json
from graphfed.loading import load_object
from graphfed.memory import memory_bytes, peak_memory
from graphfed.methods.common.memory import ACCURACY
from graphfed.methods.config import TrainingSettings
from graphfed.plugins import Plugin
from graphfed.runs import folder as files
from graphfed.runs.config import make_config
from graphfed.runs.diagnostics import Evidence, check_run
from graphfed.runs.folder_schema import ResultFile
from graphfed.runs.progress import human_bytes, show_dropped, show_progress, stages_of
from graphfed.runs.settings import changed_settings, given_settings
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.loading import load_inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.run_options import RunOptions

if TYPE_CHECKING:
    from graphfed.federation import Ledger
    from graphfed.methods.base import Method
    from graphfed.methods.config import CommonSettings
    from graphfed.runs.train import Event
    from graphfed.tasks.evaluation import Predicted
    from graphfed.tasks.inputs import WorkerPart
    from graphfed.tasks.outcome import Outcome

__all__ = [
    "Result",
    "check_memory",
    "computing_with",
    "diagnosed",
    "execute",
    "finish",
    "has_checkpoint",
    "keep_partition",
    "manifest_of",
    "model_arrays",
    "now",
    "peak_rss_mb",
    "run",
    "versions",
    "write_file",
    "write_manifest",
]


@dataclass(frozen=True)
class Result:
    """What a run found, under the names of result.json.

    best_round: None where every client has a best round of its own.
    val, test: metrics at the best round, which is chosen on validation; over all nodes of all clients.
    bytes: payload bytes of set-up and training. seconds: setup, train, total, per_round.
    folder: where the files are, None when nothing was written."""

    method: str
    dataset: str
    task: str
    clients: int
    partition: str
    rounds: int
    best_round: int | None
    seed: int
    runtime: str
    val: dict[str, float | None]
    test: dict[str, float | None]
    seconds: dict[str, float]
    bytes: JsonObject
    privacy: JsonObject
    peak_rss_mb: float
    hashes: dict[str, str]
    versions: dict[str, str]
    details: JsonObject
    folder: Path | None = None

    def to_json(self) -> JsonObject:
        """The object in result.json: plain numbers, None where a number is not finite."""
        return files.fields_of(self)

    @staticmethod
    def read(folder: str | Path) -> "Result":
        """The result in a run's folder; InputError when there is none."""
        folder = Path(folder)
        content = files.read_json(folder / "result.json", ResultFile)
        names = [f.name for f in dataclasses.fields(Result) if f.name != "folder"]
        return Result(**{name: content[name] for name in names}, folder=folder)


def run(
    method: str,
    *,
    task: str | None = None,
    data: object = None,
    clients: int | None = None,
    partition: str | Path | None = None,
    rounds: int | None = None,
    seed: int = 0,
    split: str = "default",
    runtime: str = "local",
    workers: int | None = None,
    placement: str = "stacked",
    device: str = "cpu",
    threads: int | None = None,
    data_dir: str | Path | None = None,
    out: str | Path | Literal[False] | None = None,
    checkpoint_every: float = RunOptions.checkpoint_every,
    progress: bool = False,
    settings: Mapping[str, object] | None = None,
    command: str = "graphfed.run",
    **more: object,
) -> Result:
    """Train `method` on `data` dealt over `clients` sites, and write the run's folder.

    task: "classification" of nodes, "link_prediction" or "forecasting"; default the method's first.
    data: the name of a data set (`graphfed data list`; default "digits", of forecasting "roads"), the path of
    a description of one's own files (.yaml, see `graphfed.data.user_files.graph_description`) or of a whole
    graph (.pt, .graphml), a description as a mapping, a `graphfed.data.graphs.graph.Graph`, a PyG `Data`, a
    networkx graph or `graphfed.data.sensors.series.Sensors`.
    clients: default 10, or as many as the partition fixes. rounds: default the method's own.
    partition: a name, or the file of a saved one (`Partition.save`, `graphfed data partition`); default
    "column", the sites of the data, where it names them, else what the method is for: "label_dirichlet",
    "ego", or of forecasting "sensors", one client each.
    split: "default", "public", "per_class:20,500,1000" or "random:0.5,0.25,0.25"; in link prediction
    "edges:0.8,0.05,0.15", which is its default; in forecasting "time:0.7,0.1,0.2", its default, or
    "inductive:0.5".
    runtime: "local", "processes", or "nvflare": a federation over NVIDIA FLARE on this machine; in these two
    the clients are dealt over `workers` processes (default: one each). A federation on several machines:
    `graphfed.deploy`.
    placement, of the local runtime: "stacked", or "one-at-a-time", the slow and plain one to debug with.
    threads: default one for a small graph, every core for a large one; of each process in "processes", one.
    out: the folder; None for ``runs/<method>-<data>-<time>``, False to write nothing.
    checkpoint_every: seconds between checkpoints, 0 for one before every round. `resume` goes on from them.
    progress: show it on stderr. command: what to write down as the command.
    settings, and by name: what `--set` takes: ``lr=0.1``, ``settings={"partition.beta": 1.0}``.

    Raises InputError, with nothing left written, for a value that cannot be used, the folder's name included;
    GraphfedError when the disk refuses the files; Interrupted (a KeyboardInterrupt), after saving, when
    SIGINT or SIGTERM came while it trained."""
    config = make_config(
        method,
        task=task,
        data=data,
        clients=clients,
        partition=partition,
        rounds=rounds,
        seed=seed,
        split=split,
        runtime=runtime,
        workers=workers,
        placement=placement,
        device=device,
        threads=threads,
        data_dir=data_dir,
        checkpoint_every=checkpoint_every,
        settings=given_settings(settings, more),
    )
    name = f"{config.method.name}-{config.data_name}"
    folder = files.chosen_folder(out, name)
    # Opened before anything is loaded: a folder that cannot be made is known at once.
    with (
        nullcontext() if folder is None else files.open_folder(folder, keep=has_checkpoint),
        show_progress(f"{config.method.name} on {config.data_name}", progress) as on_event,
    ):
        inputs = load_inputs(config, on_stage=stages_of(on_event))
        show_dropped(inputs.name, inputs.dropped, progress)
        return execute(config, inputs, folder=folder, command=command, on_event=on_event)


def execute(
    config: RunConfig,
    inputs: Inputs,
    *,
    folder: Path | None,
    command: str,
    on_event: "Callable[[Event], None] | None" = None,
    own_partition: bool = True,
) -> Result:
    """Train and score on loaded inputs, and write what is found into `folder` (None: write nothing), which is
    open. own_partition: keep a copy there of a partition that was read from a file."""
    needed = check_memory(config, inputs)
    if on_event is not None and needed is not None:
        _foretell_memory(needed, on_event)
    if folder is not None:
        kept = inputs.bytes_of_partition() if own_partition and config.partition_file is not None else 0
        files.check_space(folder, inputs.bytes_needed(config) + kept)
        write_manifest(folder, manifest_of(config, inputs, command))
        if own_partition:
            keep_partition(folder, config, inputs)
        stages_of(on_event)("describing and drawing the data")
        write_file(folder, "overview.json", inputs.overview())
    return finish(config, inputs, folder=folder, start=None, on_event=on_event)


#: Memory beyond which a run says what it will take before it starts.
MUCH_MEMORY = 2 * 10**9
#: About what a process of its own has before it has data.
MEMORY_OF_PROCESS = 250_000_000


def check_memory(config: RunConfig, inputs: Inputs) -> int | None:
    """Refuse a run that clearly does not fit into the memory of this machine, before it starts.

    Args:
        config: What is to be run.
        inputs: Its data, split and partition.

    Returns:
        About how many bytes it takes beyond what this process has; None on an accelerator, whose memory is
        another one.

    Raises:
        InputError: If even a third of what it takes (`memory_need.ACCURACY`) is not available.
    """
    if config.device != "cpu":
        return None
    processes = 0 if config.workers is None else config.workers + 1
    needed = inputs.memory_needed(config) + processes * MEMORY_OF_PROCESS
    available, _ = memory_bytes()
    if available is not None and needed > ACCURACY * available:
        raise InputError(
            f"{config.method.name} on {config.data_name} takes about {human_bytes(needed)} of memory, and "
            f"{human_bytes(available)} are available; use fewer nodes or features, a smaller hidden width, "
            "other settings of the method ('graphfed methods "
            f"{config.method.name}'), or a machine with more memory"
        )
    return needed


def _foretell_memory(needed: int, on_event: "Callable[[Event], None]") -> None:
    """Say how much memory a run takes where that is much, or more than there is."""
    from graphfed.runs.train import Event

    available, _ = memory_bytes()
    short = available is not None and needed > available
    if short or needed > MUCH_MEMORY:
        free = "" if available is None else f", and {human_bytes(available)} are available"
        text = f"this run takes about {human_bytes(needed)} of memory{free}"
        on_event(Event("note", note=f"{text}; it may fail" if short else text))


def finish(
    config: RunConfig,
    inputs: Inputs,
    *,
    folder: Path | None,
    start: int | None,
    on_event: "Callable[[Event], None] | None" = None,
) -> Result:
    """Train to the end, from the beginning or from the checkpoint after round `start`; write the result."""
    with computing_with(_threads_of(config, inputs)):
        trained = _train(config, inputs, folder, start, on_event)
        more = inputs.details(config, trained.outcome)
    outcome = trained.outcome
    details = {**outcome.details, "changed_settings": changed_settings(config)}
    if trained.accounts is not None:
        details["clients"] = {
            name: {"mean": column.mean(), "max": column.max()} for name, column in trained.accounts.items()
        }
    details |= more
    details |= diagnosed(
        config.method,
        config.task,
        config.training,
        outcome,
        inputs.described(config)["data"].get("class_names") or (),
    )
    result = Result(
        method=config.method.name,
        dataset=inputs.name,
        task=config.task,
        clients=inputs.num_clients,
        partition=config.partition,
        rounds=outcome.rounds_run,
        best_round=outcome.best_round,
        seed=config.seed,
        runtime=config.runtime,
        val=files.plain(outcome.val),
        test=files.plain(outcome.test),
        seconds=files.plain(outcome.seconds),
        bytes=files.plain(trained.ledger.totals()),
        privacy=files.plain(trained.ledger.statement()),
        peak_rss_mb=peak_rss_mb(),
        hashes=inputs.hashes,
        versions=versions(config.plugins),
        details=files.plain(details),
        folder=folder,
    )
    if folder is not None:
        stages_of(on_event)("writing the files of the run")
        files.write_run(
            folder,
            method=config.method.name,
            history=outcome.history,
            ledger=trained.ledger.to_json(),
            result=result.to_json(),
            weights=trained.weights,
            predictions=inputs.tables(config, trained.predicted),
            accounts=trained.accounts,
        )
    return result


def diagnosed(
    method: "Method", task: str, training: "CommonSettings", outcome: "Outcome", class_names: Sequence[str]
) -> JsonObject:
    """Return what the details of a result say of how far it can be trusted and compared.

    Args:
        method: The method that was run.
        task: A name in `tasks.registry.TASKS`.
        training: Its settings.
        outcome: What the run gave where the server is.
        class_names: The names of the classes; empty where they have none.

    Returns:
        `training`: the settings that rows of a table should have in common (without the seed; empty where
        nothing is trained); `selected_by`: the validation metric that chose the round; `warnings`: a list of
        {code, text}, see `runs.diagnostics`.
    """
    # To classify nodes the clients' class counts decide; the server has told which metric it was.
    metric = outcome.details.get("selected_by") or get_task(task).evaluation.decides(training, None)
    if not isinstance(training, TrainingSettings):
        return {"training": {}, "selected_by": metric, "warnings": []}
    evidence = Evidence(
        task=task,
        metric=metric,
        rounds=training.rounds,
        rounds_run=outcome.rounds_run,
        best_round=outcome.best_round,
        lr=training.lr,
        history=outcome.history,
        val=outcome.val or {},
        test=outcome.test or {},
        confusion=outcome.test_confusion,
        class_names=class_names,
        scored=outcome.details.get("scored", {}),
    )
    settings = dataclasses.asdict(training)
    return {
        "training": {key: value for key, value in settings.items() if key != "seed"},
        "selected_by": metric,
        "warnings": [warning.to_json() for warning in check_run(evidence)],
    }


def manifest_of(config: RunConfig, inputs: Inputs, command: str) -> JsonObject:
    """The manifest of a run: what is asked, on what, with what, as it is known before training."""
    return {
        "command": command,
        "started": now(),
        "config": config.to_json(),
        "seeds": {"run": config.seed, "partition": config.partition_seed, "split": config.split_seed},
        **inputs.described(config),
        "hashes": inputs.hashes,
        "versions": versions(config.plugins),
        "device": config.device,
        "threads": _threads_of(config, inputs) if config.runtime == "local" else config.client_threads,
        "placement": config.placement if config.runtime == "local" else None,
    }


def keep_partition(folder: Path, config: RunConfig, inputs: Inputs) -> None:
    """Copy into `folder` the partition that was read from a file, so that what is in the folder can be used
    when that file is gone. GraphfedError when the disk refuses."""
    if config.partition_file is None:
        return
    with files.writing_into(folder):
        inputs.save_partition(folder / files.PARTITION)


def write_manifest(folder: Path, manifest: JsonObject) -> None:
    """Write manifest.json; GraphfedError when the disk refuses."""
    write_file(folder, "manifest.json", manifest)


def write_file(folder: Path, name: str, content: Mapping[str, object]) -> None:
    """Write a JSON file of a folder; GraphfedError, which names the folder, when the disk refuses."""
    with files.writing_into(folder):
        write_json(folder / name, files.plain(content))


def now() -> str:
    """The time, for a manifest: ISO 8601, UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def has_checkpoint(folder: Path) -> bool:
    """Whether training got far enough for the folder to be worth keeping."""
    return any((folder / files.CHECKPOINTS).glob("round-*/*.json"))


def _threads_of(config: RunConfig, inputs: Inputs) -> int:
    return inputs.threads() if config.threads is None else config.threads


#: What trains a run whose places are processes of their own, by runtime: module:function. A federation on
#: this machine belongs to a higher layer, so it is imported when it is used.
TRAINED_BY = {
    "processes": "graphfed.runs.processes:train_run",
    "nvflare": "graphfed.deployment.rehearsal:train_run",
}


@dataclass(frozen=True)
class _Trained:
    """What every runtime hands back. predicted: the part of each host, and what it predicts."""

    outcome: "Outcome"
    ledger: "Ledger"
    weights: dict[str, np.ndarray]
    predicted: "list[tuple[WorkerPart, Predicted]]"
    accounts: dict[str, np.ndarray] | None


def _train(
    config: RunConfig,
    inputs: Inputs,
    folder: Path | None,
    start: int | None,
    on_event: "Callable[[Event], None] | None",
) -> _Trained:
    """Hand out the data and train: all places in this process, or one process each."""
    from graphfed.runs.checkpoint import Checkpoints
    from graphfed.tasks.registry import get_task

    method = config.method
    task, clients = inputs.task(config.task), inputs.clients_of(config.method)
    stages_of(on_event)(f"handing the data out to {clients} clients")
    if config.runtime in TRAINED_BY:
        parts = inputs.parts(config, process_blocks(config, clients))
        train_run = load_object(TRAINED_BY[config.runtime])
        outcome, ledger = train_run(config, inputs, parts, folder, start=start, on_event=on_event)
    else:
        from graphfed.runs.train import train
        from graphfed.tasks.inputs import local_federation

        # One party's data is one cohort.
        together = config.placement == "stacked" or method.pooled
        fed = local_federation(config, inputs, together=together)
        parts = inputs.parts(config, fed.workers)
        data = get_task(task.name).data.located(fed, parts, [inputs.part_of_server(config)])
        checkpoints = None
        if folder is not None:
            checkpoints = Checkpoints(folder, every=config.checkpoint_every, start=start)
        outcome = train(fed, method, data, task, config.training, on_event=on_event, checkpoints=checkpoints)
        ledger = fed.ledger
    predicted = list(zip(parts, outcome.predictions.parts, strict=True))
    return _Trained(outcome, ledger, model_arrays(method, outcome), predicted, _accounts(outcome))


def process_blocks(config: RunConfig, clients: int) -> list[list[int]]:
    """The clients of every process, in the runtimes that have some."""
    assert config.workers is not None
    return [block.tolist() for block in np.array_split(np.arange(clients), config.workers)]


def _accounts(outcome: "Outcome") -> dict[str, np.ndarray] | None:
    """What the clients say of themselves, a column each, in the order of their ids."""
    if outcome.accounts is None:
        return None
    parts = outcome.accounts.parts
    return {name: np.concatenate([part[name].cpu().numpy() for part in parts]) for name in parts[0]}


def model_arrays(method: "Method", outcome: "Outcome") -> dict[str, np.ndarray]:
    """The arrays of model.safetensors (see `weight_arrays`): this process's part of the model. Of a model in
    several values the names begin with the value's."""
    from graphfed.federation.payload import part_of
    from graphfed.federation.values import ABSENT
    from graphfed.methods.common.feature_scaling import to_arrays

    arrays: dict[str, np.ndarray] = {}
    for name in method.state.model:
        parts = [part for part in outcome.state.values[name].parts if part is not ABSENT]
        if name in method.state.replicated:
            parts = parts[:1]
        elif method.pooled:
            parts = [part_of(part, 0) for part in parts]  # the only client's are the model
        prefix = f"{name}." if len(method.state.model) > 1 else ""
        arrays |= {prefix + key: array for key, array in files.weight_arrays(parts).items()}
    if outcome.scaling is not None:
        arrays |= to_arrays(outcome.scaling)
    return arrays


@contextmanager
def computing_with(count: int) -> Iterator[None]:
    """Compute with `count` threads: set, never inherited, because a wrong setting is many times slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_rss_mb() -> float:
    """The largest resident memory that this process or one of its sites' has had, in MB of 10^6 bytes."""
    return round(peak_memory() / 1e6, 1)


def versions(plugins: Iterable[Plugin | None] = ()) -> dict[str, str]:
    """Return the versions of the programs that a run's numbers depend on, its plug-ins included."""
    import scipy
    import torch

    from graphfed import __version__

    return {
        "graphfed": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        **{plugin.name: plugin.version for plugin in plugins if plugin is not None},
    }

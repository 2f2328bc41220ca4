"""Make one run: load, split and partition the data, train, score and write the results.

`run` is the Python API, which the command line calls.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from graphfed.files import JsonObject, write_json
from graphfed.loading import load_object
from graphfed.memory import peak_memory
from graphfed.plugins import Plugin
from graphfed.runs import folder as files
from graphfed.runs.config import make_config
from graphfed.runs.diagnostics import diagnose
from graphfed.runs.model_file import model_arrays
from graphfed.runs.progress import log_note, show_data, show_progress, stages_of, warn
from graphfed.runs.result import Result, Unwritten
from graphfed.runs.settings import changed_settings, given_settings
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.loading import load_inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.run_options import OPTIONS, Placement, RunOptions, Runtime

if TYPE_CHECKING:
    from graphfed.federation import Ledger
    from graphfed.runs.train import Event
    from graphfed.tasks.evaluation import Predicted
    from graphfed.tasks.inputs import WorkerPart
    from graphfed.tasks.outcome import Outcome

__all__ = [
    "Result",
    "computing_with",
    "execute",
    "finish",
    "has_checkpoint",
    "keep_partition",
    "manifest_of",
    "now",
    "peak_rss_mb",
    "run",
    "versions",
    "write_file",
    "write_manifest",
]


def run(
    method: str,
    *,
    task: str | None = None,
    data: object = None,
    clients: int | None = None,
    partition: object = None,
    rounds: int | None = None,
    seed: int = 0,
    split: str = "default",
    runtime: Runtime = "local",
    workers: int | None = None,
    placement: Placement = "stacked",
    device: str = "cpu",
    threads: int | None = None,
    data_dir: str | Path | None = None,
    out: str | Path | Literal[False] | None = None,
    checkpoint_every: float = RunOptions.checkpoint_every,
    progress: bool = False,
    on_round: Callable[[JsonObject], None] | None = None,
    settings: Mapping[str, object] | None = None,
    command: str = "graphfed.run",
    **more: object,
) -> Result:
    """Train a method on data that is partitioned among clients, and write the run's folder.

    Args:
        method: The name of the method (`graphfed methods`).
        task: "classification" of nodes, "link_prediction" or "forecasting"; default: the method's first task.
        data: The name of a data set (`graphfed data list`; default: "digits", or "roads" for forecasting),
            the path of a description of one's own files (.yaml, see
            `graphfed.data.user_files.graph_description`) or of a whole graph (.pt, .graphml), a description
            as a mapping, a `graphfed.data.graphs.graph.Graph`, a PyG `Data`, a networkx graph or
            `graphfed.data.sensors.series.Sensors`. A list of PyG `Data`, or a mapping from names to them, has
            one for each client. DataFrames are ``(nodes, edges)``, or a description with DataFrames in the
            place of files. "pyg:Amazon/Photo" and "ogb:ogbn-arxiv" are loaded by these libraries.
        clients: The number of clients; default: 10, or as many as the partition has.
        partition: A name, the file of a saved partition (`Partition.save`, `graphfed data partition`), a
            `graphfed.Partition`, or the client of each node, whole numbers [N]. Default: "column", the
            clients that the data names, if it names them; else the partition of the method:
            "label_dirichlet", "ego", or for forecasting "sensors", one client for each sensor.
        rounds: The largest number of rounds; default: the task's.
        seed: The seed of weights, draws, partition and split.
        split: "default", "public", "per_class:20,500,1000" or "random:0.5,0.25,0.25"; for link prediction
            "edges:0.8,0.05,0.15" (its default); for forecasting "time:0.7,0.1,0.2" (its default) or
            "inductive:0.5".
        runtime: "local", "processes", or "nvflare": a federation over NVIDIA FLARE on this machine. A
            federation on several machines is started by `graphfed.deploy`.
        workers: In the runtimes "processes" and "nvflare", the number of processes that compute for the
            clients; default: one for each client.
        placement: In the runtime "local": "stacked" computes all clients together; "one-at-a-time" is slow
            and simple, for debugging.
        device: The torch device on which everything is computed: "cpu", "cuda" or "cuda:0".
        threads: Threads to compute with; default: one for a small graph, every core for a large one. In the
            runtime "processes" each process has so many; default: one.
        data_dir: The folder where data files are looked for first.
        out: The folder to write; None for ``runs/<method>-<data>-<time>``, False to write nothing.
        checkpoint_every: Seconds between checkpoints, from which `resume` goes on; 0 for one in every round.
        progress: Whether to show progress on stderr. If not, remarks on the data are warnings
            (`graphfed.errors.GraphfedWarning`), and the logger "graphfed" gets messages about long steps.
        on_round: Called after every evaluated round with its line of metrics.jsonl: ``round``, ``val`` (the
            validation metrics by name), ``bytes``, ``seconds``, and ``facts`` if the method reports any. An
            exception that it raises ends the run.
        settings: Settings by key, as `--set` takes them: ``settings={"partition.beta": 1.0}``.
        command: The command line that manifest.json records, for its readers.
        more: Settings by name, in addition to `settings`: ``lr=0.1``.

    Returns:
        The result, which is also in the folder.

    Raises:
        InputError: A value cannot be used, the folder's name included; nothing is left written.
        GraphfedError: The disk refuses the files, or training diverged in every round.
        Interrupted: SIGINT or SIGTERM came during training. The run is saved; it is a KeyboardInterrupt.
    """
    # The parameters that are options of a run: `RunOptions` declares them, and a test compares the two.
    given = {key: value for key, value in locals().items() if key in OPTIONS}
    # Everything that can be refused without the data is refused before a folder is made.
    config = make_config(**given, settings=given_settings(settings, more))
    name = f"{config.method.name}-{config.data_name}"
    folder = files.chosen_folder(out, name)
    # The folder is opened before anything is loaded, so that one that cannot be made is reported at once.
    with (
        nullcontext() if folder is None else files.open_folder(folder, keep=has_checkpoint),
        show_progress(f"{config.method.name} on {config.data_name}", progress) as shown,
    ):
        show = log_note if shown is None else shown
        on_event = show if on_round is None else _with_rounds(show, on_round)
        inputs = load_inputs(config, on_stage=stages_of(on_event))
        show_data(inputs, progress)
        result = execute(config, inputs, folder=folder, command=command, on_event=on_event, keep=True)
    for warning in result.details["warnings"]:
        warn(warning["text"])
    return result


def _with_rounds(
    show: "Callable[[Event], None]", on_round: Callable[[JsonObject], None]
) -> "Callable[[Event], None]":
    """Return a function that shows a run's events and passes the line of every evaluated round on."""

    def on_event(event: "Event") -> None:
        show(event)
        if event.line is not None and event.line["val"] is not None:
            on_round(event.line)

    return on_event


def execute(
    config: RunConfig,
    inputs: Inputs,
    *,
    folder: Path | None,
    command: str,
    on_event: "Callable[[Event], None] | None" = None,
    own_partition: bool = True,
    keep: bool = False,
) -> Result:
    """Train and score a run whose inputs are loaded, and write the results.

    `folder` is open; None writes nothing, and with `keep` the result then holds what the files would have.
    With `own_partition` the folder gets a copy of a partition that was read from a file. Raises Interrupted
    if SIGINT or SIGTERM came during training.
    """
    if folder is not None:
        kept = inputs.bytes_of_partition() if own_partition and config.partition_file is not None else 0
        files.check_space(folder, inputs.bytes_needed(config) + kept)
        write_manifest(folder, manifest_of(config, inputs, command))
        # A comparison and a sweep keep one copy for all of their runs.
        if own_partition:
            keep_partition(folder, config, inputs)
        stages_of(on_event)("describing and drawing the data")
        write_file(folder, "overview.json", inputs.overview())
    return finish(config, inputs, folder=folder, start=None, on_event=on_event, keep=keep)


def finish(
    config: RunConfig,
    inputs: Inputs,
    *,
    folder: Path | None,
    start: int | None,
    on_event: "Callable[[Event], None] | None" = None,
    keep: bool = False,
) -> Result:
    """Train to the end and write the result.

    `folder` is that of the run, None to write nothing (see `execute`); `start` is the round of the checkpoint
    to go on from, None for the beginning. Raises Interrupted if SIGINT or SIGTERM came during training.
    """
    with computing_with(_threads_of(config, inputs)):
        trained = _train(config, inputs, folder, start, on_event)
        more = inputs.details(config, trained.outcome)
    outcome = trained.outcome
    details = {**outcome.details, "changed_settings": changed_settings(config)}
    if trained.client_statistics is not None:
        details["clients"] = {
            name: {"mean": column.mean(), "max": column.max()}
            for name, column in trained.client_statistics.items()
        }
    details |= more
    details |= diagnose(
        config.method,
        config.task,
        config.settings,
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
            client_statistics=trained.client_statistics,
        )
    elif keep:
        result.keep(
            Unwritten(
                [files.plain_object(line) for line in outcome.history],
                lambda: inputs.tables(config, trained.predicted),
                trained.weights,
                config.method,
                inputs.task(config.task),
                config.settings,
            )
        )
    return result


def manifest_of(config: RunConfig, inputs: Inputs, command: str) -> JsonObject:
    """Return the manifest of a run: what is asked, on which data and with which versions, before training."""
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
    """Copy a partition that was read from a file into the run's folder, because that file may go."""
    if config.partition_file is None:
        return
    with files.writing_into(folder):
        inputs.save_partition(folder / files.PARTITION)


def write_manifest(folder: Path, manifest: JsonObject) -> None:
    """Write the manifest.json of a run, a comparison or a sweep."""
    write_file(folder, "manifest.json", manifest)


def write_file(folder: Path, name: str, content: Mapping[str, object]) -> None:
    """Write a JSON file of a folder; numbers that are not finite become null."""
    with files.writing_into(folder):
        write_json(folder / name, files.plain(content))


def now() -> str:
    """Return the time for a manifest: ISO 8601 in UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def has_checkpoint(folder: Path) -> bool:
    """Return whether the folder has a checkpoint: training got far enough for it to be worth keeping."""
    return any((folder / files.CHECKPOINTS).glob("round-*/*.json"))


def _threads_of(config: RunConfig, inputs: Inputs) -> int:
    return inputs.threads() if config.threads is None else config.threads


#: The function that trains a run with several processes, by runtime: module:function. A federation on this
#: machine belongs to a higher layer, so the function is imported when it is used.
TRAINED_BY = {
    "processes": "graphfed.runs.processes:train_run",
    "nvflare": "graphfed.deployment.rehearsal:train_run",
}


@dataclass(frozen=True)
class _Trained:
    """What every runtime returns. predicted: the part of each worker, and what the model predicts for it."""

    outcome: "Outcome"
    ledger: "Ledger"
    weights: dict[str, np.ndarray]
    predicted: "list[tuple[WorkerPart, Predicted]]"
    client_statistics: dict[str, np.ndarray] | None


def _train(
    config: RunConfig,
    inputs: Inputs,
    folder: Path | None,
    start: int | None,
    on_event: "Callable[[Event], None] | None",
) -> _Trained:
    """Distribute the data and train, with all clients in this process or with several processes."""
    from graphfed.runs.checkpoint import Checkpoints

    method = config.method
    task, clients = inputs.task(config.task), inputs.clients_of(config.method)
    stages_of(on_event)(f"distributing the data to {clients} clients")
    if config.runtime in TRAINED_BY:
        parts = inputs.parts(config, process_blocks(config, clients))
        train_run = load_object(TRAINED_BY[config.runtime])
        outcome, ledger = train_run(config, inputs, parts, folder, start=start, on_event=on_event)
    else:
        from graphfed.runs.train import train
        from graphfed.tasks.inputs import local_federation

        # A pooled method has one client with all data.
        together = config.placement == "stacked" or method.pooled
        fed = local_federation(config, inputs, together=together)
        parts = inputs.parts(config, fed.workers)
        data = get_task(task.name).data.located(fed, parts, [inputs.part_of_server(config)])
        checkpoints = None
        if folder is not None:
            checkpoints = Checkpoints(folder, every=config.checkpoint_every, start=start)
        outcome = train(fed, method, data, task, config.settings, on_event=on_event, checkpoints=checkpoints)
        ledger = fed.ledger
    predicted = list(zip(parts, outcome.predictions.parts, strict=True))
    return _Trained(outcome, ledger, model_arrays(method, outcome), predicted, _statistics(outcome))


def process_blocks(config: RunConfig, clients: int) -> list[list[int]]:
    """Return the clients of every process, in the runtimes with several processes."""
    assert config.workers is not None
    return [block.tolist() for block in np.array_split(np.arange(clients), config.workers)]


def _statistics(outcome: "Outcome") -> dict[str, np.ndarray] | None:
    """Return the statistics that the clients report, a column each, in the order of client ids; None without
    any.
    """
    if outcome.client_statistics is None:
        return None
    parts = outcome.client_statistics.parts
    return {name: np.concatenate([part[name].cpu().numpy() for part in parts]) for name in parts[0]}


@contextmanager
def computing_with(count: int) -> Iterator[None]:
    """Compute with `count` threads in this block."""
    import torch

    before = torch.get_num_threads()
    # Set and never inherited, because a wrong number makes a run many times slower.
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_rss_mb() -> float:
    """Return the largest memory that this process or a child process has had, in MB of 10^6 bytes."""
    return round(peak_memory() / 1e6, 1)


def versions(plugins: Iterable[Plugin | None] = ()) -> dict[str, str]:
    """Return the versions of the programs that a run's numbers depend on; None stands for no plug-in."""
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

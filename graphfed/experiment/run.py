"""One run: load, split, deal, train, score, write. `run` is the Python API; the command line calls it."""

import dataclasses
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from graphfed.data.datasets import load
from graphfed.data.graph import Graph, Split
from graphfed.data.links import EdgeSplit, make_edge_split, scored_pairs, training_graph
from graphfed.data.overview import overview, site_names
from graphfed.data.own import load_description
from graphfed.data.partition import Partition, from_assignment
from graphfed.data.partition import partition as make_partition
from graphfed.data.splits import make_split
from graphfed.errors import InputError
from graphfed.experiment import folder as files
from graphfed.experiment.config import EVERY, RunConfig, default_threads, make_config
from graphfed.experiment.pair_table import PairPredictions, cohort_pairs
from graphfed.experiment.progress import show_progress
from graphfed.files import write_json
from graphfed.methods.base import TrainingConfig
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION

if TYPE_CHECKING:
    from graphfed.experiment.train import Event, Outcome
    from graphfed.federation import Ledger
    from graphfed.federation.cohort import Cohort
    from graphfed.methods.base import Method

__all__ = [
    "Inputs",
    "Result",
    "check_inputs",
    "cohort_predictions",
    "computing_with",
    "execute",
    "finish",
    "has_checkpoint",
    "keep_partition",
    "load_graph",
    "load_inputs",
    "now",
    "peak_rss_mb",
    "pooled_partition",
    "predictions_of",
    "run",
    "versions",
    "write_manifest",
]


@dataclass(frozen=True)
class Result:
    """What a run found, under the names of result.json.

    best_round: None where every client has a best round of its own.
    val, test: metrics at the best round, which is chosen on validation; over all vertices of all clients.
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
    bytes: dict[str, Any]
    privacy: dict[str, Any]
    peak_rss_mb: float
    hashes: dict[str, str]
    versions: dict[str, str]
    details: dict[str, Any]
    folder: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The object in result.json: plain numbers, None where a number is not finite."""
        content: dict[str, Any] = files.plain(
            {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "folder"}
        )
        return content

    @staticmethod
    def read(folder: str | Path) -> "Result":
        """The result in a run's folder; InputError when there is none."""
        folder = Path(folder)
        content = files.read_json(folder / "result.json")
        names = [f.name for f in dataclasses.fields(Result) if f.name != "folder"]
        missing = [name for name in names if not isinstance(content, dict) or name not in content]
        if missing:
            raise InputError(f"{folder / 'result.json'} is not the result of a run: it has no {missing[0]!r}")
        return Result(**{name: content[name] for name in names}, folder=folder)


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a run trains on: the graph, its split and how it is dealt over sites. In link prediction the graph
    has the training edges only, and so has the partition."""

    graph: Graph
    split: Split | EdgeSplit
    partition: Partition

    @property
    def hashes(self) -> dict[str, str]:
        """Two runs compare only where these three agree. The data's is that of the whole graph."""
        whole = self.split.graph_hash if isinstance(self.split, EdgeSplit) else self.graph.hash
        return {"data": whole, "split": self.split.hash, "partition": self.partition.hash}


def run(
    method: str,
    *,
    task: str | None = None,
    data: Any = "digits",
    clients: int | None = None,
    partition: str | Path | None = None,
    rounds: int | None = None,
    seed: int = 0,
    split: str = "default",
    runtime: str = "local",
    sites: int | None = None,
    placement: str = "stacked",
    device: str = "cpu",
    threads: int | None = None,
    data_dir: str | Path | None = None,
    out: str | Path | Literal[False] | None = None,
    checkpoint_every: float = EVERY,
    progress: bool = False,
    settings: Mapping[str, Any] | None = None,
    command: str = "graphfed.run",
    **more: Any,
) -> Result:
    """Train `method` on `data` dealt over `clients` sites, and write the run's folder.

    task: "classification" of vertices, or "link_prediction"; default the method's first.
    data: the name of a data set (`graphfed data list`), the path of a description of one's own files (.yaml,
    see `graphfed.data.description`) or of a whole graph (.pt, .graphml), a description as a mapping, a
    `graphfed.data.graph.Graph`, a PyG `Data` or a networkx graph.
    clients: default 10, or as many as the partition fixes. rounds: default the method's own.
    partition: a name, or the file of a saved one (`Partition.save`, `graphfed data partition`); default
    "column", the sites of the data, where it names them, else what the method is for, "label_dirichlet" or
    "ego".
    split: "default", "public", "per_class:20,500,1000" or "random:0.5,0.25,0.25"; in link prediction
    "edges:0.8,0.05,0.15", which is its default.
    runtime: "local", "processes", or "nvflare": a federation over NVIDIA FLARE on this machine; in these two
    the clients are dealt over `sites` processes (default: one each). A federation on several machines:
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
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(f"settings of type {type(settings).__name__} cannot be used; give a mapping")
    doubled = sorted(set(settings or {}) & set(more))
    if doubled:
        raise InputError(f"{doubled[0]} is given twice, in settings and by name; give it once")
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
        sites=sites,
        placement=placement,
        device=device,
        threads=threads,
        data_dir=data_dir,
        checkpoint_every=checkpoint_every,
        settings={**(settings or {}), **more},
    )
    name = f"{config.method.name}-{config.data_name}"
    folder = files.chosen_folder(out, name)
    # Opened before anything is loaded: a folder that cannot be made is known at once.
    with nullcontext() if folder is None else files.open_folder(folder, keep=has_checkpoint):
        inputs = load_inputs(config)
        with show_progress(f"{config.method.name} on {config.data_name}", progress) as on_event:
            return execute(config, inputs, folder=folder, command=command, on_event=on_event)


def load_inputs(config: RunConfig, graphs: dict[Any, Graph] | None = None) -> Inputs:
    """Load the data, split it and deal it. `graphs` keeps what was loaded, for several runs on one data set.

    Raises InputError for missing files, too many clients, a split the data set does not have, ..."""
    graph = load_graph(config, graphs)
    check_graph(config, graph)
    split: Split | EdgeSplit
    if config.task == LINK_PREDICTION:
        split = make_edge_split(graph, config.split, config.split_seed)
        graph = training_graph(graph, split)
    else:
        split = make_split(graph, config.split, config.split_seed)
        check_split(graph, split)
    inputs = Inputs(graph, split, deal(config, graph))
    check_inputs(config, inputs)
    return inputs


def process_blocks(config: RunConfig, partition: Partition) -> list[list[int]]:
    """The clients of every process, in the runtimes that have some."""
    assert config.sites is not None
    return [block.tolist() for block in np.array_split(np.arange(partition.num_sites), config.sites)]


def check_graph(config: RunConfig, graph: Graph) -> None:
    """Raises InputError where the graph lacks what methods need."""
    if graph.x is None:
        raise InputError(
            f"{config.method.name} needs features, and {graph.name!r} has none; give the graph features x"
        )
    if config.task == CLASSIFICATION and not (graph.y >= 0).any():
        raise InputError(
            f"{graph.name!r} has no labels to train on; name their column in its description (label: ...)"
        )


def check_split(graph: Graph, split: Split) -> None:
    """Raises InputError for a part without vertices, and for one with vertices whose class is unknown."""
    for part in ("train", "val", "test"):
        if not getattr(split, part).any():
            raise InputError(
                f"split {split.name!r} of {graph.name!r} has no {part} vertex; every part needs one: "
                "use another split, as in 'random:0.5,0.25,0.25'"
            )
    blind = np.flatnonzero((graph.y < 0) & (split.train | split.val | split.test))
    if blind.size:
        raise InputError(
            f"vertex {graph.vertex_name(int(blind[0]))} of {graph.name!r} is in split {split.name!r} and has "
            f"no label ({blind.size} such vertices); take it out of the split, or label it"
        )


def deal(config: RunConfig, graph: Graph) -> Partition:
    """The partition of a config: made, or read from its file.

    Raises InputError for a graph that cannot be dealt so, and for a file that is another graph's."""
    if config.partition_file is None:
        return make_partition(
            graph, config.partition, config.clients, config.partition_seed, **config.partition_options
        )
    saved = Partition.load(config.partition_file)
    saved.check(graph, f"the partition in {config.partition_file}")
    return saved


def load_graph(config: RunConfig, graphs: dict[Any, Graph] | None = None) -> Graph:
    """The graph of a config, loaded once where `graphs` keeps it.

    Raises InputError for files that cannot be used."""
    if isinstance(config.data, Graph):
        return config.data
    key = (config.data, config.data_dir, tuple(config.data_options.items()))
    graphs = {} if graphs is None else graphs
    if key not in graphs:
        try:
            if isinstance(config.data, str):
                loaded = load(config.data, config.data_dir, **config.data_options)
                assert isinstance(loaded, Graph), "make_config lets only data sets of the method's task pass"
            else:
                loaded = load_description(config.data)
            graphs[key] = loaded
        except MemoryError:
            given = "".join(f", data.{key}={value}" for key, value in config.data_options.items())
            raise InputError(f"data {config.data_name!r} does not fit into memory{given}") from None
    return graphs[key]


def check_inputs(config: RunConfig, inputs: Inputs) -> None:
    """Raises InputError where the method of `config` cannot use these inputs."""
    held = np.bincount(inputs.partition.held_vertex, minlength=inputs.graph.num_nodes)
    if config.method.disjoint and held.max() > 1:
        vertex = inputs.graph.vertex_name(int(held.argmax()))
        raise InputError(
            f"{config.method.name} needs every vertex at one client only, but partition {config.partition!r} "
            f"gives vertex {vertex} to {int(held.max())}; use one that deals the vertices, as "
            "'label_dirichlet'"
        )
    here = np.bincount(inputs.partition.held_site, minlength=inputs.partition.num_sites)
    if config.method.one_vertex and (here != 1).any():
        client = int((here != 1).argmax())
        raise InputError(
            f"{config.method.name} needs one vertex at every client, but partition {config.partition!r} "
            f"gives {int(here[client])} to client {client}; use 'ego'"
        )
    if not config.method.empty_clients and not here.all():
        raise InputError(
            f"{config.method.name} needs a vertex at every client, but partition {config.partition!r} gives "
            f"none to client {int(here.argmin())}; use fewer clients or another partition"
        )
    clients = 1 if config.method.pooled else inputs.partition.num_sites
    if config.sites is not None and config.sites > clients:  # known before, but for the partition 'ego'
        raise InputError(
            f"{config.sites} sites cannot hold {clients} clients; use at most as many sites as clients"
        )
    if isinstance(inputs.split, EdgeSplit):
        scored_pairs(inputs.split, inputs.partition)
    from graphfed.nn.backbones import BACKBONES

    assert isinstance(config.training, TrainingConfig)
    backbone = config.training.backbone
    weighted = [name for name in BACKBONES if BACKBONES[name].weighted]
    if inputs.graph.edge_weight is not None and backbone not in weighted:
        raise InputError(
            f"backbone {backbone!r} has no use for edge weights, and {inputs.graph.name!r} has them; choose "
            f"{' or '.join(weighted)}, or leave the weights out (in a description: 'weight:' with nothing "
            "after it)"
        )
    if config.method.check is not None:
        config.method.check(inputs.graph, config.training)


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
    if folder is not None:
        kept = _partition_bytes(config, inputs) if own_partition else 0
        files.check_space(folder, _bytes_needed(config, inputs) + kept)
        write_manifest(folder, _manifest(config, inputs, command))
        if own_partition:
            keep_partition(folder, config, inputs)
        _write(folder, "overview.json", overview(inputs.graph, inputs.split, inputs.partition))
    return finish(config, inputs, folder=folder, start=None, on_event=on_event)


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
        pooled = _pooled_score(config, inputs, trained.outcome)
    outcome = trained.outcome
    details = {**outcome.details, "recipe": config.recipe()}
    if trained.accounts is not None:
        details["clients"] = {
            name: {"mean": column.mean(), "max": column.max()} for name, column in trained.accounts.items()
        }
    if config.task == CLASSIFICATION:
        details["test_confusion"] = outcome.test_confusion
    if pooled is not None:
        details["test_pooled"] = pooled
    result = Result(
        method=config.method.name,
        dataset=inputs.graph.name,
        task=config.task,
        clients=inputs.partition.num_sites,
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
        versions=versions(),
        details=files.plain(details),
        folder=folder,
    )
    if folder is not None:
        files.write_run(
            folder,
            history=outcome.history,
            ledger=trained.ledger.to_json(),
            result=result.to_json(),
            weights=trained.weights,
            predictions=trained.predictions,
            graph=inputs.graph,
            split=inputs.split,
            accounts=trained.accounts,
        )
    return result


def _manifest(config: RunConfig, inputs: Inputs, command: str) -> dict[str, Any]:
    """What is asked, on what, with what: known before training."""
    return {
        "command": command,
        "started": now(),
        "config": config.to_json(),
        "seeds": {"run": config.seed, "partition": config.partition_seed, "split": config.split_seed},
        "data": {
            "name": inputs.graph.name,
            "vertices": inputs.graph.num_nodes,
            "edges": inputs.split.edges.shape[1]
            if isinstance(inputs.split, EdgeSplit)
            else inputs.graph.num_edges,
            "features": inputs.graph.num_features,
            "classes": inputs.graph.num_classes,
            "class_names": inputs.graph.class_names,
            "feature_names": inputs.graph.feature_names,
            "edge_weights": inputs.graph.edge_weight is not None,
            "split": inputs.split.name,
        },
        "partition": {
            "name": config.partition,
            "options": inputs.partition.options,
            "seed": config.partition_seed,
            "file": None if config.partition_file is None else str(config.partition_file),
            "sites": inputs.partition.num_sites,
            "site_names": site_names(inputs.graph, inputs.partition),
        },
        "hashes": inputs.hashes,
        "versions": versions(),
        "device": config.device,
        "threads": _threads_of(config, inputs) if config.runtime == "local" else config.site_threads,
        "placement": config.placement if config.runtime == "local" else None,
    }


def keep_partition(folder: Path, config: RunConfig, inputs: Inputs) -> None:
    """Copy into `folder` the partition that was read from a file, so that what is in the folder can be used
    when that file is gone. GraphfedError when the disk refuses."""
    if config.partition_file is None:
        return
    try:
        inputs.partition.save(folder / files.PARTITION)
    except OSError as error:
        raise files.cannot_be_written(folder, error) from error


def _partition_bytes(config: RunConfig, inputs: Inputs) -> int:
    if config.partition_file is None:
        return 0
    return sum(column.nbytes for column in inputs.partition.tables.values())


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write manifest.json; GraphfedError when the disk refuses."""
    _write(folder, "manifest.json", manifest)


def _write(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    try:
        write_json(folder / name, files.plain(content))
    except OSError as error:
        raise files.cannot_be_written(folder, error) from error


def now() -> str:
    """The time, for a manifest: ISO 8601, UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def has_checkpoint(folder: Path) -> bool:
    """Whether training got far enough for the folder to be worth keeping."""
    return any((folder / files.CHECKPOINTS).glob("round-*/*.json"))


def _threads_of(config: RunConfig, inputs: Inputs) -> int:
    return default_threads(inputs.graph) if config.threads is None else config.threads


def _bytes_needed(config: RunConfig, inputs: Inputs) -> int:
    """About what the files of a run take: predictions, and weights in the model and in three checkpoints,
    each with the best ones and the optimiser's two moments."""
    graph, training = inputs.graph, config.training
    assert isinstance(training, TrainingConfig)
    width = training.hidden * (training.heads if training.backbone == "gat" else 1)
    models = inputs.partition.num_sites if config.method.personal else 1
    weights = 4 * width * (graph.num_features + graph.num_classes + (training.layers - 1) * width)
    rows = graph.num_nodes * (8 * graph.num_classes + 64)
    if isinstance(inputs.split, EdgeSplit):
        rows = 64 * inputs.split.edges.shape[1]
    return 13 * models * weights + rows + 1_000_000


@dataclass(frozen=True)
class _Trained:
    """What every runtime hands back."""

    outcome: "Outcome"
    ledger: "Ledger"
    weights: dict[str, np.ndarray]
    predictions: "files.Predictions | PairPredictions"
    accounts: dict[str, np.ndarray] | None


def _train(
    config: RunConfig,
    inputs: Inputs,
    folder: Path | None,
    start: int | None,
    on_event: "Callable[[Event], None] | None",
) -> _Trained:
    """Deal the cohorts and train: all places in this process, or one process each."""
    from graphfed.experiment.checkpoint import Checkpoints
    from graphfed.federation import CLIENTS
    from graphfed.federation.cohort import make_cohort
    from graphfed.methods.base import Task

    method = config.method
    partition = pooled_partition(inputs.graph) if method.pooled else inputs.partition
    task = Task(inputs.graph.num_features, inputs.graph.num_classes, config.task)

    def cohort(clients: Sequence[int]) -> "Cohort":
        return make_cohort(inputs.graph, inputs.split, partition, clients, device=config.device)

    if config.runtime == "processes":
        from graphfed.experiment.sites import train_in_processes
        from graphfed.methods.registry import METHODS

        cohorts = [cohort(block) for block in process_blocks(config, partition)]
        module = METHODS[method.name]
        outcome, ledger = train_in_processes(
            method,
            module,
            cohorts,
            task,
            config.training,
            on_event=on_event,
            threads=config.site_threads,
            checkpoints=None if folder is None else (folder, config.checkpoint_every, start),
        )
    elif config.runtime == "nvflare":
        from graphfed.experiment.trial import train_for_trial
        from graphfed.federation.cohort import Names

        names = Names(tuple(inputs.graph.feature_names), tuple(inputs.graph.class_names))
        cohorts = [cohort(block) for block in process_blocks(config, partition)]
        outcome, ledger = train_for_trial(config, cohorts, names, folder, on_event)
    else:
        from graphfed.experiment.train import train
        from graphfed.runtime.local import one_at_a_time, stacked

        place = stacked if config.placement == "stacked" else one_at_a_time
        fed = place(partition.num_sites, config.device)
        cohorts = [cohort(fed.hosts[host]) for host in fed.here]
        data = fed.locate(CLIENTS, "data", cohorts)
        checkpoints = None
        if folder is not None:
            checkpoints = Checkpoints(folder, every=config.checkpoint_every, start=start)
        outcome = train(fed, method, data, task, config.training, on_event=on_event, checkpoints=checkpoints)
        ledger = fed.ledger
    parts = [(c, *part) for c, part in zip(cohorts, outcome.predictions.parts, strict=True)]
    return _Trained(
        outcome,
        ledger,
        _model_arrays(method, outcome),
        predictions_of(config, inputs, parts, partition),
        _accounts(outcome),
    )


def _accounts(outcome: "Outcome") -> dict[str, np.ndarray] | None:
    """What the clients say of themselves, a column each, in the order of their ids."""
    if outcome.accounts is None:
        return None
    parts = outcome.accounts.parts
    return {name: np.concatenate([part[name].cpu().numpy() for part in parts]) for name in parts[0]}


def predictions_of(
    config: RunConfig, inputs: Inputs, parts: "list[tuple[Cohort, Any, Any]]", partition: Partition
) -> "files.Predictions | PairPredictions":
    """What every host predicts, (cohort, rows or pairs [n], logits or scores) each, by vertex and site.
    partition: the one trained on."""
    owners = inputs.partition if config.method.pooled else None
    names = site_names(inputs.graph, inputs.partition)
    if config.task == LINK_PREDICTION:
        return cohort_pairs(parts, partition, owners, names)
    return dataclasses.replace(cohort_predictions(parts, partition, owners), site_names=names)


def _model_arrays(method: "Method", outcome: "Outcome") -> dict[str, np.ndarray]:
    """The arrays of model.safetensors (see `weight_arrays`). Of a model in several values the names begin
    with the value's."""
    from graphfed.federation.payload import part_of

    arrays: dict[str, np.ndarray] = {}
    for name in method.model:
        parts = outcome.state.values[name].parts
        if name in method.replicated:
            parts = parts[:1]
        elif method.pooled:
            parts = tuple(part_of(w, 0) for w in parts)  # the only client's are the model
        prefix = f"{name}." if len(method.model) > 1 else ""
        arrays |= {prefix + key: array for key, array in files.weight_arrays(parts).items()}
    return arrays


def pooled_partition(graph: Graph) -> Partition:
    """Everything at one client, for the methods that train centrally."""
    return from_assignment(graph, np.zeros(graph.num_nodes, dtype=np.int64))


def _pooled_score(config: RunConfig, inputs: Inputs, outcome: "Outcome") -> dict[str, Any] | None:
    """The shared model scored on the whole graph: another question than `test`, so it stands beside it.

    None where there is no shared model, or where `test` asks this already."""
    from graphfed.experiment.train import pooled_score

    if not config.method.shared_model or isinstance(inputs.split, EdgeSplit):
        return None
    (weights,) = outcome.state.weights.parts
    assert isinstance(config.training, TrainingConfig)
    return pooled_score(config.method, inputs.graph, inputs.split, weights, config.training)


def cohort_predictions(
    parts: "list[tuple[Cohort, Any, Any]]", partition: Partition, owners: Partition | None
) -> files.Predictions:
    """Rows of cohorts -> vertices and sites. `owners`: names the sites where training was pooled."""
    sites, ids, logits = [], [], []
    for cohort, rows, part in parts:
        row = rows.cpu().numpy()
        sites.append(np.asarray(cohort.clients)[cohort.client.cpu().numpy()[row]])
        ids.append(cohort.id.cpu().numpy()[row])
        logits.append(part.detach().cpu().numpy())
    site, held_id = np.concatenate(sites), np.concatenate(ids)
    width = int(partition.held_id.max(initial=0)) + 1
    held = np.searchsorted(partition.held_site * width + partition.held_id, site * width + held_id)
    vertex = partition.held_vertex[held]
    if owners is not None:
        site_of = np.full(int(owners.held_vertex.max(initial=0)) + 1, -1)
        # Where a vertex has owned copies at several sites, the lowest site stands.
        owned = np.flatnonzero(owners.held_owner)[::-1]
        site_of[owners.held_vertex[owned]] = owners.held_site[owned]
        site = site_of[vertex]
    return files.Predictions(vertex, site, np.concatenate(logits))


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
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(max(peaks) * unit / 1e6, 1)


def versions() -> dict[str, str]:
    """Of the programs that a run's numbers depend on."""
    import scipy
    import torch

    from graphfed import __version__

    return {
        "graphfed": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }

"""What a run on a graph trains on: the graph, its split and how it is dealt over sites (see
`inputs.Inputs`)."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.link_splits import EdgeSplit, make_edge_split, scored_pairs, training_graph
from graphfed.data.graphs.overview import overview, site_names
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import Partition, from_assignment
from graphfed.data.partitions.partition import partition as make_partition
from graphfed.data.user_files.graph_description import Description
from graphfed.data.user_files.graph_files import load_description
from graphfed.errors import InputError
from graphfed.methods.base import Task, TrainingConfig
from graphfed.methods.common.memory import GraphExtent, graph_memory
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION
from graphfed.tasks.node_table import Predictions, predictions_table
from graphfed.tasks.pair_table import PairPredictions, cohort_pairs, pairs_table
from graphfed.tasks.pooled_score import pooled_score
from graphfed.tasks.run_config import RunConfig, default_threads, no_stages

if TYPE_CHECKING:
    from graphfed.federation.cohort import Cohort
    from graphfed.methods.base import Method
    from graphfed.tasks.outcome import Outcome

__all__ = [
    "GraphInputs",
    "check_graph",
    "check_split",
    "cohort_predictions",
    "deal",
    "load_graph",
    "load_graph_inputs",
    "pooled_partition",
    "predictions_of",
]


@dataclass(frozen=True, eq=False)
class GraphInputs:
    """In link prediction the graph has the training edges only, and so has the partition. unread: as
    `DataSource.dropped`."""

    graph: Graph
    split: Split | EdgeSplit
    partition: Partition
    unread: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def hashes(self) -> dict[str, str]:
        """The data's is that of the whole graph."""
        whole = self.split.graph_hash if isinstance(self.split, EdgeSplit) else self.graph.hash
        return {"data": whole, "split": self.split.hash, "partition": self.partition.hash}

    @property
    def dropped(self) -> tuple[str, ...]:
        return self.unread + self.graph.dropped

    @property
    def num_clients(self) -> int:
        return self.partition.num_sites

    def task(self, name: str) -> Task:
        return Task(self.graph.num_features, self.graph.num_classes, name)

    def check(self, config: RunConfig) -> None:
        """Raises InputError where the method of `config` cannot use these inputs."""
        held = np.bincount(self.partition.held_vertex, minlength=self.graph.num_nodes)
        if config.method.disjoint and held.max() > 1:
            vertex = self.graph.vertex_name(int(held.argmax()))
            raise InputError(
                f"{config.method.name} needs every vertex at one client only, but partition "
                f"{config.partition!r} gives vertex {vertex} to {int(held.max())}; use one that deals the "
                "vertices, as 'label_dirichlet'"
            )
        here = np.bincount(self.partition.held_site, minlength=self.partition.num_sites)
        if config.method.one_vertex and (here != 1).any():
            client = int((here != 1).argmax())
            raise InputError(
                f"{config.method.name} needs one vertex at every client, but partition {config.partition!r} "
                f"gives {int(here[client])} to client {client}; use 'ego'"
            )
        if not config.method.empty_clients and not here.all():
            raise InputError(
                f"{config.method.name} needs a vertex at every client, but partition {config.partition!r} "
                f"gives none to client {int(here.argmin())}; use fewer clients or another partition"
            )
        clients = 1 if config.method.pooled else self.partition.num_sites
        if config.sites is not None and config.sites > clients:  # known before, but for the partition 'ego'
            raise InputError(
                f"{config.sites} sites cannot hold {clients} clients; use at most as many sites as clients"
            )
        if isinstance(self.split, EdgeSplit):
            scored_pairs(self.split, self.partition)
        from graphfed.nn.backbones import BACKBONES

        assert isinstance(config.training, TrainingConfig)
        backbone = config.training.backbone
        weighted = [name for name in BACKBONES if BACKBONES[name].weighted]
        uses_edges = config.training.network.uses_edges
        if self.graph.edge_weight is not None and uses_edges and backbone not in weighted:
            raise InputError(
                f"backbone {backbone!r} has no use for edge weights, and {self.graph.name!r} has them; "
                f"choose {' or '.join(weighted)}, or leave the weights out (in a description: 'weight:' with "
                "nothing after it)"
            )
        if config.method.check is not None:
            config.method.check(self.graph, config.training)

    def described(self, config: RunConfig) -> dict[str, Any]:
        graph, split = self.graph, self.split
        return {
            "data": {
                "name": graph.name,
                "vertices": graph.num_nodes,
                "edges": split.edges.shape[1] if isinstance(split, EdgeSplit) else graph.num_edges,
                "features": graph.num_features,
                "classes": graph.num_classes,
                "class_names": graph.class_names,
                "feature_names": graph.feature_names,
                "edge_weights": graph.edge_weight is not None,
                "dropped": list(self.dropped),
                "split": split.name,
            },
            "partition": {
                "name": config.partition,
                "options": self.partition.options,
                "seed": config.partition_seed,
                "file": None if config.partition_file is None else str(config.partition_file),
                "sites": self.partition.num_sites,
                "site_names": site_names(graph, self.partition),
            },
        }

    def overview(self) -> dict[str, Any]:
        return overview(self.graph, self.split, self.partition) | {"dropped": list(self.dropped)}

    def threads(self) -> int:
        return default_threads(self.graph)

    def bytes_needed(self, config: RunConfig) -> int:
        graph, training = self.graph, config.training
        assert isinstance(training, TrainingConfig)
        width = training.hidden * (training.heads if training.backbone == "gat" else 1)
        models = self.partition.num_sites if config.method.personal else 1
        weights = 4 * width * (graph.num_features + graph.num_classes + (training.layers - 1) * width)
        rows = graph.num_nodes * (8 * graph.num_classes + 64)
        if isinstance(self.split, EdgeSplit):
            rows = 64 * self.split.edges.shape[1]
        return 13 * models * weights + rows + 1_000_000

    def memory_needed(self, config: RunConfig) -> int:
        training, method = config.training, config.method
        assert isinstance(training, TrainingConfig)
        extent = self._extent(config)
        extra = 0.0 if method.memory is None else method.memory(extent, training)
        return graph_memory(extent, training, personal=method.personal, extra=extra)

    def _extent(self, config: RunConfig) -> GraphExtent:
        """The counts of what a run trains on."""
        graph, dealt = self.graph, self._trained_on(config)
        ends = np.concatenate([dealt.edge_u, dealt.edge_v, dealt.cut_id])
        elsewhere = np.stack([dealt.cut_site, dealt.cut_remote_id])
        closure = np.concatenate([dealt.held_id, np.unique(elsewhere, axis=1)[1]])
        degrees = np.bincount(ends, minlength=int(closure.max(initial=0)) + 1)
        rows, x, sparse = len(dealt.held_id), graph.x, False
        stored = rows * graph.num_features
        if x is not None and not isinstance(x, np.ndarray):
            sparse, stored = True, x.nnz * rows // max(1, graph.num_nodes)
        return GraphExtent(
            clients=dealt.num_sites,
            rows=rows,
            edges=2 * len(dealt.edge_u),
            closure=len(closure),
            features=graph.num_features,
            classes=graph.num_classes,
            stored=stored,
            sparse=sparse,
            scored_edges=2 * graph.num_edges if config.method.shared_model else 0,
            sizes=degrees[closure] + 1,
        )

    def bytes_of_partition(self) -> int:
        return sum(column.nbytes for column in self.partition.tables.values())

    def save_partition(self, path: Path) -> None:
        self.partition.save(path)

    def clients_of(self, method: "Method") -> int:
        return 1 if method.pooled else self.partition.num_sites

    def parts(self, config: RunConfig, hosts: "Sequence[Sequence[int]]") -> "list[Cohort]":
        from graphfed.federation.cohort import make_cohort
        from graphfed.methods.common.local_training import as_configured

        dealt, ids = self._trained_on(config), self._stable_ids(config)
        made = (
            make_cohort(self.graph, self.split, dealt, host, stable_ids=ids, device=config.device)
            for host in hosts
        )
        return [as_configured(cohort, config.training) for cohort in made]

    def part_of_server(self, config: RunConfig) -> None:
        """The server has no data."""

    def save_for_site(self, part: "Cohort", path: Path) -> None:
        from graphfed.federation.cohort import Names, save_cohort

        save_cohort(part, path, Names(tuple(self.graph.feature_names), tuple(self.graph.class_names)))

    def _trained_on(self, config: RunConfig) -> Partition:
        return pooled_partition(self.graph) if config.method.pooled else self.partition

    def _stable_ids(self, config: RunConfig) -> np.ndarray | None:
        """The ids that cohorts have in the place of the partition's (see `stable_ids_of`), or None."""
        from graphfed.federation.cohort import stable_ids_of

        return None if config.method.numbered else stable_ids_of(self.graph, self._trained_on(config))

    def tables(
        self,
        config: RunConfig,
        predicted: "Sequence[tuple[Cohort, Any]]",
        names: Sequence[str] | None = None,
    ) -> Iterator[Any]:
        """One table: see `node_table` and `pair_table`. predicted: (cohort, (rows
        or pairs [n], logits or scores)) of each host; names: of the model's classes, where they are not the
        graph's."""
        from graphfed.federation.cohort import with_partition_ids

        ids = self._stable_ids(config)
        parts = [(with_partition_ids(cohort, ids), *part) for cohort, part in predicted]
        told = predictions_of(config, self, parts, self._trained_on(config))
        if isinstance(told, PairPredictions):
            yield pairs_table(told, self.graph)
        else:
            assert isinstance(self.split, Split)
            yield predictions_table(told, self.graph, self.split, names)

    def details(self, config: RunConfig, outcome: "Outcome") -> dict[str, Any]:
        told: dict[str, Any] = {}
        if config.task == CLASSIFICATION:
            told["test_confusion"] = outcome.test_confusion
        pooled = self._pooled_score(config, outcome)
        return told if pooled is None else {**told, "test_pooled": pooled}

    def _pooled_score(self, config: RunConfig, outcome: "Outcome") -> dict[str, Any] | None:
        """The shared model scored on the whole graph: another question than `test`, so it stands beside it.

        None where there is no shared model, or where `test` asks this already."""

        if not config.method.shared_model or isinstance(self.split, EdgeSplit):
            return None
        (weights,) = outcome.state.weights.parts
        assert isinstance(config.training, TrainingConfig)
        return pooled_score(config.method, self.graph, self.split, weights, config.training, outcome.scaling)


def load_graph_inputs(
    config: RunConfig, loaded: dict[Any, Any] | None = None, on_stage: Callable[[str], None] = no_stages
) -> GraphInputs:
    """What `inputs.load_inputs` gives where the data is a graph."""
    on_stage(f"loading {config.data_name}")
    graph = load_graph(config, loaded)
    check_graph(config, graph)
    on_stage(f"splitting {graph.num_nodes} nodes")
    split: Split | EdgeSplit
    if config.task == LINK_PREDICTION:
        split = make_edge_split(graph, config.split, config.split_seed)
        graph = training_graph(graph, split)
    else:
        split = make_split(graph, config.split, config.split_seed)
        check_split(graph, split)
    on_stage(f"partitioning {graph.num_nodes} nodes and {graph.num_edges} edges ({config.partition})")
    inputs = GraphInputs(graph, split, deal(config, graph), config.data_source.dropped)
    inputs.check(config)
    return inputs


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


def load_graph(config: RunConfig, graphs: dict[Any, Any] | None = None) -> Graph:
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
                assert isinstance(config.data, Description)
                loaded = load_description(config.data)
            graphs[key] = loaded
        except MemoryError:
            given = "".join(f", data.{key}={value}" for key, value in config.data_options.items())
            raise InputError(f"data {config.data_name!r} does not fit into memory{given}") from None
    graph = graphs[key]
    assert isinstance(graph, Graph)
    return graph


def pooled_partition(graph: Graph) -> Partition:
    """Everything at one client, for the methods that train centrally."""
    return from_assignment(graph, np.zeros(graph.num_nodes, dtype=np.int64))


def predictions_of(
    config: RunConfig, inputs: GraphInputs, parts: "list[tuple[Cohort, Any, Any]]", partition: Partition
) -> Predictions | PairPredictions:
    """What every host predicts, (cohort, rows or pairs [n], logits or scores) each, by vertex and site.
    partition: the one trained on."""
    owners = inputs.partition if config.method.pooled else None
    names = site_names(inputs.graph, inputs.partition)
    if config.task == LINK_PREDICTION:
        return cohort_pairs(parts, partition, owners, names)
    return dataclasses.replace(cohort_predictions(parts, partition, owners), site_names=names)


def cohort_predictions(
    parts: "list[tuple[Cohort, Any, Any]]", partition: Partition, owners: Partition | None
) -> Predictions:
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
    return Predictions(vertex, site, np.concatenate(logits))

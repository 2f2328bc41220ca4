"""What a run on a graph trains on, whatever its task: the graph, its split, its partition over clients (see
`tasks.inputs`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.link_splits import EdgeSplit
from graphfed.data.graphs.overview import client_names, overview
from graphfed.data.partitions.partition import Partition, from_assignment
from graphfed.data.partitions.partition import partition as make_partition
from graphfed.data.user_files.graph_description import Description
from graphfed.data.user_files.graph_files import load_description
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.methods.base import Task
from graphfed.methods.common.memory import GraphExtent, graph_memory
from graphfed.methods.config import GraphSettings
from graphfed.tasks.run_config import RunConfig, default_threads, no_stages
from graphfed.tasks.source import LoadedData

if TYPE_CHECKING:
    from torch import Tensor

    from graphfed.federation.cohort import Cohort
    from graphfed.methods.base import Method
    from graphfed.tasks.evaluation import Predicted

__all__ = ["GraphInputs", "check_features", "load_graph", "partition_graph", "pooled_partition"]


@dataclass(frozen=True, eq=False)
class GraphInputs:
    """The part of `tasks.inputs.Inputs` that all tasks on graphs share.

    Attributes:
        graph: What is trained on: in link prediction with the training edges only.
        split: Of its nodes, or of its edges.
        partition: Of `graph` over clients.
        unread: As `DataSource.dropped`.
    """

    graph: Graph
    split: Split | EdgeSplit
    partition: Partition
    unread: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def hashes(self) -> dict[str, str]:
        return {"data": self.graph.hash, "split": self.split.hash, "partition": self.partition.hash}

    @property
    def num_edges(self) -> int:
        """Of the whole graph, undirected."""
        return self.graph.num_edges

    @property
    def dropped(self) -> tuple[str, ...]:
        return self.unread + self.graph.dropped

    @property
    def num_clients(self) -> int:
        return self.partition.num_clients

    def task(self, name: str) -> Task:
        return Task(self.graph.num_features, self.graph.num_classes, name)

    def check(self, config: RunConfig) -> None:
        """Raises InputError where the method of `config` cannot use these inputs."""
        held = np.bincount(self.partition.held_node, minlength=self.graph.num_nodes)
        if config.method.requires.disjoint and held.max() > 1:
            node = self.graph.node_name(int(held.argmax()))
            raise InputError(
                f"{config.method.name} needs every node at one client only, but partition "
                f"{config.partition!r} gives node {node} to {int(held.max())}; use one that deals the "
                "nodes, as 'label_dirichlet'"
            )
        here = np.bincount(self.partition.held_client, minlength=self.partition.num_clients)
        if config.method.requires.nodes_per_client == "one" and (here != 1).any():
            client = int((here != 1).argmax())
            raise InputError(
                f"{config.method.name} needs one node at every client, but partition {config.partition!r} "
                f"gives {int(here[client])} to client {client}; use 'ego'"
            )
        if not config.method.requires.empty_clients and not here.all():
            raise InputError(
                f"{config.method.name} needs a node at every client, but partition {config.partition!r} "
                f"gives none to client {int(here.argmin())}; use fewer clients or another partition"
            )
        clients = 1 if config.method.pooled else self.partition.num_clients
        # Known before, except with the partition 'ego'.
        if config.workers is not None and config.workers > clients:
            raise InputError(
                f"{config.workers} workers cannot hold {clients} clients; use at most as many workers as "
                "clients"
            )
        from graphfed.nn.backbones import BACKBONES

        assert isinstance(config.training, GraphSettings)
        backbone = config.training.architecture
        weighted = [name for name in BACKBONES if BACKBONES[name].weighted]
        uses_edges = config.training.network.uses_edges
        if self.graph.edge_weight is not None and uses_edges and backbone not in weighted:
            raise InputError(
                f"backbone {backbone!r} has no use for edge weights, and {self.graph.name!r} has them; "
                f"choose {' or '.join(weighted)}, or leave the weights out (in a description: 'weight:' with "
                "nothing after it)"
            )
        if config.method.requires.check is not None:
            config.method.requires.check(self.graph, config.training)

    def described(self, config: RunConfig) -> JsonObject:
        graph, split = self.graph, self.split
        return {
            "data": {
                "name": graph.name,
                "nodes": graph.num_nodes,
                "edges": self.num_edges,
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
                "clients": self.partition.num_clients,
                "client_names": client_names(graph, self.partition),
            },
        }

    def overview(self) -> JsonObject:
        return overview(self.graph, self.split, self.partition) | {"dropped": list(self.dropped)}

    def threads(self) -> int:
        return default_threads(self.graph)

    def bytes_needed(self, config: RunConfig) -> int:
        graph, training = self.graph, config.training
        assert isinstance(training, GraphSettings)
        width = training.hidden * (training.attention_heads if training.architecture == "gat" else 1)
        models = self.partition.num_clients if config.method.personal else 1
        weights = 4 * width * (graph.num_features + graph.num_classes + (training.layers - 1) * width)
        return 13 * models * weights + self.bytes_of_predictions() + 1_000_000

    def bytes_of_predictions(self) -> int:
        """About what predictions.parquet takes: of classes."""
        return self.graph.num_nodes * (8 * self.graph.num_classes + 64)

    def memory_needed(self, config: RunConfig) -> int:
        training, method = config.training, config.method
        assert isinstance(training, GraphSettings)
        extent = self._extent(config)
        extra = 0.0 if method.memory is None else method.memory(extent, training)
        return graph_memory(extent, training, personal=method.personal, extra=extra)

    def _extent(self, config: RunConfig) -> GraphExtent:
        """The counts of what a run trains on."""
        graph, dealt = self.graph, self.trained_on(config)
        ends = np.concatenate([dealt.edge_u, dealt.edge_v, dealt.cross_id])
        elsewhere = np.stack([dealt.cross_local_client, dealt.cross_remote_id])
        closure = np.concatenate([dealt.held_id, np.unique(elsewhere, axis=1)[1]])
        degrees = np.bincount(ends, minlength=int(closure.max(initial=0)) + 1)
        rows, x, sparse = len(dealt.held_id), graph.x, False
        stored = rows * graph.num_features
        if x is not None and not isinstance(x, np.ndarray):
            sparse, stored = True, x.nnz * rows // max(1, graph.num_nodes)
        return GraphExtent(
            clients=dealt.num_clients,
            rows=rows,
            edges=2 * len(dealt.edge_u),
            closure=len(closure),
            features=graph.num_features,
            classes=graph.num_classes,
            stored=stored,
            sparse=sparse,
            scored_edges=2 * graph.num_edges if config.method.state.shared_model else 0,
            sizes=degrees[closure] + 1,
        )

    def bytes_of_partition(self) -> int:
        return sum(column.nbytes for column in self.partition.tables.values())

    def save_partition(self, path: Path) -> None:
        self.partition.save(path)

    def clients_of(self, method: "Method") -> int:
        return 1 if method.pooled else self.partition.num_clients

    def parts(self, config: RunConfig, workers: "Sequence[Sequence[int]]") -> "list[Cohort]":
        from graphfed.federation.cohort import make_cohort
        from graphfed.methods.common.local_training import as_configured

        dealt, ids = self.trained_on(config), self.stable_ids(config)
        made = (
            make_cohort(self.graph, self.split, dealt, worker, stable_ids=ids, device=config.device)
            for worker in workers
        )
        return [as_configured(cohort, config.training) for cohort in made]

    def part_of_server(self, config: RunConfig) -> None:
        """The server has no data."""

    def save_for_client(self, part: "Cohort", path: Path) -> None:
        from graphfed.federation.cohort import Names, save_cohort

        save_cohort(part, path, Names(tuple(self.graph.feature_names), tuple(self.graph.class_names)))

    def present(self, absent: Sequence[object]) -> None:
        """Every client takes part in predicting."""

    def trained_on(self, config: RunConfig) -> Partition:
        """The partition that the method of a run trains on."""
        return pooled_partition(self.graph) if config.method.pooled else self.partition

    def stable_ids(self, config: RunConfig) -> np.ndarray | None:
        """The ids that cohorts have in the place of the partition's (see `stable_ids_of`), or None."""
        from graphfed.federation.cohort import stable_ids_of

        return None if config.method.requires.numbered else stable_ids_of(self.graph, self.trained_on(config))

    def with_partition_ids(
        self, config: RunConfig, predicted: "Sequence[tuple[Cohort, Predicted]]"
    ) -> "list[tuple[Cohort, Tensor, Tensor]]":
        """What each host predicts, (cohort, rows or pairs [n], logits or scores), with the ids of the
        partition in the cohorts."""
        from graphfed.federation.cohort import with_partition_ids

        ids = self.stable_ids(config)
        return [(with_partition_ids(cohort, ids), *part) for cohort, part in predicted]

    def owners(self, config: RunConfig) -> Partition | None:
        """The partition that names the clients of predictions where training was pooled, or None."""
        return self.partition if config.method.pooled else None

    @property
    def client_names(self) -> tuple[str, ...]:
        """What the data calls the clients; () where it does not name them."""
        return client_names(self.graph, self.partition)


def check_features(config: RunConfig, graph: Graph) -> None:
    """Raises InputError where the graph has no features, which every method needs."""
    if graph.x is None:
        raise InputError(
            f"{config.method.name} needs features, and {graph.name!r} has none; give the graph features x"
        )


def partition_graph(
    config: RunConfig, graph: Graph, on_stage: Callable[[str], None] = no_stages
) -> Partition:
    """Make the partition of a run, or read it from its file.

    Args:
        config: The run.
        graph: What is trained on.
        on_stage: Called with what begins, in words.

    Raises:
        InputError: The graph cannot be partitioned so, or the file is of another graph.
    """
    on_stage(f"partitioning {graph.num_nodes} nodes and {graph.num_edges} edges ({config.partition})")
    if config.partition_file is None:
        return make_partition(
            graph, config.partition, config.clients, config.partition_seed, **config.partition_options
        )
    saved = Partition.load(config.partition_file)
    saved.check(graph, f"the partition in {config.partition_file}")
    return saved


def load_graph(config: RunConfig, graphs: LoadedData | None = None) -> Graph:
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

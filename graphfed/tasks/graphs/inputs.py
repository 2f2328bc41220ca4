"""The inputs of tasks on graphs: a graph, its split and its partition among clients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.dropped import features_in_one_line
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.link_splits import EdgeSplit
from graphfed.data.graphs.overview import client_names, overview
from graphfed.data.partitions.partition import Partition, from_assignment
from graphfed.data.partitions.partition import partition as make_partition
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.methods.base import Task
from graphfed.methods.common.feature_gaps import check_gaps
from graphfed.methods.common.sizes import CHECKPOINT_BYTES, GraphExtent, network_numbers, num_moments
from graphfed.methods.settings import value
from graphfed.tasks.inputs import Inputs, OnStage, load_once
from graphfed.tasks.run_config import RunConfig, default_threads, no_stages
from graphfed.tasks.source import LoadedData

if TYPE_CHECKING:
    import scipy.sparse as sp
    from torch import Tensor

    from graphfed.federation.cohort import Cohort
    from graphfed.methods.base import Method
    from graphfed.tasks.evaluation import Predicted


@dataclass(frozen=True, eq=False)
class GraphInputs(Inputs):
    """The inputs of a task on graphs.

    In link prediction `graph` has the training edges only. `unread` describes the unused keys of the data's
    description (`DataSource.dropped`), `unused` what the network does not use of the edges, and
    `unknown_values` those that a trained model does not know.
    """

    graph: Graph
    split: Split | EdgeSplit
    partition: Partition
    unread: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    unknown_values: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def hashes(self) -> dict[str, str]:
        return {"data": self.graph.hash, "split": self.split.hash, "partition": self.partition.hash}

    @property
    def num_edges(self) -> int:
        """The number of undirected edges of the whole graph."""
        return self.graph.num_edges

    @property
    def dropped(self) -> tuple[str, ...]:
        return self.unread + self.unused + self.graph.dropped

    def of_run(self, config: RunConfig) -> "GraphInputs":
        return replace(self, unused=unread_edges(config, self.graph))

    @property
    def feature_line(self) -> tuple[str, ...]:
        names = self.graph.feature_names
        return (features_in_one_line(names),) if names else ()

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.graph.remarks

    @property
    def num_clients(self) -> int:
        return self.partition.num_clients

    def task(self, name: str) -> Task:
        graph = self.graph
        task = Task(graph.num_features, graph.num_classes, name, graph.filled)
        if graph.directed is None:
            return task
        edges = graph.directed
        return replace(task, edge_features=len(edges.names), directed=not edges.symmetric)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        check_gaps(self.graph.filled, config.method)
        held = np.bincount(self.partition.held_node, minlength=self.graph.num_nodes)
        if config.method.requires.disjoint and held.max() > 1:
            node = self.graph.node_name(int(held.argmax()))
            raise InputError(
                f"{config.method.name} needs every node at exactly one client, but partition "
                f"{config.partition!r} has node {node} at {int(held.max())} clients; use a partition that "
                "assigns each node to one client, such as 'label_dirichlet'"
            )
        size = np.bincount(self.partition.held_client, minlength=self.partition.num_clients)
        if config.method.requires.nodes_per_client == "one" and (size != 1).any():
            client = int((size != 1).argmax())
            raise InputError(
                f"{config.method.name} needs exactly one node at every client, but partition "
                f"{config.partition!r} has {int(size[client])} nodes at client {client}; use 'ego'"
            )
        if not config.method.requires.empty_clients and not size.all():
            raise InputError(
                f"{config.method.name} needs a node at every client, but partition {config.partition!r} "
                f"has no node at client {int(size.argmin())}; use fewer clients or another partition"
            )
        from graphfed.nn.backbones import BACKBONES

        backbone = value(config.settings, "backbone")
        refused = [name for name, network in BACKBONES.items() if network.uses_edges and not network.weighted]
        weighted = [name for name, network in BACKBONES.items() if network.weighted]
        # Training that ignores the weights would use another graph than the user gave.
        if self.graph.edge_weight is not None and backbone in refused:
            raise InputError(
                f"backbone {backbone!r} cannot use edge weights, and {self.graph.name!r} has edge "
                f"weights; "
                f"choose {' or '.join(weighted)}, or omit the weights (in a description: 'weight:' with "
                "nothing after it"
                + (
                    "; 'edge_features: [COLUMN]' makes them an attribute)"
                    if BACKBONES[backbone].directed
                    else ")"
                )
            )
        if config.method.requires.check is not None:
            config.method.requires.check(self.graph, config.settings)

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
                "filled": list(graph.filled),
                "categories": {name: list(names) for name, names in graph.categories.items()},
                "edge_weights": graph.edge_weight is not None,
                "edge_features": () if graph.directed is None else graph.directed.names,
                "directed": graph.directed is not None and not graph.directed.symmetric,
                "dropped": list(self.dropped),
                "remarks": list(self.graph.remarks),
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
        return overview(self.graph, self.split, self.partition) | {
            "dropped": list(self.dropped),
            "remarks": list(self.graph.remarks),
        }

    def threads(self) -> int:
        return default_threads(self.graph)

    def bytes_needed(self, config: RunConfig) -> int:
        graph, settings, method = self.graph, config.settings, config.method
        if method.checkpoint is not None:
            numbers = method.checkpoint(self._extent(config), settings)
        else:
            clients, pairs = 1, None
            if method.personal:
                extent = self._extent(config)
                clients, pairs = extent.clients, extent.pairs
            network = network_numbers(
                settings.network,
                graph.num_features,
                graph.num_classes,
                clients=clients,
                pairs=pairs,
                edges=graph.directed,
            )
            numbers = (2 + num_moments(settings.training.optimizer)) * network
        return CHECKPOINT_BYTES * numbers + self.bytes_of_predictions() + 1_000_000

    def bytes_of_predictions(self) -> int:
        """Estimate the size of predictions.parquet, which has a probability for each node and class."""
        return self.graph.num_nodes * (8 * self.graph.num_classes + 64)

    def _extent(self, config: RunConfig) -> GraphExtent:
        """Count the parts of the data on which the size of a checkpoint depends."""
        graph, trained_on, x = self.graph, self.trained_on(config), self.graph.x
        pairs = trained_on.num_clients * graph.num_features
        # features=robust stores all features densely.
        if x is not None and not isinstance(x, np.ndarray) and config.settings.inputs.features != "robust":
            alone = config.method.personal and not config.method.sends.messages
            centred = config.settings.inputs.features == "scaled"
            pairs = _stored_pairs(x.tocsr(), trained_on, alone=alone, centred=centred)
        return GraphExtent(trained_on.num_clients, graph.num_features, graph.num_classes, pairs)

    def bytes_of_partition(self) -> int:
        return sum(column.nbytes for column in self.partition.tables.values())

    def save_partition(self, path: Path) -> None:
        self.partition.save(path)

    def clients_of(self, method: "Method") -> int:
        return 1 if method.pooled else self.partition.num_clients

    def parts(self, config: RunConfig, workers: "Sequence[Sequence[int]]") -> "list[Cohort]":
        from graphfed.federation.cohort import make_cohort
        from graphfed.methods.common.local_training import as_configured

        trained_on, ids = self.trained_on(config), self.stable_ids(config)
        cohorts = (
            make_cohort(self.graph, self.split, trained_on, worker, stable_ids=ids, device=config.device)
            for worker in workers
        )
        return [as_configured(cohort, config.settings) for cohort in cohorts]

    def save_for_client(self, part: "Cohort", path: Path) -> None:
        from graphfed.federation.cohort import Names, save_cohort

        save_cohort(part, path, Names(tuple(self.graph.feature_names), tuple(self.graph.class_names)))

    def trained_on(self, config: RunConfig) -> Partition:
        """Return the partition that a run trains on: its own, or one client with all nodes."""
        return pooled_partition(self.graph) if config.method.pooled else self.partition

    def stable_ids(self, config: RunConfig) -> np.ndarray | None:
        """Return the ids in cohorts (see `stable_ids_of`); None if they are those of the partition."""
        from graphfed.federation.cohort import stable_ids_of

        return None if config.method.requires.numbered else stable_ids_of(self.graph, self.trained_on(config))

    def with_partition_ids(
        self, config: RunConfig, predicted: "Sequence[tuple[Cohort, Predicted]]"
    ) -> "list[tuple[Cohort, Tensor, Tensor]]":
        """Put the partition's ids into the cohorts of predictions.

        The result is (cohort, rows or pairs [n], logits [n, C] or scores [n]) of each worker.
        """
        from graphfed.federation.cohort import with_partition_ids

        ids = self.stable_ids(config)
        return [(with_partition_ids(cohort, ids), *part) for cohort, part in predicted]

    def owners(self, config: RunConfig) -> Partition | None:
        """Return the partition that gives the clients of predictions if training was pooled, else None."""
        return self.partition if config.method.pooled else None

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names that the data gives to the clients; () if it gives none."""
        return client_names(self.graph, self.partition)


def _stored_pairs(x: "sp.csr_matrix", trained_on: Partition, *, alone: bool, centred: bool) -> int:
    """Count the pairs of a client and a feature, of x [N, F], that a node of the client has set.

    With `alone` every client scales its features by its own data only. With `centred` the features that are
    often set are centred, by one client or, if it is not alone, by all together; no zeros of them stay zeros.
    """
    from graphfed.methods.common.feature_scaling import SPARSE

    # The rows of all clients, one client after the other; a shared node has a row for each of its clients.
    entries, features = x[trained_on.held_node].tocoo(), x.shape[1]
    client = trained_on.held_client[entries.row].astype(np.int64)
    # One code for each pair of a client and a feature, of which only the feature is needed below.
    pair_feature = np.unique(client * features + entries.col) % features
    if not centred:
        return len(pair_feature)
    # The clients that compute a scaling: each on its own, or all of them as one (0).
    scale = client if alone else np.zeros_like(client)
    size = np.bincount(trained_on.held_client, minlength=1) if alone else [len(trained_on.held_client)]
    code, count = np.unique(scale * features + entries.col, return_counts=True)
    often = np.unique(code[count * SPARSE >= np.asarray(size)[code // features]] % features)
    return int((~np.isin(pair_feature, often)).sum()) + trained_on.num_clients * len(often)


def unread_edges(config: RunConfig, graph: Graph) -> tuple[str, ...]:
    """Describe what the network of a run does not use of the edges as the data lists them.

    The last phrase names the method's networks that use it, if there are any.
    """
    from graphfed.nn.backbones import BACKBONES

    backbone = value(config.settings, "backbone", "")
    reads = backbone in BACKBONES and BACKBONES[backbone].directed
    if graph.directed is None or reads or not graph.directed.unread:
        return ()
    every = tuple(BACKBONES) if "backbone" in config.method.tree.names else ()
    offered = config.method.offers.get("backbone", every)
    better = [name for name in offered if BACKBONES[name].directed]
    *first, last = graph.directed.unread
    return (*first, f"{last}, which backbone={' or '.join(better)} uses" if better else last)


def check_features(config: RunConfig, graph: Graph) -> None:
    """Raise InputError if a graph has no features, which every method needs."""
    if graph.x is None:
        raise InputError(
            f"{config.method.name} needs features, and {graph.name!r} has none; give the graph features x"
        )


def partition_graph(config: RunConfig, graph: Graph, on_stage: OnStage = no_stages) -> Partition:
    """Compute the partition of a run, or read it from its file.

    Raises InputError if the graph cannot be partitioned as the run asks, or the file is of another graph.
    """
    on_stage(f"partitioning {graph.num_nodes} nodes and {graph.num_edges} edges ({config.partition})")
    if config.partition_file is None:
        return make_partition(
            graph, config.partition, config.clients, config.partition_seed, **config.partition_options
        )
    saved = Partition.load(config.partition_file)
    saved.check(graph, f"the partition in {config.partition_file}")
    return saved


def with_client_remarks(graph: Graph, partition: Partition) -> Graph:
    """Add a remark if some clients of a partition hold no node, although they count as clients of the run."""
    empty = partition.num_clients - len(np.unique(partition.held_client))
    if not empty:
        return graph
    holds = "holds" if empty == 1 else "hold"
    remark = (
        f"{empty:,} of {partition.num_clients:,} clients {holds} no node and {'is' if empty == 1 else 'are'} "
        "still counted and sent messages; use fewer clients or another partition"
    )
    return replace(graph, remarks=(*graph.remarks, remark))


def load_graph(config: RunConfig, loaded: LoadedData | None = None) -> Graph:
    """Load the graph of a run (see `load_once`)."""
    graph = load_once(config, {} if loaded is None else loaded)
    assert isinstance(graph, Graph), "make_config accepts only data of the task's kind"
    return graph


def pooled_partition(graph: Graph) -> Partition:
    """Build the partition with all nodes at one client, for methods that train on the pooled graph."""
    return from_assignment(graph, np.zeros(graph.num_nodes, dtype=np.int64))

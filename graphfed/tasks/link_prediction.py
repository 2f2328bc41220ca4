"""The task link prediction: predict which pairs of nodes are edges."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphfed.data.graphs.link_splits import EdgeSplit, make_edge_split, scored_pairs, training_graph
from graphfed.errors import InputError, shown
from graphfed.files import JsonObject
from graphfed.methods.parts import GRAPH_PARTS
from graphfed.methods.tasks import LINK_PREDICTION
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.graphs.inputs import (
    GraphInputs,
    check_features,
    load_graph,
    partition_graph,
    with_client_remarks,
)
from graphfed.tasks.graphs.kind import GRAPHS
from graphfed.tasks.graphs.link_scores import LINKS
from graphfed.tasks.graphs.pair_table import cohort_pairs, pairs_table
from graphfed.tasks.node_classification import PAPER_SETTINGS
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.source import LoadedData

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.federation.cohort import Cohort
    from graphfed.tasks.evaluation import Predicted
    from graphfed.tasks.outcome import Outcome


@dataclass(frozen=True, eq=False)
class LinkInputs(GraphInputs):
    """A graph whose edges are split: `graph` and `partition` have the training edges only."""

    split: EdgeSplit

    @property
    def hashes(self) -> dict[str, str]:
        """The hashes of data, split and partition. The hash of the data is that of the whole graph."""
        return {**super().hashes, "data": self.split.graph_hash}

    @property
    def num_edges(self) -> int:
        """The number of undirected edges of the whole graph."""
        return int(self.split.edges.shape[1])

    def check(self, config: RunConfig) -> None:
        """Check the inputs like `GraphInputs.check`, and that every node is at one client.

        Raises:
            InputError: The method cannot use the inputs, or a node is at no client or at several.
        """
        super().check(config)
        scored_pairs(self.split, self.partition)

    def bytes_of_predictions(self) -> int:
        """Estimate the size of predictions.parquet, which has a row for each scored pair.

        Returns:
            The size in bytes.
        """
        return 64 * self.num_edges

    def metric_of_rounds(self, config: RunConfig) -> str:
        """Return the validation metric that selects rounds.

        Returns:
            "auc".
        """
        return TASK.metric

    def tables(
        self,
        config: RunConfig,
        predicted: "Sequence[tuple[Cohort, Predicted]]",
        names: Sequence[str] | None = None,
    ) -> "Iterator[pa.Table]":
        """Build the content of predictions.parquet (see `pair_table`).

        Args:
            predicted: (cohort, (pairs [n], scores [n])) of each worker.
            names: Not used; there are no classes.
        """
        parts = self.with_partition_ids(config, predicted)
        pairs = cohort_pairs(parts, self.trained_on(config), self.owners(config))
        yield pairs_table(pairs, self.graph, self.client_names)

    def details(self, config: RunConfig, outcome: "Outcome") -> JsonObject:
        """Return the details of a result that only this task has.

        Returns:
            No details.
        """
        return {}


def load(
    config: RunConfig, loaded: LoadedData | None = None, on_stage: Callable[[str], None] = no_stages
) -> LinkInputs:
    """Load the graph of a run, split its edges and partition the training edges (`TaskDefinition.load`)."""
    on_stage(f"loading {config.data_name}")
    graph = load_graph(config, loaded)
    check_features(config, graph)
    on_stage(f"splitting {graph.num_nodes} nodes")
    split = make_edge_split(graph, config.split, config.split_seed)
    graph = training_graph(graph, split)
    partition = partition_graph(config, graph, on_stage)
    graph = with_client_remarks(graph, partition)
    inputs = LinkInputs(graph, split, partition, config.data_source.dropped)
    inputs.check(config)
    return inputs


def check_settings(settings: Mapping[str, object]) -> None:
    """Raise an InputError for a setting that only node classification has."""
    for key in ("select", "class_weights"):
        if settings.get(key) not in ("auto", "none", None):
            raise InputError(
                f"{key}={shown(settings[key])} cannot be used: link prediction has no classes and selects "
                "rounds by the AUC; omit this setting"
            )


TASK = TaskDefinition(
    name=LINK_PREDICTION,
    predicted="which pairs of nodes are edges",
    scored="pairs",
    metric="auc",
    metric_name="AUC",
    needs=("features",),
    output="an embedding of every node; the larger the product of two embeddings, the likelier is an edge",
    data=GRAPHS,
    load=load,
    evaluation=LINKS,
    parts=GRAPH_PARTS,
    # Lumos' authors use this dropout for every row of their table; the shared default of 0.5 is for node
    # classification.
    defaults={"dropout": 0.01},
    # Lumos' authors do not state a weight decay, and the shared value improves results (docs/runs.md).
    paper_settings={
        **PAPER_SETTINGS,
        "rounds": 300,
        "optimizer": "adam",
        "lr": 0.01,
        "dropout": 0.01,
        "local_steps": 1,
        "select": "auto",  # the shared value selects rounds by the accuracy of classes
    },
    check_settings=check_settings,
    only_own="is a run of link prediction, which scores only the pairs of its own split",
    own_partition="contains all edges, also those of validation and test; name a partition for the training "
    "edges, such as 'label_dirichlet'",
    only_simulated="link prediction cannot be deployed: a client that reads only its own files cannot draw "
    "pairs of nodes without an edge at any client",
)

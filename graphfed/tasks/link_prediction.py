"""The task link prediction: predict which pairs of nodes are edges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from graphfed.data.graphs.link_splits import EdgeSplit, make_edge_split, scored_pairs, training_graph
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.methods.base import Task
from graphfed.methods.parts import GRAPH_PARTS, sum_protection
from graphfed.methods.tasks import LINK_PREDICTION
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.evaluation import Predicted
from graphfed.tasks.graphs import link_scores
from graphfed.tasks.graphs.inputs import (
    GraphInputs,
    check_features,
    load_graph,
    partition_graph,
    with_client_remarks,
)
from graphfed.tasks.graphs.kind import GRAPHS
from graphfed.tasks.graphs.pair_table import cohort_pairs, pairs_table
from graphfed.tasks.inputs import OnStage
from graphfed.tasks.node_classification import PAPER_SETTINGS as NODE_PAPER_SETTINGS
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import LoadedData

if TYPE_CHECKING:
    import pyarrow as pa

#: Lumos' authors use this dropout for every row of their table; the shared default of 0.5 is for node
#: classification.
DEFAULTS = {"dropout": 0.01}
#: Lumos' authors do not state a weight decay, and the shared value improves results (docs/runs.md).
PAPER_SETTINGS = {
    **NODE_PAPER_SETTINGS,
    "rounds": 300,
    "optimizer": "adam",
    "lr": 0.01,
    "dropout": 0.01,
    "local_steps": 1,
    "select": "auto",  # the shared value selects rounds by the accuracy of classes
}
NO_CLASSES = "link prediction has no classes and selects rounds by the AUC"


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
        return int(self.split.edges.shape[1])

    def check(self, config: RunConfig) -> None:
        """Check the inputs like `GraphInputs.check`, and that every node is at one client."""
        super().check(config)
        # It raises InputError if a scored node is not at exactly one client.
        scored_pairs(self.split, self.partition)

    def bytes_of_predictions(self) -> int:
        """Estimate the size of predictions.parquet, which has a row for each scored pair."""
        return 64 * self.num_edges

    def metric_of_rounds(self, config: RunConfig) -> str:
        return TASK.metric

    def tables(
        self,
        config: RunConfig,
        predicted: Sequence[tuple[Cohort, Predicted]],
        names: Sequence[str] | None = None,
    ) -> "Iterator[pa.Table]":
        parts = self.with_partition_ids(config, predicted)
        pairs = cohort_pairs(parts, self.trained_on(config), self.owners(config))
        yield pairs_table(pairs, self.graph, self.client_names)


class LinkPrediction(TaskDefinition[Located[Cohort], link_scores.ScorePairs]):
    """The edges of a graph are split; for every edge of validation and test a pair without one is drawn."""

    name = LINK_PREDICTION
    predicted = "which pairs of nodes are edges"
    scored = "pairs"
    metric = "auc"
    metric_name = "AUC"
    needs = ("features",)
    output = "an embedding of every node; the larger the product of two embeddings, the likelier is an edge"
    data = GRAPHS
    parts = GRAPH_PARTS
    summed = ("training edges", "validation pairs", "test pairs")
    messages = link_scores.MESSAGES
    defaults = DEFAULTS
    paper_settings = PAPER_SETTINGS
    unused_settings = dict.fromkeys(("select", "class_weights"), NO_CLASSES)
    only_own = "is a run of link prediction, which scores only the pairs of its own split"
    own_partition = (
        "contains all edges, also those of validation and test; name a partition for the training edges, "
        "such as 'label_dirichlet'"
    )
    only_simulated = (
        "link prediction cannot be deployed: a client that reads only its own files cannot draw pairs of "
        "nodes without an edge at any client"
    )

    def load(self, config: RunConfig, loaded: LoadedData, on_stage: OnStage) -> LinkInputs:
        graph = load_graph(config, loaded)
        check_features(config, graph)
        on_stage(f"splitting {graph.num_edges} edges")
        split = make_edge_split(graph, config.split, config.split_seed)
        # The partition sees the training edges only, so it shows nothing of the scored ones.
        graph = training_graph(graph, split)
        partition = partition_graph(config, graph, on_stage)
        graph = with_client_remarks(graph, partition)
        return LinkInputs(graph, split, partition, config.data_source.dropped)

    def prepare(
        self, fed: Federation, data: Located[Cohort], task: Task, config: Any
    ) -> link_scores.ScorePairs:
        """Prepare the scoring of pairs with the run's protection of sums."""
        return link_scores.SCORED[sum_protection(config)](fed, data)

    def decides(self, config: Any, prepared: link_scores.ScorePairs) -> str:
        return "auc"

    def score(
        self,
        fed: Federation,
        data: Located[Cohort],
        outputs: Located,
        target: str,
        name: str,
        prepared: link_scores.ScorePairs,
        config: Any,
    ) -> tuple[None, Located]:
        """Compute the metrics at the server. Clients have no scores of their own."""
        return None, prepared(outputs, target, name)

    has_parts = staticmethod(link_scores.has_parts)

    @staticmethod
    def keep(cohort: Cohort, outputs: Tensor) -> Predicted:
        return cohort.pairs("all"), outputs

    @staticmethod
    def of_target(cohort: Cohort, kept: Predicted, target: str) -> Tensor:
        return kept[1][cohort.pairs(target)]


TASK = LinkPrediction()

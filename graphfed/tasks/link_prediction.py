"""Link prediction: which pairs of nodes are edges."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphfed.data.graphs.link_splits import EdgeSplit, make_edge_split, scored_pairs, training_graph
from graphfed.errors import InputError, shown
from graphfed.files import JsonObject
from graphfed.methods.config import GRAPH_GROUPS
from graphfed.methods.tasks import LINK_PREDICTION
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.graphs.inputs import GraphInputs, check_features, load_graph, partition_graph
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

__all__ = ["TASK", "LinkInputs"]


@dataclass(frozen=True, eq=False)
class LinkInputs(GraphInputs):
    """A graph whose edges are split: `graph` and `partition` have the training edges only."""

    split: EdgeSplit

    @property
    def hashes(self) -> dict[str, str]:
        """The data's is that of the whole graph."""
        return {**super().hashes, "data": self.split.graph_hash}

    @property
    def num_edges(self) -> int:
        return int(self.split.edges.shape[1])

    def check(self, config: RunConfig) -> None:
        super().check(config)
        scored_pairs(self.split, self.partition)

    def bytes_of_predictions(self) -> int:
        """About what predictions.parquet takes: of pairs."""
        return 64 * self.num_edges

    def metric_of_rounds(self, config: RunConfig) -> str:
        return TASK.metric

    def tables(
        self,
        config: RunConfig,
        predicted: "Sequence[tuple[Cohort, Predicted]]",
        names: Sequence[str] | None = None,
    ) -> "Iterator[pa.Table]":
        """One table, see `pair_table`. predicted: (cohort, (pairs [n], scores [n])) of each host."""
        parts = self.with_partition_ids(config, predicted)
        found = cohort_pairs(parts, self.trained_on(config), self.owners(config))
        yield pairs_table(found, self.graph, self.client_names)

    def details(self, config: RunConfig, outcome: "Outcome") -> JsonObject:
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
    inputs = LinkInputs(graph, split, partition_graph(config, graph, on_stage), config.data_source.dropped)
    inputs.check(config)
    return inputs


def check_settings(settings: Mapping[str, object]) -> None:
    """InputError for a setting of node classification."""
    for key in ("select", "class_weights"):
        if settings.get(key) not in ("auto", "none", None):
            raise InputError(
                f"{key}={shown(settings[key])} cannot be used: expected none, since link prediction has no "
                "classes and selects rounds by the AUC; leave it out"
            )


TASK = TaskDefinition(
    name=LINK_PREDICTION,
    predicted="which pairs of nodes are edges",
    scored="pairs",
    metric="auc",
    metric_name="AUC",
    needs=("features",),
    output="an embedding of every node; of two nodes its product, the larger the likelier an edge",
    data=GRAPHS,
    load=load,
    evaluation=LINKS,
    groups=GRAPH_GROUPS,
    # As Lumos's authors train every row of their table; the shared dropout of 0.5 is for classes.
    defaults={"dropout": 0.01},
    # The authors say nothing of weight decay, and the shared one helps (docs/runs.md).
    paper_settings={
        **PAPER_SETTINGS,
        "rounds": 300,
        "optimizer": "adam",
        "lr": 0.01,
        "dropout": 0.01,
        "local_steps": 1,
        "select": "auto",  # the shared one selects by the accuracy of classes
    },
    check_settings=check_settings,
    only_own="predicts links: it scores the pairs of its own split, and no other graph's nor chosen nodes'",
    own_partition="deals all edges, those of validation and test too; name a partition to deal the training "
    "edges with, as 'label_dirichlet'",
    only_simulated="link prediction cannot be deployed: clients that read their own files alone cannot draw "
    "pairs that are no edge anywhere",
)

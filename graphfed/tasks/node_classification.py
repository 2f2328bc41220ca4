"""Node classification: a class for every node."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.splits import make_split
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.methods.config import GRAPH_GROUPS, GraphSettings
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.graphs.class_weights import MESSAGES as CLASS_WEIGHT_MESSAGES
from graphfed.tasks.graphs.class_weights import agree_class_weights
from graphfed.tasks.graphs.inputs import (
    GraphInputs,
    check_features,
    load_graph,
    partition_graph,
    pooled_partition,
)
from graphfed.tasks.graphs.kind import GRAPHS
from graphfed.tasks.graphs.node_scores import NODES, choose_selection
from graphfed.tasks.graphs.node_table import cohort_predictions, predictions_table
from graphfed.tasks.graphs.pooled_score import pooled_score
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.source import LoadedData

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.federation.cohort import Cohort
    from graphfed.tasks.evaluation import Predicted
    from graphfed.tasks.outcome import Outcome

__all__ = ["PAPER_SETTINGS", "TASK", "NodeInputs", "check_labels", "check_split"]

#: What preset=paper changes in every method on graphs that has the setting: the settings that the tables on
#: citation graphs share (docs/runs.md). A method adds its own (`Method.paper_settings`).
PAPER_SETTINGS: JsonObject = {
    "rounds": 100,
    "lr": 0.5,
    "weight_decay": 5e-4,
    "hidden": 16,
    "optimizer": "sgd",
    "optimizer_at": "clients",
    "client_state": "reset",
    "patience": None,
    "features": "raw",
    "local_steps": 3,
    "select": "accuracy",
}


@dataclass(frozen=True, eq=False)
class NodeInputs(GraphInputs):
    """A graph whose nodes are split."""

    split: Split

    def metric_of_rounds(self, config: RunConfig) -> str:
        """By the classes of all validation nodes (see `node_scores.choose_selection`)."""
        assert isinstance(config.training, GraphSettings)
        classes = torch.from_numpy(self.graph.y[self.split.val])
        counts = torch.bincount(classes, minlength=self.graph.num_classes)
        return choose_selection(counts, config.training.select).metric

    def tables(
        self,
        config: RunConfig,
        predicted: "Sequence[tuple[Cohort, Predicted]]",
        names: Sequence[str] | None = None,
    ) -> "Iterator[pa.Table]":
        """One table, see `node_table`. predicted: (cohort, (rows [n], logits [n, C])) of each host."""
        parts = self.with_partition_ids(config, predicted)
        found = cohort_predictions(parts, self.trained_on(config), self.owners(config))
        yield predictions_table(found, self.graph, self.split, self.client_names, names)

    def details(self, config: RunConfig, outcome: "Outcome") -> JsonObject:
        """The confusion matrix of the test; where a shared model came of it, its score on the whole graph
        too: another question than `test`, so it stands next to it."""
        details: JsonObject = {"test_confusion": outcome.test_confusion}
        if config.method.state.shared_model:
            (weights,) = outcome.state.weights.parts
            assert isinstance(config.training, GraphSettings)
            details["test_pooled"] = pooled_score(
                config.method, self.graph, self.split, weights, config.training, outcome.scaling
            )
        return details


def load(
    config: RunConfig, loaded: LoadedData | None = None, on_stage: Callable[[str], None] = no_stages
) -> NodeInputs:
    """Load the graph of a run, split its nodes and partition it (see `TaskDefinition.load`)."""
    on_stage(f"loading {config.data_name}")
    graph = load_graph(config, loaded)
    check_labels(config, graph)
    on_stage(f"splitting {graph.num_nodes} nodes")
    split = make_split(graph, config.split, config.split_seed)
    check_split(graph, split)
    inputs = NodeInputs(graph, split, partition_graph(config, graph, on_stage), config.data_source.dropped)
    inputs.check(config)
    return inputs


def check_labels(config: RunConfig, graph: Graph) -> None:
    """Raises InputError where the graph lacks features or labels."""
    check_features(config, graph)
    if not (graph.y >= 0).any():
        raise InputError(
            f"{graph.name!r} has no labels to train on; name their column in its description (label: ...)"
        )


def check_split(graph: Graph, split: Split) -> None:
    """Raises InputError for a part without nodes, and for one with nodes whose class is unknown."""
    for part in ("train", "val", "test"):
        if not getattr(split, part).any():
            raise InputError(
                f"split {split.name!r} of {graph.name!r} has no {part} node; every part needs one: "
                "use another split, as in 'random:0.5,0.25,0.25'"
            )
    blind = np.flatnonzero((graph.y < 0) & (split.train | split.val | split.test))
    if blind.size:
        raise InputError(
            f"node {graph.node_name(int(blind[0]))} of {graph.name!r} is in split {split.name!r} and has "
            f"no label ({blind.size} such nodes); take it out of the split, or label it"
        )


def headline(details: Mapping[str, object], known: Iterable[str]) -> list[str]:
    """Accuracy says nothing where one class has nearly all nodes, so a run says itself which metrics come
    first (`node_scores.headline_of`, in the details of its result); runs of older versions do not say."""
    named = details.get("headline")
    names = named if isinstance(named, Sequence) and not isinstance(named, str) else ()
    have = {*known}
    return [name for name in names if name in have] or ["accuracy", "macro_f1"]


def other_inputs(config: RunConfig, known: JsonObject) -> NodeInputs:
    """Another graph as one client's, checked against what the model was trained on."""
    graph = load_graph(config)
    if graph.x is None or graph.num_features != known["features"]:
        raise InputError(
            f"the model takes {known['features']} features, and {graph.name!r} has {graph.num_features}; "
            "give a graph with the features it was trained on, in the same order"
        )
    trained = list(known.get("feature_names") or ())
    for there, here in zip(trained, graph.feature_names, strict=False):
        if there != here:
            raise InputError(
                f"the model was trained on feature {there!r} where {graph.name!r} has {here!r}; name the "
                f"features in the same order: [{', '.join(trained)[:300]}]"
            )
    trained_with, has = bool(known.get("edge_weights")), graph.edge_weight is not None
    if trained_with != has:
        raise InputError(
            f"the model was trained {'with' if trained_with else 'without'} edge weights, and {graph.name!r} "
            f"has {'them' if has else 'none, or all are 1'}; "
            + ("leave them out (in a description: 'weight:' with nothing after it)" if has else "add them")
        )
    everything = np.ones(graph.num_nodes, dtype=bool)
    # Set-up counts training nodes; nothing is trained here.
    return NodeInputs(graph, Split("all", everything, ~everything, ~everything), pooled_partition(graph))


TASK = TaskDefinition(
    name=CLASSIFICATION,
    predicted="the class of every node",
    scored="nodes",
    metric="accuracy",
    metric_name="accuracy",
    needs=("features", "classes"),
    data=GRAPHS,
    load=load,
    evaluation=NODES,
    agree=agree_class_weights,
    messages=CLASS_WEIGHT_MESSAGES,
    groups=GRAPH_GROUPS,
    paper_settings=PAPER_SETTINGS,
    headline=headline,
    other_inputs=other_inputs,
    drop_elsewhere=("split", "client", "label"),
)

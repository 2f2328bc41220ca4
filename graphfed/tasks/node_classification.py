"""The task node classification: predict the class of every node."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.splits import drop_unused_classes, make_split, missing_classes
from graphfed.data.user_files.graph_description import Description
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.methods.parts import GRAPH_PARTS
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
    with_client_remarks,
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

#: The settings that preset=paper changes in every method on graphs that has them. The papers' tables on
#: citation graphs share these settings (docs/runs.md). A method adds its own (`Method.paper_settings`).
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
        """Choose the validation metric that selects rounds, by the classes of all validation nodes.

        Returns:
            The name of the metric (see `node_scores.choose_selection`).
        """
        classes = torch.from_numpy(self.graph.y[self.split.val])
        counts = torch.bincount(classes, minlength=self.graph.num_classes)
        return choose_selection(counts, config.settings.selection.select).metric

    def tables(
        self,
        config: RunConfig,
        predicted: "Sequence[tuple[Cohort, Predicted]]",
        names: Sequence[str] | None = None,
    ) -> "Iterator[pa.Table]":
        """Build the content of predictions.parquet (see `node_table`).

        Args:
            predicted: (cohort, (rows [n], logits [n, C])) of each worker.
            names: The names of the model's classes, if they differ from those of the graph.
        """
        parts = self.with_partition_ids(config, predicted)
        predictions = cohort_predictions(parts, self.trained_on(config), self.owners(config))
        yield predictions_table(predictions, self.graph, self.split, self.client_names, names)

    def details(self, config: RunConfig, outcome: "Outcome") -> JsonObject:
        """Compute the details of a result that only this task has.

        Returns:
            `test_confusion`, and `test_pooled` if there is a shared model (see `pooled_score`).
        """
        details: JsonObject = {"test_confusion": outcome.test_confusion}
        if config.method.state.shared_model:
            (weights,) = outcome.state.weights.parts
            details["test_pooled"] = pooled_score(
                config.method, self.graph, self.split, weights, config.settings, outcome.scaling
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
    partition = partition_graph(config, graph, on_stage)
    graph = with_classes_of_split(config, with_client_remarks(graph, partition), split)
    inputs = NodeInputs(graph, split, partition, config.data_source.dropped)
    inputs.check(config)
    return inputs


def with_classes_of_split(config: RunConfig, graph: Graph, split: Split) -> Graph:
    """Remove the classes without a node in any part of the split, and remark on those that one part lacks.

    The classes that a description lists (`classes:`) are kept, because the clients of a deployment do not see
    which of them occur. A partition may use all labels, so it is computed before.
    """
    listed = isinstance(config.data, Description) and config.data.classes
    graph = graph if listed else drop_unused_classes(graph, split)
    missing = missing_classes(graph, split)
    return replace(graph, remarks=(*graph.remarks, *missing)) if missing else graph


def check_labels(config: RunConfig, graph: Graph) -> None:
    """Check that a graph has features and labels.

    Raises:
        InputError: It has no features or no labels.
    """
    check_features(config, graph)
    if not (graph.y >= 0).any():
        raise InputError(
            f"{graph.name!r} has no labels, and node classification needs them; name the column of labels in "
            "the description (label: COLUMN), set y of a PyG Data or the attribute 'label' of a networkx "
            "graph, or choose the task link_prediction"
        )


def check_split(graph: Graph, split: Split) -> None:
    """Check that every part of a split has nodes, and that their classes are known.

    Raises:
        InputError: A part is empty, or has a node of unknown class.
    """
    for part in ("train", "val", "test"):
        if not getattr(split, part).any():
            raise InputError(
                f"split {split.name!r} of {graph.name!r} has no {part} node, and every part needs at least "
                "one; use another split, as in 'random:0.5,0.25,0.25'"
            )
    unlabelled = np.flatnonzero((graph.y < 0) & (split.train | split.val | split.test))
    if unlabelled.size:
        raise InputError(
            f"node {graph.node_name(int(unlabelled[0]))} of {graph.name!r} is in split {split.name!r} and "
            f"has no label ({unlabelled.size} such nodes); remove it from the split, or label it"
        )


def headline(details: Mapping[str, object], known: Iterable[str]) -> list[str]:
    """List the most important metrics (see `TaskDefinition.headline`).

    Accuracy is not informative if one class has nearly all nodes. So a run stores its most important metrics
    in the details of its result (`node_scores.headline_of`); runs of older versions did not.
    """
    named = details.get("headline")
    names = named if isinstance(named, Sequence) and not isinstance(named, str) else ()
    have = {*known}
    return [name for name in names if name in have] or ["accuracy", "macro_f1"]


def other_inputs(config: RunConfig, known: JsonObject) -> NodeInputs:
    """Load another graph as the data of one client, and check that the trained model can use it."""
    graph = load_graph(config)
    if graph.x is None or graph.num_features != known["features"]:
        raise InputError(
            f"the model needs {known['features']} features, and {graph.name!r} has {graph.num_features}; "
            "give a graph with the features that the model was trained on, in the same order"
        )
    trained = list(known.get("feature_names") or ())
    for there, here in zip(trained, graph.feature_names, strict=False):
        if there != here:
            raise InputError(
                f"the model was trained on feature {there!r}, and {graph.name!r} has {here!r} in its place; "
                f"name the features in the same order: [{', '.join(trained)[:300]}]"
            )
    trained_with, has = bool(known.get("edge_weights")), graph.edge_weight is not None
    if trained_with != has:
        raise InputError(
            f"the model was trained {'with' if trained_with else 'without'} edge weights, and {graph.name!r} "
            f"has {'edge weights' if has else 'none, or all are 1'}; "
            + ("omit them (in a description: 'weight:' with nothing after it)" if has else "add them")
        )
    everything = np.ones(graph.num_nodes, dtype=bool)
    # Set-up counts training nodes and needs some, although nothing is trained here.
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
    parts=GRAPH_PARTS,
    paper_settings=PAPER_SETTINGS,
    headline=headline,
    other_inputs=other_inputs,
    drop_elsewhere=("split", "client", "label"),
)

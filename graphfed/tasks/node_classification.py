"""The task node classification: predict the class of every node."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphfed.data.graphs.degree_features import with_degree_features
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.splits import drop_unused_classes, make_split, missing_classes
from graphfed.data.user_files.feature_encoding import category_name, missing_name
from graphfed.data.user_files.graph_description import Description
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.secure.aggregation import check_sums, protected_sum
from graphfed.files import JsonObject
from graphfed.methods.base import Task
from graphfed.methods.parts import GRAPH_PARTS, clients_in_round, sum_protection
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.evaluation import HIDDEN_SCORES, Predicted
from graphfed.tasks.graphs import class_weights, node_scores
from graphfed.tasks.graphs.inputs import (
    GraphInputs,
    load_graph,
    partition_graph,
    pooled_partition,
    with_client_remarks,
)
from graphfed.tasks.graphs.kind import GRAPHS
from graphfed.tasks.graphs.node_scores import Selection
from graphfed.tasks.graphs.node_table import cohort_predictions, predictions_table
from graphfed.tasks.graphs.pooled_score import pooled_score
from graphfed.tasks.graphs.ranking import refine_until
from graphfed.tasks.inputs import OnStage
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import LoadedData

if TYPE_CHECKING:
    import pyarrow as pa

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
        """Choose the validation metric that selects rounds, by the classes of all validation nodes."""
        classes = torch.from_numpy(self.graph.y[self.split.val])
        counts = torch.bincount(classes, minlength=self.graph.num_classes)
        return node_scores.choose_selection(counts, config.settings.selection.select).metric

    def tables(
        self,
        config: RunConfig,
        predicted: Sequence[tuple[Cohort, Predicted]],
        names: Sequence[str] | None = None,
    ) -> "Iterator[pa.Table]":
        parts = self.with_partition_ids(config, predicted)
        predictions = cohort_predictions(parts, self.trained_on(config), self.owners(config))
        yield predictions_table(predictions, self.graph, self.split, self.client_names, names)

    def details(self, config: RunConfig, outcome: "Outcome") -> JsonObject:
        """Return `test_confusion`, and `test_pooled` if there is a shared model (see `pooled_score`)."""
        details: JsonObject = {"test_confusion": outcome.test_confusion}
        if config.method.state.shared_model:
            (weights,) = outcome.state.weights.parts
            details["test_pooled"] = pooled_score(
                config.method, self.graph, self.split, weights, config.settings, outcome.transform
            )
        return details


@dataclass(frozen=True)
class Prepared:
    """The values that every scoring needs."""

    selection: Selection
    num_classes: int


class NodeClassification(TaskDefinition[Located[Cohort], Prepared]):
    """The nodes of a graph are split; clients agree on class weights before set-up (see `class_weights`)."""

    name = CLASSIFICATION
    predicted = "the class of every node"
    scored = "nodes"
    metric = "accuracy"
    metric_name = "accuracy"
    needs = ("features", "classes")
    data = GRAPHS
    parts = GRAPH_PARTS
    summed = ("training nodes", "validation nodes", "test nodes")
    messages = node_scores.MESSAGES
    agree_messages = class_weights.MESSAGES
    paper_settings = PAPER_SETTINGS
    chooses_headline = True
    drop_elsewhere = ("split", "client", "label")

    def load(self, config: RunConfig, loaded: LoadedData, on_stage: OnStage) -> NodeInputs:
        graph = with_degree_features(load_graph(config, loaded))
        check_labels(graph)
        on_stage(f"splitting {graph.num_nodes} nodes")
        split = make_split(graph, config.split, config.split_seed)
        graph = with_split_remark(graph, split, config.split)
        check_split(graph, split)
        partition = partition_graph(config, graph, on_stage)
        # After the partition, which may use the labels of all classes.
        graph = with_classes_of_split(config, with_client_remarks(graph, partition), split)
        return NodeInputs(graph, split, partition, config.data_source.dropped)

    def other_inputs(self, config: RunConfig, known: JsonObject) -> NodeInputs:
        """Load another graph as the data of one client, and check that the trained model can use it."""
        graph, unknown = like_trained(with_degree_features(load_graph(config)), known)
        check_like_trained(graph, known)
        if config.settings.network.kernel.directed:
            check_edges_like_trained(graph, known)
        # Set-up counts training nodes and needs some, although nothing is trained here.
        everything = np.ones(graph.num_nodes, dtype=bool)
        split = Split("all", everything, ~everything, ~everything)
        return NodeInputs(graph, split, pooled_partition(graph), unknown_values=unknown)

    def agree(self, fed: Federation, data: Located[Cohort], task: Task, config: Any) -> Located[Cohort]:
        return class_weights.agree_class_weights(fed, data, task, config)

    def prepare(self, fed: Federation, data: Located[Cohort], task: Task, config: Any) -> Prepared:
        """Agree on the metric that selects rounds, from the class counts of all validation nodes.

        Raises InputError if the metric of the setting `select` is not defined for the data.
        """
        if config.selection.select == "recall_at_1_percent" and task.num_classes != 2:
            raise InputError(
                f"select=recall_at_1_percent needs data with two classes, and the data has "
                f"{task.num_classes}; use balanced_accuracy or average_precision"
            )
        check_sums(fed, sum_protection(config), clients_in_round(config, fed.num_clients))
        counts = protected_sum(
            fed,
            node_scores.CLASS_COUNTS,
            fed.clients.run(node_scores.count_classes, data, "val"),
            protection=sum_protection(config),
            name="val_classes",
            hidden_name=HIDDEN_SCORES,
            like=(task.num_classes,),
        )
        agreed = fed.control(
            node_scores.agreed_selection,
            counts,
            config.selection.select,
            name="selection",
            values={"metric": str, "positive": int},
        )
        return Prepared(Selection(str(agreed["metric"]), int(agreed["positive"])), task.num_classes)

    def decides(self, config: Any, prepared: Prepared) -> str:
        return prepared.selection.metric

    def score(
        self,
        fed: Federation,
        data: Located[Cohort],
        outputs: Located,
        target: str,
        name: str,
        prepared: Prepared,
        config: Any,
    ) -> tuple[Located, Located]:
        """Compute every client's scores at the clients, and the metrics of their sum at the server."""
        # Histograms of scores are large, so they are counted only where a metric needs the scores' order.
        selection, final = prepared.selection, name.startswith("final_")
        ranked = final or selection.metric in node_scores.RANKED
        positive = selection.positive if ranked else None
        scores = fed.clients.run(node_scores.score_clients, data, outputs, target, selection)
        sums = protected_sum(
            fed,
            node_scores.SCORES,
            *(scores, data, outputs, target, positive, final),
            protection=sum_protection(config),
            name=f"{name}_scores",
            hidden_name=HIDDEN_SCORES,
            like=(prepared.num_classes, ranked, final),
            # The loss of a client whose training has diverged is not finite; that of others may go on.
            finite=False,
            accept=partial(node_scores.accept_scores, target),
        )
        if not ranked:
            return scores, fed.server.run(node_scores.scored, sums, selection, None)

        # With many classes the first counts have few bins; finer counts then have more of them.
        bins = max(node_scores.FINER_BINS, node_scores.bins_of(prepared.num_classes))

        def count_again(edges: Located) -> Located:
            return protected_sum(
                fed,
                node_scores.SCORE_COUNTS,
                *(data, outputs, target, selection.positive, edges),
                protection=sum_protection(config),
                name=f"{name}_finer_scores",
                hidden_name=HIDDEN_SCORES,
                like=(prepared.num_classes, bins),
                accept=partial(node_scores.accept_counts, target),
            )

        first = fed.server.run(node_scores.first_blocks, sums)
        blocks = refine_until(fed, first, count_again, node_scores.refined, bins, node_scores.TOLERANCE, name)
        return scores, fed.server.run(node_scores.scored, sums, selection, blocks)

    has_parts = staticmethod(node_scores.has_parts)
    better_clients = staticmethod(node_scores.better_clients)

    @staticmethod
    def keep(cohort: Cohort, outputs: Tensor) -> Predicted:
        """Return the rows of all owned nodes, [n], with their logits, [n, C]."""
        return cohort.rows("all"), outputs

    @staticmethod
    def of_target(cohort: Cohort, kept: Predicted, target: str) -> Tensor:
        rows, logits = kept
        # The row of the logits for each row of the cohort; those of a target are among the rows of "all".
        position = torch.zeros(cohort.num_rows, dtype=torch.int64, device=rows.device)
        position[rows] = torch.arange(len(rows), device=rows.device)
        return logits[position[cohort.rows(target)]]

    def headline(self, details: Mapping[str, object], known: Iterable[str]) -> list[str]:
        """List the metrics that the run has stored in the details of its result (`node_scores.headline_of`).

        Accuracy is not informative if one class has nearly all nodes. Runs of older versions stored none.
        """
        named = details.get("headline")
        names = named if isinstance(named, Sequence) and not isinstance(named, str) else ()
        have = {*known}
        return [name for name in names if name in have] or ["accuracy", "macro_f1"]


def with_classes_of_split(config: RunConfig, graph: Graph, split: Split) -> Graph:
    """Remove the classes without a node in any part of the split, and remark on those that one part lacks."""
    # Listed classes stay, because the clients of a deployment do not see which of them occur.
    listed = isinstance(config.data, Description) and config.data.classes
    graph = graph if listed else drop_unused_classes(graph, split)
    missing = missing_classes(graph, split)
    return replace(graph, remarks=(*graph.remarks, *missing)) if missing else graph


def with_split_remark(graph: Graph, split: Split, asked: str) -> Graph:
    """Remark that the data has no split of its own, if neither the user nor the data set names one."""
    if asked != "default" or graph.split is not None or not graph.default_split:
        return graph
    remark = (
        f"the data has no split; split={split.name} is used, the same fractions of every class; set "
        "train_mask, val_mask and test_mask, or choose a split, for another one"
    )
    return replace(graph, remarks=(*graph.remarks, remark))


def check_labels(graph: Graph) -> None:
    """Raise InputError if a graph has no labels."""
    if not (graph.y >= 0).any():
        raise InputError(
            f"{graph.name!r} has no labels, and node classification needs them; name the column of labels in "
            "the description (label: COLUMN), set y of a PyG Data or the attribute 'label' of a networkx "
            "graph, or choose the task link_prediction"
        )


def check_split(graph: Graph, split: Split) -> None:
    """Raise InputError if a part of a split is empty, or has a node of unknown class."""
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


def like_trained(graph: Graph, known: JsonObject) -> tuple[Graph, tuple[str, ...]]:
    """Give a graph the features of the data of a trained model, in their order.

    A category that the graph does not have is a feature of zeros. One that the model does not know is left
    out; the second result counts its nodes. The graph stays as it is if other features differ
    (`check_like_trained`).
    """
    trained, here = tuple(known.get("feature_names") or ()), graph.feature_names
    categories, filled = known.get("categories", {}), tuple(known.get("filled", ()))
    if not trained or not isinstance(graph.x, np.ndarray):
        return graph, ()
    common = {*categories} & {*graph.categories}
    not_here = {category_name(column, c) for column in common for c in categories[column]}
    unknown = {category_name(column, c): (column, c) for column in common for c in graph.categories[column]}
    if {*trained} - {*here} - not_here - {missing_name(name) for name in here} or (
        {*here} - {*trained} - {*unknown} - {missing_name(name) for name in trained}
    ):
        return graph, ()
    place = {name: j for j, name in enumerate(here)}
    x = np.zeros((graph.num_nodes, len(trained)), graph.x.dtype)
    for j, name in enumerate(trained):
        if name in place:
            x[:, j] = graph.x[:, place[name]]
            if j not in filled and np.isnan(x[:, j]).any():
                raise InputError(
                    f"feature {name!r} of {graph.name!r} has empty cells, and that of the model has none; "
                    "fill them in, or train the model with 'missing' for this feature"
                )
    counts = tuple(
        f"{int(graph.x[:, place[name]].sum()):,} nodes have {c!r} in {column!r}, unknown to the model"
        for name, (column, c) in unknown.items()
        if c and name not in trained
    )
    return replace(graph, x=x, feature_names=trained, filled=filled), counts


def check_like_trained(graph: Graph, known: JsonObject) -> None:
    """Raise InputError if a graph has other features or edge weights than the data of a trained model."""
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


def check_edges_like_trained(graph: Graph, known: JsonObject) -> None:
    """Raise InputError if the edges of a graph have other attributes, or other directions, than those that a
    trained model reads.
    """
    edges = graph.directed
    names = [] if edges is None else list(edges.names)
    trained = list(known.get("edge_features") or ())
    if names != trained:
        raise InputError(
            f"the model was trained on the attributes of edges {trained[:10]}, and {graph.name!r} has "
            f"{names[:10]}; give edges with the same attributes in the same order"
        )
    if (edges is not None and not edges.symmetric) != bool(known.get("directed")):
        was, fix = ("directed", "true") if known.get("directed") else ("undirected", "false")
        raise InputError(
            f"the model was trained on {was} edges, and those of {graph.name!r} are not; write 'directed: "
            f"{fix}' in the description"
        )


TASK = NodeClassification()

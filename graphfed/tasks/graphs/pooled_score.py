"""The score of a shared model on the whole graph, which is reported next to the test score."""

from typing import Any

from graphfed.data.graphs.graph import Graph, Split
from graphfed.federation.cohort import make_cohort
from graphfed.federation.functions import sum_over_clients
from graphfed.federation.payload import tensors_in
from graphfed.methods.base import Method
from graphfed.methods.common.feature_transform import Transform, apply_transform
from graphfed.methods.common.local_training import as_configured, own_view, predict_shared, prepare
from graphfed.nn.backbones import Weights
from graphfed.tasks.graphs.inputs import pooled_partition
from graphfed.tasks.graphs.node_scores import (
    blocks_by_client,
    choose_selection,
    count_classes,
    metrics_of,
    score_clients,
    total,
)


def pooled_score(
    method: Method,
    graph: Graph,
    split: Split,
    weights: Weights,
    config: Any,
    transform: Transform,
) -> dict[str, float]:
    """Score a shared model on the test nodes of the whole graph, with all cross-client edges.

    The test score is another quantity: there, every client predicts on what it holds and receives.
    """
    cohort = make_cohort(graph, split, pooled_partition(graph), [0], device=tensors_in(weights)[0].device)
    cohort = as_configured(cohort, config)
    cohort = apply_transform(cohort, transform, config)
    prepared = prepare(cohort, own_view(cohort), None, config, personal=False)
    # As in training, from the counts of all validation nodes.
    selection = choose_selection(sum_over_clients(count_classes(cohort, "val")), config.selection.select)
    logits = predict_shared(prepared, weights, config.network, "test")
    blocks = blocks_by_client(cohort, logits, "test", selection.positive, per_client=False)
    return metrics_of(total(score_clients(cohort, logits, "test", None)), blocks)

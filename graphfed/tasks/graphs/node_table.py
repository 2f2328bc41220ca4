"""The predictions of node classification as a table: a class for every owned node."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.partitions.tables import Partition

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from graphfed.data.graphs.graph import Graph, Split
    from graphfed.federation.cohort import Cohort


def cohort_predictions(
    parts: "Sequence[tuple[Cohort, Tensor, Tensor]]",
    partition: Partition,
    owners: Partition | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Collect the nodes, their clients, [n] each, and the logits [n, C] from all workers.

    `parts` is (cohort, rows [n], logits [n, C]) of every worker. If training was pooled at one client,
    `owners` is the partition that gives the clients of each node; a node that no client owns has client -1.
    """
    clients, ids, logits = [], [], []
    for cohort, rows, part in parts:
        row = rows.cpu().numpy()
        clients.append(np.asarray(cohort.clients)[cohort.client.cpu().numpy()[row]])
        ids.append(cohort.id.cpu().numpy()[row])
        logits.append(part.detach().cpu().numpy())
    client, held_id = np.concatenate(clients), np.concatenate(ids)
    # The rows of `held` are sorted by (client, id), so their codes ascend and can be searched.
    width = int(partition.held_id.max(initial=0)) + 1
    held = np.searchsorted(partition.held_client * width + partition.held_id, client * width + held_id)
    node = partition.held_node[held]
    if owners is not None:
        # A pooled partition has every node of the graph, and `owners` may leave some out.
        client_of_node = np.full(len(partition.held_node), -1)
        # If several clients own copies of a node, the client with the smallest number is named.
        owned = np.flatnonzero(owners.held_owner)[::-1]
        client_of_node[owners.held_node[owned]] = owners.held_client[owned]
        client = client_of_node[node]
    return node, client, np.concatenate(logits)


def class_probabilities(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the predicted classes [n] and the probabilities, float64 [n, C], from the logits [n, C].

    A row whose logits are not all finite has no prediction (-1), as in the metrics, and probabilities nan.
    """
    is_finite = np.isfinite(logits).all(axis=1)
    logits = np.where(is_finite[:, None], logits, np.nan).astype(np.float64)
    # A softmax; without the row's maximum, exp could overflow.
    likelihood = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    probability = likelihood / likelihood.sum(axis=1, keepdims=True)
    return np.where(is_finite, logits.argmax(axis=1), -1), probability


def predictions_table(
    predicted: tuple[np.ndarray, np.ndarray, np.ndarray],
    graph: "Graph",
    split: "Split",
    client_names: Sequence[str],
    class_names: Sequence[str] | None = None,
) -> "pa.Table":
    """Build the table of the result of `cohort_predictions`, sorted by node, then client.

    Its columns are node, client (null if no client owns the node), split (train, val, test or none), label
    (null if unknown), prediction (null if there is none), its probability, and probability_0 ...
    probability_{C-1}. If the graph has names, it also has id, client_name,
    label_name and prediction_name. `class_names` are those of the model, if they differ from those of the
    graph.
    """
    import pyarrow as pa

    node, client, logits = predicted
    order = np.lexsort((client, node))
    node, client = node[order], client[order]
    prediction, probability = class_probabilities(logits[order])
    part = np.select([split.train[node], split.val[node], split.test[node]], [0, 1, 2], 3)
    label = graph.y[node]
    columns = {
        "node": pa.array(node),
        "client": pa.array(client, mask=client < 0),
        "split": pa.DictionaryArray.from_arrays(part.astype(np.int8), ["train", "val", "test", "none"]),
        "label": pa.array(label, mask=label < 0),
        "prediction": pa.array(prediction, mask=prediction < 0),
        "probability": pa.array(probability.max(axis=1, initial=0).astype(np.float32)),
    }
    for c in range(probability.shape[1]):
        columns[f"probability_{c}"] = pa.array(probability[:, c].astype(np.float32))
    if graph.ids is not None:
        columns["id"] = graph.ids.take(pa.array(node))
    if graph.clients is not None:
        columns["client_name"] = named(graph.clients[node], graph.client_names)
    elif client_names:  # several clients may own a node, which then has a row for each
        columns["client_name"] = named(client, client_names)
    if graph.class_names:
        columns["label_name"] = named(label, graph.class_names)
    names = graph.class_names if class_names is None else class_names
    if names:
        columns["prediction_name"] = named(prediction, names)
    return pa.table(columns)


def named(index: np.ndarray, names: Sequence[str]) -> "pa.DictionaryArray":
    """Build a dictionary-encoded column of names from indices; a negative index gives null."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32), mask=index < 0), list(names))

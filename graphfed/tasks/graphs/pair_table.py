"""The predictions of link prediction as a table: a score for every validation and test pair."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.graphs.link_splits import PARTS
from graphfed.data.partitions.tables import Partition

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from graphfed.data.graphs.graph import Graph
    from graphfed.federation.cohort import Cohort


def cohort_pairs(
    parts: "Sequence[tuple[Cohort, Tensor, Tensor]]",
    partition: Partition,
    owners: Partition | None,
) -> dict[str, np.ndarray]:
    """Collect the predictions of all workers, (cohort, pairs [n], scores [n]) each, in columns.

    source is the node at the client that scores the pair, target the other node, client that client, label
    whether the pair is an edge, part a position in `link_splits.PARTS`, and score the score. If training was
    pooled at one client, `owners` is the partition that gives the client of each node.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for cohort, pairs, scores in parts:
        links = cohort.links
        assert links is not None
        row = links.row[pairs]
        client = np.asarray(cohort.clients)[cohort.client[row].cpu().numpy()]
        values = (cohort.id[row], links.id[pairs], links.label[pairs], links.part[pairs], scores.detach())
        for name, column in zip(("source", "target", "label", "part", "score"), values, strict=True):
            columns.setdefault(name, []).append(column.cpu().numpy())
        columns.setdefault("client", []).append(client)
    whole = {name: np.concatenate(column) for name, column in columns.items()}
    whole |= {name: partition.node_of(whole[name]) for name in ("source", "target")}
    if owners is not None:
        client_of_node = np.empty(int(owners.held_node.max(initial=-1)) + 1, dtype=np.int64)
        client_of_node[owners.held_node] = owners.held_client
        whole["client"] = client_of_node[whole["source"]]
    return whole


def pairs_table(predicted: dict[str, np.ndarray], graph: "Graph", client_names: Sequence[str]) -> "pa.Table":
    """Build the table of the result of `cohort_pairs`, sorted by source, then target.

    Its columns are source, target, client, part (val or test), label (whether the pair is an edge) and score.
    If the graph has names, it also has source_id, target_id and client_name.
    """
    import pyarrow as pa

    order = np.lexsort((predicted["target"], predicted["source"]))
    found = {name: column[order] for name, column in predicted.items()}
    columns = {
        "source": pa.array(found["source"]),
        "target": pa.array(found["target"]),
        "client": pa.array(found["client"]),
        "part": pa.DictionaryArray.from_arrays(found["part"].astype(np.int8), list(PARTS)),
        "label": pa.array(found["label"]),
        "score": pa.array(found["score"].astype(np.float32)),
    }
    if graph.ids is not None:
        columns["source_id"] = graph.ids.take(columns["source"])
        columns["target_id"] = graph.ids.take(columns["target"])
    if client_names:
        numbers = pa.array(found["client"].astype(np.int32))
        columns["client_name"] = pa.DictionaryArray.from_arrays(numbers, list(client_names))
    return pa.table(columns)

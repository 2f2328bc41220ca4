"""What a run of link prediction predicts: a score for every validation and test pair."""

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

__all__ = ["cohort_pairs", "pairs_table"]


def cohort_pairs(
    parts: "Sequence[tuple[Cohort, Tensor, Tensor]]",
    partition: Partition,
    owners: Partition | None,
) -> dict[str, np.ndarray]:
    """(cohort, pairs [n], scores [n]) of every host -> columns of n: source, at the client that scores the
    pair, and target, nodes; client, the client's; label, whether the pair is an edge; part
    (`link_splits.PARTS`); score. `owners`: names the clients where training was pooled."""
    columns: dict[str, list[np.ndarray]] = {}
    for cohort, pairs, scores in parts:
        links = cohort.links
        assert links is not None
        row = links.row[pairs]
        client = np.asarray(cohort.clients)[cohort.client[row].cpu().numpy()]
        told = (cohort.id[row], links.id[pairs], links.label[pairs], links.part[pairs], scores.detach())
        for name, column in zip(("source", "target", "label", "part", "score"), told, strict=True):
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
    """A pyarrow table, sorted by source, then target. Columns: source, target, client, part (val or test),
    label (whether the pair is an edge), score; where the graph has names of its own also source_id, target_id
    and client_name. predicted: see `cohort_pairs`; client_names: what the data calls the clients, () where
    they are not the data's."""
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

"""What a run of link prediction predicts: a score for every validation and test pair."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.graphs.link_splits import PARTS
from graphfed.data.partitions.tables import Partition

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from graphfed.data.graphs.graph import Graph
    from graphfed.federation.cohort import Cohort

__all__ = ["PairPredictions", "cohort_pairs", "pairs_table"]


@dataclass(frozen=True)
class PairPredictions:
    """The scores of n pairs: source [n], at the client that scores the pair, and target [n], vertices; site
    [n] the client's; label [n] bool: whether the pair is an edge; part [n] uint8 (`links.PARTS`); score [n].
    site_names: what the data calls the sites, () where they are not the data's."""

    source: np.ndarray
    target: np.ndarray
    site: np.ndarray
    label: np.ndarray
    part: np.ndarray
    score: np.ndarray
    site_names: tuple[str, ...] = ()


def cohort_pairs(
    parts: "Sequence[tuple[Cohort, Tensor, Tensor]]",
    partition: Partition,
    owners: Partition | None,
    site_names: tuple[str, ...],
) -> PairPredictions:
    """(cohort, pairs [n], scores [n]) of every host -> vertices and sites. `owners`: names the sites where
    training was pooled."""
    columns: dict[str, list[np.ndarray]] = {}
    for cohort, pairs, scores in parts:
        links = cohort.links
        assert links is not None
        row = links.row[pairs]
        site = np.asarray(cohort.clients)[cohort.client[row].cpu().numpy()]
        told = (cohort.id[row], links.id[pairs], links.label[pairs], links.part[pairs], scores.detach())
        for name, column in zip(("source", "target", "label", "part", "score"), told, strict=True):
            columns.setdefault(name, []).append(column.cpu().numpy())
        columns.setdefault("site", []).append(site)
    whole = {name: np.concatenate(column) for name, column in columns.items()}
    whole |= {name: partition.vertex_of(whole[name]) for name in ("source", "target")}
    if owners is not None:
        site_of = np.empty(int(owners.held_vertex.max(initial=-1)) + 1, dtype=np.int64)
        site_of[owners.held_vertex] = owners.held_site
        whole["site"] = site_of[whole["source"]]
    return PairPredictions(**whole, site_names=site_names)


def pairs_table(predictions: PairPredictions, graph: "Graph") -> "pa.Table":
    """A pyarrow table, sorted by source, then target. Columns: source, target, site, part (val or test),
    label (whether the pair is an edge), score; where the graph has names of its own also source_id, target_id
    and site_name."""
    import pyarrow as pa

    p = predictions
    order = np.lexsort((p.target, p.source))
    source, target = p.source[order], p.target[order]
    columns = {
        "source": pa.array(source),
        "target": pa.array(target),
        "site": pa.array(p.site[order]),
        "part": pa.DictionaryArray.from_arrays(p.part[order].astype(np.int8), list(PARTS)),
        "label": pa.array(p.label[order]),
        "score": pa.array(p.score[order].astype(np.float32)),
    }
    if graph.ids is not None:
        columns["source_id"] = graph.ids.take(pa.array(source))
        columns["target_id"] = graph.ids.take(pa.array(target))
    if p.site_names:
        names = pa.array(p.site[order].astype(np.int32))
        columns["site_name"] = pa.DictionaryArray.from_arrays(names, list(p.site_names))
    return pa.table(columns)

"""The scored pairs of a cohort: those of its clients, in its file, and never among its edges."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.graphs.link_splits import EdgeSplit, make_edge_split, training_graph
from graphfed.data.partitions.partition import partition
from graphfed.data.partitions.tables import Partition
from graphfed.errors import InputError
from graphfed.federation.cohort import Cohort, Links, load_cohort, make_cohort, save_cohort
from graphfed.files import read_tensors, write_tensors

PARTITIONS = ("random", "louvain", "ego")


def world(seed: int, partitioned: str, weights: bool = False) -> tuple[Graph, EdgeSplit, Graph, Partition]:
    """The whole graph, the split, the training graph and its partition over 4 clients (ego: 24)."""
    rng = np.random.default_rng(seed)
    edge_index = rng.integers(0, 24, (2, 90))
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    weight = rng.uniform(0.5, 2, edge_index.shape[1]) if weights else None
    graph = make_graph("toy", rng.random((24, 3)), np.arange(24) % 3, edge_index, edge_weight=weight)
    split = make_edge_split(graph, "edges:0.6,0.2,0.2", seed)
    known = training_graph(graph, split)
    return graph, split, known, partition(known, partitioned, 24 if partitioned == "ego" else 4, seed)


def cohorts(
    split: EdgeSplit, known: Graph, partitioned: Partition, groups: Sequence[Sequence[int]]
) -> list[Cohort]:
    return [make_cohort(known, split, partitioned, group) for group in groups]


@settings(max_examples=40)
@given(st.integers(0, 200), st.sampled_from(PARTITIONS), st.integers(0, 3))
def test_no_cohort_has_an_edge_of_validation_or_test(seed: int, name: str, bound: int) -> None:
    graph, split, known, partitioned = world(seed, name, weights=True)
    hidden = set(map(tuple, graph.edges[:, ~split.train].T.tolist()))
    seen = set()
    k = partitioned.num_clients
    for cohort in cohorts(split, known, partitioned, [g for g in (range(bound), range(bound, k)) if len(g)]):
        ids = cohort.id.numpy()
        inside = ids[cohort.edge_index.numpy()]
        across = np.stack([ids[cohort.cross_row.numpy()], cohort.cross_id.numpy()])
        seen |= {(min(e), max(e)) for e in np.concatenate([inside, across], 1).T.tolist()}
        assert not bool((cohort.train | cohort.val | cohort.test).any())
        assert cohort.edge_weight is not None
    assert not seen & hidden
    assert seen == set(map(tuple, graph.edges[:, split.train].T.tolist()))


@settings(max_examples=20)
@given(st.integers(0, 200), st.sampled_from(PARTITIONS), st.integers(1, 3))
def test_the_clients_of_several_cohorts_score_what_those_of_one_do(seed: int, name: str, bound: int) -> None:
    _, split, known, partitioned = world(seed, name)
    k = partitioned.num_clients
    (whole,) = cohorts(split, known, partitioned, [range(k)])
    parts = cohorts(split, known, partitioned, [range(bound), range(bound, k)])

    def listed(cohort: Cohort) -> list[tuple[int, ...]]:
        links = cohort.links
        assert links is not None
        assert bool((links.row.diff() >= 0).all())
        first = torch.tensor(cohort.clients)[cohort.client[links.row]]
        columns = (first, cohort.id[links.row], links.client, links.id, links.label, links.part)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    assert listed(whole) == [pair for part in parts for pair in listed(part)]
    held = dict(zip(partitioned.held_id.tolist(), partitioned.held_client.tolist(), strict=True))
    edges = set(map(tuple, np.sort(split.edges[:, split.val | split.test], axis=0).T.tolist()))
    for client, local, other, remote, label, _ in listed(whole):
        assert (held[local], held[remote]) == (client, other)
        assert bool(label) == ((min(local, remote), max(local, remote)) in edges)


def test_pairs_of_a_target_are_in_its_part_and_all_are_both() -> None:
    _, split, known, partitioned = world(0, "random")
    (cohort,) = cohorts(split, known, partitioned, [range(4)])
    assert cohort.links is not None
    val, test = cohort.pairs("val"), cohort.pairs("test")
    assert len(val) == 2 * split.val.sum()
    assert len(test) == 2 * split.test.sum()
    assert torch.equal(torch.cat([val, test]).sort()[0], cohort.pairs("all"))
    assert not bool(cohort.links.part[val].any())


def saved(folder: Path) -> tuple[Cohort, Path]:
    _, split, known, partitioned = world(1, "random")
    (cohort,) = cohorts(split, known, partitioned, [[1, 2]])
    save_cohort(cohort, folder / "cohort.safetensors")
    return cohort, folder / "cohort.safetensors"


def test_a_cohort_file_has_the_scored_pairs(tmp_path: Path) -> None:
    cohort, path = saved(tmp_path)
    back = load_cohort(path)
    assert isinstance(cohort.links, Links)
    assert back.links is not None
    for name in ("row", "client", "id", "label", "part"):
        one, two = getattr(cohort.links, name), getattr(back.links, name)
        assert torch.equal(one, two)
        assert one.dtype == two.dtype


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("links_row", lambda row: row[:-1], "its scored pairs need the columns"),
        ("links_row", None, "its scored pairs need the columns"),
        ("links_label", lambda label: label.astype(np.int64), "of one length and the right kinds"),
        ("links_row", lambda row: row[::-1].copy(), "not sorted by node"),
        ("links_row", lambda row: row + 10_000, "has no node in this file"),
        ("links_part", lambda part: part + 2, "in no part of the split"),
        ("links_client", lambda client: client - 9, "not sorted by node"),
        ("train", lambda train: ~train, "scored pairs and nodes in parts"),
    ],
)
def test_a_file_whose_scored_pairs_are_none_is_refused(
    name: str, changed: object, message: str, tmp_path: Path
) -> None:
    _, path = saved(tmp_path)
    arrays, _ = read_tensors(path)
    arrays = {key: array for key, array in arrays.items() if key != name or changed is not None}
    if callable(changed):
        arrays[name] = changed(arrays[name])
    write_tensors(path, arrays)
    with pytest.raises(InputError, match=message):
        load_cohort(path)

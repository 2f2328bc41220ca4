"""A cohort has the directed edges of its clients, whoever made it: from the whole graph or from a client's
own files."""

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from own_files import write_clients_with_payments

from graphfed.data.graphs.directed import make_directed
from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.data.user_files.graph_description import describe_file
from graphfed.data.user_files.graph_files import load_description
from graphfed.errors import InputError
from graphfed.federation.cohort import Cohort, load_cohort, make_cohort, save_cohort, stable_ids_of
from graphfed.federation.cohort_edges import CohortEdges
from graphfed.files import read_tensors, write_tensors
from graphfed.tasks.graphs.client_data import make_client_cohort, read_client

CLIENTS = 4
PARTITIONS = {
    "random": {},
    "edges_uniform": {"overlap": 0.4},
    "overlapping": {},
    "label_dirichlet": {"beta": 0.5},
}


@pytest.fixture(scope="module", params=[True, False], ids=["directed", "undirected"])
def graph(request: pytest.FixtureRequest) -> Graph:
    rng = np.random.default_rng(1)
    ends = rng.integers(0, 40, (2, 200))
    plain = make_graph("g", np.eye(40), np.arange(40) % 3, ends)
    edges = make_directed(
        "g", ends, rng.random((200, 2)), ("a", "b"), rng.random(200), directed=request.param, self_loops=True
    )
    assert (edges.source == edges.target).any()
    return replace(plain, directed=edges)


def as_rows(graph: Graph, cohort: Cohort, node: dict[tuple[int, int], int]) -> tuple[Counter, Counter]:
    """The edges inside clients and those between them, with nodes by their number in the graph."""
    edges = cohort.directed
    assert edges is not None
    assert edges.time is not None
    assert edges.cross_time is not None
    keys = [(cohort.clients[k], i) for k, i in zip(cohort.client.tolist(), cohort.id.tolist(), strict=True)]
    inside = Counter(
        (keys[s][0], node[keys[s]], node[keys[t]], *a, time)
        for s, t, a, time in zip(
            *(c.tolist() for c in (edges.source, edges.target, edges.attributes, edges.time)), strict=True
        )
    )
    columns = (
        edges.cross_row, edges.cross_client, edges.cross_id, edges.cross_outgoing, edges.cross_attributes,
        edges.cross_time,
    )  # fmt: skip
    cross = Counter()
    for row, client, id_, outgoing, a, time in zip(*(c.tolist() for c in columns), strict=True):
        one, two = node[keys[row]], node[client, id_]
        source, target = (one, two) if outgoing else (two, one)
        cross[keys[row][0], source, target, *a, time] += 1
    return inside, cross


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_cohort_has_the_edges_between_the_nodes_that_its_clients_hold(graph: Graph, name: str) -> None:
    """Checked edge by edge against the tables of the partition."""
    made = partition(graph, name, CLIENTS, 0, **PARTITIONS[name])
    whole = make_cohort(graph, make_split(graph, "random:0.5,0.2,0.3", 0), made, range(CLIENTS))
    node = {
        (int(k), int(i)): int(v)
        for k, i, v in zip(made.held_client, made.held_id, made.held_node, strict=True)
    }
    pairs: Counter = Counter()
    for k, u, v in zip(made.edge_client, made.edge_u, made.edge_v, strict=True):
        pairs[int(k), frozenset((node[k, u], node[k, v]))] += 1
    for k, i, owner in zip(made.held_client, made.held_id, made.held_owner, strict=True):
        pairs[int(k), frozenset((node[k, i],))] += bool(owner)
    beyond: Counter = Counter()
    for k, i, other, j in zip(
        made.cross_local_client, made.cross_id, made.cross_remote_client, made.cross_remote_id, strict=True
    ):
        beyond[int(k), frozenset((node[k, i], node[other, j]))] += 1
    edges = graph.directed
    assert edges is not None
    assert edges.time is not None
    listed = [
        (int(s), int(t), *a.tolist(), float(time))
        for s, t, a, time in zip(edges.source, edges.target, edges.attributes, edges.time, strict=True)
    ]
    inside, cross = as_rows(graph, whole, node)
    for found, of_pairs in ((inside, pairs), (cross, beyond)):
        expected: Counter = Counter()
        for (client, ends), count in of_pairs.items():
            for row in listed:
                if frozenset(row[:2]) == ends:
                    expected[client, *row] += count
        assert found == +expected


def test_both_clients_have_a_cross_client_edge_with_its_direction_and_attributes(graph: Graph) -> None:
    made = partition(graph, "random", CLIENTS, 0)
    node = {(int(k), int(i)): int(i) for k, i in zip(made.held_client, made.held_id, strict=True)}
    split = make_split(graph, "random:0.5,0.2,0.3", 0)
    _, cross = as_rows(graph, make_cohort(graph, split, made, range(CLIENTS)), node)
    assert set(Counter(row[1:] for row in cross.elements()).values()) == {2}


@pytest.mark.parametrize("clients", [[0], [1, 3]], ids=str)
def test_a_cohort_of_some_clients_has_their_edges_of_the_whole(graph: Graph, clients: list[int]) -> None:
    made = partition(graph, "random", CLIENTS, 0)
    split = make_split(graph, "random:0.5,0.2,0.3", 0)
    node = {(int(k), int(i)): int(i) for k, i in zip(made.held_client, made.held_id, strict=True)}
    whole = as_rows(graph, make_cohort(graph, split, made, range(CLIENTS)), node)
    some = as_rows(graph, make_cohort(graph, split, made, clients), node)
    for all_edges, found in zip(whole, some, strict=True):
        assert found == Counter({row: count for row, count in all_edges.items() if row[0] in clients})


def same(one: CohortEdges | None, two: CohortEdges | None) -> None:
    assert one is not None
    assert two is not None
    for field in fields(CohortEdges):
        torch.testing.assert_close(getattr(one, field.name), getattr(two, field.name), rtol=0, atol=0)


def test_a_saved_cohort_has_the_same_edges_and_a_damaged_one_is_refused(graph: Graph, tmp_path: Path) -> None:
    made, path = partition(graph, "random", CLIENTS, 0), tmp_path / "cohort.safetensors"
    cohort = make_cohort(graph, make_split(graph, "random:0.5,0.2,0.3", 0), made, [1, 2])
    save_cohort(cohort, path)
    same(load_cohort(path).directed, cohort.directed)
    arrays = read_tensors(path)[0]
    damages = {
        "directed_source": arrays["directed_source"] + 1000,
        "directed_attributes": arrays["directed_attributes"][:, :1],
        "directed_cross_outgoing": arrays["directed_cross_outgoing"][1:],
        "directed_cross_time": None,
        "directed_time": arrays["directed_time"] * np.inf,
        "directed_more": arrays["directed_source"],
        "directed_target": arrays["directed_target"][::-1].copy(),
    }
    for name, damaged in damages.items():
        changed = {**arrays, name: damaged}
        write_tensors(path, {k: v for k, v in changed.items() if v is not None})
        with pytest.raises(InputError, match=r"is not a whole cohort file: .*directed.*; write it again"):
            load_cohort(path)


@pytest.mark.parametrize(
    "keys", ["directed: true", "directed: true\nparallel: combine", "directed: false", "self_loops: keep"]
)
def test_clients_that_read_their_own_files_have_the_cohorts_of_the_party_with_all_files(
    keys: str, tmp_path: Path
) -> None:
    write_clients_with_payments(tmp_path, keys)
    description, _ = describe_file(tmp_path / "all.yaml")
    graph = load_description(description)
    made = partition(graph, "column", None, 0)
    assert graph.split is not None
    ids = stable_ids_of(graph, made)
    for k, bank in enumerate(graph.client_names):
        read = read_client(
            tmp_path / f"{bank}.yaml", split="default", split_seed=0, roster=graph.client_names, client=bank
        )
        expected = make_cohort(graph, graph.split, made, [k], stable_ids=ids)
        found = make_client_cohort(read, [k], 2)
        assert len(found.directed.cross_row) > 10  # type: ignore[union-attr]
        same(found.directed, expected.directed)
        assert graph.directed is not None
        assert read.schema.edge_features == graph.directed.names
        assert read.schema.directed == (not graph.directed.symmetric)

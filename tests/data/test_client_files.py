"""Several clients' own files are one graph: what all of them list, and each client holds what its files
list."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.overview import client_facts, client_names, overview
from graphfed.data.partitions.partition import partition
from graphfed.data.user_files.graph_description import Description, describe, describe_file
from graphfed.data.user_files.graph_files import load_description
from graphfed.errors import InputError

NORTH = "id,age,balance,label,split\na,1.5,-2,yes,train\nb,2,3e2,,\nc,0,0,no,test\n"
SOUTH = "id,balance,age,label,split\nd,1,4,,\nc,0,0,no,test\nb,300,2.0,no,train\n"
SITES = {
    "north": {"nodes": "north/customers.csv", "edges": "north/transfers.csv"},
    "south": {"nodes": "south/customers.csv", "edges": "south/transfers.csv"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "north/customers.csv": NORTH,
        "north/transfers.csv": "source,target\na,b\nb,c\nb,a\nc,c\n",
        "south/customers.csv": SOUTH,
        "south/transfers.csv": "source,target\nd,c\nc,b\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def described(folder: Path, **more: Any) -> Description:
    return describe({"clients": SITES, **more}, folder, "it")


def load(folder: Path, **more: Any) -> Graph:
    return load_description(described(folder, **more))


def test_the_graph_is_what_all_clients_list_and_an_id_is_one_node(folder: Path) -> None:
    graph = load(folder)
    assert graph.name == "customers", "the name that all files of nodes have"
    assert graph.ids.to_pylist() == ["a", "b", "c", "d"]
    assert graph.feature_names == ("age", "balance"), "as the first client has them"
    np.testing.assert_array_equal(graph.x, np.array([[1.5, -2], [2, 300], [0, 0], [4, 1]], dtype=np.float32))
    assert graph.edges.T.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert (graph.class_names, graph.y.tolist()) == (("no", "yes"), [1, 0, 0, -1])
    assert graph.split is not None
    assert [np.flatnonzero(m).tolist() for m in (graph.split.train, graph.split.val, graph.split.test)] == [
        [0, 1], [], [2],
    ]  # fmt: skip
    assert (graph.client_names, graph.clients) == (("north", "south"), None)


def test_a_client_holds_what_its_files_list_and_owns_what_it_has_the_label_of(folder: Path) -> None:
    graph = load(folder)
    assigned = partition(graph, "column", None, 0)
    assigned.check(graph)
    names = graph.ids.to_pylist()
    held = [
        (graph.client_names[s], names[v], bool(owner))
        for s, v, owner in zip(assigned.held_client, assigned.held_node, assigned.held_owner, strict=True)
    ]
    assert held == [
        ("north", "a", True), ("north", "b", False), ("north", "c", True),
        ("south", "b", True), ("south", "c", True), ("south", "d", True),
    ]  # fmt: skip
    assert [
        (graph.client_names[s], names[u], names[v])
        for s, u, v in zip(assigned.edge_client, assigned.edge_u, assigned.edge_v, strict=True)
    ] == [("north", "a", "b"), ("north", "b", "c"), ("south", "b", "c"), ("south", "c", "d")]
    assert len(assigned.cross_local_client) == 0
    assert client_names(graph, assigned) == ("north", "south")
    assert client_names(graph, partition(graph, "random", 2, 0)) == ()


def test_what_clients_share_is_counted(folder: Path) -> None:
    graph = load(folder)
    none = np.zeros(graph.num_nodes, dtype=bool)
    result = overview(
        graph, graph.split or Split("none", none, none, none), partition(graph, "column", None, 0)
    )
    assert result["shared"] == {"nodes": 2, "edges": 1}
    assert [row["name"] for row in result["clients"]] == ["north", "south"]
    assert ("at several clients", "2 nodes, 1 edges") in client_facts(result)
    alone = overview(graph, Split("none", none, none, none), partition(graph, "random", 2, 0))
    assert alone["shared"] == {"nodes": 0, "edges": 0}
    del alone["shared"]
    assert "at several clients" not in dict(client_facts(alone)), "an overview of an earlier version"


def test_without_a_column_of_labels_every_client_owns_its_nodes(folder: Path) -> None:
    graph = load(folder, label=None, features=["age"])
    assert graph.held is not None
    assert graph.held.owner.all()
    assert (graph.y == -1).all()


def test_named_classes_are_those_of_all_clients(folder: Path) -> None:
    graph = load(folder, classes=["yes", "no", "unclear"])
    assert (graph.class_names, graph.y.tolist()) == (("yes", "no", "unclear"), [0, 1, 1, -1])
    with pytest.raises(
        InputError, match=r"client 'north': .*customers\.csv, line 2, column 'label': 'yes' is none"
    ):
        load(folder, classes=["no"])


def test_a_column_called_client_is_no_feature(folder: Path) -> None:
    for name in SITES:
        path = folder / name / "customers.csv"
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([f"{head},client", *(f"{row},{name}" for row in rows)]) + "\n")
    assert load(folder).feature_names == ("age", "balance")


def test_an_edge_that_two_clients_list_weighs_what_both_say_and_not_the_sum(folder: Path) -> None:
    (folder / "north/transfers.csv").write_text("source,target,weight\na,b,2\nb,c,1\nc,b,0.5\n")
    (folder / "south/transfers.csv").write_text("source,target,weight\nd,c,1\nc,b,1.5\n")
    graph = load(folder)
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [2, 1.5, 1], "rows of one client add up"
    with pytest.raises(
        InputError, match=r"the edge between 'b' and 'c' has weight 1\.5 here and 1\.0 at client"
    ):
        load(folder, repeated="max")
    assert load(folder, weight=None).edge_weight is None


def test_a_description_of_clients_survives_json_and_names_absolute_paths(folder: Path) -> None:
    lines = ["clients:"] + [
        f"  {name}: {{nodes: {f['nodes']}, edges: {f['edges']}}}" for name, f in SITES.items()
    ]
    (folder / "d.yaml").write_text("\n".join([*lines, "split:", "features: [age]", "name: custom"]))
    description, _ = describe_file(folder / "d.yaml")
    content = description.to_json()
    again = describe(content, Path("/nowhere"), "it")
    assert again == description
    assert again.to_json() == content
    assert all(Path(path).is_absolute() for client in content["clients"].values() for path in client.values())
    assert (again.name, again.features, again.split) == ("custom", ("age",), None)
    assert hash(again) == hash(description)
    assert load_description(again).hash == load_description(description).hash


def test_the_name_of_files_with_different_names_is_clients(folder: Path) -> None:
    (folder / "south/customers.csv").rename(folder / "south/people.csv")
    south = {"nodes": "south/people.csv", "edges": "south/transfers.csv"}
    assert load(folder, clients={**SITES, "south": south}).name == "clients"
    assert load(folder, clients={1: SITES["north"], 2: south}).client_names == ("1", "2")


# ---- against a slow count ----------------------------------------------------------------------------------


@dataclasses.dataclass
class World:
    """What is true, and which part of it each client lists, blank where it does not know."""

    x: list[list[float]]
    label: list[str]
    part: list[str]
    weight: dict[tuple[int, int], float]
    nodes: list[dict[int, tuple[bool, bool]]]  # of each client: node -> whether label and part are there
    edges: list[list[tuple[int, int]]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    n, clients = draw(st.integers(1, 12)), draw(st.integers(2, 4))
    node = st.integers(0, n - 1)
    pair = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=2)
    world = World(
        draw(st.lists(pair, min_size=n, max_size=n)),
        draw(st.lists(st.sampled_from(["yes", "no", ""]), min_size=n, max_size=n)),
        draw(st.lists(st.sampled_from(["train", "val", "test", "", "none"]), min_size=n, max_size=n)),
        {}, [], [],
    )  # fmt: skip
    for _ in range(clients):
        listed = draw(st.dictionaries(node, st.tuples(st.booleans(), st.booleans()), min_size=1))
        ends = st.sampled_from(sorted(listed))
        world.nodes.append(listed)
        world.edges.append(draw(st.lists(st.tuples(ends, ends), max_size=15)))
    for u, v in {(min(e), max(e)) for edges in world.edges for e in edges}:
        world.weight[u, v] = draw(st.integers(1, 4)) / 2
    return world


def write(world: World, folder: Path, weighted: bool) -> dict[str, Any]:
    clients: dict[str, Any] = {}
    for s, (nodes, edges) in enumerate(zip(world.nodes, world.edges, strict=True)):
        rows = [
            f"v{v},{world.label[v] * label},{world.x[v][0]},{world.part[v] * part},{world.x[v][1]}"
            for v, (label, part) in nodes.items()
        ]
        (folder / f"n{s}.csv").write_text("\n".join(["id,label,p,split,q", *rows]) + "\n")
        lines = [f"v{u},v{v},{world.weight[min(u, v), max(u, v)]}" for u, v in edges]
        (folder / f"e{s}.csv").write_text("\n".join(["source,target,w", *lines]) + "\n")
        clients[f"client {s}"] = {"nodes": f"n{s}.csv", "edges": f"e{s}.csv"}
    return {"clients": clients} | ({"weight": "w", "repeated": "max"} if weighted else {})


@settings(max_examples=60)
@given(world=worlds(), weighted=st.booleans())
def test_clients_files_say_what_a_slow_count_of_them_says(
    world: World, weighted: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("world")
    graph = load_description(describe(write(world, folder, weighted), folder, "it"))
    names = [f"v{v}" for v in dict.fromkeys(v for nodes in world.nodes for v in nodes)]
    ids = graph.ids.to_pylist()
    assert ids == names
    place = {int(name[1:]): i for i, name in enumerate(ids)}
    assert graph.x is not None
    assert graph.x.tolist() == [world.x[v] for v in place]
    known = {v for nodes in world.nodes for v, (label, _) in nodes.items() if label and world.label[v]}
    labels = ["" if c < 0 else graph.class_names[c] for c in graph.y]
    assert labels == [world.label[v] if v in known else "" for v in place]
    assert graph.split is not None
    for part in ("train", "val", "test"):
        there = {
            v for nodes in world.nodes for v, (_, says) in nodes.items() if says and world.part[v] == part
        }
        assert {v for v, i in place.items() if getattr(graph.split, part)[i]} == there
    proper = [{(min(e), max(e)) for e in edges if e[0] != e[1]} for edges in world.edges]
    back = {i: v for v, i in place.items()}
    pairs = [(min(back[u], back[v]), max(back[u], back[v])) for u, v in graph.edges.T.tolist()]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == set().union(*proper)
    if graph.edge_weight is not None:
        assert graph.edge_weight.tolist() == [world.weight[pair] for pair in pairs]
    elif weighted:
        assert all(world.weight[pair] == 1 for pair in pairs)
    assigned = partition(graph, "column", None, 0)
    assigned.check(graph)
    for s, nodes in enumerate(world.nodes):
        local = assigned.held_client == s
        assert {back[v] for v in assigned.held_node[local].tolist()} == set(nodes)
        owned = {back[v] for v in assigned.held_node[local & assigned.held_owner].tolist()}
        assert owned == {v for v, (says, _) in nodes.items() if (says and world.label[v]) or v not in known}
        at = assigned.edge_client == s
        ends = zip(assigned.edge_u[at].tolist(), assigned.edge_v[at].tolist(), strict=True)
        assert {(min(back[u], back[v]), max(back[u], back[v])) for u, v in ends} == proper[s]


def test_a_large_feature_that_float32_changes_is_one_number_for_all_clients(folder: Path) -> None:
    """North's file has none, and south's has: c's balance is the same at both."""
    (folder / "north/customers.csv").write_text(NORTH.replace("c,0,0", "c,0,67108864"))
    south = folder / "south/customers.csv"
    south.write_text(SOUTH.replace("c,0,0", "c,67108864,0").replace("d,1", "d,67108865"))
    assert load(folder).x[:, 1].tolist() == [-2, 300, 67108864, 67108865]
    south.write_text(SOUTH.replace("c,0,0", "c,67108865,0"))
    with pytest.raises(InputError, match="this feature of"):
        load(folder)

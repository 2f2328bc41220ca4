"""A graph keeps its edges as the data lists them: directions, parallel edges, attributes, times and self
loops, whoever reads them and in whatever order they are listed."""

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

import graphfed
from graphfed.data.graphs.directed import DirectedEdges, make_directed
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.link_splits import make_edge_split, training_graph
from graphfed.data.graphs.overview import graph_facts, overview
from graphfed.data.partitions.partition import partition
from graphfed.data.user_files.graph_description import describe
from graphfed.data.user_files.graph_files import from_networkx, load_description, read_graph_file
from graphfed.data.user_files.pyg_files import from_pyg, from_pyg_clients
from graphfed.errors import InputError

#: Payer, payee, amount, fee, time. 2024-01-01 was a Monday, 19 723 days after 1970-01-01.
PAYMENTS = [
    ("b", "a", 5, 1, "2024-01-01 06:00"),
    ("a", "b", 7, 0, "2024-01-02 12:00"),
    ("b", "a", 2, 3, "2024-01-07 00:00"),
    ("c", "c", 4, 4, "2024-01-03 00:00"),
    ("a", "c", 1, 1, "2024-01-01 00:00"),
]
NODES = "id,age,label\na,1,yes\nb,2,no\nc,3,no\n"


def rows(edges: DirectedEdges | None) -> list[tuple[Any, ...]]:
    assert edges is not None
    return [
        (int(s), int(t), *a) for s, t, a in zip(edges.source, edges.target, edges.attributes, strict=True)
    ]


def load(folder: Path, *, nodes: str = NODES, payments: list[Any] = PAYMENTS, **keys: Any) -> Graph:
    (folder / "nodes.csv").write_text(nodes)
    lines = [",".join(map(str, row)) for row in payments]
    (folder / "edges.csv").write_text("\n".join(["payer,payee,amount,fee,booked", *lines]) + "\n")
    described = {"nodes": "nodes.csv", "edges": "edges.csv", "source": "payer", "target": "payee", **keys}
    return load_description(describe(described, folder, "it"))


def test_a_description_keeps_directions_parallel_edges_and_attributes(tmp_path: Path) -> None:
    graph = load(tmp_path, directed=True, edge_features=["amount", "fee"])
    assert rows(graph.directed) == [(1, 0, 2, 3), (1, 0, 5, 1), (0, 1, 7, 0), (0, 2, 1, 1)]
    assert graph.directed is not None
    assert graph.directed.names == ("amount", "fee")
    assert graph.edges.T.tolist() == [[0, 1], [0, 2]], "the pairs of nodes, for networks without directions"
    assert graph.dropped == ("1 self loop", "1 column of the edges ('booked')")
    assert graph.directed.unread == (
        "the direction of 1 edge",
        "1 repetition of an edge",
        "2 attributes of the edges ('amount', 'fee')",
    )


def test_dates_become_elapsed_days_the_hour_and_the_weekday(tmp_path: Path) -> None:
    graph = load(tmp_path, directed=True, time="booked")
    assert graph.directed is not None
    assert graph.directed.names == ("elapsed days", "hour", "weekday")
    assert rows(graph.directed) == [
        (1, 0, 19723.25, 6, 0), (1, 0, 19729, 0, 6), (0, 1, 19724.5, 12, 1), (0, 2, 19723, 0, 0),
    ]  # fmt: skip
    assert graph.directed.time is not None
    assert graph.directed.time.tolist() == [19723.25 * 86400, 19729 * 86400, 19724.5 * 86400, 19723 * 86400]


def test_times_that_are_numbers_are_one_attribute(tmp_path: Path) -> None:
    numbered = [(*payment[:4], row) for row, payment in enumerate(PAYMENTS)]
    graph = load(tmp_path, payments=numbered, directed=True, time="booked")
    assert rows(graph.directed) == [(1, 0, 0), (1, 0, 2), (0, 1, 1), (0, 2, 4)]


def test_combined_edges_have_the_sum_the_mean_or_the_largest_attribute_and_the_latest_time(
    tmp_path: Path,
) -> None:
    keys = {"directed": True, "edge_features": "amount", "parallel": "combine"}
    for repeated, amount in (("sum", 7), ("mean", 3.5), ("max", 5)):
        graph = load(tmp_path, repeated=repeated, **keys)
        assert rows(graph.directed) == [(1, 0, amount), (0, 1, 7), (0, 2, 1)]
    graph = load(tmp_path, time="booked", **keys)
    assert rows(graph.directed)[0] == (1, 0, 7, 19729, 0, 6)


def test_self_loops_are_kept_where_asked(tmp_path: Path) -> None:
    graph = load(tmp_path, edge_features=["fee"], directed=True, self_loops="keep")
    assert (2, 2, 4) in rows(graph.directed)
    assert graph.dropped == ("2 columns of the edges ('amount', 'booked')",)


def test_undirected_edges_with_attributes_are_listed_in_both_directions(tmp_path: Path) -> None:
    graph = load(tmp_path, edge_features=["amount"])
    assert graph.directed is not None
    assert graph.directed.symmetric
    assert rows(graph.directed) == [
        (1, 0, 2), (1, 0, 5), (1, 0, 7), (2, 0, 1), (0, 1, 2), (0, 1, 5), (0, 1, 7), (0, 2, 1),
    ]  # fmt: skip


def test_a_column_of_attributes_called_weight_is_no_weight(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text("source,target,weight\na,b,-3\n")
    files = {"nodes": "nodes.csv", "edges": "edges.csv"}
    graph = load_description(describe({**files, "edge_features": ["weight"]}, tmp_path, "it"))
    assert graph.edge_weight is None
    assert rows(graph.directed) == [(1, 0, -3), (0, 1, -3)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"edge_features": ["amount", "price"]}, "price"),
        ({"edge_features": ["payer"]}, "'payer' of .* cannot be a feature.*remove it from 'edge_features'"),
        ({"edge_features": ["booked"]}, "line 2, column 'booked': '2024-01-01 06:00' is no number.*edge_f"),
        ({"directed": "maybe"}, "directed"),
        ({"directed": True, "parallel": "merge"}, "parallel.*combine, keep"),
        ({"parallel": "combine"}, "'parallel', which is about directed edges.*or remove 'parallel'"),
        ({"directed": True, "time": "fee", "edge_features": ["fee"]}, "another key names"),
    ],
)  # fmt: skip
def test_keys_that_cannot_be_used_are_refused_in_one_line(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as raised:
        load(tmp_path, **keys)
    assert "\n" not in str(raised.value)


def test_a_network_that_reads_no_weights_says_how_to_make_them_attributes(tmp_path: Path) -> None:
    load(tmp_path)
    data = {"nodes": "nodes.csv", "edges": "edges.csv", "source": "payer", "target": "payee", "weight": "fee"}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(data))
    (tmp_path / "nodes.csv").write_text(
        "id,age,label,split\na,1,x,train\nb,2,y,train\nc,3,x,val\nd,4,y,test\n"
    )
    (tmp_path / "edges.csv").write_text("payer,payee,fee\na,b,2\nb,c,3\nc,a,1\n")
    with pytest.raises(InputError, match=r"'edge_features: \[COLUMN\]' makes them an attribute"):
        graphfed.run(
            "central", data=tmp_path / "own.yaml", backbone="gine", clients=1, partition="random", out=False
        )


@pytest.mark.parametrize(
    ("time", "message"), [("soon", "line 3, .*'soon' is no time"), ("", "line 3, .*is empty")]
)
def test_a_time_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path, time: str, message: str) -> None:
    payments = [PAYMENTS[0], (*PAYMENTS[1][:4], time)]
    with pytest.raises(InputError, match=message):
        load(tmp_path, payments=payments, time="booked")


def of_clients(folder: Path, south_nodes: str) -> Graph:
    """Two clients with files of their own: the payments that leave their accounts."""
    (folder / "north.csv").write_text(NODES)
    (folder / "south.csv").write_text(south_nodes)
    header = "source,target,amount,fee,booked"
    for client, payments in (("north", PAYMENTS[:2]), ("south", [("d", "a", 8, 2, "2024-01-05 00:00")])):
        (folder / f"{client}_edges.csv").write_text(
            "\n".join([header, *(",".join(map(str, row)) for row in payments)])
        )
    clients = {name: {"nodes": f"{name}.csv", "edges": f"{name}_edges.csv"} for name in ("north", "south")}
    keys = {"directed": True, "edge_features": ["amount", "fee"], "time": "booked"}
    return load_description(describe({"clients": clients, **keys}, folder, "it"))


def test_directed_edges_of_several_clients_files_are_united_and_may_lead_to_other_clients(
    tmp_path: Path,
) -> None:
    graph = of_clients(tmp_path, "id,age,label\nd,4,yes\n")
    assert graph.client_names == ("north", "south")
    assert [row[:4] for row in rows(graph.directed)] == [(1, 0, 5, 1), (3, 0, 8, 2), (0, 1, 7, 0)]


def test_clients_that_share_a_node_cannot_keep_directions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a node is in the files of several clients.*one of all edges"):
        of_clients(tmp_path, "id,age,label\na,1,yes\nd,4,yes\n")


def pyg(ends: list[list[int]], **more: Any) -> DirectedEdges | None:
    data = Data(x=torch.eye(4), y=torch.tensor([0, 1, 0, 1]), edge_index=torch.tensor(ends), **more)
    return from_pyg(data).directed


def test_a_pyg_data_keeps_directions_attributes_and_times() -> None:
    ends = [[2, 0, 2], [1, 3, 1]]
    edges = pyg(ends, edge_attr=torch.tensor([[1.0, 2], [3, 4], [5, 6]]), edge_time=torch.tensor([9, 8, 7]))
    assert rows(edges) == [(2, 1, 1, 2, 9), (2, 1, 5, 6, 7), (0, 3, 3, 4, 8)]
    assert edges is not None
    assert (edges.names, edges.symmetric) == (("edge_attr_0", "edge_attr_1", "time"), False)
    assert rows(pyg(ends)) == [(2, 1), (2, 1), (0, 3)]


def test_a_pyg_data_whose_edges_have_no_direction_keeps_them_only_with_attributes() -> None:
    both = [[0, 1, 1, 3], [1, 0, 3, 1]]
    assert pyg(both) is None
    assert pyg([[0, 1], [1, 3]]) is None, "each edge is listed once, from the smaller to the larger number"
    edges = pyg(both, edge_attr=torch.tensor([5.0, 5, 6, 6]))
    assert edges is not None
    assert edges.symmetric
    assert rows(edges) == [(1, 0, 5), (0, 1, 5), (3, 1, 6), (1, 3, 6)]
    other = pyg(both, edge_attr=torch.tensor([5.0, 5, 6, 7]))
    assert other is not None
    assert not other.symmetric, "the two directions of an edge have different attributes"


def test_attributes_of_another_length_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"edge_attr of the Data object has .* shape \(3, 1\); exp.* 2 edges"
    ):
        pyg([[0, 1], [1, 0]], edge_attr=torch.ones(3, 1))
    with pytest.raises(InputError, match="from node 1 to node 0 has an attribute or a time that is no f"):
        pyg([[0, 1], [1, 0]], edge_attr=torch.tensor([1.0, float("nan")]))


def test_networkx_and_graphml_keep_what_the_tables_keep(tmp_path: Path) -> None:
    network = nx.MultiDiGraph()
    for line in NODES.splitlines()[1:]:
        name, age, label = line.split(",")
        network.add_node(name, age=float(age), label=label)
    for payer, payee, amount, fee, booked in PAYMENTS:
        network.add_edge(payer, payee, amount=amount, fee=fee, time=booked, channel="wire")
    nx.write_graphml(network, tmp_path / "g.graphml")
    table = load(tmp_path, directed=True, edge_features=["amount", "fee"], time="booked")
    for graph in (from_networkx(network), read_graph_file(tmp_path / "g.graphml")):
        assert graph.hash == table.hash
        assert graph.directed is not None
        assert table.directed is not None
        assert graph.directed.names == table.directed.names
        assert graph.dropped == ("1 self loop", "1 attribute of the edges ('channel')")


edge_lists = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0.5, 1.0, 0.1]), st.integers(0, 2)),
    max_size=25,
)


@given(
    listed=edge_lists, data=st.data(), directed=st.booleans(), parallel=st.sampled_from(["keep", "combine"])
)
def test_the_order_in_which_edges_are_listed_changes_nothing(
    listed: list[Any], data: st.DataObject, directed: bool, parallel: str
) -> None:
    def made(rows: list[Any]) -> DirectedEdges:
        table = np.array(rows, dtype=np.float64).reshape(-1, 4)
        options = {"directed": directed, "parallel": parallel, "self_loops": True, "dated": True}
        return make_directed(
            "g", table[:, :2].T.astype(np.int64), table[:, 2:3], ("a",), 1e5 * table[:, 3], **options
        )

    one, two = made(listed), made(data.draw(st.permutations(listed)))
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, two.arrays[name], err_msg=name)
    if not directed:
        assert sorted(rows(one)) == sorted((t, s, *more) for s, t, *more in rows(one))
    if directed and parallel == "keep":
        assert sorted(r[:2] for r in rows(one)) == sorted(r[:2] for r in listed)


@given(listed=edge_lists, wanted=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_the_edges_between_pairs_of_nodes_are_those_that_a_loop_finds(
    listed: list[Any], wanted: list[Any]
) -> None:
    table = np.array(listed, dtype=np.int64).reshape(-1, 4)
    edges = make_directed("g", table[:, :2].T, self_loops=True)
    u, v = np.array(wanted, dtype=np.int64).reshape(-1, 2).T
    pair, row = edges.between(u, v)
    expected = [
        (p, r)
        for p, ends in enumerate(wanted)
        for r in range(len(edges.source))
        if {*ends} == {int(edges.source[r]), int(edges.target[r])}
    ]
    assert sorted(zip(pair.tolist(), row.tolist(), strict=True)) == sorted(expected)


def test_the_training_graph_of_a_split_of_edges_has_no_edge_of_validation_or_test() -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 30, (2, 200))
    data = Data(
        x=torch.eye(30), edge_index=torch.from_numpy(ends), edge_attr=torch.from_numpy(rng.random(200))
    )
    graph = from_pyg(data)
    split = make_edge_split(graph, "edges:0.6,0.2,0.2", 0)
    kept = training_graph(graph, split)
    assert kept.directed is not None
    pairs = {tuple(sorted(row[:2])) for row in rows(kept.directed)}
    assert pairs == set(map(tuple, kept.edges.T.tolist()))
    assert len(pairs) == split.train.sum() < graph.num_edges


def test_an_overview_counts_the_edges_as_they_are_listed(tmp_path: Path) -> None:
    for directed, text in ((True, "4, directed, with fee"), (False, "4, undirected, with fee")):
        graph = load(tmp_path, directed=directed, edge_features=["fee"])
        none = np.zeros(3, dtype=bool)
        whole = partition(graph, "random", 1, 0)
        facts = dict(graph_facts(overview(graph, Split("none", none, none, none), whole)))
        assert facts["edges as listed"] == text
        assert facts["edges"] == "2"


def payments_of(*edges: tuple[int, int, float]) -> Data:
    ends = torch.tensor([edge[:2] for edge in edges]).t()
    amounts = torch.tensor([edge[2] for edge in edges])
    return Data(x=torch.zeros(3, 1), y=torch.tensor([0, 1, 0]), edge_index=ends, edge_attr=amounts)


def test_the_edges_of_several_clients_are_those_of_each_with_its_nodes_moved() -> None:
    north, south = payments_of((2, 0, 5.0), (0, 1, 7.0)), payments_of((1, 0, 2.0), (1, 0, 3.0))
    united = from_pyg_clients([north, south], ["north", "south"])
    assert rows(united.directed) == [(2, 0, 5), (0, 1, 7), (4, 3, 2), (4, 3, 3)]


def test_a_client_with_other_columns_of_edges_is_named() -> None:
    plain = payments_of((1, 0, 1.0))
    del plain.edge_attr
    with pytest.raises(InputError, match="client 'south' has directed edges with 0 attributes, and client"):
        from_pyg_clients([payments_of((2, 0, 5.0), (0, 1, 7.0)), plain], ["north", "south"])

"""GraphML against its specification: the values of an oracle that uses the XML alone, and of networkx."""

import xml.etree.ElementTree as ET
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from graphfed.data.user_files.graph_files import read_graph_file
from graphfed.errors import InputError

NAMESPACE = "http://graphml.graphdrawing.org/xmlns"
NUMBER = '<key id="n" for="node" attr.name="amount" attr.type="double"/>'


def document(keys: str, nodes: str, edges: str = "", kind: str = "undirected", more: str = "") -> str:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><graphml xmlns="{NAMESPACE}">{keys}'
        f'<graph id="G" edgedefault="{kind}">{nodes}{edges}</graph>{more}</graphml>'
    )


def node(name: str, inside: str = "", **data: object) -> str:
    values = "".join(f'<data key="{key}">{value}</data>' for key, value in data.items())
    return f'<node id="{name}">{values}{inside}</node>'


def edge(source: str, target: str, more: str = "", **data: object) -> str:
    values = "".join(f'<data key="{key}">{value}</data>' for key, value in data.items())
    return f'<edge source="{source}" target="{target}" {more}>{values}</edge>'


def values_of(text: str, kind: str, name: str) -> list[str | None]:
    """The text of a key at each node or edge: its own data, else the default of the key."""
    root = ET.fromstring(text)
    (key,) = (k for k in root.iter(f"{{{NAMESPACE}}}key") if k.get("attr.name") == name)
    default = key.findtext(f"{{{NAMESPACE}}}default")
    return [
        next((d.text for d in e.findall(f"{{{NAMESPACE}}}data") if d.get("key") == key.get("id")), default)
        for e in root.iter(f"{{{NAMESPACE}}}{kind}")
    ]


def defaults(kind: str = "node", name: str = "node") -> str:
    return document(
        f"""{NUMBER}
        <key id="l" for="{kind}" attr.name="label" attr.type="string"><default>ok</default></key>
        <key id="c" for="node" attr.name="client" attr.type="string"><default>bank_a</default></key>
        <key id="b" for="node" attr.name="flag" attr.type="boolean"><default>true</default></key>
        <key id="i" for="node" attr.name="visits" attr.type="int"><default>3</default></key>
        <key id="w" for="edge" attr.name="weight" attr.type="double"><default>5</default></key>""",
        node("n0", n=0.0, l="fraud", c="bank_b") + node("n1", n=0.5, b="false") + node("n2", n=1, i=7)
        + '<node id="n3"><data key="n">2</data><data key="l"/></node>',
        edge("n0", "n1", w=2) + edge("n1", "n2") + edge("n2", "n3"),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["node", "all"])
def test_a_default_is_the_value_of_every_element_without_one(tmp_path: Path, kind: str) -> None:
    path, text = tmp_path / "g.graphml", defaults(kind)
    path.write_text(text)
    graph = read_graph_file(path)
    names = [None if c < 0 else graph.class_names[c] for c in graph.y]
    assert names == values_of(text, "node", "label") == ["fraud", "ok", "ok", None]
    assert [graph.client_names[c] for c in graph.clients] == values_of(text, "node", "client")
    assert graph.edge_weight.tolist() == [float(w) for w in values_of(text, "edge", "weight")] == [2, 5, 5]
    columns = dict(zip(graph.feature_names, graph.x.T.tolist(), strict=True))
    assert columns["visits"] == [float(v) for v in values_of(text, "node", "visits")]
    assert columns["flag"] == [float(v == "true") for v in values_of(text, "node", "flag")] == [1, 0, 1, 1]
    # networkx keeps the defaults next to the graph, except those of keys for all elements.
    network = nx.read_graphml(path)
    if kind == "node":
        assert network.graph["node_default"] == {"label": "ok", "client": "bank_a", "flag": True, "visits": 3}
        assert network.graph["edge_default"] == {"weight": 5.0}


def test_without_defaults_the_graph_is_that_of_networkx(tmp_path: Path) -> None:
    path, random = tmp_path / "g.graphml", np.random.default_rng(0)
    for directed in (False, True):
        network = nx.gnp_random_graph(30, 0.2, seed=1, directed=directed)
        for v in network:
            network.nodes[v].update(a=float(random.normal()), b=int(random.integers(9)), c=bool(v % 2))
            network.nodes[v]["label"] = f"class {v % 3}"
        for u, v in network.edges:
            network.edges[u, v]["weight"] = float(random.uniform(1, 2))
        nx.write_graphml(network, path)
        graph, again = read_graph_file(path), nx.read_graphml(path)
        assert graph.ids.to_pylist() == list(again)
        expected = [[float(again.nodes[v][name]) for name in graph.feature_names] for v in again]
        assert np.array_equal(graph.x, np.array(expected, dtype=np.float32))
        assert [graph.class_names[c] for c in graph.y] == [again.nodes[v]["label"] for v in again]
        means = {}
        for u, v, weight in again.edges(data="weight"):
            means.setdefault(frozenset((u, v)), []).append(weight)
        ids = graph.ids.to_pylist()
        found = {
            frozenset((ids[u], ids[v])): weight
            for (u, v), weight in zip(graph.edges.T, graph.edge_weight, strict=True)
        }
        assert found.keys() == means.keys()
        assert all(found[pair] == pytest.approx(np.mean(means[pair])) for pair in means)


TWO = node("a", n=1) + node("b", n=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            document(NUMBER, TWO, '<hyperedge><endpoint node="a"/><endpoint node="b"/></hyperedge>'),
            "has hyperedges, and an edge of graphfed joins two nodes; replace each by edges",
        ),
        (
            document(NUMBER, node("a", f'<graph edgedefault="directed">{node("a::1", n=1)}</graph>', n=1)),
            "node 'a' contains a graph, and nested graphs are not read; write all nodes and edges into one",
        ),
        (document(NUMBER, TWO, more=f"<graph>{TWO}</graph>"), "has 2 graphs, and .* one graph is expected"),
        (document(NUMBER, TWO + node("a", n=3)), "two nodes with the id 'a'"),
        (
            document(NUMBER, TWO, edge("a", "c")),
            "the edge from 'a' to 'c' names 'c', which is no node; add the node, or drop the edge",
        ),
        (document(NUMBER, node("a", n="much")), "cannot be read as GraphML .*much"),
        ("<gexf/>", "has 0 graphs"),
        ("no xml", "is no GraphML file"),
        (document("", TWO.replace(' key="n"', ' key="x"')), "no key x"),
    ],
)  # fmt: skip
def test_what_networkx_would_leave_out_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "g.graphml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_graph_file(tmp_path / "g.graphml")


@pytest.mark.parametrize("namespace", [True, False])
def test_ports_are_named_and_left_out_and_directions_may_be_mixed(tmp_path: Path, namespace: bool) -> None:
    text = document(
        NUMBER,
        node("a", '<port name="north"/>', n=1) + node("b", n=2) + node("c", n=3),
        edge("a", "b", 'directed="true" sourceport="north"') + edge("b", "c", 'directed="false"'),
    )
    if not namespace:
        text = text.replace(f' xmlns="{NAMESPACE}"', "")
    (tmp_path / "G.GraphML").write_text(text)
    graph = read_graph_file(tmp_path / "G.GraphML")
    assert graph.edges.T.tolist() == [[0, 1], [1, 2]]
    assert "1 port" in graph.dropped


def test_a_key_without_a_name_and_a_type_is_a_text_called_by_its_id(tmp_path: Path) -> None:
    keys = f'{NUMBER}<key id="label" for="node"/>'
    (tmp_path / "g.graphml").write_text(document(keys, node("a", n=1, label="x") + node("b", n=2, label="y")))
    assert read_graph_file(tmp_path / "g.graphml").class_names == ("x", "y")


def test_labels_written_in_several_ways_are_one_class_and_missing_ones_are_unknown() -> None:
    from graphfed.data.user_files.graph_files import from_networkx

    network = nx.path_graph(8)
    labels = [1, 1.0, "1", " 1.0", None, float("nan"), "NaN", 0]
    clients = [10, "10", 10.0, "10", 10, 10, 20, 20]
    for v, label, client in zip(network, labels, clients, strict=True):
        network.nodes[v].update(a=1.0 * v, label=label, client=client)
    graph = from_networkx(network)
    assert (graph.class_names, graph.y.tolist()) == (("0", "1"), [1, 1, 1, 1, -1, -1, -1, 0])
    assert (graph.client_names, graph.clients.tolist()) == (("10", "20"), [0] * 6 + [1] * 2)
    network.add_node("3", a=0.0, client=10)
    with pytest.raises(InputError, match="the nodes 3 and '3' have the same text"):
        from_networkx(network)


def test_large_features_keep_their_differences(tmp_path: Path) -> None:
    since = [1_600_000_000_000 + i for i in range(12)]
    nodes = "".join(node(f"n{i}", s=value) for i, value in enumerate(since))
    key = '<key id="s" for="node" attr.name="since" attr.type="long"/>'
    (tmp_path / "g.graphml").write_text(document(key, nodes, edge("n0", "n1")))
    assert read_graph_file(tmp_path / "g.graphml").x[:, 0].tolist() == since

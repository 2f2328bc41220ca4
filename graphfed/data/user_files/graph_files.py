"""Loading of users' graphs: described tables, files of a whole graph, and networkx graphs."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from graphfed.data.dropped import edges_dropped, loops_dropped, names_dropped
from graphfed.data.graphs.directed import DirectedEdges, make_directed
from graphfed.data.graphs.graph import Graph, Held, Split, make_graph
from graphfed.data.graphs.splits import UNSPLIT
from graphfed.data.texts import class_remarks, python_texts
from graphfed.data.user_files import graph_tables
from graphfed.data.user_files.client_union import ClientTables, join_disjoint, share_no_node, unite
from graphfed.data.user_files.description import names_distance
from graphfed.data.user_files.feature_encoding import feature_names, filled_features
from graphfed.data.user_files.graph_description import Description, at_client
from graphfed.data.user_files.graph_tables import (
    PARTS,
    Tables,
    encoded,
    encoded_features,
    joined_keys,
    parts_of,
    read_nodes,
    read_tables,
    with_edges,
)
from graphfed.data.user_files.graphml import read_graphml
from graphfed.data.user_files.pyg_files import read_pyg
from graphfed.errors import InputError, shown

if TYPE_CHECKING:
    import networkx as nx
    import pyarrow as pa

    from graphfed.data.texts import Refuse

#: The endings of files that contain or describe a whole graph.
FILES = (".yaml", ".yml", ".pt", ".graphml")


def read_graph_file(path: Path) -> Graph:
    """Read GraphML, or a PyG `Data` saved with torch.save, of which no code is run."""
    if path.suffix.lower() == ".pt":
        return read_pyg(path)
    network, unread = read_graphml(path)
    graph = from_networkx(network, path.stem)
    return dataclasses.replace(graph, dropped=(*graph.dropped, *unread))


def from_networkx(graph: "nx.Graph", name: str = "custom") -> Graph:
    """Convert a networkx graph into a Graph.

    The node attributes "label", "client" and "split" have the meaning of these keys of a description; all
    other node attributes are features. The edge attribute "weight" is the edge's weight, by default 1. An
    edge that is given several times, as in a directed graph, has the mean of its weights. If edges have a
    direction, or other attributes that are numbers at every edge, `Graph.directed` has them as they are; the
    attribute "time", a number or an ISO text, is the edge's time.

    Args:
        graph: A networkx graph, directed or not. Without features, node classification uses the degrees.
        name: The name of the graph, for reports and messages.

    Returns:
        The graph.

    Raises:
        InputError: A node does not have a feature or a client although others have, a feature is no finite
            number, or a weight is no positive number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    nodes = list(graph.nodes)
    # A node may be called NaN or None; it exists, so its name is not missing.
    ids = python_texts(nodes, _refuse_value(name, "the name of node", nodes), missing=())
    known = sorted(
        {attribute for _, attributes in graph.nodes(data=True) for attribute in attributes}, key=str
    )
    features = [attribute for attribute in known if attribute not in ("label", "client", "split")]

    def node(row: int) -> str:
        return f"graph {name!r}, node {ids[row].as_py()[:60]!r}"

    x = np.empty((len(nodes), len(features)))
    for j, feature in enumerate(features):
        column = (graph.nodes[v].get(feature) for v in nodes)
        x[:, j] = _parse_numbers(column, str(feature), node, "node a number")
    texts = {}
    for key in {"label", "client", "split"}.intersection(known):
        values = (graph.nodes[v].get(key) for v in nodes)
        texts[key] = python_texts(values, _refuse_value(name, f"the {key} of node", nodes))
    if "split" in texts:
        row = pc.index(pc.is_in(texts["split"], value_set=pa.array([*PARTS])), False).as_py()
        if row >= 0:
            raise InputError(
                f"{node(row)}: {shown(texts['split'][row].as_py())} is no part of a split; use train, val, "
                "test or nothing"
            )
    if "client" in texts and (row := pc.index(texts["client"], "").as_py()) >= 0:
        raise InputError(f"{node(row)} has no client; give every node a client")
    if len(ids.unique()) < len(ids):
        first = pc.index_in(ids, value_set=ids).to_pylist()
        row = next(row for row, earlier in enumerate(first) if earlier != row)
        raise InputError(
            f"graph {name!r}: the nodes {nodes[first[row]]!r} and {nodes[row]!r} have the same text; give "
            "every node a name of its own"
        )
    position = {v: i for i, v in enumerate(nodes)}
    ends = np.array([(position[u], position[v]) for u, v in graph.edges()], dtype=np.int64).reshape(-1, 2).T

    def edge(row: int) -> str:
        return f"graph {name!r}, edge {' to '.join(repr(ids[int(i)].as_py()[:60]) for i in ends[:, row])}"

    weights = (weight for *_, weight in graph.edges(data="weight", default=1))
    tables = Tables(
        ids=ids,
        client=texts.get("client"),
        label=texts.get("label"),
        x=x,
        part=parts_of(texts["split"]) if "split" in texts else None,
        keys=ids,
        ends=ends,
        weight=_parse_numbers(weights, "weight", edge, "edge a number above 0"),
        remarks=(),
        columns=None,
        remote=ids[:0],
        unknown=0,
    )
    result = _assemble_graph(name, tables, tuple(map(str, features)), keys=None)
    attributes = {str(key) for *_, named in graph.edges(data=True) for key in named}
    directed = _directed(graph, name, ends, edge)
    lost = edges_dropped(
        [ends],
        len(nodes),
        result.num_edges,
        directed=graph.is_directed(),
        weights="mean" if "weight" in attributes else "",
    )
    used: tuple[str, ...] = ("weight",)
    if directed is not None:
        loops = loops_dropped([ends])
        directed = graph_tables.with_unread(directed, [phrase for phrase in lost if phrase not in loops])
        lost, used = loops, ("weight", *directed.names, *(["time"] if directed.time is not None else []))
    unread = names_dropped(sorted(attributes), used, "attribute", "the edges")
    return dataclasses.replace(result, dropped=(*lost, *unread), directed=directed, default_split=UNSPLIT)


def _directed(
    graph: "nx.Graph", name: str, ends: np.ndarray, edge: Callable[[int], str]
) -> DirectedEdges | None:
    """Build the edges of a networkx graph as it lists them; None if they have no direction and no attribute.

    `edge` describes an edge by its number.
    """
    listed = [{str(key): value for key, value in named.items()} for *_, named in graph.edges(data=True)]
    # An attribute that some edges lack, or that is a text, is no attribute of a network.
    everywhere = set.intersection(*map(set, listed)) if listed else set()
    numeric = [
        key for key in sorted(everywhere - {"weight", "time"})
        if all(isinstance(named[key], Real) for named in listed)
    ]  # fmt: skip
    if not (graph.is_directed() or numeric or "time" in everywhere):
        return None
    attributes = np.array([[float(named[key]) for key in numeric] for named in listed], dtype=np.float64)
    time, dated = None, False
    if "time" in everywhere:
        times = [named["time"] for named in listed]
        dated = not all(isinstance(value, Real) for value in times)
        time = np.array([_seconds(value, edge(row)) if dated else value for row, value in enumerate(times)])
    return make_directed(
        name,
        ends,
        attributes.reshape(len(listed), len(numeric)),
        numeric,
        time,
        dated=dated,
        directed=graph.is_directed(),
    )


def _seconds(value: object, where: str) -> float:
    """Convert an ISO date or a datetime to seconds since 1970; without a time zone it is in UTC."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise InputError(f"{where}: time is {shown(value)}; write all times as 2024-01-31 08:05") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _refuse_value(name: str, what: str, nodes: Sequence[object]) -> "Refuse":
    def refuse(row: int, value: object, problem: str, fix: str) -> NoReturn:
        raise InputError(
            f"graph {name!r}: {what} {str(nodes[row])[:60]!r} is {shown(value)}, which {problem}; {fix}"
        )

    return refuse


def _parse_numbers(
    values: Iterable[object], attribute: str, where: Callable[[int], str], fix: str
) -> np.ndarray:
    """Convert values to float64 [n]; InputError for the first that is no number."""
    numbers: list[float] = []
    for row, value in enumerate(values):
        try:
            numbers.append(float(value))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"{where(row)}: {attribute} is {shown(value)}, not a number; give every {fix}, or remove the "
                "attribute"
            ) from None
    return np.array(numbers, dtype=np.float64)


# ---- reading -----------------------------------------------------------------------------------------------


def load_description(description: Description) -> Graph:
    """Load the graph that a description describes."""
    held: Held | None = None
    if description.clients:
        clients = _read_clients(description)
        encoded_tables, encoding = encoded_features([client.tables for client in clients])
        clients = [
            dataclasses.replace(client, tables=tables)
            for client, tables in zip(clients, encoded_tables, strict=True)
        ]
        if any(len(client.tables.remote) for client in clients) or (
            description.keeps_edges and share_no_node(clients)
        ):
            tables = join_disjoint(clients)
            listed: tuple[np.ndarray, ...] = (tables.ends,)
        elif description.keeps_edges:
            raise InputError(
                f"graph {description.name!r}: a node is in the files of several clients, and directions, "
                "attributes and times of edges are kept only if clients share no node; name one file of all "
                "nodes and one of all edges, or remove 'directed', 'edge_features' and 'time'"
            )
        else:
            names = feature_names(description.features, encoding, description.gap_rules)
            tables, held, listed = unite(clients, description, names)
    else:
        (tables,), encoding = encoded_features([read_tables(description, description.files[0])])
        listed = (tables.ends,)
    keys = tables.keys
    if description.source_client is None and tables.client is not None:
        _, client = encoded(tables.client)
        # A client that reads only its own files names a node at another client by its client and its id.
        if (client[tables.ends[0]] != client[tables.ends[1]]).any():
            keys = joined_keys(tables.client, tables.ids)
    graph = _assemble_graph(
        description.name,
        tables,
        feature_names(description.features, encoding, description.gap_rules),
        keys,
        filled=filled_features(description.features, encoding, description.gap_rules),
        repeated=description.repeated,
        classes=description.classes,
        held=held,
        client_names=tuple(description.clients),
    )
    if description.weight is not None and names_distance(description.weight):
        remark = (
            f"the column {shown(description.weight)} is used as the weight of edges, and a larger weight is "
            "a stronger edge; if it has distances, write 'weight:' with nothing after it, or a column of "
            "weights"
        )
        graph = dataclasses.replace(graph, remarks=(*graph.remarks, remark))
    if encoding.categories:
        graph = dataclasses.replace(graph, categories=encoding.categories)
    dropped = graph_tables.dropped_by(description, listed, graph.num_nodes, graph.num_edges, tables.unknown)
    directed = graph_tables.directed_edges(
        description, tables.ends.astype(np.int64), tables.listed, graph.num_nodes, graph.num_edges
    )
    return dataclasses.replace(graph, dropped=dropped, directed=directed)


def _read_clients(description: Description) -> list[ClientTables]:
    """Read the files of all clients.

    If no client shares a node with another, an edge may have one endpoint in another client's file of nodes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    nodes = []
    for files in description.files:
        with at_client(str(files.client)):
            nodes.append(read_nodes(description, files))
    every = pa.chunked_array([each.keys for each in nodes]).unique()
    is_disjoint = len(every) == sum(len(each.keys) for each in nodes)
    clients = []
    for files, own in zip(description.files, nodes, strict=True):
        elsewhere = every.filter(pc.invert(pc.is_in(every, value_set=own.keys))) if is_disjoint else None
        with at_client(str(files.client)):
            tables = with_edges(own, description, files, elsewhere=elsewhere)
        opened = description.open("nodes", files), description.open("edges", files)
        clients.append(ClientTables(str(files.client), *opened, tables))
    return clients


def _assemble_graph(
    name: str,
    tables: Tables,
    features: tuple[str, ...],
    keys: "pa.Array | None",
    *,
    filled: tuple[int, ...] = (),
    repeated: str = "mean",
    classes: tuple[str, ...] = (),
    held: Held | None = None,
    client_names: tuple[str, ...] = (),
) -> Graph:
    """Build the graph of tables. `held` and `client_names` are given if several clients have files."""
    clients: np.ndarray | None = None
    class_names, y = classes, np.full(len(tables.ids), -1, dtype=np.int64)
    if tables.client is not None:
        client_names, clients = encoded(tables.client)
    if tables.label is not None:
        class_names, y = graph_tables.classes_of(name, tables.label, classes)
    part = tables.part
    graph = make_graph(
        name,
        tables.x if features else None,
        y,
        tables.ends,
        edge_weight=tables.weight,
        repeated=repeated,
        class_names=class_names,
        split=None if part is None else Split("own", part == 0, part == 1, part == 2),
        num_classes=len(class_names),
        filled=filled,
    )
    return dataclasses.replace(
        graph,
        ids=tables.ids,
        clients=clients,
        client_names=client_names,
        feature_names=features,
        held=held,
        keys=keys,
        remarks=(*class_remarks(class_names, y), *tables.remarks),
    )

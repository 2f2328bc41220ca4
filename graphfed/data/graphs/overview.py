"""Statistics and a small drawing of a graph and its partition, as JSON and as texts for people.

Shapes: N nodes, m edges, C classes, K clients.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.link_splits import PARTS, EdgeSplit, ScoredPairs, scored_pairs
from graphfed.data.partitions.partition import Partition
from graphfed.data.seeding import generator

#: The largest number of clients that an overview lists.
MAX_CLIENTS = 200
#: The largest numbers of nodes, edges and clients that are drawn.
DRAWN_NODES, DRAWN_EDGES, DRAWN_CLIENTS = 240, 700, 12
#: A client with at most SMALL_CLIENT nodes is small. If all clients are small, DRAWN_SMALL nodes are drawn.
SMALL_CLIENT, DRAWN_SMALL = 2, 60


def overview(graph: Graph, split: Split | EdgeSplit, partition: Partition) -> dict[str, Any]:
    """Compute the overview of a graph, or of its training graph, and of its partition, as JSON.

    The overview describes the graph as a whole, its clients and a drawing of a sample. Some of its keys:

    - degrees.histogram: [lowest degree, highest degree, number of nodes] for the degrees 0, 1, 2-3, 4-7, ...
    - missing: the numbers of nodes without a label, of nodes in no part of the split, and of nodes whose
      features are all zero; and the features that have one value at every node.
    - clients: one entry for each client, at most MAX_CLIENTS, those with the most owned nodes.
    - shared: the numbers of nodes and edges that several clients hold. Copies of a node with ids of their own
      count as shared, too.
    - cross_client_edges: the number and the fraction of the graph's edges that lie inside no client.
    - homophily: among the edges between nodes of known class, the fraction that joins equal classes (edge
      homophily).
    - pairs: with a split of the edges, the numbers of pairs that are scored in validation and test. Then a
      client's train is its number of edges, and its val and test are the numbers of pairs that it scores.
    - label_skew: the total variation distance between a client's distribution of classes and that of all
      nodes, averaged over clients with weights by their owned labelled nodes. It is 0 if all clients have the
      same distribution.
    """
    n = graph.num_nodes
    pairs = None
    if isinstance(split, EdgeSplit):
        pairs = scored_pairs(split, partition)
        split = Split(split.name, *(np.zeros(n, dtype=bool) for _ in range(3)))
    u, v = graph.edges
    degree = np.bincount(u, minlength=n) + np.bincount(v, minlength=n)
    adjacency = sp.coo_matrix((np.ones(len(u), dtype=np.int8), (u, v)), shape=(n, n))
    # Ones of 8 bits: only the pattern of the matrix counts, and the graph may have 10^8 edges.
    components, member = sp.csgraph.connected_components(adjacency, directed=False)
    return {
        "name": graph.name,
        "nodes": n,
        "edges": graph.num_edges,
        "features": graph.num_features,
        "classes": _classes(graph, split),
        "pairs": None if pairs is None else dict(zip(PARTS, np.bincount(pairs.part).tolist(), strict=True)),
        "missing": _missing(graph, split),
        "edge_weights": _weights(graph),
        "directed": _directed(graph),
        "components": {
            "count": int(components),
            "largest": int(np.bincount(member).max(initial=0)),
            "isolated_nodes": int((degree == 0).sum()),
        },
        "degrees": {
            "min": int(degree.min(initial=n)),
            "median": float(np.median(degree)) if n else 0.0,
            "mean": float(degree.mean()) if n else 0.0,
            "percentile_99": float(np.percentile(degree, 99)) if n else 0.0,
            "max": int(degree.max(initial=0)),
            "histogram": _histogram(degree),
        },
        "homophily": _homophily(graph.y[u], graph.y[v]),
        **_clients(graph, split, partition, pairs),
        "drawing": _drawing(graph, partition, degree),
    }


def graph_facts(overview: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the graph as a whole for a person, in pairs of a label and a text."""
    components, degrees, missing = overview["components"], overview["degrees"], overview["missing"]
    constant, weights = missing["constant_features"], overview["edge_weights"]
    pairs = overview.get("pairs")  # earlier versions wrote overviews without this key
    percent = 100 * components["largest"] / max(overview["nodes"], 1)
    facts = [
        ("nodes", f"{overview['nodes']:,}"),
        ("training edges" if pairs else "edges", f"{overview['edges']:,}"),
        ("features", f"{overview['features']:,}"),
        ("classes", f"{len(overview['classes']):,}"),
        ("connected components", f"{components['count']:,}, the largest with {percent:.1f} % of the nodes"),
        ("nodes without an edge", f"{components['isolated_nodes']:,}"),
        (
            "neighbours of a node",
            f"{degrees['min']:,} to {degrees['max']:,}, median {degrees['median']:.0f}, mean "
            f"{degrees['mean']:.1f}; 99 % have at most {degrees['percentile_99']:.0f}",
        ),
        ("edges within a class (homophily)", _percent(overview["homophily"])),
        ("nodes without a label", f"{missing['labels']:,}"),
        (
            "validation and test pairs",
            f"{pairs['val']:,} and {pairs['test']:,}; half of them are edges",
        )
        if pairs
        else ("nodes in no part of the split", f"{missing['split']:,}"),
    ]
    if overview["features"]:
        facts.append(("nodes whose features are all zero", f"{missing['features']:,}"))
    if constant["count"]:
        named = ", ".join(name[:30] for name in constant["names"][:5])
        more = ", ..." if constant["count"] > 5 else ""
        facts.append(("features equal at every node", f"{constant['count']:,} ({named}{more})"))
    if overview.get("dropped"):  # earlier versions wrote overviews without this key
        facts.append(("in the data but not used", "; ".join(overview["dropped"])))
    facts += [("remark", remark) for remark in overview.get("remarks", ())]
    directed = overview.get("directed")  # earlier versions wrote overviews without this key
    if directed is not None:
        kind = "directed" if directed["directed"] else "undirected"
        named = ", ".join(name[:30] for name in directed["attributes"][:8])
        facts.append(
            ("edges as listed", f"{directed['edges']:,}, {kind}" + (f", with {named}" if named else ""))
        )
    if weights is not None:
        facts.append(("edge weights", "{min:.4g} to {max:.4g}, median {median:.4g}".format(**weights)))
    return facts


def client_facts(overview: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the clients together for a person, in pairs of a label and a text."""
    cross, skew = overview["cross_client_edges"], overview["label_skew"]
    # Earlier versions wrote overviews without these two keys.
    shared, sizes = overview.get("shared"), overview.get("client_sizes") or {"ratio": None}
    facts = [("clients", f"{overview['num_clients']:,}")]
    if sizes["ratio"] is not None and overview["num_clients"] > 1:
        facts.append(
            ("smallest / largest client", "{ratio:.2f} ({smallest:,} / {largest:,} nodes)".format(**sizes))
        )
    if shared is not None and overview["num_clients"] > 1:
        facts.append(("at several clients", f"{shared['nodes']:,} nodes, {shared['edges']:,} edges"))
    return [
        *facts,
        ("cross-client edges", f"{cross['count']:,} ({_percent(cross['share'])})"),
        ("label skew (0 even, 1 disjoint)", "-" if skew is None else f"{skew:.2f}"),
    ]


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def client_names(graph: Graph, partition: Partition) -> tuple[str, ...]:
    """Return the K names that the data gives to the clients, or () if the partition's clients are others."""
    client, node = partition.held_client, partition.held_node
    if graph.held is not None:
        same = np.array_equal(graph.held.client, client) and np.array_equal(graph.held.node, node)
    else:
        same = graph.clients is not None and np.array_equal(graph.clients[node], client)
    return graph.client_names if same and len(graph.client_names) == partition.num_clients else ()


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if names else str(number)


def _histogram(degree: np.ndarray) -> list[list[int]]:
    """Count the nodes by degree: [lowest, highest, nodes] with bounds that double."""
    # frexp's exponent of a whole number is its number of binary digits: 0, 1, 2-3, 4-7, ...
    digits = np.frexp(degree.astype(np.float64))[1]
    counts = np.bincount(digits)
    return [[(1 << d) >> 1, (1 << d) - 1, int(count)] for d, count in enumerate(counts)]


def _missing(graph: Graph, split: Split) -> dict[str, Any]:
    x = graph.x
    if x is None:
        empty = 0
    elif isinstance(x, sp.csr_matrix):
        empty = int((np.diff(x.indptr) == 0).sum())
    else:
        empty = int((~x.any(axis=1)).sum())
    if x is None or not graph.num_nodes:  # no node has a smallest or largest value
        constant = np.zeros(0, dtype=np.int64)
    else:
        # Gaps are NaN, which fmin and fmax pass over.
        low, high = (
            (x.min(axis=0), x.max(axis=0)) if sp.issparse(x) else (np.fmin.reduce(x), np.fmax.reduce(x))
        )
        low, high = (np.ravel(side.toarray() if sp.issparse(side) else side) for side in (low, high))
        constant = np.flatnonzero(low == high)
    return {
        "labels": int((graph.y < 0).sum()),
        "split": int((~(split.train | split.val | split.test)).sum()),
        "features": empty,
        "constant_features": {
            "count": len(constant),
            "names": [_name(graph.feature_names, c) for c in constant[:MAX_CLIENTS].tolist()],
        },
    }


def _directed(graph: Graph) -> dict[str, Any] | None:
    """Describe the edges as the data lists them, each once; None if the graph does not keep them."""
    edges = graph.directed
    if edges is None:
        return None
    # A symmetric list has every edge in both directions, except self loops.
    count = int((edges.source <= edges.target).sum()) if edges.symmetric else len(edges.source)
    return {"edges": count, "directed": not edges.symmetric, "attributes": list(edges.names)}


def _weights(graph: Graph) -> dict[str, float] | None:
    w = graph.edge_weight
    return (
        None if w is None else {"min": float(w.min()), "median": float(np.median(w)), "max": float(w.max())}
    )


def _classes(graph: Graph, split: Split) -> list[dict[str, Any]]:
    parts = {"nodes": np.ones(graph.num_nodes, dtype=bool), "train": split.train, "val": split.val}
    parts["test"] = split.test
    known = graph.y >= 0
    counts = {k: np.bincount(graph.y[m & known], minlength=graph.num_classes) for k, m in parts.items()}
    return [
        {"name": _name(graph.class_names, c), **{k: int(count[c]) for k, count in counts.items()}}
        for c in range(graph.num_classes)
    ]


def _homophily(y: np.ndarray, other: np.ndarray) -> float | None:
    known = (y >= 0) & (other >= 0)
    return float((y == other)[known].mean()) if known.any() else None


def _clients(graph: Graph, split: Split, partition: Partition, pairs: ScoredPairs | None) -> dict[str, Any]:
    """Compute the keys of an overview that describe the clients."""
    k, p = partition.num_clients, partition
    owned_client, owned = p.held_client[p.held_owner], p.held_node[p.held_owner]
    y = graph.y[owned]
    classes = np.zeros((k, graph.num_classes), dtype=np.int64)
    np.add.at(classes, (owned_client[y >= 0], y[y >= 0]), 1)
    total = classes.sum()
    skew = None
    if total:
        size = classes.sum(1)
        distribution = classes / np.maximum(size, 1)[:, None]
        distance = np.abs(distribution - classes.sum(0) / total).sum(1) / 2
        skew = float((distance * size).sum() / total)

    def count(clients: np.ndarray) -> np.ndarray:
        return np.bincount(clients, minlength=k)

    columns = {
        "nodes": count(p.held_client),
        "owned": count(owned_client),
        "edges": count(p.edge_client),
        "cross_client_edges": count(p.cross_local_client),
        **{part: count(owned_client[getattr(split, part)[owned]]) for part in ("train", "val", "test")},
    }
    if pairs is not None:
        columns["train"] = columns["edges"] + columns["cross_client_edges"]
        columns |= {name: count(pairs.client[pairs.part == part]) for part, name in enumerate(PARTS)}
    # The overview is written into every report, so it must not grow with the number of clients.
    listed = np.argsort(-columns["owned"], kind="stable")[:MAX_CLIENTS]
    names = client_names(graph, partition)
    rows = [
        {
            "client": int(client),
            "name": _name(names, client),
            **{key: int(column[client]) for key, column in columns.items()},
            "classes": classes[client].tolist(),
        }
        for client in sorted(listed.tolist())
    ]
    inside, shared = _edges_inside(graph, p)
    cross = graph.num_edges - inside
    clients_of_node = np.bincount(p.held_node, minlength=graph.num_nodes)
    size = columns["nodes"]
    smallest, largest = int(size.min(initial=size.max(initial=0))), int(size.max(initial=0))
    return {
        "num_clients": k,
        "clients": rows,
        "client_sizes": {
            "smallest": smallest,
            "largest": largest,
            "ratio": smallest / largest if largest else None,
        },
        "shared": {"nodes": int((clients_of_node > 1).sum()), "edges": shared},
        "cross_client_edges": {"count": cross, "share": cross / graph.num_edges if graph.num_edges else 0.0},
        "label_skew": skew,
    }


def _edges_inside(graph: Graph, partition: Partition) -> tuple[int, int]:
    """Count the graph's edges that lie inside at least one client, and those that lie inside several."""
    if np.bincount(partition.held_node, minlength=graph.num_nodes).max(initial=0) <= 1:
        # No node is at two clients, so no edge is.
        return len(partition.edge_client), 0
    ends = _ends(partition)
    keys = np.sort(ends.min(0) * graph.num_nodes + ends.max(0))
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    clients = np.diff(first, append=len(keys))
    return len(first), int((clients > 1).sum())


def _ends(partition: Partition) -> np.ndarray:
    """Return the graph's nodes at both ends of each edge inside a client, [2, E]."""
    return partition.node_of(np.stack((partition.edge_u, partition.edge_v)))


def _drawing(graph: Graph, partition: Partition, degree: np.ndarray) -> dict[str, Any]:
    """Draw a sample of the largest clients.

    Each client is a disc on a circle, with its nodes of highest degree in the middle of the disc. Positions
    are in [-1, 1]. Edges are [i, j, cross]: i and j are positions in the list of nodes, and cross is 1 if no
    client holds the edge.
    """
    owner = _one_owner(graph, partition)
    size = np.bincount(owner[owner >= 0], minlength=partition.num_clients)
    if size.max(initial=0) > SMALL_CLIENT:
        clients = np.sort(np.argsort(-size, kind="stable")[:DRAWN_CLIENTS])
        clients = clients[size[clients] > 0]
        selected = _neighbourhood(graph, owner, clients, degree, DRAWN_NODES)
    else:
        # The largest of many small clients would be arbitrary nodes, most of them without a common edge. So
        # the sample is a neighbourhood of the graph, as if one client owned all nodes.
        one_client = np.where(owner >= 0, 0, -1)
        selected = _neighbourhood(graph, one_client, np.zeros(1, dtype=np.int64), degree, DRAWN_SMALL)
        clients = np.unique(owner[selected])
    chosen: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    for position, client in enumerate(clients):
        local = np.flatnonzero(selected & (owner == client))
        local = local[np.argsort(-degree[local], kind="stable")]
        angle = 2 * np.pi * position / max(1, len(clients))
        middle = (0.0, 0.0) if len(clients) == 1 else (0.72 * np.cos(angle), 0.72 * np.sin(angle))
        radius = 0.9 if len(clients) == 1 else min(0.26, 0.6 * np.sin(np.pi / len(clients)))
        rank = np.arange(len(local))
        # Points on a sunflower spiral are evenly spaced, which needs no force-directed layout.
        r, turn = radius * np.sqrt((rank + 0.5) / max(1, len(local))), rank * np.pi * (3 - np.sqrt(5))
        positions.append(np.stack((middle[0] + r * np.cos(turn), middle[1] + r * np.sin(turn)), 1))
        chosen.append(local)
    nodes = np.concatenate([*chosen, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    position_of = np.full(graph.num_nodes, -1)
    position_of[nodes] = np.arange(len(nodes))
    ends = position_of[graph.edges]
    ends = ends[:, (ends >= 0).all(0)]
    if ends.shape[1] > DRAWN_EDGES:
        ends = ends[:, np.sort(generator(0, "overview").choice(ends.shape[1], DRAWN_EDGES, replace=False))]
    cross = ~_is_inside(partition, position_of, ends)
    points = np.concatenate([*positions, np.zeros((0, 2))])
    return {
        "nodes": nodes.tolist(),
        "positions": points.round(4).tolist(),
        "clients": owner[nodes].tolist(),
        "edges": np.stack((*ends, cross.astype(np.int64)), 1).tolist(),
        "sampled": len(nodes) < graph.num_nodes or len(ends[0]) < graph.num_edges,
    }


def _one_owner(graph: Graph, partition: Partition) -> np.ndarray:
    """Choose one owner for each node, [N] int64; -1 for a node without an owner.

    If several clients own a node, the node's number selects among them, so each owner gets equally many
    nodes.
    """
    node, client = (column[partition.held_owner] for column in (partition.held_node, partition.held_client))
    by_node = client[np.argsort(node, kind="stable")]
    owners = np.bincount(node, minlength=graph.num_nodes)
    chosen = np.cumsum(owners) - owners + np.arange(graph.num_nodes) % np.maximum(owners, 1)
    owner = np.full(graph.num_nodes, -1)
    owner[owners > 0] = by_node[chosen[owners > 0]]
    return owner


def _is_inside(partition: Partition, position_of: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Decide for each drawn edge [2, m], by positions in the drawing, whether a client holds it, bool [m]."""
    held = position_of[_ends(partition)]
    held = held[:, (held >= 0).all(0)]
    width = 1 + max(int(ends.max(initial=0)), int(held.max(initial=0)))
    drawn, known = (pair.min(0) * width + pair.max(0) for pair in (ends, held))
    inside: np.ndarray = np.isin(drawn, known)
    return inside


def _neighbourhood(
    graph: Graph, owner: np.ndarray, clients: np.ndarray, degree: np.ndarray, limit: int
) -> np.ndarray:
    """Select at most `limit` nodes, equally many for each client, bool [N].

    The first pass selects each client's node of highest degree. Every further pass selects the nodes with
    most edges to the selected nodes, up to four times as many nodes as before.
    """
    u, v = graph.edges
    n, final_quota = graph.num_nodes, max(1, limit // max(1, len(clients)))
    selected = np.zeros(n, dtype=bool)
    quota = 1
    # Nodes with most edges to selected nodes come next, so that the drawing has edges.
    while True:
        links = np.bincount(v[selected[u]], minlength=n) + np.bincount(u[selected[v]], minlength=n)
        for client in clients:
            left = np.flatnonzero((owner == client) & ~selected)
            order = np.lexsort((left, -degree[left], -links[left]))
            missing = quota - int((selected & (owner == client)).sum())
            selected[left[order[:missing]]] = True
        if quota == final_quota:
            return selected
        quota = min(4 * quota, final_quota)

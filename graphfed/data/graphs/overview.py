"""What a graph and its partition look like, in numbers and as a small drawing: plain data for people to read.

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

__all__ = ["MAX_CLIENTS", "client_facts", "client_names", "graph_facts", "overview"]

#: Clients that are listed one by one, and nodes and edges that are drawn.
MAX_CLIENTS = 200
DRAWN_NODES, DRAWN_EDGES, DRAWN_CLIENTS = 240, 700, 12
#: Clients with no more nodes than this are devices; so many of them are drawn.
DEVICE, DRAWN_DEVICES = 2, 60


def overview(graph: Graph, split: Split | EdgeSplit, partition: Partition) -> dict[str, Any]:
    """Plain JSON: the graph as a whole, its clients (the largest MAX_CLIENTS), and a drawing of a sample.

    degrees["histogram"]: [lowest, highest, nodes] for the degrees 0, 1, 2-3, 4-7, 8-15, ...
    missing: what methods do without: nodes without label, in no part of the split, or with nothing but
    zeros for features; and features that are the same at every node (the first MAX_CLIENTS by name).
    client_sizes: nodes that the smallest and the largest client hold, and the one divided by the other.
    shared: nodes and edges that several clients have (copies that count as different nodes, too).
    cross_client_edges: the graph's edges that lie inside no client, and their share; where clients share
    nodes, an edge that one client lacks may lie inside another.
    homophily: share of the edges between nodes of known class that join equal classes (edge homophily).
    pairs: with a split of the edges, how many pairs are scored in validation and test; `graph` has the
    training edges then, no node is in a part, and a client's train, val and test are edges it has and pairs
    it scores. label_skew: mean over clients, by owned nodes, of the total variation distance between a
    client's classes and all nodes' (0: every client is like the whole; 1: no class in common)."""
    n = graph.num_nodes
    pairs = None
    if isinstance(split, EdgeSplit):
        pairs = scored_pairs(split, partition)
        split = Split(split.name, *(np.zeros(n, dtype=bool) for _ in range(3)))
    u, v = graph.edges
    degree = np.bincount(u, minlength=n) + np.bincount(v, minlength=n)
    adjacency = sp.coo_matrix((np.ones(len(u), dtype=np.int8), (u, v)), shape=(n, n))
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


def graph_facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An overview's numbers of the graph as a whole, in words and for people."""
    parts, degrees, missing = told["components"], told["degrees"], told["missing"]
    constant, weights = missing["constant_features"], told["edge_weights"]
    pairs = told.get("pairs")  # overviews that earlier versions wrote have none
    share = 100 * parts["largest"] / max(told["nodes"], 1)
    facts = [
        ("nodes", f"{told['nodes']:,}"),
        ("edges to train on" if pairs else "edges", f"{told['edges']:,}"),
        ("features", f"{told['features']:,}"),
        ("classes", f"{len(told['classes']):,}"),
        ("connected components", f"{parts['count']:,}, the largest with {share:.1f} % of the nodes"),
        ("nodes without an edge", f"{parts['isolated_nodes']:,}"),
        (
            "neighbours of a node",
            f"{degrees['min']:,} to {degrees['max']:,}, median {degrees['median']:.0f}, mean "
            f"{degrees['mean']:.1f}; 99 % have at most {degrees['percentile_99']:.0f}",
        ),
        ("edges within a class (homophily)", _percent(told["homophily"])),
        ("nodes without a label", f"{missing['labels']:,}"),
        (
            "pairs to validate and to test on",
            f"{pairs['val']:,} and {pairs['test']:,}; half of them are edges",
        )
        if pairs
        else ("nodes in no part of the split", f"{missing['split']:,}"),
    ]
    if told["features"]:
        facts.append(("nodes whose features are all zero", f"{missing['features']:,}"))
    if constant["count"]:
        named = ", ".join(name[:30] for name in constant["names"][:5])
        more = ", ..." if constant["count"] > 5 else ""
        facts.append(("features equal at every node", f"{constant['count']:,} ({named}{more})"))
    if told.get("dropped"):  # overviews that earlier versions wrote have none
        facts.append(("in the data, and not used", "; ".join(told["dropped"])))
    if weights is not None:
        facts.append(("edge weights", "{min:.4g} to {max:.4g}, median {median:.4g}".format(**weights)))
    return facts


def client_facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An overview's numbers of the clients together, in words and for people."""
    cut, skew = told["cross_client_edges"], told["label_skew"]
    # Overviews that earlier versions wrote have neither.
    shared, sizes = told.get("shared") or {"nodes": 0}, told.get("client_sizes") or {"ratio": None}
    facts = [("clients", f"{told['num_clients']:,}")]
    if sizes["ratio"] is not None and told["num_clients"] > 1:
        facts.append(
            ("smallest / largest client", "{ratio:.2f} ({smallest:,} / {largest:,} nodes)".format(**sizes))
        )
    if shared["nodes"]:
        facts.append(("at several clients", f"{shared['nodes']:,} nodes, {shared['edges']:,} edges"))
    return [
        *facts,
        ("edges inside no client (cut)", f"{cut['count']:,} ({_percent(cut['share'])})"),
        ("label skew (0 even, 1 disjoint)", "-" if skew is None else f"{skew:.2f}"),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def client_names(graph: Graph, partition: Partition) -> tuple[str, ...]:
    """The data's own names of the clients, () where the partition's clients are not those of the data."""
    client, node = partition.held_client, partition.held_node
    if graph.held is not None:
        same = np.array_equal(graph.held.client, client) and np.array_equal(graph.held.node, node)
    else:
        same = graph.clients is not None and np.array_equal(graph.clients[node], client)
    return graph.client_names if same and len(graph.client_names) == partition.num_clients else ()


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if names else str(number)


def _histogram(degree: np.ndarray) -> list[list[int]]:
    """[lowest, highest, nodes] with bounds that double."""
    # frexp's exponent of a whole number is its number of binary digits: 0, 1, 2-3, 4-7, ...
    digits = np.frexp(degree.astype(np.float64))[1]
    counts = np.bincount(digits)
    return [[(1 << d) >> 1, (1 << d) - 1, int(count)] for d, count in enumerate(counts)]


def _missing(graph: Graph, split: Split) -> dict[str, Any]:
    x = graph.x
    if x is None:
        empty, constant = 0, np.zeros(0, dtype=np.int64)
    elif isinstance(x, sp.csr_matrix):
        empty = int((np.diff(x.indptr) == 0).sum())
        low, high = (getattr(x, side)(axis=0).toarray()[0] for side in ("min", "max"))
        constant = np.flatnonzero(low == high)
    else:
        empty = int((~x.any(axis=1)).sum())
        constant = np.flatnonzero(x.min(0) == x.max(0)) if len(x) else np.zeros(0, dtype=np.int64)
    return {
        "labels": int((graph.y < 0).sum()),
        "split": int((~(split.train | split.val | split.test)).sum()),
        "features": empty,
        "constant_features": {
            "count": len(constant),
            "names": [_name(graph.feature_names, c) for c in constant[:MAX_CLIENTS].tolist()],
        },
    }


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
    """clients, cross_client_edges and label_skew."""
    k, p = partition.num_clients, partition
    owned_client, owned = p.held_client[p.held_owner], p.held_node[p.held_owner]
    y = graph.y[owned]
    classes = np.zeros((k, graph.num_classes), dtype=np.int64)
    np.add.at(classes, (owned_client[y >= 0], y[y >= 0]), 1)
    total = classes.sum()
    skew = None
    if total:
        size = classes.sum(1)
        share = classes / np.maximum(size, 1)[:, None]
        distance = np.abs(share - classes.sum(0) / total).sum(1) / 2
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
    listed = np.argsort(-columns["owned"], kind="stable")[:MAX_CLIENTS]
    named = client_names(graph, partition)
    rows = [
        {
            "client": int(s),
            "name": _name(named, s),
            **{key: int(column[s]) for key, column in columns.items()},
            "classes": classes[s].tolist(),
        }
        for s in sorted(listed.tolist())
    ]
    inside, shared = _edges_inside(graph, p)
    cut = graph.num_edges - inside
    holders = np.bincount(p.held_node, minlength=graph.num_nodes)
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
        "shared": {"nodes": int((holders > 1).sum()), "edges": shared},
        "cross_client_edges": {"count": cut, "share": cut / graph.num_edges if graph.num_edges else 0.0},
        "label_skew": skew,
    }


def _edges_inside(graph: Graph, partition: Partition) -> tuple[int, int]:
    """How many of the graph's edges lie inside a client, each counted once, and how many inside several."""
    if np.bincount(partition.held_node, minlength=graph.num_nodes).max(initial=0) <= 1:
        return len(partition.edge_client), 0
    ends = _ends(partition)
    keys = np.sort(ends.min(0) * graph.num_nodes + ends.max(0))
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    clients = np.diff(first, append=len(keys))
    return len(first), int((clients > 1).sum())


def _ends(partition: Partition) -> np.ndarray:
    """The nodes at both ends of the edges inside clients, [2, E]."""
    return partition.node_of(np.stack((partition.edge_u, partition.edge_v)))


def _drawing(graph: Graph, partition: Partition, degree: np.ndarray) -> dict[str, Any]:
    """A sample of the largest clients: each a disc on a circle, its nodes of highest degree in the middle.

    Nodes are taken that have most edges to those already taken, so that edges are seen. positions in
    [-1, 1]; edges [i, j, cut] by position in the lists, cut: 1 where no client has the edge."""
    owner = _one_owner(graph, partition)
    size = np.bincount(owner[owner >= 0], minlength=partition.num_clients)
    if size.max(initial=0) > DEVICE:
        clients = np.sort(np.argsort(-size, kind="stable")[:DRAWN_CLIENTS])
        clients = clients[size[clients] > 0]
        taken = _neighbourhood(graph, owner, clients, degree, DRAWN_NODES)
    else:  # devices: those that hold some neighbourhood, for the largest of them say nothing
        nobody = np.where(owner >= 0, 0, -1)
        taken = _neighbourhood(graph, nobody, np.zeros(1, dtype=np.int64), degree, DRAWN_DEVICES)
        clients = np.unique(owner[taken])
    chosen: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    for place, client in enumerate(clients):
        mine = np.flatnonzero(taken & (owner == client))
        mine = mine[np.argsort(-degree[mine], kind="stable")]
        angle = 2 * np.pi * place / max(1, len(clients))
        middle = (0.0, 0.0) if len(clients) == 1 else (0.72 * np.cos(angle), 0.72 * np.sin(angle))
        radius = 0.9 if len(clients) == 1 else min(0.26, 0.6 * np.sin(np.pi / len(clients)))
        rank = np.arange(len(mine))
        # A sunflower: even spacing, without a force layout.
        r, turn = radius * np.sqrt((rank + 0.5) / max(1, len(mine))), rank * np.pi * (3 - np.sqrt(5))
        positions.append(np.stack((middle[0] + r * np.cos(turn), middle[1] + r * np.sin(turn)), 1))
        chosen.append(mine)
    nodes = np.concatenate([*chosen, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    place_of = np.full(graph.num_nodes, -1)
    place_of[nodes] = np.arange(len(nodes))
    ends = place_of[graph.edges]
    ends = ends[:, (ends >= 0).all(0)]
    if ends.shape[1] > DRAWN_EDGES:
        ends = ends[:, np.sort(generator(0, "overview").choice(ends.shape[1], DRAWN_EDGES, replace=False))]
    across = ~_inside(partition, place_of, ends)
    points = np.concatenate([*positions, np.zeros((0, 2))])
    return {
        "nodes": nodes.tolist(),
        "positions": points.round(4).tolist(),
        "clients": owner[nodes].tolist(),
        "edges": np.stack((*ends, across.astype(np.int64)), 1).tolist(),
        "sampled": len(nodes) < graph.num_nodes or len(ends[0]) < graph.num_edges,
    }


def _one_owner(graph: Graph, partition: Partition) -> np.ndarray:
    """A client that owns each node, -1 for none, [N] int64; of several owners each stands for as many."""
    node, client = (column[partition.held_owner] for column in (partition.held_node, partition.held_client))
    by_node = client[np.argsort(node, kind="stable")]
    owners = np.bincount(node, minlength=graph.num_nodes)
    chosen = np.cumsum(owners) - owners + np.arange(graph.num_nodes) % np.maximum(owners, 1)
    owner = np.full(graph.num_nodes, -1)
    owner[owners > 0] = by_node[chosen[owners > 0]]
    return owner


def _inside(partition: Partition, place_of: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which of the drawn edges [2, m] (positions among the drawn nodes) some client has, [m] bool."""
    theirs = place_of[_ends(partition)]
    theirs = theirs[:, (theirs >= 0).all(0)]
    width = 1 + max(int(ends.max(initial=0)), int(theirs.max(initial=0)))
    mine, known = (pair.min(0) * width + pair.max(0) for pair in (ends, theirs))
    found: np.ndarray = np.isin(mine, known)
    return found


def _neighbourhood(
    graph: Graph, owner: np.ndarray, clients: np.ndarray, degree: np.ndarray, most: int
) -> np.ndarray:
    """At most `most` nodes of the clients, as many of each, bool [N]: the one of highest degree of each
    client, and those with most edges to the taken ones, four times as many in every pass."""
    u, v = graph.edges
    n, each = graph.num_nodes, max(1, most // max(1, len(clients)))
    taken = np.zeros(n, dtype=bool)
    quota = 1
    while True:
        links = np.bincount(v[taken[u]], minlength=n) + np.bincount(u[taken[v]], minlength=n)
        for client in clients:
            left = np.flatnonzero((owner == client) & ~taken)
            order = np.lexsort((left, -degree[left], -links[left]))
            missing = quota - int((taken & (owner == client)).sum())
            taken[left[order[:missing]]] = True
        if quota == each:
            return taken
        quota = min(4 * quota, each)

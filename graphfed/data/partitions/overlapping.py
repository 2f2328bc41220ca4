"""Partitions in which clients may share nodes: edges_uniform (SAPGNN) and overlapping (FedGraph)."""

import numpy as np
from scipy.special import ndtr, ndtri

from graphfed.data.graphs.graph import Graph, sorted_unique
from graphfed.data.partitions.tables import Partition, cross_rows, from_assignment, without_cross
from graphfed.data.seeding import generator
from graphfed.errors import InputError, did_you_mean

__all__ = ["edges_uniform", "overlapping"]

MIN_FRACTION = 0.05  # the smallest fraction of the nodes a client of `overlapping` may take


def edges_uniform(
    graph: Graph, clients: int, seed: int, nodes: str, labels: str, overlap: float
) -> Partition:
    """SAPGNN's deal: every edge to one client, uniformly (numbers differ by at most one); nodes are shared.

    nodes: "all", every client holds every node; "endpoints", a client holds the ends of its edges, and a
    node without an edge is at one client.
    labels: "all", every holder of a node owns it, so it knows the label and is scored on it; "one", one of
    its holders, drawn uniformly.
    overlap: the fraction of the edges also given to a second client. No edge is cut: a missing edge is only
    unknown here.

    Raises InputError when an option is out of range, or overlap asks for a second client and there is one.
    """
    for name, value, kinds in (
        ("nodes", nodes, ("all", "endpoints")),
        ("labels", labels, ("all", "one")),
    ):
        if value not in kinds:
            raise InputError(f"unknown {name}={value!r} of edges_uniform; {did_you_mean(value, kinds)}")
    if not 0 <= overlap <= 1:
        raise InputError(f"overlap {overlap:g} of edges_uniform must be a fraction from 0 to 1")
    if overlap > 0 and clients == 1:
        raise InputError(f"overlap {overlap:g} needs a second client; use 2 or more clients, or overlap 0")
    rng = generator(seed, "partition/edges_uniform")
    n, m = graph.num_nodes, graph.num_edges
    client = np.empty(m, dtype=np.int64)
    client[rng.permutation(m)] = np.arange(m) % clients
    twice = rng.permutation(m)[: int(np.rint(overlap * m))]
    second = (client[twice] + rng.integers(1, max(clients, 2), size=len(twice))) % clients
    edge_client, edge = np.concatenate((client, second)), np.concatenate((np.arange(m), twice))
    order = np.lexsort((edge, edge_client))
    edge_client, (edge_u, edge_v) = edge_client[order], graph.edges[:, edge[order]]

    if nodes == "all":
        held_client, held_id = np.repeat(np.arange(clients), n), np.tile(np.arange(n), clients)
    else:
        alone = np.flatnonzero(np.bincount(graph.edges.ravel(), minlength=n) == 0)
        key = sorted_unique(
            np.concatenate(
                (
                    edge_client * n + edge_u,
                    edge_client * n + edge_v,
                    rng.integers(clients, size=len(alone)) * n + alone,
                )
            )
        )
        held_client, held_id = key // n, key % n
    held_owner = np.full(len(held_id), labels == "all")
    if labels == "one":
        # The owner is the j-th holder of its node, j uniform.
        by_node = np.lexsort((held_client, held_id))
        holders = np.bincount(held_id, minlength=n)
        chosen = np.cumsum(holders) - holders + (rng.random(n) * holders).astype(np.int64)
        held_owner[by_node[chosen]] = True
    held, edges = (held_client, held_id, held_owner), (edge_client, edge_u, edge_v)
    return without_cross(graph, held, edges, num_clients=clients)


def overlapping(
    graph: Graph, clients: int, seed: int, mean: float, variance: float, classes: int, copies: str
) -> Partition:
    """FedGraph's deal: client k takes a share xi_k of the nodes, and copies are different nodes.

    xi is normal with this mean and variance, truncated to [0.05, 1].
    copies "many": a client copies the fraction xi_k of all nodes. Every copy has its own id and is owned. An
    edge whose other end the client also copied is internal; otherwise it becomes a cut row to the copy at one
    client, drawn once for each node among its holders. So cut rows point one way. A node nobody copied is
    gone with its edges.
    copies "one": every node is at exactly one client, and sizes are in the proportion of the xi, to within
    one node; so a client may get none of a graph with few nodes a client. Ids are nodes, and an edge
    between clients is cut at both ends.
    classes: how many of the classes every client has, 0 for all (see `_class_subsets`). The fraction xi_k is
    then of the nodes of these classes; with copies "one", the nodes of a class are dealt over the clients
    that have it in the proportion of their xi. Nodes of unknown class (-1) are one more class, which every
    client has.

    Raises InputError when mean is not in [0.05, 1], variance is negative, classes is not a number of classes,
    copies is unknown, or copies is "one" and there are too few clients for every class to be at one.
    """
    if not MIN_FRACTION <= mean <= 1:
        raise InputError(f"mean {mean:g} of overlapping must be a fraction from {MIN_FRACTION:g} to 1")
    if not 0 <= variance < np.inf:
        raise InputError(f"variance {variance:g} of overlapping must be a number of at least 0")
    if copies not in ("many", "one"):
        raise InputError(f"unknown copies={copies!r} of overlapping; {did_you_mean(copies, ('many', 'one'))}")
    subset = _class_subsets(graph, clients, seed, classes)
    if copies == "one" and not subset.any(axis=0).all():
        need = int(np.unique(graph.y[graph.y >= 0]).size)
        raise InputError(
            f"copies=one cannot deal {graph.name!r}: {clients} clients with classes={classes} each do not "
            f"have all its {need} classes; use classes={-(-need // clients)} or more, {-(-need // classes)} "
            "or more clients, or copies=many"
        )
    rng = generator(seed, "partition/overlapping")
    n = graph.num_nodes
    xi = np.full(clients, mean)
    if variance > 0:
        std = np.sqrt(variance)
        low, high = ndtr((np.array([MIN_FRACTION, 1.0]) - mean) / std)
        xi = np.clip(mean + std * ndtri(rng.uniform(low, high, size=clients)), MIN_FRACTION, 1.0)
    if copies == "one":
        return from_assignment(graph, _one_client_each(graph, xi, subset, rng), num_clients=clients)
    may = subset[:, graph.y]  # bool [K, N]
    taken = np.maximum(np.rint(xi * may.sum(axis=1)), 1).astype(np.int64)
    # Client k takes the nodes with its taken[k] smallest keys, among those of its classes.
    key = np.where(may, rng.random((clients, n)), 1.0)
    rank = key.argsort(axis=1).argsort(axis=1)
    has = rank < taken[:, None]  # bool [K, N]
    held_client, held_node = np.nonzero(has)
    copy = np.full((clients, n), -1, dtype=np.int64)  # the id of node v's copy at client k
    copy[has] = np.arange(len(held_client))
    # home[v]: the client whose copy of v serves the clients without one.
    holders = has.sum(axis=0)
    by_node = np.nonzero(has.T)[1]
    start = np.cumsum(holders) - holders
    home = np.full(n, -1, dtype=np.int64)
    exists = holders > 0
    home[exists] = by_node[(start + (rng.random(n) * holders).astype(np.int64))[exists]]

    u, v = graph.edges
    edge_client, inside = np.nonzero(has[:, u] & has[:, v])
    # Copies at one client are numbered by node, so u < v keeps its order among the ids.
    own, remote = [], []
    for a, b in ((u, v), (v, u)):
        k, e = np.nonzero(has[:, a] & ~has[:, b] & exists[b])
        own.append(copy[k, a[e]])
        remote.append(copy[home[b[e]], b[e]])
    held_id = np.arange(len(held_client))
    return Partition(
        held_client=held_client,
        held_id=held_id,
        held_node=held_node,
        held_owner=np.ones(len(held_client), dtype=bool),
        edge_client=edge_client,
        edge_u=copy[edge_client, u[inside]],
        edge_v=copy[edge_client, v[inside]],
        **cross_rows(held_client, held_id, np.concatenate(own), np.concatenate(remote)),
        num_clients=clients,
        graph_hash=graph.hash,
    )


def _class_subsets(graph: Graph, clients: int, seed: int, classes: int) -> np.ndarray:
    """Which classes each client has, bool [K, C + 1]; the last column, which -1 indexes, is the unknown
    class.

    The classes that have nodes are dealt like cards: shuffled decks of all of them, one after the other,
    and every client takes the next `classes` cards; a card that it has already waits for the next client. So
    every set of that many classes is equally likely to be a client's, and any class is at as many clients
    as any other, to within one: at one or more where K * classes is at least the number of classes.
    """
    present = np.unique(graph.y[graph.y >= 0])
    if not 0 <= classes <= len(present):
        raise InputError(
            f"classes={classes} of overlapping cannot be used: expected 0 (all) to {len(present)}, the "
            f"classes that {graph.name!r} has nodes of"
        )
    subset = np.ones((clients, graph.num_classes + 1), dtype=bool)
    if not classes:
        return subset
    rng = generator(seed, "partition/overlapping/classes")
    deck = present[:0]
    for client in range(clients):
        hand, deck = deck[:classes], deck[classes:]
        if len(hand) < classes:
            shuffled = rng.permutation(present)
            held = np.isin(shuffled, hand)
            fresh = np.concatenate((shuffled[~held], shuffled[held]))
            missing = classes - len(hand)
            hand, deck = np.concatenate((hand, fresh[:missing])), fresh[missing:]
        subset[client, present] = np.isin(present, hand)
    return subset


def _one_client_each(
    graph: Graph, xi: np.ndarray, subset: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """One client for each node, int64 [N]: of the clients that have its class (`subset`, bool [K, C + 1]), in
    the proportion of their xi [K]."""
    # Classes that the same clients have are dealt together; without subsets these are all classes.
    clients, group = np.unique(subset, axis=1, return_inverse=True)  # bool [K, G], [C + 1]
    group = group.reshape(-1)[graph.y]  # [N]
    share = np.cumsum(xi[:, None] * clients, axis=0)
    ends = np.rint(share / share[-1] * np.bincount(group, minlength=clients.shape[1])).astype(np.int64)
    counts = np.diff(ends, axis=0, prepend=0)  # [K, G]
    # The nodes of each group, in random order, go to clients 0, 1, ... by the counts.
    shuffled = rng.permutation(graph.num_nodes)
    by_group = shuffled[np.argsort(group[shuffled], kind="stable")]
    client = np.empty(graph.num_nodes, dtype=np.int64)
    client[by_group] = np.repeat(np.tile(np.arange(len(xi)), counts.shape[1]), counts.T.ravel())
    return client

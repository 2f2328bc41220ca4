"""Partitioners for clients that may share nodes: edges_uniform (SAPGNN) and overlapping (FedGraph).

Shapes: N nodes, m edges, K clients, C classes.
"""

import numpy as np
from scipy.special import ndtr, ndtri

from graphfed.data.graphs.graph import Graph, sorted_unique
from graphfed.data.partitions.tables import Partition, cross_rows, from_assignment, without_cross
from graphfed.data.seeding import generator, shuffle_by_group
from graphfed.errors import InputError, did_you_mean

MIN_FRACTION = 0.05  # the smallest fraction of the nodes at a client of `overlapping`


def edges_uniform(
    graph: Graph, clients: int, seed: int, nodes: str, labels: str, edges: str, overlap: float
) -> Partition:
    """Partition the edges uniformly at random, as in SAPGNN. Clients share nodes.

    There are no cross-client edges: a client does not know the edges that it does not hold.

    Args:
        nodes: "all": every client holds every node. "endpoints": a client holds the endpoints of its edges,
            and one client holds each node without an edge.
        labels: "all": every client that holds a node owns it. "one": one of these clients, drawn uniformly.
        edges: "undirected": each edge is assigned to one client. "directed": each of its two directions is,
            and a client that has either direction holds the edge, so about 2 / K - 1 / K^2 of all edges.
        overlap: The fraction of the edges that a second client also holds.
    """
    for name, value, kinds in (
        ("nodes", nodes, ("all", "endpoints")),
        ("labels", labels, ("all", "one")),
        ("edges", edges, ("undirected", "directed")),
    ):
        if value not in kinds:
            raise InputError(f"unknown {name}={value!r} of edges_uniform; {did_you_mean(value, kinds)}")
    if not 0 <= overlap <= 1:
        raise InputError(f"overlap {overlap:g} of edges_uniform must be a fraction from 0 to 1")
    if overlap > 0 and clients == 1:
        raise InputError(f"overlap {overlap:g} needs a second client; use 2 or more clients, or overlap 0")
    if overlap > 0 and edges == "directed":
        raise InputError(
            f"overlap {overlap:g} cannot be used with edges=directed, where the directions of an edge may be "
            "at two clients; leave out one of the two options"
        )
    rng = generator(seed, "partition/edges_uniform")
    n, m = graph.num_nodes, graph.num_edges
    if edges == "directed":
        client = np.empty(2 * m, dtype=np.int64)
        client[rng.permutation(2 * m)] = np.arange(2 * m) % clients
        # The directions of edge e are numbers e and m + e. A client that has both holds the edge once.
        edge_client, edge = np.divmod(sorted_unique(client * m + np.arange(2 * m) % max(m, 1)), max(m, 1))
    else:
        client = np.empty(m, dtype=np.int64)
        # The clients in turn, in a random order of the edges: their numbers of edges differ by at most one.
        client[rng.permutation(m)] = np.arange(m) % clients
        # A second client, other than the first one, for a fraction of the edges.
        twice = rng.permutation(m)[: int(np.rint(overlap * m))]
        second = (client[twice] + rng.integers(1, max(clients, 2), size=len(twice))) % clients
        edge_client, edge = np.concatenate((client, second)), np.concatenate((np.arange(m), twice))
        order = np.lexsort((edge, edge_client))
        edge_client, edge = edge_client[order], edge[order]
    edge_u, edge_v = graph.edges[:, edge]

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
        # The owner is the j-th client that holds the node, with a uniform j.
        by_node = np.lexsort((held_client, held_id))
        copies = np.bincount(held_id, minlength=n)
        chosen = np.cumsum(copies) - copies + (rng.random(n) * copies).astype(np.int64)
        held_owner[by_node[chosen]] = True
    held = held_client, held_id, held_owner
    return without_cross(graph, held, (edge_client, edge_u, edge_v), num_clients=clients)


def overlapping(
    graph: Graph, clients: int, seed: int, mean: float, variance: float, classes: int, copies: str
) -> Partition:
    """Give every client a random fraction of the nodes, as in FedGraph.

    Client k takes the fraction xi_k, which is normally distributed with `mean` and `variance` and truncated
    to [0.05, 1]. If `classes` is not 0, each client has so many classes (see `_class_subsets`), and xi_k
    refers to their nodes. Nodes of unknown class (-1) form one more class, which every client has.

    With `copies` "many", a client copies the fraction xi_k of all nodes. Every copy has an id of its own and
    is owned by its client, and a node that no client copied is left out with its edges. With "one", every
    node is at exactly one client, in proportion to xi, so a client may be empty if there are few nodes per
    client.
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
            f"copies=one cannot partition {graph.name!r}: {clients} clients with classes={classes} each do "
            f"not have all its {need} classes; use classes={-(-need // clients)} or more, "
            f"{-(-need // classes)} or more clients, or copies=many"
        )
    rng = generator(seed, "partition/overlapping")
    n = graph.num_nodes
    xi = np.full(clients, mean)
    if variance > 0:
        std = np.sqrt(variance)
        low, high = ndtr((np.array([MIN_FRACTION, 1.0]) - mean) / std)
        # Inversion of the truncated distribution: one draw for each client, whatever the variance.
        xi = np.clip(mean + std * ndtri(rng.uniform(low, high, size=clients)), MIN_FRACTION, 1.0)
    if copies == "one":
        return from_assignment(graph, _one_client_each(graph, xi, subset, rng), num_clients=clients)
    allowed = subset[:, graph.y]  # bool [K, N]
    # At least one node, so that no client is empty.
    size = np.maximum(np.rint(xi * allowed.sum(axis=1)), 1).astype(np.int64)
    # Client k takes the size[k] nodes with the smallest keys among the nodes of its classes.
    key = np.where(allowed, rng.random((clients, n)), 1.0)
    rank = key.argsort(axis=1).argsort(axis=1)
    has = rank < size[:, None]  # bool [K, N]
    held_client, held_node = np.nonzero(has)
    copy = np.full((clients, n), -1, dtype=np.int64)  # the id of node v's copy at client k
    copy[has] = np.arange(len(held_client))
    # home[v] is the client whose copy of v is the endpoint of the cross-client edges to v.
    copies_of_node = has.sum(axis=0)
    by_node = np.nonzero(has.T)[1]
    start = np.cumsum(copies_of_node) - copies_of_node
    home = np.full(n, -1, dtype=np.int64)
    exists = copies_of_node > 0
    home[exists] = by_node[(start + (rng.random(n) * copies_of_node).astype(np.int64))[exists]]

    u, v = graph.edges
    # An edge is inside a client that copied both endpoints, and between clients otherwise.
    edge_client, inside = np.nonzero(has[:, u] & has[:, v])
    # The ids of a client's copies ascend with the node numbers, so u < v also holds for the ids.
    # Both directions of each edge, because either endpoint may be the one that a client lacks.
    local, remote = [], []
    for a, b in ((u, v), (v, u)):
        k, e = np.nonzero(has[:, a] & ~has[:, b] & exists[b])
        # One row in one direction: from the client's endpoint to the copy at `home` of the other endpoint.
        local.append(copy[k, a[e]])
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
        **cross_rows(held_client, held_id, np.concatenate(local), np.concatenate(remote)),
        num_clients=clients,
        graph_hash=graph.hash,
    )


def _class_subsets(graph: Graph, clients: int, seed: int, classes: int) -> np.ndarray:
    """Draw the classes of each client, bool [K, C + 1]. The last column (index -1) is the unknown class.

    All sets of `classes` classes are equally likely for a client, and the numbers of clients that have each
    class differ by at most one. Every class is at a client if K * classes is at least the number of classes.
    """
    present = np.unique(graph.y[graph.y >= 0])
    if not 0 <= classes <= len(present):
        raise InputError(
            f"classes={classes} of overlapping cannot be used; give 0 for all classes, or at most "
            f"{len(present)}, the number of classes of {graph.name!r} that have nodes"
        )
    subset = np.ones((clients, graph.num_classes + 1), dtype=bool)
    if not classes:
        return subset
    rng = generator(seed, "partition/overlapping/classes")
    # The draw is one of cards: a deck has one for each class that has nodes, and every client takes the next
    # `classes` cards of shuffled decks. A card that it already has waits for the next client.
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
    """Assign each node to one client, int64 [N].

    A node goes to one of the clients that have its class (`subset`, bool [K, C + 1]), in proportion to their
    xi [K].
    """
    # Classes that the same clients have form one group; without subsets, all classes form one group.
    clients, group = np.unique(subset, axis=1, return_inverse=True)  # bool [K, G], [C + 1]
    group = group.reshape(-1)[graph.y]  # [N]
    total = np.cumsum(xi[:, None] * clients, axis=0)
    ends = np.rint(total / total[-1] * np.bincount(group, minlength=clients.shape[1])).astype(np.int64)
    counts = np.diff(ends, axis=0, prepend=0)  # [K, G]
    # Assign the nodes of each group, in random order, to clients 0, 1, ... by the counts.
    by_group, _, _ = shuffle_by_group(rng, graph.num_nodes, group)
    client = np.empty(graph.num_nodes, dtype=np.int64)
    client[by_group] = np.repeat(np.tile(np.arange(len(xi)), counts.shape[1]), counts.T.ravel())
    return client

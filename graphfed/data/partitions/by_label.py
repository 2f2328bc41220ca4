"""Partitioners by class: label_dirichlet (two kinds) and label_skew. Shapes: N nodes, K clients."""

import numpy as np

from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.tables import Partition, from_assignment, without_cross
from graphfed.data.seeding import generator, shuffle_by_group
from graphfed.errors import InputError, did_you_mean

MIN_NODES = 10  # the smallest number of nodes of a client in the programs of FedGCN and FedGAT
MAX_ATTEMPTS = 10_000
ROUNDING = 1e-3  # so that 0.667 is accepted for 1 - 1/3


def label_dirichlet(graph: Graph, clients: int, seed: int, beta: float, kind: str) -> Partition:
    """Partition the nodes by classes, with proportions from a Dirichlet distribution.

    The kinds:

    - "proportions" (the programs of FedGCN and FedGAT): for each class, draw proportions over the K clients
      from Dir(beta, ..., beta). Set the proportion of clients that already hold N/K nodes to 0, renormalise,
      and divide the shuffled class at the cumulative sums. Repeat all of this until every client holds at
      least 10 nodes.
    - "hsu" (Hsu et al.): each client draws class proportions from Dir(beta * class frequencies) and takes N/K
      nodes by them, without replacement. A class without remaining nodes is no longer drawn.

    Nodes of unknown class (-1) are treated as one more class. The classes are very unevenly distributed at
    beta = 1, moderately at 100, and almost evenly at 10000.
    """
    if not 0 < beta < np.inf:
        raise InputError(
            f"beta {beta:g} of label_dirichlet must be a positive number; use 1 for skewed classes, 10000 "
            "for evenly distributed ones"
        )
    draws = {"proportions": _draw_proportions, "hsu": _draw_hsu}
    if kind not in draws:
        raise InputError(f"unknown kind {kind!r} of label_dirichlet; {did_you_mean(kind, draws)}")
    # Each kind has draws of its own, so adding a kind changes no earlier partition.
    rng = generator(seed, f"partition/label_dirichlet/{kind}")
    _, y, class_size = np.unique(graph.y, return_inverse=True, return_counts=True)
    counts = draws[kind](graph, class_size, clients, beta, rng)  # [classes, K], rows sum to class_size
    # Assign the nodes of each class, in random order, to clients 0, 1, ... by the counts.
    by_class, _, _ = shuffle_by_group(rng, graph.num_nodes, y)
    client = np.empty(graph.num_nodes, dtype=np.int64)
    client[by_class] = np.repeat(np.tile(np.arange(clients), len(class_size)), counts.ravel())
    return from_assignment(graph, client, num_clients=clients)


def _draw_proportions(
    graph: Graph, class_size: np.ndarray, clients: int, beta: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw the number of nodes per class and client, int64 [classes, K], by the kind "proportions"."""
    n = graph.num_nodes
    if n >= MIN_NODES * clients:
        for _ in range(MAX_ATTEMPTS):
            counts = np.zeros((len(class_size), clients), dtype=np.int64)
            held = np.zeros(clients, dtype=np.int64)
            for c, p in enumerate(rng.dirichlet(np.full(clients, beta), size=len(class_size))):
                p = np.where(held < n / clients, p, 0.0)  # noqa: PLW2901
                if not p.sum() > 0:
                    break  # a tiny beta gave the whole class to full clients: draw again
                # Rounding may leave the cumulative sum slightly below 1. Without the tolerance, the last
                # client could then get a node although its proportion is 0.
                ends = (np.cumsum(p / p.sum())[:-1] * class_size[c] + 1e-6).astype(np.int64)
                counts[c] = np.diff(ends, prepend=0, append=class_size[c])
                held += counts[c]
            else:
                if held.min() >= MIN_NODES:
                    return counts
        why = f"none of {MAX_ATTEMPTS} draws gave every client {MIN_NODES} nodes"
        fix = f"use fewer clients or a larger beta (got {beta:g})"
    else:
        why = f"every client must hold at least {MIN_NODES} nodes"
        fix = f"use at most {n // MIN_NODES} clients" if n >= MIN_NODES else "use a larger graph"
    raise InputError(
        f"label_dirichlet cannot partition the {n} nodes of {graph.name!r} among {clients} clients: {why}; "
        f"{fix}, or another partition, such as 'random'"
    )


def _draw_hsu(
    graph: Graph, class_size: np.ndarray, clients: int, beta: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw the number of nodes per class and client, int64 [classes, K], by the kind "hsu"."""
    n = graph.num_nodes
    left = class_size.copy()
    q = rng.dirichlet(beta * class_size / n, size=clients) if len(class_size) > 1 else np.ones((clients, 1))
    counts = np.zeros((len(class_size), clients), dtype=np.int64)
    # The clients draw one after the other, and a node that a client takes is not available to the next.
    for k in range(clients):
        wanted = n // clients + (k < n % clients)
        while wanted:
            p = np.where(left > 0, q[k], 0.0)
            if not p.sum() > 0:
                p = left.astype(float)  # all classes of this client's proportions have run out
            # Draw in blocks. This has the same distribution as drawing one node at a time and rejecting
            # classes that have run out.
            taken = np.minimum(rng.multinomial(wanted, p / p.sum()), left)
            counts[:, k] += taken
            left -= taken
            wanted -= int(taken.sum())
    return counts


def label_skew(graph: Graph, clients: int, seed: int, alpha: float, nodes: str) -> Partition:
    """Partition the nodes by SAPGNN's label skew: blocks of classes, then an exchange of random nodes.

    The classes, in order, are divided into K blocks of nearly equally many classes, and client k gets block
    k. Then a random fraction `alpha` of each client's nodes is moved to the other clients, evenly: 0 is most
    skewed, 1 - 1/K even.

    With `nodes` "own", a client holds the nodes that are assigned to it, and an edge between two clients is a
    cross-client edge. With "all" (for PPGNN), every client also holds all other nodes, without their labels
    and edges, and an edge between two clients is at no client.

    Reference:
        Shan et al., "SAPGNN", Figs. 3 to 5.
    """
    # Above 1 - 1/K a client would hold fewer nodes of its own classes than of each other block: skewed again.
    even = 1 - 1 / clients
    if not 0 <= alpha <= even + ROUNDING:
        raise InputError(
            f"alpha {alpha:g} of label_skew is the fraction of each client's nodes that moves to the others; "
            f"with {clients} {'client' if clients == 1 else 'clients'} use a number from 0 (whole classes) "
            f"to {even:.3g} (classes evenly distributed)"
        )
    if nodes not in ("own", "all"):
        raise InputError(f"unknown nodes={nodes!r} of label_skew; {did_you_mean(nodes, ('own', 'all'))}")
    if clients > graph.num_classes:
        raise InputError(
            f"label_skew assigns whole classes, so {clients} clients are too many for the "
            f"{graph.num_classes} classes of {graph.name!r}; use at most {graph.num_classes} clients, or "
            "'label_dirichlet' with a small beta"
        )
    rng = generator(seed, "partition/label_skew")
    blocks = [len(block) for block in np.array_split(np.arange(graph.num_classes), clients)]
    block = np.repeat(np.arange(clients), blocks)
    # A node of unknown class belongs to no block and gets a random client.
    client = np.where(graph.y >= 0, block[graph.y], rng.integers(clients, size=graph.num_nodes))
    if clients > 1:
        # Shuffle each client's nodes; the first fraction alpha of them moves to the other clients in turn.
        order, size, rank = shuffle_by_group(rng, graph.num_nodes, client, clients)
        # The order within a client is random, so its first nodes are a random fraction.
        moves = rank < np.rint(alpha * size)[client[order]]
        first = rng.integers(clients - 1, size=clients)  # a random start, so the remainder favours no client
        step = 1 + (rank + first[client[order]]) % (clients - 1)
        client[order] = np.where(moves, (client[order] + step) % clients, client[order])
    assigned = from_assignment(graph, client, num_clients=clients)
    if nodes == "own":
        return assigned
    held_id = np.tile(np.arange(graph.num_nodes), clients)
    held_client = np.repeat(np.arange(clients), graph.num_nodes)
    held = (held_client, held_id, client[held_id] == held_client)
    return without_cross(
        graph, held, (assigned.edge_client, assigned.edge_u, assigned.edge_v), num_clients=clients
    )

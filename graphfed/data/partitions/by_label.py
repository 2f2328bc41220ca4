"""Partitions by class: label_dirichlet (two kinds) and label_skew."""

import numpy as np

from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.tables import Partition, from_assignment, without_cross
from graphfed.data.seeding import generator
from graphfed.errors import InputError, did_you_mean

__all__ = ["MIN_NODES", "label_dirichlet", "label_skew"]

MIN_NODES = 10  # every client's minimum in the programs of FedGCN and FedGAT
ATTEMPTS = 10_000


def label_dirichlet(graph: Graph, clients: int, seed: int, beta: float, kind: str) -> Partition:
    """Class shares drawn from a Dirichlet distribution: beta = 1 is skewed, 100 partly, 10000 even.

    kind "proportions" (the programs of FedGCN and FedGAT): for each class draw proportions over the K clients
    from Dir(beta, ..., beta); clients that already hold N/K nodes get none; renormalise and cut the
    shuffled class at the cumulative sums; start again until every client holds at least 10 nodes.
    kind "hsu" (Hsu et al.): each client draws class proportions from Dir(beta * class shares) and takes its
    N/K nodes by them, without replacement; a class that runs out drops out of the draws.

    Nodes of unknown class (-1) are dealt as one more class. Raises InputError when beta is not positive,
    the kind is unknown, or no deal with 10 nodes a client was found.
    """
    if not 0 < beta < np.inf:
        raise InputError(
            f"beta {beta:g} of label_dirichlet must be a positive number; 10000 is even, 1 is skewed"
        )
    deals = {"proportions": _partition_proportions, "hsu": _partition_hsu}
    if kind not in deals:
        raise InputError(f"unknown kind {kind!r} of label_dirichlet; {did_you_mean(kind, deals)}")
    rng = generator(seed, f"partition/label_dirichlet/{kind}")
    _, y, class_size = np.unique(graph.y, return_inverse=True, return_counts=True)
    counts = deals[kind](graph, class_size, clients, beta, rng)  # [classes, K], rows sum to class_size
    # The nodes of each class, in random order, go to clients 0, 1, ... by the counts.
    shuffled = rng.permutation(graph.num_nodes)
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    client = np.empty(graph.num_nodes, dtype=np.int64)
    client[by_class] = np.repeat(np.tile(np.arange(clients), len(class_size)), counts.ravel())
    return from_assignment(graph, client, num_clients=clients)


def _partition_proportions(
    graph: Graph, class_size: np.ndarray, clients: int, beta: float, rng: np.random.Generator
) -> np.ndarray:
    n = graph.num_nodes
    if n >= MIN_NODES * clients:
        for _ in range(ATTEMPTS):
            counts = np.zeros((len(class_size), clients), dtype=np.int64)
            held = np.zeros(clients, dtype=np.int64)
            for c, p in enumerate(rng.dirichlet(np.full(clients, beta), size=len(class_size))):
                p = np.where(held < n / clients, p, 0.0)  # noqa: PLW2901
                if not p.sum() > 0:
                    break  # a tiny beta put this class wholly on full clients: draw again
                # A sum of shares a hair below 1 is 1: a client without a share must not get the last node.
                ends = (np.cumsum(p / p.sum())[:-1] * class_size[c] + 1e-6).astype(np.int64)
                counts[c] = np.diff(ends, prepend=0, append=class_size[c])
                held += counts[c]
            else:
                if held.min() >= MIN_NODES:
                    return counts
        why = f"no deal in {ATTEMPTS} gave every client {MIN_NODES} nodes"
        fix = f"use fewer clients or a larger beta (got {beta:g})"
    else:
        why = f"every client must hold at least {MIN_NODES} nodes"
        fix = f"use at most {n // MIN_NODES} clients" if n >= MIN_NODES else "use a larger graph"
    raise InputError(
        f"label_dirichlet cannot deal the {n} nodes of {graph.name!r} to {clients} clients: {why}; "
        f"{fix}, or another partition, such as 'random'"
    )


def _partition_hsu(
    graph: Graph, class_size: np.ndarray, clients: int, beta: float, rng: np.random.Generator
) -> np.ndarray:
    n = graph.num_nodes
    left = class_size.copy()
    q = rng.dirichlet(beta * class_size / n, size=clients) if len(class_size) > 1 else np.ones((clients, 1))
    counts = np.zeros((len(class_size), clients), dtype=np.int64)
    # One client after the other: what a client takes, the next cannot have.
    for k in range(clients):
        wanted = n // clients + (k < n % clients)
        while wanted:
            p = np.where(left > 0, q[k], 0.0)
            if not p.sum() > 0:
                p = left.astype(float)  # all classes this client asked for have run out
            # Drawing one at a time and refusing a class that ran out, done in blocks.
            taken = np.minimum(rng.multinomial(wanted, p / p.sum()), left)
            counts[:, k] += taken
            left -= taken
            wanted -= int(taken.sum())
    return counts


def label_skew(graph: Graph, clients: int, seed: int, alpha: float, nodes: str) -> Partition:
    """SAPGNN's label skew: blocks of classes, then a fraction of each client spread over the others.

    The classes, in order, are cut into K blocks of (nearly) equally many classes; client k gets block k.
    Then a
    random fraction `alpha` of each client's nodes is dealt evenly over the other clients: 0 is the most
    skewed, (K-1)/K is even. Nodes of unknown class (-1) are dealt uniformly from the start.
    nodes: "own", a client holds what it was dealt, and an edge between clients is cut; "all", every client
    also
    holds every other node, without label or edges (what PPGNN needs), and an edge between clients is at none.

    Raises InputError when alpha is not in [0, 1] or there are more clients than classes.
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha {alpha:g} of label_skew must be a fraction from 0 to 1 (0.5 for 50 %)")
    if nodes not in ("own", "all"):
        raise InputError(f"unknown nodes={nodes!r} of label_skew; {did_you_mean(nodes, ('own', 'all'))}")
    if clients > graph.num_classes:
        raise InputError(
            f"label_skew deals whole classes: {clients} clients cannot share the {graph.num_classes} "
            f"classes of {graph.name!r}; use at most {graph.num_classes} clients, or 'label_dirichlet' with "
            "a small beta"
        )
    rng = generator(seed, "partition/label_skew")
    blocks = [len(block) for block in np.array_split(np.arange(graph.num_classes), clients)]
    block = np.repeat(np.arange(clients), blocks)
    client = np.where(graph.y >= 0, block[graph.y], rng.integers(clients, size=graph.num_nodes))
    if clients > 1:
        # Each client's nodes in random order: the first alpha of them move, to the other clients in turn.
        order = rng.permutation(graph.num_nodes)
        order = order[np.argsort(client[order], kind="stable")]
        size = np.bincount(client, minlength=clients)
        rank = np.arange(graph.num_nodes) - np.repeat(np.cumsum(size) - size, size)
        moves = rank < np.rint(alpha * size)[client[order]]
        first = rng.integers(clients - 1, size=clients)  # no client is favoured by the remainder
        step = 1 + (rank + first[client[order]]) % (clients - 1)
        client[order] = np.where(moves, (client[order] + step) % clients, client[order])
    dealt = from_assignment(graph, client, num_clients=clients)
    if nodes == "own":
        return dealt
    held_id = np.tile(np.arange(graph.num_nodes), clients)
    held_client = np.repeat(np.arange(clients), graph.num_nodes)
    held = (held_client, held_id, client[held_id] == held_client)
    return without_cross(graph, held, (dealt.edge_client, dealt.edge_u, dealt.edge_v), num_clients=clients)

"""Partitioners that ignore the labels: random, louvain, metis, ego, and column, which follows the data.

Shapes: N nodes, K clients.
"""

import heapq

import numpy as np
import scipy.sparse as sp

from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.tables import Partition, from_assignment, without_cross
from graphfed.data.seeding import generator
from graphfed.errors import InputError, how_to_install


def random(graph: Graph, clients: int, seed: int) -> Partition:
    """Assign nodes to clients uniformly at random, with sizes that differ by at most one."""
    order = generator(seed, "partition/random").permutation(graph.num_nodes)
    client = np.empty(graph.num_nodes, dtype=np.int64)
    client[order] = np.arange(graph.num_nodes) % clients
    return from_assignment(graph, client, num_clients=clients)


def column(graph: Graph, clients: int, seed: int) -> Partition:
    """Partition by the clients that the data states, one for each of `graph.client_names`.

    If clients may list the same nodes and edges (`graph.held`), each client holds what its files list, and
    there are no cross-client edges: a client does not know an edge that its files do not list.
    """
    held = graph.held
    if held is None:
        assert graph.clients is not None
        return from_assignment(graph, graph.clients, num_clients=clients)
    edges = (held.edge_client, *graph.edges[:, held.edge])
    return without_cross(graph, (held.client, held.node, held.owner), edges, num_clients=clients)


def ego(graph: Graph, clients: int, seed: int) -> Partition:
    """Assign node i to client i, so that every edge is a cross-client edge."""
    return from_assignment(graph, np.arange(graph.num_nodes), num_clients=clients)


def louvain(graph: Graph, clients: int, seed: int) -> Partition:
    """Assign Louvain communities (networkx) to clients, the largest first, each to the smallest client.

    A community larger than N/K is first divided into pieces of at most N/K nodes. The pieces are consecutive
    in a bandwidth-reducing order, so most neighbours stay together. Hence every client holds at least one
    node and at most 2 N/K.
    """
    import networkx as nx
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    n = graph.num_nodes
    network = nx.Graph()
    network.add_nodes_from(range(n))
    network.add_edges_from(graph.edges.T.tolist())
    communities = nx.community.louvain_communities(
        network, seed=int(generator(seed, "partition/louvain").integers(2**31))
    )
    limit = n // clients
    adjacency = _adjacency(graph)
    pieces: list[np.ndarray] = []
    # networkx promises no order of the communities. By their smallest node, a seed gives one partition.
    for community in sorted(communities, key=min):
        members = np.array(sorted(community))
        if len(members) > limit:
            members = members[reverse_cuthill_mckee(adjacency[members][:, members], symmetric_mode=True)]
        pieces += np.array_split(members, -(-len(members) // limit))
    pieces.sort(key=len, reverse=True)
    client = np.empty(n, dtype=np.int64)
    # A heap of the clients by size. Ties go to the client with the smallest number.
    sizes = [(0, k) for k in range(clients)]
    for piece in pieces:
        size, k = heapq.heappop(sizes)
        client[piece] = k
        heapq.heappush(sizes, (size + len(piece), k))
    return from_assignment(graph, client, num_clients=clients)


def metis(graph: Graph, clients: int, seed: int) -> Partition:
    """Partition with METIS into clients of nearly equal size with few cross-client edges."""
    try:
        import pymetis
    except ImportError:
        raise InputError(
            "partition 'metis' needs the package pymetis, which is not installed; "
            f"run: {how_to_install('metis')}, or use 'louvain'"
        ) from None
    if clients == 1:
        return random(graph, 1, seed)
    adjacency = _adjacency(graph)
    draw = int(generator(seed, "partition/metis").integers(2**31))
    # On small graphs, k-way partitioning may leave clients empty. Recursive bisection rarely does.
    for recursive in (False, True):
        _, client = pymetis.part_graph(
            clients,
            pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices),
            options=pymetis.Options(seed=draw),
            recursive=recursive,
        )
        filled = len({*client})
        if filled == clients:
            return from_assignment(graph, np.asarray(client, dtype=np.int64), num_clients=clients)
    raise InputError(
        f"METIS leaves {clients - filled} of {clients} clients of {graph.name!r} without a node; use fewer "
        "clients or the partition 'louvain'"
    )


def _adjacency(graph: Graph) -> sp.csr_matrix:
    """Build the symmetric adjacency matrix [N, N] of ones, without the diagonal."""
    u, v = graph.edges
    # One byte per edge is enough, because callers read only the pattern.
    ones = np.ones(len(u), dtype=np.int8)
    half = sp.coo_matrix((ones, (u, v)), shape=(graph.num_nodes, graph.num_nodes))
    return sp.csr_matrix(half + half.T)

"""Edges under local differential privacy: every pair of nodes is a bit, flipped with probability 1 / (1 +
e^epsilon) (docs/papers/lumos_results.md, "Baselines", naive FedGNN).

Nodes have the public numbers 0..N-1. One of its two nodes reports each of the N (N - 1) / 2 pairs: node i
reports (i, i + 1), ..., (i, i + floor(N / 2)) modulo N, so all nodes send the same number of bits. If N is
even, the smaller node reports the pair of two opposite ones, and the last bit of the larger node is 0. Every
bit is released once; the release is epsilon-private between two graphs that differ in one edge.

Bits are flipped one by one, each by its own random word, for a part of the nodes at a time: they are exactly
independent, and memory holds packed bits and the pairs that are 1.
"""

import torch
from torch import Tensor

from graphfed.nn.bits import pack_bits, unpack_bits
from graphfed.privacy.local import SHIFT, rare
from graphfed.privacy.noise import Mechanism, Noise, chunks


def edge_mechanism(epsilon: float) -> Mechanism:
    """Describe one release of `flip_edges`.

    Args:
        epsilon: Privacy budget of an edge, above 0.

    Returns:
        The mechanism.
    """
    return Mechanism(
        "edge flipping",
        epsilon,
        "for every pair of nodes whether they are connected, once: private between two graphs that "
        "differ in one edge",
    )


def expected_edges(num_nodes: int, num_edges: int, epsilon: float) -> float:
    """Compute the expected number of pairs that are 1 after `flip_edges`.

    Args:
        num_nodes: N, the number of nodes.
        num_edges: Number of edges, each counted once.
        epsilon: Privacy budget of an edge, above 0.

    Returns:
        The expectation.
    """
    # The probability of a flip as `flip_edges` draws it; 2 SHIFT is the number of words.
    flip = float(rare(epsilon)) / (2 * SHIFT)
    pairs = num_nodes * (num_nodes - 1) / 2
    return num_edges * (1 - flip) + (pairs - num_edges) * flip


def answered(node: Tensor, neighbour: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Decide which edges a node reports.

    Args:
        node: [E] number of the one node of each edge.
        neighbour: [E] number of the other one.
        num_nodes: N, the number of nodes in the graph.

    Returns:
        Whether `node` reports the edge, [E] bool, and the place of the edge among its bits, [E].
    """
    ahead = (neighbour - node) % num_nodes
    # The distance from one node to the other around the circle is shorter in one of the two directions. The
    # smaller node decides a tie. A self loop has the distance 0.
    reported = (2 * ahead < num_nodes) | ((2 * ahead == num_nodes) & (node < neighbour))
    return reported & (ahead > 0), ahead - 1


def flip_edges(
    node: Tensor,
    row: Tensor,
    neighbour: Tensor,
    num_nodes: int,
    noise: Noise,
    purpose: str,
    epsilon: float,
) -> Tensor:
    """Flip the bits that some nodes report.

    A bit becomes 1 with probability 1 - p if there is an edge and p if there is none, with p = `rare` / 2^32
    >= 1 / (1 + e^epsilon); the ratio is at most e^epsilon.

    Args:
        node: [n] numbers of the nodes that report.
        row: [E] index of a node in `node`, for each edge.
        neighbour: [E] number of the edge's other node. An edge between two of the nodes is listed from both.
        num_nodes: Number of nodes in the graph, N.
        noise: The source of the bits' words.
        purpose: The name of the draws, used for this release only.
        epsilon: Privacy budget of an edge, above 0.

    Returns:
        [n, ceil(floor(N / 2) / 8)] uint8, packed.
    """
    width, device = num_nodes // 2, node.device
    reported, place = answered(node[row], neighbour, num_nodes)
    # Sorted by row, so that the edges of some rows are a contiguous part.
    order = torch.argsort(row[reported], stable=True)
    row, place = row[reported][order], place[reported][order]
    # A signed word is below `coin` for `rare` of its 2^32 values.
    coin = int(rare(epsilon)) - SHIFT
    packed = torch.empty(len(node), (width + 7) // 8, dtype=torch.uint8, device=device)
    for rows in chunks(len(node), width):
        # First the bits of a graph without edges; an edge inverts its bit.
        bits = noise.words(purpose, node[rows], width) < coin
        ends = torch.searchsorted(row, torch.tensor([rows.start, rows.stop], device=device)).tolist()
        some = slice(*ends)
        at = (row[some] - rows.start, place[some])
        bits[at] = ~bits[at]
        if num_nodes % 2 == 0:
            # The last bit is the pair of opposite nodes, which the smaller one reports.
            bits[:, -1] &= 2 * node[rows] < num_nodes
        packed[rows] = pack_bits(bits)
    return packed


def pairs_of_bits(packed: Tensor, node: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """List the pairs that are 1 after `flip_edges`.

    Args:
        packed: [n, B] uint8 of some nodes.
        node: [n] numbers of these nodes, in the order of `packed`.
        num_nodes: Number of nodes in the graph.

    Returns:
        Two vectors [E] int32 of node numbers, each pair once.
    """
    width = num_nodes // 2
    sources, targets = [], []
    for rows in chunks(len(node), width):
        row, place = unpack_bits(packed[rows], width).nonzero(as_tuple=True)
        source = node[rows][row]
        sources.append(source.int())
        targets.append(((source + place + 1) % num_nodes).int())
    empty = torch.empty(0, dtype=torch.int32, device=node.device)
    return torch.cat([empty, *sources]), torch.cat([empty, *targets])

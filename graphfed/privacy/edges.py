"""Edges under local differential privacy: every pair of nodes is a bit, and every bit is flipped with
probability 1 / (1 + e^epsilon) (docs/papers/lumos.md, Baselines).

Nodes are numbered 0..N-1, publicly. Each of the N (N - 1) / 2 pairs is answered for by one of its two
ends: node i has the pairs (i, i + 1), ..., (i, i + floor(N / 2)), counted around modulo N, so that all
nodes send the same number of bits (of even N the opposite pairs are answered for by the smaller end, and
the larger one's last bit is 0). Every bit is released once: the release is epsilon-private between two graphs
that differ in one edge.

Bits are flipped one by one, each by its own word, in pieces: the law is exactly that of independent coins,
and what is held is packed bits and the pairs that are 1."""

import torch
from torch import Tensor

from graphfed.nn.bits import pack_bits, unpack_bits
from graphfed.privacy.local import SHIFT, rare
from graphfed.privacy.noise import Mechanism, Noise, chunks

__all__ = ["answered", "edge_mechanism", "expected_edges", "flip_edges", "pairs_of_bits"]


def edge_mechanism(epsilon: float) -> Mechanism:
    """One release of `flip_edges`."""
    return Mechanism(
        "edge flipping",
        epsilon,
        "for every pair of nodes whether they are connected, once: private between two graphs that "
        "differ in one edge",
    )


def expected_edges(num_nodes: int, num_edges: int, epsilon: float) -> float:
    """How many pairs are 1 after `flip_edges`, on average."""
    flip = float(rare(epsilon)) / (2 * SHIFT)
    pairs = num_nodes * (num_nodes - 1) / 2
    return num_edges * (1 - flip) + (pairs - num_edges) * flip


def answered(node: Tensor, neighbour: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Which of some edges [E] `node` answers for, [E] bool, and the place of each among its bits [E]."""
    ahead = (neighbour - node) % num_nodes
    mine = (2 * ahead < num_nodes) | ((2 * ahead == num_nodes) & (node < neighbour))
    return mine & (ahead > 0), ahead - 1


def flip_edges(
    node: Tensor,
    row: Tensor,
    neighbour: Tensor,
    num_nodes: int,
    noise: Noise,
    purpose: str,
    epsilon: float,
) -> Tensor:
    """The flipped bits of each node, packed: [n, ceil(floor(N / 2) / 8)] uint8.

    node [n]: numbers of the nodes here; row [E] and neighbour [E]: edges of node[row] to the node
    numbered `neighbour`, each once from every end that is here. A bit comes out at 1 with probability 1 - p
    where there is an edge and p where there is none, p = `rare` / 2^32 >= 1 / (1 + e^epsilon); the ratio is
    at most e^epsilon."""
    width, device = num_nodes // 2, node.device
    mine, place = answered(node[row], neighbour, num_nodes)
    order = torch.argsort(row[mine], stable=True)
    row, place = row[mine][order], place[mine][order]
    coin = int(rare(epsilon)) - SHIFT
    packed = torch.empty(len(node), (width + 7) // 8, dtype=torch.uint8, device=device)
    for rows in chunks(len(node), width):
        bits = noise.words(purpose, node[rows], width) < coin
        ends = torch.searchsorted(row, torch.tensor([rows.start, rows.stop], device=device)).tolist()
        here = slice(*ends)
        at = (row[here] - rows.start, place[here])
        bits[at] = ~bits[at]
        if num_nodes % 2 == 0:
            bits[:, -1] &= 2 * node[rows] < num_nodes
        packed[rows] = pack_bits(bits)
    return packed


def pairs_of_bits(packed: Tensor, node: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """The pairs that are 1 in what `flip_edges` gave: two vectors [E] int32 of node numbers, each pair
    once."""
    width = num_nodes // 2
    sources, targets = [], []
    for rows in chunks(len(node), width):
        row, place = unpack_bits(packed[rows], width).nonzero(as_tuple=True)
        source = node[rows][row]
        sources.append(source.int())
        targets.append(((source + place + 1) % num_nodes).int())
    empty = torch.empty(0, dtype=torch.int32, device=node.device)
    return torch.cat([empty, *sources]), torch.cat([empty, *targets])

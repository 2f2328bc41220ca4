"""Link prediction in Lumos at the clients: pairs to train on, their loss and their scores."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from graphfed.federation.route import ExchangeIds
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.lumos.client_trees import ClientTrees
from graphfed.random import entry_words, uniform


@dataclass(frozen=True, eq=False)
class Exclusions:
    """The clients that a client must not draw: itself and its neighbours.

    The k-th smallest id that is left to client i is found by one binary search: an excluded id, less the
    number of excluded ids before it, is the number of allowed ids below it.

    Attributes:
        codes: [C + n] ascending: client * num_clients + (excluded id - excluded ids before it).
        start: [n] first entry of each client in `codes`.
        free: [n] how many ids are left to draw from.
    """

    codes: Tensor
    start: Tensor
    free: Tensor
    num_clients: int


def make_exclusions(rows: PairRows, ids: Tensor, num_clients: int) -> Exclusions:
    """Index the clients that each client must not draw.

    Args:
        rows: The neighbours of the cohort's clients.
        ids: [n] ids of the clients.
    """
    client = torch.cat([rows.client, torch.arange(len(ids), device=ids.device)])
    other = torch.cat([rows.other, ids])
    order = torch.argsort(client * num_clients + other)
    client, other = client[order], other[order]
    count = torch.bincount(client, minlength=len(ids))
    start = count.cumsum(0) - count
    rank = torch.arange(len(client), device=client.device) - start[client]
    return Exclusions(client * num_clients + other - rank, start, num_clients - count, num_clients)


def draw_negatives(
    trees: ClientTrees, exclusions: Exclusions, ids: Tensor, negatives: int, key: int
) -> ExchangeIds:
    """Draw `negatives` clients that are no neighbours for each neighbour in a tree, uniformly and with
    repetition.

    Args:
        exclusions: Whom each client must not draw.
        ids: [n] ids of the clients.
        key: The key of the draws of a round.

    Returns:
        The drawn ids [Q], with the client that has drawn each.
    """
    forest = trees.forest
    pairs = torch.repeat_interleave(torch.arange(forest.num_pairs, device=ids.device), negatives)
    which = torch.arange(len(pairs), device=ids.device) % negatives
    client = trees.leaf_owners[pairs]
    available = exclusions.free[client] > 0
    pairs, which, client = pairs[available], which[available], client[available]
    # A pair's draw is keyed by the id of its leaf, so that it does not depend on the placement.
    words = entry_words(forest.ids[1][pairs], which)
    draw = uniform(key, words)[:, 0]
    rank = (draw * exclusions.free[client]).long().clamp(max=exclusions.free[client] - 1)
    before = torch.searchsorted(exclusions.codes, client * exclusions.num_clients + rank, right=True)
    drawn = rank + before - exclusions.start[client]
    everyone = torch.arange(len(ids), device=ids.device)
    return ExchangeIds(drawn, drawn, client, ids, everyone)


def scored_ids(trees: ClientTrees, ids: Tensor, target: str) -> ExchangeIds:
    """Return the other client of each pair that a client scores.

    Args:
        ids: [n] ids of the clients.

    Returns:
        The ids, with the client that scores each.
    """
    links = trees.cohort.links
    assert links is not None
    which = trees.cohort.pairs(target)
    client, everyone = links.client[which], torch.arange(len(ids), device=ids.device)
    return ExchangeIds(client, client, links.row[which], ids, everyone)


def rows_to_send(trees: ClientTrees, h: Tensor) -> Tensor:
    """Select h_u for every receiver of u.

    Args:
        h: [n, H] embeddings of the clients.

    Returns:
        [R, H].
    """
    return h.index_select(0, trees.receivers)


def link_loss(
    trees: ClientTrees, wanted: ExchangeIds, h: Tensor, neighbour_embeddings: Tensor, drawn: Tensor
) -> Tensor:
    """Compute the cohort's sum of the loss of link prediction.

    Args:
        h: [n, H] embeddings of the clients.
        neighbour_embeddings: [P, H] embeddings of the neighbours in the trees.
        drawn: [Q, H] embeddings of the drawn clients.

    Reference:
        Lumos, Eq. (33), with log sigma(-s) for a drawn pair where the paper prints log(-sigma(s)).
    """
    positive = (h.index_select(0, trees.leaf_owners) * neighbour_embeddings).sum(1)
    negative = (h.index_select(0, wanted.client) * drawn).sum(1)
    # Eq. (33): -log sigma(s) = softplus(-s) does not overflow for large |s|.
    return softplus(-positive).sum() + softplus(negative).sum()


def pair_scores(trees: ClientTrees, h: Tensor, remote: Tensor, target: str) -> Tensor:
    """Score the pairs of a target.

    Args:
        h: [n, H] embeddings of the clients.
        remote: [p, H] embeddings of the other clients of the pairs.

    Returns:
        [p] h_u . h_v.
    """
    links = trees.cohort.links
    assert links is not None
    return (h.index_select(0, links.row[trees.cohort.pairs(target)]) * remote).sum(1)

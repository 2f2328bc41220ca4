"""What a cohort's clients have when training starts: their trees and the features on them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import as_leaves
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.common import released
from graphfed.methods.common.summed_gradients import Weights
from graphfed.methods.lumos.bit_matrix import BitMatrix
from graphfed.methods.lumos.config import LumosConfig, Trees
from graphfed.methods.lumos.feature_encoding import received_features
from graphfed.methods.lumos.tree import FUSED_LAYERS, Forest, make_forest
from graphfed.methods.lumos.mcmc import Assignment
from graphfed.nn.batch import Block
from graphfed.nn.sparse import SparseMatrix

NO_WEIGHTS = (
    "lumos trains on trees, whose edges have no weights; leave the edge weights out (in a description: "
    "'weight:' with nothing after it)"
)


@dataclass(frozen=True, eq=False)
class ClientTrees:
    """The trees of a cohort's n clients, ready to train.

    Attributes:
        cohort: The cohort: features [n, F], labels and splits of its clients.
        forest: The shape of the trees; P leaves stand for neighbours.
        blocks: The edges of the trees as each layer needs them; None with the fused trainer.
        noised: [P, F] features that the neighbours have sent, as deviations from `unsent_value`.
        unsent_value: The value of a feature that was not sent.
        own_pool: [n, .] weights of the mean (31) for leaves in the client's own tree.
        received_pool: [n, R] weights of the mean (31) for leaves whose embeddings arrive.
        leaf_owners: [P] client, as an index in the cohort, in whose tree each leaf is.
        receivers: [R] client, as an index in the cohort, of each pair (client, receiver): a receiver has the
            client in its tree.
    """

    cohort: Cohort
    forest: Forest
    blocks: tuple[Block, ...] | None
    noised: BitMatrix
    unsent_value: float
    own_pool: SparseMatrix
    received_pool: SparseMatrix
    leaf_owners: Tensor
    receivers: Tensor


def neighbour_rows(cohort: Cohort) -> PairRows:
    """Return the neighbours of every client.

    Returns:
        The pairs (client, neighbour), sorted.

    Raises:
        InputError: A client has no node or several, or edges have weights.
    """
    counts = torch.bincount(cohort.client, minlength=cohort.num_clients)
    wrong = (counts != 1).nonzero()[:, 0]
    if len(wrong):
        count = int(counts[wrong[0]])
        raise InputError(
            f"lumos needs one node at every client, and client {cohort.clients[int(wrong[0])]} holds "
            f"{count or 'no'} {'nodes' if count else 'node'}; use partition 'ego'"
        )
    if cohort.cross_weight is not None:
        raise InputError(NO_WEIGHTS)
    order = torch.argsort(cohort.cross_row * (1 << 32) + cohort.cross_client)
    return PairRows(cohort.cross_row[order], cohort.cross_client[order])


def check_graph(graph: Graph, config: LumosConfig) -> None:
    """Check a graph before anything is sent.

    Args:
        config: The settings, with the bounds of features.

    Raises:
        InputError: The graph has edge weights, or a feature is outside its bounds.
    """
    if graph.edge_weight is not None:
        raise InputError(f"{graph.name!r}: {NO_WEIGHTS}")
    released.check_features(graph, config.bounds)


def assigned_rows(assignment: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Select rows of an assignment's pairs.

    Args:
        assignment: The assignment, as values of the state.

    Returns:
        The pairs whose neighbour is in the client's tree [P] and those whose neighbour is a receiver [R],
        both ascending.
    """
    return assignment["local"].nonzero()[:, 0], assignment["remote"].nonzero()[:, 0]


def to_values(assignment: Assignment) -> dict[str, Tensor]:
    """Return an assignment as values of the state.

    Args:
        assignment: The assignment of a cohort's clients.

    Returns:
        "local" [C], "remote" [C] and "outcomes" [n].
    """
    return {"local": assignment.local, "remote": assignment.remote, "outcomes": assignment.outcomes}


def build_trees(
    cohort: Cohort,
    ids: Tensor,
    rows: PairRows,
    assignment: dict[str, Tensor],
    features: dict[str, Tensor],
    config: LumosConfig,
) -> ClientTrees:
    """Build the trees of a cohort and decode the features on them.

    Args:
        cohort: The cohort, of n clients.
        ids: [n] ids of the clients.
        assignment: The assignment, as values of the state.
        features: "header" and "flat" as they have arrived; see `feature_encoding`.
    """
    assigned, receiving = assigned_rows(assignment)
    owner, receivers, other = rows.client[assigned], rows.client[receiving], rows.other[assigned]
    workload, arriving = (torch.bincount(r, minlength=len(ids)) for r in (owner, receivers))
    # A client without a leaf in any tree gets one of its own.
    lone = ((workload + arriving) == 0).nonzero()[:, 0]
    forest = make_forest(owner, ids[owner], other, lone, ids, virtual=config.trees.virtual_nodes)
    blocks = None
    if not uses_fused_trainer(config.trees, config.network.layers):
        blocks = forest.blocks(config.network.backbone, config.network.attention_heads)
    noised = received_features(features["header"], features["flat"], other, cohort.num_features, config)
    own = torch.cat([owner, lone]) if forest.virtual else torch.arange(len(ids), device=ids.device)
    leaves = torch.bincount(own, minlength=len(ids)) + arriving
    return ClientTrees(
        cohort,
        forest,
        blocks,
        noised,
        config.encoding.unsent_value,
        pool_matrix(own, leaves),
        pool_matrix(receivers, leaves),
        owner,
        receivers,
    )


def pool_matrix(rows: Tensor, leaves: Tensor) -> SparseMatrix:
    """Build the matrix of the mean over leaves.

    Args:
        rows: [m] the client that each leaf stands for.
        leaves: [n] how many leaves stand for each client.

    Returns:
        [n, m] with 1 / leaves[rows[k]] at row rows[k] of column k.

    Reference:
        Lumos, Eq. (31).
    """
    weight = 1 / leaves[rows].to(torch.get_default_dtype())
    column = torch.arange(len(rows), device=rows.device)
    return SparseMatrix.from_coo(rows, column, weight, (len(leaves), len(rows)))


def uses_fused_trainer(trees: Trees, layers: int) -> bool:
    """Return whether leaves are computed pair by pair."""
    return trees.trainer == "fused" and trees.virtual_nodes and layers <= FUSED_LAYERS


# ---- training ----------------------------------------------------------------------------------------------


def copy_weights(trees: ClientTrees, weights: Weights) -> Weights:
    """Copy the weights for every client, as leaves that collect its own gradient.

    Args:
        weights: The weights, each [...].

    Returns:
        [n, ...] leaves.
    """
    n = trees.forest.num_clients
    leaves: Weights = as_leaves({name: w.expand(n, *w.shape).contiguous() for name, w in weights.items()})
    return leaves


def examples(trees: ClientTrees) -> Tensor:
    """Count what the mean loss is over at each client: training nodes, or in link prediction the client
    itself.

    Returns:
        [n] int64.
    """
    cohort = trees.cohort
    if cohort.links is not None:
        return torch.ones(trees.forest.num_clients, dtype=torch.int64, device=cohort.client.device)
    return torch.bincount(cohort.client[cohort.rows("train")], minlength=cohort.num_clients)

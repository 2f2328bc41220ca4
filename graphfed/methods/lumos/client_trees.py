"""What a cohort's clients have when training starts: their trees, the noised features on them, and, to
predict links, the pairs to train on and to score.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import ExchangeIds
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.common import released
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.tree import FUSED_LAYERS, Forest, make_forest
from graphfed.nn.batch import Block
from graphfed.nn.sparse import SparseMatrix
from graphfed.random import entry_words, uniform

NO_WEIGHTS = (
    "lumos trains on trees, whose edges have no weights; leave the edge weights out (in a description: "
    "'weight:' with nothing after it)"
)
#: Rows of a block: their part of a gradient (16 columns of 4 bytes, for ones and for zeros) about fits into a
#: processor's cache.
BLOCK = 1 << 14

# ---- noised features ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BitMatrix:
    """A constant matrix [P, d]: row p has values[p, 0] where its bit is 1, values[p, 1] where it is 0, and 0
    elsewhere.

    With 10^8 bits a product costs as much as reading the columns, so each bit takes 4 bytes and nothing else.
    A product with the transpose of the whole matrix would look up rows of a gradient with P rows in random
    order; in blocks they are close together.

    Attributes:
        columns: [E] int32: row after row, the columns of its ones and then of its zeros.
        offsets: [2 P + 1] int64: where the ones and zeros of each row begin.
        values: [P, 2].
        width: d.
        blocks: For every BLOCK rows the transpose: (row, bit) numbers, and their offsets [d + 1].
    """

    columns: Tensor
    offsets: Tensor
    values: Tensor
    width: int
    blocks: tuple[tuple[Tensor, Tensor], ...]

    @staticmethod
    def of(columns: Tensor, bits: Tensor, sizes: Tensor, values: Tensor, width: int) -> "BitMatrix":
        """Build a matrix from bits [E] bool and their columns [E] int32, row after row; sizes [P] int64: the
        bits of each row.
        """
        # Sorted in each row into ones and then zeros: a bag of `embedding_bag` is a range of columns.
        ends = sizes.cumsum(0)
        starts = ends - sizes
        sums = torch.cat([bits.new_zeros(1, dtype=torch.int32), bits.cumsum(0, dtype=torch.int32)])
        ones = (sums[ends] - sums[starts]).long()
        ordered = torch.empty_like(columns)
        for start in range(0, len(sizes), BLOCK):
            rows = slice(start, start + BLOCK)
            some = slice(int(starts[rows][0]), int(ends[rows][-1]))
            bit, before = bits[some], sums[:-1][some]
            row = torch.repeat_interleave(torch.arange(len(sizes[rows]), device=bit.device), sizes[rows])
            # `sums` counts the ones before each bit, so ranks need no sort.
            first, base = starts[rows][row], sums[starts[rows]][row]
            rank = before - base  # number of ones before it in its row
            place = torch.arange(some.start, some.stop, device=bit.device)
            zero = ones[rows][row] + place - rank  # zeros follow all ones
            ordered[torch.where(bit, first + rank, zero)] = columns[some]
        offsets = torch.stack([starts, starts + ones], 1).flatten()
        offsets = torch.cat([offsets, ends[-1:] if len(ends) else ends.new_zeros(1)])
        blocks = tuple(
            _transposed(ordered, offsets, start, min(start + BLOCK, len(sizes)), width)
            for start in range(0, len(sizes), BLOCK)
        )
        return BitMatrix(ordered, offsets, values, width, blocks)

    @property
    def shape(self) -> tuple[int, int]:
        """(P, d)."""
        return len(self.values), self.width

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[P, d] by [d, H] -> [P, H], differentiable in the dense factor."""
        result: Tensor = _Product.apply(self, dense)  # type: ignore[no-untyped-call]
        return result

    def to_dense(self) -> Tensor:
        """Return the dense matrix, [P, d]."""
        sizes = self.offsets.diff()
        value = torch.repeat_interleave(self.values.flatten(), sizes)
        row = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device) // 2, sizes)
        dense = self.values.new_zeros(self.shape)
        return dense.index_put_((row, self.columns.long()), value)


def _transposed(columns: Tensor, offsets: Tensor, start: int, stop: int, width: int) -> tuple[Tensor, Tensor]:
    """List which (row, bit) of the rows start..stop-1 have a bit in each column, by a counting sort."""
    pointers = offsets[2 * start : 2 * stop + 1]
    some = columns[int(pointers[0]) : int(pointers[-1])]
    # scipy turns the matrix around; its values are not used.
    parts = (np.ones(len(some), dtype=np.int8), some.cpu().numpy(), (pointers - pointers[0]).cpu().numpy())
    turned = sp.csr_matrix(parts, shape=(2 * (stop - start), width)).tocsc()
    indices, indptr = (torch.from_numpy(x).to(columns.device) for x in (turned.indices, turned.indptr))
    return indices.int(), indptr.int()


def _sums(columns: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
    """Add up the rows of `dense` that each bag names."""
    # `embedding_bag` refuses an empty list.
    if not len(columns):
        return dense.new_zeros(len(offsets) - 1, dense.shape[1])
    total: Tensor = embedding_bag(columns, dense, offsets.int(), mode="sum", include_last_offset=True)
    return total


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: BitMatrix, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        both = _sums(matrix.columns, matrix.offsets, dense).view(len(matrix.values), 2, dense.shape[1])
        # values[p, 0] times the sum over ones plus values[p, 1] times the sum over zeros
        return torch.einsum("pbh,pb->ph", both, matrix.values.to(dense.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        matrix: BitMatrix = ctx.matrix
        # The transpose, block by block: the rows of a gradient that a block looks up stay in the cache.
        total, start = grad.new_zeros(matrix.width, grad.shape[1]), 0
        for rows, offsets in matrix.blocks:
            some = slice(start, start + BLOCK)
            both = grad[some, None] * matrix.values[some, :, None].to(grad.dtype)
            total += _sums(rows, offsets, both.flatten(0, 1))
            start += BLOCK
        return None, total


# ---- trees -------------------------------------------------------------------------------------------------


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
    """Return the sorted neighbours of every client; InputError if a client has no node or several, or edges
    have weights.
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
    # Sorted by client and then by neighbour, as `mcmc.Neighbours` needs them.
    order = torch.argsort(cohort.cross_row * (1 << 32) + cohort.cross_client)
    return PairRows(cohort.cross_row[order], cohort.cross_client[order])


def check_graph(graph: Graph, config: LumosConfig) -> None:
    """Raise InputError for a graph with edge weights, or with a feature outside its bounds."""
    if graph.edge_weight is not None:
        raise InputError(f"{graph.name!r}: {NO_WEIGHTS}")
    released.check_features(graph, config.bounds)


def assigned_rows(assignment: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the rows whose neighbour is in the client's tree [P] and those whose neighbour is a receiver
    [R], both ascending.
    """
    return assignment["local"].nonzero()[:, 0], assignment["remote"].nonzero()[:, 0]


def build_trees(
    cohort: Cohort,
    ids: Tensor,
    rows: PairRows,
    assignment: dict[str, Tensor],
    noised: BitMatrix,
    config: LumosConfig,
) -> ClientTrees:
    """Build the trees of a cohort.

    ids: [n] ids of the clients. rows: their neighbours. noised: [P, F] the features that have arrived.
    """
    assigned, receiving = assigned_rows(assignment)
    owner, receivers, other = rows.client[assigned], rows.client[receiving], rows.other[assigned]
    workload, arriving = (torch.bincount(r, minlength=len(ids)) for r in (owner, receivers))
    # A client without a leaf in any tree gets one of its own.
    lone = ((workload + arriving) == 0).nonzero()[:, 0]
    forest = make_forest(owner, ids[owner], other, lone, ids, virtual=config.trees.virtual_nodes)
    blocks = None
    fused = config.trees.trainer == "fused" and config.trees.virtual_nodes
    if not fused or config.network.layers > FUSED_LAYERS:
        blocks = forest.blocks(config.network.backbone, config.network.attention_heads)
    # Without virtual nodes a client has one node in its neighbourhood, and not a copy for each pair.
    own = torch.cat([owner, lone]) if forest.virtual else torch.arange(len(ids), device=ids.device)
    # POOL is over own leaves and those in the trees of receivers.
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
    """Build the matrix [n, m] of the mean (31) over m leaves: 1 / leaves[rows[k]] at row rows[k] of column k.

    rows: [m] the client that each leaf stands for. leaves: [n] how many leaves stand for each client.
    """
    weight = 1 / leaves[rows].to(torch.get_default_dtype())
    column = torch.arange(len(rows), device=rows.device)
    return SparseMatrix.from_coo(rows, column, weight, (len(leaves), len(rows)))


# ---- link prediction ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Exclusions:
    """The clients that a client must not draw: itself and its neighbours, indexed for a binary search.

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
    """Index the clients that each of the cohort's clients, with ids [n], must not draw."""
    client = torch.cat([rows.client, torch.arange(len(ids), device=ids.device)])
    other = torch.cat([rows.other, ids])
    order = torch.argsort(client * num_clients + other)
    client, other = client[order], other[order]
    count = torch.bincount(client, minlength=len(ids))
    start = count.cumsum(0) - count
    rank = torch.arange(len(client), device=client.device) - start[client]
    # An excluded id, less the excluded ids before it, is the number of allowed ids below it.
    return Exclusions(client * num_clients + other - rank, start, num_clients - count, num_clients)


def draw_negatives(
    trees: ClientTrees, exclusions: Exclusions, ids: Tensor, negatives: int, key: int
) -> ExchangeIds:
    """Draw `negatives` clients that are no neighbours for each neighbour in a tree, uniformly and with
    repetition: their ids [Q], with the client that has drawn each.
    """
    forest = trees.forest
    pairs = torch.repeat_interleave(torch.arange(forest.num_pairs, device=ids.device), negatives)
    which = torch.arange(len(pairs), device=ids.device) % negatives
    client = trees.leaf_owners[pairs]
    # A client that is a neighbour of everyone has nobody to draw.
    available = exclusions.free[client] > 0
    pairs, which, client = pairs[available], which[available], client[available]
    # A pair's draw is keyed by the id of its leaf, so that it does not depend on the placement.
    words = entry_words(forest.ids[1][pairs], which)
    draw = uniform(key, words)[:, 0]
    rank = (draw * exclusions.free[client]).long().clamp(max=exclusions.free[client] - 1)
    before = torch.searchsorted(exclusions.codes, client * exclusions.num_clients + rank, right=True)
    # Each excluded id at or below moves the result up by one.
    drawn = rank + before - exclusions.start[client]
    everyone = torch.arange(len(ids), device=ids.device)
    return ExchangeIds(drawn, drawn, client, ids, everyone)


def scored_ids(trees: ClientTrees, ids: Tensor, target: str) -> ExchangeIds:
    """Return the id of the other client of each pair that a client scores, with the client that scores it."""
    links = trees.cohort.links
    assert links is not None
    which = trees.cohort.pairs(target)
    client, everyone = links.client[which], torch.arange(len(ids), device=ids.device)
    return ExchangeIds(client, client, links.row[which], ids, everyone)

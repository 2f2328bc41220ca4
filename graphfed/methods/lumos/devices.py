"""What the devices of a cohort know: their trees, and their neighbours."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError
from graphfed.federation.cohort import Cohort
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.common import released
from graphfed.methods.lumos.bit_matrix import BitMatrix
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.tree import Forest
from graphfed.nn.batch import Block
from graphfed.nn.sparse import SparseMatrix

__all__ = ["NO_WEIGHTS", "Devices", "check_graph", "neighbour_rows"]

NO_WEIGHTS = (
    "lumos learns on trees, whose edges have no weights; leave the edge weights out (in a description: "
    "'weight:' with nothing after it)"
)


@dataclass(frozen=True, eq=False)
class Devices:
    """A cohort of n devices, ready to train. x [n, F] own features; noised [P, F] of the kept neighbours: the
    deviations from `unsent_value`; own_pool, received_pool: POOL's weights of own leaves and of leaves that
    arrive [n, .]; blocks: of the general trainer, else None; kept_rows [P], receivers [R]: the devices
    (cohort rows) of kept pairs, and of the neighbours that keep a device."""

    cohort: Cohort
    forest: Forest
    blocks: tuple[Block, ...] | None
    noised: BitMatrix
    unsent_value: float
    own_pool: SparseMatrix
    received_pool: SparseMatrix
    kept_rows: Tensor
    receivers: Tensor


def neighbour_rows(cohort: Cohort) -> PairRows:
    """Every device's neighbours. InputError where a client holds anything but one node, and for edge
    weights."""
    counts = torch.bincount(cohort.client, minlength=cohort.num_clients)
    wrong = (counts != 1).nonzero()[:, 0]
    if len(wrong):
        count = int(counts[wrong[0]])
        raise InputError(
            f"lumos is for one node at every client, and client {cohort.clients[int(wrong[0])]} holds "
            f"{count or 'no'} {'nodes' if count else 'node'}; use partition 'ego'"
        )
    if cohort.cross_weight is not None:
        raise InputError(NO_WEIGHTS)
    order = torch.argsort(cohort.cross_row * (1 << 32) + cohort.cross_client)
    return PairRows(cohort.cross_row[order], cohort.cross_client[order])


def check_graph(graph: Graph, config: LumosConfig) -> None:
    """InputError for a graph with edge weights, and one with a feature outside its bounds."""
    if graph.edge_weight is not None:
        raise InputError(f"{graph.name!r}: {NO_WEIGHTS}")
    released.check_graph(graph, config)

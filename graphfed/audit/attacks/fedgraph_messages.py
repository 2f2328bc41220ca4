"""FedGraph: the rows that clients send each other in evaluations, recorded in a repeated run.

Validation nodes are predicted with the weights that the server has just sent, with all neighbours and without
dropout. A client that receives a row therefore knows exactly the weights that it was computed with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphfed.audit.base import AuditedRun
from graphfed.audit.rerun import Rerun
from graphfed.audit.transcript import all_features
from graphfed.federation.cohort import Cohort
from graphfed.methods.base import State
from graphfed.methods.common.remote_neighbours import remote_ids
from graphfed.methods.fedgraph.client_graphs import ClientGraph, Layer, sample_neighbours
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.methods.fedgraph.method import Clients, aggregate, transform
from graphfed.nn.backbones import Weights
from graphfed.nn.sparse import ranges


@dataclass(frozen=True, eq=False)
class Opened:
    """A run after set-up.

    Attributes:
        receiver: The client of each request for a remote node's row, [M].
        node: The requested node's row in the cohort, at its owner, [M].
        sent_rows: For each layer whose rows are sent in an evaluation, the requests that are answered,
            ascending, [m]. Layers without such rows are left out.
    """

    run: Rerun
    state: State
    config: FedGraphConfig
    cohort: Cohort
    graph: ClientGraph
    receiver: Tensor
    node: Tensor
    sent_rows: dict[int, Tensor]

    @property
    def layers(self) -> list[Layer]:
        """The layers that validation nodes are predicted with."""
        clients: Clients = self.state.prepared
        return [layer.parts[0] for layer, _ in clients.val]


def opened(audited: AuditedRun) -> Opened:
    """Repeat a run's set-up. Weights are averaged in plaintext, which gives the same values."""
    # Rows between clients are not summed, so plaintext changes none of them.
    run = audited.rerun(plaintext=True)
    settings: FedGraphConfig = run.training
    state = run.setup()
    clients: Clients = state.prepared
    cohort, graph = run.cohort, clients.graph.parts[0]
    requests = remote_ids(cohort)
    sent_rows = {}
    for number, (layer, route) in enumerate(clients.val):
        if route is not None:
            rows = layer.parts[0].out
            _, is_requested = sample_neighbours(graph, rows, None, settings.sampling.sampler, number, True, 0)
            if bool(is_requested.any()):
                sent_rows[number] = is_requested.nonzero()[:, 0]
    # A node may be at several clients. Its row is the one at the client that receives the request.
    ids, place = torch.unique(torch.cat([cohort.id, requests.ids]), return_inverse=True)
    held_codes = cohort.client * len(ids) + place[: cohort.num_rows]
    order = held_codes.argsort()
    at = torch.searchsorted(held_codes[order], requests.owner * len(ids) + place[cohort.num_rows :])
    return Opened(run, state, settings, cohort, graph, requests.client, order[at], sent_rows)


@dataclass(frozen=True, eq=False)
class Pairs:
    """S attacked pairs of a receiving client and the row in the cohort of another client's node."""

    receiver: Tensor
    node: Tensor


@dataclass(frozen=True, eq=False)
class Seen:
    """What S clients receive about one node each in T evaluations.

    Attributes:
        rows: The rows for one layer, [T, S, H].
        weights: The weights that all clients received before each evaluation.
        last: The rows [m, H] of each layer that all clients receive in the last evaluation.
    """

    rows: Tensor
    weights: tuple[dict[str, Tensor], ...]
    last: dict[int, Tensor]


def record_rows(again: Opened, layer: int, which: Tensor, rounds: Sequence[int]) -> Seen:
    """Train again and record the rows that are sent for a layer, as far as training does not diverge.

    Args:
        which: The rows that are recorded, [S], as places in ``sent_rows[layer]``.
        rounds: The rounds after whose evaluations they are recorded, ascending.
    """
    state, config = again.state, again.config
    rows, weights = [], []
    last: dict[int, Tensor] = {}
    for number in range(1, rounds[-1] + 1):
        state = again.run.round(state, number)
        if number not in rounds:
            continue
        with again.run.exchanges() as exchanges:
            again.run.predict(state, "val")
        # The exchange of a layer takes place even if it has no rows.
        sharing = [n for n in range(config.network.layers) if config.sharing.sends_embeddings(n)]
        received = dict(zip(sharing, (each.received for each in exchanges), strict=True))
        if not all(bool(of_layer.isfinite().all()) for of_layer in received.values()):
            break  # training has diverged
        last = received
        rows.append(last[layer][which].double().cpu())
        weights.append({name: w.double().cpu() for name, w in state.weights.parts[0].items()})
    return Seen(torch.stack(rows), tuple(weights), last)


# ---- what the rows were computed from, which receivers do not have -----------------------------------------


def entering_rows(again: Opened, seen: Seen) -> dict[int, Tensor]:
    """Compute the embeddings that enter each layer, from the second, in the last evaluation."""
    weights: Weights = {name: w.to(again.graph.scale) for name, w in seen.weights[-1].items()}
    h: Tensor | None = None
    entering = {}
    for number, layer in enumerate(again.layers):
        if h is not None:
            entering[number] = h
        hw = transform(again.graph, layer, weights, h, number, 0.0, None)
        last = number == again.config.network.layers - 1
        h = aggregate(again.graph, layer, hw, seen.last.get(number), weights, number, last)
    return entering


def first_adjacency(graph: ClientGraph) -> sp.csr_matrix:
    """Return Q(v, u) of the first layer over a node and its neighbours at its client, [N, N]."""
    entry = ranges(graph.starts, graph.num_internal)
    counts = torch.cat([graph.num_internal[:1] * 0, graph.num_internal])
    parts = (graph.first[entry].double(), graph.column[entry], counts)
    values, columns, numbers = (part.cpu().numpy() for part in parts)
    return sp.csr_matrix((values, columns, numbers.cumsum()), shape=(graph.num_rows, graph.num_rows))


def true_sums(again: Opened, pairs: Pairs, *, own: bool) -> Tensor:
    """Compute what the attack looks for, [S, F]: sums of each pair's node, or its features if `own`.

    A sum is that of the features of the node and its neighbours at its client, weighted by Q(u, v).
    """
    at = pairs.node.cpu().numpy()
    x = all_features(again.cohort)
    return _dense(x[at] if own else first_adjacency(again.graph)[at] @ x)


def guesses(again: Opened, pairs: Pairs, *, own: bool) -> Tensor:
    """Estimate `true_sums` as a receiver can without any row, [S, F].

    The estimate is the mean of the same sums of its own nodes that are neighbours of the node, and of the
    average over all its nodes, which counts as one more.
    """
    cohort, rows = again.cohort, []
    for receiver, node in zip(pairs.receiver.tolist(), pairs.node.tolist(), strict=True):
        edges, local = edges_to(cohort, receiver, node), (cohort.client == receiver).nonzero()[:, 0]
        weight = np.zeros(cohort.num_rows)
        np.add.at(weight, cohort.cross_row[edges].cpu().numpy(), 1.0)
        # The average over the client's nodes counts as one more neighbour, and is the guess without any.
        weight[local.cpu().numpy()] += 1 / len(local)
        rows.append(sp.csr_matrix(weight / (len(edges) + 1)))
    mixed = sp.vstack(rows).tocsr()
    sums_of_rows = mixed if own else mixed @ first_adjacency(again.graph)
    return _dense(sums_of_rows @ all_features(cohort))


def edges_to(cohort: Cohort, receiver: int, node: int) -> Tensor:
    """Find the numbers, ascending, of the cross-client edges from a receiver to the node in a row."""
    # Cross-client edges name the other client by its id and not by its index in the cohort.
    owner, name = cohort.clients[int(cohort.client[node])], cohort.id[node]
    to_node = (cohort.cross_client == owner) & (cohort.cross_id == name)
    return (to_node & (cohort.client[cohort.cross_row] == receiver)).nonzero()[:, 0]


def _dense(rows: Any) -> Tensor:
    return torch.from_numpy(np.asarray(rows.todense() if sp.issparse(rows) else rows, dtype=np.float64))

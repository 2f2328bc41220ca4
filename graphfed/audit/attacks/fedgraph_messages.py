"""FedGraph: what clients get from each other in evaluations, and what it was made of, in a run made again.

Predictions on validation nodes are made with the weights that the server has just sent, with all
neighbours and without dropout. So whoever gets a row knows exactly by which weights it was made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphfed.audit.base import AuditedRun
from graphfed.audit.prepared_data import prepared_data
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.federation.transfer import Options
from graphfed.methods.base import State
from graphfed.methods.fedgraph.client_graphs import ClientGraph, Layer, aggregate, choose, transform, wants_of
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.methods.fedgraph.method import METHOD, Clients
from graphfed.nn.backbones import Weights
from graphfed.nn.sparse import SparseMatrix, ranges

__all__ = [
    "Opened",
    "Pairs",
    "Seen",
    "edges_to",
    "entering_rows",
    "features",
    "guesses",
    "opened",
    "overhear",
    "true_sums",
]


class _Listening(Federation):
    """All clients in one cohort; keeps what crosses between them in evaluations, by layer, each in the order
    of the receivers' wants."""

    def __init__(self, num_clients: int, device: str) -> None:
        super().__init__([tuple(range(num_clients))], device=device)
        self.heard: list[Tensor] = []

    def exchange(self, x: Located, route: ExchangeRoute, **options: Unpack[Options]) -> Located:
        rows = super().exchange(x, route, **options)
        if self.ledger.phase == "eval":
            self.heard.append(rows.parts[0].detach())
        return rows


@dataclass(frozen=True, eq=False)
class Opened:
    """A run after set-up: its places, its state and settings, and the rows and silos of all clients.

    receiver, node [M]: of each want, the client that has it, and the row of the node at its owner;
    crossing: of each layer that rows cross for in an evaluation, in order, which wants these are, ascending
    [m] (a layer of which none do is left out)."""

    fed: _Listening
    state: State
    config: FedGraphConfig
    cohort: Cohort
    silo: ClientGraph
    receiver: Tensor
    node: Tensor
    crossing: dict[int, Tensor]

    @property
    def layers(self) -> list[Layer]:
        """The sample that validation nodes are predicted with."""
        clients: Clients = self.state.prepared
        return [layer.parts[0] for layer, _ in clients.val.layers]


def opened(audited: AuditedRun) -> Opened:
    """Set-up as the run made it, except that weights are averaged in plaintext, which comes to the same."""
    config, inputs = audited.config, audited.inputs
    assert isinstance(config.training, FedGraphConfig)
    training = replace(config.training, aggregation=PLAINTEXT)
    fed = _Listening(inputs.clients_of(config.method), config.device)
    data, task = prepared_data(fed, config, inputs)
    with fed.phase("setup", round_number=0):
        state = config.method.setup(fed, data, task, training)
    clients: Clients = state.prepared
    cohort, silo = data.parts[0], clients.silo.parts[0]
    wants = wants_of(cohort)
    crossing = {}
    for number, (layer, route) in enumerate(clients.val.layers):
        if route is not None:
            _, wanted = choose(silo, layer.parts[0].out, None, training.sampler, number, True, 0)
            if bool(wanted.any()):
                crossing[number] = wanted.nonzero()[:, 0]
    # A node may be at several clients: its row at the one that is asked.
    ids, place = torch.unique(torch.cat([cohort.id, wants.ids]), return_inverse=True)
    held = cohort.client * len(ids) + place[: cohort.num_rows]
    order = held.argsort()
    at = torch.searchsorted(held[order], wants.owner * len(ids) + place[cohort.num_rows :])
    return Opened(fed, state, training, cohort, silo, wants.client, order[at], crossing)


@dataclass(frozen=True, eq=False)
class Pairs:
    """S receiving clients, each with one node elsewhere: receiver, node [S] (a row of the cohort)."""

    receiver: Tensor
    node: Tensor


@dataclass(frozen=True, eq=False)
class Seen:
    """What S clients get of one node each in T evaluations, rows [T, S, H] for one layer; weights: that all
    clients were sent for each; last: in the last one, the rows [m, H] of each layer that all clients get."""

    rows: Tensor
    weights: tuple[dict[str, Tensor], ...]
    last: dict[int, Tensor]


def overhear(again: Opened, layer: int, which: Tensor, rounds: Sequence[int]) -> Seen:
    """Train again and keep what crosses for a layer in the evaluations after `rounds`, ascending; which [S]:
    of the rows `crossing[layer]`."""
    state, config = again.state, again.config
    rows, weights = [], []
    last: dict[int, Tensor] = {}
    for number in range(1, rounds[-1] + 1):
        with again.fed.phase("train", round_number=number):
            state = METHOD.round(again.fed, state, config, number)
        if number not in rounds:
            continue
        again.fed.heard = []
        with again.fed.phase("eval"):
            METHOD.predict(again.fed, state, config, "val")
        # For a layer with no row the exchange is made all the same.
        sharing = [n for n in range(config.layers) if config.shares(n)]
        got = dict(zip(sharing, again.fed.heard, strict=True))
        if not all(bool(of_layer.isfinite().all()) for of_layer in got.values()):
            break  # training has diverged
        last = got
        rows.append(last[layer][which].double().cpu())
        weights.append({name: w.double().cpu() for name, w in state.weights.parts[0].items()})
    return Seen(torch.stack(rows), tuple(weights), last)


# ---- what the rows were made of, which receivers do not have -----------------------------------------------


def entering_rows(again: Opened, seen: Seen) -> dict[int, Tensor]:
    """What enters each layer from the second on in the last evaluation, [n_in, H] in the order of
    `Layer.rows`."""
    weights: Weights = {name: w.to(again.silo.scale) for name, w in seen.weights[-1].items()}
    h: Tensor | None = None
    entering = {}
    for number, layer in enumerate(again.layers):
        if h is not None:
            entering[number] = h
        hw = transform(again.silo, layer, weights, h, number, 0.0, None)
        last = number == again.config.layers - 1
        h = aggregate(again.silo, layer, hw, seen.last.get(number), weights, number, last)
    return entering


def features(cohort: Cohort) -> Any:
    """The features of all rows as the run used them, [N, F]: a scipy matrix, or an array."""
    if isinstance(cohort.x, SparseMatrix):
        return cohort.x.to_scipy()
    assert cohort.x is not None
    return cohort.x.cpu().numpy()


def first_adjacency(silo: ClientGraph) -> sp.csr_matrix:
    """Q(v, u) of the first layer over neighbours at the same client, themselves included, [N, N]."""
    entry = ranges(silo.starts, silo.inner)
    parts = (silo.first[entry].double(), silo.column[entry], torch.cat([silo.inner[:1] * 0, silo.inner]))
    values, columns, counts = (part.cpu().numpy() for part in parts)
    return sp.csr_matrix((values, columns, counts.cumsum()), shape=(silo.num_rows, silo.num_rows))


def true_sums(again: Opened, pairs: Pairs, *, own: bool) -> Tensor:
    """What the first layer adds up for each pair's node, [S, F]: its neighbours' features at its client,
    weighted by Q(u, v); own: only the node's own features, as they are."""
    at = pairs.node.cpu().numpy()
    x = features(again.cohort)
    return _dense(x[at] if own else first_adjacency(again.silo)[at] @ x)


def guesses(again: Opened, pairs: Pairs, *, own: bool) -> Tensor:
    """What each receiver takes `true_sums` for without any row, [S, F]: the mean of the same sums of its own
    nodes that are next to the node, and of those of all its nodes on average."""
    cohort, rows = again.cohort, []
    for receiver, node in zip(pairs.receiver.tolist(), pairs.node.tolist(), strict=True):
        near, mine = edges_to(cohort, receiver, node), (cohort.client == receiver).nonzero()[:, 0]
        weight = np.zeros(cohort.num_rows)
        np.add.at(weight, cohort.cross_row[near].cpu().numpy(), 1.0)
        weight[mine.cpu().numpy()] += 1 / len(mine)
        rows.append(sp.csr_matrix(weight / (len(near) + 1)))
    mixed = sp.vstack(rows).tocsr()
    return _dense(mixed @ features(cohort) if own else mixed @ first_adjacency(again.silo) @ features(cohort))


def edges_to(cohort: Cohort, receiver: int, node: int) -> Tensor:
    """The edges, of those that lead to other clients, from a receiver to one node."""
    owner, name = cohort.clients[int(cohort.client[node])], cohort.id[node]
    there = (cohort.cross_client == owner) & (cohort.cross_id == name)
    return (there & (cohort.client[cohort.cross_row] == receiver)).nonzero()[:, 0]


def _dense(rows: Any) -> Tensor:
    return torch.from_numpy(np.asarray(rows.todense() if sp.issparse(rows) else rows, dtype=np.float64))

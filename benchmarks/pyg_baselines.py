"""Plain PyG programs, written without graphfed: the baselines of the ratios.

They use dense features, `GCNConv` with cached normalisation, and the usual training loop. They start from
given weights, so that the benchmark can first assert that both sides compute the same."""

import copy
import time
from collections.abc import Callable, Mapping

import numpy as np
import scipy.sparse as sp
import torch
from measure import W1, Inputs
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout
from torch_geometric.nn import GCNConv

from graphfed.data.graphs.graph import Graph, Split

__all__ = ["GCN", "CentralLoop", "FederatedLoop"]


class GCN(torch.nn.Module):
    """Two GCN layers with dropout on their inputs; without it on the features if `input_dropout` is False."""

    def __init__(self, features: int, classes: int, p: float, input_dropout: bool) -> None:
        super().__init__()
        self.first = GCNConv(features, W1["hidden"], cached=True)
        self.second = GCNConv(W1["hidden"], classes, cached=True)
        self.p, self.input_dropout = p, input_dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.input_dropout:
            x = dropout(x, self.p, self.training)
        x = self.first(x, edge_index).relu()
        logits: Tensor = self.second(dropout(x, self.p, self.training), edge_index)
        return logits

    def graphfed_weights(self) -> dict[str, Tensor]:
        """Return the weights with graphfed's names and shapes."""
        return {
            name: value.detach().clone()
            for layer, conv in enumerate((self.first, self.second))
            for name, value in (
                (f"layers.{layer}.weight", conv.lin.weight.t()),
                (f"layers.{layer}.bias", conv.bias),
            )
        }

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Start from given weights, with graphfed's names and shapes."""
        with torch.no_grad():
            for layer, conv in enumerate((self.first, self.second)):
                conv.lin.weight.copy_(weights[f"layers.{layer}.weight"].t())
                conv.bias.copy_(weights[f"layers.{layer}.bias"])


def _dense(graph: Graph) -> Tensor:
    x = graph.x.toarray() if sp.issparse(graph.x) else np.asarray(graph.x)
    return torch.from_numpy(x).to(torch.get_default_dtype())


def _both_ways(edges: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([edges, edges[::-1]], axis=1))


class CentralLoop:
    """Full-batch training on the whole graph: one epoch is one step, without evaluation."""

    def __init__(self, graph: Graph, split: Split, *, p: float, input_dropout: bool, adam: bool) -> None:
        self.x, self.y = _dense(graph), torch.from_numpy(graph.y)
        self.edges = _both_ways(graph.edges)
        self.train = torch.from_numpy(split.train)
        self.model = GCN(graph.num_features, graph.num_classes, p, input_dropout)
        self.optimizer = (
            torch.optim.Adam(self.model.parameters(), lr=0.01, weight_decay=W1["weight_decay"])
            if adam
            else torch.optim.SGD(self.model.parameters(), lr=W1["lr"], weight_decay=W1["weight_decay"])
        )

    def epoch(self) -> None:
        """Do one step on all training nodes."""
        self.model.train()
        self.optimizer.zero_grad()
        cross_entropy(self.model(self.x, self.edges)[self.train], self.y[self.train]).backward()
        self.optimizer.step()

    def timed(self, epochs: int, warm_up: int) -> list[float]:
        """Return the milliseconds of every epoch after the warm-up."""
        return _timed(self.epoch, epochs, warm_up)


class FederatedLoop:
    """FedAvg as a loop over clients: each client trains on its own subgraph, then the server averages with
    the weights n_k and scores the validation nodes on the whole graph."""

    def __init__(self, inputs: Inputs, *, steps: int, p: float, input_dropout: bool) -> None:
        graph, split, client = inputs.graph, inputs.split, _assignment(inputs)
        x, y, train = _dense(graph), torch.from_numpy(graph.y), torch.from_numpy(split.train)
        place = np.zeros(graph.num_nodes, dtype=np.int64)
        inside = graph.edges[:, client[graph.edges[0]] == client[graph.edges[1]]]
        self.clients: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for k in range(inputs.partition.num_clients):
            nodes = np.flatnonzero(client == k)
            place[nodes] = np.arange(len(nodes))
            edges = _both_ways(place[inside[:, client[inside[0]] == k]])
            self.clients.append((x[nodes], edges, y[nodes], train[nodes]))
        self.x, self.y, self.edges = x, y, _both_ways(graph.edges)
        self.val = torch.from_numpy(split.val)
        self.steps = steps
        self.model = GCN(graph.num_features, graph.num_classes, p, input_dropout)
        self.locals = [copy.deepcopy(self.model) for _ in self.clients]

    def round(self) -> None:
        """Do one round: local training of every client, averaging, and scoring."""
        total = sum(int(train.sum()) for *_, train in self.clients)
        mean = {name: torch.zeros_like(w) for name, w in self.model.state_dict().items()}
        for model, (x, edges, y, train) in zip(self.locals, self.clients, strict=True):
            count = int(train.sum())
            if not count:
                continue
            model.load_state_dict(self.model.state_dict())
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=W1["lr"], weight_decay=W1["weight_decay"])
            for _ in range(self.steps):
                optimizer.zero_grad()
                cross_entropy(model(x, edges)[train], y[train]).backward()
                optimizer.step()
            for name, w in model.state_dict().items():
                mean[name] += count / total * w
        self.model.load_state_dict(mean)
        self.model.eval()
        with torch.no_grad():
            logits = self.model(self.x, self.edges)[self.val]
            self.accuracy = float((logits.argmax(1) == self.y[self.val]).double().mean())

    def timed(self, rounds: int, warm_up: int) -> list[float]:
        """Return the milliseconds of every round after the warm-up."""
        return _timed(self.round, rounds, warm_up)


def _assignment(inputs: Inputs) -> np.ndarray:
    """Return the client of every node, [N]."""
    client = np.empty(inputs.graph.num_nodes, dtype=np.int64)
    client[inputs.partition.held_node] = inputs.partition.held_client
    return client


def _timed(step: Callable[[], None], count: int, warm_up: int) -> list[float]:
    times = []
    for _ in range(warm_up + count):
        began = time.perf_counter()
        step()
        times.append((time.perf_counter() - began) * 1e3)
    return times[warm_up:]

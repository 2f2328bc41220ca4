"""FedGraph's Algorithms 1 to 3 in plain loops over clients, nodes and neighbours: dictionaries and dense
rows, none of the package's sparse code. Only the draws are the package's (graphfed.random)."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from worlds import World

from graphfed.federation.cohort import make_cohort
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.random import entry_words, fold, uniform, uniform_entries

Nodes = dict[int, set[int]]


@dataclass
class PlainLayer:
    """Of a sample: coefficient[k][v][u] of every neighbour that counts, the rows that enter[k] and wanted[k]
    from elsewhere."""

    coefficient: dict[int, dict[int, dict[int, float]]] = field(default_factory=dict)
    enter: Nodes = field(default_factory=dict)
    wanted: Nodes = field(default_factory=dict)


class Plain:
    """A world as its clients know it."""

    def __init__(self, world: World, config: FedGraphConfig) -> None:
        self.config, self.clients = config, range(world.clients)
        self.held: Nodes = {}
        self.x: dict[int, Tensor] = {}
        self.y: dict[int, int] = {}
        self.train: dict[int, list[int]] = {}
        self.inner: dict[int, dict[int, float]] = {}  # by node: its neighbours at its client, with weights
        self.outer: dict[int, dict[int, float]] = {}
        self.owner: dict[int, int] = {}
        for k in self.clients:
            c = make_cohort(world.graph, world.split, world.partition, [k])
            ids, x = c.id.tolist(), c.x if isinstance(c.x, Tensor) else c.x.to_dense()
            self.held[k] = set(ids)
            self.train[k] = c.id[c.train].tolist()
            for row, v in enumerate(ids):
                self.x[v], self.y[v], self.owner[v] = x[row], int(c.y[row]), k
                self.inner[v], self.outer[v] = {}, {}
            inside = [1.0] * c.edge_index.shape[1] if c.edge_weight is None else c.edge_weight.tolist()
            for (u, v), w in zip(c.edge_index.t().tolist(), inside, strict=True):
                self.inner[ids[v]][ids[u]] = w
            across = [1.0] * len(c.cross_row) if c.cross_weight is None else c.cross_weight.tolist()
            for v, u, w in zip(c.cross_row.tolist(), c.cross_id.tolist(), across, strict=True):
                self.outer[ids[v]][u] = w

    def degree(self, v: int, outer: bool = True) -> float:
        """With the self loop."""
        return 1 + sum(self.inner[v].values()) + (sum(self.outer[v].values()) if outer else 0)

    def sample(self, out: Nodes, decision: dict[int, list[float]] | None, key: int) -> list[PlainLayer]:
        layers: list[PlainLayer] = []
        for number in reversed(range(self.config.network.layers)):
            shares = self.config.sharing.sends_embeddings(number)
            layer = PlainLayer({}, {k: set() for k in self.clients}, {k: set() for k in self.clients})
            for k in self.clients:
                layer.coefficient[k] = {}
                if self.config.sampling.policy == "fastgcn" and decision is not None:
                    self.importance_layer(layer, k, out[k], shares, int(decision[k][1 + number]), key, number)
                    continue
                for v in out[k]:
                    kept = self.kept(
                        v, shares, None if decision is None else decision[k][1 + number], key, number
                    )
                    layer.coefficient[k][v] = {
                        u: factor * self.q(v, u, number) for u, factor in {v: 1.0, **kept}.items()
                    }
                    layer.enter[k] |= {v} | {u for u in kept if u in self.held[k]}
                    layer.wanted[k] |= {u for u in kept if u not in self.held[k]}
            for k in self.clients:
                for u in layer.wanted[k]:
                    layer.enter[self.owner[u]].add(u)
            layers.insert(0, layer)
            out = layer.enter
        return layers

    def importance_layer(
        self, layer: PlainLayer, k: int, out: set[int], shares: bool, draws: int, key: int, number: int
    ) -> None:
        """FastGCN: nodes of the layer are drawn, with replacement, in proportion to the sum of Q(v, u)^2
        over the client's own v; an edge to u weighs Q times how often u was drawn over its expectation."""
        wants = {u for v in self.held[k] for u in self.outer[v]} if shares else set()
        mass = {}
        for u in [*sorted(self.held[k]), *sorted(wants, key=lambda u: (self.owner[u], u))]:
            neighbours = [
                v for v in self.held[k] if u == v or u in self.inner[v] or (u in wants and u in self.outer[v])
            ]
            if u in wants:  # nobody knows its degree here: its edges to own rows stand for it
                q = [self.outer[v][u] / (self.degree(v) * (len(neighbours) + 1)) ** 0.5 for v in neighbours]
            else:
                q = [self.q(v, u, number) for v in neighbours]
            mass[u] = sum(x**2 for x in q)
        total, so_far, ends = sum(mass.values()), 0.0, []
        for u, weight in mass.items():
            so_far += weight / total
            ends.append((so_far, u))
        drawn: list[int] = []
        for at in uniform(fold(key, number), torch.tensor([k]), draws)[0].tolist():
            drawn.append(next(u for end, u in ends if at < end))
        for v in out:
            layer.coefficient[k][v] = {}
            for u in {v, *self.inner[v], *(self.outer[v] if shares else ())}:
                if u in drawn:
                    expected = draws * mass[u] / total
                    layer.coefficient[k][v][u] = self.q(v, u, number) * drawn.count(u) / expected
                    (layer.enter if u in self.held[k] else layer.wanted)[k].add(u)

    def kept(self, v: int, shares: bool, amount: float | None, key: int, number: int) -> dict[int, float]:
        """The neighbours that are kept, with their factors."""
        neighbours = sorted({**self.inner[v], **(self.outer[v] if shares else {})})
        if amount is None or not neighbours:
            return dict.fromkeys(neighbours, 1.0)
        words = entry_words(torch.tensor([v] * len(neighbours)), torch.tensor(neighbours))
        draws = dict(zip(neighbours, uniform_entries(fold(key, number), words).tolist(), strict=True))
        if self.config.sampling.policy == "graphsage":
            chosen = sorted(neighbours, key=draws.__getitem__)[: int(amount)]
        else:
            chosen = [u for u in neighbours if draws[u] < amount]
        if self.config.sampling.estimator == "horvitz_thompson":
            return dict.fromkeys(chosen, 1 / amount)
        return {u: len(neighbours) / len(chosen) for u in chosen}

    def q(self, v: int, u: int, number: int) -> float:
        weight = 1.0 if u == v else {**self.inner[v], **self.outer[v]}[u]
        inner_only = self.config.sharing.sent_embeddings == "none" or (
            number == 0
            and self.config.sharing.first_degrees == "internal"
            and self.config.sharing.sent_embeddings != "all"
        )
        return weight / (self.degree(v, not inner_only) * self.degree(u, not inner_only)) ** 0.5

    def forward(
        self,
        layers: list[PlainLayer],
        weights: dict[int, dict[str, Tensor]],
        received: dict[tuple[int, int], Tensor],
    ) -> dict[int, dict[int, Tensor]]:
        """Every client's logits of its rows, by node; received: rows sent before, by layer and node, to
        which those of now are added."""
        h = {k: {v: self.x[v] for v in layers[0].enter[k]} for k in self.clients}
        for number, layer in enumerate(layers):
            hw = {
                k: {v: row @ weights[k][f"layers.{number}.weight"] for v, row in h[k].items()}
                for k in self.clients
            }
            h = {}
            for k in self.clients:
                h[k] = {}
                for v, neighbours in layer.coefficient[k].items():
                    z = weights[k][f"layers.{number}.bias"]
                    for u, q in neighbours.items():
                        if u in self.held[k]:
                            z = z + q * hw[k][u]
                        else:
                            z = z + q * received.setdefault((number, u), hw[self.owner[u]][u].detach())
                    h[k][v] = z if number == len(layers) - 1 else z.relu()
        return h

    def batch(self, k: int, size: int, key: int) -> set[int]:
        draw = uniform(fold(key, "batch"), torch.tensor(self.train[k], dtype=torch.int64))[:, 0].tolist()
        order = sorted(range(len(draw)), key=draw.__getitem__)
        return {self.train[k][i] for i in order[:size]}


def train(
    world: World,
    config: FedGraphConfig,
    decision: dict[int, list[float]],
    shared: dict[str, Tensor],
    rounds: int,
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Rounds of SGD with one decision, at the clients or (`at_server`) one step a round of PyTorch's
    optimiser on the mean gradient: the last weights, and the ids and numbers sent between clients."""
    plain, training = Plain(world, config), config.training
    central = {name: w.detach().clone().requires_grad_() for name, w in shared.items()}
    rule = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[training.optimizer]
    optimizer = rule(list(central.values()), lr=training.lr, weight_decay=training.weight_decay)
    sent = {"ids": 0, "numbers": 0, "first": 0}
    for number in range(1, rounds + 1):
        weights: dict[int, dict[str, Any]] = {k: dict(shared) for k in plain.clients}
        raw = {k: {name: torch.zeros_like(w) for name, w in shared.items()} for k in plain.clients}
        layers: list[PlainLayer] = []
        received: dict[tuple[int, int], Tensor] = {}
        for step in range(config.steps.local_steps):
            if not layers or config.sharing.refresh == "step":
                key = fold(config.run.seed, "fedgraph", number, step)
                out = {k: plain.batch(k, int(decision[k][0]), key) for k in plain.clients}
                layers, received = plain.sample(out, decision, key), {}
                for depth, layer in enumerate(layers):
                    ids = sum(len(wanted) for wanted in layer.wanted.values())
                    sent["ids"] += ids
                    width = shared[f"layers.{depth}.bias"].numel()
                    sent["numbers" if depth else "first"] += ids * width
            weights = {
                k: {name: w.detach().requires_grad_() for name, w in own.items()}
                for k, own in weights.items()
            }
            logits = plain.forward(layers, weights, received)
            for k, rows in logits.items():
                if not rows:
                    continue
                nodes = sorted(rows)
                y = torch.tensor([plain.y[v] for v in nodes])
                loss = cross_entropy(torch.stack([rows[v] for v in nodes]), y)
                own = weights[k]
                gradients = torch.autograd.grad(
                    loss, list(own.values()), allow_unused=True, materialize_grads=True
                )
                raw[k] = dict(zip(own, gradients, strict=True))
                weights[k] = {
                    name: (w - training.lr * (raw[k][name] + training.weight_decay * w)).detach()
                    for name, w in own.items()
                }
        total = sum(decision[k][0] for k in plain.clients)
        if config.at_server():
            for name, w in central.items():
                w.grad = sum(decision[k][0] / total * raw[k][name] for k in plain.clients)
            optimizer.step()
            shared = {name: w.detach().clone() for name, w in central.items()}
            continue
        shared = {
            name: sum(decision[k][0] / total * weights[k][name].detach() for k in plain.clients)
            for name in shared
        }
    return shared, sent

"""CNFGNN's Algorithms 1 and 2, split learning and central training in plain loops over sensors and batches,
with PyTorch's optimisers, one for each sensor. The recurrent and graph networks, and the draws, are the
package's (tests/nn, tests/test_random.py)."""

import math
from typing import Any

import torch
from torch import Tensor

from graphfed.methods.cnfgnn import steps
from graphfed.methods.common.forecasting import Standardised, batch_of, decode, encode
from graphfed.methods.parts import Training
from graphfed.nn.edges import Edges
from graphfed.nn.gru import draw_teacher_forcing, inverse_sigmoid_decay
from graphfed.random import fold, permutation

Weights = dict[str, Tensor]


def leaves(weights: Weights) -> Weights:
    return {name: w.detach().clone().requires_grad_() for name, w in weights.items()}


def optimizer_of(weights: Weights, training: Training, lr: float | None = None) -> torch.optim.Optimizer:
    rule = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[training.optimizer]
    return rule(list(weights.values()), lr=lr or training.lr, weight_decay=training.weight_decay)


class Plain:
    """All sensors, each with weights and an optimiser of its own, and the server's graph network."""

    def __init__(self, series: Standardised, edges: Edges, config: Any) -> None:
        self.series, self.edges, self.config = series, edges, config
        self.clients = range(series.num_clients)
        self.starts = series.starts("train")
        first = steps.first_weights(config, "cpu")
        self.own = [leaves(first) for _ in self.clients]
        self.optimizers = [optimizer_of(own, config.training) for own in self.own]
        self.network = leaves(steps.first_network(config, "cpu"))
        self.server_optimizer = optimizer_of(self.network, config.training, config.server_network.server_lr)
        self.embeddings = torch.zeros(len(self.clients), len(self.starts), config.recurrent.hidden)
        self.steps = {"clients": 0, "server": 0}
        batches, server_batches = (
            math.ceil(len(self.starts) / s)
            for s in (config.sequences.batch, config.server_network.server_batch)
        )
        rounds, schedule = config.run.rounds, config.schedule
        together = schedule.strategy not in ("at_fedavg", "at")
        #: The steps of the whole run.
        self.planned = {
            "clients": rounds * batches * (1 if together else schedule.local_epochs),
            "server": rounds * (batches if together else server_batches * schedule.server_rounds),
        }

    def batch(self, k: int, chosen: Tensor) -> Any:
        return batch_of(self.series, self.starts[chosen]).of(slice(k, k + 1))

    def hidden(self, k: int, chosen: Tensor) -> Tensor:
        return encode({name: w[None] for name, w in self.own[k].items()}, self.batch(k, chosen))[0]

    def loss(self, k: int, chosen: Tensor, hidden: Tensor, embedded: Tensor, purpose: str) -> Tensor:
        sequences, batch = self.config.sequences, self.batch(k, chosen)
        teach = None
        if sequences.teacher or sequences.teacher_fraction:
            key, step = fold(self.config.run.seed, "teacher", purpose), self.steps[purpose]
            if sequences.teacher_fraction:
                probability = max(0, 1 - step / (sequences.teacher_fraction * self.planned[purpose]))
            else:
                probability = inverse_sigmoid_decay(step, sequences.teacher)
            teach = draw_teacher_forcing(key, step, self.config.windows.horizon, probability)
        own = {name: w[None] for name, w in self.own[k].items()}
        outputs = decode(own, batch, torch.cat([hidden, embedded], -1)[None], teach)
        errors = (outputs - batch.truth)[batch.weight == 1]
        return errors.square().sum() / max(1, len(errors))

    def batches(self, size: int, *purpose: str | int) -> list[Tensor]:
        order = permutation(fold(self.config.run.seed, *purpose), len(self.starts))
        return list(order.split(size))

    def embed(self, hidden: list[Tensor], chosen: Tensor) -> Tensor:
        senders = None
        if self.config.recurrent.missing_mask:
            missing = torch.cat([self.batch(k, chosen).x[..., 2] for k in self.clients])
            senders = (missing == 0).any(-1)
        return steps.embed(self.network, torch.stack(hidden), self.edges, self.config, senders)

    def average(self) -> None:
        if self.config.schedule.strategy in ("at_fedavg", "sl_fedavg"):
            for name in self.own[0]:
                mean = torch.stack([own[name].detach() for own in self.own]).mean(0)
                for own in self.own:
                    own[name].data.copy_(mean)

    def step_server(self, losses: list[Tensor]) -> None:
        self.server_optimizer.zero_grad()
        (sum(losses) / len(losses)).backward()
        self.server_optimizer.step()

    def round(self, number: int) -> None:
        strategy = self.config.schedule.strategy
        if self.config.client_optimizer.client_state == "reset" and strategy != "centralised":
            self.optimizers = [optimizer_of(own, self.config.training) for own in self.own]
        (self.alternate if strategy in ("at_fedavg", "at") else self.together)(number)

    def alternate(self, number: int) -> None:
        config, before, schedule = self.config, self.steps["clients"], self.config.schedule
        for k in self.clients:
            self.steps["clients"] = before
            for epoch in range(schedule.local_epochs):
                for chosen in self.batches(config.sequences.batch, "windows", number, epoch):
                    embedded = self.embeddings[k, chosen]
                    self.optimizers[k].zero_grad()
                    self.loss(k, chosen, self.hidden(k, chosen), embedded, "clients").backward()
                    self.optimizers[k].step()
                    self.steps["clients"] += 1
        self.average()
        every = torch.arange(len(self.starts))
        hidden = [self.hidden(k, every).detach() for k in self.clients]
        for epoch in range(schedule.server_rounds):
            for chosen in self.batches(config.server_network.server_batch, "server windows", number, epoch):
                embedded = self.embed([h[chosen] for h in hidden], chosen)
                self.step_server(
                    [self.loss(k, chosen, hidden[k][chosen], embedded[k], "server") for k in self.clients]
                )
                self.steps["server"] += 1
        self.embeddings = self.embed(hidden, every).detach()

    def together(self, number: int) -> None:
        """Split learning; or central training, where one set of weights steps down the mean loss."""
        central = self.config.schedule.strategy == "centralised"
        purpose = "clients" if central else "server"
        for chosen in self.batches(self.config.sequences.batch, "windows", number, 0):
            hidden = [self.hidden(k, chosen) for k in self.clients]
            embedded = self.embed(hidden, chosen)
            losses = [self.loss(k, chosen, hidden[k], embedded[k], purpose) for k in self.clients]
            self.optimizers[0].zero_grad()
            for own in self.own:
                for w in own.values():
                    w.grad = None
            self.step_server(losses)
            if central:  # every copy of the weights has a part of the gradient
                for name in self.own[0]:
                    total = sum(own[name].grad for own in self.own)
                    for own in self.own:
                        own[name].grad = total
            else:  # what a sensor's own weights do to the sum of all losses, not to the mean
                for own in self.own:
                    for w in own.values():
                        w.grad *= len(self.own)
            for optimizer in self.optimizers:
                optimizer.step()
            self.steps[purpose] += 1
        if not central:
            self.average()

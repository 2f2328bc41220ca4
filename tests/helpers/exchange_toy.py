"""A toy shaped like FedGraph: hidden rows of neighbours elsewhere cross by `exchange` before the second
layer, and gradients cross back. One full-batch SGD step of the shared weights per round, so it computes what
central GCN training computes except that the first layer lacks cross-client edges."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import as_leaves
from graphfed.federation.route import ExchangeIds
from graphfed.methods.base import Method, Sent, State, Task
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.parts import Inputs, Loss, Network, Run, Selection, Steps, Training
from graphfed.methods.settings import settings
from graphfed.nn.sparse import SparseMatrix, spmm

Weights = dict[str, Tensor]


@settings
class ToyConfig:
    """The settings of the toys."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    steps: Steps = Steps()


@dataclass(frozen=True)
class Graphs:
    """adjacency of layer 1 [N, N] (internal) and of layer 2 [N, N + C] (own rows, then the rows that were
    exchanged)."""

    first: SparseMatrix
    second: SparseMatrix


def graphs(cohort: Cohort) -> Graphs:
    n, c = cohort.num_rows, len(cohort.cross_row)
    degree = (cohort.degree(with_cross=True) + 1).to(torch.get_default_dtype())
    own = torch.arange(n)
    to, source = torch.cat([cohort.edge_index[1], own]), torch.cat([cohort.edge_index[0], own])
    inside = (degree[to] * degree[source]).rsqrt()
    across = degree[cohort.cross_row].rsqrt()
    if cohort.edge_weight is not None and cohort.cross_weight is not None:
        inside[: len(cohort.edge_weight)] *= cohort.edge_weight
        across = across * cohort.cross_weight
    first = SparseMatrix.from_coo(to, source, inside, (n, n))
    # The owner scales what it sends by its own degree, so the receiver needs only the degree of its own
    # node.
    second = SparseMatrix.from_coo(
        torch.cat([to, cohort.cross_row]),
        torch.cat([source, n + torch.arange(c)]),
        torch.cat([inside, across]),
        (n, n + c),
    )
    return Graphs(first, second)


def wants(cohort: Cohort) -> ExchangeIds:
    return ExchangeIds(
        cohort.cross_client, cohort.cross_id, cohort.client[cohort.cross_row], cohort.id, cohort.client
    )


def count(cohort: Cohort) -> Tensor:
    return cohort.train.sum()


def hidden(cohort: Cohort, graph: Graphs, w: Weights) -> Tensor:
    x = cohort.x
    z = spmm(x, w["layers.0.weight"]) if isinstance(x, SparseMatrix) else x @ w["layers.0.weight"]
    return (spmm(graph.first, z) + w["layers.0.bias"]).relu()


def outgoing(cohort: Cohort, h: Tensor, w: Weights) -> Tensor:
    scale = (cohort.degree(with_cross=True) + 1).to(h.dtype).rsqrt()
    return (h @ w["layers.1.weight"]) * scale[:, None]


def logits(h: Tensor, remote: Tensor, graph: Graphs, w: Weights) -> Tensor:
    return spmm(graph.second, torch.cat([h @ w["layers.1.weight"], remote])) + w["layers.1.bias"]


def loss(cohort: Cohort, out: Tensor, n: Tensor) -> Tensor:
    return cross_entropy(out[cohort.train], cohort.y[cohort.train], reduction="sum") / n.clamp(min=1)


def step(weights: Weights, gradients: Weights, lr: float, weight_decay: float) -> Weights:
    return {k: w.detach() - lr * (gradients[k] + weight_decay * w.detach()) for k, w in weights.items()}


def rows_of(cohort: Cohort, out: Tensor, target: str) -> Tensor:
    return out[cohort.rows(target)]


def setup(fed: Federation, data: Located, task: Task, config: ToyConfig) -> State:
    graph = fed.clients.run(graphs, data)
    route = fed.exchange_route(fed.clients.run(wants, data), name="toy/wanted_ids")
    total = fed.sum(fed.clients.run(count, data), name="toy/training_count", grad=False)
    total = fed.broadcast(total, name="toy/training_total", grad=False, like=TensorForm(torch.int64))
    fed.expect("model", initial_weights, task, config.network, config.run.seed, "cpu")
    weights = fed.server.run(initial_weights, task, config.network, config.run.seed, str(fed.device))
    return State({"weights": weights}, (data, graph, route, total))


def forward(fed: Federation, state: State, weights: Located) -> Located:
    data, graph, route, _ = state.prepared
    h = fed.clients.run(hidden, data, graph, weights)
    remote = fed.exchange(fed.clients.run(outgoing, data, h, weights), route, name="toy/embeddings")
    return fed.clients.run(logits, h, remote, graph, weights)


def round(fed: Federation, state: State, config: ToyConfig, number: int) -> State:
    with fed.tape():
        weights = fed.server.run(as_leaves, state.weights)
        out = forward(fed, state, fed.broadcast(weights, name="model"))
        data, *_, total = state.prepared
        fed.backward(fed.clients.run(loss, data, out, total))
    lr, weight_decay = config.training.lr, config.training.weight_decay
    new = fed.server.run(step, weights, fed.gradients(weights), lr, weight_decay)
    return replace(state, values={"weights": new})


def predict(fed: Federation, state: State, config: ToyConfig, target: str) -> Located:
    out = forward(fed, state, fed.broadcast(state.weights, name="model", grad=False))
    return fed.clients.run(rows_of, state.prepared[0], out, target)


METHOD = Method(
    name="exchange_toy",
    summary="two-layer GCN whose hidden rows cross between clients",
    config=ToyConfig,
    setup=setup,
    round=round,
    predict=predict,
    sends=Sent(
        messages={
            "toy/wanted_ids": "Ids of neighbours.",
            "toy/training_count": "A number.",
            "toy/training_total": "A number.",
            "toy/embeddings": "Hidden rows of neighbours.",
            "toy/embeddings/grad": "Their gradients.",
            "model": "Weights.",
            "model/grad": "Their gradients.",
        }
    ),
    defaults={"dropout": 0.0},
)

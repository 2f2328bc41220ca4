"""A toy that predicts links between clients: every round changes the weight of each feature, and a pair's
score is the weighted product of both nodes' features, which cross where the other node is elsewhere."""

import torch
from exchange_toy import ToyConfig
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import ExchangeIds
from graphfed.methods.base import Method, Sent, State, Task
from graphfed.methods.tasks import LINK_PREDICTION
from graphfed.random import fold, uniform


def away(cohort: Cohort) -> Tensor:
    """Which pairs have their other node at another client, [L] bool."""
    assert cohort.links is not None
    return cohort.links.client != torch.tensor(cohort.clients)[cohort.client[cohort.links.row]]


def wants(cohort: Cohort) -> ExchangeIds:
    links, remote = cohort.links, away(cohort)
    assert links is not None
    return ExchangeIds(
        links.client[remote], links.id[remote], cohort.client[links.row[remote]], cohort.id, cohort.client
    )


def features(cohort: Cohort) -> Tensor:
    assert isinstance(cohort.x, Tensor)
    return cohort.x


def first_weights(task: Task) -> Tensor:
    assert task.name == LINK_PREDICTION
    return torch.zeros(task.num_features)


def move(weights: Tensor, config: ToyConfig, number: int) -> Tensor:
    drawn = uniform(fold(config.run.seed, "toy", number), torch.arange(len(weights)))[:, 0]
    return weights + config.training.lr * (drawn - 0.3)


def products(cohort: Cohort, remote: Tensor, weights: Tensor, target: str) -> Tensor:
    links, x = cohort.links, features(cohort)
    assert links is not None
    other = x.new_zeros(len(links.row), x.shape[1])
    elsewhere = away(cohort)
    other[elsewhere] = remote
    # A client's own rows are sorted by (client, id).
    width = int(torch.cat([cohort.id, links.id]).max()) + 1 if len(links.id) else 1
    code = cohort.client[links.row] * width + links.id
    other[~elsewhere] = x[torch.searchsorted(cohort.client * width + cohort.id, code[~elsewhere])]
    return (x[links.row] * weights * other).sum(1)[cohort.pairs(target)]


def setup(fed: Federation, data: Located, task: Task, config: ToyConfig) -> State:
    route = fed.exchange_route(fed.clients.run(wants, data), name="toy/ends")
    return State({"weights": fed.server.run(first_weights, task)}, (data, route))


def round(fed: Federation, state: State, config: ToyConfig, number: int) -> State:
    return State({"weights": fed.server.run(move, state.weights, config, number)}, state.prepared)


def predict(fed: Federation, state: State, config: ToyConfig, target: str) -> Located:
    data, route = state.prepared
    remote = fed.exchange(fed.clients.run(features, data), route, name="toy/features", grad=False)
    weights = fed.broadcast(state.weights, name="toy/weights", grad=False)
    scores: Located = fed.clients.run(products, data, remote, weights, target)
    return scores


METHOD = Method(
    name="link_toy",
    summary="products of features, weighted",
    config=ToyConfig,
    tasks=(LINK_PREDICTION,),
    setup=setup,
    round=round,
    predict=predict,
    sends=Sent(messages={"toy/ends": "Ids.", "toy/features": "Features.", "toy/weights": "Weights."}),
)

"""FedAvg: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of deep
networks from decentralized data", AISTATS 2017 (arXiv:1602.05629v4), on graphs whose cross-client edges are
dropped.

    paper        here
    w_t          State.weights, at the server
    n_k          counts: training vertices of client k, at the server
    E            local_steps (one batch: the client's whole graph)
    C            fraction

Differs from the paper: full-batch steps instead of epochs of mini-batches; clients without training vertices
have weight 0."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.methods import averaging
from graphfed.methods.averaging import AveragingConfig
from graphfed.methods.base import Method, State, Task, clients_in_round
from graphfed.methods.training import (
    Prepared,
    initial_weights,
    own_view,
    predict_shared,
    prepare,
    train_from_shared,
)

__all__ = ["MESSAGES", "METHOD", "Clients", "average_local_training", "predict", "round", "setup", "start"]


@dataclass(frozen=True)
class Clients:
    """What averaging methods know of their clients: `Prepared` at the clients, counts [K] at the server.

    exchange(fed, prepared, received, config): where clients need something of each other for the weights that
    all have just received, `prepared` with it."""

    prepared: Located
    counts: Located
    exchange: Callable[[Federation, Located, Located, Any], Located] | None = None

    def ready(self, fed: Federation, received: Located, config: AveragingConfig) -> Located:
        """`Prepared` for these weights."""
        return self.prepared if self.exchange is None else self.exchange(fed, self.prepared, received, config)


def prepare_own(cohort: Cohort, config: AveragingConfig) -> Prepared:
    """Batches on every client's own subgraph."""
    return prepare(cohort, own_view(cohort), None, config, personal=False)


def count_training(prepared: Prepared) -> Tensor:
    return prepared.counts


def check_counts(counts: Tensor) -> Tensor:
    if not bool(counts.any()):
        raise InputError("no client has a training vertex; use another split or partition")
    return counts


def no_state(prepared: Prepared) -> dict[str, dict[str, Tensor]]:
    return {}


def start(fed: Federation, prepared: Located, task: Task, config: AveragingConfig) -> State:
    """First weights at the server, and how much each client weighs."""
    counts = fed.gather(fed.clients.run(count_training, prepared), name="training_counts", grad=False)
    counts = fed.server.run(check_counts, counts)
    return State(
        values={
            "weights": fed.server.run(initial_weights, task, config, str(fed.device)),
            "optimizer": fed.clients.run(no_state, prepared),
        },
        prepared=Clients(prepared, counts),
    )


def setup(fed: Federation, data: Located, task: Task, config: AveragingConfig) -> State:
    averaging.check_aggregation(config.aggregation, clients_in_round(config.fraction, fed.num_clients))
    return start(fed, fed.clients.run(prepare_own, data, config), task, config)


def average_local_training(
    fed: Federation, state: State, config: AveragingConfig, number: int, proximal: float = 0.0
) -> tuple[Located, Located]:
    """Broadcast, train locally, average by n_k: the mean weights at the server and the clients' optimiser
    state."""
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    local, optimizer = fed.clients.run(
        train_from_shared,
        clients.ready(fed, received, config),
        received,
        state.values["optimizer"],
        fed.present(),
        config,
        number,
        proximal,
        outputs=2,
    )
    # w_{t+1} = sum_k (n_k / n) w_k over the clients that take part; w_t where none of them has a training
    # vertex
    counts = fed.clients.run(count_training, clients.prepared)
    mean = averaging.average(
        fed, local, counts, clients.counts, state.weights, config.aggregation, name="update"
    )
    return mean, fed.keep_absent(optimizer, state.values["optimizer"])


def round(fed: Federation, state: State, config: AveragingConfig, number: int) -> State:
    weights, optimizer = average_local_training(fed, state, config, number)
    return State({"weights": weights, "optimizer": optimizer}, state.prepared)


def predict(fed: Federation, state: State, config: AveragingConfig, target: str) -> Located:
    """Each client's own subgraph and the server's current weights."""
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    prepared = clients.ready(fed, received, config)
    logits: Located = fed.clients.run(predict_shared, prepared, received, config, target)
    return logits


#: Shared by every method that averages.
MESSAGES = {
    "training_counts": "How many training vertices each site has: one number, which the server reads.",
    "model": "The shared model's weights, from the server to every site.",
    "update": "Only with aggregation=clear: each site's model weights after local training, which the "
    "server averages by the number of training vertices. The server reads each site's weights; from weights, "
    "features and labels of training vertices can in part be inferred.",
    **averaging.MESSAGES,
}

METHOD = Method(
    name="fedavg",
    summary="weights averaged every round, cross-client edges dropped",
    paper="McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-efficient learning of deep "
    "networks from decentralized data. AISTATS 2017, arXiv:1602.05629",
    crosses="weights, every round",
    protection=averaging.PROTECTION,
    config=AveragingConfig,
    setup=setup,
    round=round,
    predict=predict,
    messages=MESSAGES,
    dropouts=True,
    shared_model=True,
)

"""Federated multi-task learning of recurrent forecasters on the road graph: the baseline "GRU + FMTL" of
CNFGNN (Meng, Rambhatla and Liu, KDD 2021, Eq. 4 and 5, Table 7), after Smith, Chiang, Sanjabi and Talwalkar,
"Federated multi-task learning", NeurIPS 2017.

    paper                 here
    w_i                   weights: one set for each client
    alpha_ij = A_ij       Neighbours.alpha: a client's row of the adjacency, without its own entry
    lambda_1              coupling

Every client minimises its own loss plus a penalty on the distance between its weights and those that its
neighbours had at the start of the round. Neighbours send each other their weights in every round: as many
numbers as a client has weights, over every directed edge (Eq. 6).

Differs from the paper: Eq. (4) prints lambda tr(W Omega W^T), which Eq. (5) writes as a sum of alpha_ij <w_i,
w_i - w_j>. For a symmetric A both are half the sum of alpha_ij ||w_i - w_j||^2; for the directed A that is
used they are not, and have no minimum at equal weights. Here each client adds lambda sum_j alpha_ij ||w_i -
w_j||^2, whose gradient is that of Eq. (5) if A is symmetric. penalty=norm takes the distance itself, as the
authors' program does with lambda 0.01 and 5 local epochs; the paper prints 0.1 and no number of epochs.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.route import ExchangeIds, ExchangeRoute
from graphfed.federation.series import Network, SensorData, Series
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.common import forecasting
from graphfed.methods.common.forecasting import Standardised, Weights
from graphfed.methods.common.sizes import SeriesExtent, num_moments, recurrent_numbers
from graphfed.methods.forecasters import recurrent
from graphfed.methods.forecasters.recurrent import Passes
from graphfed.methods.parts import (
    ClientOptimizer,
    Protocols,
    Recurrent,
    Run,
    Sequences,
    Sums,
    Training,
    Windows,
    keeps_client_state,
)
from graphfed.methods.settings import settings
from graphfed.methods.tasks import FORECASTING
from graphfed.nn.optim import AdamState

#: Bytes that neighbours' weights may take in one process (penalty=norm).
MAX_BYTES = 4 * 2**30


@settings
class Penalty:
    """The penalty on the weights of neighbours."""

    coupling: float = Field(
        default=0.1, ge=0, allow_inf_nan=False, description="weight of the penalty (lambda_1)"
    )
    penalty: Literal["squared", "norm"] = Field(
        default="squared",
        description="the penalty on neighbours' weights: their squared distance, or their distance",
    )


@settings
class FmtlConfig:
    """The settings of federated multi-task learning."""

    run: Run = Run()
    training: Training = Training()
    client_optimizer: ClientOptimizer = ClientOptimizer()
    protocols: Protocols = Protocols()
    sums: Sums = Sums()
    windows: Windows = Windows()
    recurrent: Recurrent = Recurrent()
    sequences: Sequences = Sequences()
    passes: Passes = Passes()
    penalty: Penalty = Penalty()


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The edges that leave a cohort's clients, in the order in which the weights of their ends arrive.

    Attributes:
        client: [M] client of each edge, as an index in the cohort.
        alpha: [M] alpha_ij.
    """

    client: Tensor
    alpha: Tensor


@dataclass(frozen=True)
class Prepared:
    """What set-up prepares.

    Attributes:
        training: At the clients: the `Standardised` series.
        neighbours: At the clients: `Neighbours`.
        names: Names of the parts of the weights.
    """

    data: SensorData
    training: Located
    neighbours: Located
    route: ExchangeRoute
    names: tuple[str, ...]


def adjacency_rows(network: Network) -> Tensor:
    """Return the adjacency without self-loops, [S, S], a row for each client."""
    edges = network.edges
    rows = torch.zeros(edges.num_nodes, edges.num_nodes, device=edges.weight.device)
    rows[edges.sender, edges.receiver] = edges.weight.to(rows.dtype)
    # A client's distance to itself is 0.
    return rows.fill_diagonal_(0)


def outgoing_edges(rows: Tensor, config: FmtlConfig) -> Neighbours:
    """List the edges that leave the clients; InputError if the weights of their ends would take too much
    memory.
    """
    client, other = rows.nonzero(as_tuple=True)
    drawn = recurrent.first_forecaster(config.recurrent, config.run.seed, "cpu")
    weights = sum(w.numel() for w in drawn.values())
    size = weights * len(client) * torch.get_default_dtype().itemsize
    # The squared penalty needs only a weighted sum of the neighbours' weights (`sum_of_neighbours`).
    if config.penalty.penalty == "norm" and size > MAX_BYTES:
        raise InputError(
            f"penalty=norm stores the {weights} weights of {len(client)} neighbours, {size / 2**30:.1f} GiB, "
            f"more than the {MAX_BYTES / 2**30:.0f} GiB allowed in a process; use penalty=squared, a smaller "
            "network or fewer sensors in a process"
        )
    return Neighbours(client, rows[client, other])


def neighbour_ids(series: Series, rows: Tensor) -> ExchangeIds:
    """List the neighbours whose weights each client asks for; a client has one row, with its own id."""
    client, other = rows.nonzero(as_tuple=True)
    ids = torch.tensor(series.clients, device=rows.device)
    # Every client has one row, named by its own id.
    return ExchangeIds(other, other, client, ids, torch.arange(len(ids), device=rows.device))


def setup(fed: Federation, data: SensorData, task: Task, config: FmtlConfig) -> State:
    """Agree on the common scale, copy the first weights and send the edges to the clients."""
    alone = recurrent.setup_own(fed, data, config, "gru_fmtl")
    rows = fed.scatter(
        fed.server.run(adjacency_rows, data.network),
        name="neighbours",
        grad=False,
        like=TensorForm(torch.get_default_dtype(), (fed.num_clients,)),
    )
    route = fed.exchange_route(fed.clients.run(neighbour_ids, data.series, rows), name="wanted")
    neighbours = fed.clients.run(outgoing_edges, rows, config)
    # The names of the parts follow from the settings and are public.
    names = tuple(recurrent.first_forecaster(config.recurrent, config.run.seed, "cpu"))
    return State(alone.values, Prepared(data, alone.prepared.training, neighbours, route, names))


def select_part(weights: Weights, name: str) -> Tensor:
    """Select a part of the weights."""
    return weights[name]


def sum_of_neighbours(received: Tensor, neighbours: Neighbours, own: Weights) -> Tensor:
    """Compute sum_j alpha_ij w_j of each client, for one part of the weights, [P, ...]."""
    count = len(next(iter(own.values())))
    weighted = received * neighbours.alpha.view(-1, *[1] * (received.dim() - 1))
    return weighted.new_zeros(count, *received.shape[1:]).index_add_(0, neighbours.client, weighted)


def join_parts(names: tuple[str, ...], *parts: Tensor) -> dict[str, Tensor]:
    """Join the parts of the weights under their names."""
    return dict(zip(names, parts, strict=True))


def train(
    data: Standardised,
    weights: Weights,
    received: Weights,
    neighbours: Neighbours,
    optimizer: AdamState,
    config: FmtlConfig,
    number: int,
) -> tuple[Weights, AdamState]:
    """Train every client on its own series with the weights that its neighbours have sent.

    Args:
        received: For each part of the weights the result of `sum_of_neighbours`, or (penalty=norm) the
            neighbours' rows.
    """

    def penalty(own: Weights) -> Tensor:
        form = squared_distances if config.penalty.penalty == "squared" else distances
        return config.penalty.coupling * form(own, received, neighbours)

    return recurrent.pass_over(data, weights, optimizer, config, number, penalty)


def squared_distances(own: Weights, sums: Weights, neighbours: Neighbours) -> Tensor:
    """Compute sum_ij alpha_ij ||w_i - w_j||^2 without the terms that do not depend on w_i.

    That is alpha_i ||w_i||^2 - 2 <w_i, sum_j alpha_ij w_j> with alpha_i = sum_j alpha_ij.
    """
    count = len(next(iter(own.values())))
    # ||w_i - w_j||^2 expanded: the neighbours' weights enter by their sum only, and ||w_j||^2 is constant.
    degree = neighbours.alpha.new_zeros(count).index_add_(0, neighbours.client, neighbours.alpha)
    terms = [
        (degree * w.flatten(1).square().sum(1)).sum() - 2 * (w * sums[name]).sum() for name, w in own.items()
    ]
    return torch.stack(terms).sum()


def distances(own: Weights, received: Weights, neighbours: Neighbours) -> Tensor:
    """Compute sum_ij alpha_ij ||w_i - w_j||; its gradient is 0 where both are equal."""
    distance = torch.stack(
        [(w[neighbours.client] - received[name]).flatten(1).square().sum(1) for name, w in own.items()]
    ).sum(0)
    # The root has no derivative at 0, and 0 * infinity would be NaN in the backward pass.
    differs = distance > 0
    return (neighbours.alpha * torch.where(differs, distance, 1.0).sqrt() * differs).sum()


def round(fed: Federation, state: State, config: FmtlConfig, number: int) -> State:
    """Run a round: exchange weights between neighbours and train."""
    prepared: Prepared = state.prepared
    parts = []
    for name in prepared.names:
        # One part of the weights at a time: with penalty=squared only its sum stays in memory.
        local_part = fed.clients.run(select_part, state.weights, name)
        part = fed.exchange(local_part, prepared.route, name="neighbour_weights", grad=False)
        if config.penalty.penalty == "squared":
            part = fed.clients.run(sum_of_neighbours, part, prepared.neighbours, state.weights)
        parts.append(part)
    weights, optimizer = fed.clients.run(
        train,
        prepared.training,
        state.weights,
        fed.clients.run(join_parts, prepared.names, *parts),
        prepared.neighbours,
        state.values["optimizer"],
        config,
        number,
        outputs=2,
    )
    return State({**state.values, "weights": weights, "optimizer": optimizer}, prepared)


def checkpoint(extent: SeriesExtent, config: FmtlConfig) -> int:
    """Count the numbers of a checkpoint: every sensor's network of the latest and the best round, and its
    optimiser.
    """
    moments = num_moments(config.training.optimizer) if keeps_client_state(config) else 0
    return (2 + moments) * extent.sensors * recurrent_numbers(config.recurrent)


METHOD = Method(
    name="gru_fmtl",
    summary="every sensor trains a recurrent forecaster whose weights stay close to its neighbours' weights",
    paper=f"{recurrent.PAPER}; after Smith, Chiang, Sanjabi, Talwalkar: Federated multi-task learning. "
    "NeurIPS 2017",
    config=FmtlConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=recurrent.predict_own,
    plans_rounds=forecasting.plans_rounds,
    checkpoint=checkpoint,
    state=StateValues(model=("weights", "scaler"), scratch=("optimizer",)),
    sends=Sent(
        summary="weights between neighbours, every round",
        protection="none: in plaintext",
        messages={
            **forecasting.MESSAGES,
            "neighbours": "The server sends each client, once, the weights of the edges that leave its "
            "sensor.",
            "wanted": "A client asks each of its neighbours, once, for its weights. The neighbour reads who "
            "asks.",
            "neighbour_weights": "A client sends all its weights after its training to every neighbour that "
            "asks, in every round. The neighbour reads them; from weights, readings can in part be inferred.",
        },
    ),
    defaults=recurrent.DEFAULTS,
)

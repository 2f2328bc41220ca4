"""Federated multi-task learning of recurrent forecasters over the road graph: the baseline "GRU + FMTL" of
CNFGNN (Meng, Rambhatla and Liu, KDD 2021, Eq. 4 and 5, Table 7), after Smith, Chiang, Sanjabi and Talwalkar,
"Federated multi-task learning", NeurIPS 2017.

    paper                 here
    w_i                   weights: one set for each client
    alpha_ij = A_ij       shares [P, S]: the row of a client in the adjacency, its own entry left out
    lambda_1              coupling

Every client goes down its own loss plus a penalty that draws its weights to those its neighbours had when the
round began. Neighbours send each other their weights in every round: as many numbers as a client has weights,
over every directed edge (Eq. 6).

Differs from the paper: Eq. (4) prints lambda tr(W Omega W^T), which Eq. (5) writes as a sum of alpha_ij <w_i,
w_i - w_j>. For a symmetric A both are half the sum of alpha_ij ||w_i - w_j||^2; for the directed one that is
used they are not, and have no minimum at equal weights. Here each client adds lambda sum_j alpha_ij ||w_i -
w_j||^2, whose gradient is that of Eq. (5) where A is symmetric. penalty=norm has the distance itself, as the
authors' program does, with lambda 0.01 and 5 local epochs there; the paper prints 0.1 and no epochs."""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.route import ExchangeIds, ExchangeRoute
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.series import Network, SensorData, Series
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.baselines.gru_local import refuse_unseen
from graphfed.methods.common.forecasting import (
    GRU_DEFAULTS,
    MESSAGES,
    LocalEpochSettings,
    Standardised,
    Weights,
    first_forecaster,
    fit_scaler,
    own_forecasters,
    pass_over,
    predict_own,
    scaled,
)
from graphfed.methods.tasks import FORECASTING
from graphfed.nn.optim import AdamState

__all__ = ["METHOD", "FmtlConfig"]

#: Bytes of neighbours' weights that the clients of one process may keep (penalty=norm).
MAX_BYTES = 4 * 2**30


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FmtlConfig(
    LocalEpochSettings,
    groups.ClientStateSettings,
    groups.SequenceTrainingSettings,
    groups.RecurrentLayerSettings,
    groups.RecurrentSettings,
    groups.WindowSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of federated multi-task learning."""

    coupling: float = Field(
        default=0.1, ge=0, allow_inf_nan=False, description="weight of the penalty (lambda_1)"
    )
    penalty: Literal["squared", "norm"] = Field(
        default="squared",
        description="what draws neighbours' weights together: the squared distance, or the distance itself",
    )


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Of the edges that leave a cohort's clients, in the order their weights arrive: client [M], the client
    in the cohort, and share [M], alpha_ij."""

    client: Tensor
    share: Tensor


@dataclass(frozen=True)
class Prepared:
    """data: as it was given; training: every client's `Standardised` series; neighbours: `Neighbours`; route:
    of their weights; names: of the parts that weights have."""

    data: SensorData
    training: Located
    neighbours: Located
    route: ExchangeRoute
    names: tuple[str, ...]


def shares(network: Network) -> Tensor:
    """The adjacency without self loops, [S, S], a row for each client."""
    edges = network.edges
    rows = torch.zeros(edges.num_nodes, edges.num_nodes, device=edges.weight.device)
    rows[edges.sender, edges.receiver] = edges.weight.to(rows.dtype)
    return rows.fill_diagonal_(0)


def neighbours_of(rows: Tensor, config: FmtlConfig) -> Neighbours:
    """InputError where neighbours' weights take too much memory to be kept."""
    client, other = rows.nonzero(as_tuple=True)
    weights = sum(w.numel() for w in first_forecaster(config, "cpu").values())
    size = weights * len(client) * torch.get_default_dtype().itemsize
    if config.penalty == "norm" and size > MAX_BYTES:
        raise InputError(
            f"penalty=norm keeps the {weights} weights of {len(client)} neighbours, {size / 2**30:.1f} GiB, "
            f"and may take {MAX_BYTES / 2**30:.0f} in a process; use penalty=squared, a smaller network or "
            "fewer sensors in a process"
        )
    return Neighbours(client, rows[client, other])


def wanted(series: Series, rows: Tensor) -> ExchangeIds:
    """The weights of every neighbour; a client has one row, whose id is its own."""
    client, other = rows.nonzero(as_tuple=True)
    ids = torch.tensor(series.clients, device=rows.device)
    return ExchangeIds(other, other, client, ids, torch.arange(len(ids), device=rows.device))


def setup(fed: Federation, data: SensorData, task: Task, config: FmtlConfig) -> State:
    refuse_unseen(fed, "gru_fmtl")
    check_sums(fed, config.aggregation, fed.num_clients)
    scaler = fit_scaler(fed, data.series, config)
    training = scaled(fed, data, scaler, config)
    rows = fed.scatter(fed.server.run(shares, data.network), name="neighbours", grad=False)
    route = fed.exchange_route(fed.clients.run(wanted, data.series, rows), name="wanted")
    own = fed.clients.run(own_forecasters, training, config)
    values = {"weights": own, "scaler": scaler, "optimizer": fed.clients.run(dict)}
    # Drawn as everyone draws them: what the parts are called is no one's data.
    names = tuple(first_forecaster(config, "cpu"))
    return State(values, Prepared(data, training, fed.clients.run(neighbours_of, rows, config), route, names))


def part_named(weights: Weights, name: str) -> Tensor:
    return weights[name]


def drawn_to(received: Tensor, neighbours: Neighbours, own: Weights) -> Tensor:
    """sum_j alpha_ij w_j of each client, of one part of the weights: [P, ...]."""
    count = len(next(iter(own.values())))
    weighted = received * neighbours.share.view(-1, *[1] * (received.dim() - 1))
    return weighted.new_zeros(count, *received.shape[1:]).index_add_(0, neighbours.client, weighted)


def named(names: tuple[str, ...], *parts: Tensor) -> dict[str, Tensor]:
    return dict(zip(names, parts, strict=True))


def train(
    data: Standardised,
    weights: Weights,
    others: Weights,
    neighbours: Neighbours,
    optimizer: AdamState,
    config: FmtlConfig,
    number: int,
) -> tuple[Weights, AdamState]:
    """Every client on its own series, with its neighbours' weights as they were sent. others: of each part of
    the weights the sums of `drawn_to`, or (penalty=norm) the neighbours' own rows."""

    def penalty(own: Weights) -> Tensor:
        form = squared if config.penalty == "squared" else norms
        return config.coupling * form(own, others, neighbours)

    own, optimizer = pass_over(data, weights, optimizer, config, number, penalty)
    return own, optimizer if config.client_state == "keep" else {}


def squared(own: Weights, sums: Weights, neighbours: Neighbours) -> Tensor:
    """sum_ij alpha_ij ||w_i - w_j||^2 without what does not depend on w_i: alpha_i ||w_i||^2 - 2 <w_i, sum_j
    alpha_ij w_j>, where alpha_i = sum_j alpha_ij."""
    count = len(next(iter(own.values())))
    degree = neighbours.share.new_zeros(count).index_add_(0, neighbours.client, neighbours.share)
    terms = [
        (degree * w.flatten(1).square().sum(1)).sum() - 2 * (w * sums[name]).sum() for name, w in own.items()
    ]
    return torch.stack(terms).sum()


def norms(own: Weights, others: Weights, neighbours: Neighbours) -> Tensor:
    """sum_ij alpha_ij ||w_i - w_j||; where both are equal, its gradient is 0."""
    distance = torch.stack(
        [(w[neighbours.client] - others[name]).flatten(1).square().sum(1) for name, w in own.items()]
    ).sum(0)
    apart = distance > 0
    return (neighbours.share * torch.where(apart, distance, 1.0).sqrt() * apart).sum()


def round(fed: Federation, state: State, config: FmtlConfig, number: int) -> State:
    prepared: Prepared = state.prepared
    parts = []
    for name in prepared.names:
        mine = fed.clients.run(part_named, state.weights, name)
        part = fed.exchange(mine, prepared.route, name="neighbour_weights", grad=False)
        if config.penalty == "squared":
            part = fed.clients.run(drawn_to, part, prepared.neighbours, state.weights)
        parts.append(part)
    weights, optimizer = fed.clients.run(
        train,
        prepared.training,
        state.weights,
        fed.clients.run(named, prepared.names, *parts),
        prepared.neighbours,
        state.values["optimizer"],
        config,
        number,
        outputs=2,
    )
    return State({**state.values, "weights": weights, "optimizer": optimizer}, prepared)


METHOD = Method(
    name="gru_fmtl",
    summary="every sensor trains a recurrent forecaster that its neighbours' weights draw to theirs",
    paper="Baseline of Meng, Rambhatla, Liu: Cross-node federated graph neural network for spatio-temporal "
    "data modeling. KDD 2021, arXiv:2106.05223; after Smith, Chiang, Sanjabi, Talwalkar: Federated "
    "multi-task learning. NeurIPS 2017",
    config=FmtlConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=predict_own,
    state=StateValues(
        model=("weights", "scaler"),
        scratch=("optimizer",),
    ),
    sends=Sent(
        summary="weights between neighbours, every round",
        protection="none: in clear",
        messages={
            **MESSAGES,
            "neighbours": "Once, from the server: the weights of the edges that leave a client's sensor.",
            "wanted": "Once: whose weights a client asks for, which each of its neighbours reads.",
            "neighbour_weights": "All weights of a client after its training, to every neighbour that "
            "asks, in "
            "every round. Each reads them; from weights, readings can in part be inferred.",
        },
    ),
    defaults=GRU_DEFAULTS,
)

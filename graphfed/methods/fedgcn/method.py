"""FedGCN: Yao, Jin, Ravi and Joe-Wong, "FedGCN: convergence-communication tradeoffs in federated training of
graph convolutional networks", NeurIPS 2023 (arXiv:2201.12433v7). One exchange of feature sums before
training, then FedAvg.

    paper                  here
    A-tilde_ij             w_ij / sqrt((d_i + 1)(d_j + 1)), self loops of weight 1 included; d_i = sum_j w_ij
                           in the whole graph, and w_ij = 1 where it has no edge weights
    sum_j A-tilde_ij x_j   View.x: the aggregated features
    0-, 1-, 2-hop          hops

1. Client k adds up, for every node i next to one of its own (i itself included), its share
   sum_{j in N(i), j in V_k} w_ij x_j / sqrt(d_j + 1) and uploads it: one row of F numbers for every node of
   its closure (V_k and the neighbours of V_k).
2. The server adds the shares of each node and returns them: to the owner of i (1 hop) or to every client
   with i in its closure (2 hops), who scale them by 1 / sqrt(d_i + 1).
3. Training is FedAvg with a first layer that only transforms. The second layer uses the neighbours'
   aggregates (2 hops), which makes a two-layer GCN exact, or the client's own nodes only (1 hop). hops=0
   sends nothing: it is FedAvg.

What it shows, with exchange=plaintext. The server sees every share, which client touches which node, and
(2 hops) how many neighbours it has there (in a weighted graph, the sum of its edges' weights). A share of
one node, such as that of a node without neighbours at its own client, is that node's features times a
positive factor. A client sees sums: of a neighbour with a single neighbour, exact features.

With exchange=encrypted the server adds ciphertexts (homomorphic encryption, as the paper proposes:
`federation.encrypted_sum`). It sees which client touches which node that several touch, and for narrow
features which of those the same clients touch; no share, no count (counts are one more column), and no node
whose neighbours are all at its own client, because that share is complete there. Clients see what they see in
clear. **The clients have one key: one that colludes with the server reads every share.** Sums are off by at
most `ckks.Grid(K).error`, 8e-5 for 10 clients.

Differs from the paper: degrees of the closure cross too (the 2-hop form needs them; the papers' programs copy
raw features of the hops instead and know the graph). A layer beyond the second uses the client's own nodes
only. Weights are averaged by n_k where the authors' program takes the plain mean."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import RouteTable, RowIds
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.secure.encrypted_sum import encrypted_sum
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.baselines import fedavg
from graphfed.methods.baselines.fedadam import ServerAdamSettings
from graphfed.methods.baselines.fedprox import ProximalSettings
from graphfed.methods.common import aggregation_rules
from graphfed.methods.common.aggregation_rules import RuleSettings
from graphfed.methods.common.local_training import Prepared, own_view, prepare
from graphfed.methods.common.memory import NUMBER, GraphExtent
from graphfed.methods.config import PlaintextOnly, clients_in_round
from graphfed.nn.batch import View
from graphfed.nn.sparse import SparseMatrix, multiply, sums_by

__all__ = [
    "ENCRYPTED",
    "METHOD",
    "Closure",
    "FedGCNConfig",
    "border_ids",
    "border_of",
    "find_closure",
    "setup",
]

Rows = Tensor | SparseMatrix
#: What the transfers of the encrypted exchange begin with.
ENCRYPTED = "fedgcn/encrypted"


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FedGCNConfig(
    RuleSettings,
    ProximalSettings,
    ServerAdamSettings,
    groups.ServerOptimizerSettings,
    groups.SamplingSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClientStateSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of FedGCN."""

    plaintext_only: ClassVar = (PlaintextOnly("exchange", "hops", 0, "nothing is exchanged"),)

    hops: Literal[0, 1, 2] = Field(default=2, description="hops of the exchange before training")
    exchange: Literal["plaintext", "encrypted"] = Field(
        default="plaintext",
        description="the sums of features before training: read by the server, or added by it under "
        "encryption",
    )


@dataclass(frozen=True)
class Closure:
    """A cohort's own nodes and their neighbours elsewhere, M rows sorted by (client, id).

    ids, client [M]; own [N]: the closure's row of each own row; mine [M] bool; remote_row [C]: the closure's
    row at the far end of each cut edge."""

    ids: Tensor
    client: Tensor
    own: Tensor
    mine: Tensor
    remote_row: Tensor


def find_closure(cohort: Cohort) -> Closure:
    """The one-hop closure of every client."""
    cross_client = cohort.client[cohort.cross_row]
    # Ids may be any numbers up to 2^63: a code has the id's place among those of the closure.
    known, near = torch.unique(torch.cat([cohort.id, cohort.cross_id]), return_inverse=True)
    codes, place = torch.unique(
        torch.cat([cohort.client, cross_client]) * len(known) + near, return_inverse=True
    )
    own, remote = place[: cohort.num_rows], place[cohort.num_rows :]
    mine = torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
    mine[own] = True
    count = max(len(known), 1)
    return Closure(known[codes % count], codes // count, own, mine, remote)


def closure_ids(closure: Closure) -> RowIds:
    return RowIds(closure.ids, closure.client)


def own_ids(cohort: Cohort) -> RowIds:
    return RowIds(cohort.id, cohort.client)


def neighbour_counts(cohort: Cohort, closure: Closure) -> Tensor:
    """How many neighbours each node of the closure has at its client, [M, 1]."""
    return torch.bincount(_ends(cohort, closure), minlength=len(closure.ids))[:, None]


def partial_degrees(cohort: Cohort, closure: Closure) -> Tensor:
    """sum_{j in N(i), j in V_k} w_ij for every i of the closure, [M, 1]: the neighbour counts where edges
    have no weights."""
    if cohort.edge_weight is None:
        return neighbour_counts(cohort, closure)
    return sums_by(_ends(cohort, closure), _weights(cohort), len(closure.ids))[:, None]


def _ends(cohort: Cohort, closure: Closure) -> Tensor:
    """The closure's row that each edge of the client goes to, inside and across, [E + C]."""
    return torch.cat([closure.own[cohort.edge_index[1]], closure.remote_row])


def _weights(cohort: Cohort) -> Tensor:
    """The weights of those edges, [E + C]."""
    assert cohort.edge_weight is not None
    assert cohort.cross_weight is not None
    return torch.cat([cohort.edge_weight, cohort.cross_weight])


def partial_sums(cohort: Cohort, closure: Closure) -> Rows:
    """sum_{j in N(i), j in V_k} w_ij x_j / sqrt(d_j + 1) for every i of the closure, [M, F]."""
    assert cohort.x is not None
    rows = torch.arange(cohort.num_rows, device=cohort.id.device)
    to = torch.cat([_ends(cohort, closure), closure.own])
    fro = torch.cat([cohort.edge_index[0], cohort.cross_row, rows])
    share = (cohort.degree(with_cross=True) + 1).to(cohort.x.dtype).rsqrt()[fro]
    if cohort.edge_weight is not None:
        share[: len(fro) - len(rows)] *= _weights(cohort)
    shares = SparseMatrix.from_coo(to, fro, share, (len(closure.ids), cohort.num_rows))
    return multiply(shares, cohort.x)


def aggregated_view(cohort: Cohort, closure: Closure, sums: Rows, degrees: Tensor) -> View:
    """The closure with its aggregated features: edges from every neighbour into the client's own nodes (2
    hops)."""
    degree = degrees[:, 0]
    inside = closure.own[cohort.edge_index]
    across = torch.stack([closure.remote_row, closure.own[cohort.cross_row]])
    y = cohort.y.new_full((len(closure.ids),), -1).index_copy(0, closure.own, cohort.y)
    return View(
        x=_scale_rows(sums, degree),
        ids=closure.ids,
        client=closure.client,
        num_clients=cohort.num_clients,
        y=y,
        degree=degree,
        # Layer 0 transforms, layer 1 sees all neighbours, later layers only those whose hidden rows the
        # client has.
        edges=(inside, torch.cat([inside, across], 1), inside),
        aggregated=True,
        edge_weight=None
        if cohort.edge_weight is None
        else (cohort.edge_weight, _weights(cohort), cohort.edge_weight),
    )


def aggregated_own_view(cohort: Cohort, sums: Rows) -> View:
    """The own nodes with their aggregated features and the edges inside the client (1 hop)."""
    degree = cohort.degree(with_cross=True)
    return replace(own_view(cohort), x=_scale_rows(sums, degree), degree=degree, aggregated=True)


def _scale_rows(x: Rows, degree: Tensor) -> Rows:
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values * (degree + 1).to(x.dtype).rsqrt()[x.row])
    return x * (degree + 1).to(x.dtype).rsqrt()[:, None]


def prepare_view(cohort: Cohort, view: View, closure: Closure | None, config: FedGCNConfig) -> Prepared:
    return prepare(cohort, view, None if closure is None else closure.own, config, personal=False)


# ---- under encryption --------------------------------------------------------------------------------------


def border_of(cohort: Cohort, closure: Closure) -> Tensor:
    """The closure's rows of nodes that other clients touch too, [S] int64: neighbours elsewhere, and own
    nodes that have one."""
    border = ~closure.mine
    border[closure.own[cohort.cross_row]] = True
    return border.nonzero()[:, 0]


def border_ids(closure: Closure, border: Tensor) -> RowIds:
    return RowIds(closure.ids[border], closure.client[border])


def border_rows(shares: Rows, degrees: Tensor, border: Tensor, hops: int) -> Tensor:
    """The shares of the border's nodes, [S, F]; with two hops and their partial degrees, [S, F + 1]."""
    rows = pay.take_rows(shares, border)
    rows = rows.to_dense() if isinstance(rows, SparseMatrix) else rows
    return rows if hops == 1 else torch.cat([rows, degrees[border].to(rows)], 1)


def own_of_border(closure: Closure, border: Tensor) -> Tensor:
    """Which of the border's nodes are the client's own, [S] bool."""
    return closure.mine[border]


def complete_sums(
    closure: Closure, shares: Rows, border: Tensor, totals: Tensor, mine: Tensor | None
) -> Rows:
    """The sums of the closure [M, F], or with one hop (`mine`: what came back of the border) of the own
    nodes [N, F]. Away from the border the client's own shares lack nothing."""
    came = border if mine is None else border[mine]
    sums = put_rows(shares, came, totals[:, : shares.shape[1]])
    return sums if mine is None else pay.take_rows(sums, closure.own)


def complete_degrees(degrees: Tensor, border: Tensor, totals: Tensor) -> Tensor:
    """The degrees of the closure, [M, 1], from the last column of what came back. Whole numbers are whole on
    the grid."""
    return degrees.index_copy(0, border, totals[:, -1:].to(degrees.dtype))


def put_rows(x: Rows, at: Tensor, rows: Tensor) -> Rows:
    """`x` with other rows [n, F] at `at` [n]; sparse where `x` is."""
    new = SparseMatrix.from_dense(rows) if isinstance(x, SparseMatrix) else rows
    index = torch.arange(x.shape[0], device=at.device)
    index[at] = x.shape[0] + torch.arange(len(at), device=at.device)
    return pay.take_rows(pay.concat_rows([x, new]), index)


def encrypted_exchange(
    fed: Federation, data: Located, closure: Located, task: Task, config: FedGCNConfig
) -> tuple[Located, Located | None]:
    """Return what `plaintext_exchange` does; the server adds up what it cannot read."""
    border = fed.clients.run(border_of, data, closure)
    shares = fed.clients.run(partial_sums, data, closure)
    degrees = fed.clients.run(partial_degrees, data, closure)
    mine = fed.clients.run(own_of_border, closure, border) if config.hops == 1 else None
    totals = encrypted_sum(
        fed,
        fed.clients.run(border_rows, shares, degrees, border, config.hops),
        fed.clients.run(border_ids, closure, border),
        width=task.num_features + (config.hops == 2),
        name=ENCRYPTED,
        wanted=mine,
    )
    sums = fed.clients.run(complete_sums, closure, shares, border, totals, mine)
    if config.hops == 1:
        return sums, None
    return sums, fed.clients.run(complete_degrees, degrees, border, totals)


# ---- the program over places -------------------------------------------------------------------------------


def memory(extent: GraphExtent, config: FedGCNConfig) -> float:
    """The sums of features over neighbours: as they are made, sent, added up, sent back and kept, dense."""
    return 6 * NUMBER * extent.closure * extent.features if config.hops else 0.0


def setup(fed: Federation, data: Located, task: Task, config: FedGCNConfig) -> State:
    if config.hops == 0:
        return aggregation_rules.setup(fed, data, task, config)
    check_sums(fed, config.aggregation, clients_in_round(config, fed.num_clients))
    fed.begin("summing the features of neighbours")
    closure = fed.clients.run(find_closure, data)
    aggregated, degrees = EXCHANGES[config.exchange](fed, data, closure, task, config)
    if config.hops == 1:
        view = fed.clients.run(aggregated_own_view, data, aggregated)
        prepared = fed.clients.run(prepare_view, data, view, None, config)
    else:
        view = fed.clients.run(aggregated_view, data, closure, aggregated, degrees)
        prepared = fed.clients.run(prepare_view, data, view, closure, config)
    return aggregation_rules.start(fed, prepared, task, config)


def plaintext_exchange(
    fed: Federation, data: Located, closure: Located, task: Task, config: FedGCNConfig
) -> tuple[Located, Located | None]:
    """At the clients the sums [M, F] and degrees [M, 1] of the closure, or with one hop the sums [N, F] of
    the own nodes."""
    give = fed.route(fed.clients.run(closure_ids, closure), name="fedgcn/closure_ids")
    sums = fed.sum(fed.clients.run(partial_sums, data, closure), give, name="fedgcn/partial_sums", grad=False)
    if config.hops == 1:
        take = fed.route(fed.clients.run(own_ids, data), name="fedgcn/local_ids")
        # The server has a row for every id of the closures, in the order of `give`: pick those the owners ask
        # for.
        picked = fed.server.run(rows_of_ids, sums, fed.table(give), fed.table(take))
        return fed.download(picked, take, name="fedgcn/aggregates", grad=False), None
    counts = fed.clients.run(partial_degrees, data, closure)
    degrees = fed.sum(counts, give, name="fedgcn/neighbour_counts", grad=False)
    degrees = fed.download(degrees, give, name="fedgcn/degrees", grad=False)
    return fed.download(sums, give, name="fedgcn/aggregates", grad=False), degrees


#: The exchange before training under each protection. They send different rows: under encryption only those
#: of nodes that several clients touch.
EXCHANGES = {"plaintext": plaintext_exchange, "encrypted": encrypted_exchange}


def rows_of_ids(x: Rows, have: RouteTable, want: RouteTable) -> Rows:
    index = torch.searchsorted(have.ids, want.ids)
    return x.select_rows(index) if isinstance(x, SparseMatrix) else x[index]


#: Beside those of averaging.
MESSAGES = {
    "fedgcn/closure_ids": "The ids of a client's nodes and of their neighbours at other clients: the server "
    "learns which client touches which node.",
    "fedgcn/local_ids": "The ids of a client's own nodes: the server learns who owns which node.",
    "fedgcn/partial_sums": "For every node of that list, the sum of the features of its neighbours at this "
    "client. The server reads each sum; a sum over one node is that node's features exactly.",
    "fedgcn/neighbour_counts": "For every node of that list, how many neighbours it has at this client (in a "
    "weighted graph, the sum of its edges' weights), which the server reads.",
    "fedgcn/degrees": "From the server: how many neighbours each node of a client's list has in the whole "
    "graph (in a weighted graph, the sum of its edges' weights).",
    "fedgcn/aggregates": "From the server: for each node, the sum of its neighbours' features over all "
    "clients. The client reads it; for a node with one neighbour elsewhere it is that neighbour's features.",
    # With exchange=encrypted, in place of all of the above:
    "fedgcn/encrypted/key_request": "A client's request for the clients' key. It says nothing.",
    "fedgcn/encrypted/secret_key": "The key that all clients encrypt and decrypt with, from one client "
    "to the "
    "others. Who has it, and what the server receives, reads everything: a client that colludes with the "
    "server reads the sums of every client.",
    "fedgcn/encrypted/public_context": "The parameters of the encryption, without a key. Public.",
    "fedgcn/encrypted/ids": "The ids of a client's nodes that have neighbours at other clients, and of those "
    "neighbours: the server learns which client touches which of these.",
    "fedgcn/encrypted/wanted_ids": "The ids of the client's own among them: the server learns who owns "
    "which.",
    "fedgcn/encrypted/packing": "From the server, where several nodes fit into a ciphertext: which of a "
    "client's nodes share one. The client learns which of them the same clients touch, and not which "
    "clients.",
    "fedgcn/encrypted/ciphertext_ids": "A client's ciphertexts, named by a node in each: the server knows "
    "them already.",
    "fedgcn/encrypted/wanted_ciphertext_ids": "Those of them that have the client's own nodes, likewise.",
    "fedgcn/encrypted/rows": "Encrypted, for every node of that list: the sum of the features of its "
    "neighbours at this client, and how many they are. The server adds what the clients sent and reads "
    "none of "
    "it; with protocols=simulated it could.",
    "fedgcn/encrypted/sums": "Encrypted, from the server: for each node, the sum of its neighbours' "
    "features over all clients, and their number. The client decrypts it; for a node with one neighbour "
    "elsewhere it is that neighbour's features.",
}

METHOD = Method(
    name="fedgcn",
    summary="one exchange of neighbourhood feature sums, then FedAvg; 2 hops make a two-layer GCN exact",
    paper="Yao, Jin, Ravi, Joe-Wong: FedGCN, convergence-communication tradeoffs in federated training of "
    "graph convolutional networks. NeurIPS 2023, arXiv:2201.12433",
    config=FedGCNConfig,
    setup=setup,
    round=aggregation_rules.round,
    predict=fedavg.predict,
    memory=memory,
    requires=Requirements(
        disjoint=True,
    ),
    state=StateValues(
        shared_model=True,
    ),
    sends=Sent(
        summary="feature sums of neighbours, once; weights, every round",
        protection="none: in clear; with exchange=encrypted the sums are, under one key of the clients; with "
        "aggregation=secure the server reads the sum of the weights, not each client's",
        messages={**aggregation_rules.MESSAGES, **MESSAGES},
    ),
)

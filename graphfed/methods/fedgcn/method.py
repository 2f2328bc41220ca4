"""FedGCN: Yao, Jin, Ravi and Joe-Wong, "FedGCN: convergence-communication tradeoffs in federated training of
graph convolutional networks", NeurIPS 2023 (arXiv:2201.12433v7). One exchange of feature sums before
training, then FedAvg.

    paper                  here
    A-tilde_ij             w_ij / sqrt((d_i + 1)(d_j + 1)), self loops of weight 1 included; d_i = sum_j w_ij
                           in the whole graph, and w_ij = 1 where it has no edge weights
    sum_j A-tilde_ij x_j   View.x: the aggregated features
    0-, 1-, 2-hop          hops

1. The closure of client k is V_k and the neighbours of V_k. For every node i of its closure, client k
computes
   the partial sum of w_ij x_j / sqrt(d_j + 1) over the nodes j in V_k that are i or a neighbour of i, and
   sends it to the server.
2. The server adds the partial sums of each node. It returns the sum to the client that has node i (1 hop), or
   to every client with i in its closure (2 hops). The clients multiply it by 1 / sqrt(d_i + 1).
3. Training is FedAvg. The first layer transforms the aggregated features without aggregating again. The
second
   layer uses the neighbours' aggregates (2 hops), which makes a two-layer GCN exact, or the client's own
   nodes only (1 hop). hops=0 exchanges nothing and is FedAvg.

What each participant learns (docs/papers/fedgcn.md has the attack):

- With exchange=plaintext the server reads every partial sum, which nodes are in the closure of each client,
  and with 2 hops how many neighbours they have at each client. A partial sum with one term is that node's
  features times a positive factor. A client reads sums over all clients; for a neighbour whose only neighbour
  is at this client, it computes the neighbour's features exactly.
- With exchange=encrypted the server adds ciphertexts (`federation.secure.encrypted_sum`). It learns which
  nodes are in the closures of several clients, and if features are narrow, which of these nodes are in the
  closures of the same clients. It reads no sum and no count, and learns nothing about nodes whose neighbours
  are all at their own client. Clients learn the same as in plaintext.
- **All clients have the same key. A client that colludes with the server lets it read every partial sum.**

Encrypted sums differ from plaintext sums by at most `ckks.Grid(K).error`, 8e-5 for 10 clients.

Differs from the paper (docs/papers/fedgcn.md gives the reasons, by these numbers): degrees are exchanged with
2 hops (1); sums are exchanged where the authors' program copies features (2); clients' weights are averaged
by n_k (3); a layer after the second uses the client's own nodes only (5); exact sums under encryption (6);
edge weights (7).
"""

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
#: The first part of the names of transfers in the encrypted exchange.
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

    hops: Literal[0, 1, 2] = Field(default=2, description="number of hops of the exchange before training")
    exchange: Literal["plaintext", "encrypted"] = Field(
        default="plaintext",
        description="the sums of features before training: the server adds them in plaintext, or under "
        "encryption",
    )


@dataclass(frozen=True)
class Closure:
    """The nodes of a cohort's clients and their neighbours at other clients, M rows sorted by (client, id).

    Attributes:
        ids: The node's id of each row, [M].
        client: The client of each row, [M].
        local_row: The closure's row of each of the cohort's N rows, [N].
        is_local: Whether a row is a node of its client, [M] bool.
        remote_row: The closure's row of the remote node of each cross-client edge, [C].
    """

    ids: Tensor
    client: Tensor
    local_row: Tensor
    is_local: Tensor
    remote_row: Tensor


def find_closure(cohort: Cohort) -> Closure:
    """Find the one-hop closure of every client of a cohort.

    Args:
        cohort: The clients' data.

    Returns:
        The closures, sorted by client and id.
    """
    cross_client = cohort.client[cohort.cross_row]
    # Ids are any numbers up to 2^63. The code of a row contains the id's rank, so that it fits into int64.
    ids, rank = torch.unique(torch.cat([cohort.id, cohort.cross_id]), return_inverse=True)
    codes, place = torch.unique(
        torch.cat([cohort.client, cross_client]) * len(ids) + rank, return_inverse=True
    )
    local, remote = place[: cohort.num_rows], place[cohort.num_rows :]
    is_local = torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
    is_local[local] = True
    count = max(len(ids), 1)
    return Closure(ids[codes % count], codes // count, local, is_local, remote)


def closure_ids(closure: Closure) -> RowIds:
    return RowIds(closure.ids, closure.client)


def local_ids(cohort: Cohort) -> RowIds:
    return RowIds(cohort.id, cohort.client)


def neighbour_counts(cohort: Cohort, closure: Closure) -> Tensor:
    """Count the neighbours that each node of the closure has at its client, [M, 1]."""
    return torch.bincount(_edge_targets(cohort, closure), minlength=len(closure.ids))[:, None]


def partial_degrees(cohort: Cohort, closure: Closure) -> Tensor:
    """Compute sum_{j in N(i), j in V_k} w_ij for every node i of the closure, [M, 1].

    These are the neighbour counts if edges have no weights.
    """
    if cohort.edge_weight is None:
        return neighbour_counts(cohort, closure)
    return sums_by(_edge_targets(cohort, closure), _weights(cohort), len(closure.ids))[:, None]


def _edge_targets(cohort: Cohort, closure: Closure) -> Tensor:
    """Return the closure's row that each edge points to, of edges within clients and across, [E + C]."""
    return torch.cat([closure.local_row[cohort.edge_index[1]], closure.remote_row])


def _weights(cohort: Cohort) -> Tensor:
    """Return the weights of edges within clients and across, [E + C]."""
    assert cohort.edge_weight is not None
    assert cohort.cross_weight is not None
    return torch.cat([cohort.edge_weight, cohort.cross_weight])


def partial_sums(cohort: Cohort, closure: Closure) -> Rows:
    """Compute the partial sums of every node i of the closure, [M, F].

    A partial sum is sum_{j in N(i) or j = i, j in V_k} w_ij x_j / sqrt(d_j + 1), with w_ii = 1.
    """
    assert cohort.x is not None
    rows = torch.arange(cohort.num_rows, device=cohort.id.device)
    target = torch.cat([_edge_targets(cohort, closure), closure.local_row])
    source = torch.cat([cohort.edge_index[0], cohort.cross_row, rows])
    coefficient = (cohort.degree(with_cross=True) + 1).to(cohort.x.dtype).rsqrt()[source]
    if cohort.edge_weight is not None:
        # The last entries are the nodes themselves, with weight 1.
        coefficient[: len(source) - len(rows)] *= _weights(cohort)
    matrix = SparseMatrix.from_coo(target, source, coefficient, (len(closure.ids), cohort.num_rows))
    return multiply(matrix, cohort.x)


def aggregated_view(cohort: Cohort, closure: Closure, sums: Rows, degrees: Tensor) -> View:
    """Make the view for 2 hops: the closure with aggregated features, and edges into the client's nodes."""
    degree = degrees[:, 0]
    inside = closure.local_row[cohort.edge_index]
    across = torch.stack([closure.remote_row, closure.local_row[cohort.cross_row]])
    y = cohort.y.new_full((len(closure.ids),), -1).index_copy(0, closure.local_row, cohort.y)
    return View(
        x=_scale_rows(sums, degree),
        ids=closure.ids,
        client=closure.client,
        num_clients=cohort.num_clients,
        y=y,
        degree=degree,
        # Layer 0 only transforms. Layer 1 uses all neighbours. Later layers use the neighbours at this
        # client, because the client has no hidden rows of others.
        edges=(inside, torch.cat([inside, across], 1), inside),
        aggregated=True,
        edge_weight=None
        if cohort.edge_weight is None
        else (cohort.edge_weight, _weights(cohort), cohort.edge_weight),
    )


def aggregated_local_view(cohort: Cohort, sums: Rows) -> View:
    """Make the view for 1 hop: the client's nodes with aggregated features, and the edges between them."""
    degree = cohort.degree(with_cross=True)
    return replace(own_view(cohort), x=_scale_rows(sums, degree), degree=degree, aggregated=True)


def _scale_rows(x: Rows, degree: Tensor) -> Rows:
    """Divide each row by the square root of its degree plus 1."""
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values * (degree + 1).to(x.dtype).rsqrt()[x.row])
    return x * (degree + 1).to(x.dtype).rsqrt()[:, None]


def prepare_view(cohort: Cohort, view: View, closure: Closure | None, config: FedGCNConfig) -> Prepared:
    return prepare(cohort, view, None if closure is None else closure.local_row, config, personal=False)


# ---- under encryption --------------------------------------------------------------------------------------


def border_of(cohort: Cohort, closure: Closure) -> Tensor:
    """Find the border of every client: rows of nodes that are in the closure of another client too.

    These are the neighbours at other clients, and the client's nodes that have such a neighbour.

    Args:
        cohort: The clients' data.
        closure: Their closures.

    Returns:
        Rows of the closure, [S] int64, ascending.
    """
    border = ~closure.is_local
    border[closure.local_row[cohort.cross_row]] = True
    return border.nonzero()[:, 0]


def border_ids(closure: Closure, border: Tensor) -> RowIds:
    """Return the ids and clients of the border's rows.

    Args:
        closure: The closures.
        border: The result of `border_of`, [S].

    Returns:
        Ids and clients, [S].
    """
    return RowIds(closure.ids[border], closure.client[border])


def border_rows(sums: Rows, degrees: Tensor, border: Tensor, hops: int) -> Tensor:
    """Return the border's partial sums, [S, F]; with two hops also its partial degrees, [S, F + 1]."""
    rows = pay.take_rows(sums, border)
    rows = rows.to_dense() if isinstance(rows, SparseMatrix) else rows
    return rows if hops == 1 else torch.cat([rows, degrees[border].to(rows)], 1)


def local_of_border(closure: Closure, border: Tensor) -> Tensor:
    """Return which of the border's rows are nodes of their client, [S] bool."""
    return closure.is_local[border]


def complete_sums(
    closure: Closure, partial: Rows, border: Tensor, totals: Tensor, local: Tensor | None
) -> Rows:
    """Replace the border's partial sums by the total sums that the client received.

    Outside the border a client's partial sum is the total sum.

    Args:
        closure: The closures.
        partial: The partial sums, [M, F].
        border: The border's rows, [S].
        totals: The total sums that the client received, of the border's rows in `local`; further columns are
            ignored.
        local: Which of the border's rows are nodes of their client, [S] bool, with one hop; None with two.

    Returns:
        The sums of the closure, [M, F]; with one hop, of the client's nodes, [N, F].
    """
    received = border if local is None else border[local]
    sums = put_rows(partial, received, totals[:, : partial.shape[1]])
    return sums if local is None else pay.take_rows(sums, closure.local_row)


def complete_degrees(degrees: Tensor, border: Tensor, totals: Tensor) -> Tensor:
    """Replace the border's partial degrees [M, 1] by the last column of the totals that the client received.

    Integers are multiples of the grid's step, so encryption does not change them.
    """
    return degrees.index_copy(0, border, totals[:, -1:].to(degrees.dtype))


def put_rows(x: Rows, at: Tensor, rows: Tensor) -> Rows:
    """Replace the rows of x at the places `at` [n] by `rows` [n, F]; the result is sparse if x is."""
    new = SparseMatrix.from_dense(rows) if isinstance(x, SparseMatrix) else rows
    index = torch.arange(x.shape[0], device=at.device)
    index[at] = x.shape[0] + torch.arange(len(at), device=at.device)
    return pay.take_rows(pay.concat_rows([x, new]), index)


def encrypted_exchange(
    fed: Federation, data: Located, closure: Located, task: Task, config: FedGCNConfig
) -> tuple[Located, Located | None]:
    """Exchange sums under encryption; returns the same as `plaintext_exchange`."""
    border = fed.clients.run(border_of, data, closure)
    partial = fed.clients.run(partial_sums, data, closure)
    degrees = fed.clients.run(partial_degrees, data, closure)
    local = fed.clients.run(local_of_border, closure, border) if config.hops == 1 else None
    totals = encrypted_sum(
        fed,
        fed.clients.run(border_rows, partial, degrees, border, config.hops),
        fed.clients.run(border_ids, closure, border),
        width=task.num_features + (config.hops == 2),
        name=ENCRYPTED,
        wanted=local,
    )
    sums = fed.clients.run(complete_sums, closure, partial, border, totals, local)
    if config.hops == 1:
        return sums, None
    return sums, fed.clients.run(complete_degrees, degrees, border, totals)


# ---- the program over places -------------------------------------------------------------------------------


def memory(extent: GraphExtent, config: FedGCNConfig) -> float:
    """Estimate the memory of the exchange in bytes: six dense copies of the sums, sent and received."""
    return 6 * NUMBER * extent.closure * extent.features if config.hops else 0.0


def setup(fed: Federation, data: Located, task: Task, config: FedGCNConfig) -> State:
    """Exchange the sums of features, and prepare the averaging of weights.

    Args:
        fed: The federation.
        data: The clients' data.
        task: The learning task.
        config: The settings; hops=0 exchanges nothing.

    Returns:
        The state before the first round.
    """
    if config.hops == 0:
        return aggregation_rules.setup(fed, data, task, config)
    check_sums(fed, config.aggregation, clients_in_round(config, fed.num_clients))
    fed.begin("summing the features of neighbours")
    closure = fed.clients.run(find_closure, data)
    aggregated, degrees = EXCHANGES[config.exchange](fed, data, closure, task, config)
    if config.hops == 1:
        view = fed.clients.run(aggregated_local_view, data, aggregated)
        prepared = fed.clients.run(prepare_view, data, view, None, config)
    else:
        view = fed.clients.run(aggregated_view, data, closure, aggregated, degrees)
        prepared = fed.clients.run(prepare_view, data, view, closure, config)
    return aggregation_rules.start(fed, prepared, task, config)


def plaintext_exchange(
    fed: Federation, data: Located, closure: Located, task: Task, config: FedGCNConfig
) -> tuple[Located, Located | None]:
    """Exchange sums in plaintext.

    Returns, at the clients, the sums [M, F] and degrees [M, 1] of the closure; with one hop the sums [N, F]
    of the client's nodes, and None.
    """
    route = fed.route(fed.clients.run(closure_ids, closure), name="fedgcn/closure_ids")
    partial = fed.clients.run(partial_sums, data, closure)
    sums = fed.sum(partial, route, name="fedgcn/partial_sums", grad=False)
    if config.hops == 1:
        local_route = fed.route(fed.clients.run(local_ids, data), name="fedgcn/local_ids")
        # The server has a sum for every id of the closures, and selects those of the clients' own nodes.
        local = fed.server.run(rows_of_ids, sums, fed.table(route), fed.table(local_route))
        return fed.download(local, local_route, name="fedgcn/aggregates", grad=False, like=partial), None
    counts = fed.clients.run(partial_degrees, data, closure)
    degrees = fed.sum(counts, route, name="fedgcn/neighbour_counts", grad=False)
    degrees = fed.download(degrees, route, name="fedgcn/degrees", grad=False, like=counts)
    return fed.download(sums, route, name="fedgcn/aggregates", grad=False, like=partial), degrees


#: The exchange before training for each protection. Under encryption clients send only the rows of their
#: borders.
EXCHANGES = {"plaintext": plaintext_exchange, "encrypted": encrypted_exchange}


def rows_of_ids(x: Rows, have: RouteTable, want: RouteTable) -> Rows:
    index = torch.searchsorted(have.ids, want.ids)
    return x.select_rows(index) if isinstance(x, SparseMatrix) else x[index]


#: The messages of the exchange; those of averaging come in addition.
MESSAGES = {
    "fedgcn/closure_ids": "Each client sends the server the ids of its nodes and of their neighbours at "
    "other clients. The server learns which nodes are in the closure of each client.",
    "fedgcn/local_ids": "Each client sends the server the ids of its own nodes. The server learns which "
    "client has which node.",
    "fedgcn/partial_sums": "Each client sends the server, for every node of its closure, the sum of the "
    "features of the node and its neighbours, as far as they are at this client. The server reads each sum; "
    "a sum with one term is that node's features up to a factor.",
    "fedgcn/neighbour_counts": "Each client sends the server, for every node of its closure, how many "
    "neighbours the node has at this client (in a weighted graph, the sum of its edges' weights). The "
    "server reads it.",
    "fedgcn/degrees": "The server sends each client, for every node of its closure, how many neighbours the "
    "node has in the whole graph (in a weighted graph, the sum of its edges' weights).",
    "fedgcn/aggregates": "The server sends each client, for each of these nodes, the sum of the features of "
    "the node and its neighbours at all clients. The client reads it; if the only neighbour of another "
    "client's node is at this client, the client can compute that node's features.",
    # With exchange=encrypted, in place of all messages above:
    "fedgcn/encrypted/key_request": "Each client asks another client for the clients' key. The request "
    "contains nothing else.",
    "fedgcn/encrypted/secret_key": "One client sends the other clients the key that all of them encrypt and "
    "decrypt with. A client that gives this key to the server lets it read the sums of every client.",
    "fedgcn/encrypted/public_context": "A client sends the server the parameters of the encryption, without "
    "a key. They are public.",
    "fedgcn/encrypted/ids": "Each client sends the server the ids of its border: its nodes with neighbours "
    "at other clients, and these neighbours. The server learns which nodes are in the border of each client.",
    "fedgcn/encrypted/wanted_ids": "Each client sends the server the ids of the border's nodes that are its "
    "own. The server learns which client has which of these nodes.",
    "fedgcn/encrypted/packing": "If several nodes fit into a ciphertext, the server sends each client which "
    "of its nodes share one. The client learns which of them are in the borders of the same clients, and "
    "not which clients these are.",
    "fedgcn/encrypted/ciphertext_ids": "Each client sends the server a name for each of its ciphertexts: the "
    "id of one of its nodes. The server knows these ids already.",
    "fedgcn/encrypted/wanted_ciphertext_ids": "Each client sends the server the names of the ciphertexts "
    "that have its own nodes. The server knows these ids already.",
    "fedgcn/encrypted/rows": "Each client sends the server, encrypted, for every node of its border the sum "
    "of the features of the node and its neighbours, as far as they are at this client, and with hops=2 the "
    "number of neighbours at this client. The server adds ciphertexts and cannot read them; with "
    "protocols=simulated it could.",
    "fedgcn/encrypted/sums": "The server sends each client, encrypted, for each of these nodes the sum of "
    "the features of the node and its neighbours at all clients, and with hops=2 the number of neighbours. "
    "The client decrypts it; if the only neighbour of another client's node is at this client, the client "
    "can compute that node's features.",
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
        protection="none: the server reads sums and weights; with exchange=encrypted the sums are encrypted "
        "under one key of all clients; with aggregation=secure the server reads the sum of the weights only",
        messages={**aggregation_rules.MESSAGES, **MESSAGES},
    ),
)

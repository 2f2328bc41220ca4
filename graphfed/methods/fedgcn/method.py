"""FedGCN: Yao, Jin, Ravi and Joe-Wong, "FedGCN: convergence-communication tradeoffs in federated training of
graph convolutional networks", NeurIPS 2023 (arXiv:2201.12433v7). One exchange of feature sums before
training, then FedAvg.

    paper                  here
    A-tilde_ij, Eq. (1)    w_ij / sqrt((d_i + 1)(d_j + 1)), self loops of weight 1 included; d_i = sum_j w_ij
                           in the whole graph, and w_ij = 1 where it has no edge weights
    sum_j A-tilde_ij x_j   View.x: the aggregated features
    0-, 1-, 2-hop          hops

The equations have the numbers of docs/papers/fedgcn.md.

1. The closure of client k is V_k and the neighbours of V_k. Its border is the part of the closure that is in
   the closure of another client too: the neighbours at other clients, and the nodes of V_k that have such a
   neighbour. For every node i of its border, client k computes the partial sum of w_ij x_j / sqrt(d_j + 1)
   over the nodes j in V_k that are i or a neighbour of i, Eq. (3), and sends it to the server. A node outside
   every border has all its neighbours at its own client, which computes its sum alone.
2. The server adds the partial sums of each node, Eq. (5). It returns the sum to the client that has node i
   (1 hop), or to every client with i in its border (2 hops). The clients multiply it by 1 / sqrt(d_i + 1),
   Eq. (6).
3. Training is FedAvg, Eq. (7). The first layer transforms the aggregated features without aggregating again.
   Sparse features of nodes outside the border stay as they are, and the first layer computes A (X W) for them
   in place of (A X) W, because A X has many times the entries of X. The second layer uses the neighbours'
   aggregates (2 hops), which makes a two-layer GCN, Eq. (2), exact, or the client's own nodes only (1 hop).
   hops=0 exchanges nothing and is FedAvg.

What each participant learns (docs/papers/fedgcn.md has the attack):

- With exchange=plaintext the server reads every partial sum, which nodes are in the border of each client,
  and with 2 hops how many neighbours they have at each client. It learns nothing about nodes whose neighbours
  are all at their own client. A partial sum with one term is that node's features times a positive factor. A
  client reads sums over all clients; for a neighbour whose only neighbour is at this client, it computes the
  neighbour's features exactly.
- With exchange=encrypted the server adds ciphertexts (`federation.secure.encrypted_sum`). It learns which
  nodes are in the borders, and if features are narrow, which of these nodes are in the borders of the same
  clients. It reads no sum and no count. Clients learn the same as in plaintext.
- **All clients have the same key. A client that colludes with the server lets it read every partial sum.**

Encrypted sums differ from plaintext sums by at most `ckks.Grid(K).error`, 8e-5 for 10 clients; Eq. (8) is
the grid.

Differs from the paper (docs/papers/fedgcn.md gives the reasons, by these numbers): degrees are exchanged with
2 hops (1); sums are exchanged where the authors' program copies features (2); clients' weights are averaged
by n_k (3); a layer after the second uses the client's own nodes only (5); exact sums under encryption (6);
edge weights (7); sums that a client computes alone are not sent (8).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import RouteTable, RowIds
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.secure.encrypted_sum import encrypted_sum, select_ids
from graphfed.methods.averaging import program
from graphfed.methods.averaging.rules import RULE_SETTINGS
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common.local_training import Prepared
from graphfed.methods.parts import clients_in_round
from graphfed.methods.settings import Unless, settings
from graphfed.nn.batch import View
from graphfed.nn.sparse import SparseMatrix, multiply, sums_by

Rows = Tensor | SparseMatrix
#: The first part of the names of transfers in the encrypted exchange.
ENCRYPTED = "fedgcn/encrypted"


@settings
class ClosureSums:
    """The exchange before training."""

    hops: Literal[0, 1, 2] = Field(default=2, description="number of hops of the exchange before training")
    exchange: Annotated[Literal["plaintext", "encrypted"], Unless("hops", 0)] = Field(
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
        remote_row: The closure's row of the remote node of each cross-client edge, [C]; [0] if the rows are
            the clients' own nodes only.
    """

    ids: Tensor
    client: Tensor
    local_row: Tensor
    is_local: Tensor
    remote_row: Tensor


def find_closure(cohort: Cohort) -> Closure:
    """Find the one-hop closure of every client of a cohort."""
    # The client that has the edge, and not the one that has the remote node.
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


def neighbour_counts(cohort: Cohort, closure: Closure) -> Tensor:
    """Count the neighbours that each node of the closure has at its client, [M, 1]."""
    return torch.bincount(_edges_into(cohort, closure)[1], minlength=len(closure.ids))[:, None]


def partial_degrees(cohort: Cohort, closure: Closure) -> Tensor:
    """Compute sum_{j in N(i), j in V_k} w_ij for every node i of the closure, [M, 1]; Eq. (4).

    These are the neighbour counts if edges have no weights.
    """
    _, target, weight = _edges_into(cohort, closure)
    if weight is None:
        return neighbour_counts(cohort, closure)
    return sums_by(target, weight, len(closure.ids))[:, None]


def _edges_into(cohort: Cohort, closure: Closure) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the edges from the cohort's rows to the closure's: rows [E + C], rows [E + C], weights [E + C].

    The weights are None if edges have none.
    """
    # `received_local` has no remote rows, and then cross-client edges are left out.
    across = len(closure.remote_row)
    source = torch.cat([cohort.edge_index[0], cohort.cross_row[:across]])
    target = torch.cat([closure.local_row[cohort.edge_index[1]], closure.remote_row])
    if cohort.edge_weight is None:
        return source, target, None
    assert cohort.cross_weight is not None
    return source, target, torch.cat([cohort.edge_weight, cohort.cross_weight[:across]])


def border_of(cohort: Cohort, closure: Closure) -> Tensor:
    """Find the border of every client: the rows [S] of the closure, ascending, of nodes that are in another
    client's closure too.
    """
    # Every remote neighbour, and own nodes that have one. For other rows a partial sum is the total.
    border = ~closure.is_local
    border[closure.local_row[cohort.cross_row]] = True
    return border.nonzero()[:, 0]


def border_ids(closure: Closure, border: Tensor) -> RowIds:
    """Return the ids and clients of the border's rows [S] (`border_of`)."""
    return RowIds(closure.ids[border], closure.client[border])


def local_of_border(closure: Closure, border: Tensor) -> Tensor:
    """Return which of the border's rows are nodes of their client, [S] bool."""
    return closure.is_local[border]


def partial_sums(cohort: Cohort, closure: Closure, rows: Tensor) -> Rows:
    """Compute the partial sums [S, F] of the nodes i in the rows `rows` [S] of the closure.

    A partial sum is sum_{j in N(i) or j = i, j in V_k} w_ij x_j / sqrt(d_j + 1), with w_ii = 1; Eq. (3).
    """
    assert cohort.x is not None
    own = torch.arange(cohort.num_rows, device=cohort.id.device)
    source, target, weight = _edges_into(cohort, closure)
    source, target = torch.cat([source, own]), torch.cat([target, closure.local_row])
    # Eq. (3) divides by sqrt(d_j + 1) only; the receiver divides by sqrt(d_i + 1), Eq. (6).
    coefficient = (cohort.degree(with_cross=True) + 1).to(cohort.x.dtype).rsqrt()[source]
    if weight is not None:
        # The last entries are the nodes themselves, with weight 1.
        coefficient[: len(weight)] *= weight
    # Sums are computed for the asked rows only: with 1 hop most of the closure needs none.
    number = _numbers(rows, len(closure.ids))[target]
    kept = number >= 0
    shape = (len(rows), cohort.num_rows)
    matrix = SparseMatrix.from_coo(number[kept], source[kept], coefficient[kept], shape)
    return multiply(matrix, cohort.x)


def _numbers(rows: Tensor, size: int) -> Tensor:
    """Return the position in `rows` of each of `size` rows, -1 for a row that is not among them, [size]."""
    positions = torch.arange(len(rows), device=rows.device)
    return torch.full((size,), -1, device=rows.device).index_copy(0, rows, positions)


# ---- the view of the graph ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Received:
    """What a cohort knows after the exchange.

    Attributes:
        closure: With 2 hops the closures, with 1 hop the clients' own nodes; M rows.
        border: [S] int64, the rows of the closure whose sums were received.
        sums: [S, F], these sums.
        degree: [M], the degree of every row in the whole graph.
    """

    closure: Closure
    border: Tensor
    sums: Rows
    degree: Tensor


def received_closure(
    closure: Closure, border: Tensor, sums: Rows, partial: Tensor, total: Tensor
) -> Received:
    """Complete the degrees of the closures, for 2 hops.

    Args:
        closure: The closures of a cohort's clients, M rows.
        border: The rows of the closures' borders, [S].
        sums: The border's sums over all clients, [S, F].
        partial: The degrees of the closure at its clients, [M, 1].
        total: The border's degrees in the whole graph, [S, 1].
    """
    # Outside the border all neighbours are at the client, so its own count is the degree.
    degree = partial.index_copy(0, border, total.to(partial.dtype))[:, 0]
    return Received(closure, border, sums, degree)


def received_local(cohort: Cohort, sums: Rows) -> Received:
    """Return the clients' own nodes, for 1 hop, with the `sums` of those that have a remote neighbour."""
    rows = torch.arange(cohort.num_rows, device=cohort.id.device)
    own = Closure(cohort.id, cohort.client, rows, torch.ones_like(rows, dtype=torch.bool), rows[:0])
    # Ascending rows are the order of (client, id) in which the border's local rows were asked for.
    return Received(own, torch.unique(cohort.cross_row), sums, cohort.degree(with_cross=True))


def make_view(cohort: Cohort, received: Received) -> tuple[View, Tensor]:
    """Make the clients' view of the graph: (A X) W of dense features, A (X W) of sparse ones.

    Returns:
        The view, and its row of each of the cohort's rows, [N] int64.
    """
    if isinstance(cohort.x, SparseMatrix):
        return _sparse_view(cohort, cohort.x, received)
    return _summed_view(cohort, received), received.closure.local_row


def _summed_view(cohort: Cohort, received: Received) -> View:
    """Make the view whose first layer only transforms: every row of the closure has aggregated features."""
    closure, degree = received.closure, received.degree
    sums = partial_sums(cohort, closure, torch.arange(len(closure.ids), device=degree.device))
    assert isinstance(sums, Tensor)
    assert isinstance(received.sums, Tensor)
    # Rows outside the border have their total sum already.
    sums = sums.index_copy(0, received.border, received.sums)
    inside, inside_weight = closure.local_row[cohort.edge_index], cohort.edge_weight
    edges, weight = _second_layer(cohort, closure)
    return View(
        x=_scale_rows(sums, (degree + 1).to(sums.dtype).rsqrt()),  # Eq. (6)
        ids=closure.ids,
        client=closure.client,
        num_clients=cohort.num_clients,
        y=_labels(cohort, len(closure.ids), closure.local_row),
        degree=degree,
        # Later layers use the neighbours at this client, because the client has no hidden rows of others.
        edges=(inside, edges, inside),
        aggregated=True,
        edge_weight=None
        if weight is None or inside_weight is None
        else (inside_weight, weight, inside_weight),
    )


def _sparse_view(cohort: Cohort, features: SparseMatrix, received: Received) -> tuple[View, Tensor]:
    """Make the view in which only the border has aggregated features, and other rows have their own.

    The first layer aggregates into rows outside the border, whose neighbours are all at this client, and
    leaves the border's rows as they are. A row of the border that is a neighbour of such a row has a second
    row in the view, with its own features. So the view has the M rows of the closure and R second rows.
    """
    closure, border, size = received.closure, received.border, len(received.closure.ids)
    inside = closure.local_row[cohort.edge_index]
    summed = torch.zeros_like(closure.is_local).index_fill_(0, border, True)
    # Edges into rows that the first layer still has to aggregate
    inner = ~summed[inside[1]]
    again = torch.unique(inside[0, inner & summed[inside[0]]])
    # The view's order is by client. `place` is the row of the view of each row of the closure, `own_place` of
    # the row with its own features.
    closure_row = torch.cat([torch.arange(size, device=border.device), again])
    order = torch.argsort(closure.client[closure_row], stable=True)
    row = torch.argsort(order)
    place, own_place = row[:size], row[:size].index_copy(0, again, row[size:])
    # A GCN's self-loop multiplies a row without edges by 1 / (d_i + 1), which leaves s_i / sqrt(d_i + 1).
    # So these rows are Eq. (6) after it.
    sums = _scale_rows(received.sums, (received.degree[border] + 1).to(features.dtype).sqrt())
    own_row = torch.empty_like(closure.ids).index_copy_(
        0, closure.local_row, torch.arange(cohort.num_rows, device=border.device)
    )
    sum_row = torch.arange(len(border), device=border.device) + cohort.num_rows
    source = torch.cat([own_row.index_copy(0, border, sum_row), own_row[again]])[order]
    edges, weight = _second_layer(cohort, closure)
    inside_weight = cohort.edge_weight
    view = View(
        x=pay.take_rows(pay.concat_rows([features, sums]), source),
        ids=closure.ids[closure_row][order],
        client=closure.client[closure_row][order],
        num_clients=cohort.num_clients,
        y=_labels(cohort, len(order), place[closure.local_row]),
        degree=received.degree[closure_row][order],
        edges=(
            torch.stack([own_place[inside[0, inner]], place[inside[1, inner]]]),
            place[edges],
            place[inside],
        ),
        edge_weight=None
        if weight is None or inside_weight is None
        else (inside_weight[inner], weight, inside_weight),
    )
    return view, place[closure.local_row]


def _second_layer(cohort: Cohort, closure: Closure) -> tuple[Tensor, Tensor | None]:
    """Return the edges into the clients' nodes from the closure's rows, [2, E], and their weights."""
    row, other, weight = _edges_into(cohort, closure)
    # Every edge is there in both directions, so the edges into the closure, reversed, are those out of it.
    return torch.stack([other, closure.local_row[row]]), weight


def _labels(cohort: Cohort, size: int, place: Tensor) -> Tensor:
    """Place the labels of the cohort's rows among `size` rows; -1 elsewhere."""
    return cohort.y.new_full((size,), -1).index_copy(0, place, cohort.y)


def _scale_rows(x: Rows, factor: Tensor) -> Rows:
    """Multiply each row by its factor."""
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values * factor[x.row])
    return x * factor[:, None]


def prepare_view(cohort: Cohort, received: Received, config: AveragingSettings) -> Prepared:
    view, place = make_view(cohort, received)
    return program.prepare_view(cohort, view, place, config)


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: AveragingSettings) -> State:
    """Exchange the sums of features, unless hops=0, and prepare the averaging of weights."""
    # Without an exchange this is FedAvg on the clients' own subgraphs.
    if config.exchange.hops == 0:
        return program.setup(fed, data, task, config)
    check_sums(fed, config.sums.aggregation, clients_in_round(config, fed.num_clients))
    fed.begin("summing the features of neighbours")
    received = exchange_sums(fed, data, task, config)
    prepared = fed.clients.run(prepare_view, data, received, config)
    return program.start(fed, prepared, task, config)


def exchange_sums(fed: Federation, data: Located, task: Task, config: AveragingSettings) -> Located:
    """Exchange the sums of the borders; return `Received`, at the clients."""
    closure = fed.clients.run(find_closure, data)
    border = fed.clients.run(border_of, data, closure)
    sums = fed.clients.run(partial_sums, data, closure, border)
    ids, exchange = fed.clients.run(border_ids, closure, border), EXCHANGES[config.exchange.exchange]
    if config.exchange.hops == 1:
        local = fed.clients.run(local_of_border, closure, border)
        sums, _ = exchange(fed, sums, ids, None, local, task)
        return fed.clients.run(received_local, data, sums)
    degrees = fed.clients.run(partial_degrees, data, closure)
    border_degrees = fed.clients.run(pay.take_rows, degrees, border)
    sums, totals = exchange(fed, sums, ids, border_degrees, None, task)
    return fed.clients.run(received_closure, closure, border, sums, degrees, totals)


def plaintext_exchange(
    fed: Federation, sums: Located, ids: Located, degrees: Located | None, local: Located | None, task: Task
) -> tuple[Located, Located | None]:
    """Add the borders' rows over clients, in plaintext at the server.

    Args:
        sums: The partial sums, [S, F] at the clients.
        degrees: The partial degrees, [S, 1]; None with 1 hop.
        local: Which of the rows are nodes of their client, [S] bool, whose sums it receives; None: all.

    Returns:
        At the clients, the sums [S, F] and, unless None was given, the degrees [S, 1]; with `local` a row for
        each node of the client.
    """
    route = fed.route(ids, name="fedgcn/border_ids")
    # The server adds rows of one id; each client reads the total and not the terms.
    totals = fed.sum(sums, route, name="fedgcn/partial_sums", grad=False)  # Eq. (5)
    back = route
    if local is not None:
        # 1 hop: only the client that has the node gets the sum, so another route goes back.
        back = fed.route(fed.clients.run(select_ids, ids, local), name="fedgcn/local_ids")
        totals = fed.server.run(rows_of_ids, totals, fed.table(route), fed.table(back))
    if degrees is not None:
        counts = fed.sum(degrees, route, name="fedgcn/neighbour_counts", grad=False)  # Eq. (5)
        degrees = fed.download(counts, route, name="fedgcn/degrees", grad=False, like=degrees)
    return fed.download(totals, back, name="fedgcn/aggregates", grad=False, like=sums), degrees


def encrypted_exchange(
    fed: Federation, sums: Located, ids: Located, degrees: Located | None, local: Located | None, task: Task
) -> tuple[Located, Located | None]:
    """Add the borders' rows over clients under encryption; see `plaintext_exchange`."""
    # With 2 hops the degree is one more column.
    rows = fed.clients.run(with_degrees, sums, degrees)
    width = task.num_features + (degrees is not None)
    totals = encrypted_sum(fed, rows, ids, width=width, name=ENCRYPTED, wanted=local)  # Eq. (5)
    return fed.clients.run(split_degrees, totals, sums, degrees, outputs=2)


def with_degrees(sums: Rows, degrees: Tensor | None) -> Tensor:
    dense = sums.to_dense() if isinstance(sums, SparseMatrix) else sums
    return dense if degrees is None else torch.cat([dense, degrees.to(dense)], 1)


def split_degrees(totals: Tensor, sums: Rows, degrees: Tensor | None) -> tuple[Rows, Tensor | None]:
    """Split decrypted rows into sums, stored like the sent ones, and degrees.

    Integers are multiples of the grid's step, so encryption does not change them.
    """
    # An encrypted row has a slot for every feature, zeros included.
    dense = totals[:, : sums.shape[1]]
    total = SparseMatrix.from_dense(dense) if isinstance(sums, SparseMatrix) else dense
    return total, None if degrees is None else totals[:, -1:]


#: The exchange before training for each protection.
EXCHANGES = {"plaintext": plaintext_exchange, "encrypted": encrypted_exchange}


def rows_of_ids(x: Rows, have: RouteTable, want: RouteTable) -> Rows:
    index = torch.searchsorted(have.ids, want.ids)
    return x.select_rows(index) if isinstance(x, SparseMatrix) else x[index]


#: The messages of the exchange; those of averaging come in addition.
MESSAGES = {
    "fedgcn/border_ids": "Each client sends the server the ids of its border: its nodes with neighbours at "
    "other clients, and these neighbours. The server learns which nodes are in the border of each client.",
    "fedgcn/local_ids": "With hops=1: each client sends the server the ids of the border's nodes that are "
    "its own. The server learns which client has which of these nodes.",
    "fedgcn/partial_sums": "Each client sends the server, for every node of its border, the sum of the "
    "features of the node and its neighbours, as far as they are at this client. The server reads each sum; "
    "a sum with one term is that node's features up to a factor.",
    "fedgcn/neighbour_counts": "Each client sends the server, for every node of its border, how many "
    "neighbours the node has at this client (in a weighted graph, the sum of its edges' weights). The "
    "server reads it.",
    "fedgcn/degrees": "The server sends each client, for every node of its border, how many neighbours the "
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
    "fedgcn/encrypted/ids": "With exchange=encrypted: each client sends the server the ids of its border, as "
    "in fedgcn/border_ids. The server learns which nodes are in the border of each client.",
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
    config=AveragingSettings,
    parts={"of_rule": RULE_SETTINGS, "exchange": ClosureSums},
    offers={"backbone": ("gcn",)},
    check_settings=program.check_settings,
    setup=setup,
    round=program.round,
    predict=program.predict,
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
        messages={**program.RULE_MESSAGES, **MESSAGES},
    ),
)

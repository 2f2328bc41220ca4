"""The graphs of FedGraph's clients, and samples of them (Chen, Li, Miyazaki and Wu, "FedGraph", Algorithm 2).

Everything here runs at the clients, for all clients of a cohort at once. A row is a node at a client, and a
remote neighbour is a node of another client that is a neighbour of a row; a node is one remote neighbour for
each client that has an edge to it. The self entry of a row is that of the node itself, its self loop.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from graphfed.federation.cohort import Cohort
from graphfed.methods.common.remote_neighbours import remote_neighbours
from graphfed.methods.fedgraph.config import Sharing
from graphfed.nn.pattern import Pattern
from graphfed.nn.sparse import SparseMatrix, pair_columns, ranges, shift_columns
from graphfed.random import entry_words, uniform, uniform_entries

#: If a larger fraction of the rows enters the first layer, all rows enter it: multiplying the unused rows
#: costs less than building a sparse matrix of the used ones.
TAKE_ALL = 0.4


@dataclass(frozen=True, eq=False)
class Importance:
    """FastGCN's sampling probabilities.

    Attributes:
        columns: The columns of the adjacency that can be drawn, in the order of the clients, [U].
        cumulative: Their cumulative probabilities, [U]; those of the cohort's client k are from k to k + 1.
        probability: The probability of each column in a single draw of its client, [N + M].
    """

    columns: Tensor
    cumulative: Tensor
    probability: Tensor


@dataclass(frozen=True, eq=False)
class ClientGraph:
    """The graphs of K clients, with N rows and M remote neighbours.

    The neighbours of row v, with v itself, are the entries starts[v] to starts[v] + num_all[v] - 1 of the
    adjacency; the first num_internal[v] of them are at the same client.

    Attributes:
        x: The features, [N, F].
        x_by_client: The features with columns renumbered for each client's own weights (`shift_columns`);
            None if x is dense.
        weight_pairs: The (client, feature) pairs whose first-layer weights can differ (`pair_columns`); None
            if x is dense.
        x_words: A word for each stored entry of x, for dropout; None if x is dense.
        ids: The id of each row's node, [N].
        client: The index in the cohort of each row's client, [N].
        y: The labels, [N].
        client_ids: The stable ids of the clients, [K].
        train_rows: The rows of training nodes, [n].
        num_train: The number of training nodes of each client, [K].
        starts: The first entry of each row, [N].
        num_internal: The number of entries of each row at its own client, the self entry included, [N].
        num_all: The number of entries of each row, [N].
        column: The column of each entry: a row, or N + the number of a remote neighbour, [E].
        is_self: Whether an entry is the row itself, bool [E].
        entry_words: A word for each entry, for the draws of samplers, [E].
        first: Q(v, u) of each entry in the first layer, [E]. For a remote neighbour u it lacks the factor
            1 / sqrt(D_uu), which only the owner knows.
        later: The same for the later layers, [E].
        scale: 1 / sqrt(D_vv) of each row, by which the rows that are sent are multiplied, [N].
        owner: The client that holds each remote neighbour, [M].
        importance: FastGCN's probabilities in the first and in the later layers; None for other samplers.
        class_weights: The weight of each class in the loss, [C]; None: all 1.
    """

    x: Tensor | SparseMatrix
    x_by_client: SparseMatrix | None
    weight_pairs: tuple[Tensor, Tensor] | None
    x_words: Tensor | None
    ids: Tensor
    client: Tensor
    y: Tensor
    client_ids: Tensor
    train_rows: Tensor
    num_train: Tensor
    starts: Tensor
    num_internal: Tensor
    num_all: Tensor
    column: Tensor
    is_self: Tensor
    entry_words: Tensor
    first: Tensor
    later: Tensor
    scale: Tensor
    owner: Tensor
    importance: tuple[Importance, Importance] | None
    class_weights: Tensor | None

    @property
    def num_rows(self) -> int:
        """N, the number of rows."""
        return len(self.ids)

    @property
    def num_remote(self) -> int:
        """M, the number of remote neighbours."""
        return len(self.owner)

    @property
    def num_clients(self) -> int:
        """K, the number of clients."""
        return len(self.num_train)

    @cached_property
    def num_nonzero(self) -> Tensor:
        """The number of non-zero features of each row, [N]."""
        if isinstance(self.x, SparseMatrix):
            return self.x.indptr.diff().long()
        return torch.full_like(self.ids, self.x.shape[1])


# ---- the graphs of the clients -----------------------------------------------------------------------------


def build_graph(cohort: Cohort, sharing: Sharing, needs_importance: bool) -> ClientGraph:
    """Build the graphs of a cohort's clients; needs_importance: whether FastGCN samples."""
    has_remote, has_remote_first = sharing.sent_embeddings != "none", sharing.sends_embeddings(0)
    n, device = cohort.num_rows, cohort.id.device
    rows = torch.arange(n, device=device)
    first_edge, remote = remote_neighbours(cohort)
    row, column = [rows, cohort.edge_index[1]], [rows, cohort.edge_index[0]]
    ids, weight = (
        cohort.id,
        [torch.ones(n, device=device), _weights(cohort.edge_weight, cohort.edge_index[0])],
    )
    num_remote = 0
    if has_remote:
        num_remote = len(first_edge)
        row.append(cohort.cross_row)
        column.append(n + remote)
        ids = torch.cat([ids, cohort.cross_id[first_edge]])
        weight.append(_weights(cohort.cross_weight, remote))
    # A + I of Eq. (1)
    adjacency = SparseMatrix.from_coo(
        torch.cat(row), torch.cat(column), torch.cat(weight), (n, n + num_remote)
    )
    source, target = adjacency.row, adjacency.indices.long()
    is_internal = target < n
    internal_degree, degree = (
        (cohort.degree(with_cross=with_cross) + 1).double() for with_cross in (False, has_remote)
    )
    scale = degree.rsqrt()
    first_scale = (
        internal_degree.rsqrt() if sharing.first_degrees == "internal" and not has_remote_first else scale
    )
    internal_target = torch.where(is_internal, target, 0)

    def normalise(scale: Tensor) -> Tensor:
        # Eq. (1); the owner of a remote neighbour scales its row (`method.rows_to_send`).
        of_target = torch.where(is_internal, scale[internal_target], 1.0)
        return (adjacency.values.double() * scale[source] * of_target).to(torch.get_default_dtype())

    later = normalise(scale)
    first = later if first_scale is scale else normalise(first_scale)
    assert cohort.x is not None
    x_by_client = weight_pairs = x_words = None
    x = cohort.x
    if isinstance(x, SparseMatrix):
        x_words = entry_words(cohort.id[x.row], x.indices.long())
        weight_pairs = pair_columns(x, cohort.client, cohort.num_clients)
        if cohort.num_clients == 1:  # the rows that all clients share are this client's weights
            weight_pairs = (weight_pairs[0][:0], weight_pairs[1][:0])
        x_by_client = shift_columns(x, cohort.client, *weight_pairs)
    graph = ClientGraph(
        x=x,
        x_by_client=x_by_client,
        weight_pairs=weight_pairs,
        x_words=x_words,
        ids=cohort.id,
        client=cohort.client,
        y=cohort.y,
        client_ids=torch.tensor(cohort.clients, device=device),
        train_rows=cohort.rows("train"),
        num_train=cohort.counts(cohort.train),
        starts=adjacency.indptr[:-1].long(),
        num_internal=torch.bincount(source[is_internal], minlength=n),
        num_all=adjacency.indptr.diff().long(),
        column=target,
        is_self=target == source,
        entry_words=entry_words(cohort.id[source], ids[target]),
        first=first,
        later=later,
        scale=scale.to(torch.get_default_dtype()),
        owner=cohort.cross_client[first_edge[:num_remote]],
        importance=None,
        class_weights=cohort.class_weights,
    )
    if not needs_importance:
        return graph
    client = cohort.client
    if num_remote:
        client = torch.cat([client, client[cohort.cross_row[first_edge]]])
    importance = (_importance(graph, client, has_remote_first), _importance(graph, client, has_remote))
    return replace(graph, importance=importance)


def _weights(weight: Tensor | None, edges: Tensor) -> Tensor:
    """Return the weights of edges; 1 of each where there are none."""
    return torch.ones(len(edges), device=edges.device) if weight is None else weight


def _importance(graph: ClientGraph, client: Tensor, has_remote: bool) -> Importance:
    """Compute rho(u), proportional to the sum of Q(v, u)^2 over the client's own rows v; client [N + M]: of
    each column.

    A client does not know the degree of a remote neighbour. The number of edges to its own rows, plus 1,
    stands for it, which changes the variance and not the mean.
    """
    n, column = graph.num_rows, graph.column
    value = graph.later.double() if has_remote else graph.first.double()
    known_degree = torch.bincount(column, minlength=n + graph.num_remote).double() + 1
    value = torch.where(column < n, value, value / known_degree[column].sqrt())
    is_used = torch.ones_like(column, dtype=torch.bool) if has_remote else column < n
    mass = torch.zeros(n + graph.num_remote, dtype=torch.float64, device=column.device)
    mass = mass.index_add_(0, column[is_used], value[is_used] ** 2)
    total = torch.zeros(graph.num_clients, dtype=torch.float64, device=column.device)
    probability = mass / total.index_add_(0, client, mass)[client]
    order = torch.argsort(client, stable=True)
    order = order[mass[order] > 0]
    # A client without nodes has no column, so the intervals of the clients after it move up by 1.
    is_empty = torch.bincount(graph.client) == 0
    cumulative = probability[order].cumsum(0) + is_empty.cumsum(0)[client[order]]
    return Importance(order, cumulative, probability)


# ---- Algorithm 2: the sample of a local step ---------------------------------------------------------------


def fraction_of(counts: Tensor, fraction: Tensor) -> Tensor:
    """Return kappa for fractions of the training nodes, at least one node of a client that has any, [K]."""
    return (fraction * counts).round().clamp(min=1).minimum(counts.double())


def sample_batch(graph: ClientGraph, sizes: Tensor, key: int) -> Tensor:
    """Draw training nodes of each client without replacement.

    Args:
        sizes: kappa of each client, [K] int64.

    Returns:
        V^(L): the rows of the drawn nodes, ascending.
    """
    # Alg. 2, l. 1
    if bool((sizes >= graph.num_train).all()):
        return graph.train_rows
    client = graph.client[graph.train_rows]
    draw = uniform(key, graph.ids[graph.train_rows])[:, 0]
    order = torch.argsort(client + draw)
    before = graph.num_train.cumsum(0) - graph.num_train
    rank = torch.arange(len(order), device=order.device) - before[client]
    return graph.train_rows[order[rank < sizes[client]].sort().values]


@dataclass(frozen=True, eq=False)
class SampledNeighbours:
    """The sampled neighbours N^(l)(v) of the n rows v that leave a layer.

    Attributes:
        counts: The number of sampled entries of each row, [n].
        column: The column of each entry in the adjacency, [e].
        value: Q^(l)(v, u) of each entry, Eq. (7), [e].
    """

    counts: Tensor
    column: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class Sampled:
    """The entries that a sampler keeps, so that the mean of the layer's sum stays the full sum.

    A sampler gets the E entries of the n rows that leave the layer, in the order of the rows: `draw`, a
    uniform number in [0, 1) for each, [E]; `row`, the row of each, ascending, [E]; `is_self`, whether it is
    the row's self entry, bool [E]; and `counts`, the number of entries of each row, [n].

    Attributes:
        entries: Positions of the sampled entries, ascending, [e].
        factor: The factor of the weight of each, [e].
    """

    entries: Tensor
    factor: Tensor


def sample_neighbours(
    graph: ClientGraph,
    rows: Tensor,
    amount: Tensor | None,
    sampler: str,
    layer: int,
    has_remote: bool,
    key: int,
    requests: Tensor | None = None,
) -> tuple[SampledNeighbours, Tensor]:
    """Sample the neighbours over which a layer sums (Alg. 2, l. 3-6).

    Args:
        rows: V^(l+1): the rows that leave the layer, [n].
        amount: What the decision says for this layer, for each client, [K]: the probability of a neighbour,
            the number of neighbours, or the number of draws, depending on the sampler. None: all neighbours.
        sampler: "independent" (the ratio of Eq. (7)), "independent_ht" (1 / p), "fan_out" or "importance".
        layer: The number of the layer, from 0.
        has_remote: Whether the layer sums over remote neighbours.
        requests: The probability with which each client requests a remote neighbour from each other client,
            [K_h, K], for the independent samplers. None: 1.

    Returns:
        The sampled neighbours; and whether each remote neighbour is among them, bool [M].
    """
    counts = (graph.num_all if has_remote else graph.num_internal)[rows]
    entry = ranges(graph.starts[rows], counts)
    value = graph.first if layer == 0 else graph.later
    takes_all = sampler.startswith("independent") and all(
        limit is None or bool((limit >= 1).all()) for limit in (amount, requests)
    )
    if amount is None or takes_all:
        value = value[entry]
    else:
        numbers = torch.arange(len(rows), device=rows.device)
        row = torch.repeat_interleave(numbers, counts, output_size=len(entry))
        sampled = _run_sampler(
            graph, row, entry, counts, graph.client[rows], amount, requests, sampler, has_remote, key
        )
        entry, row = entry[sampled.entries], row[sampled.entries]
        # Eq. (7)
        value = value[entry] * sampled.factor.to(value.dtype)
        counts = torch.bincount(row, minlength=len(rows))
    column = graph.column[entry]
    is_requested = torch.zeros(graph.num_remote, dtype=torch.bool, device=rows.device)
    if has_remote:
        is_requested[column[column >= graph.num_rows] - graph.num_rows] = True
    return SampledNeighbours(counts, column, value), is_requested


def _run_sampler(
    graph: ClientGraph,
    row: Tensor,
    entry: Tensor,
    counts: Tensor,
    client: Tensor,
    amount: Tensor,
    requests: Tensor | None,
    sampler: str,
    has_remote: bool,
    key: int,
) -> Sampled:
    """Sample from the entries [E] of n rows, counts [n] each, of the clients `client` [n]."""
    row_amount = amount[client]
    if sampler == "importance":
        assert graph.importance is not None
        importance = graph.importance[1 if has_remote else 0]
        times = _draw_columns(graph, importance, amount.long(), key)
        column = graph.column[entry]
        return sample_by_importance(times[column], importance.probability[column], row_amount[row])
    draw, is_self = uniform_entries(key, graph.entry_words[entry]), graph.is_self[entry]
    if sampler == "fan_out":
        return sample_fan_out(draw, row_amount, row, is_self, counts)
    p = row_amount[row]
    if requests is not None and has_remote:
        remote = (graph.column[entry] >= graph.num_rows).nonzero()[:, 0]
        owner = graph.owner[graph.column[entry[remote]] - graph.num_rows]
        p[remote] *= requests[client[row[remote]], owner]
    return sample_independently(draw, p, row, is_self, counts, ratio=sampler == "independent")


def _draw_columns(graph: ClientGraph, importance: Importance, draws: Tensor, key: int) -> Tensor:
    """Count how often each column is drawn, [N + M]: `draws` [K] times at each client that has nodes, with
    replacement.
    """
    draws = torch.where(torch.bincount(graph.client, minlength=len(draws)) > 0, draws, 0)
    width = int(draws.max()) if len(draws) else 0
    point = uniform(key, graph.client_ids, width)
    client = torch.arange(len(draws), device=draws.device)
    point = (point + client[:, None])[torch.arange(width, device=draws.device) < draws[:, None]]
    place = torch.searchsorted(importance.cumulative, point, right=True)
    column = importance.columns[place.clamp(max=len(importance.columns) - 1)]
    return torch.bincount(column, minlength=len(importance.probability))


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a sample, with n_in rows that enter it and m remote neighbours.

    Attributes:
        rows: V^(l): the rows that enter it, ascending, [n_in].
        out: V^(l+1): the rows that leave it, [n].
        adjacency: Q^(l), over the rows that enter and the remote neighbours, [n, n_in + m].
        sent: The positions in `rows` of the rows that other clients have requested, [A]; None if the layer
            has no remote neighbours.
    """

    rows: Tensor
    out: Tensor
    adjacency: SparseMatrix
    sent: Tensor | None


def build_layer(
    graph: ClientGraph,
    out: Tensor,
    sampled: SampledNeighbours,
    is_requested: Tensor,
    requested: Tensor | None,
    is_first: bool,
) -> tuple[Layer, Tensor]:
    """Build a layer, after the clients have requested rows from each other.

    The rows that enter are the sampled ones (the rows that leave are among them), and those that other
    clients request.

    Args:
        out: The rows that leave the layer, [n].
        is_requested: Whether each remote neighbour is sampled, bool [M].
        requested: The rows that other clients request, [A]; None if the layer has no remote neighbours.
        is_first: Whether it is the first layer.

    Returns:
        The layer, and the rows that enter it, which leave the layer below.
    """
    n = graph.num_rows
    # Alg. 2, l. 7
    enters = torch.zeros(n, dtype=torch.bool, device=out.device)
    is_internal = sampled.column < n
    enters[sampled.column[is_internal]] = True
    if requested is not None:
        enters[requested] = True
    rows = enters.nonzero()[:, 0]
    if is_first and len(rows) > TAKE_ALL * n:
        rows = torch.arange(n, device=out.device)
    place = torch.empty(n + graph.num_remote, dtype=torch.int64, device=out.device)
    place[rows] = torch.arange(len(rows), device=out.device)
    place[n:] = is_requested.cumsum(0) + (len(rows) - 1)
    indptr = torch.cat([sampled.counts.new_zeros(1), sampled.counts.cumsum(0)]).int()
    shape = (len(out), len(rows) + int(is_requested.sum()))
    pattern = Pattern(indptr, place[sampled.column].int(), shape, once=True)
    sent = None if requested is None else place[requested]
    return Layer(rows, out, SparseMatrix(pattern, sampled.value), sent), rows


# ---- the samplers ------------------------------------------------------------------------------------------


def sample_independently(
    draw: Tensor, p: Tensor, row: Tensor, is_self: Tensor, counts: Tensor, ratio: bool
) -> Sampled:
    """Sample every entry with its probability p [E], independently; self entries always, with the factor 1.

    With `ratio` a sampled entry has the factor of Eq. (7): the number of the row's entries over the number of
    those that are sampled, both without the self entry. Given that at least one is sampled, the mean of the
    row's sum is then the full sum, if the row's probabilities are equal. Without it the factor is 1 / p
    (Horvitz and Thompson 1952); the mean of the row's sum is then always the full sum.
    """
    # Alg. 2, l. 4
    entries = (is_self | (draw < p)).nonzero()[:, 0]
    if ratio:
        # Eq. (7)
        num_sampled = torch.bincount(row[entries], minlength=len(counts)) - 1
        factor = ((counts - 1).double() / num_sampled.clamp(min=1))[row[entries]]
    else:
        factor = 1 / p[entries].double()
    return Sampled(entries, factor.masked_fill_(is_self[entries], 1.0))


def sample_fan_out(draw: Tensor, most: Tensor, row: Tensor, is_self: Tensor, counts: Tensor) -> Sampled:
    """Sample a fixed number of entries of a row, as GraphSAGE, but without replacement.

    The self entry is always sampled, with the factor 1. Of the other entries the `most` [n] with the smallest
    draws are sampled, with the number of the row's other entries over the number of those that are sampled as
    their factor. If `most` is at least the row's degree, the result is the full sum.
    """
    others = counts - 1
    is_sampled = torch.ones_like(is_self)
    exceeds = torch.repeat_interleave(others > most, counts, output_size=len(draw))
    large = (exceeds & ~is_self).nonzero()[:, 0]
    if len(large):
        rows = row[large]
        order = torch.argsort(rows + draw[large])
        first = torch.searchsorted(rows, rows)  # the position of the row's first entry in `large`
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        is_sampled[large] = rank - first < most[rows]
    entries = is_sampled.nonzero()[:, 0]
    of_row = others.double() / others.minimum(most).clamp(min=1)
    return Sampled(entries, of_row[row[entries]].masked_fill_(is_self[entries], 1.0))


def sample_by_importance(times: Tensor, probability: Tensor, draws: Tensor) -> Sampled:
    """Select the entries of drawn columns (FastGCN's importance sampling).

    The factor of an entry is the number of times [E] that its column was drawn over the expected number, that
    is the column's probability [E] in a draw times the draws [E] of the entry's client. So the mean over all
    draws is the full sum.
    """
    entries = (times > 0).nonzero()[:, 0]
    expected = draws[entries].double() * probability[entries].double()
    return Sampled(entries, times[entries].double() / expected)

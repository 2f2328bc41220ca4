"""A cohort's silos as FedGraph trains on them: neighbours here and elsewhere in one adjacency, samples of it,
and what a layer does with a sample (Chen, Li, Miyazaki and Wu, "FedGraph", Algorithms 1 and 2).

Everything here runs at the clients, on all silos of a cohort at once."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graphfed.federation.cohort import Cohort
from graphfed.federation.route import ExchangeIds
from graphfed.methods.fedgraph.sampling import Kept, by_chance, fan_out, in_proportion
from graphfed.nn.backbones import Weights
from graphfed.nn.layers import Dropout, tiled
from graphfed.nn.pattern import Pattern
from graphfed.nn.sparse import SparseMatrix, SparseWeights, pair_columns, ranges, shift_columns, spmm
from graphfed.nn.tiles import make_tiles
from graphfed.random import entry_words, uniform, uniform_entries

__all__ = [
    "Chosen",
    "ClientGraph",
    "Importance",
    "Layer",
    "aggregate",
    "answers",
    "batch_rows",
    "choose",
    "entering",
    "make_client_graph",
    "settle",
    "transform",
    "wants_of",
    "work_of",
]

#: With a larger share of the rows entering the first layer, all of them do: what is not used costs less than
#: a sparse matrix of those that are.
TAKE_ALL = 0.4


@dataclass(frozen=True, eq=False)
class Importance:
    """FastGCN's chances at each client: column [U] of the adjacency in the order of the clients, their
    cumulated chances [U], those of client k from k to k + 1; chance [N + M] of each column at a single
    draw."""

    column: Tensor
    cumulated: Tensor
    chance: Tensor


@dataclass(frozen=True, eq=False)
class ClientGraph:
    """N rows of K clients, and the M wants: nodes elsewhere that are a neighbour of some row.

    x [N, F]; apart: x with its columns renumbered for weights of each client's own (`pairs`), None where x is
    dense; words: of x's entries, for dropout; ids, client, y [N]; stable [K]: the clients' ids; train [n]:
    rows of training nodes; counts [K] of them.
    The neighbours of row v, v itself among them, are the entries starts[v] .. starts[v] + every[v] - 1, those
    at the same client first, inner[v] of them: column [E] is a row, or N + the number of a want; own [E]: v
    itself; near_words [E] for draws; first, later [E]: Q(v, u) in the first layer and in the later ones, for
    a want without its owner's 1 / sqrt(D_uu). scale [N]: 1 / sqrt(D_vv), what a row is sent with.
    importance: of the first and the later layers, where FastGCN samples. class_weights [C]: of the loss
    (None: all 1)."""

    x: Tensor | SparseMatrix
    apart: SparseMatrix | None
    pairs: tuple[Tensor, Tensor] | None
    words: Tensor | None
    ids: Tensor
    client: Tensor
    y: Tensor
    stable: Tensor
    train: Tensor
    counts: Tensor
    starts: Tensor
    inner: Tensor
    every: Tensor
    column: Tensor
    own: Tensor
    near_words: Tensor
    first: Tensor
    later: Tensor
    scale: Tensor
    num_wants: int
    importance: tuple[Importance, Importance] | None
    class_weights: Tensor | None

    @property
    def num_rows(self) -> int:
        return len(self.ids)

    @property
    def num_clients(self) -> int:
        return len(self.counts)

    @cached_property
    def entries(self) -> Tensor:
        """Non-zero features of each row, [N]."""
        if isinstance(self.x, SparseMatrix):
            return self.x.indptr.diff().long()
        return torch.full_like(self.ids, self.x.shape[1])


# ---- what a silo is ----------------------------------------------------------------------------------------


def _wanted(cohort: Cohort) -> tuple[Tensor, Tensor]:
    """The first cut edge of each want, [M], by client; and the want of each cut edge, [C]."""
    known, place = torch.unique(cohort.cross_id, return_inverse=True)
    clients = int(cohort.cross_client.max()) + 1 if len(cohort.cross_client) else 1
    client = cohort.client[cohort.cross_row]
    codes = (client * clients + cohort.cross_client) * max(len(known), 1) + place
    wants, of_edge = torch.unique(codes, return_inverse=True)
    edges = torch.arange(len(codes), device=codes.device)
    first = edges.new_full((len(wants),), len(codes)).scatter_reduce(0, of_edge, edges, "amin")
    return first, of_edge


def wants_of(cohort: Cohort) -> ExchangeIds:
    """The neighbours of a cohort's rows at other clients, each once for every client."""
    first, _ = _wanted(cohort)
    return ExchangeIds(
        owner=cohort.cross_client[first],
        ids=cohort.cross_id[first],
        client=cohort.client[cohort.cross_row[first]],
        held_ids=cohort.id,
        held_client=cohort.client,
    )


def make_client_graph(
    cohort: Cohort, shares: bool, first_degrees: str, importance: bool, shares_first: bool
) -> ClientGraph:
    """shares: whether there are neighbours elsewhere, in the first layer too if `shares_first`;
    first_degrees: "all" of them count in the first layer's degrees, or "internal" ones only, unless that
    layer sums over all of them; importance: whether FastGCN samples."""
    n, device = cohort.num_rows, cohort.id.device
    rows = torch.arange(n, device=device)
    first_edge, want = _wanted(cohort)
    row, column = [rows, cohort.edge_index[1]], [rows, cohort.edge_index[0]]
    ids, weight = cohort.id, [torch.ones(n, device=device)]
    weight.append(
        torch.ones(cohort.edge_index.shape[1], device=device)
        if cohort.edge_weight is None
        else cohort.edge_weight
    )
    num_wants = 0
    if shares:
        num_wants = len(first_edge)
        row.append(cohort.cross_row)
        column.append(n + want)
        ids = torch.cat([ids, cohort.cross_id[first_edge]])
        weight.append(
            torch.ones(len(want), device=device) if cohort.cross_weight is None else cohort.cross_weight
        )
    near = SparseMatrix.from_coo(torch.cat(row), torch.cat(column), torch.cat(weight), (n, n + num_wants))
    at, to = near.row, near.indices.long()
    inside = to < n
    inner_degree, degree = ((cohort.degree(with_cross=cut) + 1).double() for cut in (False, shares))
    scale = degree.rsqrt()
    narrow = inner_degree.rsqrt() if first_degrees == "internal" and not shares_first else scale
    own_row = torch.where(inside, to, 0)

    def values(of: Tensor) -> Tensor:
        across = torch.where(inside, of[own_row], 1.0)
        return (near.values.double() * of[at] * across).to(torch.get_default_dtype())

    later = values(scale)
    first = later if narrow is scale else values(narrow)
    assert cohort.x is not None
    apart = pairs = words = None
    x = cohort.x
    if isinstance(x, SparseMatrix):
        words = entry_words(cohort.id[x.row], x.indices.long())
        pairs = pair_columns(x, cohort.client, cohort.num_clients)
        if cohort.num_clients == 1:  # the rows that all clients share are this client's weights
            pairs = (pairs[0][:0], pairs[1][:0])
        apart = shift_columns(x, cohort.client, *pairs)
    silo = ClientGraph(
        x=x,
        apart=apart,
        pairs=pairs,
        words=words,
        ids=cohort.id,
        client=cohort.client,
        y=cohort.y,
        stable=torch.tensor(cohort.clients, device=device),
        train=cohort.rows("train"),
        counts=cohort.counts(cohort.train),
        starts=near.indptr[:-1].long(),
        inner=torch.bincount(at[inside], minlength=n),
        every=near.indptr.diff().long(),
        column=to,
        own=to == at,
        near_words=entry_words(cohort.id[at], ids[to]),
        first=first,
        later=later,
        scale=scale.to(torch.get_default_dtype()),
        num_wants=num_wants,
        importance=None,
        class_weights=cohort.class_weights,
    )
    if not importance:
        return silo
    client = cohort.client
    if num_wants:
        client = torch.cat([client, client[cohort.cross_row[first_edge]]])
    both = (_importance(silo, at, client, shares_first), _importance(silo, at, client, shares))
    return ClientGraph(**{**silo.__dict__, "importance": both})


def _importance(silo: ClientGraph, at: Tensor, client: Tensor, shares: bool) -> Importance:
    """q(u) proportional to sum_v Q(v, u)^2 over the client's own rows v. Of a node elsewhere the client
    does not know the degree: its edges to own rows stand for it, which changes the spread and not the
    mean."""
    n, column = silo.num_rows, silo.column
    value = silo.later.double() if shares else silo.first.double()
    known = torch.bincount(column, minlength=n + silo.num_wants).double() + 1
    value = torch.where(column < n, value, value / known[column].sqrt())
    used = torch.ones_like(column, dtype=torch.bool) if shares else column < n
    mass = torch.zeros(n + silo.num_wants, dtype=torch.float64, device=column.device)
    mass = mass.index_add_(0, column[used], value[used] ** 2)
    total = torch.zeros(silo.num_clients, dtype=torch.float64, device=column.device)
    chance = mass / total.index_add_(0, client, mass)[client]
    order = torch.argsort(client, stable=True)
    order = order[mass[order] > 0]
    # A client without nodes has no column: the intervals of the clients after it lie one number further on.
    is_empty = torch.bincount(silo.client) == 0
    cumulated = chance[order].cumsum(0) + is_empty.cumsum(0)[client[order]]
    return Importance(order, cumulated, chance)


# ---- Algorithm 2: the model of a batch ---------------------------------------------------------------------


def batch_rows(silo: ClientGraph, size: Tensor, key: int) -> Tensor:
    """size [K] training nodes of each client, drawn without repetition: rows, ascending.  Alg. 2, l. 1"""
    if bool((size >= silo.counts).all()):
        return silo.train
    client = silo.client[silo.train]
    draw = uniform(key, silo.ids[silo.train])[:, 0]
    order = torch.argsort(client + draw)
    rank = torch.arange(len(order), device=order.device) - (silo.counts.cumsum(0) - silo.counts)[client]
    return silo.train[order[rank < size[client]].sort().values]


@dataclass(frozen=True, eq=False)
class Chosen:
    """The neighbours that n rows leaving a layer have in a sample: counts [n] of them, which column of the
    adjacency each is, [e], and Q of the sample, [e] (Eq. 7)."""

    counts: Tensor
    column: Tensor
    value: Tensor


def choose(
    silo: ClientGraph, rows: Tensor, amount: Tensor | None, sampler: str, layer: int, shares: bool, key: int
) -> tuple[Chosen, Tensor]:
    """Of the rows [n] that leave a layer, the neighbours that its sum is over, and which wants are among
    them, [M] bool.  Alg. 2, l. 3-6

    amount [K]: at each client, of sampler "chance" the chance of a neighbour, with "fan_out" how many of
    them, with "importance" how many nodes of the layer; None: all neighbours. shares: those elsewhere
    count too. "chance_ht": as "chance", weighted by 1 / p."""
    counts = (silo.every if shares else silo.inner)[rows]
    entry = ranges(silo.starts[rows], counts)
    value = silo.first if layer == 0 else silo.later
    if amount is None or (sampler.startswith("chance") and bool((amount >= 1).all())):
        value = value[entry]
    else:
        numbers = torch.arange(len(rows), device=rows.device)
        row = torch.repeat_interleave(numbers, counts, output_size=len(entry))
        kept = _sample(silo, row, entry, counts, amount[silo.client[rows]], amount, sampler, shares, key)
        entry, row = entry[kept.which], row[kept.which]
        value = value[entry] * kept.factor.to(value.dtype)
        counts = torch.bincount(row, minlength=len(rows))
    column = silo.column[entry]
    wanted = torch.zeros(silo.num_wants, dtype=torch.bool, device=rows.device)
    if shares:
        wanted[column[column >= silo.num_rows] - silo.num_rows] = True
    return Chosen(counts, column, value), wanted


def _sample(
    silo: ClientGraph,
    row: Tensor,
    entry: Tensor,
    counts: Tensor,
    of_row: Tensor,
    amount: Tensor,
    sampler: str,
    shares: bool,
    key: int,
) -> Kept:
    """What is kept of the entries [E] of n rows, counts [n] each; of_row [n]: the amount of each row's
    client."""
    if sampler == "importance":
        assert silo.importance is not None
        importance = silo.importance[1 if shares else 0]
        times = _draw_columns(silo, importance, amount.long(), key)
        column = silo.column[entry]
        return in_proportion(times[column], importance.chance[column], of_row[row])
    draw, own = uniform_entries(key, silo.near_words[entry]), silo.own[entry]
    if sampler == "fan_out":
        return fan_out(draw, of_row, row, own, counts)
    return by_chance(draw, of_row, row, own, counts, ratio=sampler == "chance")


def _draw_columns(silo: ClientGraph, importance: Importance, draws: Tensor, key: int) -> Tensor:
    """How often each column is drawn, [N + M]: draws [K] times at each client that has nodes, with
    replacement."""
    draws = torch.where(torch.bincount(silo.client, minlength=len(draws)) > 0, draws, 0)
    width = int(draws.max()) if len(draws) else 0
    at = uniform(key, silo.stable, width)
    client = torch.arange(len(draws), device=draws.device)
    at = (at + client[:, None])[torch.arange(width, device=draws.device) < draws[:, None]]
    place = torch.searchsorted(importance.cumulated, at, right=True)
    column = importance.column[place.clamp(max=len(importance.column) - 1)]
    return torch.bincount(column, minlength=len(importance.chance))


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a sample: rows [n_in] that enter it and out [n] that leave it, adjacency [n, n_in + m] over
    these and the m rows that come from elsewhere; answers [A]: which of the rows entering other clients ask
    for, None where nothing is shared."""

    rows: Tensor
    out: Tensor
    adjacency: SparseMatrix
    answers: Tensor | None


def settle(
    silo: ClientGraph, out: Tensor, chosen: Chosen, wanted: Tensor, asked: Tensor | None, first: bool
) -> Layer:
    """The layer, once the silo knows which rows others ask for (asked [A], None: nothing is shared).
    Alg. 2, l. 7: V^(l) is what is sampled, and here what is asked for."""
    n = silo.num_rows
    enters = torch.zeros(n, dtype=torch.bool, device=out.device)
    inside = chosen.column < n
    enters[chosen.column[inside]] = True
    if asked is not None:
        enters[asked] = True
    rows = enters.nonzero()[:, 0]
    if first and len(rows) > TAKE_ALL * n:
        rows = torch.arange(n, device=out.device)
    place = torch.empty(n + silo.num_wants, dtype=torch.int64, device=out.device)
    place[rows] = torch.arange(len(rows), device=out.device)
    place[n:] = wanted.cumsum(0) + (len(rows) - 1)
    indptr = torch.cat([chosen.counts.new_zeros(1), chosen.counts.cumsum(0)]).int()
    shape = (len(out), len(rows) + int(wanted.sum()))
    pattern = Pattern(indptr, place[chosen.column].int(), shape, once=True)
    answered = None if asked is None else place[asked]
    return Layer(rows, out, SparseMatrix(pattern, chosen.value), answered)


def entering(layer: Layer) -> Tensor:
    return layer.rows


# ---- Algorithm 1: what a layer does ------------------------------------------------------------------------


def transform(
    silo: ClientGraph,
    layer: Layer,
    weights: Weights,
    h: Tensor | None,
    number: int,
    p: float,
    key: int | None,
) -> Tensor:
    """h W of the rows that enter a layer, [n_in, H], each with its client's weights, or with those that all
    share; h: None for the features. p, key: of dropout, key None for none."""
    weight, dropout = weights[f"layers.{number}.weight"], None if key is None else Dropout(p, key)
    rows = layer.rows
    if h is None and isinstance(silo.x, SparseMatrix):
        x, words = silo.x, silo.words
        if isinstance(weight, SparseWeights):
            assert silo.apart is not None
            x, weight = silo.apart, weight.values
        assert words is not None
        if len(rows) < silo.num_rows:
            words = words[ranges(x.indptr[rows].long(), silo.entries[rows])]
            x = x.select_rows(rows)
        return spmm(x if dropout is None else dropout.entries(x, words, number), weight)
    if h is None:
        assert isinstance(silo.x, Tensor)
        h = silo.x if len(rows) == silo.num_rows else silo.x[rows]
    if dropout is not None:
        h = dropout.rows(h, silo.ids[rows], number)
    assert isinstance(weight, Tensor)
    if weight.dim() == 2:
        return h @ weight
    if silo.num_clients == 1:
        return h @ weight[0]
    return tiled(h, weight, make_tiles(silo.client[rows], silo.num_clients))


def answers(silo: ClientGraph, layer: Layer, hw: Tensor) -> Tensor:
    """h W / sqrt(D_uu) of the rows that other clients ask for, [A, H]."""
    assert layer.answers is not None
    return hw.detach()[layer.answers] * silo.scale[layer.rows[layer.answers], None]


def aggregate(
    silo: ClientGraph,
    layer: Layer,
    hw: Tensor,
    received: Tensor | None,
    weights: Weights,
    number: int,
    last: bool,
) -> Tensor:
    """What leaves a layer, [n, H]; received [m, H]: from elsewhere.  Eqs. (2)-(4)"""
    bias = weights[f"layers.{number}.bias"]
    assert isinstance(bias, Tensor)
    z = spmm(layer.adjacency, hw if received is None else torch.cat([hw, received]))
    if bias.dim() == 2:
        bias = bias[0] if silo.num_clients == 1 else bias.index_select(0, silo.client[layer.out])
    z = z + bias
    return z if last else z.relu()


def work_of(silo: ClientGraph, layer: Layer, number: int, width_in: int, width_out: int) -> Tensor:
    """Floating-point operations of a layer at each client for a step of training, [K] float64: two for every
    product and sum, of the transformation and of the neighbours' sum, forwards and backwards."""
    enters = _entering(silo, layer)
    client = silo.client[enters]
    if number == 0:
        products = 2 * 2 * silo.entries[enters].double() * width_out  # h W, and the gradient of W
    else:
        products = torch.full_like(enters, 3 * 2 * width_in * width_out).double()
    work = torch.zeros(silo.num_clients, dtype=torch.float64, device=client.device)
    work.index_add_(0, client, products)
    edges = layer.adjacency.indptr.diff().double() * (2 * 2 * width_out)
    return work.index_add_(0, silo.client[layer.out], edges)


def _entering(silo: ClientGraph, layer: Layer) -> Tensor:
    """The rows that a layer needs: fewer than enter it where all do (`TAKE_ALL`)."""
    if len(layer.rows) < silo.num_rows:
        return layer.rows
    used = torch.zeros(layer.adjacency.shape[1], dtype=torch.bool, device=layer.rows.device)
    used[layer.adjacency.indices.long()] = True
    if layer.answers is not None:
        used[layer.answers] = True
    return layer.rows[used[: len(layer.rows)]]

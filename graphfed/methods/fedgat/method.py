"""FedGAT: Ambekar, Yao, Li and Joe-Wong, "FedGAT: a privacy-preserving federated approximation algorithm for
graph attention networks". One message before training, then federated training of a GAT.

    paper                    here
    N(i), with i itself      Neighbourhoods: size, member
    e(x) = exp(psi(x))       nn.polynomial_gat.score_function
    c_n, p                   score_series, degree
    M1, M2, K1, K2, R_n      methods.moment_messages; as the client has them nn.moments.Moments
    E_i^(n), F_i^(n)         r . K2 and r . K1 in nn.moments
    B_L                      Hood: a client's vertices and those within L - 1 hops of them
    homomorphic encryption   exchange=encrypted: methods.encrypted_moments

1. Clients send the features and the neighbours of their vertices to the server, in clear (Alg. 1, l. 1).
2. The server makes the message of every vertex (form=matrix or vector) and sends each client those of its
   own vertices and of all within L - 1 hops: so a client works out every layer that its own vertices' logits
   need, and in training only weights cross. For L > 2 it also sends who is whose neighbour there.
3. Training is that of a GAT with the scores of the first layer in a polynomial of degree p (Alg. 2), by any
   rule of averaging (`rule`, `methods.rules`).

later=exchange, as in the paper: a client gets the messages of its own vertices only. Whenever weights have
come, to train or to predict, every client works out what leaves each layer but the last of its vertices, one
layer after the other and without dropout; the rows of those with a neighbour elsewhere cross to the server,
in clear, and on to the neighbours' clients. In the local steps what came stays as it was, while a client's
own rows follow its weights: no gradient goes to another client. So with several clients it does not train as
later=hops does (the program's way); from the same weights it predicts the same.

**It hides nothing.** The server has all features and edges. A client can work out the exact features of every
neighbour of every vertex that it gets a message of, from either form: `graphfed audit`, which does it. With
exchange=encrypted the server has the edges and no features; the clients read what they read without it.

evaluation=direct is a simulation, in one process only: clients get the neighbours' features and evaluate the
polynomial of every score; the same results to rounding, the ledger of the chosen form, marked `simulated`.

Differs from the paper: a vertex keeps the only neighbour elsewhere that it has (the paper: drop_single=True,
Alg. 1, which protects nothing: see above). E^(0) and F^(0) are halved, as the identities need (zeroth=doubled
is the program). The matrix form's polynomial is summed by its Chebyshev recurrence. The scores' vectors are
those of GAT, b = W a (attention=free: weights of their own, as in the program). psi is smoothed, as in the
program, which approximates psi and not exp(psi) (score=plain). The clients' gradients are averaged unless
another rule is asked for, as in the program, which calls that FedAvg: the paper's text averages weights.
Dropout, off unless it is asked for, has no part in the first layer, whose sums are made before training. A
graph's edge weights have none. The encryption, which the paper names and nobody has built, is of the vector
form; most_neighbours, which the program has (150), is off unless it is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Ideal, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable
from graphfed.memory import memory_bytes
from graphfed.methods.base import Method, State, Task, clients_in_round
from graphfed.methods.baselines import fedavg
from graphfed.methods.baselines.fedavg import Clients
from graphfed.methods.common import aggregation_rules, averaging
from graphfed.methods.common.aggregation_rules import RuleConfig
from graphfed.methods.common.local_training import Prepared, prepare
from graphfed.methods.common.memory import NUMBER, GraphExtent
from graphfed.methods.common.released import by_vertex, vertex_route
from graphfed.methods.fedgat import embedding_exchange, encrypted_moments
from graphfed.methods.fedgat.encrypted_moments import ENCRYPTED, encrypted_rows, foretell_encrypted, laid_out
from graphfed.methods.fedgat.moment_messages import (
    Neighbourhoods,
    Pooled,
    matrix_message,
    numbers,
    vector_message,
)
from graphfed.methods.fedgat.polynomial_gat import Score, polynomial_gat
from graphfed.methods.fedgat.receptive_fields import (
    Hood,
    as_rows,
    border_ids,
    column,
    edge_ends,
    first_hood,
    hood_ids,
    wider_hood,
    without_messages_of_others,
)
from graphfed.methods.fedgat.score_range import first_facts, news_of, score_facts
from graphfed.nn.backbones import Backbone
from graphfed.nn.batch import View
from graphfed.nn.moments import Moments
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import entry_words, fold, uniform

__all__ = [
    "METHOD",
    "FedGATConfig",
    "Pooled",
    "kept_edges",
    "memory",
    "messages_of",
    "setup",
    "upload",
    "without_singles",
]

Rows = Tensor | SparseMatrix


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FedGATConfig(RuleConfig):
    degree: int = Field(default=16, ge=2, le=64, description="degree p of the polynomial of a score")
    domain: float = Field(
        default=4.0,
        gt=0,
        allow_inf_nan=False,
        description="scores between plus and minus this are approximated",
    )
    psi: Literal["smooth", "leaky_relu"] = Field(
        default="smooth", description="LeakyReLU of the score, with its kink smoothed or as it is"
    )
    score: Literal["exp", "plain"] = Field(
        default="exp", description="what is approximated: exp(psi(x)), or psi(x) as in the authors' program"
    )
    zeroth: Literal["half", "doubled"] = Field(
        default="half", description="the moments of order 0: halved, as is right, or as printed"
    )
    attention: Literal["tied", "free"] = Field(
        default="tied", description="vectors of the scores: W a, as in GAT, or weights of their own"
    )
    form: Literal["vector", "matrix"] = Field(
        default="vector", description="the message before training: vectors (Appendix F) or matrices"
    )
    evaluation: Literal["message", "direct"] = Field(
        default="message",
        description="the first layer from the message; direct: from the features that it is made of, faster, "
        "a simulation in one process with the bytes of the message",
    )
    drop_single: bool = Field(
        default=False,
        description="a vertex with one neighbour elsewhere does without it, as in the paper; that protects "
        "nothing, since the features of any number of neighbours can be worked out from the message",
    )
    most_neighbours: int | None = Field(
        default=None,
        ge=1,
        description="a vertex with more neighbours keeps that many, drawn by its id; none: it keeps all",
    )
    exchange: Literal["clear", "simulated", "encrypted"] = Field(
        default="clear",
        description="the features before training: read by the server, multiplied by it under encryption, "
        "or sent as if encrypted (its bytes, no protection)",
    )
    later: Literal["hops", "exchange"] = Field(
        default="hops",
        description="the layers after the first: from the messages of all vertices within L - 1 hops, or "
        "from embeddings of neighbours elsewhere, which cross in every round, as in the paper",
    )

    @property
    def polynomial(self) -> Score:
        return Score(self.psi, self.score == "exp", self.degree, self.domain, self.zeroth == "doubled")

    @property
    def network(self) -> Backbone:
        return _network(self.polynomial, self.attention == "tied")

    @model_validator(mode="after")
    def _only_gat(self) -> "FedGATConfig":
        if self.backbone != "gat":
            raise InputError(f"fedgat cannot use backbone={self.backbone!r}: it is GAT; leave it at 'gat'")
        return self

    @model_validator(mode="after")
    def _all_exchange(self) -> "FedGATConfig":
        if self.later == "exchange" and self.fraction < 1:
            raise InputError(
                "later=exchange needs every client in every round, because the others use its embeddings; "
                f"fraction must be 1, got {self.fraction}: leave one of them out"
            )
        if self.later == "exchange" and self.exchange != "clear":
            raise InputError(
                f"later=exchange cannot be used with exchange={self.exchange}: the server would read "
                "embeddings of the features that are hidden from it; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _vectors_under_encryption(self) -> "FedGATConfig":
        for name, needed in (("form", "vector"), ("evaluation", "message")):
            if self.exchange != "clear" and getattr(self, name) != needed:
                raise InputError(
                    f"exchange={self.exchange} cannot be used with {name}={getattr(self, name)}: what is "
                    f"encrypted is the message of vectors; use {name}={needed}, or exchange=clear"
                )
        return self


@cache
def _network(score: Score, tied: bool) -> Backbone:
    return polynomial_gat(score, tied)


# ---- at the clients ----------------------------------------------------------------------------------------


def without_singles(cohort: Cohort, config: FedGATConfig) -> Cohort:
    """The cohort as its vertices see it: without the only neighbour elsewhere of those that have one."""
    if not config.drop_single:
        return cohort
    elsewhere = torch.bincount(cohort.cut_row, minlength=cohort.num_rows)
    kept = elsewhere[cohort.cut_row] > 1
    weight = None if cohort.cut_weight is None else cohort.cut_weight[kept]
    return replace(
        cohort,
        cut_row=cohort.cut_row[kept],
        cut_client=cohort.cut_client[kept],
        cut_id=cohort.cut_id[kept],
        cut_weight=weight,
    )


def kept_edges(cohort: Cohort, config: FedGATConfig) -> Cohort:
    """The cohort as its vertices see it: `without_singles`, and with at most `most_neighbours` of each."""
    cohort = without_singles(cohort, config)
    if config.most_neighbours is None:
        return cohort
    inside, most = cohort.edge_index.shape[1], config.most_neighbours
    row = torch.cat([cohort.edge_index[1], cohort.cut_row])
    neighbour = torch.cat([cohort.id[cohort.edge_index[0]], cohort.cut_id])
    draw = uniform(fold(config.seed, "fedgat", "neighbours"), entry_words(cohort.id[row], neighbour))[:, 0]
    order = torch.argsort(draw, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    degree = torch.bincount(row, minlength=cohort.num_rows)
    kept = torch.zeros_like(row, dtype=torch.bool)
    kept[order] = ranges(torch.zeros_like(degree), degree) < most
    within, across = kept[:inside], kept[inside:]
    return replace(
        cohort,
        edge_index=cohort.edge_index[:, within],
        edge_weight=None if cohort.edge_weight is None else cohort.edge_weight[within],
        cut_row=cohort.cut_row[across],
        cut_client=cohort.cut_client[across],
        cut_id=cohort.cut_id[across],
        cut_weight=None if cohort.cut_weight is None else cohort.cut_weight[across],
    )


def features_of(cohort: Cohort) -> Rows:
    assert cohort.x is not None
    return cohort.x


def twice(size: Tensor) -> Tensor:
    """Slots of each vertex."""
    return 2 * size


def twice_squared(size: Tensor) -> Tensor:
    """Entries of a vertex's matrices."""
    return (2 * size) ** 2


def moments_view(
    cohort: Cohort,
    hood: Hood,
    size: Tensor,
    sums: Tensor,
    scores: Tensor,
    decoders: Tensor | None,
    heads: int,
) -> View:
    """The hood, with the message in the place of features."""
    return View(
        x=sums.new_empty(len(hood.ids), 0),
        ids=hood.ids,
        client=hood.client,
        num_clients=cohort.num_clients,
        y=cohort.y.new_full((len(hood.ids),), -1).index_copy(0, hood.own, cohort.y),
        degree=torch.zeros_like(hood.ids),
        edges=(hood.edges,),
        aggregated=True,
        moments=Moments(size, sums, scores, decoders, heads),
        far=hood.far,
    )


@dataclass(frozen=True, eq=False)
class Direct:
    """What a simulated client evaluates on: its view, and where its own vertices are in it [N]."""

    view: View
    own: Tensor


def direct_view(cohort: Cohort, hood: Hood, size: Tensor, members: Tensor, x: Rows) -> Direct:
    """The hood and the neighbours of all that are near, members [n, 1] with features x [n, F], of each vertex
    itself first."""
    centre = torch.repeat_interleave(hood.near, size)
    known, place = torch.unique(members[:, 0], return_inverse=True)
    count = max(len(known), 1)
    codes, row = torch.unique(hood.client[centre] * count + place, return_inverse=True)
    first = row.new_full((len(codes),), len(row)).scatter_reduce(
        0, row, torch.arange(len(row), device=row.device), "amin"
    )
    # Of each vertex of the hood. The far ones are neighbours.
    here = torch.searchsorted(codes, hood.client * count + torch.searchsorted(known, hood.ids))
    others = row != here[centre]
    own = here[hood.own]
    view = View(
        x=x.select_rows(first) if isinstance(x, SparseMatrix) else x[first],
        ids=known[codes % count],
        client=codes // count,
        num_clients=cohort.num_clients,
        y=cohort.y.new_full((len(codes),), -1).index_copy(0, own, cohort.y),
        degree=torch.zeros_like(codes),
        edges=(torch.stack([row, here[centre]])[:, others], here[hood.edges]),
        # Without messages of others there are no rows but the hood's.
        far=hood.far,
    )
    return Direct(view, own)


def prepare_moments(cohort: Cohort, hood: Hood, view: View, config: FedGATConfig) -> Prepared:
    return prepare(cohort, view, hood.own, config, personal=False)


def prepare_direct(cohort: Cohort, direct: Direct, config: FedGATConfig) -> Prepared:
    return prepare(cohort, direct.view, direct.own, config, personal=False)


# ---- at the server -----------------------------------------------------------------------------------------


def featureless(vertices: RouteTable) -> Tensor:
    """A row without numbers for every vertex."""
    return torch.zeros(len(vertices.index), 0, device=vertices.ids.device)


def pool(x: Rows, vertices: RouteTable, neighbours: Tensor, ends: RouteTable) -> Pooled:
    """InputError for a neighbour that nobody has."""
    ids, count = vertices.ids, len(vertices.ids)
    centre = torch.searchsorted(ids, ends.ids[ends.index])
    member = torch.searchsorted(ids, neighbours[:, 0]).clamp(max=max(count - 1, 0))
    strange = ids[member] != neighbours[:, 0]
    if bool(strange.any()):
        vertex, neighbour = int(ids[centre[strange][0]]), int(neighbours[strange][0, 0])
        raise InputError(f"vertex {vertex} has the neighbour {neighbour}, which no client holds")
    every = torch.arange(count, device=ids.device)
    centre, member = torch.cat([every, centre]), torch.cat([every, member])
    order = torch.argsort(centre, stable=True)
    return Pooled(x, Neighbourhoods(ids, torch.bincount(centre, minlength=count), member[order]))


def sizes_of(pooled: Pooled, table: RouteTable) -> Tensor:
    """B of the vertices of a route, [U']."""
    return pooled.hoods.size[torch.searchsorted(pooled.hoods.ids, table.ids)]


def neighbour_counts(pooled: Pooled, table: RouteTable) -> Tensor:
    return sizes_of(pooled, table) - 1


def neighbour_ids(pooled: Pooled, table: RouteTable) -> Tensor:
    """Of the vertices of a route, without the vertex itself: [n, 1]."""
    hoods = pooled.hoods
    rows = torch.searchsorted(hoods.ids, table.ids)
    starts = hoods.size.cumsum(0) - hoods.size
    return hoods.ids[hoods.member[ranges(starts[rows] + 1, hoods.size[rows] - 1)]][:, None]


def messages_of(pooled: Pooled, config: FedGATConfig) -> tuple[Tensor, Tensor, Tensor | None]:
    """sums, scores and decoders of all vertices (`nn.moments.Moments`).  Alg. 1"""
    key = fold(config.seed, "fedgat")
    if config.form == "matrix":
        return (*matrix_message(pooled.x, pooled.hoods, key), None)
    return vector_message(pooled.x, pooled.hoods, config.degree, key)


def message_bytes(
    pooled: Pooled, table: RouteTable, task: Task, config: FedGATConfig, together: bool
) -> dict[str, int]:
    """The bytes of every vertex's message once, and of all that is sent: the same wherever the clients are.
    InputError where there is less memory than that takes."""
    size = sizes_of(pooled, table)

    def of(form: str) -> tuple[int, int]:
        scalar, width = torch.get_default_dtype().itemsize, task.num_features
        once, sent = (scalar * numbers(form, b, width, config.degree) for b in (size, size[table.index]))
        return once, sent

    once, sent = of(config.form)
    memory, (free, _) = memory_of(once, sent, together), memory_bytes()
    if config.evaluation == "message" and free is not None and memory > free:
        vectors = f"form=vector (about {memory_of(*of('vector'), together) / 2**30:.1f} GiB), "
        raise InputError(
            f"fedgat's message before training takes about {memory / 2**30:.1f} GiB of memory with "
            f"form={config.form}, and {free / 2**30:.1f} GiB are free; use "
            f"{vectors if config.form == 'matrix' else ''}a partition that cuts fewer edges, or "
            "evaluation=direct, a simulation of it"
        )
    return {"once": once, "sent": sent}


def memory_of(once: int, sent: int, together: bool) -> int:
    """What the message takes at the most. At the server, as made and as sent; with the clients in its process
    (`together`) also as received and as copied for training, which all vertices may be needed for, when what
    was made is gone. Predictions copy a few vertices at a time."""
    return sent + (max(once, sent) if together else once)


def hoods_of(pooled: Pooled) -> Neighbourhoods:
    return pooled.hoods


def member_ids(pooled: Pooled) -> Tensor:
    return pooled.hoods.ids[pooled.hoods.member][:, None]


def member_features(pooled: Pooled) -> Rows:
    x, member = pooled.x, pooled.hoods.member
    return x.select_rows(member) if isinstance(x, SparseMatrix) else x[member]


def nothing(pooled: Pooled) -> Tensor:
    """A row without numbers for every vertex."""
    return torch.zeros(len(pooled.hoods.ids), 0, device=pooled.hoods.ids.device)


# ---- the program over places -------------------------------------------------------------------------------


def memory(extent: GraphExtent, config: FedGATConfig) -> float:
    """The message before training, as made and as received, with the places of its entries; of the simulation
    the features of all neighbours."""
    size = torch.from_numpy(extent.sizes)
    if config.evaluation == "direct":
        return 3 * NUMBER * float(size.sum()) * extent.features
    sent = NUMBER * numbers(config.form, size, extent.features, config.degree)
    places = 3 * 8 * 4 * float((size.double() ** 2).sum())
    return memory_of(sent, sent, together=True) + places


def setup(fed: Federation, data: Located, task: Task, config: FedGATConfig) -> State:
    check(fed, config)
    data = fed.clients.run(kept_edges, data, config)
    vertices, pooled = upload(fed, data, task, features=config.exchange == "clear")
    return begin(fed, data, vertices, pooled, task, config)


def check(fed: Federation, config: FedGATConfig) -> None:
    """InputError, before anything crosses, for what these places cannot do."""
    if config.evaluation == "direct" and fed.link is not None:
        raise InputError(
            "evaluation=direct is a simulation: it shows a site the features of other sites' vertices; use "
            "evaluation=message where sites are apart"
        )
    averaging.check_aggregation(config.aggregation, clients_in_round(config.fraction, fed.num_clients))


def begin(
    fed: Federation, data: Located, vertices: Route, pooled: Located, task: Task, config: FedGATConfig
) -> State:
    """From what the server has, `Pooled`: the message before training, and the first weights. data: with the
    edges that are kept."""
    state = with_message(fed, data, vertices, pooled, task, config)
    return watched(fed, state, pooled, config)


def with_message(
    fed: Federation, data: Located, vertices: Route, pooled: Located, task: Task, config: FedGATConfig
) -> State:
    hood = fed.clients.run(first_hood, data, config.layers)
    exchanged = config.later == "exchange" and config.layers > 1 and fed.num_clients > 1
    if exchanged:
        hood = fed.clients.run(without_messages_of_others, hood)
    for _ in range(0 if exchanged else config.layers - 2):
        hood = extend(fed, pooled, hood)
    fed.begin("asking for the messages of neighbourhoods")
    asked = ask(fed, pooled, hood)
    if config.exchange != "clear":
        prepared = receive_encrypted(fed, data, vertices, pooled, asked, task, config)
        return aggregation_rules.start(fed, prepared, task, config)
    # Before the routes of the message, which are as long as it is.
    foretell(fed, pooled, asked, task, config)
    fed.begin("making and sending the message before training")
    wanted = want(fed, asked)
    take = receive_directly if config.evaluation == "direct" else receive
    prepared = take(fed, data, pooled, wanted, task, config)
    state = aggregation_rules.start(fed, prepared, task, config)
    if not exchanged:
        return state
    border = embedding_exchange.find_border(fed, vertices, hood, prepared, config)
    exchange = partial(embedding_exchange.exchange, border)
    return replace(state, prepared=replace(state.prepared, exchange=exchange))


def foretell(fed: Federation, pooled: Located, asked: "Asked", task: Task, config: FedGATConfig) -> None:
    """Say how large the message is before it is made. InputError at a server, or in a process with all
    places, that has no room for it."""
    together, table = fed.link is None, fed.table(asked.route)
    told = fed.control(message_bytes, pooled, table, task, config, together, name="fedgat/size")
    memory = memory_of(told["once"], told["sent"], together)
    fed.tell(
        f"the message before training: {told['sent'] / 2**30:.2f} GiB to all sites, about "
        f"{memory / 2**30:.2f} GiB of memory at the server's process"
        if config.evaluation == "message"
        else f"the message before training would take {told['sent'] / 2**30:.2f} GiB; it is simulated"
    )


def upload(fed: Federation, data: Located, task: Task, *, features: bool = True) -> tuple[Route, Located]:
    """The route of all vertices, and the whole graph at the server, with features or with none [U, 0].
    Alg. 1, l. 1"""
    vertices = vertex_route(fed, data, task)
    if features:
        x = fed.upload(fed.clients.run(features_of, data), vertices, name="fedgat/features", grad=False)
    else:
        x = fed.server.run(featureless, fed.table(vertices))
    x = fed.server.run(by_vertex, x, fed.table(vertices))
    return vertices, with_edges(fed, data, vertices, x)


def with_edges(fed: Federation, data: Located, vertices: Route, x: Located) -> Located:
    """`Pooled` of features x, which the server has in the order of the vertices' ids."""
    ends, neighbours = fed.clients.run(edge_ends, data, outputs=2)
    edges = fed.route(ends, name="fedgat/edges")
    neighbours = fed.upload(neighbours, edges, name="fedgat/neighbours", grad=False)
    pooled: Located = fed.server.run(pool, x, fed.table(vertices), neighbours, fed.table(edges))
    return pooled


def extend(fed: Federation, pooled: Located, hood: Located) -> Located:
    """A hop more of what the clients know of the graph."""
    route = fed.route(fed.clients.run(border_ids, hood), name="fedgat/border_ids")
    counts = fed.server.run(neighbour_counts, pooled, fed.table(route))
    told = fed.download(fed.server.run(as_rows, counts), route, name="fedgat/neighbour_counts", grad=False)
    ends = fed.widened(route, fed.clients.run(column, told), counts, name="fedgat/hood_edges")
    ids = fed.server.run(neighbour_ids, pooled, fed.table(route))
    ids = fed.download(ids, ends, name="fedgat/hood_edges", grad=False)
    wider: Located = fed.clients.run(wider_hood, hood, told, ids)
    return wider


@dataclass(frozen=True)
class Asked:
    """Whose messages the clients ask for: their hoods, at the clients; the route of these vertices; size: B
    of each, at the clients, and sizes at the server, of the route's ids."""

    hood: Located
    route: Route
    size: Located
    sizes: Located


@dataclass(frozen=True)
class Wanted(Asked):
    """With the routes of the message: of the vertices' slots and of their entries."""

    slots: Route
    entries: Route


def ask(fed: Federation, pooled: Located, hood: Located) -> Asked:
    """The clients name their hoods, and the server tells how many neighbours these have."""
    route = fed.route(fed.clients.run(hood_ids, hood), name="fedgat/hood_ids")
    sizes = fed.server.run(sizes_of, pooled, fed.table(route))
    told = fed.download(fed.server.run(as_rows, sizes), route, name="fedgat/sizes", grad=False)
    return Asked(hood, route, fed.clients.run(column, told), sizes)


def want(fed: Federation, asked: Asked) -> Wanted:
    """Make the routes of the message. They take memory and time for each of its entries, and send nothing."""

    def wide(fn: Any, name: str) -> Route:
        sizes = fed.clients.run(fn, asked.size), fed.server.run(fn, asked.sizes)
        return fed.widened(asked.route, *sizes, name=name)

    slots, entries = wide(twice, "fedgat/slots"), wide(twice_squared, "fedgat/entries")
    return Wanted(asked.hood, asked.route, asked.size, asked.sizes, slots, entries)


def receive(
    fed: Federation,
    data: Located,
    pooled: Located,
    wanted: Wanted,
    task: Task,
    config: FedGATConfig,
) -> Located:
    """The message, at the clients that need it.  Alg. 1"""
    # Each part at the server is let go when it is sent: it takes memory.
    sums, scores, decoders = fed.server.run(messages_of, pooled, config, outputs=3)
    vectors, slots, entries = config.form == "vector", wanted.slots, wanted.entries
    sums = fed.download(sums, slots, name="fedgat/sums", grad=False)
    scores = fed.download(scores, slots if vectors else entries, name="fedgat/scores", grad=False)
    decoders = fed.download(decoders, entries, name="fedgat/decoders", grad=False) if vectors else None
    hood, size = wanted.hood, wanted.size
    view = fed.clients.run(moments_view, data, hood, size, sums, scores, decoders, heads_of(config))
    prepared: Located = fed.clients.run(prepare_moments, data, hood, view, config)
    return prepared


def receive_directly(
    fed: Federation,
    data: Located,
    pooled: Located,
    wanted: Wanted,
    task: Task,
    config: FedGATConfig,
) -> Located:
    """What the message is made of, counted as the message."""
    slots, entries, vectors = wanted.slots.flow.back, wanted.entries.flow.back, config.form == "vector"
    width, kind = task.num_features, torch.get_default_dtype()
    members = fed.widened(wanted.route, wanted.size, wanted.sizes, name="fedgat/members")
    x = fed.download(
        fed.server.run(member_features, pooled),
        members,
        name="fedgat/sums",
        grad=False,
        ideal=Ideal(slots, [1 + width], kind),
    )
    ids = fed.download(
        fed.server.run(member_ids, pooled),
        members,
        name="fedgat/scores",
        grad=False,
        ideal=Ideal(slots if vectors else entries, [2 * width], kind),
    )
    if vectors:
        stands_for = Ideal(entries, [config.degree + 1], kind)
        nil = fed.server.run(nothing, pooled)
        fed.download(nil, wanted.route, name="fedgat/decoders", grad=False, ideal=stands_for)
    direct = fed.clients.run(direct_view, data, wanted.hood, wanted.size, ids, x)
    prepared: Located = fed.clients.run(prepare_direct, data, direct, config)
    return prepared


def receive_encrypted(
    fed: Federation,
    data: Located,
    vertices: Route,
    pooled: Located,
    asked: Asked,
    task: Task,
    config: FedGATConfig,
) -> Located:
    """The message, made by a server that reads no features."""
    simulated, width = config.exchange == "simulated", task.num_features
    key = fold(config.seed, "fedgat")
    hoods, ids = fed.server.run(hoods_of, pooled), fed.clients.run(hood_ids, asked.hood)
    route, size, sizes = asked.route, asked.size, asked.sizes
    parts = foretell_encrypted(
        fed, hoods, route, sizes, width=width, degree=config.degree, simulated=simulated, name="fedgat/size"
    )
    wanted = want(fed, asked)
    k1, _, r = fed.server.run(messages_of, pooled, config, outputs=3)  # of no features
    k1 = fed.download(k1, wanted.slots, name=f"{ENCRYPTED}/keys", grad=False)
    decoders = fed.download(r, wanted.entries, name="fedgat/decoders", grad=False)
    rows = encrypted_rows(
        fed, data, vertices, hoods, route, ids, size, sizes,
        width=width, key=key, parts=parts, simulated=simulated,
    )  # fmt: skip
    sums, scores = fed.clients.run(laid_out, ids, size, k1, parts, key, *rows, outputs=2)
    hood = asked.hood
    view = fed.clients.run(moments_view, data, hood, size, sums, scores, decoders, heads_of(config))
    prepared: Located = fed.clients.run(prepare_moments, data, hood, view, config)
    return prepared


@dataclass(frozen=True)
class Watched(Clients):
    """pooled: what the server has, to see the scores; None where it cannot."""

    pooled: Located | None = None


def watched(fed: Federation, state: State, pooled: Located, config: FedGATConfig) -> State:
    """The state with what is known of the scores. Of encrypted features the server knows at most the length,
    with features=unit."""
    clients: Clients = state.prepared
    seen = pooled if config.exchange == "clear" or config.features == "unit" else None
    facts = fed.server.run(first_facts, str(fed.device))
    prepared = Watched(clients.prepared, clients.counts, clients.exchange, seen)
    return State({**state.values, "facts": facts}, prepared)


def round(fed: Federation, state: State, config: FedGATConfig, number: int) -> State:
    """A round of the rule, and word where scores are no more those that the polynomial is for."""
    clients: Watched = state.prepared
    before, after = state.values["facts"], aggregation_rules.round(fed, state, config, number)
    if clients.pooled is None:
        return State({**after.values, "facts": before}, clients)
    polynomial = config.polynomial
    facts = fed.server.run(score_facts, clients.pooled, after.weights, before, polynomial)
    told = fed.control(news_of, before, facts, polynomial, name="fedgat/score_range")
    if "outside" in told:
        fed.tell(
            f"scores of the first layer are beyond domain={config.domain:g}, where the polynomial is "
            f"no approximation of attention; set domain={told['outside']}, and with it a higher degree"
        )
    if "error" in told:
        most = "100 % or more" if told["error"] == 100 else f"up to {told['error']} %"
        fed.tell(
            f"the polynomial of degree={config.degree} and domain={config.domain:g} is off by {most} for the "
            "scores that there are; set a higher degree, or a domain nearer to them"
        )
    return State({**after.values, "facts": facts}, clients)


def heads_of(config: FedGATConfig) -> int:
    """Of the first layer."""
    return config.heads if config.layers > 1 else 1


#: Beside those of averaging.
MESSAGES: Mapping[str, str] = {
    "vertices": "The ids of a site's vertices: the server learns who has which.",
    "fedgat/features": "The features of all vertices of a site, which the server reads.",
    "fedgat/edges": "For every edge of a site's vertices, the vertex: with `fedgat/neighbours` the server "
    "learns the whole graph.",
    "fedgat/neighbours": "For every edge of a site's vertices, the neighbour, here or at another site.",
    "fedgat/border_ids": "With more than two layers: the ids of vertices elsewhere whose neighbours a site "
    "needs.",
    "fedgat/neighbour_counts": "With more than two layers, from the server: how many neighbours these have.",
    "fedgat/hood_edges": "With more than two layers, from the server: who they are. A site learns the graph "
    "around its own vertices.",
    "fedgat/hood_ids": "The ids of a site's vertices and of those within L - 1 hops, of L layers.",
    "fedgat/sizes": "From the server: how many neighbours each of these vertices has, with itself.",
    "fedgat/size": "From the server: how many bytes, or ciphertexts, the message before training has in all.",
    "fedgat/score_range": "From the server, in every round: whether scores of the first layer have left the "
    "domain of the polynomial, and the whole number above the largest. It follows from all sites' features.",
    "fedgat/sums": "From the server, once, of each of these vertices: K1 and K2, sums of the neighbours' "
    "features under random vectors. From these messages a site can work out every neighbour's features.",
    "fedgat/scores": "From the server, once, of each of these vertices: M1 and M2, from which attention is "
    "worked out. From these messages a site can work out every neighbour's features.",
    "fedgat/decoders": "From the server, once, of each of these vertices, with form=vector: R_0 to R_p. They "
    "show which numbers of `fedgat/sums` are a neighbour's features.",
    **embedding_exchange.MESSAGES,
    **encrypted_moments.MESSAGES,
}

METHOD = Method(
    name="fedgat",
    summary="GAT over cross-client edges after one message; attention as a polynomial of moments",
    paper="Ambekar, Yao, Li, Joe-Wong: FedGAT, a privacy-preserving federated approximation algorithm for "
    "graph attention networks",
    needs=("backbone gat",),
    crosses="features and edges to the server, moments of neighbourhoods back, once; gradients (rule: or "
    "weights), every round; with later=exchange embeddings of neighbours too",
    protection="none: the server reads the graph, and a curious site every neighbour's features; with "
    "exchange=encrypted the server reads the edges and no features, under one key of the clients; with "
    "aggregation=secure the server reads the sum of the weights, not each site's",
    config=FedGATConfig,
    setup=setup,
    round=round,
    facts="facts",
    memory=memory,
    predict=fedavg.predict,
    messages={**aggregation_rules.MESSAGES, **MESSAGES},
    dropouts=True,
    shared_model=True,
    disjoint=True,
    defaults={
        "backbone": "gat",
        "hidden": 8,
        "heads": 8,
        "features": "unit",
        "rule": "fedsgd",
        "local_steps": 1,
        "optimizer": "adam",
        "lr": 0.02,
        "weight_decay": 5e-3,
        "dropout": 0.0,
    },
    paper_settings={"drop_single": True},
)

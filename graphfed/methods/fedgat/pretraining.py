"""The message before training: features and edges to the server, moments of neighbourhoods to the clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import column
from graphfed.federation.route import Route, RouteTable
from graphfed.federation.transfer import Ideal
from graphfed.memory import memory_bytes
from graphfed.methods.base import Task
from graphfed.methods.common.local_training import Prepared, prepare
from graphfed.methods.common.released import by_vertex, vertex_route
from graphfed.methods.fedgat.config import AnyFedGATConfig, heads_of
from graphfed.methods.fedgat.encrypted_moments import ENCRYPTED, encrypted_rows, foretell_encrypted, laid_out
from graphfed.methods.fedgat.moment_messages import (
    Neighbourhoods,
    Pooled,
    matrix_message,
    numbers,
    vector_message,
)
from graphfed.methods.fedgat.receptive_fields import (
    Hood,
    as_rows,
    border_ids,
    edge_ends,
    hood_ids,
    wider_hood,
)
from graphfed.nn.batch import View
from graphfed.nn.moments import Moments
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import fold

__all__ = [
    "Asked",
    "Direct",
    "Wanted",
    "ask",
    "direct_view",
    "extend",
    "featureless",
    "features_of",
    "foretell",
    "hoods_of",
    "member_features",
    "member_ids",
    "memory_of",
    "message_bytes",
    "messages_of",
    "moments_view",
    "neighbour_counts",
    "neighbour_ids",
    "nothing",
    "pool",
    "prepare_direct",
    "prepare_moments",
    "receive",
    "receive_directly",
    "receive_encrypted",
    "sizes_of",
    "twice",
    "twice_squared",
    "upload",
    "want",
    "with_edges",
]

Rows = Tensor | SparseMatrix


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


def messages_of(pooled: Pooled, config: AnyFedGATConfig) -> tuple[Tensor, Tensor, Tensor | None]:
    """sums, scores and decoders of all vertices (`nn.moments.Moments`).  Alg. 1"""
    key = fold(config.seed, "fedgat")
    if config.form == "matrix":
        return (*matrix_message(pooled.x, pooled.hoods, key), None)
    return vector_message(pooled.x, pooled.hoods, config.degree, key)


def message_bytes(
    pooled: Pooled, table: RouteTable, task: Task, config: AnyFedGATConfig, together: bool
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


def foretell(fed: Federation, pooled: Located, asked: "Asked", task: Task, config: AnyFedGATConfig) -> None:
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
    return fed.server.run(pool, x, fed.table(vertices), neighbours, fed.table(edges))


def extend(fed: Federation, pooled: Located, hood: Located) -> Located:
    """A hop more of what the clients know of the graph."""
    route = fed.route(fed.clients.run(border_ids, hood), name="fedgat/border_ids")
    counts = fed.server.run(neighbour_counts, pooled, fed.table(route))
    told = fed.download(fed.server.run(as_rows, counts), route, name="fedgat/neighbour_counts", grad=False)
    ends = fed.expand_route(route, fed.clients.run(column, told, 0), counts, name="fedgat/hood_edges")
    ids = fed.server.run(neighbour_ids, pooled, fed.table(route))
    ids = fed.download(ids, ends, name="fedgat/hood_edges", grad=False)
    return fed.clients.run(wider_hood, hood, told, ids)


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
    return Asked(hood, route, fed.clients.run(column, told, 0), sizes)


def want(fed: Federation, asked: Asked) -> Wanted:
    """Make the routes of the message. They take memory and time for each of its entries, and send nothing."""

    def wide(fn: Any, name: str) -> Route:
        sizes = fed.clients.run(fn, asked.size), fed.server.run(fn, asked.sizes)
        return fed.expand_route(asked.route, *sizes, name=name)

    slots, entries = wide(twice, "fedgat/slots"), wide(twice_squared, "fedgat/entries")
    return Wanted(asked.hood, asked.route, asked.size, asked.sizes, slots, entries)


@dataclass(frozen=True)
class Exchange:
    """How the message before training is made and sent under a protection.

    Attributes:
        reads_features: Whether the server reads the features that the message is made of.
        receive: (fed, data, vertices, pooled, asked, task, config) -> the message at the clients that ask for
            it, ready for training. vertices: the route of all of them; pooled: what the server has.
    """

    reads_features: bool
    receive: Callable[
        [Federation, Located, Route, Located, Asked, Task, AnyFedGATConfig],
        Located,
    ]


def receive_readable(
    fed: Federation,
    data: Located,
    vertices: Route,
    pooled: Located,
    asked: Asked,
    task: Task,
    config: AnyFedGATConfig,
) -> Located:
    """The message, made by a server that reads the features."""
    # Before the routes of the message, which are as long as it is.
    foretell(fed, pooled, asked, task, config)
    fed.begin("making and sending the message before training")
    wanted = want(fed, asked)
    take = receive_directly if config.evaluation == "direct" else receive
    return take(fed, data, pooled, wanted, task, config)


def receive(
    fed: Federation,
    data: Located,
    pooled: Located,
    wanted: Wanted,
    task: Task,
    config: AnyFedGATConfig,
) -> Located:
    """The message, at the clients that need it.  Alg. 1"""
    # Each part at the server is let go when it is sent: it takes memory.
    decoders: Located | None
    sums, scores, decoders = fed.server.run(messages_of, pooled, config, outputs=3)
    vectors, slots, entries = config.form == "vector", wanted.slots, wanted.entries
    sums = fed.download(sums, slots, name="fedgat/sums", grad=False)
    scores = fed.download(scores, slots if vectors else entries, name="fedgat/scores", grad=False)
    decoders = fed.download(decoders, entries, name="fedgat/decoders", grad=False) if vectors else None
    hood, size = wanted.hood, wanted.size
    view = fed.clients.run(moments_view, data, hood, size, sums, scores, decoders, heads_of(config))
    return fed.clients.run(prepare_moments, data, hood, view, config)


def receive_directly(
    fed: Federation,
    data: Located,
    pooled: Located,
    wanted: Wanted,
    task: Task,
    config: AnyFedGATConfig,
) -> Located:
    """What the message is made of, counted as the message."""
    slots, entries, vectors = wanted.slots.flow.back, wanted.entries.flow.back, config.form == "vector"
    width, kind = task.num_features, torch.get_default_dtype()
    members = fed.expand_route(wanted.route, wanted.size, wanted.sizes, name="fedgat/members")
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
    return fed.clients.run(prepare_direct, data, direct, config)


def receive_encrypted(
    fed: Federation,
    data: Located,
    vertices: Route,
    pooled: Located,
    asked: Asked,
    task: Task,
    config: AnyFedGATConfig,
) -> Located:
    """The message, made by a server that reads no features."""
    width = task.num_features
    key = fold(config.seed, "fedgat")
    hoods, ids = fed.server.run(hoods_of, pooled), fed.clients.run(hood_ids, asked.hood)
    route, size, sizes = asked.route, asked.size, asked.sizes
    parts = foretell_encrypted(
        fed, hoods, route, sizes, width=width, degree=config.degree, name="fedgat/size"
    )
    wanted = want(fed, asked)
    k1, _, r = fed.server.run(messages_of, pooled, config, outputs=3)  # of no features
    k1 = fed.download(k1, wanted.slots, name=f"{ENCRYPTED}/keys", grad=False)
    decoders = fed.download(r, wanted.entries, name="fedgat/decoders", grad=False)
    rows = encrypted_rows(
        fed, data, vertices, hoods, route, ids, size, sizes,
        width=width, key=key, parts=parts,
    )  # fmt: skip
    sums, scores = fed.clients.run(laid_out, ids, size, k1, parts, key, *rows, outputs=2)
    hood = asked.hood
    view = fed.clients.run(moments_view, data, hood, size, sums, scores, decoders, heads_of(config))
    return fed.clients.run(prepare_moments, data, hood, view, config)


READABLE = Exchange(True, receive_readable)
#: The exchange under each protection. They send different rows: see `encrypted_moments`.
EXCHANGES = {"plaintext": READABLE, "encrypted": Exchange(False, receive_encrypted)}


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


def prepare_moments(cohort: Cohort, hood: Hood, view: View, config: AnyFedGATConfig) -> Prepared:
    return prepare(cohort, view, hood.own, config, personal=False)


def prepare_direct(cohort: Cohort, direct: Direct, config: AnyFedGATConfig) -> Prepared:
    return prepare(cohort, direct.view, direct.own, config, personal=False)

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
from graphfed.methods.common.released import by_node, node_route
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
    Neighbourhood,
    as_rows,
    border_ids,
    edge_ends,
    neighbourhood_ids,
    wider_neighbourhood,
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
    "member_features",
    "member_ids",
    "memory_of",
    "message_bytes",
    "messages_of",
    "moments_view",
    "neighbour_counts",
    "neighbour_ids",
    "neighbourhoods_of",
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


def featureless(nodes: RouteTable) -> Tensor:
    """A row without numbers for every node."""
    return torch.zeros(len(nodes.index), 0, device=nodes.ids.device)


def pool(x: Rows, nodes: RouteTable, neighbours: Tensor, ends: RouteTable) -> Pooled:
    """InputError for a neighbour that nobody has."""
    ids, count = nodes.ids, len(nodes.ids)
    centre = torch.searchsorted(ids, ends.ids[ends.index])
    member = torch.searchsorted(ids, neighbours[:, 0]).clamp(max=max(count - 1, 0))
    strange = ids[member] != neighbours[:, 0]
    if bool(strange.any()):
        node, neighbour = int(ids[centre[strange][0]]), int(neighbours[strange][0, 0])
        raise InputError(f"node {node} has the neighbour {neighbour}, which no client holds")
    every = torch.arange(count, device=ids.device)
    centre, member = torch.cat([every, centre]), torch.cat([every, member])
    order = torch.argsort(centre, stable=True)
    return Pooled(x, Neighbourhoods(ids, torch.bincount(centre, minlength=count), member[order]))


def sizes_of(pooled: Pooled, table: RouteTable) -> Tensor:
    """B of the nodes of a route, [U']."""
    return pooled.neighbourhoods.size[torch.searchsorted(pooled.neighbourhoods.ids, table.ids)]


def neighbour_counts(pooled: Pooled, table: RouteTable) -> Tensor:
    return sizes_of(pooled, table) - 1


def neighbour_ids(pooled: Pooled, table: RouteTable) -> Tensor:
    """Of the nodes of a route, without the node itself: [n, 1]."""
    neighbourhoods = pooled.neighbourhoods
    rows = torch.searchsorted(neighbourhoods.ids, table.ids)
    starts = neighbourhoods.size.cumsum(0) - neighbourhoods.size
    return neighbourhoods.ids[neighbourhoods.member[ranges(starts[rows] + 1, neighbourhoods.size[rows] - 1)]][
        :, None
    ]


def messages_of(pooled: Pooled, config: AnyFedGATConfig) -> tuple[Tensor, Tensor, Tensor | None]:
    """sums, scores and decoders of all nodes (`nn.moments.Moments`).  Alg. 1"""
    key = fold(config.seed, "fedgat")
    if config.form == "matrix":
        return (*matrix_message(pooled.x, pooled.neighbourhoods, key), None)
    return vector_message(pooled.x, pooled.neighbourhoods, config.degree, key)


def message_bytes(
    pooled: Pooled, table: RouteTable, task: Task, config: AnyFedGATConfig, together: bool
) -> dict[str, int]:
    """The bytes of every node's message once, and of all that is sent: the same wherever the clients are.
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
    (`together`) also as received and as copied for training, which all nodes may be needed for, when what
    was made is gone. Predictions copy a few nodes at a time."""
    return sent + (max(once, sent) if together else once)


def neighbourhoods_of(pooled: Pooled) -> Neighbourhoods:
    return pooled.neighbourhoods


def member_ids(pooled: Pooled) -> Tensor:
    return pooled.neighbourhoods.ids[pooled.neighbourhoods.member][:, None]


def member_features(pooled: Pooled) -> Rows:
    x, member = pooled.x, pooled.neighbourhoods.member
    return x.select_rows(member) if isinstance(x, SparseMatrix) else x[member]


def nothing(pooled: Pooled) -> Tensor:
    """A row without numbers for every node."""
    return torch.zeros(len(pooled.neighbourhoods.ids), 0, device=pooled.neighbourhoods.ids.device)


def foretell(fed: Federation, pooled: Located, asked: "Asked", task: Task, config: AnyFedGATConfig) -> None:
    """Say how large the message is before it is made. InputError at a server, or in a process with all
    places, that has no room for it."""
    together, table = fed.link is None, fed.table(asked.route)
    told = fed.control(message_bytes, pooled, table, task, config, together, name="fedgat/size")
    memory = memory_of(told["once"], told["sent"], together)
    fed.log(
        f"the message before training: {told['sent'] / 2**30:.2f} GiB to all clients, about "
        f"{memory / 2**30:.2f} GiB of memory at the server's process"
        if config.evaluation == "message"
        else f"the message before training would take {told['sent'] / 2**30:.2f} GiB; it is simulated"
    )


def upload(fed: Federation, data: Located, task: Task, *, features: bool = True) -> tuple[Route, Located]:
    """The route of all nodes, and the whole graph at the server, with features or with none [U, 0].
    Alg. 1, l. 1"""
    nodes = node_route(fed, data, task)
    if features:
        x = fed.upload(fed.clients.run(features_of, data), nodes, name="fedgat/features", grad=False)
    else:
        x = fed.server.run(featureless, fed.table(nodes))
    x = fed.server.run(by_node, x, fed.table(nodes))
    return nodes, with_edges(fed, data, nodes, x)


def with_edges(fed: Federation, data: Located, nodes: Route, x: Located) -> Located:
    """`Pooled` of features x, which the server has in the order of the nodes' ids."""
    ends, neighbours = fed.clients.run(edge_ends, data, outputs=2)
    edges = fed.route(ends, name="fedgat/edges")
    neighbours = fed.upload(neighbours, edges, name="fedgat/neighbours", grad=False)
    return fed.server.run(pool, x, fed.table(nodes), neighbours, fed.table(edges))


def extend(fed: Federation, pooled: Located, neighbourhood: Located) -> Located:
    """A hop more of what the clients know of the graph."""
    route = fed.route(fed.clients.run(border_ids, neighbourhood), name="fedgat/border_ids")
    counts = fed.server.run(neighbour_counts, pooled, fed.table(route))
    told = fed.download(fed.server.run(as_rows, counts), route, name="fedgat/neighbour_counts", grad=False)
    ends = fed.expand_route(
        route, fed.clients.run(column, told, 0), counts, name="fedgat/neighbourhood_edges"
    )
    ids = fed.server.run(neighbour_ids, pooled, fed.table(route))
    ids = fed.download(ids, ends, name="fedgat/neighbourhood_edges", grad=False)
    return fed.clients.run(wider_neighbourhood, neighbourhood, told, ids)


@dataclass(frozen=True)
class Asked:
    """Whose messages the clients ask for: their neighbourhoods, at the clients; the route of these nodes;
    size: B of each, at the clients, and sizes at the server, of the route's ids."""

    neighbourhood: Located
    route: Route
    size: Located
    sizes: Located


@dataclass(frozen=True)
class Wanted(Asked):
    """With the routes of the message: of the nodes' slots and of their entries."""

    slots: Route
    entries: Route


def ask(fed: Federation, pooled: Located, neighbourhood: Located) -> Asked:
    """The clients name their neighbourhoods, and the server tells how many neighbours these have."""
    route = fed.route(fed.clients.run(neighbourhood_ids, neighbourhood), name="fedgat/neighbourhood_ids")
    sizes = fed.server.run(sizes_of, pooled, fed.table(route))
    told = fed.download(fed.server.run(as_rows, sizes), route, name="fedgat/sizes", grad=False)
    return Asked(neighbourhood, route, fed.clients.run(column, told, 0), sizes)


def want(fed: Federation, asked: Asked) -> Wanted:
    """Make the routes of the message. They take memory and time for each of its entries, and send nothing."""

    def wide(fn: Any, name: str) -> Route:
        sizes = fed.clients.run(fn, asked.size), fed.server.run(fn, asked.sizes)
        return fed.expand_route(asked.route, *sizes, name=name)

    slots, entries = wide(twice, "fedgat/slots"), wide(twice_squared, "fedgat/entries")
    return Wanted(asked.neighbourhood, asked.route, asked.size, asked.sizes, slots, entries)


@dataclass(frozen=True)
class Exchange:
    """How the message before training is made and sent under a protection.

    Attributes:
        reads_features: Whether the server reads the features that the message is made of.
        receive: (fed, data, nodes, pooled, asked, task, config) -> the message at the clients that ask for
            it, ready for training. nodes: the route of all of them; pooled: what the server has.
    """

    reads_features: bool
    receive: Callable[
        [Federation, Located, Route, Located, Asked, Task, AnyFedGATConfig],
        Located,
    ]


def receive_readable(
    fed: Federation,
    data: Located,
    nodes: Route,
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
    neighbourhood, size = wanted.neighbourhood, wanted.size
    view = fed.clients.run(moments_view, data, neighbourhood, size, sums, scores, decoders, heads_of(config))
    return fed.clients.run(prepare_moments, data, neighbourhood, view, config)


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
    direct = fed.clients.run(direct_view, data, wanted.neighbourhood, wanted.size, ids, x)
    return fed.clients.run(prepare_direct, data, direct, config)


def receive_encrypted(
    fed: Federation,
    data: Located,
    nodes: Route,
    pooled: Located,
    asked: Asked,
    task: Task,
    config: AnyFedGATConfig,
) -> Located:
    """The message, made by a server that reads no features."""
    width = task.num_features
    key = fold(config.seed, "fedgat")
    neighbourhoods, ids = (
        fed.server.run(neighbourhoods_of, pooled),
        fed.clients.run(neighbourhood_ids, asked.neighbourhood),
    )
    route, size, sizes = asked.route, asked.size, asked.sizes
    parts = foretell_encrypted(
        fed, neighbourhoods, route, sizes, width=width, degree=config.degree, name="fedgat/size"
    )
    wanted = want(fed, asked)
    k1, _, r = fed.server.run(messages_of, pooled, config, outputs=3)  # of no features
    k1 = fed.download(k1, wanted.slots, name=f"{ENCRYPTED}/keys", grad=False)
    decoders = fed.download(r, wanted.entries, name="fedgat/decoders", grad=False)
    rows = encrypted_rows(
        fed, data, nodes, neighbourhoods, route, ids, size, sizes,
        width=width, key=key, parts=parts,
    )  # fmt: skip
    sums, scores = fed.clients.run(laid_out, ids, size, k1, parts, key, *rows, outputs=2)
    neighbourhood = asked.neighbourhood
    view = fed.clients.run(moments_view, data, neighbourhood, size, sums, scores, decoders, heads_of(config))
    return fed.clients.run(prepare_moments, data, neighbourhood, view, config)


READABLE = Exchange(True, receive_readable)
#: The exchange under each protection. They send different rows: see `encrypted_moments`.
EXCHANGES = {"plaintext": READABLE, "encrypted": Exchange(False, receive_encrypted)}


def features_of(cohort: Cohort) -> Rows:
    assert cohort.x is not None
    return cohort.x


def twice(size: Tensor) -> Tensor:
    """Slots of each node."""
    return 2 * size


def twice_squared(size: Tensor) -> Tensor:
    """Entries of a node's matrices."""
    return (2 * size) ** 2


def moments_view(
    cohort: Cohort,
    neighbourhood: Neighbourhood,
    size: Tensor,
    sums: Tensor,
    scores: Tensor,
    decoders: Tensor | None,
    heads: int,
) -> View:
    """The neighbourhood, with the message in the place of features."""
    return View(
        x=sums.new_empty(len(neighbourhood.ids), 0),
        ids=neighbourhood.ids,
        client=neighbourhood.client,
        num_clients=cohort.num_clients,
        y=cohort.y.new_full((len(neighbourhood.ids),), -1).index_copy(0, neighbourhood.own, cohort.y),
        degree=torch.zeros_like(neighbourhood.ids),
        edges=(neighbourhood.edges,),
        aggregated=True,
        moments=Moments(size, sums, scores, decoders, heads),
        far=neighbourhood.far,
    )


@dataclass(frozen=True, eq=False)
class Direct:
    """What a simulated client evaluates on: its view, and where its own nodes are in it [N]."""

    view: View
    own: Tensor


def direct_view(
    cohort: Cohort, neighbourhood: Neighbourhood, size: Tensor, members: Tensor, x: Rows
) -> Direct:
    """The neighbourhood and the neighbours of all that are near, members [n, 1] with features x [n, F], of
    each node itself first."""
    centre = torch.repeat_interleave(neighbourhood.near, size)
    known, place = torch.unique(members[:, 0], return_inverse=True)
    count = max(len(known), 1)
    codes, row = torch.unique(neighbourhood.client[centre] * count + place, return_inverse=True)
    first = row.new_full((len(codes),), len(row)).scatter_reduce(
        0, row, torch.arange(len(row), device=row.device), "amin"
    )
    # Of each node of the neighbourhood. The far ones are neighbours.
    here = torch.searchsorted(
        codes, neighbourhood.client * count + torch.searchsorted(known, neighbourhood.ids)
    )
    others = row != here[centre]
    own = here[neighbourhood.own]
    view = View(
        x=x.select_rows(first) if isinstance(x, SparseMatrix) else x[first],
        ids=known[codes % count],
        client=codes // count,
        num_clients=cohort.num_clients,
        y=cohort.y.new_full((len(codes),), -1).index_copy(0, own, cohort.y),
        degree=torch.zeros_like(codes),
        edges=(torch.stack([row, here[centre]])[:, others], here[neighbourhood.edges]),
        # Without messages of others there are no rows but the neighbourhood's.
        far=neighbourhood.far,
    )
    return Direct(view, own)


def prepare_moments(
    cohort: Cohort, neighbourhood: Neighbourhood, view: View, config: AnyFedGATConfig
) -> Prepared:
    return prepare(cohort, view, neighbourhood.own, config, personal=False)


def prepare_direct(cohort: Cohort, direct: Direct, config: AnyFedGATConfig) -> Prepared:
    return prepare(cohort, direct.view, direct.own, config, personal=False)

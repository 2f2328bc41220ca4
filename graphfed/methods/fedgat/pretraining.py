"""FedGAT's communication before training (Alg. 1): features and edges to the server, moments of
neighbourhoods to the clients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import column
from graphfed.federation.ledger import Flow
from graphfed.federation.route import Route
from graphfed.federation.transfer import Ideal
from graphfed.methods.averaging.program import prepare_view
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Task
from graphfed.methods.common.local_training import Prepared
from graphfed.methods.common.released import by_node, node_route
from graphfed.methods.fedgat.config import MomentMessage
from graphfed.methods.fedgat.encrypted_moments import ENCRYPTED, encrypted_rows, laid_out, log_encrypted_cost
from graphfed.methods.fedgat.receptive_fields import (
    Neighbourhood,
    as_rows,
    border_ids,
    edge_ends,
    neighbourhood_ids,
    wider_neighbourhood,
)
from graphfed.methods.fedgat.server_graph import (
    VisibleGraph,
    featureless,
    memory_of,
    message_bytes,
    messages_of,
    neighbour_counts,
    neighbour_ids,
    neighbourhoods_of,
    no_numbers,
    pool,
    sizes_of,
    visible_graph,
)
from graphfed.nn.batch import View
from graphfed.nn.moments import Moments
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import fold

Rows = Tensor | SparseMatrix


def log_message_size(
    fed: Federation, pooled: Located, asked: "Asked", task: Task, config: AveragingSettings
) -> None:
    """Log the size of the messages before they are computed.

    Raises:
        InputError: The process with the server has too little memory.
    """
    together, table = fed.link is None, fed.table(asked.route)
    size = fed.control(
        message_bytes,
        pooled,
        table,
        task,
        config,
        together,
        name="fedgat/size",
        values={"once": int, "sent": int},
    )
    memory = memory_of(size["once"], size["sent"], together)
    fed.log(
        f"the message before training: {size['sent'] / 2**30:.2f} GiB to all clients, about "
        f"{memory / 2**30:.2f} GiB of memory at the server's process"
        if config.exchange.message.evaluation == "message"
        else f"the message before training would take {size['sent'] / 2**30:.2f} GiB; it is simulated"
    )


def upload(fed: Federation, data: Located, task: Task, *, features: bool = True) -> tuple[Route, Located]:
    """Send the graph to the server.

    Args:
        features: Whether to send features; if not, the server has features [U, 0].

    Returns:
        The route of all nodes, and `Pooled` at the server.

    Reference:
        FedGAT, Alg. 1, l. 1.
    """
    nodes = node_route(fed, data, task)
    if features:
        x = fed.upload(fed.clients.run(features_of, data), nodes, name="fedgat/features", grad=False)
    else:
        x = fed.server.run(featureless, fed.table(nodes))
    x = fed.server.run(by_node, x, fed.table(nodes))
    return nodes, with_edges(fed, data, nodes, x)


def with_edges(fed: Federation, data: Located, nodes: Route, x: Located) -> Located:
    """Send the edges to the server.

    Args:
        x: Features in the order of the node ids, at the server.

    Returns:
        `Pooled`, at the server.
    """
    centres, neighbours = fed.clients.run(edge_ends, data, outputs=2)
    edges = fed.route(centres, name="fedgat/edges")
    neighbours = fed.upload(neighbours, edges, name="fedgat/neighbours", grad=False)
    return fed.server.run(pool, x, fed.table(nodes), neighbours, fed.table(edges))


def extend(fed: Federation, pooled: Located, neighbourhood: Located) -> Located:
    """Extend the clients' neighbourhoods by one hop.

    Args:
        neighbourhood: The neighbourhoods, at the clients.

    Returns:
        The wider neighbourhoods, at the clients.
    """
    route = fed.route(fed.clients.run(border_ids, neighbourhood), name="fedgat/border_ids")
    counts = fed.server.run(neighbour_counts, pooled, fed.table(route))
    num_neighbours = fed.download(
        fed.server.run(as_rows, counts),
        route,
        name="fedgat/neighbour_counts",
        grad=False,
        like=TensorForm(torch.int64, (1,)),
    )
    edges = fed.expand_route(
        route, fed.clients.run(column, num_neighbours, 0), counts, name="fedgat/neighbourhood_edges"
    )
    ids = fed.server.run(neighbour_ids, pooled, fed.table(route))
    ids = fed.download(
        ids, edges, name="fedgat/neighbourhood_edges", grad=False, like=TensorForm(torch.int64, (1,))
    )
    return fed.clients.run(wider_neighbourhood, neighbourhood, num_neighbours, ids)


@dataclass(frozen=True)
class Asked:
    """The nodes whose messages the clients request.

    Attributes:
        neighbourhood: The neighbourhoods, at the clients.
        route: The route of the requested nodes.
        size: B of the requested nodes, at the clients.
        sizes: B of the route's ids, at the server.
    """

    neighbourhood: Located
    route: Route
    size: Located
    sizes: Located


@dataclass(frozen=True)
class Wanted(Asked):
    """The requested nodes with the routes of the message.

    Attributes:
        slots: The route of the 2 B slots of each node.
        entries: The route of the (2 B)^2 entries of each node's matrices.
    """

    slots: Route
    entries: Route


def ask(fed: Federation, pooled: Located, neighbourhood: Located) -> Asked:
    """Request messages: each client sends the ids of its neighbourhood, and the server returns the sizes.

    Args:
        neighbourhood: The neighbourhoods, at the clients.
    """
    route = fed.route(fed.clients.run(neighbourhood_ids, neighbourhood), name="fedgat/neighbourhood_ids")
    sizes = fed.server.run(sizes_of, pooled, fed.table(route))
    neighbourhood_sizes = fed.download(
        fed.server.run(as_rows, sizes),
        route,
        name="fedgat/sizes",
        grad=False,
        like=TensorForm(torch.int64, (1,)),
    )
    return Asked(neighbourhood, route, fed.clients.run(column, neighbourhood_sizes, 0), sizes)


def want(fed: Federation, asked: Asked) -> Wanted:
    """Build the routes of the message. Nothing is sent; they take memory and time for each entry of the
    message.

    Returns:
        The requested nodes with the routes.
    """

    def wide(fn: Any, name: str) -> Route:
        sizes = fed.clients.run(fn, asked.size), fed.server.run(fn, asked.sizes)
        return fed.expand_route(asked.route, *sizes, name=name)

    slots, entries = wide(twice, "fedgat/slots"), wide(twice_squared, "fedgat/entries")
    return Wanted(asked.neighbourhood, asked.route, asked.size, asked.sizes, slots, entries)


@dataclass(frozen=True)
class Exchange:
    """How the message before training is computed and sent under one kind of protection.

    Attributes:
        reads_features: Whether the server can read the features.
        receive: A function of (fed, data, nodes, pooled, asked, task, config). It returns the message at
            the clients that request it, prepared for training. `nodes` is the route of all nodes, and
            `pooled` is the graph at the server.
    """

    reads_features: bool
    receive: Callable[
        [Federation, Located, Route, Located, Asked, Task, AveragingSettings],
        Located,
    ]


def numbers_form(*shape: int) -> TensorForm:
    """Return the form of numbers of the default dtype."""
    return TensorForm(torch.get_default_dtype(), shape)


def receive_readable(
    fed: Federation,
    data: Located,
    nodes: Route,
    pooled: Located,
    asked: Asked,
    task: Task,
    config: AveragingSettings,
) -> Located:
    """Receive the message from a server that can read the features."""
    # Check the memory before the routes are built, which are as long as the message.
    log_message_size(fed, pooled, asked, task, config)
    fed.begin("computing and sending the message before training")
    if config.exchange.message.evaluation == "direct":
        return receive_directly(fed, data, pooled, asked, task, config)
    return receive(fed, data, pooled, want(fed, asked), task, config)


def receive(
    fed: Federation,
    data: Located,
    pooled: Located,
    wanted: Wanted,
    task: Task,
    config: AveragingSettings,
) -> Located:
    """Receive the message at the clients that request it.

    Args:
        wanted: The requested nodes with the routes of the message.

    Returns:
        The data prepared for training, at the clients.

    Reference:
        FedGAT, Alg. 1, l. 6 to 8.
    """
    # Rebinding each name releases the server's copy as soon as it is sent, to save memory.
    decoders: Located | None
    message: MomentMessage = config.exchange.message
    degree, seed = config.network.scores.degree, config.run.seed
    sums, scores, decoders = fed.server.run(messages_of, pooled, message.form, degree, seed, outputs=3)
    vectors, slots, entries = message.form == "vector", wanted.slots, wanted.entries
    sums = fed.download(sums, slots, name="fedgat/sums", grad=False, like=numbers_form(1 + task.num_features))
    scores = fed.download(
        scores,
        slots if vectors else entries,
        name="fedgat/scores",
        grad=False,
        like=numbers_form(2 * task.num_features),
    )
    if vectors:
        form = numbers_form(degree + 1)
        decoders = fed.download(decoders, entries, name="fedgat/decoders", grad=False, like=form)
    else:
        decoders = None
    neighbourhood, size = wanted.neighbourhood, wanted.size
    heads = config.network.attention_heads[0]
    view = fed.clients.run(moments_view, data, neighbourhood, size, sums, scores, decoders, heads)
    return fed.clients.run(prepare_moments, data, neighbourhood, view, config)


def receive_directly(
    fed: Federation,
    data: Located,
    pooled: Located,
    asked: Asked,
    task: Task,
    config: AveragingSettings,
) -> Located:
    """Receive the neighbours' features in place of the message (evaluation=direct); the ledger counts the
    message.

    Returns:
        The data prepared for training, at the clients.
    """

    def flow(fn: Any, name: str) -> Flow:
        return fed.expand_flow(asked.route, fed.clients.run(fn, asked.size), name=name).back

    # The ledger counts the slots and entries; their routes would be as long as the message.
    slots, entries = flow(twice, "fedgat/slots"), flow(twice_squared, "fedgat/entries")
    vectors = config.exchange.message.form == "vector"
    width, dtype = task.num_features, torch.get_default_dtype()
    graph = fed.simulate_download(
        fed.server.run(visible_graph, pooled),
        Ideal(slots, [1 + width], dtype),
        name="fedgat/sums",
        grad=False,
    )
    nothing = fed.server.run(no_numbers, pooled)
    scores = Ideal(slots if vectors else entries, [2 * width], dtype)
    fed.simulate_download(nothing, scores, name="fedgat/scores", grad=False)
    if vectors:
        decoders = Ideal(entries, [config.network.scores.degree + 1], dtype)
        fed.simulate_download(nothing, decoders, name="fedgat/decoders", grad=False)
    direct = fed.clients.run(direct_view, data, asked.neighbourhood, graph)
    return fed.clients.run(prepare_direct, data, direct, config)


def receive_encrypted(
    fed: Federation,
    data: Located,
    nodes: Route,
    pooled: Located,
    asked: Asked,
    task: Task,
    config: AveragingSettings,
) -> Located:
    """Receive the message from a server that cannot read the features.

    Args:
        pooled: The graph at the server, without features.

    Returns:
        The data prepared for training, at the clients.
    """
    width, degree, seed = task.num_features, config.network.scores.degree, config.run.seed
    key = fold(seed, "fedgat")
    neighbourhoods, ids = (
        fed.server.run(neighbourhoods_of, pooled),
        fed.clients.run(neighbourhood_ids, asked.neighbourhood),
    )
    route, size, sizes = asked.route, asked.size, asked.sizes
    parts = log_encrypted_cost(
        fed, neighbourhoods, route, sizes, width=width, degree=degree, name="fedgat/size"
    )
    wanted = want(fed, asked)
    # Only vectors can be encrypted; here the parts that do not depend on features.
    k1, _, r = fed.server.run(messages_of, pooled, "vector", degree, seed, outputs=3)
    k1 = fed.download(k1, wanted.slots, name=f"{ENCRYPTED}/keys", grad=False, like=numbers_form(1))
    form = numbers_form(degree + 1)
    decoders = fed.download(r, wanted.entries, name="fedgat/decoders", grad=False, like=form)
    rows = encrypted_rows(
        fed, data, nodes, neighbourhoods, route, ids, size, sizes,
        width=width, key=key, parts=parts,
    )  # fmt: skip
    sums, scores = fed.clients.run(laid_out, ids, size, k1, parts, key, *rows, outputs=2)
    neighbourhood = asked.neighbourhood
    heads = config.network.attention_heads[0]
    view = fed.clients.run(moments_view, data, neighbourhood, size, sums, scores, decoders, heads)
    return fed.clients.run(prepare_moments, data, neighbourhood, view, config)


READABLE = Exchange(True, receive_readable)
#: The exchange by the value of the setting `exchange`. The two exchanges send different rows: see
#: `encrypted_moments`.
EXCHANGES = {"plaintext": READABLE, "encrypted": Exchange(False, receive_encrypted)}


def features_of(cohort: Cohort) -> Rows:
    """Return the features of a client's nodes.

    Returns:
        [N, F].
    """
    assert cohort.x is not None
    return cohort.x


def twice(size: Tensor) -> Tensor:
    """Count the slots of each node.

    Args:
        size: B [n].

    Returns:
        2 B [n].
    """
    return 2 * size


def twice_squared(size: Tensor) -> Tensor:
    """Count the entries of each node's matrices.

    Args:
        size: B [n].

    Returns:
        (2 B)^2 [n].
    """
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
    """Build the clients' view of the graph, with the message in place of features.

    Args:
        size: B of the nodes with a message.
        sums: K1 and K2.
        scores: M1 and M2.
        decoders: R_0 to R_p, or None with form=matrix.
        heads: The attention heads of the first layer.
    """
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
    """What a simulated client evaluates with evaluation=direct.

    Attributes:
        view: Its view of the graph, with the neighbours' features.
        own: The rows of its own nodes in the view [N].
    """

    view: View
    own: Tensor


def direct_view(cohort: Cohort, neighbourhood: Neighbourhood, graph: VisibleGraph) -> Direct:
    """Build the view of a simulated client, with the features of all neighbours.

    Returns:
        The view, and the rows of the own nodes.
    """
    x, known, sizes, members = graph["x"], graph["ids"], graph["size"], graph["member"]
    sent = neighbourhood.sent_rows
    node = torch.searchsorted(known, neighbourhood.ids[sent])
    size = sizes[node]
    member = members[ranges((sizes.cumsum(0) - sizes)[node], size)]
    centre = torch.repeat_interleave(sent, size)
    count = max(len(known), 1)
    codes, row = torch.unique(neighbourhood.client[centre] * count + member, return_inverse=True)
    # The far nodes are neighbours of other nodes, so every node of the neighbourhood has a row.
    rows_of_neighbourhood = torch.searchsorted(
        codes, neighbourhood.client * count + torch.searchsorted(known, neighbourhood.ids)
    )
    others = row != rows_of_neighbourhood[centre]
    own, node = rows_of_neighbourhood[neighbourhood.own], codes % count
    view = View(
        x=x.select_rows(node) if isinstance(x, SparseMatrix) else x[node],
        ids=known[node],
        client=codes // count,
        num_clients=cohort.num_clients,
        y=cohort.y.new_full((len(codes),), -1).index_copy(0, own, cohort.y),
        degree=torch.zeros_like(codes),
        edges=(
            torch.stack([row, rows_of_neighbourhood[centre]])[:, others],
            rows_of_neighbourhood[neighbourhood.edges],
        ),
        # With later=exchange the view has no rows besides those of the neighbourhood.
        far=neighbourhood.far,
    )
    return Direct(view, own)


def prepare_moments(
    cohort: Cohort, neighbourhood: Neighbourhood, view: View, config: AveragingSettings
) -> Prepared:
    """Prepare a view with moments for training."""
    return prepare_view(cohort, view, neighbourhood.own, config)


def prepare_direct(cohort: Cohort, direct: Direct, config: AveragingSettings) -> Prepared:
    """Prepare a view with features for training.

    Args:
        direct: The view and the rows of the own nodes.
    """
    return prepare_view(cohort, direct.view, direct.own, config)

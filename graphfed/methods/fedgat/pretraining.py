"""FedGAT's communication before training (Alg. 1): features and edges to the server, moments of
neighbourhoods to the clients.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import column
from graphfed.federation.ledger import Flow
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.federation.transfer import Ideal
from graphfed.memory import memory_bytes
from graphfed.methods.averaging.program import prepare_view
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Task
from graphfed.methods.common.local_training import Prepared
from graphfed.methods.common.released import by_node, node_route
from graphfed.methods.fedgat.client_graphs import (
    Neighbourhood,
    VisibleGraph,
    as_rows,
    border_ids,
    direct_view,
    moments_view,
    neighbourhood_ids,
    wider_neighbourhood,
)
from graphfed.methods.fedgat.config import MomentMessage
from graphfed.methods.fedgat.moment_messages import (
    Neighbourhoods,
    Pooled,
    matrix_message,
    numbers,
    vector_message,
)
from graphfed.methods.parts import samples_clients
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import fold

Rows = Tensor | SparseMatrix
#: Bytes of a stored feature with what training makes of it, sparse and dense, and of an edge.
SPARSE, DENSE, EDGE = 32, 24, 60
#: Bytes of a score of an edge: its place in the pattern and in the transposed one, its value and gradients.
SCORE = 64
#: The form of ids and of counts.
INTEGERS = TensorForm(torch.int64, (1,))


# ---- the program over places -------------------------------------------------------------------------------


def upload(fed: Federation, data: Located, task: Task, *, features: bool = True) -> tuple[Route, Located]:
    """Send the graph to the server; without features the server has features [U, 0].

    Returns:
        The route of all nodes, and `Pooled` at the server.

    Reference:
        FedGAT, Alg. 1, l. 1.
    """
    nodes = node_route(fed, data, task)
    if features:
        x = fed.upload(fed.clients.run(features_of, data), nodes, name="fedgat/features", grad=False)
    else:
        x = fed.server.run(empty_features, fed.table(nodes))
    x = fed.server.run(by_node, x, fed.table(nodes))
    return nodes, upload_edges(fed, data, nodes, x)


def upload_edges(fed: Federation, data: Located, nodes: Route, x: Located) -> Located:
    """Send the edges to the server, which has features `x` in the order of the node ids.

    Returns:
        `Pooled`, at the server.
    """
    centres, neighbours = fed.clients.run(edge_ends, data, outputs=2)
    edges = fed.route(centres, name="fedgat/edges")
    neighbours = fed.upload(neighbours, edges, name="fedgat/neighbours", grad=False)
    return fed.server.run(pool, x, fed.table(nodes), neighbours, fed.table(edges))


def extend_neighbourhoods(fed: Federation, pooled: Located, neighbourhood: Located) -> Located:
    """Extend the clients' neighbourhoods by one hop."""
    route = fed.route(fed.clients.run(border_ids, neighbourhood), name="fedgat/border_ids")
    counts = fed.server.run(neighbour_counts, pooled, fed.table(route))
    num_neighbours = fed.download(
        fed.server.run(as_rows, counts), route, name="fedgat/neighbour_counts", grad=False, like=INTEGERS
    )
    edges = fed.expand_route(
        route, fed.clients.run(column, num_neighbours, 0), counts, name="fedgat/neighbourhood_edges"
    )
    ids = fed.server.run(neighbour_ids, pooled, fed.table(route))
    ids = fed.download(ids, edges, name="fedgat/neighbourhood_edges", grad=False, like=INTEGERS)
    return fed.clients.run(wider_neighbourhood, neighbourhood, num_neighbours, ids)


@dataclass(frozen=True)
class Requests:
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

    def expand(self, fed: Federation) -> tuple[Route, Route]:
        """Return the routes of the 2 B slots and of the (2 B)^2 entries of the matrices of each node. Nothing
        is sent; they take memory and time for each entry of the message.
        """

        def wide(fn: Any, name: str) -> Route:
            sizes = fed.clients.run(fn, self.size), fed.server.run(fn, self.sizes)
            return fed.expand_route(self.route, *sizes, name=name)

        return wide(twice, "fedgat/slots"), wide(twice_squared, "fedgat/entries")


def request_messages(fed: Federation, pooled: Located, neighbourhood: Located) -> Requests:
    """Request messages: each client sends the ids of its neighbourhood, and the server returns the sizes."""
    route = fed.route(fed.clients.run(neighbourhood_ids, neighbourhood), name="fedgat/neighbourhood_ids")
    sizes = fed.server.run(sizes_of, pooled, fed.table(route))
    size = fed.download(fed.server.run(as_rows, sizes), route, name="fedgat/sizes", grad=False, like=INTEGERS)
    return Requests(neighbourhood, route, fed.clients.run(column, size, 0), sizes)


def receive(
    fed: Federation, data: Located, pooled: Located, requests: Requests, task: Task, config: AveragingSettings
) -> Located:
    """Receive the message at the clients that request it, from a server that can read the features.

    Returns:
        The data prepared for training, at the clients.

    Reference:
        FedGAT, Alg. 1, l. 6 to 8.
    """
    message: MomentMessage = config.exchange.message
    # Check the memory before the routes are built, which are as long as the message.
    log_message_size(fed, pooled, requests, task, config)
    fed.begin("computing and sending the message before training")
    if message.evaluation == "direct":
        return receive_directly(fed, data, pooled, requests, task, config)
    slots, entries = requests.expand(fed)
    vectors, width, degree = message.form == "vector", task.num_features, config.network.scores.degree
    # Rebinding each name releases the server's copy as soon as it is sent, to save memory.
    decoders: Located | None
    sums, scores, decoders = fed.server.run(
        messages_of, pooled, message.form, degree, config.run.seed, outputs=3
    )
    sums = fed.download(sums, slots, name="fedgat/sums", grad=False, like=numbers_form(1 + width))
    rows = slots if vectors else entries
    scores = fed.download(scores, rows, name="fedgat/scores", grad=False, like=numbers_form(2 * width))
    form = numbers_form(degree + 1)
    if vectors:
        decoders = fed.download(decoders, entries, name="fedgat/decoders", grad=False, like=form)
    else:
        decoders = None
    return fed.clients.run(
        prepare_moments, data, requests.neighbourhood, requests.size, sums, scores, decoders, config
    )


def receive_directly(
    fed: Federation, data: Located, pooled: Located, requests: Requests, task: Task, config: AveragingSettings
) -> Located:
    """Receive the neighbours' features in place of the message (evaluation=direct); the ledger counts the
    message.

    Returns:
        The data prepared for training, at the clients.
    """

    def flow(fn: Any, name: str) -> Flow:
        return fed.expand_flow(requests.route, fed.clients.run(fn, requests.size), name=name).back

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
    return fed.clients.run(prepare_direct, data, requests.neighbourhood, graph, config)


def numbers_form(*shape: int) -> TensorForm:
    """Return the form of numbers of the default dtype."""
    return TensorForm(torch.get_default_dtype(), shape)


# ---- at the clients ----------------------------------------------------------------------------------------


def features_of(cohort: Cohort) -> Rows:
    """Return the features of a client's nodes, [N, F]."""
    assert cohort.x is not None
    return cohort.x


def edge_ends(cohort: Cohort) -> tuple[RowIds, Tensor]:
    """List the edges of a client's nodes.

    Returns:
        The node of every edge, by client (E rows, sorted by node), and the ids of the neighbours, int64 [E,
        1].
    """
    row = torch.cat([cohort.edge_index[1], cohort.cross_row])
    neighbour = torch.cat([cohort.id[cohort.edge_index[0]], cohort.cross_id])
    order = torch.argsort(row, stable=True)
    row = row[order]
    return RowIds(cohort.id[row], cohort.client[row]), neighbour[order][:, None]


def twice(size: Tensor) -> Tensor:
    """Count the slots of nodes with B neighbours [n]: 2 B."""
    return 2 * size


def twice_squared(size: Tensor) -> Tensor:
    """Count the entries of the matrices of nodes with B neighbours [n]: (2 B)^2."""
    return (2 * size) ** 2


def prepare_moments(
    cohort: Cohort,
    neighbourhood: Neighbourhood,
    size: Tensor,
    sums: Tensor,
    scores: Tensor,
    decoders: Tensor | None,
    config: AveragingSettings,
) -> Prepared:
    """Prepare the message for training."""
    heads = config.network.attention_heads[0]
    view = moments_view(cohort, neighbourhood, size, sums, scores, decoders, heads)
    return prepare_view(cohort, view, neighbourhood.own, config)


def prepare_direct(
    cohort: Cohort, neighbourhood: Neighbourhood, graph: VisibleGraph, config: AveragingSettings
) -> Prepared:
    """Prepare a view with the features of all neighbours for training."""
    view, own = direct_view(cohort, neighbourhood, graph)
    return prepare_view(cohort, view, own, config)


# ---- at the server -----------------------------------------------------------------------------------------


def empty_features(nodes: RouteTable) -> Tensor:
    """Build feature rows without numbers, [U, 0], for a server that reads no features."""
    return torch.zeros(len(nodes.index), 0, device=nodes.ids.device)


def pool(x: Rows, nodes: RouteTable, neighbours: Tensor, edges: RouteTable) -> Pooled:
    """Build the graph at the server.

    Args:
        x: Features in the order of the node ids [U, F].
        neighbours: The neighbour's id of each edge [E, 1].
        edges: The table of the edges' nodes.

    Raises:
        InputError: A neighbour is not a node of any client.
    """
    ids, count = nodes.ids, len(nodes.ids)
    centre = torch.searchsorted(ids, edges.ids[edges.index])
    member = torch.searchsorted(ids, neighbours[:, 0]).clamp(max=max(count - 1, 0))
    unknown = ids[member] != neighbours[:, 0]
    if bool(unknown.any()):
        node, neighbour = int(ids[centre[unknown][0]]), int(neighbours[unknown][0, 0])
        raise InputError(f"node {node} has the neighbour {neighbour}, which is not a node of any client")
    own = torch.arange(count, device=ids.device)
    centre, member = torch.cat([own, centre]), torch.cat([own, member])
    # A stable sort keeps each node itself in front of its neighbours.
    order = torch.argsort(centre, stable=True)
    return Pooled(x, Neighbourhoods(ids, torch.bincount(centre, minlength=count), member[order]))


def sizes_of(pooled: Pooled, table: RouteTable) -> Tensor:
    """Look up B of the nodes of a route, [U']."""
    return pooled.neighbourhoods.size[torch.searchsorted(pooled.neighbourhoods.ids, table.ids)]


def neighbour_counts(pooled: Pooled, table: RouteTable) -> Tensor:
    """Look up the number of neighbours of the nodes of a route, B - 1 [U']."""
    return sizes_of(pooled, table) - 1


def neighbour_ids(pooled: Pooled, table: RouteTable) -> Tensor:
    """List the ids of the neighbours of the nodes of a route, without the nodes themselves, [n, 1]."""
    neighbourhoods = pooled.neighbourhoods
    rows = torch.searchsorted(neighbourhoods.ids, table.ids)
    starts = neighbourhoods.size.cumsum(0) - neighbourhoods.size
    members = neighbourhoods.member[ranges(starts[rows] + 1, neighbourhoods.size[rows] - 1)]
    return neighbourhoods.ids[members][:, None]


def messages_of(pooled: Pooled, form: str, degree: int, seed: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the message of every node.

    Returns:
        sums, scores and decoders of `nn.moments.Moments`; no decoders with form=matrix.

    Reference:
        FedGAT, Alg. 1, l. 2 to 5.
    """
    key = fold(seed, "fedgat")
    if form == "matrix":
        return (*matrix_message(pooled.x, pooled.neighbourhoods, key), None)
    return vector_message(pooled.x, pooled.neighbourhoods, degree, key)


def visible_graph(pooled: Pooled) -> VisibleGraph:
    """Show the graph at the server (evaluation=direct)."""
    nodes = pooled.neighbourhoods
    return {"x": pooled.x, "ids": nodes.ids, "size": nodes.size, "member": nodes.member}


def no_numbers(pooled: Pooled) -> Tensor:
    """Build a payload without numbers, [0]."""
    return torch.zeros(0, device=pooled.neighbourhoods.ids.device)


# ---- the size of the message -------------------------------------------------------------------------------


def log_message_size(
    fed: Federation, pooled: Located, requests: Requests, task: Task, config: AveragingSettings
) -> None:
    """Log the size of the messages before they are computed.

    Raises:
        InputError: The process with the server has too little memory.
    """
    together, table = fed.link is None, fed.table(requests.route)
    values = {"once": int, "sent": int}
    size = fed.control(
        message_bytes, pooled, table, task, config, together, name="fedgat/size", values=values
    )
    memory = memory_of(size["once"], size["sent"], together)
    fed.log(
        f"the message before training: {size['sent'] / 2**30:.2f} GiB to all clients, about "
        f"{memory / 2**30:.2f} GiB of memory at the server's process"
        if config.exchange.message.evaluation == "message"
        else f"the message before training would take {size['sent'] / 2**30:.2f} GiB; it is simulated"
    )


def message_bytes(
    pooled: Pooled, table: RouteTable, task: Task, config: AveragingSettings, together: bool
) -> dict[str, int]:
    """Count the bytes of the messages. The result is the same wherever the clients run.

    Args:
        table: The table of the requested nodes.
        together: Whether the clients run in the server's process.

    Returns:
        once, the bytes of every node's message once; sent, the bytes of all messages that are sent.

    Raises:
        InputError: The process has less memory than the messages take. The error names settings that fit.
    """
    message: MomentMessage = config.exchange.message
    once, sent = _bytes_of(sizes_of(pooled, table), table, task, message.form, config.network.scores.degree)
    memory, (free, _) = memory_of(once, sent, together), memory_bytes()
    if message.evaluation == "message" and free is not None and memory > free:
        raise InputError(
            f"fedgat's message before training takes about {memory / 2**30:.1f} GiB of memory with "
            f"form={message.form}, and {free / 2**30:.1f} GiB are free; use "
            f"{' or '.join(_that_fit(pooled, table, task, config, together, free))}"
        )
    return {"once": once, "sent": sent}


def _bytes_of(size: Tensor, table: RouteTable, task: Task, form: str, degree: int) -> tuple[int, int]:
    """Count the bytes of the messages of nodes with B neighbours each [U']: once, and as sent."""
    scalar, width = torch.get_default_dtype().itemsize, task.num_features
    once, sent = (scalar * numbers(form, b, width, degree) for b in (size, size[table.index]))
    return once, sent


def memory_of(once: int, sent: int, together: bool) -> int:
    """Estimate the largest memory in bytes that the messages take, from the results of `message_bytes`.

    The server holds them as computed and as sent. If the clients run in its process (`together`), they hold
    them as received and as copied for training, after the computed messages are deleted. Predictions copy a
    few nodes at a time.
    """
    return sent + (max(once, sent) if together else once)


def _that_fit(
    pooled: Pooled, table: RouteTable, task: Task, config: AveragingSettings, together: bool, free: int
) -> list[str]:
    """List the settings with which a run fits into the free memory, those that change least first."""
    size, found = sizes_of(pooled, table), []
    message: MomentMessage = config.exchange.message
    form, degree = message.form, config.network.scores.degree

    def add(setting: str, memory: float, consequence: str = "") -> None:
        if memory <= free:
            found.append(f"{setting} (about {memory / 2**30:.1f} GiB{consequence})")

    if form == "matrix":
        add("form=vector", memory_of(*_bytes_of(size, table, task, "vector", degree), together))
    if together:
        add(
            "evaluation=direct",
            _direct_memory(pooled.x, size, table, config.network.attention_heads[0]),
            "; it simulates the message, with the same results",
        )
    if message.later == "hops" and config.network.layers == 2 and not samples_clients(config):
        own = _bytes_of(pooled.neighbourhoods.size, table, task, form, degree)[0]
        add("later=exchange", memory_of(own, own, together), "; it sends embeddings in every round")
    # The largest number of neighbours with which the message fits, by bisection.
    fits, too_many = 0, int(size.max())
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        bounded = _bytes_of(size.clamp(max=middle + 1), table, task, form, degree)
        fits, too_many = (middle, too_many) if memory_of(*bounded, together) <= free else (fits, middle)
    if fits:
        bounded = _bytes_of(size.clamp(max=fits + 1), table, task, form, degree)
        add(f"max_neighbours={fits}", memory_of(*bounded, together), "; it leaves edges out")
    return found or ["fewer features, or the method attention_sums, which sends no message before training"]


def _direct_memory(x: Rows, size: Tensor, table: RouteTable, heads: int) -> float:
    """Estimate the memory of evaluation=direct in bytes: the stored features of all rows of the clients'
    views, the places of the edges into the requested nodes, and each head's scores.
    """
    edges, clients = int(size[table.index].sum()), len(torch.unique(table.client))
    rows = min(edges, clients * x.shape[0])
    if isinstance(x, SparseMatrix):
        features = SPARSE * len(x.values) / max(1, x.shape[0]) * rows
    else:
        features = DENSE * x.shape[1] * rows
    return features + (EDGE + SCORE * heads) * edges

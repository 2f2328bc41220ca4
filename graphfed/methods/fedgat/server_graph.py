"""The graph at FedGAT's server, and the messages that the server computes from it."""

from typing import TypedDict

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation.route import RouteTable
from graphfed.memory import memory_bytes
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Task
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


def featureless(nodes: RouteTable) -> Tensor:
    """Build feature rows without numbers, for a server that reads no features.

    Returns:
        [U, 0].
    """
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
    """Look up the neighbourhood sizes of the nodes of a route.

    Returns:
        B of each node [U'].
    """
    return pooled.neighbourhoods.size[torch.searchsorted(pooled.neighbourhoods.ids, table.ids)]


def neighbour_counts(pooled: Pooled, table: RouteTable) -> Tensor:
    """Look up the number of neighbours of the nodes of a route.

    Returns:
        B - 1 of each node [U'].
    """
    return sizes_of(pooled, table) - 1


def neighbour_ids(pooled: Pooled, table: RouteTable) -> Tensor:
    """List the neighbours of the nodes of a route, without the nodes themselves.

    Returns:
        Their ids [n, 1].
    """
    neighbourhoods = pooled.neighbourhoods
    rows = torch.searchsorted(neighbourhoods.ids, table.ids)
    starts = neighbourhoods.size.cumsum(0) - neighbourhoods.size
    return neighbourhoods.ids[neighbourhoods.member[ranges(starts[rows] + 1, neighbourhoods.size[rows] - 1)]][
        :, None
    ]


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
        edges, clients = int(size[table.index].sum()), len(torch.unique(table.client))
        rows = min(edges, clients * pooled.x.shape[0])
        feature = SPARSE if isinstance(pooled.x, SparseMatrix) else DENSE
        features = feature * _stored_per_row(pooled.x) * rows
        direct = features + edge_memory(edges, config.network.attention_heads[0])
        add("evaluation=direct", direct, "; it simulates the message, with the same results")
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


def _stored_per_row(x: Rows) -> float:
    """Return the mean number of stored features of a node."""
    return len(x.values) / max(1, x.shape[0]) if isinstance(x, SparseMatrix) else x.shape[1]


def edge_memory(edges: int, heads: int) -> int:
    """Estimate the memory of the edges of evaluation=direct in bytes: their places, and each head's scores.

    Args:
        edges: The edges into the nodes whose messages are requested, by client.
        heads: The attention heads of the first layer.

    Returns:
        Bytes.
    """
    return (EDGE + SCORE * heads) * edges


def memory_of(once: int, sent: int, together: bool) -> int:
    """Estimate the largest memory that the messages take.

    The server holds them as computed and as sent. If the clients run in its process, they hold them as
    received and as copied for training, after the computed messages are deleted. Predictions copy a few
    nodes at a time.

    Args:
        once: Bytes of every node's message once.
        sent: Bytes of all messages that are sent.
        together: Whether the clients run in the server's process.

    Returns:
        Bytes.
    """
    return sent + (max(once, sent) if together else once)


def neighbourhoods_of(pooled: Pooled) -> Neighbourhoods:
    """Return the neighbours of every node."""
    return pooled.neighbourhoods


class VisibleGraph(TypedDict):
    """The graph that the server shows to simulated clients (evaluation=direct).

    Attributes:
        x: Features of all nodes [U, F].
        ids: Their ids, ascending [U].
        size: B of each node [U].
        member: The rows of each node's neighbours, with the node itself first [sum B].
    """

    x: Rows
    ids: Tensor
    size: Tensor
    member: Tensor


def visible_graph(pooled: Pooled) -> VisibleGraph:
    """Show the graph at the server."""
    nodes = pooled.neighbourhoods
    return {"x": pooled.x, "ids": nodes.ids, "size": nodes.size, "member": nodes.member}


def no_numbers(pooled: Pooled) -> Tensor:
    """Build a payload without numbers.

    Returns:
        [0].
    """
    return torch.zeros(0, device=pooled.neighbourhoods.ids.device)

"""The graph at FedGAT's server, and the messages that the server computes from it."""

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation.route import RouteTable
from graphfed.memory import memory_bytes
from graphfed.methods.base import Task
from graphfed.methods.fedgat.config import AnyFedGATConfig
from graphfed.methods.fedgat.moment_messages import (
    Neighbourhoods,
    Pooled,
    matrix_message,
    numbers,
    vector_message,
)
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import fold

__all__ = [
    "empty_rows",
    "featureless",
    "member_features",
    "member_ids",
    "memory_of",
    "message_bytes",
    "messages_of",
    "neighbour_counts",
    "neighbour_ids",
    "neighbourhoods_of",
    "pool",
    "sizes_of",
]

Rows = Tensor | SparseMatrix


def featureless(nodes: RouteTable) -> Tensor:
    """Build feature rows without numbers, for a server that reads no features.

    Args:
        nodes: The table of all nodes.

    Returns:
        [U, 0].
    """
    return torch.zeros(len(nodes.index), 0, device=nodes.ids.device)


def pool(x: Rows, nodes: RouteTable, neighbours: Tensor, edges: RouteTable) -> Pooled:
    """Build the graph at the server.

    Args:
        x: Features in the order of the node ids [U, F].
        nodes: The table of all nodes.
        neighbours: The neighbour's id of each edge [E, 1].
        edges: The table of the edges' nodes.

    Returns:
        The graph.

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

    Args:
        pooled: The graph at the server.
        table: The route's table.

    Returns:
        B of each node [U'].
    """
    return pooled.neighbourhoods.size[torch.searchsorted(pooled.neighbourhoods.ids, table.ids)]


def neighbour_counts(pooled: Pooled, table: RouteTable) -> Tensor:
    """Look up the number of neighbours of the nodes of a route.

    Args:
        pooled: The graph at the server.
        table: The route's table.

    Returns:
        B - 1 of each node [U'].
    """
    return sizes_of(pooled, table) - 1


def neighbour_ids(pooled: Pooled, table: RouteTable) -> Tensor:
    """List the neighbours of the nodes of a route, without the nodes themselves.

    Args:
        pooled: The graph at the server.
        table: The route's table.

    Returns:
        Their ids [n, 1].
    """
    neighbourhoods = pooled.neighbourhoods
    rows = torch.searchsorted(neighbourhoods.ids, table.ids)
    starts = neighbourhoods.size.cumsum(0) - neighbourhoods.size
    return neighbourhoods.ids[neighbourhoods.member[ranges(starts[rows] + 1, neighbourhoods.size[rows] - 1)]][
        :, None
    ]


def messages_of(pooled: Pooled, config: AnyFedGATConfig) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the message of every node.

    Args:
        pooled: The graph at the server.
        config: The settings.

    Returns:
        sums, scores and decoders of `nn.moments.Moments`; no decoders with form=matrix.

    Reference:
        FedGAT, Alg. 1, l. 2 to 5.
    """
    key = fold(config.seed, "fedgat")
    if config.form == "matrix":
        return (*matrix_message(pooled.x, pooled.neighbourhoods, key), None)
    return vector_message(pooled.x, pooled.neighbourhoods, config.degree, key)


def message_bytes(
    pooled: Pooled, table: RouteTable, task: Task, config: AnyFedGATConfig, together: bool
) -> dict[str, int]:
    """Count the bytes of the messages. The result is the same wherever the clients run.

    Args:
        pooled: The graph at the server.
        table: The table of the requested nodes.
        task: The task.
        config: The settings.
        together: Whether the clients run in the server's process.

    Returns:
        once, the bytes of every node's message once; sent, the bytes of all messages that are sent.

    Raises:
        InputError: The process has less memory than the messages take.
    """
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
            f"{vectors if config.form == 'matrix' else ''}a partition with fewer cross-client "
            "edges, or evaluation=direct, which simulates the message"
        )
    return {"once": once, "sent": sent}


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
    """Return the neighbours of every node.

    Args:
        pooled: The graph at the server.

    Returns:
        The neighbourhoods.
    """
    return pooled.neighbourhoods


def member_ids(pooled: Pooled) -> Tensor:
    """List the ids of every node's neighbours, with the node itself first.

    Args:
        pooled: The graph at the server.

    Returns:
        int64 [sum B, 1].
    """
    return pooled.neighbourhoods.ids[pooled.neighbourhoods.member][:, None]


def member_features(pooled: Pooled) -> Rows:
    """Gather the features of every node's neighbours, with the node itself first.

    Args:
        pooled: The graph at the server.

    Returns:
        [sum B, F].
    """
    x, member = pooled.x, pooled.neighbourhoods.member
    return x.select_rows(member) if isinstance(x, SparseMatrix) else x[member]


def empty_rows(pooled: Pooled) -> Tensor:
    """Build a row without numbers for every node.

    Args:
        pooled: The graph at the server.

    Returns:
        [U, 0].
    """
    return torch.zeros(len(pooled.neighbourhoods.ids), 0, device=pooled.neighbourhoods.ids.device)

"""The modelled duration of a round of FedGraph, which does not depend on the machine
(docs/papers/fedgraph.md, "Modelled time"). The paper measures time; this model is ours.
"""

import torch
from torch import Tensor

from graphfed.methods.fedgraph.client_graphs import ClientGraph, Layer
from graphfed.methods.fedgraph.config import ModelledTime
from graphfed.random import fold, uniform

#: Operations of a step of Adam for one weight.
STEP_OPERATIONS = 10


def count_operations(graph: ClientGraph, layer: Layer, number: int, width_in: int, width_out: int) -> Tensor:
    """Count the floating-point operations of a layer in a training step, forward and backward.

    A product with its sum counts as two operations.

    Args:
        number: The number of the layer, from 0.
        width_in: H, the width of the embeddings that enter.
        width_out: H', the width of the embeddings that leave.

    Returns:
        The operations of each client, [K] float64.

    Reference:
        docs/papers/fedgraph.md, "Modelled time".
    """
    enters = _used_rows(graph, layer)
    client = graph.client[enters]
    if number == 0:
        # h W and the gradient of W; the features need no gradient.
        products = 2 * 2 * graph.num_nonzero[enters].double() * width_out
    else:
        products = torch.full_like(enters, 3 * 2 * width_in * width_out).double()
    operations = torch.zeros(graph.num_clients, dtype=torch.float64, device=client.device)
    operations.index_add_(0, client, products)
    edges = layer.adjacency.indptr.diff().double() * (2 * 2 * width_out)
    return operations.index_add_(0, graph.client[layer.out], edges)


def _used_rows(graph: ClientGraph, layer: Layer) -> Tensor:
    """Return the rows that a layer needs, which are not all that enter it if all rows do (`TAKE_ALL`)."""
    if len(layer.rows) < graph.num_rows:
        return layer.rows
    is_used = torch.zeros(layer.adjacency.shape[1], dtype=torch.bool, device=layer.rows.device)
    is_used[layer.adjacency.indices.long()] = True
    if layer.sent is not None:
        is_used[layer.sent] = True
    return layer.rows[is_used[: len(layer.rows)]]


def zero_operations(graph: ClientGraph) -> Tensor:
    """Return the counts of operations at the start of a round.

    Returns:
        Zeros, [K] float64.
    """
    return torch.zeros(graph.num_clients, dtype=torch.float64, device=graph.client.device)


def add_operations(
    done: Tensor, graph: ClientGraph, number: int, widths: tuple[int, ...], layer: Layer
) -> Tensor:
    """Add the operations of a layer (`count_operations`).

    Args:
        done: The operations so far of each client, [K] float64.
        number: The number of the layer, from 0.
        widths: The widths of the embeddings that enter each layer and that leave the last one.

    Returns:
        The sums, [K] float64.
    """
    return done + count_operations(graph, layer, number, widths[number], widths[number + 1])


def modelled_seconds(
    graph: ClientGraph,
    operations: Tensor,
    before: Tensor,
    after: Tensor,
    parameters: int,
    local_steps: int,
    time: ModelledTime,
) -> Tensor:
    """Compute the modelled duration of a round at each client.

    Args:
        operations: The operations of the round's layers, [K].
        before: Bytes that each client had sent and received before the round, [K].
        after: The same after the round, [K].
        parameters: n_W, the number of weights.

    Returns:
        Seconds, [K] float64: operations over the client's speed, plus bytes over its bandwidth.

    Reference:
        docs/papers/fedgraph.md, "Modelled time".
    """
    operations = operations + STEP_OPERATIONS * parameters * local_steps
    # Speeds and bandwidths do not depend on the seed of the run.
    speed, bandwidth = (
        median * time.spread ** (2 * uniform(fold(0, "fedgraph", purpose), graph.client_ids)[:, 0] - 1)
        for purpose, median in (("speed", time.speed), ("bandwidth", time.bandwidth))
    )
    return operations / speed + (after - before).double() / bandwidth


def measured_seconds(before: Tensor, after: Tensor) -> Tensor:
    """Compute the measured duration of a round at each client.

    Args:
        before: Seconds that the client had worked before the round, by its clock, [K].
        after: The same after the round, [K].

    Returns:
        Seconds, [K] float64.
    """
    return after - before

"""Count the numbers of a model and of a checkpoint, and the bytes that training takes at least, from counts
that are known before a run starts.
"""

from dataclasses import dataclass

from graphfed.data.graphs.directed import DirectedEdges
from graphfed.methods.parts import Network, Recurrent
from graphfed.methods.settings import value, values

#: Bytes of a number (float32).
NUMBER = 4
#: Bytes of a run's files for each number of a checkpoint: three checkpoints, while the third is written, and
#: the model, which is a quarter of one or less.
CHECKPOINT_BYTES = 13


@dataclass(frozen=True)
class GraphExtent:
    """The counts of a partitioned graph.

    Attributes:
        pairs: Pairs of a client and a feature, of sparse features those that a node of the client has set.
    """

    clients: int
    features: int
    classes: int
    pairs: int


@dataclass(frozen=True)
class SeriesExtent:
    """The number of sensors."""

    sensors: int


def num_moments(optimizer: str) -> int:
    """Return how many numbers the optimiser keeps for each weight: 2 for Adam, 0 for gradient descent."""
    return 0 if optimizer == "sgd" else 2


def network_numbers(
    network: Network,
    features: int,
    outputs: int,
    *,
    clients: int = 1,
    pairs: int | None = None,
    edges: DirectedEdges | None = None,
) -> int:
    """Count the weights of one graph neural network, whose last layer has `outputs` units, at each client.

    `pairs` are the pairs of a client and a feature that the first layers store a row for; None for all.
    `edges` are the graph's, if it keeps them as the data lists them.
    """
    widths = [features, *[network.hidden] * (network.layers - 1), outputs]
    numbers, weights = 0, network.kernel.init(0, widths, network.attention_heads)
    if network.kernel.edge_init is not None and edges is not None:
        weights |= network.kernel.edge_init(0, widths, len(edges.names), not edges.symmetric)
    for name, weight in weights.items():
        if pairs is not None and name in network.kernel.input_weights:
            numbers += pairs * weight[0].numel()
        else:
            numbers += clients * weight.numel()
    return numbers


def recurrent_numbers(recurrent: Recurrent) -> int:
    """Count the weights of a recurrent encoder and decoder with three gates each, except input weights."""
    # Two networks, three gates; each layer has a matrix for its state, and after the first one for its input.
    return 2 * 3 * (2 * recurrent.layers - 1) * recurrent.hidden**2


def weight_bytes(config: object, features: int, outputs: int) -> int:
    """Compute a lower bound of the bytes of one network while it is trained, without allocating it.

    Counted are the matrices of the layers, the last with `outputs` columns, their gradients and the values of
    the optimiser.
    """
    known = values(config)
    if "hidden" not in known:
        return 0
    hidden, layers = known["hidden"], known["layers"]
    if "backbone" not in known:
        numbers = recurrent_numbers(Recurrent(hidden=hidden, layers=layers))
    elif layers == 1:
        numbers = features * outputs * known.get("output_heads", 1)
    else:
        width = hidden * known.get("heads", 1)
        numbers = features * width + (layers - 2) * width**2
        numbers += width * outputs * known.get("output_heads", 1)
    # Weights and gradients, and what the optimiser keeps.
    return numbers * NUMBER * (2 + num_moments(known.get("optimizer", "adam")))


def hidden_bytes(config: object, rows: int) -> int:
    """Compute the bytes of one layer's hidden values, a lower bound of what a run takes; 0 without a network.

    `rows` are computed at once: nodes, or the windows of sensors.
    """
    return rows * int(value(config, "hidden", 0)) * int(value(config, "heads", 1)) * NUMBER

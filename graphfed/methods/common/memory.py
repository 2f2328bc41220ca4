"""Estimate the memory of a run, and the numbers of a checkpoint, from counts that are known before it starts.

The formulas count the large tensors of the local runtime, in which all clients are one cohort: features and
their dropout, activations, edges, and what a method adds (`Method.memory`). They are no upper bounds. A test
compares them with the measured peak of every method: above `SMALL` bytes they are right within the factor
`ACCURACY`.
"""

from dataclasses import dataclass, field

import numpy as np

from graphfed.methods.config import (
    AttentionSettings,
    GraphSettings,
    RecurrentSettings,
    SequenceTrainingSettings,
    WindowSettings,
)

__all__ = [
    "ACCURACY",
    "CHECKPOINT_BYTES",
    "EDGE",
    "NUMBER",
    "SMALL",
    "GraphExtent",
    "SeriesExtent",
    "feature_memory",
    "graph_memory",
    "network_numbers",
    "num_moments",
    "recurrent_numbers",
    "series_memory",
    "weight_bytes",
]

#: The estimate and the measured peak differ by at most this factor.
ACCURACY = 3.0
#: Runs below this many bytes cannot be distinguished from the process's own memory.
SMALL = 30_000_000

#: Bytes of a number (float32), and of a stored feature with its place.
NUMBER, STORED = 4, 32
#: Bytes of a run's files for each number of a checkpoint: three checkpoints, while the third is written, and
#: the model, which is a quarter of one or less.
CHECKPOINT_BYTES = 13
#: Copies of dense features (with their dropout, which masks and scales) and of an activation (with its
#: gradient, in every layer's forward and backward pass).
FEATURE_COPIES, ACTIVATION_COPIES = 6, 12
#: Bytes of an edge: two ends, a weight, and both orders of the matrix.
EDGE = 60
#: Numbers stored for a weight: itself, its gradient, two moments, the best one and the sum.
WEIGHT_COPIES = 6
#: Intermediate results of a recurrent cell for each number of its state.
CELL_COPIES = 9
#: What every run takes: tables of results, buffers of the allocator.
BASE = 20_000_000


@dataclass(frozen=True)
class GraphExtent:
    """The counts of a partitioned graph.

    Args:
        clients: K.
        rows: Nodes at the clients; a node at two clients counts twice.
        edges: Directed edges inside clients.
        closure: Rows, and for each client the distinct neighbours at other clients.
        features: F.
        classes: C.
        stored: Feature values that are stored for all rows: rows * F, of sparse features the set ones.
        sparse: Whether the features are sparse.
        pairs: Pairs of a client and a feature, of sparse features those that a node of the client has set.
        scored_edges: Directed edges of the pooled graph, where the model is scored on it too; else 0.
        sizes: For each node of the closure its neighbours, with itself; [closure] int64.
    """

    clients: int
    rows: int
    edges: int
    closure: int
    features: int
    classes: int
    stored: int
    sparse: bool
    pairs: int
    scored_edges: int
    sizes: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class SeriesExtent:
    """The counts of readings.

    Attributes:
        sensors: Number of sensors.
        trained: Number of windows that are trained on.
        scored: Number of windows that are scored.
    """

    sensors: int
    trained: int
    scored: int


def graph_memory(extent: GraphExtent, config: GraphSettings, *, personal: bool, extra: float = 0.0) -> int:
    """Estimate the memory of a run on a graph, beyond what its process takes with the data loaded.

    Args:
        extent: The counts of the partitioned graph.
        config: The settings of training.
        personal: Whether every client has weights of its own between rounds.
        extra: Bytes that the method adds to training.

    Returns:
        Bytes.
    """
    attends, heads = config.architecture == "gat", config.attention_heads
    width, outputs = config.hidden * heads[0], extent.classes * heads[-1]
    features = feature_memory(extent.stored, extent.sparse)
    layers = max(1, config.layers - 1)
    activations = ACTIVATION_COPIES * NUMBER * extent.rows * (width * layers + outputs)
    # Attention and the maximum compute a message for each edge.
    by_edge = NUMBER * max(width, outputs) if attends or config.architecture == "maxpool" else 0
    edges = extent.edges * (EDGE + 4 * by_edge) + extent.scored_edges * (EDGE + 2 * by_edge)
    weights = extent.features * width + (layers - 1) * width**2 + width * outputs
    # Clients with one node each train a common model.
    apart = (personal or not extent.sparse) and extent.rows > extent.clients
    weights *= WEIGHT_COPIES * NUMBER * (extent.clients if apart else 1)
    return int(BASE + features + activations + edges + weights + extra)


def feature_memory(stored: float, sparse: bool) -> float:
    """Estimate the memory of features and their dropout.

    Args:
        stored: How many values are stored.
        sparse: Whether they are sparse.

    Returns:
        Bytes.
    """
    return (STORED if sparse else FEATURE_COPIES * NUMBER) * stored


def num_moments(config: object) -> int:
    """Return how many numbers the optimiser keeps for each weight.

    Args:
        config: The settings of training.

    Returns:
        2 for Adam, 0 for gradient descent.
    """
    return 0 if getattr(config, "optimizer", "adam") == "sgd" else 2


def network_numbers(
    config: GraphSettings, features: int, outputs: int, *, clients: int = 1, pairs: int | None = None
) -> int:
    """Count the weights of one graph neural network at each of some clients.

    Args:
        config: The settings of training.
        features: The width of the input.
        outputs: The width of the last layer.
        clients: The number of the networks.
        pairs: The pairs of a client and a feature that the first layers store a row for; None for all.

    Returns:
        The numbers.
    """
    widths = [features, *[config.hidden] * (config.layers - 1), outputs]
    numbers = 0
    for name, weight in config.network.init(0, widths, config.attention_heads).items():
        if pairs is not None and name in config.network.input_weights:
            numbers += pairs * weight[0].numel()
        else:
            numbers += clients * weight.numel()
    return numbers


def recurrent_numbers(config: RecurrentSettings) -> int:
    """Count the weights of a recurrent encoder and decoder with three gates each.

    Args:
        config: The settings of the network.

    Returns:
        The numbers. Layers after the first have the state of the one before as their input; the input of the
        first is small.
    """
    return 2 * 3 * (2 * config.recurrent_layers - 1) * config.hidden**2


def weight_bytes(config: object, features: int, outputs: int) -> int:
    """Compute the bytes of the weights of one network while it is trained: a lower bound, without allocating.

    Args:
        config: The settings of training.
        features: The width of the input.
        outputs: The width of the last layer.

    Returns:
        The bytes of the matrices of the layers, of their gradients, and of the values of the optimiser.
    """
    numbers = 0
    if isinstance(config, GraphSettings):
        heads, last = 1, 1
        if isinstance(config, AttentionSettings) and getattr(config, "architecture", "") == "gat":
            heads, last = config.heads, config.output_heads
        width = config.hidden * heads
        inner = features * width + (config.layers - 2) * width**2 + width * outputs * last
        numbers = inner if config.layers > 1 else features * outputs * last
    elif isinstance(config, RecurrentSettings):
        numbers = recurrent_numbers(config)
    return numbers * NUMBER * (2 + num_moments(config))


def series_memory(extent: SeriesExtent, config: WindowSettings, *, pooled: bool, extra: float = 0.0) -> int:
    """Estimate the memory of a run on readings of sensors, beyond what its process takes with the data
    loaded.

    Args:
        extent: The counts of the readings.
        config: The settings of training.
        pooled: Whether one network is trained for all sensors, and not one at each.
        extra: Bytes that the method adds.

    Returns:
        Bytes.
    """
    steps = config.lags + config.horizon
    windows = extent.trained + extent.scored
    if not isinstance(config, RecurrentSettings):
        return BASE + NUMBER * extent.sensors * windows * steps
    batch = extent.trained
    if isinstance(config, SequenceTrainingSettings):
        batch = min(config.batch, batch)
    cells = CELL_COPIES * NUMBER * batch * extent.sensors * steps * config.hidden * config.recurrent_layers
    # An encoder and a decoder of three gates each, at every step of the backward pass.
    weights = 2 * WEIGHT_COPIES * NUMBER * 6 * config.hidden**2 * config.recurrent_layers
    weights *= 1 if pooled else extent.sensors
    return int(BASE + cells + weights + 2 * NUMBER * extent.sensors * windows * steps + extra)

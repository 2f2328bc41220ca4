"""About how much memory a run takes, from counts that are known before it starts.

The formulas count the large tensors of the local runtime, where the clients of all clients are one cohort:
features and their dropout, activations, edges, and what a method adds (`Method.memory`). They are no upper
bounds. A law in the tests compares them with the measured peak of every method: they are right within
`ACCURACY`, above `SMALL` bytes.
"""

from dataclasses import dataclass, field

import numpy as np

from graphfed.methods.config import GraphSettings, RecurrentSettings, SequenceTrainingSettings, WindowSettings

__all__ = ["ACCURACY", "NUMBER", "SMALL", "GraphExtent", "SeriesExtent", "graph_memory", "series_memory"]

#: The forecast and the measured peak differ by at most this factor.
ACCURACY = 3.0
#: Below this, in bytes, what a run takes is lost in the process's own memory.
SMALL = 30_000_000

#: Bytes of a number (float32), and of a stored feature with its place.
NUMBER, STORED = 4, 32
#: Copies of dense features (with their dropout, which masks and scales) and of an activation (with its
#: gradient, in every layer's forward and backward pass).
FEATURE_COPIES, ACTIVATION_COPIES = 6, 12
#: Bytes of an edge: two ends, a weight, and both orders of the matrix.
EDGE = 60
#: Numbers of a weight that are kept: itself, its gradient, two moments, the best and the sum.
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
        rows: Nodes that the clients hold, a node at two clients counted twice.
        edges: Directed edges inside clients.
        closure: Rows, and for each client the distinct neighbours that others hold.
        features: F.
        classes: C.
        stored: Feature values that are stored for all rows: rows * F, of sparse features the set ones.
        sparse: Whether the features are sparse.
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
    scored_edges: int
    sizes: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class SeriesExtent:
    """The counts of readings: sensors, windows that are trained on, and windows that are scored."""

    sensors: int
    trained: int
    scored: int


def graph_memory(extent: GraphExtent, config: GraphSettings, *, personal: bool, extra: float = 0.0) -> int:
    """Return about how much memory a run on a graph takes beyond what its process has with the data loaded.

    Args:
        extent: The counts of the partitioned graph.
        config: The settings of training.
        personal: Whether every client has weights of its own between rounds.
        extra: What the method adds to training, in bytes.

    Returns:
        Bytes.
    """
    attends = config.architecture == "gat"
    width = config.hidden * (config.attention_heads if attends else 1)
    features = STORED * extent.stored if extent.sparse else FEATURE_COPIES * NUMBER * extent.stored
    layers = max(1, config.layers - 1)
    activations = ACTIVATION_COPIES * NUMBER * extent.rows * (width * layers + extent.classes)
    # Attention has a message for each edge, and a maximum looks at one for each.
    by_edge = NUMBER * width if attends or config.architecture == "maxpool" else 0
    edges = extent.edges * (EDGE + 4 * by_edge) + extent.scored_edges * (EDGE + 2 * by_edge)
    weights = extent.features * width + (layers - 1) * width**2 + width * extent.classes
    # Clients of one node each train one common model.
    apart = (personal or not extent.sparse) and extent.rows > extent.clients
    weights *= WEIGHT_COPIES * NUMBER * (extent.clients if apart else 1)
    return int(BASE + features + activations + edges + weights + extra)


def series_memory(extent: SeriesExtent, config: WindowSettings, *, pooled: bool, extra: float = 0.0) -> int:
    """Return about how much memory a run on readings of sensors takes beyond what its process has.

    Args:
        extent: The counts of the readings.
        config: The settings of training.
        pooled: Whether it trains one for all sensors together, and not one at each.
        extra: What the method adds, in bytes.

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

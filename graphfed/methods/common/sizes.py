"""Count the numbers of a model and of a checkpoint, and the bytes that training takes at least, from counts
that are known before a run starts.
"""

from dataclasses import dataclass

from graphfed.methods.config import (
    AttentionSettings,
    GraphSettings,
    RecurrentSettings,
)

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


def num_moments(config: object) -> int:
    """Return how many numbers the optimiser keeps for each weight.

    Returns:
        2 for Adam, 0 for gradient descent.
    """
    return 0 if getattr(config, "optimizer", "adam") == "sgd" else 2


def network_numbers(
    config: GraphSettings, features: int, outputs: int, *, clients: int = 1, pairs: int | None = None
) -> int:
    """Count the weights of one graph neural network at each of some clients.

    Args:
        outputs: The width of the last layer.
        pairs: The pairs of a client and a feature that the first layers store a row for; None for all.
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

    Returns:
        The numbers. Layers after the first have the state of the one before as their input; the input of the
        first is small.
    """
    return 2 * 3 * (2 * config.recurrent_layers - 1) * config.hidden**2


def weight_bytes(config: object, features: int, outputs: int) -> int:
    """Compute the bytes of the weights of one network while it is trained: a lower bound, without allocating.

    Args:
        outputs: The width of the last layer.

    Returns:
        The bytes of the matrices of the layers, of their gradients, and of the values of the optimiser.
    """
    numbers = 0
    if isinstance(config, GraphSettings):
        heads, last = _heads(config)
        width = config.hidden * heads
        inner = features * width + (config.layers - 2) * width**2 + width * outputs * last
        numbers = inner if config.layers > 1 else features * outputs * last
    elif isinstance(config, RecurrentSettings):
        numbers = recurrent_numbers(config)
    return numbers * NUMBER * (2 + num_moments(config))


def _heads(config: GraphSettings) -> tuple[int, int]:
    """Return the attention heads of the inner layers and of the last one.

    `attention_heads` has a number for every layer, and a hostile coordinator may ask for 10^9 layers.
    """
    if isinstance(config, AttentionSettings) and getattr(config, "architecture", "") == "gat":
        return config.heads, config.output_heads
    return 1, 1


def hidden_bytes(config: object, rows: int) -> int:
    """Compute the bytes of one layer's hidden values of some rows: a lower bound of what a run takes.

    Args:
        rows: Rows that are computed at once: nodes, or the windows of sensors.

    Returns:
        Bytes; 0 for a method without a network.
    """
    if isinstance(config, GraphSettings):
        return rows * config.hidden * _heads(config)[0] * NUMBER
    return rows * config.hidden * NUMBER if isinstance(config, RecurrentSettings) else 0

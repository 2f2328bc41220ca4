"""The graph between sensors from their distances, by a Gaussian kernel with a threshold.

    W_ij = exp(-(d_ij / sigma)^2), and 0 if this is below the threshold

d_ij is the length of the road from i to j; the distance of a pair that is not listed is infinite. sigma is
the standard deviation of the listed distances, including zeros (Li et al.: Diffusion Convolutional Recurrent
Neural Network, ICLR 2018). W is directed, like roads, and is not made symmetric. Shapes: S sensors.
"""

import numpy as np
import scipy.sparse as sp

from graphfed.errors import InputError

THRESHOLD = 0.1


def gaussian_kernel(
    sender: np.ndarray,
    receiver: np.ndarray,
    distance: np.ndarray,
    size: int,
    *,
    threshold: float = THRESHOLD,
    sigma: float | None = None,
) -> sp.csr_matrix:
    """Compute the adjacency [S, S] of sensors, float32 csr with diagonal 1, from n pairs without repetition.

    Distances are finite, not negative and in any unit, which is that of `sigma`, too; by default it is their
    (population) standard deviation. A weight below `threshold` becomes 0.

    Reference:
        Li et al.: Diffusion Convolutional Recurrent Neural Network, ICLR 2018.
    """
    if sigma is None:
        # A single sensor lists only its distance to itself, 0. Very large distances may overflow in std.
        with np.errstate(over="ignore", invalid="ignore"):
            sigma = float(np.std(distance)) if distance.any() else 1.0
        if not 0 < sigma < np.inf or (distance.any() and distance.min() == distance.max()):
            raise InputError(
                f"the listed distances, {distance.min():g} to {distance.max():g}, have no standard deviation "
                "that could scale the kernel; give 'sigma', a distance at which the weight of an edge falls "
                "to 0.37"
            )
    with np.errstate(over="ignore"):  # the square of a very large distance overflows, and the weight is 0
        weight = np.exp(-((distance / sigma) ** 2))
    kept = weight >= threshold
    return with_unit_diagonal(sender[kept], receiver[kept], weight[kept], size)


def with_unit_diagonal(
    sender: np.ndarray, receiver: np.ndarray, weight: np.ndarray, size: int
) -> sp.csr_matrix:
    """Build an adjacency [S, S], float32 csr with diagonal 1, from the weights of n distinct pairs.

    Weights of 0 and weights on the diagonal are dropped.
    """
    weight = weight.astype(np.float32)
    edge = (sender != receiver) & (weight > 0)
    diagonal = np.arange(size)
    content = np.concatenate((weight[edge], np.ones(size, dtype=np.float32)))
    positions = np.concatenate((sender[edge], diagonal)), np.concatenate((receiver[edge], diagonal))
    matrix = sp.csr_matrix((content, positions), shape=(size, size))
    matrix.sort_indices()
    return matrix

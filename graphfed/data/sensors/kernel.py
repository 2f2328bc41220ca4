"""A graph between sensors from the distances between them: a Gaussian kernel with a threshold.

    W_ij = exp(-(d_ij / sigma)^2), and 0 where that is below the threshold

d_ij is the length of the way from i to j; a pair that is not listed is infinitely far apart. sigma is the
standard deviation of the listed distances, zeros included (Li et al.: Diffusion Convolutional Recurrent
Neural Network, ICLR 2018). W is directed, as ways are, and not made symmetric.
"""

import numpy as np
import scipy.sparse as sp

from graphfed.errors import InputError

__all__ = ["THRESHOLD", "gaussian_kernel", "with_unit_diagonal"]

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
    """[S, S] float32 csr, diagonal 1, from the listed distances: sender, receiver: [n] sensors, no pair
    twice; distance: [n], finite and not negative, in any unit.

    sigma: in the unit of the distances; by default their standard deviation (of the population).
    Raises InputError where that is 0 and the distances are not."""
    if sigma is None:
        # A lone sensor lists its distance to itself alone, 0; others may be near the ends of the floats.
        with np.errstate(over="ignore", invalid="ignore"):
            sigma = float(np.std(distance)) if distance.any() else 1.0
        if not 0 < sigma < np.inf or (distance.any() and distance.min() == distance.max()):
            raise InputError(
                f"the listed distances, {distance.min():g} to {distance.max():g}, have no standard deviation "
                "to scale the kernel with; give 'sigma', a distance at which sensors have little to do with "
                "each other"
            )
    with np.errstate(over="ignore"):  # far beyond sigma: the weight is 0
        weight = np.exp(-((distance / sigma) ** 2))
    kept = weight >= threshold
    return with_unit_diagonal(sender[kept], receiver[kept], weight[kept], size)


def with_unit_diagonal(
    sender: np.ndarray, receiver: np.ndarray, weight: np.ndarray, size: int
) -> sp.csr_matrix:
    """[S, S] float32 csr of edges, no pair twice: weights of 0 are left out, and the diagonal
    is 1."""
    weight = weight.astype(np.float32)
    edge = (sender != receiver) & (weight > 0)
    own = np.arange(size)
    content = np.concatenate((weight[edge], np.ones(size, dtype=np.float32)))
    places = np.concatenate((sender[edge], own)), np.concatenate((receiver[edge], own))
    matrix = sp.csr_matrix((content, places), shape=(size, size))
    matrix.sort_indices()
    return matrix

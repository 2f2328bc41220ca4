"""The Gaussian mechanism, calibrated exactly: Balle and Wang, "Improving the Gaussian mechanism for
differential privacy: analytical calibration and optimal denoising", ICML 2018 (arXiv:1805.06530).

The guarantee: over the real numbers, x + N(0, sigma^2) is (epsilon, delta)-private for inputs whose 2-norms
differ by at most the sensitivity. It does not cover floating-point arithmetic: the last bits of x decide
which floats x + noise can be, a leak that no sigma closes (Mironov 2012, for Laplace noise). The normal draws
are made of 32-bit words and end at 6.7 sigma, which adds about 2e-11 for each coordinate to delta. The
one-bit mechanism (`privacy.local`) has a proof in floating point.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError, shown
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy.local import SHIFT, WORDS, check_bounds, dense_rows
from graphfed.privacy.noise import Mechanism, Noise, chunks
from graphfed.random import words32

#: An epsilon above this one protects nothing and is returned as infinite.
MAX_EPSILON = 1e6

#: If half the distance of the two means, in standard deviations, is below this, `gaussian_delta` integrates
#: their difference.
CLOSE = 0.25

#: A bound on the rounding error of `gaussian_delta`.
ROUNDING = 2e-12


def gaussian_delta(sigma: float, epsilon: float, sensitivity: float = 1.0) -> float:
    """Compute the smallest delta for which Gaussian noise is (epsilon, delta)-private.

    Args:
        sigma: Standard deviation of the noise, above 0.
        epsilon: Privacy budget, at least 0; may be large.
        sensitivity: Largest 2-norm of the difference of two inputs.

    Returns:
        delta.

    Reference:
        Balle and Wang 2018, Theorem 8.
    """
    from scipy.special import erfcx, log_ndtr

    a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    # Phi(a - b) - e^epsilon Phi(-a - b)
    if a < CLOSE:
        # The two terms are nearly equal; their difference is e^(-(b - a)^2 / 2) / 2 times the integral of
        # -erfcx' from u to u + sqrt(2) a.
        u, width = (b - a) / math.sqrt(2), math.sqrt(2) * a
        nodes, weights = np.polynomial.legendre.leggauss(16)
        x = u + width * (nodes + 1) / 2
        integral = width / 2 * float(weights @ (2 / math.sqrt(math.pi) - 2 * x * erfcx(x)))
        return math.exp(-(u**2)) / 2 * integral
    # In logarithms, because e^epsilon overflows.
    first, second = float(log_ndtr(a - b)), epsilon + float(log_ndtr(-a - b))
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Compute the smallest standard deviation that is (epsilon, delta)-private, to 11 digits and rounded up.

    Args:
        epsilon: Privacy budget, above 0 and finite.
        delta: Delta of the release, between 0 and 1.
        sensitivity: Largest 2-norm of the difference of two inputs.

    Returns:
        sigma, by bisection on `gaussian_delta`, which falls as sigma grows.

    Raises:
        InputError: A parameter is impossible.

    Reference:
        Balle and Wang 2018, Theorem 8.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1 and 0 < sensitivity < math.inf):
        raise InputError(
            "the Gaussian mechanism needs epsilon and sensitivity above 0 and delta between 0 and 1; got "
            f"epsilon {shown(epsilon)}, sensitivity {shown(sensitivity)}, delta {shown(delta)}"
        )
    # Only sigma / sensitivity matters, so search with sensitivity 1. First bracket the root by doubling.
    low = high = 1.0
    while gaussian_delta(high, epsilon) > delta:
        high *= 2
    while gaussian_delta(low, epsilon) <= delta:
        low /= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) > delta else (low, middle)
    # The upper end of the bracket, and more than the rounding error of delta: never too little noise.
    return high * (1 + ROUNDING) * sensitivity


def composed_gaussian_epsilon(noise_multiplier: float, delta: float, times: int) -> float:
    """Compute epsilon at `delta` of several Gaussian releases, each of which may depend on those before.

    The value is exact, rounded up in the 11th digit: Gaussian mechanisms compose to one whose noise
    multiplier is smaller by the square root of their number.

    Args:
        noise_multiplier: Standard deviation of each release's noise, divided by its sensitivity.
        delta: Delta of all releases together, between 0 and 1.
        times: Number of releases, at least 1.

    Returns:
        epsilon; inf above 10^6.

    Raises:
        InputError: A parameter is impossible.

    Reference:
        Dong, Roth and Su, "Gaussian differential privacy", 2022, Corollary 3.3.
    """
    if not (0 < noise_multiplier < math.inf and 0 < delta < 1) or times < 1:
        raise InputError(
            "a noise multiplier above 0, delta between 0 and 1 and at least one release are needed; got "
            f"{shown(noise_multiplier)}, {shown(delta)}, {shown(times)}"
        )
    # n mechanisms with multiplier s compose to one with s / sqrt(n), exactly.
    sigma = noise_multiplier / math.sqrt(times)
    if gaussian_delta(sigma, MAX_EPSILON) > delta:
        return math.inf
    low, high = 0.0, MAX_EPSILON
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(sigma, middle) > delta else (low, middle)
    return high * (1 + ROUNDING)


def gaussian_mechanism(
    epsilon: float, delta: float, width: int, low: float, high: float, max_set: int | None = None
) -> Mechanism:
    """Describe one release of `gaussian` with ``gaussian_sigma(epsilon, delta, sensitivity)``.

    With `max_set`, what gets noise differs from `low` in at most max_set places, whatever the features are:
    two such vectors differ in at most 2 max_set places, by at most high - low in each.

    Args:
        epsilon: Privacy budget of the release, above 0.
        delta: Delta of the release, between 0 and 1.
        width: d, the number of features.
        low: Public lower bound of every feature.
        high: Public upper bound of every feature.
        max_set: As in `gaussian`: the most features above `low`; None for any number.

    Returns:
        The mechanism; its sensitivity is (high - low) sqrt(d), or (high - low) sqrt(min(d, 2 max_set)).
    """
    some = "" if max_set is None else f", of which at most {max_set} are above the lower bound"
    return Mechanism(
        "Gaussian",
        epsilon,
        f"all {width} features of a node{some}: private between any two feature vectors within the bounds",
        delta,
        (high - low) * math.sqrt(width if max_set is None else min(width, 2 * max_set)),
    )


def limit_set(values: Tensor, ids: Tensor, key: int, low: float, max_set: int) -> Tensor:
    """Set features of a row to `low`, at random, until at most `max_set` are above it.

    Which ones stay depends on the row, its id and the key, and on no other row.

    Args:
        values: [n, d] features, at least `low`.
        ids: [n] stable ids of the nodes.
        key: The key of the choice, which need not be secret.
        low: The value of a feature that is not set.
        max_set: Largest number of features above `low` in a row.

    Returns:
        [n, d].
    """
    is_set = values > low
    above = (is_set.sum(1) > max_set).nonzero()[:, 0]
    # The features with the largest draws stay. A feature that is not set draws less than any 32-bit word.
    draws = words32(key, ids[above], values.shape[1]).long().masked_fill(~is_set[above], -(1 << 32))
    chosen = draws.topk(min(max_set, values.shape[1]), 1).indices
    rows = values[above]
    return values.index_copy(0, above, torch.full_like(rows, low).scatter(1, chosen, rows.gather(1, chosen)))


def gaussian(
    x: Tensor | SparseMatrix,
    ids: Tensor,
    noise: Noise,
    purpose: str,
    sigma: float,
    low: float,
    high: float,
    *,
    max_set: int | None = None,
    key: int = 0,
) -> Tensor:
    """Add noise to features within bounds.

    Args:
        x: [N, d] features in [low, high].
        ids: [N] stable ids of the nodes.
        noise: The source of the words of the normal draws.
        purpose: The name of the draws, used for this release only.
        sigma: Standard deviation of the noise (`gaussian_sigma`).
        low: Public lower bound of every feature.
        high: Public upper bound of every feature.
        max_set: Largest number of a node's features that may be above `low`; `limit_set` drops the others
            first. None for any number.
        key: The key of `limit_set`; not used without `max_set`.

    Returns:
        [N, d] dense, in the dtype of x.

    Raises:
        InputError: A feature is outside the bounds.
    """

    def checked(values: Tensor, of: Tensor) -> Tensor:
        check_bounds(values, of, low, high)
        return values if max_set is None else limit_set(values, of, key, low, max_set)

    return _with_noise(x, ids, noise, purpose, sigma, checked)


def in_ball_mechanism(epsilon: float, delta: float, width: int) -> Mechanism:
    """Describe one release of `gaussian_in_ball` with ``gaussian_sigma(epsilon, delta, 2)``.

    Args:
        epsilon: Privacy budget of the release, above 0.
        delta: Delta of the release, between 0 and 1.
        width: d, the number of features.

    Returns:
        The mechanism.
    """
    return Mechanism(
        "Gaussian",
        epsilon,
        f"all {width} features of a node: private between any two feature vectors of length at most 1",
        delta,
        # Two vectors of length at most 1 differ by at most 2.
        2.0,
    )


def gaussian_in_ball(
    x: Tensor | SparseMatrix, ids: Tensor, noise: Noise, purpose: str, sigma: float
) -> Tensor:
    """Scale rows longer than 1 to length 1 (`clipped`) and add noise.

    Args:
        x: [N, d] features, of any size.
        ids: [N] stable ids of the nodes.
        noise: The source of the words of the normal draws.
        purpose: The name of the draws, used for this release only.
        sigma: Standard deviation of the noise (`gaussian_sigma` at sensitivity 2).

    Returns:
        [N, d] dense, in the dtype of x.
    """

    def bounded(values: Tensor, _: Tensor) -> Tensor:
        return clipped(values, 1.0)

    return _with_noise(x, ids, noise, purpose, sigma, bounded)


def _with_noise(
    x: Tensor | SparseMatrix,
    ids: Tensor,
    noise: Noise,
    purpose: str,
    sigma: float,
    bounded: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Add noise to bounded(values [n, d], ids [n]), some rows at a time."""
    width = x.shape[1]
    noised = torch.empty(len(ids), width, dtype=x.dtype, device=ids.device)
    for rows in chunks(len(ids), 2 * width):
        # Bounds are checked or enforced on what gets the noise, row by row.
        values = bounded(dense_rows(x, rows), ids[rows])
        noised[rows] = values + sigma * normal(noise.words(purpose, ids[rows], width + width % 2), width)
    return noised


def clipped(x: Tensor, clip: float) -> Tensor:
    """Scale vectors down to a largest length.

    Args:
        x: [..., H] vectors along the last dimension.
        clip: Largest 2-norm of a vector, above 0.

    Returns:
        [..., H]. A vector whose length is not finite becomes 0: the bound holds for every vector.
    """
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # The factor is 1 for vectors that are short enough.
    return torch.where(norm.isfinite(), x * (clip / norm.clamp(min=clip)), 0)


def normal(words: Tensor, width: int) -> Tensor:
    """Draw standard normal numbers, two from two uniform words.

    Args:
        words: [n, width, rounded up to even] uniform int32.
        width: Numbers in a row; an odd one leaves the last draw out.

    Returns:
        [n, width] float64.

    Reference:
        Box and Muller 1958.
    """
    # The half keeps u off 0, where the logarithm is infinite; so the largest draw is 6.7.
    u = (words.double() + (SHIFT + 0.5)) / WORDS  # in (0, 1)
    half = words.shape[1] // 2
    radius, angle = (-2 * u[:, :half].log()).sqrt_(), 2 * math.pi * u[:, half:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :width]

"""Epsilon of mechanisms that are used several times.

Two data sets are neighbours if one has one record more than the other (add or remove one). Epsilons of
mechanisms with delta = 0 add up. For noise there are two accountants of the library dp-accounting: `rdp`
(Renyi, Mironov 2017) and `pld` (privacy loss distributions), which is tighter and slower. Both give upper
bounds.

Account for randomised response with `composed_epsilon` only. Up to version 0.6.0 the library's
``PLDAccountant.compose(RandomizedResponseDpEvent, k)`` ignores k and returns the epsilon of one use. For
randomised response k * epsilon is nearly tight (tests/privacy/test_accounting.py has the closed form).
"""

import math
from typing import Any, Literal

from graphfed.errors import InputError, how_to_install, shown


def composed_epsilon(epsilon: float, times: int) -> float:
    """Compute epsilon of several uses of mechanisms by basic composition.

    The bound holds for any mechanisms, even if each depends on the results of those before.

    Args:
        epsilon: Privacy budget of each use, above 0.
        times: Number of uses, at least 1.

    Returns:
        times * epsilon.

    Raises:
        InputError: A parameter is impossible.
    """
    _check_positive("epsilon", epsilon)
    return epsilon * _checked_times(times)


def gaussian_epsilon(
    noise_multiplier: float,
    delta: float,
    *,
    times: int = 1,
    sampling_rate: float = 1.0,
    accountant: Literal["rdp", "pld"] = "rdp",
) -> float:
    """Compute epsilon at `delta` of several uses of the Gaussian mechanism, each on a Poisson sample of the
    records.

    Args:
        noise_multiplier: Standard deviation of the noise, divided by the sensitivity in the 2-norm.
        delta: Delta of all uses together, between 0 and 1.
        times: Number of uses, at least 1.
        sampling_rate: Probability with which a record takes part in a use.
        accountant: "rdp" (Renyi), or "pld", which is tighter and slower.

    Returns:
        Epsilon of all uses together.

    Raises:
        InputError: A parameter is impossible, or dp-accounting is not installed.
    """
    _check_positive("noise_multiplier", noise_multiplier)
    if not 0 < sampling_rate <= 1:
        raise InputError(f"sampling_rate must be above 0 and at most 1; got {shown(sampling_rate)}")
    dp = _library()
    event = dp.GaussianDpEvent(noise_multiplier)
    # A record that is sampled with probability 1 takes part in every use: plain composition.
    if sampling_rate < 1:
        event = dp.PoissonSampledDpEvent(sampling_rate, event)
    return _epsilon(event, delta, times, accountant)


def laplace_epsilon(scale: float, delta: float, *, times: int = 1) -> float:
    """Compute epsilon at `delta` of several uses of the Laplace mechanism, by privacy loss distributions.

    Args:
        scale: Scale of the noise, divided by the sensitivity in the 1-norm; one use is 1 /
            scale-differentially private.
        delta: Delta of all uses together, between 0 and 1.
        times: Number of uses, at least 1.

    Returns:
        Epsilon of all uses together.

    Raises:
        InputError: A parameter is impossible, or dp-accounting is not installed.
    """
    _check_positive("scale", scale)
    return _epsilon(_library().LaplaceDpEvent(scale), delta, times, "pld")


def _epsilon(event: Any, delta: float, times: int, accountant: str) -> float:
    if not 0 < delta < 1:
        raise InputError(f"delta must be above 0 and below 1; got {shown(delta)}")
    times = _checked_times(times)
    if accountant == "rdp":
        from dp_accounting.rdp import RdpAccountant as Accountant
    elif accountant == "pld":
        from dp_accounting.pld import PLDAccountant as Accountant
    else:
        raise InputError(f"accountant={shown(accountant)} is unknown; use rdp or pld")
    # A new accountant for each question, because an accountant adds up what it is given.
    return float(Accountant().compose(event, times).get_epsilon(delta))


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise InputError(
            "privacy accounting needs the package dp-accounting, which is not installed; "
            f"install it: {how_to_install('secure')}"
        ) from None
    return dp_accounting


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InputError(f"{name} must be a number above 0; got {shown(value)}")


def _checked_times(times: int) -> int:
    if not isinstance(times, int) or times < 1:
        raise InputError(f"times must be a whole number of at least 1; got {shown(times)}")
    return times

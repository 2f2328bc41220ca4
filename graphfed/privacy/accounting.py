"""Epsilon of mechanisms that are used several times.

Two data sets are neighbours when one has one record more (add or remove one). Pure epsilons add up. For noise
there are two accountants of the library dp-accounting: `rdp` (Renyi, Mironov 2017) and `pld` (privacy loss
distributions), which is tighter and slower. Both give upper bounds.

Randomised response is accounted by `composed_epsilon` and nothing else: up to version 0.6.0 the library's
``PLDAccountant.compose(RandomizedResponseDpEvent, k)`` ignores k and says epsilon of one use. k * epsilon is
nearly tight there (tests/privacy/test_accounting.py has the closed form)."""

import math
from typing import Any, Literal

from graphfed.errors import InputError, shown

__all__ = ["composed_epsilon", "gaussian_epsilon", "laplace_epsilon"]


def composed_epsilon(epsilon: float, times: int) -> float:
    """Epsilon of `times` uses of mechanisms that are `epsilon`-differentially private each (basic
    composition): their sum, whatever the mechanisms are and however they depend on each other's results."""
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
    """Epsilon at `delta` of `times` uses of the Gaussian mechanism, each on a Poisson sample of the records.

    noise_multiplier: standard deviation of the noise over the sensitivity (in the 2-norm); sampling_rate: the
    probability with which a record takes part. InputError for impossible parameters."""
    _check_positive("noise_multiplier", noise_multiplier)
    if not 0 < sampling_rate <= 1:
        raise InputError(f"sampling_rate must be above 0 and at most 1; got {shown(sampling_rate)}")
    dp = _library()
    event = dp.GaussianDpEvent(noise_multiplier)
    if sampling_rate < 1:
        event = dp.PoissonSampledDpEvent(sampling_rate, event)
    return _epsilon(event, delta, times, accountant)


def laplace_epsilon(scale: float, delta: float, *, times: int = 1) -> float:
    """Epsilon at `delta` of `times` uses of the Laplace mechanism, by privacy loss distributions.

    scale: of the noise, over the sensitivity (in the 1-norm); one use is 1 / scale-differentially private.
    InputError for impossible parameters."""
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
        raise InputError(f"there is no accountant {shown(accountant)}; choose rdp or pld")
    return float(Accountant().compose(event, times).get_epsilon(delta))


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise InputError(
            "privacy accounting needs the package dp-accounting, which is not installed; "
            "install it: pip install 'graphfed[secure]'"
        ) from None
    return dp_accounting


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InputError(f"{name} must be a number above 0; got {shown(value)}")


def _checked_times(times: int) -> int:
    if not isinstance(times, int) or times < 1:
        raise InputError(f"times must be a whole number of at least 1; got {shown(times)}")
    return times

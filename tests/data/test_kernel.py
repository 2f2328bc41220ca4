"""Claims about the graph that distances between sensors make."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphfed.data.sensors.kernel import gaussian_kernel
from graphfed.errors import InputError


def test_a_kernel_is_directed_as_ways_are_and_one_to_itself():
    w = gaussian_kernel(np.array([0, 1]), np.array([1, 2]), np.array([1.0, 3.0]), 3, sigma=2.0).toarray()
    assert w[0, 1] == np.float32(np.exp(-0.25))
    assert (w.diagonal() == 1).all()
    assert (w[1, 0], w[1, 2]) == (0, np.float32(np.exp(-2.25)))


@given(st.lists(st.just(0.0) | st.floats(1e-3, 1e4), min_size=2, max_size=6), st.floats(0.01, 1.0))
def test_the_scale_is_the_deviation_of_all_listed_and_what_is_below_the_threshold_is_no_edge(
    distances, threshold
):
    d = np.array(distances)
    if d.any() and d.min() == d.max():
        return
    n = len(d)
    w = gaussian_kernel(np.zeros(n, int), np.arange(1, n + 1), d, n + 1, threshold=threshold).toarray()
    # The same as a loop over the pairs, with the deviation by its definition.
    deviation = (sum((x - sum(d) / n) ** 2 for x in d) / n) ** 0.5
    for j, x in enumerate(d):
        expected = np.exp(-((x / deviation) ** 2)) if deviation else 1.0
        if abs(expected - threshold) > 1e-6:
            assert w[0, j + 1] == pytest.approx(expected if expected > threshold else 0, abs=1e-5)


def test_the_unit_of_the_distances_does_not_matter():
    d = np.array([0.0, 100.0, 250.0, 900.0])
    ends = np.array([0, 1, 2, 0]), np.array([0, 2, 0, 1])
    metres, miles = (gaussian_kernel(*ends, d / unit, 3).toarray() for unit in (1.0, 1609.344))
    assert metres == pytest.approx(miles, rel=1e-6)


def test_distances_that_are_all_the_same_need_a_scale():
    ends = np.array([0, 1]), np.array([1, 0])
    for same in (3.0, 0.1, 1e-310):
        with pytest.raises(InputError, match=r"have no standard deviation that could scale .* give 'sigma'"):
            gaussian_kernel(*ends, np.array([same, same]), 2)
    for extreme in ([0.0, 1e-310], [1.0, 1e300]):
        with pytest.raises(InputError, match="have no standard deviation"):
            gaussian_kernel(*ends, np.array(extreme), 2)
    assert gaussian_kernel(*ends, np.array([3.0, 3.0]), 2, sigma=3.0)[0, 1] == np.float32(np.exp(-1))

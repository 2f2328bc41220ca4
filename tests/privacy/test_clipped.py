"""Clipped vectors with noise: how long a vector may be, how much noise it gets, and what several releases of
it cost."""

import math

import pytest
import torch

from graphfed.errors import InputError
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy.clipped import ClippedNoise
from graphfed.privacy.gaussian import (
    clipped,
    composed_gaussian_epsilon,
    gaussian_delta,
    gaussian_in_ball,
    in_ball_mechanism,
    normal,
)
from graphfed.privacy.noise import Noise


def vectors(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_every_vector_along_the_last_dimension_has_at_most_the_length_of_the_clip() -> None:
    x = vectors(3, 4, 5)
    x[0, 0] *= 1e-3
    for i in range(3):
        for j in range(4):
            length = math.sqrt(sum(float(number) ** 2 for number in x[i, j]))
            scale = min(1.0, 2.0 / length)
            assert clipped(x, 2.0)[i, j].tolist() == pytest.approx([scale * float(v) for v in x[i, j]])


@pytest.mark.parametrize("width", [4, 5])
def test_what_is_added_to_a_clipped_vector_is_normal_of_twice_the_clip_times_the_multiplier(
    width: int,
) -> None:
    """20 000 vectors; mean, variance and correlations within 5.5 standard errors."""
    noise, x = ClippedNoise(0.5, 3.0, "dp"), vectors(4000, 5, width)
    encoded = noise.encode(x)
    assert (encoded.shape, encoded.dtype) == (x.shape, x.dtype)
    z = ((encoded - clipped(x, 0.5)) / 3.0).reshape(-1, width)
    assert noise.deviation == 3.0
    assert noise.reach == 0.5 + 4 * 3.0
    assert abs(float(z.mean())) < 5.5 / math.sqrt(z.numel())
    assert abs(float((z**2).mean()) - 1) < 5.5 * math.sqrt(2 / z.numel())
    correlations = (z.T @ z / len(z)).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 5.5 / math.sqrt(len(z))
    assert not torch.equal(encoded, noise.encode(x))


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e300])
def test_a_vector_without_a_finite_length_is_released_like_the_vector_0(number: float) -> None:
    """Its noise is next to nothing, so that what it is added to can be seen."""
    x = torch.tensor([[number, 1.0, number], [0.3, 0.0, 0.4]], dtype=torch.float64)
    for released in (
        ClippedNoise(1.0, 1e-12, "dp").encode(x),
        gaussian_in_ball(x, torch.arange(2), Noise(), "x", 1e-12),
    ):
        assert released.flatten().tolist() == pytest.approx([0, 0, 0, 0.3, 0, 0.4], abs=1e-9)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3)])
def test_of_no_vectors_there_is_no_encoding(shape: tuple[int, ...]) -> None:
    assert ClippedNoise(1.0, 2.0, "dp").encode(torch.empty(shape)).shape == shape


def test_a_receiver_reads_an_encoding_as_it_came_and_no_gradient_goes_back_through_it() -> None:
    noise, x = ClippedNoise(1.0, 2.0, "dp"), vectors(3, 2).float()
    read = noise.decode(x, torch.float64)
    assert read.dtype == torch.float64
    assert torch.equal(read.float(), x)
    assert not noise.gradients


def test_features_are_scaled_into_the_ball_whose_diameter_is_the_sensitivity() -> None:
    """The noise is next to nothing, so that what it is added to can be seen."""
    x, ids = torch.cat([vectors(20, 6), 0.1 * vectors(20, 6)]), torch.arange(40)
    expected = [row / max(1.0, float(row.norm())) for row in x]
    for features in (x, SparseMatrix.from_dense(x)):
        noised = gaussian_in_ball(features, ids, Noise(), "x", 1e-12)
        assert noised.dtype == x.dtype
        assert torch.allclose(noised, torch.stack(expected), rtol=0, atol=1e-9)
    farthest = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert in_ball_mechanism(1.0, 1e-5, 2).sensitivity == float((farthest[0] - farthest[1]).norm())


def test_the_draws_end_where_the_smallest_word_ends_and_are_finite() -> None:
    """2^-33 is the smallest number that a radius is made of: sqrt(2 * 33 * log 2) = 6.76."""
    extremes = torch.tensor([[-(2**31), -(2**31)], [2**31 - 1, 2**31 - 1]], dtype=torch.int32)
    drawn = normal(extremes, 2)
    assert bool(drawn.isfinite().all())
    assert float(drawn.abs().max()) == pytest.approx(math.sqrt(66 * math.log(2)), rel=1e-9)


@pytest.mark.parametrize("multiplier", [1e-3, 0.7, 5.0, 300.0])
@pytest.mark.parametrize("times", [1, 2, 50])
def test_several_releases_cost_what_one_with_less_noise_by_the_root_of_their_number_does(
    multiplier: float, times: int
) -> None:
    """Exact to the 12th digit: delta is reached there, and not a billionth below."""
    epsilon = composed_gaussian_epsilon(multiplier, 1e-5, times)
    if epsilon == math.inf:
        assert gaussian_delta(multiplier / times**0.5, 1e6) > 1e-5
        return
    assert gaussian_delta(multiplier / times**0.5, epsilon) <= 1e-5
    assert gaussian_delta(multiplier / times**0.5, epsilon * (1 - 1e-9)) > 1e-5


def test_noise_that_hides_nothing_is_reported_as_an_infinite_epsilon() -> None:
    assert composed_gaussian_epsilon(1e-4, 1e-5, 1) == math.inf
    assert 4e5 < composed_gaussian_epsilon(1e-3, 1e-5, 1) < 6e5


def test_an_accountant_says_the_same_of_several_releases() -> None:
    from graphfed.privacy.accounting import gaussian_epsilon

    pytest.importorskip("dp_accounting")
    expected = gaussian_epsilon(2.0, 1e-5, times=8, accountant="pld")
    assert composed_gaussian_epsilon(2.0, 1e-5, 8) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("multiplier", "delta", "times"),
    [(0.0, 0.1, 1), (math.inf, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.0, 1), (1.0, 1.5, 1), (1.0, 0.1, 0)],
)
def test_impossible_releases_are_refused(multiplier: float, delta: float, times: int) -> None:
    with pytest.raises(InputError, match="at least one release are needed"):
        composed_gaussian_epsilon(multiplier, delta, times)

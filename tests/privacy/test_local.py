"""The local mechanisms by exact enumeration: the program's own coins, read as the number of words that fall
on each side, and every output of few coordinates."""

import math
from decimal import Decimal, localcontext
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphfed.errors import InputError
from graphfed.nn.bits import pack_bits
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy import local
from graphfed.privacy.bins import assign_bins, budget_of, encode_bins
from graphfed.privacy.local import (
    SHIFT,
    WORDS,
    check_bounds,
    decode_one_bit,
    gain,
    multi_bit,
    multi_bit_count,
    multi_bit_mechanism,
    one_bit,
    randomised_response,
    rare,
    response_matrix,
)
from graphfed.privacy.noise import Noise
from graphfed.random import fold, words32

LOW, HIGH = -1.0, 3.0
EPSILONS = [1e-6, 0.1, 1.0, 2.0, 5.0, 22.0, 30.0, 800.0]


def chance(x: float, epsilon: float) -> float:
    """Pr[bit = 1] of the program's coin: the words that give 1 are the lowest, so their number is where the
    answer changes."""
    least, most = 0, WORDS
    while least < most:
        middle = (least + most) // 2
        word = torch.tensor([middle - SHIFT], dtype=torch.int32)
        if bool(one_bit(torch.tensor([x], dtype=torch.float64), epsilon, word, LOW, HIGH)):
            least = middle + 1
        else:
            most = middle
    return least / WORDS


def log_ratio(p: float, q: float) -> float:
    """The larger loss of a coin's two sides."""
    return max(abs(math.log(p / q)), abs(math.log((1 - p) / (1 - q))))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_bit_never_loses_more_than_its_budget_and_wastes_one_word_of_it_at_most(epsilon: float) -> None:
    p, q = chance(HIGH, epsilon), chance(LOW, epsilon)
    assert log_ratio(p, q) <= epsilon
    assert q <= math.exp(-epsilon) / (1 + math.exp(-epsilon)) + 1.001 / WORDS, (
        "one word more than the budget allows"
    )
    for x in (LOW, -0.3, 0.9999, 1.0, 2.7, HIGH):
        assert q <= chance(x, epsilon) <= p


@given(st.floats(LOW, HIGH), st.floats(1e-4, 30.0))
def test_a_decoded_bit_is_right_on_average(x: float, epsilon: float) -> None:
    """(27) undoes (26): by exact expectation over the coin, for a coordinate that was sent."""
    torch.set_default_dtype(torch.float64)
    p = chance(x, epsilon)
    zero, one = decode_one_bit(torch.tensor([False, True]), epsilon, LOW, HIGH).tolist()
    assert p * one + (1 - p) * zero == pytest.approx(x, abs=(HIGH - LOW) * float(gain(epsilon)) / 2**31)


@given(st.floats(1e-4, 50.0))
def test_the_decoders_constant_is_that_of_the_paper(epsilon: float) -> None:
    printed = 1 / math.tanh(epsilon / 2)
    assert float(gain(epsilon)) == pytest.approx(printed, rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_a_budget_that_is_none_is_refused(epsilon: float) -> None:
    with pytest.raises(InputError, match="budget must be above 0"):
        rare(epsilon)


def test_a_budget_that_drowns_in_the_words_precision_is_refused() -> None:
    with pytest.raises(InputError, match="carries no information"):
        rare(1e-10)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-5, 1e-3, 0.1, 1.0, 9.0])
@pytest.mark.parametrize("classes", [2, 3, 1000, 40_000, 1 << 20])
def test_no_two_classes_differ_by_more_than_the_budget_or_it_is_refused(epsilon: float, classes: int) -> None:
    """The true class pays for rounding up all others: with 40 000 classes and 0.001 it would get 1.44 times
    fewer words than each of them."""
    labels = torch.zeros(3, dtype=torch.int64)
    with localcontext() as context:
        context.prec = 50
        exact = math.floor(WORDS / (Decimal(epsilon).exp() + classes - 1)) + 1
        true = WORDS - (classes - 1) * exact
        if true <= exact:
            with pytest.raises(InputError, match="carries no information; raise epsilon"):
                randomised_response(labels, labels, Noise(), "y", epsilon, classes)
            return
        other = local._other_class(epsilon, classes)
        true = WORDS - (classes - 1) * other
        assert 1 < Decimal(true) / other <= Decimal(epsilon).exp()
    randomised_response(labels, labels, Noise(), "y", epsilon, classes)


# ---- bins --------------------------------------------------------------------------------------------------


def losses(width: int, receivers: int, epsilon: float, accounting: str) -> tuple[list[float], float]:
    """The largest log ratio over all outputs and all pairs of extreme inputs: what each receiver sees, and
    all of them together. By enumeration: of each bin's 2^b outputs, for inputs at the corners."""
    bins = assign_bins(1, torch.arange(1), width, torch.tensor([receivers]))
    each = []
    for size in bins.size.tolist():
        if size == 0:
            each.append(0.0)
            continue
        budget = float(budget_of(accounting, epsilon, width, size))
        p, q = chance(HIGH, budget), chance(LOW, budget)
        worst = 0.0
        for output, x in product(product([0, 1], repeat=size), product([0, 1], repeat=size)):
            y = [1 - v for v in x]
            probability = [
                math.prod(
                    (p if v else q) if o else 1 - (p if v else q) for o, v in zip(output, z, strict=True)
                )
                for z in (x, y)
            ]
            worst = max(worst, abs(math.log(probability[0] / probability[1])))
        each.append(worst)
    return each, sum(each)


@pytest.mark.parametrize(("width", "receivers"), [(6, 1), (6, 2), (6, 3), (6, 6), (5, 2), (7, 3), (3, 5)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_no_receiver_sees_more_than_epsilon_and_all_of_them_r_times_that_in_paper_mode(
    width: int, receivers: int, epsilon: float
) -> None:
    each, joint = losses(width, receivers, epsilon, "per_receiver")
    assert max(each) <= epsilon + 1e-9
    assert all(loss == pytest.approx(epsilon, rel=1e-6) for loss in each if loss)
    filled = min(width, receivers)
    assert joint == pytest.approx(filled * epsilon, rel=1e-6)


@pytest.mark.parametrize(("width", "receivers"), [(6, 1), (6, 3), (7, 3), (3, 5)])
def test_with_coalition_budgets_all_receivers_together_see_epsilon(width: int, receivers: int) -> None:
    _, joint = losses(width, receivers, 2.0, "coalition")
    assert joint <= 2.0 + 1e-9
    assert joint == pytest.approx(2.0, rel=1e-6)


def test_the_papers_own_budget_breaks_the_bound_where_bins_are_uneven() -> None:
    """The law above has teeth: eps wl / d for each bit of the largest bin of d = 7, wl = 3
    (docs/papers/lumos.md, Differences from the paper, item 5)."""
    bins = assign_bins(1, torch.arange(1), 7, torch.tensor([3]))
    assert math.exp(int(bins.size.max()) * 2.0 * 3 / 7) == pytest.approx(13.08, abs=0.01)
    assert sorted(bins.size.tolist()) == [2, 2, 3]


@given(st.integers(1, 40), st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_bins_share_out_every_coordinate_once_in_sizes_that_differ_by_one(
    width: int, receivers: list[int]
) -> None:
    n = len(receivers)
    bins = assign_bins(7, torch.arange(n) * 11, width, torch.tensor(receivers))
    assert (bins.order.long().sort(1).values == torch.arange(width)).all()
    for i, r in enumerate(receivers):
        number = (bins.client == i).nonzero()[:, 0]
        assert number.tolist() == list(range(int(bins.first[i]), int(bins.first[i]) + r))
        start, size = bins.start[number].tolist(), bins.size[number].tolist()
        assert [place for s, z in zip(start, size, strict=True) for place in range(s, s + z)] == (
            list(range(width)) if r else []
        )
        assert max(size, default=0) - min(size, default=0) <= 1


def test_a_client_gets_the_same_bins_in_every_row() -> None:
    ids = torch.tensor([5, 900, 31])
    bins = assign_bins(3, ids, 50, torch.tensor([4, 1, 7]))
    alone = assign_bins(3, ids[2:], 50, torch.tensor([7]))
    assert torch.equal(bins.order[2:], alone.order)
    other = assign_bins(4, ids, 50, torch.tensor([4, 1, 7]))
    assert not torch.equal(bins.order, other.order)


def test_every_coordinate_is_as_likely_at_every_place() -> None:
    """30 000 clients, 6 coordinates: chi-squared with 25 degrees of freedom, false alarm 1e-6 (limit
    73.4)."""
    n, d = 30_000, 6
    bins = assign_bins(2, torch.arange(n), d, torch.ones(n, dtype=torch.int64))
    counts = torch.stack([torch.bincount(bins.order[:, p].long(), minlength=d) for p in range(d)]).double()
    assert float(((counts - n / d) ** 2 / (n / d)).sum()) < 73.4


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize(("width", "receivers"), [(6, 3), (7, 3), (3, 5)])
def test_over_the_random_bins_a_decoded_feature_is_unbiased_iff_rescaled(
    width: int, receivers: int, rescale: bool
) -> None:
    """By exact expectation: receiver k has a coordinate with probability |bin k| / d, and else reads the
    middle; E = x / r + (1 - 1 / r) (a + b) / 2 without rescaling (docs/papers/lumos.md,
    Differences from the paper, item 7)."""
    torch.set_default_dtype(torch.float64)
    bins, x, middle = assign_bins(1, torch.arange(1), width, torch.tensor([receivers])), 2.2, (LOW + HIGH) / 2
    for size in bins.size.tolist():
        share = size / width
        if not size:
            continue
        budget = float(budget_of("per_receiver", 2.0, width, size))
        p, scale = chance(x, budget), 1 / share if rescale else 1.0
        zero, one = decode_one_bit(torch.tensor([False, True]), budget, LOW, HIGH, scale).tolist()
        mean = share * (p * one + (1 - p) * zero) + (1 - share) * middle
        wanted = x if rescale else share * x + (1 - share) * middle
        assert mean == pytest.approx(wanted, abs=1e-7)
        assert share == 1 or rescale or abs(mean - x) > 0.1


@pytest.mark.parametrize("noise", [Noise(), Noise(4)], ids=["the system's entropy", "seeded"])
@pytest.mark.parametrize("sparse", [True, False])
def test_encoded_bins_have_the_law_of_the_bits_they_are_made_of(noise: Noise, sparse: bool) -> None:
    """Each place's fraction of ones against its probability: 20 000 clients, 5 standard errors at 7 places
    and 2 inputs, a false alarm in 1.2e5 runs; both sources of noise.
    """
    n, d, r = 20_000, 7, 3
    x = torch.full((n, d), HIGH)
    x[::2] = 0.0
    ids, receivers = torch.arange(n), torch.full((n,), r)
    receivers[5] = 0
    bins = assign_bins(9, ids, d, receivers)
    features = SparseMatrix.from_dense(x) if sparse else x
    packed = encode_bins(features, ids, bins, noise, "x", 2.0, "per_receiver", LOW, HIGH)
    bits = (packed[:, 0, None].long() >> torch.arange(d)) & 1
    assert packed[5].tolist() == [0], "who has no receiver sends nothing"
    for place, size in enumerate([3, 3, 3, 2, 2, 2, 2]):
        for first, value in ((0, 0.0), (1, HIGH)):
            p = chance(value, 2.0 / size)
            share = float(bits[first::2, place].double().mean())
            assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / (n / 2)) + 1e-4


# ---- the multi-bit mechanism and randomised response -------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "width", "count"), [(2, 4714, 1), (5, 10, 2), (100, 3, 3), (0.1, 8, 1)])
def test_multi_bit_sends_as_many_coordinates_as_the_paper_says(
    epsilon: float, width: int, count: int
) -> None:
    assert multi_bit_count(epsilon, width) == count
    x = torch.zeros(9, width)
    columns, bits = multi_bit(x, torch.arange(9), Noise(), "x", epsilon, LOW, HIGH)
    assert columns.shape == bits.shape == (9, count)
    assert all(len({*row}) == count for row in columns.tolist())
    assert multi_bit_mechanism(epsilon, width).epsilon == epsilon


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 5.0, 9.0])
def test_multi_bit_is_private_and_unbiased_over_sampling_and_noise(epsilon: float) -> None:
    """By exact expectation, d = 4: m coordinates are sent, each with probability m / d."""
    torch.set_default_dtype(torch.float64)
    d = 4
    m = multi_bit_count(epsilon, d)
    assert m * log_ratio(chance(HIGH, epsilon / m), chance(LOW, epsilon / m)) <= epsilon + 1e-9
    for x in (LOW, 0.4, HIGH):
        p = chance(x, epsilon / m)
        zero, one = decode_one_bit(torch.tensor([False, True]), epsilon / m, LOW, HIGH, d / m).tolist()
        mean = m / d * (p * one + (1 - p) * zero) + (1 - m / d) * (LOW + HIGH) / 2
        assert mean == pytest.approx(x, abs=1e-6)


@pytest.mark.parametrize("noise", [Noise(), Noise(4)], ids=["the system's entropy", "seeded"])
def test_multi_bit_draws_every_coordinate_alike_and_tosses_the_right_coin(noise: Noise) -> None:
    """40 000 clients, d = 5, m = 2: the frequencies of 20 ordered pairs and of ones, within 5 standard
    errors: a false alarm in 8e4 runs.
    """
    n, d = 40_000, 5
    x = torch.full((n, d), HIGH)
    columns, bits = multi_bit(x, torch.arange(n), noise, "x", 5.0, LOW, HIGH)
    counts = torch.bincount(columns[:, 0] * d + columns[:, 1], minlength=d * d).double()
    pairs = counts[counts > 0]
    assert len(pairs) == d * (d - 1)
    p = 1 / len(pairs)
    assert float((pairs / n - p).abs().max()) < 5 * math.sqrt(p * (1 - p) / n)
    q = chance(HIGH, 2.5)
    assert abs(float(bits.double().mean()) - q) < 5 * math.sqrt(q * (1 - q) / (2 * n))


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 3.0, 40.0])
@pytest.mark.parametrize("classes", [1, 2, 7])
def test_response_rows_sum_to_one_and_no_column_reveals_more_than_epsilon(
    epsilon: float, classes: int
) -> None:
    t = response_matrix(epsilon, classes)
    assert t.sum(1).tolist() == [1.0] * classes
    assert float((t.max(0).values / t.min(0).values).log().max()) <= epsilon
    assert float(t[0, 0]) == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + classes - 1), abs=1e-8)


def reported(label: int, word: int, epsilon: float, classes: int) -> int:
    class Fixed(Noise):
        def words(self, purpose: str, ids: Tensor, width: int) -> Tensor:
            return torch.tensor([[word - SHIFT]], dtype=torch.int32)

    labels = torch.tensor([label])
    return int(randomised_response(labels, torch.arange(1), Fixed(), "y", epsilon, classes)[0])


@pytest.mark.parametrize("label", [0, 2])
def test_the_words_of_each_class_are_as_many_as_the_matrix_says(label: int) -> None:
    """Where the answer changes along all words, found by bisection: exact."""
    epsilon, classes = 1.0, 3
    row = (response_matrix(epsilon, classes)[label] * WORDS).round().long().tolist()
    edges = [0]
    for step in (1, 2):
        other = (label + step) % classes
        edges.append(edges[-1] + row[other])
        assert (
            reported(label, edges[-2], epsilon, classes)
            == reported(label, edges[-1] - 1, epsilon, classes)
            == other
        )
    assert (
        reported(label, edges[-1], epsilon, classes) == reported(label, WORDS - 1, epsilon, classes) == label
    )


# ---- bounds and sources ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.5, -0.5, math.nan])
def test_a_feature_outside_its_bounds_is_named_with_its_node(value: float) -> None:
    x = torch.tensor([[0.0, 1.0], [0.5, value]])
    with pytest.raises(InputError, match=r"node 31 has .* in feature 1, outside feature_low=0 \.\."):
        check_bounds(x, torch.tensor([7, 31]), 0.0, 1.0)


def test_seeded_noise_repeats_by_id_and_purpose_and_the_systems_does_not() -> None:
    ids = torch.tensor([3, 10**12, 8])
    seeded, other = Noise(1), Noise(2)
    words = seeded.words("x", ids, 5)
    assert torch.equal(words[1:], seeded.words("x", ids[1:], 5))
    assert not torch.equal(words, seeded.words("y", ids, 5))
    assert not torch.equal(words, other.words("x", ids, 5))
    assert not torch.equal(Noise().words("x", ids, 5), Noise().words("x", ids, 5))
    assert Noise().words("x", ids[:0], 5).shape == (0, 5)


@pytest.mark.parametrize("noise", [Noise(), Noise(4)], ids=["the system's entropy", "seeded"])
def test_every_bit_of_a_word_is_fair(noise: Noise) -> None:
    """32 bits of 10^5 words within 5.5 standard errors of a half: a false alarm in 8e5 runs."""
    words = noise.words("x", torch.arange(1000), 100).flatten()
    for bit in range(32):
        share = float(((words >> bit) & 1).double().mean())
        assert abs(share - 0.5) < 5.5 * 0.5 / math.sqrt(len(words))


def test_seeded_noise_is_called_simulated_and_other_noise_by_its_epsilon() -> None:
    mechanism = multi_bit_mechanism(2.0, 10)
    assert Noise().protection(mechanism) == "ldp(eps=2)"
    assert Noise(0).protection(mechanism) == "simulated"


def test_a_row_alone_sends_what_it_sends_among_others() -> None:
    """As a client with one node does, in a process of its own."""
    x, ids, noise = torch.linspace(LOW, HIGH, 30).view(5, 6), torch.arange(5), Noise(3)
    together = multi_bit(x, ids, noise, "x", 5.0, LOW, HIGH)
    for i in range(5):
        alone = multi_bit(x[i : i + 1], ids[i : i + 1], noise, "x", 5.0, LOW, HIGH)
        for row, all_ in zip(alone, together, strict=True):
            assert torch.equal(row, all_[i : i + 1])


# ---- to the last word --------------------------------------------------------------------------------------


@pytest.mark.parametrize("accounting", ["per_receiver", "coalition"])
@pytest.mark.parametrize(("width", "receivers"), [(5, 1), (5, 2), (5, 3), (5, 5), (5, 7), (8, 3), (5, 0)])
def test_the_bits_of_a_bin_are_one_bit_mechanisms_with_the_budget_of_its_size(
    accounting: str, width: int, receivers: int
) -> None:
    """By a plain loop over the bins, on the same words, of 300 clients."""
    n = 300
    x = torch.rand(n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 4 + LOW
    ids, noise, epsilon = torch.arange(n), Noise(3), 2.0
    bins = assign_bins(11, ids, width, torch.full((n,), receivers))
    words = words32(fold(3, "privacy noise", "x"), ids, width)
    ordered, expected = x.gather(1, bins.order.long()), torch.zeros(n, width, dtype=torch.bool)
    for number in range(receivers):  # the bins of this number are alike at every client
        start, size = int(bins.start[number]), int(bins.size[number])
        here = slice(start, start + size)
        if size:
            budget = epsilon / (size if accounting == "per_receiver" else width)
            expected[:, here] = one_bit(ordered[:, here], budget, words[:, here], LOW, HIGH)
    packed = encode_bins(x, ids, bins, noise, "x", epsilon, accounting, LOW, HIGH)  # type: ignore[arg-type]
    assert torch.equal(packed, pack_bits(expected))


@pytest.mark.parametrize("width", [1, 2, 5, 8, 9, 2**15, 2**15 + 1])
def test_coordinates_are_assigned_in_the_order_of_their_words(width: int) -> None:
    """Of each word without the bits that a coordinate's own number needs; equal ones in their own order."""
    ids = torch.tensor([4, 7])
    order = assign_bins(5, ids, width, torch.tensor([2, 1])).order
    assert order.dtype == (torch.int16 if width <= 2**15 else torch.int32)
    needed = max(1, len(f"{width - 1:b}"))
    for row, words in zip(order.tolist(), words32(5, ids, width).tolist(), strict=True):
        assert row == sorted(range(width), key=lambda column: (words[column] >> needed, column))


def test_other_classes_have_as_many_words_as_the_budget_asks_for_and_at_most_one_more() -> None:
    """Against e^epsilon to 50 digits: rounding never takes a word away."""
    with localcontext() as context:
        context.prec = 50
        for step in range(1, 6000):
            epsilon, classes = (step / 20_000, 2) if step % 2 else (step / 700, 2 + step % 5)
            other = float(response_matrix(epsilon, classes)[0, 1]) * WORDS
            exact = Decimal(WORDS) / (Decimal(epsilon).exp() + classes - 1)
            assert exact <= Decimal(other) < exact + Decimal("1.01")


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    with pytest.raises(InputError, match=r"where the classes are 0\.\.2"):
        randomised_response(torch.tensor([1, label]), torch.arange(2), Noise(0), "y", 1.0, 3)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_labels_need_a_budget(epsilon: float) -> None:
    with pytest.raises(InputError, match="must be above 0"):
        randomised_response(torch.tensor([1]), torch.arange(1), Noise(0), "y", epsilon, 3)


def test_the_budget_that_is_none_is_the_one_that_is_named() -> None:
    with pytest.raises(InputError, match="got -1"):
        rare(torch.tensor([2.0, 0.5, -1.0, 0.7]))


def test_bits_and_words_have_the_types_that_are_sent() -> None:
    columns, bits = multi_bit(torch.rand(3, 6), torch.arange(3), Noise(0), "x", 2.0, 0.0, 1.0)
    assert (columns.dtype, bits.dtype) == (torch.int64, torch.bool)
    for noise in (Noise(), Noise(0)):
        assert noise.words("x", torch.arange(0), 3).dtype == torch.int32


def test_a_value_beyond_its_bounds_is_as_private_as_one_at_the_bound() -> None:
    """Otherwise its bit would say for certain that it is beyond."""
    words = torch.arange(-(2**31), 2**31, 2**20).int()
    for beyond, bound in ((1.7, 1.0), (99.0, 1.0), (-0.3, 0.0)):
        beyond_bound, at_bound = (
            local.one_bit(torch.full(words.shape, x), 1.0, words, 0.0, 1.0) for x in (beyond, bound)
        )
        assert torch.equal(beyond_bound, at_bound)
        assert 0 < int(beyond_bound.sum()) < len(beyond_bound)


@pytest.mark.parametrize("classes", [2, 5])
def test_each_other_class_has_its_words_once_and_all_the_rest_keep_the_true_one(classes: int) -> None:
    other = local._other_class(0.01, classes)
    places = torch.arange(local.WORDS // other + 1)
    words = (places * other - local.SHIFT).int()[:, None]
    fixed: Any = SimpleNamespace(words=lambda purpose, ids, width: words)
    labels = torch.ones(len(places), dtype=torch.int64)
    said = local.randomised_response(labels, places, fixed, "class", 0.01, classes)
    assert sorted(said[: classes - 1].tolist()) == [c for c in range(classes) if c != 1]
    assert said[classes - 1 :].tolist() == [1] * (len(places) - classes + 1)


@pytest.mark.parametrize("classes", [2, 7])
def test_the_words_of_another_class_are_never_fewer_than_the_budget_asks(classes: int) -> None:
    """Also where the exact number lies just above a whole one, and rounding would put it below."""
    with localcontext() as context:
        context.prec = 60
        for words in range(10_000, 12_000):
            epsilon = math.log(local.WORDS / words - (classes - 1))
            exact = local.WORDS / (Decimal(epsilon).exp() + classes - 1)
            assert exact <= local._other_class(epsilon, classes) <= exact + 2

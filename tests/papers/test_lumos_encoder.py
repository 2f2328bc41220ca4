"""Lumos's encoder: a client's coordinates partitioned among receivers, what each may know, and what it
makes of it. The mechanism itself is tested by enumeration in tests/privacy/test_local.py."""

import math
from functools import cache
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphfed.errors import InputError
from graphfed.methods.lumos import client_trees, feature_encoding
from graphfed.methods.lumos.client_trees import BitMatrix
from graphfed.methods.lumos.config import Encoding, LumosConfig
from graphfed.methods.lumos.feature_encoding import (
    EncodedFeatures,
    announced_bins,
    bytes_of_bins,
    encode,
    received_features,
    receiver_mechanism,
)
from graphfed.methods.lumos.method import METHOD
from graphfed.methods.settings import changed
from graphfed.privacy.local import SHIFT, WORDS
from graphfed.privacy.noise import Noise

EXACT = 1e6  # a budget with which no coin falls on its rarer side (except with probability 2^-32)


def config_of(**options: Any) -> LumosConfig:
    """The paper's decoding, in which the middle of the bounds stands for a coordinate that was not sent."""
    return METHOD.configure({"noise_seed": 0, "decode": "unbiased", "unsent_value": 0.5, **options})


def sent_by(x: Tensor, receivers: list[int], config: LumosConfig) -> tuple[EncodedFeatures, Tensor]:
    """What client i sends to `receivers[i]` others (1000, 1001, ...), and the row of each."""
    ids = torch.arange(len(x)) + 50
    rows = torch.repeat_interleave(torch.arange(len(x)), torch.tensor(receivers))
    first = torch.cat([torch.arange(count) for count in receivers] or [rows]) + 1000
    return encode(x, ids, rows, first, config), rows


def decoded(sent: EncodedFeatures, rows: Tensor, width: int, config: LumosConfig) -> BitMatrix:
    return received_features(sent.header, sent.flat, rows + 50, width, config)


worlds = st.tuples(
    st.integers(1, 9),  # coordinates
    st.lists(st.integers(0, 12), min_size=1, max_size=5),  # receivers of each client
    st.integers(0, 2**31),
)


@given(worlds, st.integers(1, 3))
def test_rows_are_encoded_and_decoded_a_few_at_a_time_to_the_same_bits(world: Any, few: int) -> None:
    """Memory is bounded that way on large graphs."""
    width, receivers, seed = world
    x = torch.rand(len(receivers), width, generator=torch.Generator().manual_seed(seed)).double()
    config = config_of(epsilon=2.0, seed=seed)
    whole, rows = sent_by(x, receivers, config)

    def pieces(count: int, width: int) -> list[slice]:
        return [slice(first, min(first + few, count)) for first in range(0, count, few)]

    with patch.object(feature_encoding, "chunks", pieces):
        parts, _ = sent_by(x, receivers, config)
        there = decoded(parts, rows, width, config)
    assert torch.equal(parts.flat, whole.flat)
    assert torch.equal(there.to_dense(), decoded(whole, rows, width, config).to_dense())


@given(worlds)
def test_every_coordinate_goes_to_one_receiver_and_arrives_exactly_without_noise(world: Any) -> None:
    width, receivers, seed = world
    x = torch.randint(0, 2, (len(receivers), width), generator=torch.Generator().manual_seed(seed)).double()
    config = config_of(epsilon=EXACT, seed=seed)
    sent, rows = sent_by(x, receivers, config)
    assert int(sent.lengths.sum()) == len(sent.flat)
    there = decoded(sent, rows, width, config)
    dense = there.to_dense()
    for client, count in enumerate(receivers):
        received = dense[rows == client]
        assert len(received) == count
        if count:
            got = received != 0
            assert (got.sum(0) == 1).all(), "each coordinate to one receiver"
            sizes = got.sum(1)
            assert int(sizes.max()) - int(sizes.min()) <= 1
            assert torch.allclose(received.sum(0) + config.encoding.unsent_value, x[client], atol=1e-6)
    assert sent.coordinates.tolist() == [width if count else 0 for count in receivers]


@given(worlds, st.integers(1, 12))
def test_padded_bins_do_not_reveal_how_many_receivers_there_are(world: Any, bins: int) -> None:
    width, receivers, seed = world
    x = torch.randint(0, 2, (len(receivers), width), generator=torch.Generator().manual_seed(seed)).double()
    config = config_of(epsilon=EXACT, seed=seed, pad_bins=bins)
    sent, rows = sent_by(x, receivers, config)
    assert (sent.header[:, 0] == bins).all()
    allowed = {width // bins, -(-width // bins)}
    assert set(announced_bins(sent.header, width)[1].tolist()) <= allowed
    dense = decoded(sent, rows, width, config).to_dense()
    for client, count in enumerate(receivers):
        got = (dense[rows == client] != 0).double()
        if count:  # as many different bins as there can be, and each as often as any other, up to one
            per_bin = torch.bincount(sent.header[rows == client, 1].long(), minlength=bins)
            assert int((per_bin > 0).sum()) == min(count, bins)
            assert int(per_bin.max()) - int(per_bin.min()) <= 1
            assert float(got.sum(0).max()) <= math.ceil(count / bins)


@given(worlds, st.sampled_from(["per_receiver", "coalition"]), st.sampled_from([None, 3]))
def test_the_budgets_of_the_bins_sent_add_up(world: Any, accounting: str, bins: int | None) -> None:
    width, receivers, seed = world
    x = torch.zeros(len(receivers), width)
    config = config_of(epsilon=2.0, accounting=accounting, seed=seed, pad_bins=bins)
    sent, _ = sent_by(x, receivers, config)
    for client, count in enumerate(receivers):
        parts = count if bins is None else bins
        sizes = [width // parts + (k < width % parts) for k in range(parts)] if parts else []
        sent_bins = min(count, parts)
        epsilon, colluding = float(sent.epsilon[client]), float(sent.colluding[client])
        if accounting == "per_receiver":
            assert epsilon == pytest.approx(2.0 if count and (bins is None or max(sizes)) else 0.0) or (
                epsilon == 0 and not all(sizes)
            )
            assert colluding <= 2.0 * sent_bins + 1e-9
            if bins is None:
                assert colluding == pytest.approx(2.0 * sum(size > 0 for size in sizes))
        else:
            assert epsilon <= 2.0 * max(sizes, default=0) / width + 1e-9
            assert colluding <= 2.0 + 1e-9
            if bins is None and count:
                assert colluding == pytest.approx(2.0)


# ---- what receivers learn, by enumeration ------------------------------------------------------------------


def exact_law(
    x: tuple[float, ...], receivers: int, config: LumosConfig
) -> tuple[EncodedFeatures, list[list[float]]]:
    """Pr[bit = 1] of each bit that each receiver of one client gets, as `encode` draws it.

    Every bit has a word of its own, and the lowest words give 1. So the number of words that give 1 is found
    by bisection, with the same word for all bits.
    """

    @cache
    def sent_with(word: int) -> tuple[EncodedFeatures, list[list[int]]]:
        seeded = Noise.words

        def words(self: Noise, purpose: str, ids: Tensor, width: int) -> Tensor:
            if purpose == "lumos/bits":
                return torch.full((len(ids), width), word - SHIFT, dtype=torch.int32)
            return seeded(self, purpose, ids, width)

        with patch.object(Noise, "words", words):
            sent, _ = sent_by(torch.tensor([x], dtype=torch.float64), [receivers], config)
        parts = sent.flat.split(sent.lengths.tolist())
        sizes = announced_bins(sent.header, len(x))[1].tolist()
        bits = [
            [int(part[i // 8] >> i % 8) & 1 for i in range(n)] for part, n in zip(parts, sizes, strict=True)
        ]
        return sent, bits

    sent, shape = sent_with(0)
    law = [[0.0] * len(row) for row in shape]
    for receiver, row in enumerate(shape):
        for bit in range(len(row)):
            least, most = 0, WORDS
            while least < most:
                middle = (least + most) // 2
                if sent_with(middle)[1][receiver][bit]:
                    least = middle + 1
                else:
                    most = middle
            law[receiver][bit] = least / WORDS
    return sent, law


def largest_loss(laws: list[list[float]]) -> float:
    """The largest log ratio of the probabilities of any output under any two of some inputs; each input has
    the probabilities of its bits."""
    worst = 0.0
    for output in product([0, 1], repeat=len(laws[0])):
        chances = [math.prod(p if o else 1 - p for o, p in zip(output, law, strict=True)) for law in laws]
        worst = max(worst, math.log(max(chances) / min(chances)))
    return worst


@pytest.mark.parametrize(
    ("bins", "receivers"),
    [
        (2, 1),
        (3, 3),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(None, 2), (1, 2), (2, 2), (2, 3), (5, 4)]
        ),
    ],
)
@pytest.mark.parametrize("accounting", ["per_receiver", "coalition"])
@pytest.mark.sampled(3)
def test_whatever_the_number_of_bins_no_receiver_and_no_coalition_learns_more_than_is_stated(
    bins: int | None, receivers: int, accounting: str
) -> None:
    """By enumeration of all inputs at the corners, and of all outputs, of 3 coordinates. What the receiver
    makes of bits is no part of it."""
    config = config_of(epsilon=2.0, accounting=accounting, pad_bins=bins, unsent_value=0.003)
    inputs = [*product([0.0, 1.0], repeat=3), (0.3, 0.003, 0.9)]
    sent, _ = exact_law(inputs[0], receivers, config)
    laws = [exact_law(x, receivers, config)[1] for x in inputs]
    each = [largest_loss([law[receiver] for law in laws]) for receiver in range(receivers)]
    stated = float(sent.epsilon[0])
    assert stated <= 2.0
    assert max(each) == pytest.approx(stated, rel=1e-6)
    assert max(each) <= stated + 1e-9
    # Receivers of the same bin get the same bits.
    number = sent.header[:, 1].tolist()
    first = [number.index(chosen) for chosen in sorted(set(number))]
    together = largest_loss([[p for receiver in first for p in law[receiver]] for law in laws])
    assert together == pytest.approx(float(sent.colluding[0]), rel=1e-6)
    assert together <= float(sent.colluding[0]) + 1e-9


@pytest.mark.parametrize("nominal", [0.5, 2.0])
def test_the_budget_of_the_authors_program_is_stated_as_what_a_receiver_learns(nominal: float) -> None:
    """Their bit is kept with odds of e^(e^nominal) to 1, and all bits go to every receiver
    (docs/papers/lumos_results.md, Fig. 5). By enumeration, of 3 coordinates, that is 3 e^nominal,
    not `nominal`. All receivers get the same bits here, so together they learn no more."""
    true = 3 * math.exp(nominal)
    config = config_of(epsilon=true, pad_bins=1)
    kept = 1 / (1 + math.exp(-math.exp(nominal)))
    laws = []
    for x in product([0.0, 1.0], repeat=3):
        sent, law = exact_law(x, 2, config)
        for chances in law:
            assert sorted(chances) == pytest.approx(sorted(kept if bit else 1 - kept for bit in x), rel=1e-6)
        laws.append(law)
    for receiver in range(2):
        assert largest_loss([law[receiver] for law in laws]) == pytest.approx(true, rel=1e-6)
    assert [float(spent) for spent in (*sent.epsilon, *sent.colluding)] == pytest.approx([true, true])


def test_more_bins_leave_fewer_coordinates_and_less_noise_at_the_same_epsilon() -> None:
    """c of Eq. (27), the factor of the noise, for one receiver of 64 coordinates at epsilon 2."""
    found = []
    for bins in (None, 4, 16, 64):
        config = config_of(pad_bins=bins, epsilon=2.0)
        sent, rows = sent_by(torch.zeros(1, 64), [1], config)
        values = decoded(sent, rows, 64, config).values[0] + config.encoding.unsent_value
        assert float(sent.epsilon[0]) == pytest.approx(2.0)
        found.append((int(announced_bins(sent.header, 64)[1][0]), float(values[0] - values[1])))
    assert [size for size, _ in found] == [64, 16, 4, 1]
    assert [c for _, c in found] == pytest.approx([1 / math.tanh(1 / size) for size, _ in found], rel=1e-4)


def test_bits_that_are_not_read_leave_the_public_value_everywhere() -> None:
    x = torch.ones(2, 9)
    config = config_of(decode="unread", unsent_value=0.25, pad_bins=3)
    sent, rows = sent_by(x, [2, 1], config)
    assert torch.equal(sent.flat, sent_by(x, [2, 1], config_of(pad_bins=3))[0].flat)
    assert not decoded(sent, rows, 9, config).to_dense().any()


def test_which_bin_a_receiver_gets_is_not_the_order_of_ids() -> None:
    sent, rows = sent_by(torch.zeros(40, 8), [4] * 40, config_of())
    orders = {tuple(sent.header[rows == client, 1].tolist()) for client in range(40)}
    assert len(orders) > 10


def test_a_shrunk_estimate_has_less_error_than_the_unbiased_one_for_every_feature() -> None:
    """Exactly, from the probabilities of (26): E (x'' - x)^2 for a feature of mean m within the bounds."""
    for epsilon in (0.01, 0.5, 2.0):
        keep = 1 / (1 + math.exp(-epsilon))
        errors = {}
        for decode in ("unbiased", "shrunk"):
            config = config_of(decode=decode, epsilon=epsilon)
            x = torch.tensor([[0.0], [1.0]])
            up, down = [], []
            for seed in range(40):
                chosen = changed(config, noise_seed=seed)
                sent, rows = sent_by(x, [1, 1], chosen)
                value = decoded(sent, rows, 1, chosen).to_dense()[:, 0] + chosen.encoding.unsent_value
                bits = sent.flat[:2] & 1
                up += value[bits == 1].tolist()
                down += value[bits == 0].tolist()
            high, low = up[0], down[0]
            assert set(up) == {high}
            assert set(down) == {low}
            errors[decode] = keep * (high - 1) ** 2 + (1 - keep) * (low - 1) ** 2
            if decode == "unbiased":
                assert keep * high + (1 - keep) * low == pytest.approx(1.0, abs=1e-3)
        assert errors["shrunk"] < errors["unbiased"]
        assert errors["shrunk"] <= 0.25 + 1e-6, "no worse than knowing the mean alone"


BOUNDS = pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (-2.0, 5.0)], ids=str)


@BOUNDS
@pytest.mark.parametrize("decode", ["unbiased", "shrunk"])
def test_by_default_what_was_not_sent_counts_as_nothing_whatever_the_bounds(
    decode: str, bounds: tuple[float, float]
) -> None:
    """The paper has the middle of the bounds there, half of a binary feature."""
    low, high = bounds
    config = METHOD.configure({"decode": decode, "feature_low": low, "feature_high": high, "noise_seed": 0})
    sent, rows = sent_by(torch.zeros(1, 6), [3], config)
    found = decoded(sent, rows, 6, config).to_dense() + config.encoding.unsent_value
    assert ((found != 0).sum(1) <= 2).all(), "two coordinates to each receiver, and 0 for the others"


@BOUNDS
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_an_unbiased_estimate_is_unbiased_whatever_stands_for_what_was_not_sent(
    value: float, bounds: tuple[float, float]
) -> None:
    """Of a coordinate that was sent, by the probabilities of (26): Pr[1] up + Pr[0] down is the feature."""
    low, high = bounds
    x = torch.tensor([[0.0] * 64, [1.0] * 64])
    options = {"epsilon": 64.0, "feature_low": low, "feature_high": high, "unsent_value": value}
    config = config_of(**options)  # a bit has budget 1
    sent, rows = sent_by(x, [1, 1], config)
    found = decoded(sent, rows, 64, config).to_dense() + config.encoding.unsent_value
    up, down = float(found.max()), float(found.min())
    rarer = 1 / (1 + math.e)
    for feature in (0.0, 1.0):
        one = rarer + (feature - low) / (high - low) * (1 - 2 * rarer)
        assert one * up + (1 - one) * down == pytest.approx(feature, abs=1e-6)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_only_rescaled_it_is_unbiased_over_the_bins_too_whatever_stands_for_what_was_not_sent(
    value: float, rescale: bool
) -> None:
    """Without noise, the mean over all three receivers is the features themselves iff rescaled."""
    x = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 0.0]])
    config = config_of(epsilon=EXACT, rescale=rescale, unsent_value=value)
    sent, rows = sent_by(x, [3], config)
    mean = (decoded(sent, rows, 6, config).to_dense() + config.encoding.unsent_value).mean(0)
    expected = x[0] if rescale else value + (x[0] - value) / 3
    assert torch.allclose(mean, expected, atol=1e-5)


def test_what_stands_for_what_was_not_sent_changes_no_bit_that_is_sent() -> None:
    """Epsilon is of the bits; this value is the receiver's own business."""
    x = torch.randint(0, 2, (5, 40), generator=torch.Generator().manual_seed(0)).double()
    one, two = (sent_by(x, [3, 1, 0, 7, 2], config_of(unsent_value=value))[0] for value in (0.0, 1.0))
    for name in vars(one):
        assert torch.equal(getattr(one, name), getattr(two, name)), name


def test_noise_comes_from_the_operating_system_unless_a_seed_is_stated() -> None:
    x = torch.zeros(3, 64)
    assert METHOD.configure({}).noise.noise_seed is None
    drawn = [sent_by(x, [2, 2, 2], METHOD.configure({}))[0].flat for _ in range(2)]
    assert not torch.equal(*drawn), "one chance in 2^192"
    stated = [sent_by(x, [2, 2, 2], config_of())[0].flat for _ in range(2)]
    assert torch.equal(*stated)
    assert not torch.equal(stated[0], sent_by(x, [2, 2, 2], config_of(noise_seed=1))[0].flat)
    assert Noise(None).protection(receiver_mechanism(Encoding(epsilon=2))) == "ldp(eps=2)"
    assert Noise(0).protection(receiver_mechanism(Encoding(epsilon=2))) == "simulated"


@settings(max_examples=20)
@given(st.integers(0, 3), st.integers(1, 40))
def test_bits_take_whole_bytes_of_their_own(extra: int, size: int) -> None:
    assert bytes_of_bins(torch.tensor([8 * size + extra])).item() == size + (extra > 0)


def test_a_feature_outside_the_bounds_is_refused_by_name() -> None:
    x = torch.zeros(3, 4)
    x[1, 2] = 3.0
    message = r"node 51 has 3 in feature 2, outside feature_low=0 .. feature_high=1"
    with pytest.raises(InputError, match=message):
        sent_by(x, [1, 1, 1], config_of())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"feature_low": 1.0, "feature_high": 0.0},
            "feature_low=1.0 cannot be used: expected a number less than feature_high=0.0",
        ),
        (
            {"decode": "shrunk", "unsent_value": 2.0},
            "unsent_value=2.0 cannot be used: expected a number between feature_low=0.0",
        ),
        (
            {"decode": "unbiased", "feature_low": 1.0, "feature_high": 3.0},
            "unsent_value=0.0 cannot be used: expected a number between feature_low=1.0",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        METHOD.configure(options)


def test_headers_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="bin 3 of 3 bins"):
        announced_bins(torch.tensor([[3, 3]], dtype=torch.int32), 8)
    header = torch.tensor([[2, 0], [3, 0]], dtype=torch.int32)
    with pytest.raises(InputError, match="different numbers of bins"):
        received_features(header, torch.zeros(2, dtype=torch.uint8), torch.tensor([7, 7]), 6, config_of())


def test_a_number_of_bins_costs_its_receiver_no_memory() -> None:
    """A list of so many bins would take 64 GB."""
    header = torch.tensor([[2**31 - 1, 2]], dtype=torch.int32)
    flat, sender = torch.zeros(1, dtype=torch.uint8), torch.tensor([7])
    assert received_features(header, flat, sender, 6, config_of()).to_dense().count_nonzero() == 1


# ---- the matrix of received bits ---------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 50), st.integers(0, 2**31))
def test_products_and_gradients_are_those_of_the_dense_matrix(
    rows: int, width: int, block: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    there = torch.rand(rows, width, generator=generator) < 0.4
    bits = torch.rand(rows, width, generator=generator) < 0.5
    values = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    dense = torch.where(there, torch.where(bits, values[:, :1], values[:, 1:]), 0.0)
    columns = there.nonzero()[:, 1].int()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_trees, "BLOCK", block)
        matrix = BitMatrix.of(columns, bits[there], there.sum(1), values, width)
        assert len(matrix.blocks) == -(-rows // block)
        assert matrix.shape == (rows, width)
        assert torch.equal(matrix.to_dense(), dense)
        weight = torch.randn(width, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        out = matrix @ weight
        assert torch.allclose(out, dense @ weight, rtol=0, atol=1e-12)
        slope = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
        (found,) = torch.autograd.grad(out, weight, slope)
        assert torch.allclose(found, dense.t() @ slope, rtol=0, atol=1e-12)

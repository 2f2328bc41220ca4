"""Stacked encoders and decoders against one torch.nn.GRU for each client, in forecasts and gradients."""

import math
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch
from torch import Tensor

from graphfed.nn import gru, recurrence
from graphfed.nn.gru import (
    Forecaster,
    decode,
    draw_teacher_forcing,
    encode,
    init,
    inverse_sigmoid_decay,
    linear_decay,
    weight_gradients,
)
from graphfed.nn.precision import has_fast_bfloat16

SMALL = Forecaster(inputs=2, encoder=4, decoder=7)
DEEP = Forecaster(inputs=3, encoder=5, decoder=5, layers=2)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def client_weights(forecaster: Forecaster, clients: int) -> dict[str, Tensor]:
    drawn = [init(key, forecaster) for key in range(clients)]
    return {name: torch.stack([weights[name] for weights in drawn]) for name in drawn[0]}


def part(weights: dict[str, Tensor], k: int, shared: bool) -> dict[str, Tensor]:
    return weights if shared else {name: w[k] for name, w in weights.items()}


class OneClient(torch.nn.Module):
    """The same forecaster of one client, of torch's own modules, with a plain loop over the steps."""

    def __init__(self, forecaster: Forecaster, weights: dict[str, Tensor]) -> None:
        super().__init__()
        f, self.weights = forecaster, weights
        self.encoder = torch.nn.GRU(f.inputs, f.encoder, f.layers, batch_first=True)
        self.decoder = torch.nn.GRU(f.inputs, f.decoder, f.layers, batch_first=True)
        self.readout = torch.nn.Linear(f.decoder, 1)
        names = {"weight_ih": "input_weight", "weight_hh": "hidden_weight"}
        names |= {"bias_ih": "input_bias", "bias_hh": "hidden_bias"}
        renamed = {
            f"{p}.{of_torch}_l{layer}": weights[f"{p}.{layer}.{name}"]
            for p in ("encoder", "decoder")
            for layer in range(f.layers)
            for of_torch, name in names.items()
        }
        renamed |= {f"readout.{name}": weights[f"readout.{name}"] for name in ("weight", "bias")}
        self.transposed = {name: w.t() if w.dim() == 2 else w for name, w in renamed.items()}

    def encode(self, x: Tensor) -> Tensor:
        """x [W, m, D] -> [W, L*H]."""
        own = {k.split(".")[1]: w for k, w in self.transposed.items() if k.startswith("encoder")}
        _, h = torch.func.functional_call(self.encoder, own, (x,))
        return h.transpose(0, 1).flatten(1)

    def decode(
        self, state: Tensor, last: Tensor, later: Tensor, horizon: int, truth: Tensor, teach: list[bool]
    ) -> Tensor:
        own = {k.split(".")[1]: w for k, w in self.transposed.items() if k.startswith("decoder")}
        h = torch.stack(state.chunk(self.decoder.num_layers, 1))
        frame, forecasts = last, []
        for t in range(horizon):
            out, h = torch.func.functional_call(self.decoder, own, (frame[:, None], h))
            weight, bias = self.transposed["readout.weight"], self.transposed["readout.bias"]
            forecasts.append(torch.nn.functional.linear(out[:, 0], weight, bias)[:, 0])
            if t < horizon - 1:
                value = truth[:, t] if teach[t] else forecasts[-1]
                frame = torch.cat([value[:, None], later[:, t]], 1)
        return torch.stack(forecasts, 1)


@pytest.mark.parametrize("teach", [[False, False, False], [True, False, True]])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("forecaster", [SMALL, DEEP])
def test_forecasts_and_gradients_are_those_of_torchs_own_modules_client_by_client(
    forecaster: Forecaster, shared: bool, teach: list[bool]
) -> None:
    clients, windows, lags, horizon = 3, 4, 5, 4
    f = forecaster
    weights = init(7, f) if shared else client_weights(f, clients)
    x = draw(0, clients, windows, lags, f.inputs)
    embedding = draw(1, clients, windows, f.layers * (f.decoder - f.encoder))
    later = draw(2, 1, windows, horizon - 1, f.inputs - 1)
    truth, upstream = draw(3, clients, windows, horizon), draw(4, clients, windows, horizon)
    leaves = {k: w.clone().requires_grad_() for k, w in weights.items()}
    inputs = [x.clone().requires_grad_(), embedding.clone().requires_grad_()]
    wanted = [*leaves.values(), *inputs]

    h = encode(leaves, inputs[0], f.layers)
    assert h.shape == (clients, windows, f.layers * f.encoder)
    found = decode(
        leaves,
        torch.cat([h, inputs[1]], -1),
        x[:, :, -1],
        later,
        horizon,
        truth,
        torch.tensor(teach),
        f.layers,
    )
    found_grad = torch.autograd.grad((found * upstream).sum(), wanted)

    forecasts = []
    for k in range(clients):
        one = OneClient(f, part(leaves, k, shared))
        state = torch.cat([one.encode(inputs[0][k]), inputs[1][k]], 1)
        forecasts.append(one.decode(state, x[k, :, -1], later[0], horizon, truth[k], teach))
    expected = torch.stack(forecasts)
    expected_grad = torch.autograd.grad((expected * upstream).sum(), wanted)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for name, a, b in zip([*leaves, "x", "embedding"], found_grad, expected_grad, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


def test_a_gradient_for_the_state_alone_is_that_of_the_whole_backward() -> None:
    weights = client_weights(SMALL, 2)
    state, last, later = draw(0, 2, 3, 7), draw(1, 2, 3, 2), draw(2, 2, 3, 2, 1)
    found = []
    for learn in (True, False):
        h = state.clone().requires_grad_()
        leaves = {k: w.clone().requires_grad_(learn) for k, w in weights.items()}
        decode(leaves, h, last, later, 3).square().sum().backward()
        found.append(h.grad)
        assert all((w.grad is None) == (not learn or k.startswith("encoder")) for k, w in leaves.items())
    assert torch.equal(found[0], found[1])


def test_an_embedding_of_zeros_is_a_doubled_state_whose_second_half_is_zero() -> None:
    f = Forecaster(2, 4, 8)
    weights, x, later = init(0, f), draw(0, 2, 3, 5, 2), draw(1, 1, 1, 5, 1)
    h = encode(weights, x)
    forecasts = decode(weights, torch.cat([h, torch.zeros_like(h)], -1), x[:, :, -1], later, 6)
    one = OneClient(f, weights)
    for k in range(2):
        doubled = torch.cat([one.encode(x[k]), torch.zeros(3, 4)], 1)
        expected = one.decode(
            doubled, x[k, :, -1], later[0].expand(3, 5, 1), 6, torch.zeros(3, 6), [False] * 5
        )
        torch.testing.assert_close(forecasts[k], expected)


def test_a_horizon_of_one_step_and_inputs_without_covariates_work() -> None:
    f = Forecaster(1, 3, 3)
    weights, x = init(0, f), draw(0, 2, 3, 4, 1)
    one = decode(weights, encode(weights, x), x[:, :, -1], torch.zeros(1, 1, 0, 0), 1)
    two = decode(weights, encode(weights, x), x[:, :, -1], torch.zeros(1, 1, 1, 0), 2)
    assert one.shape == (2, 3, 1)
    assert torch.equal(one[..., 0], two[..., 0])


@pytest.mark.parametrize(
    ("forecaster", "count"),
    [
        (Forecaster(), 63_873),
        (Forecaster(encoder=100, decoder=100), 62_501),
        (Forecaster(encoder=200, decoder=200, layers=2), 727_401),
    ],
)
def test_parameter_counts_are_the_papers(forecaster: Forecaster, count: int) -> None:
    assert sum(w.numel() for w in init(0, forecaster).values()) == count


def test_initial_weights_are_uniform_in_torchs_range_and_a_function_of_the_key() -> None:
    weights, again, other = (init(key, Forecaster()) for key in (3, 3, 4))
    for name, w in weights.items():
        bound = (64 if name.startswith("encoder") else 128) ** -0.5
        assert w.abs().max() <= bound
        # The mean of n uniform draws has standard deviation bound / sqrt(3 n): beyond five times never.
        assert abs(w.mean()) <= 5 * bound / (3 * w.numel()) ** 0.5
        assert torch.equal(w, again[name])
        assert not torch.equal(w, other[name])


def test_inverse_sigmoid_decay_is_k_over_k_plus_exp_of_s_over_k() -> None:
    for step in (0, 5, 23):
        assert inverse_sigmoid_decay(step, 10.0) == pytest.approx(10 / (10 + math.exp(step / 10)), rel=1e-12)
    assert inverse_sigmoid_decay(10**9, 1.0) == 0


def test_linear_decay_goes_from_one_to_zero_at_its_last_step() -> None:
    assert [linear_decay(step, 4.0) for step in range(6)] == [1, 0.75, 0.5, 0.25, 0, 0]


@pytest.mark.parametrize("probability", [0.0, 0.5, 10 / 11, 1.0])
def test_readings_are_true_with_the_probability_that_is_asked_for(probability: float) -> None:
    drawn = draw_teacher_forcing(1, 5, 101, probability)
    assert torch.equal(drawn, draw_teacher_forcing(1, 5, 101, probability))
    # 100 draws stray at most five standard deviations, sqrt(100 p (1 - p)).
    assert abs(int(drawn.sum()) - 100 * probability) <= 5 * (100 * probability * (1 - probability)) ** 0.5


def blocks_of(series: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gru, recurrence):
        monkeypatch.setattr(module, "SERIES", series)


def end_to_end(weights, x, embedding, later, truth, teach, layers, products=None) -> Tensor:
    state = torch.cat([encode(weights, x, layers, products), embedding], -1)
    horizon = truth.shape[2]
    forecast = decode(weights, state, x[:, :, -1], later, horizon, truth, teach, layers, products)
    return (forecast - truth).square().mean((1, 2))


@pytest.mark.parametrize("series", [1, 3, 8, 512])
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_a_few_clients_at_a_time_are_those_of_all_at_once(
    series: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, windows = 5, 4
    weights = init(0, SMALL) if shared else client_weights(SMALL, clients)
    x, embedding = draw(0, clients, windows, 3, 2), draw(1, clients, windows, 3)
    truth, later = draw(2, clients, windows, 4), draw(3, 1, windows, 3, 1)
    teach = torch.tensor([False, True, False])

    def losses(w: dict[str, Tensor], few: slice) -> Tensor:
        return end_to_end(w, x[few], embedding[few], later, truth[few], teach, 1)

    leaves = {k: w.clone().requires_grad_() for k, w in weights.items()}
    expected = losses(leaves, slice(None))
    expected_grad = torch.autograd.grad(expected.sum(), list(leaves.values()))
    blocks_of(series, monkeypatch)
    with torch.no_grad():  # whatever the caller is in
        found, gradients = weight_gradients(weights, losses, clients, windows)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-12)
    for name, gradient in zip(leaves, expected_grad, strict=True):
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("series", "sizes"), [(1, [1, 1, 1, 1, 1]), (8, [2, 2, 1]), (11, [2, 2, 1]), (512, [5])]
)
def test_as_many_clients_go_forward_and_back_at_a_time_as_have_windows_for_a_block(
    series: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks_of(series, monkeypatch)
    seen: list[int] = []

    def losses(w: dict[str, Tensor], few: slice) -> Tensor:
        seen.extend(range(5)[few])
        counts.append(few.stop - few.start)
        return sum(part.sum() for part in w.values()) * torch.ones(few.stop - few.start)

    counts: list[int] = []
    weight_gradients(init(0, SMALL), losses, clients=5, windows=4)
    assert seen == [0, 1, 2, 3, 4]
    assert counts == sizes


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("forecaster", [SMALL, DEEP])
def test_products_in_a_shorter_format_change_forecasts_and_gradients_by_its_rounding_only(
    forecaster: Forecaster, shared: bool
) -> None:
    """Single precision within double, on any processor; in the encoder and in the decoder."""
    f = forecaster
    weights = init(0, f) if shared else client_weights(f, 3)
    x, later, teach = (
        draw(0, 3, 4, 5, f.inputs),
        draw(1, 1, 4, 3, f.inputs - 1),
        torch.tensor([True, False, True]),
    )
    embedding, truth = draw(2, 3, 4, f.layers * (f.decoder - f.encoder)), draw(3, 3, 4, 4)
    found = []
    for products in (None, torch.float32):
        leaves = {name: w.clone().requires_grad_() for name, w in (*weights.items(), ("x", x))}
        h = encode(leaves, leaves["x"], f.layers, products)
        state, last = torch.cat([h, embedding], -1), leaves["x"][:, :, -1]
        out = decode(leaves, state, last, later, 4, truth, teach, f.layers, products)
        found.append((h, out, *torch.autograd.grad((out * truth).sum(), list(leaves.values()))))
    assert not any(torch.equal(exact, short) for exact, short in zip(*found, strict=True))
    for exact, short in zip(*found, strict=True):
        assert short.dtype == torch.float64
        # Fewer than a hundred roundings of relative size 2^-24.
        assert (short - exact).norm() <= 100 * 2**-24 * exact.norm()


@pytest.mark.parametrize("reads_out", [True, False])
def test_gradients_of_layers_of_different_widths_are_those_of_finite_differences(reads_out: bool) -> None:
    groups, steps, inputs, columns, widths = 2, 3, 2, 2, (3, 1, 4)
    below = (inputs, *widths)
    frames = draw(0, groups, steps, inputs, columns).requires_grad_()
    readout = draw(1, groups, 1, widths[-1] + 1).requires_grad_()
    states = [draw(2 + h, groups, h, columns).requires_grad_() for h in widths]
    of_state = [
        draw(9 + h, groups, 3 * h, h + d + 1).requires_grad_() for d, h in zip(below, widths, strict=False)
    ]
    of_inputs = [draw(19 + h, groups, h, d + 1).requires_grad_() for d, h in zip(below, widths, strict=False)]

    def results(*tensors: Tensor) -> tuple[Tensor, ...]:
        cells = [recurrence.Cell(m, n) for m, n in zip(tensors[5:8], tensors[8:], strict=True)]
        if not reads_out:
            return tuple(recurrence.unroll(cells, tensors[2:5], tensors[0]))
        return tuple(recurrence.unroll(cells, tensors[2:5], tensors[0], tensors[1], (False, True, False)))

    assert torch.autograd.gradcheck(
        results, (frames, readout, *states, *of_state, *of_inputs), fast_mode=True
    )


def test_clients_with_the_same_weights_sum_to_the_gradient_of_shared_ones() -> None:
    f = Forecaster(2, 4, 4)
    weights, x, truth = init(0, f), draw(0, 3, 6, 5, 2), draw(1, 3, 6, 2)
    nothing, later = draw(2, 3, 6, 0), draw(3, 1, 1, 1, 1)
    own = {name: w.expand(3, *w.shape) for name, w in weights.items()}
    (_, shared), (_, each) = (
        weight_gradients(
            given, lambda w, few: end_to_end(w, x[few], nothing[few], later, truth[few], None, 1), 3, 6
        )
        for given in (weights, own)
    )
    for name, gradient in shared.items():
        torch.testing.assert_close(each[name].sum(0), gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("forecaster", [SMALL, DEEP])
@pytest.mark.parametrize("shared", [True, False])
def test_without_gradients_blocks_share_memory_and_give_the_same_forecasts(
    forecaster: Forecaster, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, windows, f = 5, 7, forecaster
    weights = init(0, f) if shared else client_weights(f, clients)
    leaves = {k: w.clone().requires_grad_() for k, w in weights.items()}
    x, embedding = draw(0, clients, windows, 5, f.inputs), draw(1, clients, windows, f.decoder - f.encoder)
    later, truth = draw(2, 1, 1, 3, f.inputs - 1), draw(3, clients, windows, 4)
    expected = end_to_end(leaves, x, embedding, later, truth, None, f.layers)
    blocks_of(3, monkeypatch)
    torch.testing.assert_close(end_to_end(weights, x, embedding, later, truth, None, f.layers), expected)


@pytest.mark.skipif(not has_fast_bfloat16("cpu"), reason="the processor has no fast bfloat16")
@pytest.mark.parametrize("shared", [True, False])
def test_products_in_bfloat16_stray_by_their_eight_bits(shared: bool) -> None:
    torch.set_default_dtype(torch.float32)
    f = Forecaster(2, 16, 32)
    weights = init(0, f) if shared else client_weights(f, 3)
    x, embedding, truth = (
        draw(i, *shape).float() for i, shape in enumerate([(3, 8, 12, 2), (3, 8, 16), (3, 8, 12)])
    )
    later = draw(3, 1, 8, 11, 1).float()
    (exact, exact_grad), (short, short_grad) = (
        weight_gradients(
            weights,
            lambda w, few, p=p: end_to_end(w, x[few], embedding[few], later, truth[few], None, 1, p),
            3,
            8,
        )
        for p in (None, torch.bfloat16)
    )
    assert short.dtype == torch.float32
    assert 1e-6 < ((short - exact).norm() / exact.norm()).item() < 2**-7
    for name, gradient in exact_grad.items():
        # Some two dozen steps, each rounding to 2^-9.
        assert ((short_grad[name] - gradient).norm() / gradient.norm()).item() < 24 * 2**-9


def test_going_back_twice_gives_the_same_gradients() -> None:
    weights = {k: w.requires_grad_() for k, w in init(0, SMALL).items()}
    x, later, embedding = draw(0, 2, 3, 5, 2), draw(1, 1, 1, 3, 1), draw(2, 2, 3, 3)
    errors = end_to_end(weights, x, embedding, later, draw(3, 2, 3, 4), None, 1).sum()
    one, two = (torch.autograd.grad(errors, list(weights.values()), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_no_more_than_is_asked_for_is_differentiated() -> None:
    weights, x = init(0, SMALL), draw(0, 2, 3, 5, 2)
    assert not encode(weights, x).requires_grad
    frozen_encoder = {k: w.clone().requires_grad_(not k.startswith("encoder")) for k, w in weights.items()}
    assert not encode(frozen_encoder, x).requires_grad
    assert encode(weights, x.requires_grad_()).requires_grad


def test_both_backward_passes_of_a_graph_free_each_block_after_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alive: WeakSet[recurrence._Block] = WeakSet()
    left: list[int] = []

    class Block(recurrence._Block):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            alive.add(self)

        def backward(self, *args: Any) -> list[Tensor]:
            left.append(len(alive))
            return super().backward(*args)

    monkeypatch.setattr(recurrence, "_Block", Block)
    blocks_of(1, monkeypatch)
    x = draw(0, 1, 5, 4, SMALL.inputs).requires_grad_()
    error = encode(init(0, SMALL), x, SMALL.layers).sum()
    for _ in range(2):
        torch.autograd.grad(error, x, retain_graph=True)
    assert left == 2 * [5, 4, 3, 2, 1]

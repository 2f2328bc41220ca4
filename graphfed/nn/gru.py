"""Encoders and decoders of gated recurrent units (Cho et al. 2014), with one time series per client, for all
clients at once.

    K clients, W windows, m input steps, n steps of the horizon, D inputs of a step, H hidden, L layers

Equations and gate order are those of torch.nn.GRU, for an input x and a state h:

    r = sigmoid(x W_ir + b_ir + h W_hr + b_hr)
    z = sigmoid(x W_iz + b_iz + h W_hz + b_hz)
    c = tanh(x W_in + b_in + r * (h W_hn + b_hn))
    h' = c + z * (h - c)

A layer has ``input_weight`` [D, 3H], ``hidden_weight`` [H, 3H], ``input_bias`` and ``hidden_bias`` [3H], with
the columns of r, z and n side by side; a layer after the first has D = H. Weights are *shared* by all clients
(these shapes) or *per client* (all of them with a leading dimension K). A state is [K, W, L*H]: the states of
the layers side by side.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.nn.recurrence import SERIES, Cell, unroll
from graphfed.random import fold, uniform, uniform_weights

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Forecaster:
    """The widths of an encoder and a decoder.

    Attributes:
        inputs: D, the inputs of a time step: the reading, then covariates that are known in advance (the time
            of day).
        encoder: H of the encoder.
        decoder: H of the decoder. If it is wider than the encoder, the caller appends an embedding to the
            encoder's state.
        layers: L of each of the two.
        encoder_only: Inputs of a time step that the encoder reads in addition to D.
    """

    inputs: int = 2
    encoder: int = 64
    decoder: int = 128
    layers: int = 1
    encoder_only: int = 0


def init(key: int, forecaster: Forecaster) -> dict[str, Tensor]:
    """Draw shared weights from U(-1/sqrt(H), 1/sqrt(H)), as torch.nn.GRU and torch.nn.Linear do.

    Args:
        key: The key of the draws (`graphfed.random.fold`).
        forecaster: The widths of encoder and decoder.

    Returns:
        ``encoder.<l>.<name>`` and ``decoder.<l>.<name>`` (the module has the names and shapes),
        ``readout.weight`` [H, 1] and ``readout.bias`` [1], in the default dtype on the CPU.
    """
    weights: dict[str, Tensor] = {}
    read_by_encoder = forecaster.inputs + forecaster.encoder_only
    parts = (
        ("encoder", forecaster.encoder, read_by_encoder),
        ("decoder", forecaster.decoder, forecaster.inputs),
    )
    for part, hidden, first in parts:
        for layer in range(forecaster.layers):
            inputs = hidden if layer else first
            rows: dict[str, tuple[int, ...]]
            rows = {
                "input_weight": (inputs,),
                "hidden_weight": (hidden,),
                "input_bias": (),
                "hidden_bias": (),
            }
            for name, shape in rows.items():
                path = f"{part}.{layer}.{name}"
                # Each weight has a key of its own, so the first layers of a deeper network start alike.
                weights[path] = uniform_weights(fold(key, path), hidden**-0.5, *shape, 3 * hidden)
    bound = forecaster.decoder**-0.5
    weights["readout.weight"] = uniform_weights(fold(key, "readout.weight"), bound, forecaster.decoder, 1)
    weights["readout.bias"] = uniform_weights(fold(key, "readout.bias"), bound, 1)
    return weights


def encode(weights: Weights, x: Tensor, layers: int = 1, products: torch.dtype | None = None) -> Tensor:
    """Run the encoder over the input steps, from a zero state.

    Args:
        weights: Shared weights, or weights per client.
        x: [K, W, m, D], the input steps. D includes `Forecaster.encoder_only`.
        layers: L, as in the `Forecaster` of the weights.
        products: The dtype of matrix products (`precision.product_dtype`). None: that of the weights.

    Returns:
        The state after the last step, [K, W, L*H].
    """
    frames, cells = _columns(x, weights), _cells(weights, "encoder", layers)
    start = [frames.new_zeros(len(frames), cell.hidden, frames.shape[-1]) for cell in cells]
    return _rows(torch.cat(unroll(cells, start, frames, products=products), 1), x)


def decode(
    weights: Weights,
    state: Tensor,
    last: Tensor,
    later: Tensor,
    horizon: int,
    truth: Tensor | None = None,
    teach: Tensor | None = None,
    layers: int = 1,
    products: torch.dtype | None = None,
) -> Tensor:
    """Forecast the steps of the horizon, each from the forecast before it.

    The input of the first step is `last`. The input of a later step is the forecast of the step before, or
    the true reading where `teach` is true, and the covariates of that time.

    Args:
        weights: Shared weights, or weights per client.
        state: [K, W, L*H], the state that the decoder starts from.
        last: [K, W, D], the last input step.
        later: [K, W, n - 1, D - 1], the covariates of the first n - 1 steps of the horizon. K and W may be 1.
        horizon: n, the number of steps to forecast.
        truth: [K, W, n], the true readings. Needed only with `teach`.
        teach: [n - 1] bool, the later steps that read the truth (scheduled sampling). None: no step.
        layers: L, as in the `Forecaster` of the weights.
        products: The dtype of matrix products, as in `encode`.

    Returns:
        The forecasts, [K, W, n].
    """
    clients, windows, inputs = last.shape
    # The later steps that read the truth in the place of the forecast.
    taught = [False] * (horizon - 1) if truth is None or teach is None else teach.tolist()
    # [K, W, n - 1]; zeros where the truth is unknown: `unroll` replaces them by the forecasts.
    value = last.new_zeros(clients, windows, horizon - 1) if truth is None else truth[..., :-1]
    known = torch.cat([value[..., None], later.expand(clients, windows, horizon - 1, inputs - 1)], -1)
    frames = _columns(torch.cat([last[:, :, None], known], 2), weights)
    cells = _cells(weights, "decoder", layers)
    states = _columns(state, weights).chunk(layers, 1)
    weight, bias = weights["readout.weight"], weights["readout.bias"]
    # [w; b] as one weight, because the readout multiplies [h; 1].
    readout = _grouped(torch.cat([weight, bias[..., None]], -2))
    # The first step reads `last`, so no forecast.
    reads_forecast = [False, *(not each for each in taught)]
    return _rows(unroll(cells, states, frames, readout, reads_forecast, products)[0], last)


def _cells(weights: Weights, part: str, layers: int) -> list[Cell]:
    """Combine the weights of each layer of the encoder or the decoder for `unroll`."""
    cells = []
    for layer in range(layers):
        names = ("hidden_weight", "input_weight", "hidden_bias", "input_bias")
        of_h, of_x, bias_h, bias_x = (weights[f"{part}.{layer}.{name}"] for name in names)
        bias_h, bias_x = bias_h[..., None, :], bias_x[..., None, :]
        hidden = of_h.shape[-2]
        gates, candidate = slice(0, 2 * hidden), slice(2 * hidden, None)
        # r multiplies only the part of the candidate that comes from the state. So the part from the inputs
        # is a product of its own; everything else is one product with [h, x, 1].
        both = torch.cat([of_h, of_x, bias_h + bias_x], -2)[..., gates]
        alone = torch.cat([of_h, torch.zeros_like(of_x), bias_h], -2)[..., candidate]
        inputs = torch.cat([of_x, bias_x], -2)[..., candidate]
        cells.append(Cell(_grouped(torch.cat([both, alone], -1)), _grouped(inputs)))
    return cells


def _grouped(weight: Tensor) -> Tensor:
    """Transpose a weight [F, H] or [K, F, H] to [G, H, F], contiguous. G is 1 for shared weights, else K."""
    return weight.reshape(-1, *weight.shape[-2:]).transpose(1, 2).contiguous()


def _columns(x: Tensor, weights: Weights) -> Tensor:
    """Arrange rows [K, W, ...] as columns [G, ..., C]: G = 1, C = K*W, or G = K, C = W."""
    return (x.reshape(1, -1, *x.shape[2:]) if _is_shared(weights) else x).movedim(1, -1)


def _is_shared(weights: Weights) -> bool:
    return weights["readout.bias"].dim() == 1


def _rows(columns: Tensor, like: Tensor) -> Tensor:
    """Arrange columns [G, F, C] as rows [K, W, F], with K and W of `like`."""
    return columns.transpose(1, 2).reshape(*like.shape[:2], -1)


def weight_gradients(
    weights: Weights, losses: Callable[[dict[str, Tensor], slice], Tensor], clients: int, windows: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the losses of clients and the gradients of their weights, a few clients at a time.

    The forward and backward passes of as many clients as fit a block of the recurrence run together. So the
    memory for the steps does not grow with the number of clients. The results are those of one call for all.

    Args:
        weights: Shared weights, or weights per client [K, ...].
        losses: losses(weights, some) returns the losses [k] of the clients `some`, a slice of 0 .. K - 1.
            Weights per client are those of these clients, [k, ...].
        clients: K, the number of clients with losses.
        windows: W, the windows that a loss is computed from.

    Returns:
        The losses [K], and the gradients of their sum, shaped as the weights: for weights per client, those
        of each client's own loss.
    """
    shared = _is_shared(weights)
    size = max(1, SERIES // max(1, windows))
    gradients = {name: w.new_zeros(w.shape) for name, w in weights.items()}
    all_losses = []
    for first in range(0, clients, size):
        some = slice(first, min(first + size, clients))
        used = {name: w if shared else w[some] for name, w in weights.items()}
        # Leaves of their own for each block of clients: its graph is freed before the next block runs.
        leaves = {name: w.detach().requires_grad_() for name, w in used.items()}
        with torch.enable_grad():
            losses_of_some = losses(leaves, some)
            terms = torch.autograd.grad(losses_of_some.sum(), list(leaves.values()))
        all_losses.append(losses_of_some.detach())
        for name, term in zip(leaves, terms, strict=True):
            into = gradients[name] if shared else gradients[name][some]
            # Blocks add up in shared weights. In weights per client each block has its own rows.
            into += term
    return torch.cat(all_losses), gradients


def inverse_sigmoid_decay(step: int, k: float) -> float:
    """Compute the probability k / (k + exp(s / k)) of a true reading in scheduled sampling.

    Args:
        step: The training step s, from 0.
        k: The scale of the decay in steps: a larger k decays later.

    Returns:
        The probability.

    Reference:
        Bengio, Vinyals, Jaitly and Shazeer 2015, Section 2.4.
    """
    # k / (k + exp(s / k)) is the logistic function of log k - s / k, which never overflows.
    return torch.sigmoid(torch.tensor(math.log(k) - step / k, dtype=torch.float64)).item()


def linear_decay(step: int, last: float) -> float:
    """Compute the probability max(0, 1 - s / last) of a true reading in scheduled sampling.

    Args:
        step: The training step s, from 0.
        last: The step from which on the probability is 0; above 0.

    Returns:
        The probability.

    Reference:
        Bengio, Vinyals, Jaitly and Shazeer 2015, Section 2.4.
    """
    return max(0.0, 1.0 - step / last)


def draw_teacher_forcing(key: int, step: int, horizon: int, probability: float) -> Tensor:
    """Draw which later inputs of the decoder are true readings in a training step (scheduled sampling).

    Args:
        key: The key of the draws; each step has its own draws of it.
        step: The training step, counted from 0.
        horizon: n, the number of steps that the decoder forecasts.
        probability: The probability in [0, 1] of each later input to be a true reading.

    Returns:
        [n - 1] bool.
    """
    return uniform(fold(key, step), torch.arange(horizon - 1))[:, 0] < probability

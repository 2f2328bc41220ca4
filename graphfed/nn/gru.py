"""Encoders and decoders of gated recurrent units (Cho et al. 2014), one series per client, all clients at
once.

    K clients, W windows, m time steps in, n steps to forecast, D inputs of a step, H hidden, L layers

Equations and gate order are those of torch.nn.GRU, for an input x and a state h:

    r = sigmoid(x W_ir + b_ir + h W_hr + b_hr)
    z = sigmoid(x W_iz + b_iz + h W_hz + b_hz)
    c = tanh(x W_in + b_in + r * (h W_hn + b_hn))
    h' = c + z * (h - c)

A layer has ``input_weight`` [D, 3H], ``hidden_weight`` [H, 3H], ``input_bias`` and ``hidden_bias`` [3H], the
columns of r, z and n side by side. Weights are *shared* by all clients (these shapes) or *per client* (all of
them with a leading dimension K). A state is [K, W, L*H]: the layers' states one after another, for one layer
the plain [K, W, H].
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.random import fold, uniform, uniform_weights

__all__ = ["Forecaster", "client_errors", "decode", "encode", "init", "taught_steps"]

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Forecaster:
    """The widths of an encoder and a decoder.

    inputs: values of a time step, the reading first and then what is known ahead (the time of day); encoder,
    decoder: hidden widths of a layer; layers: of each of the two. A decoder wider than the encoder starts
    from the encoder's state and an embedding side by side."""

    inputs: int = 2
    encoder: int = 64
    decoder: int = 128
    layers: int = 1


def init(key: int, forecaster: Forecaster) -> dict[str, Tensor]:
    """Shared weights, U(-1/sqrt(H), 1/sqrt(H)) as torch.nn.GRU and torch.nn.Linear draw them, in the default
    dtype on the CPU: ``encoder.<l>.<name>``, ``decoder.<l>.<name>`` (see the module), ``readout.weight``
    [H, 1] and ``readout.bias`` [1]."""
    weights: dict[str, Tensor] = {}
    for part, hidden in (("encoder", forecaster.encoder), ("decoder", forecaster.decoder)):
        for layer in range(forecaster.layers):
            inputs = hidden if layer else forecaster.inputs
            rows: dict[str, tuple[int, ...]]
            rows = {
                "input_weight": (inputs,),
                "hidden_weight": (hidden,),
                "input_bias": (),
                "hidden_bias": (),
            }
            for name, shape in rows.items():
                path = f"{part}.{layer}.{name}"
                weights[path] = uniform_weights(fold(key, path), hidden**-0.5, *shape, 3 * hidden)
    bound = forecaster.decoder**-0.5
    weights["readout.weight"] = uniform_weights(fold(key, "readout.weight"), bound, forecaster.decoder, 1)
    weights["readout.bias"] = uniform_weights(fold(key, "readout.bias"), bound, 1)
    return weights


def encode(weights: Weights, x: Tensor, layers: int = 1) -> Tensor:
    """The state after reading x [K, W, m, D] from zeros: [K, W, L*H]."""
    states = []
    sequence = list(x.unbind(2))
    for layer in range(layers):
        cell = _Cell(weights, f"encoder.{layer}")
        h = x.new_zeros(*x.shape[:2], cell.hidden)
        for t, frame in enumerate(sequence):
            sequence[t] = h = cell.step(frame, h)
        states.append(h)
    return torch.cat(states, -1)


def decode(
    weights: Weights,
    state: Tensor,
    last: Tensor,
    later: Tensor,
    horizon: int,
    truth: Tensor | None = None,
    teach: Tensor | None = None,
    layers: int = 1,
) -> Tensor:
    """Forecasts [K, W, n] of the `horizon` = n steps after the frame `last` [K, W, D], from `state`
    [K, W, L*H].

    The first input is `last`; that of a later step is the forecast before it, with the covariates `later`
    [K or 1, W or 1, n-1, D-1] known for that forecast's time. Where `teach` [n-1] is true the `truth`
    [K, W, n] of that time goes in, not the forecast (scheduled sampling)."""
    cells = [_Cell(weights, f"decoder.{layer}") for layer in range(layers)]
    h = list(state.chunk(layers, -1))
    frame = last
    later = later.expand(*last.shape[:2], horizon - 1, last.shape[2] - 1)
    forecasts: list[Tensor] = []
    for t in range(horizon):
        if t:
            taught = truth is not None and teach is not None and bool(teach[t - 1])
            value = truth[..., t - 1] if taught else forecasts[-1]  # type: ignore[index]
            frame = torch.cat([value[..., None], later[:, :, t - 1]], -1)
        signal = frame
        for layer, cell in enumerate(cells):
            h[layer] = signal = cell.step(signal, h[layer])
        readout = _product(signal, weights["readout.weight"]) + _per_client(weights["readout.bias"], 1)
        forecasts.append(readout[..., 0])
    return torch.stack(forecasts, -1)


class _Cell:
    """One layer's weights, ready to multiply [K, W, .]."""

    def __init__(self, weights: Weights, path: str) -> None:
        self.input_weight, self.hidden_weight = (
            weights[f"{path}.input_weight"],
            weights[f"{path}.hidden_weight"],
        )
        self.input_bias = _per_client(weights[f"{path}.input_bias"], 1)
        self.hidden_bias = _per_client(weights[f"{path}.hidden_bias"], 1)
        self.hidden = self.hidden_weight.shape[-2]

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """h' of x [K, W, D] and h [K, W, H]."""
        of_x = (_product(x, self.input_weight) + self.input_bias).chunk(3, -1)
        of_h = (_product(h, self.hidden_weight) + self.hidden_bias).chunk(3, -1)
        r, z = (of_x[0] + of_h[0]).sigmoid(), (of_x[1] + of_h[1]).sigmoid()
        c = (of_x[2] + r * of_h[2]).tanh()
        return c + z * (h - c)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x [K, W, F] times weight [F, H] or [K, F, H]."""
    return x @ weight


def _per_client(bias: Tensor, shared_dim: int) -> Tensor:
    """A bias that adds to [K, W, H]: one per client gets a dimension for the windows."""
    return bias if bias.dim() == shared_dim else bias[:, None]


def client_errors(forecast: Tensor, truth: Tensor) -> Tensor:
    """The mean squared error of each client over its windows and steps: [K, W, n] twice -> [K]."""
    return (forecast - truth).square().mean((1, 2))


def taught_steps(key: int, step: int, horizon: int, decay: float = 1000.0) -> Tensor:
    """Which later inputs of the decoder are the truth at training step `step`: [n-1] bool, each with
    probability k / (k + exp(step / k)), k = `decay` (scheduled sampling, Bengio et al. 2015)."""
    # k / (k + exp(s / k)) is the logistic function of log k - s / k, which never overflows.
    threshold = torch.sigmoid(torch.tensor(math.log(decay) - step / decay, dtype=torch.float64))
    return uniform(fold(key, step), torch.arange(horizon - 1))[:, 0] < threshold

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.nn.recurrence import SERIES, Cell, unroll
from graphfed.random import fold, uniform, uniform_weights

__all__ = [
    "Forecaster",
    "client_errors",
    "decode",
    "encode",
    "init",
    "taught_steps",
    "weight_gradients",
]

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


def encode(weights: Weights, x: Tensor, layers: int = 1, products: torch.dtype | None = None) -> Tensor:
    """The state after reading x [K, W, m, D] from zeros: [K, W, L*H].

    products: the dtype that matrix products are made in, that of the weights if None."""
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
    """Forecasts [K, W, n] of the `horizon` = n steps after the frame `last` [K, W, D], from `state`
    [K, W, L*H].

    The first input is `last`; that of a later step is the forecast before it, with the covariates `later`
    [K or 1, W or 1, n-1, D-1] known for that forecast's time. Where `teach` [n-1] is true the `truth`
    [K, W, n] of that time goes in, not the forecast (scheduled sampling). products: as in `encode`."""
    clients, windows, inputs = last.shape
    taught = [False] * (horizon - 1) if truth is None or teach is None else teach.tolist()
    value = last.new_zeros(clients, windows, horizon - 1) if truth is None else truth[..., :-1]
    known = torch.cat([value[..., None], later.expand(clients, windows, horizon - 1, inputs - 1)], -1)
    frames = _columns(torch.cat([last[:, :, None], known], 2), weights)
    cells = _cells(weights, "decoder", layers)
    states = _columns(state, weights).chunk(layers, 1)
    weight, bias = weights["readout.weight"], weights["readout.bias"]
    readout = _grouped(torch.cat([weight, bias[..., None]], -2))
    own = [False, *(not each for each in taught)]
    return _rows(unroll(cells, states, frames, readout, own, products)[0], last)


def _cells(weights: Weights, part: str, layers: int) -> list[Cell]:
    """The layers of the encoder or the decoder as `unroll` takes them."""
    cells = []
    for layer in range(layers):
        names = ("hidden_weight", "input_weight", "hidden_bias", "input_bias")
        of_h, of_x, bias_h, bias_x = (weights[f"{part}.{layer}.{name}"] for name in names)
        bias_h, bias_x = bias_h[..., None, :], bias_x[..., None, :]
        hidden = of_h.shape[-2]
        gates, candidate = slice(0, 2 * hidden), slice(2 * hidden, None)
        both = torch.cat([of_h, of_x, bias_h + bias_x], -2)[..., gates]
        alone = torch.cat([of_h, torch.zeros_like(of_x), bias_h], -2)[..., candidate]
        inputs = torch.cat([of_x, bias_x], -2)[..., candidate]
        cells.append(Cell(_grouped(torch.cat([both, alone], -1)), _grouped(inputs)))
    return cells


def _grouped(weight: Tensor) -> Tensor:
    """A weight [F, H] or [K, F, H] as [G, H, F], contiguous: one group if it is shared, else one a client."""
    return weight.reshape(-1, *weight.shape[-2:]).transpose(1, 2).contiguous()


def _columns(x: Tensor, weights: Weights) -> Tensor:
    """Rows [K, W, ...] as columns of the groups, [G, ..., C]: G = 1 and C = K*W if weights are shared."""
    return (x.reshape(1, -1, *x.shape[2:]) if _is_shared(weights) else x).movedim(1, -1)


def _is_shared(weights: Weights) -> bool:
    return weights["readout.bias"].dim() == 1


def _rows(columns: Tensor, like: Tensor) -> Tensor:
    """Columns [G, F, C] as rows [K, W, F] again, K and W as those of `like`."""
    return columns.transpose(1, 2).reshape(*like.shape[:2], -1)


def client_errors(forecast: Tensor, truth: Tensor) -> Tensor:
    """The mean squared error of each client over its windows and steps: [K, W, n] twice -> [K]."""
    return (forecast - truth).square().mean((1, 2))


def weight_gradients(
    weights: Weights, losses: Callable[[dict[str, Tensor], slice], Tensor], clients: int, windows: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses [K] of `clients` = K clients, and their gradients: of per-client weights each client's own,
    [K, ...], of shared ones the sum over the clients.

    losses(weights, few) gives the losses of the clients `few`, a slice of 0..K-1, from `windows` windows of
    each and weights that are theirs. A few go forward and back before the next ones, as many as a block of
    the recurrence holds. So memory does not grow with the steps of all clients as it does with one call for
    all, which gives the same numbers."""
    shared = _is_shared(weights)
    size = max(1, SERIES // max(1, windows))
    gradients = {name: w.new_zeros(w.shape) for name, w in weights.items()}
    found = []
    for first in range(0, clients, size):
        few = slice(first, min(first + size, clients))
        own = {name: w if shared else w[few] for name, w in weights.items()}
        leaves = {name: w.detach().requires_grad_() for name, w in own.items()}
        with torch.enable_grad():
            mine = losses(leaves, few)
            parts = torch.autograd.grad(mine.sum(), list(leaves.values()))
        found.append(mine.detach())
        for name, part in zip(leaves, parts, strict=True):
            into = gradients[name] if shared else gradients[name][few]
            into += part
    return torch.cat(found), gradients


def taught_steps(key: int, step: int, horizon: int, decay: float = 1000.0) -> Tensor:
    """Which later inputs of the decoder are the truth at training step `step`: [n-1] bool, each with
    probability k / (k + exp(step / k)), k = `decay` (scheduled sampling, Bengio et al. 2015)."""
    # k / (k + exp(s / k)) is the logistic function of log k - s / k, which never overflows.
    threshold = torch.sigmoid(torch.tensor(math.log(decay) - step / decay, dtype=torch.float64))
    return uniform(fold(key, step), torch.arange(horizon - 1))[:, 0] < threshold

"""CNFGNN: readings, from the encodings of windows that every sensor sends.

An encoding has more numbers than its window has readings, and a linear map from encodings back to readings
(ridge regression) undoes most of it. The map is fitted to pairs of windows and their encodings, which the
server has in one of two ways. Where clients share weights it knows them, encodes series that it draws itself
(autoregressive, on the common scale, which it knows too), and needs nobody's help. Where every sensor keeps
weights of its own (strategies at and sl), two sensors help the server and give it theirs. The strength of the
regression is chosen between two halves of the pairs. As a reading is in several windows, the estimates from
all of them are then averaged, each weighted by how exact its place in a window is, and scaled by one slope,
both fitted to the known pairs. Two searches for readings with the same encodings were tried, with the weights
known: gradient descent takes a hundred times as long and finds less, Gauss-Newton finds about as much.

Training windows are attacked, of sensors other than those that help. Their encodings are made again with the
model of the folder; nothing is trained again. They cross in every round. Without noise one round's are used;
with noise, which is drawn anew by the same law, as many as there were rounds, at most RELEASES, are averaged,
as if weights had been those of the model in all of them. The share of the variance is told that the estimates
explain, and their median absolute error, over readings that are there.

Shapes: S sensors, W windows, m lags, H hidden width, N steps that the windows cover."""

from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.data.seeding import generator
from graphfed.data.sensors.series import Sensors
from graphfed.federation.series import make_series, windows
from graphfed.files import read_tensors
from graphfed.methods.cnfgnn.config import CNFGNNConfig, epsilon_of
from graphfed.methods.cnfgnn.method import wire_of
from graphfed.methods.common.forecasting import (
    PART,
    Standardised,
    Weights,
    batch_of,
    encode,
    parts_of,
    standardise,
)
from graphfed.methods.tasks import FORECASTING
from graphfed.tasks.sensors.inputs import SensorInputs

__all__ = ["CHECK", "Reconstruction", "reconstruct"]

#: Sensors and windows that are attacked, rounds' encodings that are averaged where there is noise, at most.
SENSORS, WINDOWS, RELEASES = 20, 2016, 20
#: Sensors that work together with a server which does not know the weights; series that one draws which does,
#: and how much of one reading is left in the next.
HELPERS, DRAWN, PERSISTENCE = 2, 8, 0.97
#: What the strength of the regression is chosen from, relative to the spread of the encodings.
RIDGES = (1e-8, 1e-6, 1e-4, 1e-2, 1e-1, 1.0, 10.0, 100.0)
#: A share of the variance that is taken for none.
NOTHING = 0.01


# ---- the attack --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What was found of readings on the common scale: windows [S, W, m], each from its own encoding; readings
    [S, N], from the encodings of all windows that a step is in; steps [N]: which these are."""

    windows: Tensor
    readings: Tensor
    steps: Tensor


def reconstruct(
    known: Tensor, readings: Tensor, hidden: Tensor, others: Tensor, starts: Tensor
) -> Reconstruction:
    """The readings behind the encodings others [S, W, H] of windows that begin at starts [W].

    known [G, T]: an even number of known series; readings [G, W, m], hidden [G, W, H]: their windows, which
    begin at the same steps, and the encodings of these."""
    half = len(hidden) // 2
    folds = [(hidden[:half], readings[:half]), (hidden[half:], readings[half:])]

    def wrong(strength: float) -> float:
        """On each half of the known series, of a regression fitted to the other."""
        tried = ((_regressed(x, y, seen, strength), truth) for (x, y), (seen, truth) in (folds, folds[::-1]))
        return sum(float((found - truth).square().sum()) for found, truth in tried)

    strength = min(RIDGES, key=wrong)
    found, fitted = (_regressed(hidden, readings, seen, strength) for seen in (others, hidden))
    weight = 1 / (fitted - readings).square().mean((0, 1)).clamp(min=1e-12)
    places = starts[:, None] + torch.arange(readings.shape[-1])
    steps = torch.from_numpy(np.unique(places.numpy()))
    x, y = _by_step(fitted, weight, starts, steps), known[:, steps]
    deviation = x - x.mean()
    slope = (deviation * (y - y.mean())).sum() / deviation.square().sum().clamp(min=1e-12)
    by_step = y.mean() + slope * (_by_step(found, weight, starts, steps) - x.mean())
    return Reconstruction(found, by_step, steps)


def _regressed(x: Tensor, y: Tensor, seen: Tensor, strength: float) -> Tensor:
    """What a ridge regression from x [G, W, H] to y [G, W, m] says of seen [S, W, H]: [S, W, m]."""
    x, y = x.flatten(0, 1), y.flatten(0, 1)
    middle, mean = x.mean(0), y.mean(0)
    spread = (x - middle).T @ (x - middle)
    spread.diagonal().add_(strength * spread.diagonal().mean().clamp(min=1e-12))
    matrix: Tensor = torch.linalg.solve(spread, (x - middle).T @ (y - mean))
    return mean + (seen - middle) @ matrix


def _by_step(estimates: Tensor, weight: Tensor, starts: Tensor, steps: Tensor) -> Tensor:
    """The weighted mean of all estimates [S, W, m] of each step [N]; weight [m], by the place in a window."""
    lags = estimates.shape[-1]
    place = torch.searchsorted(steps, (starts[:, None] + torch.arange(lags)).flatten())
    total = estimates.new_zeros(len(estimates), len(steps))
    total.index_add_(1, place, (estimates * weight).flatten(1))
    shares = weight.new_zeros(len(steps)).index_add_(0, place, weight.repeat(len(starts)))
    return total / shares


# ---- what the attacker has ---------------------------------------------------------------------------------


def encodings(
    weights: Weights, data: Standardised, starts: Tensor, config: CNFGNNConfig, releases: int
) -> tuple[Tensor, Tensor]:
    """The windows that begin at starts [W], as the encoder reads them, [S, W, m], and what the server gets of
    them, [S, W, H], the mean over so many releases; float64 on the CPU."""
    read, hidden = [], []
    with torch.no_grad():
        for part in parts_of(len(starts), PART):
            batch = batch_of(data, starts[part])
            read.append(batch.x[..., 0])
            hidden.append(encode(weights, batch))
    whole, wire = torch.cat(hidden, 1), wire_of(config)
    if wire is None:
        got = whole.double()
    else:
        got = torch.zeros_like(whole, dtype=torch.float64)
        for _ in range(releases):
            got += wire.decode(wire.encode(whole), whole.dtype)
        got /= releases
    return torch.cat(read, 1).double().cpu(), got.cpu()


def drawn_series(like: Standardised) -> Standardised:
    """DRAWN series on the common scale (mean 0, deviation 1 over all), read at the same times."""
    from scipy.signal import lfilter

    steps = like.value.shape[1]
    noise = generator(0, "audit/cnfgnn_inputs").standard_normal((DRAWN, steps))
    noise[:, 1:] *= (1 - PERSISTENCE**2) ** 0.5
    drawn = lfilter([1.0], [1.0, -PERSISTENCE], noise, axis=1)
    series = torch.from_numpy((drawn - drawn.mean()) / drawn.std()).to(like.value)
    return replace(like, value=series, weight=torch.ones_like(series))


def standardised(
    inputs: SensorInputs, sensors: np.ndarray, scaler: Weights, config: CNFGNNConfig, device: str
) -> Standardised:
    """The series of some sensors, ascending, as they encode them."""
    series = make_series(inputs.sensors, inputs.split, sensors.tolist(), device=device)
    return standardise(series, torch.ones(len(sensors), dtype=torch.bool), scaler, config)


# ---- the finding -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """share: of the variance of the readings that is explained, at least 0; error: the median absolute one,
    in the unit of the readings."""

    share: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.share:.1f} % (median error {self.error:.2g})"


def score(found: Tensor, truth: Tensor, there: Tensor, unit: float) -> Score:
    """Of estimates against the truth, over readings that are there (bool); unit: of the common scale."""
    wrong, x = (found - truth)[there], truth[there]
    share = 1 - float(wrong.square().sum() / (x - x.mean()).square().sum().clamp(min=1e-30))
    return Score(max(0.0, share), unit * float(wrong.abs().median()))


def run(audited: AuditedRun) -> Finding:
    """How much of the readings of other sensors the server reconstructs."""
    config, inputs, device = audited.config.training, audited.inputs, audited.config.device
    assert isinstance(config, CNFGNNConfig)
    assert isinstance(inputs, SensorInputs)
    alone = config.averages
    drawn = generator(0, "audit/cnfgnn_inputs/sensors").permutation(inputs.split.observed.nonzero()[0])
    helpers = np.sort(drawn[: 0 if alone else HELPERS])
    attacked = np.sort(drawn[len(helpers) :][:SENSORS])
    if not len(attacked):
        few = f"{len(drawn)} sensors: without the {HELPERS} that help the server there is none to attack"
        return Finding(few, "-", "not measured", None)

    weights, scaler = model_of(audited)

    def weights_of(sensors: np.ndarray) -> Weights:
        return weights if alone else {name: w[torch.from_numpy(sensors)] for name, w in weights.items()}

    data = standardised(inputs, attacked, scaler, config, device)
    starts = data.starts("train")[:WINDOWS]
    releases = 1 if config.clip is None else min(RELEASES, audited.result.rounds)
    truth, others = encodings(weights_of(attacked), data, starts, config, releases)
    helping = drawn_series(data) if alone else standardised(inputs, helpers, scaler, config, device)
    readings, hidden = encodings(weights_of(helpers), helping, starts, config, releases)
    known, starts = helping.value.double().cpu(), starts.cpu()
    found = reconstruct(known, readings, hidden, others, starts)

    unit, steps = float(scaler["std"]), found.steps
    there = torch.from_numpy(~inputs.sensors.missing[:, attacked].T)
    in_window, there = windows(there, starts, 0, config.lags), there[:, steps]
    series = data.value.double().cpu()[:, steps]
    scores = {
        "readings": score(found.readings, series, there, unit),
        "last_of_window": score(found.windows[..., -1], truth[..., -1], in_window[..., -1], unit),
        "all_of_window": score(found.windows, truth, in_window, unit),
        "guess": score(guessed(known, alone)[:, steps].expand_as(series), series, there, unit),
        "neighbour": score(neighbours(inputs, attacked, scaler)[:, steps], series, there, unit),
    }
    return finding(config, inputs.sensors, helpers, len(attacked), releases, scores)


def model_of(audited: AuditedRun) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights and the scale in model.safetensors."""
    arrays = read_tensors(audited.folder / "model.safetensors")[0]
    weights, scaler = (
        {
            name.removeprefix(prefix): torch.from_numpy(array).to(audited.config.device)
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        for prefix in ("weights.", "scaler.")
    )
    return weights, scaler


def guessed(known: Tensor, alone: bool) -> Tensor:
    """What the attacker takes readings for without encodings, [1, T]: the mean of all, or, of those who help,
    theirs at that time. known [G, T]."""
    return torch.zeros_like(known[:1]) if alone else known.mean(0, keepdim=True)


def neighbours(inputs: SensorInputs, sensors: np.ndarray, scaler: Weights) -> Tensor:
    """What the nearest other sensor of each one reads, [S, T] on the common scale; the mean where it reads
    nothing, or there is none."""
    data = inputs.sensors
    near = data.adjacency.maximum(data.adjacency.T).tolil()
    near.setdiag(0)
    near = near.tocsr()[sensors]
    nearest = np.asarray(near.argmax(1)).ravel()
    read = (data.readings[:, nearest].T - float(scaler["mean"])) / float(scaler["std"])
    unknown = data.missing[:, nearest].T | (np.diff(near.indptr) == 0)[:, None]
    return torch.from_numpy(np.where(unknown, 0.0, read))


def finding(
    config: CNFGNNConfig,
    sensors: Sensors,
    helpers: np.ndarray,
    attacked: int,
    releases: int,
    scores: dict[str, Score],
) -> Finding:
    """The scores in words."""
    who = "the server alone"
    if len(helpers):
        who = f"the server, with sensors {' and '.join(sensors.ids[k] for k in helpers)} helping it,"
    best = max(scores["readings"].share, scores["last_of_window"].share)
    leaks = best > NOTHING
    if best > 0.5:
        verdict = "leaks: encodings tell most of what readings do"
    elif leaks:
        verdict = "leaks in part"
    else:
        verdict = "this attack reconstructs nothing, which does not prove that there is nothing to find"
    if leaks and best <= scores["guess"].share:
        verdict += ", less than what those who help read themselves"
    noise, epsilon = "", None
    if config.clip is not None:
        epsilon = epsilon_of(config)
        noise = f"; the mean of {releases} noised encodings of each window is used"
        verdict += (
            f"; epsilon of one reading {epsilon:.4g} (delta {config.delta:g}), of encodings: it does not "
            "cover weights and the gradients of embeddings, which this attack does not use"
        )
    return Finding(
        result=f"{who} reconstructs of the variance of {attacked} sensors' {sensors.quantity} "
        f"{scores['readings']}; from one window alone, of its last reading {scores['last_of_window']}, "
        f"of all {config.lags} {scores['all_of_window']}{noise}",
        baseline=f"{scores['guess']} by "
        f"{'what those who help read at that time' if len(helpers) else 'the mean of all readings'}; "
        f"{scores['neighbour']} by the reading of the nearest sensor",
        verdict=verdict,
        leaks=leaks,
        value=scores["readings"].share,
        no_signal=scores["guess"].share,
        details={
            "helpers": [sensors.ids[k] for k in helpers],
            "sensors": attacked,
            "releases": releases,
            "epsilon": epsilon,
            **{name: asdict(each) for name, each in scores.items()},
        },
    )


CHECK = Check(
    name="cnfgnn_inputs",
    tests="a sensor's readings, from the encodings of its windows",
    attacker="the server: encodings of training windows, the scale, and the weights where clients share "
    "them; where not (strategies at, sl), what two sensors that help it read and send",
    run=run,
    methods=("cnfgnn",),
    transfers=("hidden",),
    tasks=(FORECASTING,),
)

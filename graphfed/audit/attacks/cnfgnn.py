"""CNFGNN: a sensor's readings, from the encodings of its windows.

An encoding has more numbers than its window has readings, and a linear map from encodings to readings (ridge
regression) recovers most of the readings. The server fits the map to pairs of windows and encodings. If
clients share weights, it knows the weights and the common scale, and encodes series that it draws itself
(autoregressive, on that scale). If every sensor has its own weights (strategies at and sl), two sensors
collude with the server and send it their pairs. The strength of the regression is chosen by cross-validation
between two halves of the pairs. A reading is in several windows; the estimates from all of them are averaged,
weighted by the accuracy of their places in a window, and scaled by one slope. Weights and slope are fitted to
the known pairs.

With known weights and no noise the server also solves the encoder's equations for the readings of a window,
by Gauss-Newton steps from the estimate of the linear map (`solve_windows`). The last readings of a window
come out to rounding. Earlier ones have less influence on an encoding, and its rounding errors hide part of
them; each is among the last ones of another window. An encoding of `hidden` numbers determines a window of
at most as many readings. A narrower one would need the encodings of several rounds, with other weights; the
attack does not repeat training for them.

Training windows of sensors that do not collude are attacked. Their encodings are computed with the model in
the run's folder; nothing is trained again. Clients send encodings in every round. Without noise the attack
uses those of one round. With noise, which is drawn again from the same distribution, it averages as many
encodings of a window as the run had rounds, at most RELEASES, all computed with the final weights. The result
is the fraction of the readings' variance that the estimates explain and their median absolute error; missing
readings do not count (docs/papers/cnfgnn.md).

Shapes: S sensors, W windows, m lags, H hidden width, N time steps that the windows cover, T time steps of the
series, G known series.
"""

from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.attacks.least_squares import gauss_newton, ridge
from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import UNPROVEN, explained, not_measured
from graphfed.data.seeding import generator
from graphfed.data.sensors.series import Sensors
from graphfed.federation.series import make_series, windows
from graphfed.files import read_tensors
from graphfed.methods.cnfgnn.config import CNFGNNConfig, epsilon_of
from graphfed.methods.cnfgnn.steps import wire_of
from graphfed.methods.common import forecasting
from graphfed.methods.common.forecasting import Batch, Standardised, Weights, batch_of, encode
from graphfed.methods.tasks import FORECASTING
from graphfed.tasks.sensors.inputs import SensorInputs

#: The largest numbers of attacked sensors, of attacked windows and of averaged encodings of a window.
SENSORS, WINDOWS, RELEASES = 20, 2016, 20
#: The sensors that collude with a server that does not know the weights; the series that a server draws that
#: knows them, and their autocorrelation from step to step.
HELPERS, DRAWN, PERSISTENCE = 2, 8, 0.97
#: Candidates for the strength of the regression, relative to the mean variance of the encodings.
RIDGES = (1e-8, 1e-6, 1e-4, 1e-2, 1e-1, 1.0, 10.0, 100.0)
#: Explained fractions of the variance up to this one do not count as a leak.
NOTHING = 0.01
#: The largest number of windows whose equations are solved, and of Gauss-Newton steps; the residual of a
#: solution, relative to the encoding, which has rounding errors; the step of differences; and the error of a
#: reading that counts as exact, on the common scale.
SOLVED, STEPS, FITS, STEP, EXACT = 400, 12, 1e-8, 1e-6, 0.01


# ---- the attack --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Readings on the common scale, as the attack estimates them.

    Attributes:
        windows: The estimate of each window from its own encoding, [S, W, m].
        readings: The estimate of each time step from all windows that it is in, [S, N].
        steps: These time steps, [N].
    """

    windows: Tensor
    readings: Tensor
    steps: Tensor


def reconstruct(
    known: Tensor, readings: Tensor, hidden: Tensor, others: Tensor, starts: Tensor
) -> Reconstruction:
    """Estimate the readings behind encodings.

    Args:
        known: The series of which the attacker has windows and encodings, [G, T]; G is even.
        readings: The windows of the known series, [G, W, m].
        hidden: The encodings of these windows, [G, W, H].
        others: The encodings of the attacked sensors, [S, W, H].
        starts: The time step at which each window begins, [W], for known and attacked series.
    """
    half = len(hidden) // 2
    folds = [(hidden[:half], readings[:half]), (hidden[half:], readings[half:])]

    def error(strength: float) -> float:
        """Return the squared error on each half of the known series, fitted to the other half."""
        tried = ((_regressed(x, y, seen, strength), truth) for (x, y), (seen, truth) in (folds, folds[::-1]))
        return sum(float((found - truth).square().sum()) for found, truth in tried)

    # On known series only: the attacked readings must not select the attack.
    strength = min(RIDGES, key=error)
    found, fitted = (_regressed(hidden, readings, seen, strength) for seen in (others, hidden))
    # Places in a window that are estimated with a smaller error count more.
    weight = 1 / (fitted - readings).square().mean((0, 1)).clamp(min=1e-12)
    places = starts[:, None] + torch.arange(readings.shape[-1])
    steps = torch.from_numpy(np.unique(places.numpy()))
    x, y = _by_step(fitted, weight, starts, steps), known[:, steps]
    deviation = x - x.mean()
    slope = (deviation * (y - y.mean())).sum() / deviation.square().sum().clamp(min=1e-12)
    by_step = y.mean() + slope * (_by_step(found, weight, starts, steps) - x.mean())
    return Reconstruction(found, by_step, steps)


def _regressed(x: Tensor, y: Tensor, seen: Tensor, strength: float) -> Tensor:
    """Predict [S, W, m] from `seen` [S, W, H] by a ridge regression from x [G, W, H] to y [G, W, m]."""
    found = ridge(x.flatten(0, 1), y.flatten(0, 1), seen.flatten(0, 1), strength)
    return found.view(*seen.shape[:2], -1)


def _by_step(estimates: Tensor, weight: Tensor, starts: Tensor, steps: Tensor) -> Tensor:
    """Average the estimates [S, W, m] of each time step in `steps` [N]; weight [m]: that of a place."""
    lags = estimates.shape[-1]
    place = torch.searchsorted(steps, (starts[:, None] + torch.arange(lags)).flatten())
    total = estimates.new_zeros(len(estimates), len(steps))
    total.index_add_(1, place, (estimates * weight).flatten(1))
    weights = weight.new_zeros(len(steps)).index_add_(0, place, weight.repeat(len(starts)))
    return total / weights


def solve_windows(weights: Weights, batch: Batch, received: Tensor, start: Tensor) -> Tensor:
    """Solve the equations of encodings [W, H] float64 for the readings of their windows, from `start` [W, m].

    `batch` has one series' windows, for their covariates; the readings in it are not used.
    """
    exact = {name: w.double().cpu() for name, w in weights.items()}
    covariates = batch.x[0, ..., 1:].double().cpu()

    def encoded(some: Tensor, x: Tensor) -> Tensor:
        inputs = torch.cat([x[..., None], covariates[some]], 2)
        with torch.no_grad():
            return encode(exact, replace(batch, x=inputs[None], products=None))[0]

    def linearise(some: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        here = encoded(some, x)
        moved = (x + STEP * unit for unit in torch.eye(x.shape[1], dtype=x.dtype))
        # By differences, because a batch has few readings and many windows.
        slopes = torch.stack([(encoded(some, each) - here) / STEP for each in moved], 2)
        return here[:, None], slopes[:, None]

    solved, _ = gauss_newton(
        linearise,
        received[:, None],
        start,
        tolerance=FITS,
        fraction=1.0,
        iterations=STEPS,
        damping=1e-2,
        decay=0.2,
    )
    return solved


# ---- what the attacker has ---------------------------------------------------------------------------------


def encodings(
    weights: Weights, data: Standardised, starts: Tensor, config: CNFGNNConfig, releases: int
) -> tuple[Tensor, Tensor]:
    """Encode the windows that begin at starts [W], as the server receives them.

    Returns the windows [S, W, m] and the mean of `releases` encodings of each, [S, W, H], in float64 on the
    CPU.
    """
    read, hidden = [], []
    with torch.no_grad():
        for part in forecasting.parts_of(len(starts), forecasting.PART):
            batch = batch_of(data, starts[part])
            read.append(batch.x[..., 0])
            hidden.append(encode(weights, batch))
    whole, wire = torch.cat(hidden, 1), wire_of(config)
    if wire is None:
        received = whole.double()
    else:
        # Noise is drawn for each release, so a mean of several has less of it.
        received = torch.zeros_like(whole, dtype=torch.float64)
        for _ in range(releases):
            received += wire.decode(wire.encode(whole), whole.dtype)
        received /= releases
    return torch.cat(read, 1).double().cpu(), received.cpu()


def drawn_series(like: Standardised) -> Standardised:
    """Draw DRAWN series on the common scale (mean 0 and standard deviation 1), at the same times."""
    from scipy.signal import lfilter

    steps = like.value.shape[1]
    noise = generator(0, "audit/cnfgnn_inputs").standard_normal((DRAWN, steps))
    # With this the series has the same variance at every step.
    noise[:, 1:] *= (1 - PERSISTENCE**2) ** 0.5
    drawn = lfilter([1.0], [1.0, -PERSISTENCE], noise, axis=1)
    # The server knows the common scale: mean 0 and standard deviation 1.
    series = torch.from_numpy((drawn - drawn.mean()) / drawn.std()).to(like.value)
    return replace(like, value=series, weight=torch.ones_like(series))


def standardised(
    inputs: SensorInputs, sensors: np.ndarray, scaler: Weights, config: CNFGNNConfig, device: str
) -> Standardised:
    """Standardise the series of some sensors, ascending, as they encode them."""
    series = make_series(inputs.sensors, inputs.split, sensors.tolist(), device=device)
    return forecasting.standardise(series, torch.ones(len(sensors), dtype=torch.bool), scaler, config)


# ---- the finding -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """How much of the readings' variance estimates explain, 0 to 1, and their median absolute error."""

    share: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.share:.1f} % (median error {self.error:.2g})"


def score(found: Tensor, truth: Tensor, there: Tensor, unit: float) -> Score:
    """Compare estimates with the truth where `there`; unit: the common scale in the unit of the readings."""
    x, estimates = truth[there], found[there]
    return Score(explained(estimates, x, x.mean()), unit * float((estimates - x).abs().median()))


def run(audited: AuditedRun) -> Finding:
    """Measure how much of sensors' readings the server reconstructs."""
    config, inputs, device = audited.config.settings, audited.inputs, audited.config.device
    assert isinstance(inputs, SensorInputs)
    shared_weights = config.schedule.averages
    # Among the sensors that training sees: only these have training windows and, with sl and at, weights.
    drawn = generator(0, "audit/cnfgnn_inputs/sensors").permutation(inputs.split.observed.nonzero()[0])
    helpers = np.sort(drawn[: 0 if shared_weights else HELPERS])
    attacked = np.sort(drawn[len(helpers) :][:SENSORS])
    if not len(attacked):
        few = f"of {len(drawn)} sensors, {HELPERS} collude with the server, and no other is left to attack"
        return not_measured(few)

    weights, scaler = model_of(audited)

    def weights_of(sensors: np.ndarray) -> Weights:
        rows = slice(None) if shared_weights else torch.from_numpy(sensors)
        return {name: w[rows] for name, w in weights.items()}

    data = standardised(inputs, attacked, scaler, config, device)
    starts = data.starts("train")[:WINDOWS]
    releases = 1 if config.encodings.clip is None else min(RELEASES, audited.result.rounds)
    truth, others = encodings(weights_of(attacked), data, starts, config, releases)
    # A server that knows the weights encodes series of its own; otherwise it has those of helpers.
    helping = drawn_series(data) if shared_weights else standardised(inputs, helpers, scaler, config, device)
    readings, hidden = encodings(weights_of(helpers), helping, starts, config, releases)
    known, starts = helping.value.double().cpu(), starts.cpu()
    found = reconstruct(known, readings, hidden, others, starts)

    unit, steps = float(scaler["std"]), found.steps
    there = torch.from_numpy(~inputs.sensors.missing[:, attacked].T)
    in_window, there = windows(there, starts, 0, config.windows.lags), there[:, steps]
    series = data.value.double().cpu()[:, steps]
    # Without encodings the guess is the mean of all readings, 0 on the common scale, or that of the colluding
    # sensors at that time.
    guess = torch.zeros_like(known[0]) if shared_weights else known.mean(0)
    scores = {
        "readings": score(found.readings, series, there, unit),
        "last_of_window": score(found.windows[..., -1], truth[..., -1], in_window[..., -1], unit),
        "all_of_window": score(found.windows, truth, in_window, unit),
        "guess": score(guess[steps].expand_as(series), series, there, unit),
        "neighbour": score(neighbours(inputs, attacked, scaler)[:, steps], series, there, unit),
    }
    solved = None
    if shared_weights and config.encodings.clip is None and config.encodings.hidden_bits == 32:
        # Rounded or noised encodings fulfil no equation, and unknown weights give none.
        starts = starts.to(data.value.device)
        solved = exact_readings(weights, data, starts, others, found.windows, truth)
    return finding(config, inputs.sensors, helpers, len(attacked), releases, scores, solved)


def exact_readings(
    weights: Weights, data: Standardised, starts: Tensor, received: Tensor, start: Tensor, truth: Tensor
) -> dict[str, float]:
    """Solve the equations of up to SOLVED windows.

    Returns the number of windows, and the fractions of their last readings and of all their readings that
    come out within EXACT.
    """
    count = max(1, SOLVED // len(received))
    batch = batch_of(data, starts[:count])
    solved = (
        solve_windows(weights, batch.of(slice(k, k + 1)), received[k, :count], start[k, :count])
        for k in range(len(received))
    )
    found = torch.stack([*solved])
    right = ((found - truth[:, :count]).abs() <= EXACT).double()
    return {
        "windows": right[..., 0].numel(),
        "last": float(right[..., -1].mean()),
        "all": float(right.mean()),
    }


def model_of(audited: AuditedRun) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Read the weights and the scale in model.safetensors."""
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


def neighbours(inputs: SensorInputs, sensors: np.ndarray, scaler: Weights) -> Tensor:
    """Return the readings of each sensor's nearest other sensor, [S, T], on the common scale.

    They are 0, the mean, if this reading is missing or the sensor has no neighbour.
    """
    data = inputs.sensors
    closeness = data.adjacency.maximum(data.adjacency.T).tolil()
    closeness.setdiag(0)
    closeness = closeness.tocsr()[sensors]
    nearest = np.asarray(closeness.argmax(1)).ravel()
    read = (data.readings[:, nearest].T - float(scaler["mean"])) / float(scaler["std"])
    unknown = data.missing[:, nearest].T | (np.diff(closeness.indptr) == 0)[:, None]
    return torch.from_numpy(np.where(unknown, 0.0, read))


def finding(
    config: CNFGNNConfig,
    sensors: Sensors,
    helpers: np.ndarray,
    attacked: int,
    releases: int,
    scores: dict[str, Score],
    solved: dict[str, float] | None,
) -> Finding:
    attacker = "the server alone"
    if len(helpers):
        attacker = f"the server, with sensors {' and '.join(sensors.ids[k] for k in helpers)} colluding,"
    best = max(scores["readings"].share, scores["last_of_window"].share)
    leaks = best > NOTHING
    equations = ""
    if solved is not None:
        equations = (
            f". By the encoder's equations of {solved['windows']} windows it computes "
            f"{100 * solved['last']:.0f} % of the last readings and {100 * solved['all']:.0f} % of all "
            f"within {EXACT:g} standard deviations"
        )
    if solved is not None and solved["last"] > 0.5:
        leaks = True
        verdict = "leaks exactly: the server solves the encoder's equations for the readings"
    elif best > 0.5:
        verdict = "leaks: the server reconstructs most of the readings' variance from encodings"
    elif leaks:
        verdict = "leaks in part: the server reconstructs some of the readings' variance from encodings"
    else:
        verdict = UNPROVEN
    if leaks and best <= scores["guess"].share:
        verdict += ", but not more than it learns from the colluding sensors' own readings"
    noise, epsilon = "", None
    if config.encodings.clip is not None:
        epsilon = epsilon_of(config)
        noise = f"; it averages {releases} noised encodings of each window"
        verdict += (
            f"; epsilon of one reading {epsilon:.4g} (delta {config.encodings.delta:g}), for encodings: it "
            "does not cover weights and the gradients of embeddings, which this attack does not use"
        )
    guess = "the mean reading of the colluding sensors at that time" if len(helpers) else "the mean reading"
    return Finding(
        result=f"{attacker} explains {scores['readings']} of the variance of {attacked} sensors' "
        f"{sensors.quantity}; from a single window it explains {scores['last_of_window']} for its last "
        f"reading and {scores['all_of_window']} for all {config.windows.lags}{noise}{equations}",
        baseline=f"{scores['guess']} by {guess}; {scores['neighbour']} by the reading of the nearest sensor",
        verdict=verdict,
        leaks=leaks,
        value=scores["readings"].share,
        no_signal=scores["guess"].share,
        details={
            "helpers": [sensors.ids[k] for k in helpers],
            "sensors": attacked,
            "releases": releases,
            "epsilon": epsilon,
            **({} if solved is None else {"solved": solved}),
            **{name: asdict(each) for name, each in scores.items()},
        },
    )


CHECK = Check(
    name="cnfgnn_inputs",
    tests="a sensor's readings, from the encodings of its windows",
    attacker="the server: the encodings of training windows, the scale, and the weights if clients share "
    "them; if they do not (strategies at and sl), the readings and encodings of two colluding sensors",
    run=run,
    methods=("cnfgnn",),
    transfers=("hidden",),
    tasks=(FORECASTING,),
)

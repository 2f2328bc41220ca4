"""`roads`: generated speeds on a road network with congestion waves, every 5 minutes.

The roads are one-way roads on a grid that are joined where they cross. Sensors are about 0.8 km apart along
each road, and each has a speed at free flow. Congestion starts at a bottleneck and moves upstream (against
the traffic) at 18 km/h, a speed that is observed on motorways, and becomes weaker on its way. Bottlenecks
cause congestion at the morning and the evening peak of working days, at a slightly different time and with a
different strength each day. Incidents happen at any place on any day. Noise is correlated in time and
stronger in congestion. Readings are missing (0) singly and in outages of hours. Shapes: T steps, S sensors.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.special import expit

from graphfed.data.seeding import generator
from graphfed.data.sensors.kernel import gaussian_kernel
from graphfed.data.sensors.series import Sensors
from graphfed.errors import InputError

STEP_MINUTES = 5
STEPS_PER_DAY = 24 * 60 // STEP_MINUTES
START = "2024-01-01T00:00:00"  # a Monday
WORKING_DAYS = 5
SPACING_KM = 0.8
GRID_KM = 3.0  # between parallel roads
WAVE_KM_PER_MINUTE = 18.0 / 60.0
LISTED_KM = 8.0  # pairs of sensors that are farther apart by road have no listed distance
STRETCH_KM = 10.0
PEAKS_MINUTE = (7 * 60 + 30, 17 * 60)
NOISE_PERSISTENCE = 0.85
# Larger numbers are likely typing errors: at either limit, drawing the data takes a few GB.
MAX_SENSORS = 5000
MAX_READINGS = 5 * 10**7


@dataclass(frozen=True)
class _Roads:
    """Each sensor's road [S], its distance from the road's start in km [S], and its position [S, 2]."""

    road: np.ndarray
    along: np.ndarray
    position: np.ndarray
    adjacency: sp.csr_matrix


@dataclass(frozen=True)
class _Jam:
    """One congestion, from `onset` for `duration` minutes, that starts at a kilometre of its road.

    The fraction `strength` of the speed is lost at its start, and half of it where it ends, `reach` km
    upstream.
    """

    kilometre: float
    onset: float
    duration: float
    strength: float
    reach: float


def make_roads(*, sensors: int = 60, weeks: int = 4, seed: int = 0) -> Sensors:
    """Generate speeds in miles per hour at the sensors of a road network. Equal options give equal data.

    Sensors are numbered road by road, in the direction of travel, and positions are in kilometres. A week has
    2016 steps.
    """
    for option, value in {"sensors": sensors, "weeks": weeks}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"roads: {option}={value!r} must be a whole number of at least 1")
    if sensors > MAX_SENSORS:
        raise InputError(f"roads: sensors={sensors} is too many; use at most {MAX_SENSORS}")
    if 7 * weeks * STEPS_PER_DAY * sensors > MAX_READINGS:
        raise InputError(
            f"roads: weeks={weeks} with sensors={sensors} gives more than {MAX_READINGS} readings; use at "
            f"most {MAX_READINGS // (7 * STEPS_PER_DAY * sensors)} weeks"
        )
    rng = generator(seed, "roads")
    roads = _lay_out(rng, sensors)
    days = 7 * weeks
    congestion = _congestion(rng, roads, days)
    speed = _free_flow(rng, roads, days) * (1.0 - congestion) + _noise(rng, congestion)
    # Real detectors report tenths. Rounding also makes the data independent of the last bits of a machine's
    # exponential function.
    speed = np.rint(np.clip(speed, 3.0, 80.0) * 10.0) / 10.0
    missing = _missing(rng, *speed.shape)
    speed[missing] = 0.0
    digits = len(str(sensors - 1))
    return Sensors(
        name="roads",
        readings=speed.astype(np.float32),
        missing=missing,
        adjacency=roads.adjacency,
        position=roads.position,
        ids=tuple(str(sensor).zfill(digits) for sensor in range(sensors)),
        start=START,
        step_minutes=STEP_MINUTES,
        geographic=False,
        quantity="speed (miles per hour)",
    )


def _lay_out(rng: np.random.Generator, sensors: int) -> _Roads:
    """Place roads on a grid around (0, 0), in turn eastbound, northbound, westbound and southbound."""
    # The number of roads grows with sqrt(S), so the network is about as wide as it is long.
    count = max(1, round(np.sqrt(sensors) / 2))
    road = np.arange(sensors) * count // sensors
    size = np.bincount(road, minlength=count)
    gap = SPACING_KM * rng.uniform(0.7, 1.3, size=sensors)
    total = np.cumsum(gap)
    first = np.cumsum(size) - size
    along = total - np.repeat(total[first], size)
    length = along[first + size - 1]

    number = np.arange(count)
    northbound = number % 2 == 1
    sign = np.where(number % 4 < 2, 1.0, -1.0)
    parallel = number // 2
    offset = (
        parallel - np.where(northbound, parallel[northbound].max(initial=0), parallel.max()) / 2
    ) * GRID_KM
    forward = sign[road] * (along - length[road] / 2)
    position = np.where(
        northbound[road][:, None],
        np.stack((offset[road], forward), axis=1),
        np.stack((forward, offset[road]), axis=1),
    )
    distance = _distances(
        road=road, along=along, length=length, northbound=northbound, sign=sign, offset=offset
    )
    listed = np.isfinite(distance) & (distance <= LISTED_KM)
    sender, receiver = np.nonzero(listed)
    adjacency = gaussian_kernel(sender, receiver, distance[listed], sensors)
    return _Roads(road, along, position, adjacency)


def _distances(
    *,
    road: np.ndarray,
    along: np.ndarray,
    length: np.ndarray,
    northbound: np.ndarray,
    sign: np.ndarray,
    offset: np.ndarray,
) -> np.ndarray:
    """Compute the driving distances in km between all sensors, [S, S]; infinite if there is no route."""
    from scipy.sparse.csgraph import dijkstra

    following = np.flatnonzero(road[1:] == road[:-1])
    start, end, km = [following], [following + 1], [along[following + 1] - along[following]]
    # A road crosses each road of the other direction at most once. A route leaves the road at the last sensor
    # before the crossing and enters the other road at the first sensor after it.
    for a in range(len(length)):
        for b in np.flatnonzero(northbound != northbound[a]):
            at_a = sign[a] * offset[b] + length[a] / 2  # the crossing, in kilometres along a and along b
            at_b = sign[b] * offset[a] + length[b] / 2
            if 0 <= at_a <= length[a] and 0 <= at_b <= length[b]:
                before = np.flatnonzero((road == a) & (along <= at_a))[-1:]
                after = np.flatnonzero((road == b) & (along >= at_b))[:1]
                start.append(before)
                end.append(after)
                km.append(at_a - along[before] + along[after] - at_b)
    n = len(road)
    network = sp.csr_matrix((np.concatenate(km), (np.concatenate(start), np.concatenate(end))), shape=(n, n))
    distance: np.ndarray = dijkstra(network, directed=True)
    return distance


def _free_flow(rng: np.random.Generator, roads: _Roads, days: int) -> np.ndarray:
    """Draw the speeds without congestion in miles per hour, [T, S]; they are a little lower by day."""
    of_road = rng.uniform(62.0, 69.0, size=roads.road.max() + 1)
    flow = of_road[roads.road] + rng.normal(0.0, 1.5, len(roads.road))
    hour = np.arange(days * STEPS_PER_DAY) % STEPS_PER_DAY * STEP_MINUTES / 60.0
    daylight = np.clip(np.sin((hour - 6.0) / 14.0 * np.pi), 0.0, None)
    speed: np.ndarray = flow[None, :] - 2.5 * daylight[:, None]
    return speed


def _congestion(rng: np.random.Generator, roads: _Roads, days: int) -> np.ndarray:
    """Draw the fraction of the free-flow speed that is lost, [T, S] in [0, 1)."""
    kept = np.ones((days * STEPS_PER_DAY, len(roads.road)))
    working = np.flatnonzero(np.arange(days) % 7 < WORKING_DAYS)
    for r in range(roads.road.max() + 1):
        on_road = np.flatnonzero(roads.road == r)
        along = roads.along[on_road]
        jams = []
        # Every road has congestion at both peaks, stronger at one of them, and one bottleneck per 10 km.
        stretches = max(1, round(along[-1] / STRETCH_KM))
        bottlenecks = (np.arange(stretches) + rng.uniform(0.55, 0.95, stretches)) * along[-1] / stretches
        worse = rng.integers(2)
        for peak, minute in enumerate(PEAKS_MINUTE):
            strength = 0.7 if peak == worse else 0.4
            for day, bottleneck in itertools.product(working, bottlenecks):
                jams.append(
                    _Jam(
                        kilometre=bottleneck,
                        onset=day * 24 * 60 + minute - 45 + rng.normal(0.0, 12.0),
                        duration=rng.uniform(80.0, 150.0),
                        strength=float(np.clip(strength + rng.normal(0.0, 0.1), 0.05, 0.85)),
                        reach=rng.uniform(4.0, 8.0),
                    )
                )
        for _ in range(rng.poisson(days / 3)):  # incidents
            jams.append(
                _Jam(
                    kilometre=rng.uniform(0.0, along[-1]),
                    onset=rng.uniform(0.0, days * 24 * 60),
                    duration=rng.uniform(20.0, 60.0),
                    strength=rng.uniform(0.3, 0.8),
                    reach=rng.uniform(1.5, 4.0),
                )
            )
        for jam in jams:
            _slow_down(kept, on_road, along, jam)
    return 1.0 - kept


def _slow_down(kept: np.ndarray, on_road: np.ndarray, along: np.ndarray, jam: _Jam) -> None:
    """Multiply `kept` [T, S] at the road's sensors `on_road` by the fraction of the speed that remains."""
    upstream = jam.kilometre - along
    touched = (upstream >= 0) & (upstream <= jam.reach)
    arrival = jam.onset + upstream[touched] / WAVE_KM_PER_MINUTE
    # One hour more on both sides, because the rise and fall are smooth.
    first = max(int((jam.onset - 60) / STEP_MINUTES), 0)
    last = int((jam.onset + jam.duration + jam.reach / WAVE_KM_PER_MINUTE + 60) / STEP_MINUTES) + 1
    minute = np.arange(first, min(last, len(kept)))[:, None] * STEP_MINUTES
    # The speed drops faster than it recovers.
    drop = expit((minute - arrival) / 5.0)
    recovery = expit((minute - arrival - jam.duration) / 10.0)
    depth = jam.strength * (1.0 - 0.5 * upstream[touched] / jam.reach) * drop * (1.0 - recovery)
    kept[first:last, on_road[touched]] *= 1.0 - depth


def _noise(rng: np.random.Generator, congestion: np.ndarray) -> np.ndarray:
    """Draw autoregressive noise in miles per hour, [T, S].

    Its standard deviation is 1.5 at free flow and up to 6.5 in congestion.
    """
    from scipy.signal import lfilter

    # This variance of the innovations makes the stationary variance of the noise 1.
    white = rng.normal(0.0, np.sqrt(1.0 - NOISE_PERSISTENCE**2), size=congestion.shape)
    correlated: np.ndarray = lfilter([1.0], [1.0, -NOISE_PERSISTENCE], white, axis=0)
    return correlated * (1.5 + 5.0 * congestion)


def _missing(rng: np.random.Generator, steps: int, sensors: int) -> np.ndarray:
    """Draw missing readings, bool [T, S].

    Half a percent of the readings are missing singly. On average every sensor also has one outage in two
    weeks, with a mean duration of two hours.
    """
    missing = rng.random((steps, sensors)) < 0.005
    starts = np.argwhere(rng.random((steps, sensors)) < 0.5 / (7 * STEPS_PER_DAY))
    duration = rng.geometric(1.0 / 24.0, size=len(starts))
    # +1 at the start of an outage and -1 at its end, so the cumulative sum is the number of current outages.
    change = np.zeros((steps + 1, sensors), dtype=np.int64)
    np.add.at(change, (starts[:, 0], starts[:, 1]), 1)
    np.add.at(change, (np.minimum(starts[:, 0] + duration, steps), starts[:, 1]), -1)
    return missing | (np.cumsum(change[:-1], axis=0) > 0)

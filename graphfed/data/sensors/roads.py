"""`roads`: a generated road network with congestion waves, speeds every 5 minutes.

One-way roads on a grid, joined where they cross; sensors about 0.8 km apart along each road. Every sensor has
a speed at free flow. Congestion starts at a bottleneck and moves upstream (against the traffic) at 18 km/h,
the speed that is observed on motorways, growing weaker on its way. Bottlenecks break down at the morning or
the evening peak of working days, at a slightly different time and with a different force each day; incidents
happen anywhere, any day. Noise is correlated in time and stronger in congestion. Missing readings are 0:
single ones, and outages of hours.
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

__all__ = ["make_roads"]

STEP_MINUTES = 5
STEPS_PER_DAY = 24 * 60 // STEP_MINUTES
START = "2024-01-01T00:00:00"  # a Monday
WORKING_DAYS = 5
SPACING_KM = 0.8
GRID_KM = 3.0  # between parallel roads
WAVE_KM_PER_MINUTE = 18.0 / 60.0
LISTED_KM = 8.0  # pairs farther apart by road have no listed distance
STRETCH_KM = 10.0
PEAKS_MINUTE = (7 * 60 + 30, 17 * 60)
NOISE_PERSISTENCE = 0.85
# What is larger is a slip of the keyboard: at either limit a few GB are in use while the data are drawn.
MAX_SENSORS = 5000
MAX_READINGS = 5 * 10**7


@dataclass(frozen=True)
class _Roads:
    """road [S]: each sensor's road; along [S]: kilometres from the road's start; position [S, 2]: km."""

    road: np.ndarray
    along: np.ndarray
    position: np.ndarray
    adjacency: sp.csr_matrix


@dataclass(frozen=True)
class _Jam:
    """Congestion that starts at kilometre `at` of its road; onset, lasting: minutes; reach: km upstream.

    force: the share of the speed that is lost at the bottleneck; at the end of its reach it is half of that.
    """

    at: float
    onset: float
    lasting: float
    force: float
    reach: float


def make_roads(*, sensors: int = 60, weeks: int = 4, seed: int = 0) -> Sensors:
    """Speeds of `sensors` sensors over `weeks` weeks: T = weeks * 2016 steps.

    Sensors are numbered road by road, in the direction of travel. position is in kilometres. The same options
    give the same data. Raises InputError when an option is not a whole number of at least 1, or above 5000
    sensors or 5 * 10^7 readings.
    """
    for option, value in {"sensors": sensors, "weeks": weeks}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"roads: {option}={value!r} must be a whole number of at least 1")
    if sensors > MAX_SENSORS:
        raise InputError(f"roads: sensors={sensors} is too many; use at most {MAX_SENSORS}")
    if 7 * weeks * STEPS_PER_DAY * sensors > MAX_READINGS:
        raise InputError(
            f"roads: weeks={weeks} of sensors={sensors} are more than {MAX_READINGS} readings; use at most "
            f"{MAX_READINGS // (7 * STEPS_PER_DAY * sensors)} weeks"
        )
    rng = generator(seed, "roads")
    roads = _lay_out(rng, sensors)
    days = 7 * weeks
    congestion = _congestion(rng, roads, days)
    speed = _free_flow(rng, roads, days) * (1.0 - congestion) + _noise(rng, congestion)
    # Detectors report tenths; so the data do not depend on the last bits of a machine's exponential.
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
    """Roads in turn eastbound, northbound, westbound, southbound, on a grid around (0, 0)."""
    # Grows so that the network is about as wide as it is long, with 60 sensors and with 1000.
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
    """Kilometres to drive from each sensor to each other, [S, S], infinite where there is no way."""
    from scipy.sparse.csgraph import dijkstra

    following = np.flatnonzero(road[1:] == road[:-1])
    start, end, km = [following], [following + 1], [along[following + 1] - along[following]]
    # A road crosses each road of the other direction once; one leaves it by the last sensor before the
    # crossing and enters the other by the first sensor after it.
    for a in range(len(length)):
        for b in np.flatnonzero(northbound != northbound[a]):
            at_a = sign[a] * offset[b] + length[a] / 2  # kilometres along a, and along b, of the crossing
            at_b = sign[b] * offset[a] + length[b] / 2
            if 0 <= at_a <= length[a] and 0 <= at_b <= length[b]:
                before = np.flatnonzero((road == a) & (along <= at_a))[-1:]
                after = np.flatnonzero((road == b) & (along >= at_b))[:1]
                start.append(before)
                end.append(after)
                km.append(at_a - along[before] + along[after] - at_b)
    n = len(road)
    ways = sp.csr_matrix((np.concatenate(km), (np.concatenate(start), np.concatenate(end))), shape=(n, n))
    distance: np.ndarray = dijkstra(ways, directed=True)
    return distance


def _free_flow(rng: np.random.Generator, roads: _Roads, days: int) -> np.ndarray:
    """Miles per hour without congestion, [T, S]: by road and sensor, a little slower by day."""
    of_road = rng.uniform(62.0, 69.0, size=roads.road.max() + 1)
    flow = of_road[roads.road] + rng.normal(0.0, 1.5, len(roads.road))
    hour = np.arange(days * STEPS_PER_DAY) % STEPS_PER_DAY * STEP_MINUTES / 60.0
    daylight = np.clip(np.sin((hour - 6.0) / 14.0 * np.pi), 0.0, None)
    speed: np.ndarray = flow[None, :] - 2.5 * daylight[:, None]
    return speed


def _congestion(rng: np.random.Generator, roads: _Roads, days: int) -> np.ndarray:
    """The share of free-flow speed that is lost, [T, S] in [0, 1)."""
    kept = np.ones((days * STEPS_PER_DAY, len(roads.road)))
    working = np.flatnonzero(np.arange(days) % 7 < WORKING_DAYS)
    for r in range(roads.road.max() + 1):
        on_road = np.flatnonzero(roads.road == r)
        along = roads.along[on_road]
        jams = []
        # Every road has its rush at both peaks, one of them the worse, with a bottleneck in each stretch of
        # 10 km.
        stretches = max(1, round(along[-1] / STRETCH_KM))
        bottlenecks = (np.arange(stretches) + rng.uniform(0.55, 0.95, stretches)) * along[-1] / stretches
        worse = rng.integers(2)
        for peak, minute in enumerate(PEAKS_MINUTE):
            strength = 0.7 if peak == worse else 0.4
            for day, bottleneck in itertools.product(working, bottlenecks):
                jams.append(
                    _Jam(
                        at=bottleneck,
                        onset=day * 24 * 60 + minute - 45 + rng.normal(0.0, 12.0),
                        lasting=rng.uniform(80.0, 150.0),
                        force=float(np.clip(strength + rng.normal(0.0, 0.1), 0.05, 0.85)),
                        reach=rng.uniform(4.0, 8.0),
                    )
                )
        for _ in range(rng.poisson(days / 3)):  # incidents
            jams.append(
                _Jam(
                    at=rng.uniform(0.0, along[-1]),
                    onset=rng.uniform(0.0, days * 24 * 60),
                    lasting=rng.uniform(20.0, 60.0),
                    force=rng.uniform(0.3, 0.8),
                    reach=rng.uniform(1.5, 4.0),
                )
            )
        for jam in jams:
            _slow_down(kept, on_road, along, jam)
    return 1.0 - kept


def _slow_down(kept: np.ndarray, on_road: np.ndarray, along: np.ndarray, jam: _Jam) -> None:
    """Multiply `kept` [T, S], at the sensors `on_road` of its road, by what the jam leaves of the speed."""
    upstream = jam.at - along
    touched = (upstream >= 0) & (upstream <= jam.reach)
    arrival = jam.onset + upstream[touched] / WAVE_KM_PER_MINUTE
    # An hour more on both sides: by then the smooth rise and fall have died away.
    first = max(int((jam.onset - 60) / STEP_MINUTES), 0)
    last = int((jam.onset + jam.lasting + jam.reach / WAVE_KM_PER_MINUTE + 60) / STEP_MINUTES) + 1
    minute = np.arange(first, min(last, len(kept)))[:, None] * STEP_MINUTES
    # Breakdown is quicker than recovery.
    begun = expit((minute - arrival) / 5.0)
    ended = expit((minute - arrival - jam.lasting) / 10.0)
    depth = jam.force * (1.0 - 0.5 * upstream[touched] / jam.reach) * begun * (1.0 - ended)
    kept[first:last, on_road[touched]] *= 1.0 - depth


def _noise(rng: np.random.Generator, congestion: np.ndarray) -> np.ndarray:
    """Miles per hour, [T, S]: autoregressive, standard deviation 1.5 at free flow and up to 6 in jams."""
    from scipy.signal import lfilter

    white = rng.normal(0.0, np.sqrt(1.0 - NOISE_PERSISTENCE**2), size=congestion.shape)
    correlated: np.ndarray = lfilter([1.0], [1.0, -NOISE_PERSISTENCE], white, axis=0)
    return correlated * (1.5 + 5.0 * congestion)


def _missing(rng: np.random.Generator, steps: int, sensors: int) -> np.ndarray:
    """bool [T, S]: half a percent single readings, and one outage of two hours a sensor and fortnight."""
    missing = rng.random((steps, sensors)) < 0.005
    starts = np.argwhere(rng.random((steps, sensors)) < 0.5 / (7 * STEPS_PER_DAY))
    lasting = rng.geometric(1.0 / 24.0, size=len(starts))
    # +1 where an outage starts and -1 where it ends: the running sum counts the outages under way.
    change = np.zeros((steps + 1, sensors), dtype=np.int64)
    np.add.at(change, (starts[:, 0], starts[:, 1]), 1)
    np.add.at(change, (np.minimum(starts[:, 0] + lasting, steps), starts[:, 1]), -1)
    return missing | (np.cumsum(change[:-1], axis=0) > 0)

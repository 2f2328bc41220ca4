"""The container Sensors: readings of sensors, and the graph between the sensors.

Shapes: T time steps, S sensors.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from graphfed.data.content import content_hash
from graphfed.errors import InputError, shown


@dataclass(frozen=True, eq=False)
class Sensors:
    """Readings of sensors at equal steps of time, and the directed graph between the sensors.

    The constructor checks shapes, types and values and raises InputError. The arrays are not copied: treat
    them as read-only.

    Attributes:
        readings: The readings, [T, S] float32, finite; 0 if `missing`, [T, S] bool.
        adjacency: The weights of edges, [S, S] float32 csr. The row of an edge is the sensor at which it
            starts (the sender), its column the sensor at which it ends (the receiver). Weights are above 0,
            and the diagonal is 1.
        position: The positions of the sensors, [S, 2] float64, or None: (x, y) in kilometres, or (latitude,
            longitude) in degrees if `geographic`.
        start: The ISO time of the first reading, without a time zone.
        quantity: The measured quantity and its unit, for axes of plots.
    """

    name: str
    readings: np.ndarray
    missing: np.ndarray
    adjacency: sp.csr_matrix
    position: np.ndarray | None
    ids: tuple[str, ...]
    start: str
    step_minutes: int
    geographic: bool
    quantity: str
    note: str = ""

    def __post_init__(self) -> None:
        self._check_shapes()
        if not np.isfinite(self.readings).all():
            step, sensor = np.argwhere(~np.isfinite(self.readings))[0]
            raise self._refused(
                f"the reading of sensor {shown(self.ids[sensor])} at step {step} is "
                f"{self.readings[step, sensor]}; mark it in `missing` and set it to 0"
            )
        if self.position is not None and not np.isfinite(self.position).all():
            sensor = np.flatnonzero(~np.isfinite(self.position).all(1))[0]
            raise self._refused(f"the position of sensor {shown(self.ids[sensor])} is not finite")
        weights = self.adjacency.data
        if not (np.isfinite(weights) & (weights > 0)).all() or not (self.adjacency.diagonal() == 1).all():
            raise self._refused("adjacency must hold finite weights above 0, and 1 on the diagonal")
        try:
            zone = datetime.fromisoformat(self.start).tzinfo
        except (TypeError, ValueError):
            raise self._refused(
                f"start={shown(self.start)} is no ISO time, as in '2024-01-01T00:00:00'"
            ) from None
        # A time zone would be lost in the windows; readers of files convert such times to UTC.
        if zone is not None:
            raise self._refused(f"start={shown(self.start)} names a time zone; remove it")
        if (
            isinstance(self.step_minutes, bool)
            or not isinstance(self.step_minutes, int)
            or self.step_minutes < 1
        ):
            raise self._refused(f"step_minutes={shown(self.step_minutes)} must be whole minutes, at least 1")

    def _check_shapes(self) -> None:
        if self.readings.ndim != 2 or self.readings.dtype != np.float32 or 0 in self.readings.shape:
            raise self._refused(
                f"readings have dtype {self.readings.dtype} and shape {self.readings.shape}; expected "
                "float32 [time steps, sensors] with at least one step and one sensor"
            )
        size = self.readings.shape[1]
        if self.missing.shape != self.readings.shape or self.missing.dtype != bool:
            raise self._refused(
                f"missing has dtype {self.missing.dtype} and shape {self.missing.shape}; expected bool "
                f"{self.readings.shape}, like the readings"
            )
        if len(self.ids) != size or len(set(self.ids)) != size:
            raise self._refused(f"{len(self.ids)} ids for {size} sensors; give each sensor an id of its own")
        if not isinstance(self.adjacency, sp.csr_matrix) or self.adjacency.shape != (size, size):
            raise self._refused(
                f"adjacency must be a csr_matrix of shape {(size, size)}, with one row and column per sensor"
            )
        if self.position is not None and self.position.shape != (size, 2):
            raise self._refused(
                f"position has shape {self.position.shape}; expected {(size, 2)}, two coordinates per sensor"
            )

    def _refused(self, why: str) -> InputError:
        return InputError(f"sensors {self.name!r}: {why}")

    @property
    def num_sensors(self) -> int:
        """The number of sensors, S."""
        return int(self.readings.shape[1])

    @property
    def num_steps(self) -> int:
        """The number of time steps, T."""
        return int(self.readings.shape[0])

    @cached_property
    def hash(self) -> str:
        """The SHA-256 hash (hexadecimal) of all attributes except ids, quantity, name and note."""
        arrays = {
            "readings": self.readings,
            "missing": self.missing,
            # scipy chooses the index type by the size of the matrix, and the hash must not depend on it.
            "adjacency_indptr": self.adjacency.indptr.astype(np.int64),
            "adjacency_indices": self.adjacency.indices.astype(np.int64),
            "adjacency_data": self.adjacency.data,
        }
        if self.position is not None:
            arrays["position"] = self.position
        return content_hash(arrays, f"{self.start} {self.step_minutes} {self.geographic}")

"""Bring every feature to one scale, agreed between the clients without sending a value.

A feature's unit should not matter: an amount in cents and a year must count alike. So every feature f becomes

    asinh((x_f - center_f) / scale_f) / asinh(1)

which is linear near the centre and logarithmic far from it, so that heavy tails do no harm. A feature that is
zero at more than nine nodes in ten keeps its zeros (center_f = 0) and stays sparse; its scale is the typical
magnitude of its other values, so that binary features stay exactly as they are. For every other feature the
centre is its mean, and the scale its typical distance from the mean.

The clients agree on both by adding up whole numbers, in a few passes:

    magnitudes   how many nodes have a value other than the centre, and the sum of the exponents of the
                 distances, floor(log2 |x - center|); the scale is two to the power of their mean
    positions    the sum of the distances from the centre, each rounded to quarters of the scale; the mean
                 of the positions moves the centre

until the scale no longer halves. Sums of whole numbers are exact, so the agreement does not depend on how
nodes are assigned to clients: central training has the same features. A client's part shows its nodes'
orders of magnitude, and positions to a quarter of what is typical for all clients, summed over its nodes;
with aggregation=secure the server learns the sums over all clients only. A method that sends nothing
(central, isolated) scales every client by its own data.

Reference: this scaling is graphfed's own; asinh as a transformation of heavy-tailed variables is in
Burbidge, Magee and Robb, "Alternative transformations to handle extreme values of the dependent variable",
JASA 1988."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import OWNER_UNITS, Cohort
from graphfed.federation.functions import sum_over_clients
from graphfed.federation.secure.aggregation import SumForm, messages, protected_sum
from graphfed.federation.series import SensorData, TaskData
from graphfed.federation.transfer import describe_value
from graphfed.methods.base import Method, Task
from graphfed.methods.config import CommonSettings, GraphSettings, sum_protection
from graphfed.nn.sparse import SparseMatrix

__all__ = ["ARRAYS", "MESSAGES", "Scaling", "apply_scaling", "scale_features", "scaling_from"]

#: Positions are counted in this part of the scale.
GRID = 4
#: A value further from the centre than so many scales counts as so far, so that outliers do not move the
#: centre.
REACH = 8
#: A feature with a value other than zero at fewer than one node in so many keeps its zeros.
SPARSE = 10
#: The orders of magnitude of float64 numbers, denormal ones among them, are not larger.
LARGEST_EXPONENT = 1100
#: A column of float32 settles long before.
MAX_PASSES = 40

Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Scaling:
    """What the features are scaled by.

    center, scale: [G, F] in the dtype of the features, one row for all clients or one for every client.
    as_dense: whether the scaled features are stored densely, because few zeros are left."""

    center: Tensor
    scale: Tensor
    as_dense: bool


@dataclass(frozen=True)
class Columns:
    """The columns of a cohort that are not sparse, of its owned nodes.

    x [n, D]; weight [n] int64: `OWNER_UNITS` shared among a node's owners; client [n]."""

    x: Tensor
    weight: Tensor
    client: Tensor


# ---- functions run at the clients --------------------------------------------------------------------------


def count_magnitudes(cohort: Cohort) -> Sums:
    """Count every client's values other than zero, "count" [K, F], the exponents of their magnitudes,
    "exponent" [K, F], and its owned nodes, "rows" [K, 1]; int64, in OWNER_UNITS."""
    k, width = cohort.num_clients, cohort.num_features
    weight = torch.where(cohort.owned, OWNER_UNITS // cohort.owners.clamp(min=1), 0)
    if isinstance(cohort.x, SparseMatrix):
        row, column, values = cohort.x.row, cohort.x.indices.long(), cohort.x.values
    else:
        assert cohort.x is not None
        row, column = cohort.x.nonzero(as_tuple=True)
        values = cohort.x[row, column]
    cell = cohort.client[row] * width + column
    found, exponent = _exponents(values)
    sums = {
        "count": torch.zeros(k * width, dtype=torch.int64, device=cell.device).index_add_(
            0, cell, weight[row] * found
        ),
        "exponent": torch.zeros(k * width, dtype=torch.int64, device=cell.device).index_add_(
            0, cell, weight[row] * exponent
        ),
    }
    rows = torch.zeros(k, dtype=torch.int64, device=cell.device).index_add_(0, cohort.client, weight)
    return {name: x.view(k, width) for name, x in sums.items()} | {"rows": rows[:, None]}


def take_columns(cohort: Cohort, columns: Tensor) -> Columns:
    """Take the given columns [D] int64 of the owned nodes."""
    rows = cohort.rows("all")
    weight = OWNER_UNITS // cohort.owners[rows].clamp(min=1)
    return Columns(_dense_columns(cohort.x, columns)[rows], weight, cohort.client[rows])


def count_positions(columns: Columns, num_clients: int, center: Tensor, scale: Tensor) -> Sums:
    """Sum every client's positions, in quarters of the scale, "position" [K, D] int64.

    Args:
        center, scale: [G, D], one row for all clients or one for each."""
    position = (columns.x - _of_row(center, columns.client)) / _of_row(scale, columns.client) * GRID
    position = position.round().clamp(-REACH * GRID, REACH * GRID).long()
    return {"position": _sum_by_client(position, columns, num_clients)}


def count_distances(columns: Columns, num_clients: int, center: Tensor) -> Sums:
    """Count every client's values other than the centre and the exponents of their distances, "count" and
    "exponent" [K, D] int64."""
    found, exponent = _exponents(columns.x - _of_row(center, columns.client))
    return {
        "count": _sum_by_client(found, columns, num_clients),
        "exponent": _sum_by_client(exponent, columns, num_clients),
    }


def as_shares(sums: Sums) -> Sums:
    """Express sums in nodes, float64, for a secure sum."""
    return {name: x.double() / OWNER_UNITS for name, x in sums.items()}


def apply_scaling(cohort: Cohort, scaling: Scaling) -> Cohort:
    """Return the cohort with scaled features."""
    x, center, scale = cohort.x, scaling.center, scaling.scale
    if x is None:
        return cohort
    if not isinstance(x, SparseMatrix):
        return replace(cohort, x=_scaled(x, _of_row(center, cohort.client), _of_row(scale, cohort.client)))
    if scaling.as_dense:
        return apply_scaling(replace(cohort, x=x.to_dense()), scaling)
    # Zeros stay where the centre is zero for every client.
    moved = (center != 0).any(0)
    group = torch.zeros_like(cohort.client) if len(center) == 1 else cohort.client
    column = x.indices.long()
    if not bool(moved.any()):
        of_entry = group[x.row], column
        return replace(cohort, x=x.with_values(_scaled(x.values, center[of_entry], scale[of_entry])))
    kept = ~moved[column]
    row, column, columns = x.row[kept], column[kept], moved.nonzero()[:, 0]
    filled = _scaled(
        _dense_columns(x, columns),
        _of_row(center[:, columns], cohort.client),
        _of_row(scale[:, columns], cohort.client),
    )
    every_row = torch.arange(x.shape[0], device=row.device).repeat_interleave(len(columns))
    matrix = SparseMatrix.from_coo(
        torch.cat([row, every_row]),
        torch.cat([column, columns.repeat(x.shape[0])]),
        torch.cat([_scaled(x.values[kept], *(0, scale[group[row], column])), filled.flatten()]),
        x.shape,
    )
    return replace(cohort, x=matrix)


def scale_alone(cohort: Cohort) -> tuple[Cohort, Scaling]:
    """Scale every client's features by its own data; nothing is sent."""
    k, dtype = cohort.num_clients, str(_dtype(cohort.x))
    agreement = begin(count_magnitudes(cohort))
    columns = open_columns(agreement)
    if len(columns):
        taken = take_columns(cohort, columns)
        while bool(agreement["open"].any()):
            units = units_of(agreement, columns, dtype)
            positions = count_positions(taken, k, units["center"], units["scale"])
            agreement = move(agreement, positions, columns)
            center = units_of(agreement, columns, dtype)["center"]
            agreement = narrow(agreement, count_distances(taken, k, center), columns)
    scaling = conclude(agreement, dtype)
    return apply_scaling(cohort, scaling), scaling


# ---- functions run at the server (or where a client is alone) ----------------------------------------------


def begin(sums: Sums) -> Sums:
    """Return the agreement before the first pass, from `count_magnitudes`: "center" and "scale" [G, F]
    float64, "open" [G, F] bool (features whose centre is not settled), "rows" [G, 1] and "stored" [G, F],
    the nodes with a value other than zero."""
    sums = {name: x if x.dim() == 2 else x[None] for name, x in sums.items()}
    scale = _scale(sums)
    return {
        "center": torch.zeros_like(scale),
        "scale": scale,
        "open": (sums["count"] * SPARSE >= sums["rows"]) & (sums["count"] > 0),
        "rows": sums["rows"],
        "stored": sums["count"],
        "passes": torch.zeros(()),
    }


def open_columns(agreement: Sums) -> Tensor:
    """Return the columns [D] int64 that some client has open."""
    return agreement["open"].any(0).nonzero()[:, 0]


def move(agreement: Sums, sums: Sums, columns: Tensor) -> Sums:
    """Move the centres of open features to the mean position."""
    position = sums["position"].reshape(-1, len(columns)).double()
    mean = position / (agreement["rows"].double() * GRID)
    center = agreement["center"].clone()
    center[:, columns] += torch.where(
        agreement["open"][:, columns], mean * agreement["scale"][:, columns], 0.0
    )
    return {**agreement, "center": center}


def narrow(agreement: Sums, sums: Sums, columns: Tensor) -> Sums:
    """Take the new scale of open features; a feature whose scale has not halved is settled."""
    sums = {name: x.reshape(-1, len(columns)) for name, x in sums.items()}
    was_open = agreement["open"][:, columns]
    found = torch.where(sums["count"] > 0, _scale(sums), agreement["scale"][:, columns])
    scale, is_open = agreement["scale"].clone(), agreement["open"].clone()
    is_open[:, columns] = was_open & (found < scale[:, columns] / 2) & (sums["count"] > 0)
    scale[:, columns] = torch.where(was_open, found, scale[:, columns])
    passes = agreement["passes"] + 1
    if passes >= MAX_PASSES:
        is_open = torch.zeros_like(is_open)
    return {**agreement, "scale": scale, "open": is_open, "passes": passes}


def conclude(agreement: Sums, dtype: str) -> Scaling:
    """Return the scaling that an agreement came to, in the dtype of the features."""
    kind = getattr(torch, dtype.removeprefix("torch."))
    center, scale = agreement["center"], agreement["scale"]
    # The distance from a centre is a half more than its exponent says, on average.
    centred = center != 0
    scale = torch.where(centred, 2 * scale, scale)
    cells = torch.where(centred, agreement["rows"], agreement["stored"]).sum()
    as_dense = bool(cells * 2 > agreement["rows"].sum() * center.shape[1])
    return Scaling(center.to(kind), scale.to(kind), as_dense)


def to_message(scaling: Scaling) -> Sums:
    """Express a scaling as tensors, to be sent and stored."""
    storage = torch.tensor([int(scaling.as_dense)], device=scaling.center.device)
    return {"center": scaling.center[0], "scale": scaling.scale[0], "as_dense": storage}


def from_message(message: Sums) -> Scaling:
    """Read `to_message`."""
    return Scaling(message["center"][None], message["scale"][None], bool(message["as_dense"].any()))


def accept_sums(sums: Sums, declared: Mapping[str, np.ndarray]) -> str:
    """Return why another process's sums cannot be used; empty where nothing is wrong (see `transfer.Accept`).

    A client may still lie about its magnitudes and positions, within what its number of nodes allows."""
    for name, part in sums.items():
        if part.dtype != torch.int64:
            return f"{describe_value(part)} where whole numbers are expected ({name})"
    for name in ("count", "rows"):
        if name in sums and bool((sums[name] < 0).any()):
            return "a number of nodes below zero"
    if "rows" in sums and bool((sums["count"] > sums["rows"]).any()):
        return "values of more nodes than it has"
    if "exponent" in sums and bool((sums["exponent"].abs() > LARGEST_EXPONENT * sums["count"]).any()):
        return "orders of magnitude that no number has"
    return ""


def is_open(agreement: Sums) -> dict[str, Any]:
    """Decide whether another pass is needed."""
    return {"go_on": bool(agreement["open"].any())}


def units_of(agreement: Sums, columns: Tensor, dtype: str) -> Sums:
    """Return the centre and scale [1, D] of the columns, in the dtype of the features."""
    kind = getattr(torch, dtype.removeprefix("torch."))
    return {name: agreement[name][:, columns].to(kind) for name in ("center", "scale")}


def like_sums(width: int, names: tuple[str, ...]) -> Sums:
    """Return what one client's `as_shares` looks like."""
    return {name: torch.zeros(1 if name == "rows" else width) for name in names}


def from_shares(sums: Sums) -> Sums:
    """Read a sum of `as_shares`."""
    return {name: (x * OWNER_UNITS).round().long() for name, x in sums.items()}


_SUMS = SumForm(sum_over_clients, as_shares, like_sums, from_shares)


# ---- the program over places -------------------------------------------------------------------------------


def scale_features(
    fed: Federation, data: TaskData, method: Method, config: CommonSettings, task: Task
) -> tuple[TaskData, Located | None]:
    """Scale the features of every client as `config.features` asks.

    Args:
        data: A `Cohort` at each host of clients; in forecasting `SensorData`, which has no features.

    Returns:
        The data with scaled features, and the `Scaling` at the clients; None where features are not scaled,
        or every client has a scaling of its own."""
    if isinstance(data, SensorData) or not (
        isinstance(config, GraphSettings) and config.features == "scaled"
    ):
        return data, None
    if method.pooled or method.personal:
        scaled, alone = fed.clients.run(scale_alone, data, outputs=2)
        return scaled, alone if method.pooled else None
    with fed.phase("setup", round_number=0):
        scaling = fed.clients.run(from_message, _agree(fed, data, config, task.num_features))
    return fed.clients.run(apply_scaling, data, scaling), scaling


def _agree(fed: Federation, data: Located, config: CommonSettings, num_features: int) -> Located:
    """Agree on a scaling; `to_message` at the clients."""
    dtype = str(torch.get_default_dtype())

    def added(sums: Located, width: int, name: str, *fields: str) -> Located:
        """Add up whole numbers [width] of all clients at the server; fields: what one client's sums hold."""
        return protected_sum(
            fed,
            _SUMS,
            sums,
            protection=sum_protection(config),
            name=name,
            like=(width, fields),
            accept=accept_sums,
        )

    first = added(fed.clients.run(count_magnitudes, data), num_features, *_MAGNITUDES, "rows")
    agreement = fed.server.run(begin, first)
    decision = fed.control(plan_columns, agreement, name="scaled_features")
    width = decision["columns"]
    if width:
        at_server = fed.server.run(open_columns, agreement)
        columns = fed.broadcast(at_server, name="scaled_columns", grad=False)
        taken = fed.clients.run(take_columns, data, columns)
        while decision["go_on"]:
            units = fed.broadcast(
                fed.server.run(units_of, agreement, at_server, dtype), name="feature_units", grad=False
            )
            positions = added(fed.clients.run(positions_in, taken, data, units), width, *_POSITIONS)
            agreement = fed.server.run(move, agreement, positions, at_server)
            units = fed.broadcast(
                fed.server.run(units_of, agreement, at_server, dtype), name="feature_units", grad=False
            )
            distances = added(fed.clients.run(distances_in, taken, data, units), width, *_MAGNITUDES)
            agreement = fed.server.run(narrow, agreement, distances, at_server)
            decision = fed.control(is_open, agreement, name="scaled_features")
    result = fed.server.run(to_message, fed.server.run(conclude, agreement, dtype))
    return fed.broadcast(result, name="feature_scaling", grad=False)


def plan_columns(agreement: Sums) -> dict[str, Any]:
    """Say how many columns have a centre to agree on."""
    count = len(open_columns(agreement))
    return {"columns": count, "go_on": count > 0}


def positions_in(columns: Columns, cohort: Cohort, units: Sums) -> Sums:
    return count_positions(columns, cohort.num_clients, units["center"], units["scale"])


def distances_in(columns: Columns, cohort: Cohort, units: Sums) -> Sums:
    return count_distances(columns, cohort.num_clients, units["center"])


# ---- arithmetic --------------------------------------------------------------------------------------------


def _exponents(x: Tensor) -> tuple[Tensor, Tensor]:
    """Which values are not zero, int64, and floor(log2 |x|) of these (else 0), int64; exact."""
    found = (x != 0).long()
    return found, (torch.frexp(x).exponent.long() - 1) * found


def _scale(sums: Sums) -> Tensor:
    """Two to the power of the mean exponent, float64; 1 where nothing was counted."""
    count = sums["count"].double()
    return torch.exp2(torch.where(count > 0, sums["exponent"].double() / count.clamp(min=1), 0.0))


def _scaled(x: Tensor, center: Any, scale: Tensor) -> Tensor:
    one = torch.asinh(torch.ones((), dtype=x.dtype, device=x.device))
    return torch.asinh((x - center) / scale) / one


def _of_row(of_group: Tensor, group: Tensor) -> Tensor:
    """The row of every node's group: [1, D], or [n, D]."""
    return of_group if len(of_group) == 1 else of_group[group]


def _sum_by_client(x: Tensor, columns: Columns, num_clients: int) -> Tensor:
    """The weighted sum [K, D] of whole numbers [n, D]."""
    sums = torch.zeros(num_clients, x.shape[1], dtype=torch.int64, device=x.device)
    return sums.index_add_(0, columns.client, x * columns.weight[:, None])


def _dense_columns(x: Tensor | SparseMatrix | None, columns: Tensor) -> Tensor:
    """Columns [D] of features, [N, D]."""
    assert x is not None
    if not isinstance(x, SparseMatrix):
        return x[:, columns]
    place = torch.full((x.shape[1],), -1, device=columns.device)
    place[columns] = torch.arange(len(columns), device=columns.device)
    to = place[x.indices.long()]
    kept = to >= 0
    dense = torch.zeros(x.shape[0], len(columns), dtype=x.dtype, device=columns.device)
    return dense.index_put_((x.row[kept], to[kept]), x.values[kept], accumulate=True)


def _dtype(x: Tensor | SparseMatrix | None) -> torch.dtype:
    assert x is not None
    return x.dtype


# ---- storage -----------------------------------------------------------------------------------------------

#: The arrays of a shared scaling in a model's file.
ARRAYS = ("feature_scaling.center", "feature_scaling.scale", "feature_scaling.as_dense")


def to_arrays(scaling: Scaling) -> dict[str, np.ndarray]:
    """Express a shared scaling as the `ARRAYS` of a model's file."""
    return {f"feature_scaling.{name}": x.cpu().numpy() for name, x in to_message(scaling).items()}


def scaling_from(arrays: Any, device: torch.device | str) -> Scaling | None:
    """Read the scaling in the arrays of a model's file; None where the model has none."""
    if not all(name in arrays for name in ARRAYS):
        return None
    found = {name.partition(".")[2]: torch.from_numpy(arrays[name]).to(device) for name in ARRAYS}
    return from_message(found)


# ---- in words ----------------------------------------------------------------------------------------------

#: A transfer's name, and what one client's sums hold.
_MAGNITUDES = ("feature_magnitudes", "count", "exponent")
_POSITIONS = ("feature_positions", "position")

_SECURE = "With aggregation=secure, before training"

MESSAGES = {
    "feature_magnitudes": "Before training, with features=scaled and aggregation=plaintext: for every "
    "feature, at how many of a client's nodes it is not zero (not at its centre), and the sum of the binary "
    "orders of magnitude of its values (of their distances from the centre). The server reads each client's "
    "sums; no value is sent.",
    "feature_positions": "Before training, with features=scaled and aggregation=plaintext: for every feature "
    "that is not sparse, the sum of the positions of a client's nodes, rounded to quarters of what is "
    "typical for all clients. The server reads each client's sums; where a client has a single node, the sum "
    "is its position.",
    "scaled_features": "Whether the scale of the features needs another pass. Public.",
    "scaled_columns": "Which features are given a centre, from the server to every client.",
    "feature_units": "Every feature's centre and scale so far, from the server to every client.",
    "feature_scaling": "The centre and scale of every feature, from the server to every client.",
    **messages("feature_magnitudes", _SECURE, "a client's counts and orders of magnitude of every feature"),
    **messages(
        "feature_positions", _SECURE, "a client's summed positions in every feature that is not sparse"
    ),
}

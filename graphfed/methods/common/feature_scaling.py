"""Bring every feature to one scale, on which the clients agree without sending a value.

The unit of a feature must not matter: an amount in cents and a year have the same weight. Every feature f
becomes

    asinh((x_f - center_f) / scale_f) / asinh(1)

which is linear near the centre and logarithmic far from it, so that heavy tails do no harm. A feature that is
zero at more than nine nodes in ten keeps its zeros (center_f = 0) and stays sparse; its scale is the typical
magnitude of its other values, so binary features do not change. For every other feature the centre is the
mean, and the scale the typical distance from the mean.

The clients agree on both by adding up whole numbers, in several passes:

    magnitudes   how many nodes have a value other than the centre, and the sum of the exponents of the
                 distances, floor(log2 |x - center|); the scale is two to the power of their mean
    positions    the sum of the distances from the centre, each rounded to quarters of the scale; the mean
                 of the positions moves the centre

until the scale no longer halves. Sums of whole numbers are exact, so the result does not depend on how nodes
are partitioned among clients: central training has the same features. What a client sends shows its nodes'
orders of magnitude, and positions to a quarter of the scale, summed over its nodes. If it has a single node,
that is nearly the value: the positions of all passes leave an interval whose half width is typically 0.02 to
0.06 standard deviations of the feature. With aggregation=secure the server learns only the sums over all
clients. A method that sends nothing (central, isolated) scales every client by its own data.

The attributes of edges are scaled alike, in transfers of their own, if the network reads them. A cross-client
edge counts at the client of its source.

Reference: this scaling is graphfed's own. The transformation asinh for heavy-tailed variables is in Burbidge,
Magee and Robb, "Alternative transformations to handle extreme values of the dependent variable", JASA 1988.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.data.feature_numbers import LARGE
from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import OWNER_UNITS, Cohort
from graphfed.federation.functions import sum_over_clients
from graphfed.federation.secure.aggregation import (
    SumForm,
    decode_whole,
    encode_whole,
    messages,
    protected_sum,
)
from graphfed.federation.transfer import describe_value
from graphfed.methods.parts import sum_protection
from graphfed.nn.sparse import SparseMatrix

#: Positions are counted in this fraction of the scale: quarters.
GRID = 4
#: Largest distance from the centre, in scales, that counts, so that outliers do not move the centre.
REACH = 8
#: A feature that is not zero at fewer than one node in this many keeps its zeros.
SPARSE = 10
#: From this magnitude on, a centre is subtracted in float64, because float32 has no fractions there and soon
#: not every whole number. The difference is rounded to the run's dtype.
WIDE = LARGE / 2
#: A bound on the orders of magnitude of float64 numbers, denormal numbers included.
LARGEST_EXPONENT = 1100
#: A bound on the number of passes; a column of float32 values needs far fewer.
MAX_PASSES = 40

Sums = dict[str, Tensor]


@dataclass(frozen=True)
class TransferNames:
    """The names of the transfers of one agreement."""

    magnitudes: str
    positions: str
    passes: str
    columns: str
    units: str
    scaling: str


OF_NODES = TransferNames(
    "feature_magnitudes",
    "feature_positions",
    "scaled_features",
    "scaled_columns",
    "feature_units",
    "feature_scaling",
)
OF_EDGES = TransferNames(
    "edge_magnitudes",
    "edge_positions",
    "scaled_attributes",
    "scaled_edge_columns",
    "edge_units",
    "edge_scaling",
)
#: The sums of magnitudes that one client sends.
_MAGNITUDES = ("count", "exponent")


@dataclass(frozen=True)
class Scaling:
    """The centre and scale of every feature.

    Attributes:
        center: [G, F] in the run's dtype, or in float64 if a feature has a large centre (see `WIDE`); G is 1,
            or the number of clients if each has its own.
        scale: [G, F].
        as_dense: Whether the scaled features are stored densely, because few zeros are left.
        linear: Whether features become (x - center) / scale, without asinh; both are float64 then.
        edges: The scaling of the attributes of edges; None if they are not scaled.
    """

    center: Tensor
    scale: Tensor
    as_dense: bool
    linear: bool = False
    edges: "Scaling | None" = None


@dataclass(frozen=True)
class Columns:
    """The dense columns [n, D] of the nodes that a cohort owns.

    The weight of a node is `OWNER_UNITS` divided by the number of its owners, [n] int64.
    """

    x: Tensor
    weight: Tensor
    client: Tensor
    num_clients: int


# ---- functions run at the clients --------------------------------------------------------------------------


def count_magnitudes(cohort: Cohort) -> Sums:
    """Count every client's non-zero values and add up their exponents, in OWNER_UNITS.

    The result is "count" [K, F], "exponent" [K, F] and the number of owned nodes "rows" [K, 1], all int64.
    """
    k, width = cohort.num_clients, cohort.num_features
    # A node of several clients counts once in all: each owner adds its part, a whole number.
    weight = torch.where(cohort.owned, OWNER_UNITS // cohort.owners.clamp(min=1), 0)
    if isinstance(cohort.x, SparseMatrix):
        row, column, values = cohort.x.row, cohort.x.indices.long(), cohort.x.values
    else:
        assert cohort.x is not None
        row, column = cohort.x.nonzero(as_tuple=True)
        values = cohort.x[row, column]
    # [K, F] as one index, so that a single scatter sums over clients and features.
    cell = cohort.client[row] * width + column
    found, exponent = exponents(values)
    zeros = torch.zeros(k * width, dtype=torch.int64, device=cell.device)
    return {
        "count": zeros.index_add(0, cell, weight[row] * found).view(k, width),
        "exponent": zeros.index_add(0, cell, weight[row] * exponent).view(k, width),
        "rows": zeros.new_zeros(k).index_add(0, cohort.client, weight)[:, None],
    }


def take_columns(cohort: Cohort, columns: Tensor) -> Columns:
    """Select the columns [D] int64 of the owned nodes."""
    rows = cohort.rows("all")
    weight = OWNER_UNITS // cohort.owners[rows].clamp(min=1)
    return Columns(_dense_columns(cohort.x, columns)[rows], weight, cohort.client[rows], cohort.num_clients)


def count_positions(columns: Columns, units: Sums) -> Sums:
    """Add up every client's positions in quarters of the scale, "position" [K, D] int64.

    Centre and scale are [G, D], one row for all clients or one for each.
    """
    distance = _distance(columns.x, _of_row(units["center"], columns.client))
    # Whole numbers of quarters: their sum is exact, in any order and placement.
    position = distance / _of_row(units["scale"], columns.client) * GRID
    # Outliers must not move the centre far.
    position = position.round().clamp(-REACH * GRID, REACH * GRID).long()
    return {"position": sum_by_client(position, columns)}


def count_distances(columns: Columns, units: Sums) -> Sums:
    """Count every client's values other than the centre and add up the exponents of their distances: "count"
    and "exponent" [K, D] int64.
    """
    found, exponent = exponents(_distance(columns.x, _of_row(units["center"], columns.client)))
    return {"count": sum_by_client(found, columns), "exponent": sum_by_client(exponent, columns)}


def encode_sums(sums: Sums) -> Sums:
    """Convert sums to numbers that a secure sum adds up exactly."""
    return {name: encode_whole(x) for name, x in sums.items()}


def edges_as_rows(cohort: Cohort) -> Cohort:
    """Return the directed edges of a cohort in the place of its nodes: the attributes of each are its
    features. A cross-client edge is owned by the client of its source.
    """
    edges = cohort.directed
    assert edges is not None
    client = torch.cat([cohort.client[edges.target], cohort.client[edges.cross_row]])
    owned = torch.cat([torch.ones_like(edges.target, dtype=torch.bool), edges.cross_outgoing])
    return replace(
        cohort,
        client=client,
        x=torch.cat([edges.attributes, edges.cross_attributes]),
        owned=owned,
        owners=torch.ones_like(client),
        directed=None,
    )


def scale_rows(x: Tensor, scaling: Scaling, client: Tensor) -> Tensor:
    """Scale dense features [n, F] of the nodes of clients [n]."""
    of_rows = _of_row(scaling.center, client), _of_row(scaling.scale, client)
    return (_linear if scaling.linear else _scaled)(x, *of_rows)


def apply_scaling(cohort: Cohort, scaling: Scaling) -> Cohort:
    scaled = _scale_rows(cohort, scaling)
    return scaled if scaling.edges is None else scale_edges(scaled, scaling.edges)


def scale_edges(cohort: Cohort, scaling: Scaling) -> Cohort:
    """Scale the attributes of a cohort's directed edges."""
    edges, rows = cohort.directed, _scale_rows(edges_as_rows(cohort), scaling).x
    assert edges is not None
    assert isinstance(rows, Tensor)
    count = len(edges.source)
    scaled = replace(edges, attributes=rows[:count], cross_attributes=rows[count:])
    return replace(cohort, directed=scaled)


def _scale_rows(cohort: Cohort, scaling: Scaling) -> Cohort:
    x, center, scale = cohort.x, scaling.center, scaling.scale
    if x is None:
        return cohort
    if not isinstance(x, SparseMatrix):
        return replace(cohort, x=scale_rows(x, scaling, cohort.client))
    if scaling.as_dense:
        return _scale_rows(replace(cohort, x=x.to_dense()), scaling)
    # A column stays sparse if its centre is zero for every client.
    moved = (center != 0).any(0)
    group = torch.zeros_like(cohort.client) if len(center) == 1 else cohort.client
    column = x.indices.long()
    # Nothing is filled in, so the pattern stays and only stored values change.
    if not bool(moved.any()):
        of_entry = group[x.row], column
        return replace(cohort, x=x.with_values(_scaled(x.values, center[of_entry], scale[of_entry])))
    # Columns with a centre have no zeros left: they are stored densely, [N, D], next to the sparse ones.
    unmoved = ~moved[column]
    row, column, columns = x.row[unmoved], column[unmoved], moved.nonzero()[:, 0]
    filled = _scaled(
        _dense_columns(x, columns),
        _of_row(center[:, columns], cohort.client),
        _of_row(scale[:, columns], cohort.client),
    )
    every_row = torch.arange(x.shape[0], device=row.device).repeat_interleave(len(columns))
    matrix = SparseMatrix.from_coo(
        torch.cat([row, every_row]),
        torch.cat([column, columns.repeat(x.shape[0])]),
        torch.cat(
            [
                _scaled(x.values[unmoved], *(of[group[row], column] for of in (center, scale))),
                filled.flatten(),
            ]
        ),
        x.shape,
    )
    return replace(cohort, x=matrix)


def own_scaling(cohort: Cohort) -> Scaling:
    """Compute the scaling of every client by its own data."""
    agreement = start_agreement(count_magnitudes(cohort))
    # The columns stay the same in all passes: a closed feature is counted on, and its sums are ignored.
    columns = open_columns(agreement)
    if len(columns):
        taken = take_columns(cohort, columns)
        while bool(agreement["open"].any()):
            positions = count_positions(taken, units_of(agreement, columns))
            agreement = move_centers(agreement, positions, columns)
            distances = count_distances(taken, units_of(agreement, columns))
            agreement = update_scales(agreement, distances, columns)
    return finish_agreement(agreement)


# ---- functions run at the server (or where a client is alone) ----------------------------------------------


def start_agreement(sums: Sums) -> Sums:
    """Return the agreement before the first pass, from `count_magnitudes`.

    The result is "center" and "scale" [G, F] float64; "open" [G, F] bool: features whose centre is not final;
    "rows" [G, 1]; "wide" [G, 1] bool: whether centres are float64; "stored" [G, F]: nodes with a non-zero
    value; and "passes".
    """
    # [G, F]: the server has one group for all clients, a client alone has one for each.
    sums = {name: x if x.dim() == 2 else x[None] for name, x in sums.items()}
    scale = _scale(sums)
    # In whole numbers, so that every placement decides alike. A constant 0 has nothing to be centred.
    is_open = (sums["count"] * SPARSE >= sums["rows"]) & (sums["count"] > 0)
    return {
        "center": torch.zeros_like(scale),
        "scale": scale,
        "open": is_open,
        # A centre is at most about as large as the typical value, the first scale.
        "wide": (is_open & (scale >= WIDE)).any(1, keepdim=True),
        "rows": sums["rows"],
        "stored": sums["count"],
        "passes": torch.zeros(()),
    }


def open_columns(agreement: Sums) -> Tensor:
    """Return the columns [D] int64 that are open at some client."""
    return agreement["open"].any(0).nonzero()[:, 0]


def move_centers(agreement: Sums, sums: Sums, columns: Tensor) -> Sums:
    position = sums["position"].reshape(-1, len(columns)).double()
    _check_sums(position.abs(), REACH * GRID * agreement["rows"], "distances from a centre")
    # In units of the scale: the mean of all owned nodes, of which GRID positions are one scale.
    mean = position / (agreement["rows"].double() * GRID)
    center = agreement["center"].clone()
    center[:, columns] += torch.where(
        agreement["open"][:, columns], mean * agreement["scale"][:, columns], 0.0
    )
    return {**agreement, "center": center}


def update_scales(agreement: Sums, sums: Sums, columns: Tensor) -> Sums:
    """Update the scales of open features; a feature whose scale has not halved becomes final."""
    sums = {name: x.reshape(-1, len(columns)) for name, x in sums.items()}
    _check_sums(sums["count"], agreement["rows"], "counts of values")
    was_open = agreement["open"][:, columns]
    # A count of 0: every node is at the centre, so the scale of the last pass stays.
    found = torch.where(sums["count"] > 0, _scale(sums), agreement["scale"][:, columns])
    scale, is_open = agreement["scale"].clone(), agreement["open"].clone()
    # A coarse scale hides where the mean is; another pass with the smaller one finds it more exactly.
    is_open[:, columns] = was_open & (found < scale[:, columns] / 2) & (sums["count"] > 0)
    scale[:, columns] = torch.where(was_open, found, scale[:, columns])
    passes = agreement["passes"] + 1
    if passes >= MAX_PASSES:
        is_open = torch.zeros_like(is_open)
    return {**agreement, "scale": scale, "open": is_open, "passes": passes}


def finish_agreement(agreement: Sums) -> Scaling:
    """Return the scaling of an agreement, in the run's dtype."""
    center, scale = agreement["center"], agreement["scale"]
    # The exponent rounds distances down, so the scale of features with a centre is doubled.
    centred = center != 0
    scale = torch.where(centred, 2 * scale, scale)
    # A centred feature has no zeros left. Sparse storage takes about two numbers for each value.
    cells = torch.where(centred, agreement["rows"], agreement["stored"]).sum()
    as_dense = bool(cells * 2 > agreement["rows"].sum() * center.shape[1])
    scale = scale.to(torch.get_default_dtype())
    return Scaling(_rounded(center, agreement["wide"]), scale, as_dense)


def to_message(scaling: Scaling) -> Sums:
    storage = torch.tensor([int(scaling.as_dense)], device=scaling.center.device)
    linear = {"linear": torch.ones_like(storage)} if scaling.linear else {}
    message = {"center": scaling.center[0], "scale": scaling.scale[0], "as_dense": storage, **linear}
    of_edges = {} if scaling.edges is None else to_message(scaling.edges)
    return message | {EDGES + name: value for name, value in of_edges.items()}


def from_message(message: Sums) -> Scaling:
    of_edges = {name.removeprefix(EDGES): value for name, value in message.items() if name.startswith(EDGES)}
    edges = from_message(of_edges) if of_edges else None
    as_dense = bool(message["as_dense"].any())
    return Scaling(message["center"][None], message["scale"][None], as_dense, "linear" in message, edges)


def with_edges(scaling: Scaling, edges: Scaling) -> Scaling:
    return replace(scaling, edges=edges)


def accept_sums(sums: Sums, declared: Mapping[str, np.ndarray]) -> str:
    """Return why another process's sums cannot be used, or "" if they can (see `transfer.Accept`).

    A client may still report wrong magnitudes and positions. In the first pass its own number of nodes limits
    them, later that of all clients (`_check_sums`), which holds for secure sums too.
    """
    # Floats would make the sum depend on the order of the clients.
    for name, part in sums.items():
        if part.dtype != torch.int64:
            return f"{describe_value(part)} where whole numbers are expected ({name})"
    for name in ("count", "rows"):
        if name in sums and bool((sums[name] < 0).any()):
            return "a number of nodes below zero"
    # Only the first pass has the number of nodes with which counts can be compared.
    if "rows" in sums and bool((sums["count"] > sums["rows"]).any()):
        return "values of more nodes than the client has"
    if "exponent" in sums and bool((sums["exponent"].abs() > LARGEST_EXPONENT * sums["count"]).any()):
        return "an order of magnitude that no number has"
    return ""


def _check_sums(found: Tensor, most: Tensor, what: str) -> None:
    """Refuse sums [G, D] above what the nodes of all clients allow, [G, 1]."""
    if bool((found > most).any()):
        raise InputError(
            f"feature scaling: the clients sent {what} that exceed what all their nodes allow; a client does "
            "not follow the protocol, find it by running with a part of the clients"
        )


def is_open(agreement: Sums) -> dict[str, Any]:
    return {"go_on": bool(agreement["open"].any())}


def units_of(agreement: Sums, columns: Tensor) -> Sums:
    """Return the centre and scale [1, D] of some columns, in the run's dtype."""
    center, scale = (agreement[name][:, columns] for name in ("center", "scale"))
    return {"center": _rounded(center, agreement["wide"]), "scale": scale.to(torch.get_default_dtype())}


def like_sums(width: int, names: tuple[str, ...]) -> Sums:
    """Return values of the shape of one client's `encode_sums`."""
    return {name: torch.zeros(1 if name == "rows" else width) for name in names}


def decode_sums(sums: Sums) -> Sums:
    """Convert a secure sum of `encode_sums` back to whole numbers."""
    return {name: decode_whole(x) for name, x in sums.items()}


SUMS = SumForm(sum_over_clients, encode_sums, like_sums, decode_sums)


# ---- the program over places -------------------------------------------------------------------------------


def add_whole(fed: Federation, config: object, sums: Located, width: int, name: str, *fields: str) -> Located:
    """Add up whole numbers [width] of all clients at the server; `fields` are what one client's sums hold."""
    return protected_sum(
        fed,
        SUMS,
        sums,
        protection=sum_protection(config),
        name=name,
        like=(width, fields),
        accept=accept_sums,
    )


def agree_on_scales(
    fed: Federation, data: Located, config: object, num_features: int, names: TransferNames = OF_NODES
) -> Located:
    """Agree on a scaling; returns it at the clients."""
    add_up = partial(add_whole, fed, config)
    magnitudes = names.magnitudes, *_MAGNITUDES
    first = add_up(fed.clients.run(count_magnitudes, data), num_features, *magnitudes, "rows")
    agreement = fed.server.run(start_agreement, first)
    decision = fed.control(
        plan_columns, agreement, name=names.passes, values={"columns": int, "go_on": bool, "wide": bool}
    )
    # Receivers must know the form of a message before it arrives, so the number of columns is announced.
    width, kind = decision["columns"], torch.get_default_dtype()
    of_center = torch.float64 if decision["wide"] else kind
    if width:
        at_server = fed.server.run(open_columns, agreement)
        columns = fed.broadcast(
            at_server, name=names.columns, grad=False, like=TensorForm(torch.int64, (width,))
        )
        taken = fed.clients.run(take_columns, data, columns)
        units_form = {"center": TensorForm(of_center, (1, width)), "scale": TensorForm(kind, (1, width))}

        def send_units() -> Located:
            units = fed.server.run(units_of, agreement, at_server)
            return fed.broadcast(units, name=names.units, grad=False, like=units_form)

        while decision["go_on"]:
            positions = add_up(
                fed.clients.run(count_positions, taken, send_units()), width, names.positions, "position"
            )
            agreement = fed.server.run(move_centers, agreement, positions, at_server)
            distances = add_up(fed.clients.run(count_distances, taken, send_units()), width, *magnitudes)
            agreement = fed.server.run(update_scales, agreement, distances, at_server)
            decision = fed.control(is_open, agreement, name=names.passes, values={"go_on": bool})
    result = fed.server.run(to_message, fed.server.run(finish_agreement, agreement))
    message = {
        "center": TensorForm(of_center, (num_features,)),
        "scale": TensorForm(kind, (num_features,)),
        "as_dense": TensorForm(torch.int64, (1,)),
    }
    return fed.clients.run(from_message, fed.broadcast(result, name=names.scaling, grad=False, like=message))


def plan_columns(agreement: Sums) -> dict[str, Any]:
    count = len(open_columns(agreement))
    return {"columns": count, "go_on": count > 0, "wide": bool(agreement["wide"].any())}


# ---- arithmetic --------------------------------------------------------------------------------------------


def exponents(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return which values are not zero, int64, and floor(log2 |x|) of these (otherwise 0), int64; exact."""
    found = (x != 0).long()
    # frexp reads the exponent of the number, so no logarithm is rounded; its mantissa is in [1/2, 1).
    return found, (torch.frexp(x).exponent.long() - 1) * found


def _scale(sums: Sums) -> Tensor:
    """Compute two to the power of the mean exponent, float64; 1 if nothing was counted."""
    count = sums["count"].double()
    # The geometric mean of the magnitudes: one huge value moves it little.
    return torch.exp2(torch.where(count > 0, sums["exponent"].double() / count.clamp(min=1), 0.0))


def _rounded(center: Tensor, wide: Tensor) -> Tensor:
    """Round centres [G, D] to the run's dtype, except those of groups [G, 1] whose centres are float64."""
    rounded = center.to(torch.get_default_dtype())
    return torch.where(wide, center, rounded.double()) if bool(wide.any()) else rounded


def _distance(x: Tensor, center: Tensor) -> Tensor:
    """Subtract centres, the large ones in float64, and round to the run's dtype."""
    dtype = torch.get_default_dtype()
    distance = x.to(dtype) - center.to(dtype)
    if x.dtype == dtype == center.dtype or not bool((wide := center.abs() >= WIDE).any()):
        return distance
    return torch.where(wide, (x.double() - center).to(dtype), distance)


def _scaled(x: Tensor, center: Tensor, scale: Tensor) -> Tensor:
    distance = _distance(x, center)
    # Divided by asinh(1), so that a distance of one scale becomes 1, as binary features need.
    one = torch.asinh(torch.ones((), dtype=distance.dtype, device=x.device))
    return torch.asinh(distance / scale) / one


def _linear(x: Tensor, center: Tensor, scale: Tensor) -> Tensor:
    return ((x.double() - center) / scale).to(torch.get_default_dtype())


def _of_row(of_group: Tensor, group: Tensor) -> Tensor:
    """Return the row of every node's group: [1, D], or [n, D]."""
    return of_group if len(of_group) == 1 else of_group[group]


def sum_by_client(x: Tensor, columns: Columns) -> Tensor:
    """Add up whole numbers [n, D] with their weights for each client, [K, D]."""
    sums = torch.zeros(columns.num_clients, x.shape[1], dtype=torch.int64, device=x.device)
    return sums.index_add_(0, columns.client, x * columns.weight[:, None])


def _dense_columns(x: Tensor | SparseMatrix | None, columns: Tensor) -> Tensor:
    """Return columns [D] of the features as a dense matrix, [N, D]."""
    assert x is not None
    if not isinstance(x, SparseMatrix):
        return x[:, columns]
    place = torch.full((x.shape[1],), -1, device=columns.device)
    place[columns] = torch.arange(len(columns), device=columns.device)
    to = place[x.indices.long()]
    unmoved = to >= 0
    dense = torch.zeros(x.shape[0], len(columns), dtype=x.dtype, device=columns.device)
    return dense.index_put_((x.row[unmoved], to[unmoved]), x.values[unmoved], accumulate=True)


# ---- storage -----------------------------------------------------------------------------------------------

#: The arrays that every shared scaling has in a model's file.
ARRAYS = ("feature_scaling.center", "feature_scaling.scale", "feature_scaling.as_dense")
#: What the names of the scaling of edges begin with, if there is one.
EDGES = "edge_"
EDGE_ARRAYS = tuple(name.replace(".", f".{EDGES}") for name in ARRAYS)


def to_arrays(scaling: Scaling) -> dict[str, np.ndarray]:
    return {f"feature_scaling.{name}": x.cpu().numpy() for name, x in to_message(scaling).items()}


def scaling_from(arrays: Any, device: torch.device | str) -> Scaling | None:
    """Read the scaling from the arrays of a model's file; None if the model has none."""
    if not all(name in arrays for name in ARRAYS):
        return None
    kept = [name for name in (*ARRAYS, "feature_scaling.linear", *EDGE_ARRAYS) if name in arrays]
    found = {name.partition(".")[2]: torch.from_numpy(arrays[name]).to(device) for name in kept}
    return from_message(found)


# ---- descriptions of transfers -----------------------------------------------------------------------------

_SECURE = "With aggregation=secure, before training"

MESSAGES = {
    "feature_magnitudes": "With features=scaled and aggregation=plaintext every client sends the server, "
    "before training, for every feature: at how many of its nodes the feature is not zero (not at its "
    "centre), and the sum of the binary orders of magnitude of its values (of their distances from the "
    "centre). The server reads each client's sums; no value is sent.",
    "feature_positions": "With features=scaled and aggregation=plaintext every client sends the server, "
    "before training, for every feature that is not sparse: the sum of the positions of its nodes, rounded "
    "to quarters of the scale of all clients, in every pass. The server reads each client's sums; if a "
    "client has a single node, they nearly show its features: within a few hundredths of the standard "
    "deviation.",
    "scaled_features": "The server announces to every client whether the scale of the features needs another "
    "pass, and whether centres have 64 bits. This is public.",
    "scaled_columns": "The server sends every client the numbers of the features that get a centre.",
    "feature_units": "The server sends every client the current centre and scale of every feature.",
    "feature_scaling": "The server sends every client the final centre and scale of every feature.",
    **messages("feature_magnitudes", _SECURE, "a client's counts and orders of magnitude of every feature"),
    **messages(
        "feature_positions", _SECURE, "a client's summed positions in every feature that is not sparse"
    ),
    "edge_magnitudes": "With features=scaled, aggregation=plaintext and a network that reads the attributes "
    "of edges, every client sends the server, before training, for every attribute the counts and sums that "
    "`feature_magnitudes` has for features, over its edges. A cross-client edge counts at the client of its "
    "source.",
    "edge_positions": "With features=scaled, aggregation=plaintext and a network that reads the attributes "
    "of edges, every client sends the server, before training, for every attribute the sums that "
    "`feature_positions` has for features, over its edges. The server reads each client's sums; if a client "
    "has a single edge, they nearly show its attributes.",
    "scaled_attributes": "The server announces to every client whether the scale of the attributes of edges "
    "needs another pass, and whether centres have 64 bits. This is public.",
    "scaled_edge_columns": "The server sends every client the numbers of the attributes that get a centre.",
    "edge_units": "The server sends every client the current centre and scale of every attribute of edges.",
    "edge_scaling": "The server sends every client the final centre and scale of every attribute of edges.",
    **messages("edge_magnitudes", _SECURE, "a client's counts and orders of magnitude of edges' attributes"),
    **messages("edge_positions", _SECURE, "a client's summed positions in the attributes of edges"),
}

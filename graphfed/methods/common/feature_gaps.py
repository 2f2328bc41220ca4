"""Fill the gaps of features with the means of all clients, without sending a value.

A gap is NaN in a feature of `Task.filled`. The clients agree on every mean by adding up whole numbers, in two
passes:

    counts       how many nodes have a value, and the sum of the exponents of the values that are not zero;
                 two to the power of their mean is the unit
    sums         every value as a whole number of 2^-30 units, in six digits of base 1024, each digit summed
                 over the nodes

Sums of whole numbers are exact, so the means do not depend on how nodes are partitioned among clients. A mean
is off by at most 2^-31 units; values beyond 2^29 units count as that much. With aggregation=secure the server
learns only the sums over all clients. A method that sends nothing fills the gaps of every client with its own
means, or 0 where it has no value.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.secure.aggregation import messages
from graphfed.federation.series import SensorData, TaskData
from graphfed.methods.base import Method, Task
from graphfed.methods.common.feature_scaling import (
    Columns,
    Sums,
    add_whole,
    exponents,
    sum_by_client,
    take_columns,
)
from graphfed.methods.common.local_training import as_configured

#: A value is a whole number of 2^-FRACTION units, of at most LIMBS digits of BITS bits.
FRACTION, BITS, LIMBS = 30, 10, 6


def check_gaps(filled: tuple[int, ...], method: Method) -> None:
    """Raise InputError if features have gaps and the set-up of the method releases noised values.

    The sums of features without noise would show what the noise hides.
    """
    if filled and method.restore is not None:
        raise InputError(
            f"{method.name} cannot fill gaps of features, because their sums would be sent without its "
            "noise; fill in the empty cells, and remove 'missing' from the description"
        )


# ---- functions run at the clients --------------------------------------------------------------------------


def count_values(columns: Columns) -> Sums:
    """Count every client's nodes with a value ("known") and with one other than zero ("count"), and add up
    the exponents of the latter: [K, D] int64.
    """
    known = ~columns.x.isnan()
    found, exponent = exponents(columns.x.nan_to_num())
    sums = {"known": known.long(), "count": found, "exponent": exponent}
    return {name: sum_by_client(x, columns) for name, x in sums.items()}


def add_digits(columns: Columns, units: Tensor) -> Sums:
    """Add up every client's values in digits, "digits" [K, LIMBS * D] int64. Units are [G, D]."""
    unit = units if len(units) == 1 else units[columns.client]
    most = 2.0 ** (BITS * LIMBS - 1)
    whole = (columns.x.double().nan_to_num() / unit * 2.0**FRACTION).round().clamp(-most, most - 1024).long()
    # The last digit keeps the sign.
    digits = [(whole >> (BITS * i)) & (2**BITS - 1) for i in range(LIMBS - 1)] + [
        whole >> (BITS * (LIMBS - 1))
    ]
    return {"digits": sum_by_client(torch.cat(digits, dim=1), columns)}


def take_filled(cohort: Cohort) -> Columns:
    return take_columns(cohort, torch.tensor(cohort.filled, device=cohort.id.device))


def fill_gaps(cohort: Cohort, means: Tensor, config: object) -> Cohort:
    """Replace NaN in the D columns `filled` by their means [G, D]."""
    assert isinstance(cohort.x, Tensor)
    columns = torch.tensor(cohort.filled, device=cohort.x.device)
    mean = (means if len(means) == 1 else means[cohort.client]).to(cohort.x.dtype)
    x = cohort.x.clone()
    x[:, columns] = torch.where(x[:, columns].isnan(), mean, x[:, columns])
    return as_configured(replace(cohort, x=x, filled=()), config)


def fill_alone(cohort: Cohort, config: object) -> tuple[Cohort, Tensor]:
    """Fill every client's gaps with its own means [K, D]; nothing is sent."""
    taken = take_filled(cohort)
    counts = count_values(taken)
    units = units_of(counts)
    means = means_of(counts, units, add_digits(taken, units))
    return fill_gaps(cohort, means, config), means


# ---- functions run at the server (or where a client is alone) ----------------------------------------------


def units_of(counts: Sums) -> Tensor:
    """Compute the unit of every column, [G, D] float64: the typical magnitude of its values."""
    counts = {name: x.reshape(-1, x.shape[-1]).double() for name, x in counts.items()}
    return torch.exp2((counts["exponent"] / counts["count"].clamp(min=1)).round())


def means_of(counts: Sums, units: Tensor, sums: Sums) -> Tensor:
    """Compute the means [G, D] float64; 0 for a column without a value."""
    known = counts["known"].reshape(-1, units.shape[1])
    digits = sums["digits"].reshape(-1, LIMBS, units.shape[1])
    if bool((digits.abs() > 2**BITS * known[:, None]).any()):
        raise InputError(
            "feature gaps: the clients sent sums that exceed what their numbers of values allow; a client "
            "does not follow the protocol, find it by running with a part of the clients"
        )
    place = torch.exp2(BITS * torch.arange(LIMBS, device=digits.device).double() - FRACTION)
    total = (digits.double() * place[:, None]).sum(dim=1)
    return total / known.clamp(min=1) * units


# ---- the program over places -------------------------------------------------------------------------------


def fill_features(
    fed: Federation, data: TaskData, method: Method, config: object, task: Task
) -> tuple[TaskData, Located | None]:
    """Fill the gaps of every client's features.

    The second result is the means at the clients, [1, D] float64; None if there are no gaps or every client
    has means of its own.
    """
    if isinstance(data, SensorData) or not task.filled:
        return data, None
    check_gaps(task.filled, method)
    if method.pooled or (method.personal and not method.sends.messages):
        done, alone = fed.clients.run(fill_alone, data, config, outputs=2)
        return done, alone if method.pooled else None
    with fed.phase("setup", round_number=0):
        means = _agree(fed, fed.clients.run(take_filled, data), config, len(task.filled))
    return fed.clients.run(fill_gaps, data, means, config), means


def _agree(fed: Federation, taken: Located, config: object, width: int) -> Located:
    add_up = partial(add_whole, fed, config)
    form = TensorForm(torch.float64, (1, width))
    counts = add_up(fed.clients.run(count_values, taken), width, *_VALUES)
    units = fed.server.run(units_of, counts)
    at_clients = fed.broadcast(units, name="gap_units", grad=False, like=form)
    digits = add_up(fed.clients.run(add_digits, taken, at_clients), LIMBS * width, *_DIGITS)
    return fed.broadcast(
        fed.server.run(means_of, counts, units, digits), name="gap_means", grad=False, like=form
    )


# ---- storage -----------------------------------------------------------------------------------------------

#: The array of the means in a model's file.
ARRAY = "feature_gaps.means"


def to_arrays(means: Tensor) -> dict[str, np.ndarray]:
    return {ARRAY: means.cpu().numpy()}


def means_from(arrays: Mapping[str, Any], device: torch.device | str) -> Tensor | None:
    """Read the means from the arrays of a model's file; None if the model has none."""
    return torch.from_numpy(arrays[ARRAY]).to(device) if ARRAY in arrays else None


# ---- descriptions of transfers -----------------------------------------------------------------------------

#: The names of a transfer and of the sums that one client sends in it.
_VALUES = ("gap_counts", "known", "count", "exponent")
_DIGITS = ("gap_sums", "digits")
_SECURE = "With aggregation=secure, before training"

MESSAGES = {
    "gap_counts": "If features may have gaps ('missing' in the data's description), with "
    "aggregation=plaintext: every client sends the server, before training, for every such feature: at how "
    "many of its nodes it has a value, at how many one other than zero, and the sum of the binary orders of "
    "magnitude of these. The server reads each client's sums; no value is sent.",
    "gap_sums": "If features may have gaps, with aggregation=plaintext: every client sends the server, "
    "before training, the sum of its values of every such feature, digit by digit. The server reads each "
    "client's sums; if a client has a single node, they show its values.",
    "gap_units": "If features may have gaps, the server sends every client the typical magnitude of each.",
    "gap_means": "If features may have gaps, the server sends every client the mean of each, which fills "
    "them.",
    **messages("gap_counts", _SECURE, "a client's counts and orders of magnitude of every feature with gaps"),
    **messages("gap_sums", _SECURE, "a client's sums of every feature with gaps"),
}

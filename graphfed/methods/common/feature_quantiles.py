"""Bring every feature to median 0 and interquartile range 1, on which the clients agree by counting.

Every feature becomes (x - median) / (q75 - q25), or x - median if the quartiles are equal, as scikit-learn's
RobustScaler has it. A quantile lies between two order statistics. Each of these is found exactly: the numbers
of 64 bits are ordered like whole numbers, and in each of 16 passes the clients count their nodes by the next
four bits, among the values that have the bits found so far. Sums of whole numbers are exact, so the result
does not depend on how nodes are partitioned among clients, and is that of all nodes together.

What a client sends shows how many of its nodes lie in ever smaller intervals around the quartiles of all. If
it has a single node, that may be its value. With aggregation=secure the server learns only the sums over all
clients. Features are stored densely.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import OWNER_UNITS, Cohort
from graphfed.federation.secure.aggregation import messages
from graphfed.methods.common.feature_scaling import (
    Columns,
    Scaling,
    Sums,
    add_whole,
    from_message,
    sum_by_client,
    take_columns,
    to_message,
)

#: The quantiles: the lower quartile, the median and the upper quartile.
QUANTILES = (0.25, 0.5, 0.75)
#: Bits of a number, and those found in a pass.
BITS, STEP = 64, 4
PASSES, DIGITS = BITS // STEP, 2**STEP
#: The order statistics that are sought for each feature: two for each quantile.
SOUGHT = 2 * len(QUANTILES)


# ---- functions run at the clients --------------------------------------------------------------------------


def take_all(cohort: Cohort) -> Columns:
    return take_columns(cohort, torch.arange(cohort.num_features, device=cohort.id.device))


def count_nodes(columns: Columns) -> Sums:
    """Count every client's nodes, "nodes" [K, 1] int64 in OWNER_UNITS."""
    return {"nodes": sum_by_client(torch.ones_like(columns.x[:, :1], dtype=torch.int64), columns)}


def count_digits(columns: Columns, found: Tensor, number: int) -> Sums:
    """Count every client's nodes by the digit of pass `number`, among those with the digits found before.

    `found` [G, SOUGHT * F] int64 has these digits of every sought number, and zeros after them. The result is
    "digits" [K, SOUGHT * DIGITS * F] int64.
    """
    keys, width = ordered(columns.x), columns.x.shape[1]
    shift, sums = BITS - STEP * (number + 1), []
    for prefix in found.view(-1, SOUGHT, width).unbind(1):
        own = prefix if len(prefix) == 1 else prefix[columns.client]
        # In the first pass all bits are open, and the sign makes the digits -8 to 7.
        digit = (keys >> shift) + DIGITS // 2 if number == 0 else (keys >> shift) & (DIGITS - 1)
        among = torch.ones_like(digit, dtype=torch.bool)
        if number:
            among = keys >> (shift + STEP) == own >> (shift + STEP)
        sums += [sum_by_client(((digit == d) & among).long(), columns) for d in range(DIGITS)]
    return {"digits": torch.cat(sums, dim=1)}


def ordered(x: Tensor) -> Tensor:
    """Convert numbers to int64 in the same order; -0 becomes 0."""
    bits = (x.double() + 0.0).view(torch.int64)
    # The bits of a negative number ascend with its magnitude.
    return bits ^ ((bits >> 63) & (2**63 - 1))


def numbers_of(keys: Tensor) -> Tensor:
    """Convert the result of `ordered` back to float64."""
    return (keys ^ ((keys >> 63) & (2**63 - 1))).view(torch.float64)


def own_scaling(cohort: Cohort) -> Scaling:
    """Compute every client's scaling from its own quantiles; nothing is sent."""
    columns = take_all(cohort)
    search = start_search(count_nodes(columns), cohort.num_features)
    for number in range(PASSES):
        search = continue_search(search, count_digits(columns, search["found"], number), number)
    return finish_search(search)


# ---- functions run at the server (or where a client is alone) ----------------------------------------------


def start_search(counts: Sums, num_features: int) -> Sums:
    """Return the search before the first pass.

    The result is "nodes" [G, 1] float64, "found" [G, SOUGHT * F] int64 and "below" [G, SOUGHT, F] int64: how
    many nodes, in OWNER_UNITS, are certainly below the sought number.
    """
    nodes = counts["nodes"].reshape(-1, 1)
    zeros = torch.zeros(len(nodes), SOUGHT * num_features, dtype=torch.int64, device=nodes.device)
    return {"nodes": nodes, "found": zeros, "below": zeros.view(len(nodes), SOUGHT, num_features).clone()}


def continue_search(search: Sums, sums: Sums, number: int) -> Sums:
    """Find the next digit of every sought number from the counts of all clients."""
    groups, sought, width = search["below"].shape
    counts = sums["digits"].reshape(groups, sought, DIGITS, width)
    if bool((counts.sum(2) > search["nodes"][:, :, None]).any()):
        raise InputError(
            "feature scaling: the clients counted more nodes than they have; a client does not follow the "
            "protocol, find it by running with a part of the clients"
        )
    ranks = _ranks(search["nodes"]).long()
    # A node of several owners may count a few units less than OWNER_UNITS.
    least = (ranks + 1) * OWNER_UNITS - OWNER_UNITS // 2
    up_to = search["below"][:, :, None] + counts.cumsum(2)
    digit = (up_to < least[:, :, None, None]).sum(2).clamp(max=DIGITS - 1)
    before = torch.cat([torch.zeros_like(counts[:, :, :1]), counts.cumsum(2)], dim=2)
    below = search["below"] + before.gather(2, digit[:, :, None])[:, :, 0]
    signed = digit - DIGITS // 2 if number == 0 else digit
    found = search["found"].view(groups, sought, width) | (signed << (BITS - STEP * (number + 1)))
    return {**search, "found": found.reshape(groups, -1), "below": below}


def finish_search(search: Sums) -> Scaling:
    groups, sought, width = search["below"].shape
    numbers = numbers_of(search["found"]).view(groups, sought, width)
    position = _positions(search["nodes"])
    fraction = (position - position.floor())[:, :, None]
    low, high = numbers[:, 0::2], numbers[:, 1::2]
    lower, median, upper = (low + (high - low) * fraction).unbind(1)
    scale = torch.where(upper > lower, upper - lower, 1.0)
    return Scaling(median, scale, as_dense=True, linear=True)


def _positions(nodes: Tensor) -> Tensor:
    """Return the position of every quantile among the sorted values, [G, 3] float64, from 0."""
    count = (nodes.double() / OWNER_UNITS).round()
    return (count - 1).clamp(min=0) * torch.tensor(QUANTILES, dtype=torch.float64, device=nodes.device)


def _ranks(nodes: Tensor) -> Tensor:
    """Return the ranks of the sought numbers, [G, SOUGHT] float64: below and above every quantile."""
    position = _positions(nodes)
    return torch.stack([position.floor(), position.ceil()], dim=2).flatten(1)


# ---- the program over places -------------------------------------------------------------------------------


def agree_on_quantiles(fed: Federation, data: Located, config: object, num_features: int) -> Located:
    """Agree on a scaling; returns it at the clients."""
    add_up = partial(add_whole, fed, config)
    columns = fed.clients.run(take_all, data)
    counts = add_up(fed.clients.run(count_nodes, columns), 1, "quantile_nodes", "nodes")
    search = fed.server.run(start_search, counts, num_features)
    form = TensorForm(torch.int64, (1, SOUGHT * num_features))
    for number in range(PASSES):
        digits = fed.server.run(_found, search)
        found = fed.broadcast(digits, name="quantile_digits", grad=False, like=form)
        own = fed.clients.run(count_digits, columns, found, number)
        sums = add_up(own, SOUGHT * DIGITS * num_features, "quantile_counts", "digits")
        search = fed.server.run(continue_search, search, sums, number)
    result = fed.server.run(_message, search)
    form_of_result: dict[str, Any] = dict.fromkeys(
        ("center", "scale"), TensorForm(torch.float64, (num_features,))
    )
    form_of_result |= dict.fromkeys(("as_dense", "linear"), TensorForm(torch.int64, (1,)))
    sent = fed.broadcast(result, name="feature_scaling", grad=False, like=form_of_result)
    return fed.clients.run(from_message, sent)


def _found(search: Sums) -> Tensor:
    return search["found"]


def _message(search: Sums) -> Sums:
    return to_message(finish_search(search))


# ---- descriptions of transfers -----------------------------------------------------------------------------

_SECURE = "With aggregation=secure, before training"

MESSAGES = {
    "quantile_nodes": "With features=robust and aggregation=plaintext every client sends the server its "
    "number of nodes, before training.",
    "quantile_counts": "With features=robust and aggregation=plaintext every client sends the server, before "
    "training and in 16 passes, for every feature how many of its nodes lie in each of 16 ever smaller "
    "intervals around the quartiles of all nodes. The server reads each client's counts; if a client has a "
    "single node, they may show its value.",
    "quantile_digits": "With features=robust the server sends every client the binary digits of the "
    "quartiles that are known so far.",
    **messages("quantile_nodes", _SECURE, "a client's number of nodes"),
    **messages("quantile_counts", _SECURE, "a client's counts of nodes in intervals of every feature"),
}

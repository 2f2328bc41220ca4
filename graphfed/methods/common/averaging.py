"""How averaging methods average at the server: in clear, or by secure aggregation of the weighted parts.

The mean is sum_k n_k w_k / sum_k n_k over the clients that take part. With aggregation=secure every client
sends n_k w_k masked (`federation.secure_sum`), and the server, which knows the n_k, divides the sum. So at
least three clients with training vertices must take part: fewer are refused, since the sum of one is its own,
and of two, each could take its own part out of the next model."""

from typing import Any

from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.crypto.aggregation import FEWEST_CLIENTS, Terms
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import messages, secure_sum

__all__ = [
    "MESSAGES",
    "PROTECTION",
    "average",
    "check_aggregation",
]


def check_aggregation(aggregation: str, clients: int) -> None:
    """InputError, before anything crosses, where too few clients take part in a round, or the library is
    missing. clients: of a round."""
    if aggregation == "clear":
        return
    Terms.usual("a round", clients)
    if aggregation == "secure":
        import graphfed.crypto.pairwise  # noqa: F401 - refuses where cryptography is missing


def average(
    fed: Federation,
    local: Located,
    counts_of_own: Located,
    counts: Located,
    otherwise: Located,
    aggregation: str,
    *,
    name: str,
) -> Located:
    """The mean of `local` (per-client weights, [K_h, ...] or `SparseWeights`) by training vertices, at the
    server; `otherwise` where nobody that takes part has one.

    counts_of_own [K_h]: n_k at the clients; counts [K]: all of them at the server. Raises what `secure_sum`
    raises, and InputError where 1 or 2 clients with training vertices take part."""
    if aggregation == "clear":
        return fed.average(local, counts, otherwise=otherwise, name=name, grad=False)
    members = tuple(fed.roster.nonzero()[0].tolist())
    fed.server.run(enough_to_hide, counts, members)
    simulated = aggregation == "simulated"
    total = secure_sum(fed, local, counts_of_own, otherwise, name=name, simulated=simulated)
    return fed.server.run(divide, total, counts, members, otherwise)


def enough_to_hide(counts: Tensor, members: tuple[int, ...]) -> None:
    """A client of weight 0 hides nobody."""
    weighty = int((counts[list(members)] > 0).sum())
    if 0 < weighty < FEWEST_CLIENTS:
        raise InputError(
            f"secure aggregation needs {FEWEST_CLIENTS} clients with training vertices in a round, and in "
            f"this one only {weighty} of {len(members)} have any: the sum would show the weights of one to "
            "the server or to another; use a larger fraction, another partition, or aggregation=clear"
        )


def divide(total: Any, counts: Tensor, members: tuple[int, ...], otherwise: Any) -> Any:
    """sum_k n_k w_k / sum_k n_k, in the dtype of `otherwise`."""
    count = float(counts[list(members)].sum())
    if not count:
        return otherwise
    return pay.tree_map(lambda part, like: (part / count).to(like.dtype), total, otherwise)


#: The transfers of a secure average of `update`, in words; with aggregation=simulated, which hides nothing,
#: the same cross without keys and masks, and the server reads every site's weights.
MESSAGES = messages(
    "update",
    "With aggregation=secure or simulated, in every round",
    "a site's weights, times its number of training vertices",
)
#: For the table of methods.
PROTECTION = (
    "none: in clear; with aggregation=secure the server reads the sum of the weights, not each site's"
)

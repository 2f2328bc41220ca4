"""The sum of what clients have, at every client, and nobody sees a part: n-out-of-n secret sharing (SAPGNN,
eqs. 21 and 22, Alg. 2, step 3).

Every client cuts its numbers into K additive shares, keeps one and sends each other client one; adds up the
shares it has, sends that to everybody, and adds up what it got. The shares are drawn from the operating
system's entropy; the sum does not depend on them. K (K - 1) messages twice: 2 K (K - 1) w numbers of 8 bytes.

A client learns the sum, so with two clients each learns the other's part. Everybody must take part. Argument
and assumptions: `graphfed.crypto.sharing`."""

from typing import Literal, TypeVar

import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.crypto.sharing import additive_shares, decode, encode
from graphfed.errors import InputError
from graphfed.federation.core import Federation
from graphfed.federation.payload import Payload
from graphfed.federation.secure.protection import needs_parts
from graphfed.federation.values import Located

__all__ = ["ClientSum", "protected_sum_at_clients", "shared_sum"]

P = TypeVar("P", bound=Payload)

#: How a sum that every client gets is protected: read by the server, which adds it up, or by additive shares.
ClientSum = Literal["additive", "plaintext"]

#: Bytes of shares that one process may hold: a stacked cohort deals those of all its clients at once.
MAX_BYTES = 4 * 2**30


def protected_sum_at_clients(fed: Federation, x: Located, protection: ClientSum, *, name: str) -> Located:
    """Return sum_k x_k at every client, under the protection that a setting asks for.

    In plaintext the server adds up and returns the sum: the transfers are ``name`` and ``name_sum``. With
    additive shares (`shared_sum`) the clients do.

    Args:
        x: Every client's own floating tensors, [K_h, ...] at each worker, where the protection needs them
            (`needs_parts`), else the sum over the worker's clients, [...].
    """
    if needs_parts(protection):
        return shared_sum(fed, x, name=name)
    total = fed.sum(x, name=name, grad=False)
    return fed.broadcast(total, name=f"{name}_sum", grad=False)


def shared_sum(fed: Federation, x: Located, *, name: str) -> Located:
    """sum_k x_k at the clients, the same at all of them. x: every client's own floating tensors, [K_h, ...]
    at each worker; the result [...] is off by at most K * 2^-25 (`encode`).

    The transfers are ``name/shares`` and ``name/sums``. InputError for a number that cannot be shared, and
    where the shares of a cohort's clients take more than 4 GiB."""
    clients, ids, everyone = fed.num_clients, fed.client_ids(), fed.everyone()
    shares = fed.clients.run(deal, x, clients)
    others = fed.exchange(shares, everyone, name=f"{name}/shares", protection="shared", grad=False)
    mine = fed.clients.run(add_shares, shares, others, ids, clients)
    told = fed.clients.run(for_everyone, mine, clients)
    others = fed.exchange(told, everyone, name=f"{name}/sums", protection="shared", grad=False)
    return fed.clients.run(open_sum, mine, others, x)


def deal(x: Payload, clients: int) -> Tensor:
    """A share of every client's numbers for every client: [K_h * K, w] int64, by sender and receiver."""
    flat = torch.cat([leaf.flatten(1) for leaf in pay.tensors_in(x)], 1)
    size = flat.numel() * clients * 8
    if size > MAX_BYTES:
        raise InputError(
            f"secret sharing among {clients} clients takes {size / 2**30:.1f} GiB here; use fewer clients, a "
            "smaller network, or aggregation=plaintext"
        )
    words = encode(flat, clients)
    return additive_shares(words, clients).movedim(-1, 1).flatten(0, 1)


def add_shares(shares: Tensor, others: Tensor, ids: Tensor, clients: int) -> Tensor:
    """The sum of the shares each client has, its own and the others': [K_h, w]."""
    kept = shares.view(len(ids), clients, -1)[torch.arange(len(ids), device=ids.device), ids]
    return kept + others.view(len(ids), clients - 1, shares.shape[1]).sum(1)


def for_everyone(mine: Tensor, clients: int) -> Tensor:
    """Each client's sum, for every client: [K_h * K, w]."""
    return mine.repeat_interleave(clients, 0)


def open_sum(mine: Tensor, others: Tensor, x: P) -> P:
    """All sums added up, in the form of one client's part of `x`. Every client gets the same: here the
    cohort's first."""
    first = others.view(len(mine), -1, mine.shape[1])[0]
    total = mine[0] + first.sum(0)
    sizes = [leaf[0].numel() for leaf in pay.tensors_in(x)]
    parts = iter(torch.split(total, sizes))
    return pay.tree_map(lambda leaf: decode(next(parts), leaf.dtype).view(leaf.shape[1:]), x)

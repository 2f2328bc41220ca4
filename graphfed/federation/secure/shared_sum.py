"""The sum over clients at every client, by n-out-of-n secret sharing: no client sees another's part.

It implements SAPGNN, Eqs. (21) and (22), step 3 of Alg. 2. Every client splits its numbers into K additive
shares, keeps one and sends one to each other client. It adds up the shares that it has, sends the result to
every other client, and adds up the results. Shares are drawn from the operating system's entropy; the sum
does not depend on them. There are K (K - 1) messages twice, with 2 K (K - 1) w numbers of 8 bytes in all.

A client learns the sum, so with two clients each learns the other's part. Every client must take part.
Argument and assumptions: `graphfed.crypto.sharing`.
"""

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

P = TypeVar("P", bound=Payload)

#: How a sum that every client gets is protected: by additive shares, or in plaintext, where the server reads
#: each part.
ClientSum = Literal["additive", "plaintext"]

#: Bytes of shares that one process may hold. A cohort makes the shares of all its clients at once.
MAX_BYTES = 4 * 2**30


def protected_sum_at_clients(fed: Federation, x: Located, protection: ClientSum, *, name: str) -> Located:
    """Compute sum_k x_k at every client, under the protection that a setting asks for.

    In plaintext the server adds up and returns the sum, by the transfers ``name`` and ``name_sum``. With
    additive shares the clients do (`shared_sum`). Then `x` has each client's floating tensors, [K_h, ...] at
    each worker; in plaintext it has the sum over the worker's clients, [...] (`needs_parts`).
    """
    if needs_parts(protection):
        return shared_sum(fed, x, name=name)
    total = fed.sum(x, name=name, grad=False)
    return fed.broadcast(total, name=f"{name}_sum", grad=False, like=x)


def shared_sum(fed: Federation, x: Located, *, name: str) -> Located:
    """Compute sum_k x_k at every client, by additive secret sharing of floating tensors, [K_h, ...] at each
    worker.

    The transfers are called ``name/shares`` and ``name/sums``. The sum [...] is the same at all clients, and
    off by at most K * 2^-25 (`encode`). InputError for a number that cannot be shared, or if the shares of a
    cohort's clients take more than 4 GiB.
    """
    clients, ids, everyone = fed.num_clients, fed.client_ids(), fed.everyone()
    shares = fed.clients.run(make_shares, x, clients)
    remote = fed.exchange(shares, everyone, name=f"{name}/shares", protection="shared", grad=False)
    local = fed.clients.run(add_shares, shares, remote, ids, clients)
    copies = fed.clients.run(repeat_for_clients, local, clients)
    remote = fed.exchange(copies, everyone, name=f"{name}/sums", protection="shared", grad=False)
    return fed.clients.run(open_sum, local, remote, x)


def make_shares(x: Payload, clients: int) -> Tensor:
    """Make a share of every client's numbers for every client, [K_h * K, w] int64, by sender and receiver."""
    flat = torch.cat([leaf.flatten(1) for leaf in pay.tensors_in(x)], 1)
    size = flat.numel() * clients * 8
    if size > MAX_BYTES:
        raise InputError(
            f"secret sharing among {clients} clients takes {size / 2**30:.1f} GiB in this process; use fewer "
            "clients, a smaller network, or aggregation=plaintext"
        )
    # `clients` numbers are added, so each must leave room for the others.
    words = encode(flat, clients)
    # [K_h, w, K] -> [K_h, K, w] -> [K_h * K, w], as `route.everyone` expects them.
    return additive_shares(words, clients).movedim(-1, 1).flatten(0, 1)


def add_shares(shares: Tensor, remote: Tensor, ids: Tensor, clients: int) -> Tensor:
    """Add up the shares that each client has, the one it kept and those it received: [K_h, w]."""
    # SAPGNN, Eq. (21)
    # The sums wrap modulo 2^64, as the shares do.
    # The share that a client made for itself stays with it.
    own_share = shares.view(len(ids), clients, -1)[torch.arange(len(ids), device=ids.device), ids]
    return own_share + remote.view(len(ids), clients - 1, shares.shape[1]).sum(1)


def repeat_for_clients(local: Tensor, clients: int) -> Tensor:
    return local.repeat_interleave(clients, 0)


def open_sum(local: Tensor, remote: Tensor, x: P) -> P:
    """Add up all sums, in the form of one client's part of `x`.

    Every client gets the same; the cohort's first stands for all.
    """
    first = remote.view(len(local), -1, local.shape[1])[0]
    # SAPGNN, Eq. (22)
    total = local[0] + first.sum(0)
    sizes = [leaf[0].numel() for leaf in pay.tensors_in(x)]
    parts = iter(torch.split(total, sizes))
    return pay.tree_map(lambda leaf: decode(next(parts), leaf.dtype).view(leaf.shape[1:]), x)

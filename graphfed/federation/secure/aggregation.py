"""The weighted sum of what clients have, at the server, which sees nobody's part: secure aggregation of the
clients that take part in the round (Bonawitz et al., CCS 2017).

Numbers are cut to fixed point (`graphfed.crypto.sharing`) and added modulo 2^64, so the sum is exact and the
same to the last bit however the clients are placed. What holds, against whom: `graphfed.crypto.aggregation`.
With n clients and w numbers a client sends 112 n + 8 w + 16 bytes and gets 145 n - 56 (`Terms.sizes`).

A transfer waits for all clients of the round: who drops out within one is waited for, as in any other
transfer, or the run ends. That the sum can do without those who drop out is used by nothing here yet.

`protected_sum` and `protected_mean` are the sum and the mean under the protection that a setting asks for: in
plaintext the server reads each part. The mean is sum_k n_k w_k / sum_k n_k: securely, every client sends
n_k w_k masked, and the server, which knows the n_k, divides the sum. So at least three clients of a weight
above 0 must take part: fewer are refused, since the sum of one is its own, and of two, each could take its
own part out of the next model."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.crypto.aggregation import FEWEST_CLIENTS, Client, IdealClient, IdealServer, Server, Terms
from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.sharing import decode, encode
from graphfed.errors import InputError
from graphfed.federation.core import Federation
from graphfed.federation.payload import Leaf, Payload
from graphfed.federation.secure.protection import needs_parts
from graphfed.federation.transfer import Accept, Options
from graphfed.federation.values import Located
from graphfed.nn.sparse import SparseWeights

__all__ = [
    "SumForm",
    "SumProtection",
    "check_sums",
    "messages",
    "protected_mean",
    "protected_sum",
    "secure_sum",
]

#: How a sum at the server is protected: it reads each part, or by secure aggregation their sum only.
SumProtection = Literal["plaintext", "secure"]
#: Bytes of masked vectors and sealed shares that one process may hold for its clients.
MAX_BYTES = 4 * 2**30
#: Every message's protection on the ledger.
PROTECTION = {
    "keys": "public",
    "all_keys": "public",
    "sealed_shares": "encrypted",
    "forwarded_shares": "encrypted",
    "masked": "aggregate",
    "survivors": "public",
    "unmask": "shared",
}

Clients = tuple[Client, ...]


def messages(name: str, when: str, what: str) -> dict[str, str]:
    """The transfers of a sum called `name`, in words (see `Sent.messages`). when: begins each sentence;
    what: of a client is summed."""
    return {
        f"{name}/keys": f"{when}: two public keys of each client, made for this sum. They say nothing of its "
        "data.",
        f"{name}/all_keys": f"{when}: the public keys of all clients that take part, from the server to "
        f"each.",
        f"{name}/sealed_shares": f"{when}: for every other client a share of this client's two secrets "
        f"of the "
        "sum, sealed for it. The server passes them on and cannot open them.",
        f"{name}/forwarded_shares": f"{when}, from the server: the shares that the other clients sealed "
        f"for this one. "
        "Fewer than the threshold of them (more than two thirds of the clients) say nothing.",
        f"{name}/masked": f"{when}: {what}, under masks that cancel in the sum over the clients. The server "
        "learns the sum and no client's own; with protocols=simulated there are no masks, and it reads them.",
        f"{name}/survivors": f"{when}, from the server: whose masked numbers have come.",
        f"{name}/unmask": f"{when}: the shares that open the masks left over in the sum. The server can take "
        "them off the sum, and off no single client's numbers.",
    }


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumForm:
    """What a sum over clients adds up, in plaintext and hidden.

    Attributes:
        total: At the clients, the sum over a worker's clients. The server adds these up in plaintext.
        parts: At the clients, each client's own part as floating tensors, [K_h, ...].
        like: At the server, a value of the form of one client's part.
        opened: At the server, turns a sum of parts into a sum of totals (None: they are the same).
    """

    total: Callable[..., Any]
    parts: Callable[..., Any]
    like: Callable[..., Any]
    opened: Callable[[Any], Any] | None = None


def check_sums(fed: Federation, protection: str, clients: int) -> None:
    """Refuse sums that a protection cannot hide, before anything is sent.

    Args:
        protection: A `SumProtection`.
        clients: How many take part in a round.

    Raises:
        InputError: If too few clients take part, or a library is missing.
    """
    if not needs_parts(protection):
        return
    Terms.usual("a round", clients)
    if not fed.simulated:
        import graphfed.crypto.pairwise  # noqa: F401 - refuses where cryptography is missing


def protected_sum(
    fed: Federation,
    form: SumForm,
    *values: object,
    protection: str,
    name: str,
    hidden_name: str = "",
    like: tuple[object, ...] = (),
    accept: Accept | None = None,
    finite: bool = True,
) -> Located:
    """Add up at the server what the clients have, under the protection that a setting asks for.

    Args:
        form: What is added up.
        values: The arguments of `form.total` and `form.parts`.
        protection: A `SumProtection`.
        name: The name of the transfer in plaintext; the hidden one is called `hidden_name`, if that is given.
        like: The arguments of `form.like`.
        accept, finite: The checks of what other processes send in plaintext (`transfer.Options`).

    Returns:
        The sum at the server, in the form of `form.total`.
    """
    if not needs_parts(protection):
        total = fed.clients.run(form.total, *values)
        return fed.sum(total, name=name, grad=False, accept=accept, finite=finite)
    parts, one = fed.clients.run(form.parts, *values), fed.server.run(form.like, *like)
    hidden = secure_sum(fed, parts, None, one, name=hidden_name or name)
    return hidden if form.opened is None else fed.server.run(form.opened, hidden)


def protected_mean(
    fed: Federation,
    x: Located,
    weight: Located,
    weights: Located,
    otherwise: Located,
    protection: str,
    *,
    name: str,
) -> Located:
    """Average at the server what the clients have, under the protection that a setting asks for.

    Args:
        x: Every client's own floating tensors, [K_h, ...] at each worker, or `SparseWeights`.
        weight: [K_h] at the clients, the weight of each in the mean.
        weights: [K] at the server, all of them.
        otherwise: The result, at the server, where all that take part have weight 0.
        protection: A `SumProtection`.

    Returns:
        The mean at the server, in the form of `otherwise`.

    Raises:
        InputError: If a hidden mean is of 1 or 2 clients with a weight above 0; what `secure_sum` raises.
    """
    if not needs_parts(protection):
        return fed.average(x, weights, otherwise=otherwise, name=name, grad=False)
    members = tuple(fed.roster.nonzero()[0].tolist())
    fed.server.run(enough_to_hide, weights, members)
    total = secure_sum(fed, x, weight, otherwise, name=name)
    return fed.server.run(divide, total, weights, members, otherwise)


def secure_sum(fed: Federation, x: Located, scale: Located | None, like: Located, *, name: str) -> Located:
    """sum_k scale_k x_k over the clients that take part, at the server: [...] float64, off by at most K *
    2^-25.

    x: every client's own floating tensors, [K_h, ...] at each worker, or `SparseWeights`; scale [K_h] at the
    clients, where 0 leaves a client out whatever its numbers (None: 1 for each); like: a value at the server
    of the form of one client's part. The transfers are ``name/keys`` and so on (`PROTECTION`).

    InputError for fewer than 3 clients, a number that cannot be summed, a library that is missing, and where
    the masked vectors of a cohort take more than 4 GiB."""
    members = tuple(np.flatnonzero(fed.roster).tolist())
    terms = Terms.usual(f"{name}, round {fed.ledger.round}", len(members))

    def options(step: str) -> Options:
        protection = fed.protection_of(PROTECTION[step])
        return {"name": f"{name}/{step}", "protection": protection, "grad": False}

    present, ids = fed.present(), fed.client_ids()
    scale = present if scale is None else scale
    clients = fed.clients.run(begin_clients, x, ids, present, members, terms, fed.simulated)
    server = fed.server.run(begin_server, like, terms, fed.simulated)

    keys = fed.collect(fed.clients.run(advertise, clients), **options("keys"))
    all_keys = fed.server.run(list_keys, server, keys)
    all_keys = fed.broadcast(all_keys, **options("all_keys"))

    sealed = fed.collect(fed.clients.run(share_keys, clients, all_keys), **options("sealed_shares"))
    forwarded_shares = fed.scatter(fed.server.run(forward, server, sealed), **options("forwarded_shares"))

    masked = fed.clients.run(mask, clients, forwarded_shares, x, scale, present, terms)
    masked = fed.collect(masked, **options("masked"))
    survivors = fed.server.run(add_masked, server, masked)
    survivors = fed.broadcast(survivors, **options("survivors"))

    shares = fed.collect(fed.clients.run(unmask, clients, survivors), **options("unmask"))
    return fed.server.run(open_sum, server, shares, like)


# ---- at the clients: of those of a cohort that take part, P_h ----------------------------------------------


def begin_clients(
    x: Payload, ids: Tensor, present: Tensor, members: tuple[int, ...], terms: Terms, simulated: bool
) -> Clients:
    """The machines of a cohort's clients; `members`: the ids of all clients that take part."""
    width = sum(_size(leaf) for leaf in _leaves(x))
    sizes = terms.sizes(width)
    size = int(present.sum()) * (sizes["masked"] + sizes["sealed_shares"])
    if size > MAX_BYTES:
        raise InputError(
            f"secure aggregation of {width} numbers among {terms.clients} clients takes {size / 2**30:.1f} "
            "GiB here; use fewer clients in a process, a smaller network, or aggregation=plaintext"
        )
    machine = IdealClient if simulated else Client
    return tuple(machine(terms, members.index(k)) for k in ids[present].tolist())


def advertise(clients: Clients) -> Tensor:
    return _rows((client.advertise() for client in clients), len(clients))


def share_keys(clients: Clients, all_keys: Tensor) -> Tensor:
    message = _bytes(all_keys)
    return _rows((client.share_keys(message) for client in clients), len(clients))


def mask(
    clients: Clients, forwarded_shares: Tensor, x: Payload, scale: Tensor, present: Tensor, terms: Terms
) -> Tensor:
    """Every client's masked vector; one at a time, so that no other copy of all of them is made."""
    chosen = present.nonzero()[:, 0].tolist()

    def masked() -> Iterator[bytes]:
        for client, message, k in zip(clients, _messages(forwarded_shares), chosen, strict=True):
            vector = _vector(x, k, float(scale[k]))
            yield client.mask(message, encode(vector, terms.clients).cpu().numpy())

    return _rows(masked(), len(clients))


def unmask(clients: Clients, survivors: Tensor) -> Tensor:
    message = _bytes(survivors)
    return _rows((client.unmask(message) for client in clients), len(clients))


# ---- at the server -----------------------------------------------------------------------------------------


def begin_server(like: Payload, terms: Terms, simulated: bool) -> Server:
    width = sum(leaf.numel() for leaf in _tensors(like))
    return (IdealServer if simulated else Server)(terms, width)


def list_keys(server: Server, keys: Tensor) -> Tensor:
    return _tensor(server.all_keys(dict(enumerate(_messages(keys)))))


def forward(server: Server, sealed: Tensor) -> Tensor:
    told = server.forward(dict(enumerate(_messages(sealed))))
    return _rows((told[party] for party in sorted(told)), len(told))


def add_masked(server: Server, masked: Tensor) -> Tensor:
    for party, message in enumerate(_messages(masked)):
        server.add_masked(party, message)
    return _tensor(server.request())


def open_sum(server: Server, shares: Tensor, like: Payload) -> Any:
    """The sum, in the form of `like`."""
    words = torch.from_numpy(server.open(dict(enumerate(_messages(shares)))))
    parts = iter(torch.split(words, [leaf.numel() for leaf in _tensors(like)]))
    return _filled(like, parts)


def enough_to_hide(weights: Tensor, members: tuple[int, ...]) -> None:
    """Refuse a mean in which fewer than `FEWEST_CLIENTS` have a weight above 0. A client of weight 0 hides
    nobody."""
    weighty = int((weights[list(members)] > 0).sum())
    if 0 < weighty < FEWEST_CLIENTS:
        raise InputError(
            f"secure aggregation needs {FEWEST_CLIENTS} clients with training nodes in a round, and in "
            f"this one only {weighty} of {len(members)} have any: the sum would show the weights of one to "
            "the server or to another; use a larger fraction, another partition, or aggregation=plaintext"
        )


def divide(total: Any, weights: Tensor, members: tuple[int, ...], otherwise: Any) -> Any:
    """sum_k n_k w_k / sum_k n_k, in the dtype of `otherwise`."""
    count = float(weights[list(members)].sum())
    if not count:
        return otherwise
    return pay.tree_map(lambda part, like: (part / count).to(like.dtype), total, otherwise)


# ---- messages as rows of bytes, payloads as vectors --------------------------------------------------------


def _tensor(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def _bytes(message: Tensor) -> bytes:
    if message.dtype != torch.uint8:
        raise ProtocolError(f"a message of {message.dtype} where bytes are expected")
    return message.cpu().numpy().tobytes()


def _rows(messages: Iterable[bytes], count: int) -> Tensor:
    """`count` messages of one length, a row each: [P, L] uint8. Filled as they come."""
    rows: Tensor | None = None
    for row, message in enumerate(messages):
        if rows is None:
            rows = torch.empty((count, len(message)), dtype=torch.uint8)
        rows[row] = _tensor(message)
    assert rows is not None  # a place at which nobody takes part runs nothing
    return rows


def _messages(rows: Tensor) -> Iterator[bytes]:
    return (_bytes(row) for row in rows)


def _leaves(tree: Payload) -> list[Leaf]:
    """The leaves of a payload, those of a dictionary by name: in one order at both ends."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _leaves(tree[key])]
    return [leaf for item in tree for leaf in _leaves(item)] if isinstance(tree, tuple) else [tree]


def _tensors(part: Payload) -> list[Tensor]:
    """The tensors of one client's part, which has no others, in the order of `_leaves`."""
    return [leaf for leaf in _leaves(part) if isinstance(leaf, Tensor)]


def _size(leaf: Leaf) -> int:
    """Numbers of one client's part."""
    shape = leaf.part_shape if isinstance(leaf, SparseWeights) else leaf.shape[1:]
    return int(np.prod(shape, dtype=np.int64))


def _vector(x: Payload, k: int, scale: float) -> Tensor:
    """What the cohort's client k has, times `scale`: [w] float64."""
    flat = torch.cat([leaf.detach().flatten().double() for leaf in _tensors(pay.part_of(x, k))])
    return flat * scale if scale else torch.zeros_like(flat)


def _filled(like: Any, parts: Iterator[Tensor]) -> Any:
    """The sums in the form of `like`."""
    if isinstance(like, dict):
        filled = {key: _filled(like[key], parts) for key in sorted(like)}
        return {key: filled[key] for key in like}
    if isinstance(like, tuple):
        return tuple(_filled(item, parts) for item in like)
    return decode(next(parts), torch.float64).view(like.shape).to(like.device)

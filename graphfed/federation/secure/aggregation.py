"""Secure aggregation: a weighted sum over clients at the server, which sees no client's part.

The protocol is that of Bonawitz et al., CCS 2017, among the clients that take part in the round. Numbers are
rounded to fixed point (`graphfed.crypto.sharing`) and added modulo 2^64, so the sum is exact and has the same
bits in every placement. `graphfed.crypto.aggregation.terms` states what is hidden from whom. With n clients
and w numbers, a client sends 112 n + 8 w + 16 bytes and receives 145 n - 56 (`Terms.sizes`).

A transfer waits for all clients of the round. If one stops within it, the transfer waits, or the run ends, as
in any other transfer. The protocol could complete the sum without such clients, but nothing here uses this
yet.

`protected_sum` and `protected_mean` compute the sum and the mean under the protection that a setting asks
for; in plaintext the server reads each part. The mean is sum_k n_k w_k / sum_k n_k. To hide the w_k, every
client sends n_k w_k masked, and the server, which knows the n_k, divides the sum.

At least three clients must contribute to a sum: the sum of one client shows its part, and of two, each could
subtract its own part from the next model. A client without data contributes nothing that hides others.
`protected_mean` counts the clients with a weight above 0 in every round. Where the server may not know who
contributes, `check_contributors` counts them by a secure sum, before the sums that need it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.crypto.aggregation.client import Client, IdealClient
from graphfed.crypto.aggregation.server import IdealServer, Server
from graphfed.crypto.aggregation.terms import FEWEST_CLIENTS, Terms
from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.sharing import FRACTION_BITS, decode, encode
from graphfed.errors import InputError
from graphfed.federation.core import Federation
from graphfed.federation.payload import Leaf, Payload
from graphfed.federation.secure.protection import needs_parts
from graphfed.federation.transfer import Accept, Options, TensorForm
from graphfed.federation.values import Located
from graphfed.nn.sparse import SparseWeights

#: How a sum at the server is protected: it reads each part, or by secure aggregation their sum only.
SumProtection = Literal["plaintext", "secure"]
#: Bytes of masked vectors and sealed shares that one process may hold for its clients.
MAX_BYTES = 4 * 2**30
#: How the ledger records each step of the protocol.
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
    """Describe the transfers of a secure sum, for `Sent.messages`; `what` is summed, as in "its gradient"."""
    return {
        f"{name}/keys": f"{when}: each client sends the server two public keys that it made for this sum. "
        "They say nothing about its data.",
        f"{name}/all_keys": f"{when}: the server sends each client the public keys of all clients that take "
        "part.",
        f"{name}/sealed_shares": f"{when}: each client encrypts, for every other client, a share of its two "
        "secrets of this sum. The server forwards the shares and cannot read them.",
        f"{name}/forwarded_shares": f"{when}: the server forwards to each client the shares that the others "
        "encrypted for it. Fewer shares than the threshold (more than two thirds of the clients) say nothing "
        "about a secret.",
        f"{name}/masked": f"{when}: the server receives {what}, hidden by masks that cancel in the sum over "
        "the clients. The server learns the sum, but no single client's values. With protocols=simulated "
        "there are no masks, and the server can read the values.",
        f"{name}/survivors": f"{when}: the server sends each client the list of clients whose masked values "
        "have arrived.",
        f"{name}/unmask": f"{when}: each client sends the server the shares that remove the remaining masks "
        "from the sum. They cannot remove the masks from one client's values.",
    }


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumForm:
    """What a sum over clients adds up, in plaintext and hidden.

    Attributes:
        total: Runs at the clients: the sum over a worker's clients. In plaintext the server adds these up.
        parts: Runs at the clients: each client's part as floating tensors, [K_h, ...].
        like: Runs at the server: a value of the form of one client's part.
        opened: Runs at the server: converts a sum of parts to a sum of totals (None: they are the same).
    """

    total: Callable[..., Any]
    parts: Callable[..., Any]
    like: Callable[..., Any]
    opened: Callable[[Any], Any] | None = None


def encode_whole(x: Tensor) -> Tensor:
    """Convert whole numbers [...] int64 to floats whose secure sum is exact, whatever the number of clients,
    while it is below 2^53.
    """
    # The unit of the fixed point, so that nothing is rounded.
    return x.double() * 2.0**-FRACTION_BITS


def decode_whole(total: Tensor) -> Tensor:
    """Convert a secure sum of `encode_whole` to the sum of the whole numbers, int64."""
    return (total * 2.0**FRACTION_BITS).long()


def check_sums(fed: Federation, protection: str, clients: int) -> None:
    """Raise InputError if a protection cannot hide sums over so many clients, before anything is sent."""
    if not needs_parts(protection):
        return
    # Raises InputError for too few clients.
    Terms.usual("a round", clients)
    if not fed.simulated:
        import graphfed.crypto.pairwise  # noqa: F401 - refuses where cryptography is missing


def check_contributors(
    fed: Federation, contributes: Located, data: tuple[str, ...], protection: str, *, name: str
) -> None:
    """Raise InputError if one or two clients contribute to a sum, before the sums are computed.

    The server learns how many clients contribute to each sum, and not which. `contributes` is [K_h,
    len(data)] bool at the clients: whether the client has such data, as in "training nodes".
    """
    if not needs_parts(protection):
        return
    like = fed.server.run(zeros, len(data))
    # A sum of 0s and 1s: the server learns how many, not who.
    counts = secure_sum(fed, contributes, None, like, name=name)
    fed.server.run(check_counts, counts, data, int(fed.roster.sum()))


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
        values: The arguments of `form.total` and `form.parts`.
        hidden_name: The name of the secure sum (empty: `name`).
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
        x: Each client's floating tensors, [K_h, ...] at each worker, or `SparseWeights`.
        weight: [K_h] at the clients, the weight of each in the mean.
        weights: [K] at the server, all weights.
        otherwise: At the server, the result if all clients that take part have weight 0; also its form.

    Raises:
        InputError: If a hidden mean is of 1 or 2 clients with a weight above 0, and for the causes of
            `secure_sum`.
    """
    if not needs_parts(protection):
        return fed.average(x, weights, otherwise=otherwise, name=name, grad=False)
    members = tuple(fed.roster.nonzero()[0].tolist())
    # Before anything is sent: a mean of one or two clients would show their values.
    fed.server.run(check_enough_weighted, weights, members)
    total = secure_sum(fed, x, weight, otherwise, name=name)
    return fed.server.run(divide, total, weights, members, otherwise)


def secure_sum(fed: Federation, x: Located, scale: Located | None, like: Located, *, name: str) -> Located:
    """Compute sum_k scale_k x_k over the clients that take part, at the server.

    Args:
        x: Each client's floating tensors, [K_h, ...] at each worker, or `SparseWeights`.
        scale: [K_h] at the clients (None: 1 for each). A client with scale 0 does not count, whatever its
            numbers.
        like: At the server, a value of the form of one client's part.
        name: The transfers are called ``name/keys`` and so on (`PROTECTION`).

    Returns:
        [...] float64 at the server, off by at most K * 2^-25.

    Raises:
        InputError: For fewer than 3 clients, a number that cannot be summed, if the extra `secure` is not
            installed, or if the masked vectors of a cohort take more than 4 GiB.
    """
    members = tuple(np.flatnonzero(fed.roster).tolist())
    # The name and the round are in the terms, so messages of another sum do not fit.
    terms = Terms.usual(f"{name}, round {fed.ledger.round}", len(members))

    sizes = terms.sizes(width=0)

    def options(step: str) -> Options:
        protection = fed.protection_of(PROTECTION[step])
        # The number of masked bytes is the server's to check: it knows the width of the sum.
        form = None if step == "masked" else TensorForm(torch.uint8, (sizes[step],))
        return {"name": f"{name}/{step}", "protection": protection, "grad": False, "like": form}

    present, ids = fed.present(), fed.client_ids()
    # Present clients have 1; absent ones run nothing.
    scale = present if scale is None else scale
    clients = fed.clients.run(begin_clients, x, ids, present, members, terms, fed.simulated)
    server = fed.server.run(begin_server, like, terms, fed.simulated)

    # Round 0 of Bonawitz et al.: every client sends public keys, and gets those of all.
    keys = fed.collect(fed.clients.run(advertise, clients), **options("keys"))
    all_keys = fed.server.run(list_keys, server, keys)
    all_keys = fed.broadcast(all_keys, **options("all_keys"))

    # Round 1: every client shares its two secrets with all others, encrypted, by way of the server.
    sealed = fed.collect(fed.clients.run(share_keys, clients, all_keys), **options("sealed_shares"))
    forwarded_shares = fed.scatter(fed.server.run(forward, server, sealed), **options("forwarded_shares"))

    # Round 2: every client sends its vector under pairwise masks and a mask of its own.
    masked = fed.clients.run(mask, clients, forwarded_shares, x, scale, present, terms)
    masked = fed.collect(masked, **options("masked"))
    survivors = fed.server.run(add_masked, server, masked)
    survivors = fed.broadcast(survivors, **options("survivors"))

    # Round 4 (round 3, against an active server, is left out): shares that remove the masks left in the sum.
    shares = fed.collect(fed.clients.run(unmask, clients, survivors), **options("unmask"))
    return fed.server.run(open_sum, server, shares, like, str(fed.device))


# ---- at the clients: of those of a cohort that take part, P_h ----------------------------------------------


def begin_clients(
    x: Payload, ids: Tensor, present: Tensor, members: tuple[int, ...], terms: Terms, simulated: bool
) -> Clients:
    """Make the protocol's state machines of a cohort's clients; `members` are all clients that take part."""
    width = sum(_size(leaf) for leaf in _leaves(x))
    sizes = terms.sizes(width)
    # A cohort holds the messages of all its clients at once.
    size = int(present.sum()) * (sizes["masked"] + sizes["sealed_shares"])
    if size > MAX_BYTES:
        raise InputError(
            f"secure aggregation of {width} numbers among {terms.clients} clients takes {size / 2**30:.1f} "
            "GiB in this process; use fewer clients in a process, a smaller network, or aggregation=plaintext"
        )
    # In the protocol a client's number is its position among those that take part.
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
    """Make every client's masked vector, one at a time, so that there is no second copy of all of them."""
    chosen = present.nonzero()[:, 0].tolist()

    def masked() -> Iterator[bytes]:
        for client, message, k in zip(clients, _messages(forwarded_shares), chosen, strict=True):
            vector = _vector(x, k, float(scale[k]))
            # `terms.clients` numbers are added, so each must leave room for the others.
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
    forwarded = server.forward(dict(enumerate(_messages(sealed))))
    return _rows((forwarded[party] for party in sorted(forwarded)), len(forwarded))


def add_masked(server: Server, masked: Tensor) -> Tensor:
    for party, message in enumerate(_messages(masked)):
        server.add_masked(party, message)
    return _tensor(server.request())


def open_sum(server: Server, shares: Tensor, like: Payload, device: str) -> Any:
    """Remove the masks from the sum, and give it the form of `like`."""
    # int64 words modulo 2^64; `_fill` decodes them leaf by leaf.
    words = torch.from_numpy(server.open(dict(enumerate(_messages(shares)))))
    parts = iter(torch.split(words, [leaf.numel() for leaf in _tensors(like)]))
    return _fill(like, parts, device)


def check_enough_weighted(weights: Tensor, members: tuple[int, ...]) -> None:
    check_enough(int((weights[list(members)] > 0).sum()), len(members), "training nodes", True)


def check_counts(counts: Tensor, data: tuple[str, ...], clients: int) -> None:
    """Refuse if one or two of the clients have one of several kinds of data; `counts` is [len(data)]."""
    for count, noun in zip(counts.round().long().tolist(), data, strict=True):
        check_enough(count, clients, noun)


def check_enough(contributors: int, clients: int, data: str, in_round: bool = False) -> None:
    """Refuse a sum of one or two contributors of data; `in_round` if others may take part in another
    round.
    """
    if 0 < contributors < FEWEST_CLIENTS:
        of_round, larger = (" in this round", ", a larger fraction") if in_round else ("", "")
        raise InputError(
            f"secure aggregation needs {FEWEST_CLIENTS} clients with {data}, but only {contributors} of the "
            f"{clients} clients{of_round} {'have' if contributors > 1 else 'has'} any: the sum would show "
            "one client's values to the server or to another client; use another partition, another split"
            f"{larger}, or aggregation=plaintext"
        )


def zeros(width: int) -> Tensor:
    """Return the form of one client's numbers, [width]."""
    return torch.zeros(width)


def divide(total: Any, weights: Tensor, members: tuple[int, ...], otherwise: Any) -> Any:
    """Compute sum_k n_k w_k / sum_k n_k, in the dtype of `otherwise`."""
    count = float(weights[list(members)].sum())
    if not count:
        return otherwise
    return pay.tree_map(lambda part, like: (part / count).to(like.dtype), total, otherwise)


# ---- messages as rows of bytes, payloads as vectors --------------------------------------------------------


def _tensor(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def _bytes(message: Tensor) -> bytes:
    if message.dtype != torch.uint8:
        raise ProtocolError(f"a message has dtype {message.dtype} where bytes are expected")
    return message.cpu().numpy().tobytes()


def _rows(messages: Iterable[bytes], count: int) -> Tensor:
    """Put `count` messages of the same length in rows, [P, L] uint8."""
    # Filled row by row, so that a generator's messages are never all in memory twice.
    rows: Tensor | None = None
    for row, message in enumerate(messages):
        if rows is None:
            rows = torch.empty((count, len(message)), dtype=torch.uint8)
        rows[row] = _tensor(message)
    assert rows is not None  # a worker without a client that takes part runs no functions
    return rows


def _messages(rows: Tensor) -> Iterator[bytes]:
    return (_bytes(row) for row in rows)


def _leaves(tree: Payload) -> list[Leaf]:
    """The leaves of a payload, dictionaries in the order of their keys: the same at clients and server."""
    # Dictionaries of clients and server may have other orders.
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _leaves(tree[key])]
    return [leaf for item in tree for leaf in _leaves(item)] if isinstance(tree, tuple) else [tree]


def _tensors(part: Payload) -> list[Tensor]:
    return [leaf for leaf in _leaves(part) if isinstance(leaf, Tensor)]


def _size(leaf: Leaf) -> int:
    shape = leaf.part_shape if isinstance(leaf, SparseWeights) else leaf.shape[1:]
    return int(np.prod(shape, dtype=np.int64))


def _vector(x: Payload, k: int, scale: float) -> Tensor:
    """The numbers of the cohort's client k, times `scale`: [w] float64."""
    flat = torch.cat([leaf.detach().flatten().double() for leaf in _tensors(pay.part_of(x, k))])
    # A client with scale 0 may have numbers that are not finite, and 0 times these is NaN.
    return flat * scale if scale else torch.zeros_like(flat)


def _fill(like: Any, parts: Iterator[Tensor], device: str) -> Any:
    """Give the sums the form of `like`, on a device."""
    if isinstance(like, dict):
        filled = {key: _fill(like[key], parts, device) for key in sorted(like)}
        return {key: filled[key] for key in like}
    if isinstance(like, tuple):
        return tuple(_fill(item, parts, device) for item in like)
    return decode(next(parts), torch.float64).view(like.shape).to(device)

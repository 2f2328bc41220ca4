"""Sums of rows that clients have of the same node, returned to clients, and the server reads none:
homomorphic encryption (`graphfed.crypto.ckks`, which has the argument and its assumptions).

1. Client 0 makes a key and gives the secret to the other clients; each tells the server the parameters.
2. The clients name their rows by id, encrypt them and send them; the server adds ciphertexts of the same ids.
3. It returns the sums to the clients that want them, who decrypt.

The server sees the ids, who has and wants which, and ciphertexts. A client sees the sums it wants, and no
others: a ciphertext of several narrow rows only has rows whose senders and receivers are the same. So the
server, which knows them, says which rows share a ciphertext, by the smallest id in it; from that a client
learns which of its ids the same clients have, and not which clients. Wide rows need no such word.

**All clients have one secret key.** A client that colludes with the server reads every row of everybody.

Sums are exact on a grid (`ckks.Grid`): they do not depend on keys, noise or placement, so a run that is
resumed or made again has the same bits. Simulated, they are the same transfers and bytes, with the same
results to the bit, and rows that the server could read."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphfed.crypto.ckks import PARAMETERS, Evaluator, Grid, KeyOwner, Layout, library
from graphfed.crypto.ckks_ideal import IdealEvaluator, IdealKeyOwner
from graphfed.errors import InputError
from graphfed.federation.core import Federation
from graphfed.federation.route import ExchangeIds, Route, RouteTable, RowIds
from graphfed.federation.values import Located

__all__ = ["AnyEvaluator", "AnyKeyOwner", "Places", "encrypted_sum", "places_of", "share_key"]

SUM = PARAMETERS["sum"]
#: Bytes of ciphertexts that one process may hold.
MAX_BYTES = 8 * 2**30

AnyKeyOwner = KeyOwner | IdealKeyOwner
AnyEvaluator = Evaluator | IdealEvaluator


@dataclass(frozen=True)
class Places:
    """Where a cohort's rows lie. unit, place [M] int64: the ciphertexts of each row, among the cohort's
    `ids`, and its place there (see `ckks.Layout`)."""

    ids: RowIds
    unit: Tensor
    place: Tensor


# ---- the key -----------------------------------------------------------------------------------------------


def make_key(clients: Tensor, chosen: str, simulated: bool) -> AnyKeyOwner | None:
    """The key of a parameter set, where client 0 is; None elsewhere."""
    if not simulated:
        library()
    if not bool((clients == 0).any()):
        return None
    return IdealKeyOwner.make(chosen) if simulated else KeyOwner.make(chosen)


def secret_rows(holder: AnyKeyOwner | None, chosen: str) -> Tensor:
    """One row at the cohort of client 0, none elsewhere: [0 or 1, secret_bytes] uint8."""
    if holder is None:
        return torch.empty((0, PARAMETERS[chosen].secret_bytes), dtype=torch.uint8)
    return torch.from_numpy(holder.secret())[None]


def wants_key(clients: Tensor) -> ExchangeIds:
    """Everybody but client 0 wants its row 0."""
    clients = clients.cpu()
    other = (clients != 0).nonzero()[:, 0]
    held = (clients == 0).nonzero()[:, 0]
    nil = torch.zeros_like(other)
    return ExchangeIds(owner=nil, ids=nil, client=other, held_ids=torch.zeros_like(held), held_client=held)


def key_of(made: AnyKeyOwner | None, received: Tensor, chosen: str, simulated: bool) -> AnyKeyOwner:
    """What a cohort encrypts and decrypts with."""
    if made is not None:
        return made
    kind = IdealKeyOwner if simulated else KeyOwner
    return kind.from_secret(chosen, received[0].cpu().numpy())


def public_rows(holder: AnyKeyOwner, clients: Tensor) -> Tensor:
    """Every client's word to the server, [K_h, PUBLIC_BYTES] uint8."""
    return torch.from_numpy(holder.public()).repeat(len(clients), 1)


def load_evaluator(public: Tensor, chosen: str, simulated: bool) -> AnyEvaluator:
    """What the server computes with. ProtocolError for a context that carries a secret key, or is none."""
    kind = IdealEvaluator if simulated else Evaluator
    contexts = {row.tobytes(): row for row in public.cpu().numpy()}
    loaded = [kind.load(chosen, row) for row in contexts.values()]
    return loaded[0]


def share_key(fed: Federation, *, name: str, parameters: str = SUM.name) -> tuple[Located, Located]:
    """A key of a parameter set of `ckks`: its holder at the clients, and an evaluator at the server.

    The transfers are ``name/key_request``, ``name/secret_key`` and ``name/public_context``."""
    clients, simulated = fed.client_ids(), fed.simulated
    fed.begin(f"{name}: making and sending keys")
    made = fed.clients.run(make_key, clients, parameters, simulated)
    route = fed.exchange_route(
        fed.clients.run(wants_key, clients), name=f"{name}/key_request", protection="public"
    )
    secret = fed.clients.run(secret_rows, made, parameters)
    secret = fed.exchange(
        secret, route, name=f"{name}/secret_key", protection=fed.protection_of("clear"), grad=False
    )
    holder = fed.clients.run(key_of, made, secret, parameters, simulated)
    public = fed.clients.run(public_rows, holder, clients)
    public = fed.gather(public, name=f"{name}/public_context", protection="public", grad=False)
    return holder, fed.server.run(load_evaluator, public, parameters, simulated)


# ---- which rows share a ciphertext -------------------------------------------------------------------------


def ciphertext_names(have: RouteTable, want: RouteTable | None, rows: int) -> Tensor:
    """The name of the ciphertext of each of the U ids of `have`, [U] int64: the smallest id in it. Up to
    `rows` ids, in ascending order, of the same senders and receivers share one (receivers: the senders, or by
    `want`)."""
    kinds: dict[tuple[bytes, ...], int] = {}
    kind = np.zeros(len(have.ids), dtype=np.int64)
    groups = [_clients_of(have, have.ids)]
    if want is not None:
        groups.append(_clients_of(want, have.ids))
    for u, sets in enumerate(zip(*groups, strict=True)):
        kind[u] = kinds.setdefault(tuple(clients.tobytes() for clients in sets), len(kinds))
    order = np.argsort(kind, kind="stable")
    starts = np.searchsorted(kind[order], np.arange(len(kinds)))
    rank = np.empty(len(kind), dtype=np.int64)
    rank[order] = np.arange(len(kind)) - starts[kind[order]]
    first = order[starts[kind] + rank - rank % rows]
    return have.ids[torch.from_numpy(first).to(have.ids.device)]


def _clients_of(table: RouteTable, ids: Tensor) -> list[np.ndarray]:
    """The clients of a table that name each of the ids, ascending."""
    at = torch.searchsorted(ids, table.ids).cpu().numpy()[table.index.cpu().numpy()]
    order = np.argsort(at, kind="stable")
    client = table.client.cpu().numpy()[order]
    return np.split(client, np.searchsorted(at[order], np.arange(1, len(ids)))) if len(ids) else []


def places_of(ids: RowIds, names: Tensor) -> Places:
    """Where rows lie, from the names [M] of their ciphertexts; ids: by client, ascending inside a client."""
    known, near = torch.unique(names, return_inverse=True)
    count = max(len(known), 1)
    codes, unit, sizes = torch.unique(ids.client * count + near, return_inverse=True, return_counts=True)
    order = torch.argsort(unit, stable=True)
    starts = torch.cumsum(sizes, 0) - sizes
    place = torch.empty_like(unit)
    place[order] = torch.arange(len(unit), device=unit.device) - starts[unit[order]]
    return Places(RowIds(known[codes % count], codes // count), unit, place)


def ciphertext_ids(places: Places) -> RowIds:
    return places.ids


def own_names(ids: RowIds) -> Tensor:
    """Every row in ciphertexts of its own, which are called what it is called."""
    return ids.ids


def chosen_ids(ids: RowIds, wanted: Tensor) -> RowIds:
    return RowIds(ids.ids[wanted], ids.client[wanted])


def chosen_names(names: Tensor, wanted: Tensor) -> Tensor:
    return names[wanted]


# ---- encrypting, adding, decrypting ------------------------------------------------------------------------


def predict_cost(sent: RouteTable, taken: RouteTable, pieces: int) -> dict[str, int]:
    """How many ciphertexts go up and down.

    InputError where a process that holds all of them, and their sums, holds too much."""
    up, sums, down = (pieces * len(x) for x in (sent.index, sent.ids, taken.index))
    size = (up + sums + down) * SUM.ciphertext_bytes + max(up, down) * SUM.slots * 8
    if size > MAX_BYTES:
        raise InputError(
            f"encrypted sums of {up} ciphertexts up and {down} down take {size / 2**30:.1f} GiB in the "
            f"server's process, and at most {MAX_BYTES / 2**30:.0f} GiB are allowed; use fewer clients or "
            "features, a partition that cuts fewer edges, or exchange=plaintext"
        )
    return {"up": up, "down": down}


def log_cost(cost: dict[str, int], simulated: bool) -> str:
    """The cost in words. One core's time, if one process does it all."""
    up, down = cost["up"], cost["down"]
    crossing = (up + down) * SUM.ciphertext_bytes / 1e6
    took = "" if simulated else f", about {max(1, round(max(up, down) * SUM.seconds))} s of one core"
    what = "simulated ciphertexts" if simulated else "ciphertexts"
    return f"{up} {what} to the server and {down} back: {crossing:.0f} MB{took}"


def encrypt_rows(holder: AnyKeyOwner, x: Tensor, places: Places, terms: int) -> Tensor:
    """Rows [M, F] -> [n, pieces * ciphertext_bytes] uint8. InputError for a number that is too large."""
    layout = Layout(x.shape[1], SUM.slots)
    rows = Grid(terms).round(x.detach().cpu().double().numpy())
    count = len(places.ids.ids)
    slots = layout.pack(rows, places.unit.cpu().numpy(), places.place.cpu().numpy(), count)
    sealed = holder.encrypt(slots).reshape(count, layout.pieces * SUM.ciphertext_bytes)
    return torch.from_numpy(sealed)


def add_ciphertexts(evaluator: AnyEvaluator, sealed: Tensor, table: RouteTable) -> Tensor:
    """Ciphertexts of the same name added up: [U, pieces * ciphertext_bytes]."""
    pieces = sealed.shape[1] // SUM.ciphertext_bytes
    at = np.arange(pieces)
    group = (table.index.cpu().numpy()[:, None] * pieces + at).ravel()
    cells = sealed.cpu().numpy().reshape(-1, SUM.ciphertext_bytes)
    sums = evaluator.add(cells, group, len(table.ids) * pieces)
    return torch.from_numpy(sums.reshape(len(table.ids), sealed.shape[1]))


def pick_ciphertexts(sums: Tensor, have: RouteTable, want: RouteTable) -> Tensor:
    return sums[torch.searchsorted(have.ids, want.ids)]


def decrypt_rows(holder: AnyKeyOwner, sealed: Tensor, places: Places, x: Tensor, terms: int) -> Tensor:
    """The sums [M, F], in the form of the rows `x` that were encrypted. ProtocolError for what is no sum of
    such rows."""
    layout = Layout(x.shape[1], SUM.slots)
    slots = holder.decrypt(sealed.cpu().numpy().reshape(-1, SUM.ciphertext_bytes))
    rows = layout.unpack(slots, places.unit.cpu().numpy(), places.place.cpu().numpy())
    return torch.from_numpy(Grid(terms).settle(rows)).to(x)


# ---- the program over places -------------------------------------------------------------------------------


def encrypted_sum(
    fed: Federation,
    x: Located,
    ids: Located,
    *,
    width: int,
    name: str,
    wanted: Located | None = None,
) -> Located:
    """At the clients, for every wanted row, the sum of all clients' rows of that id: [M_h, F].

    x [M_h, F] floats, F = `width`; ids: a `RowIds`, by client and ascending in each; wanted [M_h] bool: the
    rows that come back (None: all). Each sum is off by at most ``Grid(K).error``.

    The transfers are those of `share_key`, ``name/ids`` (and ``name/wanted_ids``), for narrow rows
    ``name/packing`` and ``name/ciphertext_ids`` (and ``name/wanted_ciphertext_ids``), ``name/rows`` and
    ``name/sums``. InputError for numbers that cannot be encrypted, and for more than 8 GiB of ciphertexts;
    ProtocolError for damaged messages."""
    protection, layout = fed.protection_of("encrypted"), Layout(width, SUM.slots)
    holder, evaluator = share_key(fed, name=name)
    fed.begin(f"{name}: encrypting, summing and decrypting")
    have = fed.route(ids, name=f"{name}/ids")
    want_ids = ids if wanted is None else fed.clients.run(chosen_ids, ids, wanted)
    want = have if wanted is None else fed.route(want_ids, name=f"{name}/wanted_ids")

    names, send, take = fed.clients.run(own_names, ids), have, want
    if layout.rows > 1:
        table = None if wanted is None else fed.table(want)
        told = fed.server.run(ciphertext_names, fed.table(have), table, layout.rows)
        names = fed.download(told, have, name=f"{name}/packing", grad=False)
    places = fed.clients.run(places_of, ids, names)
    want_places = places
    if wanted is not None:
        want_places = fed.clients.run(places_of, want_ids, fed.clients.run(chosen_names, names, wanted))
    if layout.rows > 1:
        send = fed.route(fed.clients.run(ciphertext_ids, places), name=f"{name}/ciphertext_ids")
        take = send if wanted is None else _wanted_route(fed, want_places, name)

    cost = fed.control(predict_cost, fed.table(send), fed.table(take), layout.pieces)
    fed.log(f"{name}: {log_cost(cost, fed.simulated)}")
    sealed = fed.clients.run(encrypt_rows, holder, x, places, fed.num_clients)
    sealed = fed.upload(sealed, send, name=f"{name}/rows", protection=protection, grad=False)
    sums = fed.server.run(add_ciphertexts, evaluator, sealed, fed.table(send))
    if wanted is not None:
        sums = fed.server.run(pick_ciphertexts, sums, fed.table(send), fed.table(take))
    sums = fed.download(sums, take, name=f"{name}/sums", protection=protection, grad=False)
    return fed.clients.run(decrypt_rows, holder, sums, want_places, x, fed.num_clients)


def _wanted_route(fed: Federation, places: Located, name: str) -> Route:
    return fed.route(fed.clients.run(ciphertext_ids, places), name=f"{name}/wanted_ciphertext_ids")

"""Encrypted sums: sums over clients of the rows of each id, returned to clients; the server reads none of
them.

The encryption is homomorphic (`graphfed.crypto.ckks`, which states the argument and its assumptions).

1. Client 0 makes a key and sends the secret key to the other clients. Each client sends the server the public
parameters.
2. The clients name their rows by id, encrypt them and send them. The server adds the ciphertexts of the same
ids.
3. The server returns the sums to the clients that want them, which decrypt them.

The server sees the ids, which clients have and want which ids, and ciphertexts. A client sees the sums that
it wants and no others: several narrow rows share a ciphertext only if they have the same senders and
receivers. The server knows these, so it assigns rows to ciphertexts and names each ciphertext by the smallest
id in it. From the names a client learns which of its ids the same clients have, but not which clients. Wide
rows are not packed and need no names.

**All clients share one secret key.** A client that colludes with the server can read all rows of all clients.

Sums are exact on a grid (`ckks.Grid`): they do not depend on keys, noise or placement, so a resumed or
repeated run has the same bits. If protocols are simulated, the transfers, bytes and results are the same to
the bit, but the server could read the rows.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphfed.crypto.ckks import PARAMETERS, Evaluator, Grid, KeyOwner, Layout, library
from graphfed.crypto.ckks_ideal import IdealEvaluator, IdealKeyOwner
from graphfed.errors import InputError
from graphfed.federation.core import Federation
from graphfed.federation.route import ExchangeIds, Route, RouteTable, RowIds
from graphfed.federation.transfer import TensorForm
from graphfed.federation.values import Located

SUM = PARAMETERS["sum"]
#: Bytes of ciphertexts that one process may hold.
MAX_BYTES = 8 * 2**30

AnyKeyOwner = KeyOwner | IdealKeyOwner
AnyEvaluator = Evaluator | IdealEvaluator


@dataclass(frozen=True)
class Packing:
    """Where the rows of a cohort lie in its ciphertexts.

    Attributes:
        ids: The names of the cohort's ciphertexts.
        unit: [M] int64, the ciphertext of each row, as a position in `ids`.
        place: [M] int64, the row's place in the ciphertext (see `ckks.Layout`).
    """

    ids: RowIds
    unit: Tensor
    place: Tensor


# ---- the key -----------------------------------------------------------------------------------------------


def make_key(clients: Tensor, chosen: str, simulated: bool) -> AnyKeyOwner | None:
    """Make the key of a parameter set at the worker of client 0; None elsewhere."""
    # Refused at every worker, also at those that make no key, before anything is sent.
    if not simulated:
        library()
    if not bool((clients == 0).any()):
        return None
    return IdealKeyOwner.make(chosen) if simulated else KeyOwner.make(chosen)


def make_secret_rows(key_owner: AnyKeyOwner | None, chosen: str) -> Tensor:
    """Make the row of the secret key at the worker of client 0, [1, secret_bytes] uint8; no row elsewhere."""
    if key_owner is None:
        return torch.empty((0, PARAMETERS[chosen].secret_bytes), dtype=torch.uint8)
    return torch.from_numpy(key_owner.secret())[None]


def make_key_wants(clients: Tensor) -> ExchangeIds:
    """Make the wants of the secret key: every client except client 0 wants row 0 of client 0."""
    clients = clients.cpu()
    other = (clients != 0).nonzero()[:, 0]
    held = (clients == 0).nonzero()[:, 0]
    # Owner 0 and id 0 for all; client 0 alone holds the row with id 0.
    nil = torch.zeros_like(other)
    return ExchangeIds(owner=nil, ids=nil, client=other, held_ids=torch.zeros_like(held), held_client=held)


def choose_key(own_key: AnyKeyOwner | None, received: Tensor, chosen: str, simulated: bool) -> AnyKeyOwner:
    if own_key is not None:
        return own_key
    kind = IdealKeyOwner if simulated else KeyOwner
    return kind.from_secret(chosen, received[0].cpu().numpy())


def make_public_rows(key_owner: AnyKeyOwner, clients: Tensor) -> Tensor:
    """Make every client's message to the server, [K_h, PUBLIC_BYTES] uint8."""
    return torch.from_numpy(key_owner.public()).repeat(len(clients), 1)


def load_evaluator(public: Tensor, chosen: str, simulated: bool) -> AnyEvaluator:
    """Load what the server computes with; ProtocolError for a context that has a secret key, or is no
    context.
    """
    # All clients have the same key, so there is one context, which every client has sent.
    kind = IdealEvaluator if simulated else Evaluator
    contexts = {row.tobytes(): row for row in public.cpu().numpy()}
    loaded = [kind.load(chosen, row) for row in contexts.values()]
    return loaded[0]


def share_key(fed: Federation, *, name: str, parameters: str = SUM.name) -> tuple[Located, Located]:
    """Make a key of a parameter set of `ckks`, and send it to all clients.

    The transfers are ``name/key_request``, ``name/secret_key`` and ``name/public_context``. Returns the key
    owner at the clients, and the evaluator at the server.
    """
    clients, simulated = fed.client_ids(), fed.simulated
    fed.begin(f"{name}: making and sending keys")
    own_key = fed.clients.run(make_key, clients, parameters, simulated)
    route = fed.exchange_route(
        fed.clients.run(make_key_wants, clients), name=f"{name}/key_request", protection="public"
    )
    secret = fed.clients.run(make_secret_rows, own_key, parameters)
    secret = fed.exchange(
        secret, route, name=f"{name}/secret_key", protection=fed.protection_of("plaintext"), grad=False
    )
    key_owner = fed.clients.run(choose_key, own_key, secret, parameters, simulated)
    public = fed.clients.run(make_public_rows, key_owner, clients)
    public = fed.gather(public, name=f"{name}/public_context", protection="public", grad=False)
    return key_owner, fed.server.run(load_evaluator, public, parameters, simulated)


# ---- which rows share a ciphertext -------------------------------------------------------------------------


def name_ciphertexts(have: RouteTable, want: RouteTable | None, rows: int) -> Tensor:
    """Assign ids to ciphertexts: up to `rows` ids with the same senders and receivers share one, in ascending
    order.

    Rows are sent on `have`, and sums are returned on `want` (None: the same). Returns [U] int64, for each id
    of `have` the smallest id in its ciphertext, which is the ciphertext's name.
    """
    kinds: dict[tuple[bytes, ...], int] = {}
    kind = np.zeros(len(have.ids), dtype=np.int64)
    groups = [_clients_of(have, have.ids)]
    if want is not None:
        groups.append(_clients_of(want, have.ids))
    # Ids of one kind have the same senders and the same receivers.
    for u, sets in enumerate(zip(*groups, strict=True)):
        kind[u] = kinds.setdefault(tuple(clients.tobytes() for clients in sets), len(kinds))
    order = np.argsort(kind, kind="stable")
    starts = np.searchsorted(kind[order], np.arange(len(kinds)))
    rank = np.empty(len(kind), dtype=np.int64)
    rank[order] = np.arange(len(kind)) - starts[kind[order]]
    # Within its kind, an id shares a ciphertext with the ids whose rank has the same quotient by `rows`.
    first = order[starts[kind] + rank - rank % rows]
    return have.ids[torch.from_numpy(first).to(have.ids.device)]


def _clients_of(table: RouteTable, ids: Tensor) -> list[np.ndarray]:
    """The clients that name each of the ids, ascending."""
    at = torch.searchsorted(ids, table.ids).cpu().numpy()[table.index.cpu().numpy()]
    # Rows arrive in client order, so a stable sort by id keeps the clients of an id ascending.
    order = np.argsort(at, kind="stable")
    client = table.client.cpu().numpy()[order]
    return np.split(client, np.searchsorted(at[order], np.arange(1, len(ids)))) if len(ids) else []


def place_rows(ids: RowIds, names: Tensor) -> Packing:
    """Place rows in ciphertexts of these names, [M] int64. Rows are by client, with ascending ids inside a
    client.
    """
    known, name_index = torch.unique(names, return_inverse=True)
    # At least 1, so that the codes below are defined without rows.
    count = max(len(known), 1)
    # One ciphertext for each (client, name); a row's place is its rank among the rows of its ciphertext.
    codes, unit, sizes = torch.unique(
        ids.client * count + name_index, return_inverse=True, return_counts=True
    )
    order = torch.argsort(unit, stable=True)
    starts = torch.cumsum(sizes, 0) - sizes
    place = torch.empty_like(unit)
    place[order] = torch.arange(len(unit), device=unit.device) - starts[unit[order]]
    return Packing(RowIds(known[codes % count], codes // count), unit, place)


def ciphertext_ids(packing: Packing) -> RowIds:
    return packing.ids


def name_separately(ids: RowIds) -> Tensor:
    """Name every row's ciphertext by its id: each row is in its own ciphertext."""
    return ids.ids


def select_ids(ids: RowIds, wanted: Tensor) -> RowIds:
    return RowIds(ids.ids[wanted], ids.client[wanted])


def select_names(names: Tensor, wanted: Tensor) -> Tensor:
    return names[wanted]


# ---- encrypting, adding, decrypting ------------------------------------------------------------------------


def predict_cost(sent: RouteTable, taken: RouteTable, pieces: int) -> dict[str, int]:
    """Count the ciphertexts that are sent to the server and back.

    InputError if a process that holds all of them, and their sums, would hold more than `MAX_BYTES`.
    """
    up, sums, down = (pieces * len(x) for x in (sent.index, sent.ids, taken.index))
    # Ciphertexts of all three kinds, and the numbers of the larger side as float64 slots.
    size = (up + sums + down) * SUM.ciphertext_bytes + max(up, down) * SUM.slots * 8
    if size > MAX_BYTES:
        raise InputError(
            f"encrypted sums of {up} ciphertexts up and {down} down take {size / 2**30:.1f} GiB in the "
            f"server's process, and at most {MAX_BYTES / 2**30:.0f} GiB are allowed; use fewer clients or "
            "features, a partition with fewer cross-client edges, or exchange=plaintext"
        )
    return {"up": up, "down": down}


def log_cost(cost: dict[str, int], simulated: bool) -> str:
    """Describe the cost; the time is that of one core that does all of it."""
    up, down = cost["up"], cost["down"]
    megabytes = (up + down) * SUM.ciphertext_bytes / 1e6
    duration = "" if simulated else f", about {max(1, round(max(up, down) * SUM.seconds))} s of one core"
    what = "simulated ciphertexts" if simulated else "ciphertexts"
    return f"{up} {what} to the server and {down} back: {megabytes:.0f} MB{duration}"


def encrypt_rows(key_owner: AnyKeyOwner, x: Tensor, packing: Packing, terms: int) -> Tensor:
    """Encrypt rows [M, F] to [n, pieces * ciphertext_bytes] uint8. InputError for too large a number."""
    layout = Layout(x.shape[1], SUM.slots)
    # Rounded to the grid before encryption: only then is the noise removed exactly after it.
    rows = Grid(terms).round(x.detach().cpu().double().numpy())
    count = len(packing.ids.ids)
    slots = layout.pack(rows, packing.unit.cpu().numpy(), packing.place.cpu().numpy(), count)
    sealed = key_owner.encrypt(slots).reshape(count, layout.pieces * SUM.ciphertext_bytes)
    return torch.from_numpy(sealed)


def add_ciphertexts(evaluator: AnyEvaluator, sealed: Tensor, table: RouteTable) -> Tensor:
    """Add the ciphertexts of the same name: [U, pieces * ciphertext_bytes]."""
    pieces = sealed.shape[1] // SUM.ciphertext_bytes
    at = np.arange(pieces)
    # Piece p of every row with the same name is added to piece p of the sum.
    group = (table.index.cpu().numpy()[:, None] * pieces + at).ravel()
    cells = sealed.cpu().numpy().reshape(-1, SUM.ciphertext_bytes)
    sums = evaluator.add(cells, group, len(table.ids) * pieces)
    return torch.from_numpy(sums.reshape(len(table.ids), sealed.shape[1]))


def pick_ciphertexts(sums: Tensor, have: RouteTable, want: RouteTable) -> Tensor:
    return sums[torch.searchsorted(have.ids, want.ids).to(sums.device)]


def decrypt_rows(key_owner: AnyKeyOwner, sealed: Tensor, packing: Packing, x: Tensor, terms: int) -> Tensor:
    """Decrypt the sums [M, F], in the form of the rows `x`; ProtocolError for anything that is no sum of
    such rows.
    """
    layout = Layout(x.shape[1], SUM.slots)
    slots = key_owner.decrypt(sealed.cpu().numpy().reshape(-1, SUM.ciphertext_bytes))
    rows = layout.unpack(slots, packing.unit.cpu().numpy(), packing.place.cpu().numpy())
    return torch.from_numpy(Grid(terms).settle(rows)).to(x)


# ---- the program -------------------------------------------------------------------------------------------


def encrypted_sum(
    fed: Federation,
    x: Located,
    ids: Located,
    *,
    width: int,
    name: str,
    wanted: Located | None = None,
) -> Located:
    """Compute for every wanted row the sum of all clients' rows of that id, at the clients.

    The transfers are those of `share_key`, ``name/ids``, ``name/rows`` and ``name/sums``; with `wanted` also
    ``name/wanted_ids``; for narrow rows also ``name/packing``, ``name/ciphertext_ids`` and, with `wanted`,
    ``name/wanted_ciphertext_ids``.

    Args:
        x: [M_h, F] floating at the clients.
        ids: A `RowIds` at the clients, by client and with ascending ids inside a client.
        width: F.
        wanted: [M_h] bool at the clients, the rows whose sums are returned (None: all).

    Returns:
        [M_h, F] at the clients, or a row for each wanted one; each sum is off by at most ``Grid(K).error``.

    Raises:
        InputError: For numbers that cannot be encrypted, more than 8 GiB of ciphertexts, or, if protocols are
            real, without the extra `secure`.
    """
    protection, layout = fed.protection_of("encrypted"), Layout(width, SUM.slots)
    # Step 1 (see the module's docstring): one key for all clients.
    key_owner, evaluator = share_key(fed, name=name)
    fed.begin(f"{name}: encrypting, summing and decrypting")
    # Step 2: first the ids of all rows, so that the server knows which clients have and want each id.
    have = fed.route(ids, name=f"{name}/ids")
    want_ids = ids if wanted is None else fed.clients.run(select_ids, ids, wanted)
    want = have if wanted is None else fed.route(want_ids, name=f"{name}/wanted_ids")

    # Narrow rows share ciphertexts, which the server assigns and names.
    names, send, take = fed.clients.run(name_separately, ids), have, want
    if layout.rows > 1:
        table = None if wanted is None else fed.table(want)
        names_at_server = fed.server.run(name_ciphertexts, fed.table(have), table, layout.rows)
        names = fed.download(
            names_at_server, have, name=f"{name}/packing", grad=False, like=TensorForm(torch.int64)
        )
    packing = fed.clients.run(place_rows, ids, names)
    wanted_packing = packing
    if wanted is not None:
        wanted_packing = fed.clients.run(place_rows, want_ids, fed.clients.run(select_names, names, wanted))
    if layout.rows > 1:
        # Ciphertexts have routes of their own, by name.
        send = fed.route(fed.clients.run(ciphertext_ids, packing), name=f"{name}/ciphertext_ids")
        take = send if wanted is None else _wanted_route(fed, wanted_packing, name)

    cost = fed.control(
        predict_cost, fed.table(send), fed.table(take), layout.pieces, values={"up": int, "down": int}
    )
    fed.log(f"{name}: {log_cost(cost, fed.simulated)}")
    sealed_rows = fed.clients.run(encrypt_rows, key_owner, x, packing, fed.num_clients)
    sealed = fed.upload(sealed_rows, send, name=f"{name}/rows", protection=protection, grad=False)
    sums = fed.server.run(add_ciphertexts, evaluator, sealed, fed.table(send))
    if wanted is not None:
        sums = fed.server.run(pick_ciphertexts, sums, fed.table(send), fed.table(take))
    sums = fed.download(sums, take, name=f"{name}/sums", protection=protection, grad=False, like=sealed_rows)
    return fed.clients.run(decrypt_rows, key_owner, sums, wanted_packing, x, fed.num_clients)


def _wanted_route(fed: Federation, packing: Located, name: str) -> Route:
    return fed.route(fed.clients.run(ciphertext_ids, packing), name=f"{name}/wanted_ciphertext_ids")

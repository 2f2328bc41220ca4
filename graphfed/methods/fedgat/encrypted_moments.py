"""FedGAT's message before training from features that the server does not read: homomorphic encryption, the
extension that the paper names (Ambekar et al., "FedGAT"), with `graphfed.crypto.ckks`.

M1, M2 and K2 of the vector form are linear in the features: 6 B rows of a node's message are a matrix
[6 B, B] (`moment_messages.vector_weights`), which the server draws, times its neighbours' features.

1. The server says how many ciphertexts there will be; client 0 makes a key and gives it to the other clients.
2. The clients encrypt the features of their nodes, a node in a ciphertext of its own, as often as they
   fit; and send them.
3. The server multiplies ciphertexts by its matrices, packs as many rows of a node as fit into each result,
   and sends every client those of the nodes that it asked for; some nodes at a time (`PART`).
4. The clients decrypt. K1 and the decoders have nothing of the features: the server sends them in clear.

What it protects: the features, from a server that follows the protocol and is curious. It has the graph (who
is whose neighbour, at which client), its own matrices, and ciphertexts. From the clients it protects nothing:
they get the message that they get in clear, and can work out every neighbour's features (`audit`).

- **All clients have one key. A client that colludes with the server reads the features of every node.**
- Products decrypt to numbers with the scheme's noise, and these have no grid: who gets them beside the exact
  results can work out the key (CPA-D). They stay with the clients; what crosses later was computed from them
  (weights), and no proof says that it tells nothing of the noise.
- Nothing is authenticated. A damaged ciphertext that keeps its form decrypts to other numbers.

Results are off by what `ckks.Evaluator.weighted` states. `simulated` is the ideal form: the same transfers
and bytes, results to rounding, and features that the server could read."""

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphfed.crypto.ckks import PARAMETERS, SMALLEST_WEIGHT, Layout
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.federation.secure.encrypted_sum import AnyEvaluator, AnyKeyOwner, share_key
from graphfed.memory import memory_bytes
from graphfed.methods.fedgat.moment_messages import Neighbourhoods, alike, numbers, vector_weights
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import fold, uniform

__all__ = ["ENCRYPTED", "MESSAGES", "encrypted_rows", "foretell_encrypted", "laid_out"]

#: What the transfers begin with.
ENCRYPTED = "fedgat/encrypted"
PRODUCT = PARAMETERS["product"]
assert PRODUCT.product_bytes is not None
RESULT_BYTES: int = PRODUCT.product_bytes
#: Bytes of ciphertexts that the server makes and sends at a time.
PART = 2**29
#: Milliseconds that one core takes, roughly: to encrypt, to make a result ready, to decrypt it; to multiply a
#: ciphertext by a vector, or by a number, and add the product.
ENCRYPT, MAKE, DECRYPT, TIMES_VECTOR, TIMES_NUMBER = 2.7, 0.6, 0.7, 1.4, 0.6
#: Rows that are encrypted at a time.
ROWS = 256


def layout_of(width: int) -> Layout:
    return Layout(width, PRODUCT.slots)


def units(size: Tensor, layout: Layout) -> Tensor:
    """How many units of `layout.pieces` ciphertexts the 6 B rows of each node take, [n]."""
    return (6 * size + layout.rows - 1) // layout.rows


def places(size: Tensor, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """The unit and the place there of every row of some nodes, [sum 6 B] each."""
    count = units(size, layout)
    first = torch.repeat_interleave(count.cumsum(0) - count, 6 * size)
    row = ranges(torch.zeros_like(size), 6 * size)
    return (first + row // layout.rows).cpu().numpy(), (row % layout.rows).cpu().numpy()


def part_of(ids: Tensor, parts: int, key: int) -> Tensor:
    """The part that each node is sent in, [n]: both ends work it out."""
    return (uniform(fold(key, "parts"), ids)[:, 0] * parts).long()


def units_of_part(
    rows: RowIds | RouteTable, size: Tensor, layout: Layout, part: int, parts: int, key: int
) -> Tensor:
    """The units of each node that cross in a part, [n]."""
    return units(size, layout) * (part_of(rows.ids, parts, key) == part)


# ---- at the clients ----------------------------------------------------------------------------------------


def encrypt_features(holder: AnyKeyOwner, cohort: Cohort, layout: Layout) -> Tensor:
    """Features [N, F] -> [N, pieces * ciphertext_bytes] uint8. InputError for a number that is too large."""
    x, size = cohort.x, layout.pieces * PRODUCT.ciphertext_bytes
    assert x is not None
    sealed = torch.empty((len(cohort.id), size), dtype=torch.uint8)
    for rows in torch.split(torch.arange(len(cohort.id)), ROWS):
        at = rows.to(cohort.id.device)
        h = x.select_rows(at).to_dense() if isinstance(x, SparseMatrix) else x[at]
        cells = holder.encrypt(layout.repeat(h.detach().cpu().double().numpy()))
        sealed[rows] = torch.from_numpy(cells.reshape(len(rows), size))
    return sealed


def decrypt_part(
    holder: AnyKeyOwner,
    sealed: Tensor,
    ids: RowIds,
    size: Tensor,
    layout: Layout,
    part: int,
    parts: int,
    key: int,
) -> Tensor:
    """The rows [sum 6 B, F] of the nodes of a part, from sealed [n, pieces * product_bytes]."""
    slots = holder.decrypt(sealed.cpu().numpy().reshape(-1, RESULT_BYTES))
    rows = layout.unpack(slots, *places(size[part_of(ids.ids, parts, key) == part], layout))
    return torch.from_numpy(rows).to(size.device, torch.get_default_dtype())


def laid_out(
    ids: RowIds, size: Tensor, keys: Tensor, parts: int, key: int, *rows: Tensor
) -> tuple[Tensor, Tensor]:
    """sums [S, 1 + F] and scores [S, 2 F] of the nodes (`nn.moments.Moments`), from K1, keys [S, 1], and
    what was decrypted of each part."""
    order = torch.argsort(part_of(ids.ids, parts, key), stable=True)
    lengths = 6 * size[order]
    starts = torch.empty_like(size).index_copy(0, order, lengths.cumsum(0) - lengths)
    every = torch.cat(rows)
    m1, m2, k2 = (every[ranges(starts + 2 * i * size, 2 * size)] for i in range(3))
    return torch.cat([keys, k2], 1), torch.cat([m1, m2], 1)


# ---- at the server -----------------------------------------------------------------------------------------


def predict_cost(
    neighbourhoods: Neighbourhoods, table: RouteTable, size: Tensor, width: int, degree: int, together: bool
) -> dict[str, int]:
    """Ciphertexts up, made and down, milliseconds of one core, and bytes of the message that the clients
    decrypt (`sent`) and of its decoders (`once`): the same wherever the clients are. InputError where there
    is less memory than that takes."""
    layout, scalar = layout_of(width), torch.get_default_dtype().itemsize
    per_node = layout.pieces * units(size, layout)
    up, made = layout.pieces * len(neighbourhoods.ids), int(per_node.sum())
    down = int(per_node[table.index].sum())
    if layout.rows > 1:  # M1 is of the node itself; in the others few products are left out
        alone = 2 * size // layout.rows
        products = int((alone + (units(size, layout) - alone) * size).sum()) * layout.pieces
    else:  # nor has a row of the others more than one neighbour where one owns its column
        products = int((2 * size**2 + 4 * size).sum()) * layout.pieces
    each = TIMES_VECTOR if layout.rows > 1 else TIMES_NUMBER
    cost = {
        "up": up,
        "made": made,
        "down": down,
        "milliseconds": int(up * ENCRYPT + made * MAKE + down * DECRYPT + products * each),
        "once": scalar * numbers("vector", size, 0, degree),
        "sent": scalar * numbers("vector", size[table.index], width, degree),
    }
    memory, (free, _) = memory_of(cost, together), memory_bytes()
    if free is not None and memory > free:
        raise InputError(
            f"fedgat's message before training takes about {memory / 2**30:.1f} GiB of memory with "
            f"exchange=encrypted, and {free / 2**30:.1f} GiB are free; use max_neighbours (the "
            f"largest neighbourhood has {int(size.max()) - 1} neighbours), fewer features, a partition that "
            "cuts fewer edges, or exchange=plaintext"
        )
    return cost


def parts_of(cost: Mapping[str, int]) -> int:
    return max(1, -(-cost["down"] * RESULT_BYTES // PART))


def memory_of(cost: Mapping[str, int], together: bool) -> int:
    """Bytes at the server: the features, what is made and sent of a part, the decoders; and with the clients
    in its process (`together`) theirs: features, what they decrypt of a part, the message as read and as
    prepared."""
    sealed, down = cost["up"] * PRODUCT.ciphertext_bytes, cost["down"]
    memory = sealed + cost["once"] + (cost["made"] + down) * RESULT_BYTES // parts_of(cost)
    if together:
        memory += sealed + down * PRODUCT.slots * 8 // parts_of(cost) + 3 * cost["sent"]
    return memory


def log_cost(cost: Mapping[str, int], together: bool, simulated: bool) -> str:
    """The cost in words. One core's time, if one process does it all."""
    up, down, seconds = cost["up"], cost["down"], cost["milliseconds"] / 1000
    time = f"{seconds / 60:.0f} min" if seconds > 90 else f"{max(1, seconds):.0f} s"
    took = "" if simulated else f", about {time} of one core"
    what = "simulated ciphertexts" if simulated else "ciphertexts"
    return (
        f"the message before training, under encryption: {up} {what} to the server "
        f"({up * PRODUCT.ciphertext_bytes / 2**30:.2f} GiB) and {down} back "
        f"({down * RESULT_BYTES / 2**30:.2f} GiB), about {memory_of(cost, together) / 2**30:.2f} GiB of "
        f"memory at the server's process{took}"
    )


def products_of_part(
    evaluator: AnyEvaluator,
    sealed: Tensor,
    nodes: RouteTable,
    neighbourhoods: Neighbourhoods,
    wanted: RouteTable,
    layout: Layout,
    part: int,
    parts: int,
    key: int,
) -> Tensor:
    """The units [n, pieces * product_bytes] of the wanted nodes of a part, from everybody's features as
    they arrived."""
    chosen = wanted.ids[part_of(wanted.ids, parts, key) == part]
    rows = torch.searchsorted(neighbourhoods.ids, chosen)
    arrived = torch.argsort(nodes.index)[neighbourhoods.member]  # of each neighbour, where its features are
    weights = message_weights(neighbourhoods, rows, arrived, key)
    unit, place = places(neighbourhoods.size[rows], layout)
    cells = sealed.cpu().numpy().reshape(-1, PRODUCT.ciphertext_bytes)
    made = evaluator.weighted_rows(cells, weights, unit, place, layout)
    return torch.from_numpy(made.reshape(-1, layout.pieces * RESULT_BYTES))


def message_weights(neighbourhoods: Neighbourhoods, rows: Tensor, columns: Tensor, key: int) -> sp.csr_matrix:
    """The matrices of the nodes `rows` [n] of the neighbourhoods, one below the other: [sum 6 B, U], the
    neighbours at `columns` [sum B of all neighbourhoods].

    Weights too small for a ciphertext are made as large as they must be, 2^-30."""
    size = neighbourhoods.size[rows]
    starts = (neighbourhoods.size.cumsum(0) - neighbourhoods.size)[rows]
    first, total = (6 * size).cumsum(0) - 6 * size, int((6 * size).sum())
    found: list[tuple[np.ndarray, ...]] = [(np.zeros(0), np.zeros(0, int), np.zeros(0, int))]
    for b, some in alike(size, 6):
        w = vector_weights(key, neighbourhoods.ids[rows[some]], b)
        at, row, neighbour = w.nonzero(as_tuple=True)
        values = w[at, row, neighbour]
        values = torch.where(values < 0, -1.0, 1.0) * values.abs().clamp(min=SMALLEST_WEIGHT)
        which = some[at]
        entry = (values, first[which] + row, columns[starts[which] + neighbour])
        found.append(tuple(part.cpu().numpy() for part in entry))
    data, at_row, at_column = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return sp.csr_matrix((data, (at_row, at_column)), shape=(total, len(neighbourhoods.ids)))


# ---- the program over places -------------------------------------------------------------------------------


def foretell_encrypted(
    fed: Federation,
    neighbourhoods: Located,
    wanted: Route,
    sizes: Located,
    *,
    width: int,
    degree: int,
    name: str,
) -> int:
    """Say what it will take, before anything is encrypted: how many parts the message crosses in.
    neighbourhoods, and
    sizes [U] of the wanted nodes, at the server. InputError where that has too little memory."""
    together, table = fed.link is None, fed.table(wanted)
    cost = fed.control(predict_cost, neighbourhoods, table, sizes, width, degree, together, name=name)
    fed.log(log_cost(cost, together, fed.simulated))
    return parts_of(cost)


def encrypted_rows(
    fed: Federation,
    data: Located,
    nodes: Route,
    neighbourhoods: Located,
    wanted: Route,
    ids: Located,
    size: Located,
    sizes: Located,
    *,
    width: int,
    key: int,
    parts: int,
) -> list[Located]:
    """At the clients, the rows of M1, M2 and K2 of the wanted nodes, a value for each part.

    nodes: the route of all nodes, with features [N_h, F = `width`] of the cohorts `data`; neighbourhoods:
    their
    `Neighbourhoods`, at the server; wanted: a route, with `ids` and size at the clients and sizes at the
    server. The transfers are those of `share_key`, and ``fedgat/encrypted/features`` and ``.../products``.
    InputError for features that cannot be encrypted; ProtocolError for damaged messages."""
    protection, layout = fed.protection_of("encrypted"), layout_of(width)
    holder, evaluator = share_key(fed, name=ENCRYPTED, parameters=PRODUCT.name)
    fed.begin("encrypting the features")
    sealed = fed.clients.run(encrypt_features, holder, data, layout)
    sealed = fed.upload(sealed, nodes, name=f"{ENCRYPTED}/features", protection=protection, grad=False)
    rows = []
    for part in range(parts):
        fed.begin(f"making the encrypted message: part {part + 1} of {parts}")
        which = (layout, part, parts, key)
        route = fed.expand_route(
            wanted,
            fed.clients.run(units_of_part, ids, size, *which),
            fed.server.run(units_of_part, fed.table(wanted), sizes, *which),
            name=f"{ENCRYPTED}/products",
        )
        made = fed.server.run(
            products_of_part, evaluator, sealed, fed.table(nodes), neighbourhoods, fed.table(wanted), *which
        )
        made = fed.download(made, route, name=f"{ENCRYPTED}/products", protection=protection, grad=False)
        rows.append(fed.clients.run(decrypt_part, holder, made, ids, size, *which))
    return rows


#: With exchange=encrypted, in place of `fedgat/features`, `fedgat/sums` and `fedgat/scores`.
MESSAGES: Mapping[str, str] = {
    "fedgat/encrypted/key_request": "A client's request for the clients' key. It says nothing.",
    "fedgat/encrypted/secret_key": "The key that all clients encrypt and decrypt with, from one client "
    "to the "
    "others. Who has it, and what the server receives, reads everything: a client that colludes with the "
    "server reads the features of every client.",
    "fedgat/encrypted/public_context": "The parameters of the encryption, without a key. Public.",
    "fedgat/encrypted/features": "Encrypted, the features of all nodes of a client. The server multiplies "
    "them by its random matrices and reads none; with protocols=simulated it could.",
    "fedgat/encrypted/keys": "From the server, once, of each node of `fedgat/neighbourhood_ids`: K1, "
    "which has "
    "nothing of the features. It shows where a neighbour's features are in the products.",
    "fedgat/encrypted/products": "Encrypted, from the server, once, of each of these nodes: M1, M2 and "
    "K2, sums of the neighbours' features under random vectors. The client decrypts them, and can work out "
    "every neighbour's features.",
}

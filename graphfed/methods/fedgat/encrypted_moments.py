"""FedGAT's message before training, computed from encrypted features (exchange=encrypted).

The paper names homomorphic encryption as an extension (Ambekar et al., "FedGAT"); this module builds it
with `graphfed.crypto.ckks`.

M1, M2 and K2 of the vector form are linear in the features. The 6 B rows of a node's message are a matrix
[6 B, B], which the server draws (`moment_messages.vector_weights`), times the features of the node's
neighbours.

1. The server reports the number of ciphertexts. Client 0 generates a key and sends it to the other clients.
2. Each client encrypts the features of its nodes, each node in a ciphertext of its own and repeated as
   often as it fits, and sends the ciphertexts to the server.
3. The server multiplies the ciphertexts by its matrices, packs as many rows of a node as fit into each
   result, and sends each client the results of the nodes that it requested, in several parts (`PART`).
4. The clients decrypt the results. K1 and the decoders do not depend on the features: the server sends them
   in plaintext.

What it protects: the features, from the server. Corruption model: the server follows the protocol and is
curious, and does not collude with any client. Security parameter: 128 bits (`graphfed.crypto.ckks`). What
leaks to the server: the graph (which nodes are neighbours, and which client has them), its own matrices,
and ciphertexts. Clients are not protected from each other: they receive the same message as without
encryption, and can compute the features of every neighbour (`graphfed audit`).

- **All clients share one key. A client that colludes with the server can read the features of every node.**
- Decrypted products contain the scheme's noise and have no grid. Someone who sees them together with the
  exact results can compute the key (CPA-D). They stay with the clients. What is sent later (weights) is
  computed from them, and there is no proof that it reveals nothing about the noise.
- Nothing is authenticated. A damaged ciphertext that keeps its form decrypts to other numbers.

The error of the results is that of `ckks.Evaluator.weighted`. The simulated form (protocols=simulated) has
the same transfers and bytes, the same results to rounding, and features that the server could read.
"""

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphfed.crypto.ckks import PARAMETERS, SMALLEST_WEIGHT, Layout
from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.federation.secure.encrypted_sum import AnyEvaluator, AnyKeyOwner, share_key
from graphfed.memory import memory_bytes
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Task
from graphfed.methods.fedgat.client_graphs import neighbourhood_ids
from graphfed.methods.fedgat.moment_messages import Neighbourhoods, Pooled, alike, numbers, vector_weights
from graphfed.methods.fedgat.pretraining import Requests, messages_of, numbers_form, prepare_moments
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import fold, uniform

#: Prefix of the names of the transfers.
ENCRYPTED = "fedgat/encrypted"
PRODUCT = PARAMETERS["product"]
assert PRODUCT.product_bytes is not None
RESULT_BYTES: int = PRODUCT.product_bytes
#: Most bytes of ciphertexts that the server sends in one part.
PART = 2**29
#: Approximate time of one core in milliseconds: to encrypt a ciphertext, to finish a result, to decrypt it;
#: to multiply a ciphertext by a vector, or by a number, and add the product.
ENCRYPT, MAKE, DECRYPT, TIMES_VECTOR, TIMES_NUMBER = 2.7, 0.6, 0.7, 1.4, 0.6
#: Number of rows that are encrypted at a time.
ROWS = 256


# ---- the program over places -------------------------------------------------------------------------------


def receive_encrypted(
    fed: Federation,
    data: Located,
    nodes: Route,
    pooled: Located,
    requests: Requests,
    task: Task,
    config: AveragingSettings,
) -> Located:
    """Receive the message at the clients that request it, from a server that cannot read the features.

    Args:
        nodes: The route of all nodes.
        pooled: The graph at the server, without features.

    Returns:
        The data prepared for training, at the clients.

    Raises:
        InputError: The process with the server has too little memory, or a feature cannot be encrypted.
        ProtocolError: A message is damaged.
    """
    width, degree, seed = task.num_features, config.network.scores.degree, config.run.seed
    key, layout, protection = fold(seed, "fedgat"), layout_of(width), fed.protection_of("encrypted")
    neighbourhoods = fed.server.run(neighbourhoods_of, pooled)
    ids, size = fed.clients.run(neighbourhood_ids, requests.neighbourhood), requests.size
    parts = log_encrypted_cost(fed, neighbourhoods, requests, width, degree)
    slots, entries = requests.expand(fed)
    # The parts of the vectors that do not depend on features: `pooled` has none.
    k1, _, r = fed.server.run(messages_of, pooled, "vector", degree, seed, outputs=3)
    k1 = fed.download(k1, slots, name=f"{ENCRYPTED}/keys", grad=False, like=numbers_form(1))
    decoders = fed.download(r, entries, name="fedgat/decoders", grad=False, like=numbers_form(degree + 1))
    owner, evaluator = share_key(fed, name=ENCRYPTED, parameters=PRODUCT.name)
    fed.begin("encrypting the features")
    sealed = fed.clients.run(encrypt_features, owner, data, layout)
    sealed = fed.upload(sealed, nodes, name=f"{ENCRYPTED}/features", protection=protection, grad=False)
    rows = []
    for part in range(parts):
        fed.begin(f"computing the encrypted message: part {part + 1} of {parts}")
        part_of_all = (layout, part, parts, key)
        route = fed.expand_route(
            requests.route,
            fed.clients.run(units_of_part, ids, size, *part_of_all),
            fed.server.run(units_of_part, fed.table(requests.route), requests.sizes, *part_of_all),
            name=f"{ENCRYPTED}/products",
        )
        products = fed.server.run(
            products_of_part,
            evaluator,
            sealed,
            fed.table(nodes),
            neighbourhoods,
            fed.table(requests.route),
            *part_of_all,
        )
        products = fed.download(
            products,
            route,
            name=f"{ENCRYPTED}/products",
            protection=protection,
            grad=False,
            like=TensorForm(torch.uint8, (RESULT_BYTES,)),
        )
        rows.append(fed.clients.run(decrypt_part, owner, products, ids, size, *part_of_all))
    sums, scores = fed.clients.run(arrange_rows, ids, size, k1, parts, key, *rows, outputs=2)
    return fed.clients.run(
        prepare_moments, data, requests.neighbourhood, size, sums, scores, decoders, config
    )


def log_encrypted_cost(
    fed: Federation, neighbourhoods: Located, requests: Requests, width: int, degree: int
) -> int:
    """Log the cost of the message before anything is encrypted.

    Returns:
        The number of parts in which the message is sent.

    Raises:
        InputError: The process with the server has too little memory.
    """
    together, table = fed.link is None, fed.table(requests.route)
    values = dict.fromkeys(("up", "made", "down", "milliseconds", "once", "sent"), int)
    cost = fed.control(
        predict_cost,
        neighbourhoods,
        table,
        requests.sizes,
        width,
        degree,
        together,
        name="fedgat/size",
        values=values,
    )
    fed.log(log_cost(cost, together, fed.simulated))
    return parts_of(cost)


# ---- how rows are laid out in ciphertexts, at both places --------------------------------------------------


def layout_of(width: int) -> Layout:
    """Return the layout of rows of `width` numbers."""
    return Layout(width, PRODUCT.slots)


def units(size: Tensor, layout: Layout) -> Tensor:
    """Count the units of `layout.pieces` ciphertexts that the 6 B rows of each node take, [n]."""
    return (6 * size + layout.rows - 1) // layout.rows


def places(size: Tensor, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return the unit of every row of some nodes, and its place in the unit, [sum 6 B] each."""
    count = units(size, layout)
    first = torch.repeat_interleave(count.cumsum(0) - count, 6 * size)
    row = ranges(torch.zeros_like(size), 6 * size)
    return (first + row // layout.rows).cpu().numpy(), (row % layout.rows).cpu().numpy()


def part_of(ids: Tensor, parts: int, key: int) -> Tensor:
    """Draw the part in which each node is sent, [n]. Server and clients compute the same."""
    return (uniform(fold(key, "parts"), ids)[:, 0] * parts).long()


def units_of_part(
    rows: RowIds | RouteTable, size: Tensor, layout: Layout, part: int, parts: int, key: int
) -> Tensor:
    """Count the units of each node that are sent in a part, [n]."""
    return units(size, layout) * (part_of(rows.ids, parts, key) == part)


# ---- at the clients ----------------------------------------------------------------------------------------


def encrypt_features(owner: AnyKeyOwner, cohort: Cohort, layout: Layout) -> Tensor:
    """Encrypt features [N, F] to uint8 [N, pieces * ciphertext_bytes]. A number that is too large raises
    InputError.
    """
    x, size = cohort.x, layout.pieces * PRODUCT.ciphertext_bytes
    assert x is not None
    sealed = torch.empty((len(cohort.id), size), dtype=torch.uint8)
    for rows in torch.split(torch.arange(len(cohort.id)), ROWS):
        at = rows.to(cohort.id.device)
        h = x.select_rows(at).to_dense() if isinstance(x, SparseMatrix) else x[at]
        cells = owner.encrypt(layout.repeat(h.detach().cpu().double().numpy()))
        sealed[rows] = torch.from_numpy(cells.reshape(len(rows), size))
    return sealed


def decrypt_part(
    owner: AnyKeyOwner,
    sealed: Tensor,
    ids: RowIds,
    size: Tensor,
    layout: Layout,
    part: int,
    parts: int,
    key: int,
) -> Tensor:
    """Decrypt the rows [sum 6 B, F] of the nodes of a part, from `sealed` [n, pieces * product_bytes]."""
    slots = owner.decrypt(sealed.cpu().numpy().reshape(-1, RESULT_BYTES))
    rows = layout.unpack(slots, *places(size[part_of(ids.ids, parts, key) == part], layout))
    return torch.from_numpy(rows).to(size.device, torch.get_default_dtype())


def arrange_rows(
    ids: RowIds, size: Tensor, keys: Tensor, parts: int, key: int, *rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Arrange the decrypted rows as the message of `nn.moments.Moments`.

    Args:
        ids: The nodes of the message [n].
        size: B of each node [n].
        keys: K1 of all nodes [S, 1].
        rows: The decrypted rows of each part [sum 6 B, F].

    Returns:
        K1 and K2, [S, 1 + F]; and M1 and M2, [S, 2 F].
    """
    order = torch.argsort(part_of(ids.ids, parts, key), stable=True)
    lengths = 6 * size[order]
    starts = torch.empty_like(size).index_copy(0, order, lengths.cumsum(0) - lengths)
    all_rows = torch.cat(rows)
    m1, m2, k2 = (all_rows[ranges(starts + 2 * i * size, 2 * size)] for i in range(3))
    return torch.cat([keys, k2], 1), torch.cat([m1, m2], 1)


# ---- at the server -----------------------------------------------------------------------------------------


def neighbourhoods_of(pooled: Pooled) -> Neighbourhoods:
    """Return the neighbours of every node."""
    return pooled.neighbourhoods


def predict_cost(
    neighbourhoods: Neighbourhoods, table: RouteTable, size: Tensor, width: int, degree: int, together: bool
) -> dict[str, int]:
    """Predict the cost of the message. It is the same wherever the clients run.

    Returns:
        Ciphertexts that the clients send (up), that the server computes (made) and sends (down);
        milliseconds of one core; bytes of the message that the clients decrypt (sent) and of its decoders
        (once).

    Raises:
        InputError: The process has less memory than the message takes.
    """
    layout, scalar = layout_of(width), torch.get_default_dtype().itemsize
    per_node = layout.pieces * units(size, layout)
    up, made = layout.pieces * len(neighbourhoods.ids), int(per_node.sum())
    down = int(per_node[table.index].sum())
    if layout.rows > 1:  # M1 depends on the node itself only; in M2 and K2 few products are zero
        alone = 2 * size // layout.rows
        products = int((alone + (units(size, layout) - alone) * size).sum()) * layout.pieces
    else:  # a row of M2 or K2 depends on one neighbour if its column has an owner
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
            f"largest neighbourhood has {int(size.max()) - 1} neighbours), fewer features, a partition with "
            "fewer cross-client edges, or exchange=plaintext"
        )
    return cost


def parts_of(cost: Mapping[str, int]) -> int:
    """Return the number of parts in which the message is sent."""
    return max(1, -(-cost["down"] * RESULT_BYTES // PART))


def memory_of(cost: Mapping[str, int], together: bool) -> int:
    """Estimate the memory in bytes of the process with the server.

    It holds the encrypted features, the results of one part and the decoders. If the clients run in the
    same process (`together`), it also holds their features, the decrypted part, and the message as received
    and as prepared.
    """
    sealed, down = cost["up"] * PRODUCT.ciphertext_bytes, cost["down"]
    memory = sealed + cost["once"] + (cost["made"] + down) * RESULT_BYTES // parts_of(cost)
    if together:
        memory += sealed + down * PRODUCT.slots * 8 // parts_of(cost) + 3 * cost["sent"]
    return memory


def log_cost(cost: Mapping[str, int], together: bool, simulated: bool) -> str:
    """Write the log message about the cost. The time is that of one core that does everything."""
    up, down, seconds = cost["up"], cost["down"], cost["milliseconds"] / 1000
    time = f"{seconds / 60:.0f} min" if seconds > 90 else f"{max(1, seconds):.0f} s"
    duration = "" if simulated else f", about {time} of one core"
    what = "simulated ciphertexts" if simulated else "ciphertexts"
    return (
        f"the encrypted message before training: {up} {what} to the server "
        f"({up * PRODUCT.ciphertext_bytes / 2**30:.2f} GiB) and {down} back "
        f"({down * RESULT_BYTES / 2**30:.2f} GiB), about {memory_of(cost, together) / 2**30:.2f} GiB of "
        f"memory at the server's process{duration}"
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
    """Compute the units [n, pieces * product_bytes] of the requested nodes of a part, from all encrypted
    features.
    """
    chosen = wanted.ids[part_of(wanted.ids, parts, key) == part]
    rows = torch.searchsorted(neighbourhoods.ids, chosen)
    columns = torch.argsort(nodes.index)[neighbourhoods.member]  # the position of each neighbour's ciphertext
    weights = message_weights(neighbourhoods, rows, columns, key)
    unit, place = places(neighbourhoods.size[rows], layout)
    cells = sealed.cpu().numpy().reshape(-1, PRODUCT.ciphertext_bytes)
    products = evaluator.weighted_rows(cells, weights, unit, place, layout)
    return torch.from_numpy(products.reshape(-1, layout.pieces * RESULT_BYTES))


def message_weights(neighbourhoods: Neighbourhoods, rows: Tensor, columns: Tensor, key: int) -> sp.csr_matrix:
    """Stack the matrices of n nodes into one sparse matrix [sum 6 B, U].

    Weights that are too small for a ciphertext are set to the smallest possible absolute value, 2^-30.

    Args:
        rows: The n nodes, as rows of `neighbourhoods`.
        columns: The column of each neighbour, [sum B of all neighbourhoods].
    """
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


#: With exchange=encrypted, these replace `fedgat/features`, `fedgat/sums` and `fedgat/scores`.
MESSAGES: Mapping[str, str] = {
    "fedgat/encrypted/key_request": "Each client requests the clients' key. The request contains no data.",
    "fedgat/encrypted/secret_key": "One client sends the key, with which all clients encrypt and "
    "decrypt, to the other clients. Everybody who has the key and the server's messages can read all "
    "features: a client that colludes with the server can read the features of every client.",
    "fedgat/encrypted/public_context": "One client sends the server the parameters of the encryption, "
    "without a key. They are public.",
    "fedgat/encrypted/features": "Each client sends the server the encrypted features of all its nodes. "
    "The server multiplies them by its random matrices and cannot read them; with protocols=simulated "
    "it could.",
    "fedgat/encrypted/keys": "The server sends each client, once, K1 of each node of "
    "`fedgat/neighbourhood_ids`. K1 does not depend on features. It shows where a neighbour's features "
    "are in the products.",
    "fedgat/encrypted/products": "The server sends each client, once, the encrypted M1, M2 and K2 of "
    "each of these nodes: sums of the neighbours' features with random vectors. The client decrypts "
    "them and can compute every neighbour's features.",
}

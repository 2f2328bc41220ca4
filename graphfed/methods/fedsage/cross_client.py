"""Cross-client feature reconstruction: the generators also learn from the features of other clients.

Every client sends the embeddings z_v of its nodes with hidden neighbours, with noise, once, and V_p in every
step. For each of these generators, every other client j finds the node of its own that is closest to each
generated neighbour, and returns the gradient of the squared distances:

    sum_v sum_p d/dV_p min_u |V_p z_v - x_u|^2 = 2 sum_p (V_p S_p - X_j^T A_p)

S_p is the sum of z_v z_v^T over the nodes v, and row u of A_p the sum of z_v over the nodes whose generated
neighbour p is closest to u. z_v has a column of ones. A client gets the sum of these gradients over the
other clients.

The gradient does not hide the features. Its client knows z_v, V_p and S_p, so it learns X_j^T A_p, the sum of
x_u z_v^T over its nodes v with their closest nodes u. With at most H + 1 nodes v the z_v are linearly
independent, and it computes each x_u exactly (docs/security.md; tests/methods/test_fedsage.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import as_leaves, sum_over_clients
from graphfed.federation.route import RouteTable, RowIds
from graphfed.federation.secure.aggregation import SumForm, messages, protected_sum
from graphfed.federation.transfer import describe_value
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Task
from graphfed.methods.fedsage.config import NeighGen
from graphfed.methods.fedsage.generator import (
    FEATURES,
    Candidates,
    Generator,
    Impaired,
    counted,
    embeddings,
    feature_loss,
    squared_lengths,
    with_noise,
)
from graphfed.nn.optim import AdamState, init_state, optimizer_step
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.random import fold

#: Numbers of scores that are computed at a time.
CHUNK = 1 << 24


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The nodes with hidden neighbours of all clients.

    Attributes:
        z: [M, H + 1], their embeddings with noise and the column of ones, in client order.
        counts: [M] int64, how many generated neighbours of each node are compared.
        client: [M] int64, the id of each node's client.
    """

    z: Tensor
    counts: Tensor
    client: Tensor


# ---- at the clients ----------------------------------------------------------------------------------------


def sent_rows(impaired: Impaired, generator: Generator, config: AveragingSettings) -> Tensor:
    """Return z_v with noise and the number of hidden neighbours, at most P, of taught nodes, [m, H + 1]."""
    with torch.no_grad():
        z = embeddings(generator, impaired.batch, config.network)[impaired.taught]
    # One draw for all steps: embeddings are sent once.
    key = fold(config.run.seed, "generator noise", "sent")
    noisy = with_noise(z, key, impaired.ids[impaired.taught])[:, :-1]
    rows = torch.cat([noisy, impaired.candidates.counts[:, None]], 1)
    return rows.to(torch.get_default_dtype())


def row_numbers(impaired: Impaired) -> RowIds:
    """Return the numbers 0, 1, ... of each client's taught nodes."""
    client = impaired.candidates.client
    rows = torch.arange(len(client), device=client.device)
    # Numbers and not ids: the server learns how many taught nodes there are, and not which.
    first = torch.searchsorted(client, client)
    return RowIds(rows - first, client)


def known(rows: Tensor, client: Tensor) -> Embeddings:
    """Read received rows of `sent_rows`, [M, H + 1], whose clients have the ids `client` [M]."""
    # All places read the same rounded numbers, the sender too, so that gradients belong to what was sent.
    z = torch.cat([rows[:, :-1], rows.new_ones(len(rows), 1)], 1).double()
    return Embeddings(z, rows[:, -1].round().long(), client)


def features_of(generator: Generator) -> Tensor:
    """Return V of every client as it is sent, [K, F, P * (H + 1)] in the default dtype."""
    features = generator[FEATURES]
    assert isinstance(features, Tensor)
    return features.to(torch.get_default_dtype())


def cross_gradients(
    cohort: Cohort,
    ids: Tensor,
    received: Embeddings,
    generators: Tensor,
    parts: int,
) -> Tensor:
    """Compute the gradients that every client returns for V of all clients, `generators` [K, F, P * (H + 1)].

    The result is [K_h, K, F, P * (H + 1)] for the cohort's clients, with the ids `ids` [K_h]; it is 0 for a
    client's own generator.
    """
    assert cohort.x is not None
    # float64: a closest node must be the same in every placement, and squared distances cancel digits.
    x, noisy, dtype = cohort.x.to(dtype=torch.float64), received.z, generators.dtype
    width = noisy.shape[1]
    compared = counted(received.counts, parts)
    members = rows_of_clients(cohort.client, cohort.num_clients)
    lengths = squared_lengths(x)
    gradients = generators.new_zeros(len(ids), *generators.shape)
    # One generator at a time: the scores of all nodes of the cohort for all generators would not fit.
    for number, matrix in enumerate(generators.double()):
        nodes = (received.client == number).nonzero()[:, 0]
        others = (ids != number) & (members[:, 0] >= 0)
        if not len(nodes) or not bool(others.any()):
            continue
        own, mask = noisy[nodes], compared[nodes]
        products = spmm(x, matrix) if isinstance(x, SparseMatrix) else x @ matrix
        # [N, P, H + 1]
        products = products.view(-1, parts, width)
        # A_p of every client at once, [N, P, H + 1]: a row u belongs to one client only.
        moments = noisy.new_zeros(cohort.num_rows * parts, width)
        rows = max(1, CHUNK // max(1, products[..., 0].numel()))
        for z, counts in zip(torch.split(own, rows), torch.split(mask, rows), strict=True):
            closest = closest_rows(z, products, lengths, members)  # [r, P, K_h]
            # A generator's own client is left out: its hidden nodes are in `feature_loss`.
            at, part, client = (counts[:, :, None] & others).nonzero(as_tuple=True)
            index = closest[at, part, client] * parts + part
            moments.index_add_(0, index, z[at])
        # 2 (V_p S_p - X_j^T A_p)
        second = torch.einsum("vp,va,vb->pab", mask.to(own.dtype), own, own)
        first = torch.einsum("fpa,pab->fpb", matrix.view(-1, parts, width), second)
        back = transposed_products(x, cohort.client, members, moments.view(cohort.num_rows, -1))
        gradients[:, number] = (2 * (first.flatten(1) * others[:, None, None] - back)).to(dtype)
    return gradients


def rows_of_clients(client: Tensor, clients: int) -> Tensor:
    """List the rows of each of K_h clients, from the client of each row, [N] ascending.

    The result is [K_h, n] int64, with n rows of the largest client, at least 1; -1 after a client's last row.
    """
    counts = torch.bincount(client, minlength=clients)
    rows = torch.arange(max(1, int(counts.max())), device=client.device)
    first = counts.cumsum(0) - counts
    return torch.where(rows < counts[:, None], first[:, None] + rows, -1)


def closest_rows(z: Tensor, products: Tensor, lengths: Tensor, members: Tensor) -> Tensor:
    """Find the node of every client that is closest to each generated neighbour V_p z, z [r, H + 1].

    Args:
        products: V_p^T x_u of the cohort's nodes, [N, P, H + 1].
        lengths: |x_u|^2 of the cohort's nodes, [N].
        members: The rows of each client, [K_h, n], from `rows_of_clients`.

    Returns:
        [r, P, K_h] int64, rows of the cohort; any row for a client without nodes.
    """
    scores = torch.einsum("ra,upa->rpu", z, products).mul_(-2).add_(lengths)
    # [r, P, K_h, n]
    of_client = scores[:, :, members.clamp(min=0)].masked_fill_(members < 0, torch.inf)
    return members.clamp(min=0).t()[of_client.argmin(3), torch.arange(len(members), device=z.device)]


def transposed_products(x: Tensor | SparseMatrix, client: Tensor, members: Tensor, moments: Tensor) -> Tensor:
    """Compute X_j^T A for the rows of every client j, [K_h, F, B] for A of [N, B]."""
    clients, features = len(members), x.shape[1]
    if isinstance(x, SparseMatrix):
        rows = client[x.row] * features + x.indices
        matrix = SparseMatrix.from_coo(rows, x.row, x.values, (clients * features, x.shape[0]))
        return spmm(matrix, moments).view(clients, features, -1)
    inside = (members >= 0)[:, :, None]
    padded = x[members.clamp(min=0)] * inside
    return padded.transpose(1, 2) @ moments[members.clamp(min=0)]


def step_across(
    impaired: Impaired,
    generator: Generator,
    received: Embeddings,
    ids: Tensor,
    gradient: Tensor,
    optimizer: AdamState,
    settings: NeighGen,
) -> tuple[Generator, AdamState]:
    """Take a step of the generators of features, on the own hidden nodes and the other clients' gradients.

    `ids` [K_h] are those of the cohort's clients, `gradient` [K_h, F, P * (H + 1)] is the sum over the other
    clients, and an optimiser of {} is fresh.
    """
    features = generator[FEATURES]
    assert isinstance(features, Tensor)
    values = {FEATURES: features}
    candidates: Candidates = impaired.candidates
    state = optimizer or init_state("adam", values)
    # Without taught nodes nothing was sent, and the step leaves the generator as it is.
    total = torch.zeros_like(features)
    if len(candidates.client):
        # The rows of the cohort's clients, in client order like `candidates`.
        noisy = received.z[torch.isin(received.client, ids)]
        leaves = as_leaves(values)
        loss = feature_loss(leaves[FEATURES], noisy, candidates)
        (total,) = torch.autograd.grad(loss, list(leaves.values()))
        # Only clients with taught nodes have a gradient; all of a client's nodes have the same scale.
        scale = total.new_zeros(len(ids)).index_copy(0, candidates.client, candidates.scale)
        total = total + settings.cross_weight * scale[:, None, None] * gradient
    values, state = optimizer_step("adam", values, {FEATURES: total}, state, settings.generator_lr, 0.0)
    return {**generator, **values}, state


# ---- at the server -----------------------------------------------------------------------------------------


def row_clients(table: RouteTable) -> Tensor:
    """Return the id of each uploaded row's client, [M]."""
    return table.client


def gradient_form(clients: int, width: tuple[int, int], device: str) -> Tensor:
    """Return a value of the form of one client's gradients, [K, F, P * (H + 1)]."""
    return torch.zeros(clients, *width, device=device)


def as_default(total: Tensor) -> Tensor:
    """Return a sum in torch's default dtype."""
    return total.to(torch.get_default_dtype())


def same(gradients: Tensor) -> Tensor:
    """Return each client's part of a sum."""
    return gradients


def accept_shape(shape: tuple[int, ...], x: Tensor, declared: Mapping[str, Any]) -> str:
    """Check the last dimensions of what another process sends; see `transfer.Accept`."""
    fits = x.is_floating_point() and tuple(x.shape[x.dim() - len(shape) :]) == shape
    return (
        "" if fits else f"{describe_value(x)} where numbers of shape [..., {str(shape)[1:-1]}] are expected"
    )


def clients_form(rows: Tensor) -> Tensor:
    """Return a value of the form of the numbers of the rows' clients."""
    return rows.new_empty(len(rows), dtype=torch.int64)


# ---- the program over places -------------------------------------------------------------------------------


def train_across(
    fed: Federation,
    data: Located,
    impaired: Located,
    generator: Located,
    task: Task,
    config: AveragingSettings,
) -> Located:
    """Train the generators of features with gradients from the features of the other clients.

    Encoders and predictors of numbers stay as they are. Everything is at the clients.
    """
    settings: NeighGen = config.exchange
    ids, dtype, columns = fed.client_ids(), torch.get_default_dtype(), config.network.hidden + 1
    route = fed.route(fed.clients.run(row_numbers, impaired), name="fedsage/rows")
    rows = fed.clients.run(sent_rows, impaired, generator, config)
    check = partial(accept_shape, (columns,))
    rows = fed.upload(rows, route, name="fedsage/embeddings", grad=False, accept=check)
    rows = fed.broadcast(
        rows, name="fedsage/all_embeddings", grad=False, like=TensorForm(dtype, (None, columns))
    )
    fed.expect("fedsage/all_rows", clients_form, rows)
    clients = fed.server.run(row_clients, fed.table(route))
    clients = fed.broadcast(clients, name="fedsage/all_rows", grad=False)
    received = fed.clients.run(known, rows, clients)
    # A new state: only V is trained from here on.
    optimizer: Located = fed.clients.run(dict)
    width = (task.num_features, settings.generated * columns)
    form = SumForm(sum_over_clients, same, gradient_form, as_default)
    for _ in range(settings.cross_steps):
        sent = fed.gather(
            fed.clients.run(features_of, generator),
            name="fedsage/generator",
            grad=False,
            accept=partial(accept_shape, width),
        )
        generators = fed.broadcast(
            sent, name="fedsage/all_generators", grad=False, like=TensorForm(dtype, (fed.num_clients, *width))
        )
        gradients = fed.clients.run(cross_gradients, data, ids, received, generators, settings.generated)
        total = protected_sum(
            fed,
            form,
            gradients,
            protection=config.sums.aggregation,
            name="fedsage/feature_gradients",
            like=(fed.num_clients, width, str(fed.device)),
            accept=partial(accept_shape, (fed.num_clients, *width)),
        )
        gradient = fed.scatter(
            total, name="fedsage/feature_gradient", grad=False, like=TensorForm(dtype, width)
        )
        generator, optimizer = fed.clients.run(
            step_across, impaired, generator, received, ids, gradient, optimizer, settings, outputs=2
        )
    return generator


MESSAGES = {
    "fedsage/rows": "Once: every client sends the server a number for each of its nodes with a hidden "
    "neighbour: 0, 1, 2, ... The server learns how many they are.",
    "fedsage/embeddings": "Once: every client sends the server, for each of these nodes, the output of its "
    "encoder, with noise that all participants can draw, and how many neighbours of the node it has hidden. "
    "The server reads both; features and edges can in part be inferred from them.",
    "fedsage/all_embeddings": "Once: the server sends every client these outputs and numbers of all clients. "
    "Every client reads them.",
    "fedsage/all_rows": "Once: the server sends every client which client each of these rows is of.",
    "fedsage/generator": "In every step of cross_steps: every client sends the server the weights of its "
    "generator of features, which are fitted to the features of its nodes. The server reads them.",
    "fedsage/all_generators": "In every step of cross_steps: the server sends every client the weights of "
    "all generators. Every client can generate what they generate.",
    "fedsage/feature_gradients": "In every step of cross_steps, with aggregation=plaintext: every client "
    "sends the server, for every other client's generator, the gradient of the distances between generated "
    "features and the closest features of its own nodes. The server reads it, and computes these features "
    "exactly where a generator's client has sent few embeddings.",
    **messages(
        "fedsage/feature_gradients",
        "In every step of cross_steps, with aggregation=secure",
        "a client's gradients for the generators of the others",
    ),
    "fedsage/feature_gradient": "In every step of cross_steps: the server sends every client the sum of the "
    "other clients' gradients for its generator. A client that has sent few embeddings computes from it, "
    "exactly, the sum over the other clients of the features that are closest; of two clients, those of the "
    "other. From few changes of the closest nodes between two steps every client computes their differences.",
}

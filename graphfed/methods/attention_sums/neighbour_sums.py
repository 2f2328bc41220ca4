"""Sums over a node's neighbours at other clients, which only the node's client gets.

A node i with a neighbour at another client is a *target*. Its client sends the scores a_i to every client
with a neighbour of i (a *contributor* of i). Each contributor sends back one part, the sum over its own
neighbours of i, and the client of i adds up the parts. Both go from client to client; the server gets
neither.

Under each protection the gradients are those of the sum. The client of i sends the gradient of the total to
every contributor, and the contributors send back the gradient of a_i, which is again a sum over them.

With exchange=plaintext the client of i reads every part. With exchange=secure it reads their total: parts are
rounded to fixed point (`crypto.sharing`, off by at most 2^-25 each) and masked. Each two contributors of i
have a key from which they derive equally many words for i; the one with the lower number adds them, the other
one subtracts them, so they cancel in the total modulo 2^64. A node with a single contributor has no mask, and
the total is that client's part.

The masks are those of secure aggregation (`crypto.aggregation`), without its shares for clients that drop
out: all clients take part in every round.

Security parameter: 128 bits (`crypto.pairwise`). Corruption model: all participants follow the protocol, and
the server relays the public keys unchanged. Argument: a mask is a stream that cannot be distinguished from
uniform words without the key of the two contributors, and every key is used for one mask only. So the parts
that the client of i receives are uniform except for their total, as long as it does not work with all
contributors but one. What leaks: totals; to each contributor which other clients have neighbours of i. This
does not protect features: totals of many rounds can be solved for them, and scores are not masked (`method`).
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from graphfed.crypto.sharing import decode, encode
from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import ExchangeIds, ExchangeRoute
from graphfed.federation.secure.aggregation import check_sums
from graphfed.methods.attention_sums.attention import Pattern
from graphfed.methods.attention_sums.config import Exchange
from graphfed.methods.common.remote_neighbours import remote_ids, remote_neighbours
from graphfed.nn.sparse import SparseMatrix
from graphfed.random import entry_words

KEY_BYTES = 32
PURPOSE = b"graphfed attention_sums "


@dataclass(frozen=True, eq=False)
class Targets:
    """The sums that a cohort's clients contribute to, and those that they ask for.

    Attributes:
        wanted: The M targets of other clients that the cohort's clients contribute to.
        patterns: The edges to these targets, for the heads of each layer.
        asked: The R parts that the cohort's clients ask other clients for.
        row: [R] int64, the cohort's row of the target of each part.
        num_rows: N.
    """

    wanted: ExchangeIds
    patterns: tuple[Pattern, ...]
    asked: ExchangeIds
    row: Tensor
    num_rows: int


@dataclass(frozen=True, eq=False)
class NeighbourSums:
    """What the clients have agreed on.

    Attributes:
        targets: `Targets` at the clients.
        scores: Route of the scores, from a target's client to its contributors.
        parts: Route of the parts, from the contributors to the target's client.
        masks: `Masks` at the clients, with exchange=secure.
    """

    targets: Located
    scores: ExchangeRoute
    parts: ExchangeRoute
    masks: Located | None

    def send_scores(self, fed: Federation, scores: Located, *, grad: bool) -> Located:
        """Send the scores [N, heads] of all rows to the contributors; returns [M, heads] of the targets."""
        name = "attention_sums/scores"
        if self.masks is None:
            return fed.exchange(scores, self.scores, name=name, grad=grad)
        # Scores are not masked, but their gradients are sums over contributors, which must be.
        sent = fed.exchange(scores, self.scores, name=name, grad=False)
        back = partial(self._total, fed, name=f"{name}/grad")
        return fed.custom_backward(scores, sent, back) if grad else sent

    def add_parts(self, fed: Federation, parts: Located, *, grad: bool) -> Located:
        """Add up the parts [M, w] of all targets; returns a total for every row, [N, w], 0 without a part."""
        name = "attention_sums/parts"
        if self.masks is None:
            received = fed.exchange(parts, self.parts, name=name, grad=grad)
            return fed.clients.run(add_rows, self.targets, received)
        # Rounding has no derivative, so the sum's is given by hand: every part gets that of the total.
        total = self._total(fed, parts, name=name)
        back = partial(self._spread, fed, name=f"{name}/grad")
        return fed.custom_backward(parts, total, back) if grad else total

    def _total(self, fed: Federation, parts: Located, *, name: str) -> Located:
        """Add up masked parts [M, w]; returns [N, w]."""
        # Headroom for one part of every client: a sum in the ring must not wrap around.
        masked = fed.clients.run(mask_parts, self.masks, parts, fed.num_clients)
        protection = fed.protection_of("aggregate")
        received = fed.exchange(masked, self.parts, name=name, protection=protection, grad=False)
        return fed.clients.run(open_totals, self.targets, received, parts)

    def _spread(self, fed: Federation, gradient: Located, *, name: str) -> Located:
        """Send the gradient of each total [N, w] to its contributors; returns [M, w]."""
        return fed.exchange(gradient, self.scores, name=name, grad=False)


# ---- at the clients: who contributes to which target -------------------------------------------------------


def find_targets(cohort: Cohort, kept: Tensor | None, min_group: int, heads: tuple[int, ...]) -> Targets:
    """List the targets that a cohort's clients contribute to, and the parts that they ask for.

    `kept` [M, 1] says whether each remote neighbour (`remote_neighbours`) is kept as a target by its client;
    None to decide by `min_group` for single parts, which both clients can count.
    """
    _, target = remote_neighbours(cohort)
    if kept is None:
        contributes = group_sizes(target) >= min_group
        asks = group_sizes(part_of_edges(cohort)) >= min_group
    else:
        contributes = kept[:, 0][target] > 0
        asks = keeps_targets(cohort, min_group)[cohort.cross_row]
    outward = _select_edges(cohort, contributes)
    wanted, (_, target) = remote_ids(outward), remote_neighbours(outward)
    # Usually two numbers of heads: that of the hidden layers and that of the last one.
    by_heads = {n: _pattern(outward, wanted, target, n) for n in {*heads}}
    inward = _select_edges(cohort, asks)
    # One part of each other client for a row, however many edges it has to that client.
    parts = torch.unique(torch.stack([inward.cross_row, inward.cross_client]), dim=1)
    row, contributor = parts[0], parts[1]
    asked = ExchangeIds(
        owner=contributor,
        ids=cohort.id[row],
        client=cohort.client[row],
        held_ids=wanted.ids,
        held_client=wanted.client,
    )
    patterns = tuple(by_heads[n] for n in heads)
    return Targets(wanted, patterns, asked, row, cohort.num_rows)


def group_sizes(group: Tensor) -> Tensor:
    """Count the edges in the group of each edge, [C]; `group` [C] names it."""
    _, place, count = torch.unique(group, return_inverse=True, return_counts=True)
    sizes: Tensor = count[place]
    return sizes


def part_of_edges(cohort: Cohort) -> Tensor:
    """Number the part of each cross-client edge by its row and the other client, [C]."""
    clients = int(cohort.cross_client.max()) + 1 if len(cohort.cross_client) else 1
    return cohort.cross_row * clients + cohort.cross_client


def keeps_targets(cohort: Cohort, min_group: int) -> Tensor:
    """Return for each row whether it has enough neighbours at other clients together, [N] bool."""
    remote: Tensor = torch.bincount(cohort.cross_row, minlength=cohort.num_rows)
    return remote >= min_group


def kept_rows(cohort: Cohort, min_group: int) -> Tensor:
    """Return `keeps_targets` as rows to send, [N, 1]."""
    return keeps_targets(cohort, min_group)[:, None].to(torch.uint8)


def _select_edges(cohort: Cohort, chosen: Tensor) -> Cohort:
    """Keep some of the cross-client edges."""
    weight = None if cohort.cross_weight is None else cohort.cross_weight[chosen]
    return replace(
        cohort,
        cross_row=cohort.cross_row[chosen],
        cross_client=cohort.cross_client[chosen],
        cross_id=cohort.cross_id[chosen],
        cross_weight=weight,
    )


def _pattern(cohort: Cohort, wanted: ExchangeIds, target: Tensor, heads: int) -> Pattern:
    """Arrange the cross-client edges as a matrix from the cohort's rows to the targets."""
    dtype = torch.get_default_dtype() if cohort.x is None else cohort.x.dtype
    ones = torch.ones(len(target), dtype=dtype, device=target.device)
    matrix = SparseMatrix.from_coo(target, cohort.cross_row, ones, (len(wanted.ids), cohort.num_rows))
    # By the ids of both ends, as inside clients, so that dropout is that of the pooled graph.
    words = entry_words(wanted.ids[matrix.row], cohort.id[matrix.indices])
    return Pattern(matrix.block_diagonal(heads), words)


def wanted_ids(targets: Targets) -> ExchangeIds:
    """Return the targets of other clients."""
    return targets.wanted


def asked_ids(targets: Targets) -> ExchangeIds:
    """Return the parts that are asked for."""
    return targets.asked


def add_rows(targets: Targets, received: Tensor) -> Tensor:
    """Add up the parts [R, w] of each row; returns [N, w]."""
    return received.new_zeros(targets.num_rows, received.shape[1]).index_add(0, targets.row, received)


# ---- at the clients: masks ---------------------------------------------------------------------------------


class Masks:
    """The masks of a cohort's clients. Each use takes new masks, in the same order at all clients.

    All processes run the same program, as the keys of messages need too (`Delivery.next_key`). A run that is
    resumed sets all clients up again, so they have new keys and count from the beginning.

    Args:
        pairs: For each client of the cohort and each other contributor of some of its targets: the rows of
            these targets, the key of the two, and whether the client adds the mask.
    """

    def __init__(self, pairs: tuple[tuple[Tensor, bytes, bool], ...]) -> None:
        self._pairs, self._uses = pairs, 0

    def mask(self, words: np.ndarray) -> None:
        """Mask the parts of all targets, uint64 [M, w], in place."""
        from graphfed.crypto.pairwise import add_masks

        # A new mask for each use: the difference of two parts under one mask would be in plaintext.
        self._uses += 1
        for rows, key, adds in self._pairs:
            stream = [hmac.digest(key, self._uses.to_bytes(8, "little"), "sha256")]
            # Both clients mask the same targets in the same order, so their streams cancel word by word.
            block = np.zeros(len(rows) * words.shape[1], dtype=np.uint64)
            add_masks(block, stream if adds else [], [] if adds else stream)
            words[rows.numpy()] += block.reshape(len(rows), -1)

    def __reduce__(self) -> str:
        raise TypeError("masks hold keys for one run: they are neither copied nor pickled")


class NoMasks(Masks):
    """The simulated form: no keys and no masks."""

    def __init__(self) -> None:
        super().__init__(())


class Keys:
    """The key pairs of a cohort's clients, of a run."""

    # Made anew for each run, so that no mask occurs in two runs.
    def __init__(self, clients: int, simulated: bool) -> None:
        self.pairs = []
        if not simulated:
            from graphfed.crypto.pairwise import KeyPair

            self.pairs = [KeyPair() for _ in range(clients)]
        self.public = torch.zeros(clients, KEY_BYTES, dtype=torch.uint8)
        for row, pair in zip(self.public, self.pairs, strict=False):
            row.copy_(torch.frombuffer(bytearray(pair.public), dtype=torch.uint8))


def make_keys(ids: Tensor, simulated: bool) -> Keys:
    """Make a key pair for every client of a cohort."""
    return Keys(len(ids), simulated)


def public_keys(keys: Keys) -> Tensor:
    """Return the public keys, [K_h, 32] uint8."""
    return keys.public


def contributors(targets: Targets, clients: int) -> Tensor:
    """Mark the clients that contribute to each row, [N, K] uint8."""
    marks = torch.zeros(targets.num_rows, clients, dtype=torch.uint8, device=targets.row.device)
    # Only the target's client knows all of its contributors, so it sends them to each other.
    marks[targets.row, targets.asked.owner] = 1
    return marks


def make_masks(
    targets: Targets, keys: Keys, public: Tensor, marks: Tensor, ids: Tensor, simulated: bool
) -> Masks:
    """Agree on a key with every other contributor of a client's targets.

    Args:
        public: [K, 32] uint8, the public keys of all clients, by id.
        marks: [M, K] uint8, 1 for the contributors of each target.
        ids: [K_h] int64, the ids of the cohort's own clients.
    """
    if simulated:
        return NoMasks()
    pairs = []
    # The targets of a client are in the order of their owners and ids, so two contributors list the targets
    # that they have in common in the same order.
    client, marks = targets.wanted.client.cpu(), marks.cpu()
    for k, number in enumerate(ids.tolist()):
        own_rows = (client == k).nonzero()[:, 0]
        for other in range(len(public)):
            rows = own_rows[marks[own_rows, other] > 0]
            if other == number or not len(rows):
                continue
            # The purpose has the lower id first at both clients, so both derive the same key.
            low, high = sorted((number, other))
            purpose = PURPOSE + low.to_bytes(4, "little") + high.to_bytes(4, "little")
            key = keys.pairs[k].agree(bytes(public[other].cpu().numpy()), purpose, KEY_BYTES)
            pairs.append((rows, key, number < other))
    return Masks(tuple(pairs))


def mask_parts(masks: Masks, parts: Tensor, clients: int) -> Tensor:
    """Round parts [M, w] to fixed point and mask them; returns int64 [M, w]."""
    try:
        encoded = encode(parts.detach(), clients)
    except InputError as error:
        # exp(26) is about 2^37.5, and a part is a sum of such terms times embeddings.
        raise InputError(
            f"exchange=secure has fixed-point numbers, which hold source scores up to about 26: {error}, "
            "more weight_decay, or exchange=plaintext, which holds scores up to 60"
        ) from None
    words = encoded.cpu().numpy().view(np.uint64)
    masks.mask(words)
    return torch.from_numpy(words.view(np.int64)).to(parts.device)


def open_totals(targets: Targets, received: Tensor, parts: Tensor) -> Tensor:
    """Add up masked parts [R, w] modulo 2^64 in the dtype of `parts`; returns [N, w]."""
    return decode(add_rows(targets, received), parts.dtype)


# ---- the program over places -------------------------------------------------------------------------------


def connect(fed: Federation, data: Located, exchange: Exchange, heads: tuple[int, ...]) -> NeighbourSums:
    """Agree on the targets and their contributors, and with exchange=secure on masks.

    `heads` are the attention heads of each layer.
    """
    return _CONNECT[exchange.exchange](fed, data, exchange, heads)


def connect_in_plaintext(
    fed: Federation, data: Located, exchange: Exchange, heads: tuple[int, ...]
) -> NeighbourSums:
    """Agree on the targets. Both clients can count the neighbours in a part."""
    targets = fed.clients.run(find_targets, data, None, exchange.min_group, heads)
    return NeighbourSums(targets, *agree_on_routes(fed, targets), None)


def connect_with_masks(
    fed: Federation, data: Located, exchange: Exchange, heads: tuple[int, ...]
) -> NeighbourSums:
    """Agree on the targets and the masks. A target's client alone can count the neighbours in its total."""
    # Checked before anything is sent.
    if fed.num_clients < 3:
        raise InputError(
            f"exchange=secure needs 3 or more clients, and this run has {fed.num_clients}: the total over "
            "the other clients would be one client's sum; use more clients, or exchange=plaintext"
        )
    check_sums(fed, exchange.exchange, fed.num_clients)
    kept = fed.clients.run(kept_rows, data, exchange.min_group)
    neighbours = fed.exchange_route(fed.clients.run(remote_ids, data), name="attention_sums/neighbour_ids")
    kept = fed.exchange(kept, neighbours, name="attention_sums/kept", grad=False)
    targets = fed.clients.run(find_targets, data, kept, exchange.min_group, heads)
    scores, parts = agree_on_routes(fed, targets)
    ids, clients = fed.client_ids(), fed.num_clients
    public = fed.protection_of("public")
    keys = fed.clients.run(make_keys, ids, fed.simulated)
    sent = fed.gather(
        fed.clients.run(public_keys, keys), name="attention_sums/keys", protection=public, grad=False
    )
    all_keys = fed.broadcast(
        sent,
        name="attention_sums/all_keys",
        protection=public,
        grad=False,
        like=TensorForm(torch.uint8, (fed.num_clients, KEY_BYTES)),
    )
    marks = fed.clients.run(contributors, targets, clients)
    marks = fed.exchange(marks, scores, name="attention_sums/contributors", grad=False)
    masks = fed.clients.run(make_masks, targets, keys, all_keys, marks, ids, fed.simulated)
    return NeighbourSums(targets, scores, parts, masks)


def agree_on_routes(fed: Federation, targets: Located) -> tuple[ExchangeRoute, ExchangeRoute]:
    """Agree on the routes of the scores and of the parts."""
    scores = fed.exchange_route(fed.clients.run(wanted_ids, targets), name="attention_sums/target_ids")
    parts = fed.exchange_route(fed.clients.run(asked_ids, targets), name="attention_sums/part_ids")
    return scores, parts


_CONNECT: Mapping[str, Callable[[Federation, Located, Exchange, tuple[int, ...]], NeighbourSums]] = {
    "plaintext": connect_in_plaintext,
    "secure": connect_with_masks,
}

MESSAGES: Mapping[str, str] = {
    "attention_sums/neighbour_ids": "With exchange=secure a client sends each other client, once, the ids of "
    "that client's nodes to which it has an edge. That client knows these edges.",
    "attention_sums/kept": "With exchange=secure a client tells every client with a neighbour of a node, "
    "once, whether the node has at least min_group neighbours at other clients.",
    "attention_sums/target_ids": "A client sends each other client, once, the ids of that client's nodes "
    "whose sums it has neighbours for. That client knows these edges.",
    "attention_sums/part_ids": "A client sends each other client, once, the ids of its own nodes for which "
    "it asks that client for sums. That client knows these edges.",
    "attention_sums/keys": "With exchange=secure every client sends the server, once, a public key that it "
    "made for this run. It says nothing about its data.",
    "attention_sums/all_keys": "With exchange=secure the server sends all clients, once, the public keys of "
    "all clients.",
    "attention_sums/contributors": "With exchange=secure a client tells every client with a neighbour of a "
    "node, once, which clients have neighbours of the node.",
    "attention_sums/scores": "In every round and evaluation, for each layer: a client sends every client "
    "with a neighbour of a node the node's score as a target, one number for each head. The receiver reads "
    "it, whichever protection the run uses. In the first layer it is a linear function of the node's "
    "features with weights that the receiver knows, so the scores of many rounds give the features away.",
    "attention_sums/parts": "In every round and evaluation, for each layer: a client sends the client of "
    "a node the sum over its own neighbours of the node, of the transformed features (in later layers, "
    "embeddings) times the exponential of a score, and of these exponentials. With exchange=plaintext the "
    "receiver reads each sum; a sum over one neighbour is that neighbour's. With exchange=secure it "
    "reads the total over the other clients, which is one client's sum if only one has neighbours. From the "
    "sums or totals of many rounds over few neighbours it computes their features. With protocols=simulated "
    "there are no masks.",
    "attention_sums/parts/grad": "In every round, for each layer: the client of a node sends the gradient of "
    "the loss with respect to the node's sum to every client with a neighbour of it. The receiver reads it. "
    "In the last layer it shows the label of a training node.",
    "attention_sums/scores/grad": "In every round, for each layer: a client sends the client of a node the "
    "gradient of the loss with respect to the node's score, as far as it comes from its own neighbours, one "
    "number for each head. With exchange=plaintext the receiver reads it, with exchange=secure the total "
    "over the other clients.",
}

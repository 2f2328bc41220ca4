"""Clients stacked in one tensor program compute what each would alone: the fact that lets one round cost one
epoch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import as_client_weights, as_dense, batch_of, draw_weights, one_client, random_view
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.nn.backbones import BACKBONES, Weights
from graphfed.nn.batch import Batch, View
from graphfed.nn.layers import Dropout
from graphfed.nn.optim import adam, adam_init, sgd
from graphfed.nn.sparse import SparseWeights, pair_columns
from graphfed.nn.tiles import make_tiles

HEADS, LAYERS = 2, 2
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def client_weights(seed: int, backbone: str, clients: int) -> dict[str, Tensor]:
    """Another full set of weights for every client, [K, ...] each."""
    each = [draw_weights(seed + k, backbone, [6, 4, 3], HEADS) for k in range(clients)]
    return {name: torch.stack([w[name] for w in each]) for name in each[0]}


def run_alone(
    backbone: str, weights: dict[str, Tensor], view: View, k: int, dropout: Dropout | None
) -> Tensor:
    """The slow version: client k with its own rows and its own weights, nothing stacked."""
    own = {name: w[k] for name, w in weights.items()}
    return BACKBONES[backbone].forward(own, batch_of(one_client(view, k), backbone, LAYERS, HEADS), dropout)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.one_of(
        st.lists(st.integers(0, 6), min_size=1, max_size=50),
        st.lists(st.sampled_from([0, 1, 1, 2, 40, 90]), min_size=2, max_size=8),
    ).filter(sum),
    backbone=st.sampled_from(list(BACKBONES)),
    sparse=st.booleans(),
    dropout=st.sampled_from([None, Dropout(0.5, 7)]),
)
def test_stacked_clients_equal_a_loop_over_clients_in_values_and_gradients(
    seed: int, sizes: list[int], backbone: str, sparse: bool, dropout: Dropout | None
) -> None:
    view = random_view(seed, sizes, sparse=sparse)
    looped = {k: w.requires_grad_() for k, w in client_weights(seed, backbone, len(sizes)).items()}
    x = as_dense(view.x).clone().requires_grad_()
    if not sparse:
        view = replace(view, x=x)
    expected = torch.cat(
        [run_alone(backbone, looped, view, k, dropout) for k in range(len(sizes)) if sizes[k]]
    )
    direction = torch.from_numpy(np.random.default_rng(seed).standard_normal(tuple(expected.shape)))
    (expected * direction).sum().backward()
    x_gradient, x.grad = x.grad, None

    batch = batch_of(view, backbone, LAYERS, HEADS, per_client=True)
    whole = {k: w.detach().clone().requires_grad_() for k, w in looped.items()}
    logits = BACKBONES[backbone].forward(as_client_weights(whole, backbone, batch), batch, dropout)
    torch.testing.assert_close(logits, expected, **CLOSE)
    (logits * direction).sum().backward()
    for name, w in whole.items():
        torch.testing.assert_close(w.grad, looped[name].grad, rtol=1e-11, atol=1e-11, msg=name)
    if not sparse:
        torch.testing.assert_close(x.grad, x_gradient, **CLOSE)


@pytest.mark.parametrize("backbone", list(BACKBONES))
def test_shared_weights_give_what_the_same_weights_at_every_client_give(backbone: str) -> None:
    view = random_view(0, [7, 0, 1, 30], sparse=True)
    shared = draw_weights(0, backbone, [6, 4, 3], HEADS)
    expected = BACKBONES[backbone].forward(shared, batch_of(view, backbone, LAYERS, HEADS), Dropout(0.3, 1))
    batch = batch_of(view, backbone, LAYERS, HEADS, per_client=True)
    whole = {k: w.expand(4, *w.shape) for k, w in shared.items()}
    logits = BACKBONES[backbone].forward(as_client_weights(whole, backbone, batch), batch, Dropout(0.3, 1))
    torch.testing.assert_close(logits, expected, **CLOSE)


@settings(max_examples=100)
@given(counts=st.lists(st.integers(0, 70), min_size=1, max_size=50))
def test_tiles_hold_every_row_once_and_one_client_each(counts: list[int]) -> None:
    client = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    tiles = make_tiles(client, len(counts))
    assert len(tiles.slot.unique()) == len(client)
    assert len(client) == 0 or int(tiles.slot.max()) < tiles.count * tiles.size
    tile = tiles.slot // tiles.size
    owner = tile if tiles.client is None else tiles.client[tile]
    assert torch.equal(owner, client)


def test_one_large_client_among_many_small_ones_does_not_pad_them_to_its_size() -> None:
    counts = [1000] + [1] * 99
    tiles = make_tiles(torch.repeat_interleave(torch.arange(100), torch.tensor(counts)), 100)
    assert tiles.count * tiles.size < 3 * sum(counts)


OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
STEPS, LR, DECAY = 5, 0.1, 0.05


def train_alone(shared: dict[str, Tensor], view: View, optimizer: str) -> dict[str, Tensor]:
    """The slow version: one client's full weights, trained by torch's own optimiser."""
    weights = {k: w.clone().requires_grad_() for k, w in shared.items()}
    stepper = OPTIMIZERS[optimizer](weights.values(), lr=LR, weight_decay=DECAY)
    batch = batch_of(view, "gcn", LAYERS)
    for step in range(STEPS):
        stepper.zero_grad()
        logits = BACKBONES["gcn"].forward(weights, batch, Dropout(0.5, step))
        cross_entropy(logits, batch.y, reduction="sum").backward()
        stepper.step()
    return {k: w.detach() for k, w in weights.items()}


def train_stacked(start: Weights, batch: Batch, optimizer: str) -> Weights:
    """The same steps for all clients at once, on stored rows."""

    def filled(values: dict[str, Tensor]) -> Weights:
        return {
            k: w.with_values(values[k]) if isinstance(w, SparseWeights) else values[k]
            for k, w in start.items()
        }

    values = {k: w.values if isinstance(w, SparseWeights) else w for k, w in start.items()}
    state = adam_init(values)
    for step in range(STEPS):
        leaves = {k: v.detach().requires_grad_() for k, v in values.items()}
        logits = BACKBONES["gcn"].forward(filled(leaves), batch, Dropout(0.5, step))
        loss = cross_entropy(logits, batch.y, reduction="sum")
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        if optimizer == "sgd":
            values = sgd(values, gradients, LR, DECAY)
        else:
            values, state = adam(values, gradients, state, LR, DECAY)
    return filled(values)


@pytest.mark.parametrize("every_pair", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("sizes", [[5, 0, 1, 12, 2], [9]])
def test_weights_stored_only_where_features_occur_train_as_full_weights_of_every_client(
    sizes: list[int], optimizer: str, every_pair: bool
) -> None:
    """Rows of features that a client never sees move by weight decay alone, alike at all clients: one ghost
    copy of them is exact, for SGD and for Adam with a fresh state."""
    clients = len(sizes)
    view = random_view(1, sizes, features=30, sparse=True)
    shared = draw_weights(1, "gcn", [30, 4, 3])
    pairs = pair_columns(view.x, view.client, clients, every_pair=True) if every_pair else None
    batch = batch_of(view, "gcn", LAYERS, per_client=True, pairs=pairs)
    if clients > 1:
        assert len(batch.pairs[0]) == (clients * 30 if every_pair else len(occurring(view)))
        assert len(occurring(view)) < 0.6 * clients * 30, "many rows occur nowhere"
    start: Weights = {k: w.expand(clients, *w.shape) for k, w in shared.items()}
    start["layers.0.weight"] = SparseWeights.expand(shared["layers.0.weight"], *batch.pairs, clients)
    trained = train_stacked(start, batch, optimizer)
    stored = trained.pop("layers.0.weight")
    full = [train_alone(shared, one_client(view, k), optimizer) for k in range(clients)]
    for k in range(clients):
        torch.testing.assert_close(stored.part(k), full[k]["layers.0.weight"], **CLOSE)
        for name, w in trained.items():
            torch.testing.assert_close(w[k], full[k][name], **CLOSE)
    share = torch.rand(clients, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    average = sum(share[k] * full[k]["layers.0.weight"] for k in range(clients))
    torch.testing.assert_close(stored.weighted_sum(share), average, **CLOSE)


@pytest.mark.parametrize("stored", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("per_client", [False, True])
def test_an_entry_is_dropped_alike_whichever_pairs_are_stored(per_client: bool, stored: float) -> None:
    """Entries of pairs that are not stored move behind the stored ones of their row."""
    view = random_view(1, [5, 0, 1, 12, 2], features=30, sparse=True)
    view = replace(view, x=view.x.with_values(torch.arange(1.0, 1 + len(view.x.values))))
    pairs = occurring(view)
    some = pairs[torch.rand(len(pairs), generator=torch.Generator().manual_seed(2)) < stored]
    batch = batch_of(view, "gcn", LAYERS, per_client=per_client, pairs=tuple(some.T))
    whole = batch_of(view, "gcn", LAYERS)
    assert (batch.pairs is None) == (not per_client)
    words = [dict(zip(b.x.values.tolist(), b.words.tolist(), strict=True)) for b in (batch, whole)]
    assert words[0] == words[1]


def occurring(view: View) -> Tensor:
    """The distinct (client, feature) pairs of the stored entries, [P, 2]."""
    return torch.stack([view.client[view.x.row], view.x.indices.long()], 1).unique(dim=0)

"""The trees of Lumos: their shape, and that both ways to compute their leaves are the network of the paper,
tree by tree."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv

from graphfed.methods.lumos.tree import FUSED_LAYERS, Forest, Leaves, fused, general, make_forest
from graphfed.nn.backbones import BACKBONES
from graphfed.nn.layers import Dropout
from graphfed.random import fold

F, H, HEADS = 6, 4, 3


def heads_of(layers: int, output_heads: int) -> list[int]:
    return [HEADS] * (layers - 1) + [output_heads]


def weights_of(backbone: str, layers: int, output_heads: int = 1) -> dict[str, Tensor]:
    drawn = BACKBONES[backbone].init(fold(3), [F, *[H] * layers], heads_of(layers, output_heads))
    generator = torch.Generator().manual_seed(5)
    return {
        name: (w + 0.3 * torch.randn(w.shape, generator=generator) if "bias" in name else w)
        .double()
        .requires_grad_()
        for name, w in drawn.items()
    }


def forest_of(kept: list[list[int]], lone: list[int], *, virtual: bool = True) -> Forest:
    """Client u has the ids kept[u] in its tree; all ids are indices."""
    client = torch.tensor([u for u, others in enumerate(kept) for _ in others], dtype=torch.int64)
    other = torch.tensor([v for others in kept for v in others], dtype=torch.int64)
    ids = torch.arange(len(kept))
    return make_forest(client, client, other, torch.tensor(lone, dtype=torch.int64), ids, virtual=virtual)


KEPT = [[1, 2, 3], [2], [], [4, 5], [], [0], []]
LONE = [6]


def features(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Own features of every client, and those of the neighbours in the trees as they have arrived."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(len(KEPT), F, generator=generator)
    return own, torch.randn(sum(map(len, KEPT)), F, generator=generator)


def leaves(
    way: str,
    backbone: str,
    layers: int,
    weights: dict[str, Tensor],
    dropout: Dropout | None = None,
    **inputs: Any,
) -> Leaves:
    forest = forest_of(KEPT, LONE, virtual=inputs.get("virtual", True))
    x, noised = inputs.get("features") or features()
    own, received = (z @ weights["layers.0.weight"] for z in (x, noised))
    if way == "fused":
        return fused(forest, weights, own, received, backbone, layers, dropout)
    blocks = forest.blocks(backbone, heads_of(layers, inputs.get("output_heads", 1)))
    return general(forest, blocks, weights, own, received, backbone, dropout)


def convolution(backbone: str, layer: int, layers: int, weights: dict[str, Tensor]) -> Any:
    """PyG's layer with these weights."""
    w = {name: weights[f"layers.{layer}.{name}"] for name in ("weight", "bias")}
    if backbone == "gcn":
        conv: Any = GCNConv(*w["weight"].shape)
    else:
        heads, width = weights[f"layers.{layer}.att_src"].shape
        conv = GATConv(w["weight"].shape[0], width, heads=heads, concat=layer < layers - 1)
        conv.att_src.data[0] = weights[f"layers.{layer}.att_src"].detach()
        conv.att_dst.data[0] = weights[f"layers.{layer}.att_dst"].detach()
    conv.lin.weight.data = w["weight"].detach().t()
    conv.bias.data = w["bias"].detach()
    return conv


def one_tree(
    backbone: str, layers: int, weights: dict[str, Tensor], x: Tensor, received: list[Tensor], virtual: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Section V-A and VI-B for one client, node by node: its own leaves, and those of its neighbours."""
    zeros = torch.zeros(F)
    if virtual:
        rows = [zeros]  # the root
        ends = []
        for noised in received:
            own, other, parent = len(rows), len(rows) + 1, len(rows) + 2
            rows += [x, noised, zeros]
            ends += [(own, parent), (other, parent), (parent, 0)]
        own_leaves, neighbour_leaves = range(1, len(rows), 3), range(2, len(rows), 3)
    else:
        rows, ends = [x, *received], [(k + 1, 0) for k in range(len(received))]
        own_leaves, neighbour_leaves = range(1), range(1, len(rows))
    h = torch.stack(rows)
    edges = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).t()
    for layer in range(layers):
        h = convolution(backbone, layer, layers, weights)(h, torch.cat([edges, edges.flip(0)], 1)).relu()
    return [h[i] for i in own_leaves], [h[i] for i in neighbour_leaves]


@pytest.mark.parametrize("virtual", [True, False], ids=["trees", "neighbourhoods"])
@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize(("backbone", "output_heads"), [("gcn", 1), ("gat", 1), ("gat", 2)])
def test_the_general_form_is_the_network_on_each_tree_by_itself(
    backbone: str, output_heads: int, layers: int, virtual: bool
) -> None:
    weights, (x, noised) = weights_of(backbone, layers, output_heads), features()
    found = leaves("general", backbone, layers, weights, virtual=virtual, output_heads=output_heads)
    own: list[Tensor] = []
    neighbour_leaves: list[Tensor] = []
    arriving = iter(noised)
    for u, others in enumerate(KEPT):
        own_leaves, stand_in = one_tree(
            backbone, layers, weights, x[u], [next(arriving) for _ in others], virtual
        )
        own += own_leaves
        neighbour_leaves += stand_in
    count = len(own)
    assert torch.allclose(found.own[:count], torch.stack(own), rtol=0, atol=1e-12)
    assert torch.allclose(found.noised, torch.stack(neighbour_leaves), rtol=0, atol=1e-12)
    assert len(found.own) == count + (len(LONE) if virtual else 0)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("layers", range(1, FUSED_LAYERS + 1))
@pytest.mark.parametrize(("backbone", "output_heads"), [("gcn", 1), ("gat", 1), ("gat", 2)])
def test_both_forms_agree_in_leaves_and_gradients(
    backbone: str, output_heads: int, layers: int, dropout: float
) -> None:
    weights = weights_of(backbone, layers, output_heads)
    masks = Dropout(dropout, 9) if dropout else None
    found = []
    for way in ("general", "fused"):
        there = leaves(way, backbone, layers, weights, masks, output_heads=output_heads)
        loss = (there.own**2).sum() + (there.noised**3).sum()
        slopes = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        zeros = [
            torch.zeros_like(w) if g is None else g for g, w in zip(slopes, weights.values(), strict=True)
        ]
        found.append([there.own, there.noised, *zeros])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backbone", ["gcn", "gat"])
def test_a_lone_client_has_one_leaf_of_its_own(backbone: str) -> None:
    weights, (x, _) = weights_of(backbone, 2), features()
    found = leaves("fused", backbone, 2, weights)
    h = torch.stack([x[LONE[0]], torch.zeros(F)])
    edges = torch.tensor([[0, 1], [1, 0]])
    for layer in range(2):
        h = convolution(backbone, layer, 2, weights)(h, edges).relu()
    assert torch.allclose(found.own[-1], h[0], rtol=0, atol=1e-12)


def test_in_float32_the_general_form_is_float32_and_takes_lone_devices() -> None:
    """Also where the last clients have no neighbour, so that no edge has their number."""
    torch.set_default_dtype(torch.float32)
    for virtual in (True, False):
        blocks = forest_of([[1], [], []], [1, 2], virtual=virtual).blocks("gcn", [1, 1])
        for block in blocks:
            assert block.adjacency.values.dtype == torch.float32
            assert bool(block.adjacency.values.isfinite().all())


@given(st.lists(st.sets(st.integers(0, 6), max_size=5), min_size=1, max_size=7))
def test_a_tree_has_3w_plus_1_nodes_and_6w_directed_edges(kept: list[set[int]]) -> None:
    others = [sorted(v + 1 if v >= u else v for v in some) for u, some in enumerate(kept)]
    forest = forest_of(others, [])
    pairs, clients = sum(map(len, others)), len(others)
    assert forest.parts == (pairs, pairs, pairs, clients, 0)
    assert forest.edges.shape[1] == 6 * pairs
    degree = torch.bincount(forest.edges[1], minlength=sum(forest.parts)).split(list(forest.parts))
    assert (degree[0] == 1).all()
    assert (degree[1] == 1).all()
    assert (degree[2] == 3).all()
    assert degree[3].tolist() == forest.workload.tolist() == [len(some) for some in others]


@pytest.mark.parametrize("backbone", ["gcn", "gat"])
def test_up_to_three_layers_a_neighbours_features_reach_its_own_pair_only(backbone: str) -> None:
    x, noised = features()
    moved = noised.clone()
    moved[0] += 1.0  # of client 0's first neighbour
    for layers in (2, 3, 4):
        weights = weights_of(backbone, layers)
        before = leaves("general", backbone, layers, weights)
        after = leaves("general", backbone, layers, weights, features=(x, moved))
        changed = (before.own != after.own).any(1)
        assert changed[0]
        assert bool(changed[1:3].any()) == (layers == 4), "the other pairs of client 0"
        assert not changed[3:].any(), "other clients"


def test_without_dropout_no_root_matters_to_two_layers() -> None:
    """The consequence that the paper does not state: trees of w pairs are w trees of one pair."""
    weights, (x, noised) = weights_of("gcn", 2), features()
    found = leaves("general", "gcn", 2, weights)
    apart = forest_of([[v] for others in KEPT for v in others], [])
    own = torch.stack([x[u] for u, others in enumerate(KEPT) for _ in others]) @ weights["layers.0.weight"]
    alone = general(
        apart,
        apart.blocks("gcn", heads_of(2, 1)),
        weights,
        own,
        noised @ weights["layers.0.weight"],
        "gcn",
        None,
    )
    assert torch.allclose(found.own[: len(noised)], alone.own, rtol=0, atol=1e-12)
    assert torch.allclose(found.noised, alone.noised, rtol=0, atol=1e-12)

"""Layers with shared weights compute what PyG's do, and pruned to a receptive field they compute the same
rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import as_dense, batch_of, draw_weights, random_view
from torch import Tensor

from graphfed.nn.backbones import BACKBONES
from graphfed.nn.batch import View
from graphfed.nn.sparse import SparseMatrix

# PyG's own import uses what this torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")

HEADS, HIDDEN, CLASSES = 4, 5, 3
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def pyg_network(backbone: str, weights: dict[str, Tensor], layers: int):
    """PyG's layers (MLP: torch's) with our weights, and the names under which their gradients are found."""
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    convs, names = [], {}
    for layer in range(layers):
        w = {k.rsplit(".", 1)[1]: v for k, v in weights.items() if k.startswith(f"layers.{layer}.")}
        last = layer == layers - 1
        if backbone == "gcn":
            fan_in, fan_out = w["weight"].shape
            conv = GCNConv(fan_in, fan_out)
            own = {"weight": conv.lin.weight, "bias": conv.bias}
        elif backbone == "sage":
            fan_in, fan_out = w["root_weight"].shape
            conv = SAGEConv(fan_in, fan_out)
            own = {
                "neighbour_weight": conv.lin_l.weight,
                "root_weight": conv.lin_r.weight,
                "bias": conv.lin_l.bias,
            }
        elif backbone == "mlp":
            conv = torch.nn.Linear(*w["weight"].shape)
            own = {"weight": conv.weight, "bias": conv.bias}
        elif backbone == "maxpool":
            both, fan_out = w["weight"].shape
            conv = SAGEConv(both // 2, fan_out, aggr="max")
            own = {"bias": conv.lin_l.bias}
        else:
            heads, width = w["att_src"].shape
            conv = GATConv(w["weight"].shape[0], width, heads, concat=not last)
            own = {n: getattr(conv, n) for n in ("att_src", "att_dst", "bias")} | {"weight": conv.lin.weight}
        for name, parameter in own.items():
            found = w[name].t() if name.endswith("weight") else w[name]
            parameter.data = found.reshape(parameter.shape).clone()
            names[f"layers.{layer}.{name}"] = (parameter,)
        if backbone == "maxpool":  # one matrix for h || max h, two in PyG
            halves = (conv.lin_r.weight, conv.lin_l.weight)
            for half, block in zip(halves, w["weight"].t().chunk(2, 1), strict=True):
                half.data = block.clone()
            names[f"layers.{layer}.weight"] = halves
        convs.append(conv)

    def forward(x: Tensor, edges: Tensor) -> Tensor:
        for layer, conv in enumerate(convs):
            x = conv(x) if backbone == "mlp" else conv(x, edges)
            if layer < layers - 1:
                x = torch.nn.functional.elu(x) if backbone == "gat" else x.relu()
        return x

    return forward, names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("backbone", "output_heads"),
    [*((name, 1) for name in BACKBONES if not BACKBONES[name].directed), ("gat", 2), ("gat", 8)],
)
def test_values_and_all_gradients_agree_with_pyg(
    backbone: str, output_heads: int, layers: int, sparse: bool, dtype: torch.dtype
) -> None:
    """Output heads are averaged, as PyG's GATConv does with concat=False."""
    for seed in range(3):
        view = random_view(seed, [30], sparse=sparse, dtype=dtype)
        assert (view.degree == 0).any(), "the graph has isolated nodes"
        widths = [6, *[HIDDEN] * (layers - 1), CLASSES]
        weights = {
            k: w.to(dtype).requires_grad_()
            for k, w in draw_weights(seed, backbone, widths, HEADS, output_heads).items()
        }
        x = as_dense(view.x).clone()
        if backbone == "maxpool" and not sparse:  # PyG shares the gradient of equal maxima out
            x += 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
        x.requires_grad_()
        if not sparse:
            view = replace(view, x=x)
        batch = batch_of(view, backbone, layers, HEADS, output_heads=output_heads)
        found = BACKBONES[backbone].forward(weights, batch, None)

        forward, parameters = pyg_network(backbone, {k: w.detach() for k, w in weights.items()}, layers)
        pyg_x = as_dense(view.x).detach().clone().requires_grad_()
        expected = forward(pyg_x, view.edges[0])

        assert found.dtype == dtype
        close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
        torch.testing.assert_close(found, expected, **close)
        direction = torch.from_numpy(np.random.default_rng(seed).standard_normal(tuple(found.shape))).to(
            dtype
        )
        (found * direction).sum().backward()
        (expected * direction).sum().backward()
        assert set(parameters) == set(weights)
        for name, of_pyg in parameters.items():
            gradient = weights[name].grad
            parts = [p.grad.t() if name.endswith("weight") else p.grad for p in of_pyg]
            gradient_of_pyg = torch.cat(parts)
            # Gradients are sums over all rows: their tolerance is relative to their largest entry.
            scale = max(1.0, float(gradient_of_pyg.abs().max()))
            torch.testing.assert_close(
                gradient / scale, gradient_of_pyg.reshape(gradient.shape) / scale, **close
            )
        if not sparse:
            torch.testing.assert_close(x.grad, pyg_x.grad, **close)


def with_weights(view: View, seed: int) -> View:
    """The same view with weights between 0.1 and 10, equal in both directions."""
    half = view.edges[0].shape[1] // 2
    draw = 10 ** torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, half))
    weight = torch.cat([draw, draw])
    degree = torch.zeros(len(view.ids), dtype=weight.dtype).index_add(0, view.edges[0][1], weight)
    return replace(view, edge_weight=(weight,), degree=degree)


@pytest.mark.parametrize("sparse", [False, True])
def test_on_weighted_edges_gcn_is_pygs(sparse: bool) -> None:
    from torch_geometric.nn import GCNConv

    for seed in range(3):
        view = with_weights(random_view(seed, [30], sparse=sparse), seed)
        weights = draw_weights(seed, "gcn", [6, CLASSES])
        conv = GCNConv(6, CLASSES)
        conv.lin.weight.data, conv.bias.data = weights["layers.0.weight"].t(), weights["layers.0.bias"]
        expected = conv(as_dense(view.x), view.edges[0], view.edge_weight[0])
        found = BACKBONES["gcn"].forward(weights, batch_of(view, "gcn", 1), None)
        torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)


def test_on_weighted_edges_sage_is_the_weighted_mean() -> None:
    view = with_weights(random_view(0, [30]), 0)
    weights = draw_weights(0, "sage", [6, CLASSES])
    w = torch.zeros(30, 30, dtype=torch.float64)
    w[view.edges[0][1], view.edges[0][0]] = view.edge_weight[0]
    mean = (w @ view.x) / w.sum(1, keepdim=True).clamp(min=1e-300)
    expected = mean @ weights["layers.0.neighbour_weight"] + view.x @ weights["layers.0.root_weight"]
    found = BACKBONES["sage"].forward(weights, batch_of(view, "sage", 1), None)
    torch.testing.assert_close(found, expected + weights["layers.0.bias"], rtol=1e-12, atol=1e-12)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 40),
    share=st.floats(0, 1),
    backbone=st.sampled_from(list(BACKBONES)),
    layers=st.integers(1, 3),
    sparse=st.booleans(),
    weighted=st.booleans(),
)
def test_pruned_to_a_receptive_field_the_targets_keep_values_and_weight_gradients(
    *, seed: int, n: int, share: float, backbone: str, layers: int, sparse: bool, weighted: bool
) -> None:
    view = random_view(seed, [n], sparse=sparse)
    view = with_weights(view, seed) if weighted else view
    rng = np.random.default_rng(seed)
    targets = torch.from_numpy((rng.random(n) < share).nonzero()[0])
    widths = [6, *[HIDDEN] * (layers - 1), CLASSES]
    direction = torch.from_numpy(rng.standard_normal((len(targets), CLASSES)))
    results = []
    for pruned in (False, True):
        weights = {k: w.requires_grad_() for k, w in draw_weights(seed, backbone, widths, HEADS).items()}
        batch = batch_of(view, backbone, layers, HEADS, targets if pruned else None)
        logits = BACKBONES[backbone].forward(weights, batch, None)
        logits = logits if pruned else logits[targets]
        (logits * direction).sum().backward()
        results.append((logits.detach(), {k: w.grad for k, w in weights.items()}))
    (whole, gradients), (pruned_logits, pruned_gradients) = results
    torch.testing.assert_close(pruned_logits, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pruned_gradients, gradients, rtol=1e-10, atol=1e-10)


def test_one_target_without_neighbours_needs_one_row_of_every_layer() -> None:
    """The point of the receptive field: rows that have no influence are not computed."""
    view = random_view(0, [200])
    alone = (view.degree == 0).nonzero()[:1, 0]
    batch = batch_of(view, "gcn", 2, targets=alone)
    assert [len(ids) for ids in batch.ids] == [1, 1, 1]
    assert batch.ids[0] == view.ids[alone]


@pytest.mark.parametrize("backbone", list(BACKBONES))
def test_results_follow_the_dtype_of_the_input_whatever_the_default(backbone: str) -> None:
    """Results have the dtype of x and of the weights, and lose no digits to the default dtype."""
    view = random_view(1, [20], dtype=torch.float64)
    weights = draw_weights(1, backbone, [6, 3], HEADS)
    logits = BACKBONES[backbone].forward(weights, batch_of(view, backbone, 1, HEADS), None)
    torch.set_default_dtype(torch.float64)
    same = BACKBONES[backbone].forward(weights, batch_of(view, backbone, 1, HEADS), None)
    assert logits.dtype == torch.float64
    assert torch.equal(logits, same)


def test_scores_far_outside_exp_give_finite_attention() -> None:
    view = random_view(2, [25])
    weights = {k: w.requires_grad_() for k, w in draw_weights(2, "gat", [6, 3], 1).items()}
    with torch.no_grad():
        weights["layers.0.att_src"] *= 1e5
    logits = BACKBONES["gat"].forward(weights, batch_of(view, "gat", 1), None)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(w.grad.isfinite().all() for w in weights.values())


def test_an_aggregated_input_makes_the_first_gcn_layer_a_linear_map() -> None:
    view = replace(random_view(3, [20]), aggregated=True)
    batch = batch_of(view, "gcn", 2)
    assert batch.blocks[0] is None
    weights = draw_weights(3, "gcn", [6, 5, 3])
    w0, b0, w1, b1 = (weights[f"layers.{i}.{n}"] for i in (0, 1) for n in ("weight", "bias"))
    adjacency = batch.blocks[1].adjacency.to_dense()
    expected = adjacency @ ((view.x @ w0 + b0).relu() @ w1) + b1
    torch.testing.assert_close(BACKBONES["gcn"].forward(weights, batch, None), expected)


def test_the_gcn_adjacency_is_the_normalised_matrix_of_the_paper() -> None:
    """D^-1/2 (A + I) D^-1/2 with D the row sums of A + I (Kipf and Welling 2017, Eq. 2)."""
    view = random_view(4, [12])
    adjacency = torch.eye(12, dtype=torch.float64)
    adjacency[view.edges[0][1], view.edges[0][0]] = 1
    scale = adjacency.sum(1).rsqrt()
    block = batch_of(view, "gcn", 1).blocks[0]
    assert isinstance(block.adjacency, SparseMatrix)
    torch.testing.assert_close(block.adjacency.to_dense(), scale[:, None] * adjacency * scale)

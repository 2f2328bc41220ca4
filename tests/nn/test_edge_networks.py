"""GINE and PNA compute what PyG's layers do on directed multigraphs with attributes, in values and gradients,
and clients stacked what each would alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from random_graphs import as_client_weights, as_dense, batch_of, one_client, random_view
from torch import Tensor
from torch.nn.functional import layer_norm

from graphfed.nn.backbones import BACKBONES
from graphfed.nn.batch import View
from graphfed.nn.directed import EdgeRows
from graphfed.nn.edge_networks import MEAN_LOG_DEGREE
from graphfed.nn.layers import Dropout

# PyG's own import uses what this torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")

NETWORKS = [name for name in BACKBONES if BACKBONES[name].directed]
HIDDEN, CLASSES = 4, 3
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def multigraph(seed: int, sizes: list[int], attributes: int, *, directed: bool = True, **kwargs) -> View:
    """A random view whose pairs have one to three edges with attributes, and a few self loops."""
    view = random_view(seed, sizes, **kwargs)
    rng = np.random.default_rng(seed)
    u, v = view.edges[0].numpy()
    chosen = rng.integers(0, len(u), 2 * len(u)) if directed else np.flatnonzero(u < v).repeat(2)
    loops = rng.integers(0, len(view.ids), 3)
    source, target = np.append(u[chosen], loops), np.append(v[chosen], loops)
    values = rng.standard_normal((len(source), attributes))
    if not directed:
        source, target = np.append(source, target), np.append(target, source)
        values = np.concatenate([values, values])
    order = np.lexsort((source, target))
    columns = (torch.from_numpy(a[order]) for a in (source, target, values))
    return replace(view, directed=EdgeRows(*columns, symmetric=not directed))


def drawn(seed: int, network: str, view: View, layers: int) -> dict[str, Tensor]:
    """Float64 weights of the usual size, none of them zero."""
    rng, kernel, edges = np.random.default_rng(seed), BACKBONES[network], view.directed
    assert edges is not None
    assert kernel.edge_init is not None
    widths = [view.x.shape[1], *[HIDDEN] * (layers - 1), CLASSES]
    weights = kernel.init(seed, widths, [1] * layers)
    weights |= kernel.edge_init(seed, widths, edges.attributes.shape[1], not edges.symmetric)
    return {k: torch.from_numpy(0.5 * rng.standard_normal(tuple(w.shape))) for k, w in weights.items()}


def set_linear(linear: torch.nn.Linear, weight: Tensor, bias: Tensor | None = None) -> None:
    linear.weight.data = weight.t().clone()
    linear.bias.data = torch.zeros(weight.shape[1], dtype=weight.dtype) if bias is None else bias.clone()


def pyg_layer(
    network: str, w: dict[str, Tensor], bias: Tensor, attributes: int
) -> tuple[torch.nn.Module, dict[str, list]]:
    """PyG's layer with our weights, and where their gradients are found. It gets a column of zeros as the
    attribute if there is none."""
    from torch.nn import LayerNorm, Linear, ReLU, Sequential
    from torch_geometric.nn import GINEConv, PNAConv

    width = len(w["edge_bias"])
    edge_weight = w.get("edge_weight", torch.zeros(1, width, dtype=torch.float64))
    if network == "gine":
        first, second = Linear(width, width), Linear(*w["second_weight"].shape)
        norm = LayerNorm(width, elementwise_affine=False)
        norm.in_features = width  # PyG reads it from the first module
        conv = GINEConv(Sequential(norm, first, ReLU(), second), edge_dim=max(attributes, 1)).double()
        set_linear(first, w["first_weight"], w["first_bias"])
        set_linear(second, w["second_weight"], bias)
        set_linear(conv.lin, edge_weight, w["edge_bias"])
        parameters = {
            "first_weight": first.weight, "first_bias": first.bias, "second_weight": second.weight,
            "bias": second.bias, "edge_weight": conv.lin.weight, "edge_bias": conv.lin.bias,
        }  # fmt: skip
    else:
        out = w["post_weight"].shape[1]
        conv = PNAConv(
            width, out, ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"],
            torch.tensor([0, 1, 1]), edge_dim=max(attributes, 1),
        ).double()  # fmt: skip
        conv.aggr_module.avg_deg_log.fill_(MEAN_LOG_DEGREE)
        pre, post = conv.pre_nns[0][0], conv.post_nns[0][0]
        set_linear(conv.edge_encoder, edge_weight, w["edge_bias"])
        eye = torch.eye(width, dtype=torch.float64)
        set_linear(pre, torch.cat([w["receiver_weight"], w["sender_weight"], eye]))
        set_linear(post, w["post_weight"], bias)
        set_linear(conv.lin, torch.eye(out, dtype=torch.float64))
        parameters = {
            "ends": pre.weight, "post_weight": post.weight, "bias": post.bias,
            "edge_weight": conv.edge_encoder.weight, "edge_bias": conv.edge_encoder.bias,
        }  # fmt: skip
    return conv, parameters


class PygNetwork(torch.nn.Module):
    """The input map, and for each layer PyG's convolutions along and against the edges, averaged."""

    def __init__(self, network: str, weights: dict[str, Tensor], view: View, layers: int) -> None:
        super().__init__()
        edges = view.directed
        assert edges is not None
        self.edges = edges
        self.embed = torch.nn.Linear(*weights["layers.0.input_weight"].shape).double()
        set_linear(self.embed, weights["layers.0.input_weight"], weights["layers.0.input_bias"])
        self.layers, self.named = (
            [],
            {"layers.0.input_weight": self.embed.weight, "layers.0.input_bias": self.embed.bias},
        )
        for layer in range(layers):
            convs = []
            for prefix in ("",) if edges.symmetric else ("", "reverse."):
                start = f"layers.{layer}.{prefix}"
                own = {k[len(start) :]: v for k, v in weights.items() if k.startswith(start)}
                bias = weights[f"layers.{layer}.bias"]
                conv, parameters = pyg_layer(network, own, bias, edges.attributes.shape[1])
                convs.append(conv)
                self.named |= {start + name: parameter for name, parameter in parameters.items()}
            self.layers.append(convs)

    def forward(self, x: Tensor) -> Tensor:
        edges = self.edges
        attributes = (
            edges.attributes if edges.attributes.shape[1] else torch.zeros(len(edges.source), 1).double()
        )
        along = torch.stack([edges.source, edges.target])
        h = self.embed(x)
        for layer, convs in enumerate(self.layers):
            h = layer_norm(h, h.shape[-1:]) if layer else h
            results = [
                conv(h, ends, attributes) for conv, ends in zip(convs, (along, along.flip(0)), strict=False)
            ]
            h = torch.stack(results).mean(0)
            h = h.relu() if layer < len(self.layers) - 1 else h
        return h

    def gradient(self, name: str) -> Tensor:
        start, _, last = name.rpartition(".")
        if last in ("receiver_weight", "sender_weight"):
            blocks = self.named[f"{start}.ends"].grad.t().chunk(3)
            return blocks[0 if last == "receiver_weight" else 1]
        if last == "bias" and not self.edges.symmetric:  # both directions have a copy of it
            return self.named[name].grad + self.named[f"{start}.reverse.bias"].grad
        gradient = self.named[name].grad
        return gradient.t() if last.endswith("weight") else gradient


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("attributes", "directed"), [(3, True), (0, True), (2, False), (0, False)])
@pytest.mark.parametrize("network", NETWORKS)
def test_values_and_all_gradients_agree_with_pyg(
    network: str, attributes: int, directed: bool, layers: int, sparse: bool
) -> None:
    view = multigraph(layers, [25], attributes, directed=directed, sparse=sparse)
    assert (view.degree == 0).any(), "the graph has isolated nodes"
    weights = {k: w.requires_grad_() for k, w in drawn(1, network, view, layers).items()}
    x = as_dense(view.x).clone().requires_grad_()
    view = view if sparse else replace(view, x=x)
    found = BACKBONES[network].forward(weights, batch_of(view, network, layers), None)

    other = PygNetwork(network, {k: w.detach() for k, w in weights.items()}, view, layers)
    pyg_x = as_dense(view.x).detach().clone().requires_grad_()
    expected = other(pyg_x)
    torch.testing.assert_close(found, expected, **CLOSE)
    direction = torch.from_numpy(np.random.default_rng(0).standard_normal(tuple(found.shape)))
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    for name, weight in weights.items():
        torch.testing.assert_close(weight.grad, other.gradient(name), msg=name, **CLOSE)
    if not sparse:
        torch.testing.assert_close(x.grad, pyg_x.grad, **CLOSE)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_batch_of_some_targets_gives_their_rows_of_the_whole(network: str) -> None:
    view = multigraph(3, [30, 20], 2)
    weights, targets = drawn(2, network, view, 2), torch.tensor([1, 7, 8, 33, 49])
    whole = BACKBONES[network].forward(weights, batch_of(view, network, 2), Dropout(0.4, 1))
    some = BACKBONES[network].forward(weights, batch_of(view, network, 2, targets=targets), Dropout(0.4, 1))
    torch.testing.assert_close(some, whole[targets], **CLOSE)


@pytest.mark.parametrize("sizes", [[6, 0, 1, 14], [9]])
@pytest.mark.parametrize("attributes", [2, 0])
@pytest.mark.parametrize("network", NETWORKS)
def test_stacked_clients_equal_a_loop_over_clients(network: str, attributes: int, sizes: list[int]) -> None:
    view = multigraph(4, sizes, attributes, sparse=True)
    each = [drawn(k, network, view, 2) for k in range(len(sizes))]
    whole = {name: torch.stack([w[name] for w in each]).requires_grad_() for name in each[0]}
    batch = batch_of(view, network, 2, per_client=True)
    logits = BACKBONES[network].forward(as_client_weights(whole, network, batch), batch, Dropout(0.3, 1))
    rows = []
    for k, size in enumerate(sizes):
        inside = view.client[view.directed.target] == k
        first = sum(sizes[:k])
        edges = view.directed
        alone = replace(
            one_client(view, k),
            directed=EdgeRows(
                edges.source[inside] - first, edges.target[inside] - first, edges.attributes[inside], False
            ),
        )
        if size:
            own = {name: w[k].detach() for name, w in whole.items()}
            rows.append(BACKBONES[network].forward(own, batch_of(alone, network, 2), Dropout(0.3, 1)))
    torch.testing.assert_close(logits, torch.cat(rows), **CLOSE)
    logits.square().sum().backward()
    assert all(bool(w.grad.isfinite().all()) for w in whole.values() if w.grad is not None)


@pytest.mark.parametrize("network", NETWORKS)
def test_reversing_all_edges_and_exchanging_the_two_sets_of_weights_changes_nothing(network: str) -> None:
    view = multigraph(5, [20], 2)
    weights = drawn(6, network, view, 2)
    edges = view.directed
    order = torch.argsort(edges.source, stable=True)
    back = EdgeRows(edges.target[order], edges.source[order], edges.attributes[order], False)
    swapped = {name.replace("reverse.", "") if "reverse." in name else name: w for name, w in weights.items()}
    for name in list(swapped):
        layer, _, last = name.rpartition(".")
        if f"{layer}.reverse.{last}" in weights:
            swapped[f"{layer}.reverse.{last}"] = weights[name]
            swapped[name] = weights[f"{layer}.reverse.{last}"]
    one = BACKBONES[network].forward(weights, batch_of(view, network, 2), None)
    two = BACKBONES[network].forward(swapped, batch_of(replace(view, directed=back), network, 2), None)
    torch.testing.assert_close(one, two, **CLOSE)
    assert not torch.allclose(
        one, BACKBONES[network].forward(weights, batch_of(replace(view, directed=back), network, 2), None)
    )

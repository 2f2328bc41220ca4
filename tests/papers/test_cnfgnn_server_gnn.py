"""The server's networks: each against dense matrices, and all against what any of them owes."""

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import elu, leaky_relu

from graphfed.errors import InputError
from graphfed.methods.cnfgnn.config import ServerNetwork
from graphfed.methods.cnfgnn.server_gnn import HEADS, SERVER_NETWORKS
from graphfed.nn import precision
from graphfed.nn.edges import make_edges
from graphfed.nn.precision import has_fast_bfloat16, product_dtype

HIDDEN = 8


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def adjacency_of(seed: int, nodes: int) -> np.ndarray:
    """Rows send to columns; self loops, except at the last node, which has no edges."""
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((nodes, nodes)) < 0.3, rng.random((nodes, nodes)), 0.0)
    np.fill_diagonal(dense, 1)
    dense[-1] = dense[:, -1] = 0
    return dense.astype(np.float32)


def dense_gat(weights: dict[str, Tensor], v: Tensor, adjacency: Tensor) -> Tensor:
    for layer in range(2):
        own = {name: weights[f"layers.{layer}.{name}"] for name in ("receiver", "sender", "edge")}
        x = ((elu(v) if layer else v) @ weights[f"layers.{layer}.weight"]).unflatten(-1, (HEADS, -1))
        # scores [receiver, sender, window, head]
        scores = (x * own["receiver"]).sum(-1)[:, None] + (x * own["sender"]).sum(-1)[None]
        scores = leaky_relu(scores + adjacency.t()[:, :, None, None] * own["edge"], 0.2)
        scores = scores.masked_fill((adjacency.t() == 0)[:, :, None, None], -torch.inf)
        share = scores.softmax(1).nan_to_num(0)
        v = torch.einsum("rsbh,sbhf->rbhf", share, x).flatten(2) + weights[f"layers.{layer}.bias"]
    return v


def dense_diffusion(weights: dict[str, Tensor], v: Tensor, adjacency: Tensor) -> Tensor:
    p = (adjacency / adjacency.sum(1, keepdim=True)).nan_to_num(0)
    q = (adjacency.t() / adjacency.t().sum(1, keepdim=True)).nan_to_num(0)
    for layer in range(2):
        x = v.relu() if layer else v
        parts = [torch.einsum("ij,jbf->ibf", m, x) for m in (torch.eye(len(p)), p, p @ p, q, q @ q)]
        v = torch.cat(parts, -1) @ weights[f"layers.{layer}.weight"] + weights[f"layers.{layer}.bias"]
    return v


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize(("name", "dense"), [("gat", dense_gat), ("diffusion", dense_diffusion)])
def test_embeddings_and_gradients_are_those_of_dense_matrices(name: str, dense, scale: float) -> None:
    adjacency = adjacency_of(0, 9)
    v, upstream = scale * draw(0, 9, 3, HIDDEN), draw(1, 9, 3, HIDDEN)
    drawn = SERVER_NETWORKS[name].init(1, HIDDEN)
    drawn = {k: w + 0.1 * draw(i, *w.shape) for i, (k, w) in enumerate(drawn.items())}
    found = []
    for forward in (
        lambda w, x: SERVER_NETWORKS[name].forward(w, x, make_edges(sp.csr_matrix(adjacency)), None),
        lambda w, x: dense(w, x, torch.from_numpy(adjacency).double()),
    ):
        leaves = [w.clone().requires_grad_() for w in (*drawn.values(), v)]
        out = forward(dict(zip(drawn, leaves[:-1], strict=True)), leaves[-1])
        found.append((out, *torch.autograd.grad((out * upstream).sum(), leaves)))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SERVER_NETWORKS)
def test_renumbering_the_nodes_renumbers_the_embeddings(name: str) -> None:
    adjacency, v, order = adjacency_of(0, 9), draw(0, 9, 3, HIDDEN), np.random.default_rng(1).permutation(9)
    network = SERVER_NETWORKS[name]
    weights = network.init(0, HIDDEN)
    one = network.forward(weights, v, make_edges(sp.csr_matrix(adjacency)), None)
    renumbered = sp.csr_matrix(adjacency[order][:, order])
    two = network.forward(weights, v[torch.from_numpy(order)], make_edges(renumbered), None)
    torch.testing.assert_close(two, one[torch.from_numpy(order)], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SERVER_NETWORKS)
def test_a_graph_without_edges_gives_finite_embeddings_and_gradients(name: str) -> None:
    v = draw(0, 4, 3, HIDDEN).requires_grad_()
    weights = {k: w.requires_grad_() for k, w in SERVER_NETWORKS[name].init(0, HIDDEN).items()}
    out = SERVER_NETWORKS[name].forward(weights, v, make_edges(sp.csr_matrix((4, 4))), None)
    assert out.shape == v.shape
    gradients = torch.autograd.grad(out.sum(), [v, *weights.values()])
    assert all(part.isfinite().all() for part in (out, *gradients))


@pytest.mark.parametrize("name", SERVER_NETWORKS)
def test_an_edge_carries_a_reading_of_its_sender_to_its_receiver(name: str) -> None:
    edges = make_edges(sp.csr_matrix(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32)))
    v = draw(0, 3, 2, HIDDEN).requires_grad_()
    network = SERVER_NETWORKS[name]
    out = network.forward(network.init(0, HIDDEN), v, edges, None)
    (gradient,) = torch.autograd.grad(out[1].square().sum(), v)
    assert (gradient[0] != 0).any()


@pytest.mark.parametrize("name", SERVER_NETWORKS)
def test_no_other_embedding_depends_on_a_node_in_a_window_in_which_it_is_no_sender(name: str) -> None:
    edges, network = make_edges(sp.csr_matrix(adjacency_of(0, 9))), SERVER_NETWORKS[name]
    weights, v, everywhere = (
        network.init(0, HIDDEN),
        draw(0, 9, 3, HIDDEN),
        torch.ones(9, 3, dtype=torch.bool),
    )
    assert torch.equal(
        network.forward(weights, v, edges, None, everywhere), network.forward(weights, v, edges, None, None)
    )
    senders, changed = everywhere.clone(), v.clone().requires_grad_()
    senders[2, 1] = False
    before = network.forward(weights, v, edges, None, senders)
    with torch.no_grad():
        changed[2, 1] += 3
    after = network.forward(weights, changed, edges, None, senders)
    differs = (before != after).any(-1)
    assert differs[2, 1]
    assert differs.sum() == 1
    (gradient,) = torch.autograd.grad(after[torch.arange(9) != 2].square().sum(), changed)
    assert not gradient[2, 1].any()
    assert gradient[2, 0].any()


@pytest.mark.parametrize("name", [name for name in SERVER_NETWORKS if name != "diffusion"])
def test_embeddings_in_a_window_are_those_of_the_graph_among_its_senders(name: str) -> None:
    """Except for diffusion, whose walks pass through a node that is no sender."""
    edges, network = make_edges(sp.csr_matrix(adjacency_of(0, 9))), SERVER_NETWORKS[name]
    weights, v, senders = network.init(0, HIDDEN), draw(0, 9, 3, HIDDEN), torch.ones(9, 3, dtype=torch.bool)
    senders[2, 1] = False
    whole = network.forward(weights, v, edges, None, senders)
    keep = torch.arange(9) != 2
    induced = make_edges(sp.csr_matrix(np.delete(np.delete(adjacency_of(0, 9), 2, 0), 2, 1)))
    among = network.forward(weights, v[keep], induced, None, None)
    torch.testing.assert_close(whole[keep, 1], among[:, 1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SERVER_NETWORKS)
def test_weights_are_a_function_of_the_key(name: str) -> None:
    init = SERVER_NETWORKS[name].init
    one, again, other = init(3, HIDDEN), init(3, HIDDEN), init(4, HIDDEN)
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("name", SERVER_NETWORKS)
def test_products_in_a_shorter_format_change_embeddings_and_gradients_by_its_rounding_only(name: str) -> None:
    """Single precision within double, on any processor."""
    edges = make_edges(sp.csr_matrix(adjacency_of(0, 9)))
    v, upstream, network = draw(0, 9, 3, HIDDEN), draw(1, 9, 3, HIDDEN), SERVER_NETWORKS[name]
    weights = network.init(0, HIDDEN)
    found = []
    for products in (None, torch.float32):
        leaves = [w.clone().requires_grad_() for w in (*weights.values(), v)]
        out = network.forward(dict(zip(weights, leaves[:-1], strict=True)), leaves[-1], edges, products)
        found.append((out, *torch.autograd.grad((out * upstream).sum(), leaves)))
    assert not torch.equal(found[0][0], found[1][0])
    for exact, short in zip(*found, strict=True):
        assert short.dtype == torch.float64
        # Fewer than a hundred roundings of relative size 2^-24.
        assert (short - exact).norm() <= 100 * 2**-24 * exact.norm()


@pytest.mark.skipif(not has_fast_bfloat16("cpu"), reason="the processor has no fast bfloat16")
@pytest.mark.parametrize("name", SERVER_NETWORKS)
def test_products_in_bfloat16_stray_by_their_eight_bits(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    adjacency, v = adjacency_of(0, 30), draw(0, 30, 3, 16).float()
    network = SERVER_NETWORKS[name]
    weights = network.init(0, 16)
    edges = make_edges(sp.csr_matrix(adjacency))
    exact, short = (network.forward(weights, v, edges, products) for products in (None, torch.bfloat16))
    error = ((short - exact).norm() / exact.norm()).item()
    # Some six roundings of relative size 2^-9 one after another, and not none.
    assert 1e-5 < error < 6 * 2**-8


def test_the_default_of_cnfgnn_does_not_see_how_large_the_network_is() -> None:
    """Two copies of a graph, and every edge twice: the embeddings are those of one; sums give others."""
    adjacency, v = adjacency_of(0, 7), draw(0, 7, 3, HIDDEN)
    one = make_edges(sp.csr_matrix(adjacency))
    two = make_edges(sp.csr_matrix(sp.block_diag([sp.coo_array(adjacency)] * 2)))
    for name, same in ((ServerNetwork().network, True), ("graph_network", False)):
        network = SERVER_NETWORKS[name]
        weights = network.init(0, HIDDEN)
        alone, copied = (
            network.forward(weights, v, one, None),
            network.forward(weights, v.repeat(2, 1, 1), two, None),
        )
        assert torch.allclose(copied, alone.repeat(2, 1, 1), rtol=0, atol=1e-10) == same


def test_a_node_with_more_neighbours_of_one_kind_has_the_same_mean() -> None:
    """A receiver of one, or of three senders alike."""
    v = draw(1, 1, 2, HIDDEN).repeat(4, 1, 1)
    few = sp.csr_matrix(np.array([[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=np.float32))
    many = sp.csr_matrix(np.array([[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=np.float32))
    for name, same in (("mean_network", True), ("graph_network", False)):
        network = SERVER_NETWORKS[name]
        weights = network.init(0, HIDDEN)
        found = [network.forward(weights, v, make_edges(edges), None)[3] for edges in (few, many)]
        assert torch.allclose(*found, rtol=0, atol=1e-10) == same


# ---- the dtype of products


def test_products_are_float32_bfloat16_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_fast_bfloat16", lambda device: True)
    assert product_dtype("float32", "cpu") is None
    assert product_dtype("bfloat16", "cpu") == torch.bfloat16
    with pytest.raises(InputError, match="got 'bfloat61'; did you mean 'bfloat16'"):
        product_dtype("bfloat61", "cpu")
    monkeypatch.setattr(precision, "has_fast_bfloat16", lambda device: False)
    with pytest.raises(InputError, match=r"cpu has no fast products in bfloat16 here .* use float32"):
        product_dtype("bfloat16", "cpu")
    assert product_dtype("float32", "cpu") is None


@pytest.mark.parametrize(("flag", "fast"), [("avx512_bf16", True), ("amx_bf16", True), ("avx512_f", False)])
def test_a_processor_is_fast_in_bfloat16_by_its_own_instructions(
    flag: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    capabilities = {"avx512_bf16": False, "amx_bf16": False, flag: True, "cpu_name": "bf16"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert has_fast_bfloat16("cpu") == fast
    assert not has_fast_bfloat16("meta")

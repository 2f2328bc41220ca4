"""The server's graph network against a plain reading of its equations, one edge and one window at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from graphfed.methods.cnfgnn import graph_network as module
from graphfed.methods.cnfgnn.graph_network import graph_network, init
from graphfed.nn.edges import Edges, induce_subgraph, make_edges


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def random_adjacency(seed: int, nodes: int, *, loops: bool = True) -> sp.csr_matrix:
    """Directed, weights of several sizes; the last node has no neighbours."""
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((nodes, nodes)) < 0.4, rng.random((nodes, nodes)), 0.0)
    dense[-1] = dense[:, -1] = 0
    np.fill_diagonal(dense, float(loops))
    return sp.csr_matrix(dense.astype(np.float32))


def mlp(weights: dict[str, Tensor], path: str, x: Tensor) -> Tensor:
    for depth in range(3):
        x = torch.nn.functional.linear(
            x, weights[f"{path}.{depth}.weight"].t(), weights[f"{path}.{depth}.bias"]
        )
        x = x.relu() if depth < 2 else x
    return x


def slow(weights: dict[str, Tensor], v: Tensor, adjacency: sp.csr_matrix) -> Tensor:
    """Eq. (3) of docs/papers/cnfgnn.md, edge by edge."""
    senders, receivers = adjacency.nonzero()
    windows = []
    for b in range(v.shape[1]):
        node = {i: v[i, b] for i in range(len(v))}
        edge = {
            (r, s): torch.tensor([float(adjacency[s, r])]) for s, r in zip(senders, receivers, strict=True)
        }
        shared = torch.zeros(v.shape[2])
        for layer in range(sum(name.endswith("edge.0.weight") for name in weights)):
            path = f"layers.{layer}"
            new_edge = {
                (r, s): mlp(weights, f"{path}.edge", torch.cat([node[r], node[s], e, shared]))
                for (r, s), e in edge.items()
            }
            none = torch.zeros(weights[f"{path}.edge.2.bias"].shape)
            into = {i: sum((e for (r, _), e in new_edge.items() if r == i), none) for i in node}
            new_node = {
                i: mlp(weights, f"{path}.vertex", torch.cat([x, into[i], shared])) for i, x in node.items()
            }
            sums = [sum(new_node.values(), none), sum(new_edge.values(), none), shared]
            new_shared = mlp(weights, f"{path}.global", torch.cat(sums))
            node = {i: torch.cat([new_node[i], x]) for i, x in node.items()}
            edge = {k: torch.cat([new_edge[k], e]) for k, e in edge.items()}
            shared = torch.cat([new_shared, shared])
        windows.append(torch.stack([x @ weights["out.weight"] + weights["out.bias"] for x in node.values()]))
    return torch.stack(windows, 1)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_embeddings_and_gradients_are_those_of_the_equations_edge_by_edge(
    layers: int, loops: bool, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 30)  # two windows' edges at a time, of groups of four
    monkeypatch.setattr(module, "GROUP", 4 * 6)
    monkeypatch.setattr(module, "KEPT", kept)
    adjacency = random_adjacency(1, 6, loops=loops)
    weights = init(5, hidden=3, width=7, out=4, layers=layers)
    v, upstream = draw(0, 6, 5, 3), draw(1, 6, 5, 3)
    found = []
    for forward, graph in ((graph_network, make_edges(adjacency)), (slow, adjacency)):
        leaves = {k: w.clone().requires_grad_() for k, w in weights.items()}
        x = v.clone().requires_grad_()
        out = forward(leaves, x, graph)
        (out * upstream).sum().backward()
        found.append((out, x.grad, {k: w.grad for k, w in leaves.items()}))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-10)
    for name in weights:
        expected = found[1][2][name]
        if name.startswith(f"layers.{layers - 1}.global"):  # reaches nothing
            assert expected is None
            expected = torch.zeros_like(weights[name])
        torch.testing.assert_close(found[0][2][name], expected, rtol=1e-9, atol=1e-10)


def test_the_parameter_count_is_that_of_the_published_network() -> None:
    assert sum(w.numel() for w in init(0).values()) == 1_237_312


def test_first_weights_are_uniform_up_to_the_inverse_root_of_their_inputs() -> None:
    weights = init(0)
    assert not {name for name in weights if not name.endswith((".weight", ".bias"))}
    for name, w in weights.items():
        bound = len(weights[name.replace(".bias", ".weight")]) ** -0.5
        # n uniform draws all stay below (1 - 20 / n) of their bound with probability under exp(-20).
        assert bound * (1 - 20 / w.numel()) < w.abs().max() <= bound, name


@pytest.mark.parametrize("windows", [2, 3])
def test_beyond_so_many_edges_the_layers_are_computed_again_on_the_way_back_and_not_kept(
    windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges, weights = make_edges(random_adjacency(3, 6)), init(0, 5, 8, 4)
    monkeypatch.setattr(module, "KEPT", 2 * edges.count)
    calls, features = [], module._features

    def counted(*args: Any) -> Tensor:
        calls.append(torch.is_grad_enabled())
        return features(*args)

    monkeypatch.setattr(module, "_features", counted)
    v = draw(0, 6, windows, 5).requires_grad_()
    graph_network(weights, v, edges).sum().backward()
    assert len(calls) == (2 if windows > 2 else 1)
    with torch.no_grad():
        graph_network(weights, v, edges)
    assert calls.count(False) == 1, "without gradients nothing is kept, and nothing is computed again"


def test_weights_that_reach_nothing_change_nothing_though_they_are_zero() -> None:
    """Those of the last layer's global vector."""
    edges, weights, v = make_edges(random_adjacency(3, 6)), init(0, 3, 8, 4), draw(0, 6, 2, 3)
    zeros = {name: 0 * w if name.startswith("layers.1.global") else w for name, w in weights.items()}
    assert torch.equal(graph_network(zeros, v, edges), graph_network(weights, v, edges))


@pytest.mark.parametrize("rows", [1, 30, 1000])
def test_edges_are_worked_on_in_whole_windows_and_no_more_at_once_than_rows(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    edges, windows = make_edges(random_adjacency(3, 6)), 5
    places = list(range(windows * edges.count))
    found = []
    for part, node, edge in module._parts(edges, windows):
        assert part.count == len(places[edge])
        assert part.count <= max(rows, edges.count)
        assert part.num_nodes * edges.count == len(places[edge]) * edges.num_nodes
        assert node.start * edges.count == edge.start * edges.num_nodes
        found += places[edge]
    assert found == places


def test_renumbering_the_nodes_renumbers_the_embeddings() -> None:
    adjacency, weights, v = random_adjacency(3, 9), init(0, 3, 8, 4), draw(2, 9, 4, 3)
    order = torch.from_numpy(np.random.default_rng(4).permutation(9))
    one = graph_network(weights, v, make_edges(adjacency))
    two = graph_network(weights, v[order], make_edges(adjacency[order.numpy()][:, order.numpy()]))
    torch.testing.assert_close(two, one[order], rtol=1e-10, atol=1e-11)


def test_windows_do_not_read_each_other() -> None:
    edges, weights, v = make_edges(random_adjacency(3, 9)), init(0, 3, 8, 4), draw(2, 9, 40, 3)
    whole = graph_network(weights, v, edges)
    torch.testing.assert_close(
        graph_network(weights, v[:, 3:5], edges), whole[:, 3:5], rtol=1e-10, atol=1e-11
    )


def test_a_node_without_edges_and_a_graph_without_edges_have_embeddings() -> None:
    weights, v = init(0, 3, 8, 4), draw(2, 5, 4, 3).requires_grad_()
    out = graph_network(weights, v, make_edges(sp.csr_matrix((5, 5), dtype=np.float32)))
    assert out.shape == v.shape
    assert out.isfinite().all()
    (gradient,) = torch.autograd.grad(out[0].square().sum(), v)
    assert (gradient[0] != 0).any()


# ---- edges


def as_dense(edges: Edges) -> np.ndarray:
    dense = np.zeros((edges.num_nodes, edges.num_nodes))
    dense[edges.sender, edges.receiver] = edges.weight
    return dense


def test_edges_are_the_matrix_sorted_by_receiver_and_sender() -> None:
    adjacency = random_adjacency(0, 20)
    edges = make_edges(adjacency)
    assert np.array_equal(as_dense(edges), adjacency.toarray())
    codes = edges.receiver * 20 + edges.sender
    assert (codes.diff() > 0).all()
    assert edges.count == adjacency.nnz


def test_copies_of_a_graph_are_a_block_diagonal_of_its_matrix() -> None:
    edges = make_edges(random_adjacency(0, 7))
    assert np.array_equal(as_dense(edges.repeat(3)), np.kron(np.eye(3), as_dense(edges)))
    assert edges.repeat(3) is edges.repeat(3)


def test_an_entry_that_is_stored_and_zero_is_no_edge() -> None:
    adjacency = sp.csr_matrix((np.array([0.0, 0.5]), ([0, 1], [1, 0])), shape=(2, 2))
    edges = make_edges(adjacency)
    assert (edges.sender.tolist(), edges.receiver.tolist(), edges.weight.tolist()) == ([1], [0], [0.5])
    assert adjacency.nnz == 2  # the caller's matrix is as it was


def test_the_induced_edges_are_those_of_the_submatrix() -> None:
    adjacency = random_adjacency(0, 20)
    keep = np.random.default_rng(0).random(20) < 0.5
    part, whole = (
        induce_subgraph(make_edges(adjacency), torch.from_numpy(keep)),
        make_edges(adjacency[keep][:, keep]),
    )
    assert part.num_nodes == whole.num_nodes == keep.sum()
    assert torch.equal(part.receiver, whole.receiver)
    assert torch.equal(part.sender, whole.sender)
    assert torch.equal(part.weight, whole.weight)

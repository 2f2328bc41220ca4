"""GCN and GAT on one symmetric graph against the general networks, in outputs and gradients, whole and in
pieces."""

import numpy as np
import pytest
import torch
from torch import Tensor

from graphfed.methods.lumos import naive_fedgnn
from graphfed.methods.lumos.naive_fedgnn import NETWORKS, make_symmetric_graph
from graphfed.nn.backbones import BACKBONES
from graphfed.nn.batch import View, make_batch
from graphfed.nn.layers import Dropout


def graph_of(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random pairs, each once; the last two nodes have none."""
    rng = np.random.default_rng(seed)
    pairs = np.argwhere(np.triu(rng.random((n, n)) < 0.3, 1))
    pairs = pairs[(pairs < n - 2).all(1)]
    swap = rng.random(len(pairs)) < 0.5
    pairs[swap] = pairs[swap][:, ::-1]
    order = rng.permutation(len(pairs))
    u, v = torch.from_numpy(pairs[order].astype(np.int32)).t()
    return u.contiguous(), v.contiguous()


@pytest.mark.parametrize("piece", [1, 7, 1 << 22])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("name", "output_heads"), [("gcn", 1), ("gat", 1), ("gat", 2)])
def test_outputs_and_gradients_are_those_of_the_general_network(
    name: str, output_heads: int, layers: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(naive_fedgnn, "PIECE", piece)
    n, features = 20, 6
    heads = [3] * (layers - 1) + [output_heads]
    u, v = graph_of(n, layers)
    ids = torch.arange(n) * 5 + 1
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(n, features)))
    x[0] *= 50  # scores far apart
    drawn = BACKBONES[name].init(3, [features, *[4] * (layers - 1), 3], heads)
    edges = torch.stack([torch.cat([u, v]), torch.cat([v, u])]).long()
    degree = torch.bincount(edges[1], minlength=n)
    view = View(x, ids, torch.zeros(n, dtype=torch.int64), 1, torch.zeros(n), degree, (edges,))
    make_block = BACKBONES[name].blocks(ids, degree, heads)
    batch = make_batch(view, torch.arange(n), layers, make_block)
    # The attention's own dropout is what the symmetric GAT has not.
    dropout = Dropout(0.4, 11) if name == "gcn" else None
    found = []
    for forward in (
        lambda w: BACKBONES[name].forward(w, batch, dropout),
        lambda w: NETWORKS[name](w, make_symmetric_graph(u, v, ids, x.dtype), x, dropout),
    ):
        weights = {k: w.clone().requires_grad_() for k, w in drawn.items()}
        out = forward(weights)
        loss = (out * torch.arange(out.numel()).reshape(out.shape).sin()).sum()
        found.append((out, torch.autograd.grad(loss, list(weights.values()))))
    (one, one_grad), (two, two_grad) = found
    assert torch.allclose(one, two, rtol=1e-9, atol=1e-9)
    for a, b in zip(one_grad, two_grad, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("sign", [1, -1])
def test_attention_with_scores_in_the_thousands_is_finite_and_that_of_the_general_network(sign: int) -> None:
    """In single precision an exponential of 89 is too large."""
    torch.set_default_dtype(torch.float32)
    n, (u, v) = 20, graph_of(20, 0)
    ids, edges = torch.arange(n), torch.stack([torch.cat([u, v]), torch.cat([v, u])]).long()
    degree = torch.bincount(edges[1], minlength=n)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(n, 6))).float()
    weights = BACKBONES["gat"].init(3, [6, 3], [1])
    weights = {key: w * (sign * 3000 if "att" in key else 1) for key, w in weights.items()}
    view = View(x, ids, torch.zeros(n, dtype=torch.int64), 1, torch.zeros(n), degree, (edges,))
    batch = make_batch(view, torch.arange(n), 1, BACKBONES["gat"].blocks(ids, degree, [1]))
    expected = BACKBONES["gat"].forward(weights, batch, None)  # type: ignore[arg-type]
    found = naive_fedgnn.gat(weights, make_symmetric_graph(u, v, ids, x.dtype), x, None)
    assert bool(found.isfinite().all())
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_dropout_acts_on_every_layers_input_of_the_symmetric_gat() -> None:
    u, v = graph_of(20, 0)
    graph = make_symmetric_graph(u, v, torch.arange(20), torch.float32)
    x, weights = torch.ones(20, 6), BACKBONES["gat"].init(3, [6, 4, 3], [2, 1])
    whole = naive_fedgnn.gat(weights, graph, x, None)
    assert not torch.allclose(naive_fedgnn.gat(weights, graph, x, Dropout(0.5, 1)), whole)


def test_the_pattern_is_symmetric_sorted_and_has_a_full_diagonal() -> None:
    u, v = graph_of(30, 4)
    graph = make_symmetric_graph(u, v, torch.arange(30), torch.float32)
    assert graph.indices.dtype == torch.int32
    dense = torch.zeros(30, 30)
    for i in range(30):
        neighbours = graph.indices[graph.indptr[i] : graph.indptr[i + 1]].long()
        assert (neighbours.diff() > 0).all()
        dense[i, neighbours] = 1
    assert torch.equal(dense, dense.t())
    assert (dense.diagonal() == 1).all()
    assert int(dense.sum()) == 2 * len(u) + 30


@pytest.mark.parametrize("piece", [1, 7, 20, 1 << 22])
def test_pieces_are_all_rows_in_order_and_each_is_as_long_as_it_may_be(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most PIECE entries or one row, and with the row after it more than that."""
    monkeypatch.setattr(naive_fedgnn, "PIECE", piece)
    graph = make_symmetric_graph(*graph_of(30, 4), torch.arange(30), torch.float32)
    found = [(rows, indptr, indices) for rows, indptr, indices in graph.pieces()]
    assert torch.equal(torch.cat([indices for _, _, indices in found]), graph.indices)
    assert torch.equal(torch.cat([indptr.diff() for _, indptr, _ in found]), graph.degree)
    stops = [rows.stop for rows, _, _ in found]
    assert [rows.start for rows, _, _ in found] == [0, *stops[:-1]]
    assert stops[-1] == 30
    for rows, indptr, indices in found:
        assert int(indptr[0]) == 0
        assert int(indptr[-1]) == len(indices)
        assert len(indices) <= piece or rows.stop == rows.start + 1
        if rows.stop < 30:
            assert len(indices) + int(graph.degree[rows.stop]) > piece


@pytest.mark.parametrize("name", ["gcn", "gat"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_networks_work_in_the_dtype_of_the_features_whatever_the_default(
    name: str, dtype: torch.dtype
) -> None:
    weights = {key: w.to(dtype) for key, w in BACKBONES[name].init(3, [6, 4, 3], [2, 1]).items()}
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        graph = make_symmetric_graph(*graph_of(20, 0), torch.arange(20), dtype)
        out = NETWORKS[name](weights, graph, torch.ones(20, 6, dtype=dtype), None)
        assert out.dtype == dtype
        assert bool(out.isfinite().all())


def test_a_graph_without_nodes_has_no_rows() -> None:
    none = torch.zeros(0, dtype=torch.int32)
    graph = make_symmetric_graph(none, none, none.long(), torch.float32)
    assert graph.degree.shape == graph.indices.shape == (0,)
    assert list(graph.pieces()) == []
    assert naive_fedgnn.gcn(BACKBONES["gcn"].init(3, [6, 3], [1]), graph, torch.ones(0, 6), None).shape == (
        0,
        3,
    )

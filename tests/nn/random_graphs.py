"""Random stacked graphs for the tests of `graphfed.nn`: rows sorted by client, edges inside a client, some
nodes alone."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from graphfed.nn.backbones import BACKBONES, Weights
from graphfed.nn.batch import Batch, View, make_batch
from graphfed.nn.sparse import SparseMatrix, SparseWeights


def random_view(
    seed: int,
    sizes: list[int],
    features: int = 6,
    classes: int = 3,
    *,
    sparse: bool = False,
    dtype: torch.dtype = torch.float64,
) -> View:
    """A view with `sizes` rows per client and about one edge for every two rows, both directions, no
    loops."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    n = len(client)
    first = np.cumsum([0, *sizes[:-1]])
    u = rng.integers(0, n, size=n // 2) if n else np.zeros(0, dtype=np.int64)
    v = first[client[u]] + rng.integers(0, np.array(sizes)[client[u]]) if n else u
    pairs = np.unique(np.sort(np.stack([u, v])[:, u != v], axis=0), axis=1)
    edges = torch.from_numpy(np.concatenate([pairs, pairs[::-1]], axis=1))
    x = rng.standard_normal((n, features)) * (rng.random((n, features)) < 0.4)
    dense = torch.from_numpy(x).to(dtype)
    return View(
        x=SparseMatrix.from_dense(dense) if sparse else dense,
        ids=torch.from_numpy(rng.permutation(10 * n + 10)[:n]),
        client=torch.from_numpy(client),
        num_clients=len(sizes),
        y=torch.from_numpy(rng.integers(0, classes, size=n)),
        degree=torch.bincount(edges[1], minlength=n),
        edges=(edges,),
    )


def as_dense(x: Tensor | SparseMatrix) -> Tensor:
    return x.to_dense() if isinstance(x, SparseMatrix) else x


def heads_of_layers(layers: int, heads: int, output_heads: int) -> list[int]:
    return [heads] * (layers - 1) + [output_heads]


def draw_weights(
    seed: int, backbone: str, widths: list[int], heads: int = 1, output_heads: int = 1
) -> dict[str, Tensor]:
    """Shared float64 weights of the usual size, biases included, none of them zero."""
    rng = np.random.default_rng(seed)
    drawn = BACKBONES[backbone].init(seed, widths, heads_of_layers(len(widths) - 1, heads, output_heads))
    return {k: torch.from_numpy(0.5 * rng.standard_normal(tuple(w.shape))) for k, w in drawn.items()}


def batch_of(
    view: View,
    backbone: str,
    layers: int,
    heads: int = 1,
    targets: Tensor | None = None,
    *,
    output_heads: int = 1,
    **kwargs,
) -> Batch:
    targets = torch.arange(len(view.ids)) if targets is None else targets
    view = BACKBONES[backbone].adapt_view(view)
    every = heads_of_layers(layers, heads, output_heads)
    maker = BACKBONES[backbone].blocks(view.ids, view.degree, every)
    return make_batch(view, targets, layers, maker, **kwargs)


def as_client_weights(whole: dict[str, Tensor], backbone: str, batch: Batch) -> Weights:
    """Full per-client weights [K, ...] in the form that a batch takes: `SparseWeights` for a sparse input."""
    weights: Weights = dict(whole)
    if batch.pairs is not None:
        for name in BACKBONES[backbone].input_weights:
            client, feature = batch.pairs
            # Rows that occur nowhere: for one client they are its own, otherwise nothing may depend on them.
            ghost = whole[name][0] if batch.num_clients == 1 else torch.full_like(whole[name][0], torch.nan)
            values = torch.cat([whole[name][client, feature], ghost])
            weights[name] = SparseWeights(values, client, feature, batch.num_clients)
    return weights


def one_client(view: View, k: int) -> View:
    """The rows of client k alone, as a view of one client."""
    rows = (view.client == k).nonzero()[:, 0]
    first = int(rows[0]) if len(rows) else 0
    is_own = view.client[view.edges[0][0]] == k
    x = view.x.select_rows(rows) if isinstance(view.x, SparseMatrix) else view.x[rows]
    return replace(
        view,
        x=x,
        ids=view.ids[rows],
        client=torch.zeros_like(rows),
        num_clients=1,
        y=view.y[rows],
        degree=view.degree[rows],
        edges=(view.edges[0][:, is_own] - first,),
    )

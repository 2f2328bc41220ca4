"""Theorems 3 to 5 of FedGAT in networks of three layers: how far a polynomial in the first layer's scores
moves the attention and the embeddings after every layer.

Lengths of vectors are Euclidean, ||W|| of matrices the largest singular value. The constants, of which the
paper's are lost, are worked out here. With phi and psi of Lipschitz constant 1 (ELU, or nothing after the
last layer; LeakyReLU, smoothed or not), |h_i| <= 1 for features, ||W|| <= 1 and |a1|, |a2| <= 1 in every
layer, so that b = W' a has length at most 1 too:

    Theorem 3  |x_ij| <= 2. ehat = e (1 + t) with |t| <= eta = eps / e_min < 1, so alphahat / alpha lies
               between (1 - eta) / (1 + eta) and (1 + eta) / (1 - eta), at most 2 eta / (1 - eta) from 1
    Theorem 4  |hhat_i - h_i| <= ||W|| max |h_j| sum_j |alphahat_ij - alpha_ij|; biases cancel
    Theorem 5  where inputs are off by delta, scores are by 2 delta, so alphahat / alpha lies between
               exp(-4 delta) and exp(4 delta), and outputs are off by ||W|| (delta + (exp(4 delta) - 1) H), H
               the longest input of the exact network; exp(y) - 1 <= 2 y for y <= 1.25

With several heads side by side this holds for each head, hence with the root of sum_k ||W_k||^2 in the place
of ||W||; so weights are drawn for which this root is 1, the most that the theorems allow."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from random_graphs import random_view
from torch import Tensor
from torch.nn.functional import elu

from graphfed.methods.fedgat.moment_messages import Neighbourhoods, matrix_message, vector_message
from graphfed.methods.fedgat.polynomial_gat import Score, polynomial_gat, score_function, score_series
from graphfed.nn.backbones import BACKBONES, Weights, gat_block, gat_init, gat_layer, gat_output
from graphfed.nn.batch import Batch, View, make_batch
from graphfed.nn.chebyshev import evaluate
from graphfed.nn.moments import Moments

LAYERS, DOMAIN = 3, 2.0
DEGREES = (4, 8, 16)
SEEDS = range(5)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@dataclass(frozen=True, eq=False)
class World:
    """A graph with features of length 1 or 0, and weights of a GAT of three layers."""

    view: View
    weights: dict[str, Tensor]
    heads: int

    @property
    def neighbourhoods(self) -> list[Tensor]:
        """The neighbours of every node, itself first."""
        source, target = self.view.edges[0]
        return [torch.cat([torch.tensor([i]), source[target == i]]) for i in range(len(self.view.ids))]

    def of_head(self, name: str, layer: int) -> Tensor:
        """[heads, F, H] or [heads, H]; one head in the last layer."""
        found = self.weights[f"layers.{layer}.{name}"]
        heads = 1 if layer == LAYERS - 1 else self.heads
        return found.view(len(found), heads, -1).transpose(0, 1) if name == "weight" else found


def world(seed: int, heads: int = 1, *, nodes: int = 40) -> World:
    """sqrt(sum_k ||W_k||^2) is 1 in every layer, and so are |a1| and |a2| of every head."""
    view = random_view(seed, [nodes])
    # A second graph's edges as well, for more neighbours.
    edges = torch.cat([view.edges[0], random_view(seed + 1000, [nodes]).edges[0]], 1).unique(dim=1)
    x = view.x / view.x.norm(dim=1, keepdim=True).clamp(min=1e-9)  # type: ignore[union-attr]
    view = replace(view, x=x, edges=(edges,), degree=torch.bincount(edges[1], minlength=nodes))
    rng = np.random.default_rng(seed)
    weights = {}
    for name, like in gat_init(seed, [x.shape[1], 6, 6, 4], [heads, heads, 1]).items():
        drawn = torch.from_numpy(rng.standard_normal(tuple(like.shape)))
        if name.endswith("weight"):
            per_head = drawn.view(len(drawn), 1 if name.startswith("layers.2") else heads, -1)
            norms = torch.linalg.matrix_norm(per_head.transpose(0, 1), 2)
            drawn = drawn / norms.norm()
        elif not name.endswith("bias"):
            drawn = drawn / drawn.norm(dim=1, keepdim=True)
        weights[name] = drawn
    return World(view, weights, heads)


# ---- the two networks --------------------------------------------------------------------------------------


def batch(world: World, layers: int, moments: Moments | None = None) -> Batch:
    view = world.view
    if moments is not None:
        view = replace(view, x=torch.empty(len(view.ids), 0), aggregated=True, moments=moments)
    maker = gat_block(view.ids, view.degree, [world.heads] * (LAYERS - 1) + [1])
    return make_batch(view, torch.arange(len(view.ids)), layers, maker)


def after(layers: int, out: Tensor) -> Tensor:
    """What leaves this layer of the network of three, from what leaves a network that ends there."""
    return elu(out) if layers < LAYERS else out


def shares(world: World, score: Score, *, polynomial: bool) -> list[Tensor]:
    """alpha [B, heads] of every node in the first layer, added up neighbour by neighbour."""
    weight = world.of_head("weight", 0)
    to_source, to_target = (
        torch.einsum("kfh,kh->fk", weight, world.of_head(name, 0)) for name in ("att_src", "att_dst")
    )
    x, found = world.view.x, []
    assert isinstance(x, Tensor)
    for neighbourhood in world.neighbourhoods:
        scores = x[neighbourhood[:1]] @ to_target + x[neighbourhood] @ to_source  # Eq. (4)
        assert float(scores.abs().max()) <= DOMAIN
        if polynomial:
            e = evaluate(score_series(score), DOMAIN, scores)
        else:
            e = torch.from_numpy(score_function(score)(scores.numpy()))  # Eq. (3)
        found.append(e / e.sum(0))  # Eq. (2)
    return found


def first_layer(world: World, alpha: list[Tensor]) -> Tensor:
    """sum_j alpha_ij W h_j, [N, heads * H].  Eq. (1), before phi"""
    x, weight = world.view.x, world.of_head("weight", 0)
    rows = [
        torch.einsum("jk,jf,kfh->kh", share, x[neighbourhood], weight).flatten()  # type: ignore[index]
        for neighbourhood, share in zip(world.neighbourhoods, alpha, strict=True)
    ]
    return torch.stack(rows)


def later_layers(h: Tensor, weights: Weights, of: Batch) -> Tensor:
    """GAT's layers after the first."""
    for layer in range(1, of.layers):
        h = gat_layer(h, weights, of, None, layer)
    return h


def exact(world: World, score: Score) -> list[Tensor]:
    """The embeddings after each layer, with e itself; later layers are GAT's."""
    summed, weights = first_layer(world, shares(world, score, polynomial=False)), dict(world.weights)
    found = []
    for layers in range(1, LAYERS + 1):
        of = batch(world, layers)
        out = later_layers(gat_output(summed, weights, of, 0), weights, of)  # type: ignore[arg-type]
        found.append(after(layers, out))
    return found


def approximate(world: World, score: Score, moments: Moments | None = None) -> list[Tensor]:
    """The embeddings after each layer, with a polynomial in the first."""
    network, weights = polynomial_gat(score, tied=True), dict(world.weights)
    return [
        after(layers, network.forward(weights, batch(world, layers, moments), None))  # type: ignore[arg-type]
        for layers in range(1, LAYERS + 1)
    ]


def message(world: World, form: str, degree: int) -> Moments:
    neighbourhoods = world.neighbourhoods
    size = torch.tensor([len(neighbourhood) for neighbourhood in neighbourhoods])
    of = Neighbourhoods(world.view.ids, size, torch.cat(neighbourhoods))
    if form == "matrix":
        return Moments(size, *matrix_message(world.view.x, of, 1), None, world.heads)
    return Moments(size, *vector_message(world.view.x, of, degree, 1), world.heads)


# ---- the bounds --------------------------------------------------------------------------------------------


def of_shares(score: Score) -> float:
    """2 eta / (1 - eta).  Thm 3"""
    e, grid = score_function(score), np.linspace(-DOMAIN, DOMAIN, 4001)
    eps = np.abs(evaluate(score_series(score), DOMAIN, torch.from_numpy(grid)).numpy() - e(grid)).max()
    eta = eps / e(grid).min()
    assert eta < 1
    return float(2 * eta / (1 - eta))


def of_layer(delta: float, longest: float) -> float:
    """delta + (exp(4 delta) - 1) H.  Thm 5"""
    return float(delta + np.expm1(4 * delta) * longest)


def largest_row(x: Tensor) -> float:
    return float(x.norm(dim=1).max())


def errors_and_bounds(
    world: World, score: Score, moments: Moments | None = None, approximated: Score | None = None
) -> list[tuple[float, float, float]]:
    """Of every layer: how far embeddings are off after it, how far they may be given the layer before, and H,
    the longest embedding that enters it."""
    true = exact(world, score)
    found = approximate(world, approximated or score, moments)
    deltas = [largest_row(a - b) for a, b in zip(found, true, strict=True)]
    assert isinstance(world.view.x, Tensor)
    longest = [largest_row(h) for h in (world.view.x, *true[:-1])]
    bounds = [longest[0] * of_shares(score)]  # Thm 4
    bounds += [of_layer(delta, h) for delta, h in zip(deltas, longest[1:], strict=False)]
    return list(zip(deltas, bounds, longest, strict=True))


# ---- the claims --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_assumptions_hold(seed: int, heads: int) -> None:
    """At their edge: nothing is smaller than it may be."""
    made = world(seed, heads)
    assert largest_row(made.view.x) == pytest.approx(1)  # type: ignore[arg-type]
    for layer in range(LAYERS):
        norms = torch.linalg.matrix_norm(made.of_head("weight", layer), 2)
        assert float(norms.norm()) == pytest.approx(1)
        for name in ("att_src", "att_dst"):
            assert torch.allclose(made.of_head(name, layer).norm(dim=1), torch.ones(1))
    # e_min is at the lower end, for e rises
    e = score_function(Score("smooth", True, 4, DOMAIN))(np.linspace(-DOMAIN, DOMAIN, 4001))
    assert e[0] == e.min()


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_exact_network_with_leaky_relu_is_gat(seed: int, heads: int) -> None:
    """What these tests compare with, e added up neighbour by neighbour, is the program's own GAT."""
    made = world(seed, heads)
    weights: Weights = dict(made.weights)
    found = exact(made, Score("leaky_relu", True, 4, DOMAIN))
    for layers, h in enumerate(found, 1):
        expected = after(layers, BACKBONES["gat"].forward(weights, batch(made, layers), None))
        assert torch.allclose(h, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("psi", ["smooth", "leaky_relu"])
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.sampled(5)
def test_theorem_3_of_the_attention(psi: str, degree: int, heads: int) -> None:
    """|alphahat - alpha| <= alpha 2 eta / (1 - eta), each of them and added up; these are the network's."""
    score = Score(psi, True, degree, DOMAIN)  # type: ignore[arg-type]
    bound, reached = of_shares(score), 0.0
    for seed in SEEDS:
        made = world(seed, heads)
        true, found = (shares(made, score, polynomial=which) for which in (False, True))
        for alpha, close in zip(true, found, strict=True):
            off = (close - alpha).abs()
            assert bool((off <= alpha * bound + 1e-15).all())
            assert bool((off.sum(0) <= bound + 1e-15).all())
            reached = max(reached, float((off / alpha).max()) / bound)
        out = gat_output(first_layer(made, found), dict(made.weights), batch(made, 1), 0)
        assert torch.allclose(approximate(made, score)[0], elu(out), rtol=0, atol=1e-12)
    assert reached > 0.1


@pytest.mark.parametrize("evaluation", ["features", "matrix", "vector"])
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.sampled(5)
def test_theorems_4_and_5_of_the_embeddings(evaluation: str, degree: int, heads: int) -> None:
    """After the first layer, and after each later one as far as the one before allows; from the features, or
    from FedGAT's message."""
    score = Score("smooth", True, degree, DOMAIN)
    for seed in SEEDS:
        made = world(seed, heads)
        moments = None if evaluation == "features" else message(made, evaluation, degree)
        found = errors_and_bounds(made, score, moments)
        assert all(error <= bound for error, bound, _ in found)
        for (delta, _, _), (error, bound, longest) in pairwise(found):
            # The linear form: kappa_phi (1 + 8 kappa_psi H) delta
            assert 4 * delta <= 1.25
            assert error <= bound <= (1 + 8 * longest) * delta


@pytest.mark.parametrize("heads", [1, 2])
def test_the_bound_of_theorem_4_exposes_a_wrong_polynomial(heads: int) -> None:
    """With the constant term twice, as printed, the first layer is off by more than 50 times of it."""
    score = Score("smooth", True, 16, DOMAIN)
    for seed in SEEDS:
        found = errors_and_bounds(world(seed, heads), score, approximated=replace(score, doubled=True))
        assert found[0][0] > 50 * found[0][1]


def moved(length: float, longest: float, delta: float, seeds: int = 20) -> tuple[float, float]:
    """One layer of GAT in one dimension, whose W is `length` or minus that, on embeddings of at most
    `longest` that are off by `delta` each: how far its output is off, at most over many draws, relative to
    Theorem 5's bound for length 1, and relative to delta."""
    to_bound, to_delta = 0.0, 0.0
    for seed in range(seeds):
        made, rng = world(seed), np.random.default_rng(seed)
        of, n = batch(made, 2), len(made.view.ids)

        def signs(*shape: int, rng: np.random.Generator = rng) -> Tensor:
            return torch.from_numpy(rng.choice([-1.0, 1.0], shape))

        weights: Weights = {
            "layers.1.weight": length * signs(1, 1),
            "layers.1.att_src": signs(1, 1),
            "layers.1.att_dst": signs(1, 1),
            "layers.1.bias": signs(1),
        }
        inside = torch.from_numpy(rng.uniform(-1, 1, (n, 1)))
        h = longest * torch.where(torch.from_numpy(rng.random((n, 1)) < 0.5), inside, signs(n, 1))
        for by in (torch.ones(n, 1), signs(n, 1), signs(n, 1)):
            off = largest_row(later_layers(h + delta * by, weights, of) - later_layers(h, weights, of))
            to_bound, to_delta = max(to_bound, off / of_layer(delta, longest)), max(to_delta, off / delta)
    return to_bound, to_delta


@pytest.mark.parametrize("longest", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-3, 0.05, 0.3])
@pytest.mark.sampled(2)
def test_theorem_5_for_any_inputs_that_are_off(longest: float, delta: float) -> None:
    """Outputs may be off by more than inputs: the term of the attention is needed."""
    to_bound, to_delta = moved(1.0, longest, delta)
    assert to_bound <= 1
    assert to_delta > 1.2


def test_theorem_5_is_nearly_reached_and_fails_without_its_assumption() -> None:
    """Of short embeddings, 2 / 5 of the bound; with W twice as long as assumed, all of it and more."""
    assert moved(1.0, 0.5, 1e-3)[0] > 0.4
    assert moved(2.0, 0.5, 1e-3)[0] > 1.1


@pytest.mark.parametrize("heads", [1, 2])
def test_errors_fall_with_the_degree_after_every_layer(heads: int) -> None:
    scores = [Score("smooth", True, degree, DOMAIN) for degree in DEGREES]
    for seed in SEEDS:
        made = world(seed, heads)
        found = [[error for error, *_ in errors_and_bounds(made, score)] for score in scores]
        for lower, higher in pairwise(found):
            assert all(after < 0.5 * before for before, after in zip(lower, higher, strict=True))

"""FedGAT's message: its identities, what is evaluated from it, and the error bounds of the polynomial.

The oracle adds up scores and features of every neighbour, one node after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphfed.methods.fedgat.moment_messages import (
    Neighbourhoods,
    matrix_message,
    numbers,
    projectors,
    vector_message,
)
from graphfed.methods.fedgat.polynomial_gat import Score, score_function, score_series
from graphfed.nn.chebyshev import Series
from graphfed.nn.moments import Moments

FORMS = ("matrix", "vector")
HEADS, WIDTH = 2, 3


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@dataclass(frozen=True)
class Nodes:
    """Nodes with features [U, F] of length at most 1, and their neighbourhoods."""

    x: Tensor
    neighbourhoods: Neighbourhoods

    def moments(self, form: str, degree: int = 16, key: int = 1) -> Moments:
        if form == "matrix":
            return Moments(
                self.neighbourhoods.size, *matrix_message(self.x, self.neighbourhoods, key), None, HEADS
            )
        return Moments(
            self.neighbourhoods.size, *vector_message(self.x, self.neighbourhoods, degree, key), HEADS
        )

    def members(self) -> Iterator[tuple[Tensor, Tensor]]:
        """h_i [F] and h_j [B, F] of every node."""
        for of_one in self.neighbourhoods.member.split(self.neighbourhoods.size.tolist()):
            yield self.x[of_one[0]], self.x[of_one]


def random_nodes(sizes: list[int], features: int = 5, seed: int = 0) -> Nodes:
    rng = np.random.default_rng(seed)
    count = max(len(sizes), max(sizes) + 1)
    sizes = sizes + [1] * (count - len(sizes))
    member = [
        np.concatenate([[i], rng.permutation(np.delete(np.arange(count), i))[: b - 1]])
        for i, b in enumerate(sizes)
    ]
    x = rng.uniform(-1, 1, (count, features))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    ids = torch.from_numpy(rng.permutation(10 * count)[:count]).sort()[0]
    neighbourhoods = Neighbourhoods(ids, torch.tensor(sizes), torch.from_numpy(np.concatenate(member)))
    return Nodes(torch.from_numpy(x), neighbourhoods)


def draw(seed: int, *shape: int, norm: float | None = None) -> Tensor:
    """Normal draws; of columns of length `norm`."""
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))
    return x if norm is None else norm * x / x.norm(dim=-2, keepdim=True)


def score_vectors(features: int, seed: int = 3) -> Tensor:
    """b1 and b2 [2 F, heads] of length 1 each: every score is within [-2, 2]."""
    return torch.cat([draw(seed, features, HEADS, norm=1.0), draw(seed + 1, features, HEADS, norm=1.0)])


def power(n: int, domain: float) -> Series:
    """The Chebyshev series of x^n on [-domain, domain]."""
    return tuple((np.polynomial.chebyshev.poly2cheb([0] * n + [1]) * domain**n).tolist())


def test_projectors_are_idempotent_of_rank_one_and_annihilate_each_other() -> None:
    """Eq. (9)"""
    for b in (1, 2, 5):
        u = projectors(7, torch.tensor([3, 11]), b)
        products = torch.einsum("njab,nkbc->njkac", u, u)
        expected = torch.zeros_like(products)
        expected[:, torch.arange(b), torch.arange(b)] = u
        assert torch.allclose(products, expected, rtol=0, atol=1e-12)
        assert bool((torch.linalg.matrix_rank(u) == 1).all())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", range(17))
def test_moments_of_every_order_are_the_sums_of_powers(form: str, n: int) -> None:
    """Eqs. (8) and (12), with half of the moments of order 0 in the matrix form."""
    world = random_nodes([1, 2, 3, 3, 6, 9])
    b, domain = score_vectors(5), 2.0
    rows = world.moments(form, degree=max(n, 1)).lay_out(None, 1)
    series = power(n, domain) if n else (1.0, 0.0)
    r = rows.coefficients(b, series, domain)  # [S, heads]
    sums = world.moments(form, degree=max(n, 1)).sums
    for found, (own, others) in zip(
        zip(
            r.split((2 * world.neighbourhoods.size).tolist()),
            sums.split((2 * world.neighbourhoods.size).tolist()),
            strict=True,
        ),
        world.members(),
        strict=True,
    ):
        x = own @ b[:5] + others @ b[5:]  # [B, heads]
        coefficients, slots = found
        assert torch.allclose(coefficients.t() @ slots[:, 0], (x**n).sum(0), rtol=0, atol=1e-10)
        assert torch.allclose(coefficients.t() @ slots[:, 1:], (x**n).t() @ others, rtol=0, atol=1e-10)


def test_moments_of_order_0_that_are_not_halved_count_twice() -> None:
    """What zeroth=doubled stands for: the constant term of the polynomial, in powers, is taken twice."""
    half = score_series(Score("smooth", True, 16, 2.0))
    twice = score_series(Score("smooth", True, 16, 2.0, doubled=True))
    assert half[1:] == twice[1:]
    constant = np.polynomial.chebyshev.cheb2poly(half)[0]
    assert twice[0] - half[0] == pytest.approx(constant, rel=1e-12)


def attention_of(world: Nodes, moments: Moments, b: Tensor, weight: Tensor, score: Score) -> Tensor:
    return moments.lay_out(None, 1).attention(weight, b, score_series(score), score.domain)


def by_neighbours(world: Nodes, b: Tensor, weight: Tensor, e: object) -> Tensor:
    """sum_j alpha_ij W h_j of every node, e: numpy function."""
    rows = []
    features = world.x.shape[1]
    for own, others in world.members():
        share = torch.from_numpy(e((own @ b[:features] + others @ b[features:]).numpy()))  # type: ignore[operator]
        alpha = share / share.sum(0)
        z = (others @ weight).view(len(others), HEADS, -1)
        rows.append((alpha[..., None] * z).sum(0).flatten())
    return torch.stack(rows)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    degree=st.sampled_from((2, 5, 16)),
    form=st.sampled_from(FORMS),
)
def test_the_message_gives_what_the_polynomial_gives_on_the_neighbours(
    sizes: list[int], seed: int, degree: int, form: str
) -> None:
    torch.set_default_dtype(torch.float64)
    world, score = random_nodes(sizes, seed=seed), Score("smooth", True, degree, 2.0)
    b, weight = score_vectors(5, seed), draw(seed + 7, 5, HEADS * WIDTH)
    series = score_series(score)

    def e(x: np.ndarray) -> np.ndarray:
        return np.polynomial.chebyshev.chebval(x / 2.0, series)

    expected = by_neighbours(world, b, weight, e)
    found = attention_of(world, world.moments(form, degree), b, weight, score)
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_bases_and_numbers_that_are_drawn_do_not_change_results(form: str) -> None:
    world, score = random_nodes([1, 4, 7, 2]), Score("smooth", True, 16, 2.0)
    b, weight = score_vectors(5), draw(9, 5, HEADS * WIDTH)
    first, second = (attention_of(world, world.moments(form, key=k), b, weight, score) for k in (1, 2))
    assert not torch.equal(world.moments(form, key=1).sums, world.moments(form, key=2).sums)
    assert torch.allclose(first, second, rtol=0, atol=1e-10)


def of_unit_features(form: str, b: int, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """K1 | K2 [n, 2 B, 1 + B] and M1 | M2 [n, .., 2 B] of nodes whose j-th neighbour has feature j alone,
    and R_0 .. R_2 [n, 2 B, 2 B, 3] of the vector form: columns are what each neighbour was given."""
    neighbourhoods = Neighbourhoods(
        torch.arange(nodes) * 3 + 1, torch.full((nodes,), b), torch.arange(b * nodes)
    )
    world = Nodes(torch.eye(b).repeat(nodes, 1), neighbourhoods)
    moments = world.moments(form, degree=2)
    decoders = torch.empty(0) if moments.decoders is None else moments.decoders
    return (
        moments.sums.view(nodes, 2 * b, -1),
        moments.scores.view(nodes, -1, 2 * b),
        decoders.reshape(-1, 2 * b, 2 * b, 3),
    )


def mean_sign_of_products(x: Tensor) -> tuple[float, float]:
    """Of all pairs of entries of vectors x [n, d], and its standard error: signs of different pairs are
    uncorrelated where each entry is as likely to be of either sign."""
    pairs = (x[:, :, None] * x[:, None]).sign()[:, *torch.triu_indices(x.shape[1], x.shape[1], 1)]
    return float(pairs.mean()), pairs.numel() ** -0.5


def test_the_vectors_and_scales_of_the_matrix_form_are_drawn_on_all_sides() -> None:
    """2 B orthonormal vectors with signs that are even, and log2 r uniform in [-1, 1], each within 5 standard
    errors."""
    b, nodes = 3, 1000
    sums, scores, _ = of_unit_features("matrix", b, nodes)
    u = sums[..., 1:].transpose(1, 2) / 2**0.5
    assert torch.allclose(u @ u.transpose(1, 2), torch.eye(b).expand(nodes, -1, -1), rtol=0, atol=1e-12)
    for j in range(b):
        mean, error = mean_sign_of_products(u[:, j])
        assert abs(mean) < 5 * error
    # u_j' U_j = (u_j + r v_j)' / 2
    projector = scores[..., b].view(nodes, 2 * b, 2 * b)
    r = (4 * torch.einsum("ns,nst->nt", u[:, 0], projector).square().sum(1) - 1).sqrt()
    assert 0.5 <= float(r.min()) < 0.51
    assert 1.99 < float(r.max()) <= 2
    assert abs(float(r.log2().mean())) < 5 * (2 / 12**0.5) / nodes**0.5


def test_the_vector_form_is_made_of_what_its_docstring_says() -> None:
    """Of 2 B slots each neighbour owns one: there its number is in [0.8, 1.2] and the others' are 0; in the
    other slots all are in [-1 / B, 1 / B]. m1 and m2 lie there, of length 1 and orthogonal to each other. All
    means are within 5 standard errors of a uniform draw's."""
    b, nodes = 4, 1000
    sums, scores, decoders = of_unit_features("vector", b, nodes)
    m1, v = scores.split(b, 2)
    assert torch.allclose(m1[..., 0], v.sum(2), rtol=0, atol=1e-15)
    assert not m1[..., 1:].any()
    owned = (v != 0).sum(2) == 1
    assert torch.equal((v != 0).sum(2), torch.where(owned, 1, b))
    assert torch.equal((v * owned[..., None] != 0).sum(1), torch.ones(nodes, b).long())
    value = v[owned].sum(1)
    assert 0.8 <= float(value.min()) < 0.801
    assert 1.199 < float(value.max()) <= 1.2
    assert abs(float(value.mean()) - 1) < 5 * 0.4 / 12**0.5 / value.numel() ** 0.5
    free = b * v[~owned]
    assert 0.99 < float(free.abs().max()) <= 1
    assert abs(float(free.mean())) < 5 * 2 / 12**0.5 / free.numel() ** 0.5
    # which slots are owned, in every node evenly often
    assert (owned.float().mean(0) - 0.5).abs().max() < 5 * 0.5 / nodes**0.5
    # K1 is 1 in owned slots and c m2 in the others; K2 has the neighbour's feature, and c' m2 a'
    k1, k2 = sums[..., 0], sums[..., 1:]
    assert bool((k1[owned] == 1).all())
    assert torch.equal(k2[owned], (v[owned] != 0).to(k2))
    c_m2, c_m2_a = k1[~owned].view(nodes, b), k2[~owned].view(nodes, b, b)
    c = c_m2.norm(dim=1)
    m2 = c_m2 / c[:, None]
    c_a = torch.einsum("ns,nsj->nj", m2, c_m2_a)
    assert torch.allclose(c_m2_a, m2[:, :, None] * c_a[:, None], rtol=0, atol=1e-12)
    assert 0.9 < b * float(c_a.abs().max()) <= 1
    assert abs(float(c_a.sign().mean())) < 5 / c_a.numel() ** 0.5
    # R_n has the number to the power -n where its owner is, and c_n m1 m1' in the other slots
    for n in range(3):
        r = decoders[..., n]
        assert torch.allclose(torch.diagonal(r, 0, 1, 2)[owned], value**-n, rtol=1e-14, atol=0)
        assert not r[owned[:, :, None] != owned[:, None]].any()
        block = r[~owned[:, :, None] & ~owned[:, None]].view(nodes, b, b)
        scale = block.diagonal(0, 1, 2).sum(1)
        assert torch.allclose(block @ block, scale[:, None, None] * block, rtol=0, atol=1e-12)
        assert torch.allclose((block @ m2[..., None]).norm(), torch.tensor(0.0), rtol=0, atol=1e-10)
        for drawn in (scale, c):
            assert 0 <= float(drawn.min()) < 0.01
            assert 0.99 < float(drawn.max()) <= 1
            assert abs(float(drawn.mean()) - 0.5) < 5 / 12**0.5 / nodes**0.5
        pairs = block[:, *torch.triu_indices(b, b, 1)].sign()
        assert abs(float(pairs.mean())) < 5 / pairs.numel() ** 0.5
    mean, error = mean_sign_of_products(m2)
    assert abs(mean) < 5 * error


@pytest.mark.parametrize("form", FORMS)
def test_every_client_meets_its_own_weights(form: str) -> None:
    world, score = random_nodes([3, 1, 4, 2, 8, 5]), Score("smooth", True, 8, 2.0)
    client = torch.tensor([0, 0, 0, 2, 2, 2, 2, 2, 2])[: len(world.x)]
    b = torch.stack([score_vectors(5, k) for k in range(3)])
    weight = draw(9, 3, 5, HEADS * WIDTH)
    moments = world.moments(form, 8)
    found = moments.lay_out(client, 3).attention(weight, b, score_series(score), 2.0)
    for k in (0, 2):
        alone = attention_of(world, moments, b[k], weight[k], score)
        assert torch.allclose(found[client == k], alone[client == k], rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_some_nodes_of_a_message_are_those_of_the_whole(form: str) -> None:
    world, score = random_nodes([3, 1, 4, 2, 8, 5]), Score("smooth", True, 8, 2.0)
    b, weight, moments = score_vectors(5), draw(9, 5, HEADS * WIDTH), world.moments(form, 8)
    whole = attention_of(world, moments, b, weight, score)
    for rows in (torch.tensor([1, 4, 5]), torch.tensor([], dtype=torch.int64)):
        for some in (moments.lay_out(None, 1, rows), moments.lay_out_in_chunks(rows)):
            found = some.attention(weight, b, score_series(score), score.domain)
            assert torch.allclose(found, whole[rows], rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_nodes_laid_out_in_chunks_are_those_of_the_whole(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a chunk for almost every node, in an order of their sizes."""
    monkeypatch.setattr("graphfed.nn.moments.CHUNK", 200)
    world, score = random_nodes([3, 1, 4, 2, 8, 5, 1, 2]), Score("smooth", True, 8, 2.0)
    b, weight, moments = score_vectors(5), draw(9, 5, HEADS * WIDTH), world.moments(form, 8)
    chunked = moments.lay_out_in_chunks(torch.arange(len(world.x)))
    assert len(chunked.chunks) > 4
    found = chunked.attention(weight, b, score_series(score), 2.0)
    assert torch.allclose(found, attention_of(world, moments, b, weight, score), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_any_numbers_are_evaluated_by_the_formula_of_their_form(form: str) -> None:
    """r = sum_n q_n R_n' y^n, or e(D)' K1 without half of its constant, of messages that no server would
    make: every number is used, and where it belongs."""
    sizes, features, degree, domain = [2, 1, 5, 3, 1], 4, 3, 2.5
    slots, series = [2 * b for b in sizes], (0.3, -0.7, 0.4, 0.9)
    entries = [s * s for s in slots]
    sums = draw(1, sum(slots), 1 + features)
    scores = draw(2, sum(slots if form == "vector" else entries), 2 * features)
    decoders = draw(3, sum(entries), degree + 1) if form == "vector" else None
    moments = Moments(torch.tensor(sizes), sums, scores, decoders, HEADS)
    b, weight = draw(4, 2 * features, HEADS), draw(5, features, HEADS * WIDTH)
    constants = np.polynomial.chebyshev.cheb2poly(series) / domain ** np.arange(degree + 1)
    expected = []
    first, first_entry = 0, 0
    for s, e in zip(slots, entries, strict=True):
        k1, k2 = sums[first : first + s, 0], sums[first : first + s, 1:]
        row = []
        for head in range(HEADS):
            if decoders is not None:
                y = scores[first : first + s] @ b[:, head]
                parts = decoders[first_entry : first_entry + e].view(s, s, degree + 1)
                r = sum(q * parts[..., n].t() @ y**n for n, q in enumerate(constants))
            else:
                d = (scores[first_entry : first_entry + e] @ b[:, head]).view(s, s)
                r = sum(q * torch.linalg.matrix_power(d, n).t() @ k1 for n, q in enumerate(constants))
                r = r - constants[0] / 2 * k1
            row.append((r @ k2 @ weight[:, head * WIDTH : (head + 1) * WIDTH]) / (r @ k1))  # type: ignore[operator]
        expected.append(torch.cat(row))
        first, first_entry = first + s, first_entry + e
    every = torch.arange(len(sizes))
    for laid_out in (
        moments.lay_out(None, 1),
        moments.lay_out(None, 1, every),
        moments.lay_out_in_chunks(every),
    ):
        found = laid_out.attention(weight, b, series, domain)
        assert torch.allclose(found, torch.stack(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_neighbourhood_is_padded_once_and_by_less_than_a_half(form: str) -> None:
    sizes = [3, 1, 4, 2, 8, 5, 9, 10, 17, 1, 3]
    world = random_nodes(sizes)
    for group in (groups := world.moments(form, 2).lay_out(None, 1).groups):
        assert group.keys.shape[1] in [2 * w for w in (1, 2, 3, 4, 6, 8, 12, 16, 24)]
    assert sum(len(group.keys) for group in groups) == len(world.neighbourhoods.size)
    for group in groups:
        used = (group.keys != 0).sum(1)
        assert bool((group.keys.shape[1] < 1.5 * used).all())


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_differences(form: str) -> None:
    world, score = random_nodes([3, 1, 4]), Score("smooth", True, 6, 2.0)
    rows = world.moments(form, 6).lay_out(None, 1)
    b, weight = score_vectors(5).requires_grad_(), draw(9, 5, HEADS * WIDTH).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda b, weight: rows.attention(weight, b, score_series(score), 2.0), (b, weight)
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("domain", [2.0, 4.0])
def test_in_float32_degree_16_loses_less_than_1e_5(form: str, domain: float) -> None:
    world, score = random_nodes([1, 4, 7, 2, 20]), Score("smooth", True, 16, domain)
    b, weight = score_vectors(5), draw(9, 5, HEADS * WIDTH)
    exact = attention_of(world, world.moments(form), b, weight, score)
    single = Nodes(world.x.float(), world.neighbourhoods)
    found = attention_of(single, single.moments(form), b.float(), weight.float(), score)
    assert float((found - exact).abs().max()) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_as_many_numbers_are_sent_as_the_formulas_say(form: str) -> None:
    """8 d B^2 + 2 B + 2 B d, and 6 d B + 2 B + 4 (p + 1) B^2, of every node."""
    world = random_nodes([3, 1, 4, 2, 8, 5])
    moments = world.moments(form, 7)
    sent = [moments.sums, moments.scores] + ([] if moments.decoders is None else [moments.decoders])
    assert sum(x.numel() for x in sent) == numbers(form, world.neighbourhoods.size, 5, 7)
    b, d = world.neighbourhoods.size.tolist(), 5
    of_one = {
        "matrix": lambda b: 2 * d * (2 * b) ** 2 + 2 * b + 2 * b * d,
        "vector": lambda b: 2 * d * 2 * b + 2 * b + 2 * b * d + 8 * (2 * b) ** 2,
    }[form]
    assert numbers(form, world.neighbourhoods.size, 5, 7) == sum(of_one(one) for one in b)


def errors_and_bounds(degree: int, form: str = "matrix") -> tuple[float, float]:
    """Of one layer on neighbours of length at most 1, scores within [-2, 2]: the largest error of an output
    row, and the bound ||W|| max ||h|| 2 eta / (1 - eta), eta = eps / e_min (Theorems 3 and 4; one head)."""
    world, score = random_nodes([2, 3, 5, 8, 13], seed=4), Score("smooth", True, degree, 2.0)
    b, weight = score_vectors(5), draw(9, 5, HEADS * WIDTH)
    e = score_function(score)
    grid = np.linspace(-2, 2, 4001)
    eps = np.abs(np.polynomial.chebyshev.chebval(grid / 2, score_series(score)) - e(grid)).max()
    eta = eps / e(np.array(-2.0))
    found = attention_of(world, world.moments(form, degree), b, weight, score)
    off = (found - by_neighbours(world, b, weight, e)).view(len(found), HEADS, WIDTH)
    norms = torch.linalg.matrix_norm(weight.view(5, HEADS, WIDTH).transpose(0, 1), 2)
    scaled = float((off.norm(dim=2) / norms).max())
    return scaled, 2 * eta / (1 - eta) if eta < 1 else np.inf


def test_the_error_to_exact_attention_falls_with_the_degree_and_stays_below_its_bound() -> None:
    found = [errors_and_bounds(degree) for degree in (2, 4, 8, 16, 32)]
    errors, bounds = zip(*found, strict=True)
    assert all(error <= bound for error, bound in found)
    assert all(later < 0.5 * earlier for earlier, later in pairwise(errors))
    assert errors[3] < 1e-4
    assert errors[4] < 1e-7
    assert bounds[3] < 5e-4

"""FedGAT's message gives every neighbour's features away, in either form, whatever is drawn."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import graphfed
from graphfed.audit.attacks.fedgat import (
    Message,
    by_decoders,
    by_eigenvectors,
    by_keys,
    by_moments,
    errors,
    message_of,
)
from graphfed.audit.base import Finding
from graphfed.audit.run import audit
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.methods.fedgat.moment_messages import Neighbourhoods, Pooled
from graphfed.methods.fedgat.pretraining import messages_of
from graphfed.methods.registry import get_method
from graphfed.nn.sparse import SparseMatrix

pytestmark = pytest.mark.slow

METHOD = get_method("fedgat")
Attack = Callable[[Message], Tensor]
DEGREE = 16
ATTACKS = [
    ("vector", by_keys),
    ("vector", by_decoders),
    ("vector", by_moments),
    ("matrix", by_eigenvectors),
    ("matrix", by_moments),
]


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def neighbourhoods(b: int, count: int = 20, features: int = 30, seed: int = 0) -> tuple[Pooled, Tensor]:
    """Nodes with B neighbours each, drawn anew: what the server has, and the features [n, B, F]."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((count * b, features)))
    ids = torch.from_numpy(rng.permutation(10 * count)[:count]).sort()[0]
    neighbourhoods = Neighbourhoods(ids, torch.full((count,), b), torch.arange(count * b))
    return Pooled(x, neighbourhoods), x.view(count, b, features)


@pytest.mark.parametrize(("form", "attack"), ATTACKS)
@pytest.mark.parametrize("b", [1, 2, 5, 16, 40])
def test_every_neighbours_features_come_out(form: str, attack: Attack, b: int) -> None:
    """To 1e-6 in float64. Power sums of up to as many neighbours as the degree, 16."""
    if attack is by_moments and b > 16:
        pytest.skip("more neighbours than power sums")
    pooled, truth = neighbourhoods(b)
    off = errors(attack(message_of(pooled, torch.arange(20), form, DEGREE, 0)), truth)
    assert float(off.max()) < 1e-6


@pytest.mark.parametrize(("form", "attack"), ATTACKS)
def test_in_float32_they_come_out_to_its_precision(form: str, attack: Attack) -> None:
    """Eigenvectors and vectors to 1e-5; power sums, which are ill conditioned, to 1e-3 for 5 neighbours."""
    pooled, truth = neighbourhoods(5)
    single = Pooled(pooled.x.float(), pooled.neighbourhoods)  # type: ignore[union-attr]
    off = errors(attack(message_of(single, torch.arange(20), form, DEGREE, 0)), truth)
    assert float(off.max()) < (1e-3 if attack is by_moments else 1e-5)


@pytest.mark.parametrize(("form", "attack"), [("vector", by_keys), ("matrix", by_eigenvectors)])
def test_nodes_alike_and_nodes_without_features_come_out_too(form: str, attack: Attack) -> None:
    """Equal eigenvalues, and eigenvalues of 0."""
    pooled, truth = neighbourhoods(4)
    assert isinstance(pooled.x, Tensor)
    x = pooled.x.clone()
    x[1::4] = x[::4]
    x[2::4] = 0
    off = errors(
        attack(message_of(Pooled(x, pooled.neighbourhoods), torch.arange(20), form, DEGREE, 0)),
        x.view(truth.shape),
    )
    assert float(off.max()) < 1e-6


def test_of_a_node_with_168_neighbours_all_come_out() -> None:
    """As many as the largest neighbourhood of Cora has: 338 eigenvalues."""
    pooled, truth = neighbourhoods(169, count=1)
    off = errors(by_eigenvectors(message_of(pooled, torch.arange(1), "matrix", DEGREE, 0)), truth)
    assert off.shape == (1, 169)
    assert float(off.max()) < 1e-6


@pytest.mark.parametrize("form", ["vector", "matrix"])
@pytest.mark.parametrize("part", [1, 8 * 5 * 100 * 7, 1 << 26])
def test_the_message_is_the_servers_however_many_features_are_made_at_a_time(
    form: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2 and K2 of some features need only these; all 30 at once, 7 or 1."""
    monkeypatch.setattr("graphfed.audit.attacks.fedgat.PART", part)
    pooled, _ = neighbourhoods(5, count=5)
    sums, scores, decoders = messages_of(pooled, form, DEGREE, 0)
    found = message_of(pooled, torch.arange(5), form, DEGREE, 0)
    assert torch.equal(found.keys.flatten(), sums[:, 0])
    assert torch.allclose(found.sums.flatten(0, 1), sums[:, 1:], rtol=0, atol=1e-14)
    assert torch.allclose(found.scores.reshape(-1, 30), scores[:, 30:], rtol=0, atol=1e-14)
    if decoders is not None:
        assert found.decoders is not None
        assert torch.equal(found.decoders.flatten(0, 2), decoders)


def test_what_was_found_elsewhere_is_no_recovery() -> None:
    """The measure: features of other neighbourhoods are far off."""
    pooled, truth = neighbourhoods(3)
    found = by_keys(message_of(pooled, torch.arange(20), "vector", DEGREE, 0))
    assert float(errors(found.roll(1, 0), truth).min()) > 0.1


def found(folder: Path, **options: object) -> Finding:
    torch.set_default_dtype(torch.float32)
    settings = {"evaluation": "direct", **options}
    graphfed.run(
        "fedgat", data="digits", clients=3, rounds=1, threads=1, out=folder / "run", settings=settings
    )
    return audit(folder / "run").findings["fedgat_features"]


@pytest.mark.parametrize("form", ["vector", "matrix"])
def test_the_audit_of_a_run_reads_every_neighbour_at_another_client(form: str, tmp_path: Path) -> None:
    """Also of a run that was evaluated directly: the message that it stands for is made."""
    finding = found(tmp_path, form=form)
    assert finding.value == 1
    assert finding.leaks
    assert finding.details["recovered"] == finding.details["neighbours"] > 1000
    assert finding.details["largest_error"] < 1e-4
    assert finding.verdict.startswith("leaks exactly")


@pytest.mark.parametrize(
    ("form", "attack", "largest"),
    [
        ("vector", by_keys, 169),
        ("matrix", by_eigenvectors, 6),
        pytest.param("matrix", by_eigenvectors, 169, marks=pytest.mark.on_demand),
    ],
)
def test_all_of_coras_neighbours_come_out(form: str, attack: Attack, largest: int, real_data: Path) -> None:
    """In float64, of all 2 708 nodes, the one with 168 neighbours too. Each counts itself: with both ends
    of 5 278 edges, 13 264. The quick one of the matrices stops at neighbourhoods of 6."""
    graph = load("cora", data_dir=real_data)
    assert isinstance(graph, Graph)
    ends = np.concatenate([graph.edges, graph.edges[::-1]], 1)
    every = np.arange(graph.num_nodes)
    row, member = np.concatenate([every, ends[0]]), np.concatenate([every, ends[1]])
    order = np.argsort(row, kind="stable")
    size = torch.from_numpy(np.bincount(row))
    x = SparseMatrix.from_scipy(graph.x)
    neighbourhoods = Neighbourhoods(torch.from_numpy(every), size, torch.from_numpy(member[order]))
    pooled, starts = Pooled(x, neighbourhoods), size.cumsum(0) - size
    assert int(size.max()) == 169
    assert int(size.sum()) == 13_264
    worst, neighbours = 0.0, 0
    for b in torch.unique(size[size <= largest]).tolist():
        for rows in (size == b).nonzero()[:, 0].split(max(1, 2**24 // (8 * x.shape[1] * b * b))):
            members = torch.cat([neighbourhoods.member[starts[i] : starts[i] + b] for i in rows.tolist()])
            truth = x.select_rows(members).to_dense().view(len(rows), b, -1)
            off = errors(attack(message_of(pooled, rows, form, DEGREE, 0)), truth)
            worst, neighbours = max(worst, float(off.max())), neighbours + off.numel()
    assert worst < 1e-6
    assert neighbours == int(size[size <= largest].sum())

"""FedGAT's scores are watched: what the largest is, and word when the polynomial is not for them."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from worlds import World, cohorts_of, config_of, last_round_stands, make_world, run_local

from graphfed.federation import Federation
from graphfed.methods.fedgat.moment_messages import Neighbourhoods, Pooled
from graphfed.methods.fedgat.polynomial_gat import (
    Score,
    error_between,
    first_facts,
    range_changes,
    score_facts,
    score_function,
    score_range,
    score_vectors,
)
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.nn.sparse import SparseMatrix
from graphfed.runtime.local import stacked

SCORE = Score("smooth", True, 16, 4.0)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def example(heads: int = 3, features: int = 6) -> tuple[Pooled, dict[str, torch.Tensor]]:
    """Four nodes, with the neighbours 0: 1 2; 1: 0; 2: 0; 3: none."""
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((4, features)))
    member = torch.tensor([0, 1, 2, 1, 0, 2, 0, 3])
    weights = {
        "layers.0.weight": torch.from_numpy(rng.standard_normal((features, heads * 2))),
        "layers.0.att_src": torch.from_numpy(rng.standard_normal((heads, 2))),
        "layers.0.att_dst": torch.from_numpy(rng.standard_normal((heads, 2))),
    }
    return Pooled(x, Neighbourhoods(torch.arange(4), torch.tensor([3, 2, 2, 1]), member)), weights


def test_the_range_is_that_of_the_scores_of_all_edges() -> None:
    """a_target . W h_i + a_source . W h_j, edge by edge; sparse features too."""
    pooled, weights = example()
    assert isinstance(pooled.x, torch.Tensor)
    found = []
    for i, neighbours in enumerate([(0, 1, 2), (1, 0), (2, 0), (3,)]):
        for j in neighbours:
            for head in range(3):
                w = weights["layers.0.weight"][:, 2 * head : 2 * head + 2]
                here = weights["layers.0.att_dst"][head] @ (pooled.x[i] @ w)
                found.append(float(here + weights["layers.0.att_src"][head] @ (pooled.x[j] @ w)))
    low, high = score_range(pooled, weights)
    assert (low, high) == pytest.approx((min(found), max(found)), abs=1e-12)
    sparse = Pooled(SparseMatrix.from_dense(pooled.x), pooled.neighbourhoods)
    assert score_range(sparse, weights) == pytest.approx((low, high), abs=1e-12)


def test_of_features_that_are_not_read_there_is_a_bound() -> None:
    """No features of length at most 1 have scores beyond it, and some reach it: those along b of one head."""
    pooled, weights = example()
    assert isinstance(pooled.x, torch.Tensor)
    unread = Pooled(pooled.x[:, :0], pooled.neighbourhoods)
    low, high = score_range(unread, weights)
    assert low == -high
    x = torch.nn.functional.normalize(pooled.x, dim=1)
    assert max(map(abs, score_range(Pooled(x, pooled.neighbourhoods), weights))) < high
    target, source = score_vectors({**weights}).chunk(2)
    worst = int((target.norm(dim=0) + source.norm(dim=0)).argmax())
    x[0], x[1] = (torch.nn.functional.normalize(v[:, worst], dim=0) for v in (target, source))
    assert score_range(Pooled(x, pooled.neighbourhoods), weights)[1] == pytest.approx(high, abs=1e-12)


def test_facts_keep_the_largest_score_and_error() -> None:
    pooled, weights = example()
    before = first_facts("cpu")
    after = score_facts(pooled, weights, before, SCORE)
    small = score_facts(pooled, {k: w / 100 for k, w in weights.items()}, after, SCORE)
    assert {k: float(v) for k, v in small.items()} == {k: float(v) for k, v in after.items()}


def test_the_largest_score_is_the_farthest_from_0_on_either_side() -> None:
    """So it is the same where all scores have the other sign; and exact where weights are in single
    precision by default."""
    pooled, weights = example()
    low, high = score_range(pooled, weights)
    assert -low > high
    torch.set_default_dtype(torch.float32)
    for sign in (1, -1):
        turned = {k: w if k.endswith("weight") else sign * w for k, w in weights.items()}
        facts = score_facts(pooled, turned, first_facts("cpu"), SCORE)
        assert float(facts["largest_score"]) == max(-low, high)
        assert float(facts["polynomial_error"]) == error_between(*sorted((sign * low, sign * high)), SCORE)


@pytest.mark.parametrize("psi", ["smooth", "leaky_relu"])
def test_the_error_is_that_of_theorem_3(psi: str) -> None:
    """On [-2, 2]: eps / e_min, e_min = exp(psi(-2)), with eps up to those of interpolants (dossier 4.2)."""
    found = [error_between(-2, 2, Score(psi, True, p, 2.0)) for p in (2, 4, 8, 16)]  # type: ignore[arg-type]
    eps = {"leaky_relu": (0.63, 0.107, 0.062, 0.031), "smooth": (0.68, 0.032, 4.0e-3, 9.5e-5)}[psi]
    least = np.exp(score_function(Score(psi, False, 2, 2.0))(np.array(-2.0)))  # type: ignore[arg-type]
    assert all(0.5 * e / least < error <= 1.05 * e / least for error, e in zip(found, eps, strict=True))


@pytest.mark.parametrize(("largest", "expected"), [(3.9, {}), (4.0, {}), (4.1, {"outside": 5})])
def test_word_is_given_once_when_scores_leave_the_domain(largest: float, expected: dict[str, int]) -> None:
    facts = [{"largest_score": torch.tensor(x), "polynomial_error": torch.tensor(0)} for x in (1.0, largest)]
    assert range_changes(facts[0], facts[1], SCORE) == expected
    assert range_changes(facts[1], facts[1], SCORE) == {}


@pytest.mark.parametrize(("error", "expected"), [(0.1, {}), (0.11, {"error": 20}), (7.0, {"error": 100})])
def test_word_is_given_of_a_polynomial_that_is_far_off(error: float, expected: dict[str, int]) -> None:
    facts = [{"largest_score": torch.tensor(1.0), "polynomial_error": torch.tensor(x)} for x in (0.0, error)]
    assert range_changes(facts[0], facts[1], SCORE) == expected


def world() -> World:
    return last_round_stands(make_world())


@pytest.mark.parametrize("placement", ["stacked", "one at a time"])
def test_a_run_says_that_its_domain_is_too_small(placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(Federation, "log", lambda fed, message: messages.append(message))
    outcome, _ = run_local("fedgat", world(), placement, domain=0.25)
    warnings = [message for message in messages if "outside domain=0.25" in message]
    assert len(warnings) == 1
    assert outcome.details["largest_score"] > 0.25
    messages.clear()
    outcome, _ = run_local("fedgat", world(), placement)
    assert not [message for message in messages if "outside" in message or "has an error of" in message]
    assert 0 < outcome.details["largest_score"] < 4
    assert outcome.details["polynomial_error"] < 0.02
    for domain, off in ((4, "100 % or more"), (0.25, "up to 20 %")):
        messages.clear()
        outcome, _ = run_local("fedgat", world(), placement, degree=2, domain=domain)
        (message,) = [
            message for message in messages if f"degree=2 and domain={domain:g} has an error of" in message
        ]
        assert f" has an error of {off} for the scores of this run; set a higher degree" in message
        assert (outcome.details["polynomial_error"] >= 1) == (domain == 4)


@pytest.mark.parametrize(
    ("settings", "watched"),
    [
        ({"features": "raw"}, True),
        ({"features": "unit"}, True),
        ({"features": "unit", "exchange": "encrypted", "protocols": "simulated"}, True),
        ({"features": "raw", "exchange": "encrypted", "protocols": "simulated"}, False),
    ],
    ids=str,
)
def test_after_a_round_the_facts_are_those_of_its_weights_where_scores_can_be_watched(
    settings: dict[str, str], watched: bool
) -> None:
    here = make_world(nodes=12)
    method = get_method("fedgat")
    config = config_of(method, **settings)
    fed = stacked(here.clients, simulated=is_simulated(config))
    state = method.setup(
        fed, fed.locate("clients", "data", cohorts_of(here, fed.workers, config)), here.task, config
    )
    (before,) = state.values["facts"].parts
    pooled = state.prepared.pooled
    assert (pooled is not None) == watched
    state = method.round(fed, state, config, 1)
    (after,) = state.values["facts"].parts
    (weights,) = state.weights.parts
    expected = (
        before
        if pooled is None
        else score_facts(pooled.parts[0], weights, before, config.network.scores.polynomial)
    )
    assert {name: float(fact) for name, fact in after.items()} == {
        name: float(fact) for name, fact in expected.items()
    }
    assert (float(after["largest_score"]) > 0) == watched
    names = {entry.name for entry in fed.ledger.entries if entry.phase == "control"}
    assert names == {"fedgat/size", *(["fedgat/score_range"] if watched else [])}


def test_with_encrypted_features_the_bound_is_watched_where_their_length_is_known() -> None:
    plaintext, _ = run_local("fedgat", world(), features="unit")
    cohorts_are_unit, _ = run_local(
        "fedgat", world(), features="unit", exchange="encrypted", protocols="simulated"
    )
    assert cohorts_are_unit.details["largest_score"] > plaintext.details["largest_score"]
    unknown, _ = run_local("fedgat", world(), features="raw", exchange="encrypted", protocols="simulated")
    assert unknown.details["largest_score"] == 0
    known, _ = run_local("fedgat", world(), features="raw")
    assert known.details["largest_score"] > plaintext.details["largest_score"]

"""What a client computes of other clients' nodes from the sums of attention_sums: single neighbours exactly,
others by subtraction, features where W has enough columns, and none with min_group in one round."""

from typing import Any

import numpy as np
import pytest
from audited_runs import SPLIT, planned

from graphfed.audit.attacks import attention_rounds, attention_sums
from graphfed.audit.base import Finding


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the attack over rounds to test_attention_rounds.py."""
    monkeypatch.setattr(attention_rounds, "MEMBERS", 0)


def found(**settings: Any) -> Finding:
    """The finding of the check; the run itself is not needed."""
    options = {"data": "social", "split": SPLIT, "clients": 4}
    return attention_sums.run(
        planned("attention_sums", **options, settings={"data.num_nodes": 200, **settings})
    )


@pytest.mark.parametrize("exchange", ["plaintext", "secure"])
def test_single_neighbours_are_computed_and_subtracted_from_other_sums(exchange: str) -> None:
    finding = found(exchange=exchange)
    figures = finding.details
    assert figures["alone"] > 0
    assert figures["recovered"] >= figures["alone"]
    assert finding.leaks
    assert finding.value == figures["recovered"] / figures["neighbours"]
    assert figures["largest_error"] <= attention_sums.TOLERANCE
    assert "leaks exactly" in finding.verdict


def test_totals_over_clients_give_away_fewer_than_the_sums_of_single_clients() -> None:
    assert found(exchange="secure").details["recovered"] < found().details["recovered"]


def test_with_enough_columns_the_features_follow_in_one_round() -> None:
    wide, narrow = found(hidden=64).details, found(hidden=1, heads=2).details
    assert wide["features"] == wide["recovered"] > 0
    assert narrow["features"] == 0 < narrow["recovered"]


@pytest.mark.parametrize("exchange", ["plaintext", "secure"])
def test_with_min_group_no_neighbour_is_single_and_means_of_groups_remain(exchange: str) -> None:
    finding = found(exchange=exchange, min_group=2)
    assert finding.details["recovered"] == 0
    assert not finding.leaks
    assert finding.details["similarity"] > finding.details["similarity_without"]
    assert finding.verdict.startswith("not measured: one round shows no single neighbour")


def test_subtraction_recovers_a_member_that_is_in_no_sum_of_its_own() -> None:
    """Targets 0 and 1 have the groups {2} and {2, 3}: 2 is alone, and 3 follows."""
    rng = np.random.default_rng(0)
    z, attention, target = rng.normal(size=(4, 2, 3)), rng.normal(size=(2, 3)), rng.normal(size=(4, 2))

    def total(i: int, members: set[int]) -> np.ndarray:
        rows = []
        for j in members:
            a, c = target[i], (z[j] * attention).sum(1)
            e = np.exp(attention_sums._leaky(a + c) - attention_sums._leaky(a))[:, None]
            rows.append(e * np.concatenate([z[j], np.ones((2, 1))], 1))
        return np.sum(rows, 0)

    groups = {0: [attention_sums.Group(i, set(m), total(i, m)) for i, m in ((0, {2}), (1, {2, 3}))]}
    known = attention_sums._peel(groups, target, attention)
    assert known.keys() == {(0, 2), (0, 3)}
    assert known[0, 2][1]
    assert not known[0, 3][1]
    for j in (2, 3):
        assert np.allclose(known[0, j][0], z[j], atol=1e-12)

"""What a neighbour reads in embeddings: its model is what is sent, and it finds what they determine."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audited_runs import SPLIT, planned

import graphfed
from graphfed.audit.attacks import lumos as lumos_features
from graphfed.audit.attacks.lumos import Seen, overhear, predicted, rounds_used, solve
from graphfed.audit.base import AuditedRun
from graphfed.audit.run import audit
from graphfed.methods.lumos.config import LumosConfig

pytestmark = pytest.mark.slow

FEATURES = 24


def settings_of(**settings: Any) -> dict[str, Any]:
    return {"data.num_nodes": 80, "data.features": FEATURES, "data.communities": 3, **settings}


def opened(rounds: int, **settings: Any) -> AuditedRun:
    return planned("lumos", rounds, data="social", split=SPLIT, settings=settings_of(**settings))


def config_of(audited: AuditedRun) -> LumosConfig:
    assert isinstance(audited.config.settings, LumosConfig)
    return audited.config.settings


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dropout": 0.5, "decode": "unbiased", "pad_bins": 3},
        {"backbone": "gat", "hidden": 4, "heads": 3},
        {"layers": 3, "trainer": "general"},
        {"protocols": "real", "degree_bits": 8, "data.num_nodes": 12, "data.average_degree": 4},
    ],
    ids=["gcn", "dropout", "gat", "three layers", "secure"],
)
def test_with_the_true_features_the_attackers_model_is_what_is_sent(settings: dict[str, Any]) -> None:
    audited = opened(3, **settings)
    seen, truth, _ = overhear(audited)
    assert len(seen.weights) == 3
    for number, weights in enumerate(seen.weights):
        product = truth.float() @ weights["layers.0.weight"]
        there = predicted(seen, number, product, config_of(audited).network)
        torch.testing.assert_close(there, seen.embeddings[number], atol=1e-6, rtol=1e-5)
        others = predicted(seen, number, product.roll(1, 0), config_of(audited).network)
        assert (others - seen.embeddings[number]).abs().max() > 1e-3


def test_rounds_enough_to_determine_the_features_give_them_all_and_few_do_not() -> None:
    """Sixty rounds of 16 numbers for 24 features, and one round of 4."""
    many = lumos_features.run(opened(60, hidden=16, noise_seed=0))
    assert many.details["rank"] == FEATURES
    assert many.details["read"] >= 9
    assert many.details["guessed"] <= 1
    assert many.value is not None
    assert many.value > 0.95
    assert many.leaks
    assert "from 60 of 60 rounds: 960 numbers, about 24 independent" in many.result
    few = lumos_features.run(opened(1, hidden=4, noise_seed=0))
    assert few.details["rank"] <= 4
    assert few.details["read"] <= few.details["guessed"]
    assert few.value is not None
    assert few.value < 0.5


def test_embeddings_of_other_devices_do_not_give_a_device_away() -> None:
    """The measure is of what is sent: with embeddings that belong to other pairs nothing is found."""
    audited = opened(60, hidden=16, noise_seed=0)
    seen, truth, _ = overhear(audited)
    right, _ = solve(seen, config_of(audited))
    wrong, _ = solve(dataclasses.replace(seen, embeddings=seen.embeddings.roll(1, 1)), config_of(audited))
    close = [int(((found - truth).abs().amax(1) < 0.05).sum()) for found in (right, wrong)]
    assert close[0] >= 9
    assert close[1] <= 1


def test_noise_that_can_be_drawn_again_is_and_other_noise_is_said_to_be_new(tmp_path: Path) -> None:
    findings = {seed: lumos_features.run(opened(1, noise_seed=seed)) for seed in (5, None)}
    assert findings[5].details["same_noise"] is True
    assert "drawn again" not in findings[5].result
    assert findings[None].details["same_noise"] is False
    assert "the noise was drawn again from the same distribution" in findings[None].result
    again: list[Seen] = [overhear(opened(2, noise_seed=5))[0] for _ in range(2)]
    assert torch.equal(again[0].embeddings, again[1].embeddings)
    other = overhear(opened(2))[0]
    assert not torch.equal(other.sent, again[0].sent)


def test_with_one_layer_nothing_of_a_devices_own_is_in_what_it_sends_and_other_trees_are_not_measured() -> (
    None
):
    one = lumos_features.run(opened(1, layers=1))
    assert one.leaks is False
    for settings in ({"virtual_nodes": False}, {"layers": 4}):
        found = lumos_features.run(opened(1, **settings))
        assert found.leaks is None
        assert found.value is None
        assert found.verdict == "not measured"


def test_the_rounds_are_spread_over_the_run_and_give_no_more_numbers_than_are_used() -> None:
    assert rounds_used(1, 16) == [1]
    assert rounds_used(5, 16) == [1, 2, 3, 4, 5]
    spread = rounds_used(300, 16)
    assert (spread[0], spread[-1], len(spread)) == (1, 300, 100)
    assert set(np.diff(spread)) == {3, 4} or set(np.diff(spread)) == {3}
    assert rounds_used(300, 5000) == [1]


@pytest.mark.parametrize("task", ["classification", "link_prediction"])
def test_the_check_is_made_of_runs_of_lumos_of_both_tasks(task: str, tmp_path: Path) -> None:
    split = "edges:0.8,0.05,0.15" if task == "link_prediction" else SPLIT
    graphfed.run(
        "lumos", task=task, data="social", split=split, rounds=2, out=tmp_path / "run", settings=settings_of()
    )
    assert audit(tmp_path / "run").findings["lumos_features"].details["rounds"] == 2


@pytest.mark.parametrize("method", ["lumos", "lpgnn", "naive_fedgnn"])
def test_no_check_sets_up_a_method_that_releases_noise_but_the_one_that_says_so(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"data.num_nodes": 60}
    graphfed.run(
        method, partition="ego", data="social", split=SPLIT, rounds=1, settings=settings,
        out=tmp_path / "run",
    )  # fmt: skip

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("set up again")

    monkeypatch.setattr("graphfed.audit.base.record_rounds", refuse)
    findings = audit(tmp_path / "run").findings
    assert set(findings) - {"lumos_features"} == {"plaintext_transfers", "membership"}

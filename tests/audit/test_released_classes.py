"""What the receivers of a released class can guess: no more than epsilon allows, and all without noise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from audited_runs import SPLIT, planned

import graphfed
from graphfed.audit.attacks import prediction_release as released_classes
from graphfed.audit.attacks.prediction_release import Received, bound, guess, overhear, response
from graphfed.audit.base import AuditedRun
from graphfed.audit.run import audit
from graphfed.privacy.local import response_matrix

SETTINGS = {"data.num_nodes": 600, "data.communities": 4, "release_round": 4, "noise_seed": 0}


def opened(**settings: Any) -> AuditedRun:
    return planned("prediction_release", 6, data="social", split=SPLIT, settings={**SETTINGS, **settings})


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_the_success_of_all_receivers_is_the_bound_of_epsilon_to_within_its_error(epsilon: float) -> None:
    """Four standard errors: a false alarm in 16 000 runs, and the seed is fixed."""
    found = released_classes.run(opened(epsilon=epsilon))
    assert found.value is not None
    most, nodes = found.details["bound"], found.details["nodes"]
    error = (most * (1 - most) / nodes) ** 0.5
    # The nodes that have a receiver need not have exactly the classes of all nodes.
    assert abs(found.value - most) <= 4 * error + 0.01
    assert found.details["values"] > 2 * nodes, "most nodes have several receivers"
    assert f"epsilon {epsilon:g} bounds this to {100 * most:.1f} %" in found.result


def test_without_noise_the_receivers_know_every_class() -> None:
    found = released_classes.run(opened(epsilon=60.0))
    assert found.value == 1.0
    assert found.no_signal is not None
    assert found.no_signal < 0.9
    assert found.leaks
    assert "by design" in found.verdict


def test_the_receivers_get_one_value_of_each_node_and_guess_its_predicted_class() -> None:
    received, truth, frequency = overhear(opened(epsilon=1.0))
    for node in range(len(truth)):
        assert len(received.value[received.node == node].unique()) == 1
    assert int(frequency.sum()) == 600
    matrix = response_matrix(1.0, len(frequency))
    first = torch.stack([received.value[received.node == node][0] for node in range(len(truth))])
    kept = (first == truth).double().mean()
    assert float(kept) == pytest.approx(float(matrix[0, 0]), abs=4 * 0.5 / len(truth) ** 0.5)


def test_independent_noise_for_every_receiver_would_exceed_the_bound() -> None:
    """The attack can find what the method must not do."""
    generator = torch.Generator().manual_seed(0)
    n, epsilon, prior = 2000, 0.5, torch.full((3,), 1 / 3)
    truth = torch.randint(0, 3, (n,), generator=generator)
    node = torch.arange(n).repeat_interleave(12)
    chances = response(epsilon, 3)[truth[node]]
    value = torch.multinomial(chances, 1, generator=generator)[:, 0]
    right = float((guess(Received(node, value), prior, epsilon) == truth).double().mean())
    assert right > bound(prior, epsilon) + 0.1
    once = value[::12].repeat_interleave(12)
    right = float((guess(Received(node, once), prior, epsilon) == truth).double().mean())
    assert right == pytest.approx(bound(prior, epsilon), abs=4 * 0.5 / n**0.5)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 2.0, 40.0])
def test_the_bound_is_the_probability_that_the_likeliest_class_is_right(epsilon: float) -> None:
    equal = torch.full((5,), 0.2)
    assert bound(equal, epsilon) == pytest.approx(1 / (1 + 4 * 2.718281828459045**-epsilon))
    skewed = torch.tensor([0.9, 0.05, 0.05], dtype=torch.float64)
    assert bound(skewed, epsilon) >= 0.9 - 1e-12
    assert bound(skewed, 1e-6) == pytest.approx(0.9)


def test_one_client_with_all_nodes_sends_no_class() -> None:
    alone = planned("prediction_release", 2, data="social", clients=1, partition="random")
    found = released_classes.run(alone)
    assert found.leaks is False
    assert found.value is None


def test_the_check_runs_in_an_audit_of_a_finished_run(tmp_path: Path) -> None:
    graphfed.run(
        "prediction_release",
        data="social",
        split=SPLIT,
        rounds=6,
        out=tmp_path / "run",
        settings={**SETTINGS, "data.num_nodes": 120, "noise_seed": None},
    )
    found = audit(tmp_path / "run").findings["released_classes"]
    assert found.details["same_noise"] is False

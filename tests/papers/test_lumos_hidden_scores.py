"""Scores with aggregation=secure: what the server reads of the sum over all clients is what it would have
worked out of each client's own, and it has nothing else of them."""

from typing import Any

import numpy as np
import pytest
import torch
from link_worlds import link_world
from protections import protection
from scipy.integrate import trapezoid
from sklearn.metrics import roc_auc_score
from torch import Tensor
from worlds import World, make_world

from graphfed.audit.transcript import _Recording
from graphfed.data.partitions.partition import partition
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.tasks.base import AnyTask
from graphfed.tasks.evaluation import Scored
from graphfed.tasks.link_prediction import TASK as LINKS
from graphfed.tasks.node_classification import TASK as NODES

CLIENTS = 3


def scores_of(
    evaluation: AnyTask, world: Any, outputs: Tensor, form: str, name: str = "val"
) -> tuple[Scored, _Recording, Cohort]:
    """The scores of some validation outputs, and what was sent for them; form: of the protection (see
    `protection`); name: "val", or "final_val" with the metrics of every score's rank."""
    chosen: dict[str, Any] = protection("aggregation", form)
    config = get_method("fedavg").configure(chosen)
    fed = _Recording(CLIENTS, "cpu", simulated=is_simulated(config))
    cohort = make_cohort(world.graph, world.split, world.partition, range(CLIENTS))
    data, given = (fed.locate("clients", name, [part]) for name, part in (("d", cohort), ("o", outputs)))
    prepared = evaluation.prepare(fed, data, world.task, config)
    with fed.phase("eval", round_number=1):
        _, scored = evaluation.score(fed, data, given, "val", name, prepared, config)
    return scored.parts[0], fed, cohort


def shared_world() -> World:
    """Some nodes have two owners or three, each of whom counts for a part."""
    world = make_world(3)
    return World(world.graph, world.split, partition(world.graph, "edges_uniform", CLIENTS, 0))


def some_logits(world: World, seed: int) -> Tensor:
    cohort = make_cohort(world.graph, world.split, world.partition, range(CLIENTS))
    return torch.randn(int(cohort.val.sum()), 3, generator=torch.Generator().manual_seed(seed)) * 5


@pytest.mark.parametrize("form", ["real", "simulated"])
@pytest.mark.parametrize("world", [make_world(2), shared_world()], ids=["own nodes", "shared nodes"])
def test_counts_of_classes_are_the_same_and_so_is_every_metric_of_them(world: World, form: str) -> None:
    """The loss and the mean accuracy of clients within the fixed point of the sum."""
    logits = some_logits(world, 1)
    plaintext, _, _ = scores_of(NODES, world, logits, "plaintext", "final_val")
    hidden, fed, _ = scores_of(NODES, world, logits, form, "final_val")
    assert {"auc", "average_precision"} <= {*plaintext.metrics}
    assert hidden.report == plaintext.report
    rounded = ("loss", "client_accuracy")
    for name in rounded:
        assert hidden.metrics[name] == pytest.approx(plaintext.metrics[name], abs=CLIENTS * 2.0**-25)
    exact = {**hidden.metrics, **dict.fromkeys(rounded)}
    assert exact == {**plaintext.metrics, **dict.fromkeys(rounded)}
    sent = {e.name.partition("/")[0] for e in fed.ledger.entries}
    assert sent - {"final_val_bins"} == {"scores", "selection", "final_val_refine"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_predictions_that_are_not_finite_are_lost_in_a_hidden_sum_too(bad: float) -> None:
    world = make_world(2)
    logits = some_logits(world, 2)
    logits[3, 1] = bad
    plaintext, _, _ = scores_of(NODES, world, logits, "plaintext")
    hidden, _, _ = scores_of(NODES, world, logits, "simulated")
    assert plaintext.lost
    assert hidden.lost
    assert hidden.report == plaintext.report
    assert np.isfinite(hidden.metrics["loss"])


@pytest.mark.parametrize("form", ["real", "simulated"])
def test_the_hidden_area_is_that_of_the_scores_within_a_thousandth(form: str) -> None:
    world = link_world(3)
    count = len(make_cohort(world.graph, world.split, world.partition, range(CLIENTS)).pairs("val"))
    scores = torch.randn(count, generator=torch.Generator().manual_seed(3)) * 3
    plaintext, _, cohort = scores_of(LINKS, world, scores, "plaintext")
    hidden, _, _ = scores_of(LINKS, world, scores, form)
    assert cohort.links is not None
    label = cohort.links.label[cohort.pairs("val")].numpy()
    assert plaintext.metrics["auc"] == pytest.approx(roc_auc_score(label, scores), abs=1e-12)
    assert hidden.metrics["auc"] == pytest.approx(plaintext.metrics["auc"], abs=0.001)
    assert hidden.metrics["loss"] == pytest.approx(plaintext.metrics["loss"], abs=CLIENTS * 2.0**-25)
    curve = np.array(hidden.report["test_roc"])
    assert trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(hidden.metrics["auc"], abs=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1e39])
def test_a_pair_without_a_finite_score_is_lost_in_a_hidden_sum_too(bad: float) -> None:
    world = link_world(3)
    count = len(make_cohort(world.graph, world.split, world.partition, range(CLIENTS)).pairs("val"))
    scores = torch.zeros(count, dtype=torch.float64)
    assert not scores_of(LINKS, world, scores, "simulated")[0].lost
    scores[5] = bad
    hidden, _, _ = scores_of(LINKS, world, scores, "simulated")
    assert hidden.lost
    assert np.isfinite(hidden.metrics["loss"])


def test_the_words_that_reach_the_server_of_a_client_are_new_in_every_sum_and_add_up_to_no_count() -> None:
    """The same scores twice: masked, no word is what it was; simulated, all are, and small."""
    world = make_world(2)
    logits = some_logits(world, 1)
    seen = {}
    for form in ("real", "simulated"):
        for again in (False, True):
            _, fed, _ = scores_of(NODES, world, logits, form)
            # The first sum agrees on the metric that selects rounds; scores may be counted again.
            _, transfer, *_ = [c for c in fed.observed_transfers if c.name == "scores/masked"]
            seen[form, again] = np.ascontiguousarray(transfer.payload.numpy()[:, 8:]).view(np.int64).copy()
    assert not (seen["real", False] == seen["real", True]).any()
    assert (np.abs(seen["real", False]) > 2**40).mean() > 0.99
    assert np.array_equal(seen["simulated", False], seen["simulated", True])
    assert (np.abs(seen["simulated", False]) < 2**40).all()

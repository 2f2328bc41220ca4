"""SAPGNN on Cora with two clients, a server and real secure pooling, every place a process of its own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from graphfed.data.datasets import load
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.federation import Ledger
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.methods.base import Task
from graphfed.methods.registry import get_method
from graphfed.runs.processes import train_in_processes
from graphfed.runtime.processes import Workers
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import default_settings

pytest.importorskip("cryptography", reason="secure pooling needs the extra 'secure'")

pytestmark = pytest.mark.on_demand


@pytest.fixture(scope="module")
def cohorts(real_data: Path) -> tuple[list[Cohort], Task]:
    graph = load("cora", real_data)
    split, parts = make_split(graph, "public", 0), partition(graph, "edges_uniform", 2, 0)
    return [make_cohort(graph, split, parts, [k]) for k in range(2)], Task(graph.num_features, 7)


def trained(cohorts: tuple[list[Cohort], Task], **settings: Any) -> tuple[Outcome, Ledger]:
    method = get_method("sapgnn")
    options = {
        **default_settings(method, preset="paper"),
        "hidden": 16,
        "dropout": 0.0,
        "weight_decay": 0.0,
        "eval_every": 5,
    }
    config = method.configure(settings, options)
    with Workers([(0,), (1,)]) as clients:
        return train_in_processes(method, *cohorts, config, running=clients)


def weights(outcome: Outcome) -> dict[str, torch.Tensor]:
    values = outcome.state.values
    return {
        f"{place}/{name}": w for place in ("local", "global") for name, w in values[place].parts[0].items()
    }


def test_the_gradients_of_the_first_epoch_are_those_of_plaintext_pooling_within_fixed_point(
    cohorts: tuple[list[Cohort], Task],
) -> None:
    """A step of SGD with learning rate 1 from the same weights: its difference is the gradients'."""
    step = {"optimizer": "sgd", "lr": 1.0, "rounds": 1}
    plaintext, hidden = (weights(trained(cohorts, pooling=p, **step)[0]) for p in ("plaintext", "secure"))
    moved = 0.0
    for name, w in plaintext.items():
        assert torch.allclose(hidden[name], w, rtol=0, atol=2e-4), name
        moved += float((hidden[name] - w).abs().sum())
    assert moved > 0, "the fixed point leaves a trace: else this compared plaintext with plaintext"


def test_five_epochs_learn_what_they_learn_in_plaintext_at_the_bytes_of_the_simulation(
    cohorts: tuple[list[Cohort], Task],
) -> None:
    plaintext, _ = trained(cohorts, pooling="plaintext", rounds=5)
    hidden, ledger = trained(cohorts, pooling="secure", rounds=5)
    simulated, counted = trained(cohorts, pooling="secure", protocols="simulated", rounds=5)
    for name in ("accuracy", "macro_f1", "loss"):
        assert hidden.test[name] == pytest.approx(plaintext.test[name], abs=5e-3)
        assert hidden.test[name] == pytest.approx(simulated.test[name], abs=1e-6)
    assert ledger.totals() == counted.totals()
    kinds = {e.protection for e in ledger.entries if "/protocol" in e.name or "_shares" in e.name}
    assert kinds == {"encrypted", "shared"}

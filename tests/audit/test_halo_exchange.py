"""What clients learn from halo: all features of their nodes' neighbours, and labels from gradients."""

from typing import Any

import pytest
import torch
from audited_runs import SPLIT, planned

from graphfed.audit.attacks import halo
from graphfed.audit.base import AuditedRun
from graphfed.nn.backbones import BACKBONES


def audited(**settings: Any) -> AuditedRun:
    """A run that is not made: the checks repeat its first round."""
    options = {"data": "social", "split": SPLIT, "clients": 4}
    return planned("halo", **options, settings={"data.num_nodes": 200, **settings})


def test_every_feature_of_every_neighbour_is_read() -> None:
    finding = halo.attack_features(audited())
    assert finding.value == 1
    assert finding.details["recovered"] == finding.details["neighbours"] > 0


@pytest.mark.parametrize(
    ("network", "dropout"), [("gcn", 0.0), ("gcn", 0.5), ("sage", 0.0), ("sage", 0.5), ("gat", 0.0)]
)
def test_the_label_of_every_single_training_neighbour_is_computed(network: str, dropout: float) -> None:
    finding = halo.attack_labels(audited(backbone=network, dropout=dropout))
    assert finding.details["recovered"] == finding.details["attacked"] > 0
    assert finding.leaks


def test_dropout_of_attention_hides_labels_only_where_it_drops_the_edge() -> None:
    """One round; another round drops other edges."""
    finding = halo.attack_labels(audited(backbone="gat", dropout=0.5))
    assert finding.value is not None
    assert finding.no_signal is not None
    assert finding.no_signal + 0.1 < finding.value < 1


def test_max_pooling_shows_most_labels() -> None:
    """The gradient has only the features whose maximum the node is."""
    finding = halo.attack_labels(audited(backbone="maxpool", dropout=0.0))
    assert finding.value is not None
    assert finding.value > 0.8


def test_secure_aggregation_does_not_change_what_clients_read() -> None:
    run = audited(aggregation="secure", protocols="simulated")
    assert halo.attack_features(run).value == halo.attack_labels(run).value == 1


def test_every_network_that_uses_edges_is_attacked_or_reported_as_not_measured() -> None:
    for name in (name for name, network in BACKBONES.items() if network.uses_edges):
        assert halo.attack_labels(audited(backbone=name)).verdict.startswith(("leaks", "not measured"))


def test_the_guess_is_the_only_negative_coordinate() -> None:
    """By hand: p = (0.2, 0.3, 0.5), label 1, so p - y = (0.2, -0.7, 0.5), times 3 by an unknown factor."""
    columns = torch.eye(3, dtype=torch.float64)
    assert halo.guess(columns, 3 * torch.tensor([0.2, -0.7, 0.5], dtype=torch.float64), 3) == 1

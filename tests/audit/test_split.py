"""What the server of split learning reads or guesses, on runs made for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphfed
from graphfed.audit.attacks.sapgnn import explained_variance, group_by_direction, purity
from graphfed.audit.base import Finding
from graphfed.audit.run import audit

pytestmark = pytest.mark.slow


def found(folder: Path, method: str, name: str, **settings: Any) -> Finding:
    options = {"data": "digits", "clients": 3, "partition": "edges_uniform", "rounds": 1, "threads": 1}
    graphfed.run(method, out=folder / "run", **options, settings=settings)
    return audit(folder / "run").findings[name]


def test_the_papers_identity_messages_give_every_vertexs_features_away(tmp_path: Path) -> None:
    finding = found(tmp_path, "sapgnn", "split_features", maps="identity")
    assert finding.value == 1
    assert finding.leaks
    assert finding.details["recovered"] == finding.details["nodes"] == 1797


@pytest.mark.parametrize("update", ["tropical", "product"])
def test_identity_messages_leak_with_other_updates_too(update: str, tmp_path: Path) -> None:
    finding = found(tmp_path, "sapgnn", "split_features", maps="identity", update=update, aggr="min")
    assert finding.value == 1


def test_as_many_maps_as_features_hide_nothing_from_a_server_that_knows_some_nodes(tmp_path: Path) -> None:
    """64 mixtures of 64 features: from 180 known nodes nearly all of the others follows."""
    wide = found(tmp_path / "wide", "sapgnn", "split_features", hidden=64)
    hidden_4 = found(tmp_path / "hidden_4", "sapgnn", "split_features", hidden=4)
    assert wide.value is not None
    assert hidden_4.value is not None
    assert wide.value > 0.95
    assert hidden_4.value < 0.6


@pytest.mark.parametrize("method", ["sapgnn", "ppgnn"])
def test_a_predictor_at_the_server_gives_every_training_label_away(method: str, tmp_path: Path) -> None:
    finding = found(tmp_path, method, "split_labels", predictor="server")
    assert finding.value == 1
    assert finding.verdict.startswith("leaks exactly")


@pytest.mark.parametrize("method", ["sapgnn", "ppgnn"])
def test_a_predictor_at_the_clients_leaves_the_server_groups_of_equal_labels(
    method: str, tmp_path: Path
) -> None:
    finding = found(tmp_path, method, "split_labels")
    assert finding.value is not None
    assert finding.no_signal is not None
    assert finding.value > 0.9
    assert finding.no_signal < 0.2
    assert "not which label" in finding.verdict


def test_directions_group_rows_whatever_their_length() -> None:
    rows = np.array([[1.0, 0.0], [5.0, 0.1], [0.0, 2.0], [0.1, 9.0]])
    group = group_by_direction(rows, 2)
    assert group[0] == group[1] != group[2] == group[3]
    assert purity(group, np.array([0, 0, 1, 1])) == 1
    assert purity(group, np.array([0, 1, 1, 1])) == 0.75
    assert purity(group_by_direction(rows[:1], 2), np.array([1])) == 1


def test_features_that_have_nothing_to_do_with_the_uploads_are_not_reconstructed() -> None:
    draw = torch.Generator().manual_seed(0)
    seen = torch.randn(400, 5, generator=draw, dtype=torch.float64)
    truth = torch.randn(400, 7, generator=draw, dtype=torch.float64)
    known = torch.arange(400) < 200
    assert explained_variance(seen, truth, known) < 0.02
    mixed = seen @ torch.randn(5, 7, generator=draw, dtype=torch.float64)
    assert explained_variance(seen, mixed, known) > 0.999


def test_the_maxima_of_secure_pooling_give_away_what_plaintext_maxima_do(tmp_path: Path) -> None:
    """A node's own part is the same at all its clients: pooling hides neighbours and whose they are, not
    that."""
    pytest.importorskip("cryptography", reason="secure pooling needs the extra 'secure'")
    plaintext, secure = (
        found(tmp_path / pooling, "sapgnn", "split_features", hidden=8, pooling=pooling)
        for pooling in ("plaintext", "secure")
    )
    assert plaintext.value is not None
    assert secure.value == pytest.approx(plaintext.value, abs=1e-6)

"""What the server of split learning reads or guesses, on runs made for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphfed
from graphfed.audit.attacks import sapgnn
from graphfed.audit.attacks.sapgnn import count_read, explained_variance, group_by_direction, purity
from graphfed.audit.base import Finding
from graphfed.audit.run import audit
from graphfed.audit.transcript import features_of

pytestmark = pytest.mark.slow

#: Every node is at one client.
BY_NODES = {"clients": 10, "partition": "label_dirichlet"}


def found(folder: Path, method: str, name: str, **settings: Any) -> Finding:
    options = {"data": "digits", "clients": 3, "partition": "edges_uniform", "rounds": 1, "threads": 1}
    options |= {key: settings.pop(key) for key in options.keys() & settings.keys()}
    graphfed.run(method, out=folder / "run", **options, settings=settings)
    return audit(folder / "run").findings[name]


def test_the_papers_identity_messages_give_every_vertexs_features_away(tmp_path: Path) -> None:
    finding = found(tmp_path, "sapgnn", "split_features", maps="identity")
    assert finding.value == 1
    assert finding.leaks
    assert finding.details["recovered"] == finding.details["nodes"] == 1797


def test_features_of_the_other_sign_do_not_count_as_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sapgnn, "features_of", lambda cohort, rows: -features_of(cohort, rows))
    assert found(tmp_path, "sapgnn", "split_features", maps="identity").value == 0


@pytest.mark.parametrize("update", ["tropical", "product", "concat"])
def test_identity_messages_leak_with_other_updates_too(update: str, tmp_path: Path) -> None:
    finding = found(
        tmp_path, "sapgnn", "split_features", maps="identity", update=update, aggr="min", hidden=8
    )
    assert finding.value == 1


def test_as_many_maps_as_features_hide_nothing_from_a_server_that_knows_some_nodes(tmp_path: Path) -> None:
    """64 mixtures of 64 features: from 180 known nodes nearly all of the others follows."""
    wide = found(tmp_path / "wide", "sapgnn", "split_features", hidden=64)
    hidden_4 = found(tmp_path / "hidden_4", "sapgnn", "split_features", hidden=4)
    assert wide.value is not None
    assert hidden_4.value is not None
    assert wide.value > 0.95
    assert hidden_4.value < 0.6


def test_few_maps_hide_features_in_one_round_and_not_in_many(tmp_path: Path) -> None:
    """8 mixtures of 64 features in one round, 80 in ten rounds, whose maps differ."""
    finding = found(tmp_path, "sapgnn", "split_features", hidden=8, rounds=10, **BY_NODES)
    assert finding.details["rounds"] == 10
    assert finding.details["one_round"] < 0.6
    assert finding.value is not None
    assert finding.value > 0.9


def test_with_batches_the_uploads_of_evaluations_are_attacked(tmp_path: Path) -> None:
    """The audit of such a run ended in a RuntimeError."""
    finding = found(tmp_path, "sapgnn", "split_features", hidden=8, rounds=2, batch_size=100, **BY_NODES)
    assert finding.details["rounds"] == 2
    assert finding.leaks
    assert audit(tmp_path / "run").findings["split_labels"].verdict == "not measured"


def test_embeddings_of_ppgnn_show_more_in_many_rounds(tmp_path: Path) -> None:
    finding = found(tmp_path, "ppgnn", "split_features", hidden=16, rounds=6, **BY_NODES)
    assert finding.value is not None
    assert finding.value > finding.details["one_round"] + 0.05


def test_gradients_in_plaintext_give_features_away_without_known_ones(tmp_path: Path) -> None:
    """About 30 nodes of each client have a gradient: one round has 8 equations for them, twelve have 96."""
    few, many, hidden = (
        found(
            tmp_path / str(n),
            "sapgnn",
            "split_features",
            hidden=8,
            rounds=rounds,
            aggregation=how,
            **BY_NODES,
        )
        for n, (rounds, how) in enumerate([(1, "plaintext"), (12, "plaintext"), (1, "additive")])
    )
    assert few.details["with_gradient"] > 200
    assert few.details["read"] == 0
    assert many.details["read"] > 0.9 * many.details["with_gradient"] > 200
    assert many.verdict.startswith("leaks exactly")
    assert "read" not in hidden.details
    assert hidden.verdict.startswith("leaks to a server that knows")


def test_gradients_of_other_features_are_not_counted_as_read() -> None:
    draw = torch.Generator().manual_seed(0)
    matrix, x = (torch.randn(9, n, generator=draw, dtype=torch.float64) for n in (6, 4))
    x = x[:6]
    assert count_read(matrix, matrix @ x, x) == 6
    assert count_read(matrix[:5], matrix[:5] @ x, x) == 0, "five equations for six rows"
    assert count_read(matrix, matrix @ x.roll(1, 0), x) == 0


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

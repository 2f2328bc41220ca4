"""The attack on FedGAT's message, where the features were noised: it computes none."""

from pathlib import Path

import pytest
import torch

import graphfed
from graphfed.audit.attacks.fedgat_ldp import similarities
from graphfed.audit.base import Finding
from graphfed.audit.run import audit


def found(folder: Path, form: str = "vector", **options: object) -> Finding:
    settings = {"evaluation": "direct", "form": form, **options}
    graphfed.run("fedgat_ldp", data="digits", clients=3, rounds=1, threads=1, out=folder, settings=settings)
    return audit(folder).findings["fedgat_ldp_features"]


@pytest.mark.parametrize("form", ["vector", pytest.param("matrix", marks=pytest.mark.slow)])
def test_no_features_come_out_of_the_message_on_noised_ones(form: str, tmp_path: Path) -> None:
    """What is computed reveals almost nothing at epsilon 0.1: 50 % of comparisons, and 52 % at the most."""
    finding = found(tmp_path / "run", form, epsilon=0.1, k_x=0)
    assert finding.details["recovered"] == 0
    assert finding.details["neighbours"] > 1000
    assert finding.leaks is False
    assert finding.value is not None
    assert abs(finding.value - 0.5) < 0.02
    assert finding.verdict == "no features are computed exactly; epsilon=0.1 bounds what the rows show"


def test_the_measure_finds_what_little_noise_leaves(tmp_path: Path) -> None:
    """The same attack and figures with a budget that protects nothing."""
    finding = found(tmp_path / "run", epsilon=1e9, k_x=0)
    assert finding.details["recovered"] == finding.details["neighbours"]
    assert finding.leaks
    assert finding.value is not None
    assert finding.value > 0.999


def test_smoothing_reveals_the_neighbourhood(tmp_path: Path) -> None:
    """Noise averages out over neighbours: why the figure is measured, and not only bounded."""
    plain = found(tmp_path / "plain", epsilon=20.0, k_x=0, noise_seed=0)
    smooth = found(tmp_path / "smooth", epsilon=20.0, k_x=4, noise_seed=0)
    assert plain.value is not None
    assert smooth.value is not None
    assert min(plain.value, smooth.value) > 0.55
    assert plain.details["recovered"] == smooth.details["recovered"] == 0


def test_similarity_is_a_share_of_comparisons() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    own = torch.tensor([[3.0, 0.1], [1.0, 0.0]])
    others = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [2.0, 0.0]]])
    assert similarities(rows, own, others).tolist() == [0.5, 0.25]

"""The components that weights are seen on: those of a singular value decomposition, and of one sign."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.errors import GraphfedError, InputError
from graphfed.methods.fedgraph.learned_policy import fit_projection, project


def walk(rows: int, width: int, seed: int, rank: int | None = None) -> np.ndarray:
    """Rows that move as weights do, each a step from the one before; in `rank` directions."""
    draws = np.random.default_rng(seed)
    steps = draws.normal(size=(rows, width if rank is None else rank))
    if rank is not None:
        steps = steps @ draws.normal(size=(rank, width))
    return (1 + 0.01 * steps.cumsum(0)).astype(np.float32)


@pytest.mark.parametrize(("rows", "width"), [(30, 200), (200, 30), (40, 40)])
def test_coordinates_are_those_of_a_singular_value_decomposition(rows: int, width: int) -> None:
    data = walk(rows, width, 0)
    found = fit_projection(data, 5)
    centred = data.astype(np.float64) - data.mean(0, dtype=np.float64)
    left, size, right = np.linalg.svd(centred, full_matrices=False)
    components = found["pca.components"].numpy()
    assert components.shape == (5, width)
    assert components @ components.T == pytest.approx(np.eye(5), abs=1e-8)
    assert np.abs(np.sum(components * right[:5], 1)) == pytest.approx(np.ones(5), abs=1e-8)
    coordinates = project(found, torch.from_numpy(data)).numpy()
    assert np.abs(coordinates) == pytest.approx(np.abs(left[:, :5] * size[:5]), abs=1e-7)
    assert float(found["pca.scale"]) == pytest.approx(np.sqrt((coordinates**2).mean()))


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_neither_the_order_of_rows_nor_a_repetition_of_all_turns_a_component(seed: int) -> None:
    data = walk(15, 40, seed)
    order = np.random.default_rng(seed).permutation(15)
    first = fit_projection(data, 4)["pca.components"]
    assert torch.allclose(fit_projection(data[order], 4)["pca.components"], first, atol=1e-6)
    assert torch.allclose(fit_projection(np.concatenate([data, data]), 4)["pca.components"], first, atol=1e-6)
    assert (first.gather(1, first.abs().argmax(1, keepdim=True)) > 0).all()


@pytest.mark.parametrize("shape", [(50, 400), (400, 50)])
def test_there_are_no_more_components_than_directions(shape: tuple[int, int]) -> None:
    assert len(fit_projection(walk(*shape, 0, rank=3), 20)["pca.components"]) == 3
    assert len(fit_projection(walk(*shape, 0), 20)["pca.components"]) == 20


def test_rows_that_are_all_the_same_are_refused() -> None:
    with pytest.raises(GraphfedError, match="did not change"):
        fit_projection(np.full((6, 10), 0.25, dtype=np.float32), 3)


def test_what_does_not_fit_into_memory_is_refused_with_its_size_and_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ddpg = pytest.importorskip(
        "graphfed.methods.fedgraph.policy.ddpg", reason="needs the extra rl", exc_type=ImportError
    )
    monkeypatch.setattr(ddpg, "memory_bytes", lambda: (1_000_000_000, 2_000_000_000))
    ddpg.check_memory(100, 1000, 0)
    with pytest.raises(InputError, match=r"6300 times 23063 numbers.*1\.0 GB are free; use fewer rounds"):
        ddpg.check_memory(6300, 23063, 0)
    monkeypatch.setattr(ddpg, "memory_bytes", lambda: (None, None))
    ddpg.check_memory(6300, 23063, 0)

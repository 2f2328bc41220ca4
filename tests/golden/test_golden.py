"""Golden runs give what golden.json keeps: metrics, rounds, bytes of every transfer and weights, to 1e-9.
They give it on a GPU too. A machine without one marks the tensors that would be there, and what a GPU would
refuse fails."""

import json
import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from golden_runs import RECORD, RENAMED_TRANSFERS, GoldenRun, execute, golden_runs
from second_device import second_device

TOLERANCE = 1e-9
RUNS = golden_runs()
GOLDEN: dict[str, Any] = json.loads(RECORD.read_text())


#: Protocols between 48 clients, two by two or all with all: the second tier.
SLOW = (
    "prediction_release classification aggregation=secure protocols=real",
    "lumos classification protocols=real",
    "lumos classification aggregation=secure protocols=real",
)
PARAMS = [
    pytest.param(run, id=run.name.replace(" ", "-"), marks=[pytest.mark.slow] if run.name in SLOW else [])
    for run in RUNS
]


def close(found: float | None, kept: float | None, scale: float = 1.0) -> bool:
    """Whether two numbers are equal to 1e-9, relative to the larger of `scale` and the kept number."""
    if found is None or kept is None:
        return found is kept
    return math.isclose(found, kept, rel_tol=TOLERANCE, abs_tol=TOLERANCE * scale)


def test_there_is_a_golden_run_for_every_method_task_and_protection() -> None:
    assert [run.name for run in RUNS] == list(GOLDEN)


@pytest.mark.parametrize("golden_run", PARAMS)
def test_a_golden_run_gives_what_is_kept(golden_run: GoldenRun) -> None:
    assert_kept(golden_run, "cpu")


@pytest.mark.parametrize("golden_run", PARAMS)
def test_a_golden_run_gives_it_on_a_gpu(golden_run: GoldenRun) -> None:
    with nullcontext() if torch.cuda.is_available() else second_device():
        assert_kept(golden_run, "cuda")


def assert_kept(golden_run: GoldenRun, device: str) -> None:
    found, kept = execute(golden_run, device), GOLDEN[golden_run.name]
    assert (found["rounds"], found["best_round"]) == (kept["rounds"], kept["best_round"])
    assert found["bytes"] == {RENAMED_TRANSFERS.get(name, name): size for name, size in kept["bytes"].items()}
    for part in ("val", "test"):
        assert found[part].keys() == kept[part].keys()
        for metric, value in kept[part].items():
            assert close(found[part][metric], value), (part, metric, found[part][metric], value)
    assert found["weights"].keys() == kept["weights"].keys()
    for name, (shape, magnitude, projection) in kept["weights"].items():
        found_shape, found_magnitude, found_projection = found["weights"][name]
        assert found_shape == shape
        assert close(found_magnitude, magnitude), name
        assert close(found_projection, projection, magnitude), name

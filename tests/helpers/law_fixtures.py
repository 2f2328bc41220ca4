"""Fixtures of the laws and of the papers' tests: float64, and the processes of three clients."""

from collections.abc import Iterator

import methods_under_law  # noqa: F401 - registers the toys before the tests are collected
import pytest
import torch
from worlds import ThreeWorkers

__all__ = ["float64", "three_clients"]


@pytest.fixture(autouse=True)
def float64(float32_default: None) -> None:
    """Compute in float64; `float32_default` sets the default back after the test."""
    torch.set_default_dtype(torch.float64)


@pytest.fixture(scope="session")
def three_clients() -> Iterator[ThreeWorkers]:
    """A server and three clients, each in a process of its own, for the whole test run."""
    workers = ThreeWorkers()
    try:
        yield workers
    finally:
        workers.close()

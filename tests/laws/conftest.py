"""Fixtures of the laws: float64, and the processes of three sites, started once."""

from collections.abc import Iterator

import methods_under_law  # noqa: F401 - registers the toys before the tests are collected
import pytest
import torch

from graphfed.runtime.processes import Sites


@pytest.fixture(autouse=True)
def float64(float32_default: None) -> None:
    torch.set_default_dtype(torch.float64)


@pytest.fixture(scope="session")
def three_sites() -> Iterator[Sites]:
    """A server and three clients, each in a process of its own, for the whole test run."""
    with Sites([(0,), (1,), (2,)]) as sites:
        yield sites

"""Fixtures of the data tests."""

import warnings
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def pyg() -> ModuleType:
    """torch_geometric with its data sets; importing it warns about torch functions that it uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_geometric.datasets
    return torch_geometric

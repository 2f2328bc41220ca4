"""Fixtures every test may use."""

import os
from pathlib import Path

import pytest
import torch

# The tests' tensors are tiny: a second thread costs more than it brings, and on a busy machine its spinning costs minutes.
torch.set_num_threads(1)

REAL_DATA_REASON = "real data absent: set GRAPHFED_DATA to a folder in the layout of graphfed's data documentation"


@pytest.fixture(scope="session")
def real_data(request: pytest.FixtureRequest) -> Path:
    """The folder of real data sets; skips the test where it is absent."""
    folder = os.environ.get("GRAPHFED_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip(REAL_DATA_REASON)
    return Path(folder)


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Converted data sets are cached in a folder of the test run, never in the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def float32_default():
    """A test may change the default dtype; the next one starts from float32."""
    yield
    torch.set_default_dtype(torch.float32)

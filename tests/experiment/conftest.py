"""Small inputs for the experiment tests."""

from pathlib import Path

import pytest

import graphfed
from graphfed.experiment.run import Result


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, so that "nothing was written" can be checked."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One short run with its folder, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return graphfed.run("fedavg", clients=4, rounds=3, seed=1, threads=1, out=folder)

"""Fixtures of the tests that run the program: a folder of their own, and one finished run."""

from pathlib import Path

import pytest

import graphfed
from graphfed.runs.run import Result

__all__ = ["finished", "own_folder"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every test in a folder of its own, so that "nothing was written" can be checked."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One short run with its folder, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return graphfed.run("fedavg", clients=4, rounds=3, seed=1, threads=1, out=folder)

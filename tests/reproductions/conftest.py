"""Every test works in a folder of its own."""

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from run_fixtures import finished, own_folder

from graphfed.reproductions import reproduce as reproduction
from graphfed.reproductions.base import Paper

__all__ = ["finished", "own_folder"]


@pytest.fixture
def as_known(monkeypatch: pytest.MonkeyPatch) -> Callable[[Paper], Paper]:
    """Make a paper one of graphfed's, for the command line and `resume`, which know papers by their names."""

    def add(paper: Paper) -> Paper:
        monkeypatch.setattr(reproduction, "PAPERS", (*reproduction.PAPERS, paper.name))
        monkeypatch.setitem(sys.modules, f"graphfed.reproductions.{paper.name}", SimpleNamespace(PAPER=paper))
        return paper

    return add

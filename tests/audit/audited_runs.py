"""Runs for the tests of attacks."""

from pathlib import Path
from typing import Any

from graphfed.audit.base import AuditedRun
from graphfed.runs.config import make_config
from graphfed.runs.reopen import reopen
from graphfed.runs.run import Result, load_inputs

#: The split of the generated social graphs.
SPLIT = "random:0.5,0.25,0.25"


def planned(method: str, rounds: int = 1, **options: Any) -> AuditedRun:
    """A run opened for a check that repeats it; the run itself is not needed."""
    config = make_config(method, rounds=rounds, **options)
    return AuditedRun(Path(), config, load_inputs(config), Result.model_construct(rounds=rounds))


def finished(folder: Path, data: Any = None) -> AuditedRun:
    """A run opened from its folder."""
    return AuditedRun(folder, *reopen(folder, data=data), Result.read(folder))

"""What a check is: a function from a finished run to a finding, and words for what the attacker sees."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.audit.transcript import Transcript, record_first_round
from graphfed.federation import Ledger
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.runs import folder as files
from graphfed.runs.folder_schema import LedgerFile
from graphfed.runs.run import Result
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.run_config import RunConfig

__all__ = ["AuditedRun", "Check", "Finding", "Scored"]


@dataclass(frozen=True)
class Scored:
    """Rows of predictions.parquet: node and label [n] int64 (-1 unknown), part [n] ("train", "val", "test",
    "none"), probability [n, C]."""

    node: np.ndarray
    label: np.ndarray
    part: np.ndarray
    probability: np.ndarray


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """A finished run, opened for the checks: what it was asked, what it trained on, what it left."""

    folder: Path
    config: RunConfig
    inputs: Inputs
    result: Result

    @cached_property
    def ledger(self) -> Ledger:
        """ledger.json."""
        return Ledger.from_json(files.read_json(self.folder / "ledger.json", LedgerFile))

    @cached_property
    def transfers(self) -> set[str]:
        """The names of the transfers that the run made."""
        return {entry.name for entry in self.ledger.entries}

    @cached_property
    def predictions(self) -> Scored:
        """predictions.parquet."""
        classes = [f"probability_{c}" for c in range(self.inputs.task(self.config.task).num_classes)]
        kinds = {"node": "integer", "label": "integer", "split": "text"}
        table = files.read_predictions(self.folder, kinds | dict.fromkeys(classes, "number"))
        return Scored(
            node=table["node"].to_numpy(),
            label=table["label"].fill_null(-1).to_numpy().astype(np.int64),
            part=np.array(table["split"].to_pylist()),
            probability=np.stack([table[name].to_numpy() for name in classes], axis=1),
        )

    @cached_property
    def transcript(self) -> Transcript:
        """What crossed in set-up and in the first round, run again in this process."""
        return record_first_round(self.config, self.inputs)


@dataclass(frozen=True)
class Finding:
    """What a check found.

    result, baseline, verdict: in words; value: the figure, interval: where it lies with 95 % confidence (None
    for a count, which is exact), no_signal: the figure an attacker without information reaches.
    leaks: True where the attack gained something, False where it did not, None where nothing was measured;
    details: figures for audit.json."""

    result: str
    baseline: str
    verdict: str
    leaks: bool | None
    value: float | None = None
    interval: tuple[float, float] | None = None
    no_signal: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One row of the registry, as the check's own file declares it.

    tasks: names of those it can check a run of; tests: what is tried; attacker: what the attacker sees;
    methods: those it is made for (None: every one); transfers: named transfers that the run must have made;
    instead: others that do as well."""

    name: str
    tests: str
    attacker: str
    run: Callable[[AuditedRun], Finding]
    methods: tuple[str, ...] | None = None
    transfers: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    tasks: tuple[str, ...] = (CLASSIFICATION,)

    def applies(self, run: AuditedRun) -> bool:
        """Whether there is something to check in this run."""
        of_method = self.methods is None or run.config.method.name in self.methods
        of_method = of_method and run.config.task in self.tasks
        made = any(
            run.transfers.issuperset(names) for names in (self.transfers, self.instead or self.transfers)
        )
        return of_method and made

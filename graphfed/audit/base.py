"""The parts of an audit: a check attacks a finished run and returns a finding."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfed.audit.rerun import Rerun, rerun
from graphfed.audit.transcript import Keep, Transcript, record_rounds
from graphfed.federation import Ledger
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.runs import folder as files
from graphfed.runs.folder_schema import LedgerFile
from graphfed.runs.run import Result
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.run_config import RunConfig

if TYPE_CHECKING:
    from graphfed.runs.train import Event


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """A finished run, opened for the checks; `on_event` is called with the progress of repeated runs."""

    folder: Path
    config: RunConfig
    inputs: Inputs
    result: Result
    on_event: "Callable[[Event], None] | None" = None

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.from_json(files.read_json(self.folder / "ledger.json", LedgerFile))

    @cached_property
    def transfers(self) -> set[str]:
        """The names of the run's transfers."""
        return {entry.name for entry in self.ledger.entries}

    @cached_property
    def transcript(self) -> Transcript:
        """The messages of set-up and the first round, run again in this process."""
        # Cached, because several checks read the first round.
        return record_rounds(self.config, self.inputs, rounds=1)

    def record(self, keep: Keep) -> Transcript:
        """Run all rounds again in this process, and record what `keep` keeps of their messages."""
        return record_rounds(self.config, self.inputs, keep=keep, on_event=self.on_event)

    def rerun(self, *, plaintext: bool = False, simulated: bool | None = None) -> Rerun:
        """Begin the run again in this process (see `rerun.rerun`)."""
        return rerun(self.config, self.inputs, plaintext=plaintext, simulated=simulated)


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        result: A sentence that says what the attacker achieves.
        baseline: What an attacker without these messages achieves.
        leaks: Whether the attacker gains information; None if nothing was measured.
        value: The figure of the result.
        interval: Its 95 % confidence interval; None for a count, which is exact.
        no_signal: The same figure for an attacker without these messages.
        details: Further figures for audit.json.
    """

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
    """A check as its module declares it.

    Attributes:
        tests: What the attacker wants to learn, and from what.
        attacker: Who the attacker is and what it sees.
        methods: The methods that the check is for; None for all.
        transfers: Names of transfers that the run must have had.
        instead: Names of transfers that are enough in their place.
    """

    name: str
    tests: str
    attacker: str
    run: Callable[[AuditedRun], Finding]
    methods: tuple[str, ...] | None = None
    transfers: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    tasks: tuple[str, ...] = (CLASSIFICATION,)

    def applies(self, run: AuditedRun) -> bool:
        """Return whether a run has the method, the task and the transfers that the check is for."""
        # By name, so that a plug-in can declare a check for a method without importing it.
        of_method = self.methods is None or run.config.method.name in self.methods
        of_task = run.config.task in self.tasks
        # Some attacks have two sources, such as sums in plaintext or their ciphertexts.
        sufficient = (self.transfers, self.instead or self.transfers)
        return of_method and of_task and any(run.transfers.issuperset(names) for names in sufficient)

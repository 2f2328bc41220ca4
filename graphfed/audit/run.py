"""The audit of a finished run: every check that applies to it, in one table and in audit.json."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfed.audit.base import AuditedRun, Finding
from graphfed.audit.registry import CHECKS
from graphfed.errors import InputError
from graphfed.files import write_json
from graphfed.runs import folder as files
from graphfed.runs.progress import show_progress, stages_of
from graphfed.runs.reopen import MANIFESTS, read_manifest, reopen
from graphfed.runs.run import Result
from graphfed.terminal import make_table

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Audit", "audit"]


@dataclass(frozen=True)
class Audit:
    """What the checks of a run found: findings, and why a check was skipped, by name of the check."""

    method: str
    dataset: str
    seed: int
    findings: dict[str, Finding]
    skipped: dict[str, str]
    folder: Path

    def to_json(self) -> dict[str, Any]:
        """Return the object in audit.json."""
        checks = {name: CHECKS[name] for name in self.findings}
        content: dict[str, Any] = files.plain(
            {
                "method": self.method,
                "dataset": self.dataset,
                "seed": self.seed,
                "checks": [
                    {
                        "check": name,
                        "tests": checks[name].tests,
                        "attacker_sees": checks[name].attacker,
                        **dataclasses.asdict(finding),
                    }
                    for name, finding in self.findings.items()
                ],
                "skipped": self.skipped,
            }
        )
        return content

    def table(self) -> "Table":
        """Return the findings as a table for the screen."""
        rows = [
            (
                f"{name}: {CHECKS[name].tests}",
                CHECKS[name].attacker,
                found.result,
                found.baseline,
                found.verdict,
            )
            for name, found in self.findings.items()
        ]
        skipped = "; ".join(f"{name}: {why}" for name, why in self.skipped.items())
        return make_table(
            ("check", "what the attacker sees", "result", "without information", "verdict"),
            rows,
            title=f"{self.method} on {self.dataset}, seed {self.seed}",
            caption=f"checks that do not apply: {skipped}" if skipped else "",
            lines=True,
        )


def audit(
    folder: str | Path, *, data: Any = None, data_dir: str | Path | None = None, progress: bool = False
) -> Audit:
    """Run every check that applies to a finished run, and write audit.json into its folder.

    Args:
        folder: The folder of a run that has ended, to which audit.json is written.
        data: The data of the run, if it was given as a Python object (see `reopen`).
        data_dir: The folder of the data sets (see `reopen`).
        progress: Whether to show progress on stderr.

    Returns:
        The findings.

    Raises:
        InputError: If the folder has no finished run, or the data has changed since.
    """
    folder = Path(folder)
    result = None
    # The folder is read before the data, which may take long to load. Folders of other kinds than runs are
    # refused by `reopen`, which says what they are.
    if not MANIFESTS.keys() & read_manifest(folder).keys():
        if not (folder / "result.json").exists():
            raise InputError(f"the run in {folder} has not ended; resume it first: graphfed resume {folder}")
        result = Result.read(folder)
    config, inputs = reopen(folder, data=data, data_dir=data_dir)
    assert result is not None
    findings: dict[str, Finding] = {}
    skipped: dict[str, str] = {}
    # All checks share one `AuditedRun`, which repeats the run once for those that read the same messages.
    with show_progress("audit", progress) as on_event:
        run = AuditedRun(folder, config, inputs, result, on_event)
        for name, check in CHECKS.usable().items():
            if check.applies(run):
                stages_of(on_event)(name)
                findings[name] = check.run(run)
            elif config.task not in check.tasks:
                # The most general reason first: only one is shown.
                skipped[name] = f"the check is for the task {', '.join(check.tasks)}"
            elif check.methods is not None and config.method.name not in check.methods:
                skipped[name] = f"the check is for the method {', '.join(check.methods)}"
            else:
                skipped[name] = f"the run had no transfer {', '.join(check.transfers)}"
    found = Audit(config.method.name, inputs.name, config.seed, findings, skipped, folder)
    try:
        write_json(folder / "audit.json", found.to_json())
    # The checks may have taken long, so the message says how to store their result.
    except OSError as error:
        raise InputError(
            f"{folder / 'audit.json'} cannot be written ({error.strerror or error}); make the folder writable"
        ) from None
    return found

"""Audit a finished run: every check that applies to it, in one table and in audit.json."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfed.audit.base import AuditedRun, Finding
from graphfed.audit.registry import CHECKS
from graphfed.errors import InputError
from graphfed.files import write_json
from graphfed.runs import folder as files
from graphfed.runs.reopen import reopen
from graphfed.runs.run import Result
from graphfed.terminal import make_table

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Audit", "audit"]


@dataclass(frozen=True)
class Audit:
    """What the checks found: name -> finding; skipped: name -> why a check has nothing to check."""

    method: str
    dataset: str
    seed: int
    findings: dict[str, Finding]
    skipped: dict[str, str]
    folder: Path

    def to_json(self) -> dict[str, Any]:
        """The object in audit.json."""
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
        """For a screen (a rich table)."""
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
            caption=f"not checked here: {skipped}" if skipped else "",
            lines=True,
        )


def audit(folder: str | Path, *, data: Any = None, data_dir: str | Path | None = None) -> Audit:
    """Run every check that applies to the finished run in `folder`, and write audit.json into it.

    data, data_dir: as for `reopen`. Raises InputError for a folder without a finished run and for data that
    has changed."""
    folder = Path(folder)
    config, inputs = reopen(folder, data=data, data_dir=data_dir)
    if not (folder / "result.json").exists():
        raise InputError(f"the run in {folder} has not ended; go on with it (graphfed resume {folder})")
    run = AuditedRun(folder, config, inputs, Result.read(folder))
    findings: dict[str, Finding] = {}
    skipped: dict[str, str] = {}
    for name, check in CHECKS.usable().items():
        if check.applies(run):
            findings[name] = check.run(run)
        elif config.task not in check.tasks:
            skipped[name] = f"made for {', '.join(check.tasks)}"
        elif check.methods is not None and config.method.name not in check.methods:
            skipped[name] = f"made for {', '.join(check.methods)}"
        else:
            skipped[name] = f"the run made no transfer {', '.join(check.transfers)}"
    found = Audit(config.method.name, inputs.name, config.seed, findings, skipped, folder)
    try:
        write_json(folder / "audit.json", found.to_json())
    except OSError as error:
        raise InputError(
            f"{folder / 'audit.json'} cannot be written ({error.strerror or error}); make the folder writable"
        ) from None
    return found

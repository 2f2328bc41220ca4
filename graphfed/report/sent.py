"""What left one client of a deployment in a run: its own ledger, in words, for whoever must answer for it."""

import re
from dataclasses import dataclass
from pathlib import Path

from graphfed.deployment.folder_schema import SiteManifest
from graphfed.errors import InputError, did_you_mean
from graphfed.report.transfers import lines_of
from graphfed.runs.folder import read_json
from graphfed.runs.folder_schema import LedgerFile

__all__ = ["Sent", "last_run", "sent_in"]


@dataclass(frozen=True)
class Sent:
    """One transfer that left a client. words: what it is, and what its receiver can read from it; to: whom it
    reached; bytes: of payload; phases: in which parts of the run; read: whether nothing keeps the receiver
    from reading it."""

    name: str
    words: str
    to: str
    bytes: int
    protection: str
    phases: str
    read: bool


def last_run(runs: Path, name: str | None = None) -> Path:
    """The folder of a run in a kit's `runs`, by its name, or of the last one that has ended there."""
    ended = {path.parent.name: path.parent for path in runs.glob("*/ledger.json")}
    if not ended:
        raise InputError(f"no run has ended in {runs.parent}; name the kit of a client in which one has")
    if name is None:
        return max(ended.values(), key=lambda folder: (folder / "ledger.json").stat().st_mtime)
    if name not in ended:
        raise InputError(f"no run {name!r} has ended in {runs.parent}; {did_you_mean(name, ended)}")
    return ended[name]


def sent_in(folder: Path) -> list[Sent]:
    """What left the client in the run of a folder, the largest first: set-up, training and all that stands
    beside; predictions made later are in ledgers of their own and added.

    InputError for a folder that holds no such run."""
    asked = read_json(folder / "manifest.json", SiteManifest).get("asked", {})
    ledgers = [
        path for path in folder.glob("ledger*.json") if re.fullmatch(r"ledger(-[\d-]+)?\.json", path.name)
    ]
    entries = [
        entry
        for path in sorted(ledgers)
        for entry in LedgerFile.model_validate(read_json(path, LedgerFile)).entries
    ]
    sent = [
        Sent(
            line.name,
            line.description,
            line.link.removeprefix("client to "),
            sum(line.clients),
            line.protected_by,
            line.phases,
            line.open,
        )
        for line in lines_of(entries, str(asked.get("method", "")))
        if line.leaves and any(line.clients)
    ]
    return sorted(sent, key=lambda one: -one.bytes)

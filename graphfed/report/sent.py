"""What left one place of a deployment in a run: its own ledger, in words, for whoever must answer for it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfed.deployment.folder_schema import SiteManifest
from graphfed.errors import InputError, did_you_mean
from graphfed.federation.ledger import is_readable
from graphfed.report.page import LINKS, PROTECTION, words_of
from graphfed.runs.folder import read_json
from graphfed.runs.folder_schema import LedgerFile

__all__ = ["Sent", "last_run", "sent_in"]


@dataclass(frozen=True)
class Sent:
    """One transfer that left a site. words: what it is, and what its receiver can read from it; to: whom it
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
        raise InputError(f"no run has ended in {runs.parent}; name the kit of a site in which one has")
    if name is None:
        return max(ended.values(), key=lambda folder: (folder / "ledger.json").stat().st_mtime)
    if name not in ended:
        raise InputError(f"no run {name!r} has ended in {runs.parent}; {did_you_mean(name, ended)}")
    return ended[name]


def sent_in(folder: Path) -> list[Sent]:
    """What left the site in the run of a folder, the largest first: set-up, training and all that stands
    beside; predictions made later are in ledgers of their own and added.

    InputError for a folder that holds no such run."""
    asked = read_json(folder / "manifest.json", SiteManifest).get("asked", {})
    method = str(asked.get("method", ""))
    ledgers = [
        path for path in folder.glob("ledger*.json") if re.fullmatch(r"ledger(-[\d-]+)?\.json", path.name)
    ]
    lines: dict[tuple[str, str, str], dict[str, Any]] = {}
    for path in sorted(ledgers):
        for entry in read_json(path, LedgerFile)["entries"]:
            link = LINKS.get((entry["from"], entry["to"]), f"{entry['from']} to {entry['to']}")
            line = lines.setdefault((entry["name"], link, entry["protection"]), {"bytes": 0, "phases": []})
            line["bytes"] += sum(entry["sent"])
            line["phases"].append(entry["phase"])
    words = words_of(method)
    told = [
        Sent(
            name,
            _words(name, words),
            link.removeprefix("site to "),
            line["bytes"],
            PROTECTION.get(protection, protection),
            ", ".join(dict.fromkeys(line["phases"])),
            is_readable(protection),
        )
        for (name, link, protection), line in lines.items()
        if line["bytes"] and not link.startswith("server")
    ]
    return sorted(told, key=lambda sent: -sent.bytes)


def _words(name: str, words: Mapping[str, str]) -> str:
    known = words.get(name.removesuffix("/grad"), "This method has no words for it.")
    if name.endswith("/grad"):
        return f"The gradient of the loss, sent back to where this came from: {known}"
    return known

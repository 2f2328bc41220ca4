"""What left one site of a deployment in a run, read from the site's own ledger."""

import re
from dataclasses import dataclass
from pathlib import Path

from graphfed.deployment.folder_schema import SiteManifest
from graphfed.errors import InputError, did_you_mean
from graphfed.report.read import read_entries
from graphfed.report.transfers import lines_of, noised_protections
from graphfed.runs.folder import read_json


@dataclass(frozen=True)
class Sent:
    """A transfer that left a site.

    Attributes:
        description: What it is, and what its receiver can read from it.
        to: Its receiver: "server" or "client".
        bytes: Payload in all phases.
        protection: How it was protected, as a phrase.
        phases: The parts of the run in which it was sent.
        readable: Whether nothing keeps the receiver from reading it.
    """

    name: str
    description: str
    to: str
    bytes: int
    protection: str
    phases: str
    readable: bool


def last_run(runs: Path, name: str | None = None) -> Path:
    """Find the folder of a run, or of the run that ended last, in the folder `runs` of a startup kit.

    Raises:
        InputError: No run, or no run of this name, has ended at this site.
    """
    ended = {path.parent.name: path.parent for path in runs.glob("*/ledger.json")}
    if not ended:
        raise InputError(
            f"no run has ended in {runs.parent}; name the startup kit of a site that has taken part in a run"
        )
    if name is None:
        # A ledger is written when a run has ended at the site.
        return max(ended.values(), key=lambda folder: (folder / "ledger.json").stat().st_mtime)
    if name not in ended:
        raise InputError(f"no run {name!r} has ended in {runs.parent}; {did_you_mean(name, ended)}")
    return ended[name]


def sent_in(folder: Path) -> list[Sent]:
    """Read what left the site in a run, the largest transfer first; InputError if it is no such folder.

    All phases count: set-up, training, evaluation and control. Predictions that were made later have ledgers
    of their own, which are added.
    """
    asked = read_json(folder / "manifest.json", SiteManifest)["asked"]
    ledgers = [
        path for path in folder.glob("ledger*.json") if re.fullmatch(r"ledger(-[\d-]+)?\.json", path.name)
    ]
    entries = [entry for path in sorted(ledgers) for entry in read_entries(path)]
    sent = [
        Sent(
            line.name,
            line.description,
            line.link.removeprefix("client to "),
            sum(line.clients),
            line.protected_by,
            line.phases,
            line.readable,
        )
        for line in lines_of(entries, str(asked.get("method", "")))
        if line.from_clients and any(line.clients)
    ]
    return sorted(sent, key=lambda one: -one.bytes)


def released_in(folder: Path) -> list[str]:
    """Read under which differential privacy a site released values in a run, as in "ldp(eps=2)", sorted.

    There is none if the run has not ended.
    """
    path = folder / "ledger.json"
    if not path.exists():
        return []
    return noised_protections(read_entries(path))


def released_before(folder: Path) -> dict[str, list[str]]:
    """Find the other runs of a site that released noised values of the same data, with `released_in` by name.

    Nothing limits how often noised values are released, and the budgets of all releases add up. The records
    of the site show the runs that have ended, until their folders are deleted.
    """
    data = read_json(folder / "manifest.json", SiteManifest).get("data")
    others = [path.parent for path in sorted(folder.parent.glob("*/manifest.json")) if path.parent != folder]
    # Releases of other data do not add to the budget of this data.
    same = [other for other in others if read_json(other / "manifest.json", SiteManifest).get("data") == data]
    return {other.name: noised for other in same if (noised := released_in(other))}

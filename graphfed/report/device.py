"""One device of a run that has per-client statistics (`Method.client_statistics`): what it sent to whom, and
what it disclosed. Of many clients a page can only show sums; this is the line of one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphfed.errors import InputError
from graphfed.federation.ledger import is_simulated
from graphfed.methods.registry import METHODS
from graphfed.report.read import Run, Subject
from graphfed.report.templates import sentences
from graphfed.report.transfers import Line, left
from graphfed.runs.progress import human_bytes

__all__ = ["Accounts", "Device", "devices", "worst_device"]

#: Columns of an account, [K] by name.
Accounts = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class DeviceLine:
    """A transfer of a device. to: its receivers; bytes: of payload; messages: how many, "-" where that is not
    known."""

    line: Line
    to: str
    bytes: str
    messages: str


@dataclass(frozen=True)
class Device:
    """A device of a row. asked: whether this one was asked for; sentences: what it sent and gave away; lines:
    its transfers; worst: the largest epsilons of all devices, "" where there are none."""

    label: str
    asked: bool
    sentences: list[str]
    lines: list[DeviceLine]
    worst: str


def devices(subject: Subject, wanted: int | None) -> list[Device]:
    """Return a device of the first seed of every row that keeps an account of each.

    Args:
        subject: What is reported on.
        wanted: Which device; None for the one with the largest epsilon against all its receivers together,
            then with the most neighbours.

    Raises:
        InputError: One is wanted, and no row has it.
    """
    first = {label: runs[0] for label, runs in subject.rows.items()}
    kept = {label: (run, run.accounts) for label, run in first.items() if run.accounts is not None}
    if wanted is not None and not kept:
        run = subject.first
        raise InputError(
            f"the run in {run.folder} keeps no account of single devices (clients.parquet), and device "
            f"{wanted} cannot be shown; {run.result.method} writes none"
        )
    return [_device(label, run, accounts, wanted) for label, (run, accounts) in kept.items()]


def worst_device(run: Run) -> str:
    """The largest epsilons of all devices, in a sentence; empty where the account has none."""
    accounts = run.accounts
    if accounts is None or not {"epsilon", "epsilon_colluding"} <= set(accounts):
        return ""
    (told,) = sentences("worst_device", accounts=accounts)
    return told


def _device(label: str, run: Run, accounts: Accounts, wanted: int | None) -> Device:
    count = len(accounts["client"])
    if wanted is None:
        order = [accounts[name] for name in ("neighbours", "epsilon_colluding") if name in accounts]
        device = int(np.lexsort([-accounts["client"], *order])[-1])
    elif 0 <= wanted < count:
        device = wanted
    else:
        raise InputError(f"the run in {run.folder} has no device {wanted}; give one from 0 to {count - 1}")
    own = {name: column[device].item() for name, column in accounts.items()}
    lines = [
        _line(run, line, accounts, own)
        for line in left(label, run).out
        if len(line.clients) > device and line.clients[device]
    ]
    training = run.manifest.config.training
    seeded = training.get("noise_seed") is not None
    simulated = any(entry.kind == "protocol" and is_simulated(entry.protection) for entry in run.entries)
    told = sentences("device", own=own, seeded=seeded, simulated=simulated)
    return Device(label, wanted is not None, told, lines, worst_device(run))


def _line(run: Run, line: Line, accounts: Accounts, own: Mapping[str, float]) -> DeviceLine:
    """To whom a device sends in a transfer, and how many messages: exact where the ledger's messages are
    those of every device to all its receivers, else at most so many."""
    method = METHODS.find(run.result.method)
    column = "" if method is None else method.sends.recipients.get(line.name, "")
    everyone: int | None = None
    count, receivers = 0.0, "others"
    if line.link == "client to server":
        count, everyone, receivers = 1, len(accounts["client"]), "server"
    elif column in own:
        count, everyone, receivers = own[column], int(accounts[column].sum()), column
    (to,) = sentences("receivers", column=receivers, count=count)
    messages = "-"
    if everyone is not None:
        exact = line.messages == line.times * everyone
        (messages,) = sentences("messages", count=int(line.times * count), exact=exact)
    return DeviceLine(line, to, human_bytes(line.clients[int(own["client"])]), messages)

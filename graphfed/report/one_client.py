"""One client of a run that has per-client statistics (`Method.client_statistics`): what it sent to whom, and
what it disclosed.

A page on thousands of clients can only show sums; this is the part of the page on a single client.
"""

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

#: Per-client statistics: columns [K] by name.
Statistics = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ClientLine:
    """A transfer that one client sent; `to` and `messages` are phrases, `bytes` has its unit."""

    line: Line
    to: str
    bytes: str
    messages: str


@dataclass(frozen=True)
class OneClient:
    """A single client of a row of the report.

    Attributes:
        chosen: Whether the user asked for this client.
        sentences: What it sent and disclosed.
        worst: A sentence with the largest epsilons over all clients, "" without differential privacy.
    """

    label: str
    chosen: bool
    sentences: list[str]
    lines: list[ClientLine]
    worst: str


def clients_shown(subject: Subject, number: int | None) -> list[OneClient]:
    """Describe one client of the first seed of every row that has per-client statistics.

    `number` is the client's number. None selects the client with the largest epsilon against all its
    receivers together and, among equals, the one with the most neighbours.

    Raises InputError if a number is given, and no row has statistics or a client with this number.
    """
    first = {label: runs[0] for label, runs in subject.rows.items()}
    found = {label: (run, run.statistics) for label, run in first.items() if run.statistics is not None}
    if number is not None and not found:
        run = subject.first
        raise InputError(
            f"the run in {run.folder} has no statistics of single clients (clients.parquet), so client "
            f"{number} cannot be shown; {run.result.method} does not record them"
        )
    return [_describe(label, run, statistics, number) for label, (run, statistics) in found.items()]


def worst_client(run: Run) -> str:
    """State the largest epsilons over all clients; "" if the run has no per-client epsilons."""
    statistics = run.statistics
    if statistics is None or not {"epsilon", "epsilon_colluding"} <= set(statistics):
        return ""
    (sentence,) = sentences("worst_client", statistics=statistics)
    return sentence


def _describe(label: str, run: Run, statistics: Statistics, number: int | None) -> OneClient:
    """Describe client `number` of a run, or by default the one whose features are protected least."""
    count = len(statistics["client"])
    if number is None:
        order = [statistics[name] for name in ("neighbours", "epsilon_colluding") if name in statistics]
        # Among equals in both, the client with the smallest number.
        client = int(np.lexsort([-statistics["client"], *order])[-1])
    elif 0 <= number < count:
        client = number
    else:
        raise InputError(f"the run in {run.folder} has no client {number}; give one from 0 to {count - 1}")
    # Plain numbers, because templates write them.
    values = {name: column[client].item() for name, column in statistics.items()}
    lines = [
        _line(run, line, statistics, values)
        for line in left(label, run).out
        if len(line.clients) > client and line.clients[client]
    ]
    training = run.manifest.config.training
    seeded = training.get("noise_seed") is not None
    simulated = any(entry.kind == "protocol" and is_simulated(entry.protection) for entry in run.entries)
    described = sentences("client", values=values, seeded=seeded, simulated=simulated)
    return OneClient(label, number is not None, described, lines, worst_client(run))


def _line(run: Run, line: Line, statistics: Statistics, values: Mapping[str, float]) -> ClientLine:
    """Return a client's part of a transfer: its receivers, bytes and number of messages.

    The number is exact if the ledger counts one message per client and receiver, otherwise an upper limit.
    """
    method = METHODS.find(run.result.method)
    column = "" if method is None else method.sends.recipients.get(line.name, "")
    per_transfer: int | None = None
    count, receivers = 0.0, "others"
    if line.link == "client to server":
        # Every client sends the server one message.
        count, per_transfer, receivers = 1, len(statistics["client"]), "server"
    elif column in values:
        count, per_transfer, receivers = values[column], int(statistics[column].sum()), column
    (to,) = sentences("receivers", column=receivers, count=count)
    messages = "-"
    if per_transfer is not None:
        # If clients were absent, or senders combine messages, the ledger has fewer.
        exact = line.messages == line.times * per_transfer
        (messages,) = sentences("messages", count=int(line.times * count), exact=exact)
    return ClientLine(line, to, human_bytes(line.clients[int(values["client"])]), messages)

"""What left the clients of a run, read from its ledger: one line for each named transfer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from graphfed.deployment.participant import MESSAGES as DEPLOYED
from graphfed.federation.ledger import is_readable, is_simulated
from graphfed.methods.common.entity_alignment import OWNER_MESSAGES
from graphfed.methods.registry import METHODS
from graphfed.report.read import Run, Transfer
from graphfed.report.templates import sentences
from graphfed.runs.progress import human_bytes
from graphfed.runs.train import MESSAGES

#: The most clients that have a column each in the table of what each client sent, and the columns for more.
CLIENT_COLUMNS = 12
SHOWN_CLIENTS = ("smallest", "median", "largest")
#: The direction of a transfer, by sender and receiver in the ledger.
LINKS = {
    ("clients", "server"): "client to server",
    ("server", "clients"): "server to client",
    ("clients", "clients"): "client to client",
}


@dataclass(frozen=True)
class Line:
    """A named transfer over all phases of a run.

    Attributes:
        text: What it is, and what its receiver can read from it; "" if the method does not describe it.
        of_gradient: Whether it is the gradient of the transfer that `text` describes.
        link: Its direction, as in "client to server".
        phases: The parts of the run in which it was made.
        bytes: Payload of all clients.
        clients: Bytes of each client: those that it sent, or received from the server.
        times: How often it was made.
        messages: The number of all its messages.
    """

    name: str
    text: str
    of_gradient: bool
    link: str
    protection: str
    phases: str
    bytes: int
    clients: list[int]
    times: int
    messages: int

    @property
    def from_clients(self) -> bool:
        return not self.link.startswith("server")

    @property
    def readable(self) -> bool:
        """Whether nothing keeps its receiver from reading it."""
        return is_readable(self.protection)

    @property
    def simulated(self) -> bool:
        """Whether its protection is only simulated."""
        return is_simulated(self.protection)

    @property
    def description(self) -> str:
        """What it is, and what its receiver can read from it."""
        return sentences("description", line=self)[0]

    @property
    def protected_by(self) -> str:
        """The protection, as a phrase."""
        return sentences("protected_by", protection=self.protection)[0]


def lines_of(entries: Iterable[Transfer], method: str) -> list[Line]:
    """Group the entries of all ledgers of one run by name, direction and protection, in their order."""
    known = METHODS.find(method)
    texts: Mapping[str, str] = {
        # A method of a plug-in that is not loaded has no descriptions.
        **({} if known is None else known.sends.messages), **MESSAGES, **DEPLOYED, **OWNER_MESSAGES
    }  # fmt: skip
    # One transfer may have an entry for each phase, and for each ledger of a site.
    grouped: dict[tuple[str, str, str], list[Transfer]] = {}
    for entry in entries:
        link = LINKS[entry.sender, entry.receiver]
        grouped.setdefault((entry.name, link, entry.protection), []).append(entry)
    return [
        Line(
            name,
            # A gradient is described together with the transfer whose gradient it is.
            texts.get(name, texts.get(name.removesuffix("/grad"), "")),
            name not in texts and name.endswith("/grad"),
            link,
            protection,
            ", ".join(dict.fromkeys(entry.phase for entry in group)),
            sum(entry.bytes for entry in group),
            [sum(each) for each in zip(*(_bytes_of_clients(entry) for entry in group), strict=True)],
            sum(entry.transfers for entry in group),
            sum(entry.messages for entry in group),
        )
        for (name, link, protection), group in grouped.items()
    ]


def _bytes_of_clients(entry: Transfer) -> Sequence[int]:
    return entry.received if entry.sender == "server" else entry.sent


def noised_protections(entries: Iterable[Transfer]) -> list[str]:
    """Return under which differential privacy values were sent, as in "ldp(eps=2)", sorted."""
    return sorted({entry.protection for entry in entries if "dp(" in entry.protection})


@dataclass(frozen=True)
class Left:
    """What the clients of a run sent, to the server or to each other (`out`), and received (`back`)."""

    label: str
    run: Run
    out: list[Line]
    back: list[Line]

    @property
    def pooled(self) -> bool:
        """Whether the method trains on the data of all clients in one place."""
        known = METHODS.find(self.run.result.method)
        return known is not None and known.pooled

    @property
    def sentence(self) -> str:
        """How much left the clients, and how much of it the receivers can read."""
        sent = human_bytes(sum(line.bytes for line in self.out))
        return sentences("left", left=self, sent=sent)[0]

    @property
    def many(self) -> bool:
        """Whether there are too many clients for one column each."""
        return self.run.result.clients > CLIENT_COLUMNS

    @property
    def columns(self) -> Sequence[str]:
        """The heads of the columns: the clients, or statistics over many clients; () without a table."""
        count = self.run.result.clients
        # A ledger of another number of clients cannot be divided into columns.
        if not self.out or self.pooled or any(len(line.clients) != count for line in self.out):
            return ()
        named = self.run.manifest.partition.client_names
        names = named if len(named) == count else [f"client {k}" for k in range(count)]
        return SHOWN_CLIENTS if self.many else names

    def cells(self, line: Line | None = None) -> list[str]:
        """Return the bytes in each column of the table of what each client sent; None: of all transfers."""
        lines = self.out if line is None else [line]
        each = [sum(amounts) for amounts in zip(*(one.clients for one in lines), strict=True)]
        shown = (min(each), median(each), max(each)) if self.many else each
        return [human_bytes(amount) for amount in shown]


def left(label: str, run: Run) -> Left:
    lines = lines_of(run.entries, run.result.method)
    out = [line for line in lines if line.from_clients]
    return Left(label, run, out, [line for line in lines if not line.from_clients])

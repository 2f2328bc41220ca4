"""What left the clients of a run, from its ledger: a line for each named transfer."""

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

__all__ = ["Left", "Line", "left", "lines_of"]

#: Values of the ledger's protection -> words.
PROTECTION = {
    "clear": "none: the receiver reads it",
    "public": "public: it says nothing of anyone's data",
    "aggregate": "the receiver gets only the total",
    "shared": "secret shares",
    "encrypted": "encrypted",
    "keyed hash": "a keyed hash: the receiver can compare, not read",
    "simulated": "simulated: nothing is hidden in this run",
}
#: Of more clients than this, which have a column in the table of what each sent.
CLIENT_COLUMNS = 12
SHOWN_CLIENTS = ("smallest", "median", "largest")
#: The two ends of a transfer in the ledger -> words.
LINKS = {
    ("clients", "server"): "client to server",
    ("server", "clients"): "server to client",
    ("clients", "clients"): "client to client",
}


@dataclass(frozen=True)
class Line:
    """A named transfer over all phases of a run.

    Attributes:
        name: Its name.
        words: What it is, and what its receiver can read from it; "" where the method does not say.
        of_gradient: Whether it is a gradient of what `words` describes.
        link: Between whom.
        protection: As the ledger has it.
        phases: In which parts of the run.
        bytes: Of payload.
        clients: Bytes of each client: sent, or received from the server.
        times: How often it was made.
        messages: Of how many messages all of these were.
    """

    name: str
    words: str
    of_gradient: bool
    link: str
    protection: str
    phases: str
    bytes: int
    clients: list[int]
    times: int
    messages: int

    @property
    def leaves(self) -> bool:
        """Whether the clients send it."""
        return not self.link.startswith("server")

    @property
    def open(self) -> bool:
        """Whether nothing keeps its receiver from reading it."""
        return is_readable(self.protection)

    @property
    def simulated(self) -> bool:
        """Whether its protection is only simulated."""
        return is_simulated(self.protection)

    @property
    def description(self) -> str:
        """What it is, in words."""
        return sentences("transfer_words", line=self)[0]

    @property
    def protected_by(self) -> str:
        """The protection in words."""
        return PROTECTION.get(self.protection, self.protection)


def lines_of(entries: Iterable[Transfer], method: str) -> list[Line]:
    """Return the transfers of ledgers of one run of a method, in their order."""
    known = METHODS.find(method)
    words: Mapping[str, str] = {
        **({} if known is None else known.sends.messages), **MESSAGES, **DEPLOYED, **OWNER_MESSAGES
    }  # fmt: skip
    grouped: dict[tuple[str, str, str], list[Transfer]] = {}
    for entry in entries:
        link = LINKS[entry.sender, entry.receiver]
        grouped.setdefault((entry.name, link, entry.protection), []).append(entry)
    return [
        Line(
            name,
            words.get(name, words.get(name.removesuffix("/grad"), "")),
            name not in words and name.endswith("/grad"),
            link,
            protection,
            ", ".join(dict.fromkeys(entry.phase for entry in group)),
            sum(entry.bytes for entry in group),
            [sum(each) for each in zip(*(_of_clients(entry) for entry in group), strict=True)],
            sum(entry.transfers for entry in group),
            sum(entry.messages for entry in group),
        )
        for (name, link, protection), group in grouped.items()
    ]


def _of_clients(entry: Transfer) -> Sequence[int]:
    return entry.received if entry.sender == "server" else entry.sent


@dataclass(frozen=True)
class Left:
    """What left the clients of a run, and what reached them.

    Attributes:
        label: The row of the run.
        run: The run.
        out: What the clients sent.
        back: What they received from the server.
    """

    label: str
    run: Run
    out: list[Line]
    back: list[Line]

    @property
    def pooled(self) -> bool:
        """Whether the method trains on all data in one place."""
        known = METHODS.find(self.run.result.method)
        return known is not None and known.pooled

    @property
    def sentence(self) -> str:
        """The privacy statement in one sentence."""
        sent = human_bytes(sum(line.bytes for line in self.out))
        return sentences("left", left=self, sent=sent)[0]

    @property
    def many(self) -> bool:
        """Whether there are too many clients for a column each."""
        return self.run.result.clients > CLIENT_COLUMNS

    @property
    def columns(self) -> Sequence[str]:
        """The clients, or of many which of them are shown; none where there is nothing to show."""
        count = self.run.result.clients
        if not self.out or self.pooled or any(len(line.clients) != count for line in self.out):
            return ()
        named = self.run.manifest.partition.client_names
        names = named if len(named) == count else [f"client {k}" for k in range(count)]
        return SHOWN_CLIENTS if self.many else names

    def cells(self, line: Line | None = None) -> list[str]:
        """Return the bytes in the columns: of a transfer, or of all that left the clients."""
        lines = self.out if line is None else [line]
        each = [sum(amounts) for amounts in zip(*(one.clients for one in lines), strict=True)]
        shown = (min(each), median(each), max(each)) if self.many else each
        return [human_bytes(amount) for amount in shown]


def left(label: str, run: Run) -> Left:
    """Return what left the clients of a run."""
    lines = lines_of(run.entries, run.result.method)
    out = [line for line in lines if line.leaves]
    return Left(label, run, out, [line for line in lines if not line.leaves])

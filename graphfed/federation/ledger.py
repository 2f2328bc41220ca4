"""The ledger: counts what each client sends and receives. Only the federation records transfers.

There is one entry for each named transfer (and phase, direction and protection), with totals and one number
per client; not one object per message, because a run can send tens of millions. Bytes are payload bytes
(elements times element size). The runtime reports separately what headers and encryption of the network add.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from graphfed.files import JsonObject

PHASES = ("setup", "train", "eval", "control", "predict")
#: The phases whose bytes are a method's cost (`bytes.total`). The other phases are counted separately.
COUNTED_PHASES = ("setup", "train")
UP, DOWN, PEER = "up", "down", "peer"
#: Protections that hide nothing: no protection, and a protocol that is only simulated.
PLAINTEXT, SIMULATED = "plaintext", "simulated"

#: The shape of a tensor, or of every tensor of a payload by name.
Shape = list[int] | JsonObject


def is_readable(protection: str) -> bool:
    """Tell whether the receiver can read what is sent under a protection."""
    return protection in (PLAINTEXT, SIMULATED)


def is_simulated(protection: str) -> bool:
    """Tell whether the protocol that would hide what is sent was only simulated."""
    return protection == SIMULATED


@dataclass(frozen=True, eq=False)
class Flow:
    """How many units every client sends and receives in a transfer. A unit is a row, or one client's part.

    Attributes:
        direction: "up" (clients to server), "down" (server to clients) or "peer" (clients to clients).
        counted: [K] bool, the clients whose traffic this process sees, among those that send or receive.
        units: (sent, received), [K] int64 each: the units that each client sends (0 for "down") and receives
            (0 for "up"). None for "peer".
        links: For "peer", [P, 3] int64: (sender, receiver, units) of each pair of clients with traffic.
    """

    direction: str
    counted: np.ndarray
    units: tuple[np.ndarray, np.ndarray] | None
    links: np.ndarray | None = None

    @staticmethod
    def up(units: np.ndarray, counted: np.ndarray) -> "Flow":
        """Make the flow from clients to the server, of units [K]. `counted` [K] bool are the clients whose
        traffic this process sees. Its `back` is the flow from the server.
        """
        units = units.astype(np.int64)
        return Flow(UP, counted, (units, np.zeros_like(units)))

    @staticmethod
    def peer(links: np.ndarray, here: np.ndarray) -> "Flow":
        """Make a flow between clients, of links [P, 3] int64 (sender, receiver, units). `here` [K] bool are
        the clients in this process.

        It costs memory in proportion to its links, however many clients there are.
        """
        return Flow(PEER, here, None, links)

    @property
    def sent(self) -> np.ndarray:
        """The units that each client sends, [K] int64."""
        return self._vectors[0]

    @property
    def received(self) -> np.ndarray:
        """The units that each client receives, [K] int64."""
        return self._vectors[1]

    @cached_property
    def _vectors(self) -> tuple[np.ndarray, np.ndarray]:
        if self.units is not None:
            return self.units
        sent, received = np.zeros((2, len(self.counted)), dtype=np.int64)
        self.add_to(sent, received, 1)
        return sent, received

    def add_to(self, sent: np.ndarray, received: np.ndarray, unit_bytes: int) -> None:
        """Add the bytes of all units to the totals of the clients, [K] int64, in place."""
        if self.units is not None:
            sent += self.units[0] * unit_bytes
            received += self.units[1] * unit_bytes
            return
        assert self.links is not None
        # add.at, because a client occurs in several links.
        for column, total in ((0, sent), (1, received)):
            links = self._visible_links(column)
            np.add.at(total, links[:, column], links[:, 2] * unit_bytes)

    def _visible_links(self, column: int) -> np.ndarray:
        """The links whose sender (column 0) or receiver (column 1) is in this process."""
        assert self.links is not None
        seen = self.counted[self.links[:, column]]
        return self.links if seen.all() else self.links[seen]

    @cached_property
    def messages(self) -> int:
        """The number of messages between clients and server, or of pairs of clients with traffic.

        Such a pair is counted in the sender's process.
        """
        if self.links is None:
            return int(self.counted.sum())
        # By sender, so that a pair in two processes is counted in one of them.
        return len(self._visible_links(0))

    @cached_property
    def total(self) -> int:
        """The number of units, each counted once."""
        if self.links is not None:
            return int(self._visible_links(0)[:, 2].sum())
        return int((self.received if self.direction == DOWN else self.sent).sum())

    @cached_property
    def back(self) -> "Flow":
        """The same units in the opposite direction."""
        if self.links is not None:
            return Flow.peer(self.links[:, [1, 0, 2]], self.counted)
        direction = {UP: DOWN, DOWN: UP, PEER: PEER}[self.direction]
        return Flow(direction, self.counted, (self.received, self.sent))

    def of(self, clients: np.ndarray) -> "Flow":
        """Select the part of the flow that some clients [K] bool send (for "down": receive)."""
        if self.links is None:
            return Flow(
                self.direction, self.counted & clients, (self.sent * clients, self.received * clients)
            )
        return Flow.peer(self.links[clients[self.links[:, 0]]], self.counted)


class LedgerRecord(NamedTuple):
    """One transfer as the ledger counts it: a flow of units, each of `shape` and of `unit_bytes` bytes."""

    name: str
    kind: str
    dtype: str
    shape: Shape
    protection: str
    flow: Flow
    unit_bytes: int


class Entry:
    """All transfers of one name, phase, direction and protection.

    Kind, dtype and shape are those of the latest transfer.

    Recording costs the same for ten clients and for a million: while a transfer repeats with the same flow,
    an entry only adds up the bytes per unit. The per-client totals are brought up to date when they are read.
    """

    def __init__(self, phase: str, record: LedgerRecord) -> None:
        self.phase, self.name, self.direction = phase, record.name, record.flow.direction
        self.kind, self.dtype, self.shape, self.protection = (
            record.kind,
            record.dtype,
            record.shape,
            record.protection,
        )
        self.transfers = self.messages = self.bytes = 0
        self.rounds: dict[int, int] = {}
        self._sent = np.zeros(len(record.flow.counted), dtype=np.int64)
        self._received = self._sent.copy()
        self._flow, self._unit_bytes = record.flow, 0

    def add(self, record: LedgerRecord, round_number: int) -> None:
        """Count one more transfer."""
        # While the flow is the same object, only the bytes per unit are added up (see the class).
        if record.flow is not self._flow:
            self._settle()
            self._flow = record.flow
        self._unit_bytes += record.unit_bytes
        self.kind, self.dtype, self.shape = record.kind, record.dtype, record.shape
        self.transfers += 1
        self.messages += record.flow.messages
        amount = record.flow.total * record.unit_bytes
        self.bytes += amount
        self.rounds[round_number] = self.rounds.get(round_number, 0) + amount

    def merge(self, other: "Entry") -> None:
        """Add what another process counted of the same transfers.

        A process does not count a transfer in which none of its clients has a row, so the largest number of
        transfers is kept.
        """
        self.transfers = max(self.transfers, other.transfers)
        # The properties settle what is pending first.
        self._sent = self.sent + other.sent
        self._received = self.received + other.received
        self.messages += other.messages
        self.bytes += other.bytes
        for round_number, amount in other.rounds.items():
            self.rounds[round_number] = self.rounds.get(round_number, 0) + amount

    def _settle(self) -> None:
        if self._unit_bytes:
            self._flow.add_to(self._sent, self._received, self._unit_bytes)
            self._unit_bytes = 0

    @property
    def sent(self) -> np.ndarray:
        """The bytes that each client sent, [K] int64."""
        self._settle()
        return self._sent.copy()

    @property
    def received(self) -> np.ndarray:
        """The bytes that each client received, [K] int64."""
        self._settle()
        return self._received.copy()

    def to_json(self) -> JsonObject:
        """Convert the entry to plain JSON values, as it is in ledger.json."""
        return {
            "phase": self.phase,
            "name": self.name,
            "from": "server" if self.direction == DOWN else "clients",
            "to": "server" if self.direction == UP else "clients",
            "kind": self.kind,
            "dtype": self.dtype,
            "protection": self.protection,
            "shape": self.shape,
            "transfers": self.transfers,
            "messages": self.messages,
            "bytes": self.bytes,
            "sent": self.sent.tolist(),
            "received": self.received.tolist(),
            "rounds": {str(k): v for k, v in sorted(self.rounds.items())},
        }

    @staticmethod
    def from_json(content: JsonObject) -> "Entry":
        """Restore an entry."""
        directions = {("clients", "server"): UP, ("server", "clients"): DOWN, ("clients", "clients"): PEER}
        sent, received = (np.array(content[key], dtype=np.int64) for key in ("sent", "received"))
        # Only the direction of this flow counts: it has no bytes yet, and the next transfer brings its own.
        flow = Flow(directions[content["from"], content["to"]], sent > 0, (sent, received))
        name, kind, dtype = content["name"], content["kind"], content["dtype"]
        entry = Entry(
            content["phase"],
            LedgerRecord(name, kind, dtype, content["shape"], content["protection"], flow, 0),
        )
        entry._sent, entry._received = sent.copy(), received.copy()
        entry.transfers, entry.messages, entry.bytes = (
            content[k] for k in ("transfers", "messages", "bytes")
        )
        entry.rounds = {int(k): v for k, v in content["rounds"].items()}
        return entry


class Ledger:
    """Counts the transfers of one run between participants in this process and all others.

    Attributes:
        phase: The current phase, one of `PHASES`.
    """

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self.phase = "setup"
        self.round = 0
        self._entries: dict[tuple[str, str, str, str], Entry] = {}

    @contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        """Record the transfers of this block in one of `PHASES`; ValueError for any other."""
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r} is unknown; the phases are {', '.join(PHASES)}")
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def record(self, record: LedgerRecord) -> None:
        """Add one transfer to the current phase and round."""
        key = (self.phase, record.name, record.flow.direction, record.protection)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(self.phase, record)
        entry.add(record, self.round)

    @property
    def entries(self) -> list[Entry]:
        """All entries, in the order of first use."""
        return list(self._entries.values())

    @property
    def counted_bytes(self) -> int:
        """The bytes of setup and training so far."""
        return sum(e.bytes for e in self._entries.values() if e.phase in COUNTED_PHASES)

    def bytes_of_clients(self) -> np.ndarray:
        """Sum the bytes that each client sent and received in setup and training so far, [K] int64."""
        total = np.zeros(self.num_clients, dtype=np.int64)
        for e in self._entries.values():
            if e.phase in COUNTED_PHASES:
                total += e.sent
                total += e.received
        return total

    def bytes_of(self, name: str, phase: str | None = None) -> int:
        """Sum the bytes of the transfers of one name, in one phase or in all (None)."""
        return sum(e.bytes for e in self.entries if e.name == name and phase in (None, e.phase))

    def totals(self) -> JsonObject:
        """Summarise the ledger for the `bytes` object of result.json.

        Returns:
            The total of setup and training, its parts by direction, of setup alone and by transfer; and under
            "other_phases" the bytes of each other phase, which are not in the total.
        """
        counted = [e for e in self.entries if e.phase in COUNTED_PHASES]
        by_transfer: dict[str, int] = {}
        for e in counted:
            by_transfer[e.name] = by_transfer.get(e.name, 0) + e.bytes
        return {
            "total": sum(e.bytes for e in counted),
            "up": sum(e.bytes for e in counted if e.direction == UP),
            "down": sum(e.bytes for e in counted if e.direction == DOWN),
            "peer": sum(e.bytes for e in counted if e.direction == PEER),
            "setup": sum(e.bytes for e in counted if e.phase == "setup"),
            "by_transfer": by_transfer,
            "other_phases": {
                phase: sum(e.bytes for e in self.entries if e.phase == phase)
                for phase in PHASES
                if phase not in COUNTED_PHASES
            },
        }

    def statement(self) -> JsonObject:
        """Summarise what the clients sent, for the `privacy` object of result.json.

        Returns:
            The bytes and the names of the transfers, by protection. The order is that of ledger.json, so a
            resumed run has the same.
        """
        left: dict[str, JsonObject] = {}
        for e in self._in_order():
            # What the server sends is not the clients' data.
            if e.direction == DOWN:
                continue
            listed = left.setdefault(e.protection, {"bytes": 0, "transfers": []})
            listed["bytes"] += e.bytes
            if e.name not in listed["transfers"]:
                listed["transfers"].append(e.name)
        return {"left_the_clients": left}

    def to_json(self) -> JsonObject:
        """Convert the ledger to plain JSON values.

        Returns:
            The content of ledger.json. Its entries are sorted by phase and name, so that ledgers of separate
            processes, added up, are equal to the ledger of one.
        """
        return {
            "num_clients": self.num_clients,
            "entries": [entry.to_json() for entry in self._in_order()],
        }

    def _in_order(self) -> "list[Entry]":
        """The entries sorted by phase and name."""
        items = sorted(self._entries.items(), key=lambda item: (PHASES.index(item[0][0]), *item[0][1:]))
        return [entry for _, entry in items]

    @staticmethod
    def from_json(content: JsonObject) -> "Ledger":
        """Restore a ledger."""
        ledger = Ledger(content["num_clients"])
        for described in content["entries"]:
            entry = Entry.from_json(described)
            ledger._entries[entry.phase, entry.name, entry.direction, entry.protection] = entry
        return ledger

    def add_remote(self, other: "Ledger") -> None:
        """Add the transfers between clients that another process counted.

        The server's process does not see them.
        """
        for key, entry in other._entries.items():
            # The server's own process has counted every transfer with the server.
            if entry.direction != PEER:
                continue
            if key in self._entries:
                self._entries[key].merge(entry)
            else:
                self._entries[key] = entry

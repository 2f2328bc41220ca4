"""The ledger: what left each client, counted where it crosses and nowhere else.

One entry for each named transfer (and phase, direction and protection), with totals and one number per
client: never one object per message, because a run can send tens of millions. Bytes are payload bytes
(elements times element size); what a wire adds in headers and encryption is reported by the runtime beside
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from graphfed.files import JsonObject

__all__ = [
    "PHASES",
    "Entry",
    "Flow",
    "Ledger",
    "LedgerRecord",
    "Shape",
    "is_readable",
    "is_simulated",
]

PHASES = ("setup", "train", "eval", "control", "predict")
#: The phases whose bytes are a method's cost (`bytes.total`); the other phases stand beside.
COUNTED_PHASES = ("setup", "train")
UP, DOWN, PEER = "up", "down", "peer"
#: Protections that hide nothing: none, and a protocol that is only simulated.
CLEAR, SIMULATED = "clear", "simulated"

#: The shape of a tensor, or of every tensor of a payload by name.
Shape = list[int] | JsonObject


def is_readable(protection: str) -> bool:
    """Return whether the receiver can read what is sent under a protection, in the ledger's words."""
    return protection in (CLEAR, SIMULATED)


def is_simulated(protection: str) -> bool:
    """Return whether the protocol that should hide what is sent was only simulated."""
    return protection == SIMULATED


@dataclass(frozen=True, eq=False)
class Flow:
    """How many units (rows, or one part each) every client sends and receives in a transfer, whatever a unit
    weighs.

    counted [K] bool: the clients whose traffic this process sees, of those that send or get a message.
    units: (sent, received) [K] each: units that leave each client (zero for `down`) and that reach it (zero
    for `up`). links [P, 3] (for `peer`, in the place of units): sender, receiver and rows of pairs of clients
    with traffic."""

    direction: str
    counted: np.ndarray
    units: tuple[np.ndarray, np.ndarray] | None
    links: np.ndarray | None = None

    @staticmethod
    def up(units: np.ndarray, counted: np.ndarray) -> "Flow":
        """From the clients `counted` [K] bool to the server, `units` [K] each. Its `back` is from the
        server."""
        units = units.astype(np.int64)
        return Flow(UP, counted, (units, np.zeros_like(units)))

    @staticmethod
    def peer(links: np.ndarray, here: np.ndarray) -> "Flow":
        """Between clients: `links` as above, as seen by a process that holds the clients `here` [K] bool.

        Costs what its links take, however many clients there are."""
        return Flow(PEER, here, None, links)

    @property
    def sent(self) -> np.ndarray:
        """Units that leave each client, [K] int64."""
        return self._vectors[0]

    @property
    def received(self) -> np.ndarray:
        """Units that reach each client, [K] int64."""
        return self._vectors[1]

    @cached_property
    def _vectors(self) -> tuple[np.ndarray, np.ndarray]:
        if self.units is not None:
            return self.units
        sent, received = np.zeros((2, len(self.counted)), dtype=np.int64)
        self.add_to(sent, received, 1)
        return sent, received

    def add_to(self, sent: np.ndarray, received: np.ndarray, unit_bytes: int) -> None:
        """Add the bytes of all units, at `unit_bytes` each, to those of the clients [K] int64, in place."""
        if self.units is not None:
            sent += self.units[0] * unit_bytes
            received += self.units[1] * unit_bytes
            return
        assert self.links is not None
        for end, total in ((0, sent), (1, received)):
            links = self._seen(end)
            np.add.at(total, links[:, end], links[:, 2] * unit_bytes)

    def _seen(self, end: int) -> np.ndarray:
        """The links whose sender (0) or receiver (1) is in this process."""
        assert self.links is not None
        seen = self.counted[self.links[:, end]]
        return self.links if seen.all() else self.links[seen]

    @cached_property
    def messages(self) -> int:
        """Messages between clients and server, or pairs of clients with traffic (counted at the sender's
        process)."""
        if self.links is None:
            return int(self.counted.sum())
        return len(self._seen(0))

    @cached_property
    def total(self) -> int:
        """Units in all, each counted once."""
        if self.links is not None:
            return int(self._seen(0)[:, 2].sum())
        return int((self.received if self.direction == DOWN else self.sent).sum())

    @cached_property
    def back(self) -> "Flow":
        """The same units the other way."""
        if self.links is not None:
            return Flow.peer(self.links[:, [1, 0, 2]], self.counted)
        direction = {UP: DOWN, DOWN: UP, PEER: PEER}[self.direction]
        return Flow(direction, self.counted, (self.received, self.sent))

    def of(self, clients: np.ndarray) -> "Flow":
        """The part of the flow that comes from (for `down`: goes to) the given clients [K] bool."""
        if self.links is None:
            return Flow(
                self.direction, self.counted & clients, (self.sent * clients, self.received * clients)
            )
        return Flow.peer(self.links[clients[self.links[:, 0]]], self.counted)


class LedgerRecord(NamedTuple):
    """One transfer as the ledger counts it: a flow of units, each of `unit_bytes` bytes and of `shape`."""

    name: str
    kind: str
    dtype: str
    shape: Shape
    protection: str
    flow: Flow
    unit_bytes: int


class Entry:
    """All transfers of one name, phase, direction and protection; kind, dtype and shape are those of the
    latest.

    The per-client vectors are brought up to date when they are read: while a transfer repeats with the same
    flow, an entry only adds up the bytes per unit, so recording costs the same for ten clients and for a
    million."""

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

    def add(self, record: LedgerRecord, round: int) -> None:
        """Count one more transfer."""
        if record.flow is not self._flow:
            self._settle()
            self._flow = record.flow
        self._unit_bytes += record.unit_bytes
        self.kind, self.dtype, self.shape = record.kind, record.dtype, record.shape
        self.transfers += 1
        self.messages += record.flow.messages
        amount = record.flow.total * record.unit_bytes
        self.bytes += amount
        self.rounds[round] = self.rounds.get(round, 0) + amount

    def merge(self, other: "Entry") -> None:
        """Add what another process counted of the same transfers."""
        self._sent = self.sent + other.sent
        self._received = self.received + other.received
        self.messages += other.messages
        self.bytes += other.bytes
        for round, amount in other.rounds.items():
            self.rounds[round] = self.rounds.get(round, 0) + amount

    def _settle(self) -> None:
        if self._unit_bytes:
            self._flow.add_to(self._sent, self._received, self._unit_bytes)
            self._unit_bytes = 0

    @property
    def sent(self) -> np.ndarray:
        """Bytes that left each client, [K] int64."""
        self._settle()
        return self._sent.copy()

    @property
    def received(self) -> np.ndarray:
        """Bytes that reached each client, [K] int64."""
        self._settle()
        return self._received.copy()

    def to_json(self) -> JsonObject:
        """The entry as plain data."""
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
        """The entry that `to_json` described."""
        directions = {("clients", "server"): UP, ("server", "clients"): DOWN, ("clients", "clients"): PEER}
        sent, received = (np.array(content[key], dtype=np.int64) for key in ("sent", "received"))
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
    """Counts the transfers of one run at the places this process workers.

    `record` is called by the federation only; methods never count their own bytes."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self.phase = "setup"
        self.round = 0
        self._entries: dict[tuple[str, str, str, str], Entry] = {}

    @contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        """Record the transfers of this block in `phase`."""
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
        """Every entry, in the order of first use."""
        return list(self._entries.values())

    @property
    def counted_bytes(self) -> int:
        """Bytes of setup and training so far."""
        return sum(e.bytes for e in self._entries.values() if e.phase in COUNTED_PHASES)

    def bytes_of_clients(self) -> np.ndarray:
        """Bytes that left and reached each client in setup and training so far, together, [K] int64."""
        every = np.zeros(self.num_clients, dtype=np.int64)
        for e in self._entries.values():
            if e.phase in COUNTED_PHASES:
                every += e.sent
                every += e.received
        return every

    def bytes_of(self, name: str, phase: str | None = None) -> int:
        """Total bytes of the transfers called `name`."""
        return sum(e.bytes for e in self.entries if e.name == name and phase in (None, e.phase))

    def totals(self) -> JsonObject:
        """The `bytes` object of result.json: total (setup + train), by direction, setup alone and every
        transfer's own, which add up to the total; beside: what crossed in the other phases."""
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
            "beside": {
                phase: sum(e.bytes for e in self.entries if e.phase == phase)
                for phase in PHASES
                if phase not in COUNTED_PHASES
            },
        }

    def statement(self) -> JsonObject:
        """What left the clients, by protection: the `privacy` object of result.json. In the order of the
        file, which a run that is resumed has too."""
        left: dict[str, JsonObject] = {}
        for e in self._in_order():
            if e.direction == DOWN:
                continue
            here = left.setdefault(e.protection, {"bytes": 0, "transfers": []})
            here["bytes"] += e.bytes
            if e.name not in here["transfers"]:
                here["transfers"].append(e.name)
        return {"left_the_clients": left}

    def to_json(self) -> JsonObject:
        """The whole ledger as plain data, for ledger.json and for comparing placements: entries by phase and
        name, so that ledgers of separate processes put together read as one."""
        return {
            "num_clients": self.num_clients,
            "entries": [entry.to_json() for entry in self._in_order()],
        }

    def _in_order(self) -> "list[Entry]":
        """The entries by phase and name."""
        items = sorted(self._entries.items(), key=lambda item: (PHASES.index(item[0][0]), *item[0][1:]))
        return [entry for _, entry in items]

    @staticmethod
    def from_json(content: JsonObject) -> "Ledger":
        """The ledger that `to_json` described."""
        ledger = Ledger(content["num_clients"])
        for told in content["entries"]:
            entry = Entry.from_json(told)
            ledger._entries[entry.phase, entry.name, entry.direction, entry.protection] = entry
        return ledger

    def add_remote(self, other: "Ledger") -> None:
        """Add what clients sent to each other as another process counted it: the server does not see those
        transfers."""
        for key, theirs in other._entries.items():
            if theirs.direction != PEER:
                continue
            if key in self._entries:
                self._entries[key].merge(theirs)
            else:
                self._entries[key] = theirs

"""The ledger: what left each site, counted where it crosses and nowhere else.

One entry for each named transfer (and phase, direction and protection), with totals and one number per client: never one
object per message, because a run can send tens of millions. Bytes are payload bytes (elements times element size); what a
wire adds in headers and encryption is reported by the runtime beside them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

__all__ = ["PHASES", "Charge", "Entry", "Ledger"]

PHASES = ("setup", "train", "eval", "control", "predict")
#: The phases whose bytes are a method's cost (`bytes.total`); the other phases stand beside.
COUNTED_PHASES = ("setup", "train")
UP, DOWN, PEER = "up", "down", "peer"

#: The shape of a tensor, or of every tensor of a payload by name.
Shape = list[int] | dict[str, Any]


@dataclass(frozen=True)
class Charge:
    """One transfer as the ledger counts it: clients to server (`up`), server to clients (`down`), client to client (`peer`).

    sent [K]: bytes that left each client (zero for `down`); received [K]: bytes that reached it (zero for `up`); only of the
    clients whose traffic this process sees. shape: of one client's part or of one row."""

    name: str
    direction: str
    kind: str
    dtype: str
    shape: Shape
    protection: str
    messages: int
    sent: np.ndarray
    received: np.ndarray

    def reversed(self, answered: np.ndarray) -> "Charge":
        """The gradients that answer this transfer, of the clients [K] bool whose messages wanted one."""
        back = {UP: DOWN, DOWN: UP, PEER: PEER}[self.direction]
        return replace(
            self,
            name=f"{self.name}/grad",
            direction=back,
            kind="gradients",
            sent=self.received * answered,
            received=self.sent * answered,
        )


@dataclass
class Entry:
    """All transfers of one name, phase, direction and protection; `charge` is the latest."""

    phase: str
    charge: Charge
    sent: np.ndarray
    received: np.ndarray
    transfers: int = 0
    messages: int = 0
    bytes: int = 0
    rounds: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.charge.name

    @property
    def direction(self) -> str:
        return self.charge.direction


class Ledger:
    """Counts the transfers of one run at the places this process hosts.

    `charge` is called by the federation only; methods never count their own bytes."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self.phase = "setup"
        self.round = 0
        self._entries: dict[tuple[str, str, str, str], Entry] = {}

    @contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        """Charge the transfers of this block to `phase`."""
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r} is unknown; the phases are {', '.join(PHASES)}")
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def charge(self, charge: Charge) -> None:
        """Add one transfer to the current phase and round."""
        key = (self.phase, charge.name, charge.direction, charge.protection)
        entry = self._entries.get(key)
        if entry is None:
            zeros = np.zeros(self.num_clients, dtype=np.int64)
            entry = self._entries[key] = Entry(self.phase, charge, zeros, zeros.copy())
        entry.charge = charge
        entry.transfers += 1
        entry.messages += charge.messages
        entry.sent += charge.sent
        entry.received += charge.received
        amount = int((charge.received if charge.direction == DOWN else charge.sent).sum())
        entry.bytes += amount
        entry.rounds[self.round] = entry.rounds.get(self.round, 0) + amount

    @property
    def entries(self) -> list[Entry]:
        """Every entry, in the order of first use."""
        return list(self._entries.values())

    @property
    def counted_bytes(self) -> int:
        """Bytes of setup and training so far."""
        return sum(e.bytes for e in self._entries.values() if e.phase in COUNTED_PHASES)

    def bytes_of(self, name: str, phase: str | None = None) -> int:
        """Total bytes of the transfers called `name`."""
        return sum(e.bytes for e in self.entries if e.name == name and phase in (None, e.phase))

    def totals(self) -> dict[str, Any]:
        """The `bytes` object of result.json: total (setup + train), by direction, setup alone, and every transfer's own."""
        counted = [e for e in self.entries if e.phase in COUNTED_PHASES]
        by_transfer: dict[str, int] = {}
        for e in self.entries:
            key = e.name if e.phase in COUNTED_PHASES else f"{e.phase}/{e.name}"
            by_transfer[key] = by_transfer.get(key, 0) + e.bytes
        return {
            "total": sum(e.bytes for e in counted),
            "up": sum(e.bytes for e in counted if e.direction == UP),
            "down": sum(e.bytes for e in counted if e.direction == DOWN),
            "peer": sum(e.bytes for e in counted if e.direction == PEER),
            "setup": sum(e.bytes for e in counted if e.phase == "setup"),
            "by_transfer": by_transfer,
        }

    def statement(self) -> dict[str, Any]:
        """What left the clients, by protection: the `privacy` object of result.json."""
        left: dict[str, dict[str, Any]] = {}
        for e in self.entries:
            if e.direction == DOWN:
                continue
            here = left.setdefault(e.charge.protection, {"bytes": 0, "transfers": []})
            here["bytes"] += e.bytes
            if e.name not in here["transfers"]:
                here["transfers"].append(e.name)
        return {"left_the_clients": left}

    def to_json(self) -> dict[str, Any]:
        """The whole ledger as plain data, for ledger.json and for comparing placements."""
        return {
            "num_clients": self.num_clients,
            "entries": [
                {
                    "phase": e.phase,
                    "name": e.name,
                    "from": "server" if e.direction == DOWN else "clients",
                    "to": "server" if e.direction == UP else "clients",
                    "kind": e.charge.kind,
                    "dtype": e.charge.dtype,
                    "protection": e.charge.protection,
                    "shape": e.charge.shape,
                    "transfers": e.transfers,
                    "messages": e.messages,
                    "bytes": e.bytes,
                    "sent": e.sent.tolist(),
                    "received": e.received.tolist(),
                    "rounds": {str(k): v for k, v in sorted(e.rounds.items())},
                }
                for e in self.entries
            ],
        }

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Ledger":
        """The ledger that `to_json` described."""
        ledger = Ledger(content["num_clients"])
        directions = {("clients", "server"): UP, ("server", "clients"): DOWN, ("clients", "clients"): PEER}
        for e in content["entries"]:
            sent, received = (np.array(e[key], dtype=np.int64) for key in ("sent", "received"))
            direction = directions[e["from"], e["to"]]
            charge = Charge(
                e["name"], direction, e["kind"], e["dtype"], e["shape"], e["protection"], e["messages"], sent, received
            )
            rounds = {int(k): v for k, v in e["rounds"].items()}
            ledger._entries[e["phase"], e["name"], direction, e["protection"]] = Entry(
                e["phase"], charge, sent, received, e["transfers"], e["messages"], e["bytes"], rounds
            )
        return ledger

    def add_peers(self, other: "Ledger") -> None:
        """Add what clients sent to each other as another process counted it: the server does not see those transfers."""
        for key, theirs in other._entries.items():
            if theirs.direction != PEER:
                continue
            mine = self._entries.get(key)
            self._entries[key] = theirs if mine is None else _sum_entries(mine, theirs)


def _sum_entries(a: Entry, b: Entry) -> Entry:
    rounds = {r: a.rounds.get(r, 0) + b.rounds.get(r, 0) for r in sorted({*a.rounds, *b.rounds})}
    return replace(
        a,
        sent=a.sent + b.sent,
        received=a.received + b.received,
        messages=a.messages + b.messages,
        bytes=a.bytes + b.bytes,
        rounds=rounds,
    )

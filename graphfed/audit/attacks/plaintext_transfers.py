"""Transfers in plaintext, and the consistency of the ledger.

This check attacks nothing. It adds the totals of result.json up again from the ledger's entries, and each
entry's total from its clients and from its rounds. It names every transfer that the receiver can read: those
in plaintext, and those whose protection is only simulated, because a simulated protection hides nothing.
"""

from typing import Any

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.federation.ledger import Entry, Ledger, is_readable, is_simulated
from graphfed.runs.folder import plain
from graphfed.runs.progress import human_bytes
from graphfed.tasks.registry import TASKS


def disagreements(ledger: Ledger, totals: Any, statement: Any) -> list[str]:
    """Compare the ledger with itself and with the bytes and the privacy statement of result.json."""
    wrong = []
    if plain(ledger.totals()) != totals:
        wrong.append("the bytes of result.json differ from the sums of the ledger")
    if _by_class(plain(ledger.statement())) != _by_class(statement):
        wrong.append("the privacy statement of result.json differs from that of the ledger")
    for entry in ledger.entries:
        # Bytes are counted where the clients are: those that they receive, or those that they send.
        by_client = int((entry.received if entry.direction == "down" else entry.sent).sum())
        if by_client != entry.bytes:
            wrong.append(f"{entry.name}: {entry.bytes} bytes in total, and {by_client} summed over clients")
        if sum(entry.rounds.values()) != entry.bytes:
            wrong.append(
                f"{entry.name}: {entry.bytes} bytes in total, and {sum(entry.rounds.values())} summed over "
                "rounds"
            )
    return wrong


def _by_class(statement: Any) -> dict[str, tuple[int, list[str]]]:
    """Return the bytes and the sorted transfers of each protection in a privacy statement."""
    sent = statement["left_the_clients"]
    return {protection: (of["bytes"], sorted(of["transfers"])) for protection, of in sent.items()}


def _describe(entry: Entry) -> str:
    direction = {"up": "to the server", "down": "to the clients", "peer": "between clients"}[entry.direction]
    simulated = ", protection only simulated" if is_simulated(entry.protection) else ""
    return f"{entry.name} ({entry.phase}, {direction}, {human_bytes(entry.bytes)}{simulated})"


def run(audited: AuditedRun) -> Finding:
    """Name every transfer that its receiver can read. It is a leak if a client sent one."""
    wrong = disagreements(audited.ledger, audited.result.bytes, audited.result.privacy)
    readable = [entry for entry in audited.ledger.entries if is_readable(entry.protection)]
    # What the server sends in plaintext is public among the clients.
    from_clients = [entry for entry in readable if entry.direction != "down"]
    names = "; ".join(_describe(entry) for entry in readable)
    result = f"the receiver can read: {names}" if names else "no receiver can read a transfer"
    if wrong:
        result = f"the ledger is inconsistent: {'; '.join(wrong)}. {result}"
        verdict = "the ledger of this run is not reliable"
    elif from_clients:
        verdict = f"clients sent {len(from_clients)} of these transfers without protection"
    else:
        verdict = "the ledger is consistent, and no client sent anything in plaintext"
    return Finding(
        result=result,
        baseline="no transfer in plaintext",
        verdict=verdict,
        leaks=bool(from_clients or wrong),
        value=float(len(readable)),
        no_signal=0.0,
        details={
            "disagreements": wrong,
            "plaintext": [
                {"name": e.name, "phase": e.phase, "direction": e.direction, "bytes": e.bytes}
                for e in readable
            ],
        },
    )


CHECK = Check(
    name="plaintext_transfers",
    tests="which transfers are in plaintext, and whether the ledger is consistent",
    attacker="the receiver of each transfer",
    run=run,
    tasks=tuple(TASKS),
)

"""Does the ledger agree with itself and with the result, and what crossed that the receiver could read?

Nothing is attacked. The totals of the result are added up again from the ledger's entries, those of each
entry from its clients and from its rounds; and every transfer of the class "clear" is named, or "simulated":
what is only simulated protects nothing."""

from typing import Any

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.federation.ledger import Entry, Ledger, is_readable, is_simulated
from graphfed.runs.folder import plain
from graphfed.runs.progress import human_bytes
from graphfed.tasks.registry import TASKS

__all__ = ["CHECK", "disagreements"]


def disagreements(ledger: Ledger, totals: Any, statement: Any) -> list[str]:
    """What does not add up, in words; `totals`, `statement`: the objects bytes and privacy of result.json."""
    wrong = []
    if plain(ledger.totals()) != totals:
        wrong.append("the bytes of result.json are not those of the ledger")
    if _by_class(plain(ledger.statement())) != _by_class(statement):
        wrong.append("the privacy statement of result.json is not that of the ledger")
    for entry in ledger.entries:
        by_client = int((entry.received if entry.direction == "down" else entry.sent).sum())
        if by_client != entry.bytes:
            wrong.append(f"{entry.name}: {entry.bytes} bytes in all and {by_client} over the clients")
        if sum(entry.rounds.values()) != entry.bytes:
            wrong.append(
                f"{entry.name}: {entry.bytes} bytes in all and {sum(entry.rounds.values())} over rounds"
            )
    return wrong


def _by_class(statement: Any) -> dict[str, tuple[int, list[str]]]:
    """Bytes and transfers by protection class; the transfers in no order of their own."""
    left = statement["left_the_clients"]
    return {protection: (of["bytes"], sorted(of["transfers"])) for protection, of in left.items()}


def _told(entry: Entry) -> str:
    way = {"up": "to the server", "down": "to the clients", "peer": "between clients"}[entry.direction]
    simulated = ", its protection only simulated" if is_simulated(entry.protection) else ""
    return f"{entry.name} ({entry.phase}, {way}, {human_bytes(entry.bytes)}{simulated})"


def run(audited: AuditedRun) -> Finding:
    """Names every clear transfer; leaks where a client sent one."""
    wrong = disagreements(audited.ledger, audited.result.bytes, audited.result.privacy)
    clear = [entry for entry in audited.ledger.entries if is_readable(entry.protection)]
    left = [entry for entry in clear if entry.direction != "down"]
    named = "; ".join(_told(entry) for entry in clear) or "nothing crossed in clear"
    result = named if not wrong else f"the ledger does not add up: {'; '.join(wrong)}. {named}"
    if wrong:
        verdict = "the record of this run cannot be relied on"
    elif left:
        verdict = (
            f"{len(left)} transfers left the clients with nothing between their content and the receiver"
        )
    else:
        verdict = "the ledger adds up, and nothing left a client in clear"
    return Finding(
        result=result,
        baseline="no transfer in clear",
        verdict=verdict,
        leaks=bool(left or wrong),
        value=float(len(clear)),
        no_signal=0.0,
        details={
            "disagreements": wrong,
            "clear": [
                {"name": e.name, "phase": e.phase, "direction": e.direction, "bytes": e.bytes} for e in clear
            ],
        },
    )


CHECK = Check(
    name="plaintext_transfers",
    tests="the ledger adds up; every transfer in clear is named",
    attacker="the receiver of each transfer reads what is sent in clear",
    run=run,
    tasks=tuple(TASKS),
)

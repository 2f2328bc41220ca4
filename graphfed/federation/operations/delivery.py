"""Delivery: how the messages of a transfer get from their senders to their receivers.

A transfer is a set of messages between participants. Inside a process they are passed on; over a link they
are sent as bytes, and what another process sends is checked. Every payload transfer is recorded on the ledger
and, while a tape is open, on the tape.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

import graphfed.federation.payload as pay
from graphfed.errors import PlaceError
from graphfed.federation.ledger import UP, Ledger, LedgerRecord
from graphfed.federation.link import SERVER_INDEX, Link, Message, Pair, TimedLink, deliver
from graphfed.federation.operations.places import Places
from graphfed.federation.payload import Leaf, Payload
from graphfed.federation.received import Received, ReceivedError
from graphfed.federation.tape import Record, Tape
from graphfed.federation.transfer import Transfer, pack, tensors_asked, unpack, unpack_arrived, wrapped_leaves
from graphfed.federation.wire import WireError

P = TypeVar("P", bound=Payload)


def transfer_of(key: str) -> str:
    """Return the name of the transfer that a message belongs to."""
    return key.split("/", 2)[2]


class Delivery:
    """Delivers messages between the participants of a run, as one process sees it.

    Args:
        link: How to reach the participants in other processes (None if all are in this one).

    Attributes:
        received: The checks of what other processes send.
        tape: Where transfers are recorded for the backward pass; None while no tape is open.
        observer: Called with the name of each transfer and its messages sent from this process.

    Raises:
        ValueError: If a participant is in another process and there is no link.
    """

    def __init__(self, places: Places, ledger: Ledger, link: Link | None) -> None:
        if link is None and (len(places.here) < len(places.workers) or not places.server_is_here):
            raise ValueError("some participants are not in this process; pass the link to them")
        self.places, self.ledger = places, ledger
        self.link = None if link is None else TimedLink(link)
        self.received = Received(places.name_of, places.workers)
        self.tape: Tape | None = None
        self.observer: Callable[[str, Mapping[Pair, Message]], None] | None = None
        # Numbers the transfers, so that two of the same name in a round have different keys.
        self._sequence = 0

    def next_key(self, name: str) -> str:
        """Make the key of the messages of the next transfer.

        All processes run the same program, so it is the same in all.
        """
        self._sequence += 1
        return f"{self.ledger.round}/{self._sequence}/{name}"

    def refusal(self, participant: int, name: str, why: str) -> ReceivedError:
        """Make the error for what another participant sent; `why` continues "it sent"."""
        return self.received.refusal(participant, name, self.ledger.round, why)

    def deliver(
        self, messages: Mapping[Pair, Message], pairs: Sequence[Pair], key: str
    ) -> dict[Pair, Message]:
        """Deliver messages without looking into them.

        Args:
            messages: The messages sent from this process, by (sender, receiver).
            pairs: (sender, receiver) of all messages with a participant in this process.
            key: What the messages are called (see `next_key`).

        Returns:
            The messages received in this process, by (sender, receiver).

        Raises:
            ReceivedError: For bytes from another process that are no message.
        """
        if self.observer is not None:
            self.observer(transfer_of(key), messages)
        places = self.places
        return deliver(
            messages,
            pairs,
            key,
            link=self.link,
            local=places.local_participants,
            device=places.device,
            refusal=lambda sender, why: self.refusal(sender, transfer_of(key), why),
        )

    def move(
        self,
        transfer: Transfer,
        payloads: Mapping[Pair, P],
        pairs: Sequence[Pair],
        rows: Mapping[Pair, int] | None = None,
    ) -> dict[Pair, P]:
        """Send the payloads of one transfer, and record it.

        Args:
            payloads: The payloads sent from this process, by (sender, receiver).
            pairs: (sender, receiver) of all messages with a participant in this process.
            rows: How many rows each payload from another process must have, if that was agreed.

        Returns:
            The payloads received in this process, by (sender, receiver).

        Raises:
            PlaceError: For a payload that cannot be sent, or messages of different shapes.
            ReceivedError: For a payload from another process that cannot be used.
        """
        name, wrap = transfer.name, transfer.wrap
        # A key is taken in every process, also in one that takes no part: all count alike.
        key, recording = self.next_key(name), transfer.grad and self.tape is not None
        if wrap is not None and wrap.draws_noise and transfer.flow.direction != UP:
            # A row is encoded for every worker that receives it, and each time is another release.
            raise PlaceError(
                f"transfer {name!r}: noise is drawn for each receiving worker, so the placement would decide "
                "how many releases there are; use this wrapper where clients send to the server"
            )
        if wrap is not None:
            # Wrappers encode plain tensors, row by row.
            payloads = {p: pay.densify(x) for p, x in payloads.items()}
        outgoing = {p: pack(x, recording, wrap, name) for p, x in payloads.items()}
        arrived = self.deliver(outgoing, pairs, key)
        received = self._unpack(transfer, arrived, payloads, rows or {})
        messages = arrived or outgoing
        if not messages:  # this process takes no part in the transfer
            return received
        record = self._record_of(transfer, messages)
        self.ledger.record(record)
        if recording:
            # Who wants a gradient is known at both ends: from the own messages, and from the flags that
            # arrived.
            asked = {p: m.grad for p, m in (*outgoing.items(), *arrived.items()) if any(m.grad)}
            if asked:
                # A gradient has the size of its tensor, or of the encoded tensor if gradients are wrapped.
                floating: Sequence[Leaf] = pay.floating_leaves(next(iter((received or payloads).values())))
                if wrap is not None and wrap.gradients:
                    floating = wrapped_leaves(next(iter(messages.values())))
                sent, got = tensors_asked(payloads, asked, name), tensors_asked(received, asked, name)
                answers = self._gradient_records(transfer, record, floating, asked, pairs)
                # Received tensors become leaves: autograd at the receiver ends here, and `run_backward` sends
                # their gradients to the sender.
                for tensors in got.values():
                    for t in tensors:
                        t.requires_grad_()
                assert self.tape is not None
                self.tape.records.append(Record(key, tuple(asked), sent, got, answers, wrap))
        return received

    def _unpack(
        self,
        transfer: Transfer,
        arrived: Mapping[Pair, Message],
        payloads: Mapping[Pair, P],
        rows: Mapping[Pair, int],
    ) -> dict[Pair, P]:
        """Unpack the messages received here, and check those from other processes."""
        received: dict[Pair, P] = {}
        elsewhere: dict[Pair, P] = {}
        for pair, message in arrived.items():
            if not self.places.is_remote(pair[0]):
                # Messages of this process are trusted; they were made by the same program.
                received[pair] = unpack(message, transfer.wrap)
                continue
            try:
                received[pair] = elsewhere[pair] = unpack_arrived(message, transfer.wrap)
            except WireError as error:
                raise self.refusal(pair[0], transfer.name, str(error)) from error
        if elsewhere:
            self.received.check(transfer, elsewhere, payloads, rows, transfer.example(), self.ledger.round)
        return received

    def _record_of(self, transfer: Transfer, messages: Mapping[Pair, Message]) -> LedgerRecord:
        """Make the ledger's record of a transfer from one message.

        All messages must have the same dtype and shape.
        """
        (first, message), *others = messages.items()
        record = transfer.record_of(message.payload)
        for pair, other in others:
            found = transfer.record_of(other.payload)
            if (found.dtype, found.shape) != (record.dtype, record.shape):
                # If the server is the sender, name the receiver, because all messages have the same sender.
                named = [sender if sender != SERVER_INDEX else receiver for sender, receiver in (pair, first)]
                names = [self.places.name_of(participant) for participant in named]
                raise PlaceError(
                    f"transfer {transfer.name!r}: {names[0]} sent {found.dtype} {found.shape} where "
                    f"{names[1]} sent {record.dtype} {record.shape}; all messages of a transfer must have "
                    "the same dtype and shape"
                )
        return record

    def _gradient_records(
        self,
        transfer: Transfer,
        record: LedgerRecord,
        floating: Sequence[Leaf],
        asked: Mapping[Pair, tuple[bool, ...]],
        pairs: Sequence[Pair],
    ) -> tuple[LedgerRecord, ...]:
        """Make the ledger's records of a transfer's gradients.

        There is one for each group of messages whose senders want gradients of the same tensors.
        """
        records, places = [], self.places
        for flags in dict.fromkeys(asked.values()):
            workers = [a if a != SERVER_INDEX else b for a, b in pairs if asked.get((a, b)) == flags]
            flow = transfer.flow
            # Count only the clients of the workers whose messages want these gradients.
            if len(workers) < len(pairs):
                clients = np.zeros(places.num_clients, dtype=bool)
                for h in workers:
                    clients[places.clients_of(h)] = True
                flow = flow.of(clients)
            wanted = tuple(x for x, flag in zip(floating, flags, strict=True) if flag)
            tree: Payload = wanted[0] if len(wanted) == 1 else wanted
            unit, name = pay.unit_of(tree, leading=transfer.leading), f"{record.name}/grad"
            records.append(
                LedgerRecord(
                    name, "gradients", unit.dtype, unit.shape, record.protection, flow.back, unit.bytes
                )
            )
        return tuple(records)

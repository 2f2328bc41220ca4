"""The transcript of a run: the values of the messages between clients and server.

The ledger of a run counts bytes and stores no values, and an attack needs the values. The run, or its first
rounds, is therefore repeated in this process: the same program with the same seeds on the same data sends the
same messages. Only privacy noise from the operating system's entropy differs; it is drawn again from the same
distribution. Nothing is sent to another process, and no privacy budget is spent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import graphfed.federation.payload as pay
from graphfed.errors import GraphfedError
from graphfed.federation import Federation
from graphfed.federation.cohort import Cohort
from graphfed.federation.link import SERVER_INDEX, Message, Pair
from graphfed.methods.parts import is_simulated
from graphfed.nn.sparse import SparseMatrix, SparseWeights

if TYPE_CHECKING:
    from graphfed.runs.train import Event
    from graphfed.tasks.inputs import Inputs
    from graphfed.tasks.run_config import RunConfig

#: No further round is recorded once the recorded values have this many bytes.
MOST_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class ObservedTransfer:
    """One transfer. All clients are one cohort, so it has one message.

    Attributes:
        phase: "setup", "train", "eval" or "predict".
        round: The round, 0 in set-up.
        to_server: Whether the server received it; if not, the clients did.
        payload: The content as it was sent, or what `Keep` keeps of it. Rows to or from the server are in the
            order of the clients, and rows between clients in the order of the receivers' requests
            (`ExchangeIds`).
        present: Which clients took part, [K] bool.
    """

    name: str
    phase: str
    round: int
    to_server: bool
    payload: Any
    present: np.ndarray


#: Returns what is recorded of a transfer's payload; None to record nothing of the transfer.
Keep = Callable[[ObservedTransfer], Any]


def keep_payload(transfer: ObservedTransfer) -> Any:
    """Record everything."""
    return transfer.payload


@dataclass(frozen=True, eq=False)
class Transcript:
    """The messages of a run.

    Attributes:
        cohort: The data of all clients, with features as the method received them (`Rerun`). The server does
            not have it; an audit compares its results with it.
        complete: Whether the run was recorded to its end.
    """

    observed_transfers: tuple[ObservedTransfer, ...]
    cohort: Cohort
    rounds: int
    complete: bool

    def first(self, name: str, phase: str, *, to_server: bool = True) -> ObservedTransfer:
        """Return the first transfer with a name; GraphfedError if there is none."""
        for transfer in self.observed_transfers:
            if (transfer.name, transfer.phase, transfer.to_server) == (name, phase, to_server):
                return transfer
        raise GraphfedError(f"the repeated run has no transfer {name!r} in phase {phase!r}")

    def all(self, name: str, phase: str, *, to_server: bool = True) -> list[Any]:
        """Return the payloads of all transfers with a name, in order."""
        wanted = (name, phase, to_server)
        return [t.payload for t in self.observed_transfers if (t.name, t.phase, t.to_server) == wanted]


class _EnoughError(Exception):
    """Ends a repeated run of which enough is recorded."""


class _Recording(Federation):
    """A federation with all clients in one cohort that records messages (see `record_rounds`)."""

    def __init__(
        self,
        num_clients: int,
        device: str,
        *,
        simulated: bool = False,
        keep: Keep = keep_payload,
        rounds: float = np.inf,
        most_bytes: float = np.inf,
    ) -> None:
        super().__init__([tuple(range(num_clients))], device=device, simulated=simulated)
        self.observed_transfers: list[ObservedTransfer] = []
        self.recorded_rounds = 0
        self._keep, self._rounds, self._room = keep, rounds, most_bytes
        # Observed where messages are sent, so that nothing about the run itself changes.
        self.observe(self._record)

    def _record(self, name: str, messages: Mapping[Pair, Message]) -> None:
        # Only whole rounds are recorded, at least one of them.
        if self.ledger.round > self.recorded_rounds:
            if self.ledger.round > self._rounds or (self.recorded_rounds and self._room <= 0):
                raise _EnoughError
            self.recorded_rounds = self.ledger.round
        # There is one worker, which sends or receives every message.
        for (_, to), message in messages.items():
            transfer = ObservedTransfer(
                name,
                self.ledger.phase,
                self.ledger.round,
                to == SERVER_INDEX,
                message.payload,
                self.roster.copy(),
            )
            kept = self._keep(transfer)
            if kept is not None:
                # Copied, because a program may change a tensor later, and a view would hold all its rows.
                kept = pay.tree_map(
                    lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, kept
                )
                self._room -= sum(map(_size, pay.leaves(kept)))
                self.observed_transfers.append(replace(transfer, payload=kept))


def _size(leaf: object) -> int:
    """Count the bytes of a leaf's values; 0 for the text of a decision."""
    values = leaf.values if isinstance(leaf, SparseMatrix | SparseWeights) else leaf
    return values.nbytes if isinstance(values, torch.Tensor) else 0


def record_rounds(
    config: "RunConfig",
    inputs: "Inputs",
    *,
    rounds: int | None = None,
    keep: Keep = keep_payload,
    most_bytes: float = MOST_BYTES,
    on_event: "Callable[[Event], None] | None" = None,
) -> Transcript:
    """Repeat a run, and record messages of its set-up and rounds with their evaluations.

    With `rounds` None they are all that the run had, with its last predictions. No further round is recorded
    once the recorded values have `most_bytes`.
    """
    from graphfed.audit.rerun import place_data, rerun
    from graphfed.runs.train import train

    fed = _Recording(
        inputs.clients_of(config.method),
        config.device,
        simulated=is_simulated(config.settings),
        keep=keep,
        rounds=np.inf if rounds is None else rounds,
        most_bytes=most_bytes,
    )
    # The federation decides when enough is recorded; training only sees its exception.
    data = place_data(fed, config, inputs)
    try:
        train(fed, config.method, data, inputs.task(config.task), config.settings, on_event=on_event)
        complete = True
    except _EnoughError:
        complete = False
    # train() does not return the data that clients agreed on, so the cohort is prepared again.
    # In plaintext and without rounds, so this costs little.
    cohort = rerun(config, inputs).cohort
    return Transcript(tuple(fed.observed_transfers), cohort, fed.recorded_rounds, complete)


def features_of(cohort: Cohort, index: np.ndarray) -> torch.Tensor:
    """Copy the features of the rows `index` as `dense_rows` does, [n, F]."""
    assert cohort.x is not None
    return dense_rows(cohort.x, index)


def all_features(cohort: Cohort) -> Any:
    """Return the features of all rows [N, F] as the run used them, as a scipy matrix or an array."""
    assert cohort.x is not None
    return cohort.x.to_scipy() if isinstance(cohort.x, SparseMatrix) else cohort.x.cpu().numpy()


def dense_rows(rows: torch.Tensor | SparseMatrix, index: np.ndarray) -> torch.Tensor:
    """Copy rows `index` [n] of features or a payload [N, F] to a dense float64 matrix on the CPU."""
    places = torch.from_numpy(index)
    if isinstance(rows, SparseMatrix):
        return rows.select_rows(places.to(rows.values.device)).to_dense().double().cpu()
    return rows[places.to(rows.device)].double().cpu()

"""The transcript of a run: the values of the messages between clients and server.

The ledger of a run counts bytes and stores no values, and an attack needs the values. The start of the run is
therefore repeated in this process: the same program with the same seeds on the same data sends the same
messages. Only privacy noise from the operating system's entropy differs; it is drawn again from the same
distribution. Nothing is sent to another process, and no privacy budget is spent.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from graphfed.errors import GraphfedError
from graphfed.federation import Federation
from graphfed.federation.cohort import Cohort
from graphfed.federation.link import SERVER_INDEX, Message, Pair
from graphfed.nn.sparse import SparseMatrix

if TYPE_CHECKING:
    from graphfed.tasks.inputs import Inputs
    from graphfed.tasks.run_config import RunConfig

__all__ = ["ObservedTransfer", "Transcript", "dense_rows", "record_first_round"]


@dataclass(frozen=True, eq=False)
class ObservedTransfer:
    """One transfer between all clients, which are one cohort, and the server.

    Attributes:
        name: The transfer's name in the ledger.
        phase: "setup", "train" or "eval".
        to_server: Whether the clients sent it to the server, or the server to the clients.
        payload: The content as it was sent, in the order of the clients.
        present: Which clients took part, [K] bool.
    """

    name: str
    phase: str
    to_server: bool
    payload: Any
    present: np.ndarray


@dataclass(frozen=True, eq=False)
class Transcript:
    """The messages between clients and server in set-up and the first round.

    Attributes:
        observed_transfers: The transfers, in order.
        cohort: The data of all clients, with features as the method received them (`prepared_data`). The
            server does not have it; an audit compares its results with it.
    """

    observed_transfers: tuple[ObservedTransfer, ...]
    cohort: Cohort

    def first(self, name: str, phase: str, *, to_server: bool = True) -> ObservedTransfer:
        """Return the first transfer with a name.

        Args:
            name: The name in the ledger.
            phase: The phase of the run.
            to_server: The direction.

        Returns:
            The transfer.

        Raises:
            GraphfedError: If there is none.
        """
        for transfer in self.observed_transfers:
            if (transfer.name, transfer.phase, transfer.to_server) == (name, phase, to_server):
                return transfer
        raise GraphfedError(f"the repeated run has no transfer {name!r} in phase {phase!r}")


class _Recording(Federation):
    """A federation with all clients in one cohort that records every message to and from the server."""

    def __init__(self, num_clients: int, device: str, *, simulated: bool = False) -> None:
        super().__init__([tuple(range(num_clients))], device=device, simulated=simulated)
        self.observed_transfers: list[ObservedTransfer] = []
        self.observe(self._record)

    def _record(self, name: str, messages: Mapping[Pair, Message]) -> None:
        # There is one worker, which sends or receives every message.
        for (_, to), message in messages.items():
            to_server = to == SERVER_INDEX
            self.observed_transfers.append(
                ObservedTransfer(name, self.ledger.phase, to_server, message.payload, self.roster.copy())
            )


def record_first_round(config: "RunConfig", inputs: "Inputs") -> Transcript:
    """Repeat the set-up and the first round of a run, and record their messages.

    Args:
        config: The run's settings.
        inputs: The run's data.

    Returns:
        The messages.
    """
    from graphfed.audit.prepared_data import prepared_data
    from graphfed.runs.train import train
    from graphfed.tasks.inputs import local_federation
    from graphfed.tasks.registry import get_task

    clients, simulated = inputs.clients_of(config.method), config.training.simulated
    fed = _Recording(clients, config.device, simulated=simulated)
    parts = inputs.parts(config, fed.workers)
    data = get_task(config.task).data.located(fed, parts, [inputs.part_of_server(config)])
    training = dataclasses.replace(config.training, rounds=1)
    train(fed, config.method, data, inputs.task(config.task), training)
    # train() does not return the data that clients agreed on, so the cohort is prepared again.
    prepared, _ = prepared_data(local_federation(config, inputs), config, inputs)
    return Transcript(tuple(fed.observed_transfers), prepared.parts[0])


def dense_rows(rows: torch.Tensor | SparseMatrix, index: np.ndarray) -> torch.Tensor:
    """Copy some rows to a dense float64 matrix on the CPU.

    Args:
        rows: Features, or a payload, [N, F].
        index: The numbers of the rows, [n].

    Returns:
        The rows, [n, F].
    """
    places = torch.from_numpy(index)
    if isinstance(rows, SparseMatrix):
        return rows.select_rows(places.to(rows.values.device)).to_dense().double().cpu()
    return rows[places.to(rows.device)].double().cpu()

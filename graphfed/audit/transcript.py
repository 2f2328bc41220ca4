"""A transcript: what the server receives and sends, message by message, in a run made again in this process.

The run is the same program with the same seeds on the same data, so what crosses here is what crossed there;
but privacy noise from the operating system's entropy is drawn anew, by the same law. Nothing is sent to
anyone: this is a simulation, and spends no privacy budget. The ledger counts bytes and keeps no values; an
audit needs the values."""

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
    """One transfer between the clients, stacked in one cohort, and the server.

    to_server: its direction; payload: as it crossed, in client order; present [K] bool: who took part."""

    name: str
    phase: str
    to_server: bool
    payload: Any
    present: np.ndarray


@dataclass(frozen=True, eq=False)
class Transcript:
    """What crossed between clients and server in set-up and the first round, and the cohort of all clients,
    which is what the experimenter knows and the server does not; its features are those that the method was
    given (`prepared_data`)."""

    observed_transfers: tuple[ObservedTransfer, ...]
    cohort: Cohort

    def first(self, name: str, phase: str, *, to_server: bool = True) -> ObservedTransfer:
        """The first crossing of that name; GraphfedError when there is none."""
        for crossing in self.observed_transfers:
            if (crossing.name, crossing.phase, crossing.to_server) == (name, phase, to_server):
                return crossing
        raise GraphfedError(f"the run made again has no transfer {name!r} in phase {phase!r}")


class _Recording(Federation):
    """All clients in one cohort; keeps what is delivered between them and the server."""

    def __init__(self, num_clients: int, device: str, *, simulated: bool = False) -> None:
        super().__init__([tuple(range(num_clients))], device=device, simulated=simulated)
        self.observed_transfers: list[ObservedTransfer] = []
        self.observe(self._keep)

    def _keep(self, name: str, messages: Mapping[Pair, Message]) -> None:
        # There is one worker, which sends or receives every message.
        for (_, to), message in messages.items():
            up = to == SERVER_INDEX
            self.observed_transfers.append(
                ObservedTransfer(name, self.ledger.phase, up, message.payload, self.roster.copy())
            )


def record_first_round(config: "RunConfig", inputs: "Inputs") -> Transcript:
    """Set up and train one round as the run did, and keep what crossed."""
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
    # What train() agrees on stays inside it, so the cohort is prepared once more.
    prepared, _ = prepared_data(local_federation(config, inputs), config, inputs)
    return Transcript(tuple(fed.observed_transfers), prepared.parts[0])


def dense_rows(rows: torch.Tensor | SparseMatrix, index: np.ndarray) -> torch.Tensor:
    """Some rows [n] of features or of what crossed, [n, F] float64 on the CPU."""
    at = torch.from_numpy(index)
    if isinstance(rows, SparseMatrix):
        return rows.select_rows(at.to(rows.values.device)).to_dense().double().cpu()
    return rows[at.to(rows.device)].double().cpu()

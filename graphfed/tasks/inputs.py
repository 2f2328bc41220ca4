"""What a run trains on, whatever its task: data, its split, how it is partitioned over clients, and the
federation of these clients in one process."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from graphfed.federation import Federation
from graphfed.files import JsonObject
from graphfed.methods.base import Method, Task
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.evaluation import Predicted
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.run_config import RunConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.federation.cohort import Cohort
    from graphfed.federation.series import Network, Series

__all__ = ["Inputs", "WorkerPart", "local_federation"]

#: What a host of clients has of its own.
WorkerPart: TypeAlias = "Cohort | Series"


class Inputs(Protocol):
    """Each task has its own; what differs between tasks before and after training is behind this."""

    @property
    def name(self) -> str:
        """Of the data."""

    @property
    def hashes(self) -> dict[str, str]:
        """data, split, partition: two runs compare only where these three agree."""

    @property
    def dropped(self) -> tuple[str, ...]:
        """What the reader of the data left out, a phrase for each."""

    @property
    def num_clients(self) -> int:
        """As many as the data is partitioned over."""

    def task(self, name: str) -> Task:
        """What all places know beforehand of the task called so."""

    def check(self, config: RunConfig) -> None:
        """Raises InputError where the method of `config` cannot use these inputs."""

    def described(self, config: RunConfig) -> JsonObject:
        """The parts `data` and `partition` of the manifest."""

    def overview(self) -> JsonObject:
        """overview.json."""

    def threads(self) -> int:
        """To compute with, where nobody says how many."""

    def bytes_needed(self, config: RunConfig) -> int:
        """About what the files of a run take: predictions, and weights in the model and in three checkpoints,
        each with the best ones and the optimiser's two moments."""

    def memory_needed(self, config: RunConfig) -> int:
        """About how many bytes of memory a run takes beyond what its process has now, see
        `methods.common.memory`."""

    def bytes_of_partition(self) -> int:
        """What `save_partition` writes."""

    def save_partition(self, path: Path) -> None:
        """Write the partition, where it was read from a file."""

    def clients_of(self, method: Method) -> int:
        """How many clients a method's federation has."""

    def parts(self, config: RunConfig, workers: Sequence[Sequence[int]]) -> Sequence[WorkerPart]:
        """What each host has of its own, by the clients it holds."""

    def part_of_server(self, config: RunConfig) -> "Network | None":
        """What the server has of its own; None: nothing."""

    def metric_of_rounds(self, config: RunConfig) -> str:
        """The validation metric that a run on these inputs selects its rounds by."""

    def present(self, absent: Sequence[object]) -> np.ndarray | None:
        """Which clients take part in predicting, [K] bool, where those of some ids are absent; None:
        everyone. Raises InputError for an id that no client has."""

    def save_for_client(self, part: Any, path: Path) -> None:
        """Write a host's part as the file that a client of a rehearsal is started with."""

    def tables(
        self,
        config: RunConfig,
        predicted: Sequence[tuple[Any, Predicted]],
        names: Sequence[str] | None = None,
    ) -> "Iterator[pa.Table]":
        """predictions.parquet as pyarrow tables, a row group each. predicted: each host's part and what it
        predicts; names: of the model's classes, where they are not the data's."""

    def details(self, config: RunConfig, outcome: Outcome) -> JsonObject:
        """What the details of a result have of this task alone."""


def local_federation(config: RunConfig, inputs: Inputs, *, together: bool = True) -> Federation:
    """Return the federation of a run in this process, whose settings say how its protocols are run.

    together: whether all clients are stacked in one cohort; if not, each is a cohort of its own."""
    place = stacked if together else one_at_a_time
    return place(inputs.clients_of(config.method), config.device, simulated=config.training.simulated)

"""The inputs of a run of any task: data, its split and its partition among clients.

`local_federation` builds the federation of these clients in one process. Shapes: K clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphfed.data.graphs.graph import Graph
from graphfed.data.sensors.series import Sensors
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.files import JsonObject
from graphfed.methods.base import Method, Task
from graphfed.methods.parts import is_simulated
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.evaluation import Predicted
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import LoadedData, load_data

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.federation.cohort import Cohort
    from graphfed.federation.series import Network, Series

#: A function that is called with a text at the start of each stage.
OnStage: TypeAlias = Callable[[str], None]
#: The data of a worker's clients.
WorkerPart: TypeAlias = "Cohort | Series"


class Inputs(ABC):
    """The inputs of a run: what differs between data sets before and after training.

    Each kind of data has a class of its own, and a task may have a subclass of it.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the data."""

    @property
    @abstractmethod
    def hashes(self) -> dict[str, str]:
        """The hashes of data, split and partition. Two runs are comparable only if all three are equal."""

    @property
    def dropped(self) -> tuple[str, ...]:
        """Descriptions of the data that the reader did not use."""
        return ()

    @property
    def feature_line(self) -> tuple[str, ...]:
        """A line with the names of the features, if the data has them."""
        return ()

    @property
    def unknown_values(self) -> tuple[str, ...]:
        """Descriptions of values that a trained model does not know, with their numbers."""
        return ()

    def of_run(self, config: RunConfig) -> "Inputs":
        """Return the inputs with `unused` of a run; runs with other networks may share the inputs."""
        return self

    @property
    @abstractmethod
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the data that a user should know before training."""

    @property
    @abstractmethod
    def num_clients(self) -> int:
        """The number of clients among which the data is partitioned."""

    @abstractmethod
    def task(self, name: str) -> Task:
        """Describe the task, as all places know it before training."""

    def clients_of(self, method: Method) -> int:
        """Return the number of clients in the federation of a method."""
        return self.num_clients

    def check(self, config: RunConfig) -> None:
        """Raise InputError if the method of a run cannot use these inputs."""
        clients = self.clients_of(config.method)
        # With most partitions the configuration has checked this already, but not with 'ego' and sensors.
        if config.workers is not None and config.workers > clients:
            raise InputError(
                f"{config.workers} workers cannot hold {clients} clients; use at most as many workers as "
                "clients"
            )

    @abstractmethod
    def described(self, config: RunConfig) -> JsonObject:
        """Describe the inputs for the manifest: its keys `data` and `partition`."""

    @abstractmethod
    def overview(self) -> JsonObject:
        """Compute the content of overview.json."""

    @abstractmethod
    def threads(self) -> int:
        """Choose the number of threads if the user does not."""

    @abstractmethod
    def bytes_needed(self, config: RunConfig) -> int:
        """Estimate the size of a run's files.

        These are the predictions and the weights, in the model and in three checkpoints. Each checkpoint also
        has the best weights and the optimiser's state, and of some methods more (`Method.checkpoint`).
        """

    def bytes_of_partition(self) -> int:
        """Compute the size of the file that `save_partition` writes."""
        return 0

    def save_partition(self, path: Path) -> None:
        """Write the partition to a file, if the data can have several."""
        return

    @abstractmethod
    def parts(self, config: RunConfig, workers: Sequence[Sequence[int]]) -> Sequence[WorkerPart]:
        """Divide the data among workers, given the numbers of each worker's clients."""

    def part_of_server(self, config: RunConfig) -> "Network | None":
        """Return the server's data; None if the server has none."""
        return None

    @abstractmethod
    def metric_of_rounds(self, config: RunConfig) -> str:
        """Return the validation metric that selects the rounds of a run on these inputs."""

    def present(self, absent: Sequence[object]) -> np.ndarray | None:
        """Determine which clients take part in predicting, bool [K]; None if all do.

        Raises InputError if an id is unknown, or all clients are absent.
        """
        return None

    @abstractmethod
    def save_for_client(self, part: Any, path: Path) -> None:
        """Write a worker's data to the file with which a site of a rehearsal starts."""

    @abstractmethod
    def tables(
        self,
        config: RunConfig,
        predicted: Sequence[tuple[Any, Predicted]],
        names: Sequence[str] | None = None,
    ) -> "Iterator[pa.Table]":
        """Build the content of predictions.parquet: tables, each of which becomes a row group.

        `predicted` has the data and the predictions of each worker. `names` are the names of the model's
        classes, if they differ from those of the data.
        """

    def details(self, config: RunConfig, outcome: Outcome) -> JsonObject:
        """Compute the details of a result that only this task has."""
        return {}


def load_once(config: RunConfig, loaded: LoadedData) -> Graph | Sensors:
    """Load the data of a run, or take it from `loaded`, which keeps data sets for further runs."""
    # Other options of a generated data set give other data.
    key = (config.data, config.data_dir, tuple(config.data_options.items()))
    if key not in loaded:
        loaded[key] = load_data(config.data, config.data_dir, config.data_options)
    return loaded[key]


def local_federation(config: RunConfig, inputs: Inputs, *, together: bool = True) -> Federation:
    """Build the federation of a run in this process.

    With `together` all clients are stacked in one cohort; if not, each client is a cohort of its own.
    """
    place = stacked if together else one_at_a_time
    return place(inputs.clients_of(config.method), config.device, simulated=is_simulated(config.settings))

"""What a run trains on, by kind of data: a graph (`GraphInputs`) or readings of sensors (`SensorInputs`).

Everything that differs between the kinds before and after training is behind `Inputs`; how what a place has
of its own crosses into a process is in `host_data`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from graphfed.methods.tasks import TASKS
from graphfed.tasks.graph_inputs import load_graph_inputs
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.sensor_inputs import load_sensor_inputs

if TYPE_CHECKING:
    from graphfed.methods.base import Method, Task
    from graphfed.tasks.outcome import Outcome

__all__ = ["Inputs", "load_inputs"]


class Inputs(Protocol):
    """Data, its split and how it is dealt over clients."""

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
        """As many as the data is dealt over."""

    def task(self, name: str) -> "Task":
        """What all places know beforehand of the task called so."""

    def check(self, config: RunConfig) -> None:
        """Raises InputError where the method of `config` cannot use these inputs."""

    def described(self, config: RunConfig) -> dict[str, Any]:
        """The parts `data` and `partition` of the manifest."""

    def overview(self) -> dict[str, Any]:
        """overview.json."""

    def threads(self) -> int:
        """To compute with, where nobody says how many."""

    def bytes_needed(self, config: RunConfig) -> int:
        """About what the files of a run take: predictions, and weights in the model and in three checkpoints,
        each with the best ones and the optimiser's two moments."""

    def memory_needed(self, config: RunConfig) -> int:
        """About how many bytes of memory a run takes beyond what its process has now, see
        `methods.memory_need`."""

    def bytes_of_partition(self) -> int:
        """What `save_partition` writes."""

    def save_partition(self, path: Path) -> None:
        """Write the partition, where it was read from a file."""

    def clients_of(self, method: "Method") -> int:
        """How many clients a method's federation has."""

    def parts(self, config: RunConfig, hosts: Sequence[Sequence[int]]) -> list[Any]:
        """What each host has of its own, by the clients it holds."""

    def part_of_server(self, config: RunConfig) -> Any:
        """What the server has of its own; None: nothing."""

    def save_for_site(self, part: Any, path: Path) -> None:
        """Write a host's part as the file that a site of a trial is started with."""

    def tables(
        self, config: RunConfig, predicted: Sequence[tuple[Any, Any]], names: Sequence[str] | None = None
    ) -> Iterator[Any]:
        """predictions.parquet as pyarrow tables, a row group each. predicted: each host's part and what it
        predicts; names: of the model's classes, where they are not the data's."""

    def details(self, config: RunConfig, outcome: "Outcome") -> dict[str, Any]:
        """What the details of a result have of this kind of data alone."""


_LOAD: Mapping[str, Callable[[RunConfig, dict[Any, Any] | None, Callable[[str], None]], Inputs]] = {
    "graph": load_graph_inputs,
    "sensors": load_sensor_inputs,
}


def load_inputs(
    config: RunConfig, loaded: dict[Any, Any] | None = None, on_stage: Callable[[str], None] = no_stages
) -> Inputs:
    """Load the data, split it and deal it. `loaded` keeps what was loaded, for several runs on one data set;
    on_stage(text) is called with what begins.

    Raises InputError for missing files, too many clients, a split the data set does not have, ..."""
    return _LOAD[TASKS[config.task].data](config, loaded, on_stage)

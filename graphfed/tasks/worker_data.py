"""What the places of a run have of their own, by kind of data: how it is written for a process of its own and
read there, and how `train` gets it.

    graph     a `Cohort` at each host of clients; the server has nothing
    sensors   a `Series` at each host of clients, and the `Network` at the server
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfed.federation import CLIENTS, SERVER, Federation
from graphfed.federation.cohort import load_cohort, save_cohort
from graphfed.federation.series import SensorData, load_network, load_series, save_network, save_series
from graphfed.methods.tasks import TASKS

__all__ = ["HostData", "host_data"]


@dataclass(frozen=True)
class HostData:
    """save, load: a host's part, to and from a file; save_server, load_server: the server's, None where it
    has nothing; located(fed, parts, servers) -> the `data` of `train`, of the parts that are in this process:
    of hosts, and of the server."""

    save: Callable[[Any, Path], None]
    load: Callable[[Path], Any]
    located: Callable[[Federation, Sequence[Any], Sequence[Any]], Any]
    save_server: Callable[[Any, Path], None] | None = None
    load_server: Callable[[Path], Any] | None = None


def located_cohorts(fed: Federation, parts: Sequence[Any], servers: Sequence[Any]) -> Any:
    return fed.locate(CLIENTS, "data", parts)


def located_series(fed: Federation, parts: Sequence[Any], servers: Sequence[Any]) -> SensorData:
    return SensorData(fed.locate(CLIENTS, "series", parts), fed.locate(SERVER, "network", servers))


_KINDS: Mapping[str, HostData] = {
    "graph": HostData(save_cohort, load_cohort, located_cohorts),
    "sensors": HostData(save_series, load_series, located_series, save_network, load_network),
}


def host_data(task: str) -> HostData:
    """Of the data that the task called so is done on."""
    return _KINDS[TASKS[task].data]

"""Look at data before training: numbers, clients, and which methods can use the data."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.data.datasets import DATASETS, load
from graphfed.data.graphs.degree_features import with_degree_features
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import PARTITIONS, Partition
from graphfed.data.sensors.overview import sensor_overview
from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import make_time_split, with_training_remark
from graphfed.data.user_files.sensor_description import SensorDescription
from graphfed.errors import InputError, shown
from graphfed.files import JsonObject
from graphfed.methods.registry import METHODS
from graphfed.runs.config import data_setting_names, make_config, setting_names
from graphfed.runs.settings import given_settings, unknown_setting
from graphfed.tasks.given_partition import with_partition_file
from graphfed.tasks.graphs.inputs import (
    load_graph,
    partition_graph,
    pooled_partition,
    with_client_remarks,
)
from graphfed.tasks.graphs.kind import GRAPHS
from graphfed.tasks.node_classification import (
    TASK,
    NodeInputs,
    check_labels,
    check_split,
    with_classes_of_split,
    with_split_remark,
)
from graphfed.tasks.registry import first_task
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import DataSource, data_source, load_data

#: The default steps of a window: one hour to read and one hour to forecast, at steps of 5 minutes.
LAGS, HORIZON = 12, 12


@dataclass(frozen=True, eq=False)
class Inspection:
    """What `inspect` found about a graph or readings of sensors.

    Attributes:
        split_problem: Why there is no usable split; None if there is one.
        methods: Every method of the task, with the reason why a run of it would be refused on this data; None
            for a method that can be run.
        partition: The partition of a graph; None if the data names no clients and none were asked for.
        parts: The split of a graph, without nodes if it cannot be used.
    """

    data: Graph | Sensors
    overview: dict[str, Any]
    split: str
    split_problem: str | None
    methods: dict[str, str | None]
    partition: Partition | None = None
    parts: Split | None = None

    @property
    def of_sensors(self) -> bool:
        """Whether the data are readings of sensors."""
        return isinstance(self.data, Sensors)

    def to_json(self) -> dict[str, Any]:
        """Return what was found as plain data: the overview, hash, split, partition and methods."""
        more: dict[str, Any] = {"split_problem": self.split_problem, "methods": self.methods}
        partition = self.partition
        if not self.of_sensors:
            keys = ("name", "options", "seed", "hash")
            more["partition"] = None if partition is None else {key: getattr(partition, key) for key in keys}
        return {**self.overview, "hash": self.data.hash, "split": self.split, **more}


def inspect(
    data: object = "digits",
    *,
    clients: int | None = None,
    partition: object = None,
    split: str = "default",
    seed: int = 0,
    data_dir: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> Inspection:
    """Load a graph or sensors and describe them; nothing is trained or written.

    Without clients, partition and settings of a partition, the clients are those that the data names, if it
    names any. Of sensors each is a client, and the settings lags and horizon are the lengths of a window.

    Args:
        data, partition, split: As in `run`.
        clients: The number of clients; None for those that the data names.
        seed: The seed of partition and split.
        data_dir: The folder where data files are looked for first.
        settings: Settings of the partition and of a generated data set.

    Returns:
        The data, its overview, and for each method why it cannot use the data, if it cannot.

    Raises:
        InputError: The data cannot be read, or the partition cannot be made.
    """
    settings = given_settings(settings)
    source = data_source(data)
    if source.kind == "sensors":
        return _inspect_sensors(source, clients, partition, split, data_dir, settings)
    assert not isinstance(source.value, Sensors | SensorDescription)
    given = {
        "data": source, "clients": clients, "partition": partition, "split": split, "seed": seed,
        "data_dir": data_dir, "settings": settings,
    }  # fmt: skip
    options = with_partition_file(given)
    partition = options["partition"]
    # Any method serves: only the choices that concern the data are used.
    make_config("isolated", **options | {"settings": None})  # a name is looked up before its settings are
    known = data_setting_names(source.value, partition or source.default_partition)
    _check_settings(settings, known)
    config = make_config("isolated", **options)
    graph, graph_problem = _graph(source, config)
    chosen, split_problem = _split(graph, config.split, config.split_seed)
    if split_problem is None:
        graph = with_split_remark(graph, chosen, config.split)
    # Without any of these the data names no clients, so it is shown as that of one client.
    asked = clients is not None or partition is not None or source.default_partition == "column"
    asked = asked or any(str(key).startswith("partition") for key in settings)
    partitioned = partition_graph(config, graph) if asked else None
    shown_partition = pooled_partition(graph) if partitioned is None else partitioned
    whole, graph = graph, with_client_remarks(graph, shown_partition)
    if split_problem is None:
        graph = with_classes_of_split(config, graph, chosen)
    inputs = NodeInputs(graph, chosen, shown_partition, source.dropped)
    return Inspection(
        data=graph,
        partition=partitioned,
        parts=chosen,
        overview=inputs.overview(),
        split=chosen.name,
        split_problem=split_problem,
        methods={
            name: _problem(name, whole, inputs, graph_problem, split_problem, options)
            for name, method in METHODS.usable().items()
            if TASK.name in method.tasks
        },
    )


def _check_settings(settings: Iterable[str], known: list[str]) -> None:
    """Raise InputError for a setting that does not concern the data, because it would change nothing here."""
    for key in settings:
        if key in known:
            continue
        if any(key in setting_names(method) for method in METHODS.usable()):
            raise InputError(f"{key} is a setting of training, and nothing is trained here; leave it out")
        raise InputError(f"there is no setting {shown(key)} of the data; {unknown_setting(key, known)}")


def _graph(source: DataSource, config: RunConfig) -> tuple[Graph, str | None]:
    """Load the graph; if only a part of it is missing that training needs, load the structure and say what
    is missing.
    """
    try:
        return with_degree_features(load_graph(config)), None
    except InputError as error:
        if not isinstance(source.value, str) or DATASETS[source.value].built_in:
            raise
        with contextlib.suppress(InputError):
            # The structure is enough here, and its files may exist without those of the features.
            graph = load(source.value, config.data_dir, structure_only=True)
            assert isinstance(graph, Graph)
            return graph, str(error)
        raise


def _split(graph: Graph, name: str, seed: int) -> tuple[Split, str | None]:
    """Return the split, or a split without nodes and why the one that was asked for cannot be used."""
    try:
        split = make_split(graph, name, seed)
        check_split(graph, split)
    except InputError as error:
        none = np.zeros(graph.num_nodes, dtype=bool)
        return Split("none", none, none, none), str(error)
    return split, None


def _problem(
    name: str,
    whole: Graph,
    inputs: NodeInputs,
    graph_problem: str | None,
    split_problem: str | None,
    options: Mapping[str, Any],
) -> str | None:
    """Return why a run of a method would be refused, found by the same checks in the same order; None if
    it would not.

    `whole` is the graph that a run would partition.
    """
    try:
        config = make_config(name, **options)
        if graph_problem is not None:
            return graph_problem
        check_labels(inputs.graph)
        if split_problem is not None:
            return split_problem
        # A method whose default partition states the clients, such as ego, does not use the shown one.
        other = config.partition_file is None and config.partition != inputs.partition.name
        if other and PARTITIONS[config.partition].clients_of is not None:
            inputs = replace(inputs, partition=partition_graph(config, whole))
        inputs.check(config)
    except InputError as error:
        return str(error)
    return None


def _inspect_sensors(
    source: DataSource,
    clients: int | None,
    partition: object,
    split: str,
    data_dir: str | Path | None,
    settings: JsonObject,
) -> Inspection:
    if clients is not None or partition is not None:
        raise InputError(
            f"{source.name!r} holds readings of sensors, each of which is a client; leave clients and "
            "partition out"
        )
    asked = dict(settings)
    # Of the settings of training only these two are taken: they decide which windows there are.
    lags, horizon = asked.pop("lags", LAGS), asked.pop("horizon", HORIZON)
    known = DATASETS[source.value].options if isinstance(source.value, str) else {}
    _check_settings(asked, [f"data.{key}" for key in known])
    options = {str(key).removeprefix("data."): value for key, value in asked.items()}
    sensors = load_data(source.value, data_dir, options)
    assert isinstance(sensors, Sensors)
    try:
        cut, problem = make_time_split(sensors, split, lags, horizon), None
        sensors = with_training_remark(sensors, cut)
    except InputError as error:
        cut, problem = None, str(error)
    return Inspection(
        data=sensors,
        overview=sensor_overview(sensors, cut),
        split=split if cut is None else cut.name,
        split_problem=problem,
        methods={
            name: f"{name} is for graphs" if first_task(method).data is GRAPHS else problem
            for name, method in METHODS.usable().items()
        },
    )

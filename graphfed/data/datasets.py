"""Data sets by name, as in `load("cora")`.

Built-in sets need no file. Public sets are read from files, which are searched below the `data_dir` argument,
then below the folder in the environment variable GRAPHFED_DATA, then below the user's cache folder. Plug-ins
add further sets (`graphfed.plugins`).
"""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from graphfed.data.cache import cache_folder
from graphfed.data.graphs.digits import load_digits
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.npz import NPZ_SOURCES, find_npz, load_npz
from graphfed.data.graphs.payments import make_payments
from graphfed.data.graphs.planetoid import SOURCE as PLANETOID_SOURCE
from graphfed.data.graphs.planetoid import find_files, load_planetoid
from graphfed.data.graphs.social import make_social
from graphfed.data.sensors.roads import make_roads
from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.traffic import TRAFFIC, find_traffic, load_traffic
from graphfed.errors import InputError, did_you_mean
from graphfed.plugins import Registry


@dataclass(frozen=True)
class DatasetSpec:
    """The data set that a name stands for, where its files come from, and its publication and licence.

    Attributes:
        task: "classification" for a graph, "forecasting" for sensors.
        load: For a built-in set or a plug-in's set, a function of the options, each with a default. For a set
            that is read from files, (roots, structure_only) -> Graph, or (roots) -> Sensors.
        default_split: The argument `spec` of `splits.make_split`; None for forecasting, where time is split.
        find: (roots) -> the path of the files (None if there are none) and the names of missing files. None
            for a built-in set.
        names_clients: Whether the graph states the client of each node.
    """

    title: str
    task: str
    load: Callable[..., Graph | Sensors]
    default_split: str | None
    source: str
    citation: str
    find: Callable[[list[Path]], tuple[Path | None, list[str]]] | None = None
    names_clients: bool = False

    @property
    def built_in(self) -> bool:
        """Whether the set needs no file that the package does not contain."""
        return self.find is None

    @property
    def options(self) -> dict[str, Any]:
        """The options that `load` accepts for this set, with defaults; empty for a set read from files."""
        if not self.built_in:
            return {}
        parameters = inspect.signature(self.load).parameters
        return {key: p.default for key, p in parameters.items() if key != "structure_only"}


@dataclass(frozen=True)
class Availability:
    """One row of `available`: what was found of a data set, and the names of the missing files."""

    name: str
    spec: DatasetSpec
    place: Path | None
    missing: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether the whole set, with its features, can be loaded now without the network."""
        return self.spec.built_in or not self.missing


def _planetoid(folder: str, title: str) -> DatasetSpec:
    return DatasetSpec(
        title=title,
        task="classification",
        load=partial(load_planetoid, folder),
        find=partial(find_files, folder=folder),
        default_split="public",
        source=PLANETOID_SOURCE,
        citation="Yang et al.: Revisiting Semi-Supervised Learning with Graph Embeddings, ICML 2016 (MIT)",
    )


_NPZ = {
    name: DatasetSpec(
        title=source.title,
        task="classification",
        load=partial(load_npz, source),
        find=partial(find_npz, source=source),
        default_split=source.default_split,
        source=source.source,
        citation=source.citation,
    )
    for name, source in NPZ_SOURCES.items()
}
_TRAFFIC = {
    name: DatasetSpec(
        title=source.title,
        task="forecasting",
        load=partial(load_traffic, source),
        find=partial(find_traffic, source=source),
        default_split=None,
        source=source.source,
        citation="Li et al.: Diffusion Convolutional Recurrent Neural Network, ICLR 2018 (MIT)",
    )
    for name, source in TRAFFIC.items()
}
_INCLUDED: dict[str, DatasetSpec] = {
    "digits": DatasetSpec(
        title="handwritten digits as a nearest-neighbour graph: 1 797 nodes, 64 features, 10 classes",
        task="classification",
        load=load_digits,
        default_split="per_class",
        source="ships with graphfed",
        citation="Alpaydin, Kaynak: Optical Recognition of Handwritten Digits, UCI 1998 (CC BY 4.0)",
    ),
    "social": DatasetSpec(
        title="generated social network of any size: communities, heavy tails, binary or dense features",
        task="classification",
        load=make_social,
        default_split="per_class",
        source="generated",
        citation="degree-corrected block model: Karrer, Newman, Physical Review E 83, 2011",
    ),
    "payments": DatasetSpec(
        title="generated payments between accounts at banks, directed, with amounts, times and laundering",
        task="classification",
        load=make_payments,
        default_split="per_class",
        source="generated",
        citation="in the manner of AMLworld: Altman et al., NeurIPS 2023",
        names_clients=True,
    ),
    "cora": _planetoid("Cora", "citations: 2 708 nodes, 1 433 features, 7 classes"),
    "citeseer": _planetoid("CiteSeer", "citations: 3 327 nodes, 3 703 features, 6 classes"),
    "pubmed": _planetoid("PubMed", "citations: 19 717 nodes, 500 features, 3 classes"),
    **_NPZ,
    "roads": DatasetSpec(
        title="generated road network: speeds every 5 minutes, with congestion waves and missing readings",
        task="forecasting",
        load=make_roads,
        default_split=None,
        source="generated",
        citation="",
    ),
    **_TRAFFIC,
}
DATASETS = Registry("data set", "graphfed.datasets", "DATASET", _INCLUDED, lambda: DatasetSpec)


def search_folders(data_dir: str | Path | None = None) -> list[Path]:
    """List the folders in which files are searched: `data_dir`, then GRAPHFED_DATA, then the cache folder."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise InputError(f"the data folder {data_dir} does not exist; create it, or omit the option")
    given = [data_dir, os.environ.get("GRAPHFED_DATA") or None, cache_folder()]
    return [Path(folder) for folder in given if folder is not None]


def load(
    name: str, data_dir: str | Path | None = None, *, structure_only: bool = False, **options: Any
) -> Graph | Sensors:
    """Load a data set by its key of `DATASETS`.

    Args:
        structure_only: Load a graph without its features (`x` is None). A set whose features are incomplete
            can be loaded in no other way.
        **options: Options of a generated set, as in `load("social", num_nodes=10_000)`.
    """
    if name not in DATASETS:
        raise InputError(f"unknown data set {name!r}; {did_you_mean(name, DATASETS)}")
    spec = DATASETS[name]
    for key in options:
        if key not in spec.options:
            hint = did_you_mean(key, spec.options) if spec.options else "it has no options"
            raise InputError(f"data set {name!r} has no option {key!r}; {hint}")
    # Silence would suggest that something was left out.
    if structure_only and spec.task == "forecasting":
        raise InputError(
            f"data set {name!r} is for forecasting and has no features that structure_only could leave out; "
            "omit structure_only"
        )
    # A plug-in's loader need not know the option; its features are then loaded and dropped.
    able = "structure_only" in inspect.signature(spec.load).parameters
    given = () if spec.built_in else (search_folders(data_dir),)
    data = spec.load(*given, **options, **({"structure_only": structure_only} if able else {}))
    expected, built_by = (
        (Sensors, "graphfed.data.sensors.series.Sensors")
        if spec.task == "forecasting"
        else (Graph, "graphfed.data.graphs.graph.make_graph")
    )
    if not isinstance(data, expected):
        raise InputError(
            f"the loader of data set {name!r}, a set for {spec.task}, must return {expected.__name__}, and "
            f"returned {type(data).__name__}; build it with {built_by}"
        )
    return replace(data, x=None) if structure_only and isinstance(data, Graph) else data


def available(data_dir: str | Path | None = None) -> list[Availability]:
    """Report for each data set whether it can be loaded. Nothing is loaded or downloaded."""
    roots = search_folders(data_dir)
    rows = []
    for name, spec in DATASETS.usable().items():
        place, missing = spec.find(roots) if spec.find else (None, [])
        rows.append(Availability(name, spec, place, tuple(missing)))
    return rows

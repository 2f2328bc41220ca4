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
    """The data set that a name stands for, and its title of one line.

    Attributes:
        task: "classification" for a graph, "forecasting" for sensors.
        load: For a built-in set or a plug-in's set, a function of the options, each with a default, perhaps
            with
            `structure_only` among them. For a set that is read from files, (roots, structure_only) -> Graph,
            or (roots) -> Sensors.
        default_split: The argument `spec` of `splits.make_split`; None for forecasting, where time is split.
        source: Where the files come from.
        citation: The publication and the licence.
        find: (roots) -> the path of the files (None if there are none) and the names of missing files. None
            for a built-in set.
    """

    title: str
    task: str
    load: Callable[..., Graph | Sensors]
    default_split: str | None
    source: str
    citation: str
    find: Callable[[list[Path]], tuple[Path | None, list[str]]] | None = None

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
    title: str
    task: str
    built_in: bool
    place: Path | None
    missing: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether the whole set, with its features, can be loaded now without the network."""
        return self.built_in or not self.missing


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


def _npz(name: str, title: str, citation: str, default_split: str = "per_class") -> DatasetSpec:
    source = NPZ_SOURCES[name]
    return DatasetSpec(
        title=title,
        task="classification",
        load=partial(load_npz, source),
        find=partial(find_npz, source=source),
        default_split=default_split,
        source=source.source,
        citation=citation,
    )


def _traffic(name: str, title: str) -> DatasetSpec:
    source = TRAFFIC[name]
    return DatasetSpec(
        title=title,
        task="forecasting",
        load=partial(load_traffic, source),
        find=partial(find_traffic, source=source),
        default_split=None,
        source=source.source,
        citation="Li et al.: Diffusion Convolutional Recurrent Neural Network, ICLR 2018 (MIT)",
    )


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
    "cora": _planetoid("Cora", "citations: 2 708 nodes, 1 433 features, 7 classes"),
    "citeseer": _planetoid("CiteSeer", "citations: 3 327 nodes, 3 703 features, 6 classes"),
    "pubmed": _planetoid("PubMed", "citations: 19 717 nodes, 500 features, 3 classes"),
    "facebook": _npz(
        "facebook",
        "pages that like each other: 22 470 nodes, 4 714 features, 4 classes",
        "Rozemberczki, Allen, Sarkar: Multi-Scale Attributed Node Embedding, 2021 (GPL-3.0)",
    ),
    "facebook_128": _npz(
        "facebook_128",
        "facebook with 128 dense features: projections on singular vectors",
        "Rozemberczki, Allen, Sarkar: Multi-Scale Attributed Node Embedding, 2021 (GPL-3.0)",
    ),
    "lastfm": _npz(
        "lastfm",
        "listeners in Asia: 7 624 nodes, 18 countries; features incomplete, structure only",
        "Rozemberczki, Sarkar: Characteristic Functions on Graphs, CIKM 2020 (GPL-3.0)",
        # The smallest class has 16 nodes, and the default split "per_class" trains on 20 of each class.
        default_split="random:0.5,0.25,0.25",
    ),
    "dblp": _npz(
        "dblp",
        "citations: 17 716 nodes, 1 639 features, 4 classes",
        "Pan et al.: Tri-Party Deep Network Representation, IJCAI 2016 (MIT)",
    ),
    "physics": _npz(
        "physics",
        "co-authors in physics: 34 493 nodes, 8 415 features, 5 classes",
        "Shchur et al.: Pitfalls of Graph Neural Network Evaluation, 2018 (MIT)",
    ),
    "physics_10k": _npz(
        "physics_10k",
        "10 000 of the nodes of physics, drawn at random, with the edges among them",
        "Shchur et al.: Pitfalls of Graph Neural Network Evaluation, 2018 (MIT)",
    ),
    "roads": DatasetSpec(
        title="generated road network: speeds every 5 minutes, with congestion waves and missing readings",
        task="forecasting",
        load=make_roads,
        default_split=None,
        source="generated",
        citation="",
    ),
    "metr_la": _traffic("metr_la", "Los Angeles: speeds at 207 sensors, 34 272 steps of 5 minutes"),
    "pems_bay": _traffic("pems_bay", "Bay Area: speeds at 325 sensors, 52 116 steps of 5 minutes"),
    "metr_la_week": _traffic(
        "metr_la_week", "METR-LA, first week: 207 sensors, 2 016 steps, gaps interpolated"
    ),
    "metr_la_raw": _traffic("metr_la_raw", "METR-LA, its first 1 026 steps at 207 sensors, with the gaps"),
    "metr_la_20": _traffic("metr_la_20", "METR-LA, 20 of the sensors over the full period"),
    "pems_bay_67": _traffic("pems_bay_67", "PEMS-BAY, 67 of the sensors over the full period"),
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
    if structure_only and spec.task == "forecasting":
        raise InputError(
            f"data set {name!r} is for forecasting and has no features that structure_only could leave out; "
            "omit structure_only"
        )
    if spec.task == "forecasting":
        return spec.load(**options) if spec.built_in else spec.load(search_folders(data_dir))
    if spec.built_in:
        able = "structure_only" in inspect.signature(spec.load).parameters
        graph = spec.load(**options, **({"structure_only": structure_only} if able else {}))
        if not isinstance(graph, Graph):
            raise InputError(
                f"the loader of data set {name!r} must return a Graph, and returned a "
                f"{type(graph).__name__}; build the graph with graphfed.data.graphs.graph.make_graph"
            )
        return replace(graph, x=None) if structure_only else graph
    return spec.load(search_folders(data_dir), structure_only)


def available(data_dir: str | Path | None = None) -> list[Availability]:
    """Report for each data set whether it can be loaded. Nothing is loaded or downloaded."""
    roots = search_folders(data_dir)
    rows = []
    for name, spec in DATASETS.usable().items():
        place, missing = spec.find(roots) if spec.find else (None, [])
        rows.append(Availability(name, spec.title, spec.task, spec.built_in, place, tuple(missing)))
    return rows

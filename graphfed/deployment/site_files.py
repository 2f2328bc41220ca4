"""Writes the files of the sites of a rehearsal from one graph, and checks the file of a site."""

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.overview import client_names
from graphfed.data.partitions.partition import Partition
from graphfed.errors import GraphfedError, InputError, shown
from graphfed.federation.cohort import Names, make_cohort, node_names, save_cohort, stable_ids_of
from graphfed.tasks.registry import data_kinds

#: The most characters of a site's name in the name of its file.
MAX_NAME = 50


def check_new_folder(folder: Path) -> None:
    """Raise InputError if something exists at the path of a new folder, or it cannot be made there."""
    try:
        exists = os.path.lexists(folder)
    except ValueError:  # a zero byte
        raise InputError(f"{shown(str(folder))} cannot be the name of a folder; give another name") from None
    if exists:
        raise InputError(f"{folder} already exists; remove it, or give another folder")
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"{folder} cannot be made: {folder.parent} is not a folder that you may write to; make it, or "
            "give another folder"
        )


def write_cohorts(graph: Graph, split: Split, partition: Partition, folder: Path) -> dict[str, Path]:
    """Write the file of each site into a new folder; return their paths by the name of the site.

    A file has the nodes and edges of its site, the ids of their neighbours at other sites, and the names of
    features, classes and its own nodes. It has nothing else that other sites hold. Either all files are
    written or none.

    Raises:
        InputError: The graph has no features, or the folder cannot be made.
        GraphfedError: The files cannot be written.
    """
    check_new_folder(folder)
    if graph.x is None:
        raise InputError(
            f"{graph.name!r} has no features, which every method needs; give a graph with features"
        )
    names = client_names(graph, partition) or tuple(f"client{k}" for k in range(partition.num_clients))
    files = {name: f"{stem}.safetensors" for name, stem in zip(names, _stems(names), strict=True)}
    ids = stable_ids_of(graph, partition)
    try:
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name[:MAX_NAME]}."))
        try:
            for k, file in enumerate(files.values()):
                cohort = make_cohort(graph, split, partition, [k], stable_ids=ids)
                known = Names(graph.feature_names, graph.class_names, node_names(graph, cohort, ids))
                save_cohort(cohort, temporary / file, known)
            # Only its owner may read the folder (mkdtemp), because it has the data of all sites.
            os.rename(temporary, folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise GraphfedError(f"{folder} could not be written: {error.strerror or error}") from error
    return {name: folder / file for name, file in files.items()}


def _stems(names: tuple[str, ...]) -> list[str]:
    """Make a distinct file name for each site: letters, digits, dots, dashes and underscores."""
    stems: list[str] = []
    for k, name in enumerate(names):
        stem = re.sub(r"[^\w.-]+", "-", name)[:MAX_NAME].strip(".-") or "site"
        # Some file systems do not distinguish capitals.
        while stem.lower() in {other.lower() for other in stems}:
            stem = f"{stem}-{k}"
        stems.append(stem)
    return stems


def checked_file(path: Path, roster: Sequence[str], name: str) -> str:
    """Read the file of a participant, and summarise it for its operator; InputError if it cannot be used."""
    # The first kind, graphs, accepts every file that no other kind recognises.
    for kind in reversed(data_kinds()):
        summary = kind.summarise(path, roster, name)
        if summary is not None:
            return summary
    raise AssertionError("the reader of graphs accepts every file")

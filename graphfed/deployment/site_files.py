"""The files that sites of a deployment read: for a rehearsal made from one graph, and what is in one."""

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

__all__ = ["check_new_folder", "checked_file", "write_cohorts"]

#: Characters of a site's name in its file's.
MAX_NAME = 50


def check_new_folder(folder: Path) -> None:
    """InputError unless a folder can be made at `folder`: nothing is there, and the one above is and can be
    written into."""
    try:
        there = os.path.lexists(folder)
    except ValueError:  # a zero byte
        raise InputError(f"{shown(str(folder))} cannot be a folder's name; name another one") from None
    if there:
        raise InputError(f"{folder} is there already; remove it, or name another folder")
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"{folder} cannot be made: {folder.parent} is not a folder you may write to; make it, or name "
            "another one"
        )


def write_cohorts(graph: Graph, split: Split, partition: Partition, folder: Path) -> dict[str, Path]:
    """Write each site's cohort into a new folder: {the site's name: its file}, in the order of the sites. A
    file has what the site holds and the ids at the far ends of its edges, the names of features, classes and
    its own nodes, and nothing of what other sites hold.

    All files or none: InputError for a graph without features and as of `check_new_folder`, GraphfedError
    where the disk refuses."""
    check_new_folder(folder)
    if graph.x is None:
        raise InputError(f"{graph.name!r} has no features, and methods need them; deal a graph that has some")
    names = client_names(graph, partition) or tuple(f"client{k}" for k in range(partition.num_clients))
    files = {name: f"{stem}.safetensors" for name, stem in zip(names, _stems(names), strict=True)}
    ids = stable_ids_of(graph, partition)
    try:
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name[:MAX_NAME]}."))
        try:
            for k, file in enumerate(files.values()):
                cohort = make_cohort(graph, split, partition, [k], stable_ids=ids)
                known = Names(graph.feature_names, graph.class_names, node_names(graph, cohort, ids))
                save_cohort(cohort, made / file, known)
            # The folder stays its owner's alone, as it was made: all sites' data is in it.
            os.rename(made, folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise GraphfedError(f"{folder} could not be written: {error.strerror or error}") from error
    return {name: folder / file for name, file in files.items()}


def _stems(names: tuple[str, ...]) -> list[str]:
    """A file's name for each site's: letters, digits, dots, dashes and underscores, no two alike."""
    stems: list[str] = []
    for k, name in enumerate(names):
        stem = re.sub(r"[^\w.-]+", "-", name)[:MAX_NAME].strip(".-") or "site"
        while stem.lower() in {other.lower() for other in stems}:
            stem = f"{stem}-{k}"
        stems.append(stem)
    return stems


def checked_file(path: Path, roster: Sequence[str], name: str) -> str:
    """Return what is in a participant's own file, in a few words for its operator.

    Args:
        path: The file.
        roster: The names of all clients of the run.
        name: The participant's name.

    Raises:
        InputError: The file cannot be used.
    """
    # The reader of graphs, the first kind, takes every file that no other kind knows.
    for kind in reversed(data_kinds()):
        summary = kind.participants.summarise(path, roster, name)
        if summary is not None:
            return summary
    raise AssertionError("the reader of graphs takes every file")

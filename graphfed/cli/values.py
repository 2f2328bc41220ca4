"""The names that the shell completes and the help lists, without loading the code behind them.

Completion must answer while a person types: the tables in graphfed.data would load numpy first.
tests/integration/test_completion.py keeps these copies equal to the tables. Tasks, runtimes and placements
need no copy, because the modules that list them load neither; settings are kept in the cache folder.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

from graphfed.tasks.registry import TASKS
from graphfed.tasks.run_options import Placement, Runtime

__all__ = [
    "DATA_SETS",
    "DEVICES",
    "PARTITIONS",
    "PLACEMENTS",
    "RUNTIMES",
    "SPLITS",
    "TASKS",
    "choices",
    "data_setting_keys",
    "method_names",
    "run_folders",
    "setting_keys",
]

DATA_SETS = (
    "digits", "social", "cora", "citeseer", "pubmed", "facebook", "facebook_128", "lastfm", "dblp",
    "physics", "physics_10k", "roads", "metr_la", "pems_bay", "metr_la_week", "metr_la_raw", "metr_la_20",
    "pems_bay_67",
)  # fmt: skip
PARTITIONS = (
    "label_dirichlet", "label_skew", "random", "edges_uniform", "louvain", "metis", "overlapping", "ego",
    "column", "sensors",
)  # fmt: skip
RUNTIMES: tuple[str, ...] = get_args(Runtime)
PLACEMENTS: tuple[str, ...] = get_args(Placement)
SPLITS = ("default", "public", "per_class", "random", "random_plain", "edges", "time", "inductive")
DEVICES = ("cpu", "cuda")


def choices(names: Iterable[str], group: str = "") -> Callable[[str], list[str]]:
    """Make a completion for a list of names.

    Args:
        group: A group of entry points, whose names of installed plug-ins are offered, too; "" for none.

    Returns:
        A function from what was typed to the names that begin with it.
    """
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        from graphfed.plugins import installed_names

        added = installed_names(group) if group else []
        return [name for name in dict.fromkeys([*known, *added]) if name.startswith(incomplete)]

    return complete


def method_names(incomplete: str) -> list[str]:
    """Complete the name or alias of a method.

    Returns:
        The names that begin with it.
    """
    from graphfed.methods.registry import ALIASES, METHODS

    return [name for name in (*METHODS, *ALIASES) if name.startswith(incomplete)]


def run_folders(incomplete: str) -> list[str]:
    """Complete the folder of a run, a comparison or a sweep, in this folder or one level deeper.

    Returns:
        The paths that begin with it. If a name has a character that shells split at, there are none, and the
        shell completes files instead.
    """
    head, slash, start = incomplete.rpartition("/")
    folders: list[str] = []
    for folder in _folders_in(Path(head + slash or ".")):
        if folder.name.startswith(start):
            inner = [folder] if _is_run(folder) else [f for f in _folders_in(folder) if _is_run(f)]
            path = head + slash + folder.name
            folders += [path if found is folder else f"{path}/{found.name}" for found in inner]
    return [] if any(set(name) & set(" \t\n:'\"\\$`") for name in folders) else folders


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    try:
        return (folder / "manifest.json").is_file()
    except OSError:
        return False


def data_setting_keys(incomplete: str) -> list[str]:
    """Complete a key of ``--set`` that is about data, not training.

    Returns:
        The keys that begin with it.
    """
    return [key for key in setting_keys(incomplete) if key.startswith(("partition", "split", "data"))]


def setting_keys(incomplete: str) -> list[str]:
    """Complete a key of ``--set key=value``, without the value.

    Returns:
        The keys that begin with it, each followed by "=".
    """
    from graphfed.runs.catalogue import every_setting

    return [f"{key}=" for key in every_setting() if f"{key}=".startswith(incomplete)]

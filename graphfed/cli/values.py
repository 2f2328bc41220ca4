"""What the shell completes, without loading the code behind it: completion answers while a person types.

Names of data sets and the like are in `graphfed.tasks.run_options`, settings in the cache folder.
"""

from collections.abc import Callable, Iterable
from pathlib import Path


def choices(names: Iterable[str], group: str = "") -> Callable[[str], list[str]]:
    """Make a completion for a list of names: a function from what was typed to the names that begin with it.

    `group` is a group of entry points, whose names of installed plug-ins are offered, too; "" for none.
    """
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        from graphfed.plugins import installed_names

        added = installed_names(group) if group else []
        return [name for name in dict.fromkeys([*known, *added]) if name.startswith(incomplete)]

    return complete


def method_names(incomplete: str) -> list[str]:
    """Complete the name or alias of a method."""
    from graphfed.methods.registry import ALIASES, METHODS

    return [name for name in (*METHODS, *ALIASES) if name.startswith(incomplete)]


def run_folders(incomplete: str) -> list[str]:
    """Complete the folder of a run, a comparison or a sweep, in this folder or one level deeper."""
    head, slash, start = incomplete.rpartition("/")
    folders: list[str] = []
    for folder in _folders_in(Path(head + slash or ".")):
        if folder.name.startswith(start):
            inner = [folder] if _is_run(folder) else [f for f in _folders_in(folder) if _is_run(f)]
            path = head + slash + folder.name
            folders += [path if found is folder else f"{path}/{found.name}" for found in inner]
    # At such a character a shell splits the completion; it then completes files itself.
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
    """Complete a key of ``--set`` that is about data, not training."""
    return [key for key in setting_keys(incomplete) if key.startswith(("partition", "split", "data"))]


def setting_keys(incomplete: str) -> list[str]:
    """Complete a key of ``--set key=value`` with its "=", without the value."""
    from graphfed.runs.catalogue import every_setting

    return [f"{key}=" for key in every_setting() if f"{key}=".startswith(incomplete)]

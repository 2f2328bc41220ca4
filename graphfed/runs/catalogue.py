"""Describe every method for `graphfed methods`, list all settings for the completion of shells, and keep both
in the user's cache folder.

Describing the methods imports all of them, and torch with them, which takes seconds. The descriptions are
plain data that follow from code alone, so they are kept with a digest of the code: every Python file of
graphfed and of the packages that add methods, the names and versions of all installed distributions, and
Python's version. If any of these changes, the methods are described again.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from graphfed.data.cache import cache_folder
from graphfed.files import read_regular
from graphfed.methods.registry import ALIASES, METHODS, canonical_name, get_method
from graphfed.terminal import say

if TYPE_CHECKING:
    from graphfed.files import JsonObject
    from graphfed.methods.base import Method

#: In the cache folder: the digest of the code, the descriptions of the methods, and all settings.
FILE = "methods.json"


def describe_method(name: str) -> "JsonObject":
    """Return the description of the method with a name or an alias, in lower or upper case."""
    catalogue, _ = _describe_all()
    known = {each["name"]: each for each in catalogue["methods"]}
    # A name that is missing there is unknown or cannot be loaded, and `get_method` says why.
    return known.get(canonical_name(name)) or _description(get_method(name))


def describe_every_method() -> "list[JsonObject]":
    """Return the descriptions of all methods that can be loaded, and warn on stderr of the others.

    Each has the keys of ``graphfed methods NAME --json``.
    """
    catalogue, problems = _describe_all()
    for problem in problems:
        say(f"warning: {problem}")
    return list(catalogue["methods"])


def every_setting() -> list[str]:
    """Return the keys that `--set` takes for some method, partition or data set."""
    catalogue, _ = _describe_all()
    return list(catalogue["settings"])


def _describe_all() -> "tuple[JsonObject, list[str]]":
    """Return the catalogue of what can be loaded, and why some methods cannot be."""
    digest = _code_digest()
    kept = _kept(digest)
    if kept is not None:
        return kept, []
    methods, problems = METHODS.load_all()
    catalogue: JsonObject = {
        "code": digest,
        "methods": [_description(method) for method in methods.values()],
        "settings": _setting_names([*methods]),
    }
    # With problems, the next call must find them again to warn of them.
    if digest and not problems:
        _keep(catalogue)
    return catalogue, problems


def _setting_names(methods: list[str]) -> list[str]:
    from graphfed.data.datasets import DATASETS
    from graphfed.data.partitions.partition import PARTITIONS
    from graphfed.runs.config import setting_names

    names = [name for method in methods for name in setting_names(method)]
    names += [f"partition.{key}" for spec in PARTITIONS.usable().values() for key in spec.options]
    names += [f"data.{key}" for spec in DATASETS.usable().values() for key in spec.options]
    return [*dict.fromkeys(names)]


def _description(method: "Method") -> "JsonObject":
    from graphfed.runs.settings import settings_of
    from graphfed.tasks.registry import first_task, get_task

    plugin = METHODS.plugin(method.name)
    content = {
        "name": method.name,
        "plugin": None if plugin is None else plugin.to_json(),
        "aliases": [alias for alias, target in ALIASES.items() if target == method.name],
        "tasks": list(method.tasks),
        "summary": method.summary,
        "paper": method.paper,
        "needs": first_task(method).requirements(method),
        "sent": method.sends.summary,
        "protection": method.sends.protection,
        "messages": dict(method.sends.messages),
        "settings": [setting.to_json() for setting in settings_of(method)],
        "defaults": dict(method.defaults),
        "default_settings": {task: get_task(task).settings_of(method) for task in method.tasks},
    }
    # The description has the same types as one that is read from the file, in which tuples are lists.
    described: JsonObject = json.loads(json.dumps(content))
    return described


def _code_digest() -> str:
    """Return the digest of what the descriptions follow from; an empty text if it cannot be known."""
    folders = METHODS.folders_of_plugins()
    if folders is None:
        return ""
    digest = hashlib.sha256(sys.version.encode())
    for entry in sys.path:
        # The folder of an installed distribution has its name and version.
        for found in sorted(path.name for path in Path(entry or ".").glob("*-info")):
            digest.update(f"{found}\n".encode())
    for folder in (Path(__file__).parents[1], *folders):
        for file in sorted(folder.rglob("*.py") if folder.is_dir() else [folder]):
            digest.update(f"{file.relative_to(folder.parent)} {file.stat().st_size}\n".encode())
            digest.update(read_regular(file))
    return digest.hexdigest()


def _kept(digest: str) -> "JsonObject | None":
    """Return the catalogue in the cache folder; None if there is none, or it belongs to other code."""
    try:
        content: JsonObject = json.loads(read_regular(cache_folder() / FILE))
        same = bool(digest) and content["code"] == digest
        return content if same and {"methods", "settings"} <= content.keys() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(catalogue: "JsonObject") -> None:
    from graphfed.files import write_json

    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_json(cache_folder() / FILE, catalogue)
    except OSError:
        return  # the next call describes them again

"""The user's cache folder: downloaded files and the list of methods."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the path of graphfed's cache folder, without creating the folder.

    Returns:
        `$XDG_CACHE_HOME/graphfed`, or `~/.cache/graphfed` if XDG_CACHE_HOME is not set.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "graphfed"

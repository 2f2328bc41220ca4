"""The user's cache folder: downloaded files and the list of methods."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/graphfed` or `~/.cache/graphfed`, without creating it."""
    # The place that the XDG specification states; an empty variable counts as none.
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "graphfed"

"""The user's cache folder: converted copies of public data, what a loader downloaded, the list of methods."""

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/graphfed, or ~/.cache/graphfed. Not created here."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "graphfed"

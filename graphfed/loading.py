"""Objects by the name ``module:object``, for tables whose entries are imported when they are first used."""

import importlib
from typing import Any


def load_object(name: str) -> Any:
    """Import the module of a name like ``graphfed.runs.processes:run_worker`` and return its object.

    Args:
        name: ``module:object``, from a table of the package, never from a message or a file.
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)

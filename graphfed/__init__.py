"""Train graph neural networks on data that several clients hold and may not show each other.

>>> import graphfed as gf
>>> result = gf.run("fedavg", data="digits", clients=5, rounds=2, out=False)
>>> sorted(result.test)
['accuracy', 'loss', 'macro_f1']
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphfed.data.graphs.graph import Graph
    from graphfed.data.partitions.tables import Partition
    from graphfed.data.user_files.pyg_files import from_pyg
    from graphfed.deployment.deploy import deploy
    from graphfed.errors import InputError
    from graphfed.plugins import load_plugin
    from graphfed.report.page import write_report
    from graphfed.reproductions.reproduce import reproduce
    from graphfed.runs.inspect import inspect
    from graphfed.runs.predict import predict
    from graphfed.runs.reopen import resume
    from graphfed.runs.run import run
    from graphfed.studies.compare import compare
    from graphfed.studies.sweep import sweep

__all__ = [
    "Graph",
    "InputError",
    "Partition",
    "__version__",
    "compare",
    "deploy",
    "from_pyg",
    "inspect",
    "load_plugin",
    "predict",
    "reproduce",
    "resume",
    "run",
    "sweep",
    "write_report",
]

__version__ = "0.1.0"


#: The public functions and classes of the package, and the module of each.
_MODULES = {
    "Graph": "graphfed.data.graphs.graph",
    "InputError": "graphfed.errors",
    "Partition": "graphfed.data.partitions.tables",
    "compare": "graphfed.studies.compare",
    "deploy": "graphfed.deployment.deploy",
    "from_pyg": "graphfed.data.user_files.pyg_files",
    "inspect": "graphfed.runs.inspect",
    "load_plugin": "graphfed.plugins",
    "predict": "graphfed.runs.predict",
    "reproduce": "graphfed.reproductions.reproduce",
    "resume": "graphfed.runs.reopen",
    "run": "graphfed.runs.run",
    "sweep": "graphfed.studies.sweep",
    "write_report": "graphfed.report.page",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import graphfed` stays fast."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'graphfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, for `dir` and for completion."""
    return sorted(__all__)

"""graphfed: train graph neural networks across parties that may not show each other their graphs.

>>> import graphfed as gf
>>> result = gf.run("fedavg", data="digits", clients=5, rounds=2, out=False)
>>> sorted(result.test)
['accuracy', 'loss', 'macro_f1']
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphfed.experiment.compare import compare
    from graphfed.experiment.deploy import deploy
    from graphfed.experiment.inspect import inspect
    from graphfed.experiment.predict import predict
    from graphfed.experiment.reproduce import reproduce
    from graphfed.experiment.resume import resume
    from graphfed.experiment.run import run
    from graphfed.experiment.sweep import sweep

__all__ = ["__version__", "compare", "deploy", "inspect", "predict", "reproduce", "resume", "run", "sweep"]

__version__ = "0.1.0"


#: The functions of the package, each in the module of graphfed.experiment that has its name.
_FUNCTIONS = ("compare", "deploy", "inspect", "predict", "reproduce", "resume", "run", "sweep")


def __getattr__(name: str) -> Any:
    """The functions are imported when first used, so that `import graphfed` stays light."""
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"graphfed.experiment.{name}"), name)
    raise AttributeError(f"module 'graphfed' has no attribute {name!r}")

"""graphfed: train graph neural networks across parties that may not show each other their graphs.

>>> import graphfed as gf
>>> result = gf.run("fedavg", data="digits", clients=5, rounds=2, out=False)
>>> sorted(result.test)
['accuracy', 'loss', 'macro_f1']
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphfed.experiment.compare import compare
    from graphfed.experiment.run import run

__all__ = ["__version__", "compare", "run"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`run` and `compare` are imported when first used, so that `import graphfed` stays light."""
    if name == "run":
        from graphfed.experiment.run import run

        return run
    if name == "compare":
        from graphfed.experiment.compare import compare

        return compare
    raise AttributeError(f"module 'graphfed' has no attribute {name!r}")

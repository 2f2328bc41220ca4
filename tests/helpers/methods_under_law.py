"""The methods that every law is tested on: the whole registry, the skeleton of CONTRIBUTING.md, a toy that
exchanges and the plug-in of examples/plugin. Methods on graphs and those on sensors, which share no world,
have names of their own here.

The skeleton is cut out of CONTRIBUTING.md into a module and loaded as a plug-in: one file is all that a
method needs."""

import atexit
import re
import shutil
import sys
import tempfile
from pathlib import Path

from graphfed.methods import registry
from graphfed.methods.registry import get_method
from graphfed.plugins import load_plugin
from graphfed.tasks.registry import first_task

ROOT = Path(__file__).resolve().parents[2]


def skeleton_source() -> str:
    """The Python block that follows the skeleton mark in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = re.search(r"<!-- skeleton:.*?-->\n```python\n(.*?)```", text, re.DOTALL)
    assert block, "CONTRIBUTING.md has lost its skeleton"
    return block.group(1)


def _make_module(name: str, source: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="graphfed-laws-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))


def _on(data: str) -> tuple[str, ...]:
    """The registry's methods on a kind of data."""
    return tuple(name for name in registry.METHODS.own if first_task(get_method(name)).data.name == data)


#: On readings of sensors (test_forecasting_methods.py).
FORECASTERS = _on("sensors")
#: On graphs, and with the skeleton and the toy. Boosting trains no network (test_boosting.py).
SHIPPED = tuple(name for name in _on("graph") if get_method(name).trains)
_make_module("skeleton_method", skeleton_source())
load_plugin("skeleton_method")
load_plugin("exchange_toy")
load_plugin(ROOT / "examples/plugin/graphfed_example/fedavgm.py")
METHODS = (*SHIPPED, "skeleton", "exchange_toy", "fedavgm")
#: naive_fedgnn hides whether there is an edge, lumos has trees in its place, and prediction_release counts
#: neighbours: they refuse edge weights (test_released.py, test_weighted_graphs.py,
#: test_prediction_release.py).
REFUSE_WEIGHTS = ("naive_fedgnn", "lumos", "prediction_release")

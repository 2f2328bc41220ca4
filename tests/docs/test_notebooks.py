"""The example notebooks are what their scripts are, were executed in order, and give the same again.

`make notebooks` (scripts/notebooks.py) writes them."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

for library in ("jupytext", "nbclient", "ipykernel"):
    pytest.importorskip(library, reason="the extra 'docs' is not installed")

import nbformat  # noqa: E402
from nbformat import NotebookNode  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/notebooks"
sys.path.insert(0, str(ROOT / "scripts"))

from notebooks import METADATA, read_script  # noqa: E402

NAMES = ("cnfgnn", "end_to_end", "fedgat", "fedgraph", "lumos", "sapgnn")
#: The notebooks that read Cora, and the libraries that a notebook needs besides.
ON_REAL_DATA = {"fedgat", "fedgraph", "sapgnn"}
NEEDED = {"fedgraph": "stable_baselines3"}
#: What an output may not have: it would differ from one machine or execution to the next.
OF_THIS_MACHINE = re.compile(
    r"(?<![\w.])/(?:tmp|home|root|work|var|usr|opt|Users)/|\b0x[0-9a-f]{6,}|\d{4}-\d\d-\d\d[T ]\d\d:"
)
#: How far a number of an execution may be from the recorded one: processors add in different orders.
RELATIVE, ABSOLUTE = 0.05, 0.02
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def read(name: str) -> NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def outputs_of(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def text_of(notebook: NotebookNode) -> str:
    """What the cells printed and returned, and a word for every picture."""
    parts = []
    for output in outputs_of(notebook):
        data = output.get("data", {})
        parts.append("[picture]" if "image/png" in data else output.get("text", data.get("text/plain", "")))
    # A stream may be cut into several outputs anywhere between two lines.
    return "\n".join(part.removesuffix("\n") for part in parts)


def out_of_step(script: NotebookNode, notebook: NotebookNode) -> list[str]:
    """The cells in which the files of a pair differ."""
    here, there = ([(cell.cell_type, cell.source) for cell in of.cells] for of in (script, notebook))
    differ = [
        f"cell {k}: {a[1]!r} is {b[1]!r}"
        for k, (a, b) in enumerate(zip(here, there, strict=False), 1)
        if a != b
    ]
    return differ if len(here) == len(there) else [*differ, f"{len(here)} cells and {len(there)}"]


def not_executed(notebook: NotebookNode) -> list[str]:
    """What shows that the cells were not executed from the first to the last without a fault."""
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    faults = [] if counts == [*range(1, len(counts) + 1)] else [f"executed in the order {counts}"]
    for output in outputs_of(notebook):
        if output.output_type == "error" or output.get("name") == "stderr":
            faults.append(str(output.get("evalue", output.get("text"))))
    return faults


def differing(recorded: str, found: str) -> list[str]:
    """The lines of two texts that differ in a word, or in a number by more than the tolerances."""
    lines = (recorded.splitlines(), found.splitlines())
    if len(lines[0]) != len(lines[1]):
        return [f"{len(lines[0])} lines and {len(lines[1])}"]
    return [f"{a!r} is {b!r}" for a, b in zip(*lines, strict=True) if not alike(a, b)]


def alike(recorded: str, found: str) -> bool:
    words = [" ".join(NUMBER.sub("#", line).split()) for line in (recorded, found)]
    numbers = [[float(n.replace(",", "")) for n in NUMBER.findall(line)] for line in (recorded, found)]
    return words[0] == words[1] and all(
        math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE) for a, b in zip(*numbers, strict=True)
    )


def test_there_are_six_pairs_and_nothing_else() -> None:
    there = {path.name for path in FOLDER.iterdir() if not path.name.startswith((".", "__"))}
    assert there == {f"{name}.{ending}" for name in NAMES for ending in ("py", "ipynb")}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_cells_of_its_script(name: str) -> None:
    assert out_of_step(read_script(FOLDER / f"{name}.py"), read(name)) == [], "run: make notebooks"


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_was_executed_in_order_without_a_fault(name: str) -> None:
    assert not_executed(read(name)) == []
    assert text_of(read(name)).count("[picture]") >= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_says_nothing_of_the_machine_and_the_time_of_its_execution(name: str) -> None:
    notebook = read(name)
    assert notebook.metadata == METADATA
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert OF_THIS_MACHINE.findall(text_of(notebook)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name == "end_to_end" else pytest.param(name, marks=pytest.mark.on_demand) for name in NAMES],
)
def test_executed_again_a_notebook_prints_the_same(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name in ON_REAL_DATA:
        request.getfixturevalue("real_data")
    if name in NEEDED:
        pytest.importorskip(NEEDED[name], reason="the extra 'rl' is not installed")
    command = [sys.executable, str(ROOT / "scripts/notebooks.py"), name, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    again = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)
    assert differing(text_of(read(name)), text_of(again)) == []

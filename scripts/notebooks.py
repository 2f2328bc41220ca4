"""Execute the example notebooks and write them next to their scripts.

    python scripts/notebooks.py [NAME ...] [--out FOLDER]

A notebook's source is `examples/notebooks/<name>.py`, in the percent format of jupytext. This script executes
its cells in order in a new process and writes `<name>.ipynb` with their outputs. `sapgnn`, `fedgat` and
`fedgraph` read Cora, from the folder of `GRAPHFED_DATA` or, where the network is available, from its public
repository. A cell that fails or warns stops the script, and the old notebook stays.

tests/docs/test_notebooks.py fails where a notebook is not what this script writes."""

import argparse
import os
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
#: What a notebook says about itself. The kernel's version differs between machines and is left out.
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
#: The longest time of one cell, in seconds.
TIMEOUT = 600


def read_script(path: Path) -> NotebookNode:
    """Read a script as a notebook without outputs, with the metadata of `METADATA` only.

    Args:
        path: The script.

    Returns:
        The notebook. Its cells are named by their place, so that an unchanged cell has an unchanged name.
    """
    notebook = jupytext.read(path)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for place, cell in enumerate(notebook.cells, 1):
        cell.id, cell.metadata = f"cell-{place:02d}", NotebookNode()
    return notebook


def execute(path: Path) -> NotebookNode:
    """Execute a script's cells in order, in an empty folder.

    Args:
        path: The script.

    Returns:
        The notebook with its outputs.

    Raises:
        CellExecutionError: A cell raised an exception.
        ValueError: A cell wrote to stderr, as warnings do.
    """
    notebook = read_script(path)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=TIMEOUT,
            record_timing=False,
            resources={"metadata": {"path": str(work)}},
        )
        # Sockets in the file system: nothing listens on a port.
        kernel = client.create_kernel_manager()
        kernel.transport, kernel.ip = "ipc", f"{folder}/socket"
        # What cells write for themselves goes with the folder. Remarks on data and results are warnings,
        # which would be outputs on stderr.
        client.execute(env={**os.environ, "TMPDIR": folder, "PYTHONWARNINGS": "ignore::UserWarning"})
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise ValueError(f"{path.name} wrote to stderr in this cell:\n{cell.source}\n\n{output.text}")
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Execute the example notebooks.")
    parser.add_argument("names", nargs="*", help="the notebooks; default: all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder to write to")
    options = parser.parse_args()
    for script in [FOLDER / f"{name}.py" for name in options.names] or sorted(FOLDER.glob("*.py")):
        began = time.perf_counter()
        executed = execute(script)
        nbformat.write(executed, options.out / f"{script.stem}.ipynb")
        print(f"{script.stem}: {time.perf_counter() - began:.0f} s", flush=True)

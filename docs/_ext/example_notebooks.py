"""Brings the executed notebooks of `examples/notebooks` into the pages. They are shown with the outputs that
they have, and are not executed again.

Sphinx reads sources in its own folder only, so the notebooks are copied to `docs/_notebooks` when a build
begins. That folder is as deep as theirs, so their relative links to pages lead to the same pages."""

import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx


def copy_notebooks(app: Sphinx) -> None:
    """Copy the notebooks that have changed, and remove those that are gone."""
    source, target = Path(app.srcdir).parent / "examples" / "notebooks", Path(app.srcdir) / "_notebooks"
    target.mkdir(exist_ok=True)
    notebooks = {path.name: path for path in source.glob("*.ipynb")}
    for old in target.iterdir():
        if old.name not in notebooks:
            old.unlink()
    for name, path in notebooks.items():
        copy = target / name
        # An unchanged file keeps its time, and the page is not built again.
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copyfile(path, copy)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", copy_notebooks)
    return {"parallel_read_safe": True}

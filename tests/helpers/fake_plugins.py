"""Plug-ins for tests: distributions as a package installer leaves them, in the folder `client` of the test.

A test module that imports `forget_plugins` has it run around every test."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphfed import plugins

EXAMPLE = Path(__file__).parents[2] / "examples/plugin"

#: A method that is FedAvg under another name, whatever it is called.
METHOD = """
from dataclasses import replace
from graphfed.methods.averaging.methods import FEDAVG
METHOD = replace(FEDAVG, name={name!r})
"""


@pytest.fixture(autouse=True)
def forget_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No test sees what another has loaded: a module of the same name is imported again."""
    monkeypatch.setattr(plugins, "_MODULES", {})
    monkeypatch.setattr(plugins, "_WARNED", set())
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith((str(tmp_path), str(EXAMPLE))):
            del sys.modules[name]


def install(distribution: str, version: str = "1.0", **groups: dict[str, str]) -> None:
    """Install a distribution without modules: what a package installer leaves, first on Python's path."""
    client = Path("modules").resolve()
    folder = client / f"{distribution.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[graphfed.{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
    if str(client) not in sys.path:
        sys.path.insert(0, str(client))
    plugins._entry_points.cache_clear()


def write(module: str, text: str) -> Path:
    """Write a module where installed ones are."""
    path = Path("modules").resolve() / f"{module}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path

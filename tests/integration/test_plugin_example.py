"""The package in examples/plugin, installed beside graphfed, works in every command; and its method's file
works without being installed.

Commands run in processes of their own, which know of the package by what pip left."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import graphfed

pytestmark = pytest.mark.slow

ROOT = Path(graphfed.__file__).parents[1]
EXAMPLE = ROOT / "examples/plugin"
INSTALLED = [{"distribution": "graphfed-example", "version": "1.0"}]
ON_RINGS = ("--data", "rings", "--clients", "3", "--no-progress")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example, without the network."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")  # building leaves files beside the source
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index",
            "--no-build-isolation", "--no-deps", "--target", str(folder / "site"), str(folder / "source"),
        ],
        check=True,
    )  # fmt: skip
    return folder / "site"


@pytest.fixture(scope="session")
def trained(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the example's method on its data set."""
    folder = tmp_path_factory.mktemp("trained")
    options = (*ON_RINGS, "--rounds", "4", "--checkpoint-every", "0", "--out", "one")
    done = command("run", "fedavgm", *options, path=site, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def command(*words: str, path: Path | None, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of graphfed in `folder`, with `path` among what is installed."""
    return commands(words, path=path, folder=folder)[0]


def commands(
    *lines: tuple[str, ...], path: Path | None, folder: Path
) -> list[subprocess.CompletedProcess[str]]:
    """Commands of graphfed in `folder`, one after the other in one process."""
    found = [str(ROOT)] if path is None else [str(ROOT), str(path)]
    program = """
import contextlib, io, json, sys
from graphfed.cli import main
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(line)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(lines)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(found)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended = zip(lines, map(json.loads, done.stdout.splitlines()), strict=True)
    return [subprocess.CompletedProcess(line, *result) for line, result in ended]


def test_the_run_s_manifest_names_the_distribution_and_its_version(trained: Path) -> None:
    manifest = json.loads((trained / "one/manifest.json").read_text())
    assert manifest["config"]["plugins"] == INSTALLED
    assert manifest["versions"]["graphfed-example"] == "1.0"
    # The report has the method's own words for what its clients send.
    assert "The server averages them by the number of training nodes" in (
        (trained / "one/report.html").read_text()
    )


def test_every_command_works_with_the_installed_plug_in(site: Path, trained: Path) -> None:
    short = (*ON_RINGS, "--seeds", "0", "--rounds", "2")
    files = {
        "one.csv": ("predict", "one", "--out", "one.csv"),
        "again.html": ("report", "one", "--out", "again.html"),
        "one/audit.json": ("audit", "one"),
        "one/result.json": ("resume", "one"),
        "compared/comparison.json": ("compare", "fedavgm", *short, "--out", "compared"),
        "swept/sweep.json": ("sweep", "fedavgm", *short, "--grid", "momentum=0,0.9", "--out", "swept"),
    }
    for file, done in zip(files, commands(*files.values(), path=site, folder=trained), strict=True):
        assert done.returncode == 0, done.stderr
        assert (trained / file).is_file()


@pytest.mark.parametrize("runtime", ["processes", "nvflare"])
def test_the_processes_of_a_run_have_the_installed_plug_in(runtime: str, site: Path, trained: Path) -> None:
    options = (*ON_RINGS, "--rounds", "2", "--runtime", runtime, "--out", runtime)
    done = command("run", "fedavgm", *options, path=site, folder=trained)
    assert done.returncode == 0, done.stderr
    assert (trained / runtime / "result.json").is_file()


def test_a_run_that_was_interrupted_goes_on_to_the_same_numbers(site: Path, trained: Path) -> None:
    shutil.copytree(trained / "one", trained / "half")
    for name in ("result.json", "model.safetensors", "predictions.parquet", "metrics.jsonl", "ledger.json"):
        (trained / "half" / name).unlink()
    done = command("resume", "half", "--no-progress", path=site, folder=trained)
    assert done.returncode == 0, done.stderr
    ended = [json.loads((trained / run / "result.json").read_text()) for run in ("one", "half")]
    assert ended[0]["test"] == ended[1]["test"]


def test_the_lists_have_what_the_package_adds(site: Path, tmp_path: Path) -> None:
    lines = (("methods", "--json"), ("data", "list"))
    methods, data = (done.stdout for done in commands(*lines, path=site, folder=tmp_path))
    listed = json.loads(methods)["methods"]
    assert {row["name"]: row["plugin"] for row in listed}["fedavgm"] == INSTALLED[0]
    assert "rings" in data
    assert "graphfed-example" in data


def test_a_run_whose_plug_in_is_not_installed_is_refused_with_the_way_to_get_it(trained: Path) -> None:
    lines = (
        ("resume", "one"),
        ("predict", "one", "--out", "none.csv"),
        ("audit", "one"),
        ("report", "one", "--out", "alone.html"),
    )
    shown, *refused, page = commands(*lines, path=None, folder=trained)
    assert shown.returncode == 0, "the run has ended, and is only shown"
    for done in refused:
        assert done.returncode == 2
        assert "needs the plug-in graphfed-example 1.0, which is not installed; install it" in done.stderr
        assert "pip install 'graphfed-example==1.0'" in done.stderr
    # A page can be made of what the folder holds.
    assert page.returncode == 0
    assert "warning: the run in one needs the plug-in graphfed-example 1.0" in page.stderr


def test_the_method_s_file_works_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "fedavgm.py"
    shutil.copy(EXAMPLE / "graphfed_example/fedavgm.py", file)
    options = ("--data", "digits", "--clients", "3", "--rounds", "2", "--no-progress")
    words = ("run", "fedavgm", "--plugin", "fedavgm.py", *options, "--runtime", "processes", "--out", "run")
    done = command(*words, path=None, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (plugin,) = json.loads((tmp_path / "run/manifest.json").read_text())["config"]["plugins"]
    assert plugin["module"] == str(file)
    lines = (("predict", "run"), ("predict", "run", "--plugin", str(file)))
    refused, done = commands(*lines, path=None, folder=tmp_path)
    assert refused.returncode == 2
    assert f"give --plugin {file}" in refused.stderr
    assert done.returncode == 0, done.stderr

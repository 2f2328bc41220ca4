"""What a site's operator says when the site is started holds for every run, in a real federation: what is
forbidden is refused at that site, by name and with the rule, before anything is trained."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphfed.cli import main
from graphfed.deployment.deploy import check_outcome, request
from graphfed.errors import UNUSABLE, InputError
from graphfed.methods.registry import get_method
from graphfed.tasks.registry import default_settings

pytest.importorskip("nvflare", reason="the extra 'deploy' (NVIDIA FLARE) is not installed")

from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.place import PER_RUN, Place, this_place
from graphfed.runtime.nvflare.project import Project, Site, Timing

pytestmark = pytest.mark.slow

SITES = ("north", "south")
TIMING = Timing(beat=1.0, give_up=20.0, deadline=60.0, patience=120.0)
PROGRAMS = "operator_programs"
#: What the operator of south says. The server and north forbid nothing; they allow other people's programs.
RULES = {
    "south": [*("--methods", "FedAvg, fedgcn, local"), *("--forbid", "lr=.250", "--forbid", "patience=none")],
    "north": ["--allow", PROGRAMS],
    "server": ["--allow", PROGRAMS],
}


def write_tables(folder: Path) -> dict[str, Path]:
    """The two sites' own files: 60 nodes each, of two classes."""
    rng = np.random.default_rng(0)
    described = {}
    for site in SITES:
        (folder / site).mkdir()
        labels = rng.integers(0, 2, 60)
        rows = [f"{site}{i},{rng.normal() + y:.3f},{'ab'[y]}" for i, y in enumerate(labels)]
        (folder / site / "nodes.csv").write_text("\n".join(["id,x,y", *rows]) + "\n")
        ends = rng.integers(0, 60, (120, 2))
        edges = [f"{site}{a},{site}{b}" for a, b in ends if a != b]
        (folder / site / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
        described[site] = folder / site / "data.yaml"
        described[site].write_text(
            "nodes: nodes.csv\nedges: edges.csv\nid: id\nlabel: y\nclasses: [a, b]\n"
            "source: source\ntarget: target\n"
        )
    return described


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_tables(tmp_path_factory.mktemp("tables"))


def project() -> Project:
    return Project("rules", tuple(map(Site, SITES)), port=free_port(), timing=TIMING)


@pytest.fixture(scope="module")
def federation(tables: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder = tmp_path_factory.mktemp("federation")
    with Loopback(project(), folder / "startup_kits", tables, options=RULES) as started:
        yield started


def run(federation: Loopback, out: Path, method: str) -> int:
    """The exit code of the coordinator's command."""
    startup_kit = str(federation.startup_kits["coordinator"])
    options = ["--startup-kit", startup_kit, "--out", str(out), "--rounds", "2", "--no-progress"]
    return main(["run", method, *options])


def trained(federation: Loopback) -> list[Path]:
    """The files that only a run that trained leaves at its places."""
    names = ("result.json", "model.safetensors", "metrics.jsonl", "predictions.parquet", "round-*")
    return [
        file
        for startup_kit in federation.startup_kits.values()
        for name in names
        for file in startup_kit.rglob(name)
    ]


def test_a_command_for_a_run_that_a_site_s_operator_forbids_ends_with_the_site_and_the_rule(
    federation: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trained(federation)
    assert run(federation, tmp_path / "out", "fedprox") == UNUSABLE
    rule = "south refuses runs of 'fedprox': its operator allows only fedavg, fedgcn, isolated"
    assert rule in capsys.readouterr().err
    assert trained(federation) == before
    assert not (tmp_path / "out").exists()


def test_forbidden_settings_are_refused_at_the_site_and_what_its_operator_accepts_is_trained(
    federation: Loopback, tmp_path: Path
) -> None:
    """A method is named in any case, or by an alias."""
    runs = {
        "lr": ("fedavg", {"lr": 0.25, "patience": 3}, "south refuses runs with lr=.250"),
        "patience": ("fedavg", {"patience": None}, "south refuses runs with patience=none"),
        "averaged": ("fedavg", {"patience": 3}, ""),
        "alone": ("isolated", {"patience": 3}, ""),
    }
    asked = []
    for name, (method, settings, _) in runs.items():
        chosen = get_method(method)
        config = chosen.configure({"rounds": 2, **settings}, default_settings(chosen))
        asked.append(request(federation.project, chosen, config, run=name, checkpoint_every=60.0))
    with federation.coordinator() as coordinator:
        ended = {outcome["run"]: outcome for outcome in coordinator.run(asked, results=tmp_path)}
    for name, (*_, rule) in runs.items():
        assert ended[name]["kind"] == ("input" if rule else "done"), ended[name]
        assert rule in ended[name].get("text", "")
    here = federation.startup_kits["south"] / "runs"
    kept = {file.relative_to(here).parts[0] for file in trained(federation) if here in file.parents}
    assert kept == {"averaged", "alone"}


def program_outcome(federation: Loopback, name: str, kept: Path) -> list[dict[str, Any]]:
    asked = {"run": name, "program": f"{PROGRAMS}:report_place", "arguments": {"run": name}}
    asked["workers"] = [[0], [1]]
    with federation.coordinator() as coordinator:
        return coordinator.run([asked], results=kept)


def test_a_program_that_one_site_s_operator_does_not_allow_is_refused_there(
    federation: Loopback, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"south does not run the program .*--allow {PROGRAMS}"):
        check_outcome(program_outcome(federation, "foreign", tmp_path))
    assert not (federation.startup_kits["south"] / "runs" / "foreign").exists()


def test_a_site_computes_with_its_operator_s_threads_and_device_and_refuses_a_run_where_it_has_no_data(
    tables: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three rules of one federation whose places allow a program: --threads, --device and no --data."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rules = {"south": ["--threads", "3", "--device", device]}
    data = {"north": tables["north"]}
    with Loopback(project(), tmp_path / "startup_kits", data, allow=[PROGRAMS], options=rules) as federation:
        check_outcome(program_outcome(federation, "report", tmp_path / "kept"))
        reports = {
            name: json.loads((federation.startup_kits[name] / "runs" / "report" / "report.json").read_text())
            for name in ("server", *SITES)
        }
        assert reports["south"] == {"threads": 3, "device": device}
        assert reports["north"] == reports["server"] == {"threads": 1, "device": "cpu"}
        assert run(federation, tmp_path / "out", "fedavg") == UNUSABLE
        assert "south was started without data; start it with --data FILE" in capsys.readouterr().err
        assert trained(federation) == []


# ---- the law -----------------------------------------------------------------------------------------------


def test_every_rule_of_an_operator_reaches_the_processes_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all fields of `Place`, each with another value than its default; a field that is new is in it."""
    others: dict[Any, Any] = {
        "name": "north", "startup_kit": Path("/startup_kits/north"), "data": Path("/data/north.yaml"),
        "device": "cuda:1",
    }  # fmt: skip
    fields = [field for field in dataclasses.fields(Place) if field.name not in PER_RUN]
    for field in fields:
        if field.name not in others:
            others[field.name] = 7 if isinstance(field.default, int) else (field.name, "other")
        assert others[field.name] != field.default
    place = Place(**others)
    for key, value in place.to_environment().items():
        monkeypatch.setenv(key, value)
    read = this_place()
    for field in fields:
        assert getattr(read, field.name) == getattr(place, field.name), field.name
        assert type(getattr(read, field.name)) is type(getattr(place, field.name)), field.name

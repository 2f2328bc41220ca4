"""Banks that each read only their own directed payments train gine as one party with all payments does."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from own_files import SITES, write_clients_with_payments

import graphfed
from graphfed.deployment.deploy import request
from graphfed.runs.config import checked_training

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.project import Project, Site, Timing

pytestmark = pytest.mark.slow

SETTINGS = {"backbone": "gine", "rounds": 3, "hidden": 8, "dropout": 0.5, "patience": None, "lr": 0.01}


def test_a_deployed_run_on_own_payments_equals_the_run_on_all(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    write_clients_with_payments(files)
    together = graphfed.run("fedavg", data=files / "all.yaml", out=tmp_path / "all", threads=1, **SETTINGS)
    method, config, _ = checked_training("fedavg", SETTINGS, None, 0)
    timing = Timing(beat=1.0, give_up=20.0, deadline=120.0, patience=240.0)
    project = Project("payments", tuple(Site(name) for name in SITES), port=free_port(), timing=timing)
    data = {name: files / f"{name}.yaml" for name in SITES}
    with Loopback(project, tmp_path / "kits", data, check_data=False, rehearsal=True) as federation:
        with federation.coordinator() as coordinator:
            asked = request(project, method, config, run="payments", checkpoint_every=3600.0)
            (outcome,) = coordinator.run([asked], results=tmp_path / "kept")
        assert outcome["kind"] == "done", outcome
        runs = {name: federation.startup_kits[name] / "runs" / "payments" for name in ("server", *SITES)}
        apart = json.loads((runs["server"] / "result.json").read_text())
        schema = json.loads((runs["north"] / "manifest.json").read_text())["schema"]
        predicted = [pq.read_table(runs[name] / "predictions.parquet") for name in SITES]
    assert schema["directed"]
    assert schema["edge_features"] == ["amount", "elapsed days", "hour", "weekday"]
    assert apart["test"] == pytest.approx(together.test, abs=1e-5)
    joined = ("join", "agreed")
    sent = {name: n for name, n in apart["bytes"]["by_transfer"].items() if name not in joined}
    assert sent == together.bytes["by_transfer"]
    assert "edge_magnitudes" in sent
    table = pq.read_table(tmp_path / "all" / "predictions.parquet")
    assert sum(part.num_rows for part in predicted) == table.num_rows

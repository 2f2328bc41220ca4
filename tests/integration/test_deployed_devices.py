"""Lumos over three gateways, each with a third of the clients, as processes and as sites of a real
federation: the numbers, the trees and the bytes are those of one process."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import graphfed
from graphfed.runs.run import Result

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {
    "data": "social",
    "split": "random:0.5,0.25,0.25",
    "rounds": 6,
    "settings": {"data.num_nodes": 70, "noise_seed": 0, "shuffle_rounds": 3},
}
#: What joins a deployment and nothing else.
JOINING = ("join", "agreed")


@pytest.mark.parametrize("runtime", ["processes", "nvflare"])
def test_gateways_train_what_one_process_trains(runtime: str, tmp_path: Path) -> None:
    if runtime == "nvflare":
        pytest.importorskip("nvflare", reason="deployment needs the extra deploy")
    together = graphfed.run("lumos", out=tmp_path / "together", **OPTIONS)
    apart = graphfed.run("lumos", runtime=runtime, workers=3, out=tmp_path / "apart", **OPTIONS)
    assert apart.clients == 70
    assert apart.test == pytest.approx(together.test, abs=1e-6)
    assert apart.val == pytest.approx(together.val, abs=1e-6)
    assert apart.hashes == together.hashes
    content = [
        {k: v for k, v in r.bytes["by_transfer"].items() if k not in JOINING} for r in (apart, together)
    ]
    assert content[0] == content[1]
    facts = ("balance_rounds", "balance_calls", "candidate_pairs")
    assert {k: apart.details[k] for k in facts} == {k: together.details[k] for k in facts}
    tables = [pq.read_table(tmp_path / name / "clients.parquet") for name in ("apart", "together")]
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize("runtime", ["local", "processes"])
def test_a_run_that_goes_on_uses_the_features_that_it_sent(runtime: str, tmp_path: Path) -> None:
    """With noise that nobody can draw again: the same result, and set-up is paid for once."""
    options: dict[str, Any] = {
        **OPTIONS,
        "runtime": runtime,
        "workers": 3 if runtime == "processes" else None,
    }
    options["settings"] = {**OPTIONS["settings"], "noise_seed": None}
    folder = tmp_path / "run"
    whole = graphfed.run("lumos", out=folder, checkpoint_every=0, **options)
    # As if it had been killed in its last round.
    table = pq.read_table(folder / "clients.parquet")
    (folder / "result.json").unlink()
    (folder / "clients.parquet").unlink()
    shutil.rmtree(folder / "checkpoint" / "round-00000006")
    again = graphfed.resume(folder)
    assert isinstance(again, Result)
    assert (again.val, again.test, again.details) == (whole.val, whole.test, whole.details)
    assert again.bytes == whole.bytes
    assert pq.read_table(folder / "clients.parquet").equals(table)
    assert json.loads((folder / "manifest.json").read_text())["resumed"][0]["round"] == 5

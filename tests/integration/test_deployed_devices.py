"""Lumos over three gateways, each with a third of the clients, as sites of a real federation: the numbers,
the trees and the bytes are those of one process."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import graphfed

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {
    "data": "social",
    "split": "random:0.5,0.25,0.25",
    "rounds": 6,
    "settings": {"data.num_nodes": 70, "noise_seed": 0, "shuffle_rounds": 3},
}
#: What joins a deployment and nothing else.
JOINING = ("join", "agreed")


def test_gateways_train_what_one_process_trains(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="deployment needs the extra deploy")
    together = graphfed.run("lumos", out=tmp_path / "together", **OPTIONS)
    apart = graphfed.run("lumos", runtime="nvflare", workers=3, out=tmp_path / "apart", **OPTIONS)
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

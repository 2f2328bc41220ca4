"""Three banks with three startup kits, each with nothing but its own CSV files, train SAPGNN and predict."""

import csv
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from graphfed.cli import main
from graphfed.errors import DONE, UNUSABLE

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.project import Project, Site, Timing

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "shared_customers" / "make_data.py"
BANKS = ("northbank", "harbour_trust", "union_savings")
DESCRIPTION = """\
nodes: customers.csv
edges: transfers.csv
id: customer
label: suspicious
classes: ["no", "yes"]
split: part
source: payer
target: payee
"""
KEY = secrets.token_hex(32)
SETTINGS = {"rounds": 5, "dropout": 0.0, "hidden": 8, "aggregation": "plaintext", "node_ids": "keyed"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("banks")
    subprocess.run([sys.executable, str(EXAMPLE), str(folder)], check=True, stdout=subprocess.DEVNULL)
    for bank in BANKS:
        (folder / bank / "bank.yaml").write_text(DESCRIPTION)
    return folder


@pytest.fixture(scope="module")
def banks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """`graphfed site start KIT --data bank.yaml` for the server and each bank; only the banks have the
    key."""
    timing = Timing(beat=1.0, give_up=20.0, deadline=120.0, patience=240.0)
    project = Project("banks", tuple(Site(bank) for bank in BANKS), port=free_port(), timing=timing)
    files = {bank: data / bank / "bank.yaml" for bank in BANKS}
    key = {"GRAPHFED_CLIENTS_KEY": KEY}
    folder = tmp_path_factory.mktemp("federation")
    with Loopback(
        project, folder / "startup_kits", files, environment=dict.fromkeys(BANKS, key)
    ) as federation:
        yield federation


def from_coordinator(banks: Loopback, out: Path) -> list[str]:
    startup_kit = str(banks.startup_kits["coordinator"])
    return ["--startup-kit", startup_kit, "--out", str(out), "--no-progress"]


@pytest.fixture(scope="module")
def trained(banks: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The coordinator's folder of a run with an experiment file that names no data."""
    folder = tmp_path_factory.mktemp("coordinator")
    settings = "".join(f"  {key}: {value}\n" for key, value in SETTINGS.items())
    (folder / "experiment.yaml").write_text(f"method: sapgnn\nruntime: nvflare\nset:\n{settings}")
    config = ["--config", str(folder / "experiment.yaml")]
    assert main(["run", *config, *from_coordinator(banks, folder / "out")]) == DONE
    return folder / "out"


def run_name(trained: Path) -> str:
    return str(json.loads((trained / "result.json").read_text())["details"]["run"])


def ids(path: Path) -> list[str]:
    with path.open() as file:
        return [row["customer"] for row in csv.DictReader(file)]


def test_the_coordinator_and_the_server_have_no_customer_and_no_prediction(
    trained: Path, banks: Loopback, data: Path
) -> None:
    """Neither an id of a customer nor a row of predictions is in any of their files."""
    known = {name.encode() for bank in BANKS for name in ids(data / bank / "customers.csv")}
    for folder in (trained, banks.startup_kits["server"] / "runs" / run_name(trained)):
        assert not list(folder.rglob("predictions*"))
        for path in folder.rglob("*"):
            if path.is_file():
                words = set(re.findall(rb"P\d{4}", path.read_bytes()))
                assert not words & known, f"{path} has {words & known}"


def test_what_left_each_bank_is_in_its_own_ledger_and_the_servers_agrees(
    trained: Path, banks: Loopback
) -> None:
    run = run_name(trained)
    server = json.loads((banks.startup_kits["server"] / "runs" / run / "ledger.json").read_text())["entries"]
    for k, bank in enumerate(BANKS):
        first = json.loads((banks.startup_kits[bank] / "runs" / run / "ledger.json").read_text())["entries"]
        for entry in first:
            if entry["kind"] == "peer":
                continue
            (second,) = [e for e in server if (e["phase"], e["name"]) == (entry["phase"], entry["name"])]
            assert entry["sent"][k] == second["sent"][k], entry["name"]
        assert {e["name"] for e in first} >= {"join", "node_ids", "owners/labels", "sapgnn/local_embedding"}


def test_a_bank_reads_in_words_what_left_it(
    trained: Path, banks: Loopback, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_name(trained)
    ledger = json.loads((banks.startup_kits["northbank"] / "runs" / run / "ledger.json").read_text())[
        "entries"
    ]
    assert main(["site", "sent", str(banks.startup_kits["northbank"]), run, "--json"]) == DONE
    content = json.loads(capsys.readouterr().out)
    assert sum(line["bytes"] for line in content) == sum(
        sum(entry["sent"]) for entry in ledger if entry["from"] == "clients"
    )
    by_name = {line["name"]: line for line in content}
    assert by_name["sapgnn/local_embedding"]["readable"]
    assert not by_name["node_ids"]["readable"]
    assert not [line["name"] for line in content if "does not describe" in line["description"]]
    assert main(["site", "sent", str(banks.startup_kits["northbank"]), "nothing"]) == UNUSABLE
    assert "no run 'nothing' has ended in" in capsys.readouterr().err


def test_the_banks_predict_together_with_the_model_that_nobody_has_alone(
    trained: Path, banks: Loopback, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(trained)]) == DONE
    path = (
        capsys.readouterr()
        .out.strip()
        .removeprefix("predictions: ")
        .removesuffix(" in the startup kit of each site")
    )
    for bank in BANKS:
        startup_kit = banks.startup_kits[bank]
        again = pq.read_table(startup_kit / path)
        first = pq.read_table(startup_kit / "runs" / run_name(trained) / "predictions.parquet")
        assert again["id"].to_pylist() == first["id"].to_pylist()
        assert np.allclose(again["probability_1"].to_numpy(), first["probability_1"].to_numpy(), atol=1e-6)
    assert main(["predict", str(trained), "--data", "cora"]) == UNUSABLE
    assert "cannot be used with a deployed run" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--data", "cora"], ["--clients", "3"], ["--workers", "3"]])
def test_a_coordinator_names_no_data(
    option: list[str], banks: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "fedavg", *from_coordinator(banks, tmp_path / "out"), *option]) == UNUSABLE
    assert f"{option[0][2:]} cannot be used in a deployment" in capsys.readouterr().err


def test_data_that_cannot_be_used_is_named_at_its_site_and_quoted_nowhere_else(
    banks: Loopback, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "harbour_trust" / "customers.csv"
    before = path.read_text()
    path.write_text(before.replace(",yes,", ",perhaps,", 1))
    try:
        assert main(["run", "fedavg", *from_coordinator(banks, tmp_path / "out")]) == UNUSABLE
    finally:
        path.write_text(before)
    output = capsys.readouterr().err
    assert "the data of harbour_trust cannot be used" in output
    assert "perhaps" not in output
    assert "perhaps" in (banks.startup_kits["harbour_trust"] / "console.txt").read_text()

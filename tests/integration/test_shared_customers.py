"""Three banks with files of their own and customers in common: the example is what its page says, and every
command works on it."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import graphfed
from graphfed.cli import main
from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.partition import partition
from graphfed.data.user_files.graph_description import describe_file
from graphfed.data.user_files.graph_files import load_description
from graphfed.runs.reopen import reopen

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BANKS = ("Northbank", "Harbour Trust", "Union Savings")
SHORT = {"rounds": 3, "threads": 1}


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example writes."""
    folder = tmp_path_factory.mktemp("shared") / "banks"
    runpy.run_path(str(ROOT / "examples/shared_customers/make_data.py"))["main"](folder)
    return folder


@pytest.fixture(scope="module")
def graph(banks: Path) -> Graph:
    return load_description(describe_file(banks / "banks.yaml")[0])


@pytest.fixture(scope="module")
def ran(banks: Path) -> Path:
    """A short run's folder."""
    graphfed.run("sapgnn", data=banks / "banks.yaml", out=banks.parent / "run", **SHORT)
    return banks.parent / "run"


def rows(path: Path) -> list[list[str]]:
    return [line.split(",") for line in path.read_text().splitlines()[1:]]


def files(folder: Path, name: str) -> list[list[list[str]]]:
    """The rows of each bank's file."""
    return [rows(folder / bank.lower().replace(" ", "_") / name) for bank in BANKS]


# ---- the example -------------------------------------------------------------------------------------------


def test_the_example_writes_the_same_bytes_every_time(banks: Path, tmp_path: Path) -> None:
    script = ROOT / "examples/shared_customers/make_data.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "again")], check=True)
    names = [path.relative_to(banks) for path in banks.rglob("*.*") if path.is_file()]
    assert len(names) == 10
    for name in names:
        assert (banks / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_the_page_shows_the_description_that_the_example_writes(banks: Path) -> None:
    page = (ROOT / "docs/shared_customers.md").read_text()
    assert f"```yaml\n{(banks / 'banks.yaml').read_text()}```" in page


def test_customers_are_at_one_two_or_three_banks_with_the_same_features_and_some_labels(banks: Path) -> None:
    features: dict[str, set[tuple[str, ...]]] = {}
    found: dict[str, set[tuple[str, ...]]] = {}
    banks_of: dict[str, int] = {}
    for bank in files(banks, "customers.csv"):
        unknown = sum(row[5] == "" for row in bank)
        assert 0.2 < unknown / len(bank) < 0.4, "every bank lacks labels for some"
        for name, *row in bank:
            banks_of[name] = banks_of.get(name, 0) + 1
            features.setdefault(name, set()).add(tuple(row[:4]))
            found.setdefault(name, set()).update({tuple(row[4:])} - {("", "")})
    assert len(banks_of) == 900
    assert set(banks_of.values()) == {1, 2, 3}
    assert 0.5 < np.mean([count > 1 for count in banks_of.values()]) < 0.65
    assert all(len(content) == 1 for content in features.values())
    assert all(len(content) <= 1 for content in found.values())


def test_some_transfers_are_listed_by_two_banks_and_none_by_three(banks: Path) -> None:
    listed = [{tuple(sorted(row)) for row in bank} for bank in files(banks, "transfers.csv")]
    both = set.union(*(a & b for i, a in enumerate(listed) for b in listed[:i]))
    assert 0.1 < len(both) / len(set.union(*listed)) < 0.3


def test_the_label_depends_on_neighbours_that_a_bank_alone_does_not_all_see(graph: Graph) -> None:
    """Dealing with a cash business is the label of more than 95 in 100 customers by all banks' transfers, of
    fewer than 90 by those that one lists; having such a business, of fewer than 65."""
    assert graph.x is not None
    assert isinstance(graph.x, np.ndarray)
    cash = graph.x[:, graph.feature_names.index("cash_business")] == 1
    suspicious = graph.y == graph.class_names.index("yes")
    known = graph.y >= 0

    def contact(edges: np.ndarray) -> np.ndarray:
        seen = np.zeros(graph.num_nodes, dtype=bool)
        for first, other in (edges, edges[::-1]):
            seen[first[cash[other]]] = True
        return seen

    together = contact(graph.edges) == suspicious
    assert together[known].mean() > 0.95
    partitioned = partition(graph, "column", None, 0)
    for bank in range(3):
        own = (
            contact(np.stack((partitioned.edge_u, partitioned.edge_v))[:, partitioned.edge_client == bank])
            == suspicious
        )
        first = partitioned.held_node[(partitioned.held_client == bank) & partitioned.held_owner]
        assert own[first[known[first]]].mean() < 0.9
    assert (cash == suspicious)[known].mean() < 0.65


# ---- every command -----------------------------------------------------------------------------------------


def test_a_bank_alone_is_far_below_and_together_they_are_close_to_what_can_be_reached(banks: Path) -> None:
    sapgnn = graphfed.run("sapgnn", data=banks / "banks.yaml", rounds=60, threads=1, out=False)
    same = {"hidden": 64, "optimizer": "adam", "lr": 0.01, "backbone": "maxpool"}
    alone = graphfed.run(
        "isolated", data=banks / "banks.yaml", rounds=60, threads=1, out=False, settings=same
    )
    assert alone.hashes == sapgnn.hashes
    assert sapgnn.test["accuracy"] is not None
    assert alone.test["accuracy"] is not None
    assert sapgnn.test["accuracy"] > 0.92
    assert alone.test["accuracy"] < 0.85


def test_inspect_names_the_banks_and_counts_what_they_share(
    banks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "inspect", str(banks / "banks.yaml"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    lists = [{row[0] for row in bank} for bank in files(banks, "customers.csv")]
    assert [(row["name"], row["nodes"]) for row in content["clients"]] == [
        (name, len(first)) for name, first in zip(BANKS, lists, strict=True)
    ]
    everyone = set.union(*lists)
    assert content["nodes"] == len(everyone)
    assert content["shared"]["nodes"] == sum(sum(p in first for first in lists) > 1 for p in everyone)
    assert content["partition"]["name"] == "column"


def test_predictions_name_the_bank_and_agree_on_a_customer_of_several(ran: Path, banks: Path) -> None:
    table = pq.read_table(ran / "predictions.parquet").to_pylist()
    held = [{row[0] for row in bank} for bank in files(banks, "customers.csv")]
    labelled = [{row[0] for row in bank if row[5]} for bank in files(banks, "customers.csv")]
    nobody = set.union(*held) - set.union(*labelled)
    rows_of: dict[str, set[str]] = {bank: set() for bank in BANKS}
    answers: dict[str, set[str]] = {}
    for row in table:
        rows_of[row["client_name"]].add(row["id"])
        answers.setdefault(row["id"], set()).add(row["prediction_name"])
    for bank, here, known in zip(BANKS, held, labelled, strict=True):
        assert rows_of[bank] == known | (here & nobody)
    assert set(answers) == set.union(*held)
    assert all(len(content) == 1 for content in answers.values())
    again = graphfed.predict(ran)
    assert again.select(["node", "client", "id", "client_name", "prediction"]).to_pylist() == [
        {key: row[key] for key in ("node", "client", "id", "client_name", "prediction")} for row in table
    ]


def test_other_files_of_several_banks_are_predicted_as_one_graph(ran: Path, banks: Path) -> None:
    """A row for each customer, and no bank's name."""
    table = graphfed.predict(ran, data=banks / "banks.yaml")
    assert "client_name" not in table.column_names
    assert len(table) == 900
    there = {row["id"]: row["prediction"] for row in pq.read_table(ran / "predictions.parquet").to_pylist()}
    assert {row["id"]: row["prediction"] for row in table.to_pylist()} == there


def test_a_run_names_the_files_by_absolute_paths_and_is_reopened_from_anywhere(
    ran: Path, banks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = json.loads((ran / "manifest.json").read_text())
    assert manifest["partition"]["client_names"] == list(BANKS)
    source = manifest["config"]["data_source"]
    assert source["clients"]["Harbour Trust"]["nodes"] == str(banks / "harbour_trust/customers.csv")
    config, inputs = reopen(ran)
    assert config.to_json() == manifest["config"]
    assert inputs.hashes == manifest["hashes"]


def test_processes_give_what_one_process_gives(ran: Path, banks: Path, tmp_path: Path) -> None:
    one = json.loads((ran / "result.json").read_text())
    many = graphfed.run(
        "sapgnn", data=banks / "banks.yaml", runtime="processes", out=tmp_path / "run", **SHORT
    )
    assert many.hashes == one["hashes"]
    assert many.bytes == one["bytes"]
    assert many.test["accuracy"] == pytest.approx(one["test"]["accuracy"], abs=1e-6)


def test_a_saved_partition_and_a_config_file_work_as_for_one_table(
    banks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "partition", str(banks / "banks.yaml"), "--out", "s.safetensors"]) == 0
    assert "Harbour Trust" in capsys.readouterr().out
    saved = graphfed.run(
        "fedavg", data=banks / "banks.yaml", partition="s.safetensors", out=tmp_path / "saved", **SHORT
    )
    lines = [f"  {line}" for line in (banks / "banks.yaml").read_text().splitlines()]
    (banks / "run.yaml").write_text("\n".join(["method: fedavg", "rounds: 3", "data:", *lines]) + "\n")
    assert main(["run", "--config", str(banks / "run.yaml"), "--out", "config", "--no-progress"]) == 0
    config = json.loads(Path("config/result.json").read_text())
    assert config["hashes"] == saved.hashes
    assert config["test"] == saved.to_json()["test"]
    names = pq.read_table("saved/predictions.parquet")["client_name"].to_pylist()
    assert set(names) == set(BANKS), "a saved partition that is the data's own has its names"
    assert graphfed.run(
        "fedgcn", data=banks / "banks.yaml", partition="random", clients=3, out=False, **SHORT
    ).test["accuracy"]


def test_a_run_that_is_stopped_goes_on_to_the_same_bits(banks: Path, tmp_path: Path) -> None:
    arguments: list[Any] = ["run", "sapgnn", "--data", banks / "banks.yaml", "--rounds", 60, "--no-progress"]
    arguments += ["--checkpoint-every", "0"]
    command = [sys.executable, "-m", "graphfed", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, env=environment, stdout=-3)
    stopped = tmp_path / "stopped"
    with subprocess.Popen(
        [*command, "--out", str(stopped)], env=environment, stdout=-3, stderr=-3
    ) as process:
        deadline = time.monotonic() + 60
        while not list(stopped.glob("checkpoint/round-*/*.json")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 130
    assert not (stopped / "result.json").exists()
    graphfed.resume(stopped)
    for name in ("model.safetensors", "predictions.parquet"):
        assert (stopped / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_page_states_the_bytes_that_the_ledger_has_for_each_bank(banks: Path, tmp_path: Path) -> None:
    """Bytes grow by the same amount each round: two short runs say what a hundred rounds send."""
    from graphfed.runs.progress import human_bytes

    sent = []
    for rounds in (1, 2):
        folder = tmp_path / str(rounds)
        graphfed.run("sapgnn", data=banks / "banks.yaml", rounds=rounds, threads=1, out=folder)
        entries = json.loads((folder / "ledger.json").read_text())["entries"]
        sent.append(np.sum([entry["sent"] for entry in entries if entry["from"] == "clients"], axis=0))
    hundred = sent[0] + 99 * (sent[1] - sent[0])
    north, harbour, union = (human_bytes(amount) for amount in hundred.tolist())
    page = " ".join((ROOT / "docs/shared_customers.md").read_text().split())
    assert f"{north} from Northbank, {harbour} from Harbour Trust and {union} from Union Savings" in page

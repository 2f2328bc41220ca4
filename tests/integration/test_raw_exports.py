"""Three banks' raw exports, each in its own habits, become a run with a description that graphfed writes."""

import csv
import datetime
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import graphfed
from graphfed.cli import main
from graphfed.data.user_files.graph_description import describe_file
from graphfed.data.user_files.graph_files import load_description
from graphfed.files import read_tensors

#: Encoding, separator, decimal sign and form of dates of each bank.
HABITS = (("utf-8", ",", ".", "%Y-%m-%d"), ("utf-8", ";", ",", "%d/%m/%Y"), ("latin-1", ";", ".", "%Y-%m-%d"))
SIZE = 150
RUN = ["run", "fedavg", "--rounds", "3", "--no-progress", "--no-report", "--set", "hidden=4"]


def write_banks(folder: Path, *, countries: tuple[str, ...] = ("DE", "FR", "", "Österreich")) -> None:
    """Accounts with leading zeros, gaps, dates and categories; payments with self payments, repetitions and
    accounts that nobody knows."""
    draw = random.Random(5)
    ids = [f"{number:08d}" for number in draw.sample(range(10**6), SIZE)]
    folder.mkdir()
    for bank, (encoding, separator, decimal, form) in enumerate(HABITS):
        own = range(bank, SIZE, 3)

        def number(value: float, decimal: str = decimal) -> str:
            return f"{value:.2f}".replace(".", decimal)

        accounts: list[list[Any]] = [
            ["Account No", "Country", "Opened on", "Monthly income", "NACE code", "City", "Fraud"]
        ]
        for i in own:
            opened = datetime.date(2024, 6, 30) - datetime.timedelta(days=draw.randrange(3, 9000))
            income = "" if draw.random() < 0.12 else number(draw.lognormvariate(7.8, 0.7))
            fraud = "" if draw.random() < 0.05 else int(draw.random() < 0.3)
            accounts.append(
                [ids[i], draw.choice(countries), f"{opened:{form}}", income, draw.randrange(1000, 9900),
                 draw.choice(["Köln", "Málaga", "Berlin"]), fraud]
            )  # fmt: skip
        payments: list[list[Any]] = [["Booking time", "From account", "To account", "Amount EUR"]]
        for i in own:
            for j in [*draw.sample(range(SIZE), 4), i]:
                to = f"9{ids[j]}" if draw.random() < 0.02 else ids[j]
                payments += [["2024-01-01 08:00:00", ids[i], to, number(draw.lognormvariate(4.5, 1.6))]] * 2
        for name, rows in (("accounts", accounts), ("payments", payments)):
            with (folder / f"{name}_{bank + 1}.csv").open("w", encoding=encoding, newline="") as file:
                csv.writer(file, delimiter=separator).writerows(rows)


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the exports, the description that graphfed wrote, and a run with it."""
    folder = tmp_path_factory.mktemp("banks")
    write_banks(folder / "raw")
    files = sorted(map(str, (folder / "raw").iterdir()))
    assert main(["data", "describe", *files, "--out", str(folder / "banks.yaml")]) == 0
    assert main([*RUN, "--data", str(folder / "banks.yaml"), "--out", str(folder / "run")]) == 0
    return folder


def test_the_written_description_says_what_the_generator_wrote(banks: Path) -> None:
    description, _ = describe_file(banks / "banks.yaml")
    assert [*description.clients] == ["accounts_1", "accounts_2", "accounts_3"]
    assert (description.id, description.label) == ("Account No", "Fraud")
    assert (description.source, description.target) == ("From account", "To account")
    assert description.dates == ("Opened on",)
    assert description.categorical == ("Country", "City")
    assert description.features == ("Country", "Opened on", "Monthly income", "NACE code", "City")
    assert (description.missing, description.unknown_nodes) == ("indicator", "drop")
    assert description.clients["accounts_3"].encoding == "cp1252"
    graph = load_description(description)
    assert graph.num_nodes == SIZE
    assert graph.client_names == ("accounts_1", "accounts_2", "accounts_3")
    assert all(len(name) == 8 for name in graph.ids.to_pylist())


def test_the_run_counts_what_it_did_not_use(banks: Path) -> None:
    data = json.loads((banks / "run" / "manifest.json").read_text())["data"]
    dropped = "; ".join(data["dropped"])
    for words in ("self loop", "repetition", "to an unknown node", "4 attributes of the edges"):
        assert words in dropped
    assert data["feature_names"][:4] == [f"Country={c}" for c in ("DE", "FR", "Österreich")] + [
        "Country missing"
    ]


def test_clients_in_processes_of_their_own_fill_gaps_with_the_same_means(banks: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 3, "hidden": 4, "runtime": "processes"}
    graphfed.run("fedavg", data=banks / "banks.yaml", out=tmp_path / "run", **settings)
    one, two = (read_tensors(folder / "model.safetensors")[0] for folder in (banks / "run", tmp_path / "run"))
    assert {"feature_gaps.means", "feature_scaling.center"} <= {*one} == {*two}
    for name, array in one.items():
        exact = name.startswith("feature_")
        np.testing.assert_allclose(array, two[name], rtol=0, atol=0 if exact else 1e-5, err_msg=name)


def test_central_training_fills_gaps_with_the_means_of_the_federation(banks: Path, tmp_path: Path) -> None:
    graphfed.run("central", data=banks / "banks.yaml", rounds=1, hidden=4, out=tmp_path / "run")
    central, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    federated, _ = read_tensors(banks / "run" / "model.safetensors")
    for name in ("feature_gaps.means", "feature_scaling.center", "feature_scaling.scale"):
        np.testing.assert_array_equal(central[name], federated[name])


def one_table(folder: Path, **changes: Any) -> Path:
    """All accounts in one table with its columns in another order, and a description of it."""
    described, _ = describe_file(folder / "banks.yaml")
    rows: list[dict[str, str]] = []
    payments: list[dict[str, str]] = []
    for bank, (encoding, separator, decimal, form) in enumerate(HABITS):
        before = len(payments)
        for name, found in (("accounts", rows), ("payments", payments)):
            with (folder / "raw" / f"{name}_{bank + 1}.csv").open(encoding=encoding, newline="") as file:
                found.extend(csv.DictReader(file, delimiter=separator))
        for row in payments[before:]:
            row["Amount EUR"] = row["Amount EUR"].replace(decimal, ".")
        for row in rows[-SIZE // 3 :]:
            row["Monthly income"] = row["Monthly income"].replace(decimal, ".")
            row["Opened on"] = datetime.datetime.strptime(row["Opened on"], form).date().isoformat()
    out = folder / "one"
    out.mkdir()
    names = [*rows[0]][::-1]
    for row in rows:
        row.update({key: value for key, value in changes.items() if key in row})
    for name, table, columns in (("nodes", rows, names), ("edges", payments, [*payments[0]])):
        with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(table)
    lines = (folder / "banks.yaml").read_text().splitlines()
    keys = [line for line in lines if not line.startswith(("clients:", "  ", "features:"))]
    (out / "one.yaml").write_text("\n".join(["nodes: nodes.csv", "edges: edges.csv", *keys]))
    assert described.client is None
    return out / "one.yaml"


def test_a_model_predicts_the_same_for_columns_in_another_order(banks: Path) -> None:
    path = one_table(banks)
    try:
        table = graphfed.predict(banks / "run", data=path)
        again = graphfed.predict(banks / "run", data=banks / "banks.yaml")
    finally:
        shutil.rmtree(path.parent)
    found = dict(zip(table["id"].to_pylist(), table["probability_1"].to_pylist(), strict=True))
    expected = dict(zip(again["id"].to_pylist(), again["probability_1"].to_pylist(), strict=True))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-6)


def test_a_category_that_the_model_does_not_know_is_counted_and_predicted_as_none(banks: Path) -> None:
    path, lines = one_table(banks, Country="IT"), []
    try:
        table = graphfed.predict(banks / "run", data=path, on_unknown=lines.append)
    finally:
        shutil.rmtree(path.parent)
    assert lines == [f"{SIZE:,} nodes have 'IT' in 'Country', unknown to the model"]
    assert np.isfinite(table["probability_1"].to_numpy()).all()
    assert pq.read_table(banks / "run" / "predictions.parquet").num_rows == SIZE

"""A finished run's model predicts: on its own graph what the run wrote, on another what its network gives."""

import csv
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import graphfed
from graphfed.cli import main
from graphfed.data.datasets import load
from graphfed.data.graphs.directed import make_directed
from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.errors import InputError
from graphfed.methods.registry import METHODS, get_method
from graphfed.runs.predict import guarded, unguarded

pytestmark = pytest.mark.slow

ROOT = Path(graphfed.__file__).parents[1]
SMALL = {"clients": 3, "rounds": 3}
#: One node for each client, so few that naive_fedgnn's false edges are few.
DEVICES = {"data": "social", "split": "random:0.5,0.25,0.25", "rounds": 2, "settings": {"data.num_nodes": 60}}
#: A few sensors, and few of their windows.
SENSORS = {
    "data": "roads", "rounds": 2,
    "settings": {"data.sensors": 4, "data.weeks": 1, "every": 60, "lags": 4, "horizon": 3},
}  # fmt: skip
BY_PARTITION = {"ego": DEVICES, "sensors": SENSORS}


#: One that averages, one with a model a client, and one whose clients share nodes.
APART = ("fedavg", "isolated", "sapgnn")


@pytest.mark.parametrize(
    ("method", "placement"),
    [*((name, "stacked") for name in METHODS), *((name, "one-at-a-time") for name in APART)],
)
def test_predicting_again_gives_what_the_run_wrote(method: str, placement: str, tmp_path: Path) -> None:
    options = BY_PARTITION.get(get_method(method).partition, SMALL)
    graphfed.run(method, placement=placement, out=tmp_path / "run", **options)
    written = pq.read_table(tmp_path / "run/predictions.parquet")
    again = graphfed.predict(tmp_path / "run")
    assert again.column_names == written.column_names
    for name in written.column_names:
        there, here = written[name].to_numpy(), again[name].to_numpy()
        if name.startswith(("probability", "forecast")):
            np.testing.assert_allclose(here, there, atol=1e-5)
        else:
            np.testing.assert_array_equal(here.astype(str), there.astype(str))


def test_a_shared_forecaster_is_of_use_for_other_sensors_and_others_are_not(tmp_path: Path) -> None:
    other = {**SENSORS, "settings": {**SENSORS["settings"], "data.sensors": 7}}
    new = load("roads", sensors=7, weeks=1)
    for method, settings in (("cnfgnn", {}), ("gru_fedavg", {})):
        folder = tmp_path / method
        graphfed.run(method, out=folder, **{**SENSORS, "settings": {**SENSORS["settings"], **settings}})
        table = graphfed.predict(folder, data=new)
        assert sorted(set(table["sensor"].to_pylist())) == sorted(new.ids)
        assert np.isfinite(table["forecast_3"].to_numpy()).all()
        trained_there = tmp_path / f"{method}-there"
        graphfed.run(method, out=trained_there, **other)
        assert not graphfed.predict(trained_there).equals(table), "another model"
        some = graphfed.predict(folder, data=new, nodes=["5", "2"])
        assert some["sensor"].to_pylist() == ["5"] * (len(some) // 2) + ["2"] * (len(some) // 2)
        with pytest.raises(InputError, match=r"sensor '99' is not in 'roads'"):
            graphfed.predict(folder, nodes=["99"])
    for method, settings, content in (
        ("gru_local", {}, "gru_local has a model for every client, and 'roads' belongs to none of them"),
        ("cnfgnn", {"strategy": "at"}, "with these settings cnfgnn has a model for every client"),
        ("last_value", {}, "last_value has no model"),
    ):
        folder = tmp_path / f"{method}-own"
        graphfed.run(method, out=folder, **{**SENSORS, "settings": {**SENSORS["settings"], **settings}})
        with pytest.raises(InputError, match=content):
            graphfed.predict(folder, data=new)


def test_sparse_features_too(tmp_path: Path) -> None:
    """First-layer weights that are stored by pair come back, and full ones of clients one at a time."""
    options = {"data": "social", "settings": {"data.num_nodes": 2000}, **SMALL}
    for placement in ("stacked", "one-at-a-time"):
        folder = tmp_path / placement
        graphfed.run("isolated", placement=placement, out=folder, **options)
        written = pq.read_table(folder / "predictions.parquet")
        np.testing.assert_allclose(
            graphfed.predict(folder)["probability"].to_numpy(), written["probability"].to_numpy(), atol=1e-5
        )


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's three banks, and a run on them."""
    folder = tmp_path_factory.mktemp("bank")
    subprocess.run([sys.executable, str(ROOT / "examples/bank_fraud/make_data.py"), str(folder)], check=True)
    arguments = [
        "run",
        "--config",
        str(folder / "bank.yaml"),
        "--rounds",
        "20",
        "--no-progress",
        "--no-report",
    ]
    assert main([*arguments, "--out", str(folder / "run")]) == 0
    return folder


def test_predictions_of_chosen_accounts_go_to_a_file_by_their_own_ids(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.csv").write_text("account\n00007\n00003\n")
    out = tmp_path / "p.csv"
    assert main(["predict", str(bank / "run"), "--nodes", str(tmp_path / "some.csv"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"2 predictions: {out}\n"
    lines = out.read_text().splitlines()
    assert [line.split(",")[lines[0].replace('"', "").split(",").index("id")] for line in lines[1:]] == [
        '"00007"',
        '"00003"',
    ]
    table = pa_csv.read_csv(out)
    assert set(table["prediction_name"].to_pylist()) <= {"yes", "no"}
    np.testing.assert_allclose(
        table["probability_0"].to_numpy() + table["probability_1"].to_numpy(), 1, atol=1e-5
    )
    assert main(["predict", str(bank / "run"), "--out", str(tmp_path / "p.parquet")]) == 0
    assert pq.read_table(tmp_path / "p.parquet").num_rows == 20_000


def test_another_graph_is_predicted_by_the_same_network(tmp_path: Path) -> None:
    """A copy of the graph with its nodes in another order has its predictions in that order."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    x = rng.normal(size=(200, 5)).astype(np.float32) + y[:, None]
    edges = rng.integers(0, 200, (2, 500))
    graph = make_graph("one", x, y, edges)
    graphfed.run("central", data=graph, split="random", out=tmp_path / "run", clients=2, rounds=20)
    order = rng.permutation(200)
    place = np.argsort(order)
    other = make_graph("two", x[order], np.full(200, -1), place[edges], num_classes=0)
    one = graphfed.predict(tmp_path / "run", data=graph)["probability_1"].to_numpy()
    two = graphfed.predict(tmp_path / "run", data=other)["probability_1"].to_numpy()
    np.testing.assert_allclose(two, one[order], atol=1e-5)
    assert len(np.unique(one.round(3))) > 20


def test_what_does_not_fit_is_refused(bank: Path, tmp_path: Path) -> None:
    run = bank / "run"
    with pytest.raises(InputError, match="the model needs 5 features, and 'digits' has 64"):
        graphfed.predict(run, data="digits")
    with pytest.raises(InputError, match="node '99999' is not in 'accounts'"):
        graphfed.predict(run, nodes=["00001", "99999"])
    with pytest.raises(InputError, match="holds no finished run"):
        graphfed.predict(_unfinished(tmp_path, run))
    text = (bank / "accounts.csv").read_text().replace("age_days,balance", "years,balance")
    (bank / "other.csv").write_text(text)
    description = {"nodes": str(bank / "other.csv"), "edges": str(bank / "transfers.csv"), "id": "account",
                   "client": "bank",
                   "label": "fraud", "split": "part", "source": "payer", "target": "payee"}  # fmt: skip
    with pytest.raises(InputError, match=r"'age_days'.*'years'"):
        graphfed.predict(run, data=description)
    graphfed.run("isolated", out=tmp_path / "own", **SMALL)
    with pytest.raises(InputError, match="isolated has a model for every client"):
        graphfed.predict(tmp_path / "own", data="digits")
    (tmp_path / "own/model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match="cannot be read"):
        graphfed.predict(tmp_path / "own")


def test_weights_that_may_not_be_read_are_not_called_missing(
    bank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        # For root, whom tests often run as, nothing is unreadable.
        if path.name == "model.safetensors":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="may not be read by you"):
        graphfed.predict(bank / "run")


def _unfinished(folder: Path, run: Path) -> Path:
    (folder / "begun").mkdir()
    (folder / "begun/manifest.json").write_text((run / "manifest.json").read_text())
    return folder / "begun"


def test_a_model_is_used_with_edge_weights_exactly_if_it_was_trained_with_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y, edges = rng.normal(size=(60, 3)), np.arange(60) % 2, rng.integers(0, 60, (2, 150))
    plain = make_graph("plain", x, y, edges)
    heavy = make_graph("heavy", x, y, edges, edge_weight=rng.uniform(1, 9, 150))
    for graph, other, content in (
        (plain, heavy, "trained without edge weights, and 'heavy' has edge weights; omit them"),
        (heavy, plain, "trained with edge weights, and 'plain' has none, or all are 1; add them"),
    ):
        folder = tmp_path / graph.name
        graphfed.run("fedavg", data=graph, split="random", out=folder, clients=2, rounds=3)
        graphfed.predict(folder, data=graph)
        with pytest.raises(InputError, match=content):
            graphfed.predict(folder, data=other)


def test_a_model_that_reads_edges_is_used_with_the_attributes_and_directions_of_its_training(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 60, (2, 150))
    plain = make_graph("paid", rng.normal(size=(60, 3)), np.arange(60) % 2, ends)

    def paid(names: tuple[str, ...] = ("amount",), factor: float = 1.0, **more: Any) -> Graph:
        values = factor * rng.random((150, len(names)))
        return replace(plain, directed=make_directed("paid", ends, values, names, **more))

    trained, folder = paid(factor=1000.0), tmp_path / "run"
    run = {"backbone": "gine", "split": "random", "clients": 2, "rounds": 3, "partition": "random"}
    graphfed.run("fedavg", data=trained, out=folder, **run)
    known = graphfed.predict(folder, data=trained)
    assert graphfed.predict(folder, data=trained) == known
    # Scaled as the training data was: smaller amounts are other inputs.
    assert trained.directed is not None
    smaller = replace(trained.directed, attributes=trained.directed.attributes / 1000)
    assert graphfed.predict(folder, data=replace(trained, directed=smaller)) != known
    for other, content in (
        (paid(("fee",)), r"trained on the attributes of edges \['amount'\], and 'paid' has \['fee'\]"),
        (plain, r"trained on the attributes of edges \['amount'\], and 'paid' has \[\]"),
        (paid(directed=False), "trained on directed edges, and those of 'paid' are not"),
    ):
        with pytest.raises(InputError, match=content):
            graphfed.predict(folder, data=other)


@pytest.mark.parametrize("out", ["p.txt", "there.csv"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    out: str, bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.csv").write_text("precious")
    monkeypatch.setattr("graphfed.runs.predict.predict", None)
    assert main(["predict", str(bank / "run"), "--out", out]) == 2
    assert Path("there.csv").read_text() == "precious"


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_plain_pyg_network_with_the_runs_weights_predicts_the_same(layers: int, tmp_path: Path) -> None:
    """Central training sees the whole graph, and so does PyG's forward pass."""
    import sys as system

    import torch

    from graphfed.data.datasets import load

    system.path.insert(0, str(ROOT / "examples"))
    from load_in_pyg import load_gcn

    graphfed.run("central", rounds=20, out=tmp_path / "run", settings={"layers": layers})
    graph = load("digits")
    both = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
    with torch.no_grad():
        logits = load_gcn(tmp_path / "run")(torch.from_numpy(graph.x), torch.from_numpy(both))
    table = pq.read_table(tmp_path / "run/predictions.parquet")
    expected = np.stack([table[f"probability_{c}"].to_numpy() for c in range(10)], 1)
    np.testing.assert_allclose(logits.softmax(1).numpy(), expected, atol=1e-5)


def test_no_text_of_a_run_s_files_is_markup_in_its_model_card(bank: Path, tmp_path: Path) -> None:
    from graphfed.report.page import write_card

    run = tmp_path / "run"
    shutil.copytree(bank / "run", run)
    hostile = "<img src=x onerror=alert(1)> [a](http://b) `c` *d* | e\n# f\x1b[31m"

    def poison(value: Any) -> Any:
        """Every text that a schema leaves free, and every key of a metric."""
        if isinstance(value, dict):
            return {key: poison(item) for key, item in value.items()}
        return [poison(item) for item in value] if isinstance(value, list) else hostile

    def change(name: str, *places: tuple[str, ...]) -> None:
        content = json.loads((run / name).read_text())
        for *above, last in places:
            inside = content
            for key in above:
                inside = inside[int(key)] if isinstance(inside, list) else inside[key]
            inside[last] = poison(inside[last])
        (run / name).write_text(json.dumps(content))

    change("result.json", ("dataset",), ("partition",), ("hashes",), ("runtime",))
    change("manifest.json", ("data", "class_names"), ("data", "feature_names"), ("data", "split"))
    change("manifest.json", ("config", "training", "optimizer"), ("config", "training", "hidden"))
    change("ledger.json", ("entries", "0", "name"), ("entries", "0", "protection"))
    result = json.loads((run / "result.json").read_text())
    result["val"][hostile] = result["test"][hostile] = 0.5
    (run / "result.json").write_text(json.dumps(result))
    check = dict.fromkeys(("check", "tests", "attacker_sees", "result", "baseline", "verdict"), hostile)
    (run / "audit.json").write_text(json.dumps({"checks": [{**check, "leaks": True}]}))
    text = write_card(run).read_text()
    assert text.count("onerror") > 10
    in_code = re.compile(r"`[^`\n]*`")
    for line in text.splitlines():
        # What a backslash escapes, and what stands between backticks, is text.
        rest = re.sub(r"\\.", "", in_code.sub("", line))
        assert not re.search(r"<img|\]\(|`|\*|\x1b", rest), line
        assert not line.startswith("# f\\"), line
        assert "<img" not in re.sub(r"\\<", "", line)
        assert "|" not in "".join(in_code.findall(line))


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "'=1",
        "''=1",
        "\uff1d1",
        "--5",
        "=",
        "-",
        "+",
    ],
)
def test_a_text_that_a_spreadsheet_takes_for_a_formula_is_guarded_and_read_back(text: str) -> None:
    assert guarded(text) == f"'{text}"
    assert unguarded(guarded(text)) == text


@pytest.mark.parametrize("text", ["-5", "+3.5", "-1e-3", "a=b", "", "'", "'a", "v1", "1-2", "\u00e4", " =1"])
def test_numbers_and_harmless_texts_stay_as_they_are_in_csv(text: str) -> None:
    assert guarded(text) == text
    assert unguarded(text) == text


def test_formulas_among_ids_are_guarded_in_csv_and_name_their_nodes_again(tmp_path: Path) -> None:
    ids = ["=1+1", "+x", "-5", "@a", "'=1+1", "plain"]
    lines = [
        f'"{name}",{i % 2},{"ab"[i % 2]},{["train", "val", "test"][i // 2]}' for i, name in enumerate(ids)
    ]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,age,label,split", *lines]))
    (tmp_path / "edges.csv").write_text('source,target\n"=1+1",plain\n-5,@a\n')
    (tmp_path / "d.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\n")
    run, out = tmp_path / "run", tmp_path / "p.csv"
    graphfed.run("central", data=tmp_path / "d.yaml", clients=2, partition="random", rounds=1, out=run)
    assert main(["predict", str(run), "--out", str(out)]) == 0
    convert = pa_csv.ConvertOptions(column_types={"id": "string"})
    written = pa_csv.read_csv(out, convert_options=convert)["id"].to_pylist()
    assert written == ["'=1+1", "'+x", "-5", "'@a", "''=1+1", "plain"]
    again = tmp_path / "q.parquet"
    (tmp_path / "ids.csv").write_text("id\n" + "\n".join(f'"{name}"' for name in written))
    assert main(["predict", str(run), "--nodes", str(tmp_path / "ids.csv"), "--out", str(again)]) == 0
    assert pq.read_table(again)["id"].to_pylist() == ids


def test_the_readmes_banks_are_compared_with_what_they_could_do_alone(bank: Path, tmp_path: Path) -> None:
    """The example is made so that working together pays: fedgcn's mean is above isolated's. Amounts are
    written on the scale of their logarithm here."""
    table = graphfed.compare(
        ["fedgcn"],
        data=_with_logarithms(bank),
        out=tmp_path / "table",
        seeds=[0, 1],
        rounds=40,
        settings={"optimizer": "adam", "lr": 0.01, "class_weights": "balanced"},
    )
    means = {row["method"]: row["test"]["average_precision"]["mean"] for row in table.rows}
    assert set(means) == {"fedgcn", "central", "isolated", "fedavg"}
    assert means["fedgcn"] > means["isolated"] + 0.02
    assert "AP" in str(table)
    assert "recall@1%" in str(table)
    assert "accuracy" not in str(table)
    assert max(map(len, str(table).splitlines())) <= 80
    assert table.partition == "column"
    assert table.clients == 3


def _accounts(bank: Path) -> list[dict[str, str]]:
    with (bank / "accounts.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _with_logarithms(bank: Path) -> dict[str, Any]:
    """The description of the banks' tables with the logarithm of age, balance and turnover."""
    rows = _accounts(bank)
    with (bank / "logarithms.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        for row in rows:
            logs = {key: math.log1p(float(row[key])) for key in ("age_days", "balance", "monthly_turnover")}
            writer.writerow({**row, **logs})
    return {"nodes": str(bank / "logarithms.csv"), "edges": str(bank / "transfers.csv"), "id": "account",
            "client": "bank", "label": "fraud", "split": "part", "source": "payer",
            "target": "payee"}  # fmt: skip


def test_the_banks_have_one_percent_fraud_in_every_part_and_at_every_bank(bank: Path) -> None:
    rows = _accounts(bank)
    assert len(rows) == 20_000
    for key, values in (("part", ("train", "val", "test")), ("bank", {row["bank"] for row in rows})):
        for value in values:
            known = [row["fraud"] for row in rows if row[key] == value and row["fraud"]]
            assert known.count("yes") / len(known) == pytest.approx(0.01, rel=0.25)


def test_the_report_and_the_card_of_the_banks_do_not_lead_with_accuracy(
    bank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that finds no fraud is 99 % accurate."""
    from graphfed.cli.output import summary
    from graphfed.report.page import write_card, write_report
    from graphfed.runs.run import Result

    result = Result.read(bank / "run")
    assert result.details["selected_by"] == "average_precision"
    line = summary(result).splitlines()[1]
    assert re.match(
        r"test: average precision [\d.]+, ROC AUC [\d.]+, recall at 1 % alarms [\d.]+, loss", line
    )
    page = write_report([bank / "run"]).read_text()
    content = re.search(r'class="answer">(.*?)</p>', page, re.DOTALL)
    assert content
    assert re.search(
        r"reached a test average precision of [\d.]+ % \(ROC AUC [\d.]+ %, recall at 1 % alarms [\d.]+ %\)",
        content[1],
    )
    assert "3,960" in page, "counts, not only shares"
    assert "accuracy of each site" not in page
    card = write_card(bank / "run").read_text()
    assert "average precision of" in card.splitlines()[2]
    assert "One class has more than 80 % of the test nodes" in card


# ---- methods that released noised values ----

RELEASING = [name for name in METHODS if get_method(name).restore is not None]


@pytest.fixture(params=RELEASING)
def released(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path]:
    """A finished run; from then on no method's set-up and no graph can be had."""
    graphfed.run(request.param, partition="ego", out=tmp_path / "run", **DEVICES)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("was called")

    monkeypatch.setattr("graphfed.runs.predict.reopen", refuse)
    monkeypatch.setattr("graphfed.runs.predict._predict", refuse)
    return request.param, tmp_path / "run"


def test_predicting_with_a_run_that_released_noised_values_releases_nothing(
    released: tuple[str, Path],
) -> None:
    _, folder = released
    written = pq.read_table(folder / "predictions.parquet")
    assert graphfed.predict(folder).equals(written)
    some = graphfed.predict(folder, nodes=["7", 3])
    assert some["node"].to_pylist() == [7, 3]
    assert some.equals(written.take([7, 3]))


def test_another_graph_is_not_predicted_where_that_would_release_noised_values(
    released: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    method, folder = released
    assert main(["predict", str(folder), "--data", "social", "--out", str(folder.parent / "new.csv")]) == 2
    output = capsys.readouterr().err
    assert output.startswith(f"error: {method} would release noised values of another graph's clients")
    assert "leave data out" in output
    assert len(output.splitlines()) == 1
    assert not (folder.parent / "new.csv").exists()
    with pytest.raises(InputError, match="node '60' is not in 'social'"):
        graphfed.predict(folder, nodes=[60])
    (folder / "predictions.parquet").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match=r"predictions\.parquet cannot be read"):
        graphfed.predict(folder)


@pytest.mark.parametrize("method", RELEASING)
def test_the_places_of_a_deployment_do_not_release_noised_values_again(method: str, tmp_path: Path) -> None:
    """Refused before anything is read or sent, whatever a coordinator asks for."""
    from graphfed.deployment.participant import predict_place
    from graphfed.federation import Federation
    from graphfed.runtime.nvflare.place import Place

    chosen = get_method(method)
    config = chosen.tree.listed(chosen.configure({}))
    config |= {"protocols": "real"} if "protocols" in config else {}
    arguments = {
        **{"run": "one", "method": method, "plugin": None, "config": config},
        **{"dtype": "float32", "split": "own", "split_seed": 0, "sites": ["bank_a"], "roster": ["bank_a"]},
        **{"checkpoint_every": 0.0, "wait": 0.0, "rehearsal": False, "stamp": "two"},
    }
    place = Place("bank_a", tmp_path)
    with pytest.raises(
        InputError, match=r"has its predictions in runs/one/predictions\.parquet of its startup kit"
    ):
        predict_place(Federation([range(1)]), arguments, print, place)
    assert list(tmp_path.iterdir()) == []

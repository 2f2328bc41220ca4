"""A run of link prediction, from the command line to its folder, and what reads the folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

import graphfed
from graphfed.audit.run import audit
from graphfed.cli import main
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError
from graphfed.methods.tasks import LINK_PREDICTION
from graphfed.reproductions.base import Paper, Printed, Row, Runs
from graphfed.runs.checkpoint import newest_round
from graphfed.runs.run import Result
from graphfed.studies.compare import compare
from graphfed.studies.comparison import comparison_of
from graphfed.tasks.registry import get_task

#: Few rounds of a small generated graph, over four sites.
OPTIONS = {"data": "social", "clients": 4, "rounds": 4, "data.num_nodes": 200}
COMMAND = [
    "--task", LINK_PREDICTION, "--data", "social", "--clients", "4", "--rounds", "4",
    "--set", "data.num_nodes=200", "--no-progress",
]  # fmt: skip


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One run with its folder, for the tests that only read it."""
    folder = tmp_path_factory.mktemp("linked") / "run"
    return graphfed.run("central", task=LINK_PREDICTION, out=folder, **OPTIONS)


def pairs_in(folder: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(folder / "predictions.parquet")
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def test_the_command_writes_a_whole_folder_and_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "central", *COMMAND, "--out", "run", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["task"] == LINK_PREDICTION
    assert {*result["test"]} == {*result["val"]} == {"auc", "loss"}
    assert "test_confusion" not in result["details"]
    assert result["details"]["changed_settings"] == {"rounds": 4}, "the task's settings are the defaults"
    assert result["bytes"]["total"] == 0
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["config"]["task"] == LINK_PREDICTION
    assert manifest["config"]["training"]["dropout"] == get_task(LINK_PREDICTION).defaults["dropout"]
    assert manifest["data"]["edges"] == load("social", num_nodes=200).num_edges  # type: ignore[union-attr]
    for name in ("report.html", "model_card.md"):
        assert "AUC" in Path("run", name).read_text()


def test_predictions_are_the_pairs_that_were_scored(linked: Result) -> None:
    assert linked.folder is not None
    pairs = pairs_in(linked.folder)
    assert [*pairs] == ["source", "target", "client", "part", "label", "score"]
    graph = load("social", num_nodes=200)
    assert isinstance(graph, Graph)
    edges = set(map(tuple, graph.edges.T.tolist()))
    found = [(min(p), max(p)) for p in zip(pairs["source"], pairs["target"], strict=True)]
    assert len(set(found)) == len(found)
    assert pairs["label"].tolist() == [pair in edges for pair in found]
    assert pairs["label"].mean() == 0.5
    assert {*pairs["client"].tolist()} == {0, 1, 2, 3}
    for part, metrics in (("val", linked.val), ("test", linked.test)):
        in_part = pairs["part"] == part
        area = roc_auc_score(pairs["label"][in_part], pairs["score"][in_part])
        assert metrics["auc"] == pytest.approx(area, abs=0.02), "except for the ties of two bytes"


def test_the_model_predicts_the_same_pairs_again(linked: Result, capsys: pytest.CaptureFixture[str]) -> None:
    assert linked.folder is not None
    again = graphfed.predict(linked.folder)
    assert again.equals(pq.read_table(linked.folder / "predictions.parquet"))
    assert main(["predict", str(linked.folder), "--out", "pairs.csv"]) == 0
    assert Path("pairs.csv").read_text().startswith('"source","target","client","part","label","score"')
    capsys.readouterr()
    assert main(["predict", str(linked.folder), "--data", "digits", "--out", "more.csv"]) == 2
    assert "scores only the pairs of its own split" in capsys.readouterr().err
    assert not Path("more.csv").exists()


def test_a_run_goes_on_from_its_checkpoint_to_the_same_result(linked: Result) -> None:
    assert linked.folder is not None
    folder = Path("stopped")
    whole = graphfed.run("central", task=LINK_PREDICTION, out=folder, checkpoint_every=0, **OPTIONS)
    start, _ = newest_round(folder, ["local"])
    assert start == 4
    for name in ("result.json", "predictions.parquet", "metrics.jsonl"):
        (folder / name).unlink()
    for path in (folder / "checkpoint" / "round-00000004").iterdir():
        path.unlink()
    again = graphfed.resume(folder)
    assert isinstance(again, Result)
    assert (again.test, again.val, again.hashes) == (whole.test, whole.val, whole.hashes)
    assert (again.test, again.hashes) == (linked.test, linked.hashes)


@pytest.mark.slow
def test_separate_processes_find_what_one_finds(linked: Result) -> None:
    apart = graphfed.run("central", task=LINK_PREDICTION, runtime="processes", out=False, **OPTIONS)
    assert apart.test == pytest.approx(linked.test, abs=1e-3)
    assert apart.details["test_roc"][-1] == [1.0, 1.0]
    assert apart.hashes == linked.hashes


def test_hashes_are_of_the_whole_graph_its_edge_split_and_the_partition_of_the_training_edges(
    linked: Result,
) -> None:
    graph = load("social", num_nodes=200)
    assert isinstance(graph, Graph)
    assert linked.hashes["data"] == graph.hash
    other = graphfed.run("central", task=LINK_PREDICTION, out=False, **OPTIONS, settings={"split_seed": 1})
    assert other.hashes["data"] == graph.hash
    assert other.hashes["split"] != linked.hashes["split"]
    assert other.hashes["partition"] != linked.hashes["partition"], "it partitions other edges"


def test_a_comparison_has_the_row_that_bounds_it_and_areas_in_its_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("row.yaml").write_text("method: central\nlabel: two layers more\nset: {layers: 4}\n")
    assert (
        main(["compare", "central", "--config", "row.yaml", *COMMAND, "--seeds", "0,1", "--out", "both"]) == 0
    )
    compared = json.loads(Path("both/comparison.json").read_text())
    assert compared["task"] == LINK_PREDICTION
    assert [row["label"] for row in compared["rows"]] == ["central", "two layers more"]
    assert all(len(row["test"]["auc"]["values"]) == 2 for row in compared["rows"])
    page = Path("both/report.html").read_text()
    for words in ("ROC curve", "difference to central", "highest mean test AUC", "validation pairs"):
        assert words in page
    assert "confusion matrix" not in page
    assert "accuracy of each site" not in page
    assert "test pairs, percent" in " ".join(capsys.readouterr().out.split())


def test_rows_of_two_tasks_share_no_table(linked: Result) -> None:
    row = {"method": "central", "task": "classification", "label": "classes"}
    with pytest.raises(InputError, match="one table has one task"):
        compare(["central", row], task=LINK_PREDICTION, out=False)
    classes = graphfed.run("isolated", out=False, split="random:0.5,0.25,0.25", **OPTIONS)
    with pytest.raises(InputError, match="central did link_prediction and isolated classification"):
        comparison_of([linked, classes])


def test_a_sweep_chooses_by_the_area(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--grid", "lr=0.001,0.02", "--seeds", "0", "--out", "tried"]
    assert main(["sweep", "central", *COMMAND, *grid]) == 0
    swept = json.loads(Path("tried/sweep.json").read_text())
    assert swept["metric"] == "auc"
    best = max(swept["trials"], key=lambda trial: trial["val"]["auc"]["mean"])
    assert swept["chosen"]["settings"] == best["settings"]
    assert "validation auc" in capsys.readouterr().out


def test_a_reproduction_may_be_of_link_prediction() -> None:
    links = Runs(
        name="table1",
        title="links",
        source="its table",
        metrics=("auc",),
        options={"task": LINK_PREDICTION, "data": "social", "clients": 4, "rounds": 3},
        settings={"data.num_nodes": 200},
        rows=(Row("central", "central", printed={"auc": Printed(90.0, 1.0)}),),
    )
    graphfed.reproduce(Paper("paper", "a paper", "somebody", "somewhere", (links,)), out="again")
    reproduced = json.loads(Path("again/reproduce.json").read_text())
    row = reproduced["items"][0]["rows"][0]
    assert row["ours"]["auc"]["mean"] > 1, "in percent, as printed"


def test_an_audit_checks_the_ledger_and_says_what_is_not_for_links(linked: Result) -> None:
    assert linked.folder is not None
    found = audit(linked.folder)
    assert [*found.findings] == ["plaintext_transfers"]
    assert "for the task classification" in found.skipped["membership"]


def test_a_folder_of_an_earlier_version_says_no_task_and_classifies() -> None:
    graphfed.run("isolated", out="old", split="random:0.5,0.25,0.25", **OPTIONS)
    manifest = json.loads(Path("old/manifest.json").read_text())
    del manifest["config"]["task"]
    Path("old/manifest.json").write_text(json.dumps(manifest))
    assert "prediction" in graphfed.predict("old").column_names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedavg"], "fedavg cannot do task 'link_prediction'; choose central"),
        (["central", "--split", "public"], "'public' is a split of nodes"),
        (["central", "--clients", "2", "--runtime", "nvflare"], "'nvflare' cannot do task 'link_prediction'"),
        (["central", "--startup-kit", "startup_kits/coordinator"], "link prediction cannot be deployed"),
        (
            ["central", "--partition", "edges_uniform"],
            "link prediction needs every node at exactly one client",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_and_nothing_is_written(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments, "--task", LINK_PREDICTION, "--out", "run", "--no-progress"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("run").exists()


def test_a_partition_that_was_made_with_all_edges_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "partition", "digits", "--clients", "3", "--out", "sites.safetensors"]) == 0
    asked = ["run", "central", "--task", LINK_PREDICTION, "--partition", "sites.safetensors"]
    assert main(asked) == 2
    assert "contains all edges, also those of validation and test" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("links", "unknown task 'links'; choose one of: classification, forecasting, link_prediction"),
        ("link_predicton", "did you mean 'link_prediction'"),
        (3, "task=3 cannot be used"),
    ],
)
def test_a_task_that_is_none_is_answered_with_those_there_are(task: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        graphfed.run("central", task=task, out=False)


def test_the_description_of_a_method_has_its_tasks_and_their_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["methods", "central", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["tasks"] == ["classification", "link_prediction"]
    assert page["default_settings"]["link_prediction"].items() >= get_task(LINK_PREDICTION).defaults.items()


def test_overview_counts_training_edges_and_scored_pairs(linked: Result) -> None:
    assert linked.folder is not None
    overview = json.loads((linked.folder / "overview.json").read_text())
    pairs = pairs_in(linked.folder)
    assert overview["pairs"] == {part: int((pairs["part"] == part).sum()) for part in ("val", "test")}
    for row in overview["clients"]:
        at_client = pairs["client"] == row["client"]
        assert row["test"] == int((at_client & (pairs["part"] == "test")).sum())
        assert row["train"] == row["edges"] + row["cross_client_edges"]
    page = (linked.folder / "report.html").read_text() if (linked.folder / "report.html").exists() else None
    assert page is None or "validation and test pairs" in page

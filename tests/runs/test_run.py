"""One run: its result, its folder, and what it leaves alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphfed
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.errors import InputError
from graphfed.files import JsonObject, read_tensors
from graphfed.methods.common.feature_scaling import ARRAYS
from graphfed.report.read import read_subject
from graphfed.runs import folder as files
from graphfed.runs import train as training
from graphfed.runs.folder_schema import LedgerFile, RunManifest
from graphfed.runs.run import Result
from graphfed.runs.train import Event

KEYS = {
    "method", "dataset", "task", "clients", "partition", "rounds", "best_round", "seed", "runtime", "val",
    "test", "seconds", "bytes", "privacy", "peak_rss_mb", "hashes", "versions", "details",
}  # fmt: skip
FILES = {
    "manifest.json", "metrics.jsonl", "ledger.json", "result.json", "model.safetensors",
    "predictions.parquet", "checkpoint", "overview.json",
}  # fmt: skip


def numbers(value: object) -> list[object]:
    """Every leaf of a JSON value."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in numbers(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in numbers(item)]
    return [value]


# ---- the result --------------------------------------------------------------------------------------------


def test_a_result_has_every_key_of_the_contract_and_plain_values_only(finished: Result) -> None:
    result = finished.to_json()
    assert set(result) == KEYS
    assert set(result["test"]) == set(result["val"])
    assert set(result["test"]) == {
        "accuracy", "macro_f1", "balanced_accuracy", "auc", "average_precision", "loss",
        "client_accuracy", "client_accuracy_std", "client_accuracy_min",
    }  # fmt: skip
    assert set(result["seconds"]) >= {"setup", "train", "total", "per_round"}
    assert set(result["bytes"]) == {"total", "up", "down", "peer", "setup", "by_transfer", "other_phases"}
    assert set(result["hashes"]) == {"data", "split", "partition"}
    assert set(result["versions"]) >= {"graphfed", "python", "torch", "numpy"}
    assert {type(leaf) for leaf in numbers(result)} <= {int, float, str, bool, type(None)}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_result_says_what_ran(finished: Result) -> None:
    assert (finished.method, finished.dataset, finished.clients) == ("fedavg", "digits", 4)
    assert (finished.rounds, finished.seed, finished.runtime) == (3, 1, "local")
    assert 1 <= finished.best_round <= 3
    assert finished.details["changed_settings"] == {"rounds": 3}


def test_a_result_read_from_its_folder_is_the_same(finished: Result) -> None:
    assert finished.folder is not None
    assert Result.read(finished.folder) == finished


@pytest.mark.parametrize("where", [{}, {"runtime": "processes", "workers": 1}], ids=["local", "processes"])
def test_on_round_gets_the_lines_of_the_evaluated_rounds(where: dict[str, Any], tmp_path: Path) -> None:
    lines: list[JsonObject] = []
    graphfed.run(
        "fedavg", clients=2, rounds=5, eval_every=2, out=tmp_path / "run", on_round=lines.append, **where
    )
    written = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [2, 4, 5]
    assert lines == [line for line in written if line["val"] is not None]


def test_an_exception_of_on_round_ends_the_run() -> None:
    def stop(line: JsonObject) -> None:
        raise LookupError(f"after round {line['round']}")

    with pytest.raises(LookupError, match="after round 1"):
        graphfed.run("fedavg", clients=2, rounds=5, out=False, on_round=stop)


def test_the_hashes_are_those_of_the_graph_split_and_partition(finished: Result) -> None:
    graph = load("digits")
    assert isinstance(graph, Graph)
    assert finished.hashes == {
        "data": graph.hash,
        "split": make_split(graph, "default", 1).hash,
        "partition": partition(graph, "label_dirichlet", 4, 1).hash,
    }


def test_the_same_seed_gives_the_same_metrics_and_another_seed_others(finished: Result) -> None:
    again = graphfed.run("fedavg", clients=4, rounds=3, seed=1, out=False)
    other = graphfed.run("fedavg", clients=4, rounds=3, seed=2, out=False)
    assert (again.test, again.val) == (finished.test, finished.val)
    assert other.test != finished.test


def test_central_carries_the_hash_and_clients_of_the_partition_it_ignores(finished: Result) -> None:
    central = graphfed.run("central", clients=4, rounds=1, seed=1, out=False)
    assert central.hashes == finished.hashes
    assert central.clients == 4


def test_an_alias_runs_the_method_it_stands_for() -> None:
    assert graphfed.run("local", clients=2, rounds=1, out=False).method == "isolated"


def test_the_pooled_score_stands_beside_the_test_score_where_there_is_one_model(finished: Result) -> None:
    over_clients = {"client_accuracy", "client_accuracy_std", "client_accuracy_min"}
    assert set(finished.details["test_pooled"]) == set(finished.test) - over_clients
    assert "test_pooled" not in graphfed.run("isolated", clients=2, rounds=1, out=False).details


def test_a_graph_of_ones_own_is_trained_on() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    x = (np.eye(2)[y] + 0.1 * rng.normal(size=(60, 2))).astype(np.float32)
    graph = make_graph("custom", x, y, rng.integers(0, 60, (2, 200)))
    options = {"clients": 3, "rounds": 2, "split": "random:0.5,0.2,0.3", "partition": "random"}
    result = graphfed.run("fedavg", data=graph, **options, out=False)
    assert (result.dataset, result.clients) == ("custom", 3)


@pytest.mark.parametrize("method", ["fedavg", "isolated"])
def test_clients_stacked_and_one_at_a_time_give_the_same_predictions(method: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    tables = []
    for placement in ("stacked", "one-at-a-time"):
        folder = tmp_path / placement
        graphfed.run(method, clients=3, rounds=2, placement=placement, out=folder)
        tables.append(pq.read_table(folder / "predictions.parquet"))
    for column in ("node", "client", "split", "label"):
        assert tables[0][column].to_pylist() == tables[1][column].to_pylist()
    np.testing.assert_allclose(tables[0]["probability"], tables[1]["probability"], atol=1e-4)


@pytest.mark.slow
def test_separate_processes_give_the_same_result(tmp_path: Path) -> None:
    together = graphfed.run("fedavg", clients=2, rounds=2, out=tmp_path / "local")
    apart = graphfed.run("fedavg", clients=2, rounds=2, runtime="processes", out=tmp_path / "processes")
    assert apart.runtime == "processes"
    assert apart.bytes == together.bytes
    assert apart.hashes == together.hashes
    assert apart.test["loss"] == pytest.approx(together.test["loss"], rel=1e-4)


def test_events_count_every_round_and_end_with_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphfed.runs.config import make_config
    from graphfed.runs.run import execute, load_inputs

    events: list[Event] = []
    config = make_config("fedavg", clients=2, rounds=3)
    execute(config, load_inputs(config), folder=None, command="test", on_event=events.append)
    assert [(e.phase, e.round) for e in events if e.phase != "stage"] == [
        ("setup", 0),
        ("train", 1),
        ("train", 2),
        ("train", 3),
        ("done", 3),
    ]


def test_the_number_of_threads_is_set_for_the_run_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    during = []
    real = training.train

    def spy(*args: object, **kwargs: object) -> object:
        during.append(torch.get_num_threads())
        return real(*args, **kwargs)

    monkeypatch.setattr(training, "train", spy)
    for threads in (1, 2):
        graphfed.run("fedavg", clients=2, rounds=1, threads=threads, out=False)
    assert during == [1, 2]
    assert torch.get_num_threads() == before


# ---- the folder --------------------------------------------------------------------------------------------


def test_a_folder_has_every_file_and_no_other(finished: Result) -> None:
    assert finished.folder is not None
    assert {p.name for p in finished.folder.iterdir()} == FILES


def test_the_manifest_says_how_to_do_it_again(finished: Result) -> None:
    assert finished.folder is not None
    manifest = files.read_json(finished.folder / "manifest.json", RunManifest)
    assert set(manifest) >= {
        "command", "started", "config", "seeds", "data", "partition", "hashes", "versions", "device",
        "threads",
    }  # fmt: skip
    assert manifest["seeds"] == {"run": 1, "partition": 1, "split": 1}
    assert manifest["partition"]["options"] == {"beta": 10000.0, "kind": "proportions"}
    config = manifest["config"]
    own = {key: value for key, value in config["training"].items() if key not in ("seed", "rounds")}
    again = graphfed.run(
        config["method"], data=config["data"], clients=config["clients"], partition=config["partition"],
        rounds=config["training"]["rounds"], seed=config["seed"], split=config["split"],
        threads=config["threads"], settings=own, out=False,
    )  # fmt: skip
    assert again.test == finished.test


def test_metrics_have_one_line_a_round(finished: Result) -> None:
    assert finished.folder is not None
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    chosen = lines[finished.best_round - 1]["val"]
    assert chosen == pytest.approx({name: finished.val[name] for name in chosen})
    assert lines[-1]["bytes"] == finished.bytes["total"]


def test_a_round_without_evaluation_has_null_for_its_metrics(tmp_path: Path) -> None:
    graphfed.run("fedavg", clients=2, rounds=3, eval_every=2, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["val"] is None for line in lines] == [True, False, False]


def test_the_ledger_accounts_for_the_bytes_of_the_result(finished: Result) -> None:
    assert finished.folder is not None
    ledger = files.read_json(finished.folder / "ledger.json", LedgerFile)
    counted = [e for e in ledger["entries"] if e["phase"] in ("setup", "train")]
    assert sum(e["bytes"] for e in counted) == finished.bytes["total"] > 0


def test_the_model_has_the_weights_of_one_shared_network(finished: Result) -> None:
    """Its numbers are those of a 2-layer network of hidden width 64 on 64 features and 10 classes,
    and beside it the scale of each feature."""
    assert finished.folder is not None
    arrays, metadata = read_tensors(finished.folder / "model.safetensors")
    assert metadata["method"] == "fedavg"
    scaling = [arrays.pop(name).size for name in ARRAYS]
    assert scaling == [64, 64, 1]
    assert sum(a.size for a in arrays.values()) == 64 * 64 + 64 + 64 * 10 + 10


def test_processes_keep_the_scaling_of_the_features(tmp_path: Path) -> None:
    """It is stored with the model for predictions of other data, and the pooled score uses it."""
    options = {"clients": 3, "rounds": 2}
    one = graphfed.run("fedavg", **options, out=tmp_path / "one")
    apart = graphfed.run("fedavg", **options, out=tmp_path / "apart", runtime="processes", workers=2)
    assert apart.details["test_pooled"] == pytest.approx(one.details["test_pooled"], abs=1e-5)
    here, there = (read_tensors(tmp_path / run / "model.safetensors")[0] for run in ("one", "apart"))
    assert {*here} == {*there}
    for name in ARRAYS:
        np.testing.assert_array_equal(there[name], here[name])


@pytest.mark.parametrize("method", ["fedavg", "central", "isolated"])
def test_predictions_have_a_row_a_node_and_give_the_reported_accuracy(method: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    result = graphfed.run(method, clients=4, rounds=2, out=tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "predictions.parquet")
    graph = load("digits")
    assert isinstance(graph, Graph)
    parts = partition(graph, "label_dirichlet", 4, 0)
    owner = np.empty(graph.num_nodes, dtype=np.int64)
    owner[parts.held_node] = parts.held_client
    column = {
        name: np.array(table[name].to_pylist()) for name in ("node", "client", "split", "label", "prediction")
    }
    np.testing.assert_array_equal(column["node"], np.arange(graph.num_nodes))
    np.testing.assert_array_equal(column["client"], owner)
    np.testing.assert_array_equal(column["label"], graph.y)
    test = column["split"] == "test"
    np.testing.assert_array_equal(test, make_split(graph, "default", 0).test)
    hit = column["prediction"][test] == column["label"][test]
    assert hit.mean() == pytest.approx(result.test["accuracy"])
    each = np.stack([np.array(table[f"probability_{c}"]) for c in range(10)], axis=1)
    np.testing.assert_allclose(each.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(each.max(axis=1), np.array(table["probability"]))


def test_copies_of_a_node_are_predicted_at_each_site_that_owns_one(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    graphfed.run("fedavg", clients=3, rounds=1, partition="overlapping", out=tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "predictions.parquet")
    graph = load("digits")
    assert isinstance(graph, Graph)
    parts = partition(graph, "overlapping", 3, 0)
    owned = sorted(zip(parts.held_node[parts.held_owner], parts.held_client[parts.held_owner], strict=True))
    assert list(zip(table["node"].to_pylist(), table["client"].to_pylist(), strict=True)) == owned


@pytest.mark.parametrize("method", ["central", "own_features"])
def test_pooled_methods_predict_every_node_and_give_no_client_to_one_that_nobody_has(
    method: str, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    graph, run = load("digits"), tmp_path / "run"
    assert isinstance(graph, Graph)
    parts = partition(graph, "overlapping", 2, 0, mean=0.1, variance=0.0)
    assert parts.held_node.max() < graph.num_nodes - 1
    some = {"partition.mean": 0.1, "partition.variance": 0.0}
    result = graphfed.run(method, clients=2, rounds=1, partition="overlapping", settings=some, out=run)
    table = pq.read_table(run / "predictions.parquet")
    first: list[int | None] = [None] * graph.num_nodes
    for node, client in zip(parts.held_node[::-1], parts.held_client[::-1], strict=True):
        first[node] = int(client)
    assert table["client"].to_pylist() == first
    rows = table.select(["split", "label", "prediction"]).to_pylist()
    hits = [row["label"] == row["prediction"] for row in rows if row["split"] == "test"]
    assert np.mean(hits) == pytest.approx(result.test["accuracy"])
    assert set(read_subject([run]).first.client_accuracy) == {"0", "1"}


def test_a_node_without_a_finite_score_has_no_prediction_in_any_file(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    number = np.arange(40)
    x = np.random.default_rng(0).normal(size=(40, 64))
    x[3] = 3e38
    split = Split("own", number % 4 < 2, number % 4 == 2, number % 4 == 3)
    graph = make_graph("g", x, number // 4 % 2, [[0], [1]], split=split)
    result = graphfed.run("fedavg", data=graph, clients=2, rounds=2, features="raw", out=tmp_path / "run")
    assert [row[-1] for row in result.details["test_confusion"]] == [1, 0]
    (row,) = pq.read_table(tmp_path / "run" / "predictions.parquet").slice(3, 1).to_pylist()
    assert row["split"] == "test"
    assert row["prediction"] is None
    each = read_subject([tmp_path / "run"]).first.client_accuracy
    assert np.mean([accuracy for accuracy, _ in each.values()]) == result.test["client_accuracy"]
    hits = sum(accuracy * nodes for accuracy, nodes in each.values())
    assert hits / 10 == pytest.approx(result.test["accuracy"])


def test_the_default_folder_names_method_and_data(own_folder: Path) -> None:
    result = graphfed.run("fedavg", clients=2, rounds=1)
    assert result.folder is not None
    assert result.folder.parent.name == "runs"
    assert result.folder.name.startswith("fedavg-digits-")
    assert {p.name for p in (own_folder / "runs").iterdir()} == {result.folder.name}


def test_out_false_writes_nothing(own_folder: Path) -> None:
    assert graphfed.run("fedavg", clients=2, rounds=1, out=False).folder is None
    assert list(own_folder.iterdir()) == []


# ---- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fedavgg"}, "did you mean"),
        ({"clients": 1798}, "'digits' has 1797 nodes and cannot be partitioned among 1798 clients"),
        ({"clients": 500}, "label_dirichlet"),
        ({"split": "publc"}, "unknown split 'publc'; did you mean 'public'"),
        ({"split": "public"}, "has no public split"),
        ({"split": "random:0.8,0,0.2"}, "no val node"),
        ({"partition": "ego", "clients": 3}, "has 1797 clients for"),
        ({"data_dir": "nowhere", "data": "cora"}, "the data folder nowhere does not exist"),
        ({"lrr": 0.1}, "did you mean 'lr'"),
        ({"lr": 0.1, "settings": {"lr": 0.2}}, "lr is given twice"),
        ({"partition": "ego", "runtime": "processes"}, "one process per client"),
        (
            {"data": "social", "split": "random:0.5,0.25,0.25", "settings": {"data.num_nodes": 40}}
            | {"partition": "ego", "runtime": "processes", "workers": 50},
            "50 workers cannot hold 40 clients",
        ),
        ({"method": "fedgcn", "backbone": "gat"}, "fedgcn always has backbone=gcn"),
        ({"method": "fedgcn", "partition": "edges_uniform"}, "needs every node at exactly one client"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
    ],
)
def test_refused_input_writes_nothing(options: dict[str, object], message: str, own_folder: Path) -> None:
    with pytest.raises(InputError) as refusal:
        graphfed.run(**{"method": "fedavg", "rounds": 1, **options})
    assert message in str(refusal.value)
    assert list(own_folder.iterdir()) == []


def test_public_files_that_are_not_there_are_named_with_the_folders_searched(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    (own_folder / "data").mkdir()
    with pytest.raises(InputError, match=r"facebook.*data"):
        graphfed.run("fedavg", data="facebook", data_dir=own_folder / "data", rounds=1)
    assert [p.name for p in own_folder.iterdir()] == ["data"]


def test_a_full_output_folder_is_refused_before_anything_is_loaded(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_folder / "out").mkdir()
    (own_folder / "out" / "precious").write_text("x")
    monkeypatch.setattr("graphfed.runs.run.load_inputs", None)
    with pytest.raises(InputError, match="is not empty"):
        graphfed.run("fedavg", rounds=1, out=own_folder / "out")
    assert [p.name for p in (own_folder / "out").iterdir()] == ["precious"]


@pytest.mark.parametrize("out", ["loop", "x" * 300, "/proc/x", 5, True])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_loaded(
    out: object, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_folder / "loop").symlink_to("loop")
    monkeypatch.setattr("graphfed.runs.run.load_inputs", None)
    with pytest.raises(InputError, match="out"):
        graphfed.run("fedavg", rounds=1, out=out)
    assert [p.name for p in own_folder.iterdir()] == ["loop"]


def test_the_name_of_ones_own_graph_cannot_lead_out_of_the_runs_folder(own_folder: Path) -> None:
    y = np.arange(40) % 2
    graph = make_graph("../escaped/x", np.eye(2, dtype=np.float32)[y], y, np.stack((y, np.roll(y, 1))))
    result = graphfed.run("fedavg", data=graph, clients=2, rounds=1, partition="random", split="random")
    assert result.dataset == "../escaped/x"
    assert [p.name for p in own_folder.iterdir()] == ["runs"]
    assert result.folder is not None
    assert result.folder.parent == Path("runs")


def test_a_generated_data_set_beyond_memory_is_refused(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("graphfed.tasks.source.load", fail)
    with pytest.raises(InputError, match=r"does not fit into memory, data\.num_nodes=9000000"):
        graphfed.run("fedavg", data="social", settings={"data.num_nodes": 9_000_000})
    assert list(own_folder.iterdir()) == []


def test_link_prediction_refuses_a_graph_without_features(own_folder: Path) -> None:
    graph = make_graph("bare", None, np.array([0, 1, 0, 1]), np.array([[0, 1], [1, 2]]))
    with pytest.raises(InputError, match="needs features"):
        graphfed.run("central", task="link_prediction", data=graph, rounds=1)


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_before_the_first_checkpoint_leaves_no_folder_and_one_after_it_leaves_a_run_to_go_on_with(
    failure: type[BaseException], own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure("stop")

    def run_with(broken: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(broken, fail)
            with pytest.raises(failure):
                graphfed.run("fedavg", clients=2, rounds=1, out=own_folder / "run")

    run_with("graphfed.runs.train.train")
    assert list(own_folder.iterdir()) == []
    run_with("graphfed.runs.folder.write_predictions")
    assert not (own_folder / "run" / "result.json").exists()
    assert graphfed.resume(own_folder / "run").rounds == 1
    assert {p.name for p in (own_folder / "run").iterdir()} == FILES


# ---- the package -------------------------------------------------------------------------------------------


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = "import graphfed, sys; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(Path(graphfed.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="runn"):
        graphfed.runn  # noqa: B018


def test_a_run_on_real_data_has_the_clients_asked_for(real_data: Path) -> None:
    result = graphfed.run("fedavg", data="cora", clients=10, rounds=2, data_dir=real_data, out=False)
    assert (result.dataset, result.clients) == ("cora", 10)
    assert 0 < result.test["accuracy"] < 1

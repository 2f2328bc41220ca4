"""What data states about labels, clients and splits is what a run uses, and what it lacks is said."""

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub

import graphfed
from graphfed.data.graphs.graph import make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.data.user_files.pyg_files import from_pyg
from graphfed.errors import InputError
from graphfed.runs.inspect import inspect

RANDOM = "random:0.5,0.25,0.25"


def network(n: int = 300, **more: Any) -> Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=draw)
    # From the smaller to the larger number: undirected edges, each listed once.
    edges = torch.randint(0, n, (2, 4 * n), generator=draw).sort(0).values
    return Data(x=x, edge_index=edges, **more)


def predictions(folder: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(folder / "predictions.parquet").to_pydict()
    return {name: np.array(values) for name, values in table.items()}


def with_unknown_class(unknown: int) -> Data:
    """10 % positive nodes; half of the nodes have the class `unknown`, and the masks leave them out."""
    n = 600
    data = network(n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    y = torch.full((n,), unknown)
    y[order[:300]] = (data.x[order[:300], 0] > 1.28).long()
    masks = torch.zeros(3, n, dtype=torch.bool)
    for part, nodes in enumerate((order[:150], order[150:220], order[220:300])):
        masks[part, nodes] = True
    data.y, data.train_mask, data.val_mask, data.test_mask = y, *masks
    return data


def test_a_class_without_a_node_in_the_split_changes_no_metric(tmp_path: Path) -> None:
    """As in Elliptic, whose class 2 is unknown: the average precision is that of the positive class."""
    options: dict[str, Any] = {"clients": 3, "partition": "random", "rounds": 10}
    run = graphfed.run("fedavg", data=with_unknown_class(2), out=tmp_path / "run", **options)
    table = predictions(tmp_path / "run")
    test = table["split"] == "test"
    expected = average_precision_score(table["label"][test] == 1, table["probability_1"][test])
    assert run.test["average_precision"] == pytest.approx(expected, abs=0.002)
    assert "recall_at_1_percent" in run.test
    assert "probability_2" not in table
    facts = json.loads((tmp_path / "run" / "manifest.json").read_text())["data"]
    assert facts["classes"] == 2
    assert "class 2, without a node in any part of the split (300 labels)" in facts["dropped"]
    unlabelled = graphfed.run("fedavg", data=with_unknown_class(-1), out=False, **options)
    assert run.test == unlabelled.test
    # A partition is one of the whole graph, so a saved one can be used.
    found = inspect(with_unknown_class(2), clients=3, partition="random")
    assert found.partition is not None
    found.partition.save(tmp_path / "p.safetensors")
    again = graphfed.run(
        "fedavg", data=with_unknown_class(2), partition=tmp_path / "p.safetensors", rounds=10, out=False
    )
    assert again.test == run.test


def test_classes_that_a_description_lists_stay_classes(tmp_path: Path) -> None:
    graph = with_unknown_class(2)
    names = np.array(["legit", "fraud", "new"])[graph.y]
    parts = np.full(600, "", dtype=object)
    for part in ("train", "val", "test"):
        parts[graph[f"{part}_mask"]] = part
    rows = [f"{i},{graph.x[i, 0]:.6f},{names[i]},{parts[i]}" for i in range(600)]
    (tmp_path / "n.csv").write_text("\n".join(["id,f,label,split", *rows]) + "\n")
    edges = [f"{u},{v}" for u, v in graph.edge_index.T.tolist()]
    (tmp_path / "e.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    listed = "classes: [legit, fraud, new]\n"
    for classes, expected in (("", 2), (listed, 3)):
        (tmp_path / "d.yaml").write_text(f"nodes: n.csv\nedges: e.csv\n{classes}")
        assert inspect(tmp_path / "d.yaml").data.num_classes == expected


def test_a_rare_class_is_in_every_part_of_the_default_split_and_a_lacking_class_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    y = torch.zeros(3000, dtype=torch.long)
    y[:30] = 1
    data = network(3000, y=y)
    run = graphfed.run("fedavg", data=data, clients=3, partition="random", rounds=2, out=tmp_path / "run")
    table = predictions(tmp_path / "run")
    rare = table["split"][table["label"] == 1].tolist()
    assert [rare.count(part) for part in ("train", "val", "test")] == [18, 6, 6]
    assert run.test["average_precision"] > 0
    data.y[2:30] = 0
    capsys.readouterr()
    graphfed.run("fedavg", data=data, clients=3, partition="random", rounds=2, out=False, progress=True)
    assert "class 1 has no " in capsys.readouterr().err


def test_the_clients_of_a_data_object_are_those_of_the_run() -> None:
    data = network(y=torch.arange(300) % 3, client=torch.arange(300) % 5)
    run = graphfed.run("fedavg", data=data, split=RANDOM, rounds=2, out=False)
    assert (run.clients, run.partition) == (5, "column")
    other = graphfed.run(
        "fedavg", data=data, split=RANDOM, partition="random", clients=2, rounds=2, out=False
    )
    assert (other.clients, other.partition) == (2, "random")


def test_a_split_replaces_a_single_mask_which_is_named() -> None:
    data = KarateClub()[0]
    run = graphfed.run("fedavg", data=data, split=RANDOM, clients=2, rounds=2, out=False)
    assert run.test["accuracy"] >= 0
    assert "train_mask of the Data object, which is no split" in from_pyg(data).dropped


def test_link_prediction_needs_no_labels_and_node_classification_says_so() -> None:
    options: dict[str, Any] = {"clients": 3, "rounds": 2, "partition": "random", "out": False}
    run = graphfed.run("own_features", data=network(), task="link_prediction", **options)
    unknown = network(y=torch.full((300,), -1))
    assert run.test == graphfed.run("own_features", data=unknown, task="link_prediction", **options).test
    with pytest.raises(InputError, match=r"has no labels.*set y of a PyG Data.*task link_prediction"):
        graphfed.run("fedavg", data=network(), **options)


def test_metis_leaves_no_client_without_a_node_and_empty_clients_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pymetis")
    edges = np.array(nx.karate_club_graph().edges).T
    graph = make_graph("karate", np.eye(34), np.arange(34) % 2, edges)
    for clients in (8, 20, 34):
        found = inspect(graph, clients=clients, partition="metis")
        assert found.overview["client_sizes"]["smallest"] >= 1
        assert not found.overview["remarks"]
    from_assignment(graph, np.arange(34) % 3, num_clients=5).save(tmp_path / "p.safetensors")
    options: dict[str, Any] = {"partition": tmp_path / "p.safetensors", "split": RANDOM, "rounds": 2}
    graphfed.run("fedavg", data=graph, out=tmp_path / "run", progress=True, **options)
    remark = "2 of 5 clients hold no node and are still counted and sent messages"
    assert remark in capsys.readouterr().err
    assert remark in (tmp_path / "run" / "manifest.json").read_text()


def test_inspect_checks_a_method_on_the_partition_that_a_run_of_it_has() -> None:
    methods = inspect("digits").methods
    assert [name for name in ("lumos", "lpgnn", "naive_fedgnn", "prediction_release") if methods[name]] == []
    assert (
        "partition 'ego' has 1797 clients for 'digits', not 5; omit"
        in inspect("digits", clients=5).methods["lumos"]
    )
    # The message of each case names its own fix.
    assert "use 'ego'" in inspect("digits", clients=5, partition="random").methods["lumos"]
    assert inspect("digits", partition="ego").methods["lumos"] is None


def test_sensors_without_a_reading_to_train_on_are_said(tmp_path: Path) -> None:
    times = np.datetime64("2024-01-01T00:00") + np.arange(200) * np.timedelta64(5, "m")
    values = np.random.default_rng(0).uniform(10, 20, (200, 2))
    rows = [
        f"{time},{a:.2f},{f'{b:.2f}' if step > 170 else ''}"
        for step, (time, (a, b)) in enumerate(zip(times, values, strict=True))
    ]
    (tmp_path / "r.csv").write_text("\n".join(["time,s0,s1", *rows]) + "\n")
    (tmp_path / "d.csv").write_text("from,to,distance\ns0,s1,3\ns1,s0,9\n")
    (tmp_path / "d.yaml").write_text("readings: r.csv\ndistances: d.csv\n")
    note = inspect(tmp_path / "d.yaml").overview["note"]
    assert "1 of 2 sensors has no reading to train on ('s1') and still count" in note
    run = graphfed.run("last_value", data=tmp_path / "d.yaml", out=tmp_path / "run")
    assert run.test["rmse"] > 0
    assert note in (tmp_path / "run" / "manifest.json").read_text()

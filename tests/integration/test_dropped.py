"""What a reader of the data leaves out is reported in one line when a run starts, by `graphfed data
inspect`, in the manifest and in the report: what it is and how much, for every reader, and nothing where
everything is used."""

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data

import graphfed
from graphfed.cli import main
from graphfed.deployment.site_files import checked_file
from graphfed.runs.config import make_config
from graphfed.studies.plan import InputCache

SHORT = {"rounds": 1, "hidden": 4, "clients": 2, "partition": "random", "threads": 1}
N = 12
#: A ring, listed in both directions, and one chord in one direction only.
RING = [(i, (i + 1) % N) for i in range(N)]
BOTH = [*RING, *((v, u) for u, v in RING)]
PARTS = ["train", "val", "test"] * (N // 3)


def dropped_by(
    data: Any, folder: Path, capsys: pytest.CaptureFixture[str], **more: Any
) -> tuple[list[str], list[str]]:
    """What the manifest of a run says was left out, and the lines on stderr that say so."""
    graphfed.run("fedavg", data=data, out=folder, progress=True, **SHORT | more)
    lines = [line for line in capsys.readouterr().err.splitlines() if "not used" in line]
    return json.loads((folder / "manifest.json").read_text())["data"]["dropped"], lines


def pyg(edges: list[tuple[int, int]], **more: Any) -> Data:
    masks = {f"{part}_mask": torch.tensor([p == part for p in PARTS]) for part in ("train", "val", "test")}
    x, y = torch.eye(N)[:, :5], torch.arange(N) % 2
    return Data(x=x, y=y, edge_index=torch.tensor(edges).T, **masks, **more)


def test_a_pyg_data_reports_its_direction_edge_attr_times_and_self_loops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edges = [*BOTH, (0, 5), (3, 9), (4, 4), (0, 1)]
    data = pyg(edges, edge_attr=torch.ones(len(edges), 3), time=torch.arange(len(edges)), name="ring")
    dropped, lines = dropped_by(data, tmp_path / "run", capsys)
    assert dropped == [
        "the direction of 2 edges",
        "1 repetition of an edge",
        "3 attributes of the edges ('edge_attr_0', 'edge_attr_1', 'edge_attr_2'), "
        "which backbone=gine or pna uses",
        "1 self loop",
        "'time' of the Data object (28)",
    ]
    assert lines == [f"custom: not used: {'; '.join(dropped)}"]


def test_a_pyg_data_of_which_everything_is_used_reports_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weighted = pyg(BOTH, edge_weight=torch.full((len(BOTH),), 2.0))
    assert dropped_by(weighted, tmp_path / "run", capsys) == ([], [])


def test_python_warns_once_of_what_the_network_does_not_use(tmp_path: Path) -> None:
    data = pyg([*BOTH, (0, 5)], edge_attr=torch.ones(len(BOTH) + 1))
    expected = r"custom: not used: the direction of 1 edge; 1 attribute of the edges \('edge_attr'\), which"
    with pytest.warns(UserWarning, match=expected) as warned:
        graphfed.run("fedavg", data=data, out=tmp_path / "gcn", **SHORT)
    assert sum("not used" in str(warning.message) for warning in warned) == 1
    with pytest.warns(UserWarning, match=r"1 attribute of the edges \('edge_attr'\)$"):
        graphfed.run("fedgcn", data=data, out=tmp_path / "fedgcn", **SHORT)
    with pytest.warns(UserWarning, match=".") as warned:
        result = graphfed.run("fedavg", data=data, backbone="gine", out=tmp_path / "gine", **SHORT)
    assert not [warning for warning in warned if "not used" in str(warning.message)]
    known = json.loads((tmp_path / "gine" / "manifest.json").read_text())["data"]
    assert (known["dropped"], known["edge_features"], known["directed"]) == ([], ["edge_attr"], True)
    assert result.rounds == 1


def test_runs_that_share_their_inputs_name_what_their_own_network_does_not_use() -> None:
    data, cache = pyg([*BOTH, (0, 5)], edge_attr=torch.ones(len(BOTH) + 1)), InputCache()
    options = {"data": data, "clients": 2, "partition": "random"}
    unused = {
        network: cache.get(make_config("fedavg", settings={"backbone": network}, **options)).unused
        for network in ("gcn", "gine", "sage")
    }
    assert unused["gine"] == ()
    assert len(unused["gcn"]) == 2
    assert unused["gcn"] == unused["sage"]


def test_a_file_of_pyg_reports_what_the_object_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(pyg([*BOTH, (0, 5)], edge_attr=torch.ones(len(BOTH) + 1)), tmp_path / "ring.pt")
    dropped, _ = dropped_by(tmp_path / "ring.pt", tmp_path / "run", capsys)
    assert dropped == [
        "the direction of 1 edge",
        "1 attribute of the edges ('edge_attr'), which backbone=gine or pna uses",
    ]


def drawn(graph: Any, edges: list[tuple[int, int]], **attributes: Any) -> Any:
    for i, part in enumerate(PARTS):
        graph.add_node(i, f=float(i), label=f"c{i % 2}", split=part)
    graph.add_edges_from(edges, **attributes)
    return graph


def test_graphml_reports_its_direction_and_the_attributes_of_its_edges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nx.write_graphml(drawn(nx.DiGraph(), [*RING, (1, 0), (2, 2)], amount=3.5, day=4), tmp_path / "g.graphml")
    dropped, lines = dropped_by(tmp_path / "g.graphml", tmp_path / "run", capsys)
    assert dropped == [
        f"the direction of {N - 1} edges",
        "2 attributes of the edges ('amount', 'day'), which backbone=gine or pna uses",
        "1 self loop",
    ]
    assert len(lines) == 1


def test_a_networkx_graph_reports_its_parallel_edges_and_no_direction_that_it_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = drawn(nx.MultiGraph(), [*RING, (1, 0), (0, 1)], weight=2.0)
    dropped, _ = dropped_by(graph, tmp_path / "run", capsys)
    assert dropped == ["2 repetitions of an edge (its weight is the mean of the listed weights)"]
    assert dropped_by(drawn(nx.Graph(), RING, weight=2.0), tmp_path / "again", capsys) == ([], [])


def write_tables(folder: Path, edges: list[tuple[int, int]], more: str = "") -> Path:
    """CSV tables with columns that the description does not use."""
    folder.mkdir(exist_ok=True)
    rows = [f"n{i},{i % 3},{i}.5,c{i % 2},{part},2024-01-0{i % 9 + 1}" for i, part in enumerate(PARTS)]
    (folder / "nodes.csv").write_text("\n".join(["id,f,g,label,split,opened", *rows]) + "\n")
    rows = [f"n{u},n{v},{i},wire" for i, (u, v) in enumerate(edges)]
    (folder / "edges.csv").write_text("\n".join(["source,target,time,channel", *rows]) + "\n")
    (folder / "own.yaml").write_text(
        f"nodes: nodes.csv\nedges: edges.csv\nfeatures: [f, g]\nname: own\n{more}"
    )
    return folder / "own.yaml"


def test_tables_report_their_columns_direction_self_loops_and_repetitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tables(tmp_path / "own", [*RING, (1, 0), (5, 5), (0, 1), (0, 1)], "weight: time\n")
    text = (path.parent / "edges.csv").read_text().replace(",0,wire", ",1,wire")
    (path.parent / "edges.csv").write_text(text)
    dropped, lines = dropped_by(path, tmp_path / "run", capsys)
    assert dropped == [
        f"the direction of {N - 1} edges",
        "1 self loop",
        "2 repetitions of an edge (its weight is the sum of the listed weights)",
        "1 column of the nodes ('opened')",
        "1 column of the edges ('channel')",
    ]
    assert lines == [f"own: not used: {'; '.join(dropped)}"]


def test_parquet_tables_of_which_everything_is_used_in_both_directions_report_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"id": [f"n{i}" for i in range(N)], "f": np.arange(N) / N, "label": [i % 2 for i in range(N)]}
    pq.write_table(pa.table({**columns, "split": PARTS}), tmp_path / "nodes.parquet")
    ends = {name: [f"n{edge[i]}" for edge in BOTH] for i, name in enumerate(("source", "target"))}
    pq.write_table(pa.table(ends), tmp_path / "edges.parquet")
    (tmp_path / "own.yaml").write_text("nodes: nodes.parquet\nedges: edges.parquet\n")
    assert dropped_by(tmp_path / "own.yaml", tmp_path / "run", capsys) == ([], [])


def test_several_sites_files_report_each_loss_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both list the ring: the one in one direction, the other in the other one."""
    north = write_tables(tmp_path / "north", [*RING, (3, 3)])
    south = write_tables(tmp_path / "south", [*((v, u) for u, v in RING), (0, 5), (0, 5)])
    files = "\n".join(
        f"  {path.parent.name}: {{nodes: {path.parent}/nodes.csv, edges: {path.parent}/edges.csv}}"
        for path in (north, south)
    )
    (tmp_path / "all.yaml").write_text(f"clients:\n{files}\nfeatures: [f, g]\n")
    dropped, _ = dropped_by(tmp_path / "all.yaml", tmp_path / "run", capsys, clients=None, partition=None)
    assert dropped == [
        "the direction of 1 edge",
        "1 self loop",
        "1 repetition of an edge",
        "1 column of the nodes ('opened')",
        "2 columns of the edges ('time', 'channel')",
    ]


def test_an_npz_set_reports_arrays_that_are_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dblp").mkdir()
    np.savez(
        tmp_path / "dblp" / "dblp.npz",
        edges=np.array([*RING, (7, 7)]),
        labels=np.arange(N) % 2,
        feat_indptr=np.arange(N + 1),
        feat_indices=np.arange(N) % 3,
        num_features=np.array(3),
        year=np.arange(N),
    )
    split = "random:0.5,0.25,0.25"
    dropped, _ = dropped_by("dblp", tmp_path / "run", capsys, data_dir=tmp_path, split=split)
    assert dropped == ["1 self loop", "1 array of dblp.npz ('year')"]


def test_inspect_the_report_and_the_files_of_a_run_report_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = write_tables(tmp_path / "own", RING), tmp_path / "run"
    content = ["the direction of 12 edges", "2 columns of the edges ('time', 'channel')"]
    assert main(["data", "inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["dropped"]
    assert {*content} < {*found}
    assert main(["data", "inspect", str(path)]) == 0
    plain = " ".join(capsys.readouterr().out.split())
    assert f"in the data but not used {'; '.join(found)}" in plain
    graphfed.run("fedavg", data=path, out=folder, **SHORT)
    assert "not used" not in capsys.readouterr().err, "without progress nothing is printed"
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "in the data but not used" in page
    assert content[0] in page


def test_a_comparison_reports_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tables(tmp_path / "own", RING)
    asked = ["compare", "fedavg", "--data", str(path), "--clients", "2", "--partition", "random"]
    assert main([*asked, "--seeds", "0", "--rounds", "1", "--out", str(tmp_path / "table")]) == 0
    assert capsys.readouterr().err.count("not used:") == 1


def test_data_named_by_a_config_file_reports_which_of_its_keys_only_config_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user who passes a run's config as --data expects its settings to hold."""
    path = write_tables(tmp_path / "own", RING)
    described = [f"  {line}" for line in path.read_text().splitlines()]
    config = tmp_path / "own" / "bank.yaml"
    config.write_text("\n".join(["data:", *described, "set: {hidden: 8}", "rounds: 1"]))
    phrase = "2 keys of bank.yaml, for --config ('set', 'rounds')"
    dropped, lines = dropped_by(config, tmp_path / "run", capsys)
    assert dropped[0] == phrase
    assert phrase in lines[0]
    asked = ["--clients", "2", "--partition", "random", "--out", str(tmp_path / "table"), "--seeds", "0"]
    assert main(["compare", "fedavg", "--data", str(config), "--rounds", "1", *asked]) == 0
    assert phrase in capsys.readouterr().err
    assert main(["data", "inspect", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"][0] == phrase
    assert phrase in checked_file(config, ("north",), "north")


def test_a_site_that_starts_informs_its_operator(tmp_path: Path) -> None:
    path = write_tables(tmp_path / "own", [*RING, (5, 5)], "classes: [c0, c1]\n")
    content = checked_file(path, ("north",), "north")
    assert content.startswith(
        f"{N} nodes, {N} edges, 2 features, 2 classes (c0, c1); not used: the direction"
    )
    assert "1 self loop; 1 column of the nodes ('opened')" in content

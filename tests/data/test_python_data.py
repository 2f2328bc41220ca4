"""Data and partitions that a program gives as objects, and data sets of other libraries by their names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub

import graphfed
from graphfed.data.datasets import load
from graphfed.data.graphs.degree_features import MAGNITUDES, NAMES, with_degree_features
from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.data.user_files.graph_files import from_networkx
from graphfed.data.user_files.library_sets import PYG, library_set, load_library_set
from graphfed.data.user_files.pyg_files import from_pyg
from graphfed.errors import InputError
from graphfed.runs.inspect import inspect
from graphfed.runs.reopen import resume
from graphfed.tasks.source import data_source, load_data

RUN: dict[str, Any] = {"rounds": 1, "out": False}


def graph_of(data: object) -> Graph:
    graph = load_data(data_source(data).value)
    assert isinstance(graph, Graph)
    return graph


def karate_clients() -> list[Data]:
    """The club divided among three clients, without the edges between them."""
    club = KarateClub()[0]
    return [club.subgraph(torch.arange(34) % 3 == client) for client in range(3)]


# ---- a PyG Data for each client ----------------------------------------------------------------------------


def test_a_list_of_data_is_the_graph_of_its_parts_with_a_client_for_each() -> None:
    parts = karate_clients()
    graph, each = graph_of(parts), [from_pyg(part) for part in parts]
    assert graph.client_names == ("0", "1", "2")
    np.testing.assert_array_equal(np.bincount(graph.clients), [part.num_nodes for part in parts])
    np.testing.assert_array_equal(graph.x, np.concatenate([one.x for one in each]))
    np.testing.assert_array_equal(graph.y, np.concatenate([one.y for one in each]))
    assert graph.num_edges == sum(one.num_edges for one in each)
    assert (graph.clients[graph.edges[0]] == graph.clients[graph.edges[1]]).all()
    named = graph_of(dict(zip(("north", "south", "west"), parts, strict=True)))
    assert named.client_names == ("north", "south", "west")
    assert named.hash == graph.hash
    assert graphfed.run("fedavg", data=parts, **RUN).clients == 3


def test_masks_weights_and_sparse_features_of_the_clients_are_kept() -> None:
    parts = karate_clients()
    for number, part in enumerate(parts):
        part.train_mask = torch.arange(part.num_nodes) < 6
        part.val_mask = torch.arange(part.num_nodes) == 6
        part.test_mask = torch.arange(part.num_nodes) > 6
        if number:  # the first client has no weights, which means 1
            part.edge_weight = torch.full((part.num_edges,), 2.0)
        if number == 2:
            part.x = part.x.to_sparse_coo()
    graph = graph_of(parts)
    assert graph.split is not None
    assert (graph.split.train.sum(), graph.split.val.sum()) == (18, 3)
    assert sp.issparse(graph.x)
    assert graph.edge_weight is not None
    inside = graph.clients[graph.edges[0]]
    np.testing.assert_array_equal(graph.edge_weight, np.where(inside == 0, 1, 2))


def without_labels(data: Data) -> Data:
    data.y = None
    return data


def with_three_columns(data: Data) -> Data:
    data.x = data.x[:, :3]
    return data


def with_a_bad_edge(data: Data) -> Data:
    data.edge_index = data.edge_index + 100
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_three_columns, "client '1' has 3 features, and client '0' has 34 features"),
        (without_labels, "client '1' has no labels, and client '0' has labels"),
        (with_a_bad_edge, "client '1': graph 'custom': edge 0 joins nodes"),
    ],
)
def test_the_client_whose_data_is_unlike_the_others_is_named(
    change: Callable[[Data], Data], message: str
) -> None:
    parts = karate_clients()
    parts[1] = change(parts[1])
    with pytest.raises(InputError, match=message):
        graph_of(parts)


@pytest.mark.parametrize("data", [[], karate_clients()[:1], [1, 2], ("a", "b")])
def test_what_is_no_list_of_clients_is_refused(data: object) -> None:
    with pytest.raises(InputError, match=r"at least two clients are needed|cannot be used; give the name"):
        graph_of(data)


# ---- graphs without masks or features ----------------------------------------------------------------------


def test_the_karate_club_as_it_comes_is_split_by_class_with_a_notice() -> None:
    club = KarateClub()[0]
    inspected = inspect(club, clients=2)
    assert inspected.methods["fedavg"] is None
    result = graphfed.run("fedavg", data=club, clients=2, **RUN)
    split, label = (np.array(result.predictions[name].to_pylist()) for name in ("split", "label"))
    # A node may move, so that every class is in every part.
    for part, fraction in (("train", 0.6), ("val", 0.2), ("test", 0.2)):
        assert abs((split == part).sum() - 34 * fraction) < 2
    assert all({*label[split == part]} == {*label} for part in ("train", "val", "test"))
    assert any("train_mask" in phrase for phrase in from_pyg(club).dropped)


def test_a_graph_without_features_is_trained_on_what_its_nodes_know_of_their_degrees() -> None:
    star = make_graph("star", None, np.zeros(8, dtype=int), np.stack([np.zeros(7, int), np.arange(1, 8)]))
    x = with_degree_features(star).x
    assert x is not None
    assert x[:, 0].tolist() == [7, *[1] * 7]
    # 7 is in the range from 7 to 14, and 1 in that from 1 to 2.
    assert [NAMES[1 + row.argmax()] for row in x[:2, 1:]] == ["degree 7 to 14", "degree 1 to 2"]
    assert (x[:, 1:].sum(1) == 1).all()
    huge = make_graph(
        "huge", None, np.zeros(10**5, int), np.stack([np.zeros(10**5 - 1, int), np.arange(1, 10**5)])
    )
    assert with_degree_features(huge).x[0, 1:].argmax() == MAGNITUDES - 1


def test_a_model_of_degrees_predicts_for_another_graph_without_features(tmp_path: Path) -> None:
    club = KarateClub()[0]
    bare = Data(edge_index=club.edge_index, y=club.y)
    network = nx.karate_club_graph()
    nx.set_node_attributes(network, dict(enumerate(club.y.tolist())), "label")
    for node in network:
        del network.nodes[node]["club"]
    assert from_networkx(network).x is None
    result = graphfed.run("fedavg", data=bare, clients=2, rounds=1, out=tmp_path / "run")
    other = graphfed.predict(tmp_path / "run", data=Data(edge_index=club.edge_index[:, :40], y=club.y))
    assert len(other) == 34
    assert result.predictions.num_rows == 34
    with pytest.raises(InputError, match="needs features"):  # degrees would show the scored edges
        graphfed.run("central", task="link_prediction", data=bare, clients=2, **RUN)


# ---- DataFrames --------------------------------------------------------------------------------------------


class Frame:
    """A table of any library that has Arrow's interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def bank(views: bool = False) -> tuple[pa.Table, pa.Table]:
    draws, n = np.random.default_rng(0), 60
    texts = pa.string_view() if views else pa.string()
    ids = [f"a{i}" for i in range(n)]
    nodes = pa.table(
        {
            "id": pa.array(ids, texts), "bank": pa.array([f"bank{i % 3}" for i in range(n)], texts),
            "balance": draws.normal(size=n), "age": draws.integers(18, 90, n), "fraud": np.arange(n) % 4 == 0,
        }
    )  # fmt: skip
    ends = [pa.array([ids[i] for i in draws.integers(0, n, 150)], texts) for _ in range(2)]
    return nodes, pa.table(ends, names=["source", "target"])


KEYS = {"label": "fraud", "client": "bank"}


def test_frames_give_the_graph_of_the_same_tables_in_files(tmp_path: Path) -> None:
    nodes, edges = bank()
    pa_csv.write_csv(nodes, tmp_path / "nodes.csv")
    pa_csv.write_csv(edges, tmp_path / "edges.csv")
    described = {"nodes": str(tmp_path / "nodes.csv"), "edges": str(tmp_path / "edges.csv"), **KEYS}
    expected = graph_of(described)
    given = (
        {"nodes": nodes, "edges": edges, **KEYS},
        (Frame(nodes), Frame(edges), KEYS),
        {**described, "edges": Frame(edges)},
        (*map(Frame, bank(views=True)), KEYS),
    )
    for data in given:
        graph = graph_of(data)
        assert graph.hash == expected.hash
        assert graph.client_names == expected.client_names == ("bank0", "bank1", "bank2")
        assert graph.dropped == expected.dropped


def test_each_client_may_have_frames_of_its_own() -> None:
    nodes, edges = bank()
    clients = {}
    for name in ("bank0", "bank1"):
        own = nodes.filter(pa.compute.equal(nodes["bank"], name)).drop_columns("bank")
        inside = [pa.compute.is_in(edges[end], own["id"].combine_chunks()) for end in ("source", "target")]
        clients[name] = {"nodes": own, "edges": edges.filter(pa.compute.and_(*inside))}
    graph = graph_of({"clients": clients, "label": "fraud"})
    assert (graph.client_names, graph.num_nodes) == (("bank0", "bank1"), 40)
    clients["bank1"]["nodes"] = clients["bank1"]["nodes"].drop_columns("age")
    with pytest.raises(InputError, match="the DataFrame 'nodes' of client 'bank1' has other features"):
        graph_of({"clients": clients, "label": "fraud"})


def test_a_fault_in_a_frame_names_the_frame_the_row_and_the_column() -> None:
    nodes, edges = bank()
    gap = nodes.set_column(2, "balance", pa.array([None, *nodes["balance"].to_pylist()[1:]]))
    with pytest.raises(
        InputError, match=r"^the DataFrame 'nodes', row 1, column 'balance': the value is empty"
    ):
        graph_of((gap, edges, KEYS))
    with pytest.raises(InputError, match="the DataFrame 'nodes' has no column 'id'"):
        graph_of((nodes.drop_columns("id"), edges, KEYS))
    with pytest.raises(InputError, match="the DataFrame 'edges', a ChunkedArray, cannot be read as a table"):
        graph_of((nodes, edges["source"], KEYS))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_pandas_and_polars_are_read(library: str) -> None:
    frames = pytest.importorskip(library)
    nodes, edges = (frames.DataFrame(table.to_pydict()) for table in bank())
    assert graph_of((nodes, edges, KEYS)).hash == graph_of((*bank(), KEYS)).hash


def test_readings_and_distances_may_be_frames() -> None:
    times = [f"2024-01-01 {minute // 12:02d}:{5 * (minute % 12):02d}" for minute in range(48)]
    readings = pa.table({"time": times, "s1": np.arange(48.0), "s2": np.arange(48.0) + 1})
    distances = pa.table({"from": ["s1"], "to": ["s2"], "distance": [2.0]})
    sensors = load_data(data_source({"readings": readings, "distances": distances, "sigma": 1.0}).value)
    assert not isinstance(sensors, Graph)
    assert sensors.num_sensors == 2


# ---- partitions --------------------------------------------------------------------------------------------


def test_an_array_and_a_partition_object_give_the_run_that_their_file_gives(tmp_path: Path) -> None:
    digits = load("digits")
    assert isinstance(digits, Graph)
    client = np.arange(digits.num_nodes) % 4
    made = from_assignment(digits, client)
    made.save(tmp_path / "saved.safetensors")
    given = (client, torch.from_numpy(client), client.tolist(), made, tmp_path / "saved.safetensors")
    found = [graphfed.run("fedavg", partition=each, **{**RUN, "data": "digits"}) for each in given]
    assert {result.hashes["partition"] for result in found} == {made.hash}
    assert len({result.test["loss"] for result in found}) == 1
    inspected = inspect("digits", partition=client).partition
    assert inspected is not None
    assert inspected.hash == made.hash
    compared = graphfed.compare(["fedavg"], data="digits", partition=client, seeds=[0, 1], **RUN)
    assert compared.rows[0]["hashes"]["partition"] == [made.hash] * 2


def test_a_run_on_a_partition_object_is_resumed_from_the_copy_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = load("digits")
    assert isinstance(digits, Graph)
    made = partition(digits, "random", 3, 0)

    def stop(line: object) -> None:
        raise KeyboardInterrupt

    asked = {"data": "digits", "partition": made, "rounds": 2}
    with pytest.raises(KeyboardInterrupt):
        graphfed.run("fedavg", **asked, out=tmp_path / "run", checkpoint_every=0, on_round=stop)
    # The file of the object belongs to the process that made it.
    monkeypatch.setattr("graphfed.runs.reopen.os.path.exists", lambda path: False)
    resumed, whole = resume(tmp_path / "run"), graphfed.run("fedavg", **asked, out=False)
    assert resumed.test == whole.test


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": "digits", "partition": np.arange(5)}, r"shape \(5,\); expected one integer client"),
        ({"data": "roads", "partition": np.arange(5)}, "holds sensors"),
        ({"partition": [0, 1]}, "needs data"),
        ({"data": "digits", "partition": [[0], [1, 2]]}, "cannot be read as an array"),
        ({"data": "digits", "partition": 3}, "partition=3 cannot be used"),
    ],
)
def test_an_array_that_is_no_partition_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        graphfed.run("gru_local" if given.get("data") == "roads" else "fedavg", **given, **RUN)


# ---- data sets of PyG and OGB ------------------------------------------------------------------------------


@pytest.fixture
def amazon(tmp_path: Path) -> Path:
    """A folder with the raw file that PyG's loader of Amazon's photos expects."""
    raw = tmp_path / "data/Amazon/Photo/raw"
    raw.mkdir(parents=True)
    draws, n = np.random.default_rng(0), 80
    x = sp.csr_matrix(draws.random((n, 12)) < 0.3, dtype=np.float32)
    adjacency = sp.csr_matrix(draws.random((n, n)) < 0.05, dtype=np.float32)
    parts = {
        f"{name}_{part}": getattr(matrix, part)
        for name, matrix in (("attr", x), ("adj", adjacency))
        for part in ("data", "indices", "indptr", "shape")
    }
    np.savez(raw / "amazon_electronics_photo.npz", labels=np.arange(n) % 4, **parts)
    return tmp_path / "data"


def test_a_name_of_pyg_gives_the_graph_of_pyg_s_own_loader_and_its_run_is_reopened(
    amazon: Path, tmp_path: Path
) -> None:
    from torch_geometric.datasets import Amazon

    graph = load_library_set(library_set("pyg:Amazon/Photo"), amazon)
    assert graph.name == "Amazon-Photo"
    assert graph.hash == from_pyg(Amazon(str(amazon / "Amazon"), "Photo")[0]).hash
    result = graphfed.run(
        "fedavg", data="pyg:Amazon/Photo", data_dir=amazon, clients=2, rounds=1, out=tmp_path / "run"
    )
    assert result.hashes["data"] == graph.hash
    again = graphfed.predict(tmp_path / "run")
    assert again.equals(result.predictions)


def test_the_run_of_a_name_of_pyg_downloads_nothing_when_it_is_opened_again(
    amazon: Path, tmp_path: Path
) -> None:
    asked = {"data": "pyg:Amazon/Photo", "data_dir": amazon, "clients": 2, "rounds": 1}
    graphfed.run("fedavg", **asked, out=tmp_path / "run")
    for file in (amazon / "Amazon/Photo").rglob("*.*"):
        file.unlink()
    with pytest.raises(InputError, match="nothing is downloaded for a run that is opened again"):
        graphfed.predict(tmp_path / "run")


def test_a_processed_file_of_pyg_that_would_run_code_is_refused(amazon: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (amazon / "ran",))

    load_library_set(library_set("pyg:Amazon/Photo"), amazon)
    torch.save(Hostile(), amazon / "Amazon/Photo/processed/data.pt")
    with (
        pytest.warns(UserWarning, match="Weights only load failed"),
        pytest.raises(InputError, match="could not be loaded"),
    ):
        load_library_set(library_set("pyg:Amazon/Photo"), amazon)
    assert not (amazon / "ran").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pyg:Planetoid/Cora", "are pickles, .* use the data set cora, citeseer or pubmed"),
        ("pyg:Amazn/Photo", "did you mean 'Amazon'"),
        ("pyg:Amazon", "name one of its sets, as in pyg:Amazon/NAME"),
        ("pyg:Actor/x", "use pyg:Actor"),
        ("ogb:ogbl-ddi", "no data set for nodes"),
    ],
)
def test_a_name_that_a_library_does_not_have_is_refused_before_anything_is_loaded(
    name: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        data_source(name)


def test_every_listed_class_is_one_of_pyg_and_takes_a_name_as_listed() -> None:
    import inspect as python

    import torch_geometric.datasets as pyg

    for kind, takes_name in PYG.items():
        assert ("name" in python.signature(getattr(pyg, kind)).parameters) == takes_name, kind


def test_ogb_that_is_not_installed_is_named_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ogb.nodeproppred", None)
    with pytest.raises(InputError, match="type: pip install ogb"):
        graphfed.run("fedavg", data="ogb:ogbn-arxiv", **RUN)


@pytest.mark.filterwarnings("ignore")  # of OGB
def test_a_set_of_ogb_has_the_split_of_ogb(tmp_path: Path) -> None:
    pytest.importorskip("ogb")
    import gzip

    folder = tmp_path / "ogb/ogbn_arxiv"
    files = {
        "RELEASE_v1.txt": "", "raw/num-node-list.csv.gz": "6", "raw/num-edge-list.csv.gz": "2",
        "raw/edge.csv.gz": "0,1\n2,3\n", "raw/node-feat.csv.gz": "1,2\n" * 6,
        "raw/node_year.csv.gz": "1\n" * 6,
        "raw/node-label.csv.gz": "0\n1\n" * 3, "split/time/train.csv.gz": "0\n1\n2\n3\n",
        "split/time/valid.csv.gz": "4\n", "split/time/test.csv.gz": "5\n",
    }  # fmt: skip
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else b"")
    graph = load_library_set(library_set("ogb:ogbn-arxiv"), tmp_path)
    assert graph.split is not None
    assert [int(getattr(graph.split, part).sum()) for part in ("train", "val", "test")] == [4, 1, 1]
    assert graph.num_edges == 2

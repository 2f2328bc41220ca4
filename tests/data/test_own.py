"""The user's own files become the graph they describe, whatever their format."""

import gzip
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from graphfed.data.graphs.graph import Graph
from graphfed.data.user_files import table_files
from graphfed.data.user_files.description import YamlModel
from graphfed.data.user_files.graph_description import Description, describe, describe_file
from graphfed.data.user_files.graph_files import from_networkx, load_description, read_graph_file
from graphfed.data.user_files.sensor_description import SensorDescription
from graphfed.errors import InputError
from graphfed.validation import keys_of

NODES = """id,client,age,balance,label,split
a,north,1.5,-2,yes,train
b,south,2,3e2,no,val
007,north,0,0,,
7,south,4,1,no,test
"""
EDGES = """source,target
a,b
b,a
007,7
a,a
"""


def load(folder: Path, **more: Any) -> Graph:
    return load_description(describe({"nodes": "nodes.csv", "edges": "edges.csv", **more}, folder, "it"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text(EDGES)
    return tmp_path


def test_a_table_of_nodes_and_one_of_edges_are_a_graph(folder: Path) -> None:
    graph = load(folder)
    assert graph.name == "nodes"
    assert graph.ids.to_pylist() == ["a", "b", "007", "7"]
    np.testing.assert_array_equal(graph.x, np.array([[1.5, -2], [2, 300], [0, 0], [4, 1]], dtype=np.float32))
    assert graph.feature_names == ("age", "balance")
    assert graph.edges.tolist() == [[0, 2], [1, 3]]
    assert graph.class_names == ("no", "yes")
    assert graph.y.tolist() == [1, 0, -1, 0]
    assert graph.clients is not None
    assert (graph.client_names, graph.clients.tolist()) == (("north", "south"), [0, 1, 0, 1])
    assert graph.split is not None
    assert [np.flatnonzero(m).tolist() for m in (graph.split.train, graph.split.val, graph.split.test)] == [
        [0], [1], [3],
    ]  # fmt: skip


def test_columns_are_taken_by_the_names_in_the_description(folder: Path) -> None:
    (folder / "d.yaml").write_text(
        "nodes: nodes.csv\nedges: edges.csv\nlabel: client\nfeatures: ['b*', age]\nname: custom\nsource: "
        "target\n"
        "target: source\n"
    )
    graph = load_description(describe_file(folder / "d.yaml")[0])
    assert graph.name == "custom"
    assert graph.feature_names == ("balance", "age")
    assert graph.class_names == ("north", "south")


def test_the_same_content_in_every_format_is_the_same_graph(folder: Path) -> None:
    graph = load(folder)
    for name in ("nodes", "edges"):
        table = pa_csv.read_csv(folder / f"{name}.csv", convert_options=pa_csv.ConvertOptions(
            column_types={c: pa.string() for c in ("id", "source", "target")}))  # fmt: skip
        pq.write_table(table, folder / f"{name}.parquet")
        text = (folder / f"{name}.csv").read_text()
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
        (folder / f"{name}.tsv").write_text("\ufeff" + text.replace(",", "\t").replace("\n", "\r\n"))
        (folder / f"{name}.txt").write_text(text.replace(",", " ; ").replace("\n", "\n\n"))
    for ending in ("parquet", "csv.gz", "tsv", "txt"):
        other = load(folder, nodes=f"nodes.{ending}", edges=f"edges.{ending}")
        assert other.hash == graph.hash, ending
        assert other.ids.equals(graph.ids), ending
        assert (other.client_names, other.class_names) == (graph.client_names, graph.class_names)


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_arrows_threads_get_no_python_object(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Neither a file nor a handler of rows: a thread that lets one go while the process ends brings it down
    (`terminate called without an active exception`, in 6 of 360 processes under load)."""
    for name in ("nodes", "edges"):
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress((folder / f"{name}.csv").read_bytes()))
    given, really = [], pa_csv.open_csv

    def open_csv(file: object, *, parse_options: pa_csv.ParseOptions, **options: object) -> object:
        assert parse_options.invalid_row_handler is None
        given.append(file)
        return really(file, parse_options=parse_options, **options)

    monkeypatch.setattr(pa_csv, "open_csv", open_csv)
    load(folder, nodes=f"nodes.{ending}", edges=f"edges.{ending}")
    assert {type(file) for file in given} == {pa.CompressedInputStream if ending == "csv.gz" else pa.OSFile}


@pytest.mark.parametrize("left", [0.2, 0.9, 0.999])
def test_a_compressed_file_that_is_cut_off_is_refused(folder: Path, left: float) -> None:
    rows = "".join(f"v{i},north,{i * i % 977},1,no,\n" for i in range(2000))
    packed = gzip.compress((NODES + rows).encode())
    (folder / "nodes.csv.gz").write_bytes(packed[: int(left * len(packed))])
    with pytest.raises(InputError, match=r"nodes\.csv\.gz cannot be read"):
        load(folder, nodes="nodes.csv.gz", edges="edges.csv")


def test_a_graph_comes_back_from_pyg_networkx_and_graphml(folder: Path) -> None:
    graph = load(folder)
    assert graph.split is not None
    masks = {
        f"{part}_mask": torch.from_numpy(getattr(graph.split, part)) for part in ("train", "val", "test")
    }
    data = Data(
        x=torch.from_numpy(graph.x),
        y=torch.from_numpy(graph.y),
        edge_index=torch.from_numpy(graph.edges),
        **masks,
    )
    torch.save(data, folder / "g.pt")
    assert read_graph_file(folder / "g.pt").hash == graph.hash
    torch.save(data.to_dict(), folder / "d.pt")
    assert read_graph_file(folder / "d.pt").hash == graph.hash
    network = nx.Graph()
    assert graph.clients is not None
    for i, name in enumerate(graph.ids.to_pylist()):
        label = "" if graph.y[i] < 0 else graph.class_names[graph.y[i]]
        client = graph.client_names[graph.clients[i]]
        network.add_node(
            name, age=float(graph.x[i, 0]), balance=float(graph.x[i, 1]), label=label, client=client
        )
    ids = graph.ids.to_pylist()
    network.add_edges_from((ids[u], ids[v]) for u, v in graph.edges.T)
    assert from_networkx(network).hash == graph.hash
    nx.write_graphml(network, folder / "g.graphml")
    read = read_graph_file(folder / "g.graphml")
    assert read.hash == graph.hash
    assert (read.client_names, read.feature_names) == (graph.client_names, graph.feature_names)


def test_ids_that_are_unique_within_a_client_only_are_named_with_the_client(folder: Path) -> None:
    (folder / "nodes.csv").write_text("id,client,f\n1,x,0\n1,y,1\n2,x,2\n")
    (folder / "edges.csv").write_text("source,sx,target,tx\n1,x,1,y\n2,x,1,x\n")
    with pytest.raises(InputError, match=r"line 3, column 'id': the id '1' is also in line 2"):
        load(folder)
    graph = load(folder, source_client="sx", target_client="tx")
    assert graph.edges.tolist() == [[0, 0], [1, 2]]


@pytest.mark.parametrize("classes", [["yes", "maybe", "no"], ["no", "yes"]])
def test_named_classes_are_numbered_in_their_order_whether_they_occur_or_not(
    folder: Path, classes: list[str]
) -> None:
    graph = load(folder, classes=classes)
    assert (graph.class_names, graph.num_classes) == (tuple(classes), len(classes))
    assert graph.y.tolist() == [classes.index("yes"), classes.index("no"), -1, classes.index("no")]
    assert load(folder, classes=None).class_names == ("no", "yes")
    alone = load(folder, classes=classes, label=None, features=["age"])
    assert (alone.class_names, alone.y.tolist()) == (tuple(classes), [-1] * 4), "named, though none is known"
    again = describe(
        describe({"nodes": "nodes.csv", "edges": "edges.csv", "classes": classes}, folder, "it").to_json(),
        folder, "it",
    )  # fmt: skip
    assert again.classes == tuple(classes)
    assert load_description(again).hash == graph.hash


AMOUNTS = "source,target,amount\na,b,2\nb,a,0.5\n007,7,1\nb,b,9\n7,b,4\n"


@pytest.mark.parametrize(
    ("repeated", "expected"),
    [(None, [2.5, 4, 1]), ("sum", [2.5, 4, 1]), ("mean", [1.25, 4, 1]), ("max", [2, 4, 1])],
)
def test_rows_of_the_same_two_nodes_are_one_edge_and_their_weights_add_up(
    folder: Path, repeated: str | None, expected: list[float]
) -> None:
    (folder / "edges.csv").write_text(AMOUNTS)
    assert load(folder).edge_weight is None, "the column is not called weight"
    graph = load(folder, weight="amount", **({} if repeated is None else {"repeated": repeated}))
    assert graph.edges.T.tolist() == [[0, 1], [1, 3], [2, 3]]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == expected


def test_a_column_called_weight_is_the_weight_unless_its_key_is_left_empty(folder: Path) -> None:
    (folder / "edges.csv").write_text(AMOUNTS.replace("amount", "weight"))
    assert load(folder).edge_weight is not None
    for description in ("weight:", "weight: null", "weight: ~"):
        (folder / "d.yaml").write_text(f"nodes: nodes.csv\nedges: edges.csv\n{description}\nclient:\n")
        left_out, _ = describe_file(folder / "d.yaml")
        again = describe(left_out.to_json(), folder, "it")
        for graph in (load_description(left_out), load_description(again)):
            assert graph.edge_weight is None
            assert graph.clients is None
            assert graph.feature_names == ("age", "balance"), "not used is no feature either"


def test_a_networkx_edge_weighs_one_unless_it_says_otherwise() -> None:
    network = nx.Graph()
    network.add_nodes_from("abc", f=1.0)
    network.add_edge("a", "b", weight=2.5)
    network.add_edge("b", "c")
    graph = from_networkx(network)
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [2.5, 1]
    arrows = nx.MultiDiGraph(network)
    arrows.add_edge("a", "b", weight=4.0)
    both = from_networkx(arrows).edge_weight
    assert both is not None
    assert both.tolist() == [3, 1], "2.5, 2.5 and 4 are one edge: the mean"
    network.edges["b", "c"]["weight"] = "heavy"
    with pytest.raises(InputError, match="edge 'b' to 'c': weight is 'heavy', not a number"):
        from_networkx(network)


def test_text_stays_text_and_numbers_are_ordered_by_value(folder: Path) -> None:
    (folder / "nodes.csv").write_text("id,f,label\n1,0,10\n01,1,9\n1.5,2,9.0\n")
    (folder / "edges.csv").write_text("source,target\n1.0,01\n01,1.5\n")
    graph = load(folder)
    assert graph.num_edges == 2
    assert graph.class_names == ("9", "10")


def test_whole_numbers_in_parquet_are_the_ids_they_look_like(folder: Path) -> None:
    """Also where a missing value has made a column of whole numbers floating."""
    pq.write_table(
        pa.table({"id": [1, 2, 3], "f": [True, False, True], "label": pa.array([1.0, None, 0.0])}),
        folder / "n.parquet",
    )
    (folder / "edges.csv").write_text("source,target\n1,2\n")
    graph = load(folder, nodes="n.parquet")
    assert graph.ids.to_pylist() == ["1", "2", "3"]
    assert (graph.class_names, graph.y.tolist()) == (("0", "1"), [1, -1, 0])
    assert graph.x is not None
    assert graph.x[:, 0].tolist() == [1, 0, 1]


@settings(max_examples=40)
@given(data=st.data())
def test_a_table_read_in_small_blocks_is_the_table_read_at_once(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    n = data.draw(st.integers(1, 40))
    ids = data.draw(
        st.lists(
            st.text("ab0_ é", min_size=1, max_size=6).map(str.strip).filter(bool),
            min_size=n,
            max_size=n,
            unique=True,
        )
    )
    ends = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60))
    values = data.draw(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=n, max_size=n)
    )
    pq.write_table(pa.table({"id": ids, "f": values}), folder / "nodes.parquet")
    pq.write_table(
        pa.table({"source": [ids[u] for u, _ in ends], "target": [ids[v] for _, v in ends]}, schema=pa.schema(
            {"source": pa.string(), "target": pa.string()})), folder / "edges.parquet",
    )  # fmt: skip
    for name in ("nodes", "edges"):
        pa_csv.write_csv(pq.read_table(folder / f"{name}.parquet"), folder / f"{name}.csv")
    whole = load(folder)
    np.testing.assert_array_equal(whole.x[:, 0], np.array(values, dtype=np.float32))  # type: ignore[index]
    assert set(map(tuple, whole.edges.T.tolist())) == {(min(e), max(e)) for e in ends if e[0] != e[1]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "_BLOCK_BYTES", 64)
        patch.setattr(table_files, "_BLOCK_VALUES", 6)
        assert load(folder).hash == whole.hash
        assert load(folder, nodes="nodes.parquet", edges="edges.parquet").hash == whole.hash


def test_a_pickle_that_would_run_code_does_not(folder: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (folder / "ran",))

    torch.save({"x": Evil()}, folder / "evil.pt")
    (folder / "plain.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "plain.pt"):
        with pytest.raises(InputError, match="was refused"):
            read_graph_file(folder / name)
    assert not (folder / "ran").exists()


def test_columns_that_are_called_by_numbers_need_no_quotes_in_the_description(folder: Path) -> None:
    (folder / "nodes.csv").write_text("id,2023,2024\na,1,x\nb,2,y\n")
    (folder / "edges.csv").write_text("source,target\na,b\n")
    (folder / "d.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\nfeatures: [2023]\nlabel: 2024\n")
    graph = load_description(describe_file(folder / "d.yaml")[0])
    assert (graph.feature_names, graph.class_names) == (("2023",), ("x", "y"))


@pytest.mark.parametrize("model", [Description, SensorDescription])
def test_every_key_of_a_description_says_what_it_is(model: type[YamlModel]) -> None:
    """The page on data shows these texts."""
    assert [key for key, field in keys_of(model).items() if not field.description] == []


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"f": "old"}, "graph 'custom', node 'b': f is 'old', not a number; give every node a number"),
        ({}, "node 'b': f is None, not a number"),
        ({"f": 10**400}, "node 'b': f is an integer of more than 30 digits, not a number"),
        ({"f": 1e300}, "node 1 has a feature that is not a finite number in float32"),
        ({"f": 2.0, "split": "tset"}, "node 'b': 'tset' is no part of a split; use train, val, test or"),
        ({"f": 2.0, "client": ""}, "node 'b' has no client; give every node a client"),
    ],
)
def test_a_node_of_networkx_that_cannot_be_used_is_named(attributes: dict[str, Any], message: str) -> None:
    network = nx.Graph()
    network.add_node("a", f=1.0, client="x", split="train")
    network.add_node("b", **{"client": "x", "split": "val", **attributes})
    with pytest.raises(InputError, match=message):
        from_networkx(network)

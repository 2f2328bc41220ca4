"""Claims about the data sets by name: what is in them, where they are looked for, what is refused."""

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from graphfed.data.datasets import DATASETS, available, load, search_folders
from graphfed.data.graphs.digits import FILE
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.sensors.series import Sensors
from graphfed.errors import InputError
from graphfed.files import read_tensors

BUILT_IN = [name for name, spec in DATASETS.items() if spec.built_in]

# name: nodes, undirected edges, features, classes, as the description of the real data states them
STATED = {
    "cora": (2708, 5278, 1433, 7),
    "citeseer": (3327, 4552, 3703, 6),
    "facebook": (22470, 170823, 4714, 4),
    "dblp": (17716, 52867, 1639, 4),
    "physics": (34493, 247962, 8415, 5),
    "physics_10k": (10000, 21262, 8415, 5),
}
STATED_STRUCTURE = {"pubmed": (19717, 44324, 3), "lastfm": (7624, 27806, 18)}


@pytest.mark.parametrize("name", STATED)
def test_the_real_graphs_have_the_stated_size(name, real_data):
    graph = load(name, real_data)
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == STATED[name]
    assert sp.issparse(graph.x)
    assert set(np.unique(graph.y)) == set(range(graph.num_classes))


def test_a_sample_has_its_nodes_with_the_edges_among_them_and_is_always_the_same(real_data):
    whole, sample, again = (load(name, real_data) for name in ("physics", "physics_10k", "physics_10k"))
    assert sample.hash == again.hash != whole.hash
    # Rows of the features tell most nodes apart: those that occur once in the whole graph.
    rows = {}
    for node in range(whole.num_nodes):
        rows.setdefault(whole.x[node].indices.tobytes() + whole.x[node].data.tobytes(), []).append(node)
    found = [rows[sample.x[k].indices.tobytes() + sample.x[k].data.tobytes()] for k in range(300)]
    node = {k: nodes[0] for k, nodes in enumerate(found) if len(nodes) == 1}
    assert len(node) > 250
    assert all(sample.y[k] == whole.y[v] for k, v in node.items())
    linked = {frozenset(pair) for pair in whole.edges.T.tolist()}
    linked_in_sample = {frozenset(pair) for pair in sample.edges.T.tolist()}
    for j in node:
        for k in node:
            assert (frozenset((j, k)) in linked_in_sample) == (frozenset((node[j], node[k])) in linked)


def test_reduced_features_are_the_projections_on_the_first_singular_vectors(real_data):
    whole, reduced, again = (load(name, real_data) for name in ("facebook", "facebook_128", "facebook_128"))
    assert reduced.hash == again.hash != whole.hash
    assert np.array_equal(reduced.y, whole.y)
    assert np.array_equal(reduced.edges, whole.edges)
    assert reduced.x.shape == (whole.num_nodes, 128)
    assert np.allclose(np.abs(reduced.x).max(0), 1, rtol=0, atol=1e-6)
    # Projections on singular vectors are the eigenvectors of X X^T, up to their scale.
    x, u = whole.x.astype(np.float64), reduced.x.astype(np.float64)
    u /= np.linalg.norm(u, axis=0)
    assert np.allclose(u.T @ u, np.eye(128), rtol=0, atol=1e-5)
    images = x @ (x.T @ u)
    values = np.linalg.norm(images, axis=0)
    assert np.allclose(images, u * values, rtol=0, atol=1e-4 * values.max())
    assert (np.diff(values) <= 1e-6 * values.max()).all()
    # No direction is left out: what remains of X has no larger one.
    probe = np.random.default_rng(0).standard_normal(x.shape[0])
    for _ in range(30):
        probe -= u @ (u.T @ probe)
        probe = x @ (x.T @ (probe / np.linalg.norm(probe)))
    assert np.linalg.norm(probe) <= values.min() * 1.001


@pytest.mark.parametrize("name", STATED_STRUCTURE)
def test_the_incomplete_graphs_have_the_stated_structure(name, real_data):
    graph = load(name, real_data, structure_only=True)
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == STATED_STRUCTURE[name]
    assert graph.x is None


@pytest.mark.parametrize(("name", "train"), [("cora", 140), ("citeseer", 120), ("pubmed", 60)])
def test_the_public_splits_have_the_stated_size(name, train, real_data):
    split = load(name, real_data, structure_only=True).split
    assert (split.train.sum(), split.val.sum(), split.test.sum()) == (train, 500, 1000)


def test_stated_details_of_the_npz_sets(real_data):
    facebook, dblp, physics = (load(name, real_data) for name in ("facebook", "dblp", "physics"))
    assert facebook.class_names == ("company", "government", "politician", "tvshow")
    assert np.bincount(facebook.y).tolist() == [6495, 6880, 5768, 3327]
    assert facebook.x.nnz == 314583
    assert set(facebook.x.data) == {1.0}
    assert len(np.unique(facebook.edges)) == 22470  # every node has an edge
    assert np.bincount(dblp.y).tolist() == [7920, 5645, 1982, 2169]
    assert dblp.x.nnz == 92192
    assert physics.x.nnz == 1137311
    lastfm = np.bincount(load("lastfm", real_data, structure_only=True).y)
    assert (lastfm.min(), lastfm.max()) == (16, 1572)


@pytest.mark.parametrize(
    ("name", "file"),
    [("pubmed", r"ind\.pubmed\.allx"), ("lastfm", r"lastfm_asia_graph\.npz does not have the features")],
)
def test_asking_for_incomplete_features_names_the_file_that_lacks_them(name, file, real_data, monkeypatch):
    monkeypatch.setattr("graphfed.data.graphs.planetoid._download", lambda *_: False)
    with pytest.raises(InputError, match=f"{file}.*Training needs features"):
        load(name, real_data)


@pytest.mark.parametrize("name", [*STATED, *STATED_STRUCTURE])
def test_the_default_split_of_every_real_graph_can_be_made(name, real_data):
    graph = load(name, real_data, structure_only=True)
    split = make_split(graph, DATASETS[name].default_split, 0)
    assert set(graph.y[split.train]) == set(range(graph.num_classes))


def test_available_agrees_with_what_loads(real_data, monkeypatch):
    monkeypatch.setattr("graphfed.data.graphs.planetoid._download", lambda *_: False)
    rows = {row.name: row for row in available(real_data)}
    assert list(rows) == list(DATASETS)
    for name, row in rows.items():
        if row.ready:
            load(name, real_data)
        else:
            with pytest.raises(InputError):
                load(name, real_data)
    missing = {*STATED_STRUCTURE, "metr_la", "pems_bay"}  # of the last two only parts are there
    assert {name for name, row in rows.items() if not row.ready} == missing
    assert rows["facebook"].place == real_data / "facebook" / "facebook.npz"


class TestNpzFiles:
    def write(self, folder: Path, name: str = "dblp/dblp.npz", **changes) -> Path:
        arrays = {
            "edges": np.array([[0, 1], [1, 0], [2, 1], [2, 2]], dtype=np.int32),
            "labels": np.array([0, 1, 1], dtype=np.uint8),
            "feat_indptr": np.array([0, 2, 2, 3]),
            "feat_indices": np.array([0, 3, 1], dtype=np.int16),
            "num_features": np.array(4),
        } | changes
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
        return path

    def test_the_file_is_read_as_described(self, tmp_path):
        self.write(tmp_path, label_names=np.array(["a", "b"]), feat_values=np.array([0.5, 2, 3]))
        graph = load("dblp", tmp_path)
        assert graph.x.toarray().tolist() == [[0.5, 0, 0, 2], [0, 0, 0, 0], [0, 3, 0, 0]]
        assert graph.edges.T.tolist() == [[0, 1], [1, 2]]
        assert graph.class_names == ("a", "b")

    def test_without_values_every_listed_feature_is_1_and_the_file_may_lie_at_the_top(self, tmp_path):
        self.write(tmp_path, "dblp.npz")
        assert load("dblp", tmp_path).x.toarray().tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]

    def test_the_data_folder_comes_before_graphfed_data(self, tmp_path, monkeypatch):
        self.write(tmp_path / "first")
        self.write(tmp_path / "second", labels=np.array([1, 0, 0]))
        monkeypatch.setenv("GRAPHFED_DATA", str(tmp_path / "second"))
        assert load("dblp", tmp_path / "first").y.tolist() == [0, 1, 1]
        assert load("dblp").y.tolist() == [1, 0, 0]

    def test_a_missing_file_names_every_place_and_the_source(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GRAPHFED_DATA", str(tmp_path / "env"))
        with pytest.raises(InputError) as caught:
            load("dblp", tmp_path)
        for folder in search_folders(tmp_path):
            assert str(folder / "dblp" / "dblp.npz") in str(caught.value)
        assert "EdisonLeeeee/GraphData" in str(caught.value)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"labels": None}, "array 'labels' cannot be read"),
            ({"labels": np.array([0, {}, 1], dtype=object)}, "array 'labels' cannot be read"),
            ({"feat_indptr": None}, "does not have the features of its 3 nodes"),
            ({"feat_indices": np.array([0, 9, 1])}, r"features are damaged \(column 9 is outside 0\.\.3"),
            ({"feat_indices": np.array([0, -1, 1])}, "column -1 is outside"),
            # 2^32 would become 0, and 1.9 would become 1.
            ({"feat_indices": np.array([0, 2**32, 1])}, "column 4294967296 is outside"),
            ({"feat_indices": np.array([0, 2**64 - 1, 1], dtype=np.uint64)}, "column 1844674407370955161"),
            ({"feat_indices": np.array([0, 1.9, 1])}, "indices has dtype float64"),
            ({"feat_indptr": np.array([0, 2.0, 2.0, 3.7])}, "indptr has dtype float64"),
            ({"feat_indptr": np.array([[0, 2, 2, 3]])}, r"indptr has dtype int64 and shape \(1, 4\)"),
            ({"feat_indptr": np.array(3)}, "indptr has dtype int64"),
            ({"feat_indptr": np.array([0, 3, 2, 3])}, "indptr does not rise"),
            ({"feat_indptr": np.array([0, 2, 2, 2])}, "indptr does not rise"),
            ({"feat_values": np.array([1.0, 2.0])}, "2 values for 3 indices"),
            ({"feat_values": np.array(["a", "b", "c"])}, "data has dtype <U1"),
            ({"feat_values": np.array([1.0, np.nan, 2.0])}, "value 1 is not a finite"),
            ({"feat_values": np.array([1.0, 1e300, 2.0])}, "value 1 is not a finite"),
            ({"feat_values": np.array([1, 2, 3], dtype=object)}, "array 'feat_values' cannot be read"),
            ({"num_features": np.array([4, 4])}, "array 'num_features' has dtype int64 and shape"),
            ({"num_features": np.array(4.5)}, "array 'num_features' has dtype float64"),
            ({"num_features": np.array(-4)}, "array 'num_features'.* at most 10000000"),
            ({"num_features": np.array(2**40)}, "array 'num_features'.* at most 10000000"),
            ({"label_names": np.array("a")}, r"array 'label_names' has dtype <U1 and shape \(\)"),
            ({"label_names": np.array(["a"] * 9)}, "at most one for each of the 3 nodes"),
            ({"label_names": np.array(["a"])}, "class 1, but there are 1 classes"),
            ({"labels": np.array(1)}, r"array 'labels' has dtype int64 and shape \(\)"),
            ({"labels": np.array([0.0, 1.0, 1.0])}, "array 'labels' has dtype float64"),
            ({"labels": np.array([0, 1, 10**12])}, "node 2 has class 1000000000000"),
            ({"edges": np.array([0, 1])}, "array 'edges' has dtype int64 and shape"),
            ({"edges": np.array([[0, 1, 2], [1, 2, 0]])}, r"shape \(2, 3\); expected integers \[m, 2\]"),
            ({"edges": np.array([[0.0, 1.0]])}, "array 'edges' has dtype float64"),
            ({"edges": np.array([[0, 2**64 - 1]], dtype=np.uint64)}, "there are 3 nodes"),
            ({"edges": np.array([[0, 5]])}, "there are 3 nodes"),
        ],
    )
    def test_a_damaged_file_is_refused(self, tmp_path, changes, message):
        path = self.write(tmp_path, **changes)
        with pytest.raises(InputError, match=message) as caught:
            load("dblp", tmp_path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1

    def test_a_single_array_named_npz_is_refused(self, tmp_path):
        with (tmp_path / "dblp.npz").open("wb") as file:
            np.save(file, np.arange(5))
        with pytest.raises(InputError, match=r"dblp\.npz cannot be read"):
            load("dblp", tmp_path)

    def test_an_archive_cut_off_anywhere_is_refused(self, tmp_path):
        path = self.write(tmp_path)
        whole = path.read_bytes()
        for length in range(0, len(whole), 50):
            path.write_bytes(whole[:length])
            with pytest.raises(InputError, match=r"dblp\.npz.* cannot be read"):
                load("dblp", tmp_path)

    def test_random_damage_gives_a_graph_or_one_line_that_names_the_file(self, tmp_path):
        rng = np.random.default_rng(0)
        path = self.write(tmp_path, label_names=np.array(["a", "b"]))
        whole = path.read_bytes()
        refusals = []
        for _ in range(300):
            content = bytearray(whole)
            content[rng.integers(len(content))] = rng.integers(256)
            path.write_bytes(content)
            try:
                load("dblp", tmp_path)
            except InputError as error:
                refusals.append(str(error))
        assert len(refusals) > 50
        assert all(str(path) in text and len(text.splitlines()) == 1 for text in refusals)

    def test_arrays_that_unpack_to_more_than_the_limit_are_refused_before_they_are_read(
        self, tmp_path, monkeypatch
    ):
        path = self.write(tmp_path)
        np.savez_compressed(path, edges=np.zeros((10_000, 2), dtype=np.int64), labels=np.zeros(3, dtype=int))
        assert path.stat().st_size < 2000
        monkeypatch.setattr("graphfed.data.npz_files.MAX_BYTES", 100_000)
        with pytest.raises(InputError, match=r"dblp\.npz cannot be read \(its arrays have 16\d+ bytes"):
            load("dblp", tmp_path, structure_only=True)

    def test_an_array_with_an_overlong_header_is_refused_in_one_line(self, tmp_path):
        path = self.write(tmp_path)
        header = b"{" + b" " * 20_000 + b"}"
        array = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("labels.npy", array)
        with pytest.raises(InputError, match="array 'labels' cannot be read") as caught:
            load("dblp", tmp_path)
        assert len(str(caught.value).splitlines()) == 1

    def test_available_reports_a_file_that_cannot_be_read(self, tmp_path):
        (tmp_path / "dblp.npz").write_bytes(b"not a zip archive")
        row = next(row for row in available(tmp_path) if row.name == "dblp")
        assert (row.place, row.missing) == (tmp_path / "dblp.npz", ("a readable dblp.npz",))
        with pytest.raises(InputError, match=r"dblp\.npz cannot be read"):
            load("dblp", tmp_path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_sets_load_without_files_and_the_same_each_time(name, monkeypatch):
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    first = load(name)
    assert isinstance(first, Sensors if DATASETS[name].task == "forecasting" else Graph)
    assert first.hash == load(name).hash


@pytest.mark.parametrize("name", [n for n in BUILT_IN if DATASETS[n].task == "classification"])
def test_built_in_graphs_can_leave_their_features_out_and_have_a_default_split(name):
    graph = load(name, structure_only=True)
    assert graph.x is None
    assert (graph.edges == load(name).edges).all()
    assert make_split(graph, DATASETS[name].default_split, 0).test.sum() == 1000


def test_the_shipped_digits_are_what_the_script_makes():
    script = Path(__file__).parents[2] / "scripts" / "make_digits.py"
    spec = importlib.util.spec_from_file_location("make_digits", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shipped, _ = read_tensors(FILE)
    made = module.make_digits()
    assert shipped.keys() == made.keys()
    for key, array in made.items():
        assert array.dtype == shipped[key].dtype
        assert (array == shipped[key]).all()


def test_digits_join_each_image_to_its_five_nearest():
    graph = load("digits")
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (1797, 64, 10)
    assert (graph.x.min(), graph.x.max()) == (0.0, 1.0)
    assert np.bincount(graph.edges.ravel()).min() >= 5
    difference = graph.x[0] - graph.x
    nearest = np.argsort((difference**2).sum(1), kind="stable")[1:6]
    u, v = graph.edges
    assert set(nearest) <= set(np.concatenate((v[u == 0], u[v == 0])))
    # Images of one digit look alike, or a graph network could learn nothing here.
    assert (graph.y[u] == graph.y[v]).mean() > 0.9


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("coar", {}, "unknown data set 'coar'; did you mean 'cora'"),
        ("social", {"num_node": 5}, "has no option 'num_node'; did you mean 'num_nodes'"),
        ("digits", {"seed": 1}, "data set 'digits' has no option 'seed'; it has no options"),
        ("cora", {"seed": 1}, "data set 'cora' has no option 'seed'"),
        ("roads", {"structure_only": True}, "for forecasting"),
        ("cora", {"data_dir": "/no/such/folder"}, "the data folder /no/such/folder does not exist"),
    ],
)
def test_bad_requests_name_the_value_and_the_fix(name, arguments, message):
    with pytest.raises(InputError, match=message):
        load(name, **arguments)


def test_every_set_says_where_it_comes_from():
    for name, spec in DATASETS.items():
        assert spec.title, name
        assert spec.source, name
        assert spec.citation or spec.source == "generated", name

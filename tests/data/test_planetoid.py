"""Claims about reading Planetoid's raw files: only the published ones, and as PyG does."""

import copyreg
import hashlib
import http.client
import io
import os
import pickle
import shutil
import struct
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from graphfed.data.cache import cache_folder
from graphfed.data.datasets import available, load
from graphfed.data.graphs import planetoid
from graphfed.data.graphs.planetoid import PARTS
from graphfed.errors import InputError

# A set small enough to check by hand: 505 nodes in allx (2 to train on, 500 for validation, 3 in no part),
# and test nodes 508, 505, 507 in this order; 506 is in no file.
FIRST = 505
TEST_INDEX = (508, 505, 507)


def py2_array(array: np.ndarray) -> bytes:
    """The opcodes with which Python 2 pickled an array of at most two dimensions."""
    code, shape = array.dtype.str[1:].encode(), b"".join(b"J" + struct.pack("<i", n) for n in array.shape)
    raw = array.tobytes()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01(" + shape + b"t"
        b"cnumpy\ndtype\n(U" + bytes([len(code)]) + code + b"K\x00K\x01tR"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )


def py2_csr(matrix: sp.csr_matrix) -> bytes:
    shape = b"(" + b"".join(b"J" + struct.pack("<i", n) for n in matrix.shape) + b"t"
    arrays = (
        b"U" + bytes([len(key)]) + key.encode() + py2_array(getattr(matrix, key))
        for key in ("data", "indices", "indptr")
    )
    return b"cscipy.sparse.csr\ncsr_matrix\n)\x81}(U\x06_shape" + shape + b"".join(arrays) + b"ub"


def raw_files() -> dict[str, bytes]:
    """The eight files of the small set: node i has class i % 3."""
    allx = sp.random(FIRST, 6, density=0.3, random_state=0, format="csr", dtype=np.float32)
    tx = sp.csr_matrix(
        np.array([[0, 0, 0, 0, 0, 8], [0, 0, 0, 0, 0, 5], [0, 0, 0, 0, 0, 7]], dtype=np.float32)
    )
    one_hot = np.eye(3, dtype=np.int32)
    ally, ty = one_hot[np.arange(FIRST) % 3], one_hot[np.array(TEST_INDEX) % 3]
    graph = {i: [] for i in range(509)} | {0: [1, 1, 508], 1: [0], 508: [0, 508], 505: [507], 507: [505]}
    files = {
        "x": py2_csr(allx[:2]),
        "tx": py2_csr(tx),
        "allx": py2_csr(allx),
        "y": py2_array(ally[:2]),
        "ty": py2_array(ty),
        "ally": py2_array(ally),
    }
    done = {key: b"\x80\x02" + content + b"." for key, content in files.items()}
    return done | {
        "graph": pickle.dumps(graph, protocol=2),
        "test.index": "".join(f"{i}\n" for i in TEST_INDEX).encode(),
    }


@pytest.fixture
def data_dir(tmp_path, monkeypatch) -> Path:
    """A data folder with the small set in place of the published Cora, an empty cache, and no network."""
    folder = tmp_path / "data" / "planetoid" / "Cora" / "raw"
    folder.mkdir(parents=True)
    for part, content in raw_files().items():
        (folder / f"ind.cora.{part}").write_bytes(content)
        monkeypatch.setitem(planetoid.SHA256, f"ind.cora.{part}", hashlib.sha256(content).hexdigest())
    alone(tmp_path, monkeypatch)
    return tmp_path / "data"


def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, no GRAPHFED_DATA and no network."""

    def no_network(*_, **__):
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", no_network)


def raw(data_dir: Path, part: str) -> Path:
    return data_dir / "planetoid" / "Cora" / "raw" / f"ind.cora.{part}"


class TestSmallSet:
    def test_the_graph_is_what_the_files_say(self, data_dir):
        graph = load("cora", data_dir)
        assert (graph.num_nodes, graph.num_features, graph.num_classes) == (509, 6, 3)
        assert graph.edges.T.tolist() == [[0, 1], [0, 508], [505, 507]]
        assert graph.y[:505].tolist() == [i % 3 for i in range(505)]
        assert [graph.y[i] for i in TEST_INDEX] == [i % 3 for i in TEST_INDEX]

    def test_test_rows_are_put_where_the_index_says(self, data_dir):
        x = load("cora", data_dir).x.toarray()
        assert [x[i, 5] for i in (505, 507, 508)] == [5, 7, 8]

    def test_a_node_in_no_file_is_isolated_with_no_features_and_class_0(self, data_dir):
        graph = load("cora", data_dir)
        assert graph.x[506].nnz == 0
        assert graph.y[506] == 0
        assert 506 not in graph.edges
        assert not graph.split.test[506]

    def test_the_public_split_is_the_first_rows_then_500_then_the_index(self, data_dir):
        split = load("cora", data_dir).split
        assert np.flatnonzero(split.train).tolist() == [0, 1]
        assert np.flatnonzero(split.val).tolist() == list(range(2, 502))
        assert np.flatnonzero(split.test).tolist() == sorted(TEST_INDEX)

    def test_structure_only_is_the_same_graph_without_features(self, data_dir):
        full, bare = load("cora", data_dir), load("cora", data_dir, structure_only=True)
        assert bare.x is None
        assert bare.num_features == 0
        assert (bare.edges == full.edges).all()
        assert (bare.y == full.y).all()
        assert bare.split.hash == full.split.hash
        for part in ("x", "tx", "allx"):
            raw(data_dir, part).unlink()
        assert load("cora", data_dir, structure_only=True).hash == bare.hash

    @pytest.mark.parametrize("layout", ["Cora/raw", "planetoid/Cora/raw"])
    def test_other_layouts_are_found(self, data_dir, layout):
        expected = load("cora", data_dir).hash
        other = data_dir.parent / "other"
        shutil.copytree(data_dir / "planetoid" / "Cora" / "raw", other / layout)
        assert load("cora", other).hash == expected

    def test_nothing_is_written_under_the_data_folder(self, data_dir):
        before = {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")}
        load("cora", data_dir)
        assert {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")} == before


class CallsOnLoad:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


class TestFilesThatDiffer:
    def test_a_pickle_that_runs_a_command_is_refused_before_it_is_opened(
        self, data_dir, tmp_path, monkeypatch
    ):
        def refuse(*_):
            raise AssertionError("a pickle was opened")

        monkeypatch.setattr(planetoid, "_unpickle", refuse)
        trace = tmp_path / "trace"
        hostile = pickle.dumps(CallsOnLoad(os.system, (f"touch {trace}",)))
        raw(data_dir, "graph").write_bytes(hostile)
        with pytest.raises(InputError) as caught:
            load("cora", data_dir)
        message = str(caught.value)
        for words in (
            f"{raw(data_dir, 'graph')} is not the published file",
            hashlib.sha256(hostile).hexdigest(),
            planetoid.SHA256["ind.cora.graph"],
            "get it from the public repository kimiyoung/planetoid",
        ):
            assert words in message
        assert len(message.splitlines()) == 1
        assert not trace.exists()

    @pytest.mark.parametrize("part", PARTS)
    def test_one_changed_byte_of_any_file_is_refused(self, data_dir, part):
        content = raw(data_dir, part).read_bytes()
        raw(data_dir, part).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(InputError, match=rf"ind\.cora\.{part.replace('.', '[.]')} is not the published"):
            load("cora", data_dir)

    def test_a_named_pipe_is_refused_and_does_not_wait(self, data_dir):
        raw(data_dir, "x").unlink()
        os.mkfifo(raw(data_dir, "x"))
        with pytest.raises(InputError, match=r"ind\.cora\.x"):
            load("cora", data_dir)

    @pytest.mark.parametrize(
        "content",
        [
            b"cbuiltins\neval\n(U\x011tR.",
            b"c__builtin__\neval\n(U\x011tR.",
            b"cnumpy\nload\n(U\x011tR.",
            b"cnumpy\nndarray.tofile\n.",
            b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
            b"ccopyreg\n_reconstructor\n.",
            b"cscipy.sparse.csr\nsys\n.",
            b"(iposix\nsystem\n.",
            *(
                pickle.dumps(CallsOnLoad(os.system, ("false",)), n)
                for n in range(pickle.HIGHEST_PROTOCOL + 1)
            ),
        ],
    )
    def test_the_unpickler_refuses_every_name_that_is_not_listed(self, content):
        with pytest.raises(pickle.UnpicklingError, match="no Planetoid file needs the name"):
            planetoid._unpickle(content)

    def test_the_unpickler_refuses_extension_codes_and_persistent_ids(self):
        copyreg.add_extension("os", "system", 240)
        try:
            with pytest.raises(pickle.UnpicklingError, match=r"os\.system"):
                planetoid._unpickle(b"\x82\xf0.")
        finally:
            copyreg.remove_extension("os", "system", 240)
        with pytest.raises(pickle.UnpicklingError, match="persistent"):
            planetoid._unpickle(b"Pid\n.")


class TestMissingFiles:
    def test_the_message_names_files_folders_and_source(self, tmp_path, monkeypatch):
        alone(tmp_path, monkeypatch)
        with pytest.raises(InputError) as caught:
            load("cora", tmp_path)
        for words in ("ind.cora.", str(tmp_path / "planetoid" / "Cora" / "raw"), str(cache_folder())):
            assert words in str(caught.value)
        assert "kimiyoung/planetoid" in str(caught.value)
        assert not cache_folder().exists()

    def test_available_says_what_is_missing(self, data_dir):
        raw(data_dir, "allx").unlink()
        with pytest.raises(InputError, match=r"is incomplete: ind\.cora\.allx.*Training needs features"):
            load("cora", data_dir)
        row = next(row for row in available(data_dir) if row.name == "cora")
        assert (row.place, row.missing) == (raw(data_dir, "allx").parent, ("ind.cora.allx",))
        assert not row.ready

    def test_a_download_that_breaks_off_counts_as_no_network(self, data_dir, monkeypatch, tmp_path):
        def break_off(*_, **__):
            raise http.client.IncompleteRead(b"")

        monkeypatch.setattr(urllib.request, "urlopen", break_off)
        raw(data_dir, "ty").unlink()
        with pytest.raises(
            InputError, match=r"is incomplete: ind\.cora\.ty not found, and the download failed"
        ):
            load("cora", data_dir)

    def test_a_download_of_something_else_counts_as_failed_and_leaves_no_file(self, data_dir, monkeypatch):
        monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(b"a page to log in"))
        raw(data_dir, "ty").unlink()
        with pytest.raises(InputError, match="the download failed"):
            load("cora", data_dir)
        assert not cache_folder().exists()

    def test_missing_files_are_downloaded_into_the_cache_when_the_network_allows(
        self, data_dir, monkeypatch, tmp_path
    ):
        expected, files = load("cora", data_dir), raw_files()
        asked = []

        def serve(url, timeout):
            asked.append(url)
            return open(raw(data_dir, url.rpartition("/")[2].removeprefix("ind.cora.")), "rb")

        monkeypatch.setattr(urllib.request, "urlopen", serve)
        empty = tmp_path / "empty"
        empty.mkdir()
        assert load("cora", empty).hash == expected.hash
        assert len(asked) == len(files) == len(PARTS)
        assert load("cora", empty).hash == expected.hash
        assert len(asked) == len(files)  # the second load found them
        assert list(empty.iterdir()) == []


@pytest.mark.parametrize("name", ["Cora", "CiteSeer"])
def test_features_classes_edges_and_masks_equal_pygs(name, real_data, pyg, tmp_path):
    folder = tmp_path / name / "raw"
    folder.mkdir(parents=True)
    for file in (real_data / "planetoid" / name / "raw").iterdir():
        shutil.copyfile(file, folder / file.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its pickles name scipy modules that have moved
        reference = pyg.datasets.Planetoid(str(tmp_path), name)[0]
    ours = load(name.lower(), real_data)
    assert (ours.x.toarray() == reference.x.numpy()).all()
    assert (ours.y == reference.y.numpy()).all()
    u, v = reference.edge_index.numpy()
    assert ours.edges.T.tolist() == sorted(reference.edge_index[:, u < v].T.tolist())
    for part in ("train", "val", "test"):
        assert (getattr(ours.split, part) == getattr(reference, f"{part}_mask").numpy()).all()

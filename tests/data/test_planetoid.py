"""Claims about reading Planetoid's raw files: safely, as PyG does, through a cache."""

import http.client
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
from graphfed.data.graphs.planetoid_pickle import read_pickle
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
    """A data folder with the small set under the name Cora, an empty cache, and no network."""
    folder = tmp_path / "data" / "planetoid" / "Cora" / "raw"
    folder.mkdir(parents=True)
    for part, content in raw_files().items():
        (folder / f"ind.cora.{part}").write_bytes(content)
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

    def test_graphfed_data_is_looked_at_too(self, data_dir, monkeypatch, tmp_path):
        monkeypatch.setenv("GRAPHFED_DATA", str(data_dir))
        empty = tmp_path / "empty"
        empty.mkdir()
        assert load("cora", empty).num_nodes == 509


class TestCache:
    def test_the_second_load_reads_the_cache_and_gives_the_same_graph(self, data_dir, monkeypatch):
        first = load("cora", data_dir)

        def refuse(*_):
            raise AssertionError("a pickle was read")

        monkeypatch.setattr(planetoid, "read_pickle", refuse)
        assert load("cora", data_dir).hash == first.hash

    def test_nothing_is_written_under_the_data_folder(self, data_dir):
        before = {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")}
        load("cora", data_dir)
        assert {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")} == before

    @pytest.mark.parametrize("damage", ["cut off", "last byte", "middle byte", "empty", "foreign"])
    def test_a_damaged_cache_is_rebuilt(self, data_dir, damage):
        graph = load("cora", data_dir)
        (path,) = (cache_folder() / "planetoid").glob("*.safetensors")
        whole = path.read_bytes()
        path.write_bytes(
            {
                "cut off": whole[:-100],
                "last byte": whole[:-1] + bytes([whole[-1] ^ 1]),
                "middle byte": whole[: -len(whole) // 2] + b"\x01" + whole[-len(whole) // 2 + 1 :],
                "empty": b"",
                "foreign": b"something else",
            }[damage]
        )
        assert load("cora", data_dir).hash == graph.hash
        assert path.read_bytes() == whole

    def test_changed_files_are_not_served_from_the_cache(self, data_dir):
        before = load("cora", data_dir)
        raw(data_dir, "test.index").write_text("508\n505\n506\n")
        after = load("cora", data_dir)
        assert after.hash != before.hash
        assert after.split.test[506]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_cache_that_cannot_be_written_is_done_without(self, data_dir):
        cache_folder().parent.mkdir()
        cache_folder().parent.chmod(0o500)
        assert load("cora", data_dir).num_nodes == 509

    def test_a_cache_folder_that_is_a_file_is_done_without(self, data_dir):
        cache_folder().parent.write_text("in the way")
        assert load("cora", data_dir).num_nodes == 509


class Malicious:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


class TestHostileFiles:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_a_pickle_that_runs_a_command_is_refused_and_runs_nothing(self, data_dir, protocol, tmp_path):
        trace = tmp_path / "trace"
        raw(data_dir, "graph").write_bytes(pickle.dumps(Malicious(os.system, (f"touch {trace}",)), protocol))
        with pytest.raises(
            InputError, match=r"ind\.cora\.graph is not a Planetoid file.*(names \w+\.system|opcode FRAME)"
        ):
            load("cora", data_dir)
        assert not trace.exists()
        assert not cache_folder().exists()

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
            b"iposix\nsystem\n.",
            b"\x82\x01.",
            b"Pid\n.",
        ],
    )
    def test_every_other_name_is_refused(self, content):
        with pytest.raises(InputError, match="was refused"):
            read_pickle(content, Path("file"))

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"not a pickle",
            b"\x80\x02" + py2_array(np.zeros(3))[:-20],
            # Fewer bytes than the shape asks for; arrays of objects and strings; indices beyond the matrix.
            (b"\x80\x02" + py2_array(np.zeros(3)) + b".").replace(b"J\x03\x00\x00\x00", b"J\xff\xff\xff\x7f"),
            (b"\x80\x02" + py2_array(np.zeros(3)) + b".").replace(b"U\x02f8", b"U\x01O"),
            (b"\x80\x02" + py2_array(np.zeros(3)) + b".").replace(b"U\x02f8", b"U\x02S8"),
            (b"\x80\x02" + py2_csr(sp.csr_matrix(np.eye(3))) + b".").replace(
                b"\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00",
                b"\x00\x00\x00\x00\x01\x00\x00\x00\x09\x00\x00\x00",
            ),
        ],
        ids=["empty", "text", "cut off", "too few bytes", "objects", "strings", "index out of range"],
    )
    def test_a_damaged_pickle_is_refused(self, content):
        with pytest.raises(InputError, match="was refused"):
            read_pickle(content, Path("file"))

    def test_the_helpers_of_these_tests_write_what_the_reader_reads(self):
        array = np.arange(6, dtype=np.int32).reshape(2, 3)
        assert (read_pickle(b"\x80\x02" + py2_array(array) + b".", Path("file")) == array).all()

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b")" + b"\x85" * 200_000 + b".", "holds no array"),
            (b"}(" + b")" + b"\x85" * 200_000 + b"K\x00u.", "keys are neither numbers nor text"),
            # A tuple of 2^60 parts, 60 times a pair of twice the same, which takes years to hash.
            (b"})" + b"q\x00h\x00\x86" * 60 + b"K\x00s.", "keys are neither numbers nor text"),
            (b"(" + py2_array(np.zeros(3)) * 4 + b"t.", "more than 3 arrays"),
            (py2_array(np.zeros(3))[:-2] + b"q\x01b" + b"h\x01b.", "filled in twice|no array or matrix"),
            (b"c__builtin__\nlist\n]\x85R.", "calls something"),
            (b"c__builtin__\nlist\n)\x81.", "makes an object"),
            (b"K\x01K\x02a.", "no list"),
            (b"K\x01K\x02K\x03s.", "no dict"),
            (b"}}b.", "no array or matrix"),
            (b"R.", "takes more values from the stack"),
            (b"h\x05.", "a value that it never stored"),
            (py2_csr(sp.csr_matrix((1, 2**31 - 1), dtype=np.float32)) + b".", "at most 10000000"),
            (py2_csr(sp.csr_matrix(np.full((1, 2), np.nan))) + b".", "value 0 is not a finite float32"),
            (py2_csr(sp.csr_matrix(np.full((1, 2), 1e300))) + b".", "value 0 is not a finite float32"),
            (py2_array(np.zeros((0, 5))).replace(b"\x00" * 4, b"\xff" * 4, 1) + b".", "unusable shape"),
            (py2_array(np.zeros(2)).replace(b"U\x01<", b"U\x01x") + b".", "unknown byte order"),
        ],
    )
    def test_a_pickle_that_python_would_choke_on_is_refused_in_one_line(self, content, why):
        with pytest.raises(InputError, match=rf"^folder/file is not .* refused: .*({why})") as caught:
            read_pickle(b"\x80\x02" + content, Path("folder/file"))
        assert len(str(caught.value).splitlines()) == 1
        assert len(str(caught.value)) < 500

    def test_a_refusal_does_not_repeat_a_long_name_of_the_file(self):
        with pytest.raises(InputError, match="was refused") as caught:
            read_pickle(b"\x80\x02c" + b"x" * 10_000 + b"\n\x1b[31m\n.", Path("file"))
        assert len(str(caught.value)) < 500
        assert str(caught.value).isprintable()

    @pytest.mark.parametrize(
        ("part", "content", "why"),
        [
            ("graph", pickle.dumps({0: [2**70]}, 2), "opcode LONG1"),
            ("graph", pickle.dumps({0: [1, -1]}, 2), "not one of the 509 nodes"),
            ("graph", pickle.dumps({0: [509]}, 2), "not one of the 509 nodes"),
            ("graph", pickle.dumps({0: [True]}, 2), "not one of the 509 nodes"),
            ("graph", pickle.dumps({0: [None]}, 2), "not one of the 509 nodes"),
            ("graph", pickle.dumps({0: [[1]]}, 2), "not one of the 509 nodes"),
            ("graph", pickle.dumps({600: [1]}, 2), "entry of node '600'"),
            ("graph", pickle.dumps({0: None}, 2), "entry of node '0'"),
            # One list of 5000 entries for 509 nodes.
            ("graph", pickle.dumps(dict.fromkeys(range(509), [1] * 5000), 2), "2545000 neighbours"),
            ("graph", b"\x80\x02" + py2_array(np.zeros(3)) + b".", "no dict of neighbours"),
            ("test.index", f"508\n505\n{2**70}\n".encode(), "is not a node number"),
            ("test.index", b"508\n505\n300000000\n", "have numbers in 505..510"),
            ("test.index", b"508\n505\n504\n", "numbers are from 504 to 508"),
            ("test.index", b"508\n505\n-7\n", "'-7' is not a node number"),
            ("test.index", b"508\n505\n505\n", "lists a number twice"),
            ("test.index", b"9" * 100_000, "is not a node number"),
            ("test.index", b"508\n505\n", "2 numbers for the 3 rows"),
            ("ty", b"\x80\x02" + py2_array(np.eye(3, 4)) + b".", "4 classes, and ind.cora.ally has 3"),
            ("ally", b"\x80\x02" + py2_array(np.zeros(505)) + b".", "no table of classes"),
            ("ally", b"\x80\x02" + py2_array(np.zeros((2**30, 0))) + b".", "no table of classes"),
            ("y", b"\x80\x02" + py2_array(np.zeros((6, 3))) + b".", "6 training and 500 validation rows"),
            ("tx", b"\x80\x02" + py2_csr(sp.csr_matrix(np.eye(3))) + b".", r"its matrix has shape \(3, 3\)"),
            (
                "allx",
                b"\x80\x02" + py2_csr(sp.csr_matrix(np.eye(4, 6))) + b".",
                r"its matrix has shape \(4, 6\)",
            ),
            ("allx", b"\x80\x02" + py2_array(np.eye(505, 6)) + b".", "no csr matrix"),
        ],
    )
    def test_the_file_that_does_not_fit_is_named(self, data_dir, part, content, why):
        raw(data_dir, part).write_bytes(content)
        with pytest.raises(InputError, match=rf"ind\.cora\.{part.replace('.', '[.]')} .*{why}") as caught:
            load("cora", data_dir)
        assert len(str(caught.value).splitlines()) == 1
        assert not cache_folder().exists()

    def test_a_file_too_large_to_be_true_is_refused(self, data_dir, monkeypatch):
        monkeypatch.setattr(planetoid, "MAX_BYTES", 1000)
        with pytest.raises(InputError, match=r"ind\.cora\.\w+ is larger than"):
            load("cora", data_dir)

    def test_random_damage_gives_a_graph_or_one_line_that_names_the_place(self, data_dir):
        rng = np.random.default_rng(0)
        whole = raw_files()
        refusals = []
        for _ in range(300):
            part = PARTS[rng.integers(len(PARTS))]
            content = bytearray(whole[part])
            start = int(rng.integers(min(len(content), 400)))  # the opcodes come first, then numbers
            content[start : start + int(rng.integers(3))] = rng.bytes(int(rng.integers(3)))
            raw(data_dir, part).write_bytes(content)
            try:
                load("cora", data_dir)
            except InputError as error:
                refusals.append(str(error))
            raw(data_dir, part).write_bytes(whole[part])
        assert len(refusals) > 50
        folder = str(raw(data_dir, "x").parent)
        assert all(folder in text and len(text.splitlines()) == 1 for text in refusals)

    @pytest.mark.parametrize(
        ("part", "content"),
        [
            ("test.index", b"508\n505\n"),
            ("test.index", b"508\n505\nx\n"),
            ("test.index", b"1\n2\n3\n"),
            ("test.index", b""),
            ("graph", pickle.dumps([1, 2], 2)),
            ("graph", pickle.dumps({0: [70000]}, 2)),
            ("ally", pickle.dumps("text", 2)),
            ("tx", pickle.dumps(None, 2)),
        ],
    )
    def test_files_that_do_not_fit_together_are_refused(self, data_dir, part, content):
        raw(data_dir, part).write_bytes(content)
        with pytest.raises(InputError):
            load("cora", data_dir)


class TestMissingFiles:
    def test_the_message_names_files_folders_and_source(self, tmp_path, monkeypatch):
        alone(tmp_path, monkeypatch)
        with pytest.raises(InputError) as caught:
            load("cora", tmp_path)
        for words in (
            "ind.cora.",
            str(tmp_path / "planetoid" / "Cora" / "raw"),
            str(cache_folder()),
            "GRAPHFED_DATA",
        ):
            assert words in str(caught.value)
        assert "kimiyoung/planetoid" in str(caught.value)
        assert not cache_folder().exists()

    def test_one_missing_file_is_named(self, data_dir):
        raw(data_dir, "ty").unlink()
        with pytest.raises(
            InputError, match=r"is incomplete: ind\.cora\.ty not found, and the download failed"
        ):
            load("cora", data_dir)

    def test_missing_features_point_to_structure_only(self, data_dir):
        raw(data_dir, "allx").unlink()
        with pytest.raises(InputError, match=r"is incomplete: ind\.cora\.allx.*Training needs features"):
            load("cora", data_dir)

    def test_available_says_what_is_missing(self, data_dir):
        raw(data_dir, "allx").unlink()
        row = next(row for row in available(data_dir) if row.name == "cora")
        assert (row.place, row.missing, row.ready) == (
            raw(data_dir, "allx").parent,
            ("ind.cora.allx",),
            False,
        )

    def test_a_download_that_breaks_off_counts_as_no_network(self, data_dir, monkeypatch, tmp_path):
        def break_off(*_, **__):
            raise http.client.IncompleteRead(b"")

        monkeypatch.setattr(urllib.request, "urlopen", break_off)
        raw(data_dir, "ty").unlink()
        with pytest.raises(
            InputError, match=r"is incomplete: ind\.cora\.ty not found, and the download failed"
        ):
            load("cora", data_dir)

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

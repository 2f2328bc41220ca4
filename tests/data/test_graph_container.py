"""Claims about Graph, Split and their hashes."""

import dataclasses
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphfed.data.graphs.graph import Graph, Split, make_graph, sorted_unique
from graphfed.data.graphs.splits import make_split
from graphfed.data.user_files.pyg_files import from_pyg
from graphfed.errors import InputError


def small(**changes) -> Graph:
    given_ = {"x": np.eye(4), "y": [0, 1, 0, -1], "edges": [[0, 1, 2], [1, 2, 3]]} | changes
    return make_graph("small", **given_)


def test_edges_become_undirected_unique_sorted_and_loop_free():
    graph = small(edges=[[3, 1, 0, 2, 2, 1], [2, 0, 1, 2, 3, 0]])
    assert graph.edges.tolist() == [[0, 2], [1, 3]]
    assert graph.edges.dtype == np.int64


@settings(max_examples=50)
@given(hnp.arrays(np.int64, st.tuples(st.just(2), st.integers(0, 30)), elements=st.integers(0, 6)))
def test_cleaning_keeps_exactly_the_set_of_unordered_pairs(edges):
    graph = make_graph("any", None, np.zeros(7, int), edges)
    pairs = {(min(u, v), max(u, v)) for u, v in edges.T.tolist() if u != v}
    assert list(map(tuple, graph.edges.T.tolist())) == sorted(pairs)


EDGE_LISTS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 10**6).map(lambda w: w / 1000)),
    max_size=40,
)


@settings(max_examples=100)
@given(EDGE_LISTS, st.sampled_from(["sum", "mean", "max"]), st.randoms(use_true_random=False))
def test_an_edge_that_is_given_again_has_the_sum_mean_or_largest_of_its_weights(listed, how, random):
    """By a dictionary; and the order in which edges are listed, or their ends, changes no bit."""

    def made(rows):
        u, v, w = (np.array(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
        edges = np.array([u, v], dtype=np.int64)
        return make_graph("any", None, np.zeros(7, int), edges, edge_weight=w, repeated=how)

    by_pair = {}
    for u, v, w in listed:
        if u != v:
            by_pair.setdefault((min(u, v), max(u, v)), []).append(w)
    value = {"sum": sum, "mean": np.mean, "max": max}[how]
    expected = {pair: value(weights) for pair, weights in by_pair.items()}
    graph = made(listed)
    assert list(map(tuple, graph.edges.T.tolist())) == sorted(expected)
    if graph.edge_weight is None:
        assert all(np.float32(w) == 1 for w in expected.values())
    else:
        assert graph.edge_weight.tolist() == pytest.approx([expected[p] for p in sorted(expected)], rel=1e-6)
    mixed = [(v, u, w) if random.random() < 0.5 else (u, v, w) for u, v, w in listed]
    random.shuffle(mixed)
    assert made(mixed).hash == graph.hash


def test_weights_are_content_and_weights_of_one_are_none():
    assert small(edge_weight=[1, 1, 1]).edge_weight is None
    assert small(edge_weight=[1, 1, 1]).hash == small().hash
    heavy = small(edge_weight=[1, 2, 3])
    assert heavy.edge_weight.dtype == np.float32
    assert heavy.hash not in (small().hash, small(edge_weight=[3, 2, 1]).hash)
    assert heavy.weights_between(np.array([3, 1]), np.array([2, 0])).tolist() == [3, 1]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 0, 2], "between nodes 1 and 2 has weight 0; a weight must be a positive finite number"),
        ([1, 2, -3], "between nodes 2 and 3 has weight -3"),
        ([np.nan, 2, 3], "between nodes 0 and 1 has weight nan"),
        ([1, 2, np.inf], "has weight inf"),
        ([1, 2, 1e39], "has weight inf"),
        ([1, 2, 1e-60], "has weight 0"),
        ([1, 2], "expected one number for each of the 3 edges"),
        (["a", "b", "c"], "edge weights have dtype <U1"),
        ([[1, 2, 3]], r"shape \(1, 3\)"),
    ],
)
def test_a_weight_that_is_no_positive_number_is_refused_with_its_edge(weights, message):
    with pytest.raises(InputError, match=message):
        small(edge_weight=weights)
    with pytest.raises(InputError, match="did you mean 'mean'"):
        small(edge_weight=[1, 2, 3], repeated="means")
    with pytest.raises(InputError, match="has weight inf"):  # each can be held, their sum cannot
        small(edges=[[0, 1], [1, 0]], edge_weight=[3e38, 3e38], repeated="sum")


@given(hnp.arrays(np.int64, st.integers(0, 30), elements=st.integers(-5, 5)))
def test_sorted_unique_equals_numpys_unique(keys):
    assert sorted_unique(keys).tolist() == np.unique(keys).tolist()


def test_a_graph_may_have_no_edges_and_no_nodes():
    assert small(edges=np.zeros((2, 0), int)).num_edges == 0
    empty = make_graph("empty", np.zeros((0, 3)), np.zeros(0, int), [])
    assert (empty.num_nodes, empty.num_features, empty.num_classes) == (0, 3, 0)


def test_sparse_features_stay_sparse_and_take_one_form():
    repeated = sp.coo_matrix(([1.0, 1.0, 0.0], ([0, 0, 1], [2, 2, 1])), shape=(4, 5))
    graph = small(x=repeated)
    assert sp.issparse(graph.x)
    assert graph.x.dtype == np.float32
    assert graph.x.nnz == 1
    assert graph.x[0, 2] == 2.0
    assert graph.hash == small(x=sp.csr_matrix(repeated.toarray())).hash


@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_large_numbers_that_float32_would_change_are_kept_and_the_others_rounded(kind):
    x = np.array([[1_600_000_001, 3], [5, 2**24 + 1]]).astype(kind)
    graph = make_graph("times", x, [0, 1], [[0], [1]])
    assert graph.x.dtype == np.float64
    assert (graph.x == x).all()
    assert make_graph("times", graph.x, [0, 1], [[0], [1]]).hash == graph.hash
    for same in (x.clip(max=2**24), np.array([[0.1, 1e30], [2.0**30, -7.7]])):
        stored = make_graph("others", same, [0, 1], [[0], [1]]).x
        assert stored.dtype == (np.float64 if 1e30 in same else np.float32)
    mixed = make_graph("mixed", [[0.1, 2.0**30 + 1]], [0], [[], []]).x
    assert mixed.tolist() == [[float(np.float32(0.1)), 2.0**30 + 1]]


def test_equal_content_has_an_equal_hash_whatever_the_name_and_the_split():
    split = Split("public", *np.eye(3, 4, dtype=bool))
    assert small().hash == small(edges=[[1, 2, 3, 0], [0, 1, 2, 1]]).hash
    assert small().hash == dataclasses.replace(small(), name="other", split=split).hash


@pytest.mark.parametrize(
    "changes",
    [
        {"x": np.eye(4) * 2},
        {"x": None},
        {"x": sp.csr_matrix(np.eye(4))},
        {"y": [0, 1, 1, -1]},
        {"edges": [[0, 1], [1, 2]]},
        {"num_classes": 3},
    ],
)
def test_a_change_of_content_changes_the_hash(changes):
    assert small(**changes).hash != small().hash


def test_the_hash_does_not_depend_on_the_machine():
    # Copied from the program's output: proves only that nothing moved, and saved partitions depend on that.
    assert small().hash == "db2eb42eaf0a3444aed6e3cf90d776fbcde74232095dab0de39e59dcb07b7656"


def test_features_without_a_column_are_refused_and_no_features_are_not():
    with pytest.raises(InputError, match=r"features have shape \(4, 0\), with no column"):
        small(x=np.zeros((4, 0)))
    assert small(x=None).num_features == 0


def test_a_splits_hash_depends_on_its_masks_only():
    masks = np.eye(3, 4, dtype=bool)
    assert Split("a", *masks).hash == Split("b", *masks).hash
    assert Split("a", *masks).hash != Split("a", masks[1], masks[0], masks[2]).hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.eye(3)}, r"features have shape \(3, 3\).* 4 nodes"),
        ({"x": np.where(np.eye(4) == 0, 0, np.nan)}, "node 0 has a feature that is not a finite number"),
        ({"x": sp.csr_matrix(([np.inf], ([2], [1])), shape=(4, 5))}, "node 2 .* not a finite number"),
        ({"x": np.full((4, 1), "a")}, "expected numbers"),
        ({"y": [0.5, 1, 0, 1]}, "one integer per node"),
        ({"y": [[0, 1, 0, 1]]}, "one integer per node"),
        ({"y": [0, -2, 0, 1]}, "node 1 has class -2"),
        ({"y": [0, 7, 0, 1], "num_classes": 2}, "node 1 has class 7.*there are 2 classes"),
        ({"edges": [[0, 1], [1, 4]]}, "edge 1 joins nodes 1 and 4, but there are 4 nodes"),
        ({"edges": [[0, -1], [1, 2]]}, "edge 1 joins nodes -1 and 2"),
        ({"edges": [[0, 1, 2]]}, r"expected integers \[2, m\]"),
        ({"edges": [[0.0, 1.0], [1.0, 2.0]]}, r"expected integers \[2, m\]"),
        ({"class_names": ("a",)}, "class 1.*there are 1 classes"),
        ({"class_names": ("a", "b", "c"), "num_classes": 2}, "3 class names for 2 classes"),
        ({"split": Split("s", *np.zeros((3, 5), dtype=bool))}, "split 's' is for 5 nodes"),
        ({"x": np.full((4, 1), 1e300)}, "node 0 has a feature that is not a finite number in float32"),
        ({"x": sp.csr_matrix(np.full((4, 1), 1e300))}, "node 0 .* not a finite number in float32"),
        ({"x": np.full((4, 1), 1j)}, "features have dtype complex128; expected numbers"),
        ({"x": sp.csr_matrix(np.full((4, 1), 1j))}, "features have dtype complex128; expected numbers"),
        ({"x": sp.csr_matrix(np.eye(3))}, r"features have shape \(3, 3\).* 4 nodes"),
        ({"x": np.zeros((4, 2, 2))}, "expected one row for each"),
        ({"x": [[1, 2], [3], [4], [5]]}, "the features cannot be read as an array"),
        ({"x": torch.eye(4, requires_grad=True)}, "the features cannot be read as an array .*detach"),
        ({"y": [0, [1], 0, 1]}, "the classes cannot be read as an array"),
        ({"y": 3}, "one integer per node"),
        ({"y": np.zeros(4, dtype="m8[s]")}, "one integer per node"),
        ({"y": [0, 10**12, 0, 1]}, "node 1 has class 1000000000000, but the graph has only 4 nodes"),
        ({"y": np.array([0, 1, 2**64 - 1, 1], dtype=np.uint64)}, "node 2 has class 9223372036854775807"),
        ({"num_classes": -1}, "num_classes=-1 must be a whole number"),
        ({"num_classes": 2.5}, "num_classes=2.5 must be a whole number"),
        ({"num_classes": "2"}, "num_classes='2' must be a whole number"),
        ({"edges": [[0, 1], [1, 2], [2, 3]]}, r"expected integers \[2, m\] \(transpose it\)"),
        ({"edges": [[0, 1], [2]]}, "the edges cannot be read as an array"),
        ({"edges": [0, 1]}, r"shape \(2,\); expected integers"),
        ({"edges": sp.csr_matrix(np.eye(4))}, "edges have dtype object"),
        ({"edges": [[True, False], [False, True]]}, "edges have dtype bool"),
        ({"edges": np.array([[0], [2**64 - 1]], dtype=np.uint64)}, "edge 0 joins nodes 0 and 92233720368"),
    ],
)
def test_unusable_input_is_refused_with_the_reason(changes, message):
    with pytest.raises(InputError, match=message):
        small(**changes)


def test_a_named_number_of_classes_may_exceed_the_nodes():
    assert small(num_classes=5000).num_classes == 5000
    assert type(small(num_classes=np.int64(3)).num_classes) is int


def test_a_split_whose_parts_overlap_is_refused():
    masks = np.eye(3, 4, dtype=bool)
    masks[2, 1] = True
    with pytest.raises(InputError, match="node 1 is in two parts"):
        Split("bad", *masks)
    with pytest.raises(InputError, match="the val mask has dtype int64"):
        Split("bad", masks[0], masks[1].astype(int), masks[2])
    with pytest.raises(InputError, match=r"the test mask .* shape \(3,\)"):
        Split("bad", masks[0], masks[1], masks[2, :3])


class TestFromPyG:
    @pytest.fixture(autouse=True)
    def _pyg(self, pyg):
        self.Data = pyg.data.Data

    def data(self, **changes):
        attributes = {
            "x": torch.eye(4),
            "y": torch.tensor([0, 1, 0, 1]),
            "edge_index": torch.tensor([[0, 1, 1, 2, 3, 3], [1, 0, 2, 1, 3, 2]]),
        }
        return self.Data(**(attributes | changes))

    def masks(self):
        return {f"{part}_mask": torch.eye(3, 4).bool()[i] for i, part in enumerate(("train", "val", "test"))}

    def test_a_data_object_becomes_the_same_graph_as_its_arrays(self):
        graph = from_pyg(self.data())
        direct = make_graph("direct", np.eye(4), [0, 1, 0, 1], [[0, 1, 2], [1, 2, 3]])
        assert dataclasses.replace(graph, directed=None).hash == direct.hash
        assert (graph.name, graph.split) == ("custom", None)

    def test_a_column_of_classes_and_sparse_features_are_understood(self):
        dense = from_pyg(self.data())
        assert from_pyg(self.data(y=torch.tensor([[0], [1], [0], [1]]))).hash == dense.hash
        sparse = from_pyg(self.data(x=torch.eye(4).to_sparse_coo()))
        assert (sparse.x.toarray() == dense.x).all()

    def test_masks_become_the_public_split(self):
        graph = from_pyg(self.data(**self.masks()), name="custom")
        assert graph.split.train.tolist() == [True, False, False, False]
        assert graph.split.test.tolist() == [False, False, True, False]
        assert graph.split.name == "public"

    def test_bfloat16_compressed_and_differentiable_features_are_understood(self):
        dense = from_pyg(self.data())
        assert from_pyg(self.data(x=torch.eye(4).bfloat16())).hash == dense.hash
        assert from_pyg(self.data(x=torch.eye(4, requires_grad=True))).hash == dense.hash
        coo = from_pyg(self.data(x=torch.eye(4).to_sparse_coo()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the compressed layouts beta
            compressed = [torch.eye(4).to_sparse_csr(), torch.eye(4).to_sparse_csc()]
        for x in (*compressed, sp.csr_matrix(np.eye(4)), torch.eye(4).bfloat16().to_sparse_coo()):
            assert from_pyg(self.data(x=x)).hash == coo.hash

    def test_repeated_entries_of_sparse_features_add_up(self):
        x = torch.sparse_coo_tensor(
            torch.tensor([[1, 1], [0, 0]]), torch.tensor([1.0, 2.0]), (4, 2), check_invariants=True
        )
        assert from_pyg(self.data(x=x)).x.toarray().tolist() == [[0, 0], [3, 0], [0, 0], [0, 0]]

    def test_masks_of_zeros_and_ones_are_masks(self):
        numbers = {key: mask.to(torch.uint8) for key, mask in self.masks().items()}
        assert from_pyg(self.data(**numbers)).split.hash == from_pyg(self.data(**self.masks())).split.hash

    def test_no_nodes_and_one_node_are_graphs(self):
        both = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        heavy = from_pyg(self.data(edge_index=both, edge_weight=torch.tensor([2.0, 2.0, 0.5, 1.5])))
        assert heavy.edge_weight.tolist() == [2, 1], "both directions are one edge: the mean"
        column = from_pyg(self.data(edge_index=both, edge_weight=torch.tensor([[2.0], [2], [0.5], [1.5]])))
        assert column.hash == heavy.hash
        none = self.Data(x=torch.zeros(0, 3), y=torch.zeros(0).long(), edge_index=torch.zeros(2, 0).long())
        assert (from_pyg(none).num_nodes, from_pyg(none).num_features) == (0, 3)
        one = self.Data(x=torch.ones(1, 3), y=torch.tensor([0]), edge_index=torch.tensor([[0], [0]]))
        assert (from_pyg(one).num_nodes, from_pyg(one).num_edges, from_pyg(one).num_classes) == (1, 0, 1)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"x": torch.full((4, 2), torch.nan).to_sparse_coo()}, "node 0 has a feature that is not"),
            ({"x": torch.zeros(4, 2, dtype=torch.complex64)}, "features have dtype complex64"),
            ({"x": torch.zeros(4, 2, 2).to_sparse_coo()}, "x of the Data object, a Tensor, cannot be read"),
            ({"x": torch.zeros(4, 2, device="meta")}, "x of the Data object, a Tensor, cannot be read"),
            ({"x": [[1, 2], [3], [4], [5]]}, "x of the Data object, a list, cannot be read"),
            ({"y": torch.tensor([0.0, 1.5, 0.0, 1.0])}, "one integer per node"),
            ({"y": torch.eye(4).long().to_sparse_coo()}, "one integer per node"),
            ({"edge_index": torch.eye(4).to_sparse_coo()}, "edges have dtype object"),
            ({"edge_index": None}, "no 'edge_index'"),
        ],
    )
    def test_an_unusable_attribute_is_refused_with_the_reason(self, changes, message):
        with pytest.raises(InputError, match=message):
            from_pyg(self.data(**changes))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"train_mask": torch.tensor([0, 2])}, r"train_mask has dtype int64 and 2 entries; .*4 nodes"),
            ({"train_mask": torch.tensor([0, 1, 2, 3])}, "not a list of nodes"),
            ({"val_mask": torch.tensor([0, torch.nan, 0, 0])}, "val_mask has dtype float32"),
            ({"test_mask": torch.ones(3).bool()}, "test_mask has dtype bool and 3 entries"),
            ({"test_mask": torch.tensor([True, False, False, False])}, "node 0 is in two parts"),
            ({"val_mask": torch.zeros(4, 10).bool()}, r"one column per split.*data.val_mask\[:, 0\]"),
        ],
    )
    def test_masks_that_are_no_split_are_refused_unless_a_split_is_named(self, changes, message):
        graph = from_pyg(self.data(**self.masks() | changes))
        for spec in ("default", "public"):
            with pytest.raises(InputError, match=message):
                make_split(graph, spec, 0)
        assert make_split(graph, "random:0.5,0.25,0.25", 0).train.sum() == 2
        assert "train_mask of the Data object, which is no split" in graph.dropped

    def test_labels_that_are_floats_or_booleans_are_classes_and_no_labels_are_unknown(self):
        whole = from_pyg(self.data()).hash
        assert from_pyg(self.data(y=torch.tensor([0.0, 1.0, 0.0, 1.0]))).hash == whole
        assert from_pyg(self.data(y=torch.tensor([False, True, False, True]))).hash == whole
        assert from_pyg(self.data(y=torch.tensor([0.0, torch.nan, 0.0, 1.0]))).y.tolist() == [0, -1, 0, 1]
        assert from_pyg(self.data(y=None)).y.tolist() == [-1] * 4
        sparse = from_pyg(self.data(x=torch.eye(4).to_sparse_coo(), y=None))
        assert (sparse.num_nodes, sparse.num_classes) == (4, 0)

    @pytest.mark.parametrize(
        "client",
        [
            torch.tensor([7, 3, 3, 7]),
            torch.tensor([7.0, 3.0, 3.0, 7.0]),
            torch.tensor([[7], [3], [3], [7]]),
            ["7", "3", "3 ", "7"],
            [7, 3.0, "3", 7],
            np.array(["7", "3", "3", "7"]),
        ],
    )
    def test_the_attribute_client_states_the_clients(self, client):
        graph = from_pyg(self.data(client=client))
        assert (graph.client_names, graph.clients.tolist()) == (("3", "7"), [1, 0, 0, 1])
        assert not any("client" in phrase for phrase in graph.dropped)

    @pytest.mark.parametrize(
        ("client", "message"),
        [
            (torch.zeros(3), r"shape \(3,\); expected the client of each of the 4 nodes.*del data.client"),
            (torch.zeros(4, 2), r"shape \(4, 2\); expected the client of each of the 4 nodes"),
            (["a", None, "b", "a"], "node 1 of the Data object has no client; give every node a client"),
            (torch.tensor([0, 1, torch.nan, 1]), "node 2 of the Data object has no client"),
            (torch.tensor([0, 1, 2.0**60, 1], dtype=torch.float64), "client of node 2 .*last digits"),
        ],
    )
    def test_clients_that_cannot_be_used_are_refused(self, client, message):
        with pytest.raises(InputError, match=message):
            from_pyg(self.data(client=client))

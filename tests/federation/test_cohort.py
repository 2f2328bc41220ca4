"""A cohort of some clients has the rows of these clients in the cohort of all."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch

from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.graphs.link_splits import make_edge_split, training_graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.data.partitions.tables import from_assignment
from graphfed.errors import InputError
from graphfed.federation.cohort import (
    Cohort,
    Names,
    cohort_arrays,
    load_cohort,
    load_names,
    make_cohort,
    node_names,
    save_cohort,
    with_partition_ids,
    with_unit_features,
)
from graphfed.files import read_tensors, write_tensors
from graphfed.nn.sparse import SparseMatrix

PARTITIONS = {
    "random": {},
    "overlapping": {},
    "edges_uniform": {"overlap": 0.4, "labels": "one"},
    "label_dirichlet": {"beta": 0.5},
}
CLIENTS = 5


def dense(x):
    return x.to_dense() if isinstance(x, SparseMatrix) else x


@pytest.fixture(scope="module", params=["dense", "sparse"])
def graph(request):
    rng = np.random.default_rng(3)
    n = 60
    x = (rng.random((n, 7)) < 0.3).astype(np.float32)
    edges = rng.integers(0, n, (2, 150))
    edges = edges[:, edges[0] != edges[1]]
    return make_graph(
        name="toy", x=sp.csr_matrix(x) if request.param == "sparse" else x, y=np.arange(n) % 3, edges=edges
    )


@pytest.fixture(params=PARTITIONS)
def partitioned(request, graph):
    return partition(graph, request.param, CLIENTS, 0, **PARTITIONS[request.param])


@pytest.fixture
def split(graph):
    return make_split(graph, "random:0.5,0.2,0.3", 0)


@pytest.mark.parametrize("clients", [[0], [1, 3], [0, 2, 4], [4], list(range(CLIENTS))], ids=str)
def test_a_cohort_of_some_clients_holds_their_rows_of_the_whole(graph, split, partitioned, clients):
    whole, some = (
        make_cohort(graph, split, partitioned, range(CLIENTS)),
        make_cohort(graph, split, partitioned, clients),
    )
    assert some.clients == tuple(clients)
    chosen = torch.isin(whole.client, torch.tensor(clients))
    stable = torch.tensor(clients)[some.client]
    assert torch.equal(stable, whole.client[chosen])
    for name in ("id", "y", "owned", "train", "val", "test"):
        assert torch.equal(getattr(some, name), getattr(whole, name)[chosen]), name
    assert torch.equal(dense(some.x), dense(whole.x)[chosen])
    row = torch.full((whole.num_rows,), -1)
    row[chosen] = torch.arange(some.num_rows)
    inside = chosen[whole.edge_index[0]]
    order = edge_set(row[whole.edge_index[:, inside]])
    assert order == edge_set(some.edge_index)
    cross = chosen[whole.cross_row]
    assert torch.equal(row[whole.cross_row[cross]], some.cross_row)
    assert torch.equal(whole.cross_client[cross], some.cross_client)
    assert torch.equal(whole.cross_id[cross], some.cross_id)


def edge_set(edges):
    return sorted(map(tuple, edges.t().tolist()))


def test_rows_edges_and_cross_client_edges_are_those_of_the_partition(graph, split, partitioned):
    """Checked node by node: features, labels, edges inside a client in both directions, cross-client edges by
    id."""
    cohort = make_cohort(graph, split, partitioned, range(CLIENTS))
    keys = list(zip(cohort.client.tolist(), cohort.id.tolist(), strict=True))
    assert keys == sorted(keys)
    node = {
        (s, i): v
        for s, i, v in zip(
            partitioned.held_client.tolist(),
            partitioned.held_id.tolist(),
            partitioned.held_node.tolist(),
            strict=True,
        )
    }
    x = graph.x.toarray() if hasattr(graph.x, "toarray") else graph.x
    held = [node[key] for key in keys]
    assert np.array_equal(dense(cohort.x).numpy(), x[held])
    assert cohort.y.tolist() == [y if own else -1 for y, own in zip(graph.y[held], cohort.owned, strict=True)]
    edges = {
        (s, u, v)
        for s, u, v in zip(partitioned.edge_client, partitioned.edge_u, partitioned.edge_v, strict=True)
    }
    got = {(keys[a][0], keys[a][1], keys[b][1]) for a, b in cohort.edge_index.t().tolist()}
    assert got == edges | {(s, v, u) for s, u, v in edges}
    cross = [
        (*keys[r], c, i)
        for r, c, i in zip(cohort.cross_row, cohort.cross_client, cohort.cross_id, strict=True)
    ]
    expected = zip(
        partitioned.cross_local_client,
        partitioned.cross_id,
        partitioned.cross_remote_client,
        partitioned.cross_remote_id,
        strict=True,
    )
    assert [tuple(map(int, c)) for c in cross] == [tuple(map(int, c)) for c in expected]


def test_weights_go_with_their_edges_inside_and_across(graph, split, partitioned, tmp_path):
    """Edge by edge, by the nodes at both ends; and through the file a client reads."""
    weights = np.arange(1, graph.num_edges + 1, dtype=np.float32)
    heavy = dataclasses.replace(graph, edge_weight=weights)
    weight = {frozenset(edge): w for edge, w in zip(graph.edges.T.tolist(), weights.tolist(), strict=True)}
    node = dict(zip(partitioned.held_id.tolist(), partitioned.held_node.tolist(), strict=True))
    for clients in ([1, 3], range(CLIENTS)):
        made = make_cohort(heavy, split, partitioned, clients)
        save_cohort(made, tmp_path / "cohort.safetensors")
        for cohort in (made, load_cohort(tmp_path / "cohort.safetensors")):
            ids = cohort.id.tolist()
            columns = [[node[ids[row]] for row in edge] for edge in cohort.edge_index.t().tolist()]
            assert cohort.edge_weight.tolist() == [weight[frozenset(edge)] for edge in columns]
            across = zip(cohort.cross_row.tolist(), cohort.cross_id.tolist(), strict=True)
            cross = [weight[frozenset((node[ids[row]], node[other]))] for row, other in across]
            assert cohort.cross_weight.tolist() == cross
            degree = np.zeros(len(ids))
            np.add.at(degree, cohort.edge_index[1].numpy(), cohort.edge_weight.numpy())
            assert cohort.degree().tolist() == degree.tolist()
            np.add.at(degree, cohort.cross_row.numpy(), cohort.cross_weight.numpy())
            assert cohort.degree(with_cross=True).tolist() == degree.tolist()


def test_every_node_is_trained_on_and_scored_at_its_owner_alone(graph, split, partitioned):
    cohort = make_cohort(graph, split, partitioned, range(CLIENTS))
    for mask in (cohort.train, cohort.val, cohort.test):
        assert not (mask & ~cohort.owned).any()
    owned_ids = cohort.id[cohort.owned].tolist()
    assert sorted(owned_ids) == sorted(set(partitioned.held_id.tolist())), "every id has one owner"
    held = {
        (s, i): v
        for s, i, v in zip(partitioned.held_client, partitioned.held_id, partitioned.held_node, strict=True)
    }
    for name in ("train", "val", "test"):
        rows = cohort.rows(name)
        nodes = [held[int(cohort.client[r]), int(cohort.id[r])] for r in rows]
        assert getattr(split, name)[nodes].all()
        if partitioned.name != "overlapping":  # there a copy is a node of its own
            assert (
                sorted(nodes) == np.flatnonzero(getattr(split, name) & np.isin(np.arange(60), nodes)).tolist()
            )
    assert torch.equal(cohort.rows("all"), cohort.owned.nonzero()[:, 0])


def test_a_node_of_several_owners_is_trained_on_and_scored_at_each_of_them(graph, split):
    partitioned = partition(graph, "edges_uniform", CLIENTS, 0, nodes="endpoints")
    cohort = make_cohort(graph, split, partitioned, [0, 2])
    assert cohort.owned.all()
    owners = np.bincount(partitioned.held_id, minlength=60)
    assert cohort.owners.tolist() == owners[cohort.id].tolist()
    assert len(set(cohort.owners.tolist())) > 1
    assert cohort.train.tolist() == split.train[cohort.id].tolist()


def test_a_client_gets_no_label_that_it_does_not_own(graph, split):
    partitioned = partition(graph, "edges_uniform", CLIENTS, 0, labels="one")
    cohort = make_cohort(graph, split, partitioned, range(CLIENTS))
    assert cohort.y[cohort.owned].tolist() == graph.y[cohort.id[cohort.owned]].tolist()
    assert (cohort.y[~cohort.owned] == -1).all()
    assert not cohort.owned.all()


def test_degrees_and_counts_are_those_of_the_edges(graph, split, partitioned):
    cohort = make_cohort(graph, split, partitioned, range(CLIENTS))
    for row in range(cohort.num_rows):
        inside = int((cohort.edge_index[1] == row).sum())
        assert int(cohort.degree()[row]) == inside
        assert int(cohort.degree(with_cross=True)[row]) == inside + int((cohort.cross_row == row).sum())
    counts = cohort.counts(cohort.train)
    assert counts.tolist() == [int(cohort.train[cohort.client == k].sum()) for k in range(CLIENTS)]


@pytest.mark.parametrize("clients", [[2], [0, 1, 4]], ids=str)
def test_a_cohort_comes_back_from_its_file(graph, split, partitioned, clients, tmp_path):
    cohort = make_cohort(graph, split, partitioned, clients)
    save_cohort(cohort, tmp_path / "cohort.safetensors")
    again = load_cohort(tmp_path / "cohort.safetensors")
    assert isinstance(again, Cohort)
    assert type(again.x) is type(cohort.x)
    assert torch.equal(dense(again.x), dense(cohort.x))
    assert (again.clients, again.num_classes) == (cohort.clients, cohort.num_classes)
    for name in (
        "client",
        "id",
        "y",
        "edge_index",
        "cross_row",
        "cross_client",
        "cross_id",
        "owned",
        "train",
        "val",
        "test",
    ):
        assert torch.equal(getattr(again, name), getattr(cohort, name)), name
        assert getattr(again, name).dtype == getattr(cohort, name).dtype, name


@pytest.mark.parametrize("clients", [[1, 0], [0, 0], [5], [-1]], ids=str)
def test_clients_are_clients_in_ascending_order(graph, split, partitioned, clients):
    with pytest.raises(InputError, match=r"clients 0\.\.4, ascending"):
        make_cohort(graph, split, partitioned, clients)


def test_another_file_is_no_cohort(tmp_path):
    (tmp_path / "x").write_bytes(b"text")
    with pytest.raises(InputError, match="is not a cohort file"):
        load_cohort(tmp_path / "x")
    write_tensors(tmp_path / "y", {"clients": np.zeros(1)})
    with pytest.raises(InputError, match="it has no client, cross_client"):
        load_cohort(tmp_path / "y")


def test_names_go_along_and_are_no_must(graph, split, partitioned, tmp_path):
    cohort, path = make_cohort(graph, split, partitioned, [1]), tmp_path / "cohort.safetensors"
    save_cohort(cohort, path)
    assert load_names(path) == Names()
    for nodes in ((), ("a\u00e9", 'b"')):
        names = Names(("f\u00e9", "", 'g"'), ("no", "yes", "?"), nodes)
        save_cohort(cohort, path, names)
        assert load_names(path) == names
        assert ("node_names" in read_tensors(path)[0]) == bool(nodes)
    assert torch.equal(load_cohort(path).id, cohort.id)
    for text in ("[", "{}", '{"features": "ab", "classes": []}', '{"features": [1], "classes": []}'):
        write_tensors(path, read_tensors(path)[0], {"names": text})
        with pytest.raises(InputError, match="is not a cohort file"):
            load_names(path)
    with pytest.raises(InputError, match="is not a cohort file"):
        load_names(tmp_path / "nowhere")


def require_same(one, two):
    """Two cohorts are alike in every array, to the dtype."""
    one, two = cohort_arrays(one), cohort_arrays(two)
    assert one.keys() == two.keys()
    for name, array in one.items():
        assert array.dtype == two[name].dtype, name
        assert array.tolist() == two[name].tolist(), name


@pytest.mark.parametrize("clients", [[1], [0, 2, 4], list(range(CLIENTS))], ids=str)
def test_stable_ids_make_the_cohort_of_a_graph_whose_nodes_have_these_numbers(graph, split, clients):
    """Rows, edges, cross-client edges and weights, all in the order of the new numbers."""
    rng = np.random.default_rng(1)
    number, client = rng.permutation(60), rng.integers(0, CLIENTS, 60)
    weights = 1 + rng.integers(0, 8, graph.num_edges) / 8
    old = np.argsort(number)
    renamed = make_graph(
        "toy", graph.x[old], graph.y[old], number[graph.edges], edge_weight=weights, num_classes=3
    )
    masks = (getattr(split, part)[old] for part in ("train", "val", "test"))
    graph = dataclasses.replace(graph, edge_weight=weights.astype(np.float32))
    made = make_cohort(graph, split, from_assignment(graph, client), clients, stable_ids=number)
    partitioned = from_assignment(renamed, client[old])
    require_same(made, make_cohort(renamed, Split("renamed", *masks), partitioned, clients))


@pytest.mark.parametrize("task", ["nodes", "links"])
def test_the_ids_of_the_partition_come_back_in_the_place_of_stable_ones(graph, split, task):
    """And the names of the rows with them."""
    if task == "links":
        split = make_edge_split(graph, "edges:0.6,0.2,0.2", 0)
        graph = training_graph(graph, split)
    partitioned = partition(graph, "random", CLIENTS, 0)
    stable = 7 * np.random.default_rng(1).permutation(60) + 2**40
    plain = make_cohort(graph, split, partitioned, [1, 3])
    made = make_cohort(graph, split, partitioned, [1, 3], stable_ids=stable)
    back = with_partition_ids(made, stable)
    columns = [(made, "id"), (made, "cross_id")] + ([(made.links, "id")] if task == "links" else [])
    for part, name in columns:
        found = getattr(back if part is made else back.links, name)
        assert stable[found].tolist() == getattr(part, name).tolist()
        assert sorted(found.tolist()) == sorted(
            getattr(plain if part is made else plain.links, name).tolist()
        )
    assert with_partition_ids(plain, None) is plain
    named = dataclasses.replace(graph, ids=pa.array([f"node {v}" for v in range(60)]))
    assert node_names(named, made, stable) == tuple(f"node {v}" for v in back.id.tolist())
    assert node_names(named, plain, None) == node_names(graph, made, stable) == ()


def test_unit_features_are_the_features_over_their_length(graph, split):
    """Of either sign; a row of zeros stays one."""
    scale = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32)
    scale[:4] = 0
    x = graph.x.multiply(scale).tocsr() if sp.issparse(graph.x) else graph.x * scale
    graph = dataclasses.replace(graph, x=x)
    cohort = make_cohort(graph, split, partition(graph, "random", CLIENTS, 0), range(CLIENTS))
    unit = with_unit_features(cohort)
    assert type(unit.x) is type(cohort.x)
    for got, row in zip(dense(unit.x).tolist(), dense(cohort.x).tolist(), strict=True):
        length = sum(number**2 for number in row) ** 0.5
        assert got == pytest.approx([number / (length or 1) for number in row], abs=1e-6)


def test_features_are_no_must(graph, split, tmp_path):
    bare = dataclasses.replace(graph, x=None)
    cohort = make_cohort(bare, split, partition(bare, "random", CLIENTS, 0), [1])
    assert cohort.num_features == 0
    assert with_unit_features(cohort) is cohort
    save_cohort(cohort, tmp_path / "cohort")
    assert load_cohort(tmp_path / "cohort").x is None


@pytest.mark.parametrize("task", ["nodes", "links"])
def test_a_client_that_holds_nothing_comes_back_from_its_file(graph, split, task, tmp_path):
    if task == "links":
        split = make_edge_split(graph, "edges:0.6,0.2,0.2", 0)
        graph = training_graph(graph, split)
    partitioned = from_assignment(graph, np.zeros(60, dtype=int), num_clients=2)
    cohort = make_cohort(graph, split, partitioned, [1])
    save_cohort(cohort, tmp_path / "cohort")
    back = load_cohort(tmp_path / "cohort")
    assert (back.num_rows, back.num_clients, back.num_features, back.num_classes) == (0, 1, 7, 3)
    require_same(back, cohort)


def at(index, value):
    """One entry of an array is another."""

    def change(array):
        array = array.copy()
        array[index] = value
        return array

    return change


#: What is done to a column of a whole file, and what is said of it.
DAMAGED = {
    "rows that are short": ("y", lambda a: a[1:], "y has dtype int64 and shape"),
    "labels that are fractions": ("y", lambda a: a + 0.5, "y has dtype float64"),
    "a mask of numbers": ("train", lambda a: a.astype(int), "train has dtype int64"),
    "edges of three nodes": ("edge_index", lambda a: np.concatenate([a, a[:1]]), "edge_index has dtype"),
    "an edge beyond the rows": ("edge_index", at((0, 0), 10**6), "edge_index points beyond the"),
    "an edge before the rows": ("edge_index", at((0, 0), -1), "edge_index points beyond the"),
    "a cross-client edge beyond the rows": ("cross_row", at(0, 10**6), "cross_row points beyond the"),
    "a row of no client": ("client", at(-1, 2), "client points beyond the 2 clients"),
    "clients that descend": ("clients", lambda a: a[::-1], "its clients are not different numbers"),
    "a client twice": ("clients", lambda a: a * 0, "its clients are not different numbers"),
    "no client": ("clients", lambda a: a[:0], "client points beyond the 0 clients"),
    "ids out of order": ("id", lambda a: a[::-1], "its rows are not sorted by client and id"),
    "an id twice": ("id", lambda a: at(1, a[0])(a), "its rows are not sorted by client and id"),
    "an id below zero": ("id", at(0, -1), "its rows are not sorted by client and id"),
    "a label beyond the classes": ("y", at(0, 3), "a label is beyond its 3 classes"),
    "a label to train on that is unknown": ("y", lambda a: a * 0 - 1, "a node without a label is in a part"),
    "a node without an owner": ("owners", at(0, 0), "a node has no owner"),
    "weights of some edges": ("cross_weight", None, "it has the weights of some edges only"),
    "a weight of zero": ("edge_weight", at(0, 0), "the weight of an edge is not a positive number"),
    "a negative weight": ("edge_weight", at(0, -1), "the weight of an edge is not a positive number"),
    "a weight that is no number": (
        "cross_weight",
        at(0, np.nan),
        "the weight of an edge is not a positive number",
    ),
    "features that are no numbers": ("x", at((0, 0), np.inf), "x is not a table of finite numbers"),
    "features of fewer rows": ("x", lambda a: a[1:], "x is not a table of finite numbers"),
    "sparse features of other rows": (
        "x_shape",
        at(0, 3),
        "the arrays of its sparse features do not fit together",
    ),
    "sparse features of very many columns": (
        "x_shape",
        at(1, 10**12),
        "the arrays of its sparse features do not fit together",
    ),
    "very many classes": ("num_classes", at(0, 10**12), "it has 1000000000000 classes"),
    "a sparse feature beyond the columns": (
        "x_col",
        at(0, 7),
        "the arrays of its sparse features do not fit together",
    ),
    "a sparse feature that is no number": (
        "x_values",
        at(0, np.nan),
        "the arrays of its sparse features do not fit",
    ),
    "sparse features in part": ("x_row", None, "the arrays of its sparse features do not fit together"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_whose_columns_do_not_fit_together_is_refused(case, graph, split, tmp_path):
    """Another party may have written it: nothing is computed from it before it is known to be whole."""
    column, change, message = DAMAGED[case]
    x = sp.csr_matrix(graph.x) if column.startswith("x_") else sp.csr_matrix(graph.x).toarray()
    heavy = dataclasses.replace(graph, x=x, edge_weight=np.full(graph.num_edges, 2, dtype=np.float32))
    path = tmp_path / "cohort.safetensors"
    save_cohort(make_cohort(heavy, split, partition(heavy, "random", CLIENTS, 0), [1, 3]), path)
    load_cohort(path)
    arrays, _ = read_tensors(path)
    if change is None:
        del arrays[column]
    else:
        arrays[column] = change(arrays[column])
    write_tensors(path, arrays)
    with pytest.raises(InputError, match=f"is not a whole cohort file: .*{message}.*; write it again"):
        load_cohort(path)

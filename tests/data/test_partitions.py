"""Laws every partition obeys, and claims about each partitioner."""

import dataclasses
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.partitions.partition import PARTITIONS, Partition, from_assignment, partition
from graphfed.errors import InputError

SHARED = ("edges_uniform", "overlapping")  # clients share nodes; in all others they are disjoint
FIXED = ("ego", "column")  # the graph says how many clients there are
OF_GRAPHS = tuple(name for name, spec in PARTITIONS.items() if spec.data == "graph")
DISJOINT = (*((name, {}) for name in OF_GRAPHS if name not in SHARED), ("overlapping", {"copies": "one"}))
CASES = [
    *((name, {}) for name in OF_GRAPHS),
    ("label_dirichlet", {"kind": "hsu", "beta": 0.5}),
    ("label_skew", {"alpha": 0.5}),
    ("label_skew", {"alpha": 0.5, "nodes": "all"}),
    ("edges_uniform", {"nodes": "endpoints", "overlap": 0.3}),
    ("edges_uniform", {"overlap": 1.0, "labels": "one"}),
    ("edges_uniform", {"edges": "directed", "nodes": "endpoints"}),
    ("overlapping", {"mean": 0.3, "variance": 0.5}),
    ("overlapping", {"mean": 0.05, "variance": 0.0}),
    ("overlapping", {"copies": "one", "variance": 1.0}),
    ("overlapping", {"classes": 1}),
]


def random_graph(n: int, m: int, classes: int, seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    y = rng.integers(-1, classes, size=n)
    return make_graph("drawn", None, y, rng.integers(n, size=(2, m)), num_classes=classes)


def make_partition(graph: Graph, name: str, clients: int, seed: int, options: dict) -> Partition:
    """`partition` with as many clients, up to `clients`, as the partitioner allows."""
    most = {"label_dirichlet": graph.num_nodes // 20, "label_skew": graph.num_classes}
    clients = max(1, min(clients, most.get(name, clients)))
    if "classes" in options:
        options = options | {"classes": min(options["classes"], len(np.unique(graph.y[graph.y >= 0])))}
    if clients == 1:
        options = {key: value for key, value in options.items() if key not in ("overlap", "alpha")}
    if name == "column":
        owner = np.arange(graph.num_nodes) % clients
        graph = dataclasses.replace(graph, clients=owner, client_names=tuple(map(str, range(clients))))
    return partition(graph, name, None if name in FIXED else clients, seed, **options)


graphs = st.builds(
    random_graph,
    n=st.integers(10, 60),
    m=st.integers(0, 150),
    classes=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{o}" for n, o in CASES])
law = settings(max_examples=25)


def over_partitions(test: Callable[..., None]) -> Callable[..., None]:
    """Run a law for every partitioner and drawn graphs, numbers of clients and seeds."""
    drawn = given(graph=graphs, clients=st.integers(1, 6), seed=st.integers(0, 2**32))
    return every_case(law(drawn(test)))


def rows(*columns: np.ndarray) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


@over_partitions
def test_every_id_has_one_owner_or_all_its_clients_and_every_node_is_owned(
    name, options, graph, clients, seed
):
    p = make_partition(graph, name, clients, seed, options)
    owners = Counter(p.held_id[p.held_owner].tolist())
    assert set(owners) == set(p.held_id.tolist())
    if name == "edges_uniform" and options.get("labels") != "one":
        assert owners == Counter(p.held_id.tolist())
    else:
        assert set(owners.values()) == {1}
    if name == "overlapping" and options.get("copies") != "one":
        assert p.held_owner.all()  # a copy is its own node
    else:
        assert sorted(owners) == list(range(graph.num_nodes))
        assert (p.held_id == p.held_node).all()
    assert p.held_client.min() >= 0
    assert p.held_client.max() < p.num_clients


@over_partitions
def test_tables_are_sorted_without_repetition_and_refer_to_held_ids(name, options, graph, clients, seed):
    p = make_partition(graph, name, clients, seed, options)
    held = rows(p.held_client, p.held_id)
    edges = rows(p.edge_client, p.edge_u, p.edge_v)
    cross = rows(p.cross_local_client, p.cross_id, p.cross_remote_client, p.cross_remote_id)
    for table in (held, edges, cross):
        assert table == sorted(set(table))
    known = set(held)
    owned = {row for row, owner in zip(held, p.held_owner.tolist(), strict=True) if owner}
    assert all(u < v and (k, u) in known and (k, v) in known for k, u, v in edges)
    assert all(k != r and (k, i) in known and (r, j) in owned for k, i, r, j in cross)
    for column in p.tables.values():
        assert column.dtype == (bool if column is p.held_owner else np.int64)


@pytest.mark.parametrize(("name", "options"), DISJOINT, ids=[f"{n}-{o}" for n, o in DISJOINT])
@law
@given(graph=graphs, clients=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_clients_are_disjoint_and_an_edge_is_either_inside_one_or_cross_client_in_both_directions(
    name, options, graph, clients, seed
):
    p = make_partition(graph, name, clients, seed, options)
    client = dict(rows(p.held_id, p.held_client))
    assert len(client) == len(p.held_id) == graph.num_nodes
    inside, cross = [], []
    for u, v in graph.edges.T.tolist():  # the slow version
        if client[u] == client[v]:
            inside.append((client[u], u, v))
        else:
            cross += [(client[u], u, client[v], v), (client[v], v, client[u], u)]
    assert rows(p.edge_client, p.edge_u, p.edge_v) == sorted(inside)
    assert rows(p.cross_local_client, p.cross_id, p.cross_remote_client, p.cross_remote_id) == sorted(cross)


@over_partitions
def test_saving_and_loading_changes_nothing(name, options, graph, clients, seed):
    p = make_partition(graph, name, clients, seed, options)
    with tempfile.TemporaryDirectory() as folder:
        p.save(Path(folder) / "p.safetensors")
        again = Partition.load(Path(folder) / "p.safetensors")
    for field in dataclasses.fields(Partition):
        assert np.array_equal(getattr(again, field.name), getattr(p, field.name)), field.name
    assert again.hash == p.hash
    again.check(graph)


@every_case
def test_the_same_seed_partitions_the_same_way(name, options):
    graph = random_graph(200, 600, 4, seed=1)
    assert make_partition(graph, name, 4, 7, options).hash == make_partition(graph, name, 4, 7, options).hash


@pytest.mark.parametrize(
    ("name", "options"), [case for case in CASES if case[0] not in (*FIXED, "louvain", "metis")], ids=str
)
def test_another_seed_partitions_another_way(name, options):
    graph = random_graph(200, 600, 4, seed=1)
    if (name, options) == ("label_skew", {}):
        graph = make_graph("with unknown classes", None, np.where(graph.y == 0, -1, graph.y), graph.edges)
    assert make_partition(graph, name, 4, 7, options).hash != make_partition(graph, name, 4, 8, options).hash


@pytest.mark.parametrize("name", [n for n in OF_GRAPHS if not n.startswith("label")])
def test_partitions_that_are_not_by_label_ignore_the_labels(name):
    graph = random_graph(100, 300, 4, seed=2)
    permuted = make_graph("permuted", None, np.random.default_rng(0).permutation(graph.y), graph.edges)
    a, b = make_partition(graph, name, 4, 0, {}), make_partition(permuted, name, 4, 0, {})
    assert all(np.array_equal(a.tables[key], b.tables[key]) for key in a.tables)
    assert a.hash != b.hash  # of another graph all the same


@every_case
def test_a_graph_without_edges_and_with_one_class_can_be_partitioned(name, options):
    graph = make_graph("bare", None, np.zeros(40, int), [])
    p = make_partition(graph, name, 2, 0, options)
    assert len(p.edge_client) == len(p.cross_local_client) == 0
    assert len(np.unique(p.held_node)) == 40 or name == "overlapping"


def test_random_sizes_differ_by_at_most_one():
    sizes = np.bincount(partition(random_graph(103, 200, 3, 0), "random", 10, 0).held_client)
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_ego_gives_every_node_its_own_client_and_cuts_every_edge():
    graph = random_graph(50, 120, 3, 0)
    p = partition(graph, "ego", None, 0)
    assert p.num_clients == 50
    assert p.held_client.tolist() == p.held_id.tolist() == list(range(50))
    assert len(p.edge_client) == 0
    assert len(p.cross_local_client) == 2 * graph.num_edges
    assert partition(graph, "ego", 50, 3).hash == p.hash


class TestLabelDirichlet:
    def counts(self, graph: Graph, p: Partition) -> np.ndarray:
        """[K, C] nodes of each class at each client."""
        table = np.zeros((p.num_clients, graph.num_classes), int)
        np.add.at(table, (p.held_client, graph.y[p.held_id]), 1)
        return table

    def test_beta_10000_gives_every_client_the_global_class_shares(self):
        graph = load("digits")
        counts = self.counts(graph, partition(graph, "label_dirichlet", 10, 0))
        class_size = np.bincount(graph.y)
        # A share is Beta distributed with this standard error; 5 of them, 100 counts: false alarm below 1e-4.
        # Cutting at whole nodes moves a count by less than 1.
        error = np.sqrt(0.1 * 0.9 / (10 * 10_000 + 1))
        assert (abs(counts - class_size / 10) <= 5 * error * class_size + 1).all()

    def test_beta_1_is_skewed(self):
        graph = load("digits")
        shares = self.counts(graph, partition(graph, "label_dirichlet", 10, 0, beta=1.0)) / np.bincount(
            graph.y
        )
        # The standard deviation of a share is 0.09 for Dir(1, ..., 1) over 10 clients, 0.001 for 10000.
        assert shares.std() > 0.05

    @pytest.mark.parametrize("beta", [0.5, 1.0, 100.0])
    @pytest.mark.parametrize("seed", range(5))
    def test_every_client_holds_at_least_ten_nodes(self, beta, seed):
        p = partition(load("digits"), "label_dirichlet", 20, seed, beta=beta)
        assert np.bincount(p.held_client, minlength=20).min() >= 10

    @pytest.mark.parametrize("seed", range(5))
    def test_a_client_that_holds_its_share_gets_no_node_of_later_classes(self, seed):
        graph = load("digits")
        counts = self.counts(graph, partition(graph, "label_dirichlet", 10, seed, beta=0.5))
        held_before = np.cumsum(counts, axis=1) - counts
        assert (held_before[counts > 0] < 1797 / 10).all()

    def test_hsu_gives_clients_of_one_size_whatever_beta(self):
        graph = load("digits")
        for beta in (0.01, 1.0, 1e6):
            p = partition(graph, "label_dirichlet", 10, 0, beta=beta, kind="hsu")
            assert set(np.bincount(p.held_client)) == {179, 180}

    def test_hsu_draws_with_the_class_shares_as_mean_and_small_beta_is_skewed(self):
        graph = load("digits")
        even = self.counts(graph, partition(graph, "label_dirichlet", 10, 0, beta=1e6, kind="hsu"))
        # Draws without replacement vary less than binomial ones; 5.5 sigma, 100 counts: false alarm 1e-5.
        share = np.bincount(graph.y) / 1797
        assert (abs(even - 180 * share) <= 5.5 * np.sqrt(180 * share * (1 - share)) + 1).all()
        skewed = self.counts(graph, partition(graph, "label_dirichlet", 10, 0, beta=0.1, kind="hsu"))
        assert skewed[0].max() > 0.5 * 180 > 2 * even.max()

    def test_too_many_clients_end_with_an_error_that_names_the_fix(self):
        graph = random_graph(100, 100, 3, 0)
        with pytest.raises(
            InputError, match=r"the 100 nodes of 'drawn' among 11 clients.*at most 10 clients"
        ):
            partition(graph, "label_dirichlet", 11, 0)
        with pytest.raises(
            InputError, match=r"none of 10000 draws .*fewer clients or a larger beta \(got 0.01\)"
        ):
            partition(graph, "label_dirichlet", 9, 0, beta=0.01)


class TestLabelSkew:
    # Cora's train, validation and test nodes: 1097 of the first four classes, 543 of the last three.
    graph = make_graph("cora-like", None, np.repeat(np.arange(7), [297, 250, 300, 250, 243, 200, 100]), [])

    @pytest.mark.parametrize(("alpha", "sizes"), [(0.0, [1097, 543]), (0.5, [821, 819])])
    def test_two_clients_have_the_sizes_printed_in_the_paper(self, alpha, sizes):
        p = partition(self.graph, "label_skew", 2, 0, alpha=alpha)
        assert np.bincount(p.held_client).tolist() == sizes

    def test_alpha_0_assigns_whole_classes(self):
        p = partition(self.graph, "label_skew", 3, 0)
        classes = [set(self.graph.y[p.held_id[p.held_client == k]].tolist()) for k in range(3)]
        assert classes == [{0, 1, 2}, {3, 4}, {5, 6}]

    def test_alpha_moves_that_fraction_of_each_client_evenly_to_the_others(self):
        p = partition(self.graph, "label_skew", 3, 0, alpha=0.4)
        home = np.array([0, 0, 0, 1, 1, 2, 2])[self.graph.y[p.held_id]]
        for k in range(3):
            now = np.bincount(p.held_client[home == k], minlength=3)
            size = (home == k).sum()
            assert now[k] == size - np.rint(0.4 * size)
            others = np.delete(now, k)
            assert others.max() - others.min() <= 1

    def test_absent_nodes_stay_at_the_other_clients_without_label_and_edges(self):
        graph = random_graph(90, 300, 4, 0)
        own = partition(graph, "label_skew", 3, 1, alpha=0.3)
        every = partition(graph, "label_skew", 3, 1, alpha=0.3, nodes="all")
        assert rows(every.held_client, every.held_id) == [(k, v) for k in range(3) for v in range(90)]
        local = set(rows(own.held_client, own.held_id))
        assert set(rows(every.held_client[every.held_owner], every.held_id[every.held_owner])) == local
        for column in ("edge_client", "edge_u", "edge_v"):
            assert np.array_equal(getattr(own, column), getattr(every, column))
        assert len(own.cross_local_client) > 0 == len(every.cross_local_client)
        every.check(graph)

    @pytest.mark.parametrize("clients", [2, 3, 4, 7])
    def test_the_largest_alpha_is_the_even_partition_also_when_it_is_rounded(self, clients):
        p = partition(self.graph, "label_skew", clients, 0, alpha=float(f"{1 - 1 / clients:.3g}"))
        counts = np.zeros((clients, 7))
        np.add.at(counts, (p.held_client, self.graph.y[p.held_id]), 1)
        # Blocks are divided evenly, up to rounding, and their classes by chance: within 5 deviations.
        size = counts.sum(0)
        deviation = np.sqrt(size / clients * (1 - 1 / clients))
        assert (np.abs(counts - size / clients) < 5 * deviation + 2).all()

    @pytest.mark.parametrize(
        ("clients", "alpha", "largest"),
        [
            (4, 0.9, "0.75"),
            (4, 0.752, "0.75"),
            (3, 0.669, "0.667"),
            (2, 50, "0.5"),
            (2, -1, "0.5"),
            (1, 0.5, "0"),
        ],
    )
    def test_an_alpha_that_would_skew_the_classes_again_is_refused(self, clients, alpha, largest):
        message = rf"alpha {alpha:g} of .* {clients} clients? use a number from 0 .* to {largest} "
        with pytest.raises(InputError, match=message):
            partition(self.graph, "label_skew", clients, 0, alpha=alpha)


class TestEdgesUniform:
    @law
    @given(
        graph=graphs,
        clients=st.integers(2, 5),
        overlap=st.sampled_from([0.0, 0.25, 1.0]),
        seed=st.integers(0, 99),
    )
    def test_every_edge_is_at_one_client_and_the_overlap_at_two(self, graph, clients, overlap, seed):
        p = partition(graph, "edges_uniform", clients, seed, overlap=overlap)
        copies = Counter(rows(p.edge_u, p.edge_v))
        assert sorted(copies) == rows(*graph.edges)
        assert Counter(copies.values())[2] == np.rint(overlap * graph.num_edges)
        assert set(copies.values()) <= {1, 2}
        assert len(p.cross_local_client) == 0

    @law
    @given(graph=graphs, clients=st.integers(1, 5), seed=st.integers(0, 99))
    def test_with_directed_edges_every_edge_is_at_one_or_two_clients(self, graph, clients, seed):
        p = partition(graph, "edges_uniform", clients, seed, edges="directed")
        copies = Counter(rows(p.edge_u, p.edge_v))
        assert sorted(copies) == rows(*graph.edges)
        assert set(copies.values()) <= {1, 2}

    @pytest.mark.parametrize("clients", [1, 2, 3, 4])
    def test_with_directed_edges_a_client_holds_the_expected_fraction_of_the_edges(self, clients):
        """A client holds an edge unless both directions are elsewhere: 1 - (1 - 1/K)^2 of m edges. The bound
        is six standard deviations of m independent edges (two tails: 2e-9), which the draw without
        replacement does not exceed."""
        graph = random_graph(400, 4000, 2, 0)
        p = partition(graph, "edges_uniform", clients, 0, edges="directed")
        expected = 1 - (1 - 1 / clients) ** 2
        found = np.bincount(p.edge_client) / graph.num_edges
        assert np.abs(found - expected).max() <= 6 * (expected * (1 - expected) / graph.num_edges) ** 0.5

    def test_edge_numbers_differ_by_at_most_one_without_overlap(self):
        graph = random_graph(60, 200, 2, 0)
        sizes = np.bincount(partition(graph, "edges_uniform", 4, 0).edge_client)
        assert sizes.max() - sizes.min() <= 1

    def test_all_nodes_are_everywhere_unless_only_endpoints_are_asked_for(self):
        graph = random_graph(60, 40, 2, 0)
        every = partition(graph, "edges_uniform", 4, 0)
        assert len(every.held_id) == 4 * 60
        ends = partition(graph, "edges_uniform", 4, 0, nodes="endpoints")
        expected = {
            (k, end) for k, u, v in rows(ends.edge_client, ends.edge_u, ends.edge_v) for end in (u, v)
        }
        held = set(rows(ends.held_client, ends.held_id))
        assert expected <= held
        alone = np.setdiff1d(np.arange(60), graph.edges)
        assert sorted(i for _, i in held - expected) == alone.tolist()
        assert len(alone) > 0

    def test_ownership_is_spread_over_the_clients(self):
        p = partition(random_graph(4000, 10, 2, 0), "edges_uniform", 4, 0, labels="one")
        owned = np.bincount(p.held_client[p.held_owner])
        # Binomial(4000, 1/4): standard deviation 27; 5.5 of them, 4 counts: false alarm below 1e-6.
        assert (abs(owned - 1000) < 5.5 * 27.4).all()


def known_classes(graph: Graph) -> np.ndarray:
    """The classes that have nodes, [C'] ascending."""
    return np.unique(graph.y[graph.y >= 0])


def fractions(clients: int, seed: int, mean: float, variance: float) -> np.ndarray:
    """The xi [K] that `overlapping` draws, read off copies of a graph of 100 000 nodes, to 1/200 000."""
    bare = make_graph("bare", None, np.zeros(100_000, int), [])
    p = partition(bare, "overlapping", clients, seed, mean=mean, variance=variance)
    return np.bincount(p.held_client, minlength=clients) / 100_000


class TestOverlapping:
    @law
    @given(
        graph=graphs,
        clients=st.integers(1, 5),
        mean=st.sampled_from([0.05, 0.4, 0.8, 1.0]),
        seed=st.integers(0, 99),
        classes=st.integers(0, 2),
    )
    def test_an_edge_is_internal_where_both_ends_are_and_else_goes_to_one_fixed_copy(
        self, graph, clients, mean, seed, classes
    ):
        classes = min(classes, len(known_classes(graph)))
        p = partition(graph, "overlapping", clients, seed, mean=mean, classes=classes)
        copies = dict(zip(rows(p.held_client, p.held_node), p.held_id.tolist(), strict=True))
        assert len(copies) == len(p.held_id)
        node = dict(rows(p.held_id, p.held_node))
        # Whatever client asks, a node is served by the same copy.
        serving = {}
        for r, j in rows(p.cross_remote_client, p.cross_remote_id):
            assert copies[r, node[j]] == j
            assert serving.setdefault(node[j], j) == j
        inside, cross = [], []
        somewhere = {v for _, v in copies}
        for k in range(clients):  # the slow version
            for u, v in graph.edges.T.tolist():
                if (k, u) in copies and (k, v) in copies:
                    inside.append((k, copies[k, u], copies[k, v]))
                for own, other in ((u, v), (v, u)):
                    if (k, own) in copies and (k, other) not in copies and other in somewhere:
                        cross.append((k, copies[k, own], other))
        assert rows(p.edge_client, p.edge_u, p.edge_v) == sorted(inside)
        found = [(k, i, node[j]) for k, i, j in rows(p.cross_local_client, p.cross_id, p.cross_remote_id)]
        assert sorted(found) == sorted(cross)

    def test_no_client_serves_all_the_copies(self):
        p = partition(random_graph(400, 2000, 2, 0), "overlapping", 4, 0, mean=0.5, variance=0.0)
        served = np.unique(np.stack((p.cross_remote_client, p.cross_remote_id)), axis=1)[0]
        # Over 300 nodes are served, each by a random client; 1/8 of 300 is 5 sigma below 1/4.
        assert len(served) > 300
        assert np.bincount(served, minlength=4).min() > len(served) / 8

    def test_client_sizes_follow_mean_and_variance_within_the_bounds(self):
        graph = random_graph(400, 10, 2, 0)
        exact = partition(graph, "overlapping", 5, 0, mean=0.8, variance=0.0)
        assert np.bincount(exact.held_client).tolist() == [320] * 5
        spread = np.bincount(partition(graph, "overlapping", 40, 0, mean=0.8, variance=1.0).held_client)
        assert spread.min() >= 20
        assert spread.max() <= 400
        assert spread.max() > 2 * spread.min()

    @law
    @given(
        graph=graphs,
        clients=st.integers(1, 8),
        classes=st.integers(1, 4),
        copies=st.sampled_from(["many", "one"]),
        seed=st.integers(0, 2**32),
    )
    def test_a_client_has_nodes_of_so_many_classes_and_every_class_is_at_as_many_clients(
        self, graph, clients, classes, copies, seed
    ):
        present = known_classes(graph)
        classes = min(classes, len(present))
        if copies == "one":  # fewer clients cannot have every class
            clients = max(clients, -(-len(present) // max(classes, 1)))
        options = {"classes": classes, "copies": copies, "mean": 1.0, "variance": 0.0}
        p = partition(graph, "overlapping", clients, seed, **options)
        has = {(k, c) for k, c in rows(p.held_client, graph.y[p.held_node]) if c >= 0}
        clients_of = [sum((k, c) in has for k in range(clients)) for c in present.tolist()]
        classes_at = [sum((k, c) in has for c in present.tolist()) for k in range(clients)]
        if copies == "one":  # a class with fewer nodes than clients is not at each of its clients
            assert max(classes_at) <= (classes or len(present))
            assert sorted(p.held_node.tolist()) == list(range(graph.num_nodes))
            return
        # xi = 1: a client holds all the nodes of its classes, and all of unknown class.
        assert set(classes_at) == {classes or len(present)}
        assert max(clients_of, default=0) - min(clients_of, default=0) <= 1
        assert min(clients_of, default=1) >= 1 or clients * classes < len(present)
        expected = [(k, v) for k in range(clients) for v, c in enumerate(graph.y.tolist())
                    if c < 0 or (k, c) in has]  # fmt: skip
        assert rows(p.held_client, p.held_node) == expected

    def test_every_set_of_classes_is_as_likely(self):
        graph = make_graph("four", None, np.arange(40) % 4, [])
        found = Counter()
        for seed in range(600):
            p = partition(graph, "overlapping", 3, seed, classes=3, mean=1.0, variance=0.0)
            # The second hand is drawn from two decks, the third from the second one.
            for k in range(3):
                found[k, frozenset(graph.y[p.held_node[p.held_client == k]].tolist())] += 1
        assert len(found) == 3 * 4
        # Binomial(600, 1/4): standard deviation 10.6; 5 of them, 12 counts: false alarm below 1e-5.
        assert all(abs(count - 150) < 53 for count in found.values())

    def test_a_client_copies_its_fraction_of_the_nodes_of_its_classes(self):
        graph = random_graph(6000, 10, 5, 0)
        xi = fractions(4, 3, 0.5, 0.2)
        assert xi.max() > 1.5 * xi.min()
        p = partition(graph, "overlapping", 4, 3, mean=0.5, variance=0.2, classes=2)
        for k in range(4):
            local = graph.y[p.held_node[p.held_client == k]]
            offered = np.isin(graph.y, np.unique(local)).sum()
            assert abs(len(local) - xi[k] * offered) <= 0.5 + 6000 / 200_000

    @law
    @given(
        n=st.integers(20, 400),
        clients=st.integers(1, 20),
        variance=st.sampled_from([0.0, 0.1, 1.0]),
        seed=st.integers(0, 99),
    )
    @pytest.mark.slow
    def test_without_copies_all_nodes_are_assigned_in_the_proportion_of_the_fractions(
        self, n, clients, variance, seed
    ):
        graph = random_graph(n, 2 * n, 3, seed)
        xi = fractions(clients, seed, 0.8, variance)
        p = partition(graph, "overlapping", clients, seed, mean=0.8, variance=variance, copies="one")
        sizes = np.bincount(p.held_client, minlength=clients)
        assert sizes.sum() == n
        assert abs(sizes - n * xi / xi.sum()).max() <= 1.01  # the fractions are rounded, too

    def test_without_copies_a_class_is_assigned_to_its_clients_in_the_proportion_of_their_fractions(self):
        graph = make_graph("three", None, np.arange(9000) % 4 - 1, [])
        xi = fractions(4, 1, 0.5, 0.3)
        p = partition(graph, "overlapping", 4, 1, mean=0.5, variance=0.3, copies="one", classes=2)
        for c in range(-1, 3):
            counts = np.bincount(p.held_client[graph.y[p.held_node] == c], minlength=4)
            has_class = counts > 0
            assert has_class.all() if c < 0 else 2 <= has_class.sum() <= 3
            assert abs(counts - 2250 * xi * has_class / (xi * has_class).sum()).max() <= 1.1

    def test_a_class_subset_and_a_partition_without_copies_draw_the_same_fractions(self):
        bare = make_graph("bare", None, np.zeros(50_000, int), [])
        sizes = [
            np.bincount(partition(bare, "overlapping", 5, 2, **options).held_client)
            for options in ({}, {"classes": 1}, {"copies": "one"})
        ]
        assert (sizes[0] == sizes[1]).all()
        assert abs(sizes[2] - 50_000 * sizes[0] / sizes[0].sum()).max() < 2

    def test_a_class_that_no_client_got_is_gone_with_its_edges(self):
        graph = make_graph(
            "ring", None, np.arange(60) % 6, np.stack((np.arange(60), (np.arange(60) + 1) % 60))
        )
        p = partition(graph, "overlapping", 2, 0, classes=2, mean=1.0, variance=0.0)
        kept = np.unique(graph.y[p.held_node])
        assert len(kept) == 4
        ends = np.concatenate((p.cross_id, p.cross_remote_id, p.edge_u, p.edge_v))
        assert np.isin(graph.y[p.node_of(ends)], kept).all()
        p.check(graph)

    def test_the_smallest_client_is_smaller_beside_the_largest_the_larger_the_variance_as_the_page_says(self):
        cora = make_graph("as many nodes as cora", None, np.zeros(2708, int), [])
        for options in ({}, {"copies": "one"}):
            ratios = []
            for variance in (0.1, 0.5, 1.0):
                partitions = [
                    partition(cora, "overlapping", 20, s, variance=variance, **options) for s in range(5)
                ]
                sizes = np.stack([np.bincount(p.held_client, minlength=20) for p in partitions])
                ratios.append((sizes.min(1) / sizes.max(1)).mean())
            assert np.round(ratios, 2).tolist() == [0.19, 0.09, 0.08]  # docs/data.md, "overlapping"

    def test_the_default_partitions_of_digits_stay_what_they_were(self):
        # Copied from the program's output: proves only that nothing moved, on this machine or another.
        digits = load("digits")
        assert partition(digits, "overlapping", 10, 0).hash == (
            "d02cdcf1126ed7182a588adca99f587214c8042c821e6ff8cd0130b5f90b24d1"
        )
        assert partition(digits, "overlapping", 10, 7, variance=1.0).hash == (
            "6149cf939881fb6a20bd2a358d0a34eb5c82530f94310d74c554cc45b5a831d5"
        )


def two_cliques() -> Graph:
    clique = np.stack(np.triu_indices(20, 1))
    edges = np.concatenate((clique, clique + 20, [[0], [39]]), axis=1)
    number = np.random.default_rng(0).permutation(40)
    return make_graph("cliques", None, np.zeros(40, int), number[edges])


@pytest.mark.parametrize("name", ["louvain", "metis"])
def test_two_cliques_joined_by_one_edge_are_cut_at_that_edge(name):
    p = partition(two_cliques(), name, 2, 0)
    assert np.bincount(p.held_client).tolist() == [20, 20]
    assert len(p.cross_local_client) == 2


@law
@given(graph=graphs, clients=st.integers(1, 10), seed=st.integers(0, 99))
def test_louvain_leaves_no_client_empty_and_none_above_twice_the_mean(graph, clients, seed):
    sizes = np.bincount(partition(graph, "louvain", clients, seed).held_client, minlength=clients)
    assert sizes.min() >= 1
    assert sizes.max() <= 2 * graph.num_nodes / clients


def test_louvain_cuts_a_large_community_along_its_structure():
    number = np.random.default_rng(0).permutation(64)
    path = make_graph("path", None, np.zeros(64, int), number[np.stack((np.arange(63), np.arange(1, 64)))])
    # Pieces have at most 2 nodes; nearly all pairs are neighbours, of random pairs one in 32 would be.
    assert len(partition(path, "louvain", 32, 0).edge_client) >= 20


def test_metis_without_pymetis_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(InputError, match=r"pip install '\.\[metis\]'"):
        partition(two_cliques(), "metis", 2, 0)


class TestRefusals:
    graph = random_graph(60, 100, 3, 0)

    @pytest.mark.parametrize(
        ("name", "clients", "options", "message"),
        [
            ("lovain", 2, {}, "unknown partition 'lovain'; did you mean 'louvain'"),
            ("random", 61, {}, "60 nodes and cannot be partitioned among 61 clients; choose 1 to 60"),
            ("random", 0, {}, "cannot be partitioned among 0 clients"),
            ("random", 2.5, {}, "clients=2.5 cannot be used"),
            ("random", None, {}, "clients=None cannot be used"),
            ("random", True, {}, "clients=True cannot be used"),
            ("random", 2, {"beta": 1.0}, "has no option 'beta'; it has no options"),
            ("label_dirichlet", 2, {"bta": 1.0}, "has no option 'bta'; did you mean 'beta'"),
            ("label_dirichlet", 2, {"beta": "1"}, "beta='1' .* must have type float"),
            ("label_dirichlet", 2, {"beta": True}, "beta=True .* must have type float"),
            ("edges_uniform", 2, {"nodes": 3}, "must have type str"),
            ("ego", 10, {}, "partition 'ego' has 60 clients for 'drawn', not 10"),
            ("label_dirichlet", 2, {"beta": 0.0}, "must be a positive number"),
            ("label_dirichlet", 2, {"beta": float("nan")}, "must be a positive number"),
            ("label_dirichlet", 2, {"beta": float("inf")}, "must be a positive number"),
            ("label_dirichlet", 2, {"kind": "proportion"}, "did you mean 'proportions'"),
            ("label_skew", 3, {"nodes": "none"}, "unknown nodes='none' of label_skew"),
            ("label_skew", 4, {}, "4 clients are too many for the 3 classes"),
            ("edges_uniform", 2, {"nodes": "endpoint"}, "did you mean 'endpoints'"),
            ("edges_uniform", 2, {"labels": "two"}, "unknown labels='two' of edges_uniform"),
            ("edges_uniform", 2, {"edges": "both"}, "unknown edges='both' of edges_uniform"),
            ("edges_uniform", 2, {"overlap": 1.5}, r"overlap 1\.5 .* from 0 to 1"),
            ("edges_uniform", 1, {"overlap": 0.5}, "needs a second client"),
            ("edges_uniform", 2, {"overlap": 0.5, "edges": "directed"}, "cannot be used with edges=directed"),
            ("overlapping", 2, {"mean": 80}, r"mean 80 .* from 0\.05 to 1"),
            ("overlapping", 2, {"variance": -1}, "variance -1 "),
            ("overlapping", 2, {"copies": "on"}, "unknown copies='on' of overlapping; did you mean 'one'"),
            ("overlapping", 2, {"classes": -1}, "classes=-1 .* give 0 .*, or at most 3, the"),
            ("overlapping", 2, {"classes": 4}, "classes=4 .* give 0 .*, or at most 3, the"),
            ("overlapping", 2, {"classes": 1, "copies": "one"}, "use classes=2 or more, 3 or more clients"),
        ],
    )
    def test_bad_requests_name_the_value_and_the_fix(self, name, clients, options, message):
        with pytest.raises(InputError, match=message):
            partition(self.graph, name, clients, 0, **options)

    def test_a_graph_is_not_partitioned_as_sensors_are(self):
        for clients in (None, 2):
            with pytest.raises(InputError, match="'sensors' assigns each sensor's readings"):
                partition(self.graph, "sensors", clients, 0)

    def test_a_negative_seed_is_refused_by_every_partition_that_draws(self):
        for name in OF_GRAPHS:
            if name not in FIXED:
                with pytest.raises(InputError, match="seed -1 "):
                    partition(self.graph, name, 2, -1)

    def test_a_partition_of_another_graph_is_refused(self):
        other = random_graph(60, 100, 3, 1)
        with pytest.raises(InputError, match="was made for a graph with hash"):
            partition(self.graph, "random", 3, 0).check(other)

    @pytest.mark.parametrize(
        ("client", "message"),
        [
            (np.zeros(59, int), "expected one integer client for each of the 60"),
            (np.zeros(60), "dtype float64"),
            (np.full(60, -1), "node 0 is assigned to client -1"),
            (np.arange(60), r"node 4 is assigned to client 4; clients are 0..3 \(56 such"),
        ],
    )
    def test_an_assignment_that_does_not_fit_is_refused(self, client, message):
        with pytest.raises(InputError, match=message):
            from_assignment(self.graph, client, num_clients=4)

    def test_a_missing_foreign_or_damaged_file_is_refused(self, tmp_path):
        path = tmp_path / "p.safetensors"
        with pytest.raises(InputError, match="does not exist; write one with"):
            Partition.load(path)
        path.write_bytes(b"not safetensors")
        with pytest.raises(InputError, match="is not a partition file"):
            Partition.load(path)
        partition(self.graph, "random", 3, 0).save(path)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(InputError, match="does not match its hash"):
            Partition.load(path)


def split_path() -> tuple[Graph, Partition]:
    """The path 0-1-2-3-4-5; client 0 holds 0, 1, 2 and client 1 holds 3, 4, 5."""
    graph = make_graph("path", None, np.zeros(6, int), [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    return graph, from_assignment(graph, np.array([0, 0, 0, 1, 1, 1]))


def changed(p: Partition, column: str, row: int, value: int) -> Partition:
    array = getattr(p, column).copy()
    array[row] = value
    return dataclasses.replace(p, **{column: array})


def without(p: Partition, table: str, row: int) -> Partition:
    columns = {key: np.delete(c, row) for key, c in p.tables.items() if key.startswith(table)}
    return dataclasses.replace(p, **columns)


def swapped(p: Partition, table: str) -> Partition:
    columns = {key: c[[1, 0, *range(2, len(c))]] for key, c in p.tables.items() if key.startswith(table)}
    return dataclasses.replace(p, **columns)


def shared() -> Partition:
    """Both clients hold all of the path's nodes, client 0 owns them."""
    graph, _ = split_path()
    none = np.zeros(0, dtype=np.int64)
    return Partition(
        *(np.repeat([0, 1], 6), np.tile(np.arange(6), 2), np.tile(np.arange(6), 2), np.arange(12) < 6),
        *(none,) * 7,
        num_clients=2,
        graph_hash=graph.hash,
    )


class TestFilesPeopleHandIn:
    """A partition file may be right by its own hash and still be no partition."""

    path, fine = split_path()

    @pytest.mark.parametrize(
        ("damaged", "message"),
        [
            (dataclasses.replace(fine, num_clients=1), "table 'held', row 3: held_client 1 is not in 0..0"),
            (dataclasses.replace(fine, num_clients=-1), "num_clients=-1 is out of range for 6 rows"),
            (dataclasses.replace(fine, num_clients=10**12), "num_clients=1000000000000 is out of range"),
            (dataclasses.replace(fine, num_clients="2"), "'num_clients' of the partition's metadata"),
            (dataclasses.replace(fine, seed="0"), "'seed' of the partition's metadata"),
            (dataclasses.replace(fine, name=3), "'name' of the partition's metadata"),
            (dataclasses.replace(fine, options=[]), "'options' of the partition's metadata"),
            (dataclasses.replace(fine, options={"beta": [1]}), "'options' of the partition's metadata"),
            (dataclasses.replace(fine, graph_hash=None), "'graph_hash' of the partition's metadata"),
            (changed(fine, "held_client", 0, -1), "table 'held', row 0: held_client -1 is not in 0..1"),
            (changed(fine, "held_id", 5, 2**62), "row 5: held_id 4611686018427387904 is not in"),
            (changed(fine, "held_node", 2, -4), "table 'held', row 2: held_node -4 is not in"),
            (changed(fine, "held_node", 2, 2**40), "table 'held', row 2: held_node 1099511627776"),
            (changed(fine, "edge_client", 0, 2), "table 'edges', row 0: edge_client 2 is not in 0..1"),
            (changed(fine, "cross_remote_client", 1, 9), "row 1: cross_remote_client 9 is not in 0..1"),
            (swapped(fine, "held"), "table 'held', row 1: it is not in order"),
            (swapped(fine, "edge"), "table 'edges', row 1: .* by edge_client, edge_u, edge_v"),
            (swapped(fine, "cross"), "table 'cross', row 1: it is not in order"),
            (changed(fine, "held_id", 1, 0), "table 'held', row 1: it is not in order"),
            (changed(fine, "edge_v", 0, 3), "table 'edges', row 0: edge_v 3 is not held by client 0"),
            (changed(fine, "edge_v", 0, 7), "table 'edges', row 0: edge_v 7 is not held by client 0"),
            (changed(fine, "edge_u", 0, 1), "table 'edges', row 0: edge_u 1 is not below edge_v 1"),
            (without(fine, "held", 2), "table 'edges', row 1: edge_v 2 is not held by client 0"),
            (changed(fine, "held_owner", 4, False), "table 'held', row 4: id 4 has no owner"),
            (changed(shared(), "held_node", 8, 0), "row 8: id 2 stands for node 0 here, and for node 2"),
            (changed(fine, "cross_id", 0, 4), "table 'cross', row 0: cross_id 4 is not held by client 0"),
            (changed(fine, "cross_remote_id", 0, 1), "row 0: cross_remote_id 1 is not owned by client 1"),
            (changed(fine, "cross_remote_id", 0, 99), "row 0: cross_remote_id 99 is not owned by client 1"),
            (changed(fine, "cross_remote_client", 0, 0), "table 'cross', row 0: both ends are at client 0"),
            (without(fine, "cross", 1), "row 0: client 1 has no row for the edge from its id 3 to 2"),
            (dataclasses.replace(fine, edge_u=fine.edge_u[1:]), r"'edge_u' has dtype int64 and shape \(3,"),
            (dataclasses.replace(fine, held_owner=fine.held_id), "column 'held_owner' has dtype int64"),
            (dataclasses.replace(fine, held_id=fine.held_id * 1.0), "column 'held_id' has dtype float64"),
        ],
    )
    def test_tables_that_are_no_partition_are_refused_by_file_table_and_row(self, damaged, message, tmp_path):
        file = tmp_path / "p.safetensors"
        damaged.save(file)
        with pytest.raises(InputError, match=message) as caught:
            Partition.load(file)
        assert str(caught.value).startswith(str(file))

    @pytest.mark.parametrize(
        ("damaged", "message"),
        [
            (changed(fine, "held_node", 5, 6), "table 'held', row 5: node 6 is not one of the 6 nodes"),
            (changed(fine, "edge_v", 0, 2), "row 0: the graph has no edge between nodes 0 and 2"),
            (changed(changed(fine, "cross_id", 0, 1), "cross_remote_id", 1, 1), "row 0: .* 1 and 3"),
            (changed(fine, "held_owner", 4, False), "table 'held', row 4: id 4 has no owner"),
        ],
    )
    def test_tables_that_are_no_partition_of_the_graph_are_refused_by_check(self, damaged, message):
        with pytest.raises(InputError, match=message) as caught:
            damaged.check(self.path)
        assert str(caught.value).startswith("the 'assignment' partition: table")

    def test_what_is_whole_passes(self, tmp_path):
        for p in (self.fine, shared(), dataclasses.replace(self.fine, num_clients=9)):
            p.save(tmp_path / "p.safetensors")
            Partition.load(tmp_path / "p.safetensors").check(self.path)

    def test_a_partition_with_a_numpy_seed_can_be_saved(self, tmp_path):
        p = from_assignment(self.path, np.zeros(6, int), seed=np.int64(3))
        p.save(tmp_path / "p.safetensors")
        assert Partition.load(tmp_path / "p.safetensors").seed == 3


def test_an_assignment_keeps_empty_clients_and_its_options():
    graph = random_graph(10, 20, 2, 0)
    p = from_assignment(graph, np.full(10, 2), num_clients=5, name="custom", options={"a": 1}, seed=4)
    assert (p.num_clients, p.name, p.options, p.seed) == (5, "custom", {"a": 1}, 4)
    assert np.bincount(p.held_client, minlength=5).tolist() == [0, 0, 10, 0, 0]
    assert from_assignment(graph, np.full(10, 2)).num_clients == 3


def test_a_partition_remembers_its_options_with_the_defaults_filled_in():
    p = partition(random_graph(100, 20, 2, 0), "label_dirichlet", 2, 3, beta=5)
    assert (p.name, p.seed, p.options) == ("label_dirichlet", 3, {"beta": 5.0, "kind": "proportions"})


def test_the_options_do_not_count_for_the_hash_but_the_number_of_clients_does():
    graph = random_graph(10, 20, 2, 0)
    client = np.arange(10) % 2
    assert from_assignment(graph, client).hash == from_assignment(graph, client, name="custom", seed=9).hash
    assert from_assignment(graph, client).hash != from_assignment(graph, client, num_clients=3).hash


def test_the_dirichlet_partition_of_digits_stays_what_it_was():
    # Copied from the program's output: proves only that nothing moved, on this machine or another.
    p = partition(load("digits"), "label_dirichlet", 10, 0)
    assert p.hash == "a7062a9c14f168333217a4fde2d5bbd1e4ef880c971ae604eeeb6c773f5758f1"

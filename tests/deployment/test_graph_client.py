"""A client that reads its own files alone has what one party that reads all files would assign to it."""

import csv
import dataclasses
import hashlib
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_files import write_clients_with_edges_between_them

import graphfed
from graphfed.data.graphs import node_ids as hashing
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.link_splits import make_edge_split, training_graph
from graphfed.data.graphs.splits import hashed_parts, make_split
from graphfed.data.partitions.partition import Partition, partition
from graphfed.data.user_files import table_files
from graphfed.data.user_files.graph_description import describe_file
from graphfed.data.user_files.graph_files import load_description
from graphfed.deployment.site_files import write_cohorts
from graphfed.errors import InputError
from graphfed.federation import CLIENTS, Federation
from graphfed.federation.cohort import (
    Cohort,
    cohort_arrays,
    load_cohort,
    make_cohort,
    save_cohort,
    stable_ids_of,
    with_partition_ids,
)
from graphfed.methods.base import Task
from graphfed.methods.common.entity_alignment import OWNER_MESSAGES, NodeIds, count_owners
from graphfed.methods.registry import get_method
from graphfed.methods.sapgnn.config import SapgnnConfig
from graphfed.nn.sparse import SparseMatrix
from graphfed.runs.train import train
from graphfed.runtime.local import one_at_a_time
from graphfed.tasks.graphs.client_data import ClientData, make_client_cohort, read_client
from graphfed.tasks.graphs.kind import GRAPHS
from graphfed.tasks.graphs.schema import Schema, compare_schemas
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import default_settings

ROSTER = ("north", "south", "west")


def read(
    path: Path, client: str, roster: Sequence[str] = ROSTER, split: str = "default", seed: int = 0
) -> ClientData:
    return read_client(path, split=split, split_seed=seed, roster=roster, client=client)


def assigned(path: Path) -> tuple[Graph, Split, Partition]:
    """What one party with all files reads, and assigns to the clients."""
    graph = load_description(describe_file(path)[0])
    return graph, make_split(graph, "default", 0), partition(graph, "column", None, 0)


# ---- what a cohort says, by the user's own ids -------------------------------------------------------------


def described(cohort: Cohort, names: Sequence[str], far: Callable[[int, int], str]) -> dict[str, Any]:
    """Describe what a cohort says of its clients, without any number of a row or node. names: of the rows;
    far(client, id): the name of a node elsewhere."""
    x = cohort.x.to_dense() if isinstance(cohort.x, SparseMatrix) else cohort.x
    assert x is not None
    where = [(cohort.clients[k], name) for k, name in zip(cohort.client.tolist(), names, strict=True)]
    columns = (x, cohort.y, cohort.owned, cohort.owners, cohort.train, cohort.val, cohort.test)
    weight = [1.0] * cohort.edge_index.shape[1] if cohort.edge_weight is None else cohort.edge_weight.tolist()
    cross_weight = (
        [1.0] * len(cohort.cross_row) if cohort.cross_weight is None else cohort.cross_weight.tolist()
    )
    cross = zip(
        cohort.cross_row.tolist(),
        cohort.cross_client.tolist(),
        cohort.cross_id.tolist(),
        cross_weight,
        strict=True,
    )
    return {
        "rows": {at: [column[i].tolist() for column in columns] for i, at in enumerate(where)},
        "edges": sorted(
            (*where[a], where[b][1], w)
            for (a, b), w in zip(cohort.edge_index.t().tolist(), weight, strict=True)
        ),
        "cross": sorted((*where[row], client, far(client, i), w) for row, client, i, w in cross),
    }


def described_locally(graph: Graph, split: str, clients: Sequence[int]) -> dict[str, Any]:
    """Describe the cohort that one party with all files makes for these clients."""
    partitioned = partition(graph, "column", None, 0)
    cohort = make_cohort(graph, make_split(graph, split, 0), partitioned, clients)
    names = graph.ids.to_pylist()
    return described(cohort, [names[i] for i in cohort.id.tolist()], lambda _, i: names[i])


def described_by_client(data: ClientData, cohort: Cohort, everyone: Sequence[ClientData]) -> dict[str, Any]:
    name_of = {
        (k, i): name
        for other in everyone
        for k, i, name in zip(
            [other.cohort.clients[k] for k in other.cohort.client.tolist()],
            other.cohort.id.tolist(), other.ids.to_pylist(), strict=True,
        )
    }  # fmt: skip
    return described(cohort, data.ids.to_pylist(), lambda client, i: name_of[client, i])


# ---- one table of nodes, split into the clients' own -----------------------------------------------------


@dataclasses.dataclass
class World:
    """client, x, label and part of each node (called 0, 1, ... at its client); edges: (u, v, weight)."""

    client: list[str]
    x: list[float]
    label: list[str]
    part: list[str]
    edges: list[tuple[int, int, float]]

    def name(self, v: int) -> str:
        return str(sum(client == self.client[v] for client in self.client[:v]))

    def write(self, folder: Path, name: str, held: Sequence[str], more: str = "") -> Path:
        """The files of the clients `held`, in the order of `shuffled`, and their description."""
        folder.mkdir(exist_ok=True)
        here = [v for v in range(len(self.client)) if self.client[v] in held]
        rows = [f"{self.name(v)},{self.client[v]},{self.x[v]},{self.label[v]},{self.part[v]}" for v in here]
        lines = [
            f"{self.name(u)},{self.client[u]},{self.name(v)},{self.client[v]},{w}"
            for u, v, w in self.edges
            if u in here or v in here
        ]
        (folder / f"{name}_nodes.csv").write_text("\n".join(["id,client,f,label,split", *rows]) + "\n")
        (folder / f"{name}_edges.csv").write_text("\n".join(["source,s,target,t,weight", *lines]) + "\n")
        (folder / f"{name}.yaml").write_text(
            f"nodes: {name}_nodes.csv\nedges: {name}_edges.csv\nsource_client: s\ntarget_client: t\n"
            f"classes: [yes-, 'no']\n{more}"
        )
        return folder / f"{name}.yaml"


@st.composite
def worlds(draw: st.DrawFn) -> World:
    n = draw(st.integers(3, 14))
    node = st.integers(0, n - 1)
    clients = [*ROSTER, *draw(st.lists(st.sampled_from(ROSTER), min_size=n - 3, max_size=n - 3))]
    labels = draw(st.lists(st.sampled_from(["yes-", "no", ""]), min_size=n, max_size=n))
    parts = draw(st.lists(st.sampled_from(["train", "val", "test", ""]), min_size=n, max_size=n))
    return World(
        draw(st.permutations(clients)),
        [float(i) for i in range(n)],
        labels,
        [part if label else "" for part, label in zip(parts, labels, strict=True)],
        draw(st.lists(st.tuples(node, node, st.sampled_from([0.5, 1.0, 3.0])), max_size=30)),
    )


@settings(max_examples=60)
@given(
    world=worlds(),
    weighted=st.booleans(),
    rule=st.sampled_from(["sum", "mean", "max"]),
    gateway=st.booleans(),
)
def test_clients_with_edges_between_them_read_what_one_party_would_assign_to_them(
    world: World, weighted: bool, rule: str, gateway: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("world")
    more = f"repeated: {rule}\n" + ("" if weighted else "weight:\n")
    graph = load_description(describe_file(world.write(folder, "all", ROSTER, more))[0])
    workers = (
        {"hub": ("north", "south"), "west": ("west",)} if gateway else {name: (name,) for name in ROSTER}
    )
    clients = [read(world.write(folder, client, held, more), client) for client, held in workers.items()]
    compare_schemas({client: data.schema for client, data in zip(workers, clients, strict=True)})
    for held, data in zip(workers.values(), clients, strict=True):
        numbers = [ROSTER.index(name) for name in held]
        assert (data.schema.class_names, data.schema.feature_names) == (graph.class_names, ("f",))
        assert data.schema.weighted is weighted is (data.cohort.edge_weight is not None)
        cohort = make_client_cohort(data, numbers, 2)
        assert described_by_client(data, cohort, clients) == described_locally(graph, "public", numbers)


@settings(max_examples=30)
@given(world=worlds(), data=st.data())
def test_the_order_of_rows_the_direction_of_edges_and_the_size_of_blocks_do_not_matter(
    world: World, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("world")
    one = read(world.write(folder, "north", ["north"]), "north")
    for name in ("north_nodes.csv", "north_edges.csv"):
        head, *rows = (folder / name).read_text().splitlines()
        (folder / name).write_text("\n".join([head, *data.draw(st.permutations(rows))]) + "\n")
    head, *rows = (folder / "north_edges.csv").read_text().splitlines()
    turned = [",".join([*row.split(",")[2:4], *row.split(",")[:2], row.split(",")[4]]) for row in rows]
    (folder / "north_edges.csv").write_text("\n".join([head, *turned]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "_BLOCK_BYTES", 64)
        again = read(folder / "north.yaml", "north")
    assert again.ids.equals(one.ids)
    assert again.schema == one.schema
    for field in dataclasses.fields(Cohort):
        first, second = getattr(one.cohort, field.name), getattr(again.cohort, field.name)
        assert torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second, field.name


SMALL = World(
    ["north", "south", "north", "west"], [1, 2, 3, 4], ["yes-", "no", "", "no"], ["train", "val", "", "test"],
    [(0, 1, 1.0), (0, 2, 1.0), (1, 3, 1.0)],
)  # fmt: skip


def test_an_id_is_the_first_63_bits_of_a_hash_of_client_and_id(tmp_path: Path) -> None:
    def first_bits(text: str) -> int:
        return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) // 2

    data = read(SMALL.write(tmp_path, "north", ["north"]), "north")
    assert dict(zip(data.ids.to_pylist(), data.cohort.id.tolist(), strict=True)) == {
        name: first_bits(f"north\x1f{name}") for name in ("0", "1")
    }
    assert data.cohort.cross_id.tolist() == [first_bits("south\x1f0")]
    assert data.cohort.cross_client.tolist() == [1]
    (tmp_path / "plain.yaml").write_text("nodes: n.csv\nedges: e.csv\n")
    (tmp_path / "n.csv").write_text("id,f\nÄnne,1\n007,2\n")
    (tmp_path / "e.csv").write_text("source,target\n007,Änne\n")
    plain = read(tmp_path / "plain.yaml", "north")
    assert sorted(plain.cohort.id.tolist()) == sorted(map(first_bits, ("Änne", "007")))
    assert plain.schema.ids == "id"


def test_two_ids_of_one_hash_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = SMALL.write(tmp_path, "north", ["north"])
    monkeypatch.setattr(hashing, "id_of", len)
    with pytest.raises(InputError, match=r"the nodes 'north.*0' and 'north.*1' have the same hash"):
        read(path, "north")


def test_weights_that_are_all_one_are_weights(tmp_path: Path) -> None:
    data = read(SMALL.write(tmp_path, "north", ["north"]), "north")
    assert data.schema.weighted
    assert data.cohort.edge_weight is not None
    assert data.cohort.cross_weight is not None
    assert (data.cohort.edge_weight.tolist(), data.cohort.cross_weight.tolist()) == ([1, 1], [1])


def test_floating_numbers_take_torchs_dtype_and_a_client_has_its_own_clients_only(tmp_path: Path) -> None:
    data = read(SMALL.write(tmp_path, "north", ["north"]), "north")
    torch.set_default_dtype(torch.float64)
    cohort = make_client_cohort(data, [0], 2)
    assert cohort.x is not None
    assert cohort.edge_weight is not None
    assert cohort.x.dtype == cohort.edge_weight.dtype == torch.float64
    with pytest.raises(
        InputError, match=r"belongs to the clients \[0\], and the run expects the clients \[1\] here"
    ):
        make_client_cohort(data, [1], 2)
    with pytest.raises(InputError, match="the data here has 2 classes, and the run has 3; name all classes"):
        make_client_cohort(data, [0], 3)


# ---- the clients' own tables, with nodes in common --------------------------------------------------------


@dataclasses.dataclass
class Shared:
    """x, label and part of each node; what each client lists: node -> whether it has the label; edges."""

    x: list[float]
    label: list[str]
    part: list[str]
    nodes: list[dict[int, bool]]
    edges: list[list[tuple[int, int]]]

    def write(self, folder: Path) -> Path:
        """Every client's files, its own description, and the description of all."""
        lines = ["clients:"]
        for s, (nodes, edges) in enumerate(zip(self.nodes, self.edges, strict=True)):
            rows = [
                f"v{v},{self.label[v] * has},{self.x[v]},{self.part[v] * has}" for v, has in nodes.items()
            ]
            (folder / f"n{s}.csv").write_text("\n".join(["id,label,f,split", *rows]) + "\n")
            (folder / f"e{s}.csv").write_text(
                "\n".join(["source,target", *(f"v{u},v{v}" for u, v in edges)]) + "\n"
            )
            (folder / f"{ROSTER[s]}.yaml").write_text(f"nodes: n{s}.csv\nedges: e{s}.csv\nclasses: [b, a]\n")
            lines.append(f"  {ROSTER[s]}: {{nodes: n{s}.csv, edges: e{s}.csv}}")
        (folder / "all.yaml").write_text("\n".join([*lines, "classes: [b, a]"]) + "\n")
        return folder / "all.yaml"


@st.composite
def shared_worlds(draw: st.DrawFn) -> Shared:
    n = draw(st.integers(1, 10))
    labels = draw(st.lists(st.sampled_from(["a", "b", ""]), min_size=n, max_size=n))
    parts = draw(st.lists(st.sampled_from(["train", "val", "test", ""]), min_size=n, max_size=n))
    parts = [part if label else "" for part, label in zip(parts, labels, strict=True)]
    world = Shared([float(i) for i in range(n)], labels, parts, [], [])
    for _ in ROSTER:
        first = draw(st.dictionaries(st.integers(0, n - 1), st.booleans(), min_size=1))
        ends = st.sampled_from(sorted(first))
        world.nodes.append(first)
        world.edges.append(draw(st.lists(st.tuples(ends, ends), max_size=12)))
    return world


@settings(max_examples=60)
@given(world=shared_worlds(), ids=st.sampled_from(["simulated", "plain"]), gateway=st.booleans())
def test_clients_that_share_nodes_find_out_how_many_own_them(
    world: Shared, ids: Any, gateway: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("world")
    graph = load_description(describe_file(world.write(folder))[0])
    workers: list[tuple[int, ...]] = [(0,), (1,), (2,)]
    clients = [read(folder / f"{name}.yaml", name) for name in ROSTER]
    if gateway:
        workers = [(0, 1, 2)]
        clients = [read(folder / "all.yaml", "hub")]
    fed = Federation(workers)
    cohorts = [make_client_cohort(data, worker, 2) for data, worker in zip(clients, workers, strict=True)]
    counted = count_owners(fed, fed.locate(CLIENTS, "data", cohorts), SapgnnConfig(ids=NodeIds(ids)))
    assert {entry.name for entry in fed.ledger.entries} == {*OWNER_MESSAGES}
    for data, worker, cohort in zip(clients, workers, fed.local_parts(counted), strict=True):
        assert described_by_client(data, cohort, clients) == described_locally(graph, "public", worker)


# ---- training ----------------------------------------------------------------------------------------------


BANKS = ("Northbank", "Harbour Trust", "Union Savings")


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's files, and a description for each bank of its own."""
    root = Path(__file__).resolve().parents[2]
    folder = tmp_path_factory.mktemp("shared") / "banks"
    runpy.run_path(str(root / "examples/shared_customers/make_data.py"))["main"](folder)
    columns = (folder / "banks.yaml").read_text().split("\n", 4)[4]
    for bank in BANKS:
        own = bank.lower().replace(" ", "_")
        (folder / f"{own}.yaml").write_text(
            f"nodes: {own}/customers.csv\nedges: {own}/transfers.csv\nclasses: ['no', 'yes']\n{columns}"
        )
    return folder


def read_bank(banks: Path, bank: str) -> ClientData:
    return read(banks / f"{bank.lower().replace(' ', '_')}.yaml", bank, BANKS)


@pytest.fixture(scope="module")
def friends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clients with edges between them by (client, id), one of them a gateway of two clients; and all in
    one."""
    folder = tmp_path_factory.mktemp("friends")
    for name, held in FRIENDS.items():
        friends_world().write(folder, name, held)
    return folder


#: The files of the friends' world, and who is in each.
FRIENDS = {"all": ROSTER, "hub": ROSTER[:2], **{name: (name,) for name in ROSTER}}


def friends_world() -> World:
    rng = np.random.default_rng(5)
    n = 90
    label = rng.integers(0, 2, n)
    ends = rng.integers(0, n, (400, 2))
    listed = (label[ends[:, 0]] == label[ends[:, 1]]) | (rng.random(400) < 0.3)
    weights = rng.choice([0.5, 1, 2], listed.sum())
    return World(
        [ROSTER[s] for s in rng.integers(0, 3, n)],
        (label + rng.normal(0, 1, n)).tolist(),
        [("yes-", "no")[c] for c in label],
        [("train", "train", "val", "test")[p] for p in rng.integers(0, 4, n)],
        [(int(u), int(v), float(w)) for (u, v), w in zip(ends[listed], weights, strict=True)],
    )


def trained(
    name: str, cohorts: Sequence[Cohort], workers: list[tuple[int, ...]], own_files: bool, **more: Any
) -> tuple[Outcome, dict[str, torch.Tensor]]:
    """A short run without dropout, and its model."""
    method = get_method(name)
    given = {"rounds": 3, "hidden": 6, "dropout": 0.0, **more}
    config = method.configure(given, default_settings(method, preset="paper"))
    fed = Federation(workers)
    data = fed.locate(CLIENTS, "data", list(cohorts))
    if own_files and "node_ids" in method.tree.names:
        data = count_owners(fed, data, config)
    task = Task(cohorts[0].num_features, cohorts[0].num_classes)
    outcome = train(fed, method, data, task, config)
    weights = {}
    for value in method.state.model:
        for key, w in outcome.state.values[value].parts[0].items():
            weights[f"{value}.{key}"] = w
    return outcome, weights


Trained = tuple[Outcome, dict[str, torch.Tensor]]


def check_same(one: Trained, other: Trained, tolerance: float = 1e-9) -> None:
    """The same metrics in every round and at the end, and the same weights."""
    assert len(one[0].history) == len(other[0].history) == 3
    for first, second in zip(one[0].history, other[0].history, strict=True):
        assert first["val"] == pytest.approx(second["val"], abs=tolerance)
    assert one[0].test == pytest.approx(other[0].test, abs=tolerance)
    assert one[0].test_confusion == other[0].test_confusion
    assert one[0].best_round == other[0].best_round
    assert {*one[1]} == {*other[1]}
    for key, weight in one[1].items():
        assert torch.allclose(weight, other[1][key], rtol=0, atol=tolerance), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clients_of_which_one_has_a_number_that_float32_changes_scale_it_as_one_run_on_all_files(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """Each client decides by its own file; the files of two clients have nothing beyond float32."""
    torch.set_default_dtype(dtype)
    world = friends_world()
    x = [
        2.0**26 + 8 * (value > 0.5) + (client == "north")
        for value, client in zip(world.x, world.client, strict=True)
    ]
    world = dataclasses.replace(world, x=x)
    for name, held in FRIENDS.items():
        world.write(tmp_path, name, held)
    graph, split, partitioned = assigned(tmp_path / "all.yaml")
    workers = one_at_a_time(3).workers
    local = [make_cohort(graph, split, partitioned, worker) for worker in workers]
    sites = [read(tmp_path / f"{client}.yaml", client) for client in ROSTER]
    stored = [torch.float64 if client == "north" else torch.float32 for client in ROSTER]
    assert [site.cohort.x.dtype for site in sites if site.cohort.x is not None] == stored
    own = [make_client_cohort(site, worker, 2) for site, worker in zip(sites, workers, strict=True)]
    options = {"features": "scaled", "rounds": 3}
    check_same(
        trained("fedavg", own, workers, True, **options), trained("fedavg", local, workers, False, **options),
        1e-9 if dtype == torch.float64 else 1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("aggregation", ["plaintext", "additive"])
@pytest.mark.parametrize("name", ["sapgnn", "ppgnn"])
def test_banks_that_read_their_own_files_train_what_one_run_on_all_files_trains(
    name: str, aggregation: str, banks: Path
) -> None:
    """Where gradients are shared they are rounded to 2^-25, and another order of the same sums may round one
    of them the other way."""
    torch.set_default_dtype(torch.float64)
    graph, split, partitioned = assigned(banks / "banks.yaml")
    workers = one_at_a_time(3).workers
    cohorts = [make_cohort(graph, split, partitioned, worker) for worker in workers]
    local = trained(name, cohorts, workers, False, aggregation=aggregation)
    clients = [read_bank(banks, bank) for bank in BANKS]
    compare_schemas({bank: data.schema for bank, data in zip(BANKS, clients, strict=True)})
    cohorts = [make_client_cohort(data, worker, 2) for data, worker in zip(clients, workers, strict=True)]
    own = trained(name, cohorts, workers, True, aggregation=aggregation)
    check_same(own, local, 1e-9 if aggregation == "plaintext" else 1e-5)


@pytest.mark.parametrize("name", ["fedgcn", "fedavg"])
@pytest.mark.parametrize("hub", [False, True], ids=["", "gateway"])
def test_clients_with_edges_between_them_train_what_one_run_on_all_files_trains(
    name: str, hub: bool, friends: Path
) -> None:
    torch.set_default_dtype(torch.float64)
    graph, split, partitioned = assigned(friends / "all.yaml")
    one_each = one_at_a_time(3).workers
    local = trained(
        name, [make_cohort(graph, split, partitioned, worker) for worker in one_each], one_each, False
    )
    workers = {"hub": (0, 1), "west": (2,)} if hub else {client: (k,) for k, client in enumerate(ROSTER)}
    cohorts = [
        make_client_cohort(read(friends / f"{client}.yaml", client), held, 2)
        for client, held in workers.items()
    ]
    assert sum(len(cohort.cross_row) for cohort in cohorts) > 50
    check_same(trained(name, cohorts, list(workers.values()), True), local)


def check_same_arrays(one: Cohort, other: Cohort) -> None:
    """Row by row, bit for bit."""
    first, second = cohort_arrays(one), cohort_arrays(other)
    assert {*first} == {*second}
    for key, array in first.items():
        assert np.array_equal(array, second[key]), key


class UniqueIds(World):
    """No two clients have an id in common."""

    def name(self, v: int) -> str:
        return f"v{v}"


@pytest.mark.parametrize("unique", [False, True], ids=["ids of a client", "unique ids"])
@pytest.mark.parametrize("between", [True, False], ids=["edges between clients", "edges inside clients"])
def test_a_client_has_the_very_ids_rows_and_edges_that_one_party_with_all_files_assigns_to_it(
    unique: bool, between: bool, tmp_path: Path
) -> None:
    """Draws are keyed by the ids, and sums are in the order of the rows. Where ids are unique over all
    clients, who has all files need not name the clients of an edge's ends; nor need a client without edges to
    others."""
    world = friends_world()
    if not between:
        world.edges = [(u, v, w) for u, v, w in world.edges if world.client[u] == world.client[v]]
    written = UniqueIds(**vars(world)) if unique else world
    paths = {name: written.write(tmp_path, name, held) for name, held in FRIENDS.items()}
    for name, path in paths.items():
        if unique and (name == "all" or not between):
            path.write_text(path.read_text().replace("source_client: s\ntarget_client: t\n", ""))
    graph, split, partitioned = assigned(paths["all"])
    ids = stable_ids_of(graph, partitioned)
    for client, clients in {"hub": (0, 1), **{client: (k,) for k, client in enumerate(ROSTER)}}.items():
        cohort = make_client_cohort(read(paths[client], client), clients, 2)
        check_same_arrays(cohort, make_cohort(graph, split, partitioned, clients, stable_ids=ids))


def test_banks_that_share_customers_give_each_the_id_that_one_party_gives_it(banks: Path) -> None:
    graph, split, partitioned = assigned(banks / "banks.yaml")
    ids = stable_ids_of(graph, partitioned)
    for k, bank in enumerate(BANKS):
        data = read_bank(banks, bank)
        cohort = make_cohort(graph, split, partitioned, [k], stable_ids=ids)
        assert torch.equal(data.cohort.id, cohort.id)
        assert torch.equal(data.cohort.edge_index, cohort.edge_index)


def test_two_customers_of_one_hash_are_refused_where_one_party_has_all_files(
    banks: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = hashing.id_of
    monkeypatch.setattr(hashing, "id_of", lambda text: 7 if text in ("P0001", "P0002") else real(text))
    with pytest.raises(InputError, match=r"'P000[12]' and 'P000[12]' have the same hash.* another id"):
        graphfed.run("fedavg", data=banks / "banks.yaml", rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_link_prediction_finds_the_users_nodes_again_under_their_ids(friends: Path) -> None:
    graph = load_description(describe_file(friends / "all.yaml")[0])
    split = make_edge_split(graph, "default", 0)
    graph = training_graph(graph, split)
    partitioned = partition(graph, "column", None, 0)
    plain = make_cohort(graph, split, partitioned, [0, 2])
    cohort = make_cohort(graph, split, partitioned, [0, 2], stable_ids=stable_ids_of(graph, partitioned))
    assert cohort.links is not None
    step = np.diff(np.stack([cohort.links.row, cohort.links.id]))
    assert ((step[0] > 0) | ((step[0] == 0) & (step[1] > 0))).all(), "sorted by row and id"
    found = with_partition_ids(cohort, graph.stable_ids)

    def pairs(cohort: Cohort) -> set[tuple[int, ...]]:
        links = cohort.links
        assert links is not None
        columns = (cohort.id[links.row], links.id, links.client, links.label, links.part)
        return {*zip(*(column.tolist() for column in columns), strict=True)}

    assert pairs(found) == pairs(plain)


# ---- splits ------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    ids=st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=60),
    seed=st.integers(0, 2**31),
    fractions=st.sampled_from(["0.5,0.25,0.25", "0.7,0.2,0.1", "0.3,0,0.1", "1,0,0"]),
    data=st.data(),
)
def test_a_vertexs_part_depends_on_its_id_and_the_seed_alone(
    ids: list[int], seed: int, fractions: str, data: st.DataObject
) -> None:
    numbers = np.array(ids, dtype=np.int64)
    parts = hashed_parts(numbers, f"random:{fractions}", seed)
    some = np.array(
        data.draw(st.lists(st.sampled_from(range(len(ids))), unique=True)) if ids else [], dtype=int
    )
    assert hashed_parts(numbers[some], f"random:{fractions}", seed).tolist() == parts[some].tolist()
    chances = [float(f) for f in fractions.split(",")]
    assert all(part == 3 or chances[part] > 0 for part in parts.tolist())


def test_parts_come_with_their_chances_and_another_seed_gives_other_parts() -> None:
    """Each count is binomial: beyond 6 standard errors once in 5e8 tries."""
    ids = np.random.default_rng(0).integers(0, 2**63 - 1, 40_000)
    one, other = (hashed_parts(ids, "random:0.5,0.3,0.1", seed) for seed in (0, 1))
    for part, chance in enumerate((0.5, 0.3, 0.1, 0.1)):
        assert abs((one == part).sum() - 40_000 * chance) < 6 * (40_000 * chance * (1 - chance)) ** 0.5
    # Independent draws agree with probability 0.25 + 0.09 + 0.01 + 0.01.
    assert abs((one == other).mean() - 0.36) < 6 * (0.36 * 0.64 / 40_000) ** 0.5
    assert (hashed_parts(ids, "default", 0) == hashed_parts(ids, "random:0.5,0.25,0.25", 0)).all()


def test_without_a_column_clients_that_share_a_node_put_it_into_the_same_part(tmp_path: Path) -> None:
    for client, held in (("north", range(40)), ("south", range(20, 60))):
        rows = [f"v{v},{v},{'ab'[v % 2]}" for v in held]
        (tmp_path / f"{client}.csv").write_text("\n".join(["id,f,label", *rows]) + "\n")
        (tmp_path / "e.csv").write_text("source,target\n")
        (tmp_path / f"{client}.yaml").write_text(f"nodes: {client}.csv\nedges: e.csv\n")
    parts = []
    for client in ("north", "south"):
        data = read(tmp_path / f"{client}.yaml", client, split="random:0.5,0.3,0.2", seed=3)
        assert data.schema.parts == "hash"
        masks = zip(*(getattr(data.cohort, part).tolist() for part in ("train", "val", "test")), strict=True)
        parts.append(dict(zip(data.ids.to_pylist(), masks, strict=True)))
    common = {*parts[0]} & {*parts[1]}
    assert len(common) == 20
    assert all(parts[0][v] == parts[1][v] for v in common)
    assert len({parts[0][v] for v in common}) > 1


@pytest.mark.parametrize(("split", "part"), [("default", "train"), ("random:1,0,0", "")])
def test_a_part_counts_where_the_label_is(split: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(f"id,f,label,split\na,1,x,{part}\nb,2,,{part}\n")
    (tmp_path / "e.csv").write_text("source,target\n")
    (tmp_path / "d.yaml").write_text("nodes: n.csv\nedges: e.csv\n")
    data = read(tmp_path / "d.yaml", "north", split=split)
    assert data.schema.parts == ("column" if part else "hash")
    assert [data.ids[i].as_py() for i in data.cohort.rows("train").tolist()] == ["a"]
    assert data.cohort.owned.all()


# ---- what is refused ---------------------------------------------------------------------------------------

NODES = "id,client,f,label,split\n0,north,1,yes-,train\n1,north,3,,\n"
EDGES = "source,s,target,t\n0,north,0,south\n1,north,0,north\n"
OWN = "nodes: n.csv\nedges: e.csv\nsource_client: s\ntarget_client: t\n"
TWO_SITES = "clients:\n  north: {nodes: n.csv, edges: e.csv}\n  south: {nodes: n.csv, edges: e.csv}\n"

#: What the files hold, who reads them with which split, and what is said.
REFUSED: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "an edge to a client that is not there": (
        {"e.csv": EDGES + "0,north,7,east\n"}, {},
        r"e\.csv, line 4, column 't': 'east' is no client of this run; the clients "
        "are 'north', 'south', 'west'"),
    "an edge with no end here": (
        {"e.csv": EDGES + "5,south,7,west\n"}, {},
        r"e\.csv, line 4, column 'source': '5' is at another client, like the edge's other endpoint; drop"),
    "an edge to a node that this client does not list": (
        {"e.csv": EDGES + "0,north,9,north\n"}, {},
        r"e\.csv, line 4, column 'target': '9' is no node of .*n\.csv; add the node"),
    "without clients, an edge to another client's node": (
        {"d.yaml": "nodes: n.csv\nedges: e.csv\nclient:\n", "e.csv": "source,target\n0,1\n0,5\n"}, {},
        r"e\.csv, line 3, column 'target': '5' is no node of .*n\.csv"),
    "a node of another client": (
        {"n.csv": NODES + "2,south,1,,\n"}, {},
        r"n\.csv, line 4, column 'client': 'south' is no client of this file; its nodes are at 'north'"),
    "a gateway's node at no client": (
        {"n.csv": NODES + "2,east,1,,\n"}, {"client": "hub"},
        "line 4, column 'client': 'east' is no client of"),
    "a gateway whose clients stand apart": (
        {"n.csv": NODES + "2,west,1,,\n"}, {"client": "hub"}, r"\['north', 'west'\] and none of 'south'"),
    "a gateway that does not state whom it holds": (
        {"d.yaml": "nodes: n.csv\nedges: e.csv\nclient:\n", "e.csv": "source,target\n"}, {"client": "hub"},
        r"'hub' is none of the run's clients \['north', 'south', 'west'\], and .*d\.yaml does not state"),
    "everybody's files at one client": (
        {"d.yaml": TWO_SITES, "e.csv": "source,target\n"}, {}, r"d\.yaml describes the files of 2 clients"),
    "files of a client that is not there": (
        {"d.yaml": TWO_SITES.replace("south", "east"), "e.csv": "source,target\n"}, {"client": "hub"},
        r"describes the files of 'east', which is none of the run's clients"),
    "a public split without a column": (
        {"d.yaml": OWN + "split:\n"}, {"split": "public"},
        "split 'public' cannot be drawn if every client sees only its own nodes"),
    "a split by class without a column": (
        {"d.yaml": OWN + "split:\n"}, {"split": "per_class:5,5,5"}, "split 'per_class:5,5,5' cannot be"),
    "a split by class with a column": ({}, {"split": "per_class"}, r"split 'per_class' cannot be drawn"),
    "an unknown split": ({}, {"split": "randm"}, r"unknown split 'randm'; did you mean 'random'"),
    "a label that is no class": (
        {"d.yaml": OWN + "classes: [a, b]\n"}, {},
        r"n\.csv, line 2, column 'label': 'yes-' is none of the classes; correct it, add it to"),
    "two clients of one name": ({}, {"roster": ["north", "north"]}, "have the same name"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_client_cannot_use_is_refused_with_the_place_and_the_fix(case: str, tmp_path: Path) -> None:
    files, given_here, message = REFUSED[case]
    for name, text in {"n.csv": NODES, "e.csv": EDGES, "d.yaml": OWN, **files}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "d.yaml", **{"client": "north", **given_here})


def test_the_files_that_are_broken_above_are_good(tmp_path: Path) -> None:
    for name, text in {"n.csv": NODES, "e.csv": EDGES, "d.yaml": OWN}.items():
        (tmp_path / name).write_text(text)
    data = read(tmp_path / "d.yaml", "north")
    assert (data.cohort.num_rows, len(data.cohort.cross_row), data.cohort.edge_index.shape[1]) == (2, 1, 2)
    (tmp_path / "d.txt").write_text("")
    with pytest.raises(InputError, match=r"d\.txt is no file of a client; give the description"):
        read(tmp_path / "d.txt", "north")


# ---- partitioned cohorts ---------------------------------------------------------------------------------


def partitioned_files(banks: Path, folder: Path) -> tuple[Graph, dict[str, Path]]:
    graph, split, partitioned = assigned(banks / "banks.yaml")
    return graph, write_cohorts(graph, split, partitioned, folder)


def test_a_partitioned_file_is_the_clients_cohort_with_the_names_of_its_columns(
    banks: Path, tmp_path: Path
) -> None:
    graph, files = partitioned_files(banks, tmp_path / "partitioned")
    assert [path.name for path in files.values()] == [
        "Northbank.safetensors",
        "Harbour-Trust.safetensors",
        "Union-Savings.safetensors",
    ]
    assert sorted((tmp_path / "partitioned").iterdir()) == sorted(files.values())
    split, partitioned = make_split(graph, "default", 0), partition(graph, "column", None, 0)
    for k, (bank, path) in enumerate(files.items()):
        data = read(path, bank, BANKS)
        assert data.schema == Schema(graph.feature_names, graph.class_names, False, "exported", "exported")
        assert data.schema.owners_known
        expected = make_cohort(graph, split, partitioned, [k], stable_ids=stable_ids_of(graph, partitioned))
        check_same_arrays(make_client_cohort(data, [k], 2), expected)
        names = [graph.ids[i].as_py() for i in with_partition_ids(expected, graph.stable_ids).id.tolist()]
        assert data.ids.to_pylist() == names
    compare_schemas({bank: read(path, bank, BANKS).schema for bank, path in files.items()})


def test_another_clients_file_or_another_runs_is_refused(banks: Path, tmp_path: Path) -> None:
    _, files = partitioned_files(banks, tmp_path / "partitioned")
    with pytest.raises(
        InputError, match=r"was exported for the clients \[1\] .* and 'Northbank' has the clients \[0\]"
    ):
        read(files["Harbour Trust"], "Northbank", BANKS)
    with pytest.raises(InputError, match=r"was exported for the clients \[2\] of a run, .* of 0\.\.1; give"):
        read(files["Union Savings"], "hub", BANKS[:2])
    data = read(files["Union Savings"], "hub", BANKS)
    assert data.cohort.clients == (2,)


def test_a_gateways_file_has_several_clients_and_names_are_no_must(banks: Path, tmp_path: Path) -> None:
    graph, split, parts = assigned(banks / "banks.yaml")
    for clients, fault in (([0, 1], ""), ([0, 2], r"was exported for the clients \[0, 2\]")):
        save_cohort(make_cohort(graph, split, parts, clients), tmp_path / "hub.safetensors")
        if fault:
            with pytest.raises(InputError, match=fault):
                read(tmp_path / "hub.safetensors", "hub", BANKS)
            continue
        data = read(tmp_path / "hub.safetensors", "hub", BANKS)
        assert data.schema.feature_names == ("",) * 4
        assert data.schema.class_names == ("", "")
        assert make_client_cohort(data, [0, 1], 2).clients == (0, 1)
        named = dataclasses.replace(data.schema, feature_names=("a", "b", "c", "d"), class_names=("x", "y"))
        compare_schemas({"hub": data.schema, "Union Savings": named})


def test_a_partitioned_file_has_nothing_of_other_clients_except_the_ids_of_neighbours(
    friends: Path, tmp_path: Path
) -> None:
    graph, split, partitioned = assigned(friends / "all.yaml")
    for k, path in enumerate(write_cohorts(graph, split, partitioned, tmp_path / "partitioned").values()):
        cohort = load_cohort(path)
        own = {int(i) for i in partitioned.held_id[partitioned.held_client == k]}
        assert {*cohort.id.tolist()} == {int(graph.stable_ids[i]) for i in own}
        u, v = graph.edges
        across = {
            int(b)
            for a, b in [*zip(u, v, strict=True), *zip(v, u, strict=True)]
            if int(a) in own and int(b) not in own
        }
        assert {*cohort.cross_id.tolist()} == {int(graph.stable_ids[i]) for i in across}
        assert graph.x is not None
        values = {float(value) for i, value in enumerate(graph.x[:, 0].tolist()) if i not in own}
        assert isinstance(cohort.x, torch.Tensor)
        assert not values & {*cohort.x[:, 0].tolist()}


# ---- categories and gaps -----------------------------------------------------------------------------------


@pytest.fixture
def sites(tmp_path: Path) -> tuple[Path, list[ClientData]]:
    """The folder of tables with gaps and categories, of which some are at one client only, and the sites."""
    write_clients_with_edges_between_them(tmp_path)
    for path in tmp_path.glob("*_nodes.csv"):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            # south has no gap, and alone it would have no indicator. Few have the rarest category.
            digit = row["f1"][-1]
            row["kind"] = "trust" if row["f2"][-1] == digit == "1" else ("", "firm", "person")[int(digit) % 3]
            row["f5"] = "" if row["bank"] != "south" and row["f0"][-1] in "37" else row["f5"]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)
    for path in tmp_path.glob("*.yaml"):
        path.write_text(path.read_text() + "categorical: kind\nmissing: indicator\n")
    return tmp_path, [read(tmp_path / f"{name}.yaml", name) for name in ROSTER]


def test_sites_agree_on_the_features_of_the_run_on_all_files(sites: tuple[Path, list[ClientData]]) -> None:
    folder, data = sites
    graph, split, parts = assigned(folder / "all.yaml")
    agreed = GRAPHS.agree(
        {name: each.schema.to_json() for name, each in zip(ROSTER, data, strict=True)}, None
    )
    task = GRAPHS.task(agreed)
    assert (task.num_features, task.filled) == (graph.num_features, graph.filled)
    assert "f5 missing" in graph.feature_names
    assert len({each.cohort.num_features for each in data}) > 1  # alone, they would have other features
    ids = stable_ids_of(graph, parts)
    for k, each in enumerate(data):
        assert GRAPHS.expected(each.schema.to_json(), agreed) == agreed
        cohort = GRAPHS.part(GRAPHS.with_agreed(each, agreed), [k], task, torch.device("cpu"))
        expected = make_cohort(graph, split, parts, [k], stable_ids=ids)
        assert isinstance(expected.x, torch.Tensor)
        assert torch.equal(cohort.id, expected.id)
        assert cohort.filled == expected.filled
        np.testing.assert_array_equal(cohort.x, expected.x)


def test_a_site_refuses_an_agreement_that_leaves_out_its_categories_or_gaps(
    sites: tuple[Path, list[ClientData]],
) -> None:
    schema = sites[1][0].schema.to_json()
    agreed = GRAPHS.agree({"the site": schema}, None)
    for key, less in (("categories", {"kind": ["", "firm"]}), ("gaps", []), ("filled", [])):
        changed = {**agreed, key: less}
        assert GRAPHS.expected(schema, changed) != changed
    with pytest.raises(InputError, match="categories must map columns to lists of texts"):
        GRAPHS.expected(schema, {**agreed, "categories": {"kind": [1]}})


def test_sites_whose_descriptions_differ_in_categories_or_gaps_are_refused(
    sites: tuple[Path, list[ClientData]],
) -> None:
    schema = sites[1][0].schema
    for changes, key in (({"rules": {}}, "missing"), ({"categories": {}}, "categorical")):
        with pytest.raises(InputError, match=f"client 'a' and client 'b' differ in '{key}'"):
            compare_schemas({"a": schema, "b": dataclasses.replace(schema, **changes)})


def test_a_cohort_with_gaps_survives_its_file(sites: tuple[Path, list[ClientData]], tmp_path: Path) -> None:
    graph, split, parts = assigned(sites[0] / "all.yaml")
    cohort = make_cohort(graph, split, parts, [0])
    save_cohort(cohort, tmp_path / "cohort.safetensors")
    again = load_cohort(tmp_path / "cohort.safetensors")
    assert again.filled == cohort.filled == graph.filled
    np.testing.assert_array_equal(again.x, cohort.x)
    assert isinstance(cohort.x, torch.Tensor)
    x = cohort.x.clone()
    x[0, 0] = torch.nan
    broken = dataclasses.replace(cohort, x=x, filled=cohort.filled[1:])
    save_cohort(broken, tmp_path / "broken.safetensors")
    with pytest.raises(InputError, match="x is not a table of finite numbers"):
        load_cohort(tmp_path / "broken.safetensors")

"""SAPGNN computes what one pooled graph gives, however edges and nodes overlap, and only because its
updates are max-separable."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from worlds import World, by_node, last_round_stands, make_world, run_local

from graphfed.crypto.keyed_ids import keyed_names, simulated_key
from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.tables import Partition
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import make_cohort
from graphfed.federation.secure import shared_sum as module
from graphfed.methods.base import Task
from graphfed.methods.common.entity_alignment import all_rows, prepare
from graphfed.methods.registry import get_method
from graphfed.methods.sapgnn.config import LayerForm
from graphfed.methods.sapgnn.layers import initial_global, initial_local, neighbour_features, pass_rows
from graphfed.nn import maxpool
from graphfed.nn.layers import _inverted
from graphfed.nn.maxpool import UPDATES, neighbour_max, sparse_maxima
from graphfed.nn.sparse import SparseMatrix
from graphfed.random import bernoulli_rows, fold, lane_probability

HIDDEN, FEATURES, CLASSES = 5, 7, 3


def covered(
    seed: int, n: int, m: int, clients: int, *, endpoints: bool, share: float, sparse: bool = False
) -> World:
    """A random graph whose every edge is at one client at least and at each of the others with probability
    `share`, and so is every label; every node is at all clients, or (endpoints) where it has an edge, or
    alone at one."""
    rng = np.random.default_rng(seed)
    x: Any = rng.normal(size=(n, FEATURES))
    if sparse:
        x = sp.csr_matrix(np.where(rng.random(x.shape) < 0.6, 0, x).astype(np.float32))
    graph = make_graph(
        "cover", x, rng.integers(0, CLASSES, n), rng.integers(0, n, (2, m)), num_classes=CLASSES
    )
    train = np.zeros(n, dtype=bool)
    train[rng.permutation(n)[: max(1, n // 2)]] = True
    has = rng.random((clients, graph.num_edges)) < share
    has[rng.integers(0, clients, graph.num_edges), np.arange(graph.num_edges)] = True
    held = np.ones((clients, n), dtype=bool)
    if endpoints:
        held[:] = False
        for k in range(clients):
            held[k, graph.edges[:, has[k]].ravel()] = True
        alone = np.flatnonzero(~held.any(0))
        held[rng.integers(0, clients, len(alone)), alone] = True
        held[~held.any(1), 0] = True
    held_client, held_id = np.nonzero(held)
    owner = np.array([rng.choice(np.flatnonzero(held[:, v])) for v in range(n)])
    knows = (owner[held_id] == held_client) | (rng.random(len(held_id)) < share)
    edge_client, edge = np.nonzero(has)
    none = np.zeros(0, dtype=np.int64)
    parts = Partition(
        held_client=held_client, held_id=held_id, held_node=held_id.copy(),
        held_owner=knows,
        edge_client=edge_client, edge_u=graph.edges[0, edge], edge_v=graph.edges[1, edge],
        cross_local_client=none,
        cross_id=none, cross_remote_client=none, cross_remote_id=none,
        num_clients=clients, graph_hash=graph.hash,
    )  # fmt: skip
    parts.check(graph)
    return World(graph, Split("half", train, np.zeros_like(train), ~train), parts)


class Dense:
    """The network on the pooled graph, node by node: the paper's equations without places."""

    def __init__(self, world: World, config: Any) -> None:
        self.config, self.world = config, world
        self.form, self.network, self.seed = config.form, config.network, config.run.seed
        task = Task(world.graph.num_features, world.graph.num_classes)
        self.local, self.global_ = initial_local("cpu", task, config), initial_global("cpu", task, config)
        n = world.graph.num_nodes
        self.names = torch.arange(n)
        if config.ids.node_ids != "plain":
            ids = (str(i).encode() for i in range(n))
            self.names = torch.from_numpy(keyed_names(simulated_key(self.seed), "vertex", ids).copy())
        self.neighbours: list[list[int]] = [[] for _ in range(n)]
        for u, v in world.graph.edges.T.tolist():
            self.neighbours[u].append(v)
            self.neighbours[v].append(u)

    def pool(self, own: torch.Tensor, message: torch.Tensor, tropical: torch.Tensor | None) -> torch.Tensor:
        turn = -1 if self.form.aggr == "min" else 1
        rows = []
        for i, neighbours in enumerate(self.neighbours):
            a = turn * (turn * message[neighbours]).amax(0) if neighbours else torch.zeros_like(message[0])
            if self.form.update == "sum":
                rows.append(own[i] + a if neighbours else torch.zeros_like(own[i]))
            elif self.form.update == "product":
                rows.append(own[i].sigmoid() * a)
            elif self.form.update == "tropical":
                mixed = turn * (turn * (a[:, None] + tropical)).amax(0) if neighbours else a
                rows.append(torch.cat([own[i], mixed]))
            else:
                rows.append(torch.cat([own[i], a]))
        return torch.stack(rows)

    def logits(
        self, local: dict, global_: dict, key: int | None = None, rows: list | None = None
    ) -> torch.Tensor:
        """rows[l]: the nodes that leave layer l, which its normalisation is over (None: all)."""
        x = self.world.graph.x
        h = torch.from_numpy(x.toarray() if sp.issparse(x) else x).to(torch.get_default_dtype())
        for layer in range(self.network.layers):
            own = message = h
            if self.form.maps == "linear":
                own, message = h @ local[f"layers.{layer}.self"], h @ local[f"layers.{layer}.message"]
            z = self.pool(own, message, local.get(f"layers.{layer}.tropical"))
            h = z @ global_[f"layers.{layer}.weight"] + global_[f"layers.{layer}.bias"]
            if layer < self.network.layers - 1:
                if self.form.norm == "batch":
                    some = h if rows is None else h[rows[layer]]
                    h = (h - some.mean(0)) / (some.var(0, unbiased=False) + 1e-5).sqrt()
                    h = h * global_[f"layers.{layer}.gain"]
                h = h.relu()
                if key is not None:
                    drop = bernoulli_rows(fold(key, layer), self.names, h.shape[1], self.network.dropout)
                    h = h * _inverted(drop, lane_probability(self.network.dropout), h.dtype)
        if self.config.predictor.predictor == "clients":
            h = h @ local["predictor.weight"] + local["predictor.bias"]
        return h

    def batches(self) -> list[list[int]]:
        """The training nodes, in the order of their names, in nearly equal parts."""
        train = sorted(np.flatnonzero(self.world.split.train).tolist(), key=lambda v: int(self.names[v]))
        size = self.config.batch_size or len(train)
        count = -(-len(train) // size)
        return [[v for i, v in enumerate(train) if i * count // len(train) == b] for b in range(count)]

    def field(self, batch: list[int]) -> list[list[int]]:
        """The nodes that leave each layer so that the batch leaves the last."""
        fields = [sorted(batch)]
        for _ in range(self.network.layers - 1):
            fields.insert(0, sorted({j for i in fields[0] for j in (i, *self.neighbours[i])}))
        return fields

    def after_one_round(self) -> tuple[dict, dict]:
        """The weights after a step of plain gradient descent on every batch."""
        local, global_ = self.local, self.global_
        batches = self.batches()
        for number, batch in enumerate(batches):
            leaves = [{k: w.clone().requires_grad_() for k, w in ws.items()} for ws in (local, global_)]
            key = fold(self.seed, "dropout", 1, number) if self.network.dropout else None
            fields = self.field(batch) if len(batches) > 1 else None
            cross_entropy(
                self.logits(*leaves, key, fields)[batch], torch.from_numpy(self.world.graph.y)[batch]
            ).backward()
            # A weight that nothing depends on, as that of messages without edges, has no gradient.
            local, global_ = (
                {
                    k: w.detach() if w.grad is None else w.detach() - self.config.training.lr * w.grad
                    for k, w in ws.items()
                }
                for ws in leaves
            )
        return local, global_


SETTINGS = {
    "hidden": HIDDEN, "optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0, "rounds": 1,
    "aggregation": "plaintext",
}  # fmt: skip


def agree(world: World, placement: str, tolerance: float, **changes: Any) -> Federation:
    """Weights after one round, and the predictions they give, are those of the pooled graph."""
    options = {**SETTINGS, "dropout": 0.3, **changes}
    if options.get("batch_size"):  # many steps: large ones would blow rounding up
        options["lr"] = 0.02
    outcome, fed = run_local("sapgnn", world, placement, **options)
    config = get_method("sapgnn").configure(options)
    dense = Dense(world, config)
    local, global_ = dense.after_one_round()
    for name, expected in (("local", local), ("global", global_)):
        for part in outcome.state.values[name].parts:
            assert set(part) == set(expected)
            for key, weight in part.items():
                scale = max(1.0, float(expected[key].abs().max()))
                assert torch.allclose(weight, expected[key], rtol=0, atol=tolerance * scale), (name, key)
    found = by_node(outcome, world)
    expected = dense.logits(local, global_).to(found.dtype)
    assert torch.allclose(
        found, expected, rtol=0, atol=10 * tolerance * max(1.0, float(expected.abs().max()))
    )
    return fed


NETWORKS = st.fixed_dictionaries(
    {
        "update": st.sampled_from(list(UPDATES)),
        "aggr": st.sampled_from(["max", "min"]),
        "maps": st.sampled_from(["linear", "identity"]),
        "norm": st.sampled_from(["off", "batch"]),
        "predictor": st.sampled_from(["clients", "server"]),
        "layers": st.integers(1, 3),
        "batch_size": st.sampled_from([None, None, 1, 3]),
        "node_ids": st.sampled_from(["simulated", "plain"]),
    }
).map(lambda drawn: {k: v for k, v in drawn.items() if k != "norm" or drawn["layers"] > 1})


@settings(max_examples=60)
@given(
    network=NETWORKS, seed=st.integers(0, 2**31), n=st.integers(3, 25), m=st.integers(0, 60),
    clients=st.integers(1, 6), endpoints=st.booleans(), share=st.sampled_from([0.0, 0.3, 1.0]),
    placement=st.sampled_from(["stacked", "one at a time"]), sparse=st.booleans(),
    aggregation=st.sampled_from(["additive", "plaintext"]),
)  # fmt: skip
def test_any_cover_of_the_edges_gives_the_embeddings_and_gradients_of_the_pooled_graph(
    *, network: dict, seed: int, n: int, m: int, clients: int, endpoints: bool, share: float, placement: str,
    sparse: bool, aggregation: str,
) -> None:  # fmt: skip
    """Nodes, labels and edges at several clients, nodes without an edge, one to six clients, every
    admissible network, whole and in batches: against loops over the pooled graph, in float64. Secret sharing
    rounds each client's gradient to 2^-24 in every batch."""
    world = covered(seed, n, m, clients, endpoints=endpoints, share=share, sparse=sparse)
    tolerance = 1e-9 if aggregation == "plaintext" else 1e-5
    agree(world, placement, tolerance, aggregation=aggregation, **network)


@pytest.mark.parametrize("clients", [2, 4])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_clients_own_copies_of_max_plus_weights_have_the_gradients_of_the_pooled_graph(
    batch_size: int | None, clients: int
) -> None:
    """With additive shares, where every client's gradient of its copy is a secret of its own."""
    world = covered(7, 20, 40, clients, endpoints=True, share=0.3)
    agree(world, "stacked", 1e-5, aggregation="additive", update="tropical", batch_size=batch_size)


@pytest.mark.parametrize("update", ["concat", "tropical"])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_every_client_shares_out_the_gradient_of_its_own_loss_in_a_cohort_as_alone(
    update: str, batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sparse features too: the sum alone would not show it if a client shared out another's part."""
    world = covered(5, 20, 40, 3, endpoints=True, share=0.3, sparse=True)
    shared: list[list[dict[str, torch.Tensor]]] = []
    whole = module.shared_sum

    def watched(fed: Federation, gradient: Located, *, name: str) -> Located:
        shared[-1].append({k: torch.cat([part[k] for part in gradient.parts]) for k in gradient.parts[0]})
        return whole(fed, gradient, name=name)

    monkeypatch.setattr(module, "shared_sum", watched)
    options = {**SETTINGS, "aggregation": "additive", "lr": 0.02, "dropout": 0.0}
    for placement in ("stacked", "one at a time"):
        shared.append([])
        run_local("sapgnn", world, placement, **options, update=update, batch_size=batch_size)
    together, alone = shared
    assert len(together) == len(alone) > 0
    for found, expected in zip(together, alone, strict=True):
        for name, gradients in expected.items():
            assert len(gradients) == 3
            assert torch.allclose(found[name], gradients, rtol=0, atol=1e-6), name
            assert not torch.allclose(gradients[0], gradients[1]), name


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("aggr", ["max", "min"])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_sparse_features_that_the_server_pools_once_give_the_embeddings_of_the_pooled_graph(
    update: str, aggr: str, batch_size: int | None
) -> None:
    """Without local maps, where the first layer's uploads are the features and their maxima."""
    world = covered(9, 20, 30, 3, endpoints=True, share=0.3, sparse=True)
    agree(world, "stacked", 1e-9, maps="identity", update=update, aggr=aggr, batch_size=batch_size)


@pytest.mark.parametrize("norm", ["off", "batch"])
def test_the_server_has_a_weight_and_a_bias_of_every_layer_and_a_gain_where_it_normalises(norm: str) -> None:
    """It normalises before every ReLU, which the last layer lacks."""
    config = get_method("sapgnn").configure({"hidden": HIDDEN, "layers": 3, "norm": norm})
    found = initial_global("cpu", Task(FEATURES, CLASSES), config)
    expected = {f"layers.{layer}.{name}" for layer in range(3) for name in ("weight", "bias")}
    gains = {"layers.0.gain", "layers.1.gain"} if norm == "batch" else set()
    assert set(found) == expected | gains


@pytest.mark.parametrize("update", UPDATES)
def test_in_float32_embeddings_agree_to_1e_6_and_gradients_to_1e_5(update: str) -> None:
    torch.set_default_dtype(torch.float32)
    for seed in range(3):
        agree(covered(seed, 40, 120, 4, endpoints=False, share=0.3), "stacked", 1e-6, update=update)


def test_the_number_of_clients_changes_no_metric_over_a_whole_run() -> None:
    outcomes = [
        run_local(
            "sapgnn", covered(3, 40, 120, clients, endpoints=False, share=0.2),
            hidden=HIDDEN, rounds=30, dropout=0.4, lr=0.02, weight_decay=1e-3, aggregation="plaintext",
        )[0]
        for clients in (1, 2, 3, 4)
    ]  # fmt: skip
    # The accuracy over clients depends on who the clients are.
    common, *others = [
        {name: value for name, value in outcome.test.items() if not name.startswith("client_")}
        for outcome in outcomes
    ]
    for other in others:
        assert other == pytest.approx(common, abs=1e-9)


def test_all_clients_have_the_same_bits_of_the_local_weights() -> None:
    outcome, _ = run_local("sapgnn", make_world(), "one at a time", dropout=0.3)
    first, *others = outcome.state.values["local"].parts
    assert len(others) == 2
    for other in others:
        for name, weight in first.items():
            assert torch.equal(weight, other[name])


# ---- updates -----------------------------------------------------------------------------------------------


def parts_of_a_maximum(seed: int, clients: int) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """h [20, 4], pooled messages a_p [20, 4] of every client (some -inf), and a weight."""
    rng = np.random.default_rng(seed)
    h = torch.from_numpy(rng.normal(size=(20, 4)))
    parts = []
    for _ in range(clients):
        a = torch.from_numpy(rng.normal(size=(20, 4)))
        parts.append(a.masked_fill(torch.from_numpy(rng.random(20) < 0.3)[:, None], -torch.inf))
    return h, parts, torch.from_numpy(rng.normal(size=(4, 4)))


def maximum(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tensors).amax(0)


@settings(max_examples=40)
@given(update=st.sampled_from(list(UPDATES)), seed=st.integers(0, 2**31), clients=st.integers(1, 6))
def test_an_admissible_update_commutes_with_the_maximum_over_clients(
    update: str, seed: int, clients: int
) -> None:
    h, parts, weight = parts_of_a_maximum(seed, clients)
    apply = UPDATES[update].apply
    apart = maximum([apply(h, a, weight) for a in parts])
    together = apply(h, maximum(parts), weight)
    assert torch.equal(apart, together)


def monotone_mix(h: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Monotone in every coordinate, as the paper asks, and not separable."""
    return (a.clamp(min=-50) @ torch.full((4, 3), 0.5, dtype=a.dtype)).sigmoid()


def signed_product(h: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return h * a.clamp(min=-50)


@pytest.mark.parametrize("update", [monotone_mix, signed_product])
def test_a_monotone_mix_and_a_signed_product_break_the_identity_and_are_refused(update: Any) -> None:
    h, parts, _ = parts_of_a_maximum(0, 3)
    apart, together = maximum([update(h, a) for a in parts]), update(h, maximum(parts))
    assert (apart - together).abs().max() > 0.1
    with pytest.raises(
        InputError, match=f"update='{update.__name__}' cannot be used.*nondecreasing functions"
    ):
        get_method("sapgnn").configure({"update": update.__name__})


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 12), m=st.integers(0, 40), values=st.integers(1, 3))
def test_the_maximum_over_neighbours_and_its_gradient_are_those_of_a_loop(
    seed: int, n: int, m: int, values: int
) -> None:
    """With many ties: of equal neighbours the lowest row gets the gradient; without neighbours it is -inf.
    However many numbers there are: both ways to find the winner are looked at."""
    for few in (0, 2048):
        with patch.object(maxpool, "FEW_NUMBERS", few):
            _check_maximum(seed, n, m, values)


def _check_maximum(seed: int, n: int, m: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, n, (2, m)), axis=1)
    pattern = SparseMatrix.from_coo(
        torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1]), torch.ones(pairs.shape[1]), (n, n)
    )
    messages = torch.from_numpy(rng.integers(0, values, (n, 3)).astype(float)).requires_grad_()
    found = neighbour_max(pattern, messages)
    grad = torch.from_numpy(rng.normal(size=(n, 3)))
    expected, expected_grad = torch.full((n, 3), -torch.inf), torch.zeros(n, 3)
    for i in range(n):
        js = sorted(pairs[1][pairs[0] == i].tolist())
        for k in range(3 if js else 0):
            best = max(js, key=lambda j: (messages[j, k].item(), -j))
            expected[i, k] = messages[best, k].item()
            expected_grad[best, k] += grad[i, k]
    assert torch.equal(found, expected.to(found.dtype))
    found.masked_fill(found.isneginf(), 0).backward(grad)
    assert torch.allclose(messages.grad, expected_grad.to(found.dtype))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 8), m=st.integers(0, 12), groups=st.integers(1, 6))
def test_sparse_maxima_are_the_maxima_of_dense_rows_and_no_zero_is_stored(
    seed: int, n: int, m: int, groups: int
) -> None:
    """Of rows with ones and negative values, some of them the same row twice, in any order."""
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.integers(-1, 3, (n, 4)).astype(float))
    taken, group = torch.from_numpy(rng.integers(0, n, m)), torch.from_numpy(rng.integers(0, groups, m))
    found = sparse_maxima(SparseMatrix.from_dense(rows).select_rows(taken), group, groups)
    expected = torch.zeros(groups, 4)
    for g in set(group.tolist()):
        expected[g] = rows[taken[group == g]].amax(0)
    assert torch.equal(found.to_dense(), expected.to(found.values.dtype))
    assert bool((found.values != 0).all())


def test_maxima_of_features_over_50_000_edges_and_more_are_those_of_each_nodes_neighbours() -> None:
    """So many edges are sorted by counting: the neighbours, of which there are more than features, too."""
    draws = torch.Generator().manual_seed(0)
    source, target = torch.randint(300, (2, 60_000), generator=draws)
    x = torch.randn(300, 2, generator=draws)
    clients: Any = SimpleNamespace(cohort=SimpleNamespace(edge_index=(source, target), num_rows=300))
    rows: Any = SimpleNamespace(x=x)
    found = neighbour_features(clients, rows, torch.arange(300), LayerForm())
    into = target[:, None].expand(-1, 2)
    assert torch.equal(found, torch.full_like(x, -torch.inf).scatter_reduce(0, into, x[source], "amax"))


@pytest.mark.parametrize("clients", [1, 3])
def test_sparse_features_stay_sparse_where_they_enter_a_linear_map_or_go_to_the_server(clients: int) -> None:
    """A client's features have thousands of columns, of which a node has few."""
    world = covered(5, 20, 40, clients, endpoints=True, share=0.4, sparse=True)
    cohort = make_cohort(world.graph, world.split, world.partition, list(range(clients)))
    for options, stays in (
        ({"maps": "linear"}, True),
        ({"maps": "linear", "aggregation": "additive"}, True),
        ({"maps": "identity"}, True),
        ({"maps": "identity", "update": "tropical"}, False),
    ):
        config = get_method("sapgnn").configure({**SETTINGS, **options})
        prepared = prepare(cohort, world.task, config.ids, config.run.seed)
        every = all_rows(prepared)
        rows = pass_rows(prepared, config, every, every)
        assert isinstance(rows.x, SparseMatrix) == stays
        apart = config.gradient_sums.aggregation == "additive" and clients > 1
        assert (rows.x_apart is not None) == apart


def test_a_batch_takes_only_the_rows_that_its_nodes_need() -> None:
    world = covered(8, 40, 30, 2, endpoints=True, share=0.4)
    cohort = make_cohort(world.graph, world.split, world.partition, [0, 1])
    config = get_method("sapgnn").configure(SETTINGS)
    prepared = prepare(cohort, world.task, config.ids, config.run.seed)
    neighbours_of: dict[int, set[int]] = {v: {v} for v in range(cohort.num_rows)}
    for u, v in cohort.edge_index.T.tolist():
        neighbours_of[v].add(u)
    last = {3, 11}
    first = set.union(*(neighbours_of[v] for v in last))
    entering = set.union(*(neighbours_of[v] for v in first))
    rows = pass_rows(prepared, config, *(torch.tensor(sorted(some)) for some in (first, last)))
    assert torch.equal(rows.x, cohort.x[sorted(entering)])
    assert len(entering) < cohort.num_rows
    assert [layer.pattern.shape for layer in rows.layers] == [
        (len(first), len(entering)),
        (len(last), len(first)),
    ]


def test_balanced_class_weights_weigh_every_training_node_in_the_loss_of_the_pooled_graph() -> None:
    """Of a class with n_c of n training nodes each loss weighs n / (C n_c)."""
    world = covered(6, 30, 60, 3, endpoints=False, share=0.3)
    options = {**SETTINGS, "node_ids": "plain", "class_weights": "balanced", "dropout": 0.0}
    outcome, _ = run_local("sapgnn", last_round_stands(world), **options)
    dense = Dense(world, get_method("sapgnn").configure(options))
    train = np.flatnonzero(world.split.train)
    y = torch.from_numpy(world.graph.y[train])
    counts = torch.bincount(y, minlength=CLASSES).double()
    leaves = {k: w.clone().requires_grad_() for k, w in dense.global_.items()}
    each = cross_entropy(dense.logits(dense.local, leaves)[train], y, reduction="none")
    (each * (len(y) / (CLASSES * counts))[y]).mean().backward()
    (found,) = outcome.state.values["global"].parts
    for name, w in leaves.items():
        assert torch.allclose(found[name], w.detach() - 0.5 * w.grad, rtol=0, atol=1e-9), name


@pytest.mark.parametrize("protocols", ["simulated", "real"])
@pytest.mark.parametrize("aggr", ["max", "min"])
@pytest.mark.parametrize("maps", ["linear", "identity"])
@pytest.mark.parametrize("placement", ["stacked", "one at a time"])
@pytest.mark.sampled(3)
def test_a_secure_maximum_on_fixed_point_gives_what_plaintext_pooling_gives_up_to_its_rounding(
    protocols: str, aggr: str, maps: str, placement: str
) -> None:
    """Rounded to 2^-17 in every layer, in the forward pass and in what the step makes of it."""
    world = covered(4, 30, 60, 3, endpoints=True, share=0.4, sparse=maps == "identity")
    fed = agree(world, placement, 2e-4, pooling="secure", protocols=protocols, maps=maps, aggr=aggr)
    sent = {entry.name for entry in fed.ledger.entries}
    assert "sapgnn/local_embedding" not in sent  # not sent in plaintext
    assert "sapgnn/local_embedding/server_shares" in sent


# ---- what the server gets ----------------------------------------------------------------------------------


def uploads(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[list[torch.Tensor], World]:
    """What the server receives by the pooling transfer, in order."""
    seen: list[torch.Tensor] = []
    whole = Federation.max

    def watched(fed: Federation, x: Located, route: Any, **options: Any) -> Located:
        seen.extend(part.detach().clone() for part in x.parts)
        return whole(fed, x, route, **options)

    monkeypatch.setattr(Federation, "max", watched)
    world = covered(5, 30, 60, 3, endpoints=False, share=0.3)
    run_local("sapgnn", world, **{**SETTINGS, "dropout": 0.0, **changes})
    return seen, world


def test_the_papers_identity_maps_upload_the_features_and_local_maps_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.from_numpy(np.asarray(covered(5, 30, 60, 3, endpoints=False, share=0.3).graph.x)).double()
    seen, _ = uploads(monkeypatch, maps="identity")
    assert torch.equal(seen[0][:30, :FEATURES], x)
    seen, _ = uploads(monkeypatch)
    for sent in seen:
        for column in sent.T:
            for rows in column.split(30):
                assert not any(torch.allclose(rows, feature) for feature in x.T)

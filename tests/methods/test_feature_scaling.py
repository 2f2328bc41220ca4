"""Features are brought to one scale that does not depend on units or on how nodes are assigned to clients,
and only whole numbers are sent to agree on it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.partitions.partition import partition
from graphfed.data.partitions.tables import from_assignment
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.cohort import OWNER_UNITS, Cohort, make_cohort
from graphfed.federation.link import Message, Pair
from graphfed.federation.secure.aggregation import protected_sum
from graphfed.methods.base import Task
from graphfed.methods.common.feature_scaling import (
    MESSAGES,
    SUMS,
    Scaling,
    move_centers,
    scaling_from,
    start_agreement,
    to_arrays,
    update_scales,
)
from graphfed.methods.common.feature_transform import scale_features
from graphfed.methods.common.local_training import as_configured
from graphfed.methods.registry import get_method
from graphfed.nn.sparse import SparseMatrix
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.graphs.node_scores import CLASS_COUNTS
from graphfed.tasks.registry import default_settings

N = 120


def features(seed: int = 0) -> np.ndarray:
    """Columns of every kind: normal, far from zero, heavy-tailed, counts, rare, binary, constant, zero."""
    rng = np.random.default_rng(seed)
    columns = [
        rng.normal(0, 1, N),
        2020 + 3 * rng.normal(0, 1, N),
        np.exp(3 * rng.normal(0, 1, N)),
        rng.poisson(1.5, N),
        np.where(rng.uniform(size=N) < 0.05, rng.normal(0, 50, N), 0),
        rng.uniform(size=N) < 0.3,
        rng.uniform(size=N) < 0.05,
        np.full(N, 7.0),
        np.zeros(N),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def graph_of(x: np.ndarray | sp.csr_matrix, seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    return make_graph("kinds", x=x, y=rng.integers(0, 3, N), edges=rng.integers(0, N, (2, 4 * N)))


def split_of(graph: Graph) -> Split:
    part = np.arange(N) % 3
    return Split("thirds", part == 0, part == 1, part == 2)


class Watched(Federation):
    """Keeps every payload that is sent, by the name of its transfer."""

    def __init__(self, workers: Sequence[Sequence[int]]) -> None:
        super().__init__(workers)
        self.sent: list[tuple[str, Any]] = []
        self.observe(self._keep)

    def _keep(self, name: str, messages: Mapping[Pair, Message]) -> None:
        self.sent += [(name, message.payload) for message in messages.values()]


def scaled(
    x: np.ndarray | sp.csr_matrix,
    fed: Federation,
    method: str = "fedavg",
    client: Any = None,
    **settings: Any,
) -> tuple[Tensor, Scaling | None, Federation]:
    """The scaled features [N, F] in the order of the nodes."""
    graph = graph_of(x)
    chosen = get_method(method)
    clients = fed.num_clients
    where = np.arange(N) * 7 % clients if client is None else client
    cohorts = [
        make_cohort(graph, split_of(graph), from_assignment(graph, where, num_clients=clients), worker)
        for worker in fed.workers
    ]
    data = fed.locate("clients", "data", cohorts)
    config = chosen.configure(settings, default_settings(chosen))
    done, scaling = scale_features(fed, data, chosen, config, Task(graph.num_features, 3))
    return in_order(done.parts), None if scaling is None else scaling.parts[0], fed


def in_order(cohorts: Sequence[Cohort]) -> Tensor:
    rows = torch.cat([c.x.to_dense() if isinstance(c.x, SparseMatrix) else c.x for c in cohorts])
    return rows[torch.argsort(torch.cat([c.id for c in cohorts]))]


@pytest.mark.parametrize("stored", ["dense", "sparse"])
@pytest.mark.parametrize("clients", [1, 2, 7, N])
@pytest.mark.parametrize("placement", [stacked, one_at_a_time])
def test_the_scale_does_not_depend_on_how_nodes_are_assigned_to_clients(placement, clients, stored):
    x = features() if stored == "dense" else sp.csr_matrix(features())
    central, _, _ = scaled(x, stacked(1), "central")
    together, _, _ = scaled(x, placement(clients))
    assert torch.equal(together, central)


@pytest.mark.parametrize("power", [-20, 3, 10])
def test_features_in_another_unit_are_scaled_to_the_same_numbers(power):
    """A power of two changes no digit, so the numbers are equal to the last bit."""
    x = features()
    one, _, _ = scaled(x, stacked(3))
    other, _, _ = scaled(x * np.float32(2.0**power), stacked(3))
    assert torch.equal(one, other)


def test_a_unit_that_makes_large_numbers_changes_no_more_than_the_rounding_of_a_centre():
    """Large centres are subtracted in float64, so their last bits differ from those in float32."""
    x = features()
    one, _, _ = scaled(x, stacked(3))
    other, _, _ = scaled(x * np.float32(2.0**20), stacked(3))
    assert not torch.equal(one, other)
    assert torch.allclose(one, other, rtol=0, atol=1e-4)


# ---- numbers whose differences float32 does not hold -------------------------------------------------------


def large_features() -> np.ndarray:
    """Seconds since 1970 of one hour, an amount in cents with a fraction, milliseconds, and ordinary ones."""
    rng = np.random.default_rng(2)
    columns = [
        1_600_000_000 + rng.integers(0, 3600, N),
        2.0**24 + rng.integers(-8, 9, N) / 4,
        -1.6e12 + rng.integers(0, 1000, N),
        rng.normal(0, 1, N),
        2020.1 + 3 * rng.normal(0, 1, N),
    ]
    return np.stack(columns, axis=1)


def test_large_numbers_keep_their_differences():
    x = large_features()
    after, scaling, _ = scaled(x, stacked(3))
    assert after.dtype == torch.float32
    assert scaling is not None
    assert (scaling.center.dtype, scaling.scale.dtype) == (torch.float64, torch.float32)
    for column in (0, 2):
        assert len(torch.unique(after[:, column])) == len(np.unique(x[:, column]))
        assert torch.equal(torch.argsort(after[:, column], stable=True), _order(x[:, column]))
    assert bool((after.std(0) > 0.3).all())
    assert bool((after.median(0).values.abs() < 1.5).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clients", [2, 7, N])
def test_the_scale_of_large_numbers_does_not_depend_on_clients_and_placement(clients, dtype):
    torch.set_default_dtype(dtype)
    x = large_features()
    central, _, _ = scaled(x, stacked(1), "central")
    for placement in (stacked, one_at_a_time):
        together, _, _ = scaled(x, placement(clients))
        assert torch.equal(together, central)
    hidden, _, _ = scaled(x, stacked(clients), aggregation="secure") if clients == 7 else (central, 0, 0)
    assert torch.equal(hidden, central)


def test_large_numbers_of_one_client_change_no_bit_of_a_client_that_is_scaled_alone():
    x, client = features(), np.arange(N) % 2
    x = np.where((client == 0)[:, None], x.astype(np.float64), 0) + (client == 1)[:, None] * (
        2.0**30 + x * 100
    )
    together, _, _ = scaled(x, stacked(2), "isolated", client)
    apart, _, _ = scaled(x, one_at_a_time(2), "isolated", client)
    before, _, _ = scaled(features(), stacked(2), "isolated", client)
    assert torch.equal(together, apart)
    assert torch.equal(together[client == 0], before[client == 0])


def test_features_that_are_not_scaled_have_the_dtype_of_the_run():
    graph = graph_of(large_features())
    cohort = make_cohort(graph, split_of(graph), partition(graph, "random", 2, 0), [0, 1])
    assert cohort.x.dtype == torch.float64
    chosen = get_method("fedavg")
    for features_as, dtype in (("raw", torch.float32), ("unit", torch.float32), ("scaled", torch.float64)):
        config = chosen.configure({"features": features_as}, default_settings(chosen))
        assert as_configured(cohort, config).x.dtype == dtype


def test_sparse_binary_features_stay_exactly_as_they_are():
    rng = np.random.default_rng(1)
    x = sp.csr_matrix((rng.permuted(np.tile(np.arange(N), (40, 1)), axis=1).T < 6).astype(np.float32))
    after, _, fed = scaled(x, stacked(4))
    assert torch.equal(after, torch.from_numpy(x.toarray()))
    # Nothing is asked beyond one count of each feature's values.
    assert {entry.name for entry in fed.ledger.entries} == {
        "feature_magnitudes",
        "scaled_features",
        "feature_scaling",
    }


def test_a_column_keeps_what_it_says_and_loses_its_unit():
    """Every column that is not sparse ends near zero with a spread near one, however far from zero and
    however heavy-tailed it was, in the order of its values."""
    x = features()
    after, _, _ = scaled(x, stacked(5))
    for column in (0, 1, 2, 3, 5):
        values = after[:, column]
        assert abs(float(values.median())) < 1.5
        assert 0.3 < float(values.std()) < 3
        assert float(values.abs().max()) < 12
        assert torch.equal(torch.argsort(values, stable=True), _order(x[:, column]))
    assert float(after[:, 7:].abs().max()) == 0.0


def _order(values: np.ndarray) -> Tensor:
    return torch.argsort(torch.from_numpy(values), stable=True)


def test_ugly_numbers_are_scaled_to_finite_ones():
    x = features()
    x[:, 0] = np.float32(3e38) * np.sign(x[:, 0])
    x[0, 2] = 3e38
    x[:, 3] *= 1e-44
    x[:, 4] = np.where(x[:, 4] != 0, 1e-45, 0)
    after, _, _ = scaled(x, stacked(3))
    assert bool(after.isfinite().all())


def test_only_whole_numbers_leave_a_client():
    fed = Watched([[0, 1], [2]])
    _, _, fed = scaled(features(), fed)
    assert isinstance(fed, Watched)
    up = [payload for name, payload in fed.sent if name in ("feature_magnitudes", "feature_positions")]
    assert len(up) > 4
    for payload in up:
        assert all(part.dtype == torch.int64 for part in payload.values())
    assert {name for name, _ in fed.sent} <= {*MESSAGES}


@pytest.mark.parametrize(
    ("step", "sums"),
    [
        (move_centers, {"position": 33}),  # 8 scales of 4 positions are the most that a node counts
        (move_centers, {"position": -33}),
        (update_scales, {"count": 2, "exponent": 0}),
    ],
)
def test_sums_that_no_nodes_of_the_clients_have_are_refused(step, sums):
    agreement = start_agreement({name: torch.tensor([1]) for name in ("count", "exponent", "rows")})
    with pytest.raises(InputError, match="exceed what all their nodes allow"):
        step(agreement, {name: torch.tensor([x]) for name, x in sums.items()}, torch.tensor([0]))


@pytest.mark.parametrize("method", ["central", "isolated"])
def test_a_method_that_sends_nothing_sends_nothing_for_its_scale(method):
    _, _, fed = scaled(features(), stacked(1 if method == "central" else 4), method)
    assert fed.ledger.entries == []


def test_a_client_alone_is_scaled_by_its_own_nodes_only():
    x = features()
    client_of_node = np.arange(N) % 3
    together, _, _ = scaled(x, stacked(3), "isolated", client_of_node)
    for client in range(3):
        own = np.flatnonzero(client_of_node == client)
        graph = graph_of(x)
        alone = make_graph("own", x=x[own], y=graph.y[own], edges=np.zeros((2, 0), dtype=int))
        everything = np.ones(len(own), dtype=bool)
        split = Split("all", everything, ~everything, ~everything)
        cohort = make_cohort(alone, split, partition(alone, "random", 1, 0), [0])
        fed, chosen = stacked(1), get_method("central")
        config = chosen.configure({}, default_settings(chosen))
        data = fed.locate("clients", "data", [cohort])
        done, _ = scale_features(fed, data, chosen, config, Task(x.shape[1], 3))
        assert torch.equal(in_order(done.parts), together[own])


@pytest.mark.parametrize("columns", [9, 4], ids=["some columns are sparse", "none is"])
def test_a_secure_sum_gives_the_same_scale_and_shows_the_server_no_clients_part(columns):
    x = features()[:, :columns]
    clear, _, _ = scaled(x, stacked(4))
    hidden, _, fed = scaled(x, stacked(4), aggregation="secure")
    assert torch.equal(clear, hidden)
    kinds = {entry.name.partition("/")[2] for entry in fed.ledger.entries if "magnitudes" in entry.name}
    assert "masked" in kinds
    assert "" not in kinds


@pytest.mark.parametrize("protection", ["plaintext", "secure"])
def test_nodes_with_three_owners_are_counted_exactly_whatever_the_number_of_clients(protection):
    """A third of a node is not a multiple of 2^-24, and the errors of 60 clients would add up to a unit."""
    fed = stacked(60)
    third = torch.full((60, 1), OWNER_UNITS // 3)
    counts = fed.locate("clients", "counts", [{"count": third, "rows": third}])
    total = protected_sum(fed, SUMS, counts, protection=protection, name="sum", like=(1, ("count", "rows")))
    assert [int(x) for x in total.parts[0].values()] == [20 * OWNER_UNITS] * 2
    classes = fed.locate("clients", "classes", [third])
    total = protected_sum(fed, CLASS_COUNTS, classes, protection=protection, name="sum", like=(1,))
    assert int(total.parts[0]) == 20 * OWNER_UNITS


def test_a_node_that_several_clients_own_counts_once():
    graph = graph_of(features())
    shared = partition(graph, "edges_uniform", 3, 0)
    fed, chosen = stacked(3), get_method("sapgnn")
    cohort = make_cohort(graph, split_of(graph), shared, range(3))
    held = len(torch.unique(cohort.id[cohort.owned]))
    config = chosen.configure({}, default_settings(chosen))
    data = fed.locate("clients", "data", [cohort])
    _, scaling = scale_features(fed, data, chosen, config, Task(graph.num_features, 3))
    assert held < int(cohort.owned.sum())
    ids = torch.unique(cohort.id[cohort.owned]).numpy()
    _, once, _ = scaled_alone(graph, ids)
    assert scaling is not None
    assert once is not None
    assert torch.equal(scaling.parts[0].center, once.center)
    assert torch.equal(scaling.parts[0].scale, once.scale)


def scaled_alone(graph: Graph, ids: np.ndarray) -> tuple[Tensor, Scaling | None, Federation]:
    """The scaling of a party that holds exactly these nodes."""
    own = make_graph("own", x=graph.x[ids], y=graph.y[ids], edges=np.zeros((2, 0), dtype=int), num_classes=3)
    everything = np.ones(len(ids), dtype=bool)
    split = Split("all", everything, ~everything, ~everything)
    cohort = make_cohort(own, split, partition(own, "random", 1, 0), [0])
    fed, chosen = stacked(1), get_method("central")
    data = fed.locate("clients", "data", [cohort])
    config = chosen.configure({}, default_settings(chosen))
    done, scaling = scale_features(fed, data, chosen, config, Task(graph.num_features, 3))
    return in_order(done.parts), None if scaling is None else scaling.parts[0], fed


@pytest.mark.parametrize("x", [features(), large_features()], ids=["ordinary", "large"])
def test_a_scaling_survives_the_file_of_a_model(x):
    _, scaling, _ = scaled(x, stacked(3))
    assert scaling is not None
    read = scaling_from(to_arrays(scaling), "cpu")
    assert read is not None
    assert read.center.dtype == scaling.center.dtype
    assert torch.equal(read.center, scaling.center)
    assert torch.equal(read.scale, scaling.scale)
    assert read.as_dense == scaling.as_dense
    assert scaling_from({}, "cpu") is None

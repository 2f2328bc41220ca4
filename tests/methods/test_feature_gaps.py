"""Gaps of features are filled with the means of all clients, which depend on no assignment of nodes to
clients, equal scikit-learn's, and are agreed by sums of whole numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from test_feature_scaling import N, Watched, features, in_order, split_of
from torch import Tensor

from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.partitions.partition import partition
from graphfed.data.partitions.tables import from_assignment
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.cohort import make_cohort
from graphfed.methods.base import Task
from graphfed.methods.common.feature_gaps import MESSAGES, fill_features, means_from, to_arrays
from graphfed.methods.common.local_training import as_configured
from graphfed.methods.registry import get_method
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.registry import default_settings

FILLED = (0, 1, 2, 4, 7)


def with_gaps() -> np.ndarray:
    x = features()
    x[np.random.default_rng(1).uniform(size=x.shape) < 0.3] = np.nan
    untouched = [j for j in range(x.shape[1]) if j not in FILLED]
    x[:, untouched] = features()[:, untouched]
    return x


def graph_of(x: np.ndarray) -> Graph:
    rng = np.random.default_rng(0)
    return make_graph("gaps", x, rng.integers(0, 3, N), rng.integers(0, N, (2, 4 * N)), filled=FILLED)


def filled(x: np.ndarray, fed: Federation, method: str = "fedavg", **settings: Any) -> tuple[Tensor, Any]:
    """The filled features [N, F] in the order of the nodes, and the means."""
    graph, chosen = graph_of(x), get_method(method)
    where = from_assignment(graph, np.arange(N) * 7 % fed.num_clients, num_clients=fed.num_clients)
    config = chosen.configure(settings, default_settings(chosen))
    cohorts = [
        as_configured(make_cohort(graph, split_of(graph), where, worker), config) for worker in fed.workers
    ]
    task = Task(graph.num_features, 3, filled=graph.filled)
    done, means = fill_features(fed, fed.locate("clients", "data", cohorts), chosen, config, task)
    return in_order(done.parts), None if means is None else means.parts[0]


@pytest.mark.parametrize("clients", [2, 7, N])
@pytest.mark.parametrize("placement", [stacked, one_at_a_time])
def test_the_means_do_not_depend_on_how_nodes_are_assigned_to_clients(placement: Any, clients: int) -> None:
    x = with_gaps()
    central, _ = filled(x, stacked(1), "central")
    apart, _ = filled(x, placement(clients))
    assert torch.equal(central, apart)


def test_a_secure_sum_gives_the_same_means() -> None:
    plain, _ = filled(with_gaps(), stacked(4))
    hidden, _ = filled(with_gaps(), stacked(4), aggregation="secure")
    assert torch.equal(plain, hidden)


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_the_filled_features_are_those_of_scikit_learns_simple_imputer(shift: float) -> None:
    impute = pytest.importorskip("sklearn.impute")
    x = with_gaps() + np.float32(shift)
    found, means = filled(x, stacked(5))
    expected = impute.SimpleImputer().fit_transform(x.astype(np.float64))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    # A mean is off by at most 2^-31 of the unit, which is within a factor 2 of the typical magnitude.
    columns = x[:, FILLED[:4]].astype(np.float64)
    typical = np.exp(np.nanmean(np.log(np.where(columns == 0, np.nan, np.abs(columns))), axis=0))
    error = np.abs(means[0, :4].numpy() - np.nanmean(columns, axis=0))
    assert (error <= typical * 2.0**-30).all()


def test_a_client_alone_fills_its_gaps_with_its_own_means() -> None:
    x = with_gaps()
    found, means = filled(x, stacked(3), "isolated")
    assert means is None
    for client in range(3):
        own = np.arange(N) * 7 % 3 == client
        expected = np.where(np.isnan(x[own]), np.nanmean(x[own].astype(np.float64), axis=0), x[own])
        np.testing.assert_allclose(found[own], expected, rtol=1e-6)


def test_a_column_without_any_value_is_filled_with_zeros() -> None:
    x = with_gaps()
    x[:, 7] = np.nan
    found, _ = filled(x, stacked(3))
    assert found[:, 7].tolist() == [0.0] * N


def test_only_whole_numbers_leave_a_client() -> None:
    fed = Watched([[0, 1], [2]])
    filled(with_gaps(), fed)
    up = [payload for name, payload in fed.sent if name in ("gap_counts", "gap_sums")]
    assert len(up) == 4  # two sums from each of two workers
    assert all(part.dtype == torch.int64 for payload in up for part in payload.values())
    assert (
        {name for name, _ in fed.sent} == {"gap_counts", "gap_sums", "gap_units", "gap_means"} <= {*MESSAGES}
    )


def test_a_node_that_several_clients_own_counts_once() -> None:
    graph, fed, chosen = graph_of(with_gaps()), stacked(3), get_method("sapgnn")
    shared = partition(graph, "edges_uniform", 3, 0)
    cohort = make_cohort(graph, split_of(graph), shared, range(3))
    ids = torch.unique(cohort.id[cohort.owned]).numpy()
    assert len(ids) < int(cohort.owned.sum())
    config = chosen.configure({}, default_settings(chosen))
    task = Task(graph.num_features, 3, filled=graph.filled)
    _, means = fill_features(fed, fed.locate("clients", "data", [cohort]), chosen, config, task)
    assert means is not None
    expected = np.nanmean(with_gaps()[ids][:, [*FILLED]].astype(np.float64), axis=0)
    np.testing.assert_allclose(means.parts[0][0], expected, rtol=1e-7, atol=1e-7)


def test_the_means_survive_the_file_of_a_model() -> None:
    _, means = filled(with_gaps(), stacked(3))
    read = means_from(to_arrays(means), "cpu")
    assert read is not None
    assert torch.equal(read, means)
    assert means_from({}, "cpu") is None


def test_with_features_of_length_1_gaps_are_filled_first() -> None:
    unit, _ = filled(with_gaps(), stacked(2), features="unit")
    plain, _ = filled(with_gaps(), stacked(2))
    torch.testing.assert_close(unit, plain / plain.norm(dim=1, keepdim=True))


def test_a_method_that_sends_features_only_with_noise_refuses_gaps() -> None:
    """Plaintext sums of the features would show what the noise hides."""
    for name in ("lumos", "lpgnn", "naive_fedgnn"):
        with pytest.raises(InputError, match=f"{name} cannot fill gaps of features"):
            filled(with_gaps(), stacked(2), name)

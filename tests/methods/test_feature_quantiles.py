"""With features=robust the clients find the exact quartiles of all nodes by counting, so that features are
those of scikit-learn's RobustScaler on the pooled table."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_feature_scaling import N, Watched, features, graph_of, large_features, scaled, split_of

from graphfed.data.partitions.partition import partition
from graphfed.errors import InputError
from graphfed.federation.cohort import OWNER_UNITS, make_cohort
from graphfed.methods.base import Task
from graphfed.methods.common.feature_quantiles import (
    MESSAGES,
    PASSES,
    continue_search,
    numbers_of,
    ordered,
    start_search,
)
from graphfed.methods.common.feature_scaling import scaling_from, to_arrays
from graphfed.methods.common.feature_transform import scale_features
from graphfed.methods.registry import get_method
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.registry import default_settings


def pooled(x: np.ndarray) -> np.ndarray:
    """The oracle."""
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    robust: np.ndarray = preprocessing.RobustScaler().fit_transform(x.astype(np.float64))
    return robust


@pytest.mark.parametrize("stored", ["dense", "sparse"])
@pytest.mark.parametrize(("placement", "clients"), [(stacked, 1), (stacked, N), (one_at_a_time, 3)])
def test_features_are_those_of_scikit_learns_robust_scaler(placement: Any, clients: int, stored: str) -> None:
    x = features() if stored == "dense" else sp.csr_matrix(features())
    found, _, _ = scaled(x, placement(clients), features="robust")
    np.testing.assert_allclose(found, pooled(features()), rtol=1e-6, atol=1e-12)
    central, _, _ = scaled(x, stacked(1), "central", features="robust")
    assert torch.equal(found, central)


def test_the_quartiles_are_exact_but_for_the_last_bit_of_an_interpolation() -> None:
    _, scaling, _ = scaled(large_features(), stacked(4), features="robust")
    assert scaling is not None
    x = graph_of(large_features()).x
    assert isinstance(x, np.ndarray)
    lower, median, upper = np.percentile(x.astype(np.float64), [25, 50, 75], axis=0)
    np.testing.assert_allclose(scaling.center[0], median, rtol=4e-16)
    np.testing.assert_allclose(scaling.scale[0], np.where(upper > lower, upper - lower, 1), rtol=1e-15)


def test_a_secure_sum_gives_the_same_features() -> None:
    plain, _, _ = scaled(features(), stacked(4), features="robust")
    hidden, _, _ = scaled(features(), stacked(4), aggregation="secure", features="robust")
    assert torch.equal(plain, hidden)


def test_a_client_alone_uses_its_own_quartiles() -> None:
    found, scaling, _ = scaled(x := features(), stacked(3), "isolated", features="robust")
    assert scaling is None
    for client in range(3):
        own = np.arange(N) * 7 % 3 == client
        np.testing.assert_allclose(found[own], pooled(x[own]), rtol=1e-6, atol=1e-12)


def test_a_node_that_several_clients_own_counts_once() -> None:
    graph, fed, chosen = graph_of(features()), stacked(3), get_method("sapgnn")
    shared = partition(graph, "edges_uniform", 3, 0)
    cohort = make_cohort(graph, split_of(graph), shared, range(3))
    config = chosen.configure({"features": "robust"}, default_settings(chosen))
    data = fed.locate("clients", "data", [cohort])
    _, scaling = scale_features(fed, data, chosen, config, Task(graph.num_features, 3))
    ids = torch.unique(cohort.id[cohort.owned]).numpy()
    assert len(ids) < int(cohort.owned.sum())
    assert scaling is not None
    expected = np.median(features()[ids].astype(np.float64), axis=0)
    np.testing.assert_allclose(scaling.parts[0].center[0], expected, rtol=4e-16)


def test_only_whole_numbers_leave_a_client_in_seventeen_messages() -> None:
    fed = Watched([[0, 1], [2]])
    scaled(features(), fed, features="robust")
    up = [payload for name, payload in fed.sent if name in ("quantile_nodes", "quantile_counts")]
    assert len(up) == 2 * (1 + PASSES)
    assert all(part.dtype == torch.int64 for payload in up for part in payload.values())
    assert {name for name, _ in fed.sent} <= {*MESSAGES, "feature_scaling"}


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2))
def test_numbers_keep_their_order_and_come_back(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    keys = ordered(x)
    assert torch.equal(numbers_of(keys), x)
    assert torch.equal(x[:-1] < x[1:], keys[:-1] < keys[1:])


def test_counts_of_more_nodes_than_there_are_are_refused() -> None:
    search = start_search({"nodes": torch.tensor([[4 * OWNER_UNITS]])}, 1)
    counts = torch.full((1, 6 * 16), OWNER_UNITS)
    with pytest.raises(InputError, match="counted more nodes than they have"):
        continue_search(search, {"digits": counts}, 0)


def test_a_linear_scaling_survives_the_file_of_a_model() -> None:
    found, scaling, _ = scaled(features(), stacked(3), features="robust")
    assert scaling is not None
    read = scaling_from(to_arrays(scaling), "cpu")
    assert read is not None
    assert read.linear
    assert torch.equal(read.center, scaling.center)
    assert bool(found.isfinite().all())

"""Claims about the generated sets: social and roads."""

import functools

import numpy as np
import pytest
import scipy.sparse as sp

from graphfed.data.datasets import load
from graphfed.data.sensors.series import Sensors
from graphfed.errors import InputError


class TestSocial:
    @pytest.mark.parametrize(("n", "degree"), [(2000, 10), (5000, 3.5), (50, 20), (1, 0), (3, 1)])
    def test_there_are_exactly_as_many_edges_as_asked_for(self, n, degree):
        graph = load("social", num_nodes=n, average_degree=degree, communities=min(n, 8))
        assert graph.num_nodes == n
        assert graph.num_edges == np.rint(n * degree / 2)

    def test_degrees_have_a_heavy_tail(self):
        degree = np.bincount(load("social", num_nodes=20_000).edges.ravel())
        # A Poisson degree of mean 10 exceeds 40 with probability 1e-12; here one node in a hundred does.
        assert 0.003 < (degree > 40).mean() < 0.03
        assert degree.max() > 200

    def test_edges_stay_inside_communities_more_the_higher_the_homophily(self):
        inside = []
        for homophily in (0.0, 0.5, 0.9):
            graph = load("social", num_nodes=5000, homophily=homophily)
            u, v = graph.edges
            inside.append((graph.y[u] == graph.y[v]).mean())
        # Without homophily: the chance that two ends agree, the sum of squared shares of all edge ends.
        share = np.bincount(graph.y) / 5000
        assert abs(inside[0] - (share**2).sum()) < 0.05
        assert abs(inside[1] - (0.5 + 0.5 * (share**2).sum())) < 0.05
        assert inside[2] > 0.88

    def test_features_are_binary_sparse_and_every_node_has_one(self):
        graph = load("social")
        assert sp.issparse(graph.x)
        assert graph.x.shape == (2000, 128)
        assert set(graph.x.data) == {1.0}
        assert graph.x.getnnz(axis=1).min() >= 1

    def test_dense_features_are_a_direction_of_the_community_plus_noise_on_the_same_graph(self):
        options = {"num_nodes": 20_000, "communities": 5, "features": 30}
        sparse, graph = load("social", **options), load("social", dense=True, **options)
        assert (graph.edges == sparse.edges).all()
        assert (graph.y == sparse.y).all()
        assert graph.x.dtype == np.float32
        assert graph.x.shape == (20_000, 30)
        mean = np.stack([graph.x[graph.y == c].mean(0) for c in range(5)])
        # Directions have length 2. A mean over 2000 or more nodes errs by 0.022 in each of 30 features, so
        # its length by about that; 6 of it, 5 lengths: false alarm below 1e-7.
        assert abs(np.linalg.norm(mean, axis=1) - 2).max() < 6 * 0.023
        noise = graph.x - mean[graph.y]
        # 600 000 independent numbers of variance 1: its standard error is 0.002.
        assert abs(noise.var() - 1) < 0.012
        assert abs(np.corrcoef(noise.T) - np.eye(30)).max() < 0.05  # 435 of N(0, 1/20000): 7 sigma

    @pytest.mark.parametrize("dense", [False, True])
    def test_features_predict_the_community_and_neighbours_features_predict_more(self, dense):
        graph = load("social", dense=dense)
        u, v = graph.edges
        ends = (np.ones(2 * len(u), np.float32), (np.r_[u, v], np.r_[v, u]))
        adjacency = sp.coo_matrix(ends, shape=(2000, 2000)).tocsr()
        train = np.arange(2000) < 1000
        own = graph.x if dense else graph.x.toarray()

        def accuracy(x: np.ndarray) -> float:
            """Of the nearest mean, from the first half (numbers are shuffled)."""
            mean = np.stack([x[train & (graph.y == c)].mean(0) for c in range(8)])
            guess = (x[~train] @ mean.T - (mean**2).sum(1) / 2).argmax(1)
            return (guess == graph.y[~train]).mean()

        degree = np.bincount(graph.edges.ravel(), minlength=2000)
        alone, together = accuracy(own), accuracy((adjacency @ own + own) / (degree + 1)[:, None])
        assert alone > 2 * np.bincount(graph.y).max() / 2000
        assert 1 > together > alone + 0.1

    @pytest.mark.parametrize("dense", [False, True])
    def test_another_seed_is_another_graph_and_the_same_seed_the_same(self, dense):
        first, same, other = (load("social", dense=dense, seed=seed) for seed in (1, 1, 2))
        assert first.hash == same.hash
        assert (first.x != other.x).mean() > (0.99 if dense else 0.05)

    def test_node_numbers_do_not_reveal_the_community(self):
        y = load("social", num_nodes=10_000).y
        # Under random numbering the correlation of class and number is about N(0, 1/10000): 5.5 of it, 4e-8.
        assert abs(np.corrcoef(np.arange(10_000), y)[0, 1]) < 0.055

    def test_every_community_has_a_node_even_when_there_are_as_many(self):
        assert sorted(load("social", num_nodes=8, average_degree=1).y) == list(range(8))

    def test_the_default_graph_stays_what_it_was(self):
        # Copied from the program's output: proves only that nothing moved, on this machine or another.
        assert load("social").hash == "dfd0a0f20d4a9776dfd3feddc6b0e4897bfb9f8e1d5522fbb80353853a37ad2b"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_nodes": 0}, "num_nodes=0 must be a whole number of at least 1"),
            ({"features": 2.5}, "features=2.5"),
            ({"communities": 9, "num_nodes": 8}, "communities=9 is more than num_nodes=8"),
            ({"average_degree": -1.0}, "average_degree=-1 "),
            ({"num_nodes": 11, "average_degree": 6.0}, r"which is 5 for num_nodes=11"),
            ({"homophily": 2.0}, "homophily=2 "),
            ({"seed": -1}, "seed -1"),
            ({"num_nodes": 10**11}, "num_nodes=100000000000 is too many; use at most 10000000"),
            ({"num_nodes": 1, "communities": 1}, r"average_degree=10 must be .* 0 for num_nodes=1"),
            ({"num_nodes": "many"}, "num_nodes='many' must be a whole number"),
            ({"features": 10**11}, "times features=100000000000 is more than"),
            ({"num_nodes": 10**6, "communities": 10**6}, "communities=1000000 times features=128"),
            ({"num_nodes": 10**6, "average_degree": 4e5}, "more than 100000000 edges"),
            ({"average_degree": "ten"}, "average_degree='ten' must be a number"),
            ({"average_degree": float("nan")}, "average_degree=nan must be"),
            ({"dense": "yes"}, "dense='yes' cannot be used: expected true or false"),
            ({"num_nodes": 10**7, "dense": True}, "times features=128 is more than 1000000000 dense numbers"),
            ({"homophily": None}, "homophily=None must be a number"),
            ({"homophily": float("nan")}, "homophily=nan must be a fraction"),
            ({"num_nodes": 200, "homophily": 1.0, "average_degree": 60.0}, "could not be drawn.*smaller"),
        ],
    )
    def test_impossible_options_are_refused(self, options, message):
        with pytest.raises(InputError, match=message):
            load("social", **options)


@functools.cache
def roads() -> Sensors:
    return load("roads")


@functools.cache
def speeds() -> np.ndarray:
    """[T, S], NaN where missing."""
    return np.where(roads().missing, np.nan, roads().readings)


class TestRoads:
    def test_four_weeks_of_sixty_sensors_every_five_minutes(self):
        assert roads().readings.shape == (28 * 288, 60)
        assert roads().readings.dtype == np.float32
        assert (roads().start, roads().step_minutes) == ("2024-01-01T00:00:00", 5)
        assert roads().position.shape == (60, 2)
        assert load("roads", sensors=17, weeks=1).readings.shape == (7 * 288, 17)

    def test_readings_are_plausible_speeds_or_missing(self):
        assert np.nanmin(speeds()) >= 3
        assert np.nanmax(speeds()) <= 80
        assert 0.005 < np.isnan(speeds()).mean() < 0.03

    def test_working_days_are_slow_at_the_peaks_and_free_at_night_and_weekends_are_free(self):
        hour = np.arange(28 * 288) % 288 / 12
        working = np.arange(28 * 288) // 288 % 7 < 5

        def mean(hours, days):
            return np.nanmean(speeds()[(hour >= hours[0]) & (hour < hours[1]) & days])

        night = mean((1, 4), working)
        for peak in ((7, 9), (16.5, 18.5)):
            assert mean(peak, working) < night - 8
            assert mean(peak, ~working) > night - 4

    def test_congestion_travels_upstream(self):
        # Sensors are numbered in the direction of travel; a wave needs 2 steps from s to s - 4 (3.2 km).
        # So what changes at s changes two steps later at s - 4; two steps earlier it is hardly related.
        apart, lag = 4, 2
        moved = roads().position[apart:] - roads().position[:-apart]
        same_road = (abs(moved).min(1) == 0) & (abs(moved).max(1) < 6)
        filled = np.where(np.isnan(speeds()), np.nanmean(speeds(), axis=0), speeds())
        change = np.diff(filled, axis=0)
        z = (change - change.mean(0)) / change.std(0)
        upstream, downstream = z[:, :-apart][:, same_road], z[:, apart:][:, same_road]
        later = (upstream[lag:] * downstream[:-lag]).mean()
        earlier = (upstream[:-lag] * downstream[lag:]).mean()
        assert later > 0.1
        assert later > 2 * earlier

    def test_the_adjacency_is_a_directed_thresholded_kernel(self):
        w = roads().adjacency.toarray()
        assert (w.diagonal() == 1).all()
        assert ((w == 0) | ((w >= 0.1) & (w <= 1))).all()
        assert (w != w.T).any()
        assert 2 < (w > 0).sum() / 60 < 12  # neighbours a sensor

    def test_roads_are_joined_where_they_cross(self):
        count, _ = sp.csgraph.connected_components(roads().adjacency, directed=False)
        assert count == 1

    @pytest.mark.parametrize("sensors", [1, 2, 3, 40, 207])
    def test_any_number_of_sensors_gives_finite_data(self, sensors):
        network = load("roads", sensors=sensors, weeks=1)
        assert np.isfinite(network.readings).all()
        assert np.isfinite(network.position).all()
        assert (network.adjacency.diagonal() == 1).all()

    def test_another_seed_is_another_network(self):
        a, b = load("roads", weeks=1, seed=1), load("roads", weeks=1, seed=2)
        assert a.hash != b.hash
        assert (a.position != b.position).any()

    def test_the_default_readings_stay_what_they_were(self):
        # Copied from the program's output: proves only that nothing moved, on this machine or another.
        assert roads().hash == "56b53c15d1f6e4c1ca996c18a6bbb684c5203adc1c1bafe0165182385e027e48"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"sensors": 10**11}, "sensors=100000000000 is too many; use at most 5000"),
            ({"weeks": 10**11}, "weeks=100000000000 with sensors=60 .* use at most 413 weeks"),
            ({"sensors": 5000, "weeks": 5}, "use at most 4 weeks"),
            ({"sensors": 2.5}, "sensors=2.5 must be a whole number"),
            ({"weeks": 0}, "weeks=0 must be a whole number of at least 1"),
            ({"weeks": True}, "weeks=True must be a whole number"),
        ],
    )
    def test_absurd_sizes_are_refused_before_anything_is_allocated(self, options, message):
        with pytest.raises(InputError, match=message):
            load("roads", **options)

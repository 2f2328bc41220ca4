"""Claims about METR-LA and PEMS-BAY: the subsets that are here, and the full files as the public ones are
written."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from sensor_files import write_hdf5, write_wide

from graphfed.data.datasets import available, load
from graphfed.data.sensors.kernel import gaussian_kernel
from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import make_time_split
from graphfed.errors import InputError

LA = (773869, 767541, 767542, 717447)


def edges(sensors: Sensors) -> int:
    return sensors.adjacency.nnz - sensors.num_sensors


class TestSubsets:
    @pytest.mark.parametrize(
        ("name", "shape", "count", "missing"),
        [
            ("metr_la_week", (2016, 207), 1515, 0.0),
            ("metr_la_raw", (1026, 207), 1515, 0.0275),
            ("metr_la_20", (34272, 20), 123, 0.0785),
            ("pems_bay_67", (52116, 67), 129, 0.0),
        ],
    )
    def test_a_subset_has_the_readings_gaps_and_edges_that_are_printed_of_it(
        self, name, shape, count, missing, real_data
    ):
        sensors = load(name, real_data)
        assert sensors.readings.shape == shape
        assert edges(sensors) == count
        assert sensors.missing.mean() == pytest.approx(missing, abs=5e-5)
        assert ((sensors.readings == 0) == sensors.missing).all()
        assert sensors.position.shape == (shape[1], 2)
        assert sensors.geographic
        assert (sensors.adjacency.diagonal() == 1).all()

    def test_what_a_reader_must_know_of_a_subset_is_noted(self, real_data):
        assert "filled by linear interpolation" in load("metr_la_week", real_data).note
        assert "daylight saving time" in load("pems_bay_67", real_data).note

    def test_subsets_of_one_network_agree_wherever_all_have_a_reading(self, real_data):
        week, raw, few = (load(name, real_data) for name in ("metr_la_week", "metr_la_raw", "metr_la_20"))
        there = ~raw.missing
        assert (week.readings[: len(there)][there] == raw.readings[there]).all()
        column = [week.ids.index(name) for name in few.ids]
        there = ~few.missing[:2016]
        assert np.abs(week.readings[:, column] - few.readings[:2016])[there].max() < 5e-6
        assert (week.adjacency[column][:, column] != few.adjacency).nnz == 0
        assert (week.position[column] == few.position).all()

    def test_the_subsets_over_the_full_period_are_split_as_published(self, real_data):
        split = make_time_split(load("metr_la_20", real_data), "inductive:0.25", 12, 12)
        assert (split.train, split.val, split.test) == (23_974, 3_425, 6_850)
        assert split.observed.sum() == 5


def speeds(steps: int, sensors: int) -> np.ndarray:
    """With zeros, as the public files have them."""
    values = np.random.default_rng(0).uniform(1, 70, (steps, sensors)).round(3)
    values[3, 1] = values[5:9, 0] = 0
    return values


def graph_npz(folder: Path, ids: tuple[int, ...]) -> np.ndarray:
    """In another order than the readings; gives the matrix in the readings' order."""
    weights = np.eye(len(ids), dtype=np.float32)
    weights[0, 1], weights[2, 0], weights[3, 2] = 0.5, 0.25, 0.125
    turned = weights[::-1, ::-1]
    degrees = {"lat": 34 + np.arange(len(ids)) / 10, "lon": -118 - np.arange(len(ids)) / 10}
    np.savez(folder / "metr_la_graph.npz", sensor_ids=np.array(ids[::-1]), adj=turned, **degrees)
    return weights


class TestFullFiles:
    @pytest.mark.parametrize("form", ["old pandas", "new pandas", "csv"])
    def test_metr_la_is_read_as_pandas_wrote_it(self, form, tmp_path):
        times = np.datetime64("2012-03-01T00:00", "m") + np.arange(300) * np.timedelta64(5, "m")
        values, ids = speeds(300, 4), tuple(str(number) for number in LA)
        if form == "csv":
            write_wide(tmp_path / "METR-LA.csv", ids, times, values)
            text = (tmp_path / "METR-LA.csv").read_text()
            (tmp_path / "METR-LA.csv").write_text(text.replace("time,", ",", 1))  # as pandas names an index
        else:
            unit = "" if form == "old pandas" else "[us]"
            write_hdf5(tmp_path / "metr-la.h5", ids, times, values, unit=unit)
        weights = graph_npz(tmp_path, LA)
        sensors = load("metr_la", tmp_path)
        assert sensors.ids == ids
        assert (sensors.readings == values.astype(np.float32)).all()
        assert (sensors.missing == (values == 0)).all()
        assert (sensors.start, sensors.step_minutes) == ("2012-03-01T00:00:00", 5)
        assert sensors.adjacency.toarray().tolist() == weights.tolist()
        assert sensors.position[0] == pytest.approx([34.3, -118.3])
        assert sensors.note == ""

    @pytest.mark.parametrize("header", [True, False])
    def test_the_public_tables_of_distances_and_locations_make_the_graph(self, header, tmp_path):
        times = np.datetime64("2012-03-01T00:00", "m") + np.arange(60) * np.timedelta64(5, "m")
        ids = tuple(str(number) for number in LA)
        write_hdf5(tmp_path / "metr-la.h5", ids, times, speeds(60, 4))
        folder = tmp_path / "sensor_graph"
        folder.mkdir()
        listed = [(0, 1, 300.0), (1, 0, 310.5), (2, 0, 2000.0), (3, 1, 90.0)] + [
            (i, i, 0.0) for i in range(4)
        ]
        rows = [f"{LA[i]},{LA[j]},{d}" for i, j, d in listed] + ["1201054,1201066,2610.9"]
        (folder / "distances_la_2012.csv").write_text("\n".join(["from,to,cost"] * header + rows) + "\n")
        places = [f"{i},{name},34.{i},-118.{i}" for i, name in enumerate(LA)]
        head = ["index,sensor_id,latitude,longitude"] * header
        (folder / "graph_sensor_locations.csv").write_text("\n".join(head + places) + "\n")
        sensors = load("metr_la", tmp_path)
        i, j, d = (np.array(column) for column in zip(*listed, strict=True))
        assert (sensors.adjacency != gaussian_kernel(i, j, d, 4)).nnz == 0
        assert sensors.position.tolist() == [[34.0, -118.0], [34.1, -118.1], [34.2, -118.2], [34.3, -118.3]]

    def test_the_hour_that_pems_bay_skips_is_no_step_and_that_is_noted(self, tmp_path):
        times = np.datetime64("2017-01-01T00:00", "m") + np.arange(181 * 288) * np.timedelta64(5, "m")
        skipped = (times >= np.datetime64("2017-03-12T02:00")) & (times < np.datetime64("2017-03-12T03:00"))
        values = speeds(len(times), 4)
        ids = (400001, 400017, 400030, 400040)
        (tmp_path / "distances_bay_2017.csv").write_text("400001,400001,0.0\n400017,400030,5.0\n")
        (tmp_path / "graph_sensor_locations_bay.csv").write_text(
            "".join(f"{name},37.{i},-121.{i}\n" for i, name in enumerate(ids))
        )
        write_hdf5(tmp_path / "pems-bay.h5", ids, times[~skipped], values[~skipped], key="speed", unit="")
        sensors = load("pems_bay", tmp_path)
        assert sensors.readings.shape == (52_116, 4)
        assert (sensors.readings == values[~skipped].astype(np.float32)).all()
        assert "daylight saving time" in sensors.note
        split = make_time_split(sensors, "default", 12, 12)
        assert (split.train, split.val, split.test) == (36_465, 5_209, 10_419)
        write_hdf5(tmp_path / "pems-bay.h5", ids, times, values, key="speed")
        whole = load("pems_bay", tmp_path)
        assert (whole.num_steps, whole.note) == (52_128, "")

    def test_the_published_matrix_of_pems_bay_comes_from_its_table_of_distances(self, real_data, tmp_path):
        with np.load(real_data / "traffic" / "pems_bay_graph.npz") as file:
            ids, published = file["sensor_ids"], file["adj"]
            listed = zip(ids[file["dist_from"]], ids[file["dist_to"]], file["dist_m"], strict=True)
            rows = "".join(f"{i},{j},{d}\n" for i, j, d in listed)
        (tmp_path / "distances_bay_2017.csv").write_text(rows)
        times = np.datetime64("2017-01-01T00:00", "m") + np.arange(30) * np.timedelta64(5, "m")
        write_hdf5(tmp_path / "pems-bay.h5", tuple(ids.tolist()), times, speeds(30, 325))
        sensors = load("pems_bay", tmp_path)
        assert edges(sensors) == 2369
        assert np.abs(sensors.adjacency.toarray() - published).max() < 1e-7
        assert sensors.position is None  # no table of locations


class TestWhatIsMissing:
    def test_a_set_that_is_not_here_names_its_files_and_where_to_get_them(self, tmp_path, monkeypatch):
        monkeypatch.delenv("GRAPHFED_DATA", raising=False)
        with pytest.raises(
            InputError, match=r"'pems_bay' was not found: it needs pems-bay.h5 or .* get it from"
        ):
            load("pems_bay", tmp_path)
        row = next(row for row in available(tmp_path) if row.name == "metr_la")
        assert row.missing == ("metr-la.h5", "metr_la_graph.npz or distances_la_2012.csv")
        assert not row.ready

    def test_a_pickle_of_the_graph_is_not_read(self, tmp_path, monkeypatch):
        monkeypatch.delenv("GRAPHFED_DATA", raising=False)
        times = np.datetime64("2012-03-01T00:00", "m") + np.arange(30) * np.timedelta64(5, "m")
        write_hdf5(tmp_path / "metr-la.h5", LA, times, speeds(30, 4))
        (tmp_path / "adj_mx.pkl").write_bytes(b"cposix\nsystem\n(S'touch ran'\ntR.")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(
            InputError, match=r"metr_la_graph.npz or distances_la_2012.csv.*adj_mx.pkl is a pickle"
        ):
            load("metr_la", tmp_path)
        assert not Path("ran").exists()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"speed": np.ones((50, 3), np.float32)}, "array 'speed' has dtype float32 and shape"),
            ({"speed": np.full((50, 4), np.nan, np.float32)}, "sensor '773869' at step 0 is nan"),
            ({"sensor_ids": np.array([1, 2, 2, 3])}, "'sensor_ids' must name every sensor once"),
            ({"adj": np.eye(3, dtype=np.float32)}, "array 'adj' has dtype float32"),
            ({"adj": -np.eye(4, dtype=np.float32)}, "expected numbers of at least 0"),
            ({"lat": np.zeros(3)}, r"array 'lat' has dtype float64 and shape \(3,\); expected 4 numbers"),
            ({"start": np.array(5)}, "array 'start' has dtype int64 and shape"),
            ({"speed": np.array([[1, None]], dtype=object)}, "array 'speed' cannot be read"),
        ],
    )
    def test_a_damaged_subset_is_refused(self, change, message, tmp_path, monkeypatch):
        monkeypatch.delenv("GRAPHFED_DATA", raising=False)
        arrays = {
            "speed": speeds(50, 4).astype(np.float32), "sensor_ids": np.array(LA),
            "adj": np.eye(4, dtype=np.float32), "lat": np.zeros(4), "lon": np.zeros(4),
            "start": "2012-03-01T00:00:00", "step_minutes": 5,
        }  # fmt: skip
        np.savez(tmp_path / "metr_la_20sensors.npz", **{**arrays, **change})
        with pytest.raises(InputError, match=message):
            load("metr_la_20", tmp_path)

    def test_a_graph_without_a_sensor_of_the_readings_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.delenv("GRAPHFED_DATA", raising=False)
        times = np.datetime64("2012-03-01T00:00", "m") + np.arange(30) * np.timedelta64(5, "m")
        write_hdf5(tmp_path / "metr-la.h5", (*LA[:3], 1), times, speeds(30, 4))
        graph_npz(tmp_path, LA)
        with pytest.raises(InputError, match=r"metr_la_graph.npz: it has no sensor '1' \(1 such sensors\)"):
            load("metr_la", tmp_path)


def test_the_name_of_a_set_is_not_in_its_hash(real_data):
    sensors = load("metr_la_raw", real_data)
    assert dataclasses.replace(sensors, name="other", note="").hash == sensors.hash

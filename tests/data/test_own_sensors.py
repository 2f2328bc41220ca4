"""Claims about the user's own sensors: every form of the same readings is the same data, gaps and order of
rows do not matter, and whatever is wrong is said in one line."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sensor_files import WRITERS, times_of, write_hdf5, write_npz, write_wide

from graphfed.cli import main
from graphfed.data.sensors.series import Sensors
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError
from graphfed.tasks.source import data_source, load_data

IDS = ("a", "b", "c")
STEPS = 40


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole data set, to be broken in one place."""
    monkeypatch.chdir(tmp_path)
    good()
    return tmp_path


def numbers(steps: int = STEPS) -> np.ndarray:
    """[T, 3] float64 of tenths, with a gap."""
    values = np.round(np.random.default_rng(0).uniform(1, 70, (steps, 3)), 1)
    values[7, 1] = np.nan
    return values


def good() -> None:
    write_wide(Path("speeds.csv"), IDS, times_of(STEPS), numbers())
    Path("distances.csv").write_text("from,to,distance\na,a,0\nb,b,0\nc,c,0\na,b,100\nb,a,120\nb,c,900\n")
    Path("sensors.csv").write_text("id,latitude,longitude\nc,34.1,-118.1\na,34.2,-118.3\nb,34.3,-118.2\n")
    Path("d.yaml").write_text("readings: speeds.csv\ndistances: distances.csv\nlocations: sensors.csv\n")


def read(**changes: Any) -> Sensors:
    content = {"readings": "speeds.csv", "distances": "distances.csv", **changes}
    return load_data(data_source({key: value for key, value in content.items() if value is not None}).value)


class TestForms:
    def test_a_description_names_readings_distances_and_locations(self):
        sensors = load_data(data_source("d.yaml").value)
        assert sensors.ids == IDS
        assert (sensors.name, sensors.start, sensors.step_minutes) == ("speeds", "2024-01-01T00:00:00", 5)
        assert sensors.missing.sum() == sensors.missing[7, 1] == 1
        assert sensors.readings[7, 1] == 0
        assert (sensors.readings == np.nan_to_num(numbers()).astype(np.float32)).all()
        assert sensors.position.tolist() == [[34.2, -118.3], [34.3, -118.2], [34.1, -118.1]]
        sigma = np.std([0, 0, 0, 100, 120, 900])
        expected = np.eye(3)
        expected[0, 1], expected[1, 0] = np.exp(-((100 / sigma) ** 2)), np.exp(-((120 / sigma) ** 2))
        assert sensors.adjacency.toarray() == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("form", WRITERS)
    def test_the_same_readings_in_any_form_are_the_same_data(self, form):
        WRITERS[form](Path(form), IDS, times_of(STEPS), numbers())
        assert read(readings=form).hash == read().hash

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        data=st.data(), steps=st.integers(2, 12), count=st.integers(1, 4), step=st.sampled_from([1, 5, 60])
    )
    def test_any_readings_come_back_from_every_form(self, data, steps, count, step):
        value = st.floats(-1e6, 1e6, width=32) | st.just(float("nan"))
        rows = data.draw(
            st.lists(st.lists(value, min_size=count, max_size=count), min_size=steps, max_size=steps)
        )
        values = np.array(rows)
        values[0, np.isnan(values).all(0)] = 1.0
        ids = tuple(f"s{i}" for i in range(count))
        Path("distances.csv").write_text("from,to,distance\ns0,s0,0\n")
        for form, write in WRITERS.items():
            write(Path(form), ids, times_of(steps, step), values)
            sensors = read(readings=form, step_minutes=step)
            assert sensors.ids == ids
            assert (sensors.missing == np.isnan(values)).all()
            assert (sensors.readings == np.nan_to_num(values).astype(np.float32)).all()
            assert sensors.step_minutes == step

    def test_rows_may_come_in_any_order(self):
        before = read().hash
        for form in ("speeds.csv", "long.csv"):
            if form == "long.csv":
                WRITERS[form](Path(form), IDS, times_of(STEPS), numbers())
            head, first, *rest = Path(form).read_text().splitlines()
            rest = [rest[i] for i in np.random.default_rng(1).permutation(len(rest))]
            # The first row stays: in a long table the sensors are in the order of their first rows.
            Path(form).write_text(
                "\n".join([head, first, *sorted(rest, key=lambda r: "00:00" not in r)]) + "\n"
            )
            if form == "speeds.csv":
                assert read(readings=form).hash == before
            else:
                assert read(readings=form).missing.sum() == 1

    def test_times_without_a_row_are_missing_readings(self):
        whole = read()
        lines = Path("speeds.csv").read_text().splitlines()
        Path("speeds.csv").write_text("\n".join(lines[:11] + lines[14:]) + "\n")  # steps 10, 11, 12
        sensors = read()
        assert sensors.num_steps == STEPS
        assert sensors.missing[10:13].all()
        assert sensors.missing.sum() == 3 * 3 + 1
        kept = ~sensors.missing
        assert (sensors.readings[kept] == whole.readings[kept]).all()

    def test_a_long_table_needs_no_row_where_there_is_no_reading(self):
        WRITERS["long.csv"](Path("long.csv"), IDS, times_of(STEPS), numbers())
        rows = [row for row in Path("long.csv").read_text().splitlines() if not row.endswith(",")]
        Path("long.csv").write_text("\n".join(rows) + "\n")
        assert read(readings="long.csv").hash == read().hash

    def test_a_number_may_mean_that_there_is_no_reading(self):
        values = numbers()
        marked = np.nan_to_num(values, nan=-99.9)
        for form, write in WRITERS.items():
            write(Path(form), IDS, times_of(STEPS), marked)
            assert read(readings=form, missing=-99.9).hash == read().hash

    def test_columns_may_have_any_name(self):
        text = Path("speeds.csv").read_text().replace("time,", "when,", 1)
        Path("speeds.csv").write_text(text)
        Path("distances.csv").write_text("i,j,metres\na,b,100\nb,a,120\nb,c,900\na,a,0\nb,b,0\nc,c,0\n")
        Path("sensors.csv").write_text("sensor_id,x,y\na,0,0\nb,1,2\nc,3,4\n")
        columns = {"time": "when", "from": "i", "to": "j", "distance": "metres", "id": "sensor_id"}
        sensors = read(locations="sensors.csv", **columns)
        good()
        assert (sensors.adjacency != read().adjacency).nnz == 0
        assert not sensors.geographic
        assert sensors.position.tolist() == [[0, 0], [1, 2], [3, 4]]

    def test_an_index_without_a_name_is_the_time(self):
        text = Path("speeds.csv").read_text().replace("time,", ",", 1)
        before = read().hash
        Path("speeds.csv").write_text(text)
        assert read().hash == before

    def test_times_with_a_zone_are_reported_in_utc(self):
        before = read()
        lines = Path("speeds.csv").read_text().splitlines()
        zoned = [lines[0]] + [line.replace(",", "+02:00,", 1) for line in lines[1:]]
        Path("speeds.csv").write_text("\n".join(zoned) + "\n")
        sensors = read()
        assert sensors.start == "2023-12-31T22:00:00"
        assert sensors.note == "times are in UTC"
        assert (sensors.readings == before.readings).all()

    @pytest.mark.parametrize("file", ["speeds.csv", "r.npz"])
    def test_readings_that_32_bits_make_equal_are_named(self, file):
        def note_of(values: np.ndarray) -> str:
            write_wide(Path("speeds.csv"), IDS, times_of(STEPS), values)
            np.savez("r.npz", readings=values, ids=np.array(IDS), start="2024-01-01", step_minutes=5)
            return read(readings=file).note

        assert "32 bits" not in note_of(numbers())
        note = note_of(101_325_000 + numbers() / 1000)
        assert "different readings are only 1 in 32 bits" in note
        assert "subtract one constant from all readings" in note

    def test_npz_may_give_the_first_time_and_the_step(self):
        np.savez("r.npz", readings=numbers(), ids=np.array(IDS), start="2024-01-01", step_minutes=5)
        assert read(readings="r.npz").hash == read().hash

    def test_what_pandas_itself_wrote_is_read_and_its_pickles_are_not(self):
        # Six rows of n / 8 with one gap, written by pandas 3.1.1 (to_hdf); the index's `freq` is a pickle.
        file = Path(__file__).with_name("written_by_pandas.h5")
        Path("distances.csv").write_text("from,to,distance\n773869,767541,0\n")
        sensors = read(readings=str(file))
        assert sensors.ids == ("773869", "767541", "767542")
        assert (sensors.start, sensors.step_minutes) == ("2012-03-01T00:00:00", 5)
        expected = np.arange(18).reshape(6, 3) / 8
        expected[2, 1] = 0
        assert (sensors.readings == expected).all()
        assert np.argwhere(sensors.missing).tolist() == [[2, 1]]

    def test_a_description_in_a_manifest_reads_the_same_data(self):
        Path("w.csv").write_text("a,b,c\n1,0.5,0\n0,1,0.2\n0,0,1\n")
        for source in (
            data_source("d.yaml"),
            data_source({"readings": "speeds.csv", "adjacency": "w.csv", "missing": 0, "quantity": "flow"}),
        ):
            again = data_source(source.source)
            assert again.value.to_json() == source.source
            assert load_data(again.value).hash == load_data(source.value).hash

    def test_sensors_in_python_are_a_source(self):
        sensors = read()
        source = data_source(sensors)
        assert load_data(source.value) is sensors
        assert (source.kind, source.source, source.name) == ("sensors", None, "speeds")


class TestGraph:
    def test_distances_of_sensors_without_readings_are_left_out_and_counted(self):
        before = read()
        with Path("distances.csv").open("a") as file:
            file.write("a,x,5\ny,b,6\nx,y,7\n")
        sensors = read()
        assert (sensors.adjacency != before.adjacency).nnz == 0
        assert (
            sensors.note
            == "3 of 9 listed pairs were left out, because they name 2 sensors without readings ('x', 'y')"
        )

    def test_distances_that_make_no_edge_are_reported(self):
        Path("distances.csv").write_text("from,to,distance\na,b,100\nb,a,101\n")  # far beyond their deviation
        assert read().note == "no two sensors are close enough for an edge (see sigma and threshold)"
        assert read(sigma=100).note == ""

    def test_a_sensor_without_neighbours_has_itself_alone(self):
        Path("distances.csv").write_text("from,to,distance\na,b,100\nb,a,120\n")
        sensors = read(sigma=100)
        assert sensors.adjacency.nnz == 5
        assert sensors.adjacency[2].toarray().tolist() == [[0, 0, 1]]
        assert sensors.adjacency[:, [2]].toarray().ravel().tolist() == [0, 0, 1]

    @pytest.mark.parametrize(
        "form", ["list", "named", "ordered", "bare", "npz", "npz with ids", "csr", "csc", "coo"]
    )
    def test_the_same_weights_in_any_form_are_the_same_graph(self, form):
        weights = np.array([[1, 0.5, 0], [0, 1, 0.25], [0.125, 0, 1]], dtype=np.float32)
        other = ["c", "a", "b"]  # another order than that of the readings
        turned = weights[np.ix_([2, 0, 1], [2, 0, 1])]
        name = "w.npz" if form in ("npz", "npz with ids", "csr", "csc", "coo") else "w.csv"
        if form == "list":
            Path(name).write_text("from,to,weight\na,b,0.5\nb,c,0.25\nc,a,0.125\n")
        elif form == "named":
            lines = [",".join(["id", *other])] + [
                ",".join([i, *map(str, row)]) for i, row in zip(other, turned.tolist(), strict=True)
            ]
            Path(name).write_text("\n".join(lines) + "\n")
        elif form == "ordered":
            Path(name).write_text(
                "\n".join([",".join(other)] + [",".join(map(str, r)) for r in turned.tolist()])
            )
        elif form == "bare":
            Path(name).write_text("\n".join(",".join(map(str, row)) for row in weights.tolist()))
        elif form == "npz":
            np.savez(name, adjacency=weights)
        elif form == "npz with ids":
            np.savez(name, w=turned, ids=np.array(other))
        else:
            sp.save_npz(name, sp.coo_matrix(weights).asformat(form))
        sensors = read(distances=None, adjacency=name)
        assert sensors.adjacency.toarray().tolist() == weights.tolist()

    @pytest.mark.parametrize("form", ["named", "npz", "bare", "directed"])
    def test_a_matrix_of_distances_is_no_matrix_of_weights(self, form):
        """The farthest sensor would be the nearest neighbour."""
        distances = np.array([[0, 100, 950], [100, 0, 900], [950, 900, 0]], dtype=float)
        if form == "directed":
            distances[1, 0] = 120
        name = "w.npz" if form == "npz" else "w.csv"
        rows = "\n".join(",".join(map(str, row)) for row in distances.tolist())
        if form == "npz":
            np.savez(name, distances=distances)
        else:
            Path(name).write_text(rows if form == "bare" else f"a,b,c\n{rows}\n")
        with pytest.raises(InputError, match="numbers like distances, of which the largest") as refusal:
            read(distances=None, adjacency=name)
        keys = [key for key in ("distances", "weights") if f"'adjacency_holds: {key}'" in str(refusal.value)]
        assert keys == ["distances", "weights"]
        near = read(distances=None, adjacency=name, adjacency_holds="distances", threshold=0)
        expected = np.exp(-((distances / np.std(distances)) ** 2))
        assert near.adjacency.toarray() == pytest.approx(expected, abs=1e-6)
        assert near.adjacency[0, 1] > near.adjacency[0, 2]
        heavy = read(distances=None, adjacency=name, adjacency_holds="weights")
        assert heavy.adjacency[0, 2] == 950

    def test_distances_with_gaps_in_a_matrix_are_noted(self):
        Path("w.csv").write_text("a,b,c\n0,100,0\n120,0,900\n0,0,0\n")
        with pytest.raises(InputError, match="adjacency_holds"):
            read(distances=None, adjacency="w.csv")
        sensors = read(distances=None, adjacency="w.csv", adjacency_holds="distances")
        assert (sensors.adjacency != read().adjacency).nnz == 0
        assert "3 pairs of sensors have no distance (0 in the matrix), so no edge" in sensors.note

    @pytest.mark.parametrize(
        "matrix",
        [
            [[1, 0.5, 0.2], [0.5, 1, 0.1], [0.2, 0.1, 1]],  # a kernel
            [[0, 1, 1], [1, 0, 0], [1, 0, 0]],  # neighbours
            [[0, 5, 1], [5, 0, 1], [1, 1, 0]],  # trips: the direct way 5 is longer than that over c, 2
        ],
    )
    def test_a_matrix_of_weights_is_taken_as_it_is(self, matrix):
        Path("w.csv").write_text("a,b,c\n" + "\n".join(",".join(map(str, row)) for row in matrix) + "\n")
        weights = np.array(matrix, dtype=np.float32)
        np.fill_diagonal(weights, 1)
        assert np.array_equal(read(distances=None, adjacency="w.csv").adjacency.toarray(), weights)

    def test_a_column_of_distances_is_no_column_of_weights(self):
        text = Path("distances.csv").read_text()
        Path("w.csv").write_text(text.replace("distance", "cost"))
        with pytest.raises(InputError, match=r"column 'cost' of w\.csv seems to have distances"):
            read(distances=None, adjacency="w.csv", weight="cost")
        near = read(distances=None, adjacency="w.csv", weight="cost", adjacency_holds="distances")
        assert (near.adjacency != read().adjacency).nnz == 0
        heavy = read(distances=None, adjacency="w.csv", weight="cost", adjacency_holds="weights")
        assert heavy.adjacency[1, 2] == 900

    def test_a_matrix_as_distances_names_the_keys_that_read_it(self):
        Path("w.csv").write_text("id,a,b,c,d\n")
        with pytest.raises(InputError, match=r"write 'adjacency: w\.csv' and 'adjacency_holds: distances'"):
            read(distances="w.csv")

    def test_ids_that_are_numbers_are_no_weights_and_weights_no_ids(self):
        write_wide(Path("speeds.csv"), ("0", "1", "5"), times_of(STEPS), numbers())
        rows = "1,0.5,0\n0,1,0.25\n0,0,1\n"
        Path("w.csv").write_text(rows)
        bare = read(distances=None, adjacency="w.csv")
        Path("w.csv").write_text("0,1,5\n" + rows)
        assert (read(distances=None, adjacency="w.csv").adjacency != bare.adjacency).nnz == 0
        assert bare.adjacency[0, 1] == 0.5

    def test_a_first_line_of_ids_that_lacks_a_sensor_is_said_to_lack_it(self):
        """It was taken for weights: '7 rows and 6 columns'."""
        write_wide(Path("speeds.csv"), ("773869", "773870", "773871"), times_of(STEPS), numbers())
        Path("w.csv").write_text("773869,773870\n1,0.5\n0.5,1\n")
        with pytest.raises(InputError, match="has no row and column for sensor '773871'"):
            read(distances=None, adjacency="w.csv")

    def test_a_matrix_of_zeros_and_ones_is_one_of_weights_although_sensors_are_called_so(self):
        """Its first row was taken for the ids: '1 rows and 2 columns'."""
        write_wide(Path("speeds.csv"), ("0", "1"), times_of(STEPS), numbers()[:, :2])
        Path("w.csv").write_text("0,1\n1,0\n")
        assert read(distances=None, adjacency="w.csv").adjacency.toarray().tolist() == [[1, 1], [1, 1]]

    def test_ids_of_sensors_are_the_same_however_they_are_written(self):
        write_wide(Path("speeds.csv"), ("7.0", "8.0", "9.0"), times_of(STEPS), numbers())
        Path("w.csv").write_text("from,to,weight\n7,8,0.5\n8.0,9,0.25\n")
        sensors = read(distances=None, adjacency="w.csv")
        assert (sensors.ids, sensors.adjacency.nnz) == (("7", "8", "9"), 5)

    def test_threshold_and_sigma_are_those_that_are_given(self):
        w = read(sigma=1000, threshold=0.5).adjacency.toarray()
        assert w[0, 1] == pytest.approx(np.exp(-0.01))
        assert w[1, 2] == 0  # exp(-0.81) = 0.44
        assert read(sigma=1000).adjacency[1, 2] == pytest.approx(np.exp(-0.81))


# ---- what is wrong -----------------------------------------------------------------------------------------


def line(name: str, number: int, text: str) -> Callable[[], None]:
    """Line `number` (from 1) of a table becomes `text`."""

    def change() -> None:
        lines = Path(name).read_text().splitlines()
        lines[number - 1 : number] = [text]
        Path(name).write_text("\n".join(lines) + "\n")

    return change


def content(name: str, text: str | bytes) -> Callable[[], None]:
    return lambda: Path(name).write_bytes(text.encode() if isinstance(text, str) else text) and None


def more(text: str) -> Callable[[], None]:
    return lambda: Path("d.yaml").write_text(Path("d.yaml").read_text() + text) and None


def instead(readings: str, write: Callable[[], Any]) -> Callable[[], None]:
    """Other readings, written by `write`."""

    def change() -> None:
        write()
        Path("d.yaml").write_text(f"readings: {readings}\ndistances: distances.csv\n")

    return change


LONG = "time,sensor,value\n2024-01-01 00:00,a,1\n2024-01-01 00:00,b,2\n2024-01-01 00:05,a,3\n"


def long(row: str) -> Callable[[], None]:
    return instead("long.csv", content("long.csv", LONG + row))


def arrays(**changes: Any) -> Callable[[], None]:
    def write() -> None:
        arrays = {"readings": numbers(), "ids": np.array(IDS), "times": times_of(STEPS), **changes}
        np.savez("r.npz", **{key: value for key, value in arrays.items() if value is not None})

    return instead("r.npz", write)


def hdf5(change: Callable[[h5py.File], Any]) -> Callable[[], None]:
    def write() -> None:
        write_hdf5(Path("r.h5"), IDS, times_of(STEPS), numbers())
        with h5py.File("r.h5", "r+") as file:
            change(file)

    return instead("r.h5", write)


def bad_text(name: str) -> None:
    buffers = [None, pa.py_buffer(np.array([0, 2, 4], np.int32)), pa.py_buffer(b"a\xffb\xff")]
    sensor = pa.Array.from_buffers(pa.string(), 2, buffers)
    pq.write_table(
        pa.table({"time": ["2024-01-01", "2024-01-02"], "sensor": sensor, "value": [1.0, 2.0]}), name
    )


def text_column(file: h5py.File) -> None:
    """As pandas stores a column of texts: a pickle."""
    del file["df/block0_values"]
    file["df"].create_dataset("block0_values", (1,), dtype=h5py.vlen_dtype(np.uint8))


def row_too_few(file: h5py.File) -> None:
    values = file["df/block0_values"][1:]
    del file["df/block0_values"]
    file["df/block0_values"] = values


def repeated_column(file: h5py.File) -> None:
    file["df/axis0"][1] = b"a"


def distances(row: str) -> Callable[[], None]:
    return lambda: Path("distances.csv").write_text(Path("distances.csv").read_text() + row + "\n") and None


def matrix(text: str) -> Callable[[], None]:
    def change() -> None:
        Path("w.csv").write_text(text)
        Path("d.yaml").write_text("readings: speeds.csv\nadjacency: w.csv\n")

    return change


def huge_matrix() -> None:
    entry = np.zeros(1, np.int32)
    np.savez("w.npz", format="coo", data=np.ones(1), row=entry, col=entry, shape=np.full(2, 10**12))
    Path("d.yaml").write_text("readings: speeds.csv\nadjacency: w.npz\n")


def empty_ids() -> None:
    """As many ids as the header of the array says, of no characters each."""
    arrays()()
    header = io.BytesIO()
    form = {"descr": "<U0", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, form)
    with zipfile.ZipFile("r.npz") as file:
        content = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile("r.npz", "w") as file:
        for name, raw in {**content, "ids.npy": header.getvalue()}.items():
            file.writestr(name, raw)


OTHER_LAYOUT = "r.h5 is not laid out as metr-la.h5 and pems-bay.h5 are"
MESSAGES: dict[str, tuple[Callable[[], Any], str]] = {
    # sensors and times that are there twice
    "a sensor of two columns": (line("speeds.csv", 1, "time,a,b,a"), "speeds.csv has two columns called 'a'"),
    "a time of two rows": (
        line("speeds.csv", 7, "2024-01-01 00:10,1,2,3"),
        "speeds.csv, line 7: the time 2024-01-01T00:10:00 is also in line 4; keep one of the two rows"),
    "a sensor's time twice": (
        long("2024-01-01 00:05,b,1\n2024-01-01 00:00,a,9\n"),
        "long.csv, line 6: the time 2024-01-01T00:00:00 of sensor 'a' is also in line 2; keep one"),
    "a sensor of two places": (
        line("sensors.csv", 4, "c,34,-118"), "sensors.csv, line 4, column 'id': sensor 'c' is also in line 2"),
    "an id twice in npz": (arrays(ids=np.array(["a", "b", "a"])), "r.npz names the sensor 'a' twice"),
    "a column twice in HDF5": (hdf5(repeated_column), "r.h5 names the sensor 'a' twice"),
    # times
    "a time that is none": (line("speeds.csv", 3, "noon,1,2,3"), "speeds.csv, line 3, column 'time': 'noon' is no time; write"),
    "a time as Americans write it": (line("speeds.csv", 2, "3/1/2012 0:00,1,2,3"), "line 2, column 'time': '3/1/2012 0:00' is no time"),
    "an empty time": (line("speeds.csv", 3, ",1,2,3"), "speeds.csv, line 3, column 'time': the value is empty"),
    "a time off the steps": (
        line("speeds.csv", 5, "2024-01-01 00:16,1,2,3"),
        "speeds.csv, line 5: the time 2024-01-01T00:16:00 is between two of the steps of 5 minutes that the other times have"),
    "a first time off the steps": (line("speeds.csv", 2, "2023-12-31 23:58,1,2,3"), "speeds.csv, line 2: the time 2023-12-31T23:58:00 is between two of the steps"),
    "a time of another century": (
        line("speeds.csv", 41, "2124-01-01 00:00,1,2,3"),
        # 36 524 days of 288 steps, less the 38 since midnight of the row before.
        "speeds.csv, line 41: the time 2124-01-01T00:00:00 is 10,518,874 steps of 5 minutes after the previous time"),
    "a time in a zone among others": (line("speeds.csv", 5, "2024-01-01 00:15Z,1,2,3"), "line 5, column 'time': '2024-01-01 00:15Z' is no time"),
    "a time out of all years": (line("speeds.csv", 5, "0000-01-01 00:15,1,2,3"), "speeds.csv, line 5, column 'time': '0000-01-01 00:15' is outside the years"),
    "one time": (content("speeds.csv", "time,a,b,c\n2024-01-01,1,2,3\n"), "speeds.csv has readings of only one time"),
    "times of seconds": (
        content("speeds.csv", "time,a,b,c\n2024-01-01 00:00:00,1,2,3\n2024-01-01 00:00:20,1,2,3\n"),
        "speeds.csv: most times are 20 seconds apart, and steps must be whole minutes"),
    "no column of times": (line("speeds.csv", 1, "when,a,b,c"), "speeds.csv has no column 'time' (time); the columns are 'when', 'a'"),
    "no rows": (content("speeds.csv", "time,a,b\n"), "speeds.csv has no row"),
    "no sensors": (content("speeds.csv", "time\n2024-01-01\n"), "speeds.csv has only the column 'time'"),
    # readings
    "text in a reading": (line("speeds.csv", 3, "2024-01-01 00:05,1,fast,3"), "speeds.csv, line 3, column 'b': 'fast' is no number; encode it as numbers, or leave the cell empty"),
    "an infinite reading": (line("speeds.csv", 3, "2024-01-01 00:05,1,inf,3"), "speeds.csv, line 3, column 'b': 'inf' is no finite number"),
    "an infinite reading in npz": (arrays(readings=np.full((STEPS, 3), np.inf)), "r.npz, row 1, sensor 'a': inf is no finite number"),
    "a reading of no sensor": (long("2024-01-01 00:05,,4\n"), "long.csv, line 5, column 'sensor': the value is empty"),
    "a sensor without a reading": (
        lambda: write_wide(Path("speeds.csv"), IDS, times_of(STEPS), numbers() * [1, 1, np.nan]),
        "speeds.csv has no reading of sensor 'c' (1 such sensors); remove the sensor from the file"),
    "a sensor of nothing but the missing number": (
        lambda: (write_wide(Path("speeds.csv"), IDS, times_of(STEPS), numbers() * [0, 1, 1]), more("missing: 0\n")()),
        "speeds.csv has no reading of sensor 'a'"),
    # distances
    "a negative distance": (distances("c,a,-5"), "distances.csv, line 8, column 'distance': -5.0 is no distance; give a distance of at least 0"),
    "an infinite distance": (distances("c,a,inf"), "distances.csv, line 8, column 'distance': 'inf' is no finite number"),
    "a distance from nowhere": (distances(",a,3"), "distances.csv, line 8, column 'from': the value is empty"),
    "a pair of two distances": (distances("a,b,101"), "distances.csv, line 8: the distance from 'a' to 'b' is 101 here and 100 in line 5"),
    "distances of strangers": (
        content("distances.csv", "from,to,distance\nx,y,3\n"),
        "distances.csv lists no pair of sensors that have readings (it names 'x', 'y'; the sensors with readings are 'a', 'b', 'c')"),
    "distances without a column": (line("distances.csv", 1, "from,to,cost"), "distances.csv has no column 'distance' (distance); the columns are 'from', 'to', 'cost'"),
    "distances all the same": (content("distances.csv", "from,to,distance\na,b,3\nb,a,3\n"), "the listed distances, 3 to 3, have no standard deviation that could scale the kernel; give 'sigma'"),
    "no file of distances": (lambda: Path("distances.csv").unlink(), "distances.csv cannot be read"),
    # weights
    "a matrix of other sensors": (matrix("a,b,x\n1,0,0\n0,1,0\n0,0,1\n"), "w.csv has no row and column for sensor 'c'"),
    "a matrix that is not square": (matrix("a,b,c\n1,0,0\n0,1,0\n"), "w.csv has 2 rows and 3 columns of weights"),
    "a negative weight": (matrix("a,b,c\n1,0,-2\n0,1,0\n0,0,1\n"), "w.csv: the number from 'a' to 'c' is -2"),
    "a matrix of ids alone": (matrix("id\na\nb\nc\n"), "w.csv has a column of ids and no column of weights"),
    "a weight beyond float32": (matrix("from,to,weight\na,b,1e39\n"), "w.csv, line 2, column 'weight': '1e39' is no finite number (in 32 bits)"),
    "a bare matrix of another size": (matrix("1,0\n0,1\n"), "w.csv has 2 rows and columns for 3 ids (the ids of the readings)"),
    "a file that states a huge matrix": (huge_matrix, "w.npz has 1000000000000 rows and columns for 3 ids (the ids of the readings)"),
    # locations
    "a sensor without a place": (content("sensors.csv", "id,latitude,longitude\na,1,2\n"), "sensors.csv has no row for sensor 'b' (2 such sensors)"),
    "a latitude that is none": (line("sensors.csv", 2, "c,94.1,-118.1"), "sensors.csv, line 2, column 'latitude': 94.1 is no latitude in degrees"),
    # Parquet, npz and HDF5
    "Parquet with a text that is no UTF-8": (
        instead("l.parquet", lambda: bad_text("l.parquet")), "l.parquet is damaged (In column 1: Invalid: Invalid UTF8"),
    "Parquet of times out of all years": (
        instead("w.parquet", lambda: pq.write_table(pa.table({"time": pa.array([2**61, 0], pa.timestamp("ms")), "a": [1.0, 2.0]}), "w.parquet")),
        "w.parquet, row 1, column 'time': the value is no time"),
    "Parquet without a time": (
        instead("w.parquet", lambda: pq.write_table(pa.table({"time": ["2024-01-01", None], "a": [1.0, 2.0]}), "w.parquet")),
        "w.parquet, row 2, column 'time': the value is empty; write the time, or drop the row"),
    "a time of blanks": (line("speeds.csv", 3, "  ,1,2,3"), "speeds.csv, line 3, column 'time': the value is empty"),
    "Parquet with numbers for times": (
        instead("w.parquet", lambda: pq.write_table(pa.table({"time": [0, 5], "a": [1.0, 2.0]}), "w.parquet")),
        "w.parquet, column 'time' has type int64, and times are expected"),
    "npz of objects": (arrays(ids=np.array(["a", 1, None], dtype=object)), "r.npz: array 'ids' cannot be read"),
    "npz of very many empty ids": (empty_ids, "r.npz: array 'ids' cannot be read (its 1,000,000,000,000 entries have no bytes)"),
    "npz without readings": (arrays(readings=None), "r.npz: array 'readings' cannot be read"),
    "npz without times": (arrays(times=None), "r.npz: array 'start' cannot be read"),
    "npz of another shape": (arrays(readings=np.ones(STEPS)), "r.npz: array 'readings' has dtype float64 and shape (40,)"),
    "npz with too few times": (arrays(times=times_of(5)), "r.npz: array 'times' has dtype"),
    "npz of a time that is none": (arrays(times=np.array(["?"] * STEPS)), "r.npz, row 1: '?' is no time"),
    "npz of NaT": (arrays(times=np.full(STEPS, np.datetime64("NaT", "s"))), "r.npz, row 1: 'NaT' is no time"),
    "npz that is none": (instead("r.npz", content("r.npz", b"PK\3\4 no")), "r.npz cannot be read"),
    "no HDF5": (instead("r.h5", lambda: None), "r.h5 cannot be read: No such file"),
    "HDF5 that is none": (instead("r.h5", content("r.h5", b"no")), OTHER_LAYOUT),
    "HDF5 without a table": (hdf5(lambda file: file.move("df/axis0", "elsewhere")), OTHER_LAYOUT),
    "HDF5 of pandas' other format": (
        hdf5(lambda file: file["df"].attrs.modify("pandas_type", b"frame_table")), OTHER_LAYOUT),
    "HDF5 of two tables": (hdf5(lambda file: file.copy("df", "more")), OTHER_LAYOUT),
    "HDF5 with a column of texts": (hdf5(text_column), OTHER_LAYOUT),
    "HDF5 with another index": (hdf5(lambda file: file["df/axis1"].attrs.modify("kind", b"integer")), OTHER_LAYOUT),
    "HDF5 with a time zone": (hdf5(lambda file: file["df/axis1"].attrs.create("tz", b"UTC")), OTHER_LAYOUT),
    "HDF5 with columns of two types": (hdf5(lambda file: file["df"].attrs.modify("nblocks", 2)), OTHER_LAYOUT),
    "HDF5 with a row too few": (hdf5(row_too_few), OTHER_LAYOUT),
    # the description
    "an unknown key": (more("reading: x\n"), "d.yaml has an unknown key 'reading'; did you mean 'readings'?"),
    "no readings": (content("d.yaml", "distances: distances.csv\n"), "d.yaml has no 'readings'"),
    "neither distances nor weights": (content("d.yaml", "readings: speeds.csv\n"), "names neither 'distances' nor 'adjacency'"),
    "both distances and weights": (more("adjacency: w.csv\n"), "names both 'distances' and 'adjacency'"),
    "a sensor column that is not there": (more("sensor: id\n"), "speeds.csv has no column 'id' (sensor)"),
    "a value column without sensors": (more("value: a\n"), "names 'value', a column of a long table"),
    "a long table without values": (instead("l.csv", content("l.csv", "time,sensor,speed\n")), "has a column 'sensor' and no column 'value'"),
    "an impossible step": (more("step_minutes: 0\n"), "step_minutes is 0; expected a whole number of at least 1"),
    "an impossible threshold": (more("threshold: 1\n"), "threshold is 1; expected a number of at least 0 and less than 1"),
    "a missing number of text": (more("missing: none\n"), "missing is 'none'; expected a number"),
    "a scale for weights": (
        lambda: (matrix("a,b,c\n1,0,0\n0,1,0\n0,0,1\n")(), more("sigma: 3\n")()), "'sigma' is used to compute weights from distances, and 'adjacency' has weights already"),
    "a list of files": (more("name: [a, b]\n"), "name must be text (found list)"),
    "a folder": (lambda: (Path("speeds.csv").unlink(), Path("speeds.csv").mkdir()), "speeds.csv is a folder"),
    "another ending": (instead("speeds.xls", content("speeds.xls", "x")), "speeds.xls has the ending of a spreadsheet; expected one of .csv"),
}  # fmt: skip


@pytest.mark.parametrize("case", MESSAGES)
def test_what_is_wrong_is_said_in_one_line_that_names_file_row_value_and_fix(case, capsys):
    change, message = MESSAGES[case]
    change()
    assert main(["data", "inspect", "d.yaml"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_a_method_for_graphs_refuses_sensors_in_one_line(capsys):
    assert main(["run", "fedavg", "--data", "d.yaml"]) == 2
    captured = capsys.readouterr().err
    assert "'speeds' is for forecasting" in captured
    assert captured.count("\n") == 1


def test_a_refused_hdf5_says_how_pandas_writes_it_as_csv():
    hdf5(row_too_few)()
    with pytest.raises(InputError) as caught:
        read(readings="r.h5")
    message = str(caught.value)
    assert f"its values have shape ({STEPS - 1}, 3)" in message
    assert message.endswith("pandas.read_hdf('r.h5').to_csv('readings.csv', index_label='time')")


def test_hdf5_without_h5py_says_what_to_install(monkeypatch):
    write_hdf5(Path("r.h5"), IDS, times_of(STEPS), numbers())
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(
        InputError, match=r"h5py, which reads it, is not installed; run: pip install '\.\[hdf5\]'"
    ):
        read(readings="r.h5")


def test_a_grid_that_would_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr("graphfed.data.sensors.readings.MAX_READINGS", 100)
    with pytest.raises(InputError, match="40 steps of 3 sensors, more than 100 readings"):
        read()


TABLES, WEIGHTS = (
    ("speeds.csv", "distances.csv", "sensors.csv"),
    ("w.npz", "matrix.csv", "bare.csv", "list.csv"),
)
DAMAGE = st.lists(
    st.tuples(
        st.integers(0, 5000),
        st.sampled_from([b"\0", b"\xff", b",", b"\n", b'"', b"-", b"9", b"e", b"", b"a,b"]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=DAMAGE, name=st.sampled_from([*TABLES, *WEIGHTS, *WRITERS]))
def test_any_damage_is_refused_or_gives_data_that_are_whole(damage, name):
    good()
    if name in WRITERS:
        WRITERS[name](Path(name), IDS, times_of(STEPS), numbers())
    np.savez("w.npz", w=np.eye(3), ids=np.array(IDS))
    Path("matrix.csv").write_text("id,a,b,c\na,1,0.5,0\nb,0,1,0.25\nc,0,0,1\n")
    Path("bare.csv").write_text("1,0.5,0\n0,1,0.25\n0,0,1\n")
    Path("list.csv").write_text("from,to,weight\na,b,0.5\nb,c,0.25\n")
    raw = Path(name).read_bytes()
    for place, byte in damage:
        at = place % len(raw)
        raw = raw[:at] + byte + raw[at + 1 :]
    Path(name).write_bytes(raw)
    try:
        readings = name if name in WRITERS else "speeds.csv"
        graph = {"distances": None, "adjacency": name} if name in WEIGHTS else {}
        sensors = read(readings=readings, locations="sensors.csv", **graph)
    except InputError as refused:
        message = str(refused)
    else:
        message = ""
        assert np.isfinite(sensors.readings).all()
        assert (sensors.readings[sensors.missing] == 0).all()
        assert not sensors.missing.all(0).any()
    assert "\n" not in message


def test_a_large_table_is_read_block_by_block(monkeypatch):
    monkeypatch.setattr("graphfed.data.user_files.table_files._BLOCK_BYTES", 2000)
    values = numbers(500)
    write_wide(Path("speeds.csv"), IDS, times_of(500), values)
    WRITERS["long.csv"](Path("long.csv"), IDS, times_of(500), values)
    wide, long = read(), read(readings="long.csv")
    assert (wide.readings == np.nan_to_num(values).astype(np.float32)).all()
    assert wide.hash == long.hash
    write_npz(Path("r.npz"), IDS, times_of(500), values)
    assert read(readings="r.npz").hash == wide.hash


def test_a_column_of_parquet_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "readings.parquet"
    pq.write_table(pa.table({"amount": [1.0]}), path)
    path.write_bytes(path.read_bytes().replace(b"amount", b"\xffmount"))
    with pytest.raises(InputError, match="is damaged or no Parquet file"):
        _ = TableFile(path).columns

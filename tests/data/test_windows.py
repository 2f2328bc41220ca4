"""Claims about sensors' readings as a container, their windows, and splits in time."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import make_time_split, windows
from graphfed.errors import InputError


def sensors(steps: int = 100, count: int = 4, **changes) -> Sensors:
    readings = np.arange(1, steps * count + 1, dtype=np.float32).reshape(steps, count)
    content = {
        "name": "made",
        "readings": readings,
        "missing": np.zeros((steps, count), dtype=bool),
        "adjacency": sp.identity(count, dtype=np.float32, format="csr"),
        "position": np.stack((np.zeros(count), -np.arange(count)), axis=1).astype(float),
        "ids": tuple(f"s{i}" for i in range(count)),
        "start": "2024-01-01T00:00:00",
        "step_minutes": 5,
        "geographic": True,
        "quantity": "speed (miles per hour)",
    }
    return Sensors(**{**content, **changes})


def parts(split) -> tuple[int, int, int]:
    return split.train, split.val, split.test


class TestSplits:
    @pytest.mark.parametrize(
        ("steps", "expected"), [(34_272, (23_974, 3_425, 6_850)), (52_116, (36_465, 5_209, 10_419))]
    )
    def test_the_usual_split_of_metr_la_and_pems_bay_has_the_published_counts(self, steps, expected):
        split = make_time_split(sensors(steps, 1), "default", 12, 12)
        assert parts(split) == expected
        assert split.name == "time:0.7,0.1,0.2"

    @given(
        steps=st.integers(60, 4000),
        lags=st.integers(1, 12),
        horizon=st.integers(1, 12),
        cut=st.tuples(st.integers(30, 70), st.integers(75, 90)),
    )
    def test_the_parts_are_all_windows_and_have_the_named_shares_to_one_window(
        self, steps, lags, horizon, cut
    ):
        shares = (cut[0] / 100, (cut[1] - cut[0]) / 100, (100 - cut[1]) / 100)
        split = make_time_split(sensors(steps, 1), "time:{:g},{:g},{:g}".format(*shares), lags, horizon)
        total = steps - lags - horizon + 1
        assert sum(parts(split)) == total
        assert np.abs(np.array(parts(split)) - np.array(shares) * total).max() <= 1

    def test_an_inductive_split_trains_on_the_western_sensors_and_cuts_time_as_usual(self):
        data = sensors(200, 4)  # from the east to the west
        split = make_time_split(data, "inductive:0.5", 12, 12)
        assert split.observed.tolist() == [False, False, True, True]
        assert parts(split) == parts(make_time_split(data, "default", 12, 12))
        assert split.name == "inductive:0.5"
        kilometres = dataclasses.replace(data, position=data.position[:, ::-1].copy(), geographic=False)
        assert (make_time_split(kilometres, "inductive:0.5", 12, 12).observed == split.observed).all()

    def test_sensors_of_one_longitude_are_taken_by_id(self):
        data = sensors(200, 4, position=np.zeros((4, 2)), ids=("d", "b", "c", "a"))
        split = make_time_split(data, "inductive:0.5", 12, 12)
        assert split.observed.tolist() == [False, True, False, True]

    @given(share=st.integers(1, 1000).map(lambda n: n / 1000), count=st.integers(1, 12))
    def test_any_share_trains_on_its_rounded_number_of_sensors_and_on_one_at_least(self, share, count):
        split = make_time_split(sensors(60, count), f"inductive:{share}", 3, 3)
        assert split.observed.sum() == max(1, round(share * count))

    def test_every_and_the_observed_sensors_are_in_the_hash_and_the_name_is_not(self):
        data = sensors(200, 4)
        usual = make_time_split(data, "default", 12, 12)
        assert usual.hash == make_time_split(data, "inductive:1", 12, 12).hash
        others = [
            make_time_split(data, "default", 12, 12, every=2),
            make_time_split(data, "inductive:0.5", 12, 12),
            make_time_split(data, "default", 12, 11),
        ]
        assert len({usual.hash, *(other.hash for other in others)}) == 4

    @pytest.mark.parametrize(
        ("name", "lags", "horizon", "message"),
        [
            ("default", 12, 90, "has 100 steps, and one window of 12 lags and a horizon of 90 needs 102"),
            ("default", 12, 12 + 75, "'made' .* leaves no window for (val|test)"),
            ("time:0.98,0.01,0.01", 48, 48, "of the 5 windows .* leaves no window for val"),
            ("random:0.5,0.25,0.25", 12, 12, "unknown split 'random:0.5,0.25,0.25' of readings"),
            ("tiem:0.7,0.1,0.2", 12, 12, "did you mean 'time'?"),
            ("time:0.7,0.1", 12, 12, "write three fractions, as in 'time:0.7,0.1,0.2'"),
            ("time:0.7,0.1,0.1", 12, 12, "add up to 0.9; they must add up to 1"),
            ("time:nan,0.1,0.2", 12, 12, "fractions must be"),
            ("default:1", 12, 12, "takes no numbers"),
            ("inductive:half", 12, 12, "write the fraction"),
            ("inductive:0", 12, 12, "the fraction of the sensors must be above 0"),
            ("inductive:nan", 12, 12, "at most 1"),
            ("default", 0, 12, "lags=0 must be a whole number of at least 1"),
            ("default", 12, 2.5, "horizon=2.5 must be"),
        ],
    )
    def test_what_cannot_be_split_is_refused_in_one_line(self, name, lags, horizon, message):
        with pytest.raises(InputError, match=message) as refused:
            make_time_split(sensors(100), name, lags, horizon)
        assert "\n" not in str(refused.value)

    def test_an_inductive_split_needs_locations(self):
        with pytest.raises(InputError, match="'made' has no locations"):
            make_time_split(sensors(position=None), "inductive:0.5", 12, 12)


class TestWindows:
    def test_window_w_reads_the_steps_from_w_and_forecasts_those_after(self):
        data = sensors(30, 2)
        inputs, targets = windows(data.readings, 4, 3)
        assert (inputs.shape, targets.shape) == ((24, 4, 2), (24, 3, 2))
        for w in (0, 7, 23):
            assert (inputs[w] == data.readings[w : w + 4]).all()
            assert (targets[w] == data.readings[w + 4 : w + 7]).all()

    def test_windows_are_views_of_the_readings(self):
        data = sensors(5000, 3)
        for part in windows(data.readings, 12, 12):
            assert np.shares_memory(part, data.readings)
            assert part.strides == (12, 12, 4)  # a step on, in both: nothing was copied


class TestSensors:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"readings": np.ones((100, 4))}, "readings have dtype float64"),
            ({"readings": np.full((100, 4), np.nan, np.float32)}, "sensor 's0' at step 0 is nan"),
            ({"missing": np.zeros((4, 100), dtype=bool)}, "missing has dtype bool and shape"),
            ({"adjacency": sp.identity(3, dtype=np.float32, format="csr")}, "csr_matrix of shape"),
            ({"adjacency": sp.csr_matrix((4, 4), dtype=np.float32)}, "1 on the diagonal"),
            ({"position": np.zeros((4, 3))}, "position has shape"),
            ({"position": np.full((4, 2), np.inf)}, "position of sensor 's0' is not finite"),
            ({"ids": ("a", "a", "b", "c")}, "give each sensor an id of its own"),
            ({"start": "Monday"}, "start='Monday' is no ISO time"),
            ({"start": "2024-01-01T00:00:00+01:00"}, "names a time zone"),
            ({"step_minutes": 0}, "step_minutes=0 must be whole minutes"),
        ],
    )
    def test_what_is_no_series_of_readings_is_refused(self, changes, message):
        with pytest.raises(InputError, match=message):
            sensors(**changes)

    def test_readings_and_gaps_are_in_the_hash_and_names_are_not(self):
        data, gap = sensors(), np.zeros((100, 4), dtype=bool)
        gap[3, 2] = True
        assert data.hash == sensors(name="other", note="noted", ids=("a", "b", "c", "d")).hash
        assert len({data.hash, sensors(missing=gap).hash, sensors(geographic=False).hash}) == 3

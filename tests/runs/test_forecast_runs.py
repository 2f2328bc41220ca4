"""Runs of forecasting, from the call to the files: a sensor is a client, and its readings are the truth."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import graphfed
from graphfed.data.datasets import load
from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import make_time_split
from graphfed.errors import InputError
from graphfed.files import read_tensors
from graphfed.runs.config import make_config
from graphfed.runs.predict import predict
from graphfed.runs.run import Result
from graphfed.studies.plan import InputCache
from graphfed.tasks.loading import load_inputs

SMALL = {"data.sensors": 6, "data.weeks": 1}


@pytest.fixture(scope="module")
def sensors() -> Sensors:
    found = load("roads", sensors=6, weeks=1)
    assert isinstance(found, Sensors)
    assert found.missing.any()
    return found


def run(out: Any = False, method: str = "last_value", **options: Any) -> Result:
    settings = SMALL if "data" not in options else {}
    return graphfed.run(method, out=out, settings={**settings, **options.pop("settings", {})}, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    run(path, settings={"lags": 4, "horizon": 3})
    return path


def by_hand(sensors: Sensors, lags: int, horizon: int, part: str) -> dict[str, float]:
    """The errors of repeating the last reading that is there, window by window."""
    split = make_time_split(sensors, "default", lags, horizon)
    first = split.train + (split.val if part == "test" else 0)
    windows = range(first, first + getattr(split, part))
    errors, shares, as_read = [], [], []
    for s in range(sensors.num_sensors):
        seen = split.train + lags + horizon - 1
        mean = sensors.readings[:seen, s][~sensors.missing[:seen, s]].mean(dtype=np.float64)
        for w in windows:
            there = [t for t in range(w, w + lags) if not sensors.missing[t, s]]
            last_reading = float(sensors.readings[there[-1], s]) if there else float(np.float32(mean))
            for t in range(w + lags, w + lags + horizon):
                error = last_reading - float(sensors.readings[t, s])
                as_read.append(error)
                if not sensors.missing[t, s]:
                    errors.append(error)
                    shares.append(abs(error) / float(sensors.readings[t, s]))
    return {
        "rmse": float(np.sqrt(np.mean(np.square(errors)))),
        "mae": float(np.mean(np.abs(errors))),
        "mape": 100 * float(np.mean(shares)),
        "rmse_as_read": float(np.sqrt(np.mean(np.square(as_read)))),
        "mae_as_read": float(np.mean(np.abs(as_read))),
    }


def test_metrics_are_those_of_a_loop_over_windows(folder: Path, sensors: Sensors) -> None:
    result = Result.read(folder)
    for part in ("val", "test"):
        assert getattr(result, part) == pytest.approx(by_hand(sensors, 4, 3, part), rel=1e-6)
    assert (result.task, result.dataset, result.clients, result.partition) == (
        "forecasting", "roads", 6, "sensors",
    )  # fmt: skip
    assert result.bytes["total"] == 0
    ahead = result.details["test_by_horizon"]
    assert {*ahead} == {*result.test}
    assert [len(values) for values in ahead.values()] == [3] * 5
    assert ahead["rmse"] == sorted(ahead["rmse"]), "the farther ahead, the worse"


def test_predictions_have_a_row_for_each_sensor_and_window_of_validation_and_test(
    folder: Path, sensors: Sensors
) -> None:
    file = pq.ParquetFile(folder / "predictions.parquet")
    table = file.read()
    split = make_time_split(sensors, "default", 4, 3)
    count = split.val + split.test
    assert table.column_names == [
        "sensor", "client", "time", "part", *(f"forecast_{n}" for n in (1, 2, 3)),
        *(f"truth_{n}" for n in (1, 2, 3)),
    ]  # fmt: skip
    assert file.metadata.num_row_groups == 6
    assert table["sensor"].to_pylist() == [name for name in sensors.ids for _ in range(count)]
    assert table["client"].to_pylist() == [k for k in range(6) for _ in range(count)]
    assert table["part"].to_pylist() == 6 * (["val"] * split.val + ["test"] * split.test)
    time = table["time"].to_numpy()
    step = (time - np.datetime64(sensors.start)) // np.timedelta64(sensors.step_minutes, "m")
    assert np.array_equal(step, np.tile(split.train + 3 + np.arange(count), 6))
    client = table["client"].to_numpy()
    for ahead in (1, 2, 3):
        truth = table[f"truth_{ahead}"].to_numpy()
        missing = sensors.missing[step + ahead, client]
        assert np.array_equal(np.isnan(truth), missing)
        assert np.array_equal(truth[~missing], sensors.readings[step + ahead, client][~missing])
        assert np.array_equal(table[f"forecast_{ahead}"].to_numpy(), table["forecast_1"].to_numpy())


def test_the_files_say_what_was_trained_on(folder: Path, sensors: Sensors) -> None:
    manifest, overview = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("manifest", "overview")
    )
    assert (manifest["data"]["sensors"], manifest["data"]["steps"]) == (6, 2016)
    assert manifest["partition"]["client_names"] == list(sensors.ids)
    split = make_time_split(sensors, "default", 4, 3)
    assert manifest["hashes"]["data"] == sensors.hash
    assert manifest["hashes"]["split"] == split.hash
    assert overview["kind"] == "sensors"
    assert overview["sensors"]["ids"] == list(sensors.ids)
    assert overview["windows"]["test"] == split.test
    assert len(overview["edges"]) == sensors.adjacency.nnz - 6
    assert read_tensors(folder / "model.safetensors")[0] == {}, "it has no model"


def test_a_method_without_a_model_predicts_again_what_it_wrote(folder: Path) -> None:
    assert predict(folder).equals(pq.read_table(folder / "predictions.parquet"))


def test_settings_of_the_windows_make_other_inputs_and_others_do_not() -> None:
    cache = InputCache()
    first = cache.get(make_config("last_value", settings=SMALL))
    assert cache.get(make_config("historical_average", settings={**SMALL, "missing": "as_read"})) is first
    for key in ("lags", "horizon", "every"):
        other = cache.get(make_config("last_value", settings={**SMALL, key: 3}))
        assert other.hashes["split"] != first.hashes["split"]
        assert other.hashes["data"] == first.hashes["data"]


def test_sensors_in_python_are_data(sensors: Sensors) -> None:
    named, given = run(), run(data=sensors)
    assert (named.test, named.hashes) == (given.test, given.hashes)


def test_other_names_of_the_sensors_are_another_partition(sensors: Sensors) -> None:
    renamed = dataclasses.replace(sensors, ids=tuple(f"s{k}" for k in range(6)))
    one, two = (load_inputs(make_config("last_value", data=s)).hashes for s in (sensors, renamed))
    assert one["partition"] != two["partition"]
    assert one["data"] == two["data"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"clients": 5},
            "'roads' has 6 sensors, each of which is a client, so there cannot be 5 clients; omit the number",
        ),
        ({"split": "public"}, "unknown split 'public' of readings"),
        ({"settings": {"horizon": 2016}}, "use fewer lags, a shorter horizon or more data"),
        ({"runtime": "processes"}, "give the number of workers"),
        ({"runtime": "processes", "workers": 7}, "7 workers cannot hold 6 clients"),
        ({"settings": {"data.sensor": 7}}, "last_value has no setting 'data.sensor'"),
        ({"settings": {"horizons": 7}}, "did you mean 'horizon'"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        run(**options)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_as_many_clients_as_sensors_may_be_asked_for() -> None:
    assert run(clients=6).hashes == run().hashes


@pytest.mark.parametrize("method", ["last_value", "historical_average"])
def test_sensors_that_training_does_not_see_are_tested_all_the_same(method: str, tmp_path: Path) -> None:
    inductive = run(tmp_path / "run", method, split="inductive:0.5")
    whole = run(method=method)
    assert inductive.test == whole.test, "nothing is learnt from others"
    assert inductive.val != whole.val
    assert set(pq.read_table(tmp_path / "run" / "predictions.parquet")["client"].to_pylist()) == set(range(6))


def test_placements_agree() -> None:
    one, other = run(), run(placement="one-at-a-time")
    assert one.test == pytest.approx(other.test, rel=1e-12)
    assert one.bytes == other.bytes


@pytest.mark.slow
def test_separate_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    options = {"settings": {"every": 60, "lags": 4, "horizon": 3, "hidden": 4}, "rounds": 2}
    apart = run(tmp_path / "apart", "cnfgnn", runtime="processes", workers=2, **options)
    here = run(tmp_path / "here", "cnfgnn", **options)
    assert apart.test == pytest.approx(here.test, rel=1e-4)
    assert (apart.bytes["by_transfer"], apart.hashes) == (here.bytes["by_transfer"], here.hashes)
    tables = [pq.read_table(tmp_path / name / "predictions.parquet") for name in ("apart", "here")]
    assert tables[0].schema == tables[1].schema
    for name in tables[0].column_names:
        first, second = (table[name].to_numpy() for table in tables)
        if name.startswith("forecast"):
            np.testing.assert_allclose(first, second, rtol=1e-3)
        else:
            np.testing.assert_array_equal(first, second)


def test_a_comparison_has_references_and_the_smallest_error_is_no_percentage() -> None:
    settings = {**SMALL, "every": 60, "lags": 4, "horizon": 3, "hidden": 4}
    found = graphfed.compare(["gru_fedavg"], seeds=(0, 1), rounds=2, settings=settings, out=False)
    assert [row["label"] for row in found.rows] == ["gru_fedavg", "gru_central", "gru_local", "last_value"]
    assert [row["rounds"] for row in found.rows] == [[2, 2], [2, 2], [2, 2], [1, 1]]
    text = str(found)
    for column in ("rmse", "mae", "mape", "rmse as read"):
        assert column in text
    assert "mae as read" not in text
    statistic = found.rows[0]["test"]["rmse"]
    decimals = 3 - int(np.floor(np.log10(statistic["mean"])))
    # On 80 columns the deviation may stand below the mean.
    for number in (statistic["mean"], statistic["std"]):
        assert re.search(rf"(?<!\d){number:.{decimals}f}(?!\d)", text)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.splitlines()[1].endswith("┓"), "no column is truncated"
    assert "last_value: rounds" not in text
    whole = dataclasses.replace(load("roads", sensors=6, weeks=1), missing=np.zeros((2016, 6), dtype=bool))
    complete = graphfed.compare(
        ["last_value"],
        data=whole,
        seeds=(0,),
        rounds=1,
        out=False,
        settings={"every": 60, "lags": 4, "horizon": 3, "hidden": 4},
    )
    assert "as read" not in str(complete), "nothing is missing"


def test_sensors_without_a_model_of_their_own_are_no_reference_for_unseen_ones() -> None:
    settings = {**SMALL, "every": 60, "lags": 4, "horizon": 3, "hidden": 4}
    found = graphfed.compare(
        ["gru_fedavg"], seeds=(0,), rounds=1, split="inductive:0.5", settings=settings, out=False
    )
    assert [row["label"] for row in found.rows] == ["gru_fedavg", "gru_central", "last_value"]


def test_a_sweep_chooses_the_smallest_error() -> None:
    settings = {**SMALL, "every": 60, "lags": 4, "horizon": 3, "hidden": 4}
    found = graphfed.sweep(
        "gru_fedavg", grid={"lr": [1e-7, 0.05]}, seeds=(0,), rounds=3, settings=settings, out=False
    )
    errors = [trial["val"]["rmse"]["mean"] for trial in found.trials]
    assert found.metric == "rmse"
    assert found.chosen["trial"] == 1 + int(np.argmin(errors))
    assert next(iter(found.ranked()))["trial"] == found.chosen["trial"]
    assert errors[0] != errors[1]
    with pytest.raises(InputError, match="horizon changes what is trained on"):
        graphfed.sweep("gru_fedavg", grid={"horizon": [1, 2]}, out=False)


# ---- sensors that send nothing when the model is used ------------------------------------------------------

TINY = {"lags": 3, "horizon": 2, "every": 40}
LEARNERS = {
    "gru_central": {"hidden": 4},
    "gru_local": {"hidden": 4},
    "gru_fedavg": {"hidden": 4},
    "gru_fmtl": {"hidden": 4},
    **{
        # A mean over sensors hardly feels that one is absent; the paper's sums do.
        f"cnfgnn {strategy}": {"strategy": strategy, "hidden": 4, "network": "graph_network"}
        for strategy in ("at_fedavg", "at", "sl_fedavg", "sl", "centralised")
    },
}


@pytest.mark.parametrize("name", ["last_value", "historical_average", *LEARNERS])
@pytest.mark.sampled(2)
def test_absent_sensors_have_no_forecasts_and_change_those_of_no_one_but_cnfgnn(
    tmp_path: Path, sensors: Sensors, name: str
) -> None:
    method, settings = name.split(maxsplit=1)[0], {**TINY, **LEARNERS.get(name, {})}
    run(tmp_path / "run", method, settings=settings, rounds=1)
    away = [sensors.ids[1], sensors.ids[4]]
    whole, rest = predict(tmp_path / "run"), predict(tmp_path / "run", absent=away)
    expected = whole.filter(pc.invert(pc.is_in(whole["sensor"], pa.array(away))))
    forecasts = [column for column in expected.column_names if column.startswith("forecast")]
    assert rest.drop_columns(forecasts).equals(expected.drop_columns(forecasts))
    same = [np.allclose(rest[column], expected[column], rtol=1e-5) for column in forecasts]
    assert same == [method != "cnfgnn"] * 2


def test_what_an_absent_sensor_reads_changes_no_forecast(tmp_path: Path, sensors: Sensors) -> None:
    run(tmp_path / "run", "cnfgnn", settings={**TINY, **LEARNERS["cnfgnn at_fedavg"]}, rounds=1)
    readings = sensors.readings.copy()
    readings[:, 2] = 0.5 * readings[::-1, 2]
    there = sensors.missing.copy()
    there[:, 2] = there[::-1, 2]
    other = dataclasses.replace(sensors, readings=readings, missing=there)
    forecasts = [
        predict(tmp_path / "run", data=data, absent=away).select(["forecast_1", "forecast_2"])
        for away in ([sensors.ids[2]], [])
        for data in (sensors, other)
    ]
    assert forecasts[0].equals(forecasts[1])
    assert not forecasts[2].equals(forecasts[3])


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        (["nowhere"], "the absent sensor 'nowhere' is not in 'roads'; choose one of: 0, 1"),
        (list("012345"), "all sensors of 'roads' are absent"),
    ],
)
def test_absent_sensors_must_be_there_and_leave_some(folder: Path, absent: list[str], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        predict(folder, absent=absent)


def test_only_sensors_can_be_absent(tmp_path: Path) -> None:
    graphfed.run("central", data="digits", rounds=1, out=tmp_path / "run")
    with pytest.raises(InputError, match="does not forecast sensors, and only sensors may be absent"):
        predict(tmp_path / "run", absent=["1"])

"""Sensors of three owners, each with nothing but the file of its own readings, and a server with nothing but
the distances between them, train CNFGNN and forecast."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import graphfed
from graphfed.cli import main
from graphfed.data.datasets import load
from graphfed.data.sensors.series import Sensors
from graphfed.deployment.site_files import checked_file
from graphfed.errors import DONE, UNUSABLE, InputError
from graphfed.tasks.sensors.client_series import read_readings

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.project import Project, Site, Timing

pytestmark = pytest.mark.slow

#: Who owns which sensors: a gateway of three, one whose sensor has another name than its site, one of two.
OWNERS = {"city": ("s0", "s1", "s2"), "bridge": ("s3",), "county": ("s4", "s5")}
ROSTER = tuple(sensor for sensors in OWNERS.values() for sensor in sensors)
SETTINGS = {"rounds": 2, "lags": 4, "horizon": 3, "every": 20, "hidden": 4}


def write_readings(path: Path, sensors: Sensors, columns: list[int]) -> None:
    """A wide table with empty cells where a reading is missing."""
    times = np.datetime64(sensors.start, "s") + np.arange(sensors.num_steps) * np.timedelta64(
        60 * sensors.step_minutes, "s"
    )
    readings = {ROSTER[k]: pa.array(sensors.readings[:, k], mask=sensors.missing[:, k]) for k in columns}
    csv.write_csv(pa.table({"time": pa.array(times), **readings}), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each owner and one for the server, and `all.yaml` for who has everything."""
    made = load("roads", sensors=6, weeks=1)
    assert isinstance(made, Sensors)
    folder = tmp_path_factory.mktemp("sensors")
    for owner, names in OWNERS.items():
        (folder / owner).mkdir()
        columns = [ROSTER.index(name) for name in reversed(names)]
        write_readings(folder / owner / "speeds.csv", made, columns)
        (folder / owner / "sensors.yaml").write_text("readings: speeds.csv\n")
    position = made.position
    assert position is not None
    rows = [
        f"{a},{b},{np.hypot(*(position[i] - position[j])):.3f}"
        for i, a in enumerate(ROSTER)
        for j, b in enumerate(ROSTER)
    ]
    (folder / "distances.csv").write_text("from,to,distance\n" + "\n".join(rows) + "\n")
    (folder / "network.yaml").write_text("distances: distances.csv\nthreshold: 0.3\n")
    write_readings(folder / "speeds.csv", made, list(range(6)))
    (folder / "all.yaml").write_text("readings: speeds.csv\ndistances: distances.csv\nthreshold: 0.3\n")
    return folder


@pytest.fixture(scope="module")
def owners(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    timing = Timing(beat=1.0, give_up=20.0, deadline=120.0, patience=240.0)
    sites = tuple(Site(owner, len(names), names) for owner, names in OWNERS.items())
    project = Project("roads", sites, port=free_port(), timing=timing)
    files = {owner: folder / owner / "sensors.yaml" for owner in OWNERS}
    files["server"] = folder / "network.yaml"
    with Loopback(project, tmp_path_factory.mktemp("federation") / "startup_kits", files) as federation:
        yield federation


def asked(owners: Loopback, out: Path, method: str = "cnfgnn", **settings: object) -> list[str]:
    content = {**SETTINGS, **settings}
    rounds = str(content.pop("rounds"))
    pairs = [word for key, value in content.items() for word in ("--set", f"{key}={value}")]
    startup_kit = str(owners.startup_kits["coordinator"])
    where = ["--startup-kit", startup_kit, "--out", str(out), "--no-progress"]
    return ["run", method, "--rounds", rounds, *pairs, *where]


@pytest.fixture(scope="module")
def trained(owners: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The coordinator's folder."""
    out = tmp_path_factory.mktemp("coordinator") / "out"
    assert main(asked(owners, out)) == DONE
    return out


@pytest.fixture(scope="module")
def together(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run where all files are at one place."""
    out = tmp_path_factory.mktemp("together") / "out"
    graphfed.run("cnfgnn", data=folder / "all.yaml", out=out, settings=SETTINGS)
    return out


def test_it_has_the_metrics_and_the_bytes_of_a_run_on_all_files(trained: Path, together: Path) -> None:
    apart, local = (json.loads((path / "result.json").read_text()) for path in (trained, together))
    assert apart["task"] == local["task"] == "forecasting"
    assert (apart["best_round"], apart["clients"]) == (local["best_round"], 6)
    assert apart["test"] == pytest.approx(local["test"], rel=1e-5)
    assert apart["val"] == pytest.approx(local["val"], rel=1e-5)
    assert apart["bytes"]["by_transfer"] == local["bytes"]["by_transfer"]
    content = json.loads((trained / "manifest.json").read_text())["data"]
    assert (content["steps"], content["step_minutes"]) == (2016, 5)


def test_every_owner_has_the_forecasts_of_its_own_sensors_beside_the_truth(
    trained: Path, together: Path, owners: Loopback
) -> None:
    run = json.loads((trained / "result.json").read_text())["details"]["run"]
    whole = pq.read_table(together / "predictions.parquet")
    for owner, names in OWNERS.items():
        table = pq.read_table(owners.startup_kits[owner] / "runs" / run / "predictions.parquet")
        first = whole.filter(pc.is_in(whole["sensor"], pa.array(names)))
        assert table["client"].equals(first["client"])
        for column in ("sensor", "time", "part", "truth_1", "truth_3"):
            assert table[column].equals(first[column]), column
        assert np.allclose(table["forecast_2"], first["forecast_2"], rtol=1e-4)


def test_readings_are_at_their_owners_only_and_the_graph_at_the_server(
    trained: Path, owners: Loopback
) -> None:
    run = json.loads((trained / "result.json").read_text())["details"]["run"]
    for place in (trained, owners.startup_kits["server"] / "runs" / run):
        assert not list(place.rglob("predictions*"))
    ledger = json.loads((owners.startup_kits["city"] / "runs" / run / "ledger.json").read_text())["entries"]
    sent = {entry["name"] for entry in ledger if sum(entry["sent"][:3])}
    scores = {"val_errors", "final_val_errors", "final_test_errors"}
    assert sent == {"join", "statistics", "hidden", "embeddings/grad", "update", *scores}


def test_it_forecasts_again_on_what_the_owners_readings_are_now(trained: Path, owners: Loopback) -> None:
    assert main(["predict", str(trained)]) == DONE
    run = json.loads((trained / "result.json").read_text())["details"]["run"]
    folder = owners.startup_kits["county"] / "runs" / run
    (later,) = folder.glob("predictions-*.parquet")
    assert pq.read_table(later).equals(pq.read_table(folder / "predictions.parquet"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"split": "inductive:0.5"},
            "sorts all sensors by longitude, which no participant of a deployment can",
        ),
        ({"horizon": 3000}, "cannot be used; the reason is in console.txt of its startup kit"),
    ],
)
def test_what_owners_cannot_do_is_refused_in_a_line(
    owners: Loopback,
    tmp_path: Path,
    options: dict[str, object],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    split = ["--split", str(options.pop("split"))] if "split" in options else []
    assert main([*asked(owners, tmp_path / "out", **options), *split]) == UNUSABLE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ---- the files of places -----------------------------------------------------------------------------------


def test_a_site_is_shown_what_is_in_its_file(folder: Path) -> None:
    content = checked_file(folder / "city" / "sensors.yaml", ROSTER, "city")
    assert content.startswith("3 sensors, 2016 readings of each from 2024-01-01T00:00")
    assert "edges between them" in checked_file(folder / "network.yaml", ROSTER, "server")


def test_sensors_stand_in_the_order_of_the_project_whatever_that_of_the_file(folder: Path) -> None:
    sensors = read_readings(folder / "city" / "sensors.yaml", ROSTER)
    assert sensors.ids == ("s0", "s1", "s2")
    made = load("roads", sensors=6, weeks=1)
    assert isinstance(made, Sensors)
    assert np.array_equal(sensors.readings, np.where(sensors.missing, 0, made.readings[:, :3]))


@pytest.mark.parametrize(
    ("description", "said"),
    [
        (
            "readings: speeds.csv\ndistances: ../distances.csv\n",
            "only the server has the graph of the sensors",
        ),
        ("distances: ../distances.csv\nlocations: x.csv\n", "of the sensors; remove it"),
        (
            "readings: other.csv\n",
            "sensor 's9' is no client of this project (s0, s1, s2, s3, s4, ...); use the sensor's name as",
        ),
        (
            "readings: split.csv\n",
            "of 's0' and of 's2', and not of 's1', which the project lists between them",
        ),
    ],
)
def test_files_of_another_place_are_refused(
    folder: Path, tmp_path: Path, description: str, said: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "distances.csv").write_text("from,to,distance\ns0,s1,2\ns1,s2,3\n")
    (site / "speeds.csv").write_text("time,s0\n2024-01-01 00:00,1\n2024-01-01 00:05,2\n")
    (site / "other.csv").write_text("time,s9\n2024-01-01 00:00,1\n2024-01-01 00:05,2\n")
    (site / "split.csv").write_text("time,s0,s2\n2024-01-01 00:00,1,2\n2024-01-01 00:05,2,3\n")
    (site / "sensors.yaml").write_text(description)
    with pytest.raises(InputError) as refusal:
        checked_file(site / "sensors.yaml", ROSTER, "city")
    assert said in str(refusal.value)

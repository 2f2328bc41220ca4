"""Every method that forecasts runs over NVIDIA FLARE, a client of one sensor next to gateways of several, and
gives what it gives in one process."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from methods_under_law import FORECASTERS
from sensor_worlds import SensorWorld, config_of, forecasts, run_local, sensor_world
from test_deployed_methods import JOINING

from graphfed.data.datasets import load
from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import make_time_split
from graphfed.deployment.deploy import request
from graphfed.deployment.rehearsal import collect, loopback_project
from graphfed.federation import Federation, Ledger
from graphfed.federation.payload import leaves
from graphfed.federation.series import save_network, save_series
from graphfed.methods.registry import get_method
from graphfed.tasks.outcome import Outcome

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback

pytestmark = pytest.mark.slow

NAMES = [name for name in FORECASTERS if not get_method(name).pooled]
WORKERS = [(0,), (1, 2, 3), (4, 5)]


#: A gateway: a hundred sensors at one client, and two clients of one sensor.
CITY = [(0,), tuple(range(1, 101)), (101,)]
CITY_SETTINGS = {"rounds": 2, "lags": 12, "horizon": 12, "every": 60, "hidden": 16}

Ended = dict[str, tuple[Outcome, Ledger]]


def deploy(
    folder: Path, world: SensorWorld, workers: list[tuple[int, ...]], names: list[str], **settings: Any
) -> Ended:
    """One federation of startup kits and processes over mutual TLS, and one job in it that runs every
    method: what came out."""
    project = loopback_project([len(clients) for clients in workers])
    data = {site.name: folder / f"{site.name}.safetensors" for site in project.sites}
    for series, path in zip(world.series(workers), data.values(), strict=True):
        save_series(series, path)
    data["server"] = folder / "server.safetensors"
    save_network(world.network(), data["server"])
    asked = [
        request(
            project, get_method(name), config_of(get_method(name), **settings),
            run=name, checkpoint_every=3600.0, rehearsal=True,
        )
        for name in names
    ]  # fmt: skip
    with (
        Loopback(project, folder / "startup_kits", data, check_data=False, rehearsal=True) as federation,
        federation.coordinator() as coordinator,
    ):
        outcomes = coordinator.run(
            asked, on_event=lambda run, event: None,            results=folder / "kept",
        )  # fmt: skip
        assert [(o["run"], o["kind"]) for o in outcomes] == [(name, "done") for name in names], outcomes
        return {name: collect(federation, get_method(name), name) for name in names}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """Where the federation is, and what came out of every method."""
    torch.set_default_dtype(torch.float64)
    folder = tmp_path_factory.mktemp("deployed")
    return folder, deploy(folder, sensor_world(), WORKERS, NAMES)


def in_workers(_: int, *, simulated: bool = False) -> Federation:
    return Federation(WORKERS)


@pytest.mark.parametrize("name", NAMES)
def test_a_deployed_run_has_the_bits_and_the_ledger_of_the_same_workers_in_one_process(
    name: str, deployed: tuple[Path, Ended]
) -> None:
    apart, ledger = deployed[1][name]
    together, fed = run_local(name, sensor_world(), in_workers)
    assert torch.equal(forecasts(apart), forecasts(together))
    for value in get_method(name).state.model:
        deployed_value, local_value = apart.state.values[value], together.state.values[value]
        if deployed_value.place == "server":
            for a, b in zip(leaves(deployed_value.parts[0]), leaves(local_value.parts[0]), strict=True):
                assert torch.equal(a, b)
    assert (apart.test, apart.details) == (together.test, together.details)
    assert [line["val"] for line in apart.history] == [line["val"] for line in together.history]
    require_same_ledger(ledger, fed.ledger)


def require_same_ledger(apart: Ledger, together: Ledger) -> None:
    """Except for what is sent so that participants join."""
    entries = apart.to_json()["entries"]
    assert [e for e in entries if e["name"] not in JOINING] == together.to_json()["entries"]
    assert {*JOINING} <= {e["name"] for e in entries}


@pytest.mark.on_demand
def test_a_gateway_of_a_hundred_sensors_gives_the_metrics_and_the_bytes_of_one_process(
    tmp_path: Path,
) -> None:
    torch.set_default_dtype(torch.float64)
    sensors = load("roads", sensors=102, weeks=1)
    assert isinstance(sensors, Sensors)
    split = make_time_split(sensors, "default", 12, 12, CITY_SETTINGS["every"])
    world = SensorWorld(sensors, split)
    apart, ledger = deploy(tmp_path, world, CITY, ["cnfgnn"], **CITY_SETTINGS)["cnfgnn"]
    together, fed = run_local("cnfgnn", world, **CITY_SETTINGS)
    assert apart.test == pytest.approx(together.test, rel=1e-9)
    require_same_ledger(ledger, fed.ledger)
    assert apart.test["rmse"] > 0
    assert forecasts(apart).shape[0] == 102


def test_each_client_keeps_the_forecasts_of_its_own_sensors(deployed: tuple[Path, Ended]) -> None:
    folder, ended = deployed
    whole = forecasts(ended["last_value"][0])
    for number, clients in enumerate(WORKERS):
        kept = folder / "startup_kits" / f"site-{number}" / "runs" / "last_value" / "predictions.parquet"
        table = pq.read_table(kept)
        assert table["client"].to_pylist() == [k for k in clients for _ in range(whole.shape[1])]
        forecast = torch.from_numpy(table["forecast_3"].to_numpy().copy()).view(len(clients), -1)
        assert torch.equal(forecast, whole[list(clients), :, 2].float())

"""The task forecasting: predict the next readings of every sensor."""

from collections.abc import Callable

from graphfed.data.sensors.windows import make_time_split, with_training_remark
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.methods.parts import FORECASTING_PARTS
from graphfed.methods.tasks import FORECASTING
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.sensors.inputs import SensorInputs, load_sensors
from graphfed.tasks.sensors.kind import SENSORS
from graphfed.tasks.sensors.scores import FORECASTS
from graphfed.tasks.source import LoadedData

#: The settings whose defaults in forecasting differ from those of the parts.
DEFAULTS = {
    "rounds": 100,
    "lr": 1e-3,
    "weight_decay": 0.0,
    "patience": 20,
}
#: The authors' program starts the optimiser of a client anew in every round.
PAPER_SETTINGS = {**DEFAULTS, "client_state": "reset"}


def load(
    config: RunConfig, loaded: LoadedData | None = None, on_stage: Callable[[str], None] = no_stages
) -> SensorInputs:
    """Load the readings of a run and split them in time (see `TaskDefinition.load`)."""
    on_stage(f"loading {config.data_name}")
    sensors = load_sensors(config, loaded)
    if config.clients not in (None, sensors.num_sensors):
        raise InputError(
            f"{sensors.name!r} has {sensors.num_sensors} sensors, each of which is a client, so there cannot "
            f"be {config.clients} clients; omit the number of clients"
        )
    windows = config.settings.windows
    split = make_time_split(sensors, config.split, windows.lags, windows.horizon, windows.every)
    inputs = SensorInputs(with_training_remark(sensors, split), split, config.data_source.dropped)
    inputs.check(config)
    return inputs


def other_inputs(config: RunConfig, known: JsonObject) -> SensorInputs:
    """Load other sensors and split them like the run's sensors."""
    return load(config)


TASK = TaskDefinition(
    name=FORECASTING,
    predicted="the next readings of every sensor",
    scored="forecasts",
    metric="rmse",
    metric_name="RMSE",
    error=True,
    targets="readings",
    needs=("readings of sensors, one at each client",),
    data=SENSORS,
    load=load,
    evaluation=FORECASTS,
    parts=FORECASTING_PARTS,
    defaults=DEFAULTS,
    paper_settings=PAPER_SETTINGS,
    other_inputs=other_inputs,
    # The number of sensors and the options of a generated data set do not apply to other data.
    own_data={"clients": None, "data_options": {}},
    clients_may_be_absent=True,
)

"""The task forecasting: predict the next readings of every sensor."""

from functools import partial

import numpy as np
from torch import Tensor

from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import make_time_split, with_training_remark
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import SumForm, protected_sum
from graphfed.federation.series import SensorData, Series
from graphfed.federation.state import accept_roster, roster_of
from graphfed.files import JsonObject
from graphfed.methods.base import Task
from graphfed.methods.parts import FORECASTING_PARTS, sum_protection
from graphfed.methods.tasks import FORECASTING
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.evaluation import HIDDEN_SCORES, Predicted
from graphfed.tasks.inputs import OnStage, load_once
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.sensors import scores
from graphfed.tasks.sensors.inputs import SensorInputs
from graphfed.tasks.sensors.kind import SENSORS
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
#: The number of sensors and the options of a generated data set do not apply to other data.
OWN_DATA: JsonObject = {"clients": None, "data_options": {}}

_ERRORS = SumForm(scores.total, scores.parts_to_sum, scores.no_errors, scores.opened_errors)


class Forecasting(TaskDefinition[SensorData, None]):
    """Each sensor is a client with its readings, and the server has the graph between the sensors."""

    name = FORECASTING
    predicted = "the next readings of every sensor"
    scored = "forecasts"
    metric = "rmse"
    metric_name = "RMSE"
    error = True
    targets = "readings"
    needs = ("readings of sensors, one at each client",)
    data = SENSORS
    parts = FORECASTING_PARTS
    summed = ("training readings", "readings to forecast in training", "validation readings", "test readings")
    messages = scores.MESSAGES
    defaults = DEFAULTS
    paper_settings = PAPER_SETTINGS
    own_data = OWN_DATA
    clients_may_be_absent = True

    def load(self, config: RunConfig, loaded: LoadedData, on_stage: OnStage) -> SensorInputs:
        sensors = load_once(config, loaded)
        assert isinstance(sensors, Sensors), "make_config accepts only data of the task's kind"
        if config.clients not in (None, sensors.num_sensors):
            raise InputError(
                f"{sensors.name!r} has {sensors.num_sensors} sensors, each of which is a client, so there "
                f"cannot be {config.clients} clients; omit the number of clients"
            )
        windows = config.settings.windows
        split = make_time_split(sensors, config.split, windows.lags, windows.horizon, windows.every)
        return SensorInputs(with_training_remark(sensors, split), split, config.data_source.dropped)

    def other_inputs(self, config: RunConfig, known: JsonObject) -> SensorInputs:
        inputs = self.load(config, {}, no_stages)
        inputs.check(config)
        return inputs

    def at_clients(self, data: SensorData) -> Located:
        return data.series

    def enrolled(self, fed: Federation, data: SensorData) -> np.ndarray | None:
        code = fed.control(
            scores.bits_of,
            data.network,
            name="enrolled",
            values={"roster": str | None},
            accept=partial(accept_roster, fed.num_clients),
        )["roster"]
        return None if code is None else roster_of(code, fed.num_clients)

    def prepare(self, fed: Federation, data: SensorData, task: Task, config: scores.Forecasts) -> None:
        """Do nothing: forecasting needs no agreement before the first evaluation."""

    def decides(self, config: scores.Forecasts, prepared: None) -> str:
        return scores.deciding_error(config)

    def score(
        self,
        fed: Federation,
        data: SensorData,
        outputs: Located,
        target: str,
        name: str,
        prepared: None,
        config: scores.Forecasts,
    ) -> tuple[Located, Located]:
        missing = config.windows.missing
        errors = fed.clients.run(scores.score_clients, data.series, outputs, fed.present(), target, missing)
        sums = protected_sum(
            fed,
            _ERRORS,
            errors,
            protection=sum_protection(config),
            name=f"{name}_errors",
            hidden_name=HIDDEN_SCORES,
            like=(config.windows.horizon,),
        )
        return errors, fed.server.run(scores.scored, sums)

    has_parts = staticmethod(scores.has_parts)
    better_clients = staticmethod(scores.better_clients)

    @staticmethod
    def keep(cohort: Series, outputs: Tensor) -> Predicted:
        """Return the first step of each window, [W], with the forecasts, [K, W, n]."""
        return cohort.starts("all"), outputs

    @staticmethod
    def of_target(cohort: Series, kept: Predicted, target: str) -> Tensor:
        starts, forecast = kept
        wanted = cohort.starts(target)
        first = int(wanted[0] - starts[0])
        return forecast[:, first : first + len(wanted)]


TASK = Forecasting()

"""A recurrent forecaster at every sensor, trained on its own series only: the baseline "GRU (local)" of
CNFGNN (Meng, Rambhatla and Liu, KDD 2021, Table 7). Only the statistics for the common scale are sent.

Every client selects its own best round by its own validation windows.
"""

from pydantic.dataclasses import dataclass

from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.series import SensorData
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.common.forecasting import (
    MESSAGES,
    fit_scaler,
)
from graphfed.methods.common.local_forecasters import (
    GRU_DEFAULTS,
    LocalEpochSettings,
    Prepared,
    own_forecasters,
    pass_over,
    predict_own,
    scaled,
)
from graphfed.methods.tasks import FORECASTING

__all__ = ["METHOD", "GruLocalConfig", "refuse_unseen"]


@dataclass(frozen=True, config={"extra": "forbid"})
class GruLocalConfig(
    LocalEpochSettings,
    groups.ClientStateSettings,
    groups.SequenceTrainingSettings,
    groups.RecurrentLayerSettings,
    groups.RecurrentSettings,
    groups.WindowSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of local training of recurrent forecasters."""


def refuse_unseen(fed: Federation, method: str) -> None:
    """Refuse splits with sensors that training does not see: they would have no weights to forecast with.

    Args:
        fed: The federation.
        method: Name of the method, for the message.

    Raises:
        InputError: There is such a sensor.
    """
    if not fed.roster.all():
        raise InputError(
            f"{method} trains weights for every sensor, and a sensor that training does not see has none; "
            "use gru_fedavg or cnfgnn, or another split"
        )


def setup(fed: Federation, data: SensorData, task: Task, config: GruLocalConfig) -> State:
    """Agree on the common scale and copy the first weights for every sensor."""
    refuse_unseen(fed, "gru_local")
    check_sums(fed, config.aggregation, fed.num_clients)
    scaler = fit_scaler(fed, data.series, config)
    training = scaled(fed, data, scaler, config)
    own = fed.clients.run(own_forecasters, training, config)
    values = {"weights": own, "scaler": scaler, "optimizer": fed.clients.run(dict)}
    return State(values, Prepared(data, training))


def round(fed: Federation, state: State, config: GruLocalConfig, number: int) -> State:
    """Run a round at every sensor; nothing is sent."""
    weights, optimizer = fed.clients.run(
        pass_over,
        state.prepared.training,
        state.weights,
        state.values["optimizer"],
        config,
        number,
        outputs=2,
    )
    return State({**state.values, "weights": weights, "optimizer": optimizer}, state.prepared)


METHOD = Method(
    name="gru_local",
    summary="every sensor trains its own recurrent forecaster",
    paper="Baseline of Meng, Rambhatla, Liu: Cross-node federated graph neural network for spatio-temporal "
    "data modeling. KDD 2021, arXiv:2106.05223",
    config=GruLocalConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=predict_own,
    personal=True,
    state=StateValues(
        model=("weights", "scaler"),
        scratch=("optimizer",),
    ),
    sends=Sent(
        summary="statistics for the common scale, once",
        protection="none: in plaintext; with aggregation=secure the server reads sums only",
        messages=MESSAGES,
    ),
    defaults=GRU_DEFAULTS,
    paper_settings={"client_state": "keep"},
)

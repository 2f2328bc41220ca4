"""Isolated training: every client trains its own network on its own subgraph, and nothing crosses. The lower
reference row.

Every client starts from the same weights, selects its best round on its own validation nodes (the last
round where it has none) and is scored on its own test nodes; the table's accuracy is over all test
nodes of all clients together.

Differs from the paper: no paper; this is the baseline that papers call local, separate or self training.
"""

from pydantic.dataclasses import dataclass

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import empty_state
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Sent, State, Task
from graphfed.methods.common.local_training import (
    Prepared,
    initial_weights,
    own_view,
    personal_weights,
    predict_personal,
    prepare,
    train_personal,
)
from graphfed.methods.config import GraphTraining
from graphfed.nn.backbones import Weights

__all__ = ["METHOD", "AloneConfig", "predict", "round", "setup"]


@dataclass(frozen=True, config={"extra": "forbid"})
class AloneConfig(
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.BackboneSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of training that sends nothing: of one party alone."""


def prepare_personal(cohort: Cohort, config: GraphTraining) -> Prepared:
    return prepare(cohort, own_view(cohort), None, config, personal=True)


def first_weights(prepared: Prepared, task: Task, config: GraphTraining, device: str) -> Weights:
    return personal_weights(initial_weights(task, config, device), prepared.train, config.network)


def setup(fed: Federation, data: Located, task: Task, config: GraphTraining) -> State:
    prepared = fed.clients.run(prepare_personal, data, config)
    weights = fed.clients.run(first_weights, prepared, task, config, str(fed.device))
    return State({"weights": weights, "optimizer": fed.clients.run(empty_state)}, prepared)


def round(fed: Federation, state: State, config: GraphTraining, number: int) -> State:
    weights, optimizer = fed.clients.run(
        train_personal, state.prepared, state.weights, state.values["optimizer"], config, number, outputs=2
    )
    return State({"weights": weights, "optimizer": optimizer}, state.prepared)


def predict(fed: Federation, state: State, config: GraphTraining, target: str) -> Located:
    return fed.clients.run(predict_personal, state.prepared, state.weights, config, target)


METHOD = Method(
    name="isolated",
    summary="every client alone on its own subgraph; nothing crosses",
    paper="no paper: the lower reference, called local, separate or self training",
    config=AloneConfig,
    setup=setup,
    round=round,
    predict=predict,
    personal=True,
    sends=Sent(
        summary="nothing",
        protection="nothing crosses",
    ),
)

"""The data of a run as its method received it, after clients agreed on the scale of features.

An attack compares its results with these features: with features=scaled a method sends only values that it
computed from scaled features.
"""

from dataclasses import replace
from typing import Any

from graphfed.federation import Federation
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.methods.base import Task
from graphfed.methods.config import AggregationSettings
from graphfed.runs.train import agree_before_setup
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig

__all__ = ["prepared_data"]


def prepared_data(fed: Federation, config: RunConfig, inputs: Inputs) -> tuple[Any, Task]:
    """Place a run's data at its clients, who agree on the scale of features and the weights of classes.

    They agree in plaintext, whichever protection the run used; the values are the same.

    Args:
        fed: All clients in one process.
        config: The run's settings.
        inputs: The run's data.

    Returns:
        The data at the clients, and the task.
    """
    parts = inputs.parts(config, fed.workers)
    data = get_task(config.task).data.located(fed, parts, [inputs.part_of_server(config)])
    task = inputs.task(config.task)
    training: Any = config.training
    if isinstance(training, AggregationSettings):
        training = replace(training, aggregation=PLAINTEXT)
    data, _ = agree_before_setup(fed, data, config.method, task, training)
    return data, task

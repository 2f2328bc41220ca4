"""The table of tasks. A new task is one module and one entry of this table."""

import functools
import importlib
from typing import TYPE_CHECKING

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.methods.tasks import CLASSIFICATION, FORECASTING, LINK_PREDICTION

if TYPE_CHECKING:  # the command line's completion reads the names, and must not wait for torch
    from graphfed.files import JsonObject
    from graphfed.methods.base import Method
    from graphfed.tasks.base import AnyKind, TaskDefinition

#: The module of each task, by the task's name. The module has an object `TASK`.
TASKS: dict[str, str] = {
    CLASSIFICATION: "graphfed.tasks.node_classification",
    LINK_PREDICTION: "graphfed.tasks.link_prediction",
    FORECASTING: "graphfed.tasks.forecasting",
}


@functools.cache
def get_task(name: str) -> "TaskDefinition":
    """Return the definition of a task.

    Raises:
        InputError: There is no such task; the message suggests the most similar name.
    """
    if name not in TASKS:
        raise InputError(f"unknown task {shown(name)}; {did_you_mean(name[:60], TASKS)}")
    task: TaskDefinition = importlib.import_module(TASKS[name]).TASK
    return task


def first_task(method: "Method") -> "TaskDefinition":
    """Return the default task of a method, which is its first one."""
    return get_task(method.tasks[0])


def task_or_default(name: str) -> "TaskDefinition":
    """Return the task that a run's folder names.

    Args:
        name: The name, which another version of graphfed may have written.

    Returns:
        The definition of the task; that of node classification if the name is unknown.
    """
    return get_task(name if name in TASKS else CLASSIFICATION)


def data_kinds() -> "list[AnyKind]":
    """List the kinds of data of all tasks.

    Returns:
        Each kind once.
    """
    kinds = {get_task(name).data.name: get_task(name).data for name in TASKS}
    return [*kinds.values()]


def default_settings(method: "Method", task: str | None = None, preset: str = "default") -> "JsonObject":
    """Collect the settings of a preset that differ from the defaults of the method's config.

    Args:
        task: The name of one of its tasks; None for its first.

    Returns:
        The settings by name (see `TaskDefinition.settings_of`).
    """
    return (first_task(method) if task is None else get_task(task)).settings_of(method, preset)

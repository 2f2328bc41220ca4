"""The table of tasks. A new task is one module and one entry of this table."""

import functools
import importlib
from typing import TYPE_CHECKING

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.methods.tasks import CLASSIFICATION, FORECASTING, LINK_PREDICTION

if TYPE_CHECKING:  # the command line's completion reads the names, and must not wait for torch
    from graphfed.files import JsonObject
    from graphfed.methods.base import Method
    from graphfed.tasks.base import AnyTask
    from graphfed.tasks.kind import AnyKind

#: The module of each task, by the task's name. The module has an object `TASK`.
TASKS: dict[str, str] = {
    CLASSIFICATION: "graphfed.tasks.node_classification",
    LINK_PREDICTION: "graphfed.tasks.link_prediction",
    FORECASTING: "graphfed.tasks.forecasting",
}


@functools.cache
def get_task(name: str) -> "AnyTask":
    """Return a task; InputError suggests the most similar name if there is none."""
    if name not in TASKS:
        raise InputError(f"unknown task {shown(name)}; {did_you_mean(name[:60], TASKS)}")
    task: AnyTask = importlib.import_module(TASKS[name]).TASK
    return task


def first_task(method: "Method") -> "AnyTask":
    """Return the default task of a method, which is its first one."""
    return get_task(method.tasks[0])


def task_or_default(name: str) -> "AnyTask":
    """Return the task that a run's folder names.

    It is node classification if the name is unknown, which another version of graphfed may have written.
    """
    return get_task(name if name in TASKS else CLASSIFICATION)


def data_kinds() -> "list[AnyKind]":
    """List the kinds of data of all tasks, each once."""
    kinds = {get_task(name).data.name: get_task(name).data for name in TASKS}
    return [*kinds.values()]


def default_settings(method: "Method", task: str | None = None, preset: str = "default") -> "JsonObject":
    """Collect the settings of a preset for a task of the method (None: its first one).

    See `TaskDefinition.settings_of`.
    """
    return (first_task(method) if task is None else get_task(task)).settings_of(method, preset)

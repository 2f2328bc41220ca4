"""The one table of tasks. Adding a task is one module and one row."""

import functools
import importlib
from typing import TYPE_CHECKING

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.methods.tasks import CLASSIFICATION, FORECASTING, LINK_PREDICTION

if TYPE_CHECKING:  # the names are read without torch, by the completion of the command line
    from graphfed.files import JsonObject
    from graphfed.methods.base import Method
    from graphfed.tasks.base import AnyKind, TaskDefinition

__all__ = ["TASKS", "data_kinds", "default_settings", "first_task", "get_task", "task_or_default"]

#: name -> the module whose TASK it is
TASKS: dict[str, str] = {
    CLASSIFICATION: "graphfed.tasks.node_classification",
    LINK_PREDICTION: "graphfed.tasks.link_prediction",
    FORECASTING: "graphfed.tasks.forecasting",
}


@functools.cache
def get_task(name: str) -> "TaskDefinition":
    """Return the task called `name`.

    Raises:
        InputError: There is none of that name; the message says which is nearest.
    """
    if name not in TASKS:
        raise InputError(f"unknown task {shown(name)}; {did_you_mean(name[:60], TASKS)}")
    task: TaskDefinition = importlib.import_module(TASKS[name]).TASK
    return task


def first_task(method: "Method") -> "TaskDefinition":
    """Return the task that a method does unless it is asked for another one."""
    return get_task(method.tasks[0])


def task_or_default(name: str) -> "TaskDefinition":
    """Return the task that a folder names; node classification where another version wrote its name."""
    return get_task(name if name in TASKS else CLASSIFICATION)


def data_kinds() -> "list[AnyKind]":
    """Return the kinds of data that there are tasks for, each once."""
    kinds = {get_task(name).data.name: get_task(name).data for name in TASKS}
    return [*kinds.values()]


def default_settings(method: "Method", task: str | None = None, preset: str = "default") -> "JsonObject":
    """Return the settings of a method where the user chooses none (see `TaskDefinition.settings_of`).

    Args:
        method: The method.
        task: The name of one of its tasks; None for its first.
        preset: One of `tasks.base.PRESETS`.
    """
    return (first_task(method) if task is None else get_task(task)).settings_of(method, preset)

"""From a run's config to what it trains on."""

from collections.abc import Callable

from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.source import LoadedData

__all__ = ["load_inputs"]


def load_inputs(
    config: RunConfig, loaded: LoadedData | None = None, on_stage: Callable[[str], None] = no_stages
) -> Inputs:
    """Load the data of a run, split it and partition it.

    Args:
        config: The run.
        loaded: Keeps what was loaded, for several runs on one data set.
        on_stage: Called with what begins, in words.

    Raises:
        InputError: Files are missing, there are too many clients, the data has no such split, ...
    """
    return get_task(config.task).load(config, loaded, on_stage)

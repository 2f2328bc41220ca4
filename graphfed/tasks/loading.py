"""Loading of the inputs of a run."""

from collections.abc import Callable

from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.source import LoadedData


def load_inputs(
    config: RunConfig, loaded: LoadedData | None = None, on_stage: Callable[[str], None] = no_stages
) -> Inputs:
    """Load, split and partition the data of a run.

    Args:
        loaded: A dictionary that keeps the loaded data for further runs on the same data.
        on_stage: A function that is called with a text at the start of each stage.

    Raises:
        InputError: The data cannot be loaded, split or partitioned as the run asks.
    """
    return get_task(config.task).load(config, loaded, on_stage)

"""Loading of the inputs of a run."""

from collections.abc import Callable

from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.source import LoadedData


def load_inputs(
    config: RunConfig, loaded: LoadedData | None = None, on_stage: Callable[[str], None] = no_stages
) -> Inputs:
    """Load, split and partition the data of a run (see `TaskDefinition.load`)."""
    return get_task(config.task).load(config, loaded, on_stage)

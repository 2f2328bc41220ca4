"""Loading of the inputs of a run."""

from graphfed.tasks.inputs import Inputs, OnStage
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig, no_stages
from graphfed.tasks.source import LoadedData


def load_inputs(config: RunConfig, loaded: LoadedData | None = None, on_stage: OnStage = no_stages) -> Inputs:
    """Load, split, partition and check the data of a run; `loaded` keeps data sets for further runs.

    Raises InputError if the data cannot be loaded, split or partitioned as the run asks.
    """
    on_stage(f"loading {config.data_name}")
    inputs = get_task(config.task).load(config, {} if loaded is None else loaded, on_stage)
    inputs.check(config)
    return inputs.of_run(config)

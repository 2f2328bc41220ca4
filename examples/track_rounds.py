"""Send the metrics of every round to TensorBoard, MLflow or Weights & Biases while a run trains.

    pip install tensorboard
    python examples/track_rounds.py tensorboard

`graphfed.run` calls `on_round` after every evaluated round with that round's line of metrics.jsonl.
"""

import sys
from collections.abc import Callable
from typing import Any

import graphfed

Line = dict[str, Any]


def metrics_of(line: Line) -> dict[str, float]:
    """The metrics of a round by the names that a tracker shows; a metric without a value is left out."""
    val = {f"val/{name}": value for name, value in line["val"].items() if value is not None}
    return {**val, "bytes": line["bytes"], "seconds": line["seconds"]}


def tensorboard() -> Callable[[Line], None]:
    """Write events for `tensorboard --logdir runs/tensorboard`."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("runs/tensorboard/example")

    def on_round(line: Line) -> None:
        for name, value in metrics_of(line).items():
            writer.add_scalar(name, value, line["round"])
        writer.flush()

    return on_round


def mlflow() -> Callable[[Line], None]:
    """Log to the store in the environment variable MLFLOW_TRACKING_URI, or to MLflow's default."""
    import mlflow

    mlflow.start_run(run_name="example")
    return lambda line: mlflow.log_metrics(metrics_of(line), step=line["round"])


def wandb() -> Callable[[Line], None]:
    """Log to Weights & Biases."""
    import wandb

    tracked = wandb.init(project="graphfed", name="example")
    return lambda line: tracked.log(metrics_of(line), step=line["round"])


if __name__ == "__main__":
    tracker = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}[sys.argv[1]]
    result = graphfed.run("fedavg", rounds=20, on_round=tracker())
    print(result.folder, result.test)

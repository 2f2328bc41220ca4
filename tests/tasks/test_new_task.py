"""A task is one class in one module: here node regression, which nothing else in the program knows. It is
run, scored, written down, predicted with and reported."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from exchange_toy import ToyConfig
from torch import Tensor

import graphfed
from graphfed import plugins
from graphfed.data.datasets import load as load_data
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.splits import make_split
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.methods.base import Method, Sent, State, Task
from graphfed.methods.parts import GRAPH_PARTS
from graphfed.plugins import load_plugin
from graphfed.report.page import write_card, write_report
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.evaluation import Scored
from graphfed.tasks.graphs import node_scores
from graphfed.tasks.graphs.inputs import GraphInputs, check_features, load_graph, partition_graph
from graphfed.tasks.graphs.kind import GRAPHS
from graphfed.tasks.inputs import OnStage
from graphfed.tasks.registry import TASKS
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import LoadedData

# ---- the task ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RegressionInputs(GraphInputs):
    split: Split

    def tables(
        self, config: RunConfig, predicted: Sequence[tuple[Cohort, Any]], names: Sequence[str] | None = None
    ) -> Iterator[Any]:
        for cohort, (rows, values) in predicted:
            yield pa.table({"target": cohort.y[rows].double().numpy(), "prediction": values[:, 0].numpy()})

    def metric_of_rounds(self, config: RunConfig) -> str:
        return "rmse"


def squared_errors(cohort: Cohort, values: Tensor, target: str) -> Tensor:
    """The sum of squared errors and how many there are, [2]."""
    error = values[:, 0].double() - cohort.y[cohort.rows(target)]
    return torch.stack([error.square().sum(), torch.tensor(float(len(error)), dtype=torch.float64)])


def scored(sums: Tensor) -> Scored:
    return Scored({"rmse": math.sqrt(sums[0] / sums[1])}, bool(sums.isnan().any()))


class NodeRegression(TaskDefinition[Located[Cohort], None]):
    name = "node_regression"
    predicted = "a number for every node"
    scored = "nodes"
    metric = "rmse"
    metric_name = "RMSE"
    error = True
    output = "a number"
    needs = ("features",)
    data = GRAPHS
    parts = GRAPH_PARTS
    summed = ("training nodes", "validation nodes", "test nodes")
    messages = MappingProxyType({"val_errors": "The summed squared errors of a client."})

    def load(self, config: RunConfig, loaded: LoadedData, on_stage: OnStage) -> RegressionInputs:
        graph = load_graph(config, loaded)
        check_features(config, graph)
        split = make_split(graph, config.split, config.split_seed)
        return RegressionInputs(graph, split, partition_graph(config, graph, on_stage))

    def prepare(self, fed: Federation, data: Located, task: Task, config: Any) -> None:
        pass

    def decides(self, config: Any, prepared: None) -> str:
        return "rmse"

    def score(
        self,
        fed: Federation,
        data: Located,
        outputs: Located,
        target: str,
        name: str,
        prepared: None,
        config: Any,
    ) -> tuple[None, Located]:
        errors = fed.clients.run(squared_errors, data, outputs, target)
        return None, fed.server.run(scored, fed.sum(errors, name=f"{name}_errors", grad=False))

    has_parts = staticmethod(node_scores.has_parts)

    @staticmethod
    def keep(cohort: Cohort, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return cohort.rows("all"), outputs

    @staticmethod
    def of_target(cohort: Cohort, kept: tuple[Tensor, Tensor], target: str) -> Tensor:
        wanted = torch.isin(kept[0], cohort.rows(target))
        return kept[1][wanted]


TASK = NodeRegression()

# ---- a method that can do it: the mean of all clients' targets -----------------------------------------


def sum_targets(cohort: Cohort) -> Tensor:
    targets = cohort.y[cohort.train].double()
    return torch.stack([targets.sum(), torch.tensor(float(len(targets)), dtype=torch.float64)])


def no_mean(task: Task) -> dict[str, Tensor]:
    return {"mean": torch.zeros(())}


def mean_of(sums: Tensor) -> dict[str, Tensor]:
    return {"mean": sums[0] / sums[1]}


def begin(fed: Federation, data: Located, task: Task, config: ToyConfig) -> State:
    return State({"weights": fed.server.run(no_mean, task)}, data)


def round(fed: Federation, state: State, config: ToyConfig, number: int) -> State:
    sums = fed.sum(fed.clients.run(sum_targets, state.prepared), name="targets", grad=False)
    return State({"weights": fed.server.run(mean_of, sums)}, state.prepared)


def repeat_mean(cohort: Cohort, weights: Mapping[str, Tensor], target: str) -> Tensor:
    return weights["mean"].expand(len(cohort.rows(target)), 1)


def predict(fed: Federation, state: State, config: ToyConfig, target: str) -> Located:
    mean = fed.broadcast(state.weights, name="mean", grad=False)
    values: Located = fed.clients.run(repeat_mean, state.prepared, mean, target)
    return values


METHOD = Method(
    name="mean_target",
    summary="the mean of the training targets",
    config=ToyConfig,
    tasks=("node_regression",),
    setup=begin,
    round=round,
    predict=predict,
    sends=Sent(messages={"targets": "The sum of a client's targets.", "mean": "The mean."}),
)

# ---- what the program makes of it --------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(TASKS, "node_regression", __name__)
    monkeypatch.setattr(plugins, "_MODULES", {})
    load_plugin(__name__)
    graphfed.run("mean_target", data="digits", clients=3, rounds=2, out=tmp_path / "run")
    return tmp_path / "run"


def expected_rmse() -> float:
    """Of the mean of all training labels, on the test nodes."""
    graph = load_data("digits")
    assert isinstance(graph, Graph)
    split = make_split(graph, "default", 0)
    error = graph.y[split.test] - graph.y[split.train].mean()
    return float(np.sqrt(np.square(error).mean()))


def test_a_task_in_one_file_is_run_and_scored(folder: Path) -> None:
    result = graphfed.runs.run.Result.read(folder)
    assert (result.task, result.method) == ("node_regression", "mean_target")
    assert result.test["rmse"] == pytest.approx(expected_rmse(), abs=1e-9)


def test_its_predictions_are_written_and_made_again_from_the_folder(folder: Path) -> None:
    written = pq.read_table(folder / "predictions.parquet")
    error = np.subtract(written["target"], written["prediction"])
    assert len(error) > 100
    assert np.isfinite(error).all()
    assert graphfed.predict(folder).equals(written)


def test_its_report_and_card_say_what_it_is(folder: Path) -> None:
    report = write_report([folder]).read_text()
    assert "RMSE" in report
    assert "reached a test RMSE of" in report
    assert "windows and steps ahead" not in report
    card = write_card(folder).read_text()
    assert "| output | a number |" in card
    assert "sensors" not in card

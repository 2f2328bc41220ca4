"""Results that look wrong say so, and healthy ones say nothing."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphfed
from graphfed.cli import main
from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import values
from graphfed.runs.config import make_config
from graphfed.runs.diagnostics import TITLES, swings
from graphfed.runs.run import Result
from graphfed.studies.compare import compare
from graphfed.studies.comparison import Comparison, check_comparison, comparison_in, unequal_settings

#: Settings that train a GCN to the end on the graphs below.
HEALTHY: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 0.01,
    "hidden": 64,
    "local_steps": 1,
    "rounds": 400,
    "patience": 40,
    "threads": 1,
}


def codes(result: Result) -> list[str]:
    return [warning["code"] for warning in result.details["warnings"]]


def text_of(result: Result, code: str) -> str:
    (warning,) = (warning for warning in result.details["warnings"] if warning["code"] == code)
    return str(warning["text"])


def noisy_graph(sizes: tuple[int, ...], informative: int) -> Graph:
    """A random graph with classes of these sizes; the features of the first `informative` reveal them."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(y), 8)).astype(np.float32)
    is_informative = y < informative
    x[is_informative, y[is_informative]] += 4
    x[~is_informative, 0] += 4  # all others look like the first class
    edges = np.concatenate([rng.choice(np.flatnonzero(y == c), (2, 3 * n)) for c, n in enumerate(sizes)], 1)
    return make_graph("own", x, y, edges, class_names=tuple(f"kind {c}" for c in range(len(sizes))))


# ---- each check has a run that triggers it -----------------------------------------------------------------


def test_a_run_that_still_improves_in_its_last_round_is_advised_how_many_rounds_to_ask_for() -> None:
    result = graphfed.run("central", lr=0.002, optimizer="adam", rounds=12, threads=1, out=False)
    assert result.best_round == 12
    assert "undertrained" in codes(result)
    assert "--rounds 24" in text_of(result, "undertrained")
    assert "graphfed resume FOLDER --rounds 24" in text_of(result, "undertrained")


def test_a_learning_rate_that_is_too_small_leaves_the_first_round_the_best() -> None:
    result = graphfed.run("central", lr=1e-6, optimizer="sgd", rounds=12, threads=1, out=False)
    assert result.best_round == 1
    assert "too small" in text_of(result, "best_round_first")


def test_a_learning_rate_that_is_too_large_makes_validation_oscillate_and_the_loss_large() -> None:
    result = graphfed.run(
        "central", data="social", lr=50, optimizer="sgd", rounds=60, patience=None, threads=1, out=False
    )
    assert {"oscillating_validation", "large_loss"} <= set(codes(result))
    assert "lr=50" in text_of(result, "oscillating_validation")
    assert "2.08" in text_of(result, "large_loss")  # log 8


def test_a_class_that_is_never_predicted_is_named_with_its_count() -> None:
    graph = noisy_graph((150, 150, 6), informative=2)
    result = graphfed.run(
        "central", data=graph, clients=2, partition="random", split="random:0.5,0.2,0.3", **HEALTHY, out=False
    )
    confusion = np.array(result.details["test_confusion"])
    assert confusion[:, 2].sum() == 0
    assert f"'kind 2' ({confusion[2].sum():g} test nodes)" in text_of(result, "class_never_predicted")
    assert "no_better_than_majority" not in codes(result)


def test_a_model_that_finds_the_largest_class_only_is_no_better_than_the_majority() -> None:
    graph = noisy_graph((200, 20), informative=0)
    result = graphfed.run(
        "central", data=graph, clients=2, partition="random", split="random:0.5,0.2,0.3", **HEALTHY, out=False
    )
    assert "no_better_than_majority" in codes(result)


def test_link_prediction_without_information_is_no_better_than_chance() -> None:
    rng = np.random.default_rng(1)
    graph = make_graph(
        "noise",
        rng.normal(size=(300, 4)).astype(np.float32),
        np.zeros(300, int),
        rng.integers(0, 300, (2, 900)),
    )
    result = graphfed.run(
        "central", task="link_prediction", data=graph, clients=2, partition="random", rounds=30, threads=1,
        lr=0.1, out=False,
    )  # fmt: skip
    assert "no_better_than_chance" in codes(result)


def test_a_forecast_that_is_worse_than_the_last_value_says_so() -> None:
    table = compare(
        ["gru_fedavg"], data="roads", seeds=[0], rounds=1, threads=1, out=False,
        settings={"data.sensors": 6, "data.weeks": 1, "hidden": 2, "lr": 1e-9},
    )  # fmt: skip
    found = {label for one in table.warnings if one.code == "worse_than_last_value" for label in one.rows}
    assert "gru_fedavg" in found
    assert "last_value" not in found


# ---- healthy runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["digits", "social"])
@pytest.mark.parametrize("method", ["central", "fedavg", "fedgcn"])
@pytest.mark.slow
def test_healthy_runs_have_no_warnings(method: str, data: str) -> None:
    for seed in (0, 1):
        result = graphfed.run(
            method, data=data, seed=seed, partition="random", clients=3, out=False, **HEALTHY
        )
        assert result.details["warnings"] == []


def test_healthy_runs_on_cora_have_no_warnings(real_data: Path) -> None:
    for method in ("central", "fedgcn"):
        result = graphfed.run(method, data="cora", seed=0, data_dir=real_data, out=False, **HEALTHY)
        assert result.details["warnings"] == []


@pytest.mark.slow
def test_a_healthy_link_prediction_has_no_warnings() -> None:
    result = graphfed.run("central", task="link_prediction", rounds=200, patience=50, threads=1, out=False)
    assert result.details["warnings"] == []


def test_what_learns_nothing_has_no_warnings() -> None:
    result = graphfed.run("last_value", **{"data.sensors": 6, "data.weeks": 1}, out=False)
    assert result.details["warnings"] == []


def test_sampling_noise_of_a_constant_accuracy_is_no_oscillation() -> None:
    """1000 runs of 100 evaluations, each drawn anew from a binomial distribution: at most one in a hundred
    may be called an oscillation, and three swings are needed for that, so none is expected."""
    from graphfed.runs.diagnostics import Evidence, check_run

    rng = np.random.default_rng(7)
    for p, n in ((0.3, 60), (0.6, 500), (0.9, 2000), (0.5, 20_000)):
        for _ in range(250):
            values = rng.binomial(n, p, 100) / n
            history = [{"round": i + 1, "val": {"accuracy": v}} for i, v in enumerate(values.tolist())]
            run = Evidence(
                "classification", "accuracy", 100, 100, 50, 0.1, history, {}, {}, scored={"val": n}
            )
            assert check_run(run) == []


@pytest.mark.parametrize(("loss", "warned"), [(2.9, False), (3.5, True)])
def test_a_loss_of_one_and_a_half_times_that_of_a_uniform_guess_is_named(loss: float, warned: bool) -> None:
    """SAPGNN on a dense graph of 8 classes ended at 3.5, with 76 % of the nodes right."""
    from graphfed.runs.diagnostics import Evidence, check_run

    confusion = [[9.0 if c == k else 0.0 for c in range(9)] for k in range(8)]
    test = {"accuracy": 0.76, "loss": loss}
    run = Evidence("classification", "accuracy", 9, 9, 5, 0.1, [], {}, test, confusion=confusion)
    found = [warning for warning in check_run(run) if warning.code == "large_loss"]
    assert ["Use ten times the weight" in warning.text for warning in found] == [True] * warned


@pytest.mark.parametrize(("error", "warned"), [(0.002, False), (0.02, True)])
def test_metrics_that_the_bins_of_scores_leave_open_are_named_with_their_error(
    error: float, warned: bool
) -> None:
    from graphfed.runs.diagnostics import Evidence, check_run

    run = Evidence("classification", "accuracy", 9, 9, 5, 0.1, [], {}, {}, rank_error=error)
    assert [warning.code for warning in check_run(run)] == ["coarse_ranks"] * warned
    assert all("off by up to 0.02" in warning.text for warning in check_run(run))


@pytest.mark.parametrize(
    ("values", "falls"),
    [([0.1, 0.2, 0.3], 0), ([0.5, 0.1, 0.5, 0.1], 2), ([0.5, 0.4, 0.3, 0.2], 1), ([0.5, 0.45, 0.5, 0.45], 0)],
)
def test_swings_are_falls_with_rises_between(values: list[float], falls: int) -> None:
    assert swings(values, 0.2) == falls


# ---- comparisons -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A table whose central row cannot learn."""
    return compare(
        [{"method": "central", "settings": {"lr": 1e-6, "optimizer": "sgd"}}, "isolated"],
        seeds=(0, 1), clients=2, rounds=12, partition="random", threads=1,
        out=tmp_path_factory.mktemp("doubtful") / "table",
    )  # fmt: skip


def test_a_central_row_below_isolated_is_marked_and_said_to_be(doubtful: Comparison) -> None:
    (warning,) = (one for one in doubtful.warnings if one.code == "central_below_isolated")
    assert warning.rows == ("central",)
    text = str(doubtful)
    assert "central*!" in text
    assert f"! central: {TITLES['central_below_isolated']}" in " ".join(text.split())


def test_warnings_are_in_the_files_of_a_comparison_and_read_back(doubtful: Comparison) -> None:
    assert doubtful.folder is not None
    content = json.loads((doubtful.folder / "comparison.json").read_text())
    assert [one.to_json() for one in doubtful.warnings] == content["warnings"]
    assert comparison_in(doubtful.folder).warnings == doubtful.warnings
    result = json.loads((doubtful.folder / "central-seed0" / "result.json").read_text())
    assert {"code", "text"} == set(result["details"]["warnings"][0])


def test_warnings_are_in_the_report_of_a_comparison(doubtful: Comparison, tmp_path: Path) -> None:
    from graphfed.report.page import write_report

    assert doubtful.folder is not None
    page = write_report([doubtful.folder], tmp_path / "report.html").read_text()
    assert "Warning: central, which trains on all data together" in page


def test_the_command_line_says_warnings_on_stderr(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [
        "run",
        "central",
        "--rounds",
        "6",
        "--set",
        "lr=1e-6",
        "--set",
        "optimizer=sgd",
        "--threads",
        "1",
    ]
    assert main([*arguments, "--out", str(tmp_path / "run"), "--no-progress"]) == 0
    shown = capsys.readouterr()
    assert "warning: The best round was the first one" in shown.err
    assert "warning" not in shown.out
    assert "Warning: The best round was the first one" in (tmp_path / "run" / "report.html").read_text()


def row(label: str, accuracy: float, **more: Any) -> dict[str, Any]:
    statistic = {"mean": accuracy, "std": None, "values": [accuracy]}
    return {"label": label, "method": label, "seeds": [0], "test": {"accuracy": statistic}, **more}


def test_central_above_isolated_is_no_warning() -> None:
    rows = [row("central", 0.9), row("isolated", 0.5), row("fedavg", 0.4)]
    assert check_comparison("classification", "accuracy", rows) == []


@pytest.mark.parametrize("task", ["classification", "link_prediction", "forecasting"])
def test_two_methods_with_different_defaults_are_marked_in_a_table(task: str) -> None:
    """Over the registry: wherever two rows have a setting in common with different values, at least one of
    them is marked with it."""
    data = "roads" if task == "forecasting" else "digits"
    names = [name for name in METHODS if task in get_method(name).tasks and get_method(name).state.model]
    rows = [
        {
            "label": f"row {number}",
            "training": {
                k: v
                for k, v in values(make_config(name, task=task, data=data).settings).items()
                if k != "seed"
            },
        }
        for number, name in enumerate(names)
    ]
    marked = unequal_settings(rows)
    for first, second in combinations(rows, 2):
        shared = first["training"].keys() & second["training"].keys()
        for key in shared - {"aggregation", "protocols"}:  # they protect, and train alike
            if first["training"][key] != second["training"][key]:
                assert key in {**marked.get(first["label"], {}), **marked.get(second["label"], {})}


def test_a_setting_of_several_methods_that_differs_by_default_is_marked() -> None:
    """gru_fedavg's teacher forcing decays at another rate than that of the other forecasters by default."""
    table = compare(
        ["gru_fedavg", "gru_local"], data="roads", seeds=[0], rounds=1, threads=1, out=False,
        settings={"data.sensors": 4, "data.weeks": 1, "hidden": 2},
    )  # fmt: skip
    text = str(table)
    assert "gru_fedavg*" in text
    assert "teacher=1.0" in text
    assert [one.code for one in table.warnings if one.code == "unequal_settings"] == ["unequal_settings"]


def test_equal_rows_are_not_marked() -> None:
    table = compare(["fedavg"], seeds=[0], clients=2, rounds=1, threads=1, out=False)
    assert "*" not in str(table).split("time")[1]
    assert "unequal_settings" not in {one.code for one in table.warnings}

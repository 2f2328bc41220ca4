"""`RunOptions` is the one list of a run's options: functions, config files and commands agree with it."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer.main

import graphfed
from graphfed.cli import app
from graphfed.methods.fedgraph.policy.learning import learn_policy
from graphfed.runs.config import make_config, read_config
from graphfed.tasks.run_options import OPTIONS, RunOptions, checked_options

FIELDS = {field.name: field for field in dataclasses.fields(RunOptions) if field.name != "method"}
TYPES = get_type_hints(RunOptions)
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
#: What a function of Python takes next to the options of a run.
OUTSIDE = {"method", "out", "progress", "on_round", "command", "more"}
#: What the command line takes next to them, by command. Sweeps and comparisons have several seeds.
COMMANDS = {
    "run": {"config", "startup_kit", "plugin", "out", "show_config", "as_json", "report", "progress"},
    "compare": {"config", "seeds", "plugin", "out", "jobs", "as_json", "report", "progress"},
    "sweep": {"grid", "optuna", "ranges", "config", "seeds", "plugin", "out", "as_json", "progress"},
}
#: The options of a run that a command lacks.
LACKING: dict[str, set[str]] = {
    "run": set(), "compare": {"seed"}, "sweep": {"seed", "workers", "checkpoint_every"},
}  # fmt: skip


def test_run_takes_every_option() -> None:
    assert set(inspect.signature(graphfed.run).parameters) - OUTSIDE == set(FIELDS)


@pytest.mark.parametrize(
    "function",
    [graphfed.run, graphfed.deploy, graphfed.inspect, learn_policy],
    ids=["run", "deploy", "inspect", "learn_policy"],
)
def test_an_option_has_one_type_and_one_default_everywhere(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    taken = [name for name in FIELDS if name in parameters and parameters[name].kind is KEYWORD_ONLY]
    assert len(taken) >= 5
    for name in taken:
        assert parameters[name].default == FIELDS[name].default, name
        assert parameters[name].annotation == TYPES[name], name


def test_make_config_refuses_what_is_no_option() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'lr'"):
        make_config("fedavg", lr=0.1)


def test_the_defaults_pass_the_checks_of_the_declaration() -> None:
    assert checked_options({"method": "fedavg"}) == RunOptions(method="fedavg")


def test_a_config_file_has_the_options_as_its_keys(tmp_path: Path) -> None:
    texts = {"method": "fedavg", "data": "cora", "partition": "louvain", "data_dir": ".", "out": "runs/a"}
    values: dict[str, Any] = {**dict.fromkeys(OPTIONS, 1), "task": "classification", **texts}
    values |= {"split": "x", "device": "x", "runtime": "processes", "placement": "stacked"}
    path = tmp_path / "run.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in values.items()))
    assert read_config(path) == {**values, "set": {}}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_the_options_of_a_run(command: str) -> None:
    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    names = {parameter.name for parameter in parameters if parameter.param_type_name == "option"}
    assert names - {"help"} == FIELDS.keys() - LACKING[command] | COMMANDS[command]

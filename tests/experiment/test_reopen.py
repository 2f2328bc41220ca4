"""A run's folder names what it was asked and what it trained on, and refuses anything else."""

import json
from pathlib import Path

import pytest

import graphfed as gf
from graphfed.data.datasets import load
from graphfed.errors import InputError
from graphfed.experiment.reopen import reopen


def test_a_run_reopens_with_the_same_config_and_the_same_inputs(tmp_path: Path):
    result = gf.run(
        "fedgcn", data="social", rounds=1, clients=3, seed=5, partition="label_skew", out=tmp_path / "run",
        settings={"hops": 1, "lr": 0.125, "data.num_nodes": 1800, "partition.alpha": 0.25, "split_seed": 9},
    )  # fmt: skip
    config, inputs = reopen(tmp_path / "run")
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert config.to_json() == manifest["config"]
    assert inputs.hashes == result.hashes


def test_data_from_python_must_be_given_again(tmp_path: Path):
    graph = load("social", num_nodes=1800)
    gf.run("fedavg", data=graph, rounds=1, clients=2, out=tmp_path / "run")
    with pytest.raises(InputError, match="pass it again"):
        reopen(tmp_path / "run")
    _, inputs = reopen(tmp_path / "run", data=graph)
    assert inputs.graph is graph


def test_other_data_than_the_runs_is_refused(tmp_path: Path):
    gf.run("fedavg", data=load("social", num_nodes=1800), rounds=1, clients=2, out=tmp_path / "run")
    with pytest.raises(InputError, match="the data is not the one the run"):
        reopen(tmp_path / "run", data=load("social", num_nodes=1801))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"config": {}, "hashes": {}, "seeds": {}}', '{"config": {"training": 3}}']
)
def test_a_damaged_manifest_is_refused_in_one_line(tmp_path: Path, content: str):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json"):
        reopen(tmp_path)

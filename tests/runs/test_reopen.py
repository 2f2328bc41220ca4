"""A run's folder names what it was asked and what it trained on, and refuses anything else."""

import dataclasses
import json
from pathlib import Path

import pytest

import graphfed as gf
from graphfed.data.datasets import load
from graphfed.errors import InputError
from graphfed.runs.config import make_config
from graphfed.runs.reopen import config_from_json, reopen


def test_a_run_reopens_with_the_same_config_and_the_same_inputs(tmp_path: Path):
    result = gf.run(
        "fedgcn", data="social", rounds=1, clients=3, seed=5, partition="label_skew", out=tmp_path / "run",
        settings={"hops": 1, "lr": 0.125, "data.num_nodes": 1800, "partition.alpha": 0.25, "split_seed": 9},
    )  # fmt: skip
    config, inputs = reopen(tmp_path / "run")
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert config.to_json() == manifest["config"]
    assert inputs.hashes == result.hashes


def test_every_field_of_a_run_reaches_a_process_that_gets_it_as_plain_values(tmp_path: Path):
    """Over all fields of the config, each with another value than its default; a new field is among them."""
    config = make_config(
        "fedgcn", data="social", clients=3, partition="label_skew", split="random:0.5,0.25,0.25", seed=5,
        runtime="processes", workers=2, device="cpu", threads=3, checkpoint_every=7, data_dir=tmp_path,
        settings={
            "hops": 1, "data.num_nodes": 300, "partition.alpha": 0.25, "partition_seed": 8, "split_seed": 9,
        },
    )  # fmt: skip
    again = config_from_json(json.loads(json.dumps(config.to_json())), tmp_path)
    default = make_config("fedavg", data="digits")
    # What has one value in this runtime, or another one only with a file.
    alike = {"task", "partition_file", "placement", "device"}
    assert again.data_source.source == config.data_source.source
    for field in dataclasses.fields(config):
        if field.name == "data_source":  # it has functions
            continue
        assert getattr(again, field.name) == getattr(config, field.name), field.name
        if field.name not in alike:
            assert getattr(config, field.name) != getattr(default, field.name), field.name


def test_data_from_python_must_be_given_again(tmp_path: Path):
    graph = load("social", num_nodes=1800)
    gf.run("fedavg", data=graph, rounds=1, clients=2, out=tmp_path / "run")
    with pytest.raises(InputError, match="pass it again"):
        reopen(tmp_path / "run")
    _, inputs = reopen(tmp_path / "run", data=graph)
    assert inputs.graph is graph


def test_other_data_than_the_runs_is_refused(tmp_path: Path):
    gf.run("fedavg", data=load("social", num_nodes=1800), rounds=1, clients=2, out=tmp_path / "run")
    with pytest.raises(InputError, match="the data is not the one that the run"):
        reopen(tmp_path / "run", data=load("social", num_nodes=1801))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"config": {}, "hashes": {}, "seeds": {}}', '{"config": {"training": 3}}']
)
def test_a_damaged_manifest_is_refused_in_one_line(tmp_path: Path, content: str):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json"):
        reopen(tmp_path)

"""A partition that was saved is a partition like any other: runs on it are those on the one it was made from,
and a file that does not fit is refused."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphfed
from graphfed.cli import main
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.partition import Partition, partition
from graphfed.errors import InputError
from graphfed.files import read_tensors, write_tensors
from graphfed.runs.reopen import read_manifest, reopen
from graphfed.runs.run import Result
from graphfed.studies.comparison import Comparison
from graphfed.studies.sweep import Sweep


@pytest.fixture(scope="module")
def digits() -> Graph:
    graph = load("digits")
    assert isinstance(graph, Graph)
    return graph


@pytest.fixture
def saved(digits: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Partition:
    """Four clients in clients.safetensors, in the folder one works in."""
    monkeypatch.chdir(tmp_path)
    made = partition(digits, "label_dirichlet", 4, 7, beta=1.0)
    made.save("clients.safetensors")
    return made


OPTIONS: dict[str, Any] = {"rounds": 2, "threads": 1}
HERE = Path("clients.safetensors")


def test_a_run_on_the_file_is_the_run_on_the_options_it_was_made_by(saved: Partition) -> None:
    from_file = graphfed.run("fedavg", partition="clients.safetensors", out="run", **OPTIONS)
    made = graphfed.run(
        "fedavg", clients=4, partition="label_dirichlet", out=False,
        settings={"partition.beta": 1.0, "partition_seed": 7}, **OPTIONS,
    )  # fmt: skip
    assert from_file.hashes == made.hashes
    assert (from_file.test, from_file.bytes) == (made.test, made.bytes)
    assert (from_file.clients, from_file.partition) == (4, "label_dirichlet")
    content = read_manifest("run")["partition"]
    assert (content["file"], content["options"], content["seed"]) == ("clients.safetensors", saved.options, 7)


def test_a_file_without_name_seed_and_options_has_their_defaults_in_a_run(saved: Partition) -> None:
    tables, metadata = read_tensors(HERE)
    kept = {
        key: value
        for key, value in json.loads(metadata["partition"]).items()
        if key not in ("name", "seed", "options")
    }
    write_tensors(HERE, tables, {"partition": json.dumps(kept)})
    result = graphfed.run("fedavg", partition=HERE, out="run", **OPTIONS)
    assert (result.partition, result.hashes["partition"]) == ("assignment", saved.hash)
    content = read_manifest("run")
    assert (content["partition"]["options"], content["partition"]["seed"]) == ({}, 0)


def test_every_seed_of_a_comparison_has_the_partition_of_the_file_and_it_can_be_gone_on_with(
    saved: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = graphfed.compare(
        ["fedavg"], seeds=[0, 1], partition="clients.safetensors", out="whole", **OPTIONS
    )
    assert {h for row in whole.rows for h in row["hashes"]["partition"]} == {saved.hash}
    graphfed.compare(["fedavg"], seeds=[0, 1], partition="clients.safetensors", out="part", **OPTIONS)
    for name in ("comparison.json", "fedavg-seed1/result.json"):
        (Path("part") / name).unlink()
    again = graphfed.resume("part")
    assert again.rows[0]["test"] == whole.rows[0]["test"]


def test_a_run_is_used_from_another_folder_as_long_as_the_file_is_the_same(
    saved: Partition, digits: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path().absolute()
    graphfed.run("isolated", partition="clients.safetensors", out="run", **OPTIONS)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert main(["predict", str(here / "run"), "--out", "p.csv"]) == 0
    partition(digits, "random", 4, 0).save(here / "clients.safetensors")
    with pytest.raises(InputError, match="the partition is not the one that the run in"):
        reopen(here / "run")


def test_a_run_is_used_and_gone_on_with_when_the_file_is_gone(saved: Partition) -> None:
    whole = graphfed.run("fedavg", partition="clients.safetensors", out="whole", **OPTIONS)
    stopped = {**OPTIONS, "rounds": 6, "checkpoint_every": 0}
    graphfed.run("fedavg", partition="clients.safetensors", out="part", **stopped)
    rest = graphfed.run("fedavg", partition="clients.safetensors", out=False, **stopped)
    HERE.unlink()
    config, inputs = reopen("whole")
    assert (inputs.partition.hash, inputs.hashes) == (saved.hash, whole.hashes)
    assert config.clients == 4
    assert main(["predict", "whole", "--out", "p.csv"]) == 0
    for name in ("result.json", "metrics.jsonl"):
        (Path("part") / name).unlink()
    shutil.rmtree("part/checkpoint/round-00000006")
    again = graphfed.resume("part")
    assert isinstance(again, Result)
    assert (again.test, again.bytes, again.hashes) == (rest.test, rest.bytes, rest.hashes)
    assert read_manifest("part")["partition"]["file"] == "clients.safetensors"


def test_runs_of_a_comparison_share_one_copy_and_go_on_with_it(saved: Partition) -> None:
    whole = graphfed.compare(["fedavg"], seeds=[0, 1], partition="clients.safetensors", out="c", **OPTIONS)
    assert [str(path) for path in Path("c").rglob("partition.safetensors")] == ["c/partition.safetensors"]
    HERE.unlink()
    Path("c/comparison.json").unlink()
    Path("c/fedavg-seed1/result.json").unlink()
    shutil.rmtree("c/central-seed1")
    again = graphfed.resume("c")
    assert isinstance(again, Comparison)
    assert [row["test"] for row in again.rows] == [row["test"] for row in whole.rows]
    for run in ("fedavg-seed1", "central-seed1"):
        assert reopen(f"c/{run}")[1].partition.hash == saved.hash


def test_a_sweep_goes_on_when_the_file_is_gone(saved: Partition) -> None:
    grid = {"lr": [0.1, 0.5]}
    whole = graphfed.sweep(
        "fedavg", grid=grid, seeds=[0], partition="clients.safetensors", out="s", **OPTIONS
    )
    assert [str(path) for path in Path("s").rglob("partition.safetensors")] == ["s/partition.safetensors"]
    HERE.unlink()
    for name in ("sweep.json", "trials/0002.json", "chosen-seed0/result.json"):
        (Path("s") / name).unlink()
    again = graphfed.resume("s")
    assert isinstance(again, Sweep)
    assert (again.chosen["settings"], again.chosen["test"]) == (
        whole.chosen["settings"],
        whole.chosen["test"],
    )
    assert reopen("s/chosen-seed0")[1].partition.hash == saved.hash


COPY = Path("run/partition.safetensors")
LOST: dict[str, tuple[Callable[[Graph], Any], str]] = {
    "no copy": (lambda _: COPY.unlink(), r"the partition file .*clients.safetensors does not exist"),
    "another partition": (
        lambda g: partition(g, "random", 4, 0).save(COPY),
        "the partition is not the one that the run in run had",
    ),
    "another number of clients": (
        lambda g: partition(g, "random", 3, 0).save(COPY), "partition.safetensors has 3 clients, not 4"),
    "a part of it": (
        lambda _: COPY.write_bytes(COPY.read_bytes()[:-1000]), "run/partition.safetensors is not a part"),
    "a folder": (
        lambda _: (COPY.unlink(), COPY.mkdir()), r"the partition file .*clients.safetensors does not exist"),
}  # fmt: skip


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_refused(saved: Partition) -> None:
    HERE.chmod(0)
    with pytest.raises(InputError, match=r"clients.safetensors cannot be read: Permission denied"):
        graphfed.run("fedavg", partition=HERE, out=False)


@pytest.mark.parametrize("case", LOST)
def test_without_the_file_a_copy_that_is_not_the_runs_partition_is_refused(
    case: str, saved: Partition, digits: Graph
) -> None:
    graphfed.run("isolated", partition="clients.safetensors", out="run", **OPTIONS)
    HERE.unlink()
    change, content = LOST[case]
    change(digits)
    Path("run/result.json").unlink()
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for use in (reopen, graphfed.resume):
        with pytest.raises(InputError, match=content):
            use("run")
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_a_copy_is_kept_only_of_a_partition_from_a_file(saved: Partition) -> None:
    graphfed.run("isolated", clients=4, out="made", **OPTIONS)
    assert not Path("made/partition.safetensors").exists()
    graphfed.run("isolated", partition="clients.safetensors", out="read", **OPTIONS)
    assert Path("read/partition.safetensors").read_bytes() == HERE.read_bytes()


def test_a_config_names_the_file_from_its_own_folder(
    saved: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("e.yaml").write_text("method: fedavg\nrounds: 1\npartition: clients.safetensors\n")
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    assert main(["run", "--config", "../e.yaml", "--out", "run", "--no-report"]) == 0
    assert "4 clients, label_dirichlet" in capsys.readouterr().out


REFUSED: dict[str, tuple[Callable[[], Any] | None, list[str], str]] = {
    "another graph": (None, ["--data", "social"], "in clients.safetensors was made for a graph with hash"),
    "another number of clients": (None, ["--clients", "5"], "has 4 clients, not 5; leave the number of"),
    "an option of a partition": (None, ["--set", "partition.beta=2"], "has no setting 'partition.beta'"),
    "a seed": (None, ["--set", "partition_seed=3"], "partition_seed has no use here"),
    "no file": (HERE.unlink, [], "the partition file clients.safetensors does not exist; write one with"),
    "a folder": (lambda: (HERE.unlink(), HERE.mkdir()), [], "file clients.safetensors is a folder"),
    "a pipe": (lambda: (HERE.unlink(), os.mkfifo(HERE)), [], "file clients.safetensors is no regular file"),
    "a name that is too long": (None, ["--partition", "s" * 300 + ".s"], "(File name too long)"),
    "a file in a file": (
        None, ["--partition", f"{HERE}/s.safetensors"],
        f"partition file {HERE}/s.safetensors does not exist"),
    "a path without ending": (
        None, ["--partition", "./clients"], "the partition file clients does not exist"),
    "an empty file": (lambda: HERE.write_bytes(b""), [], "clients.safetensors is not a partition file"),
    "text": (lambda: HERE.write_text("client,node\n0,1\n"), [],
        "clients.safetensors is not a partition file"),
    "a file cut short": (
        lambda: HERE.write_bytes(HERE.read_bytes()[:-1000]), [],
        "clients.safetensors is not a partition file"),
    "half a header": (lambda: HERE.write_bytes(HERE.read_bytes()[:60]), [], "is not a partition file"),
    "a header of 10^18 bytes": (
        lambda: HERE.write_bytes((10**18).to_bytes(8, "little") + b"{}"), [], "is not a partition file"),
    "a bit that flipped": (
        lambda: HERE.write_bytes(HERE.read_bytes()[:-1] + bytes([HERE.read_bytes()[-1] ^ 1])),
        [], "clients.safetensors is damaged"),
    "a model": (
        lambda: graphfed.run("fedavg", out="r", **OPTIONS) and Path("r/model.safetensors").replace(HERE), [],
        "clients.safetensors is not a partition file"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_does_not_fit_is_refused_in_one_line_and_nothing_is_written(
    case: str, saved: Partition, capsys: pytest.CaptureFixture[str]
) -> None:
    change, arguments, content = REFUSED[case]
    if change is not None:
        change()
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    command = ["run", "fedavg", "--rounds", "1", "--partition", str(HERE), "--out", "new", *arguments]
    assert main(command) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert content in error
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("options", {"beta": math.inf}),
        ("options", {"beta": math.nan}),
        ("options", {"kind": "\x1b[2J"}),
        ("options", {"k" * 300: 1}),
        ("name", "louvain\nerror: no"),
        ("name", ""),
        ("name", "l" * 300),
        ("seed", 2**63),
        ("num_clients", True),
        ("graph_hash", 5),
    ],
)
@pytest.mark.parametrize("command", ["data inspect digits --json", "run fedavg --rounds 1 --out new"])
def test_a_description_that_cannot_be_shown_or_written_as_json_is_refused(
    key: str, value: Any, command: str, saved: Partition, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, metadata = read_tensors(HERE)
    description = json.loads(metadata["partition"])
    write_tensors(HERE, tables, {"partition": json.dumps({**description, key: value})})
    assert main([*command.split(), "--partition", str(HERE)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("error: ")
    assert key in error
    assert error.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == [HERE.name]


def test_a_name_that_is_neither_file_nor_partition_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        InputError, match="unknown partition 'labels_dirichlet'; did you mean 'label_dirichlet'"
    ):
        graphfed.run("fedavg", partition="labels_dirichlet", out=False)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_refused_or_is_the_same_partition(saved: Partition, data: st.DataObject) -> None:
    """Cut anywhere, any few bytes changed anywhere: never another partition, never another error."""
    whole = bytearray(HERE.read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(0, 3))):
        # Half of the changes hit the header, which is a small part of the file.
        place = data.draw(st.integers(0, header - 1) | st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)) | st.just(len(whole)))
    Path("hurt.safetensors").write_bytes(whole[:cut])
    found, output = saved, "hurt.safetensors"
    try:
        found = Partition.load("hurt.safetensors")
    except InputError as error:
        output = str(error)
    assert found.hash == saved.hash
    assert "hurt.safetensors" in output
    assert "\n" not in output

"""`graphfed data`: what is reported of a graph is true, and what is written is whole."""

import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import graphfed
from graphfed.cli import main
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.graphs.overview import overview
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import Partition, partition
from graphfed.data.sensors.overview import sensor_facts, sensor_overview
from graphfed.data.sensors.series import Sensors
from graphfed.deployment.site_files import write_cohorts
from graphfed.errors import InputError
from graphfed.federation.cohort import Names, make_cohort, save_cohort
from graphfed.files import read_tensors
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.runs.inspect import inspect
from graphfed.tasks.graphs.client_data import read_client


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def graph(**changes: Any) -> Graph:
    rng = np.random.default_rng(0)
    n = 60
    part = np.arange(n) % 3
    y = rng.integers(0, 2, n)
    edges = rng.integers(0, n, (2, 120))
    made = make_graph("toy", rng.normal(size=(n, 3)), y, edges, num_classes=2)
    split = Split("own", part == 0, part == 1, part == 2)
    return dataclasses.replace(made, **{"split": split, **changes})


SITES = {"clients": np.arange(60) % 3, "client_names": ("a [bold]", "b", "c")}
WORLDS: dict[str, tuple[Graph, dict[str, Any]]] = {
    "plain": (graph(), {"clients": 3}),
    "clients of its own": (graph(**SITES), {}),
    "overlapping": (graph(), {"clients": 3, "partition": "overlapping"}),
    "copies of nodes": (graph(), {"clients": 3, "partition": "edges_uniform"}),
    "weights": (graph(edge_weight=np.linspace(0.5, 2, graph().num_edges, dtype=np.float32)), {"clients": 2}),
    "no labels": (graph(y=np.full(60, -1)), {"clients": 2, "partition": "random"}),
    "no features": (graph(x=None), {"clients": 2}),
    "nothing to test on": (
        graph(split=Split("own", *(np.arange(60) % 2 == part for part in (0, 1, 2)))), {"clients": 2}),
}  # fmt: skip


@pytest.mark.parametrize("world", WORLDS)
def test_a_method_can_use_a_graph_exactly_if_a_run_is_not_refused_and_for_that_reason(world: str) -> None:
    data, options = WORLDS[world]
    if "clients" in options:  # methods that choose a partition themselves would choose another one
        options = {"partition": "label_dirichlet", **options}
    found = inspect(data, **options)
    assert list(found.methods) == [m for m in METHODS if CLASSIFICATION in get_method(m).tasks]
    for method, problem in found.methods.items():
        if problem is None:
            graphfed.run(method, data=data, rounds=1, threads=1, out=False, **options)
        else:
            with pytest.raises(InputError) as refused:
                graphfed.run(method, data=data, rounds=1, threads=1, out=False, **options)
            assert str(refused.value) == problem
    some = {"overlapping", "plain", "clients of its own", "copies of nodes", "weights", "no features"}
    assert any(problem is None for problem in found.methods.values()) is (world in some)


def test_what_is_inspected_is_what_a_run_trains_on() -> None:
    data, options = WORLDS["plain"]
    found = inspect(data, settings={"partition.beta": 1.0, "partition_seed": 3}, **options)
    ran = graphfed.run(
        "fedavg", data=data, rounds=1, threads=1, out="run",
        settings={"partition.beta": 1.0, "partition_seed": 3}, **options,
    )  # fmt: skip
    content = found.to_json()
    assert (content["hash"], content["partition"]["hash"]) == (ran.hashes["data"], ran.hashes["partition"])
    kept = json.loads(Path("run/overview.json").read_text())
    assert {key: json.loads(json.dumps(content[key])) for key in kept} == kept


def test_without_clients_of_its_own_a_graph_is_not_partitioned_unless_asked() -> None:
    alone, partitioned = inspect("digits"), inspect("digits", clients=3)
    assert alone.partition is None
    assert partitioned.partition is not None
    assert partitioned.partition.num_clients == 3
    own = inspect(WORLDS["clients of its own"][0])
    assert own.partition is not None
    assert [row["name"] for row in own.overview["clients"]] == ["a [bold]", "b", "c"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["digits", "--clients", "30", "--partition", "label_dirichlet", "--set", "partition.beta=0.5"],
        ["social", "--set", "data.num_nodes=500", "--partition", "ego"],
        ["roads"],
        ["long.yaml"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_page_fits_a_terminal_and_its_numbers_are_those_of_json(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a very long name of a client, or of a class, as people write it in tables [red]x[/red] " * 2
    rows = "".join(f'v{i},"{name}{i % 3}",{i},"{name}{i % 2}"\n' for i in range(30))
    Path("nodes.csv").write_text("id,client,f,label\n" + rows)
    Path("edges.csv").write_text("source,target\nv1,v2\n")
    Path("long.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\n")
    assert main(["data", "inspect", *arguments]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    assert main(["data", "inspect", *arguments, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    sensors = content.get("kind") == "sensors"
    for count in (
        (content["steps"], content["summary"]["edges"], content["windows"]["train"])
        if sensors
        else (content["nodes"], content["edges"], content["num_clients"])
    ):
        assert f"{count:,}" in page
    if arguments == ["long.yaml"]:
        assert "[red]x[/red]" in page, "names are not markup"


def test_a_set_whose_features_are_incomplete_is_looked_at_without_them(real_data: Path) -> None:
    found = inspect("lastfm")
    assert found.overview["nodes"] == 7624
    assert found.overview["features"] == 0
    assert all("does not have the features" in str(problem) for problem in found.methods.values())


def test_sensors_are_counted_as_a_loop_over_them_counts() -> None:
    found = inspect("roads", settings={"data.sensors": 12, "data.weeks": 1})
    content, sensors = found.overview, found.data
    assert isinstance(sensors, Sensors)
    summary = content["summary"]
    assert (content["kind"], content["steps"], len(content["sensors"]["ids"])) == ("sensors", 7 * 288, 12)
    assert content["sensors"]["missing"] == pytest.approx([sensors.missing[:, s].mean() for s in range(12)])
    assert summary["end"] == "2024-01-07T23:55:00"
    # Run by run, sensor by sensor.
    longest = 0
    for s in range(12):
        run = 0
        for gone in sensors.missing[:, s]:
            run = run + 1 if gone else 0
            longest = max(longest, run)
    assert summary["longest_gap"]["steps"] == longest > 0
    weights = sensors.adjacency.toarray()
    edges = {(i, j): weights[i, j] for i in range(12) for j in range(12) if i != j and weights[i, j]}
    assert {(i, j): pytest.approx(w, abs=1e-6) for i, j, w in content["edges"]} == edges
    assert summary["edges"] == len(edges)
    assert content["windows"] == {
        "lags": 12, "horizon": 12, "every": 1, "train": 1395, "val": 199, "test": 399,
    }  # fmt: skip
    with pytest.raises(InputError, match="each of which is a client"):
        inspect("roads", clients=3)


def test_a_gap_at_the_end_and_a_lone_sensor_are_reported() -> None:
    missing = np.zeros((30, 3), dtype=bool)
    missing[25:, 1] = missing[2:6, 2] = True
    sensors = Sensors(
        name="made", readings=np.ones((30, 3), np.float32) * ~missing, missing=missing,
        adjacency=sp.csr_matrix(np.array([[1, 0, 0.5], [0, 1, 0], [0, 0, 1]], np.float32)), position=None,
        ids=("a", "b", "c"), start="2024-01-01T00:00:00", step_minutes=60, geographic=True, quantity="flow",
    )  # fmt: skip
    found = inspect(sensors, settings={"lags": 2, "horizon": 3})
    gap = {"sensor": "b", "start": "2024-01-02T01:00:00", "steps": 5}
    assert found.overview["summary"]["longest_gap"] == gap
    facts = dict(sensor_facts(found.overview))
    assert facts["longest gap"] == "5 h 0 min: sensor b from 2024-01-02 01:00"
    assert facts["sensors without a neighbour"] == "1"
    assert facts["connected components"] == "2, the largest with 2 of the sensors"
    assert facts["locations"] == "none"
    whole = dataclasses.replace(sensors, missing=np.zeros_like(missing))
    assert sensor_overview(whole, None)["summary"]["longest_gap"] is None


def test_only_the_heaviest_edges_of_many_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    sensors = load("roads", sensors=30, weeks=1)
    assert isinstance(sensors, Sensors)
    every = sensor_overview(sensors, None)["edges"]
    monkeypatch.setattr("graphfed.data.sensors.overview.MAX_EDGES", 10)
    content = sensor_overview(sensors, None)
    assert sorted(w for _, _, w in content["edges"]) == sorted(w for _, _, w in every)[-10:]
    assert content["summary"]["edges"] == len(every)


def test_windows_that_do_not_fit_are_reported_and_so_are_settings_that_change_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["data", "inspect", "roads", "--set", "data.weeks=1"]
    assert main([*command, "--set", "horizon=5000"]) == 0
    assert "one window of 12 lags and a horizon of 5000" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--set", "horizon=24", "--split", "inductive:0.5", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["windows"]["horizon"], content["split"]) == (24, "inductive:0.5")
    assert sum(content["sensors"]["observed"]) == 30
    assert main([*command, "--set", "lr=1"]) == 2
    assert "nothing is trained here" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_sensors_are_drawn_with_and_without_locations(
    ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r.csv").write_text("time,a,b\n2024-01-01 00:00,1,2\n2024-01-01 00:05,,3\n2024-01-01 00:10,4,5\n")
    Path("d.csv").write_text("from,to,distance\na,b,1\na,a,0\n")
    Path("l.csv").write_text("id,latitude,longitude\na,34,-118\nb,34.1,-118.1\n")
    for name, more in (("circle", ""), ("map", "locations: l.csv\n")):
        Path(f"{name}.yaml").write_text(f"readings: r.csv\ndistances: d.csv\n{more}")
        assert main(["data", "inspect", f"{name}.yaml", "--out", f"{name}.{ending}"]) == 0
        assert capsys.readouterr().out.endswith(f"picture: {name}.{ending}\n")
        drawn = Path(f"{name}.{ending}").read_bytes()
        if ending == "png":
            assert drawn.startswith(b"\x89PNG")
        else:
            assert "2 sensors, 3 steps of 5 minutes" in drawn.decode()
            assert ("kilometres north" in drawn.decode()) == (name == "map")


# ---- pictures and partitions -------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture_is_drawn_into_a_new_file(ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "inspect", "digits", "--clients", "4", "--out", f"d.{ending}"]
    assert main(command) == 0
    assert capsys.readouterr().out.endswith(f"picture: d.{ending}\n")
    drawn = Path(f"d.{ending}").read_bytes()
    if ending == "png":
        assert drawn.startswith(b"\x89PNG")
    else:
        for text in ("digits: 1,797 nodes", "neighbours of a node", "cross-client edge", "client"):
            assert text in drawn.decode()
    assert main(command) == 2
    assert Path(f"d.{ending}").read_bytes() == drawn


@pytest.mark.parametrize("file", ["d.jpg", "d", "away/d.png", f"{'d' * 60}/{'d' * 300}.png"])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_loaded(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("graphfed.runs.inspect.inspect", None)
    assert main(["data", "inspect", "digits", "--out", file]) == 2
    error = capsys.readouterr().err
    assert file[:50] in error
    assert error.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_partition_is_written_for_any_number_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "partition", "digits", "--clients", "4", "--set", "partition.beta=1", "--seed", "5"]
    assert main([*command, "--out", "s.safetensors"]) == 0
    page = capsys.readouterr().out
    digits = load("digits")
    assert isinstance(digits, Graph)
    made = partition(digits, "label_dirichlet", 4, 5, beta=1.0)
    saved = Partition.load("s.safetensors")
    assert (saved.hash, saved.name, saved.seed, saved.options) == (made.hash, made.name, 5, made.options)
    content = overview(digits, make_split(digits, "default", 5), made)
    for row in content["clients"]:
        assert f"{row['nodes']}" in page
    assert "--partition s.safetensors" in page
    ran = graphfed.run("fedavg", partition="s.safetensors", rounds=1, threads=1, out=False)
    assert ran.hashes["partition"] == made.hash
    before = Path("s.safetensors").read_bytes()
    assert main([*command, "--out", "s.safetensors"]) == 2
    assert "s.safetensors is there already" in capsys.readouterr().err
    assert Path("s.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--out", "s.npz"], "s.npz must end in .safetensors"),
        (
            ["digits", "--out", "no/s.safetensors"],
            "no/s.safetensors cannot be written: there is no folder no",
        ),
        (["roads", "--out", "s.safetensors"], "and every sensor is a client"),
        (["digits", "--clients", "0", "--out", "s.safetensors"], "clients=0 cannot be used"),
        (["digits", "--partition", "colunm", "--out", "s.safetensors"], "did you mean 'column'"),
        (
            ["digits", "--partition", "column", "--out", "s.safetensors"],
            "needs data that states the client of each node",
        ),
        (["digits"], "Missing option '--out'"),
        (["digits", "--set", "lr=0.1", "--out", "s.safetensors"], "lr is a setting of training"),
        (
            ["digits", "--set", "partition.alpha=1", "--out", "s.safetensors"],
            "there is no setting 'partition.alpha' of the data; it is a setting of the partition label_skew",
        ),
        (["digits", "--set", "partition.betta=1", "--out", "s.safetensors"], "mean 'partition.beta'"),
        (
            ["digits", "--partition", "luvain", "--set", "partition.beta=1", "--out", "s.safetensors"],
            "unknown partition 'luvain'; did you mean 'louvain'",
        ),
        (["nowhere.yaml", "--out", "s.safetensors"], "nowhere.yaml cannot be read"),
    ],
)
def test_a_partition_that_cannot_be_made_leaves_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "partition", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert message in error
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("command", "file"), [("partition", "s.safetensors"), ("inspect", "s.svg")])
def test_what_the_disk_refuses_leaves_no_file(
    command: str, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if str(target).endswith(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    assert main(["data", command, "digits", "--out", file]) == 1
    assert f"{file} could not be written: No space left" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_a_setting_of_the_partition_asks_for_clients_and_the_page_says_how_to_draw(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = inspect("digits", settings={"partition.beta": 1.0})
    assert found.partition is not None
    assert found.partition.options["beta"] == 1.0
    assert main(["data", "inspect", "digits"]) == 0
    assert capsys.readouterr().out.endswith("draw a picture: --out FILE.svg (or .png)\n")
    assert main(["data", "inspect", "roads"]) == 0
    assert capsys.readouterr().out.endswith("draw a picture: --out FILE.svg (or .png)\n")


# ---- a file for each client
# ----------------------------------------------------------------------------------


def test_every_client_gets_a_file_with_what_the_partition_gives_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["data", "export", "digits", "--clients", "3", "--partition", "random", "--seed", "4"]
    assert main([*command, "--split", "random:0.5,0.2,0.3", "--out", "clients"]) == 0
    page = capsys.readouterr().out
    digits = load("digits")
    assert isinstance(digits, Graph)
    made, split = partition(digits, "random", 3, 4), make_split(digits, "random:0.5,0.2,0.3", 4)
    assert sorted(path.name for path in Path("clients").iterdir()) == [
        f"client{k}.safetensors" for k in range(3)
    ]
    for k in range(3):
        path = Path(f"clients/client{k}.safetensors")
        assert f"client{k}: {path}\n" in page
        save_cohort(
            make_cohort(digits, split, made, [k]),
            Path("again"),
            Names(digits.feature_names, digits.class_names),
        )
        arrays, names = read_tensors(path)
        again, known = read_tensors(Path("again"))
        assert names == known
        assert {*arrays} == {*again}
        for column, array in arrays.items():
            np.testing.assert_array_equal(array, again[column])
    assert list(Path().glob(".*")) == []


def test_files_are_named_after_the_clients_of_the_data_whatever_they_are_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["a/../b", "A.. b", "a-..-B", "ärzte", "x" * 300]
    rows = "".join(f'v{i},"{name}",{i},{i % 2},{part}\n' for i, (name, part) in enumerate(
        (name, part) for name in names for part in ("train", "val", "test")))  # fmt: skip
    Path("nodes.csv").write_text("id,client,f,label,split\n" + rows)
    Path("edges.csv").write_text("source,target\nv1,v2\nv1,v9\n")
    Path("d.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\n")
    assert main(["data", "export", "d.yaml", "--out", "clients"]) == 0
    page = capsys.readouterr().out
    files = sorted(path.name for path in Path("clients").iterdir())
    assert len({name.lower() for name in files}) == len(names)
    assert all(f"clients/{name}\n" in page for name in files)
    assert "ärzte.safetensors" in files
    assert max(map(len, files)) < 70
    roster = [line.partition(": clients/")[0] for line in page.splitlines() if ": clients/" in line]
    assert sorted(roster) == sorted(names)
    for line in page.splitlines():
        client, found, file = line.partition(": clients/")
        if found:
            path = Path("clients", file)
            data = read_client(path, split="default", split_seed=0, roster=roster, client=client)
            assert data.schema.class_names == ("0", "1")


def test_a_folder_that_exists_is_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("clients").mkdir()
    assert main(["data", "export", "digits", "--out", "clients"]) == 2
    assert capsys.readouterr().err == "error: clients already exists; remove it, or give another folder\n"
    assert list(Path("clients").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["digits", "--out", "no/clients"],
            "no/clients cannot be made: no is not a folder that you may write to",
        ),
        (["roads", "--out", "clients"], "and every sensor is a client"),
        (["digits", "--partition", "colunm", "--out", "clients"], "did you mean 'column'"),
        (["digits", "--set", "lr=0.1", "--out", "clients"], "lr is a setting of training"),
        (["digits", "--split", "public:1", "--out", "clients"], "'public' takes no numbers"),
        (["digits", "--split", "per_class:999", "--out", "clients"], "write three counts"),
        (["digits"], "Missing option '--out'"),
    ],
)
def test_what_cannot_be_exported_leaves_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "export", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert message in error
    assert list(Path().iterdir()) == []


def test_a_graph_without_features_is_not_exported() -> None:
    plain = graph(x=None)
    with pytest.raises(InputError, match="'toy' has no features"):
        write_cohorts(
            plain, make_split(plain, "public", 0), partition(plain, "random", 2, 0), Path("clients")
        )
    assert list(Path().iterdir()) == []


def test_what_the_disk_refuses_leaves_no_file_of_any_client(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if str(target).endswith("client1.safetensors"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    assert main(["data", "export", "digits", "--clients", "3", "--out", "clients"]) == 1
    assert "clients could not be written: No space left" in capsys.readouterr().err
    assert list(Path().iterdir()) == []

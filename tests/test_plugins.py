"""Plug-ins: found by name without being imported, refused where names clash, harmless where broken."""

import importlib.metadata
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from fake_plugins import METHOD, forget_plugins, install, write

import graphfed
from graphfed import plugins
from graphfed.audit.registry import CHECKS
from graphfed.cli import main, values
from graphfed.data.datasets import DATASETS, available
from graphfed.data.partitions.partition import PARTITIONS
from graphfed.errors import DONE, UNUSABLE, InputError
from graphfed.methods.registry import METHODS, get_method
from graphfed.plugins import check_plugins, load_plugin
from graphfed.tasks.run_options import DATA_SETS

__all__ = ["forget_plugins"]

EXAMPLE = Path(__file__).parents[1] / "examples/plugin/graphfed_example"

#: A data set, a partition and a check in one file.
OTHERS = """
from graphfed.audit.base import Check, Finding
from graphfed.data.datasets import DatasetSpec
from graphfed.data.graphs.social import make_social
from graphfed.data.partitions.partition import PartitionSpec, from_assignment

def small(*, num_nodes: int = 90):
    return make_social(num_nodes=num_nodes, communities=3, features=8)

def in_turn(graph, clients, seed, shift):
    return from_assignment(graph, [(node + shift) % clients for node in range(graph.num_nodes)])

DATASETS = {
    "small": DatasetSpec(
        title="a small social network", task="classification", load=small,
        default_split="random:0.5,0.25,0.25", source="generated", citation="",
    )
}
PARTITIONS = {"in_turn": PartitionSpec(in_turn, {"shift": 0}, "nodes in turn")}
CHECK = Check(
    name="nothing", tests="nothing", attacker="nothing",
    run=lambda run: Finding(result="nothing", baseline="nothing", verdict="nothing", leaks=None),
)
"""


# ---- installed distributions -------------------------------------------------------------------------------


def test_a_method_of_an_installed_distribution_is_found_by_its_name_in_any_case() -> None:
    write("mild_method", METHOD.format(name="mild"))
    install("graphfed-mild", methods={"mild": "mild_method:METHOD"})
    assert get_method("Mild").name == "mild"
    assert "mild" in METHODS
    assert [*METHODS] == [*METHODS.own, "mild"]
    assert str(METHODS.plugin("mild")) == "the plug-in graphfed-mild 1.0"
    assert METHODS.module("mild") == "mild_method"
    with pytest.raises(InputError, match="unknown method 'mildd'; did you mean 'mild'"):
        get_method("mildd")


def test_names_are_listed_and_completed_without_importing_a_plug_in() -> None:
    write("other_things", "raise RuntimeError('imported')")
    install(
        "graphfed-other", methods={"calm": "other_things:A"}, datasets={"tiny": "other_things:B"},
        partitions={"halves": "other_things:C"}, audits={"peek": "other_things:D"},
    )  # fmt: skip
    for registry, name in ((METHODS, "calm"), (DATASETS, "tiny"), (PARTITIONS, "halves"), (CHECKS, "peek")):
        assert name in [*registry]
        assert name in registry
    assert values.method_names("ca") == ["calm"]
    assert values.choices(DATA_SETS, "graphfed.datasets")("ti") == ["tiny"]
    assert "other_things" not in sys.modules


def test_what_graphfed_has_itself_is_found_without_looking_for_plug_ins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looked(**_: str) -> None:
        raise AssertionError("looked for plug-ins")

    plugins._entry_points.cache_clear()
    monkeypatch.setattr(importlib.metadata, "entry_points", looked)
    assert get_method("FedAvg").name == get_method("fedavg").name == "fedavg"
    assert get_method("local").name == "isolated"
    assert DATASETS["digits"].built_in
    assert "louvain" in PARTITIONS
    assert METHODS.plugin("fedavg") is None
    with pytest.raises(AssertionError, match="looked for plug-ins"):
        get_method("fedavgg")


def test_a_name_in_two_distributions_is_refused_with_both() -> None:
    write("mild_method", METHOD.format(name="mild"))
    install("graphfed-mild", methods={"mild": "mild_method:METHOD"})
    install("graphfed-milder", "2.1", methods={"mild": "mild_method:METHOD"})
    with pytest.raises(
        InputError, match=r"method 'mild' is in .*; leave one of them out .* or rename it"
    ) as refusal:
        get_method("mild")
    assert "graphfed-mild 1.0" in str(refusal.value)
    assert "graphfed-milder 2.1" in str(refusal.value)


@pytest.mark.parametrize("taken", ["fedavg", "local"])
def test_a_name_or_an_alias_of_graphfed_s_own_stays_graphfed_s_and_the_list_says_so(
    taken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("mild_method", METHOD.format(name=taken))
    install("graphfed-mild", methods={taken: "mild_method:METHOD"})
    assert get_method(taken).config is not None
    assert METHODS.plugin(taken) is None
    assert [*METHODS] == [*METHODS.own]
    assert [*METHODS.usable()] == [*METHODS.own]
    said = f"method '{taken}' of the plug-in graphfed-mild 1.0 cannot be used: graphfed has one of that name"
    assert said in capsys.readouterr().err


def test_a_broken_plug_in_is_refused_with_its_cause_and_breaks_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("torn_method", "import no_such_library")
    install("graphfed-torn", "3.2", methods={"torn": "torn_method:METHOD"})
    assert main(["run", "torn"]) == UNUSABLE
    error = capsys.readouterr().err
    assert "method 'torn' of the plug-in graphfed-torn 3.2 cannot be loaded: ModuleNotFoundError: " in error
    assert "no_such_library" in error
    assert "Traceback" not in error
    assert main(["methods"]) == DONE
    listed = capsys.readouterr()
    assert "fedavg" in listed.out
    assert "torn" not in listed.out
    assert "warning: method 'torn' of the plug-in graphfed-torn 3.2 cannot be loaded" in listed.err
    # What looks through all methods, as the refusal of a setting does, goes on too.
    assert main(["run", "fedavg", "--set", "momentumm=1"]) == UNUSABLE
    assert "has no setting" in capsys.readouterr().err
    assert METHODS.find("torn") is None


@pytest.mark.parametrize("value", ["not a module", ":", "torn_method:", "torn_method:no.such"])
def test_an_entry_point_that_names_nothing_breaks_its_own_name_only(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("torn_method", "")
    install("graphfed-torn", methods={"torn": value})
    assert main(["methods", "torn"]) == UNUSABLE
    assert "method 'torn' of the plug-in graphfed-torn 1.0 " in capsys.readouterr().err
    assert main(["methods", "fedavg"]) == DONE


def test_something_of_another_kind_or_with_another_name_is_refused() -> None:
    write("odd_method", METHOD.format(name="odd") + "NUMBER = 3\n")
    install("graphfed-odd", methods={"number": "odd_method:NUMBER", "even": "odd_method:METHOD"})
    with pytest.raises(InputError, match=r"'number' of .*graphfed-odd 1.0 must be a Method \(found int\)"):
        get_method("number")
    with pytest.raises(InputError, match=r"'even' of .* calls itself 'odd'; give it one name"):
        get_method("even")


def test_a_name_that_no_command_could_take_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    write("mild_method", METHOD.format(name="mild"))
    install("graphfed-mild", methods={"My-Method": "mild_method:METHOD"})
    assert "My-Method" not in METHODS
    assert "My-Method" not in [*METHODS.usable()]
    assert "small letters, digits and underscores" in capsys.readouterr().err


# ---- modules that are given --------------------------------------------------------------------------------


def test_a_file_that_is_given_has_its_method_in_every_list() -> None:
    path = write("mild_method", METHOD.format(name="mild"))
    load_plugin(path)
    load_plugin(str(path))  # a second time it changes nothing
    assert get_method("mild").name == "mild"
    assert [*METHODS] == [*METHODS.own, "mild"]
    plugin = METHODS.plugin("mild")
    assert plugin is not None
    assert plugin.to_json() == {"module": str(path), "version": plugin.version}
    assert plugin.version.startswith("sha256:")


def test_a_module_that_is_given_and_installed_is_there_once() -> None:
    write("mild_method", METHOD.format(name="mild"))
    install("graphfed-mild", methods={"mild": "mild_method:METHOD"})
    load_plugin("mild_method")
    assert get_method("mild").name == "mild"
    assert str(METHODS.plugin("mild")) == "the plug-in graphfed-mild 1.0"


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("1 +", r"given\.py cannot be loaded: SyntaxError"),
        ("raise SystemExit(0)", r"given\.py cannot be loaded: SystemExit: 0"),
        ("import no_such_library", r"given\.py cannot be loaded: ModuleNotFoundError: .*no_such_library"),
        ("x = 1", r"given\.py declares nothing; write one of METHOD, METHODS, RULE, RULES"),
        (METHOD.format(name="fedavg"), r"method 'fedavg' of .*given\.py cannot be used: graphfed has one of"),
        (
            METHOD.format(name="Mild"),
            r"method 'Mild' of .*given\.py cannot be used: a name is of small letters",
        ),
        ("METHODS = ['mild']", r"METHODS of .*given\.py must map names to what is called so \(found list\)"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(
    text: str, refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("given", text)
    assert main(["methods", "--plugin", str(path)]) == UNUSABLE
    error = capsys.readouterr().err
    assert re.search(refusal, error)
    assert "Traceback" not in error


def test_a_file_that_is_not_there_or_has_the_name_of_another_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"absent\.py is not there; give the path of a Python file"):
        load_plugin("absent.py")
    with pytest.raises(InputError, match=r"json\.py has the name of another module .*; rename the file"):
        load_plugin(write("json", METHOD.format(name="mild")))
    with pytest.raises(InputError, match="no_such_module cannot be loaded: ModuleNotFoundError"):
        load_plugin("no_such_module")


# ---- runs --------------------------------------------------------------------------------------------------


def test_a_run_names_its_plug_ins_and_is_found_again_with_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run in this process with a method, a data set, a partition and an audit of plug-ins."""
    write("mild_method", METHOD.format(name="mild"))
    install("graphfed-mild", "1.5", methods={"mild": "mild_method:METHOD"})
    others = write("others", OTHERS)
    options = [
        *("--data", "small", "--set", "data.num_nodes=60", "--split", "random", "--clients", "3"),
        *("--partition", "in_turn", "--set", "partition.shift=1", "--plugin", str(others)),
        *("--rounds", "2", "--no-progress"),
    ]
    assert main(["run", "mild", *options, "--out", "first"]) == DONE
    manifest = json.loads(Path("first/manifest.json").read_text())
    version = manifest["versions"]["others"]
    assert manifest["config"]["plugins"] == [
        {"distribution": "graphfed-mild", "version": "1.5"},
        {"module": str(others), "version": version},
    ]
    assert manifest["versions"]["graphfed-mild"] == "1.5"
    assert json.loads(Path("first/result.json").read_text())["versions"]["graphfed-mild"] == "1.5"
    assert main(["predict", "first", "--out", "first.csv"]) == DONE
    assert len(Path("first.csv").read_text().splitlines()) == 61
    assert main(["audit", "first"]) == DONE
    assert "nothing" in [c["check"] for c in json.loads(Path("first/audit.json").read_text())["checks"]]

    # Another process knows the installed plug-in, and is given the file.
    monkeypatch.setattr(plugins, "_MODULES", {})
    capsys.readouterr()
    assert main(["predict", "first", "--out", "again.csv"]) == UNUSABLE
    assert f"was made with the plug-in {others}; graphfed does not run code that a folder names" in (
        capsys.readouterr().err
    )
    assert main(["predict", "first", "--out", "again.csv", "--plugin", str(others)]) == DONE
    assert Path("again.csv").read_text() == Path("first.csv").read_text()


def test_a_config_file_names_plug_ins_from_its_own_folder_and_is_what_show_config_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("mild_method", METHOD.format(name="mild"))
    Path("run.yaml").write_text("plugins: [modules/mild_method.py]\nmethod: mild\nrounds: 3\n")
    assert main(["run", "--config", str(Path("run.yaml").resolve()), "--show-config"]) == DONE
    shown = capsys.readouterr().out
    assert f"plugins: [{Path('modules/mild_method.py').resolve()}]" in shown
    Path("again.yaml").write_text(shown)
    assert main(["run", "--config", "again.yaml", "--show-config"]) == DONE
    assert capsys.readouterr().out == shown
    Path("run.yaml").write_text("plugins: 3\nmethod: mild\n")
    assert main(["run", "--config", "run.yaml"]) == UNUSABLE
    assert "plugins must be a list of Python files and modules" in capsys.readouterr().err


def test_a_run_whose_distribution_is_gone_or_has_another_version_says_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorded = [{"distribution": "graphfed-gone", "version": "1.5"}]
    with pytest.raises(
        InputError, match=r"first needs the plug-in graphfed-gone 1\.5, which is not installed"
    ):
        check_plugins(recorded, Path("first"))
    install("graphfed-gone", "1.6")
    check_plugins(recorded, Path("first"))
    assert "was made with graphfed-gone 1.5, and 1.6 is here; results may differ" in capsys.readouterr().err


def test_a_run_whose_file_has_changed_since_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    path = write("mild_method", METHOD.format(name="mild"))
    load_plugin(path)
    plugin = METHODS.plugin("mild")
    assert plugin is not None
    check_plugins([plugin.to_json()], Path("first"))
    assert capsys.readouterr().err == ""
    check_plugins([{**plugin.to_json(), "version": "sha256:0"}], Path("first"))
    assert f"was made with {path} sha256:0, and {plugin.version} is here" in capsys.readouterr().err


def test_the_page_of_a_method_says_which_plug_in_it_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    write("mild_method", METHOD.format(name="mild"))
    install("graphfed-mild", methods={"mild": "mild_method:METHOD"})
    assert main(["methods", "mild"]) == DONE
    assert "plug-in graphfed-mild 1.0" in " ".join(capsys.readouterr().out.split())
    assert main(["methods", "mild", "--json"]) == DONE
    shown = json.loads(capsys.readouterr().out)
    assert shown["plugin"] == {"distribution": "graphfed-mild", "version": "1.0"}
    assert main(["methods", "fedavg", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["plugin"] is None


def test_data_sets_of_plug_ins_are_listed_with_what_they_are() -> None:
    load_plugin(write("others", OTHERS))
    row = next(row for row in available() if row.name == "small")
    assert (row.spec.title, row.ready) == ("a small social network", True)
    assert graphfed.inspect("small", settings={"data.num_nodes": 45}).data.num_nodes == 45  # type: ignore[union-attr]


@pytest.mark.parametrize("task", ["classification", "forecasting"])
@pytest.mark.parametrize("find", ["None", "lambda roots: (roots[0], [])"])
def test_a_loader_that_returns_something_else_is_refused_with_what_builds_it(task: str, find: str) -> None:
    loaded = "[1, 2]" if find == "None" else "None"
    path = write(
        "wrong",
        "from graphfed.data.datasets import DatasetSpec\n"
        f"def load(*roots, structure_only=False): return {loaded}\n"
        f"DATASETS = {{'wrong': DatasetSpec('wrong', {task!r}, load, None, 'generated', '', {find})}}\n",
    )
    load_plugin(path)
    kind = {"classification": "Graph", "forecasting": "Sensors"}[task]
    with pytest.raises(InputError, match=f"'wrong', a set for {task}, must return {kind}, and returned "):
        graphfed.inspect("wrong")


def test_a_method_of_a_package_takes_one_file_and_one_line_of_packaging() -> None:
    package = tomllib.loads((EXAMPLE.parent / "pyproject.toml").read_text())
    groups = package["project"]["entry-points"]
    assert groups["graphfed.methods"] == {"fedavgm": "graphfed_example.fedavgm:METHOD"}
    readme = (EXAMPLE.parent / "README.md").read_text()
    for group, points in groups.items():
        assert f'[project.entry-points."{group}"]' in readme
        for name, value in points.items():
            assert f'{name} = "{value}"' in readme
            assert (EXAMPLE / f"{name}.py").is_file()


def test_fedavgm_without_momentum_is_fedavg() -> None:
    load_plugin(EXAMPLE / "fedavgm.py")
    options = {"data": "digits", "clients": 3, "rounds": 3, "out": False, "local_steps": 2}
    still = graphfed.run("fedavgm", momentum=0, **options)  # type: ignore[arg-type]
    plain = graphfed.run("fedavg", **options)  # type: ignore[arg-type]
    moved = graphfed.run("fedavgm", momentum=0.9, **options)  # type: ignore[arg-type]
    assert still.test == pytest.approx(plain.test, abs=1e-6)
    assert moved.test != plain.test


@pytest.mark.parametrize("method", ["fedavg", "fedgcn", "fedgat"])
def test_a_rule_in_one_short_file_works_with_every_exchange_in_every_placement(method: str) -> None:
    page = (Path(__file__).parents[1] / "docs/plugins.md").read_text()
    (code,) = re.findall(r"<!-- file: damped.py -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(code.splitlines()) <= 40
    load_plugin(write("damped", code))
    options: dict[str, object] = {"clients": 2, "rounds": 2, "local_steps": 2, "out": False}
    options |= {"data": "social", "settings": {"data.num_nodes": 60}}
    found = {
        (step, runtime): graphfed.run(  # type: ignore[arg-type]
            method, rule="damped", server_step=step, runtime=runtime, **options
        ).test["loss"]
        for step in (1.0, 0.3)
        for runtime in ("local", "processes")
    }
    plain = graphfed.run(method, rule="fedavg", optimizer_at="clients", **options).test["loss"]  # type: ignore[arg-type]
    assert found[1.0, "local"] == pytest.approx(plain, abs=1e-5)
    assert found[0.3, "local"] == pytest.approx(found[0.3, "processes"], abs=1e-5)
    assert found[0.3, "local"] != pytest.approx(plain, abs=1e-3)


def test_a_run_names_the_plug_in_of_its_rule() -> None:
    load_plugin(EXAMPLE / "fedavgm.py")
    result = graphfed.run("fedgcn", rule="fedavgm", clients=2, rounds=1, out=False)
    assert result.details["changed_settings"]["rule"] == "fedavgm"
    assert any("fedavgm" in name for name in result.versions)

"""A name that was changed is refused, and the message says the new one."""

from pathlib import Path

import pytest

import graphfed
from graphfed.cli import main
from graphfed.data.user_files.graph_description import Description
from graphfed.errors import UNUSABLE, InputError
from graphfed.methods.registry import METHODS
from graphfed.renamed import COMMANDS, NAMES
from graphfed.runs.config import read_config, setting_names
from graphfed.tasks.run_options import OPTIONS
from graphfed.validation import keys_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings() -> dict[str, tuple[str, str, str]]:
    """The old settings: for each the new name, and a method and a partition that have it."""
    found = {}
    for partition in ("edges_uniform", "label_dirichlet"):
        for method in METHODS.usable():
            for name in setting_names(method, partition=partition):
                for old in (old for old, new in NAMES.items() if name in new):
                    found.setdefault(old, (name, method, partition))
    return found


#: Options of the command line, and keys of a config file, that are options of a run.
RUN_OPTIONS = {
    old: next(name for name in new if name in (*OPTIONS, "startup_kit"))
    for old, new in NAMES.items()
    if set(new) & {*OPTIONS, "startup_kit"}
}
KEYS = {
    old: next(name for name in new if name in keys_of(Description))
    for old, new in NAMES.items()
    if set(new) & set(keys_of(Description)) and old != "vertices"
}


def test_every_renamed_name_has_a_reader_that_refuses_it() -> None:
    assert {*settings(), *RUN_OPTIONS, *KEYS} | {"vertices"} == set(NAMES)
    assert (RUN_OPTIONS["sites"], KEYS["sites"]) == ("workers", "clients")


@pytest.mark.parametrize("old", settings())
def test_an_old_setting_is_refused_on_the_command_line_and_in_python(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new, method, partition = settings()[old]
    message = f"{method} has no setting {old!r}; it is called {new!r} now"
    command = ["run", method, "--partition", partition, "--set", f"{old}=1"]
    assert main(command) == UNUSABLE
    assert message in " ".join(capsys.readouterr().err.split())
    with pytest.raises(InputError, match=message):
        graphfed.run(method, partition=partition, settings={old: 1})
    with pytest.raises(InputError, match=f"it is called {new!r} now"):
        graphfed.compare([method], partition=partition, settings={old: 1})


def test_an_old_setting_of_another_method_is_refused_with_its_new_name() -> None:
    with pytest.raises(InputError, match="it is called 'node_ids' now; it is a setting of sapgnn and ppgnn"):
        graphfed.run("fedavg", settings={"vertex_ids": "keyed"})


@pytest.mark.parametrize("old", RUN_OPTIONS)
def test_an_old_option_is_refused_on_the_command_line_in_python_and_in_a_config_file(
    old: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = RUN_OPTIONS[old]
    option = f"--{new.replace('_', '-')}"
    assert main(["run", "fedavg", f"--{old}", "2"]) == UNUSABLE
    message = " ".join(capsys.readouterr().err.split())
    assert f"there is no option --{old}; it is called {option} now" in message
    with pytest.raises(InputError, match=f"{option} now .in Python: {new}="):
        graphfed.run("fedavg", **{old: 2})  # type: ignore[arg-type]
    (folder / "run.yaml").write_text(f"method: fedavg\n{old}: 2\n")
    with pytest.raises(InputError, match=f"unknown key '{old}'; it is called '{new}' now"):
        read_config(folder / "run.yaml", extra=("startup_kit",))
    assert main(["run", "--config", "run.yaml"]) == UNUSABLE


@pytest.mark.parametrize("old", KEYS)
def test_an_old_key_of_a_description_is_refused(
    old: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bank.yaml").write_text(f"nodes: a.csv\nedges: b.csv\nlabel: fraud\n{old}: bank\n")
    assert main(["run", "fedavg", "--data", "bank.yaml"]) == UNUSABLE
    message = " ".join(capsys.readouterr().err.split())
    assert f"unknown key {old!r}; it is called {KEYS[old]!r} now" in message


@pytest.mark.parametrize("old", COMMANDS)
def test_an_old_command_is_refused(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*old.split(), "cora"]) == UNUSABLE
    message = " ".join(capsys.readouterr().err.split())
    assert f"no command 'graphfed {old}'; it is called 'graphfed {COMMANDS[old]}' now" in message

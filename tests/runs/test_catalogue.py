"""The descriptions of methods that are kept are those that would be made now, or they are made again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_plugins import METHOD, forget_plugins, install, write

from graphfed.cli import main
from graphfed.errors import DONE
from graphfed.methods.registry import METHODS
from graphfed.runs import catalogue
from graphfed.runs.catalogue import describe_every_method, describe_method

__all__ = ["forget_plugins"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def kept() -> Path:
    return Path("cache/graphfed") / catalogue.FILE


def no_description(method: object) -> None:
    raise AssertionError(f"{method} was described again")


def test_what_is_kept_is_what_is_described_and_is_not_described_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = describe_every_method()
    assert [each["name"] for each in first] == [*METHODS]
    monkeypatch.setattr(catalogue, "_description", no_description)
    assert describe_every_method() == first
    assert describe_method("FedAvg") == next(each for each in first if each["name"] == "fedavg")
    assert describe_method("local")["name"] == "isolated"


def test_one_method_s_description_keeps_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    first = describe_method("fedavg")
    monkeypatch.setattr(catalogue, "_description", no_description)
    assert describe_method("fedavg") == first
    assert [each["name"] for each in describe_every_method()] == [*METHODS]


@pytest.mark.slow
def test_a_list_that_is_kept_is_printed_without_torch() -> None:
    program = (
        "import sys; from graphfed.cli import main; assert main(['methods', '--json']) == 0; "
        "print(*{'torch', 'numpy'} & set(sys.modules))"
    )
    lines = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert lines[0][0] == lines[1][0]
    assert "torch" in lines[0][1]
    assert lines[1][1] == ""


def test_a_change_of_a_plug_in_s_code_or_of_what_is_installed_changes_the_digest(tmp_path: Path) -> None:
    digests = [catalogue._code_digest()]
    write("mild_method", METHOD.format(name="mild"))
    install("graphfed-mild", methods={"mild": "mild_method:METHOD"})
    digests.append(catalogue._code_digest())
    assert catalogue._code_digest() == digests[-1]
    write("mild_method", METHOD.format(name="mild") + "# a comment\n")
    digests.append(catalogue._code_digest())
    install("some-library", "2.0")
    digests.append(catalogue._code_digest())
    assert len({*digests, ""}) == 5


def test_a_change_of_graphfed_s_own_code_changes_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "graphfed" / "runs" / "catalogue.py"
    own.parent.mkdir(parents=True)
    own.write_text("")
    monkeypatch.setattr(catalogue, "__file__", str(own))
    before = catalogue._code_digest()
    (tmp_path / "graphfed" / "other.py").write_text("x = 1")
    assert catalogue._code_digest() != before


def test_a_plug_in_s_method_is_described_from_its_present_code(capsys: pytest.CaptureFixture[str]) -> None:
    text = METHOD.format(name="mild").replace("name=", "summary='first', name=")
    write("mild_method", text)
    install("graphfed-mild", methods={"mild": "mild_method:METHOD"})
    assert describe_method("mild")["summary"] == "first"
    assert [each["name"] for each in describe_every_method()][-1] == "mild"
    write("mild_method", text.replace("first", "second"))
    del sys.modules["mild_method"]
    assert main(["methods", "mild", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["summary"] == "second"


def test_a_list_that_leaves_a_plug_in_out_is_not_kept_and_says_so_every_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("torn_method", "import no_such_library")
    install("graphfed-torn", methods={"torn": "torn_method:METHOD"})
    for _ in range(2):
        assert main(["methods", "--json"]) == DONE
        assert "warning: method 'torn' of the plug-in graphfed-torn 1.0 cannot be loaded" in (
            capsys.readouterr().err
        )
    assert not kept().exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"code": "x", "methods": 3}', "\x00"])
def test_a_file_that_is_damaged_is_made_again(content: str) -> None:
    kept().parent.mkdir(parents=True)
    kept().write_text(content)
    assert [each["name"] for each in describe_every_method()] == [*METHODS]
    assert json.loads(kept().read_text())["code"] == catalogue._code_digest()


def test_a_cache_folder_that_cannot_be_written_is_done_without() -> None:
    Path("cache").write_text("a file where the folder would be")
    assert [each["name"] for each in describe_every_method()] == [*METHODS]

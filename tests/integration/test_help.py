"""The help is whole at every width, with examples that work; and the pages of methods."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from graphfed.cli import app, main
from graphfed.errors import DONE, FAILED, INTERRUPTED, UNUSABLE
from graphfed.methods.registry import ALIASES, METHODS, get_method
from graphfed.tasks.registry import first_task

DOCS = Path(__file__).resolve().parents[2] / "docs"


def pages(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of every command, groups included, after `graphfed`."""
    found = [path]
    for name, child in getattr(command, "commands", {}).items():
        found += pages(child, (*path, name))
    return found


def command_at(path: tuple[str, ...]) -> Any:
    """The command or the group with that path in the registry."""
    command = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return command


PAGES = pages(typer.main.get_command(app))


#: The pages that were printed, by the words of the command and the width.
PRINTED: dict[tuple[tuple[str, ...], str | None], str] = {}


def page(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    key = path, os.environ.get("COLUMNS")
    if key not in PRINTED:
        assert main([*path, "--help"]) == DONE
        PRINTED[key] = capsys.readouterr().out
    return PRINTED[key]


def examples(text: str) -> list[str]:
    """The lines under the heading Examples."""
    found = re.search(r"^ Examples:\s*\n((?:  \S.*\n)+)", text, re.MULTILINE)
    return [line.strip() for line in found[1].splitlines()] if found else []


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_nothing_is_cut_off_and_no_line_is_too_long(
    path: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = page(path, capsys)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_every_example_is_a_command_line_that_graphfed_takes(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is parsed as it stands, to the last option; --help at its end leaves the work out."""
    lines = examples(page(path, capsys))
    assert lines
    for line in lines:
        assert line.split()[: 1 + len(path)] == ["graphfed", *path]
        assert main([*shlex.split(line)[1:], "--help"]) == DONE, line
        # What --help skips: the values of the options that are checked later.
        capsys.readouterr()


def test_the_examples_of_run_and_compare_can_be_used_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and settings in them are checked without training: a partition that cannot be comes last."""
    for command in ("run", "compare"):
        for line in examples(page((command,), capsys)):
            if any(word in line for word in ("--config", "nvflare", "--startup-kit", "--show-config")):
                # The file and the startup kit are the reader's; so many processes are refused elsewhere;
                # what is only shown loads no data that could have too few nodes.
                continue
            words = re.sub(r"--(clients|out) \S+", "", line)
            data, refusal = "digits", "cannot be partitioned among 999999 clients"
            if "roads" in line:
                data, refusal = (
                    "roads",
                    "'roads' has 60 sensors, each of which is a client, so there cannot be 999999 clients",
                )
            arguments = shlex.split(f"{words} --clients 999999 --data {data} --threads 1")[1:]
            assert main([*arguments, "--no-progress"]) == UNUSABLE
            assert refusal in capsys.readouterr().err


# ---- nothing asked ----


# `graphfed policy` needs no argument, and learns for an hour.
@pytest.mark.parametrize("path", [path for path in PAGES if path != ("policy",)], ids=" ".join)
def test_a_command_without_arguments_works_or_is_refused_in_one_line_and_a_group_prints_its_help(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    help_page = page(path, capsys)
    code = main(list(path))
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    if hasattr(command_at(path), "commands"):
        assert (code, out.rstrip(), err) == (UNUSABLE, help_page.rstrip(), "")
    elif code == UNUSABLE:
        assert out == ""
        assert re.fullmatch(r"error: [^\n]+\n", err)
    else:
        # `graphfed doctor` finds problems, or none.
        assert code in (DONE, FAILED)
        assert err == ""
    assert not list(tmp_path.iterdir())


# ---- exit codes ----


def test_the_exit_codes_in_the_help_and_in_the_docs_are_those_of_the_code() -> None:
    codes = {"DONE": DONE, "FAILED": FAILED, "UNUSABLE": UNUSABLE, "INTERRUPTED": INTERRUPTED}
    shown = typer.main.get_command(app).epilog or ""
    assert [int(code) for code in re.findall(r"^ +(\d+) ", shown, re.MULTILINE)] == [*codes.values()]
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert {name: int(code) for code, name in rows} == codes


# ---- methods ----


@pytest.mark.parametrize("name", METHODS.own)
def test_the_description_of_a_method_has_its_needs_and_every_setting_with_its_default(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["methods", name, "--json"]) == DONE
    content = json.loads(capsys.readouterr().out)
    method = get_method(name)
    assert ("each node at one client" in content["needs"]) == method.requires.disjoint
    assert ("every client in every round" in content["needs"]) == (not method.dropouts and not method.pooled)
    default = method.tree.listed(method.configure({}, first_task(method).settings_of(method)))
    shown = {s["name"]: s["default"] for s in content["settings"]}
    assert {*shown} == {*method.tree.names} - {"seed"}
    assert shown == {**shown, **{name: value for name, value in default.items() if name != "seed"}}


def test_methods_as_json_has_every_method_with_its_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == DONE
    output = {row["name"]: row for row in json.loads(capsys.readouterr().out)["methods"]}
    assert set(output) == set(METHODS)
    assert {alias: row["name"] for row in output.values() for alias in row["aliases"]} == ALIASES


def test_a_method_that_is_not_there_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "fedgcnn"]) == UNUSABLE
    assert "did you mean 'fedgcn'" in capsys.readouterr().err

"""What reaches a person's terminal: no control character of anybody's text, no line wider than the screen,
and no command that waits for ever on a file or fails because nobody listens."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import yaml

import graphfed
from graphfed.cli import app, main
from graphfed.terminal import markup, printable

pytestmark = pytest.mark.slow

PACKAGE = Path(graphfed.__file__).parent
#: A title of the window, colours, a line that is written over, hidden and reversed text, and rich's markup.
HOSTILE = "\x1b]0;owned\x07\x1b[31mred\rnew\x00\u202etxt\u200b\x9b1m[bold]b[/bold][/]"
FORBIDDEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")
RUN = ["run", "fedavg", "--threads", "1", "--rounds", "1", "--no-progress"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_data(client: str = "x", feature: str = "age", label: str = "a", ident: str = "v") -> None:
    """A description of 18 nodes at three clients, with these texts in it."""
    names = [client, "y", "z"]
    rows = [
        [f"{ident}{i}", names[i % 3], str(i % 5), [label, "b"][i % 2], ["train", "val", "test"][i // 3 % 3]]
        for i in range(18)
    ]
    quoted = [[f'"{cell}"' for cell in row] for row in [["id", "client", feature, "label", "split"], *rows]]
    Path("nodes.csv").write_bytes("\n".join(",".join(row) for row in quoted).encode())
    ends = [(f'"{ident}{i}"', f'"{ident}{(5 * i + 3) % 18}"') for i in range(18)]
    Path("edges.csv").write_bytes("\n".join(["source,target", *map(",".join, ends)]).encode())
    Path("d.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\n")


def paths(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups included, after `graphfed`."""
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from paths(child, (*path, name))


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    main(arguments)
    out, err = capsys.readouterr()
    return out + err


# ---- control characters ------------------------------------------------------------------------------------


def test_printable_text_has_no_control_characters_and_markup_of_it_is_shown_as_it_is() -> None:
    from rich.text import Text

    assert not FORBIDDEN.search(printable(HOSTILE))
    assert printable("ordinary text: ä, 漢, ±\n") == "ordinary text: ä, 漢, ±\n"
    assert Text.from_markup(markup(HOSTILE)).plain == printable(HOSTILE)


def test_every_command_refuses_hostile_arguments_without_printing_them_raw(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command and group in the app's registry, with a hostile text as argument and as unknown option."""
    text = HOSTILE.replace("\x00", "")
    for path in paths(typer.main.get_command(app)):
        for extra in ([text], [text, text], [f"--{text}"], ["--out", text], ["--config", text]):
            if (path, extra[0]) == (("policy",), "--out"):
                continue  # it refuses nothing, and would learn for minutes
            found = FORBIDDEN.search(printed([*path, *extra], capsys))
            assert found is None, (path, extra, found)


@pytest.mark.parametrize("arguments", [
    [*RUN, "--data", "HOSTILE"], [*RUN, "--partition", "HOSTILE"], [*RUN, "--split", "HOSTILE"],
    [*RUN, "--set", "HOSTILE"], [*RUN, "--set", "lr=HOSTILE"], [*RUN, "--set", "HOSTILE=1"], [*RUN, "--device", "HOSTILE"],
    [*RUN, "--runtime", "HOSTILE"], [*RUN, "--clients", "HOSTILE"], [*RUN, "--data-dir", "HOSTILE", "--data", "cora"],
    ["compare", "fedavg", "--seeds", "HOSTILE"], ["sweep", "fedavg", "--grid", "lr=HOSTILE"], ["sweep", "fedavg", "--range", "HOSTILE"],
    ["methods", "HOSTILE"], ["reproduce", "HOSTILE"], ["reproduce", "lumos", "HOSTILE"],
    ["site", "init", "--sites", "HOSTILE"], ["site", "init", "--sites", "a,b", "--server", "HOSTILE:1"],
    ["site", "start", "HOSTILE", "--forbid", "HOSTILE"], ["site", "check", "HOSTILE", "--data", "HOSTILE"],
    ["data", "inspect", "digits", "--set", "HOSTILE=1"],
])  # fmt: skip
def test_values_of_options_are_printed_without_control_characters(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = HOSTILE.replace("\x00", "")
    output = printed([word.replace("HOSTILE", text) for word in arguments], capsys)
    assert not FORBIDDEN.search(output)


@pytest.mark.parametrize(
    "variable", ["GRAPHFED_DATA", "GRAPHFED_CLIENTS_KEY", "XDG_CACHE_HOME", "OMP_NUM_THREADS"]
)
@pytest.mark.parametrize("arguments", [["doctor"], ["data", "list"], [*RUN, "--data", "cora"]])
def test_the_environment_is_printed_without_control_characters(
    variable: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, HOSTILE.replace("\x00", ""))
    assert not FORBIDDEN.search(printed(arguments, capsys))


@pytest.mark.parametrize("kind", ["client", "feature", "label", "ident"])
def test_texts_of_the_user_s_tables_are_printed_without_control_characters(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = re.sub("[\x00\r]", "", HOSTILE)
    write_data(**{kind: text})
    commands = [
        ["data", "inspect", "d.yaml"],
        [*RUN, "--data", "d.yaml", "--out", "run"],
        [
            "compare",
            "fedavg",
            "--data",
            "d.yaml",
            "--rounds",
            "1",
            "--seeds",
            "0",
            "--threads",
            "1",
            "--out",
            "table",
        ],
        ["audit", "run"],
        ["report", "run"],
        ["predict", "run", "--out", "p.parquet"],
        ["predict", "run", "--nodes", "nodes.csv", "--out", "q.csv"],
        [*RUN, "--data", "d.yaml", "--set", "data.features=nothing"],
    ]
    for arguments in commands:
        assert not FORBIDDEN.search(printed(arguments, capsys)), arguments


@pytest.mark.parametrize("key", ["nodes", "edges", "features", "classes", "clients", "HOSTILE"])
def test_texts_of_a_description_are_printed_without_control_characters(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data()
    name = HOSTILE if key == "HOSTILE" else key
    for value in (HOSTILE, [HOSTILE], {HOSTILE: HOSTILE}):
        content = {"nodes": "nodes.csv", "edges": "edges.csv", name: value}
        Path("d.yaml").write_text(yaml.safe_dump(content))
        assert not FORBIDDEN.search(printed(["data", "inspect", "d.yaml"], capsys))
        Path("run.yaml").write_text(yaml.safe_dump({"method": "fedavg", name: value}))
        assert not FORBIDDEN.search(printed(["run", "--config", "run.yaml"], capsys))
        Path("project.yaml").write_text(yaml.safe_dump({"name": "p", "sites": ["a"], name: value}))
        assert not FORBIDDEN.search(printed(["site", "provision", "project.yaml"], capsys))


def test_texts_of_a_run_s_folder_and_its_name_are_printed_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_data()
    folder = "r" + re.sub("[\x00/]", "", HOSTILE)
    assert main([*RUN, "--data", "d.yaml", "--out", folder]) == 0
    capsys.readouterr()
    result = json.loads(Path(folder, "result.json").read_text())
    for key in ("method", "dataset", "partition", "runtime"):
        result[key] = HOSTILE
    result["test"][HOSTILE] = 0.5
    result["details"]["changed_settings"] = {HOSTILE: HOSTILE}
    Path(folder, "result.json").write_text(json.dumps(result))
    for arguments in (["report", folder], ["resume", folder], ["audit", folder], ["predict", folder]):
        assert not FORBIDDEN.search(printed(arguments, capsys)), arguments


def test_a_deployed_site_s_ledger_and_startup_kit_are_printed_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What `site sent` reads was written while others sent: names of transfers, phases and protections."""
    entry = {
        "phase": "train", "name": HOSTILE, "from": "clients", "to": "server", "kind": HOSTILE,
        "dtype": HOSTILE, "protection": HOSTILE, "shape": [1], "transfers": 1, "messages": 1, "bytes": 4,
        "sent": [4], "received": [0], "rounds": {"1": 4},
    }  # fmt: skip
    run = Path("startup_kit/runs/run")
    run.mkdir(parents=True)
    (run / "manifest.json").write_text(json.dumps({"asked": {"method": HOSTILE}}))
    (run / "ledger.json").write_text(json.dumps({"num_clients": 1, "entries": [entry]}))
    output = printed(["site", "sent", "startup_kit"], capsys)
    assert "owned" in output
    assert not FORBIDDEN.search(output)
    Path("startup_kit/kit.json").write_text(
        json.dumps({"kind": HOSTILE, "name": HOSTILE, "project": {HOSTILE: 1}})
    )
    for command in ("status", "start", "check"):
        assert not FORBIDDEN.search(printed(["site", command, "startup_kit"], capsys))


def test_what_a_deployment_says_of_other_parties_is_cleaned_where_it_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A refusal with the keys of a site's answer, messages and events reach the coordinator's terminal by these."""
    from graphfed.cli.output import one_line
    from graphfed.runs.progress import show_message, show_progress
    from graphfed.runs.train import Event
    from graphfed.terminal import say

    say(f"error: {one_line(HOSTILE)}")
    show_message(f"waiting for {HOSTILE}")
    with show_progress(HOSTILE) as on_event:
        assert on_event is not None
        on_event(Event("stage", note=HOSTILE))
        on_event(Event("note", 0, 1, None, 0, 0.0, HOSTILE))
        on_event(Event("done", 1, 1, {HOSTILE: 0.5}, 0, 0.0))
    out, err = capsys.readouterr()
    assert err.count("owned") == 6
    assert not FORBIDDEN.search(out + err)


def test_only_the_module_for_the_terminal_prints() -> None:
    """A bare `print`, or rich's own `escape`, would be a way past the cleaning."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                cleaned = (
                    node.args
                    and isinstance(node.args[0], ast.Call)
                    and ast.unparse(node.args[0].func) == "printable"
                )
                if not cleaned:
                    found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.ImportFrom) and node.module == "rich.markup":
                found.append(f"{path.name}:{node.lineno}")
    assert not found


# ---- files that are none -----------------------------------------------------------------------------------


@pytest.fixture
def bounded() -> Iterator[None]:
    """A test that waits for ever fails."""

    def too_long(*_: object) -> None:
        raise AssertionError("the command waits")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("pipe", "arguments"), [
    ("run.yaml", ["run", "--config", "run.yaml"]),
    ("run.yaml", ["compare", "--config", "run.yaml"]),
    ("run.yaml", ["sweep", "--config", "run.yaml"]),
    ("project.yaml", ["site", "provision", "project.yaml"]),
    ("d.yaml", [*RUN, "--data", "d.yaml"]),
    ("nodes.csv", [*RUN, "--data", "d.yaml"]),
    ("edges.csv", ["data", "inspect", "d.yaml"]),
    ("g.pt", [*RUN, "--data", "g.pt"]),
    ("g.graphml", [*RUN, "--data", "g.graphml"]),
    ("p.safetensors", [*RUN, "--data", "digits", "--partition", "p.safetensors"]),
    ("policy.safetensors", ["run", "fedgraph", "--data", "digits", "--set", "policy=ddpg", "--set", "policy_file=policy.safetensors"]),
    ("ids.csv", ["predict", "good", "--nodes", "ids.csv"]),
    ("startup_kit/kit.json", ["site", "status", "startup_kit"]),
    ("startup_kit/kit.json", ["site", "start", "startup_kit"]),
    ("d.yaml", ["site", "check", "good-startup-kit", "--data", "d.yaml"]),
    ("run/result.json", ["report", "run"]),
    ("run/manifest.json", ["resume", "run"]),
    ("run/metrics.jsonl", ["report", "run"]),
    ("run/model.safetensors", ["predict", "run"]),
    ("run/predictions.parquet", ["report", "run"]),
    ("sets/dblp/dblp.npz", [*RUN, "--data", "dblp", "--data-dir", "sets"]),
])  # fmt: skip
@pytest.mark.usefixtures("bounded")
def test_a_named_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(
    pipe: str, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    write_data()
    if "run" in arguments[1:] or "good" in arguments:
        assert main([*RUN, "--data", "d.yaml", "--out", arguments[1]]) == 0
    if "good-startup-kit" in arguments:
        project = {
            "name": "p",
            "server": {"host": "localhost", "port": 8002, "listen": "127.0.0.1"},
            "sites": ["a"],
        }
        Path("good-startup-kit").mkdir()
        Path("good-startup-kit/kit.json").write_text(
            json.dumps({"kind": "site", "name": "a", "project": project})
        )
    capsys.readouterr()
    Path(pipe).parent.mkdir(parents=True, exist_ok=True)
    Path(pipe).unlink(missing_ok=True)
    os.mkfifo(pipe)
    assert main(arguments) == 2
    assert Path(pipe).name.split(".")[0] in capsys.readouterr().err


# ---- streams -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-"])
def test_a_run_without_standard_streams_trains_and_writes_its_whole_folder(closed: str) -> None:
    write_data()
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHON": sys.executable}
    command = f'exec "$PYTHON" -m graphfed {" ".join(RUN[:-1])} --data d.yaml --out {{}} {closed}'
    done = subprocess.run(["sh", "-c", command.format("quiet")], env=environment, check=False, timeout=300)
    assert done.returncode == 0
    assert main([*RUN, "--data", "d.yaml", "--out", "usual"]) == 0
    assert {p.name for p in Path("quiet").iterdir()} == {p.name for p in Path("usual").iterdir()}
    assert Path("quiet/model.safetensors").read_bytes() == Path("usual/model.safetensors").read_bytes()


# ---- small screens -----------------------------------------------------------------------------------------


def test_no_page_or_table_is_wider_than_a_screen_of_40_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every page of help, and what commands print in tables and columns. (An error is one line, whatever the
    screen, and so is the name of a file.)"""
    monkeypatch.setenv("COLUMNS", "40")
    write_data()
    assert (
        main(
            [
                "compare",
                "fedavg",
                "--data",
                "d.yaml",
                "--rounds",
                "1",
                "--seeds",
                "0",
                "--threads",
                "1",
                "--out",
                "t",
            ]
        )
        == 0
    )
    capsys.readouterr()
    commands = [[*path, "--help"] for path in paths(typer.main.get_command(app))]
    commands += [["methods"], ["methods", "fedgcn"], ["data", "list"], ["data", "inspect", "d.yaml"]]
    commands += [["data", "inspect", "roads"], ["doctor"], ["reproduce"]]
    for arguments in [*commands, ["resume", "t"]]:
        main(arguments)
        lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("files: ")]
        assert max(map(len, lines)) <= 40, (arguments, max(lines, key=len))

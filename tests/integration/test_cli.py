"""The command line as a person or a script meets it: exit codes, streams, and what is left on disk."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import graphfed
from graphfed.cli import main
from graphfed.errors import GraphfedError
from graphfed.methods.registry import METHODS

#: A report takes longer than such a run (test_report.py has them).
RUN = ["run", "fedavg", "--clients", "3", "--rounds", "2", "--no-report"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, so that "nothing was written" can be checked."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment() -> dict[str, str]:
    """For a process of its own: finds this package wherever it is installed from."""
    return {**os.environ, "PYTHONPATH": str(Path(graphfed.__file__).parents[1])}


# ---- run ----


def test_json_is_the_last_line_of_stdout_and_progress_goes_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*RUN, "--out", "here", "--json"]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out.splitlines()[-1])
    assert result == json.loads(Path("here/result.json").read_text())
    assert "round 2/2" in output.err


def test_without_json_the_test_score_and_the_folder_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--no-progress"]) == 0
    output = capsys.readouterr()
    (folder,) = Path("runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert f"accuracy {result['test']['accuracy']:.4g}" in output.out
    assert f"files: {folder}" in output.out
    # A run of few rounds is undertrained, and says so.
    assert all(line.startswith("warning: ") for line in output.err.splitlines())


def test_the_command_line_wins_over_the_config_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("method: fedgcn\nclients: 3\nrounds: 5\nset: {lr: 0.1, hops: 1}\n")
    assert (
        main(
            [
                "run",
                "--config",
                "run.yaml",
                "--rounds",
                "1",
                "--set",
                "hops=0",
                "--out",
                "here",
                "--no-report",
            ]
        )
        == 0
    )
    config = json.loads(Path("here/manifest.json").read_text())["config"]
    assert (config["method"], config["clients"]) == ("fedgcn", 3)
    training = config["training"]
    assert (training["rounds"], training["lr"], training["hops"]) == (1, 0.1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run fedavgg", "did you mean 'fedavg'"),
        ("run", "no method was given"),
        ("run fedavg --clinets 3", "--clients"),
        ("run fedavg --clients 5000", "cannot be partitioned among 5000 clients"),
        ("run fedavg --clients many", "'many' is not a whole number"),
        ("run fedavg --set lr=-1", "lr=-1"),
        ("run fedavg --set lr", "key=value"),
        ("run fedavg --startup-kit none", "none is not a startup kit"),
        ("run fedavg --config none.yaml", "none.yaml cannot be read"),
        ("run fedavg --data-dir none", "none does not exist"),
        ("run fedavg fedgcn", "fedgcn"),
        ("rnu fedavg", "rnu"),
        ("compare", "no method was given"),
        ("compare fedavg --seeds 0,x", "'0,x' cannot be read"),
        ("compare fedavg --seeds 0,0", "twice"),
        ("compare fedavg --seed 0", "No such option: --seed (Possible options: --seeds"),
        ("run fedavg --dataset cora", "No such option: --dataset (Possible options: --data,"),
        ("run fedavg --local-steps 2", "give --set local_steps=VALUE (see graphfed run --help)"),
        ("run fedavg --rounds", "'--rounds' requires an argument"),
        ("report --clients 3 nowhere", "No such option: --clients"),
        ("report --lr 3 nowhere", "No such option: --lr"),
        ("compare fedavg FedAvg", "name each method once"),
        ("sweep isolated --grid mu=1,2", "it is a setting of fedavg"),
        ("resume nowhere", "there is no folder nowhere; name the folder of a run"),
        ("predict no/such/place", "there is no folder no/such/place"),
        ("audit nowhere", "there is no folder nowhere"),
        ("run bank/bank.yaml", "pass it with --config FILE"),
        ("run fedavg --data /", "data '/' is a folder; name a file in it"),
        ("data list --data-dir none", "none does not exist"),
        (f"run fedavg --seed {'9' * 5001}", "is not a whole number"),
        (f"run fedavg --out {'x' * 300}", "File name too long"),
        ("run fedavg --out new/deep/.. --clients 5000", "5000 clients"),
        ("compare fedavg --out new/deep --clients 5000", "5000 clients"),
        (f"compare fedavg --seeds {'9' * 5001}", "cannot be read"),
    ],
)
def test_bad_input_is_one_line_on_stderr_exit_2_and_nothing_written(
    arguments: str, message: str, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    (line,) = streams.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert len(line) < 1000
    assert list(own_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("run", "method: fedavg\nout: false\n"),
        ("run", "method: fedavg\nseed: 2020-99-99\n"),
        ("run", f"method: fedavg\nset: {'[' * 3000}{']' * 3000}\n"),
        ("compare", "method: fedavg\nlabel: [1, 2]\n"),
        ("compare", f"method: fedavg\nlabel: {'x' * 300}\n"),
        ("compare", "seeds: {a: 1}\n"),
        ("compare", "seeds: [true]\n"),
    ],
)
def test_a_config_file_that_cannot_be_used_is_one_line_and_exit_2(
    command: str, content: str, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.yaml").write_text(content)
    assert main([command, "--config", "a.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert len(line) < 1000
    assert [p.name for p in own_folder.iterdir()] == ["a.yaml"]


def test_missing_public_files_say_where_they_were_looked_for(
    monkeypatch: pytest.MonkeyPatch, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    (own_folder / "data").mkdir()
    assert main(["run", "fedavg", "--data", "facebook", "--data-dir", "data"]) == 2
    assert "data" in capsys.readouterr().err
    assert [p.name for p in own_folder.iterdir()] == ["data"]


def test_a_full_folder_is_refused_and_left_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    Path("here").mkdir()
    Path("here/precious").write_text("x")
    assert main([*RUN, "--out", "here"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [p.name for p in Path("here").iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (GraphfedError("client 3 failed"), "error: client 3 failed\n"),
        *(
            (
                failure,
                "error: the memory is not sufficient; use a smaller graph, fewer clients or smaller layers\n",
            )
            for failure in (
                MemoryError(),
                torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
                RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
            )
        ),
        (OSError(28, "No space left on device"), "error: [Errno 28] No space left on device\n"),
    ],
)
def test_a_failure_of_the_program_or_the_machine_is_exit_1_and_its_message(
    failure: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr("graphfed.runs.run.run", fail)
    assert main(RUN) == 1
    assert capsys.readouterr().err == message


def stopped(arguments: list[str], number: int, after: str) -> tuple[int, str]:
    """The exit code of a command that gets a signal after it has printed `after`, and what it prints then.
    The first accuracy comes after the first round; "round 0" comes before anything can be kept."""
    # Progress at once: the usual five seconds would only be waited for.
    code = (
        "import sys; from graphfed.runs import progress; progress.LINE_EVERY = 0.1; "
        f"from graphfed.cli import main; sys.exit(main({arguments!r}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stderr is not None
        limit = threading.Timer(120, process.kill)
        limit.start()
        line = process.stderr.readline()
        while after not in line and process.poll() is None:
            line = process.stderr.readline()
        process.send_signal(number)
        # Who is in doubt presses twice.
        process.send_signal(number)
        rest = process.stderr.read()
        limit.cancel()
        return process.wait(), rest


@pytest.mark.parametrize(("runtime", "number"), [("local", signal.SIGINT), ("processes", signal.SIGTERM)])
@pytest.mark.slow
def test_stopping_a_run_saves_it_exits_130_and_says_in_one_line_how_to_go_on(
    number: int, runtime: str, own_folder: Path
) -> None:
    arguments = ["run", "fedavg", "--clients", "2", "--rounds", "1000000", "--set", "patience=null"]
    arguments += ["--runtime", runtime]
    code, content = stopped([*arguments, "--out", "deep/run"], number, "accuracy")
    assert code == 130
    assert [line for line in content.splitlines() if "round" not in line] == [
        "interrupted; go on with: graphfed resume deep/run"
    ]
    assert {p.name for p in Path("deep/run").iterdir()} == {"manifest.json", "overview.json", "checkpoint"}
    (saved,) = Path("deep/run/checkpoint").iterdir()
    # It goes on from there, and can be stopped again.
    code, content = stopped(["resume", "deep/run"], number, "accuracy")
    assert code == 130
    assert len({saved, *Path("deep/run/checkpoint").iterdir()}) == 2


def test_stopping_before_training_leaves_nothing_behind(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("graphfed.runs.run.load_inputs", stop)
    monkeypatch.setattr("graphfed.runtime.interrupts._Signals.last", float("-inf"))
    assert main(RUN) == 130
    assert capsys.readouterr().err == "interrupted; nothing was saved\n"
    assert list(own_folder.iterdir()) == []


@pytest.mark.slow
def test_stopping_a_comparison_keeps_its_finished_runs_and_the_one_to_go_on_with(own_folder: Path) -> None:
    Path("long.yaml").write_text(
        "method: fedgcn\nlabel: long\nrounds: 1000000\nset: {hops: 0, patience: null}\n"
    )
    arguments = ["compare", "fedavg", "--config", "long.yaml", "--clients", "2", "--seeds", "0"]
    Path("short.yaml").write_text("set: {fedavg.rounds: 2}\n")
    code, content = stopped(
        [*arguments, "--config", "short.yaml", "--out", "table"], signal.SIGTERM, "long, seed 0: round"
    )
    assert code == 130
    assert "interrupted; go on with: graphfed resume table" in content
    assert "Traceback" not in content
    assert {p.name for p in Path("table").iterdir()} == {"manifest.json", "fedavg-seed0", "long-seed0"}
    assert json.loads(Path("table/fedavg-seed0/result.json").read_text())["rounds"] == 2


def test_a_signal_that_is_ignored_stays_ignored_and_handlers_are_given_back() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.getsignal(signal.SIGINT)
    try:
        assert main(["--version"]) == 0
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == before[1]
    finally:
        signal.signal(signal.SIGTERM, before[0])


# ---- compare ----


def test_compare_prints_a_table_and_writes_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "central", "local", "fedavg", "fedgcn", "--clients", "3", "--rounds", "2"]
    assert main([*arguments, "--seeds", "0,1", "--out", "table", "--no-progress", "--no-report"]) == 0
    out = capsys.readouterr().out
    content = json.loads(Path("table/comparison.json").read_text())
    assert [row["method"] for row in content["rows"]] == ["central", "isolated", "fedavg", "fedgcn"]
    for row in content["rows"]:
        assert row["method"] in out
    assert "files: table" in out


def test_compare_says_which_rows_it_added(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "fedavg", "--clients", "2", "--rounds", "1", "--seeds", "3", "--json"]
    assert main([*arguments, "--no-report"]) == 0
    output = capsys.readouterr()
    assert "added for reference: central, isolated" in output.err
    content = json.loads(output.out.splitlines()[-1])
    assert content["references_added"] == ["central", "isolated"]
    assert len(content["rows"]) == 3


def test_config_files_are_rows_and_different_partitions_are_refused(
    capsys: pytest.CaptureFixture[str], own_folder: Path
) -> None:
    Path("one.yaml").write_text("method: fedavg\nclients: 3\nrounds: 1\n")
    Path("two.yaml").write_text("method: fedgcn\nclients: 4\nrounds: 1\n")
    assert main(["compare", "--config", "one.yaml", "--config", "two.yaml", "--seeds", "0"]) == 2
    assert "partition hashes differ" in capsys.readouterr().err
    assert {p.name for p in own_folder.iterdir()} == {"one.yaml", "two.yaml"}


def test_a_config_file_without_a_method_holds_the_options_of_all_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("all.yaml").write_text("clients: 2\nrounds: 1\nseeds: [5]\nset: {dropout: 0.1}\n")
    Path("hop.yaml").write_text("method: fedgcn\nlabel: one hop\nclients: 2\nrounds: 1\nset: {hops: 1}\n")
    arguments = ["compare", "fedgcn", "--config", "all.yaml", "--config", "hop.yaml", "--json", "--no-report"]
    assert main(arguments) == 0
    content = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = {row["label"]: row for row in content["rows"]}
    assert set(rows) == {"fedgcn", "one hop", "central", "isolated", "fedavg"}
    assert rows["one hop"]["changed_settings"] == {"rounds": 1, "dropout": 0.1, "hops": 1}
    assert rows["fedgcn"]["seeds"] == [5]
    assert content["clients"] == 2


# ---- the rest ----


def test_methods_lists_every_method_of_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in METHODS)
    assert "(local)" in out


def test_a_table_is_as_wide_as_one_says_and_not_cut_where_nobody_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    widths = []
    for columns in (None, "80"):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns:
            monkeypatch.setenv("COLUMNS", columns)
        assert main(["methods"]) == 0
        widths.append(max(len(line) for line in capsys.readouterr().out.splitlines()))
    assert widths == [140, 80]


@pytest.mark.slow
def test_a_terminal_that_lacks_a_sign_of_the_table_gets_it_in_another_way() -> None:
    command = [sys.executable, "-m", "graphfed", "compare", "fedavg", "--clients", "2", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--seeds", "0", "--threads", "1"],
        env={**environment(), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"fedavg" in done.stdout


def test_data_list_names_every_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    from graphfed.data.datasets import DATASETS

    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in DATASETS)
    assert "built in" in out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"graphfed {graphfed.__version__}\n"


def test_help_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from graphfed.cli import main; main(['run', '--help']); "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=True)


@pytest.mark.slow
def test_a_run_imports_no_library_that_it_does_not_need() -> None:
    """pyarrow loads pandas wherever that is installed, and every run needs pyarrow."""
    code = (
        "import sys, pyarrow.parquet, pyarrow as pa; pa.array([1]); by_arrow = set(sys.modules); "
        "from graphfed.cli import main; "
        f"main({RUN!r}); "
        "heavy = {'torch_geometric', 'sklearn', 'networkx', 'matplotlib', 'pandas'} & set(sys.modules); "
        "sys.exit(', '.join(heavy - by_arrow) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_contract_s_command_on_real_data_prints_one_object(
    real_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "fedavg", "--data", "cora", "--clients", "10", "--rounds", "3", "--json"]
    assert main([*command, "--data-dir", str(real_data)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["dataset"], result["clients"]) == ("cora", 10)


def test_a_run_that_diverged_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    diverging = ["--set", "preset=paper", "--set", "lr=3e5", "--set", "dropout=0", "--rounds", "5"]
    assert main(["run", "fedavg", *diverging, "--no-progress", "--no-report"]) == 0
    assert (
        "training diverged in round 2, so the result is that of the best round before"
        in capsys.readouterr().out
    )

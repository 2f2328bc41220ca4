"""Completion as real shells do it: the script of --show-completion, a terminal, and the Tab key."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import graphfed
from graphfed.cli import values
from graphfed.data.datasets import DATASETS
from graphfed.data.partitions.partition import PARTITIONS
from graphfed.methods.registry import METHODS

#: How a shell is started without anyone's own settings, and what makes it list all matches at the first Tab.
SHELLS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "bind 'set show-all-if-ambiguous on'; bind 'set completion-query-items 0'; "
        "bind 'set page-completions off'; bind 'set enable-bracketed-paste off'",
    ),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D -u; unset zle_bracketed_paste"),
}
#: The methods of this package: other tests register some of their own, in this process alone.
OWN = [*METHODS.own]
#: Seconds until a shell that says nothing is given up.
PATIENCE = 30


class Terminal:
    """A terminal of its own for every question, with a shell that completes a command `graphfed`."""

    def __init__(self, shell: str, folder: Path) -> None:
        self.shell, self.folder = shell, folder
        command = folder / "graphfed"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m graphfed "$@"\n')
        command.chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(graphfed.__file__).parents[1]),
            "TERM": "dumb",
            "HOME": str(folder),
        }
        script = subprocess.run(
            [str(command), "--show-completion", shell],
            env={**self.env, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        (folder / "completion").write_text(script.stdout)

    def offered(self, line: str) -> set[str]:
        """The words that Tab lists after `line`, of which there are several."""
        # The list ends with the prompt, shown again.
        return set(self.after_tab(line, f"READY> {line}").split())

    def completed(self, line: str, whole: str) -> bool:
        """Whether Tab makes `whole` of `line`: the one word that fits."""
        return whole in self.after_tab(line, whole)

    def after_tab(self, line: str, mark: str) -> str:
        """What a terminal shows after `line` and Tab, until `mark` is there."""
        arguments, setting = SHELLS[self.shell]
        file, terminal = pty.openpty()
        # A new session's leader that opens a terminal gets it as its own.
        process = subprocess.Popen(
            ["sh", "-c", f"exec {' '.join(arguments)} <>{os.ttyname(terminal)} >&0 2>&0"],
            env=self.env,
            cwd=self.folder,
            start_new_session=True,
        )
        try:
            # The quotes keep the echo of what is typed from looking like the answer.
            typed = f"{setting}; . ./completion; stty columns 200; PS1='REA''DY> '\n"
            os.write(file, typed.encode())
            shown_until(file, "READY> ")
            os.write(file, f"{line}\t".encode())
            return shown_until(file, mark)
        finally:
            # A terminal that goes away ends its shell.
            os.close(terminal)
            os.close(file)
            process.wait(PATIENCE)


def shown_until(file: int, mark: str) -> str:
    """What a terminal shows until `mark` is there, which must be soon."""
    content, end = b"", time.monotonic() + PATIENCE
    while mark.encode() not in content:
        left = end - time.monotonic()
        if left <= 0 or not select.select([file], [], [], left)[0]:
            raise AssertionError(f"the shell never showed {mark!r}: {content!r}")
        content += os.read(file, 65536)
    return content.decode(errors="replace")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.slow
def test_tab_offers_commands_methods_data_sets_partitions_and_the_other_values(
    shell: str, tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine (Debian: apt-get install {shell})")
    tab = Terminal(shell, tmp_path)
    assert {"run", "compare", "doctor", "methods", "data", "resume"} <= tab.offered("graphfed ")
    offered = tab.offered("graphfed run --data ")
    assert set(DATASETS) <= offered
    assert set(METHODS).isdisjoint(offered)
    assert {*OWN, "local"} <= tab.offered("graphfed compare fedavg ")
    assert set(PARTITIONS) <= tab.offered("graphfed run fedavg --partition ")
    assert {"local", "processes"} <= tab.offered("graphfed run --runtime ")
    assert {"stacked", "one-at-a-time"} <= tab.offered("graphfed run --placement ")
    assert {"partition.beta=", "partition.kind="} <= tab.offered("graphfed run --set partition.")
    assert tab.completed("graphfed methods fedg", "fedgcn")
    assert tab.completed("graphfed run --checkp", "--checkpoint-every")
    assert {"partition.beta=", "partition.kind="} <= tab.offered("graphfed sweep fedavg --grid partition.")
    assert tab.completed("graphfed sweep fedavg --range weight_d", "weight_decay=")
    for name in ("runs/first", "runs/second", "third"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").touch()
    (tmp_path / "other").mkdir()
    offered = tab.offered("graphfed report ")
    assert {"runs/first", "runs/second", "third"} <= offered
    assert "other" not in offered
    assert tab.completed("graphfed resume runs/fi", "runs/first")
    # Where nothing of ours fits, files do.
    (tmp_path / "experiment.yaml").touch()
    assert tab.completed("graphfed run --config exp", "experiment.yaml")


def test_a_run_whose_name_a_shell_would_take_apart_is_left_to_the_completion_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "with space"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    assert values.run_folders("p") == ["plain"]
    assert values.run_folders("") == []
    assert values.run_folders("nowhere/") == []


def test_completion_loads_neither_torch_nor_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # This keeps the settings in the cache folder; here, tests may have loaded plug-ins.
    keep = "from graphfed.runs.catalogue import every_setting; every_setting()"
    subprocess.run([sys.executable, "-c", keep], check=True)
    code = """
import os, sys
from graphfed.cli import main
for line in sys.argv[1:]:
    os.environ |= {"COMP_WORDS": f"graphfed {line}", "COMP_CWORD": str(len(line.split()) + 1)}
    try:
        main([])
    except SystemExit:
        pass
print(*sorted({"torch", "numpy", "scipy"} & set(sys.modules)))
"""
    words = ("run ", "run --data ", "run --partition ", "compare fedavg ", "run --set ", "sweep --grid ")
    environment = {
        "PYTHONPATH": str(Path(graphfed.__file__).parents[1]),
        "_GRAPHFED_COMPLETE": "complete_bash",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "reproduce "],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(word in done.stdout.split() for word in ("fedgcn", "digits", "louvain", "lumos"))
    assert done.stdout.splitlines()[-1] == ""

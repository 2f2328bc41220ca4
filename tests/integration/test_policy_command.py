"""`graphfed policy` as a person or a script meets it, and what is reported of its settings."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import graphfed
from graphfed.cli import main
from graphfed.cli.policy import policy_setting_keys
from graphfed.methods.fedgraph.policy.settings import CONFIGS, learning_setting_names
from graphfed.runs.settings import settings_in

pytest.importorskip("stable_baselines3", reason="learning policies needs the extra rl")

ROOT = Path(__file__).resolve().parents[2]
LEARN = ["policy", "--clients", "3", "--rounds", "5", "--set", "ddpg.batch=4", "--out", "p"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_printed_names_the_file_and_how_to_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LEARN, "--episodes", "2"]) == 0
    output = capsys.readouterr()
    assert "runs of fedgraph as here: --set policy=ddpg --set policy_file=p/policy.safetensors" in output.out
    assert "episode 2/2: return" in output.err
    assert "rounds/s" in output.err
    # Once more it is read, as one object.
    assert main([*LEARN, "--episodes", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads(Path("p/result.json").read_text())
    assert main(["resume", "p", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert main([*LEARN, "--episodes", "3"]) == 2
    assert "holds something else" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("policy ddpg", "unexpected extra argument"),
        ("policy --episodes few", "'few' is not a whole number"),
        ("policy --set policy_file=x", "policy_file has no use where a policy is learned"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: str, message: str, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(own_folder.iterdir())


@pytest.mark.slow
def test_ctrl_c_keeps_the_episodes_that_have_ended(own_folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "graphfed", *LEARN, "--episodes", "100000"],
        env={**os.environ, "PYTHONPATH": str(Path(graphfed.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
    )
    checkpoints = own_folder / "p" / "checkpoint"
    end = time.monotonic() + 60
    while not list(checkpoints.glob("round-*/local.json")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "no episode ended"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "interrupted; go on with: graphfed resume p"
    lines = (own_folder / "p" / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["episode"] for line in lines] == [*range(1, len(lines) + 1)]
    assert not (own_folder / "p" / "result.json").exists()


def test_what_completion_and_the_page_say_of_settings_is_what_there_is() -> None:
    offered = policy_setting_keys("reward.")
    assert offered == [f"{name}=" for name in learning_setting_names() if name.startswith("reward.")]
    assert {"lr=", "partition.mean="} <= {*policy_setting_keys("")}
    page = (ROOT / "docs" / "policies.md").read_text()
    rows = dict(re.findall(r"^\| `((?:reward|ddpg)\.\w+)` \| `?([^|`]+)", page, re.MULTILINE))
    assert set(rows) == set(learning_setting_names())
    for prefix, config in CONFIGS.items():
        for setting in settings_in(config):
            if setting.default is None:  # it is chosen at run time, and described in words
                continue
            number = isinstance(setting.default, float)
            written = f"{setting.default:g}" if number else str(setting.default)
            assert rows[f"{prefix}.{setting.name}"].strip() == written

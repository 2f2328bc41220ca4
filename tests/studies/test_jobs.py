"""Processes of jobs are started without losing Ctrl-C."""

import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from fake_plugins import EXAMPLE, forget_plugins

from graphfed.errors import GraphfedError
from graphfed.plugins import load_plugin
from graphfed.runs.config import make_config
from graphfed.runs.run import Result
from graphfed.studies.jobs import Run, _without_ctrl_c, run_all
from graphfed.studies.plan import InputCache

__all__ = ["forget_plugins"]


def send_mask(to: Connection) -> None:
    to.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))


@pytest.mark.slow
def test_ctrl_c_while_processes_start_is_heard_afterwards_and_by_none_of_them() -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=send_mask, args=(sender,))

    def start() -> None:
        with _without_ctrl_c():
            signal.raise_signal(signal.SIGINT)
            process.start()

    with pytest.raises(KeyboardInterrupt):
        start()
    assert receiver.poll(120)
    assert receiver.recv() is True
    process.join(120)
    assert process.exitcode == 0
    receiver.close()
    sender.close()
    process.close()


@pytest.mark.slow
def test_runs_of_a_method_that_a_file_declares_are_done_in_other_processes(tmp_path: Path) -> None:
    load_plugin(EXAMPLE / "graphfed_example/fedavgm.py")
    configs = [make_config("fedavgm", clients=2, rounds=1, seed=seed) for seed in (0, 1)]
    runs = [Run(str(config.seed), config, tmp_path / str(config.seed), 1.0) for config in configs]
    run_all(runs, jobs=2, cache=InputCache(), command="test", progress=False)
    assert [Result.read(run.folder).method for run in runs] == ["fedavgm", "fedavgm"]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_fails_is_named_and_the_others_go_on(jobs: int, tmp_path: Path) -> None:
    configs = [make_config("fedavg", clients=2, rounds=2, settings={"lr": lr}) for lr in (1e30, 0.1)]
    runs = [Run(f"run {k}", config, tmp_path / str(k), 1.0) for k, config in enumerate(configs)]
    with pytest.raises(GraphfedError, match=r"^run 0 failed: "):
        run_all(runs, jobs=jobs, cache=InputCache(), command="test", progress=False)
    assert Result.read(runs[1].folder).rounds == 2

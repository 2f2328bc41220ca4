"""Processes of jobs are started without losing Ctrl-C."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import pytest

from graphfed.studies.jobs import _deaf


def tell_mask(to: Connection) -> None:
    to.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_ctrl_c_while_processes_start_is_heard_afterwards_and_by_none_of_them() -> None:
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=tell_mask, args=(far,))

    def start() -> None:
        with _deaf():
            os.kill(os.getpid(), signal.SIGINT)
            process.start()

    with pytest.raises(KeyboardInterrupt):
        start()
    assert near.poll(120)
    assert near.recv() is True
    process.join(120)
    assert process.exitcode == 0
    near.close()
    far.close()
    process.close()

"""For every method: a run that breaks at any transfer, or at any step of writing a checkpoint, and is resumed
ends with the bits of one that did not break."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from methods_under_law import METHODS
from worlds import (
    ThreeWorkers,
    World,
    as_asked,
    config_of,
    having,
    logits,
    make_world,
    run_processes,
    stateful_optimizer,
)

from graphfed.federation import Federation
from graphfed.federation.cohort import make_cohort
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.state import arrays_of
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.privacy.noise import Noise
from graphfed.runs import checkpoint
from graphfed.runs.checkpoint import Checkpoints, newest_round, process_names
from graphfed.runs.train import train
from graphfed.runtime.interrupts import Interrupted, StopRequest
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.outcome import Outcome

pytestmark = pytest.mark.slow

ROUNDS = 3


class Crash(BaseException):
    """Nobody catches this, as nobody catches SIGKILL."""


def settings_of(name: str) -> dict[str, Any]:
    """State that is hard to bring back: kept moments, clients that are absent, rounds without evaluation."""
    if name == "exchange_toy":
        return {"rounds": ROUNDS}
    method = get_method(name)
    settings = {"rounds": ROUNDS, "optimizer": stateful_optimizer(name), "lr": 0.02, "eval_every": 2}
    if "client_state" in method.tree.names:
        settings["client_state"] = "keep"
    return {**settings, "fraction": 0.5} if method.dropouts else settings


def system_noise(name: str) -> dict[str, Any]:
    """Noise that cannot be drawn again, for the methods that have noise."""
    return {} if get_method(name).restore is None else {"noise_seed": None}


def run(
    name: str,
    world: World,
    checkpoints: Checkpoints | None,
    place: Callable[..., Federation] = stacked,
    **more: Any,
) -> tuple[Outcome, Federation]:
    method = get_method(name)
    world = as_asked(method, world)
    settings = {**settings_of(name), **more}
    config = config_of(method, **{**having(name, **settings), **more})
    fed = place(world.clients, simulated=is_simulated(config))
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]
    data = fed.locate("clients", "data", cohorts)
    return train(fed, method, data, world.task, config, checkpoints=checkpoints), fed


def resumed(
    name: str, world: World, folder: Path, place: Callable[..., Federation] = stacked, **more: Any
) -> tuple[Outcome, Federation]:
    """Go on as `graphfed resume` does."""
    start, _ = newest_round(folder, ["local"])
    return run(
        name, world, Checkpoints(folder, every=0, start=start, stop_request=StopRequest()), place, **more
    )


def assert_same_bits(one: tuple[Outcome, Federation], two: tuple[Outcome, Federation]) -> None:
    (a, fed_a), (b, fed_b) = one, two
    first, second = arrays_of(fed_a, a.state.values), arrays_of(fed_b, b.state.values)
    assert first.keys() == second.keys()
    for key, array in first.items():
        assert array.tobytes() == second[key].tobytes(), key
    assert torch.equal(logits(a), logits(b))
    assert (a.val, a.test, a.test_confusion) == (b.val, b.test, b.test_confusion)
    assert (a.best_round, a.rounds_run) == (b.best_round, b.rounds_run)
    for line, again in zip(a.history, b.history, strict=True):
        assert {**line, "seconds": 0} == {**again, "seconds": 0}
    assert json.dumps(fed_a.ledger.to_json()) == json.dumps(fed_b.ledger.to_json())


@contextmanager
def crash_at(
    number: int, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, str]]
) -> Iterator[list[int]]:
    """Crash at call `number` (from 0) of the given functions: the even ones before it is done, the odd ones
    after. The list counts the calls."""
    count = [0]

    def broken(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            call_number, count[0] = count[0], count[0] + 1
            if 2 * call_number == number:
                raise Crash
            result = real(*args, **kwargs)
            if 2 * call_number + 1 == number:
                raise Crash
            return result

        return call

    with monkeypatch.context() as patch:
        for owner, name in calls:
            patch.setattr(owner, name, broken(getattr(owner, name)))
        yield count


TRANSFERS = [(Delivery, "deliver")]
#: Every step of writing a file, of checking it, and of removing an old checkpoint.
STEPS = [
    (os, "open"), (os, "fsync"), (os, "replace"), (checkpoint.hashlib, "file_digest"),
    (checkpoint.shutil, "rmtree"),
]  # fmt: skip


#: A method tries every k-th transfer, and step of writing: the places of three rounds are alike.
EVERY = (3, 7)


@pytest.mark.parametrize("where", [TRANSFERS, STEPS], ids=["transfers", "steps of writing"])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_breaks_anywhere_goes_on_to_the_same_bits(
    name: str, where: list[tuple[Any, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    expected = run(name, world, None)
    with crash_at(-1, monkeypatch, where) as count:
        whole = run(name, world, Checkpoints(tmp_path / "whole", every=0, stop_request=StopRequest()))
    assert_same_bits(expected, whole)
    # isolated and central send nothing but scores and control; all of them write ROUNDS + 1 checkpoints.
    assert count[0] >= ROUNDS
    # Half of the places broken before, half after; all methods together try every place.
    every = EVERY[where is STEPS]
    for place in range(METHODS.index(name) % every, count[0], every):
        number = 2 * place + place % 2
        folder = tmp_path / str(place)
        with crash_at(number, monkeypatch, where), pytest.raises(Crash):
            run(name, world, Checkpoints(folder, every=0, stop_request=StopRequest()))
        assert_same_bits(expected, resumed(name, world, folder))


def test_a_run_goes_on_with_the_seconds_that_its_policy_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The balanced policy of FedGraph measures eight rounds, here five before the run breaks."""
    world, settings = make_world(), {"policy": "balanced", "rounds": 10}
    with crash_at(-1, monkeypatch, TRANSFERS) as count:
        whole = run("fedgraph", world, None, **settings)
    with crash_at(count[0], monkeypatch, TRANSFERS), pytest.raises(Crash):
        run("fedgraph", world, Checkpoints(tmp_path, every=0, stop_request=StopRequest()), **settings)
    assert_same_bits(whole, resumed("fedgraph", world, tmp_path, **settings))


@pytest.mark.parametrize("name", METHODS)
def test_clients_one_at_a_time_resume_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """Here some workers have no client that takes part."""
    world, noise = make_world(), system_noise(name)
    expected = run(
        name, world, Checkpoints(tmp_path, every=0, stop_request=StopRequest()), one_at_a_time, **noise
    )
    start, _ = newest_round(tmp_path, ["local"])
    assert start == ROUNDS
    # The checkpoint before the last round.
    checkpoint.shutil.rmtree(tmp_path / "checkpoint" / f"round-{ROUNDS:08d}")
    assert newest_round(tmp_path, ["local"])[0] == ROUNDS - 1
    assert_same_bits(expected, resumed(name, world, tmp_path, one_at_a_time, **noise))


@pytest.mark.parametrize("name", [name for name in METHODS if not get_method(name).pooled])
def test_separate_processes_resume_to_the_same_bits(
    name: str, tmp_path: Path, three_clients: ThreeWorkers
) -> None:
    world, settings = make_world(), having(name, **settings_of(name)) | system_noise(name)
    expected, ledger = run_processes(name, world, three_clients, (tmp_path, 0.0, None), **settings)
    names = process_names(3, separate=True)
    # One process could not write its part of the newest round.
    (tmp_path / "checkpoint" / f"round-{ROUNDS:08d}" / "worker1.json").unlink()
    start, faults = newest_round(tmp_path, names)
    assert start == ROUNDS - 1
    assert "worker1.json" in faults[0]
    again, ledger_again = run_processes(name, world, three_clients, (tmp_path, 0.0, start), **settings)
    assert torch.equal(logits(expected), logits(again))
    assert (expected.val, expected.test) == (again.val, again.test)
    assert json.dumps(ledger.to_json()) == json.dumps(ledger_again.to_json())


@pytest.mark.parametrize("name", METHODS)
def test_a_stop_request_is_saved_before_the_next_round(name: str, tmp_path: Path) -> None:
    world, stop_request = make_world(), StopRequest()
    expected = run(name, world, None)
    stop_request.asked = True
    with pytest.raises(Interrupted):
        run(name, world, Checkpoints(tmp_path, every=1e9, stop_request=stop_request))
    assert newest_round(tmp_path, ["local"]) == (0, [])
    assert_same_bits(expected, resumed(name, world, tmp_path))


@pytest.mark.parametrize("name", [name for name in METHODS if get_method(name).restore is not None])
def test_what_was_released_before_a_break_is_never_drawn_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted right after set-up and resumed twice: the same bits, though the noise is the operating
    system's; and set-up is on the ledger once."""
    world, stop_request = make_world(), StopRequest()
    stop_request.asked = True
    for folder in (tmp_path / "one", tmp_path / "another"):
        with pytest.raises(Interrupted):
            run(name, world, Checkpoints(folder, every=1e9, stop_request=stop_request), noise_seed=None)
    shutil.copytree(tmp_path / "one", tmp_path / "again")
    monkeypatch.setattr(Noise, "words", None)
    one, again, another = (
        resumed(name, world, tmp_path / folder, noise_seed=None) for folder in ("one", "again", "another")
    )
    assert_same_bits(one, again)
    assert not torch.allclose(logits(one[0]), logits(another[0])), "noise of its own"
    monkeypatch.undo()
    _, seeded = run(name, world, None)
    assert set_up(one[1]) == set_up(seeded)


def set_up(fed: Federation) -> dict[str, tuple[int, int]]:
    """Messages and bytes of every transfer before training; who of several gets which part is drawn."""
    return {e.name: (e.messages, e.bytes) for e in fed.ledger.entries if e.phase == "setup"}


def test_two_checkpoints_are_kept_and_the_time_between_them_is_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    real = Checkpoints.save

    def save(self: Checkpoints, fed: Federation, snapshot: checkpoint.Snapshot) -> None:
        saved.append(snapshot.number - 1)
        real(self, fed, snapshot)

    monkeypatch.setattr(Checkpoints, "save", save)
    run("fedavg", make_world(), Checkpoints(tmp_path, every=0, stop_request=StopRequest()))
    assert saved == [0, 1, 2, 3]
    rounds = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert rounds == ["round-00000002", "round-00000003"]
    saved.clear()
    # A clock that goes one second a look: at the start and at every round.
    ticks = iter(range(1000))
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: float(next(ticks)))
    run("fedavg", make_world(), Checkpoints(tmp_path / "slow", every=2, stop_request=StopRequest()))
    assert saved == [1, 3]

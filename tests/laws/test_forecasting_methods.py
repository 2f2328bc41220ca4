"""The laws of every method, on those that forecast: placement, seeds, resumption, selection, words.

On graphs they are in the other files here; what is about classes, edges or nodes has no counterpart."""

import functools
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from methods_under_law import FORECASTERS
from sensor_worlds import (
    ROUNDS,
    SensorWorld,
    forecasts,
    in_thirds_of,
    reordered,
    run_apart,
    run_local,
    sensor_world,
)
from test_resuming import STEPS, TRANSFERS, Crash, crash_at
from worlds import ThreeWorkers

from graphfed.data.sensors.windows import make_time_split
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.state import arrays_of
from graphfed.methods.common import forecasting
from graphfed.methods.registry import get_method
from graphfed.methods.tasks import FORECASTING
from graphfed.runs.checkpoint import Checkpoints, newest_round, process_names
from graphfed.runs.train import CONTROL
from graphfed.runtime.interrupts import Interrupted, StopRequest
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.evaluation import SECURE_MESSAGES
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import get_task

APART = [name for name in FORECASTERS if not get_method(name).pooled]
#: Those that learn something.
TRAINED = [name for name in FORECASTERS if get_method(name).state.model]
#: Every sensor has weights of its own, so that one which training does not see has none: they refuse it.
OWN_WEIGHTS = ("gru_local", "gru_fmtl")
INDUCTIVE = [name for name in FORECASTERS if name not in OWN_WEIGHTS]
#: Where a setting decides which transfers there are: all of its values.
VARIANTS: Mapping[str, list[dict[str, Any]]] = {
    "cnfgnn": [
        *({"strategy": name} for name in ("at_fedavg", "at", "sl_fedavg", "sl", "centralised")),
        {"aggregation": "secure", "protocols": "simulated"},
        {"hidden_bits": 8},
        {"clip": 1.0},
        {"missing_mask": True},
    ],
    **{
        name: [{}, {"aggregation": "secure", "protocols": "simulated"}]
        for name in ("gru_central", "gru_local", "gru_fedavg", "gru_fmtl")
    },
}


def variants(name: str) -> list[dict[str, Any]]:
    return VARIANTS.get(name, [{}])


#: Noise from the operating system is another one every time.
CASES = [(name, settings) for name in FORECASTERS for settings in variants(name) if "clip" not in settings]


@functools.cache
def stacked_run(name: str, **settings: Any) -> tuple[Outcome, Federation]:
    """The run that several laws compare another one with."""
    return run_local(name, sensor_world(), **settings)


# ---- placement ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        # The strategies that average do the same and more.
        pytest.param(*case, marks=[pytest.mark.slow] * (case[1].get("strategy") in ("at", "sl")))
        for case in CASES
    ],
    ids=str,
)
@pytest.mark.parametrize("place", [one_at_a_time, pytest.param(in_thirds_of, marks=pytest.mark.slow)])
def test_every_placement_gives_what_stacked_gives(
    name: str, settings: dict[str, Any], place: Callable[[int], Federation]
) -> None:
    fast, fed = stacked_run(name, **settings)
    slow, oracle = run_local(name, sensor_world(), place, **settings)
    assert torch.allclose(forecasts(fast), forecasts(slow), rtol=0, atol=1e-9)
    assert fast.best_round == slow.best_round
    assert fast.test == pytest.approx(slow.test, abs=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.parametrize(("name", "settings"), [case for case in CASES if case[0] in APART], ids=str)
@pytest.mark.slow
def test_separate_processes_equal_stacked_to_the_last_ledger_entry(
    name: str, settings: dict[str, Any], three_clients: ThreeWorkers
) -> None:
    world = sensor_world()
    apart, ledger = run_apart(name, world, three_clients, **settings)
    together, fed = run_local(name, world, **settings)
    assert torch.allclose(forecasts(apart), forecasts(together), rtol=0, atol=1e-9)
    assert apart.test == pytest.approx(together.test, abs=1e-9)
    ahead, here = (outcome.details["test_by_horizon"] for outcome in (apart, together))
    assert all(ahead[metric] == pytest.approx(values, abs=1e-9) for metric, values in here.items())
    assert ledger.to_json() == fed.ledger.to_json()


@pytest.mark.parametrize("name", FORECASTERS)
def test_another_order_of_the_sensors_changes_no_forecast(name: str) -> None:
    order = np.array([3, 5, 0, 4, 1, 2])
    one, _ = stacked_run(name)
    two, _ = run_local(name, reordered(sensor_world(), order))
    assert torch.allclose(forecasts(one)[order], forecasts(two), rtol=0, atol=1e-9)
    assert one.test == pytest.approx(two.test, abs=1e-9)


@pytest.mark.parametrize("name", OWN_WEIGHTS)
def test_a_sensor_that_training_does_not_see_is_refused_where_weights_are_its_own(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} trains weights for every sensor"):
        run_local(name, sensor_world("inductive:0.5"))


@pytest.mark.parametrize("name", INDUCTIVE)
def test_sensors_that_training_does_not_see_change_nothing_in_any_placement(name: str) -> None:
    world = sensor_world("inductive:0.5")
    assert world.split.observed.sum() == 3
    fast, fed = run_local(name, world)
    slow, oracle = run_local(name, world, one_at_a_time)
    assert torch.allclose(forecasts(fast), forecasts(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
    unseen = ~world.split.observed
    (entry,) = [e for e in fed.ledger.entries if e.name == "final_val_errors"]
    assert not entry.sent[unseen].any(), "they are not validated on"
    (entry,) = [e for e in fed.ledger.entries if e.name == "final_test_errors"]
    assert entry.sent.all(), "and all are tested"
    assert bool(forecasts(fast).isfinite().all())


# ---- seeds, selection, data --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORECASTERS)
def test_a_seed_decides_the_bits_of_what_is_learnt(name: str) -> None:
    one, _ = stacked_run(name)
    again, other = (run_local(name, sensor_world(), seed=seed)[0] for seed in (0, 1))
    assert torch.equal(forecasts(one), forecasts(again))
    assert torch.equal(forecasts(one), forecasts(other)) == (name not in TRAINED)


@pytest.mark.parametrize("missing", ["masked", pytest.param("as_read", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORECASTERS)
def test_what_is_kept_is_the_first_best_round_by_the_error_that_is_trained_on(
    name: str, missing: str
) -> None:
    outcome, _ = run_local(name, sensor_world(), rounds=6, lr=0.3, missing=missing, eval_every=1)
    decides = "rmse" if missing == "masked" else "rmse_as_read"
    errors = [line["val"][decides] for line in outcome.history]
    assert outcome.val is not None
    if get_method(name).personal:
        assert outcome.best_round is None
    else:
        assert outcome.best_round == 1 + int(np.argmin(errors))
        assert outcome.val[decides] == pytest.approx(min(errors), rel=1e-12)


@pytest.mark.parametrize("name", FORECASTERS)
def test_selection_sees_no_reading_that_only_test_windows_have(name: str) -> None:
    """Other readings at the end change the test errors and nothing before them."""
    world = sensor_world()
    readings = world.sensors.readings.copy()
    readings[-1] = 1.0
    missing = world.sensors.missing.copy()
    missing[-1] = False
    changed = replace(world.sensors, readings=readings, missing=missing)
    one, _ = stacked_run(name)
    two, _ = run_local(name, SensorWorld(changed, world.split))
    assert one.best_round == two.best_round
    assert one.val == two.val
    assert torch.equal(forecasts(one), forecasts(two)), "the last step is never an input"
    assert one.test != two.test


@pytest.mark.parametrize("name", FORECASTERS)
def test_a_sensor_that_never_read_anything_is_no_trouble(name: str) -> None:
    world = sensor_world()
    missing, readings = world.sensors.missing.copy(), world.sensors.readings.copy()
    missing[:, 2], readings[:, 2] = True, 0
    silent = SensorWorld(replace(world.sensors, readings=readings, missing=missing), world.split)
    fast, fed = run_local(name, silent)
    slow, oracle = run_local(name, silent, one_at_a_time)
    assert bool(forecasts(fast).isfinite().all())
    assert torch.allclose(forecasts(fast), forecasts(slow), rtol=0, atol=1e-9)
    assert all(np.isfinite(value) for value in fast.test.values())
    assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.parametrize("name", FORECASTERS)
def test_a_horizon_of_one_step_from_one_reading_can_be_forecast(name: str) -> None:
    whole = sensor_world().sensors
    world = SensorWorld(whole, make_time_split(whole, "default", 1, 1, 4))
    outcome, _ = run_local(name, world, lags=1, horizon=1, every=4)
    assert forecasts(outcome).shape == (6, world.split.val + world.split.test, 1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("cnfgnn", {}), ("cnfgnn", {"strategy": "centralised"}), ("gru_fedavg", {}), ("gru_central", {})],
    ids=str,
)
def test_windows_that_are_forecast_a_few_at_a_time_are_forecast_alike(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, fed = run_local(name, sensor_world(), rounds=2, **settings)
    monkeypatch.setattr(forecasting, "PART", 5)
    in_parts, other = run_local(name, sensor_world(), rounds=2, **settings)
    assert torch.allclose(forecasts(at_once), forecasts(in_parts), rtol=0, atol=1e-9)
    assert fed.ledger.totals()["total"] == other.ledger.totals()["total"]


# ---- words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORECASTERS)
def test_the_words_of_a_method_are_those_of_its_transfers(name: str) -> None:
    names: set[str] = set()
    for settings in variants(name):
        _, fed = run_local(name, sensor_world(), rounds=1, **settings)
        names |= {entry.name for entry in fed.ledger.entries}
    said = {*CONTROL, *get_task(FORECASTING).messages}
    if "scores/masked" in names:
        said |= {*SECURE_MESSAGES}
    assert names == {*get_method(name).sends.messages, *said}


# ---- resumption --------------------------------------------------------------------------------------------


def hard(name: str) -> dict[str, Any]:
    """State that is hard to bring back: kept moments, clients that are absent, rounds without evaluation; and
    a schedule that follows from the number of the step."""
    settings = {"optimizer": "adam", "client_state": "keep", "teacher_fraction": 0.7, "eval_every": 2}
    return {**settings, "fraction": 0.5} if get_method(name).dropouts else settings


def assert_same_bits(one: tuple[Outcome, Federation], two: tuple[Outcome, Federation]) -> None:
    """scratch, which no model is chosen with, is compared like the rest."""
    (a, fed_a), (b, fed_b) = one, two
    first, second = arrays_of(fed_a, a.state.values), arrays_of(fed_b, b.state.values)
    assert {k: v.tobytes() for k, v in first.items()} == {k: v.tobytes() for k, v in second.items()}
    assert torch.equal(forecasts(a), forecasts(b))
    assert (a.val, a.test, a.details) == (b.val, b.test, b.details)
    assert (a.best_round, a.rounds_run) == (b.best_round, b.rounds_run)
    for line, again in zip(a.history, b.history, strict=True):
        assert {**line, "seconds": 0} == {**again, "seconds": 0}
    assert json.dumps(fed_a.ledger.to_json()) == json.dumps(fed_b.ledger.to_json())


def resumed(
    name: str, world: SensorWorld, folder: Path, place: Callable[[int], Federation] = stacked
) -> tuple[Outcome, Federation]:
    """Go on as `graphfed resume` does."""
    start, _ = newest_round(folder, ["local"])
    return run_local(
        name,
        world,
        place,
        Checkpoints(folder, every=0, start=start, stop_request=StopRequest()),
        **hard(name),
    )


#: Of the places where a run can break, so many are tried, and in the first tier so few.
PLACES, FEW_PLACES = 3, 1


@pytest.mark.deeper
@pytest.mark.parametrize("where", [TRANSFERS, STEPS], ids=["transfers", "steps of writing"])
@pytest.mark.parametrize(
    ("name", "split"),
    [
        *((name, "default") for name in FORECASTERS),
        *(pytest.param(name, "inductive:0.5", marks=pytest.mark.slow) for name in INDUCTIVE),
    ],
)
def test_a_run_that_breaks_anywhere_goes_on_to_the_same_bits(
    name: str,
    split: str,
    where: list[tuple[Any, str]],
    deep: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, options = sensor_world(split, every=8), {**hard(name), "every": 8}
    expected = run_local(name, world, **options)
    with crash_at(-1, monkeypatch, where) as count:
        whole = run_local(
            name,
            world,
            checkpoints=Checkpoints(tmp_path / "whole", every=0, stop_request=StopRequest()),
            **options,
        )
    assert_same_bits(expected, whole)
    assert count[0] >= ROUNDS
    for place in range(0, count[0], max(1, count[0] // (PLACES if deep else FEW_PLACES))):
        # Half of the places broken before, half after.
        number, folder = 2 * place + place % 2, tmp_path / str(place)
        with crash_at(number, monkeypatch, where), pytest.raises(Crash):
            run_local(
                name, world, checkpoints=Checkpoints(folder, every=0, stop_request=StopRequest()), **options
            )
        start, _ = newest_round(folder, ["local"])
        going = Checkpoints(folder, every=0, start=start, stop_request=StopRequest())
        assert_same_bits(expected, run_local(name, world, checkpoints=going, **options))


@pytest.mark.parametrize("name", FORECASTERS)
def test_clients_one_at_a_time_resume_to_the_same_bits(name: str, tmp_path: Path) -> None:
    world = sensor_world("inductive:0.5" if name in INDUCTIVE else "default")
    saves = Checkpoints(tmp_path, every=0, stop_request=StopRequest())
    expected = run_local(name, world, one_at_a_time, saves, **hard(name))
    assert newest_round(tmp_path, ["local"])[0] == ROUNDS
    shutil.rmtree(tmp_path / "checkpoint" / f"round-{ROUNDS:08d}")
    assert_same_bits(expected, resumed(name, world, tmp_path, one_at_a_time))


@pytest.mark.parametrize("name", APART)
@pytest.mark.slow
def test_separate_processes_resume_to_the_same_bits(
    name: str, tmp_path: Path, three_clients: ThreeWorkers
) -> None:
    world, settings = sensor_world(), hard(name)
    expected, ledger = run_apart(name, world, three_clients, (tmp_path, 0.0, None), **settings)
    # One process could not write its part of the newest round.
    (tmp_path / "checkpoint" / f"round-{ROUNDS:08d}" / "worker1.json").unlink()
    start, _ = newest_round(tmp_path, process_names(3, separate=True))
    assert start == ROUNDS - 1
    again, ledger_again = run_apart(name, world, three_clients, (tmp_path, 0.0, start), **settings)
    assert torch.equal(forecasts(expected), forecasts(again))
    assert (expected.val, expected.test, expected.details) == (again.val, again.test, again.details)
    assert json.dumps(ledger.to_json()) == json.dumps(ledger_again.to_json())


@pytest.mark.parametrize("name", FORECASTERS)
def test_a_stop_request_is_saved_before_the_next_round(name: str, tmp_path: Path) -> None:
    world, stop_request = sensor_world(), StopRequest()
    expected = run_local(name, world, **hard(name))
    stop_request.asked = True
    with pytest.raises(Interrupted):
        run_local(
            name, world, checkpoints=Checkpoints(tmp_path, every=1e9, stop_request=stop_request), **hard(name)
        )
    assert newest_round(tmp_path, ["local"]) == (0, [])
    assert_same_bits(expected, resumed(name, world, tmp_path))

"""The readings of a worker's sensors and the server's network: made from sensors, and read from files that
another party may have written."""

import dataclasses
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import TimeSplit
from graphfed.errors import InputError
from graphfed.federation.series import (
    Network,
    Series,
    load_network,
    load_series,
    make_network,
    make_series,
    save_network,
    save_series,
    windows,
)
from graphfed.files import read_tensors, write_tensors

SENSORS, STEPS, MINUTES = 4, 20, 37
START = "2024-02-29T23:40:00"
#: 2 + 3 - 1 steps and 14 windows: 18 of the 20 steps are used.
SPLIT = TimeSplit("time", 2, 3, 3, 7, 3, 4, np.array([True, False, True, True]))
TARGETS = {"train": [0, 3, 6], "val": [7, 8, 9], "test": [10, 11, 12, 13], "all": list(range(7, 14))}


def sensors() -> Sensors:
    rng = np.random.default_rng(0)
    missing = rng.random((STEPS, SENSORS)) < 0.2
    readings = np.where(missing, 0, rng.normal(size=(STEPS, SENSORS))).astype(np.float32)
    road = sp.diags_array([np.full(3, 0.5), np.ones(4), np.full(3, 0.25)], offsets=[-1, 0, 1])
    return Sensors(
        "toy", readings, missing, sp.csr_matrix(road, dtype=np.float32), None, tuple("abcd"), START, MINUTES,
        False, "speed",
    )  # fmt: skip


def series(clients: list[int] | None = None) -> Series:
    return make_series(sensors(), SPLIT, range(SENSORS) if clients is None else clients)


def require_same(one: Any, two: Any) -> None:
    """Two series, networks or splits are alike in every field, to the type."""
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(two, field.name)
        assert type(a) is type(b), field.name
        if dataclasses.is_dataclass(a):
            require_same(a, b)
        elif isinstance(a, torch.Tensor | np.ndarray):
            assert a.dtype == b.dtype, field.name
            assert a.tolist() == b.tolist(), field.name
        else:
            assert a == b, field.name


def test_a_series_has_the_readings_of_its_clients_a_row_each() -> None:
    whole, some = sensors(), series([1, 3])
    assert (some.clients, some.num_clients, some.num_steps) == ((1, 3), 2, STEPS)
    assert some.readings.tolist() == whole.readings[:, [1, 3]].T.tolist()
    assert some.missing.tolist() == whole.missing[:, [1, 3]].T.tolist()
    assert some.split.observed.tolist() == [False, True]


def test_the_times_of_readings_are_those_of_the_calendar() -> None:
    """29 February 2024 was a Thursday."""
    start, made = datetime.fromisoformat(START), series()
    times = [start + t * timedelta(minutes=MINUTES) for t in range(STEPS)]
    of_day = [(time.hour * 60 + time.minute) / 1440 for time in times]
    assert made.time_of_day.tolist() == pytest.approx(of_day)
    assert made.first_minute == start.weekday() * 1440 + 23 * 60 + 40
    assert make_network(sensors(), SPLIT).first_minute == made.first_minute


def test_the_windows_of_each_part_follow_each_other_in_time() -> None:
    made = series()
    assert {target: made.starts(target).tolist() for target in TARGETS} == TARGETS
    last = TARGETS["train"][-1] + SPLIT.lags + SPLIT.horizon - 1
    assert made.training_steps == last + 1


def test_a_window_is_the_steps_from_its_start_on() -> None:
    made, starts = series(), torch.tensor(TARGETS["all"])
    rows = [[row[s + 2 : s + 5] for s in TARGETS["all"]] for row in made.readings.tolist()]
    assert windows(made.readings, starts, 2, 3).tolist() == rows


@pytest.mark.parametrize("present", [[True] * 4, [True, False, False, True], [False] * 4], ids=str)
def test_the_series_of_the_clients_that_are_present_is_one_made_of_them(present: list[bool]) -> None:
    left = [k for k, here in enumerate(present) if here]
    require_same(series().of(torch.tensor(present)), series(left))


@pytest.mark.parametrize("clients", [[1, 0], [0, 0], [4], [-1]], ids=str)
def test_the_clients_of_a_series_are_sensors_in_ascending_order(clients: list[int]) -> None:
    with pytest.raises(InputError, match=r"some of the sensors 0\.\.3, ascending, each once"):
        series(clients)


def test_the_network_has_an_edge_for_each_entry_of_the_adjacency() -> None:
    edges = make_network(sensors(), SPLIT).edges
    edge_list = zip(edges.sender.tolist(), edges.receiver.tolist(), edges.weight.tolist(), strict=True)
    dense = sensors().adjacency.toarray()
    assert sorted(edge_list) == [(a, b, dense[a, b]) for a in range(4) for b in range(4) if dense[a, b]]


def test_a_series_and_a_network_come_back_from_their_files(tmp_path: Path) -> None:
    for clients in ([2], [0, 1, 3]):
        save_series(series(clients), tmp_path / "series")
        require_same(load_series(tmp_path / "series"), series(clients))
    network = make_network(sensors(), SPLIT)
    save_network(network, tmp_path / "network")
    back = load_network(tmp_path / "network")
    assert isinstance(back, Network)
    require_same(back, network)


def test_a_network_without_edges_and_a_split_that_uses_every_step_come_back(tmp_path: Path) -> None:
    """The smallest and the largest that are whole: a first minute of 0, windows of one step each."""
    full = dataclasses.replace(SPLIT, lags=1, horizon=1, every=1, test=9)
    whole = dataclasses.replace(series(), first_minute=0, step_minutes=1, split=full)
    save_series(whole, tmp_path / "series")
    require_same(load_series(tmp_path / "series"), whole)
    network = make_network(sensors(), SPLIT)
    edges = network.edges
    bare = dataclasses.replace(
        edges, sender=edges.sender[:0], receiver=edges.receiver[:0], weight=edges.weight[:0]
    )
    save_network(dataclasses.replace(network, edges=bare), tmp_path / "network")
    assert load_network(tmp_path / "network").edges.count == 0


# ---- files that are not whole ------------------------------------------------------------------------------


def at(index: Any, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    """One entry of an array is another."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[index] = value
        return array

    return change


#: What is done to a column of a whole file, of a series or of a network; and what is said of it.
TOGETHER, KIND = "its columns do not fit together; write it again", "is missing or has another kind"
DAMAGED: dict[str, tuple[str, str, Any, str]] = {
    "no readings": ("series", "readings", None, f"readings {KIND}"),
    "readings that are counts": ("series", "readings", lambda a: a.astype(int), f"readings {KIND}"),
    "readings in one row": ("series", "readings", np.ravel, f"readings {KIND}"),
    "a mask of numbers": ("series", "missing", lambda a: a.astype(int), f"missing {KIND}"),
    "a mask of fewer steps": ("series", "missing", lambda a: a[:, 1:], TOGETHER),
    "a client less than rows": ("series", "clients", lambda a: a[1:], TOGETHER),
    "a sensor more observed": ("series", "observed", lambda a: np.append(a, True), TOGETHER),
    "a client below zero": ("series", "clients", at(0, -1), TOGETHER),
    "a client twice": ("series", "clients", at(1, 0), TOGETHER),
    "a reading that is no number": ("series", "readings", at((0, 3), np.nan), TOGETHER),
    "fewer edges than ends": ("network", "sender", lambda a: a[1:], TOGETHER),
    "fewer receivers": ("network", "receiver", lambda a: a[1:], TOGETHER),
    "fewer weights": ("network", "weight", lambda a: a[1:], TOGETHER),
    "a sensor less observed": ("network", "observed", lambda a: a[1:], TOGETHER),
    "an edge from beyond the sensors": ("network", "sender", at(0, 4), TOGETHER),
    "an edge to beyond the sensors": ("network", "receiver", at(-1, 4), TOGETHER),
    "an edge from below zero": ("network", "sender", at(0, -1), TOGETHER),
    "a weight that is infinite": ("network", "weight", at(0, np.inf), TOGETHER),
    "edges out of order": ("network", "receiver", lambda a: a[::-1], TOGETHER),
    "senders of a receiver out of order": ("network", "sender", at([0, 1], [1, 0]), TOGETHER),
    "weights of float64": ("network", "weight", lambda a: a.astype(np.float64), f"weight {KIND}"),
    "senders of int32": ("network", "sender", lambda a: a.astype(np.int32), f"sender {KIND}"),
    "readings of float16": ("series", "readings", lambda a: a.astype(np.float16), f"readings {KIND}"),
    "weights that are counts": ("network", "weight", lambda a: a.astype(int), f"weight {KIND}"),
}
#: What a whole file says of itself otherwise.
MISTOLD: dict[str, tuple[str, Any]] = {
    **{f"{key} of 0": (key, 0) for key in ("step_minutes", "lags", "horizon", "every")},
    "a negative first minute": ("first_minute", -1),
    "a negative number of windows": ("val", -1),
    "a number that is a truth": ("lags", True),
    "a number that is a fraction": ("train", 7.5),
    "a name that is a number": ("name", 3),
    "no horizon": ("horizon", None),
}


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, Path]:
    save_series(series(), tmp_path / "series")
    save_network(make_network(sensors(), SPLIT), tmp_path / "network")
    return {"series": tmp_path / "series", "network": tmp_path / "network"}


def refused(kind: str, path: Path, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_series(path) if kind == "series" else load_network(path)


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_whose_columns_do_not_fit_together_is_refused(case: str, saved: dict[str, Path]) -> None:
    kind, column, change, message = DAMAGED[case]
    arrays, texts = read_tensors(saved[kind])
    if change is None:
        del arrays[column]
    else:
        arrays[column] = np.ascontiguousarray(change(arrays[column]))
    write_tensors(saved[kind], arrays, texts)
    refused(kind, saved[kind], message)


@pytest.mark.parametrize("kind", ["series", "network"])
@pytest.mark.parametrize("case", MISTOLD)
def test_a_file_of_times_that_cannot_be_is_refused(case: str, kind: str, saved: dict[str, Path]) -> None:
    key, value = MISTOLD[case]
    arrays, texts = read_tensors(saved[kind])
    write_tensors(saved[kind], arrays, {kind: json.dumps({**json.loads(texts[kind]), key: value})})
    refused(kind, saved[kind], TOGETHER)


@pytest.mark.parametrize("key", ["train", "val", "test", "lags", "horizon"])
def test_a_series_that_is_shorter_than_its_windows_is_refused(key: str, saved: dict[str, Path]) -> None:
    """There are 20 steps, of which windows cover 18: two more of anything fit, and three do not."""
    arrays, texts = read_tensors(saved["series"])
    metadata = json.loads(texts["series"])
    for more, fits in ((2, True), (3, False)):
        changed = json.dumps({**metadata, key: metadata[key] + more})
        write_tensors(saved["series"], arrays, {"series": changed})
        if fits:
            load_series(saved["series"])
        else:
            refused("series", saved["series"], TOGETHER)


def test_a_series_of_no_sensor_and_a_network_of_another_number_of_them_are_refused(
    saved: dict[str, Path],
) -> None:
    arrays, texts = read_tensors(saved["series"])
    write_tensors(saved["series"], {name: a[:0] for name, a in arrays.items()}, texts)
    refused("series", saved["series"], TOGETHER)
    arrays, texts = read_tensors(saved["network"])
    for nodes in (5, 3, "four", None):
        metadata = json.dumps({**json.loads(texts["network"]), "nodes": nodes})
        write_tensors(saved["network"], arrays, {"network": metadata})
        refused("network", saved["network"], TOGETHER)


@pytest.mark.parametrize("kind", ["series", "network"])
def test_another_file_is_neither_a_series_nor_a_network(kind: str, saved: dict[str, Path]) -> None:
    other = saved["network" if kind == "series" else "series"]
    refused(kind, other, f"is not a file of a sensor {kind}: '{kind}'")
    arrays, _ = read_tensors(saved[kind])
    write_tensors(saved[kind], arrays, {kind: "[]"})
    refused(kind, saved[kind], "its description is not a JSON object")
    saved[kind].write_bytes(b"text")
    refused(kind, saved[kind], f"is not a file of a sensor {kind}")

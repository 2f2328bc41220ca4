"""What a run is said to take, before it starts and after its first round, is what it takes.

The whole registry, on two graphs (or two sets of sensors) each: the memory within a factor of 3, the bytes
within 5 %."""

import ctypes
import dataclasses
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from methods_under_law import FORECASTERS, SHIPPED

from graphfed.errors import InputError
from graphfed.methods.common.memory import ACCURACY, SMALL
from graphfed.methods.registry import get_method
from graphfed.runs import checkpoint, diagnostics
from graphfed.runs import run as running
from graphfed.runs.config import make_config
from graphfed.runs.progress import Expected
from graphfed.runs.run import execute
from graphfed.runs.train import Event
from graphfed.studies.compare import compare
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.loading import load_inputs
from graphfed.tasks.run_config import RunConfig

pytestmark = pytest.mark.slow

PEAK = Path("/proc/self/clear_refs")

DENSE = {
    "data.num_nodes": 4000, "data.features": 400, "data.average_degree": 12, "data.dense": True,
}  # fmt: skip
SPARSE = {"data.num_nodes": 3000, "data.features": 300, "data.average_degree": 40}
#: Of methods whose cost grows with the square of the nodes, or of their degrees.
SMALL_DENSE = {**DENSE, "data.num_nodes": 900, "data.features": 100, "data.average_degree": 6}
SMALL_SPARSE = {**SPARSE, "data.num_nodes": 600, "data.features": 60, "data.average_degree": 8}
HEAVY = ("fedgat", "fedgat_ldp", "lumos", "lpgnn", "naive_fedgnn")
SENSORS = ({"data.sensors": 8, "data.weeks": 1}, {"data.sensors": 24, "data.weeks": 1})


#: Bytes need no size: in a small round as many messages are sent.
TINY = (
    {"data.num_nodes": 200, "data.features": 40, "data.average_degree": 6, "data.dense": True},
    {"data.num_nodes": 150, "data.features": 60, "data.average_degree": 8},
)


def worlds(method: str, *, tiny: bool = False) -> list[dict[str, Any]]:
    if tiny and method not in FORECASTERS:
        return [{} if get_method(method).partition == "ego" else TINY[0], TINY[1]]
    if method in FORECASTERS:
        thinned = {"every": 100} if get_method(method).state.model else {}
        return [{**sensors, **thinned} for sensors in SENSORS]
    if get_method(method).partition == "ego":  # noise needs bounded features: those of digits
        return [{}, SMALL_SPARSE]
    return [SMALL_DENSE, SMALL_SPARSE] if method in HEAVY else [DENSE, SPARSE]


@cache
def inputs_of(method: str, world: int, rounds: int, *, tiny: bool = False) -> tuple[RunConfig, Inputs]:
    options: dict[str, Any] = {"data": "roads"}
    if method not in FORECASTERS:
        ego = get_method(method).partition == "ego"
        options = {"data": "digits" if ego and not world else "social", "split": "random:0.5,0.2,0.3"}
        options["clients"] = None if ego else (4, 8)[world]
    # Every round is trained: what stops early was said to take as much at most.
    settings = worlds(method, tiny=tiny)[world] | (
        {"patience": None} if get_method(method).state.model else {}
    )
    rounds_asked = rounds if get_method(method).state.model else None
    config = make_config(method, rounds=rounds_asked, settings=settings, threads=1, **options)
    return config, load_inputs(config)


def status(key: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


@pytest.fixture
def large_blocks_are_returned() -> Iterator[None]:
    """Every block above 64 KiB is the system's again when it is freed. Else a run could use what an earlier
    test of this process had freed, and its peak would not show it."""
    mallopt, threshold = ctypes.CDLL("libc.so.6").mallopt, -3
    mallopt(threshold, 2**16)
    yield
    mallopt(threshold, 2**25)


@pytest.mark.skipif(not PEAK.exists(), reason="only Linux can measure the peak of a part of a process")
@pytest.mark.usefixtures("large_blocks_are_returned")
@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize("method", [*SHIPPED, *FORECASTERS])
def test_the_predicted_memory_is_within_a_factor_of_3_of_the_peak(method: str, world: int) -> None:
    """Above `SMALL`, where the process's own memory hides it."""
    config, inputs = inputs_of(method, world, 2)
    predicted = inputs.memory_needed(config)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    PEAK.write_text("5")
    before = status("VmRSS")
    execute(config, inputs, folder=None, command="test")
    taken = max(status("VmHWM") - before, SMALL)
    ratio = max(predicted, SMALL) / taken
    assert 1 / ACCURACY <= ratio <= ACCURACY, (
        f"{predicted / 1e6:.0f} MB predicted, {taken / 1e6:.0f} MB taken"
    )


@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize(
    "method", [m for m in (*SHIPPED, *FORECASTERS) if get_method(m).personal or get_method(m).checkpoint]
)
def test_the_predicted_files_of_methods_with_a_model_per_client_are_within_a_factor_of_2(
    method: str, world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest checkpoint, three of which are there while the third is written."""
    torch.set_default_dtype(torch.float32)
    sizes: list[int] = []
    real = checkpoint.write_part

    def measure(folder: Path, number: int, *parts: Any) -> None:
        real(folder, number, *parts)
        sizes.append(sum(path.stat().st_size for path in folder.glob(f"round-*{number}/*")))

    monkeypatch.setattr(checkpoint, "write_part", measure)
    options: dict[str, Any] = {"data": "roads", "settings": {**SENSORS[world], "every": 300}}
    if method not in FORECASTERS:
        graph = {"data.num_nodes": 600, "data.features": 200, "features": ("raw", "scaled")[world]}
        options = {"data": "social", "split": "random:0.5,0.2,0.3", "clients": 40, "settings": graph}
    config = make_config(method, rounds=2, threads=1, checkpoint_every=0, **options)
    inputs = load_inputs(config)
    execute(config, inputs, folder=tmp_path, command="test")
    # Without the rest of the estimate: what it is if a checkpoint has no numbers.
    nothing = dataclasses.replace(config, method=dataclasses.replace(config.method, checkpoint=lambda *_: 0))
    predicted = inputs.bytes_needed(config) - inputs.bytes_needed(nothing)
    assert 0.5 <= predicted / (3.25 * max(sizes)) <= 2, f"{predicted} bytes, {max(sizes)} in a checkpoint"


#: Of sensors one world: what is sent is the same in every round whatever their number.
LEARNING = [(m, w) for m in (*SHIPPED, *FORECASTERS) for w in (0, 1) if get_method(m).state.model]


@pytest.mark.parametrize(("method", "world"), [(m, w) for m, w in LEARNING if not (w and m in FORECASTERS)])
def test_the_bytes_that_the_first_line_says_are_those_of_the_ledger_at_the_end(
    method: str, world: int
) -> None:
    config, inputs = inputs_of(method, world, 4, tiny=True)
    events: list[Event] = []
    result = execute(config, inputs, folder=None, command="test", on_event=events.append)
    expected = Expected()
    for event in events:
        expected.see(event)
        if event.phase == "train":
            assert expected.bytes(event) == pytest.approx(result.bytes["total"], rel=0.05)
            break


def test_a_run_that_clearly_does_not_fit_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(diagnostics, "memory_bytes", lambda: (10**6, 10**9))
    monkeypatch.setattr(running, "_train", None)
    expected = r"fedgcn on social takes about .* MB of memory, and 1\.0 MB are available; use fewer nodes"
    config, inputs = inputs_of("fedgcn", 0, 2)
    with pytest.raises(InputError, match=expected):
        execute(config, inputs, folder=tmp_path, command="test")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="of memory"):
        compare(["fedgcn"], data="digits", clients=2, seeds=[0], rounds=1, out=tmp_path / "table")
    assert not (tmp_path / "table").exists()


def test_a_run_that_may_not_fit_says_so_and_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    config, inputs = inputs_of("fedgcn", 0, 2)
    needed = inputs.memory_needed(config)
    monkeypatch.setattr(diagnostics, "memory_bytes", lambda: (needed // 2, 10**9))
    events: list[Event] = []
    execute(config, inputs, folder=None, command="test", on_event=events.append)
    (note,) = (event.note for event in events if event.phase == "note")
    assert note.endswith("are available; it may fail")

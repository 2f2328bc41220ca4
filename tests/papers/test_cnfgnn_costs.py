"""What a run is said to take, before it starts and after its first round, is what it takes.

The whole registry, on two graphs (or two sets of sensors) each: files within a factor of 2, sent bytes within
5 %."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from methods_under_law import FORECASTERS, SHIPPED

from graphfed.methods.registry import get_method
from graphfed.runs import checkpoint
from graphfed.runs.config import make_config
from graphfed.runs.progress import Expected
from graphfed.runs.run import execute
from graphfed.runs.train import Event
from graphfed.tasks.loading import load_inputs

pytestmark = pytest.mark.slow

SENSORS = ({"data.sensors": 8, "data.weeks": 1}, {"data.sensors": 24, "data.weeks": 1})
#: What is sent needs no size: in a small round as many messages are sent.
GRAPHS = (
    {"data.num_nodes": 200, "data.features": 40, "data.average_degree": 6, "data.dense": True},
    {"data.num_nodes": 150, "data.features": 60, "data.average_degree": 8},
)


def world_of(method: str, world: int) -> dict[str, Any]:
    """The data of a run of a method."""
    if method in FORECASTERS:
        thinned = {"every": 100} if get_method(method).state.model else {}
        return {"data": "roads", "settings": {**SENSORS[world], **thinned}}
    split = {"split": "random:0.5,0.2,0.3"}
    if get_method(method).partition != "ego":
        return {"data": "social", "clients": (4, 8)[world], "settings": GRAPHS[world], **split}
    # Noise needs bounded features: those of digits.
    return {"data": ("digits", "social")[world], "settings": ({}, GRAPHS[1])[world], **split}


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


LEARNING = [m for m in (*SHIPPED, *FORECASTERS) if get_method(m).state.model]


# What is sent is the same in every round, whatever the number of clients: one world of the two in turn.
@pytest.mark.parametrize(
    ("method", "world"), [(m, number % 2 * (m in SHIPPED)) for number, m in enumerate(LEARNING)]
)
def test_the_bytes_that_the_first_line_says_are_those_of_the_ledger_at_the_end(
    method: str, world: int
) -> None:
    options = world_of(method, world)
    # Every round is trained: what stops early was said to take as much at most.
    options["settings"] = {**options["settings"], "patience": None}
    config = make_config(method, rounds=4, threads=1, **options)
    inputs = load_inputs(config)
    events: list[Event] = []
    result = execute(config, inputs, folder=None, command="test", on_event=events.append)
    expected = Expected()
    for event in events:
        expected.see(event)
        if event.phase == "train":
            assert expected.bytes(event) == pytest.approx(result.bytes["total"], rel=0.05)
            break

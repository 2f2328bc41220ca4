"""The arguments of a deployed program are checked completely before anything is done with them."""

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from graphfed.deployment.arguments import check_arguments
from graphfed.deployment.deploy import request
from graphfed.deployment.memory import check_memory
from graphfed.errors import InputError
from graphfed.memory import allowed_memory, is_out_of_memory, limited_memory
from graphfed.methods.base import Task
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.common.sizes import weight_bytes
from graphfed.methods.registry import METHODS, get_method
from graphfed.runtime.nvflare.place import Place
from graphfed.runtime.nvflare.project import Project, Site

PROJECT = Project("banks", (Site("north"), Site("south", 2)))


def arguments_of(name: str) -> dict[str, Any]:
    method = get_method(name)
    asked = request(PROJECT, method, method.configure({}), run="run-1", checkpoint_every=30.0)
    arguments: dict[str, Any] = asked["arguments"]
    return arguments


@pytest.mark.parametrize("name", [name for name in METHODS.own if not get_method(name).pooled])
def test_what_the_coordinator_asks_for_is_accepted(name: str) -> None:
    check_arguments(arguments_of(name), 3)
    check_arguments({**arguments_of(name), "stamp": "20260101-000000", "plugin": PLUGIN}, 3)


PLUGIN = {"module": "m", "version": "1", "sha256": "0" * 64}
WRONG: dict[str, list[Any]] = {
    "run": ["../x", 1, None],
    "method": [None, 1, "a" * 201],
    "plugin": ["x", {"version": 1}, {"module": "m", "version": "1"}, {**PLUGIN, "path": "/"}],
    "config": [None, [], "x"],
    "dtype": ["float16", "float32 ", None, 1],
    "split": [None, 1, "a" * 201],
    "split_seed": [-1, 2**63, 0.5, "1", None, True],
    "sites": [None, "north", [1]],
    "roster": [None, [], ["a"], ["a", "b", "a" * 201], [1, 2, 3]],
    "checkpoint_every": [-1, 1e30, None, "30"],
    "wait": [-1, 1e30, None, "30"],
    "rehearsal": [None, 0, "yes"],
    "stamp": ["../../x", "", 5, "a/b"],
    "environment": [{}],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in WRONG.items() for v in values])
def test_a_wrong_argument_is_refused(field: str, value: object) -> None:
    with pytest.raises(InputError):
        check_arguments({**arguments_of("fedavg"), field: value}, 3)


@pytest.mark.parametrize(
    "settings",
    [{}, {"layers": 1}, {"layers": 4, "hidden": 32}, {"backbone": "gat", "heads": 3, "output_heads": 2}],
)
def test_the_bytes_of_weights_are_those_of_the_matrices_of_the_network(settings: dict[str, Any]) -> None:
    """Their gradients and Adam's two moments included; biases and attention vectors are less than a tenth."""
    config: Any = get_method("fedavg").configure(settings)
    weights = initial_weights(Task(100, 7), config.network, config.run.seed, "cpu")
    numbers = sum(weight.numel() for weight in weights.values() if isinstance(weight, torch.Tensor))
    assert 0.9 * 16 * numbers < weight_bytes(config, 100, 7) <= 16 * numbers


def test_a_run_whose_weights_or_hidden_values_are_above_the_limit_is_refused() -> None:
    method = get_method("fedavg")
    place, config = Place("north", Path("kit"), memory=10**9), method.configure({"hidden": 50})
    # 50 hidden values of a row take 200 bytes.
    check_memory(place, method, config, Task(10, 2), 4_900_000)
    with pytest.raises(InputError, match=r"north refuses the run: fedavg .* at least 1\.0 GB .* 1\.0 GB are"):
        check_memory(place, method, config, Task(10, 2), 5_100_000)
    with pytest.raises(InputError, match=r"at least 192 GB of memory there, and 1\.0 GB are allowed"):
        check_memory(place, method, method.configure({"hidden": 10**9}), Task(10, 2), 0)
    with pytest.raises(InputError, match=r"at least 16\.0 GB of memory"):
        check_memory(place, method, method.configure({"hidden": 1, "layers": 10**9}), Task(10, 2), 1)


def test_the_lowest_limit_of_the_blocks_that_run_holds_whichever_ends_first() -> None:
    before, limits = resource.getrlimit(resource.RLIMIT_DATA), []
    low, high = limited_memory(1 << 32), limited_memory(1 << 34)
    for step in (low.__enter__, high.__enter__, lambda: low.__exit__(None, None, None)):
        step()
        limits.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
    high.__exit__(None, None, None)
    assert limits[0] == limits[1] < limits[2]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_process_allocates_no_more_than_its_limit_and_is_free_of_it_afterwards() -> None:
    with pytest.raises((MemoryError, RuntimeError)) as refused, limited_memory(100_000_000):
        torch.zeros(1 << 28)
    assert is_out_of_memory(refused.value)
    assert not is_out_of_memory(RuntimeError("another one"))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert torch.zeros(1 << 28).numel() == 1 << 28
    assert allowed_memory(5) == 5

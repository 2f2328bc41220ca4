"""The second device of the tests refuses what a GPU refuses, and allows what it allows."""

from collections.abc import Callable

import pytest
import torch
from second_device import second_device
from torch import Tensor

REFUSED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "the sum of two vectors": lambda here, there: here + there,
    "a product in place": lambda here, there: here.mul_(there),
    "a list": lambda here, there: torch.cat([there, here]),
    "an index on the second device": lambda here, there: here[there.long()],
    "rows to add up": lambda here, there: there.index_add_(0, here.long(), there),
    "a number of the second device": lambda here, there: here * there.sum(),
    "numpy": lambda here, there: there.numpy(),
}
ALLOWED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a number of the host": lambda here, there: there * here.sum(),
    "an index on the host": lambda here, there: there[here.long()],
    "values from the host": lambda here, there: torch.zeros_like(there).copy_(here),
    "a move": lambda here, there: there + here.to(there.device),
    "the device by name": lambda here, there: there + torch.ones(2, device="cuda"),
    "the device of another tensor": lambda here, there: there + here.to(there),
}


def vectors() -> tuple[Tensor, Tensor]:
    return torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0], device="cuda")


@pytest.mark.parametrize("case", REFUSED)
def test_tensors_of_two_devices_are_not_combined(case: str) -> None:
    with second_device(), pytest.raises((RuntimeError, TypeError)):
        REFUSED[case](*vectors())


@pytest.mark.parametrize("case", ALLOWED)
def test_what_a_gpu_allows_gives_a_tensor_that_is_there(case: str) -> None:
    with second_device():
        found = ALLOWED[case](*vectors())
        assert found.device == torch.device("cuda:0")
        assert found.cpu().device.type == "cpu"
        assert found.cpu().numpy().shape == found.shape

"""A second device on a machine that has none: while it is installed, tensors that were moved to "cuda" stay
in the processor's memory and are marked, and every function of torch refuses what a GPU refuses: to combine
marked tensors with others, and to let numpy read a marked one. What autograd computes is not looked at."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

SECOND, HOST = torch.device("cuda:0"), torch.device("cpu")
READ_BY_NUMPY = (Tensor.numpy, Tensor.__array__)
INDEXED = (Tensor.__getitem__, Tensor.__setitem__)


def tensors_in(x: object) -> Iterator[Tensor]:
    """Yield the tensors in an argument or a result."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        for value in x.values():
            yield from tensors_in(value)
    elif isinstance(x, list | tuple):
        for value in x:
            yield from tensors_in(value)


def is_second(x: Tensor) -> bool:
    return getattr(x, "_is_second", False)


def place(x: object, second: bool) -> Any:
    """Mark the tensors in a value, and return it."""
    for tensor in tensors_in(x):
        tensor._is_second = second  # type: ignore[attr-defined]
    return x


def asked_device(x: object) -> torch.device | None:
    """The device that an argument names or has; None: it is something else."""
    if isinstance(x, Tensor):
        return SECOND if is_second(x) else HOST
    if isinstance(x, torch.device):
        return x
    return torch.device(x) if isinstance(x, str) and x.partition(":")[0] in ("cpu", "cuda") else None


def moved(x: Tensor, second: bool) -> Tensor:
    """Return a tensor on a device: the tensor itself, or a copy."""
    return x if is_second(x) == second else place(x.clone(), second)


class SecondDevice(TorchFunctionMode):
    """Marks tensors by their device, and refuses to combine them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return asked_device(args[0])
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return is_second(args[0])
        if func is Tensor.cpu:
            return moved(args[0], second=False)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func in READ_BY_NUMPY and is_second(args[0]):
            raise TypeError("numpy cannot read a tensor of the second device; use .cpu()")
        device = asked_device(kwargs.pop("device", None))
        second = self._on_second(func, args, kwargs)
        result = func(*args, **kwargs)
        return place(result, second if device is None else device.type == "cuda")

    def _to(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        devices = [d for d in map(asked_device, [*args, kwargs.pop("device", None)]) if d is not None]
        kept = [
            x.dtype if isinstance(x, Tensor) else x
            for x in args
            if isinstance(x, Tensor) or asked_device(x) is None
        ]
        second = devices[0].type == "cuda" if devices else is_second(x)
        result = x.to(*kept, **kwargs) if kept or kwargs else x
        if result is not x:
            place(result, is_second(x))
        return moved(result, second)

    def _on_second(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a function's results are on the second device."""
        if func in INDEXED:
            x, index = args[0], list(tensors_in(args[1]))
            if not is_second(x) and any(map(is_second, index)):
                raise RuntimeError("a tensor of the host is indexed by one of the second device")
            return is_second(x)
        if func is Tensor.copy_:
            return is_second(args[0])
        found = [*tensors_in(args), *tensors_in(kwargs)]
        second = any(map(is_second, found))
        if second and not all(is_second(x) or (x.dim() == 0 and func is not torch.cat) for x in found):
            name = getattr(func, "__qualname__", func)
            raise RuntimeError(f"{name}: tensors of the host and of the second device are combined")
        if second and not any(is_second(x) and x.dim() for x in found) and any(x.dim() for x in found):
            raise RuntimeError(f"{func}: a number of the second device is combined with a tensor of the host")
        return second


@contextmanager
def second_device() -> Iterator[None]:
    """Let "cuda" be a device on this machine."""
    with (
        mock.patch("torch.cuda.device_count", return_value=1),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.is_bf16_supported", return_value=False),
        SecondDevice(),
    ):
        yield

"""Values that live at a place.

A `Located` value has a place (`clients` or `server`) and one part for every host of that place in this process: stacked, all
clients are one host; one at a time, every client is a host; in separate processes, each process has its own host's part and
nothing else. Only functions run at the place see the parts.
"""

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.nn.sparse import SparseMatrix, SparseWeights

__all__ = ["ABSENT", "CLIENTS", "SERVER", "Located", "check_arguments", "check_function"]

CLIENTS, SERVER = "clients", "server"


class _Absent:
    """The part of a host none of whose clients take part in this round."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


@dataclass(frozen=True, eq=False)
class Located:
    """A value at `place`; `parts` holds one entry for each host of that place in this process.

    `members` [K] bool are the clients that have the value (None: all of them, or the server)."""

    place: str
    name: str
    parts: tuple[Any, ...]
    members: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"<{self.name!r} at {self.place}>"

    def __bool__(self) -> bool:
        raise PlaceError(
            f"{self!r} was used to branch in the program: its value is known only at {self.place}; "
            "decide with fed.control(...), which sends the decision to every place"
        )

    def __iter__(self) -> Any:
        raise PlaceError(f"{self!r} cannot be unpacked in the program; take it apart in a function run at {self.place}")


def check_arguments(place: str, stage: str, arguments: Iterable[Any]) -> None:
    """Every located argument must live at `place`; the error names the value and the transfer that is missing."""
    for argument in arguments:
        if isinstance(argument, Located) and argument.place != place:
            missing = "upload, sum, average or max" if place == SERVER else "download or broadcast"
            raise PlaceError(
                f"{stage}: {argument.name!r} lives at {argument.place} but was used at {place}; "
                f"move it there with a named transfer first ({missing})"
            )


_checked_code: set[types.CodeType] = set()


def check_function(fn: Callable[..., Any]) -> None:
    """Refuse a function that carries data of its own (design decision 1): closures, defaults, partials, bound objects and
    globals must hold no tensor, module or located value. It would leak between places in one process and break in two."""
    if (
        isinstance(fn, types.FunctionType)
        and fn.__closure__ is None
        and fn.__defaults__ is None
        and fn.__kwdefaults__ is None
        and fn.__code__ in _checked_code
    ):
        return
    name = getattr(fn, "__qualname__", repr(fn))
    for origin, value in _carried(fn):
        for leaf in _leaves(value):
            if isinstance(leaf, Tensor | torch.nn.Module | Located | SparseMatrix | SparseWeights):
                raise PlaceError(
                    f"{name} carries a {type(leaf).__name__} in {origin}: a function run at a place takes every value as an "
                    "argument; pass it to run(...) instead"
                )
    if isinstance(fn, types.FunctionType):
        _checked_code.add(fn.__code__)


def _carried(fn: Any) -> Iterable[tuple[str, Any]]:
    """Where a callable can hide data, with the data."""
    if hasattr(fn, "func") and hasattr(fn, "args") and hasattr(fn, "keywords"):  # functools.partial
        yield "a partial's arguments", (fn.args, dict(fn.keywords))
        yield from _carried(fn.func)
        return
    if isinstance(fn, types.MethodType):
        yield "its object", fn.__self__
        fn = fn.__func__
    if not isinstance(fn, types.FunctionType):
        yield "its object", fn
        return
    for cell, name in zip(fn.__closure__ or (), fn.__code__.co_freevars, strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # a name not bound yet, for example the function itself
            continue
        if isinstance(content, types.FunctionType) and content is not fn:
            yield from _carried(content)
        else:
            yield f"its closure ({name})", content
    yield "its defaults", (fn.__defaults__, fn.__kwdefaults__)
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            value = fn.__globals__[name]
            if isinstance(value, Tensor | torch.nn.Module | Located):
                yield f"the global {name}", value


def _leaves(value: Any, depth: int = 6) -> Iterable[Any]:
    if isinstance(value, dict) and depth:
        for item in value.values():
            yield from _leaves(item, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth:
        for item in value:
            yield from _leaves(item, depth - 1)
    elif is_dataclass(value) and not isinstance(value, Located | SparseMatrix | SparseWeights | type) and depth:
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), depth - 1)
    elif (
        depth
        and hasattr(value, "__dict__")
        and not isinstance(
            value,
            type | types.ModuleType | types.FunctionType | Tensor | torch.nn.Module | Located | SparseMatrix,
        )
    ):
        yield value
        for item in vars(value).values():
            yield from _leaves(item, depth - 1)
    else:
        yield value


"""Values that live at a place.

A `Located` value has a place (`clients` or `server`) and one part for every worker of that place in this
process: stacked, all clients are one worker; one at a time, every client is a worker; in separate
processes, each
process has its own worker's part and nothing else. Only functions run at the place see the parts.
"""

import contextlib
import dis
import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.nn.sparse import SparseMatrix, SparseWeights

__all__ = [
    "ABSENT",
    "CLIENTS",
    "SERVER",
    "Located",
    "OfTheProgram",
    "check_arguments",
    "check_function",
    "versions",
]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Content_co = TypeVar("Content_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Content_co = TypeVar("Content_co", covariant=True)  # a default needs Python 3.13

CLIENTS, SERVER = "clients", "server"


class _Absent:
    """The part of a worker none of whose clients take part in this round."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


class OfTheProgram:
    """What the program holds and functions run at a place never see: located values, the federation."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Located(OfTheProgram, Generic[Content_co]):
    """A value at `place`; `parts` holds one entry for each worker of that place in this process.

    The type argument is the type of a part, as functions run at the place get it; it may be left out.
    `members` [K] bool are the clients that have the value (None: all of them, or the server). The program
    passes a located value on; it can neither branch on it, nor compare it, nor take it apart: each is a
    PlaceError."""

    place: str
    name: str
    parts: tuple[Any, ...]
    members: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"<{self.name!r} at {self.place}>"

    def _refuse_branch(self, *others: object) -> NoReturn:
        raise PlaceError(
            f"{self!r} was used to branch or compare in the program: its value is known only at "
            f"{self.place}; decide with fed.control(...), which sends the decision to every place"
        )

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_branch
    __int__ = __float__ = __index__ = _refuse_branch
    __hash__ = object.__hash__

    def _refuse_parts(self, *keys: object) -> NoReturn:
        raise PlaceError(
            f"{self!r} cannot be unpacked in the program; take it apart in a function run at {self.place}"
        )

    __iter__ = __len__ = __getitem__ = __contains__ = _refuse_parts


#: What nobody needs to look into.
_PLAIN = (bool, int, float, str, bytes, type(None))

#: What holds data: it lives at a place, so neither a function nor a bare argument may bring it along.
_DATA = (Tensor, torch.nn.Module, np.ndarray, SparseMatrix, SparseWeights)


def check_arguments(place: str, stage: str, arguments: Iterable[object]) -> None:
    """Refuse arguments that do not live at `place`; the error names the value and the transfer that is
    missing.

    Data that no place owns (a bare tensor) is refused too: in separate processes nobody would have it."""
    for argument in arguments:
        if isinstance(argument, Located):
            if argument.place != place:
                missing = (
                    "upload, gather, sum, average or max" if place == SERVER else "download or broadcast"
                )
                raise PlaceError(
                    f"{stage}: {argument.name!r} lives at {argument.place} but was used at {place}; "
                    f"move it there with a named transfer first ({missing})"
                )
        elif isinstance(argument, _DATA):
            raise PlaceError(
                f"{stage}: a bare {type(argument).__name__} was passed at {place}, but data lives "
                "at a place; make it in a function run there, or name its owner with fed.locate(...)"
            )
        elif not isinstance(argument, _PLAIN):
            _check_object(place, stage, argument)


#: Frozen objects that hide nothing, by identity: an equal one may, in a field that does not count.
_plain_configs: WeakValueDictionary[int, object] = WeakValueDictionary()


def _check_object(place: str, stage: str, argument: object) -> None:
    """Refuse a container or an object that brings data or located values along, however deep it holds
    them."""
    frozen = is_dataclass(argument) and getattr(argument, "__dataclass_params__").frozen  # noqa: B009
    if frozen and _plain_configs.get(id(argument)) is argument:
        return
    for _, item in _data_in(argument, "", {}, _DEPTH):
        raise PlaceError(
            f"{stage}: a {type(argument).__name__} with a {type(item).__name__} in it was "
            f"passed at {place}; pass every located value as an argument of its own"
        )
    if frozen:
        # One that holds what can change has no hash, and one with slots may have no weak reference: both are
        # looked at every time.
        with contextlib.suppress(TypeError):
            hash(argument)
            _plain_configs[id(argument)] = argument


def versions(inputs: Iterable[object]) -> list[tuple[Tensor, int]]:
    """The tensors of the payloads among `inputs`, each with its count of in-place writes."""
    found: list[tuple[Tensor, int]] = []
    for value in inputs:
        if isinstance(value, Tensor):
            found.append((value, value._version))
        elif isinstance(value, SparseMatrix | SparseWeights):
            found.append((value.values, value.values._version))
        elif isinstance(value, dict):
            found += versions(value.values())
        elif isinstance(value, tuple):
            found += versions(value)
    return found


# ---- functions that carry data -----------------------------------------------------------------------------

_checked: WeakSet[types.FunctionType] = WeakSet()

#: How deep to look into what a function carries. A guard against mistakes, not a sandbox.
_DEPTH, _GLOBAL_DEPTH = 6, 3


def check_function(fn: Callable[..., object]) -> None:
    """Refuse a function that carries data of its own: closures, defaults, partials, bound
    objects and globals must hold no tensor, array, module, located value or federation. It would leak between
    places in one process and break in two. Plain values (numbers, text, configs) and functions may be
    carried.

    A plain function is looked at once, one with a closure or defaults every time. Raises PlaceError."""
    plain = isinstance(fn, types.FunctionType) and not (
        fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__
    )
    if plain and fn in _checked:
        return
    for origin, value in _data_of_callable(fn, {}, _DEPTH):
        name = getattr(fn, "__qualname__", repr(fn))
        raise PlaceError(
            f"{name} carries a {type(value).__name__} in {origin}: a function run at a place takes every "
            "value as an argument; pass it to run(...) instead"
        )
    if isinstance(fn, types.FunctionType) and plain:
        _checked.add(fn)


#: The objects that were looked into, by identity: kept, so that no other one gets the same.
Seen = dict[int, object]
#: Data found, with where.
Found = Iterator[tuple[str, object]]


def _data_of_callable(fn: object, seen: Seen, depth: int) -> Found:
    """The data that a callable hides, with where."""
    if isinstance(fn, functools.partial):
        yield from _data_in(fn.args, "a partial's arguments", seen, depth)
        yield from _data_in(fn.keywords, "a partial's arguments", seen, depth)
        yield from _data_in(fn.func, "a partial's function", seen, depth)
    elif isinstance(fn, types.FunctionType):
        yield from _data_of_function(fn, seen, depth, look_at_globals=True)
    elif isinstance(fn, types.MethodType | types.BuiltinMethodType):
        yield from _data_in(fn.__self__, "its object", seen, depth)
        if isinstance(fn, types.MethodType):
            yield from _data_in(fn.__func__, "its function", seen, depth)
    elif not isinstance(fn, type):
        yield from _data_in(fn, "its object", seen, depth)
        yield from _data_in(type(fn).__call__, "its __call__", seen, depth)


def _data_of_function(fn: types.FunctionType, seen: Seen, depth: int, *, look_at_globals: bool) -> Found:
    for cell, name in zip(fn.__closure__ or (), fn.__code__.co_freevars, strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # a name not bound yet
            continue
        yield from _data_in(content, f"its closure ({name})", seen, depth)
    yield from _data_in(fn.__defaults__, "its defaults", seen, depth)
    yield from _data_in(fn.__kwdefaults__, "its defaults", seen, depth)
    yield from _data_in(fn.__dict__, "its attributes", seen, depth)
    if look_at_globals:
        for name in _global_names(fn.__code__):
            value = fn.__globals__.get(name)
            if isinstance(value, types.FunctionType):
                yield from _data_of_function(value, seen, _GLOBAL_DEPTH, look_at_globals=False)
            else:
                yield from _data_in(value, f"the global {name}", seen, _GLOBAL_DEPTH)


@functools.lru_cache(maxsize=4096)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """The global names a function uses, those of functions inside it too."""
    names = {
        i.argval
        for i in dis.get_instructions(code)
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
    }
    inner = (_global_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return tuple(sorted(names.union(*inner)))


def _data_in(value: object, origin: str, seen: Seen, depth: int) -> Found:
    """Data in a value, its containers and its attributes. `seen` keeps what was looked at, so cycles end."""
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | type | types.ModuleType
    ):
        return
    if isinstance(value, (*_DATA, OfTheProgram)):
        yield origin, value
        return
    if depth == 0 or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, types.FunctionType):
        yield from _data_of_function(value, seen, depth - 1, look_at_globals=True)
    elif isinstance(value, functools.partial | types.MethodType | types.BuiltinMethodType):
        yield from _data_of_callable(value, seen, depth - 1)
    else:
        if isinstance(value, Mapping):
            items = list(value.values())
        elif isinstance(value, list | tuple | set | frozenset | deque):
            items = list(value)
        else:
            items = _attributes(value)
        for item in items:
            yield from _data_in(item, origin, seen, depth - 1)


def _attributes(value: object) -> list[object]:
    """What an object's attributes hold, those in slots too."""
    slots = [kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for slot in slots for name in ((slot,) if isinstance(slot, str) else slot)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in names)]

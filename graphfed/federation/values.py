"""Values that live at a place.

A `Located` value has a place (`clients` or `server`) and one part for every participant of that place in this
process. With all clients stacked there is one worker and one part; with one client at a time, every client is
a worker; in separate processes, each process has only the part of its own worker. Only functions that run at
the place get the parts.
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

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Content_co = TypeVar("Content_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Content_co = TypeVar("Content_co", covariant=True)  # a default needs Python 3.13

CLIENTS, SERVER = "clients", "server"


class _Absent:
    """The part of a worker whose clients all are absent in this round."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


class ProgramObject:
    """What a program holds and functions that run at a place never get: located values and the federation."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Located(ProgramObject, Generic[Content_co]):
    """A value at a place.

    The type argument is the type of a part; it may be left out. A program passes located values on. It cannot
    branch on them, compare them or take them apart: each is a PlaceError.

    Attributes:
        place: `CLIENTS` or `SERVER`.
        name: What messages call it.
        parts: One part for each participant of the place in this process.
        members: [K] bool, the clients that have the value. None: all of them, or the server.
    """

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

    # A program that branched on a value could take different paths in different processes.
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_branch
    __int__ = __float__ = __index__ = _refuse_branch
    __hash__ = object.__hash__

    def _refuse_parts(self, *keys: object) -> NoReturn:
        raise PlaceError(
            f"{self!r} cannot be unpacked in the program; take it apart in a function run at {self.place}"
        )

    __iter__ = __len__ = __getitem__ = __contains__ = _refuse_parts


#: Types that hold no data of a place.
_PLAIN = (bool, int, float, str, bytes, type(None))

#: Types that hold data. Data lives at a place, so neither a function nor a bare argument may carry it.
_DATA = (Tensor, torch.nn.Module, np.ndarray, SparseMatrix, SparseWeights)


def check_arguments(place: str, stage: str, arguments: Iterable[object]) -> None:
    """Refuse arguments that do not live at a place.

    The error names the value and the transfer that is missing.

    A bare tensor is refused too: in separate processes, no process would have it.

    Args:
        place: The place at which they are used, `CLIENTS` or `SERVER`.
        stage: What uses the arguments, for the error.

    Raises:
        PlaceError: For an argument from another place, and for data outside located values.
    """
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
                f"{stage}: a bare {type(argument).__name__} was passed at {place}, but data must live "
                "at a place; make it in a function run there, or locate it with fed.locate(...)"
            )
        elif not isinstance(argument, _PLAIN):
            _check_object(place, stage, argument)


#: Frozen objects that hold no data, by identity: an equal object may hold data in a field that `==` ignores.
_plain_configs: WeakValueDictionary[int, object] = WeakValueDictionary()


def _check_object(place: str, stage: str, argument: object) -> None:
    """Refuse a container or an object that carries data or located values, at any depth."""
    frozen = is_dataclass(argument) and getattr(argument, "__dataclass_params__").frozen  # noqa: B009
    # By identity and still alive: the id of an object that is gone may be that of another.
    if frozen and _plain_configs.get(id(argument)) is argument:
        return
    for _, item in _data_in(argument, "", {}, _DEPTH):
        raise PlaceError(
            f"{stage}: a {type(argument).__name__} with a {type(item).__name__} in it was "
            f"passed at {place}; pass every located value as an argument of its own"
        )
    if frozen:
        # An object with mutable fields has no hash, and one with slots may allow no weak reference: both are
        # searched every time.
        with contextlib.suppress(TypeError):
            hash(argument)
            _plain_configs[id(argument)] = argument


def versions(inputs: Iterable[object]) -> list[tuple[Tensor, int]]:
    """List the tensors in some payloads, to detect writes into them.

    Returns:
        Each tensor with its count of in-place writes.
    """
    found: list[tuple[Tensor, int]] = []
    for value in inputs:
        if isinstance(value, Tensor):
            # torch counts in-place writes in `_version`, also those through views.
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

#: How deep to search what a function carries. The search guards against mistakes; it is not a sandbox.
_DEPTH, _GLOBAL_DEPTH = 6, 3


def check_function(fn: Callable[..., object]) -> None:
    """Refuse a function that carries data.

    Closures, defaults, partials, bound objects and globals must hold no tensor, array, module, located value
    or federation. Such data would be shared between places in one process, and missing in separate processes.
    A function may carry plain values (numbers, text, configs) and functions. A plain function is searched
    once, one with a closure or defaults every time.

    Raises:
        PlaceError: If it carries data.
    """
    # What a plain function carries does not change between calls; closures and defaults do.
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


#: The objects that were searched, by identity. They are kept, so that no other object gets the same identity.
Seen = dict[int, object]
#: (where it was found, data) for all data that was found.
Found = Iterator[tuple[str, object]]


def _data_of_callable(fn: object, seen: Seen, depth: int) -> Found:
    """Find the data that a callable carries."""
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
    # A class is not searched: every process has the same.
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
                # The globals of a called function are not followed: the search would cover the whole program.
                yield from _data_of_function(value, seen, _GLOBAL_DEPTH, look_at_globals=False)
            else:
                yield from _data_in(value, f"the global {name}", seen, _GLOBAL_DEPTH)


@functools.lru_cache(maxsize=4096)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """The global names that a function uses, with those of functions inside it."""
    names = {
        i.argval
        for i in dis.get_instructions(code)
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
    }
    inner = (_global_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return tuple(sorted(names.union(*inner)))


def _data_in(value: object, origin: str, seen: Seen, depth: int) -> Found:
    """Find the data in a value, its containers and its attributes. `seen` ends the search in cycles."""
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | type | types.ModuleType
    ):
        return
    if isinstance(value, (*_DATA, ProgramObject)):
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
    """The values of an object's attributes, with those in slots."""
    slots = [kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for slot in slots for name in ((slot,) if isinstance(slot, str) else slot)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in names)]

"""A safe reader of the pickles among Planetoid's raw files.

The files are Python 2 pickles. Python's unpickler is not used, even with a short list of permitted names: a
file of a hundred bytes can make it hash a tuple of 2^60 parts, or nest values until the stack overflows. The
small interpreter in this module knows the opcodes and the six names that these files need. It never calls a
function that a file names, and it accepts only numbers and texts as keys. numpy receives checked numbers,
never an object's state from the file. Time and memory grow with the length of the file.
"""

import math
import pickletools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.messages import brief
from graphfed.data.sparse import csr_from_arrays
from graphfed.errors import InputError

__all__ = ["SOURCE", "read_pickle"]

SOURCE = "the public repository kimiyoung/planetoid, folder data"
MAX_ARRAYS = 3  # data, indices and indptr of a csr matrix


def read_pickle(content: bytes, path: Path) -> Any:
    """Read a Planetoid file. No code in the file runs.

    Args:
        content: The content of the file.
        path: The path of the file, for messages.

    Returns:
        The array, csr matrix or dict in the file.

    Raises:
        InputError: The file is damaged, or uses an opcode or a name that no Planetoid file needs.
    """
    try:
        return _Interpreter().run(content)
    except Exception as error:  # a hostile or damaged pickle can fail in any way
        raise InputError(
            f"{path} is not a Planetoid file and was refused: {brief(error)}; get it from {SOURCE}"
        ) from error


class _Name(Enum):
    """The names of functions and classes that the files use."""

    RECONSTRUCT = "numpy.core.multiarray _reconstruct"
    NDARRAY = "numpy ndarray"
    DTYPE = "numpy dtype"
    CSR = "scipy.sparse.csr csr_matrix"
    DEFAULTDICT = "collections defaultdict"
    LIST = "__builtin__ list"


class _Built(ABC):
    """A placeholder for a numpy or scipy object whose state the file has not stated yet."""

    def __init__(self) -> None:
        self.value: Any = None

    def build(self, state: Any) -> None:
        if self.value is not None:
            raise ValueError("an object is filled in twice")
        self.value = self.from_state(state)

    @abstractmethod
    def from_state(self, state: Any) -> Any:
        """Build the object from its state."""


class _Dtype(_Built):
    """A dtype: its code, such as "f4", comes first, and its byte order is the state."""

    def __init__(self, code: Any) -> None:
        super().__init__()
        if not (isinstance(code, str) and re.fullmatch("[biuf][1248]", code)):
            raise ValueError("it has an array of something other than numbers")
        self.code = code

    def from_state(self, state: Any) -> np.dtype[Any]:
        if state[1] not in ("<", ">", "=", "|"):
            raise ValueError("it has an array of unknown byte order")
        return np.dtype(self.code).newbyteorder(state[1])


class _Array(_Built):
    def from_state(self, state: Any) -> np.ndarray:
        _, shape, dtype, fortran, text = state
        if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 2 or not isinstance(text, str):
            raise ValueError("it has an array of unusable shape or content")
        raw = text.encode("latin1")  # a Python 2 string has one character per byte
        if math.prod(shape) * dtype.value.itemsize != len(raw):
            raise ValueError(f"it has an array of shape {shape} with {len(raw)} bytes")
        return np.ndarray(shape, dtype.value, raw, order="F" if fortran else "C")


class _Csr(_Built):
    def from_state(self, state: Any) -> sp.csr_matrix:
        data, indices, indptr = (state[key].value for key in ("data", "indices", "indptr"))
        return csr_from_arrays(data, indices, indptr, state["_shape"])


class _Interpreter:
    """An interpreter of pickle opcodes, with a stack and a memo of values that are used again."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.arrays = 0
        self.run_opcode: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(("BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING"), self.push),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), self.put),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), self.get),
            "PROTO": lambda _: None,
            "NONE": lambda _: self.push(None),
            "NEWTRUE": lambda _: self.push(True),
            "NEWFALSE": lambda _: self.push(False),
            "EMPTY_LIST": lambda _: self.push([]),
            "EMPTY_DICT": lambda _: self.push({}),
            "EMPTY_TUPLE": lambda _: self.push(()),
            "MARK": lambda _: self.marks.append(len(self.stack)),
            "TUPLE1": lambda _: self.push(tuple(self.pop(1))),
            "TUPLE2": lambda _: self.push(tuple(self.pop(2))),
            "TUPLE3": lambda _: self.push(tuple(self.pop(3))),
            "TUPLE": lambda _: self.push(tuple(self.pop_to_mark())),
            "APPEND": lambda _: self.append(self.pop(1)),
            "APPENDS": lambda _: self.append(self.pop_to_mark()),
            "SETITEM": lambda _: self.set_items(self.pop(2)),
            "SETITEMS": lambda _: self.set_items(self.pop_to_mark()),
            "GLOBAL": self.name,
            "REDUCE": lambda _: self.call(*self.pop(2)),
            "NEWOBJ": lambda _: self.new(*self.pop(2)),
            "BUILD": lambda _: self.build(*self.pop(1)),
        }

    def run(self, content: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                break
            if opcode.name not in self.run_opcode:
                raise ValueError(f"it uses the opcode {opcode.name}, which no Planetoid file needs")
            self.run_opcode[opcode.name](argument)
        (value,) = self.pop(1)
        if isinstance(value, _Built):
            value = value.value
        if not isinstance(value, np.ndarray | sp.csr_matrix | dict):
            raise ValueError("it holds no array, csr matrix or dict")
        return value

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def put(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    def get(self, key: int) -> None:
        if key not in self.memo:
            raise ValueError("it uses a value that it never stored")
        self.push(self.memo[key])

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes more values from the stack than the stack has")
        return [self.stack.pop() for _ in range(count)][::-1]

    def pop_to_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("it appends to something that is no list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not dict:
            raise ValueError("it sets items of something that is no dict")
        # Tuples are not accepted as keys, because hashing a nested tuple may take forever.
        if not all(type(key) in (int, str) for key in items[::2]):
            raise ValueError("it has a dict whose keys are neither numbers nor text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def name(self, full_name: str) -> None:
        if full_name not in [known.value for known in _Name]:
            raise ValueError(f"it names {full_name.replace(' ', '.')}, which no Planetoid file needs")
        self.push(_Name(full_name))

    def call(self, function: Any, arguments: Any) -> None:
        if function is _Name.RECONSTRUCT:
            self.arrays += 1
            if self.arrays > MAX_ARRAYS:
                raise ValueError(f"it holds more than {MAX_ARRAYS} arrays")
            self.push(_Array())
        elif function is _Name.DTYPE:
            self.push(_Dtype(arguments[0]))
        elif function is _Name.DEFAULTDICT:
            self.push({})
        else:
            raise ValueError("it calls something that no Planetoid file calls")

    def new(self, kind: Any, _: Any) -> None:
        if kind is not _Name.CSR:
            raise ValueError("it makes an object that no Planetoid file holds")
        self.push(_Csr())

    def build(self, state: Any) -> None:
        if not isinstance(self.stack[-1], _Built):
            raise ValueError("it fills in something that is no array or matrix")
        self.stack[-1].build(state)

"""Payloads as bytes: a checked JSON header and safetensors, never pickle.

Layout: 8 bytes little-endian header length, the header (UTF-8 JSON), then one safetensors block. The header
holds the structure of the payload and what the sender says of it (for the tape, whether it wants a gradient).
"""

import json
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from graphfed.errors import GraphfedError, shown
from graphfed.files import refuse_constant
from graphfed.nn.sparse import SparseMatrix

MAX_HEADER = 1 << 24


class WireError(GraphfedError):
    """Bytes that are not a payload, or a payload that cannot be converted to bytes."""


def encode(payload: object, **header: object) -> bytes:
    """Encode a payload as bytes.

    Args:
        payload: Tensors and plain JSON values, in dictionaries with text keys, tuples and lists. Lists arrive
            as tuples. A SparseMatrix is sent as dense rows and arrives sparse.
        header: Plain JSON values for the header.

    Raises:
        WireError: For anything else.
    """
    tensors: dict[str, Tensor] = {}

    def strip(value: object) -> Any:
        if isinstance(value, Tensor):
            key = str(len(tensors))
            # A copy, because safetensors refuses tensors that share memory.
            tensors[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
            return {"t": key}
        if isinstance(value, SparseMatrix):
            return {"s": strip(value.to_dense())["t"]}
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise TypeError(f"dictionary keys are text, got {list(value)[:5]}")
            return {"d": [[key, strip(item)] for key, item in value.items()]}
        if isinstance(value, tuple | list):
            return {"l": [strip(item) for item in value]}
        if value is None or isinstance(value, bool | int | float | str):
            return {"v": value}
        raise TypeError(f"a {type(value).__name__} is neither a tensor nor a plain value")

    try:
        text = json.dumps({"payload": strip(payload), **header}, allow_nan=False).encode()
        block = save(tensors)
    except Exception as error:
        raise WireError(f"the payload cannot be sent: {error}") from error
    if len(text) > MAX_HEADER:
        raise WireError(f"the payload cannot be sent: a header of {len(text)} bytes (at most {MAX_HEADER})")
    return b"".join((len(text).to_bytes(8, "little"), text, block))


def decode(message: bytes) -> tuple[Any, dict[str, Any]]:
    """Decode a payload.

    Returns:
        The payload, and the rest of the header.

    Raises:
        WireError: If the bytes are anything else.
    """
    try:
        size = int.from_bytes(message[:8], "little")
        # The length comes from the sender: bound it before anything is allocated or parsed.
        if not 0 < size <= min(MAX_HEADER, len(message) - 8):
            raise ValueError(f"header of {size} bytes in a message of {len(message)}")
        header = json.loads(message[8 : 8 + size], parse_constant=refuse_constant)
        tensors = load(message[8 + size :])
        payload = _fill(header.pop("payload"), tensors)
        # `_fill` removes each tensor that it uses.
        if tensors:
            raise ValueError(f"tensors that the header does not name: {sorted(tensors)[:5]}")
        return payload, header
    except Exception as error:
        # The error may quote the message, which another participant wrote.
        reason = shown(str(error))[1:-1]
        raise WireError(f"a message of {len(message)} bytes is not a graphfed payload: {reason}") from error


def _fill(node: Any, tensors: dict[str, Tensor]) -> Any:
    """Rebuild the payload that a header describes. Every tensor must be used exactly once."""
    ((kind, content),) = node.items()
    match kind:
        case "t":
            return tensors.pop(content)
        case "s":
            return SparseMatrix.from_dense(tensors.pop(content))
        case "d":
            items = {key: _fill(item, tensors) for key, item in content}
            if len(items) != len(content) or not all(isinstance(key, str) for key in items):
                raise ValueError("dictionary keys are text and occur once")
            return items
        case "l" if isinstance(content, list):
            return tuple(_fill(item, tensors) for item in content)
        case "v" if content is None or isinstance(content, bool | int | float | str):
            return content
    raise ValueError(f"unknown structure {kind!r}")

"""Payloads as bytes: a checked JSON header and safetensors, never pickle.

Layout: 8 bytes little-endian header length, the header (UTF-8 JSON), then one safetensors block. The header holds the
structure of the payload and what the sender says of it (for the tape: requires_grad)."""

import json
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from graphfed.errors import GraphfedError
from graphfed.nn.sparse import SparseMatrix

__all__ = ["WireError", "decode", "encode"]

MAX_HEADER = 1 << 24


class WireError(GraphfedError):
    """Bytes that are not a payload of ours."""


def encode(payload: Any, **header: Any) -> bytes:
    """A payload (tensors in dictionaries and tuples, plain JSON values beside them) as bytes."""
    tensors: dict[str, Tensor] = {}

    def strip(value: Any) -> Any:
        if isinstance(value, Tensor):
            key = str(len(tensors))
            tensors[key] = value.detach().cpu().contiguous()
            return {"t": key}
        if isinstance(value, SparseMatrix):  # crosses as dense rows, see payload.row_bytes
            return {"s": strip(value.to_dense())["t"]}
        if isinstance(value, dict):
            return {"d": [[key, strip(item)] for key, item in value.items()]}
        if isinstance(value, tuple | list):
            return {"l": [strip(item) for item in value]}
        return {"v": value}

    text = json.dumps({"payload": strip(payload), **header}, allow_nan=False).encode()
    # safetensors shares no memory between tensors, so aliases are stored twice; its result is bytes.
    block = save({key: value.clone() for key, value in tensors.items()})
    return len(text).to_bytes(8, "little") + text + block


def decode(message: bytes) -> tuple[Any, dict[str, Any]]:
    """The payload and the rest of the header; WireError for anything that is not whole."""
    try:
        size = int.from_bytes(message[:8], "little")
        if not 0 < size <= min(MAX_HEADER, len(message) - 8):
            raise ValueError(f"header of {size} bytes in a message of {len(message)}")
        header = json.loads(message[8 : 8 + size])
        tensors = load(message[8 + size :])

        def fill(value: Any) -> Any:
            (kind, content), *rest = value.items()
            if rest or kind not in "tsdlv":
                raise ValueError(f"structure {list(value)}")
            if kind == "t":
                return tensors[content]
            if kind == "s":
                return SparseMatrix.from_dense(tensors[content])
            if kind == "d":
                return {key: fill(item) for key, item in content}
            if kind == "l":
                return tuple(fill(item) for item in content)
            return content

        return fill(header.pop("payload")), header
    except Exception as error:
        raise WireError(f"a message of {len(message)} bytes is not a graphfed payload: {error}") from error


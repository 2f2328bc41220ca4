"""A method's state as files: flat {name: tensor} in one safetensors file.

A name is ``<value>/<place>/<path of keys>``; per-client first-layer weights are stored as they are kept, rows
and the pairs they belong to. What setup prepared is not state: it is worked out again from the data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import SERVER, Federation, Located
from graphfed.federation.values import ABSENT
from graphfed.files import read_tensors, write_tensors
from graphfed.methods.base import State
from graphfed.nn.sparse import SparseWeights

__all__ = ["load_state", "save_state", "tensors_of"]


def tensors_of(tree: Any, prefix: str) -> dict[str, Tensor]:
    """The tensors of a tree of dictionaries, by path."""
    if isinstance(tree, dict):
        return {k: t for key, item in tree.items() for k, t in tensors_of(item, f"{prefix}/{key}").items()}
    if isinstance(tree, SparseWeights):
        pairs = torch.stack([tree.pair_client, tree.pair_feature])
        return {
            f"{prefix}:rows": tree.values,
            f"{prefix}:pairs": pairs,
            f"{prefix}:clients": torch.tensor(tree.num_clients),
        }
    return {prefix: tree}


def _fill(path: str, stored: dict[str, Tensor]) -> Any:
    """The tree stored under `path`."""
    if path in stored:
        return stored[path]
    if f"{path}:rows" in stored:
        pairs = stored[f"{path}:pairs"]
        return SparseWeights(stored[f"{path}:rows"], pairs[0], pairs[1], int(stored[f"{path}:clients"]))
    below = [k[len(path) + 1 :] for k in stored if k.startswith(f"{path}/")]
    keys = dict.fromkeys(k.split("/")[0].split(":")[0] for k in below)
    return {key: _fill(f"{path}/{key}", stored) for key in keys}


def _places(fed: Federation, value: Located) -> list[str]:
    return ["server"] * len(value.parts) if value.place == SERVER else [f"host{h}" for h in fed.here]


def save_state(path: Path, fed: Federation, state: State) -> None:
    """Write what this process holds of `state.values`, atomically."""
    tensors: dict[str, np.ndarray] = {}
    for name, value in state.values.items():
        for place, part in zip(_places(fed, value), value.parts, strict=True):
            if part is not ABSENT:
                found = tensors_of(part, f"{name}/{place}")
                tensors |= {k: t.detach().cpu().numpy() for k, t in found.items()}
    write_tensors(path, tensors)


def load_state(path: Path, fed: Federation, like: State) -> State:
    """The state that `save_state` wrote in the same placement; `like` is a state of the same method fresh
    from setup.

    InputError when the file is another method's."""
    arrays, _ = read_tensors(path)
    stored = {k: torch.from_numpy(a).to(fed.device) for k, a in arrays.items()}
    unknown = {k.split("/")[0] for k in stored} - set(like.values)
    if unknown:
        raise InputError(
            f"{path} holds {sorted(unknown)[0]!r}, which is no part of this method's state "
            f"({', '.join(like.values)}); load it with the method that wrote it"
        )
    values = {
        name: replace(value, parts=tuple(_fill(f"{name}/{place}", stored) for place in _places(fed, value)))
        for name, value in like.values.items()
    }
    return State(values, like.prepared)

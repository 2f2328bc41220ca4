"""Located values as flat named arrays, and back: what checkpoints hold.

A name is ``<value>/<place>/<path of keys>``; per-client first-layer weights are stored as they are kept, rows
and the pairs they belong to. The arrays hold every bit: a run goes on from them as if it had not stopped."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.federation import SERVER, Federation, Located
from graphfed.federation.values import ABSENT
from graphfed.nn.sparse import SparseWeights

__all__ = ["arrays_of", "members_of", "roster_code", "roster_of", "tensors_of", "values_from"]


def roster_code(present: np.ndarray) -> str:
    """Who takes part, [K] bool, as text: a bit for each client, in hexadecimal."""
    return np.packbits(present).tobytes().hex()


def roster_of(code: str, num_clients: int) -> np.ndarray:
    """What `roster_code` told, [K] bool."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(code), dtype=np.uint8))
    return bits[:num_clients].astype(bool)


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
    if not isinstance(tree, Tensor):
        raise TypeError(f"{prefix} is of type {type(tree).__name__}; a state holds tensors in dictionaries")
    return {prefix: tree}


def _fill(path: str, stored: Mapping[str, Tensor]) -> Any:
    """The tree stored under `path`."""
    if path in stored:
        return stored[path]
    if f"{path}:rows" in stored:
        pairs = stored[f"{path}:pairs"]
        return SparseWeights(stored[f"{path}:rows"], pairs[0], pairs[1], int(stored[f"{path}:clients"]))
    below = [k[len(path) + 1 :] for k in stored if k.startswith(f"{path}/")]
    keys = dict.fromkeys(k.split("/")[0].split(":")[0] for k in below)
    return {key: _fill(f"{path}/{key}", stored) for key in keys}


def _places(fed: Federation, place: str) -> list[str]:
    return ["server"] * len(fed.server_participants) if place == SERVER else [f"worker{h}" for h in fed.here]


def arrays_of(fed: Federation, values: Mapping[str, Located]) -> dict[str, np.ndarray]:
    """What this process holds of `values`, as arrays by name."""
    arrays: dict[str, np.ndarray] = {}
    for name, value in values.items():
        for place, part in zip(_places(fed, value.place), value.parts, strict=True):
            if part is not ABSENT:
                found = tensors_of(part, f"{name}/{place}")
                arrays |= {k: t.detach().cpu().numpy() for k, t in found.items()}
    return arrays


def members_of(values: Mapping[str, Located]) -> dict[str, str | None]:
    """Which clients hold each value, a bit for each in hexadecimal; None: all of them."""
    return {
        name: None if value.members is None else roster_code(value.members) for name, value in values.items()
    }


def values_from(
    arrays: Mapping[str, np.ndarray],
    members: Mapping[str, str | None],
    places: Mapping[str, str],
    fed: Federation,
) -> dict[str, Located]:
    """The values that `arrays_of` and `members_of` described, in the same placement; places: where each one
    is. Dictionaries get their keys in the order of `arrays`."""
    stored = {k: torch.from_numpy(a.copy()).to(fed.device) for k, a in arrays.items()}
    values: dict[str, Located] = {}
    for name, place in places.items():
        code = members[name]
        held = None
        if code is not None:
            held = roster_of(code, fed.num_clients)
        parts = []
        for position, part in enumerate(_places(fed, place)):
            if place != SERVER and held is not None and not held[list(fed.workers[fed.here[position]])].any():
                parts.append(ABSENT)
            else:
                parts.append(_fill(f"{name}/{part}", stored))
        values[name] = Located(place, name.partition(".")[2] or name, tuple(parts), held)
    return values

"""Located values as flat named arrays, and back. Checkpoints hold such arrays.

A name is ``<value>/<place>/<path of keys>``. Sparse per-client weights are stored as rows and the (client,
feature) pairs that they belong to. The arrays hold every bit, so a resumed run gives the same results as an
uninterrupted one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import shown
from graphfed.federation import SERVER, Federation, Located
from graphfed.federation.values import ABSENT
from graphfed.nn.sparse import SparseWeights


def roster_code(present: np.ndarray) -> str:
    """Encode which clients take part, [K] bool, as a bit for each client, in hexadecimal."""
    return np.packbits(present).tobytes().hex()


def roster_of(code: str, num_clients: int) -> np.ndarray:
    """Decode what `roster_code` returned to [K] bool."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(code), dtype=np.uint8))
    return bits[:num_clients].astype(bool)


def accept_roster(num_clients: int, decision: Mapping[str, Any]) -> str:
    """Check the value "roster" of a decision of the server; see `Federation.control`."""
    code = decision["roster"]
    if code is None:
        return ""
    # The code comes from the server: its length and digits are checked before it is decoded.
    whole = len(code) == 2 * -(-num_clients // 8) and all(c in "0123456789abcdef" for c in code)
    if whole and roster_of(code, num_clients).any():
        return ""
    return f"'roster' = {shown(code)} where bits of the {num_clients} clients that take part are expected"


def tensors_of(tree: Any, prefix: str) -> dict[str, Tensor]:
    """List the tensors of a state of tensors and sparse weights, in dictionaries."""
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
    if path in stored:
        return stored[path]
    if f"{path}:rows" in stored:
        pairs = stored[f"{path}:pairs"]
        return SparseWeights(stored[f"{path}:rows"], pairs[0], pairs[1], int(stored[f"{path}:clients"]))
    # A dictionary: its keys are the next parts of the paths below this one.
    below = [k[len(path) + 1 :] for k in stored if k.startswith(f"{path}/")]
    keys = dict.fromkeys(k.split("/")[0].split(":")[0] for k in below)
    return {key: _fill(f"{path}/{key}", stored) for key in keys}


def _places(fed: Federation, place: str) -> list[str]:
    return ["server"] * fed.server_is_here if place == SERVER else [f"worker{h}" for h in fed.here]


def arrays_of(fed: Federation, values: Mapping[str, Located]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, value in values.items():
        for place, part in zip(_places(fed, value.place), value.parts, strict=True):
            if part is not ABSENT:
                found = tensors_of(part, f"{name}/{place}")
                arrays |= {k: t.detach().cpu().numpy() for k, t in found.items()}
    return arrays


def members_of(values: Mapping[str, Located]) -> dict[str, str | None]:
    """Encode by name which clients hold each value (`roster_code`); None if all hold it."""
    return {
        name: None if value.members is None else roster_code(value.members) for name, value in values.items()
    }


def values_from(
    arrays: Mapping[str, np.ndarray],
    members: Mapping[str, str | None],
    places: Mapping[str, str],
    fed: Federation,
) -> dict[str, Located]:
    """Restore values of these places from `arrays_of`, in the placement in which they were saved.
    Dictionaries get their keys in the order of the arrays.
    """
    # A copy, because the arrays of a file may not be writable.
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
                # A worker without a member had no part when the state was saved.
                parts.append(ABSENT)
            else:
                parts.append(_fill(f"{name}/{part}", stored))
        values[name] = Located(place, name.partition(".")[2] or name, tuple(parts), held)
    return values

"""The file model.safetensors of a run: the weights of its best round, as they are written and read again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfed.errors import InputError
from graphfed.files import check_regular, read_tensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from graphfed.federation import Federation
    from graphfed.federation.payload import Leaf, Payload
    from graphfed.methods.base import Method, State
    from graphfed.nn.backbones import Weights
    from graphfed.nn.sparse import SparseWeights
    from graphfed.tasks.outcome import Outcome


def model_arrays(method: "Method", outcome: "Outcome") -> dict[str, np.ndarray]:
    """Return the arrays of model.safetensors by name: this process's part of the model (see `weight_arrays`).

    If a model consists of several values, each name begins with the name of its value. The transform of the
    features is added.
    """
    from graphfed.federation.payload import part_of
    from graphfed.federation.values import ABSENT
    from graphfed.methods.common.feature_transform import to_arrays

    arrays: dict[str, np.ndarray] = {}
    for name in method.state.model:
        parts = [part for part in outcome.state.values[name].parts if part is not ABSENT]
        # All parts hold the same values.
        if name in method.state.replicated:
            parts = parts[:1]
        elif method.pooled:
            parts = [part_of(part, 0) for part in parts]  # the only client's are the model
        prefix = f"{name}." if len(method.state.model) > 1 else ""
        arrays |= {prefix + key: array for key, array in weight_arrays(parts).items()}
    return arrays | to_arrays(outcome.transform)


def weight_arrays(parts: "Sequence[Payload]") -> dict[str, np.ndarray]:
    """Return weights as flat named arrays; nested names are joined by dots.

    A shared weight keeps its shape [...]; weights of each client are [K, ...] in the order of client ids.
    First-layer weights that are stored only where clients can differ (`SparseWeights`) are four arrays:
    values, pair_client, pair_feature and num_clients after the name. With clients one at a time they are [K,
    F, H].
    """
    import graphfed.federation.payload as pay
    from graphfed.nn.sparse import SparseWeights

    flat = [_flatten(part) for part in parts]
    arrays: dict[str, np.ndarray] = {}
    for name, leaf in flat[0].items() if flat else ():
        if len(flat) > 1:
            # The pairs of the clients differ, so only full rows of several parts can be joined.
            each = [f[name] for f in flat]
            full = [
                pay.stack([x.part(k) for k in range(x.num_clients)]) if isinstance(x, SparseWeights) else x
                for x in each
            ]
            arrays[name] = np.concatenate([_array(x) for x in full])
        elif isinstance(leaf, SparseWeights):
            arrays[f"{name}.values"] = _array(leaf.values)
            arrays[f"{name}.pair_client"] = _array(leaf.pair_client)
            arrays[f"{name}.pair_feature"] = _array(leaf.pair_feature)
            arrays[f"{name}.num_clients"] = np.array(leaf.num_clients)
        else:
            arrays[name] = _array(leaf)
    return arrays


def _flatten(tree: "Payload", prefix: str = "") -> "dict[str, Leaf]":
    if not isinstance(tree, dict | tuple):
        return {prefix or "weights": tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    flat: dict[str, Leaf] = {}
    for key, value in items:
        flat |= _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _array(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Read model.safetensors in the folder of a run, in the layout of `weight_arrays`."""
    from safetensors import SafetensorError

    path = folder / "model.safetensors"
    try:
        check_regular(path)
        path.open("rb").close()  # the reader calls every file that it may not open a missing one
        return read_tensors(path)[0]
    except PermissionError:
        raise InputError(f"{path} may not be read by you; change its permissions") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({str(error)[:200]}); repeat the run") from None


def shared_weights(template: "Weights", arrays: Mapping[str, np.ndarray]) -> "dict[str, Tensor]":
    """Return the weights in `arrays` that are one network of the form of `template`."""
    import torch

    loaded = _loaded(template, arrays, "", torch.device("cpu"), pooled=False)
    # `template` has no sparse weights, so no weight is one.
    return {name: weight for name, weight in loaded.items() if isinstance(weight, torch.Tensor)}


def with_weights(
    fed: "Federation", fresh: "State", arrays: Mapping[str, np.ndarray], method: "Method"
) -> "State":
    """Replace the weights of a state by those of a run's model.safetensors.

    `arrays` has the layout of `weight_arrays`, without a client dimension for a pooled method. Values at
    another place stay as they are.
    """
    values = dict(fresh.values)
    for name in method.state.model:
        prefix = f"{name}." if len(method.state.model) > 1 else ""
        stored = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        if not values[name].parts:
            continue  # of another place
        (template,) = fed.local_parts(values[name])
        loaded = _loaded(template, stored, prefix, fed.device, method.pooled)
        values[name] = replace(values[name], parts=(loaded,))
    return replace(fresh, values=values)


def _loaded(
    template: "Weights",
    arrays: Mapping[str, np.ndarray],
    prefix: str,
    device: "torch.device",
    pooled: bool,
) -> "Weights":
    """Return the weights in `arrays` in the form of `template`; `prefix` begins their names in the file."""
    import torch

    from graphfed.nn.sparse import SparseWeights

    loaded: Weights = {}
    for name, weight in template.items():
        by_pair = isinstance(weight, SparseWeights) and name not in arrays
        try:
            found = arrays[f"{name}.values" if by_pair else name]
            pairs = [arrays[f"{name}.{key}"] for key in _PAIRS] if by_pair else []
        except KeyError as error:
            raise InputError(
                f"model.safetensors does not have {prefix}{error.args[0]}; repeat the run"
            ) from None
        if pooled:
            found = found[None]  # the only client's
        if not isinstance(weight, SparseWeights):
            expected = tuple(weight.shape)
        elif by_pair:
            expected = tuple(weight.values.shape)
        else:
            expected = (weight.num_clients, *weight.part_shape)  # in full: from clients one at a time
        if found.shape != expected:
            raise InputError(
                f"model.safetensors has {prefix}{name} of shape {found.shape} where this model has "
                f"{expected}; repeat the run"
            )
        values = torch.from_numpy(found).to(device)
        if isinstance(weight, SparseWeights):
            for key, stored in zip(_PAIRS, pairs, strict=False):
                if not np.array_equal(stored, _array(getattr(weight, key))):
                    raise InputError(
                        f"model.safetensors has other {prefix}{name}.{key} than the data of the run give; "
                        "repeat the run"
                    )
            loaded[name] = weight.with_values(values) if by_pair else _stored_rows(weight, values)
        else:
            loaded[name] = values
    return loaded


#: The arrays that state the pairs of first-layer weights that are stored by pair.
_PAIRS = ("pair_client", "pair_feature")


def _stored_rows(like: "SparseWeights", full: "Tensor") -> "SparseWeights":
    """Return weights [K, F, H] in the stored form of `like`.

    A feature that does not occur at a client needs no row for that client to predict.
    """
    import torch

    rows = full[like.pair_client, like.pair_feature]
    # Any values will do for the ghost rows, because the clients that they stand for lack the feature.
    return like.with_values(torch.cat([rows, full[0]]))

"""The learned sampling policy (FedGraph, section 4), which `graphfed policy` writes into a safetensors file
that holds no code.

Its actor observes what the server has after each round: the weights W, W_1, ..., W_K, each projected onto
principal components of the weights in the first episode of learning. Its action stands for a decision, as
`method.fixed_decision` has it.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from graphfed.errors import GraphfedError, InputError
from graphfed.files import read_tensors, write_tensors
from graphfed.methods.fedgraph.client_graphs import fraction_of
from graphfed.methods.fedgraph.config import Sampling
from graphfed.nn.backbones import Weights

#: The smallest sampling probability that an action stands for. With probability 0 no neighbour would ever be
#: sampled, and nothing could be learned about its effect.
MIN_PROBABILITY = 0.05
#: The number of columns of the weights, or of rows, that are multiplied at a time, in float64.
BLOCK = 4096
#: The format that a policy file states.
FORMAT = "graphfed sampling policy 1"


# ---- the actor: what it observes, and what it decides ------------------------------------------------------


def flatten(weights: Weights) -> Tensor:
    """Flatten the global weights, [n_W], in the order of their names."""
    return torch.cat([w.flatten() for _, w in sorted(weights.items()) if isinstance(w, Tensor)])


def first_view(weights: Weights, clients: int) -> Tensor:
    """Return the server's view before the first round, with W_k = W for every client, [1 + K, n_W]."""
    row = flatten(weights)
    return row.expand(1 + clients, len(row))


def stack_view(mean: Weights, rows: Tensor) -> Tensor:
    """Return the server's view s = {W, W_1, ..., W_K}, [1 + K, n_W]; rows: W_1, ..., W_K, [K, n_W]."""
    return torch.cat([flatten(mean)[None], rows])


def learned_decision(policy: dict[str, Tensor], observed: Tensor, counts: Tensor) -> Tensor:
    """Compute the decision of a learned policy, [K, 1 + L], from the state s' [1 + K, c]."""
    return make_decision(act(policy, observed), counts)


def make_decision(action: Tensor, counts: Tensor) -> Tensor:
    """Compute the decision that an action stands for.

    An entry a of the action stands for the fraction f = (a + 1) / 2. (For a = tanh(z), f is the sigmoid of
    2 z.) Then kappa_i = min(n_i, max(1, round(f n_i))) with n_i training nodes, and p = 0.05 + 0.95 f.

    Args:
        action: The action, [K (1 + L)]; it is clipped to [-1, 1].
        counts: The number of training nodes of each client, [K].

    Returns:
        The decision, [K, 1 + L] float64.
    """
    fraction = (action.double().reshape(len(counts), -1).clamp(-1, 1) + 1) / 2
    kappa = fraction_of(counts, fraction[:, 0])
    return torch.cat([kappa[:, None], MIN_PROBABILITY + (1 - MIN_PROBABILITY) * fraction[:, 1:]], 1)


def project(policy: dict[str, Tensor], weights: Tensor) -> Tensor:
    """Project weights [1 + K, n_W] onto the policy's principal components: s' [1 + K, c] float64. In the
    first episode of learning there are none, and the result is the weights themselves.
    """
    if "pca.mean" not in policy:
        return weights
    return (weights.double() - policy["pca.mean"]) @ policy["pca.components"].t()


def act(policy: dict[str, Tensor], observed: Tensor) -> Tensor:
    """Compute the action [K (1 + L)] in [-1, 1] of a learned policy from the state s' [1 + K, c]."""
    # The scale is one number for all coordinates, so that inputs are neither tiny nor huge.
    h = (observed.flatten() / policy["pca.scale"]).to(policy["actor.0.weight"].dtype)
    layers = sum(name.endswith(".weight") for name in policy)
    for layer in range(layers):
        h = policy[f"actor.{layer}.weight"] @ h + policy[f"actor.{layer}.bias"]
        h = h.relu() if layer < layers - 1 else h.tanh()
    return h


# ---- the principal components, when a policy is learned ----------------------------------------------------


def fit_projection(rows: np.ndarray, most: int) -> dict[str, Tensor]:
    """Fit the principal components of rows of weights.

    The largest number of each component, by size, is positive, so that its sign is determined.

    Args:
        rows: [R, n_W] float32.
        most: The largest number of components.

    Returns:
        All float64. pca.mean: the mean of the rows, [n_W]. pca.components: the first c components, which are
        orthonormal, [c, n_W]; c is `most`, or the rank of the rows if that is smaller. pca.scale: the root
        mean square of all coordinates, a scalar, by which the actor's inputs are divided so that they are
        neither tiny nor huge.

    Raises:
        GraphfedError: All rows are the same.
    """
    mean = rows.mean(0, dtype=np.float64)
    wide = rows.shape[0] <= rows.shape[1]
    products = _row_products(rows, mean) if wide else _column_products(rows, mean)
    small = len(products)
    first = max(0, small - most)
    values, vectors = scipy.linalg.eigh(products, subset_by_index=[first, small - 1], overwrite_a=True)
    values, vectors = values[::-1], vectors[:, ::-1]
    # Smaller values are rounding errors of the float64 products and of the float32 weights.
    is_nonzero = values > max(rows.shape) * np.finfo(np.float64).eps * max(values[0], 0.0)
    if not is_nonzero.any():
        raise GraphfedError(
            "the weights did not change in the first episode, so a policy has nothing to observe; use more "
            "rounds, or a larger learning rate"
        )
    values, vectors = values[is_nonzero], vectors[:, is_nonzero]
    components = _times(rows, mean, vectors) / np.sqrt(values)[:, None] if wide else vectors.T
    largest = np.abs(components).argmax(1)
    signs = np.sign(components[np.arange(len(components)), largest])
    scale = np.sqrt(values.sum() / (len(rows) * len(values)))
    return {
        "pca.mean": torch.from_numpy(mean),
        "pca.components": torch.from_numpy(np.ascontiguousarray(components * signs[:, None])),
        "pca.scale": torch.tensor(scale, dtype=torch.float64),
    }


def _blocks(rows: np.ndarray, mean: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the centred rows in blocks of columns, in float64, with the columns of each block."""
    for start in range(0, rows.shape[1], BLOCK):
        columns = slice(start, start + BLOCK)
        yield columns, rows[:, columns] - mean[columns]


def _row_products(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Compute X X^T of the centred rows X, [R, R]."""
    total = np.zeros((len(rows), len(rows)))
    for _, block in _blocks(rows, mean):
        total += block @ block.T
    return total


def _column_products(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Compute X^T X of the centred rows X, [n_W, n_W]."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK] - mean
        total += block.T @ block
    return total


def _times(rows: np.ndarray, mean: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Compute U^T X of the centred rows X, [c, n_W]; vectors U [R, c]."""
    product = np.empty((vectors.shape[1], rows.shape[1]))
    for columns, block in _blocks(rows, mean):
        product[:, columns] = vectors.T @ block
    return product


# ---- the file of a learned policy --------------------------------------------------------------------------


def load_policy(sampling: Sampling, layers: int, clients: int, weights: Weights) -> dict[str, Tensor]:
    """Read the policy file, and check that its policy fits the run.

    Returns:
        The tensors of the policy and ``saw_test``, on the device of the weights; empty if the policy is not
        learned.

    Raises:
        InputError: The file cannot be read, or was learned for another kind of run.
    """
    if sampling.policy_file is None:
        return {}
    tensors, description = read_policy(sampling.policy_file)
    size = sum(w.numel() for w in weights.values() if isinstance(w, Tensor))
    check_fits(description, sampling.policy_file, clients, layers, size)
    tensors["saw_test"] = torch.tensor(int(description.saw_test))
    device = next(w.device for w in weights.values() if isinstance(w, Tensor))
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def saw_test(policy: dict[str, Tensor]) -> dict[str, Any]:
    """Return whether the reward of a learned policy used the test nodes, ``policy_saw_test``."""
    return {"policy_saw_test": bool(policy["saw_test"])}


@dataclass(frozen=True)
class PolicyFile:
    """The description of a policy in its file.

    Attributes:
        kind: "ddpg".
        layers: L, the layers of the network.
        weights: n_W, the number of weights of the model.
        learned: How it was learned, for a reader (data, partition, episodes, reward). With the key
            ``saw_test``: whether the reward used the test nodes.
    """

    kind: str
    clients: int
    layers: int
    weights: int
    learned: dict[str, Any]

    @property
    def saw_test(self) -> bool:
        """Whether the reward used the accuracy on the test nodes."""
        return bool(self.learned.get("saw_test", False))


def write_policy(path: Path, policy: dict[str, Tensor], description: PolicyFile) -> None:
    """Write a policy file, whole or not at all.

    Raises:
        OSError: The disk refuses the file.
    """
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in policy.items()}
    write_tensors(path, arrays, {"format": FORMAT, "policy": json.dumps(asdict(description))})


def read_policy(path: str | Path) -> tuple[dict[str, Tensor], PolicyFile]:
    """Read a policy file.

    Returns:
        The tensors of the policy, on the CPU, and its description.

    Raises:
        InputError: There is no such file, or it is not a policy file.
    """
    path = Path(path)
    try:
        arrays, description = read_tensors(path)
        if description.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        policy = PolicyFile(**json.loads(description["policy"]))
        sizes = (policy.clients, policy.layers, policy.weights)
        if not all(type(n) is int and n > 0 for n in sizes) or not isinstance(policy.learned, dict):
            raise ValueError("its description is not valid")
    except FileNotFoundError:
        raise InputError(
            f"there is no policy file {path}; learn one with `graphfed policy`, which names the file it "
            "writes"
        ) from None
    except Exception as error:
        raise InputError(
            f"{path} is not a policy file: {error}; expected what `graphfed policy` writes"
        ) from error
    _check_tensors(path, policy, {name: array.shape for name, array in arrays.items()})
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise InputError(f"{path} is not a policy file: a number in it is not finite; learn it again")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, policy


def _check_tensors(path: Path, policy: PolicyFile, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise InputError unless the tensors have the names and shapes of the described policy."""
    components = shapes.get("pca.components", ())
    width = (policy.clients + 1) * (components[0] if components else 0)
    is_valid = policy.kind == "ddpg" and components[1:] == (policy.weights,)
    is_valid = is_valid and shapes.get("pca.mean") == (policy.weights,) and shapes.get("pca.scale") == ()
    layers = (len(shapes) - 3) // 2
    for layer in range(layers):
        weight = shapes.get(f"actor.{layer}.weight", ())
        is_valid = is_valid and len(weight) == 2 and weight[1] == width
        is_valid = is_valid and shapes.get(f"actor.{layer}.bias") == weight[:1]
        width = weight[0] if weight else 0
    size = policy.clients * (1 + policy.layers)
    is_valid = is_valid and width == size and layers > 0 and len(shapes) == 3 + 2 * layers
    if not is_valid:
        raise InputError(
            f"{path} is not a policy file: its tensors {sorted(shapes)[:8]} do not make a policy of "
            f"{policy.clients} clients and {policy.layers} layers; learn it again"
        )


def check_fits(policy: PolicyFile, path: str, clients: int, layers: int, weights: int) -> None:
    """Check that a policy was learned for the run that uses it: its inputs are the n_W weights of every
    client, and it has outputs for each client and layer.

    Raises:
        InputError: A number differs.
    """
    expected = {"layers": layers, "clients": clients, "weights of the model": weights}
    learned_for = (policy.layers, policy.clients, policy.weights)
    for (quantity, value), learned in zip(expected.items(), learned_for, strict=True):
        if learned != value:
            raise InputError(
                f"policy_file={path} cannot be used: it was learned for {quantity} {learned}, "
                f"and this run has {value}; learn one for this run with `graphfed policy`"
            )

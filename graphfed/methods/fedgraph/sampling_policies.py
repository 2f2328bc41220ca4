"""What decides how much each silo samples, round by round (FedGraph, sections 3.1.1 and 4): fixed schemes,
and policies that were learned and are read from a file.

A policy's decision has a row for every client: kappa, the training nodes of a step, then for each layer,
the one next to the features first, how much is sampled there: the chance of a neighbour, of graphsage how
many neighbours, of fastgcn how many nodes.

A learned policy's file is one safetensors file, written by `graphfed policy`; nothing in it is code. A DDPG
actor sees what the server has after each round, the weights W, W_1, ..., W_K, each projected on the principal
components of those of the first episode. What a constant policy found by search says never changes."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.files import read_tensors, write_tensors

__all__ = [
    "LEARNED",
    "MIN_PROBABILITY",
    "PolicyFile",
    "act",
    "check_fits",
    "fixed_decision",
    "project",
    "read_policy",
    "squash",
    "write_policy",
]

#: The policies that are read from a file.
LEARNED = ("ddpg", "bandit")
#: The smallest chance of a neighbour that an action stands for: with none, nothing would be learned of it.
MIN_PROBABILITY = 0.05
#: What a policy's file calls itself.
FORMAT = "graphfed sampling policy 1"


# ---- decisions ---------------------------------------------------------------------------------------------


def fixed_decision(
    counts: Tensor,
    policy: str,
    layers: int,
    batch: int,
    probability: float,
    fan_outs: tuple[int, int],
    size: int,
) -> Tensor:
    """What a fixed scheme says in every round, [K, 1 + L]; counts [K]: training nodes of each client.
    fan_outs: of the last layer, and of the others."""
    kappa = counts if policy == "full" else counts.clamp(max=batch)
    outer, inner = fan_outs
    amounts = {
        "full": [1.0] * layers,
        "constant": [probability] * layers,
        "graphsage": [float(inner)] * (layers - 1) + [float(outer)],
        "fastgcn": [float(size)] * layers,
    }[policy]
    every = torch.tensor(amounts, dtype=torch.float64, device=counts.device).expand(len(counts), layers)
    return torch.cat([kappa.double()[:, None], every], 1)


def squash(action: Tensor, counts: Tensor) -> Tensor:
    """An action in [-1, 1]^(K (1 + L)) -> the decision [K, 1 + L]: kappa_k in 1 .. counts_k, chances between
    MIN_PROBABILITY and 1. (The tanh of a network's output x, so mapped, is the sigmoid of 2 x.)"""
    share = (action.double().reshape(len(counts), -1).clamp(-1, 1) + 1) / 2
    kappa = (share[:, 0] * counts).round().clamp(min=1).minimum(counts.double())
    return torch.cat([kappa[:, None], MIN_PROBABILITY + (1 - MIN_PROBABILITY) * share[:, 1:]], 1)


def project(policy: dict[str, Tensor], weights: Tensor) -> Tensor:
    """The weights W, W_1, ... [1 + K, n_W] on the principal components [c, n_W]: the state s' [1 + K, c]."""
    return (weights.double() - policy["pca.mean"]) @ policy["pca.components"].t()


def act(policy: dict[str, Tensor], observed: Tensor, clients: int) -> Tensor:
    """The action [K (1 + L)] that a learned policy takes when it sees s' [1 + K, c]; a constant one sees
    nothing, and says the same to all."""
    if "action" in policy:
        return policy["action"].repeat(clients)
    # `pca.scale` is one number: inputs of a network are to be neither tiny nor huge.
    h = (observed.flatten() / policy["pca.scale"]).to(policy["actor.0.weight"].dtype)
    layers = sum(name.endswith(".weight") for name in policy)
    for layer in range(layers):
        h = policy[f"actor.{layer}.weight"] @ h + policy[f"actor.{layer}.bias"]
        h = h.relu() if layer < layers - 1 else h.tanh()
    return h


# ---- files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyFile:
    """What a policy was learned for: kind "ddpg" or "bandit", clients K, layers L, weights n_W of the model;
    learned: how, for a reader (data, partition, episodes, reward); saw_test in it: whether the reward was on
    the test part."""

    kind: str
    clients: int
    layers: int
    weights: int
    learned: dict[str, Any]

    @property
    def saw_test(self) -> bool:
        """Whether the reward was on the test part."""
        return bool(self.learned.get("saw_test", False))


def write_policy(path: Path, policy: dict[str, Tensor], told: PolicyFile) -> None:
    """Write a policy whole or not at all. OSError when the disk refuses."""
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in policy.items()}
    write_tensors(path, arrays, {"format": FORMAT, "policy": json.dumps(asdict(told))})


def read_policy(path: str | Path) -> tuple[dict[str, Tensor], PolicyFile]:
    """The tensors of a policy's file and what it is for. InputError for any other file."""
    path = Path(path)
    try:
        arrays, told = read_tensors(path)
        if told.get("format") != FORMAT:
            raise ValueError("it does not say so")
        policy = PolicyFile(**json.loads(told["policy"]))
        sizes = (policy.clients, policy.layers, policy.weights)
        if not all(type(n) is int and n > 0 for n in sizes) or not isinstance(policy.learned, dict):
            raise ValueError("it does not say what it is for")
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
    """InputError unless the tensors go together."""
    size = policy.clients * (1 + policy.layers)
    right = policy.kind in LEARNED
    if policy.kind == "bandit":
        right = shapes == {"action": (1 + policy.layers,)}
    elif right:
        components = shapes.get("pca.components", ())
        width = (policy.clients + 1) * (components[0] if components else 0)
        right = components[1:] == (policy.weights,) and shapes.get("pca.mean") == (policy.weights,)
        right = right and shapes.get("pca.scale") == ()
        layers = (len(shapes) - 3) // 2
        for layer in range(layers):
            weight = shapes.get(f"actor.{layer}.weight", ())
            right = right and len(weight) == 2 and weight[1] == width
            right = right and shapes.get(f"actor.{layer}.bias") == weight[:1]
            width = weight[0] if weight else 0
        right = right and width == size and layers > 0 and len(shapes) == 3 + 2 * layers
    if not right:
        raise InputError(
            f"{path} is not a policy file: its tensors {sorted(shapes)[:8]} do not make a policy of "
            f"{policy.clients} clients and {policy.layers} layers; learn it again"
        )


def check_fits(policy: PolicyFile, path: str, kind: str, clients: int, layers: int, weights: int) -> None:
    """InputError where a policy was learned for something else."""
    asked = {"policy": kind, "layers": layers}
    learned_for = {"policy": policy.kind, "layers": policy.layers}
    if policy.kind == "ddpg":  # it sees the weights, and says something to each client
        asked |= {"clients": clients, "weights of the model": weights}
        learned_for |= {"clients": policy.clients, "weights of the model": policy.weights}
    for what, here in asked.items():
        if learned_for[what] != here:
            raise InputError(
                f"policy_file={path} cannot be used: it was learned for {what} {learned_for[what]}, and this "
                f"run has {here}; learn one for this run with `graphfed policy`"
            )

"""What FedGraph's server computes: the policy's decision, the mean of the clients' weights, and what the
policy observes (Chen, Li, Miyazaki and Wu, "FedGraph", Algorithm 3).
"""

from typing import Any

import torch
from torch import Tensor

from graphfed.methods.fedgraph.config import Sampling
from graphfed.methods.fedgraph.sampling_policies import (
    act,
    check_fits,
    fixed_decision,
    make_decision,
    project,
    read_policy,
)
from graphfed.nn.backbones import Weights


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
    return {name: tensor.to(_device(weights)) for name, tensor in tensors.items()}


def saw_test(policy: dict[str, Tensor]) -> dict[str, Any]:
    """Return whether the reward of a learned policy used the test nodes.

    Returns:
        ``policy_saw_test``.
    """
    return {"policy_saw_test": bool(policy["saw_test"])}


def no_policy() -> dict[str, Tensor]:
    """Return the tensors of a policy that is not learned.

    Returns:
        No tensors.
    """
    return {}


def _device(weights: Weights) -> torch.device:
    first = next(iter(weights.values()))
    assert isinstance(first, Tensor)
    return first.device


def flatten(weights: Weights) -> Tensor:
    """Flatten the global weights, [n_W], in the order of their names."""
    return torch.cat([w.flatten() for _, w in sorted(weights.items()) if isinstance(w, Tensor)])


def first_view(weights: Weights, clients: int) -> Tensor:
    """Return the server's view before the first round, with W_k = W for every client.

    Args:
        weights: W, the first weights.

    Returns:
        The view, [1 + K, n_W].
    """
    row = flatten(weights)
    return row.expand(1 + clients, len(row))


def project_view(policy: dict[str, Tensor], weights: Tensor) -> Tensor:
    """Project the server's view onto the policy's components.

    Args:
        policy: The tensors of a learned policy; without components in the first episode of learning.
        weights: The view, [1 + K, n_W].

    Returns:
        The state s', [1 + K, c] float64; the view itself if there are no components.
    """
    return project(policy, weights) if "pca.mean" in policy else weights


def decide(
    policy: dict[str, Tensor], observed: Tensor | None, counts: Tensor, sampling: Sampling, layers: int
) -> Tensor:
    """Decide how much each client samples in a round.

    Args:
        policy: The tensors of a learned policy; not used by fixed ones.
        observed: The state s', [1 + K, c]; None if the policy does not observe the weights.
        counts: The number of training nodes of each client, [K].

    Returns:
        The decision, P_i of every client, [K, 1 + L] float64.

    Reference:
        FedGraph, Alg. 3, line 5.
    """
    # Alg. 3, l. 5
    if sampling.policy != "ddpg":
        return fixed_decision(counts, sampling, layers)
    assert observed is not None
    return make_decision(act(policy, observed), counts)


def average_rows(rows: Tensor, decision: Tensor, before: Weights) -> Weights:
    """Average the clients' weights by kappa_i.

    Args:
        rows: The weights of each client in the order of their names, [K, n_W].
        decision: The decision, [K, 1 + L].
        before: The weights before the round, with the names and shapes of the result.

    Reference:
        FedGraph, Eq. (8).
    """
    kappa = decision[:, 0]
    # Eq. (8)
    mean = (kappa / kappa.sum()).to(rows.dtype) @ rows
    sizes = {name: w.numel() for name, w in sorted(before.items()) if isinstance(w, Tensor)}
    parts = dict(zip(sizes, torch.split(mean, list(sizes.values())), strict=True))
    return {name: parts[name].view(w.shape) for name, w in before.items() if isinstance(w, Tensor)}


def stack_view(mean: Weights, rows: Tensor) -> Tensor:
    """Return the server's view s = {W, W_1, ..., W_K}.

    Args:
        mean: W, the mean weights.
        rows: W_1, ..., W_K in rows, [K, n_W].

    Returns:
        The view, [1 + K, n_W].
    """
    return torch.cat([flatten(mean)[None], rows])


def first_facts(policy: dict[str, Tensor], device: str, has_measured: bool) -> dict[str, Tensor]:
    """Return the facts of a run before its first round.

    Args:
        policy: The tensors of a learned policy; empty for none.
        has_measured: Whether clients measure their seconds.

    Returns:
        modelled_seconds and, if they are measured, measured_seconds, 0 in float64; and policy_saw_test for a
        learned policy.
    """
    names = ("modelled_seconds", *["measured_seconds"] * has_measured)
    facts = {name: torch.zeros((), dtype=torch.float64, device=device) for name in names}
    return facts | ({"policy_saw_test": policy["saw_test"]} if "saw_test" in policy else {})


def add_seconds(facts: dict[str, Tensor], seconds: Tensor, name: str) -> dict[str, Tensor]:
    """Add the duration of a round, which lasts as long as the slowest client.

    Args:
        seconds: The seconds of each client, [K].
    """
    return {**facts, name: facts[name] + seconds.max()}

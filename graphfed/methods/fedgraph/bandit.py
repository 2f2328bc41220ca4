"""The best constant sampling policy, found by a bandit: the baseline of a learned policy.

An arm is a fraction of the training nodes with one sampling probability, for all clients and layers. The
value of an arm is the mean of its returns. The search is successive halving (Jamieson and Talwalkar,
"Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016): every arm runs an
episode, the better half of the arms another one, and so on until one is left. In a stage all arms run the
same episode, with the same first weights and dropout. Of equal arms the earlier stays, which samples less.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.methods.fedgraph.learning_config import BanditConfig, numbers_in
from graphfed.methods.fedgraph.sampling_policies import MIN_PROBABILITY

__all__ = ["Arm", "count_search_episodes", "make_action", "make_arms", "search"]


@dataclass(frozen=True)
class Arm:
    """A constant decision, the same for all clients.

    Attributes:
        fraction: kappa, as a fraction of a client's training nodes.
        probability: The sampling probability of a neighbour, in every layer.
    """

    fraction: float
    probability: float

    def to_json(self) -> dict[str, float]:
        """Return the arm as the files of a policy have it.

        Returns:
            The fraction as "share", the probability as "chance".
        """
        return {"share": self.fraction, "chance": self.probability}


def make_arms(config: BanditConfig) -> list[Arm]:
    """List all arms, those that sample least first.

    Args:
        config: The settings of the search.

    Returns:
        An arm for every pair of a fraction and a probability.
    """
    fractions, probabilities = (sorted(numbers_in(text, float)) for text in (config.shares, config.chances))
    return [Arm(fraction, probability) for fraction in fractions for probability in probabilities]


def make_action(arm: Arm, layers: int) -> Tensor:
    """Compute the action that `sampling_policies.make_decision` turns into an arm's decision.

    Args:
        arm: The arm.
        layers: L, the layers of the network.

    Returns:
        The action of one client, [1 + L] float64 in [-1, 1].
    """
    of_layer = (arm.probability - MIN_PROBABILITY) / (1 - MIN_PROBABILITY)
    return 2 * torch.tensor([arm.fraction, *[of_layer] * layers], dtype=torch.float64) - 1


def count_search_episodes(arms: int) -> int:
    """Count the episodes of a whole search.

    Args:
        arms: The number of arms.

    Returns:
        The number of episodes, at least 1.
    """
    total = 0
    while arms > 1:
        total += arms
        arms = math.ceil(arms / 2)
    return total or 1


def search(
    arms: Sequence[Arm], pull: Callable[[int, Arm], float], max_episodes: int | None = None
) -> tuple[Arm, dict[Arm, list[float]]]:
    """Search the best arm by successive halving.

    Args:
        arms: The arms, those that sample least first.
        pull: Called with the number of the stage, from 1, and an arm; returns the return of an episode.
        max_episodes: The largest number of episodes, at least the number of arms. A stage that would exceed
            it does not begin. None: no limit.

    Returns:
        The arm with the largest mean return among those that are left, and the returns of every arm.
    """
    returns: dict[Arm, list[float]] = {arm: [] for arm in arms}
    left, stage, done = list(arms), 0, 0

    def mean_return(arm: Arm) -> float:
        return sum(returns[arm]) / len(returns[arm])

    while True:
        stage += 1
        if max_episodes is not None and done + len(left) > max_episodes:
            break
        for arm in left:
            returns[arm].append(pull(stage, arm))
        done += len(left)
        # Sorting is stable, so equal arms keep their order.
        left = sorted(left, key=mean_return, reverse=True)[: math.ceil(len(left) / 2)]
        left = [arm for arm in arms if arm in left]
        if len(left) == 1:
            break
    return max(left, key=mean_return), returns

"""The baseline of a learned sampling policy: the best constant one, the same for all clients and layers.

Every pair of a share of the training nodes and a chance of a neighbour is an arm; what it is worth is the
return of an episode. By successive halving (Jamieson and Talwalkar 2016): every arm runs an episode, the
better half another one, and so on until one is left. In a stage all arms run the same episode: the same first
weights and dropout. An arm is worth the mean of its returns; of equal ones the earlier stays, which samples
less."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.methods.fedgraph.learning_config import BanditConfig, numbers_in
from graphfed.methods.fedgraph.sampling_policies import MIN_PROBABILITY

__all__ = ["Arm", "action_of", "arms_of", "episodes_of", "search"]


@dataclass(frozen=True)
class Arm:
    """A constant decision: kappa as a share of a client's training nodes, and the chance of a neighbour in
    every layer."""

    share: float
    chance: float


def arms_of(config: BanditConfig) -> list[Arm]:
    """All arms, those that sample least first."""
    shares, chances = (sorted(numbers_in(text, float)) for text in (config.shares, config.chances))
    return [Arm(share, chance) for share in shares for chance in chances]


def action_of(arm: Arm, layers: int) -> Tensor:
    """The action [1 + L] float64 of one client that `sampling_policies.squash` makes an arm's decision of."""
    places = [arm.share, *[(arm.chance - MIN_PROBABILITY) / (1 - MIN_PROBABILITY)] * layers]
    return 2 * torch.tensor(places, dtype=torch.float64) - 1


def episodes_of(arms: int) -> int:
    """How many episodes a search among so many arms takes."""
    total = 0
    while arms > 1:
        total += arms
        arms = math.ceil(arms / 2)
    return total or 1


def search(
    arms: Sequence[Arm], pull: Callable[[int, Arm], float], most: int | None = None
) -> tuple[Arm, dict[Arm, list[float]]]:
    """The best arm, and the returns of each. pull(stage, arm) -> the return of an episode, stages counted
    from 1; most: episodes, at least one for every arm, after which the best arm so far is it."""
    returns: dict[Arm, list[float]] = {arm: [] for arm in arms}
    left, stage, done = list(arms), 0, 0

    def worth(arm: Arm) -> float:
        return sum(returns[arm]) / len(returns[arm])

    while True:
        stage += 1
        if most is not None and done + len(left) > most:
            break
        for arm in left:
            returns[arm].append(pull(stage, arm))
        done += len(left)
        # Sorting keeps the order of equal ones.
        left = sorted(left, key=worth, reverse=True)[: math.ceil(len(left) / 2)]
        left = [arm for arm in arms if arm in left]
        if len(left) == 1:
            break
    return max(left, key=worth), returns

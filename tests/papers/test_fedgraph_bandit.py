"""The search for the best constant policy finds it, and its arms are what they say."""

import itertools

import pytest
import torch

from graphfed.methods.fedgraph.bandit import Arm, count_search_episodes, make_action, make_arms, search
from graphfed.methods.fedgraph.learning_config import BanditConfig
from graphfed.methods.fedgraph.sampling_policies import make_decision
from graphfed.random import fold, uniform


def test_an_arm_takes_its_fraction_of_every_clients_nodes_and_its_probability_in_every_layer() -> None:
    counts = torch.tensor([10, 200, 0])
    for arm in make_arms(BanditConfig()):
        decision = make_decision(make_action(arm, 2).repeat(3), counts)
        assert decision[:, 0].tolist() == [max(1, round(arm.fraction * 10)), round(arm.fraction * 200), 0]
        assert decision[:, 1:].flatten().tolist() == pytest.approx([arm.probability] * 6, abs=1e-12)
    assert make_arms(BanditConfig())[-1] == Arm(1.0, 1.0)
    assert (
        make_decision(make_action(Arm(1.0, 1.0), 2), torch.tensor([7])) == torch.tensor([[7.0, 1.0, 1.0]])
    ).all()


def test_the_better_of_two_noisy_arms_is_found() -> None:
    """Returns 1 and 0 with noise in [-0.4, 0.4]: the intervals do not meet."""
    arms = [Arm(0.1, 0.5), Arm(1.0, 0.5)]
    for seed, best in itertools.product(range(5), arms):

        def pull(stage: int, arm: Arm, best: Arm = best, seed: int = seed) -> float:
            noise = float(uniform(fold(seed, stage, arms.index(arm)), torch.arange(1))) * 0.8 - 0.4
            return float(arm == best) + noise

        assert search(arms, pull)[0] == best


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_every_arm_has_an_episode_and_half_of_them_have_the_next(count: int) -> None:
    arms = [Arm(1.0, (n + 1) / count) for n in range(count)]
    stages: dict[int, list[Arm]] = {}

    def pull(stage: int, arm: Arm) -> float:
        stages.setdefault(stage, []).append(arm)
        return -abs(arm.probability - 0.6)

    best, returns = search(arms, pull)
    assert stages[1] == arms
    assert best == min(arms, key=lambda arm: abs(arm.probability - 0.6))
    for stage, in_stage in stages.items():
        assert len(in_stage) == -(-len(stages[stage - 1]) // 2) if stage > 1 else count
    assert sum(len(in_stage) for in_stage in stages.values()) == count_search_episodes(count)
    assert sum(len(each) for each in returns.values()) == count_search_episodes(count)


def test_of_equal_arms_the_one_that_samples_less_stays() -> None:
    assert search(make_arms(BanditConfig()), lambda stage, arm: 1.0)[0] == Arm(0.02, 0.1)


def test_arms_are_compared_by_the_mean_of_returns_that_are_as_large_as_floats_can_be() -> None:
    """reward.alpha and reward.omega may be any finite numbers. The better of two has a sum that is finite."""
    values = {Arm(0.1, 0.5): 0.1e308, Arm(0.5, 0.5): 0.8e308, Arm(1.0, 0.5): 0.85e308}
    best, returns = search([*values], lambda stage, arm: values[arm])
    assert best == Arm(1.0, 0.5)
    assert [len(each) for each in returns.values()] == [1, 2, 2]


def test_a_search_that_may_not_end_takes_the_best_so_far() -> None:
    arms = [Arm(1.0, (n + 1) / 8) for n in range(8)]
    best, returns = search(arms, lambda stage, arm: arm.probability if stage == 1 else -arm.probability, 8)
    assert best == arms[-1]
    assert sum(len(each) for each in returns.values()) == 8

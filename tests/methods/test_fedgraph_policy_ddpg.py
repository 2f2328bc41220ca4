"""The DDPG that learns policies, as we configure and drive it, on problems whose answers are known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium", reason="learning policies needs the extra rl")
pytest.importorskip("stable_baselines3", reason="learning policies needs the extra rl")

from graphfed.files import read_tensors, write_tensors  # noqa: E402
from graphfed.methods.fedgraph.learned_policy import act  # noqa: E402
from graphfed.methods.fedgraph.policy.ddpg import (  # noqa: E402
    actor_tensors,
    add_transitions,
    agent_tensors,
    make_agent,
    restore,
    run_later_episode,
    select_episode,
    transitions_of,
)
from graphfed.methods.fedgraph.policy.settings import DDPGConfig  # noqa: E402

pytestmark = pytest.mark.slow

ROUNDS = 20


class OneState(gymnasium.Env):  # type: ignore[misc]
    """A state that never changes, an action in [-1, 1], and a reward of the action; only time ends it."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    state = np.array([0.5, -0.2], dtype=np.float32)
    rounds, spent = ROUNDS, {"rounds": 0.0, "evaluation": 0.0}  # as a federation has them

    def __init__(self, reward_of: Callable[[np.ndarray], float] = lambda _: 0.0) -> None:
        self.reward_of, self.round = reward_of, 0

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.round = 0
        return self.state, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.round += 1
        return self.state, self.reward_of(action), False, self.round == ROUNDS, {"action": action}


def first_episode(reward_of: Callable[[np.ndarray], float]) -> dict[str, np.ndarray]:
    """Transitions of uniform actions."""
    actions = np.random.default_rng(0).uniform(-1, 1, (ROUNDS, 1)).astype(np.float32)
    rewards = np.array([reward_of(action) for action in actions], dtype=np.float32)
    return {"observations": np.stack([OneState.state] * (ROUNDS + 1)), "actions": actions, "rewards": rewards}


def learned(reward_of: Any, episodes: int, seed: int = 0, **settings: Any) -> Any:
    """An agent after `episodes` of ROUNDS rounds, as policies are learned."""
    config = DDPGConfig(**{"widths": "32,16", "gamma": 0.9, "phi": 0.05, "lr": 3e-3, **settings})
    here: Any = OneState(reward_of)
    agent = make_agent(here, config, episodes * ROUNDS, seed, "cpu")
    add_transitions(agent, first_episode(reward_of))
    for episode in range(2, episodes + 1):
        run_later_episode(agent, here, seed, episode, lambda: None)
    return agent


def values(agent: Any, actions: list[float], network: str = "critic") -> np.ndarray:
    """q(s, a) of some actions in the only state."""
    state = torch.from_numpy(OneState.state).expand(len(actions), 2)
    with torch.no_grad():
        (q,) = getattr(agent, network)(state, torch.tensor(actions)[:, None])
    return q[:, 0].numpy()


def test_the_actor_solves_a_quadratic_of_one_action() -> None:
    agent = learned(lambda action: -float((action[0] - 0.3) ** 2), 80)
    action, _ = agent.predict(OneState.state, deterministic=True)
    assert action[0] == pytest.approx(0.3, abs=0.05)


def test_the_critic_converges_to_the_discounted_sum_because_time_is_no_end() -> None:
    """A reward of 1 in every round for ever is worth 1 / (1 - gamma) = 10. Were nothing to come after the
    last of 20 rounds, the one state would be worth 1 / (1 - 0.95 gamma) = 6.9."""
    agent = learned(lambda _: 1.0, 100)
    assert values(agent, [-0.5, 0.0, 0.5]) == pytest.approx([10.0] * 3, rel=0.03)


def test_targets_copy_their_networks_with_phi_1_and_stay_as_they_were_with_phi_0() -> None:
    for phi in (1.0, 0.0):
        agent = learned(lambda action: float(action[0]), 5, phi=phi, batch=16)
        fresh = make_agent(OneState(), DDPGConfig(widths="32,16"), 100, 0, "cpu")
        for network in ("actor", "critic"):
            now, target = (getattr(agent, f"{network}{end}").state_dict() for end in ("", "_target"))
            first = getattr(fresh, network).state_dict()
            assert any(not torch.equal(now[name], first[name]) for name in now), "nothing was learned"
            for name, weight in target.items():
                assert torch.equal(weight, now[name] if phi else first[name])


def test_noise_on_actions_has_the_spread_that_was_set_and_stays_in_range() -> None:
    here: Any = OneState()
    agent = make_agent(here, DDPGConfig(widths="8", noise=0.1, lr=1e-30), 2000, 0, "cpu")
    calm, _ = agent.predict(OneState.state, deterministic=True)
    infos = [info for n in range(100) for info in run_later_episode(agent, here, 0, n, lambda: None).rounds]
    noise = np.array([info["action"] - calm for info in infos])
    # Of a spread of 0.1 the standard error is 0.1 / sqrt(2 * 2000) = 0.0016; four of them.
    assert noise.std() == pytest.approx(0.1, abs=0.0064)
    loud = make_agent(here, DDPGConfig(widths="8", noise=10.0), 20, 0, "cpu")
    actions = [info["action"] for info in run_later_episode(loud, here, 0, 2, lambda: None).rounds]
    assert np.abs(actions).max() == 1


def test_the_same_seed_draws_the_same_and_the_global_generators_are_left_alone() -> None:
    def reward(action: np.ndarray) -> float:
        return float(action[0])

    before = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002
    one, same, other = (learned(reward, 4, seed, batch=16) for seed in (0, 0, 1))
    after = np.random.get_state()[1], torch.random.get_rng_state()  # noqa: NPY002
    assert np.array_equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    weights = [values(agent, [0.1, 0.9]).tolist() for agent in (one, same, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


def test_a_run_acts_as_the_actor_that_was_learned() -> None:
    agent = learned(lambda action: float(action[0]), 4, batch=16)
    policy = {**actor_tensors(agent), "pca.scale": torch.tensor(2.0, dtype=torch.float64)}
    seen = torch.tensor([[1.0], [-0.4]], dtype=torch.float64)  # over the scale: the state
    action, _ = agent.predict(OneState.state, deterministic=True)
    assert act(policy, seen).numpy() == pytest.approx(action, abs=1e-6)


@pytest.mark.parametrize(
    ("returns", "kept"),
    [
        ([5.0, 1.0], 2),  # no ten yet: the last
        ([9.0, *range(9)], 10),
        ([100.0, *[1.0] * 10, 0.0], 11),  # the first episode is not the actor's
        ([0.0, *[1.0] * 9, 2.0, 2.0, 0.0, 0.0], 12),
        ([0.0, *[1.0] * 12], 11),  # of equal ones the first
    ],
)
def test_the_actor_is_kept_where_the_mean_of_ten_returns_is_largest(returns: Any, kept: int) -> None:
    assert select_episode(returns) == kept


@pytest.mark.parametrize("buffer", [3 * ROUNDS, ROUNDS + 7])
def test_files_restore_networks_moments_and_transitions_to_the_bit(tmp_path: Any, buffer: int) -> None:
    def reward(action: np.ndarray) -> float:
        return float(action[0])

    config = DDPGConfig(widths="8,4", batch=4)
    first: Any = OneState(reward)
    second: Any = OneState(reward)
    agent = make_agent(first, config, buffer, 0, "cpu")
    add_transitions(agent, first_episode(reward))
    write_tensors(tmp_path / "1", transitions_of(agent, ROUNDS))
    for episode in (2, 3):
        run_later_episode(agent, first, 0, episode, lambda: None)
        write_tensors(tmp_path / f"{episode}", transitions_of(agent, ROUNDS))
    write_tensors(tmp_path / "agent", {k: t.numpy() for k, t in agent_tensors(agent).items()})
    again = make_agent(second, config, buffer, 5, "cpu")
    restore(again, {k: torch.from_numpy(a) for k, a in read_tensors(tmp_path / "agent")[0].items()})
    for episode in (1, 2, 3):
        add_transitions(again, read_tensors(tmp_path / f"{episode}")[0])
    for part in (
        "observations",
        "next_observations",
        "actions",
        "rewards",
        "dones",
        "timeouts",
        "pos",
        "full",
    ):
        assert np.array_equal(getattr(again.replay_buffer, part), getattr(agent.replay_buffer, part)), part
    for both, here in ((agent, first), (again, second)):
        run_later_episode(both, here, 0, 4, lambda: None)
    for network in ("actor", "actor_target", "critic", "critic_target"):
        restored, original = (getattr(x, network).state_dict() for x in (again, agent))
        assert all(torch.equal(restored[name], original[name]) for name in original), network

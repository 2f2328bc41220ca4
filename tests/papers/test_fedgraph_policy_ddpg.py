"""The DDPG that learns policies, as we configure and drive it, on problems whose answers are known."""

from typing import Any

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium", reason="learning policies needs the extra rl")
pytest.importorskip("stable_baselines3", reason="learning policies needs the extra rl")

from graphfed.files import read_tensors, write_tensors  # noqa: E402
from graphfed.methods.fedgraph.ddpg import (  # noqa: E402
    Explorer,
    Transitions,
    actor_tensors,
    learn_transition,
    learner_tensors,
    make_learner,
    replay,
    restore,
    seeded,
    select_episode,
)
from graphfed.methods.fedgraph.learning_config import DDPGConfig  # noqa: E402
from graphfed.methods.fedgraph.sampling_policies import act  # noqa: E402

pytestmark = pytest.mark.slow

ROUNDS = 20


class OneState(gymnasium.Env):  # type: ignore[misc]
    """A state that never changes, an action in [-1, 1], and a reward of the action; only time ends it."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    state = np.array([0.5, -0.2], dtype=np.float32)


def learned(reward_of: Any, episodes: int, seed: int = 0, **settings: Any) -> Any:
    """A learner after `episodes` of ROUNDS rounds, driven as policies are."""
    config = DDPGConfig(**{"widths": "32,16", "gamma": 0.9, "phi": 0.05, "lr": 3e-3, **settings})
    learner = make_learner(OneState(), config, episodes * ROUNDS, seed, "cpu")
    state = OneState.state
    for episode in range(1, episodes + 1):
        explorer = Explorer(learner if episode > 1 else None, config, 1, seed, episode)
        with seeded(episode):
            for t in range(1, ROUNDS + 1):
                action = explorer.choose(state)
                learn_transition(learner, config, state, action, reward_of(action), state, t == ROUNDS)
    return learner


def values(learner: Any, actions: list[float], network: str = "critic") -> np.ndarray:
    """q(s, a) of some actions in the only state."""
    state = torch.from_numpy(OneState.state).expand(len(actions), 2)
    with torch.no_grad():
        (q,) = getattr(learner, network)(state, torch.tensor(actions)[:, None])
    return q[:, 0].numpy()


def test_the_actor_solves_a_quadratic_of_one_action() -> None:
    learner = learned(lambda action: -float((action[0] - 0.3) ** 2), 80)
    action, _ = learner.predict(OneState.state, deterministic=True)
    assert action[0] == pytest.approx(0.3, abs=0.05)


def test_the_critic_converges_to_the_discounted_sum_because_time_is_no_end() -> None:
    """A reward of 1 in every round for ever is worth 1 / (1 - gamma) = 10. Were nothing to come after the
    last of 20 rounds, the one state would be worth 1 / (1 - 0.95 gamma) = 6.9."""
    learner = learned(lambda _: 1.0, 100)
    assert values(learner, [-0.5, 0.0, 0.5]) == pytest.approx([10.0] * 3, rel=0.03)


def test_targets_copy_their_networks_with_phi_1_and_stay_as_they_were_with_phi_0() -> None:
    for phi in (1.0, 0.0):
        learner = learned(lambda action: float(action[0]), 5, phi=phi, batch=16)
        fresh = make_learner(OneState(), DDPGConfig(widths="32,16"), 100, 0, "cpu")
        for network in ("actor", "critic"):
            now, target = (getattr(learner, f"{network}{end}").state_dict() for end in ("", "_target"))
            first = getattr(fresh, network).state_dict()
            assert any(not torch.equal(now[name], first[name]) for name in now), "nothing was learned"
            for name, weight in target.items():
                assert torch.equal(weight, now[name] if phi else first[name])


def test_the_first_episode_acts_uniformly_and_later_noise_has_the_spread_that_was_set() -> None:
    config = DDPGConfig(widths="8", noise=0.1)
    many = Explorer(None, config, 10_000, 0, 1).choose(OneState.state)
    # The standard error of a mean of 10 000 uniform numbers is 0.0058; four of them.
    assert abs(many.mean()) < 0.024
    assert np.abs(many).max() <= 1
    learner = make_learner(OneState(), config, 10, 0, "cpu")
    calm, _ = learner.predict(OneState.state, deterministic=True)
    explorer = Explorer(learner, config, 1, 0, 2)
    noise = np.array([explorer.choose(OneState.state) - calm for _ in range(2000)])
    # Of a spread of 0.1 the standard error is 0.1 / sqrt(2 * 2000) = 0.0016; four of them.
    assert noise.std() == pytest.approx(0.1, abs=0.0064)


def test_the_same_seed_draws_the_same_and_the_global_generators_are_left_alone() -> None:
    def reward(action: np.ndarray) -> float:
        return float(action[0])

    before = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002
    one, same, other = (learned(reward, 4, seed, batch=16) for seed in (0, 0, 1))
    after = np.random.get_state()[1], torch.random.get_rng_state()  # noqa: NPY002
    assert np.array_equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    weights = [values(learner, [0.1, 0.9]).tolist() for learner in (one, same, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


def test_a_run_acts_as_the_actor_that_was_learned() -> None:
    learner = learned(lambda action: float(action[0]), 4, batch=16)
    policy = {**actor_tensors(learner), "pca.scale": torch.tensor(2.0, dtype=torch.float64)}
    seen = torch.tensor([[1.0], [-0.4]], dtype=torch.float64)  # over the scale: the state
    action, _ = learner.predict(OneState.state, deterministic=True)
    assert act(policy, seen, 1).numpy() == pytest.approx(action, abs=1e-6)


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


def test_files_restore_networks_moments_and_transitions_to_the_bit(tmp_path: Any) -> None:
    config = DDPGConfig(widths="8,4", batch=4, buffer=12)
    learner, draws = make_learner(OneState(), config, 100, 0, "cpu"), np.random.default_rng(0)
    for episode in (1, 2, 3):
        transitions = Transitions()
        seen = draws.normal(size=(6, 2)).astype(np.float32)
        with seeded(episode):
            for t in range(5):
                action = draws.uniform(-1, 1, 1).astype(np.float32)
                transitions.add(seen[t], action, float(t), seen[t + 1])
                learn_transition(learner, config, seen[t], action, float(t), seen[t + 1], t == 4)
        write_tensors(tmp_path / f"{episode}", transitions.arrays())
    write_tensors(tmp_path / "learner", {k: t.numpy() for k, t in learner_tensors(learner).items()})
    again = make_learner(OneState(), config, 100, 5, "cpu")
    restore(again, {k: torch.from_numpy(a) for k, a in read_tensors(tmp_path / "learner")[0].items()})
    for episode in (1, 2, 3):
        replay(again, read_tensors(tmp_path / f"{episode}")[0])
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
        assert np.array_equal(getattr(again.replay_buffer, part), getattr(learner.replay_buffer, part)), part
    for both in (learner, again):
        with seeded(7):
            both.train(gradient_steps=3, batch_size=4)
    for network in ("actor", "actor_target", "critic", "critic_target"):
        restored, original = (getattr(x, network).state_dict() for x in (again, learner))
        assert all(torch.equal(restored[name], original[name]) for name in original), network

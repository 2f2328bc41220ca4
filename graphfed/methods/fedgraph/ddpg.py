"""The DDPG that learns FedGraph's sampling policy (Chen, Li, Miyazaki and Wu, "FedGraph", Algorithm 4), with
the networks, updates and replay buffer of Stable-Baselines3.

    paper              here
    q, mu              `learner.critic`, `learner.actor`
    q~, mu~            `learner.critic_target`, `learner.actor_target`
    eta_q, eta_mu      `DDPGConfig.lr` for both: Stable-Baselines3 has one learning rate, of Adam
    phi, K_b           `DDPGConfig.phi`, `DDPGConfig.batch`
    Eqs. (12) to (14)  `learner.train`

Differs from the paper (items of docs/papers/fedgraph.md, "Differences from the paper"): the actions of the
first episode are random and uniform, because the principal components are fitted on its weights; its
transitions are in the replay buffer (12). The policy is the actor after the episode that `select_episode`
returns, and not the last actor, because returns can fall again (13). The constants that the paper does not
give have our values (14).

Stable-Baselines3 saves with pickle, so its own functions neither save nor load anything here. Weights,
moments (`learner_tensors`) and transitions (`Transitions.arrays`) are arrays for safetensors files. The
random draws of an episode follow from the seed and its number, so learning that was stopped goes on to the
same bits.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from graphfed.methods.fedgraph.environment import (
    Episode,
    FederationEnvironment,
    PreparedFederation,
    make_observation,
    run_episode,
)
from graphfed.methods.fedgraph.learning_config import WINDOW, DDPGConfig, numbers_in
from graphfed.methods.fedgraph.principal_components import check_memory, fit_projection
from graphfed.methods.fedgraph.sampling_policies import project
from graphfed.random import fold

__all__ = [
    "Explorer",
    "Transitions",
    "actor_tensors",
    "bytes_of_files",
    "check_fits",
    "learn_transition",
    "learner_tensors",
    "make_learner",
    "replay",
    "restore",
    "run_first_episode",
    "run_later_episode",
    "seeded",
    "select_episode",
    "tensors_under",
]


@contextlib.contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global generators, from which Stable-Baselines3 draws, for a block, and restore them after it.

    Args:
        key: The seed of the block.

    Yields:
        Nothing.
    """
    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002
    random.seed(key)
    np.random.seed(key % 2**32)  # noqa: NPY002
    torch.manual_seed(key)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.random.set_rng_state(before[2])


def make_learner(environment: gymnasium.Env, config: DDPGConfig, rounds: int, seed: int, device: str) -> Any:
    """Build a DDPG of Stable-Baselines3 with initial networks and an empty replay buffer.

    Args:
        environment: The environment, whose spaces give the sizes of the networks.
        config: The settings of DDPG.
        rounds: The rounds of all episodes; the buffer never needs to hold more transitions.
        seed: The seed of the policy; the networks are drawn from it.
        device: The device of the networks.

    Returns:
        The learner, a `stable_baselines3.DDPG`.

    Reference:
        FedGraph, Alg. 4, lines 1 to 5.
    """
    widths = numbers_in(config.widths, int)
    with seeded(fold(seed, "policy", "networks")):
        learner = stable_baselines3.DDPG(
            "MlpPolicy",
            environment,
            learning_rate=config.lr,
            buffer_size=min(config.buffer, rounds),
            batch_size=config.batch,
            tau=config.phi,
            gamma=config.gamma,
            policy_kwargs={"net_arch": {"pi": widths, "qf": widths}},
            device=device,
        )
    learner.set_logger(Logger(None, []))
    return learner


class Explorer:
    """Selects the actions of an episode while learning.

    In the first episode they are uniform; later they are the actor's with Gaussian noise, clipped to [-1, 1].
    """

    def __init__(self, learner: Any, config: DDPGConfig, size: int, seed: int, number: int) -> None:
        """Initialise the draws of an episode.

        Args:
            learner: The learner; None in the first episode.
            config: The settings of DDPG.
            size: The numbers of an action.
            seed: The seed of the policy.
            number: The number of the episode, from 1.
        """
        self._learner, self._noise, self._size = learner, config.noise, size
        self._draws = np.random.default_rng(fold(seed, "policy", "actions", number))

    def choose(self, observation: np.ndarray) -> np.ndarray:
        """Select an action.

        Args:
            observation: The observation, [d].

        Returns:
            The action, [size] float32 in [-1, 1].

        Reference:
            FedGraph, Alg. 4, line 15.
        """
        if self._learner is None:
            return self._draws.uniform(-1, 1, self._size).astype(np.float32)
        action, _ = self._learner.predict(observation, deterministic=True)
        noise = self._draws.normal(0.0, self._noise, self._size)
        clipped: np.ndarray = np.clip(action + noise, -1, 1).astype(np.float32)
        return clipped


def store_transition(
    learner: Any,
    observation: np.ndarray,
    action: np.ndarray,
    reward: float,
    next_observation: np.ndarray,
    is_last: bool,
) -> None:
    """Store a transition in the replay buffer."""
    # An episode ends by its time limit, so its last transition keeps the term gamma q~ of Eq. (12).
    info = [{"TimeLimit.truncated": is_last}]
    learner.replay_buffer.add(
        observation, next_observation, action, np.array([reward]), np.array([is_last]), info
    )


def learn_transition(
    learner: Any,
    config: DDPGConfig,
    observation: np.ndarray,
    action: np.ndarray,
    reward: float,
    next_observation: np.ndarray,
    is_last: bool,
) -> None:
    """Store a transition, and update the networks once the buffer has enough transitions for a batch.

    Args:
        learner: The learner.
        config: The settings of DDPG.
        observation: s'[t], [d].
        action: a[t], [size].
        reward: r[t].
        next_observation: s'[t + 1], [d].
        is_last: Whether the episode ends with this transition.

    Reference:
        FedGraph, Alg. 4, lines 11 to 14.
    """
    # Alg. 4, l. 11
    store_transition(learner, observation, action, reward, next_observation, is_last)
    if learner.replay_buffer.size() >= config.batch:
        # Alg. 4, l. 12-14
        learner.train(gradient_steps=config.updates, batch_size=config.batch)


def actor_tensors(learner: Any) -> dict[str, Tensor]:
    """Return the actor's weights as a policy file has them.

    Args:
        learner: The learner.

    Returns:
        ``actor.<layer>.weight`` and ``actor.<layer>.bias``, copies on the CPU.
    """
    tensors = {}
    layers = [part for part in learner.actor.mu if isinstance(part, torch.nn.Linear)]
    for number, layer in enumerate(layers):
        tensors[f"actor.{number}.weight"] = layer.weight.detach().cpu().clone()
        tensors[f"actor.{number}.bias"] = layer.bias.detach().cpu().clone()
    return tensors


def select_episode(returns: Sequence[float]) -> int:
    """Select the episode after which the actor is the policy.

    It is the last of the WINDOW episodes in a row with the largest mean return, the first episode not
    counted, because its actions are not the actor's. The earliest of equal ones is selected.

    Args:
        returns: The return of each episode.

    Returns:
        The number of the episode, from 1; the last one if there are too few episodes.
    """
    ends = range(1 + WINDOW, len(returns) + 1)
    return max(ends, key=lambda end: sum(returns[end - WINDOW : end]), default=len(returns))


# ---- what is saved -----------------------------------------------------------------------------------------

#: The networks, and those of them that have an optimiser.
NETWORKS = ("actor", "actor_target", "critic", "critic_target")
OPTIMIZED = ("actor", "critic")


@dataclass
class Transitions:
    """The rounds of an episode as the replay buffer has them.

    Attributes:
        observations: R + 1 observations [d], the last one after the last round.
        actions: R actions [a].
        rewards: R rewards.
    """

    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def add(
        self, observation: np.ndarray, action: np.ndarray, reward: float, next_observation: np.ndarray
    ) -> None:
        """Append a round.

        Args:
            observation: The observation before it, [d]; the one after the round before, if there is one.
            action: The action, [a].
            reward: The reward.
            next_observation: The observation after it, [d].
        """
        if not self.observations:
            self.observations.append(observation)
        self.observations.append(next_observation)
        self.actions.append(action)
        self.rewards.append(reward)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the rounds as arrays for a file.

        Returns:
            seen: the observations, [R + 1, d]. actions: [R, a]. rewards: [R] float64.
        """
        return {
            "seen": np.stack(self.observations),
            "actions": np.stack(self.actions),
            "rewards": np.array(self.rewards),
        }


def replay(learner: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Store the transitions of a saved episode in the replay buffer.

    Args:
        learner: The learner.
        arrays: The arrays of `Transitions.arrays`.
    """
    observations, actions, rewards = (arrays[name] for name in ("seen", "actions", "rewards"))
    for t, (action, reward) in enumerate(zip(actions, rewards, strict=True)):
        is_last = t + 1 == len(actions)
        store_transition(learner, observations[t], action, float(reward), observations[t + 1], is_last)


def learner_tensors(learner: Any) -> dict[str, Tensor]:
    """Return the weights of the networks and the moments of their optimisers.

    Args:
        learner: The learner.

    Returns:
        ``<network>.<name>`` and ``adam.<network>.<place>.<name>``.
    """
    tensors: dict[str, Tensor] = {}
    for network in NETWORKS:
        weights = getattr(learner, network).state_dict()
        tensors |= {f"{network}.{name}": weight for name, weight in weights.items()}
    for network in OPTIMIZED:
        moments = getattr(learner, network).optimizer.state_dict()["state"]
        for place, state in moments.items():
            tensors |= {f"adam.{network}.{place}.{name}": tensor for name, tensor in state.items()}
    return tensors


def restore(learner: Any, tensors: Mapping[str, Tensor]) -> None:
    """Load the networks and optimisers of a saved learner.

    Args:
        learner: The learner.
        tensors: The tensors of `learner_tensors`; others are ignored.
    """
    for network in NETWORKS:
        getattr(learner, network).load_state_dict(tensors_under(tensors, f"{network}."))
    for network in OPTIMIZED:
        optimizer = getattr(learner, network).optimizer
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors_under(tensors, f"adam.{network}.").items():
            place, key = name.split(".")
            moments.setdefault(int(place), {})[key] = tensor
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": moments, "param_groups": groups})


def tensors_under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names begin with a prefix, and remove it.

    Args:
        tensors: Tensors by name.
        prefix: The prefix.

    Returns:
        The selected tensors.
    """
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


# ---- episodes ----------------------------------------------------------------------------------------------


def check_fits(federation: PreparedFederation, config: DDPGConfig, episodes: int, rounds: int) -> None:
    """Check that the weights of the first episode, their components and the replay buffer fit into memory.

    Args:
        federation: The federation.
        config: The settings of DDPG.
        episodes: The number of episodes.
        rounds: The rounds of an episode.

    Raises:
        InputError: They do not fit into the free memory.
    """
    observation_size, action_size = _sizes(federation, config)
    buffer = 4 * min(config.buffer, episodes * rounds) * (2 * observation_size + action_size + 3)
    check_memory(
        rounds * (1 + federation.fed.num_clients),
        federation.clients.size,
        buffer,
        "use fewer rounds or clients, a smaller hidden width, or a smaller ddpg.buffer",
    )


def bytes_of_files(federation: PreparedFederation, config: DDPGConfig, episodes: int, rounds: int) -> int:
    """Estimate the size of the files that learning writes.

    They are the transitions of all episodes and three checkpoints: two that are kept, and one that is being
    written. A checkpoint has networks, targets and moments, and the projection.

    Args:
        federation: The federation.
        config: The settings of DDPG.
        episodes: The number of episodes.
        rounds: The rounds of an episode.

    Returns:
        Bytes.
    """
    observation_size, action_size = _sizes(federation, config)
    widths = [observation_size + action_size, *numbers_in(config.widths, int), action_size]
    weights = 2 * sum((a + 1) * b for a, b in itertools.pairwise(widths))
    transitions = episodes * rounds * (observation_size + action_size + 2)
    projection = 8 * config.components * federation.clients.size
    size: int = 4 * transitions + 3 * (4 * 4 * weights + projection)
    return size


def _sizes(federation: PreparedFederation, config: DDPGConfig) -> tuple[int, int]:
    """Return the largest size of an observation, and the size of an action."""
    clients = federation.fed.num_clients
    return (1 + clients) * config.components, clients * (1 + federation.config.layers)


def run_first_episode(
    environment: FederationEnvironment,
    config: DDPGConfig,
    seed: int,
    after_round: Callable[[], None],
    report: Callable[[str], None],
) -> tuple[Episode, Transitions, dict[str, Tensor]]:
    """Run an episode of random actions, and fit the principal components on the weights of all its rounds.

    Args:
        environment: An environment without a projection.
        config: The settings of DDPG.
        seed: The seed of the policy; the actions are drawn from it.
        after_round: Called after every round; it may raise to end the episode.
        report: Called with a line of text before a long computation.

    Returns:
        The episode; its transitions, with observations on the components; and the components
        (`fit_projection`).

    Raises:
        GraphfedError: Training diverged, or the weights did not change.

    Reference:
        FedGraph, Alg. 4, lines 6 to 11.
    """
    clients, size = environment.federation.fed.num_clients, environment.federation.clients.size
    rows = np.empty((environment.rounds, 1 + clients, size), dtype=np.float32)
    raw = Transitions()

    def on_round(
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        is_last: bool,
    ) -> None:
        if not raw.observations:
            raw.observations.append(observation)
        rows[len(raw.rewards)] = next_observation.reshape(1 + clients, size)
        raw.actions.append(action)
        raw.rewards.append(reward)

    explorer = Explorer(None, config, environment.action_space.shape[0], seed, 1)
    episode = run_episode(environment, 1, explorer.choose, on_round, after_round)
    report(f"computing the principal components of {environment.rounds * (1 + clients)} times {size} weights")
    projection = fit_projection(rows.reshape(-1, size), config.components)
    weights = [raw.observations[0].reshape(1 + clients, size), *rows]
    views = [project(projection, torch.from_numpy(each)) for each in weights]
    observations = [make_observation(projection, view) for view in views]
    return episode, Transitions(observations, raw.actions, raw.rewards), projection


def run_later_episode(
    environment: FederationEnvironment,
    learner: Any,
    config: DDPGConfig,
    seed: int,
    number: int,
    after_round: Callable[[], None],
) -> tuple[Episode, Transitions]:
    """Run an episode in which the actor decides, with noise, and learns after every round.

    Args:
        environment: An environment with the projection.
        learner: The learner.
        config: The settings of DDPG.
        seed: The seed of the policy.
        number: The number of the episode, from 2.
        after_round: Called after every round; it may raise to end the episode.

    Returns:
        The episode and its transitions.

    Raises:
        GraphfedError: Training or the policy diverged.

    Reference:
        FedGraph, Alg. 4, lines 7 to 15.
    """
    transitions = Transitions()

    def on_round(
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        is_last: bool,
    ) -> None:
        transitions.add(observation, action, reward, next_observation)
        learn_transition(learner, config, observation, action, reward, next_observation, is_last)

    explorer = Explorer(learner, config, environment.action_space.shape[0], seed, number)
    with seeded(fold(seed, "policy", "updates", number)):
        episode = run_episode(environment, number, explorer.choose, on_round, after_round)
    return episode, transitions

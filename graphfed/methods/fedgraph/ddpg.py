"""The DDPG that learns FedGraph's sampling policy: Stable-Baselines3's networks, updates and replay buffer,
in the loop of the paper (Chen, Li, Miyazaki and Wu, "FedGraph", Algorithm 4).

    paper              here
    q, mu              `learner.critic`, `learner.actor`
    q~, mu~            `learner.critic_target`, `learner.actor_target`
    eta_q, eta_mu      `DDPGConfig.lr`, of both: Stable-Baselines3 has one rate, of Adam
    phi, K             `DDPGConfig.phi`, batch
    Eqs. (12) to (14)  `learner.train`

Differs from the paper: it says neither gamma, phi, K, the learning rates, the noise nor the size of the
buffer; see `DDPGConfig`. The first episode acts at random, uniformly: it is what the principal components
are fitted on, and its rounds are in the replay buffer too. The policy is the actor that `kept_episode` names,
not the last one: returns can fall again, and far.

Stable-Baselines3 saves by pickle, so nothing of it is saved or loaded by its own functions: weights, moments
(`learner_tensors`) and transitions (`Transitions.arrays`) are arrays for safetensors files. What an episode
draws follows from the seed and its number, so learning that was stopped goes on to the same bits."""

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
    observation_of,
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
    "first_episode",
    "kept_episode",
    "later_episode",
    "learner_tensors",
    "make_learner",
    "observe",
    "replay",
    "restore",
    "seeded",
    "tensors_under",
]


@contextlib.contextmanager
def seeded(key: int) -> Iterator[None]:
    """In this block the global generators, which Stable-Baselines3 draws from, begin from `key`; after it
    they are as they were."""
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
    """A DDPG (Stable-Baselines3's) with fresh networks and an empty buffer for at most `rounds`
    transitions."""
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
    """Actions while learning, of episode `number`: of the first one uniform, later the actor's with noise, in
    [-1, 1]. learner: None in the first, which it is not there for."""

    def __init__(self, learner: Any, config: DDPGConfig, size: int, seed: int, number: int) -> None:
        self._learner, self._noise, self._size = learner, config.noise, size
        self._draws = np.random.default_rng(fold(seed, "policy", "actions", number))

    def choose(self, seen: np.ndarray) -> np.ndarray:
        if self._learner is None:
            return self._draws.uniform(-1, 1, self._size).astype(np.float32)
        action, _ = self._learner.predict(seen, deterministic=True)
        noise = self._draws.normal(0.0, self._noise, self._size)
        clipped: np.ndarray = np.clip(action + noise, -1, 1).astype(np.float32)
        return clipped


def remember(
    learner: Any, seen: np.ndarray, action: np.ndarray, reward: float, after: np.ndarray, over: bool
) -> None:
    """Store a transition. The end of an episode is that of time, not of what could still be gained."""
    info = [{"TimeLimit.truncated": over}]
    learner.replay_buffer.add(seen, after, action, np.array([reward]), np.array([over]), info)


def observe(
    learner: Any,
    config: DDPGConfig,
    seen: np.ndarray,
    action: np.ndarray,
    reward: float,
    after: np.ndarray,
    over: bool,
) -> None:
    """Store a transition and learn.  Alg. 4, l. 11-14"""
    remember(learner, seen, action, reward, after, over)
    if learner.replay_buffer.size() >= config.batch:
        learner.train(gradient_steps=config.updates, batch_size=config.batch)


def actor_tensors(learner: Any) -> dict[str, Tensor]:
    """The actor as a policy's file has it: ``actor.<layer>.weight`` and ``bias``."""
    found = {}
    layers = [part for part in learner.actor.mu if isinstance(part, torch.nn.Linear)]
    for number, layer in enumerate(layers):
        found[f"actor.{number}.weight"] = layer.weight.detach().cpu().clone()
        found[f"actor.{number}.bias"] = layer.bias.detach().cpu().clone()
    return found


def kept_episode(returns: Sequence[float]) -> int:
    """The episode after which the actor is the policy: of those that end ten with noise in a row, the one
    whose ten have the largest mean return, the first of equal ones; the last one where none does. The first
    episode is not the actor's."""
    ends = range(1 + WINDOW, len(returns) + 1)
    return max(ends, key=lambda end: sum(returns[end - WINDOW : end]), default=len(returns))


# ---- what is saved -----------------------------------------------------------------------------------------

#: The networks, and those of them that an optimiser moves.
NETWORKS = ("actor", "actor_target", "critic", "critic_target")
LEARNING = ("actor", "critic")


@dataclass
class Transitions:
    """The rounds of an episode as the replay buffer has them: R + 1 observations [d], the last one after the
    last round, R actions [a] and rewards."""

    seen: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def add(self, seen: np.ndarray, action: np.ndarray, reward: float, after: np.ndarray) -> None:
        if not self.seen:
            self.seen.append(seen)
        self.seen.append(after)
        self.actions.append(action)
        self.rewards.append(reward)

    def arrays(self) -> dict[str, np.ndarray]:
        """For a file."""
        return {
            "seen": np.stack(self.seen),
            "actions": np.stack(self.actions),
            "rewards": np.array(self.rewards),
        }


def replay(learner: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Store the transitions of an episode again, from `Transitions.arrays`."""
    seen, actions, rewards = (arrays[name] for name in ("seen", "actions", "rewards"))
    for t, (action, reward) in enumerate(zip(actions, rewards, strict=True)):
        remember(learner, seen[t], action, float(reward), seen[t + 1], t + 1 == len(actions))


def learner_tensors(learner: Any) -> dict[str, Tensor]:
    """The networks, and the moments of their optimisers."""
    tensors: dict[str, Tensor] = {}
    for network in NETWORKS:
        weights = getattr(learner, network).state_dict()
        tensors |= {f"{network}.{name}": weight for name, weight in weights.items()}
    for network in LEARNING:
        moments = getattr(learner, network).optimizer.state_dict()["state"]
        for place, state in moments.items():
            tensors |= {f"adam.{network}.{place}.{name}": tensor for name, tensor in state.items()}
    return tensors


def restore(learner: Any, tensors: Mapping[str, Tensor]) -> None:
    """Set networks and optimisers to what `learner_tensors` gave."""
    for network in NETWORKS:
        getattr(learner, network).load_state_dict(tensors_under(tensors, f"{network}."))
    for network in LEARNING:
        optimizer = getattr(learner, network).optimizer
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors_under(tensors, f"adam.{network}.").items():
            place, key = name.split(".")
            moments.setdefault(int(place), {})[key] = tensor
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": moments, "param_groups": groups})


def tensors_under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


# ---- episodes ----------------------------------------------------------------------------------------------


def check_fits(federation: PreparedFederation, config: DDPGConfig, episodes: int, rounds: int) -> None:
    """InputError where the first episode, its components and the replay buffer do not fit into memory."""
    seen, actions = _sizes(federation, config)
    buffer = 4 * min(config.buffer, episodes * rounds) * (2 * seen + actions + 3)
    check_memory(
        rounds * (1 + federation.fed.num_clients),
        federation.clients.size,
        buffer,
        "use fewer rounds or clients, a smaller hidden width, or a smaller ddpg.buffer",
    )


def bytes_of_files(federation: PreparedFederation, config: DDPGConfig, episodes: int, rounds: int) -> int:
    """About what learning writes: the transitions of all episodes, and in each of three checkpoints, two that
    are kept and one that is being written, networks with targets and moments, and the projection."""
    seen, actions = _sizes(federation, config)
    widths = [seen + actions, *numbers_in(config.widths, int), actions]
    weights = 2 * sum((a + 1) * b for a, b in itertools.pairwise(widths))
    transitions = episodes * rounds * (seen + actions + 2)
    projection = 8 * config.components * federation.clients.size
    size: int = 4 * transitions + 3 * (4 * 4 * weights + projection)
    return size


def _sizes(federation: PreparedFederation, config: DDPGConfig) -> tuple[int, int]:
    """The numbers of an observation, at most, and of an action."""
    clients = federation.fed.num_clients
    return (1 + clients) * config.components, clients * (1 + federation.config.layers)


def first_episode(
    environment: FederationEnvironment,
    config: DDPGConfig,
    seed: int,
    after_round: Callable[[], None],
    say: Callable[[str], None],
) -> tuple[Episode, Transitions, dict[str, Tensor]]:
    """Run an episode of random actions, and fit the principal components on the weights of all of its rounds.

    Args:
        environment: One without a projection.
        config: The settings of DDPG.
        seed: What the actions are drawn from.
        after_round: Called after every round; it may raise to end the episode.
        say: Called with what takes long after the rounds.

    Returns:
        The episode; its transitions, observed on the components; and the components (`fit_projection`)."""
    clients, size = environment.federation.fed.num_clients, environment.federation.clients.size
    rows = np.empty((environment.rounds, 1 + clients, size), dtype=np.float32)
    raw = Transitions()

    def on_round(seen: np.ndarray, action: np.ndarray, reward: float, after: np.ndarray, over: bool) -> None:
        if not raw.seen:
            raw.seen.append(seen)
        rows[len(raw.rewards)] = after.reshape(1 + clients, size)
        raw.actions.append(action)
        raw.rewards.append(reward)

    explorer = Explorer(None, config, environment.action_space.shape[0], seed, 1)
    episode = run_episode(environment, 1, explorer.choose, on_round, after_round)
    say(f"finding the principal components of {environment.rounds * (1 + clients)} times {size} weights")
    projection = fit_projection(rows.reshape(-1, size), config.components)
    weights = [raw.seen[0].reshape(1 + clients, size), *rows]
    seen = [observation_of(projection, project(projection, torch.from_numpy(each))) for each in weights]
    return episode, Transitions(seen, raw.actions, raw.rewards), projection


def later_episode(
    environment: FederationEnvironment,
    learner: Any,
    config: DDPGConfig,
    seed: int,
    number: int,
    after_round: Callable[[], None],
) -> tuple[Episode, Transitions]:
    """Run an episode in which the actor decides, with noise, and learns after every round.  Alg. 4"""
    transitions = Transitions()

    def on_round(seen: np.ndarray, action: np.ndarray, reward: float, after: np.ndarray, over: bool) -> None:
        transitions.add(seen, action, reward, after)
        observe(learner, config, seen, action, reward, after, over)

    explorer = Explorer(learner, config, environment.action_space.shape[0], seed, number)
    with seeded(fold(seed, "policy", "updates", number)):
        episode = run_episode(environment, number, explorer.choose, on_round, after_round)
    return episode, transitions

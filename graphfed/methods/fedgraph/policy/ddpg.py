"""The DDPG that learns FedGraph's sampling policy (Chen, Li, Miyazaki and Wu, "FedGraph", Algorithm 4): the
agent of Stable-Baselines3, whose `learn` is the loop over rounds.

    paper              here
    q, mu              `agent.critic`, `agent.actor`
    q~, mu~            `agent.critic_target`, `agent.actor_target`
    eta_q, eta_mu      `DDPGConfig.lr` for both: Stable-Baselines3 has one learning rate, of Adam
    phi, K_b           `DDPGConfig.phi`, `DDPGConfig.batch`
    Eqs. (12) to (14)  `agent.train`, which `agent.learn` calls after every round

Differs from the paper (items of docs/papers/fedgraph.md, "Differences from the paper"): the actions of the
first episode are random and uniform, because the principal components are fitted on its weights; its
transitions are in the replay buffer (12). The policy is the actor after the episode that `select_episode`
returns, and not the last actor, because returns can fall again (13). The constants that the paper does not
give have our values (14).

Only safetensors files are written and read. Stable-Baselines3 saves with pickle (`save`, `save_replay_buffer`
and what `learn` calls), and reading a pickle runs the code that whoever could write the file has put there.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from torch import Tensor

from graphfed.methods.fedgraph.learned_policy import project
from graphfed.methods.fedgraph.policy.environment import (
    Episode,
    FederationEnvironment,
    PreparedFederation,
    make_observation,
    new_episode,
    run_episode,
)
from graphfed.methods.fedgraph.policy.principal_components import check_memory, fit_projection
from graphfed.methods.fedgraph.policy.settings import WINDOW, DDPGConfig, widths_in
from graphfed.random import fold


@contextlib.contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global generators, from which Stable-Baselines3 draws, for a block, and restore them after
    it.
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


def make_agent(
    environment: gymnasium.Env, config: DDPGConfig, buffer_size: int, seed: int, device: str
) -> Any:
    """Build a DDPG of Stable-Baselines3 with initial networks and an empty replay buffer.

    Reference:
        FedGraph, Alg. 4, lines 1 to 5.
    """
    widths, actions = widths_in(config.widths), environment.action_space.shape
    with seeded(fold(seed, "policy", "networks")):
        agent = stable_baselines3.DDPG(
            "MlpPolicy",
            environment,
            learning_rate=config.lr,
            buffer_size=buffer_size,
            # The buffer has the first episode when `learn` begins.
            learning_starts=0,
            batch_size=config.batch,
            tau=config.phi,
            gamma=config.gamma,
            gradient_steps=config.updates,
            # Alg. 4, l. 15
            action_noise=NormalActionNoise(np.zeros(actions), np.full(actions, config.noise)),
            policy_kwargs={"net_arch": {"pi": widths, "qf": widths}},
            device=device,
        )
    agent.set_logger(Logger(None, []))
    return agent


def select_episode(returns: Sequence[float]) -> int:
    """Select the episode after which the actor is the policy, from 1.

    It is the last of the WINDOW episodes in a row with the largest mean return, the first episode not
    counted, because its actions are not the actor's. The earliest of equal ones is selected; the last one if
    there are too few episodes.
    """
    ends = range(1 + WINDOW, len(returns) + 1)
    return max(ends, key=lambda end: sum(returns[end - WINDOW : end]), default=len(returns))


# ---- episodes ----------------------------------------------------------------------------------------------


def run_first_episode(
    environment: FederationEnvironment,
    config: DDPGConfig,
    seed: int,
    after_round: Callable[[], None],
    report: Callable[[str], None],
) -> tuple[Episode, dict[str, np.ndarray], dict[str, Tensor]]:
    """Run an episode of random actions, and fit the principal components on the weights of all its rounds.

    Args:
        environment: An environment without a projection.
        seed: The seed of the policy; the actions are drawn from it.
        after_round: Called after every round; it may raise to end the episode.
        report: Called with a line of text before a long computation.

    Returns:
        The episode; its transitions (`transitions_of`), with observations on the components; and the
        components (`fit_projection`).

    Raises:
        GraphfedError: Training diverged, or the weights did not change.
    """
    clients, size, rounds = (
        environment.federation.fed.num_clients,
        environment.federation.clients.size,
        environment.rounds,
    )
    draws = np.random.default_rng(fold(seed, "policy", "actions", 1))
    actions = draws.uniform(-1, 1, (rounds, *environment.action_space.shape)).astype(np.float32)
    weights = np.empty((rounds + 1, 1 + clients, size), dtype=np.float32)

    def choose(observation: np.ndarray) -> np.ndarray:
        weights[environment.round] = observation.reshape(1 + clients, size)
        chosen: np.ndarray = actions[environment.round]
        return chosen

    episode = run_episode(environment, 1, choose, after_round)
    weights[rounds] = environment.server_view.cpu().numpy()
    report(f"computing the principal components of {rounds * (1 + clients)} times {size} weights")
    projection = fit_projection(weights[1:].reshape(-1, size), config.components)
    views = [project(projection, torch.from_numpy(each)) for each in weights]
    arrays = {
        "observations": np.stack([make_observation(projection, view) for view in views]),
        "actions": actions,
        "rewards": np.array(episode.of_rounds("reward"), dtype=np.float32),
    }
    return episode, arrays, projection


def run_later_episode(
    agent: Any,
    environment: FederationEnvironment,
    seed: int,
    number: int,
    after_round: Callable[[], None],
) -> Episode:
    """Run an episode in which the actor decides, with noise, and the networks are updated after every round.

    The random draws follow from the seed and the number of the episode, so learning that was stopped goes on
    to the same bits.

    Raises:
        GraphfedError: Training or the policy diverged.

    Reference:
        FedGraph, Alg. 4, lines 7 to 15.
    """
    with new_episode(environment) as episode, seeded(fold(seed, "policy", "updates", number)):

        def on_step(of_agent: dict[str, Any], _: dict[str, Any]) -> bool:
            episode.rounds += of_agent["infos"]
            after_round()
            return True

        # Alg. 4, l. 8-15
        agent.learn(environment.rounds, on_step, reset_num_timesteps=False)
    return episode


# ---- what is saved -----------------------------------------------------------------------------------------

OPTIMIZERS = ("actor.optimizer", "critic.optimizer")


def add_transitions(agent: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Store the transitions of an episode in the replay buffer.

    Reference:
        FedGraph, Alg. 4, line 11.
    """
    observations, actions, rewards = (arrays[name] for name in ("observations", "actions", "rewards"))
    for t, (action, reward) in enumerate(zip(actions, rewards, strict=True)):
        is_last = np.array([t + 1 == len(actions)])
        # An episode ends by its time limit, so its last transition keeps the term gamma q~ of Eq. (12).
        info = [{"TimeLimit.truncated": bool(is_last)}]
        agent.replay_buffer.add(observations[t], observations[t + 1], action, reward, is_last, info)


def transitions_of(agent: Any, rounds: int) -> dict[str, np.ndarray]:
    """Return the transitions of the latest episode, R rounds, from the replay buffer.

    Returns:
        observations [R + 1, d], the last one after the last round; actions [R, a]; rewards [R].
    """
    buffer = agent.replay_buffer
    places = np.arange(buffer.pos - rounds, buffer.pos) % buffer.buffer_size
    return {
        "observations": np.concatenate(
            [buffer.observations[places, 0], buffer.next_observations[places[-1]]]
        ),
        "actions": buffer.actions[places, 0],
        "rewards": buffer.rewards[places, 0],
    }


def actor_tensors(agent: Any) -> dict[str, Tensor]:
    """Return copies of the actor's weights on the CPU, as a policy file has them: ``actor.<layer>.weight``
    and ``actor.<layer>.bias``.
    """
    tensors = {}
    layers = [part for part in agent.actor.mu if isinstance(part, torch.nn.Linear)]
    for number, layer in enumerate(layers):
        tensors[f"actor.{number}.weight"] = layer.weight.detach().cpu().clone()
        tensors[f"actor.{number}.bias"] = layer.bias.detach().cpu().clone()
    return tensors


def agent_tensors(agent: Any) -> dict[str, Tensor]:
    """Return the weights of the networks, ``policy.<name>``, and the moments of their optimisers,
    ``<optimizer>.<place>.<name>``.
    """
    parameters = agent.get_parameters()
    tensors = {f"policy.{name}": weight for name, weight in parameters["policy"].items()}
    for optimizer in OPTIMIZERS:
        for place, moments in parameters[optimizer]["state"].items():
            tensors |= {f"{optimizer}.{place}.{name}": moment for name, moment in moments.items()}
    return tensors


def restore(agent: Any, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors of `agent_tensors`; others are ignored."""
    parameters = agent.get_parameters()
    parameters["policy"] = tensors_under(tensors, "policy.")
    for optimizer in OPTIMIZERS:
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors_under(tensors, f"{optimizer}.").items():
            place, _, moment = name.partition(".")
            state.setdefault(int(place), {})[moment] = tensor
        parameters[optimizer]["state"] = state
    agent.set_parameters(parameters)


def tensors_under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


# ---- memory and files --------------------------------------------------------------------------------------


def buffer_size(config: DDPGConfig, episodes: int, rounds: int) -> int:
    """Return the size of the replay buffer: at least an episode, and no more than there will be."""
    return min(max(config.buffer, rounds), episodes * rounds)


def check_fits(federation: PreparedFederation, config: DDPGConfig, episodes: int, rounds: int) -> None:
    """Check that the weights of the first episode, their components and the replay buffer fit into memory.

    Raises:
        InputError: They do not fit into the free memory.
    """
    observation_size, action_size = _sizes(federation, config)
    buffer = 4 * buffer_size(config, episodes, rounds) * (2 * observation_size + action_size + 3)
    check_memory(
        (rounds + 1) * (1 + federation.fed.num_clients),
        federation.clients.size,
        buffer,
        "use fewer rounds or clients, a smaller hidden width, or a smaller ddpg.buffer",
    )


def bytes_of_files(federation: PreparedFederation, config: DDPGConfig, episodes: int, rounds: int) -> int:
    """Estimate the bytes of the files that learning writes.

    They are the transitions of all episodes and three checkpoints: two that are kept, and one that is being
    written. A checkpoint has networks, targets and moments, and the projection.
    """
    observation_size, action_size = _sizes(federation, config)
    widths = [observation_size + action_size, *widths_in(config.widths), action_size]
    weights = 2 * sum((a + 1) * b for a, b in itertools.pairwise(widths))
    transitions = episodes * rounds * (observation_size + action_size + 2)
    projection = 8 * config.components * federation.clients.size
    size: int = 4 * transitions + 3 * (4 * 4 * weights + projection)
    return size


def _sizes(federation: PreparedFederation, config: DDPGConfig) -> tuple[int, int]:
    """Return the largest size of an observation, and the size of an action."""
    clients = federation.fed.num_clients
    return (1 + clients) * config.components, clients * (1 + federation.config.network.layers)

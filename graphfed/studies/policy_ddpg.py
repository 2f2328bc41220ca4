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
and transitions are arrays of safetensors files (`Checkpoint`)."""

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from graphfed.errors import InputError
from graphfed.files import read_tensors, write_tensors
from graphfed.methods.fedgraph.sampling_policies import project
from graphfed.random import fold
from graphfed.runs.folder import CHECKPOINTS
from graphfed.studies.policy_environment import FederationEnvironment, observation_of
from graphfed.studies.policy_episodes import LINES, Episode, Learning, lines_in, run_episode
from graphfed.studies.policy_settings import WINDOW, DDPGConfig, numbers_in
from graphfed.studies.principal_components import check_memory, fit_projection

__all__ = [
    "Checkpoint",
    "Explorer",
    "Transitions",
    "actor_tensors",
    "check_fits",
    "kept_episode",
    "learn",
    "make_learner",
    "observe",
    "seeded",
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
    told = [{"TimeLimit.truncated": over}]
    learner.replay_buffer.add(seen, after, action, np.array([reward]), np.array([over]), told)


def observe(
    learner: Any,
    config: DDPGConfig,
    seen: np.ndarray,
    action: np.ndarray,
    reward: float,
    after: np.ndarray,
    over: bool,
) -> None:
    """Store a transition and learn.  Alg. 4, l. 6-12"""
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
#: The file of the newest episode.
LEARNER = "learner.safetensors"


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


class Checkpoint:
    """What learning needs to go on after an episode.

        checkpoint/episode-00001.safetensors   its transitions, a file for each episode
        checkpoint/learner.safetensors         projection, networks, optimisers, after the newest episode,
                                               and the actor that is kept

    The second is written last: an episode counts once it is in there. What an episode draws follows from the
    seed and its number, so learning that was stopped goes on to the bits that it would have had."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CHECKPOINTS

    def exists(self) -> bool:
        return (self._folder / LEARNER).exists()

    def save(
        self,
        number: int,
        transitions: Transitions,
        projection: dict[str, Tensor],
        learner: Any | None,
        kept: dict[str, Tensor],
    ) -> None:
        """After episode `number`; learner: None while it is as it was made; kept: `actor_tensors` of the
        best so far. OSError when the disk refuses."""
        write_tensors(
            self._path(number),
            {
                "seen": np.stack(transitions.seen),
                "actions": np.stack(transitions.actions),
                "rewards": np.array(transitions.rewards),
            },
        )
        arrays = {name: tensor.cpu().numpy() for name, tensor in projection.items()}
        arrays |= {f"kept.{name}": tensor.numpy() for name, tensor in kept.items()}
        for network in NETWORKS if learner is not None else ():
            weights = getattr(learner, network).state_dict()
            arrays |= {f"{network}.{name}": w.cpu().numpy() for name, w in weights.items()}
        for network in LEARNING if learner is not None else ():
            moments = getattr(learner, network).optimizer.state_dict()["state"]
            for place, state in moments.items():
                arrays |= {f"adam.{network}.{place}.{name}": t.cpu().numpy() for name, t in state.items()}
        write_tensors(self._folder / LEARNER, arrays, {"episode": str(number)})

    def read(self) -> tuple[int, dict[str, Tensor]]:
        """The newest episode, and the tensors of its file. InputError for a damaged one."""
        with _readable(self._folder / LEARNER):
            arrays, told = read_tensors(self._folder / LEARNER)
            return int(told["episode"]), {name: torch.from_numpy(a) for name, a in arrays.items()}

    def restore(self, learner: Any, number: int, tensors: dict[str, Tensor]) -> None:
        """Put networks, optimisers and replay buffer as they were after episode `number`. InputError for
        damaged files."""
        with _readable(self._folder / LEARNER):
            for network in NETWORKS if "actor.mu.0.weight" in tensors else ():
                getattr(learner, network).load_state_dict(_under(tensors, f"{network}."))
            for network in LEARNING:
                optimizer = getattr(learner, network).optimizer
                moments: dict[int, dict[str, Tensor]] = {}
                for name, tensor in _under(tensors, f"adam.{network}.").items():
                    place, key = name.split(".")
                    moments.setdefault(int(place), {})[key] = tensor
                groups = optimizer.state_dict()["param_groups"]
                optimizer.load_state_dict({"state": moments, "param_groups": groups})
        for episode in range(1, number + 1):
            with _readable(self._path(episode)):
                arrays, _ = read_tensors(self._path(episode))
                seen, actions, rewards = (arrays[name] for name in ("seen", "actions", "rewards"))
                for t, (action, reward) in enumerate(zip(actions, rewards, strict=True)):
                    remember(learner, seen[t], action, float(reward), seen[t + 1], t + 1 == len(actions))

    def _path(self, episode: int) -> Path:
        return self._folder / f"episode-{episode:05d}.safetensors"


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise InputError(
            f"the checkpoint {path} cannot be used ({type(error).__name__}: {str(error)[:200]}); learn anew, "
            "in another folder"
        ) from None


# ---- learning ----------------------------------------------------------------------------------------------


def check_fits(work: Learning) -> None:
    """InputError where the first episode, its components and the replay buffer do not fit into memory."""
    config, clients = work.settings, work.federation.fed.num_clients
    assert isinstance(config, DDPGConfig)
    seen, actions = (1 + clients) * config.components, clients * (1 + work.federation.config.layers)
    buffer = 4 * min(config.buffer, work.episodes * work.rounds) * (2 * seen + actions + 3)
    check_memory(
        work.rounds * (1 + clients),
        work.federation.clients.size,
        buffer,
        "use fewer rounds or clients, a smaller hidden width, or a smaller ddpg.buffer",
    )


def bytes_of_files(work: Learning) -> int:
    """About what learning writes: transitions of all episodes, networks with targets and moments, twice while
    a file is replaced, and the projection."""
    config, clients = work.settings, work.federation.fed.num_clients
    assert isinstance(config, DDPGConfig)
    seen, actions = (1 + clients) * config.components, clients * (1 + work.federation.config.layers)
    widths = [seen + actions, *numbers_in(config.widths, int), actions]
    weights = 2 * sum((a + 1) * b for a, b in itertools.pairwise(widths))
    transitions = work.episodes * work.rounds * (seen + actions + 2)
    size: int = 4 * (transitions + 2 * 4 * weights) + 2 * 8 * config.components * work.federation.clients.size
    return size


def learn(work: Learning) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of the policy's file, and details for the result: learned from the first episode on, or
    from the newest checkpoint.  Alg. 4

    Raises OSError when the disk refuses, InputError for a damaged checkpoint, Interrupted."""
    config, checkpoint = work.settings, Checkpoint(work.folder)
    assert isinstance(config, DDPGConfig)
    if not checkpoint.exists():
        work.begin()
        transitions, projection = _first_episode(work, config)
        checkpoint.save(1, transitions, projection, None, {})
    number, tensors = checkpoint.read()
    # A line that was written before its checkpoint is of an episode that is run again.
    work.lines = lines_in(work.folder)[:number]
    if len(work.lines) < number:
        raise InputError(f"{work.folder / LINES} lacks episodes; learn anew, in another folder")
    projection = {name: tensor for name, tensor in tensors.items() if name.startswith("pca.")}
    environment = work.environment(projection)
    learner = make_learner(environment, config, work.episodes * work.rounds, work.seed, work.device)
    checkpoint.restore(learner, number, tensors)
    kept = _under(tensors, "kept.")
    if number > 1 and not kept:
        raise InputError(
            f"the checkpoint in {work.folder} has no actor that is kept, so an earlier version wrote it; "
            "learn anew, in another folder"
        )
    work.begin()
    for episode in range(number + 1, work.episodes + 1):
        explorer = Explorer(learner, config, environment.action_space.shape[0], work.seed, episode)
        done, transitions = _later_episode(work, config, environment, explorer, learner, episode)
        work.add(done, actions="noisy")
        if kept_episode(work.returns) == episode:
            kept = actor_tensors(learner)
        checkpoint.save(episode, transitions, projection, learner, kept)
    details = {"components": len(projection["pca.components"]), "kept_episode": kept_episode(work.returns)}
    return {**kept, **projection}, details


def _later_episode(
    work: Learning,
    config: DDPGConfig,
    environment: FederationEnvironment,
    explorer: Explorer,
    learner: Any,
    number: int,
) -> tuple[Episode, Transitions]:
    """An episode in which the actor decides, with noise, and learns after every round."""
    transitions = Transitions()

    def on_round(seen: Any, action: Any, reward: float, after: Any, over: bool) -> None:
        transitions.add(seen, action, reward, after)
        observe(learner, config, seen, action, reward, after, over)

    with seeded(fold(work.seed, "policy", "updates", number)):
        done = run_episode(environment, number, explorer.choose, on_round, work.after_round)
    return done, transitions


def _first_episode(work: Learning, config: DDPGConfig) -> tuple[Transitions, dict[str, Tensor]]:
    """An episode of random actions: its transitions, seen on the principal components of the weights of all
    of its rounds, and these."""
    environment = work.environment()
    clients, size = work.federation.fed.num_clients, work.federation.clients.size
    rows = np.empty((work.rounds, 1 + clients, size), dtype=np.float32)
    first: list[np.ndarray] = []
    raw = Transitions()

    def on_round(seen: Any, action: Any, reward: float, after: Any, over: bool) -> None:
        if not first:
            first.append(seen)
        rows[len(raw.rewards)] = after.reshape(1 + clients, size)
        raw.actions.append(action)
        raw.rewards.append(reward)

    explorer = Explorer(None, config, environment.action_space.shape[0], work.seed, 1)
    done = run_episode(environment, 1, explorer.choose, on_round, work.after_round)
    work.say(f"finding the principal components of {work.rounds * (1 + clients)} times {size} weights")
    projection = fit_projection(rows.reshape(-1, size), config.components)
    weights = [first[0].reshape(1 + clients, size), *rows]
    seen = [observation_of(projection, project(projection, torch.from_numpy(each))) for each in weights]
    work.add(done, actions="uniform")
    return Transitions(seen, raw.actions, raw.rewards), projection

"""The DDPG that learns FedGraph's sampling policy (Chen, Li, Miyazaki and Wu, "FedGraph", section 4 and
Algorithm 4): the agent of Stable-Baselines3, whose `learn` is the loop over rounds, in a federation as a
Gymnasium environment. A step is a round, and an episode is a training from new weights.

    paper                          here
    s[t] = {W, W_1, ..., W_K}      `FederationEnvironment.server_view` without a projection
    s'[t], PCA to 20               the observation: `learned_policy.project`, by `fit_projection`
    a[t], {P_i}                    the action, and `learned_policy.make_decision` of it
    lambda[t]                      accuracy on the validation nodes of all clients (on=test: the test nodes)
    delta[t]                       seconds of the round by the method's time model (clock=wall: measured)
    Lambda, Omega, alpha, beta     `Reward.target`, `omega`, `alpha`, `beta`
    q, mu                          `agent.critic`, `agent.actor`
    q~, mu~                        `agent.critic_target`, `agent.actor_target`
    eta_q, eta_mu                  `DDPGConfig.lr` for both: Stable-Baselines3 has one learning rate, of Adam
    phi, K_b                       `DDPGConfig.phi`, `DDPGConfig.batch`
    Eqs. (12) to (14)              `agent.train`, which `agent.learn` calls after every round

Differs from the paper (items of docs/papers/fedgraph.md, "Differences from the paper"): lambda is the
accuracy on validation nodes, where the paper's server scores its test set, as with on=test (9). delta is
modelled, so that it does not depend on the machine (10). The actions of the first episode are random and
uniform, because the principal components are fitted on its weights; its transitions are in the replay buffer
(12). The policy is the actor after the episode that `select_episode` returns, and not the last actor, because
returns can fall again (13). The defaults of Lambda, alpha and beta, and the constants that the paper does not
give, are ours (14): the accuracy of central training, 1 over the seconds of a round with full batches, and 0.
So alpha (delta - beta) is 1 for full batches; the paper says that it is near 1. An episode ends by its time
limit (`truncated`), so the state after the last round still has a value. The components are fitted once and
never changed: the authors' program fits them again in every round, and then the signs of components flip,
and with them the state.

Only safetensors files are written and read. Stable-Baselines3 saves with pickle (`save`, `save_replay_buffer`
and what `learn` calls), and reading a pickle runs the code that whoever could write the file has put there.
"""

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from torch import Tensor

from graphfed.errors import GraphfedError, InputError
from graphfed.federation import SERVER, Federation, Ledger, Located
from graphfed.federation.secure.aggregation import check_sums
from graphfed.files import JsonObject, read_tensors, write_tensors
from graphfed.memory import memory_bytes
from graphfed.methods.base import State, Task
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.fedgraph import method as fedgraph
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.methods.fedgraph.learned_policy import BLOCK, act, fit_projection, make_decision, project
from graphfed.methods.fedgraph.method import Clients
from graphfed.methods.fedgraph.policy.settings import WINDOW, Clock, DDPGConfig, Part, widths_in
from graphfed.methods.settings import changed
from graphfed.random import fold
from graphfed.runs.train import agree_before_setup
from graphfed.tasks.inputs import Inputs, local_federation
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig

#: The bound that the observation space declares.
LARGEST = float(np.finfo(np.float32).max)
OPTIMIZERS = ("actor.optimizer", "critic.optimizer")


# ---- the federation as an environment ----------------------------------------------------------------------


@dataclass(frozen=True)
class Reward:
    """The reward of a round, r = Omega^(lambda - Lambda) - alpha (delta - beta).

    Attributes:
        target: Lambda, the target accuracy, a fraction in (0, 1].
        alpha: alpha, the cost of a second.
        beta: beta, the seconds of a round without cost.
        on: The nodes whose accuracy is used, "val" or "test".
        clock: Whether seconds are "modelled" or measured ("wall").
    """

    target: float
    omega: float
    alpha: float
    beta: float
    on: Part = "val"
    clock: Clock = "modelled"

    def compute(self, accuracy: float, seconds: float) -> float:
        """Compute the reward of a round with the accuracy lambda, in [0, 1], and the seconds delta."""
        # Eq. (9)
        return float(self.omega ** (accuracy - self.target) - self.alpha * (seconds - self.beta))


@dataclass(frozen=True)
class PreparedFederation:
    """A federation in one process, after the clients' set-up, that can train any number of times.

    Attributes:
        counts: The number of training nodes of each client, [K].
        score: Called with the outputs of `method.predict`, the settings and the part of the split ("val" or
            "test"). Returns the accuracy on that part of all clients' nodes, summed at the server as in a
            run; NaN if there is no such node, None if a prediction is not finite.
    """

    fed: Federation
    task: Task
    config: FedGraphConfig
    clients: Clients
    counts: Tensor
    score: Callable[[Located, FedGraphConfig, Part], float | None]

    def first_state(self, config: FedGraphConfig, policy: Mapping[str, Tensor]) -> State:
        """Return the state before the first round, with new weights of the seed in `config`."""
        fed = self.fed
        weights = fed.server.run(initial_weights, self.task, config.network, config.run.seed, str(fed.device))
        policy_at_server = fed.locate(SERVER, "policy", [dict(policy)])
        return fedgraph.first_state(fed, self.clients, config, weights, policy_at_server)

    def accuracy(self, state: State, config: FedGraphConfig, part: Part) -> float:
        """Return the accuracy of a state on a part of all clients' nodes, a fraction."""
        with self.fed.phase("eval"):
            accuracy = self.score(fedgraph.predict(self.fed, state, config, part), config, part)
        if accuracy is None:
            raise GraphfedError(
                "training diverged while the policy was learned: its predictions are no longer finite; use "
                f"a smaller learning rate (lr is {config.training.lr:g})"
            )
        if math.isnan(accuracy):
            raise InputError(
                f"no client has a node in the part {part!r} of the split, which the reward needs; use "
                "another split or partition"
            )
        return accuracy


def prepare_federation(config: RunConfig, inputs: Inputs) -> PreparedFederation:
    """Set up the federation of a run of fedgraph, with all clients stacked in this process."""
    settings: FedGraphConfig = config.settings
    fed = local_federation(config, inputs)
    check_sums(fed, settings.sums.aggregation, fed.num_clients)
    task = inputs.task(config.task)
    parts = inputs.parts(config, fed.workers)
    data = get_task(task.name).data.located(fed, parts, [inputs.part_of_server(config)])
    data, _ = agree_before_setup(fed, data, config.method, task, settings)
    assert isinstance(data, Located)
    evaluation = get_task(task.name)
    with fed.phase("eval"):
        prepared = evaluation.prepare(fed, data, task, settings)

    def score(outputs: Located, asked: FedGraphConfig, part: Part) -> float | None:
        _, scored = evaluation.score(fed, data, outputs, part, part, prepared, asked)
        (found,) = fed.local_parts(scored)
        accuracy: float | None = None if found.lost else found.metrics["accuracy"]
        return accuracy

    with fed.phase("setup", round_number=0):
        clients = fedgraph.agree(fed, data, task, settings)
    (counts,) = fed.local_parts(clients.counts)
    return PreparedFederation(fed, task, settings, clients, counts, score)


class FederationEnvironment(gymnasium.Env):  # type: ignore[misc]
    """A federation as a Gymnasium environment.

    Observation: with a projection (`pca.mean`, `pca.components`, `pca.scale`) the coordinates of W, W_1, ...,
    W_K, c each, divided by the scale, [(1 + K) c] float32, as the actor of a run has them; without one the
    weights themselves, [(1 + K) n_W].

    Action: [K (1 + L)] in [-1, 1] (`learned_policy.make_decision`).

    Info: reward, accuracy, decision [K, 1 + L] and modelled_seconds of the round.

    An episode has the weights, samples and dropout of its own seed, which follows from the environment's seed
    and the number of the episode. Episode 0 has the environment's seed itself, so it is what a run with that
    seed does.

    Attributes:
        projection: The tensors of the projection; empty for none.
        round: The number of rounds of the episode that are done.
        spent: Seconds that this process has spent in "rounds" and in their "evaluation", of all episodes.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        federation: PreparedFederation,
        reward: Reward,
        *,
        rounds: int,
        projection: Mapping[str, Tensor] | None = None,
        episodes_done: int = 0,
    ) -> None:
        """Initialise the environment. `reset` begins the episode after those that are done."""
        self.federation, self.reward, self.rounds = federation, reward, rounds
        self.seed, self.episode, self.round = federation.config.run.seed, episodes_done, 0
        self.spent = {"rounds": 0.0, "evaluation": 0.0}
        device = federation.fed.device
        self.projection = {name: t.to(device) for name, t in (projection or {}).items()}
        config, clients = federation.config, federation.fed.num_clients
        self.action_space = gymnasium.spaces.Box(
            -1.0, 1.0, (clients * (1 + config.network.layers),), np.float32
        )
        each = self.projection["pca.components"].shape[0] if projection else federation.clients.size
        self.observation_space = gymnasium.spaces.Box(-LARGEST, LARGEST, ((1 + clients) * each,), np.float32)
        self._config = config
        self._state: State | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode; with the key "episode" of the options, the one with this number, else the next.

        Args:
            seed: The new seed of the environment, with which the count of episodes begins again; None: the
                seed does not change.
        """
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.episode = seed, 0
        self.episode = (options or {}).get("episode", self.episode + 1)
        self.round = 0
        episode_seed = fold(self.seed, "policy", "episode", self.episode) >> 1 if self.episode else self.seed
        self._config = changed(self.federation.config, seed=episode_seed)
        self._state = self.federation.first_state(self._config, self.projection)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Run a round with the decision of an action, and evaluate it.

        Returns:
            The observation after the round, the reward, False (an episode never ends before its time limit),
            whether the episode is over, and the info.

        Raises:
            GraphfedError: No episode has begun, or it is over; the action is not finite; or training
                diverged.
        """
        if self._state is None or self.round == self.rounds:
            raise GraphfedError("the episode has not begun, or is over; reset the environment first")
        if not np.isfinite(action).all():
            raise GraphfedError(
                "the learned policy diverged: its action is no longer finite; use a smaller ddpg.lr, or a "
                "smaller reward.alpha"
            )
        fed, before = self.federation.fed, self._modelled_seconds()
        if self.round == 0:  # the ledger has no entries of the episode before
            fed.ledger = Ledger(fed.num_clients)
        action_at_server = fed.locate(SERVER, "action", [torch.as_tensor(action).to(fed.device)])
        decision = fed.server.run(make_decision, action_at_server, self.federation.clients.counts)
        self.round += 1
        start = time.perf_counter()
        with fed.phase("train", round_number=self.round):
            self._state = fedgraph.round_with(fed, self._state, self._config, self.round, decision)
        trained = time.perf_counter()
        accuracy = self.federation.accuracy(self._state, self._config, self.reward.on)
        self.spent["rounds"] += trained - start
        self.spent["evaluation"] += time.perf_counter() - trained
        modelled = self._modelled_seconds() - before
        reward = self.reward.compute(
            accuracy, modelled if self.reward.clock == "modelled" else trained - start
        )
        info = {
            "reward": reward,
            "accuracy": accuracy,
            "decision": decision.parts[0].cpu().numpy(),
            "modelled_seconds": modelled,
        }
        return self._observation(), reward, False, self.round == self.rounds, info

    @property
    def server_view(self) -> Tensor:
        """What the server has of the weights: the coordinates s' [1 + K, c], or without a projection the
        weights [1 + K, n_W].
        """
        assert self._state is not None
        view: Tensor
        (view,) = self._state.values["observed"].parts
        return view

    def _observation(self) -> np.ndarray:
        observed = make_observation(self.projection, self.server_view)
        if not np.isfinite(observed).all():
            raise GraphfedError(
                "training diverged while the policy was learned: its weights are no longer finite; use a "
                f"smaller learning rate (lr is {self._config.training.lr:g})"
            )
        return observed

    def _modelled_seconds(self) -> float:
        assert self._state is not None
        (facts,) = self._state.values["facts"].parts
        return float(facts["modelled_seconds"])


def make_observation(projection: Mapping[str, Tensor], view: Tensor) -> np.ndarray:
    """Compute the actor's input, as `learned_policy.act` does: the server's view in one row, divided by the
    projection's scale if there is one, [(1 + K) c] or [(1 + K) n_W] float32.
    """
    flat = view.flatten()
    observed: np.ndarray = (flat / projection["pca.scale"] if projection else flat).float().cpu().numpy()
    return observed


def seconds_of_full_round(federation: PreparedFederation, clock: Clock) -> float:
    """Return the duration delta of a round with all training nodes and all neighbours.

    The measured round is the second one, because the first one also allocates memory.
    """
    without_cost = Reward(target=1.0, omega=128.0, alpha=0.0, beta=0.0)
    environment = FederationEnvironment(federation, without_cost, rounds=2)
    full_batches = np.ones(environment.action_space.shape)
    environment.reset(options={"episode": 0})
    environment.step(full_batches)
    first = environment.spent["rounds"]
    modelled: float = environment.step(full_batches)[4]["modelled_seconds"]
    return modelled if clock == "modelled" else environment.spent["rounds"] - first


# ---- the agent ---------------------------------------------------------------------------------------------


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
    """Build a DDPG of Stable-Baselines3 with initial networks and an empty replay buffer (Alg. 4, l. 1-5)."""
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


@dataclass
class Episode:
    """What was observed in an episode.

    Attributes:
        rounds: The info of every round, in order.
        spent: Seconds of this process in "rounds", "evaluation" and "learning", which is all the rest.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)

    def of_rounds(self, key: str) -> list[float]:
        """Return a figure of every round."""
        return [info[key] for info in self.rounds]

    def discounted_return(self, gamma: float) -> float:
        """Compute the discounted return sum_t gamma^(t - 1) r[t]."""
        # Eq. (10), from the last round on
        total = 0.0
        for reward in reversed(self.of_rounds("reward")):
            total = reward + gamma * total
        return total

    def to_json(self, gamma: float, counts: Tensor) -> dict[str, Any]:
        """Return the figures of a line of episodes.jsonl; counts: training nodes of each client, [K]."""
        rewards, accuracies = self.of_rounds("reward"), self.of_rounds("accuracy")
        decisions = np.stack([info["decision"] for info in self.rounds])
        fraction = decisions[:, :, 0] / counts.clamp(min=1).cpu().numpy()
        return {
            "return": self.discounted_return(gamma),
            "sum": sum(rewards),
            "mean_reward": sum(rewards) / len(rewards),
            "accuracy": {"final": accuracies[-1], "best": max(accuracies)},
            "modelled_seconds": sum(self.of_rounds("modelled_seconds")),
            "wall_seconds": sum(self.spent.values()),
            "kappa_share": float(fraction.mean()),
            "chance": decisions[:, :, 1:].mean((0, 1)).tolist(),
            "spent": self.spent,
        }


@contextlib.contextmanager
def new_episode(environment: FederationEnvironment) -> Iterator[Episode]:
    """Yield an episode to fill. When the block ends, the episode has the seconds that were spent in it."""
    episode, before, start = Episode(), dict(environment.spent), time.perf_counter()
    yield episode
    spent = {key: seconds - before[key] for key, seconds in environment.spent.items()}
    episode.spent = {**spent, "learning": time.perf_counter() - start - sum(spent.values())}


def run_episode(
    environment: FederationEnvironment,
    number: int,
    choose: Callable[[np.ndarray], np.ndarray],
    after_round: Callable[[], None],
) -> Episode:
    """Run an episode in which nothing is learned.

    Args:
        choose: Called with the observation before a round; returns the action.
        after_round: Called after every round; it may raise to end the episode.
    """
    with new_episode(environment) as episode:
        observation, _ = environment.reset(options={"episode": number})
        is_over = False
        while not is_over:
            observation, _, _, is_over, info = environment.step(choose(observation))
            episode.rounds.append(info)
            after_round()
    return episode


def run_policy(
    environment: FederationEnvironment, policy: Mapping[str, Tensor], after_round: Callable[[], None]
) -> Episode:
    """Run episode 0 with a learned policy and without noise, which is what a run with both does; environment:
    with the policy's projection.
    """
    tensors = {name: tensor.to(environment.federation.fed.device) for name, tensor in policy.items()}

    def choose(_: np.ndarray) -> np.ndarray:
        action: np.ndarray = act(tensors, environment.server_view).cpu().numpy()
        return action

    return run_episode(environment, 0, choose, after_round)


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
        after_round: As in `run_episode`.
        report: Called with a line of text before a long computation.

    Returns:
        The episode; its transitions (`transitions_of`), with observations on the components; and the
        components (`fit_projection`).
    """
    federation, rounds = environment.federation, environment.rounds
    clients, size = federation.fed.num_clients, federation.clients.size
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
    """Run an episode in which the actor decides, with noise, and the networks are updated after every round
    (Alg. 4, l. 7-15).

    The random draws follow from the seed and the number of the episode, so learning that was stopped goes on
    to the same bits.
    """
    with new_episode(environment) as episode, seeded(fold(seed, "policy", "updates", number)):

        def on_step(of_agent: dict[str, Any], _: dict[str, Any]) -> bool:
            episode.rounds += of_agent["infos"]
            after_round()
            return True

        # Alg. 4, l. 8-15
        agent.learn(environment.rounds, on_step, reset_num_timesteps=False)
    return episode


# ---- Algorithm 4 -------------------------------------------------------------------------------------------


class Progress(Protocol):
    """What learning keeps between episodes, and reports (`learning.Learning`).

    Attributes:
        lines: Of the episodes that are done, as in episodes.jsonl.
        tensors: Of the newest checkpoint.
    """

    lines: list[JsonObject]
    tensors: dict[str, Tensor]

    def environment(self, projection: Mapping[str, Tensor] | None = None) -> FederationEnvironment:
        """Return the federation as an environment, whose next episode is the one after those done."""

    def after_round(self) -> None:
        """Report how far the learning is; raise Interrupted if a stop was requested."""

    def note(self, text: str) -> None:
        """Show a line."""

    def add(self, episode: Episode, tensors: dict[str, Tensor], *, actions: str) -> None:
        """Save an episode that is over; actions: what they were."""

    def transitions_of(self, episode: int) -> Path:
        """Return the file with the transitions of an episode."""


def learn(
    work: Progress, config: DDPGConfig, episodes: int, seed: int, device: str
) -> tuple[dict[str, Tensor], JsonObject]:
    """Learn from the first episode on, or after the last of `work.lines` (Alg. 4).

    Returns:
        The tensors of the policy's file, and details for the result.

    Raises:
        OSError: The disk refuses a file.
        InputError: A checkpoint is damaged.
        Interrupted: A stop was requested.
    """
    if not work.lines:
        first = run_first_episode(work.environment(), config, seed, work.after_round, work.note)
        episode, transitions, projection = first
        write_tensors(work.transitions_of(1), transitions)
        work.add(episode, projection, actions="uniform")
    projection = {name: tensor for name, tensor in work.tensors.items() if name.startswith("pca.")}
    environment = work.environment(projection)
    rounds = environment.rounds
    agent = make_agent(environment, config, buffer_size(config, episodes, rounds), seed, device)
    if len(work.lines) > 1:  # it is as it was made until the second episode
        with readable(work.transitions_of(1).parent):
            restore(agent, work.tensors)
    for number in range(1, len(work.lines) + 1):
        with readable(work.transitions_of(number)):
            add_transitions(agent, read_tensors(work.transitions_of(number))[0])
    kept = tensors_under(work.tensors, "kept.")
    returns = [line["return"] for line in work.lines]
    for number in range(len(work.lines) + 1, episodes + 1):
        episode = run_later_episode(agent, environment, seed, number, work.after_round)
        returns.append(episode.discounted_return(config.gamma))
        if select_episode(returns) == number:
            kept = actor_tensors(agent)
        write_tensors(work.transitions_of(number), transitions_of(agent, rounds))
        of_actor = {f"kept.{name}": tensor for name, tensor in kept.items()}
        work.add(episode, {**projection, **of_actor, **agent_tensors(agent)}, actions="noisy")
    details = {"components": len(projection["pca.components"]), "kept_episode": select_episode(returns)}
    return {**kept, **projection}, details


# ---- what is saved -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Use a checkpoint in a block, and raise InputError if the block fails."""
    try:
        yield
    except Exception as error:
        raise InputError(
            f"the checkpoint {path} cannot be used ({type(error).__name__}: {str(error)[:200]}); learn anew, "
            "in another folder"
        ) from None


def add_transitions(agent: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Store the transitions of an episode in the replay buffer (Alg. 4, l. 11)."""
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
    """Check that the weights of the first episode, their components and the replay buffer fit into memory."""
    observation_size, action_size = _sizes(federation, config)
    buffer = 4 * buffer_size(config, episodes, rounds) * (2 * observation_size + action_size + 3)
    check_memory((rounds + 1) * (1 + federation.fed.num_clients), federation.clients.size, buffer)


def check_memory(rows: int, width: int, other_bytes: int) -> None:
    """Check that `rows` rows of `width` weights, the computation of their components and the other bytes fit
    into the free memory. Raise InputError if they do not.
    """
    small = min(rows, width)
    need = 4 * rows * width + 8 * (3 * small**2 + max(rows, width) * min(BLOCK, width)) + other_bytes
    free, _ = memory_bytes()
    if free is not None and need > free:
        raise InputError(
            f"learning needs about {need / 1e9:.1f} GB of memory, for the weights of the first episode "
            f"({rows} times {width} numbers), their principal components and the replay buffer; "
            f"{free / 1e9:.1f} GB are free; use fewer rounds or clients, a smaller hidden width, or a "
            "smaller ddpg.buffer"
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

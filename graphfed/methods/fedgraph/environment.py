"""A federation that trains with FedGraph as a Gymnasium environment, for learning its sampling policy (Chen,
Li, Miyazaki and Wu, "FedGraph", section 4): a step is a round, an episode a training from fresh weights.

    paper                          here
    s[t] = {W, W_1, ..., W_C}      `FederationEnvironment.sight`, before its projection
    s'[t], PCA to 20               the observation: `sampling_policies.project`, by `principal_components`
    a[t], P                        the action, and `sampling_policies.squash` of it
    lambda[t]                      accuracy on the validation nodes of all clients (on=test: the test's)
    delta[t]                       seconds of the round by the method's time model (clock=wall: measured)
    Lambda, Omega, alpha, beta     `Reward.target`, omega, alpha, beta

Differs from the paper: lambda is of the validation part, where the paper's server scores its test set
(on=test is that); delta is modelled, so that it does not depend on the machine. An episode ends by its time
limit: what comes after the last round still has a value (`truncated`). The default of Lambda is what central
training reaches, of alpha one over the seconds of a round with full batches, of beta 0: the penalty of a
round is 1 for full batches, and less for less. They are ours; the paper says that alpha (delta - beta) is
near 1."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from torch import Tensor

from graphfed.errors import GraphfedError, InputError
from graphfed.federation import SERVER, Federation, Ledger, Located
from graphfed.methods.base import State, Task
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.fedgraph import method as fedgraph
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.methods.fedgraph.learning_config import Clock, Part
from graphfed.methods.fedgraph.method import Clients
from graphfed.methods.fedgraph.sampling_policies import act, squash
from graphfed.random import fold

__all__ = [
    "Episode",
    "FederationEnvironment",
    "PreparedFederation",
    "Reward",
    "observation_of",
    "prepare_clients",
    "run_episode",
    "run_policy",
    "seconds_of_full_round",
]

# ---- the reward --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reward:
    """r = Omega^(lambda - Lambda) - alpha (delta - beta)."""

    target: float
    omega: float
    alpha: float
    beta: float
    on: Part = "val"
    clock: Clock = "modelled"

    def of(self, accuracy: float, seconds: float) -> float:
        """The reward of a round: accuracy lambda, a share in [0, 1], and seconds delta.  Eq. (9)"""
        return float(self.omega ** (accuracy - self.target) - self.alpha * (seconds - self.beta))


# ---- the federation ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparedFederation:
    """Clients in one process that have agreed who asks whom for what, and can train anew any number of times.

    counts [K]: training nodes. score: (outputs of `fedgraph.predict`, settings, part) -> the accuracy on that
    part of all clients' nodes, summed at the server as in a run; NaN where there is none, None where a
    prediction is not finite."""

    fed: Federation
    task: Task
    config: FedGraphConfig
    clients: Clients
    counts: Tensor
    score: Callable[[Located, FedGraphConfig, Part], float | None]

    def first_state(self, config: FedGraphConfig, policy: Mapping[str, Tensor]) -> State:
        """Fresh weights of the seed in `config`, before the first round. The ledger begins anew: an episode's
        entries are not the next one's."""
        fed = self.fed
        fed.ledger = Ledger(fed.num_clients)
        weights = fed.server.run(initial_weights, self.task, config, str(fed.device))
        of_policy = fed.locate(SERVER, "policy", [dict(policy)])
        return fedgraph.first_state(fed, self.clients, config, weights, of_policy)

    def accuracy(self, state: State, config: FedGraphConfig, part: Part) -> float:
        """The accuracy of a state on a part of all clients' nodes. GraphfedError where a prediction is not
        finite."""
        with self.fed.phase("eval"):
            accuracy = self.score(fedgraph.predict(self.fed, state, config, part), config, part)
        if accuracy is None:
            raise GraphfedError(
                "the training that a policy is learned on diverged: its predictions are no longer finite; "
                f"use a smaller learning rate (lr is {config.lr:g})"
            )
        if math.isnan(accuracy):
            raise InputError(
                f"no client has a node of the part {part!r} that the reward needs; use another split or "
                "partition"
            )
        return accuracy


def prepare_clients(
    fed: Federation,
    data: Located,
    task: Task,
    config: FedGraphConfig,
    score: Callable[[Located, FedGraphConfig, Part], float | None],
) -> PreparedFederation:
    """Let the clients of a federation agree who asks whom for what.

    Args:
        fed: All clients, and the server, in this process.
        data: The clients' data, after what a run agrees on before set-up.
        task: The task.
        config: The settings of the method.
        score: See `PreparedFederation`.

    Returns:
        What episodes train on."""
    with fed.phase("setup", round_number=0):
        weights = fed.server.run(initial_weights, task, config, str(fed.device))
        nothing = fed.server.run(fedgraph.no_policy)
        state = fedgraph.begin(fed, data, task, config, weights, nothing)
    (counts,) = fed.local_parts(state.prepared.counts)
    return PreparedFederation(fed, task, config, state.prepared, counts, score)


# ---- the environment ---------------------------------------------------------------------------------------

#: The largest number that an observation is said to have.
LARGEST = float(np.finfo(np.float32).max)


class FederationEnvironment(gymnasium.Env):  # type: ignore[misc]
    """Observation: with a projection (`pca.mean`, `pca.components`, `pca.scale`) the coordinates of W, W_1,
    ..., W_K, c each, over the scale, [(1 + K) c] float32, as the actor of a run sees them; without one the
    weights themselves, [(1 + K) n_W]; with policy=bandit, which sees nothing, a zero.
    Action: [K (1 + L)] in [-1, 1], see `sampling_policies.squash`.
    info: accuracy, decision [K, 1 + L] and modelled_seconds of the round. spent: seconds that this process
    has spent in the episode's rounds and in their evaluation.

    Episode n has the weights, samples and dropout of a seed of its own, which follows from the seed and n; in
    episode 0 it is the seed itself, so that this is what a run with that seed does."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        federation: PreparedFederation,
        reward: Reward,
        *,
        rounds: int,
        projection: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.federation, self.reward, self.rounds = federation, reward, rounds
        self.seed, self.episode, self.round = federation.config.seed, 0, 0
        self.spent: dict[str, float] = {}
        device = federation.fed.device
        self.projection = {name: t.to(device) for name, t in (projection or {}).items()}
        config, clients = federation.config, federation.fed.num_clients
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (clients * (1 + config.layers),), np.float32)
        width = 1
        if config.policy == "ddpg":
            each = self.projection["pca.components"].shape[0] if projection else federation.clients.size
            width = (1 + clients) * each
        self.observation_space = gymnasium.spaces.Box(-LARGEST, LARGEST, (width,), np.float32)
        self._config = config
        self._state: State | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the next episode, or number `options["episode"]`. seed: count episodes anew, from this
        seed."""
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.episode = seed, 0
        self.episode = (options or {}).get("episode", self.episode + 1)
        self.round, self.spent = 0, {"rounds": 0.0, "evaluation": 0.0}
        of_episode = fold(self.seed, "policy", "episode", self.episode) >> 1 if self.episode else self.seed
        self._config = replace(self.federation.config, seed=of_episode)
        self._state = self.federation.first_state(self._config, self.projection)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """A round as the action says, and its evaluation. GraphfedError for an action that is no number, and
        where training has diverged."""
        if self._state is None or self.round == self.rounds:
            raise GraphfedError("the episode has not begun, or is over; reset the environment first")
        if not np.isfinite(action).all():
            raise GraphfedError(
                "the policy that is learned is no longer finite; use a smaller ddpg.lr, or a smaller "
                "reward.alpha"
            )
        fed, before = self.federation.fed, self._modelled_seconds()
        chosen = fed.locate(SERVER, "action", [torch.as_tensor(action).to(fed.device)])
        decision = fed.server.run(squash, chosen, self.federation.clients.counts)
        self.round += 1
        began = time.perf_counter()
        with fed.phase("train", round_number=self.round):
            self._state = fedgraph.round_with(fed, self._state, self._config, self.round, decision)
        trained = time.perf_counter()
        accuracy = self.federation.accuracy(self._state, self._config, self.reward.on)
        done = time.perf_counter()
        modelled = self._modelled_seconds() - before
        self.spent["rounds"] += trained - began
        self.spent["evaluation"] += done - trained
        seconds = modelled if self.reward.clock == "modelled" else trained - began
        info = {
            "accuracy": accuracy,
            "decision": decision.parts[0].cpu().numpy(),
            "modelled_seconds": modelled,
        }
        over = self.round == self.rounds
        return self._observation(), self.reward.of(accuracy, seconds), False, over, info

    @property
    def sight(self) -> Tensor:
        """What the server sees: the coordinates s' [1 + K, c], or without a projection the weights [1 + K,
        n_W]."""
        assert self._state is not None
        (seen,) = self._state.values["observed"].parts
        found: Tensor = seen
        return found

    def _observation(self) -> np.ndarray:
        if self.federation.config.policy != "ddpg":
            return np.zeros(1, dtype=np.float32)
        observed = observation_of(self.projection, self.sight)
        if not np.isfinite(observed).all():
            raise GraphfedError(
                "the training that a policy is learned on diverged: its weights are no longer finite; use a "
                f"smaller learning rate (lr is {self._config.lr:g})"
            )
        return observed

    def _modelled_seconds(self) -> float:
        assert self._state is not None
        (facts,) = self._state.values["facts"].parts
        return float(facts["modelled_seconds"])


def observation_of(projection: Mapping[str, Tensor], sight: Tensor) -> np.ndarray:
    """What the actor gets of what the server sees (`FederationEnvironment.sight`), as in
    `sampling_policies.act`."""
    flat = sight.flatten()
    observed: np.ndarray = (flat / projection["pca.scale"] if projection else flat).float().cpu().numpy()
    return observed


def seconds_of_full_round(federation: PreparedFederation, clock: Clock) -> float:
    """delta of a round with all training nodes and all neighbours; measured, of the second such round:
    in a first one memory is taken."""
    free = Reward(target=1.0, omega=128.0, alpha=0.0, beta=0.0)
    environment = FederationEnvironment(federation, free, rounds=2)
    everything = np.ones(environment.action_space.shape)
    environment.reset(options={"episode": 0})
    environment.step(everything)
    first = environment.spent["rounds"]
    modelled: float = environment.step(everything)[4]["modelled_seconds"]
    return modelled if clock == "modelled" else environment.spent["rounds"] - first


# ---- episodes ----------------------------------------------------------------------------------------------

#: What a round was: (observation before, action, reward, observation after, whether the episode is over).
OnRound = Callable[[np.ndarray, np.ndarray, float, np.ndarray, bool], None]


@dataclass
class Episode:
    """The rounds of an episode, in order: rewards, accuracies (of the part that the reward is of), modelled
    seconds, decisions [K, 1 + L]; spent: seconds of this process in rounds, evaluation and learning."""

    rewards: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    modelled: list[float] = field(default_factory=list)
    decisions: list[np.ndarray] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)

    def discounted(self, gamma: float) -> float:
        """sum_t gamma^(t - 1) r[t].  Eq. (10)"""
        total = 0.0
        for reward in reversed(self.rewards):
            total = reward + gamma * total
        return total

    def to_json(self, gamma: float, counts: Tensor) -> dict[str, Any]:
        """What a line of episodes.jsonl has of it; counts [K]: training nodes of each client."""
        rounds = len(self.rewards)
        decisions = np.stack(self.decisions)
        share = decisions[:, :, 0] / counts.clamp(min=1).cpu().numpy()
        return {
            "return": self.discounted(gamma),
            "sum": sum(self.rewards),
            "mean_reward": sum(self.rewards) / rounds,
            "accuracy": {"final": self.accuracies[-1], "best": max(self.accuracies)},
            "modelled_seconds": sum(self.modelled),
            "wall_seconds": sum(self.spent.values()),
            "kappa_share": float(share.mean()),
            "chance": decisions[:, :, 1:].mean((0, 1)).tolist(),
            "spent": self.spent,
        }


def run_episode(
    environment: FederationEnvironment,
    number: int,
    choose: Callable[[np.ndarray], np.ndarray],
    on_round: OnRound = lambda *_: None,
    after_round: Callable[[], None] = lambda: None,
) -> Episode:
    """Run episode `number` with the actions of choose(observation). on_round learns from each round;
    after_round is called after that, and may raise to end the episode."""
    episode = Episode()
    seen, _ = environment.reset(options={"episode": number})
    over, learning = False, 0.0
    while not over:
        action = choose(seen)
        after, reward, _, over, info = environment.step(action)
        began = time.perf_counter()
        on_round(seen, action, reward, after, over)
        learning += time.perf_counter() - began
        episode.rewards.append(reward)
        episode.accuracies.append(info["accuracy"])
        episode.modelled.append(info["modelled_seconds"])
        episode.decisions.append(info["decision"])
        seen = after
        after_round()
    episode.spent = {**environment.spent, "learning": learning}
    return episode


def run_policy(
    environment: FederationEnvironment, policy: Mapping[str, Tensor], after_round: Callable[[], None]
) -> Episode:
    """Run the episode of the seed itself with a policy and without noise: what a run with both does.

    environment: with the policy's projection; after_round: as `run_episode` takes it."""
    federation = environment.federation
    here = {name: tensor.to(federation.fed.device) for name, tensor in policy.items()}

    def choose(_: np.ndarray) -> np.ndarray:
        seen = environment.sight if federation.config.policy == "ddpg" else federation.counts
        action: np.ndarray = act(here, seen, federation.fed.num_clients).cpu().numpy()
        return action

    return run_episode(environment, 0, choose, after_round=after_round)

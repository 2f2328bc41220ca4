"""A federation that trains with FedGraph, as a Gymnasium environment in which a sampling policy is learned
(Chen, Li, Miyazaki and Wu, "FedGraph", section 4). A step is a round, and an episode is a training from new
weights.

    paper                          here
    s[t] = {W, W_1, ..., W_K}      `FederationEnvironment.server_view` without a projection
    s'[t], PCA to 20               the observation: `learned_policy.project`, by `principal_components`
    a[t], {P_i}                    the action, and `learned_policy.make_decision` of it
    lambda[t]                      accuracy on the validation nodes of all clients (on=test: the test nodes)
    delta[t]                       seconds of the round by the method's time model (clock=wall: measured)
    Lambda, Omega, alpha, beta     `Reward.target`, `omega`, `alpha`, `beta`

Differs from the paper (items of docs/papers/fedgraph.md, "Differences from the paper"): lambda is the
accuracy on validation nodes, where the paper's server scores its test set, as with on=test (9). delta is
modelled, so that it does not depend on the machine (10). An episode ends by its time limit (`truncated`), so
the state after the last round still has a value. The defaults of Lambda, alpha and beta are ours (14): the
accuracy of central training, 1 over the seconds of a round with full batches, and 0. So alpha (delta - beta)
is 1 for full batches; the paper says that it is near 1.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from torch import Tensor

from graphfed.errors import GraphfedError, InputError
from graphfed.federation import SERVER, Federation, Ledger, Located
from graphfed.federation.functions import empty_state
from graphfed.federation.secure.aggregation import check_sums
from graphfed.methods.base import State, Task
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.fedgraph import method as fedgraph
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.methods.fedgraph.learned_policy import act, make_decision
from graphfed.methods.fedgraph.method import Clients
from graphfed.methods.fedgraph.policy.settings import Clock, Part
from graphfed.methods.settings import changed
from graphfed.random import fold
from graphfed.runs.train import agree_before_setup
from graphfed.tasks.inputs import Inputs, local_federation
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig

# ---- the reward --------------------------------------------------------------------------------------------


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
        """Compute the reward of a round with the accuracy lambda, in [0, 1], and the seconds delta.

        Reference:
            FedGraph, Eq. (9).
        """
        # Eq. (9)
        return float(self.omega ** (accuracy - self.target) - self.alpha * (seconds - self.beta))


# ---- the federation ----------------------------------------------------------------------------------------


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
        first = (self.task, config.network, config.run.seed, str(fed.device))
        weights = fed.server.run(initial_weights, *first)
        policy_at_server = fed.locate(SERVER, "policy", [dict(policy)])
        return fedgraph.first_state(fed, self.clients, config, weights, policy_at_server)

    def accuracy(self, state: State, config: FedGraphConfig, part: Part) -> float:
        """Return the accuracy of a state on a part of all clients' nodes, a fraction.

        Raises:
            GraphfedError: A prediction is not finite.
            InputError: No client has a node of this part.
        """
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
    """Set up the federation of a run of fedgraph, with all clients stacked in this process.

    Raises:
        InputError: As a run with this config.
    """
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
        weights = fed.server.run(initial_weights, task, settings.network, config.seed, str(fed.device))
        policy = fed.server.run(empty_state)
        state = fedgraph.begin(fed, data, task, settings, weights, policy)
    (counts,) = fed.local_parts(state.prepared.counts)
    return PreparedFederation(fed, task, settings, state.prepared, counts, score)


# ---- the environment ---------------------------------------------------------------------------------------

#: The bound that the observation space declares.
LARGEST = float(np.finfo(np.float32).max)


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
        """Begin an episode.

        Args:
            seed: The new seed of the environment, with which the count of episodes begins again; None: the
                seed does not change.
            options: With the key "episode": the number of the episode. Otherwise the next one begins.

        Returns:
            The observation before the first round, and an empty info.
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
            InputError: No client has a node of the part that the reward uses.
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
    """Compute the actor's input, as `learned_policy.act` does.

    Args:
        projection: The tensors of the projection; empty for none.
        view: `FederationEnvironment.server_view`, [1 + K, c] or [1 + K, n_W].

    Returns:
        The view in one row, divided by the projection's scale, [(1 + K) c] or [(1 + K) n_W] float32.
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
        """Compute the discounted return sum_t gamma^(t - 1) r[t].

        Reference:
            FedGraph, Eq. (10).
        """
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

    Raises:
        GraphfedError: Training or the policy diverged.
        InputError: No client has a node of the part that the reward uses.
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
    """Run episode 0 with a learned policy and without noise, which is what a run with both does.

    Args:
        environment: An environment with the policy's projection.
        after_round: As in `run_episode`.
    """
    tensors = {name: tensor.to(environment.federation.fed.device) for name, tensor in policy.items()}

    def choose(_: np.ndarray) -> np.ndarray:
        action: np.ndarray = act(tensors, environment.server_view).cpu().numpy()
        return action

    return run_episode(environment, 0, choose, after_round)

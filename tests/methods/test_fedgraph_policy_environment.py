"""A federation as an environment: its reward, its episodes, and that a run does what it has seen."""

import dataclasses
import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("gymnasium", reason="learning policies needs the extra rl")
pytest.importorskip("stable_baselines3", reason="learning policies needs the extra rl")

from gymnasium.utils.env_checker import check_env

import graphfed
from graphfed.audit.run import audit
from graphfed.errors import GraphfedError, InputError
from graphfed.methods.fedgraph import method as fedgraph
from graphfed.methods.fedgraph.learned_policy import PolicyFile, act, learned_decision, write_policy
from graphfed.methods.fedgraph.policy.ddpg import (
    FederationEnvironment,
    PreparedFederation,
    Reward,
    fit_projection,
    prepare_federation,
    seconds_of_full_round,
)
from graphfed.runs.config import make_config
from graphfed.runs.train import agree_before_setup
from graphfed.runtime.local import stacked
from graphfed.tasks.loading import load_inputs

PAPER = Reward(target=0.8, omega=128.0, alpha=0.5, beta=2.0)
CLIENTS, LAYERS, ROUNDS = 3, 2, 4


def prepared(**settings: Any) -> PreparedFederation:
    config = make_config(
        "fedgraph",
        clients=CLIENTS,
        rounds=ROUNDS,
        seed=7,
        settings={"policy": "ddpg", "policy_file": "policy.safetensors", **settings},
    )
    return prepare_federation(config, load_inputs(config))


@pytest.fixture(scope="module")
def federation() -> PreparedFederation:
    return prepared()


def environment(federation: PreparedFederation, **more: Any) -> FederationEnvironment:
    return FederationEnvironment(federation, PAPER, rounds=ROUNDS, **more)


def random_actions(environment: FederationEnvironment, seed: int = 0) -> list[np.ndarray]:
    draws = np.random.default_rng(seed)
    return [draws.uniform(-1, 1, environment.action_space.shape).astype(np.float32) for _ in range(ROUNDS)]


def projected(federation: PreparedFederation) -> dict[str, torch.Tensor]:
    """Components of the weights of an episode."""
    here = environment(federation)
    here.reset()
    rows = [here.step(action)[0].reshape(1 + CLIENTS, -1) for action in random_actions(here)]
    return fit_projection(np.concatenate(rows), 20)


# ---- the reward ----


def test_the_reward_has_the_papers_values() -> None:
    assert PAPER.compute(0.8, 2.0) == 1.0
    assert PAPER.compute(0.7, 2.0) == pytest.approx(0.6156, abs=5e-5)
    assert PAPER.compute(0.8, 4.0) == 0.0


fractions = st.floats(0, 1)
times = st.floats(0, 1e6)


@given(fractions, fractions, times)
def test_more_accuracy_is_worth_more(one: float, other: float, seconds: float) -> None:
    low, high = sorted((one, other))
    assert PAPER.compute(low, seconds) <= PAPER.compute(high, seconds)
    free = dataclasses.replace(PAPER, alpha=0.0)
    assert free.compute(low, seconds) < free.compute(high, seconds) or math.isclose(low, high, abs_tol=1e-12)


@given(fractions, times, times)
def test_more_time_is_worth_less(accuracy: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert PAPER.compute(accuracy, low) > PAPER.compute(accuracy, high) or math.isclose(
        low, high, rel_tol=1e-9, abs_tol=1e-9
    )


def test_alphas_default_costs_1_for_a_round_with_full_batches(federation: PreparedFederation) -> None:
    seconds = seconds_of_full_round(federation, "modelled")
    result = graphfed.run("fedgraph", clients=CLIENTS, rounds=2, seed=7, policy="full", out=False)
    assert 2 * seconds == pytest.approx(result.details["modelled_seconds"], rel=1e-12)
    assert seconds_of_full_round(federation, "wall") > 0


# ---- the environment ----


def test_gymnasiums_checks_pass(federation: PreparedFederation) -> None:
    with warnings.catch_warnings():
        # Not in its register, so it cannot be made with other ways to draw it, of which it has none.
        warnings.filterwarnings("ignore", message=".*Not able to test alternative render modes")
        check_env(environment(federation))


def test_an_episode_is_the_same_again_and_another_has_other_weights(federation: PreparedFederation) -> None:
    here = environment(federation)
    actions = random_actions(here)

    def played(number: int) -> list[Any]:
        first, _ = here.reset(options={"episode": number})
        steps = [here.step(action) for action in actions]
        return [first, *(step[0] for step in steps), [step[1] for step in steps]]

    one, other, again = played(1), played(2), played(1)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])
    assert not np.array_equal(environment(federation).reset(seed=8)[0], one[0])
    assert np.array_equal(environment(federation).reset(seed=7)[0], one[0])


def test_only_time_ends_an_episode(federation: PreparedFederation) -> None:
    here = environment(federation)
    with pytest.raises(GraphfedError, match="reset the environment first"):
        here.step(np.zeros(here.action_space.shape))
    here.reset()
    ends = [here.step(action)[2:4] for action in random_actions(here)]
    assert ends == [(False, False)] * (ROUNDS - 1) + [(False, True)]
    with pytest.raises(GraphfedError, match="reset the environment first"):
        here.step(np.zeros(here.action_space.shape))


def test_the_server_sees_its_weights_and_every_clients(federation: PreparedFederation) -> None:
    """W_k = W at first; then W is the mean of the W_k by their batches (Eq. 8)."""
    here = environment(federation)
    seen, _ = here.reset()
    rows = seen.reshape(1 + CLIENTS, federation.clients.size)
    assert (rows == rows[0]).all()
    for action in random_actions(here):
        seen, _, _, _, info = here.step(action)
        rows = seen.reshape(1 + CLIENTS, federation.clients.size)
        kappa = info["decision"][:, 0]
        assert rows[0] == pytest.approx(kappa / kappa.sum() @ rows[1:].astype(np.float64), abs=1e-6)


@pytest.mark.parametrize("on", ["val", "test"])
def test_accuracy_is_that_of_a_run_on_the_part_that_was_asked_for(
    on: Any, federation: PreparedFederation
) -> None:
    here = FederationEnvironment(federation, dataclasses.replace(PAPER, on=on), rounds=1)
    here.reset(options={"episode": 0})
    info = here.step(np.ones(here.action_space.shape))[4]
    settings = {"policy": "full", "optimizer_at": "clients"}
    result = graphfed.run("fedgraph", clients=CLIENTS, rounds=1, seed=7, settings=settings, out=False)
    assert info["accuracy"] == (result.val if on == "val" else result.test)["accuracy"]


def test_a_run_with_a_policys_file_decides_as_the_environment_without_noise(
    federation: PreparedFederation, tmp_path: Path
) -> None:
    """Every decision of every round, to the bit; and the run's own metrics are those of the environment."""
    projection = projected(federation)
    draws = torch.Generator().manual_seed(0)
    each, size = len(projection["pca.components"]), CLIENTS * (1 + LAYERS)
    widths = [(1 + CLIENTS) * each, 8, size]
    actor = {
        f"actor.{n}.{part}": torch.randn(shape, generator=draws)
        for n, (a, b) in enumerate(itertools.pairwise(widths))
        for part, shape in (("weight", (b, a)), ("bias", (b,)))
    }
    policy = {**projection, **actor}
    path = tmp_path / "policy.safetensors"
    write_policy(path, policy, PolicyFile("ddpg", CLIENTS, LAYERS, federation.clients.size, {}))
    here = environment(federation, projection=projection)
    here.reset(options={"episode": 0})
    infos = [here.step(act(policy, here.server_view).numpy())[4] for _ in range(ROUNDS)]
    decisions = torch.stack([torch.from_numpy(info["decision"]) for info in infos])
    assert len(decisions.flatten().unique()) > ROUNDS, "a policy that says one thing shows nothing"

    config = make_config(
        "fedgraph",
        clients=CLIENTS,
        rounds=ROUNDS,
        seed=7,
        settings={"policy": "ddpg", "policy_file": str(path)},
    )
    asked: fedgraph.FedGraphConfig = config.settings
    fed = stacked(CLIENTS)
    inputs = load_inputs(config)
    data = fed.locate("clients", "data", inputs.parts(config, fed.workers))
    task = inputs.task("classification")
    data, _ = agree_before_setup(fed, data, config.method, task, asked)
    state = fedgraph.setup(fed, data, task, asked)
    for number in range(1, ROUNDS + 1):
        (counts,) = state.prepared.counts.parts
        seen = [state.values[name].parts[0] for name in ("policy", "observed")]
        assert torch.equal(learned_decision(*seen, counts), decisions[number - 1])
        with fed.phase("train", round_number=number):
            state = fedgraph.round(fed, state, asked, number)

    result = graphfed.run(
        "fedgraph",
        clients=CLIENTS,
        rounds=ROUNDS,
        seed=7,
        settings={"policy": "ddpg", "policy_file": str(path)},
        out=tmp_path / "run",
    )
    assert result.val["accuracy"] == max(info["accuracy"] for info in infos)
    # Clients send their weights as rows.
    assert audit(tmp_path / "run").findings["label_histogram"].details["clients"] == CLIENTS


def test_what_the_actor_is_given_is_what_a_run_gives_it(federation: PreparedFederation) -> None:
    """With the identity for a network, `act` says what it sees, through tanh."""
    projection = projected(federation)
    size = (1 + CLIENTS) * len(projection["pca.components"])
    policy = {**projection, "actor.0.weight": torch.eye(size), "actor.0.bias": torch.zeros(size)}
    here = environment(federation, projection=projection)
    here.reset()
    for action in random_actions(here):
        seen = here.step(action)[0]
        assert seen.shape == here.observation_space.shape == (size,)
        assert torch.equal(act(policy, here.server_view), torch.from_numpy(seen).tanh())


def test_an_action_that_is_no_number_and_training_that_diverges_are_errors() -> None:
    federation = prepared(lr=1e30)
    here = environment(federation)
    here.reset()
    with pytest.raises(GraphfedError, match=r"use a smaller ddpg\.lr"):
        here.step(np.full(here.action_space.shape, np.nan))
    with pytest.raises(GraphfedError, match="use a smaller learning rate"):
        here.step(random_actions(here)[0])


def test_a_part_without_nodes_at_any_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphfed.tasks.graphs import node_scores

    federation = prepared()
    monkeypatch.setattr(
        node_scores,
        "metrics_of",
        lambda sums, positive: dict.fromkeys(("accuracy", "macro_f1", "loss"), math.nan),
    )
    here = environment(federation)
    here.reset()
    with pytest.raises(InputError, match="no client has a node in the part 'val'"):
        here.step(np.zeros(here.action_space.shape))

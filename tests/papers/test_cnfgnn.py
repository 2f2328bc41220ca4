"""CNFGNN is the paper's: what is sent, what is trained on what, and how its strategies are related.

Numbers of the paper: Meng, Rambhatla and Liu, KDD 2021, Tables 2 to 6, 8 and 10."""

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from plain_cnfgnn import Plain
from sensor_worlds import LAGS, TASK, SensorWorld, config_of, run_local, sensor_world, silent_world
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, as_leaves
from graphfed.federation.series import starts_of
from graphfed.methods.base import State
from graphfed.methods.cnfgnn import method as cnfgnn
from graphfed.methods.cnfgnn import steps
from graphfed.methods.cnfgnn.config import ALTERNATING, releases
from graphfed.methods.cnfgnn.costs import forecast_operations, training_numbers
from graphfed.methods.cnfgnn.method import METHOD
from graphfed.methods.common import forecasting
from graphfed.methods.forecasters import recurrent
from graphfed.methods.registry import get_method
from graphfed.methods.tasks import FORECASTING
from graphfed.runtime.local import stacked
from graphfed.tasks.registry import get_task

STRATEGIES = ("at_fedavg", "at", "sl_fedavg", "sl", "centralised")
GB = 2**30


def begun(world: SensorWorld, **settings: Any) -> tuple[Federation, State, Any]:
    """A federation after set-up."""
    fed = stacked(world.clients)
    fed.set_roster(world.split.observed)
    config = config_of(METHOD, **settings)
    data = get_task(FORECASTING).data.located(fed, world.series(fed.workers), [world.network()])
    with fed.phase("setup", round_number=0):
        return fed, METHOD.setup(fed, data, TASK, config), config


def one_round(world: SensorWorld, **settings: Any) -> dict[str, Any]:
    """The values of a state after the first round."""
    fed, state, config = begun(world, **settings)
    after = METHOD.round(fed, state, config, 1)
    return {name: value.parts[0] for name, value in after.values.items()}


# ---- what is sent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "server_rounds"), [*((strategy, 1) for strategy in STRATEGIES), ("at_fedavg", 3), ("at", 3)]
)
def test_a_rounds_bytes_are_the_papers_formula(strategy: str, server_rounds: int) -> None:
    world = sensor_world(every=6)
    settings = {"strategy": strategy, "every": 6, "rounds": 2}
    if strategy in ALTERNATING:
        settings["server_rounds"] = server_rounds
    outcome, fed = run_local("cnfgnn", world, **settings)
    totals = fed.ledger.totals()
    config = config_of(METHOD)
    expected = training_numbers(
        strategy,
        clients=world.clients,
        weights=outcome.details["client_weights"],
        windows=len(starts_of(world.split, "train")),
        hidden=config.recurrent.hidden,
        server_rounds=server_rounds,
    )
    width = torch.get_default_dtype().itemsize
    assert totals["total"] - totals["setup"] == outcome.rounds_run * expected * width


@pytest.mark.parametrize("name", ["gru_fedavg", "gru_fmtl", "gru_local", "gru_central"])
def test_a_rounds_bytes_of_the_baselines_are_the_papers_formula(name: str) -> None:
    world = sensor_world()
    outcome, fed = run_local(name, world)
    weights = recurrent.first_forecaster(config_of(get_method(name)).recurrent, 0, "cpu")
    edges = world.sensors.adjacency.nnz - world.clients
    expected = training_numbers(
        name, clients=world.clients, weights=sum(w.numel() for w in weights.values()), edges=edges
    )
    totals = fed.ledger.totals()
    width = torch.get_default_dtype().itemsize
    assert totals["total"] - totals["setup"] == outcome.rounds_run * expected * width


@pytest.mark.parametrize("strategy", ["at_fedavg", "sl", "centralised"])
def test_the_mask_of_missing_readings_costs_a_byte_for_each_window_and_three_weights_for_each_unit(
    strategy: str,
) -> None:
    world, settings = silent_world(), {"strategy": strategy, "rounds": 2, "eval_every": 1}
    (plain, fed), (masked, other) = (
        run_local("cnfgnn", world, **settings, missing_mask=mask) for mask in (False, True)
    )
    added = masked.details["client_weights"] - plain.details["client_weights"]
    assert added == 3 * config_of(METHOD).recurrent.hidden
    before, after = bytes_by_name(fed), bytes_by_name(other)
    train, val, test = (len(starts_of(world.split, target)) for target in ("train", "val", "test"))
    expected = dict(before)
    if strategy != "centralised":  # where the server has the readings
        # Training windows once; those of validation after each of two rounds; at the end both others at once.
        expected["with_readings"] = world.clients * (train + 3 * val + test)
    if strategy == "at_fedavg":
        width = torch.get_default_dtype().itemsize
        expected["update"] += 2 * world.clients * added * width
        expected["model"] += (2 + 3) * world.clients * added * width
    assert after == expected


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def bytes_by_name(fed: Federation) -> dict[str, int]:
    """The bytes of every transfer, predictions included."""
    totals: dict[str, int] = {}
    for entry in fed.ledger.entries:
        totals[entry.name] = totals.get(entry.name, 0) + entry.bytes
    return totals


#: Rounds, and GB as printed, of PEMS-BAY and METR-LA (Tables 2 to 6).
PRINTED = [
    ("gru_fmtl", 63_000, {"bay": (104, 57.823), "la": (279, 99.201)}),
    ("gru_fmtl", 727_000, {"bay": (56, 359.292), "la": (176, 722.137)}),
    ("sl", 64_000, {"bay": (31, 350.366), "la": (65, 307.627)}),
    ("sl_fedavg", 64_000, {"bay": (7, 80.200), "la": (71, 343.031)}),
    ("at", 64_000, {"bay": (44, 5221.576), "la": (49, 2434.985)}),
    ("at_fedavg", 64_000, {"bay": (2, 237.654), "la": (46, 222.246)}),
]
NETWORKS = {
    "bay": {"clients": 325, "edges": 2369, "windows": 36_465, "server_rounds": 20},
    "la": {"clients": 207, "edges": 1515, "windows": 23_974, "server_rounds": 1},
}


@pytest.mark.parametrize(("method", "weights", "printed"), PRINTED)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_formulas_give_the_twelve_printed_totals(
    method: str, weights: int, printed: dict[str, tuple[int, float]], network: str
) -> None:
    rounds, total = printed[network]
    known = dict(NETWORKS[network])
    if (method, network) == ("at", "la"):
        # The table says 1 server round; the printed total is that of 20.
        known["server_rounds"] = 20
    numbers = training_numbers(method, weights=weights, **known)
    assert rounds * numbers * 4 / GB == pytest.approx(total, abs=5e-4)


def test_from_two_server_rounds_on_alternating_sends_less_a_server_round_than_split_learning() -> None:
    sizes = {"clients": 207, "windows": 1000, "hidden": 64}
    split = training_numbers("sl", **sizes)
    each = [training_numbers("at", server_rounds=r, **sizes) / r for r in (1, 2, 3, 20)]
    states = 207 * 1000 * 64
    assert split == 4 * states
    assert each == [pytest.approx((2 + 2 * r) / r * states) for r in (1, 2, 3, 20)]
    assert each[0] == split
    assert all(cost < split for cost in each[1:])


def test_a_devices_operations_are_those_of_table_8() -> None:
    small = forecast_operations(encoder=100, decoder=100)
    large = forecast_operations(encoder=200, decoder=200, layers=2)
    paper = forecast_operations(encoder=64, decoder=128)
    # The printed figures are of all 207 sensors of METR-LA.
    assert [round(207 * n / 1e9, 3) for n in (small, large, paper)] == [0.159, 1.821, 0.162]


def test_networks_have_as_many_weights_as_in_the_paper() -> None:
    config = METHOD.configure({})
    assert sum(w.numel() for w in steps.first_weights(config, "cpu").values()) == 63_873
    assert sum(w.numel() for w in steps.first_network(config, "cpu").values()) == 1_237_312
    gru = get_method("gru_local")
    for settings, count in (({}, 62_501), ({"hidden": 200, "layers": 2}, 727_401)):
        drawn = recurrent.first_forecaster(gru.configure(settings).recurrent, 0, "cpu")
        assert sum(w.numel() for w in drawn.values()) == count


def test_eight_bits_are_a_quarter_of_the_bytes_of_encodings_and_nearly_the_same_forecasts() -> None:
    world = sensor_world()
    plain, fed = run_local("cnfgnn", world)
    small, coarse = run_local("cnfgnn", world, hidden_bits=8)
    width = torch.get_default_dtype().itemsize
    sent = [f.ledger.totals()["by_transfer"]["hidden"] for f in (fed, coarse)]
    assert sent[0] == width * sent[1]
    apart = (plain.predictions.parts[0][1] - small.predictions.parts[0][1]).abs().max()
    assert 0 < apart < 0.5


def test_noise_on_encodings_is_another_one_every_time_and_the_ledger_states_its_epsilon() -> None:
    runs = [run_local("cnfgnn", sensor_world(), clip=1.0) for _ in range(2)]
    one, two = (outcome.predictions.parts[0][1] for outcome, _ in runs)
    assert not torch.equal(one, two)
    outcome, fed = runs[0]
    epsilon = outcome.details["epsilon_of_encodings"]
    classes = {e["protection"] for e in fed.ledger.to_json()["entries"] if e["name"] == "hidden"}
    assert classes == {f"dp(eps={epsilon:.4g}, delta=1e-05)"}


def test_no_window_is_sent_more_often_than_epsilon_counts() -> None:
    """Training windows in each of 3 rounds, those of validation after each and at the end, those of test at
    the end: a reading is in 4 windows, and each is sent at most 4 times."""
    rounds, (world, config) = 3, (sensor_world(), config_of(METHOD, clip=1.0))
    for strategy in ("at_fedavg", "sl"):
        _, fed = run_local("cnfgnn", world, clip=1.0, strategy=strategy, rounds=rounds)
        train, val, test = (len(starts_of(world.split, target)) for target in ("train", "val", "test"))
        windows = rounds * train + (rounds + 1) * val + test
        width = torch.get_default_dtype().itemsize
        expected = windows * world.clients * config.recurrent.hidden * width
        assert sum(e.bytes for e in fed.ledger.entries if e.name == "hidden") == expected
    assert releases(config) == LAGS * (rounds + 1) == 16


@pytest.mark.parametrize("noise_multiplier", [5.0, 20.0])
def test_epsilon_is_that_of_one_gaussian_release_with_the_noise_of_all(noise_multiplier: float) -> None:
    """delta = Phi(1 / 2s - epsilon s) - exp(epsilon) Phi(-1 / 2s - epsilon s), s = noise_multiplier / 4
    for 16 releases (Balle and Wang 2018, Theorem 8)."""
    config = config_of(METHOD, clip=1.0, noise_multiplier=noise_multiplier, delta=1e-6)
    epsilon, s = cnfgnn.epsilon_of(config), noise_multiplier / 4
    phi = NormalDist().cdf
    delta = phi(1 / (2 * s) - epsilon * s) - math.exp(epsilon) * phi(-1 / (2 * s) - epsilon * s)
    assert delta == pytest.approx(1e-6, rel=1e-6)


def test_only_clipped_encodings_are_announced_and_recorded_with_their_epsilon() -> None:
    """In the messages, among the facts of the result, and in the ledger where nothing is trained."""
    world = sensor_world()
    for clip in (None, 1.0):
        fed, messages = stacked(world.clients), list[str]()
        fed.on_message = messages.append
        data = get_task(FORECASTING).data.located(fed, world.series(fed.workers), [world.network()])
        config = config_of(METHOD, clip=clip)
        epsilon = None if clip is None else cnfgnn.epsilon_of(config)
        state = METHOD.setup(fed, data, TASK, config)
        assert ("epsilon_of_encodings" in state.values["facts"].parts[0]) == (clip is not None)
        METHOD.predict(fed, state, config, "val")
        classes = {entry.protection for entry in fed.ledger.entries if entry.name == "hidden"}
        assert classes == {"plaintext" if clip is None else f"dp(eps={epsilon:.4g}, delta=1e-05)"}
        said = [line for line in messages if "clients clip encodings and add noise" in line]
        assert len(said) == (clip is not None)
        assert all(f"epsilon {epsilon:.4g} (delta 1e-05)" in line for line in said)


# ---- what is trained on what -------------------------------------------------------------------------------

VARIANTS = {
    "gradient descent": {"optimizer": "sgd", "lr": 0.1, "server_lr": 0.3, "weight_decay": 1e-2},
    "a fresh Adam every round": {"client_state": "reset", "teacher": 2.0},
    "a kept Adam": {"client_state": "keep"},
    "linear decay of teaching": {"teacher_fraction": 0.6, "local_epochs": 2, "server_rounds": 2},
    "mask of missing readings": {"missing_mask": True, "optimizer": "sgd"},
    "several passes": {"local_epochs": 2, "server_rounds": 3, "server_batch": 7, "optimizer": "sgd"},
    "attention": {"network": "gat", "optimizer": "sgd"},
}
#: Every strategy with a fresh Adam and every variant of the paper's strategy; in the second tier what else
#: can be together. Inductive: of strategies that train on some of the sensors and forecast for others.
PLAIN = [
    *((strategy, "a fresh Adam every round", "default") for strategy in STRATEGIES[1:]),
    *(("at_fedavg", variant, "default") for variant in VARIANTS),
    ("at_fedavg", "gradient descent", "inductive:0.5"),
]
MORE_PLAIN = [
    *((strategy, "gradient descent", "default") for strategy in STRATEGIES[1:]),
    *((strategy, "linear decay of teaching", "default") for strategy in STRATEGIES[1:]),
    *((strategy, "mask of missing readings", "default") for strategy in STRATEGIES[1:]),
    ("at_fedavg", "mask of missing readings", "inductive:0.5"),
    *((strategy, "a kept Adam", "default") for strategy in ("at", "sl", "sl_fedavg")),
    *((strategy, "gradient descent", "inductive:0.5") for strategy in ("sl_fedavg", "centralised")),
]


@pytest.mark.parametrize(
    ("strategy", "variant", "split"),
    [*PLAIN, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_PLAIN)],
)
def test_weights_after_two_rounds_are_those_of_plain_loops_over_the_sensors_that_take_part(
    strategy: str, variant: str, split: str
) -> None:
    settings = {"teacher": 0.0, "every": 6, "batch": 8, **VARIANTS[variant], "strategy": strategy}
    if "teacher_fraction" in settings:
        del settings["teacher"]
    if strategy not in ALTERNATING:
        settings = without(settings, "local_epochs", "server_rounds")
    if strategy == "centralised":
        settings = without(settings, "client_state")
    fed, state, config = begun(silent_world(split, every=6), **settings)
    plain = Plain(state.prepared.training.parts[0], state.prepared.edges.parts[0], config)
    for number in (1, 2):
        state = METHOD.round(fed, state, config, number)
        plain.round(number)
    (network,), (weights,) = state.values["network"].parts, state.values["weights"].parts
    for name, w in plain.network.items():
        assert torch.allclose(network[name], w, rtol=0, atol=1e-9), name
    for name, w in weights.items():
        own = torch.stack([own[name] for own in plain.own])
        apart = w if strategy in ("at", "sl") else w.expand_as(own)
        assert torch.allclose(apart, own, rtol=0, atol=1e-9), name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_scheduled_sampling_counts_the_steps_of_all_rounds_and_passes(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """27 windows in batches of 16 are 2 steps, and of 10 at the server 3."""
    counted_steps: dict[str, list[int]] = {"clients": [], "server": []}
    in_round: dict[str, set[int]] = {"clients": set(), "server": set()}

    teaching = forecasting.teaching

    def counted(config: Any, purpose: str, step: int, steps: int) -> Tensor | None:
        counted_steps[purpose].append(step)
        in_round[purpose].add(steps)
        return teaching(config, purpose, step, steps)

    monkeypatch.setattr(forecasting, "teaching", counted)
    alternating = strategy in ALTERNATING
    passes = {"local_epochs": 2, "server_rounds": 3, "server_batch": 10} if alternating else {}
    fed, state, config = begun(sensor_world(), strategy=strategy, **passes)
    for number in (1, 2):
        state = METHOD.round(fed, state, config, number)
    expected = {"clients": 2 * 2 * 2, "server": 2 * 3 * 3} if alternating else {"clients": 0, "server": 2 * 2}
    if strategy == "centralised":
        expected = {"clients": 2 * 2, "server": 0}
    assert counted_steps == {purpose: [*range(count)] for purpose, count in expected.items()}
    assert in_round == {purpose: {count // 2} - {0} for purpose, count in expected.items()}


def test_windows_that_are_encoded_a_few_at_a_time_are_encoded_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state, _ = begun(sensor_world())
    series, own = state.prepared.training.parts[0], state.values["own"].parts[0]
    at_once = steps.encode_windows(series, own, "train", None)
    monkeypatch.setattr(forecasting, "PART", 5)
    assert torch.allclose(steps.encode_windows(series, own, "train", None), at_once, rtol=0, atol=1e-12)


def test_the_graph_networks_gradient_from_replies_is_that_of_autograd_through_everything() -> None:
    world = sensor_world()
    fed, state, config = begun(world, teacher=0.0)
    prepared, values = state.prepared, state.values
    hidden = fed.clients.run(steps.encode_windows, prepared.training, values["own"], "train", None)
    count = len(starts_of(world.split, "train"))
    order, part = cnfgnn.in_order(fed, 7, count), slice(3, 12)
    encoded = fed.collect(hidden, name="hidden", grad=False)
    batch = fed.clients.run(steps.batch_in_order, hidden, order[0], part)
    encoded_batch = fed.server.run(steps.batch_in_order, encoded, order[1], part)
    with fed.tape():
        leaves = fed.server.run(as_leaves, values["network"])
        embedded = fed.server.run(steps.embed, leaves, encoded_batch, prepared.edges, config)
        received = fed.scatter(embedded, name="embeddings")
        loss = fed.clients.run(
            steps.loss_of_batch, prepared.training, values["own"], batch, received, order[0], part,
            config, 0, 1,
        )  # fmt: skip
        fed.backward(loss)
    replies = fed.gradients(leaves).parts[0]

    network = {k: w.clone().requires_grad_() for k, w in values["network"].parts[0].items()}
    series, chosen = prepared.training.parts[0], order[0].parts[0][part]
    batch = forecasting.batch_of(series, series.starts("train")[chosen])
    of_all = steps.embed(network, hidden.parts[0][:, chosen], prepared.edges.parts[0], config)
    outputs = steps.forecast(values["own"].parts[0], batch, hidden.parts[0][:, chosen], of_all)
    forecasting.client_losses(outputs, batch).sum().backward()
    for name, w in network.items():
        assert torch.allclose(replies[name], torch.zeros_like(w) if w.grad is None else w.grad, atol=1e-12)
    assert max(float(g.abs().max()) for g in replies.values()) > 1e-4


def test_on_one_batch_a_server_step_of_alternating_training_is_that_of_split_learning() -> None:
    world = sensor_world()
    count = len(starts_of(world.split, "train"))
    # Clients that hardly move: both strategies then embed the same encodings.
    common = {"batch": count, "lr": 1e-12, "teacher": 0.0}
    own = {"at_fedavg": {"server_batch": count}, "sl_fedavg": {}}
    after = {s: one_round(world, strategy=s, **common, **own[s])["network"] for s in own}
    start = steps.first_network(config_of(METHOD), "cpu")
    for name, w in after["at_fedavg"].items():
        assert torch.allclose(w, after["sl_fedavg"][name], rtol=0, atol=1e-7)
    assert any(not torch.allclose(w, start[name]) for name, w in after["at_fedavg"].items())


def test_clients_first_train_as_plain_forecasters_whose_state_is_half_zero() -> None:
    world = sensor_world()
    _, state, config = begun(world)
    series, own = state.prepared.training.parts[0], state.values["own"].parts[0]
    assert not state.values["embeddings"].parts[0].any()
    batch = forecasting.batch_of(series, series.starts("train")[:5])
    hidden = forecasting.encode(own, batch)
    with_zeros = steps.forecast(own, batch, hidden, torch.zeros_like(hidden))
    padded = torch.nn.functional.pad(hidden, (0, config.recurrent.hidden))
    assert torch.equal(with_zeros, forecasting.decode(own, batch, padded))


def test_no_gradient_goes_through_encodings_in_alternating_training() -> None:
    _, fed = run_local("cnfgnn", sensor_world(), strategy="at_fedavg")
    names = {entry["name"] for entry in fed.ledger.to_json()["entries"]}
    assert "embeddings/grad" in names
    assert "hidden/grad" not in names


def test_without_averaging_every_client_ends_with_weights_of_its_own() -> None:
    world = sensor_world()
    own = one_round(world, strategy="at")["weights"]
    shared = one_round(world, strategy="at_fedavg")
    assert own["readout.bias"].unique().numel() == world.clients
    for name, w in shared["weights"].items():
        assert torch.equal(w, shared["own"][name])
        assert torch.allclose(w, own[name].mean(0), rtol=0, atol=1e-12)


def test_a_sensor_without_neighbours_forecasts_without_what_others_read() -> None:
    """The graph network's global vector joins all sensors, so with another network that has none."""
    world = sensor_world()
    outcome, _ = run_local("cnfgnn", world, network="gat", strategy="at")
    changed = sensor_world()
    readings = changed.sensors.readings.copy()
    test = slice(-20, None)
    readings[test, :5] = readings[test, :5][::-1]
    object.__setattr__(changed.sensors, "readings", readings)
    other, _ = run_local("cnfgnn", changed, network="gat", strategy="at")
    one, two = (o.predictions.parts[0][1] for o in (outcome, other))
    assert torch.equal(one[5], two[5])
    assert not torch.equal(one[:5], two[:5])


# ---- sensors that training does not see --------------------------------------------------------------------


def test_an_inductive_run_trains_on_the_induced_graph_and_its_sensors_scale() -> None:
    world = sensor_world("inductive:0.5")
    seen = torch.from_numpy(world.split.observed)
    fed = stacked(world.clients)
    fed.set_roster(world.split.observed)
    config = config_of(METHOD)
    data = get_task(FORECASTING).data.located(fed, world.series(fed.workers), [world.network()])
    state = METHOD.setup(fed, data, TASK, config)
    kept = world.sensors.adjacency[world.split.observed][:, world.split.observed]
    edges = state.prepared.edges.parts[0]
    assert edges.num_nodes == 3
    assert edges.count == kept.nnz
    steps = world.split.train + world.split.lags + world.split.horizon - 1
    known = np.ma.masked_array(world.sensors.readings[:steps], world.sensors.missing[:steps])[:, seen.numpy()]
    scaler = state.values["scaler"].parts[0]
    assert float(scaler["mean"]) == pytest.approx(float(known.mean()))
    assert float(scaler["std"]) == pytest.approx(float(known.std()))


def test_own_weights_and_unseen_sensors_do_not_go_together() -> None:
    for strategy in ("at", "sl"):
        with pytest.raises(InputError, match=f"strategy={strategy} gives every sensor its own weights"):
            run_local("cnfgnn", sensor_world("inductive:0.5"), strategy=strategy)
    for name in ("gru_local", "gru_fmtl"):
        with pytest.raises(InputError, match="a sensor that training does not see"):
            run_local(name, sensor_world("inductive:0.5"))


def test_a_width_that_heads_do_not_divide_is_refused_when_settings_are_read() -> None:
    with pytest.raises(InputError, match="4 heads, so hidden must be a multiple of 4; got hidden=10"):
        config_of(METHOD, network="gat", hidden=10)
    assert config_of(METHOD, network="gat", hidden=12).recurrent.hidden == 12
    assert config_of(METHOD, hidden=10).recurrent.hidden == 10


# ---- missing readings --------------------------------------------------------------------------------------


def test_what_stands_in_the_place_of_a_missing_reading_changes_nothing_unless_it_is_asked_for() -> None:
    world, other = sensor_world(), sensor_world()
    readings = np.where(other.sensors.missing, np.float32(77), other.sensors.readings)
    object.__setattr__(other.sensors, "readings", readings)
    for missing, alike in (("masked", True), ("as_read", False)):
        one, two = (run_local("cnfgnn", w, missing=missing)[0] for w in (world, other))
        assert torch.equal(one.predictions.parts[0][1], two.predictions.parts[0][1]) == alike
        assert (one.test["rmse"] == two.test["rmse"]) == alike  # type: ignore[index]
        assert one.test["rmse_as_read"] != two.test["rmse_as_read"]  # type: ignore[index]


# ---- federated multi-task learning -------------------------------------------------------------------------


def penalties(shares: Tensor, w: Tensor) -> dict[str, Tensor]:
    """Of weights w [n, d] and shares [n, n]: the trace of Eq. (4) without lambda and 1/n, the sum of Eq. (5),
    and half the sum of squared distances."""
    laplacian = shares.sum(1).diag() - shares
    apart = w[:, None] - w[None]
    return {
        "trace": torch.trace(w.T @ laplacian @ w),
        "products": (shares * (w[:, None] * apart).sum(-1)).sum(),
        "distances": (shares * apart.square().sum(-1)).sum() / 2,
    }


def test_the_three_forms_of_the_penalty_are_one_where_the_adjacency_is_symmetric() -> None:
    rng = torch.Generator().manual_seed(0)
    w, one_way = torch.randn(6, 4, generator=rng), torch.rand(6, 6, generator=rng).fill_diagonal_(0)
    both_ways = penalties((one_way + one_way.T) / 2, w)
    assert both_ways["products"] == pytest.approx(both_ways["trace"])
    assert both_ways["distances"] == pytest.approx(both_ways["trace"])
    directed = penalties(one_way, w)
    assert directed["products"] == pytest.approx(directed["trace"])
    assert directed["distances"] != pytest.approx(directed["trace"])


def test_the_penalty_that_is_trained_with_has_the_gradient_of_the_squared_distances() -> None:
    from graphfed.methods.forecasters.multi_task import (
        Neighbours,
        distances,
        squared_distances,
        sum_of_neighbours,
    )

    rng = torch.Generator().manual_seed(1)
    shares = torch.rand(5, 5, generator=rng).fill_diagonal_(0)
    shares[4] = 0
    client, other = shares.nonzero(as_tuple=True)
    neighbours = Neighbours(client, shares[client, other])
    sent = {"a": torch.randn(5, 3, generator=rng), "b": torch.randn(5, 1, generator=rng)}
    for form in ("squared", "norm"):
        own = {k: torch.randn(w.shape, generator=rng, requires_grad=True) for k, w in sent.items()}
        received = {k: w[other] for k, w in sent.items()}
        if form == "squared":
            sums = {k: sum_of_neighbours(w, neighbours, sent) for k, w in received.items()}
            found = squared_distances(own, sums, neighbours)
        else:
            found = distances(own, received, neighbours)
        gradients = torch.autograd.grad(found, list(own.values()))
        flat = [torch.cat([own["a"], own["b"]], 1), torch.cat([sent["a"], sent["b"]], 1)]
        distance = (flat[0][:, None] - flat[1][None]).square().sum(-1)
        plain = (shares * (distance if form == "squared" else distance.sqrt())).sum()
        for gradient, expected in zip(gradients, torch.autograd.grad(plain, list(own.values())), strict=True):
            assert torch.allclose(gradient, expected, atol=1e-5)


def test_without_coupling_multi_task_learning_is_every_sensor_alone() -> None:
    world = sensor_world()
    # gru_local keeps its optimiser; one that begins anew every round is the same in the first one.
    alone, _ = run_local("gru_local", world, rounds=1)
    together, _ = run_local("gru_fmtl", world, rounds=1, coupling=0.0)
    assert torch.allclose(alone.predictions.parts[0][1], together.predictions.parts[0][1], atol=1e-9)


def test_strong_coupling_holds_neighbours_together() -> None:
    world = sensor_world()

    def spread(coupling: float) -> float:
        outcome, _ = run_local("gru_fmtl", world, coupling=coupling, optimizer="sgd", local_epochs=10)
        bias = outcome.state.weights.parts[0]["decoder.0.hidden_weight"][:5]
        return float(bias.std(0).mean())

    assert spread(10.0) < 0.5 * spread(0.0)

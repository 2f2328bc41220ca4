"""What forecasters read, and how the recurrent baselines train, against NumPy and plain loops over sensors
with PyTorch's optimisers."""

import math
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
import torch
from plain_cnfgnn import leaves, optimizer_of
from protections import protection
from sensor_worlds import HORIZON, LAGS, TASK, SensorWorld, config_of, sensor_world, silent_world
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.operations import transfers
from graphfed.federation.received import ReceivedError
from graphfed.federation.series import make_series, starts_of
from graphfed.federation.transfer import Transfer
from graphfed.methods.base import State
from graphfed.methods.common import forecasting
from graphfed.methods.common.forecasting import Batch, Standardised, batch_of, client_losses
from graphfed.methods.forecasters import multi_task, recurrent
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.methods.settings import value
from graphfed.methods.tasks import FORECASTING
from graphfed.nn.gru import draw_teacher_forcing, inverse_sigmoid_decay
from graphfed.random import fold, permutation
from graphfed.runs.config import make_config
from graphfed.runtime.local import stacked
from graphfed.tasks.registry import get_task


def begun(name: str, world: SensorWorld, **settings: Any) -> tuple[Federation, Any, State, Any]:
    """A federation after set-up, with its data, state and config."""
    config = config_of(get_method(name), **settings)
    fed = stacked(world.clients, simulated=is_simulated(config))
    data = get_task(FORECASTING).data.located(fed, world.series(fed.workers), [world.network()])
    with fed.phase("setup", round_number=0):
        return fed, data, get_method(name).setup(fed, data, TASK, config), config


# ---- what is read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["masked", "as_read"])
def test_series_windows_and_losses_are_those_of_numpy(missing: str) -> None:
    """On the scale of the training readings that there are; a missing reading is the mean and does not count,
    unless it is asked for as it was read."""
    world = sensor_world()
    _, _, state, _ = begun("gru_local", world, missing=missing)
    data: Standardised = state.prepared.training.parts[0]
    readings, gone = world.sensors.readings.T.astype(float), world.sensors.missing.T
    if missing == "as_read":
        gone = np.zeros_like(gone)
    assert gone.any() == (missing == "masked")
    steps = world.split.train + LAGS + HORIZON - 1
    known = readings[:, :steps][~gone[:, :steps]]
    value = np.where(gone, 0.0, (readings - known.mean()) / known.std())
    assert np.allclose(data.value, value, atol=1e-6)
    assert np.array_equal(data.weight, np.where(gone, 0.0, 1.0))
    midnight = datetime.fromisoformat(world.sensors.start).replace(hour=0, minute=0)
    began = (datetime.fromisoformat(world.sensors.start) - midnight).total_seconds() / 60
    day = (began + world.sensors.step_minutes * np.arange(readings.shape[1])) % 1440 / 1440
    assert np.allclose(data.restored(data.value)[~gone], readings[~gone], atol=1e-4)

    starts = [5, 9, 30]
    batch = batch_of(data, torch.tensor(starts))
    outputs = torch.randn(batch.truth.shape, generator=torch.Generator().manual_seed(0))
    assert batch.later.shape == (1, 3, HORIZON - 1, 1)
    losses = np.zeros(world.clients)
    for k in range(world.clients):
        errors = []
        for w, s in enumerate(starts):
            assert np.allclose(batch.x[k, w, :, 0], value[k, s : s + LAGS], atol=1e-6)
            assert np.allclose(batch.x[k, w, :, 1], day[s : s + LAGS])
            assert torch.equal(batch.last[k, w], batch.x[k, w, -1])
            assert np.allclose(batch.later[0, w, :, 0], day[s + LAGS : s + LAGS + HORIZON - 1])
            for h in range(HORIZON):
                if not gone[k, s + LAGS + h]:
                    errors.append(float(outputs[k, w, h]) - value[k, s + LAGS + h])
        losses[k] = np.mean(np.square(errors))
    assert np.allclose(client_losses(outputs, batch), losses, atol=1e-5)


def test_the_mask_is_one_where_a_reading_of_the_input_is_missing() -> None:
    world = silent_world()
    _, _, state, _ = begun("gru_local", world, missing_mask=True)
    data: Standardised = state.prepared.training.parts[0]
    starts, gone = [5, 22, 30], world.sensors.missing.T
    batch = batch_of(data, torch.tensor(starts))
    expected = np.stack([gone[:, s : s + LAGS] for s in starts], 1)
    assert np.array_equal(batch.x[..., 2], expected)
    assert torch.equal(batch.last, batch.x[:, :, -1, :2])
    found = forecasting.with_readings(data, torch.tensor(starts))
    assert np.array_equal(found, ~expected.all(-1))
    assert not found[1, 1]


def test_a_mask_of_missing_readings_is_refused_where_none_is_missing() -> None:
    with pytest.raises(InputError, match="missing_mask=True cannot be used with missing=as_read"):
        make_config("cnfgnn", settings={"missing_mask": True, "missing": "as_read"})


def test_a_client_without_any_reading_to_forecast_has_no_loss() -> None:
    empty = torch.zeros(2, 3, HORIZON)
    batch = Batch(torch.zeros(2, 3, LAGS, 2), torch.zeros(2, 3, 2), empty[:1], empty, empty, None)
    assert client_losses(empty + 5, batch).tolist() == [0, 0]


@pytest.mark.parametrize("split", ["default", "inductive:0.5"])
@pytest.mark.parametrize("target", ["train", "val", "test"])
@pytest.mark.parametrize("missing", ["masked", "as_read"])
def test_readings_at_the_server_are_the_inputs_of_the_windows_and_nothing_after_them(
    missing: str, target: str, split: str
) -> None:
    world = sensor_world(split)
    fed = stacked(world.clients)
    fed.set_roster(world.split.observed)
    config = config_of(get_method("gru_central"), missing=missing)
    data = get_task(FORECASTING).data.located(fed, world.series(fed.workers), [world.network()])
    scaler = forecasting.fit_scaler(fed, data.series, config)
    with fed.phase("setup", round_number=0):
        sent = forecasting.pool(fed, data, scaler, world.split, target, config).parts[0]
    (series,), (scale,) = data.series.parts, scaler.parts
    here = forecasting.standardise(series, torch.from_numpy(world.split.observed), scale, config)
    starts = starts_of(world.split, target)
    first, end = int(starts[0]), int(starts[-1]) + LAGS + HORIZON
    known = end - first if target == "train" else end - first - HORIZON
    assert sent.value.shape == (int(world.split.observed.sum()), end - first)
    assert torch.equal(sent.value[:, :known], here.value[:, first : first + known])
    assert torch.equal(sent.weight[:, :known], here.weight[:, first : first + known])
    assert torch.allclose(sent.time_of_day, here.time_of_day[first:end])
    if missing == "masked":
        assert not sent.value[:, known:].any()
        assert not sent.weight[:, known:].any()
    if target == "train":
        assert torch.equal(starts_of(sent.split, "train"), starts - first)


def test_a_client_may_miss_readings_at_the_server_where_no_other_client_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing reading is sent as NaN, which the checks of what other clients send refuse elsewhere."""
    sent: list[Transfer] = []

    def recorded(*args: Any, **options: Any) -> Transfer:
        sent.append(Transfer(*args, **options))
        return sent[-1]

    monkeypatch.setattr(transfers, "Transfer", recorded)
    fed, *_ = begun("gru_central", sensor_world())
    (readings,) = (transfer for transfer in sent if transfer.name == "readings")
    arrived = {(0, SERVER_INDEX): torch.tensor([[1.0, torch.nan]]), (1, SERVER_INDEX): torch.ones(1, 2)}
    fed.received.check_numbers(readings, arrived, {}, 0)
    with pytest.raises(ReceivedError, match="numbers that are not finite"):
        fed.received.check_numbers(readings._replace(finite=True), arrived, {}, 0)


@pytest.mark.parametrize("form", ["plaintext", "simulated", "real"])
def test_only_without_secure_aggregation_does_a_client_send_its_own_statistics(form: str) -> None:
    fed, *_ = begun("gru_local", sensor_world(), **protection("aggregation", form))
    names = {entry.name for entry in fed.ledger.entries if entry.name.startswith("statistics")}
    assert ("statistics" in names) == (form == "plaintext")
    assert len(names) == 1 or form != "plaintext"


@pytest.mark.parametrize(
    ("value", "there", "reason"),
    [(7.5, True, "all training readings are 7.5"), (7.5, False, "no sensor has a training reading")],
)
def test_readings_that_cannot_be_scaled_are_refused(value: float, there: bool, reason: str) -> None:
    world = sensor_world()
    object.__setattr__(world.sensors, "readings", np.full_like(world.sensors.readings, value))
    object.__setattr__(world.sensors, "missing", np.full_like(world.sensors.missing, not there))
    with pytest.raises(InputError, match=reason):
        begun("gru_local", world)


# ---- how the baselines train -------------------------------------------------------------------------------


class PlainGru:
    """Sensors with a recurrent network and an optimiser each. penalty(own, k): what is added to a loss."""

    def __init__(self, series: Standardised, config: Any) -> None:
        self.series, self.config = series, config
        first = recurrent.first_forecaster(config.recurrent, config.run.seed, "cpu")
        self.own = [leaves(first) for _ in range(series.num_clients)]
        self.optimizers = [optimizer_of(own, config.training) for own in self.own]
        self.starts, self.steps = series.starts("train"), 0
        epochs = value(config, "local_epochs", 1)
        #: The steps of the whole run.
        self.planned = config.run.rounds * epochs * math.ceil(len(self.starts) / config.sequences.batch)

    def loss(self, k: int, chosen: Tensor, step: int) -> Tensor:
        batch = batch_of(self.series, self.starts[chosen]).of(slice(k, k + 1))
        sequences = self.config.sequences
        own = {name: w[None] for name, w in self.own[k].items()}
        key, teach = fold(self.config.run.seed, "teacher", "clients"), None
        if sequences.teacher_fraction:
            probability = max(0, 1 - step / (sequences.teacher_fraction * self.planned))
            teach = draw_teacher_forcing(key, step, HORIZON, probability)
        elif sequences.teacher:
            teach = draw_teacher_forcing(key, step, HORIZON, inverse_sigmoid_decay(step, sequences.teacher))
        outputs = forecasting.decode(own, batch, forecasting.encode(own, batch), teach)
        return (outputs - batch.truth)[batch.weight == 1].square().mean()

    def penalty(self, k: int, before: list[dict[str, Tensor]]) -> Tensor:
        return torch.zeros(())

    def batches(self, number: int, epoch: int) -> list[Tensor]:
        order = permutation(fold(self.config.run.seed, "windows", number, epoch), len(self.starts))
        return list(order.split(self.config.sequences.batch))

    def round(self, number: int) -> None:
        if value(self.config, "client_state") == "reset":
            self.optimizers = [optimizer_of(own, self.config.training) for own in self.own]
        before = [{name: w.detach().clone() for name, w in own.items()} for own in self.own]
        begin = self.steps
        for k, optimizer in enumerate(self.optimizers):
            self.steps = begin
            for epoch in range(self.config.passes.local_epochs):
                for chosen in self.batches(number, epoch):
                    optimizer.zero_grad()
                    (self.loss(k, chosen, self.steps) + self.penalty(k, before)).backward()
                    optimizer.step()
                    self.steps += 1

    def check(self, weights: dict[str, Tensor], apart: bool) -> None:
        for name, w in weights.items():
            own = torch.stack([own[name] for own in self.own])
            assert torch.allclose(w if apart else w.expand_as(own), own, rtol=0, atol=1e-9), name


PASSES = {"local_epochs": 2, "weight_decay": 1e-2}


def two_rounds(name: str, **settings: Any) -> tuple[dict[str, Tensor], Standardised, Any]:
    fed, _, state, config = begun(name, sensor_world(), **settings)
    for number in (1, 2):
        state = get_method(name).round(fed, state, config, number)
    return state.weights.parts[0], state.prepared.training.parts[0], config


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    ("name", "settings"), [("gru_local", {}), ("cnfgnn", {"strategy": "at"})], ids=["gru_local", "cnfgnn"]
)
def test_a_sensor_without_a_reading_to_train_on_takes_no_step(
    name: str, settings: dict[str, Any], optimizer: str
) -> None:
    """It has weight decay, and moments of a round in which it had readings."""
    settings = {**settings, **PASSES, "optimizer": optimizer, "client_state": "keep"}
    fed, _, state, config = begun(name, sensor_world(), **settings)
    state = get_method(name).round(fed, state, config, 1)
    (series,), (before,) = state.prepared.training.parts, state.weights.parts
    weight = series.weight.clone()
    weight[1] = 0
    silent = replace(state.prepared.training, parts=(replace(series, weight=weight),))
    state = replace(state, prepared=replace(state.prepared, training=silent))
    (optimizer_before,) = state.values["optimizer"].parts
    state = get_method(name).round(fed, state, config, 2)
    (after,), (optimizer_after,) = state.weights.parts, state.values["optimizer"].parts
    for key, w in after.items():
        assert torch.equal(w[1], before[key][1])
        assert not torch.equal(w[0], before[key][0])
    for part, moments in optimizer_after.items():
        for key, x in moments.items():
            assert torch.equal(x[1], optimizer_before[part][key][1])


#: Scheduled sampling by steps, and by a fraction of the planned steps.
SCHEDULES = [{"teacher": 3.0}, {"teacher_fraction": 0.6}]
STATES = ["keep", "reset"]


@pytest.mark.parametrize("client_state", STATES)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_sensors_alone_train_as_plain_loops(schedule: dict[str, float], client_state: str) -> None:
    weights, series, config = two_rounds("gru_local", **PASSES, **schedule, client_state=client_state)
    plain = PlainGru(series, config)
    for number in (1, 2):
        plain.round(number)
    plain.check(weights, apart=True)


@pytest.mark.parametrize("client_state", STATES)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_averaged_sensors_train_as_plain_loops(schedule: dict[str, float], client_state: str) -> None:
    weights, series, config = two_rounds("gru_fedavg", **PASSES, **schedule, client_state=client_state)
    plain = PlainGru(series, config)
    for number in (1, 2):
        plain.round(number)
        for name in weights:
            mean = torch.stack([own[name].detach() for own in plain.own]).mean(0)
            for own in plain.own:
                own[name].data.copy_(mean)
    plain.check(weights, apart=False)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_central_network_steps_down_the_mean_loss_over_sensors(schedule: dict[str, float]) -> None:
    weights, series, config = two_rounds("gru_central", **schedule)
    plain = PlainGru(series, config)
    optimizer, step = plain.optimizers[0], 0
    plain.own = [plain.own[0]] * series.num_clients
    for number in (1, 2):
        for chosen in plain.batches(number, 0):
            optimizer.zero_grad()
            losses = [plain.loss(k, chosen, step) for k in range(series.num_clients)]
            torch.stack(losses).mean().backward()
            optimizer.step()
            step += 1
    plain.check(weights, apart=False)


@pytest.mark.parametrize("penalty", ["squared", "norm"])
@pytest.mark.parametrize("client_state", STATES)
def test_neighbours_are_drawn_to_the_weights_that_were_sent_before_the_round(
    penalty: str, client_state: str
) -> None:
    """Eq. (5) with its neighbours standing still: a plain loop that adds up the distances."""
    settings = {"coupling": 0.3, "penalty": penalty, "client_state": client_state, "teacher": 0.0}
    weights, series, config = two_rounds("gru_fmtl", **settings)
    adjacency = torch.from_numpy(sensor_world().sensors.adjacency.toarray()).double().fill_diagonal_(0)

    class Plain(PlainGru):
        def penalty(self, k: int, before: list[dict[str, Tensor]]) -> Tensor:
            total = torch.zeros(())
            for j, share in enumerate(adjacency[k].tolist()):
                apart = [(self.own[k][name] - before[j][name]).square().sum() for name in before[j]]
                squared = torch.stack(apart).sum()
                if share and squared > 0:
                    total = total + share * (squared if penalty == "squared" else squared.sqrt())
            return config.penalty.coupling * total

    plain = Plain(series, config)
    for number in (1, 2):
        plain.round(number)
    plain.check(weights, apart=True)


def test_neighbours_with_equal_weights_are_not_drawn_anywhere() -> None:
    """The distance has no gradient there, and none is taken."""
    own = {"a": torch.ones(2, 3, requires_grad=True), "b": torch.zeros(2, 1, requires_grad=True)}
    neighbours = multi_task.Neighbours(torch.tensor([0, 1]), torch.tensor([0.5, 2.0]))
    others = {"a": torch.ones(2, 3), "b": torch.tensor([[0.0], [4.0]])}
    found = multi_task.distances(own, others, neighbours)
    assert found.item() == 2 * 4
    a, b = torch.autograd.grad(found, list(own.values()))
    assert not a.any()
    assert b.flatten().tolist() == [0, -2]


def test_rows_of_neighbours_that_take_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the rows themselves are kept."""
    rows = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    monkeypatch.setattr(multi_task, "MAX_BYTES", 1000)
    config = config_of(get_method("gru_fmtl"), penalty="norm")
    with pytest.raises(InputError, match=r"penalty=norm stores the \d+ weights of 2 neighbours"):
        multi_task.outgoing_edges(rows, config)
    kept = multi_task.outgoing_edges(rows, config_of(get_method("gru_fmtl"), penalty="squared"))
    assert kept.alpha.tolist() == [1, 1]
    monkeypatch.setattr(multi_task, "MAX_BYTES", 2**30)
    assert multi_task.outgoing_edges(rows, config).client.tolist() == [0, 1]


def test_series_of_sensors_that_do_not_take_part_are_left_out() -> None:
    world = sensor_world()
    config = config_of(get_method("gru_local"))
    series = make_series(world.sensors, world.split, range(world.clients))
    present = torch.tensor([True, False, True, True, False, True])
    scaler = {"mean": torch.tensor(0.0), "std": torch.tensor(1.0)}
    some = forecasting.standardise(series, present, scaler, config)
    whole = forecasting.standardise(series, torch.ones(6, dtype=torch.bool), scaler, config)
    assert torch.equal(some.value, whole.value[present])
    weights = {"a": torch.arange(6)}
    assert forecasting.of_present(weights, present)["a"].tolist() == [0, 2, 3, 5]
    assert forecasting.of_present(weights, torch.ones(6, dtype=torch.bool)) is weights

"""Averaging methods under secure aggregation: the numbers of the plain average within its fixed point, the
same bits and bytes as the ideal form, in every placement and runtime; and no client's weights at the
server."""

import contextlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import link_worlds
import numpy as np
import pytest
import sensor_worlds
import torch
from methods_under_law import FORECASTERS, SHIPPED
from scipy.stats import chi2
from worlds import (
    ThreeWorkers,
    World,
    as_asked,
    cohorts_of,
    config_of,
    having,
    last_round_stands,
    logits,
    make_world,
    run_local,
    run_processes,
)

import graphfed as gf
from graphfed.audit.transcript import _Recording
from graphfed.data.graphs.graph import Split
from graphfed.errors import InputError
from graphfed.federation import Federation, Ledger
from graphfed.federation.cohort import make_cohort
from graphfed.methods.base import Method
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import fields_of
from graphfed.runs.config import checked_training
from graphfed.runs.train import train


def sums(name: str) -> bool:
    """Whether a method has sums over clients at the server, which a setting hides."""
    return "sums" in fields_of(get_method(name).config)


#: Every shipped method that averages at the server, taken from its settings.
AVERAGING = [name for name in METHODS.own if {"aggregation", "local_steps"} <= {*get_method(name).tree.names}]
#: Those of them that go on without some of the clients.
WITH_FEWER = [name for name in AVERAGING if get_method(name).dropouts]
#: Every shipped method on graphs that has sums over clients at the server.
SUMMING = [name for name in SHIPPED if sums(name)]
#: lumos adds up gradients (test_lumos.py); forecasters statistics, weights and scores
#: (test_forecasting_methods.py).
OTHERS = [name for name in METHODS.own if not sums(name)]
SETTINGS = {"weight_decay": 1e-2, "dropout": 0.4}
HIDDEN = {**SETTINGS, "aggregation": "secure"}
#: Bytes of a run with these settings, by hand: rounds, clients, weights of a GCN of 12, 5 and 3.
ROUNDS, SITES, WEIGHTS = 4, 3, 12 * 5 + 5 + 5 * 3 + 3


def entries(ledger: Ledger) -> list[dict[str, Any]]:
    """The ledger except the protections, in one order."""
    records = [{**entry, "protection": ""} for entry in ledger.to_json()["entries"]]
    return sorted(records, key=lambda entry: (entry["phase"], entry["name"], entry["from"]))


def protections(ledger: Ledger) -> set[str]:
    """The protections of what is sent for the average."""
    return {entry.protection for entry in ledger.entries if entry.name.startswith(("update", "gradient"))}


SECURE = {"public", "encrypted", "aggregate", "shared"}


def test_the_methods_that_average_are_these() -> None:
    assert AVERAGING == [
        "fedavg",
        "fedprox",
        "fedadam",
        "scaffold",
        "fedgcn",
        "fedsage_plus",
        "distgat",
        "fedgat",
        "fedgat_ldp",
        "fedgraph",
    ]


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize(("placement", "sparse"), [("stacked", False), ("one at a time", True)])
def test_the_real_form_and_the_ideal_one_agree_in_bits_and_bytes(
    placement: str, name: str, sparse: bool
) -> None:
    world = make_world(sparse=sparse)
    real, fed = run_local(name, world, placement, **HIDDEN)
    ideal, simulated = run_local(name, world, placement, protocols="simulated", **HIDDEN)
    assert torch.equal(logits(real), logits(ideal))
    assert [h["val"] for h in real.history] == [h["val"] for h in ideal.history]
    assert entries(fed.ledger) == entries(simulated.ledger)
    assert protections(fed.ledger) == SECURE
    assert protections(simulated.ledger) == {"simulated"}


@pytest.mark.parametrize("name", AVERAGING)
def test_it_is_the_plain_average_to_within_its_fixed_point(name: str) -> None:
    """In float64; a sum of 3 numbers is off by 3 * 2^-25, its mean by less, and 4 rounds carry it on."""
    world = last_round_stands(make_world())
    plain, _ = run_local(name, world, **SETTINGS)
    secure, _ = run_local(name, world, protocols="simulated", **HIDDEN)
    gap = (logits(plain) - logits(secure)).abs().max()
    assert 0 < gap < 1e-4 if name == "fedadam" else 0 < gap < 1e-5
    assert plain.test == pytest.approx(secure.test, abs=1e-3)


@pytest.mark.parametrize("name", AVERAGING)
def test_placement_does_not_change_it(name: str) -> None:
    """In each placement the real form is the ideal one, says the first test."""
    world = make_world(2)
    fast, fed = run_local(name, world, protocols="simulated", **HIDDEN)
    slow, oracle = run_local(name, world, "one at a time", protocols="simulated", **HIDDEN)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.slow
def test_in_processes_it_has_the_bits_and_the_ledger_of_one_at_a_time(
    name: str, three_clients: ThreeWorkers
) -> None:
    world = last_round_stands(make_world(1))
    apart, ledger = run_processes(name, world, three_clients, **HIDDEN)
    together, fed = run_local(name, world, "one at a time", **HIDDEN)
    assert torch.equal(logits(apart), logits(together))
    assert ledger.to_json() == fed.ledger.to_json()


@pytest.mark.deeper
@pytest.mark.parametrize(
    "fraction", [0.5, pytest.param(0.7, marks=pytest.mark.slow)], ids=["3 of 6", "4 of 6"]
)
@pytest.mark.parametrize("name", WITH_FEWER)
def test_it_is_over_those_that_take_part_in_the_round(name: str, fraction: float, deep: bool) -> None:
    world = make_world(4, clients=6)
    options = {**SETTINGS, "fraction": fraction}
    plain, _ = run_local(name, world, **options)
    outcomes = [
        run_local(name, world, placement, aggregation="secure", protocols=protocols, **options)
        for placement in ("stacked", "one at a time")
        for protocols in ("real", "simulated")
        if deep or (placement == "stacked") == (protocols == "real")
    ]
    first, fed = outcomes[0]
    assert torch.allclose(logits(first), logits(plain), rtol=0, atol=1e-4)
    for outcome, other in outcomes[1:]:
        assert torch.allclose(logits(outcome), logits(first), rtol=0, atol=1e-9)
        assert entries(other.ledger) == entries(fed.ledger)
    (masked,) = [e for e in fed.ledger.entries if e.name in ("update/masked", "gradient/masked")]
    assert masked.messages == ROUNDS * round(fraction * 6)


def test_bytes_are_those_of_the_formula() -> None:
    """Of every client each round 112 n + 8 w + 16 up and 145 n - 56 down, where the weights were 8 w up."""
    _, fed = run_local("fedavg", make_world(), aggregation="secure")
    update = [e for e in fed.ledger.entries if e.name.startswith("update/")]
    up = sum(e.bytes for e in update if e.direction == "up")
    down = sum(e.bytes for e in update if e.direction == "down")
    assert up == ROUNDS * SITES * (112 * SITES + 8 * WEIGHTS + 16)
    assert down == ROUNDS * SITES * (145 * SITES - 56)
    assert not [e for e in fed.ledger.entries if e.name == "update"]


# ---- what the server has -----------------------------------------------------------------------------------


def masked_rows(protocols: str) -> np.ndarray:
    """What reaches the server of each client in the first round: [clients, words]."""
    world = make_world()
    method = get_method("fedavg")
    fed = _Recording(SITES, "cpu", simulated=protocols == "simulated")
    cohorts = [make_cohort(world.graph, world.split, world.partition, range(SITES))]
    config = config_of(method, aggregation="secure", protocols=protocols, hidden=400, rounds=1)
    train(fed, method, fed.locate("clients", "data", cohorts), world.task, config)
    (masked,) = [c for c in fed.observed_transfers if c.name == "update/masked"]
    return np.ascontiguousarray(masked.payload.numpy()[:, 8:]).view(np.int64)


def test_what_reaches_the_server_of_a_client_is_uniform_and_new_in_every_run() -> None:
    """Chi-square over the values of a byte, 1e-9 for each of 6 tests; the ideal form's words are not."""
    first, again, ideal = masked_rows("real"), masked_rows("real"), masked_rows("simulated")
    assert first.shape == (SITES, 12 * 400 + 400 + 400 * 3 + 3)
    for row, other in zip(first, again, strict=True):
        for words in (row, row - other):
            count = np.bincount(words.view(np.uint8), minlength=256)
            assert ((count - count.mean()) ** 2 / count.mean()).sum() < chi2.isf(1e-9, 255)
    assert (np.abs(ideal) < 2**40).all(), "weights times tens of nodes, times 2^24"


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocols", ["real", "simulated"])
@pytest.mark.parametrize(
    ("name", "clients", "fraction"),
    [*((name, 2, 1.0) for name in AVERAGING), *((name, 5, 0.4) for name in WITH_FEWER)],
)
def test_a_round_of_two_clients_is_refused_before_anything_is_sent(
    name: str, clients: int, fraction: float, protocols: str
) -> None:
    world, method = make_world(clients=clients), get_method(name)
    fed = Federation([tuple(range(clients))], simulated=protocols == "simulated")
    data = fed.locate(
        "clients", "data", [make_cohort(world.graph, world.split, world.partition, range(clients))]
    )
    config = config_of(method, aggregation="secure", protocols=protocols, **having(name, fraction=fraction))
    with pytest.raises(
        InputError, match="needs 3 to 65535 clients in a round, and this round has 2: each of two"
    ):
        train(fed, method, data, world.task, config)
    assert not fed.ledger.entries


def with_part_at(world: World, part: str, clients: int, method: Method) -> World:
    """The same world, in which only a few clients have nodes in a part of the split."""
    world = as_asked(method, world)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    masks = {name: getattr(world.split, name) for name in ("train", "val", "test")}
    masks[part] = masks[part] & np.isin(client, np.unique(client[masks[part]])[:clients])
    return World(world.graph, Split("few", **masks), world.partition)


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("part", ["train", "val", "test"])
@pytest.mark.parametrize("name", SUMMING)
def test_sums_of_one_or_two_clients_with_data_are_refused_before_anything_of_them_is_sent(
    name: str, part: str, clients: int
) -> None:
    method = get_method(name)
    world = with_part_at(make_world(7, clients=5), part, clients, method)
    noun = {"train": "training", "val": "validation", "test": "test"}[part]
    refused = f"needs 3 clients with {noun} nodes, but only {clients} of the {world.clients} clients ha"
    for protocols in ("real", "simulated") if world.clients < 10 else ("simulated",):
        config = config_of(method, aggregation="secure", protocols=protocols)
        fed = Federation([tuple(range(world.clients))], simulated=protocols == "simulated")
        data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
        with pytest.raises(InputError, match=refused):
            train(fed, method, data, world.task, config)
        assert {entry.name.split("/")[0] for entry in fed.ledger.entries} == {"contributors"}


@pytest.mark.parametrize("name", SUMMING)
def test_the_command_and_the_python_api_refuse_them(name: str, tmp_path: Path) -> None:
    world = with_part_at(make_world(7, clients=5), "train", 1, get_method(name))
    world.partition.save(tmp_path / "partition.safetensors")
    with pytest.raises(InputError, match=r"needs 3 clients with training nodes, but only 1 of the .* has"):
        gf.run(
            name, data=replace(world.graph, split=world.split), split="public", rounds=1, out=False,
            partition=tmp_path / "partition.safetensors",
            settings={"aggregation": "secure", "protocols": "simulated"},
        )  # fmt: skip


def test_links_that_one_client_scores_are_refused() -> None:
    world = link_worlds.link_world()
    one = np.arange(len(world.split.val)) == world.split.val.argmax()
    split = replace(world.split, val=one, val_negative=world.split.val_negative[:, :0])
    with pytest.raises(
        InputError, match="needs 3 clients with validation pairs, but only 1 of the 36 clients"
    ):
        link_worlds.run_local(
            "lumos", replace(world, split=split), aggregation="secure", protocols="simulated"
        )


@pytest.mark.parametrize(
    ("steps", "noun"), [(slice(0, 86), "training readings"), (slice(95, 120), "test readings")]
)
@pytest.mark.parametrize("name", [name for name in FORECASTERS if sums(name)])
def test_readings_of_one_sensor_are_refused(name: str, steps: slice, noun: str) -> None:
    world = sensor_worlds.sensor_world()
    missing = world.sensors.missing.copy()
    missing[steps, 1:] = True
    readings = np.where(missing, np.float32(0), world.sensors.readings)
    world = replace(world, sensors=replace(world.sensors, readings=readings, missing=missing))
    with pytest.raises(InputError, match=f"needs 3 clients with {noun}, but only 1 of the 6 clients has any"):
        sensor_worlds.run_local(name, world, aggregation="secure", protocols="simulated")


@pytest.mark.slow
def test_in_processes_such_a_round_ends_for_everybody_with_the_reason() -> None:
    world = make_world(1)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    train = world.split.train & (client < 2)
    split = type(world.split)("two", train, world.split.val, world.split.test)
    restricted = World(world.graph, split, world.partition)
    # An error stops the processes: these are its own.
    with (
        contextlib.closing(ThreeWorkers()) as clients,
        pytest.raises(InputError, match=r"only 2 of the 3 clients have any"),
    ):
        run_processes("fedavg", restricted, clients, aggregation="secure")


def test_clients_without_training_nodes_weigh_nothing_beside_three_that_have_some() -> None:
    world = with_part_at(make_world(7, clients=5), "train", 3, get_method("fedavg"))
    plain, _ = run_local("fedavg", world)
    secure, _ = run_local("fedavg", world, aggregation="secure")
    assert torch.allclose(logits(plain), logits(secure), rtol=0, atol=1e-5)


def test_rounds_in_which_nobody_has_a_training_node_keep_the_weights() -> None:
    """Three of nine take part, and six have none: in some first round all three are of these, in most others
    one or two have some."""
    world = with_part_at(make_world(7, clients=9), "train", 3, get_method("fedavg"))
    kept = refused = 0
    for seed in range(20):
        options = {"fraction": 1 / 3, "seed": seed, "rounds": 1}
        plain, _ = run_local("fedavg", world, **options)
        try:
            secure, _ = run_local("fedavg", world, aggregation="secure", **options)
        except InputError as error:
            refused += "of the 3 clients in this round ha" in str(error)
            continue
        kept += 1
        assert torch.equal(logits(plain), logits(secure))
    assert kept > 0
    assert kept + refused == 20


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_without_a_step_for_it_refuses_the_setting(name: str) -> None:
    choices = get_method(name).protections.get("aggregation", ())
    refused = f"{name} has no setting 'aggregation'; it is a setting of fedavg"
    if choices:
        refused = f"aggregation='secure' cannot be used: {name} does not have it .fedavg, .*choose one of"
    with pytest.raises(InputError, match=refused) as error:
        checked_training(name, {"aggregation": "secure"}, None, 0)
    assert all(choice in str(error.value) for choice in choices)


@pytest.mark.slow
def test_without_the_library_the_real_form_is_refused_at_once_and_the_ideal_one_runs() -> None:
    program = """
import sys
sys.modules["cryptography"] = None
import graphfed
from graphfed.errors import InputError
for protocols in ("simulated", "real"):
    try:
        graphfed.run("fedavg", clients=3, rounds=1, out=False, aggregation="secure", protocols=protocols)
        print(protocols, "ran")
    except InputError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    ran, refused = done.stdout.splitlines()
    assert ran == "simulated ran"
    assert "not installed; install it: pip install '.[secure]'" in refused

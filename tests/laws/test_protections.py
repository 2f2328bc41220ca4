"""Every protection that a method declares: run and simulated it gives the same numbers and bytes, and what a
method does not declare is refused in one way."""

from typing import Any

import pytest
import sensor_worlds
import torch
import worlds
from methods_under_law import FORECASTERS

from graphfed.data.partitions.partition import partition
from graphfed.errors import InputError
from graphfed.federation import Ledger
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import value as value_of
from graphfed.runs.config import checked_training
from graphfed.runs.settings import MOST_HOMES

#: (method, setting, value) of every protection that hides something.
HIDDEN = [
    (name, setting, value)
    for name in METHODS.own
    for setting, values in get_method(name).protections.items()
    for value in values
    if value != PLAINTEXT
]
#: The methods whose protocols can be simulated.
SIMULATED = [name for name in METHODS.own if "protocols" in get_method(name).tree.names]
#: (setting, value) of them all, each once.
PROTECTIONS = sorted({(setting, value) for _, setting, value in HIDDEN})
#: How far the real form may be from the simulated one, where it is not exact: encryption of products rounds.
ROUNDING = {("fedgat", "exchange"): 1e-4}
#: Sixty devices, all of whose neighbours really compare; encryption of products.
SLOW = ("lumos", "fedgat")
#: What a setting needs beside itself.
BESIDE = {"ddpg": {"policy_file": "policy.safetensors"}}


def trained(name: str, **settings: Any) -> tuple[torch.Tensor, list[float], Ledger]:
    """Predictions, validation metrics and the ledger of a small run."""
    if name in FORECASTERS:
        outcome, fed = sensor_worlds.run_local(name, sensor_worlds.sensor_world(), **settings)
        predicted = sensor_worlds.forecasts(outcome)
    else:
        world = worlds.make_world()
        if "node_ids" in get_method(name).sends.messages:  # about clients that share nodes
            shared = partition(world.graph, "edges_uniform", 3, 0)
            world = worlds.World(world.graph, world.split, shared)
        outcome, fed = worlds.run_local(name, world, **settings)
        predicted = worlds.logits(outcome)
    metrics = [value for line in outcome.history for value in (line["val"] or {}).values()]
    return predicted, metrics, fed.ledger


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if case[0] in SLOW else [])
        for case in HIDDEN
        if case[0] in SIMULATED
    ],
)
def test_simulated_it_gives_the_numbers_and_the_bytes_of_the_real_one(
    name: str, setting: str, value: str
) -> None:
    """Entry by entry of the ledger, all but the protection: simulated it says so, and real it never does."""
    settings = {setting: value, "rounds": 2}
    real, metrics, ledger = trained(name, **settings, protocols="real")
    ideal, metrics_ideal, ledger_ideal = trained(name, **settings, protocols="simulated")
    rounding = ROUNDING.get((name, setting), 0.0)
    assert torch.allclose(real, ideal, rtol=0, atol=rounding)
    assert metrics == pytest.approx(metrics_ideal, abs=100 * rounding, nan_ok=True)
    entries, entries_ideal = (
        {(e["phase"], e["name"], e["from"]): e for e in each.to_json()["entries"]}
        for each in (ledger, ledger_ideal)
    )
    assert entries.keys() == entries_ideal.keys()
    labels = set()
    for key, entry in entries.items():
        pair = entry.pop("protection"), entries_ideal[key].pop("protection")
        assert entry == entries_ideal[key]
        labels |= {pair} if pair[0] != pair[1] else set()
    # Additive shares cost next to nothing: they are always really sent.
    assert {ideal for _, ideal in labels} == (set() if value == "additive" else {"simulated"})
    assert "simulated" not in {real for real, _ in labels}


@pytest.mark.parametrize(("setting", "value"), PROTECTIONS)
@pytest.mark.parametrize("name", METHODS.own)
def test_a_protection_that_a_method_cannot_have_is_refused_with_those_that_can(
    name: str, setting: str, value: str
) -> None:
    possible = get_method(name).protections.get(setting, ())
    if value in possible:
        assert value_of(checked_training(name, {setting: value}, None, 0)[1], setting) == value
        return
    with pytest.raises(InputError) as refused:
        checked_training(name, {setting: value}, None, 0)
    message = str(refused.value)
    able = [other for other, having, what in HIDDEN if (having, what) == (setting, value)]
    if possible:
        assert message.startswith(f"{setting}='{value}' cannot be used: {name} does not have it ({able[0]}")
        assert all(other in message for other in (*able, *possible))
    else:
        having = [other for other, method in METHODS.usable().items() if setting in method.protections]
        named = " and ".join(having)
        if len(having) > MOST_HOMES:
            named = f"{', '.join(having[:MOST_HOMES])} and {len(having) - MOST_HOMES} more"
        assert message == f"{name} has no setting '{setting}'; it is a setting of {named}"


RULES = [(name, rule) for name in SIMULATED for rule in get_method(name).plaintext_only]


@pytest.mark.parametrize(("name", "rule"), RULES, ids=str)
def test_a_setting_that_leaves_plaintext_alone_refuses_every_other_protection(name: str, rule: Any) -> None:
    method = get_method(name)
    settings = {rule.setting: rule.value, **BESIDE.get(rule.value, {})}
    assert value_of(checked_training(name, settings, None, 0)[1], rule.setting) == rule.value
    for value in method.protections[rule.protection]:
        if value == PLAINTEXT:
            continue
        with pytest.raises(InputError) as refused:
            checked_training(name, {**settings, rule.protection: value}, None, 0)
        message = str(refused.value)
        both = f"{rule.protection}={value} cannot be used with {rule.setting}={rule.value}"
        assert f"{both}: {rule.reason}" in message
        assert message.endswith(f"or {rule.protection}=plaintext")


def test_some_settings_leave_plaintext_alone() -> None:
    assert {(name, rule.setting) for name, rule in RULES} >= {("fedgat", "form"), ("fedgraph", "policy")}


@pytest.mark.parametrize("name", SIMULATED)
def test_a_deployment_refuses_simulated_protocols_and_runs_them_where_nobody_says(name: str) -> None:
    pytest.importorskip("nvflare", reason="deployment needs the extra deploy")
    from graphfed.deployment.deploy import deploy

    asked = {"node_ids": "plain"} if "node_ids" in get_method(name).sends.messages else {}
    with pytest.raises(InputError, match="protocols=simulated hides nothing from real participants; choose"):
        deploy(name, startup_kit="nowhere", settings={**asked, "protocols": "simulated"})
    with pytest.raises(InputError, match="nowhere"):  # the only error is that there is no such startup kit
        deploy(name, startup_kit="nowhere", settings=asked)


def test_a_run_is_refused_by_a_federation_of_other_protocols() -> None:
    with pytest.raises(InputError, match=r"protocols=real cannot be used in a federation .* are simulated"):
        sensor_worlds.run_local(
            "gru_local",
            sensor_worlds.sensor_world(),
            lambda clients, simulated: sensor_worlds.in_thirds_of(clients, simulated=not simulated),
        )

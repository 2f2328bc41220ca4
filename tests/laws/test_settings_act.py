"""A method has only settings that act on it: changing one changes what the run gives or sends.

What a run gives are its metrics, rounds and facts, its predictions, and the tables of its clients; what it
sends is in the ledger, with protections."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import link_worlds
import pytest
import sensor_worlds
from methods_under_law import FORECASTERS, SHIPPED
from worlds import make_world, run_local

import graphfed.federation.payload as pay
from graphfed.federation import Federation
from graphfed.methods.parts import WINDOW_SETTINGS
from graphfed.methods.registry import get_method
from graphfed.runs.settings import Setting, settings_of
from graphfed.tasks.outcome import Outcome

#: Settings that act without changing anything here, and why.
EXCEPTIONS: Mapping[str, str] = {
    **dict.fromkeys(WINDOW_SETTINGS, "they decide which windows the data has, before a method sees it"),
    "precision": "of products in float32, and the laws are tested in float64",
    "clock": "its other value needs a process for each client (test_fedgraph_balance.py)",
    "policy_file": "a file of what was learned (test_fedgraph_policy_learning.py)",
    "lumos protocols": "of real comparisons between 60 devices (test_protections.py)",
    "scaffold optimizer": "SCAFFOLD has gradient descent only (test_rules.py)",
    "temperature": "where a step of the search would raise the largest workload (test_lumos_balancing.py)",
}
#: The settings beside which a setting acts, where it does not with the defaults.
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "patience": {"lr": 1e-300, "weight_decay": 0.0, "dropout": 0.0, "rounds": 10},
    **{key: {"backbone": "gat"} for key in ("heads", "output_heads")},
    "local_steps": {"rule": "fedavg"},
    "optimizer_at": {"rule": "fedavg"},
    "client_state": {"rule": "fedavg", "optimizer_at": "clients", "local_steps": 3},
    "protocols": {"aggregation": "secure"},
    "sapgnn protocols": {"pooling": "secure"},
    "mu": {"rule": "fedprox", "local_steps": 3},
    **{key: {"rule": "fedadam"} for key in ("server_lr", "beta1", "beta2", "tau")},
    "rho": {"rule": "admm", "local_steps": 2},
    "momentum": {"rule": "fedavgm"},  # of the plug-in
    **{key: {"policy": "constant"} for key in ("probability", "batch", "batch_fraction", "estimator")},
    **{key: {"policy": "graphsage"} for key in ("fan_out", "inner_fan_out")},
    "layer_size": {"policy": "fastgcn"},
    "round_time": {"policy": "balanced", "rounds": 10},
    "refresh": {"policy": "constant", "local_steps": 2},
    "rescale": {"decode": "unbiased"},
    **{key: {"balancer": "mcmc", "mcmc_steps": 6} for key in ("mcmc_steps", "acceptance")},
    "negatives": {"task": "link_prediction"},
    **{key: {"clip": 1.0} for key in ("noise_multiplier", "delta")},
}
#: What a setting is changed to, where the rule of `other_value` gives nothing that can be used.
VALUES: Mapping[str, Any] = {
    "rounds": 2,
    "patience": 1,
    "select": "auc",
    "optimizer_at": "clients",
    "rule": "fedprox",
    "node_ids": "plain",
    "policy": "full",
    "batch": 2,
    "batch_fraction": 0.3,
    "fan_out": 1,
    "inner_fan_out": 1,
    "feature_low": -8.0,
    "feature_high": 8.0,
    "unsent_value": 0.3,
    "dropout": 0.3,
    "weight_decay": 0.1,
    "balance_rounds": 0,
    "shuffle_rounds": 0,
    "mcmc_steps": 3,
    "teacher": 0.0,
}


def other_value(setting: Setting) -> Any:
    """A value that is not the default."""
    if setting.name in VALUES:
        return VALUES[setting.name]
    default = setting.default
    if setting.choices:
        return next(choice for choice in setting.choices if choice != default)
    if isinstance(default, bool):
        return not default
    if default is None:
        return 1
    return default + 1 if isinstance(default, int) else default / 2


def fingerprint(outcome: Outcome, fed: Federation) -> str:
    """What a run gave and sent, in few letters."""
    given = [outcome.rounds_run, outcome.best_round, outcome.val, outcome.test, outcome.details]
    text = json.dumps([given, [line["val"] for line in outcome.history], fed.ledger.to_json()], default=str)
    digest = hashlib.sha256(text.encode())
    statistics = outcome.client_statistics
    located = [outcome.predictions, *([] if statistics is None else [statistics])]
    for part in (part for value in located for part in value.parts):
        for tensor in pay.tensors_in(part):
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def run(name: str, **settings: Any) -> str:
    """A small run."""
    if name in FORECASTERS:
        return fingerprint(*sensor_worlds.run_local(name, sensor_worlds.sensor_world(), **settings))
    if settings.pop("task", "") == "link_prediction":
        return fingerprint(*link_worlds.run_local(name, link_worlds.link_world(), **settings))
    return fingerprint(*run_local(name, make_world(), preset="default", **settings))


def acts(name: str, setting: Setting, usual: dict[str, str]) -> bool:
    """Whether changing a setting changes the run; usual: runs without the change, by their settings."""
    known = {"task", *(each.name for each in settings_of(get_method(name)))}
    beside = BESIDE.get(f"{name} {setting.name}", BESIDE.get(setting.name, {}))
    # Privacy noise comes from the operating system, unless a run is to be repeated.
    settings = {key: value for key, value in {"noise_seed": 0, **beside}.items() if key in known}
    key = json.dumps(settings, sort_keys=True)
    if key not in usual:
        usual[key] = run(name, **settings)
    return run(name, **{**settings, setting.name: other_value(setting)}) != usual[key]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SHIPPED, *FORECASTERS])
def test_every_setting_of_a_method_acts(name: str) -> None:
    settings = settings_of(get_method(name))
    always = {"noise_seed": 0} if any(setting.name == "noise_seed" for setting in settings) else {}
    assert run(name, **always) == run(name, **always), "else any setting would seem to act"
    usual: dict[str, str] = {}
    idle = [
        setting.name
        for setting in settings
        if not {setting.name, f"{name} {setting.name}"} & {*EXCEPTIONS}
        if not acts(name, setting, usual)
    ]
    assert idle == []


def test_what_trains_nothing_has_no_setting_of_training() -> None:
    for name in ("last_value", "historical_average"):
        assert {s.name for s in settings_of(get_method(name))} == {"rounds", *WINDOW_SETTINGS, "missing"}

"""Every rule works with every exchange and every network: the product of what the methods declare, a covering
sample of it in the first tier and the rest in the second.

Declared exceptions: scaffold needs optimizer=sgd (`Rule.check`), and a method offers the networks that its
exchange is for (`Method.offers`)."""

from typing import get_args

import pytest
import torch
from worlds import last_round_stands, logits, make_world, run_local

from graphfed.methods.averaging.rules import RULES
from graphfed.methods.parts import Network
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import fields_of

NETWORKS = get_args(fields_of(Network)["backbone"].annotation)
METHODS_WITH_RULES = [name for name in METHODS.own if "rule" in get_method(name).tree.names]


def products() -> list[object]:
    """Every method with each of its networks and each rule; in the first tier each pair of a method and a
    network has two rules, which go on from pair to pair."""
    pairs = [(m, n) for m in METHODS_WITH_RULES for n in get_method(m).offers.get("backbone", NETWORKS)]
    rules = list(RULES.own)
    first = {(pair, rules[(2 * i + j) % len(rules)]) for i, pair in enumerate(pairs) for j in (0, 1)}
    return [
        pytest.param(
            method, network, rule, marks=() if ((method, network), rule) in first else pytest.mark.slow
        )
        for method, network in pairs
        for rule in rules
    ]


def test_the_first_tier_has_every_method_network_and_rule() -> None:
    first = [p.values for p in products() if not p.marks]  # type: ignore[attr-defined]
    assert (
        {m for m, _, _ in first} == set(METHODS_WITH_RULES) >= {"fedavg", "fedgcn", "fedgat", "fedsage_plus"}
    )
    assert {n for _, n, _ in first} == set(NETWORKS)
    assert {r for _, _, r in first} == set(RULES.own)


@pytest.mark.parametrize(("method", "network", "rule"), products())
def test_a_rule_trains_on_any_view_and_network_in_any_placement(method: str, network: str, rule: str) -> None:
    world = last_round_stands(make_world(3))
    settings: dict[str, object] = {"rule": rule, "dropout": 0.3}
    settings |= {"optimizer": "sgd"} if rule == "scaffold" else {"optimizer": "adam"}
    settings |= {} if rule == "fedsgd" else {"local_steps": 2}
    if "backbone" in get_method(method).tree.names:
        settings["backbone"] = network
    stacked, fed = run_local(method, world, rounds=2, **settings)
    alone, oracle = run_local(method, world, "one at a time", rounds=2, **settings)
    assert torch.allclose(logits(stacked), logits(alone), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
    assert not torch.equal(logits(stacked), torch.zeros_like(logits(stacked)))

"""FedGraph's sampling policies: a policy file that is not whole is refused, and a policy fits one model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.files import read_tensors, write_tensors
from graphfed.methods.fedgraph.config import Sampling
from graphfed.methods.fedgraph.learned_policy import (
    MIN_PROBABILITY,
    PolicyFile,
    act,
    check_fits,
    make_decision,
    project,
    read_policy,
    write_policy,
)
from graphfed.methods.fedgraph.method import fixed_decision

CLIENTS, LAYERS, WEIGHTS, COMPONENTS, HIDDEN = 2, 3, 7, 4, 5
SEEN, ACTION = (CLIENTS + 1) * COMPONENTS, CLIENTS * (1 + LAYERS)


def actor() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "pca.mean": (WEIGHTS,),
        "pca.components": (COMPONENTS, WEIGHTS),
        "pca.scale": (),
        "actor.0.weight": (HIDDEN, SEEN),
        "actor.0.bias": (HIDDEN,),
        "actor.1.weight": (ACTION, HIDDEN),
        "actor.1.bias": (ACTION,),
    }
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }


def described(**changed: Any) -> PolicyFile:
    sizes = {"clients": CLIENTS, "layers": LAYERS, "weights": WEIGHTS, "learned": {}}
    return PolicyFile(**{"kind": "ddpg", **sizes, **changed})


@pytest.mark.parametrize("saw_test", [True, False])
def test_a_policy_that_is_written_is_read_back_to_the_bit(saw_test: bool, tmp_path: Path) -> None:
    tensors, written = actor(), described(learned={"saw_test": saw_test})
    write_policy(tmp_path / "policy", tensors, written)
    found, policy = read_policy(tmp_path / "policy")
    assert policy == written
    assert policy.saw_test is saw_test
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert not described().saw_test


def without(name: str) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: tensors.pop(name)


def of_shape(name: str, *shape: int) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: tensors.update({name: torch.zeros(shape)})


@pytest.mark.parametrize(
    "damage",
    [
        *[without(name) for name in actor()],
        of_shape("stray", 2),
        of_shape("actor.stray.weight", 2, 2),
        of_shape("pca.mean", WEIGHTS + 1),
        of_shape("pca.components", COMPONENTS, WEIGHTS + 1),
        of_shape("pca.components", COMPONENTS + 1, WEIGHTS),
        of_shape("pca.scale", 1),
        of_shape("actor.0.weight", HIDDEN, SEEN + 1),
        of_shape("actor.0.weight", HIDDEN, SEEN, 1),
        of_shape("actor.0.bias", HIDDEN + 1),
        of_shape("actor.1.weight", ACTION, HIDDEN + 1),
        of_shape("actor.1.bias", ACTION + 1),
    ],
)
def test_an_actor_that_lacks_a_tensor_or_has_one_of_another_shape_is_refused(
    damage: Callable[[dict[str, Tensor]], Any], tmp_path: Path
) -> None:
    tensors = actor()
    damage(tensors)
    write_policy(tmp_path / "policy", tensors, described())
    with pytest.raises(InputError, match="do not make a policy of 2 clients and 3 layers"):
        read_policy(tmp_path / "policy")


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"kind": "other"}, "do not make a policy"),
        ({"kind": "bandit"}, "do not make a policy"),
        ({"clients": 0}, "its description is not valid"),
        ({"layers": -1}, "its description is not valid"),
        ({"weights": 7.0}, "its description is not valid"),
        ({"clients": True}, "its description is not valid"),
        ({"learned": []}, "its description is not valid"),
    ],
)
def test_a_policy_file_with_a_description_that_is_not_possible_is_refused(
    changed: dict[str, Any], match: str, tmp_path: Path
) -> None:
    write_policy(tmp_path / "policy", actor(), described(**changed))
    with pytest.raises(InputError, match=match):
        read_policy(tmp_path / "policy")


def test_a_policy_file_that_does_not_exist_or_holds_a_number_that_is_not_finite_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match="there is no policy file"):
        read_policy(tmp_path / "absent")
    tensors = actor()
    tensors["actor.1.bias"][0] = torch.inf
    write_policy(tmp_path / "policy", tensors, described())
    with pytest.raises(InputError, match="a number in it is not finite"):
        read_policy(tmp_path / "policy")


def test_an_actor_fits_only_its_own_clients_layers_and_weights() -> None:
    check_fits(described(), "p", CLIENTS, LAYERS, WEIGHTS)
    for sizes in (
        (CLIENTS + 1, LAYERS, WEIGHTS),
        (CLIENTS, LAYERS + 1, WEIGHTS),
        (CLIENTS, LAYERS, WEIGHTS + 1),
    ):
        with pytest.raises(InputError, match="it was learned for"):
            check_fits(described(), "p", *sizes)


def test_an_actor_is_a_network_of_rectified_layers_with_a_tanh_at_its_end() -> None:
    tensors = actor()
    weights = torch.randn(1 + CLIENTS, WEIGHTS, generator=torch.Generator().manual_seed(1))
    seen = [
        sum(float(component[j]) * (float(row[j]) - float(tensors["pca.mean"][j])) for j in range(WEIGHTS))
        for row in weights
        for component in tensors["pca.components"]
    ]
    observed = project(tensors, weights)
    assert observed.flatten().tolist() == pytest.approx(seen, rel=1e-12)
    x = torch.tensor(seen, dtype=torch.float64) / float(tensors["pca.scale"])
    hidden = (tensors["actor.0.weight"] @ x + tensors["actor.0.bias"]).clamp(min=0)
    expected = torch.tanh(tensors["actor.1.weight"] @ hidden + tensors["actor.1.bias"])
    assert torch.allclose(act(tensors, observed), expected, rtol=0, atol=1e-12)


def test_a_policy_file_of_another_format_is_refused(tmp_path: Path) -> None:
    write_policy(tmp_path / "policy", actor(), described())
    arrays, metadata = read_tensors(tmp_path / "policy")
    write_tensors(tmp_path / "other", arrays, {**metadata, "format": "another format"})
    with pytest.raises(InputError, match="is not a policy file: its format is not"):
        read_policy(tmp_path / "other")


def test_a_constant_fraction_is_the_decision_of_an_action_that_is_the_same_for_every_client() -> None:
    counts = torch.tensor([0, 1, 7, 100])
    decision = fixed_decision(counts, Sampling(policy="constant", batch_fraction=0.25), LAYERS)
    assert decision[:, 0].tolist() == [0, 1, 2, 25]
    chance = (0.5 - MIN_PROBABILITY) / (1 - MIN_PROBABILITY)
    action = 2 * torch.tensor([0.25, *[chance] * LAYERS], dtype=torch.float64) - 1
    assert torch.allclose(decision, make_decision(action.repeat(4), counts), rtol=0, atol=1e-15)

"""Settings that decide which other settings exist."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import ValidationError

from graphfed.errors import InputError
from graphfed.methods.base import Method
from graphfed.methods.settings import Leaf, value, values

#: Values of settings that are no choices, and the settings that a value needs.
OTHERS = (0.5, 1, 2, 1.0, False, True)
NEEDED = {"ddpg": {"policy_file": "policy.safetensors"}}


def possible(method: Method, setting: str) -> list[Any]:
    """Some values of a setting, its default first."""
    found: list[Any] = [value(method.configure({}), setting)]
    for leaf in method.tree.leaves:
        if leaf.name == setting:
            literals = [each for each in get_args(leaf.field.annotation) if not isinstance(each, type)]
            found += [leaf.field.default, *method.tree.choices(leaf), *literals]
    return [each for each in (*found, *OTHERS) if each in method.offers.get(setting, (each,))]


def runs(method: Method, leaf: Leaf) -> Iterator[tuple[dict[str, Any], Any]]:
    """Settings that decide whether another one exists, with what is made of them."""
    deciding = {condition.setting for condition in leaf.conditions}
    leaves = [each for each in method.tree.leaves if each.name in deciding]
    deciding_runs = [next(runs(method, each))[0] for each in leaves]
    for chosen in itertools.product(*(possible(method, each.name) for each in leaves)):
        settings = {name: each for needed in deciding_runs for name, each in needed.items()}
        settings |= {each.name: one for each, one in zip(leaves, chosen, strict=True)}
        settings |= {name: each for one in chosen for name, each in NEEDED.get(str(one), {}).items()}
        with contextlib.suppress(InputError, ValidationError):
            yield settings, method.configure(settings)


def settings_needed(method: Method, setting: str) -> dict[str, Any]:
    """Settings with which a setting exists."""
    leaf = next(leaf for leaf in method.tree.leaves if leaf.name == setting)
    return next(settings for settings, config in runs(method, leaf) if setting in values(config))

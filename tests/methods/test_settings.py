"""The machinery of settings (`methods.settings`), over every setting of every method."""

import ast
import contextlib
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

import graphfed
from graphfed.errors import InputError
from graphfed.methods.base import Method
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import Leaf, changed, value, values

#: Every setting that a user can give, of every method.
SETTINGS = [
    pytest.param(name, leaf, id=f"{name}-{'.'.join(leaf.path)}")
    for name in METHODS.own
    for leaf in get_method(name).tree.leaves
    if leaf.name in get_method(name).tree.names
]


def possible(method: Method, setting: str) -> list[Any]:
    """Some values of a setting, its default first."""
    found: list[Any] = [value(method.configure({}), setting)]
    for leaf in method.tree.leaves:
        if leaf.name == setting:
            literals = [each for each in get_args(leaf.field.annotation) if not isinstance(each, type)]
            found += [leaf.field.default, *method.tree.choices(leaf), *literals]
        found += [
            each for condition in leaf.conditions if condition.setting == setting for each in condition.values
        ]
    offered = method.offers.get(setting)
    return [each for each in found if offered is None or each in offered]


def having(method: Method, leaf: Leaf) -> dict[str, Any]:
    """Settings with which a setting exists."""
    found: dict[str, Any] = {}
    for condition in leaf.conditions:
        for other in (each for each in method.tree.leaves if each.name == condition.setting):
            fitting = [each for each in possible(method, other.name) if condition.holds(each)]
            found |= {**having(method, other), other.name: fitting[0]}
    return found


def lacking(method: Method, leaf: Leaf) -> dict[str, Any] | None:
    """Settings with which a setting does not exist; None if it exists in every run."""
    for condition in leaf.conditions:
        for other in (each for each in method.tree.leaves if each.name == condition.setting):
            for each in (*possible(method, other.name), *([] if other.name in method.offers else [0.5])):
                settings = {**having(method, other), other.name: each}
                with contextlib.suppress(InputError, ValidationError):
                    if leaf.name not in values(method.configure(settings)):
                        return settings
    return None


@pytest.mark.parametrize("name", METHODS.own)
def test_flat_names_are_unique(name: str) -> None:
    """Two settings of one name are in parts of which a run has one."""
    settings: dict[str, list[Leaf]] = {}
    for leaf in get_method(name).tree.leaves:
        settings.setdefault(leaf.name, []).append(leaf)
    for setting, same in settings.items():
        assert len({leaf.path for leaf in same}) == 1, setting
        assert len({leaf.conditions for leaf in same}) == len(same), setting


@pytest.mark.parametrize(("name", "leaf"), SETTINGS)
def test_every_setting_can_be_given_and_read_back(name: str, leaf: Leaf) -> None:
    method = get_method(name)
    config = method.configure(having(method, leaf))
    assert leaf.name in values(config)
    again = method.configure({**having(method, leaf), leaf.name: value(config, leaf.name)})
    assert again == config


@pytest.mark.parametrize(("name", "leaf"), SETTINGS)
def test_a_setting_that_does_not_exist_is_refused_with_the_one_that_decides(name: str, leaf: Leaf) -> None:
    method = get_method(name)
    settings = lacking(method, leaf)
    if settings is None:
        assert {condition.setting for condition in leaf.conditions}.isdisjoint(method.tree.names)
        return
    same = [each for each in method.tree.leaves if each.name == leaf.name]
    decides = "|".join(condition.setting for each in same for condition in each.conditions)
    with pytest.raises(InputError, match=f"^{leaf.name}=.* cannot be used with ({decides})="):
        method.configure({**settings, leaf.name: leaf.field.default})


@pytest.mark.parametrize("name", METHODS.own)
def test_changed_and_values_invert_each_other(name: str) -> None:
    config = get_method(name).configure({})
    other = changed(config, rounds=7, seed=5)
    assert {**values(config), "rounds": 7, "seed": 5} == values(other)
    assert changed(other, **values(config)) == config
    with pytest.raises(KeyError, match="no setting x"):
        changed(config, x=1)


@pytest.mark.parametrize(
    ("name", "setting"),
    [(n, s) for n in METHODS.own for s, offered in get_method(n).offers.items() if len(offered) == 1],
)
def test_a_setting_that_a_method_fixes_is_refused_with_another_value(name: str, setting: str) -> None:
    method = get_method(name)
    (fixed,) = method.offers[setting]
    assert value(method.configure({setting: fixed}), setting) == fixed
    assert setting not in method.tree.names
    with pytest.raises(InputError, match=f"^{setting}=.* cannot be used here: expected {fixed}$"):
        method.configure({setting: "another"})


def test_no_class_of_settings_has_a_base() -> None:
    """Settings are put together of parts."""
    found = []
    for path in Path(graphfed.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and "settings" in map(ast.unparse, node.decorator_list):
                found.append((node.name, [ast.unparse(base) for base in node.bases]))
    assert len(found) > 20
    assert [each for each in found if each[1]] == []

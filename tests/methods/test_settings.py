"""The machinery of settings (`methods.settings`), over every setting of every method."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import graphfed
from graphfed.errors import InputError
from graphfed.methods.base import Method
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import Condition, Leaf, changed, value, values


def cases() -> Iterator[Any]:
    """Every setting that a user can give, of every method."""
    for name in METHODS.own:
        method = get_method(name)
        for leaf in method.tree.leaves:
            if leaf.name in method.tree.names:
                yield pytest.param(name, leaf, id=f"{name}-{'.'.join(leaf.path)}")


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


def having(method: Method, conditions: tuple[Condition, ...], holds: bool = True) -> dict[str, Any]:
    """Settings with which conditions hold, or the last one does not."""
    found: dict[str, Any] = {}
    for number, condition in enumerate(conditions, 1):
        wanted = holds or number < len(conditions)
        leaf = next((leaf for leaf in method.tree.leaves if leaf.name == condition.setting), None)
        if leaf is not None:
            fitting = [each for each in possible(method, leaf.name) if condition.holds(each) == wanted]
            found |= {**having(method, leaf.conditions), leaf.name: fitting[0]}
    return found


@pytest.mark.parametrize("name", METHODS.own)
def test_flat_names_are_unique(name: str) -> None:
    """Two settings of one name are in parts of which a run has one."""
    settings: dict[str, list[Leaf]] = {}
    for leaf in get_method(name).tree.leaves:
        settings.setdefault(leaf.name, []).append(leaf)
    for setting, same in settings.items():
        assert len({leaf.path for leaf in same}) == 1, setting
        assert len({leaf.conditions for leaf in same}) == len(same), setting


@pytest.mark.parametrize(("name", "leaf"), cases())
def test_every_setting_can_be_given_and_read_back(name: str, leaf: Leaf) -> None:
    method = get_method(name)
    config = method.configure(having(method, leaf.conditions))
    given = value(config, leaf.name)
    again = method.configure({**having(method, leaf.conditions), leaf.name: given})
    assert leaf.name in values(config)
    assert values(again) == values(config)


@pytest.mark.parametrize(("name", "leaf"), [case for case in cases() if case.values[1].conditions])
def test_a_setting_that_does_not_exist_is_refused_with_the_one_that_decides(name: str, leaf: Leaf) -> None:
    method = get_method(name)
    config = method.configure(having(method, leaf.conditions, holds=False))
    assert leaf.name not in values(config)
    with pytest.raises(InputError) as refused:
        method.configure({**having(method, leaf.conditions, holds=False), leaf.name: leaf.field.default})
    decides = {
        condition.setting
        for each in method.tree.leaves
        if each.name == leaf.name
        for condition in each.conditions
    }
    assert re.match(rf"{leaf.name}=.* cannot be used with ({'|'.join(decides)})=", str(refused.value))


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

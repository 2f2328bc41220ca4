"""The machinery of settings (`methods.settings`), over every setting of every method."""

import ast
from pathlib import Path

import pytest
from deciding import runs, settings_needed

import graphfed
from graphfed.errors import InputError
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import Leaf, changed, value, values

#: Every setting that a user can give, of every method.
SETTINGS = [
    pytest.param(name, leaf, id=f"{name}-{'.'.join(leaf.path)}")
    for name in METHODS.own
    for leaf in get_method(name).tree.leaves
    if leaf.name in get_method(name).tree.names
]


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
    settings = settings_needed(method, leaf.name)
    config = method.configure(settings)
    given = value(config, leaf.name)
    assert method.configure({**settings, leaf.name: given}) == config
    assert method.tree.listed(config)[leaf.name] == given


@pytest.mark.parametrize(("name", "leaf"), SETTINGS)
def test_a_setting_that_does_not_exist_is_refused_with_the_one_that_decides(name: str, leaf: Leaf) -> None:
    method = get_method(name)
    settings = next((run[0] for run in runs(method, leaf) if leaf.name not in values(run[1])), None)
    same = [each for each in method.tree.leaves if each.name == leaf.name]
    decide = {condition.setting for each in same for condition in each.conditions}
    if settings is None:
        assert decide.isdisjoint(method.tree.names)
        return
    with pytest.raises(InputError, match=f"^{leaf.name}=.* cannot be used with ({'|'.join(decide)})="):
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

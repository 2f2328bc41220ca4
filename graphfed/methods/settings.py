"""The settings of a run: a tree of small frozen objects, with flat names for people.

The settings of a method are a class whose fields are parts (`methods.parts`), and settings of its own:

    @settings
    class LumosConfig:
        run: Run = Run()
        training: Training = Training()
        encoding: Encoding = Encoding()

A function reads a setting where it lives, as in `config.training.lr`; people write ``lr=0.1``. A setting may
exist only with some values of another one: ``heads: Annotated[int, Only("backbone", "gat")]``. A part may
also be chosen by a setting (`ChosenBy`), as the rule of averaging is. `Tree` makes settings from flat names,
and generic code asks `value` for a setting that not every method has.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, dataclass_transform

from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from graphfed.errors import InputError, shown
from graphfed.files import JsonObject

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

C = TypeVar("C")


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def settings(cls: type[C]) -> type[C]:
    """Mark a class as settings: values are checked, and unknown names are refused.

    Args:
        cls: A class whose fields are parts, or ``name: type = Field(default=..., description="...")`` with
            bounds such as ``gt=0``.

    Returns:
        The class, as a frozen dataclass of pydantic.
    """
    return cast("type[C]", pydantic_dataclass(frozen=True, config={"extra": "forbid"})(cls))


# ---- when a setting exists ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """That another setting has one of some values; None if it does not exist in the run. A method without the
    other setting fulfils the condition.
    """

    setting: str
    values: tuple[object, ...]
    negated: bool = False

    def holds(self, value: object) -> bool:
        """Return whether the other setting's value fulfils the condition."""
        return (value in self.values) != self.negated

    def __str__(self) -> str:
        values = " or ".join("none" if value is None else str(value) for value in self.values)
        return f"{self.setting} {'other than ' if self.negated else ''}{values}"


def Only(setting: str, *values: object) -> Condition:
    """Return the condition under which a setting exists: that another one has one of some values."""
    return Condition(setting, values)


def Unless(setting: str, *values: object) -> Condition:
    """Return the condition under which a setting exists: that another one has none of some values."""
    return Condition(setting, values, negated=True)


@dataclass(frozen=True)
class ChosenBy:
    """Marks a field whose part a setting chooses by name. `Tree.parts` has the parts by name."""

    setting: str


@dataclass(frozen=True)
class Leaf:
    """A setting in a tree.

    Attributes:
        path: The fields that lead to it, from the root; the last is its flat name.
        owner: The part that has it.
        conditions: When it exists.
    """

    path: tuple[str, ...]
    owner: type
    field: "FieldInfo"
    conditions: tuple[Condition, ...]

    @property
    def name(self) -> str:
        """The flat name."""
        return self.path[-1]


def fields_of(part: Any) -> "Mapping[str, FieldInfo]":
    """Return the fields of a class of settings by name."""
    found: Mapping[str, FieldInfo] = part.__pydantic_fields__
    return found


# ---- settings that were made -------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def values(config: Any) -> Mapping[str, Any]:
    """Return the value of every setting that exists, by its flat name, in the order of the tree.

    Raises:
        InputError: Two parts have a setting of one name, which only a plug-in can bring about.
    """
    # Cached, because generic code asks for single values in every round, and settings never change.
    known: dict[str, tuple[Any, tuple[Condition, ...]]] = {}
    for name, found, conditions in _walk(config):
        if name in known:
            raise InputError(
                f"two parts of the settings have {name!r}; give the setting of the plug-in another name"
            )
        known[name] = (found, conditions)

    # A condition on a setting that does not exist itself sees None; chains of conditions end at one without.
    def exists(name: str) -> bool:
        return all(
            condition.setting not in known
            or condition.holds(known[condition.setting][0] if exists(condition.setting) else None)
            for condition in known[name][1]
        )

    return {name: found for name, (found, _) in known.items() if exists(name)}


def _walk(config: Any) -> Iterator[tuple[str, Any, tuple[Condition, ...]]]:
    """Yield name, value and conditions of every setting in a tree."""
    for name, field in fields_of(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            yield from _walk(value)
        # An open field that a method does not fill is no setting.
        elif not _is_slot(field):
            yield name, value, _conditions(field)


def _conditions(field: "FieldInfo") -> tuple[Condition, ...]:
    return tuple(entry for entry in field.metadata if isinstance(entry, Condition))


def _is_slot(field: "FieldInfo") -> bool:
    return field.annotation is Any or any(isinstance(entry, ChosenBy) for entry in field.metadata)


def value(config: object, name: str, otherwise: Any = None) -> Any:
    """Return the value of a setting by its flat name, `otherwise` if the run has no such setting."""
    return values(config).get(name, otherwise)


def changed(config: C, **new: object) -> C:
    """Return settings with other values, by flat names.

    Raises:
        KeyError: A name is not one of the settings.
    """
    # Names are removed as they are found; those that remain belong to no setting.
    left = dict(new)
    made = _changed(config, left)
    if left:
        raise KeyError(f"no setting {', '.join(left)}")
    return cast("C", made)


def _changed(config: Any, left: dict[str, object]) -> Any:
    new = {}
    for name in fields_of(type(config)):
        part = getattr(config, name)
        if dataclasses.is_dataclass(part):
            other = _changed(part, left)
            if other is not part:
                new[name] = other
        elif name in left:
            new[name] = left.pop(name)
    # An unchanged part stays the same object, by which the part above it sees that nothing has changed.
    return dataclasses.replace(config, **new) if new else config


# ---- the tree of a method ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """The settings that a method has.

    Attributes:
        root: The class of the settings.
        parts: What fills the fields that the class leaves open, by their dotted path: a part, or for a field
            that is `ChosenBy` a setting the parts by the setting's values.
        offers: The values that the method offers of a setting, if not all; one value is used always and is no
            setting of the method.
    """

    root: type
    parts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    offers: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """Every setting, in the order of the classes; those of all parts that can be chosen, also those of
        plug-ins that are loaded later.
        """
        return tuple(leaf for leaf in self._leaves_of(self.root, (), ()) if self._can_exist(leaf))

    def _can_exist(self, leaf: Leaf) -> bool:
        """Return whether values that the method offers of other settings fulfil a setting's conditions."""
        return all(
            condition.setting not in self.offers
            or any(condition.holds(value) for value in self.offers[condition.setting])
            for condition in leaf.conditions
        )

    def _leaves_of(
        self, part: Any, path: tuple[str, ...], conditions: tuple[Condition, ...]
    ) -> Iterator[Leaf]:
        for name, field in fields_of(part).items():
            here = (*path, name)
            chosen_by = next((entry for entry in field.metadata if isinstance(entry, ChosenBy)), None)
            if chosen_by is not None:
                # Every choice is listed, each on the condition that it is the chosen one.
                for choice, chosen in self.parts[".".join(here)].items():
                    yield from self._leaves_of(chosen, here, (*conditions, Only(chosen_by.setting, choice)))
            elif ".".join(here) in self.parts:
                yield from self._leaves_of(self.parts[".".join(here)], here, conditions)
            elif dataclasses.is_dataclass(field.annotation):
                yield from self._leaves_of(field.annotation, here, conditions)
            elif field.annotation is not Any:
                yield Leaf(here, part, field, (*conditions, *_conditions(field)))

    @property
    def names(self) -> tuple[str, ...]:
        """The flat names of the settings that a user can give."""
        fixed = {name for name, offered in self.offers.items() if len(offered) == 1}
        return tuple(dict.fromkeys(leaf.name for leaf in self.leaves if leaf.name not in fixed))

    def choices(self, leaf: Leaf) -> tuple[Any, ...]:
        """Return the values that a setting chooses among, if the method or a field says so; else empty."""
        for path, parts in self.parts.items():
            # Before `offers`: a setting that chooses a part has that part's names as its values.
            if isinstance(parts, Mapping) and self._chooser(path) == leaf.name:
                return tuple(parts)
        return self.offers.get(leaf.name, ())

    def _chooser(self, path: str) -> str:
        """Return the setting that chooses the part at a path."""
        owner: Any = self.root
        *parents, last = path.split(".")
        for parent in parents:
            owner = fields_of(owner)[parent].annotation
        metadata = fields_of(owner)[last].metadata
        return next(entry.setting for entry in metadata if isinstance(entry, ChosenBy))

    def make(self, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Any:
        """Make settings from flat names.

        Args:
            given: Values that the user gave. A setting that does not exist with the others is refused.
            defaults: Values in the place of the defaults of the parts, for those settings that exist.

        Raises:
            InputError: A name is not a setting, or a setting does not exist with the others.
            pydantic.ValidationError: A value is of the wrong kind or out of range.
        """
        fixed = {name: offered[0] for name, offered in self.offers.items() if len(offered) == 1}
        for name, offered in self.offers.items():
            # Refused here, with the method's own values: the type of the setting may allow more.
            asked = given.get(name, offered[0])
            if asked not in offered:
                allowed = ", ".join(str(each) for each in offered)
                raise InputError(f"{name}={shown(asked)} cannot be used here: expected {allowed}")
        chosen = {**(defaults or {}), **given, **fixed}
        # Whether a default applies depends on the other values, so settings are made with all of them first.
        made = self._make(self.root, (), chosen)
        existing = values(made)
        ignored = [name for name in chosen if name not in existing and name not in given]
        # And once more without those that do not exist here, which a part would otherwise keep as values.
        if ignored:
            made = self._make(self.root, (), {k: v for k, v in chosen.items() if k not in ignored})
            existing = values(made)
        for name in given:
            if name not in existing:
                raise InputError(self._why_not(name, given[name], made))
        return made

    def _make(self, part: Any, path: tuple[str, ...], chosen: Mapping[str, Any]) -> Any:
        arguments: JsonObject = {}
        for name, field in fields_of(part).items():
            dotted = ".".join((*path, name))
            chosen_by = next((entry for entry in field.metadata if isinstance(entry, ChosenBy)), None)
            if chosen_by is not None:
                # The choosing setting is a field of the same part as the field that it fills.
                setting = fields_of(part)[chosen_by.setting]
                choice = chosen.get(chosen_by.setting, setting.default)
                parts = self.parts[dotted]
                if not isinstance(choice, str) or choice not in parts:
                    raise InputError(
                        f"{chosen_by.setting}={shown(choice)} cannot be used: choose one of: "
                        f"{', '.join(parts)}"
                    )
                arguments[name] = self._make(parts[choice], (*path, name), chosen)
            elif dotted in self.parts:
                arguments[name] = self._make(self.parts[dotted], (*path, name), chosen)
            elif dataclasses.is_dataclass(field.annotation):
                arguments[name] = self._make(field.annotation, (*path, name), chosen)
            elif name in chosen:
                arguments[name] = chosen[name]
        return part(**arguments)

    def _why_not(self, name: str, value: object, made: object) -> str:
        """Explain why a setting does not exist in settings that were made."""
        leaves = [leaf for leaf in self.leaves if leaf.name == name]
        if not leaves:
            return f"there is no setting {shown(name)}"
        existing = values(made)
        missed = [
            condition
            for leaf in leaves
            for condition in leaf.conditions
            if condition.setting in existing and not condition.holds(existing[condition.setting])
        ]
        if not missed:
            return f"{name}={shown(value)} cannot be used with the other settings; leave {name} out"
        needed = " or ".join(dict.fromkeys(str(condition) for condition in missed))
        at = missed[0].setting
        decides = "none" if existing[at] is None else existing[at]
        return (
            f"{name}={shown(value)} cannot be used with {at}={decides}: {name} is a setting of runs "
            f"with {needed}; leave {name} out, or change {at}"
        )

    def listed(self, config: object) -> dict[str, Any]:
        """Return the value of every setting that exists and that a user can give."""
        existing = values(config)
        return {name: existing[name] for name in self.names if name in existing}


def only_those(known: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a mapping whose names are known."""
    names = set(known)
    return {name: value for name, value in given.items() if name in names}

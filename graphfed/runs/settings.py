"""The settings of methods: what each setting takes, and messages about names and values that cannot be used.

The descriptions come from the config dataclass of the method, so that help, tables and error messages agree.
`settings_of` describes every setting, `explain` turns the first complaint of pydantic into one line, and
`unknown_setting` says where a setting belongs that the method does not have.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphfed.data.datasets import DATASETS
from graphfed.data.partitions.partition import PARTITIONS
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject
from graphfed.methods.base import Method
from graphfed.methods.parts import Network
from graphfed.methods.registry import METHODS
from graphfed.methods.settings import Leaf, changed, fields_of, values
from graphfed.methods.settings import value as value_of
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.run_options import MAX_COUNT, MAX_SEED, OPTIONS, SettingValue
from graphfed.validation import MISSED, expected_value, kind_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails


def given_settings(settings: object, named: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the settings in a mapping, or None, together with those that are given by name."""
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(f"settings of type {type(settings).__name__} cannot be used; give a mapping")
    chosen, others = dict(settings or {}), named or {}
    doubled = sorted(chosen.keys() & others.keys())
    if doubled:
        raise InputError(f"{doubled[0]} is given twice, in settings and by name; give it once")
    return {**chosen, **others}


@dataclass(frozen=True)
class Setting:
    """One setting of a method.

    Attributes:
        kind: "whole number", "number", "yes or no", "text" or "choice".
        expected: What a value must be, as in "a number more than 0 and at most 1".
        choices: The values of a choice; empty for another kind.
        default: The value that the method uses if the setting is not given.
        own: Whether only this method and its variants have the setting.
        only: With which values of other settings it exists, as in "backbone gat"; "" if with all.
    """

    name: str
    kind: str
    expected: str
    choices: tuple[SettingValue, ...]
    default: SettingValue
    description: str
    own: bool
    only: str = ""

    def to_json(self) -> JsonObject:
        """Return the setting as an object of `graphfed methods NAME --json`."""
        return dataclasses.asdict(self)


def settings_of(method: Method, task: str | None = None) -> list[Setting]:
    """Return every setting of a method that `--set` takes, those that methods share first.

    The defaults are those of `task`, by default of the method's first one.
    """
    definition = get_task(task or method.tasks[0])
    defaults = definition.settings_of(method)
    # Settings of parts that the defaults do not choose are not in the config; their fields have the default.
    existing = values(method.configure({}, defaults))
    shared = {name for part in definition.parts for name in fields_of(part)}
    # A tree lists its settings again each time, because plug-ins may have added some.
    leaves, names = method.tree.leaves, method.tree.names
    found = []
    for name in names:
        if name == "seed":
            continue
        same = [leaf for leaf in leaves if leaf.name == name]
        default = existing.get(name, defaults.get(name, same[0].field.default))
        setting = _setting(method, same[0], default, name not in shared)
        # Conditions on settings that the method lacks, or fixes, always hold.
        conditions = [[str(each) for each in leaf.conditions if each.setting in names] for leaf in same]
        only = " or ".join(" and ".join(each) for each in conditions)
        found.append(dataclasses.replace(setting, only=only))
    return found


def _setting(method: Method, leaf: Leaf, default: SettingValue, own: bool) -> Setting:
    setting = described(leaf.name, leaf.field, default)
    choices = method.tree.choices(leaf)
    if choices:
        expected = f"one of {', '.join(str(choice) for choice in choices)}"
        setting = dataclasses.replace(setting, kind="choice", choices=choices, expected=expected)
    return dataclasses.replace(setting, own=own)


def changed_settings(config: RunConfig) -> JsonObject:
    """Return the settings in which a run differs from the defaults of its task, so that no table hides them.

    The default of a shared setting is the task's, and the default of a method's own setting is the method's.
    The seed is left out, and the number of rounds of a method that trains nothing.
    """
    task, method = get_task(config.task), config.method
    defaults = task.settings_of(method)
    default = {leaf.name: leaf.field.default for leaf in method.tree.leaves}
    own = default | method.tree.listed(method.configure({}, defaults))
    shared = {name for part in task.parts for name in fields_of(part)}
    # How transfers are protected changes no result, up to rounding.
    shared -= {*method.protections, "protocols"}
    default = {name: v for name, v in own.items() if name not in shared} | {
        name: task.defaults.get(name, default[name]) for name in own if name in shared
    }
    chosen = method.tree.listed(config.settings)
    left_out = {"seed"}
    if not method.trains:
        left_out.add("rounds")  # what learns nothing is the same after any number of rounds
    changed = {key: v for key, v in chosen.items() if key not in left_out and v != default[key]}
    # A fixed network is listed like one that was chosen, because rows with the same network do the same work.
    network = value_of(config.settings, "backbone")
    if network is not None and "backbone" not in chosen and network != Network().backbone:
        changed["backbone"] = network
    return changed


def settings_in(config: Any, **chosen: object) -> list[Setting]:
    """Return every setting of a class without parts; `chosen` replaces defaults of the class."""
    default = config(**chosen)
    fields: Mapping[str, FieldInfo] = config.__pydantic_fields__
    return [described(name, field, getattr(default, name)) for name, field in fields.items()]


def described(name: str, field: "FieldInfo", default: SettingValue) -> Setting:
    """Describe the setting of a field."""
    kind, choices, optional = kind_of(field.annotation)
    expected = expected_value(field) + (", or none" if optional else "")
    return Setting(name, kind, expected, choices, default, field.description or "", True)


# ---- what was typed --------------------------------------------------------------------------------------


def parse_settings(pairs: Iterable[str]) -> dict[str, SettingValue]:
    """Read the values of `--set`: ``["lr=0.1", "patience=none"]`` is ``{"lr": 0.1, "patience": None}``."""
    settings: dict[str, SettingValue] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"--set {shown(pair)} cannot be read; write key=value, as in --set lr=0.1")
        if key in settings:
            raise InputError(f"--set {key} is given twice; give it once")
        settings[key] = _parse(text.strip())
    return settings


def _parse(text: str) -> SettingValue:
    """Return a text as a number or None, or else as text. The type of the setting decides about booleans."""
    if text.lower() in ("none", "null"):
        return None
    # Whole numbers first: as floats, large seeds would lose digits.
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def prefixed_settings(
    prefix: str, settings: Mapping[str, object], defaults: Mapping[str, SettingValue]
) -> JsonObject:
    """Return the settings that begin with a prefix, without the prefix, each of the type of its default.

    `prefix` is "partition." or "data."; other settings are ignored. `defaults` are the options of the
    partition or the data set.
    """
    chosen = {}
    for key, value in settings.items():
        if not key.startswith(prefix):
            continue
        default = defaults[key.removeprefix(prefix)]
        kind = type(default)
        limit = MAX_SEED if key.endswith("seed") else MAX_COUNT
        if isinstance(value, int) and abs(value) > limit:
            raise InputError(f"{key}={shown(value)} cannot be used: expected at most {limit}")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)  # noqa: PLW2901
        if kind is bool:
            value = _truth(key, value)  # noqa: PLW2901
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(
                f"{key}={shown(value)} cannot be used: expected a value like the default, {default!r}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key}={value} cannot be used: a finite number was expected")
        chosen[key.removeprefix(prefix)] = value
    return chosen


def _truth(key: str, value: object) -> bool:
    """Return whether a value means yes, by the words that settings of methods take: true, yes, on, 1 and
    opposites.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        raise InputError(f"{key}={shown(value)} cannot be used: expected yes or no") from None


# ---- values ------------------------------------------------------------------------------------------------


def explain(complaint: "ErrorDetails", method: Method, task: str | None = None) -> str:
    """Explain a complaint of pydantic in one line: the key, the bad value, what was expected, and the
    default.

    The default is that of `task`; None for the method's first task.
    """
    return explain_in(complaint, settings_of(method, task), method.name, _methods_with)


def explain_in(
    complaint: "ErrorDetails",
    settings: Iterable[Setting],
    owner: str,
    able_with: Callable[[str, str], list[str]] = lambda key, value: [],
) -> str:
    """Explain a complaint of pydantic about any settings, as `explain` does for a method's.

    `able_with` returns the names of other owners whose setting `key` can have a value.
    """
    key = str(complaint["loc"][0]) if complaint["loc"] else ""
    value = complaint["input"]
    setting = next((s for s in settings if s.name == key), None)
    if setting is None or complaint["type"] not in MISSED:
        reason = complaint["msg"].removeprefix("Value error, ")
        reason = reason[:1].lower() + reason[1:]
        return f"{key or owner}={shown(value)} cannot be used: {reason}"
    names = [choice for choice in setting.choices if isinstance(choice, str)]
    if names and isinstance(value, str):
        hint = did_you_mean(value.lower()[:60], names)
        able = able_with(key, value)
        if able:
            hint = f"{owner} does not have it ({', '.join(able)} have); {hint}"
    else:
        hint = f"expected {setting.expected}"
    return f"{key}={shown(value)} cannot be used: {hint} (default {default_text(setting.default)})"


def _methods_with(key: str, value: str) -> list[str]:
    """Return the methods whose setting `key` can be `value`."""
    return [
        m.name
        for m in METHODS.usable().values()
        for s in settings_of(m)
        if s.name == key and value in s.choices
    ]


def _readings(text: str) -> Iterator[str | int | None]:
    """Yield what a typed value may stand for; the type of its setting decides."""
    yield from (text, text.lower())
    if text.lower() in ("none", "null"):
        yield None
    with contextlib.suppress(ValueError):
        yield int(text)


def has_value(config: object, key: str, text: str) -> bool:
    """Return whether a setting has the value that `text`, as typed on the command line, means.

    Values are compared, not texts: 0.25, .25 and 2.5e-1 are the same number, and True is yes. A setting that
    does not exist has no value.
    """
    from pydantic import ValidationError

    if key not in values(config):
        return False
    for reading in _readings(text):
        # A value that is impossible, alone or with the other settings, is not the setting's value.
        with contextlib.suppress(ValidationError):
            if value_of(changed(config, **{key: reading}), key) == value_of(config, key):
                return True
    return False


#: A rule of an operator: a setting, how it is compared, and a value.
RULE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)([=<>])(.+)", re.DOTALL)


def breaks_rule(config: object, rule: str) -> bool:
    """Return whether settings have what a rule of an operator forbids.

    A rule is KEY=VALUE for a value, KEY>NUMBER and KEY<NUMBER for numbers above and below a limit, such as
    epsilon>1. A setting that does not exist breaks no rule.
    """
    parts = RULE.fullmatch(rule)
    if parts is None:
        raise ValueError(f"the rule {rule!r} cannot be read")
    key, sign, text = parts.groups()
    if sign == "=":
        return has_value(config, key, text)
    found = value_of(config, key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    return found > float(text) if sign == ">" else found < float(text)


def unusable_value(method: Method, key: str, text: str) -> str:
    """Return why a method's setting can never have the value that `text`, as typed, means; "" if it can."""
    from pydantic import ValidationError

    complaint = ""
    for reading in _readings(text):
        try:
            method.configure({key: reading})
        except InputError:
            return ""  # possible with other settings
        except ValidationError as error:
            missed = [e for e in error.errors(include_url=False) if e["loc"][:1] == (key,)]
            if not missed or any(e["type"] not in MISSED for e in missed):
                return ""  # its kind and range are right; with other settings it may be possible
            complaint = complaint or explain(missed[0], method)
        else:
            return ""
    return complaint


def default_text(value: SettingValue) -> str:
    """Return the default of a setting as it is written on the command line."""
    return "none" if value is None else str(value)


# ---- names -------------------------------------------------------------------------------------------------

#: The most methods that a message names.
MOST_HOMES = 6


def home_of(key: str) -> str:
    """Say which methods, partitions or data sets have a setting, as in "it is a setting of fedprox".

    The text is empty if nothing has the setting.
    """
    methods = [
        name for name, method in METHODS.usable().items() if key != "seed" and key in method.tree.names
    ]
    partitions = [
        name for name, spec in PARTITIONS.usable().items() if key in (f"partition.{o}" for o in spec.options)
    ]
    data = [name for name, spec in DATASETS.usable().items() if key in (f"data.{o}" for o in spec.options)]
    for what, names in (("", methods), ("the partition ", partitions), ("the data set ", data)):
        if len(names) > MOST_HOMES:
            first, others = ", ".join(names[:MOST_HOMES]), len(names) - MOST_HOMES
            return f"it is a setting of {what}{first} and {others} more"
        if names:
            return f"it is a setting of {what}{' and '.join(names)}"
    return ""


def unknown_setting(key: object, known: Iterable[str]) -> str:
    """Return the hint that follows "... has no setting KEY".

    It says where the name belongs, if it is an option or a setting of something else, or the most similar
    name.
    """
    known = list(known)
    name = str(key)[:200].lower().replace("-", "_")
    if name in (*OPTIONS, "out") and name not in ("method", *known):
        return f"it is an option of its own: --{name.replace('_', '-')} (in Python: {name}=...)"
    return ("" if name in known else home_of(name)) or did_you_mean(name, known)


def unknown_config_key(key: object, known: list[str]) -> str:
    """Return the hint for a key of a config file that is no option."""
    name = key if isinstance(key, str) else ""
    return f"{name} is a setting: write it under 'set:'" if home_of(name) else did_you_mean(name, known)

"""Messages for what pydantic finds wrong with a value: which value, what is expected, which name is meant.

`graphfed.runs.settings` uses them for the settings of methods, `graphfed.runs.folder_schema` for the files of
a run's folder, and `graphfed.data.user_files` for the descriptions of the user's own data.
"""

import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from graphfed.errors import did_you_mean, shown

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

#: The types of pydantic's errors for a value of the wrong kind or out of range. The message for these says
#: what was expected. An error of another type comes from the model itself and has its own message.
MISSED = {
    "greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number",
    "int_type", "int_parsing", "int_parsing_size", "int_from_float", "float_type", "float_parsing",
    "bool_type", "bool_parsing", "string_type", "literal_error", "none_required",
}  # fmt: skip
#: How messages name pydantic's constraints.
_CONSTRAINTS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
_KINDS = {int: "whole number", float: "number", bool: "yes or no", str: "text", Path: "text"}
#: How messages describe the expected kind, by the type of pydantic's error.
_FORMS = {
    "string_type": "be text", "path_type": "be text", "model_type": "be an object",
    "dict_type": "be an object", "list_type": "be a list", "tuple_type": "be a list",
    "too_short": "be a list",
}  # fmt: skip


def kind_of(annotation: Any) -> tuple[str, tuple[Any, ...], bool]:
    """Describe the kind of a field's values.

    Returns:
        The kind as messages name it, the choices of a `Literal`, and whether None is allowed.
    """
    if get_origin(annotation) in (typing.Union, types.UnionType):
        # Optional[X] is X that may be None. Of a larger union the first type names the kind.
        inner = [part for part in get_args(annotation) if part is not type(None)]
        kind, choices, _ = kind_of(inner[0])
        return kind, choices, len(inner) < len(get_args(annotation))
    if get_origin(annotation) is Literal:
        return "choice", get_args(annotation), False
    return _KINDS.get(annotation, "value"), (), False


def expected_value(field: "FieldInfo") -> str:
    """Describe what a value of a field must be.

    Returns:
        The description, as in "a number more than 0 and at most 1".
    """
    kind, choices, _ = kind_of(field.annotation)
    if choices:
        return f"one of {', '.join(str(choice) for choice in choices)}"
    article = "" if kind in ("yes or no", "text") else "a "
    expected = " and ".join((f"{article}{kind}", *_ranges(field.metadata)))
    # "a number and at least 0" reads "a number of at least 0".
    return expected.replace(" and ", " ", 1).replace("number at", "number of at")


def _ranges(metadata: Iterable[Any]) -> list[str]:
    found = {key: getattr(part, key) for part in metadata for key in _CONSTRAINTS if hasattr(part, key)}
    return [f"{words} {found[key]:g}" for key, words in _CONSTRAINTS.items() if found.get(key) is not None]


def keys_of(model: "type[BaseModel]") -> "dict[str, FieldInfo]":
    """List the fields of a model by the keys that a file has for them."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def explain_content(fault: Mapping[str, Any], model: "type[BaseModel]", whole: str, lead: str) -> str:
    """Explain in one line what is wrong with the content of a file.

    A field, or a model, may say what its value must do under "form" in its `json_schema_extra`, as in "be a
    list of labels, as in [legit, fraud]".

    Args:
        lead: What precedes the path of a value inside it.
    """
    kind, value, keys = fault["type"], fault["input"], [str(key) for key in fault["loc"]]
    owner = f"{lead}{_path(keys[:-1])}" if len(keys) > 1 else whole
    place = f"{lead}{_path(keys)}" if keys else whole
    field = keys_of(model).get(keys[0]) if len(keys) == 1 else None
    # From the most specific error to the most general: which key, which type, which range.
    if kind == "missing":
        fix = f"; add it ({field.description})" if field is not None and field.description else ""
        return f"{owner} has no {shown(keys[-1])}{fix}"
    if kind in ("extra_forbidden", "invalid_key"):
        return f"{owner} has an unknown key {shown(keys[-1])}; {did_you_mean(keys[-1][:60], keys_of(model))}"
    if kind in ("value_error", "assertion_error"):
        reason = str(fault["ctx"]["error"])
        return f"{place}: {reason} (found {shown(value)})" if keys else f"{lead}{reason}"
    if kind in _FORMS:
        extra = model.model_config.get("json_schema_extra") if not keys else field and field.json_schema_extra
        form = extra.get("form", _FORMS[kind]) if isinstance(extra, dict) else _FORMS[kind]
        quotes = "; put it in quotes" if kind == "string_type" and isinstance(value, bool) else ""
        return f"{place} must {form} (found {'none in it' if kind == 'too_short' else shown(value)}){quotes}"
    if field is not None and kind == "literal_error":
        hint = did_you_mean(str(value)[:60], kind_of(field.annotation)[1])
        return f"{place} is {shown(value)} ({field.description}); {hint}"
    limits = {words: fault["ctx"][key] for key, words in _CONSTRAINTS.items() if key in fault.get("ctx", {})}
    expected = " and ".join(f"{words} {limit}" for words, limit in limits.items())
    # No numeric limit: pydantic's own words, without their lead.
    expected = expected or str(fault["msg"]).removeprefix("Input should be ")
    if field is not None and kind in MISSED:
        expected = expected_value(field)
    return f"{place} is {shown(value)}; expected {expected}"


def _path(keys: Iterable[str]) -> str:
    return shown(".".join(keys))[1:-1]

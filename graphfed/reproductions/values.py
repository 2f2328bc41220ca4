"""The values of a recipe, checked as they are read: mappings, text, numbers, seeds, names."""

import math
from collections.abc import Iterable
from typing import Any

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.studies.plan import chosen_seeds, parse_seeds

__all__ = ["folder_name", "mapping", "number", "require_different", "seeds_in", "text"]


def mapping(
    where: str, told: Any, needed: tuple[str, ...] = (), allowed: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """A mapping with text keys: the `needed` ones and, where they are named, no others than the `allowed`."""
    if not isinstance(told, dict) or not all(isinstance(key, str) for key in told):
        raise InputError(f"{where} must be a mapping (found {shown(told)})")
    for key in needed:
        if key not in told:
            raise InputError(f"{where} has no {key!r}")
    known = (*needed, *(allowed or ()))
    for key in told if known else ():
        if key not in known:
            raise InputError(f"{where} has an unknown key {shown(key)}; {did_you_mean(key, known)}")
    return told


def text(where: str, key: str, told: Any) -> str:
    if isinstance(told, bool) or not isinstance(told, str | int | float):
        raise InputError(f"{where}: {key} must be text (found {shown(told)})")
    return str(told)


def number(where: str, key: str, told: Any) -> float:
    if isinstance(told, bool) or not isinstance(told, int | float) or not math.isfinite(told):
        raise InputError(f"{where}: {key} must be a number (found {shown(told)})")
    return told


def seeds_in(where: str, told: Any) -> tuple[int, ...]:
    try:
        return chosen_seeds(parse_seeds(told))
    except InputError:
        raise InputError(
            f"{where} needs seeds, different whole numbers as in [0, 1, 2], or a range as in 0-9 (found "
            f"{shown(told)})"
        ) from None


def folder_name(where: str, what: str, name: str) -> str:
    if not name.isprintable() or "/" in name or name[:1] in ("", ".") or len(name.encode()) > 200:
        raise InputError(f"{where}: {what} {shown(name)} cannot name a folder")
    return name


def require_different(where: str, what: str, names: Iterable[str]) -> None:
    """InputError where a name is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{where} has two {what} {name}; keep one, or tell them apart")
        seen.add(name)

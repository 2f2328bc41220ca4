"""The same item of a recipe on other data sets: see `recipe`, on `data`."""

from collections.abc import Iterator, Mapping
from typing import Any

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.reproductions.rows import label_of
from graphfed.reproductions.values import folder_name, mapping

__all__ = ["data_of", "variants"]

#: What a data set may say otherwise, by what becomes of the item's.
_MERGED = ("options", "set", "quick", "called", "targets")
_REPLACED = ("metric", "seeds", "divided_by", "source")
_OF_A_ROW = ("options", "set")


def data_of(
    where: str, content: Mapping[str, Any], keys: tuple[tuple[str, ...], tuple[str, ...]]
) -> dict[str, dict[str, Any]]:
    """By data set, what is different with it; keys: those of the item's kind, needed and allowed.

    Raises InputError for what is no such mapping."""
    if "data" in content.get("options", {}):
        raise InputError(f"{where}: data is given twice, in options and by itself; give it once")
    told = mapping(f"{where}, data", content["data"])
    if not told:
        raise InputError(f"{where}: data names no data set; name one, as in 'data: {{digits: {{}}}}'")
    allowed = [key for key in (*_MERGED, *_REPLACED, "notes", "rows") if key in (*keys[0], *keys[1])]
    for name, change in told.items():
        mapping(f"{where}, data {folder_name(where, 'the data set', name)}", change, (), tuple(allowed))
    return told


def variants(
    where: str, name: str, content: Mapping[str, Any], base: Mapping[str, Any] | None
) -> Iterator[tuple[str | None, str, dict[str, Any]]]:
    """For each data set of an item: its name (None where the item has no choice), what the item is called
    with it, and the item's content. base: the content of the item whose runs this one shows."""
    told = (content if base is None else base).get("data")
    if told is None:
        yield None, name, dict(content)
        return
    for place, (data, change) in enumerate(told.items()):
        suffix = f"-{data}" if place else ""
        titled = {**content, "title": f"{content['title']}, {data}"}
        if base is None:
            named = f"{where}: {name}{suffix}"
            yield data, f"{name}{suffix}", _changed(named, titled, data, change)
        else:
            yield data, f"{name}{suffix}", {**titled, "runs_of": f"{content['runs_of']}{suffix}"}


def _changed(where: str, content: Mapping[str, Any], data: str, change: Mapping[str, Any]) -> dict[str, Any]:
    """The content of an item with one of its data sets."""
    made = {key: value for key, value in content.items() if key != "data"}
    for key in _MERGED:
        if key in change:
            parts = [mapping(f"{where}, {key}", part.get(key, {})) for part in (content, change)]
            made[key] = {**parts[0], **parts[1]}
    made |= {key: change[key] for key in _REPLACED if key in change}
    made["options"] = {**made.get("options", {}), "data": data}
    notes = [part["notes"] for part in (content, change) if "notes" in part]
    made["notes"] = [note for told in notes for note in (told if isinstance(told, list) else [told])]
    if "rows" in change:
        made["rows"] = _changed_rows(where, content["rows"], change["rows"])
    return made


def _changed_rows(where: str, rows: Any, told: Any) -> Any:
    changes = mapping(f"{where}, rows", told)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return rows  # refused where rows are read
    labels = [label_of(row) for row in rows]
    for label in changes:
        if label not in labels:
            raise InputError(f"{where}: no row {shown(label)} to change; {did_you_mean(label, labels)}")
    made = []
    for label, row in zip(labels, rows, strict=True):
        change = changes.get(label, {})
        if change is None:
            continue
        change = mapping(f"{where}, {label}", change)
        merged = {
            key: {**row.get(key, {}), **mapping(f"{where}, {label}, {key}", change[key])}
            for key in _OF_A_ROW
            if key in change
        }
        made.append({**row, **change, **merged})
    return made

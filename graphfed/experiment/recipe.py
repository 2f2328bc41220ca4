"""Recipes: which runs make up a table or figure of a paper, and what the paper printed there.

A recipe is a small YAML file, graphfed/experiment/recipes/<paper>.yaml, or one's own:

    title, authors, venue
    items:
      <item>:                    a table or figure
        title, source            what it is, and where the printed figures are from
        notes: [...]             how the protocols differ
        metric: accuracy         of the test vertices; printed: of each row, in percent where it is a share
        seeds: [...]
        options: {...}, set: {...}         common to the rows, as in a config file
        quick: {seeds: [...], rounds: ...} what replaces them with --quick
        rows:
          - {label, method, options: {...}, set: {...}, printed: {mean, std}}
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.experiment.config import OPTIONS
from graphfed.plain_yaml import read_yaml

__all__ = ["PERCENT", "Item", "Recipe", "RecipeRow", "read_recipe", "recipe_names"]

FOLDER = Path(__file__).parent / "recipes"
#: Metrics that are shares, printed in percent.
PERCENT = ("accuracy", "macro_f1", "auc")
#: What the rows of an item may set; the seeds are the item's, the folder the reproduction's.
_OPTIONS = tuple(key for key in OPTIONS if key not in ("method", "seed", "out", "set", "data_dir"))


@dataclass(frozen=True)
class RecipeRow:
    """One line: a method with options and settings, and the printed figure (None: not printed)."""

    label: str
    method: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    printed: float | None
    printed_std: float | None


@dataclass(frozen=True)
class Item:
    """One table or figure; options, settings and seeds are those of its rows."""

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    metric: str
    seeds: tuple[int, ...]
    rows: tuple[RecipeRow, ...]
    quick_seeds: tuple[int, ...]
    quick_options: Mapping[str, Any]

    @property
    def data(self) -> list[str]:
        """The data sets that the rows need."""
        return sorted({str(row.options.get("data", "digits")) for row in self.rows})

    def quick(self) -> "Item":
        """The short version."""
        rows = tuple(replace(row, options={**row.options, **self.quick_options}) for row in self.rows)
        return replace(self, seeds=self.quick_seeds, rows=rows)


@dataclass(frozen=True)
class Recipe:
    """What can be reproduced of one paper. paper: its short name, or the path of its file."""

    paper: str
    title: str
    authors: str
    venue: str
    items: Mapping[str, Item]


def recipe_names() -> list[str]:
    """The papers that have a recipe here."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_recipe(paper: str) -> Recipe:
    """The recipe of a paper, by its short name or by the path of a YAML file.

    Raises InputError for an unknown name and for a file that is no recipe, naming what is wrong in it."""
    path = Path(paper)
    if path.suffix not in (".yaml", ".yml"):
        if paper not in recipe_names():
            raise InputError(f"no recipe for {shown(paper)}; {did_you_mean(paper, recipe_names())}")
        path = FOLDER / f"{paper}.yaml"
    content = _mapping(
        path, "the recipe", read_yaml(path, "the recipe"), ("title", "authors", "venue", "items")
    )
    items = _mapping(path, "items", content["items"])
    return Recipe(
        paper=paper,
        title=str(content["title"]),
        authors=str(content["authors"]),
        venue=str(content["venue"]),
        items={name: _item(path, name, told) for name, told in items.items()},
    )


_ITEM = ("title", "metric", "seeds", "quick", "source", "rows")
_ITEM_TOO = ("options", "set", "notes")


def _item(path: Path, name: str, told: Any) -> Item:
    content = _mapping(path, name, told, _ITEM, _ITEM_TOO)
    quick = _mapping(path, f"{name}, quick", content["quick"], ("seeds",), _OPTIONS)
    options = _mapping(path, f"{name}, options", content.get("options", {}), (), _OPTIONS)
    settings = _mapping(path, f"{name}, set", content.get("set", {}))
    if not isinstance(content["rows"], list) or not content["rows"]:
        raise InputError(f"the recipe {path}: {name} needs a list of rows")
    rows = tuple(_row(path, name, row, options, settings) for row in content["rows"])
    labels = [row.label for row in rows]
    doubled = next((label for label in labels if labels.count(label) > 1), None)
    if doubled is not None:
        raise InputError(f"the recipe {path}: {name} has two rows {shown(doubled)}; give each its own label")
    notes = content.get("notes", [])
    return Item(
        name=name,
        title=str(content["title"]),
        source=str(content["source"]),
        notes=tuple(str(note) for note in (notes if isinstance(notes, list) else [notes])),
        metric=str(content["metric"]),
        seeds=_seeds(path, name, content["seeds"]),
        rows=rows,
        quick_seeds=_seeds(path, f"{name}, quick", quick["seeds"]),
        quick_options={key: value for key, value in quick.items() if key != "seeds"},
    )


def _row(
    path: Path, item: str, told: Any, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> RecipeRow:
    row = _mapping(path, f"{item}, a row", told, ("label", "method"), ("options", "set", "printed"))
    label = str(row["label"])
    own = _mapping(path, f"{item}, {label}, options", row.get("options", {}), (), _OPTIONS)
    own_settings = _mapping(path, f"{item}, {label}, set", row.get("set", {}))
    printed = row.get("printed")
    figures = (
        {} if printed is None else _mapping(path, f"{item}, {label}, printed", printed, ("mean",), ("std",))
    )
    for key, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"the recipe {path}: {item}, {label}: printed {key} must be a number")
    if not label.isprintable() or "/" in label or label[:1] in ("", ".") or len(label.encode()) > 200:
        raise InputError(f"the recipe {path}: the label {shown(label)} cannot name a folder")
    return RecipeRow(
        label, str(row["method"]), {**options, **own}, {**settings, **own_settings},
        figures.get("mean"), figures.get("std"),
    )  # fmt: skip


def _mapping(
    path: Path, where: str, told: Any, needed: tuple[str, ...] = (), allowed: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """A mapping with text keys: the `needed` ones and, where they are named, no others than the `allowed`."""
    if not isinstance(told, dict) or not all(isinstance(key, str) for key in told):
        raise InputError(f"the recipe {path}: {where} must be a mapping (found {shown(told)})")
    for key in needed:
        if key not in told:
            raise InputError(f"the recipe {path}: {where} has no {key!r}")
    known = (*needed, *(allowed or ()))
    for key in told if known else ():
        if key not in known:
            raise InputError(
                f"the recipe {path}: {where} has an unknown key {shown(key)}; {did_you_mean(key, known)}"
            )
    return told


def _seeds(path: Path, where: str, told: Any) -> tuple[int, ...]:
    seeds = told if isinstance(told, list) else [told]
    if (
        not seeds
        or any(isinstance(s, bool) or not isinstance(s, int) for s in seeds)
        or len({*seeds}) < len(seeds)
    ):
        raise InputError(
            f"the recipe {path}: {where} needs seeds, different whole numbers (found {shown(told)})"
        )
    return tuple(seeds)

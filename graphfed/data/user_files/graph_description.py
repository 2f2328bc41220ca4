"""The user's own graph: a description in YAML of one file of nodes and one of edges, or of such a pair for
each of several sites, checked.

    nodes: accounts.csv        CSV or Parquet, by the ending; paths start from the description's own folder
    edges: transfers.csv
    id: account                columns of the nodes; these four have the defaults id, site, label and split,
    site: bank                 the last three of them only where there is such a column
    label: fraud               any text or number; empty where unknown
    split: part                train, val, test, or empty for none
    classes: [legit, fraud]    the labels in the order of their numbers (default: those found, sorted)
    features: [age, "f_*"]     default: every other column
    source: from               columns of the edges: the ids of both ends (default: source, target)
    target: to
    source_site: from_bank     where an id is unique within its site only: the site of each end
    target_site: to_bank
    weight: amount             positive numbers (default: weight, where there is such a column)
    repeated: sum              sum, mean or max: the weight of an edge that has several rows (default: sum)
    name: accounts             what to call the graph (default: the name of the file of nodes)

Where every site has files of its own, `sites` stands in the place of nodes, edges and the columns of sites:

    sites:
      north: {nodes: north/customers.csv, edges: north/transfers.csv}
      south: {nodes: south/customers.csv, edges: south/transfers.csv}

The columns are called the same in all of them. An id is the same vertex wherever it stands, and the graph is
what all the files list together (`graphfed.data.user_files.site_union`).

Ids, sites and labels are text as it stands in the file: 007 is not 7. Edges are undirected: rows of the same
two vertices, in either direction, are one edge; self loops are dropped, and columns of the edges that are not
named are not read (`graphfed.data.dropped` names them). A key with nothing after it (site:) says not to use
such a column.
"""

import dataclasses
import fnmatch
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphfed.data.dropped import names_dropped
from graphfed.data.graphs.graph import REPEATED
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.plain_yaml import read_yaml

__all__ = ["KEYS", "Description", "Files", "at_site", "describe", "describe_file", "read_description"]

#: The columns of each file that a description can name, with their defaults.
NODE_COLUMNS = {"id": "id", "site": "site", "label": "label", "split": "split"}
EDGE_COLUMNS = {
    "source": "source",
    "target": "target",
    "source_site": None,
    "target_site": None,
    "weight": "weight",
}
#: The files of one site, and what else has no use beside `sites`.
_FILES = ("nodes", "edges")
_ONE_TABLE = (*_FILES, "site", "source_site", "target_site")
KEYS = ("sites", *_FILES, *NODE_COLUMNS, "classes", "features", *EDGE_COLUMNS, "repeated", "name")
#: Columns that a description can leave out by naming nothing.
_OPTIONAL = ("site", "label", "split", "source_site", "target_site", "weight")


@dataclasses.dataclass(frozen=True)
class Files:
    """A file of nodes and one of edges; site: whose they are, None where they are all there is."""

    site: str | None
    nodes: Path
    edges: Path


@dataclasses.dataclass(frozen=True)
class Description:
    """Where a graph's files are and which columns are what. Every column named here is in its files.

    files: one entry without a site, or two and more, each with its site. site, label, split, source_site,
    target_site, weight: None where there is no such column. features: names of columns, in the order they are
    used. repeated: what `make_graph` does with the weights of an edge that has several rows. classes: every
    label there may be, () where they are those that are found."""

    name: str
    files: tuple[Files, ...]
    id: str
    site: str | None
    label: str | None
    split: str | None
    features: tuple[str, ...]
    source: str
    target: str
    source_site: str | None
    target_site: str | None
    weight: str | None
    repeated: str
    classes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A mapping that `describe` takes, with absolute paths."""
        content = dataclasses.asdict(self) | {"features": list(self.features)}
        del content["files"], content["classes"]
        if self.classes:
            content["classes"] = list(self.classes)
        paths = {files.site: {k: str(getattr(files, k).resolve()) for k in _FILES} for files in self.files}
        if None in paths:
            return {**paths[None], **content}
        return {"sites": paths} | {key: value for key, value in content.items() if key not in _ONE_TABLE}

    @property
    def names_sites(self) -> bool:
        """Whether the files say which sites there are."""
        return self.site is not None or self.files[0].site is not None


def read_description(path: Path) -> tuple[Any, tuple[str, ...]]:
    """What a YAML file holds, or what is under `data` in it, as in a run's config file; and a phrase for what
    else is in it, which only `--config` reads.

    InputError for a file that is no plain YAML."""
    content = read_yaml(path, "the data's description")
    if isinstance(content, dict) and isinstance(content.get("data"), dict):
        return content["data"], names_dropped(content, ("data",), "key", f"{path.name}, read by --config")
    return content, ()


def describe_file(path: Path) -> tuple[Description, tuple[str, ...]]:
    """The description of a graph in a YAML file, or under `data` in a run's config file, and what else is in
    it as `read_description` says it.

    InputError as `describe`, and for a file that is no plain YAML."""
    content, unread = read_description(path)
    return describe(content, path.parent, f"the data's description {path}"), unread


def describe(content: Any, folder: Path, origin: str) -> Description:
    """A checked description. content: a mapping of KEYS; folder: where relative paths start; origin: what to
    call the mapping in messages.

    Only the names of the columns are read. Raises InputError for an unknown key, a missing file or a column
    that is not there."""
    if not isinstance(content, Mapping):
        raise InputError(
            f"{origin} must be a mapping, as in 'nodes: nodes.csv' (found {type(content).__name__})"
        )
    for key, value in content.items():
        if key not in KEYS:
            raise InputError(f"{origin} has an unknown key {key!r}; {did_you_mean(str(key), KEYS)}")
        unused = value is None and key in _OPTIONAL
        if (
            key not in ("features", "sites", "classes")
            and not unused
            and not isinstance(value, str | int | float)
        ):
            raise InputError(f"{origin}: {key} must be text (found {type(value).__name__})")
    if "sites" in content:
        return _describe_sites(content, folder, origin)
    return _describe(content, None, folder, origin)


def _describe_sites(content: Mapping[str, Any], folder: Path, origin: str) -> Description:
    """A description of each site's files, which must be alike, as one."""
    for key in _ONE_TABLE:
        if key in content:
            raise InputError(
                f"{origin} has both 'sites' and {key!r}, and under 'sites' every site has files of its own; "
                f"leave {key!r} out"
            )
    sites, sketch = content["sites"], "'north: {nodes: north.csv, edges: north_edges.csv}'"
    if not isinstance(sites, Mapping):
        raise InputError(
            f"{origin}: sites must map each site's name to its files, as in {sketch} (found "
            f"{type(sites).__name__})"
        )
    if len(sites) < 2:
        raise InputError(
            f"{origin}: sites names {len(sites)} site{'' if len(sites) == 1 else 's'}, and it takes two to "
            "share a graph; name another one, or use 'nodes:' and 'edges:' without 'sites:'"
        )
    common = {key: value for key, value in content.items() if key != "sites"}
    each: list[Description] = []
    for name, files in sites.items():
        if isinstance(name, bool) or not isinstance(name, str | int | float) or not str(name).strip():
            raise InputError(f"{origin}: the site {shown(name)} has no name that is text; put it in quotes")
        where = f"{origin}, site {shown(str(name))}"
        if not isinstance(files, Mapping):
            raise InputError(f"{where} must name its files, as in {sketch} (found {type(files).__name__})")
        for key, value in files.items():
            if key not in _FILES:
                raise InputError(f"{where} has an unknown key {key!r}; {did_you_mean(str(key), _FILES)}")
            if not isinstance(value, str | int | float):
                raise InputError(f"{where}: {key} must be text (found {type(value).__name__})")
        # A column called site says what is known, and is not read.
        described = {**common, "site": None, "source_site": None, "target_site": None, **files}
        with at_site(str(name)):
            each.append(_describe(described, str(name), folder, origin))
        _check_alike(each[0], each[-1], origin)
    together = tuple(described.files[0] for described in each)
    if len({files.site for files in together}) < len(together):
        raise InputError(f"{origin} has two sites of one name; give every site its own")
    named = {described.name for described in each}
    return dataclasses.replace(each[0], files=together, name=named.pop() if len(named) == 1 else "sites")


@contextmanager
def at_site(name: str) -> Iterator[None]:
    """Whatever is refused in here is refused of this site."""
    try:
        yield
    except InputError as error:
        raise InputError(f"site {shown(name)}: {error}") from None


def _check_alike(first: Description, other: Description, origin: str) -> None:
    """InputError where a site's files have other columns than the first site's."""
    ours, theirs = first.files[0], other.files[0]
    for key, file in (("label", "nodes"), ("split", "nodes"), ("weight", "edges")):
        one, two = getattr(first, key), getattr(other, key)
        if one != two:
            (has, lacks) = (ours, theirs) if two is None else (theirs, ours)
            raise InputError(
                f"site {shown(lacks.site)}: {getattr(lacks, file)} has no column {one or two!r} ({key}), and "
                f"{getattr(has, file)} of site {shown(has.site)} has one; add it, or leave it out everywhere "
                f"('{key}:' with nothing after it in {origin})"
            )
    missing = [name for name in first.features if name not in other.features]
    extra = [name for name in other.features if name not in first.features]
    if missing or extra:
        told = [
            f"{what} {', '.join(map(shown, names[:5]))}{', ...' if len(names) > 5 else ''}"
            for what, names in (("lacks", missing), ("also has", extra))
            if names
        ]
        raise InputError(
            f"site {shown(theirs.site)}: {theirs.nodes} has other features than {ours.nodes} of site "
            f"{shown(ours.site)}: it {' and '.join(told)}; give all sites' files the same columns, or name "
            f"those to use in {origin} ('features: [{first.features[0]}, ...]')"
        )


def _describe(content: Mapping[str, Any], site: str | None, folder: Path, origin: str) -> Description:
    """A checked description of one file of nodes and one of edges."""
    paths = {}
    for key in _FILES:
        if key not in content:
            raise InputError(f"{origin} has no {key!r}; name the file of {key}, as in '{key}: {key}.csv'")
        paths[key] = folder / str(content[key])
    nodes, edges = TableFile(paths["nodes"]), TableFile(paths["edges"])
    chosen = _columns(nodes, NODE_COLUMNS, content, origin) | _columns(edges, EDGE_COLUMNS, content, origin)
    for key in ("id", "source", "target"):
        if chosen[key] is None:
            file = nodes if key == "id" else edges
            raise InputError(
                f"{file.path} has no column {(NODE_COLUMNS | EDGE_COLUMNS)[key]!r}; the columns are "
                f"{', '.join(file.columns)}: name the one to use in {origin}, as in "
                f"'{key}: {file.columns[0]}'"
            )
    if (chosen["source_site"] is None) != (chosen["target_site"] is None):
        raise InputError(
            f"{origin} names the site of one end of the edges only; give source_site and target_site"
        )
    if chosen["source_site"] is not None and chosen["site"] is None:
        raise InputError(f"{origin} names the sites of edges, but no column 'site' of {nodes.path}")
    repeated = content.get("repeated", "sum")
    if repeated not in REPEATED:
        raise InputError(
            f"{origin}: repeated, the weight of an edge with several rows, is {shown(repeated)}; "
            f"{did_you_mean(str(repeated), REPEATED)}"
        )
    used = [chosen[key] for key in NODE_COLUMNS if chosen[key] is not None]
    left_out = [NODE_COLUMNS[key] for key in NODE_COLUMNS if key in content and content[key] is None]
    features = _features(nodes, content.get("features"), used, left_out, origin)
    return Description(
        name=str(content.get("name", nodes.path.name.partition(".")[0])),
        files=(Files(site, nodes.path, edges.path),),
        features=features,
        repeated=repeated,
        classes=_classes(content.get("classes"), origin),
        **chosen,
    )


def _columns(
    file: TableFile, defaults: Mapping[str, str | None], content: Mapping[str, Any], origin: str
) -> dict[str, Any]:
    """The column for each key: as named, or the default where the file has it."""
    chosen: dict[str, Any] = {}
    for key, default in defaults.items():
        if key in content and content[key] is None:
            chosen[key] = None
            continue
        name = str(content[key]) if key in content else default
        if key in content and name not in file.columns:
            raise InputError(
                f"{origin}: {file.path} has no column {name!r} ({key}); "
                f"{did_you_mean(str(name), file.columns)}"
            )
        chosen[key] = name if name in file.columns else None
    return chosen


def _features(
    file: TableFile, asked: Any, used: list[str], left_out: list[str], origin: str
) -> tuple[str, ...]:
    """The columns that `asked` names; without it all but those that are used and those to be left out."""
    if asked is None:
        names = [name for name in file.columns if name not in used and name not in left_out]
    else:
        patterns = [asked] if isinstance(asked, str) else asked
        if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
            raise InputError(f"{origin}: features must be a list of column names, as in [age, balance]")
        names = []
        for pattern in patterns:
            found = [pattern] if pattern in file.columns else fnmatch.filter(file.columns, pattern)
            if not found:
                raise InputError(
                    f"{origin}: {file.path} has no column {pattern!r} (features); "
                    f"{did_you_mean(pattern, file.columns)}"
                )
            names += [name for name in found if name not in names]
        for name in names:
            if name in used:
                raise InputError(
                    f"{origin}: column {name!r} of {file.path} cannot be a feature and something else"
                )
    if not names:
        raise InputError(f"{file.path} has no column left for features; methods need at least one")
    return tuple(names)


def _classes(named: Any, origin: str) -> tuple[str, ...]:
    """The names of the classes in the order of their numbers, as text."""
    if named is None:
        return ()
    if not isinstance(named, list) or not named:
        found = "none in it" if isinstance(named, list) else shown(named)
        raise InputError(f"{origin}: classes must be a list of labels, as in [legit, fraud] (found {found})")
    names = []
    for name in named:
        if isinstance(name, bool) or not isinstance(name, str | int | float) or not str(name).strip():
            raise InputError(f"{origin}: the class {shown(name)} is no text; put it in quotes")
        names.append(str(name).strip())
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{origin}: classes names {shown(twice[0])} twice; name every class once")
    return tuple(names)

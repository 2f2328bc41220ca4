"""The user's own graph: a description in YAML of one file of nodes and one of edges, or of such a pair for
each of several clients, checked.

    nodes: accounts.csv
    edges: transfers.csv
    label: fraud
    features: [age, "f_*"]

Where every client has files of its own, `clients` stands in the place of nodes, edges and the columns of
clients:

    clients:
      north: {nodes: north/customers.csv, edges: north/transfers.csv}
      south: {nodes: south/customers.csv, edges: south/transfers.csv}

The columns are called the same in all of them. An id is the same node wherever it stands, and the graph is
what all the files list together (`graphfed.data.user_files.client_union`).

Ids, clients and labels are text as it stands in the file: 007 is not 7. Edges are undirected: rows of the
same
two nodes, in either direction, are one edge; self loops are dropped, and columns of the edges that are not
named are not read (`graphfed.data.dropped` names them). A key with nothing after it (client:) says not to use
such a column.
"""

import fnmatch
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.config import JsonDict

from graphfed.data.dropped import names_dropped
from graphfed.data.user_files.description import DescribedFile, YamlModel
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.plain_yaml import read_yaml

__all__ = ["Description", "Files", "at_client", "describe", "describe_file", "read_description"]

#: The keys that name a column of the nodes, and of the edges.
NODE_COLUMNS = ("id", "client", "label", "split")
EDGE_COLUMNS = ("source", "target", "source_client", "target_client", "weight")
#: Keys that have no use next to `clients`.
_ONE_TABLE = ("nodes", "edges", "client", "source_client", "target_client")


#: What the values of keys must do, for messages (`explain_content`).
_FILES = "{nodes: north.csv, edges: north_edges.csv}"
_CLIENTS: JsonDict = {"form": f"map each client's name to its files, as in 'north: {_FILES}'"}
_LABELS: JsonDict = {"form": "be a list of labels, as in [legit, fraud]"}
_NAMES: JsonDict = {"form": "be a list of column names, as in [age, balance]"}


def _require_text(problem: str) -> BeforeValidator:
    """Take a number or a text that is not blank as text; what YAML makes of yes or null is neither."""

    def check(value: object, info: ValidationInfo) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise InputError(f"{info.context}: the {problem.format(shown(value))}; put it in quotes")
        return str(value)

    return BeforeValidator(check)


ClientName = Annotated[str, _require_text("client {} has no name that is text")]
Label = Annotated[str, StringConstraints(strip_whitespace=True), _require_text("class {} is no text")]


class ClientFiles(YamlModel):
    """The files of one client."""

    model_config = ConfigDict(json_schema_extra={"form": f"name its files, as in {_FILES}"})

    nodes: DescribedFile = Field(description="its file of nodes")
    edges: DescribedFile = Field(description="its file of edges")


class Description(YamlModel):
    """Where a graph's files are and which columns are what.

    `describe` returns one in which every column named is in the files, None stands for a column that there is
    not, and features and name are those that are used.
    """

    model_config = ConfigDict(json_schema_extra={"form": "be a mapping, as in 'nodes: nodes.csv'"})

    nodes: DescribedFile | None = Field(None, description="file of nodes, CSV or Parquet")
    edges: DescribedFile | None = Field(None, description="file of edges, CSV or Parquet")
    clients: dict[ClientName, ClientFiles] = Field(
        {}, description="instead of nodes and edges: the files of each client", json_schema_extra=_CLIENTS
    )
    id: str = Field("id", description="column of the nodes: any text or number")
    client: str | None = Field("client", description="column of the nodes: the client that has it")
    label: str | None = Field("label", description="column of the nodes: any text, empty where unknown")
    split: str | None = Field("split", description="column of the nodes: train, val, test, empty for none")
    classes: Annotated[tuple[Label, ...], Field(min_length=1)] = Field(
        (), description="all labels, numbered in this order (default: sorted)", json_schema_extra=_LABELS
    )
    features: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        (), description="columns of the nodes or patterns (default: all others)", json_schema_extra=_NAMES
    )
    source: str = Field("source", description="column of the edges: the id of one end")
    target: str = Field("target", description="column of the edges: the id of the other end")
    source_client: str | None = Field(None, description="column of the edges: the client of the source")
    target_client: str | None = Field(None, description="column of the edges: the client of the target")
    weight: str | None = Field("weight", description="column of the edges: numbers above 0")
    repeated: Literal["sum", "mean", "max"] = Field(
        "sum", description="the weight of an edge with several rows"
    )
    name: str = Field("", description="what to call the graph (default: the name of the file of nodes)")

    @classmethod
    def explain(cls, fault: Mapping[str, Any], origin: str) -> str:
        if fault["loc"][:1] == ("clients",) and len(fault["loc"]) > 1:
            _, client, *inside = fault["loc"]
            return ClientFiles.explain({**fault, "loc": inside}, f"{origin}, client {shown(str(client))}")
        return super().explain(fault, origin)

    @field_validator("classes", "features", mode="wrap")
    @classmethod
    def _check_list(cls, given: object, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        """Nothing after the key stands for the default, one pattern for a list of it."""
        if given is None:
            return ()
        return check([given] if info.field_name == "features" and isinstance(given, str) else given)

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"{info.context}: classes names {shown(twice[0])} twice; name every class once")
        return names

    @model_validator(mode="after")
    def _check_files(self, info: ValidationInfo) -> Self:
        """There is one pair of files, or one for each of several clients."""
        if "clients" not in self.model_fields_set:
            for key in ("nodes", "edges"):
                if getattr(self, key) is None:
                    raise InputError(
                        f"{info.context} has no {key!r}; name the file of {key}, as in '{key}: {key}.csv'"
                    )
            return self
        for key in _ONE_TABLE:
            if key in self.model_fields_set:
                raise InputError(
                    f"{info.context} has both 'clients' and {key!r}, and under 'clients' every client has "
                    f"files of "
                    f"its own; leave {key!r} out"
                )
        if len(self.clients) < 2:
            raise InputError(
                f"{info.context}: clients names {len(self.clients)} client{'' if self.clients else 's'}, "
                f"and it "
                "takes two to share a graph; name another one, or use 'nodes:' and 'edges:' without "
                "'clients:'"
            )
        return self

    @model_validator(mode="after")
    def _check_ends(self, info: ValidationInfo) -> Self:
        if (self.source_client is None) != (self.target_client is None):
            raise InputError(
                f"{info.context} names the client of one end of the edges only; give source_client and "
                "target_client"
            )
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def files(self) -> "tuple[Files, ...]":
        """One pair of files without a client, or two and more, each with its client."""
        if self.nodes is not None and self.edges is not None:
            return (Files(None, self.nodes, self.edges),)
        return tuple(Files(name, files.nodes, files.edges) for name, files in self.clients.items())

    @property
    def names_clients(self) -> bool:
        """Whether the files say which clients there are."""
        return self.client is not None or bool(self.clients)

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that `describe` takes, with absolute paths."""
        unused = {"classes"} if not self.classes else set()
        return self.model_dump(mode="json", exclude=unused | ({*_ONE_TABLE} if self.clients else {"clients"}))


@dataclass(frozen=True)
class Files:
    """A file of nodes and one of edges; client: the client that they are of, None if they are all there
    is."""

    client: str | None
    nodes: Path
    edges: Path


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


def describe(content: object, folder: Path, origin: str) -> Description:
    """Check the description of a graph; of its files only the names of the columns are read.

    Args:
        content: a mapping with the keys of `Description`.
        folder: where relative paths start.
        origin: what to call the mapping in messages.

    Returns:
        The description, with paths that start from here and the columns that are used.

    Raises:
        InputError: for an unknown key, a missing file or a column that is not there.
    """
    given = Description.check(content, origin)
    if not given.clients:
        return _resolve(given, given.files[0], folder, origin)
    # A column called client says what is known, and is not read.
    common = given.replace(client=None)
    each: list[Description] = []
    for files in given.files:
        with at_client(str(files.client)):
            each.append(_resolve(common, files, folder, origin))
        _check_alike(given, each[0], each[-1], str(files.client), origin)
    names = {described.name for described in each}
    clients = {
        name: files.replace(nodes=described.nodes, edges=described.edges)
        for (name, files), described in zip(given.clients.items(), each, strict=True)
    }
    return each[0].replace(
        nodes=None, edges=None, clients=clients, name=names.pop() if len(names) == 1 else "clients"
    )


@contextmanager
def at_client(name: str) -> Iterator[None]:
    """Whatever is refused in here is refused of this client."""
    try:
        yield
    except InputError as error:
        raise InputError(f"client {shown(name)}: {error}") from None


def _check_alike(
    given: Description, first: Description, other: Description, client: str, origin: str
) -> None:
    """InputError where a client's files have other columns than the first client's."""
    first_client = next(iter(given.clients))
    for key, file in (("label", "nodes"), ("split", "nodes"), ("weight", "edges")):
        one, two = getattr(first, key), getattr(other, key)
        if one != two:
            there, here = (first, first_client), (other, client)
            (has, at), (lacks, without) = (there, here) if two is None else (here, there)
            raise InputError(
                f"client {shown(without)}: {getattr(lacks, file)} has no column {one or two!r} ({key}), and "
                f"{getattr(has, file)} of client {shown(at)} has one; add it, or leave it out everywhere "
                f"('{key}:' with nothing after it in {origin})"
            )
    differences = [
        f"{what} {', '.join(map(shown, names[:5]))}{', ...' if len(names) > 5 else ''}"
        for what, names in (
            ("lacks", [name for name in first.features if name not in other.features]),
            ("also has", [name for name in other.features if name not in first.features]),
        )
        if names
    ]
    if differences:
        raise InputError(
            f"client {shown(client)}: {other.nodes} has other features than {first.nodes} of client "
            f"{shown(first_client)}: it {' and '.join(differences)}; give all clients' files the same "
            f"columns, "
            f"or name those to use in {origin} ('features: [{first.features[0]}, ...]')"
        )


def _resolve(given: Description, files: Files, folder: Path, origin: str) -> Description:
    """The description of one pair of files, with the columns that they have."""
    nodes, edges = TableFile(folder / files.nodes), TableFile(folder / files.edges)
    chosen = {
        key: given.column(key, file, origin, required=key in ("id", "source", "target"))
        for file, keys in ((nodes, NODE_COLUMNS), (edges, EDGE_COLUMNS))
        for key in keys
    }
    if chosen["source_client"] is not None and chosen["client"] is None:
        raise InputError(f"{origin} names the clients of edges, but no column 'client' of {nodes.path}")
    return given.replace(
        **chosen,
        nodes=nodes.path,
        edges=edges.path,
        clients={},
        features=_features(given, nodes, {chosen[key] for key in NODE_COLUMNS}, origin),
        name=given.name or nodes.path.name.partition(".")[0],
    )


def _features(given: Description, file: TableFile, used: set[str | None], origin: str) -> tuple[str, ...]:
    """The columns that are named; without any all but those that are used and those to be left out."""
    fields = type(given).model_fields
    not_used = used | {fields[key].default for key in NODE_COLUMNS if getattr(given, key) is None}
    names = [] if given.features else [name for name in file.columns if name not in not_used]
    for pattern in given.features:
        found = [pattern] if pattern in file.columns else fnmatch.filter(file.columns, pattern)
        if not found:
            raise InputError(
                f"{origin}: {file.path} has no column {pattern!r} (features); "
                f"{did_you_mean(pattern, file.columns)}"
            )
        names += [name for name in found if name not in names]
    twice = [name for name in names if name in used]
    if twice:
        raise InputError(
            f"{origin}: column {twice[0]!r} of {file.path} cannot be a feature and something else"
        )
    if not names:
        raise InputError(f"{file.path} has no column left for features; methods need at least one")
    return tuple(names)

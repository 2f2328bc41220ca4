"""The YAML description of a user's graph: a file of nodes and a file of edges, for all clients or for each.

    nodes: accounts.csv
    edges: transfers.csv
    label: fraud
    features: [age, "f_*"]

If every client has files of its own, `clients` replaces `nodes`, `edges` and the columns of clients:

    clients:
      north: {nodes: north/customers.csv, edges: north/transfers.csv}
      south: {nodes: south/customers.csv, edges: south/transfers.csv}

The files of all clients use the same names of columns. Equal ids mean the same node, and the graph is the
union of all files (`graphfed.data.user_files.client_union`).

Ids, clients, labels and parts of the split are texts (`graphfed.data.texts`): 007 and 7 are different, and
7.0 is 7. Edges are undirected: rows with the same two nodes, in either direction, are one edge. Self loops
are dropped. `directed`, `edge_features`, `time` and `self_loops` keep what networks such as gine can read.
Columns of edges that no key names are not read (`graphfed.data.dropped` names them). A key with nothing after
it, such as `client:`, means that no column is used.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from graphfed.data.messages import listed
from graphfed.data.texts import MISSING, canonical_names
from graphfed.data.user_files.cell_forms import FOUND, CellForm, is_encoding
from graphfed.data.user_files.description import DescribedFile, YamlModel, no_column
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, shown
from graphfed.plain_yaml import read_yaml

#: The keys that name a column of nodes, and those that name a column of edges.
NODE_COLUMNS = ("id", "client", "label", "split")
EDGE_COLUMNS = ("source", "target", "source_client", "target_client", "weight", "time")
#: The usual names of columns of masks, as DGL and PyG write them.
MASKS = tuple(("train_mask", val, "test_mask") for val in ("val_mask", "valid_mask", "validation_mask"))
#: The keys that cannot be combined with `clients`.
_ONE_TABLE = ("nodes", "edges", "client", "source_client", "target_client")


#: The keys that keep the edges as their file lists them.
_EDGE_KEYS = ("directed", "edge_features", "time", "parallel", "self_loops")

#: The expected forms of values, for messages (`explain_content`).
_FILES = "{nodes: north.csv, edges: north_edges.csv}"
_CLIENTS: JsonDict = {"form": f"map each client's name to its files, as in 'north: {_FILES}'"}
_LABELS: JsonDict = {"form": "be a list of labels, as in [legit, fraud]"}
_NAMES: JsonDict = {"form": "be a list of column names, as in [age, balance]"}


def _require_text(problem: str) -> BeforeValidator:
    """Accept a number or a text that is not blank, as text. YAML's booleans and null are refused."""

    def check(value: object, info: ValidationInfo) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise InputError(f"{info.context}: the {problem.format(shown(value))}; put it in quotes")
        return str(value)

    return BeforeValidator(check)


GapRule = Literal["mean", "indicator", "category"]
ClientName = Annotated[str, _require_text("client {} has no name that is text")]
Label = Annotated[str, StringConstraints(strip_whitespace=True), _require_text("class {} is no text")]


def _check_separator(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and (len(value) != 1 or value in '"\r\n'):
        raise InputError(
            f"{info.context}: separator {shown(value)} is not one character, as in ';' or \"\\t\""
        )
    return value


def _check_encoding(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and not is_encoding(value):
        raise InputError(
            f"{info.context}: {shown(value)} is no encoding that Python knows; use utf-8, latin-1, cp1252 or "
            "utf-16, for example"
        )
    return value


_CELLS = "The default is found in the file where only one reading is possible."
Separator = Annotated[
    str | None,
    BeforeValidator(_check_separator),
    Field(description=f"The character between the values of a CSV file. {_CELLS}"),
]
Decimal = Annotated[Literal[".", ","] | None, Field(description=f"The decimal sign of a CSV file. {_CELLS}")]
Encoding = Annotated[
    str | None,
    BeforeValidator(_check_encoding),
    Field(description="The encoding of a CSV file. The default is UTF-8, or UTF-16 with a byte-order mark."),
]
DateFormat = Annotated[
    str | None,
    Field(description=f"The form of dates, as in '%d/%m/%Y'. {_CELLS}"),
]


class ClientFiles(YamlModel):
    """The files of one client, and how they are written if other files are written otherwise."""

    model_config = ConfigDict(json_schema_extra={"form": f"name its files, as in {_FILES}"})

    nodes: DescribedFile = Field(description="The client's file of nodes.")
    edges: DescribedFile = Field(description="The client's file of edges.")
    separator: Separator = None
    decimal: Decimal = None
    encoding: Encoding = None
    date_format: DateFormat = None


class Description(YamlModel):
    """The files of a graph and the meaning of their columns.

    In the result of `describe`, every named column exists, None means that there is no such column, and
    `features` and `name` have the values that are used.
    """

    model_config = ConfigDict(json_schema_extra={"form": "be a mapping, as in 'nodes: nodes.csv'"})

    nodes: DescribedFile | None = Field(None, description="The file of nodes, CSV or Parquet.")
    edges: DescribedFile | None = Field(None, description="The file of edges, CSV or Parquet.")
    clients: dict[ClientName, ClientFiles] = Field(
        {},
        description="The files of nodes and edges of each client. This key replaces nodes and edges.",
        json_schema_extra=_CLIENTS,
    )
    id: str = Field("id", description="The column of nodes with their ids, which may be texts or numbers.")
    client: str | None = Field(
        "client", description="The column of nodes with the name of the client that holds each node."
    )
    label: str | None = Field(
        "label", description="The column of nodes with their labels, which may be texts. Empty means unknown."
    )
    split: str | None = Field(
        "split",
        description="The column of nodes with their part of the split: train, val or test. Empty means none.",
    )
    masks: Annotated[tuple[str, ...], Field(min_length=3, max_length=3)] | None = Field(
        None,
        description="Three columns of nodes with 1 (or true) for the nodes of train, val and test, in this "
        "order, in place of split. The default is train_mask, val_mask and test_mask.",
        json_schema_extra={"form": "be a list of three columns, as in [train_mask, val_mask, test_mask]"},
    )
    classes: Annotated[tuple[Label, ...], Field(min_length=1)] = Field(
        (),
        description="All labels, in the order of the class numbers. The default is the sorted labels.",
        json_schema_extra=_LABELS,
    )
    unknown: tuple[Label, ...] | None = Field(
        None,
        description="Words that mean that a value is not known, in columns of texts, in addition to an empty "
        "cell, NaN, NA, N/A, NULL, null and None. An empty list means that only an empty cell is unknown.",
        json_schema_extra={"form": "be a list of words, as in [unknown]"},
    )
    features: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        (),
        description="The columns of nodes that are features, as names or patterns. The default is all "
        "columns that no other key names.",
        json_schema_extra=_NAMES,
    )
    categorical: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        (),
        description="Features that are categories, as names or patterns. Each category of any client becomes "
        "a feature of 0 and 1.",
        json_schema_extra=_NAMES,
    )
    missing: GapRule | dict[str, GapRule] | None = Field(
        None,
        description="What an empty cell of a feature becomes: mean (of all clients), indicator (the mean, "
        "and a feature that is 1 at empty cells) or category (of its own, for categorical features). One "
        "word for all features, or a word for each. With one word, a categorical feature has a category of "
        "its own. The default refuses empty cells.",
        json_schema_extra={"form": "be mean, indicator or category, or map features to these words"},
    )
    dates: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        (),
        description="Features that are dates or times; they become days since 1970-01-01.",
        json_schema_extra=_NAMES,
    )
    source: str = Field("source", description="The column of edges with the id of the first endpoint.")
    target: str = Field("target", description="The column of edges with the id of the second endpoint.")
    source_client: str | None = Field(
        None, description="The column of edges with the client of the first endpoint."
    )
    target_client: str | None = Field(
        None, description="The column of edges with the client of the second endpoint."
    )
    weight: str | None = Field(
        "weight", description="The column of edges with their weights, numbers above 0."
    )
    repeated: Literal["sum", "mean", "max"] = Field(
        "sum", description="How the weights of several rows of one edge are combined."
    )
    directed: bool = Field(
        False,
        description="Whether an edge goes from its source to its target, and several rows of an edge are "
        "several edges. Networks without directions still use each pair of nodes once.",
    )
    edge_features: tuple[str, ...] = Field(
        (),
        description="The columns of edges that are their attributes, numbers, as names or patterns.",
        json_schema_extra={"form": "be a list of column names, as in [amount, fee]"},
    )
    time: str | None = Field(
        None,
        description="The column of edges with their times, ISO dates or numbers. Dates become the attributes "
        "elapsed days, hour and weekday.",
    )
    parallel: Literal["keep", "combine"] = Field(
        "keep",
        description="Whether several rows from one node to another are kept, or combined into one edge whose "
        "attributes are combined as repeated says, with the latest time.",
    )
    self_loops: Literal["drop", "keep"] = Field(
        "drop", description="Whether rows from a node to itself are dropped, or kept as edges."
    )
    unknown_nodes: Literal["refuse", "drop", "add"] = Field(
        "refuse",
        description="What happens to an edge with an endpoint that is no node: it is refused, dropped and "
        "counted, or the endpoint is added as a node without features and label.",
    )
    no_header: tuple[Literal["nodes", "edges"], ...] = Field(
        (),
        description="The CSV files without names of columns in their first line: nodes, edges or both. Their "
        "columns are called 1, 2, ...; by default, id is 1, source 1 and target 2.",
        json_schema_extra={"form": "be nodes, edges or [nodes, edges]"},
    )
    separator: Separator = None
    decimal: Decimal = None
    encoding: Encoding = None
    date_format: DateFormat = None
    name: str = Field("", description="The name of the graph. The default is the name of the file of nodes.")

    @classmethod
    def explain(cls, fault: Mapping[str, Any], origin: str) -> str:
        """Write one of pydantic's errors as a message of one line, which names the client if there is one."""
        if fault["loc"][:1] == ("clients",) and len(fault["loc"]) > 1:
            _, client, *inside = fault["loc"]
            return ClientFiles.explain({**fault, "loc": inside}, f"{origin}, client {shown(str(client))}")
        return super().explain(fault, origin)

    @field_validator(
        "classes", "features", "categorical", "dates", "edge_features", "no_header", "unknown", mode="wrap"
    )
    @classmethod
    def _check_list(cls, given: object, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        """Replace an empty value by the default, and a single pattern, file or word by a list."""
        if given is None:
            return None if info.field_name == "unknown" else ()
        # YAML reads `unknown: -1` as a number.
        single = str | int | float if info.field_name == "unknown" else str
        return check([given] if info.field_name != "classes" and isinstance(given, single) else given)

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        names = canonical_names(names)
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(
                f"{info.context}: 'classes' names {shown(twice[0])} twice; name every class once"
            )
        return names

    @model_validator(mode="after")
    def _check_files(self, info: ValidationInfo) -> Self:
        """Check that there is one pair of files, or one pair for each of several clients."""
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
                    f"{info.context} has both 'clients' and {key!r}, and 'clients' names separate files for "
                    f"each client; remove {key!r}"
                )
        if len(self.clients) < 2:
            raise InputError(
                f"{info.context}: 'clients' names {len(self.clients)} client{'' if self.clients else 's'}, "
                "and at least two are needed; name another client, or use 'nodes:' and 'edges:' without "
                "'clients:'"
            )
        return self

    @model_validator(mode="after")
    def _check_ends(self, info: ValidationInfo) -> Self:
        if (self.source_client is None) != (self.target_client is None):
            raise InputError(
                f"{info.context} names the client of only one endpoint of the edges; give both source_client "
                "and target_client"
            )
        return self

    @model_validator(mode="after")
    def _check_parallel(self, info: ValidationInfo) -> Self:
        if "parallel" in self.model_fields_set and not self.keeps_edges:
            raise InputError(
                f"{info.context} has 'parallel', which is about directed edges or edges with attributes; add "
                "'directed: true', 'edge_features: [COLUMN]' or 'time: COLUMN', or remove 'parallel'"
            )
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def files(self) -> "tuple[Files, ...]":
        """One pair of files without a client, or a pair for each of several clients."""
        if self.nodes is not None and self.edges is not None:
            return (Files(None, self.nodes, self.edges, self._form(self)),)
        return tuple(
            Files(name, files.nodes, files.edges, self._form(files)) for name, files in self.clients.items()
        )

    def _form(self, files: "ClientFiles | Description") -> CellForm:
        """Return how files are written: as the client says, else as all clients do."""
        keys = ("separator", "decimal", "encoding", "date_format")
        return CellForm(
            *(next(filter(None, (getattr(of, key) for of in (files, self))), None) for key in keys)
        )

    @property
    def keeps_edges(self) -> bool:
        """Whether the graph has the edges as the file lists them (`Graph.directed`)."""
        kept = self.directed or bool(self.edge_features) or self.time is not None
        return kept or self.self_loops == "keep"

    @property
    def gap_rules(self) -> dict[str, str]:
        """What a gap becomes, for each feature in which gaps are allowed."""
        if isinstance(self.missing, dict):
            return dict(self.missing)
        if self.missing is None:
            return {}
        # A category has no mean, and a number is no category.
        numeric = (
            [] if self.missing == "category" else [f for f in self.features if f not in self.categorical]
        )
        return dict.fromkeys(self.categorical, "category") | dict.fromkeys(numeric, self.missing)

    @property
    def missing_texts(self) -> tuple[str, ...]:
        """The texts that mean a missing id, client, label or part of the split. A class is none of them."""
        words = ("",) if self.unknown == () else (*MISSING, *(self.unknown or ()))
        return tuple(word for word in words if word not in self.classes)

    def open(self, which: Literal["nodes", "edges"], files: "Files") -> TableFile:
        return TableFile(
            getattr(files, which),
            header=which not in self.no_header,
            header_fix=f", or write 'no_header: {which}' in the description",
            missing=self.missing_texts,
            form=files.form,
        )

    @property
    def names_clients(self) -> bool:
        """Whether the files state the clients."""
        return self.client is not None or bool(self.clients)

    def to_json(self) -> dict[str, Any]:
        """Convert to a mapping that `describe` accepts, with absolute paths."""
        unused = {
            key for key in ("classes", "masks", "no_header", "categorical", "dates") if not getattr(self, key)
        }
        unused |= {"unknown"} if self.unknown is None else set()
        unused |= set() if self.keeps_edges else set(_EDGE_KEYS)
        content = self.model_dump(
            mode="json", exclude=unused | ({*_ONE_TABLE} if self.clients else {"clients"})
        )
        for files in content.get("clients", {}).values():
            for key in [key for key, value in files.items() if value is None]:
                del files[key]
        return content


@dataclass(frozen=True)
class Files:
    """A file of nodes and a file of edges; `client` is None if there is only one pair of files."""

    client: str | None
    nodes: Path
    edges: Path
    form: CellForm = FOUND


def read_description(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Read the description in a YAML file, not validated, and describe the keys that only `--config` reads.

    If the file has the key `data`, as a run's config file has, the description is its value.
    """
    content = read_yaml(path, "the data's description")
    if isinstance(content, dict) and isinstance(content.get("data"), dict):
        return content["data"], names_dropped(content, ("data",), "key", f"{path.name}, for --config")
    return content, ()


def describe_file(path: Path) -> tuple[Description, tuple[str, ...]]:
    """Read and check the description of a graph in a YAML file, and describe the file's other keys."""
    content, unread = read_description(path)
    return describe(content, path.parent, f"the data's description {path}"), unread


def describe(content: object, folder: Path, origin: str) -> Description:
    """Check the description of a graph. Only the names of the files' columns are read.

    `folder` is that of relative paths, and messages call the mapping `origin`. The result has the paths of
    the files and the columns that are used.
    """
    given = Description.check(content, origin)
    if not given.clients:
        return _resolve(given, given.files[0], folder, origin)
    # The files belong to one client each, so a column called client adds nothing and is not read.
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
    """Add the name of a client to every InputError that is raised in this context."""
    try:
        yield
    except InputError as error:
        raise InputError(f"client {shown(name)}: {error}") from None


def _check_alike(
    given: Description, first: Description, other: Description, client: str, origin: str
) -> None:
    first_client = next(iter(given.clients))
    for key, file in (("label", "nodes"), ("split", "nodes"), ("masks", "nodes"), ("weight", "edges")):
        one, two = getattr(first, key), getattr(other, key)
        if one != two:
            there, here = (first, first_client), (other, client)
            (complete, its_client), (incomplete, without) = (there, here) if two is None else (here, there)
            raise InputError(
                f"client {shown(without)}: {getattr(incomplete, file)} has no column {one or two!r} ({key}), "
                f"and {getattr(complete, file)} of client {shown(its_client)} has one; add the column, or "
                f"use it at no client ('{key}:' with nothing after it in {origin})"
            )
    differences = [
        f"{what} {listed(names)}"
        for what, names in (
            ("does not have", [name for name in first.features if name not in other.features]),
            ("also has", [name for name in other.features if name not in first.features]),
        )
        if names
    ]
    if differences:
        raise InputError(
            f"client {shown(client)}: {other.nodes} has other features than {first.nodes} of client "
            f"{shown(first_client)}: it {' and '.join(differences)}; give all clients' files the same "
            f"columns, or name the columns to use in {origin} ('features: [{first.features[0]}, ...]')"
        )


def _resolve(given: Description, files: Files, folder: Path, origin: str) -> Description:
    """Complete the description of one pair of files with the columns that the files have."""
    files = replace(files, nodes=folder / files.nodes, edges=folder / files.edges)
    nodes, edges = given.open("nodes", files), given.open("edges", files)
    given = _with_numbered_columns(given)
    chosen = {
        key: given.column(key, file, origin, required=key in ("id", "source", "target"))
        for file, keys in ((nodes, NODE_COLUMNS), (edges, EDGE_COLUMNS))
        for key in keys
    }
    if chosen["source_client"] is not None and chosen["client"] is None:
        raise InputError(
            f"{origin} names the columns source_client and target_client of the edges, and no column of "
            f"clients of {nodes.path}; name it as 'client'"
        )
    if given.unknown_nodes == "add" and chosen["client"] is not None:
        raise InputError(
            f"{origin}: 'unknown_nodes: add' cannot be used with a column of clients, because it is not "
            "known at which client a node is; use 'unknown_nodes: drop', or separate files for each client"
        )
    masks = _masks(given, nodes, chosen["split"], origin)
    used = {chosen[key] for key in NODE_COLUMNS} | {*(masks or ())}
    attributes = _columns(given.edge_features, "edge_features", edges, origin)
    if "weight" not in given.model_fields_set and chosen["weight"] in attributes:
        chosen["weight"] = None  # the column has the default name of the weights, and another use
    _refuse_used(attributes, {chosen[key] for key in EDGE_COLUMNS}, "edge_features", edges, origin)
    described = given.replace(
        **chosen,
        edge_features=attributes,
        masks=masks,
        nodes=nodes.path,
        edges=edges.path,
        clients={},
        features=(features := _features(given, nodes, used, origin)),
        dates=(dates := _columns_of(given.dates, "dates", features, nodes, origin)),
        categorical=(categorical := _columns_of(given.categorical, "categorical", features, nodes, origin)),
        missing=_gap_rules(given, features, {*dates}, {*categorical}, nodes, origin),
        name=given.name or nodes.path.name.partition(".")[0],
    )
    without = [name for name in described.features if name not in described.gap_rules]
    if given.unknown_nodes == "add" and without:
        raise InputError(
            f"{origin}: 'unknown_nodes: add' adds nodes without features, and 'missing' does not say what an "
            f"empty cell of {shown(without[0])} becomes; write 'missing: mean', for example"
        )
    return described


def _columns_of(
    patterns: Sequence[str], key: str, features: Sequence[str], file: TableFile, origin: str
) -> tuple[str, ...]:
    """List the features that a key names, as names or patterns."""
    names: list[str] = []
    for pattern in patterns:
        found = [pattern] if pattern in features else fnmatch.filter(features, pattern)
        if not found and pattern in file.columns:
            raise InputError(
                f"{origin}: column {pattern!r} ({key}) of {file.path} is no feature; add it to 'features', "
                f"or remove it from '{key}'"
            )
        if not found:
            raise no_column(pattern, key, file, origin)
        names += [name for name in found if name not in names]
    return tuple(names)


def _gap_rules(
    given: Description,
    features: Sequence[str],
    dates: set[str],
    categorical: set[str],
    file: TableFile,
    origin: str,
) -> str | dict[str, str] | None:
    """Check the keys that say how columns become features, and complete the patterns of 'missing'."""
    if both := dates & categorical:
        raise InputError(
            f"{origin} lists {sorted(both)[0]!r} under 'dates' and 'categorical'; remove it from one of them"
        )
    if not isinstance(given.missing, dict):
        return given.missing
    rules: dict[str, str] = {}
    for pattern, rule in given.missing.items():
        for name in _columns_of([pattern], "missing", features, file, origin):
            if (rule == "category") != (name in categorical):
                fix = (
                    "category" if name in categorical else "mean or indicator, or list it under 'categorical'"
                )
                kind = "a categorical feature" if name in categorical else "a feature of numbers"
                raise InputError(f"{origin}: 'missing' says {rule} for {name!r}, {kind}; use {fix}")
            rules[name] = rule
    return rules


def _with_numbered_columns(given: Description) -> Description:
    """Name the columns of ids and endpoints in files without names, if the description does not."""
    numbers = {"nodes": {"id": "1"}, "edges": {"source": "1", "target": "2"}}
    columns = {key: name for file in given.no_header for key, name in numbers[file].items()}
    return given.replace(**{key: name for key, name in columns.items() if key not in given.given})


def _masks(given: Description, nodes: TableFile, split: str | None, origin: str) -> tuple[str, ...] | None:
    """Find the three columns of masks: those that `masks` names, else those of the usual names."""
    if given.masks is None:
        usual = next((names for names in MASKS if {*names} <= {*nodes.columns}), None)
        is_wanted = split is None and given.split is not None and not {*(usual or ())} & {*given.features}
        return usual if is_wanted else None
    if "split" in given.given and given.split is not None:
        raise InputError(f"{origin} names both 'split' and 'masks'; remove one of them")
    for name in given.masks:
        if name not in nodes.columns:
            raise no_column(name, "masks", nodes, origin)
    return given.masks


def _features(given: Description, file: TableFile, used: set[str | None], origin: str) -> tuple[str, ...]:
    """List the columns of features: those that `features` names, by default all without another use."""
    fields = type(given).model_fields
    not_used = used | {fields[key].default for key in NODE_COLUMNS if getattr(given, key) is None}
    if given.split is None:
        not_used |= {name for names in MASKS for name in names}
    # A column with the default name of an unused key is no feature: its meaning is known.
    names = [] if given.features else [name for name in file.columns if name not in not_used]
    names += _columns(given.features, "features", file, origin)
    _refuse_used(names, used, "features", file, origin)
    if not names:
        raise InputError(f"{file.path} has no column for features; add at least one")
    return tuple(names)


def _columns(patterns: Sequence[str], key: str, file: TableFile, origin: str) -> tuple[str, ...]:
    """List the columns that names or patterns mean, each once."""
    names: list[str] = []
    for pattern in patterns:
        # A column that is called as the pattern wins, so names with * or ? can be used.
        found = [pattern] if pattern in file.columns else fnmatch.filter(file.columns, pattern)
        if not found:
            raise no_column(pattern, key, file, origin)
        names += [name for name in found if name not in names]
    return tuple(names)


def _refuse_used(names: Sequence[str], used: set[str | None], key: str, file: TableFile, origin: str) -> None:
    twice = [name for name in names if name in used]
    if twice:
        raise InputError(
            f"{origin}: column {twice[0]!r} of {file.path} cannot be a feature, because another key names "
            f"it; remove it from {key!r}"
        )

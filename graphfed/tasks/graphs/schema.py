"""The schema of a site's data, which is sent before training, and the comparison of all sites' schemas."""

import dataclasses
from collections.abc import Mapping, Sequence

from graphfed.data.user_files.feature_encoding import RULES, Encoding
from graphfed.errors import InputError, shown
from graphfed.files import JsonObject

#: What identifies a node at all clients, and what determines its part of the split.
IDS = ("id", "client and id", "exported")
PARTS = ("column", "hash", "exported")
#: The fields that are lists of names.


@dataclasses.dataclass(frozen=True)
class Schema:
    """The form of a site's data.

    It contains no data and no numbers of nodes or edges, but a reader learns the names of features and
    classes. If the site's description does not have `classes`, the reader also learns that each of these
    classes occurs at the site.

    Attributes:
        feature_names: The names of the F features, "" if unknown; of a site's own tables, the names of the
            columns.
        class_names: The names of the C classes, "" if unknown.
        ids: What identifies a node, one of IDS.
        parts: What determines a node's part of the split, one of PARTS. `ids` and `parts` are both "exported"
            for a cohort file that `graphfed data export` wrote.
        rules: What an empty cell becomes, for each column in which it is allowed.
        categories, gaps: What the site's tables have of the `Encoding` of all sites: the categories of each
            categorical column that occur at the site, and the columns of numbers with an empty cell.
        filled: The features of an exported cohort file that have gaps (`Graph.filled`).
        edge_features: The names of the D attributes of edges, "" if unknown.
        directed: Whether edges have a direction that networks can read.
    """

    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    weighted: bool
    ids: str
    parts: str
    rules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    filled: tuple[int, ...] = ()
    edge_features: tuple[str, ...] = ()
    directed: bool = False

    @property
    def encoding(self) -> Encoding:
        return Encoding(self.categories, self.gaps)

    @property
    def exported(self) -> bool:
        return self.ids == "exported"

    @property
    def owners_known(self) -> bool:
        """Whether the site knows how many clients own each of its nodes.

        An exported cohort contains these numbers, and a node that is identified by its client and its id is
        at that client only.
        """
        return self.ids in ("exported", "client and id")

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self) | {
            **{name: list(getattr(self, name)) for name in _LISTS},
            "rules": dict(self.rules),
            "categories": {column: list(names) for column, names in self.categories.items()},
        }

    @staticmethod
    def from_json(content: object, origin: str = "the schema") -> "Schema":
        """Read a schema, called `origin` in messages, from JSON, which is not trusted; else InputError."""
        fields = [field.name for field in dataclasses.fields(Schema)]
        # The content comes from another participant, so exactly these keys are accepted.
        if not isinstance(content, Mapping) or {*content} != {*fields}:
            found = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
            raise InputError(f"{origin} must have the keys {', '.join(fields)} and no others; found {found}")
        for name in ("feature_names", "class_names", "gaps", "edge_features"):
            if not _are_texts(names := content[name]):
                raise InputError(f"{origin}: {name} must be a list of texts; found {shown(names)}")
        last = len(content["feature_names"]) - 1
        if not isinstance(content["filled"], list) or not all(
            type(number) is int and 0 <= number <= last for number in content["filled"]
        ):
            raise InputError(f"{origin}: filled must be a list of numbers of features")
        if not isinstance(content["rules"], Mapping) or not all(
            isinstance(rule, str) and rule in RULES for rule in content["rules"].values()
        ):
            raise InputError(f"{origin}: rules must map columns to {', '.join(RULES)}")
        categories = content["categories"]
        if not isinstance(categories, Mapping) or not all(map(_are_texts, categories.values())):
            raise InputError(f"{origin}: categories must map columns to lists of texts")
        for name in ("weighted", "directed"):
            if not isinstance(content[name], bool):
                raise InputError(f"{origin}: {name} must be true or false; found {shown(content[name])}")
        for name, known in (("ids", IDS), ("parts", PARTS)):
            if content[name] not in known:
                raise InputError(f"{origin}: {name} must be one of {known}; found {shown(content[name])}")
        if (content["ids"] == "exported") != (content["parts"] == "exported"):
            raise InputError(f"{origin}: ids and parts must both be 'exported', or neither")
        lists = {name: tuple(content[name]) for name in _LISTS}
        of_columns = {column: tuple(names) for column, names in categories.items()}
        return Schema(**{**content, **lists, "categories": of_columns})


_LISTS = ("feature_names", "class_names", "gaps", "filled", "edge_features")


def _are_texts(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(text, str) for text in names)


def compare_schemas(schemas: Mapping[str, Schema]) -> None:
    """Compare the schema of each site, by its name, with the first.

    Raises InputError if two schemas differ; the message names both sites, the difference and the fix.
    """
    first, *others = schemas.items()
    comparisons = (_compare_origins, _compare_features, _compare_classes, _compare_weights, _compare_edges)
    for other in others:
        for find_difference in comparisons:
            difference = find_difference(first, other)
            if difference is not None:
                raise InputError(difference)


_NamedSchema = tuple[str, Schema]


def _compare_origins(one: _NamedSchema, two: _NamedSchema) -> str | None:
    """Compare what identifies nodes and what determines parts of the split.

    With different ids, a node that two clients share would not be recognised. With different origins of the
    parts, it could be in training at one client and in the test at the other.
    """
    (a, schema_a), (b, schema_b) = one, two
    if schema_a.exported != schema_b.exported:
        exporting, reading = (a, b) if schema_a.exported else (b, a)
        return (
            f"client {shown(exporting)} has an exported cohort file and client {shown(reading)} has a "
            "description of its own files; give all clients the same kind of file"
        )
    if schema_a.ids != schema_b.ids:
        both, only_id = (a, b) if schema_a.ids == "client and id" else (b, a)
        return (
            f"the edges name the client of each endpoint at client {shown(both)} and not at client "
            f"{shown(only_id)}, so their nodes have different ids; name source_client and target_client in "
            "every description, or in none"
        )
    if schema_a.parts != schema_b.parts:
        column, hashed = (a, b) if schema_a.parts == "column" else (b, a)
        return (
            f"client {shown(column)} has a column with parts of the split and client {shown(hashed)} has "
            "none; add the column at every client, or use it at no client ('split:' with nothing after it in "
            "each description)"
        )
    return None


def _compare_features(one: _NamedSchema, two: _NamedSchema) -> str | None:
    (a, schema_a), (b, schema_b) = one, two
    names = schema_a.feature_names
    known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if all(names) else "..."
    fix = f"name the same features in the same order in each description: 'features: [{known}]'"
    if len(names) != len(schema_b.feature_names):
        return (
            f"client {shown(a)} has {len(names)} features and client {shown(b)} has "
            f"{len(schema_b.feature_names)}; {fix}"
        )
    for position, (name_a, name_b) in enumerate(zip(names, schema_b.feature_names, strict=True), 1):
        # A column without a name, in an exported file, may be any feature.
        if name_a and name_b and name_a != name_b:
            return (
                f"feature {position} is {shown(name_a)} at client {shown(a)} and {shown(name_b)} at client "
                f"{shown(b)}; {fix}"
            )
    for key, of_a, of_b in (
        ("categorical", sorted(schema_a.categories), sorted(schema_b.categories)),
        ("missing", sorted(schema_a.rules.items()), sorted(schema_b.rules.items())),
    ):
        if of_a != of_b:
            return (
                f"the descriptions of client {shown(a)} and client {shown(b)} differ in {key!r}; write the "
                "same key in each description"
            )
    return None


def _compare_classes(one: _NamedSchema, two: _NamedSchema) -> str | None:
    (a, schema_a), (b, schema_b) = one, two
    names_a, names_b = schema_a.class_names, schema_b.class_names
    if len(names_a) == len(names_b) and all(
        x == y or not x or not y for x, y in zip(names_a, names_b, strict=True)
    ):
        return None
    every = [name for name in dict.fromkeys((*names_a, *names_b)) if name]
    return (
        f"the classes are {_listed(names_a)} at client {shown(a)} and {_listed(names_b)} at client "
        f"{shown(b)}; name all classes in each description, in the same order: 'classes: {_listed(every)}'"
    )


def _compare_weights(one: _NamedSchema, two: _NamedSchema) -> str | None:
    (a, schema_a), (b, schema_b) = one, two
    if schema_a.weighted == schema_b.weighted:
        return None
    weighted, unweighted = (a, b) if schema_a.weighted else (b, a)
    return (
        f"the edges of client {shown(weighted)} have weights and those of client {shown(unweighted)} have "
        "none; name the column of weights in each description ('weight: COLUMN'), or use no weights in each "
        "('weight:' with nothing after it)"
    )


def _compare_edges(one: _NamedSchema, two: _NamedSchema) -> str | None:
    (a, schema_a), (b, schema_b) = one, two
    names_a, names_b = schema_a.edge_features, schema_b.edge_features
    if schema_a.directed != schema_b.directed:
        directed, undirected = (a, b) if schema_a.directed else (b, a)
        return (
            f"the edges of client {shown(directed)} are directed and those of client {shown(undirected)} are "
            "not; write 'directed: true' in each description, or in none"
        )
    if len(names_a) == len(names_b) and all(
        x == y or not x or not y for x, y in zip(names_a, names_b, strict=True)
    ):
        return None
    return (
        f"the attributes of edges are {_listed(names_a)} at client {shown(a)} and {_listed(names_b)} at "
        f"client {shown(b)}; name the same columns in the same order in each description "
        "('edge_features: [...]'), and the same kind of 'time'"
    )


def _listed(names: Sequence[str]) -> str:
    some = [name if name else "?" for name in names]
    return f"[{', '.join(some[:10])}{', ...' if len(some) > 10 else ''}]" if some else "none"

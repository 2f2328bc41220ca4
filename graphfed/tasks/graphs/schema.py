"""What clients tell each other of their data before they train together, and whether it goes together."""

import dataclasses
from collections.abc import Mapping, Sequence

from graphfed.errors import InputError, shown
from graphfed.files import JsonObject

__all__ = ["Schema", "compare_schemas"]

#: What a node goes by at the other clients, and where its part of the split is from.
IDS = ("id", "client and id", "dealt")
PARTS = ("column", "hash", "dealt")


@dataclasses.dataclass(frozen=True)
class Schema:
    """The form of a client's data. It holds no data, and no number of nodes or edges; who reads it learns
    what the client's columns of features and its classes are called, which may be telling enough: where
    `classes` does not name them, that every one of these classes occurs at the client.

    feature_names: F of them, "" where unknown; class_names: C, "" where unknown; weighted: whether edges have
    weights; ids: what nodes go by, one of IDS; parts: where their part of the split is from, one of
    PARTS. Both are "dealt" for a cohort file that somebody with the whole graph has dealt."""

    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    weighted: bool
    ids: str
    parts: str

    @property
    def dealt(self) -> bool:
        """Whether somebody with the whole graph dealt the data."""
        return self.ids == "dealt"

    @property
    def owners_known(self) -> bool:
        """Whether the client knows how many clients own each of its nodes: who dealt the data has said so,
        and a node that goes by its client and its id is at that client alone."""
        return self.ids in ("dealt", "client and id")

    def to_json(self) -> JsonObject:
        """A mapping that `from_json` takes."""
        lists = {"feature_names": list(self.feature_names), "class_names": list(self.class_names)}
        return dataclasses.asdict(self) | lists

    @staticmethod
    def from_json(content: object, origin: str = "the schema") -> "Schema":
        """The schema in plain JSON, which may come from anybody. origin: what to call it in messages.

        InputError for anything but what `to_json` gives."""
        fields = [field.name for field in dataclasses.fields(Schema)]
        if not isinstance(content, Mapping) or {*content} != {*fields}:
            found = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
            raise InputError(f"{origin} must have {', '.join(fields)}, and nothing else; found {found}")
        for name in ("feature_names", "class_names"):
            names = content[name]
            if not isinstance(names, list) or not all(isinstance(text, str) for text in names):
                raise InputError(f"{origin}: {name} must be a list of text; found {shown(names)}")
        if not isinstance(content["weighted"], bool):
            raise InputError(f"{origin}: weighted must be true or false; found {shown(content['weighted'])}")
        for name, known in (("ids", IDS), ("parts", PARTS)):
            if content[name] not in known:
                raise InputError(f"{origin}: {name} must be one of {known}; found {shown(content[name])}")
        if (content["ids"] == "dealt") != (content["parts"] == "dealt"):
            raise InputError(f"{origin}: ids and parts are dealt both or neither")
        lists = {name: tuple(content[name]) for name in ("feature_names", "class_names")}
        return Schema(**{**content, **lists})


def compare_schemas(schemas: Mapping[str, Schema]) -> None:
    """InputError where clients' data does not go together: the two clients, what differs between them, and
    the fix. schemas: by the clients' names, in the order of the clients; each is compared with the first."""
    first, *others = schemas.items()
    for other in others:
        for fault in (_origin, _features, _classes, _weights):
            found = fault(first, other)
            if found is not None:
                raise InputError(found)


_Client = tuple[str, Schema]


def _origin(one: _Client, other: _Client) -> str | None:
    """Nodes that go by different ids would never meet; parts of different origin can put a node that two
    clients share into training at one of them and into the test at the other."""
    (a, mine), (b, theirs) = one, other
    if mine.dealt != theirs.dealt:
        dealt, own = (a, b) if mine.dealt else (b, a)
        return (
            f"client {shown(dealt)} reads a cohort file that was dealt and client {shown(own)} files of "
            f"its own; "
            "let all clients read the one or the other"
        )
    if mine.ids != theirs.ids:
        both, alone = (a, b) if mine.ids == "client and id" else (b, a)
        return (
            f"edges name the client of each end at client {shown(both)} and not at client "
            f"{shown(alone)}, so that "
            "their nodes go by different ids; name source_client and target_client in every description, or "
            "in none"
        )
    if mine.parts != theirs.parts:
        told, drawn = (a, b) if mine.parts == "column" else (b, a)
        return (
            f"client {shown(told)} has a column of parts of the split and client {shown(drawn)} has "
            f"none; add it "
            "everywhere, or use it nowhere: 'split:' with nothing after it in each description"
        )
    return None


def _features(one: _Client, other: _Client) -> str | None:
    (a, mine), (b, theirs) = one, other
    names = mine.feature_names
    known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if all(names) else "..."
    fix = f"name the same ones in the same order in each description: 'features: [{known}]'"
    if len(names) != len(theirs.feature_names):
        return (
            f"client {shown(a)} has {len(names)} features and client {shown(b)} has "
            f"{len(theirs.feature_names)}; "
            f"{fix}"
        )
    for position, (here, there) in enumerate(zip(names, theirs.feature_names, strict=True), 1):
        if here and there and here != there:
            return (
                f"feature {position} is {shown(here)} at client {shown(a)} and {shown(there)} at client "
                f"{shown(b)}; {fix}"
            )
    return None


def _classes(one: _Client, other: _Client) -> str | None:
    (a, mine), (b, theirs) = one, other
    ours, others = mine.class_names, theirs.class_names
    if len(ours) == len(others) and all(x == y or not x or not y for x, y in zip(ours, others, strict=True)):
        return None
    every = [name for name in dict.fromkeys((*ours, *others)) if name]
    return (
        f"the classes are {_listed(ours)} at client {shown(a)} and {_listed(others)} at client "
        f"{shown(b)}; name "
        f"all classes in each description, in the same order: 'classes: {_listed(every)}'"
    )


def _weights(one: _Client, other: _Client) -> str | None:
    (a, mine), (b, theirs) = one, other
    if mine.weighted == theirs.weighted:
        return None
    has, lacks = (a, b) if mine.weighted else (b, a)
    return (
        f"the edges of client {shown(has)} have weights and those of client {shown(lacks)} have none; "
        f"name their "
        "column in each description ('weight: COLUMN'), or leave it out in each ('weight:' with nothing "
        "after it)"
    )


def _listed(names: Sequence[str]) -> str:
    some = [name if name else "?" for name in names]
    return f"[{', '.join(some[:10])}{', ...' if len(some) > 10 else ''}]" if some else "none"

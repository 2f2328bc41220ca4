"""What a coordinator may ask of the server and of the sites: one request for each run.

Every participant checks a request completely before it does anything else for the run: its form (`Request`),
its names (`check_name`), and that its sites and clients are those of the participant's own project. The
program of the run checks the arguments with a model of its own.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graphfed.errors import InputError, shown
from graphfed.files import JsonObject, parse_json
from graphfed.runtime.nvflare.project import MAX_SECONDS, Project
from graphfed.validation import explain_content

T = TypeVar("T", bound=BaseModel)

#: Names of runs and of sessions, and stamps of files: each becomes part of a path.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
#: Whole numbers that fit into 64 bits.
_LARGEST = 2**63 - 1
#: The shortest interval between two signs of life, in seconds.
_SHORTEST_BEAT = 0.05


class Asked(BaseModel):
    """The base of the models of what a coordinator asks: exact types, finite numbers, and no other fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class Request(Asked):
    """A run that all participants are asked to take part in.

    Attributes:
        time: When the coordinator asked, in nanoseconds since 1970; later requests have later times.
        run: The name of the run, which is also the name of its folder.
        program: A program of `apps.PROGRAMS`, or module:function of a module that the operator allows.
        arguments: The arguments of the program. They repeat the name of the run.
        sites, workers: The sites, and the clients of each.
        beat, give_up, patience: Times in seconds (`project.Timing`; here `patience` is the deadline of a
            transfer).
    """

    project: str
    time: Annotated[int, Field(gt=0)]
    run: str
    program: Annotated[
        str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*(:[A-Za-z_][A-Za-z0-9_]*)?$", max_length=200)
    ]
    arguments: JsonObject
    sites: list[str]
    workers: list[list[int]]
    simulated: bool = False
    beat: Annotated[float, Field(ge=_SHORTEST_BEAT, le=MAX_SECONDS)]
    give_up: Annotated[float, Field(gt=0, le=MAX_SECONDS)]
    patience: Annotated[float, Field(gt=0, le=MAX_SECONDS)]


def check_name(name: object, what: str) -> str:
    """Raise InputError unless a name that another participant has sent can be part of a path."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"the name of {what}, {shown(name)}, cannot be used: it must be the name of a folder, of 1 to "
            "151 letters, digits, dots, dashes and underscores, and begin with a letter or a digit"
        )
    return name


def checked(content: object, model: type[T], what: str) -> T:
    """Read what a coordinator asks as an object of a model; InputError names the first wrong field."""
    try:
        # Larger numbers would overflow in tensors.
        _check_numbers(content)
        return model.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise InputError(explain_content(fault, model, what, f"{what}, ")) from None


def read_request(text: object, project: Project) -> Request:
    """Read a request and check it completely; InputError if it cannot be used."""
    if not isinstance(text, str):
        raise InputError(f"the request of a run must be JSON text; found {shown(text)}")
    try:
        content = parse_json(text)
    except ValueError as error:
        raise InputError(f"the request of a run cannot be read: {error}") from None
    request = checked(content, Request, "the request of a run")
    check_name(request.run, "the run")
    # The name in the arguments becomes a path at the sites, and the other one at the server.
    if request.arguments.get("run") != request.run:
        raise InputError(
            f"the request names the run {shown(request.run)}, and its arguments name "
            f"{shown(request.arguments.get('run'))}; they must be the same"
        )
    for what, asked, known in (
        ("project", request.project, project.name),
        ("sites", request.sites, [site.name for site in project.sites]),
        ("sites of the program", request.arguments.get("sites", request.sites), request.sites),
        ("clients of the sites", request.workers, [list(clients) for clients in project.workers]),
    ):
        if asked != known:
            raise InputError(
                f"the {what} in the request of the run are not as in the project {project.name!r} of this "
                "participant's startup kit; use startup kits that were made together"
            )
    return request


def _check_numbers(content: Any) -> None:
    """Raise InputError if a whole number in a plain value has more than 64 bits."""
    level = [content]
    while level:
        for value in level:
            if isinstance(value, int) and abs(value) > _LARGEST:
                raise InputError(f"{shown(value)} in the request of a run has more than 64 bits")
        level = [
            item
            for value in level
            if isinstance(value, list | dict)
            for item in (value.values() if isinstance(value, dict) else value)
        ]


def canonical(content: object) -> str:
    """Write a plain value as JSON in the one way in which it is signed and hashed: keys sorted, no spaces."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def differences(asked: object, found: object, path: str = "") -> list[str]:
    """Name what differs between two plain values, as in "arguments.config.rounds is 5 instead of 3"."""
    if isinstance(asked, Mapping) and isinstance(found, Mapping):
        keys = sorted(asked.keys() | found.keys())
        return [
            each
            for key in keys
            for each in differences(asked.get(key), found.get(key), f"{path}.{key}" if path else str(key))
        ]
    # True == 1 in Python, and not in JSON.
    same = canonical(asked) == canonical(found)
    return [] if same else [f"{path} is {shown(found)} instead of {shown(asked)}"]

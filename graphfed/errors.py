"""The exceptions that a user can meet, and the exit codes of the command line.

    GraphfedError      1   the program could not do its work
    ├── InputError     2   a bad option, file, name or value: what was found, what was expected, and the fix
    └── PlaceError     1   a method used a value at a place where it does not live (a programming error)

Exit codes (docs/errors.md says how to resolve each):

    0    DONE          the command did what was asked
    1    FAILED        the program or the machine failed: GraphfedError, no memory, a disk error
    2    UNUSABLE      the input cannot be used; one line on stderr, nothing written
    130  INTERRUPTED   stopped by Ctrl-C or SIGTERM, after saving what `graphfed resume` needs to continue
"""

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "UNUSABLE",
    "GraphfedError",
    "GraphfedWarning",
    "InputError",
    "PlaceError",
    "did_you_mean",
    "how_to_install",
    "shown",
]

DONE = 0
FAILED = 1
UNUSABLE = 2
INTERRUPTED = 130


class GraphfedError(Exception):
    """Base class of all exceptions that graphfed raises on purpose."""

    exit_code = FAILED


class InputError(GraphfedError):
    """The user's input cannot be used; nothing was written."""

    exit_code = UNUSABLE


class GraphfedWarning(UserWarning):
    """A remark on the data or on the result of a run, for programs; the command line prints it."""


class PlaceError(GraphfedError, TypeError):
    """A method used a value at a place where it does not live."""


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """Return a hint for a name that is not among the choices.

    Returns:
        The most similar choice, as in ``did you mean 'cora'?``, or the list of choices if none is similar.
    """
    names = sorted(choices)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names)}"


def how_to_install(extra: str) -> str:
    """Say how to install an extra. graphfed is on no package index, so it is installed from a clone."""
    return f"pip install '.[{extra}]' in the clone of graphfed"


def shown(value: Any) -> str:
    """Format a value for a message.

    Returns:
        Short texts and numbers as they are written, anything else by its type.
    """
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    # Python refuses to write integers of more than 4300 digits, and nobody reads so many.
    if isinstance(value, int) and abs(value) >= 10**30:
        return "an integer of more than 30 digits"
    return repr(value) if value is None or isinstance(value, int | float) else type(value).__name__

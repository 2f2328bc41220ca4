"""What may be told of a failure at another place.

When a program fails, its process says where: stage, place, phase, round, and the exception's type and line.
The exception's message goes along only where graphfed raised it on purpose: any other message may quote the
values that it is about (``KeyError: 'Alice'``), and those are a site's data. The local runtime, where all
data is in one process anyway, shows everything."""

import traceback

from graphfed.errors import GraphfedError
from graphfed.federation import ReceivedError, StageError

__all__ = ["MAX_TEXT", "kind_and_line", "what_failed"]

#: Characters of the longest error text a process sends.
MAX_TEXT = 20_000


def what_failed(error: Exception, number: int) -> str:
    """What leaves the process when its program fails in round `number`.

    A `ReceivedError` is about another place, and says which. A `StageError` says stage, place, phase and
    round before the message of its cause; what follows (that message, the inputs) is left out."""
    if isinstance(error, ReceivedError):
        return str(error)[:MAX_TEXT]
    cause = error.__cause__
    if isinstance(error, StageError) and isinstance(cause, Exception):
        before, found, _ = str(error).partition(f": {type(cause).__name__}: ")
        if found:
            return f"{before}: {kind_and_line(cause)}"[:MAX_TEXT]
    return f"failed in round {number}, outside a stage: {kind_and_line(error)}"[:MAX_TEXT]


def kind_and_line(error: BaseException) -> str:
    """The exception's type with the innermost file and line, or with the message where it is graphfed's."""
    kind = type(error).__name__
    if isinstance(error, GraphfedError) and not isinstance(error, StageError):
        return f"{kind}: {error}"
    frames = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
    return f"{kind} at {frames[-1]}" if frames else kind

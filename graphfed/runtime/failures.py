"""What a process may reveal to other participants about its failure.

When a program fails, its process reports where: stage, place, phase, round, and the type and line of the
exception. The message of the exception is sent only if graphfed raised it on purpose. Any other message may
quote the values that it is about (``KeyError: 'Alice'``), and those are data of a site. The local runtime has
all data in one process and shows everything.
"""

import traceback

from graphfed.errors import GraphfedError
from graphfed.federation import ReceivedError, StageError

#: The most characters of an error text that a process sends.
MAX_TEXT = 20_000


def what_failed(error: Exception, number: int) -> str:
    """Describe a failure in a round without revealing data.

    For a `ReceivedError`, which is about another participant, return its message; for a `StageError` its
    stage, place, phase and round, without the message of its cause and the inputs; otherwise the round, type
    and line.
    """
    if isinstance(error, ReceivedError):
        return str(error)[:MAX_TEXT]
    # What follows the type of the cause is its message, and then the inputs: both may hold data.
    cause = error.__cause__
    if isinstance(error, StageError) and isinstance(cause, Exception):
        # `StageError` writes the type and the message of its cause after the place of the failure.
        before, found, _ = str(error).partition(f": {type(cause).__name__}: ")
        if found:
            return f"{before}: {kind_and_line(cause)}"[:MAX_TEXT]
    return f"failed in round {number}, outside a stage: {kind_and_line(error)}"[:MAX_TEXT]


def kind_and_line(error: BaseException) -> str:
    """Describe an exception by its type and innermost line, or by its message if graphfed raised it on
    purpose.
    """
    kind = type(error).__name__
    if isinstance(error, GraphfedError) and not isinstance(error, StageError):
        return f"{kind}: {error}"
    frames = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
    return f"{kind} at {frames[-1]}" if frames else kind

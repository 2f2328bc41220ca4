"""The error of a protocol in which the other party does not do what the protocol says."""

from graphfed.errors import GraphfedError


class ProtocolError(GraphfedError):
    """A message that the protocol does not expect at this point.

    It has another length, belongs to another step or session, or is not a point of the curve. The session
    is over: nothing more is sent or opened in it.
    """

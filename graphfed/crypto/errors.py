"""What a party of a protocol raises where the other one does not keep to it."""

from graphfed.errors import GraphfedError

__all__ = ["ProtocolError"]


class ProtocolError(GraphfedError):
    """A message that is not the one that the protocol expects now: of another length, step or session, or no
    point of the curve. The session is over; nothing more is sent or opened in it."""

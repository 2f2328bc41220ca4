"""Places, located values, transfers, the tape and the ledger: what a method is written in."""

from graphfed.federation.core import Federation
from graphfed.federation.functions import as_leaves
from graphfed.federation.ledger import Ledger
from graphfed.federation.link import Link
from graphfed.federation.operations.running import StageError
from graphfed.federation.received import ReceivedError
from graphfed.federation.transfer import Ideal
from graphfed.federation.values import CLIENTS, SERVER, Located
from graphfed.federation.wrap import Cast, Wrapper

__all__ = [
    "CLIENTS",
    "SERVER",
    "Cast",
    "Federation",
    "Ideal",
    "Ledger",
    "Link",
    "Located",
    "ReceivedError",
    "StageError",
    "Wrapper",
    "as_leaves",
]

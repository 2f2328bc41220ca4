"""Places, located values, transfers, the tape and the ledger: what a method is written in."""

from graphfed.federation.core import Federation
from graphfed.federation.ledger import Ledger
from graphfed.federation.values import CLIENTS, SERVER, Located

__all__ = ["CLIENTS", "SERVER", "Federation", "Ledger", "Located"]

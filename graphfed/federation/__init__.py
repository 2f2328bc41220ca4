"""The framework in which methods are written: places, located values, transfers, the tape and the ledger.

A method is one program. It runs functions at a place, the clients or the server, and sends their results to
the other place by named transfers. A participant of a transfer is a worker of clients, by its index, or the
server. A worker is a group of clients that are computed together, stacked in one cohort. The same program
runs with all clients in one worker, with one client at a time, and with participants in processes of their
own.

Read in this order:

    core            `Federation`, which a method's program calls
    values          located values, and the checks that keep data at its place
    cohort, series  the data of a worker's clients: graphs, and time series of sensors
    transfer, wrap  the options of a transfer, and wrappers for compression, noise or encryption
    route           which rows are sent where
    ledger          what each client sends and receives
    tape            what is recorded so that gradients can be sent back
    received        the checks of what other processes send
    link, wire      messages between processes, and payloads as bytes
    payload, functions, state    operations on payloads, functions to run at places, arrays for checkpoints
    operations      the implementation of `Federation`, one module for each concern
    secure          operations by cryptographic protocols: sums, maxima, comparisons, encrypted sums
"""

from graphfed.federation.core import Federation
from graphfed.federation.functions import as_leaves
from graphfed.federation.ledger import Ledger
from graphfed.federation.link import Link
from graphfed.federation.operations.running import StageError
from graphfed.federation.received import ReceivedError
from graphfed.federation.transfer import Ideal, TensorForm
from graphfed.federation.values import CLIENTS, SERVER, Located
from graphfed.federation.wrap import Wrapper

__all__ = [
    "CLIENTS",
    "SERVER",
    "Federation",
    "Ideal",
    "Ledger",
    "Link",
    "Located",
    "ReceivedError",
    "StageError",
    "TensorForm",
    "Wrapper",
    "as_leaves",
]

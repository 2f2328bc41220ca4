"""A program that has one site, or the server, send what no honest participant sends, for
`test_hostile_sites`."""

import json
import os

import torch

from graphfed.federation import wire
from graphfed.federation.payload import tree_map
from graphfed.nn.sparse import SparseMatrix
from graphfed.runtime.nvflare.link import FlareLink

#: The worker of the hostile site.
HOSTILE = 1
#: In a run's name, before what the server sends; between what is sent and the transfer; for a slash in the
#: transfer's name.
SERVER, BETWEEN, SLASH = "server-", "--in--", "-slash-"


def run_name(kind, transfer, sender=""):
    """The name of a run in which the hostile site (or, with `SERVER`, the server) sends this in this
    transfer."""
    return f"{sender}{kind}{BETWEEN}{transfer.replace('/', SLASH)}"


def install(fed, arguments, log, place):
    """From now on the hostile participants' processes send something else, in runs that are called so."""
    if fed.here not in ([HOSTILE], []):
        return
    honest, is_server = FlareLink.send, not fed.here

    def send(self, to, key, message):
        kind, _, transfer = self._run.partition(BETWEEN)
        if kind.startswith(SERVER) is not is_server:
            return honest(self, to, key, message)
        kind = kind.removeprefix(SERVER)
        if key.split("/", 2)[2].rpartition("/")[0] == transfer.replace(SLASH, "/"):
            message = altered(kind, message)
        return honest(self, to, key, message)

    FlareLink.send = send


def altered(kind, message):
    """The bytes of a message with something else in them."""
    if kind == "random_bytes":
        return os.urandom(len(message))
    payload, header = wire.decode(message)
    if kind == "text":
        return wire.encode("text", **header)
    if kind in DECISIONS:
        return wire.encode(json.dumps({**json.loads(payload), **DECISIONS[kind]}), **header)
    if kind == "missing":
        return wire.encode(dict(list(payload.items())[1:]), **header)
    if kind == "additional":
        return wire.encode({**payload, "another": torch.zeros(2)}, **header)
    change = CHANGES[kind]

    def leaf(x):
        return SparseMatrix.from_dense(change(x.to_dense())) if isinstance(x, SparseMatrix) else change(x)

    return wire.encode(tree_map(leaf, payload), **header)


def first_is(value):
    """One number of a floating tensor is another one."""

    def change(x):
        x = x.clone()
        if x.is_floating_point() and x.numel():
            x.view(-1)[0] = value
        return x

    return change


#: Values that a hostile server puts into a decision.
DECISIONS = {
    "roster_number": {"roster": 5},
    "roster_nobody": {"roster": "00"},
    "stop_text": {"stop": "no"},
    "start_text": {"start": "yesterday"},
    "start_unsaved": {"start": 3},
    "other_classes": {"num_classes": 70},
}

CHANGES = {
    "nan": first_is(torch.nan),
    "inf": first_is(-torch.inf),
    "1e30": first_is(1e30),
    "wrong_shape": lambda x: torch.cat([x, x], -1) if x.dim() else x[None],
    "wrong_rows": lambda x: torch.cat([x, x]),
    "wrong_dtype": lambda x: x.double() if x.dtype == torch.float32 else x.float(),
    "times_1e9": lambda x: x * 10**9,
    "large": lambda x: torch.full_like(x, 1.5e19),
    "negative": lambda x: -x,
    "1e10": lambda x: torch.full_like(x, 1e10),
    "times_minus_10": lambda x: -10 * x,
}

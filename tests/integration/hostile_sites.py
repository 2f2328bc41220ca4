"""A program that has one site send what no honest site sends, for `test_hostile_sites`."""

import os

import torch

from graphfed.federation import wire
from graphfed.federation.payload import tree_map
from graphfed.nn.sparse import SparseMatrix
from graphfed.runtime.nvflare.link import FlareLink

#: The worker of the hostile site.
HOSTILE = 1
#: In a run's name, between what is sent and the transfer; for a slash in the transfer's name.
BETWEEN, SLASH = "--in--", "-slash-"


def run_name(kind, transfer):
    """The name of a run in which the hostile site sends this in this transfer."""
    return f"{kind}{BETWEEN}{transfer.replace('/', SLASH)}"


def install(fed, arguments, log, place):
    """From now on the hostile site's process sends something else, in runs that are called so."""
    if fed.here != [HOSTILE]:
        return
    honest = FlareLink.send

    def send(self, to, key, message):
        kind, _, transfer = self._run.partition(BETWEEN)
        if key.split("/", 2)[2].rpartition("/")[0] == transfer.replace(SLASH, "/"):
            message = altered(kind, message)
        honest(self, to, key, message)

    FlareLink.send = send


def altered(kind, message):
    """The bytes of a message with something else in them."""
    if kind == "random_bytes":
        return os.urandom(len(message))
    payload, header = wire.decode(message)
    if kind == "text":
        return wire.encode("text", **header)
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
    "times_minus_10": lambda x: -10 * x,
}

"""The secure maximum of several holders' numbers, as SAPGNN pools with it (section 4.5.3, eqs. 7 and 19).

Two computing parties. The first is the server; the second is the helper: a holder, or a second server. Every
holder cuts each of its numbers into two additive shares modulo 2^32 and sends one to each, so neither has a
number of anybody's. They find the maximum of each coordinate by a tournament: at each pairing a share of
whether the left number is at least the right one, and shares of the larger one (`ring`). The helper sends its
shares of the maxima to the server, which learns them, and not whose they are: who won stays shared between
the two and, one level after the other, chooses the way of the gradient (eq. 19). A holder gets both shares of
its own gradient and adds them up.

Who sees what. The server: the maxima, which holders have which node, and nothing else. The helper: which
rows of two holders are of one node, not which node, and nothing of numbers or gradients but its own as a
holder. A holder: the gradient of its numbers, which is 0 where it lost; of equal numbers the one of the
holder with the lowest id counts. By design a maximum is a number of one of the holders: of two holders, the
one whose number it is not would know the other's if it were told the maximum (SAPGNN's holders are told what
the server works out of it). Assumed: server and helper do not put their shares together (who does has
everything), and both follow the protocol. The paper compares by garbled circuits; comparisons by oblivious
transfer give the same outcome to the same parties, cost less, and have one implementation here.

Numbers are fixed point with 16 bits after the point, below 2^14 in size, so that no difference leaves the
ring; -2^14 stands for no number (-inf). Gradients are shared modulo 2^64 with 40 bits after the point.

With `session.Simulated` for a session the same functions give the same results and declare the same bytes,
and the two show each other all they have."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphfed.crypto.ot import TwoParty, bytes_of_set_up
from graphfed.crypto.ring import nonnegative, select
from graphfed.crypto.session import TAG_BYTES, Declared, Party, Simulated
from graphfed.errors import InputError

__all__ = [
    "FRACTION_BITS",
    "GRADIENT_BITS",
    "Plan",
    "decode",
    "encode",
    "make_plan",
    "maxima",
    "open_session",
    "send_gradients",
]

Shares = NDArray[np.uint32]
Bits = list[NDArray[np.uint8]]

FRACTION_BITS, GRADIENT_BITS = 16, 40
#: Numbers stay below this in size; minus it stands for none.
LARGEST = 2.0**14
LARGEST_GRADIENT = 2.0**22


# ---- numbers -----------------------------------------------------------------------------------------------


def encode(x: Tensor) -> Tensor:
    """Floats [...] as int32 words; -inf, where there is no number, is the smallest.

    InputError for a number that is not below 2^14 in size."""
    none = x.isneginf()
    known = x.masked_fill(none, 0)
    if not bool((known.abs() < LARGEST - 2.0**-FRACTION_BITS).all()):
        raise InputError(
            f"a value of size {float(known.abs().max()):g} cannot be compared: it must be finite and below "
            f"{LARGEST:g}; scale the features, or, where training has diverged, use a smaller learning rate"
        )
    words = (known.double() * 2.0**FRACTION_BITS).round()
    return words.masked_fill(none, -LARGEST * 2.0**FRACTION_BITS).to(torch.int32)


def decode(words: Tensor, dtype: torch.dtype) -> Tensor:
    """int32 words [...] as floats."""
    known = (words.double() * 2.0**-FRACTION_BITS).to(dtype)
    return known.masked_fill(words == -int(LARGEST * 2.0**FRACTION_BITS), -torch.inf)


def encode_gradient(g: Tensor) -> Tensor:
    """Floats [...] as int64 words. InputError for one that is not below 2^22 in size."""
    if not bool((g.abs() < LARGEST_GRADIENT).all()):
        raise InputError(
            f"a gradient of size {float(g.abs().max()):g} cannot be shared: it must be finite and below "
            f"{LARGEST_GRADIENT:g}; training has diverged, use a smaller learning rate"
        )
    return (g.double() * 2.0**GRADIENT_BITS).round().long()


def decode_gradient(words: Tensor, dtype: torch.dtype) -> Tensor:
    """int64 words [...] as floats."""
    return (words.double() * 2.0**-GRADIENT_BITS).to(dtype)


# ---- the tournament ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Plan:
    """Who meets whom. Nodes 0..M-1 are the rows; each level's winners are the next nodes, in order.

    levels: of each, the nodes that meet, left and right [n]; roots [U]: the last node of each node."""

    rows: int
    levels: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    roots: NDArray[np.int64]


def make_plan(group: NDArray[np.int64]) -> Plan:
    """The tournament of M rows, group [M] from 0 on: the node of each; rows of one node keep their
    order."""
    nodes = np.argsort(group, kind="stable")
    node, following = group[nodes], len(group)
    levels: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    while True:
        starts = np.flatnonzero(np.r_[True, node[1:] != node[:-1]]) if len(node) else np.zeros(0, int)
        place = np.arange(len(node)) - np.repeat(starts, np.diff(np.r_[starts, len(node)]))
        left = np.flatnonzero((place % 2 == 0) & np.r_[node[1:] == node[:-1], False])
        if not len(left):
            return Plan(len(group), tuple(levels), nodes)
        levels.append((nodes[left], nodes[left + 1]))
        nodes = nodes.copy()
        nodes[left] = np.arange(following, following + len(left))
        following += len(left)
        nodes, node = np.delete(nodes, left + 1), np.delete(node, left + 1)


def open_session(*, first: bool, simulated: bool) -> Party[TwoParty | Simulated]:
    """Set up a session of the server (the first) and the helper."""
    if simulated:
        sent, received = bytes_of_set_up(both_ways=True)[:: 1 if first else -1]
        yield Declared(sent, received)
        return Simulated(first)
    return (yield from TwoParty(first=first, both_ways=True).set_up())


def maxima(session: TwoParty | Simulated, plan: Plan, shares: Shares) -> Party[tuple[Shares, Bits]]:
    """The maxima [U, H] (at the first party; the second has its shares of them), and this party's shares of
    whether the left one won, for every level [n * H].

    shares [M, H]: this party's."""
    width = shares.shape[1]
    nodes = np.concatenate([shares, np.zeros((sum(len(left) for left, _ in plan.levels), width), np.uint32)])
    following, chosen = plan.rows, []
    for left, right in plan.levels:
        difference = (nodes[left] - nodes[right]).ravel()
        wins = yield from nonnegative(session, difference)
        larger = yield from select(session, wins, difference)
        nodes[following : following + len(left)] = nodes[right] + larger.reshape(-1, width)
        following += len(left)
        chosen.append(wins)
    found = nodes[plan.roots]
    if isinstance(session, Simulated):
        mine, other = yield from session.both(found, (0, TAG_BYTES + found.nbytes))
        found = mine + other
    elif session.first:
        told = yield from session.receive("maxima", found.nbytes)
        found = found + np.frombuffer(told.tobytes(), dtype=np.uint32).reshape(found.shape)
    else:
        yield from session.send("maxima", found)
    return found, chosen


def send_gradients(
    session: TwoParty | Simulated, plan: Plan, chosen: Bits, gradient: NDArray[np.uint64]
) -> Party[NDArray[np.uint64]]:
    """This party's shares [M, H] of the gradient of every row: that of the maximum where the row won, else 0
    (eq. 19).

    gradient [U, H]: of the maxima, at the first party; the second's is 0. chosen: of `maxima`."""
    width = gradient.shape[1]
    total = plan.rows + sum(len(left) for left, _ in plan.levels)
    nodes = np.zeros((total, width), dtype=np.uint64)
    nodes[plan.roots] = gradient
    following, above = total, True
    for (left, right), wins in zip(plan.levels[::-1], chosen[::-1], strict=True):
        following -= len(left)
        won = nodes[following : following + len(left)]
        flat = won.ravel()
        # What enters the highest level is the server's alone.
        to_left = yield from select(session, wins, flat, of_first=above)
        nodes[left] = to_left.reshape(-1, width)
        nodes[right] = won - nodes[left]
        above = False
    return nodes[: plan.rows]

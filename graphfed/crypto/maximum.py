"""Secure maximum of several clients' numbers, as SAPGNN uses it to pool embeddings.

Reference: SAPGNN, section 4.5.3, Eq. (7) and Eq. (19).

There are two computing parties. The first party is the server. The second party is the helper, which is one
of the clients or a second server. Every client splits each of its numbers into two additive shares modulo
2^32 and sends one share to each party, so neither party knows a client's number. The parties find the
maximum of each coordinate in a tournament. For each pairing they compute shares of whether the left number
is at least the right one, and shares of the larger number (`ring`). The helper sends its shares of the
maxima to the server. The winners stay shared between the two parties, and decide in the backward pass,
level after level, where the gradient goes (Eq. (19)). Each client receives both shares of its own gradient
and adds them.

What leaks:

- The server learns the maxima, and which clients have which node. It does not learn which client has a
  maximum.
- The helper learns which rows of two clients belong to the same node, but not to which node. It learns no
  number and no gradient, except its own as a client.
- A client learns the gradient of its numbers, which is 0 where another client has the maximum. If numbers
  are equal, the client with the lowest id gets the gradient.
- A maximum is the number of one client by definition. If only two clients have a node and one of them
  learned the maximum, it would learn the other's number wherever its own is smaller. SAPGNN's clients do
  not receive the maximum; they receive what the server computes from it.

Corruption model: the server and the helper follow the protocol (semi-honest) and do not collude. If they
combine their shares, they know everything. Security parameter: 128 bits, that of `ot`. The paper compares
by garbled circuits. Comparison by oblivious transfer gives the same outcome to the same parties, sends
fewer bytes, and is the only comparison that this package implements.

Numbers are fixed point with 16 bits after the point and are below 2^14 in absolute value, so that no
difference overflows. -2^14 stands for a missing number (-inf). Gradients are shared modulo 2^64 with 40
bits after the point.

With `session.Simulated` in place of a session, the same functions give the same results and declare the
same bytes; the two parties then show each other everything.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphfed.crypto.ot import TwoParty, bytes_of_set_up
from graphfed.crypto.ring import nonnegative, select
from graphfed.crypto.session import TAG_BYTES, Declared, Party, Simulated
from graphfed.errors import InputError

Shares = NDArray[np.uint32]
Bits = list[NDArray[np.uint8]]

FRACTION_BITS, GRADIENT_BITS = 16, 40
#: Bound of the absolute value of a number. Its negative stands for a missing number.
LARGEST = 2.0**14
LARGEST_GRADIENT = 2.0**22


# ---- numbers -----------------------------------------------------------------------------------------------


def encode(x: Tensor) -> Tensor:
    """Encode floats as fixed-point words.

    Args:
        x: Floats of any shape [...]; -inf marks a missing number.

    Returns:
        int32 [...].

    Raises:
        InputError: A number is not finite or not below 2^14 in absolute value.
    """
    none = x.isneginf()
    known = x.masked_fill(none, 0)
    # One step below 2^14, so that no known number rounds to the word of a missing one.
    if not bool((known.abs() < LARGEST - 2.0**-FRACTION_BITS).all()):
        raise InputError(
            f"a value of size {float(known.abs().max()):g} cannot be compared: it must be finite and below "
            f"{LARGEST:g}; scale the features, or, where training has diverged, use a smaller learning rate"
        )
    words = (known.double() * 2.0**FRACTION_BITS).round()
    return words.masked_fill(none, -LARGEST * 2.0**FRACTION_BITS).to(torch.int32)


def decode(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode fixed-point words.

    Args:
        words: int32 of any shape [...], as `encode` gives them.
        dtype: The floating-point dtype of the result.

    Returns:
        Floats [...]; missing numbers are -inf.
    """
    known = (words.double() * 2.0**-FRACTION_BITS).to(dtype)
    return known.masked_fill(words == -int(LARGEST * 2.0**FRACTION_BITS), -torch.inf)


def encode_gradient(g: Tensor) -> Tensor:
    """Encode a gradient [...] as int64 words. An entry of 2^22 or more in absolute value raises
    InputError.
    """
    if not bool((g.abs() < LARGEST_GRADIENT).all()):
        raise InputError(
            f"a gradient of size {float(g.abs().max()):g} cannot be shared: it must be finite and below "
            f"{LARGEST_GRADIENT:g}; training has diverged, use a smaller learning rate"
        )
    return (g.double() * 2.0**GRADIENT_BITS).round().long()


def decode_gradient(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode a gradient from int64 words [...]."""
    return (words.double() * 2.0**-GRADIENT_BITS).to(dtype)


# ---- the tournament ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Plan:
    """The tournament: which entries meet at which level.

    Entries 0..M-1 are the rows; the winners of each level are the next entries, in order.

    Attributes:
        rows: M, the number of rows.
        levels: For each level, the entries that meet, left and right, int64 [n] each.
        roots: The last entry of each graph node, which holds its maximum, int64 [U].
    """

    rows: int
    levels: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    roots: NDArray[np.int64]


def make_plan(group: NDArray[np.int64]) -> Plan:
    """Plan the tournament of M rows.

    Args:
        group: The graph node of each row, counted from 0, int64 [M]. Rows of one node keep their order.

    Returns:
        The plan, which is public.
    """
    # The entries that are left, sorted by node.
    entries = np.argsort(group, kind="stable")
    groups, next_entry = group[entries], len(group)
    levels: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    while True:
        starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else np.zeros(0, int)
        # Rows of one group are adjacent: an even position meets the next one of its group.
        position = np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
        left = np.flatnonzero((position % 2 == 0) & np.r_[groups[1:] == groups[:-1], False])
        if not len(left):
            return Plan(len(group), tuple(levels), entries)
        levels.append((entries[left], entries[left + 1]))
        entries = entries.copy()
        # A winner takes the place of its left entry; the right entry leaves the tournament.
        entries[left] = np.arange(next_entry, next_entry + len(left))
        next_entry += len(left)
        entries, groups = np.delete(entries, left + 1), np.delete(groups, left + 1)


def open_session(*, first: bool, simulated: bool) -> Party[TwoParty | Simulated]:
    """Set up a session of the server (the first party) and the helper.

    Args:
        first: Whether this is the server, the first party.
        simulated: Whether both parties show each other their inputs instead.

    Returns:
        The session, which is ready for use.
    """
    if simulated:
        sent, received = bytes_of_set_up(both_ways=True)[:: 1 if first else -1]
        yield Declared(sent, received)
        return Simulated(first)
    return (yield from TwoParty(first=first, both_ways=True).set_up())


def maxima(session: TwoParty | Simulated, plan: Plan, shares: Shares) -> Party[tuple[Shares, Bits]]:
    """Find the maximum of each coordinate over the rows of every node.

    Args:
        session: A session, or a simulated one.
        plan: The tournament, the same at both parties.
        shares: This party's additive shares of the numbers, uint32 [M, H].

    Returns:
        The maxima, uint32 [U, H], at the first party (the second party gets its shares of them); and this
        party's shares of whether the left entry won, for every level, uint8 [n * H].

    Reference:
        SAPGNN, Eq. (7).
    """
    width = shares.shape[1]
    entries = np.concatenate(
        [shares, np.zeros((sum(len(left) for left, _ in plan.levels), width), np.uint32)]
    )
    next_entry, chosen = plan.rows, []
    for left, right in plan.levels:
        # Shares of l - r, of [l >= r], and of [l >= r] (l - r); the maximum is r + [l >= r] (l - r).
        difference = (entries[left] - entries[right]).ravel()
        wins = yield from nonnegative(session, difference)
        larger = yield from select(session, wins, difference)
        entries[next_entry : next_entry + len(left)] = entries[right] + larger.reshape(-1, width)
        next_entry += len(left)
        chosen.append(wins)
    found = entries[plan.roots]
    if isinstance(session, Simulated):
        local, remote = yield from session.both(found, (0, TAG_BYTES + found.nbytes))
        found = local + remote
    elif session.first:
        # The helper sends its shares to the server, which alone learns the maxima.
        message = yield from session.receive("maxima", found.nbytes)
        found = found + np.frombuffer(message.tobytes(), dtype=np.uint32).reshape(found.shape)
    else:
        yield from session.send("maxima", found)
    return found, chosen


def send_gradients(
    session: TwoParty | Simulated, plan: Plan, chosen: Bits, gradient: NDArray[np.uint64]
) -> Party[NDArray[np.uint64]]:
    """Compute shares of the gradient of every row: the gradient of the maximum where the row won, else 0.

    Args:
        session: A session, or a simulated one.
        plan: The tournament that `maxima` ran.
        chosen: The shared winners that `maxima` returned.
        gradient: The gradient of the maxima at the first party, zeros at the second party, uint64 [U, H].

    Returns:
        This party's additive shares, uint64 [M, H].

    Reference:
        SAPGNN, Eq. (19).
    """
    width = gradient.shape[1]
    total = plan.rows + sum(len(left) for left, _ in plan.levels)
    gradients = np.zeros((total, width), dtype=np.uint64)
    gradients[plan.roots] = gradient
    # From the last level to the first: a winner's gradient goes to the entry that it came from.
    next_entry, is_highest = total, True
    for (left, right), wins in zip(plan.levels[::-1], chosen[::-1], strict=True):
        next_entry -= len(left)
        of_winners = gradients[next_entry : next_entry + len(left)]
        flat = of_winners.ravel()
        # Only the server has the gradient that enters the highest level.
        to_left = yield from select(session, wins, flat, of_first=is_highest)
        gradients[left] = to_left.reshape(-1, width)
        # [l < r] g = g - [l >= r] g, without a second product.
        gradients[right] = of_winners - gradients[left]
        is_highest = False
    return gradients[: plan.rows]

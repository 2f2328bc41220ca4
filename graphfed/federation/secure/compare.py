"""Pairs of clients compare numbers that neither shows the other.

    compare_pairs         whose number is larger: the millionaires' protocol of `graphfed.crypto.compare`
    at_most_pairs         whether a number is accepted in the place of another's: `graphfed.crypto.accept`

The ledger has, of clients to clients,

    NAME/compare          the comparisons; NAME/accept: the acceptances

and the set-up of the pairs' sessions (`pair_protocols`). Real: two-party protocols between the ends.
Simulated: the two ends show each other their numbers, all pairs at once; the same outcomes and, to the byte,
the same ledger, under the protection `simulated`.

Each end learns the outcome, and what follows from it and its own number. Who compares again and again, with
numbers that change, closes in on the other's number: the method that asks says how often. Both ends follow
the protocol (semi-honest)."""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphfed.crypto import accept as acceptance
from graphfed.crypto.compare import (
    MAX_BITS,
    bytes_of_comparison,
    bytes_of_opening,
    bytes_of_opening_less,
    compare,
    is_less,
)
from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.session import Party
from graphfed.errors import InputError, PlaceError
from graphfed.federation.core import Federation
from graphfed.federation.secure.pair_protocols import open_sessions, record_traffic, run_asked, weigh
from graphfed.federation.secure.pairs import Asked, Ints, Known, Pairs, meet
from graphfed.federation.values import Located
from graphfed.random import uniform

__all__ = ["at_most_pairs", "compare_pairs"]

Reveal = Literal["order", "greater"]
#: How the ledger records what the protocols send.
HIDDEN = "encrypted"


def compare_pairs(
    fed: Federation,
    pairs: Pairs,
    numbers: Located[Tensor],
    which: Located[Tensor],
    *,
    bits: int,
    reveal: Reveal,
    name: str,
    asker: Located[Tensor] | None = None,
) -> Located[Tensor]:
    """Compare the numbers of the two ends of some pairs. Both learn the outcome, and nothing else of the
    other end's number.

    Args:
        numbers: [n_h] int64 of at most `bits` bits, from 0.
        which: [n_h] int64, the pairs' positions in the rows, ascending.
        bits: From 1 to 32.
        reveal: "order" opens -1, 0 or 1: the local number is less, equal or greater, as each end sees it.
            "greater" opens one bit, the same at both: 1 where the number of the end that asks is greater.
        asker: [n_h] bool, the end of each pair that asks; for "greater" only.

    Returns:
        The outcomes, [n_h] int8.

    Raises:
        InputError: For a number that does not fit, or bits out of 1..32; if protocols are real, also without
            the extra `secure`.
    """
    if reveal not in ("order", "greater") or (reveal == "greater") != (asker is not None):
        raise PlaceError(
            f"{name!r}: reveal is 'order', or 'greater' with the askers; got {reveal!r} "
            f"{'without' if asker is None else 'with'} askers"
        )
    if not 1 <= bits <= MAX_BITS:
        raise InputError(f"numbers of {bits} bits cannot be compared; use 1 to {MAX_BITS}")
    known, device = pairs.at_clients, str(fed.device)
    asked = fed.clients.run(meet, known, which)
    words = fed.clients.run(operands, known, asked, numbers, asker, bits)
    open_sessions(fed, pairs, asked)
    hidden = fed.protection_of(HIDDEN)
    if not fed.simulated:
        parties = fed.clients.run(comparing, known, asked, words, bits, reveal)
        ended = run_asked(fed, pairs, asked, parties, f"{name}/compare", hidden)
        return fed.clients.run(opened_outcomes, known, asked, ended, reveal, device)
    opening = bytes_of_opening(1) if reveal == "order" else bytes_of_opening_less(1)
    costs = tuple(size + opening for size in bytes_of_comparison(1, bits))
    seen = fed.run_worker_protocols(fed.clients.run(show, asked, words), name=f"{name}/compare")
    found = fed.clients.run(compare_shown, asked, words, seen, reveal, device)
    record_traffic(fed, fed.clients.run(weigh, known, asked, *costs), f"{name}/compare", hidden)
    return found


def at_most_pairs(
    fed: Federation,
    pairs: Pairs,
    numbers: Located[Tensor],
    which: Located[Tensor],
    *,
    bits: int,
    asker: Located[Tensor],
    temperature: float,
    seed: int,
    name: str,
) -> Located[Tensor]:
    """Accept a new number in the place of an old one, or not, as Metropolis does: with probability
    min(1, exp(-(new - old) / temperature)).

    Both ends of each pair learn whether the new number is accepted, and neither number, difference nor draw
    (`graphfed.crypto.accept`). Real, the draw comes from the operating system's entropy at both ends;
    simulated, it is keyed by `seed` and the pair's clients: the two accept with the same probability, and not
    the same moves. The transfer is ``name/accept``.

    Args:
        numbers: [n_h] int64 of at most `bits` bits, from 0.
        which: [n_h] int64, the pairs' positions in the rows, ascending.
        bits: From 1 to 12.
        asker: [n_h] bool, the end of each pair that has the old number.
        seed: Another one for every call.

    Returns:
        [n_h] int8, 1 where the new number is accepted.

    Raises:
        InputError: For a number that does not fit, or a temperature that is not finite and above 0.
    """
    if not 1 <= bits <= acceptance.MAX_BITS:
        raise InputError(f"an acceptance takes numbers of 1 to {acceptance.MAX_BITS} bits; got {bits}")
    acceptance.thresholds(np.zeros(0, dtype=np.int64), temperature)
    known, device = pairs.at_clients, str(fed.device)
    asked = fed.clients.run(meet, known, which)
    words = fed.clients.run(operands, known, asked, numbers, asker, bits)
    open_sessions(fed, pairs, asked)
    hidden = fed.protection_of(HIDDEN)
    if not fed.simulated:
        parties = fed.clients.run(accepting, known, asked, words, bits, temperature)
        ended = run_asked(fed, pairs, asked, parties, f"{name}/accept", hidden)
        return fed.clients.run(opened_bits, ended, device)
    seen = fed.run_worker_protocols(fed.clients.run(show, asked, words), name=f"{name}/accept")
    found = fed.clients.run(accept_shown, known, asked, words, seen, temperature, seed, device)
    costs = acceptance.bytes_of_accept(bits)
    record_traffic(fed, fed.clients.run(weigh, known, asked, *costs), f"{name}/accept", hidden)
    return found


# ---- at the clients ----------------------------------------------------------------------------------------

#: A word has who asks in the bit above the number.
_ASKER = np.int64(MAX_BITS)
_NUMBER = np.int64(2**MAX_BITS - 1)


def operands(known: Known, asked: Asked, numbers: Tensor, asker: Tensor | None, bits: int) -> Ints:
    """The numbers to compare, in words [n]; with who asks."""
    words: Ints = numbers.cpu().numpy()
    if words.shape != asked.rows.shape or words.dtype != np.int64:
        raise PlaceError(
            f"numbers to compare are int64 [{len(asked.rows)}], one a pair; got {words.dtype} "
            f"{list(words.shape)}"
        )
    if len(words) and (words.min() < 0 or int(words.max()) >> bits):
        worst = int(np.argmax(np.where(words < 0, np.iinfo(np.int64).max, words)))
        told = "is negative" if words[worst] < 0 else f"takes {int(words[worst]).bit_length()}"
        raise InputError(
            f"client {known.me[asked.rows[worst]]} has a number that {told}, where numbers to compare have "
            f"{bits} bits; use more bits (at most {MAX_BITS})"
        )
    if asker is None:
        return words
    asks = asker.cpu().numpy()
    if asks.shape != words.shape or asks.dtype != bool:
        raise PlaceError(f"askers are bool [{len(words)}], one a pair; got {asks.dtype} {list(asks.shape)}")
    return words | asks.astype(np.int64) << _ASKER


def show(asked: Asked, words: Ints) -> dict[int, Party[Ints]]:
    """Simulated: the words for each other worker."""
    return {b: _swap(words[places]) for b, places in asked.far.items()}


def _swap(local: Ints) -> Party[Ints]:
    yield local.tobytes()
    message = yield None
    if len(message) != local.nbytes:
        raise ProtocolError(
            f"a worker shows {len(message)} bytes of numbers where {local.nbytes} are expected: it is asked "
            "for other pairs"
        )
    return np.frombuffer(message, dtype=np.int64)


def compare_shown(asked: Asked, local: Ints, seen: dict[int, Ints], reveal: Reveal, device: str) -> Tensor:
    """Simulated: the outcomes [n], of the words of both ends."""
    if reveal == "order":
        outcomes = np.sign(local - _remote_words(asked, local, seen))
    else:
        asking, other = _by_asker(asked, local, seen)
        outcomes = asking > other
    return torch.from_numpy(outcomes.astype(np.int8)).to(device)


def accept_shown(
    known: Known,
    asked: Asked,
    local: Ints,
    seen: dict[int, Ints],
    temperature: float,
    seed: int,
    device: str,
) -> Tensor:
    """Simulated: whether each new number is accepted [n], by a draw of the pair."""
    old, new = _by_asker(asked, local, seen)
    me, other = known.me[asked.rows], known.other[asked.rows]
    pair = torch.from_numpy(np.minimum(me, other) * known.clients + np.maximum(me, other))
    draws = np.floor(acceptance.DRAWS * uniform(seed, pair)[:, 0].numpy())
    accepted = draws < acceptance.thresholds(new - old, temperature)
    return torch.from_numpy(accepted.astype(np.int8)).to(device)


def _remote_words(asked: Asked, local: Ints, seen: dict[int, Ints]) -> Ints:
    """The words of the other ends [n]."""
    remote = local[asked.near]
    for b, words in seen.items():
        remote[asked.far[b]] = words
    return remote


def _by_asker(asked: Asked, local: Ints, seen: dict[int, Ints]) -> tuple[Ints, Ints]:
    """The numbers [n] of the end that asks, and of the other."""
    remote = _remote_words(asked, local, seen)
    asks = (local >> _ASKER).astype(bool)
    if not np.array_equal(asks, remote >> _ASKER == 0):
        raise PlaceError("of each pair that compares one end asks, and the other does not")
    own, others = local & _NUMBER, remote & _NUMBER
    return np.where(asks, own, others), np.where(asks, others, own)


def comparing(
    known: Known, asked: Asked, words: Ints, bits: int, reveal: Reveal
) -> list[Party[NDArray[Any]]]:
    """A party for every row. What is opened of a "greater" is whether the first one's number is less: where
    the first one asks, both take what their numbers lack to the largest."""
    numbers = words & _NUMBER
    if reveal == "greater":
        first = known.me[asked.rows] < known.other[asked.rows]
        turned = (words >> _ASKER).astype(bool) == first
        numbers = np.where(turned, 2**bits - 1 - numbers, numbers)
    ask = compare if reveal == "order" else is_less
    sessions = [known.sessions[row] for row in asked.rows.tolist()]
    single = numbers.astype(np.uint32).reshape(-1, 1)
    return [ask(session, number, bits) for session, number in zip(sessions, single, strict=True)]


def opened_outcomes(
    known: Known, asked: Asked, ended: list[NDArray[Any]], reveal: Reveal, device: str
) -> Tensor:
    """The outcomes [n], as each end sees them."""
    told = np.concatenate([np.zeros(0, dtype=np.int8), *(one.astype(np.int8) for one in ended)])
    if reveal == "order":
        told = np.where(known.me[asked.rows] < known.other[asked.rows], told, -told)
    return torch.from_numpy(told).to(device)


def accepting(known: Known, asked: Asked, words: Ints, bits: int, temperature: float) -> list[Party[bool]]:
    """A party for every row; who asks has the old number."""
    first = known.me[asked.rows] < known.other[asked.rows]
    old_is_first = (words >> _ASKER).astype(bool) == first
    return [
        acceptance.accept(known.sessions[row], number, bits, old_is_first=of_first, temperature=temperature)
        for row, number, of_first in zip(
            asked.rows.tolist(), (words & _NUMBER).tolist(), old_is_first.tolist(), strict=True
        )
    ]


def opened_bits(ended: list[bool], device: str) -> Tensor:
    return torch.tensor(ended, dtype=torch.int8, device=device)

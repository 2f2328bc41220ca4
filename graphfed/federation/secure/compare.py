"""Comparisons between the two clients of pairs, of numbers that neither shows the other.

    compare_pairs         whose number is larger: the millionaires' protocol of `graphfed.crypto.compare`
    at_most_pairs         whether a new number is accepted in place of an old one: `graphfed.crypto.accept`

The ledger records, from clients to clients,

    NAME/compare          the comparisons
    NAME/accept           the acceptances

and the set-up of the pairs' sessions (`pair_protocols`). If protocols are real, the two clients run two-party
protocols. If they are simulated, the two clients send each other their numbers, all pairs at once; the
outcomes of comparisons and the bytes on the ledger are the same, under the protection `simulated`.

Each client learns the outcome, and what follows from the outcome and its own number. A client that compares
many changing numbers with the same number narrows that number down; a method states how often it compares.
Both clients follow the protocol (semi-honest).
"""

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
from graphfed.federation.secure.pair_protocols import make_links, open_sessions, record_traffic, run_selected
from graphfed.federation.secure.pairs import Ints, KnownPairs, Pairs, SelectedPairs, select_pairs
from graphfed.federation.values import Located
from graphfed.random import uniform

Reveal = Literal["order", "greater"]
#: How the ledger records what the protocols send.
PROTECTION = "encrypted"


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
    """Compare the numbers of the two clients of some pairs. Both learn the outcome, and nothing else of the
    other number.

    Args:
        numbers: [n_h] int64 at the clients, from 0, of at most `bits` bits.
        which: [n_h] int64, positions of the pairs in the rows, ascending.
        bits: From 1 to 32.
        reveal: With "order" each client learns -1, 0 or 1: its number is less, equal or greater. With
            "greater" both learn one bit: 1 if the number of the client that asks is greater.
        asker: [n_h] bool, whether the row's client asks; for "greater" only.

    Returns:
        [n_h] int8 at the clients, the outcomes.

    Raises:
        InputError: For a number that does not fit, or bits out of 1..32; if protocols are real, also without
            the extra `secure`.
    """
    if reveal not in ("order", "greater") or (reveal == "greater") != (asker is not None):
        raise PlaceError(
            f"{name!r}: reveal must be 'order' without askers, or 'greater' with askers; got {reveal!r} "
            f"{'without' if asker is None else 'with'} askers"
        )
    if not 1 <= bits <= MAX_BITS:
        raise InputError(f"numbers of {bits} bits cannot be compared; use 1 to {MAX_BITS}")
    known, device = pairs.at_clients, str(fed.device)
    selected = fed.clients.run(select_pairs, known, which)
    # The number and, above it, whether the client asks, so that both travel and are checked as one word.
    words = fed.clients.run(encode_operands, known, selected, numbers, asker, bits)
    open_sessions(fed, pairs, selected)
    hidden = fed.protection_of(PROTECTION)
    if not fed.simulated:
        parties = fed.clients.run(make_comparisons, known, selected, words, bits, reveal)
        ended = run_selected(fed, pairs, selected, parties, f"{name}/compare", hidden)
        return fed.clients.run(decode_outcomes, known, selected, ended, reveal, device)
    opening = bytes_of_opening(1) if reveal == "order" else bytes_of_opening_less(1)
    # Simulated: the two clients send plain words, but the ledger counts what the real protocol sends.
    costs = tuple(size + opening for size in bytes_of_comparison(1, bits))
    seen = fed.run_worker_protocols(fed.clients.run(share_words, selected, words), name=f"{name}/compare")
    found = fed.clients.run(compare_shown, selected, words, seen, reveal, device)
    record_traffic(fed, fed.clients.run(make_links, known, selected, *costs), f"{name}/compare", hidden)
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
    """Accept a new number in place of an old one with the Metropolis probability.

    The probability is min(1, exp(-(new - old) / temperature)). Both clients of each pair learn whether the
    new number is accepted, and neither the other number, nor the difference, nor the draw
    (`graphfed.crypto.accept`). If protocols are real, the draw comes from the operating system's entropy at
    both clients. If they are simulated, it is keyed by `seed` and the pair's clients. Both accept with the
    same probability, but not the same numbers.

    Args:
        numbers: [n_h] int64 at the clients, from 0, of at most `bits` bits.
        which: [n_h] int64, positions of the pairs in the rows, ascending.
        bits: From 1 to 12.
        asker: [n_h] bool, whether the row's client has the old number.
        seed: A different seed for every call.

    Returns:
        [n_h] int8 at the clients, 1 if the new number is accepted.

    Raises:
        InputError: For a number that does not fit, or a temperature that is not finite and above 0.
    """
    if not 1 <= bits <= acceptance.MAX_BITS:
        raise InputError(f"an acceptance takes numbers of 1 to {acceptance.MAX_BITS} bits; got {bits}")
    # Refuse a bad temperature before anything is sent.
    acceptance.thresholds(np.zeros(0, dtype=np.int64), temperature)
    known, device = pairs.at_clients, str(fed.device)
    selected = fed.clients.run(select_pairs, known, which)
    words = fed.clients.run(encode_operands, known, selected, numbers, asker, bits)
    open_sessions(fed, pairs, selected)
    hidden = fed.protection_of(PROTECTION)
    if not fed.simulated:
        parties = fed.clients.run(make_acceptances, known, selected, words, bits, temperature)
        ended = run_selected(fed, pairs, selected, parties, f"{name}/accept", hidden)
        return fed.clients.run(decode_bits, ended, device)
    seen = fed.run_worker_protocols(fed.clients.run(share_words, selected, words), name=f"{name}/accept")
    found = fed.clients.run(accept_shown, known, selected, words, seen, temperature, seed, device)
    costs = acceptance.bytes_of_accept(bits)
    record_traffic(fed, fed.clients.run(make_links, known, selected, *costs), f"{name}/accept", hidden)
    return found


# ---- at the clients ----------------------------------------------------------------------------------------

#: The bit of a word, above the number, that tells whether the client asks.
_ASKER = np.int64(MAX_BITS)
_NUMBER = np.int64(2**MAX_BITS - 1)


def encode_operands(
    known: KnownPairs, selected: SelectedPairs, numbers: Tensor, asker: Tensor | None, bits: int
) -> Ints:
    """Make the words to compare, [n] int64: the number, and whether the client asks."""
    words: Ints = numbers.cpu().numpy()
    if words.shape != selected.rows.shape or words.dtype != np.int64:
        raise PlaceError(
            f"numbers to compare are int64 [{len(selected.rows)}], one a pair; got {words.dtype} "
            f"{list(words.shape)}"
        )
    if len(words) and (words.min() < 0 or int(words.max()) >> bits):
        worst = int(np.argmax(np.where(words < 0, np.iinfo(np.int64).max, words)))
        client = known.client[selected.rows[worst]]
        fault = "is negative" if words[worst] < 0 else f"takes {int(words[worst]).bit_length()} bits"
        raise InputError(
            f"client {client} has a number that {fault}, but numbers to compare must be from 0 and have at "
            f"most {bits} bits; use more bits (at most {MAX_BITS})"
        )
    if asker is None:
        return words
    asks = asker.cpu().numpy()
    if asks.shape != words.shape or asks.dtype != bool:
        raise PlaceError(f"askers are bool [{len(words)}], one a pair; got {asks.dtype} {list(asks.shape)}")
    return words | asks.astype(np.int64) << _ASKER


def share_words(selected: SelectedPairs, words: Ints) -> dict[int, Party[Ints]]:
    """Simulated: send the words to each other worker."""
    return {b: _swap(words[places]) for b, places in selected.remote.items()}


def _swap(local: Ints) -> Party[Ints]:
    yield local.tobytes()
    message = yield None
    if len(message) != local.nbytes:
        raise ProtocolError(
            f"a worker sent {len(message)} bytes of numbers where {local.nbytes} are expected: it has "
            "selected other pairs"
        )
    return np.frombuffer(message, dtype=np.int64)


def compare_shown(
    selected: SelectedPairs, local: Ints, seen: dict[int, Ints], reveal: Reveal, device: str
) -> Tensor:
    """Simulated: compute the outcomes [n] from the words of both clients."""
    if reveal == "order":
        outcomes = np.sign(local - _remote_words(selected, local, seen))
    else:
        asking, other = _by_asker(selected, local, seen)
        outcomes = asking > other
    return torch.from_numpy(outcomes.astype(np.int8)).to(device)


def accept_shown(
    known: KnownPairs,
    selected: SelectedPairs,
    local: Ints,
    seen: dict[int, Ints],
    temperature: float,
    seed: int,
    device: str,
) -> Tensor:
    """Simulated: decide for each pair by a keyed draw whether the new number is accepted, [n]."""
    old, new = _by_asker(selected, local, seen)
    me, other = known.client[selected.rows], known.other[selected.rows]
    pair = torch.from_numpy(np.minimum(me, other) * known.num_clients + np.maximum(me, other))
    # The draw of a pair is keyed by both clients in one order, so both workers get the same.
    draws = np.floor(acceptance.DRAWS * uniform(seed, pair)[:, 0].numpy())
    accepted = draws < acceptance.thresholds(new - old, temperature)
    return torch.from_numpy(accepted.astype(np.int8)).to(device)


def _remote_words(selected: SelectedPairs, local: Ints, seen: dict[int, Ints]) -> Ints:
    """The words of the other clients, [n]."""
    # [n]: the other row of a pair inside this worker. Where there is none, -1 reads any word, which is
    # replaced by the one that arrived.
    remote = local[selected.local]
    for b, words in seen.items():
        remote[selected.remote[b]] = words
    return remote


def _by_asker(selected: SelectedPairs, local: Ints, seen: dict[int, Ints]) -> tuple[Ints, Ints]:
    """The numbers [n] of the clients that ask, and of the others."""
    remote = _remote_words(selected, local, seen)
    asks = (local >> _ASKER).astype(bool)
    if not np.array_equal(asks, remote >> _ASKER == 0):
        raise PlaceError("exactly one client of each pair that compares must ask; check the askers")
    local_number, remote_number = local & _NUMBER, remote & _NUMBER
    return np.where(asks, local_number, remote_number), np.where(asks, remote_number, local_number)


def make_comparisons(
    known: KnownPairs, selected: SelectedPairs, words: Ints, bits: int, reveal: Reveal
) -> list[Party[NDArray[Any]]]:
    """Make a party for every row.

    The protocol for "greater" opens whether the first party's number is less. If the first party asks, both
    parties take the complement of their numbers, which reverses the order.
    """
    numbers = words & _NUMBER
    if reveal == "greater":
        first = known.client[selected.rows] < known.other[selected.rows]
        # `turned` is the same at both clients of a pair: true if the first party asks.
        turned = (words >> _ASKER).astype(bool) == first
        numbers = np.where(turned, 2**bits - 1 - numbers, numbers)
    ask = compare if reveal == "order" else is_less
    sessions = [known.sessions[row] for row in selected.rows.tolist()]
    single = numbers.astype(np.uint32).reshape(-1, 1)
    return [ask(session, number, bits) for session, number in zip(sessions, single, strict=True)]


def decode_outcomes(
    known: KnownPairs, selected: SelectedPairs, ended: list[NDArray[Any]], reveal: Reveal, device: str
) -> Tensor:
    """Convert the opened results to the outcomes [n] as each client sees them."""
    found = np.concatenate([np.zeros(0, dtype=np.int8), *(one.astype(np.int8) for one in ended)])
    if reveal == "order":
        found = np.where(known.client[selected.rows] < known.other[selected.rows], found, -found)
    return torch.from_numpy(found).to(device)


def make_acceptances(
    known: KnownPairs, selected: SelectedPairs, words: Ints, bits: int, temperature: float
) -> list[Party[bool]]:
    """Make a party for every row. The client that asks has the old number."""
    first = known.client[selected.rows] < known.other[selected.rows]
    old_is_first = (words >> _ASKER).astype(bool) == first
    return [
        acceptance.accept(known.sessions[row], number, bits, old_is_first=of_first, temperature=temperature)
        for row, number, of_first in zip(
            selected.rows.tolist(), (words & _NUMBER).tolist(), old_is_first.tolist(), strict=True
        )
    ]


def decode_bits(ended: list[bool], device: str) -> Tensor:
    return torch.tensor(ended, dtype=torch.int8, device=device)

"""Acceptance by two parties: what it opens, how often, what it costs, and what its messages say."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography", reason="secure protocols need the extra 'secure'")

from graphfed.crypto import accept as acceptance
from graphfed.crypto.accept import DRAWS, accept, bytes_of_accept, thresholds
from graphfed.crypto.ot import TwoParty, choose_word, offer_words
from graphfed.crypto.session import Party, run_both
from graphfed.errors import InputError

Numbers = list[tuple[int, int]]


def accepting(first: bool, numbers: Numbers, terms: dict[str, Any]) -> Party[tuple[list[bool], int]]:
    """One acceptance after the other in one session, and the bytes sent in them."""
    session = yield from TwoParty(first=first).set_up()
    before, bits = session.sent, []
    for pair in numbers:
        bits.append((yield from accept(session, pair[not first], **terms)))
    return bits, session.sent - before


def accepted(numbers: Numbers, **terms: Any) -> tuple[list[bool], tuple[int, int]]:
    """What both learnt of (first's, second's) numbers, and what each sent."""
    one, other = run_both(*(accepting(first, numbers, terms) for first in (True, False)))
    assert one.result[0] == other.result[0]
    return one.result[0], (one.result[1], other.result[1])


@pytest.mark.parametrize("old_is_first", [True, False])
def test_a_number_is_accepted_exactly_where_the_draw_of_both_is_below_its_threshold(
    old_is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At draws next to every border of the three signs, for all pairs of 2-bit numbers."""
    cases = []
    for x, y in product(range(4), repeat=2):
        t = int(thresholds(np.array(y - x if old_is_first else x - y), 1.5))
        for total in (0, t - 1, t, DRAWS - 1, DRAWS, DRAWS + t - 1, DRAWS + t, 2 * DRAWS - 2):
            first = min(max(total - DRAWS // 3, 0), DRAWS - 1)
            if 0 <= total - first < DRAWS:
                cases.append((x, y, first, total - first, t))
    assert len(cases) > 100
    draws = iter([d for case in cases for d in case[2:4]])
    monkeypatch.setattr(acceptance, "_draw_below", lambda _: next(draws))
    numbers = [case[:2] for case in cases]
    learnt, _ = accepted(numbers, bits=2, old_is_first=old_is_first, temperature=1.5)
    assert learnt == [(one + other) % DRAWS < t for _, _, one, other, t in cases]


@pytest.mark.parametrize(("difference", "temperature"), [(1, 1.0), (3, 2.0)])
def test_a_larger_number_is_accepted_as_often_as_metropolis_says(difference: int, temperature: float) -> None:
    """False alarm: 1e-6."""
    count = 400
    learnt, _ = accepted([(7, 7 + difference)] * count, bits=4, old_is_first=True, temperature=temperature)
    p = math.exp(-difference / temperature)
    assert stats.binomtest(sum(learnt), count, p).pvalue > 1e-6


def test_a_number_that_is_no_larger_is_always_accepted_and_one_far_larger_never() -> None:
    numbers = [(5, 5), (9, 2), (1023, 0), (0, 1023)]
    assert accepted(numbers, bits=10, old_is_first=True, temperature=1.0)[0] == [True, True, True, False]
    assert accepted(numbers, bits=10, old_is_first=False, temperature=1.0)[0] == [True, False, False, True]


@pytest.mark.parametrize("bits", [1, 4, 9, 12])
def test_it_costs_the_bytes_that_are_predicted(bits: int) -> None:
    _, cost = accepted([(1, 0), (0, 1)], bits=bits, old_is_first=True, temperature=1.0)
    assert cost == tuple(2 * size for size in bytes_of_accept(bits))


def transferring(first: bool, words: np.ndarray, choices: list[int], w: int) -> Party[list[int]]:
    session = yield from TwoParty(first=first).set_up()
    got = []
    for choice in choices:
        if first:
            yield from offer_words(session, words)
        else:
            got.append(int((yield from choose_word(session, choice, w))[0]))
    return got


@pytest.mark.parametrize("w", [1, 3, 8])
def test_the_chosen_word_arrives_and_no_other_can_be_read(w: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent of the others, with the sender's words all zero, is their pads: all different, and none
    the same in two transfers."""
    words = np.arange(2**w, dtype=np.uint32) * np.uint32(2654435761)
    choices = list(range(2**w))
    _, other = run_both(*(transferring(first, words, choices, w) for first in (True, False)))
    assert other.result == words.tolist()
    sent: list[int] = []

    def spied(first: bool) -> Party[list[int]]:
        session = yield from TwoParty(first=first).set_up()
        for _ in range(2):
            if first:
                yield from offer_words(session, 0 * words)
                continue
            whole = session.receive

            def receive(step: str, size: int, whole: Any = whole) -> Party[Any]:
                message = yield from whole(step, size)
                if step == "words":
                    sent.extend(np.frombuffer(message.tobytes(), dtype=np.uint32).tolist())
                return message

            session.receive = receive  # type: ignore[method-assign]
            yield from choose_word(session, 0, w)
            session.receive = whole  # type: ignore[method-assign]
        return []

    run_both(spied(True), spied(False))
    assert len(sent) == len({*sent}) == 2 * 2**w


@pytest.mark.parametrize("difference", [-3, 0, 2, 15])
@pytest.mark.sampled(3)
def test_the_share_of_the_threshold_that_the_second_takes_is_uniform_whatever_it_is(
    difference: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """False alarm: 1e-6 each."""
    taken: list[np.ndarray] = []

    def taking(session: TwoParty, choice: int, w: int) -> Party[Any]:
        word = yield from choose_word(session, choice, w)
        taken.append(word)
        return word

    monkeypatch.setattr(acceptance, "choose_word", taking)
    accepted([(10, 10 + difference)] * 300, bits=5, old_is_first=True, temperature=1.0)
    counts = np.bincount(np.concatenate(taken).view(np.uint8) >> 4, minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_the_bit_that_each_shows_says_nothing_by_itself() -> None:
    """The first sends 0 as often as 1, where the number is always accepted. False alarm: 1e-6."""
    shown: list[int] = []

    def spied(first: bool) -> Party[None]:
        session = yield from TwoParty(first=first).set_up()
        swap = session.swap

        def spy(step: str, bit: Any) -> Party[Any]:
            if first and step == "accepted":
                shown.append(int(bit[0]))
            return (yield from swap(step, bit))

        session.swap = spy  # type: ignore[method-assign,assignment]
        for _ in range(200):
            yield from accept(session, 3, 3, old_is_first=True, temperature=1.0)

    run_both(spied(True), spied(False))
    assert stats.binomtest(sum(shown), 200).pvalue > 1e-6


@pytest.mark.parametrize(
    ("number", "bits", "temperature", "message"),
    [
        (8, 3, 1.0, "at most 3 of at most 12 bits"),
        (0, 13, 1.0, "at most 13 of at most 12 bits"),
        (-1, 3, 1.0, "at most 3"),
        (0, 3, 0.0, "finite and above 0; got 0"),
        (0, 3, math.inf, "got inf"),
        (0, 3, math.nan, "got nan"),
    ],
)
def test_what_cannot_be_accepted_is_refused(number: int, bits: int, temperature: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        accepted([(number, 0)], bits=bits, old_is_first=True, temperature=temperature)

"""What the two-party protocols promise: outcomes, bytes, what the messages say, and what happens to a party
whose other does not keep to the protocol."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

pytest.importorskip("cryptography", reason="secure protocols need the extra 'secure'")

from graphfed.crypto import compare as comparison
from graphfed.crypto import ot, pairwise, ring
from graphfed.crypto.compare import (
    bytes_of_comparison,
    bytes_of_opening,
    bytes_of_opening_less,
    compare,
    compare_shared,
    is_less,
)
from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.ot import TwoParty, bytes_of_set_up
from graphfed.crypto.session import TAG_BYTES, Ended, Party, Session, Simulated, bundled, run_both, run_one
from graphfed.errors import InputError

Use = Callable[[TwoParty], Party[Any]]


def session_of(first: bool, use: Use, both_ways: bool = False) -> Party[tuple[Any, tuple[int, int]]]:
    """Set up, use, and say what the use sent and received."""
    session = yield from TwoParty(first=first, both_ways=both_ways).set_up()
    before = session.sent, session.received
    result = yield from use(session)
    return result, (session.sent - before[0], session.received - before[1])


def together(first: Use, second: Use, both_ways: bool = False) -> tuple[Any, Any, tuple[int, int]]:
    """The results of both, and the bytes of the first and of the second."""
    one, other = run_both(session_of(True, first, both_ways), session_of(False, second, both_ways))
    (local, (sent, received)), (remote, seen) = one.result, other.result
    assert seen == (received, sent)
    return local, remote, (sent, received)


def u32(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int64).astype(np.uint32)


def shares_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng().integers(0, 2**32, values.shape, dtype=np.uint64).astype(np.uint32)
    return values - drawn, drawn


# ---- outcomes and bytes ------------------------------------------------------------------------------------

PAIRS = st.integers(1, 32).flatmap(
    lambda bits: st.tuples(
        st.just(bits), st.lists(st.tuples(*[st.integers(0, 2**bits - 1)] * 2), max_size=40)
    )
)


@settings(max_examples=40)
@given(case=PAIRS)
def test_numbers_of_any_width_compare_as_numbers_do_at_the_bytes_that_are_predicted(case: Any) -> None:
    bits, pairs = case
    x, y = u32([a for a, _ in pairs]), u32([b for _, b in pairs])
    local, remote, cost = together(lambda s: compare(s, x, bits), lambda s: compare(s, y, bits))
    assert local.tolist() == remote.tolist() == [(a > b) - (a < b) for a, b in pairs]
    opening = bytes_of_opening(len(pairs))
    assert cost == tuple(size + opening for size in bytes_of_comparison(len(pairs), bits))


@settings(max_examples=25)
@given(case=PAIRS)
def test_only_less_is_opened_at_half_the_bits_of_the_opening(case: Any) -> None:
    bits, pairs = case
    x, y = u32([a for a, _ in pairs]), u32([b for _, b in pairs])
    local, remote, cost = together(lambda s: is_less(s, x, bits), lambda s: is_less(s, y, bits))
    assert local.tolist() == remote.tolist() == [a < b for a, b in pairs]
    opening = bytes_of_opening_less(len(pairs))
    assert opening == TAG_BYTES + math.ceil(len(pairs) / 8)
    assert cost == tuple(size + opening for size in bytes_of_comparison(len(pairs), bits))


def test_every_pair_of_up_to_6_bits_compares_as_numbers_do() -> None:
    for bits in range(1, 7):
        x, y = (numbers.ravel() for numbers in np.meshgrid(*[np.arange(2**bits, dtype=np.uint32)] * 2))
        local, remote, _ = together(
            lambda s, x=x, b=bits: compare(s, x, b), lambda s, y=y, b=bits: compare(s, y, b)
        )
        assert local.tolist() == remote.tolist() == np.sign(x.astype(int) - y).tolist()


def test_a_session_compares_again_and_again_and_in_more_than_one_wave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "BLOCK", 7)
    monkeypatch.setattr(comparison, "BLOCKS", 3)
    draw = np.random.default_rng(0)
    batches = [(u32(draw.integers(0, 2**k, (2, n))), k) for k, n in ((8, 100), (3, 1), (12, 21), (8, 0))]

    def all_of(side: int) -> Use:
        def use(session: TwoParty) -> Party[list[list[int]]]:
            found = []
            for numbers, bits in batches:
                found.append((yield from compare(session, numbers[side], bits)).tolist())
            return found

        return use

    local, remote, cost = together(all_of(0), all_of(1))
    assert local == remote == [np.sign(n[0].astype(int) - n[1]).tolist() for n, _ in batches]
    predicted = [bytes_of_comparison(n.shape[1], bits) for n, bits in batches]
    opened = sum(bytes_of_opening(n.shape[1]) for n, _ in batches)
    assert cost == (sum(t[0] for t in predicted) + opened, sum(t[1] for t in predicted) + opened)


@pytest.mark.parametrize("both_ways", [False, True])
def test_setting_up_a_session_costs_what_is_predicted(both_ways: bool) -> None:
    one, other = run_both(*(TwoParty(first=f, both_ways=both_ways).set_up() for f in (True, False)))
    assert (one.sent, one.received) == (other.received, other.sent) == bytes_of_set_up(both_ways=both_ways)


def test_an_8_bit_comparison_in_a_batch_takes_at_most_190_bytes() -> None:
    count = 1000
    assert (sum(bytes_of_comparison(count, 8)) + 2 * bytes_of_opening(count)) / count <= 190


@settings(max_examples=25)
@given(values=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=30), wide=st.booleans())
def test_signs_and_products_of_shared_numbers_are_those_of_the_numbers(values: list[int], wide: bool) -> None:
    d = u32(values)
    d0, d1 = shares_of(d)
    big = np.arange(1, len(d) + 1, dtype=np.uint64 if wide else np.uint32) * (2**40 + 3 if wide else 77)

    def use(share: np.ndarray, multiplied: np.ndarray) -> Use:
        def work(session: TwoParty) -> Party[Any]:
            sign = yield from ring.nonnegative(session, share)
            kept = yield from ring.select(session, sign, share)
            of_first = yield from ring.select(session, sign, multiplied, of_first=True)
            return sign, kept, of_first

        return work

    one, other, cost = together(use(d0, big), use(d1, 0 * big), both_ways=True)
    nonnegative = np.array(values) >= 0
    assert ((one[0] ^ other[0]) == nonnegative).all()
    assert ((one[1] + other[1]) == d * nonnegative).all()
    assert ((one[2] + other[2]) == big * nonnegative).all()
    n, size = len(d), big.itemsize
    predicted = ring.bytes_of_nonnegative(n), ring.bytes_of_select(n, 4)
    predicted += (ring.bytes_of_select(n, size, of_first=True),)
    assert cost == tuple(sum(t[i] for t in predicted) for i in (0, 1))


@settings(max_examples=25)
@given(pairs=st.lists(st.tuples(*[st.integers(-(2**29), 2**29)] * 2), max_size=20))
def test_a_difference_is_opened(pairs: list[tuple[int, int]]) -> None:
    a, b = u32([x for x, _ in pairs]), u32([y for _, y in pairs])
    one, other, cost = together(lambda s: ring.subtract(s, a), lambda s: ring.subtract(s, b))
    assert one.tolist() == other.tolist() == [x - y for x, y in pairs]
    assert cost == (TAG_BYTES + 4 * len(a),) * 2


@pytest.mark.parametrize("of_first", [False, True])
def test_products_in_more_than_one_message_and_wave_cost_what_is_predicted(
    of_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "BLOCK", 7)
    monkeypatch.setattr(ring, "BLOCKS", 2)
    count = 31  # waves of 14, 14 and 3; the blocks of a wave are of 7, or of what is left
    bits = np.arange(count, dtype=np.uint8) % 2
    numbers = np.arange(count, dtype=np.uint32) + 5
    one, other, cost = together(
        lambda s: ring.select(s, bits, numbers, of_first=of_first),
        lambda s: ring.select(s, 0 * bits, 0 * numbers, of_first=of_first),
        both_ways=True,
    )
    assert ((one + other) == bits * numbers).all()
    assert cost == ring.bytes_of_select(count, 4, of_first=of_first)


@pytest.mark.parametrize(
    ("number", "bits", "message"), [(256, 8, "256 needs more than 8 bits"), (1, 33, "33 bits")]
)
def test_a_number_that_does_not_fit_is_refused(number: int, bits: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        together(lambda s: compare(s, u32([number]), bits), lambda s: compare(s, u32([0]), bits))


# ---- the simulation ----------------------------------------------------------------------------------------


def every_block(session: TwoParty | Simulated, side: int, seed: int, count: int) -> Party[dict[str, Any]]:
    """What each block gives: opened outcomes, and shares to be put together."""
    draw = np.random.default_rng(seed)
    small = draw.integers(0, 2**10, (2, count)).astype(np.uint32)[side]
    shares = draw.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32)[side]
    wide = draw.integers(0, 2**63, (2, count), dtype=np.int64).astype(np.uint64)[side]
    bits = draw.integers(0, 2, (2, count)).astype(np.uint8)[side]
    return {
        "compared": (yield from compare(session, small, 10)),
        "less": (yield from is_less(session, small, 10)),
        "compared, shared ^": (yield from compare_shared(session, small, 10)),
        "difference": (yield from ring.subtract(session, small)),
        "sign ^": (yield from ring.nonnegative(session, shares)),
        "product +": (yield from ring.select(session, bits, wide)),
        "product of the first's +": (
            yield from ring.select(session, bits, wide * (side == 0), of_first=True)
        ),
    }


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), count=st.integers(0, 30))
def test_every_block_gives_the_same_and_costs_the_same_to_the_byte_when_it_is_simulated(
    seed: int, count: int
) -> None:
    def real(side: int) -> Party[Any]:
        session = yield from TwoParty(first=side == 0, both_ways=True).set_up()
        return (yield from every_block(session, side, seed, count))

    def ideal(side: int) -> Party[Any]:
        return every_block(Simulated(side == 0), side, seed, count)

    (local, remote), (shown, other) = run_both(real(0), real(1)), run_both(ideal(0), ideal(1))
    first, second = bytes_of_set_up(both_ways=True)
    assert (local.sent - first, local.received - second) == (shown.sent, shown.received)
    assert (other.sent, other.received) == (shown.received, shown.sent)
    join = {"^": np.bitwise_xor, "+": np.add}
    for name in local.result:
        pairs = [(local.result[name], remote.result[name]), (shown.result[name], other.result[name])]
        if name[-1] in join:
            assert np.array_equal(*(join[name[-1]](a, b) for a, b in pairs)), name
        else:
            assert all(np.array_equal(x, pairs[0][0]) for pair in pairs for x in pair), name


def test_simulated_parties_that_show_arrays_of_other_sizes_are_refused() -> None:
    numbers = [np.zeros(n, dtype=np.uint32) for n in (3, 4)]
    with pytest.raises(ProtocolError, match="the other simulated party sent"):
        run_both(*(compare(Simulated(s == 0), numbers[s], 8) for s in (0, 1)))


# ---- what the messages say ---------------------------------------------------------------------------------


def learnt_by_the_second(
    x: int, y: int, bits: int, monkeypatch: pytest.MonkeyPatch, opened: int = 3
) -> Counter[tuple[int, ...]]:
    """What the second party reads in a comparison and its opening, over all coins of the first. opened: the
    bits of the first's shares that it sends in the end."""
    digits = -(-bits // 4)
    choices = 2 * digits - 1  # of two bits: one for each digit, one for each join
    coins = np.array(list(product(range(4), repeat=choices)), dtype=np.uint8)
    place, read = 0, []

    def drawn(shape: tuple[int, int]) -> np.ndarray:
        nonlocal place
        place += shape[1]
        return coins[:, place - shape[1] : place]

    def take(session: TwoParty, asked: Any) -> Party[Any]:
        taken = yield from ot.take(session, asked)
        read.extend(two.reshape(len(coins), -1) for two in taken)
        return taken

    with monkeypatch.context() as patched:
        patched.setattr(comparison, "BLOCK", len(coins))
        patched.setattr(comparison, "_draw_masks", drawn)
        patched.setattr(comparison, "take", take)
        outcome = together(*(
            lambda s, n=n: compare_shared(s, np.full(len(coins), n, dtype=np.uint32), bits) for n in (x, y)
        ))[0]  # fmt: skip
    return Counter(map(tuple, np.concatenate([*read, outcome[:, None] & opened], axis=1).tolist()))


@pytest.mark.parametrize(("bits", "y", "alike"), [
    (4, 7, [(0, 3, 6), (7,), (8, 15)]),
    (8, 0x5A, [(0, 0x10, 0x4F, 0x51, 0x59), (0x5A,), (0x5B, 0x60, 0xA5, 0xFF)]),
])  # fmt: skip
def test_what_the_second_reads_is_the_same_for_all_numbers_of_the_first_with_one_outcome(
    bits: int, y: int, alike: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the first's coins: so it follows from the outcome, and who simulates it needs no more."""
    views = [[learnt_by_the_second(x, y, bits, monkeypatch) for x in xs] for xs in alike]
    for view in views:
        assert all(other == view[0] for other in view)
    assert views[0][0] != views[1][0] != views[2][0]


@pytest.mark.parametrize(("bits", "y", "less", "not_less"), [(4, 7, (0, 6), (7, 8, 15)),
    (8, 0x5A, (0, 0x4F, 0x59), (0x5A, 0x5B, 0xA5, 0xFF))])  # fmt: skip
def test_where_only_less_is_opened_equal_numbers_read_as_greater_ones_do(
    bits: int, y: int, less: tuple[int, ...], not_less: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the first's coins: of the two that are not less, nobody can say which is equal."""
    views = [
        [learnt_by_the_second(x, y, bits, monkeypatch, comparison.LESS) for x in xs]
        for xs in (less, not_less)
    ]
    for view in views:
        assert all(other == view[0] for other in view)
    assert views[0][0] != views[1][0]


def test_the_opening_of_less_sends_no_share_of_equal() -> None:
    """What each sends is the first bit of its shares, whatever the second is."""
    count = 100
    shares = np.random.default_rng(0).integers(0, 4, count).astype(np.uint8)
    for first in (True, False):
        messages = []
        for changed in (shares, shares ^ comparison.EQUAL):
            session = Session(first=first)
            messages.append(next(comparison.open_less(session, changed)))  # type: ignore[arg-type]
        assert messages[0] == messages[1]
        assert len(messages[0]) == bytes_of_opening_less(count)


def received(use: tuple[Use, Use], side: int, step: str) -> np.ndarray:
    """The bytes of all messages of a step that a party gets."""
    got: list[np.ndarray] = []

    def spied(first: bool) -> Party[Any]:
        session = TwoParty(first=first, both_ways=True)
        if (side == 0) == first:
            whole = session.receive

            def receive(name: str, size: int) -> Party[Any]:
                message = yield from whole(name, size)
                if name == step:
                    got.append(message)
                return message

            session.receive = receive  # type: ignore[method-assign]
        yield from session.set_up()
        return (yield from use[not first](session))

    run_both(spied(True), spied(False))
    return np.concatenate(got)


def looks_uniform(drawn: np.ndarray, values: int = 256) -> bool:
    return bool(stats.chisquare(np.bincount(drawn, minlength=values)).pvalue > 1e-6)


@pytest.mark.parametrize("number", [0, 0xFF])
def test_the_choices_of_a_receiver_look_uniform_to_the_sender_whatever_they_are(number: int) -> None:
    same = np.full(1000, number, dtype=np.uint32)
    uses = (lambda s: compare_shared(s, same, 8), lambda s: compare_shared(s, same, 8))
    assert looks_uniform(received(uses, 0, "columns"))


def test_the_messages_that_a_receiver_did_not_choose_look_uniform_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the sender's own coins held still: of 16 messages of two bits, the 15 that the receiver has no
    keys of."""
    monkeypatch.setattr(comparison, "_draw_masks", lambda shape: np.zeros(shape, dtype=np.uint8))
    same, zero = np.full(4000, 9, dtype=np.uint32), np.zeros(4000, dtype=np.uint32)
    uses = (lambda s: compare_shared(s, same, 4), lambda s: compare_shared(s, zero, 4))
    words = np.frombuffer(received(uses, 1, "messages").tobytes(), dtype=np.uint32)
    for message in range(1, 16):
        assert looks_uniform((words >> np.uint32(2 * message)) & 3, 4)


@pytest.mark.parametrize(("x", "y"), [(3, 3), (0, 255), (200, 100)])
def test_each_partys_shares_of_an_outcome_are_uniform_by_themselves(x: int, y: int) -> None:
    count = 20_000
    one, other, _ = together(
        lambda s: compare_shared(s, np.full(count, x, dtype=np.uint32), 8),
        lambda s: compare_shared(s, np.full(count, y, dtype=np.uint32), 8),
    )
    assert looks_uniform(one, 4)
    assert looks_uniform(other, 4)
    assert set((one ^ other).tolist()) == {1 * (x < y) + 2 * (x == y)}


def test_each_partys_shares_of_a_product_are_uniform_by_themselves() -> None:
    count = 20_000
    bit, number = np.ones(count, dtype=np.uint8), np.full(count, 12345, dtype=np.uint32)
    one, other, _ = together(
        lambda s: ring.select(s, bit, number), lambda s: ring.select(s, 0 * bit, 0 * number), both_ways=True
    )
    assert set((one + other).tolist()) == {12345}
    for share in (one, other):
        assert looks_uniform(share.view(np.uint8))


def test_two_sessions_have_nothing_in_common() -> None:
    """Not the id, not a point, not a column: fresh secrets every time."""
    zero = np.zeros(100, dtype=np.uint32)
    uses = (lambda s: compare_shared(s, zero, 8), lambda s: compare_shared(s, zero, 8))
    for side, step, size in ((0, "columns", 64), (0, "point", 65), (1, "points", 65)):
        one, other = (received(uses, side, step) for _ in range(2))
        assert not {one[i : i + size].tobytes() for i in range(0, len(one), size)} & {
            other[i : i + size].tobytes() for i in range(0, len(other), size)
        }


def test_parties_in_threads_of_one_process_hash_at_the_same_time() -> None:
    """Large enough that the cipher releases the interpreter's lock while it works."""
    blocks = memoryview(bytes(1 << 20))
    with ThreadPoolExecutor(4) as threads:
        hashed = list(threads.map(lambda _: pairwise.permute_blocks(blocks), range(100)))
    assert set(hashed) == {pairwise.permute_blocks(blocks)}


def test_a_session_never_uses_a_key_twice() -> None:
    """Equal choices in equal batches are asked for by other columns and hidden by other words."""
    zero = np.zeros(64, dtype=np.uint32)

    def twice(session: TwoParty) -> Party[None]:
        for _ in range(2):
            yield from compare_shared(session, zero, 4)

    for side, step in ((0, "columns"), (1, "messages")):
        got = received((twice, twice), side, step)
        assert not np.array_equal(got[: len(got) // 2], got[len(got) // 2 :])


# ---- who does not keep to the protocol ---------------------------------------------------------------------


def disturbed(party: Party[Any], number: int, change: Callable[[list[bytes]], list[bytes]]) -> Party[Any]:
    """The party, with what arrives from message `number` on put through `change`: it gets those so far."""
    out, so_far, waiting = next(party), [], []
    try:
        while True:
            if out is not None:
                yield out
                out = next(party)
                continue
            if not waiting:
                message = yield None
                so_far.append(message)
                waiting = change(so_far) if len(so_far) == number + 1 else [message]
            if waiting:
                out = party.send(waiting.pop(0))
    except StopIteration as ended:
        return ended.value


def some_comparing(first: bool) -> Party[Any]:
    session = yield from TwoParty(first=first, both_ways=True).set_up()
    numbers = np.arange(20, dtype=np.uint32)
    outcomes = yield from compare(session, numbers, 8)
    kept = yield from ring.select(session, np.ones(20, dtype=np.uint8), numbers)
    return outcomes, kept


MESSAGES = 7  # that each party gets in the above, at least

DISTURBANCES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "cut off": lambda got: [got[-1][:-1]],
    "empty": lambda _: [b""],
    "longer": lambda got: [got[-1] + b"x"],
    "another tag": lambda got: [bytes([got[-1][0] ^ 1]) + got[-1][1:]],
    "the one before, again": lambda got: [got[-2] if len(got) > 1 else b"first"],
    "left out": lambda _: [],
}


@pytest.mark.parametrize("number", range(MESSAGES))
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("what", DISTURBANCES)
@pytest.mark.sampled(5)
def test_a_message_that_is_not_the_expected_one_ends_the_session(what: str, side: int, number: int) -> None:
    """Left out, the next one comes in its place; after the last, both wait: an error too, and no hang."""
    parties = [some_comparing(True), some_comparing(False)]
    parties[side] = disturbed(parties[side], number, DISTURBANCES[what])
    with pytest.raises(ProtocolError):
        run_both(*parties)


@settings(max_examples=150)
@given(data=st.data(), side=st.integers(0, 1), number=st.integers(0, MESSAGES - 1))
def test_any_bytes_in_the_place_of_a_message_end_the_session_or_leave_a_result(
    data: st.DataObject, side: int, number: int
) -> None:
    """Bytes of the right length under the right tag are what only a party that does not keep to the protocol
    would send: no promise about the result, but no other error and no hang."""

    def change(got: list[bytes]) -> list[bytes]:
        body = bytearray(got[-1])
        for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
            body[place] = data.draw(st.integers(0, 255))
        return [bytes(body)]

    parties = [some_comparing(True), some_comparing(False)]
    parties[side] = disturbed(parties[side], number, change)
    with contextlib.suppress(ProtocolError):
        run_both(*parties)


@pytest.mark.parametrize("point", [bytes(65), b"\x04" + b"\xff" * 64, b"\x04" + b"\x01" * 64])
def test_what_is_no_point_of_the_curve_is_refused(point: bytes) -> None:
    for side, number, size in ((1, 1, 65), (0, 1, 65)):
        parties = [TwoParty(first=f).set_up() for f in (True, False)]

        def change(got: list[bytes], size: int = size) -> list[bytes]:
            return [got[-1][:TAG_BYTES] + point + got[-1][TAG_BYTES + size :]]

        parties[side] = disturbed(parties[side], number, change)
        with pytest.raises(ProtocolError, match="not a point of P-256"):
            run_both(*parties)


def test_a_session_that_failed_refuses_everything() -> None:
    session = Session(first=True)
    with pytest.raises(ProtocolError):
        run_one(session.receive("anything", 3), lambda _: None, lambda: b"nonsense")
    with pytest.raises(ProtocolError, match="this session is over"):
        next(session.send("anything", b"abc"))


@pytest.mark.parametrize("size", [2, 4])
def test_a_message_of_another_length_is_refused_with_both_lengths(size: int) -> None:
    (message,) = Session(first=False).send("step", bytes(size))
    with pytest.raises(ProtocolError, match=f"message 'step' has {size} bytes where 3 are expected"):
        run_one(Session(first=True).receive("step", 3), lambda _: None, lambda: message)


def test_transfers_before_the_set_up_of_a_session_are_refused() -> None:
    sender, receiver = TwoParty(first=True, both_ways=True).sender, TwoParty(first=False).receiver
    with pytest.raises(ProtocolError, match="run set_up first"):
        receiver.choose(np.ones(8, dtype=np.uint8))
    with pytest.raises(ProtocolError, match="run set_up first"):
        sender.keys(np.zeros((ot.COLUMNS, 1), dtype=np.uint8), 8)


def test_a_message_of_another_session_is_refused() -> None:
    """Recorded in one session and played in another, at the same place."""
    recorded: list[bytes] = []

    def keep(got: list[bytes]) -> list[bytes]:
        recorded.append(got[-1])
        return [got[-1]]

    run_both(disturbed(some_comparing(True), 3, keep), some_comparing(False))
    with pytest.raises(ProtocolError, match="another session"):
        run_both(disturbed(some_comparing(True), 3, lambda _: [recorded[0]]), some_comparing(False))


def test_a_partys_own_nonce_sent_back_to_it_is_refused() -> None:
    session, sent = Session(first=True), []

    def mirrored() -> bytes:
        return Session(first=False)._tag(False, "nonce") + sent[0][TAG_BYTES:]

    with pytest.raises(ProtocolError, match="own nonce back"):
        run_one(session.greet(), sent.append, mirrored)


# ---- many parties in one -----------------------------------------------------------------------------------


def comparing_once(first: bool, number: int, bits: int) -> Party[int]:
    session = yield from TwoParty(first=first).set_up()
    return int((yield from compare(session, u32([number]), bits))[0])


def counted(party: Party[Any], bundles: list[bytes]) -> Party[Any]:
    """The party, and every message that it sends."""
    try:
        out = next(party)
        while True:
            if out is not None:
                bundles.append(out)
            out = party.send((yield out))  # type: ignore[arg-type]
    except StopIteration as ended:
        return ended.value


NUMBERS = [(3, 5, 4), (7, 7, 8), (200, 1, 16), (0, 1, 1)]


def bundles_of(numbers: list[tuple[int, int, int]]) -> tuple[list[Ended[int]], list[list[bytes]]]:
    sent: list[list[bytes]] = [[], []]
    parties = [
        counted(bundled([comparing_once(f, pair[not f], pair[2]) for pair in numbers]), sent[not f])
        for f in (True, False)
    ]
    one, other = run_both(*parties)
    assert [e.result for e in one.result] == [e.result for e in other.result]
    assert [(e.sent, e.received) for e in one.result] == [(e.received, e.sent) for e in other.result]
    return one.result, sent


def test_a_bundle_of_parties_ends_as_each_would_alone_in_as_many_messages_as_the_longest() -> None:
    together, sent = bundles_of(NUMBERS)
    assert [e.result for e in together] == [-1, 0, 1, -1]
    alone = [bundles_of([pair]) for pair in NUMBERS]
    assert together == [ended for (ended,), _ in alone]
    assert [len(side) for side in sent] == [max(len(s[i]) for _, s in alone) for i in (0, 1)]


def test_a_bundle_of_none_sends_nothing() -> None:
    assert bundles_of([]) == ([], [[], []])


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("what", [*DISTURBANCES, "of other lengths", "of more parties", "far too many"])
@pytest.mark.sampled(5)
def test_a_bundle_that_is_not_whole_ends_the_session(what: str, side: int, number: int) -> None:
    change = {
        **DISTURBANCES,
        "of other lengths": lambda got: [got[-1][:12] + b"\x01" + got[-1][13:]],
        "of more parties": lambda got: [b"\0\0\0\0" + got[-1]],
        "far too many": lambda got: [b"\xff" * 12 + got[-1][12:]],
    }[what]
    if what == "another tag":  # a bundle has none: its first bytes say how many messages it holds
        change = lambda got: [bytes([got[-1][0] + 1]) + got[-1][1:]]  # noqa: E731
    parties = [
        bundled([comparing_once(f, pair[not f], pair[2]) for pair in NUMBERS[:3]]) for f in (True, False)
    ]
    parties[side] = disturbed(parties[side], number, change)
    with pytest.raises(ProtocolError):
        run_both(*parties)


def waiting() -> Party[bytes]:
    return (yield None)


def test_bundles_whose_parties_all_wait_end_in_an_error() -> None:
    with pytest.raises(ProtocolError, match="each party waits"):
        run_both(bundled([waiting(), waiting()]), bundled([waiting(), waiting()]))


@settings(max_examples=100)
@given(message=st.binary(max_size=60))
def test_any_bytes_in_the_place_of_a_bundle_are_refused(message: bytes) -> None:
    party = bundled([comparing_once(True, 1, 4), comparing_once(True, 2, 4)])
    assert next(party) is not None
    assert next(party) is None
    with pytest.raises(ProtocolError):
        party.send(message)


def test_a_session_has_sent_nothing_before_its_first_message() -> None:
    assert (Session(first=True).sent, Session(first=True).received) == (0, 0)


@pytest.mark.parametrize("first", [True, False])
def test_a_refusal_counts_the_messages_of_the_other_party_from_0(first: bool) -> None:
    received = Session(first=first).receive("step", 4)
    next(received)
    with pytest.raises(ProtocolError, match="expected message 0 of this session, 'step'"):
        received.send(bytes(TAG_BYTES + 4))

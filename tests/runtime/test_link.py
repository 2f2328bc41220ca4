"""Whatever happens to the parts of messages on their way, the messages arrive as they were sent, each once,
or whoever waits or sends gets the reason."""

import functools
import os
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from relayed_sites import (
    HOSTILE,
    LIMIT,
    LINKS,
    SERVER,
    TIRED,
    Lost,
    Place,
    Relay,
    identity,
    make_places,
    new_link,
)

from graphfed.crypto.channel import OVERHEAD, ChannelError, Handshake
from graphfed.federation import Federation
from graphfed.federation.link import SERVER_INDEX
from graphfed.runtime.mailbox import Mailbox, PeerLost, ProcessError, check_size
from graphfed.runtime.nvflare import link as link_module
from graphfed.runtime.nvflare.link import (
    AT_ONCE,
    FULL,
    MAX_KEY,
    OFFER,
    Channels,
    FlareLink,
    Inbox,
    Part,
    Post,
    parts_of,
)

#: Bytes of a part in these tests, which is longer than an offer.
PART = 2048
SECRET = "the salary of Alice is 5000"


@pytest.fixture(autouse=True, scope="module")
def small_parts_and_short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_module, "PART", PART)
        patch.setattr(link_module, "PAUSES", (0.0005, 0.004))
        yield


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """What a test has started ends when its links are closed, though nobody waits for it in particular."""
    yield
    while LINKS:
        LINKS.pop().close()
    left = sending_threads()
    for thread in left:
        thread.join(LIMIT)
    assert not sending_threads()


def sending_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(("to-", "offer-to-"))]


def until(true: Callable[[], bool]) -> None:
    """Wait for something that is about to happen."""
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.001)


def begun(run: str = "run", patience: float = LIMIT) -> Mailbox:
    mailbox = Mailbox(patience)
    mailbox.begin(run)
    return mailbox


def alone(post: Post, *, give_up: float = 0.02, patience: float = LIMIT) -> FlareLink:
    """The link of a site that is connected with the server only."""
    return new_link({SERVER_INDEX: SERVER}, {SERVER_INDEX: post}, begun(patience=patience), give_up=give_up)


def mailbox_of(link: FlareLink) -> Mailbox:
    return link._mailbox


# ---- the inbox: parts become messages ----------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 7])


@settings(max_examples=60)
@given(data=st.data())
def test_parts_in_any_order_and_number_of_copies_are_the_messages_sent_each_once(data: st.DataObject) -> None:
    """Of any size, of several senders and of two runs; afterwards the inbox keeps nothing."""
    boxes = [(sender, run, key) for sender in ("north", "south") for run in ("run", "next") for key in "ab"]
    sent = {box: os.urandom(data.draw(SIZES)) for box in boxes}
    parts = [(box[0], part) for box, text in sent.items() for part in parts_of(f"{box[1]}/{box[2]}", text)]
    copies = data.draw(st.lists(st.sampled_from(parts), max_size=6))
    inbox = Inbox(begun(patience=0.001))
    for sender, part in data.draw(st.permutations(parts + copies)):
        assert inbox.accept(sender, part) == ""
    for run in ("run", "next"):
        if run == "next":
            inbox.mailbox.begin(run)
        for sender, of, key in boxes:
            if of == run:
                assert inbox.mailbox.take(sender, key, sender) == sent[sender, of, key]
    # A sender that has not heard of the arrival asks again; the copy is of no use, and is not kept.
    for sender, part in data.draw(st.lists(st.sampled_from(parts), max_size=6)):
        assert inbox.accept(sender, part) == ""
    for sender, of, key in boxes:
        if of == "next":
            with pytest.raises(ProcessError, match="sent nothing"):
                inbox.mailbox.take(sender, key, sender)
    assert [inbox.held(sender) for sender in ("north", "south")] == [0, 0]


def test_a_message_is_cut_into_parts_no_longer_than_they_may_be() -> None:
    for size in (0, 1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 7):
        message = os.urandom(size)
        parts = parts_of("key", message)
        assert b"".join(part.content for part in parts) == message
        assert len(parts) == max(1, -(-size // PART))
        assert all(0 < len(part.content) <= PART for part in parts) or size == 0


def refuse(inbox: Inbox, part: Any, why: str) -> None:
    held, refused = inbox.held("north"), inbox.refused["north"]
    assert why in inbox.accept("north", part)
    assert (inbox.held("north"), inbox.refused["north"]) == (held, refused + 1)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"key": ""}, "no key that can be used"),
        ({"key": None}, "no key that can be used"),
        ({"key": b"run/a"}, "no key that can be used"),
        ({"key": ["run/a"]}, "no key that can be used"),
        ({"key": "k" * (MAX_KEY + 1)}, "no key that can be used"),
        ({"key": "run/\ud800"}, "no key that can be used"),
        ({"key": "run/\x1b[31m"}, "no key that can be used"),
        ({"number": 3}, "has no part 3 of 3"),
        ({"number": -1}, "has no part -1 of 3"),
        ({"number": 10**5000}, "has no part an integer of more than 30 digits of 3"),
        ({"number": True}, "whole numbers"),
        ({"number": 1.0}, "whole numbers"),
        ({"count": 2}, "has no part 1 of 2"),
        ({"count": 10**5000}, "of an integer of more than 30 digits"),
        ({"count": None}, "whole numbers"),
        ({"size": 10 * PART + 1}, "at most"),
        ({"size": 10**5000}, "has an integer of more than 30 digits bytes; at most"),
        ({"size": -1}, "has -1 bytes"),
        ({"size": "3"}, "whole numbers"),
        ({"size": 2 * PART + 2}, "two different sizes"),
        ({"content": b""}, f"has 0 bytes and not {PART}"),
        ({"content": b"x" * (PART - 1)}, f"has {PART - 1} bytes and not {PART}"),
        ({"content": b"x" * (PART + 1)}, f"has {PART + 1} bytes and not {PART}"),
        ({"content": b"x" * (PART + OVERHEAD + 1)}, "has a part of more than"),
        ({"content": "x" * PART}, "has a part of more than"),
        ({"content": None}, "has a part of more than"),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, str) else next(iter(value)),
)
def test_a_part_that_is_not_one_is_refused_changes_nothing_and_the_right_one_still_arrives(
    wrong: dict[str, Any], why: str
) -> None:
    inbox = Inbox(begun(), max_message=10 * PART)
    message = os.urandom(2 * PART + 1)
    first, second, third = parts_of("run/a", message)
    assert inbox.accept("north", first) == ""
    refuse(inbox, replace(second, **wrong), why)
    assert inbox.accept("north", third) == ""
    refuse(inbox, replace(second, **wrong), why)
    assert inbox.accept("north", second) == ""
    assert inbox.mailbox.take("north", "a", "north") == message


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 4 * PART),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=2),
)


@given(
    fields=st.dictionaries(
        st.sampled_from(["key", "number", "count", "size", "content"]), ANYTHING, min_size=1
    ),
    whole=st.booleans(),
)
@example(fields={"key": "\ud800"}, whole=True)
def test_no_part_however_made_stops_the_sealed_message_that_it_is_like(
    fields: dict[str, Any], whole: bool
) -> None:
    """Contents, key and numbers of a sealed part hold together: a change to any is refused."""
    north, south = channels_of("north", "south", patience=LIMIT)
    parts = [north.sealed("south", part) for part in parts_of("run/a", b"m" * (PART + 1))]
    inbox = Inbox(begun(), opened=south.opened)
    if whole:
        assert inbox.accept("north", parts[0]) == ""
    changed = replace(parts[1], **fields)
    if changed != parts[1]:
        refuse(inbox, changed, "")
    for part in parts:
        assert inbox.accept("north", part) == ""
    assert inbox.mailbox.take("north", "a", "north") == b"m" * (PART + 1)


def test_what_is_not_whole_when_its_run_ends_is_forgotten() -> None:
    inbox = Inbox(begun())
    early, late = (parts_of(f"{run}/a", b"x" * (PART + 1)) for run in ("run", "next"))
    inbox.accept("north", early[0])
    inbox.accept("north", late[0])
    inbox.mailbox.begin("next")
    assert inbox.accept("north", early[1]) == ""
    assert inbox.accept("north", late[1]) == ""
    assert inbox.mailbox.take("north", "a", "north") == b"x" * (PART + 1)
    assert inbox.held("north") == 0


# ---- the inbox: how much one sender makes it keep ----------------------------------------------------------

ROOM = 1 << 20
KEYS = 1 << 12


def flood(kind: str) -> Iterator[Part]:
    for i in range(KEYS):
        match kind:
            case "messages that never become whole":
                yield Part(f"run/{i}", 0, 2, PART + 1, os.urandom(PART))
            case "last parts alone":
                yield Part(f"run/{i}", 1, 2, PART + 1, b"x")
            case "empty messages that nobody asks for":
                yield Part(f"run/{i}", 0, 1, 0, b"")
            case "messages of a run that never begins":
                yield Part(f"run {i}/a", 0, 1, PART, os.urandom(PART))
            case "long keys":
                yield Part(f"run/{i}/".ljust(MAX_KEY, "\U0001f600"), 0, 1, 0, b"")


@pytest.mark.parametrize(
    "kind",
    [
        "messages that never become whole",
        "last parts alone",
        "empty messages that nobody asks for",
        "messages of a run that never begins",
        "long keys",
    ],
)
def test_a_flood_of_one_sender_takes_no_more_memory_than_it_may(kind: str) -> None:
    """Measured, not only counted; and what somebody waits for, and other senders, still get in."""
    inbox = Inbox(begun(), max_message=4 * PART, max_held=ROOM)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        answers = Counter(inbox.accept("north", part) for part in flood(kind))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert set(answers) == {"", FULL}
    assert inbox.held("north") <= ROOM
    assert after - before < ROOM
    fillers = (inbox.accept("north", Part(f"run/f{i}", 0, 1, 0, b"")) for i in range(KEYS))
    assert FULL in fillers  # full to the brim, whatever the flood was of
    message = os.urandom(3 * PART)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(inbox.mailbox.take, "north", "asked for", "north")
        until(lambda: inbox.mailbox.asked("north", "run/asked for"))
        for part in parts_of("run/not asked for", message):
            refuse(inbox, part, FULL)
        for part in parts_of("run/asked for", message):
            assert inbox.accept("north", part) == ""
            assert inbox.accept("south", part) == ""
        assert waiting.result(LIMIT) == message
    assert inbox.mailbox.take("south", "asked for", "south") == message


def test_room_is_there_again_once_messages_are_taken_or_their_run_is_over() -> None:
    inbox = Inbox(begun(), max_held=2 * PART)
    assert inbox.accept("north", *parts_of("run/a", b"a" * PART)) == ""
    refuse(inbox, *parts_of("run/b", b"b" * PART), FULL)
    inbox.mailbox.take("north", "a", "north")
    assert inbox.accept("north", *parts_of("run/b", b"b" * PART)) == ""
    refuse(inbox, *parts_of("next/a", b"c" * PART), FULL)
    inbox.mailbox.begin("next")
    assert inbox.accept("north", *parts_of("next/a", b"c" * PART)) == ""
    assert inbox.mailbox.take("north", "a", "north") == b"c" * PART


def test_honest_places_never_wait_for_each_other_in_as_little_room_as_one_part() -> None:
    """Each sends all it has before it reads anything, through a network that changes the order."""
    relay = Relay(seed=5, harm=0.4, deeds=TIRED)
    places = make_places(relay, ["north", "south"], max_held=PART + 2000)
    north, south = places[0], places[1]
    messages = [os.urandom(size) for size in (0, PART, 5 * PART + 1, 1, 3 * PART, 9 * PART, PART + 1, 0)]

    def life(place: Place, other: int) -> None:
        for i, message in enumerate(messages):
            place.link.send(other, f"0/{i}/x/a>b", message)
        for i, message in enumerate(messages):
            assert place.link.recv(other, f"0/{i}/x/a>b") == message
        place.link.flush()

    with ThreadPoolExecutor() as threads:
        for ended in [threads.submit(life, north, 1), threads.submit(life, south, 0)]:
            ended.result(LIMIT)
    assert north.inbox.held("south") == south.inbox.held("north") == 0
    assert north.inbox.refused["south"] > 0


# ---- channels: the offers of two sites ---------------------------------------------------------------------


def channels_of(a: str, b: str, *, patience: float, session: str = "job 1") -> tuple[Channels, Channels]:
    """Two sites that have heard each other's offers."""
    both: dict[str, Channels] = {}

    def to(sender: str, receiver: str) -> Post:
        def post(part: Part) -> str:
            both[receiver].take_offer(sender, part.content)
            return ""

        return post

    both[a] = Channels(identity(a), session, {b: to(a, b)}, patience)
    both[b] = Channels(identity(b), session, {a: to(b, a)}, patience)
    both[a].sealed(b, Part("run/first", 0, 1, 0, b""))
    until(lambda: a in both[b]._made)
    return both[a], both[b]


def refused_offers(sender: str, receiver: str) -> dict[str, bytes]:
    """What a relay can make or has seen elsewhere, none of it the sender's offer to the receiver."""
    honest = Handshake.begin(identity(sender), receiver, "job 1").offer
    return {
        "nothing": b"",
        "noise": os.urandom(700),
        "changed": honest[:-1] + bytes([honest[-1] ^ 1]),
        "of another session": Handshake.begin(identity(sender), receiver, "job 0").offer,
        "for another site": Handshake.begin(identity(sender), "west", "job 1").offer,
        "of another site": Handshake.begin(identity("west"), receiver, "job 1").offer,
        "of another project": Handshake.begin(identity(sender, "other"), receiver, "job 1").offer,
        "sent back": Handshake.begin(identity(receiver), sender, "job 1").offer,
    }


@pytest.mark.parametrize("kind", refused_offers("north", "south"))
def test_a_forged_offer_is_refused_and_the_right_one_before_and_after_it_is_not(kind: str) -> None:
    forged = refused_offers("north", "south")[kind]
    relay = Relay()
    places = make_places(relay, ["north", "south"])
    wrong = Part(OFFER, 0, 1, len(forged), forged)
    for i in range(2):
        assert relay.inboxes["south"].accept("north", wrong) != ""
        assert relay.inboxes["south"].held("north") == 0
        places[0].link.send(1, f"0/{i}/x/0>1", b"from north")
        assert places[1].link.recv(0, f"0/{i}/x/0>1") == b"from north"


def test_offers_may_come_twice_late_and_all_at_once() -> None:
    relay = Relay(seed=3, harm=0.7, deeds=["repeat", "repeat later", "lose the answer", "delay"])
    places = make_places(relay, ["north", "south", "west"])
    for end, place in places.items():
        for to in places:
            if to != end:
                place.link.send(to, f"0/1/x/{end}>{to}", f"{end}>{to}".encode())
    for end, place in places.items():
        for sender in places:
            if sender != end:
                assert place.link.recv(sender, f"0/1/x/{sender}>{end}") == f"{sender}>{end}".encode()
    relay.everything_late()
    for sender, to, part in list(relay.seen):
        if part.key == OFFER:
            assert relay.inboxes[to].accept(sender, part) == ""


@pytest.mark.parametrize("deed", ["lose", "corrupt", "cut"])
def test_a_site_with_nothing_to_send_answers_an_offer_until_its_own_has_arrived(deed: str) -> None:
    """Its first answers are lost, and nothing but the other site's repeated offer makes it try again."""
    relay = Relay()
    places = make_places(relay, ["north", "south"])
    lost = 0

    def choose(sender: str, to: str) -> str:
        nonlocal lost
        lost += sender == "south"
        return deed if sender == "south" and lost <= 5 else "bring"

    relay._choose = choose  # type: ignore[method-assign]
    places[0].link.send(1, "0/1/x/0>1", b"hello")
    assert places[1].link.recv(0, "0/1/x/0>1") == b"hello"
    assert lost == 6


def test_copies_of_an_offer_start_no_crowd_of_threads_and_no_endless_answers() -> None:
    release, asked = threading.Event(), []

    def stuck(part: Part) -> str:
        asked.append(part)
        release.wait(LIMIT)
        return ""

    south = Channels(identity("south"), "job 1", {"north": stuck}, LIMIT)
    offer = Handshake.begin(identity("north"), "south", "job 1").offer
    for _ in range(50):
        south.take_offer("north", offer)
    until(lambda: len(asked) == 1)
    until(lambda: len(sending_threads()) == 1)
    for _ in range(50):
        south.take_offer("north", offer)
    assert len(sending_threads()) == 1
    release.set()
    until(lambda: not sending_threads())
    for _ in range(50):
        south.take_offer("north", offer)
    assert len(asked) == 1
    assert not sending_threads()


def test_once_there_is_a_channel_nothing_but_the_same_offer_is_taken_and_nothing_of_it_kept() -> None:
    _, south = channels_of("north", "south", patience=LIMIT)

    def opened(sender: str, part: Part) -> bytes | memoryview:
        south.take_offer(sender, part.content)
        return part.content

    inbox = Inbox(begun(), opened=opened)
    for offer in [*refused_offers("north", "south").values(), identity_offer()]:
        refuse(inbox, Part(OFFER, 0, 1, len(offer), offer), "north made a different offer before")
    assert inbox.accept("north", Part(OFFER, 0, 1, 700, south._offers["north"])) == ""
    assert inbox.held("north") == 0


def identity_offer() -> bytes:
    """One that would be taken, had north not made another one."""
    return Handshake.begin(identity("north"), "south", "job 1").offer


def test_a_site_that_is_none_of_the_run_is_refused() -> None:
    north, _ = channels_of("north", "south", patience=LIMIT)
    with pytest.raises(ChannelError, match="west is not a site of this run"):
        north.take_offer("west", Handshake.begin(identity("west"), "north", "job 1").offer)
    with pytest.raises(ChannelError, match="west sent run/a before its offer"):
        north.opened("west", Part("run/a", 0, 1, 0, b"x" * OVERHEAD))


def test_a_site_that_sends_no_offer_is_given_up_with_what_became_of_this_sites_own() -> None:
    def north(post: Post) -> Channels:
        return Channels(identity("north"), "job 1", {"south": post}, 0.02)

    part = Part("run/a", 0, 1, 0, b"")
    with pytest.raises(ChannelError, match=r"^south sent no offer for 0\.02 s$"):
        north(lambda offer: "").sealed("south", part)
    with pytest.raises(
        ChannelError,
        match=r"offer of this site was refused: its certificate is of last "
        "year",
    ):
        north(lambda offer: "its certificate is of last year").sealed("south", part)

    def fail(offer: Part) -> str:
        raise ProcessError("south cannot be reached (timeout)")

    with pytest.raises(
        ChannelError, match=r"offer of this site did not arrive: ProcessError: south cannot be reached \(tim"
    ):
        north(fail).sealed("south", part)


def test_one_session_carries_several_runs_over_the_channels_of_the_first() -> None:
    relay = Relay()
    places = make_places(relay, ["north", "south"])
    for run in ("run", "next", "last"):
        links = {}
        for end, place in places.items():
            if run != "run":
                place.mailbox.begin(run)
            link = place.link
            links[end] = new_link(
                link._names, link._posts, place.mailbox, channels=place.channels, give_up=LIMIT
            )
        links[0].send(1, "0/1/x/0>1", run.encode())
        assert links[1].recv(0, "0/1/x/0>1") == run.encode()
    offers = [(sender, to) for sender, to, part in relay.seen if part.key == OFFER]
    assert {*offers} == {("north", "south"), ("south", "north")}
    # What the relay has seen of the first run says nothing in the last one.
    for sender, to, part in list(relay.seen):
        assert relay.inboxes[to].accept(sender, part) == ""
    assert places[1].inbox.held("north") == 0


# ---- links through a relay ---------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    harm=st.sampled_from([0.0, 0.3, 0.7]),
    deeds=st.sets(st.sampled_from(HOSTILE), min_size=1),
    sizes=st.lists(SIZES, min_size=1, max_size=4),
)
def test_messages_arrive_intact_through_a_hostile_relay_that_can_read_none_between_sites(
    seed: int, harm: float, deeds: set[str], sizes: list[int]
) -> None:
    """Three sites and the server send each other everything at once, before anybody reads."""
    relay = Relay(seed=seed, harm=harm, deeds=sorted(deeds))
    places = make_places(relay, ["north", "south", "west"])
    pairs = [(a, b) for a in places for b in places if a != b]
    sent = {(a, b, i): os.urandom(size) for a, b in pairs for i, size in enumerate(sizes)}
    for (a, b, i), message in sent.items():
        places[a].link.send(b, f"0/{i}/x/{a}>{b}", message)
    for (a, b, i), message in sent.items():
        assert places[b].link.recv(a, f"0/{i}/x/{a}>{b}") == message
    for place in places.values():
        place.link.flush()
    relay.everything_late()
    for a, b in pairs:
        assert places[b].inbox.held(places[a].name) == 0
    between_clients = b"".join(part.content for a, b, part in relay.seen if SERVER not in (a, b))
    for (a, b, _), message in sent.items():
        if SERVER_INDEX not in (a, b) and len(message) >= 16:
            assert message[:16] not in between_clients
            assert message[-16:] not in between_clients


def test_the_relay_of_these_tests_does_all_that_it_is_said_to() -> None:
    relay = Relay(seed=1, harm=0.9)
    places = make_places(relay, ["north", "south", "west"])
    for i in range(60):
        places[0].link.send(1, f"0/{i}/x/0>1", b"x")
    for i in range(60):
        assert places[1].link.recv(0, f"0/{i}/x/0>1") == b"x"
    assert relay.done == {"bring", *HOSTILE}
    assert sum(relay.inboxes["south"].refused.values()) > 0
    assert relay.inboxes["south"].refused["west"] > 0, "nothing was swapped"


@pytest.mark.parametrize("lies", [False, True], ids=["silent", "says that they arrived"])
def test_a_relay_that_drops_all_offers_ends_in_a_clear_loss_at_who_sends(lies: bool) -> None:
    relay = Relay()
    places = make_places(relay, ["north", "south"], give_up=0.05)
    bring = relay._do

    def drop(deed: str, sender: str, to: str, part: Part) -> str:
        if part.key == OFFER:
            if lies:
                return ""
            raise Lost
        return bring(deed, sender, to, part)

    relay._do = drop  # type: ignore[method-assign]
    places[0].link.send(1, "0/1/x/0>1", b"hello")
    why = r"south could not be reached: ChannelError: south sent no offer for 0\.05 s"
    with pytest.raises(PeerLost, match=why) as lost:
        places[0].link.recv(1, "0/1/y/1>0")
    assert ("did not arrive: Lost" in str(lost.value)) is not lies
    with pytest.raises(PeerLost, match=why):
        places[0].link.send(1, "0/2/x/0>1", b"more")
    places[0].link.send(SERVER_INDEX, "0/3/x/0>-1", b"still there")
    assert places[SERVER_INDEX].link.recv(0, "0/3/x/0>-1") == b"still there"


def test_a_relay_that_corrupts_everything_ends_in_a_loss_that_says_what_was_refused() -> None:
    relay = Relay()
    places = make_places(relay, ["north", "south"])
    places[0].link.send(1, "0/1/x/0>1", b"hello")
    assert places[1].link.recv(0, "0/1/x/0>1") == b"hello"
    relay._choose = lambda sender, to: "corrupt"  # type: ignore[method-assign]
    places[0].link._give_up = 0.05
    places[0].link.send(1, "0/2/x/0>1", b"more")
    with pytest.raises(
        PeerLost, match=r"south refused it: the message .* from 'north', .* does not open: it was al"
    ):
        places[0].link.recv(1, "0/3/x/1>0")


# ---- one link: repeating, giving up, ending ----------------------------------------------------------------


def test_wire_counts_the_bytes_of_contents_handed_over_by_transfer_and_a_repeat_once() -> None:
    relay = Relay(seed=2, harm=0.5, deeds=["lose", "lose the answer", "repeat", "corrupt"])
    places = make_places(relay, ["north", "south"])
    sizes = {"model": PART + 1, "layer0/local": 3 * PART, "layer0/local/grad": 0}
    for i, (name, size) in enumerate(sizes.items()):
        for to in (SERVER_INDEX, 1):
            places[0].link.send(to, f"0/{i}/{name}/0>{to}", os.urandom(size))
    places[0].link.flush()
    seals = {"model": 2 * OVERHEAD, "layer0/local": 3 * OVERHEAD, "layer0/local/grad": OVERHEAD}
    assert places[0].link.wire == {name: 2 * size + seals[name] for name, size in sizes.items()}


def test_wire_counts_every_part_when_workers_count_at_once() -> None:
    class Slow(Counter[str]):
        def __getitem__(self, key: str) -> int:
            value = self.get(key, 0)
            time.sleep(0.0005)
            return value

    link = alone(lambda part: "", give_up=LIMIT)
    link.wire = Slow()
    for i in range(50):
        link.send(SERVER_INDEX, f"0/{i}/x/0>-1", b"x" * 10)
    link.flush()
    assert dict(link.wire) == {"x": 500}


class Anything(BaseException):
    """What nobody expects."""


@pytest.mark.parametrize(
    "error",
    [OSError(SECRET), KeyError(SECRET), MemoryError(SECRET), SystemExit(SECRET), Anything(SECRET)],
    ids=lambda error: type(error).__name__,
)
def test_a_request_may_raise_anything_and_is_repeated_and_reported_without_what_it_says(
    error: BaseException,
) -> None:
    failing = 3

    def post(part: Part) -> str:
        nonlocal failing
        failing -= 1
        if failing >= 0:
            raise error
        return ""

    patient = alone(post, give_up=LIMIT)
    patient.send(SERVER_INDEX, "0/1/x/0>-1", b"x")
    patient.flush()
    assert patient.wire == {"x": 1}
    failing = 1000
    link = alone(post)
    link.send(SERVER_INDEX, "0/2/x/0>-1", b"x")
    why = rf"server could not be reached: {type(error).__name__} at .*:\d+ \(tried"
    with pytest.raises(PeerLost, match=why) as lost:
        link.recv(SERVER_INDEX, "0/3/y/-1>0")
    assert SECRET not in str(lost.value)
    link.close()


def test_what_graphfed_itself_says_of_a_failing_request_is_reported() -> None:
    def post(part: Part) -> str:
        raise ProcessError("server cannot be reached (comm_error)")

    link = alone(post)
    link.send(SERVER_INDEX, "0/1/x/0>-1", b"x")
    why = r"server could not be reached: ProcessError: server cannot be reached \(comm_error\) \(tried for"
    with pytest.raises(PeerLost, match=why):
        link.recv(SERVER_INDEX, "0/2/y/-1>0")
    link.close()


def test_a_reason_for_refusing_is_reported_without_what_a_terminal_would_obey() -> None:
    link = alone(lambda part: "\x1b[2Jall is well\n")
    link.send(SERVER_INDEX, "0/1/x/0>-1", b"x")
    with pytest.raises(PeerLost, match=r"server refused it: '\\x1b\[2Jall is well\\n' \(tried for") as lost:
        link.recv(SERVER_INDEX, "0/2/y/-1>0")
    assert str(lost.value).isprintable()
    link.close()


def test_nothing_more_is_tried_for_a_participant_that_is_given_up() -> None:
    """A long message is many parts, each of which would be tried for as long again."""
    tried = set()

    def post(part: Part) -> str:
        tried.add(part.number)
        raise Lost

    link = alone(post)
    link.send(SERVER_INDEX, "0/1/x/0>-1", b"x" * (200 * PART))
    link.flush()
    assert tried <= set(range(AT_ONCE))
    assert not link.wire
    with pytest.raises(PeerLost):
        link.send(SERVER_INDEX, "0/2/x/0>-1", b"x")


def test_a_participant_lost_for_another_reason_is_sent_nothing_more() -> None:
    """As when a site has ended the run: what waits for it is of no use."""
    posted = []

    def post(part: Part) -> str:
        posted.append(part)
        raise Lost

    link = alone(post, give_up=1000.0)
    link.send(SERVER_INDEX, "0/1/x/0>-1", b"x")
    until(lambda: bool(posted))
    mailbox_of(link).close(SERVER, "ended the run")
    link.flush()
    with pytest.raises(PeerLost, match="server ended the run; this process was waiting for"):
        link.recv(SERVER_INDEX, "0/2/y/-1>0")


def test_a_participant_without_room_is_there_and_waited_for_beyond_the_time_for_failing_requests() -> None:
    answers = iter([FULL] * 60)
    link = alone(lambda part: next(answers, ""), give_up=0.05)
    link.send(SERVER_INDEX, "0/1/x/0>-1", b"x")
    link.flush()
    assert link.wire == {"x": 1}
    assert not mailbox_of(link).closed(SERVER)


def test_a_participant_that_never_has_room_is_lost_after_the_patience() -> None:
    link = alone(lambda part: FULL, give_up=0.05, patience=0.2)
    link.send(SERVER_INDEX, "0/1/x/0>-1", b"x")
    link.flush()
    with pytest.raises(PeerLost, match=f"server refused it: {FULL}"):
        link.recv(SERVER_INDEX, "0/2/y/-1>0")


def test_flush_returns_when_everything_has_arrived_or_its_receiver_is_given_up() -> None:
    relay = Relay()
    places = make_places(relay, ["north", "south", "west"])
    for to in (1, 2):
        places[0].link.send(to, f"0/0/x/0>{to}", b"first")
        assert places[to].link.recv(0, f"0/0/x/0>{to}") == b"first"
    bring = relay._bring
    relay._bring = lambda a, b, part: "never" if b == "west" else bring(a, b, part)  # type: ignore[method-assign]
    places[0].link._give_up = 0.05
    for to in (SERVER_INDEX, 1, 2):
        places[0].link.send(to, f"0/1/x/0>{to}", b"x" * 3 * PART)
    places[0].link.flush()
    assert places[SERVER_INDEX].link.recv(0, "0/1/x/0>-1") == b"x" * 3 * PART
    assert places[1].link.recv(0, "0/1/x/0>1") == b"x" * 3 * PART
    assert [places[0].mailbox.closed(name) for name in (SERVER, "south", "west")] == [False, False, True]


def test_closing_waits_for_no_request_and_nothing_comes_of_one_that_is_on_its_way() -> None:
    release, posted = threading.Event(), []

    def post(part: Part) -> str:
        posted.append(part)
        release.wait(LIMIT)
        raise Lost

    link = alone(post, give_up=0.0)
    for i in range(20):
        link.send(SERVER_INDEX, f"0/{i}/x/0>-1", b"x")
    until(lambda: len(posted) == AT_ONCE)
    link.close()
    link.close()
    assert len(sending_threads()) == AT_ONCE
    release.set()
    until(lambda: not sending_threads())
    assert len(posted) == AT_ONCE
    assert not mailbox_of(link).closed(SERVER)


def test_closing_ends_the_pause_before_a_repeat() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_module, "PAUSES", (1000.0, 1000.0))
        posted = []

        def post(part: Part) -> str:
            posted.append(part)
            raise Lost

        link = alone(post, give_up=5000.0)
        link.send(SERVER_INDEX, "0/1/x/0>-1", b"x")
        until(lambda: bool(posted))
        link.close()
        until(lambda: not sending_threads())


@pytest.mark.parametrize("how", ["the link is closed", "the server is lost"])
def test_nobody_waits_for_an_offer_when_the_run_is_over(how: str) -> None:
    """The server takes this site's offer and is silent from then on."""
    mailbox, asked = begun(), []

    def silent(part: Part) -> str:
        asked.append(part)
        return ""

    channels = Channels(identity("north"), "job 1", {"south": silent}, 1000.0)
    link = new_link({1: "south"}, {1: silent}, mailbox, channels=channels, give_up=1000.0)
    link.send(1, "0/1/x/0>1", b"x")
    until(lambda: len(asked) > 1)
    if how == "the link is closed":
        link.close()
    else:
        mailbox.close("south", "ended the run")
        link.flush()
    until(lambda: not sending_threads())
    assert {part.key for part in asked} == {OFFER}


def test_a_link_of_a_run_that_is_over_closes_no_participant_and_sends_nothing_in_the_next_one() -> None:
    """Its last request fails when the next run has begun."""
    release, posted = threading.Event(), []

    def post(part: Part) -> str:
        posted.append(part.key)
        release.wait(LIMIT)
        raise Lost

    old = alone(post, give_up=0.0)
    mailbox = mailbox_of(old)
    old.send(SERVER_INDEX, "0/1/x/0>-1", b"x")
    until(lambda: bool(posted))
    mailbox.begin("next")
    old.send(SERVER_INDEX, "0/2/x/0>-1", b"x")
    release.set()
    old.flush()
    assert posted == ["run/0/1/x/0>-1"]
    assert not mailbox.closed(SERVER)


def test_a_message_over_the_limit_is_refused_where_it_is_sent() -> None:
    link = alone(lambda part: "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_module, "check_size", functools.partial(check_size, limit=10))
        with pytest.raises(
            ProcessError, match="0/1/x/0>-1 is a message of 11 bytes, more than the limit of 10"
        ):
            link.send(SERVER_INDEX, "0/1/x/0>-1", b"x" * 11)
        link.send(SERVER_INDEX, "0/1/x/0>-1", b"x" * 10)
    link.flush()
    assert link.wire == {"x": 10}


def test_both_sides_send_from_many_threads_at_once_and_none_waits_for_ever() -> None:
    relay = Relay(seed=6, harm=0.3)
    places = make_places(relay, ["north", "south"])

    def send(end: int, number: int) -> None:
        for to in places:
            if to != end:
                places[end].link.send(to, f"0/{number}/x/{end}>{to}", os.urandom(2 * PART) + bytes([end + 1]))

    def read(end: int, number: int) -> list[bytes]:
        return [places[end].link.recv(a, f"0/{number}/x/{a}>{end}")[-1:] for a in places if a != end]

    with ThreadPoolExecutor(24) as threads:
        work = [threads.submit(send, end, number) for number in range(4) for end in places]
        got = [(end, threads.submit(read, end, number)) for number in range(4) for end in places]
        for done in work:
            done.result(LIMIT)
        for end, done in got:
            assert done.result(LIMIT) == [bytes([a + 1]) for a in places if a != end]


# ---- a federation over links -------------------------------------------------------------------------------

WORKERS = [(0, 1), (2,), (3,)]


def own(ids: torch.Tensor) -> dict[str, int]:
    return {"first": int(ids[0])}


def decide(reports: list[dict[str, int]]) -> dict[str, int]:
    return {"sum": sum(report["first"] for report in reports)}


def rows(ids: torch.Tensor, factor: int) -> torch.Tensor:
    return torch.arange(3.0).expand(len(ids), 3) * factor + ids[:, None]


def for_everyone(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(4, 0) + torch.arange(4.0).repeat(len(x))[:, None]


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def every_way(fed: Federation) -> dict[str, list[Any]]:
    """Up, down and across, with a decision made from the reports: what this process has of it."""
    ids = fed.client_ids()
    agreed = fed.control(decide, fed.report(fed.clients.run(own, ids), name="join"), name="agreed")
    out: dict[str, list[Any]] = {"agreed": [agreed]}
    for number in range(3):
        with fed.phase("train", round_number=number):
            x = fed.clients.run(rows, ids, agreed["sum"] + number)
            total = fed.gather(x, name="gather")
            back = fed.broadcast(fed.server.run(double, total), name="broadcast")
            across = fed.exchange(fed.clients.run(for_everyone, x), fed.everyone(), name="exchange")
            for name, value in (("back", back), ("across", across)):
                out[f"{name} {number}"] = list(fed.local_parts(value))
    return out


@pytest.mark.parametrize("seed", range(3))
def test_a_federation_over_a_hostile_relay_computes_what_it_does_in_one_process(seed: int) -> None:
    expected = every_way(Federation(WORKERS))
    relay = Relay(seed=seed, harm=0.5)
    places = make_places(relay, ["north", "south", "west"])

    def life(end: int) -> tuple[dict[str, list[Any]], Federation]:
        fed = Federation(
            WORKERS,
            here=[] if end == SERVER_INDEX else [end],
            server_here=end == SERVER_INDEX,
            link=places[end].link,
        )
        out = every_way(fed)
        places[end].link.flush()
        return out, fed

    with ThreadPoolExecutor(len(places)) as threads:
        running = {end: threads.submit(life, end) for end in places}
        ended = {end: future.result(2 * LIMIT) for end, future in running.items()}
    for name, value in expected.items():
        if name == "agreed":
            assert all(out[name] == value for out, _ in ended.values())
            continue
        for worker, part in enumerate(value):
            torch.testing.assert_close(ended[worker][0][name], [part], rtol=0, atol=0)
    for end, (_, fed) in ended.items():
        wire = places[end].link.wire
        sent = {e.name for e in fed.ledger.entries}
        assert set(wire) <= sent
        assert set(wire) == (
            {"agreed", "broadcast"} if end == SERVER_INDEX else {"join", "gather", "exchange"}
        )

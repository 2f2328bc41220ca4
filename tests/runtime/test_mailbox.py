"""A message that has arrived is given out once to who asks for it; who waits learns when none will come."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphfed.runtime.mailbox import Mailbox, PeerLost, ProcessError

SENDERS = ["north", "south"]
RUNS = ["first", "second", "third"]
#: Seconds after which a test gives up on what should have happened.
LIMIT = 20.0


@pytest.fixture
def beside() -> Iterator[Callable[..., Future[Any]]]:
    """Calls a function in another thread, which has ended when the test has."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def begun(run: str = "first", patience: float = LIMIT) -> Mailbox:
    mailbox = Mailbox(patience)
    mailbox.begin(run)
    return mailbox


def wait_until_asked(mailbox: Mailbox, sender: str, key: str) -> None:
    clock = threading.Event()
    for _ in range(int(LIMIT / 0.005)):
        if mailbox.asked(sender, key):
            return
        clock.wait(0.005)
    raise AssertionError(f"nobody asks for {key}")


# ---- every message once ------------------------------------------------------------------------------------

Sent = tuple[str, str, str]  # sender, run, key


@given(data=st.data())
def test_messages_in_any_order_and_number_of_copies_are_each_taken_once(data: st.DataObject) -> None:
    """Of several senders and of runs one after the other, whose messages come early and whose copies late."""
    every = [(sender, run, key) for run in RUNS for sender in SENDERS for key in ("a", "b")]
    sent = data.draw(st.sets(st.sampled_from(every)))
    content = {box: data.draw(st.binary(max_size=4)) for box in sorted(sent)}
    mailbox, came = Mailbox(patience=0.001), set()

    def arrive(box: Sent) -> None:
        sender, run, key = box
        mailbox.put(sender, f"{run}/{key}", content[box])
        came.add(box)

    for run in RUNS:
        mailbox.begin(run)
        first = sorted(box for box in sent if box[1] == run)
        for box in data.draw(st.lists(st.sampled_from(sorted(sent)), max_size=8)) if sent else []:
            arrive(box)
        for box in sorted(set(first) - came):
            arrive(box)
        for box in data.draw(st.permutations(first)):
            assert mailbox.take(box[0], box[2], "a sender") == content[box]
            arrive(box)  # a copy that comes too late
        for box in first:
            with pytest.raises(ProcessError, match="sent nothing"):
                mailbox.take(box[0], box[2], "a sender")
    assert [mailbox.held(sender) for sender in SENDERS] == [0, 0]


def test_the_first_of_two_messages_under_one_key_stays() -> None:
    mailbox = begun()
    mailbox.put("north", "first/a", b"1")
    held = mailbox.held("north")
    mailbox.put("north", "first/a", b"two")
    assert mailbox.held("north") == held
    assert mailbox.take("north", "a", "north") == b"1"


def test_who_waits_gets_the_message_when_it_comes(beside: Callable[..., Future[Any]]) -> None:
    mailbox = begun()
    waiting = beside(mailbox.take, "north", "a", "north")
    wait_until_asked(mailbox, "north", "first/a")
    mailbox.put("north", "first/b", b"another one")
    mailbox.put("south", "first/a", b"another's")
    assert not waiting.done()
    mailbox.put("north", "first/a", b"1")
    assert waiting.result(LIMIT) == b"1"
    assert not mailbox.asked("north", "first/a")


# ---- runs --------------------------------------------------------------------------------------------------


def test_a_message_of_a_later_run_waits_for_it_and_what_is_left_of_an_earlier_one_goes() -> None:
    mailbox = begun()
    mailbox.put("north", "second/a", b"early")
    mailbox.put("north", "third/a", b"earlier")
    mailbox.put("north", "first/a", b"left")
    mailbox.begin("second")
    assert mailbox.take("north", "a", "north") == b"early"
    mailbox.begin("third")
    assert mailbox.take("north", "a", "north") == b"earlier"
    assert mailbox.held("north") == 0


@pytest.mark.parametrize("late", ["first/a", "first/b", "second/a"])
def test_what_comes_of_a_run_that_is_over_is_dropped(late: str) -> None:
    """A copy of what was taken, what nobody took, and of any earlier run."""
    mailbox = begun()
    mailbox.put("north", "first/a", b"1")
    mailbox.take("north", "a", "north")
    mailbox.begin("second")
    mailbox.begin("third")
    assert mailbox.knows("north", late)
    mailbox.put("north", late, b"late")
    assert mailbox.held("north") == 0


@pytest.mark.parametrize("again", ["first", "second"])
def test_a_run_does_not_begin_twice(again: str) -> None:
    """Copies of its first messages could not be distinguished from those of its second."""
    mailbox = begun()
    mailbox.begin("second")
    mailbox.put("north", "second/a", b"1")
    with pytest.raises(ProcessError, match=f"a run '{again}' was here before; give every run another name"):
        mailbox.begin(again)
    assert mailbox.take("north", "a", "north") == b"1"


def test_a_name_that_begins_like_another_runs_is_another_run() -> None:
    mailbox = begun("run")
    mailbox.put("north", "run-2/a", b"2")
    mailbox.begin("run-2")
    assert mailbox.take("north", "a", "north") == b"2"


# ---- a sender that is lost ---------------------------------------------------------------------------------


def test_who_waits_for_a_lost_sender_and_who_sends_to_it_get_the_reason(
    beside: Callable[..., Future[Any]],
) -> None:
    mailbox = begun()
    waiting = beside(mailbox.take, "north", "3/7/update/0>-1", "site north")
    wait_until_asked(mailbox, "north", "first/3/7/update/0>-1")
    mailbox.close("north", "was not heard for 30 s")
    mailbox.close("north", "ended the run")  # what follows from it
    with pytest.raises(
        PeerLost, match="site north was not heard for 30 s; this process was waiting for 3/7/update"
    ) as lost:
        waiting.result(LIMIT)
    assert lost.value.peer == "north"
    with pytest.raises(
        PeerLost, match="site north was not heard for 30 s; this process was sending 4/1/model"
    ) as lost:
        mailbox.check_open("north", "4/1/model", "site north")
    assert lost.value.peer == "north"
    assert mailbox.closed("north")


def test_one_lost_sender_closes_no_other() -> None:
    mailbox = begun()
    mailbox.close("north", "is gone")
    mailbox.check_open("south", "a", "south")
    mailbox.put("south", "first/a", b"1")
    assert mailbox.take("south", "a", "south") == b"1"


def test_what_a_lost_sender_had_sent_is_read_before_its_loss_is_reported() -> None:
    mailbox = begun()
    mailbox.put("north", "first/a", b"1")
    mailbox.close("north", "is gone")
    assert mailbox.take("north", "a", "north") == b"1"
    with pytest.raises(PeerLost):
        mailbox.take("north", "b", "north")


def test_a_loss_in_an_earlier_run_closes_nobody_in_the_present_one() -> None:
    mailbox = begun()
    mailbox.begin("second")
    mailbox.close("north", "could not be reached", run="first")
    assert not mailbox.closed("north")
    mailbox.close("north", "could not be reached", run="second")
    assert mailbox.closed("north")


def test_senders_may_be_heard_again_once_they_are_reopened() -> None:
    mailbox = begun()
    mailbox.close("north", "is gone")
    mailbox.begin("second", reopen=True)
    mailbox.check_open("north", "a", "north")
    mailbox.put("north", "second/a", b"1")
    assert mailbox.take("north", "a", "north") == b"1"


def test_silence_beyond_the_patience_is_an_error_that_names_the_sender_and_the_key() -> None:
    mailbox = begun(patience=0.01)
    mailbox.put("south", "first/a", b"1")
    with pytest.raises(
        ProcessError,
        match=r"site north sent nothing for 0\.01 s; this process was waiting "
        "for a",
    ) as caught:
        mailbox.take("north", "a", "site north")
    assert not isinstance(caught.value, PeerLost)
    assert not mailbox.asked("north", "first/a")

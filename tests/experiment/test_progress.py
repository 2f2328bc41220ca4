"""What a person sees while a run works."""

import io

import pytest

from graphfed.experiment import progress
from graphfed.experiment.progress import human_bytes, human_seconds, show_progress
from graphfed.experiment.train import Event


def event(number: int, phase: str = "train", rounds: int = 4) -> Event:
    return Event(
        phase=phase,
        round=number,
        rounds=rounds,
        val={"accuracy": 0.5},
        bytes=1500 * number,
        seconds=2.0 * number,
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_536_000, "1.5 MB"),
        (480_000, "480 kB"),
        (2.5e12, "2.5 TB"),
    ],
)
def test_bytes_read_in_powers_of_a_thousand(count: float, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (75, "1:15"), (9.99, "10.0 s"), (3661, "1:01:01")]
)
def test_seconds_read_as_a_clock(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_without_a_terminal_lines_come_now_and_then_and_the_last_round_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 1.0, 6.0, 7.0, 8.0, 8.5])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with show_progress("fedavg", stream=stream) as on_event:
        assert on_event is not None
        for number in range(1, 5):
            on_event(event(number))
        on_event(event(4, "done"))
    assert stream.getvalue().splitlines() == [
        "fedavg: round 2/4, val accuracy 0.5, 3.0 kB, 4.0 s left",
        "fedavg: round 4/4, val accuracy 0.5, 6.0 kB",
    ]


def test_a_run_that_stops_early_still_tells_its_last_round() -> None:
    stream = io.StringIO()
    with show_progress("fedavg", stream=stream) as on_event:
        assert on_event is not None
        on_event(event(3, "done", rounds=100))
    assert stream.getvalue() == "fedavg: round 3/100, val accuracy 0.5, 4.5 kB\n"


def test_on_a_terminal_the_bar_shows_round_validation_and_bytes() -> None:
    stream = Terminal()
    with show_progress("fedavg", stream=stream) as on_event:
        assert on_event is not None
        for number in range(1, 5):
            on_event(event(number))
        on_event(event(4, "done"))
    last = stream.getvalue()
    for part in ("fedavg", "4/4", "val accuracy 0.5", "6.0 kB", "left"):
        assert part in last


def test_a_label_in_square_brackets_is_shown_as_it_is() -> None:
    stream = Terminal()
    with show_progress("[/red] on [bold]", stream=stream) as on_event:
        assert on_event is not None
        on_event(event(4, "done"))
    assert "[/red] on [bold]" in stream.getvalue()


def test_progress_that_nobody_wants_is_not_made() -> None:
    with show_progress("fedavg", enabled=False) as on_event:
        assert on_event is None

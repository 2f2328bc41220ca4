"""What a person sees while a run works."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import graphfed
from graphfed.cli import main
from graphfed.errors import GraphfedWarning
from graphfed.methods.registry import get_method
from graphfed.runs import folder as files
from graphfed.runs import progress
from graphfed.runs.config import make_config
from graphfed.runs.progress import human_bytes, human_seconds, log_note, show_progress, stages_of
from graphfed.runs.run import execute
from graphfed.runs.train import Event
from graphfed.tasks.loading import load_inputs


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
        "fedavg: round 1/4, val accuracy 0.5, 1.5 kB, 6.0 s left, about 8.0 s, 6.0 kB sent in all",
        "fedavg: round 2/4, val accuracy 0.5, 3.0 kB, 4.0 s left",
        "fedavg: round 4/4, val accuracy 0.5, 6.0 kB",
    ]


def test_the_first_line_counts_set_up_once_and_says_memory_and_that_a_run_may_stop_early() -> None:
    """3 s and 1 MB of set-up, then 20 rounds of 2 s and 0.1 MB."""
    stream = io.StringIO()
    with show_progress("fedgat", stream=stream) as on_event:
        assert on_event is not None
        on_event(Event("setup", 0, 20, None, 10**6, 3.0))
        on_event(Event("train", 1, 20, None, 11 * 10**5, 5.0, memory=13 * 10**8, may_stop=True))
    prediction = "38.0 s left, about 43.0 s, 3.0 MB sent, 1.3 GB of memory in all at most"
    assert (
        stream.getvalue()
        == f"fedgat: round 1/20, 1.1 MB, {prediction.replace('38.0 s', '0:38').replace('43.0 s', '0:43')}\n"
    )


def test_a_run_that_goes_on_extrapolates_from_where_it_began() -> None:
    stream = io.StringIO()
    with show_progress("fedavg", stream=stream) as on_event:
        assert on_event is not None
        on_event(Event("setup", 10, 20, None, 1000, 50.0))
        on_event(Event("train", 11, 20, None, 1100, 51.0))
    assert "9.0 s left, about 1:00, 2.0 kB sent in all" in stream.getvalue()


#: The timers that were started and neither fired nor were cancelled.
RUNNING: "list[Timer]" = []


class Timer:
    """A timer that fires when the test says so."""

    def __init__(self, seconds: float, fire: Callable[[], None]) -> None:
        self.seconds, self.fire = seconds, fire

    def start(self) -> None:
        RUNNING.append(self)

    def cancel(self) -> None:
        RUNNING.remove(self)


def test_a_stage_that_is_soon_over_is_not_shown_and_a_long_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.threading, "Timer", Timer)
    RUNNING.clear()
    stream = io.StringIO()
    with show_progress("fedavg", stream=stream) as on_event:
        assert on_event is not None
        begin = stages_of(on_event)
        begin("loading cora")
        on_event(event(4))  # what was begun is over
        assert not RUNNING
        begin("partitioning")
        begin("drawing")  # shown in the place of what came before
        (timer,) = RUNNING
        assert timer.seconds == 2
        RUNNING.pop().fire()
        begin("writing")
        assert [timer.seconds for timer in RUNNING] == [5]
    assert not RUNNING
    assert stream.getvalue().splitlines()[1:] == ["fedavg: drawing"]


@pytest.mark.parametrize(
    ("method", "task", "split"),
    [("fedavg", "classification", "1797 nodes"), ("central", "link_prediction", "6309 edges")],
)
def test_a_run_says_what_it_works_on_from_loading_to_writing(
    method: str, task: str, split: str, tmp_path: Path
) -> None:
    """Over the real entry point: the stages of a run that is watched."""
    config = make_config(method, task=task, clients=2, rounds=1, threads=1)
    events: list[Event] = []
    inputs = load_inputs(config, on_stage=stages_of(events.append))
    with files.open_folder(tmp_path / "run"):
        execute(config, inputs, folder=tmp_path / "run", command="test", on_event=events.append)
    stages = [one.note for one in events if one.phase == "stage"]
    words = (
        "loading digits",
        f"splitting {split}",
        "partitioning",
        "drawing",
        "distributing",
        f"setting up {method}",
    )
    expected = (*words, "training: round 1", "scoring", "writing")
    assert len(stages) == len(expected)
    assert all(word in stage for word, stage in zip(expected, stages, strict=True))


@pytest.mark.parametrize(
    ("method", "settings", "stages"),
    [
        ("fedgat", {}, ["message before training"]),
        (
            "lumos",
            {},
            ["comparing degrees", "balancing the trees: round 1", "encoding", "building the trees"],
        ),
        ("lumos", {"balancer": "mcmc", "mcmc_steps": 2}, ["step 2 of 2 of the Markov chain"]),
        ("sapgnn", {}, ["in common", "preparing the layers"]),
        ("ppgnn", {}, ["in common", "preparing the layers"]),
        ("fedgcn", {}, ["features of neighbours"]),
        (
            "fedgcn",
            {"exchange": "encrypted", "protocols": "simulated"},
            ["making and sending keys", "encrypting"],
        ),
        ("lpgnn", {}, ["adding noise"]),
    ],
)
def test_set_up_says_what_it_works_on(method: str, settings: dict[str, Any], stages: list[str]) -> None:
    graph = {"data.num_nodes": 60, "data.features": 6, "data.average_degree": 4, "data.communities": 3}
    options = {"data": "social", "rounds": 1, "split": "random:0.5,0.2,0.3", "threads": 1}
    clients = None if get_method(method).partition == "ego" else 3
    config = make_config(method, clients=clients, settings={**graph, **settings}, **options)
    events: list[Event] = []
    execute(config, load_inputs(config), folder=None, command="test", on_event=events.append)
    notes = [one.note for one in events if one.phase == "stage"]
    for stage in stages:
        assert any(stage in one for one in notes), notes


def test_a_run_that_stops_early_still_reports_its_last_round() -> None:
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


@pytest.mark.parametrize("phase", ["label", "stage", "note", "metric"])
def test_text_in_square_brackets_is_shown_as_it_is_and_a_terminal_obeys_none(phase: str) -> None:
    text, stream = "[/red] on [bold]\x1b]0;title\x07", Terminal()
    with show_progress(text if phase == "label" else "fedavg", stream=stream) as on_event:
        assert on_event is not None
        if phase == "metric":
            on_event(Event("done", 4, 4, {text: 0.5}, 0, 0.0))
        elif phase != "label":
            on_event(Event(phase, note=text))
    assert r"[/red] on [bold]\x1b]0;title\x07" in stream.getvalue()
    assert "\x1b]" not in stream.getvalue()


def test_progress_that_nobody_wants_is_not_made() -> None:
    with show_progress("fedavg", enabled=False) as on_event:
        assert on_event is None


# ---- programs ----------------------------------------------------------------------------------------------


def noisy_data() -> Data:
    """A graph with a loop, which is dropped, and without features and masks, which is remarked on."""
    return Data(
        edge_index=torch.tensor([[0, 1, 2, 3, 4, 5, 5], [1, 2, 3, 4, 5, 0, 5]]), y=torch.arange(6) % 2
    )


@pytest.mark.parametrize("study", [False, True], ids=["run", "compare"])
def test_a_program_gets_each_remark_on_the_data_once_as_a_warning_at_its_own_line(
    study: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"data": noisy_data(), "clients": 2, "partition": "random", "rounds": 1, "out": False}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if study:
            graphfed.compare(["fedavg"], seeds=[0, 1], **asked)
        else:
            graphfed.run("fedavg", **asked)
    found = [each for each in found if issubclass(each.category, GraphfedWarning)]
    texts = [str(each.message) for each in found]
    for part in ("not used: ", "has no features", "has no split"):
        assert sum(part in text for text in texts) == 1, part
    assert {each.filename for each in found} == {__file__}
    assert capsys.readouterr().err == ""


def test_with_progress_remarks_are_printed_and_are_no_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphfedWarning)
        graphfed.compare(
            ["fedavg"],
            data=noisy_data(),
            clients=2,
            partition="random",
            rounds=1,
            seeds=[0],
            out=False,
            progress=True,
        )
    assert "has no features" in capsys.readouterr().err


def test_the_warnings_of_a_result_are_warnings_of_its_run_and_the_command_line_prints_them_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    asked = {"clients": 2, "rounds": 3}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = graphfed.run("fedavg", **asked, out=False)
    assert result.details["warnings"]
    assert [str(each.message) for each in found] == [each["text"] for each in result.details["warnings"]]
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["run", "fedavg", "--clients", "2", "--rounds", "3", "--no-progress", "--no-report"]) == 0
    printed = capfd.readouterr().err
    for each in result.details["warnings"]:
        assert printed.count(each["text"]) == 1


def test_messages_about_long_steps_are_logged_for_a_program(caplog: pytest.LogCaptureFixture) -> None:
    event = Event("note", note="what takes long\x1b")
    with caplog.at_level("INFO", "graphfed"):
        log_note(event)
        log_note(Event("train", note="no message"))
    assert [record.getMessage() for record in caplog.records] == ["what takes long\\x1b"]

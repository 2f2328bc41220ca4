"""What the apps of a job do when calls and outcomes of its participants arrive late, and what the coordinator
accepts as the outcomes of a job.
"""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphfed.errors import GraphfedError
from graphfed.files import write_json
from graphfed.runtime.nvflare.coordinator import DONE_STATUS, OUTCOMES, Coordinator
from graphfed.runtime.nvflare.place import Place
from graphfed.runtime.nvflare.requests import Request

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare import apps

REQUEST = Request(
    project="banks",
    time=1,
    run="run-1",
    program="train",
    arguments={"run": "run-1"},
    sites=["north"],
    workers=[[0]],
    beat=1.0,
    give_up=1.0,
    patience=1.0,
)


def test_an_outcome_that_arrives_while_a_site_is_given_up_is_the_one_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, over = apps.ServerApp(""), threading.Event()
    running = app._running = apps._Running("run-1", ["north"], {"north": 0.0})
    app.mailbox.begin("run-1")
    monkeypatch.setattr(apps, "collab", SimpleNamespace(caller="north"))
    close = app.mailbox.close

    def arrives(*given: Any, **more: Any) -> None:
        over.set()
        monkeypatch.setattr(app.mailbox, "close", close)
        app.ended("run-1", json.dumps({"kind": "input", "text": "no data"}))

    monkeypatch.setattr(app.mailbox, "close", arrives)
    app._watch(running, 1.0, SimpleNamespace(is_aborted=lambda: False), over)
    assert running.ended == {"north": {"kind": "input", "text": "north: no data"}}


def test_the_outcome_of_an_earlier_run_changes_nothing_in_the_present_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = apps.ServerApp("")
    earlier = apps._Running("run-0", ["north"], {"north": 0.0})
    app._running = apps._Running("run-1", ["north"], {"north": 0.0})
    app.mailbox.begin("run-1")
    monkeypatch.setattr(apps, "collab", SimpleNamespace(caller="north"))
    app.ended("run-0", json.dumps({"kind": "failed"}))
    app._give_up(earlier, "north", "is gone")
    assert app._running.ended == {}
    assert not app.mailbox.closed("north")


@pytest.mark.parametrize(("run", "stopped"), [("run-1", True), ("run-0", False)])
def test_a_stop_ends_the_run_that_it_names_even_before_the_run_s_thread_has_begun(
    run: str, stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: list[Callable[[], None]] = []

    class Waiting(threading.Thread):
        def start(self) -> None:
            work.append(self.run)

    class Begun(Exception):
        """The program would begin now."""

    def load(folder: Path) -> None:
        raise Begun

    app = apps.SiteApp()
    monkeypatch.setattr(apps, "collab", SimpleNamespace(caller="server", clients=[], server=None))
    for name, value in {
        "this_place": lambda: Place("north", tmp_path),
        "load_startup_kit": lambda folder: None,
        "accepted": lambda *given, **more: REQUEST,
        "get_call_context": lambda: None,
        "set_call_context": lambda context: None,
        "post_to": lambda name, proxy: None,
        "Identity": SimpleNamespace(load=load),
        "_repeated": lambda call, give_up: None,
    }.items():
        monkeypatch.setattr(apps, name, value)
    monkeypatch.setattr(threading, "Thread", Waiting)
    assert app.start(json.dumps({"request": "{}", "session": "job", "time": 0.0})) == ""
    app.stop(run, "stopped the run")
    work[0]()
    assert app.mailbox.closed("server") is stopped


DONE = {"run": "run-1", "kind": "done", "statements": {}}


@pytest.mark.parametrize(
    "outcomes",
    [
        [],
        [DONE, DONE],
        [{**DONE, "run": "run-0"}],
        [{**DONE, "kind": "finished"}],
        [{"run": "run-1"}],
        [{"run": "run-1", "kind": "failed"}],
        ["done"],
        None,
    ],
)
def test_outcomes_of_another_form_are_no_result(
    outcomes: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(act: Callable[[Any], object]) -> object:
        def download(job: str, folder: str) -> str:
            write_json(Path(folder) / "workspace" / OUTCOMES, {"outcomes": outcomes, "events": []})
            return folder

        return act(SimpleNamespace(download_job_result=download))

    kit = SimpleNamespace(project=SimpleNamespace(timing=None), folder=tmp_path)
    coordinator = Coordinator(kit)  # type: ignore[arg-type]
    monkeypatch.setattr(coordinator, "_ask", served)
    with pytest.raises(GraphfedError, match="the run has ended, but its result could not be fetched"):
        coordinator._results("job", DONE_STATUS, [{"run": "run-1"}], tmp_path)

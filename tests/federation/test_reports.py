"""What every worker reports reaches the server as plain JSON, or is refused in one line."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import MemoryLink, run_apart

from graphfed.errors import PlaceError
from graphfed.federation import CLIENTS, Federation, ReceivedError, StageError, wire
from graphfed.federation.ledger import Ledger
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.operations import control as control_module
from graphfed.federation.state import accept_roster
from graphfed.federation.wire import WireError
from graphfed.files import refuse_constant
from graphfed.runtime.processes import Workers

WORKERS = [(0, 1), (2,), (3, 4)]
#: What the workers report, in order.
REPORTS = [{"columns": ["age", "income"]}, "Zürich \ud800", None]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def say(fed: Federation, content: list[Any]) -> Any:
    """Report the content of every worker in this process. Returns what the server has; None elsewhere."""
    with fed.phase("setup", round_number=0):
        reports = fed.report(fed.locate(CLIENTS, "content", [content[h] for h in fed.here]), name="join")
    return reports.parts[0] if fed.server_is_here else None


def in_a_process(fed: Federation, arguments: Any, log: Any) -> dict[str, Any]:
    return {"said": json.dumps(say(fed, arguments)), "up": up_bytes(fed.ledger)}


def up_bytes(ledger: Ledger) -> list[int]:
    """What this place has seen each client send, in bytes."""
    return np.sum([np.zeros(ledger.num_clients), *(e.sent for e in ledger.entries)], axis=0).tolist()


def lengths(content: list[Any], workers: list[tuple[int, ...]]) -> list[int]:
    """The bytes of every worker's JSON, at its first client."""
    per_client = [0] * sum(map(len, workers))
    for h, value in zip(workers, content, strict=True):
        per_client[h[0]] = len(json.dumps(value))
    return per_client


# ---- the same everywhere -----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(JSON, min_size=3, max_size=3))
def test_the_server_has_every_workers_report_in_order_in_every_placement(content: list[Any]) -> None:
    together = Federation(WORKERS)
    apart = run_apart(WORKERS, lambda fed: say(fed, content))
    assert say(together, content) == apart[SERVER_INDEX][0] == content
    assert up_bytes(together.ledger) == up_bytes(apart[SERVER_INDEX][1].ledger) == lengths(content, WORKERS)


def test_a_place_counts_its_own_report_and_the_server_all() -> None:
    apart = run_apart(WORKERS, lambda fed: say(fed, REPORTS))
    every = lengths(REPORTS, WORKERS)
    assert up_bytes(apart[SERVER_INDEX][1].ledger) == every
    for h, clients in enumerate(WORKERS):
        assert apart[h][0] is None
        own = [every[k] if k in clients else 0 for k in range(5)]
        assert up_bytes(apart[h][1].ledger) == own


@pytest.mark.parametrize("workers", [[(0, 1, 2)], [(0,), (1,), (2,)]], ids=["stacked", "one at a time"])
def test_a_report_is_of_a_worker_and_a_stacked_cohort_makes_one(workers: list[tuple[int, ...]]) -> None:
    fed, content = Federation(workers), [{"worker": list(h)} for h in workers]
    assert say(fed, content) == content
    assert up_bytes(fed.ledger) == lengths(content, workers)


@pytest.mark.slow
def test_reports_are_the_same_between_processes() -> None:
    workers = [(0, 1), (2,)]
    with Workers(workers) as clients:
        found = clients.run("test_reports:in_a_process", dict.fromkeys([SERVER_INDEX, 0, 1], REPORTS[:2]))
    every = lengths(REPORTS[:2], workers)
    assert found[SERVER_INDEX] == {"said": json.dumps(REPORTS[:2]), "up": tuple(every)}
    assert found[0] == {"said": "null", "up": (every[0], 0, 0)}
    assert found[1] == {"said": "null", "up": (0, 0, every[2])}


# ---- what cannot be said -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "why"),
    [(float("nan"), "Out of range"), ({1, 2}, "set is not JSON serializable"), (b"x", "bytes is not JSON")],
    ids=["nan", "set", "bytes"],
)
def test_what_is_not_json_is_refused_where_it_is_said(value: Any, why: str) -> None:
    with pytest.raises(StageError, match=rf"client 2 failed in '_as_report' .*{why}"):
        say(Federation(WORKERS), [None, value, None])


def test_a_report_of_the_longest_length_arrives_and_one_character_more_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_module, "MAX_REPORT", 10)
    assert say(Federation([(0,)]), ["x" * 8]) == ["x" * 8]
    with pytest.raises(StageError, match=r"11 characters \(at most 10\)"):
        say(Federation([(0,)]), ["x" * 9])


def test_a_report_needs_every_worker() -> None:
    fed = Federation(WORKERS)
    fed.set_roster(np.array([True, True, False, True, True]))
    with pytest.raises(PlaceError, match=r"transfer 'join' needs every client, but clients \[2\] are absent"):
        say(fed, REPORTS)


# ---- a peer that sends something else ----------------------------------------------------------------------


class OneMessage:
    """The server's link to a worker that has sent one message, whatever it is asked for."""

    def __init__(self, message: bytes) -> None:
        self.message = message

    def send(self, to: int, key: str, message: bytes) -> None:
        raise AssertionError("the server sends nothing")

    def recv(self, sender: int, key: str) -> bytes:
        return self.message


def hear(payload: Any) -> Federation:
    """The server's federation once worker 0 has sent a payload as its report."""
    link = OneMessage(wire.encode(payload, grad=(), dtypes=()))
    fed = Federation([(0,)], here=[], link=link)
    say(fed, [])
    return fed


@pytest.mark.parametrize(
    "payload",
    [
        7,
        None,
        {"content": "{}"},
        "",
        "no JSON",
        '{"a": 1',
        "[NaN]",
        "Infinity",
        "[" * 100_000,
        "9" * 5000,
        '"\ud800"',
        '"' + "x" * control_module.MAX_REPORT + '"',
    ],
    ids=lambda p: repr(p)[:12],
)
def test_anything_but_json_from_a_worker_is_an_error_that_names_it_and_quotes_nothing(payload: Any) -> None:
    with pytest.raises(
        WireError, match=r"^'join' from client 0 is (not a text of at most|not JSON: )"
    ) as caught:
        hear(payload)
    assert len(str(caught.value)) < 100


@given(st.text())
def test_any_text_from_a_worker_is_its_json_or_refused_and_then_not_counted(text: str) -> None:
    fed = Federation([(0,)], here=[], link=OneMessage(wire.encode(text, grad=(), dtypes=())))
    try:
        expected = json.loads(text, parse_constant=refuse_constant)
    except ValueError:
        with pytest.raises(WireError, match="'join' from client 0"):
            say(fed, [])
        assert up_bytes(fed.ledger) == [0]
    else:
        assert say(fed, []) == [expected]
        assert up_bytes(fed.ledger) == [len(text.encode())]


def test_control_that_is_not_json_is_an_error_at_the_worker() -> None:
    link = OneMessage(wire.encode("[" * 900, grad=(), dtypes=()))
    fed = Federation([(0,)], here=[0], server_here=False, link=link)
    with pytest.raises(ReceivedError, match=r"^server sent something else than a decision: it is not JSON"):
        fed.control(dict)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ([1], "list where named values are expected"),
        ({"stop": True, "roster": None}, "no value 'round' where int is expected"),
        ({"stop": True, "round": 1, "roster": None, "a\x1b[2J": 1}, r"'a\\x1b\[2J' = 1 where nothing"),
        ({"stop": 1, "round": 1, "roster": None}, "'stop' = 1 where bool is expected"),
        ({"stop": True, "round": True, "roster": None}, "'round' = True where int is expected"),
        ({"stop": True, "round": -1, "roster": None}, "'round' = -1 where a number of at least 0"),
        ({"stop": True, "round": 1, "roster": 5}, r"'roster' = 5 where str \| None is expected"),
        ({"stop": True, "round": 1, "roster": "e"}, "'roster' = 'e' where bits of the 3 clients"),
        ({"stop": True, "round": 1, "roster": "\u0663\u0664"}, "'roster' = .* where bits of the 3 clients"),
        ({"stop": True, "round": 1, "roster": "00"}, "'roster' = '00' where bits of the 3 clients"),
        ({"stop": True, "round": 1, "roster": "e0ff"}, "'roster' = 'e0ff' where bits of the 3 clients"),
    ],
    ids=str,
)
def test_a_decision_of_the_server_has_the_values_that_the_client_expects(sent: Any, why: str) -> None:
    values: Any = {"stop": bool, "round": int, "roster": str | None}

    def control(decision: Any) -> Any:
        link = OneMessage(wire.encode(json.dumps(decision), grad=(), dtypes=()))
        fed = Federation([(0,), (1,), (2,)], here=[0], server_here=False, link=link)
        return fed.control(dict, values=values, accept=partial(accept_roster, 3))

    good = {"stop": True, "round": 1, "roster": "e0"}
    assert control(good) == good
    with pytest.raises(ReceivedError, match=rf"^server sent {why}.*\(transfer 'control', round 0\)"):
        control(sent)


def test_controls_of_two_names_are_distinct_on_the_ledger_and_between_places() -> None:
    """The names also go into the keys of the messages."""

    def program(fed: Federation) -> list[Any]:
        number = fed.locate("server", "number", [1] * fed.server_is_here)
        return [fed.control(decide, number), fed.control(decide, number, name="agreed")]

    keys: list[str] = []

    class Noted(MemoryLink):
        def send(self, to: int, key: str, message: bytes) -> None:
            keys.append(key)
            super().send(to, key, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("placements.MemoryLink", Noted)
        apart = run_apart([(0,)], program)
    assert apart[SERVER_INDEX][0] == apart[0][0] == [{"number": 1}, {"number": 1}]
    assert keys == ["0/1/control/-1>0", "0/2/agreed/-1>0"]
    for _, fed in apart.values():
        assert {entry["name"] for entry in fed.ledger.to_json()["entries"]} == {"control", "agreed"}


def decide(number: int) -> dict[str, Any]:
    return {"number": number}

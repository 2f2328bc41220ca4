"""A text that another participant or a file supplies reaches a terminal and a message in one short, printable
line: control characters, escapes of a terminal and marks of text direction are shown by their escapes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphfed.cli import main
from graphfed.deployment.participant import _agree
from graphfed.errors import InputError, shown
from graphfed.federation import wire
from graphfed.federation.ledger import Flow
from graphfed.federation.link import _open
from graphfed.federation.operations.control import _check_values
from graphfed.federation.received import Received, ReceivedError
from graphfed.federation.transfer import Transfer, describe_value

#: Clears a terminal, turns the direction of text, hides a character, and ends a line.
HOSTILE = "a\x1b[2J\u202e\u200b\r\nb\x07" * 20


def message_of(error: type[Exception], fn: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(error) as caught:
        fn(*arguments)
    return str(caught.value)


def join(**changed: Any) -> str:
    """What the server says of a site that joins with this."""
    report = {
        "versions": {"graphfed": "1"}, "clients": 1, "declared": {}, "schema": {}, "config": "c", "data": "d",
        "clock": 0.0, "rounds": [], **changed,
    }  # fmt: skip
    return message_of(
        InputError, _agree, [report], ("site-1",), (1,), {"graphfed": "2"}, "c", (), lambda *_: {}, None
    )


def refused(payload: Any, like: Any) -> str:
    """What a client says of a payload of the server."""
    checks = Received(lambda _: "server", [(0,)])
    transfer = Transfer(
        "x", "broadcast", Flow.up(*[torch.ones(1, dtype=torch.bool).numpy()] * 2), leading=False
    )
    return message_of(ReceivedError, checks.check, transfer, {(-1, 0): payload}, {}, {}, like, 1)


def header(**changed: Any) -> str:
    """What a receiver says of a message with this header."""
    text = json.dumps({"payload": {"v": 1}, "grad": [], "dtypes": [], **changed}).encode()
    message = len(text).to_bytes(8, "little") + text + wire.encode({})[8 + len(b'{"payload": {"d": []}}') :]
    return message_of(wire.WireError, _open, message, torch.device("cpu"))


TEXTS: dict[str, Callable[[], str]] = {
    "the version of a site": lambda: join(versions={"graphfed": HOSTILE}),
    "a key of a report": lambda: join(declared={HOSTILE: [1]}),
    "a tensor too many": lambda: refused({"w": torch.ones(1), HOSTILE: torch.ones(1)}, {"w": torch.ones(1)}),
    "another tensor": lambda: refused({HOSTILE: torch.ones(1)}, torch.ones(1)),
    "a payload of text": lambda: describe_value(HOSTILE),
    "a payload with keys": lambda: describe_value({HOSTILE: {HOSTILE: HOSTILE}}),
    "a value of a decision": lambda: _check_values({"stop": HOSTILE}, {"stop": bool}),
    "a value too many of a decision": lambda: _check_values({HOSTILE: HOSTILE}, {}),
    "the dtypes of a message": lambda: header(dtypes=[HOSTILE]),
    "the gradients of a message": lambda: header(grad=HOSTILE),
    "the structure of a message": lambda: header(payload={HOSTILE: 1}),
    "any text": lambda: shown(HOSTILE),
}


@pytest.mark.parametrize("origin", TEXTS)
def test_a_message_about_a_foreign_text_is_one_short_printable_line(origin: str) -> None:
    text = TEXTS[origin]()
    assert text.isprintable(), text
    assert len(text) < 800


@pytest.mark.parametrize(
    "command",
    [
        ["run", HOSTILE],
        ["run", "fedavg", "--data", HOSTILE],
        ["run", "fedavg", "--plugin", HOSTILE],
        ["run", "fedavg", "--set", f"{HOSTILE}=1"],
        ["run", "fedavg", "--set", f"network={HOSTILE}"],
        ["run", "fedavg", "--config", HOSTILE],
        ["report", HOSTILE],
        ["audit", HOSTILE],
        ["predict", HOSTILE],
        ["resume", HOSTILE],
        ["data", "inspect", HOSTILE],
        ["site", "start", HOSTILE],
    ],
    ids=lambda words: " ".join(words)[:24].strip(),
)
def test_a_command_prints_no_control_character_of_its_arguments(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert all(c.isprintable() or c == "\n" for c in out + err), ascii(out + err)

"""A request of a run is checked completely, its names by one list of what is allowed, before it is used."""

import json
from typing import Any

import pytest

from graphfed.errors import InputError
from graphfed.runtime.nvflare.project import Project, Site
from graphfed.runtime.nvflare.requests import Request, check_name, read_request

PROJECT = Project("banks", (Site("north"), Site("south", 2)))
PLAIN: dict[str, Any] = {
    "project": "banks",
    "time": 1,
    "run": "fedavg-1",
    "program": "train",
    "arguments": {"run": "fedavg-1"},
    "sites": ["north", "south"],
    "workers": [[0], [1, 2]],
    "simulated": False,
    "beat": 2.0,
    "give_up": 30.0,
    "patience": 600.0,
}


def test_a_request_of_the_project_is_read() -> None:
    assert read_request(json.dumps(PLAIN), PROJECT) == Request(**PLAIN)


#: For each field what cannot be used.
WRONG: dict[str, list[Any]] = {
    "run": ["", "..", "../x", "a/b", "a\\b", ".hidden", "a\n", "a" * 152, "ü", None, 1, ["a"]],
    "program": ["", "a b", "/bin/sh", "a:b:c", "..a", "a" * 201, "train\n", None, 1],
    "arguments": [None, [], "x", {}, {"run": "other"}, {"run": "fedavg-1", "sites": ["south"]}],
    "sites": [None, [], ["north"], ["south", "north"], ["north", "south", "west"], "north"],
    "workers": [None, [], [[0], [1]], [[0], [2, 1]], [[0.0], [1, 2]], [[0], [1, 2], []], [[False], [1, 2]]],
    "simulated": [None, 0, "no"],
    "beat": [0, -1.0, 1e9, None, "2", True],
    "give_up": [0, -1.0, 1e9, None, "2"],
    "patience": [0, -1.0, 1e9, None, "2"],
    "session": ["x"],
    "project": [None, "", "bank", 1],
    "time": [0, -1, 1.5, "1", None, True],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in WRONG.items() for v in values])
def test_a_wrong_field_is_refused(field: str, value: object) -> None:
    with pytest.raises(InputError):
        read_request(json.dumps({**PLAIN, field: value}), PROJECT)


@pytest.mark.parametrize("field", [field for field in PLAIN if field != "simulated"])
def test_a_missing_field_is_refused_and_named(field: str) -> None:
    content = {key: value for key, value in PLAIN.items() if key != field}
    with pytest.raises(InputError, match=f"the request of a run has no '{field}'"):
        read_request(json.dumps(content), PROJECT)


@pytest.mark.parametrize(
    "text",
    [
        None, 5, b"{}", "", "[]", "{", '{"run": NaN}', "[" * 100 + "]" * 100,
        json.dumps({**PLAIN, "arguments": {"run": "fedavg-1", "config": {"hidden": 2**63}}}),
        json.dumps({**PLAIN, "arguments": {"run": "fedavg-1", "config": [[-(2**70)]]}}),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(text: object) -> None:
    with pytest.raises(InputError):
        read_request(text, PROJECT)


def test_a_name_has_no_character_that_means_anything_in_a_path() -> None:
    for code in range(0x3000):
        name = f"a{chr(code)}"
        if chr(code) in "._-" or (chr(code).isascii() and chr(code).isalnum()):
            assert check_name(name, "the run") == name
        else:
            with pytest.raises(InputError):
                check_name(name, "the run")

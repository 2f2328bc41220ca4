"""Who has asked for a run, and what the sites state that they ran: every change by the server is refused."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from graphfed.errors import InputError

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.crypto.channel import Identity
from graphfed.runtime.nvflare import signed
from graphfed.runtime.nvflare.project import Project, Site
from graphfed.runtime.nvflare.requests import canonical, differences
from graphfed.runtime.nvflare.signed import (
    Refused,
    accepted,
    check_statements,
    content_of,
    sign_request,
    sign_statement,
)
from graphfed.runtime.nvflare.startup_kits import StartupKit, load_startup_kit, provision

SITES = ("north", "south")
RUN: dict[str, Any] = {
    "run": "fedavg-1",
    "program": "train",
    "arguments": {"run": "fedavg-1", "config": {"aggregation": "secure", "rounds": 5}},
    "workers": [[0], [1]],
}


def kits_in(folder: Path) -> dict[str, StartupKit]:
    made = provision(Project("banks", tuple(map(Site, SITES))), folder)
    return {name: load_startup_kit(path) for name, path in made.items()}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StartupKit]:
    return kits_in(tmp_path_factory.mktemp("kits") / "startup_kits")


@pytest.fixture(autouse=True)
def nothing_accepted(kits: Mapping[str, StartupKit]) -> None:
    for kit in kits.values():
        (kit.folder / signed.NEWEST).unlink(missing_ok=True)


def resigned(text: str, identity: Identity, kind: str = signed.REQUEST, **changed: Any) -> str:
    """Another content, signed by another participant."""
    return signed._sign(identity, kind, canonical({**json.loads(content_of(text)), **changed}))


def test_every_participant_accepts_a_request_once_and_the_server_relays_it(
    kits: Mapping[str, StartupKit],
) -> None:
    text = sign_request(RUN, kits["coordinator"])
    for name in SITES:
        assert accepted(text, kits[name], once=True).arguments == RUN["arguments"]
        with pytest.raises(Refused, match="not newer than one that was accepted here before"):
            accepted(text, kits[name], once=True)
    for _ in range(2):
        assert accepted(text, kits["server"], once=False).run == "fedavg-1"


def test_an_older_request_is_refused_after_a_newer_one(kits: Mapping[str, StartupKit]) -> None:
    first, second = (sign_request(RUN, kits["coordinator"]) for _ in range(2))
    accepted(second, kits["north"], once=True)
    with pytest.raises(Refused, match="not newer"):
        accepted(first, kits["north"], once=True)
    accepted(first, kits["south"], once=True)
    accepted(second, kits["south"], once=True)


@pytest.mark.parametrize(
    ("seconds", "said"), [(120, "s after the time of this machine"), (-8 * 86400, "8 days old")]
)
def test_a_request_from_another_time_is_refused(
    seconds: int, said: str, kits: Mapping[str, StartupKit]
) -> None:
    at = time.time_ns() + seconds * 10**9
    coordinator = Identity.load(kits["coordinator"].folder)
    text = resigned(sign_request(RUN, kits["coordinator"]), coordinator, time=at)
    with pytest.raises(Refused, match=said):
        accepted(text, kits["north"], once=True)
    assert not (kits["north"].folder / signed.NEWEST).exists()


def test_no_byte_of_a_signed_request_can_be_changed(kits: Mapping[str, StartupKit]) -> None:
    """Every 7th character of the whole text, replaced by another one of its kind."""
    text = sign_request(RUN, kits["coordinator"])
    for place in range(0, len(text), 7):
        other = "1" if text[place] == "0" else "0"
        with pytest.raises((Refused, InputError)):
            accepted(text[:place] + other + text[place + 1 :], kits["north"], once=True)


def test_only_the_coordinator_of_the_project_can_ask(kits: Mapping[str, StartupKit], tmp_path: Path) -> None:
    text = sign_request(RUN, kits["coordinator"])
    server = kits["server"].folder / "startup"
    others = {
        "'server' has, in the role ''": Identity.from_files(
            server / "server.key", server / "server.crt", server / "rootCA.pem"
        ),
        "'south' has, in the role ''": Identity.load(kits["south"].folder),
        # The same names from another authority.
        "the project's root does not vouch for it": Identity.load(
            kits_in(tmp_path / "others")["coordinator"].folder
        ),
    }
    for said, identity in others.items():
        with pytest.raises(Refused, match=said.replace("(", r"\(")):
            accepted(resigned(text, identity), kits["north"], once=True)


def test_a_signature_over_a_statement_is_none_over_a_request(kits: Mapping[str, StartupKit]) -> None:
    coordinator = Identity.load(kits["coordinator"].folder)
    text = resigned(sign_request(RUN, kits["coordinator"]), coordinator, kind=signed.STATEMENT)
    with pytest.raises(Refused, match="altered after"):
        accepted(text, kits["north"], once=True)


def test_a_request_that_cannot_be_used_is_not_signed(kits: Mapping[str, StartupKit]) -> None:
    with pytest.raises(InputError, match="must be the name of a folder"):
        sign_request({**RUN, "run": "../x", "arguments": {"run": "../x"}}, kits["coordinator"])


@pytest.mark.parametrize("text", ["", "{}", "[]", "5", '{"content": 5}', "x" * 100])
def test_what_is_no_signed_request_is_refused(text: str, kits: Mapping[str, StartupKit]) -> None:
    with pytest.raises(Refused, match="has not signed the request in this form"):
        accepted(text, kits["north"], once=True)
    assert content_of(text) in ("", "5")


def test_differences_are_named_by_their_keys() -> None:
    found = {"run": "x", "arguments": {"config": {"aggregation": "plaintext", "rounds": 5, "more": True}}}
    asked = {"run": "x", "arguments": {"config": {"aggregation": "secure", "rounds": 5}}}
    assert differences(asked, asked) == []
    assert differences(asked, found) == [
        "arguments.config.aggregation is 'plaintext' instead of 'secure'",
        "arguments.config.more is True instead of None",
    ]
    assert differences({"a": 1}, {"a": True}) == ["a is True instead of 1"]


# ---- statements --------------------------------------------------------------------------------------------


def ledger_of(**protections: str) -> dict[str, Any]:
    """A ledger in which clients sent the server these transfers."""
    entry = {"from": "clients", "to": "server", "bytes": 8}
    return {"entries": [{**entry, "name": name, "protection": how} for name, how in protections.items()]}


def statements_of(kits: Mapping[str, StartupKit], request: str, ledger: Mapping[str, Any]) -> dict[str, str]:
    return {
        site: sign_statement(Identity.load(kits[site].folder), request, "fedavg-1", dict(ledger))
        for site in SITES
    }


def test_statements_that_agree_are_verified(kits: Mapping[str, StartupKit]) -> None:
    request, ledger = sign_request(RUN, kits["coordinator"]), ledger_of(update="aggregate")
    verified = check_statements(statements_of(kits, request, ledger), request, kits["coordinator"], ledger)
    assert verified["sites"] == list(SITES)
    assert set(verified["ledgers"]) == set(SITES)


@pytest.mark.parametrize(
    ("site_sent", "server_says", "said"),
    [
        ({"update": "plaintext"}, {"update": "aggregate"}, "north states .* 'plaintext', and .* 'aggregate'"),
        ({"update": "aggregate", "x": "plaintext"}, {"update": "aggregate"}, "'x' .* does not have it"),
        ({}, {"update": "aggregate"}, "no site states that"),
        ({"update": "simulated"}, {"update": "simulated"}, "'update' was only simulated"),
    ],
)  # fmt: skip
def test_protections_that_disagree_are_refused(
    site_sent: dict[str, str], server_says: dict[str, str], said: str, kits: Mapping[str, StartupKit]
) -> None:
    request = sign_request(RUN, kits["coordinator"])
    statements = statements_of(kits, request, ledger_of(**site_sent))
    with pytest.raises(Refused, match=said):
        check_statements(statements, request, kits["coordinator"], ledger_of(**server_says))


@pytest.mark.parametrize("settings", [{"node_ids": "simulated"}, {"noise_seed": 0}])
def test_a_simulation_that_the_coordinator_asked_for_is_verified(
    settings: dict[str, Any], kits: Mapping[str, StartupKit]
) -> None:
    run = {**RUN, "arguments": {"run": "fedavg-1", "config": settings}}
    request, ledger = sign_request(run, kits["coordinator"]), ledger_of(features="simulated")
    assert check_statements(statements_of(kits, request, ledger), request, kits["coordinator"], ledger)


def test_a_statement_about_an_earlier_request_of_the_same_run_is_refused(
    kits: Mapping[str, StartupKit],
) -> None:
    first, second = (sign_request(RUN, kits["coordinator"]) for _ in range(2))
    ledger = ledger_of(update="aggregate")
    with pytest.raises(Refused, match="north states that it ran another request"):
        check_statements(statements_of(kits, first, ledger), second, kits["coordinator"], ledger)
    mixed = {**statements_of(kits, second, ledger), "south": statements_of(kits, first, ledger)["south"]}
    with pytest.raises(Refused, match="south states that it ran another request"):
        check_statements(mixed, second, kits["coordinator"], ledger)


@pytest.mark.parametrize("statements", [None, {}, [], {"north": None}, {"north": "x", "south": "x"}])
def test_missing_statements_are_refused(statements: object, kits: Mapping[str, StartupKit]) -> None:
    request = sign_request(RUN, kits["coordinator"])
    with pytest.raises(Refused):
        check_statements(statements, request, kits["coordinator"], ledger_of())

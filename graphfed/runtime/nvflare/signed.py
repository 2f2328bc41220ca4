"""Signed requests and statements: what a run is asked to do, and what every site says that it has done.

The coordinator signs each request (`requests.Request`) with the key of its startup kit. The server only
passes it on. Every site checks by itself, before anything else (`accepted`):

- the project's root vouches for the certificate, which has the name of the project's coordinator and its
  role;
- the signature is over exactly these bytes;
- the request is for this project, its sites in their order, and their clients (`requests.read_request`);
- it is newer than every request that this site has accepted, at most a week old, and not from the future.

The site runs what the signed text says: program, method, settings, rounds, seeds, split, protections,
simulated protocols, plug-in and its digest. It takes nothing of this from the server. When it has done its
part, it signs a statement: which request it ran, by the hash of its text, which transfers it sent to whom
under which protection, and the hash of its ledger. The coordinator compares the statements of all sites with
its own request and with the ledger that the server reports (`check_statements`), and the run fails if they
disagree.

Threat model. The server may read, change, invent, repeat, hold back and drop requests and statements. The
keys of the coordinator, of the sites and of the authority are secret, and signatures cannot be forged.

What holds then: a site sends values only under the method, the settings and the protections that the
coordinator has asked for, each request once. A run is reported as done only if every site has run the request
of this coordinator, and the protections in its report are those of the sites' own ledgers.

What does not: the server can refuse or delay a run (for a week, if the coordinator sends no other request).
It still takes part in the method: it can send wrong models and sums, which a signature cannot prevent. It can
report wrong metrics. A dishonest site can sign a wrong statement. If a site loses `requests.json` of its
startup kit, a request of the last week can be repeated there once. Who has the authority's key can sign as
the coordinator.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from typing_extensions import TypedDict

from graphfed.crypto.channel import ChannelError, Identity, check_signature, read_certificate
from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import JsonObject, parse_json, read_regular, write_json
from graphfed.runtime.nvflare.requests import Asked, Request, canonical, checked, read_request
from graphfed.runtime.nvflare.rules import ROLE
from graphfed.runtime.nvflare.startup_kits import StartupKit

#: What is signed begins with one of these, so that a signature over one kind of text is none over another.
REQUEST, STATEMENT = "graphfed request 1\n", "graphfed statement 1\n"
#: The file of a site with the time of the newest request that it has accepted, in nanoseconds.
NEWEST = "requests.json"
#: Seconds after which a request is refused, and by which the coordinator's clock may be ahead.
OLDEST, AHEAD = 7 * 86400, 60


class Refused(GraphfedError):
    """A request or a statement that its author has not signed in this form, or that was used before."""


class Signed(Asked):
    """A text, its author's signature over the kind of the text and the text, and the author's certificate
    (DER).
    """

    content: str
    certificate: str = Field(pattern=r"^([0-9a-f]{2})+$", max_length=20_000)
    signature: str = Field(pattern=r"^([0-9a-f]{2})+$", max_length=4_000)


class Statement(Asked):
    """What a site says about its part of a run.

    Attributes:
        request: The hash of the request that the site ran.
        sent: (transfer, receiver, protection) of everything that the site's clients sent, sorted.
        ledger: The hash of the site's ledger.
    """

    run: str
    request: str
    sent: list[list[str]]
    ledger: str


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sign(identity: Identity, kind: str, content: str) -> str:
    signed = Signed(
        content=content,
        certificate=identity.encoded_certificate.hex(),
        signature=identity.sign((kind + content).encode()).hex(),
    )
    return canonical(signed.model_dump())


def _verified(text: str, kind: str, root: Path, name: str, role: str) -> str:
    """Return the text that the participant `name`, in this role, has signed; Refused if it has not."""
    what = kind.split()[1]
    try:
        signed = checked(parse_json(text), Signed, f"the signed {what}")
        certificate, signature = bytes.fromhex(signed.certificate), bytes.fromhex(signed.signature)
        signer = check_signature(
            read_certificate(root), certificate, (kind + signed.content).encode(), signature
        )
    except (ValueError, InputError, ChannelError) as error:
        raise Refused(f"{name} has not signed the {what} in this form: {error}") from None
    # Every participant has a certificate of the same root; a site must not sign as the coordinator.
    if (signer.name, signer.role) != (name, role):
        raise Refused(
            f"{name} has not signed the {what}: {shown(signer.name)} has, in the role {shown(signer.role)}"
        )
    return signed.content


def content_of(text: str) -> str:
    """Return the text of what is said to be signed, without any check, for messages; "" if there is none."""
    try:
        return str(parse_json(text)["content"])
    except (ValueError, KeyError, TypeError):
        return ""


# ---- requests ----------------------------------------------------------------------------------------------


def sign_request(run: Mapping[str, Any], startup_kit: StartupKit) -> str:
    """Sign the request of a run, after the checks that every participant makes.

    `run` has the fields of a `Request`, except those that follow from the project, and the time.
    """
    project = startup_kit.project
    content = canonical(
        {
            **run,
            "project": project.name,
            "sites": [site.name for site in project.sites],
            "beat": project.timing.beat,
            "give_up": project.timing.give_up,
            "patience": project.timing.deadline,
            "time": time.time_ns(),
        }
    )
    # A request that participants would refuse is refused here, before anybody waits for it.
    read_request(content, project)
    return _sign(Identity.load(startup_kit.folder), REQUEST, content)


def accepted(text: str, startup_kit: StartupKit, *, once: bool) -> Request:
    """Check a signed request completely.

    With `once`, a request that is not newer than all earlier ones is refused, and its time is remembered.

    Raises:
        InputError: What is asked for cannot be used.
        Refused: The coordinator has not signed it, or it is not new.
    """
    root, project = startup_kit.folder / "startup" / "rootCA.pem", startup_kit.project
    # The signature comes first: nothing that the coordinator has not signed is read.
    request = read_request(_verified(text, REQUEST, root, project.coordinator, ROLE), project)
    if once:
        _use_once(request.time, startup_kit.folder / NEWEST)
    return request


def _use_once(asked_at: int, file: Path) -> None:
    """Refuse a request from a time that cannot be; otherwise remember the time."""
    ahead = asked_at / 1e9 - time.time()
    if ahead > AHEAD:
        raise Refused(
            f"the request is from {ahead:.0f} s after the time of this machine (at most {AHEAD} are "
            "allowed); synchronise the clocks of the coordinator and the sites with network time (NTP)"
        )
    if -ahead > OLDEST:
        raise Refused(
            f"the request is {-ahead / 86400:.0f} days old (at most {OLDEST // 86400} are allowed); start "
            "the run again"
        )
    newest = int(parse_json(read_regular(file))["newest"]) if file.exists() else 0
    if asked_at <= newest:
        raise Refused(
            "the request is not newer than one that was accepted here before: the server has repeated it, or "
            "the clock of the coordinator was set back; start the run again"
        )
    # It is remembered before the run begins, so that a run that fails cannot be repeated either.
    write_json(file, {"newest": asked_at})


# ---- statements --------------------------------------------------------------------------------------------


def sign_statement(identity: Identity, request: str, run: str, ledger: JsonObject) -> str:
    """Sign what a site has done in a run, with the ledger, for the signed request that it ran."""
    statement = Statement(
        run=run,
        request=digest(content_of(request)),
        sent=[list(each) for each in sorted(_sent(ledger))],
        ledger=digest(canonical(ledger)),
    )
    return _sign(identity, STATEMENT, canonical(statement.model_dump()))


def _sent(ledger: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (str(entry["name"]), str(entry["to"]), str(entry["protection"]))
        for entry in ledger["entries"]
        if entry["from"] == "clients" and entry["bytes"]
    }


class Verified(TypedDict):
    """What was verified: the sites' names, and the hashes of the request and of each site's ledger."""

    sites: list[str]
    request: str
    ledgers: dict[str, str]


def check_statements(
    statements: object, request: str, startup_kit: StartupKit, ledger: Mapping[str, Any] | None
) -> Verified:
    """Compare what all sites say about a run with what was asked for and with the server's ledger.

    Args:
        statements: The signed statement of each site, by name, as the server passed them on.
        ledger: The server's ledger in JSON; None if the program writes none.

    Raises:
        Refused: A statement is missing or wrong, or says that the site ran something else.
    """
    asked = read_request(content_of(request), startup_kit.project)
    root = startup_kit.folder / "startup" / "rootCA.pem"
    said: dict[str, Statement] = {}
    for site in asked.sites:
        text = statements.get(site) if isinstance(statements, Mapping) else None
        if not isinstance(text, str):
            raise Refused(f"the server has passed on no statement of {site} about what it ran")
        content = _verified(text, STATEMENT, root, site, "")
        said[site] = checked(parse_json(content), Statement, f"the statement of {site}")
        # A statement about an earlier request would hide that this one was exchanged.
        if (said[site].run, said[site].request) != (asked.run, digest(content_of(request))):
            raise Refused(f"{site} states that it ran another request than the coordinator's last one")
    _compare(said, asked, ledger)
    return {
        "sites": list(said),
        "request": digest(content_of(request)),
        "ledgers": {site: statement.ledger for site, statement in said.items()},
    }


def _compare(said: Mapping[str, Statement], asked: Request, ledger: Mapping[str, Any] | None) -> None:
    """Raise Refused if the sites' transfers are not those that the server reports, or were simulated."""
    reported = None if ledger is None else {each for each in _sent(ledger) if each[1] == "server"}
    union: set[tuple[str, ...]] = set()
    for site, statement in said.items():
        sent = {tuple(each) for each in statement.sent}
        union |= sent
        for name, to, protection in sorted(sent):
            if protection == "simulated" and not _asks_to_simulate(asked):
                raise Refused(f"{site} states that the protection of {shown(name)} was only simulated")
            if reported is not None and to == "server" and (name, to, protection) not in reported:
                raise Refused(
                    f"{site} states that it sent {shown(name)} to the server with the protection "
                    f"{shown(protection)}, and the ledger that the server reports {_instead(name, reported)}"
                )
    for name, _, protection in sorted((reported or set()) - union):
        raise Refused(
            f"the server reports that sites sent {shown(name)} with the protection {shown(protection)}, and "
            "no site states that"
        )


def _asks_to_simulate(asked: Request) -> bool:
    """Return whether the coordinator asked for simulated protocols or keys, or for noise from a seed."""
    settings = asked.arguments.get("config") or {}
    return asked.simulated or "simulated" in settings.values() or settings.get("noise_seed") is not None


def _instead(name: str, reported: set[tuple[str, str, str]]) -> str:
    others: Sequence[str] = sorted(protection for known, _, protection in reported if known == name)
    return f"says {shown(', '.join(others))}" if others else "does not have it"

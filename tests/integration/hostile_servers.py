"""A server that asks the sites for something else than the coordinator, or reports something else than was
sent, for `test_hostile_requests`.

Its processes load this module when they start (see `write_startup`). What it does in a run is in the name of
the run, or for all runs in the file `LIE` of its startup kit.
"""

import json
from pathlib import Path

from graphfed.crypto.channel import Identity
from graphfed.runtime.nvflare import apps, signed
from graphfed.runtime.nvflare.requests import canonical

LIE = "lie.txt"


def write_startup(folder):
    """Write what makes every Python process with this folder in its path load this module."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import hostile_servers\nhostile_servers.install()\n")


def install():
    """From now on the server lies."""
    honest = apps.ServerApp._one
    earlier = []

    def one(self, place, run, text, *others):
        file = place.startup_kit / LIE
        lie = file.read_text() if file.exists() else run.run
        earlier.append(text)
        sent = ASKED[lie](text, place, earlier) if lie in ASKED else text
        read = json.loads(signed.content_of(sent) or sent)
        # The server itself runs what it asks for, if it can.
        if lie in ("plaintext", "rounds", "own-key"):
            run = run.model_copy(update={"arguments": read["arguments"]})
        outcome = honest(self, place, run, sent, *others)
        if lie in REPORTED:
            REPORTED[lie](outcome, place.runs / run.run, place)
        return outcome

    apps.ServerApp._one = one


# ---- what the sites are asked ------------------------------------------------------------------------------


def changed(change):
    """The same envelope with another content."""

    def lie(text, place, earlier):
        envelope = json.loads(text)
        content = json.loads(envelope["content"])
        change(content)
        return json.dumps({**envelope, "content": canonical(content)})

    return lie


def plaintext(content):
    content["arguments"]["config"]["aggregation"] = "plaintext"


def method(content):
    content["arguments"]["method"] = "fedprox"


def rounds(content):
    content["arguments"]["config"]["rounds"] = 1


def name(content):
    content["run"] = content["arguments"]["run"] = "another-name"


def later(content):
    content["time"] += 10**9


def own_key(text, place, earlier):
    """Plaintext, signed by the server itself."""
    content = json.loads(signed.content_of(text))
    plaintext(content)
    startup = place.startup_kit / "startup"
    identity = Identity.from_files(startup / "server.key", startup / "server.crt", startup / "rootCA.pem")
    return signed._sign(identity, signed.REQUEST, canonical(content))


ASKED = {
    "plaintext": changed(plaintext),
    "method": changed(method),
    "rounds": changed(rounds),
    "name": changed(name),
    "later": changed(later),
    "own-key": own_key,
    "unsigned": lambda text, place, earlier: signed.content_of(text),
    "repeated": lambda text, place, earlier: earlier[0],
}


# ---- what the coordinator receives -------------------------------------------------------------------------


def other_ledger(outcome, folder, place):
    """The server reports that updates were added up by secure aggregation."""
    file = folder / "ledger.json"
    content = json.loads(file.read_text())
    for entry in content["entries"]:
        if entry["from"] == "clients" and entry["phase"] == "train":
            entry["protection"] = "aggregate"
    file.write_text(json.dumps(content))


def no_statement(outcome, folder, place):
    outcome["statements"]["site-1"] = None


def other_statement(outcome, folder, place):
    outcome["statements"]["site-1"] = outcome["statements"]["site-0"]


def altered_statement(outcome, folder, place):
    envelope = json.loads(outcome["statements"]["site-1"])
    envelope["content"] = envelope["content"].replace("plaintext", "aggregate")
    outcome["statements"]["site-1"] = json.dumps(envelope)


def earlier_statement(outcome, folder, place):
    kept = Path(place.startup_kit / "kept-statement.json")
    if kept.exists():
        outcome["statements"]["site-1"] = kept.read_text()
    else:
        kept.write_text(outcome["statements"]["site-1"])


REPORTED = {
    "other-ledger": other_ledger,
    "no-statement": no_statement,
    "other-statement": other_statement,
    "altered-statement": altered_statement,
    "keep-statement": earlier_statement,
    "earlier-statement": earlier_statement,
}

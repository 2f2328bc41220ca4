"""Places of a deployment without FLARE: sites with real certificates, whose requests go through a relay that
may do to them what it likes."""

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from graphfed.crypto.channel import Identity
from graphfed.federation.link import SERVER_INDEX
from graphfed.runtime.mailbox import Mailbox
from graphfed.runtime.nvflare.link import OFFER, Channels, FlareLink, Inbox, Part, Post

SERVER = "server"
#: Seconds after which a test gives up on what should have happened.
LIMIT = 30.0

# ---- who the sites are -------------------------------------------------------------------------------------


def _certificate(name: str, key: ec.EllipticCurvePrivateKey, by: str, signing: ec.EllipticCurvePrivateKey):
    now, day = datetime.now(UTC), timedelta(days=1)
    root = signing.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root), critical=False)
    )
    if name == by:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        signs = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "crl_sign",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, **signs)
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(signing, hashes.SHA256())


@cache
def _root(project: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    return key, _certificate(project, key, project, key)


@cache
def identity(name: str, project: str = "project") -> Identity:
    """A site of a project, with a certificate that the project's root has signed."""
    signing, root = _root(project)
    key = ec.generate_private_key(ec.SECP256R1())
    return Identity(name, _certificate(name, key, project, signing), root, key)


# ---- places ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """One place, put together as `nvflare.apps` does it."""

    name: str
    mailbox: Mailbox
    inbox: Inbox
    channels: Channels | None
    link: FlareLink


#: Every link that was made and not closed yet.
LINKS: list[FlareLink] = []


def new_link(
    names: Mapping[int, str],
    posts: Mapping[int, Post],
    mailbox: Mailbox,
    *,
    channels: Channels | None = None,
    give_up: float,
) -> FlareLink:
    LINKS.append(FlareLink(names, posts, mailbox, channels=channels, give_up=give_up))
    return LINKS[-1]


def make_places(
    relay: "Relay",
    sites: Sequence[str],
    *,
    run: str = "run",
    give_up: float = LIMIT,
    patience: float = LIMIT,
    max_held: int | None = None,
) -> dict[int, Place]:
    """The server and the sites, in the order of the workers, joined by the relay: by end."""
    names = {SERVER_INDEX: SERVER, **dict(enumerate(sites))}
    places = {}
    for end, name in names.items():
        mailbox = Mailbox(patience)
        mailbox.begin(run)
        posts = {to: relay.post(name, other) for to, other in names.items() if to != end}
        channels = None
        if end != SERVER_INDEX:
            to_sites = {names[to]: post for to, post in posts.items() if to != SERVER_INDEX}
            channels = Channels(identity(name), "job 1", to_sites, give_up)
        inbox = Inbox(mailbox, max_held=max_held, opened=opened_by(channels))
        link = new_link(names, posts, mailbox, channels=channels, give_up=give_up)
        places[end] = Place(name, mailbox, inbox, channels, link)
        relay.inboxes[name] = inbox
    return places


def opened_by(channels: Channels | None):
    """How a place opens the parts it gets: the server's and those for it are not sealed."""

    def opened(sender: str, part: Part) -> bytes | memoryview:
        if channels is None or sender == SERVER:
            return part.content
        if part.key == OFFER:
            channels.take_offer(sender, part.content)
            return part.content
        return channels.opened(sender, part)

    return opened


# ---- the relay ---------------------------------------------------------------------------------------------

#: What a bad network does.
TIRED = ("lose", "lose the answer", "repeat", "repeat later", "delay")
#: What a relay may do as well to what it cannot read.
HOSTILE = (*TIRED, "corrupt", "cut", "relabel", "reflect", "swap")


class Lost(ConnectionError):
    """The relay has not answered a request."""


class Relay:
    """Brings every part to its receiver in the end, after some harm. seen: (sender, receiver, part) of every
    request.

    harm: how probable it is that a request between two sites meets one of `deeds`; one between the server and
    a site meets what is `TIRED` of them."""

    def __init__(self, *, seed: int = 0, harm: float = 0.0, deeds: Iterable[str] = HOSTILE) -> None:
        self.inboxes: dict[str, Inbox] = {}
        self.seen: list[tuple[str, str, Part]] = []
        self.done: set[str] = set()
        self._deeds, self._harm = tuple(deeds), harm
        self._random = random.Random(seed)
        self._late: list[tuple[str, str, Part]] = []
        self._lock = threading.Lock()

    def post(self, sender: str, to: str) -> Post:
        """How `sender` reaches `to`."""

        def post(part: Part) -> str:
            part = replace(part, content=bytes(part.content))
            with self._lock:
                self.seen.append((sender, to, part))
                deed = self._choose(sender, to)
                self.done.add(deed)
                late = [self._late.pop(0)] if self._late and self._random.random() < 0.5 else []
            for before in late:
                self._bring(*before)
            return self._do(deed, sender, to, part)

        return post

    def everything_late(self) -> None:
        """Bring what is still delayed."""
        for before in self._late:
            self._bring(*before)

    def _choose(self, sender: str, to: str) -> str:
        if self._random.random() >= self._harm:
            return "bring"
        allowed = TIRED if SERVER in (sender, to) else HOSTILE
        return self._random.choice([deed for deed in self._deeds if deed in allowed] or ["bring"])

    def _bring(self, sender: str, to: str, part: Part) -> str:
        return self.inboxes[to].accept(sender, part)

    def _do(self, deed: str, sender: str, to: str, part: Part) -> str:
        at = self._random.randrange(len(part.content)) if part.content else 0
        match deed:
            case "lose":
                raise Lost
            case "lose the answer":
                self._bring(sender, to, part)
                raise Lost
            case "repeat":
                self._bring(sender, to, part)
            case "repeat later":
                self._late.append((sender, to, part))
            case "delay":
                self._late.append((sender, to, part))
                raise Lost
            case "corrupt":
                content = bytearray(part.content)
                content[at] ^= 1
                return self._bring(sender, to, replace(part, content=bytes(content)))
            case "cut":
                return self._bring(sender, to, replace(part, content=part.content[:at]))
            case "relabel":
                key = part.key.replace("/", "/1", 1) if part.key != OFFER else "run/0/1/offer/0>1"
                return self._bring(sender, to, replace(part, key=key))
            case "reflect":
                return self._bring(to, sender, part)
            case "swap":
                others = [name for name in self.inboxes if name not in (sender, to, SERVER)]
                return self._bring(self._random.choice(others), to, part) if others else "no third site"
        return self._bring(sender, to, part)

"""An encrypted channel between two sites whose messages a server relays.

What it protects: the contents of what two sites send each other, and that a message is what that peer sealed
under that label. Against whom: a relay that follows the protocol and is curious, and one that does not: it
may read, change, drop, delay, reorder, repeat, reflect and invent messages, and start sessions as it likes.

    handshake = Handshake.begin(identity, peer, session)    # at both sites; handshake.offer goes to the peer
    channel = handshake.finish(offer_of_the_peer)
    sealed = channel.seal(label, message)                   # one site
    message = channel.open(label, sealed)                   # the other

How. A site's offer is a fresh X25519 key (RFC 7748), its certificate, and its signature over session, sender,
receiver, key and certificate (RSA-PSS or ECDSA, with SHA-256). The shared secret and the hash of both offers
give, by HKDF-SHA256 (RFC 5869), one AES-256-GCM key for each direction. A message's nonce is its number,
which travels with it; label and direction are authenticated with it (associated data).

What holds, and what it rests on; tests/crypto/test_channel.py has the tests that would fail otherwise.

- *Who the peer is.* Its certificate must be one that the project's root signed for its name, and the
  signature names both sites and the session: unless signatures can be forged, an offer cannot be invented,
  reflected, given to another site or used in another session. Who holds the root's private key (whoever made
  the start-up kits, and nobody else should) can issue a certificate for any name and sit between any two
  sites: where the server's operator makes the kits, nothing here protects against that operator. There is no
  revocation: a certificate speaks for its site in every handshake until it expires.
- *Who has the keys.* To compute them takes the private key of one of the two offers (gap Diffie-Hellman, with
  HKDF as a random oracle), and every byte of both offers goes into them: sites that saw different offers have
  keys that open nothing of each other's. An old offer of the same session, played again, gives keys that its
  author alone could have computed, and has dropped. So no third message confirms the keys: the first message
  that opens does. Points of low order, which would make the secret known to all, are refused.
- *Forward secrecy.* A handshake's key is made for it, from the operating system's entropy, and dropped when
  it is finished: who gets a site's files later cannot read what was recorded. (Python does not wipe memory,
  and a large quantum computer would break X25519.)
- *Contents and integrity.* A nonce never occurs twice under a key: numbers only count up, and a handshake
  gives one channel, which cannot be copied or seal in a forked process. A key seals at most 2^40 blocks of 16
  bytes (16 TiB). By the bounds of Iwata, Ohashi and Minematsu (Crypto 2012) for 96-bit nonces, with AES as a
  random permutation, what it sealed is then told from random bytes with advantage at most 2^80 / 2^129 =
  2^-49, and one of v forged messages of l blocks opens with probability at most v (l + 1) / 2^128 more.

What it does not do. The relay sees the sites' names and certificates, who talks to whom, when, and every
message's size (`OVERHEAD` more than the contents). It can stop everything. Messages open in any order and as
often as they come: the mailbox above drops repetitions by label, so **a sender gives every message of a
session a label of its own**, or the relay chooses which of two arrives. Nothing holds a dishonest peer.
"""

import hashlib
import io
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from graphfed.errors import GraphfedError, InputError, shown

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
    from cryptography.x509.oid import NameOID
    from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError
except ImportError:
    raise InputError(
        "encryption between sites needs the package cryptography (45 or newer), which is not installed; "
        "install it: pip install 'graphfed[deploy]'"
    ) from None

__all__ = ["OVERHEAD", "Channel", "ChannelError", "Handshake", "Identity"]

_PROTOCOL = b"graphfed channel 1"
_NUMBER_BYTES, _TAG_BYTES, _BLOCK_BYTES = 8, 16, 16
#: Bytes that a sealed message has more than its contents.
OVERHEAD = _NUMBER_BYTES + _TAG_BYTES
#: The longest message of AES-GCM, in bytes (NIST SP 800-38D, section 5.2.1.1).
_LONGEST_MESSAGE = 2**36 - 32
#: Blocks that one key may seal; a message has one more than its contents fill.
_MOST_BLOCKS = 2**40
#: Far above any offer: a certificate has one or two thousand bytes.
_LONGEST_OFFER = 1 << 16
_LONGEST_NAME = 256
_DATE = "%Y-%m-%d %H:%M UTC"

_PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


class ChannelError(GraphfedError):
    """An offer or a message that is not what the named peer sent to this site in this session."""


# ---- who a site is -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """A site that can sign as itself: its name (the common name in its certificate), its certificate, the
    root that peers' certificates are checked against, and its private key, which is shown nowhere."""

    name: str
    certificate: x509.Certificate
    root: x509.Certificate
    _key: _PrivateKey = field(repr=False)

    @classmethod
    def load(cls, startup_kit: str | Path) -> "Identity":
        """The site of a start-up kit: a folder with client.key, client.crt and rootCA.pem, or with these in
        its folder startup. InputError as `from_files`."""
        startup_kit = Path(startup_kit)
        folder = startup_kit / "startup" if (startup_kit / "startup").is_dir() else startup_kit
        return cls.from_files(folder / "client.key", folder / "client.crt", folder / "rootCA.pem")

    @classmethod
    def from_files(cls, key: Path, certificate: Path, root: Path) -> "Identity":
        """The site of three PEM files: an RSA or EC private key without a passphrase, its certificate, and
        the root's certificate.

        InputError for a file that is missing or is something else, a key that is not the certificate's, and
        a certificate that peers would refuse."""
        own, trusted = _read_certificate(certificate), _read_certificate(root)
        secret = _read_key(key)
        try:
            name = _site_of(own, trusted)
        except ValueError as why:
            raise InputError(
                f"the certificate {certificate} cannot be used: {why}; set the clock or renew the kit"
            ) from None
        if secret.public_key() != own.public_key():
            raise InputError(
                f"the private key {key} is not the one of the certificate {certificate}; take both from the "
                "same start-up kit"
            )
        return cls(name, own, trusted, secret)

    def sign(self, message: bytes) -> bytes:
        """A signature that `Handshake.finish` checks at the peer."""
        if isinstance(self._key, rsa.RSAPrivateKey):
            return self._key.sign(message, _pss(), hashes.SHA256())
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))


def _pss() -> padding.PSS:
    return padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=hashes.SHA256.digest_size)


def _signed(certificate: x509.Certificate, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is one of `message` by the key of the certificate."""
    key = certificate.public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, message, _pss(), hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        else:
            return False
    except InvalidSignature:
        return False
    return True


def _site_of(certificate: x509.Certificate, root: x509.Certificate) -> str:
    """The site that a certificate speaks for, by the word of `root`; ValueError, with the reason, for none.

    The certificates in start-up kits name no usages, which the profile for web clients asks for: the library
    checks the root, dates and signature, and what it then leaves open is checked here."""
    now = datetime.now(UTC)
    for whose, dated in (("it", certificate), ("the root's certificate", root)):
        first, last = dated.not_valid_before_utc, dated.not_valid_after_utc
        if not first <= now <= last:
            raise ValueError(
                f"{whose} is valid from {first:{_DATE}} to {last:{_DATE}}, and here it is {now:{_DATE}}"
            )
    policy = PolicyBuilder().store(Store([root])).time(now)
    policy = policy.extension_policies(
        ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=ExtensionPolicy.permit_all()
    )
    try:
        policy.build_client_verifier().verify(certificate, [])
        usages = [e.value for e in certificate.extensions if isinstance(e.value, x509.KeyUsage)]
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        key = certificate.public_key()
    except VerificationError as error:
        reason = str(error).removeprefix("validation failed: ")
        raise ValueError(f"the project's root does not vouch for it ({reason!r})") from None
    except Exception as error:  # a stranger's bytes can break a parser in many ways
        raise ValueError(f"it cannot be read ({type(error).__name__})") from None
    if not all(usage.digital_signature for usage in usages):
        raise ValueError("its key is not for signing (key usage)")
    if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        raise ValueError("its key is neither RSA nor EC")
    if key.key_size < (least := 2048 if isinstance(key, rsa.RSAPublicKey) else 256):
        raise ValueError(f"its key has {key.key_size} bits, and at least {least} are safe")
    if len(names) != 1:
        raise ValueError(f"it has {len(names)} common names, not one")
    return str(names[0].value)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); a site's start-up kit has client.key, client.crt and "
            "rootCA.pem in its folder startup"
        ) from None


def _read_certificate(path: Path) -> x509.Certificate:
    content = _read(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except Exception:  # there are many ways not to be one
        raise InputError(f"{path} is not a certificate in PEM form; take it from the start-up kit") from None


def _read_key(path: Path) -> _PrivateKey:
    content = _read(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise InputError(f"the private key {path} has a passphrase; give it without one") from None
    except Exception:  # whatever the library says of it, and nothing of the key's content
        raise InputError(f"{path} is not a private key in PEM form; take it from the start-up kit") from None
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise InputError(f"the private key {path} is neither RSA nor EC")
    return key


# ---- the handshake -----------------------------------------------------------------------------------------


class Handshake:
    """One site's half of a handshake: `offer` goes to the peer, the peer's offer into `finish`.

    A relay may hand in anything: what is refused leaves the handshake waiting for the right offer."""

    def __init__(self, identity: Identity, peer: str, session: str, ephemeral: X25519PrivateKey) -> None:
        self.identity, self.peer, self.session = identity, peer, session
        self._ephemeral: X25519PrivateKey | None = ephemeral
        signed = _PROTOCOL + _joined(
            session.encode(),
            identity.name.encode(),
            peer.encode(),
            ephemeral.public_key().public_bytes_raw(),
            identity.certificate.public_bytes(serialization.Encoding.DER),
        )
        #: What the peer needs, and anybody may read.
        self.offer = signed + _joined(identity.sign(signed))

    @classmethod
    def begin(cls, identity: Identity, peer: str, session: str) -> "Handshake":
        """A handshake of `identity` with the site named `peer`, with a key of its own.

        session: what both sites call this run, the same text at both and another for every run.
        InputError for a name or session that is empty, too long or unprintable, and for its own name."""
        for what, text in (("the peer's name", peer), ("the session's name", session)):
            if not text.isprintable() or not 0 < len(text.encode()) <= _LONGEST_NAME:
                raise InputError(
                    f"{what} {shown(text)} cannot be used: it has 1 to {_LONGEST_NAME} bytes, all printable"
                )
        if peer == identity.name:
            raise InputError(
                f"a channel joins two sites, and both are {shown(peer)}; give another site as peer"
            )
        return cls(identity, peer, session, X25519PrivateKey.generate())

    def finish(self, remote_offer: bytes) -> "Channel":
        """The channel to the peer, from its offer; the handshake's key is dropped.

        ChannelError for an offer that the peer did not make for this site and session, and for a second
        channel from one handshake, whose nonces would be those of the first."""
        if self._ephemeral is None:
            raise ChannelError("this handshake has given its channel; begin another one")
        public = self._checked(remote_offer)
        try:
            shared = self._ephemeral.exchange(public)
        except ValueError:  # all zero
            raise self._refused("its key is a point of low order, which keeps no secret") from None
        # The same at both ends: ordered by name.
        offers = sorted([(self.identity.name, self.offer), (self.peer, remote_offer)])
        both = hashlib.sha256(_joined(*(offer for _, offer in offers))).digest()
        secret = HKDF(hashes.SHA256(), 32, salt=both, info=_PROTOCOL).derive(shared)
        self._ephemeral = None
        return Channel(self.identity.name, self.peer, secret)

    def _checked(self, offer: bytes) -> X25519PublicKey:
        """The key in the peer's offer, once everything else in it is as it must be."""
        try:
            signed, session, sender, receiver, public, encoded, signature = _split_offer(offer)
        except ValueError as error:
            raise self._refused(f"it is no offer ({error})") from None
        if (sender, receiver) == (self.identity.name.encode(), self.peer.encode()):
            raise self._refused("it is this site's own, sent back")
        for what, found, expected in (
            ("from", sender, self.peer),
            ("for", receiver, self.identity.name),
            ("of session", session, self.session),
        ):
            if found != expected.encode():
                raise self._refused(
                    f"it is {what} {shown(found.decode(errors='replace'))}, not {what} {shown(expected)}"
                )
        try:
            certificate = x509.load_der_x509_certificate(encoded)
        except Exception as error:  # a stranger's bytes can break a parser in many ways
            raise self._refused(f"its certificate cannot be read ({type(error).__name__})") from None
        try:
            name = _site_of(certificate, self.identity.root)
        except ValueError as why:
            raise self._refused(f"its certificate cannot be trusted: {why}") from None
        if name != self.peer:
            raise self._refused(f"its certificate is that of {shown(name)}")
        if not _signed(certificate, signed, signature):
            raise self._refused("its signature is wrong: it was altered or not made by that site")
        return X25519PublicKey.from_public_bytes(public)

    def _refused(self, why: str) -> ChannelError:
        return ChannelError(f"what came as the offer of {shown(self.peer)} is refused: {why}")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handshake holds a secret: it is neither copied nor pickled")


def _joined(*parts: bytes) -> bytes:
    """Parts as one text that only these parts give: each after its length."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _split_offer(offer: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]:
    """What is signed of an offer, then its six fields in their order; ValueError for what is no offer."""
    if len(offer) > _LONGEST_OFFER:
        raise ValueError(f"{len(offer)} bytes, at most {_LONGEST_OFFER}")
    if not offer.startswith(_PROTOCOL):
        raise ValueError(f"it does not begin with {_PROTOCOL.decode()!r}: another program or version")
    parts, at, signed = [], len(_PROTOCOL), 0
    for _ in range(6):
        signed, start = at, at + 4
        at = start + int.from_bytes(offer[at:start], "little")
        if start > len(offer) or at > len(offer):
            raise ValueError("it is cut short")
        parts.append(offer[start:at])
    if at != len(offer):
        raise ValueError(f"{len(offer) - at} bytes too many")
    session, sender, receiver, public, certificate, signature = parts
    if len(public) != 32:
        raise ValueError(f"a key of {len(public)} bytes, not 32")
    return offer[:signed], session, sender, receiver, public, certificate, signature


# ---- the channel -------------------------------------------------------------------------------------------


class Channel:
    """Both directions between this site (`name`) and `peer`, in one session. Made by `Handshake.finish`.

    A failed `open` changes nothing. Several threads may use it; a forked process may only open."""

    def __init__(self, name: str, peer: str, secret: bytes) -> None:
        self.name, self.peer = name, peer
        self._sending = _expand(secret, [b"traffic", name.encode(), peer.encode()], 32)
        self._receiving = _expand(secret, [b"traffic", peer.encode(), name.encode()], 32)
        self._messages = self._blocks = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    def seal(self, label: str, message: bytes | bytearray | memoryview) -> bytes:
        """`message` for the peer, `OVERHEAD` bytes longer, under a label that no other message of this
        session has. One buffer is allocated, for the result.

        ChannelError for a message above 2^36 - 32 bytes and once 2^40 blocks were sealed."""
        size = memoryview(message).nbytes
        number = self._next_number(size)
        sealed = io.BytesIO(bytes(size + OVERHEAD))  # which hands its bytes out below without a copy
        cipher = Cipher(algorithms.AES(self._sending), modes.GCM(_nonce(number))).encryptor()
        cipher.authenticate_additional_data(_joined(self.name.encode(), self.peer.encode(), label.encode()))
        with sealed.getbuffer() as view:
            view[:_NUMBER_BYTES] = number
            cipher.update_into(message, view[_NUMBER_BYTES:])
            cipher.finalize()
            view[-_TAG_BYTES:] = cipher.tag
        return sealed.getvalue()

    def open(self, label: str, sealed: bytes | bytearray | memoryview) -> bytes:
        """What the peer sealed under `label`; the same again for the same bytes. One buffer is allocated.

        ChannelError where it did not seal these bytes under this label for this site in this session."""
        view = memoryview(sealed).cast("B")
        if len(view) < OVERHEAD:
            raise ChannelError(
                f"what came from {shown(self.peer)} as {shown(label)} has {len(view)} bytes, and no message "
                f"fewer than {OVERHEAD}: it was cut short"
            )
        size = len(view) - OVERHEAD
        number, content, tag = view[:_NUMBER_BYTES], view[_NUMBER_BYTES:-_TAG_BYTES], view[-_TAG_BYTES:]
        # The library asks for a block's room more than the contents.
        message = io.BytesIO(bytes(size + _BLOCK_BYTES))
        cipher = Cipher(algorithms.AES(self._receiving), modes.GCM(_nonce(number), bytes(tag))).decryptor()
        cipher.authenticate_additional_data(_joined(self.peer.encode(), self.name.encode(), label.encode()))
        try:
            with message.getbuffer() as room:
                cipher.update_into(content, room)
            cipher.finalize()
        except InvalidTag:
            raise ChannelError(
                f"what came from {shown(self.peer)} as {shown(label)}, {len(view)} bytes, does not open: it "
                "was altered on its way, or sealed under another label, by another site or in another session"
            ) from None
        message.truncate(size)
        return message.getvalue()

    def _next_number(self, size: int) -> bytes:
        """The number of a message of `size` bytes, taken for good."""
        if os.getpid() != self._process:
            raise ChannelError(
                "a forked process cannot seal: it would use the nonces of the process that shook hands; "
                "begin another handshake there"
            )
        if size > _LONGEST_MESSAGE:
            raise ChannelError(
                f"a message of {size} bytes cannot be sealed (at most {_LONGEST_MESSAGE}); send it in parts"
            )
        blocks = -(-size // _BLOCK_BYTES) + 1
        with self._lock:
            if self._blocks + blocks > _MOST_BLOCKS:
                raise ChannelError(
                    f"this channel has sealed {self._messages} messages, {self._blocks} blocks in all, and a "
                    f"key is good for {_MOST_BLOCKS}; begin another handshake, under another session's name"
                )
            self._blocks += blocks
            self._messages += 1
            return (self._messages - 1).to_bytes(_NUMBER_BYTES, "big")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a channel holds keys and counts its nonces: it is neither copied nor pickled")


def _nonce(number: bytes | memoryview) -> bytes:
    return bytes(12 - _NUMBER_BYTES) + bytes(number)


def _expand(secret: bytes, purpose: Iterable[bytes], length: int) -> bytes:
    return HKDFExpand(hashes.SHA256(), length, info=_PROTOCOL + _joined(*purpose)).derive(secret)

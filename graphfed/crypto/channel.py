"""An encrypted channel between two sites whose messages a server relays.

What it protects: the contents of the messages between two sites, and their origin. A message that opens was
sealed by that peer under that label.

Corruption model: the relay may follow the protocol and be curious, or may be malicious. It may read,
change, drop, delay, reorder, repeat, reflect and invent messages, and may start sessions. The channel does
not protect against a dishonest peer.

Security parameter: 128 bits, and 112 bits for the identity of a peer whose RSA key has 2048 bits, as in
FLARE's startup kits (NIST SP 800-57, part 1, table 2). The first rests on X25519 under the gap Diffie-Hellman
assumption, HKDF-SHA256 as a random oracle and AES-256-GCM, and identity on the unforgeability of RSA-PSS
(2048 bits or more; 128 bits from 3072) or ECDSA (256 bits or more).

What leaks to the relay: the sites' names and certificates, which sites talk to each other and when, and the
size of every message (`OVERHEAD` bytes more than the contents).

    handshake = Handshake.begin(identity, peer, session)    # at both sites; send handshake.offer to the peer
    channel = handshake.finish(offer_of_the_peer)
    sealed = channel.seal(label, message)                   # at one site
    message = channel.open(label, sealed)                   # at the other site

The protocol. A site's offer is a fresh X25519 key (RFC 7748), its certificate, and its signature over
session, sender, receiver, key and certificate (RSA-PSS or ECDSA, with SHA-256). HKDF-SHA256 (RFC 5869)
derives one AES-256-GCM key for each direction from the shared secret and the hash of both offers. The nonce
of a message is its number, which is sent with it. Label and direction are authenticated as associated data.

The guarantees, and what they rest on (tests/crypto/test_channel.py has a test for each):

- *Identity of the peer.* The project's root must have signed the peer's certificate for its name, and the
  peer's signature names both sites and the session. Unless signatures can be forged, an offer cannot be
  invented, reflected, given to another site or used in another session. The owner of the root's private
  key, who created the startup kits, can issue a certificate for any name and sit between any two sites. If
  the server's operator creates the startup kits, nothing here protects against that operator. There is no
  revocation: a certificate is valid in every handshake until it expires.
- *Secrecy of the keys.* To compute the keys, an attacker needs the private key of one of the two offers,
  and every byte of both offers enters the keys. Two sites that saw different offers have keys that open
  nothing of each other. If the relay replays an old offer of the same session, only the author of that
  offer could compute the keys, and the author has deleted its private key. A third message to confirm the
  keys is therefore not needed: the first message that opens confirms them. Points of low order, which would
  make the secret public, are refused.
- *Forward secrecy.* The key of a handshake is generated for it from the operating system's entropy, and
  deleted when the handshake is finished. A person who obtains a site's files later cannot read recorded
  messages. (Python does not erase memory, and a large quantum computer would break X25519.)
- *Contents and integrity.* A nonce never occurs twice under a key: numbers only increase, and a handshake
  gives one channel, in the process that began it; a channel cannot be copied and cannot seal in a forked
  process. A key seals at most 2^40 blocks of 16 bytes (16 TiB). By the bounds of Iwata, Ohashi and
  Minematsu (Crypto 2012) for 96-bit nonces, with AES as a random permutation, the sealed bytes can be
  distinguished from random bytes with advantage at most 2^80 / 2^129 = 2^-49, and one of v forged messages
  of l blocks opens with additional probability at most v (l + 1) / 2^128.

Limits. The relay can block every message. Messages open in any order and more than once: the caller must
discard repetitions by label. Therefore **the sender must give every message of a session a label of its
own**; otherwise the relay chooses which of two messages arrives.
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

from graphfed.crypto.errors import ProtocolError
from graphfed.errors import GraphfedError, InputError, how_to_install, shown
from graphfed.files import read_regular

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
    from cryptography.x509.oid import NameOID
    from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError

    from graphfed.crypto.pairwise import KeyPair
except ImportError:
    raise InputError(
        "encryption between sites needs the package cryptography (45 or newer), which is not installed; "
        f"install it: {how_to_install('deploy')}"
    ) from None

_PROTOCOL = b"graphfed channel 1"
_NUMBER_BYTES, _TAG_BYTES, _BLOCK_BYTES = 8, 16, 16
#: Number of bytes by which a sealed message is longer than its contents.
OVERHEAD = _NUMBER_BYTES + _TAG_BYTES
#: The longest message of AES-GCM, in bytes (NIST SP 800-38D, section 5.2.1.1).
_LONGEST_MESSAGE = 2**36 - 32
#: Most blocks that one key may seal. A message counts one block more than its contents fill.
_MOST_BLOCKS = 2**40
#: Far more bytes than an offer has: a certificate has one or two thousand.
_LONGEST_OFFER = 1 << 16
_LONGEST_NAME = 256
_DATE = "%Y-%m-%d %H:%M UTC"

_PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


class ChannelError(GraphfedError):
    """An offer or a message that the named peer did not send to this site in this session."""


# ---- who a site is -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """A site that can sign in its own name. The private key is not shown in `repr`.

    Attributes:
        name: The site's name, which is the common name in its certificate.
        root: The certificate of the root that must have signed the certificates of peers.
    """

    name: str
    certificate: x509.Certificate
    root: x509.Certificate
    _key: _PrivateKey = field(repr=False)

    @classmethod
    def load(cls, startup_kit: str | Path) -> "Identity":
        """Load the identity of a site from its startup kit.

        Args:
            startup_kit: A folder with client.key, client.crt and rootCA.pem, or with these files in its
                folder startup.

        Returns:
            The identity.

        Raises:
            InputError: As for `from_files`.
        """
        startup_kit = Path(startup_kit)
        # FLARE's kits have the files in startup.
        folder = startup_kit / "startup" if (startup_kit / "startup").is_dir() else startup_kit
        return cls.from_files(folder / "client.key", folder / "client.crt", folder / "rootCA.pem")

    @classmethod
    def from_files(cls, key: Path, certificate: Path, root: Path) -> "Identity":
        """Load the identity of a site from three PEM files.

        Args:
            key: An RSA or EC private key without a passphrase.
            certificate: The site's certificate, which must fit the key.
            root: The certificate of the project's root.

        Returns:
            The identity.

        Raises:
            InputError: A file is missing or has other contents, the key does not belong to the certificate,
                or peers would refuse the certificate.
        """
        local_certificate, root_certificate = read_certificate(certificate), read_certificate(root)
        private_key = _read_key(key)
        try:
            # Check as peers will: a certificate that they would refuse is reported here, before anything is
            # sent.
            name = _site_of(local_certificate, root_certificate)
        except ValueError as reason:
            raise InputError(
                f"the certificate {certificate} cannot be used: {reason}; set the clock or renew the "
                "startup kit"
            ) from None
        if private_key.public_key() != local_certificate.public_key():
            raise InputError(
                f"the private key {key} is not the one of the certificate {certificate}; take both from the "
                "same startup kit"
            )
        return cls(name, local_certificate, root_certificate, private_key)

    def sign(self, message: bytes) -> bytes:
        """Sign a message with the site's private key.

        Returns:
            The signature (RSA-PSS or ECDSA with SHA-256), which the peer checks in `Handshake.finish`.
        """
        if isinstance(self._key, rsa.RSAPrivateKey):
            return self._key.sign(message, _pss(), hashes.SHA256())
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))

    @property
    def encoded_certificate(self) -> bytes:
        """The certificate in DER form."""
        return self.certificate.public_bytes(serialization.Encoding.DER)


@dataclass(frozen=True)
class Signer:
    """The author of a signature.

    Attributes:
        name: The common name in its certificate.
        role: Its role in the project, as the certificate names it; "" if it names none.
    """

    name: str
    role: str


def check_signature(root: x509.Certificate, encoded: bytes, message: bytes, signature: bytes) -> Signer:
    """Check who has signed a message.

    Args:
        root: The certificate of the project's root.
        encoded: The signer's certificate in DER form, as it arrived.
        message: The bytes that were signed.
        signature: What `Identity.sign` returned for the message.

    Returns:
        The signer.

    Raises:
        ChannelError: The certificate cannot be trusted, or the signature is wrong.
    """
    try:
        certificate, name = _trusted(encoded, root)
    except ValueError as why:
        raise ChannelError(str(why)) from None
    if not _is_signed(certificate, message, signature):
        raise ChannelError(
            f"it was altered after {shown(name)} had signed it, or another participant made it"
        )
    # FLARE's form of a role.
    roles = certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    return Signer(name, ", ".join(str(role.value) for role in roles))


def _trusted(encoded: bytes, root: x509.Certificate) -> tuple[x509.Certificate, str]:
    """Read a certificate that arrived, and return it with the name for which `root` has signed it.

    Raises:
        ValueError: It cannot be read or trusted.
    """
    try:
        certificate = x509.load_der_x509_certificate(encoded)
    except Exception as error:  # unknown bytes can break a parser in many ways
        raise ValueError(f"its certificate cannot be read ({type(error).__name__})") from None
    try:
        return certificate, _site_of(certificate, root)
    except ValueError as why:
        raise ValueError(f"its certificate cannot be trusted: {why}") from None


def _pss() -> padding.PSS:
    return padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=hashes.SHA256.digest_size)


def _is_signed(certificate: x509.Certificate, message: bytes, signature: bytes) -> bool:
    """Return whether `signature` is a signature of `message` by the key of the certificate."""
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
    """Return the name of the site for which `root` has signed a certificate.

    The certificates in startup kits do not name extended usages, which the profile for web clients
    requires. The library therefore checks the root, the dates and the signature, and this function checks
    the rest.

    Raises:
        ValueError: The certificate cannot be trusted; the message says why.
    """
    # The dates are checked here first, because the message of the library does not say which one has passed.
    now = datetime.now(UTC)
    for subject, dated_certificate in (("the certificate", certificate), ("the root's certificate", root)):
        first, last = dated_certificate.not_valid_before_utc, dated_certificate.not_valid_after_utc
        if not first <= now <= last:
            raise ValueError(
                f"{subject} is valid from {first:{_DATE}} to {last:{_DATE}}, and this machine's time "
                f"is {now:{_DATE}}"
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
    except Exception as error:  # unknown bytes can break a parser in many ways
        raise ValueError(f"it cannot be read ({type(error).__name__})") from None
    if not all(usage.digital_signature for usage in usages):
        raise ValueError("its key is not allowed to sign (key usage)")
    if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        raise ValueError("its key is neither RSA nor EC")
    # The least sizes that the guarantees above rest on.
    if key.key_size < (least := 2048 if isinstance(key, rsa.RSAPublicKey) else 256):
        raise ValueError(f"its key has {key.key_size} bits, and at least {least} are required")
    # With two names a site could answer for either.
    if len(names) != 1:
        raise ValueError(f"it has {len(names)} common names; exactly one is expected")
    return str(names[0].value)


def _read(path: Path) -> bytes:
    """Read a file of a startup kit."""
    try:
        return read_regular(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); a site's startup kit has client.key, client.crt and "
            "rootCA.pem in its folder startup"
        ) from None


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate in PEM form.

    Returns:
        The certificate.

    Raises:
        InputError: The file cannot be read, or is no certificate.
    """
    content = _read(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except Exception:  # the library raises many kinds of errors
        raise InputError(f"{path} is not a certificate in PEM form; take it from the startup kit") from None


def _read_key(path: Path) -> _PrivateKey:
    """Read a private key in PEM form."""
    content = _read(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise InputError(f"the private key {path} has a passphrase; give it without one") from None
    except Exception:  # the message must not show the key's content
        raise InputError(f"{path} is not a private key in PEM form; take it from the startup kit") from None
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise InputError(f"the private key {path} is neither RSA nor EC")
    return key


# ---- the handshake -----------------------------------------------------------------------------------------


class Handshake:
    """One site's half of a handshake.

    Send `offer` to the peer, and give the peer's offer to `finish`. If the relay delivers a wrong offer,
    `finish` refuses it and continues to wait for the right one.

    Attributes:
        identity: This site.
        peer: The name of the other site.
        session: The name of the run, the same at both sites.
        offer: What the peer needs. It contains nothing secret.
    """

    def __init__(self, identity: Identity, peer: str, session: str, ephemeral: KeyPair) -> None:
        self.identity, self.peer, self.session = identity, peer, session
        self._ephemeral: KeyPair | None = ephemeral
        self._lock, self._process = threading.Lock(), os.getpid()
        signed = _PROTOCOL + _joined(
            session.encode(),
            identity.name.encode(),
            peer.encode(),
            ephemeral.public,
            identity.encoded_certificate,
        )
        self.offer = signed + _joined(identity.sign(signed))

    @classmethod
    def begin(cls, identity: Identity, peer: str, session: str) -> "Handshake":
        """Start a handshake with a fresh key.

        Args:
            identity: This site, with the key that signs its offer.
            peer: The name of the other site.
            session: The name of the run: the same text at both sites, and another text for every run.

        Returns:
            The handshake.

        Raises:
            InputError: A name is empty, too long or unprintable, or the peer is this site.
        """
        for what, text in (("the peer's name", peer), ("the session's name", session)):
            if not text.isprintable() or not 0 < len(text.encode()) <= _LONGEST_NAME:
                raise InputError(
                    f"{what} {shown(text)} cannot be used: it must have 1 to {_LONGEST_NAME} bytes, all "
                    "printable"
                )
        if peer == identity.name:
            raise InputError(
                f"a channel connects two different sites, and both are {shown(peer)}; give another "
                "site as peer"
            )
        return cls(identity, peer, session, KeyPair())

    def finish(self, remote_offer: bytes) -> "Channel":
        """Check the peer's offer and derive the channel. The handshake's private key is then deleted.

        Args:
            remote_offer: The peer's `offer`, as the relay delivered it.

        Returns:
            The channel to the peer.

        Raises:
            ChannelError: The peer did not make this offer for this site and session, the handshake has
                already given its channel, or this process was forked.
        """
        # Two channels of one handshake, here or in a forked process, would have the same keys and nonces.
        if os.getpid() != self._process:
            raise ChannelError(
                "a forked process cannot finish its parent process's handshake; begin a new handshake there"
            )
        with self._lock:
            if self._ephemeral is None:
                raise ChannelError("this handshake has already given its channel; begin a new handshake")
            public = self._check_offer(remote_offer)
            # The hash of both offers is the salt: who saw another offer derives other keys.
            # Order the offers by name, so that both sites compute the same hash.
            offers = sorted([(self.identity.name, self.offer), (self.peer, remote_offer)])
            both = hashlib.sha256(_joined(*(offer for _, offer in offers))).digest()
            try:
                secret = self._ephemeral.agree(public, _PROTOCOL, 32, salt=both)
            except ProtocolError:
                raise self._refused(
                    "its key is a point of low order, with which the shared secret is public"
                ) from None
            # Only after success: a wrong offer leaves the handshake waiting for the right one.
            self._ephemeral = None
        return Channel(self.identity.name, self.peer, secret)

    def _check_offer(self, offer: bytes) -> bytes:
        """Check every field of the peer's offer and return its key."""
        try:
            signed, session, sender, receiver, public, encoded, signature = _split_offer(offer)
        except ValueError as error:
            raise self._refused(f"it is not an offer ({error})") from None
        # The relay can reflect an offer, or deliver one of another site, receiver or session.
        if (sender, receiver) == (self.identity.name.encode(), self.peer.encode()):
            raise self._refused("it is this site's own offer, sent back")
        for preposition, found, expected in (
            ("from", sender, self.peer),
            ("for", receiver, self.identity.name),
            ("of session", session, self.session),
        ):
            if found != expected.encode():
                raise self._refused(
                    f"it is {preposition} {shown(found.decode(errors='replace'))}, not {preposition} "
                    f"{shown(expected)}"
                )
        try:
            # The offer brings its own certificate, so who it names must be checked before its signature
            # counts.
            certificate, name = _trusted(encoded, self.identity.root)
        except ValueError as why:
            raise self._refused(str(why)) from None
        if name != self.peer:
            raise self._refused(f"its certificate belongs to {shown(name)}")
        if not _is_signed(certificate, signed, signature):
            raise self._refused("its signature is wrong: the offer was altered, or another site made it")
        return public

    def _refused(self, why: str) -> ChannelError:
        return ChannelError(f"the offer that arrived from {shown(self.peer)} is refused: {why}")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handshake holds a secret: it is neither copied nor pickled")


def _joined(*parts: bytes) -> bytes:
    """Concatenate parts, each behind its length, so that different parts give different bytes."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _split_offer(offer: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]:
    """Split an offer into its signed bytes and its six fields, in their order. Other bytes raise
    ValueError.
    """
    if len(offer) > _LONGEST_OFFER:
        raise ValueError(f"it has {len(offer)} bytes, and an offer has at most {_LONGEST_OFFER}")
    if not offer.startswith(_PROTOCOL):
        raise ValueError(f"it does not begin with {_PROTOCOL.decode()!r}: another program or version")
    parts, at, signed = [], len(_PROTOCOL), 0
    # Lengths come from the relay: nothing is read beyond the end, and nothing may be left over.
    for _ in range(6):
        signed, start = at, at + 4
        at = start + int.from_bytes(offer[at:start], "little")
        if start > len(offer) or at > len(offer):
            raise ValueError("it is incomplete")
        parts.append(offer[start:at])
    if at != len(offer):
        raise ValueError(f"it has {len(offer) - at} bytes too many")
    session, sender, receiver, public, certificate, signature = parts
    if len(public) != 32:
        raise ValueError(f"its key has {len(public)} bytes, not 32")
    return offer[:signed], session, sender, receiver, public, certificate, signature


# ---- the channel -------------------------------------------------------------------------------------------


class Channel:
    """The two directions between this site and a peer in one session; `Handshake.finish` creates it.

    A failed `open` changes nothing. Several threads may use a channel. A forked process may open messages
    and may not seal them.

    Args:
        name: This site.
        peer: The other site.
        secret: The secret of the handshake, 32 bytes.
    """

    def __init__(self, name: str, peer: str, secret: bytes) -> None:
        self.name, self.peer = name, peer
        # A key for each direction: a reflected message does not open, and the numbers of both sides do not
        # clash.
        self._sending = _expand(secret, [b"traffic", name.encode(), peer.encode()], 32)
        self._receiving = _expand(secret, [b"traffic", peer.encode(), name.encode()], 32)
        self._messages = self._blocks = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    def seal(self, label: str, message: bytes | bytearray | memoryview) -> bytes:
        """Encrypt and authenticate a message for the peer.

        One buffer is allocated, for the result.

        Args:
            label: The label of the message, which no other message of this session may have.
            message: The contents, any bytes.

        Returns:
            The sealed message, `OVERHEAD` bytes longer.

        Raises:
            ChannelError: The message has more than 2^36 - 32 bytes, 2^40 blocks have been sealed, or this
                process was forked.
        """
        size = memoryview(message).nbytes
        # Taken before anything can fail: a number is used for one message at most.
        number = self._next_number(size)
        sealed = io.BytesIO(bytes(size + OVERHEAD))  # getvalue() returns its bytes without a copy
        cipher = Cipher(algorithms.AES(self._sending), modes.GCM(_nonce(number))).encryptor()
        cipher.authenticate_additional_data(_joined(self.name.encode(), self.peer.encode(), label.encode()))
        with sealed.getbuffer() as view:
            view[:_NUMBER_BYTES] = number
            cipher.update_into(message, view[_NUMBER_BYTES:])
            cipher.finalize()
            view[-_TAG_BYTES:] = cipher.tag
        return sealed.getvalue()

    def open(self, label: str, sealed: bytes | bytearray | memoryview) -> bytes:
        """Decrypt a message of the peer and check it.

        One buffer is allocated. The same bytes open again to the same message.

        Args:
            label: The label that the message must have been sealed under.
            sealed: What the peer's `seal` returned, as the relay delivered it.

        Returns:
            The message.

        Raises:
            ChannelError: The peer did not seal these bytes under this label for this site in this session.
        """
        view = memoryview(sealed).cast("B")
        if len(view) < OVERHEAD:
            raise ChannelError(
                f"the message {shown(label)} from {shown(self.peer)} has {len(view)} bytes, and a "
                f"message has at least {OVERHEAD}: it is incomplete"
            )
        size = len(view) - OVERHEAD
        number, content, tag = view[:_NUMBER_BYTES], view[_NUMBER_BYTES:-_TAG_BYTES], view[-_TAG_BYTES:]
        # The library requires room for one block more than the contents.
        message = io.BytesIO(bytes(size + _BLOCK_BYTES))
        cipher = Cipher(algorithms.AES(self._receiving), modes.GCM(_nonce(number), bytes(tag))).decryptor()
        cipher.authenticate_additional_data(_joined(self.peer.encode(), self.name.encode(), label.encode()))
        try:
            with message.getbuffer() as room:
                cipher.update_into(content, room)
            # The plaintext is written before the tag is checked, and dropped if the check fails.
            cipher.finalize()
        except InvalidTag:
            raise ChannelError(
                f"the message {shown(label)} from {shown(self.peer)}, of {len(view)} bytes, does not "
                "open: it was altered on its way, or was sealed under another label, by another site or in "
                "another session"
            ) from None
        message.truncate(size)
        return message.getvalue()

    def _next_number(self, size: int) -> bytes:
        """Take the number of the next message, which has `size` bytes, and count its blocks."""
        # Parent and child would count on from the same number under the same key.
        if os.getpid() != self._process:
            raise ChannelError(
                "a forked process cannot seal: it would repeat the nonces of its parent process; "
                "begin a new handshake there"
            )
        if size > _LONGEST_MESSAGE:
            raise ChannelError(
                f"a message of {size} bytes cannot be sealed (at most {_LONGEST_MESSAGE}); send it in parts"
            )
        blocks = -(-size // _BLOCK_BYTES) + 1
        # Count and take under the lock, so that two threads do not get one number.
        with self._lock:
            if self._blocks + blocks > _MOST_BLOCKS:
                raise ChannelError(
                    f"this channel has sealed {self._messages} messages of {self._blocks} blocks in "
                    f"total, and a key may seal {_MOST_BLOCKS}; begin a new handshake with another "
                    "session name"
                )
            self._blocks += blocks
            self._messages += 1
            return (self._messages - 1).to_bytes(_NUMBER_BYTES, "big")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a channel holds keys and counts its nonces: it is neither copied nor pickled")


def _nonce(number: bytes | memoryview) -> bytes:
    """Return the 96-bit nonce of a message number."""
    return bytes(12 - _NUMBER_BYTES) + bytes(number)


def _expand(secret: bytes, purpose: Iterable[bytes], length: int) -> bytes:
    """Derive `length` bytes for one purpose by HKDF-Expand."""
    return HKDFExpand(hashes.SHA256(), length, info=_PROTOCOL + _joined(*purpose)).derive(secret)

"""What two sites seal for each other opens at the other end and nowhere else, whatever a relay does to it."""

import copy
import hashlib
import hmac
import os
import pickle
import random
import re
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from graphfed.crypto import channel as channel_module
from graphfed.crypto.channel import OVERHEAD, Channel, ChannelError, Handshake, Identity
from graphfed.crypto.pairwise import KeyPair
from graphfed.errors import InputError

DAY = timedelta(days=1)
PEM = serialization.Encoding.PEM


# ---- certificates of a project, made here ------------------------------------------------------------------


@dataclass(frozen=True)
class Authority:
    """Who makes a project's certificates: its key and its own certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def certificate(
    names, public, issuer, key, *, ca=False, begins=-1, ends=1, usage=None, critical=None
) -> x509.Certificate:
    """As startup kits have them: a site's names no usages unless asked for. Dates are days from now."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins * DAY)
        .not_valid_after(now + ends * DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if ca:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(key_usage(True, key_cert_sign=True), critical=True)
    if usage is not None:
        builder = builder.add_extension(usage, critical=True)
    if critical is not None:
        unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier(critical), b"\x05\x00")
        builder = builder.add_extension(unknown, critical=True)
    return builder.sign(key, hashes.SHA256())


def key_usage(digital_signature: bool, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


#: An extension that no parser can read.
UNREADABLE = x509.UnrecognizedExtension(x509.oid.ExtensionOID.KEY_USAGE, b"\x00\x01")


@cache
def authority(project: str = "bank_project", ends: float = 1) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    own = certificate([project], key.public_key(), project, key, ca=True, ends=ends, begins=-9)
    return Authority(key, own)


@cache
def key_of(kind: str):
    """Keys are slow to make; a test that needs two different ones asks for two kinds."""
    if kind.endswith("rsa"):
        return rsa.generate_private_key(public_exponent=65537, key_size=1024 if kind == "weak rsa" else 2048)
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key({"p384": ec.SECP384R1()}.get(kind, ec.SECP256R1()))


def client(name: str, kind: str = "", by: Authority | None = None, names=None, **how) -> Identity:
    """A site's identity as if loaded, so that a test can give it what `load` would refuse."""
    by = by or authority()
    key = key_of(kind or f"p256 of {name}")
    issuer = by.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    own = certificate(names or [name], key.public_key(), issuer, by.key, **how)
    return Identity(name, own, by.certificate, key)


def write_kit(folder: Path, identity: Identity) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "client.crt").write_bytes(identity.certificate.public_bytes(PEM))
    (folder / "rootCA.pem").write_bytes(identity.root.public_bytes(PEM))
    none = serialization.NoEncryption()
    key = identity._key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, none)
    (folder / "client.key").write_bytes(key)
    return folder


@cache
def bank(name: str) -> Identity:
    return client(name)


def shaken(a: Identity, b: Identity, session: str = "run 1") -> tuple[Channel, Channel]:
    left, right = Handshake.begin(a, b.name, session), Handshake.begin(b, a.name, session)
    return left.finish(right.offer), right.finish(left.offer)


@cache
def pair() -> tuple[Channel, Channel]:
    """A channel for the tests that leave no trace in it but higher numbers."""
    return shaken(bank("north"), bank("south"))


# ---- messages ----------------------------------------------------------------------------------------------


@given(message=st.binary(max_size=300), label=st.text())
def test_any_message_under_any_label_opens_at_the_peer_to_what_was_sealed(message: bytes, label: str) -> None:
    for sender, receiver in (pair(), pair()[::-1]):
        sealed = sender.seal(label, message)
        assert receiver.open(label, sealed) == message
        assert len(sealed) == len(message) + OVERHEAD


@given(messages=st.lists(st.binary(max_size=40), min_size=1, max_size=8), data=st.data())
def test_messages_open_in_any_order_and_as_often_as_they_come(messages: list[bytes], data) -> None:
    north, south = pair()
    sealed = [north.seal(str(i), message) for i, message in enumerate(messages)]
    for i in data.draw(st.lists(st.integers(0, len(messages) - 1), max_size=16)):
        assert south.open(str(i), sealed[i]) == messages[i]


@given(message=st.binary(max_size=40), bit=st.integers(min_value=0))
def test_a_message_with_any_bit_flipped_is_refused_and_the_channel_goes_on(message: bytes, bit: int) -> None:
    north, south = pair()
    sealed = north.seal("update", message)
    with pytest.raises(ChannelError, match="does not open: it was altered"):
        south.open("update", flipped(sealed, bit))
    assert south.open("update", sealed) == message


def flipped(content: bytes, bit: int) -> bytes:
    altered = bytearray(content)
    altered[bit // 8 % len(altered)] ^= 1 << bit % 8
    return bytes(altered)


def test_a_message_cut_at_any_length_or_made_longer_is_refused() -> None:
    north, south = pair()
    sealed = north.seal("update", b"0123456789")
    for length in range(len(sealed)):
        reason = "is incomplete" if length < OVERHEAD else "does not open"
        with pytest.raises(ChannelError, match=reason):
            south.open("update", sealed[:length])
        with pytest.raises(ChannelError, match=reason):
            south.open("update", sealed[len(sealed) - length :])
    with pytest.raises(ChannelError, match="does not open"):
        south.open("update", sealed + b"\0")


@given(label=st.text(), other=st.text())
def test_a_message_opens_under_its_own_label_only(label: str, other: str) -> None:
    north, south = pair()
    sealed = north.seal(label, b"weights")
    if label == other:
        assert south.open(other, sealed) == b"weights"
    else:
        with pytest.raises(ChannelError, match="does not open"):
            south.open(other, sealed)


def test_a_message_of_another_session_of_another_pair_or_sent_back_is_refused() -> None:
    north, south = pair()
    _, south_later = shaken(bank("north"), bank("south"), "run 2")
    _, east = shaken(bank("north"), bank("east"))
    sealed = north.seal("update", b"weights")
    for wrong in (north, south_later, east, shaken(bank("north"), bank("south"))[1]):
        with pytest.raises(ChannelError, match="does not open"):
            wrong.open("update", sealed)
    assert south.open("update", sealed) == b"weights"


def test_a_tag_moved_to_another_message_of_the_channel_is_refused() -> None:
    north, south = pair()
    first, second = north.seal("a", b"1" * 20), north.seal("a", b"2" * 20)
    for mixed in (first[:-16] + second[-16:], first[:8] + second[8:], second[:8] + first[8:]):
        with pytest.raises(ChannelError, match="does not open"):
            south.open("a", mixed)


def test_what_a_refusal_says_is_the_sender_the_label_and_the_size() -> None:
    north, south = pair()
    sealed = bytearray(north.seal("round 3/update", b"secret weights"))
    sealed[12] ^= 1
    with pytest.raises(ChannelError) as caught:
        south.open("round 3/update", sealed)
    text = str(caught.value)
    assert all(part in text for part in ("'north'", "'round 3/update'", "38 bytes"))
    assert "secret" not in text
    # No inner error, whose locals could hold what the bytes would have opened to.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_nothing_of_the_message_or_its_label_is_in_what_is_sent() -> None:
    north, _ = pair()
    message = b"account 4711: fraud" * 50
    sealed = north.seal("label/4711", message)
    assert not any(message[i : i + 6] in sealed for i in range(19))
    assert b"label" not in sealed


def test_the_same_message_sealed_twice_is_sent_as_different_bytes() -> None:
    north, _ = pair()
    first, second = north.seal("a", bytes(64)), north.seal("a", bytes(64))
    assert first[:8] != second[:8]
    assert first[8:] != second[8:]


@pytest.mark.parametrize("content", [bytes(200_000), b"\xff" * 200_000, b"graph" * 40_000])
def test_sealed_bytes_look_uniform_whatever_is_in_them(content: bytes) -> None:
    """Chi-square over the 256 values of a byte; 3 tests of false alarm 1e-9 each."""
    sealed = shaken(bank("north"), bank("south"))[0].seal("noise", content)[8:]
    count = np.bincount(np.frombuffer(sealed, np.uint8), minlength=256)
    assert ((count - count.mean()) ** 2 / count.mean()).sum() < chi2.isf(1e-9, 255)


def test_two_messages_are_not_sealed_with_one_key_stream() -> None:
    """Where a nonce comes twice, the exclusive or of two sealed messages is that of the messages. Chi-square
    of false alarm 1e-9, over neighbours in number and over the two directions."""
    north, south = shaken(bank("north"), bank("south"))
    sent = [np.frombuffer(north.seal("x", bytes(100_000)), np.uint8)[8:] for _ in range(2)]
    sent.append(np.frombuffer(south.seal("x", bytes(100_000)), np.uint8)[8:])
    for a, b in ((0, 1), (0, 2)):
        count = np.bincount(sent[a] ^ sent[b], minlength=256)
        assert ((count - count.mean()) ** 2 / count.mean()).sum() < chi2.isf(1e-9, 255)


def test_numbers_count_up_from_zero_one_for_every_message() -> None:
    north, south = shaken(bank("north"), bank("south"))
    for channel in (north, south):
        numbers = [int.from_bytes(channel.seal("same", b"m")[:8], "big") for _ in range(100)]
        assert numbers == list(range(100))


def test_sealing_and_opening_allocate_the_result_and_no_copy_beside_it() -> None:
    north, south = pair()
    size = 8_000_000
    message = os.urandom(size)
    tracemalloc.start()
    try:
        sealed = north.seal("large", message)
        _, sealing = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        opened = south.open("large", memoryview(sealed))
        _, opening = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert opened == message
    assert sealing < 1.01 * size
    assert opening < 2.01 * size  # what was sealed is still there


def test_a_message_above_the_limit_of_gcm_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**36)
    with (
        open(tmp_path / "sparse", "rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as huge,
        memoryview(huge) as message,
        pytest.raises(ChannelError, match=f"of {2**36} bytes.*in parts"),
    ):
        pair()[0].seal("huge", message)


def test_a_key_seals_up_to_its_limit_of_blocks_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_MOST_BLOCKS", 10)
    north, south = shaken(bank("north"), bank("south"))
    north.seal("a", bytes(6 * 16))  # 7 blocks, one more than its contents
    with pytest.raises(ChannelError, match=r"1 messages of 7 blocks in total.*begin a new handshake"):
        north.seal("b", bytes(3 * 16))
    last = north.seal("c", bytes(2 * 16))
    with pytest.raises(ChannelError, match="2 messages of 10 blocks"):
        north.seal("d", b"")
    assert south.open("c", last) == bytes(2 * 16)
    south.seal("e", bytes(9 * 16))  # a key of its own, with a limit of its own


def test_a_forked_process_cannot_seal_but_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    north, south = shaken(bank("north"), bank("south"))
    sealed = north.seal("before", b"m")
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with pytest.raises(ChannelError, match="forked process cannot seal"):
        north.seal("after", b"m")
    assert south.open("before", sealed) == b"m"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_neither_a_channel_nor_a_handshake_can_be_copied(copied) -> None:
    with pytest.raises(TypeError, match="neither copied nor pickled"):
        copied(pair()[0])
    with pytest.raises(TypeError, match="neither copied nor pickled"):
        copied(Handshake.begin(bank("north"), "south", "run 1"))


# ---- the handshake -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [("rsa", "p256"), ("p384", "rsa"), ("p256", "p384")])
def test_sites_with_keys_of_any_two_kinds_shake_hands(kinds: tuple[str, str]) -> None:
    a, b = client("a", kinds[0]), client("b", kinds[1])
    left, right = shaken(a, b)
    assert right.open("x", left.seal("x", b"from a")) == b"from a"
    assert left.open("x", right.seal("x", b"from b")) == b"from b"


def joined(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def offer_of(identity: Identity, **changed: object) -> bytes:
    """An offer put together here from its description, with parts of our choice and a signature that fits."""
    parts = {
        "session": b"run 1",
        "sender": b"north",
        "receiver": b"south",
        "public": X25519PrivateKey.generate().public_key().public_bytes_raw(),
        "certificate": identity.certificate.public_bytes(serialization.Encoding.DER),
        **changed,
    }
    signed = b"graphfed channel 1" + joined(*parts.values())
    return signed + joined(identity.sign(signed))


def refusal(offer: bytes, identity: Identity | None = None) -> str:
    """What south says of an offer that came as north's; the handshake must still take the right one."""
    south, north = Handshake.begin(identity or bank("south"), "north", "run 1"), bank("north")
    with pytest.raises(ChannelError) as caught:
        south.finish(offer)
    right = Handshake.begin(north, "south", "run 1")
    if identity is None:
        assert right.finish(south.offer).open("x", south.finish(right.offer).seal("x", b"m")) == b"m"
    return str(caught.value).removeprefix("the offer that arrived from 'north' is refused: ")


def test_an_offer_put_together_by_its_description_is_taken() -> None:
    north = X25519PrivateKey.generate()
    south = Handshake.begin(bank("south"), "north", "run 1")
    south.finish(offer_of(bank("north"), public=north.public_key().public_bytes_raw()))


def test_offers_for_another_session_or_site_or_from_another_site_are_refused() -> None:
    north, east = bank("north"), bank("east")
    cases = {
        Handshake.begin(north, "south", "run 2").offer: "it is of session 'run 2', not of session 'run 1'",
        Handshake.begin(north, "east", "run 1").offer: "it is for 'east', not for 'south'",
        Handshake.begin(east, "south", "run 1").offer: "it is from 'east', not from 'north'",
        # An authentic site that claims to be another one.
        offer_of(east): "its certificate belongs to 'east'",
        # ... or shows the other's certificate, whose key it does not have.
        offer_of(
            east, certificate=north.certificate.public_bytes(serialization.Encoding.DER)
        ): "its signature is wrong: the offer was altered, or another site made it",
    }
    for offer, reason in cases.items():
        assert refusal(offer) == reason


def test_a_sites_own_offer_is_refused_when_it_comes_back() -> None:
    south = Handshake.begin(bank("south"), "north", "run 1")
    for own in (south.offer, Handshake.begin(bank("south"), "north", "run 1").offer):
        with pytest.raises(ChannelError, match="it is this site's own offer, sent back"):
            south.finish(own)


# The points of order 1, 2, 4 and 8 (RFC 7748, section 6.1, has the check; the values are those of the curve).
LOW_ORDER = [
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    *((2**255 - 19 + k).to_bytes(32, "little") for k in (-1, 0, 1)),
]


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_point_of_low_order_is_refused_even_from_the_peer_itself(point: bytes) -> None:
    assert refusal(offer_of(bank("north"), public=point)).startswith("its key is a point of low order")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (
            {"ends": -0.5},
            r"cannot be trusted: the certificate is valid from .* to .*, and this machine's time is \d{4}-",
        ),
        ({"begins": 0.5}, r"cannot be trusted: the certificate is valid from "),
        ({"by": authority("other_project")}, "the project's root does not vouch for it"),
        ({"usage": key_usage(False)}, "its key is not allowed to sign"),
        ({"critical": "1.2.3.4"}, "unaccounted-for critical extensions"),
        ({"kind": "ed25519"}, "does not vouch for it|its key is neither RSA nor EC"),
        ({"kind": "weak rsa"}, "does not vouch for it|its key has 1024 bits, and at least 2048"),
        ({"names": ["north", "south"]}, "it has 2 common names; exactly one"),
        ({"names": ["North"]}, "its certificate belongs to 'North'"),
        ({"usage": UNREADABLE}, r"it cannot be read \(ValueError\)|does not vouch for it"),
    ],
)
def test_a_certificate_that_does_not_speak_for_the_peer_is_refused(how: dict, reason: str) -> None:
    der = client("north", **how).certificate.public_bytes(serialization.Encoding.DER)
    assert re.search(reason, refusal(offer_of(bank("north"), certificate=der)))


def test_a_root_of_the_same_name_with_another_key_vouches_for_nobody() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    twin = Authority(key, certificate(["bank_project"], key.public_key(), "bank_project", key, ca=True))
    assert "does not vouch for it" in refusal(offer_of(client("north", by=twin)))


def test_a_root_that_has_expired_vouches_for_nobody_any_more() -> None:
    old = authority("old_project", -0.5)
    text = refusal(offer_of(client("north", by=old)), identity=client("south", by=old))
    assert "the root's certificate is valid from" in text


def test_a_site_cannot_vouch_for_another_name() -> None:
    """A certificate signed by a site's key instead of the root's."""
    east = bank("east")
    fake = client("north", by=Authority(east._key, east.certificate))
    assert "does not vouch for it" in refusal(offer_of(fake))


@pytest.mark.parametrize("kind", ["p256", pytest.param("rsa", marks=pytest.mark.slow)])
def test_an_offer_with_any_bit_flipped_is_refused(kind: str) -> None:
    """Every bit. Some flips make a certificate that the library warns of, and warnings are errors here."""
    offer = Handshake.begin(client("north", kind), "south", "run 1").offer
    south = Handshake.begin(bank("south"), "north", "run 1")
    for bit in range(8 * len(offer)):
        with pytest.raises(ChannelError, match="the offer that arrived from 'north' is refused: "):
            south.finish(flipped(offer, bit))
    south.finish(offer)


def test_an_offer_cut_at_any_length_or_made_longer_is_refused() -> None:
    offer = Handshake.begin(bank("north"), "south", "run 1").offer
    south = Handshake.begin(bank("south"), "north", "run 1")
    for length in range(len(offer)):
        with pytest.raises(ChannelError, match="it is not an offer"):
            south.finish(offer[:length])
    with pytest.raises(ChannelError, match="1 bytes too many"):
        south.finish(offer + b"\0")
    with pytest.raises(ChannelError, match="at most 65536"):
        south.finish(offer + bytes(1 << 16))


@given(noise=st.binary(max_size=200))
def test_no_bytes_that_begin_as_an_offer_break_the_handshake(noise: bytes) -> None:
    south = Handshake.begin(bank("south"), "north", "run 1")
    for offer in (noise, b"graphfed channel 1" + noise, offer_of(bank("north"), certificate=noise)):
        with pytest.raises(ChannelError, match="is refused"):
            south.finish(offer)


def test_an_offer_with_a_key_of_another_size_is_refused() -> None:
    for size in (0, 31, 33):
        assert f"its key has {size} bytes, not 32" in refusal(offer_of(bank("north"), public=bytes(size)))


def test_sites_that_were_given_offers_of_two_handshakes_cannot_open_each_others_messages() -> None:
    """The relay plays an old offer of the same session, or mixes two handshakes that run side by side."""
    north, south = bank("north"), bank("south")
    one, other = (Handshake.begin(north, "south", "run 1") for _ in range(2))
    right = Handshake.begin(south, "north", "run 1")
    at_south, at_north = right.finish(one.offer), other.finish(right.offer)
    for sender, receiver in ((at_south, at_north), (at_north, at_south)):
        with pytest.raises(ChannelError, match="does not open"):
            receiver.open("x", sender.seal("x", b"m"))


def without_signature(offer: bytes) -> tuple[bytes, bytes]:
    at = len(b"graphfed channel 1")
    for _ in range(5):
        at += 4 + int.from_bytes(offer[at : at + 4], "little")
    return offer[:at], offer[at + 4 :]


def test_the_keys_depend_on_every_byte_of_both_offers() -> None:
    """The relay changes a signature into another valid one (s into n - s), which no check can refuse."""
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
    north = Handshake.begin(bank("north"), "south", "run 1")
    south = Handshake.begin(bank("south"), "north", "run 1")
    signed, signature = without_signature(north.offer)
    r, s = decode_dss_signature(signature)
    altered = signed + joined(encode_dss_signature(r, order - s))
    at_north, at_south = north.finish(south.offer), south.finish(altered)
    with pytest.raises(ChannelError, match="does not open"):
        at_south.open("x", at_north.seal("x", b"m"))


def test_a_handshake_gives_one_channel() -> None:
    """A second one from the same offers would use the first one's nonces again. And the key is dropped."""
    left = Handshake.begin(bank("north"), "south", "run 1")
    right = Handshake.begin(bank("south"), "north", "run 1")
    left.finish(right.offer)
    with pytest.raises(ChannelError, match="has already given its channel; begin a new handshake"):
        left.finish(right.offer)
    assert not any(isinstance(held, KeyPair) for held in vars(left).values())


def test_of_two_threads_that_finish_a_handshake_one_gets_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the other before it derives its keys, for a moment."""
    left = Handshake.begin(bank("north"), "south", "run 1")
    offer = Handshake.begin(bank("south"), "north", "run 1").offer
    both, derive = Barrier(2), KeyPair.agree

    def agree(*args, **kwargs) -> bytes:
        with suppress(BrokenBarrierError):
            both.wait(0.2)
        return derive(*args, **kwargs)

    monkeypatch.setattr(KeyPair, "agree", agree)
    with ThreadPoolExecutor(2) as threads:
        finished = [threads.submit(left.finish, offer) for _ in range(2)]
    assert sum(future.exception() is None for future in finished) == 1


def test_a_forked_process_cannot_finish_a_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    left = Handshake.begin(bank("north"), "south", "run 1")
    right = Handshake.begin(bank("south"), "north", "run 1")
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ChannelError, match="forked process cannot finish"):
            left.finish(right.offer)
    left.finish(right.offer)


def test_two_handshakes_of_the_same_sites_and_session_have_nothing_in_common() -> None:
    """Whatever the generators are seeded with: secrets are the operating system's."""
    drawn = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        north, _ = shaken(bank("north"), bank("south"))
        drawn.append(north.seal("x", bytes(32))[8:])
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("peer", "session", "reason"),
    [
        ("north", "run 1", "connects two different sites, and both are 'north'"),
        ("", "run 1", "the peer's name '' cannot be used"),
        ("south", "", "the session's name '' cannot be used"),
        ("south", "r" * 257, "1 to 256 bytes"),
        ("south\n", "run 1", "all printable"),
        ("south", "\ud800", "all printable"),
    ],
)
def test_names_that_cannot_be_used_are_refused_before_anything_is_signed(
    peer: str, session: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        Handshake.begin(bank("north"), peer, session)


# ---- a known answer ----------------------------------------------------------------------------------------


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """32 bytes of HKDF-SHA256, as RFC 5869 has it."""
    return expand(hmac.digest(salt, secret, "sha256"), info)


def expand(key: bytes, info: bytes) -> bytes:
    return hmac.digest(key, info + b"\x01", "sha256")


def test_hkdf_as_written_here_gives_the_first_vector_of_rfc_5869() -> None:
    key = hmac.digest(bytes(range(13)), b"\x0b" * 22, "sha256")
    assert key.hex() == "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"  # its first 32 bytes
    assert expand(key, bytes(range(0xF0, 0xFA))).hex() == okm


def test_the_keys_of_rfc_7748_give_what_the_description_says() -> None:
    """The private keys and the shared secret of section 6.1; HKDF and the layout written out here, and
    AES-GCM in one shot."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    a, b = client("alice"), client("bob")
    left = Handshake(a, "bob", "run 1", KeyPair(alice))
    right = Handshake(b, "alice", "run 1", KeyPair(bob))
    at_alice, at_bob = left.finish(right.offer), right.finish(left.offer)

    protocol = b"graphfed channel 1"
    salt = hashlib.sha256(joined(left.offer, right.offer)).digest()
    secret = hkdf(shared, salt, protocol)
    to_bob = expand(secret, protocol + joined(b"traffic", b"alice", b"bob"))
    to_alice = expand(secret, protocol + joined(b"traffic", b"bob", b"alice"))

    def sealed(key: bytes, number: int, names: tuple[bytes, bytes], label: bytes, message: bytes) -> bytes:
        content = AESGCM(key).encrypt(number.to_bytes(12, "big"), message, joined(*names, label))
        return number.to_bytes(8, "big") + content

    for number, message in enumerate([b"", b"weights", bytes(1000)]):
        box = sealed(to_bob, number, (b"alice", b"bob"), b"update", message)
        assert at_alice.seal("update", message) == box
        assert at_bob.open("update", box) == message
    assert at_bob.seal("m", b"x" * 33) == sealed(to_alice, 0, (b"bob", b"alice"), b"m", b"x" * 33)


# ---- identities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rsa", "p256", "p384"])
@pytest.mark.parametrize("within", [".", "startup"])
def test_an_identity_is_read_from_a_kit_and_shakes_hands(kind: str, within: str, tmp_path: Path) -> None:
    write_kit(tmp_path / within, client("north", kind))
    north = Identity.load(tmp_path)
    assert north.name == "north"
    left, right = shaken(north, bank("south"))
    assert right.open("x", left.seal("x", b"m")) == b"m"


def test_an_identity_does_not_show_its_key(tmp_path: Path) -> None:
    north = Identity.load(write_kit(tmp_path, client("north", "rsa")))
    assert "PrivateKey" in repr(north._key)
    assert "PrivateKey" not in repr(north)
    with pytest.raises(TypeError):
        pickle.dumps(north)


@pytest.mark.parametrize("missing", ["client.key", "client.crt", "rootCA.pem"])
def test_a_file_that_is_missing_or_something_else_is_named(missing: str, tmp_path: Path) -> None:
    startup_kit = write_kit(tmp_path, bank("north"))
    (startup_kit / missing).unlink()
    with pytest.raises(InputError, match=f"{missing} cannot be read .*startup kit has client.key"):
        Identity.load(startup_kit)
    for content in (b"", b"\xff" * 99, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        (startup_kit / missing).write_bytes(content)
        with pytest.raises(InputError, match=f"{missing} is not a .* in PEM form"):
            Identity.load(startup_kit)


def test_a_key_that_is_not_the_certificates_or_cannot_be_used_is_refused(tmp_path: Path) -> None:
    startup_kit = write_kit(tmp_path, bank("north"))
    key = key_of("rsa")
    PKCS8 = serialization.PrivateFormat.PKCS8
    (startup_kit / "client.key").write_bytes(key.private_bytes(PEM, PKCS8, serialization.NoEncryption()))
    with pytest.raises(InputError, match="is not the one of the certificate"):
        Identity.load(startup_kit)
    hidden = serialization.BestAvailableEncryption(b"password")
    (startup_kit / "client.key").write_bytes(key.private_bytes(PEM, PKCS8, hidden))
    with pytest.raises(InputError, match="has a passphrase; give it without one"):
        Identity.load(startup_kit)
    write_kit(startup_kit, client("north", "ed25519"))
    with pytest.raises(InputError, match=r"the private key .* is neither RSA nor EC"):
        Identity.load(startup_kit)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"ends": -0.5}, "the certificate is valid from .* set the clock or renew the startup kit"),
        ({"begins": 0.5}, "the certificate is valid from"),
        ({"usage": key_usage(False)}, "not allowed to sign"),
        ({"names": ["north", "south"]}, "2 common names"),
    ],
)
def test_a_certificate_that_peers_would_refuse_is_refused_at_home(
    how: dict, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"client.crt cannot be used: .*{reason}"):
        Identity.load(write_kit(tmp_path, client("north", **how)))


def test_a_certificate_of_another_projects_root_is_refused_at_home(tmp_path: Path) -> None:
    startup_kit = write_kit(tmp_path, bank("north"))
    (startup_kit / "rootCA.pem").write_bytes(authority("other_project").certificate.public_bytes(PEM))
    with pytest.raises(InputError, match=r"client.crt cannot be used: the project's root does not vouch"):
        Identity.load(startup_kit)


def test_without_the_library_the_module_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from graphfed.errors import InputError\n"
        "try:\n    import graphfed.crypto.channel\n"
        "except InputError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "needs the package cryptography" in done.stdout
    assert done.stdout.endswith("pip install '.[deploy]' in the clone of graphfed\n")


def test_sites_with_kits_that_nvflare_made_shake_hands_and_the_server_is_no_site(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install '.[deploy]'")
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project("banks", "three banks", props={"api_version": 3})
    project.set_server("server.example", "org", {})
    for name in ("site-1", "site_2"):
        project.add_client(name, "org", {})
    made = Provisioner(str(tmp_path), [WorkspaceBuilder(), CertBuilder()]).provision(project)
    startup_kits = Path(made.get_result_location())

    one, two = Identity.load(startup_kits / "site-1"), Identity.load(startup_kits / "site_2")
    assert (one.name, two.name) == ("site-1", "site_2")
    left, right = shaken(one, two)
    assert right.open("x", left.seal("x", b"m")) == b"m"
    startup = startup_kits / "server.example" / "startup"
    server = Identity.from_files(startup / "server.key", startup / "server.crt", startup / "rootCA.pem")
    claimed = offer_of(server, sender=b"site-1", receiver=b"site_2")
    with pytest.raises(ChannelError, match=r"its certificate belongs to 'server.example'"):
        Handshake.begin(two, "site-1", "run 1").finish(claimed)

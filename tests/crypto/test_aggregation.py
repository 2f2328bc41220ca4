"""Masked vectors open to exactly the sum of those that came, whoever drops out when; to nothing else, and to
nothing at all below the threshold; and a machine that is handed anything else ends its session."""

import copy
import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from graphfed.crypto import shamir
from graphfed.crypto.aggregation.client import Client, IdealClient
from graphfed.crypto.aggregation.server import IdealServer, Server
from graphfed.crypto.aggregation.terms import Terms
from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.pairwise import KeyPair, add_masks, open_sealed, seal
from graphfed.errors import InputError

FORMS = pytest.mark.parametrize("real", [True, False], ids=["real", "ideal"])
#: What a client sends, in order, and what the server answers.
SENT = ("keys", "sealed_shares", "masked", "unmask")
ANSWERED = ("all_keys", "forwarded_shares", "survivors")
#: (kind, party) of a message; the server's to all have party None.
Tamper = Callable[[str, int | None, bytes], bytes]


@dataclass
class Talk:
    """One session between machines in this process: who sends how many of its four messages, and what a test
    does to a message on its way. sent: every message as it was sent."""

    terms: Terms
    vectors: Sequence[np.ndarray]
    stays: Sequence[int]
    real: bool = True
    tamper: Tamper = staticmethod(lambda kind, party, message: message)  # noqa: RUF009 - a plain function
    sent: dict[tuple[str, int | None], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind, server = (Client, Server) if self.real else (IdealClient, IdealServer)
        self.clients = [kind(self.terms, party) for party in range(self.terms.clients)]
        self.server = server(self.terms, len(self.vectors[0]))

    def carry(self, kind: str, party: int | None, message: bytes) -> bytes:
        self.sent[kind, party] = message
        return self.tamper(kind, party, message)

    def alive(self, step: int) -> list[Client]:
        """The clients that send at least `step` messages."""
        return [client for client in self.clients if self.stays[client.party] >= step]

    def upwards(self, step: int, make: Callable[[Client], bytes]) -> dict[int, bytes]:
        kind = SENT[step - 1]
        return {c.party: self.carry(kind, c.party, make(c)) for c in self.alive(step)}

    def until_masked(self) -> None:
        keys = self.upwards(1, lambda c: c.advertise())
        listed = self.carry("all_keys", None, self.server.all_keys(keys))
        sealed = self.upwards(2, lambda c: c.share_keys(listed))
        forwarded = self.server.forward(sealed)
        forwarded = {
            party: self.carry("forwarded_shares", party, message) for party, message in forwarded.items()
        }
        masked = self.upwards(3, lambda c: c.mask(forwarded[c.party], self.vectors[c.party]))
        for party, message in masked.items():
            self.server.add_masked(party, message)

    def run(self) -> np.ndarray:
        self.until_masked()
        request = self.carry("survivors", None, self.server.request())
        return self.server.open(self.upwards(4, lambda c: c.unmask(request)))


def vectors_of(clients: int, width: int = 5, seed: int = 0) -> list[np.ndarray]:
    """Any 64-bit words: their sums wrap."""
    draw = np.random.default_rng(seed)
    return list(draw.integers(-(2**63), 2**63, (clients, width), dtype=np.int64))


def check_pattern(terms: Terms, stays: Sequence[int], real: bool = True, width: int = 5) -> None:
    """The oracle: who sent at least k messages, for every k; Python's own sum."""
    talk = Talk(terms, vectors_of(terms.clients, width), stays, real)
    if min(len(talk.alive(step)) for step in (1, 2, 3, 4)) < terms.threshold:
        with pytest.raises(ProtocolError, match=r"only \d+ of \d+ clients are left .* cannot be opened"):
            talk.run()
        assert talk.server._total is None
        with pytest.raises(ProtocolError, match="the session has ended"):
            talk.server.open({})
        return
    total = talk.run()
    summed = [talk.vectors[c.party] for c in talk.alive(3)]
    expected = [sum(int(v[i]) for v in summed) % 2**64 for i in range(width)]
    assert total.dtype == np.int64
    assert [int(word) % 2**64 for word in total] == expected


# ---- the sum -----------------------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize(("clients", "threshold"), [(3, 2), (3, 3), (4, 3), (4, 4)])
def test_up_to_four_clients_drop_out_in_every_pattern_and_the_sum_is_exact_or_nothing_is(
    clients: int, threshold: int, real: bool
) -> None:
    """Each sends its first 0 to 4 messages."""
    for stays in itertools.product(range(5), repeat=clients):
        check_pattern(Terms("all", clients, threshold), stays, real, width=2)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [3, 4])
def test_five_clients_drop_out_in_every_pattern_and_the_sum_is_exact_or_nothing_is(threshold: int) -> None:
    for stays in itertools.product(range(5), repeat=5):
        check_pattern(Terms("all", 5, threshold), stays, width=2)


@settings(max_examples=60)
@given(data=st.data(), clients=st.integers(6, 12), width=st.integers(0, 9), real=st.booleans())
def test_more_clients_drop_out_anywhere_and_the_sum_is_exact_or_nothing_is(
    data: st.DataObject, clients: int, width: int, real: bool
) -> None:
    threshold = data.draw(st.integers(clients // 2 + 1, clients))
    stays = data.draw(st.lists(st.sampled_from([4] * 8 + [0, 1, 2, 3]), min_size=clients, max_size=clients))
    check_pattern(Terms("more", clients, threshold), stays, real, width)


def test_a_vector_of_several_blocks_is_the_sum_in_every_word() -> None:
    vectors = vectors_of(4, width=2**17 + 3)
    talk = Talk(Terms("long", 4, 3), vectors, [4, 2, 4, 4])
    assert (talk.run() == vectors[0] + vectors[2] + vectors[3]).all()


@FORMS
def test_every_message_has_the_length_that_the_terms_say(real: bool) -> None:
    terms = Terms.usual("sizes", 5)
    talk = Talk(terms, vectors_of(5, 7), [4] * 5, real)
    talk.run()
    sizes = {kind: {len(m) for (k, _), m in talk.sent.items() if k == kind} for kind in (*SENT, *ANSWERED)}
    assert sizes == {kind: {size} for kind, size in terms.sizes(7).items()}
    assert {kind: sum(k == kind for k, _ in talk.sent) for kind in (*SENT, *ANSWERED)} == {
        **dict.fromkeys(SENT, 5), "all_keys": 1, "forwarded_shares": 5, "survivors": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("clients", "threshold"), [(3, 3), (4, 3), (5, 4), (6, 5), (10, 7), (50, 34)])
def test_usually_more_than_two_thirds_must_stay(clients: int, threshold: int) -> None:
    assert Terms.usual("", clients).threshold == threshold


@pytest.mark.parametrize("clients", [-1, 0, 1, 2, 2**16])
def test_two_clients_are_refused_and_why_is_said(clients: int) -> None:
    with pytest.raises(
        InputError, match=f"needs 3 to 65535 clients in a round, and this round has {clients}: each of two"
    ):
        Terms.usual("", clients)


@pytest.mark.parametrize(("clients", "threshold"), [(3, 1), (4, 2), (5, 2), (5, 6), (6, 3), (3, 0), (3, -1)])
def test_a_threshold_of_half_the_clients_or_of_more_than_all_is_refused(clients: int, threshold: int) -> None:
    with pytest.raises(InputError, match=f"the threshold {threshold} of {clients} clients is not possible"):
        Terms("", clients, threshold)


# ---- what the server sees ----------------------------------------------------------------------------------


def words_of(message: bytes) -> np.ndarray:
    return np.frombuffer(message, dtype="<u8", offset=8).copy()


def is_uniform(words: np.ndarray) -> bool:
    """Chi-square over the 256 values of a byte, with a false alarm once in 10^9."""
    count = np.bincount(words.view(np.uint8), minlength=256)
    return bool(((count - count.mean()) ** 2 / count.mean()).sum() < chi2.isf(1e-9, 255))


def masks_of_pairs(client: Client) -> np.ndarray:
    """What a client's keys for the others add to its vector: all masks less that of its seed."""
    masks = np.zeros(20_000, dtype=np.uint64)
    client._mask(masks)
    add_masks(masks, [], [client._seed])
    return masks


def test_a_masked_vector_is_uniform_and_stays_so_when_either_kind_of_mask_is_taken_off() -> None:
    """A client in the sum loses the mask of its seed, one that dropped out those of its keys."""
    vectors = [np.full(20_000, value) for value in (0, 0, -1, 2**40)]
    talk = Talk(Terms.usual("uniform", 4), vectors, [4] * 4)
    talk.until_masked()
    for client in talk.clients:
        masked = words_of(talk.sent["masked", client.party])
        without_seed = masked.copy()
        add_masks(without_seed, [], [client._seed])
        without_keys = masked - masks_of_pairs(client)
        assert all(is_uniform(words) for words in (masked, without_seed, without_keys))
        left = without_seed - masks_of_pairs(client)
        assert (left.view(np.int64) == vectors[client.party]).all(), "with both it is the vector"


def test_clients_in_the_sum_hide_each_other_until_all_are_added_up() -> None:
    """Their seeds are opened: of every smaller set of them what is left is uniform."""
    talk = Talk(Terms.usual("subsets", 4), [np.zeros(20_000, dtype=np.int64)] * 4, [4] * 4)
    talk.until_masked()
    opened = []
    for client in talk.clients:
        words = words_of(talk.sent["masked", client.party])
        add_masks(words, [], [client._seed])
        opened.append(words)
    for size in (1, 2, 3):
        for some in itertools.combinations(opened, size):
            assert is_uniform(np.sum(some, axis=0, dtype=np.uint64))
    assert not np.sum(opened, axis=0, dtype=np.uint64).any()


def test_two_sessions_with_the_same_vectors_have_nothing_in_common() -> None:
    """Else the difference of two masked vectors would be that of two updates."""
    first, second = (Talk(Terms.usual("same", 3), vectors_of(3, 2000), [4] * 3) for _ in range(2))
    assert (first.run() == second.run()).all()
    for place, message in first.sent.items():
        if place[0] != "survivors":
            assert message[8:] != second.sent[place][8:]
    for party in range(3):
        gap = words_of(first.sent["masked", party]) - words_of(second.sent["masked", party])
        assert is_uniform(gap)


def test_seeds_keys_and_what_boxes_are_bound_to_are_new_for_each_client_and_session() -> None:
    talks = [ready(3), ready(3)]
    clients = [client for talk in talks for client in talk.clients]
    secrets = {c._seed for c in clients} | {c._masking.private for c in clients}
    assert len(secrets | {c._sealing.private for c in clients}) == 3 * len(clients)
    bound = [talk.clients[0]._about(i, j) for talk in talks for i, j in itertools.permutations(range(5), 2)]
    assert len({*bound}) == len(bound) == 2 * 20, "to the session, who sealed, and for whom"


@settings(max_examples=60)
@given(key=st.binary(min_size=32, max_size=32), bit=st.integers(0, 255), width=st.integers(4, 200_000))
def test_a_mask_is_the_key_stream_of_aes_256_under_every_bit_of_its_key(
    key: bytes, bit: int, width: int
) -> None:
    """Against the library in one piece; with one bit of the key changed hardly a word stays."""
    whole = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * width))
    mask = np.zeros(width, dtype=np.uint64)
    add_masks(mask, [key], [])
    assert mask.tobytes() == whole
    near = int.from_bytes(key, "big") ^ (1 << bit)
    add_masks(mask, [], [near.to_bytes(32, "big")])
    assert np.count_nonzero(mask) >= width - 1


@settings(max_examples=60)
@given(message=st.binary(max_size=80), bit=st.integers(0, 10**6))
def test_a_box_opens_under_its_key_and_about_what_it_was_sealed_about_only(message: bytes, bit: int) -> None:
    key, box = bytes(32), seal(bytes(32), message, b"from 1 to 2")
    assert len(box) == len(message) + 16
    assert open_sealed(key, box, b"from 1 to 2") == message
    at = bit % (8 * len(box))
    altered = int.from_bytes(box, "big") ^ (1 << at)
    for other in (
        (key, box, b"from 2 to 1"),
        (bytes([1]) + key[1:], box, b"from 1 to 2"),
        (key, altered.to_bytes(len(box), "big"), b"from 1 to 2"),
        (key, box[:-1], b"from 1 to 2"),
        (key, b"", b"from 1 to 2"),
    ):
        with pytest.raises(ProtocolError, match="does not open"):
            open_sealed(*other)


def test_two_keys_agree_for_each_purpose_and_only_for_it() -> None:
    one, other, third = KeyPair(), KeyPair(), KeyPair()
    agreed = one.agree(other.public, b"masks", 64)
    assert agreed == other.agree(one.public, b"masks", 64)
    assert len(agreed) == 64
    assert KeyPair(one.private).agree(other.public, b"masks", 64) == agreed
    for else_ in (one.agree(other.public, b"boxes", 64), one.agree(third.public, b"masks", 64)):
        assert not {else_[:32], else_[32:]} & {agreed[:32], agreed[32:]}


def test_ideal_messages_are_the_vectors_themselves() -> None:
    """So what is called simulated is simulated."""
    talk = Talk(Terms.usual("ideal", 3), vectors_of(3), [4] * 3, real=False)
    talk.run()
    for party, vector in enumerate(talk.vectors):
        assert (words_of(talk.sent["masked", party]).view(np.int64) == vector).all()


@settings(max_examples=20)
@given(guess=st.binary(min_size=32, max_size=32), victim=st.integers(0, 4), data=st.data())
def test_below_the_threshold_what_the_server_has_goes_with_any_seed_and_so_with_any_vector(
    guess: bytes, victim: int, data: st.DataObject
) -> None:
    """Four must answer and three do. For whatever seed there is an answer of a fourth with which all four
    open to it: the shares that came say nothing of which of them masks the vector."""
    talk = Talk(Terms("few", 5, 4), vectors_of(5), [4] * 5)
    talk.until_masked()
    request = talk.server.request()
    order = data.draw(st.permutations(range(5)))
    answers = {p: talk.clients[p].unmask(request) for p in order[:3]}
    seen = [(p + 1, a[8 + 32 * victim :][:32]) for p, a in answers.items()]
    missing = order[3] + 1
    forged = shamir.combine([(missing, guess), *((i ^ missing, share) for i, share in seen)], 4)
    assert shamir.combine([*seen, (missing, forged)], 4) == guess
    with pytest.raises(ProtocolError, match="only 3 of 5 clients are left to unmask the sum"):
        talk.server.open(answers)
    assert talk.server._total is None


def test_a_session_that_ends_before_masking_has_shown_the_server_public_keys_and_sealed_boxes_only() -> None:
    """They say nothing of the vectors, which no machine has been given; and no machine keeps a secret."""
    talk = Talk(Terms("early", 4, 3), vectors_of(4), [2, 2, 1, 1])
    with pytest.raises(ProtocolError, match="only 2 of 4 clients are left that have shared their keys"):
        talk.run()
    assert {kind for kind, _ in talk.sent} == {"keys", "all_keys", "sealed_shares"}


def test_a_machine_that_has_ended_keeps_no_secret() -> None:
    talk = Talk(Terms.usual("over", 3), vectors_of(3), [4] * 3)
    talk.run()
    for client in talk.clients:
        assert not {"_seed", "_masking", "_sealing", "_shares", "_opening"} & vars(client).keys()


# ---- what a client refuses ---------------------------------------------------------------------------------


def ready(step: int, clients: int = 5, threshold: int = 4) -> Talk:
    """A session in which the clients wait for the server's answer number `step` (1: the keys; 0: none)."""
    talk = Talk(Terms("refusals", clients, threshold), vectors_of(clients), [4] * clients)
    if step == 0:
        return talk
    keys = {c.party: c.advertise() for c in talk.clients}
    talk.sent["all_keys", None] = listed = talk.server.all_keys(keys)
    if step == 1:
        return talk
    forwarded = talk.server.forward({c.party: c.share_keys(listed) for c in talk.clients})
    talk.sent |= {("forwarded_shares", party): message for party, message in forwarded.items()}
    if step == 2:
        return talk
    for c in talk.clients:
        talk.server.add_masked(c.party, c.mask(forwarded[c.party], talk.vectors[c.party]))
    return talk


def listed(talk: Talk, keys: Sequence[bytes]) -> bytes:
    """A list of keys as the server would send it."""
    return talk.sent["all_keys", None][:8] + b"".join(keys)


def keys_of(talk: Talk) -> list[bytes]:
    body = talk.sent["all_keys", None][8:]
    return [body[i : i + 64] for i in range(0, len(body), 64)]


def refused(why: str, step: Callable[[], Any]) -> None:
    with pytest.raises(ProtocolError, match=why):
        step()


def test_a_client_refuses_a_list_of_fewer_keys_than_the_threshold() -> None:
    talk = ready(1)
    few = [key if party in (0, 1, 3) else bytes(64) for party, key in enumerate(keys_of(talk))]
    refused(
        "only 3 of 5 clients are left that advertise keys",
        lambda: talk.clients[0].share_keys(listed(talk, few)),
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda keys: [keys[1], keys[0], *keys[2:]], "has other keys for this client than the client "
        "advertised"),
        (lambda keys: [bytes(64), *keys[1:]], "has other keys for this client than the client advertised"),
        (lambda keys: [*keys[:2], keys[3], *keys[3:]], "has the same key more than once"),
        (lambda keys: [*keys[:2], keys[2][:32] * 2, *keys[3:]], "has the same key more than once"),
        (lambda keys: [*keys[:2], keys[0][32:] + keys[2][32:], *keys[3:]], "has the same key more than once"),
        (
            lambda keys: [*keys[:2], (1).to_bytes(32, "little") + keys[2][32:], *keys[3:]],
            "a point of low order, with which the shared secret is public",
        ),
    ],
    ids=["another's keys", "no key", "twice", "one for both", "part of another's", "low order"],
)  # fmt: skip
def test_a_client_refuses_keys_that_cannot_be_the_clients_own(change: Any, why: str) -> None:
    talk = ready(1)
    refused(why, lambda: talk.clients[0].share_keys(listed(talk, change(keys_of(talk)))))


def test_a_client_refuses_a_mask_key_of_low_order() -> None:
    talk = ready(2)
    talk.clients[1]._keys[2] = talk.clients[1]._keys[2][:32] + (1).to_bytes(32, "little")
    forwarded = talk.sent["forwarded_shares", 1]
    refused("a point of low order", lambda: talk.clients[1].mask(forwarded, talk.vectors[1]))


def test_a_client_refuses_to_mask_among_fewer_than_the_threshold() -> None:
    talk = ready(2)
    forwarded = talk.sent["forwarded_shares", 0]
    few = forwarded[: 8 + 2 * 80] + bytes(2 * 80)
    refused(
        "only 3 of 5 clients are left that have shared", lambda: talk.clients[0].mask(few, talk.vectors[0])
    )


def test_a_client_refuses_a_share_of_one_that_advertised_no_keys() -> None:
    talk = Talk(Terms("stranger", 5, 3), vectors_of(5), [4, 4, 4, 4, 0])
    listed = talk.server.all_keys(talk.upwards(1, lambda c: c.advertise()))
    forwarded = talk.server.forward(talk.upwards(2, lambda c: c.share_keys(listed)))
    strange = forwarded[0][:-80] + b"?" * 80
    refused(
        "a share of client 4 arrived, and that client has not advertised",
        lambda: talk.clients[0].mask(strange, talk.vectors[0]),
    )


def test_a_share_for_somebody_else_does_not_open() -> None:
    """The server swaps the boxes, each under the tag of the other."""
    talk = ready(2)
    first, second = (talk.sent["forwarded_shares", p] for p in (0, 1))
    refused("does not open", lambda: talk.clients[0].mask(first[:8] + second[8:], talk.vectors[0]))


def test_a_share_of_another_session_or_of_another_sender_does_not_open() -> None:
    talk, other = ready(2), ready(2)
    new, old = talk.sent["forwarded_shares", 0], other.sent["forwarded_shares", 0]
    refused("does not open", lambda: talk.clients[0].mask(new[:8] + old[8:], talk.vectors[0]))
    other = ready(2)
    forwarded = other.sent["forwarded_shares", 0]
    swapped = forwarded[:8] + forwarded[88:168] + forwarded[8:88] + forwarded[168:]
    refused("does not open", lambda: other.clients[0].mask(swapped, other.vectors[0]))


def request_of(talk: Talk, requested: Sequence[int]) -> bytes:
    """A request to unmask as the server would send it."""
    return talk.server._tag("survivors", 2**32 - 1) + bytes(requested)


@pytest.mark.parametrize(
    ("requested", "why"),
    [
        ([1, 1, 1, 3, 1], "the server asks for both secrets of client 3, which would reveal its vector; "
        "refused"),
        ([1, 1, 3, 3, 3], "both secrets of client 2"),
        ([3, 1, 1, 1, 1], "both secrets of client 0"),
        ([1, 1, 255, 1, 1], "both secrets of client 2"),
        ([2, 1, 1, 1, 1], "lists this client as dropped out"),
        ([1, 1, 1, 2, 2], "only 3 of 5 clients are left whose masked vector has arrived"),
        ([1, 1, 1, 1, 0], "no secret of client 4, so the sum cannot be opened"),
        ([0, 1, 1, 1, 1], "no secret of client 0"),
    ],
)  # fmt: skip
def test_a_client_refuses_a_request_that_could_show_a_vector(requested: Sequence[int], why: str) -> None:
    talk = ready(3)
    refused(why, lambda: talk.clients[0].unmask(request_of(talk, requested)))
    refused(
        "already answered or refused the session's one request",
        lambda: talk.clients[0].unmask(request_of(talk, [1] * 5)),
    )


def test_a_client_refuses_survivors_that_were_not_among_those_it_saw() -> None:
    """Client 4 has shared nothing: nobody has a share of a secret of its."""
    talk = Talk(Terms("subset", 5, 3), vectors_of(5), [4, 4, 4, 4, 1])
    talk.until_masked()
    for code in (1, 2):
        client = talk.clients[code]
        request = request_of(talk, [1, 1, 1, 1, code])
        refused("a secret of client 4, which did not share its keys", lambda c=client, r=request: c.unmask(r))


@pytest.mark.parametrize("again", [[1, 1, 1, 1, 1], [1, 1, 1, 1, 2]], ids=["the same", "another set"])
def test_a_client_answers_one_request_in_a_session(again: Sequence[int]) -> None:
    """With two, client 4's seed from some and its key from others."""
    talk = ready(3)
    talk.clients[0].unmask(request_of(talk, [1] * 5))
    why = "with a second answer the server could open both secrets of a client"
    refused(why, lambda: talk.clients[0].unmask(request_of(talk, again)))


def test_half_of_the_clients_are_too_few_to_answer_two_requests_with() -> None:
    """Why a threshold is more than half: sets of t of n clients that answer once each have one in common."""
    for clients in range(3, 9):
        for threshold in range(clients // 2 + 1, clients + 1):
            sets = list(itertools.combinations(range(clients), threshold))
            assert all({*a} & {*b} for a in sets for b in sets)


# ---- what the server refuses -------------------------------------------------------------------------------


def test_the_server_refuses_a_second_masked_vector_and_one_of_a_stranger() -> None:
    talk = ready(2)
    forwarded = {p: talk.sent["forwarded_shares", p] for p in range(5)}
    masked = {c.party: c.mask(forwarded[c.party], talk.vectors[c.party]) for c in talk.clients}
    talk.server.add_masked(1, masked[1])
    refused("a second masked vector of client 1", lambda: talk.server.add_masked(1, masked[1]))
    for party in (-1, 5, 9):
        refused(
            f"client {party} sent a message and takes no part",
            lambda p=party: ready(2).server.add_masked(p, masked[1]),
        )


def test_the_server_refuses_the_vector_of_a_client_that_shared_no_keys() -> None:
    """Its masks could not be taken off the sum."""
    talk = Talk(Terms("unshared", 5, 3), vectors_of(5), [4, 4, 4, 1, 4])
    talk.until_masked()
    message = talk.server._tag("masked", 3) + bytes(40)
    refused("client 3 sent a message and takes no part", lambda: talk.server.add_masked(3, message))


def test_the_server_refuses_a_client_that_shares_with_some_only_and_a_key_of_zeros() -> None:
    talk = ready(1)
    sealed = {c.party: c.share_keys(talk.sent["all_keys", None]) for c in talk.clients}
    sealed[2] = sealed[2][:-80] + bytes(80)
    refused(
        "client 2 did not send exactly one share for every other client", lambda: talk.server.forward(sealed)
    )
    server = Server(talk.terms, 5)
    zeros = {p: server._tag("keys", p) + bytes(64) for p in range(5)}
    refused("keys of zeros", lambda: server.all_keys(zeros))


def test_the_server_notices_shares_of_a_key_that_open_to_another_key() -> None:
    talk = Talk(Terms("altered", 5, 3), vectors_of(5), [4, 4, 4, 2, 4])

    def alter(kind: str, party: int | None, message: bytes) -> bytes:
        if (kind, party) != ("unmask", 1):
            return message
        return message[:-33] + bytes([message[-33] ^ 1]) + message[-32:]  # the last byte about client 3

    talk.tamper = alter
    refused("the shares of client 3's private key open to another key", talk.run)


# ---- what is no message of this step -----------------------------------------------------------------------


def session_of(clients: int, tamper: Tamper | None = None) -> Talk:
    """One client drops out after sharing, so that every kind of secret is opened."""
    stays = [4] * (clients - 1) + [2]
    talk = Talk(Terms("talk", clients, clients // 2 + 1), vectors_of(clients), stays)
    talk.tamper = tamper or talk.tamper
    return talk


@settings(max_examples=150)
@given(data=st.data(), clients=st.integers(4, 6))
def test_a_message_that_is_cut_or_replaced_ends_the_session_and_never_gives_another_sum(
    data: st.DataObject, clients: int
) -> None:
    """Cut, lengthened, random, with another tag, of another client or step, of a session that was before."""
    before = session_of(clients)
    before.run()
    # The last client is gone when its shares come.
    places = sorted(before.sent.keys() - {("forwarded_shares", clients - 1)}, key=str)
    target = data.draw(st.sampled_from(places))
    instead = data.draw(st.sampled_from([place for place in places if place != target]))
    number = data.draw(st.integers(0, 10**6))
    noise = data.draw(st.randoms(use_true_random=False))
    changes: dict[str, Callable[[bytes], bytes]] = {
        "cut": lambda message: message[: number % len(message)],
        "longer": lambda message: message + bytes(1 + number % 9),
        "random": lambda message: noise.randbytes(len(message)),
        "tag": lambda message: bytes([message[0] ^ (1 + number % 255)]) + message[1:],
        "other": lambda message: talk.sent.get(instead, before.sent[instead]),
    }
    if target[0] != "keys":  # which belong to no session yet
        changes["old"] = lambda message: before.sent[target]
    change = changes[data.draw(st.sampled_from(sorted(changes)))]
    talk = session_of(clients, lambda kind, p, message: change(message) if (kind, p) == target else message)
    with pytest.raises(ProtocolError):
        talk.run()


@settings(max_examples=100)
@given(data=st.data(), kind=st.sampled_from(["keys", "all_keys", "sealed_shares", "forwarded_shares"]))
def test_one_altered_bit_of_a_key_or_of_a_sealed_share_is_noticed(data: st.DataObject, kind: str) -> None:
    """By the client whose key it is, or to whom the share is."""
    party = None if kind == "all_keys" else data.draw(st.integers(0, 2))
    bit = data.draw(st.integers(0, 10**6))

    def tamper(k: str, p: int | None, message: bytes) -> bytes:
        if (k, p) != (kind, party):
            return message
        at = 8 + bit // 8 % (len(message) - 8)
        return message[:at] + bytes([message[at] ^ (1 << bit % 8)]) + message[at + 1 :]

    talk = Talk(Terms("bit", 4, 3), vectors_of(4), [4] * 4)
    talk.tamper = tamper
    with pytest.raises(ProtocolError):
        talk.run()


def test_keys_of_an_earlier_session_are_noticed_by_the_client_whose_they_were() -> None:
    before = session_of(4)
    before.run()
    place = ("keys", 1)
    talk = session_of(4, lambda k, p, message: before.sent[place] if (k, p) == place else message)
    refused("other keys for this client than the client advertised", talk.run)


@pytest.mark.parametrize("other", [Terms("other", 5, 4), Terms("terms", 5, 3), Terms("terms", 6, 4)])
def test_ends_with_other_terms_do_not_understand_each_other(other: Terms) -> None:
    talk = Talk(Terms("terms", 5, 4), vectors_of(5), [4] * 5)
    server = Server(other, 5)
    refused(
        "the other participant has other terms",
        lambda: server.all_keys(
            {0: talk.clients[0].advertise()} | {c.party: c.advertise() for c in talk.clients[1:]}
        ),
    )


STEPS: list[Callable[[Talk], Any]] = [
    lambda talk: talk.clients[0].advertise(),
    lambda talk: talk.clients[0].share_keys(talk.sent.get(("all_keys", None), b"")),
    lambda talk: talk.clients[0].mask(talk.sent.get(("forwarded_shares", 0), b""), talk.vectors[0]),
    lambda talk: talk.clients[0].unmask(request_of(talk, [1] * 5)),
]


@pytest.mark.parametrize(("at", "other"), list(itertools.permutations(range(4), 2)))
def test_a_step_of_a_client_that_is_repeated_or_too_early_ends_its_session(at: int, other: int) -> None:
    """And then the right one, which was fine before, is refused as well."""
    STEPS[at](ready(at))
    talk = ready(at)
    for step in (other, at):
        with pytest.raises(ProtocolError):
            STEPS[step](talk)


SERVER_STEPS: list[Callable[[Server], Any]] = [
    lambda s: s.all_keys({}), lambda s: s.forward({}), lambda s: s.add_masked(0, b""),
    lambda s: s.request(), lambda s: s.open({}),
]  # fmt: skip


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("then", range(5))
def test_the_server_takes_nothing_out_of_turn_and_nothing_after_an_error(first: int, then: int) -> None:
    server = Server(Terms.usual("order", 3), 5)
    for step in (first, then):
        with pytest.raises(ProtocolError):
            SERVER_STEPS[step](server)
    assert server._total is None


@FORMS
def test_a_machine_is_neither_copied_nor_pickled(real: bool) -> None:
    """Its masks serve once."""
    terms = Terms.usual("copy", 3)
    for machine in (
        (Client(terms, 0), Server(terms, 1)) if real else (IdealClient(terms, 0), IdealServer(terms, 1))
    ):
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                attempt(machine)


@pytest.mark.parametrize(
    "vector", [np.zeros(5), np.zeros((1, 5), dtype=np.int64), np.zeros(5, dtype=np.int32)]
)
def test_a_vector_of_other_than_64_bit_words_is_a_mistake(vector: np.ndarray) -> None:
    talk = ready(2)
    with pytest.raises(ValueError, match="expected a vector of 64-bit words"):
        talk.clients[0].mask(talk.sent["forwarded_shares", 0], vector)


# ---- the library -------------------------------------------------------------------------------------------


def answer_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_averaging_methods_load_no_cryptography_until_they_are_asked_to() -> None:
    program = """
import sys
import graphfed.methods.averaging.methods
print(any(name.split(".")[0] in ("cryptography", "Crypto") for name in sys.modules))
"""
    assert answer_of(program).strip() == "False"


def test_who_has_ended_keeps_no_secret() -> None:
    talk = session_of(4)
    total = talk.run()
    assert talk.server._total is None
    assert len(total) == len(talk.vectors[0])
    for client in talk.alive(4):
        assert not {"_sealing", "_masking", "_seed", "_shares", "_opening"} & {*vars(client)}

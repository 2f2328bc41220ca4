"""Payloads come back from their bytes, and other bytes are refused without anything being run."""

import contextlib
import json
import math
import pickle
import struct
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import MemoryLink, at_clients
from torch import Tensor

from graphfed.federation import Federation, ReceivedError, wire
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.wire import WireError, decode, encode
from graphfed.nn.sparse import SparseMatrix

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = draw(st.lists(st.integers(0, 1), min_size=math.prod(shape), max_size=math.prod(shape)))
    return torch.tensor(values).reshape(shape).to(draw(st.sampled_from(DTYPES)))


@st.composite
def sparse(draw: st.DrawFn) -> SparseMatrix:
    shape = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    entries = [draw(st.sampled_from([0.0, 0.0, 1.5])) for _ in range(math.prod(shape))]
    return SparseMatrix.from_dense(torch.tensor(entries).reshape(shape))


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
payloads = st.recursive(
    tensors() | sparse() | plain,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, SparseMatrix):
        return isinstance(b, SparseMatrix) and a.shape == b.shape and torch.equal(a.to_dense(), b.to_dense())
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return (
            isinstance(b, tuple) and len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
        )
    return type(a) is type(b) and a == b


@settings(max_examples=150)
@given(payloads)
def test_a_payload_comes_back_as_it_was(payload):
    again, header = decode(encode(payload, grad=[True, False]))
    assert alike(payload, again)
    assert header == {"grad": [True, False]}


def test_views_and_tensors_that_require_a_gradient_are_sent_as_values():
    base = torch.arange(6.0).reshape(2, 3).requires_grad_()
    again, _ = decode(encode({"a": base, "b": base.t(), "c": base}))
    assert torch.equal(again["b"], base.detach().t())
    assert not again["a"].requires_grad
    assert again["a"].data_ptr() != again["c"].data_ptr()


MESSAGE = encode(
    {"a": torch.arange(5.0), "b": (torch.ones(2, dtype=torch.bool), "text", 3)}, grad=[True], dtypes=[]
)


def test_a_message_cut_short_anywhere_is_refused():
    for end in range(len(MESSAGE)):
        with pytest.raises(WireError):
            decode(MESSAGE[:end])


def test_bytes_after_a_message_are_refused():
    with pytest.raises(WireError):
        decode(MESSAGE + b"\0")


@settings(max_examples=400)
@given(st.integers(0, len(MESSAGE) - 1), st.integers(1, 255))
def test_a_flipped_byte_gives_a_payload_or_a_wire_error_and_nothing_else(position, flip):
    broken = bytearray(MESSAGE)
    broken[position] ^= flip
    with contextlib.suppress(WireError):
        decode(bytes(broken))


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise):
    with pytest.raises(WireError):
        decode(noise)


def made(structure: Any, block: bytes = encode(None)[8 + len(b'{"payload": {"v": null}}') :]) -> bytes:
    text = json.dumps({"payload": structure}).encode()
    return struct.pack("<Q", len(text)) + text + block


@pytest.mark.parametrize(
    "structure",
    [
        {},
        {"v": 1, "t": "0"},
        {"x": 1},
        {"": 1},
        {"ts": 1},
        {"dl": []},
        {"t": "0"},
        {"s": "0"},
        {"t": ["0"]},
        {"v": {"t": "0"}},
        {"v": [1]},
        {"l": {"v": 1}},
        {"l": "ab"},
        {"d": [[1, {"v": 1}]]},
        {"d": [[None, {"v": 1}]]},
        {"d": [["a", {"v": 1}], ["a", {"v": 2}]]},
        {"d": [["a"]]},
        {"d": {"a": {"v": 1}}},
        {"v": float("nan")},
        {"v": float("inf")},
        None,
        [],
        "v",
        3,
    ],
    ids=json.dumps,
)
def test_a_header_with_another_structure_is_refused(structure):
    with pytest.raises(WireError):
        decode(made(structure))


def test_the_block_of_these_tests_is_well_formed():
    assert decode(made({"v": 1})) == (1, {})


def test_a_header_nested_too_deeply_is_refused():
    depth = 100_000
    text = b'{"payload": ' + b'{"l": [' * depth + b"]}" * depth + b"}"
    with pytest.raises(WireError):
        decode(struct.pack("<Q", len(text)) + text + MESSAGE[-10:])


@pytest.mark.parametrize("size", [0, 1, len(MESSAGE), 1 << 24, 1 << 40, (1 << 64) - 1])
def test_a_wrong_header_length_is_refused_before_anything_is_reserved(size):
    with pytest.raises(WireError):
        decode(struct.pack("<Q", size) + MESSAGE[8:])


def test_a_tensor_that_the_header_does_not_name_or_names_twice_is_refused():
    one = encode(torch.ones(2))
    size = struct.unpack("<Q", one[:8])[0]
    block = one[8 + size :]
    for structure in ({"v": 1}, {"l": [{"t": "0"}, {"t": "0"}]}):
        with pytest.raises(WireError):
            decode(made(structure, block))


class Surprise:
    def __reduce__(self):
        raise AssertionError("was pickled")


@pytest.mark.parametrize(
    "payload",
    [
        Surprise(),
        {1: torch.ones(1)},
        {"a": {1, 2}},
        float("nan"),
        torch.ones(1, dtype=torch.complex64).to_sparse(),
    ],
    ids=["object", "number as key", "set", "nan", "sparse tensor"],
)
def test_what_cannot_be_bytes_is_refused_by_the_sender(payload):
    with pytest.raises(WireError, match="cannot be sent"):
        encode(payload)


def test_a_header_of_the_largest_length_is_sent_and_one_byte_more_is_refused(monkeypatch):
    text = "x" * 100
    size = struct.unpack("<Q", encode(text)[:8])[0]
    monkeypatch.setattr(wire, "MAX_HEADER", size)
    assert decode(encode(text)) == (text, {})
    longer = struct.pack("<Q", size + 1) + encode(text)[8:].replace(b"x", b"xx", 1)
    with pytest.raises(WireError, match=f"header of {size + 1} bytes in a message"):
        decode(longer)
    with pytest.raises(WireError, match=rf"a header of {size + 1} bytes \(at most {size}\)"):
        encode(text + "x")


def test_a_pickle_is_not_a_payload():
    with pytest.raises(WireError):
        decode(pickle.dumps({"a": 1}))


# ---- messages that another place made up -------------------------------------------------------------------


def two_places(forge):
    """A server that gets one upload from client 0, whose bytes `forge` replaces."""

    class Forged(MemoryLink):
        def recv(self, sender, key):
            return forge

    link = Forged({}, threading.Condition(), SERVER_INDEX)
    fed = Federation([(0,)], here=[], link=link)
    return fed, at_clients(fed, "x", [])


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"grad": [True]},
        {"grad": "yes", "dtypes": []},
        {"grad": [1], "dtypes": []},
        {"grad": [], "dtypes": ["int8"]},
        {"grad": [], "dtypes": ["float32", "float32"]},
        {"grad": [], "dtypes": ["float32"]},
        {"grad": [], "dtypes": 3},
        {"grad": [], "dtypes": [[]]},
    ],
    ids=json.dumps,
)
def test_a_message_whose_header_does_not_fit_is_refused(header):
    fed, x = two_places(encode(torch.ones(1, 2), **header))
    with pytest.raises(ReceivedError, match=r"client 0 sent .*\(transfer 'x', round 0\)"):
        fed.gather(x, name="x")


def test_a_message_that_wants_more_gradients_than_it_has_tensors_is_refused():
    fed, x = two_places(encode(torch.ones(1, 2), grad=[True, True], dtypes=[]))
    with fed.tape(), pytest.raises(ReceivedError, match="2 gradient flags for 1 tensors"):
        fed.gather(x, name="x")


@pytest.mark.parametrize(
    "payload", [torch.ones(3, 2), torch.tensor(1.0), (torch.ones(1, 2),), "text"], ids=str
)
def test_rows_that_do_not_fit_the_client_are_refused(payload):
    fed, x = two_places(encode(payload, grad=[], dtypes=[]))
    with pytest.raises(ReceivedError, match=r"client 0 sent .*\(transfer 'x', round 0\)"):
        fed.gather(x, name="x")


@pytest.mark.parametrize(
    "payload",
    [
        (torch.tensor([1, 2]), torch.tensor([1])),
        (torch.tensor([1]), torch.tensor([-1])),
        (torch.tensor([1.0]), torch.tensor([1])),
        (torch.tensor([1]), torch.tensor([1, 0])),
        torch.ones(1),
        "ids",
    ],
    ids=str,
)
def test_ids_that_do_not_fit_their_counts_are_refused(payload):
    fed, x = two_places(encode(payload, grad=[], dtypes=[]))
    with pytest.raises(ReceivedError, match=r"client 0 sent ids that .*\(transfer 'ids', round 0\)"):
        fed.route(x, name="ids")

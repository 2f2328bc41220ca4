"""What another participant sent is used only if it has the form of the transfer and numbers as large as those
of others; the error names the participant."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from casting import Cast
from placements import at_server, per_client

from graphfed.federation import SERVER, Federation, ReceivedError, TensorForm, as_leaves
from graphfed.federation.ledger import Flow
from graphfed.federation.link import SERVER_INDEX, Message
from graphfed.federation.received import Received, magnitude
from graphfed.federation.transfer import Transfer, describe_value, gradients_for, unpack_arrived
from graphfed.federation.wire import WireError, encode
from graphfed.nn.sparse import SparseMatrix

#: The largest number whose square is one.
LIMIT = {dtype: torch.finfo(dtype).max ** 0.5 for dtype in (torch.float32, torch.float64)}


class Mail:
    """A link whose other participants send what `sent` returns for (sender, key of the message)."""

    def __init__(self, sent: Callable[[int, str], Any]) -> None:
        self.sent = sent

    def send(self, to: int, key: str, message: bytes) -> None:
        pass

    def recv(self, sender: int, key: str) -> bytes:
        return encode(self.sent(sender, key), grad=(), dtypes=())


def server_of(*payloads: Any, clients: int = 1) -> Federation:
    """The server's federation, to which worker h sends payload h in every transfer; a worker holds `clients`
    clients."""
    workers = [range(clients * h, clients * (h + 1)) for h in range(len(payloads))]
    return Federation(workers, here=[], link=Mail(lambda sender, key: payloads[sender]))


def gathered(fed: Federation, **options: Any) -> Any:
    (rows,) = fed.collect(fed.locate("clients", "x", []), name="x", **options).parts
    return rows


def row(*numbers: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor([numbers], dtype=dtype)


# ---- form --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [row(1, 2, dtype=torch.float64), row(1, 2, 3), torch.ones(1, 1, 2), torch.ones(1, 2, dtype=torch.int64)],
    ids=["double", "wide", "deep", "counts"],
)
def test_who_sends_another_form_than_most_is_named_wherever_it_stands(other: torch.Tensor) -> None:
    for odd in range(3):
        payloads = [other if h == odd else row(1, 2) for h in range(3)]
        with pytest.raises(
            ReceivedError, match=rf"client {odd} sent .* where float32 \[2\] is expected .*'x'"
        ):
            gathered(server_of(*payloads))


def test_no_participant_is_named_if_two_forms_are_equally_frequent() -> None:
    for payloads in ([row(1), row(1, 2)], [row(1), row(1, 2), row(1, 2), row(1)]):
        with pytest.raises(ReceivedError, match="must have the same form, but they differ") as caught:
            gathered(server_of(*payloads))
        assert all(f"client {h} float32" in str(caught.value) for h in range(len(payloads)))
        assert "the messages do not show which" in str(caught.value)


def test_a_refusal_is_short_however_long_the_form() -> None:
    wide = [{f"tensor {n} of place {h}": row(1) for n in range(50)} for h in range(8)]
    checks = Received(lambda participant: f"place {participant}", [(h,) for h in range(8)])
    every = {(h, SERVER_INDEX): payload for h, payload in enumerate(wide)}
    with pytest.raises(ReceivedError) as caught:
        checks.check(transfer_of("sum"), every, {}, {}, None, 0)
    _, _, listed = str(caught.value).partition("they differ: ")
    assert len(listed.partition("; at least")[0]) == 2000
    with pytest.raises(ReceivedError) as caught:
        checks.check(
            transfer_of("sum"), {(0, SERVER_INDEX): wide[0]}, {(1, SERVER_INDEX): wide[1]}, {}, None, 0
        )
    assert str(caught.value).startswith(
        "place 0 sent nothing as 'tensor 0 of place 1' where float32 [1] is expected (transfer 't', round 0)"
    )
    with pytest.raises(ReceivedError) as caught:
        checks.check(
            transfer_of("sum"), {(0, SERVER_INDEX): row(1)}, {(1, SERVER_INDEX): wide[1]}, {}, None, 0
        )
    _, _, expected = str(caught.value).partition(" where ")
    assert len(expected.partition(" is expected")[0]) == 400


def transfer_of(kind: str, **options: Any) -> Transfer:
    everyone = np.ones(1, dtype=bool)
    return Transfer("t", kind, Flow.up(everyone, everyone), "plaintext", True, **options)


def test_a_payload_of_this_process_is_right_whatever_most_others_send() -> None:
    link = Mail(lambda sender, key: row(1, 2, dtype=torch.float64))
    fed = Federation([(0,), (1,), (2,)], here=[0], link=link)
    own = fed.locate("clients", "x", [row(1, 2)])
    with pytest.raises(ReceivedError, match=r"client 1 sent float64 \[2\] where float32 \[2\] is expected"):
        fed.collect(own, name="x")


def test_what_an_average_stands_in_for_says_what_parts_look_like() -> None:
    fed = server_of(row(1, 2), row(1, 2))
    x, weights = fed.locate("clients", "x", []), at_server(fed, "n", torch.ones(2))
    for otherwise, fits in ((torch.ones(2), True), (torch.ones(3), False)):
        before = fed.locate(SERVER, "before", [otherwise])
        if fits:
            assert fed.average(x, weights, name="m", otherwise=before).parts[0].tolist() == [1, 2]
        else:
            with pytest.raises(ReceivedError, match=r"client 0 sent float32 \[2\] where float32 \[3\]"):
                fed.average(x, weights, name="m", otherwise=before)


def test_every_tensor_of_an_average_has_a_row_for_each_client_that_takes_part() -> None:
    good = {"a": torch.ones(2, 3), "b": torch.ones(2)}
    bad = {"a": torch.ones(2, 3), "b": torch.ones(3)}
    for payload, fits in ((good, True), (bad, False)):
        fed = server_of(payload, clients=2)
        arguments = fed.locate("clients", "x", []), at_server(fed, "n", torch.ones(2))
        if fits:
            assert fed.average(*arguments, name="m").parts[0]["a"].tolist() == [1, 1, 1]
        else:
            with pytest.raises(ReceivedError, match=r"sent float32 \[3\] where 2 rows are expected"):
                fed.average(*arguments, name="m")


# ---- what the server sends ---------------------------------------------------------------------------------


def client_of(*payloads: Any) -> Federation:
    """The federation of a client, to which the server sends payload i in the i-th transfer."""
    return Federation(
        [(0,)], server_here=False, link=Mail(lambda sender, key: payloads[int(key.split("/")[1]) - 1])
    )


def broadcast(fed: Federation, **options: Any) -> Any:
    (payload,) = fed.broadcast(fed.locate(SERVER, "x", []), name="x", **options).parts
    return payload


GOOD = {"w": torch.zeros(2, 3), "b": torch.zeros(3)}
#: What a hostile server sends in the place of `GOOD`: how the refusal goes on.
WRONG = {
    "shape": (
        {**GOOD, "w": torch.zeros(2, 4)},
        r"float32 \[2, 4\] as 'w' where float32 \[2, 3\] is expected",
    ),
    "dtype": (
        {**GOOD, "b": torch.zeros(3).double()},
        r"float64 \[3\] as 'b' where float32 \[3\] is expected",
    ),
    "missing": ({"w": GOOD["w"]}, r"nothing as 'b' where float32 \[3\] is expected"),
    "additional": (
        {**GOOD, "z\x1b[31m": row(1)},
        r"float32 \[1, 1\] as 'z\\x1b\[31m' where nothing is expected",
    ),
    "tensor": (
        torch.zeros(2),
        r"float32 \[2\] where \{'w': float32 \[2, 3\], 'b': float32 \[3\]\} is expected",
    ),
    "tuple": ((GOOD["w"], GOOD["b"]), r"nothing as 'w' where float32 \[2, 3\] is expected"),
    "text": ("text", "something that is not a payload of tensors: 'text'"),
    "nothing": ({}, r"nothing where \{'w': float32 \[2, 3\], 'b': float32 \[3\]\} is expected"),
}


def weights_form() -> dict[str, torch.Tensor]:
    return {"w": torch.ones(2, 3), "b": torch.ones(3)}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("known", ["like", "expect", "first message"])
def test_a_client_refuses_what_has_not_the_form_that_it_expects_of_the_server(kind: str, known: str) -> None:
    payload, why = WRONG[kind]
    if known == "first message":
        fed, options = client_of(GOOD, GOOD, payload), {}
        broadcast(fed)
        broadcast(fed)
    else:
        fed, options = client_of(payload), {"like": GOOD} if known == "like" else {}
    if known == "expect":
        fed.expect("x", weights_form)
    with pytest.raises(ReceivedError, match=rf"^server sent {why}.* \(transfer 'x', round 0\)"):
        broadcast(fed, **options)


def test_a_size_that_only_the_server_knows_may_differ_from_message_to_message() -> None:
    fed = client_of(torch.zeros(2, 3), torch.zeros(7, 3), torch.zeros(7, 4))
    form = TensorForm(torch.float32, (None, 3))
    assert [len(broadcast(fed, like=form)) for _ in range(2)] == [2, 7]
    with pytest.raises(ReceivedError, match=r"sent float32 \[7, 4\] where float32 \[any, 3\] is expected"):
        broadcast(fed, like=form)


def test_of_rows_any_number_may_arrive_that_was_agreed_and_each_has_the_form_of_the_example() -> None:
    fed = client_of(torch.zeros(1, 3), torch.zeros(1, 4), torch.zeros(2, 3))
    example = fed.locate("clients", "example", [torch.zeros(9, 3)])

    def scatter() -> Any:
        return fed.scatter(fed.locate(SERVER, "rows", []), name="rows", like=example)

    assert scatter().parts[0].shape == (1, 3)
    with pytest.raises(ReceivedError, match=r"sent float32 \[4\] where float32 \[3\] is expected"):
        scatter()
    with pytest.raises(ReceivedError, match=r"sent float32 \[2, 3\] where 1 rows are expected"):
        scatter()


def test_where_the_server_is_in_the_process_nothing_is_computed_to_know_a_form() -> None:
    def fail() -> None:
        raise AssertionError("the function ran")

    Federation([(0,)]).expect("x", fail)


# ---- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LIMIT)
def test_the_magnitude_is_the_largest_number_over_the_largest_that_can_be_squared(dtype: torch.dtype) -> None:
    numbers = torch.tensor([[1.0, -3.0], [2.0, 0.0]], dtype=dtype)
    sparse = SparseMatrix.from_dense(-numbers)
    for payload in (numbers, sparse, {"a": torch.zeros(2), "b": (numbers, torch.tensor([10**9]))}):
        assert magnitude(payload) == pytest.approx(3 / LIMIT[dtype])
    below, above = torch.tensor([0.99, 1.01], dtype=torch.float64) * LIMIT[dtype]
    assert magnitude(below.to(dtype)) < 1 < magnitude(above.to(dtype))


def test_numbers_of_half_precision_are_measured_as_single() -> None:
    assert magnitude(torch.tensor([2.0], dtype=torch.float16)) == pytest.approx(2 / LIMIT[torch.float32])


def test_what_is_not_finite_has_no_finite_magnitude_and_counts_have_none() -> None:
    assert magnitude(torch.tensor([1.0, -math.inf])) == math.inf
    assert math.isnan(magnitude({"a": torch.tensor([math.nan, math.inf]), "b": torch.ones(1)}))
    assert magnitude(torch.tensor([7])) is magnitude(torch.ones(0, 3)) is None
    assert magnitude(torch.tensor([-math.inf]), -math.inf) is None
    assert magnitude(torch.tensor([-math.inf, 5.0]), -math.inf) == pytest.approx(5 / LIMIT[torch.float32])


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (math.nan, "numbers that are not finite"),
        (-math.inf, "numbers that are not finite"),
        (1e30, "numbers too large to compute with"),
        (-1e30, "numbers too large to compute with"),
    ],
)
def test_numbers_that_cannot_be_computed_with_are_refused_where_others_can(number: float, kind: str) -> None:
    with pytest.raises(ReceivedError, match=rf"^client 1 sent {kind} \(transfer 'x', round 0\)"):
        gathered(server_of(row(1, 2), row(number, 0), row(3, 4)))


def test_of_many_who_send_what_is_not_finite_five_are_named() -> None:
    payloads = [row(1)] + [row(math.inf)] * 7
    with pytest.raises(
        ReceivedError, match=r"^client 1, client 2, client 3, client 4, client 5 sent numbers"
    ):
        gathered(server_of(*payloads))


@pytest.mark.parametrize("others", [math.nan, 1e30, 1e17], ids=["all diverge", "all overflow", "all grow"])
def test_numbers_too_large_at_all_clients_pass_and_are_noted(others: float) -> None:
    """Of one whose numbers are 5e-3 of the limit it is not known that it is right."""
    fed = server_of(row(others), row(math.nan))
    assert gathered(fed).shape == (2, 1)
    assert "no participant's numbers were small enough" in fed.received.notes["x"]


def test_a_transfer_of_numbers_that_need_not_be_finite_takes_them_from_anybody() -> None:
    fed = server_of(row(1), row(math.inf))
    assert gathered(fed, finite=False).tolist() == [[1], [math.inf]]
    total = server_of(torch.tensor([1.0]), torch.tensor([math.inf]))
    nothing = total.locate("clients", "x", [])
    assert total.sum(nothing, name="x", finite=False).parts[0].tolist() == [math.inf]
    with pytest.raises(ReceivedError, match="client 1 sent numbers that are not finite"):
        total.sum(nothing, name="x")
    assert not fed.received.notes | total.received.notes


def test_a_row_of_a_maximum_may_be_minus_infinity_and_a_row_of_a_sum_may_not() -> None:
    arrived = {(0, -1): row(-math.inf, 2), (1, -1): row(1, 2)}
    checks = Received(lambda participant: f"place {participant}", [(0,), (1,)])
    checks.check(transfer_of("max"), arrived, {}, {}, None, 4)
    with pytest.raises(ReceivedError, match=r"^place 0 sent numbers that are not finite .* round 4\)"):
        checks.check(transfer_of("sum"), arrived, {}, {}, None, 4)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((1, 2000, -1), "of client 1 were 2e+03 times as large as those of all others"),
        ((0, 0, 1), "of client 2 were not 0, unlike those of all others"),
        ((1, 990, 1), None),
        ((1, 2000, 3), None),
        ((0, 0, 0), None),
        ((5,), None),
    ],
    ids=str,
)
def test_whose_numbers_are_a_thousand_times_everybody_elses_is_noted(
    numbers: tuple[float, ...], expected: str | None
) -> None:
    fed = server_of(*(row(number) for number in numbers))
    gathered(fed)
    assert expected is None or fed.received.notes["x"].endswith(expected)
    assert bool(fed.received.notes) == (expected is not None)


# ---- rules of a transfer -----------------------------------------------------------------------------------


def test_a_rule_of_a_transfer_gets_what_each_worker_sent_and_what_its_clients_declared() -> None:
    seen = []

    def accept(payload: torch.Tensor, declared: Mapping[str, np.ndarray]) -> str:
        seen.append((payload.tolist(), {part: counts.tolist() for part, counts in declared.items()}))
        return "more rows than it has" if payload.sum() > 100 else ""

    payloads = torch.tensor([3, 4]), torch.tensor([90, 20])
    for transfer in ("collect", "sum"):
        fed = server_of(*payloads, clients=2)
        fed.received.declared = {"train": np.arange(4), "val": 10 * np.arange(4)}
        with pytest.raises(ReceivedError, match=r"^clients 2\.\.3 \(stacked\) sent more rows than it has"):
            getattr(fed, transfer)(fed.locate("clients", "x", []), name="x", accept=accept)
    declared = [{"train": [0, 1], "val": [0, 10]}, {"train": [2, 3], "val": [20, 30]}]
    assert seen == 2 * [([3, 4], declared[0]), ([90, 20], declared[1])]


def test_a_rule_of_routed_rows_is_asked_too() -> None:
    ids = torch.tensor([4]), torch.tensor([1])

    def sent(sender: int, key: str) -> Any:
        return ids if key.split("/")[2] == "ids" else row(1)

    fed = Federation([(0,), (1,)], here=[], link=Mail(sent))
    route = fed.route(fed.locate("clients", "ids", []), name="ids")
    x = fed.locate("clients", "x", [])
    assert fed.sum(x, route, name="x").parts[0].tolist() == [[2]]
    for transfer in (fed.sum, fed.upload):
        with pytest.raises(ReceivedError, match=r"^client 0 sent nonsense \(transfer 'x'"):
            transfer(x, route, name="x", accept=lambda payload, declared: "nonsense")


def test_of_the_server_nothing_is_declared() -> None:
    checks = Received(lambda _: "the server", [(0,)], {"train": np.ones(1)})
    seen: list[Any] = []
    rule = transfer_of("rows", accept=lambda payload, declared: seen.append(dict(declared)) or "")
    checks.check(rule, {(SERVER_INDEX, 0): row(1)}, {}, {}, None, 0)
    assert seen == [{}]


# ---- gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [
        ((torch.tensor([math.nan, 1.0]),), "numbers that are not finite"),
        ((torch.tensor([1e30, 1.0]),), "numbers too large to compute with"),
        ((torch.ones(3),), "gradients that do not fit what it received"),
        ((torch.ones(2).double(),), "gradients that do not fit what it received"),
        ((torch.ones(2), torch.ones(2)), "gradients that do not fit what it received"),
        ((), "gradients that do not fit what it received"),
        (torch.ones(2), "gradients that do not fit what it received"),
        (("text",), "gradients that do not fit what it received"),
    ],
    ids=["nan", "large", "long", "double", "two", "none", "bare", "text"],
)
def test_a_gradient_from_another_place_is_checked_like_a_payload(gradient: Any, expected: str) -> None:
    """Client 0 is here, with the server; its gradient is 1."""
    fed = Federation([(0,), (1,)], here=[0], link=Mail(lambda sender, key: sent[key.rpartition("/")[0]]))
    sent = {"0/1/w/grad": gradient, "0/2/loss": torch.tensor(0.0)}
    with fed.tape():
        w = fed.server.run(as_leaves, at_server(fed, "w", torch.ones(2)))
        loss = fed.sum(fed.clients.run(torch.sum, fed.broadcast(w, name="w")), name="loss")
        with pytest.raises(ReceivedError, match=rf"^client 1 sent {expected} \(transfer 'w/grad', round 0\)"):
            fed.backward(loss)


@pytest.mark.parametrize("wrong", [torch.ones(1), torch.ones(2, 2)], ids=["short", "deep"])
def test_a_wrapped_gradient_that_its_wrapper_cannot_open_is_refused(wrong: torch.Tensor) -> None:
    """The server's part of a gather, whose rows came back as another shape."""
    fed = Federation([(0,), (1,)], here=[0], server_here=False, link=Mail(lambda sender, key: (wrong,)))
    with fed.tape():
        x = fed.clients.run(as_leaves, per_client(fed, "x", torch.ones(2, 3)))
        fed.gather(x, name="x", wrap=Cast(gradients=True))
        with pytest.raises(ReceivedError, match=r"^server sent gradients that do not fit what it received"):
            fed.backward(fed.locate(SERVER, "loss", []))


# ---- wrappers, and what errors show ------------------------------------------------------------------------


class Broken(Cast):
    """A wrapper that cannot open what it gets."""

    def decode(self, encoded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        raise ZeroDivisionError(float(encoded.sum()))


def test_what_a_wrapper_cannot_decode_is_refused_and_not_shown() -> None:
    opened = Message(row(7.25), (), ("float32",))
    assert unpack_arrived(opened, Cast()).tolist() == [[7.25]]
    with pytest.raises(WireError, match=r"^a payload that its wrapper cannot decode \(ZeroDivisionError\)$"):
        unpack_arrived(opened, Broken())
    with pytest.raises(WireError, match=r"^gradients that do not fit what it received$"):
        gradients_for([row(1)], (row(7.25),), Broken(gradients=True))


def test_sparse_rows_are_a_payload_without_a_wrapper_and_none_in_one() -> None:
    sparse = SparseMatrix.from_dense(torch.eye(2))
    assert unpack_arrived(Message(sparse), None) is sparse
    with pytest.raises(
        WireError, match=r"something that is not a payload of tensors: sparse float32 \[2, 2\]"
    ):
        unpack_arrived(Message(sparse, (), ("float32",)), Cast())
    with pytest.raises(WireError, match="in another wrapper than the receiver's"):
        unpack_arrived(Message(row(1)), Cast())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (row(7, 8), "float32 [1, 2]"),
        (SparseMatrix.from_dense(torch.eye(3)), "sparse float32 [3, 3]"),
        ({"a": torch.tensor(7), "b": {"c": [7]}}, "{a: int64 [], b: {c: list}}"),
        ({str(n): n for n in range(9)}, "{" + ", ".join(f"{n}: {n}" for n in range(8)) + "}"),
        ([7], "list"),
        ((7,), "tuple"),
        (b"7", "bytes"),
        ("name", "'name'"),
        (None, "None"),
    ],
    ids=str,
)
def test_an_error_shows_of_data_its_kind_and_shape_and_never_what_it_holds(value: Any, expected: str) -> None:
    assert describe_value(value) == expected

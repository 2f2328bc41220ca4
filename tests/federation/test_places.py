"""A value is used where it lives, and functions that run at a place carry no data."""

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from graphfed.errors import InputError, PlaceError
from graphfed.federation import CLIENTS, SERVER, Federation, StageError
from graphfed.methods.base import State
from graphfed.nn.sparse import SparseMatrix, SparseWeights


def identity(x):
    return x


def two_workers() -> Federation:
    return Federation([(0, 1), (2,)])


@pytest.mark.parametrize(
    ("at", "used", "fix"),
    [(CLIENTS, SERVER, "upload, gather, sum, average or max"), (SERVER, CLIENTS, "download or broadcast")],
)
def test_a_value_used_elsewhere_is_an_error_that_names_it_its_place_and_the_missing_transfer(at, used, fix):
    fed = two_workers()
    value = fed.locate(at, "h", [torch.ones(1)] * (2 if at == CLIENTS else 1))
    place = fed.server if used == SERVER else fed.clients
    with pytest.raises(PlaceError, match=rf"identity: 'h' lives at {at} but was used at {used}.*\({fix}\)"):
        place.run(identity, value)


@pytest.mark.parametrize("transfer", ["gather", "sum", "average", "broadcast"])
def test_a_transfer_takes_a_value_from_its_sending_place(transfer):
    fed = two_workers()
    at = SERVER if transfer != "broadcast" else CLIENTS
    value = fed.locate(at, "h", [torch.ones(1)] * (2 if at == CLIENTS else 1))
    more = [value] if transfer == "average" else []
    with pytest.raises(PlaceError, match=f"transfer 'name': 'h' lives at {at}"):
        getattr(fed, transfer)(value, *more, name="name")


@pytest.mark.parametrize(
    "use",
    [bool, int, float, lambda v: v == 3, lambda v: v != 3, lambda v: v < 3, lambda v: range(5)[v]],
    ids=["if", "int", "float", "==", "!=", "<", "index"],
)
def test_the_program_cannot_branch_on_a_located_value(use):
    value = two_workers().locate(SERVER, "accuracy", [0.5])
    with pytest.raises(PlaceError, match=r"'accuracy' at server.*fed.control"):
        use(value)


@pytest.mark.parametrize(
    "use", [list, len, lambda v: v[0], lambda v: 1 in v], ids=["iter", "len", "item", "in"]
)
def test_the_program_cannot_take_a_located_value_apart(use):
    value = two_workers().locate(SERVER, "pair", [(1, 2)])
    with pytest.raises(PlaceError, match="take it apart in a function run at server"):
        use(value)


# ---- functions that bring data along -----------------------------------------------------------------------

LEAKED = torch.ones(2)
LEAKED_LIST = [torch.ones(2)]
PLAIN = {"lr": 0.1}


@dataclass
class Config:
    lr: float = 0.1
    names: tuple[str, ...] = ("a",)


@dataclass
class WithState:
    config: Config = field(default_factory=Config)
    cache: list = field(default_factory=list)

    def method(self, x):
        return x

    def __call__(self, x):
        return x


class Slotted:
    __slots__ = ("cache",)

    def __init__(self, cache):
        self.cache = cache

    def method(self, x):
        return x


def closes_over(value) -> Callable:
    return lambda x: (x, value)


def defaults_to(value) -> Callable:
    def f(x, y=value):
        return x, y

    return f


def keyword_defaults_to(value) -> Callable:
    def f(x, *, y=value):
        return x, y

    return f


def attribute_of(value) -> Callable:
    def f(x):
        return x

    f.cache = value
    return f


CARRIERS = {
    "closure": closes_over,
    "closure in a closure": lambda v: closes_over(closes_over(v)),
    "closure of a list": lambda v: closes_over([{"deep": (v,)}]),
    "default": defaults_to,
    "keyword default": keyword_defaults_to,
    "function attribute": attribute_of,
    "partial": lambda v: functools.partial(identity, v),
    "keyword of a partial": lambda v: functools.partial(identity, x=v),
    "partial of a closure": lambda v: functools.partial(closes_over(v)),
    "bound method": lambda v: WithState(cache=[v]).method,
    "object that is called": lambda v: WithState(cache=[v]),
    "object with slots": lambda v: Slotted([v]).method,
}
DATA = {
    "tensor": lambda: torch.ones(2),
    "module": lambda: torch.nn.Linear(1, 1),
    "array": lambda: np.ones(2),
    "sparse matrix": lambda: SparseMatrix.from_dense(torch.eye(2)),
    "located value": lambda: two_workers().locate(SERVER, "v", [1]),
    "federation": two_workers,
    "place": lambda: two_workers().clients,
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_function_that_carries_data_is_refused(carrier, data):
    fed = two_workers()
    value = fed.locate(SERVER, "x", [1])
    with pytest.raises(PlaceError, match=r"carries a .*pass it to run"):
        fed.server.run(CARRIERS[carrier](DATA[data]()), value)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(
    "plain",
    [3, "text", None, Config(), PLAIN, identity, torch.float64],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_a_function_that_carries_plain_values_is_accepted(carrier, plain):
    fed = two_workers()
    fn = CARRIERS[carrier](plain)
    arguments = () if carrier in ("partial", "keyword of a partial") else (fed.locate(SERVER, "x", [1]),)
    fed.server.run(fn, *arguments)


def uses_a_global_inside(x):
    def inner():
        return LEAKED

    return inner() + x


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + LEAKED,
        lambda x: [x + t for t in LEAKED_LIST],
        uses_a_global_inside,
        torch.ones(2).add,
        torch.nn.Linear(2, 2).forward,
        torch.nn.Linear(2, 2),
    ],
    ids=[
        "global",
        "global list",
        "global of an inner function",
        "built-in method",
        "module method",
        "module",
    ],
)
def test_globals_and_methods_of_data_are_refused(fn):
    fed = two_workers()
    with pytest.raises(PlaceError, match="carries a"):
        fed.server.run(fn, fed.locate(SERVER, "x", [torch.ones(2)]))


def test_a_name_that_is_only_an_attribute_is_no_global():
    fed = two_workers()
    fed.server.run(lambda x: x.LEAKED, fed.locate(SERVER, "x", [type("X", (), {"LEAKED": 1})()]))


def test_functions_that_refer_to_each_other_are_looked_through_once():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    fed = two_workers()
    assert fed.server.run(even, 4).parts == (True,)


def test_a_closure_is_looked_at_every_time():
    """The same code may close over something else the next time."""
    fed = two_workers()
    fed.server.run(closes_over(1), 0)
    with pytest.raises(PlaceError):
        fed.server.run(closes_over(torch.ones(1)), 0)


@pytest.mark.parametrize(
    "bare", [torch.ones(1), np.ones(1), torch.nn.Linear(1, 1)], ids=["tensor", "array", "module"]
)
def test_bare_data_has_no_place_and_is_refused(bare):
    with pytest.raises(PlaceError, match=r"identity: a bare .*fed.locate"):
        two_workers().server.run(identity, bare)


@pytest.mark.parametrize(
    "wrapped", [lambda v: [v], lambda v: (v,), lambda v: {"v": v}], ids=["list", "tuple", "dict"]
)
def test_a_located_value_inside_a_container_is_refused(wrapped):
    fed = two_workers()
    with pytest.raises(PlaceError, match="argument of its own"):
        fed.server.run(identity, wrapped(fed.locate(SERVER, "v", [1])))


# ---- functions that fail -----------------------------------------------------------------------------------


def fails_for_two_rows(x: Tensor, lr: float) -> Tensor:
    if len(x) == 2:
        raise RuntimeError("boom")
    return x


@pytest.mark.parametrize(
    ("workers", "who"), [([(0,), (1,), (2,)], "client 1"), ([(0, 1), (2,)], r"clients 0\.\.1 \(stacked\)")]
)
def test_a_failure_names_the_client_the_stage_the_phase_the_round_and_the_inputs(workers, who):
    fed = Federation(workers)
    rows = {1: 2} if len(workers) == 3 else {0: 2}
    x = fed.locate(CLIENTS, "x", [torch.ones(rows.get(h, 1), 3) for h in range(len(workers))])
    message = (
        rf"{who} failed in 'fails_for_two_rows' \(phase train, round 7\): RuntimeError: boom; "
        r"inputs: float32 \[2, 3\], 0\.5"
    )
    with pytest.raises(StageError, match=message) as caught, fed.phase("train", round_number=7):
        fed.clients.run(fails_for_two_rows, x, 0.5)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_failure_at_the_server_says_so():
    fed = two_workers()
    with pytest.raises(StageError, match="server failed in 'fails_for_two_rows'"):
        fed.server.run(fails_for_two_rows, fed.locate(SERVER, "x", [torch.ones(2)]), 1)


def refuses(x):
    raise InputError("the value 3 is bad; use 4")


def test_bad_input_found_inside_a_function_reaches_the_user_as_it_is():
    fed = two_workers()
    with pytest.raises(InputError, match=r"^the value 3 is bad; use 4$"):
        fed.server.run(refuses, 1)


@pytest.mark.parametrize("result", [(1,), (1, 2, 3), 4], ids=str)
def test_a_function_with_several_outputs_gives_that_many(result):
    with pytest.raises(StageError, match="where a tuple of 2 is expected"):
        two_workers().server.run(identity, result, outputs=2)


def test_a_decision_is_plain_json():
    fed = two_workers()
    assert fed.control(identity, {"stop": True}) == {"stop": True}
    with pytest.raises(StageError, match="JSON"):
        fed.control(identity, {"accuracy": float("nan")})
    with pytest.raises(StageError, match="not JSON serializable"):
        fed.control(identity, {"set": {1}})


def test_a_value_has_a_part_for_every_worker_of_its_place():
    with pytest.raises(PlaceError, match="got 1 parts, but this process has 2 participants"):
        two_workers().locate(CLIENTS, "x", [1])
    with pytest.raises(PlaceError):
        two_workers().locate("clients ", "x", [1])


@pytest.mark.parametrize("place", ["clients", "server"])
def test_a_function_that_writes_into_its_argument_is_refused(place):
    """In one process the receiver would change the sender's value; in two it would not."""
    fed = Federation([(0,), (1,)])
    w = fed.locate("server", "w", [torch.ones(2)])
    value = fed.broadcast(w, name="w") if place == "clients" else w
    with pytest.raises(PlaceError, match=r"_double_in_place wrote into one of its arguments"):
        getattr(fed, place).run(_double_in_place, {"w": 1}, value)


def _double_in_place(_, x):
    return x.mul_(2)


def test_an_object_that_hides_a_located_value_is_refused_as_an_argument():
    """Passing a method's whole state instead of one value of it is the likeliest mistake of its author."""
    fed = Federation([(0,), (1,)])
    w = fed.locate("server", "w", [torch.ones(2)])
    for hidden in (State({"weights": w}), [[w]], {"a": {"b": w}}, types.SimpleNamespace(w=torch.ones(1))):
        with pytest.raises(PlaceError, match="pass every located value as an argument of its own"):
            fed.clients.run(print, hidden)


def test_control_is_for_decisions_and_not_for_data():
    fed = Federation([(0,), (1,)])
    with pytest.raises(PlaceError, match="send data with a named transfer"):
        fed.control(_many_numbers)


def _many_numbers():
    return {"weights": list(range(1000))}


@dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    cache: object = None


@dataclass(frozen=True, slots=True)
class SlottedSettings:
    lr: float = 0.1
    cache: object = None


@dataclass(frozen=True)
class EqualSettings:
    """Two of them are equal whatever their cache is."""

    lr: float = 0.1
    cache: object = field(default=None, compare=False)


@pytest.mark.parametrize("kind", [Settings, SlottedSettings, EqualSettings])
def test_settings_that_cannot_change_may_be_passed_and_may_hide_no_data(kind):
    """However often each is passed."""
    fed, plain = two_workers(), kind()
    for _ in range(2):
        assert fed.server.run(identity, plain).parts == (plain,)
        for hidden in (kind(cache=torch.ones(2)), kind(cache=[torch.ones(2)])):
            with pytest.raises(
                PlaceError, match=f"a {kind.__name__} with a Tensor in it was passed at server"
            ):
                fed.server.run(identity, hidden)


def test_settings_that_hold_what_can_change_are_looked_at_every_time():
    fed, settings = two_workers(), Settings(cache=[])
    fed.server.run(identity, settings)
    settings.cache.append(torch.ones(2))
    with pytest.raises(PlaceError, match="a Settings with a Tensor in it was passed at server"):
        fed.server.run(identity, settings)


def test_messages_and_stages_of_a_program_are_reported_to_an_observer_if_there_is_one():
    fed, seen = two_workers(), []
    fed.log("unheard")
    fed.begin("unseen")
    fed.on_message, fed.on_stage = (
        (lambda text: seen.append(("message", text))),
        (lambda stage: seen.append(("stage", stage))),
    )
    fed.log("10 s to go")
    fed.begin("training")
    assert seen == [("message", "10 s to go"), ("stage", "training")]


@pytest.mark.parametrize(
    "payload",
    [
        {"a": {"b": torch.ones(2)}},
        (torch.zeros(1), (torch.ones(2),)),
        SparseMatrix.from_dense(torch.eye(2)),
        SparseWeights(torch.ones(3, 2), torch.tensor([0]), torch.tensor([0]), 1),
    ],
    ids=["dictionary", "tuple", "sparse rows", "sparse weights"],
)
def test_a_function_that_writes_into_a_part_of_its_argument_is_refused(payload):
    fed = two_workers()
    value = fed.locate(SERVER, "w", [payload])
    assert fed.server.run(identity, value).parts == (payload,)
    with pytest.raises(PlaceError, match="_double_a_part_in_place wrote into one of its arguments"):
        fed.server.run(_double_a_part_in_place, value)


def _double_a_part_in_place(x):
    while isinstance(x, dict | tuple):
        x = next(iter(x.values())) if isinstance(x, dict) else x[-1]
    (x if isinstance(x, torch.Tensor) else x.values).mul_(2)


@pytest.mark.parametrize("levels", range(6))
def test_data_is_found_five_containers_deep(levels):
    """In an argument, in what a function closes over and in a partial's arguments."""
    hidden = torch.ones(1)
    for _ in range(levels):
        hidden = [hidden] if levels % 2 else {"a": hidden}
    for carrier in (closes_over(hidden), functools.partial(identity, hidden)):
        with pytest.raises(PlaceError, match="carries a Tensor in"):
            two_workers().server.run(carrier)
    with pytest.raises(PlaceError, match=r"a (dict|list) with a Tensor in it|a bare Tensor was passed"):
        two_workers().server.run(identity, hidden)


def helper_with_data(x, y=LEAKED):
    return x, y


def calls_a_helper_with_data(x):
    return helper_with_data(x)


def uses_a_global_tensor(x):
    return x, LEAKED


@pytest.mark.parametrize(
    "fn",
    [
        calls_a_helper_with_data,
        closes_over(uses_a_global_tensor),
        closes_over(functools.partial(identity, LEAKED)),
        closes_over(WithState(cache=[LEAKED]).method),
    ],
    ids=["a global function's default", "a closure's global", "a closure's partial", "a closure's method"],
)
def test_data_that_a_function_reaches_through_another_is_found(fn):
    with pytest.raises(PlaceError, match="carries a Tensor in"):
        two_workers().server.run(fn, 1)


def test_a_function_whose_closure_or_defaults_come_to_hold_data_is_refused_then():
    held = None

    def closure(x):
        return x, held

    def default(x, y=None):
        return x, y

    def keyword(x, *, y=None):
        return x, y

    fed = two_workers()
    for fn in (closure, default, keyword):
        fed.server.run(fn, 1)
    held = torch.ones(1)
    default.__defaults__, keyword.__kwdefaults__ = (torch.ones(1),), {"y": torch.ones(1)}
    for fn in (closure, default, keyword):
        with pytest.raises(PlaceError, match=f"{fn.__name__} carries a Tensor in"):
            fed.server.run(fn, 1)

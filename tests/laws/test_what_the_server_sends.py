"""Every client checks what the server sends, in every method: a tensor of another shape or dtype, a tensor
too few or too many, or text in its place is refused in the name of the server and the transfer; so is a
decision with other values."""

import json
import threading
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import pytest
import sensor_worlds
import torch
from methods_under_law import FORECASTERS, METHODS
from test_messages import VARIANTS, world_of
from worlds import as_asked, cohorts_of, config_of, in_thirds

from graphfed.crypto.keyed_ids import KEY
from graphfed.federation import Federation, ReceivedError
from graphfed.federation.link import SERVER_INDEX, Message
from graphfed.federation.operations import control
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.payload import tree_map
from graphfed.federation.transfer import describe_value
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.methods.tasks import FORECASTING
from graphfed.nn.sparse import SparseMatrix
from graphfed.runs.train import train
from graphfed.tasks.registry import get_task

PATIENCE = 60.0


class Mail:
    """Messages between threads. If a participant fails, the others stop waiting."""

    def __init__(self) -> None:
        self.messages: dict[tuple[int, int, str], bytes] = {}
        self.arrived = threading.Condition()
        self.failed: dict[int, BaseException] = {}


class Link:
    """The link of one participant."""

    def __init__(self, mail: Mail, participant: int) -> None:
        self.mail, self.participant = mail, participant

    def send(self, to: int, key: str, message: bytes) -> None:
        with self.mail.arrived:
            self.mail.messages[self.participant, to, key] = message
            self.mail.arrived.notify_all()

    def recv(self, sender: int, key: str) -> bytes:
        box = (sender, self.participant, key)
        with self.mail.arrived:
            self.mail.arrived.wait_for(lambda: box in self.mail.messages or self.mail.failed, PATIENCE)
            return self.mail.messages.pop(box)


def run_in_threads(workers: list[range], program: Callable[[Federation], Any], simulated: bool) -> None:
    """Run a program at every participant, each in a thread; raise the first error."""
    mail = Mail()

    def life(participant: int) -> None:
        here = [] if participant == SERVER_INDEX else [participant]
        server = participant == SERVER_INDEX
        try:
            program(
                Federation(
                    workers, here=here, server_here=server, link=Link(mail, participant), simulated=simulated
                )
            )
        except BaseException as error:
            with mail.arrived:
                mail.failed[participant] = error
                mail.arrived.notify_all()

    threads = [threading.Thread(target=life, args=(p,)) for p in (SERVER_INDEX, *range(len(workers)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in mail.failed.values():
        raise error


def run(name: str, settings: dict[str, Any]) -> None:
    """Train a method with each client in a thread."""
    method = get_method(name)
    torch.set_default_dtype(torch.float64)
    if name in FORECASTERS:
        world = sensor_worlds.sensor_world()
        config = sensor_worlds.config_of(method, rounds=2, **settings)
        task, workers = sensor_worlds.TASK, in_thirds(world.clients)

        def data(fed: Federation) -> Any:
            network = [world.network()] * fed.server_is_here
            return get_task(FORECASTING).data.located(
                fed, world.series([fed.workers[h] for h in fed.here]), network
            )
    else:
        world = as_asked(method, world_of(name))
        config = config_of(method, **{"rounds": 2, **settings})
        task, workers = world.task, in_thirds(world.clients)
        cohorts = cohorts_of(world, workers, config)

        def data(fed: Federation) -> Any:
            return fed.locate("clients", "data", [cohorts[h] for h in fed.here])

    run_in_threads(workers, lambda fed: train(fed, method, data(fed), task, config), is_simulated(config))


def leaf(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def of(x: Any) -> Any:
        return SparseMatrix.from_dense(change(x.to_dense())) if isinstance(x, SparseMatrix) else change(x)

    return lambda payload: tree_map(of, payload)


def without_one(payload: Any) -> Any:
    if isinstance(payload, dict):
        return dict(list(payload.items())[1:])
    return payload[1:] if isinstance(payload, tuple) else {}


def with_another(payload: Any) -> Any:
    if isinstance(payload, dict):
        return {**payload, "another": torch.zeros(2)}
    return (*payload, torch.zeros(2)) if isinstance(payload, tuple) else (payload, torch.zeros(2))


CHANGES = {
    "another shape": leaf(lambda x: torch.cat([x, x], -1) if x.dim() else x[None]),
    "another dtype": leaf(lambda x: x.float() if x.dtype != torch.float32 else x.double()),
    "a tensor too few": without_one,
    "a tensor too many": with_another,
    "text": lambda payload: "text",
}


#: Sizes that only the server knows, because they follow from what all clients sent.
OPEN = {
    (name, "another shape")
    for name in (
        "balance/candidate_changes",
        "balance/candidate_list",
        "sapgnn/local_embedding/grad/server_shares",
    )
}


def changed_decisions(decision: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Decisions with a value too many or too few, or of another type."""
    yield "a value too many", {**decision, "another": 1}
    yield "a list", list(decision)
    for name, value in decision.items():
        yield f"no {name}", {key: v for key, v in decision.items() if key != name}
        others = (
            (["text"], {"a": 1}, 1.5) if value is None or isinstance(value, str) else ("text", None, 1.5, [1])
        )
        for other in others:
            yield f"{name} = {other!r}", {**decision, name: other}


def decide_after_changes(wrong: list[str]) -> Callable[..., Any]:
    """Before a client receives the server's decision, it receives every changed form of it."""
    honest = control.decide

    def decide(delivery: Delivery, server: Any, fn: Any, arguments: Any, name: str, *checks: Any) -> Any:
        if delivery.places.server_is_here:
            return honest(delivery, server, fn, arguments, name, *checks)
        decision = honest(delivery, server, fn, arguments, name, *checks)
        sequence, delivery._sequence = delivery._sequence, -1
        for kind, changed in changed_decisions(decision):
            message = {(SERVER_INDEX, h): Message(json.dumps(changed)) for h in delivery.places.here}
            delivery.deliver = lambda *_, message=message: message  # type: ignore[method-assign]
            try:
                honest(delivery, server, fn, arguments, name, *checks)
            except ReceivedError as error:
                if not str(error).startswith("server sent") or repr(name) not in str(error):
                    wrong.append(f"{name}: {kind}: {error}")
            else:
                wrong.append(f"{name}: {kind} was accepted {decision}")
            finally:
                del delivery.deliver
        delivery._sequence = sequence
        return decision

    return decide


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Before a client receives what the server sent, it receives every changed form of it. Returns those that
    it did not refuse."""
    wrong: list[str] = []
    honest = Delivery._unpack

    def receive(self: Delivery, transfer: Any, arrived: Any, *arguments: Any) -> Any:
        for pair, message in arrived.items():
            if pair[0] != SERVER_INDEX or not self.places.is_remote(SERVER_INDEX):
                continue
            for kind, change in CHANGES.items():
                changed = Message(change(message.payload), message.grad, message.dtypes)
                if describe_value(changed.payload) == describe_value(message.payload):
                    continue  # of no rows, twice as many are none
                # What the client learns of the form from a changed message is forgotten.
                received, self.received = self.received, copy(self.received)
                self.received._forms = dict(received._forms)
                try:
                    honest(self, transfer, {**arrived, pair: changed}, *arguments)
                except ReceivedError as error:
                    if not str(error).startswith("server sent") or repr(transfer.name) not in str(error):
                        wrong.append(f"{transfer.name}: {kind}: {error}")
                else:
                    if (transfer.name, kind) in OPEN:
                        continue
                    wrong.append(f"{transfer.name}: {kind} was accepted {describe_value(message.payload)}")
                finally:
                    self.received = received
        return honest(self, transfer, arrived, *arguments)

    monkeypatch.setattr(Delivery, "_unpack", receive)
    monkeypatch.setattr(control, "decide", decide_after_changes(wrong))
    return wrong


CASES = [
    pytest.param(name, settings, id=f"{name}-{number}", marks=[pytest.mark.slow] * bool(number))
    for name in (*METHODS, *FORECASTERS)
    # The skeleton says nothing of forms: what the server sends first is right.
    if not get_method(name).pooled and name != "skeleton"
    for number, settings in enumerate(({}, *VARIANTS.get(name, ())))
    # A rule sends the same with every exchange (`methods.averaging.program`): one method has them all.
    if not number or (settings and (name == "fedavg" or "rule" not in settings))
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_client_refuses_what_does_not_have_the_form_of_the_transfer(
    name: str, settings: dict[str, Any], accepted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "5f" * 32)
    run(name, settings)
    assert not accepted, sorted(set(accepted))

"""The ledger adds up what was sent, by phase, direction, protection and client."""

import json

import numpy as np
import pytest
import torch
from placements import at_server, per_client

from graphfed.federation import Federation, Ledger, payload
from graphfed.federation.ledger import PHASES, Flow, LedgerRecord


def record(name: str, flow: Flow, size: int, protection: str = "plaintext") -> LedgerRecord:
    return LedgerRecord(name, "rows", "float32", [2], protection, flow, size)


ALL = np.ones(3, dtype=bool)
UP = Flow.up(np.array([1, 0, 2]), ALL)
PEER = Flow.peer(np.array([[0, 1, 4], [2, 0, 5]]), ALL)


def filled() -> Ledger:
    """One transfer of 8 bytes a unit in every phase: 3 units up, 3 down, 9 between clients."""
    ledger = Ledger(3)
    for number, phase in enumerate(PHASES):
        ledger.round = number
        with ledger.in_phase(phase):
            ledger.record(record("x", UP, 8))
            ledger.record(record("y", UP.back, 8, "public"))
            ledger.record(record("z", PEER, 8, "ldp(2.0)"))
    return ledger


def test_totals_are_of_setup_and_training_and_the_other_phases_are_separate():
    totals = filled().totals()
    by_transfer, others = totals.pop("by_transfer"), totals.pop("other_phases")
    assert totals == {"total": 2 * 120, "up": 48, "down": 48, "peer": 144, "setup": 120}
    assert by_transfer == {"x": 48, "y": 48, "z": 144}
    assert others == {"eval": 120, "control": 120, "predict": 120}
    assert filled().counted_bytes == 240


def test_the_statement_lists_what_left_the_clients_by_protection():
    assert filled().statement() == {
        "left_the_clients": {
            "plaintext": {"bytes": 5 * 24, "transfers": ["x"]},
            "ldp(2.0)": {"bytes": 5 * 72, "transfers": ["z"]},
        }
    }


def test_bytes_are_kept_by_client_and_by_round():
    entries = {(e.phase, e.name): e for e in filled().entries}
    peer = entries["train", "z"]
    assert (peer.sent.tolist(), peer.received.tolist()) == ([32, 0, 40], [40, 32, 0])
    assert (peer.messages, peer.transfers, peer.bytes, peer.rounds) == (2, 1, 72, {1: 72})
    assert entries["setup", "y"].received.tolist() == [8, 0, 16]


def test_the_bytes_of_a_client_are_what_it_sent_and_got_in_setup_and_training():
    """8 bytes a unit: client 0 sends 1 up and 4 across and gets 1 down and 5 across, in each phase."""
    assert filled().bytes_of_clients().tolist() == [2 * 8 * (1 + 4 + 1 + 5), 2 * 8 * 4, 2 * 8 * (2 + 5 + 2)]
    fed = Federation([(0,), (1, 2)])
    fed.ledger = filled()
    assert [part.tolist() for part in fed.traffic().parts] == [[176], [64, 144]]


def test_a_ledger_is_plain_data_and_comes_back_from_it():
    ledger = filled()
    text = json.dumps(ledger.to_json(), allow_nan=False)
    again = Ledger.from_json(json.loads(text))
    assert again.to_json() == ledger.to_json()
    assert again.totals() == ledger.totals()
    assert again.statement() == ledger.statement()


def test_a_flow_turned_round_twice_is_the_flow_and_a_part_of_it_is_of_those_senders():
    mask = np.array([True, False, False])
    for flow in (UP, UP.back, PEER):
        there = flow.back.back
        assert (there.sent == flow.sent).all()
        assert (there.received == flow.received).all()
        assert there.messages == flow.messages
    assert (UP.of(mask).sent.tolist(), UP.of(mask).messages) == ([1, 0, 0], 1)
    assert (UP.back.of(mask).received.tolist(), UP.back.of(mask).messages) == ([1, 0, 0], 1)
    assert (PEER.of(mask).sent.tolist(), PEER.of(mask).received.tolist()) == ([4, 0, 0], [0, 4, 0])
    assert PEER.of(mask).messages == 1


def test_flows_that_alternate_are_added_like_flows_that_repeat():
    one, other = Ledger(3), Ledger(3)
    half = Flow.up(np.array([0, 1, 0]), np.array([False, True, False]))
    for flow in (UP, half, UP, half, UP):
        one.record(record("x", flow, 4))
    for flow in (UP, UP, UP, half, half):
        other.record(record("x", flow, 4))
    assert one.to_json() == other.to_json()
    assert one.entries[0].sent.tolist() == [12, 8, 24]


def test_only_some_of_the_senders_ask_for_a_gradient():
    """A client whose value is constant gets none back, and none is recorded."""
    fed = Federation([(0,), (1,)])
    with fed.tape():
        x = fed.clients.run(leaf_where_positive, per_client(fed, "x", torch.tensor([1.0, -1.0])))
        fed.backward(fed.server.run(torch.sum, fed.gather(x, name="x")))
    (answer,) = [e for e in fed.ledger.entries if e.name == "x/grad"]
    assert answer.received.tolist() == [4, 0]
    assert answer.messages == 1
    assert fed.local_parts(fed.gradients(x))[0].tolist() == [1.0]


def leaf_where_positive(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_(bool((x > 0).all()))


def test_phases_nest_and_an_unknown_one_is_refused():
    fed = Federation([(0,)])
    with fed.phase("train", round_number=2):
        with fed.phase("eval"):
            fed.broadcast(at_server(fed, "w", torch.ones(1)), name="w")
        fed.broadcast(at_server(fed, "w", torch.ones(1)), name="w")
        fed.control(dict)
    assert [(e.phase, e.name) for e in fed.ledger.entries] == [
        ("eval", "w"),
        ("train", "w"),
        ("control", "control"),
    ]
    assert fed.ledger.phase == "setup"
    with pytest.raises(ValueError, match="'test' is unknown; the phases are setup, train"), fed.phase("test"):
        pass


def test_a_shape_with_a_zero_has_no_bytes_but_is_a_message():
    fed = Federation([(0, 1)])
    fed.broadcast(at_server(fed, "w", torch.ones(0, 3)), name="w")
    assert (fed.ledger.entries[0].bytes, fed.ledger.entries[0].messages) == (0, 2)


def test_a_unit_is_described_also_if_another_thread_clears_what_is_known(monkeypatch: pytest.MonkeyPatch):
    class Cleared(dict[object, payload.Unit]):
        def __setitem__(self, structure: object, unit: payload.Unit) -> None:
            super().__setitem__(structure, unit)
            self.clear()

    monkeypatch.setattr(payload, "_units", Cleared())
    assert payload.unit_of(torch.zeros(3, 2, dtype=torch.float32), leading=True).bytes == 8

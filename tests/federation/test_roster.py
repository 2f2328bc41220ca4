"""Absent clients neither send nor receive, and none of their values counts."""

import numpy as np
import pytest
import torch
from placements import SEVERAL_EACH, at_server, make_world, per_client, row_ids, run_apart, whole
from torch import Tensor

from graphfed.errors import InputError, PlaceError
from graphfed.federation import CLIENTS, Federation
from graphfed.federation.link import SERVER_INDEX

PRESENT = np.array([False, True, False, False, True, True])
PLACEMENTS = [[range(6)], [(k,) for k in range(6)], SEVERAL_EACH]


def doubled(received: Tensor, own: Tensor) -> Tensor:
    return 2 * own + received


def only_present(x: Tensor, present: Tensor) -> Tensor:
    return x[present].sum(0)


def one_round(fed: Federation) -> dict:
    own = per_client(fed, "own", torch.arange(12.0).double().reshape(6, 2))
    fed.set_roster(PRESENT)
    got = fed.broadcast(at_server(fed, "w", torch.tensor([100.0, 200.0]).double()), name="model")
    new = fed.clients.run(doubled, got, own)
    return {
        "mean": fed.average(new, at_server(fed, "n", torch.tensor([9, 1, 9, 9, 0, 3])), name="mean"),
        "sum": fed.sum(fed.clients.run(only_present, new, fed.present()), name="sum"),
        "decision": fed.control(lambda: {"round": 1}),
        "new": new,
    }


def check_round(fed: Federation, out: dict) -> None:
    own = torch.arange(12.0).double().reshape(6, 2)
    sent = 2 * own + torch.tensor([100.0, 200.0])
    torch.testing.assert_close(whole(out["mean"]), (1 * sent[1] + 3 * sent[5]) / 4, rtol=0, atol=1e-12)
    torch.testing.assert_close(whole(out["sum"]), sent[1] + sent[4] + sent[5], rtol=0, atol=1e-12)


@pytest.mark.parametrize("workers", PLACEMENTS, ids=["stacked", "one at a time", "several each"])
def test_absent_clients_are_neither_sent_to_nor_recorded_nor_counted(workers):
    fed = Federation(workers)
    check_round(fed, one_round(fed))
    for entry in fed.ledger.entries:
        moved = entry.received if entry.direction == "down" else entry.sent
        if entry.name == "control":
            assert moved.tolist() == [len('{"round": 1}')] * 6, "a decision reaches absent clients too"
        else:
            assert moved.tolist() == [0, 16, 0, 0, 16, 16]
            assert entry.messages == 3


def test_a_smaller_roster_is_the_same_across_a_link():
    local = Federation(SEVERAL_EACH)
    one_round(local)
    apart = run_apart(SEVERAL_EACH, one_round)
    out, server = apart[SERVER_INDEX]
    check_round(server, out)
    assert server.ledger.to_json() == local.ledger.to_json()
    assert [e.name for e in apart[1][1].ledger.entries] == ["control"], "client 2 is absent"


@pytest.mark.parametrize("workers", PLACEMENTS, ids=["stacked", "one at a time", "several each"])
def test_a_value_computed_under_a_smaller_roster_is_missing_under_a_larger_one(workers):
    fed = Federation(workers)
    new = one_round(fed)["new"]
    fed.clients.run(torch.neg, new)
    fed.set_roster(np.array([False, True, False, True, True, True]))
    missing = r"'doubled' is missing at client 3 \(1 in all\)"
    with pytest.raises(PlaceError, match=f"neg: {missing}"):
        fed.clients.run(torch.neg, new)
    with pytest.raises(PlaceError, match=f"transfer 'mean': {missing}"):
        fed.average(new, at_server(fed, "n", torch.ones(6)), name="mean")


@pytest.mark.parametrize("workers", PLACEMENTS, ids=["stacked", "one at a time", "several each"])
def test_state_that_absent_clients_keep_can_be_used_by_everybody(workers):
    fed = Federation(workers)
    old = fed.clients.run(torch.clone, per_client(fed, "old", torch.zeros(6)))
    fed.set_roster(PRESENT)
    new = fed.clients.run(step_where_present, old, fed.present())
    kept = fed.keep_absent(new, old)
    fed.set_roster(np.ones(6, dtype=bool))
    assert whole(fed.clients.run(torch.clone, kept)).tolist() == PRESENT.astype(float).tolist()


def step_where_present(x: Tensor, present: Tensor) -> Tensor:
    return torch.where(present, x + 1, x)


def ids_of_present(ids: Tensor, present: Tensor) -> Tensor:
    return ids[present]


def there_and_back(fed: Federation) -> dict:
    """A row of every client to the server; to each its own row times 100."""
    fed.set_roster(PRESENT)
    ids = fed.clients.run(ids_of_present, fed.client_ids(), fed.present())
    rows = fed.collect(ids, name="up")
    answers = fed.server.run(torch.mul, rows, 100)
    return {"rows": rows, "back": fed.scatter(answers, name="down", protection="encrypted")}


@pytest.mark.parametrize("workers", PLACEMENTS, ids=["stacked", "one at a time", "several each"])
def test_a_row_of_each_client_that_takes_part_goes_up_in_order_and_its_own_comes_back(workers):
    fed = Federation(workers)
    out = there_and_back(fed)
    assert whole(out["rows"]).tolist() == [1, 4, 5]
    assert torch.cat(fed.local_parts(out["back"])).tolist() == [100, 400, 500]
    assert out["back"].members is fed.roster
    up, down = fed.ledger.entries
    assert up.sent.tolist() == down.received.tolist() == [0, 8, 0, 0, 8, 8]
    assert (up.direction, up.protection, up.messages) == ("up", "plaintext", 3)
    assert (down.direction, down.protection, down.messages) == ("down", "encrypted", 3)


@pytest.mark.parametrize("workers", [SEVERAL_EACH, [(k,) for k in range(6)]], ids=["several", "one each"])
def test_rows_of_the_clients_that_take_part_are_the_same_across_a_link(workers):
    local = Federation(workers)
    there_and_back(local)
    apart = run_apart(workers, there_and_back)
    out, server = apart[SERVER_INDEX]
    assert whole(out["rows"]).tolist() == [1, 4, 5]
    assert server.ledger.to_json() == local.ledger.to_json()
    got = [part for h in range(len(workers)) for part in apart[h][1].local_parts(apart[h][0]["back"])]
    assert torch.cat(got).tolist() == [100, 400, 500]


def test_rows_that_are_not_one_for_each_client_that_takes_part_are_refused():
    fed = Federation(SEVERAL_EACH)
    fed.set_roster(PRESENT)
    with pytest.raises(PlaceError, match=r"'client ids' is int64 .* where its clients are 1"):
        fed.collect(fed.client_ids(), name="up")
    with pytest.raises(PlaceError, match=r"'x' is float32 \[6\] where the clients are 3"):
        fed.scatter(at_server(fed, "x", torch.ones(6)), name="down")
    assert not fed.ledger.entries


@pytest.mark.parametrize(
    "transfer",
    [
        "route",
        "exchange_route",
        "restrict_route",
        "upload",
        "download",
        "scatter",
        "sum",
        "max",
        "gather",
        "exchange",
    ],
)
def test_a_routed_transfer_refuses_absent_clients(transfer):
    from placements import peer_ids

    fed, world = Federation(SEVERAL_EACH), make_world(6, 1)
    route = fed.route(row_ids(fed, world), name="ids")
    peer = fed.exchange_route(peer_ids(fed, world), name="wants")
    x = fed.locate(CLIENTS, "x", [torch.ones(route.sizes[h], 2) for h in fed.here])
    u = fed.sum(x, route, name="u")
    fed.set_roster(PRESENT)
    arguments = {
        "route": (row_ids(fed, world),),
        "exchange_route": (peer_ids(fed, world),),
        "download": (u, route),
        "scatter": (u, route),
        "gather": (x,),
        "exchange": (x, peer),
        "restrict_route": (peer, x),
    }
    with pytest.raises(PlaceError, match=r"but clients \[0, 2, 3\] are absent \(3 in all\)"):
        getattr(fed, transfer)(*arguments.get(transfer, (x, route)), name="t")


def test_a_gradient_comes_from_clients_that_took_part_only():
    fed = Federation(SEVERAL_EACH)
    fed.set_roster(PRESENT)
    with fed.tape():
        w = fed.server.run(leaf, at_server(fed, "w", torch.tensor(1.0)))
        got = fed.broadcast(w, name="w")
        fed.backward(fed.clients.run(count_times, got, fed.present()))
    assert float(fed.gradients(w).parts[0]) == 3.0
    (answer,) = [e for e in fed.ledger.entries if e.name == "w/grad"]
    assert answer.sent.tolist() == [0, 4, 0, 0, 4, 4]
    assert answer.messages == 3


def leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def count_times(w: Tensor, present: Tensor) -> Tensor:
    return w * present.sum()


def test_an_empty_roster_is_bad_input_and_a_changed_array_changes_no_roster():
    fed = Federation([(0, 1)])
    with pytest.raises(InputError, match="no client takes part"):
        fed.set_roster(np.zeros(2, dtype=bool))
    present = np.array([True, False])
    fed.set_roster(present)
    present[:] = True
    assert fed.roster.tolist() == [True, False]
    for wrong in (np.ones(3, dtype=bool), np.ones(2)):
        with pytest.raises(ValueError, match="a roster is 2 booleans"):
            fed.set_roster(wrong)


def test_a_roster_changes_for_all_places_at_once_or_not_at_all() -> None:
    """The roster of a round cannot be written to, and does not change with the array that it was set from."""
    fed, present = Federation([(0, 1, 2)]), np.array([True, False, True])
    fed.set_roster(present)
    present[1] = True
    assert fed.roster.tolist() == [True, False, True]
    with pytest.raises(ValueError, match="read-only"):
        fed.roster[1] = True

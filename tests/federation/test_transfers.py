"""Every transfer gives the same values and the same ledger in every placement."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from placements import (
    SEVERAL_EACH,
    World,
    at_clients,
    at_server,
    make_world,
    peer_ids,
    per_client,
    placed_worlds,
    row_ids,
    run_apart,
    whole,
)
from torch import Tensor

from graphfed.errors import InputError, PlaceError
from graphfed.federation import CLIENTS, SERVER, Federation, Ideal, Located, ReceivedError
from graphfed.federation.link import SERVER_INDEX, Message
from graphfed.federation.route import ExchangeIds, RouteTable, RowIds
from graphfed.nn.sparse import SparseMatrix, SparseWeights


def total_of(x: Tensor) -> dict[str, Tensor]:
    return {"sum": x.sum(0), "rows": torch.tensor(len(x))}


def decide(s: Tensor) -> dict[str, Any]:
    return {"stop": bool(s.sum() > 0), "rows": len(s)}


def own_weights(x: Tensor) -> dict[str, Tensor]:
    return {"matrix": x[:, :, None] * torch.ones(2, dtype=x.dtype), "bias": x}


def counts_of_ids(rows: RowIds | RouteTable) -> Tensor:
    """How many rows an expanded route has for each id: 0, 1 or 2."""
    return rows.ids % 3


def rows_of_ids(table: RouteTable) -> Tensor:
    """Those rows: ten times the id, and which one it is."""
    counts = counts_of_ids(table)
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return (10 * torch.repeat_interleave(table.ids, counts) + torch.arange(len(first)) - first)[:, None]


def wanted_now(wants: ExchangeIds) -> Tensor:
    """Of the wants those whose id is even."""
    return wants.ids % 2 == 0


def none_wanted(wants: ExchangeIds) -> Tensor:
    return torch.zeros_like(wants.ids, dtype=torch.bool)


def rows_at(x: Tensor, rows: Tensor) -> Tensor:
    return x[rows]


def every_transfer(fed: Federation, world: World) -> dict[str, Any]:
    """One of each, by name."""
    x = at_clients(fed, "x", world.x)
    own = per_client(fed, "own", torch.arange(3.0 * world.num_clients).double().reshape(-1, 3))
    route = fed.route(row_ids(fed, world), name="ids")
    out: dict[str, Any] = {
        "table": fed.server.run(lambda t: torch.stack([t.index, t.client]), fed.table(route))
    }
    with fed.phase("train", round_number=3):
        out["upload"] = fed.upload(x, route, name="upload")
        out["gather"] = fed.gather(own, name="gather")
        out["sum of rows"] = fed.sum(x, route, name="sum of rows")
        out["max"] = fed.max(x, route, name="max")
        out["download"] = fed.download(out["sum of rows"], route, name="download")
        out["sum"] = fed.sum(fed.clients.run(total_of, x), name="sum")
        out["average"] = fed.average(
            fed.clients.run(own_weights, own), at_server(fed, "counts", world.counts), name="average"
        )
        out["broadcast"] = fed.broadcast(at_server(fed, "w", world.w), name="broadcast")
        counts = fed.clients.run(counts_of_ids, row_ids(fed, world))
        table = fed.table(route)
        wide = fed.expand_route(route, counts, fed.server.run(counts_of_ids, table), name="wide")
        out["expanded"] = fed.download(fed.server.run(rows_of_ids, table), wide, name="expanded", grad=False)
        peer = fed.exchange_route(peer_ids(fed, world), name="wants")
        out["exchange"] = fed.exchange(x, peer, name="exchange")
        some, asked = fed.restrict_route(
            peer, fed.clients.run(wanted_now, peer_ids(fed, world)), name="wanted now"
        )
        out["restricted"] = fed.exchange(fed.clients.run(rows_at, x, asked), some, name="restricted")
        part, asked = fed.restrict_route(
            peer, fed.clients.run(none_wanted, peer_ids(fed, world)), name="nothing"
        )
        out["nothing"] = fed.exchange(fed.clients.run(rows_at, x, asked), part, name="nothing")
        out["control"] = fed.control(decide, out["sum of rows"])
    return out


def plain(world: World) -> dict[str, Tensor]:
    """The same values, computed client by client and row by row."""
    k, ids, x = world.num_clients, torch.cat(world.ids), torch.cat(world.x)
    unique = sorted(set(ids.tolist()))
    own = torch.arange(3.0 * k).double().reshape(-1, 3)
    share = world.counts.double() / world.counts.sum()
    mean = torch.stack([share[i] * own[i] for i in range(k)]).sum(0)
    empty = x.new_zeros(0, x.shape[1])
    sums = torch.stack([x[ids == u].sum(0) for u in unique]) if unique else empty
    wanted = [world.x[o][world.ids[o] == i] for w in world.wants for o, i in w.tolist()]
    even = [world.x[o][world.ids[o] == i] for w in world.wants for o, i in w.tolist() if i % 2 == 0]
    return {
        "upload": x,
        "gather": own,
        "sum of rows": sums,
        "max": torch.stack([x[ids == u].max(0).values for u in unique]) if unique else empty,
        "download": torch.stack([sums[unique.index(i)] for i in ids.tolist()]) if len(ids) else empty,
        "expanded": torch.tensor(
            [[10 * i + n] for i in ids.tolist() for n in range(i % 3)], dtype=torch.int64
        ).view(-1, 1),
        "sum": x.sum(0),
        "average": mean,
        "exchange": torch.cat([empty, *wanted]),
        "restricted": torch.cat([empty, *even]),
        "nothing": empty,
    }


@settings(max_examples=60)
@given(placed_worlds())
def test_every_transfer_equals_the_plain_computation_in_any_placement(placed):
    world, workers = placed
    fed = Federation(workers)
    out, expected = every_transfer(fed, world), plain(world)
    for name in (
        "upload",
        "gather",
        "sum of rows",
        "max",
        "download",
        "expanded",
        "exchange",
        "restricted",
        "nothing",
    ):
        torch.testing.assert_close(whole(out[name]), expected[name], rtol=0, atol=1e-12)
    torch.testing.assert_close(out["sum"].parts[0]["sum"], expected["sum"], rtol=0, atol=1e-12)
    assert int(out["sum"].parts[0]["rows"]) == len(expected["upload"])
    torch.testing.assert_close(out["average"].parts[0]["bias"], expected["average"], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        out["average"].parts[0]["matrix"], expected["average"][:, None].expand(-1, 2), rtol=0, atol=1e-12
    )
    assert all(torch.equal(part, world.w) for part in out["broadcast"].parts)
    assert out["control"] == {"stop": bool(expected["sum of rows"].sum() > 0), "rows": len(expected["max"])}


@settings(max_examples=40)
@given(placed_worlds())
def test_the_ledger_is_the_same_in_any_placement(placed):
    world, workers = placed
    stacked = Federation([range(world.num_clients)])
    fed = Federation(workers)
    every_transfer(stacked, world)
    every_transfer(fed, world)
    assert fed.ledger.to_json() == stacked.ledger.to_json()
    assert fed.ledger.totals() == stacked.ledger.totals()


@pytest.mark.parametrize("workers", [SEVERAL_EACH, [(k,) for k in range(6)]], ids=["several", "one each"])
@pytest.mark.parametrize("seed", range(4))
def test_separate_places_give_the_values_and_the_ledger_of_one_process(seed, workers):
    """The server's ledger is the local one without what clients send each other; a client's is its column."""
    world = make_world(6, seed)
    local = Federation(workers)
    expected = every_transfer(local, world)
    apart = run_apart(workers, lambda fed: every_transfer(fed, world))
    for name, value in expected.items():
        if not isinstance(value, Located):
            assert all(out[name] == value for out, _ in apart.values())
            continue
        for participant, (out, _) in apart.items():
            parts = int((participant == SERVER_INDEX) == (value.place == SERVER))
            assert (out[name].place, out[name].name, len(out[name].parts)) == (value.place, value.name, parts)
        participants = [SERVER_INDEX] if value.place == SERVER else range(len(workers))
        for participant, part in zip(participants, value.parts, strict=True):
            (got,) = apart[participant][0][name].parts
            torch.testing.assert_close(got, part, rtol=0, atol=1e-12)
    expected_entries = local.ledger.to_json()["entries"]
    between = [e for e in expected_entries if e["from"] != e["to"]]
    assert apart[SERVER_INDEX][1].ledger.to_json()["entries"] == between
    for h, of_worker in enumerate(workers):
        found = {(e["phase"], e["name"], e["to"]): e for e in apart[h][1].ledger.to_json()["entries"]}
        for entry in expected_entries:
            key = (entry["phase"], entry["name"], entry["to"])
            for way in ("sent", "received"):
                column = [b if k in of_worker else 0 for k, b in enumerate(entry[way])]
                assert (found[key][way] if key in found else [0] * 6) == column
    merged = apart[SERVER_INDEX][1].ledger
    for h in range(len(workers)):
        merged.add_remote(apart[h][1].ledger)
    assert merged.to_json() == local.ledger.to_json()


def test_the_ledger_counts_what_the_formulas_say():
    """Three clients with 2, 0 and 3 rows of 4 float32 numbers; 4 different ids."""
    fed = Federation([(0, 1, 2)])
    client = torch.tensor([0, 0, 2, 2, 2])
    ids = torch.tensor([5, 7, 7, 1, 2])
    route = fed.route(fed.locate(CLIENTS, "i", [RowIds(ids, client)]), name="ids")
    x = fed.locate(CLIENTS, "x", [torch.ones(5, 4)])
    fed.upload(x, route, name="up")
    u = fed.sum(x, route, name="sum")
    fed.download(u, route, name="down")
    fed.broadcast(at_server(fed, "w", {"a": torch.ones(4, 3), "b": torch.ones(3).double()}), name="model")
    fed.gather(fed.locate(CLIENTS, "n", [torch.tensor([2, 0, 3])]), name="counts")
    wants = ExchangeIds(
        torch.tensor([2, 2, 0]), torch.tensor([7, 1, 5]), torch.tensor([0, 1, 1]), ids, client
    )
    peer = fed.exchange_route(fed.locate(CLIENTS, "w", [wants]), name="wants")
    fed.exchange(x, peer, name="peers")
    now = fed.locate(CLIENTS, "now", [torch.tensor([True, False, True])])
    some, asked = fed.restrict_route(peer, now, name="wanted now")
    fed.exchange(fed.clients.run(rows_at, x, asked), some, name="some")
    entries = {e.name: e for e in fed.ledger.entries}
    sent = {name: e.sent.tolist() for name, e in entries.items()}
    received = {name: e.received.tolist() for name, e in entries.items()}
    rows, nothing = [2 * 16, 0, 3 * 16], [0, 0, 0]
    assert (sent["ids"], received["ids"]) == ([16, 0, 24], nothing)
    assert (sent["up"], received["up"]) == (rows, nothing)
    assert (sent["sum"], received["down"], sent["down"]) == (rows, rows, nothing)
    assert received["model"] == [12 * 4 + 3 * 8] * 3
    assert sent["counts"] == [8, 8, 8]
    # Client 0 asks client 2 for one row, client 1 asks client 2 and client 0 for one each.
    assert (sent["wants"], received["wants"]) == ([8, 16, 0], [8, 0, 16])
    assert (sent["peers"], received["peers"]) == ([16, 0, 32], [16, 32, 0])
    # Now client 0 asks client 2 again, and client 1 asks client 0.
    assert (sent["wanted now"], received["wanted now"]) == ([8, 8, 0], [8, 0, 8])
    assert (sent["some"], received["some"]) == ([16, 0, 16], [16, 16, 0])
    assert entries["some"].messages == entries["wanted now"].messages == 2
    assert entries["peers"].messages == entries["wants"].messages == 3
    assert {name: entries[name].messages for name in ("ids", "up", "model")} == {
        "ids": 3,
        "up": 3,
        "model": 3,
    }
    assert entries["model"].shape == {"a": [4, 3], "b": [3]}
    assert entries["model"].dtype == "float32,float64"
    json.dumps(fed.ledger.to_json(), allow_nan=False)


@pytest.mark.parametrize("workers", [[(0, 1, 2)], [(0,), (1,), (2,)], [(0, 1), (2,)]])
def test_the_lowest_client_wins_a_tied_maximum_and_a_nan_is_not_lost(workers):
    fed = Federation(workers)
    rows = torch.tensor([[1.0, float("nan")], [1.0, 2.0], [0.0, 3.0]])
    ids = torch.zeros(1, dtype=torch.int64)
    where = [RowIds(ids.repeat(len(h)), torch.arange(len(h))) for h in fed.workers]
    route = fed.route(fed.locate(CLIENTS, "i", where), name="ids")
    with fed.tape():
        x = fed.clients.run(as_leaf, per_client(fed, "x", rows))
        top = fed.max(x, route, name="max")
        fed.backward(fed.server.run(first_column, top))
    torch.testing.assert_close(whole(top), torch.tensor([[1.0, float("nan")]]), equal_nan=True)
    assert whole(fed.gradients(x)).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


def as_leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def first_column(x: Tensor) -> Tensor:
    return x[:, 0].sum()


def test_an_id_without_parts_is_minus_infinity_in_the_maximum():
    from graphfed.federation.payload import max_rows

    x = torch.tensor([[1.0, -5.0]])
    top = max_rows(x, SparseMatrix.from_coo(torch.tensor([1]), torch.tensor([0]), torch.ones(1), (3, 1)))
    assert top.tolist() == [[-torch.inf] * 2, [1.0, -5.0], [-torch.inf] * 2]


def sparse_world(fed: Federation) -> tuple[Located, Located]:
    dense = torch.tensor(
        [[0.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 3.0], [4.0, 5.0, 0.0]], dtype=torch.float64
    )
    ids = torch.tensor([0, 1, 1, 0])
    rows = [[2 * k + i for k in h for i in range(2)] for h in fed.workers]
    x = fed.locate(CLIENTS, "x", [SparseMatrix.from_dense(dense[rows[h]]) for h in fed.here])
    where = [RowIds(ids[rows[h]], torch.arange(len(rows[h])) // 2) for h in fed.here]
    return x, fed.locate(CLIENTS, "ids", where)


def sparse_sums(fed: Federation) -> Located:
    x, ids = sparse_world(fed)
    route = fed.route(ids, name="ids")
    return fed.download(fed.sum(x, route, name="sum"), route, name="down")


def test_sparse_rows_stay_sparse_and_weigh_what_dense_rows_weigh():
    expected = torch.tensor([[4.0, 7, 0], [1, 0, 3], [1, 0, 3], [4, 7, 0]], dtype=torch.float64)
    for workers in ([(0, 1)], [(0,), (1,)]):
        fed = Federation(workers)
        assert torch.equal(torch.cat([p.to_dense() for p in sparse_sums(fed).parts]), expected)
        assert fed.ledger.bytes_of("sum") == fed.ledger.bytes_of("down") == 4 * 3 * 8
    apart = run_apart([(0,), (1,)], sparse_sums)
    for h in range(2):
        (part,) = apart[h][0].parts
        assert isinstance(part, SparseMatrix)
        assert torch.equal(part.to_dense(), expected[2 * h : 2 * h + 2])
    assert apart[SERVER_INDEX][1].ledger.to_json() == fed.ledger.to_json()


def sparse_weights(fed: Federation, h: int) -> SparseWeights:
    """Client k's weights [4, 2] differ from the others' in its rows k and 3."""
    of_worker = fed.workers[h]
    pairs = torch.tensor([[i, f] for i, k in enumerate(of_worker) for f in sorted({k, 3})])
    values = torch.tensor([[10.0 * of_worker[i] + f, -f] for i, f in pairs.tolist()], dtype=torch.float64)
    ghost = torch.arange(8.0).double().reshape(4, 2)
    return SparseWeights(torch.cat([values, ghost]), pairs[:, 0], pairs[:, 1], len(of_worker))


def sparse_average(fed: Federation) -> tuple[Located, Located]:
    with fed.tape():
        raw = fed.locate(CLIENTS, "w", [sparse_weights(fed, h) for h in fed.here])
        leaves = fed.clients.run(sparse_leaf, raw)
        mean = fed.average(leaves, at_server(fed, "n", torch.tensor([1, 2, 5])), name="mean")
        fed.backward(fed.server.run(squares, mean))
    return mean, fed.gradients(leaves)


def sparse_leaf(w: SparseWeights) -> SparseWeights:
    return w.with_values(w.values.detach().requires_grad_())


def squares(x: Tensor) -> Tensor:
    return (x**2).sum()


def test_an_average_of_sparse_weights_equals_that_of_full_ones_in_value_gradient_and_bytes():
    stacked = Federation([(0, 1, 2)])
    weights = sparse_weights(stacked, 0)
    full = torch.stack([weights.part(k) for k in range(3)])
    expected = (full * torch.tensor([1, 2, 5])[:, None, None] / 8).sum(0)
    mean, gradient = sparse_average(stacked)
    torch.testing.assert_close(whole(mean), expected, rtol=0, atol=1e-12)
    leaf = weights.values.clone().requires_grad_()
    parts = torch.stack([weights.with_values(leaf).part(k) for k in range(3)])
    squares((parts * torch.tensor([1, 2, 5])[:, None, None] / 8).sum(0)).backward()
    torch.testing.assert_close(gradient.parts[0].values, leaf.grad, rtol=0, atol=1e-12)
    assert stacked.ledger.bytes_of("mean") == stacked.ledger.bytes_of("mean/grad") == 3 * 8 * 8
    workers = [(0, 1), (2,)]
    together = Federation(workers)
    local_mean, local_gradient = sparse_average(together)
    apart = run_apart(workers, sparse_average)
    torch.testing.assert_close(whole(local_mean), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(whole(apart[SERVER_INDEX][0][0]), expected, rtol=0, atol=1e-12)
    for h in range(2):
        got = apart[h][0][1].parts[0].values
        torch.testing.assert_close(got, local_gradient.parts[h].values, rtol=0, atol=1e-12)
    assert apart[SERVER_INDEX][1].ledger.to_json() == stacked.ledger.to_json() == together.ledger.to_json()


def test_a_client_of_weight_zero_does_not_count_even_when_its_values_are_not_finite():
    for workers in ([(0, 1)], [(0,), (1,)]):
        fed = Federation(workers)
        x = per_client(fed, "x", torch.tensor([[1.0, 2.0], [float("nan"), 3.0]]))
        mean = fed.average(x, at_server(fed, "n", torch.tensor([4, 0])), name="mean")
        assert whole(mean).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("workers", [[(0, 1)], [(0,), (1,)]])
def test_if_no_client_has_a_weight_the_mean_is_the_given_alternative(workers):
    """It is a value at the server, and is not used if any client has one."""
    fed = Federation(workers)
    x, before = per_client(fed, "x", torch.ones(2, 3)), at_server(fed, "before", 5 * torch.ones(3))
    for weights, expected in (([0, 0], 5.0), ([0, 2], 1.0)):
        n = at_server(fed, "n", torch.tensor(weights))
        mean = fed.average(x, n, name="mean", otherwise=before)
        assert whole(mean).tolist() == [expected] * 3
    with pytest.raises(PlaceError, match="'x' lives at clients but was used at server"):
        fed.average(x, n, name="mean", otherwise=x)


def test_weights_that_sum_to_zero_are_bad_input():
    fed = Federation([(0, 1)])
    with pytest.raises(InputError, match=r"'mean'.*weights sum to 0"):
        fed.average(per_client(fed, "x", torch.ones(2, 1)), at_server(fed, "n", torch.zeros(2)), name="mean")


@pytest.mark.parametrize(
    "weights", [torch.ones(3), torch.tensor([1.0, -1.0]), torch.tensor([1.0, float("nan")])]
)
def test_weights_are_one_number_of_at_least_zero_for_each_client(weights):
    fed = Federation([(0, 1)])
    with pytest.raises(PlaceError, match="weights must be 2 numbers"):
        fed.average(per_client(fed, "x", torch.ones(2, 1)), at_server(fed, "n", weights), name="mean")


def test_shapes_that_do_not_fit_are_refused_before_anything_is_recorded():
    fed = Federation([(0,), (1,)])
    one = [RowIds(torch.tensor([4]), torch.tensor([0]))] * 2
    route = fed.route(fed.locate(CLIENTS, "ids", one), name="ids")
    two = fed.locate(CLIENTS, "x", [torch.ones(2, 3)] * 2)
    before = fed.ledger.to_json()
    with pytest.raises(PlaceError, match=r"'up': 'x' is float32 \[2, 3\] where route 'ids' names 1"):
        fed.upload(two, route, name="up")
    with pytest.raises(PlaceError, match="where its clients are 1"):
        fed.gather(two, name="all")
    with pytest.raises(PlaceError, match="where the ids of route 'ids' are 1"):
        fed.download(at_server(fed, "u", torch.ones(2, 3)), route, name="down")
    with pytest.raises(PlaceError, match="found a list"):
        fed.broadcast(at_server(fed, "w", [torch.ones(1)]), name="model")
    assert fed.ledger.to_json() == before


def test_parts_of_unlike_shapes_are_not_broadcast_into_a_sum():
    fed = Federation([(0,), (1,)])
    x = fed.locate(CLIENTS, "x", [torch.ones(3), torch.ones(1)])
    with pytest.raises(PlaceError, match=r"client 1 sent float32 \[1\] where client 0 sent float32 \[3\]"):
        fed.sum(x, name="sum")


@pytest.mark.parametrize(
    ("ids", "client"),
    [([1, 2], [1, 0]), ([1, 2], [0, 2]), ([1, 2], [-1, 0]), ([1, 2], [0]), ([[1, 2]], [[0, 1]])],
    ids=["unsorted", "beyond the cohort", "negative", "of another length", "a matrix"],
)
def test_row_ids_that_break_their_contract_are_refused(ids, client):
    fed = Federation([(0, 1)])
    with pytest.raises(PlaceError, match="route 'ids'"):
        fed.route(fed.locate(CLIENTS, "i", [RowIds(torch.tensor(ids), torch.tensor(client))]), name="ids")


def ask(fed: Federation, client: list[int], ids: list[int]) -> None:
    """Client 0 of two asks; client 1 holds nodes 3 and 4, client 0 holds none."""
    held, held_client = torch.tensor([3, 4]), torch.tensor([1, 1])
    asker = torch.zeros(len(client), dtype=torch.int64)
    fed.exchange_route(
        fed.locate(
            CLIENTS, "w", [ExchangeIds(torch.tensor(client), torch.tensor(ids), asker, held, held_client)]
        ),
        name="wants",
    )


@pytest.mark.parametrize(
    "numbers",
    [[2], [-1], [0, 0], [1, 0], [0.0], [[0]], "text"],
    ids=["2", "-1", "twice", "down", "float", "flat", "text"],
)
def test_a_client_that_asks_again_for_what_it_may_not_is_refused(
    numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows may be asked for, by their numbers, each once."""
    fed = Federation([(0, 1)], names=["north"])
    wants = ExchangeIds(*(torch.tensor(x) for x in ([1, 1], [3, 4], [0, 0], [3, 4], [1, 1])))
    route = fed.exchange_route(fed.locate(CLIENTS, "w", [wants]), name="wants")
    payload = numbers if isinstance(numbers, str) else torch.tensor(numbers)
    monkeypatch.setattr(fed._delivery, "deliver", lambda *_: {(0, 0): Message(payload)})
    with pytest.raises(ReceivedError, match=r"north sent numbers of rows that it .*\(transfer 'now', "):
        fed.restrict_route(route, fed.locate(CLIENTS, "now", [torch.tensor([True, True])]), name="now")


def test_clients_alone_say_which_rows_they_want_now() -> None:
    fed = Federation([(0, 1)])
    wants = ExchangeIds(*(torch.tensor(x) for x in ([1, 1], [3, 4], [0, 0], [3, 4], [1, 1])))
    route = fed.exchange_route(fed.locate(CLIENTS, "w", [wants]), name="wants")
    now = fed.locate(SERVER, "now", [torch.tensor([True, False])])
    with pytest.raises(PlaceError, match="transfer 'now'"):
        fed.restrict_route(route, now, name="now")


@pytest.mark.parametrize("workers", [SEVERAL_EACH, [range(6)], [(k,) for k in range(6)]], ids=str)
def test_rows_from_everyone_to_everyone_arrive_by_receiver_and_sender(workers: Any) -> None:
    """In one process and apart; a client's row to itself stays."""

    def program(fed: Federation) -> Located:
        rows = [[[10 * k + other] for k in fed.workers[h] for other in range(6)] for h in fed.here]
        x = fed.locate(CLIENTS, "x", [torch.tensor(part) for part in rows])
        return fed.exchange(x, fed.everyone(), name="all")

    fed = Federation(workers)
    expected = [
        [[10 * other + k] for k in worker for other in range(6) if other != k] for worker in fed.workers
    ]
    assert [part.tolist() for part in program(fed).parts] == expected
    (entry,) = fed.ledger.entries
    assert entry.sent.tolist() == entry.received.tolist() == [5 * 8] * 6
    apart = run_apart(workers, program)
    assert [apart[h][0].parts[0].tolist() for h in range(len(workers))] == expected


@pytest.mark.parametrize("short", ["owner", "ids", "client"])
def test_wants_are_vectors_of_one_length(short: str) -> None:
    columns = {name: torch.tensor([1, 1]) for name in ("owner", "ids")} | {"client": torch.tensor([0, 0])}
    held = {"held_ids": torch.tensor([1]), "held_client": torch.tensor([1])}
    for wrong in (columns[short][:1], columns[short][None]):
        wants = ExchangeIds(**{**columns, short: wrong}, **held)
        fed = Federation([(0, 1)])
        with pytest.raises(PlaceError, match="route 'wants': owner, ids and client must be vectors of one"):
            fed.exchange_route(fed.locate(CLIENTS, "w", [wants]), name="wants")
    flat = ExchangeIds(**{name: x[None] for name, x in columns.items()}, **held)
    fed = Federation([(0, 1)])
    with pytest.raises(PlaceError, match="route 'wants': owner, ids and client must be vectors of one"):
        fed.exchange_route(fed.locate(CLIENTS, "w", [flat]), name="wants")


@pytest.mark.parametrize("node", [5, -1, 9, 0])
def test_a_wanted_row_that_its_owner_does_not_have_is_bad_input(node):
    with pytest.raises(InputError, match=f"client 1 is asked for node {node}, which it does not hold"):
        ask(Federation([(0, 1)]), [1], [node])


@pytest.mark.parametrize("seed", range(5))
def test_ids_may_be_any_numbers_that_63_bits_hold(seed):
    world = make_world(6, seed)

    def large(ids: Tensor) -> Tensor:
        return 2**63 - 1 - ids * 2**58

    renamed = dataclasses.replace(
        world,
        ids=[large(ids) for ids in world.ids],
        wants=[torch.stack([w[:, 0], large(w[:, 1])], 1) for w in world.wants],
    )
    for workers in (SEVERAL_EACH, [tuple(range(6))]):
        rows = []
        for each in (world, renamed):
            fed = Federation(workers)
            peer = fed.exchange_route(peer_ids(fed, each), name="wants")
            rows.append(whole(fed.exchange(at_clients(fed, "x", each.x), peer, name="exchange")))
        assert torch.equal(*rows)


@pytest.mark.parametrize(
    ("client", "problem"), [(0, "a row that it owns"), (2, "the clients are 0..1"), (-1, "0..1")]
)
def test_a_client_asks_other_clients_only(client, problem):
    with pytest.raises(PlaceError, match=problem):
        ask(Federation([(0, 1)]), [client], [3])


@pytest.mark.parametrize("workers", [[], [()], [(1,)], [(0, 2)], [(0,), ()], [(1,), (0,)]])
def test_workers_hold_the_clients_in_order(workers):
    with pytest.raises(ValueError, match="workers must hold the clients"):
        Federation(workers)


def test_a_place_elsewhere_needs_a_link():
    with pytest.raises(ValueError, match="pass the link"):
        Federation([(0,), (1,)], here=[0])
    with pytest.raises(ValueError, match="here must name"):
        Federation([(0,), (1,)], here=[2])


def test_an_expanded_route_is_refused_if_server_and_clients_disagree() -> None:
    world = make_world(3, 1)
    fed = Federation([range(world.num_clients)])
    route = fed.route(row_ids(fed, world), name="ids")
    counts = fed.clients.run(counts_of_ids, row_ids(fed, world))
    more = fed.server.run(lambda t: counts_of_ids(t) + 1, fed.table(route))
    with pytest.raises(PlaceError, match="the server and the clients expect different numbers of rows"):
        fed.expand_route(route, counts, more, name="wide")
    with pytest.raises(PlaceError, match="route 'wide': 'counts_of_ids' lives at clients but was used at se"):
        fed.expand_route(route, counts, counts, name="wide")
    with pytest.raises(PlaceError, match="lives at server but was used at clients"):
        fed.expand_route(route, more, more, name="wide")
    with pytest.raises(PlaceError, match="the rows are"):
        fed.expand_route(route, fed.clients.run(lambda c: c[1:], counts), more, name="wide")


def test_a_simulated_download_is_counted_as_what_it_stands_for() -> None:
    world = make_world(3, 1)
    fed = Federation([range(world.num_clients)])
    route = fed.route(row_ids(fed, world), name="ids")
    counts = fed.clients.run(counts_of_ids, row_ids(fed, world))
    table = fed.table(route)
    wide = fed.expand_route(route, counts, fed.server.run(counts_of_ids, table), name="wide")
    ids = fed.server.run(lambda t: t.ids[:, None], table)
    ideal = Ideal(wide.flow.back, [7], torch.float32)
    got = fed.simulate_download(ids, ideal, name="ideal", grad=False)
    assert torch.equal(whole(got), fed.server.run(lambda t: t.ids[:, None], table).parts[0])
    (entry,) = [e for e in fed.ledger.entries if e.name == "ideal"]
    assert entry.bytes == 28 * sum(i % 3 for i in torch.cat(world.ids).tolist())
    assert (entry.protection, entry.shape, entry.dtype) == ("simulated", [7], "float32")


def test_a_simulated_download_does_not_leave_the_process() -> None:
    world = make_world(3, 1)

    def program(fed: Federation) -> None:
        route = fed.route(row_ids(fed, world), name="ids")
        ids = fed.server.run(lambda t: t.ids[:, None], fed.table(route))
        fed.simulate_download(ids, Ideal(route.flow.back, [7], torch.float32), name="ideal")

    workers = [[k] for k in range(world.num_clients)]
    with pytest.raises(PlaceError, match="must not be sent to another process"):
        run_apart(workers, program)


@pytest.mark.parametrize("workers", [[range(6)], SEVERAL_EACH, [(k,) for k in range(6)]], ids=str)
def test_rows_scattered_along_a_route_come_back_to_where_they_were_uploaded_from(workers: Any) -> None:
    fed, world = Federation(workers), make_world(6, 1)
    route = fed.route(row_ids(fed, world), name="ids")
    x = fed.locate(CLIENTS, "x", [torch.rand(route.sizes[h], 2) for h in fed.here])
    back = fed.scatter(fed.upload(x, route, name="up"), route, name="down")
    for sent, returned in zip(x.parts, back.parts, strict=True):
        assert torch.equal(sent, returned)
    up, down = (entry for entry in fed.ledger.entries if entry.kind == "rows")
    assert up.sent.tolist() == down.received.tolist()

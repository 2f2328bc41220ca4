"""Measure a local transfer, with ledger and tape, compared with copying the tensors that it moves.

    python benchmarks/transfers.py

The program uses 10 stacked clients and small tensors, and then the same transfers with 22 470 clients, for
which the ledger must stay cheap. Each line has the median time of one call and its ratio to cloning the
payload. The aim is at most 50 us for a transfer."""

import platform
import statistics
import timeit
from collections.abc import Callable

import torch
from torch import Tensor

from graphfed.federation import CLIENTS, SERVER, Federation, Located
from graphfed.federation.route import ExchangeIds, RowIds

REPEATS, CALLS = 15, 300


def microseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return the median and the spread (half the interquartile range) of one call, after a warm-up."""
    times = [t / CALLS * 1e6 for t in timeit.repeat(call, number=CALLS, repeat=REPEATS + 3)[3:]]
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) / 2


def same_row(x: Tensor) -> Tensor:
    return x


def transfers(clients: int, rows_each: int, width: int) -> dict[str, tuple[Callable[[], Located], Tensor]]:
    """Return every transfer by name: a call, and the tensor that it moves."""
    fed = Federation([range(clients)])
    client = torch.arange(clients).repeat_interleave(rows_each)
    n = clients * rows_each
    ids = torch.arange(n) % max(n // 2, 1)
    route = fed.route(fed.locate(CLIENTS, "ids", [RowIds(ids, client)]), name="ids")
    wanted = (torch.arange(n) + rows_each) % n
    wants = ExchangeIds(client[wanted], wanted, client, torch.arange(n), client)
    exchange_route = fed.exchange_route(fed.locate(CLIENTS, "wants", [wants]), name="wants")
    x = fed.locate(CLIENTS, "x", [torch.randn(n, width)])
    u = fed.sum(x, route, name="sum")
    own = fed.locate(CLIENTS, "own", [torch.randn(clients, width)])
    counts = fed.locate(SERVER, "counts", [torch.ones(clients)])
    w = fed.locate(SERVER, "w", [torch.randn(width, width)])
    rows, parts, model = x.parts[0], own.parts[0], w.parts[0]
    calls: dict[str, tuple[Callable[[], Located], Tensor]] = {
        "upload": (lambda: fed.upload(x, route, name="upload"), rows),
        "download": (lambda: fed.download(u, route, name="download"), rows),
        "exchange": (lambda: fed.exchange(x, exchange_route, name="exchange"), rows),
        "gather": (lambda: fed.gather(own, name="gather"), parts),
        "average": (lambda: fed.average(own, counts, name="average"), parts),
        "broadcast": (lambda: fed.broadcast(w, name="broadcast"), model),
        "run (no transfer)": (lambda: fed.clients.run(same_row, x), rows),
    }
    assert torch.equal(calls["upload"][0]().parts[0], rows)
    assert route.table is not None
    assert torch.equal(calls["download"][0]().parts[0], u.parts[0][route.table.index])
    assert torch.equal(calls["exchange"][0]().parts[0], rows[wanted])
    assert torch.allclose(calls["average"][0]().parts[0], parts.mean(0), atol=1e-6)
    return calls


def with_tape(clients: int, width: int) -> Callable[[], None]:
    """Run a broadcast of leaves, a sum of losses and the gradients back: two transfers, recorded and run
    backwards."""
    fed = Federation([range(clients)])
    w = fed.locate(SERVER, "w", [torch.randn(width, width, requires_grad=True)])

    def call() -> None:
        with fed.tape():
            got = fed.broadcast(w, name="w")
            fed.backward(fed.server.run(same_row, fed.sum(fed.clients.run(torch.sum, got), name="loss")))

    return call


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, 1 thread")
    for clients, rows_each, width in ((10, 10, 16), (22_470, 1, 16)):
        print(f"\n{clients} clients, {rows_each} row(s) of {width} float32 each")
        print(f"{'':20}{'us':>8}{'+-':>7}{'copy us':>9}{'ratio':>7}")
        for name, (call, moved) in transfers(clients, rows_each, width).items():
            ours, spread = microseconds(call)
            copy, _ = microseconds(moved.clone)
            print(f"{name:20}{ours:8.1f}{spread:7.1f}{copy:9.1f}{ours / copy:7.1f}")
        ours, spread = microseconds(with_tape(clients, width))
        print(f"{'two and back, taped':20}{ours:8.1f}{spread:7.1f}")


if __name__ == "__main__":
    main()

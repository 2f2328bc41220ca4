"""Measure the two-party protocols between two processes over mutual TLS on loopback.

The measurements are comparisons, maxima and session set-ups, each compared with the same computation in
plaintext over the same connection, and an epoch of SAPGNN with secure pooling, compared with one in
plaintext.

Every outcome is compared with plain arithmetic. Each party has one thread, and the parties work at the same
time, so seconds are wall-clock seconds; processor seconds are given for each party. Bytes are those of the
protocol in both directions, without TLS."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import add_common_options, cora_or_social, finish, load_average, ratio, summary
from tls_pair import End, certify, run_apart

from graphfed.crypto import maximum
from graphfed.crypto.compare import compare
from graphfed.crypto.ot import TwoParty
from graphfed.crypto.session import Ended, Party, run_one
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.partitions.partition import partition
from graphfed.federation.cohort import make_cohort
from graphfed.methods.base import Task
from graphfed.methods.registry import get_method
from graphfed.runs.processes import train_in_processes
from graphfed.runtime.processes import Workers
from graphfed.tasks.registry import default_settings

WIDTHS = (4, 8, 16, 32)


def ran(end: End, party: Party[Any]) -> Ended[Any]:
    return run_one(party, end.send, end.receive)


def met(end: End) -> None:
    """Wait until both parties are ready, by a byte in each direction."""
    end.send(b"!")
    end.receive()


def clocked(end: End, party: Party[Any]) -> tuple[Ended[Any], float, float]:
    """Return a party's result, its seconds and its processor seconds, from the moment at which both have
    begun."""
    met(end)
    began, worked = time.perf_counter(), time.process_time()
    ended = ran(end, party)
    return ended, time.perf_counter() - began, time.process_time() - worked


# ---- comparisons -------------------------------------------------------------------------------------------


def numbers(bits: int, count: int, first: bool) -> np.ndarray:
    draw = np.random.default_rng(bits)
    both = draw.integers(0, 2**bits, (2, count), dtype=np.uint64).astype(np.uint32)
    return both[0 if first else 1]


def compare_plaintext(end: End, values: np.ndarray, first: bool) -> np.ndarray:
    """Compute the same outcomes from numbers that are sent in plaintext."""
    end.send(values.tobytes())
    received = np.frombuffer(end.receive(), dtype=values.dtype)
    x, y = (values, received) if first else (received, values)
    return np.sign(x.astype(np.int64) - y.astype(np.int64))


def compare_in_turns(
    end: End, first: bool, count: int, pairs: int, each: int, repeats: int
) -> dict[str, Any]:
    """Run one pair of parties with `count` comparisons of every width, by the protocol and in plaintext;
    then `pairs` separate sessions with `each` comparisons of 8 bits."""
    found: dict[str, Any] = {}
    for _ in range(repeats):
        opened, _, spent = clocked(end, TwoParty(first=first).set_up())
        found.setdefault("set-up", []).append(spent)
        session: TwoParty = opened.result
        for bits in WIDTHS:
            values = numbers(bits, count, first)
            ended, seconds, spent = clocked(end, compare(session, values, bits))
            met(end)
            began = time.perf_counter()
            plain = compare_plaintext(end, values, first)
            clear = time.perf_counter() - began
            assert np.array_equal(ended.result, plain)
            measured = found.setdefault(bits, {"seconds": [], "cpu": [], "clear": []})
            measured["seconds"].append(seconds)
            measured["cpu"].append(spent)
            measured["clear"].append(clear)
            measured["bytes"] = ended.sent + ended.received
    values = numbers(8, each, first)
    _, seconds, spent = clocked(end, many_sessions(first, values, pairs))
    found["pairs"] = {"seconds": seconds, "cpu": spent}
    return found


def many_sessions(first: bool, values: np.ndarray, pairs: int) -> Party[None]:
    """Run several pairs of parties, each with a separate session, one after the other."""
    for _ in range(pairs):
        session = yield from TwoParty(first=first).set_up()
        yield from compare(session, values, 8)


def second_compares(end: End, **options: int) -> dict[str, np.ndarray]:
    found = compare_in_turns(end, False, **options)
    return {"set-up": np.array(found["set-up"]), "cpu": np.array([found[bits]["cpu"] for bits in WIDTHS])}


def comparisons(folder: Path, count: int, pairs: int, repeats: int) -> dict[str, Any]:
    each = 20
    options = {"count": count, "pairs": pairs, "each": each, "repeats": repeats}
    first, second = run_apart(
        folder, lambda end: compare_in_turns(end, True, **options), "secure:second_compares", **options
    )
    result: dict[str, Any] = {"comparisons": count, "set_up_cpu_ms": {}, "widths": {}}
    for side, spent in (("first", first["set-up"]), ("second", second["set-up"].tolist())):
        result["set_up_cpu_ms"][side] = summary([s * 1e3 for s in spent])
    for place, bits in enumerate(WIDTHS):
        measured = first[bits]
        best = min(measured["seconds"])
        result["widths"][bits] = {
            "per_second": round(count / best),
            "bytes_each": round(measured["bytes"] / count, 2),
            "seconds": summary(measured["seconds"]),
            "cpu_seconds": {"first": min(measured["cpu"]), "second": float(second["cpu"][place].min())},
            "ratio": {
                "secure / clear": ratio([[s] for s in measured["seconds"]], [[s] for s in measured["clear"]])
            },
        }
        print(
            f"{bits} bits: {count / best:,.0f} per second, {measured['bytes'] / count:.1f} bytes",
            file=sys.stderr,
        )
    result["pairs"] = {
        "pairs": pairs, "comparisons_of_each": each, "seconds": first["pairs"]["seconds"],
        "seconds_each": first["pairs"]["seconds"] / pairs,
    }  # fmt: skip
    print(f"{pairs} pairs: {first['pairs']['seconds'] / pairs * 1e3:.1f} ms each", file=sys.stderr)
    return result


# ---- maxima ------------------------------------------------------------------------------------------------


def holdings(clients: int, nodes: int, width: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return words [P * U, H], the node of each row, and their two shares."""
    draw = np.random.default_rng(clients)
    words = draw.integers(-(2**25), 2**25, (clients * nodes, width), dtype=np.int64).astype(np.int32)
    drawn = draw.integers(0, 2**32, words.shape, dtype=np.uint64).astype(np.uint32)
    return words, np.tile(np.arange(nodes), clients), [words.view(np.uint32) - drawn, drawn]


def pool(end: End, first: bool, clients: int, nodes: int, width: int) -> dict[str, Any]:
    _, group, shares = holdings(clients, nodes, width)
    session = ran(end, maximum.open_session(first=first, simulated=False)).result
    plan = maximum.make_plan(group)
    forward, seconds, spent = clocked(end, maximum.maxima(session, plan, shares[0 if first else 1]))
    found, chosen = forward.result
    gradient = np.ones(found.shape, dtype=np.uint64) * np.uint64(first)
    back, seconds_back, spent_back = clocked(end, maximum.send_gradients(session, plan, chosen, gradient))
    return {
        "found": found.view(np.int32), "routed": back.result,
        "seconds": seconds, "seconds_back": seconds_back, "cpu": spent, "cpu_back": spent_back,
        "bytes": forward.sent + forward.received, "bytes_back": back.sent + back.received,
    }  # fmt: skip


def second_pools(end: End, **options: int) -> dict[str, Any]:
    return pool(end, False, **options)


def maxima(folder: Path, nodes: int, width: int, clients: Sequence[int]) -> list[dict[str, Any]]:
    rows = []
    for count in clients:
        size = {"clients": count, "nodes": nodes, "width": width}
        first, second = run_apart(
            folder, lambda end, s=size: pool(end, True, **s), "secure:second_pools", **size
        )
        words = holdings(**size)[0].reshape(count, nodes, width)
        assert np.array_equal(first["found"], words.max(0))
        won = np.arange(count)[:, None, None] == words.argmax(0)
        assert np.array_equal((first["routed"] + second["routed"]).reshape(won.shape), won)
        keys = ("seconds", "seconds_back", "bytes", "bytes_back")
        rows.append(
            {
                "holders": count,
                "nodes": nodes,
                "width": width,
                **{key: first[key] for key in keys},
                "cpu_seconds": [first["cpu"], float(second["cpu"])],
            }
        )
        print(f"{count} clients: {first['seconds']:.2f} s, {first['bytes'] / 1e6:.0f} MB", file=sys.stderr)
    return rows


# ---- SAPGNN ------------------------------------------------------------------------------------------------


def epochs(graph: Graph, split: Split, hidden: int, rounds: int) -> dict[str, Any]:
    """Measure epochs of SAPGNN with two clients in separate processes, in plaintext and with secure pooling,
    without scoring."""
    method, parts = get_method("sapgnn"), partition(graph, "edges_uniform", 2, 0)
    cohorts = [make_cohort(graph, split, parts, [k]) for k in range(2)]
    task = Task(graph.num_features, graph.num_classes)
    times: dict[str, list[list[float]]] = {}
    sent: dict[str, int] = {}
    losses: dict[str, float] = {}
    for case, pooling in (("clear", "plaintext"), ("secure", "secure")):
        settings = {
            "hidden": hidden,
            "rounds": rounds,
            "eval_every": rounds,
            "dropout": 0.0,
            "pooling": pooling,
        }
        config = method.configure(settings, default_settings(method, preset="paper"))
        with Workers([(0,), (1,)]) as clients:
            outcome, ledger = train_in_processes(method, cohorts, task, config, clients=clients)
        times[case] = [[outcome.seconds["train"] / rounds]]
        trained = [entry for entry in ledger.entries if entry.phase == "train"]
        sent[case] = sum(entry.bytes for entry in trained) // rounds
        losses[case] = outcome.test["loss"]
        print(
            f"{case}: {times[case][0][0]:.2f} s, {sent[case] / 1e6:.1f} MB per epoch",
            file=sys.stderr,
        )
    assert abs(losses["clear"] - losses["secure"]) < 1e-2, losses
    return {
        "hidden": hidden,
        "rounds": rounds,
        "seconds_an_epoch": {case: spent[0][0] for case, spent in times.items()},
        "bytes_an_epoch": sent,
        "test_loss": losses,
        "ratio": {"secure / clear": ratio(times["secure"], times["clear"])},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "secure")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    graph, split, name = cora_or_social()
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        certify(folder, "first", "second")
        if options.tiny:
            content = {
                "comparisons": comparisons(folder, 500, 3, 2),
                "maxima": maxima(folder, 20, 4, (2, 3)),
            }
        else:
            content = {
                "comparisons": comparisons(folder, 100_000, 1000, 5),
                "maxima": maxima(folder, 2708, 64, (2, 3, 4, 5)),
                "graph": name,
                "sapgnn": [epochs(graph, split, hidden, 5) for hidden in (16, 64)],
            }
    finish(options.out, began, load_before, content)


if __name__ == "__main__":
    main()

"""Measure a round of secure aggregation among 50 clients with 10^6 parameters, at a client and at the
server.

All clients stay, or 30 % of the clients drop out after they have shared their keys. Both are compared with
the plaintext average of the same vectors. A second measurement adds secure aggregation to a round of FedAvg
on a small network.

The state machines run one client after the other, as each would on its own machine, and the server adds up
the masked vectors in the order of arrival. In every repeat, the opened sum must be the sum of the vectors, to
the last bit. A client's time with the vector includes the conversion to fixed point. The plaintext average is
that of `fed.average` over the clients that stay."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from measure import (
    WARM_UP,
    add_common_options,
    assert_equal,
    config_of,
    cora_or_social,
    finish,
    float64,
    load_average,
    make_inputs,
    ratio,
    run,
    summary,
    timed_run,
    weights_of,
)

from graphfed.crypto.aggregation.client import Client
from graphfed.crypto.aggregation.server import Server
from graphfed.crypto.aggregation.terms import Terms
from graphfed.crypto.sharing import decode, encode
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.splits import make_split
from graphfed.federation.payload import weighted_sum
from graphfed.methods.registry import get_method
from graphfed.runs.run import peak_rss_mb

FORMS = {
    "clear": {"aggregation": "plaintext"},
    "simulated": {"aggregation": "secure", "protocols": "simulated"},
    "secure": {"aggregation": "secure"},
}
STEPS = ("advertise", "share keys", "mask", "unmask")
SERVER_STEPS = ("list keys", "forward", "add up", "open")

Result = TypeVar("Result")


def numbers(party: int, width: int) -> torch.Tensor:
    """Return a client's vector, [w] float32."""
    return torch.randn(width, generator=torch.Generator().manual_seed(party))


class Clock:
    """Measure milliseconds by name."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def timed(self, name: str, call: Callable[..., Result], *arguments: Any) -> Result:
        began = time.perf_counter()
        result = call(*arguments)
        self.times.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
        return result


def session(terms: Terms, width: int, gone: int) -> tuple[Clock, Clock]:
    """Run one round in which the last `gone` clients send no vector. Return the times of each client's steps
    and of the server's.

    Raises:
        AssertionError: If the sum is not exact.
    """
    at_client, at_server = Clock(), Clock()
    clients = [Client(terms, party) for party in range(terms.clients)]
    server = Server(terms, width)
    keys = {c.party: at_client.timed("advertise", c.advertise) for c in clients}
    listed = at_server.timed("list keys", server.all_keys, keys)
    sealed = {c.party: at_client.timed("share keys", c.share_keys, listed) for c in clients}
    forwarded = at_server.timed("forward", server.forward, sealed)
    staying = clients[: terms.clients - gone]
    expected = np.zeros(width, dtype=np.int64)
    for client in staying:
        vector = numbers(client.party, width)

        def mask(client: Client = client, vector: torch.Tensor = vector) -> bytes:
            return client.mask(forwarded[client.party], encode(vector, terms.clients).numpy())

        message = at_client.timed("mask", mask)
        at_server.timed("add up", server.add_masked, client.party, message)
        expected += encode(vector, terms.clients).numpy()
    request = server.request()
    answers = {c.party: at_client.timed("unmask", c.unmask, request) for c in staying}
    total = at_server.timed("open", server.open, answers)
    assert (total == expected).all(), "the opened sum is not the sum of the vectors"
    return at_client, at_server


def clear_average(clients: int, width: int) -> tuple[list[float], torch.Tensor]:
    """Return the milliseconds of the plaintext average with equal weights, and the mean."""
    stacked = torch.stack([numbers(party, width) for party in range(clients)])
    weights = np.full(clients, 1 / clients)
    clock = Clock()
    for _ in range(5):
        mean = clock.timed("average", weighted_sum, stacked, weights)
    return clock.times["average"], mean


def measure_round(clients: int, width: int, gone: int, repeats: int) -> dict[str, Any]:
    """Return, over all repeats, the milliseconds of a client's and of the server's steps, the bytes, and the
    server's times compared with the plaintext average."""
    terms = Terms.usual("benchmark", clients)
    client_ms: dict[str, list[float]] = {}
    server_ms: dict[str, list[float]] = {}
    totals: list[list[float]] = []
    clear: list[list[float]] = []
    staying = clients - gone
    for _ in range(repeats):
        at_client, at_server = session(terms, width, gone)
        for found, into in ((at_client, client_ms), (at_server, server_ms)):
            for name, times in found.times.items():
                # A step of the server is for all clients together.
                into.setdefault(name, []).extend(times if into is client_ms else [sum(times)])
        totals.append([sum(sum(times) for times in at_server.times.values())])
        averaged, _ = clear_average(staying, width)
        clear.append(averaged)
    sizes = terms.sizes(width)
    up = sum(sizes[kind] for kind in ("keys", "sealed_shares", "masked", "unmask"))
    down = sum(sizes[kind] for kind in ("all_keys", "forwarded_shares", "survivors"))
    milliseconds = {
        "client": {name: summary(client_ms[name]) for name in STEPS},
        "server": {name: summary(server_ms[name]) for name in SERVER_STEPS},
        "clear average": summary([ms for repeat in clear for ms in repeat]),
    }
    for place in ("client", "server"):
        line = ", ".join(f"{name} {times['median']:.1f}" for name, times in milliseconds[place].items())
        print(f"{gone} of {clients} clients dropped out, {place}: {line} ms (medians)", file=sys.stderr)
    return {
        "clients": clients,
        "parameters": width,
        "gone after sharing": gone,
        "threshold": terms.threshold,
        "milliseconds": milliseconds,
        "bytes of a client": {**sizes, "up": up, "down": down, "clear up": 4 * width, "clear down": 0},
        "ratios": {"server / clear average": ratio(totals, clear)},
    }


def check_training(graph: Graph, name: str, split: Any, clients: int, rounds: int) -> dict[str, float]:
    """Return the largest differences of the weights after some rounds, in float64."""
    method, inputs = get_method("fedavg"), make_inputs(graph, split, clients)
    with float64():
        found = {
            form: weights_of(run(method, inputs, config_of(method, rounds=rounds, **chosen)))
            for form, chosen in FORMS.items()
        }
    return {
        "secure and simulated": assert_equal(name, found["secure"], found["simulated"], 0.0),
        "secure and clear": assert_equal(name, found["secure"], found["clear"], 1e-4),
    }


def measure_training(graph: Graph, split: Any, clients: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Return the milliseconds of a scored round of FedAvg with each form, in turns."""
    method, inputs = get_method("fedavg"), make_inputs(graph, split, clients)
    times: dict[str, list[list[float]]] = {form: [] for form in FORMS}
    for _ in range(repeats):
        for form, chosen in FORMS.items():
            config = config_of(method, rounds=rounds + WARM_UP, **chosen)
            times[form].append(timed_run(method, inputs, config).rounds)
    milliseconds = {form: summary([ms for repeat in times[form] for ms in repeat]) for form in FORMS}
    for form in FORMS:
        print(
            f"fedavg, {form}: {milliseconds[form]['min']:.1f} / {milliseconds[form]['median']:.1f} ms",
            file=sys.stderr,
        )
    return {
        "milliseconds": milliseconds,
        "ratios": {
            f"{form} / clear": ratio(times[form], times["clear"]) for form in FORMS if form != "clear"
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "secure_aggregation")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    if options.tiny:
        clients, width, repeats, rounds = 5, 1000, 1, 2
        small = load("social", None, num_nodes=300)
        assert isinstance(small, Graph)
        graph, split, name = small, make_split(small, "random:0.5,0.25,0.25", 0), "social"
    else:
        clients, width, repeats, rounds = 50, 10**6, 3, 20
        graph, split, name = cora_or_social()
    # Those that stay must reach the threshold.
    gone = min(round(0.3 * clients), clients - Terms.usual("", clients).threshold)
    largest = float(numbers(0, width).abs().max())
    words = encode(numbers(0, width), clients)
    off = float((decode(words, torch.float64) - numbers(0, width).double()).abs().max())
    before = peak_rss_mb()
    session(Terms.usual("warm-up", clients), width, 0)
    peak = {"imports": before, "a session of all clients": peak_rss_mb()}
    found = [measure_round(clients, width, dropped, repeats) for dropped in (0, gone)]
    clients = 5 if options.tiny else 10
    training = {
        "graph": name,
        "clients": clients,
        "largest_differences": check_training(graph, name, split, clients, 5),
        **measure_training(graph, split, clients, rounds, repeats),
    }
    content = {
        "rounds": found,
        "peak_rss_mb": peak,
        "largest number": largest,
        "largest error of one number": off,
        "fedavg": training,
    }
    finish(options.out, began, load_before, content)


if __name__ == "__main__":
    main()

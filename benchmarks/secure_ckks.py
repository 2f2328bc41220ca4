"""Measure homomorphic encryption: a vector of Cora's 1 433 features, and FedGCN's exchange before training.

The vector is measured under both parameter sets, and the exchange is compared with the same exchange in
plaintext. Before measuring, the results of encryption, addition, multiplication and decryption must equal
those of plain arithmetic within the error that `graphfed.crypto.ckks` states; and the encrypted exchange must
give the sums of the plaintext one within the error of the grid, and those of its simulated form to the bit.
All clients run in one process and one thread; in a deployment they encrypt and decrypt at the same time."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from measure import (
    Inputs,
    add_common_options,
    cora_or_social,
    finish,
    load_average,
    make_inputs,
    ratio,
    summary,
)

from graphfed.crypto.ckks import PARAMETERS, Evaluator, Grid, KeyOwner
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.splits import make_split
from graphfed.federation import CLIENTS, Federation
from graphfed.federation.cohort import make_cohort
from graphfed.federation.payload import densify
from graphfed.methods.base import Task
from graphfed.methods.fedgcn import method as fedgcn
from graphfed.runtime.local import stacked

WIDTH = 1433


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call, and its result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def units(name: str, vectors: int, repeats: int) -> dict[str, Any]:
    """Return the milliseconds of each step for one vector, including reading and writing its bytes."""
    chosen = PARAMETERS[name]
    rng = np.random.default_rng(0)
    x = np.zeros((vectors, chosen.slots))
    x[:, :WIDTH] = rng.uniform(-1, 1, (vectors, WIDTH))
    if name == "sum":
        x = Grid(vectors).round(x)
    weights = sp.csr_matrix(rng.uniform(0.1, 1, (1, vectors)))
    times: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    errors: dict[str, float] = {}
    for _ in range(repeats):
        seconds, owner = timed(lambda: KeyOwner.make(name))
        evaluator = Evaluator.load(name, owner.public())
        steps = {"make a key": seconds}
        steps["encrypt"], sealed = timed(lambda h=owner: h.encrypt(x))
        steps["add"], total = timed(lambda e=evaluator, c=sealed: e.add(c, np.zeros(vectors, int), 1))
        steps["decrypt"], opened = timed(lambda h=owner, c=sealed: h.decrypt(c))
        sizes = {"ciphertext": sealed.shape[1], "secret": len(owner.secret())}
        errors = {"fresh": gap(opened, x), "sum": gap(owner.decrypt(total), x.sum(0))}
        allowed = {"fresh": 1e-5, "sum": 1e-5}
        if chosen.product_bytes is not None:
            steps["multiply and add"], product = timed(lambda e=evaluator, c=sealed: e.weighted(c, weights))
            sizes["product"] = product.shape[1]
            errors["weighted sum"] = gap(owner.decrypt(product), weights @ x)
            allowed["weighted sum"] = 2e-7 * vectors + 1e-8 * vectors
        assert all(errors[what] <= allowed[what] for what in errors), errors
        for step, spent in steps.items():
            each = spent if step == "make a key" else spent / vectors
            times.setdefault(step, []).append(each * 1e3)
    for step, found in times.items():
        print(f"{name}, {step}: {min(found):.2f} / {np.median(found):.2f} ms", file=sys.stderr)
    return {
        "milliseconds": {step: summary(found) for step, found in times.items()},
        "bytes": sizes,
        "largest_errors": errors,
        "vectors": vectors,
    }


def gap(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max())


def exchange(inputs: Inputs, way: str) -> tuple[float, list[torch.Tensor], Federation]:
    """Run the whole exchange with two hops, from the partial sums to the aggregates at the clients. Return
    its seconds, its result, and the federation with its ledger."""
    fed = stacked(inputs.partition.num_clients, simulated=way == "simulated")
    cohorts = [make_cohort(inputs.graph, inputs.split, inputs.partition, worker) for worker in fed.workers]
    data = fed.locate(CLIENTS, "data", cohorts)
    protection: Literal["plaintext", "encrypted"] = "plaintext" if way == "clear" else "encrypted"
    config = fedgcn.METHOD.configure({"exchange": protection})
    task = Task(inputs.graph.num_features, inputs.graph.num_classes)
    seconds, received = timed(lambda: fedgcn.exchange_sums(fed, data, task, config).parts[0])
    return seconds, [densify(received.sums), received.degree], fed


def exchanges(inputs: Inputs, repeats: int) -> dict[str, Any]:
    """Measure the exchange in all forms, in turns, after a check that they give the same result."""
    clients = inputs.partition.num_clients
    times: dict[str, list[list[float]]] = {"clear": [], "simulated": [], "encrypted": []}
    found: dict[str, list[torch.Tensor]] = {}
    sent: dict[str, int] = {}
    ciphertexts = 0
    for _ in range(repeats):
        for way, spent in times.items():
            seconds, found[way], fed = exchange(inputs, way)
            spent.append([seconds])
            sent[way] = fed.ledger.counted_bytes
            ciphertexts = (
                fed.ledger.bytes_of(f"{fedgcn.ENCRYPTED}/rows") // PARAMETERS["sum"].ciphertext_bytes
            )
        for real, ideal in zip(found["encrypted"], found["simulated"], strict=True):
            assert torch.equal(real, ideal), "encrypted and simulated sums differ"
        error = float((found["encrypted"][0] - found["clear"][0]).abs().max())
        assert error <= Grid(clients).error, f"sums are off by {error}"
        assert torch.equal(found["encrypted"][1], found["clear"][1]), "degrees differ"
    for way, spent in times.items():
        flat = [s for repeat in spent for s in repeat]
        print(f"{clients} clients, {way}: {min(flat):.2f} s, {sent[way]} bytes", file=sys.stderr)
    return {
        "clients": clients,
        "ciphertexts_up": ciphertexts,
        "bytes": sent,
        "bytes_encrypted_over_clear": round(sent["encrypted"] / sent["clear"], 2),
        "largest_error": error,
        "grid_error": Grid(clients).error,
        "seconds": {way: summary([s for r in spent for s in r]) for way, spent in times.items()},
        "ratio": {"encrypted / clear": ratio(times["encrypted"], times["clear"])},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "secure_ckks")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    if options.tiny:
        small = load("social", None, num_nodes=100)
        assert isinstance(small, Graph)
        graph, split, name, clients = small, make_split(small, "random:0.5,0.25,0.25", 0), "social", (3,)
    else:
        graph, split, name = cora_or_social()
        clients = (3, 10)
    vectors, repeats = (5, 1) if options.tiny else (169, 5)
    content = {
        "units": {key: units(key, vectors, repeats) for key in PARAMETERS},
        "graph": name,
        "exchanges": [exchanges(make_inputs(graph, split, k), 1 if options.tiny else 3) for k in clients],
    }
    finish(options.out, began, load_before, content)


if __name__ == "__main__":
    main()

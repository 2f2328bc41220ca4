"""Graphs with a node at each client, and the assignment of their edges, in any placement."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from graphfed.federation import CLIENTS, Federation, Ledger, Located
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.lumos.balancing import balance
from graphfed.methods.lumos.config import Balancing
from graphfed.runtime.processes import Workers


def pair_rows(fed: Federation, edges: np.ndarray, n: int) -> Located:
    """Return the neighbours of every client; client i has node i."""
    codes = np.sort(np.concatenate([edges[0] * n + edges[1], edges[1] * n + edges[0]]))
    own, other = codes // max(n, 1), codes % max(n, 1)
    parts = []
    for h in fed.here:
        first, last = fed.workers[h][0], fed.workers[h][-1]
        local_pairs = (own >= first) & (own <= last)
        parts.append(
            PairRows(torch.from_numpy(own[local_pairs] - first), torch.from_numpy(other[local_pairs]))
        )
    return fed.locate(CLIENTS, "pairs", parts)


@dataclass(frozen=True)
class Balanced:
    """The results of all workers, joined.

    Attributes:
        local: [2m] bool of the pairs (client, neighbour), sorted.
        remote: [2m] bool.
        outcomes: [n].
        histories: The history of every worker.
        counts: Rounds, comparisons made, and comparisons if all pairs compared again each time.
        ledger: The ledger.
    """

    local: list[bool]
    remote: list[bool]
    outcomes: list[int]
    histories: list[list[list[int]]]
    counts: tuple[int, int, int]
    ledger: dict[str, Any]

    def cover(self, edges: np.ndarray, n: int) -> np.ndarray:
        """The cover by edge, as in `assignment`, [2, m] bool."""
        codes = np.sort(np.concatenate([edges[0] * n + edges[1], edges[1] * n + edges[0]]))
        local = np.array(self.local, dtype=bool)
        return np.stack([local[np.searchsorted(codes, a * n + b)] for a, b in (edges, edges[::-1])])

    @property
    def maxima(self) -> list[int]:
        """The largest workload at the start and after every round."""
        return np.array(self.histories)[:, :, 0].max(0).tolist()


def run_here(
    edges: np.ndarray, workers: Sequence[Sequence[int]], simulated: bool = True, **settings: Any
) -> Balanced:
    """Run the balancer in this process."""
    fed = Federation(workers, simulated=simulated)
    return _joined([_run(fed, edges, settings)], fed.ledger.to_json())


def run_apart(edges: np.ndarray, clients: Workers, simulated: bool = True, **settings: Any) -> Balanced:
    """Run the balancer with one process for each worker."""
    arguments = {"edges": edges.tolist(), "settings": settings}
    places = [-1, *range(len(clients.workers))]
    results = clients.run("balanced_graphs:program", dict.fromkeys(places, arguments), simulated=simulated)
    ledger = Ledger.from_json(json.loads(results[-1]["ledger"]))
    for h in places[1:]:
        ledger.add_remote(Ledger.from_json(json.loads(results[h]["ledger"])))
    workers = [results[h] for h in places[1:]]
    workers[0]["candidate_pairs"] = results[-1]["candidate_pairs"]
    return _joined(workers, ledger.to_json())


def program(fed: Federation, arguments: dict[str, Any], log: Any) -> dict[str, Any]:
    edges = np.array(arguments["edges"], dtype=np.int64).reshape(2, -1)
    return {**_run(fed, edges, arguments["settings"]), "ledger": json.dumps(fed.ledger.to_json())}


def _run(fed: Federation, edges: np.ndarray, settings: dict[str, Any]) -> dict[str, Any]:
    rows = pair_rows(fed, edges, fed.num_clients)
    chosen = {name: value for name, value in settings.items() if name != "seed"}
    result = balance(fed, rows, Balancing(**chosen), settings.get("seed", 0))
    fields = ("local", "remote", "outcomes", "history")
    return {
        "counts": [result.rounds, result.calls],
        "candidate_pairs": [int(part) for part in result.candidate_pairs.parts],
        "parts": [[getattr(k, f).tolist() for f in fields] for k in fed.local_parts(result.assignment)],
    }


def _joined(results: list[dict[str, Any]], ledger: dict[str, Any]) -> Balanced:
    parts = [part for result in results for part in result["parts"]]
    local, remote, outcomes = ([x for part in parts for x in part[i]] for i in range(3))
    ((rounds, calls),) = {tuple(result["counts"]) for result in results}
    (candidate_pairs,) = (arguments for result in results for arguments in result["candidate_pairs"])
    counts = (rounds, sum(outcomes) // 2, calls * (len(local) // 2) + candidate_pairs)
    return Balanced(local, remote, outcomes, [part[3] for part in parts], counts, ledger)

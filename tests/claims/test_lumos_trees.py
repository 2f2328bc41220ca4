"""Claims on real graphs: who keeps which edge in Lumos. The anchors are those of the paper's algorithms,
worked out independently (largest workload, kept pairs and candidates of Alg. 1), and the exact optimum with
its certificate."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.federation import CLIENTS
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.lumos.assignment import optimum
from graphfed.methods.lumos.balancing import balance
from graphfed.methods.lumos.config import Balancing
from graphfed.methods.lumos.mcmc import Assignment, Balance
from graphfed.runtime.local import stacked

pytestmark = pytest.mark.slow

#: Exact optimum; Alg. 1: largest workload, kept pairs, candidates.
ANCHORS = {"lastfm": (15, 49, 35_511, 541), "facebook": (37, 96, 224_056, 1157)}


@pytest.fixture(scope="module", params=list(ANCHORS))
def graph(request: pytest.FixtureRequest, real_data: Path) -> Graph:
    return load(request.param, real_data, structure_only=True)


def balanced(graph: Graph, seed: int = 0, **settings: Any) -> tuple[Balance, Assignment, PairRows]:
    """A device for every node, all in one cohort."""
    own, other = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
    order = np.lexsort((other, own))
    rows = PairRows(torch.from_numpy(own[order]), torch.from_numpy(other[order]))
    fed = stacked(graph.num_nodes, simulated=True)
    found = balance(fed, fed.locate(CLIENTS, "pairs", [rows]), Balancing(**settings), seed)
    return found, found.assignment.parts[0], rows


def workloads(assignment: Assignment, rows: PairRows) -> torch.Tensor:
    return torch.bincount(rows.client[assignment.local])


def uncovered(assignment: Assignment) -> int:
    return int((~assignment.local & ~assignment.remote).sum())


def test_the_optimum_has_a_dense_part_that_proves_it(graph: Graph) -> None:
    found = optimum(graph.edges, graph.num_nodes)
    assert found.maximum == ANCHORS[graph.name][0]
    assert np.bincount(found.assignee).max() == found.maximum
    inside = (found.dense[graph.edges[0]] & found.dense[graph.edges[1]]).sum()
    assert inside > (found.maximum - 1) * found.dense.sum()


def test_alg_1_has_the_largest_workload_pairs_and_candidates_that_were_worked_out(graph: Graph) -> None:
    _, most, pairs, candidates = ANCHORS[graph.name]
    _, assignment, rows = balanced(graph, balancer="greedy")
    load = workloads(assignment, rows)
    assert (int(load.max()), int(assignment.local.sum())) == (most, pairs)
    beaten = torch.zeros(graph.num_nodes, dtype=torch.bool)
    beaten[rows.client[load[rows.client] < load[rows.other]]] = True
    assert int((~beaten).sum()) == candidates
    assert uncovered(assignment) == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_local_rule_reaches_the_exact_optimum(graph: Graph, seed: int) -> None:
    found, assignment, rows = balanced(graph, seed=seed)
    assert int(workloads(assignment, rows).max()) == ANCHORS[graph.name][0]
    assert (assignment.local ^ assignment.remote).all()
    made, all_again = found.comparisons()
    assert made < all_again / 2


@pytest.mark.parametrize(
    ("data", "steps", "reached"), [("lastfm", 300, range(21, 24)), ("facebook", 100, None)]
)
def test_the_papers_search_stays_far_above_the_optimum_with_less_than_a_twentieth_of_its_comparisons(
    data: str, steps: int, reached: range | None, real_data: Path
) -> None:
    """LastFM's T is 300, where 22 was worked out; Facebook's is 1000, and takes longer."""
    graph = load(data, real_data, structure_only=True)
    found, assignment, rows = balanced(graph, balancer="mcmc", mcmc_steps=steps)
    best, most, *_ = ANCHORS[data]
    largest = int(workloads(assignment, rows).max())
    assert largest == int(assignment.history[:, 0].min())
    assert largest in (reached or range(best + 10, most))
    assert uncovered(assignment) == 0
    made, all_again = found.comparisons()
    assert made * 20 < all_again

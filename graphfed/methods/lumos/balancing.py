"""Assign every edge of a graph to a client that trains on it: programs over places, for clients with one
node each.

    balancer   clients that train on edge (u, v)                               participants
    none       both                                                            none
    greedy     Alg. 1: the one with the smaller round(ln deg); both if equal   neighbours
    local      one, by Alg. 1 and a random draw; edges then move on            neighbours, server (the end)
    mcmc       Alg. 1, then Alg. 2 and 3 (`mcmc`)                              neighbours, candidates, server
    oracle     one, by an exact solution of Eq. (10)                           server, which learns the graph

The local rule is ours. In every round each client u that has the edge (u, v) learns by a secure comparison
whether wl(u) > wl(v) + 1; if so, u may pass the edge to v. Each client offers one such edge and accepts one
offer, both drawn at random. Only pairs with a changed workload compare again. Every client sends the server
one byte, whether it can still offer an edge, and the rounds end when no client can. In the `shuffle_rounds`
rounds that follow, wl(u) > wl(v) is enough. docs/papers/lumos.md ("Our local rule") has the proof that the
rounds end and that the largest workload never rises.

With fill_trees, also ours, the server then finds the largest workload M, bit by bit: it asks all clients
whether they have at least so many edges. Every client takes edges that only its neighbours have into its tree
too, drawn at random, until it has M or no such edge is left. The largest workload stays M.

What the participants learn. Both clients of a comparison learn its outcome and nothing else, but outcomes add
up. Alg. 1 shows neighbours which of them has the larger rounded log-degree, or that they are equal. The local
rule gives a client a bound on its neighbour's workload; over many rounds it may learn both bounds, and so the
number itself, and the degree is at least the workload. A client learns in which rounds the workload of a
neighbour has changed. The server learns in every round which clients can still offer an edge, and nothing
about who is whose neighbour. With fill_trees everyone learns M, and the server which clients have at least as
many edges as each number that it asks for. A client learns which of its neighbours take an edge of its own
too; one that does not has M edges, and so more than M neighbours.

With protocols=simulated the process compares the numbers in plaintext: the outcomes and the bytes on the
ledger are the same, and nothing is protected.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphfed.crypto.accept import MAX_BITS
from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.functions import constant
from graphfed.federation.route import RouteTable, RowIds
from graphfed.federation.secure.compare import compare_pairs
from graphfed.federation.secure.notifications import notify
from graphfed.federation.secure.pair_transfers import send
from graphfed.federation.secure.pairs import Pairs, open_pairs
from graphfed.methods.lumos import mcmc
from graphfed.methods.lumos.assignment import optimum, pair_draws
from graphfed.methods.lumos.config import Balancing
from graphfed.methods.lumos.mcmc import Assignment, Balance, Neighbours, history_row
from graphfed.random import fold


def balance(fed: Federation, rows: Located, balancing: Balancing, seed: int) -> Balance:
    """Agree which client trains on which edge, or which two do. rows: `PairRows` at the clients: the
    neighbours of each client.

    Raises:
        InputError: A client has 2^degree_bits neighbours or more, or acceptance=hidden is set with more bits
            than its protocol takes.
    """
    bits = balancing.degree_bits
    if (balancing.balancer, balancing.acceptance) == ("mcmc", "hidden") and bits > MAX_BITS:
        raise InputError(
            f"acceptance=hidden takes at most {MAX_BITS} bits, not degree_bits={bits}; "
            f"use degree_bits={MAX_BITS}, acceptance=opened or another balancer"
        )
    # Every balancer starts from these; only fill_trees comes after all of them.
    neighbours = fed.clients.run(mcmc.make_neighbours, rows, fed.client_ids(), fed.num_clients)
    balanced = run_balancer(fed, rows, neighbours, balancing, seed)
    if not balancing.fill_trees:
        return balanced
    return replace(balanced, assignment=fill_trees(fed, rows, neighbours, balanced.assignment, bits, seed))


def run_balancer(
    fed: Federation, rows: Located, neighbours: Located, balancing: Balancing, seed: int
) -> Balance:
    """Assign every edge by the balancer of the settings."""
    if balancing.balancer == "none":
        return Balance(fed.clients.run(assign_to_both, neighbours), 0, 0, fed.server.run(constant, 0))
    if balancing.balancer == "oracle":
        assignment = ask_oracle(fed, neighbours)
        return Balance(assignment, 0, 0, fed.server.run(constant, 0))
    pairs = open_pairs(fed, rows, name="balance")
    # Alg. 1, l. 3: the start of all three balancers that follow
    order = mcmc.compare_degrees(fed, neighbours, pairs, balancing)
    if balancing.balancer == "greedy":
        assignment = fed.clients.run(assign_greedily, neighbours, order)
        return Balance(assignment, 0, 1, fed.server.run(constant, 0))
    if balancing.balancer == "mcmc":
        return mcmc.search(fed, neighbours, pairs, order, balancing, seed)
    return run_local_rule(fed, neighbours, pairs, order, balancing, seed)


def assign_to_both(neighbours: Neighbours) -> Assignment:
    """Put every edge into both trees, without any comparison (balancer=none)."""
    both = torch.ones_like(neighbours.other, dtype=torch.bool)
    return finished_at_once(neighbours, both, both, torch.zeros_like(neighbours.ids))


def assign_greedily(neighbours: Neighbours, order: Tensor) -> Assignment:
    """Assign every edge by Alg. 1, from the outcomes `order` [C] of comparing rounded log-degrees."""
    return finished_at_once(neighbours, *mcmc.greedy_assignment(order), neighbours.degree)


def finished_at_once(neighbours: Neighbours, local: Tensor, remote: Tensor, outcomes: Tensor) -> Assignment:
    """Build an assignment that has no rounds."""
    workload = neighbours.count(local.nonzero()[:, 0])
    return Assignment(local, remote, outcomes, history_row(workload, outcomes)[None])


# ---- the local rule ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RuleState:
    """State of the local rule between two rounds, at a cohort's clients.

    Attributes:
        local: [C] bool: whether the edge is assigned to this client.
        movable: [C] bool: whether the last comparison allows the client that has the edge to pass it on.
        workload: [K] int64: number of edges assigned to each client.
        outcomes: [K] int64: outcomes of comparisons that each client has learned.
        changed: [K] bool: whether the workload has changed since the neighbours last compared with it.
    """

    local: Tensor
    movable: Tensor
    workload: Tensor
    outcomes: Tensor
    changed: Tensor


def run_local_rule(
    fed: Federation, neighbours: Located, pairs: Pairs, order: Located, balancing: Balancing, seed: int
) -> Balance:
    """Run the local rule: up to `balance_rounds` rounds until no client can offer an edge, then
    `shuffle_rounds` more.
    """
    state = fed.clients.run(assign_initially, neighbours, order, seed)
    history = [fed.clients.run(rule_history, state)]
    calls = 1
    for round_number in range(1, balancing.balance_rounds + 1):
        fed.begin(f"balancing the trees: round {round_number}, at most {balancing.balance_rounds}")
        state = compare_workloads(
            fed, neighbours, pairs, state, balancing, margin=1, all_pairs=round_number == 1
        )
        calls += 1
        if not any_client(fed, fed.clients.run(can_offer, neighbours, state), "balance/can_give"):
            break
        state = exchange_offers(fed, neighbours, pairs, state, seed, round_number)
        history.append(fed.clients.run(rule_history, state))
    for more in range(balancing.shuffle_rounds):
        fed.begin(f"balancing the trees: shuffling round {more + 1} of {balancing.shuffle_rounds}")
        state = compare_workloads(fed, neighbours, pairs, state, balancing, margin=0, all_pairs=more == 0)
        calls += 1
        state = exchange_offers(fed, neighbours, pairs, state, seed, len(history))
        history.append(fed.clients.run(rule_history, state))
    assignment = fed.clients.run(finish_local_rule, state, *history)
    return Balance(assignment, len(history) - 1, calls, fed.server.run(constant, 0))


def assign_initially(neighbours: Neighbours, order: Tensor, seed: int) -> RuleState:
    """Assign each edge to the client with the smaller round(ln deg); if they are equal, a draw of the pair
    decides.
    """
    client_id = neighbours.ids[neighbours.client]
    low, high = torch.minimum(client_id, neighbours.other), torch.maximum(client_id, neighbours.other)
    lower_takes = pair_draws(fold(seed, "balance", "tie"), low, high, neighbours.num_clients) < 0.5
    # Both clients draw the same number, keyed by the smaller id first, so they agree without a message.
    local = torch.where(order == 0, lower_takes == (client_id == low), order < 0)
    workload = neighbours.count(local.nonzero()[:, 0])
    changed = torch.ones_like(workload, dtype=torch.bool)
    return RuleState(local, torch.zeros_like(local), workload, neighbours.degree, changed)


def compare_workloads(
    fed: Federation,
    neighbours: Located,
    pairs: Pairs,
    state: Located,
    balancing: Balancing,
    *,
    margin: int,
    all_pairs: bool,
) -> Located:
    """Compare the workloads of pairs in which one has changed, or of all pairs: the edge may be passed from u
    to v if wl(u) > wl(v) + margin.
    """
    if all_pairs or balancing.compare_again == "all":
        which = fed.clients.run(mcmc.all_rows, neighbours)
    else:
        local_rows = fed.clients.run(
            mcmc.rows_changed, neighbours, fed.clients.run(getattr, state, "changed")
        )
        remote_rows = notify(fed, pairs, local_rows, name="balance/changed")
        which = fed.clients.run(mcmc.union, local_rows, remote_rows)
    numbers, asks = fed.clients.run(comparison_operands, neighbours, state, which, margin, outputs=2)
    outcome = compare_pairs(
        fed,
        pairs,
        numbers,
        which,
        asker=asks,
        bits=balancing.degree_bits,
        reveal="greater",
        name="balance/workloads",
    )
    return fed.clients.run(record_outcomes, neighbours, state, which, outcome)


def comparison_operands(
    neighbours: Neighbours, state: RuleState, which: Tensor, margin: int
) -> tuple[Tensor, Tensor]:
    """Return what each client enters into the comparisons `which` [p], and whether it has the edge.

    The client u that has the edge enters wl(u), the other client v enters wl(v) + margin.
    """
    # Exactly one client of an edge has it, so exactly one asks.
    asks = state.local[which]
    return state.workload[neighbours.client[which]] + (~asks).long() * margin, asks


def record_outcomes(neighbours: Neighbours, state: RuleState, which: Tensor, outcome: Tensor) -> RuleState:
    """Record for the rows `which` [p] whether the edge may be passed on: outcome > 0 means wl(u) > wl(v) +
    margin.
    """
    movable = state.movable.clone()
    # Both clients learn the outcome, so the neighbour knows from whom an offer may come.
    movable[which] = outcome > 0
    outcomes = state.outcomes + neighbours.count(which)
    return replace(state, movable=movable, outcomes=outcomes, changed=torch.zeros_like(state.changed))


def can_offer(neighbours: Neighbours, state: RuleState) -> Tensor:
    """Return for each client whether it has an edge that it may pass on, [K] uint8."""
    return (neighbours.count((state.movable & state.local).nonzero()[:, 0]) > 0).byte()


def any_client(fed: Federation, answers: Located, name: str) -> bool:
    """Send every client's answer [K] to the server, and return whether any is yes."""
    gathered = fed.gather(answers, name=name, grad=False)
    return bool(fed.control(read_answers, gathered, values={"any": bool})["any"])


def read_answers(answers: Tensor) -> dict[str, Any]:
    """Decide at the server whether any client has answered yes."""
    return {"any": bool(answers.any())}


def exchange_offers(
    fed: Federation, neighbours: Located, pairs: Pairs, state: Located, seed: int, round_number: int
) -> Located:
    """Run the second half of a round: clients offer edges, accept offers, and move the accepted edges."""
    chosen, messages, local_rows, remote_rows = fed.clients.run(
        draw_offers, neighbours, state, seed, round_number, outputs=4
    )
    offers = send(fed, pairs, messages, local_rows, remote_rows, name="balance/offers")
    taken, messages, offered = fed.clients.run(
        accept_offers, neighbours, offers, remote_rows, seed, round_number, outputs=3
    )
    answers = send(fed, pairs, messages, offered, chosen, name="balance/answers")
    return fed.clients.run(move_edges, neighbours, state, chosen, answers, taken)


def draw_offers(
    neighbours: Neighbours, state: RuleState, seed: int, round_number: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw one edge for each client that may pass one on.

    Returns:
        The drawn rows; the messages [p] uint8 (1: this edge is offered); the rows [p] of the movable edges of
        these clients, which the messages are about; and the rows whose neighbours send such a message to
        these clients.
    """
    local_rows = (state.movable & state.local).nonzero()[:, 0]
    remote_rows = (state.movable & ~state.local).nonzero()[:, 0]
    draws = neighbours.draws(fold(seed, "balance", "offer", round_number), local_rows)
    chosen = neighbours.best_of_each(local_rows, draws)
    # Neighbours expect a message about every movable edge, also if nothing is offered.
    return chosen, torch.isin(local_rows, chosen).byte(), local_rows, remote_rows


def accept_offers(
    neighbours: Neighbours, offers: Tensor, remote_rows: Tensor, seed: int, round_number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one of the offers that each client has received.

    Returns:
        The accepted rows; the answers [q] uint8 (1: accepted) to all clients that made an offer; and the rows
        of these answers.
    """
    offered = remote_rows[offers > 0]
    draws = neighbours.draws(fold(seed, "balance", "take", round_number), offered)
    taken = neighbours.best_of_each(offered, draws)
    return taken, torch.isin(offered, taken).byte(), offered


def move_edges(
    neighbours: Neighbours, state: RuleState, chosen: Tensor, answers: Tensor, taken: Tensor
) -> RuleState:
    """Move the edges whose offers are accepted, and compute the new workloads."""
    moved_away = chosen[answers > 0]
    local, movable = state.local.clone(), state.movable.clone()
    local[moved_away], local[taken] = False, True
    # The client that has just taken an edge had the smaller workload, so it may not pass the edge back. If a
    # workload has changed, the next comparison decides again.
    movable[moved_away] = movable[taken] = False
    # A client takes at most one edge, from a neighbour with a larger workload: the largest never rises.
    workload = state.workload - neighbours.count(moved_away) + neighbours.count(taken)
    return RuleState(local, movable, workload, state.outcomes, workload != state.workload)


def rule_history(state: RuleState) -> Tensor:
    """Return the history row of the current state."""
    return history_row(state.workload, state.outcomes)


def finish_local_rule(state: RuleState, *history: Tensor) -> Assignment:
    """Build the assignment of the last state: every edge is in exactly one tree."""
    return Assignment(state.local, ~state.local, state.outcomes, torch.stack(history))


# ---- filling trees -----------------------------------------------------------------------------------------


def fill_trees(
    fed: Federation, rows: Located, neighbours: Located, assignment: Located, degree_bits: int, seed: int
) -> Located:
    """Let every client take further edges into its tree, up to the largest workload of the assignment."""
    largest = 0
    # A binary search, from the highest bit: every question costs one byte of each client.
    # The number of questions does not depend on the answers.
    for bit in reversed(range(degree_bits)):
        answers = fed.clients.run(has_workload, neighbours, assignment, largest + 2**bit)
        if any_client(fed, answers, "balance/has_workload"):
            largest += 2**bit
    added = fed.clients.run(draw_additions, neighbours, assignment, largest, seed)
    arrived = notify(fed, open_pairs(fed, rows, name="balance"), added, name="balance/additions")
    return fed.clients.run(add_edges, assignment, added, arrived)


def has_workload(neighbours: Neighbours, assignment: Assignment, least: int) -> Tensor:
    """Return for each client whether its workload is at least `least`, [K] uint8."""
    return (neighbours.count(assignment.local.nonzero()[:, 0]) >= least).byte()


def draw_additions(neighbours: Neighbours, assignment: Assignment, largest: int, seed: int) -> Tensor:
    """Draw the edges that each client takes into its tree too, as rows in ascending order: as many of those
    that only the neighbour has as leave its workload at most `largest`.
    """
    # Never negative: `largest` is the maximum over all clients.
    room = largest - neighbours.count(assignment.local.nonzero()[:, 0])
    rows = (~assignment.local).nonzero()[:, 0]
    order = neighbours.draws(fold(seed, "balance", "fill"), rows).argsort(descending=True, stable=True)
    rows_by_draw = rows[order[neighbours.client[rows[order]].argsort(stable=True)]]
    client, count = neighbours.client[rows_by_draw], neighbours.count(rows)
    rank = torch.arange(len(rows), device=rows.device) - (count.cumsum(0) - count)[client]
    added: Tensor = rows_by_draw[rank < room[client]].sort().values
    return added


def add_edges(assignment: Assignment, added: Tensor, arrived: Tensor) -> Assignment:
    """Add the edges that clients take too: `added` of these clients, `arrived` of their neighbours."""
    local, remote = assignment.local.clone(), assignment.remote.clone()
    local[added] = remote[arrived] = True
    return replace(assignment, local=local, remote=remote)


# ---- the oracle --------------------------------------------------------------------------------------------


def ask_oracle(fed: Federation, neighbours: Located) -> Located:
    """Let the server, which learns the whole graph, assign the edges."""
    route = fed.route(fed.clients.run(neighbour_ids, neighbours), name="balance/neighbours")
    answers = fed.scatter(
        fed.server.run(solve_exactly, fed.table(route)),
        route,
        name="balance/assignments",
        grad=False,
        like=TensorForm(torch.uint8),
    )
    return fed.clients.run(adopt_assignment, neighbours, answers)


def neighbour_ids(neighbours: Neighbours) -> RowIds:
    """Return every client's neighbours, for the server."""
    return RowIds(neighbours.other, neighbours.client)


def solve_exactly(table: RouteTable) -> Tensor:
    """Solve problem (10) at the server: for every row (u, v) that has arrived 1 where the edge is assigned to
    u and 0 where it is assigned to v, [M] uint8.
    """
    client_id, other = table.client, table.ids[table.index]
    low, high = torch.minimum(client_id, other), torch.maximum(client_id, other)
    num_clients = int(high.max()) + 1 if len(high) else 0
    # Both clients of an edge have sent it; the solver gets it once.
    codes, edge = torch.unique(low * num_clients + high, return_inverse=True)
    edges = torch.stack([codes // max(num_clients, 1), codes % max(num_clients, 1)])
    assignee = torch.from_numpy(optimum(edges.cpu().numpy(), num_clients).assignee).to(client_id.device)
    return (assignee[edge] == client_id).byte()


def adopt_assignment(neighbours: Neighbours, answers: Tensor) -> Assignment:
    """Build the assignment from the server's answers [C]."""
    local = answers > 0
    return finished_at_once(neighbours, local, ~local, torch.zeros_like(neighbours.ids))


#: The transfers below that a client sends to some or all of its neighbours.
BETWEEN_NEIGHBOURS = (
    "balance/session",
    "balance/degrees/compare",
    "balance/workloads/compare",
    "balance/changed",
    "balance/offers",
    "balance/answers",
    "balance/proposals",
    "balance/additions",
)
#: What the report says of every transfer: who sends what to whom, and who can read it.
MESSAGES: dict[str, str] = {
    "balance/session": "Neighbours send each other the key material of their secure comparisons, once. It "
    "contains nothing about their numbers.",
    "balance/degrees/compare": "Neighbours run a secure comparison of their rounded log-degrees, once. Both "
    "learn which of the two is larger, or that they are equal, and nothing else.",
    "balance/workloads/compare": "Neighbours run a secure comparison of their workloads (the numbers of "
    "edges assigned to them) if one has changed. Both learn whether one is larger than the other "
    "(balancer=local: larger by two), and nothing else. Outcomes of many rounds narrow down the other's "
    "workload, which its degree is not below.",
    "balance/changed": "A client whose workload has changed tells all its neighbours that it has changed. "
    "They do not learn the workload.",
    "balance/can_give": "With balancer=local, in every round every client sends the server one byte: whether "
    "it could still pass an edge on. The server reads it and detects the end.",
    "balance/offers": "With balancer=local a client offers an edge to one of its neighbours with a smaller "
    "workload, and sends the other such neighbours that it offers none. The neighbours read it.",
    "balance/answers": "With balancer=local a client answers every offer: whether it accepts the edge. The "
    "neighbour that made the offer reads it.",
    "balance/proposals": "With balancer=mcmc the client with the largest workload proposes to some of its "
    "neighbours that they train on the edge instead. They learn that it has the largest workload.",
    "balance/new_candidates": "With balancer=mcmc a client sends the server its id when its workload has "
    "become no smaller than that of any neighbour: it is a new candidate for the largest workload.",
    "balance/still_candidates": "With balancer=mcmc a client that is still such a candidate sends the server "
    "its id.",
    "balance/candidate_changes": "With balancer=mcmc the server sends every candidate that stays the ids of "
    "the candidates that have left and of those that are new.",
    "balance/candidate_list": "With balancer=mcmc the server sends every new candidate the ids of all "
    "candidates.",
    "balance/candidates/session": "With balancer=mcmc two candidates send each other the key material of "
    "their secure comparison. It contains nothing about their numbers.",
    "balance/candidates/compare": "With balancer=mcmc two candidates run a secure comparison of their "
    "workloads. Both learn which is larger, so each learns its rank among all candidates.",
    "balance/largest": "With balancer=mcmc a candidate that no other candidate exceeds sends the server its "
    "id.",
    "balance/chosen": "With balancer=mcmc the server answers each of these candidates whether it is the one "
    "that moves edges to its neighbours in this step.",
    "balance/counterparts": "With balancer=mcmc the server sends the ids of each other to the client that "
    "had the largest workload before the step, the one that has it after the step, and the one that had it "
    "in the best state so far, so that they can compare.",
    "balance/acceptance/session": "With balancer=mcmc two clients send each other the key material with "
    "which they decide together on a step. It contains nothing about their numbers.",
    "balance/acceptance/accept": "With acceptance=hidden two clients run a secure protocol on their "
    "workloads. Both learn whether the step is accepted, and nothing else.",
    "balance/acceptance": "With acceptance=opened the clients with the largest workload before and after the "
    "step send each other their workloads in plaintext.",
    "balance/accepted": "With balancer=mcmc the client that moved the edges sends the server whether the "
    "step is accepted. The server reads it.",
    "balance/best/session": "With balancer=mcmc two clients send each other the key material of their secure "
    "comparison. It contains nothing about their numbers.",
    "balance/best/compare": "With balancer=mcmc the client with the largest workload after the step, and the "
    "one that had it in the best state so far, run a secure comparison. Both learn whether the step has "
    "improved on the best state, and nothing else.",
    "balance/better": "With balancer=mcmc the client with the largest workload after the step sends the "
    "server whether the step has improved on the best state. The server reads it.",
    "balance/has_workload": "With fill_trees the server names a number of edges, once for each bit of "
    "degree_bits, and every client answers whether it has at least as many. The server reads the answers, "
    "and everyone learns the largest number of edges that a client has.",
    "balance/additions": "With fill_trees a client notifies each neighbour whose edge it takes into its tree "
    "too. The neighbour reads it. One that gets no notification learns that the client has the largest "
    "number of edges, and more neighbours than that.",
    "balance/neighbours": "With balancer=oracle, for evaluation only, every client sends the server the ids "
    "of its neighbours in plaintext. The server learns the whole graph.",
    "balance/assignments": "With balancer=oracle the server sends each client which of its edges are "
    "assigned to it.",
}

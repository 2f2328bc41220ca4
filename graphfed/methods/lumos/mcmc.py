"""The balancer of the paper: Alg. 1, then a search in steps (Alg. 2), which finds the client with the largest
workload by secure comparisons (Alg. 3).

    paper                       here
    N_u, wl(u)                  Chain.local, Chain.workload
    CVS                         Chain.candidate: clients whose workload no neighbour's exceeds
    Alg. 2                      search
    Alg. 3                      find_largest
    f(X_t) - f(X'_t), Eq. (18)  decide_step: u and u' learn whether the step is accepted
    T                           mcmc_steps

In a step the client u with the largest workload moves k of its edges to neighbours; u' is the client with the
largest workload afterwards; both decide whether the step is accepted. Comparisons are not repeated between
clients whose workloads have not changed since, neither along edges nor among candidates that stay candidates.
After a rejected step all clients return to what they knew before. compare_again=all repeats every comparison,
twice in a step, as the paper does; the result is the same.

What the participants learn beyond the comparisons along edges (see `balancing`). The server learns in every
step who the candidates are, which of them are largest, who u and u' are, and whether the step is accepted.
Candidates learn each other's ids and the order of their workloads. The clients that receive edges from u
learn that u has the largest workload. With acceptance=opened, as in the paper, u also learns f(X'_t).

Differs from the paper (docs/papers/lumos.md, "Differences from the paper", items 4 and 9): k is drawn from
1..max(1, round(ln wl(u))), because the paper's range is empty for a workload of 1; a client without
neighbours is no candidate; the best state is returned, for which u' and the client with the largest workload
of the best state so far compare once a step; a setting `temperature`.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.functions import column, constant
from graphfed.federation.route import Route, RouteTable
from graphfed.federation.secure.compare import at_most_pairs, compare_pairs
from graphfed.federation.secure.notifications import notify
from graphfed.federation.secure.pair_transfers import swap
from graphfed.federation.secure.pairs import PairRows, Pairs, open_pairs
from graphfed.methods.lumos.assignment import choose_among, is_accepted, number_of_moves
from graphfed.methods.lumos.candidates import (
    Chain,
    candidate_workloads,
    client_ids_of,
    every_row,
    largest_candidates,
    list_candidates,
    pairs_to_compare,
    record_comparisons,
    split_candidates,
    update_candidates,
    update_tables,
    workloads_of_rows,
)
from graphfed.methods.lumos.config import Balancing
from graphfed.methods.lumos.workload import (
    Assignment,
    Balance,
    Neighbours,
    all_rows,
    greedy_assignment,
    history_row,
    make_assignment,
    rows_changed,
    union,
)
from graphfed.random import fold

# ---- at the clients: moves ---------------------------------------------------------------------------------


def initial_chain(neighbours: Neighbours, order: Tensor) -> Chain:
    """Return the state that Alg. 1 gives. No workloads have been compared yet."""
    local, remote = greedy_assignment(neighbours, order)
    nothing = torch.zeros_like(neighbours.ids)
    return forget_comparisons(
        Chain(
            local,
            remote,
            torch.zeros_like(order),
            neighbours.count(local.nonzero()[:, 0]),
            *[nothing] * 6,
        ),
        neighbours,
    )


def forget_comparisons(chain: Chain, neighbours: Neighbours) -> Chain:
    """Drop every outcome of a comparison of workloads, so that all pairs compare again."""
    nothing = torch.zeros_like(neighbours.ids)
    no_candidate = torch.zeros_like(nothing, dtype=torch.bool)
    column_of = torch.full((neighbours.num_clients,), -1, device=nothing.device)
    less = torch.zeros(0, 0, dtype=torch.bool, device=nothing.device)
    order = torch.zeros_like(chain.order)
    return replace(
        chain,
        order=order,
        num_larger=nothing,
        candidate=no_candidate,
        column_of=column_of,
        row_of=nothing - 1,
        less=less,
        num_larger_candidates=nothing,
    )


def draw_moves(neighbours: Neighbours, chain: Chain, chosen: Tensor, seed: int, step: int) -> Tensor:
    """Draw the edges that u moves, as rows in ascending order. chosen: u as an index in the cohort, empty if
    u is in another cohort.
    """
    if not len(chosen):
        return chosen
    u = int(chosen)
    # Alg. 2, l. 3
    k = number_of_moves(seed, step, int(neighbours.ids[u]), int(chain.workload[u]))
    rows = neighbours.rows_of(chosen)
    rows = rows[chain.local[rows]]  # N_u
    # Alg. 2, l. 4
    draws = neighbours.draws(fold(seed, "balance", "neighbours", step), rows)
    return rows[draws.argsort(descending=True)[:k].sort().values]


def move_edges(
    neighbours: Neighbours, chain: Chain, moved_away: Tensor, received: Tensor
) -> tuple[Chain, Tensor]:
    """Apply Eq. (17): the rows `moved_away` leave N_u, and v takes u into N_v for the rows `received`.

    Returns:
        The proposed state X'_t, and whether each client's workload has changed, [K] bool.
    """
    local, remote = chain.local.clone(), chain.remote.clone()
    # Eq. (17); an edge in both trees leaves N_u only, since u is in N_v already.
    new = received[~local[received]]
    local[moved_away], remote[moved_away] = False, True
    local[received], remote[received] = True, False
    workload = chain.workload - neighbours.count(moved_away) + neighbours.count(new)
    proposal = replace(chain, local=local, remote=remote, workload=workload)
    return proposal, workload != chain.workload


# ---- at the server -----------------------------------------------------------------------------------------


def no_ids(device: str) -> Tensor:
    """Return an empty list of ids."""
    return torch.zeros(0, dtype=torch.int64, device=device)


def count_candidate_pairs(total: Tensor, now: Tensor) -> Tensor:
    """Add the number of pairs among all candidates to a total."""
    return total + len(now) * (len(now) - 1) // 2


def choose_largest(table: RouteTable, seed: int, step: int) -> Tensor:
    """Choose at random one of the clients with the largest workload (Alg. 3, l. 13): its id [1], or [0] if
    there is none.
    """
    return table.ids[choose_among(seed, step, table.ids)][None] if len(table.ids) else table.ids


def mark_chosen(table: RouteTable, one: Tensor) -> Tensor:
    """Mark which of the largest clients is the chosen one, [M] uint8."""
    return torch.isin(table.ids, one).byte()


def address_counterparts(table: RouteTable, one: Tensor, *others: Tensor) -> Tensor:
    """Address the ids of its counterparts to the chosen client, [M, p]; all other clients get -1."""
    return torch.where((table.ids == one)[:, None], torch.stack(others, 1), -1)


def has_candidates(now: Tensor) -> dict[str, Any]:
    """Decide whether there is anything to balance: a graph without edges has no candidate."""
    return {"goes_on": bool(len(now))}


def read_decision(accepted: Tensor, better: Tensor) -> dict[str, Any]:
    """Read whether the step is accepted and whether it gives the best state so far."""
    return {"accepted": bool(accepted.any()), "better": bool(better.any())}


def count_other_pairs(total: Tensor, u: Tensor, other: Tensor, best: Tensor) -> Tensor:
    """Add the comparisons of u with u' and of u' with the best state's client to a total; a client does not
    compare with itself.
    """
    return total + (u != other).long().sum() + (best != other).long().sum()


# ---- at the clients: the decision --------------------------------------------------------------------------


def select_marked(largest: Tensor, marks: Tensor) -> Tensor:
    """Return the clients that the server has marked."""
    return largest[marks > 0]


def form_pair(
    neighbours: Neighbours, asking: Tensor, counterpart: Tensor, asked: Tensor, asked_counterpart: Tensor
) -> tuple[PairRows, Tensor]:
    """Form the pair of two clients to which the server has sent each other's id.

    Args:
        asking: [a] clients of the cohort, one of which may be the one that asks.
        counterpart: [a] the id that each has received (-1: none).
        asked: [b] clients of the cohort, one of which may be the one that is asked.
        asked_counterpart: [b] the id that each has received.

    Returns:
        The pair, as a row at each of its two clients in this cohort, and whether the row's client asks. A
        client that has received its own id forms no pair.
    """
    client, other = torch.cat([asking, asked]), torch.cat([counterpart, asked_counterpart])
    asks = torch.arange(len(client), device=client.device) < len(asking)
    apart = (other >= 0) & (other != neighbours.ids[client])
    order = apart.nonzero()[:, 0]
    order = order[client[order].argsort()]
    return PairRows(client[order], other[order]), asks[order]


def pair_workloads(rows: PairRows, asks: Tensor, chain: Chain, other: Chain) -> Tensor:
    """Return the workload that each client of a pair enters: of the asking one in `chain`, of the other one
    in `other`.
    """
    return torch.where(asks, chain.workload[rows.client], other.workload[rows.client])


def report_acceptance(
    neighbours: Neighbours,
    chain: Chain,
    proposal: Chain,
    largest: Tensor,
    counterpart: Tensor,
    rows: PairRows,
    outcome: Tensor,
    key: int,
    temperature: float,
) -> Tensor:
    """Report for each of the largest clients whether it is u and the step is accepted, [a] uint8.

    If u is u' too, it decides alone.
    """
    accepted_rows = torch.zeros_like(neighbours.ids, dtype=torch.bool)
    accepted_rows[rows.client] = outcome > 0
    for u in largest[counterpart == neighbours.ids[largest]].tolist():  # one at most
        client_id, rise = int(neighbours.ids[u]), int(proposal.workload[u] - chain.workload[u])
        # Eq. (18)
        accepted_rows[u] = is_accepted(key, client_id, client_id, neighbours.num_clients, rise, temperature)
    return (accepted_rows[largest] & (counterpart >= 0)).byte()


def decide_openly(
    neighbours: Neighbours,
    rows: PairRows,
    asks: Tensor,
    own: Tensor,
    received: Tensor,
    key: int,
    temperature: float,
) -> Tensor:
    """Decide as in the paper: u receives f(X'_t) in plaintext and applies Eq. (18), [p] bool."""
    accepted_rows = torch.zeros_like(asks)
    for row in asks.nonzero()[:, 0].tolist():  # one at most
        u, other = int(neighbours.ids[rows.client[row]]), int(rows.other[row])
        rise = int(received[row] - own[row])
        # Eq. (18)
        accepted_rows[row] = is_accepted(key, u, other, neighbours.num_clients, rise, temperature)
    return accepted_rows


def report_improvement(
    neighbours: Neighbours,
    best: Chain,
    proposal: Chain,
    largest: Tensor,
    counterpart: Tensor,
    rows: PairRows,
    outcome: Tensor,
) -> Tensor:
    """Report for each of the largest clients after the step whether it is u' and the best state had a larger
    f, [b] uint8.
    """
    better = torch.zeros_like(neighbours.ids, dtype=torch.bool)
    better[rows.client] = outcome > 0
    alone = largest[counterpart == neighbours.ids[largest]]
    better[alone] = proposal.workload[alone] < best.workload[alone]
    return (better[largest] & (counterpart >= 0)).byte()


# ---- counts and history ------------------------------------------------------------------------------------


def count_pair_outcomes(outcomes: Tensor, rows: PairRows) -> Tensor:
    """Add the outcomes of some pairs to each client's count."""
    return outcomes + torch.bincount(rows.client, minlength=len(outcomes))


def count_outcomes(neighbours: Neighbours, outcomes: Tensor, which: Tensor) -> Tensor:
    """Add the outcomes of comparisons along the rows `which` to each client's count."""
    return outcomes + neighbours.count(which)


def has_neighbours(neighbours: Neighbours) -> Tensor:
    """Return which clients have neighbours, [K] bool."""
    return neighbours.degree > 0


def degrees(neighbours: Neighbours) -> Tensor:
    """Return the degrees, [K]: in Alg. 1 every client learns one outcome for each neighbour."""
    return neighbours.degree


def history_of(chain: Chain, outcomes: Tensor) -> Tensor:
    """Return the history row of a state."""
    return history_row(chain.workload, outcomes)


def finish_search(neighbours: Neighbours, best: Chain, outcomes: Tensor, *history: Tensor) -> Assignment:
    """Build the assignment of the best state."""
    return make_assignment(neighbours, best.local, best.remote, outcomes, *history)


# ---- the program -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Largest:
    """A state with its clients of largest workload, the result of Alg. 3.

    Attributes:
        chain: The `Chain` at the clients, with all outcomes of its comparisons.
        candidates: At the server: [n] ids of the candidates.
        largest: At the clients: the clients with the largest workload, as indices in the cohort.
        route: The route between these and the server.
    """

    chain: Located
    candidates: Located
    largest: Located
    route: Route


def search(
    fed: Federation, neighbours: Located, pairs: Pairs, order: Located, balancing: Balancing, seed: int
) -> Balance:
    """Run Alg. 2 from the state of Alg. 1 and return the best state.

    Args:
        neighbours: `Neighbours` at the clients.
        order: At the clients: [C] outcomes of comparing rounded log-degrees.

    Returns:
        The best state that the search has seen, and what it took.

    Raises:
        InputError: Too many candidates would have to compare with each other.

    Reference:
        Lumos, Alg. 2.
    """
    all_pairs = balancing.compare_again == "all"
    outcomes = fed.clients.run(degrees, neighbours)
    chain = fed.clients.run(initial_chain, neighbours, order)
    empty = fed.server.run(no_ids, str(fed.device))
    # Numbers of comparisons beyond those along edges, if every pair compared again each time.
    candidate_pairs = fed.server.run(constant, 0, str(fed.device))
    other_pairs = fed.server.run(constant, 0, str(fed.device))
    current, outcomes = find_largest(fed, neighbours, pairs, chain, None, empty, outcomes, balancing)
    history = [fed.clients.run(history_of, current.chain, outcomes)]
    best, calls = current, 1
    if not fed.control(has_candidates, current.candidates, values={"goes_on": bool})["goes_on"]:
        assignment = fed.clients.run(finish_search, neighbours, best.chain, outcomes, *history)
        return Balance(assignment, 0, 1, candidate_pairs)
    best_largest = fed.server.run(choose_largest, fed.table(current.route), seed, 0)
    for step in range(balancing.mcmc_steps):  # Alg. 2, l. 1
        fed.begin(f"balancing the trees: step {step + 1} of {balancing.mcmc_steps} of the Markov chain")
        if all_pairs and step:
            current, outcomes = find_largest(
                fed, neighbours, pairs, current.chain, None, empty, outcomes, balancing
            )
        candidate_pairs = fed.server.run(count_candidate_pairs, candidate_pairs, current.candidates)
        u = fed.server.run(choose_largest, fed.table(current.route), seed, 2 * step)  # l. 2
        marks = fed.server.run(mark_chosen, fed.table(current.route), u)
        marks = fed.scatter(
            marks, current.route, name="balance/chosen", grad=False, like=TensorForm(torch.uint8)
        )
        chosen = fed.clients.run(select_marked, current.largest, marks)
        moved_away = fed.clients.run(draw_moves, neighbours, current.chain, chosen, seed, step)  # l. 3-4
        received = notify(fed, pairs, moved_away, name="balance/proposals")
        moved, changed = fed.clients.run(  # l. 5
            move_edges, neighbours, current.chain, moved_away, received, outputs=2
        )
        since = None if all_pairs else changed
        known = empty if all_pairs else current.candidates
        proposed, outcomes = find_largest(  # l. 6
            fed, neighbours, pairs, moved, since, known, outcomes, balancing
        )
        candidate_pairs = fed.server.run(count_candidate_pairs, candidate_pairs, proposed.candidates)
        other = fed.server.run(choose_largest, fed.table(proposed.route), seed, 2 * step + 1)
        other_pairs = fed.server.run(count_other_pairs, other_pairs, u, other, best_largest)
        accepted, better, outcomes = decide_step(  # l. 7-8
            fed,
            neighbours,
            current,
            proposed,
            best,
            u,
            other,
            best_largest,
            outcomes,
            balancing,
            fold(seed, "balance", "accept", step),
        )
        decided = fed.control(read_decision, accepted, better, values={"accepted": bool, "better": bool})
        if decided["accepted"]:  # l. 8: X_{t+1} = X'_t, otherwise X_{t+1} = X_t
            current = proposed
            if decided["better"]:
                best, best_largest = proposed, other
        history.append(fed.clients.run(history_of, current.chain, outcomes))
        calls += 2
    assignment = fed.clients.run(finish_search, neighbours, best.chain, outcomes, *history)
    other_pairs = fed.server.run(torch.add, candidate_pairs, other_pairs)
    return Balance(assignment, balancing.mcmc_steps, calls, other_pairs)


def find_largest(
    fed: Federation,
    neighbours: Located,
    pairs: Pairs,
    chain: Located,
    changed: Located | None,
    before: Located,
    outcomes: Located,
    balancing: Balancing,
) -> tuple[Largest, Located]:
    """Find the clients with the largest workload (Alg. 3).

    Args:
        neighbours: `Neighbours` at the clients.
        changed: At the clients: [K] bool, whose workload has changed since `before`. None compares everything
            again.
        before: At the server: ids of the candidates of the state that this one follows.
        outcomes: At the clients: outcomes that each client has learned.

    Returns:
        The largest clients with the outcomes of all comparisons, and the outcomes that each client has
        learned.
    """
    if changed is None:
        chain = fed.clients.run(forget_comparisons, chain, neighbours)
        changed = fed.clients.run(has_neighbours, neighbours)
        which = fed.clients.run(all_rows, neighbours)
    else:
        local_rows = fed.clients.run(rows_changed, neighbours, changed)
        which = fed.clients.run(union, local_rows, notify(fed, pairs, local_rows, name="balance/changed"))
    # Alg. 3, l. 1-4 and 14-16: neighbours compare their workloads.
    numbers, bits = fed.clients.run(workloads_of_rows, neighbours, chain, which), balancing.degree_bits
    order = compare_pairs(fed, pairs, numbers, which, bits=bits, reveal="order", name="balance/workloads")
    outcomes = fed.clients.run(count_outcomes, neighbours, outcomes, which)
    chain, joined = fed.clients.run(update_candidates, neighbours, chain, which, order, outputs=2)
    new, staying = fed.clients.run(split_candidates, chain, joined, changed, outputs=2)
    # Alg. 3, l. 5-9: candidates report to the server, which sends them each other's ids.
    new_route = fed.route(fed.clients.run(client_ids_of, neighbours, new), name="balance/new_candidates")
    staying_route = fed.route(
        fed.clients.run(client_ids_of, neighbours, staying), name="balance/still_candidates"
    )
    now, changes, whole = fed.server.run(
        list_candidates, before, fed.table(staying_route), fed.table(new_route), outputs=3
    )
    changes = fed.download(
        changes,
        staying_route,
        name="balance/candidate_changes",
        grad=False,
        like=TensorForm(torch.int64, (None,)),
    )
    whole = fed.download(
        whole, new_route, name="balance/candidate_list", grad=False, like=TensorForm(torch.int64, (None,))
    )
    chain, meeting = fed.clients.run(update_tables, chain, new, staying, changes, whole, outputs=2)
    # Alg. 3, l. 10-12 and 17-18: candidates compare their workloads.
    rows = fed.clients.run(pairs_to_compare, neighbours, meeting)
    candidate_sessions = open_pairs(fed, rows, name="balance/candidates")
    order = compare_pairs(
        fed,
        candidate_sessions,
        fed.clients.run(candidate_workloads, chain, rows),
        fed.clients.run(every_row, rows),
        bits=bits,
        reveal="order",
        name="balance/candidates",
    )
    outcomes = fed.clients.run(count_pair_outcomes, outcomes, rows)
    chain = fed.clients.run(record_comparisons, chain, rows, order)
    largest = fed.clients.run(largest_candidates, chain)
    # Alg. 3, l. 13, is `choose_largest` at the server.
    route = fed.route(fed.clients.run(client_ids_of, neighbours, largest), name="balance/largest")
    return Largest(chain, now, largest, route), outcomes


def decide_step(
    fed: Federation,
    neighbours: Located,
    current: Largest,
    proposed: Largest,
    best: Largest,
    u: Located,
    other: Located,
    best_largest: Located,
    outcomes: Located,
    balancing: Balancing,
    key: int,
) -> tuple[Located, Located, Located]:
    """Decide whether a step is accepted, and whether it gives the best state so far (Alg. 2, l. 7-8).

    The server sends u, u' and the client with the largest workload of the best state (`best_largest`) the ids
    of each other. u reports the first decision, u' the second.

    Returns:
        Both decisions at the server, and the outcomes that each client has learned.
    """
    of_u = _send_counterparts(fed, current, u, other)
    of_other = _send_counterparts(fed, proposed, other, u, best_largest)
    of_best = _send_counterparts(fed, best, best_largest, other)
    u_of_other, best_of_other = (fed.clients.run(column, of_other, number) for number in (0, 1))
    counterpart = fed.clients.run(column, of_u, 0)
    rows, asks = fed.clients.run(
        form_pair, neighbours, current.largest, counterpart, proposed.largest, u_of_other, outputs=2
    )
    pair = open_pairs(fed, rows, name="balance/acceptance")
    which = fed.clients.run(every_row, rows)
    numbers = fed.clients.run(pair_workloads, rows, asks, current.chain, proposed.chain)
    # Eq. (18): in plaintext as in the paper, or by a protocol that opens only its outcome.
    if balancing.acceptance == "opened":
        received = swap(fed, pair, numbers, which, name="balance/acceptance", protection="plaintext")
        outcome = fed.clients.run(
            decide_openly, neighbours, rows, asks, numbers, received, key, balancing.temperature
        )
    else:
        outcome = at_most_pairs(
            fed,
            pair,
            numbers,
            which,
            asker=asks,
            bits=balancing.degree_bits,
            temperature=balancing.temperature,
            seed=key,
            name="balance/acceptance",
        )
    accepted = fed.clients.run(
        report_acceptance,
        neighbours,
        current.chain,
        proposed.chain,
        current.largest,
        counterpart,
        rows,
        outcome,
        key,
        balancing.temperature,
    )
    accepted = fed.upload(accepted, current.route, name="balance/accepted", grad=False)
    outcomes = fed.clients.run(count_pair_outcomes, outcomes, rows)

    # The best state so far: u' compares with the client that had the largest workload in it.
    counterpart = fed.clients.run(column, of_best, 0)
    rows, asks = fed.clients.run(
        form_pair, neighbours, best.largest, counterpart, proposed.largest, best_of_other, outputs=2
    )
    pair = open_pairs(fed, rows, name="balance/best")
    numbers = fed.clients.run(pair_workloads, rows, asks, best.chain, proposed.chain)
    outcome = compare_pairs(
        fed,
        pair,
        numbers,
        fed.clients.run(every_row, rows),
        asker=asks,
        bits=balancing.degree_bits,
        reveal="greater",
        name="balance/best",
    )
    better = fed.clients.run(
        report_improvement,
        neighbours,
        best.chain,
        proposed.chain,
        proposed.largest,
        best_of_other,
        rows,
        outcome,
    )
    better = fed.upload(better, proposed.route, name="balance/better", grad=False)
    return accepted, better, fed.clients.run(count_pair_outcomes, outcomes, rows)


def _send_counterparts(fed: Federation, state: Largest, one: Located, *others: Located) -> Located:
    """Send the ids of `others` to the client `one`, one of the largest clients of `state`."""
    counterpart = fed.server.run(address_counterparts, fed.table(state.route), one, *others)
    return fed.scatter(
        counterpart,
        state.route,
        name="balance/counterparts",
        grad=False,
        like=TensorForm(torch.int64, (len(others),)),
    )

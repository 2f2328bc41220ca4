"""The balancer of the paper: Alg. 1, then a search in steps (Alg. 2), which finds the client with the largest
workload by secure comparisons (Alg. 3).

    paper                       here
    N_u, wl(u)                  Chain.local, Chain.workload
    Alg. 1                      compare_degrees, greedy_assignment
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

Shapes: K clients in a cohort, C pairs (client, neighbour) in a cohort, the rows. Each edge between two
clients has two rows, one at each of them.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.functions import column, constant
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.federation.secure.compare import at_most_pairs, compare_pairs
from graphfed.federation.secure.notifications import notify
from graphfed.federation.secure.pair_transfers import swap
from graphfed.federation.secure.pairs import PairRows, Pairs, open_pairs
from graphfed.methods.lumos.assignment import choose_among, is_accepted, number_of_moves, pair_draws
from graphfed.methods.lumos.config import Balancing
from graphfed.random import fold

#: Pairs of candidates that may compare at a time: in one process they take about 8 GB.
MAX_PAIRS = 100_000_000

# ---- what every balancer starts from and returns -----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The rows (client, neighbour) of a cohort, sorted by client and then by neighbour.

    Attributes:
        client: [C] index in the cohort of each row's client.
        other: [C] id of each row's neighbour.
        start: [K + 1] the rows of client k are start[k] to start[k + 1] - 1.
        ids: [K] ids of the clients.
    """

    client: Tensor
    other: Tensor
    start: Tensor
    ids: Tensor
    num_clients: int

    @property
    def degree(self) -> Tensor:
        """Number of neighbours of each client, [K] int64."""
        return self.start.diff()

    def rows_of(self, clients: Tensor) -> Tensor:
        """Return the rows of some clients (indices in the cohort, ascending), ascending."""
        first, count = self.start[clients], self.degree[clients]
        shift = torch.repeat_interleave(first - count.cumsum(0) + count, count)
        rows: Tensor = shift + torch.arange(len(shift), device=shift.device)
        return rows

    def draws(self, key: int, rows: Tensor) -> Tensor:
        """Draw a number in [0, 1) for each of some rows, keyed by the ids of client and neighbour in this
        order.
        """
        return pair_draws(key, self.ids[self.client[rows]], self.other[rows], self.num_clients)

    def best_of_each(self, rows: Tensor, draws: Tensor) -> Tensor:
        """Return for each client with some of the rows the one with its largest draw; all ascending."""
        # Two stable sorts: by client, and within a client by draw. The last row of a client is the largest.
        order = draws.argsort(stable=True)
        order = order[self.client[rows[order]].argsort(stable=True)]
        client = self.client[rows[order]]
        last = torch.ones(len(order), dtype=torch.bool, device=order.device)
        last[:-1] = client[1:] != client[:-1]
        return rows[order[last]]

    def count(self, rows: Tensor) -> Tensor:
        """Count the given rows of each client, [K] int64."""
        return torch.bincount(self.client[rows], minlength=len(self.ids))


@dataclass(frozen=True, eq=False)
class Assignment:
    """The edges that a cohort's clients train on.

    Attributes:
        local: [C] bool: whether the neighbour is in this client's tree (v in N_u, x_(u,v) of Lumos, Eq. (9)).
        remote: [C] bool: whether this client is in the neighbour's tree (u in N_v, x_(v,u)).
        outcomes: [K] int64: how many outcomes of comparisons each client has learned.
        history: [R, 2] int64, at the start and after every round: the largest workload among these clients,
            and the outcomes that they have learned so far. It stays in the process that computes it and is
            never sent.
    """

    local: Tensor
    remote: Tensor
    outcomes: Tensor
    history: Tensor


@dataclass(frozen=True)
class Balance:
    """The result of a balancer.

    Attributes:
        assignment: An `Assignment` at the clients.
        rounds: Rounds (balancer=mcmc: steps) of balancing.
        calls: How often every edge would be compared if all pairs compared again each time.
        candidate_pairs: At the server: how many further comparisons between clients that need not be
            neighbours there would be then.
    """

    assignment: Located
    rounds: int
    calls: int
    candidate_pairs: Located

    def comparisons(self) -> tuple[int, int]:
        """Count the comparisons that were made, and those that would be made if every pair compared again
        each time.

        All places must be in this process: no single participant knows these numbers, and nothing is sent to
        learn them.
        """
        outcomes = sum(int(part.outcomes.sum()) for part in self.assignment.parts)
        edges = sum(len(part.local) for part in self.assignment.parts) // 2
        return outcomes // 2, self.calls * edges + int(self.candidate_pairs.parts[0])


def make_neighbours(rows: PairRows, ids: Tensor, num_clients: int) -> Neighbours:
    """Index sorted pairs (client, neighbour) by client; ids [K] are those of the cohort's clients."""
    counts = torch.bincount(rows.client, minlength=len(ids))
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Neighbours(rows.client, rows.other, start, ids, num_clients)


def all_rows(rows: Neighbours | PairRows) -> Tensor:
    """Number the rows, [C] int64."""
    return torch.arange(len(rows.client), device=rows.client.device)


def rows_changed(neighbours: Neighbours, changed: Tensor) -> Tensor:
    """Return the rows of the clients whose workload has changed, ascending."""
    return neighbours.rows_of(changed.nonzero()[:, 0])


def union(first: Tensor, other: Tensor) -> Tensor:
    """Return the rows that are in either of two lists, ascending and without repetition."""
    rows: Tensor = torch.unique(torch.cat([first, other]))
    return rows


def history_row(workload: Tensor, outcomes: Tensor) -> Tensor:
    """Return a row of `Assignment.history`."""
    return torch.stack([workload.max(), outcomes.sum()])


# ---- Alg. 1 ------------------------------------------------------------------------------------------------


def log_degrees(neighbours: Neighbours, degree_bits: int) -> Tensor:
    """Compute the rounded log-degree round(ln deg) of each row's client, [C] int64.

    Raises:
        InputError: A client has 2^degree_bits neighbours or more.
    """
    degree = neighbours.degree
    if len(degree) and int(degree.max()) >> degree_bits:
        # The message does not name the degree: comparisons protect it, and others may read the message.
        raise InputError(
            f"client {int(neighbours.ids[degree.argmax()])} has more than the {2**degree_bits - 1} "
            f"neighbours that degree_bits={degree_bits} allows; use a larger number (at most 31)"
        )
    # 0 without neighbours. float64, so that all participants round alike.
    return degree.clamp(min=1).double().log().round().long()[neighbours.client]


def compare_degrees(fed: Federation, neighbours: Located, pairs: Pairs, balancing: Balancing) -> Located:
    """Compare the rounded log-degrees of neighbours (Alg. 1, l. 3-4).

    At the clients: -1, 0 or 1, [C], where this client's is smaller than, equal to or larger than the
    neighbour's.
    """
    level = fed.clients.run(log_degrees, neighbours, balancing.degree_bits)
    which = fed.clients.run(all_rows, neighbours)
    bits = balancing.level_bits
    return compare_pairs(fed, pairs, level, which, bits=bits, reveal="order", name="balance/degrees")


def greedy_assignment(order: Tensor) -> tuple[Tensor, Tensor]:
    """Assign each edge to the client with the smaller rounded log-degree, with equal ones to both.

    order: [C] result of `compare_degrees`. Returns `Assignment.local` and `Assignment.remote`.
    """
    return order <= 0, order >= 0  # Alg. 1, l. 4-5, at both clients of the edge


# ---- at the clients: states and moves ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Chain:
    """A state X_t of the search, with what a cohort's clients know about it.

    Attributes:
        local: [C] bool: whether the edge is in this client's tree; see `Assignment`.
        remote: [C] bool: whether the edge is in the neighbour's tree.
        workload: [K] int64: number of edges in each client's tree.
        order: [C] int8: outcome of the last comparison of this client's workload with the neighbour's (-1, 0
            or 1).
        num_larger: [K] int64: neighbours with a larger workload.
        candidate: [K] bool: whether the client is in CVS: no neighbour has a larger workload.
        larger: Pairs of a candidate of the cohort and a candidate that has a larger workload, in any order.
    """

    local: Tensor
    remote: Tensor
    workload: Tensor
    order: Tensor
    num_larger: Tensor
    candidate: Tensor
    larger: PairRows


def uncompared(neighbours: Neighbours, local: Tensor, remote: Tensor) -> Chain:
    """Build the state of an assignment. No workloads have been compared yet."""
    nothing = torch.zeros_like(neighbours.ids)
    return Chain(
        local,
        remote,
        workload=neighbours.count(local.nonzero()[:, 0]),
        order=torch.zeros_like(local, dtype=torch.int8),
        num_larger=nothing,
        candidate=torch.zeros_like(nothing, dtype=torch.bool),
        larger=PairRows(nothing[:0], nothing[:0]),
    )


def initial_chain(neighbours: Neighbours, order: Tensor) -> Chain:
    """Return the state that Alg. 1 gives."""
    return uncompared(neighbours, *greedy_assignment(order))


def forget_comparisons(neighbours: Neighbours, chain: Chain) -> Chain:
    """Drop every outcome of a comparison of workloads, so that all pairs compare again."""
    return uncompared(neighbours, chain.local, chain.remote)


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
    # The k largest draws: k members without replacement
    return rows[draws.argsort(descending=True)[:k].sort().values]


def move_edges(
    neighbours: Neighbours, chain: Chain, moved_away: Tensor, received: Tensor
) -> tuple[Chain, Tensor]:
    """Apply Eq. (17): the rows `moved_away` leave N_u, and v takes u into N_v for the rows `received`.

    Returns the proposed state X'_t, and whether each client's workload has changed, [K] bool.
    """
    local, remote = chain.local.clone(), chain.remote.clone()
    # Eq. (17); an edge in both trees leaves N_u only, since u is in N_v already.
    new = received[~local[received]]
    local[moved_away], remote[moved_away] = False, True
    local[received], remote[received] = True, False
    workload = chain.workload - neighbours.count(moved_away) + neighbours.count(new)
    proposal = replace(chain, local=local, remote=remote, workload=workload)
    return proposal, workload != chain.workload


def chain_history(chain: Chain, outcomes: Tensor) -> Tensor:
    """Return the history row of a state."""
    return history_row(chain.workload, outcomes)


def finish_search(best: Chain, outcomes: Tensor, *history: Tensor) -> Assignment:
    """Build the assignment of the best state."""
    # The best state and not the last one: a step may raise the largest workload.
    return Assignment(best.local, best.remote, outcomes, torch.stack(history))


# ---- Alg. 2 ------------------------------------------------------------------------------------------------


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
    """Run Alg. 2 from the state of Alg. 1 and return the best state. order: result of `compare_degrees`.

    Raises:
        InputError: Too many candidates would have to compare with each other.
    """
    all_pairs = balancing.compare_again == "all"
    # In Alg. 1 every client has learned one outcome for each neighbour.
    outcomes = fed.clients.run(getattr, neighbours, "degree")
    chain = fed.clients.run(initial_chain, neighbours, order)
    empty = fed.server.run(no_ids, str(fed.device))
    # Number of comparisons beyond those along edges, if every pair compared again each time.
    other_pairs = fed.server.run(constant, 0, str(fed.device))
    current, outcomes = find_largest(fed, neighbours, pairs, chain, None, empty, outcomes, balancing)
    history = [fed.clients.run(chain_history, current.chain, outcomes)]
    # `calls` counts what the paper's search would compare; the ledger has what was compared.
    best, calls = current, 1
    if not fed.control(has_candidates, current.candidates, values={"goes_on": bool})["goes_on"]:
        assignment = fed.clients.run(finish_search, best.chain, outcomes, *history)
        return Balance(assignment, 0, 1, other_pairs)
    best_largest = fed.server.run(choose_largest, fed.table(current.route), seed, 0)
    for step in range(balancing.mcmc_steps):  # Alg. 2, l. 1
        fed.begin(f"balancing the trees: step {step + 1} of {balancing.mcmc_steps} of the Markov chain")
        if all_pairs and step:
            current, outcomes = find_largest(
                fed, neighbours, pairs, current.chain, None, empty, outcomes, balancing
            )
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
        # Two clients whose workloads have not changed know the outcome of comparing them already.
        since = None if all_pairs else changed
        known = empty if all_pairs else current.candidates
        proposed, outcomes = find_largest(  # l. 6
            fed, neighbours, pairs, moved, since, known, outcomes, balancing
        )
        other = fed.server.run(choose_largest, fed.table(proposed.route), seed, 2 * step + 1)
        other_pairs = fed.server.run(
            count_comparisons, other_pairs, current.candidates, proposed.candidates, u, other, best_largest
        )
        accepted, better, outcomes = decide_step(  # l. 7-8
            fed,
            neighbours,
            current,
            proposed,
            best,
            (u, other, best_largest),
            outcomes,
            balancing,
            fold(seed, "balance", "accept", step),
        )
        decided = fed.control(read_decision, accepted, better, values={"accepted": bool, "better": bool})
        if decided["accepted"]:  # l. 8: X_{t+1} = X'_t, otherwise X_{t+1} = X_t
            # After a rejected step `current` still has the outcomes that clients knew before it.
            current = proposed
            if decided["better"]:
                best, best_largest = proposed, other
        history.append(fed.clients.run(chain_history, current.chain, outcomes))
        calls += 2
    assignment = fed.clients.run(finish_search, best.chain, outcomes, *history)
    return Balance(assignment, balancing.mcmc_steps, calls, other_pairs)


def no_ids(device: str) -> Tensor:
    """Return an empty list of ids."""
    return torch.zeros(0, dtype=torch.int64, device=device)


def has_candidates(now: Tensor) -> dict[str, Any]:
    """Decide whether there is anything to balance: a graph without edges has no candidate."""
    return {"goes_on": bool(len(now))}


def choose_largest(table: RouteTable, seed: int, step: int) -> Tensor:
    """Choose at random one of the clients with the largest workload (Alg. 3, l. 13): its id [1], or [0] if
    there is none.
    """
    return table.ids[choose_among(seed, step, table.ids)][None] if len(table.ids) else table.ids


def mark_chosen(table: RouteTable, one: Tensor) -> Tensor:
    """Mark which of the largest clients is the chosen one, [M] uint8."""
    return torch.isin(table.ids, one).byte()


def select_marked(largest: Tensor, marks: Tensor) -> Tensor:
    """Return the clients that the server has marked."""
    return largest[marks > 0]


def count_comparisons(
    total: Tensor, before: Tensor, after: Tensor, u: Tensor, other: Tensor, best: Tensor
) -> Tensor:
    """Add the comparisons of a step in which every pair compares: those among the candidates before and
    after it, of u with u', and of u' with the best state's client. A client does not compare with itself.
    """
    among_candidates = sum(len(ids) * (len(ids) - 1) // 2 for ids in (before, after))
    return total + among_candidates + (u != other).long().sum() + (best != other).long().sum()


def read_decision(accepted: Tensor, better: Tensor) -> dict[str, Any]:
    """Read whether the step is accepted and whether it gives the best state so far."""
    return {"accepted": bool(accepted.any()), "better": bool(better.any())}


# ---- Alg. 3 ------------------------------------------------------------------------------------------------


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
        changed: At the clients: [K] bool, whose workload has changed since `before`. None compares everything
            again.
        before: At the server: ids of the candidates of the state that this one follows.
        outcomes: At the clients: [K] outcomes that each client has learned, which are returned with the new
            ones.
    """
    if changed is None:
        chain = fed.clients.run(forget_comparisons, neighbours, chain)
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
    form = TensorForm(torch.int64, (None,))
    changes = fed.download(changes, staying_route, name="balance/candidate_changes", grad=False, like=form)
    whole = fed.download(whole, new_route, name="balance/candidate_list", grad=False, like=form)
    chain, rows = fed.clients.run(meet_candidates, neighbours, chain, new, staying, changes, whole, outputs=2)
    # Alg. 3, l. 10-12 and 17-18: candidates compare their workloads.
    among = open_pairs(fed, rows, name="balance/candidates")
    which = fed.clients.run(all_rows, rows)
    numbers = fed.clients.run(workloads_of_rows, rows, chain, which)
    order = compare_pairs(fed, among, numbers, which, bits=bits, reveal="order", name="balance/candidates")
    outcomes = fed.clients.run(count_outcomes, rows, outcomes, which)
    chain = fed.clients.run(record_comparisons, chain, rows, order)
    largest = fed.clients.run(largest_candidates, chain)
    # Alg. 3, l. 13, is `choose_largest` at the server.
    route = fed.route(fed.clients.run(client_ids_of, neighbours, largest), name="balance/largest")
    return Largest(chain, now, largest, route), outcomes


def workloads_of_rows(rows: Neighbours | PairRows, chain: Chain, which: Tensor) -> Tensor:
    """Return the workload of the client of each of the rows `which` [p], [p] int64."""
    return chain.workload[rows.client[which]]


def count_outcomes(rows: Neighbours | PairRows, outcomes: Tensor, which: Tensor) -> Tensor:
    """Add the outcomes of comparing the rows `which` to each client's count."""
    return outcomes + torch.bincount(rows.client[which], minlength=len(outcomes))


def update_candidates(
    neighbours: Neighbours, chain: Chain, which: Tensor, order: Tensor
) -> tuple[Chain, Tensor]:
    """Update who is a candidate, from the outcomes `order` [p] of the rows `which` [p].

    Returns the state, and which candidates were none before, [K] bool.
    """
    client = neighbours.client[which]
    # Only the difference to the last outcome counts: this row may have been counted before.
    change = (order < 0).long() - (chain.order[which] < 0).long()
    num_larger = chain.num_larger.index_add(0, client, change)
    known = chain.order.clone()
    known[which] = order
    # Alg. 3, l. 15; a client without neighbours is no candidate.
    candidate = (num_larger == 0) & (neighbours.degree > 0)
    updated = replace(chain, order=known, num_larger=num_larger, candidate=candidate)
    return updated, candidate & ~chain.candidate


def split_candidates(chain: Chain, joined: Tensor, changed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Divide the candidates into those that must compare with all others, because they have just become
    candidates or their workload has changed, and the rest: clients of the cohort, ascending.
    """
    new = joined if changed is None else joined | (chain.candidate & changed)
    return new.nonzero()[:, 0], (chain.candidate & ~new).nonzero()[:, 0]


def client_ids_of(neighbours: Neighbours, clients: Tensor) -> RowIds:
    """Return the ids of some clients of the cohort, given as indices."""
    return RowIds(neighbours.ids[clients], clients)


def list_candidates(before: Tensor, staying: RouteTable, new: RouteTable) -> tuple[Tensor, Tensor, Tensor]:
    """List the candidates at the server (Alg. 3, l. 5-9). before: [c] ids of the candidates before.

    A candidate whose workload has changed counts both as one that has left and as a new one.

    Returns:
        The ids of all candidates [n]; for each that stays the changes [s, 1 + a + b]: how many have left,
        their ids, and the ids of the new ones; and for each new one the full list [j, n].

    Raises:
        InputError: More than MAX_PAIRS pairs would have to compare.
    """
    now = torch.cat([staying.ids, new.ids]).sort().values
    pairs = len(new.ids) * len(now)
    # Refused before memory is taken: the first list alone may have millions of pairs.
    if pairs > MAX_PAIRS:
        raise InputError(
            f"balancer=mcmc lets {len(now)} clients compare with each other, in {pairs:.3g} pairs, more than "
            f"{MAX_PAIRS:.3g}; use balancer=local, which compares neighbours only"
        )
    # Staying candidates need the difference only; a whole list in every step would be most of the traffic.
    left = before[~torch.isin(before, staying.ids)]
    changes = torch.cat([torch.tensor([len(left)], device=left.device), left, new.ids])
    return now, changes.expand(len(staying.ids), -1), now.expand(len(new.ids), -1)


def meet_candidates(
    neighbours: Neighbours, chain: Chain, new: Tensor, staying: Tensor, changes: Tensor, full_list: Tensor
) -> tuple[Chain, PairRows]:
    """Drop the outcomes of candidates that have left, and list the pairs that have to compare.

    Args:
        new: [j] clients of the cohort that must compare with all other candidates.
        staying: [s] clients of the cohort that need to compare with new candidates only.
        changes: [s, 1 + a + b] as `list_candidates` returns them, for each staying one.
        full_list: [j, c] for each new one the ids of all candidates.
    """
    nobody = neighbours.ids[:0]
    everyone, left, arrivals = full_list[0] if len(new) else nobody, nobody, nobody
    if len(staying):
        # Every staying candidate has received the same changes.
        count = int(changes[0, 0])
        left, arrivals = changes[0, 1 : 1 + count], changes[0, 1 + count :]
    stays = torch.zeros_like(chain.candidate)
    stays[staying] = True
    # Outcomes with candidates that have left, or whose workload has changed, no longer hold.
    gone = torch.zeros(neighbours.num_clients, dtype=torch.bool, device=stays.device)
    gone[left] = True
    kept = stays[chain.larger.client] & ~gone[chain.larger.other]
    larger = PairRows(chain.larger.client[kept], chain.larger.other[kept])
    client = torch.cat([new.repeat_interleave(len(everyone)), staying.repeat_interleave(len(arrivals))])
    other = torch.cat([everyone.repeat(len(new)), arrivals.repeat(len(staying))])
    # A new candidate is in the full list itself.
    apart = neighbours.ids[client] != other
    client, other = client[apart], other[apart]
    order = client.argsort(stable=True)
    return replace(chain, larger=larger), PairRows(client[order], other[order])


def record_comparisons(chain: Chain, rows: PairRows, order: Tensor) -> Chain:
    """Record the outcomes `order` [p] of comparisons among candidates."""
    smaller = order < 0
    client = torch.cat([chain.larger.client, rows.client[smaller]])
    return replace(chain, larger=PairRows(client, torch.cat([chain.larger.other, rows.other[smaller]])))


def largest_candidates(chain: Chain) -> Tensor:
    """Return the candidates with the largest workload, as clients of the cohort, ascending."""
    exceeded = torch.zeros_like(chain.candidate)
    exceeded[chain.larger.client] = True
    # Alg. 3, l. 17-18
    return (chain.candidate & ~exceeded).nonzero()[:, 0]


# ---- the decision on a step --------------------------------------------------------------------------------


def decide_step(
    fed: Federation,
    neighbours: Located,
    current: Largest,
    proposed: Largest,
    best: Largest,
    chosen: tuple[Located, Located, Located],
    outcomes: Located,
    balancing: Balancing,
    key: int,
) -> tuple[Located, Located, Located]:
    """Decide whether a step is accepted, and whether it gives the best state so far (Alg. 2, l. 7-8).

    The server sends the ids of each other to the clients `chosen`: u, u', and the client with the largest
    workload of the best state. u reports the first decision, u' the second. Both are returned at the server,
    with the outcomes that each client has learned.
    """
    u, other, best_largest = chosen
    of_u = send_counterparts(fed, current, u, other)
    of_other = send_counterparts(fed, proposed, other, u, best_largest)
    of_best = send_counterparts(fed, best, best_largest, other)
    u_of_other, best_of_other = (fed.clients.run(column, of_other, number) for number in (0, 1))
    bits, temperature = balancing.degree_bits, balancing.temperature

    counterpart = fed.clients.run(column, of_u, 0)
    name = "balance/acceptance"
    rows, asks, numbers, which = prepare_comparison(
        fed, neighbours, current, counterpart, proposed, u_of_other
    )
    pair = open_pairs(fed, rows, name=name)
    # Eq. (18): in plaintext as in the paper, or by a protocol that opens only its outcome.
    if balancing.acceptance == "opened":
        received = swap(fed, pair, numbers, which, name=name, protection="plaintext")
        outcome = fed.clients.run(decide_openly, neighbours, rows, asks, numbers, received, key, temperature)
    else:
        outcome = at_most_pairs(
            fed, pair, numbers, which, asker=asks, bits=bits, temperature=temperature, seed=key, name=name
        )
    chains, largest = (current.chain, proposed.chain), current.largest
    accepted = fed.clients.run(
        report_acceptance, neighbours, *chains, largest, counterpart, rows, outcome, key, temperature
    )
    # The route has all largest clients; those other than u report 0.
    accepted = fed.upload(accepted, current.route, name="balance/accepted", grad=False)
    outcomes = fed.clients.run(count_outcomes, rows, outcomes, which)

    # The best state so far: u' compares with the client that had the largest workload in it.
    counterpart = fed.clients.run(column, of_best, 0)
    rows, asks, numbers, which = prepare_comparison(
        fed, neighbours, best, counterpart, proposed, best_of_other
    )
    pair = open_pairs(fed, rows, name="balance/best")
    outcome = compare_pairs(
        fed, pair, numbers, which, asker=asks, bits=bits, reveal="greater", name="balance/best"
    )
    chains, largest = (best.chain, proposed.chain), proposed.largest
    better = fed.clients.run(report_improvement, neighbours, *chains, largest, best_of_other, rows, outcome)
    better = fed.upload(better, proposed.route, name="balance/better", grad=False)
    return accepted, better, fed.clients.run(count_outcomes, rows, outcomes, which)


def send_counterparts(fed: Federation, state: Largest, one: Located, *others: Located) -> Located:
    """Send the ids of `others` to the client `one`, one of the largest clients of `state`."""
    counterparts = fed.server.run(address_counterparts, fed.table(state.route), one, *others)
    form = TensorForm(torch.int64, (len(others),))
    return fed.scatter(counterparts, state.route, name="balance/counterparts", grad=False, like=form)


def address_counterparts(table: RouteTable, one: Tensor, *others: Tensor) -> Tensor:
    """Address the ids of its counterparts to the chosen client, [M, p]; all other clients get -1."""
    return torch.where((table.ids == one)[:, None], torch.stack(others, 1), -1)


def prepare_comparison(
    fed: Federation,
    neighbours: Located,
    asking: Largest,
    counterpart: Located,
    asked: Largest,
    asked_counterpart: Located,
) -> tuple[Located, Located, Located, Located]:
    """Form the pair of two clients to which the server has sent each other's id.

    Returns at the clients: the pair, whether each of its rows asks, the workload that the row's client enters
    (in its own state), and the numbers of the rows.
    """
    rows, asks = fed.clients.run(
        form_pair, neighbours, asking.largest, counterpart, asked.largest, asked_counterpart, outputs=2
    )
    numbers = fed.clients.run(pair_workloads, rows, asks, asking.chain, asked.chain)
    return rows, asks, numbers, fed.clients.run(all_rows, rows)


def form_pair(
    neighbours: Neighbours, asking: Tensor, counterpart: Tensor, asked: Tensor, asked_counterpart: Tensor
) -> tuple[PairRows, Tensor]:
    """Form the pair, as a row at each of its two clients in this cohort, and whether the row's client asks.

    A client that has received its own id forms no pair.

    Args:
        asking: [a] clients of the cohort, one of which may be the one that asks.
        counterpart: [a] the id that each has received (-1: none).
        asked: [b] clients of the cohort, one of which may be the one that is asked.
        asked_counterpart: [b] the id that each has received.
    """
    client, other = torch.cat([asking, asked]), torch.cat([counterpart, asked_counterpart])
    asks = torch.arange(len(client), device=client.device) < len(asking)
    # u may be u': a client does not run a protocol with itself.
    apart = (other >= 0) & (other != neighbours.ids[client])
    order = apart.nonzero()[:, 0]
    order = order[client[order].argsort()]
    return PairRows(client[order], other[order]), asks[order]


def pair_workloads(rows: PairRows, asks: Tensor, asking: Chain, asked: Chain) -> Tensor:
    """Return the workload that each client of a pair enters, of the one that asks in the state `asking`."""
    return torch.where(asks, asking.workload[rows.client], asked.workload[rows.client])


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
    """Report for each of the largest clients whether it is u and the step is accepted, [a] uint8."""
    accepted = torch.zeros_like(neighbours.ids, dtype=torch.bool)
    accepted[rows.client] = outcome > 0
    # If u is u' too, it decides alone.
    for u in largest[counterpart == neighbours.ids[largest]].tolist():  # one at most
        client_id, rise = int(neighbours.ids[u]), int(proposal.workload[u] - chain.workload[u])
        # Eq. (18)
        accepted[u] = is_accepted(key, client_id, client_id, neighbours.num_clients, rise, temperature)
    return (accepted[largest] & (counterpart >= 0)).byte()


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

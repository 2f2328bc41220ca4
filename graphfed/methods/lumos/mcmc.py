"""Lumos's own balancer: Alg. 1, then a search in steps (Alg. 2), for which the device of the largest workload
is found again and again (Alg. 3), by comparisons alone.

    paper                       here
    N_u, wl(u)                  Chain.keeps, Chain.workload
    CVS                         Chain.candidate: whoever keeps no less than any neighbour
    Alg. 3, l. 1-8              compare along edges that changed; the candidates tell the server
    Alg. 3, l. 10-14            the server tells them of each other, they compare, the largest ones say so
    f(X) - f(X')         (18)   at_most_pairs: u and u' learn whether the step stands, and nothing else
    T (steps)                   mcmc_steps
    X_T                         the best cover seen, not the last

A step: u, the device of the largest workload, passes k of its neighbours on; the largest workload afterwards
is that of u'; the two decide whether it stands. The same answers need few of the comparisons: what has not
changed since both ends last compared they remember, along edges and, as long as both stay candidates, among
candidates; after a step that was refused everybody goes back to what it knew. compare_again=all compares
everything, twice in a step, as the paper has it: the same result.

What it shows, beyond the comparisons along edges (`balancing`). The server learns, in every step, who the
candidates are, who joined and left, which of them are largest, who u and u' are, and whether the step stands.
Candidates learn each other's identities, and which of any two keeps more: the whole order of the CVS. The
devices that u passes to learn that u is the largest. With acceptance=opened, the paper's way, u learns f' and
so the difference, in clear.

Differs from the paper: k is drawn from 1..max(1, round(ln wl(u))), whose range is empty for a workload of 1;
a device without neighbours is no candidate; the best cover is kept, for which u' and the device that was the
largest in the best cover so far compare once a step; a temperature. It is a local search, and no sampler of
e^-f: it always begins at the largest device."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.functions import column, constant
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.federation.secure.compare import at_most_pairs, compare_pairs
from graphfed.federation.secure.notifications import notify
from graphfed.federation.secure.pair_transfers import swap
from graphfed.federation.secure.pairs import PairRows, Pairs, open_pairs
from graphfed.methods.lumos.assignment import accepts, chosen_of, moves_drawn
from graphfed.methods.lumos.candidates import (
    MAX_PAIRS,
    Chain,
    every_row,
    largest_ones,
    meet,
    rank,
    rivals,
    workload_of_rivals,
)
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.workload import (
    Around,
    Balance,
    Kept,
    all_rows,
    either,
    ended,
    kept_at_first,
    moment,
    rows_changed,
)
from graphfed.random import fold

__all__ = ["search"]


# ---- at the clients: moves ---------------------------------------------------------------------------------


def begin(around: Around, order: Tensor) -> Chain:
    """The cover of Alg. 1. Nobody has compared workloads yet."""
    keeps, kept_by = kept_at_first(around, order)
    nothing = torch.zeros_like(around.ids)
    return forget(
        Chain(
            keeps,
            kept_by,
            torch.zeros_like(order),
            around.count(keeps.nonzero()[:, 0]),
            *[nothing] * 6,
        ),
        around,
    )


def forget(chain: Chain, around: Around) -> Chain:
    """Without what came of comparing workloads: everything is compared anew."""
    nothing = torch.zeros_like(around.ids)
    nobody = torch.zeros_like(nothing, dtype=torch.bool)
    place = torch.full((around.num_clients,), -1, device=nothing.device)
    less = torch.zeros(0, 0, dtype=torch.bool, device=nothing.device)
    order = torch.zeros_like(chain.order)
    return replace(
        chain, order=order, above=nothing, candidate=nobody, place=place, row=nothing - 1, less=less,
        beaten=nothing,
    )  # fmt: skip


def propose(around: Around, chain: Chain, chosen: Tensor, seed: int, step: int) -> Tensor:
    """The rows that u passes on (Alg. 2, l. 3-4), ascending; none at other hosts. chosen: u, or nobody."""
    if not len(chosen):
        return chosen
    u = int(chosen)
    k = moves_drawn(seed, step, int(around.ids[u]), int(chain.workload[u]))
    rows = around.rows_of(chosen)
    rows = rows[chain.keeps[rows]]
    draws = around.draws(fold(seed, "balance", "neighbours", step), rows)
    return rows[draws.argsort(descending=True)[:k].sort().values]


def move(around: Around, chain: Chain, given: Tensor, taken: Tensor) -> tuple[Chain, Tensor]:
    """N_u loses v, and N_v gains u (Alg. 2, l. 5); and whose workload has changed, [K] bool."""
    keeps, kept_by = chain.keeps.clone(), chain.kept_by.clone()
    new = taken[~keeps[taken]]
    keeps[given], kept_by[given] = False, True
    keeps[taken], kept_by[taken] = True, False
    workload = chain.workload - around.count(given) + around.count(new)
    proposed = replace(chain, keeps=keeps, kept_by=kept_by, workload=workload)
    return proposed, workload != chain.workload


# ---- at the clients: along edges ---------------------------------------------------------------------------


def workload_of(around: Around, chain: Chain, which: Tensor) -> Tensor:
    return chain.workload[around.client[which]]


def stand(around: Around, chain: Chain, which: Tensor, order: Tensor) -> tuple[Chain, Tensor]:
    """With new outcomes along edges: who is a candidate now (Alg. 3, operation 1); and who was none before,
    [K] bool."""
    client = around.client[which]
    change = (order < 0).long() - (chain.order[which] < 0).long()
    above = chain.above.index_add(0, client, change)
    known = chain.order.clone()
    known[which] = order
    candidate = (above == 0) & (around.degree > 0)
    return replace(chain, order=known, above=above, candidate=candidate), candidate & ~chain.candidate


def renewed(now: Chain, joined: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates that have nothing to go by: new ones, and those whose own workload has changed; and the
    others. Clients in the cohort, ascending."""
    new = joined | (now.candidate & changed)
    return new.nonzero()[:, 0], (now.candidate & ~new).nonzero()[:, 0]


def as_ids(around: Around, clients: Tensor) -> RowIds:
    return RowIds(around.ids[clients], clients)


# ---- at the server -----------------------------------------------------------------------------------------


def nobody(device: str) -> Tensor:
    return torch.zeros(0, dtype=torch.int64, device=device)


def list_candidates(before: Tensor, staying: RouteTable, new: RouteTable) -> tuple[Tensor, Tensor, Tensor]:
    """The candidates [n]; for each that stays what has changed, [s, 1 + a + b]: how many have left, who, and
    who is new; for each new one the whole list, [j, n]. Who changed is among those that left and the new.

    InputError where more than MAX_PAIRS pairs would have to compare."""
    now = torch.cat([staying.ids, new.ids]).sort().values
    pairs = len(new.ids) * len(now)
    if pairs > MAX_PAIRS:
        raise InputError(
            f"balancer=mcmc lets {len(now)} devices compare with each other, in {pairs:.3g} pairs, more than "
            f"{MAX_PAIRS:.3g}; use balancer=local, which compares neighbours only"
        )
    left = before[~torch.isin(before, staying.ids)]
    told = torch.cat([torch.tensor([len(left)], device=left.device), left, new.ids])
    return now, told.expand(len(staying.ids), -1), now.expand(len(new.ids), -1)


def add_call(total: Tensor, now: Tensor) -> Tensor:
    """Comparisons among candidates, had all of them compared."""
    return total + len(now) * (len(now) - 1) // 2


def take_one(table: RouteTable, seed: int, step: int) -> Tensor:
    """The one that the server takes among the largest, [1] its id; [0] without any."""
    return table.ids[chosen_of(seed, step, table.ids)][None] if len(table.ids) else table.ids


def mark(table: RouteTable, one: Tensor) -> Tensor:
    """For every one of the largest whether it was taken."""
    return torch.isin(table.ids, one).byte()


def pair_up(table: RouteTable, one: Tensor, *others: Tensor) -> Tensor:
    """For the one that was taken the ids of those that it is to compare with, [M, p]; for the rest -1."""
    return torch.where((table.ids == one)[:, None], torch.stack(others, 1), -1)


def any_edge(now: Tensor) -> dict[str, Any]:
    return {"goes_on": bool(len(now))}


def verdict(accepted: Tensor, better: Tensor) -> dict[str, Any]:
    return {"accepted": bool(accepted.any()), "better": bool(better.any())}


def different(total: Tensor, u: Tensor, other: Tensor, best: Tensor) -> Tensor:
    """Comparisons beside those of Alg. 3."""
    return total + (u != other).long().sum() + (best != other).long().sum()


# ---- at the clients: among candidates ----------------------------------------------------------------------


# ---- at the clients: the verdict ---------------------------------------------------------------------------


def where_marked(largest: Tensor, marks: Tensor) -> Tensor:
    return largest[marks > 0]


def two_told(
    around: Around, asking: Tensor, told: Tensor, asked: Tensor, told_too: Tensor
) -> tuple[PairRows, Tensor]:
    """The pair of two devices that were told of each other, at each end its row; and whether that one asks.

    asking, asked: clients in the cohort; told, told_too: whom each was told of (-1: of nobody). A device that
    was told of itself has no pair."""
    client, other = torch.cat([asking, asked]), torch.cat([told, told_too])
    asks = torch.arange(len(client), device=client.device) < len(asking)
    apart = (other >= 0) & (other != around.ids[client])
    order = apart.nonzero()[:, 0]
    order = order[client[order].argsort()]
    return PairRows(client[order], other[order]), asks[order]


def two_numbers(rows: PairRows, asks: Tensor, chain: Chain, other: Chain) -> Tensor:
    """The workload of who asks, in one cover, and of who is asked, in another."""
    return torch.where(asks, chain.workload[rows.client], other.workload[rows.client])


def accepted_by_u(
    around: Around,
    chain: Chain,
    proposed: Chain,
    largest: Tensor,
    told: Tensor,
    rows: PairRows,
    outcome: Tensor,
    key: int,
    temperature: float,
) -> Tensor:
    """For each of the largest whether it is u and the step stands. u alone, being u' too, decides itself."""
    stands = torch.zeros_like(around.ids, dtype=torch.bool)
    stands[rows.client] = outcome > 0
    for u in largest[told == around.ids[largest]].tolist():  # one at most
        who, rise = int(around.ids[u]), int(proposed.workload[u] - chain.workload[u])
        stands[u] = accepts(key, who, who, around.num_clients, rise, temperature)
    return (stands[largest] & (told >= 0)).byte()


def opened(
    around: Around, rows: PairRows, asks: Tensor, own: Tensor, seen: Tensor, key: int, temperature: float
) -> Tensor:
    """The paper's way: u sees f' and decides, [n] bool."""
    stands = torch.zeros_like(asks)
    for row in asks.nonzero()[:, 0].tolist():  # one at most
        u, other = int(around.ids[rows.client[row]]), int(rows.other[row])
        rise = int(seen[row] - own[row])
        stands[row] = accepts(key, u, other, around.num_clients, rise, temperature)
    return stands


def better_than_best(
    around: Around,
    best: Chain,
    proposed: Chain,
    largest: Tensor,
    told: Tensor,
    rows: PairRows,
    outcome: Tensor,
) -> Tensor:
    """For each of the largest now whether it is u' and the best cover so far had a larger workload."""
    better = torch.zeros_like(around.ids, dtype=torch.bool)
    better[rows.client] = outcome > 0
    alone = largest[told == around.ids[largest]]
    better[alone] = proposed.workload[alone] < best.workload[alone]
    return (better[largest] & (told >= 0)).byte()


# ---- what is written down ----------------------------------------------------------------------------------


def count_rows(outcomes: Tensor, rows: PairRows) -> Tensor:
    return outcomes + torch.bincount(rows.client, minlength=len(outcomes))


def count_which(around: Around, outcomes: Tensor, which: Tensor) -> Tensor:
    return outcomes + around.count(which)


def has_neighbours(around: Around) -> Tensor:
    return around.degree > 0


def degrees(around: Around) -> Tensor:
    return around.degree


def snapshot_of(chain: Chain, outcomes: Tensor) -> Tensor:
    return moment(chain.workload, outcomes)


def end(around: Around, best: Chain, outcomes: Tensor, *history: Tensor) -> Kept:
    return ended(around, best.keeps, best.kept_by, outcomes, *history)


# ---- the program -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A cover and its largest devices. chain: with all that finding them has taught; candidates [n]: the
    candidates' ids, at the server; largest: at the clients, indices in the cohort; route: theirs."""

    chain: Located
    candidates: Located
    largest: Located
    route: Route


def search(fed: Federation, around: Located, pairs: Pairs, order: Located, config: LumosConfig) -> Balance:
    """Alg. 2 from the cover of Alg. 1 on: the best one seen."""
    seed, anew = config.seed, config.compare_again == "all"
    outcomes = fed.clients.run(degrees, around)
    chain = fed.clients.run(begin, around, order)
    nobody_yet = fed.server.run(nobody, str(fed.device))
    among = fed.server.run(constant, 0, str(fed.device))  # comparisons among candidates, if all were made
    beside = fed.server.run(constant, 0, str(fed.device))
    found, outcomes = find_largest(fed, around, pairs, chain, None, nobody_yet, outcomes, config)
    history = [fed.clients.run(snapshot_of, found.chain, outcomes)]
    best, calls = found, 1
    if not fed.control(any_edge, found.candidates)["goes_on"]:
        kept = fed.clients.run(end, around, best.chain, outcomes, *history)
        return Balance(kept, 0, 1, among)
    holder = fed.server.run(take_one, fed.table(found.route), seed, 0)
    for step in range(config.mcmc_steps):
        fed.begin(f"balancing the trees: step {step + 1} of {config.mcmc_steps} of the Markov chain")
        if anew and step:
            found, outcomes = find_largest(
                fed, around, pairs, found.chain, None, nobody_yet, outcomes, config
            )
        among = fed.server.run(add_call, among, found.candidates)
        u = fed.server.run(take_one, fed.table(found.route), seed, 2 * step)  # Alg. 2, l. 2
        marks = fed.server.run(mark, fed.table(found.route), u)
        marks = fed.scatter(marks, found.route, name="balance/chosen", grad=False)
        chosen = fed.clients.run(where_marked, found.largest, marks)
        given = fed.clients.run(propose, around, found.chain, chosen, seed, step)
        taken = notify(fed, pairs, given, name="balance/proposals")
        moved, changed = fed.clients.run(move, around, found.chain, given, taken, outputs=2)
        since = None if anew else changed
        known = nobody_yet if anew else found.candidates
        after, outcomes = find_largest(fed, around, pairs, moved, since, known, outcomes, config)  # l. 6
        among = fed.server.run(add_call, among, after.candidates)
        other = fed.server.run(take_one, fed.table(after.route), seed, 2 * step + 1)
        beside = fed.server.run(different, beside, u, other, holder)
        accepted, better, outcomes = judge(
            fed, around, found, after, best, u, other, holder, outcomes, config, step
        )
        decided = fed.control(verdict, accepted, better)
        if decided["accepted"]:  # l. 7, Eq. (18)
            found = after
            if decided["better"]:
                best, holder = after, other
        history.append(fed.clients.run(snapshot_of, found.chain, outcomes))
        calls += 2
    kept = fed.clients.run(end, around, best.chain, outcomes, *history)
    beside = fed.server.run(torch.add, among, beside)
    return Balance(kept, config.mcmc_steps, calls, beside)


def find_largest(
    fed: Federation,
    around: Located,
    pairs: Pairs,
    chain: Located,
    changed: Located | None,
    before: Located,
    outcomes: Located,
    config: LumosConfig,
) -> tuple[Found, Located]:
    """Alg. 3, for what has changed since the candidates were `before`, or (None) from the beginning."""
    if changed is None:
        chain = fed.clients.run(forget, chain, around)
        changed = fed.clients.run(has_neighbours, around)
        which = fed.clients.run(all_rows, around)
    else:
        mine = fed.clients.run(rows_changed, around, changed)
        which = fed.clients.run(either, mine, notify(fed, pairs, mine, name="balance/changed"))
    numbers, bits = fed.clients.run(workload_of, around, chain, which), config.degree_bits
    order = compare_pairs(fed, pairs, numbers, which, bits=bits, reveal="order", name="balance/workloads")
    outcomes = fed.clients.run(count_which, around, outcomes, which)
    chain, joined = fed.clients.run(stand, around, chain, which, order, outputs=2)
    new, staying = fed.clients.run(renewed, chain, joined, changed, outputs=2)
    # Alg. 3, l. 5-7: candidates tell the server, which tells them of each other.
    those_new = fed.route(fed.clients.run(as_ids, around, new), name="balance/new_candidates")
    the_others = fed.route(fed.clients.run(as_ids, around, staying), name="balance/still_candidates")
    now, changes, whole = fed.server.run(
        list_candidates, before, fed.table(the_others), fed.table(those_new), outputs=3
    )
    changes = fed.download(changes, the_others, name="balance/candidate_changes", grad=False)
    whole = fed.download(whole, those_new, name="balance/candidate_list", grad=False)
    chain, meeting = fed.clients.run(meet, chain, new, staying, changes, whole, outputs=2)
    # Alg. 3, l. 10-14
    rows = fed.clients.run(rivals, around, meeting)
    rivalry = open_pairs(fed, rows, name="balance/candidates")
    order = compare_pairs(
        fed,
        rivalry,
        fed.clients.run(workload_of_rivals, chain, rows),
        fed.clients.run(every_row, rows),
        bits=bits,
        reveal="order",
        name="balance/candidates",
    )
    outcomes = fed.clients.run(count_rows, outcomes, rows)
    chain = fed.clients.run(rank, chain, rows, order)
    largest = fed.clients.run(largest_ones, chain)
    route = fed.route(fed.clients.run(as_ids, around, largest), name="balance/largest")
    return Found(chain, now, largest, route), outcomes


def judge(
    fed: Federation,
    around: Located,
    found: Found,
    after: Found,
    best: Found,
    u: Located,
    other: Located,
    holder: Located,
    outcomes: Located,
    config: LumosConfig,
    step: int,
) -> tuple[Located, Located, Located]:
    """Whether the step stands, from u, and whether it gives the best cover so far, from u'; at the server,
    which tells them of each other."""
    key = fold(config.seed, "balance", "accept", step)
    told_u = _notify_one(fed, found, u, other)
    told_other = _notify_one(fed, after, other, u, holder)
    told_holder = _notify_one(fed, best, holder, other)
    of_u, of_holder = (fed.clients.run(column, told_other, number) for number in (0, 1))
    mine = fed.clients.run(column, told_u, 0)
    rows, asks = fed.clients.run(two_told, around, found.largest, mine, after.largest, of_u, outputs=2)
    pair = open_pairs(fed, rows, name="balance/acceptance")
    which = fed.clients.run(every_row, rows)
    numbers = fed.clients.run(two_numbers, rows, asks, found.chain, after.chain)
    if config.acceptance == "opened":
        seen = swap(fed, pair, numbers, which, name="balance/acceptance", protection="clear")
        outcome = fed.clients.run(opened, around, rows, asks, numbers, seen, key, config.temperature)
    else:
        outcome = at_most_pairs(
            fed,
            pair,
            numbers,
            which,
            asker=asks,
            bits=config.degree_bits,
            temperature=config.temperature,
            seed=key,
            name="balance/acceptance",
        )
    accepted = fed.clients.run(
        accepted_by_u, around, found.chain, after.chain, found.largest, mine, rows, outcome, key,
        config.temperature,
    )  # fmt: skip
    accepted = fed.upload(accepted, found.route, name="balance/accepted", grad=False)
    outcomes = fed.clients.run(count_rows, outcomes, rows)

    mine = fed.clients.run(column, told_holder, 0)
    rows, asks = fed.clients.run(two_told, around, best.largest, mine, after.largest, of_holder, outputs=2)
    pair = open_pairs(fed, rows, name="balance/best")
    numbers = fed.clients.run(two_numbers, rows, asks, best.chain, after.chain)
    outcome = compare_pairs(
        fed,
        pair,
        numbers,
        fed.clients.run(every_row, rows),
        asker=asks,
        bits=config.degree_bits,
        reveal="greater",
        name="balance/best",
    )
    better = fed.clients.run(
        better_than_best, around, best.chain, after.chain, after.largest, of_holder, rows, outcome
    )
    better = fed.upload(better, after.route, name="balance/better", grad=False)
    return accepted, better, fed.clients.run(count_rows, outcomes, rows)


def _notify_one(fed: Federation, found: Found, one: Located, *others: Located) -> Located:
    told = fed.server.run(pair_up, fed.table(found.route), one, *others)
    return fed.scatter(told, found.route, name="balance/counterparts", grad=False)

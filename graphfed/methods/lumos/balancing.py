"""Who keeps which edge in Lumos: programs over places, for clients that hold one node each and may not know
each other's degrees.

    balancer   who keeps an edge                                       who takes part
    none       both ends                                               nobody
    greedy     Alg. 1: the end of the lower round(ln deg), or both     neighbours
    local      one end, by Alg. 1 and a coin, then passed on           neighbours; the server sees the end
    mcmc       Alg. 1, then Alg. 2 and 3 (`mcmc`)                neighbours, candidates, the server
    oracle     the exact optimum                                       the server, which learns the graph

*local*, ours. In every round whose workload has changed tells its neighbours so, and the pairs that this
concerns compare anew: the keeper u of (u, v) learns with v whether w(u) > w(v) + 1. Where it is so, u may
pass the edge on. Each device offers one such edge and takes one offer, drawn at random. When nobody can
offer, which the server finds out from one byte of every device, no single move helps; a device of the largest
workload may still be cut off from one that keeps 2 less by others that keep 1 less. So a fixed number of
rounds more lets an edge pass where w(u) > w(v), which moves such excess about until it finds room. The server
is there to notice the end only: with a fixed number of rounds before as well, nothing of it would need one.

Why it ends, and never gets worse: a device gives at most one edge in a round and takes at most one, so the
edges that move make paths u_0 -> ... -> u_k, and w falls by d = 2 (or 1) at least with every step (so no
circles). In the middle of a path nothing changes, u_0 loses one and u_k gains one: the sum of w^2 changes by
2 (w(u_k) - w(u_0) + 1) <= 2 (1 - d k), which is below 0 for d = 2, and never above. Nor does the largest
workload rise: u_k had less than its giver.

What it shows. Of a comparison both ends learn the outcome and nothing else. But outcomes add up. Alg. 1 tells
neighbours which has the larger round(ln deg), or that they are equal: degrees within a factor e of each
other. A device that learns whether w(u) > w(v) + 1 and knows its own workload has a bound on its
neighbour's; over many rounds, its own going up and down, often both bounds, and so the very number. The
degree is at least the workload. That a workload changed in a round is told to all neighbours, and who gives
an edge, or takes it, shows its neighbour that it is not at an end. The server learns, in every round, which
devices could still pass something on, and nothing of who is whose neighbour.

With protocols=simulated the numbers are compared in clear inside the process: the same outcomes, the same
bytes on the ledger, and no protection."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphfed.crypto.accept import MAX_BITS
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.functions import constant
from graphfed.federation.route import RouteTable, RowIds
from graphfed.federation.secure.compare import compare_pairs
from graphfed.federation.secure.notifications import notify
from graphfed.federation.secure.pair_transfers import send
from graphfed.federation.secure.pairs import Pairs, open_pairs
from graphfed.methods.lumos import mcmc
from graphfed.methods.lumos.assignment import optimum, pair_draws
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.workload import (
    Around,
    Balance,
    Kept,
    all_rows,
    either,
    ended,
    kept_at_first,
    levels,
    look_around,
    moment,
    rows_changed,
)
from graphfed.random import fold

__all__ = ["BETWEEN_NEIGHBOURS", "MESSAGES", "balance"]


# ---- at the clients ----------------------------------------------------------------------------------------


def keep_all(around: Around) -> Kept:
    both = torch.ones(len(around.other), dtype=torch.bool, device=around.other.device)
    nothing = torch.zeros_like(around.ids)
    return ended(around, both, both, nothing, moment(around.degree, nothing))


def keep_greedily(around: Around, order: Tensor) -> Kept:
    keeps, kept_by = kept_at_first(around, order)
    workload = around.count(keeps.nonzero()[:, 0])
    return ended(around, keeps, kept_by, around.degree, moment(workload, around.degree))


# ---- the local rule, at the clients ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trade:
    """The local rule between two rounds. keeps, able [C] bool: this client keeps the edge; the last
    comparison says that the keeper may pass it on. workload, outcomes [K] int64; changed [K] bool: since its
    neighbours last heard."""

    keeps: Tensor
    able: Tensor
    workload: Tensor
    outcomes: Tensor
    changed: Tensor


def first_keepers(around: Around, order: Tensor, seed: int) -> Trade:
    """The end with the smaller round(ln deg) keeps an edge; of equals the coin of the pair says which."""
    own = around.ids[around.client]
    low, high = torch.minimum(own, around.other), torch.maximum(own, around.other)
    lower_keeps = pair_draws(fold(seed, "balance", "tie"), low, high, around.num_clients) < 0.5
    keeps = torch.where(order == 0, lower_keeps == (own == low), order < 0)
    workload = around.count(keeps.nonzero()[:, 0])
    changed = torch.ones_like(workload, dtype=torch.bool)
    return Trade(keeps, torch.zeros_like(keeps), workload, around.degree, changed)


def operands(around: Around, trade: Trade, which: Tensor, margin: int) -> tuple[Tensor, Tensor]:
    """w(u) of the keeper, which asks, and w(v) + margin of the other end."""
    asks = trade.keeps[which]
    return trade.workload[around.client[which]] + (~asks).long() * margin, asks


def learn(around: Around, trade: Trade, which: Tensor, outcome: Tensor) -> Trade:
    able = trade.able.clone()
    able[which] = outcome > 0
    unchanged = torch.zeros_like(trade.changed)
    return Trade(trade.keeps, able, trade.workload, trade.outcomes + around.count(which), unchanged)


def can_give(around: Around, trade: Trade) -> Tensor:
    return (around.count((trade.able & trade.keeps).nonzero()[:, 0]) > 0).byte()


def offer(around: Around, trade: Trade, seed: int, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One edge of each client that can give one: its row. And the bytes that say so, the rows where this
    client keeps, which they are for, and the rows where it waits for one."""
    mine = (trade.able & trade.keeps).nonzero()[:, 0]
    theirs = (trade.able & ~trade.keeps).nonzero()[:, 0]
    chosen = around.best_of_each(mine, around.draws(fold(seed, "balance", "offer", number), mine))
    return chosen, torch.isin(mine, chosen).byte(), mine, theirs


def take(
    around: Around, offers: Tensor, theirs: Tensor, seed: int, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One of the offers to each client: its row; and the bytes that say so to all who offered."""
    offered = theirs[offers > 0]
    taken = around.best_of_each(offered, around.draws(fold(seed, "balance", "take", number), offered))
    return taken, torch.isin(offered, taken).byte(), offered


def pass_on(around: Around, trade: Trade, chosen: Tensor, answers: Tensor, taken: Tensor) -> Trade:
    given = chosen[answers > 0]
    keeps, able = trade.keeps.clone(), trade.able.clone()
    keeps[given], keeps[taken] = False, True
    # Whoever just took an edge had less; where a workload has changed the next comparison says it anew.
    able[given] = able[taken] = False
    workload = trade.workload - around.count(given) + around.count(taken)
    return Trade(keeps, able, workload, trade.outcomes, workload != trade.workload)


def snapshot_of(trade: Trade) -> Tensor:
    return moment(trade.workload, trade.outcomes)


def end_of_trade(around: Around, trade: Trade, *history: Tensor) -> Kept:
    return ended(around, trade.keeps, ~trade.keeps, trade.outcomes, *history)


# ---- the oracle --------------------------------------------------------------------------------------------


def neighbours(around: Around) -> RowIds:
    return RowIds(around.other, around.client)


def solve(table: RouteTable) -> Tensor:
    """For every row (u, v) that arrived 1 where u keeps v and 0 where v keeps u, [M] uint8."""
    own, other = table.client, table.ids[table.index]
    low, high = torch.minimum(own, other), torch.maximum(own, other)
    num_clients = int(high.max()) + 1 if len(high) else 0
    codes, edge = torch.unique(low * num_clients + high, return_inverse=True)
    edges = torch.stack([codes // max(num_clients, 1), codes % max(num_clients, 1)])
    keeper = torch.from_numpy(optimum(edges.cpu().numpy(), num_clients).keeper).to(own.device)
    return (keeper[edge] == own).byte()


def carry_out(around: Around, answers: Tensor) -> Kept:
    keeps, nothing = answers > 0, torch.zeros_like(around.ids)
    workload = around.count(keeps.nonzero()[:, 0])
    return ended(around, keeps, ~keeps, nothing, moment(workload, nothing))


# ---- the programs ------------------------------------------------------------------------------------------


def balance(fed: Federation, rows: Located, config: LumosConfig) -> Balance:
    """Who keeps which edge. rows: a `PairRows` at the clients, the neighbours of each.

    InputError for a device with 2^degree_bits neighbours or more, and for numbers that are too wide for an
    acceptance that hides them."""
    if (config.balancer, config.acceptance) == ("mcmc", "hidden") and config.degree_bits > MAX_BITS:
        raise InputError(
            f"acceptance=hidden takes at most {MAX_BITS} bits, not degree_bits={config.degree_bits}; "
            f"use degree_bits={MAX_BITS}, acceptance=opened or another balancer"
        )
    around = fed.clients.run(look_around, rows, fed.client_ids(), fed.num_clients)
    if config.balancer == "none":
        return Balance(fed.clients.run(keep_all, around), 0, 0, fed.server.run(constant, 0))
    if config.balancer == "oracle":
        told = fed.route(fed.clients.run(neighbours, around), name="balance/neighbours")
        answers = fed.scatter(
            fed.server.run(solve, fed.table(told)), told, name="balance/assignments", grad=False
        )
        return Balance(fed.clients.run(carry_out, around, answers), 0, 0, fed.server.run(constant, 0))
    level = fed.clients.run(levels, around, config.degree_bits)
    pairs = open_pairs(fed, rows, name="balance")
    order = compare_pairs(
        fed,
        pairs,
        level,
        fed.clients.run(all_rows, around),
        bits=config.level_bits,
        reveal="order",
        name="balance/degrees",
    )
    if config.balancer == "greedy":
        kept = fed.clients.run(keep_greedily, around, order)
        return Balance(kept, 0, 1, fed.server.run(constant, 0))
    if config.balancer == "mcmc":
        return mcmc.search(fed, around, pairs, order, config)
    return local(fed, around, pairs, order, config)


def local(fed: Federation, around: Located, pairs: Pairs, order: Located, config: LumosConfig) -> Balance:
    """The local rule: until nobody can pass an edge to who keeps 2 less, then shuffle_rounds more."""
    trade = fed.clients.run(first_keepers, around, order, config.seed)
    history = [fed.clients.run(snapshot_of, trade)]
    calls = 1
    for number in range(1, config.balance_rounds + 1):
        fed.begin(f"balancing the trees: round {number}, at most {config.balance_rounds}")
        trade = compare_again(fed, around, pairs, trade, config, margin=1, anew=number == 1)
        calls += 1
        able = fed.gather(fed.clients.run(can_give, around, trade), name="balance/can_give", grad=False)
        if not fed.control(anybody, able)["goes_on"]:
            break
        trade = offer_and_take(fed, around, pairs, trade, config.seed, number)
        history.append(fed.clients.run(snapshot_of, trade))
    for more in range(config.shuffle_rounds):
        fed.begin(f"balancing the trees: shuffling round {more + 1} of {config.shuffle_rounds}")
        trade = compare_again(fed, around, pairs, trade, config, margin=0, anew=more == 0)
        calls += 1
        trade = offer_and_take(fed, around, pairs, trade, config.seed, len(history))
        history.append(fed.clients.run(snapshot_of, trade))
    kept = fed.clients.run(end_of_trade, around, trade, *history)
    return Balance(kept, len(history) - 1, calls, fed.server.run(constant, 0))


def offer_and_take(
    fed: Federation, around: Located, pairs: Pairs, trade: Located, seed: int, number: int
) -> Located:
    chosen, told, mine, theirs = fed.clients.run(offer, around, trade, seed, number, outputs=4)
    offers = send(fed, pairs, told, mine, theirs, name="balance/offers")
    taken, told, offered = fed.clients.run(take, around, offers, theirs, seed, number, outputs=3)
    answers = send(fed, pairs, told, offered, chosen, name="balance/answers")
    return fed.clients.run(pass_on, around, trade, chosen, answers, taken)


def compare_again(
    fed: Federation,
    around: Located,
    pairs: Pairs,
    trade: Located,
    config: LumosConfig,
    *,
    margin: int,
    anew: bool,
) -> Located:
    """Compare where a workload has changed at either end, or (anew) everywhere."""
    if anew or config.compare_again == "all":
        which = fed.clients.run(all_rows, around)
    else:
        mine = fed.clients.run(rows_changed, around, fed.clients.run(changed_of, trade))
        told = notify(fed, pairs, mine, name="balance/changed")
        which = fed.clients.run(either, mine, told)
    numbers, asks = fed.clients.run(operands, around, trade, which, margin, outputs=2)
    outcome = compare_pairs(
        fed,
        pairs,
        numbers,
        which,
        asker=asks,
        bits=config.degree_bits,
        reveal="greater",
        name="balance/workloads",
    )
    return fed.clients.run(learn, around, trade, which, outcome)


def changed_of(trade: Trade) -> Tensor:
    return trade.changed


def anybody(able: Tensor) -> dict[str, Any]:
    return {"goes_on": bool(able.any())}


#: For the report: every transfer, and what its receiver can read.
#: Of the transfers below, those from a device to some or all of its neighbours.
BETWEEN_NEIGHBOURS = (
    "balance/session",
    "balance/degrees/compare",
    "balance/workloads/compare",
    "balance/changed",
    "balance/offers",
    "balance/answers",
    "balance/proposals",
)
MESSAGES: dict[str, str] = {
    "balance/session": "Between neighbours: what two devices need before they can compare without showing "
    "their numbers. It says nothing of them.",
    "balance/degrees/compare": "Between neighbours, once: a protocol after which both know whose round(ln "
    "degree) is larger, or that they are equal, and nothing else of the other's degree.",
    "balance/workloads/compare": "Between neighbours, where a workload has changed: a protocol after which "
    "both know whether the one keeps more neighbours than the other (or more by two). Outcomes of many "
    "rounds close in on the other's number, and so on the least degree that it can have.",
    "balance/changed": "From a device whose number of kept neighbours has changed, to all its neighbours.",
    "balance/can_give": "Only with balancer=local: a byte of every device in every round, whether it could "
    "still pass an edge on. The server uses it to notice the end.",
    "balance/offers": "Only with balancer=local: a device offers an edge to one of the neighbours that keep "
    "less, and tells the others of these that it does not.",
    "balance/answers": "Only with balancer=local: whether an offer is taken.",
    "balance/proposals": "Only with balancer=mcmc: the device that keeps most tells some neighbours that "
    "they are to keep it instead. They learn that it keeps most.",
    "balance/new_candidates": "Only with balancer=mcmc: a device that has come to keep no less than any of "
    "its neighbours tells the server so.",
    "balance/still_candidates": "Only with balancer=mcmc: one that still does.",
    "balance/candidate_changes": "Only with balancer=mcmc, from the server: to every such device which "
    "others have come and gone.",
    "balance/candidate_list": "Only with balancer=mcmc, from the server: to each new one who the others are.",
    "balance/candidates/session": "Only with balancer=mcmc: what two of these need to compare.",
    "balance/candidates/compare": "Only with balancer=mcmc: two of these learn who keeps more. Each learns "
    "its place among all of them.",
    "balance/largest": "Only with balancer=mcmc: those that no other one of them exceeds tell the server so.",
    "balance/chosen": "Only with balancer=mcmc, from the server: to each of these whether it is the one to "
    "pass neighbours on.",
    "balance/counterparts": "Only with balancer=mcmc, from the server: who kept most before a step, who does "
    "after it, and who did in the best state so far: told to these three, so that they can compare.",
    "balance/acceptance/session": "Only with balancer=mcmc: what the two need to decide together.",
    "balance/acceptance/accept": "Only with acceptance=hidden: a protocol after which the two devices know "
    "whether a step stands, and nothing else of the other's number.",
    "balance/acceptance": "Only with acceptance=opened: how many neighbours the device keeps that keeps most "
    "before a step, and the one that does after it; in clear to each other.",
    "balance/accepted": "Only with balancer=mcmc: whether a step stands. The server reads it.",
    "balance/best/session": "Only with balancer=mcmc: what two devices need to compare.",
    "balance/best/compare": "Only with balancer=mcmc: a protocol after which the device that keeps most "
    "after a step, and the one that did in the best state so far, know whether the step has improved on it.",
    "balance/better": "Only with balancer=mcmc: whether it has. The server reads it.",
    "balance/neighbours": "Only with balancer=oracle, for evaluation: every device's neighbours, in clear, "
    "which the server reads: the whole graph.",
    "balance/assignments": "Only with balancer=oracle, from the server: who keeps which edge.",
}

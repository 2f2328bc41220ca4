"""`payments`: a generated world of payments between accounts at several banks, in which money is laundered.

The world is in the manner of AMLworld (Altman et al., "Realistic synthetic financial transactions for
anti-money laundering models", NeurIPS 2023): known laundering patterns are hidden among normal payments, and
most of them cross banks. Facts are taken from the paper; the program and its parameters are graphfed's own.

Accounts have a bank, a kind (person or company), a country with its currency, and the day when they were
opened. Normal payments follow heavy-tailed activities: half of them go to one of the account's few regular
payees, the others anywhere; amounts are log-normal, larger for companies. A laundering pattern moves a sum
through 3 to 16 accounts in stages, within days and for a small fee at every stage:

    fan_out         1 -> k              scatter_gather   1 -> k -> 1
    fan_in          k -> 1              gather_scatter   k -> 1 -> k
    cycle           a -> b -> ... -> a  bipartite        k -> k
    random          a -> b -> ...       stack            k -> k -> k

Accounts of patterns pay normally too. What distinguishes laundering, each weakly: the pattern itself; amounts
(a median about three times that of normal payments) and formats (no cards, more cash); that accounts take
part in about two patterns, and were opened more recently.

Classes: an account is "laundering" if a laundering payment leaves or enters it. Shapes: N accounts, E
payments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphfed.data.graphs.directed import make_directed
from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.seeding import generator
from graphfed.errors import InputError

PATTERNS = (
    "fan_out",
    "fan_in",
    "cycle",
    "random",
    "scatter_gather",
    "gather_scatter",
    "bipartite",
    "stack",
)
FORMATS = ("transfer", "card", "cheque", "cash", "instant")
#: The shares of the formats among normal and among laundering payments.
_FORMAT_SHARES, _LAUNDERING_SHARES = (0.4, 0.3, 0.1, 0.05, 0.15), (0.55, 0.0, 0.05, 0.15, 0.25)
COUNTRIES = ("DE", "FR", "PL", "GB", "CH")
_COUNTRY_SHARES = (0.35, 0.25, 0.15, 0.15, 0.1)
CURRENCIES = ("EUR", "PLN", "GBP", "CHF")
#: The currency of each country, and the value of one unit in euros.
_CURRENCY_OF = np.array([0, 0, 1, 2, 3])
_VALUE = np.array([1.0, 0.23, 1.17, 1.05])
#: 2024-01-01 in seconds since 1970, a Monday.
BEGINNING = 1_704_067_200
DAY = 86_400
#: The share of an amount that every stage of a pattern keeps.
KEPT = 0.97
REGULAR, REGULAR_PAYEES = 0.5, 5
#: Payments by hour of the day: most of them from 8 to 20 o'clock.
_HOURS = np.array([1] * 7 + [3, 6, 8, 8, 8, 7, 7, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1], dtype=float)
MAX_ACCOUNTS, MAX_PAYMENTS = 10**7, 10**8


@dataclass(frozen=True, eq=False)
class World:
    """Accounts and payments.

    Attributes:
        bank: The bank of each account, int64 [N].
        company: Whether it belongs to a company, bool [N].
        country: Its country, an index into COUNTRIES, int64 [N].
        opened: How many days before the first payment it was opened, float64 [N].
        payer: The account that sends each payment, int64 [E]; payments are sorted by time.
        payee: The account that receives it, int64 [E].
        time: In seconds since 1970, int64 [E].
        amount: In the payer's currency, float64 [E], in whole cents.
        kind: The format of the payment, an index into FORMATS, int64 [E].
        pattern: The number of the laundering pattern that each payment belongs to, int64 [E]; -1 for none.
        pattern_kind: The kind of each laundering pattern, an index into PATTERNS.
    """

    bank: np.ndarray
    company: np.ndarray
    country: np.ndarray
    opened: np.ndarray
    payer: np.ndarray
    payee: np.ndarray
    time: np.ndarray
    amount: np.ndarray
    kind: np.ndarray
    pattern: np.ndarray
    pattern_kind: np.ndarray

    @property
    def laundering(self) -> np.ndarray:
        """Whether each payment belongs to a laundering pattern, bool [E]."""
        found: np.ndarray = self.pattern >= 0
        return found

    @property
    def laundering_accounts(self) -> np.ndarray:
        """Whether a laundering payment leaves or enters each account, bool [N]."""
        found = np.zeros(len(self.bank), dtype=bool)
        found[self.payer[self.laundering]] = True
        found[self.payee[self.laundering]] = True
        return found

    @property
    def currency(self) -> np.ndarray:
        """The currency of each account, an index into CURRENCIES, int64 [N]."""
        found: np.ndarray = _CURRENCY_OF[self.country]
        return found


def make_payments(
    *,
    accounts: int = 10_000,
    banks: int = 10,
    payments_per_account: float = 10.0,
    illicit: float = 0.001,
    cross_bank: float = 0.8,
    days: int = 90,
    seed: int = 0,
    structure_only: bool = False,
) -> Graph:
    """Generate a graph of payments whose clients are banks.

    Args:
        accounts: N.
        banks: Number of banks; their sizes fall as one over the square root of their rank.
        payments_per_account: Mean number of normal payments that leave an account.
        illicit: Share of laundering payments among all payments.
        cross_bank: Probability that an account of a laundering pattern is drawn from all banks; otherwise it
            is at the bank of the first one.
        days: Length of the world.
        seed: Seed of all draws.
        structure_only: Leave the features out.

    Returns:
        The graph: directed payments with amount, currency, format and time, two classes of accounts, and the
        bank of each account as its client.

    Raises:
        InputError: A parameter is impossible.
    """
    world = generate_world(
        accounts=accounts,
        banks=banks,
        payments_per_account=payments_per_account,
        illicit=illicit,
        cross_bank=cross_bank,
        days=days,
        seed=seed,
    )
    ends = np.stack([world.payer, world.payee])
    graph = make_graph(
        "payments",
        None if structure_only else account_features(world),
        world.laundering_accounts.astype(np.int64),
        ends,
        class_names=("normal", "laundering"),
    )
    currency, kind = np.eye(len(CURRENCIES))[world.currency[world.payer]], np.eye(len(FORMATS))[world.kind]
    directed = make_directed(
        "payments",
        ends,
        np.column_stack([world.amount, currency, kind]),
        ("amount", *CURRENCIES, *FORMATS),
        world.time,
        dated=True,
        unread=("directions, amounts, currencies, formats and times of the payments",),
    )
    return replace(
        graph,
        directed=directed,
        clients=world.bank,
        client_names=bank_names(banks),
        feature_names=("company", "opened", *COUNTRIES),
    )


def bank_names(banks: int) -> tuple[str, ...]:
    """Name the banks, so that names sort as numbers do."""
    return tuple(f"bank_{number:0{len(str(banks))}d}" for number in range(1, banks + 1))


def account_features(world: World) -> np.ndarray:
    """Return the features of the accounts, float32 [N, 2 + countries]."""
    columns = [world.company, world.opened, np.eye(len(COUNTRIES))[world.country]]
    features: np.ndarray = np.column_stack(columns).astype(np.float32)
    return features


def generate_world(
    *,
    accounts: int,
    banks: int,
    payments_per_account: float,
    illicit: float,
    cross_bank: float,
    days: int,
    seed: int,
) -> World:
    """Generate accounts and payments; the parameters are those of `make_payments`."""
    _check(accounts, banks, payments_per_account, illicit, cross_bank, days)
    # The order of the draws is part of the data.
    rng = generator(seed, "payments")
    size = 1 / np.sqrt(np.arange(1, banks + 1))
    # Every bank has an account.
    bank = np.append(np.arange(banks), rng.choice(banks, accounts - banks, p=size / size.sum()))
    company = rng.random(accounts) < 0.15
    country = rng.choice(len(COUNTRIES), accounts, p=_COUNTRY_SHARES)
    payer, payee = _normal_ends(rng, company, payments_per_account)
    stages = _launder(rng, bank, illicit, cross_bank, len(payer))
    launders = np.zeros(accounts, dtype=bool)
    launders[np.append(stages.source, stages.target)] = True
    opened = np.round(rng.exponential(np.where(launders, 500, 1500)) + 1)
    # A stage begins a few hours to two days after the one before.
    begin = rng.uniform(0, max(days - 10, 1), len(stages.kind))[stages.pattern]
    day = np.append(
        rng.uniform(0, days, len(payer)), begin + stages.stage * rng.uniform(0.2, 2, len(stages.stage))
    )
    hour = rng.choice(24, len(day), p=_HOURS / _HOURS.sum()) + rng.random(len(day))
    time = BEGINNING + (np.minimum(np.floor(day), days - 1) * DAY + hour * DAY / 24).astype(np.int64)
    payer, payee = np.append(payer, stages.source), np.append(payee, stages.target)
    # In euros: log-normal, of companies ten times as large. A pattern moves one sum, which the payments of a
    # stage share; where it has the most payments, they have three times the median of normal ones.
    euros = np.exp(rng.normal(4.5, 1.3, len(payer))) * np.where(company[payer], 10, 1)
    size = np.exp(rng.normal(6.5, 1.3, len(stages.kind)))
    total = (size * stages.widest)[stages.pattern]
    noise = rng.uniform(0.8, 1.2, len(total))
    euros[len(euros) - len(total) :] = total / stages.width * KEPT**stages.stage * noise
    amount = np.maximum(np.round(euros / _VALUE[_CURRENCY_OF[country[payer]]], 2), 0.01)
    normal = len(payer) - len(stages.pattern)
    kind = np.append(
        rng.choice(len(FORMATS), normal, p=_FORMAT_SHARES),
        rng.choice(len(FORMATS), len(stages.pattern), p=_LAUNDERING_SHARES),
    )
    pattern = np.append(np.full(normal, -1), stages.pattern)
    order = np.argsort(time, kind="stable")
    return World(
        bank, company, country, opened, payer[order], payee[order], time[order], amount[order], kind[order],
        pattern[order], stages.kind,
    )  # fmt: skip


def _normal_ends(
    rng: np.random.Generator, company: np.ndarray, payments_per_account: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw payers and payees of normal payments."""
    n = len(company)
    # Pareto weights, capped so that no account has a constant share of all payments.
    activity = np.minimum(rng.random(n) ** (-1 / 1.5), np.sqrt(n)) * np.where(company, 3, 1)
    total = np.cumsum(activity)
    count = round(n * payments_per_account)

    def drawn(number: int) -> np.ndarray:
        found: np.ndarray = np.searchsorted(total, rng.random(number) * total[-1], side="right")
        return found.clip(max=n - 1)

    payer = drawn(count)
    regular = drawn(n * REGULAR_PAYEES).reshape(n, REGULAR_PAYEES)
    payee = np.where(
        rng.random(count) < REGULAR, regular[payer, rng.integers(0, REGULAR_PAYEES, count)], drawn(count)
    )
    # A payment to oneself goes to the next account instead.
    payee = np.where(payee == payer, (payee + 1) % n, payee)
    return payer, payee


@dataclass(frozen=True, eq=False)
class _Stages:
    """The L payments of P laundering patterns.

    Attributes:
        source, target, stage, pattern: [L], two accounts, the stage in the pattern, and the pattern.
        width: [L], the number of payments of the stage.
        kind: [P], an index into PATTERNS.
    """

    source: np.ndarray
    target: np.ndarray
    stage: np.ndarray
    width: np.ndarray
    pattern: np.ndarray
    kind: np.ndarray

    @property
    def widest(self) -> np.ndarray:
        """The number of payments of each pattern's widest stage, [P]."""
        found = np.ones(len(self.kind), dtype=np.int64)
        np.maximum.at(found, self.pattern, self.width)
        return found


def _launder(
    rng: np.random.Generator, bank: np.ndarray, illicit: float, cross_bank: float, normal: int
) -> _Stages:
    """Draw patterns until they have the wanted share of all payments."""
    wanted = round(normal * illicit / (1 - illicit))
    rows: list[np.ndarray] = []
    kinds: list[int] = []
    found = 0
    # The accounts from which members are drawn: about two patterns for each of them.
    pool = rng.choice(len(bank), min(max(wanted // 2, 64), len(bank)), replace=False)
    # A loop is enough: patterns are far fewer than payments.
    while found < wanted:
        number = int(rng.integers(len(PATTERNS)))
        edges = pattern_edges(PATTERNS[number], int(rng.integers(2, 6)))
        members = _members(rng, bank, pool, int(edges[:, :2].max()) + 1, cross_bank)
        width = np.bincount(edges[:, 2])[edges[:, 2]]
        rows.append(
            np.column_stack([members[edges[:, :2]], edges[:, 2], width, np.full(len(edges), len(kinds))])
        )
        kinds.append(number)
        found += len(edges)
    every = np.concatenate(rows) if rows else np.zeros((0, 5), dtype=np.int64)
    source, target, stage, width, pattern = every.T
    return _Stages(source, target, stage, width, pattern, np.array(kinds, dtype=np.int64))


def pattern_edges(pattern: str, k: int) -> np.ndarray:
    """List the payments of a laundering pattern.

    Args:
        pattern: One of PATTERNS.
        k: Its size; k of a bipartite pattern and of a stack is at most 4.

    Returns:
        One row for each payment: the member that sends it, the member that receives it, and its stage.
    """
    across = min(k, 4)
    forms: dict[str, Sequence[tuple[int, int, int]]] = {
        "fan_out": [(0, i, 0) for i in range(1, k + 1)],
        "fan_in": [(i, 0, 0) for i in range(1, k + 1)],
        "cycle": [(i, (i + 1) % (k + 1), i) for i in range(k + 1)],
        "random": [(i, i + 1, i) for i in range(k + 1)],
        "scatter_gather": [
            *((0, i, 0) for i in range(1, k + 1)),
            *((i, k + 1, 1) for i in range(1, k + 1)),
        ],
        "gather_scatter": [
            *((i, 0, 0) for i in range(1, k + 1)),
            *((0, k + i, 1) for i in range(1, k + 1)),
        ],
        "bipartite": [(i, across + j, 0) for i in range(across) for j in range(across)],
        "stack": [
            (stage * across + i, (stage + 1) * across + j, stage)
            for stage in range(2)
            for i in range(across)
            for j in range(across)
        ],
    }
    return np.array(forms[pattern], dtype=np.int64)


def _members(
    rng: np.random.Generator, bank: np.ndarray, pool: np.ndarray, count: int, cross_bank: float
) -> np.ndarray:
    """Draw different accounts of a pool, at any bank or at that of the first one."""
    members = rng.choice(pool, count, replace=False)
    same = pool[bank[pool] == bank[members[0]]]
    stays = np.flatnonzero(rng.random(count) >= cross_bank)
    # A small bank may have too few accounts in the pool; the others are then at any bank.
    chosen = rng.permutation(np.setdiff1d(same, members))[: len(stays)]
    members[stays[: len(chosen)]] = chosen
    return members


def _check(
    accounts: int, banks: int, payments_per_account: float, illicit: float, cross_bank: float, days: int
) -> None:
    for name, value, least, most in (
        ("accounts", accounts, 100, MAX_ACCOUNTS),
        ("banks", banks, 1, 1000),
        ("days", days, 1, 3650),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(f"payments: {name}={value!r} must be a whole number from {least} to {most}")
    for name, number, largest in (
        ("payments_per_account", payments_per_account, 1000),
        ("illicit", illicit, 0.5),
        ("cross_bank", cross_bank, 1),
    ):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= largest:
            raise InputError(f"payments: {name}={number!r} must be a number from 0 to {largest}")
    if banks > accounts:
        raise InputError(f"payments: banks={banks} is more than accounts={accounts}; use fewer banks")
    if accounts * payments_per_account > MAX_PAYMENTS:
        raise InputError(
            f"payments: accounts={accounts} times payments_per_account={payments_per_account:g} is more than "
            f"{MAX_PAYMENTS} payments; use fewer of either"
        )

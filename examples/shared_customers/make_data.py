"""Three banks that share customers: banks.yaml, and for each a folder with customers.csv, transfers.csv and
bank.yaml.

Generated, from a fixed seed: 900 people, of whom six in ten have accounts at two or three of the banks. Every
bank lists its own customers, each with the same features at all of them (from the tax office, scaled), and
the transfers among its customers; one between accounts at two banks is in the lists of both. A person is
suspicious who deals with a business that takes much cash, through whichever bank: one that sees its own
transfers only misses what the others see. Each bank has looked into seven in ten of its customers and lacks
the labels of the rest.

    python examples/shared_customers/make_data.py [FOLDER]
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

BANKS = ("Northbank", "Harbour Trust", "Union Savings")
PEOPLE, TRANSFERS = 900, 2200
COLUMNS = ("customer", "age", "years_here", "income", "cash_business", "suspicious", "part")
#: The description that graphfed reads: each bank's files, then the columns, which are the same in all.
CONFIG = """\
clients:
  Northbank: {nodes: northbank/customers.csv, edges: northbank/transfers.csv}
  Harbour Trust: {nodes: harbour_trust/customers.csv, edges: harbour_trust/transfers.csv}
  Union Savings: {nodes: union_savings/customers.csv, edges: union_savings/transfers.csv}
id: customer
label: suspicious
split: part
source: payer
target: payee
name: banks
"""
#: The description of one bank's own files, beside them, which is the same at all: what a bank reads in a
#: deployment.
OWN = """\
nodes: customers.csv
edges: transfers.csv
id: customer
label: suspicious
classes: ['no', 'yes']
split: part
source: payer
target: payee
"""


def people(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """at [n, 3] bool: who has an account where; features [n, 4]: the four columns after the name."""
    at = np.zeros((PEOPLE, len(BANKS)), dtype=bool)
    for accounts, person in zip(rng.choice(3, size=PEOPLE, p=(0.4, 0.4, 0.2)) + 1, at, strict=True):
        person[rng.choice(3, size=accounts, replace=False, p=(0.45, 0.3, 0.25))] = True
    age = rng.normal(size=PEOPLE).round(2)
    income = (0.5 * age + rng.normal(size=PEOPLE)).round(2)
    cash_business = (rng.random(PEOPLE) < 0.13).astype(float)
    return at, np.stack((age, rng.exponential(size=PEOPLE).round(2), income, cash_business), axis=1)


def transfers(at: np.ndarray, rng: np.random.Generator) -> list[tuple[int, int, frozenset[int]]]:
    """Payer, payee and the banks that list the transfer: those of the two accounts. Both people are customers
    of each of these: a bank knows no features of anyone else."""
    listed = []
    while len(listed) < TRANSFERS:
        payer, payee = rng.integers(PEOPLE, size=2).tolist()
        common = np.flatnonzero(at[payer] & at[payee]).tolist()
        if payer != payee and common:
            listed.append((payer, payee, frozenset(rng.choice(common, size=2).tolist())))
    return listed


def labels(
    features: np.ndarray, pairs: list[tuple[int, int, frozenset[int]]], rng: np.random.Generator
) -> np.ndarray:
    """suspicious [n] bool: who deals with a cash business; for one in 25 it is the other way round."""
    ends = np.array([(payer, payee) for payer, payee, _ in pairs])
    contact = np.zeros(PEOPLE, dtype=bool)
    for own, other in (ends.T, ends.T[::-1]):
        contact[own[features[other, 3] == 1]] = True
    return contact ^ (rng.random(PEOPLE) < 0.04)


def write(path: Path, head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)


def main(folder: Path) -> None:
    """Write the ten files."""
    rng = np.random.default_rng(11)
    at, features = people(rng)
    pairs = transfers(at, rng)
    suspicious = labels(features, pairs, rng)
    part = rng.choice(["train", "val", "test"], size=PEOPLE, p=(0.5, 0.2, 0.3))
    name = [f"P{i:04d}" for i in range(PEOPLE)]
    for bank, title in enumerate(BANKS):
        customers = rng.permutation(np.flatnonzero(at[:, bank]))
        looked_into = rng.random(PEOPLE) < 0.7
        found = [
            ("yes" if suspicious[i] else "no", part[i]) if looked_into[i] else ("", "") for i in customers
        ]
        rows = [(name[i], *features[i].tolist(), *label) for i, label in zip(customers, found, strict=True)]
        own = folder / title.lower().replace(" ", "_")
        write(own / "customers.csv", COLUMNS, rows)
        listed = [(name[payer], name[payee]) for payer, payee, banks in pairs if bank in banks]
        write(own / "transfers.csv", ("payer", "payee"), listed)
        (own / "bank.yaml").write_text(OWN, encoding="utf-8")
    (folder / "banks.yaml").write_text(CONFIG, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

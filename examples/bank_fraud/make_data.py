"""Three banks whose customers send each other money: accounts.csv, transfers.csv and bank.yaml.

Generated, from a fixed seed: 20,000 accounts, 1 % of them fraudulent. A fraudulent account differs a little
in every column, by less than honest accounts differ among themselves. It sends four of ten transfers to other
fraudulent accounts, mostly at other banks: a bank that sees its own transfers only misses what the three see
together. Amounts are in euros and heavy-tailed, shares are between 0 and 1.

The labels of a fifth of the accounts are not known yet. The others are for training (half), validation and
test (a quarter each), every class in these proportions, because a part without fraud could not be scored.

    python examples/bank_fraud/make_data.py [FOLDER]
"""

import csv
import sys
from pathlib import Path

import numpy as np

BANKS = ("Northbank", "Harbour Trust", "Union Savings")
ACCOUNTS, FRAUDULENT, TRANSFERS = 20_000, 200, 60_000
#: Of a fraudulent account's transfers, how many go to others of its kind, mostly at other banks.
TO_OTHER_FRAUD = 0.4
#: Parts, and the share of the accounts of each class in them; "" is not known yet.
PARTS = {"train": 0.4, "val": 0.2, "test": 0.2, "": 0.2}
#: The description that graphfed reads, the method, and how to train where one class is rare.
CONFIG = """\
method: fedgcn
data:
  nodes: accounts.csv
  edges: transfers.csv
  id: account
  client: bank
  label: fraud
  split: part
  source: payer
  target: payee
set:
  class_weights: balanced
"""


def accounts(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The columns of accounts.csv."""
    fraud = np.zeros(ACCOUNTS, dtype=bool)
    fraud[rng.permutation(ACCOUNTS)[:FRAUDULENT]] = True
    # How far a fraudulent account's columns are shifted, in the unit of each distribution.
    shift = fraud.astype(float)
    return {
        "account": np.array([f"{i:05d}" for i in range(ACCOUNTS)]),
        "bank": np.array(BANKS)[rng.choice(3, ACCOUNTS, p=(0.5, 0.3, 0.2))],
        "age_days": rng.gamma(2, 600 - 250 * shift).round(),
        "balance": np.exp(rng.normal(7.5 - 0.8 * shift, 1.4)).round(2),
        "monthly_turnover": np.exp(rng.normal(7.0 + 0.8 * shift, 1.2)).round(2),
        "night_share": rng.beta(2 + shift, 6).round(3),
        "foreign_share": rng.beta(2 + shift, 8).round(3),
        "fraud": np.where(fraud, "yes", "no"),
        "part": parts(fraud, rng),
    }


def parts(fraud: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A part for each account: of either class, in random order, the shares of PARTS."""
    part = np.empty(len(fraud), dtype=object)
    for kind in (False, True):
        members = rng.permutation(np.flatnonzero(fraud == kind))
        ends = np.rint(np.cumsum(list(PARTS.values())) * len(members)).astype(int)
        for name, chosen in zip(PARTS, np.split(members, ends), strict=False):
            part[chosen] = name
    return part


def transfers(columns: dict[str, np.ndarray], rng: np.random.Generator) -> list[tuple[str, str]]:
    """Payer and payee. Some payees, as shops, are paid by many."""
    fraud, bank = columns["fraud"] == "yes", columns["bank"]
    popular = rng.pareto(1.5, ACCOUNTS) + 0.2
    payer = rng.integers(ACCOUNTS, size=TRANSFERS)
    payee = rng.choice(ACCOUNTS, TRANSFERS, p=popular / popular.sum())
    crooks = np.flatnonzero(fraud)
    for i in np.flatnonzero(fraud[payer] & (rng.random(TRANSFERS) < TO_OTHER_FRAUD)):
        elsewhere = crooks[bank[crooks] != bank[payer[i]]]
        payee[i] = rng.choice(elsewhere if rng.random() < 0.8 else crooks)
    kept = payer != payee
    names = columns["account"]
    return list(zip(names[payer[kept]].tolist(), names[payee[kept]].tolist(), strict=True))


def main(folder: Path) -> None:
    """Write the three files."""
    rng = np.random.default_rng(7)
    columns = accounts(rng)
    pairs = transfers(columns, rng)
    columns["fraud"] = np.where(columns["part"] == "", "", columns["fraud"])  # not known yet
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "accounts.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    with (folder / "transfers.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("payer", "payee"))
        writer.writerows(pairs)
    (folder / "bank.yaml").write_text(CONFIG, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

"""Three banks whose customers send each other money: accounts.csv, transfers.csv and bank.yaml.

Generated, from a fixed seed: 1,200 accounts, a third of them fraudulent. A fraudulent account looks much like
others, but sends to other fraudulent accounts more often than by chance, and mostly to other banks' accounts:
a bank that sees its own transfers only misses what the three see together.

    python examples/bank_fraud/make_data.py [FOLDER]
"""

import csv
import sys
from pathlib import Path

import numpy as np

BANKS = ("Northbank", "Harbour Trust", "Union Savings")
ACCOUNTS, TRANSFERS = 1200, 4200
#: The description that graphfed reads, and what to do with it: ten lines.
CONFIG = """\
method: fedgcn
data:
  nodes: accounts.csv
  edges: transfers.csv
  id: account
  site: bank
  label: fraud
  split: part
  source: payer
  target: payee
"""


def accounts(rng: np.random.Generator) -> list[dict[str, object]]:
    """One row for each account."""
    rows = []
    for i in range(ACCOUNTS):
        fraud = bool(rng.random() < 1 / 3)
        rows.append(
            {
                "account": f"{i:04d}",
                "bank": BANKS[rng.choice(3, p=(0.5, 0.3, 0.2))],
                "age_days": round(float(rng.gamma(2, 200 if fraud else 400) / 1000), 3),
                "balance": round(float(rng.normal(-0.2 if fraud else 0.2, 0.8)), 3),
                "night_share": round(float(rng.beta(3, 6) if fraud else rng.beta(2, 6)), 3),
                "foreign_share": round(float(rng.beta(2, 5) if fraud else rng.beta(2, 6)), 3),
                "fraud": "yes" if fraud else "no",
                "part": rng.choice(["train", "val", "test", ""], p=(0.35, 0.2, 0.25, 0.2)),
            }
        )
    return rows


def transfers(rows: list[dict[str, object]], rng: np.random.Generator) -> list[tuple[str, str]]:
    """Payer and payee: six of ten transfers of a fraudulent account go to others of its kind."""
    truth = np.array([row["fraud"] == "yes" for row in rows])
    crooks = np.flatnonzero(truth)
    pairs = []
    for _ in range(TRANSFERS):
        payer = int(rng.integers(ACCOUNTS))
        to_crook = truth[payer] and rng.random() < 0.6
        payee = int(rng.choice(crooks)) if to_crook else int(rng.integers(ACCOUNTS))
        if payer != payee:
            pairs.append((str(rows[payer]["account"]), str(rows[payee]["account"])))
    return pairs


def main(folder: Path) -> None:
    """Write the three files."""
    rng = np.random.default_rng(7)
    rows = accounts(rng)
    pairs = transfers(rows, rng)
    for row in rows:
        if not row["part"]:
            row["fraud"] = ""  # not known yet
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "accounts.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    with (folder / "transfers.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("payer", "payee"))
        writer.writerows(pairs)
    (folder / "bank.yaml").write_text(CONFIG, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

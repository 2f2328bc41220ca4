"""Record who finds laundering accounts in generated payments between banks (`--data payments`), and what
edges between banks, and the directions, amounts and times of payments, are worth.

Rows: GINE with reverse messages, which reads directions, amounts, currencies, formats and times, and a GCN,
which reads none of them, in central training, in the halo exchange (edges between banks, exact), in FedAvg
(edges inside banks) and alone; gradient-boosted trees on the accounts' own features, and on these with the
means of their neighbours, of all banks and of each bank. A seed draws world and split. Differences are paired
by seed, with the 95 % interval of Student's t distribution. The default is a reduced world: 10 000 accounts
at 10 banks, 0.5 % of the payments illicit, 80 rounds, 32 hidden units."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

import torch
from measure import add_common_options, finish, load_average

import graphfed
from graphfed.studies.paired import paired_difference

GNN = {"hidden": 32}
#: Method and settings of each row.
ROWS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{f"{m}_gine": (m, {"backbone": "gine", **GNN}) for m in ("central", "halo", "fedavg", "isolated")},
    **{f"{m}_gcn": (m, {"backbone": "gcn", **GNN}) for m in ("central", "halo", "fedavg", "isolated")},
    **{
        f"boosting_{where}_{columns}": (f"boosting_{where}", {"columns": columns})
        for where in ("central", "local")
        for columns in ("own", "neighbours")
    },
}
#: What is worth how much: the difference of the first row to the second.
WORTH = {
    "edges between banks, gine": ("halo_gine", "fedavg_gine"),
    "edges between banks, gcn": ("halo_gcn", "fedavg_gcn"),
    "directions, attributes and times": ("halo_gine", "halo_gcn"),
    "federation on edges inside banks, gine": ("fedavg_gine", "isolated_gine"),
    "gine over boosting, all banks": ("central_gine", "boosting_central_neighbours"),
}
METRICS = ("average_precision", "auc", "recall_at_1_percent")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "payments")
    parser.add_argument("--accounts", type=int, default=10_000)
    parser.add_argument("--illicit", type=float, default=0.005)
    parser.add_argument("--rounds", type=int, default=80)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    world = {"data.accounts": options.accounts, "data.illicit": options.illicit}
    rounds, seeds = options.rounds, (0, 1, 2)
    if options.tiny:
        world, rounds, seeds = {"data.accounts": 400, "data.illicit": 0.05}, 2, (0, 1)
    rows: dict[str, Any] = {}
    for name, (method, settings) in ROWS.items():
        given = {"rounds": rounds} if "backbone" in settings else {}
        runs = [
            graphfed.run(
                method,
                data="payments",
                seed=seed,
                out=False,
                threads=options.threads,
                settings={**world, "data.seed": seed, **settings},
                **given,
            )
            for seed in seeds
        ]
        found = {metric: [100 * run.test[metric] for run in runs] for metric in METRICS}
        rows[name] = {
            metric: {"mean": mean(values), "values": values} for metric, values in found.items()
        } | {
            "seconds": mean(run.seconds["total"] for run in runs),
            "mb": mean(_megabytes(run) for run in runs),
        }
        print(name, {metric: round(rows[name][metric]["mean"], 1) for metric in METRICS}, flush=True)
    worth: dict[str, Any] = {}
    for what, (one, other) in WORTH.items():
        values = [rows[name]["average_precision"]["values"] for name in (one, other)]
        difference = paired_difference(*values)
        worth[what] = None if difference is None else asdict(difference)
    asked = {"world": world, "rounds": rounds, "seeds": seeds, "threads": options.threads}
    finish(options.out, began, load_before, {**asked, "rows": rows, "worth": worth})


def _megabytes(run: Any) -> float:
    return float(run.bytes["total"]) / 1e6


if __name__ == "__main__":
    main()

"""
Three banks and one graph
=========================

Three banks want to find fraudulent accounts. Each has its own customers; customers of different banks send
each other money, and fraud shows in who pays whom. None of the banks shows the others its accounts. This
tutorial goes from two tables to a model, to what the model is worth, and to what left each bank.
"""

# %%
# The data
# --------
# The example's script writes one table of accounts, one of transfers, and a description of both in YAML:
# which column is the id, which names the bank, which holds the label.

import json
import runpy
import tempfile
import textwrap
from pathlib import Path

import graphfed as gf

clone = Path(gf.__file__).parents[1]
make_data = runpy.run_path(str(clone / "examples/bank_fraud/make_data.py"))["main"]
folder = Path(tempfile.mkdtemp())
make_data(folder)
print((folder / "bank.yaml").read_text())
print(*(folder / "accounts.csv").read_text().splitlines()[:4], sep="\n")

# %%
# Before training, look: is there enough to train on at every site, how skewed are the classes, how many
# edges would be lost if banks dropped those between them? (On the command line: ``graphfed data inspect
# bank.yaml``.)

found = gf.inspect(folder / "bank.yaml")
for row in found.overview["clients"]:
    edges = f"{row['edges']:4} transfers inside, {row['cross_client_edges']:4} to others"
    print(f"{row['name']:14} {row['nodes']:4} accounts, {edges}")
cut = found.overview["cross_client_edges"]
print(f"{cut['count']} of {found.overview['edges']} edges join two banks")

# %%
# What is it worth to train together?
# -----------------------------------
# Three rows stand beside every figure. *isolated*: every bank alone. *central*: one party holds
# everything, which is what the banks do not want. *fedavg*: the banks average their weights and drop the
# edges between them. *fedgcn* exchanges sums of features of neighbours once, before training, so that
# edges between banks count.
#
# One account in a hundred is fraudulent, so accuracy says nothing: the table has average precision, the area
# under the ROC curve, and the share of the fraud among the 1 % of accounts that score highest. With balanced
# class weights the few fraudulent accounts count as much in training as all others.

comparison = gf.compare(
    ["fedgcn"],
    data=folder / "bank.yaml",
    seeds=[0, 1],
    rounds=40,
    class_weights="balanced",
    out=folder / "compare",
)
print(comparison)

# %%
# Average precision by round, the mean of the two seeds:

import matplotlib.pyplot as plt

figure, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
for row in comparison.rows:
    curves = []
    for run in row["folders"]:
        lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
        curves.append([line["val"]["average_precision"] for line in lines])
    ax.plot([100 * sum(values) / len(values) for values in zip(*curves, strict=True)], label=row["label"])
ax.set_xlabel("communication round")
ax.set_ylabel("average precision on validation accounts, percent")
ax.legend(frameon=False)
plt.show()

# %%
# What left each bank?
# --------------------
# Every transfer is named and counted in a ledger as it crosses. ``clear`` means that the receiver read
# it: fedgcn's sums, and every bank's weights.

result = gf.run("fedgcn", data=folder / "bank.yaml", rounds=40, class_weights="balanced", out=folder / "run")
ledger = json.loads((folder / "run" / "ledger.json").read_text())
for entry in ledger["entries"]:
    if entry["from"] == "clients" and entry["phase"] in ("setup", "train"):
        times = f"{entry['bytes']:9,} bytes in {entry['transfers']:3} transfers"
        print(f"{entry['name']:24} {entry['protection']:6} {times}")

# %%
# How much is that worth to an attacker? The checks of ``graphfed audit`` are attacks on the finished run.
# One of them reads accounts' features out of fedgcn's sums: a sum over a single neighbour is that
# neighbour.

from graphfed.audit.run import audit

for name, finding in audit(folder / "run").findings.items():
    if name != "plaintext_transfers":  # the list above again
        print(f"{name}:", *textwrap.wrap(finding.result, 100), sep="\n    ")

# %%
# Using the model
# ---------------
# A class and a probability for every account, the unlabelled ones included:

table = gf.predict(folder / "run")
for row in table.slice(0, 5).to_pylist():
    print(f"{row['id']}  {row['client_name']:14} {row['prediction_name']:4} {row['probability']:.2f}")

# %%
# The same as one page for people who were not there: ``graphfed report`` writes ``report.html`` into the
# folder.

from graphfed.report.page import write_report

print(write_report([folder / "run"]).name)

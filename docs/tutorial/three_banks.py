"""
Three banks and one graph
=========================

Three banks want to find fraudulent accounts. Each bank has its own customers. Customers of different banks
send each other money, and the pattern of payments reveals fraud. No bank may show its accounts to the others.
This tutorial loads two tables, trains a model, measures what the model gains, and lists what each bank sends.
"""

# %%
# The data
# --------
# The script of the example writes a table of accounts, a table of transfers, and a description of both in
# YAML. The description says which columns contain the id, the bank and the label.

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
# Inspect the graph before training: does every bank have enough accounts to train on, how skewed are the
# classes, and how many edges would be lost if the banks dropped the edges between them? (On the command
# line: ``graphfed data inspect bank.yaml``.)

found = gf.inspect(folder / "bank.yaml")
for row in found.overview["clients"]:
    edges = f"{row['edges']:4} transfers inside, {row['cross_client_edges']:4} to others"
    print(f"{row['name']:14} {row['nodes']:4} accounts, {edges}")
cross = found.overview["cross_client_edges"]
print(f"{cross['count']} of {found.overview['edges']} edges join two banks")

# %%
# What is it worth to train together?
# -----------------------------------
# Every comparison contains three reference rows. In *isolated* every bank trains alone. In *central* all data
# is in one place, which the banks do not want. In *fedavg* the banks average their gradients and drop the
# edges between banks. *fedgcn* exchanges sums of neighbours' features once, before training, and so uses the
# edges between banks.
#
# One account in a hundred is fraudulent, so accuracy is not informative. The table therefore has the average
# precision, the area under the ROC curve, and the percentage of the fraud that is among the 1 % of accounts
# with the highest scores. With balanced class weights, the few fraudulent accounts have the same total
# weight in training as all others.

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
# What does each bank send?
# -------------------------
# Every transfer has a name, and a ledger counts its bytes when it is sent. ``plaintext`` means that the
# receiver reads it: the sums of fedgcn, and the gradients of every bank.

result = gf.run("fedgcn", data=folder / "bank.yaml", rounds=40, class_weights="balanced", out=folder / "run")
ledger = json.loads((folder / "run" / "ledger.json").read_text())
for entry in ledger["entries"]:
    if entry["from"] == "clients" and entry["phase"] in ("setup", "train"):
        times = f"{entry['bytes']:9,} bytes in {entry['transfers']:3} transfers"
        print(f"{entry['name']:24} {entry['protection']:9} {times}")

# %%
# What can an attacker do with these messages? The checks of ``graphfed audit`` are attacks on the finished
# run. One of them extracts features of accounts from the sums of fedgcn: a sum over a single neighbour is
# the features of that neighbour.

from graphfed.audit.run import audit

for name, finding in audit(folder / "run").findings.items():
    if name != "plaintext_transfers":  # the list above again
        print(f"{name}:", *textwrap.wrap(finding.result, 100), sep="\n    ")

# %%
# Using the model
# ---------------
# The model predicts a class and a probability for every account, including the unlabelled ones:

table = gf.predict(folder / "run")
for row in table.slice(0, 5).to_pylist():
    print(f"{row['id']}  {row['client_name']:14} {row['prediction_name']:4} {row['probability']:.2f}")

# %%
# ``graphfed report`` writes the result as one page, ``report.html``, into the folder of the run.

from graphfed.report.page import write_report

print(write_report([folder / "run"]).name)

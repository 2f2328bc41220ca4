# %% [markdown]
# # From two tables to a deployment
#
# Three banks want to find fraudulent accounts. Each bank has its own customers, customers of different banks send each other money, and no bank may show its accounts to the others. This notebook goes the whole way: it writes the tables, describes and checks them, trains, compares with a bank that trains alone and with all data in one place, reads the report and the ledger, attacks the result, predicts, and ends with the commands that deploy the same method on real machines.
#
# The method is [FedGCN](../../docs/papers/fedgcn.md): before training the banks send sums of their neighbours' features to a server, which returns the sums over all banks; in training they send gradients.
#
# ## The tables
#
# The example of three banks in `examples/bank_fraud` generates the data. Replace the two tables by your own and keep the rest.

# %%
import csv
import json
import os
import runpy
import subprocess
import sys
import tempfile
import textwrap
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
from IPython.display import Image

import graphfed as gf
from graphfed.audit.run import audit
from graphfed.errors import InputError
from graphfed.report.page import write_report

clone = Path(gf.__file__).parents[1]
os.chdir(tempfile.mkdtemp())  # everything is written here
runpy.run_path(str(clone / "examples/bank_fraud/make_data.py"))["main"](Path("bank"))
for table in ("accounts.csv", "transfers.csv"):
    print(table, *Path("bank", table).read_text().splitlines()[:4], sep="\n    ")

# %% [markdown]
# ## The description
#
# A file in YAML says what the columns are: which identifies an account, which names its bank, which is the label, and which says whether the account is for training, validation or test. Every other column of accounts is a feature. An empty label is not known yet.

# %%
description = """\
nodes: accounts.csv
edges: transfers.csv
id: account
client: bank
label: fraud
split: part
source: payer
target: payee
"""
Path("bank/data.yaml").write_text(description)
print("bank/data.yaml has", len(description.splitlines()), "keys")

# %% [markdown]
# ## Checking before training
#
# A file that cannot be used is refused in one line that names the file, the line, the column and the fix. We break a copy to see it:

# %%
lines = Path("bank/accounts.csv").read_text().splitlines()
row = lines[5].split(",")
row[lines[0].split(",").index("balance")] = "unknown"
Path("bank/broken.csv").write_text("\n".join([*lines[:5], ",".join(row), *lines[6:]]))
try:
    gf.inspect({"nodes": "bank/broken.csv", "edges": "bank/transfers.csv", "id": "account", "client": "bank",
                "label": "fraud", "split": "part", "source": "payer", "target": "payee"})  # fmt: skip
except InputError as error:
    print(*textwrap.wrap(f"refused: {error}", 100), sep="\n")
else:
    raise AssertionError("the broken table was not refused")

# %% [markdown]
# `inspect` shows what training will meet. Has every bank enough known fraud? How many edges would be lost if the banks dropped the transfers between them?

# %%
found = gf.inspect("bank/data.yaml")
for bank in found.overview["clients"]:
    edges = f"{bank['edges']:6,} edges inside, {bank['cross_client_edges']:6,} to other banks"
    print(f"{bank['name']:14} {bank['nodes']:6,} accounts, {edges}")
cross = found.overview["cross_client_edges"]["count"]
print(f"{cross / found.overview['edges']:.0%} of the edges join two banks")
print("methods that can use the data:", *(name for name, problem in found.methods.items() if problem is None))

# %% [markdown]
# `graphfed data inspect bank/data.yaml --out bank.png` prints the same, and draws it:

# %%
command = [sys.executable, "-m", "graphfed", "data", "inspect", "bank/data.yaml", "--out", "bank.png"]
subprocess.run(command, check=True, capture_output=True)
Image("bank.png", width=700)

# %% [markdown]
# ## What is it worth to train together?
#
# In `isolated` every bank trains on its own data only. In `central` all data is in one place, which the banks do not want. In `fedavg` the banks average gradients and drop the edges between them. All rows have the same split and partition, which are in the file, and two seeds.
#
# Few accounts are fraudulent, so accuracy says nothing. We look at the average precision, and at the recall: how much of the fraud is among the 1 % of accounts with the highest scores?

# %%
training = {"rounds": 40, "class_weights": "balanced"}
comparison = gf.compare(
    ["fedgcn"], data="bank/data.yaml", seeds=[0, 1], eval_every=2, out="compare", **training
)
rows = {row["label"]: row for row in comparison.rows}
precision = {name: row["test"]["average_precision"]["mean"] for name, row in rows.items()}
recall = {name: row["test"]["recall_at_1_percent"]["mean"] for name, row in rows.items()}

figure, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
names = ("central", "fedgcn", "fedavg", "isolated")
for place, name in enumerate(names):
    spread = rows[name]["test"]["average_precision"]["std"]
    ax.barh(place, precision[name], xerr=spread, capsize=3, color="C0" if name == "fedgcn" else "lightgrey")
    print(f"{name:8}  average precision {precision[name]:.2f}, recall {recall[name]:.2f}")
ax.set_yticks(range(len(names)), names)
ax.invert_yaxis()
ax.set_xlabel("average precision on test accounts, mean and deviation of two seeds")
plt.show()

assert precision["fedgcn"] > 2 * precision["isolated"] and precision["fedgcn"] > 2 * precision["fedavg"]
assert abs(precision["fedgcn"] - precision["central"]) < 0.03

# %% [markdown]
# The federation is worth it: FedGCN is as good as all data in one place, and a bank alone finds much less. The gain comes from the edges between banks, because `fedavg`, which drops them, does not have it.
#
# ## One run, its report and its ledger
#
# A run writes a folder. The report is one page, `report.html`, that opens in any browser without a network. These are its sections:

# %%
gf.run("fedgcn", data="bank/data.yaml", seed=0, out="run", **training)


class Headings(HTMLParser):
    """Prints the headings of a page."""

    inside = False

    def handle_starttag(self, tag, attributes):
        self.inside = tag == "h2"

    def handle_data(self, data):
        if self.inside:
            print("-", data)
        self.inside = False


Headings().feed(write_report(["run"]).read_text())

# %% [markdown]
# The ledger has every transfer with its bytes and its protection. `plaintext` means that the receiver reads the message.

# %%
for entry in json.loads(Path("run/ledger.json").read_text())["entries"]:
    if entry["phase"] in ("setup", "train"):
        way = f"{entry['from']} to {entry['to']}"
        print(f"{entry['name']:20} {way:18} {entry['protection']:6} {entry['bytes']:9,} bytes")

# %% [markdown]
# **What it reveals.** The server reads the sums of each bank, and learns which accounts of a bank have neighbours elsewhere. A sum over a single neighbour is the features of that neighbour. It also reads each bank's gradients. It reads no label.
#
# ## What an attacker can compute from it
#
# `audit` attacks the finished run:

# %%
findings = audit("run").findings
for name, finding in findings.items():
    if name != "plaintext_transfers":  # the list above again
        print(f"{name}:", *textwrap.wrap(finding.result, 100), sep="\n    ")
assert findings["fedgcn_features"].value > 0.1

# %% [markdown]
# The server reads features of many accounts. If that is not acceptable, `exchange=encrypted` lets it add up ciphertexts, and `aggregation=secure` hides each bank's gradient in the sum (both need the extra `secure`). [Security](../../docs/security.md) says what each of these settings protects, and what it still leaks.
#
# ## Predictions
#
# The model predicts a class and a probability for every account. Those whose label is not known, with the highest probability of fraud:

# %%
table = gf.predict("run")
unknown = [row for row in table.to_pylist() if row["label_name"] is None]
for row in sorted(unknown, key=lambda row: -row["probability_1"])[:5]:
    print(f"account {row['id']} of {row['client_name']:14} probability of fraud {row['probability_1']:.2f}")

# %% [markdown]
# ## The files of each bank
#
# In a deployment every bank reads only its own files. An account of another bank stands in them as the other end of a transfer, by bank and number. We divide the tables as the banks would have them:

# %%
with open("bank/accounts.csv", newline="") as file:
    accounts = list(csv.DictReader(file))
with open("bank/transfers.csv", newline="") as file:
    transfers = list(csv.DictReader(file))
for account in accounts:  # the names of sites have no blanks
    account["bank"] = account["bank"].lower().replace(" ", "_")
site = {account["account"]: account["bank"] for account in accounts}
for bank in sorted({*site.values()}):
    folder = Path("sites", bank)
    folder.mkdir(parents=True)
    own = [account for account in accounts if site[account["account"]] == bank]
    at_ends = [
        {**transfer, "payer_bank": site[transfer["payer"]], "payee_bank": site[transfer["payee"]]}
        for transfer in transfers
        if bank in (site[transfer["payer"]], site[transfer["payee"]])
    ]
    for name, content in (("accounts.csv", own), ("transfers.csv", at_ends)):
        with open(folder / name, "w", newline="") as file:
            writer = csv.DictWriter(file, content[0])
            writer.writeheader()
            writer.writerows(content)
    (folder / "bank.yaml").write_text(
        "nodes: accounts.csv\nedges: transfers.csv\nid: account\nclient: bank\nlabel: fraud\n"
        "classes: ['no', 'yes']\nsplit: part\nsource: payer\ntarget: payee\n"
        "source_client: payer_bank\ntarget_client: payee_bank\n"
    )
    print(f"{bank:14} {len(own):6,} accounts, {len(at_ends):6,} transfers")
print(*Path("sites/northbank/transfers.csv").read_text().splitlines()[:3], sep="\n")

# %% [markdown]
# ## The same run in separate processes
#
# A simulation computes all clients in one process. `runtime="processes"` starts a process for each bank, which exchanges messages with the others as in a deployment. The result is the same:

# %%
short = {"data": "bank/data.yaml", "seed": 0, "class_weights": "balanced", "rounds": 5, "out": False}
one = gf.run("fedgcn", **short)
separate = gf.run("fedgcn", runtime="processes", workers=3, **short)
for name in ("auc", "average_precision"):
    print(f"{name}: {one.test[name]:.3f} in one process, {separate.test[name]:.3f} in four")
    assert abs(one.test[name] - separate.test[name]) < 1e-3
assert one.bytes["total"] == separate.bytes["total"]

# %% [markdown]
# ## Deployment
#
# The last steps need a machine for each bank and one for the server, so they are not run here. First a rehearsal on one machine, with a process and certificates for every participant (extra `deploy`):
#
# ```console
# $ graphfed run fedgcn --data bank/data.yaml --clients 3 --runtime nvflare --rounds 5 --set class_weights=balanced --out rehearsal
# ```
#
# Then somebody whom all trust makes the startup kits, one for each participant, and hands them out:
#
# ```console
# $ graphfed site init --sites northbank,harbour_trust,union_savings --server fl.example.org:8002 --listen 0.0.0.0
# $ graphfed site provision
# ```
#
# Each of these runs on the machine of its participant, until it is stopped:
#
# ```console
# $ graphfed site start startup_kits/server
# $ graphfed site start startup_kits/northbank --data sites/northbank/bank.yaml
# $ graphfed site start startup_kits/harbour_trust --data sites/harbour_trust/bank.yaml
# $ graphfed site start startup_kits/union_savings --data sites/union_savings/bank.yaml
# ```
#
# The coordinator checks who is there, and starts the run:
#
# ```console
# $ graphfed site status startup_kits/coordinator
# $ graphfed run fedgcn --runtime nvflare --startup-kit startup_kits/coordinator --rounds 40 --set class_weights=balanced --out deployed
# ```
#
# Afterwards each bank reads in its own ledger what it has sent:
#
# ```console
# $ graphfed site sent startup_kits/northbank
# ```
#
# ## Where to go on
#
# - [Deployment](../../docs/deployment.md): several machines, services and containers, what an operator can forbid, interruptions
# - [Your own data](../../docs/data.md): every key of a description, other file formats, sensors
# - [Choosing a method](../../docs/choosing.md), [Who sees what](../../docs/visibility.md) and [Reading the report](../../docs/report.md)

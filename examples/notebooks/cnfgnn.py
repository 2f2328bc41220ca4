# %% [markdown]
# # CNFGNN: forecasting at sensors with a graph network at the server
#
# In CNFGNN (Meng, Rambhatla and Liu, KDD 2021) every client is one sensor, as a detector on a road, whose owner does not share its readings. The client encodes its recent readings into a hidden state and decodes its own forecast. The server holds the graph of the sensors, which is public, and a graph network. The network turns the hidden states of all sensors into an embedding of each sensor, which the server sends back.
#
# The paper's point is *alternating training*: clients and server train in turns, each while the other's part stands still, so that fewer messages are needed than in split learning. This notebook trains both ways, compares the errors, and checks the paper's formula of the bytes against the ledger. The paper's page has all equations: [CNFGNN](../../docs/papers/cnfgnn.md).
#
# ## The equations
#
# A window $\mathbf{x}_i$ of readings of sensor $i$ becomes a hidden state, and the hidden state and the embedding $\mathbf{h}_{G,c,i}$ of the server become a forecast:
#
# $$ \mathbf{h}_{c,i} = \operatorname{Encoder}(\mathbf{x}_i, \mathbf{0}) \tag{1} $$
#
# $$ \hat{\mathbf{y}}_i = \operatorname{Decoder}(\mathbf{x}_{i,m}, [\mathbf{h}_{c,i}; \mathbf{h}_{G,c,i}]) \tag{2} $$
#
# A round of alternating training has four steps:
#
# 1. The clients train encoder and decoder with the embeddings of the round before, and the server averages their weights.
# 2. The clients send the hidden states of all training windows.
# 3. The server trains its network $R_s$ times: it sends embeddings, and the clients return the gradient of their loss with respect to them.
# 4. The server sends the embeddings of the trained network.
#
# With $R$ rounds, $|\mathcal{V}|$ clients, $B_\theta$ bytes of weights and $B_h$ bytes of hidden states of a client this sends
#
# $$ R\cdot\left(2\,|\mathcal{V}|\,B_\theta + (1 + 2R_s + 1)\,|\mathcal{V}|\,B_h\right) \tag{7} $$

# %%
import json
import math
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import graphfed as gf
from graphfed.audit.run import audit
from graphfed.runs.run import Result

folder = Path(tempfile.mkdtemp())  # the runs are written here

# %% [markdown]
# ## The data
#
# `roads` is a generated network of sensors that comes with graphfed: two roads that cross, with a speed every five minutes. The weight of an edge falls with the distance of two sensors. Congestion moves along a road, so the readings of one sensor say something about those of the next.

# %%
roads = {"data.sensors": 10, "data.weeks": 2}
inspection = gf.inspect("roads", settings=roads)
sensors, windows = inspection.data, inspection.overview["windows"]
print(f"{sensors.num_sensors} sensors, {sensors.num_steps} readings of each")
print(f"windows of {windows['lags']} steps to read and {windows['horizon']} to forecast:", end=" ")
print(f"{windows['train']} to train, {windows['val']} to validate, {windows['test']} to test")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", width_ratios=(1, 2))
edges = sensors.adjacency.tocoo()
for sender, receiver, weight in zip(edges.row, edges.col, edges.data, strict=True):
    left.plot(*sensors.position[[sender, receiver]].T, color="grey", alpha=float(weight), linewidth=1.5)
left.scatter(*sensors.position.T, zorder=2)
for name, place in zip(sensors.ids, sensors.position, strict=True):
    left.annotate(name, place, xytext=(4, 4), textcoords="offset points")
left.set(xlabel="kilometres", ylabel="kilometres", aspect="equal")
hours = np.arange(288) / 12
for sensor in (1, 2, 7):
    day = np.where(sensors.missing[:288, sensor], np.nan, sensors.readings[:288, sensor])
    right.plot(hours, day, label=f"sensor {sensors.ids[sensor]}")
right.set(xlabel="hour of the first day", ylabel=sensors.quantity)
right.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Training, next to the baselines
#
# `strategy` chooses how CNFGNN is trained: alternating (`at`) or by split learning (`sl`), where every batch sends hidden states up and gradients down; with averaged weights (`fedavg`) or with weights of each client's own. `gru_fedavg` averages a forecaster that has no graph, in `gru_local` every sensor trains alone, `gru_central` has all readings in one place, and `last_value` and `historical_average` do not train.
#
# All rows have the same windows, and seed 0. `teacher` is set for all, because its defaults differ between the methods ([why](../../docs/forecasting.md#choose-baselines)).

# %%
training = {
    "rounds": 12, "every": 12, "hidden": 32, "batch": 24, "lr": 0.003, "patience": None,
    "teacher": 1000.0, "server_batch": 24, "server_lr": 0.003,
}  # fmt: skip
strategies = ("at_fedavg", "sl_fedavg", "at", "sl")
comparison = gf.compare(
    [
        *({"method": "cnfgnn", "label": f"cnfgnn {s}", "settings": {"strategy": s}} for s in strategies),
        "gru_fedavg",
        "historical_average",
    ],
    seeds=[0],
    out=folder / "compare",
    data="roads",
    settings=roads,
    **training,
)
error = {row["label"]: row["test"]["rmse"]["mean"] for row in comparison.rows}
for name, value in error.items():
    print(f"{name:20}  root mean squared error {value:.2f} miles per hour")

# %%
folders = {row["label"]: Path(row["folders"][0]) for row in comparison.rows}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name in (*(f"cnfgnn {s}" for s in strategies), "gru_fedavg"):
    lines = [json.loads(line) for line in (folders[name] / "metrics.jsonl").read_text().splitlines()]
    left.plot(range(1, len(lines) + 1), [line["val"]["rmse"] for line in lines], label=name)
left.set(xlabel="round", ylabel="error on validation windows")
left.legend(frameon=False)
for name in ("cnfgnn at_fedavg", "gru_fedavg", "gru_local", "last_value", "historical_average"):
    ahead = Result.read(folders[name]).details["test_by_horizon"]["rmse"]
    right.plot(5 * np.arange(1, 13), ahead, marker=".", label=name)
right.set(xlabel="minutes ahead", ylabel="error on test windows")
right.legend(frameon=False)
plt.show()

assert error["cnfgnn at_fedavg"] < error["gru_fedavg"] < error["last_value"] < error["historical_average"]

# %% [markdown]
# All trained forecasters are ahead of `last_value`, and CNFGNN is ahead of averaging without the graph. Alternating training with averaged weights, the paper's choice, forecasts about as well as split learning. With so few readings, one seed and 12 rounds the other differences mean little: a sensor that trains alone is as good. The [paper's page](../../docs/papers/cnfgnn.md#results) has the tables on real traffic.
#
# ## What alternating training costs, to the byte
#
# Each strategy has a formula of the bytes: Eq. (7) for `at_fedavg`, and for split learning (`sl`) and alternating training with own weights (`at`)
#
# $$ R\cdot 2\cdot 2\cdot|\mathcal{V}|\,B_h \tag{8} $$
#
# $$ R\cdot(1 + 2R_s + 1)\,|\mathcal{V}|\,B_h \tag{10} $$
#
# We compute them from the sizes of the networks and compare with the ledgers of the runs.

# %%
R, V, H, D = training["rounds"], sensors.num_sensors, training["hidden"], 2
R_s = 1  # passes of the server in a round, the setting server_rounds
S = math.ceil(windows["train"] / training["every"])  # training windows of a client
B_h = 4 * S * H
B_theta = 4 * (3 * H * (D + H + 2) + 3 * 2 * H * (D + 2 * H + 2) + 2 * H + 1)
formula = {
    "at_fedavg": R * (2 * V * B_theta + (1 + 2 * R_s + 1) * V * B_h),  # Eq. (7)
    "sl_fedavg": R * (2 * V * B_theta + 2 * 2 * V * B_h),  # Eq. (9)
    "at": R * (1 + 2 * R_s + 1) * V * B_h,  # Eq. (10)
    "sl": R * 2 * 2 * V * B_h,  # Eq. (8)
}
for strategy, expected in formula.items():
    sent = Result.read(folders[f"cnfgnn {strategy}"]).bytes
    print(f"{strategy:10} formula {expected:11,} bytes, ledger {sent['total'] - sent['setup']:11,} bytes")
    assert sent["total"] - sent["setup"] == expected

# %% [markdown]
# For each pass of the server, split learning always sends four times the hidden states. Alternating training sends $(2 + 2R_s)/R_s$ times as much, which is less from $R_s = 2$ on:

# %%
passes = np.arange(1, 21)
figure, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
ax.plot(passes, (2 + 2 * passes) / passes, marker=".", label="alternating training")
ax.axhline(4, color="C1", label="split learning")
ax.set(xlabel="server passes in a round, $R_s$", ylabel="hidden states sent\nfor each pass", ylim=(0, 4.5))
ax.set_xticks((1, 5, 10, 15, 20))
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## What is sent
#
# The ledger of the run with the paper's strategy. `plaintext` means that the receiver reads the message.

# %%
run = folders["cnfgnn at_fedavg"]
for entry in json.loads((run / "ledger.json").read_text())["entries"]:
    if entry["phase"] in ("setup", "train"):
        way = f"{entry['from']} to {entry['to']}"
        print(f"{entry['name']:18} {way:18} {entry['protection']:8} {entry['bytes']:11,} bytes")

# %% [markdown]
# **What it reveals.** The server reads no reading and no forecast. It reads the hidden state of every window of every sensor, the weights that made it, and the gradients of the loss.
#
# ## What the server can compute from it
#
# A hidden state has more numbers than the window has readings. In the check `cnfgnn_inputs` the server encodes series of its own with the weights that it knows, fits a linear map back to readings, and applies it to the hidden states of the sensors:

# %%
attack = audit(run).findings["cnfgnn_inputs"]
print(*textwrap.wrap(attack.result, 100), sep="\n")
assert attack.value > 0.5

# %% [markdown]
# So a hidden state is no protection of the readings. `clip` and `noise_multiplier` add noise to the hidden states, and `aggregation=secure` hides single weights. [What each participant learns](../../docs/papers/cnfgnn.md#what-each-participant-learns) has figures for both.
#
# ## Where to go on
#
# - [CNFGNN](../../docs/papers/cnfgnn.md): both algorithms, the graph network, the differences from the paper, and [its tables](../../docs/papers/cnfgnn_results.md) next to ours
# - [Forecasting](../../docs/forecasting.md): your own sensors, missing readings, sensors that are down, and several machines
# - `graphfed methods cnfgnn` lists every setting

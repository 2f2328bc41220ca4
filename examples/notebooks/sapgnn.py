# %% [markdown]
# # SAPGNN: one network over the edges of all clients
#
# SAPGNN (Shan, Jiao and Fu, 2021) is for clients, as banks, that know the same customers and different edges between them. Each client holds some nodes, edges and labels of one graph, and a server holds some of the weights and no data. In every layer the clients send the server an embedding of each node, and the server returns the maximum over the clients. Features, edges and labels stay at the clients.
#
# The paper's point is in its title, *representation identical*: every node gets the embedding that it would have if all edges were in one place. This notebook checks this to the last digits, compares the accuracy with the baselines, and looks at what is sent. The paper's page has all equations: [SAPGNN](../../docs/papers/sapgnn.md).
#
# ## The equation
#
# Client $p$ knows the neighbours $N_p(i)$ of node $i$; several clients may know the same neighbour. A message $m_{ij}$ comes from each neighbour $j$. Let $a_i^p$ be the maximum of the messages at client $p$, and $U$ the update that a client applies to it. The embeddings are those of the whole graph if
#
# $$ \max_p U(h_i, a_i^p) = U\left(h_i, \max_p a_i^p\right) \tag{12} $$
#
# The maximum on the right is that of all neighbours, however the sets overlap:
#
# $$ \max_p a_i^p = \max_p \max_{j \in N_p(i)} m_{ij} = \max_{j \in N(i)} m_{ij}, \qquad N(i) = \bigcup_p N_p(i) \tag{11} $$

# %%
import json
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import graphfed as gf
from graphfed.audit.run import audit

folder = Path(tempfile.mkdtemp())  # the runs are written here

# %% [markdown]
# ## The data
#
# Cora has scientific papers as nodes, citations as edges and words as features. The partition `edges_uniform` gives all nodes and labels to every client, and every edge to one of them at random. With the option `overlap`, a second client knows some of the edges, too.

# %%
cora = {"data": "cora", "partition": "edges_uniform"}
found = gf.inspect(**cora, clients=3, settings={"partition.overlap": 0.3})
graph, partition = found.data, found.partition
print(f"the graph has {graph.num_nodes} nodes and {graph.num_edges} edges")
for client in range(3):
    print(f"client {client} knows {np.sum(partition.edge_client == client)} of them")

# %% [markdown]
# ## The equation in numbers
#
# Both sides of Eq. (11) and Eq. (12) on this partition, with a random linear map for the messages. The update that graphfed uses by default puts the node's own part next to the maximum, $U(h, a) = h \,\Vert\, a$. The sum is there for comparison: it counts an edge twice if two clients know it.

# %%
rng = np.random.default_rng(0)
message = graph.x @ rng.normal(size=(graph.num_features, 16))  # of every node to its neighbours, [N, 16]
perceptron = rng.normal(size=(16, 16))


def pooled(operation, u, v, empty):
    """Combine the messages of the neighbours of every node over the edges (u, v): [N, 16]."""
    found = np.full_like(message, empty)
    operation.at(found, u, message[v])
    operation.at(found, v, message[u])
    return found


def at_each_client(operation, empty):
    """The same at every client, with its own edges: [K, N, 16]."""
    own = [partition.edge_client == client for client in range(3)]
    return np.stack([pooled(operation, partition.edge_u[e], partition.edge_v[e], empty) for e in own])


whole_max, client_max = pooled(np.maximum, *graph.edges, -np.inf), at_each_client(np.maximum, -np.inf)
whole_sum, client_sum = pooled(np.add, *graph.edges, 0.0), at_each_client(np.add, 0.0)
print("maximum over clients equals the maximum of the graph:", np.array_equal(client_max.max(0), whole_max))
print("sum over clients equals the sum of the graph:", np.allclose(client_sum.sum(0), whole_sum))

with np.errstate(invalid="ignore"):  # a client without neighbours of a node has -inf
    before = np.nan_to_num(np.tanh(client_max) @ perceptron, nan=-np.inf).max(0)
    after = np.nan_to_num(np.tanh(whole_max) @ perceptron, nan=-np.inf)
print("a perceptron may stand between the two maxima:", np.allclose(before, after))

assert np.array_equal(client_max.max(0), whole_max)
assert not np.allclose(client_sum.sum(0), whole_sum)
assert not np.allclose(before, after)

# %% [markdown]
# A perceptron between the two maxima breaks Eq. (12), because it mixes coordinates. The paper admits every increasing update, which is too wide; [the exact class](../../docs/papers/sapgnn.md#why-the-embeddings-are-those-of-the-combined-graph) is on the page, and the setting `update` offers four of it.
#
# ## The trained network is the same, too
#
# Gradients follow the maxima back, so training on one client, on two, on three and on four gives one network. We train each for 20 rounds in double precision with the same seed and plain gradient descent. We compare the loss on the validation nodes after every round, and at the end the probability of every class at every node.
#
# With `aggregation=additive`, the default, the clients add up the gradients of their weights as secret shares. This rounds a gradient to 24 binary digits after the point. (With Adam a rounded gradient near zero would become a whole step, and the difference would grow faster.)

# %%
training = {"hidden": 32, "weight_decay": 5e-3, "seed": 0, "patience": None}


def train(clients, aggregation):
    """Train, and return the loss after every round and the probability of every class at every node."""
    out, descent = folder / f"{aggregation}-{clients}", {"optimizer": "sgd", "lr": 0.5}
    gf.run(
        "sapgnn", clients=clients, rounds=20, aggregation=aggregation, out=out, **cora, **training, **descent
    )
    lines = (out / "metrics.jsonl").read_text().splitlines()
    table = gf.predict(out)
    first = table["client"].to_numpy() == 0  # every client predicts every node
    columns = [table[f"probability_{c}"].to_numpy()[first] for c in range(graph.num_classes)]
    return np.array([json.loads(line)["val"]["loss"] for line in lines]), np.stack(columns, 1)


def power(difference):
    """The power of ten that a difference stays below; 1e-15 for the last digit of a double."""
    return f"1e{int(np.floor(np.log10(max(difference, 1e-16)))) + 1}"


torch.set_default_dtype(torch.float64)
one_loss, one = train(1, "plaintext")
cases = [(2, "plaintext"), (3, "plaintext"), (4, "plaintext"), (3, "additive")]
drift, difference = {}, {}
for clients, aggregation in cases:
    loss, other = train(clients, aggregation)
    label = f"{clients} clients, {aggregation}"
    drift[label], difference[label] = np.abs(loss - one_loss), np.abs(other - one).max()
torch.set_default_dtype(torch.float32)

for label, values in drift.items():
    # predictions.parquet has probabilities in single precision.
    print(f"{label:20} loss within {power(max(1e-15, values.max()))} of that of one client,", end=" ")
    print(f"probabilities within {power(max(1e-8, difference[label]))}")
    assert values.max() < (1e-12 if "plaintext" in label else 1e-4)
    assert difference[label] < (1e-6 if "plaintext" in label else 1e-3)

# %%
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for label, values in drift.items():
    ax.semilogy(range(1, len(values) + 1), np.maximum(values, 1e-17), marker=".", label=label)
ax.set(xlabel="round", ylabel="difference of the loss\nfrom that of one client", ylim=(5e-18, 1e-2))
ax.set_xticks(range(2, 21, 2))
ax.legend(frameon=False, ncols=2)
plt.show()

# %% [markdown]
# In plaintext the clients' networks are that of the whole graph to the last digits of a double (points at the bottom are differences of exactly zero). Secret shares add the rounding that they announce.
#
# ## Accuracy by the number of clients
#
# The paper's messages show the server the features ("as printed": `maps=identity`, `predictor=server`). By default graphfed puts a linear map between, at the clients. `ppgnn` is the paper's baseline: every client has a network of its own on its own edges, and the server combines their embeddings. In `isolated` the clients do not communicate. `central` is the network on the whole graph. All have the public split of Cora, two seeds, and with the same seed the same partition.

# %%
printed = {"aggregation": "plaintext", "maps": "identity", "predictor": "server"}
rows = {
    "sapgnn, as printed": ("sapgnn", printed),
    "sapgnn": ("sapgnn", {"aggregation": "plaintext"}),
    "ppgnn": ("ppgnn", {"aggregation": "plaintext"}),
    "isolated": ("isolated", {"backbone": "maxpool"}),
}
counts, seeds = (1, 2, 4), (0, 1)
longer = {**training, "rounds": 60, "eval_every": 5, "out": False}


def accuracy(method, clients, **more):
    """The accuracy on the test nodes, one for each seed."""
    setting = {**longer, **more}
    return [gf.run(method, clients=clients, **cora, **{**setting, "seed": s}).test["accuracy"] for s in seeds]


reached = {
    name: np.array([accuracy(method, clients, **more) for clients in counts])
    for name, (method, more) in rows.items()
}
central = np.mean(accuracy("central", 3, backbone="maxpool"))

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, values in reached.items():
    ax.errorbar(counts, values.mean(1), values.std(1, ddof=1), marker="o", capsize=3, label=name)
ax.axhline(central, color="grey", linestyle="--", label="central")
ax.set(xlabel="clients", ylabel="accuracy on test nodes")
ax.set_xticks(counts)
ax.legend(frameon=False)
plt.show()

for name, values in reached.items():
    print(f"{name:18}", *(f"{k}: {value:.2f} " for k, value in zip(counts, values.mean(1), strict=True)))
print(f"{'central':18} {central:.2f}")
mean = {name: values.mean(1) for name, values in reached.items()}
assert np.ptp(mean["sapgnn"]) < 0.02 and np.ptp(mean["sapgnn, as printed"]) < 0.02
assert mean["ppgnn"][-1] < mean["ppgnn"][0] and mean["isolated"][-1] < mean["isolated"][0]
assert mean["sapgnn"][-1] > mean["ppgnn"][-1] > mean["isolated"][-1]
assert mean["sapgnn, as printed"][0] > mean["sapgnn"][0]

# %% [markdown]
# The accuracy of SAPGNN hardly depends on the number of clients. The two baselines lose when the edges are at more clients, and with four clients SAPGNN is ahead of both. Local maps cost some accuracy on Cora, and hide its features from the server. (`central` draws its weights and its dropout in another order, so it is not the same run as SAPGNN with one client.)
#
# ## What is sent
#
# The ledger of the run with three clients and secret shares. `plaintext` means that the receiver reads the message, and `simulated` that this simulation hides nothing where a deployment would.

# %%
run = folder / "additive-3"
for entry in json.loads((run / "ledger.json").read_text())["entries"]:
    if entry["phase"] == "train" or entry["name"] in ("node_ids", "training_ids"):
        way = f"{entry['from']} to {entry['to']}"
        print(f"{entry['name']:28} {way:18} {entry['protection']:10} {entry['bytes']:11,} bytes")

# %% [markdown]
# **What it reveals.** The server reads names of nodes that it cannot translate, an embedding of each node at each client in every layer, and the gradient of the loss with respect to it. It reads no feature, edge or label. The gradients of the clients' weights are shares, and one share alone is random.
#
# ## What the server can compute from it
#
# Two checks of `graphfed audit` attack these embeddings and gradients:

# %%
findings = audit(run).findings
for name in ("split_features", "split_labels"):
    print(f"{name}:", *textwrap.wrap(findings[name].result, 100), sep="\n    ")
assert findings["split_labels"].value > 0.9

# %% [markdown]
# Gradients of nodes with the same label point in the same direction, so the server finds out which training nodes share a label, and not which label it is. [What each participant learns](../../docs/papers/sapgnn.md#what-each-participant-learns) has more, and `pooling=secure` shows the server only the maxima.
#
# ## Where to go on
#
# - [SAPGNN](../../docs/papers/sapgnn.md): all equations and both algorithms, the proof of the exact class, the differences from the paper, and [its tables](../../docs/papers/sapgnn_results.md) next to ours
# - [Split learning](../../docs/split_learning.md) and [Clients that share customers](../../docs/shared_customers.md): how to use it on your own files
# - `graphfed methods sapgnn` lists every setting

# %% [markdown]
# # Lumos: every node is a client
#
# In Lumos (Pan, Zhu and Chu, ICDE 2023) every client is one node of a graph, as a person in a social network. The client holds its own features, its own label and the list of its neighbours; a server holds the weights of the network and no data. A client sends its features once, as noised bits, to some of its neighbours. In every round neighbours exchange embeddings, and the server receives gradients.
#
# The paper has two ideas: clients share the work evenly although some have many more neighbours than others, and the bits that are sent satisfy local differential privacy. This notebook trains Lumos next to its baselines, shows both ideas, and looks at what is sent. The paper's page has all equations: [Lumos](../../docs/papers/lumos.md).
#
# ## The two equations
#
# Client $u$ trains on a tree of itself and of the neighbours in a set $N_u$. Its workload is $\mathrm{wl}(u) = |N_u|$. Every edge $(u,v) \in E$ must be in the tree of at least one of its two nodes, which the variables $x_{(u,v)}$ say: 1 where $v \in N_u$. The largest workload is to be as small as possible:
#
# $$ \min_X f(X) = \min_X \max_{u \in V} \sum_{(u,v) \in E} x_{(u,v)} \quad\text{with}\quad x_{(u,v)} + x_{(v,u)} \ge 1 \tag{10} $$
#
# A client divides its $d$ features into bins and sends each receiver one bin. A feature $x_{u,i} \in [a,b]$ becomes one bit. With the budget $\epsilon'$ of a bit, which is $\epsilon$ divided by the size of the bin, the bit is 1 with probability
#
# $$ \Pr(x'_{u,i} = 1) = \frac{1}{e^{\epsilon'} + 1} + \frac{x_{u,i} - a}{b - a} \cdot \frac{e^{\epsilon'} - 1}{e^{\epsilon'} + 1} \tag{26} $$
#
# With a small $\epsilon$ the bit is nearly a coin toss; with a large one it nearly shows the feature.

# %%
import json
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq

import graphfed as gf
from graphfed.audit.run import audit

folder = Path(tempfile.mkdtemp())  # the runs are written here

# %% [markdown]
# ## The graph
#
# `social` is a generated graph that comes with graphfed. Its nodes belong to communities, which are the classes, and most edges stay inside a community. The partition `ego` makes a client of every node.

# %%
graph = {"data.num_nodes": 400, "data.features": 32, "data.homophily": 0.9}
common = {"data": "social", "partition": "ego", "split": "random:0.5,0.25,0.25"}
training = {"rounds": 60, "eval_every": 5, "patience": None, "hidden": 32}

overview = gf.inspect(**common, settings=graph).overview
degrees = overview["degrees"]
print(f"{overview['nodes']} clients, {overview['edges']} edges, {len(overview['classes'])} classes")
print(f"neighbours of a client: {degrees['median']:.0f} in the median, {degrees['max']} at most")

# %% [markdown]
# ## Training, next to the baselines
#
# All rows have the same nodes for training, validation and test, for each of three seeds. `central` has all data in one place, and `own_features` is a network without edges. The server of `lpgnn` knows every edge and gets noised features and labels; that of `naive_fedgnn` gets noised edges, too. With `fedavg` and `isolated` a client sees its own node and no edge, because its neighbours are at other clients.
#
# `noise_seed` draws the noise from a seed, so that this notebook prints the same numbers again. Such noise protects nothing; without `noise_seed` it comes from the operating system.

# %%
comparison = gf.compare(
    ["lumos", "lpgnn", "naive_fedgnn", "own_features"],
    seeds=[0, 1, 2],
    settings={**graph, "noise_seed": 0},
    out=False,
    **common,
    **training,
)
accuracy = {row["label"]: row["test"]["accuracy"] for row in comparison.rows}
for name, found in sorted(accuracy.items(), key=lambda item: -item[1]["mean"]):
    print(f"{name:12}  accuracy on test nodes {found['mean']:.2f} ± {found['std']:.2f}")

assert accuracy["lumos"]["mean"] > accuracy["own_features"]["mean"] > accuracy["isolated"]["mean"]
assert accuracy["central"]["mean"] > accuracy["lpgnn"]["mean"] > accuracy["lumos"]["mean"]

# %% [markdown]
# Lumos is ahead of a network without edges and of a client that trains alone. It stays far behind `central`: a client sees a part of the features of a part of its neighbours. `lpgnn` is better on this graph, because its server knows the whole graph, which Lumos shows to nobody.
#
# ## Balancing the work
#
# A run of one round is enough to see the trees. `balancer` chooses how an edge is assigned to one of its two nodes:
#
# - `none`: to both. The workload of a client is then its number of neighbours.
# - `greedy`: Algorithm 1 of the paper. Two neighbours compare their rounded log-degrees, and the smaller one takes the edge.
# - `mcmc`: Algorithm 2 of the paper, a random search that starts from there.
# - `local`: the default of graphfed. Edges move between neighbours and no server takes part.
# - `oracle`: the exact optimum, from a server that sees the graph. It is for evaluation only.

# %%
names = ("none", "greedy", "mcmc", "local", "oracle")
largest = {}
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name in names:
    steps = {"mcmc_steps": 500} if name == "mcmc" else {}
    setting = {**graph, **steps, "balancer": name, "noise_seed": 0}
    gf.run("lumos", rounds=1, settings=setting, out=folder / name, **common)
    clients = pq.read_table(folder / name / "clients.parquet")
    workload = np.sort(clients["kept"].to_numpy())[::-1]
    largest[name] = int(workload.max())
    print(f"{name:7} largest workload {workload.max():3}, edges in trees {workload.sum():5}")
    ax.step(np.arange(1, len(workload) + 1), workload, where="post", label=name)
ax.set(xscale="log", xlabel="clients, from the largest workload to the smallest", ylabel="workload")
ax.legend(frameon=False, title="balancer")
plt.show()

assert largest["local"] == largest["oracle"] <= largest["mcmc"] <= largest["greedy"] < largest["none"]

# %% [markdown]
# Without balancing a few clients do most of the work, and everybody waits for them. The local rule reaches the optimum here. The comparisons show each neighbour only which of two numbers is larger.
#
# ## Privacy against accuracy
#
# The paper shows that accuracy grows with $\epsilon$. A receiver can decode the bits in two ways. `unbiased` is the paper's: it is right in the mean, and for a small $\epsilon$ its variance is large. `shrunk`, the default here, is the linear estimate with the least squared error.

# %%
epsilons, seeds = (0.25, 1, 4, 16), (0, 1)
curves = {}
for decode in ("unbiased", "shrunk"):
    curves[decode] = np.array(
        [
            [
                gf.run(
                    "lumos", seed=seed, noise_seed=seed, epsilon=epsilon, decode=decode,
                    settings=graph, out=False, **common, **training,
                ).test["accuracy"]
                for seed in seeds
            ]
            for epsilon in epsilons
        ]
    )  # fmt: skip

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for decode, values in curves.items():
    ax.errorbar(
        epsilons, values.mean(1), values.std(1, ddof=1), marker="o", capsize=3, label=f"decode={decode}"
    )
ax.axhline(accuracy["own_features"]["mean"], color="grey", linestyle="--", label="own_features")
ax.set_xscale("log", base=2)
ax.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
ax.set(xlabel="epsilon, for each receiver", ylabel="accuracy on test nodes")
ax.legend(frameon=False)
plt.show()

unbiased, shrunk = (values.mean(1) for values in curves.values())
for epsilon, one, other in zip(epsilons, unbiased, shrunk, strict=True):
    print(f"epsilon {epsilon:5}: unbiased {one:.2f}, shrunk {other:.2f}")
assert unbiased[-1] > unbiased[0] + 0.05
assert np.ptp(shrunk) < 0.05 and shrunk[0] > accuracy["own_features"]["mean"]

# %% [markdown]
# With the paper's decoding accuracy grows with $\epsilon$, as the paper says: noise that is not shrunk drowns the embeddings. With the other decoding $\epsilon$ hardly matters, and Lumos stays above `own_features` although the bits are nearly coin tosses. What helps it then are the embeddings that neighbours send each other in every round. No $\epsilon$ covers these.
#
# ## What is sent
#
# Every transfer has a name, and the ledger counts its bytes when it is sent. `ledger.json` of a run has an entry for each.

# %%
run = folder / "run"
gf.run("lumos", rounds=20, noise_seed=0, preset="paper", settings=graph, out=run, **common)
for entry in json.loads((run / "ledger.json").read_text())["entries"]:
    if entry["phase"] in ("setup", "train"):
        way = f"{entry['from']} to {entry['to']}"
        print(f"{entry['name']:27} {way:18} {entry['protection']:10} {entry['bytes']:11,} bytes")

# %% [markdown]
# **What it reveals.** Neighbours learn which of two workloads is larger and read noised bits, which is what the paper protects. They also read embeddings that are computed from the features without noise, and the server reads the gradient of each client. (The noise and the comparisons are marked `simulated` here: the noise has a seed, and a simulation on one machine compares numbers in one process.)
#
# ## What a neighbour can compute from it
#
# `graphfed audit` attacks the finished run. In `lumos_features` one neighbour solves for the features of a client, from the embeddings that it received in 20 rounds and the weights, which it knows.

# %%
attack = audit(run).findings["lumos_features"]
print(*textwrap.wrap(attack.result, 100), sep="\n")
print(*textwrap.wrap(attack.verdict, 100), sep="\n")
assert attack.details["read"] > attack.details["guessed"]

# %% [markdown]
# So $\epsilon$ describes the bits that are sent once, and not the whole run. [What each participant learns](../../docs/papers/lumos.md#what-each-participant-learns) says this for every message.
#
# ## Where to go on
#
# - [Lumos](../../docs/papers/lumos.md): all equations and algorithms, the differences from the paper, and [its tables and figures next to ours](../../docs/papers/lumos_results.md)
# - `graphfed methods lumos` lists every setting, and `graphfed reproduce lumos --quick` makes a short version of the paper's figures
# - [Security](../../docs/security.md) and [Audit](../../docs/audit.md)

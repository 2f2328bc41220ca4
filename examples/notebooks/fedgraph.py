# %% [markdown]
# # FedGraph: convolution across clients with learned sampling
#
# FedGraph (Chen, Li, Miyazaki and Wu, TPDS 2022) trains a graph convolutional network among clients, as hospitals, whose graphs have edges to each other. Clients send no features. From the second layer on, a client receives the transformed embeddings of its neighbours at other clients. The server averages the weights and decides in every round how many training nodes and neighbours each client samples.
#
# The paper's point is that decision: less sampling makes a round shorter and its gradient noisier, so the best amount is to be learned. This notebook compares sampling policies by the time to a target, learns one, and looks at what is sent. The paper's page has all equations: [FedGraph](../../docs/papers/fedgraph.md).
#
# ## The equations
#
# Client $i$ sums over its own neighbours, and from the second layer on also over those of every other client $j$, which sends the bracket:
#
# $$ z_i^{(l+1)}(v) = \sum_{u \in V_i} Q_i^{(l)}(v,u)\; h_i^{(l)}(u)\,W_i^{(l)} \;+\; \sum_{j \ne i}\;\sum_{u \in V_j} Q_i^{(l)}(v,u)\left[h_j^{(l)}(u)\,W_j^{(l)}\right] \tag{3} $$
#
# A neighbour is in the sample $N_i^{(l)}(v)$ with the probability $p_i^{(l)}$. Of the neighbours $V_i(v)$, those sampled are weighted up:
#
# $$ Q_i^{(l)}(v,u) = \frac{|V_i(v)|}{|N_i^{(l)}(v)|}\; Q(v,u) \quad\text{where}\quad u \in N_i^{(l)}(v), \quad\text{and } 0 \text{ otherwise} \tag{7} $$
#
# A policy is learned from a reward: the accuracy $\lambda[t]$ of round $t$ against a target $\Lambda$, and the duration $\delta[t]$ of the round,
#
# $$ r[t] = \Omega^{\lambda[t] - \Lambda} - \alpha\,(\delta[t] - \beta) \tag{9} $$

# %%
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import graphfed as gf
from graphfed.methods.fedgraph.policy.learning import learn_policy

folder = Path(tempfile.mkdtemp())  # the runs are written here

# %% [markdown]
# ## The data
#
# Cora has scientific papers as nodes, citations as edges and words as features. In the paper's partition, `overlapping`, every client has copies of a random fraction of the nodes. An edge whose neighbour has no copy at the client leads to the copy at another one.

# %%
cora = {"data": "cora", "clients": 8, "partition": "overlapping", "split": "random:0.6,0.2,0.2"}
overview = gf.inspect(**cora).overview
for client in overview["clients"]:
    print(f"client {client['name']}: {client['nodes']:5} nodes, {client['edges']:5} edges inside", end=", ")
    print(f"{client['cross_client_edges']:5} to nodes of other clients")

# %% [markdown]
# ## Learning a policy
#
# The paper's policy, `ddpg`, is a network that decides anew in every round, for every client, from the weights of all clients on their principal components. It is learned by deep deterministic policy gradient: an episode is a training from new weights. The first episode decides at random, and after every round of the later ones the network is updated. Here are four short episodes, which show that everything runs and teach little: the paper takes 300 of 300 rounds. ([Sampling policies](../../docs/policies.md) says what to expect. Learning needs the extra `rl`.)
#
# The duration of a round is modelled, so that it is the same on every machine: a client's operations and bytes, with a speed and a bandwidth of its own, and the slowest client counts.

# %%
network = {"hidden": 16, "lr": 0.03}
learned = learn_policy(episodes=4, rounds=30, seed=0, out=folder / "policy", settings=network, **cora)
print(f"{learned.details['components']} components of the weights are observed")
for line in (*learned.episodes, learned.final):
    name = f"episode {line['episode']}" if "episode" in line else "without noise"
    chance = np.mean(line["chance"])
    print(f"{name:13}  {line['kappa_share']:3.0%} of the training nodes, {chance:3.0%} of the neighbours")

# %% [markdown]
# ## Training with five policies, next to the baselines
#
# All rows have the same split, and with the same seed the same partition. `full` leaves nothing out. `constant` takes at most 64 training nodes and half of the neighbours, `graphsage` at most a fixed number of neighbours, and `fastgcn` draws nodes of each layer. `central` has all data in one place, `fedavg` drops the edges between clients, and in `isolated` every client trains alone.

# %%
policies = {
    "full": {},
    "constant": {"batch": 64, "probability": 0.5},
    "graphsage": {"batch": 64},
    "fastgcn": {"layer_size": 1024},
    "ddpg": {"policy_file": str(folder / "policy/policy.safetensors")},
}
comparison = gf.compare(
    [
        {"method": "fedgraph", "label": name, "settings": {"policy": name, **more}}
        for name, more in policies.items()
    ],
    seeds=[0, 1],
    rounds=80,
    patience=None,
    out=folder / "compare",
    **cora,
    **network,
)
accuracy = {row["label"]: row["test"]["accuracy"] for row in comparison.rows}
for name, found in accuracy.items():
    print(f"{name:10}  accuracy on test nodes {found['mean']:.3f} ± {found['std']:.3f}")

assert min(accuracy[name]["mean"] for name in policies) >= accuracy["isolated"]["mean"] - 0.005
assert accuracy["full"]["mean"] > accuracy["fedavg"]["mean"] > accuracy["isolated"]["mean"]

# %% [markdown]
# ## Time to a target
#
# `metrics.jsonl` of a run has the accuracy on the validation nodes and the modelled seconds after every round. How long does each policy take to reach an accuracy of 0.84?

# %%
target = 0.84


def curve(run):
    """Modelled seconds and accuracy after every round of a run."""
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["facts"]["modelled_seconds"] for line in lines]
    return np.array(seconds), np.array([line["val"]["accuracy"] for line in lines])


rows = {row["label"]: row for row in comparison.rows}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
times = {}
for place, name in enumerate(policies):
    curves = [curve(run) for run in rows[name]["folders"]]
    left.plot(1000 * curves[0][0], curves[0][1], label=name)
    hits = [seconds[np.argmax(reached >= target)] for seconds, reached in curves if max(reached) >= target]
    times[name] = 1000 * np.mean(hits) if len(hits) == len(curves) else np.nan
    right.barh(place, times[name])
    per_round = 1000 * curves[0][0][-1] / len(curves[0][0])
    print(f"{name:10}  {per_round:5.1f} ms for a round, {times[name]:6.1f} ms to the target")
left.axhline(target, color="grey", linestyle="--", linewidth=1)
left.set(xlabel="modelled milliseconds, seed 0", ylabel="accuracy on validation nodes")
left.set(xlim=(0, 250), ylim=(0.6, 0.88))
left.legend(frameon=False)
right.set(xlabel="modelled milliseconds to the target, mean of two seeds")
right.set_yticks(range(len(policies)), list(policies))
right.invert_yaxis()
plt.show()
assert max(times[name] for name in ("constant", "graphsage")) < 0.7 * times["full"]
assert times["constant"] < times["ddpg"], "four episodes teach little"

# %% [markdown]
# Sampling reaches the target in much less modelled time than full batches, at nearly the same accuracy in the end. The policy of four episodes is no match for a fixed one yet: its rounds are short, but it needs more of them. And a policy is best at what its reward asks for: (9) is not the time to a target. These are modelled seconds of clients that work at the same time; in one process on one machine sampling saves much less.
#
# ## What the embeddings of other clients are worth
#
# In the partition above a client has copies of most neighbours, and training alone is nearly as good. Let now every node be at one client, with `partition=random`. `sent_embeddings` chooses what clients send each other: nothing, the embeddings from the second layer on as in the paper (`hidden`), or the transformed features of the first layer, too (`all`).

# %%
disjoint = {**cora, "partition": "random"}
worth = {}
for sent in ("none", "hidden", "all"):
    runs = [
        gf.run(
            "fedgraph", sent_embeddings=sent, seed=seed, rounds=60, eval_every=3, patience=None,
            out=folder / f"{sent}-{seed}", **disjoint, **network,
        )
        for seed in (0, 1)
    ]  # fmt: skip
    worth[sent] = np.mean([result.test["accuracy"] for result in runs])
    megabytes = runs[0].bytes["peer"] / 1e6
    print(f"sent_embeddings={sent:6}  accuracy {worth[sent]:.3f}, {megabytes:4.1f} MB between clients")
assert worth["none"] + 0.02 < worth["hidden"] < worth["all"]

# %% [markdown]
# ## What is sent
#
# The ledger of the run with `sent_embeddings=hidden`. `plaintext` means that the receiver reads the message.

# %%
for entry in json.loads((folder / "hidden-0" / "ledger.json").read_text())["entries"]:
    if entry["phase"] in ("setup", "train"):
        way = f"{entry['from']} to {entry['to']}"
        print(f"{entry['name']:21} {way:18} {entry['protection']:8} {entry['bytes']:11,} bytes")

# %% [markdown]
# **What it reveals.** The server reads the gradient (or weights) of each client, its number of training nodes and the modelled time of its round. Clients read which of their nodes have neighbours at other clients, and in every step embeddings of the others' nodes in plaintext. No features, labels or inner edges are sent. (The entries `feature_...` agree on a common scale of the features before training.)
#
# Embeddings do not hide features where they are sent in many rounds and the receiver knows the weights. The check `fedgraph_embeddings` of `graphfed audit` solves the messages of many rounds for the features around a node. It takes minutes on Cora, so it is not part of this notebook; [What each participant learns](../../docs/papers/fedgraph.md#what-each-participant-learns) has its results.
#
# ## Where to go on
#
# - [FedGraph](../../docs/papers/fedgraph.md): all equations and algorithms, the differences from the paper, and [its figures](../../docs/papers/fedgraph_results.md) next to ours
# - [Sampling policies](../../docs/policies.md): how to learn a policy, and what to expect of it
# - `graphfed methods fedgraph` lists every setting

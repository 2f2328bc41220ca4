# %% [markdown]
# # FedGAT: attention over the edges of all clients, after one message
#
# In FedGAT (Ambekar, Yao, Li and Joe-Wong, 2024) every client holds some nodes of one graph and knows their edges, also those to nodes of other clients. A graph attention network (GAT) weighs the neighbours of a node by scores that depend on the weights, so the features of remote neighbours would be needed in every round. FedGAT replaces the score by a polynomial. Then the server sends each client one message before training, and in training only weights and gradients are sent.
#
# This notebook shows the polynomial, the message, the accuracy next to the baselines, and that the message does not hide the features. The paper's page has all equations: [FedGAT](../../docs/papers/fedgat.md).
#
# ## The equations
#
# With $b_1 = W^\top a_1$ and $b_2 = W^\top a_2$ the score of the edge from node $j$ to node $i$ depends on one number:
#
# $$ x_{ij} = b_1^\top h_i + b_2^\top h_j, \qquad e_{ij} = e(x_{ij}), \qquad e = \exp \circ\, \psi \tag{4} $$
#
# A polynomial of degree $p$ takes the place of $e$ on $[-s, s]$:
#
# $$ \hat e(x) = \sum_{n=0}^{p} c_n T_n(x / s) = \sum_{n=0}^{p} q_n x^n \tag{6} $$
#
# The layer then needs moments of the neighbourhood $N(i)$, and no single neighbour:
#
# $$ h_i' \approx \varphi\left( W \, \frac{\sum_{n=0}^{p} q_n E_i^{(n)}}{\sum_{n=0}^{p} q_n F_i^{(n)}} \right) \tag{7} $$
#
# $$ E_i^{(n)} = \sum_{j \in N(i)} x_{ij}^n h_j, \qquad F_i^{(n)} = \sum_{j \in N(i)} x_{ij}^n \tag{8} $$

# %%
import json
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.polynomial import Chebyshev

import graphfed as gf
from graphfed.audit.run import audit

folder = Path(tempfile.mkdtemp())  # the runs are written here

# %% [markdown]
# ## The polynomial
#
# $\psi$ is LeakyReLU in GAT. Its kink makes the series of Chebyshev polynomials converge slowly. graphfed smooths the kink by default: $\psi(x) = 0.2 x + 0.2 \ln(1 + e^{4x})$. The error of $\hat e$ on $[-4, 4]$ by degree (interpolated at Chebyshev points, which is nearly the truncated series):

# %%
domain = 4.0
points = np.linspace(-domain, domain, 2001)
scores = {
    "smooth": lambda x: np.exp(0.2 * x + 0.2 * np.log1p(np.exp(4 * x))),
    "leaky_relu": lambda x: np.exp(np.where(x > 0, x, 0.2 * x)),
}
degrees = (2, 4, 8, 16, 32)
error = {
    name: np.array(
        [
            np.abs(Chebyshev.interpolate(score, degree, (-domain, domain))(points) - score(points)).max()
            for degree in degrees
        ]
    )
    for name, score in scores.items()
}

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.plot(points, scores["smooth"](points), color="black", label="e(x), smooth")
for degree in (2, 4, 8):
    polynomial = Chebyshev.interpolate(scores["smooth"], degree, (-domain, domain))
    left.plot(points, polynomial(points), linestyle="--", label=f"degree {degree}")
left.set(xlabel="x", ylabel="score", ylim=(-5, 60))
left.legend(frameon=False)
for name, values in error.items():
    right.semilogy(degrees, values, marker="o", label=f"psi={name}")
right.set(xlabel="degree of the polynomial", ylabel="largest error of a score")
right.set_xticks(degrees)
right.legend(frameon=False)
plt.show()

assert (np.diff(error["smooth"]) < 0).all() and error["smooth"][3] < 0.1 * error["leaky_relu"][3]

# %% [markdown]
# ## The message
#
# How can a client evaluate Eq. (8) for weights that are not known yet, without a list of the neighbours' features? The server draws, for a node with $B$ neighbours, matrices $U_j$ with $U_j^2 = U_j$ and $U_j U_k = 0$. Powers of a sum of them are then sums of powers:
#
# $$ D_i = \sum_{j \in N(i)} x_{ij} U_j \quad \Rightarrow \quad D_i^n = \sum_{j \in N(i)} x_{ij}^n U_j \tag{10} $$
#
# $$ K_1^\top D_i^n K_2 = \left( E_i^{(n)} \right)^\top, \qquad K_1^\top D_i^n K_1 = F_i^{(n)} \qquad (n \ge 1) \tag{12} $$
#
# $D_i$ is linear in $b_1$ and $b_2$ with coefficients that the server can send. For one neighbourhood of four random nodes:

# %%
rng = np.random.default_rng(0)
B, features = 4, 6
h = rng.normal(size=(B, features))  # of the neighbours, [B, d]
x = rng.uniform(-1, 1, size=B)  # the arguments of their scores
basis = np.linalg.qr(rng.normal(size=(2 * B, 2 * B)))[0].T
u, v, r = basis[:B], basis[B:], 1.7
U = 0.5 * np.einsum("ja,jb->jab", u + v / r, u + r * v)  # Eq. (9)
K1, K2 = np.sqrt(2) * u.sum(0), np.sqrt(2) * u.T @ h  # Eq. (11)
D = np.einsum("j,jab->ab", x, U)  # Eq. (10)

for n in (1, 2, 3):
    power = np.linalg.matrix_power(D, n)
    assert np.allclose(K1 @ power @ K2, x**n @ h) and np.allclose(K1 @ power @ K1, (x**n).sum())
    print(f"order {n}: the matrices give E and F of Eq. (8)")

# %% [markdown]
# ## Training, next to the baselines
#
# Cora has scientific papers as nodes, citations as edges and words as features. Five clients hold its nodes, with an even mix of classes at each. All rows have the public split and, with the same seed, the same partition. `distgat` is GAT without the edges between clients, `central` is GAT with all data in one place, and in `isolated` every client trains a GAT alone. `fedgcn` and `fedavg` have a GCN, which needs no scores.
#
# `evaluation=direct` computes what the message would give from the features themselves, because all clients are in one process here. It counts the bytes of the message.

# %%
cora = {"data": "cora", "clients": 5}
cross = gf.inspect(**cora).overview["cross_client_edges"]
print(f"{cross['count']} edges join two clients")

training = {"rounds": 50, "eval_every": 5, "patience": None, "hidden": 8, "dropout": 0, "lr": 0.02}
shared = {**training, "weight_decay": 5e-3, "features": "unit"}
gat = {"backbone": "gat"}
comparison = gf.compare(
    [
        {"method": "fedgat", "settings": {"evaluation": "direct"}},
        "distgat",
        "fedgcn",
        {"method": "central", "settings": gat},
        {"method": "isolated", "settings": gat},
    ],
    seeds=[0, 1, 2],
    out=False,
    **cora,
    **shared,
)
accuracy = {row["label"]: row["test"]["accuracy"] for row in comparison.rows}
for name, found in sorted(accuracy.items(), key=lambda item: -item[1]["mean"]):
    print(f"{name:22}  accuracy on test nodes {found['mean']:.3f} ± {found['std']:.3f}")

assert abs(accuracy["fedgat"]["mean"] - accuracy["central"]["mean"]) < 0.02
assert accuracy["fedgat"]["mean"] > accuracy["distgat"]["mean"] + 0.05 > accuracy["isolated"]["mean"] + 0.1

# %% [markdown]
# FedGAT is as accurate as GAT with all data in one place. Without the edges between clients (`distgat`) much is lost, and more when every client trains alone. On Cora attention is no better than the GCN of `fedgcn`, which sends much less.
#
# ## The degree of the polynomial
#
# What does a low degree cost? We train with several degrees and the same seed. The run of degree 64 stands for exact attention: its polynomial is exact to many digits on the scores that occur. The result reports the largest error of the polynomial for the scores of its own run, and we compare the predicted probabilities with those of the reference.

# %%
tried = (2, 3, 4, 6, 8, 12, 16)


def run_degree(degree):
    """Train with a degree, and return the probabilities [N, C], the accuracy and the polynomial's error."""
    out = folder / f"degree-{degree}"
    setting = {**shared, "evaluation": "direct", "degree": degree}
    result = gf.run("fedgat", seed=0, out=out, **cora, **setting)
    table = gf.predict(out)
    columns = [name for name in table.column_names if name.startswith("probability_")]
    probabilities = np.stack([table[name].to_numpy() for name in columns], 1)
    return probabilities, result.test["accuracy"], result.details["polynomial_error"]


exact, exact_accuracy, _ = run_degree(64)
found = [run_degree(degree) for degree in tried]
apart = np.array([np.abs(probabilities - exact).mean() for probabilities, _, _ in found])
reached, of_scores = (np.array([case[k] for case in found]) for k in (1, 2))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.semilogy(tried, of_scores, marker="o", label="largest error of a score")
left.semilogy(tried, apart, marker="s", label="mean error of a probability")
left.set(xlabel="degree of the polynomial", ylabel="error against exact attention")
left.legend(frameon=False)
right.plot(tried, reached, marker="o", label="fedgat")
right.axhline(exact_accuracy, color="grey", linestyle="--", label="exact attention")
right.set(xlabel="degree of the polynomial", ylabel="accuracy on test nodes")
right.legend(frameon=False)
plt.show()

for degree, value in zip(tried, reached, strict=True):
    print(f"degree {degree:2}: accuracy {value:.3f}")
print(f"exact:     accuracy {exact_accuracy:.3f}")
assert apart[0] > 3 * apart[-1] and of_scores[0] > 100 * of_scores[-1]
assert abs(reached[-1] - exact_accuracy) < 0.01

# %% [markdown]
# The errors of the scores fall quickly with the degree, and those of the predictions with them. From a small degree on the accuracy is that of exact attention, as the paper finds. The message grows with the degree, so a small one is enough.
#
# ## What is sent
#
# The ledger of the run of degree 16. `plaintext` means that the receiver reads the message.

# %%
total = {"setup": 0, "train": 0}
for entry in json.loads((folder / "degree-16" / "ledger.json").read_text())["entries"]:
    if entry["phase"] in total:
        way = f"{entry['from']} to {entry['to']}"
        print(f"{entry['name']:25} {way:18} {entry['protection']:10} {entry['bytes']:13,} bytes")
        total[entry["phase"]] += entry["bytes"]
assert total["setup"] > 2 * total["train"]

# %% [markdown]
# **What it reveals.** The server reads all features and all edges, once. The message to the clients is much larger than everything that training sends. It is meant to show sums over neighbours only.
#
# ## What a client can compute from it
#
# The check `fedgat_features` of `graphfed audit` takes the message as a client receives it. A run on a small graph with the real message, in both forms of the paper:

# %%
small = {"data": "social", "split": "random:0.5,0.25,0.25", "clients": 3, "rounds": 2}
for form in ("vector", "matrix"):
    out = folder / form
    gf.run("fedgat", form=form, settings={"data.num_nodes": 60}, out=out, **small)
    attack = audit(out).findings["fedgat_features"]
    print(f"{form}:", *textwrap.wrap(attack.result.partition(";")[0], 100), sep="\n    ")
    assert attack.value == 1

# %% [markdown]
# The client recovers the features of every remote neighbour, so the message protects nothing. FedGAT saves communication in every round; it is no protection of features. `fedgat_ldp` adds noise to the features before they are sent, and with `exchange=encrypted` the server computes on ciphertexts. [What each participant learns](../../docs/papers/fedgat.md#what-each-participant-learns) compares them.
#
# ## Where to go on
#
# - [FedGAT](../../docs/papers/fedgat.md): all equations, the error bounds, the differences from the paper, and [its tables and figures next to ours](../../docs/papers/fedgat_results.md)
# - `graphfed methods fedgat` lists every setting, and `graphfed reproduce fedgat --quick` makes a short version of the paper's table
# - [Security](../../docs/security.md) and [Audit](../../docs/audit.md)

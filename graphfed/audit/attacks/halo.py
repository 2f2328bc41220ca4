"""halo: features that clients read, and labels that gradients show.

Features (`halo_features`). A client receives the features of every node in its halo; the check compares them.

Labels (`halo_labels`), from the gradients of the last exchange of the first round. The client of node j
receives from client k the gradient of the loss with respect to j's embedding. Only k's training nodes i that
are neighbours of j contribute, each

    J (p_i - y_i)        p_i: predicted probabilities, y_i: the label as a 0/1 vector

where the columns of J are known combinations of the last layer's weights: for a GCN and GraphSAGE the columns
of W up to a positive factor, for max pooling its rows of the features whose maximum j is, and for a GAT the
columns of W and the directions W a_src of its scores. If j has one neighbour at k, least squares give a
positive multiple of p_i - y_i, whose only negative coordinate is the label. A gradient of 0 shows that i is
not a training node. Features that dropout has removed have a gradient of 0 and are left out.

Not tried: nodes with several neighbours at one client, whose gradients are added up.
"""

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import NO_NEIGHBOUR, count_remote_pairs, not_measured, rows_of
from graphfed.audit.transcript import dense_rows, features_of
from graphfed.methods.common.remote_neighbours import remote_neighbours

#: What an attacker without these messages knows.
BASELINE = "none: without these messages a client has no features of other clients' nodes"


def attack_features(audited: AuditedRun) -> Finding:
    """Compare the features that clients receive with those of the nodes."""
    transcript = audited.transcript
    cohort = transcript.cohort
    pairs = count_remote_pairs(cohort)
    if not pairs:
        return Finding("0 nodes", BASELINE, f"no leak: {NO_NEIGHBOUR}", False, 0.0, no_signal=0.0)
    first, _ = remote_neighbours(cohort)
    received = transcript.first("halo/features", "setup", to_server=False).payload
    truth = features_of(cohort, rows_of(cohort, cohort.cross_id[first]).cpu().numpy())
    read = int((dense_rows(received, np.arange(pairs)) == truth).all(1).sum())
    return Finding(
        result=f"clients read all features of {read} of {pairs} nodes of other clients that are neighbours "
        "of their own",
        baseline=BASELINE,
        verdict="leaks exactly: clients read these features and do not need to guess",
        leaks=read > 0,
        value=read / pairs,
        no_signal=0.0,
        details={"neighbours": pairs, "recovered": read},
    )


def attack_labels(audited: AuditedRun) -> Finding:
    """Solve the gradients of the last exchange for the labels of single neighbours."""
    transcript = audited.transcript
    cohort = transcript.cohort
    weights = transcript.first("model", "train", to_server=False).payload
    (gradients,) = transcript.first("halo/embeddings/grad", "train", to_server=False).payload
    columns = directions(weights, audited.config.settings.network.layers - 1)
    if columns is None:
        return not_measured("this attack does not know the last layer of this network")
    first, of_edge = remote_neighbours(cohort)
    # The pairs of a client and a node of its halo with one edge, which leads from the client's only row.
    alone = (torch.bincount(of_edge, minlength=len(first)) == 1).nonzero()[:, 0]
    rows = cohort.cross_row[first[alone]]
    found: dict[int, int] = {}
    for row, gradient in zip(rows.tolist(), gradients[alone].double().cpu(), strict=True):
        if bool(gradient.any()):
            found[row] = guess(columns, gradient, cohort.num_classes)
    attacked = torch.tensor(sorted(found), dtype=torch.int64)
    labels = cohort.y.cpu()
    right = int((labels[attacked] == torch.tensor([found[row] for row in sorted(found)])).sum())
    training = labels[cohort.train.cpu()]
    largest = float(torch.bincount(training).max()) / len(training)
    fraction = right / max(len(found), 1)
    return Finding(
        result=f"from gradients of the first round, clients compute the labels of {right} of {len(found)} "
        f"training nodes of other clients ({len(training)} in all) that are a node's only neighbour at "
        "their client",
        baseline=f"{100 * largest:.1f} %: the largest class",
        verdict="leaks: clients compute labels of other clients' training nodes"
        if fraction > largest
        else "no leak found: this attack computes no label",
        leaks=fraction > largest,
        value=fraction,
        no_signal=largest,
        details={"attacked": len(found), "recovered": right, "training_nodes": len(training)},
    )


def directions(weights: dict[str, Tensor], layer: int) -> Tensor | None:
    """Return the columns of J without their factors, [H, heads * C + more]; None for an unknown network.

    The first columns belong to the classes, head by head.
    """
    own = {
        name.rpartition(".")[2]: w.double().cpu()
        for name, w in weights.items()
        if name.startswith(f"layers.{layer}.")
    }
    if "att_src" in own:
        heads, width = own["att_src"].shape
        by_head = own["weight"].view(-1, heads, width)
        return torch.cat([own["weight"], (by_head * own["att_src"]).sum(2)], 1)
    if "neighbour_weight" in own:
        return own["neighbour_weight"]
    return own.get("weight")


def guess(columns: Tensor, gradient: Tensor, num_classes: int) -> int:
    """Return the class of the most negative coordinate of p - y, which least squares find for a gradient [H].

    Max pooling has twice as many columns of weights as features: the second half belongs to the maxima.
    """
    columns = columns[-len(gradient) :]
    kept = gradient != 0
    # A float32 gradient is exact to seven digits, whatever its size.
    scale = gradient.abs().max()
    solution = torch.linalg.lstsq(columns[kept], (gradient[kept] / scale)[:, None], driver="gelsd").solution
    heads = columns.shape[1] // num_classes
    return int(solution[: heads * num_classes, 0].view(heads, num_classes).sum(0).argmin())


FEATURES = Check(
    name="halo_features",
    tests="features of other clients' nodes, which clients receive",
    attacker="a curious client: the features that it receives before training",
    run=attack_features,
    methods=("halo",),
    transfers=("halo/features",),
)
LABELS = Check(
    name="halo_labels",
    tests="labels of other clients' training nodes, from gradients of embeddings",
    attacker="a curious client: the weights, its edges, and the gradients that it receives in one round",
    run=attack_labels,
    methods=("halo",),
    transfers=("halo/embeddings/grad",),
)

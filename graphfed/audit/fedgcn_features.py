"""FedGCN: vertices whose features the server reads out of the partial sums.

Client k uploads for every vertex i of its closure the share sum of w_ij x_j / sqrt(d_j + 1) over the j in V_k
that are i or next to i. A share of one vertex only is that vertex's features times w_ij / sqrt(d_j + 1), one
positive factor. There are two kinds:

    own        i is in V_k and has no neighbour there: j = i
    neighbour  i is elsewhere and has one neighbour j in V_k

For an own share with two hops the server knows more: the neighbour count of 0 that came with it says that the
share is i's own, and the counts of all clients add up to d_i, so that it has x_i to the last digit.

The set-up is run again, the shares are taken as the server received them, and every one of the above is
divided by its factor and compared with the vertex's features."""

import numpy as np
import torch

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.transcript import dense_rows
from graphfed.federation.cohort import Cohort
from graphfed.methods.fedgcn import find_closure, neighbour_counts
from graphfed.nn.sparse import SparseMatrix

__all__ = ["CHECK", "lone_shares"]

#: Relative to the largest entry of a row: what the rounding of one product and one quotient may move.
TOLERANCE = 1e-5
#: Rows compared at a time, so that wide features fit into memory.
ROWS = 4096


def lone_shares(cohort: Cohort) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Shares that hold one vertex: their row in what the clients upload [n], the row of that vertex in the
    cohort [n], whether the share is the vertex's own [n] bool, and what to multiply it by [n]."""
    closure = find_closure(cohort)
    count = neighbour_counts(cohort, closure)[:, 0]
    own = closure.own[count[closure.own] == 0]
    own_source = (count[closure.own] == 0).nonzero()[:, 0]
    alone = (count[closure.remote_row] == 1).nonzero()[:, 0]
    share = torch.cat([own, closure.remote_row[alone]])
    source = torch.cat([own_source, cohort.cut_row[alone]])
    factor = (cohort.degree(with_cut=True) + 1).double().sqrt()[source]
    if cohort.cut_weight is not None:
        factor[len(own) :] /= cohort.cut_weight[alone]
    return (
        share.cpu().numpy(),
        source.cpu().numpy(),
        np.arange(len(share)) < len(own),
        factor.cpu().numpy(),
    )


def run(audited: AuditedRun) -> Finding:
    """Counts the vertices whose features come out of a share exactly."""
    transcript = audited.transcript
    cohort = transcript.cohort
    uploaded = transcript.first("fedgcn/partial_sums", "setup").payload
    share, source, own, factor = lone_shares(cohort)
    exact = np.concatenate(
        [
            _matches(uploaded, share[i : i + ROWS], factor[i : i + ROWS], cohort, source[i : i + ROWS])
            for i in range(0, len(share), ROWS)
        ]
        or [np.zeros(0, dtype=bool)]
    )
    vertices = cohort.num_rows
    read = len(np.unique(source[exact]))
    known = len(np.unique(source[exact & own])) if audited.config.training.hops == 2 else 0  # type: ignore[attr-defined]
    leaks = read > 0
    percent = f"{100 * read / vertices:.1f} %"
    return Finding(
        result=f"{read} of {vertices} vertices ({percent}) lie alone in a share; for {known} "
        "of these the server also knows which vertex it is, and the factor",
        baseline="none: without the shares the server has no feature",
        verdict="leaks exactly: these features are read, not guessed"
        if leaks
        else "no share holds one vertex",
        leaks=leaks,
        value=read / vertices,
        no_signal=0.0,
        details={"vertices": vertices, "recovered": read, "known_to_the_server": known, "shares": len(share)},
    )


def _matches(
    uploaded: torch.Tensor | SparseMatrix,
    share: np.ndarray,
    factor: np.ndarray,
    cohort: Cohort,
    source: np.ndarray,
) -> np.ndarray:
    """Whether each share times its factor is the vertex's features, [n] bool."""
    assert cohort.x is not None
    recovered = dense_rows(uploaded, share) * torch.from_numpy(factor)[:, None]
    truth = dense_rows(cohort.x, source)
    scale = truth.abs().amax(dim=1).clamp(min=1e-30)
    close: np.ndarray = ((recovered - truth).abs().amax(dim=1) <= TOLERANCE * scale).numpy()
    return close


CHECK = Check(
    name="fedgcn_features",
    tests="features of single vertices, from the exchange before training",
    attacker="the server: every client's partial sums, ids and neighbour counts",
    run=run,
    methods=("fedgcn",),
    transfers=("fedgcn/partial_sums",),
)

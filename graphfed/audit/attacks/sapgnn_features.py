"""SAPGNN: features, from what clients upload for the first layer.

With maps=identity (the paper's messages) the uploads are the features: every node's are compared. With
local maps the server gets, for every node, `hidden` mixtures of its features and as many maxima. A server
that knows the features of some nodes beforehand can learn to undo the mixtures: a tenth of the nodes,
drawn at random, is known here, a linear map from uploads to features is fitted to them (ridge regression, its
strength chosen on a part of them), and the variance of the other nodes' features that it explains is told.
Pooled uploads are taken, as the server has them: with pooling=secure it has nothing else, and these are what
the protocol opens, to 2^-17, so the round is then run again in clear. The first round is run again."""

from dataclasses import replace

import numpy as np
import torch

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.transcript import Transcript, dense_rows, record_first_round
from graphfed.federation.secure.protection import PLAINTEXT

__all__ = ["CHECK"]

#: The share of nodes whose features the server knows beforehand, and how many nodes are looked at.
KNOWN, MOST = 0.1, 20_000
#: What the strength of the regression is chosen from, relative to the spread of the uploads.
RIDGES = (1e-8, 1e-4, 1e-2, 1.0, 100.0)


def run(audited: AuditedRun) -> Finding:
    """How many nodes' features the server reads, or how much of them it can reconstruct."""
    transcript = transcript_of(audited)
    cohort = transcript.cohort
    ids, first = np.unique(cohort.id.cpu().numpy(), return_index=True)
    kept = np.sort(np.random.default_rng(0).permutation(len(ids))[:MOST])
    assert cohort.x is not None
    rows = first[kept]
    truth = dense_rows(cohort.x, rows)
    if audited.config.training.maps == "identity":  # type: ignore[attr-defined]
        return _read(audited, transcript, rows, truth)
    uploads = transcript.first("sapgnn/local_embedding", "train").payload.double().cpu()
    place = torch.from_numpy(np.searchsorted(ids, cohort.id.cpu().numpy()))
    pooled = torch.full((len(ids), uploads.shape[1]), -torch.inf, dtype=torch.float64)
    pooled = pooled.scatter_reduce(0, place[:, None].expand_as(uploads), uploads, "amax")
    seen = pooled.masked_fill(pooled.isneginf(), 0)[torch.from_numpy(kept)]
    known = torch.arange(len(rows)) < max(2, round(KNOWN * len(rows)))
    known = known[torch.from_numpy(np.random.default_rng(1).permutation(len(rows)))]
    share = explained(seen, truth, known)
    leaks = share > 0.01
    return Finding(
        result=f"a server that knows {int(known.sum())} nodes' features reconstructs {100 * share:.1f} % "
        f"of the variance of the other {int((~known).sum())} nodes'",
        baseline="0 %: the mean of the known nodes",
        verdict="leaks to a server that knows some nodes; without such knowledge the maps are secret"
        if leaks
        else "this server reconstructs nothing",
        leaks=leaks,
        value=share,
        no_signal=0.0,
        details={"known": int(known.sum()), "others": int((~known).sum())},
    )


def transcript_of(audited: AuditedRun) -> Transcript:
    """The first round, with uploads in clear."""
    if audited.transfers & {"sapgnn/features", "sapgnn/local_embedding"}:
        return audited.transcript
    in_clear = replace(audited.config.training, pooling=PLAINTEXT)  # type: ignore[call-arg]
    return record_first_round(replace(audited.config, training=in_clear), audited.inputs)


def _read(audited: AuditedRun, transcript: Transcript, rows: np.ndarray, truth: torch.Tensor) -> Finding:
    """Identity messages: the rows that arrived are the features."""
    pooling = "sapgnn/features" if audited.config.training.update != "tropical" else None  # type: ignore[attr-defined]
    name, phase = (pooling, "setup") if pooling else ("sapgnn/local_embedding", "train")
    arrived = dense_rows(transcript.first(name, phase).payload, rows)[:, : truth.shape[1]]
    same = ((arrived.abs() - truth.abs()).abs().amax(1) <= 1e-6 * truth.abs().amax().clamp(min=1)).double()
    share = float(same.mean())
    return Finding(
        result=f"the features of {int(same.sum())} of {len(rows)} nodes ({100 * share:.1f} %) are read",
        baseline="none: without the uploads the server has no feature",
        verdict="leaks exactly: these features are read, not guessed",
        leaks=share > 0,
        value=share,
        no_signal=0.0,
        details={"nodes": len(rows), "recovered": int(same.sum())},
    )


def explained(seen: torch.Tensor, truth: torch.Tensor, known: torch.Tensor) -> float:
    """The share of the variance of unknown nodes' features [n, F] that a ridge regression on what is seen
    of them [n, d], fitted to the known ones [n] bool, explains; at least 0."""
    a, b = seen[known], truth[known]
    half = len(a) // 2
    strength = max(RIDGES, key=lambda r: _fit(a[:half], b[:half], a[half:], b[half:], r))
    return max(0.0, _fit(a, b, seen[~known], truth[~known], strength))


def _fit(
    seen: torch.Tensor, truth: torch.Tensor, others: torch.Tensor, their_truth: torch.Tensor, ridge: float
) -> float:
    """The share of the variance of their truth that a regression from what is seen to the truth explains."""
    centre, middle = seen.mean(0), truth.mean(0)
    a, b = seen - centre, truth - middle
    gram = a.T @ a
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    guess = (others - centre) @ torch.linalg.lstsq(gram, a.T @ b).solution + middle
    return 1 - float(((their_truth - guess) ** 2).sum() / ((their_truth - middle) ** 2).sum())


CHECK = Check(
    name="split_features",
    tests="features, from the uploads of the first layer",
    attacker="the server: pooled uploads; with local maps also some nodes' features",
    run=run,
    methods=("sapgnn",),
)

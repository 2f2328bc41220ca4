"""FedGCN: nodes whose features the server reads out of the partial sums.

Client k uploads for every node i of its closure the share sum of w_ij x_j / sqrt(d_j + 1) over the j in V_k
that are i or next to i. A share of one node only is that node's features times w_ij / sqrt(d_j + 1), one
positive factor. There are two kinds:

    own        i is in V_k and has no neighbour there: j = i
    neighbour  i is elsewhere and has one neighbour j in V_k

For an own share with two hops the server knows more: the neighbour count of 0 that came with it says that the
share is i's own, and the counts of all clients add up to d_i, so that it has x_i to the last digit.

The set-up is run again, the shares are taken as the server received them, and every one of the above is
divided by its factor and compared with the node's features.

With exchange=encrypted the server received ciphertexts of the shares of nodes that several
clients touch. It tries what it can do with them without the key: it decrypts with what came with its context,
if that is a key, and else reads the bytes as they lie. That finds everything where the encryption is only
simulated, and would find a key that was sent to the server by mistake; it is no attack on the encryption
itself."""

import numpy as np
import torch

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.transcript import Transcript, dense_rows
from graphfed.crypto.ckks import Grid, KeyOwner, Layout
from graphfed.crypto.ckks_ideal import read_plaintext
from graphfed.crypto.errors import ProtocolError
from graphfed.errors import GraphfedError
from graphfed.federation.cohort import Cohort
from graphfed.federation.secure.encrypted_sum import SUM, place_rows
from graphfed.methods.fedgcn.method import ENCRYPTED, border_ids, border_of, find_closure, neighbour_counts
from graphfed.nn.sparse import SparseMatrix

__all__ = ["CHECK", "lone_shares"]

#: Relative to the largest entry of a row: what the rounding of one product and one quotient may move.
TOLERANCE = 1e-5
#: Rows compared at a time, so that wide features fit into memory.
ROWS = 4096


def lone_shares(cohort: Cohort) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Shares that hold one node: their row in what the clients upload [n], the row of that node in the
    cohort [n], whether the share is the node's own [n] bool, and what to multiply it by [n]."""
    closure = find_closure(cohort)
    count = neighbour_counts(cohort, closure)[:, 0]
    own = closure.own[count[closure.own] == 0]
    own_source = (count[closure.own] == 0).nonzero()[:, 0]
    alone = (count[closure.remote_row] == 1).nonzero()[:, 0]
    share = torch.cat([own, closure.remote_row[alone]])
    source = torch.cat([own_source, cohort.cross_row[alone]])
    factor = (cohort.degree(with_cross=True) + 1).double().sqrt()[source]
    if cohort.cross_weight is not None:
        factor[len(own) :] /= cohort.cross_weight[alone]
    return (
        share.cpu().numpy(),
        source.cpu().numpy(),
        np.arange(len(share)) < len(own),
        factor.cpu().numpy(),
    )


def run(audited: AuditedRun) -> Finding:
    """Counts the nodes whose features come out of a share exactly."""
    transcript = audited.transcript
    cohort = transcript.cohort
    hops = audited.config.training.hops  # type: ignore[attr-defined]
    in_clear = "fedgcn/partial_sums" in audited.transfers
    share, source, own, factor = lone_shares(cohort)
    if in_clear:
        uploaded, rounding = transcript.first("fedgcn/partial_sums", "setup").payload, 0.0
    else:
        uploaded, sent = ciphertexts_as_read(transcript, cohort.num_features, hops)
        kept = sent[share] >= 0
        share, source, own, factor = sent[share[kept]], source[kept], own[kept], factor[kept]
        rounding = Grid(cohort.num_clients).step
    exact = np.concatenate(
        [
            _matches(
                uploaded, share[i : i + ROWS], factor[i : i + ROWS], cohort, source[i : i + ROWS], rounding
            )
            for i in range(0, len(share), ROWS)
        ]
        or [np.zeros(0, dtype=bool)]
    )
    nodes = cohort.num_rows
    read = len(np.unique(source[exact]))
    # The neighbour counts that say which share is its node's own cross with two hops only.
    known = len(np.unique(source[exact & own])) if hops == 2 else 0
    leaks = read > 0
    percent = f"{100 * read / nodes:.1f} %"
    return Finding(
        result=f"{read} of {nodes} nodes ({percent}) lie alone in a share; for {known} "
        "of these the server also knows which node it is, and the factor",
        baseline="none: without the shares the server has no feature",
        verdict=_verdict(leaks, in_clear),
        leaks=leaks,
        value=read / nodes,
        no_signal=0.0,
        details={"nodes": nodes, "recovered": read, "known_to_the_server": known, "shares": len(share)},
    )


def _verdict(leaks: bool, in_clear: bool) -> str:
    if leaks:
        return "leaks exactly: these features are read, not guessed"
    if in_clear:
        return "no share holds one node"
    return (
        "the server reads no share: it has ciphertexts and no key; a client that gives it the key opens all"
    )


def ciphertexts_as_read(
    transcript: Transcript, num_features: int, hops: int
) -> tuple[torch.Tensor, np.ndarray]:
    """What a server without the key makes of the ciphertexts it received, a row [n, F] for every node of
    the clients' borders, and which of these is each row of the closures, [M] (-1: it was not sent)."""
    cohort = transcript.cohort
    closure = find_closure(cohort)
    border = border_of(cohort, closure)
    ids = border_ids(closure, border)
    layout = Layout(num_features + (hops == 2), SUM.slots)
    names = ids.ids
    if layout.rows > 1:
        names = transcript.first(f"{ENCRYPTED}/packing", "setup", to_server=False).payload
    places = place_rows(ids, names)
    sealed = transcript.first(f"{ENCRYPTED}/rows", "setup").payload.cpu().numpy()
    context = transcript.first(f"{ENCRYPTED}/public_context", "setup").payload[0].cpu().numpy()
    slots = _open(sealed.reshape(-1, SUM.ciphertext_bytes), context)
    rows = layout.unpack(slots, places.unit.cpu().numpy(), places.place.cpu().numpy())[:, :num_features]
    sent = np.full(len(closure.ids), -1)
    sent[border.cpu().numpy()] = np.arange(len(border))
    return torch.from_numpy(rows), sent


def _open(sealed: np.ndarray, context: np.ndarray) -> np.ndarray:
    """The numbers in ciphertexts, [m, slots], as far as the server gets: NaN where it gets nothing."""
    try:
        return KeyOwner.from_secret(SUM.name, context).decrypt(sealed)
    except GraphfedError:  # no key, or no library to use it with
        pass
    try:
        return read_plaintext(SUM, sealed)
    except ProtocolError:
        return np.full((len(sealed), SUM.slots), np.nan)


def _matches(
    uploaded: torch.Tensor | SparseMatrix,
    share: np.ndarray,
    factor: np.ndarray,
    cohort: Cohort,
    source: np.ndarray,
    rounding: float,
) -> np.ndarray:
    """Whether each share times its factor is the node's features, [n] bool; rounding: how far a share is
    off."""
    assert cohort.x is not None
    recovered = dense_rows(uploaded, share) * torch.from_numpy(factor)[:, None]
    truth = dense_rows(cohort.x, source)
    scale = truth.abs().amax(dim=1).clamp(min=1e-30)
    allowed = TOLERANCE * scale + rounding * torch.from_numpy(factor)
    close: np.ndarray = ((recovered - truth).abs().amax(dim=1) <= allowed).numpy()
    return close


CHECK = Check(
    name="fedgcn_features",
    tests="features of single nodes, from the exchange before training",
    attacker="the server: every client's partial sums, or their ciphertexts, ids and neighbour counts",
    run=run,
    methods=("fedgcn",),
    transfers=("fedgcn/partial_sums",),
    instead=(f"{ENCRYPTED}/rows",),
)

"""FedGCN: features of single nodes, which the server reads from the partial sums.

Client k uploads for every node i of its border the sum of w_ij x_j / sqrt(d_j + 1) over the nodes j in V_k
that are i or a neighbour of i. A sum with one term is that node's features times w_ij / sqrt(d_j + 1), a
positive factor. There are two kinds:

    self       i is in V_k and has no neighbour in V_k; then j = i
    neighbour  i is at another client and has one neighbour j in V_k

Both are in the border: a node whose neighbours are all at its own client is not uploaded.

With two hops the server knows more about the first kind: the neighbour count 0 of this client says that j =
i, and the counts of all clients add up to d_i. It then knows x_i exactly.

The set-up is run again in this process. Every such sum is divided by its factor and compared with the node's
features (docs/papers/fedgcn.md).

With exchange=encrypted the server receives ciphertexts of these sums. The attack tries to read them without
the key: it uses the content of the public context as a key if it is one, and otherwise reads the bytes as
plain numbers. This finds everything if the encryption is only simulated, and would find a secret key that was
sent to the server by mistake. It does not attack the encryption itself.
"""

import numpy as np
import torch

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import SERVER_READS
from graphfed.audit.transcript import Transcript, dense_rows, features_of
from graphfed.crypto.ckks import Grid, KeyOwner, Layout
from graphfed.crypto.ckks_ideal import read_plaintext
from graphfed.crypto.errors import ProtocolError
from graphfed.errors import GraphfedError
from graphfed.federation.cohort import Cohort
from graphfed.federation.secure.encrypted_sum import SUM, place_rows
from graphfed.methods.fedgcn.method import ENCRYPTED, border_ids, border_of, find_closure, neighbour_counts
from graphfed.methods.settings import value
from graphfed.nn.sparse import SparseMatrix

#: The largest rounding error of a product and a quotient, relative to the largest entry of a row.
TOLERANCE = 1e-5
#: The number of rows that are compared at a time, so that wide features fit into memory.
ROWS = 4096


def single_node_sums(cohort: Cohort) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find the partial sums that have one term.

    Returns the sum's row among the uploads, [n]; the row in the cohort of the node whose features it has,
    [n]; whether the sum was uploaded for this node itself, [n] bool; and the factor that gives the features,
    [n].
    """
    closure = find_closure(cohort)
    border = border_of(cohort, closure)
    sent = torch.full_like(closure.ids, -1)
    sent[border] = torch.arange(len(border), device=border.device)
    # At this client only: a sum has as many terms as its client has neighbours of the node.
    count = neighbour_counts(cohort, closure)[:, 0]
    own = closure.local_row
    isolated_source = ((count[own] == 0) & (sent[own] >= 0)).nonzero()[:, 0]
    single = (count[closure.remote_row] == 1).nonzero()[:, 0]
    isolated = own[isolated_source]
    upload = sent[torch.cat([isolated, closure.remote_row[single]])]
    source = torch.cat([isolated_source, cohort.cross_row[single]])
    # A sum is normalised by the degree, and by the weight of its edge if edges have weights.
    factor = (cohort.degree(with_cross=True) + 1).double().sqrt()[source]
    if cohort.cross_weight is not None:
        factor[len(isolated) :] /= cohort.cross_weight[single]
    return (
        upload.cpu().numpy(),
        source.cpu().numpy(),
        np.arange(len(upload)) < len(isolated),
        factor.cpu().numpy(),
    )


def run(audited: AuditedRun) -> Finding:
    """Count the nodes whose features a partial sum shows exactly."""
    transcript = audited.transcript
    cohort = transcript.cohort
    hops = value(audited.config.settings, "hops")
    plaintext = "fedgcn/partial_sums" in audited.transfers
    upload, source, is_self, factor = single_node_sums(cohort)
    if plaintext:
        # Ciphertexts have their sums on a grid; sums in plaintext are not rounded.
        uploaded, rounding = transcript.first("fedgcn/partial_sums", "setup").payload, 0.0
    else:
        uploaded = read_ciphertexts(transcript, cohort.num_features, hops)
        rounding = Grid(cohort.num_clients).step
    exact = np.zeros(len(upload), dtype=bool)
    for start in range(0, len(upload), ROWS):
        part = slice(start, start + ROWS)
        exact[part] = _matches(uploaded, upload[part], factor[part], cohort, source[part], rounding)
    nodes = cohort.num_rows
    # A node may be the only term of several sums, and counts once.
    read = len(np.unique(source[exact]))
    # Only with two hops do clients send neighbour counts, which show that a sum has its node as only term.
    known = len(np.unique(source[exact & is_self])) if hops == 2 else 0
    leaks = read > 0
    percent = f"{100 * read / nodes:.1f} %"
    return Finding(
        result=f"the server reads the features of {read} of {nodes} nodes ({percent}) from sums with one "
        f"term, up to a factor; for {known} of these it also knows the node and the factor",
        baseline="none: without the sums the server has no features",
        verdict=_verdict(leaks, plaintext),
        leaks=leaks,
        value=read / nodes,
        no_signal=0.0,
        details={"nodes": nodes, "recovered": read, "known_to_the_server": known, "shares": len(upload)},
    )


def _verdict(leaks: bool, plaintext: bool) -> str:
    if leaks:
        return SERVER_READS
    if plaintext:
        return "no leak found: every sum has several terms"
    return (
        "no leak found: the server has ciphertexts and no key; if one client gives it the key, it can read "
        "all sums"
    )


def read_ciphertexts(transcript: Transcript, num_features: int, hops: int) -> torch.Tensor:
    """Read the ciphertexts as far as a server without the key can.

    Returns a row of numbers for every node of the clients' borders, [S, F]; NaN if they cannot be read.
    """
    cohort = transcript.cohort
    closure = find_closure(cohort)
    ids = border_ids(closure, border_of(cohort, closure))
    # With 2 hops the count of neighbours is one more column.
    layout = Layout(num_features + (hops == 2), SUM.slots)
    names = ids.ids
    if layout.rows > 1:
        names = transcript.first(f"{ENCRYPTED}/packing", "setup", to_server=False).payload
    places = place_rows(ids, names)
    sealed = transcript.first(f"{ENCRYPTED}/rows", "setup").payload.cpu().numpy()
    context = transcript.first(f"{ENCRYPTED}/public_context", "setup").payload[0].cpu().numpy()
    slots = _open(sealed.reshape(-1, SUM.ciphertext_bytes), context)
    rows = layout.unpack(slots, places.unit.cpu().numpy(), places.place.cpu().numpy())
    return torch.from_numpy(rows[:, :num_features])


def _open(sealed: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Return the numbers in ciphertexts, [m, slots]; NaN if the server cannot read them."""
    try:
        return KeyOwner.from_secret(SUM.name, context).decrypt(sealed)
    except GraphfedError:  # no key, or no library to use it with
        pass
    try:
        # A simulated encryption has the numbers themselves as bytes.
        return read_plaintext(SUM, sealed)
    except ProtocolError:
        return np.full((len(sealed), SUM.slots), np.nan)


def _matches(
    uploaded: torch.Tensor | SparseMatrix,
    upload: np.ndarray,
    factor: np.ndarray,
    cohort: Cohort,
    source: np.ndarray,
    rounding: float,
) -> np.ndarray:
    """Return whether each sum times its factor equals the node's features, [n] bool.

    `rounding` is the rounding error of a sum in an encrypted exchange.
    """
    recovered = dense_rows(uploaded, upload) * torch.from_numpy(factor)[:, None]
    truth = features_of(cohort, source)
    # A node whose features are all 0 matches only a sum that is 0 too.
    scale = truth.abs().amax(dim=1).clamp(min=1e-30)
    allowed = TOLERANCE * scale + rounding * torch.from_numpy(factor)
    close: np.ndarray = ((recovered - truth).abs().amax(dim=1) <= allowed).numpy()
    return close


CHECK = Check(
    name="fedgcn_features",
    tests="features of single nodes, from the sums that clients send before training",
    attacker="the server: every client's partial sums or their ciphertexts, ids and neighbour counts",
    run=run,
    methods=("fedgcn",),
    transfers=("fedgcn/partial_sums",),
    instead=(f"{ENCRYPTED}/rows",),
)

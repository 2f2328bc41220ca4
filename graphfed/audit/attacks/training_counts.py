"""The number of training nodes of each client, from the weights of the average.

Averaging methods send `training_counts` in plaintext. They are numbers of nodes and not classes. Together
with `label_histogram`, which estimates fractions of classes, they give numbers of nodes of each class.
"""

import numpy as np

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.federation.ledger import is_readable


def run(audited: AuditedRun) -> Finding:
    """Compare the counts that the server received with the true ones, for each client."""
    transcript = audited.transcript
    received = transcript.first("training_counts", "setup").payload.cpu().numpy()
    truth = transcript.cohort.counts(transcript.cohort.train).cpu().numpy()
    exact = int((received == truth).sum())
    readable = any(e.name == "training_counts" and is_readable(e.protection) for e in audited.ledger.entries)
    # The repeated run may send in plaintext what the run itself protected; the ledger says which it was.
    leaks = bool(exact) and readable
    return Finding(
        result=f"the server reads the exact number of training nodes of {exact} of {len(truth)} clients "
        f"(they have {truth.min()} to {truth.max()})",
        baseline=f"the server takes the mean, {np.mean(truth):.3g}, for every client",
        verdict="leaks exactly, by design: the server weighs averages by these numbers"
        if leaks
        else "no leak: the numbers are protected",
        leaks=leaks,
        value=exact / len(truth),
        no_signal=0.0,
        details={"received": received.tolist()},
    )


CHECK = Check(
    name="training_counts",
    tests="the number of training nodes of each client",
    attacker="the server: the counts that clients send it in set-up",
    run=run,
    transfers=("training_counts",),
)

"""What the weights of the average tell: how many training nodes each client has.

Averaging methods send `training_counts` in clear. It is the number and not the classes; but with it the
updates of `label_histogram` become shares of a known total."""

import numpy as np

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.federation.ledger import is_readable

__all__ = ["CHECK"]


def run(audited: AuditedRun) -> Finding:
    """Compares what the server received with the truth, client by client."""
    transcript = audited.transcript
    received = transcript.first("training_counts", "setup").payload.cpu().numpy()
    truth = transcript.cohort.counts(transcript.cohort.train).cpu().numpy()
    exact = int((received == truth).sum())
    clear = any(e.name == "training_counts" and is_readable(e.protection) for e in audited.ledger.entries)
    spread = f"from {truth.min()} to {truth.max()}"
    return Finding(
        result=f"the exact number of {exact} of {len(truth)} clients ({spread})",
        baseline=f"the mean, {np.mean(truth):.3g}, for every client",
        verdict="leaks exactly, by design: averages are weighted by it" if exact and clear else "protected",
        leaks=bool(exact) and clear,
        value=exact / len(truth),
        no_signal=0.0,
        details={"received": received.tolist()},
    )


CHECK = Check(
    name="training_counts",
    tests="the number of training nodes of each client",
    attacker="the server: the counts it receives in set-up",
    run=run,
    transfers=("training_counts",),
)

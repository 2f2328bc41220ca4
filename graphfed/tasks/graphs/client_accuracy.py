"""The accuracy of every client on its own nodes: the mean over clients, its spread, and the worst client.

The accuracy over the nodes of all clients together gives every node the same weight, so large clients decide
it. The mean over clients gives every client the same weight. Papers on models of the clients' own call it
personalised accuracy (FED-PUB; OpenFGL). Clients without nodes do not count. A node that several clients own
counts in full at each of them.

The server computes the metrics from two sums over clients, which the final scores contain: the sum of the
accuracies, and the number of clients in each of 1001 bins of the accuracy. So they are the same with every
protection of the sums. The mean is exact; spread and worst client are those of accuracies that are rounded to
a tenth of a percentage point.

Shapes: K clients, B + 1 bins.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from graphfed.federation.cohort import Cohort
from graphfed.federation.transfer import describe_value

#: B: accuracies are counted in bins around the multiples of 1 / B.
BINS = 1000


def own_accuracy(cohort: Cohort, logits: Tensor, target: str) -> Tensor:
    """Compute every client's accuracy on its own nodes of a part, [K] float64, from their logits [n, C].

    It is nan for a client without such nodes. Logits that are not all finite are wrong.
    """
    rows = cohort.rows(target)
    right = (logits.argmax(1) == cohort.y[rows]) & logits.isfinite().all(1)
    client, clients = cohort.client[rows], cohort.num_clients
    count = torch.bincount(client, minlength=clients)
    return torch.bincount(client[right], minlength=clients).double() / count


def accuracy_parts(accuracy: Tensor) -> dict[str, Tensor]:
    """Return what every client adds to the sums: "client_accuracy" [K] and "client_bins" [K, B + 1].

    Both are zero for a client that does not count, whose accuracy is nan.
    """
    counts = accuracy.isfinite()
    bins = accuracy.new_zeros(len(accuracy), BINS + 1)
    # One 1 in the row of each client that counts.
    bins[counts, _bins(accuracy[counts])] = 1
    return {"client_accuracy": accuracy.where(counts, 0.0), "client_bins": bins}


def accuracy_sums(accuracy: Tensor) -> dict[str, Tensor]:
    """Return the sums of `accuracy_parts` over the clients without the parts; the bins are int64."""
    known = accuracy[accuracy.isfinite()]
    return {
        "client_accuracy": known.sum(),
        "client_bins": torch.bincount(_bins(known), minlength=BINS + 1),
    }


def _bins(accuracy: Tensor) -> Tensor:
    return (accuracy * BINS).round().long()


def client_metrics(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Compute the metrics over clients from the sums of all clients (see `accuracy_sums`).

    client_accuracy is the mean of the clients' accuracies, client_accuracy_std their standard deviation over
    the clients (divided by their number), and client_accuracy_min the smallest. All are nan without clients.
    """
    bins = sums["client_bins"].double()
    clients, center = bins.sum(), torch.arange(BINS + 1, device=bins.device) / BINS
    occurs = bins.nonzero()
    variance = (bins * (center - (bins * center).sum() / clients) ** 2).sum() / clients
    return {
        "client_accuracy": float(sums["client_accuracy"] / clients),
        "client_accuracy_std": float(variance.sqrt()),
        "client_accuracy_min": float(occurs[0, 0]) / BINS if len(occurs) else math.nan,
    }


def accept_sums(sums: Mapping[str, Tensor], most: np.ndarray | None) -> str:
    """Return why the sums of another process cannot be used, or "" if they can (see `transfer.Accept`).

    `most` is the number of nodes that each of the process's clients declared; None if unknown. Sums without
    "client_bins" are not checked.
    """
    bins, total = sums.get("client_bins"), sums.get("client_accuracy")
    if bins is None or total is None:
        return ""
    if bins.dtype != torch.int64 or bins.shape != (BINS + 1,) or bool((bins < 0).any()):
        return f"{describe_value(bins)} where counts of clients are expected"
    clients = float(bins.double().sum())
    if most is not None and clients > len(most):
        return f"accuracies of {clients:.6g} clients, and the process has {len(most)}"
    # The tolerance allows for the rounding of the sum.
    if not 0 <= float(total) <= clients * (1 + 1e-9):
        return f"a sum of accuracies of {float(total):.6g}, for {clients:.6g} clients"
    return ""

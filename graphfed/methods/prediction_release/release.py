"""The release: each node's predicted class, once, and what the classes of its neighbours say about its own.

The class of a node is sent under randomised response. Its noise is one uniform word of the node, which is
drawn before training and kept in the state: a run that is interrupted in the round of the release, and goes
on from an earlier checkpoint, predicts the same class, and releases the same value again.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.aggregation import SumForm, protected_sum
from graphfed.federation.transfer import describe_value
from graphfed.methods.base import Task
from graphfed.methods.common.local_training import Prepared, predict_shared
from graphfed.methods.common.released import NoiseSeed, noise_of
from graphfed.methods.common.remote_neighbours import remote_neighbours
from graphfed.methods.parts import Network
from graphfed.methods.prediction_release.config import PredictionReleaseConfig
from graphfed.methods.prediction_release.likelihoods import class_likelihoods
from graphfed.nn.backbones import Weights
from graphfed.privacy.local import label_mechanism, respond

# ---- at the clients ----------------------------------------------------------------------------------------


def draw_words(cohort: Cohort, noise: NoiseSeed) -> Tensor:
    """Draw the word of each node's randomised response, before anything is known that it will hide, [N]
    int32.
    """
    # One word for each node: all receivers get one value, so collusion shows nothing more.
    return noise_of(noise).words("prediction_release/classes", cohort.id, 1)[:, 0]


def no_evidence(cohort: Cohort) -> Tensor:
    """Return what neighbours say about every node before the release: zeros, [N, C]."""
    return torch.zeros(cohort.num_rows, cohort.num_classes, device=cohort.id.device)


def predicted_classes(batches: Prepared, weights: Weights, network: Network) -> Tensor:
    """Predict the class of every row from its own features, [N] int64."""
    return predict_shared(batches, weights, network, "all").argmax(1)


def released_classes(classes: Tensor, words: Tensor, epsilon: float, num_classes: int) -> Tensor:
    """Apply randomised response to predicted classes, [N] int16."""
    return respond(classes, words, epsilon, num_classes).to(torch.int16)


def accept_classes(num_classes: int, classes: Tensor, declared: Mapping[str, np.ndarray]) -> str:
    """Say why the released classes that another process sent cannot be used, or return an empty text; see
    `transfer.Accept`.
    """
    if classes.dtype != torch.int16 or classes.dim() != 1:
        return f"{describe_value(classes)} where a class of each node is expected"
    # A class out of range would be counted in the cell of another node.
    wrong = classes[(classes < 0) | (classes >= num_classes)]
    return f"class {int(wrong[0])}, but the classes are 0..{num_classes - 1}" if len(wrong) else ""


def count_neighbours(cohort: Cohort, classes: Tensor, received: Tensor) -> Tensor:
    """Count every node's neighbours by their classes, [2, N, C] int64: neighbours at other clients by
    released class, and at the node's own client by predicted class.

    classes: [N] predicted classes of the cohort's own rows. received: [M] released classes of the remote
    neighbours.
    """
    n, width = cohort.num_rows, cohort.num_classes
    source, target = cohort.edge_index
    _, remote = remote_neighbours(cohort)
    # [N, C] as one index; a remote neighbour counts for each of its edges.
    cells = (cohort.cross_row * width + received.long()[remote], target * width + classes[source])
    return torch.stack([torch.bincount(cell, minlength=n * width).view(n, width) for cell in cells])


def count_pairs(cohort: Cohort, neighbours: Tensor) -> Tensor:
    """Add up the counts of the neighbours of a cohort's training nodes by the label of the node, [2, C, C]
    int64.
    """
    rows = cohort.rows("train")
    pairs = neighbours.new_zeros(2, cohort.num_classes, cohort.num_classes)
    return pairs.index_add(1, cohort.y[rows], neighbours[:, rows])


def count_pairs_of_clients(cohort: Cohort, neighbours: Tensor) -> Tensor:
    """Do the same for each client, [K_h, 2, C, C] float64."""
    rows = cohort.rows("train")
    width, k = cohort.num_classes, cohort.num_clients
    pairs = neighbours.new_zeros(2, k * width, width)
    pairs = pairs.index_add(1, cohort.client[rows] * width + cohort.y[rows], neighbours[:, rows])
    return pairs.view(2, k, width, width).transpose(0, 1).double()


def weigh_evidence(neighbours: Tensor, likelihoods: Tensor) -> Tensor:
    """Compute what the classes of its neighbours say about every node's class, [N, C]: for each class of the
    node, the sum over its neighbours of the log-likelihoods of their classes.

    neighbours: [2, N, C] counts of `count_neighbours`. likelihoods: [2, C, C] of `class_likelihoods`.
    """
    # sum_v log p(c_v | k): counts [2, N, C] times log-likelihoods [2, C, C] transposed
    return torch.bmm(neighbours.to(likelihoods), likelihoods.transpose(1, 2)).sum(0)


# ---- at the server -----------------------------------------------------------------------------------------


def no_pairs(num_classes: int) -> Tensor:
    """Return a value of the form of one client's counts."""
    return torch.zeros(2, num_classes, num_classes)


def round_counts(total: Any) -> Any:
    """Round a secure sum of counts, which is off by a small fraction."""
    return total.round().long()


def accept_pairs(counts: Tensor, declared: Mapping[str, np.ndarray]) -> str:
    """Say why the counts that another process sent cannot be used, or return an empty text; the transfer
    checks their dtype and shape. See `transfer.Accept`.
    """
    return "a number of neighbours below 0" if bool((counts < 0).any()) else ""


#: The counts that the server adds up.
PAIRS = SumForm(count_pairs, count_pairs_of_clients, no_pairs, round_counts)


# ---- the program over places -------------------------------------------------------------------------------


def release(
    fed: Federation,
    data: Located,
    batches: Located,
    route: ExchangeRoute,
    weights: Located,
    words: Located,
    task: Task,
    config: PredictionReleaseConfig,
) -> Located:
    """Send every node's class to the clients of its neighbours, once, and weigh what has arrived: at the
    clients, what its neighbours say about every node, [N, C]. words: result of `draw_words`.
    """
    run, num_classes, epsilon = fed.clients.run, task.num_classes, config.release.epsilon
    classes = run(predicted_classes, batches, weights, config.network)
    received = fed.exchange(
        run(released_classes, classes, words, epsilon, num_classes),
        route,
        name="prediction_release/classes",
        protection=noise_of(config.noise).protection(label_mechanism(epsilon, num_classes)),
        grad=False,
        accept=partial(accept_classes, num_classes),
    )
    neighbours = run(count_neighbours, data, classes, received)
    pairs = protected_sum(
        fed,
        PAIRS,
        data,
        neighbours,
        protection=config.sums.aggregation,
        name="prediction_release/class_counts",
        like=(num_classes,),
        accept=accept_pairs,
    )
    likelihoods = fed.server.run(class_likelihoods, pairs, epsilon, config.release.smoothing)
    likelihoods = fed.broadcast(
        likelihoods,
        name="prediction_release/likelihoods",
        grad=False,
        like=TensorForm(torch.get_default_dtype(), (2, num_classes, num_classes)),
    )
    return run(weigh_evidence, neighbours, likelihoods)

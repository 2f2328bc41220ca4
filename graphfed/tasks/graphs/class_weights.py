"""Class weights of the training loss, agreed on once for every method of node classification.

With class_weights=balanced a training node of class c counts n / (C n_c) times in the loss: n_c of the n
training nodes of all clients are of class c, and C is the number of classes that occur among them. So every
class weighs the same in the whole loss, and the weights of all training nodes still sum to n. The counts are
summed over the clients as the run's other sums are, the server computes the weights, and every client gets
the same ones, on its `Cohort`, where methods read them (`Cohort.loss_weights`)."""

from dataclasses import replace

import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.secure.aggregation import messages, protected_sum
from graphfed.methods.base import Task
from graphfed.methods.config import ClassWeightSettings, CommonSettings, sum_protection
from graphfed.tasks.graphs.node_scores import CLASS_COUNTS, SCORE_UNITS, count_classes

__all__ = ["MESSAGES", "agree_class_weights", "balanced_weights"]

_WHEN = "With class_weights=balanced"
MESSAGES = {
    "class_counts": f"{_WHEN} and aggregation=plaintext, once: how many of a client's training nodes are of "
    "each class. The server reads each client's counts.",
    **messages(
        "class_counts",
        f"{_WHEN} and aggregation=secure, once",
        "how many of a client's training nodes are of each class",
    ),
    "class_weights": f"{_WHEN}, once, from the server: the weight of each class in the training loss, which "
    "follows from the class counts of all clients together.",
}


def agree_class_weights(
    fed: Federation, data: Located[Cohort], task: Task, config: CommonSettings
) -> Located[Cohort]:
    """Put the class weights that `config` asks for on every client's cohort.

    Args:
        fed: the federation.
        data: the clients' cohorts.
        task: the task.
        config: the run's settings; without class_weights=balanced the cohorts are returned as they are.

    Returns:
        The cohorts, with `class_weights` [C].
    """
    balanced = isinstance(config, ClassWeightSettings) and config.class_weights == "balanced"
    if not balanced:
        return data
    with fed.phase("eval"):  # as what else is agreed on: no part of what training costs
        counts = protected_sum(
            fed,
            CLASS_COUNTS,
            fed.clients.run(count_classes, data, "train"),
            protection=sum_protection(config),
            name="class_counts",
            like=(task.num_classes,),
        )
        weights = fed.server.run(balanced_weights, counts)
        weights = fed.broadcast(weights, name="class_weights", protection="aggregate", grad=False)
        result = fed.clients.run(with_class_weights, data, weights)
    return result


def balanced_weights(counts: Tensor) -> Tensor:
    """n / (C n_c) of every class [C], in torch's default dtype; 1 for a class without training nodes. counts
    [C] int64, in SCORE_UNITS."""
    nodes = counts.double() / SCORE_UNITS
    occurs = counts > 0
    weights = nodes.sum() / (occurs.sum() * nodes)
    return weights.where(occurs, 1.0).to(torch.get_default_dtype())


def with_class_weights(cohort: Cohort, weights: Tensor) -> Cohort:
    """The cohort with class weights [C]."""
    return replace(cohort, class_weights=weights)

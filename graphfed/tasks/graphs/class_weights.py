"""Class weights of the training loss, for every method of node classification.

With class_weights=balanced, a training node of class c has the weight n / (C n_c) in the loss. n is the
number of training nodes of all clients, n_c the number of those of class c, and C the number of classes that
occur among them. So every class has the same total weight, and the weights of all training nodes sum to n.
The counts are summed over the clients with the same protection as the run's other sums. The server computes
the weights, and every client gets them on its `Cohort`, where methods read them (`Cohort.loss_weights`).
"""

from dataclasses import replace

import torch
from torch import Tensor

from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.secure.aggregation import messages, protected_sum
from graphfed.methods.base import Task
from graphfed.methods.parts import sum_protection
from graphfed.methods.settings import value
from graphfed.tasks.graphs.node_scores import CLASS_COUNTS, SCORE_UNITS, count_classes

_WHEN = "With class_weights=balanced"
MESSAGES = {
    "class_counts": f"{_WHEN} and aggregation=plaintext, once: each client sends the server the number of "
    "its training nodes of each class. The server reads each client's counts.",
    **messages(
        "class_counts",
        f"{_WHEN} and aggregation=secure, once",
        "the number of a client's training nodes of each class",
    ),
    "class_weights": f"{_WHEN}, once: the server sends all clients the weight of each class in the training "
    "loss, which it computes from the class counts of all clients together.",
}


def agree_class_weights(
    fed: Federation, data: Located[Cohort], task: Task, config: object
) -> Located[Cohort]:
    """Put the class weights [C] on every client's cohort; none without class_weights=balanced."""
    if value(config, "class_weights") != "balanced":
        return data
    with fed.phase("eval"):  # like other agreements before training, these transfers are no cost of training
        counts = protected_sum(
            fed,
            CLASS_COUNTS,
            fed.clients.run(count_classes, data, "train"),
            protection=sum_protection(config),
            name="class_counts",
            like=(task.num_classes,),
        )
        weights = fed.server.run(balanced_weights, counts)
        form = TensorForm(torch.get_default_dtype(), (task.num_classes,))
        weights = fed.broadcast(weights, name="class_weights", protection="aggregate", grad=False, like=form)
        result = fed.clients.run(with_class_weights, data, weights)
    return result


def balanced_weights(counts: Tensor) -> Tensor:
    """Compute the weight n / (C n_c) of every class, [C], from the class counts [C] in SCORE_UNITS.

    The weight of a class without training nodes is 1.
    """
    nodes = counts.double() / SCORE_UNITS
    occurs = counts > 0
    weights = nodes.sum() / (occurs.sum() * nodes)
    return weights.where(occurs, 1.0).to(torch.get_default_dtype())


def with_class_weights(cohort: Cohort, weights: Tensor) -> Cohort:
    return replace(cohort, class_weights=weights)

"""How the gradients of the shared weights add up at the server, under each protection.

In plaintext the weights are leaves at the server: their gradient comes back over the broadcast, added up over
the devices of a host. By secure aggregation every device has leaves of its own, whose gradients are its part
of the sum; how many nodes are trained on is one more number of it, in every round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves, constant
from graphfed.federation.secure.aggregation import secure_sum
from graphfed.methods.base import Task
from graphfed.methods.lumos.devices import Devices
from graphfed.methods.tasks import LINK_PREDICTION

__all__ = ["GRADIENTS", "GradientSum", "Weights"]

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class GradientSum:
    """A sum of gradients under one protection.

    Attributes:
        apart: Whether every device has weights of its own.
        count: (fed, devices, task) -> at the server, how many nodes (to predict links: devices) are
            trained on; None where every round sums them.
        broadcast: (fed, devices, weights) -> the leaves that collect gradients, and the weights at the
            devices.
        mean: (fed, devices, gradients, count, weights) -> the mean gradient at the server.
    """

    apart: bool
    count: Callable[[Federation, Located, Task], Located | None]
    broadcast: Callable[[Federation, Located, Located], tuple[Located, Located]]
    mean: Callable[[Federation, Located, Located, Located | None, Located], Located]


# ---- at the devices ----------------------------------------------------------------------------------------


def copies(devices: Devices, weights: Weights) -> Weights:
    """A copy of the weights for every device, [n, ...], to collect its own gradient."""
    n = devices.forest.num_devices
    leaves: Weights = as_leaves({name: w.expand(n, *w.shape).contiguous() for name, w in weights.items()})
    return leaves


def training_nodes(devices: Devices) -> Tensor:
    return devices.cohort.train.sum()


def with_count(devices: Devices, gradients: Weights) -> tuple[Weights, Tensor]:
    """Each device's gradient, and for how many nodes (to predict links: devices) its loss counts, [n]."""
    cohort = devices.cohort
    if cohort.links is not None:
        return gradients, torch.ones(devices.forest.num_devices)
    count = torch.bincount(cohort.client[cohort.rows("train")], minlength=cohort.num_clients)
    return gradients, count.double()


# ---- at the server -----------------------------------------------------------------------------------------


def no_sum(weights: Weights) -> tuple[Weights, Tensor]:
    """What a sum of `with_count` looks like."""
    return weights, torch.zeros(())


def mean_of(gradients: Weights, count: Tensor, weights: Weights) -> Weights:
    if not bool(count):
        raise InputError("no device has a training node; use another split")
    return {name: (g / count).to(weights[name].dtype) for name, g in gradients.items()}


def mean_of_sum(total: tuple[Weights, Tensor], weights: Weights) -> Weights:
    return mean_of(*total, weights)


# ---- the program over places -------------------------------------------------------------------------------


def count_once(fed: Federation, devices: Located, task: Task) -> Located:
    """Each device tells the server whether its node is trained on; to predict links all are."""
    if task.name == LINK_PREDICTION:
        return fed.server.run(constant, fed.num_clients)
    counts = fed.clients.run(training_nodes, devices)
    return fed.sum(counts, name="lumos/training_count", grad=False)


def count_in_sums(fed: Federation, devices: Located, task: Task) -> None:
    """The sums of gradients have it."""


def leaves_at_server(fed: Federation, devices: Located, weights: Located) -> tuple[Located, Located]:
    """Weights whose gradients come back to the server over the broadcast."""
    leaves = fed.server.run(as_leaves, weights)
    return leaves, fed.broadcast(leaves, name="model")


def leaves_at_devices(fed: Federation, devices: Located, weights: Located) -> tuple[Located, Located]:
    """A copy of the weights at every device, which collects its own gradient."""
    leaves = fed.clients.run(copies, devices, fed.broadcast(weights, name="model", grad=False))
    return leaves, leaves


def mean_at_server(
    fed: Federation, devices: Located, gradients: Located, count: Located | None, weights: Located
) -> Located:
    """The mean of gradients that the server has added up."""
    return fed.server.run(mean_of, gradients, count, weights)


def mean_of_parts(
    fed: Federation, devices: Located, gradients: Located, count: Located | None, weights: Located
) -> Located:
    """The mean of gradients that the server learns the sum of."""
    parts = fed.clients.run(with_count, devices, gradients)
    total = secure_sum(fed, parts, None, fed.server.run(no_sum, weights), name="lumos/gradient")
    return fed.server.run(mean_of_sum, total, weights)


GRADIENTS: Mapping[str, GradientSum] = {
    "plaintext": GradientSum(False, count_once, leaves_at_server, mean_at_server),
    "secure": GradientSum(True, count_in_sums, leaves_at_devices, mean_of_parts),
}

"""FedSGD (McMahan et al. 2017): the mean of the clients' gradients of one full-batch loss, weighted by their
training nodes, and a step of the optimiser at the server: the step of central training. FedGAT's program
calls it FedAvg.

An optimiser with a state, such as Adam, at every client would normalise the gradients of each client by
their own scale; if clients have different classes, the mean of such steps makes no progress (docs/runs.md).
"""

from torch import Tensor

from graphfed.federation.secure.aggregation import messages
from graphfed.methods.averaging.rules.base import Average, Rule, Tensors, Values
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.common.local_training import Prepared, gradient_from_shared
from graphfed.nn.backbones import Weights
from graphfed.nn.optim import init_state, optimizer_step


def first(model: Tensors, config: AveragingSettings) -> Values:
    """Return the optimiser's state before its first step."""
    return {"optimizer": init_state(config.training.optimizer, model)}


def local(
    prepared: Prepared,
    model: Weights,
    kept: Values,
    present: Tensor,
    config: AveragingSettings,
    round_number: int,
) -> tuple[Weights, Values]:
    """Compute the gradient of each client's mean loss."""
    # Nothing is kept at the clients: the optimiser's state is at the server.
    return gradient_from_shared(prepared, model, present, config, round_number), {}


def step(model: Tensors, values: Values, mean: Tensors, config: AveragingSettings) -> tuple[Tensors, Values]:
    """Take the step of a central optimiser. If no training node takes part, only the weight decay acts."""
    training, state = config.training, values["optimizer"]
    new, after = optimizer_step(training.optimizer, model, mean, state, training.lr, training.weight_decay)
    return new, {"optimizer": after}


#: The transfers of every method whose optimiser can run at the server.
MESSAGES = {
    "gradient": "With one local step (optimizer_at=server) and aggregation=plaintext every client sends the "
    "server the gradient of its loss. The server averages the gradients by the number of training nodes and "
    "reads each client's gradient; if the client has few training nodes, their features and labels can be "
    "reconstructed from it.",
    **messages(
        "gradient",
        "With one local step (optimizer_at=server) and aggregation=secure, in every round",
        "a client's gradient, times its number of training nodes",
    ),
}

RULE = Rule("fedsgd", local, step, first, averages=(Average("gradient"),), messages=MESSAGES)

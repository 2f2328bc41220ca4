"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: stochastic controlled averaging for
federated learning", ICML 2020 (arXiv:1910.06378v4), Algorithm 1 with option II of line 12.

    paper        here
    x, c         State.weights, and "control" of the server's values
    c_i          "control" of what a client keeps
    eta_l, K     lr, local_steps
    eta_g        1

Clients whose data differ pull the model in different directions, and the mean of their weights after several
local steps is not where the mean of their losses is smallest. Every step of a client adds c - c_i to its
gradient, which replaces what is special about the client's gradient by the mean of all clients. The clients
minimise the loss of all clients, with any number of local steps.

Differs from the paper: only option II of line 12 is here, and the server's rate eta_g is 1; the paper's
listing leaves both open. Clients have weight n_k / n, in the mean of the weights and in c, where the paper's
listing takes plain means. Steps are full-batch. Weight decay counts as a part of the loss.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation.secure.aggregation import messages
from graphfed.methods.averaging.rules.base import Average, Rule, Tensors, Values
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.common.local_training import (
    Prepared,
    choose_clients,
    each_value,
    personal_weights,
    train_pulled,
    values_of,
)
from graphfed.nn.backbones import Weights
from graphfed.nn.optim import Pull


def check(config: AveragingSettings) -> None:
    """Raise InputError if clients take other steps than those of gradient descent."""
    if config.training.optimizer != "sgd":
        raise InputError(
            f"optimizer={config.training.optimizer} cannot be used with rule=scaffold, which computes each "
            "client's mean gradient from the steps of gradient descent; set optimizer=sgd"
        )


def first(model: Tensors, config: object) -> Values:
    return {"control": {k: torch.zeros_like(w) for k, w in model.items()}}


def local(
    prepared: Prepared,
    model: Weights,
    control: Weights,
    kept: Mapping[str, Weights],
    present: Tensor,
    config: AveragingSettings,
    round_number: int,
) -> tuple[Weights, Weights, dict[str, Weights]]:
    """Take `local_steps` corrected steps, and compute each client's new control variate."""
    x = personal_weights(model, prepared.train, config.network.kernel)
    c = personal_weights(control, prepared.train, config.network.kernel)
    # c_i starts at 0, and stays there for a client until it first takes part.
    own = kept["control"] if kept else each_value(torch.zeros_like, x)
    correction = each_value(torch.sub, c, own)
    # Without a quadratic term: the pull only adds c - c_i to every gradient.
    pull = Pull(0.0, values_of(x), values_of(correction))
    y, _ = train_pulled(prepared, x, {}, pull, config, round_number)  # Alg. 1, l. 8-11
    # K eta_l: what the steps have covered, so (x - y) / covered is the mean corrected gradient.
    covered = config.steps.local_steps * config.training.lr
    new = each_value(lambda k, x, y: (x - y) / covered - k, correction, x, y)  # Alg. 1, l. 12, option II
    return y, each_value(torch.sub, new, own), {"control": choose_clients(present, new, own)}


def step(
    model: Tensors, values: Values, mean: Tensors, change: Tensors, config: object
) -> tuple[Tensors, Values]:
    """Take the mean for the next model, and add the clients' changes to c: c + sum_i (n_i / n) (c_i+ - c_i)
    over the clients that took part.
    """
    return mean, {"control": {k: c + change[k] for k, c in values["control"].items()}}  # Alg. 1, l. 17


#: The transfers of control variates.
MESSAGES = {
    "control_variate": "The server sends every client the mean of the clients' control variates, which is "
    "close to the gradient of the loss of all clients.",
    "control_variate_change": "With aggregation=plaintext every client sends the server the change of its "
    "control variate, from which its mean gradient in the round follows. The server averages the changes by "
    "the number of training nodes and reads each client's; features and labels of training nodes can in part "
    "be inferred from it.",
    **messages(
        "control_variate_change",
        "With aggregation=secure, in every round",
        "the change of a client's control variate, times its number of training nodes",
    ),
}

RULE = Rule(
    "scaffold",
    local,
    step,
    first,
    averages=(Average("update", of_model=True), Average("control_variate_change", share=True)),
    sends=("control", "control_variate"),
    messages=MESSAGES,
    check=check,
    keeps_weights=True,
)

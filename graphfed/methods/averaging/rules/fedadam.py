"""FedAdam: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive federated
optimization", ICLR 2021 (arXiv:2003.00295v5), Algorithm 2 with the Adam line.

    paper            here
    Delta_t          mean of the clients' w_k - w_t, weighted by n_k
    m_t, v_t         "first" and "second" of the server's values
    eta, eta_l       server_lr, lr
    beta_1, beta_2, tau

Differs from the paper: clients have weight n_k; the paper's listing takes the plain mean. As in the paper
there is no bias correction, and v starts at tau^2.
"""

import torch

from graphfed.methods.averaging.rules.base import Rule, Tensors, Values
from graphfed.methods.averaging.rules.fedavg import local
from graphfed.methods.averaging.settings import ServerAdamSettings


def first(model: Tensors, config: ServerAdamSettings) -> Values:
    return {
        "first": {k: torch.zeros_like(w) for k, w in model.items()},
        "second": {k: torch.full_like(w, config.tau**2) for k, w in model.items()},
    }


def step(model: Tensors, values: Values, mean: Tensors, config: ServerAdamSettings) -> tuple[Tensors, Values]:
    """Take the server's step of Adam on the mean update."""
    new: Tensors = {}
    m: Tensors = {}
    v: Tensors = {}
    for k, w in model.items():
        delta = mean[k] - w  # Alg. 2, l. 10
        m[k] = config.beta1 * values["first"][k] + (1 - config.beta1) * delta  # Alg. 2, l. 11
        v[k] = config.beta2 * values["second"][k] + (1 - config.beta2) * delta**2  # Alg. 2, l. 14
        new[k] = w + config.server_lr * m[k] / (v[k].sqrt() + config.tau)  # Alg. 2, l. 15
    return new, {"first": m, "second": v}


RULE = Rule("fedadam", local, step, first)

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
from pydantic import Field

from graphfed.methods.averaging.rules.base import Rule, Tensors, Values
from graphfed.methods.averaging.rules.fedavg import local
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.settings import settings


@settings
class FedAdam:
    """Adam at the server."""

    server_lr: float = Field(
        default=0.01, gt=0, allow_inf_nan=False, description="learning rate of the server"
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="decay of the second moment")
    tau: float = Field(
        default=1e-3,
        gt=0,
        allow_inf_nan=False,
        description="adaptivity: added to the root of the second moment",
    )


def first(model: Tensors, config: AveragingSettings) -> Values:
    return {
        "first": {k: torch.zeros_like(w) for k, w in model.items()},
        # v_{-1} >= tau^2, as Alg. 2 requires
        "second": {k: torch.full_like(w, config.of_rule.tau**2) for k, w in model.items()},
    }


def step(model: Tensors, values: Values, mean: Tensors, config: AveragingSettings) -> tuple[Tensors, Values]:
    """Take the server's step of Adam on the mean update."""
    adam: FedAdam = config.of_rule
    new: Tensors = {}
    m: Tensors = {}
    v: Tensors = {}
    for k, w in model.items():
        delta = mean[k] - w  # Alg. 2, l. 10
        m[k] = adam.beta1 * values["first"][k] + (1 - adam.beta1) * delta  # Alg. 2, l. 11
        v[k] = adam.beta2 * values["second"][k] + (1 - adam.beta2) * delta**2  # Alg. 2, l. 14
        new[k] = w + adam.server_lr * m[k] / (v[k].sqrt() + adam.tau)  # Alg. 2, l. 15
    return new, {"first": m, "second": v}


RULE = Rule("fedadam", local, step, first, settings=FedAdam)

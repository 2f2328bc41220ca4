"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous
networks", MLSys 2020 (arXiv:1812.06127v5): FedAvg whose clients minimise F_k(w) + mu/2 ||w - w_t||^2.

    paper        here
    mu           mu
    w^t          the weights received at the start of the round

Differs from the paper: full-batch gradient steps in the place of the gamma-inexact solution; with Adam
proximal steps (`nn.optim.adam`), so that the term keeps its strength. With mu = 0 it is FedAvg, bit for bit.
"""

from pydantic import Field
from torch import Tensor

from graphfed.methods.averaging.rules.base import Rule
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.common.local_training import Prepared, train_from_shared
from graphfed.methods.settings import settings
from graphfed.nn.backbones import Weights
from graphfed.nn.optim import AdamState


@settings
class FedProx:
    """The proximal term."""

    mu: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="strength of the proximal term")


def local(
    prepared: Prepared,
    model: Weights,
    kept: AdamState,
    present: Tensor,
    config: AveragingSettings,
    round_number: int,
) -> tuple[Weights, AdamState]:
    """Take steps on the loss plus the proximal term."""
    # F_k(w) + mu/2 ||w - w_t||^2, with w_t the received model
    return train_from_shared(prepared, model, kept, present, config, round_number, config.of_rule.mu)


RULE = Rule("fedprox", local, settings=FedProx)

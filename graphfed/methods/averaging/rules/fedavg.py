"""FedAvg: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of deep
networks from decentralized data", AISTATS 2017 (arXiv:1602.05629v4).

    paper        here
    w_t          State.weights, at the server
    n_k          training nodes of client k, at the server
    E            local_steps (one batch: the client's whole graph)
    C            fraction

Differs from the paper: full-batch steps instead of epochs of mini-batches; clients without training nodes
have weight 0.
"""

from torch import Tensor

from graphfed.methods.averaging.rules.base import Rule
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.common.local_training import Prepared, train_from_shared
from graphfed.nn.backbones import Weights
from graphfed.nn.optim import AdamState


def local(
    prepared: Prepared,
    model: Weights,
    kept: AdamState,
    present: Tensor,
    config: AveragingSettings,
    round_number: int,
) -> tuple[Weights, AdamState]:
    """Take `local_steps` steps from the model. What a client keeps is its optimiser's state."""
    # FedProx with mu = 0 takes the same path, so both agree bit for bit.
    return train_from_shared(prepared, model, kept, present, config, round_number, 0.0)


#: The next model is the mean: w_{t+1} = sum_k (n_k / n) w_k.
RULE = Rule("fedavg", local)

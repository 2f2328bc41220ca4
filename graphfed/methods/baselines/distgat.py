"""DistGAT: FedAvg on GAT without cross-client edges, the baseline of FedGAT (Ambekar et al., "FedGAT: a
privacy-preserving federated approximation algorithm for graph attention networks"). GAT: Velickovic et al.,
ICLR 2018 (arXiv:1710.10903v3).

Differs from the paper's program: weights are averaged unless another rule is set (`rule`,
`common.aggregation_rules`); the program takes Adam steps on averaged gradients at the server (rule=fedsgd).
FedGAT's learning rate is not known: the preset has 8 heads of 8 units, Adam with learning rate 0.01, dropout
0.5 on features and attention, and Adam starts afresh in every round (client_state=reset).
"""

from pydantic.dataclasses import dataclass

from graphfed.methods import config as groups
from graphfed.methods.base import Method, Sent, StateValues
from graphfed.methods.baselines import fedavg
from graphfed.methods.baselines.fedadam import ServerAdamSettings
from graphfed.methods.baselines.fedprox import ProximalSettings
from graphfed.methods.common import aggregation_rules
from graphfed.methods.common.aggregation_rules import RuleSettings
from graphfed.methods.common.averaging import PROTECTION

__all__ = ["METHOD", "DistGATConfig"]


@dataclass(frozen=True, config={"extra": "forbid"})
class DistGATConfig(
    RuleSettings,
    ProximalSettings,
    ServerAdamSettings,
    groups.ServerOptimizerSettings,
    groups.SamplingSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClientStateSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of DistGAT."""

    @property
    def architecture(self) -> str:
        """Name of the network."""
        return "gat"


METHOD = Method(
    name="distgat",
    summary="FedAvg on GAT, without cross-client edges",
    paper="the baseline of Ambekar et al.: FedGAT, a privacy-preserving federated approximation algorithm "
    "for graph attention networks; GAT: Velickovic et al., ICLR 2018, arXiv:1710.10903",
    config=DistGATConfig,
    setup=aggregation_rules.setup,
    round=aggregation_rules.round,
    predict=fedavg.predict,
    state=StateValues(
        shared_model=True,
    ),
    sends=Sent(
        summary="weights, every round",
        protection=PROTECTION,
        messages=aggregation_rules.MESSAGES,
    ),
    defaults={"hidden": 8},
    paper_settings={"optimizer": "adam", "lr": 0.01},
)

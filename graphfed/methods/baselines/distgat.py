"""DistGAT: FedAvg on GAT with cross-client edges dropped, the baseline of FedGAT (Ambekar et al., "FedGAT: a
privacy-preserving federated approximation algorithm for graph attention networks"). GAT: Velickovic et al.,
ICLR 2018 (arXiv:1710.10903v3).

Differs from the paper's program: weights are averaged unless another rule is asked for (`rule`,
`methods.rules`), where the program takes Adam steps on averaged gradients at the server (rule=fedsgd).
FedGAT's learning rate is lost: the recipe is 8 heads of 8, Adam at 0.01, dropout 0.5 on features and
attention, and Adam starts afresh in every round (client_state=reset)."""

from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from graphfed.errors import InputError
from graphfed.methods.base import Method
from graphfed.methods.baselines import fedavg
from graphfed.methods.common import aggregation_rules
from graphfed.methods.common.aggregation_rules import RuleConfig
from graphfed.methods.common.averaging import PROTECTION

__all__ = ["METHOD", "DistGATConfig"]


@dataclass(frozen=True, config={"extra": "forbid"})
class DistGATConfig(RuleConfig):
    backbone: Literal["gcn", "gat", "sage", "maxpool"] = Field(default="gat", description="graph network")

    @model_validator(mode="after")
    def _only_gat(self) -> "DistGATConfig":
        if self.backbone != "gat":
            raise InputError(
                f"distgat cannot use backbone={self.backbone!r}: it is FedAvg on GAT; run fedavg "
                "with that backbone"
            )
        return self


METHOD = Method(
    name="distgat",
    summary="FedAvg on GAT, cross-client edges dropped",
    paper="the baseline of Ambekar et al.: FedGAT, a privacy-preserving federated approximation algorithm "
    "for graph attention networks; GAT: Velickovic et al., ICLR 2018, arXiv:1710.10903",
    needs=("backbone gat",),
    crosses="weights, every round",
    protection=PROTECTION,
    config=DistGATConfig,
    setup=aggregation_rules.setup,
    round=aggregation_rules.round,
    predict=fedavg.predict,
    messages=aggregation_rules.MESSAGES,
    dropouts=True,
    shared_model=True,
    defaults={"backbone": DistGATConfig().backbone, "hidden": 8, "heads": 8},
    paper_settings={"optimizer": "adam", "lr": 0.01},
)

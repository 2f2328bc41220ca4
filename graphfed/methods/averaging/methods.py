"""The methods that train on every client's own subgraph, without its cross-client edges: FedAvg, the rules
that change its rounds (`averaging.rules`), and DistGAT.

DistGAT is FedAvg on GAT (Velickovic et al., ICLR 2018, arXiv:1710.10903v3), the baseline of FedGAT (Ambekar
et al.). Differs from the paper's program: weights are averaged unless another `rule` is set; the program
takes Adam steps on averaged gradients at the server (rule=fedsgd). FedGAT's learning rate is not known: the
preset has 8 heads of 8 units, Adam with learning rate 0.01, dropout 0.5 on features and attention, and Adam
starts afresh in every round (client_state=reset).
"""

from dataclasses import replace

from graphfed.methods.averaging.program import (
    MESSAGES,
    PROTECTION,
    RULE_MESSAGES,
    check_settings,
    predict,
    round,
    setup,
)
from graphfed.methods.averaging.rules import RULE_SETTINGS, RULES
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Method, Sent, StateValues

#: For methods whose clients always send weights.
WEIGHTS_SENT = Sent("weights, every round", PROTECTION, MESSAGES)

FEDAVG = Method(
    name="fedavg",
    summary="gradients or weights averaged every round, cross-client edges dropped",
    paper="McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-efficient learning of deep "
    "networks from decentralized data. AISTATS 2017, arXiv:1602.05629",
    config=AveragingSettings,
    parts={"of_rule": RULE_SETTINGS},
    check_settings=check_settings,
    setup=setup,
    round=round,
    predict=predict,
    state=StateValues(shared_model=True),
    sends=Sent("gradients, or weights, every round", PROTECTION, RULE_MESSAGES),
)

FEDPROX = replace(
    FEDAVG,
    name="fedprox",
    summary="FedAvg with a proximal term that keeps clients near the shared weights",
    paper="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks. "
    "MLSys 2020, arXiv:1812.06127",
    offers={"rule": ("fedprox",)},
    sends=WEIGHTS_SENT,
)

FEDADAM = replace(
    FEDAVG,
    name="fedadam",
    summary="FedAvg with Adam at the server on the mean update",
    paper="Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive federated optimization. "
    "ICLR 2021, arXiv:2003.00295",
    offers={"rule": ("fedadam",)},
    sends=WEIGHTS_SENT,
)

SCAFFOLD = replace(
    FEDAVG,
    name="scaffold",
    summary="FedAvg whose clients correct their steps for the differences of their data (option II of the "
    "paper, server rate 1, clients weighted by their training nodes)",
    paper="Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: stochastic controlled averaging for "
    "federated learning. ICML 2020, arXiv:1910.06378",
    # Control variates are computed from steps of gradient descent (`scaffold.check`).
    offers={"rule": ("scaffold",), "optimizer": ("sgd",)},
    sends=Sent(
        "weights and control variates, every round",
        PROTECTION,
        {**MESSAGES, **RULES["scaffold"].messages},
    ),
    # With one step of all clients the corrections cancel in the mean. SGD needs a larger rate than Adam.
    defaults={"lr": 0.1, "local_steps": 5},
)

DISTGAT = replace(
    FEDAVG,
    name="distgat",
    summary="FedAvg on GAT, without cross-client edges",
    paper="the baseline of Ambekar et al.: FedGAT, a privacy-preserving federated approximation algorithm "
    "for graph attention networks; GAT: Velickovic et al., ICLR 2018, arXiv:1710.10903",
    offers={"backbone": ("gat",)},
    sends=Sent("weights, every round", PROTECTION, RULE_MESSAGES),
    defaults={"hidden": 8},
    paper_settings={"optimizer": "adam", "lr": 0.01},
)

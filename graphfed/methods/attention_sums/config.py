"""The settings of attention_sums."""

from typing import Literal

from pydantic import Field

from graphfed.methods.parts import Inputs, Loss, Network, Protocols, Run, Selection, Sums, Training
from graphfed.methods.settings import settings


@settings
class Exchange:
    """The sums over a node's neighbours at other clients."""

    exchange: Literal["plaintext", "secure"] = Field(
        default="plaintext",
        description="the sums over a node's neighbours; plaintext: the node's client reads the sum of each "
        "other client; secure: by masks that cancel it reads only the total over the other clients. Neither "
        "protects features: clients compute those of their nodes' neighbours from scores, which they read",
    )
    min_group: int = Field(
        default=1,
        ge=1,
        description="least number of neighbours in a sum that a node's client reads; the neighbours of a "
        "smaller sum are left out, and the network is no longer exact. It protects no features: clients "
        "compute them from the scores and from the sums of many rounds",
    )


@settings
class AttentionSumsConfig:
    """The settings of attention_sums."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    sums: Sums = Sums()
    protocols: Protocols = Protocols()
    exchange: Exchange = Exchange()

"""Own features only: one network of each node's own features, trained where all data is. No edge and no
message: the reference that shows whether a method learns anything from the graph.

It is central training (`central`) with an MLP in the place of the graph network: the same first weights,
width, layers, dropout, optimiser, steps and selection as central with a GCN, and the adjacency left out. A
method that is not above this row shows nothing that it has learnt from the graph, however far above guessing
it is. To predict links the network's output is an embedding of each node, and the training edges are only the
pairs of the loss.

Differs from the paper: no paper; papers call this baseline MLP, or leave it out."""

from pydantic.dataclasses import dataclass

from graphfed.methods import config as groups
from graphfed.methods.base import Method, Sent
from graphfed.methods.baselines import central
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION

__all__ = ["METHOD", "OwnFeaturesConfig"]


@dataclass(frozen=True, config={"extra": "forbid"})
class OwnFeaturesConfig(
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of central training, with the one network that uses no edge."""

    @property
    def architecture(self) -> str:
        return "mlp"


METHOD = Method(
    name="own_features",
    summary="a network of each node's own features, no edge; shows what the graph adds to the other rows",
    paper="no paper: the reference without the graph, called MLP",
    config=OwnFeaturesConfig,
    tasks=(CLASSIFICATION, LINK_PREDICTION),
    setup=central.setup,
    round=central.round,
    predict=central.predict,
    pooled=True,
    sends=Sent(
        summary="all features and labels, before training",
        protection="none: the party has everything",
    ),
)

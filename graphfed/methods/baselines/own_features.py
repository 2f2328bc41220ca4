"""Own features only: one network of each node's own features, trained on all data without edges or messages.
It shows whether a method learns anything from the graph.

It is central training (`central`) with an MLP instead of the graph neural network: the same first weights,
width, layers, dropout, optimiser, steps and selection as central training of a GCN, without the adjacency
matrix. A method that is not better than this one shows nothing that it has learned from the graph, however
much better than guessing it is. In link prediction the output of the network is an embedding of each node,
and training edges are only pairs of the loss.

Differs from the paper: there is no paper; papers call this baseline MLP, or do not have it.
"""

from graphfed.methods.base import Method, Sent
from graphfed.methods.baselines import central, isolated
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION

METHOD = Method(
    name="own_features",
    summary="a network of each node's own features without edges; shows what the graph adds to other methods",
    paper="no paper: the reference without the graph, called MLP",
    config=isolated.AloneConfig,
    offers={"backbone": ("mlp",)},
    tasks=(CLASSIFICATION, LINK_PREDICTION),
    setup=central.setup,
    round=central.round,
    predict=central.predict,
    pooled=True,
    sends=Sent(
        summary="all features and labels, before training",
        protection="none: one participant has everything",
    ),
)

"""Central training: one party holds the pooled graph. The upper reference row, which no federation sees.

It is isolated training with one client that holds everything: the same steps, settings and selection as the
federated methods (100 rounds of 3 local steps are its 300 steps), and nothing crosses.

Differs from the paper: Kipf and Welling (2017) train the GCN with Adam on row-normalised features; here every
row of a table shares one recipe."""

from graphfed.methods.base import Method, TrainingConfig
from graphfed.methods.isolated import predict, round, setup

__all__ = ["METHOD"]

METHOD = Method(
    name="central",
    summary="one party with the pooled graph; the reference above all federated rows",
    paper="no paper: the upper reference",
    crosses="all data, before training",
    protection="none: the party has everything",
    config=TrainingConfig,
    setup=setup,
    round=round,
    predict=predict,
    pooled=True,
)

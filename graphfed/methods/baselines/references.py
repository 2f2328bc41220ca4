"""The methods that every comparison has: its other figures are read next to theirs."""

from graphfed.methods.tasks import CLASSIFICATION, FORECASTING, LINK_PREDICTION

__all__ = ["REFERENCES"]

#: By task; the first of each trains on all data pooled.
REFERENCES: dict[str, tuple[str, ...]] = {
    # Then every client alone, and averaging with the cross-client edges dropped.
    CLASSIFICATION: ("central", "isolated", "fedavg"),
    # Those two have no score for a pair whose nodes are at two clients.
    LINK_PREDICTION: ("central",),
    # Then every sensor alone, and what learns nothing.
    FORECASTING: ("gru_central", "gru_local", "last_value"),
}

"""The methods that the others are read next to: in tables, in tests of differences, and in warnings.

Generic code names no method; what it has to know of single ones stands here."""

from graphfed.methods.tasks import CLASSIFICATION, FORECASTING, LINK_PREDICTION

__all__ = ["POOLED_AND_ALONE", "REFERENCES", "REPEATS_LAST", "TESTED_AGAINST", "UNTRAINED"]

#: The rows that every comparison has, by task; the first of each trains on all data pooled.
REFERENCES: dict[str, tuple[str, ...]] = {
    # Then every client alone, and averaging with the cross-client edges dropped.
    CLASSIFICATION: ("central", "isolated", "fedavg"),
    # Those two have no score for a pair whose nodes are at two clients.
    LINK_PREDICTION: ("central",),
    # Then every sensor alone, and what learns nothing.
    FORECASTING: ("gru_central", "gru_local", "last_value"),
}
#: The rows that the others are tested against, those of them that are there: averaging with the cross-client
#: edges dropped, what pooled training reaches, or forecasts without the network of the sensors.
TESTED_AGAINST: dict[str, tuple[str, ...]] = {
    CLASSIFICATION: ("fedavg",),
    LINK_PREDICTION: ("central",),
    FORECASTING: ("gru_fedavg", "gru_local", "last_value"),
}
#: The row in which all data is at one party, and that in which every client trains alone.
POOLED_AND_ALONE = (("central", "isolated"), ("gru_central", "gru_local"))
#: The forecast that every trained one has to beat, and all forecasts that nothing is trained for.
REPEATS_LAST = "last_value"
UNTRAINED = (REPEATS_LAST, "historical_average")

"""The reference methods, next to which tables, tests of differences and warnings show all others.

Generic code names no method; the few methods that it must know are listed here.
"""

from graphfed.methods.tasks import CLASSIFICATION, FORECASTING, LINK_PREDICTION

#: The methods that every comparison contains, by task; the first of each trains on the pooled data.
REFERENCES: dict[str, tuple[str, ...]] = {
    # The others: every client alone, and averaging without cross-client edges.
    CLASSIFICATION: ("central", "isolated", "fedavg"),
    # The other two cannot score a pair whose nodes are at two clients.
    LINK_PREDICTION: ("central",),
    # The others: every sensor alone, and a forecast without training.
    FORECASTING: ("gru_central", "gru_local", "last_value"),
}
#: The methods against which the others are tested if the comparison contains them: averaging without
#: cross-client edges, pooled training, or forecasts without the network of sensors.
TESTED_AGAINST: dict[str, tuple[str, ...]] = {
    CLASSIFICATION: ("fedavg",),
    LINK_PREDICTION: ("central",),
    FORECASTING: ("gru_fedavg", "gru_local", "last_value"),
}
#: The method with all data at one participant, and the method in which every client trains alone.
POOLED_AND_ALONE = (("central", "isolated"), ("gru_central", "gru_local"))
#: The forecast that every trained one should beat, and all forecasts without training.
REPEATS_LAST = "last_value"
UNTRAINED = (REPEATS_LAST, "historical_average")

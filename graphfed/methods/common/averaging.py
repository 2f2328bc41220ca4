"""Descriptions of the transfers of averaging methods (`federation.secure.aggregation`)."""

from graphfed.federation.secure.aggregation import messages

__all__ = ["MESSAGES", "PROTECTION"]

#: Descriptions of the transfers of a secure average of `update`.
MESSAGES = messages(
    "update",
    "With aggregation=secure, in every round",
    "a client's weights, times its number of training nodes",
)
#: For the table of methods.
PROTECTION = "none: in plaintext; with aggregation=secure the server reads the sum of the weights only"

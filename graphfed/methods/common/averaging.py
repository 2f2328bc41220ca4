"""What averaging methods say of the transfers of an average (`federation.secure.aggregation`)."""

from graphfed.federation.secure.aggregation import messages

__all__ = ["MESSAGES", "PROTECTION"]

#: The transfers of a secure average of `update`, in words.
MESSAGES = messages(
    "update",
    "With aggregation=secure, in every round",
    "a client's weights, times its number of training nodes",
)
#: For the table of methods.
PROTECTION = (
    "none: in clear; with aggregation=secure the server reads the sum of the weights, not each client's"
)

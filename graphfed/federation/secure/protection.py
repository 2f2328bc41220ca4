"""How a transfer is protected: an argument of the transfer, which the settings of the run provide.

A protection is `plaintext`, which lets the receiver read what is sent, or the name of the mechanism that
hides it. Whether a protocol runs or is simulated is a property of the federation (`Federation.simulated`).
The operations that take a protection are next to the protocols that they choose from:

    aggregation.check_sums        refuse too few clients before anything is sent
    aggregation.protected_sum     the sum over clients, at the server
    aggregation.protected_mean    the weighted mean over clients, at the server
    shared_sum.protected_sum_at_clients
    maximum.protected_max         the maximum over clients, at the server
"""

from typing import Final

#: The protection that lets the receiver read what is sent.
PLAINTEXT: Final = "plaintext"


def needs_parts(protection: str) -> bool:
    """Tell whether a protection hides each client's part before the parts are added up; plaintext does
    not.
    """
    return protection != PLAINTEXT

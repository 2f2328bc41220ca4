"""How a transfer is protected: an argument of the transfer, which the run's settings fill in.

A protection is a setting's value: `plaintext`, which lets the receiver read what is sent, or the name of what
hides it. Whether a protocol is really run or only simulated is a property of the federation
(`Federation.simulated`). Operations that take a protection are beside the protocols that they choose from:

    aggregation.check_sums        refuse too few clients before anything is sent
    aggregation.protected_sum     the sum over clients, at the server
    aggregation.protected_mean    the weighted mean over clients, at the server
    shared_sum.protected_sum_at_clients
    maximum.protected_max         the maximum over clients, at the server
"""

from typing import Final

__all__ = ["PLAINTEXT", "needs_parts"]

#: The protection that lets the receiver read what is sent.
PLAINTEXT: Final = "plaintext"


def needs_parts(protection: str) -> bool:
    """Return whether a protection works on each client's own part: it is hidden before it is added up.

    In plaintext the parts of a worker's clients may be added up before they are sent.
    """
    return protection != PLAINTEXT

"""The local runtime: every place in this process, in one of two placements.

*Stacked* (the default): all clients are one cohort, one tensor program. *One at a time*: every client is a
cohort of its own and functions run on one after the other. The second is slow and plain: the oracle for the
others, and the one to debug with, because it names the client, the stage and the inputs when something fails.
"""

import torch

from graphfed.federation import Federation

__all__ = ["one_at_a_time", "stacked"]


def stacked(num_clients: int, device: torch.device | str = "cpu", *, simulated: bool = False) -> Federation:
    """All clients in one cohort."""
    return Federation([tuple(range(num_clients))], device=device, simulated=simulated)


def one_at_a_time(
    num_clients: int, device: torch.device | str = "cpu", *, simulated: bool = False
) -> Federation:
    """Every client its own cohort."""
    return Federation([(k,) for k in range(num_clients)], device=device, simulated=simulated)

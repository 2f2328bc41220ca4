"""The local runtime: the server and all clients in this process, in one of two placements.

*Stacked* (the default): all clients are one cohort, computed together as one tensor program. *One at a time*:
every client is a cohort of its own, and functions run on one cohort after the other. The second placement is
slow and simple: the others are tested against it, and it helps debugging, because a failure names the client,
the stage and the inputs.
"""

import torch

from graphfed.federation import Federation


def stacked(num_clients: int, device: torch.device | str = "cpu", *, simulated: bool = False) -> Federation:
    return Federation([tuple(range(num_clients))], device=device, simulated=simulated)


def one_at_a_time(
    num_clients: int, device: torch.device | str = "cpu", *, simulated: bool = False
) -> Federation:
    """Make a federation in which every client is a cohort of its own."""
    return Federation([(k,) for k in range(num_clients)], device=device, simulated=simulated)

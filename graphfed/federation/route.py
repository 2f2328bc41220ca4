"""Routes: which rows go where, agreed once by a metered set-up transfer and known at both ends (design decision 2)."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

__all__ = ["PeerIds", "PeerRoute", "Route", "RouteTable", "RowIds"]


@dataclass(frozen=True)
class RowIds:
    """The ids of the rows a host's clients send or want, in row order: ids [M] int64, client [M] int64 (index in the cohort,
    sorted: rows of one client stand together)."""

    ids: Tensor
    client: Tensor


@dataclass(frozen=True)
class PeerIds:
    """What a host's clients want from other clients: site [M] the owner's client id, ids [M] the wanted ids, client [M] who
    wants (index in the cohort); and what they hold: held_ids [N] and held_client [N] of the cohort's rows."""

    site: Tensor
    ids: Tensor
    client: Tensor
    held_ids: Tensor
    held_client: Tensor


@dataclass(frozen=True)
class RouteTable:
    """A route as the server knows it. M rows arrive, in client order; U different ids among them.

    ids [U] int64 sorted; index [M] the position in `ids` of each row's id; client [M] the stable client id of each row."""

    ids: Tensor
    index: Tensor
    client: Tensor


@dataclass(frozen=True)
class Route:
    """Rows between the clients and the server. sizes: rows of each host (of those here; of all at the server); rows [K]: of
    each client whose traffic this process sees; table: at the server only."""

    name: str
    sizes: dict[int, int]
    rows: np.ndarray
    table: RouteTable | None


@dataclass(frozen=True)
class PeerRoute:
    """Rows between clients, for every pair (sending host a, receiving host b) of which one is here.

    send[a, b] [m_ab]: rows of a's cohort that b wants (a is here); place[a, b] [m_ab]: where they go among the rows b wants (b
    is here); wanted[b]: how many those are; sent [K], received [K]: rows of each client whose traffic this process sees."""

    name: str
    pairs: tuple[tuple[int, int], ...]
    send: dict[tuple[int, int], Tensor]
    place: dict[tuple[int, int], Tensor]
    wanted: dict[int, int]
    sent: np.ndarray
    received: np.ndarray

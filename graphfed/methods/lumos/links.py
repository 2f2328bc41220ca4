"""Link prediction in Lumos at the devices: pairs to learn from, their loss and their scores."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from graphfed.federation.route import ExchangeIds
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.devices import Devices
from graphfed.random import entry_words, fold, uniform

__all__ = [
    "Around",
    "draw_negatives",
    "link_loss",
    "look_around",
    "pair_scores",
    "rows_to_send",
    "scored_ends",
]


@dataclass(frozen=True, eq=False)
class Around:
    """Whom a device never draws: itself and its neighbours. codes [C + n] ascending: for each, its device
    times num_clients, plus its id less the number of ids before it; start [n]: of each device; free [n]: how
    many are left to draw from."""

    codes: Tensor
    start: Tensor
    free: Tensor
    num_clients: int


def look_around(rows: PairRows, ids: Tensor, num_clients: int) -> Around:
    device = torch.cat([rows.client, torch.arange(len(ids), device=ids.device)])
    other = torch.cat([rows.other, ids])
    order = torch.argsort(device * num_clients + other)
    device, other = device[order], other[order]
    count = torch.bincount(device, minlength=len(ids))
    start = count.cumsum(0) - count
    rank = torch.arange(len(device), device=device.device) - start[device]
    return Around(device * num_clients + other - rank, start, num_clients - count, num_clients)


def draw_negatives(
    devices: Devices, around: Around, ids: Tensor, config: LumosConfig, number: int
) -> ExchangeIds:
    """For each kept neighbour `negatives` clients that are no neighbours, uniformly, with repetition."""
    forest = devices.forest
    pairs = torch.repeat_interleave(torch.arange(forest.num_pairs, device=ids.device), config.negatives)
    which = torch.arange(len(pairs), device=ids.device) % config.negatives
    device = devices.kept_rows[pairs]
    open_ = around.free[device] > 0
    pairs, which, device = pairs[open_], which[open_], device[open_]
    # The leaf's id stands for the pair.
    draw = uniform(fold(config.seed, "negatives", number), entry_words(forest.ids[1][pairs], which))[:, 0]
    rank = (draw * around.free[device]).long().clamp(max=around.free[device] - 1)
    before = torch.searchsorted(around.codes, device * around.num_clients + rank, right=True)
    drawn = rank + before - around.start[device]
    everyone = torch.arange(len(ids), device=ids.device)
    return ExchangeIds(drawn, drawn, device, ids, everyone)


def scored_ends(devices: Devices, ids: Tensor, target: str) -> ExchangeIds:
    """The other ends of the pairs that each device scores."""
    links = devices.cohort.links
    assert links is not None
    which = devices.cohort.pairs(target)
    client, everyone = links.client[which], torch.arange(len(ids), device=ids.device)
    return ExchangeIds(client, client, links.row[which], ids, everyone)


def rows_to_send(devices: Devices, h: Tensor) -> Tensor:
    """h_v for every device that keeps v."""
    return h.index_select(0, devices.receivers)


def link_loss(devices: Devices, wanted: ExchangeIds, h: Tensor, kept: Tensor, drawn: Tensor) -> Tensor:
    """Eq. (33), corrected: the cohort's sum; kept [P, H], drawn [Q, H]: embeddings that were asked for."""
    positive = (h.index_select(0, devices.kept_rows) * kept).sum(1)
    negative = (h.index_select(0, wanted.client) * drawn).sum(1)
    return softplus(-positive).sum() + softplus(negative).sum()


def pair_scores(devices: Devices, h: Tensor, ends: Tensor, target: str) -> Tensor:
    links = devices.cohort.links
    assert links is not None
    return (h.index_select(0, links.row[devices.cohort.pairs(target)]) * ends).sum(1)

"""Federations in every placement, a link in memory, and small worlds of rows with ids: shared by these
tests."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from graphfed.federation import CLIENTS, SERVER, Federation, Located
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.route import ExchangeIds, RowIds

PATIENCE = 20.0


class MemoryLink:
    """A `Link` between threads: messages wait in one dictionary until they are asked for."""

    def __init__(
        self, mail: dict[tuple[int, int, str], bytes], arrived: threading.Condition, participant: int
    ) -> None:
        self.mail, self.arrived, self.participant = mail, arrived, participant

    def send(self, to: int, key: str, message: bytes) -> None:
        with self.arrived:
            assert (self.participant, to, key) not in self.mail, f"two messages under one key: {key}"
            self.mail[self.participant, to, key] = message
            self.arrived.notify_all()

    def recv(self, sender: int, key: str) -> bytes:
        box = (sender, self.participant, key)
        with self.arrived:
            if not self.arrived.wait_for(lambda: box in self.mail, PATIENCE):
                raise TimeoutError(f"{self.participant} waited too long for {key} of {sender}")
            return self.mail.pop(box)


def run_apart(
    workers: Sequence[Sequence[int]], program: Callable[[Federation], Any], *, simulated: bool = False
) -> dict[int, tuple[Any, Federation]]:
    """Run the program at every participant in a thread: {participant: (its result, its federation)}."""
    mail: dict[tuple[int, int, str], bytes] = {}
    arrived = threading.Condition()
    done: dict[int, tuple[Any, Federation]] = {}
    failed: dict[int, BaseException] = {}

    def life(participant: int) -> None:
        here = [] if participant == SERVER_INDEX else [participant]
        link = MemoryLink(mail, arrived, participant)
        fed = Federation(
            workers, here=here, server_here=participant == SERVER_INDEX, link=link, simulated=simulated
        )
        try:
            done[participant] = program(fed), fed
        except BaseException as error:
            failed[participant] = error

    threads = [
        threading.Thread(target=life, args=(participant,))
        for participant in (SERVER_INDEX, *range(len(workers)))
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for error in failed.values():
        if not isinstance(error, TimeoutError):
            raise error
    assert not failed, failed
    assert not mail, f"messages that no participant received: {list(mail)}"
    return done


@dataclass(frozen=True)
class World:
    """K clients: ids[k] [n_k] (different inside a client), x[k] [n_k, F]; wants[k] [m_k, 2]: (owner, id) of
    other clients' rows; counts [K] weights of an average, not all zero; w a server's matrix [F, F]."""

    ids: list[Tensor]
    x: list[Tensor]
    wants: list[Tensor]
    counts: Tensor
    w: Tensor

    @property
    def num_clients(self) -> int:
        return len(self.ids)


def make_world(num_clients: int, seed: int, *, width: int = 3, largest: int = 6) -> World:
    """Rows with ids that overlap between clients; some clients hold or want nothing."""
    rng = np.random.default_rng(seed)
    ids = [rng.permutation(2 * largest)[: rng.integers(0, largest)] for _ in range(num_clients)]
    wants = []
    for k in range(num_clients):
        pool = [(owner, i) for owner in range(num_clients) if owner != k for i in ids[owner]]
        chosen = [pool[j] for j in rng.permutation(len(pool))[: rng.integers(0, largest)]]
        wants.append(torch.tensor(np.array(chosen, dtype=np.int64).reshape(-1, 2)))
    counts = rng.integers(0, 5, num_clients)
    counts[rng.integers(num_clients)] += 1
    return World(
        ids=[torch.from_numpy(i) for i in ids],
        x=[torch.from_numpy(rng.normal(size=(len(i), width))) for i in ids],
        wants=wants,
        counts=torch.from_numpy(counts),
        w=torch.from_numpy(rng.normal(size=(width, width))),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    return make_world(
        draw(st.integers(1, 6)),
        draw(st.integers(0, 10**6)),
        width=draw(st.integers(1, 4)),
        largest=draw(st.integers(1, 6)),
    )


@st.composite
def placed_worlds(draw: st.DrawFn) -> tuple[World, list[tuple[int, ...]]]:
    """A world and any way to assign its clients to workers."""
    world = draw(worlds())
    k = world.num_clients
    cuts = sorted(draw(st.sets(st.integers(1, k - 1)))) if k > 1 else []
    return world, [tuple(range(a, b)) for a, b in zip([0, *cuts], [*cuts, k], strict=True)]


SEVERAL_EACH = [(0, 1), (2,), (3, 4, 5)]


def at_clients(fed: Federation, name: str, arrays: Sequence[Tensor]) -> Located:
    """One array for each client, one after the other in every cohort."""
    return fed.locate(CLIENTS, name, [torch.cat([arrays[k] for k in fed.workers[h]]) for h in fed.here])


def per_client(fed: Federation, name: str, values: Tensor) -> Located:
    """Row k of `values` [K, ...] belongs to client k."""
    return fed.locate(CLIENTS, name, [values[list(fed.workers[h])] for h in fed.here])


def at_server(fed: Federation, name: str, value: Any) -> Located:
    return fed.locate(SERVER, name, [value] * fed.server_is_here)


def client_index(fed: Federation, world: World, h: int) -> Tensor:
    sizes = torch.tensor([len(world.ids[k]) for k in fed.workers[h]])
    return torch.repeat_interleave(torch.arange(len(sizes)), sizes)


def row_ids(fed: Federation, world: World) -> Located:
    ids = at_clients(fed, "ids", world.ids).parts
    return fed.locate(
        CLIENTS, "ids", [RowIds(i, client_index(fed, world, h)) for h, i in zip(fed.here, ids, strict=True)]
    )


def peer_ids(fed: Federation, world: World) -> Located:
    parts = []
    for h in fed.here:
        of_worker = fed.workers[h]
        wants = torch.cat([world.wants[k] for k in of_worker])
        asker = torch.repeat_interleave(
            torch.arange(len(of_worker)), torch.tensor([len(world.wants[k]) for k in of_worker])
        )
        held = torch.cat([world.ids[k] for k in of_worker])
        parts.append(ExchangeIds(wants[:, 0], wants[:, 1], asker, held, client_index(fed, world, h)))
    return fed.locate(CLIENTS, "wants", parts)


def whole(value: Located) -> Tensor:
    """What all workers hold of a value, one after the other."""
    return torch.cat(list(value.parts)) if value.place == CLIENTS else value.parts[0]

"""The federation: run functions at places, move values between them by named transfers.

The same calls serve every placement. A `Federation` knows the hosts of the whole run (a host is a group of clients stacked in
one cohort), which of them are in this process, and, where some are not, the link to the others. Every transfer is a set of
messages between hosts and the server (`_move`): handed over in one process, sent as bytes across a link; recorded on the tape
and charged to the ledger either way. What a transfer computes at its ends (sums, maxima, reordering) is plain autograd.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import GraphfedError, InputError, PlaceError
from graphfed.federation import payload as pay
from graphfed.federation import wire
from graphfed.federation.ledger import DOWN, PEER, UP, Charge, Ledger
from graphfed.federation.route import PeerIds, PeerRoute, Route, RouteTable, RowIds
from graphfed.federation.tape import SERVER_END, Pair, Pending, Record, Tape
from graphfed.federation.values import ABSENT, CLIENTS, SERVER, Located, check_arguments, check_function
from graphfed.nn.sparse import SparseMatrix

__all__ = ["Federation", "Link", "StageError", "as_leaves"]


class StageError(GraphfedError):
    """A function run at a place failed: the message says where, in which stage, with what inputs."""


class Link(Protocol):
    """Messages between processes. A message is found by its key, so the order of arrival does not matter."""

    def send(self, to: int, key: str, message: bytes) -> None: ...

    def recv(self, sender: int, key: str) -> bytes: ...


def as_leaves(tree: Any) -> Any:
    """The payload's floating tensors as leaves that collect a gradient (run this at the place that owns the weights)."""
    return pay.tree_map(lambda x: x.detach().requires_grad_() if x.is_floating_point() else x, tree)


class _Place:
    """Where functions run: ``fed.clients`` or ``fed.server``."""

    def __init__(self, fed: "Federation", name: str) -> None:
        self._fed, self.name = fed, name

    def run(self, fn: Callable[..., Any], *arguments: Any, outputs: int = 1) -> Any:
        """Run `fn` at this place; its result stays here (`outputs` > 1: a tuple of that many located values).

        Located arguments must live here; `fn` gets their content. A function run at the clients gets a whole cohort and never
        loops over clients. Raises PlaceError for a value from elsewhere or a function that carries data of its own, StageError
        with place, stage and inputs when `fn` fails."""
        fed, stage = self._fed, getattr(fn, "__name__", repr(fn))
        check_function(fn)
        check_arguments(self.name, stage, arguments)
        at_clients = self.name == CLIENTS
        if at_clients:
            for argument in arguments:
                if isinstance(argument, Located):
                    fed._check_members(argument, stage)
        results: list[Any] = []
        for position, end in enumerate(fed.here if at_clients else fed.server_ends):
            if at_clients and not fed._active[end]:
                results.append(ABSENT if outputs == 1 else (ABSENT,) * outputs)
                continue
            inputs = [a.parts[position] if isinstance(a, Located) else a for a in arguments]
            try:
                results.append(fn(*inputs))
            except (InputError, PlaceError):
                raise
            except Exception as error:
                raise StageError(fed._failure(end, stage, inputs, error)) from error
        members = fed.roster if at_clients else None
        if outputs == 1:
            return Located(self.name, stage, tuple(results), members)
        return tuple(Located(self.name, f"{stage}[{i}]", tuple(r[i] for r in results), members) for i in range(outputs))


class Federation:
    """One run of K clients and a server, seen from one process.

    hosts: for every host of the run the ids of its clients, ascending over all hosts; here: the hosts in this process;
    server_here: whether the server is; link: how to reach the others (None when everything is here)."""

    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        *,
        here: Sequence[int] | None = None,
        server_here: bool = True,
        link: Link | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.hosts = [tuple(h) for h in hosts]
        flat = [k for h in self.hosts for k in h]
        if flat != list(range(len(flat))):
            raise ValueError(f"hosts must hold the clients 0..K-1 in order, got {self.hosts}")
        self.here = list(range(len(self.hosts))) if here is None else list(here)
        self.server_ends = [SERVER_END] if server_here else []
        self.link, self.device = link, torch.device(device)
        self.num_clients = len(flat)
        self.ledger = Ledger(self.num_clients)
        self.clients, self.server = _Place(self, CLIENTS), _Place(self, SERVER)
        # The clients whose traffic this process sees: its own, and everybody's at the server.
        self._seen = np.full(self.num_clients, server_here)
        for h in self.here:
            self._seen[list(self.hosts[h])] = True
        self._tape: Tape | None = None
        self._sequence = 0
        self.set_roster(np.ones(self.num_clients, dtype=bool))

    # ---- who takes part, where it stands ----------------------------------------------------------------------------------

    def set_roster(self, present: np.ndarray) -> None:
        """Who takes part from now on: [K] bool, the same at every place (it came by `control`)."""
        self.roster = present
        self._active = [bool(present[list(h)].any()) for h in self.hosts]
        self._everyone = bool(present.all())
        self._counted = present & self._seen
        self._messages = int(self._counted.sum())

    def present(self) -> Located:
        """At the clients: which of a cohort's clients take part, [K_h] bool."""
        parts = tuple(torch.from_numpy(self.roster[list(self.hosts[h])]).to(self.device) for h in self.here)
        return Located(CLIENTS, "present", parts)

    def keep_absent(self, new: Located, old: Located) -> Located:
        """`new` where a host has a client that takes part, `old` where it has none: state that absent clients keep."""
        parts = tuple(o if n is ABSENT else n for n, o in zip(new.parts, old.parts, strict=True))
        return Located(new.place, new.name, parts, old.members)

    @contextmanager
    def phase(self, name: str, round: int | None = None) -> Iterator[None]:
        """Charge what crosses in this block to a phase (and, from here on, to a round)."""
        if round is not None:
            self.ledger.round = round
        with self.ledger.in_phase(name):
            yield

    def locate(self, place: str, name: str, parts: Sequence[Any]) -> Located:
        """A value that a place has of its own before anything crosses: one part for each host of the place in this process."""
        return Located(place, name, tuple(parts))

    def local_parts(self, value: Located) -> tuple[Any, ...]:
        """What this process holds of a value: for run folders, runtimes and tests. A method's program never looks."""
        return tuple(p for p in value.parts if p is not ABSENT)

    def _check_members(self, value: Located, stage: str) -> None:
        members = value.members
        if members is None or members is self.roster:
            return
        missing = np.flatnonzero(self.roster & ~members)
        if len(missing):
            raise PlaceError(
                f"{stage}: {value.name!r} is missing at client {missing[0]} ({len(missing)} in all), which took no part when it "
                "was made; make it again with this roster"
            )

    def _failure(self, end: int, stage: str, inputs: Sequence[Any], error: Exception) -> str:
        hosted = self.hosts[end] if end != SERVER_END else ()
        where = "server" if end == SERVER_END else f"client {hosted[0]}" if len(hosted) == 1 else f"clients {hosted[0]}..{hosted[-1]} (stacked)"  # fmt: skip
        told = ", ".join(_tell(x) for x in inputs)
        return (
            f"{where} failed in {stage!r} (phase {self.ledger.phase}, round {self.ledger.round}): "
            f"{type(error).__name__}: {error}; inputs: {told}"
        )

    # ---- control ----------------------------------------------------------------------------------------------------------

    def control(self, fn: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """Decide at the server, tell every place: `fn` returns plain JSON values and everyone gets the same dictionary.

        The only way for a program to branch on a value (design decision 6). Reaches absent clients too: they must know."""
        decision = self.server.run(fn, *arguments)
        texts = [json.dumps(d, allow_nan=False) for d in decision.parts]
        pairs = [(SERVER_END, h) for h in range(len(self.hosts))]
        with self.ledger.in_phase("control"):
            got = self._send(dict.fromkeys(pairs, texts[0]) if texts else {}, pairs, "control")
            text: str = texts[0] if texts else next(iter(got.values()))[0]
            size = len(text.encode())
            zeros = np.zeros(self.num_clients, dtype=np.int64)
            self.ledger.charge(Charge("control", DOWN, "control", "json", [], "public", int(self._seen.sum()), zeros, size * self._seen))  # fmt: skip
        result: dict[str, Any] = json.loads(text)
        return result

    # ---- routes -----------------------------------------------------------------------------------------------------------

    def route(self, ids: Located, *, name: str, protection: str = "clear") -> Route:
        """Agree which rows travel between the clients and the server: `ids` is a `RowIds` at the clients.

        A metered set-up transfer of 8 bytes an id: the server then knows who holds which ids, and nothing more."""
        self._expect(ids, CLIENTS, name)
        self._all_present(name)
        counts = {h: _counts(r.client, len(self.hosts[h])) for h, r in zip(self.here, ids.parts, strict=True)}
        pairs = self._pairs_up()
        got = self._send({(h, SERVER_END): (r.ids, torch.from_numpy(counts[h])) for h, r in zip(self.here, ids.parts, strict=True)}, pairs, name)  # fmt: skip
        table = None
        if self.server_ends:
            counts = {h: got[h, SERVER_END][0][1].cpu().numpy() for h, _ in pairs}
            unique, index = torch.unique(torch.cat([got[p][0][0] for p in pairs]), return_inverse=True)
            every = torch.from_numpy(np.concatenate([counts[h] for h in range(len(self.hosts))]))
            client = torch.repeat_interleave(torch.arange(self.num_clients), every).to(unique.device)
            table = RouteTable(unique, index, client)
        rows = np.zeros(self.num_clients, dtype=np.int64)
        for h, c in counts.items():
            rows[list(self.hosts[h])] = c
        self.ledger.charge(self._charge_rows(name, UP, rows, 8, kind="ids", dtype="int64", shape=[], protection=protection))
        return Route(name, {h: int(c.sum()) for h, c in counts.items()}, rows, table)

    def table(self, route: Route) -> Located:
        """What the server knows of a route: a `RouteTable`, located at the server."""
        return Located(SERVER, f"{route.name} table", (route.table,) * len(self.server_ends))

    def peer_route(self, wants: Located, *, name: str, protection: str = "clear") -> PeerRoute:
        """Agree which rows travel between clients: `wants` is a `PeerIds` at the clients. Every client sends the ids it wants
        to their owners (8 bytes an id, client to client). InputError when an owner has no such row."""
        self._expect(wants, CLIENTS, name)
        self._all_present(name)
        mine: dict[int, PeerIds] = dict(zip(self.here, wants.parts, strict=True))
        host_of = np.repeat(np.arange(len(self.hosts)), [len(h) for h in self.hosts])
        place: dict[Pair, Tensor] = {}
        asks: dict[Pair, Any] = {}
        sent, received = (np.zeros(self.num_clients, dtype=np.int64) for _ in range(2))
        every = [(a, b) for a in range(len(self.hosts)) for b in range(len(self.hosts)) if a in mine or b in mine]
        for b, want in mine.items():
            owner = torch.from_numpy(host_of).to(want.site.device)[want.site]
            received[list(self.hosts[b])] = _counts(want.client, len(self.hosts[b]))
            for a in range(len(self.hosts)):
                place[a, b] = (owner == a).nonzero()[:, 0]
                asks[b, a] = (want.site[place[a, b]], want.ids[place[a, b]])
        got = self._send(asks, [(b, a) for a, b in every], name)
        send: dict[Pair, Tensor] = {}
        for a, held in mine.items():
            for b in range(len(self.hosts)):
                site, ids = got[b, a][0]
                client = site - self.hosts[a][0]
                send[a, b] = _find_rows(held, client, ids, name)
                sent[list(self.hosts[a])] += _counts(client, len(self.hosts[a]))
        route = PeerRoute(name, tuple(every), send, place, {b: len(w.ids) for b, w in mine.items()}, sent, received)
        if self.server_ends and self.link is not None:
            route = PeerRoute(name, (), {}, {}, {}, sent, received)
        # Ids travel from who wants to who owns: the other way round from the rows that answer.
        self.ledger.charge(self._peer_charge(route, 8, kind="ids", dtype="int64", shape=[], protection=protection, back=True))
        return route

    # ---- transfers --------------------------------------------------------------------------------------------------------

    def upload(self, x: Located, route: Route, *, name: str, protection: str = "clear", grad: bool = True) -> Located:
        """Clients to server: a row of `x` for every id of the route, [M_h, ...] at each host -> [M, ...] in client order."""
        rows = self._rows_up(x, route, name, "rows", protection, grad)
        return Located(SERVER, name, rows)

    def gather(self, x: Located, *, name: str, protection: str = "clear", grad: bool = True) -> Located:
        """Clients to server: every client's own value, [K_h, ...] at each host -> [K, ...] in client order."""
        self._expect(x, CLIENTS, name)
        self._all_present(name)
        pairs = self._pairs_up()
        got = self._move(name, self._from_hosts(x), pairs, UP, grad, lambda t: self._charge_parts(t, name, UP, "gather", protection, True))  # fmt: skip
        return Located(SERVER, name, (torch.cat([got[p] for p in pairs]),) if self.server_ends else ())

    def download(self, x: Located, route: Route, *, name: str, protection: str = "clear", grad: bool = True) -> Located:
        """Server to clients: row u of `x` [U, ...] to every client whose route names id u -> [M_h, ...] at each host."""
        self._expect(x, SERVER, name)
        self._all_present(name)
        pairs = self._pairs_down()
        messages: dict[Pair, Any] = {}
        for value in x.parts:
            assert route.table is not None
            rows = pay.take_rows(value, route.table.index)
            sizes = [route.sizes[h] for _, h in pairs]
            messages = dict(zip(pairs, pay.split_rows(rows, sizes), strict=True))
        got = self._move(name, messages, pairs, DOWN, grad, lambda t: self._charge_row_payload(t, route, name, DOWN, "rows", protection))  # fmt: skip
        return Located(CLIENTS, name, tuple(got[SERVER_END, h] for h in self.here), self.roster)

    def broadcast(self, x: Located, *, name: str, protection: str = "clear", grad: bool = True) -> Located:
        """Server to clients: the same payload at every client that takes part. Its gradient is the sum over the clients."""
        self._expect(x, SERVER, name)
        pairs = self._pairs_down()
        messages = dict.fromkeys(pairs, x.parts[0]) if x.parts else {}
        got = self._move(name, messages, pairs, DOWN, grad, lambda t: self._charge_parts(t, name, DOWN, "broadcast", protection, False))  # fmt: skip
        return Located(CLIENTS, name, tuple(got.get((SERVER_END, h), ABSENT) for h in self.here), self.roster)

    def sum(
        self, x: Located, route: Route | None = None, *, name: str, protection: str = "clear", grad: bool = True
    ) -> Located:
        """Clients to server, added up. With a route: rows of the same id are added, [U, ...] in the order of its table.

        Without a route `x` is each host's total over its clients that take part (a single client's own value where it is alone),
        of one shape everywhere; the ledger counts a part for every client. In the clear the server sees each part."""
        if route is not None:
            rows = self._rows_up(x, route, name, "sum", protection, grad)
            assert route.table is not None or not rows
            return Located(SERVER, name, tuple(pay.add_rows(r, route.table.index, len(route.table.ids)) for r in rows))  # type: ignore[union-attr]
        self._expect(x, CLIENTS, name)
        pairs = self._pairs_up()
        messages = self._from_hosts(x)
        got = self._move(name, messages, pairs, UP, grad, lambda t: self._charge_parts(t, name, UP, "sum", protection, False))
        if not self.server_ends:
            return Located(SERVER, name, ())
        parts = [got[p] for p in pairs]
        total = parts[0]
        for part in parts[1:]:
            total = pay.add(total, part)
        return Located(SERVER, name, (total,))

    def max(self, x: Located, route: Route, *, name: str, protection: str = "clear", grad: bool = True) -> Located:
        """Clients to server: the elementwise maximum of the rows [M_h, H] of the same id -> [U, H].

        The gradient goes to the row that won; of equal rows the one of the client with the lowest id."""
        rows = self._rows_up(x, route, name, "max", protection, grad)
        assert route.table is not None or not rows
        return Located(SERVER, name, tuple(pay.max_rows(r, route.table.index, len(route.table.ids)) for r in rows))  # type: ignore[union-attr]

    def average(
        self, x: Located, weights: Located, *, name: str, protection: str = "clear", grad: bool = True
    ) -> Located:
        """Clients to server: the weighted mean sum_k p_k x_k (methods.md 6.1), p_k = weights_k / sum over the roster.

        `x` holds per-client values ([K_h, ...] tensors or `SparseWeights`); `weights` [K] at the server. A client of weight 0
        does not count; if all that take part have weight 0 that is an InputError. In the clear the server sees each part."""
        self._expect(x, CLIENTS, name)
        self._expect(weights, SERVER, name)
        pairs = self._pairs_up()
        messages = self._from_hosts(x)
        if self.link is not None:  # each present client's own value crosses, in full
            messages = {
                (h, end): pay.stack([pay.part_of(m, i) for i in self._present_in(h)]) for (h, end), m in messages.items()
            }
        got = self._move(name, messages, pairs, UP, grad, lambda t: self._charge_parts(t, name, UP, "average", protection, True))
        if not self.server_ends:
            return Located(SERVER, name, ())
        share = self._shares(weights.parts[0], name)
        total: Any = None
        for h, end in pairs:
            members = self._present_in(h) if self.link is not None else range(len(self.hosts[h]))
            mine = share if len(self.hosts) == 1 else share[[self.hosts[h][i] for i in members]]
            term = pay.weighted_sum(got[h, end], mine)
            total = term if total is None else pay.add(total, term)
        return Located(SERVER, name, (total,))

    def exchange(self, x: Located, route: PeerRoute, *, name: str, protection: str = "clear", grad: bool = True) -> Located:
        """Client to client: the rows of `x` [N_h, ...] that others want -> [M_h, ...] in the order of each one's wants."""
        self._expect(x, CLIENTS, name)
        self._all_present(name)
        mine = dict(zip(self.here, x.parts, strict=True))
        messages = {(a, b): mine[a][rows] for (a, b), rows in route.send.items()}

        def charge(tree: Tensor) -> Charge:
            return self._peer_charge(route, pay.row_bytes(tree), kind="rows", dtype=pay.dtype_of(tree), shape=list(tree.shape[1:]), protection=protection, name=name)  # fmt: skip

        got = self._move(name, messages, route.pairs, PEER, grad, charge)
        received = []
        for b in self.here:
            senders = [a for a, to in route.pairs if to == b]
            order = torch.cat([route.place[a, b] for a in senders])
            rows = torch.cat([got[a, b] for a in senders])
            received.append(rows[torch.argsort(order)])
        return Located(CLIENTS, name, tuple(received), self.roster)

    # ---- the tape ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def tape(self) -> Iterator[None]:
        """Record the transfers of this block, for `backward`."""
        if self._tape is not None:
            raise PlaceError("fed.tape() is already recording; close it before opening another")
        self._tape = Tape()
        try:
            yield
        finally:
            self._tape = None

    def backward(self, loss: Located) -> None:
        """Send the gradient of the sum of `loss` (a scalar at every host of its place) back across the recorded transfers.

        Afterwards the leaves (`as_leaves`) hold their gradients; read them with `gradients`."""
        if self._tape is None:
            raise PlaceError("fed.backward(loss) outside fed.tape(): no transfer was recorded; compute the loss inside the block")
        records, self._tape.records = self._tape.records, []
        pending = Pending()
        ends = self.here if loss.place == CLIENTS else self.server_ends
        for end, part in zip(ends, loss.parts, strict=True):
            if part is not ABSENT:
                pending.add(end, part, torch.ones_like(part))
        for record in reversed(records):
            for end in dict.fromkeys(to for _, to in record.received):
                pending.flush(end)
            answers = {
                (to, source): tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in tensors)
                for (source, to), tensors in record.received.items()
            }
            back = [(to, source) for source, to in record.pairs]
            got = self._send(answers, back, f"{record.name}/grad")
            answered = np.zeros(self.num_clients, dtype=bool)
            for source, to in record.pairs:
                for end in (source, to):
                    if end != SERVER_END:
                        answered[list(self.hosts[end])] = True
            self.ledger.charge(record.charge.reversed(answered))
            for pair, tensors in record.sent.items():
                for tensor, gradient in zip(tensors, got[pair[1], pair[0]][0], strict=True):
                    pending.add(pair[0], tensor, gradient)
        pending.flush_all()

    def gradients(self, weights: Located) -> Located:
        """The gradients of leaf weights after `backward`, at the place of the weights (a cohort's: summed over its clients)."""
        parts = tuple(p if p is ABSENT else pay.tree_map(_gradient, p) for p in weights.parts)
        return Located(weights.place, f"gradient of {weights.name}", parts, weights.members)

    # ---- messages ---------------------------------------------------------------------------------------------------------

    def _move(
        self,
        name: str,
        messages: Mapping[Pair, Any],
        pairs: Sequence[Pair],
        direction: str,
        grad: bool,
        charge_of: Callable[[Any], Charge],
    ) -> dict[Pair, Any]:
        """Deliver payloads: `messages` has those sent from here, the result those received here. Records and charges."""
        recording = grad and self._tape is not None
        wants = {p: recording and any(t.requires_grad for t in pay.tensors_in(m)) for p, m in messages.items()}
        got = self._send({p: pay.detach(m) for p, m in messages.items()}, pairs, name, wants)
        received = {p: payload for p, (payload, _) in got.items()}
        wants.update({p: wanted for p, (_, wanted) in got.items()})
        sample = next(iter(received.values() if received else messages.values()), None)
        if sample is not None:
            charge = charge_of(sample)
            self.ledger.charge(charge)
            taped = tuple(p for p in pairs if wants.get(p))
            if taped:
                for p in taped:
                    for t in pay.tensors_in(received.get(p, ())):
                        t.requires_grad_()
                assert self._tape is not None
                self._tape.records.append(
                    Record(
                        name,
                        taped,
                        {p: pay.tensors_in(messages[p]) for p in taped if p in messages},
                        {p: pay.tensors_in(received[p]) for p in taped if p in received},
                        charge,
                    )
                )
        return received

    def _send(
        self, messages: Mapping[Pair, Any], pairs: Sequence[Pair], name: str, wants: Mapping[Pair, bool] | None = None
    ) -> dict[Pair, tuple[Any, bool]]:
        """The bare delivery: (payload, its sender wants a gradient) of every pair whose destination is here."""
        if self.link is None:
            return {p: (messages[p], bool(wants and wants[p])) for p in pairs}
        self._sequence += 1
        ends = {*self.here, *self.server_ends}
        for p in pairs:
            if p[0] in ends and p[1] not in ends:
                key = f"{self._sequence}/{self.ledger.round}/{name}/{p[0]}>{p[1]}"
                self.link.send(p[1], key, wire.encode(messages[p], grad=bool(wants and wants[p])))
        got: dict[Pair, tuple[Any, bool]] = {}
        for p in pairs:
            if p[1] not in ends:
                continue
            if p[0] in ends:
                got[p] = (messages[p], bool(wants and wants[p]))
            else:
                key = f"{self._sequence}/{self.ledger.round}/{name}/{p[0]}>{p[1]}"
                payload, header = wire.decode(self.link.recv(p[0], key))
                moved = pay.tree_map(lambda x: x.to(self.device) if isinstance(x, Tensor | SparseMatrix) else x, payload)
                got[p] = (moved, bool(header["grad"]))
        return got

    def _rows_up(self, x: Located, route: Route, name: str, kind: str, protection: str, grad: bool) -> tuple[Any, ...]:
        self._expect(x, CLIENTS, name)
        self._all_present(name)
        pairs = self._pairs_up()
        for h, part in zip(self.here, x.parts, strict=True):
            if part.shape[0] != route.sizes[h]:
                raise PlaceError(
                    f"transfer {name!r}: {x.name!r} has {part.shape[0]} rows but route {route.name!r} names {route.sizes[h]} ids"
                )
        got = self._move(name, self._from_hosts(x), pairs, UP, grad, lambda t: self._charge_row_payload(t, route, name, UP, kind, protection))  # fmt: skip
        return (pay.concat_rows([got[p] for p in pairs]),) if self.server_ends else ()

    def _from_hosts(self, x: Located) -> dict[Pair, Any]:
        return {(h, SERVER_END): p for h, p in zip(self.here, x.parts, strict=True) if self._active[h]}

    def _pairs_up(self) -> list[Pair]:
        return [(h, SERVER_END) for h, active in enumerate(self._active) if active]

    def _pairs_down(self) -> list[Pair]:
        return [(SERVER_END, h) for h, active in enumerate(self._active) if active]

    def _present_in(self, host: int) -> list[int]:
        """Positions in a host's cohort of its clients that take part."""
        return [i for i, k in enumerate(self.hosts[host]) if self.roster[k]]

    def _shares(self, weights: Tensor, name: str) -> Tensor:
        """p_k of the weighted mean over the roster, [K] float64."""
        weights = weights.double() * torch.from_numpy(self.roster).to(weights.device)
        total = weights.sum()
        if not float(total) > 0:
            raise InputError(
                f"transfer {name!r}: no client that takes part has a training vertex (their weights sum to 0); "
                "use fewer clients, a larger fraction, or a split with more training vertices"
            )
        return weights / total

    def _expect(self, x: Located, place: str, name: str) -> None:
        check_arguments(place, f"transfer {name!r}", [x])
        if place == CLIENTS:
            self._check_members(x, f"transfer {name!r}")

    def _all_present(self, name: str) -> None:
        if not self._everyone:
            absent = np.flatnonzero(~self.roster).tolist()
            raise PlaceError(f"transfer {name!r} follows a route, which needs every client; absent: {absent[:5]}")

    # ---- charges ----------------------------------------------------------------------------------------------------------

    def _charge_parts(self, tree: Any, name: str, direction: str, kind: str, protection: str, per_client: bool) -> Charge:
        moved = self._counted * pay.part_bytes(tree, per_client=per_client)
        zeros = np.zeros_like(moved)
        sent, received = (moved, zeros) if direction == UP else (zeros, moved)
        shape = pay.describe(tree, per_client=per_client)
        return Charge(name, direction, kind, pay.dtype_of(tree), shape, protection, self._messages, sent, received)

    def _charge_row_payload(self, tree: Any, route: Route, name: str, direction: str, kind: str, protection: str) -> Charge:
        return self._charge_rows(name, direction, route.rows, pay.row_bytes(tree), kind=kind, dtype=pay.dtype_of(tree), shape=list(tree.shape[1:]), protection=protection)  # fmt: skip

    def _charge_rows(
        self, name: str, direction: str, rows: np.ndarray, row_bytes: int, *, kind: str, dtype: str, shape: Any, protection: str
    ) -> Charge:
        moved = rows * row_bytes
        zeros = np.zeros_like(moved)
        sent, received = (moved, zeros) if direction == UP else (zeros, moved)
        return Charge(name, direction, kind, dtype, shape, protection, self._messages, sent, received)

    def _peer_charge(
        self, route: PeerRoute, row_bytes: int, *, kind: str, dtype: str, shape: Any, protection: str, back: bool = False, name: str = ""
    ) -> Charge:
        sent, received = route.sent * row_bytes, route.received * row_bytes
        if back:
            sent, received = received, sent
        return Charge(name or route.name, PEER, kind, dtype, shape, protection, len(route.pairs), sent, received)


def _counts(client: Tensor, n: int) -> np.ndarray:
    counts: np.ndarray = torch.bincount(client, minlength=n).cpu().numpy()
    return counts


def _find_rows(held: PeerIds, client: Tensor, ids: Tensor, name: str) -> Tensor:
    """The rows of a cohort that hold the wanted (client, id) pairs."""
    if not len(ids):
        return ids
    width = int(max(held.held_ids.max().item() if len(held.held_ids) else 0, ids.max().item())) + 1
    codes = held.held_client * width + held.held_ids
    order = torch.argsort(codes)
    wanted = client * width + ids
    spot = torch.searchsorted(codes[order], wanted).clamp(max=len(codes) - 1)
    row = order[spot]
    wrong = codes[row] != wanted
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise InputError(f"route {name!r}: a client is asked for vertex {int(ids[first])}, which it does not hold")
    return row


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def _tell(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
    return type(x).__name__ if not isinstance(x, int | float | str | bool | None) else repr(x)

"""The federation: run functions at places, move values between them by named transfers.

The same calls serve every placement. A `Federation` knows the hosts of the whole run (a host is a group of
clients stacked in one cohort), which of them are in this process, and, where some are not, the link to the
others. Every transfer is a set of messages between hosts and the server (`_move`): handed over in one
process, sent as bytes across a link; recorded on the tape and charged to the ledger either way. What a
transfer computes at its ends (sums, maxima, reordering) is plain autograd.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.crypto.session import Ended, Party, run_all, run_both, run_one
from graphfed.errors import GraphfedError, InputError, PlaceError
from graphfed.federation.ledger import Charge, Flow, Ledger
from graphfed.federation.link import SERVER_END, Link, Message, Pair, deliver
from graphfed.federation.received import Received, ReceivedError
from graphfed.federation.route import (
    PeerIds,
    PeerRoute,
    Route,
    check_wants,
    everyone,
    find_rows,
    ids_fit,
    in_order,
    link_codes,
    make_table,
    row_counts,
    sums_of_parts,
    traffic,
    wants_fit,
    widened_table,
)
from graphfed.federation.tape import Crossing, Pending, Record, Tape
from graphfed.federation.transfer import (
    Accept,
    Ideal,
    Transfer,
    answer,
    check_rows,
    gradients_for,
    pack,
    tell,
    tensors_asked,
    unpack,
    unpack_arrived,
    wrapped_leaves,
)
from graphfed.federation.values import (
    ABSENT,
    CLIENTS,
    SERVER,
    Located,
    OfTheProgram,
    check_arguments,
    check_function,
    versions,
)
from graphfed.federation.wire import WireError
from graphfed.federation.wrap import Wrapper
from graphfed.files import parse_json
from graphfed.nn.sparse import SparseWeights

__all__ = ["Federation", "Link", "StageError", "as_leaves"]


#: Characters of a decision, beside one for every client: data does not cross as control.
MAX_CONTROL = 1000
#: Characters of what a host says of itself: names of columns and classes are the longest part.
MAX_REPORT = 1 << 20


class StageError(GraphfedError):
    """A function run at a place failed: the message says where, in which stage, with what inputs."""


def as_leaves(tree: Any) -> Any:
    """The payload's floating tensors as leaves that collect a gradient (run this at the place that owns the
    weights)."""

    def leaf(x: Any) -> Any:
        if isinstance(x, SparseWeights):
            return x.with_values(x.values.detach().requires_grad_())
        return x.detach().requires_grad_() if x.is_floating_point() else x

    return pay.tree_map(leaf, tree)


class _Place(OfTheProgram):
    """Where functions run: ``fed.clients`` or ``fed.server``."""

    def __init__(self, fed: "Federation", name: str) -> None:
        self._fed, self.name = fed, name

    def run(self, fn: Callable[..., Any], *arguments: Any, outputs: int = 1) -> Any:
        """Run `fn` at this place; its result stays here (`outputs` > 1: a tuple of that many located values).

        Located arguments must live here; `fn` gets their content and never writes into it. A function run at
        the clients gets a whole cohort and never loops over clients. Raises PlaceError for a value from
        elsewhere or a function that carries data of its own, StageError with place, stage and inputs when
        `fn` fails."""
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
            before = versions(inputs)
            try:
                result = fn(*inputs)
                if any(tensor._version != count for tensor, count in before):
                    raise PlaceError(
                        f"{stage} wrote into one of its arguments at {self.name}: in one process the value "
                        "is shared with whoever sent it; work on a copy (x.clone())"
                    )
                if outputs > 1 and (not isinstance(result, tuple) or len(result) != outputs):
                    raise TypeError(f"returned {tell(result)} where a tuple of {outputs} is expected")
            except (InputError, PlaceError):
                raise
            except Exception as error:
                raise StageError(fed._failure(end, stage, inputs, error)) from error
            results.append(result)
        members = fed.roster if at_clients else None
        if outputs == 1:
            return Located(self.name, stage, tuple(results), members)
        return tuple(
            Located(self.name, f"{stage}[{i}]", tuple(r[i] for r in results), members) for i in range(outputs)
        )


class Federation(OfTheProgram):
    """One run of K clients and a server, seen from one process.

    hosts: for every host of the run the ids of its clients, ascending over all hosts; here: the hosts in this
    process; server_here: whether the server is; link: how to reach the others (None when everything is here);
    names: what messages call the hosts (None: by their clients).

    The payload transfers share these options: `name` is the transfer's name on the ledger, `protection` its
    class there; ``grad=False`` sends no gradient back; `wrap` goes around the payload (see `wrap.Wrapper`). A
    payload is a tensor, or tensors in dictionaries and tuples. What comes from another process is checked
    (`received`): ``finite=False`` allows numbers that are not finite, and `accept` is a rule of the
    transfer's own (`transfer.Accept`)."""

    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        *,
        here: Sequence[int] | None = None,
        server_here: bool = True,
        link: Link | None = None,
        device: torch.device | str = "cpu",
        names: Sequence[str] | None = None,
    ) -> None:
        self.hosts = [tuple(h) for h in hosts]
        self._names = None if names is None else tuple(names)
        flat = [k for h in self.hosts for k in h]
        if not flat or flat != list(range(len(flat))) or not all(self.hosts):
            raise ValueError(
                f"hosts must hold the clients 0..K-1 in order, at least one each; got {self.hosts}"
            )
        self.here = list(range(len(self.hosts))) if here is None else list(here)
        if self.here != sorted({*self.here} & {*range(len(self.hosts))}):
            raise ValueError(
                f"here must name some of the {len(self.hosts)} hosts, ascending; got {self.here}"
            )
        if link is None and (len(self.here) < len(self.hosts) or not server_here):
            raise ValueError("some places are not in this process: pass the link to them")
        self.server_ends = [SERVER_END] if server_here else []
        self.link, self.device = link, torch.device(device)
        self.num_clients = len(flat)
        self.ledger = Ledger(self.num_clients)
        #: The checks of what comes from other processes.
        self.received = Received(self._name, self.hosts)
        self.clients, self.server = _Place(self, CLIENTS), _Place(self, SERVER)
        self.held = np.zeros(self.num_clients, dtype=bool)
        for h in self.here:
            self.held[list(self.hosts[h])] = True
        # The clients whose traffic with the server this process sees: its own, and everybody's at the server.
        self._seen = self.held | server_here
        self._everyone_flow = Flow.up(self._seen, self._seen)
        first = self._seen & (np.arange(self.num_clients) == 0)
        self._first_client_flow = Flow.up(first, first)
        self._tape: Tape | None = None
        self._sequence = 0
        #: Who is told what a person should know while a program works (see `tell`).
        self.on_news: Callable[[str], None] | None = None
        #: Who is told what a program works on (see `begin`).
        self.on_stage: Callable[[str], None] | None = None
        self.set_roster(np.ones(self.num_clients, dtype=bool))

    # ---- who takes part, where it stands -------------------------------------------------------------------

    def set_roster(self, present: np.ndarray) -> None:
        """Who takes part from now on: [K] bool, the same at every place (it came by `control`).

        Raises InputError when nobody does."""
        present = np.array(present)
        if present.shape != (self.num_clients,) or present.dtype != bool:
            raise ValueError(
                f"a roster is {self.num_clients} booleans; got {present.dtype} of shape {present.shape}"
            )
        if not present.any():
            raise InputError("no client takes part in the round; use a larger fraction of clients")
        present.setflags(write=False)
        self.roster = present
        self._active = [bool(present[h[0] : h[-1] + 1].any()) for h in self.hosts]
        self._everyone = bool(present.all())
        active = [h for h, taking_part in enumerate(self._active) if taking_part]
        self._up: list[Pair] = [(h, SERVER_END) for h in active]
        self._down: list[Pair] = [(SERVER_END, h) for h in active]
        # One unit for every client that takes part, upwards; its `back` is the way down.
        self._flow = Flow.up(present & self._seen, present & self._seen)

    def present(self) -> Located:
        """At the clients: which of a cohort's clients take part, [K_h] bool."""
        parts = tuple(torch.tensor(self.roster[list(self.hosts[h])], device=self.device) for h in self.here)
        return Located(CLIENTS, "present", parts)

    def client_ids(self) -> Located:
        """At the clients: the ids of a cohort's clients, [K_h] int64."""
        parts = tuple(
            torch.arange(self.hosts[h][0], self.hosts[h][-1] + 1, device=self.device) for h in self.here
        )
        return Located(CLIENTS, "client ids", parts)

    def traffic(self) -> Located:
        """At the clients: the bytes that have left and reached each of a cohort's clients in set-up and
        training so far, [K_h] int64."""
        counted = self.ledger.bytes_of_clients()
        parts = tuple(torch.from_numpy(counted[list(self.hosts[h])]).to(self.device) for h in self.here)
        return Located(CLIENTS, "traffic", parts)

    def keep_absent(self, new: Located, old: Located) -> Located:
        """`new` where a host has a client that takes part, `old` where it has none: state that absent clients
        keep."""
        check_arguments(CLIENTS, "keep_absent", (new, old))
        parts = tuple(o if n is ABSENT else n for n, o in zip(new.parts, old.parts, strict=True))
        members = None if new.members is None or old.members is None else new.members | old.members
        return Located(CLIENTS, new.name, parts, members)

    @contextmanager
    def phase(self, name: str, round: int | None = None) -> Iterator[None]:
        """Charge what crosses in this block to a phase (and, from here on, to a round)."""
        if round is not None:
            self.ledger.round = round
        with self.ledger.in_phase(name):
            yield

    def tell(self, news: str) -> None:
        """Say something to whoever watches this process: what is about to take long, or much. What every
        place knows, never a value of one."""
        if self.on_news is not None:
            self.on_news(news)

    def begin(self, stage: str) -> None:
        """Report what the program works on from now on. Whoever watches is shown it where it takes long.

        Args:
            stage: What begins, as in "making the messages of 2708 nodes". Only what every place knows.
        """
        if self.on_stage is not None:
            self.on_stage(stage)

    def locate(self, place: str, name: str, parts: Sequence[Any]) -> Located:
        """A value that a place has of its own before anything crosses: one part for each host of the place in
        this process."""
        ends = self.here if place == CLIENTS else self.server_ends
        if place not in (CLIENTS, SERVER) or len(parts) != len(ends):
            raise PlaceError(
                f"{name!r} at {place}: got {len(parts)} parts for the {len(ends)} hosts of this process"
            )
        return Located(place, name, tuple(parts))

    def local_parts(self, value: Located) -> tuple[Any, ...]:
        """What this process holds of a value: for run folders, runtimes and tests. A method's program never
        looks."""
        return tuple(p for p in value.parts if p is not ABSENT)

    def _check_members(self, value: Located, stage: str) -> None:
        members = value.members
        if members is None or members is self.roster:
            return
        missing = np.flatnonzero(self.roster & ~members)
        if len(missing):
            raise PlaceError(
                f"{stage}: {value.name!r} is missing at client {missing[0]} ({len(missing)} in all), "
                "which took no part when it was made; make it again with this roster"
            )

    def _failure(self, end: int, stage: str, inputs: Sequence[Any], error: Exception) -> str:
        told = ", ".join(tell(x) for x in inputs)
        return (
            f"{self._name(end)} failed in {stage!r} (phase {self.ledger.phase}, round {self.ledger.round}): "
            f"{type(error).__name__}: {error}; inputs: {told}"
        )

    def _name(self, end: int) -> str:
        if end == SERVER_END:
            return "server"
        if self._names is not None:
            return self._names[end]
        first, last = self.hosts[end][0], self.hosts[end][-1]
        return f"client {first}" if first == last else f"clients {first}..{last} (stacked)"

    # ---- control -------------------------------------------------------------------------------------------

    def control(
        self, fn: Callable[..., dict[str, Any]], *arguments: Any, name: str = "control"
    ) -> dict[str, Any]:
        """Decide at the server, tell every place: `fn` returns plain JSON values and everyone gets the same
        dictionary.

        The only way for a program to branch on a value. Reaches absent clients too: they
        must know. Raises StageError when `fn` returns anything but JSON."""
        decision = self.server.run(_as_json, fn, *arguments)
        pairs = [(SERVER_END, h) for h in range(len(self.hosts))]
        messages = {p: Message(text) for text in decision.parts for p in pairs}
        got = self._deliver(messages, pairs, self._next_key(name))
        text = decision.parts[0] if decision.parts else next(iter(got.values())).payload
        if not isinstance(text, str):
            raise WireError("a control message is not text")
        if len(text) > MAX_CONTROL + self.num_clients:
            raise PlaceError(
                f"a control message of {len(text)} characters is no decision; move data with a named transfer"
            )
        result: dict[str, Any] = _from_json(text, len(text), "a control message")
        with self.ledger.in_phase("control"):
            flow, size = self._everyone_flow.back, len(text.encode())
            self.ledger.charge(Charge(name, "control", "json", [], "public", flow, size))
        return result

    def report(self, x: Located, *, name: str) -> Located:
        """Clients to server: plain JSON that every host says of itself, a list in the order of the hosts.

        For what must be known before tensors can cross: versions, names of columns. The ledger counts a
        host's text at its first client. Raises StageError where it is not JSON or longer than
        MAX_REPORT."""
        self._all_present(name)
        texts = self.clients.run(_as_report, x)
        pairs = [(h, SERVER_END) for h in range(len(self.hosts))]
        messages = {(h, SERVER_END): Message(text) for h, text in zip(self.here, texts.parts, strict=True)}
        got = self._deliver(messages, pairs, self._next_key(name))
        seen: dict[int, Any] = {h: m.payload for (h, _), m in {**messages, **got}.items()}
        reports = [_from_json(seen[h], MAX_REPORT, f"{name!r} from {self._name(h)}") for h in sorted(seen)]
        told = np.zeros(self.num_clients, dtype=np.int64)
        for h, text in seen.items():
            told[self.hosts[h][0]] = len(text.encode())
        flow = Flow.up(told, told > 0)
        self.ledger.charge(Charge(name, "report", "json", [], "public", flow, 1))
        return Located(SERVER, name, (reports,) * len(self.server_ends))

    # ---- routes --------------------------------------------------------------------------------------------

    def route(self, ids: Located, *, name: str, protection: str = "clear") -> Route:
        """Agree which rows travel between the clients and the server: `ids` is a `RowIds` at the clients.

        A metered set-up transfer of 8 bytes an id: the server then knows who holds which ids, and nothing
        more."""
        self._expect(ids, CLIENTS, name)
        self._all_present(name)
        mine = dict(zip(self.here, ids.parts, strict=True))
        counts = {h: row_counts(r, len(self.hosts[h]), name) for h, r in mine.items()}
        messages = {(h, SERVER_END): Message((r.ids, torch.from_numpy(counts[h]))) for h, r in mine.items()}
        got = self._deliver(messages, self._up, self._next_key(name))
        rows = np.zeros(self.num_clients, dtype=np.int64)
        for h, c in counts.items():
            rows[self.hosts[h][0] : self.hosts[h][-1] + 1] = c
        table = None
        if self.server_ends:
            for h, _ in self._up:
                if self._is_elsewhere(h) and not ids_fit(got[h, SERVER_END].payload, len(self.hosts[h])):
                    raise self._refusal(h, name, "ids that do not fit its clients")
            table, rows = make_table([got[p].payload for p in self._up])
            counts = {h: rows[clients[0] : clients[-1] + 1] for h, clients in enumerate(self.hosts)}
        flow = Flow.up(rows, self._seen)
        self.ledger.charge(Charge(name, "ids", "int64", [], protection, flow, 8))
        return Route(name, {h: int(c.sum()) for h, c in counts.items()}, flow, table)

    def table(self, route: Route) -> Located:
        """What the server knows of a route: a `RouteTable`, located at the server."""
        return Located(SERVER, f"{route.name} table", (route.table,) * len(self.server_ends))

    def widened(self, route: Route, at_clients: Located, at_server: Located, *, name: str) -> Route:
        """A route with several rows in the place of each row of another one: as many as `at_clients` [M_h]
        int64 says of a host's rows, and `at_server` [U] of every id. Both ends know them: nothing crosses.

        The rows of an id stay together; at the server they are the rows of a table of all ids' rows."""
        check_arguments(CLIENTS, f"route {name!r}", [at_clients])
        check_arguments(SERVER, f"route {name!r}", [at_server])
        sizes: dict[int, int] = {}
        rows = np.zeros(self.num_clients, dtype=np.int64)
        for h, counts in zip(self.here, at_clients.parts, strict=True):
            check_rows(counts, route.sizes[h], f"route {name!r}: what the clients say", "the rows are")
            mine = list(self.hosts[h])
            rows[mine] = sums_of_parts(counts, route.flow.sent[mine])
            sizes[h] = int(rows[mine].sum())
        table = None
        for counts in at_server.parts:
            assert route.table is not None
            check_rows(counts, len(route.table.ids), f"route {name!r}: what the server says", "the ids are")
            table = widened_table(route.table, counts)
            rows = torch.bincount(table.client, minlength=self.num_clients).cpu().numpy()
            told = {h: int(rows[list(clients)].sum()) for h, clients in enumerate(self.hosts)}
            if any(told[h] != size for h, size in sizes.items()):
                raise PlaceError(f"route {name!r}: the server and the clients expect different rows")
            sizes = told
        return Route(name, sizes, Flow.up(rows, self._seen), table)

    def peer_route(self, wants: Located, *, name: str, protection: str = "clear") -> PeerRoute:
        """Agree which rows travel between clients: `wants` is a `PeerIds` at the clients.

        Every client sends the ids it wants to their owners: 8 bytes an id, client to client (who asks and who
        is asked is the envelope). InputError when an owner has no such row."""
        self._expect(wants, CLIENTS, name)
        self._all_present(name)
        mine: dict[int, PeerIds] = dict(zip(self.here, wants.parts, strict=True))
        hosts = range(len(self.hosts))
        host_of = torch.from_numpy(np.repeat(np.arange(len(self.hosts)), [len(h) for h in self.hosts]))
        place: dict[Pair, Tensor] = {}
        asks: dict[Pair, Message] = {}
        for b, want in mine.items():
            check_wants(want, self.hosts[b], self.num_clients, name)
            owner = host_of.to(want.site.device)[want.site]
            asker = want.client + self.hosts[b][0]
            for a in hosts:
                place[a, b] = (owner == a).nonzero()[:, 0]
                asks[b, a] = Message(tuple(column[place[a, b]] for column in (want.site, want.ids, asker)))
        # Ids travel from who wants to who owns: the other way round from the rows that answer.
        pairs = [(b, a) for a in hosts for b in hosts if a in mine or b in mine]
        got = self._deliver(asks, pairs, self._next_key(name))
        send: dict[Pair, Tensor] = {}
        links: dict[Pair, Tensor] = {}
        for a, held in mine.items():
            for b in hosts:
                if self._is_elsewhere(b) and not wants_fit(got[b, a].payload, self.hosts[b]):
                    raise self._refusal(b, name, "wants that are none of its clients'")
                site, ids, asker = got[b, a].payload
                rows = find_rows(held, self.hosts[a], site, ids, name, self._name(b))
                if len(rows):
                    send[a, b] = rows
                    links[a, b] = link_codes(site, asker, self.num_clients)
        for b, want in mine.items():
            for a in hosts:
                rows = place[a, b]
                if a not in mine and len(rows):
                    receiver = want.client[rows] + self.hosts[b][0]
                    links[a, b] = link_codes(want.site[rows], receiver, self.num_clients)
        return self._peer_route([(a, b) for b, a in pairs], send, place, links, name, protection)

    def narrowed(
        self, route: PeerRoute, wanted: Located, *, name: str, protection: str = "clear"
    ) -> tuple[PeerRoute, Located]:
        """The part of a route that clients want now: `wanted` [M_h] bool at the clients says which of their
        wants. What travels on it is, at each host, a row for every row that it is asked for: the second
        result, at the clients, [A_h] int64, says which of the rows that it holds these are.

        Every client sends the ids it wants to their owners again: 8 bytes each."""
        self._expect(wanted, CLIENTS, name)
        self._all_present(name)
        chosen: dict[Pair, Tensor] = {}
        for b, mask in zip(self.here, wanted.parts, strict=True):
            for p in route.pairs:
                if p[1] == b:
                    chosen[p] = mask[route.place[p]].nonzero()[:, 0]
        asks = {(b, a): Message(numbers) for (a, b), numbers in chosen.items()}
        pairs = [(b, a) for a, b in route.pairs]
        got = self._deliver(asks, pairs, self._next_key(name))
        send: dict[Pair, Tensor] = {}
        place = {p: route.place[p][numbers] for p, numbers in chosen.items()}
        links = {p: route.links[p][numbers] for p, numbers in chosen.items()}
        asked = []
        for a in self.here:
            rows = [torch.zeros(0, dtype=torch.int64, device=self.device)]
            so_far = 0
            for p in route.pairs:
                if p[0] != a:
                    continue
                numbers = got[p[1], a].payload
                if not _is_some_of(numbers, len(route.send[p])):
                    raise self._refusal(p[1], name, "row numbers that are no part of what it may ask for")
                rows.append(route.send[p][numbers])
                links[p] = route.links[p][numbers]
                send[p] = torch.arange(so_far, so_far + len(numbers), device=self.device)
                so_far += len(numbers)
            asked.append(torch.cat(rows))
        part = self._peer_route(route.pairs, send, place, links, name, protection)
        return part, Located(CLIENTS, f"rows asked for, {name}", tuple(asked), self.roster)

    def _peer_route(
        self,
        pairs: Sequence[Pair],
        send: dict[Pair, Tensor],
        place: dict[Pair, Tensor],
        links: dict[Pair, Tensor],
        name: str,
        protection: str,
    ) -> PeerRoute:
        """A route between clients of which both ends know the rows, charged for its ids; pairs: of hosts, of
        which one is here."""
        with_rows = tuple(p for p in pairs if len(links.get(p, ())))
        order = {b: in_order([place[p] for p in with_rows if p[1] == b] or [_NO_ROWS]) for b in self.here}
        every = torch.cat([links[p] for p in with_rows] or [_NO_ROWS])
        flow = Flow.peer(traffic(every, self.num_clients), self.held)
        send, place = ({p: x for p, x in of.items() if p in with_rows} for of in (send, place))
        route = PeerRoute(name, with_rows, send, order, flow, place, links)
        if self.here:
            self.ledger.charge(Charge(name, "ids", "int64", [], protection, flow.back, 8))
        return route

    def everyone(self) -> PeerRoute:
        """The route of a row from every client to every other one: see `route.everyone`."""
        return everyone(self.hosts, self.here, self.held)

    # ---- transfers -----------------------------------------------------------------------------------------

    def upload(
        self,
        x: Located,
        route: Route,
        *,
        name: str,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
        accept: Accept | None = None,
    ) -> Located:
        """Clients to server: a row of `x` for every id of the route, [M_h, ...] at each host -> [M, ...] in
        client order."""
        transfer = Transfer(name, "rows", route.flow, protection, grad, wrap, accept=accept)
        return Located(SERVER, name, self._rows_up(x, route, transfer))

    def gather(
        self,
        x: Located,
        *,
        name: str,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
        accept: Accept | None = None,
    ) -> Located:
        """Gather one value from every client at the server, [K_h, ...] at each host -> [K, ...] in client
        order. Every client must be present; use `collect` if some may be absent.

        Args:
            x: at the clients, one row for each client of a host.
            name: of the transfer, in the ledger.
            protection: what hides the rows, in the ledger's words.
            grad: whether gradients go back along the same way.
            wrap: changes rows where they leave the clients, and back where they arrive.

        Returns:
            The rows at the server, in client order.

        Raises:
            PlaceError: if a client is absent, or `x` is not one row for each client.
        """
        self._all_present(name)
        return self.collect(x, name=name, protection=protection, grad=grad, wrap=wrap, accept=accept)

    def collect(
        self,
        x: Located,
        *,
        name: str,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
        finite: bool = True,
        accept: Accept | None = None,
    ) -> Located:
        """Clients to server: a row of every client that takes part, [P_h, ...] at each host -> [P, ...] in
        client order."""
        self._expect(x, CLIENTS, name)
        transfer = Transfer(name, "gather", self._flow, protection, grad, wrap, finite=finite, accept=accept)
        return self._own_rows(x, transfer)

    def scatter(
        self,
        x: Located,
        *,
        name: str,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
    ) -> Located:
        """Server to clients: to every client that takes part a row of its own, `x` [P, ...] in client order
        -> [P_h, ...] at each host."""
        self._expect(x, SERVER, name)
        sizes = {h: len(self._present_in(h)) for _, h in self._down}
        messages: dict[Pair, Any] = {}
        for value in x.parts:
            check_rows(value, sum(sizes.values()), f"transfer {name!r}: {x.name!r}", "the clients are")
            messages = dict(zip(self._down, pay.split_rows(value, list(sizes.values())), strict=True))
        transfer = Transfer(name, "scatter", self._flow.back, protection, grad, wrap)
        got = self._move(transfer, messages, self._down, {(end, h): sizes[h] for end, h in self._down})
        for (_, h), rows in got.items():
            check_rows(rows, sizes[h], f"transfer {name!r}: from the server", "its clients are")
        parts = tuple(got.get((SERVER_END, h), ABSENT) for h in self.here)
        return Located(CLIENTS, name, parts, self.roster)

    def download(
        self,
        x: Located,
        route: Route,
        *,
        name: str,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
        ideal: Ideal | None = None,
    ) -> Located:
        """Server to clients: row u of `x` [U, ...] to every client whose route names id u -> [M_h, ...] at
        each host.

        ideal: counted as what the download stands for, and `simulated`; PlaceError where a place is in
        another process, which would see what it must not."""
        if ideal is not None and self.link is not None:
            raise PlaceError(f"transfer {name!r} is simulated, and cannot go to another process")
        self._expect(x, SERVER, name)
        self._all_present(name)
        messages: dict[Pair, Any] = {}
        for value in x.parts:
            assert route.table is not None
            check_rows(
                value,
                len(route.table.ids),
                f"transfer {name!r}: {x.name!r}",
                f"the ids of route {route.name!r} are",
            )
            rows = pay.take_rows(value, route.table.index)
            messages = dict(
                zip(self._down, pay.split_rows(rows, [route.sizes[h] for _, h in self._down]), strict=True)
            )
        transfer = Transfer(name, "rows", route.flow.back, protection, grad, wrap, ideal=ideal)
        return self._rows_down(messages, route, transfer)

    def hand_back(
        self, x: Located, route: Route, *, name: str, protection: str = "clear", grad: bool = True
    ) -> Located:
        """Server to clients: row m of `x` [M, ...] to the client that sends row m of an upload -> [M_h, ...]
        at each host."""
        self._expect(x, SERVER, name)
        self._all_present(name)
        messages: dict[Pair, Any] = {}
        for value in x.parts:
            sizes = [route.sizes[h] for _, h in self._down]
            check_rows(value, sum(sizes), f"transfer {name!r}: {x.name!r}", f"route {route.name!r} has")
            messages = dict(zip(self._down, pay.split_rows(value, sizes), strict=True))
        return self._rows_down(messages, route, Transfer(name, "rows", route.flow.back, protection, grad))

    def _rows_down(self, messages: Mapping[Pair, Any], route: Route, transfer: Transfer) -> Located:
        """The rows that a route names, at each client."""
        sizes = {(end, h): route.sizes[h] for end, h in self._down if h in route.sizes}
        got, name = self._move(transfer, messages, self._down, sizes), transfer.name
        for h in self.here:
            check_rows(
                got[SERVER_END, h],
                route.sizes[h],
                f"transfer {name!r}: from the server",
                f"route {route.name!r} names",
            )
        return Located(CLIENTS, name, tuple(got[SERVER_END, h] for h in self.here), self.roster)

    def broadcast(
        self,
        x: Located,
        *,
        name: str,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
    ) -> Located:
        """Server to clients: the same payload at every client that takes part. Its gradient is the sum over
        the clients, so it comes back as sums of hosts: a wrapper around gradients is refused."""
        self._expect(x, SERVER, name)
        if wrap is not None and wrap.gradients:
            raise PlaceError(
                f"transfer {name!r}: the gradient of a broadcast is summed over a cohort before it crosses: "
                "it cannot be wrapped client by client; use a wrapper that leaves gradients as they are"
            )
        messages = dict.fromkeys(self._down, x.parts[0]) if x.parts else {}
        got = self._move(
            Transfer(name, "broadcast", self._flow.back, protection, grad, wrap, leading=False),
            messages,
            self._down,
        )
        return Located(CLIENTS, name, tuple(got.get((SERVER_END, h), ABSENT) for h in self.here), self.roster)

    def sum(
        self,
        x: Located,
        route: Route | None = None,
        *,
        name: str,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
        finite: bool = True,
        accept: Accept | None = None,
    ) -> Located:
        """Clients to server, added up. With a route: rows of the same id are added, [U, ...] in its table's
        order.

        Without a route `x` is each host's total over its clients that take part (a single client's own value
        where it is alone), of one shape everywhere; the ledger counts a part for every client. A wrapper
        needs a route: a stacked cohort has no parts to wrap, only their total. In the clear the server sees
        each part."""
        if route is not None:
            transfer = Transfer(name, "sum", route.flow, protection, grad, wrap, finite=finite, accept=accept)
            rows = self._rows_up(x, route, transfer)
            return Located(SERVER, name, tuple(pay.add_rows(r, *_groups(route)) for r in rows))
        if wrap is not None:
            raise PlaceError(
                f"transfer {name!r}: a sum without a route takes no wrapper, because a stacked "
                "cohort holds the total of its clients and not their parts; use average or gather"
            )
        self._expect(x, CLIENTS, name)
        transfer = Transfer(
            name, "sum", self._flow, protection, grad, leading=False, finite=finite, accept=accept
        )
        got = self._move(transfer, self._from_hosts(x), self._up)
        return Located(SERVER, name, self._total([got[p] for p in self._up]) if self.server_ends else ())

    def max(
        self,
        x: Located,
        route: Route,
        *,
        name: str,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
    ) -> Located:
        """Clients to server: the elementwise maximum of the rows [M_h, H] of the same id -> [U, H].

        The gradient goes to the row that won; of equal rows the one of the client with the lowest id. The
        server sees each row; `secure_max.secure_max` shows it the maximum only."""
        rows = self._rows_up(x, route, Transfer(name, "max", route.flow, protection, grad, wrap))
        return Located(SERVER, name, tuple(pay.max_rows(r, route.table.holders) for r in rows if route.table))

    def average(
        self,
        x: Located,
        weights: Located,
        *,
        name: str,
        otherwise: Located | None = None,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
    ) -> Located:
        """Clients to server: the weighted mean sum_k p_k x_k, p_k = weights_k / sum over the
        roster.

        `x` holds per-client values ([K_h, ...] tensors or `SparseWeights`); `weights` [K] at the server,
        constants. A client of weight 0 does not count; if all that take part have weight 0 the result is
        `otherwise` (a value at the server), or an InputError without one. In the clear the server sees each
        part. Across a link or under a wrapper sparse weights are stored in full, client by client."""
        self._expect(x, CLIENTS, name)
        self._expect(weights, SERVER, name)
        if otherwise is not None:
            self._expect(otherwise, SERVER, name)
        messages = self._from_hosts(x)
        # In one process a cohort's values stay as they are stored; else each present client's own crosses.
        own = self.link is not None or wrap is not None
        if own:
            messages = {(h, end): pay.parts(m, self._present_in(h)) for (h, end), m in messages.items()}
        rows = {(h, end): len(self._present_in(h)) for h, end in self._up}
        like = None if otherwise is None or not otherwise.parts else otherwise.parts[0]
        transfer = Transfer(name, "average", self._flow, protection, grad, wrap)
        got = self._move(transfer, messages, self._up, rows, like)
        if not self.server_ends:
            return Located(SERVER, name, ())
        share = self._shares(weights.parts[0], name)
        if share is None:
            if otherwise is None:
                raise InputError(
                    f"transfer {name!r}: no client that takes part has a training vertex (their weights sum "
                    "to 0); use fewer clients, a larger fraction, or a split with more training vertices"
                )
            return otherwise
        terms = []
        for h, end in self._up:
            mine = share[self.hosts[h][0] : self.hosts[h][-1] + 1]
            if own:
                mine = mine[self._present_in(h).numpy()]
            for leaf in pay.leaves(got[h, end]):
                if not isinstance(leaf, SparseWeights):
                    check_rows(leaf, len(mine), f"transfer {name!r}: from {self._name(h)}", "its clients are")
            terms.append(pay.weighted_sum(got[h, end], mine))
        return Located(SERVER, name, self._total(terms))

    def exchange(
        self,
        x: Located,
        route: PeerRoute,
        *,
        name: str,
        protection: str = "clear",
        grad: bool = True,
        wrap: Wrapper | None = None,
    ) -> Located:
        """Client to client: the rows of `x` [N_h, ...] that others want -> [M_h, ...] in the order of each
        one's wants."""
        self._expect(x, CLIENTS, name)
        self._all_present(name)
        mine = dict(zip(self.here, x.parts, strict=True))
        messages = {(a, b): pay.take_rows(mine[a], rows) for (a, b), rows in route.send.items()}
        # A route that follows from who takes part has no places.
        rows_of = {p: len(route.place[p]) for p in route.pairs if p in route.place}
        transfer = Transfer(name, "rows", route.flow, protection, grad, wrap)
        got = self._move(transfer, messages, route.pairs, rows_of)
        received = []
        for b in self.here:
            parts = [got[p] for p in route.pairs if p[1] == b]
            rows = pay.concat_rows(parts) if parts else pay.take_rows(pay.detach(mine[b]), torch.arange(0))
            order = route.order[b]
            wanted = rows.shape[0] if order is None else len(order)
            check_rows(rows, wanted, f"transfer {name!r}: from other clients", f"route {route.name!r} names")
            received.append(rows if order is None else pay.take_rows(rows, order))
        return Located(CLIENTS, name, tuple(received), self.roster)

    # ---- two parties that compute together -----------------------------------------------------------------

    def converse(
        self, at_server: Located, at_clients: Located, *, name: str, protection: str
    ) -> tuple[Located, Located]:
        """The server and the first client run a two-party protocol: their results, at the server and at the
        clients (None at the hosts of other clients).

        at_server, at_clients: the two parties (`session.Party`), as functions run there return them; those
        of other hosts are not used. The ledger counts the protocol's messages each way, or what a simulated
        one declares."""
        self._expect(at_server, SERVER, name)
        self._expect(at_clients, CLIENTS, name)
        self._all_present(name)
        key = self._next_key(name)
        mine: dict[int, Party[Any]] = dict(zip(self.server_ends, at_server.parts, strict=True))
        if 0 in self.here:
            mine[0] = at_clients.parts[self.here.index(0)]
        ended: dict[int, Ended[Any]] = {}
        if len(mine) == 2:
            ended[SERVER_END], ended[0] = run_both(mine[SERVER_END], mine[0])
        for end, party in mine.items() if not ended else ():
            ended[end] = self._talk(party, end, 0 if end == SERVER_END else SERVER_END, key)
        for end, told in list(ended.items())[:1]:
            up, down = (told.received, told.sent) if end == SERVER_END else (told.sent, told.received)
            for size, flow in ((up, self._first_client_flow), (down, self._first_client_flow.back)):
                self.ledger.charge(Charge(name, "protocol", "bytes", [], protection, flow, size))
        results = {end: told.result for end, told in ended.items()}
        return (
            Located(SERVER, name, tuple(results[end] for end in self.server_ends)),
            Located(CLIENTS, name, tuple(results.get(h) for h in self.here), self.roster),
        )

    def _talk(self, party: Party[Any], end: int, other: int, key: str) -> Ended[Any]:
        """Run a party whose other one is in another process."""
        assert self.link is not None
        link, sent, received = self.link, itertools.count(), itertools.count()
        return run_one(
            party,
            lambda message: link.send(other, f"{key}/{next(sent)}/{end}>{other}", message),
            lambda: link.recv(other, f"{key}/{next(received)}/{other}>{end}"),
        )

    def converse_hosts(self, at_clients: Located, *, name: str) -> Located:
        """Hosts of clients run two-party protocols with each other, all at the same time: at each host what
        its parties ended with, {the other host: result}.

        at_clients: {the other host: the party (`session.Party`)} at each host; two hosts talk where each has
        a party for the other. The ledger counts nothing here: many pairs of clients may share a message, so
        who calls this charges what the protocols' own messages weigh."""
        self._expect(at_clients, CLIENTS, name)
        self._all_present(name)
        key = self._next_key(name)
        mine: dict[int, dict[int, Party[Any]]] = dict(zip(self.here, at_clients.parts, strict=True))
        results: dict[int, dict[int, Any]] = {h: {} for h in mine}
        elsewhere: dict[Pair, Party[Any]] = {}
        for h, parties in mine.items():
            for other, party in parties.items():
                if other not in mine:
                    elsewhere[h, other] = party
                elif h not in mine[other]:
                    raise PlaceError(
                        f"{name!r}: {self._name(h)} would talk with {self._name(other)}, which would not"
                    )
                elif h < other:
                    one, two = run_both(party, mine[other][h])
                    results[h][other], results[other][h] = one.result, two.result
        for (h, other), result in self._talk_to_all(elsewhere, key).items():
            results[h][other] = result
        return Located(CLIENTS, name, tuple(results[h] for h in self.here), self.roster)

    def _talk_to_all(self, parties: Mapping[Pair, Party[Any]], key: str) -> dict[Pair, Any]:
        """Run parties, by (host here, host in another process)."""
        if not parties:
            return {}
        assert self.link is not None
        link, sent, received = self.link, dict.fromkeys(parties, 0), dict.fromkeys(parties, 0)

        def send(pair: Pair, message: bytes) -> None:
            link.send(pair[1], f"{key}/{sent[pair]}/{pair[0]}>{pair[1]}", message)
            sent[pair] += 1

        def receive(pair: Pair) -> bytes:
            message = link.recv(pair[1], f"{key}/{received[pair]}/{pair[1]}>{pair[0]}")
            received[pair] += 1
            return message

        return run_all(parties, send, receive)

    # ---- the tape ------------------------------------------------------------------------------------------

    def crossing(self, x: Located, z: Located, back: Callable[[Located], Located]) -> Located:
        """Record that `z` was made of `x` by transfers that record nothing themselves, and how the gradient
        comes back: `back` is a program that gets the gradient of z, at the place of z, and gives that of x,
        at the place of x.

        x and z: a floating tensor at each host of their places. Outside `tape` it gives z as it is."""
        if self._tape is None:
            return z
        for part in (*x.parts, *z.parts):
            if not isinstance(part, Tensor):
                raise PlaceError(f"{z.name!r}: a gradient crosses between tensors; got {tell(part)}")
        for part in z.parts:
            part.requires_grad_()
        self._tape.records.append(Crossing(x, z, back))
        return z

    @contextmanager
    def tape(self) -> Iterator[None]:
        """Record the transfers of this block, for one `backward`. After the block what was received is
        constant."""
        if self._tape is not None:
            raise PlaceError("fed.tape() is already recording; close it before opening another")
        self._tape = Tape()
        try:
            yield
        finally:
            self._tape.close()
            self._tape = None

    def backward(self, loss: Located) -> None:
        """Send the gradient of the sum of `loss` (a scalar at every host of its place) back across the
        recorded transfers, once per tape.

        Afterwards the leaves (`as_leaves`) hold their gradients; read them with `gradients`. A transfer whose
        sender wanted a gradient (its tensor requires one) is answered with exactly one, zeros where it was
        not used; like autograd itself this is decided for a whole tensor, so a function must not make it
        depend on the data."""
        tape = self._tape
        if tape is None:
            raise PlaceError(
                "fed.backward(loss) outside fed.tape(): no transfer was recorded; compute the loss inside"
            )
        if tape.spent:
            raise PlaceError(
                "fed.backward(loss) ran already on this tape; add the losses up, or open another fed.tape()"
            )
        tape.spent = True
        pending = Pending()
        for end, part in zip(self._ends(loss), loss.parts, strict=True):
            if part is not ABSENT:
                pending.add(end, part, torch.ones_like(part))
        for record in reversed(tape.records):
            if isinstance(record, Crossing):
                self._go_back(record, pending)
                continue
            for end in dict.fromkeys(to for _, to in record.received):
                pending.flush(end)
            answers = {(to, source): answer(ts, record.wrap) for (source, to), ts in record.received.items()}
            back = [(to, source) for source, to in record.pairs]
            got = self._deliver(answers, back, f"{record.key}/grad")
            for charge in record.answers:
                self.ledger.charge(charge)
            gradients = self._gradients_of(record, got)
            for (source, to), tensors in record.sent.items():
                for tensor, gradient in zip(tensors, gradients[to, source], strict=True):
                    pending.add(source, tensor, gradient)
        pending.flush_all()

    def _gradients_of(self, record: Record, got: Mapping[Pair, Message]) -> dict[Pair, tuple[Tensor, ...]]:
        """The gradients that came back for the tensors that were sent from here."""
        name, gradients = f"{_transfer_of(record.key)}/grad", {}
        for (source, to), tensors in record.sent.items():
            try:
                gradients[to, source] = gradients_for(tensors, got[to, source].payload, record.wrap)
            except WireError as error:
                raise self._refusal(to, name, str(error)) from error
        apart = {p: found for p, found in gradients.items() if self._is_elsewhere(p[0])}
        own = {p: found for p, found in gradients.items() if p not in apart}
        if apart:
            transfer = Transfer(name, "gradients", self._flow, "", grad=False)
            self.received.check_numbers(transfer, apart, own, self.ledger.round)
        return gradients

    def _go_back(self, record: Crossing, pending: Pending) -> None:
        """The gradient of a crossing, by its own way."""
        for end in self._ends(record.z):
            pending.flush(end)
        parts = tuple(_gradient(part) for part in record.z.parts)
        for part in record.z.parts:
            part.grad = None
        sent = record.back(Located(record.z.place, f"gradient of {record.z.name}", parts))
        for end, tensor, part in zip(self._ends(record.x), record.x.parts, sent.parts, strict=True):
            check_rows(part, tensor.shape[0], f"the gradient of {record.x.name!r}", "it has")
            pending.add(end, tensor, part)

    def _ends(self, x: Located) -> Sequence[int]:
        return self.here if x.place == CLIENTS else self.server_ends

    def gradients(self, weights: Located) -> Located:
        """The gradients of leaf weights after `backward`, at the place of the weights (a cohort's: summed
        over its clients). As in PyTorch they add up while the same leaves are used in several passes."""
        parts = tuple(p if p is ABSENT else pay.tree_map(_gradient, p) for p in weights.parts)
        return Located(weights.place, f"gradient of {weights.name}", parts, weights.members)

    # ---- messages ------------------------------------------------------------------------------------------

    def _next_key(self, name: str) -> str:
        """The key of a transfer's messages: alike in every process, because all run the same program. It ends
        with the transfer's name (`_transfer_of`)."""
        self._sequence += 1
        return f"{self.ledger.round}/{self._sequence}/{name}"

    def _deliver(
        self, messages: Mapping[Pair, Message], pairs: Sequence[Pair], key: str
    ) -> dict[Pair, Message]:
        return deliver(
            messages,
            pairs,
            key,
            link=self.link,
            ends=(*self.here, *self.server_ends),
            device=self.device,
            refusal=lambda end, why: self._refusal(end, _transfer_of(key), why),
        )

    def _refusal(self, end: int, name: str, why: str) -> ReceivedError:
        """The error for what another place sent in a transfer; `why` goes on "it sent"."""
        return self.received.refusal(end, name, self.ledger.round, why)

    def _is_elsewhere(self, end: int) -> bool:
        """Whether an end is in another process."""
        return end not in (self.server_ends if end == SERVER_END else self.here)

    def _unpack_all(
        self,
        transfer: Transfer,
        arrived: Mapping[Pair, Message],
        payloads: Mapping[Pair, Any],
        rows: Mapping[Pair, int],
        like: Any,
    ) -> dict[Pair, Any]:
        """The payloads of the messages that were received here; those from other processes are checked."""
        received, apart = {}, {}
        for pair, message in arrived.items():
            if not self._is_elsewhere(pair[0]):
                received[pair] = unpack(message, transfer.wrap)
                continue
            try:
                received[pair] = apart[pair] = unpack_arrived(message, transfer.wrap)
            except WireError as error:
                raise self._refusal(pair[0], transfer.name, str(error)) from error
        if apart:
            self.received.check(transfer, apart, payloads, rows, like, self.ledger.round)
        return received

    def _move(
        self,
        transfer: Transfer,
        payloads: Mapping[Pair, Any],
        pairs: Sequence[Pair],
        rows: Mapping[Pair, int] | None = None,
        like: Any = None,
    ) -> dict[Pair, Any]:
        """Deliver payloads: `payloads` has those sent from here, the result those received here. Records and
        charges. rows, like: what is known of the payloads that come from other processes (see
        `Received.check`)."""
        name, wrap = transfer.name, transfer.wrap
        key, recording = self._next_key(name), transfer.grad and self._tape is not None
        if wrap is not None:
            payloads = {p: pay.densify(x) for p, x in payloads.items()}
        outgoing = {p: pack(x, recording, wrap, name) for p, x in payloads.items()}
        arrived = self._deliver(outgoing, pairs, key)
        received = self._unpack_all(transfer, arrived, payloads, rows or {}, like)
        crossing = arrived or outgoing
        if not crossing:  # nothing of this transfer is seen from here
            return received
        charge = self._one_charge(transfer, crossing)
        self.ledger.charge(charge)
        if recording:
            asked = {p: m.grad for p, m in (*outgoing.items(), *arrived.items()) if any(m.grad)}
            if asked:
                # A gradient weighs what its tensor weighs: as it crossed, if gradients are wrapped too.
                like = pay.floating_leaves(next(iter((received or payloads).values())))
                if wrap is not None and wrap.gradients:
                    like = wrapped_leaves(next(iter(crossing.values())))
                taped = tensors_asked(payloads, asked, name), tensors_asked(received, asked, name)
                answers = self._gradient_charges(transfer, charge, like, asked, pairs)
                for tensors in taped[1].values():
                    for t in tensors:
                        t.requires_grad_()
                assert self._tape is not None
                self._tape.records.append(Record(key, tuple(asked), *taped, answers, wrap))
        return received

    def _gradient_charges(
        self,
        transfer: Transfer,
        charge: Charge,
        like: Sequence[Any],
        asked: Mapping[Pair, tuple[bool, ...]],
        pairs: Sequence[Pair],
    ) -> tuple[Charge, ...]:
        """What the gradients of a transfer will weigh, once they are sent: by group of messages that asked
        alike."""
        charges = []
        for flags in dict.fromkeys(asked.values()):
            ends = [a if a != SERVER_END else b for a, b in pairs if asked.get((a, b)) == flags]
            flow = transfer.flow
            if len(ends) < len(pairs):
                clients = np.zeros(self.num_clients, dtype=bool)
                for h in ends:
                    clients[list(self.hosts[h])] = True
                flow = flow.of(clients)
            wanted = tuple(x for x, flag in zip(like, flags, strict=True) if flag)
            told = wanted[0] if len(wanted) == 1 else wanted
            shape = pay.describe(told, leading=transfer.leading)
            size = pay.unit_bytes(told, leading=transfer.leading)
            dtype = pay.dtype_of(told)
            charges.append(
                Charge(f"{charge.name}/grad", "gradients", dtype, shape, charge.protection, flow.back, size)
            )
        return tuple(charges)

    def _rows_up(self, x: Located, route: Route, transfer: Transfer) -> tuple[Any, ...]:
        """The rows that a route names, of all clients in client order, at the server."""
        name, named = transfer.name, f"route {route.name!r} names"
        self._expect(x, CLIENTS, name)
        self._all_present(name)
        for h, part in zip(self.here, x.parts, strict=True):
            check_rows(part, route.sizes[h], f"transfer {name!r}: {x.name!r}", named)
        rows = {(h, end): route.sizes[h] for h, end in self._up if h in route.sizes}
        got = self._move(transfer, self._from_hosts(x), self._up, rows)
        if not self.server_ends:
            return ()
        for h, end in self._up:
            check_rows(got[h, end], route.sizes[h], f"transfer {name!r}: from {self._name(h)}", named)
        return (pay.concat_rows([got[p] for p in self._up]),)

    def _own_rows(self, x: Located, transfer: Transfer) -> Located:
        """The rows of the clients that take part, one each in client order, at the server."""
        name, sizes = transfer.name, {h: len(self._present_in(h)) for h, _ in self._up}
        payloads = self._from_hosts(x)
        for (h, _), part in payloads.items():
            check_rows(part, sizes[h], f"transfer {name!r}: {x.name!r}", "its clients are")
        got = self._move(transfer, payloads, self._up, {(h, end): sizes[h] for h, end in self._up})
        if not self.server_ends:
            return Located(SERVER, name, ())
        for (h, _), part in got.items():
            check_rows(part, sizes[h], f"transfer {name!r}: from {self._name(h)}", "its clients are")
        return Located(SERVER, name, (pay.concat_rows([got[p] for p in self._up]),))

    def _from_hosts(self, x: Located) -> dict[Pair, Any]:
        return {(h, SERVER_END): p for h, p in zip(self.here, x.parts, strict=True) if self._active[h]}

    def _present_in(self, host: int) -> Tensor:
        """Positions in a host's cohort of its clients that take part."""
        first, last = self.hosts[host][0], self.hosts[host][-1]
        return torch.from_numpy(np.flatnonzero(self.roster[first : last + 1]))

    def _one_charge(self, transfer: Transfer, crossing: Mapping[Pair, Message]) -> Charge:
        """What the messages of a transfer weigh; alike, or the ledger would count one for all."""
        (first, message), *others = crossing.items()
        charge = transfer.charge(message.payload)
        for pair, other in others:
            it = transfer.charge(other.payload)
            if (it.dtype, it.shape) != (charge.dtype, charge.shape):
                ends = [self._name(p[0] if p[0] != SERVER_END else p[1]) for p in (pair, first)]
                raise PlaceError(
                    f"transfer {transfer.name!r}: {ends[0]} sent {it.dtype} {it.shape} where {ends[1]} sent "
                    f"{charge.dtype} {charge.shape}; every message of a transfer is of one kind"
                )
        return charge

    def _total(self, parts: Sequence[Any]) -> tuple[Any]:
        """The sum of the parts in client order."""
        total = parts[0]
        for part in parts[1:]:
            total = pay.add(total, part)
        return (total,)

    def _shares(self, weights: Tensor, name: str) -> np.ndarray | None:
        """p_k of the weighted mean over the roster, [K] float64; None where nobody has a weight."""
        given = weights.detach().cpu().double().numpy()
        if given.shape != (self.num_clients,) or not (given >= 0).all():
            raise PlaceError(
                f"transfer {name!r}: weights must be {self.num_clients} numbers of at least 0, got {weights}"
            )
        given = np.where(self.roster, given, 0.0)
        total = given.sum()
        return given / total if total > 0 else None

    def _expect(self, x: Located, place: str, name: str) -> None:
        check_arguments(place, f"transfer {name!r}", [x])
        if place == CLIENTS:
            self._check_members(x, f"transfer {name!r}")

    def _all_present(self, name: str) -> None:
        if not self._everyone:
            absent = np.flatnonzero(~self.roster).tolist()
            raise PlaceError(
                f"transfer {name!r} needs every client; absent: {absent[:5]} ({len(absent)} in all)"
            )


def _transfer_of(key: str) -> str:
    """The name of the transfer that a key's messages are of."""
    return key.split("/", 2)[2]


def _as_json(fn: Callable[..., dict[str, Any]], *inputs: Any) -> str:
    """The decision of `fn` as text: what every place reads."""
    return json.dumps(fn(*inputs), allow_nan=False)


def _as_report(told: Any) -> str:
    text = json.dumps(told, allow_nan=False)
    if len(text) > MAX_REPORT:
        raise ValueError(f"{len(text)} characters (at most {MAX_REPORT})")
    return text


def _from_json(text: Any, longest: int, what: str) -> Any:
    """The plain JSON that has come as `text` from another place; WireError where it is none."""
    if not isinstance(text, str) or len(text) > longest:
        raise WireError(f"{what} is no text of at most {longest} characters")
    try:
        text.encode()  # half of a surrogate pair has no bytes
        return parse_json(text)
    except ValueError as error:
        raise WireError(f"{what} is not JSON: {type(error).__name__}") from None


def _groups(route: Route) -> tuple[Tensor, int]:
    """Which id each arriving row has, [M], and how many ids there are."""
    assert route.table is not None
    return route.table.index, len(route.table.ids)


_NO_ROWS = torch.zeros(0, dtype=torch.int64)


def _is_some_of(numbers: Any, size: int) -> bool:
    """Whether these are row numbers, some of 0..size - 1, each once and ascending."""
    if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64 or numbers.dim() != 1:
        return False
    if not len(numbers):
        return True
    return int(numbers[0]) >= 0 and int(numbers[-1]) < size and bool((numbers.diff() > 0).all())


def _gradient(x: Any) -> Any:
    if isinstance(x, SparseWeights):
        return x.with_values(_gradient(x.values))
    return torch.zeros_like(x) if x.grad is None else x.grad

"""The federation: run functions at places, and move values between them by named transfers.

`Federation` is what a method's program calls. Each group of its operations has a module in `operations`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from graphfed.crypto.session import Party
from graphfed.errors import PlaceError
from graphfed.federation.ledger import SIMULATED, Ledger
from graphfed.federation.link import Link, Message, Pair
from graphfed.federation.operations import backward, control, routing, transfers, two_party
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.operations.places import Places
from graphfed.federation.operations.running import Place
from graphfed.federation.route import ExchangeIds, ExchangeRoute, Route, RouteTable, RowIds, everyone
from graphfed.federation.transfer import Ideal, Options
from graphfed.federation.values import ABSENT, CLIENTS, SERVER, Located, OfTheProgram, check_arguments
from graphfed.files import JsonObject

__all__ = ["Federation"]

T = TypeVar("T")
Result = TypeVar("Result")
Other = TypeVar("Other")


class Federation(OfTheProgram):
    """One run of K clients and a server, seen from one process.

    The same calls serve every placement: all clients stacked in one cohort, one client at a time, and places
    in processes of their own. A worker is a group of clients stacked in one cohort.

    Transfers move payloads: a tensor, or tensors in dictionaries and tuples. Their keyword arguments are
    `Options`: the name of the transfer, and how it is protected, wrapped and checked.

    Args:
        workers: The ids of the clients of each worker of the run, ascending over all workers.
        here: The workers in this process, ascending (None: all).
        server_here: Whether the server is in this process.
        link: How to reach the other processes (None when everything is here).
        device: Where values live.
        names: What messages call each worker (None: by its clients).
        simulated: Whether secure protocols are simulated: the same numbers and bytes, and nothing hidden.

    Attributes:
        clients, server: The places where functions run (`Place.run`).
        received: The checks of what comes from other processes.
        held: [K] bool, the clients in this process.
        on_message: Called with what a person should know while a program works (see `tell`).
        on_stage: Called with what a program works on (see `begin`).
    """

    def __init__(
        self,
        workers: Sequence[Sequence[int]],
        *,
        here: Sequence[int] | None = None,
        server_here: bool = True,
        link: Link | None = None,
        device: torch.device | str = "cpu",
        names: Sequence[str] | None = None,
        simulated: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self._places = places = Places(workers, here, server_here, names, self.device)
        self.workers, self.here, self.server_participants = (
            places.workers,
            places.here,
            places.server_participants,
        )
        self.num_clients, self.held = places.num_clients, places.held
        self.link = link
        self._simulated = simulated
        self._delivery = Delivery(places, Ledger(self.num_clients), link)
        self.received = self._delivery.received
        self.clients, self.server = Place(CLIENTS, self._delivery), Place(SERVER, self._delivery)
        self.on_message: Callable[[str], None] | None = None
        self.on_stage: Callable[[str], None] | None = None

    # ---- secure protocols ----------------------------------------------------------------------------------

    @property
    def simulated(self) -> bool:
        """Whether secure protocols are simulated: the same numbers and bytes, and nothing hidden."""
        return self._simulated

    def protection_of(self, protocol: str) -> str:
        """Return how the ledger records a protocol that protects as `protocol` says, such as "encrypted"."""
        return SIMULATED if self._simulated else protocol

    # ---- who takes part, and progress ----------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What was sent so far. A run that is resumed goes on with the ledger it had."""
        return self._delivery.ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        self._delivery.ledger = ledger

    @property
    def roster(self) -> np.ndarray:
        """Who takes part, [K] bool."""
        return self._places.roster

    def set_roster(self, present: np.ndarray) -> None:
        """Set who takes part from now on.

        Args:
            present: [K] bool, the same at every place (it came by `control`).

        Raises:
            InputError: When nobody takes part.
        """
        self._places.set_roster(present)

    @contextmanager
    def phase(self, name: str, round: int | None = None) -> Iterator[None]:
        """Record the transfers of this block in a phase (and, from here on, in a round)."""
        if round is not None:
            self.ledger.round = round
        with self.ledger.in_phase(name):
            yield

    def log(self, news: str) -> None:
        """Report to whoever watches this process what is about to take long, or much.

        Args:
            news: What every place knows, never a value of one.
        """
        if self.on_message is not None:
            self.on_message(news)

    def begin(self, stage: str) -> None:
        """Report what the program works on from now on. Whoever watches is shown it where it takes long.

        Args:
            stage: What begins, as in "making the messages of 2708 nodes". Only what every place knows.
        """
        if self.on_stage is not None:
            self.on_stage(stage)

    def observe(self, observer: Callable[[str, Mapping[Pair, Message]], None]) -> None:
        """Watch what is sent: for audits and tests, never for a method.

        Args:
            observer: Called with the name of each transfer and its messages sent from this process, by
                (sender, receiver), before they are delivered.
        """
        self._delivery.observer = observer

    # ---- values --------------------------------------------------------------------------------------------

    def present(self) -> Located[Tensor]:
        """Return which of a cohort's clients take part, at the clients: [K_h] bool."""
        parts = [torch.tensor(self.roster[list(self.workers[h])], device=self.device) for h in self.here]
        return Located(CLIENTS, "present", tuple(parts))

    def client_ids(self) -> Located[Tensor]:
        """Return the ids of a cohort's clients, at the clients: [K_h] int64."""
        ends = [(self.workers[h][0], self.workers[h][-1] + 1) for h in self.here]
        parts = [torch.arange(first, stop, device=self.device) for first, stop in ends]
        return Located(CLIENTS, "client ids", tuple(parts))

    def traffic(self) -> Located[Tensor]:
        """Return how many bytes each client sent and received in set-up and training so far, at the clients:
        [K_h] int64."""
        counted = self.ledger.bytes_of_clients()
        parts = [torch.from_numpy(counted[list(self.workers[h])]).to(self.device) for h in self.here]
        return Located(CLIENTS, "traffic", tuple(parts))

    def locate(self, place: str, name: str, parts: Sequence[T]) -> Located[T]:
        """Make a value that a place has of its own before anything is sent.

        Args:
            place: `CLIENTS` or `SERVER`.
            name: What messages call the value.
            parts: One for each worker of the place in this process.
        """
        ends = self._places.ends(place)
        if place not in (CLIENTS, SERVER) or len(parts) != len(ends):
            raise PlaceError(
                f"{name!r} at {place}: got {len(parts)} parts for the {len(ends)} workers of this process"
            )
        return Located(place, name, tuple(parts))

    def keep_absent(self, new: Located[T], old: Located) -> Located[T]:
        """Return `new` at workers with a client that takes part, and `old` at the others: state that absent
        clients keep."""
        check_arguments(CLIENTS, "keep_absent", (new, old))
        parts = tuple(o if n is ABSENT else n for n, o in zip(new.parts, old.parts, strict=True))
        members = None if new.members is None or old.members is None else new.members | old.members
        return Located(CLIENTS, new.name, parts, members)

    def local_parts(self, value: Located[T]) -> tuple[T, ...]:
        """Return what this process holds of a value: for run folders, runtimes and tests. A method's program
        never looks."""
        return tuple(p for p in value.parts if p is not ABSENT)

    # ---- control -------------------------------------------------------------------------------------------

    def control(
        self, fn: Callable[..., Mapping[str, object]], *arguments: object, name: str = "control"
    ) -> JsonObject:
        """Decide at the server and send the decision to every place, absent clients too.

        The only way for a program to branch on a value.

        Args:
            fn: Returns the decision in plain JSON values. Run at the server.
            arguments: Of `fn`, as in `Place.run`.
            name: The name of the transfer.

        Returns:
            The decision, the same dictionary everywhere.

        Raises:
            StageError: When `fn` returns anything but JSON.
            PlaceError: When the decision is too long to be one.
        """
        return control.decide(self._delivery, self.server, fn, arguments, name)

    def report(self, x: Located, *, name: str) -> Located[list[Any]]:
        """Send plain JSON that each worker says of itself to the server.

        For what must be known before tensors can be sent: versions, names of columns. The ledger counts a
        worker's text at its first client.

        Args:
            x: At the clients, what each worker says.
            name: The name of the transfer.

        Returns:
            A list in the order of the workers, at the server.

        Raises:
            StageError: When something is not JSON, or longer than `control.MAX_REPORT`.
        """
        return control.report(self._delivery, self.clients, x, name)

    # ---- routes --------------------------------------------------------------------------------------------

    def route(self, ids: Located[RowIds], *, name: str, protection: str = "clear") -> Route:
        """Agree which rows travel between the clients and the server.

        A set-up transfer of 8 bytes an id. The server then knows who has which ids, and nothing more.

        Args:
            ids: At the clients, the ids of each worker's rows.
        """
        return routing.agree_on_route(self._delivery, ids, name, protection)

    def table(self, route: Route) -> Located[RouteTable]:
        """Return what the server knows of a route, at the server."""
        return Located(SERVER, f"{route.name} table", (route.table,) * len(self.server_participants))

    def expand_route(
        self, route: Route, at_clients: Located[Tensor], at_server: Located[Tensor], *, name: str
    ) -> Route:
        """Make a route with several rows in the place of each row of another one. Nothing is sent.

        The rows of an id stay together; at the server they are the rows of a table of all ids' rows.

        Args:
            route: The route with one row for each id.
            at_clients: [M_h] int64, how many rows each row of a worker becomes.
            at_server: [U] int64, the same of every id.

        Raises:
            PlaceError: When the two ends expect different rows.
        """
        return routing.expand_route(self._delivery, route, at_clients, at_server, name)

    def exchange_route(
        self, wants: Located[ExchangeIds], *, name: str, protection: str = "clear"
    ) -> ExchangeRoute:
        """Agree which rows travel between clients: every client sends the ids it wants to their owners.

        Costs 8 bytes an id, from client to client. Who asks and who is asked can be seen from the outside.

        Args:
            wants: At the clients, the ids each worker's clients want and hold.

        Raises:
            InputError: When an owner has no such row.
        """
        return routing.agree_on_exchange_route(self._delivery, wants, name, protection)

    def restrict_route(
        self, route: ExchangeRoute, wanted: Located[Tensor], *, name: str, protection: str = "clear"
    ) -> tuple[ExchangeRoute, Located[Tensor]]:
        """Agree on the part of a route that clients want now: they send the ids to their owners again, 8
        bytes each.

        Args:
            route: The whole route.
            wanted: [M_h] bool at the clients, which of their wants.

        Returns:
            The restricted route, on which each worker sends a row for every row it is asked for; and at the
            clients [A_h] int64, which of the rows it holds these are.
        """
        return routing.restrict_route(self._delivery, route, wanted, name, protection)

    def everyone(self) -> ExchangeRoute:
        """Return the route of a row from every client to every other one (see `route.everyone`)."""
        return everyone(self.workers, self.here, self.held)

    # ---- transfers: clients to server ----------------------------------------------------------------------

    def upload(self, x: Located[T], route: Route, **options: Unpack[Options]) -> Located[T]:
        """Send the rows of a route from the clients to the server.

        Args:
            x: [M_h, ...] at each worker, a row for every id of the route.

        Returns:
            [M, ...] at the server, in client order.
        """
        return transfers.upload(self._delivery, x, route, options)

    def gather(self, x: Located[T], **options: Unpack[Options]) -> Located[T]:
        """Gather one value from every client at the server. Every client must be present; use `collect` if
        some may be absent.

        Args:
            x: [K_h, ...] at each worker, a row for each client.

        Returns:
            [K, ...] at the server, in client order.

        Raises:
            PlaceError: If a client is absent, or `x` is not one row for each client.
        """
        return transfers.gather(self._delivery, x, options)

    def collect(self, x: Located[T], **options: Unpack[Options]) -> Located[T]:
        """Gather one value from every client that takes part at the server.

        Args:
            x: [P_h, ...] at each worker, a row for each client that takes part.

        Returns:
            [P, ...] at the server, in client order.
        """
        return transfers.collect(self._delivery, x, options)

    def sum(self, x: Located[T], route: Route | None = None, **options: Unpack[Options]) -> Located[T]:
        """Add up at the server what the clients send. With protection `clear` the server sees each part.

        Args:
            x: With a route, [M_h, ...] rows at each worker: rows of the same id are added. Without one, each
                worker's total over its clients that take part, of one shape everywhere; the ledger counts a
                part for every client.
            route: Which ids the rows have.

        Returns:
            At the server, [U, ...] in the order of the route's table, or the total.

        Raises:
            PlaceError: For a wrapper without a route: a stacked cohort has no parts to wrap, only their
                total.
        """
        return transfers.add(self._delivery, x, route, options)

    def max(self, x: Located[T], route: Route, **options: Unpack[Options]) -> Located[T]:
        """Take the elementwise maximum of the rows of the same id at the server.

        The gradient goes to the row that won; of equal rows to that of the client with the lowest id. The
        server sees each row; `secure.maximum.secure_max` shows it the maximum only.

        Args:
            x: [M_h, H] at each worker, a row for every id of the route.

        Returns:
            [U, H] at the server, in the order of the route's table.
        """
        return transfers.maximum(self._delivery, x, route, options)

    def average(
        self,
        x: Located,
        weights: Located,
        *,
        otherwise: Located | None = None,
        **options: Unpack[Options],
    ) -> Located:
        """Average at the server what the clients send: sum_k p_k x_k, p_k = weights_k / sum over the roster.

        With protection `clear` the server sees each part. Across a link or under a wrapper sparse weights are
        sent in full, client by client.

        Args:
            x: Each client's own value: [K_h, ...] tensors or `SparseWeights` at each worker.
            weights: [K] at the server, constants. A client of weight 0 does not count.
            otherwise: The result, at the server, where all that take part have weight 0.

        Returns:
            The mean at the server.

        Raises:
            InputError: When all have weight 0 and there is no `otherwise`.
        """
        return transfers.average(self._delivery, x, weights, otherwise, options)

    # ---- transfers: server to clients, and between clients -------------------------------------------------

    def broadcast(self, x: Located[T], **options: Unpack[Options]) -> Located[T]:
        """Send the same payload from the server to every client that takes part.

        Raises:
            PlaceError: For a wrapper around gradients: these are the sums over the clients of each worker.
        """
        return transfers.broadcast(self._delivery, x, options)

    def scatter(self, x: Located[T], route: Route | None = None, **options: Unpack[Options]) -> Located[T]:
        """Send each client its own rows from the server.

        Args:
            x: At the server, [P, ...] with a row for each client that takes part, in client order. With a
                route, [M, ...]: row m goes to the client that sends row m of an upload.
            route: The route whose rows are returned.

        Returns:
            At each worker [P_h, ...], or [M_h, ...] with a route.
        """
        return transfers.scatter(self._delivery, x, route, options)

    def download(
        self, x: Located[T], route: Route, *, ideal: Ideal | None = None, **options: Unpack[Options]
    ) -> Located[T]:
        """Send row u at the server to every client whose route names id u.

        Args:
            x: [U, ...] at the server, in the order of the route's table.
            ideal: What the ledger counts in the place of a simulated download, as `simulated`.

        Returns:
            [M_h, ...] at each worker, a row for every id of the route.

        Raises:
            PlaceError: For a simulated download where a place is in another process, which would see what it
                must not.
        """
        return transfers.download(self._delivery, x, route, ideal, options)

    def exchange(self, x: Located[T], route: ExchangeRoute, **options: Unpack[Options]) -> Located[T]:
        """Send rows from client to client.

        Args:
            x: [N_h, ...] at each worker, the rows it holds.

        Returns:
            [M_h, ...] at each worker, in the order of its clients' wants.
        """
        return transfers.exchange(self._delivery, x, route, options)

    # ---- two-party protocols -------------------------------------------------------------------------------

    def run_protocol(
        self,
        at_server: Located[Party[Result]],
        at_clients: Located[Party[Other]],
        *,
        name: str,
        protection: str,
    ) -> tuple[Located[Result], Located[Other | None]]:
        """Run a two-party protocol between the server and the first client.

        The ledger counts the protocol's messages each way, or what a simulated one declares.

        Args:
            at_server, at_clients: The two parties, as functions run there return them; those of other workers
                are not used.

        Returns:
            The results at the server and at the clients (None at the workers of other clients).
        """
        return two_party.run_with_first_client(self._delivery, at_server, at_clients, name, protection)

    def run_worker_protocols(
        self, at_clients: Located[dict[int, Party[Result]]], *, name: str
    ) -> Located[dict[int, Result]]:
        """Run two-party protocols between workers of clients, all at the same time.

        The ledger counts nothing here: many pairs of clients may share a message, so the caller records what
        the protocols' own messages weigh.

        Args:
            at_clients: {the other worker: the party} at each worker; each of the two workers has a party
            for the
                other.

        Returns:
            {the other worker: the party's result} at each worker.
        """
        return two_party.run_between_workers(self._delivery, at_clients, name)

    # ---- gradients -----------------------------------------------------------------------------------------

    def tape(self) -> AbstractContextManager[None]:
        """Record the transfers of a block, for one `backward`. After the block what was received is
        constant."""
        return backward.open_tape(self._delivery)

    def custom_backward(
        self,
        x: Located[Tensor],
        z: Located[Tensor],
        back: Callable[[Located[Tensor]], Located[Tensor]],
    ) -> Located[Tensor]:
        """Record that `z` was made from `x` by transfers that record nothing themselves.

        Args:
            x, z: A floating tensor at each worker of their places.
            back: The program that brings gradients back: it gets that of z, at the place of z, and returns
                that of x, at the place of x.

        Returns:
            z, as it is outside `tape`.
        """
        return backward.custom_backward(self._delivery, x, z, back)

    def backward(self, loss: Located[Tensor]) -> None:
        """Send the gradient of the sum of `loss` back over the recorded transfers, once for each tape.

        Afterwards the leaves (`functions.as_leaves`) hold their gradients; read them with `gradients`. A
        transfer whose sender wanted a gradient (its tensor requires one) is answered with exactly one, zeros
        where it was not used. Like autograd itself this is decided for a whole tensor, so a function must not
        make it depend on the data.

        Args:
            loss: A scalar at every worker of its place.

        Raises:
            PlaceError: Outside `tape`, or for the second time on one tape.
        """
        backward.run_backward(self._delivery, loss)

    def gradients(self, weights: Located[T]) -> Located[T]:
        """Return the gradients of leaf weights after `backward`, at the place of the weights.

        Those of a cohort are summed over its clients. As in PyTorch they add up while the same leaves are
        used in several passes.
        """
        return backward.collect_gradients(weights)

"""The federation: run functions at places, and move values between places by named transfers.

A method's program calls `Federation`. Each group of its operations has a module in `operations`.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar, Unpack

from torch import Tensor

from graphfed.crypto.session import Party
from graphfed.federation.ledger import Flow
from graphfed.federation.operations import backward, control, routing, transfers, two_party
from graphfed.federation.operations.process_view import ProcessView
from graphfed.federation.route import ExchangeIds, ExchangeRoute, Route, RouteTable, RowIds, everyone
from graphfed.federation.transfer import Ideal, Options
from graphfed.federation.values import SERVER, Located
from graphfed.files import JsonObject

T = TypeVar("T")
Result = TypeVar("Result")
Other = TypeVar("Other")


class Federation(ProcessView):
    """One run of K clients and a server, as one process sees it.

    A place is the clients or the server. A worker is a group of clients that are computed together, stacked
    in one cohort. The same program runs in every placement: all clients in one worker, one worker for each
    client, and workers and server in processes of their own. Shapes at the clients carry the index h of a
    worker: K_h clients, P_h clients that take part in the round, M_h rows.

    Transfers send payloads: a tensor, or tensors in dictionaries and tuples. Their keyword arguments are
    `transfer.Options`: the name of the transfer, and how it is protected, wrapped and checked.

    Args:
        workers: The ids of the clients of each worker of the run, ascending over all workers.
        here: The indices of the workers in this process, ascending (None: all).
        server_here: Whether the server is in this process.
        link: How to reach the other processes (None if everything is here).
        device: The torch device of the values.
        names: What messages call each worker (None: by its clients).
        simulated: Whether secure protocols are simulated: the results and bytes are the same, but nothing is
            hidden.

    Attributes:
        clients, server: The places where functions run (`Place.run`).
        server_is_here: Whether the server is in this process.
        received: The checks of what other processes send.
        held: [K] bool, the clients in this process.
        on_message: Called with each progress message (see `log`).
        on_stage: Called when a stage of the program begins (see `begin`).
    """

    # ---- control -------------------------------------------------------------------------------------------

    def control(
        self,
        fn: Callable[..., Mapping[str, object]],
        *arguments: object,
        name: str = "control",
        values: control.Values | None = None,
        accept: Callable[[JsonObject], str] | None = None,
    ) -> JsonObject:
        """Decide at the server, and send the decision to every participant, absent clients too.

        A program may branch on a value in no other way.

        Args:
            fn: Returns the decision as plain JSON values. Runs at the server.
            arguments: The arguments of `fn`, as in `Place.run`.
            name: The name of the transfer, as ledger and messages show it.
            values: The names of the decision's values and their types, which a client checks if the server is
                in another process. An int is at least 0. None: anything.
            accept: This decision's own rule for what another process sends. It returns what is wrong, as a
                continuation of "it sent", or an empty string.

        Returns:
            The decision, the same dictionary in every process.

        Raises:
            ReceivedError: If the server, in another process, sent another decision than `values` and `accept`
                allow.
            StageError: If `fn` fails, or returns anything but JSON.
            PlaceError: If the decision is longer than `control.MAX_CONTROL` characters and one for each
                client.
        """
        return control.decide(self._delivery, self.server, fn, arguments, name, values, accept)

    def report(self, x: Located, *, name: str) -> Located[list[Any]]:
        """Send plain JSON from each worker to the server.

        For what must be known before tensors can be sent, such as versions and names of columns. The ledger
        counts a worker's text at its first client.

        Args:
            x: At the clients, the content that each worker reports.
            name: The name of the transfer, as ledger and messages show it.

        Returns:
            At the server, a list in the order of the workers.

        Raises:
            StageError: If something is not JSON, or longer than `control.MAX_REPORT`.
            PlaceError: If a client is absent.
            WireError: If another process sent something that is not a report.
        """
        return control.report(self._delivery, self.clients, x, name)

    # ---- routes --------------------------------------------------------------------------------------------

    def route(self, ids: Located[RowIds], *, name: str, protection: str = "plaintext") -> Route:
        """Agree on the rows that are sent between the clients and the server.

        The clients send their ids to the server, 8 bytes each. The server then knows which client has which
        ids.

        Args:
            ids: At the clients, the ids of each worker's rows.
            name: The name of the transfer, and of the route in messages.
            protection: How the ledger records the transfer.

        Returns:
            The route.

        Raises:
            PlaceError: If a client is absent, or the rows do not name the clients of their worker.
            ReceivedError: If another process sent ids that do not fit its clients.
        """
        return routing.agree_on_route(self._delivery, ids, name, protection)

    def table(self, route: Route) -> Located[RouteTable]:
        """Return the server's table of a route.

        Args:
            route: A route between the clients and the server.

        Returns:
            The table at the server.
        """
        return Located(SERVER, f"{route.name} table", (route.table,) * self.server_is_here)

    def expand_route(
        self, route: Route, at_clients: Located[Tensor], at_server: Located[Tensor], *, name: str
    ) -> Route:
        """Make a route with several rows in the place of each row of another route. Nothing is sent.

        The rows of an id stay together. At the server they are rows of a table of all rows of all ids.

        Args:
            route: The route with one row for each id.
            at_clients: [M_h] int64, the number of rows that each row of a worker becomes.
            at_server: [U] int64, the same for every id.
            name: What error messages call the expanded route.

        Returns:
            The expanded route.

        Raises:
            PlaceError: If the numbers do not fit the route, or clients and server expect different numbers of
                rows.
        """
        return routing.expand_route(self._delivery, route, at_clients, at_server, name)

    def expand_flow(self, route: Route, at_clients: Located[Tensor], *, name: str) -> Flow:
        """Return the flow of `expand_route` without its table, for a simulated transfer. Nothing is sent.

        Args:
            route: The route with one row for each id.
            at_clients: [M_h] int64, the number of rows that each row of a worker becomes.
            name: What error messages call the expanded route.

        Returns:
            The flow, towards the server.

        Raises:
            PlaceError: If the numbers do not fit the route.
        """
        return routing.expand_flow(self._delivery, route, at_clients, name)

    def exchange_route(
        self, wants: Located[ExchangeIds], *, name: str, protection: str = "plaintext"
    ) -> ExchangeRoute:
        """Agree on the rows that clients send each other.

        Every client sends the ids that it wants to their owners.

        It costs 8 bytes for each id. An observer of the network sees which client asks which.

        Args:
            wants: At the clients, the ids that each worker's clients want, and those that they hold.
            name: The name of the transfer, and of the route in messages.
            protection: How the ledger records the transfer.

        Returns:
            The route.

        Raises:
            InputError: If an owner has no such row.
            PlaceError: If a client is absent, or a worker's wants are out of range or of a client's own rows.
            ReceivedError: If another process asks for its rows in the name of other clients.
        """
        return routing.agree_on_exchange_route(self._delivery, wants, name, protection)

    def restrict_route(
        self, route: ExchangeRoute, wanted: Located[Tensor], *, name: str, protection: str = "plaintext"
    ) -> tuple[ExchangeRoute, Located[Tensor]]:
        """Agree on the part of a route that clients want now.

        The clients send the ids to their owners again, 8 bytes each.

        Args:
            route: The whole route, as `exchange_route` agreed on it.
            wanted: [M_h] bool at the clients, which of their wanted rows.
            name: The name of the transfer, and of the restricted route.
            protection: How the ledger records the transfer.

        Returns:
            The restricted route, on which each worker sends a row for every row that it is asked for; and at
            the clients [A_h] int64, which of the rows of the worker's cohort these are.

        Raises:
            PlaceError: If a client is absent.
            ReceivedError: If another process asks for rows that are not on the route.
        """
        return routing.restrict_route(self._delivery, route, wanted, name, protection)

    def everyone(self) -> ExchangeRoute:
        """Return the route of one row from every client to every other client (see `route.everyone`).

        Returns:
            The route.
        """
        return everyone(self.workers, self.here, self.held)

    # ---- transfers: clients to server ----------------------------------------------------------------------

    def upload(self, x: Located[T], route: Route, **options: Unpack[Options]) -> Located[T]:
        """Send the rows of a route from the clients to the server.

        Args:
            x: [M_h, ...] at each worker, a row for every id of the route.
            route: The route that names the ids of the rows.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            [M, ...] at the server, in client order.

        Raises:
            PlaceError: If a client is absent, or `x` does not have the rows of the route.
        """
        return transfers.upload(self._delivery, x, route, options)

    def gather(self, x: Located[T], **options: Unpack[Options]) -> Located[T]:
        """Gather one value from every client at the server.

        Every client must be present; use `collect` if some may be absent.

        Args:
            x: [K_h, ...] at each worker, a row for each client.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            [K, ...] at the server, in client order.

        Raises:
            PlaceError: If a client is absent, or `x` is not one row for each client.
        """
        return transfers.gather(self._delivery, x, options)

    def collect(self, x: Located[T], **options: Unpack[Options]) -> Located[T]:
        """Gather one value from every client that takes part, at the server.

        Args:
            x: [P_h, ...] at each worker, a row for each client that takes part.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            [P, ...] at the server, in client order.

        Raises:
            PlaceError: If `x` is not one row for each client that takes part.
        """
        return transfers.collect(self._delivery, x, options)

    def sum(self, x: Located[T], route: Route | None = None, **options: Unpack[Options]) -> Located[T]:
        """Add up at the server what the clients send. With protection `plaintext` the server sees each part.

        Args:
            x: With a route, [M_h, ...] rows at each worker; rows of the same id are added. Without one, each
                worker's total over its clients that take part, of the same shape at every worker; the ledger
                counts a part for every client.
            route: The ids of the rows. None: the workers' totals are added.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            At the server, [U, ...] in the order of the route's table, or the total.

        Raises:
            PlaceError: For rows that do not fit the route. For a wrapper without a route: a worker sends the
                total of its clients, which cannot be wrapped client by client.
        """
        return transfers.add(self._delivery, x, route, options)

    def max(self, x: Located[T], route: Route, **options: Unpack[Options]) -> Located[T]:
        """Take the elementwise maximum of the rows of the same id, at the server.

        The gradient goes to the row with the maximum; of equal rows to that of the client with the lowest id.
        The server sees each row; `secure.maximum.protected_max` shows it only the maximum.

        Args:
            x: [M_h, H] at each worker, a row for every id of the route.
            route: The route that names the ids of the rows.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            [U, H] at the server, in the order of the route's table.

        Raises:
            PlaceError: If a client is absent, or `x` does not have the rows of the route.
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
        """Average at the server what the clients send.

        The result is sum_k p_k x_k with p_k = weights_k / (sum of the weights over the roster). With
        protection `plaintext` the server sees each part. Sparse weights are sent in full, client by
        client, if there is a link or a wrapper.

        Args:
            x: Each client's value: [K_h, ...] tensors or `SparseWeights` at each worker.
            weights: [K] at the server, constants. A client of weight 0 does not count.
            otherwise: At the server, the result if all clients that take part have weight 0.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            The mean at the server.

        Raises:
            InputError: If all have weight 0 and there is no `otherwise`.
            PlaceError: If the weights are not K numbers of at least 0.
        """
        return transfers.average(self._delivery, x, weights, otherwise, options)

    # ---- transfers: server to clients, and between clients -------------------------------------------------

    def broadcast(self, x: Located[T], **options: Unpack[Options]) -> Located[T]:
        """Send the same payload from the server to every client that takes part.

        Args:
            x: Tensors of any shape at the server.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            The payload at each worker.

        Raises:
            PlaceError: For a wrapper of gradients: the gradients sent back are sums over the clients of each
                worker.
        """
        return transfers.broadcast(self._delivery, x, options)

    def scatter(self, x: Located[T], route: Route | None = None, **options: Unpack[Options]) -> Located[T]:
        """Send each client its rows from the server.

        Args:
            x: At the server, [P, ...] with a row for each client that takes part, in client order. With a
                route, [M, ...]: row m goes to the client that sends row m of an upload.
            route: The route whose rows are returned.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            At each worker [P_h, ...], or [M_h, ...] with a route.

        Raises:
            PlaceError: If `x` has another number of rows, or a client of the route is absent.
        """
        return transfers.scatter(self._delivery, x, route, options)

    def download(self, x: Located[T], route: Route, **options: Unpack[Options]) -> Located[T]:
        """Send row u at the server to every client whose route names id u.

        Args:
            x: [U, ...] at the server, in the order of the route's table.
            route: The route that names the ids of each worker's rows.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            [M_h, ...] at each worker, a row for every id of the route.

        Raises:
            PlaceError: If a client is absent, or `x` has another number of rows.
        """
        return transfers.download(self._delivery, x, route, options)

    def simulate_download(self, x: Located[T], ideal: Ideal, **options: Unpack[Options]) -> Located[T]:
        """Show every worker a payload of the server, in place of a download that it stands for.

        Args:
            x: Tensors of any shape at the server.
            ideal: What the ledger counts, recorded as `simulated`.
            options: How the transfer is recorded (`Options`).

        Returns:
            The payload at each worker.

        Raises:
            PlaceError: If a client is in another process, which would see what it must not see, or is absent.
        """
        return transfers.simulate_download(self._delivery, x, ideal, options)

    def exchange(self, x: Located[T], route: ExchangeRoute, **options: Unpack[Options]) -> Located[T]:
        """Send rows from client to client.

        Args:
            x: [N_h, ...] at each worker, the rows that it holds.
            route: The route, which says which rows go to which client.
            options: How the transfer is protected and recorded (`Options`).

        Returns:
            [M_h, ...] at each worker, in the order of its clients' wants.

        Raises:
            PlaceError: If a client is absent.
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

        The ledger counts the protocol's messages in both directions, or the bytes that a simulated protocol
        declares.

        Args:
            at_server, at_clients: The two parties, as functions run there return them. The parties of other
                workers are not used.
            name: The name of the transfer, as ledger and messages show it.
            protection: How the ledger records the transfer.

        Returns:
            The results at the server and at the clients (None at the workers of other clients).

        Raises:
            PlaceError: If a client is absent.
            ProtocolError: If a message does not fit the protocol.
        """
        return two_party.run_with_first_client(self._delivery, at_server, at_clients, name, protection)

    def run_worker_protocols(
        self, at_clients: Located[dict[int, Party[Result]]], *, name: str
    ) -> Located[dict[int, Result]]:
        """Run two-party protocols between workers, all at the same time.

        The ledger counts nothing here: many pairs of clients may share a message, so the caller records the
        bytes.

        Args:
            at_clients: {the other worker: the party} at each worker. Both workers have a party for each
                other.
            name: The name of the transfer, as messages show it.

        Returns:
            {the other worker: the result of the party} at each worker.

        Raises:
            PlaceError: If a client is absent, or a worker has no party for another that has one for it.
            ProtocolError: If a message does not fit the protocol.
        """
        return two_party.run_between_workers(self._delivery, at_clients, name)

    # ---- gradients -----------------------------------------------------------------------------------------

    def tape(self) -> AbstractContextManager[None]:
        """Record the transfers of a block, for one `backward`.

        After the block, the received values are constant.

        Returns:
            The block, as a context manager.

        Raises:
            PlaceError: If a tape is open already.
        """
        return backward.open_tape(self._delivery)

    def custom_backward(
        self,
        x: Located[Tensor],
        z: Located[Tensor],
        back: Callable[[Located[Tensor]], Located[Tensor]],
    ) -> Located[Tensor]:
        """Record that `z` was computed from `x` by transfers that record nothing themselves.

        Args:
            x, z: A floating tensor at each participant of their places.
            back: The program that computes the gradient of x from that of z. It gets the gradient at the
                place of z and returns one at the place of x.

        Returns:
            z. While a tape is open its tensors become leaves, which collect its gradient.

        Raises:
            PlaceError: If a part of `x` or `z` is not a tensor.
        """
        return backward.custom_backward(self._delivery, x, z, back)

    def backward(self, loss: Located[Tensor]) -> None:
        """Send the gradient of the sum of `loss` back over the recorded transfers, once for each tape.

        Afterwards the leaves (`functions.as_leaves`) hold their gradients; read them with `gradients`. A
        transfer whose sender wants a gradient (its tensor requires one) is answered with exactly one, zeros
        if it was not used. As in autograd, this is decided for a whole tensor, so a function must not make it
        depend on the data.

        Args:
            loss: A scalar at every participant of its place.

        Raises:
            PlaceError: Outside `tape`, or for the second time on one tape.
            ReceivedError: For a gradient from another process that cannot be used.
        """
        backward.run_backward(self._delivery, loss)

    def gradients(self, weights: Located[T]) -> Located[T]:
        """Return the gradients of leaf weights after `backward`, at the place of the weights.

        The gradients of a cohort are summed over its clients. As in PyTorch, they add up while the same
        leaves are used in several passes.

        Args:
            weights: A payload whose tensors `functions.as_leaves` made leaves.

        Returns:
            The gradients, in the form of the weights; zeros for leaves that were not used.
        """
        return backward.collect_gradients(weights)

"""Running functions at a place, on the content of values that live there."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

from graphfed.errors import GraphfedError, InputError, PlaceError
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.transfer import describe_value
from graphfed.federation.values import (
    ABSENT,
    CLIENTS,
    Located,
    ProgramObject,
    check_arguments,
    check_function,
    versions,
)

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class StageError(GraphfedError):
    """A function that runs at a place failed. The message says where, in which stage and with what inputs."""


class Place(ProgramObject):
    """A place at which functions run: ``fed.clients`` or ``fed.server``."""

    def __init__(self, name: str, delivery: Delivery) -> None:
        self.name, self._delivery = name, delivery

    @overload
    def run(self, fn: Callable[..., A], *arguments: object, outputs: Literal[1] = 1) -> Located[A]: ...

    @overload
    def run(
        self, fn: Callable[..., tuple[A, B]], *arguments: object, outputs: Literal[2]
    ) -> tuple[Located[A], Located[B]]: ...

    @overload
    def run(
        self, fn: Callable[..., tuple[A, B, C]], *arguments: object, outputs: Literal[3]
    ) -> tuple[Located[A], Located[B], Located[C]]: ...

    @overload
    def run(
        self, fn: Callable[..., tuple[A, B, C, D]], *arguments: object, outputs: Literal[4]
    ) -> tuple[Located[A], Located[B], Located[C], Located[D]]: ...

    @overload
    def run(self, fn: Callable[..., tuple[Any, ...]], *arguments: object, outputs: int) -> Any: ...

    def run(self, fn: Callable[..., Any], *arguments: object, outputs: int = 1) -> Any:
        """Run a function at this place, once for each participant of the place in this process.

        A function at the clients gets the whole cohort of a worker and never loops over clients.

        Args:
            fn: The function. It carries no data and never writes into its arguments.
            arguments: Its arguments, in order. For a located value, which must live here, it gets the
                content.
            outputs: How many located values to return. If more than 1, `fn` returns a tuple of that many.

        Returns:
            What `fn` returned, which stays at this place: one located value, or a tuple of `outputs`.

        Raises:
            PlaceError: For a value from another place, or a function that carries or writes into data.
            StageError: If `fn` fails. The message names participant, stage and inputs.
        """
        places, stage = self._delivery.places, getattr(fn, "__name__", repr(fn))
        # All checks come before the first participant runs, so that a mistake changes nothing.
        check_function(fn)
        check_arguments(self.name, stage, arguments)
        at_clients = self.name == CLIENTS
        if at_clients:
            for argument in arguments:
                if isinstance(argument, Located):
                    places.check_members(argument, stage)
        results: list[Any] = []
        for position, participant in enumerate(places.participants_at(self.name)):
            if at_clients and not places.is_active(participant):
                # No client of this worker takes part, so there is nothing to compute.
                results.append(ABSENT if outputs == 1 else (ABSENT,) * outputs)
                continue
            inputs = [a.parts[position] if isinstance(a, Located) else a for a in arguments]
            results.append(self._call(fn, stage, participant, inputs, outputs))
        members = places.roster if at_clients else None
        if outputs == 1:
            return Located(self.name, stage, tuple(results), members)
        by_output = [tuple([r[i] for r in results]) for i in range(outputs)]
        return tuple([Located(self.name, f"{stage}[{i}]", p, members) for i, p in enumerate(by_output)])

    def _call(
        self, fn: Callable[..., object], stage: str, participant: int, inputs: Sequence[object], outputs: int
    ) -> object:
        """Run `fn` for one participant, and check its result."""
        # torch counts in-place writes of a tensor; a function must not change the counts.
        before = versions(inputs)
        try:
            result = fn(*inputs)
            for tensor, count in before:
                if tensor._version != count:
                    raise PlaceError(
                        f"{stage} wrote into one of its arguments at {self.name}: in one process the value "
                        "is shared with its sender; work on a copy (x.clone())"
                    )
            if outputs > 1 and (not isinstance(result, tuple) or len(result) != outputs):
                raise TypeError(f"returned {describe_value(result)} where a tuple of {outputs} is expected")
        # These two explain themselves; any other error gets the participant, the stage and the inputs.
        except (InputError, PlaceError):
            raise
        except Exception as error:
            ledger, shown = self._delivery.ledger, ", ".join(describe_value(x) for x in inputs)
            name = self._delivery.places.name_of(participant)
            raise StageError(
                f"{name} failed in {stage!r} (phase {ledger.phase}, round {ledger.round}): "
                f"{type(error).__name__}: {error}; inputs: {shown}"
            ) from error
        return result

"""What has come from other processes is checked here, once, before anything is computed with it.

A place trusts its own process and nobody else's. Of every payload it checks that it is one (tensors in the
structure, dtype and shape that the transfer has, as many rows as were agreed) and that its numbers can be
computed with. A transfer may bring a rule of its own (`Transfer.accept`): no count is above what the client
declared when it joined. The refusal names the place that sent the payload, and the transfer. What nobody can
tell from the numbers, as an update that is plausible and wrong, passes (docs/security.md).

Numbers that are not finite are not always somebody's fault: training that diverges ends in them, at all
clients at once. So numbers that are not finite, or too large to compute with, are refused where others'
numbers in the same transfer are far smaller, and pass where nobody's are: then the run itself finds that it
has diverged."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.errors import GraphfedError
from graphfed.federation.ledger import Shape
from graphfed.federation.link import SERVER_INDEX, Pair
from graphfed.federation.payload import Leaf, Payload
from graphfed.federation.transfer import Transfer, describe_value
from graphfed.nn.sparse import SparseMatrix

__all__ = ["Received", "ReceivedError", "magnitude"]

#: How many times larger than others' numbers are, when they are no longer the same kind of numbers.
FAR = 1000.0

#: What messages of one transfer have in common: structure and shapes, and the dtype of each leaf.
Form = tuple[Shape, tuple[str, ...]]


class ReceivedError(GraphfedError):
    """What another place sent cannot be used. The message names the place, the transfer and what is wrong."""


@dataclass
class Received:
    """The checks of one process. name_of: what an end is called; declared: by part of the split ("train",
    "val", "test"), how many nodes each client has said that it has, [K], where that was asked for; workers:
    the clients of each.

    notes: by transfer, whose numbers have been far from everybody else's: nothing to refuse, and where to
    look once training has diverged."""

    name_of: Callable[[int], str]
    workers: Sequence[Sequence[int]]
    declared: dict[str, np.ndarray] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def check(
        self,
        transfer: Transfer,
        arrived: Mapping[Pair, Payload],
        own: Mapping[Pair, Payload],
        rows: Mapping[Pair, int],
        like: Payload | None,
        round_number: int,
    ) -> None:
        """Check the payloads of a transfer that came from other processes.

        Args:
            transfer: the transfer.
            arrived: the payloads, out of their wrappers, by (sender, receiver).
            own: payloads of the same transfer that this process made itself: they are right.
            rows: how many rows a payload must have, where that was agreed.
            like: what one row, or one client's part, looks like; None where only the senders know it.
            round_number: for messages.

        Raises:
            ReceivedError: for the first payload that cannot be used.
        """
        self._check_form(transfer, arrived, own, like, round_number)
        for pair, payload in arrived.items():
            if pair in rows:
                self._check_rows(transfer, pair, payload, rows[pair], round_number)
        self.check_numbers(transfer, arrived, own, round_number)
        if transfer.accept is not None:
            for pair, payload in arrived.items():
                if why := transfer.accept(payload, self._declared_by(pair[0])):
                    raise self.refusal(pair[0], transfer.name, round_number, why)

    def refusal(self, end: int, transfer: str, round_number: int, why: str) -> ReceivedError:
        """The error for what `end` sent: `why` goes on "it sent", as in "3 rows where 5 are expected"."""
        name = self.name_of(end)
        return ReceivedError(
            f"{name} sent {why} (transfer {transfer!r}, round {round_number}); the run cannot go on with it: "
            f"look at the program and the data of {name}"
        )

    def _declared_by(self, end: int) -> dict[str, np.ndarray]:
        if end == SERVER_INDEX:
            return {}
        return {part: counts[list(self.workers[end])] for part, counts in self.declared.items()}

    def _check_form(
        self,
        transfer: Transfer,
        arrived: Mapping[Pair, Payload],
        own: Mapping[Pair, Payload],
        like: Payload | None,
        round_number: int,
    ) -> None:
        """Structure, dtypes, and the shape of a row or of a client's part."""
        forms = {pair: _form(payload, transfer.leading) for pair, payload in arrived.items()}
        if like is not None:
            right = _form(like, leading=False)
        elif own:
            right = _form(next(iter(own.values())), transfer.leading)
        else:
            kinds = list(forms.values())
            right = max(kinds, key=kinds.count)
            if len(kinds) > 1 and 2 * kinds.count(right) <= len(kinds):
                told = ", ".join(f"{self.name_of(pair[0])} {_words(form)}" for pair, form in forms.items())
                raise ReceivedError(
                    f"the messages of transfer {transfer.name!r}, round {round_number}, must be alike, and "
                    f"are not: {told[:2000]}; at least one of these places is wrong, and which one cannot be "
                    "told from here"
                )
        for (source, _), form in forms.items():
            if form != right:
                why = f"{_words(form)} where {_words(right)} is expected"
                raise self.refusal(source, transfer.name, round_number, why)

    def _check_rows(
        self, transfer: Transfer, pair: Pair, payload: Payload, expected: int, round_number: int
    ) -> None:
        # Only averages are of several tensors with a row for each client; all others are rows.
        for leaf in pay.leaves(payload) if transfer.kind == "average" else [payload]:
            if not isinstance(leaf, Tensor | SparseMatrix) or leaf.shape[:1] != (expected,):
                why = f"{describe_value(leaf)} where {expected} rows are expected"
                raise self.refusal(pair[0], transfer.name, round_number, why)

    def check_numbers(
        self,
        transfer: Transfer,
        arrived: Mapping[Pair, Payload],
        own: Mapping[Pair, Payload],
        round_number: int,
    ) -> None:
        """The part of `check` that looks at the size of numbers."""
        if not transfer.finite:
            return
        neutral = -math.inf if transfer.kind == "max" else None
        found = {pair: magnitude(payload, neutral) for pair, payload in {**own, **arrived}.items()}
        sizes = {pair: size for pair, size in found.items() if size is not None}
        wrong = [pair for pair in arrived if pair in sizes and not sizes[pair] <= 1]
        # Numbers that have grown at everybody reach the limit at one of them first.
        if wrong and not any(size <= 1 / FAR for size in sizes.values()):
            self.notes[transfer.name] = (
                f"in transfer {transfer.name!r} of round {round_number} nobody's numbers were small enough "
                "to compute with"
            )
        elif wrong:
            finite = all(np.isfinite(sizes[pair]) for pair in wrong)
            kind = "numbers too large to compute with" if finite else "numbers that are not finite"
            names = ", ".join(self.name_of(source) for source, _ in wrong[:5])
            raise ReceivedError(
                f"{names} sent {kind} (transfer {transfer.name!r}, round {round_number}), and others did "
                "not; the run cannot go on with them: look at the scale of the data and at the program of "
                f"{names}, or, if training diverges there first, use a smaller learning rate"
            )
        else:
            self._note_far(transfer, {pair: sizes[pair] for pair in arrived if pair in sizes}, round_number)

    def _note_far(self, transfer: Transfer, sizes: Mapping[Pair, float], round_number: int) -> None:
        """Remember who sent by far the largest numbers."""
        if len(sizes) < 2:
            return
        pair = max(sizes, key=lambda pair: sizes[pair])
        others = max(size for other, size in sizes.items() if other != pair)
        if sizes[pair] > FAR * others:
            times = f"{sizes[pair] / others:.1g} times as large as" if others else "not 0, unlike"
            self.notes[transfer.name] = (
                f"in transfer {transfer.name!r} of round {round_number} the numbers of "
                f"{self.name_of(pair[0])} were {times} everybody else's"
            )


#: The largest float32 whose square is one too, and float64.
_LARGEST = {dtype: torch.finfo(dtype).max ** 0.5 for dtype in (torch.float32, torch.float64)}


def magnitude(payload: Payload, neutral: float | None = None) -> float | None:
    """The largest floating number of a payload, as a share of the largest that can be squared in its dtype.

    Args:
        payload: tensors, in dictionaries and tuples.
        neutral: A number that stands for "nothing" and is left out: -inf, of a maximum.

    Returns:
        At most 1 where all of its numbers can be computed with; NaN or infinity where one is not finite;
        None where it has no floating number.
    """
    floating = [n.detach() for n in map(_numbers, pay.leaves(payload)) if n.is_floating_point()]
    counted = floating if neutral is None else [numbers[numbers != neutral] for numbers in floating]
    largest = [
        numbers.abs().amax().double() / _LARGEST.get(numbers.dtype, _LARGEST[torch.float32])
        for numbers in counted
        if numbers.numel()
    ]
    return float(torch.stack(largest).amax()) if largest else None


def _numbers(leaf: Leaf) -> Tensor:
    return leaf if isinstance(leaf, Tensor) else leaf.values


def _form(payload: Payload, leading: bool) -> Form:
    """The form of a payload."""
    dtypes = tuple(
        ("sparse " if isinstance(leaf, SparseMatrix) else "") + str(leaf.dtype).removeprefix("torch.")
        for leaf in pay.leaves(payload)
    )
    return pay.describe(payload, leading=leading), dtypes


def _words(form: Form) -> str:
    """A form as messages show it."""
    shapes, dtypes = form
    kinds = ",".join(dict.fromkeys(dtypes))
    return f"{kinds} {shapes}"[:400]

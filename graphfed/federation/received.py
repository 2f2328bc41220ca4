"""Checks of what other processes send, made once, before anything is computed with it.

A participant trusts its own process and no other, the server as little as a client. It checks that every
payload has the form of the transfer (its tensors by name, their dtypes and shapes), has as many rows as were
agreed, and holds numbers that can be computed with. The form is known, best first, from the program of the
receiver (`Options.like`, `Federation.expect`), from a payload of the same transfer that this process made,
from an earlier message of the transfer, or from the majority of the senders. A transfer may add its own rule
(`Transfer.accept`), for example that no count is above what the client declared when it joined. The error
names the sender and the transfer. Numbers that are plausible but wrong cannot be detected and pass
(docs/security.md).

Numbers that are not finite are not always one participant's fault: training that diverges ends in them at all
clients at once. So numbers that are not finite, or too large to compute with, are refused only if the numbers
of others in the same transfer are far smaller. Otherwise they pass, and the run itself finds that it has
diverged.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.errors import GraphfedError, shown
from graphfed.federation.link import SERVER_INDEX, Pair
from graphfed.federation.payload import Leaf, Payload
from graphfed.federation.transfer import TensorForm, Transfer, describe_value
from graphfed.nn.sparse import SparseMatrix

#: Numbers that are so many times larger than those of all other participants are outliers.
OUTLIER_FACTOR = 1000.0

#: What messages of one transfer have in common: dtype and shape of each leaf, by its path in the payload (""
#: for a payload that is one tensor). None stands for any size.
Form = dict[str, tuple[str, list[int | None]]]

#: In a form, a dictionary or tuple without items.
NOTHING: tuple[str, list[int | None]] = ("nothing", [])


class ReceivedError(GraphfedError):
    """What another participant sent cannot be used.

    The message names the participant, the transfer and the fault.
    """


@dataclass
class Received:
    """The checks of one process.

    Attributes:
        name_of: Returns how messages call a participant.
        declared: By part of the split ("train", "val", "test"), how many nodes each client has declared, [K];
            only if the run asked for it.
        notes: By transfer, whose numbers were far larger than all others'. That is no error, but a hint where
            to look if training diverges later.
    """

    name_of: Callable[[int], str]
    workers: Sequence[Sequence[int]]
    declared: dict[str, np.ndarray] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    _forms: dict[tuple[str, bool], Form] = field(default_factory=dict)

    def expect(self, name: str, example: Payload) -> None:
        """Set the form of a transfer that other processes send. The example's numbers, and of rows their
        number, do not matter.
        """
        for leading in (True, False):
            self._forms[name, leading] = _form(example, leading)

    def check(
        self,
        transfer: Transfer,
        arrived: Mapping[Pair, Payload],
        local: Mapping[Pair, Payload],
        rows: Mapping[Pair, int],
        like: Payload | None,
        round_number: int,
    ) -> None:
        """Check the payloads of a transfer that came from other processes.

        Args:
            arrived: The payloads, out of their wrappers, by (sender, receiver).
            local: Payloads of the same transfer that this process made; they are right.
            rows: How many rows a payload must have, if that was agreed.
            like: What the payload looks like (see `Options.like`); None if only the senders know it.

        Raises:
            ReceivedError: For the first payload that cannot be used.
        """
        # Form before rows before numbers: each check relies on what those before it have established.
        self._check_form(transfer, arrived, local, like, round_number)
        for pair, payload in arrived.items():
            if pair in rows:
                self._check_rows(transfer, pair, payload, rows[pair], round_number)
        self.check_numbers(transfer, arrived, local, round_number)
        if transfer.accept is not None:
            for pair, payload in arrived.items():
                if why := transfer.accept(payload, self._declared_by(pair[0])):
                    raise self.refusal(pair[0], transfer.name, round_number, why)

    def refusal(self, participant: int, transfer: str, round_number: int, why: str) -> ReceivedError:
        """Make the error for what a participant sent; `why` continues "it sent", as in "3 rows where 5 are
        expected".
        """
        name = self.name_of(participant)
        return ReceivedError(
            f"{name} sent {why} (transfer {transfer!r}, round {round_number}); the run cannot continue: "
            f"check the program and the data of {name}"
        )

    def _declared_by(self, participant: int) -> dict[str, np.ndarray]:
        if participant == SERVER_INDEX:
            return {}
        return {part: counts[list(self.workers[participant])] for part, counts in self.declared.items()}

    def _check_form(
        self,
        transfer: Transfer,
        arrived: Mapping[Pair, Payload],
        local: Mapping[Pair, Payload],
        like: Payload | None,
        round_number: int,
    ) -> None:
        """Check structure, dtypes, and the shape of a row or of a client's part."""
        forms = {pair: _form(payload, transfer.leading) for pair, payload in arrived.items()}
        key = transfer.name, transfer.leading
        if like is not None:
            right = _form(like, transfer.leading)
        elif local:
            right = _form(next(iter(local.values())), transfer.leading)
        elif key in self._forms:
            right = self._forms[key]
        else:
            # This process knows no right form, so the majority of the senders decides.
            forms_found = list(forms.values())
            right = max(forms_found, key=forms_found.count)
            if len(forms_found) > 1 and 2 * forms_found.count(right) <= len(forms_found):
                described = ", ".join(
                    f"{self.name_of(pair[0])} {_show_form(form)}" for pair, form in forms.items()
                )
                raise ReceivedError(
                    f"the messages of transfer {transfer.name!r}, round {round_number}, must have the same "
                    f"form, but they differ: {described[:2000]}; at least one of these participants sent a "
                    "wrong message, but the messages do not show which"
                )
        for (source, _), form in forms.items():
            # Equality first: it is the usual case, and the search for the difference is slow.
            if form != right and (path := _difference(form, right)) is not None:
                raise self.refusal(source, transfer.name, round_number, _show_difference(form, right, path))
        # The server's next message of the transfer has the form of its first. The messages of clients are
        # compared with each other.
        if all(source == SERVER_INDEX for source, _ in arrived):
            self._forms.setdefault(key, right)

    def _check_rows(
        self, transfer: Transfer, pair: Pair, payload: Payload, expected: int, round_number: int
    ) -> None:
        # The payload of an average has several tensors with a row for each client; all others are rows.
        for leaf in pay.leaves(payload) if transfer.kind == "average" else [payload]:
            if not isinstance(leaf, Tensor | SparseMatrix) or leaf.shape[:1] != (expected,):
                why = f"{describe_value(leaf)} where {expected} rows are expected"
                raise self.refusal(pair[0], transfer.name, round_number, why)

    def check_numbers(
        self,
        transfer: Transfer,
        arrived: Mapping[Pair, Payload],
        local: Mapping[Pair, Payload],
        round_number: int,
    ) -> None:
        """Raise ReceivedError if some numbers cannot be computed with, but those of another participant
        can.
        """
        if not transfer.finite:
            return
        neutral = -math.inf if transfer.kind == "max" else None
        found = {pair: magnitude(payload, neutral) for pair, payload in {**local, **arrived}.items()}
        # A payload without floating numbers says nothing about their size.
        sizes = {pair: size for pair, size in found.items() if size is not None}
        # `not <=` holds for NaN too.
        wrong = [pair for pair in arrived if pair in sizes and not sizes[pair] <= 1]
        # If training diverges, the numbers of all participants grow, and one of them reaches the limit first.
        if wrong and not any(size <= 1 / OUTLIER_FACTOR for size in sizes.values()):
            self.notes[transfer.name] = (
                f"in transfer {transfer.name!r} of round {round_number} no participant's numbers were small "
                "enough to compute with"
            )
        elif wrong:
            finite = all(np.isfinite(sizes[pair]) for pair in wrong)
            kind = "numbers too large to compute with" if finite else "numbers that are not finite"
            names = ", ".join(self.name_of(source) for source, _ in wrong[:5])
            raise ReceivedError(
                f"{names} sent {kind} (transfer {transfer.name!r}, round {round_number}), but others did "
                f"not; the run cannot continue: check the scale of the data and the program of {names}, or, "
                "if training diverges there first, use a smaller learning rate"
            )
        else:
            self._note_outlier(
                transfer, {pair: sizes[pair] for pair in arrived if pair in sizes}, round_number
            )

    def _note_outlier(self, transfer: Transfer, sizes: Mapping[Pair, float], round_number: int) -> None:
        """Note who sent by far the largest numbers, if there is such a participant."""
        if len(sizes) < 2:
            return
        pair = max(sizes, key=lambda pair: sizes[pair])
        others = max(size for other, size in sizes.items() if other != pair)
        if sizes[pair] > OUTLIER_FACTOR * others:
            times = f"{sizes[pair] / others:.1g} times as large as" if others else "not 0, unlike"
            self.notes[transfer.name] = (
                f"in transfer {transfer.name!r} of round {round_number} the numbers of "
                f"{self.name_of(pair[0])} were {times} those of all others"
            )


#: The largest number whose square does not overflow, for float32 and float64.
_LARGEST = {dtype: torch.finfo(dtype).max ** 0.5 for dtype in (torch.float32, torch.float64)}


def magnitude(payload: Payload, neutral: float | None = None) -> float | None:
    """Return the largest size of a payload's floating numbers, divided by the largest whose square does not
    overflow.

    It is at most 1 if all numbers can be computed with; NaN or infinity if one is not finite; None without
    floating numbers. `neutral` stands for "nothing" and is left out, such as -inf in a maximum.
    """
    floating = [n.detach() for n in map(_numbers, pay.leaves(payload)) if n.is_floating_point()]
    counted = floating if neutral is None else [numbers[numbers != neutral] for numbers in floating]
    # Norms and optimisers square numbers, so one whose square overflows is of no use.
    largest = [
        numbers.abs().amax().double() / _LARGEST.get(numbers.dtype, _LARGEST[torch.float32])
        for numbers in counted
        if numbers.numel()
    ]
    return float(torch.stack(largest).amax()) if largest else None


def _numbers(leaf: Leaf) -> Tensor:
    return leaf if isinstance(leaf, Tensor) else leaf.values


def _form(payload: Payload, leading: bool) -> Form:
    form: Form = {}

    def add(tree: Any, path: str) -> None:
        if isinstance(tree, dict | tuple) and tree:
            items = tree.items() if isinstance(tree, dict) else ((f"[{i}]", x) for i, x in enumerate(tree))
            for key, item in items:
                add(item, f"{path}/{key}" if path else key)
        elif isinstance(tree, dict | tuple):
            form[path] = NOTHING
        elif isinstance(tree, TensorForm):
            form[path] = _name(tree.dtype), list(tree.shape)
        else:
            kind = "sparse " if isinstance(tree, SparseMatrix) else ""
            shape: Any = pay.unit_of(tree, leading=leading).shape
            form[path] = kind + _name(tree.dtype), shape

    add(payload, "")
    return form


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _difference(found: Form, right: Form) -> str | None:
    """The path of the first leaf that is not as expected; None if all are."""
    for path in (*right, *found):
        a, b = found.get(path), right.get(path)
        if a is None or b is None or a[0] != b[0] or len(a[1]) != len(b[1]):
            return path
        if any(n is not None and m != n for m, n in zip(a[1], b[1], strict=True)):
            return path
    return None


def _show_leaf(leaf: tuple[str, list[int | None]] | None) -> str:
    if leaf is None or leaf == NOTHING:
        return "nothing"
    return f"{leaf[0]} [{', '.join('any' if n is None else str(n) for n in leaf[1])}]"


def _show_form(form: Form) -> str:
    if set(form) == {""}:
        return _show_leaf(form[""])[:400]
    return ("{" + ", ".join(f"{shown(path)}: {_show_leaf(leaf)}" for path, leaf in form.items()) + "}")[:400]


def _show_difference(found: Form, right: Form, path: str) -> str:
    """The difference of two forms at a path, as a continuation of "it sent"."""
    if "" in found or "" in right:  # one of them is a single tensor
        return f"{_show_form(found)} where {_show_form(right)} is expected"
    return f"{_show_leaf(found.get(path))} as {shown(path)} where {_show_leaf(right.get(path))} is expected"

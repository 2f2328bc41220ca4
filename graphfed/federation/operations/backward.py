"""The backward pass: gradients are sent back over the transfers on the tape, in reverse order."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.errors import PlaceError
from graphfed.federation.link import Message, Pair
from graphfed.federation.operations.delivery import Delivery, transfer_of
from graphfed.federation.payload import Leaf
from graphfed.federation.tape import CustomBackward, Pending, Record, Tape
from graphfed.federation.transfer import Transfer, answer, check_rows, describe_value, gradients_for
from graphfed.federation.values import ABSENT, Located
from graphfed.federation.wire import WireError
from graphfed.nn.sparse import SparseWeights


@contextmanager
def open_tape(delivery: Delivery) -> Iterator[None]:
    """Implement `Federation.tape`."""
    if delivery.tape is not None:
        raise PlaceError("fed.tape() is already recording; close it before opening another")
    delivery.tape = Tape()
    try:
        yield
    finally:
        delivery.tape.close()
        delivery.tape = None


def custom_backward(
    delivery: Delivery,
    x: Located[Tensor],
    z: Located[Tensor],
    back: Callable[[Located[Tensor]], Located[Tensor]],
) -> Located[Tensor]:
    """Implement `Federation.custom_backward`."""
    # Without a tape no gradient is asked for.
    if delivery.tape is None:
        return z
    for part in (*x.parts, *z.parts):
        if not isinstance(part, Tensor):
            raise PlaceError(
                f"{z.name!r}: a custom backward pass is defined between tensors; got {describe_value(part)}"
            )
    # z becomes a leaf, as a received tensor does, so autograd collects its gradient for the record.
    for part in z.parts:
        part.requires_grad_()
    delivery.tape.records.append(CustomBackward(x, z, back))
    return z


def run_backward(delivery: Delivery, loss: Located[Tensor]) -> None:
    """Implement `Federation.backward`."""
    places, tape = delivery.places, delivery.tape
    if tape is None:
        raise PlaceError(
            "fed.backward(loss) was called outside fed.tape(), so no transfer was recorded; compute the loss "
            "and call backward inside the block"
        )
    if tape.spent:
        raise PlaceError(
            "fed.backward(loss) has already run on this tape; add up the losses, or open another fed.tape()"
        )
    tape.spent = True
    # Every participant's loss starts with the gradient 1, so the sum of the losses is differentiated.
    pending = Pending()
    for participant, part in zip(places.participants_at(loss.place), loss.parts, strict=True):
        if part is not ABSENT:
            pending.add(participant, part, torch.ones_like(part))
    # Backwards in program order: when a transfer's turn comes, everything that used what it delivered is
    # done.
    for record in reversed(tape.records):
        if isinstance(record, CustomBackward):
            _run_custom(delivery, record, pending)
        else:
            _reverse(delivery, record, pending)
    pending.flush_all()


def _reverse(delivery: Delivery, record: Record, pending: Pending) -> None:
    """Send the gradients of one transfer back to its senders."""
    # The receivers' autograd passes come first: they complete the gradients of the received tensors.
    for participant in dict.fromkeys(to for _, to in record.received):
        pending.flush(participant)
    answers = {(to, source): answer(ts, record.wrap) for (source, to), ts in record.received.items()}
    back = [(to, source) for source, to in record.pairs]
    got = delivery.deliver(answers, back, f"{record.key}/grad")
    for ledger_record in record.answers:
        delivery.ledger.record(ledger_record)
    # Every sender gets exactly one answer, from every receiver that it asked.
    gradients = _gradients_of(delivery, record, got)
    for (source, to), tensors in record.sent.items():
        for tensor, gradient in zip(tensors, gradients[to, source], strict=True):
            pending.add(source, tensor, gradient)


def _gradients_of(
    delivery: Delivery, record: Record, got: Mapping[Pair, Message]
) -> dict[Pair, tuple[Tensor, ...]]:
    """Check the gradients that came back for the tensors sent from this process."""
    places, name = delivery.places, f"{transfer_of(record.key)}/grad"
    gradients: dict[Pair, tuple[Tensor, ...]] = {}
    for (source, to), tensors in record.sent.items():
        try:
            gradients[to, source] = gradients_for(tensors, got[to, source].payload, record.wrap)
        except WireError as error:
            raise delivery.refusal(to, name, str(error)) from error
    elsewhere = {p: found for p, found in gradients.items() if places.is_remote(p[0])}
    local = {p: found for p, found in gradients.items() if p not in elsewhere}
    if elsewhere:
        # Only numbers are left to check; `gradients_for` has checked the form.
        transfer = Transfer(name, "gradients", places.flow, "", grad=False)
        delivery.received.check_numbers(transfer, elsewhere, local, delivery.ledger.round)
    return gradients


def _run_custom(delivery: Delivery, record: CustomBackward, pending: Pending) -> None:
    """Run the program that a custom backward pass was recorded with."""
    places = delivery.places
    # Complete the gradient of z at its place, before it is handed to the program.
    for participant in places.participants_at(record.z.place):
        pending.flush(participant)
    parts = tuple(_gradient(part) for part in record.z.parts)
    # Free the gradients, which a second pass over the same leaves would add to.
    for part in record.z.parts:
        part.grad = None
    sent = record.back(Located(record.z.place, f"gradient of {record.z.name}", parts))
    for participant, tensor, part in zip(
        places.participants_at(record.x.place), record.x.parts, sent.parts, strict=True
    ):
        check_rows(part, tensor.shape[0], f"the gradient of {record.x.name!r}", "it has")
        pending.add(participant, tensor, part)


def collect_gradients(weights: Located) -> Located:
    """Implement `Federation.gradients`."""
    parts = tuple(p if p is ABSENT else pay.tree_map(_gradient, p) for p in weights.parts)
    return Located(weights.place, f"gradient of {weights.name}", parts, weights.members)


def _gradient(x: Tensor | SparseWeights) -> Leaf:
    tensor = pay.grad_carrier(x)
    gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return x.with_values(gradient) if isinstance(x, SparseWeights) else gradient

"""Control: decisions that are sent to every participant, and reports of the workers.

Both are plain JSON without data.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any

import numpy as np

from graphfed.errors import PlaceError, shown
from graphfed.federation.ledger import Flow, LedgerRecord
from graphfed.federation.link import SERVER_INDEX, Message
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.operations.running import Place, StageError
from graphfed.federation.values import SERVER, Located
from graphfed.federation.wire import WireError
from graphfed.files import JsonObject, parse_json

#: The values of a decision by name, each with its type or types. An int is at least 0.
Values = Mapping[str, type | UnionType]

#: The most characters of a decision, apart from one for every client. The limit keeps data out of control.
MAX_CONTROL = 1000
#: The most characters of a worker's report. Names of columns and classes are its longest part.
MAX_REPORT = 1 << 20


def decide(
    delivery: Delivery,
    server: Place,
    fn: Callable[..., Mapping[str, object]],
    arguments: Sequence[object],
    name: str,
    values: Values | None = None,
    accept: Callable[[JsonObject], str] | None = None,
) -> JsonObject:
    """Implement `Federation.control`."""
    places, ledger = delivery.places, delivery.ledger
    decision = server.run(fn, *arguments)
    pairs = [(SERVER_INDEX, h) for h in range(len(places.workers))]
    texts = [_as_json(part, name) for part in decision.parts]
    # `texts` is empty where the server is not: then nothing is sent from here.
    messages = {p: Message(text) for text in texts for p in pairs}
    got = delivery.deliver(messages, pairs, delivery.next_key(name))
    # The server's process has the decision itself; every other process received it.
    longest = MAX_CONTROL + places.num_clients
    if texts:
        (text,) = texts
        if len(text) > longest:
            raise PlaceError(
                f"a control message has {len(text)} characters (at most {longest}); send data with a named "
                "transfer instead"
            )
        result: JsonObject = _from_json(text, longest, "a control message")
    else:
        text = next(iter(got.values())).payload
        try:
            result = _from_json(text, longest, "it")
        except WireError as error:
            raise delivery.refusal(SERVER_INDEX, name, f"something else than a decision: {error}") from None
        if why := _check_values(result, values) or (accept(result) if accept is not None else ""):
            raise delivery.refusal(SERVER_INDEX, name, why)
    # A phase of its own, so that decisions do not count as a method's cost.
    with ledger.in_phase("control"):
        flow, size = places.everyone_flow.back, len(text.encode())
        ledger.record(LedgerRecord(name, "control", "json", [], "public", flow, size))
    return result


def _check_values(decision: object, values: Values | None) -> str:
    """Return what is wrong with a decision, as a continuation of "it sent"; an empty string if nothing is."""
    if not isinstance(decision, dict):
        return f"{shown(decision)} where named values are expected"
    # All expected names, then whatever else arrived: both too few and too many are found.
    for name in {} if values is None else {**values, **decision}:
        assert values is not None
        expected = values.get(name)
        if name not in decision:
            return f"no value {name!r} where {_name(expected)} is expected"
        value = decision[name]
        fits = expected is not None and isinstance(value, expected)
        # A truth value is an int to Python.
        if not fits or (isinstance(value, bool) and expected is not bool):
            return f"{shown(name)} = {shown(value)} where {_name(expected)} is expected"
        if expected is int and value < 0:
            return f"{name!r} = {shown(value)} where a number of at least 0 is expected"
    return ""


def _name(expected: object) -> str:
    return "nothing" if expected is None else getattr(expected, "__name__", str(expected))


def report(delivery: Delivery, clients: Place, x: Located, name: str) -> Located[list[Any]]:
    """Implement `Federation.report`."""
    places = delivery.places
    places.check_all_present(name)
    texts = clients.run(_as_report, x)
    pairs = [(h, SERVER_INDEX) for h in range(len(places.workers))]
    messages = {(h, SERVER_INDEX): Message(text) for h, text in zip(places.here, texts.parts, strict=True)}
    got = delivery.deliver(messages, pairs, delivery.next_key(name))
    seen = {h: m.payload for (h, _), m in {**messages, **got}.items()}
    reports = [_from_json(seen[h], MAX_REPORT, f"{name!r} from {places.name_of(h)}") for h in sorted(seen)]
    # A worker sends a report, but the ledger counts by client. So its first client is recorded.
    sizes = np.zeros(places.num_clients, dtype=np.int64)
    for h, text in seen.items():
        sizes[places.workers[h][0]] = len(text.encode())
    flow = Flow.up(sizes, sizes > 0)
    delivery.ledger.record(LedgerRecord(name, "report", "json", [], "public", flow, 1))
    return Located(SERVER, name, (reports,) * places.server_is_here)


def _as_json(decision: object, name: str) -> str:
    try:
        return json.dumps(decision, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StageError(f"the server's decision {name!r} cannot be sent: {error}") from error


def _as_report(content: object) -> str:
    text = json.dumps(content, allow_nan=False)
    if len(text) > MAX_REPORT:
        raise ValueError(f"{len(text)} characters (at most {MAX_REPORT})")
    return text


def _from_json(text: object, max_length: int, what: str) -> Any:
    """Parse JSON that another participant sent; WireError if it is anything else."""
    if not isinstance(text, str) or len(text) > max_length:
        raise WireError(f"{what} is not a text of at most {max_length} characters")
    try:
        text.encode()  # raises for half of a surrogate pair, which is in no valid UTF-8
        return parse_json(text)
    except ValueError as error:
        raise WireError(f"{what} is not JSON: {type(error).__name__}") from None

"""Control: decisions that are sent to every participant, and reports of the workers.

Both are plain JSON without data.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphfed.errors import PlaceError
from graphfed.federation.ledger import Flow, LedgerRecord
from graphfed.federation.link import SERVER_INDEX, Message
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.operations.running import Place
from graphfed.federation.values import SERVER, Located
from graphfed.federation.wire import WireError
from graphfed.files import JsonObject, parse_json

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
) -> JsonObject:
    """Implement `Federation.control`.

    Args:
        delivery: The delivery of the run.
        server: The place at which `fn` runs.
        fn: Returns the decision as plain JSON values.
        arguments: The arguments of `fn`, as in `Place.run`.
        name: The name of the transfer.

    Returns:
        The decision, the same dictionary in every process.

    Raises:
        StageError: If `fn` fails, or returns anything but JSON.
        PlaceError: If the decision is longer than `MAX_CONTROL` characters and one for each client.
        WireError: If another process sent something that is not a decision.
    """
    places, ledger = delivery.places, delivery.ledger
    decision = server.run(_as_json, fn, *arguments)
    pairs = [(SERVER_INDEX, h) for h in range(len(places.workers))]
    messages = {p: Message(text) for text in decision.parts for p in pairs}
    got = delivery.deliver(messages, pairs, delivery.next_key(name))
    # The server's process has the decision itself; every other process received it.
    text = decision.parts[0] if decision.parts else next(iter(got.values())).payload
    if not isinstance(text, str):
        raise WireError("a control message is not text")
    if len(text) > MAX_CONTROL + places.num_clients:
        raise PlaceError(
            f"a control message has {len(text)} characters (at most {MAX_CONTROL + places.num_clients}); "
            "send data with a named transfer instead"
        )
    result: JsonObject = _from_json(text, len(text), "a control message")
    with ledger.in_phase("control"):
        flow, size = places.everyone_flow.back, len(text.encode())
        ledger.record(LedgerRecord(name, "control", "json", [], "public", flow, size))
    return result


def report(delivery: Delivery, clients: Place, x: Located, name: str) -> Located[list[Any]]:
    """Implement `Federation.report`.

    Args:
        delivery: The delivery of the run.
        clients: The place of the content.
        x: At the clients, the content that each worker reports.
        name: The name of the transfer.

    Returns:
        At the server, the contents in the order of the workers.

    Raises:
        StageError: If a content is not JSON, or longer than `MAX_REPORT` characters.
        PlaceError: If a client is absent.
        WireError: If another process sent something that is not a report.
    """
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


def _as_json(fn: Callable[..., Mapping[str, object]], *inputs: object) -> str:
    """Run `fn` and convert its decision to JSON."""
    return json.dumps(fn(*inputs), allow_nan=False)


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

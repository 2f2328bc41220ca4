"""Sends parts of messages as requests between the cells of a job, FLARE's own messages below Collab calls.

A Collab call with bytes goes through FLARE's streaming. With 4 sites, a round trip of 1 KB took 26 ms by call
and 15 ms by request; a round trip of 50 MB took 2.4 s and 1.3 s (medians of one run,
benchmarks/results/deployment.json). So calls start and end runs, and requests carry the messages.

The origin of a request is the sending cell, which FLARE binds to the certificate of its connection, as it
does for calls. Requests of cells that do not take part in the job are refused.
"""

from collections.abc import Callable, Mapping

from nvflare.collab.api.proxy import Proxy
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.f3.message import Message

from graphfed.runtime.mailbox import ProcessError
from graphfed.runtime.nvflare.link import Part, Post

CHANNEL, TOPIC = "graphfed", "part"
#: The header of a request with the fields of `Part` other than the contents.
HEADER = "graphfed_part"
#: Seconds that a request may take. A part is small, and a request that fails is repeated.
REQUEST = 10.0


def listen(proxies: Mapping[str, Proxy], accept: Callable[[str, Part], str]) -> None:
    """Pass every part that arrives from now on to a function. A process may call this once.

    `accept` gets the name of the sender and the part, and returns why the part is refused, or "".
    """
    cell = next(iter(proxies.values())).backend.cell
    names = {proxy.backend.target_fqcn: name for name, proxy in proxies.items()}

    def take(request: Message) -> Message:
        sender = names.get(request.get_header(MessageHeaderKey.ORIGIN))
        header = request.get_header(HEADER)
        if sender is None or not isinstance(header, list | tuple) or len(header) != 4:
            return make_reply(ReturnCode.INVALID_REQUEST)
        key, number, count, size = header
        content = b"" if request.payload is None else request.payload
        refused = accept(sender, Part(key, number, count, size, content))
        return make_reply(ReturnCode.OK, body=refused.encode())

    cell.core_cell.register_request_cb(CHANNEL, TOPIC, take)


def post_to(name: str, proxy: Proxy) -> Post:
    """Make a function that sends parts to a participant; it raises ProcessError if FLARE cannot reach it."""
    cell, target = proxy.backend.cell, proxy.backend.target_fqcn

    def post(part: Part) -> str:
        header = [part.key, part.number, part.count, part.size]
        request = new_cell_message({HEADER: header}, part.content)
        reply = cell.core_cell.send_request(CHANNEL, TOPIC, target, request, timeout=REQUEST)
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if code != ReturnCode.OK:
            raise ProcessError(f"{name} cannot be reached ({code})")
        return bytes(reply.payload or b"").decode(errors="replace")[:1000]

    return post

"""Parts of messages as requests between the cells of a job: FLARE's own messages, one below its Collab
calls.

A Collab call with bytes goes through FLARE's streaming: with 4 sites, a round trip of 1 KB took 26 ms by call
and 15 ms by request, of 50 MB 2.4 s and 1.3 s (medians of one run, benchmarks/results/deployment.json). So
calls start and end runs, and requests carry what is exchanged in them.

A request's origin is the sending cell, which FLARE binds to the certificate of its connection, as for calls;
who is no participant of the job is refused."""

from collections.abc import Callable, Mapping

from nvflare.collab.api.proxy import Proxy
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.f3.message import Message

from graphfed.runtime.mailbox import ProcessError
from graphfed.runtime.nvflare.link import Part, Post

__all__ = ["listen", "post_to"]

CHANNEL, TOPIC = "graphfed", "part"
#: The header of a request that holds what `Part` has beside the contents.
HEADER = "graphfed_part"
#: Seconds that a request may take: a part is small, and one that fails is repeated before a peer is given up.
REQUEST = 10.0


def listen(proxies: Mapping[str, Proxy], accept: Callable[[str, Part], str]) -> None:
    """Hand every part that arrives from now on to `accept`, with its sender's name. Once for a process."""
    cell = next(iter(proxies.values())).backend.cell
    names = {proxy.backend.target_fqcn: name for name, proxy in proxies.items()}

    def take(request: Message) -> Message:
        sender = names.get(request.get_header(MessageHeaderKey.ORIGIN))
        told = request.get_header(HEADER)
        if sender is None or not isinstance(told, list | tuple) or len(told) != 4:
            return make_reply(ReturnCode.INVALID_REQUEST)
        key, number, count, size = told
        content = b"" if request.payload is None else request.payload
        refused = accept(sender, Part(key, number, count, size, content))
        return make_reply(ReturnCode.OK, body=refused.encode())

    cell.core_cell.register_request_cb(CHANNEL, TOPIC, take)


def post_to(name: str, proxy: Proxy) -> Post:
    """How to hand a part to a place; its `Post` raises ProcessError where FLARE does not reach it."""
    cell, target = proxy.backend.cell, proxy.backend.target_fqcn

    def post(part: Part) -> str:
        told = [part.key, part.number, part.count, part.size]
        request = new_cell_message({HEADER: told}, part.content)
        reply = cell.core_cell.send_request(CHANNEL, TOPIC, target, request, timeout=REQUEST)
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if code != ReturnCode.OK:
            raise ProcessError(f"{name} cannot be reached ({code})")
        return bytes(reply.payload or b"").decode(errors="replace")[:1000]

    return post

"""The link of one place of a deployment: messages go in parts, each handed over by a request that the other
place answers once it keeps the part; arrived messages wait in a mailbox.

`send` only queues; worker threads make the requests and repeat one that fails, until the peer is given up. A
part that arrives twice, late or out of order does no harm (`runtime.mailbox`), so repeating is safe.

Messages between two sites pass through the server. Every part is sealed for the receiving site
(`secure.channel`): the two sites send each other one offer, the first time that there is something to send,
and from then on the server relays what it cannot read."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from graphfed.federation.link import SERVER_END
from graphfed.runtime.mailbox import MAX_MESSAGE, Mailbox, ProcessError, check_size
from graphfed.secure.channel import OVERHEAD, Channel, ChannelError, Handshake, Identity

__all__ = ["Channels", "FlareLink", "Inbox", "Part", "Post"]

#: Bytes of the contents of the longest part.
PART = 4 << 20
#: Parts on their way to one peer at a time.
AT_ONCE = 4
#: Seconds before a request is repeated: at first, and at most.
PAUSES = (0.05, 2.0)
#: Characters of the longest key.
MAX_KEY = 1 << 12
#: The key of the offers between two sites.
OFFER = "channel/offer"


@dataclass(frozen=True)
class Part:
    """One request's worth of a message: number `number` of `count`; size: bytes of the whole message."""

    key: str
    number: int
    count: int
    size: int
    content: bytes | memoryview

    @property
    def label(self) -> str:
        """What the contents are sealed under: no other part of a session has it."""
        return f"{self.key}#{self.number}/{self.count}/{self.size}"


#: Hands a part to a peer and returns why it refused it, empty when it is kept there. Raises when the peer
#: could not be reached.
Post = Callable[[Part], str]


def parts_of(key: str, message: bytes) -> list[Part]:
    """A message in parts of equal size, the last one shorter."""
    count = max(1, -(-len(message) // PART))
    view = memoryview(message)
    return [Part(key, i, count, len(message), view[i * PART : (i + 1) * PART]) for i in range(count)]


class Inbox:
    """Puts the parts that arrive together, and whole messages into the mailbox.

    opened: the contents of a sealed part, from its sender and the part. A part that is refused changes
    nothing, so its sender may try again."""

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        max_message: int = MAX_MESSAGE,
        opened: Callable[[str, Part], bytes | memoryview] | None = None,
    ) -> None:
        self.mailbox = mailbox
        self._max_message, self._opened = max_message, opened
        self._parts: dict[tuple[str, str], dict[int, bytes | memoryview]] = {}
        self._sizes: dict[tuple[str, str], tuple[int, int]] = {}
        self._lock = threading.Lock()
        #: Parts refused, by sender.
        self.refused: Counter[str] = Counter()

    def accept(self, sender: str, part: Part) -> str:
        """Keep a part from `sender`: empty, or why it is refused."""
        try:
            self._check(part)
            content = part.content if self._opened is None else self._opened(sender, part)
            self._keep(sender, part, content)
        except (ProcessError, ChannelError) as error:
            self.refused[sender] += 1
            return str(error)[:1000]
        return ""

    def _check(self, part: Part) -> None:
        numbers = (part.number, part.count, part.size)
        if not isinstance(part.key, str) or not 0 < len(part.key) <= MAX_KEY:
            raise ProcessError("a message without a key that can be used")
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
            raise ProcessError(f"{part.key} does not say its size in whole numbers")
        if not 0 <= part.size <= self._max_message:
            raise ProcessError(f"{part.key} is of {part.size} bytes; at most {self._max_message} are read")
        if part.count != max(1, -(-part.size // PART)) or not 0 <= part.number < part.count:
            raise ProcessError(f"{part.key} of {part.size} bytes has no part {part.number} of {part.count}")
        if (
            not isinstance(part.content, bytes | bytearray | memoryview)
            or len(part.content) > PART + OVERHEAD
        ):
            raise ProcessError(f"{part.key}: a part is at most {PART} bytes")

    def _keep(self, sender: str, part: Part, content: bytes | memoryview) -> None:
        expected = min(PART, part.size - part.number * PART)
        if len(content) != expected:
            raise ProcessError(f"{part.key}: part {part.number} has {len(content)} bytes and not {expected}")
        box, shape = (sender, part.key), (part.count, part.size)
        with self._lock:
            if self._sizes.setdefault(box, shape) != shape:
                raise ProcessError(f"{part.key} came with two different sizes")
            mine = self._parts.setdefault(box, {})
            mine.setdefault(part.number, content)
            if len(mine) < part.count:
                return
            del self._parts[box], self._sizes[box]
        message = b"".join(mine[i] for i in range(part.count))
        self.mailbox.put(sender, part.key, message)


class Channels:
    """The encrypted channels between one site and the others in a session, each made when it is needed.

    posts: how to reach the other sites, by name; patience: seconds to wait for a peer's offer."""

    def __init__(self, identity: Identity, session: str, posts: Mapping[str, Post], patience: float) -> None:
        self._posts, self._patience = posts, patience
        self._begun = {name: Handshake.begin(identity, name, session) for name in posts}
        self._made: dict[str, Channel] = {}
        self._offered: set[str] = set()
        self._changed = threading.Condition()

    def sealed(self, peer: str, part: Part) -> Part:
        """The part as it crosses; ChannelError where the peer's offer does not come."""
        return replace(part, content=self._channel(peer).seal(part.label, part.content))

    def opened(self, sender: str, part: Part) -> bytes:
        """The contents of a part from another site. ChannelError for what that site did not seal."""
        with self._changed:
            channel = self._made.get(sender)
        if channel is None:
            raise ChannelError(f"{sender} has sent {part.key} before its offer")
        return channel.open(part.label, part.content)

    def take_offer(self, sender: str, offer: bytes | memoryview) -> None:
        """What has come as a site's offer; this site's own goes back. A copy changes nothing."""
        with self._changed:
            if sender in self._made:
                return
            if sender not in self._begun:
                raise ChannelError(f"{sender} is no site of this run")
            self._made[sender] = self._begun[sender].finish(bytes(offer))
            self._changed.notify_all()
        threading.Thread(target=self._offer, args=(sender,), daemon=True).start()

    def _offer(self, peer: str) -> None:
        """Send the peer this site's offer, once."""
        with self._changed:
            if peer in self._offered:
                return
            self._offered.add(peer)
        offer = self._begun[peer].offer
        try:
            refused = self._posts[peer](Part(OFFER, 0, 1, len(offer), offer))
        except Exception:
            refused = "not reached"
        if refused:
            with self._changed:
                self._offered.discard(peer)

    def _channel(self, peer: str) -> Channel:
        end = time.monotonic() + self._patience
        while True:
            self._offer(peer)
            with self._changed:
                if self._changed.wait_for(lambda: peer in self._made, PAUSES[1]):
                    return self._made[peer]
            if time.monotonic() > end:
                raise ChannelError(f"{peer} has sent no offer for {self._patience:g} s")


class FlareLink:
    """A `Link` of one place. names: of the places by end, as FLARE knows them; posts: how to reach the
    others, by end; channels: of a site, to the other sites; give_up: seconds of failing requests after
    which a peer is lost.

    wire: bytes of contents that have left this place, by transfer: headers of messages and seals included,
    repeated requests and FLARE's own frames not."""

    def __init__(
        self,
        names: Mapping[int, str],
        posts: Mapping[int, Post],
        mailbox: Mailbox,
        *,
        channels: Channels | None,
        give_up: float,
    ) -> None:
        self.wire: Counter[str] = Counter()
        self._names, self._posts, self._mailbox = names, posts, mailbox
        self._channels, self._give_up = channels, give_up
        self._workers = {
            end: ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"to-{names[end]}") for end in posts
        }

    def send(self, to: int, key: str, message: bytes) -> None:
        check_size(message, key)
        self._mailbox.check_open(self._names[to], key, self._names[to])
        for part in parts_of(f"{self._mailbox.run}/{key}", message):
            self._workers[to].submit(self._deliver, to, part)

    def recv(self, sender: int, key: str) -> bytes:
        return self._mailbox.take(self._names[sender], key, self._names[sender])

    def close(self) -> None:
        """Send nothing more."""
        for workers in self._workers.values():
            workers.shutdown(wait=False, cancel_futures=True)

    def flush(self) -> None:
        """Wait until everything is sent, or its receiver given up."""
        for workers in self._workers.values():
            workers.shutdown(wait=True)

    def _deliver(self, to: int, part: Part) -> None:
        name, end, pause = self._names[to], time.monotonic() + self._give_up, PAUSES[0]
        while True:
            try:
                sealed = (
                    part if self._channels is None or to == SERVER_END else self._channels.sealed(name, part)
                )
                refused = self._posts[to](sealed)
                if not refused:
                    self.wire[_transfer(part.key)] += len(sealed.content)
                    return
                why = f"refused it: {refused}"
            except Exception as error:  # FLARE's own, of many kinds
                why = f"could not be reached: {type(error).__name__}"
            if time.monotonic() + pause > end:
                self._mailbox.close(name, f"{why} (tried for {self._give_up:g} s to send {part.key})")
                return
            time.sleep(pause)
            pause = min(2 * pause, PAUSES[1])


def _transfer(key: str) -> str:
    """The name of the transfer in a message's key: run/round/number/NAME/source>to."""
    found = re.fullmatch(r"[^/]*/\d+/\d+/(.*)/[^/]*", key)
    return key if found is None else found[1]

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
from dataclasses import dataclass, field, replace

from graphfed.crypto.channel import OVERHEAD, Channel, ChannelError, Handshake, Identity
from graphfed.errors import shown
from graphfed.federation.link import SERVER_INDEX
from graphfed.runtime.failures import kind_and_line
from graphfed.runtime.mailbox import MAX_MESSAGE, Mailbox, ProcessError, check_size, room
from graphfed.runtime.nvflare.tls import FRAME

__all__ = ["Channels", "FlareLink", "Inbox", "Part", "Post"]

#: Bytes of the contents of the longest part: half of the longest frame.
PART = FRAME // 2
#: Parts on their way to one peer at a time.
AT_ONCE = 4
#: Seconds before a request is repeated: at first, and at most.
PAUSES = (0.05, 2.0)
#: Characters of the longest key.
MAX_KEY = 1 << 12
#: The key of the offers between two sites.
OFFER = "channel/offer"
#: Why a part is refused that may come later.
FULL = "no room for it until messages that are here are read"


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


@dataclass(frozen=True)
class _Unfinished:
    """A message of which parts are missing: into how many it was divided, of how many bytes, and those that
    are here."""

    shape: tuple[int, int]
    parts: dict[int, bytes | memoryview] = field(default_factory=dict)


class Inbox:
    """Puts the parts that arrive together, and whole messages into the mailbox.

    opened: the contents of a sealed part, from its sender and the part. A part that is refused changes
    nothing, so its sender may try again.

    max_held: bytes that one sender may make this place keep, of messages that are not whole and of those that
    nobody has asked for (None: two of the largest). Beyond it a part is refused (`FULL`), except of a message
    that somebody waits for. So no sender fills the memory, and programs that take a sender's messages in the
    order in which it sends them, as those of a federation do, never wait for each other: the one asked for is
    the oldest that has not arrived, every part in front of it has, and so it has its turn at the sender's
    workers and is let in."""

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        max_message: int = MAX_MESSAGE,
        max_held: int | None = None,
        opened: Callable[[str, Part], bytes | memoryview] | None = None,
    ) -> None:
        self.mailbox = mailbox
        self._max_message, self._opened = max_message, opened
        self._max_held = 2 * max_message if max_held is None else max_held
        self._run = mailbox.run
        self._unfinished: dict[tuple[str, str], _Unfinished] = {}
        #: bytes that a sender's unfinished messages take
        self._room: Counter[str] = Counter()
        self._lock = threading.Lock()
        #: Parts refused, by sender.
        self.refused: Counter[str] = Counter()

    def accept(self, sender: str, part: Part) -> str:
        """Keep a part from `sender`: empty, or why it is refused."""
        try:
            self._check(part)
            content = part.content if self._opened is None else self._opened(sender, part)
            if part.key != OFFER:  # which was read when it was opened
                self._keep(sender, part, content)
        except (ProcessError, ChannelError) as error:
            with self._lock:
                self.refused[sender] += 1
            return str(error)[:1000]
        return ""

    def held(self, sender: str) -> int:
        """Bytes that this sender's messages take here, whole or not, which nobody has asked for yet."""
        with self._lock:
            return self._room[sender] + self.mailbox.held(sender)

    def _check(self, part: Part) -> None:
        numbers = (part.number, part.count, part.size)
        if not isinstance(part.key, str) or not 0 < len(part.key) <= MAX_KEY or not part.key.isprintable():
            raise ProcessError("a message without a key that can be used")
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
            raise ProcessError(f"{part.key} does not say its size in whole numbers")
        if not 0 <= part.size <= self._max_message:
            raise ProcessError(
                f"{part.key} is of {shown(part.size)} bytes; at most {self._max_message} are read"
            )
        if part.count != max(1, -(-part.size // PART)) or not 0 <= part.number < part.count:
            raise ProcessError(
                f"{part.key} of {part.size} bytes has no part {shown(part.number)} of {shown(part.count)}"
            )
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
            self._drop_earlier_runs()
            if self.mailbox.knows(*box):
                return
            message = self._unfinished.get(box, _Unfinished(shape))
            if message.shape != shape:
                raise ProcessError(f"{part.key} came with two different sizes")
            if part.number in message.parts:
                return
            more = room(part.key, content)
            held = self._room[sender] + self.mailbox.held(sender)
            if held + more > self._max_held and not self.mailbox.asked(*box):
                raise ProcessError(FULL)
            self._unfinished[box] = message
            message.parts[part.number] = content
            self._room[sender] += more
            if len(message.parts) == part.count:
                self._drop(box)
                whole = b"".join(message.parts[i] for i in range(part.count))
                self.mailbox.put(sender, part.key, whole)

    def _drop(self, box: tuple[str, str]) -> None:
        parts = self._unfinished.pop(box).parts.values()
        self._room[box[0]] -= sum(room(box[1], content) for content in parts)

    def _drop_earlier_runs(self) -> None:
        """Forget what was not whole when its run ended."""
        run = self.mailbox.run
        if run != self._run:
            for box in [box for box in self._unfinished if self.mailbox.knows(*box)]:
                self._drop(box)
            self._run = run


class Channels:
    """The encrypted channels between one site and the others in a session, each made when it is needed.

    A site that has something to send repeats its offer until the peer's is here. A peer that has heard it
    answers with its own until that has arrived once: who has nothing to send repeats nothing by itself.

    posts: how to reach the other sites, by name; patience: seconds to wait for a peer's offer."""

    def __init__(self, identity: Identity, session: str, posts: Mapping[str, Post], patience: float) -> None:
        self._posts, self._patience = posts, patience
        self._begun = {name: Handshake.begin(identity, name, session) for name in posts}
        self._made: dict[str, Channel] = {}
        #: the offers that the channels were made of
        self._offers: dict[str, bytes] = {}
        #: peers that this site's offer is on its way to, has reached, and why it has not
        self._offering: set[str] = set()
        self._reached: set[str] = set()
        self._missed: dict[str, str] = {}
        self._changed = threading.Condition()

    def sealed(self, peer: str, part: Part, of_no_use: Callable[[], bool] = lambda: False) -> Part:
        """The part as it crosses. ChannelError where the peer's offer does not come, and soon after
        `of_no_use` says that nobody needs the part any more."""
        return replace(part, content=self._channel(peer, of_no_use).seal(part.label, part.content))

    def opened(self, sender: str, part: Part) -> bytes:
        """The contents of a part from another site. ChannelError for what that site did not seal."""
        with self._changed:
            channel = self._made.get(sender)
        if channel is None:
            raise ChannelError(f"{sender} has sent {part.key} before its offer")
        return channel.open(part.label, part.content)

    def take_offer(self, sender: str, offer: bytes | memoryview) -> None:
        """What has come as a site's offer; this site's own goes back, unless it has arrived. ChannelError for
        what that site did not offer; a copy changes nothing."""
        with self._changed:
            if sender not in self._begun:
                raise ChannelError(f"{sender} is no site of this run")
            offer = bytes(offer)
            if sender not in self._made:
                self._made[sender] = self._begun[sender].finish(offer)
                self._offers[sender] = offer
                self._changed.notify_all()
            elif offer != self._offers[sender]:
                raise ChannelError(f"{sender} has made another offer before")
            if sender in self._reached or sender in self._offering:
                return
        threading.Thread(target=self._offer, args=(sender,), daemon=True, name=f"offer-to-{sender}").start()

    def _offer(self, peer: str) -> None:
        """Send the peer this site's offer, unless it is on its way."""
        with self._changed:
            if peer in self._offering:
                return
            self._offering.add(peer)
        offer, missed = self._begun[peer].offer, "was not sent"
        try:
            refused = self._posts[peer](Part(OFFER, 0, 1, len(offer), offer))
            missed = f"was refused: {_plain(refused)}" if refused else ""
        except Exception as error:  # FLARE's own, of many kinds
            missed = f"did not arrive: {kind_and_line(error)}"
        finally:
            with self._changed:
                self._offering.discard(peer)
                self._missed[peer] = missed
                if not missed:
                    self._reached.add(peer)

    def _channel(self, peer: str, of_no_use: Callable[[], bool]) -> Channel:
        end, pause = time.monotonic() + self._patience, PAUSES[0]
        while not of_no_use():
            with self._changed:
                if peer in self._made:
                    return self._made[peer]
            self._offer(peer)
            with self._changed:
                self._changed.wait_for(lambda: peer in self._made, pause)
                missed = self._missed.get(peer, "")
                if peer not in self._made and time.monotonic() > end:
                    own = f"; this site's own {missed}" if missed else ""
                    raise ChannelError(f"{peer} has sent no offer for {self._patience:g} s{own}")
            pause = min(2 * pause, PAUSES[1])
        raise ChannelError(f"{peer} is sent nothing more")


class FlareLink:
    """A `Link` of one place in the mailbox's present run. names: of the places by end, as FLARE knows them;
    posts: how to reach the others, by end; channels: of a site, to the other sites; give_up: seconds of
    failing requests after which a peer is lost. A peer that has no room for a part yet (`FULL`) is there, and
    is lost after the mailbox's patience.

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
        self._counting = threading.Lock()
        self._names, self._posts, self._mailbox = names, posts, mailbox
        self._channels, self._give_up = channels, give_up
        self._run = mailbox.run
        self._over = threading.Event()
        self._workers = {
            end: ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"to-{names[end]}") for end in posts
        }

    def send(self, to: int, key: str, message: bytes) -> None:
        check_size(message, key)
        self._mailbox.check_open(self._names[to], key, self._names[to])
        for part in parts_of(f"{self._run}/{key}", message):
            self._workers[to].submit(self._deliver, to, part)

    def recv(self, sender: int, key: str) -> bytes:
        return self._mailbox.take(self._names[sender], key, self._names[sender])

    def close(self) -> None:
        """Send nothing more. A request that is on its way is not waited for; it is the last of its thread,
        and what becomes of it changes nothing."""
        self._over.set()
        for workers in self._workers.values():
            workers.shutdown(wait=False, cancel_futures=True)

    def flush(self) -> None:
        """Wait until everything is sent, or its receiver given up."""
        for workers in self._workers.values():
            workers.shutdown(wait=True)

    def _deliver(self, to: int, part: Part) -> None:
        """Hand a part over, however often it takes, until its receiver is given up."""
        name, begun, pause = self._names[to], time.monotonic(), PAUSES[0]
        end = begun + self._give_up

        def of_no_use() -> bool:
            return self._over.is_set() or self._mailbox.run != self._run or self._mailbox.closed(name)

        while not of_no_use():
            refused = ""
            try:
                sealed = part
                if self._channels is not None and to != SERVER_INDEX:
                    sealed = self._channels.sealed(name, part, of_no_use)
                refused = self._posts[to](sealed)
                if not refused:
                    with self._counting:
                        self.wire[_transfer(part.key)] += len(sealed.content)
                    return
                why = f"refused it: {_plain(refused)}"
            except BaseException as error:  # of many kinds, and nobody else looks at what a worker raises
                why = f"could not be reached: {kind_and_line(error)}"
            now = time.monotonic()
            if refused == FULL:
                end = min(now + self._give_up, begun + self._mailbox.patience)
            if now + pause > end:
                if not of_no_use():
                    why = f"{why} (tried for {now - begun:.0f} s to send {part.key})"
                    self._mailbox.close(name, why, run=self._run)
                return
            self._over.wait(pause)
            pause = min(2 * pause, PAUSES[1])


def _plain(reason: str) -> str:
    """What a stranger gives as its reason, with nothing in it that a terminal would obey."""
    return reason if reason.isprintable() else ascii(reason)


def _transfer(key: str) -> str:
    """The name of the transfer in a message's key: run/round/number/NAME/source>to."""
    found = re.fullmatch(r"[^/]*/\d+/\d+/(.*)/[^/]*", key)
    return key if found is None else found[1]
